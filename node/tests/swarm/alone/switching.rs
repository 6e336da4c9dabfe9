//! Plans change while clients ask, and no client is refused: groups serve until what comes instead is loaded, and phases flip
//! without a byte of weights being read.
#![expect(clippy::unwrap_used, reason = "a swarm that cannot be had fails the test")]

use crate::common::{Net, PROMPT, Wish};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tsnode_testnet::{Sight, Swarm};

const LONG: Duration = Duration::from_secs(15);
/// For a hundred requests with long prompts to be answered: before that gateways say nothing of what they are asked for.
const HUNDRED: Duration = Duration::from_secs(60);
/// Clients that ask one thing after the other.
const CLIENTS: usize = 4;

/// Two groups of two peers; when the first is gone, the layout's only whole group is of the second and the third, and when it
/// comes back both groups are as they were. No group of one plan is one of the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_client_is_refused_while_every_group_is_made_anew() {
    let flags = ["--layout", "mixed=2,mixed=2"];
    let mut net = Net::up(Wish { peers: 4, gateways: 1, flags: &flags, model_flags: &[] }).await;
    let expected = net.tokens(4, body()).await.0;
    let first = groups(&net).await;
    let clients = RepeatingClients::start(&net, 4, &expected, |_| body());
    clients.await_more(8).await;

    net.net.kill(0).await.unwrap();
    let second = changed(&mut net, LONG, 4, &first).await;
    clients.await_more(8).await;
    net.net.restart(0).await.unwrap();
    let third = changed(&mut net, LONG, 5, &second).await;
    clients.await_more(8).await;
    for (before, after) in [(&first, &second), (&second, &third)] {
        assert!(before.keys().all(|id| !after.contains_key(id)), "a group stayed: {before:?}, {after:?}");
    }
    let served = clients.end().await;
    println!("{served} answers while plans changed, none refused");
    net.down().await;
}

/// A person lays nothing out: after a loss the light planner makes do with what is loaded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_flips_phases_and_nobody_reads_weights() {
    let (mut net, before, lost) = of_a_phase_that_can_be_lost().await;
    let expected = net.tokens(4, body()).await.0;
    let victims = peers_of(&net, &lost).await;
    let survivors: Vec<usize> = (0..4).filter(|n| !victims.contains(n)).collect();
    let read = weights(&net, &survivors).await;
    assert!(read.iter().all(|(stages, bytes)| *stages > 0 && *bytes > 1 << 20), "{read:?}");
    let clients = RepeatingClients::start(&net, 4, &expected, |_| body());
    clients.await_more(4).await;

    let killed = Instant::now();
    for victim in &victims {
        net.net.kill(*victim).await.unwrap();
    }
    let after = changed(&mut net, LONG, 5 - victims.len(), &before).await;
    println!("{lost} peers {victims:?} gone, others do their work {:.1?} later", killed.elapsed());
    clients.await_more(4).await;
    let left: BTreeMap<_, _> = before.iter().filter(|(_, phase)| **phase != lost).collect();
    assert!(after.keys().eq(left.keys().copied()), "other groups than are left: {before:?}, {after:?}");
    for phase in ["prefill", "decode"] {
        assert!(after.values().any(|p| p == phase), "nobody does {phase}: {before:?}, {after:?}");
    }
    assert_eq!(weights(&net, &survivors).await, read, "weights were read");
    clients.end().await;
    net.down().await;
}

