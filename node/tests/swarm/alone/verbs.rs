//! What the verbs of the command line say of a swarm that serves.

use crate::common::{Net, PROMPT};
use crate::{LONG, all_pages_free, swarm, talk, until_said};
use futures::StreamExt;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// `tsnode requests`: the last one, and what ran where in it, at the peer that was asked and at no other.
pub async fn requests_are_shown_with_peers_names(net: &Net) {
    let (_, answer) = net.tokens(4, json!({ "prompt": PROMPT, "max_tokens": 4, "ignore_eos": true })).await;
    let id = answer["tsnode"]["request"].as_str().unwrap();
    let (_, list, _) = talk(net, 4, &["requests"], "").await;
    let last = list.lines().nth(1).unwrap();
    assert!(last.starts_with(id), "{list}");
    assert!(list.lines().all(|line| line.chars().count() <= 80), "{list}");
    let (code, shown, _) = talk(net, 4, &["requests", id], "").await;
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(code, Some(0));
    let leader = |role: &str| {
        let id = answer["tsnode"][role].as_str().unwrap();
        net.net.peers().into_iter().find(|peer| peer.id == id).unwrap().name.clone()
    };
    for (line, (label, peer)) in
        lines.iter().zip([("prefill", "prefill"), ("transfer", "prefill"), ("decode", "decode")])
    {
        assert!(line.starts_with(label) && line[11..].starts_with(&leader(peer)), "{shown}");
    }
    assert!(lines[3].starts_with("slowest    ") && lines[3].contains(" %: "), "{shown}");
    let (code, whole, _) = talk(net, 4, &["requests", &id[..30], "--json"], "").await;
    assert_eq!((code, serde_json::from_str::<Value>(&whole).unwrap()), (Some(0), answer["tsnode"].clone()));
    let (code, _, said) = talk(net, 0, &["requests", id], "").await;
    assert!(code == Some(9) && said.contains("tsnode requests lists them"), "{said}");
}

