//! Prompts that are parted between two peers, a slow one that computes first parts and one that computes the rest: the tokens are
//! those of one peer, wherever prompts are parted, whatever dies, and where a swarm's members have set that prompts are parted.
//!
//! `TSNODE_FAULTS=20 TSNODE_SEED=3 cargo test --workspace --test swarm parted:: -- --nocapture` kills the slow one twenty times: each
//! seed says when, where each prompt is parted, and over which KV.
#![expect(clippy::unwrap_used, reason = "a swarm that cannot be had fails the test")]

use crate::common::{Net, Wish};
use serde_json::{Value, json};
use std::collections::{BTreeMap, btree_map::Entry};
use std::time::{Duration, Instant};
use tsnode_testnet::{Flaw, Network, Sight, Swarm};

const LONG: Duration = Duration::from_secs(30);
/// The slow side, the other, and the peer that clients ask.
const SLOW: usize = 0;
const FAST: usize = 1;
const GATEWAY: usize = 2;
/// What a peer that hangs may cost: a gateway's patience is 5 s at least and grows with what its prompts took of late, and the
/// decode side waits for KV for 15 s at most; what is left is to compute the prompt there.
const BOUND: Duration = Duration::from_secs(20);
/// How many kills may miss, beyond those wanted, before it is said that none hits.
const MORE_KILLS: u64 = 6;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_parted_between_two_peers_has_the_tokens_of_one() {
    let flags = ["--split", "auto", "--layout", "prefill=1,decode=1"];
    let mut net = Net::up_beside(Wish { peers: 2, gateways: 1, flags: &flags, model_flags: &[] }).await;
    every_part_gives_the_same_tokens(&net).await;
    who_comes_back_goes_on_as_the_prompt_was_parted(&net).await;
    prompts_are_parted_where_members_say_so(&net).await;
    pooled_answers_are_the_same_and_overflows_are_counted(&net).await;
    a_first_part_that_does_not_come_is_not_waited_for(&net).await;
    the_slow_side_may_die(&mut net).await;
    net.down().await;
}

/// A prompt of so many tokens.
fn prompt(tokens: u32, seed: u32) -> Vec<u32> {
    (0..tokens).map(|n| 300 + (n * 7 + seed * 131 + n * n % 11) % 3000).collect()
}

fn body(prompt: &[u32], codec: Option<&str>) -> Value {
    json!({ "prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": true, "kv_codec": codec })
}

/// Tokens, what they rest on, and what ran where.
#[derive(Clone, Debug)]
struct PartedAnswer {
    tokens: Vec<u64>,
    codec: String,
    trace: Value,
}

async fn ask(net: &Net, mut body: Value, way: Option<&str>) -> PartedAnswer {
    body["return_token_ids"] = json!(true);
    let request = net.client.post(format!("{}/v1/completions", net.peer(GATEWAY).http)).header("x-tsnode-trace", "1");
    let request = way.map_or(request.try_clone().unwrap(), |way| request.header("x-tsnode-kv", way));
    let said: Value = request.json(&body).send().await.unwrap().json().await.unwrap();
    let ids = said["choices"][0]["token_ids"].as_array().unwrap_or_else(|| panic!("{said}"));
    let tokens: Vec<u64> = ids.iter().filter_map(Value::as_u64).collect();
    assert_eq!(tokens.len() as u64, body["max_tokens"].as_u64().unwrap(), "{said}");
    let codec = said["system_fingerprint"].as_str().unwrap().rsplit_once('_').unwrap().1.to_owned();
    PartedAnswer { tokens, codec, trace: said["tsnode"].clone() }
}

