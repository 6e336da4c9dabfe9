//! Byzantine peers among real ones are found by what they say, within a bound, and nobody else is blamed for it.
#![expect(clippy::unwrap_used, reason = "a swarm that cannot be had fails the test")]

use crate::common::{Net, PROMPT, Wish};
use serde_json::{Value, json};
use std::time::Duration;
use tsnode_testnet::{Flaw, Network, Sight, Swarm};

/// Answers by a leader that is new here until it is found: three blocks of four (`coordinator/src/spot_check.rs`), and one that
/// ends before the last check has.
const TOKEN_BOUND: usize = 16;
/// The same for one that was honest for so many answers that only one of 32 is checked: three such blocks, and one such end.
const KNOWN_BOUND: usize = 100;
/// So many honest answers may have made a leader known: eight blocks of four.
const KNOWN_AFTER: usize = 32;
/// Answers without a part in any after which a byzantine peer counts as without work.
const IDLE: usize = 12;
/// The same for a prefill peer, which has to be found out with two decode peers; and with two that are known: the rest of a block
/// after its check, and the next one, with each.
const KV_BOUND: usize = 48;
const KNOWN_KV_BOUND: usize = 128;
/// So many answers at most until one has a prompt computed elsewhere: a pair between which KV was found wrong does without.
const SPLIT_AFTER: usize = 64;
/// Answers by a leader whose claims are false, once enough is known of others: eight that are looked at, and eight more.
const SPEED_BOUND: usize = 24;
const GATEWAY: usize = 5;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn byzantine_peers_are_found_and_cut_off_and_nobody_else_is() {
    let flags = ["--kv-codec", "int4", "--layout", "prefill=1,prefill=1,decode=1,decode=1,decode=1"];
    let net = Net::up(Wish { peers: 5, gateways: 1, flags: &flags, model_flags: &[] }).await;
    let truth = net.tokens(GATEWAY, body(0)).await.0;

    let mut asked_in_all = 0;
    let lie = Flaw::Lie { tokens: 0.0, kv: 1.0 };
    let (kv_byzantine, asked, reason) = until_one_is_cut_off(&net, "prefill", lie, &mut asked_in_all).await;
    println!("a peer that sends wrong KV is found after {asked} answers: it {reason}");
    let bound = if asked_in_all < KNOWN_AFTER { KV_BOUND } else { KNOWN_KV_BOUND };
    assert!(asked <= bound && reason.contains("KV"), "{asked}: {reason}");

    let bound = if asked_in_all < KNOWN_AFTER { TOKEN_BOUND } else { KNOWN_BOUND };
    let lie = Flaw::Lie { tokens: 1.0, kv: 0.0 };
    let (byzantine, asked, reason) = until_one_is_cut_off(&net, "decode", lie, &mut asked_in_all).await;
    println!("a peer that gives wrong tokens is found after {asked} answers: it {reason}");
    assert!(asked <= bound && reason.contains("tokens that other groups do not get"), "{asked}: {reason}");

    for _ in 0..8 {
        assert_eq!(net.tokens(GATEWAY, body(0)).await.0, truth, "who is left tells the truth");
    }
    assert_eq!(sight(&net).await.cut_off.len(), 2, "the gateway has both");
    no_honest_peer_blames_another(&net, &[kv_byzantine, byzantine]).await;
    net.down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_boaster_is_found_and_cut_off_and_nobody_else_is() {
    boaster_is_found(500.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_claims_five_times_its_speed_is_found_and_cut_off_and_nobody_else_is() {
    boaster_is_found(5.0).await;
}

async fn boaster_is_found(times: f64) {
    let flags = ["--kv-codec", "int4", "--layout", "prefill=1,prefill=1,decode=1,decode=1,decode=1"];
    let net = Net::up(Wish { peers: 5, gateways: 1, flags: &flags, model_flags: &[] }).await;
    let byzantine = at_work(&net, "decode").await;
    spoil(&net, &byzantine, Flaw::Boast { times }).await;
    // Others must be known as well: only then do its answers tell.
    for n in 1000..1048 {
        net.tokens(GATEWAY, body(n)).await;
    }
    // Who boasts gets ever less, and is asked still.
    let found = until_cut_off(&net, &byzantine, "decode", 400, &mut 0).await;
    let (asked, reason) =
        found.unwrap_or_else(|had| panic!("{byzantine} is not found after {had} answers, and has no work"));
    println!("who claims {times} times its speed is found after {asked} more answers: it {reason}");
    assert!(asked <= SPEED_BOUND && reason.contains("faster than it is"), "{asked}: {reason}");
    for n in 2000..2024 {
        net.tokens(GATEWAY, body(n)).await;
    }
    assert_eq!(sight(&net).await.cut_off.len(), 1, "the gateway has it");
    no_honest_peer_blames_another(&net, &[byzantine]).await;
    net.down().await;
}

/// The `n`-th request; no two begin alike, so that no group has the KV already.
fn body(n: usize) -> Value {
    json!({ "prompt": format!("{n} {PROMPT}"), "max_tokens": 12, "temperature": 0, "ignore_eos": true })
}

async fn sight(net: &Net) -> Sight {
    let gateway = net.peer(GATEWAY);
    Swarm::of([&gateway].into_iter()).look().await.pop().flatten().unwrap()
}

/// Every honest peer is asked, whatever it can tell of answers.
async fn no_honest_peer_blames_another(net: &Net, guilty: &[String]) {
    let honest = net.net.peers().into_iter().filter(|p| !guilty.contains(&p.id));
    let sights = Swarm::of(honest).look().await;
    assert_eq!(sights.len(), net.net.peers().len() - guilty.len());
    for sight in sights {
        let sight = sight.unwrap();
        let wrong = sight.cut_off.iter().find(|c| !guilty.contains(&c.id));
        assert!(wrong.is_none(), "{} has cut off {wrong:?}", sight.me);
    }
}

/// Who has this part in an answer: plans may leave a group without work.
async fn at_work(net: &Net, part: &str) -> String {
    for _ in 0..SPLIT_AFTER {
        let (_, answer) = net.tokens(GATEWAY, body(0)).await;
        if let Some(peer) = works_as(&answer, part) {
            return peer.to_owned();
        }
    }
    panic!("none of {SPLIT_AFTER} answers has its prompt computed elsewhere");
}

/// Who had this part in an answer. Who computes a prompt for itself sends no KV, and is no prefill peer.
fn works_as<'a>(answer: &'a Value, part: &str) -> Option<&'a str> {
    let parts = &answer["tsnode"];
    let is_alone = part == "prefill" && parts["prefill"] == parts["decode"];
    parts[part].as_str().filter(|_| !is_alone)
}

async fn spoil(net: &Net, id: &str, flaw: Flaw) {
    let peers = net.net.peers();
    let name = peers.iter().find(|p| p.id == id).unwrap().name.clone();
    Network::of(peers).spoil(&name, flaw).await.unwrap();
}

/// Spoils a peer that is at work, and asks until it is cut off. Who gets no more work, as plans change while speeds are being
/// learned, cannot be found out: then it is made honest again, and another one lies that is at work. That one, how many
/// answers it had a part in, and what it was cut off for; `asked` counts all answers.
async fn until_one_is_cut_off(net: &Net, part: &str, flaw: Flaw, asked: &mut usize) -> (String, usize, String) {
    let mut idle = Vec::new();
    for _ in 0..16 {
        let byzantine = at_work(net, part).await;
        spoil(net, &byzantine, flaw).await;
        match until_cut_off(net, &byzantine, part, IDLE, asked).await {
            Ok((had, reason)) => return (byzantine, had, reason),
            Err(had) => idle.push(had),
        }
        spoil(net, &byzantine, Flaw::Lie { tokens: 0.0, kv: 0.0 }).await;
    }
    panic!("no byzantine {part} peer is found, after {idle:?} answers of each");
}

/// Asks until `byzantine` is cut off: in how many answers it had a part, and what for; or that it has had none in the last `idle`.
async fn until_cut_off(
    net: &Net,
    byzantine: &str,
    part: &str,
    idle: usize,
    asked: &mut usize,
) -> Result<(usize, String), usize> {
    let (mut had, mut without) = (0, 0);
    while without < idle {
        if let Some(cut) = sight(net).await.cut_off.into_iter().find(|c| c.id == byzantine) {
            return Ok((had, cut.reason));
        }
        *asked += 1;
        let (_, answer) = net.tokens(GATEWAY, body(*asked)).await;
        if works_as(&answer, part) == Some(byzantine) {
            (had, without) = (had + 1, 0);
        } else {
            without += 1;
        }
        assert!(had <= KNOWN_KV_BOUND, "{byzantine} is not found after {had} answers");
        // The check of this answer may be under way: the bound is of answers, not of time.
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    Err(had)
}
