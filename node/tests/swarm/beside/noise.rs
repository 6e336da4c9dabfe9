//! Byzantine peers that say what no honest peer says, and a stranger with a wrong secret: all who are honest have nothing more to do
//! with them, within a bound, and with nobody else.
#![expect(clippy::unwrap_used, reason = "a swarm that cannot be had fails the test")]

use crate::common::{Net, PROMPT, Wish};
use crate::stranger::Stranger;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tsnode_testnet::{Flaw, Network, Noise, PeerInfo, Sight, Swarm};

fn body() -> Value {
    json!({ "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "ignore_eos": true })
}

/// Who lies on gossip is cut off by everybody, for just that, within this; replays are first held back for 50 s.
const NOISE_BOUND: Duration = Duration::from_secs(10);
const REPLAY_BOUND: Duration = Duration::from_secs(75);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_says_what_no_honest_peer_says_is_cut_off_by_all_and_nobody_else_is() {
    // Plans change as byzantine peers are cut off: with raw KV an answer is the same wherever its prompt is computed.
    let flags = ["--kv-codec", "raw"];
    let net = Net::up_beside(Wish { peers: 6, gateways: 1, flags: &flags, model_flags: &[] }).await;
    let gateway = net.net.peers().len() - 1;
    let truth = net.tokens(gateway, body()).await.0;
    // Old messages are held back for long, so who repeats them is asked to first, and waited for at last.
    let replayer = made_noisy(&net, 3, Noise::Replay).await;
    let replays_since = Instant::now();
    let mut guilty = vec![replayer.clone()];
    who_knows_a_wrong_secret_learns_nothing(&net).await;
    let lies = [
        (0, Noise::Garbage, "bytes that are no message"),
        (1, Noise::SecondPlan, "two plans for one term"),
        (2, Noise::Flood, "says more"),
    ];
    for (index, noise, reason) in lies {
        let byzantine = made_noisy(&net, index, noise).await;
        guilty.push(byzantine.clone());
        until_all_cut_off(&net, &guilty, &byzantine, NOISE_BOUND, reason).await;
        honest(&net, &guilty).await_that(NOISE_BOUND, all_serve).await.unwrap();
        assert_eq!(net.tokens(gateway, body()).await.0, truth, "who is left tells the truth");
    }
    let left = REPLAY_BOUND.saturating_sub(replays_since.elapsed());
    until_all_cut_off(&net, &guilty, &replayer, left, "old messages").await;
    honest(&net, &guilty).await_that(NOISE_BOUND, all_serve).await.unwrap();
    assert_eq!(net.tokens(gateway, body()).await.0, truth, "who is left tells the truth");
    net.down().await;
}

/// Has a peer make this noise; its id.
async fn made_noisy(net: &Net, index: usize, noise: Noise) -> String {
    let byzantine = net.peer(index);
    Network::of(net.net.peers()).spoil(&byzantine.name, Flaw::Noise(noise)).await.unwrap();
    byzantine.id
}

fn honest(net: &Net, guilty: &[String]) -> Swarm {
    Swarm::of(net.net.peers().into_iter().filter(|p| !guilty.contains(&p.id)))
}

/// Waits until all who are honest have cut off this one, for that reason, and nobody but who is guilty.
async fn until_all_cut_off(net: &Net, guilty: &[String], byzantine: &str, bound: Duration, reason: &str) {
    let began = Instant::now();
    let is_found = |sights: &[Option<Sight>]| sights.iter().try_for_each(|s| cut_off(s, guilty, byzantine, reason));
    honest(net, guilty).await_that(bound, is_found).await.unwrap();
    println!("who {reason:?} is said of is found by all after {:.1?}", began.elapsed());
}

/// A wrong secret is noticed at once; the stranger tries again after one, two, four and eight seconds, not everybody each time: some
/// hear of it for the second time in its fifth attempt, fifteen seconds after the first.
const SECRET_BOUND: Duration = Duration::from_secs(25);
/// So many times everybody sends it away before its view is looked at.
const ATTEMPTS: usize = 2;

/// A process that knows the swarm's name, where all its peers are, and a wrong secret.
async fn who_knows_a_wrong_secret_learns_nothing(net: &Net) {
    let everybody = Swarm::of(net.net.peers().into_iter());
    let members = net.net.peers().len();
    let began = Instant::now();
    let mut stranger = Stranger::start(&net.net.peers());
    let seen = stranger.until_up(SECRET_BOUND).await;
    let refused = |sights: &[Option<Sight>]| {
        net.net.peers().iter().zip(sights).try_for_each(|(peer, sight)| turned_away(peer, sight, &seen.me, members))
    };
    everybody.await_that(SECRET_BOUND, refused).await.unwrap();
    println!("a wrong secret is refused {ATTEMPTS} times by everybody after {:.1?}", began.elapsed());

    let seen = stranger.sight().await.unwrap();
    let alone: Vec<&String> = seen.peers.iter().map(|p| &p.id).filter(|id| **id != seen.me).collect();
    assert!(alone.is_empty() && seen.models.is_empty() && seen.plan.is_none(), "it learns something: {seen:?}");
    assert!(seen.rejected.keys().any(|why| why.contains("does not know this swarm's secret")), "{:?}", seen.rejected);
}

/// Whether a peer has sent the stranger away often enough, says so, and has nothing against anybody else.
fn turned_away(peer: &PeerInfo, sight: &Option<Sight>, stranger: &str, members: usize) -> Result<(), String> {
    let sight = sight.as_ref().ok_or("no answer")?;
    assert!(sight.peers.iter().all(|p| p.id != stranger), "{} takes it for a peer", peer.name);
    assert!(sight.cut_off.iter().all(|c| c.id == stranger), "{} blames {:?}", peer.name, sight.cut_off);
    let log = std::fs::read_to_string(&peer.log).unwrap();
    let refusals =
        log.lines().filter(|l| l.contains("refused") && l.contains(stranger) && l.contains(NO_MEMBER)).count();
    let counted: u64 = sight.rejected.iter().filter(|(why, _)| why.contains(NO_MEMBER)).map(|(_, n)| n).sum();
    if refusals < ATTEMPTS || counted < ATTEMPTS as u64 || sight.peers.len() < members {
        return Err(format!(
            "{} has refused it {refusals} times, and shows {counted}: {:?}",
            peer.name, sight.rejected
        ));
    }
    Ok(())
}

/// What the log and `tsnode status --verbose` say of one that hangs up when it sees that the secrets differ.
const NO_MEMBER: &str = "left before membership was proven";

/// Whether everybody follows one plan and sees its groups up: they may be loading when a peer has just gone.
fn all_serve(sights: &[Option<Sight>]) -> Result<(), String> {
    let first = sights.first().and_then(|s| s.as_ref()?.plan_id.clone()).ok_or("no plan")?;
    for sight in sights.iter() {
        let sight = sight.as_ref().ok_or("no answer")?;
        let plan = sight.plan.as_ref().filter(|_| sight.plan_id.as_ref() == Some(&first)).ok_or("plans differ")?;
        if let Some(group) = plan.groups.iter().find(|g| !sight.ready_groups.contains(&g.id)) {
            return Err(format!("{} does not see {} up", sight.me, group.id));
        }
    }
    Ok(())
}

/// Whether a peer has cut off this one for that reason, and nobody but who is guilty.
fn cut_off(sight: &Option<Sight>, guilty: &[String], byzantine: &str, reason: &str) -> Result<(), String> {
    let sight = sight.as_ref().ok_or("no answer")?;
    if let Some(wrong) = sight.cut_off.iter().find(|c| !guilty.contains(&c.id)) {
        panic!("{} has cut off {}, which {}", sight.me, wrong.id, wrong.reason);
    }
    match sight.cut_off.iter().find(|c| c.id == byzantine) {
        Some(cut) if cut.reason.contains(reason) => Ok(()),
        other => Err(format!("{} has not cut it off: {other:?}", sight.me)),
    }
}