/// At every multiple of 64 tokens, as numbers are and in four bits; a codec loses the same bits wherever the first part is computed.
async fn every_part_gives_the_same_tokens(net: &Net) {
    let prompt = prompt(330, 1);
    let whole = ask(net, body(&prompt, Some("raw")), Some("in-place")).await;
    let mut packed = Vec::new();
    for first in (64..330).step_by(64) {
        for codec in ["raw", "int4"] {
            let parted = format!("{codec}@{first}");
            let here = ask(net, body(&prompt, Some(&parted)), Some("in-place")).await;
            for way in ["layers", "whole"] {
                let sent = ask(net, body(&prompt, Some(&parted)), Some(way)).await;
                assert_eq!(sent.tokens, here.tokens, "{parted}, {way}: {}", sent.trace);
                assert_eq!(sent.trace["first_part"], first, "{}", sent.trace);
                let (prefill, decode) = (net.peer(SLOW).id, net.peer(FAST).id);
                assert_eq!((&sent.trace["prefill"], &sent.trace["decode"]), (&json!(prefill), &json!(decode)));
                assert_eq!(sent.codec, if codec == "raw" { "raw" } else { &parted });
                assert!(sent.trace["kv_bytes"].as_u64().unwrap() > 0, "{}", sent.trace);
            }
            if codec == "raw" {
                assert_eq!(here.tokens, whole.tokens, "numbers as they are may be parted anywhere");
            } else {
                packed.push(here.tokens);
            }
        }
    }
    let all = ask(net, body(&prompt, Some("int4")), Some("in-place")).await;
    packed.push(all.tokens);
    println!(
        "{} of {} answers over packed KV differ from the raw one",
        packed.iter().filter(|t| **t != whole.tokens).count(),
        packed.len()
    );
    let (status, said) = net.complete(GATEWAY, body(&prompt, Some("int4@100"))).await;
    assert!(status == 400 && said["error"]["message"].as_str().unwrap().contains("multiple of 64"), "{said}");
}

/// No peer knows of its answer: what the client has of it says where its prompt was parted.
async fn who_comes_back_goes_on_as_the_prompt_was_parted(net: &Net) {
    let prompt = prompt(300, 2);
    let expected = ask(net, body(&prompt, Some("int4@128")), Some("layers")).await;
    let mut asked = body(&prompt, None);
    (asked["stream"], asked["return_token_ids"]) = (json!(true), json!(true));
    for peer in [FAST, GATEWAY] {
        let event = format!("req-0000000000000000000000000000000{peer}:8/int4@128");
        let request = net.client.post(format!("{}/v1/completions", net.peer(peer).http)).json(&asked);
        let text = request.header("last-event-id", event).send().await.unwrap().text().await.unwrap();
        let events = text.lines().filter_map(|l| serde_json::from_str::<Value>(l.strip_prefix("data: ")?).ok());
        let ids = |event: Value| event["choices"][0]["token_ids"].as_array().cloned().unwrap_or_default();
        let tokens: Vec<u64> = events.flat_map(ids).filter_map(|id| id.as_u64()).collect();
        assert_eq!(tokens, expected.tokens[8..], "{text}");
    }
}

/// Many prompts at once, until one is parted: the slow side gets parts of some, and each answer is the one that its fingerprint
/// stands for. Whether a part is ready in time is a matter of what both sides have to do when a prompt comes; of long prompts among
/// short ones parts are, of prompts of one length all or nothing.
async fn prompts_are_parted_where_members_say_so(net: &Net) {
    route(net, json!("cronus")).await;
    let until = Instant::now() + LONG;
    let mut asked: Vec<(Vec<u32>, PartedAnswer)> = Vec::new();
    while !asked.iter().any(|(_, answer)| answer.trace["first_part"].is_u64()) {
        let reasons: Vec<&Value> = asked.iter().map(|(_, answer)| &answer.trace["reason"]).collect();
        assert!(Instant::now() < until, "no prompt was parted: {reasons:#?}");
        let others = 1000 + u32::try_from(asked.len()).unwrap();
        let prompts = (0..12).map(|n| prompt(if n % 2 == 0 { 200 } else { 800 }, others + n));
        let answers = prompts.map(async |prompt| {
            let answer = ask(net, body(&prompt, None), None).await;
            (prompt, answer)
        });
        asked.extend(futures::future::join_all(answers).await);
    }
    for (_, answer) in &asked {
        println!("{} by {}", answer.trace["reason"], answer.codec);
    }
    route(net, Value::Null).await;
    for (prompt, answer) in &asked {
        let again = ask(net, body(prompt, Some(&answer.codec)), Some("in-place")).await;
        assert_eq!(again.tokens, answer.tokens, "{}", answer.trace);
    }
}