/// The first plan is for conversations, and by what was measured has more groups for prompts or for answers. Clients then ask
/// for what it has fewer of: long prompts and next to no answers, or the other way round. The plan that follows has the same
/// groups in other phases. For long answers it may itself be followed by one with other groups, which reads weights.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_another_kind_flip_phases_and_nobody_reads_weights() {
    let flags = ["--kv-codec", "raw", "--split", "always"];
    let prefilling = |groups: &BTreeMap<String, String>| groups.values().filter(|p| *p == "prefill").count();
    // By who came first, and by what other programs left to be measured, a first plan may have too few groups or suit any
    // requests: then what it was is said, and it is tried again.
    let mut tries = 0..5;
    let (net, before, after, read, clients) = loop {
        assert!(tries.next().is_some(), "no plan was another for requests of another kind");
        let mut net = Net::up(Wish { peers: 4, gateways: 1, flags: &flags, model_flags: &[] }).await;
        let before = groups(&net).await;
        let read = weights(&net, &[0, 1, 2, 3]).await;
        let other: fn(usize) -> Value = if 2 * prefilling(&before) > before.len() { long_answer } else { long_prompt };
        let clients = RepeatingClients::start(&net, 4, &[], other);
        let flips = swarm(&net).await_that(HUNDRED, |sights| is_other(sights, &before)).await.is_ok();
        if flips {
            let after = changed(&mut net, HUNDRED, 5, &before).await;
            println!("after {} answers {before:?} became {after:?}", clients.served.load(Relaxed));
            if before.len() > 2 && before.keys().eq(after.keys()) {
                break (net, before, after, read, clients);
            }
        }
        println!("another first plan is needed: {before:?}");
        clients.end().await;
        net.down().await;
    };
    clients.await_more(8).await;
    if 2 * prefilling(&before) > before.len() {
        assert!(prefilling(&after) < prefilling(&before), "{before:?}, {after:?}");
    } else {
        assert!(prefilling(&after) > prefilling(&before), "{before:?}, {after:?}");
        assert_eq!(weights(&net, &[0, 1, 2, 3]).await, read, "weights were read");
    }
    clients.end().await;
    net.down().await;
}

/// The `n`-th short prompt with a long answer.
fn long_answer(n: usize) -> Value {
    json!({ "prompt": format!("{n} winds"), "max_tokens": 200, "temperature": 0, "ignore_eos": true })
}

/// The `n`-th of them; no two begin alike, so that no group has the KV already.
fn long_prompt(n: usize) -> Value {
    let prompt = format!("{n} {}", "and the wind blew ".repeat(100));
    json!({ "prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": true })
}

/// Four peers and a gateway, their groups, and a phase such that two groups are left when all that do it are gone. By
/// what was measured, and by who came first, there may be one group of each: then it is tried again.
async fn of_a_phase_that_can_be_lost() -> (Net, BTreeMap<String, String>, String) {
    for _ in 0..5 {
        let flags = ["--kv-codec", "raw"];
        let net = Net::up(Wish { peers: 4, gateways: 1, flags: &flags, model_flags: &[] }).await;
        let groups = groups(&net).await;
        let are_two = |phase: &str| groups.values().filter(|p| *p == phase).count() >= 2;
        for (lost, left) in [("prefill", "decode"), ("decode", "prefill")] {
            if are_two(left) && groups.values().any(|p| p == lost) {
                return (net, groups, lost.to_owned());
            }
        }
        println!("another plan is needed: {groups:?}");
        net.down().await;
    }
    panic!("four peers were never given two groups of a phase");
}

fn body() -> Value {
    json!({ "prompt": PROMPT, "max_tokens": 24, "temperature": 0, "ignore_eos": true })
}

fn swarm(net: &Net) -> Swarm {
    Swarm::of(net.net.peers().into_iter())
}

/// The gateway's plan: its groups and their phases.
async fn groups(net: &Net) -> BTreeMap<String, String> {
    let sight = swarm(net).look().await.pop().unwrap().unwrap();
    sight.plan.unwrap().groups.into_iter().map(|g| (g.id, g.phase)).collect()
}

/// Whether the last of them has another plan.
fn is_other(sights: &[Option<Sight>], before: &BTreeMap<String, String>) -> Result<(), String> {
    let plan = sights.last().and_then(|s| s.as_ref()?.plan.as_ref()).ok_or("no plan")?;
    let same = plan.groups.len() == before.len() && plan.groups.iter().all(|g| before.get(&g.id) == Some(&g.phase));
    if same { Err("the plan is as it was".to_owned()) } else { Ok(()) }
}

