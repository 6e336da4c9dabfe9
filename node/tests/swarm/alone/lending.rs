//! Peers that lend little, nothing, or later.

use crate::common::{Net, PROMPT, Wish};
use crate::{LONG, all_pages_free, swarm, tsnode};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, BufReader};

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
    limits_are_changed_while_it_serves(&net, body(0), &alone[0]).await;
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

/// Its owner allows it more threads and less memory: its model is lent anew, and gives the same tokens. What was said is kept.
async fn limits_are_changed_while_it_serves(net: &Net, body: Value, expected: &[u64]) {
    let home = &net.peer(0).data_dir;
    let words = ["limits", "set", "--threads", "2", "--memory", "1GiB", "--upload-mbit", "500"];
    let (done, said, error) = tsnode(&words, home).await;
    assert!(done && said.contains("500 Mbit/s") && said.contains("--threads 1 holds again"), "{said}{error}");
    assert!(said.ends_with("its models are lent within these limits"), "{said}");
    let kept = fs::read_to_string(home.join("limits.toml")).unwrap();
    assert!(kept.ends_with("memory = \"1024MiB\"\nthreads = \"2\"\nupload_mbit = \"500\"\n"), "{kept}");
    let begun = Instant::now();
    loop {
        let (status, answer) = net.complete(0, body.clone()).await;
        if status == 200 {
            break;
        }
        assert!(status == 503 && begun.elapsed() < LONG, "{answer}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(net.tokens(0, body).await.0, expected);
    let (refused, _, why) = tsnode(&["limits", "set", "--memory", "2MiB"], home).await;
    assert!(!refused && why.contains("--kv-memory"), "{why}");
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
