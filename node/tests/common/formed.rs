//! Answers that have a form, of a schema and of tools' calls, outlive the peers that decode them: killed at a seeded moment in the
//! middle, and the tokens are those of an undisturbed run.
//!
//! `TSNODE_FAULTS=20 TSNODE_SEED=3 cargo test --workspace --test swarm outlives -- --nocapture` kills twenty times.

use super::common::{Net, PROMPT};
use super::{LONG, swarm};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::watch;
use tsnode_testnet::Sight;

/// Answers of each kind under way when a peer is killed.
const EACH: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FormedKind {
    Schema,
    Call,
}

const KINDS: [FormedKind; 2] = [FormedKind::Schema, FormedKind::Call];

/// Long enough for a peer to die meanwhile.
fn schema() -> Value {
    let item = json!({ "type": "string", "minLength": 8, "maxLength": 20 });
    let list = json!({ "type": "array", "items": item, "minItems": 12, "maxItems": 14 });
    json!({ "type": "object", "properties": { "names": list }, "required": ["names"], "additionalProperties": false })
}

impl FormedKind {
    fn path(self) -> &'static str {
        match self {
            Self::Schema => "/v1/completions",
            Self::Call => "/v1/chat/completions",
        }
    }

    fn body(self, seed: u64) -> Value {
        let asked = match self {
            Self::Schema => json!({ "prompt": PROMPT, "guided_json": schema() }),
            Self::Call => json!({
                "messages": [{ "role": "user", "content": PROMPT }],
                "tools": [{ "type": "function", "function": { "name": "note", "parameters": schema() } }],
                "tool_choice": "required", "parallel_tool_calls": false,
            }),
        };
        let common = json!({
            "max_tokens": 500, "temperature": 0.9, "seed": seed, "stream": true, "return_token_ids": true,
        });
        asked.as_object().unwrap().clone().into_iter().chain(common.as_object().unwrap().clone()).collect()
    }
}

/// An answer under way.
struct RunningAnswer {
    decode: String,
    /// Tokens that have come.
    tokens: watch::Receiver<usize>,
    answer: tokio::task::JoinHandle<FormedAnswer>,
}

/// What a client has at the end.
#[derive(Debug, PartialEq, Eq)]
struct FormedAnswer {
    tokens: Vec<u64>,
    /// The object that was asked for, as it was written.
    written: String,
    finish: String,
}

async fn begin(net: &Net, gateway: usize, kind: FormedKind, seed: u64) -> RunningAnswer {
    let url = format!("{}{}", net.peer(gateway).http, kind.path());
    let response = net.client.post(url).json(&kind.body(seed)).send().await.unwrap();
    assert_eq!(response.status(), 200);
    let decode = response.headers()["x-tsnode-decode"].to_str().unwrap().to_owned();
    let (counted, tokens) = watch::channel(0);
    RunningAnswer { decode, tokens, answer: tsnode::tasks::spawn("test", read(response, counted)) }
}

async fn read(mut response: reqwest::Response, counted: watch::Sender<usize>) -> FormedAnswer {
    let (mut answer, mut rest, mut is_done) =
        (FormedAnswer { tokens: vec![], written: String::new(), finish: String::new() }, Vec::new(), false);
    while let Some(part) = response.chunk().await.unwrap() {
        rest.extend_from_slice(&part);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line = String::from_utf8(rest.drain(..=end).collect()).unwrap();
            match line.trim_end().strip_prefix("data: ") {
                None => {}
                Some("[DONE]") => is_done = true,
                Some(event) => take(&mut answer, &serde_json::from_str(event).unwrap()),
            }
        }
        counted.send_replace(answer.tokens.len());
    }
    assert!(is_done, "the stream broke off behind {} tokens", answer.tokens.len());
    answer
}