/// Many prompts at once over pools: wherever each was computed, its tokens are those of one peer, and each for which a pool had no
/// room is in the metrics.
async fn pooled_answers_are_the_same_and_overflows_are_counted(net: &Net) {
    route(net, json!("pools")).await;
    let prompts: Vec<Vec<u32>> = (0..8).map(|n| prompt(400, 60 + n)).collect();
    let answers = futures::future::join_all(prompts.iter().map(|p| ask(net, body(p, Some("raw")), None))).await;
    let overflows = answers.iter().filter(|a| a.trace["overflow"].is_string()).count();
    println!("{overflows} of {} pooled requests overflowed", answers.len());
    let url = format!("{}/metrics?names=tsnode", net.peer(GATEWAY).http);
    let metrics = net.client.get(url).send().await.unwrap().text().await.unwrap();
    let counted = metrics.lines().filter(|line| line.starts_with("tsnode_pool_overflows_total{"));
    let counted: usize = counted.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).sum();
    assert_eq!(counted, overflows, "{metrics}");
    route(net, Value::Null).await;
    for (prompt, answer) in prompts.iter().zip(&answers) {
        let alone = ask(net, body(prompt, Some("raw")), Some("in-place")).await;
        assert_eq!(alone.tokens, answer.tokens, "{}", answer.trace);
    }
}

