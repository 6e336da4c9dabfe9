//! Stories of one swarm of real processes: many streams at once, clients that hang up, bad input, peers that die.
#![expect(clippy::unwrap_used, reason = "a swarm that cannot be had fails the test")]

mod common;
#[path = "common/formed.rs"]
mod formed;
#[path = "common/terminal.rs"]
mod terminal;

use common::{Net, PROMPT, Wish};
use futures::StreamExt;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use terminal::Terminal;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tsnode_protocol::{Invite, InviteId};
use tsnode_testnet::{Sight, Swarm};

const LONG: Duration = Duration::from_secs(15);

fn swarm(net: &Net) -> Swarm {
    Swarm::of(net.net.peers().into_iter())
}

fn all_pages_free(sights: &[Option<Sight>]) -> Result<(), String> {
    let sight = sights[0].as_ref().ok_or("no answer")?;
    for peer in &sight.peers {
        let load = peer.load;
        if load.running > 0 || load.free_pages != load.total_pages {
            return Err(format!("{} has {} of {} pages free", peer.id, load.free_pages, load.total_pages));
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_swarm_serves_many_and_forgets_them() {
    let flags = ["--kv-codec", "raw", "--layout", "prefill=1,decode=1,decode=1,decode=1"];
    let net = Net::up(Wish { peers: 4, gateways: 1, flags: &flags, model_flags: &[] }).await;
    many_streams_are_complete_and_right(&net).await;
    what_prompts_have_in_common_is_computed_once(&net).await;
    a_client_that_hangs_up_frees_its_pages(&net).await;
    bad_requests_get_the_right_errors(&net).await;
    a_link_is_measured_twice_in_a_row_and_no_oftener(&net).await;
    requests_are_shown_with_peers_names(&net).await;
    what_is_computed_for_others_is_counted_on_both_sides(&net).await;
    what_a_machine_does_is_said_in_plain_words(&net).await;
    the_swarm_is_on_one_screen(&net).await;
    programs_talk_line_by_line(&net).await;
    a_tool_that_must_be_called_is_called(&net).await;
    load_on_the_swarm_is_measured(&net).await;
    what_one_member_sets_all_follow_and_no_request_is_lost(&net).await;
    swarm(&net).await_that(LONG, all_pages_free).await.unwrap();
    for (index, peer) in net.net.peers().iter().enumerate() {
        let (bytes, _) = net.net.usage(index).unwrap();
        println!("{}: {:.1} MB resident after 64 streams", peer.name, bytes as f64 / 1e6);
        assert!(bytes < 400_000_000, "{} uses {bytes} bytes", peer.name);
    }
    net.down().await;
}

async fn many_streams_are_complete_and_right(net: &Net) {
    let body =
        |n: usize| json!({ "prompt": PROMPT, "max_tokens": 40, "temperature": 0.9, "seed": n % 8, "ignore_eos": true });
    let mut expected = Vec::new();
    for n in 0..8 {
        expected.push(net.tokens(n % 5, body(n)).await.0);
    }
    let all = futures::future::join_all((0..64).map(|n| net.tokens(n % 5, body(n)))).await;
    let mut decoders = BTreeSet::new();
    for (n, (tokens, answer)) in all.into_iter().enumerate() {
        assert_eq!(tokens, expected[n % 8], "stream {n}");
        assert_ne!(answer["tsnode"]["prefill"], answer["tsnode"]["decode"]);
        decoders.insert(answer["tsnode"]["decode"].to_string());
    }
    let view = net.client.get(format!("{}/api/swarm", net.peer(0).http)).send().await.unwrap();
    let view = view.json::<Value>().await.unwrap();
    assert!(decoders.len() > 1, "work is spread over decode groups: {view}");
}

/// By a model that was never told how: the tokens it may choose make a call, and arguments that the schema allows.
async fn a_tool_that_must_be_called_is_called(net: &Net) {
    let schema = json!({
        "type": "object",
        "properties": { "town": { "enum": ["Bonn", "Rome"] }, "days": { "type": "integer", "minimum": 1, "maximum": 7 } },
        "required": ["town", "days"],
        "additionalProperties": false,
    });
    let body = |seed: u64, choice: Value| {
        json!({
            "messages": [{ "role": "user", "content": "How is the wind?" }],
            "tools": [{ "type": "function", "function": { "name": "wind", "parameters": schema.clone() } }],
            "tool_choice": choice, "parallel_tool_calls": false, "max_tokens": 120, "temperature": 1, "seed": seed,
        })
    };
    let named = json!({ "type": "function", "function": { "name": "wind" } });
    for seed in 0..4 {
        for (choice, finish) in [(json!("required"), "tool_calls"), (named.clone(), "stop")] {
            let (status, answer) = net.post(seed as usize % 5, "/v1/chat/completions", body(seed, choice)).await;
            assert_eq!(status, 200, "{answer}");
            let one = &answer["choices"][0];
            assert_eq!((&one["finish_reason"], &one["message"]["content"]), (&json!(finish), &Value::Null), "{answer}");
            let calls = one["message"]["tool_calls"].as_array().unwrap();
            let [call] = &calls[..] else { panic!("{answer}") };
            assert_eq!(call["function"]["name"], "wind");
            let given: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
            assert!(["Bonn", "Rome"].contains(&given["town"].as_str().unwrap()), "{given}");
            assert!((1..=7).contains(&given["days"].as_u64().unwrap()), "{given}");
            assert_eq!(given.as_object().unwrap().len(), 2, "{given}");
        }
    }
}

/// One prefill group, 32 prompts with 500 tokens in common: from the second on less than a tenth is computed, and the
/// answers are those of prompts that share nothing.
async fn what_prompts_have_in_common_is_computed_once(net: &Net) {
    let prompt = |n: u32| (0..500).map(|k| 300 + k * 7 % 3000).chain((0..20).map(|k| 400 + n * 20 + k)).collect();
    let body = |n: u32| {
        let prompt: Vec<u32> = prompt(n);
        json!({ "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": true })
    };
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let alone = json!({ "prompt": (0..20).map(|k| 400 + k).collect::<Vec<u32>>(), "max_tokens": 1 });
    assert_eq!(cached(&net.complete(0, alone).await.1), 0);
    let (first, answer) = net.tokens(0, body(0)).await;
    assert_eq!(cached(&answer), 0);
    let others = futures::future::join_all((1..32).map(|n| net.tokens(n as usize % 5, body(n)))).await;
    assert!(others.iter().all(|(_, answer)| cached(answer) >= 500), "from the second on");
    let (again, answer) = net.tokens(1, body(0)).await;
    assert_eq!((again, cached(&answer)), (first, 519), "all but the last token, which the first one follows");
}

/// Answers that do not fit a peer's pages together: some give way, and each ends with the tokens it has alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_outgrow_the_pages_all_end() {
    let folder = tempfile::tempdir().unwrap();
    let model = another_model(folder.path()).display().to_string();
    let model_flags = ["--model", &model];
    let net = Net::up(Wish { peers: 1, gateways: 0, flags: &["--kv-memory", "4MiB"], model_flags: &model_flags }).await;
    let body =
        |n: u64| json!({ "prompt": PROMPT, "max_tokens": 400, "temperature": 0.9, "seed": n, "ignore_eos": true });
    let sight = swarm(&net).look().await[0].clone().unwrap();
    // 4 layers, and 128 tokens in a page.
    let room = sight.peers[0].load.total_pages / 4 * 128;
    assert!(room < 8 * 400, "room for {room} tokens");
    let mut alone = Vec::new();
    for n in 0..8 {
        alone.push(net.tokens(0, body(n)).await.0);
    }
    let together = futures::future::join_all((0..8).map(|n| net.tokens(0, body(n)))).await;
    for (n, (tokens, _)) in together.into_iter().enumerate() {
        assert_eq!(tokens, alone[n], "answer {n}");
    }
    swarm(&net).await_that(LONG, all_pages_free).await.unwrap();
    a_volunteer_who_names_no_model_is_a_gateway(&net, body(0), &alone[0]).await;
    net.down().await;
    who_lends_later_says_when().await;
}

/// The embedded model under another name, and not the same by its configuration.
fn another_model(folder: &Path) -> PathBuf {
    let (from, to) =
        (Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/models/gutenberg-tiny"), folder.join("brought"));
    fs::create_dir(&to).unwrap();
    for file in fs::read_dir(from).unwrap().map(Result::unwrap) {
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
    let config = fs::read_to_string(to.join("config.json")).unwrap();
    let changed = config.replace("\"initializer_range\": 0.02", "\"initializer_range\": 0.03");
    assert_ne!(config, changed);
    fs::write(to.join("config.json"), changed).unwrap();
    to
}

/// README's own `join --invite` of one who may fetch nothing, where another model is served than the embedded one: it says what would lend something, and
/// clients of either peer need name no model.
async fn a_volunteer_who_names_no_model_is_a_gateway(net: &Net, body: Value, expected: &[u64]) {
    let home = tempfile::tempdir().unwrap();
    let invite = fs::read_to_string(net.peer(0).data_dir.join("invite")).unwrap();
    let flags = ["--mdns=false", "--http", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--device", "cpu", "--invite"];
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_tsnode"));
    command.env("TSNODE_MODEL_BUDGET", "0");
    command.arg("join").args(flags).arg(invite.trim()).arg("--data-dir").arg(home.path()).kill_on_drop(true);
    let mut volunteer = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(volunteer.stdout.take().unwrap()).lines();
    let said = tokio::time::timeout(LONG, async {
        loop {
            let line = lines.next_line().await.unwrap().expect("it has ended");
            if line.contains("brought") {
                return line;
            }
        }
    });
    let said = said.await.expect("it does not say that it lends nothing");
    assert!(said.contains("as a gateway") && said.contains("tsnode join --model"), "{said}");
    let view = |http: String| async move {
        net.client.get(format!("{http}/api/swarm")).send().await.unwrap().json::<Value>().await.unwrap()
    };
    let address = fs::read_to_string(home.path().join("http.addr")).unwrap();
    let mine = view(format!("http://{}", address.trim())).await;
    assert_eq!((&mine["lending"], &mine["models"].as_array().unwrap().len()), (&json!("other_model"), &1), "{mine}");
    let answer = net.client.post(format!("http://{}/v1/completions", address.trim()));
    let mut body = body;
    body["return_token_ids"] = json!(true);
    let answer = answer.json(&body).send().await.unwrap().json::<Value>().await.unwrap();
    let tokens = answer["choices"][0]["token_ids"].as_array();
    assert_eq!(
        tokens.unwrap_or_else(|| panic!("{answer}")).iter().filter_map(Value::as_u64).collect::<Vec<_>>(),
        expected
    );
    assert_eq!(answer["model"], "brought");
    assert_eq!(view(net.peer(0).http).await["models"].as_array().unwrap().len(), 1, "nobody brings the toy");
    assert_eq!(net.tokens(0, body).await.0, expected);
}

/// A peer outside its hours, alone: `/readyz`, `status` and a refused client say when it lends.
async fn who_lends_later_says_when() {
    let home = tempfile::tempdir().unwrap();
    let hour = |later: i8| (jiff::Zoned::now().hour() + later) % 24;
    let (opens, hours) = (format!("{:02}:00", hour(6)), format!("{:02}:00-{:02}:00", hour(6), hour(7)));
    let flags = ["--mdns=false", "--http", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--device", "cpu", "--private"];
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_tsnode"));
    command.arg("join").args(flags).args(["--hours", &hours]).arg("--data-dir").arg(home.path()).kill_on_drop(true);
    let _peer = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let (begun, client, words) = (Instant::now(), reqwest::Client::new(), format!("lending begins at {opens}"));
    let http = loop {
        if let Ok(address) = fs::read_to_string(home.path().join("http.addr")) {
            let http = format!("http://{}", address.trim());
            let ready = client.get(format!("{http}/readyz")).send().await.unwrap();
            let (status, said) = (ready.status(), ready.text().await.unwrap());
            if said.contains(&words) {
                assert_eq!(status, 503);
                break http;
            }
        }
        assert!(begun.elapsed() < LONG, "it does not say when it lends");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let (_, status, _) = tsnode(&["status"], home.path()).await;
    assert!(status.contains(&words), "{status}");
    let refused = client.post(format!("{http}/v1/completions")).json(&json!({ "prompt": "x" })).send().await.unwrap();
    assert_eq!(refused.status(), 503);
    let said = refused.text().await.unwrap();
    assert!(said.contains(&words), "{said}");
}

/// `tsnode join` and `chat` at a terminal: who one is, what one does and one line that changes, in 80 columns, and no log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_at_a_terminal_sees_what_matters() {
    let _turn = common::turn().await;
    let home = tempfile::tempdir().unwrap();
    let command = |words: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tsnode"));
        command.args(words).arg("--data-dir").arg(home.path());
        command
    };
    let join =
        ["join", "--private", "--mdns=false", "--http", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--threads", "1"];
    let peer =
        Terminal::run(command(&[&join[..], &["--device", "cpu", "--memory", "64MiB", "--name", "attic"]].concat()));
    peer.until("role     ");
    peer.until("ready: ");
    // The port beside one that was free may be somebody else's: that is said, and is not what this is about.
    let lines: Vec<String> = peer.lines().into_iter().filter(|line| !line.starts_with(" WARN no lifelines")).collect();
    for label in [
        "name     attic",
        "page     http://",
        "invite   tsnode invite",
        "lends    cpu",
        "model    gutenberg-tiny",
        "role     ",
        "probe    ",
        "ready    ",
    ] {
        assert!(lines.iter().any(|line| line.starts_with(label)), "no {label:?}: {lines:#?}");
    }
    // What is to be copied is whole, however long a folder's name is.
    let copied = |line: &&String| line.starts_with("page ") || line.starts_with("invite ");
    let long: Vec<&String> = lines.iter().filter(|l| !copied(l) && l.chars().count() > terminal::COLUMNS).collect();
    assert!(long.is_empty() && !lines.iter().any(|line| line.contains(" INFO ")), "{lines:#?}");
    // Colour says whether all is well, and nothing else: green for one word.
    let raw = peer.raw();
    let green: BTreeSet<&str> =
        raw.split("\u{1b}[32m").skip(1).filter_map(|rest| rest.split('\u{1b}').next()).collect();
    assert_eq!(green.into_iter().collect::<Vec<_>>(), ["ready"], "{raw}");
    assert!(fs::read_to_string(home.path().join("join.log")).unwrap().contains(" INFO "));

    // Whatever ends it, the window is given back: the other screen, the cursor, and what keys do.
    for ends in ["q", "\u{3}"] {
        let mut top = Terminal::run(command(&["top"]));
        top.until("GROUPS");
        top.type_in("?");
        top.until("Ctrl-C");
        top.type_in(ends);
        assert_eq!(top.ended(), Some(0), "{ends:?}");
        let raw = top.raw();
        assert!(raw.contains("\u{1b}[?1049h") && raw.contains("\u{1b}[?1049l"), "{raw}");
        assert!(raw.rfind("\u{1b}[?25h") > raw.rfind("\u{1b}[?25l"), "the cursor is to be seen: {raw}");
        assert!(top.has_lines(), "keys are lines again");
    }

    let mut chat = Terminal::run(command(&["chat", "--max-tokens", "4"]));
    chat.until("gutenberg-tiny, 1 peer; /help says how to talk");
    chat.type_in("/help\r");
    chat.until("/reset");
    chat.type_in("Good day\r");
    chat.until("first after ");
    chat.type_in("/exit\r");
    assert_eq!(chat.ended(), Some(0));
}

async fn a_client_that_hangs_up_frees_its_pages(net: &Net) {
    let url = format!("{}/v1/completions", net.peer(4).http);
    let body = json!({ "prompt": PROMPT, "max_tokens": 900, "stream": true, "ignore_eos": true });
    let response = net.client.post(url).json(&body).send().await.unwrap();
    let mut stream = response.bytes_stream();
    stream.next().await.unwrap().unwrap();
    drop(stream);
    swarm(net).await_that(LONG, all_pages_free).await.unwrap();
}

async fn bad_requests_get_the_right_errors(net: &Net) {
    let cases: [(Value, u16, &str, &str); 7] = [
        (json!({ "model": "nothing", "prompt": "x" }), 404, "model_not_found", "model"),
        (json!({ "prompt": "x ".repeat(3000) }), 400, "context_length_exceeded", "prompt"),
        (json!({ "prompt": "" }), 400, "", "prompt"),
        (json!({ "prompt": [5000] }), 400, "", "prompt"),
        (json!({ "prompt": "x", "temperature": "hot" }), 400, "", "temperature"),
        (json!({ "prompt": "x", "tools": [1] }), 400, "", "tools"),
        (json!({ "prompt": "x", "best_of": 200 }), 400, "", "best_of"),
    ];
    for (body, status, code, param) in cases {
        let (got, answer) = net.complete(4, body.clone()).await;
        let error = &answer["error"];
        assert_eq!((got, error["param"].as_str()), (status, Some(param)), "{answer}");
        assert_eq!(error["code"].as_str().unwrap_or(""), code, "{answer}");
    }
    let raw = |body: Vec<u8>| {
        let request = net.client.post(format!("{}/v1/completions", net.peer(0).http));
        request.header("content-type", "application/json").body(body).send()
    };
    let nested = [b"{\"prompt\":".to_vec(), b"[".repeat(100_000)].concat();
    for body in [b"{".to_vec(), nested, vec![b'"', 0xFF, b'"'], b"[]".to_vec()] {
        assert_eq!(raw(body).await.unwrap().status(), 400);
    }
    assert_eq!(raw(vec![b'x'; 9 << 20]).await.unwrap().status(), 413);
}

/// `tsnode requests`: the last one, and what ran where in it, at the peer that was asked and at no other.
async fn requests_are_shown_with_peers_names(net: &Net) {
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
async fn what_is_computed_for_others_is_counted_on_both_sides(net: &Net) {
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
async fn what_a_machine_does_is_said_in_plain_words(net: &Net) {
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
async fn the_swarm_is_on_one_screen(net: &Net) {
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
async fn programs_talk_line_by_line(net: &Net) {
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

/// A verb that asks a peer, with this on its standard input: exit code, standard output, standard error.
async fn talk(net: &Net, index: usize, words: &[&str], input: &str) -> (Option<i32>, String, String) {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_tsnode"));
    command.args(words).args(["--api", &net.peer(index).http]).kill_on_drop(true);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A verb that has ended does not read.
    let _ = stdin.write_all(input.as_bytes()).await;
    drop(stdin);
    let ended = tokio::time::timeout(LONG, child.wait_with_output()).await.unwrap().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (ended.status.code(), text(ended.stdout), text(ended.stderr))
}

/// Until what a verb says at a peer is so.
async fn until_said(net: &Net, index: usize, words: &[&str], is_so: impl Fn(&str) -> bool) -> String {
    let until = Instant::now() + LONG;
    loop {
        let (code, said, why) = talk(net, index, words, "").await;
        assert_eq!(code, Some(0), "{said}{why}");
        if is_so(&said) {
            return said;
        }
        assert!(Instant::now() < until, "{words:?} says after {LONG:?}: {said}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Targets and a routing policy are set at a gateway and at a lender, change, and are taken back while requests run: every peer
/// has the newest, plans are held against them, and how many requests keep them is counted.
async fn what_one_member_sets_all_follow_and_no_request_is_lost(net: &Net) {
    let body = |n: u64| json!({ "prompt": PROMPT, "max_tokens": 20, "seed": n, "priority": n % 2, "ignore_eos": true });
    let load = futures::future::join_all((0..40).map(|n| net.complete(4, body(n))));
    let done = |said: &(Option<i32>, String, String)| assert_eq!(said.0, Some(0), "{said:?}");
    let change = async {
        done(&talk(net, 4, &["targets", "set", "--ttft", "1ms", "--e2e", "60m"], "").await);
        until_said(net, 0, &["targets"], |said| said.contains("ttft 1 ms, e2e 3600 s for interactive")).await;
        done(&talk(net, 1, &["targets", "set", "--e2e", "2m"], "").await);
        done(&talk(net, 2, &["targets", "set", "--e2e", "60m", "--class", "batch"], "").await);
        done(&talk(net, 0, &["route", "set", "shortest"], "").await);
        let both = |said: &str| said.contains("e2e 120 s for interactive") && said.contains("e2e 3600 s for batch");
        for index in [0, 3, 4] {
            until_said(net, index, &["targets"], both).await;
            until_said(net, index, &["route"], |said| said.starts_with("shortest for every model")).await;
        }
    };
    let (answers, ()) = tokio::join!(load, change);
    assert!(answers.iter().all(|(status, _)| *status == 200), "{answers:?}");
    let why = until_said(net, 3, &["plan", "--why"], |said| said.contains("in time is within e2e 120 s; set by")).await;
    assert!(why.contains("requests are routed by shortest; set by"), "{why}");
    for n in 0..4 {
        assert_eq!(net.complete(4, body(n)).await.0, 200);
    }
    let status =
        until_said(net, 4, &["status"], |said| said.contains("100 % of") && said.contains("batch requests")).await;
    assert!(status.contains("routing   shortest"), "{status}");
    let url = format!("{}/metrics?names=tsnode", net.peer(4).http);
    let metrics = net.client.get(url).send().await.unwrap().text().await.unwrap();
    for class in ["interactive", "batch"] {
        let line = format!("tsnode_requests_in_time_total{{model_name=\"gutenberg-tiny\",class=\"{class}\"}}");
        assert!(metrics.lines().any(|l| l.starts_with(&line) && !l.ends_with(" 0")), "{metrics}");
    }
    for words in [&["targets", "clear"][..], &["targets", "clear", "--class", "batch"], &["route", "clear"]] {
        done(&talk(net, 2, words, "").await);
    }
    until_said(net, 4, &["route"], |said| said.starts_with("live")).await;
    until_said(net, 0, &["plan", "--why"], |said| said.contains("no targets are set")).await;
    let (code, _, why) = talk(net, 0, &["targets", "set", "--ttft", "1ms", "--model", "nothing"], "").await;
    assert!(code == Some(9) && why.contains("gutenberg-tiny"), "{code:?} {why}");
}

/// `tsnode bench serve` on a gateway: every request is answered with the lengths asked for, and figures agree with each other.
async fn load_on_the_swarm_is_measured(net: &Net) {
    let drawn = ["--request-rate", "20", "--burstiness", "0.5", "--input-len", "100", "--output-len", "8"];
    let chat = ["--endpoint", "/v1/chat/completions", "--input-len", "100", "--output-len", "8"];
    for words in [&drawn[..], &chat] {
        let all = ["bench", "serve", "--num-prompts", "12", "--ignore-eos", "--goodput", "e2el:60s", "--json"];
        let (code, said, noted) = talk(net, 4, &[&all[..], words].concat(), "").await;
        assert_eq!((code, noted.as_str()), (Some(0), ""), "{said}");
        let figures: Value = serde_json::from_str(&said).unwrap();
        assert_eq!((&figures["completed"], &figures["failed"]), (&json!(12), &json!(0)), "{said}");
        assert_eq!((&figures["total_output_tokens"], &figures["attainment"]), (&json!(96), &json!(1.0)), "{said}");
        let input = figures["total_input_tokens"].as_u64().unwrap();
        let is_chat = words[0] == "--endpoint";
        assert!(input == 1200 || is_chat && input.abs_diff(1200) < 120, "{said}");
        let ms = |name: &str| figures[name].as_f64().unwrap();
        assert!(ms("p50_ttft_ms") > 0.0 && ms("p50_ttft_ms") <= ms("p99_ttft_ms"), "{said}");
        assert!(ms("p99_e2el_ms") >= ms("p99_ttft_ms") && ms("p99_e2el_ms") <= ms("duration") * 1e3, "{said}");
    }
    let folder = tempfile::tempdir().unwrap();
    let (trace, svg) = (folder.path().join("trace.csv"), folder.path().join("times.svg"));
    fs::write(&trace, "arrival_s,prompt_tokens,output_tokens\n0,500,20\n1,1500,5\n1.5,20000,5\n").unwrap();
    let (trace, svg) = (trace.to_str().unwrap(), svg.to_str().unwrap());
    let words = ["bench", "serve", "--trace", trace, "--trace-speed", "10", "--trace-lengths", "0.1", "--svg", svg];
    let (code, said, _) = talk(net, 0, &words, "").await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("2 requests answered") && said.contains("1 failed: 400: "), "the last is too long: {said}");
    assert!(fs::read_to_string(svg).unwrap().contains("e2el"));
    let (code, said, why) = talk(net, 0, &["bench", "serve", "--model", "nothing"], "").await;
    assert!(code == Some(9) && said.is_empty() && why.contains("gutenberg-tiny"), "{why}");
}

async fn a_link_is_measured_twice_in_a_row_and_no_oftener(net: &Net) {
    let (url, far) = (format!("{}/api/links/measure", net.peer(4).http), net.peer(0).id);
    let ask = |to: &str, bytes: u64| net.client.post(&url).json(&json!({ "to": to, "bytes": bytes })).send();
    let me = net.peer(4).id;
    let stranger = tsnode_protocol::PeerId([0; 32]).to_string();
    for (to, bytes, param, why) in [
        (&stranger, 1, "to", "no peer"),
        (&me, 1, "to", "this peer itself"),
        (&far, 0, "bytes", "from 1 to"),
        (&far, (256 << 20) + 1, "bytes", "from 1 to"),
    ] {
        let refused = ask(to, bytes).await.unwrap();
        let (status, answer) = (refused.status(), refused.json::<Value>().await.unwrap());
        assert_eq!((status.as_u16(), answer["error"]["param"].as_str()), (400, Some(param)), "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(why), "{answer}");
    }
    // What was refused has cost nothing.
    for _ in 0..2 {
        let measured = ask(&far, 1 << 20).await.unwrap();
        assert_eq!(measured.status(), 200);
        let link: Value = measured.json().await.unwrap();
        assert_eq!((link["to"].as_str(), link["bytes"].as_u64()), (Some(&*far), Some(1 << 20)), "{link}");
        assert!(link["bandwidth"].as_f64().unwrap() > 0.0 && link["took"].as_f64().unwrap() > 0.0, "{link}");
    }
    let refused = ask(&far, 1 << 20).await.unwrap();
    assert_eq!(refused.status(), 429);
    let wait: u64 = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=120).contains(&wait), "{wait} s");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_swarm_outlives_its_peers() {
    let flags = ["--kv-codec", "raw", "--layout", "prefill=1,decode=1,decode=1"];
    let mut net = Net::up(Wish { peers: 4, gateways: 1, flags: &flags, model_flags: &[] }).await;
    // peer3 has no group: killing it changes nothing.
    let url = format!("{}/v1/completions", net.peer(4).http);
    let long = json!({ "prompt": PROMPT, "max_tokens": 900, "stream": true, "ignore_eos": true, "temperature": 0 });
    let mut stream = net.client.post(&url).json(&long).send().await.unwrap().bytes_stream();
    let first = stream.next().await.unwrap().unwrap();
    net.net.kill(3).await.unwrap();
    let undisturbed = rest(&first, stream).await;
    let mut lists = Vec::new();
    for seed in 0..LISTS {
        lists.push(rest(b"", net.client.post(&url).json(&list(seed)).send().await.unwrap().bytes_stream()).await);
    }
    let whole = lists.iter().filter(|said| serde_json::from_str::<Vec<Value>>(said).is_ok_and(|all| all.len() >= 20));
    assert!(whole.count() > 0, "no list was finished: {lists:?}");

    // The peer that decodes dies: the stream goes on elsewhere, with the same words, and the swarm serves on. So do lists that
    // have to be lists.
    let mut begun = Vec::new();
    for seed in 0..LISTS {
        let response = net.client.post(&url).json(&list(seed)).send().await.unwrap();
        let by = response.headers()["x-tsnode-decode"].to_str().unwrap().to_owned();
        let mut stream = response.bytes_stream();
        begun.push((by, stream.next().await.unwrap().unwrap(), stream));
    }
    let response = net.client.post(&url).json(&long).send().await.unwrap();
    let decode = response.headers()["x-tsnode-decode"].to_str().unwrap().to_owned();
    let ids = swarm(&net).look().await;
    let victim = ids.iter().position(|s| s.as_ref().is_some_and(|s| s.me == decode)).unwrap();
    let mut stream = response.bytes_stream();
    let first = stream.next().await.unwrap().unwrap();
    let killed = Instant::now();
    net.net.kill(victim).await.unwrap();
    assert_eq!(rest(&first, stream).await, undisturbed);
    let hit = begun.iter().filter(|(by, ..)| *by == decode).count();
    for ((_, first, stream), said) in begun.into_iter().zip(&lists) {
        assert_eq!(&rest(&first, stream).await, said);
    }
    println!("{hit} of {LISTS} lists were decoded by the peer that was killed");
    assert!(hit > 0);
    println!("the stream has ended {:.1?} after the kill", killed.elapsed());
    let again = async {
        loop {
            let (status, answer) = net.complete(4, json!({ "prompt": PROMPT, "max_tokens": 4 })).await;
            if status == 200 && answer["tsnode"]["decode"] != decode.as_str() {
                return killed.elapsed();
            }
            assert!(status == 200 || status == 503 || status == 502, "{answer}");
        }
    };
    let after = tokio::time::timeout(LONG, again).await.unwrap();
    net.net.await_one_mind(3).await.unwrap();
    println!("served again {after:.1?} after the kill, of one mind after {:.1?}", killed.elapsed());
    net.net.restart(victim).await.unwrap();
    formed::outlive_their_decoders(&mut net, 4).await;
    net.down().await;
}

/// Answers at once that a schema holds.
const LISTS: u64 = 20;

/// A request for a list in JSON, long enough for a peer to die meanwhile.
fn list(seed: u64) -> Value {
    let item = json!({ "type": "string", "minLength": 8, "maxLength": 20 });
    let schema = json!({ "type": "array", "items": item, "minItems": 20, "maxItems": 24 });
    json!({ "prompt": PROMPT, "max_tokens": 600, "stream": true, "temperature": 0.9, "seed": seed, "guided_json": schema })
}

/// An owner who pauses a peer that decodes has it back, and one who leaves is gone; no stream says anything else for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owners_have_their_machines_back_and_no_stream_notices() {
    let flags = ["--kv-codec", "raw", "--layout", "prefill=1,decode=1,decode=1"];
    let net = Net::up(Wish { peers: 3, gateways: 1, flags: &flags, model_flags: &[] }).await;
    let url = format!("{}/v1/completions", net.peer(3).http);
    let long = json!({ "prompt": PROMPT, "max_tokens": 900, "stream": true, "ignore_eos": true, "temperature": 0 });
    let undisturbed = rest(b"", net.client.post(&url).json(&long).send().await.unwrap().bytes_stream()).await;

    let response = net.client.post(&url).json(&long).send().await.unwrap();
    let decode = response.headers()["x-tsnode-decode"].to_str().unwrap().to_owned();
    let sights = swarm(&net).look().await;
    let owned = sights.iter().position(|s| s.as_ref().is_some_and(|s| s.me == decode)).unwrap();
    let mut stream = response.bytes_stream();
    let first = stream.next().await.unwrap().unwrap();
    let asked = Instant::now();
    assert_eq!(net.post(owned, "/api/pause", json!({})).await.0, 202);
    assert_eq!(rest(&first, stream).await, undisturbed);
    let has_work = |sights: &[Option<Sight>]| {
        let plan = sights[3].as_ref().and_then(|s| s.plan.as_ref());
        plan.is_some_and(|p| p.groups.iter().flat_map(|g| &g.stages).any(|s| s.peer == decode))
    };
    let idle =
        |sights: &[Option<Sight>]| if has_work(sights) { Err("the plan still has it".to_owned()) } else { Ok(()) };
    swarm(&net).await_that(LONG, idle).await.unwrap();
    println!("a paused peer is out of the plan, its stream ended elsewhere, {:.1?} after the wish", asked.elapsed());
    assert_eq!(net.post(owned, "/api/resume", json!({})).await.0, 202);
    let busy = |sights: &[Option<Sight>]| if has_work(sights) { Ok(()) } else { Err("it is not used".to_owned()) };
    swarm(&net).await_that(LONG, busy).await.unwrap();
    swarm(&net).await_one_mind(4, LONG).await.unwrap();

    let folder = net.peer(owned).data_dir;
    let mut leave = tokio::process::Command::new(env!("CARGO_BIN_EXE_tsnode"));
    let left = leave.args(["leave", "--data-dir"]).arg(&folder).output().await.unwrap();
    assert!(left.status.success(), "{left:?}");
    let gone = |sights: &[Option<Sight>]| match &sights[3] {
        Some(sight) if sight.peers.len() == 3 => Ok(()),
        _ => Err("it is still seen".to_owned()),
    };
    swarm(&net).await_that(LONG, gone).await.unwrap();
    net.down().await;
}

/// The words of a stream from its first chunk to its end, which is a proper one.
async fn rest(
    first: &[u8],
    mut stream: impl futures::Stream<Item = reqwest::Result<impl AsRef<[u8]>>> + Unpin,
) -> String {
    let mut text = String::from_utf8_lossy(first).into_owned();
    while let Some(chunk) = stream.next().await {
        text.push_str(&String::from_utf8_lossy(chunk.unwrap().as_ref()));
    }
    let ended = ["length", "stop"].map(|why| text.contains(&format!("\"finish_reason\":\"{why}\"")));
    assert!(ended.contains(&true) && text.trim_end().ends_with("data: [DONE]"), "{text}");
    let events = text.lines().filter_map(|l| l.strip_prefix("data: ")?.parse::<Value>().ok());
    events.filter_map(|e| e["choices"][0]["text"].as_str().map(str::to_owned)).collect()
}

/// Over slow links a prompt's KV takes seconds: time to stop the peer that sends it, then to kill one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_outlives_the_peer_that_prefills_it() {
    let flags = ["--kv-codec", "raw", "--layout", "prefill=1,decode=1,prefill=1", "--shape-mbit", "8"];
    let net = Net::up(Wish { peers: 3, gateways: 1, flags: &flags, model_flags: &[] }).await;
    let words: Vec<u32> = (0..800).map(|n| 300 + n * 7 % 3000).collect();
    let body = json!({ "prompt": words, "max_tokens": 24, "temperature": 0, "ignore_eos": true });
    let expected = until_split(&net, &body).await;
    for signal in ["-STOP", "-KILL"] {
        let prefill = begin(&net, &body).await;
        let sights = swarm(&net).look().await;
        let victim = sights.iter().position(|s| s.as_ref().is_some_and(|s| s.me == prefill.peer)).unwrap();
        net.net.signal(victim, signal).unwrap();
        assert_eq!(prefill.tokens().await, expected, "after {signal}");
    }
    net.down().await;
}

/// The answer, once a plan sends KV for it, which takes its time.
async fn until_split(net: &Net, body: &Value) -> Vec<u64> {
    let asked = Instant::now();
    loop {
        let (tokens, answer) = net.tokens(3, body.clone()).await;
        if answer["tsnode"]["parts"]["wire"].as_f64().is_some_and(|wire| wire > 0.8) {
            return tokens;
        }
        println!("without KV that takes long: {}", answer["tsnode"]);
        assert!(asked.elapsed() < Duration::from_secs(20), "the KV takes its time: {answer}");
    }
}

/// A streamed request whose first token has come.
struct Begun {
    peer: String,
    response: reqwest::Response,
    text: String,
}

async fn begin(net: &Net, body: &Value) -> Begun {
    let url = format!("{}/v1/completions", net.peer(3).http);
    let mut body = body.clone();
    (body["stream"], body["return_token_ids"]) = (json!(true), json!(true));
    let asked = Instant::now();
    loop {
        assert!(asked.elapsed() < Duration::from_secs(30), "no plan that splits phases");
        let mut response = net.client.post(&url).json(&body).send().await.unwrap();
        // The plan that follows a peer's end may be on its way; until then one group may do both.
        if response.status() == 503 {
            continue;
        }
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        let (peer, decode) = (header("x-tsnode-prefill"), header("x-tsnode-decode"));
        if peer == decode {
            continue;
        }
        let text = String::from_utf8(response.chunk().await.unwrap().unwrap().to_vec()).unwrap();
        return Begun { peer, response, text };
    }
}

impl Begun {
    /// All tokens, when they have come.
    async fn tokens(self) -> Vec<u64> {
        let text = self.text + &self.response.text().await.unwrap();
        let events = text.lines().filter_map(|l| l.strip_prefix("data: ")).filter(|e| *e != "[DONE]");
        let parts = events.map(|e| serde_json::from_str::<Value>(e).unwrap());
        parts
            .flat_map(|p| p["choices"][0]["token_ids"].as_array().unwrap_or_else(|| panic!("{p}")).clone())
            .map(|t| t.as_u64().unwrap())
            .collect()
    }
}

/// Runs `tsnode` to its end; its output, and what it complained about.
async fn tsnode(arguments: &[&str], folder: &Path) -> (bool, String, String) {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_tsnode"));
    let ran = command.args(arguments).arg("--data-dir").arg(folder).output().await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    (ran.status.success(), text(&ran.stdout), text(&ran.stderr))
}

/// Commands on the peer's data folder go on after `keys add`, and those that know nothing of it are told what to do.
async fn a_key_locks_no_owner_out(net: &Net, folder: &Path, elsewhere: &Path) {
    let at = net.peer(0).http;
    let (ok, key, said) = tsnode(&["keys", "add", "bob"], folder).await;
    assert!(ok && said.contains("From now on every HTTP client needs a key"), "{said}");
    let refused = async || net.client.get(format!("{at}/v1/models")).send().await.unwrap().status() == 401;
    let asked = Instant::now();
    while !refused().await {
        assert!(asked.elapsed() < LONG, "nobody asks for the key");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for command in
        [&["status"][..], &["peers"], &["models"], &["submit", PROMPT, "--max-tokens", "1"], &["pause"], &["resume"]]
    {
        let (ok, _, error) = tsnode(command, folder).await;
        assert!(ok, "{command:?}: {error}");
    }
    // Who opens the page is asked for the key by the page.
    assert_eq!(net.client.get(&at).send().await.unwrap().status(), 200);
    // A key that is given is shown, whatever there is beside it, wherever it comes from.
    let file = folder.join("bobs");
    fs::write(&file, format!("{key}\n")).unwrap();
    let file = file.to_str().unwrap();
    let (ok, _, error) = tsnode(&["submit", PROMPT, "--max-tokens", "1", "--api-key-file", file], folder).await;
    assert!(ok && !error.contains("list of processes"), "{error}");
    let (ok, _, error) = tsnode(&["submit", PROMPT, "--max-tokens", "1", "--api-key", &key], folder).await;
    assert!(ok && error.contains("list of processes") && error.contains("--api-key -"), "{error}");
    let mut asked = tokio::process::Command::new(env!("CARGO_BIN_EXE_tsnode"));
    asked.args(["status", "--api-key", "-", "--data-dir"]).arg(folder);
    let mut asked = asked.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    asked.stdin.take().unwrap().write_all(format!("{key}\n").as_bytes()).await.unwrap();
    let asked = asked.wait_with_output().await.unwrap();
    let (ok, error) = (asked.status.success(), String::from_utf8_lossy(&asked.stderr));
    assert!(!error.contains(&key) && !ok && error.contains("--scope admin") && error.contains("needs none"), "{error}");
    // That of another peer's folder is no good here, and is not even shown.
    let (ok, _, error) = tsnode(&["status", "--api", &at], elsewhere).await;
    assert!(!ok && error.contains("--data-dir") && error.contains("--api-key"), "{error}");
    let token = fs::read_to_string(elsewhere.join("http.token")).unwrap();
    let asked = net.client.get(format!("{at}/api/swarm")).bearer_auth(token.trim()).send().await.unwrap();
    assert_eq!(asked.status(), 401);
    assert!(!fs::read_to_string(net.peer(0).log).unwrap().contains(token.trim()));
    let (ok, _, error) = tsnode(&["leave"], folder).await;
    assert!(ok, "{error}");
    let left = Instant::now();
    while folder.join("http.token").exists() {
        assert!(left.elapsed() < LONG, "it goes with its process");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A newcomer with an invite, which stays until it is dropped, although nobody reads what it says. What it was given is in no list
/// of processes.
async fn newcomer(invite: &str, folder: &Path) -> tokio::process::Child {
    static TURNS: AtomicUsize = AtomicUsize::new(0);
    let flags = ["join", "--no-model", "--mdns=false", "--http", "127.0.0.1:0", "--listen", "127.0.0.1:0"];
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_tsnode"));
    command.args(flags).arg("--data-dir").arg(folder).kill_on_drop(true);
    let file = folder.join("given");
    let turn = TURNS.fetch_add(1, Ordering::Relaxed) % 3;
    match turn {
        0 => command.args(["--invite", "-"]).stdin(Stdio::piped()),
        1 => {
            fs::write(&file, format!("{invite}\n")).unwrap();
            command.arg("--invite-file").arg(&file).stdin(Stdio::null())
        }
        _ => command.env("TSNODE_INVITE", invite).stdin(Stdio::null()),
    };
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut child = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    if let Some(mut input) = child.stdin.take() {
        input.write_all(format!("{invite}\n").as_bytes()).await.unwrap();
    }
    let words = child.id().map(|pid| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()).unwrap_or_default();
    assert!(!String::from_utf8_lossy(&words).contains(&invite[..16]), "turn {turn}");
    child
}

/// Its end, which comes by itself, and its last line.
async fn turned_away(invite: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let ended = tokio::time::timeout(LONG, newcomer(invite, folder.path()).await.wait_with_output()).await;
    let ended = ended.expect("it goes on").unwrap();
    assert!(!ended.status.success());
    String::from_utf8_lossy(&ended.stderr).lines().last().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invite_lets_in_until_it_is_used_up_taken_back_or_over() {
    let net = Net::up(Wish { peers: 1, gateways: 1, flags: &[], model_flags: &[] }).await;
    let (founder, member) = (net.peer(0).data_dir, net.peer(1).data_dir);
    let seen = |count: usize| {
        move |sights: &[Option<Sight>]| match &sights[0] {
            Some(sight) if sight.peers.len() == count => Ok(()),
            sight => Err(format!("{:?} peers, not {count}", sight.as_ref().map(|s| s.peers.len()))),
        }
    };
    let make = async |extra: &[&str], folder: &Path| {
        let (ok, text, error) = tsnode(&[&["invite", "--json"], extra].concat(), folder).await;
        assert!(ok, "{error}");
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let text = |made: &Value| made["invite"].as_str().unwrap().to_owned();

    let (_, text_alone, beside) = tsnode(&["invite", "--expires", "12h"], &founder).await;
    assert!(text_alone.starts_with("ts1") && text_alone.lines().count() == 1, "{text_alone}");
    assert!(
        ["tsnode join --invite", "(12 hours)", "tsnode invite revoke i-"].iter().all(|w| beside.contains(w)),
        "{beside}"
    );

    // For one: the first who comes, at once, stays, also over a restart, and the second is told to ask for another.
    let once = make(&["--uses", "1"], &founder).await;
    let home = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let mut first = newcomer(&text(&once), home.path()).await;
        drop(first.stderr.take());
        swarm(&net).await_that(LONG, seen(3)).await.unwrap();
        drop(first);
        swarm(&net).await_that(LONG, seen(2)).await.unwrap();
    }
    // It came in, went and came again, and was refused nothing.
    let nothing_refused = |sights: &[Option<Sight>]| match sights[0].as_ref().map(|s| &s.rejected) {
        Some(rejected) if rejected.is_empty() => Ok(()),
        rejected => Err(format!("{rejected:?}")),
    };
    swarm(&net).await_that(Duration::ZERO, nothing_refused).await.unwrap();
    let refusal = turned_away(&text(&once)).await;
    assert!(refusal.contains("not accepted") && refusal.contains("ask for a new one"), "{refusal}");

    // A wrong secret, and an invite nobody made, end with the same words.
    let mut wrong: Invite = text(&once).parse().unwrap();
    wrong.ticket.as_mut().unwrap().secret.0[0] ^= 1;
    assert_eq!(turned_away(&wrong.to_string()).await, refusal);
    wrong.ticket.as_mut().unwrap().id = InviteId([7; 8]);
    assert_eq!(turned_away(&wrong.to_string()).await, refusal);

    // Made by one member and good at another, which has heard of it; not when it is taken back.
    let made = make(&["--expires", "1h"], &founder).await;
    let mut elsewhere: Invite = text(&made).parse().unwrap();
    elsewhere.addresses = fs::read_to_string(member.join("invite")).unwrap().parse::<Invite>().unwrap().addresses;
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let other = tempfile::tempdir().unwrap();
    let second = newcomer(&elsewhere.to_string(), other.path()).await;
    swarm(&net).await_that(LONG, seen(3)).await.unwrap();
    let (ok, _, error) = tsnode(&["invite", "revoke", made["id"].as_str().unwrap()], &founder).await;
    assert!(ok, "{error}");
    tokio::time::sleep(Duration::from_millis(2500)).await;
    for at in [text(&made), elsewhere.to_string()] {
        assert_eq!(turned_away(&at).await, refusal);
    }
    swarm(&net).await_that(LONG, seen(3)).await.expect("who is in stays in");
    drop(second);

    // Over by the newcomer's clock, it says so itself; by the member's, it is refused.
    let short = make(&["--expires", "1s"], &founder).await;
    tokio::time::sleep(Duration::from_millis(2100)).await;
    let over = turned_away(&text(&short)).await;
    assert!(over.contains("expired") && over.contains("ask for a new one"), "{over}");
    let mut bent: Invite = text(&short).parse().unwrap();
    bent.ticket.as_mut().unwrap().expires += 3600;
    assert_eq!(turned_away(&bent.to_string()).await, refusal);

    let (_, list, _) = tsnode(&["invite", "list"], &founder).await;
    assert!(["used up", "revoked", "good", "1 of 1"].iter().all(|word| list.contains(word)), "{list}");
    a_key_locks_no_owner_out(&net, &founder, &member).await;
    net.down().await;
}

/// A detached swarm is found by who asks elsewhere, its dead are shown, and its end is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_detached_swarm_is_found_and_its_end_is_told() {
    let _turn = common::turn().await;
    let home = tempfile::tempdir().unwrap();
    let run = async |arguments: &[&str]| {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_tsnode"));
        for folder in ["XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"] {
            command.env(folder, home.path());
        }
        let ran = command.args(arguments).stdin(Stdio::null()).output().await.unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        (ran.status.success(), text(&ran.stdout), text(&ran.stderr))
    };
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let (ok, said, error) = run(&["testnet", "up", "--peers", "1", "--detach", "--http-port", &port]).await;
    assert!(ok && said.contains(&format!("tsnode submit --api http://127.0.0.1:{port} ")), "{said} {error}");

    // A peer of this folder was killed: what is left of it leads nowhere, and the line that would find another is said.
    fs::create_dir_all(home.path().join("tsnode")).unwrap();
    fs::write(home.path().join("tsnode/http.addr"), "127.0.0.1:1\n").unwrap();
    let (ok, _, error) = run(&["submit", "It was", "--max-tokens", "2"]).await;
    let (_, api) = error.split_once("which is asked with: --api ").unwrap_or_else(|| panic!("{error}"));
    assert!(!ok && api == format!("http://127.0.0.1:{port}"), "{error}");
    let (ok, answer, error) = run(&["submit", "It was", "--max-tokens", "2", "--api", api]).await;
    assert!(ok && !answer.is_empty(), "{error}");

    let (ok, _, error) = run(&["testnet", "kill", "peer0"]).await;
    assert!(ok, "{error}");
    let (ok, status, error) = run(&["testnet", "status"]).await;
    assert!(ok && status.contains("0 of 1 peers run"), "{status} {error}");
    assert!(
        status.contains("peer0") && status.contains("has ended; start it again with: tsnode testnet restart peer0"),
        "{status}"
    );
    let (ok, down, error) = run(&["testnet", "down"]).await;
    assert!(
        ok && down.contains("0 of 1 peers have left, peer0 had ended before") && down.ends_with("is removed"),
        "{down} {error}"
    );
}
