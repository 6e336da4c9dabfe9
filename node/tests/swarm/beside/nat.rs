//! Peers that nobody can call serve all the same: over relays, over another when one dies, and straight once they can.
#![expect(clippy::unwrap_used, reason = "a swarm that cannot be had fails the test")]

use crate::common::{Net, PROMPT, Wish, owned};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tsnode_testnet::client::AnswerStream;
use tsnode_testnet::{Flaw, Network, PeerConfig, SeenPath, SeenPeer, Sight, Swarm, Wall};

const LONG: Duration = Duration::from_secs(60);
/// Two gateways that anybody can call, and three hosts that nobody can.
const GATEWAYS: usize = 2;
const HOSTS: usize = 3;

fn body(tokens: u32) -> Value {
    json!({ "prompt": PROMPT, "max_tokens": tokens, "temperature": 0.8, "seed": 7, "ignore_eos": true })
}

fn swarm(net: &Net) -> Swarm {
    Swarm::of(net.net.peers().into_iter())
}

/// What `gateway` sees of the hosts.
fn hosts(sights: &[Option<Sight>], gateway: usize) -> Result<Vec<&SeenPeer>, String> {
    let sight = sights[gateway].as_ref().ok_or("no answer")?;
    let gateways: Vec<&str> = sights[..GATEWAYS].iter().flatten().map(|s| s.me.as_str()).collect();
    Ok(sight.peers.iter().filter(|p| p.load.total_pages > 0 && !gateways.contains(&p.id.as_str())).collect())
}

fn all_have_places(sights: &[Option<Sight>]) -> Result<(), String> {
    for host in hosts(sights, 0)? {
        let places = host.advert.addresses.iter().filter(|a| a.contains("p2p-circuit")).count();
        if host.advert.reachable || places == 0 {
            return Err(format!("{} is reachable, or has no place with a relay: {:?}", host.id, host.advert));
        }
    }
    Ok(())
}

/// Tokens of an answer that takes several seconds over relays, so that it is seen to run.
const LENGTHY: u32 = 900;

/// How the links between hosts go, as `gateway` sees it.
fn paths(sights: &[Option<Sight>], gateway: usize) -> Result<Vec<SeenPath>, String> {
    let hosts = hosts(sights, gateway)?;
    let between = |to: &str| hosts.iter().any(|h| h.id == to);
    let links = hosts.iter().flat_map(|h| &h.advert.links).filter(|l| between(&l.to));
    let paths: Vec<SeenPath> = links.map(|l| l.path.clone()).collect();
    // Each measures the link to each other.
    if paths.len() < HOSTS * (HOSTS - 1) {
        return Err(format!("{} links between hosts are measured", paths.len()));
    }
    Ok(paths)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_that_nobody_can_call_serve_over_relays_and_outlive_one() {
    let alone = Net::up_beside(Wish { peers: 1, gateways: 0, flags: &["--kv-codec", "raw"], model_flags: &[] }).await;
    let (expected, _) = alone.tokens(0, body(64)).await;
    let (long, _) = alone.tokens(0, body(LENGTHY)).await;
    alone.down().await;

    let host = || PeerConfig::Host { flags: owned(&["--threads", "1", "--wall", "udp"]) };
    let peers = [vec![PeerConfig::Gateway; GATEWAYS], (0..HOSTS).map(|_| host()).collect()].concat();
    let flags = ["--layout", "prefill=1,decode=2", "--kv-codec", "raw"];
    let mut net = Net::of_beside(peers, &flags).await;
    swarm(&net).await_that(LONG, all_have_places).await.unwrap();

    // KV goes to both stages of the decode group, and every token round its ring, over a relay.
    until_kv_is_relayed(&net, &expected).await;
    let relayed = |sights: &[Option<Sight>]| {
        let paths = paths(sights, 0)?;
        let all = paths.iter().all(|path| matches!(path, SeenPath::Relayed { .. }));
        all.then_some(()).ok_or_else(|| format!("{paths:?}"))
    };
    swarm(&net).await_that(LONG, relayed).await.unwrap();

    // The relay in use dies while an answer goes through it.
    let sights = swarm(&net).look().await;
    let used = |gateway: &usize| {
        let me = &sights[*gateway].as_ref().unwrap().me;
        paths(&sights, 0).unwrap().iter().filter(|path| matches!(path, SeenPath::Relayed { via } if via == me)).count()
    };
    let dies = (0..GATEWAYS).max_by_key(used).unwrap();
    let stays = 1 - dies;
    let http = net.peer(stays).http;
    let reader = AnswerStream::new(&net.client, "over a relay".into(), body(LENGTHY));
    let reading = tsnode::tasks::spawn("test", async move { reader.read(|_| http.clone()).await });
    let running = |sights: &[Option<Sight>]| {
        let runs = hosts(sights, stays)?.iter().any(|h| h.load.running > 0);
        runs.then_some(()).ok_or_else(|| "nothing runs".into())
    };
    swarm(&net).await_that(LONG, running).await.unwrap();
    net.net.kill(dies).await.unwrap();
    let seen = reading.await.unwrap().unwrap();
    assert_eq!(seen.tokens, long, "the relay died");

    meet(&net, stays, &expected).await;
    net.down().await;
}

/// All of a prompt comes from the other group. A way over a relay may have to be looked for again; until it is found the decode
/// side computes prompts itself, and answers are the same.
async fn until_kv_is_relayed(net: &Net, expected: &[u64]) {
    let deadline = Instant::now() + LONG;
    loop {
        let (tokens, answer) = net.tokens(0, body(64)).await;
        let trace = &answer["tsnode"];
        assert_eq!(tokens, expected, "over relays: {trace}");
        let whole = 2048 * trace["prompt_tokens"].as_u64().unwrap();
        if trace["kv_bytes"].as_u64() == Some(whole) {
            return;
        }
        assert!(Instant::now() < deadline, "no prompt came from the other group: {trace}");
    }
}

/// UDP gets through from now on, but nobody who was not called: peers that relay meet, and new streams go straight.
async fn meet(net: &Net, stays: usize, expected: &[u64]) {
    let names: Vec<String> = net.net.peers()[GATEWAYS..].iter().map(|p| p.name.clone()).collect();
    let peers = net.net.peers();
    let living = Network::of(peers.iter().copied());
    for name in &names {
        living.spoil(name, Flaw::Walled { wall: Wall::Nat }).await.unwrap();
    }
    let direct = |sights: &[Option<Sight>]| {
        let paths = paths(sights, stays)?;
        paths.iter().all(|path| *path == SeenPath::Direct).then_some(()).ok_or_else(|| format!("{paths:?}"))
    };
    swarm(net).await_that(LONG, direct).await.unwrap();
    let (tokens, answer) = net.tokens(stays, body(64)).await;
    assert_eq!(tokens, expected, "straight: {}", answer["tsnode"]);
}