/// Sets how requests are routed, and waits until the gateway knows.
async fn route(net: &Net, policy: Value) {
    let url = format!("{}/api/settings", net.peer(FAST).http);
    let set = json!({ "about": "route", "policy": policy });
    let said = net.client.post(url).json(&set).send().await.unwrap();
    assert!(said.status().is_success(), "{}", said.text().await.unwrap());
    let wanted = policy.as_str().unwrap_or("live").to_owned();
    let until = Instant::now() + LONG;
    loop {
        let url = format!("{}/api/settings", net.peer(GATEWAY).http);
        let known: Value = net.client.get(url).send().await.unwrap().json().await.unwrap();
        let says_so = known.to_string().contains(&wanted);
        let is_set = ["cronus", "pools"].iter().any(|policy| known.to_string().contains(*policy));
        if if wanted == "live" { !is_set } else { says_so } {
            return;
        }
        assert!(Instant::now() < until, "{known}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Killed at moments that a seed says, while it computes or sends first parts, until as many kills as are wanted were made and one
/// of them hit a prompt. The seed says, too, at which multiple of 64 tokens each prompt is parted, and over which KV.
async fn the_slow_side_may_die(net: &mut Net) {
    let setting = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let (kills, mut seed) = (setting("TSNODE_FAULTS").unwrap_or(2), setting("TSNODE_SEED").unwrap_or(1));
    let prompts: Vec<Vec<u32>> = (0..3).map(|n| prompt(700, 40 + n)).collect();
    // The slow side keeps what it computed, and would only send it again: what is timed is others, that are as long.
    let timed: Vec<Vec<u32>> = (0..3).map(|n| prompt(700, 50 + n)).collect();
    let mut expected: BTreeMap<(usize, String), Vec<u64>> = BTreeMap::new();
    let most = if kills == 0 { 0 } else { kills + MORE_KILLS };
    let (mut made, mut came_home) = (0, 0);
    while made < kills || (came_home == 0 && made < most) {
        let mut draw = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seed >> 33
        };
        let when = draw() as f64 / f64::from(1u32 << 31);
        // Long first parts in most of them, so that there is something to hit.
        let parts = [7, 7, 1].map(|least| (draw(), least + draw() % (11 - least)));
        let codecs =
            parts.map(|(codec, part)| format!("{}@{}", if codec % 2 == 0 { "int4" } else { "raw" }, part * 64));
        for (n, codec) in codecs.iter().enumerate() {
            if let Entry::Vacant(unknown) = expected.entry((n, codec.clone())) {
                unknown.insert(ask(net, body(&prompts[n], Some(codec)), Some("in-place")).await.tokens);
            }
        }
        // How long they take where nobody is killed, now: a machine's other work comes and goes.
        let began = Instant::now();
        all_at_once(net, &timed, &codecs).await;
        let after = began.elapsed().mul_f64(when);
        let pid = net.peer(SLOW).pid;
        let killed = async {
            tokio::time::sleep(after).await;
            let killed = std::process::Command::new("kill").args(["-KILL", &pid.to_string()]).status();
            assert!(killed.unwrap().success());
        };
        let (answers, ()) = tokio::join!(all_at_once(net, &prompts, &codecs), killed);
        for (n, (answer, codec)) in answers.iter().zip(&codecs).enumerate() {
            let expected = &expected[&(n, codec.clone())];
            assert_eq!(&answer.tokens, expected, "kill {made} after {after:?}, {codec}: {}", answer.trace);
            came_home += usize::from(answer.trace["first_part"].is_null());
        }
        made += 1;
        net.net.kill(SLOW).await.unwrap();
        net.net.restart(SLOW).await.unwrap();
        groups_are_up(net).await;
    }
    let ways = expected.len();
    println!(
        "{made} kills of the slow side, prompts parted in {ways} ways: {came_home} came home, and all tokens are as they should be"
    );
    assert!(kills == 0 || came_home > 0, "no prompt was hit");
}

/// The answers to prompts that are asked together, each parted as its codec says.
async fn all_at_once(net: &Net, prompts: &[Vec<u32>], codecs: &[String; 3]) -> Vec<PartedAnswer> {
    let asked = prompts.iter().zip(codecs).map(|(prompt, codec)| ask(net, body(prompt, Some(codec)), Some("layers")));
    futures::future::join_all(asked).await
}

/// The slow side's compute thread hangs, and its heartbeats go on.
async fn a_first_part_that_does_not_come_is_not_waited_for(net: &Net) {
    let prompt = prompt(140, 5);
    let expected = ask(net, body(&prompt, Some("int4@64")), Some("in-place")).await;
    let all = || Network::of(net.net.peers());
    all().spoil(&net.peer(SLOW).name, Flaw::Wedged).await.unwrap();
    let asked = Instant::now();
    let answer = ask(net, body(&prompt, Some("int4@64")), Some("layers")).await;
    println!("a first part came home after {:.1?}: {}", asked.elapsed(), answer.trace["reason"]);
    assert!(asked.elapsed() < BOUND, "{:?}", asked.elapsed());
    assert_eq!((answer.tokens, answer.codec), (expected.tokens, expected.codec));
    assert!(answer.trace["first_part"].is_null(), "{}", answer.trace);
    all().heal().await.unwrap();
}

/// Waits until every peer knows that both groups are up, who leads one included.
async fn groups_are_up(net: &Net) {
    let up = |sights: &[Option<Sight>]| {
        let knows = |sight: &Option<Sight>| sight.as_ref().map_or(0, |sight| sight.ready_groups.len());
        let up: Vec<usize> = sights.iter().map(knows).collect();
        if up.iter().all(|up| *up == 2) { Ok(()) } else { Err(format!("peers know of {up:?} groups that are up")) }
    };
    Swarm::of(net.net.peers().into_iter()).await_that(LONG, up).await.unwrap();
}