fn take(answer: &mut FormedAnswer, event: &Value) {
    let choice = &event["choices"][0];
    assert!(choice.is_object(), "{event}");
    answer.tokens.extend(choice["token_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()));
    let calls = choice["delta"]["tool_calls"].as_array().into_iter().flatten();
    let arguments = calls.filter_map(|call| call["function"]["arguments"].as_str());
    choice["text"].as_str().into_iter().chain(arguments).for_each(|text| answer.written.push_str(text));
    if let Some(finish) = choice["finish_reason"].as_str() {
        answer.finish = finish.to_owned();
    }
}

/// Kills the peer that decodes one of them so many times, and holds all against an undisturbed run. The swarm has three groups, two of
/// which decode.
pub async fn outlive_their_decoders(net: &mut Net, gateway: usize) {
    let setting = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let (kills, mut seed) = (setting("TSNODE_FAULTS").unwrap_or(2), setting("TSNODE_SEED").unwrap_or(1));
    groups_are_up(net, gateway).await;
    let mut expected = BTreeMap::new();
    for ((kind, one), running) in all_begun(net, gateway, KINDS.into_iter().flat_map(kinds_of)).await {
        let answer = running.answer.await.unwrap();
        let is_whole = serde_json::from_str::<Value>(&answer.written).is_ok_and(|object| object["names"].is_array());
        let finish = if kind == FormedKind::Call { "tool_calls" } else { "stop" };
        assert!(is_whole == (answer.finish == finish), "{kind:?} {one}: {answer:?}");
        expected.insert((kind, one), Arc::new(answer));
    }
    let whole = expected.values().filter(|answer| answer.finish != "length").count();
    assert!(whole > 0, "no answer was finished");
    let mut hits = BTreeMap::<FormedKind, usize>::new();
    for kill in 0..kills {
        let mut running = all_begun(net, gateway, expected.keys().copied()).await;
        // Now one kind's peer, now the other's.
        let watched = if kill % 2 == 0 { 0 } else { running.len() - 1 };
        let (key, one) = &mut running[watched];
        let (victim, at) = (one.decode.clone(), 1 + drawn(&mut seed) as usize % (expected[&*key].tokens.len() * 3 / 4));
        one.tokens.wait_for(|tokens| *tokens >= at).await.unwrap();
        let place = place_of(net, &victim).await;
        let killed = Instant::now();
        net.net.kill(place).await.unwrap();
        let unfinished: Vec<bool> =
            running.iter().map(|(key, one)| *one.tokens.borrow() < expected[key].tokens.len()).collect();
        for ((key, one), unfinished) in running.into_iter().zip(unfinished) {
            let was_hit = unfinished && one.decode == victim;
            assert_eq!(&one.answer.await.unwrap(), &*expected[&key], "{key:?} after kill {kill} at {at} tokens");
            *hits.entry(key.0).or_default() += usize::from(was_hit);
        }
        println!("kill {kill} at {at} tokens: all have ended after {:.1?}; {hits:?} hit", killed.elapsed());
        net.net.restart(place).await.unwrap();
        groups_are_up(net, gateway).await;
    }
    assert!(kills == 0 || KINDS.iter().all(|kind| hits[kind] > 0), "each kind was hit: {hits:?}");
    println!("{kills} kills, {whole} of {} answers whole, hit and the same: {hits:?}", expected.len());
}

/// An answer of a kind, by its seed.
type Key = (FormedKind, u64);

fn kinds_of(kind: FormedKind) -> impl Iterator<Item = Key> {
    (0..EACH).map(move |one| (kind, one))
}

async fn all_begun(net: &Net, gateway: usize, all: impl Iterator<Item = Key>) -> Vec<(Key, RunningAnswer)> {
    let mut running = Vec::new();
    for (kind, one) in all {
        running.push(((kind, one), begin(net, gateway, kind, one).await));
    }
    running
}

/// The next of a row that follows from a seed (SplitMix64).
fn drawn(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (*seed ^ (*seed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

async fn place_of(net: &Net, peer: &str) -> usize {
    let sights = swarm(net).look().await;
    sights.iter().position(|sight| sight.as_ref().is_some_and(|sight| sight.me == peer)).unwrap()
}

/// Waits until the gateway has all three groups to choose from.
async fn groups_are_up(net: &Net, gateway: usize) {
    let up = |sights: &[Option<Sight>]| {
        let sight = sights[gateway].as_ref().ok_or("no answer")?;
        match sight.ready_groups.len() {
            3 => Ok(()),
            up => Err(format!("{up} groups are up")),
        }
    };
    swarm(net).await_that(LONG, up).await.unwrap();
}