/// Of a request at a gateway: what peers say they computed for others, what the gateway says others computed for it, and the answer's
/// usage are one and the same.
pub async fn what_is_computed_for_others_is_counted_on_both_sides(net: &Net) {
    let sums = async || {
        let mut sums = [[0; 2]; 2];
        for index in 0..5 {
            let said = net.client.get(format!("{}/api/earnings?days=366", net.peer(index).http)).send().await.unwrap();
            let total = said.json::<Value>().await.unwrap()["total"].take();
            for (sum, side) in sums.iter_mut().zip(["for_others", "by_others"]) {
                sum[0] += total[side]["prompt_tokens"].as_u64().unwrap();
                sum[1] += total[side]["completion_tokens"].as_u64().unwrap();
            }
        }
        sums
    };
    swarm(net).await_that(LONG, all_pages_free).await.unwrap();
    let before = sums().await;
    let body = json!({ "prompt": format!("What is lent is counted. {PROMPT}"), "max_tokens": 24, "ignore_eos": true });
    let usage = net.tokens(4, body).await.1["usage"].take();
    let number = |usage: &Value| usage.as_u64().unwrap();
    let computed = number(&usage["prompt_tokens"]) - number(&usage["prompt_tokens_details"]["cached_tokens"]);
    let expected = [computed, number(&usage["completion_tokens"])];
    assert!(expected[0] > 10 && expected[1] == 24, "{usage}");
    let begun = Instant::now();
    loop {
        let now = sums().await;
        let more: Vec<[u64; 2]> = (0..2).map(|side| [0, 1].map(|n| now[side][n] - before[side][n])).collect();
        if more == [expected; 2] {
            break;
        }
        assert!(begun.elapsed() < LONG, "{more:?} are counted for and by others, of {expected:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (code, shown, _) = talk(net, 4, &["earnings", "--days", "1"], "").await;
    assert!(code == Some(0) && shown.contains("gutenberg-tiny"), "{shown}");
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    let refused = net.client.get(format!("{}/api/earnings?days=0", net.peer(4).http)).send().await.unwrap();
    assert_eq!(refused.status(), 400);
}

/// `tsnode status`, `peers` and `plan --why`: words for who lends, and figures of fits for who asks for them.
pub async fn what_a_machine_does_is_said_in_plain_words(net: &Net) {
    let shown = async |index: usize, words: &[&str]| {
        let (code, shown, error) = talk(net, index, words, "").await;
        assert_eq!(code, Some(0), "{words:?}: {error}");
        shown
    };
    let lends = shown(0, &["status"]).await;
    assert!(["does ", "for ", "lends "].iter().all(|label| lends.lines().any(|l| l.starts_with(label))), "{lends}");
    let gateway = shown(4, &["status"]).await;
    assert!(gateway.lines().any(|l| l.starts_with("does      passes requests on")), "{gateway}");
    let (peers, why) = (shown(4, &["peers"]).await, shown(4, &["plan", "--why"]).await);
    assert!(peers.lines().next().unwrap().contains("DOES"), "{peers}");
    for plain in [&lends, &gateway, &peers] {
        assert!(plain.lines().all(|line| line.chars().count() <= 80), "{plain}");
    }
    for plain in [&lends, &gateway, &peers, &why] {
        assert!(!plain.contains("R²") && !plain.contains("OFF BY"), "{plain}");
    }
    let whole = shown(0, &["status", "--verbose"]).await;
    assert!(whole.contains("R²") && whole.contains(&net.peer(0).id), "{whole}");
}

/// `tsnode top` without a terminal: one frame of 80 columns, which has every peer, group and link, and what runs.
pub async fn the_swarm_is_on_one_screen(net: &Net) {
    let body = json!({ "prompt": PROMPT, "max_tokens": 900, "stream": true, "ignore_eos": true });
    let running = net.client.post(format!("{}/v1/completions", net.peer(4).http)).json(&body).send().await.unwrap();
    let mut running = running.bytes_stream();
    running.next().await.unwrap().unwrap();
    let is_seen = |frame: &str| frame.lines().any(|line| line.starts_with("req-") && line.contains(" decode "));
    let frame = until_said(net, 4, &["top", "--once"], is_seen).await;
    drop(running);
    let titles = ["PEERS 5 ", "GROUPS 4 ", "REQUESTS ", "LINKS "];
    for title in titles {
        assert!(frame.lines().any(|line| line.starts_with(title)), "{title}: {frame}");
    }
    for peer in net.net.peers() {
        let state = if peer.id == net.peer(4).id { "gateway" } else { "serves" };
        let is_told = |line: &str| line.starts_with(&format!("{} ", peer.name)) && line.contains(state);
        assert!(frame.lines().any(is_told), "{} {state}: {frame}", peer.name);
    }
    let is_plain = |line: &str| line.chars().count() <= 80 && !line.contains(char::is_control);
    assert!(frame.lines().all(is_plain), "{frame}");
    let (code, whole, _) = talk(net, 4, &["top", "--json"], "").await;
    let whole: Value = serde_json::from_str(&whole).unwrap();
    assert_eq!((code, &whole["swarm"]["me"]), (Some(0), &json!(net.peer(4).id)));
    assert!(whole["requests"].is_array() && whole["running"].is_array(), "{whole}");
    swarm(net).await_that(LONG, all_pages_free).await.unwrap();
}

/// `tsnode chat` without a terminal: an answer or an object for each line, and an exit code.
pub async fn programs_talk_line_by_line(net: &Net) {
    let (code, said, noted) =
        talk(net, 4, &["chat", "--json", "--max-tokens", "4"], "Good day\n\n/reset\nGood day\nAnd you?").await;
    assert_eq!((code, noted.as_str()), (Some(0), ""), "{said}");
    let answers: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(answers.len(), 3, "{said}");
    let prompts: Vec<u64> = answers.iter().map(|a| a["prompt_tokens"].as_u64().unwrap()).collect();
    // An answer without a word is not remembered.
    let remembers = prompts[2] > prompts[1] || answers[1]["text"] == "";
    assert!(prompts[0] == prompts[1] && remembers, "forgotten, and then remembered: {said}");
    for answer in &answers {
        assert_eq!(answer["model"], "gutenberg-tiny", "{said}");
        assert!((1..=4).contains(&answer["new_tokens"].as_u64().unwrap()), "{said}");
        assert!(answer["first_token_s"].as_f64().unwrap() <= answer["total_s"].as_f64().unwrap(), "{said}");
    }
    let (code, text, _) = talk(net, 4, &["chat", "--max-tokens", "4"], "Good day\n").await;
    assert!(code == Some(0) && text.ends_with('\n') && !text.starts_with("> "), "the answer and no more: {text:?}");
    let (code, said, why) = talk(net, 4, &["chat", "--model", "nothing"], "Good day\n").await;
    assert!(code == Some(9) && said.is_empty() && why.contains("gutenberg-tiny"), "{why}");
    let (code, said, why) = talk(net, 4, &["chat", "--json"], &"x ".repeat(3000)).await;
    let failed: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, &failed["error"]["exit_code"]), (Some(9), &json!(9)), "{why}");
}