/// Groups of the plan that follows within a while, when all of so many peers see it up.
async fn changed(
    net: &mut Net,
    within: Duration,
    peers: usize,
    before: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    swarm(net).await_that(within, |sights| is_other(sights, before)).await.unwrap();
    net.net.await_one_mind(peers).await.unwrap();
    groups(net).await
}

/// The places among the processes of those who do a phase.
async fn peers_of(net: &Net, phase: &str) -> Vec<usize> {
    let sights = swarm(net).look().await;
    let plan = sights.last().unwrap().as_ref().unwrap().plan.clone().unwrap();
    let stages: Vec<_> = plan.groups.into_iter().filter(|g| g.phase == phase).flat_map(|g| g.stages).collect();
    let does = |s: &Option<Sight>| s.as_ref().is_some_and(|s| stages.iter().any(|stage| stage.peer == s.me));
    (0..).zip(&sights).filter(|(_, sight)| does(sight)).map(|(place, _)| place).collect()
}

/// Stages that these peers have begun to load, and bytes of weights they have read.
async fn weights(net: &Net, peers: &[usize]) -> Vec<(u64, u64)> {
    let mut read = Vec::new();
    for peer in peers {
        let metrics = net.client.get(format!("{}/metrics", net.peer(*peer).http)).send().await.unwrap();
        let metrics = metrics.text().await.unwrap();
        let of = |name: &str| metrics.lines().find_map(|l| l.strip_prefix(name)?.trim().parse().ok()).unwrap();
        read.push((of("tsnode_stages_loaded_total "), of("tsnode_weight_bytes_read_total ")));
    }
    read
}

/// Clients of one gateway that ask again and again.
struct RepeatingClients {
    over: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    tasks: Vec<JoinHandle<()>>,
}

impl RepeatingClients {
    /// They ask for `body` of numbers that rise, and expect the tokens, if there are any.
    fn start(net: &Net, gateway: usize, expected: &[u64], body: fn(usize) -> Value) -> Self {
        let (over, served, asked) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default(), Arc::default());
        let url = format!("{}/v1/completions", net.peer(gateway).http);
        let ask = || {
            let (over, served, asked) = (over.clone(), served.clone(), Arc::<AtomicUsize>::clone(&asked));
            let (client, url, expected) = (net.client.clone(), url.clone(), expected.to_vec());
            tsnode::tasks::spawn("test", async move {
                while !over.load(Relaxed) {
                    let mut body = body(asked.fetch_add(1, Relaxed));
                    body["return_token_ids"] = json!(true);
                    let response = client.post(&url).json(&body).send().await.unwrap();
                    let (status, answer) = (response.status(), response.json::<Value>().await.unwrap());
                    assert_eq!(status, 200, "after {} answers: {answer}", served.load(Relaxed));
                    let tokens = answer["choices"][0]["token_ids"].as_array().unwrap();
                    let tokens: Vec<u64> = tokens.iter().map(|t| t.as_u64().unwrap()).collect();
                    assert!(expected.is_empty() || tokens == expected, "{tokens:?} instead of {expected:?}");
                    served.fetch_add(1, Relaxed);
                }
            })
        };
        let tasks = (0..CLIENTS).map(|_| ask()).collect();
        Self { over, served, tasks }
    }

    /// Waits until so many more have been answered, unless a client has had a wrong answer.
    async fn await_more(&self, more: usize) {
        let (until, asked) = (self.served.load(Relaxed) + more, Instant::now());
        while self.served.load(Relaxed) < until && !self.tasks.iter().any(JoinHandle::is_finished) {
            assert!(asked.elapsed() < LONG, "nobody answers");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// How many answers there were; fails if one was not as expected.
    async fn end(self) -> usize {
        self.over.store(true, Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
        self.served.load(Relaxed)
    }
}
