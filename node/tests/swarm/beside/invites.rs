//! Who comes in by an invite, who does not, and whom keys let ask.

use crate::common::{Net, PROMPT, Wish};
use crate::{LONG, swarm, tsnode};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tsnode_protocol::{Invite, InviteId};
use tsnode_testnet::Sight;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invite_lets_in_until_it_is_used_up_taken_back_or_over() {
    let net = Net::up_beside(Wish { peers: 1, gateways: 1, flags: &[], model_flags: &[] }).await;
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
