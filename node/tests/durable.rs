//! What a peer keeps outlives it: a gateway killed in mid-stream, full and read-only disks, writers killed at random moments,
//! clocks that are set back.
#![expect(clippy::unwrap_used, reason = "a swarm that cannot be had fails the test")]

mod common;

use common::{Net, PROMPT, Wish};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tsnode::store::{Store, identity::Identity};
use tsnode_protocol::{
    Epoch, KvCodec, PeerId, RequestId, Sampled, Term, Token, codec, ledger,
    response_log::{Fingerprint, Record, ResponseLogHead, ResponseLogPart},
};
use tsnode_testnet::client::AnswerStream;

/// Another swarm may be beside this one.
const LONG: Duration = Duration::from_secs(40);
const RESPONSE_LOG: &str = "response.log";
/// Tokens of an answer.
const TOKENS: usize = 500;
/// Answers at once: one alone is over before anything can happen to it.
const STREAMS: u64 = 8;

fn body(seed: u64) -> Value {
    json!({ "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0.8, "seed": seed, "ignore_eos": true })
}

/// Waits until something is so.
async fn until(what: &str, so: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !so() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Tokens that a data folder's response logs hold, by request and gateway.
fn logged(folder: &Path) -> BTreeMap<(RequestId, PeerId), Vec<Token>> {
    let file = fs::read(folder.join(RESPONSE_LOG)).unwrap_or_default();
    let mut all: BTreeMap<_, Vec<Token>> = BTreeMap::new();
    for record in ledger::read(&file).unwrap().records {
        match codec::decode::<Record, { ledger::RECORD_BYTES }>(record).unwrap() {
            Record::Begin { head, gateway, .. } => drop(all.insert((head.request, gateway), Vec::new())),
            Record::Part { request, gateway, from, part, .. } => {
                let said = all.get_mut(&(request, gateway)).unwrap();
                assert_eq!(said.len(), from as usize, "parts follow each other");
                said.extend(part.tokens.iter().map(|t| t.token));
            }
            Record::Forget { request, gateway } => drop(all.remove(&(request, gateway))),
        }
    }
    all
}

/// The longest answer in a data folder that has not all its tokens.
fn running(folder: &Path) -> Vec<u64> {
    let longest = logged(folder).into_values().filter(|t| t.len() < TOKENS).max_by_key(Vec::len);
    longest.unwrap_or_default().into_iter().map(|t| u64::from(t.0)).collect()
}

/// How many answers in it have all their tokens.
fn ended(folder: &Path) -> usize {
    logged(folder).values().filter(|t| t.len() == TOKENS).count()
}

/// A reader of one stream, whose gateway may change.
fn read(net: &Net, key: &str, seed: u64, gateways: Arc<Mutex<Vec<String>>>) -> tokio::task::JoinHandle<ReadAnswer> {
    let reader = AnswerStream::new(&net.client, key.to_owned(), body(seed));
    tsnode::tasks::spawn("test", async move {
        let seen = reader.read(|n| {
            let all = gateways.lock().unwrap();
            all[n.min(all.len() - 1)].clone()
        });
        let seen = seen.await.unwrap();
        ReadAnswer { tokens: seen.tokens, returns: seen.returns }
    })
}

struct ReadAnswer {
    tokens: Vec<u64>,
    returns: usize,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_killed_in_mid_stream_and_started_again_goes_on_with_its_clients() {
    let mut net = Net::up_beside(Wish { peers: 1, gateways: 1, flags: &["--kv-codec", "raw"], model_flags: &[] }).await;
    let (host, gateway) = (net.peer(0), net.peer(1));
    let expected = futures::future::join_all((0..STREAMS).map(|seed| net.tokens(1, body(seed)))).await;
    until("they are logged", || ended(&gateway.data_dir) == STREAMS as usize).await;
    let at = Arc::new(Mutex::new(vec![gateway.http.clone()]));
    let readers = (0..STREAMS).map(|seed| read(&net, "killed in mid-stream", seed, at.clone())).collect::<Vec<_>>();
    until("response logs are written", || running(&gateway.data_dir).len() > 100).await;
    // The host is the replica: killed too, and what it kept is lost.
    net.net.kill(1).await.unwrap();
    net.net.kill(0).await.unwrap();
    fs::remove_file(host.data_dir.join(RESPONSE_LOG)).unwrap();
    let had = running(&gateway.data_dir);
    assert!(expected.iter().any(|(tokens, _)| tokens.starts_with(&had)), "{} tokens, never said", had.len());
    let invite = || fs::read_to_string(host.data_dir.join("invite")).unwrap();
    let stale = invite();
    net.net.restart(0).await.unwrap();
    until("the host invites to where it is now", || invite() != stale).await;
    net.net.restart(1).await.unwrap();
    at.lock().unwrap()[0] = net.peer(1).http;
    net.net.await_one_mind(2).await.unwrap();
    let mut returns = 0;
    for (seed, reader) in readers.into_iter().enumerate() {
        let seen = reader.await.unwrap();
        assert_eq!(seen.tokens, expected[seed].0, "none lost, none repeated");
        returns += seen.returns;
    }
    assert!(returns > 0, "they were disturbed");
    let log = fs::read_to_string(&gateway.log).unwrap();
    assert!(log.contains("clients of before may go on here"), "{log}");
    until("the rest is logged", || ended(&gateway.data_dir) == 2 * STREAMS as usize).await;
    net.down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_request_is_its_gateways_until_that_has_gone() {
    let mut net = Net::up_beside(Wish { peers: 1, gateways: 2, flags: &["--kv-codec", "raw"], model_flags: &[] }).await;
    let (first, second) = (net.peer(1), net.peer(2));
    let expected = futures::future::join_all((0..STREAMS).map(|seed| net.tokens(1, body(seed)))).await;
    let both = || Arc::new(Mutex::new(vec![first.http.clone(), second.http.clone()]));
    let all = |key: &str| (0..STREAMS).map(|seed| read(&net, key, seed, both())).collect::<Vec<_>>();
    let all_ended = |times: u64| ended(&first.data_dir) == (times * STREAMS) as usize;

    until("they are logged", || all_ended(1)).await;
    let readers = all("not to be taken over");
    until("it is being answered", || running(&first.data_dir).len() > 50).await;
    let mut body = body(1);
    (body["stream"], body["return_token_ids"]) = (json!(true), json!(true));
    let request = net.client.post(format!("{}/v1/completions", second.http)).json(&body);
    let answer = request.header("idempotency-key", "not to be taken over").send().await.unwrap();
    let (status, why) = (answer.status(), answer.text().await.unwrap());
    assert!(status == 503 && why.contains("another gateway has this request"), "{status} {why}");
    for (reader, (tokens, _)) in readers.into_iter().zip(&expected) {
        let seen = reader.await.unwrap();
        assert_eq!((&seen.tokens, seen.returns), (tokens, 0), "it is not disturbed");
    }

    // The gateway dies: whoever comes back elsewhere is served.
    until("they are logged", || all_ended(2)).await;
    // What the second gateway was told of an answer that it could not take over may be kept here, too.
    let under_way = || logged(&first.data_dir).values().filter(|t| (50..TOKENS).contains(&t.len())).count();
    let before = under_way();
    let readers = all("to be gone on with");
    until("they are being answered", || under_way() > before).await;
    net.net.kill(1).await.unwrap();
    let mut returns = 0;
    for (reader, (tokens, _)) in readers.into_iter().zip(&expected) {
        let seen = reader.await.unwrap();
        assert_eq!(&seen.tokens, tokens);
        returns += seen.returns;
    }
    assert!(returns > 0, "they were disturbed");
    net.down().await;
}

/// A peer whose clock was an hour ahead is heard at once when it starts again with the right time.
/// Gateway and replica have gone before anything was copied: only the client knows what its tokens rest on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_no_peer_knows_of_goes_on_as_its_client_has_it() {
    let flags = ["--kv-codec", "int4", "--split", "always", "--layout", "prefill=1,decode=1"];
    let net = Net::up_beside(Wish { peers: 2, gateways: 0, flags: &flags, model_flags: &[] }).await;
    let prompt = "and the wind blew ".repeat(20);
    let mut body = json!({ "prompt": prompt, "max_tokens": 48, "temperature": 0, "ignore_eos": true });
    let (packed, said) = net.tokens(0, body.clone()).await;
    assert_eq!(said["tsnode"]["codec"], "int4");
    (body["stream"], body["return_token_ids"]) = (json!(true), json!(true));
    for codec in ["int4", "raw"] {
        let request = net.client.post(format!("{}/v1/completions", net.peer(1).http)).json(&body);
        let event = format!("req-00000000000000000000000000000001:8/{codec}");
        let request = request.header("last-event-id", event).header("x-tsnode-trace", "1");
        let text = request.send().await.unwrap().text().await.unwrap();
        let events = text.lines().filter_map(|l| serde_json::from_str::<Value>(l.strip_prefix("data: ")?).ok());
        let (mut tokens, mut trace) = (Vec::new(), Value::Null);
        for event in events {
            tokens.extend(event["choices"][0]["token_ids"].as_array().into_iter().flatten().filter_map(Value::as_u64));
            trace = event["tsnode"].clone();
        }
        assert_eq!(trace["codec"], codec, "{trace}");
        assert_eq!(tokens.len(), 40, "{text}");
        assert!(codec == "raw" || tokens == packed[8..], "{tokens:?} after {packed:?}");
    }
    net.down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_set_back_an_hour_makes_nobody_deaf() {
    let mut net = Net::up_beside(Wish { peers: 2, gateways: 0, flags: &["--kv-codec", "raw"], model_flags: &[] }).await;
    let folder = net.peer(1).data_dir;
    net.net.kill(1).await.unwrap();
    // As it would have been with a clock an hour ahead: lives begin at the clock's time.
    let ahead = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() + 3600;
    let ahead = Store::open(&folder).unwrap().begin_life(ahead);
    for _ in 0..2 {
        net.net.restart(1).await.unwrap();
        net.net.await_one_mind(2).await.unwrap();
        net.net.kill(1).await.unwrap();
    }
    assert!(Store::open(&folder).unwrap().begin_life(0) > ahead, "it went on above what it said before");
    net.net.restart(1).await.unwrap();
    net.net.await_one_mind(2).await.unwrap();
    net.down().await;
}

/// A peer of its own swarm in `folder`, started with a limit of the shell's.
fn join(folder: &Path, limit: &str) -> Command {
    let mut command = Command::new("sh");
    let line = format!("trap '' XFSZ; {limit}; exec \"$0\" \"$@\"");
    command.args(["-c", &line, env!("CARGO_BIN_EXE_tsnode"), "join", "--private", "--mdns=false", "--threads", "1"]);
    command.args(["--http", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--data-dir"]).arg(folder);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// What a peer that must not start says, and its exit code.
fn refused(folder: &Path, limit: &str) -> (i32, String) {
    let output = join(folder, limit).output().unwrap();
    (output.status.code().unwrap_or(-1), String::from_utf8(output.stderr).unwrap())
}

/// A running process, killed when it is dropped, and what it says.
struct Peer {
    child: std::process::Child,
    said: Arc<Mutex<String>>,
    http: String,
}

impl Peer {
    async fn start(folder: &Path, limit: &str) -> Self {
        fs::remove_file(folder.join("http.addr")).ok();
        let mut child = join(folder, limit).spawn().unwrap();
        let (said, errors) = (Arc::new(Mutex::new(String::new())), child.stderr.take().unwrap());
        let ear = said.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                ear.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        let read = || fs::read_to_string(folder.join("http.addr")).unwrap_or_default();
        until("http listens", || read().ends_with('\n')).await;
        Self { child, said, http: format!("http://{}", read().trim()) }
    }

    /// An answer with its tokens' alternatives, which make a response log long.
    async fn ask(&self, client: &reqwest::Client, seed: u64) -> Vec<u64> {
        let mut body = body(seed);
        (body["return_token_ids"], body["logprobs"]) = (json!(true), json!(5));
        let asked = Instant::now();
        loop {
            let request = client.post(format!("{}/v1/completions", self.http)).json(&body);
            let answer = request.send().await.unwrap();
            if answer.status() == 503 && asked.elapsed() < LONG {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
            let answer: Value = answer.json().await.unwrap();
            let ids = answer["choices"][0]["token_ids"].as_array().unwrap_or_else(|| panic!("{answer}"));
            return ids.iter().map(|t| t.as_u64().unwrap()).collect();
        }
    }

    fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The same on any Linux: no file may grow beyond 32 KiB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_stops_no_answer_and_costs_no_identity() {
    let folder = tempfile::tempdir().unwrap();
    let client = reqwest::Client::new();
    let peer = Peer::start(folder.path(), "ulimit -f 64").await;
    let key = fs::read(folder.path().join("identity.key")).unwrap();
    let first = peer.ask(&client, 0).await;
    for seed in 1..4 {
        peer.ask(&client, seed).await;
    }
    let said = || peer.said();
    until("the response log is said to be in memory only", || said().contains("in memory and at other peers only"))
        .await;
    assert!(said().contains("free some space"), "{}", said());
    assert_eq!(peer.ask(&client, 0).await, first, "it serves on");
    drop(peer);
    let file = fs::read(folder.path().join(RESPONSE_LOG)).unwrap();
    assert!(file.len() <= 32 << 10);
    assert_eq!(ledger::read(&file).unwrap().end, file.len(), "nothing is half-written");

    let peer = Peer::start(folder.path(), "true").await;
    until("response logs of before are there", || peer.said().contains("clients of before may go on here")).await;
    assert!(!folder.path().join("response.log.new").exists(), "what could not be written is gone");
    assert_eq!(peer.ask(&client, 0).await, first);
    drop(peer);
    assert_eq!(fs::read(folder.path().join("identity.key")).unwrap(), key, "it is the same peer");
}

#[test]
fn a_folder_that_cannot_be_written_is_named_with_what_to_do() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("data");
    let (code, said) = refused(&folder, "ulimit -f 0");
    assert_eq!(code, 5, "{said}");
    assert!(said.contains(folder.to_str().unwrap()) && said.contains("free some space"), "{said}");
    assert_eq!(said.trim().lines().count(), 1, "{said}");
    let left: Vec<_> = fs::read_dir(&folder).unwrap().map(|e| e.unwrap()).collect();
    assert!(left.iter().all(|e| e.metadata().unwrap().len() == 0), "nothing is half-written: {left:?}");

    let Some(read_only) = ReadOnly::make(&folder) else {
        return println!("skipped: this user may write everywhere, and mount nothing");
    };
    let (code, said) = refused(&read_only.0, "true");
    assert_eq!(code, 5, "{said}");
    assert!(said.contains("make it writable") && said.trim().lines().count() == 1, "{said}");
}

/// A folder that this user cannot write to: by its mode, or mounted so where that means nothing.
struct ReadOnly(PathBuf);

impl ReadOnly {
    fn make(folder: &Path) -> Option<Self> {
        use std::os::unix::fs::PermissionsExt as _;
        fs::remove_dir_all(folder).ok();
        fs::create_dir_all(folder).unwrap();
        fs::set_permissions(folder, fs::Permissions::from_mode(0o555)).unwrap();
        let mounted = || {
            let mut mount = Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", "ro", "tmpfs"]).arg(folder).stderr(Stdio::null());
            mount.status().is_ok_and(|s| s.success())
        };
        let can_write = fs::write(folder.join("probe"), b"").is_ok();
        (!can_write || mounted()).then(|| Self(folder.to_owned()))
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        // Where nothing is mounted there is nothing to take away.
        Command::new("umount").arg(&self.0).stderr(Stdio::null()).status().ok();
    }
}

/// A disk of a quarter of a MiB, if this user may have one.
struct Tiny(PathBuf);

impl Tiny {
    fn make(folder: &Path) -> Option<Self> {
        fs::create_dir_all(folder).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"]).arg(folder).stderr(Stdio::null());
        mount.status().is_ok_and(|s| s.success()).then(|| Self(folder.to_owned()))
    }
}

impl Drop for Tiny {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(&self.0).stderr(Stdio::null()).status().ok();
    }
}

/// A disk that fills up while the peer runs, and has room again later: then response logs are written again, all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_has_room_again_is_used_again() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("tiny");
    let Some(_disk) = Tiny::make(&folder) else {
        return println!("skipped: this user may mount nothing");
    };
    let client = reqwest::Client::new();
    let peer = Peer::start(&folder, "true").await;
    let first = peer.ask(&client, 0).await;
    let filler = folder.join("filler");
    fs::write(&filler, vec![1; 1 << 20]).unwrap_err();
    peer.ask(&client, 1).await;
    until("the disk refuses", || peer.said().contains("in memory and at other peers only")).await;
    fs::remove_file(&filler).unwrap();
    peer.ask(&client, 2).await;
    until("all three are written", || ended(&folder) == 3).await;
    assert!(peer.said().contains("the disk takes response logs again"), "{}", peer.said());
    assert_eq!(peer.ask(&client, 0).await, first);
}

/// Files overwritten in one place: the peer starts by itself with what is left, and keeps what it found. Its key cannot be made
/// again: that is said, and nothing is changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_files_stop_no_peer_and_a_damaged_key_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let client = reqwest::Client::new();
    let path = |name: &str| folder.path().join(name);
    let peer = Peer::start(folder.path(), "true").await;
    let first = peer.ask(&client, 0).await;
    until("the answer is logged", || ended(folder.path()) == 1).await;
    drop(peer);
    for file in ["state.log", RESPONSE_LOG] {
        let mut bytes = fs::read(path(file)).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0xFF;
        fs::write(path(file), bytes).unwrap();
    }
    let peer = Peer::start(folder.path(), "true").await;
    assert_eq!(peer.ask(&client, 0).await, first);
    until("the damage is told", || peer.said().matches("damaged: what could be read").count() == 2).await;
    assert!(path("state.log.broken").exists() && path("response.log.broken").exists());
    drop(peer);

    let key = fs::read(path("identity.key")).unwrap();
    for left in [0, 31] {
        fs::write(path("identity.key"), &key[..left]).unwrap();
        let (code, said) = refused(folder.path(), "true");
        assert_eq!(code, 10, "{said}");
        assert!(said.contains("is not a key") && said.contains("restore it from a copy"), "{said}");
        assert_eq!(fs::read(path("identity.key")).unwrap(), key[..left], "it is left alone");
    }
}

/// Not a test of its own: the process that [`nothing_acknowledged_is_lost_to_kills_while_writing`] kills.
#[test]
fn writes_until_it_is_killed() {
    let Ok(folder) = std::env::var("TSNODE_WRITE_INTO") else { return };
    let folder = Path::new(&folder);
    let store = Store::open(folder).unwrap();
    println!("peer {}", Identity::load_or_create(folder).unwrap().peer_id());
    let mut response_log = store.open_response_log(|_| {}).unwrap();
    let first = store.endorsed().map_or(1, |(Epoch(n), _)| n + 1);
    for n in first.. {
        let request = RequestId(u128::from(n / 64).to_le_bytes());
        let head = ResponseLogHead { request, asked: Fingerprint([1; 32]) };
        let gateway = PeerId([2; 32]);
        let begin = || codec::encode(&Record::Begin { head, gateway, at: n });
        let part = |n: u64| {
            let token = Sampled { token: Token(n as u32), logprob: Some(0.5), top: Vec::new() };
            let part = ResponseLogPart { codec: KvCodec::Raw.into(), holder: None, tokens: vec![token] };
            codec::encode(&Record::Part { request, gateway, from: (n % 64) as u32, part, at: n })
        };
        let all = || std::iter::once(begin()).chain((n / 64 * 64..=n).map(part));
        // What was there of this answer is told again now and then, and after a start.
        if n % 16 == 0 || n == first { response_log.rewrite(all()) } else { response_log.append([part(n)]) }.unwrap();
        assert!(store.set_endorsed(Epoch(n), Term(n as u32)));
        println!("{n}");
    }
}

#[test]
fn nothing_acknowledged_is_lost_to_kills_while_writing() {
    let folder = tempfile::tempdir().unwrap();
    let (mut last, mut name, mut draw) = (0, None, 7_u64);
    for round in 0..100 {
        let mut writer = Command::new(std::env::current_exe().unwrap());
        writer.args(["--exact", "writes_until_it_is_killed", "--nocapture"]).env("TSNODE_WRITE_INTO", folder.path());
        let mut writer = writer.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let mut said = BufReader::new(writer.stdout.take().unwrap()).lines().map_while(Result::ok);
        // Every fourth is killed while it starts.
        let begun: Vec<String> = if round % 4 == 0 { Vec::new() } else { said.by_ref().take(6).collect() };
        std::thread::sleep(Duration::from_micros((draw >> 32) % 20_000));
        writer.kill().unwrap();
        writer.wait().unwrap();
        for line in begun.into_iter().chain(said) {
            // What the harness says comes before it.
            if let Some((_, id)) = line.split_once("peer ") {
                assert_eq!(name.get_or_insert_with(|| id.to_owned()), id, "the identity stays");
            } else if let Ok(n) = line.parse::<u64>() {
                last = n;
            }
        }
        let store = Store::open(folder.path()).unwrap();
        let kept = store.endorsed().map_or(0, |(Epoch(n), _)| n);
        assert!(kept == last || kept == last + 1, "round {round}: {last} was written, {kept} is remembered");
        let answers = logged(folder.path());
        let newest = answers.values().flatten().map(|t| u64::from(t.0)).max().unwrap_or(0);
        assert!(newest == kept || newest == kept + 1, "round {round}: the response log ends at {newest}");
        last = kept;
    }
    assert!(name.is_some() && last > 100, "the writers wrote: {last}");
    let strays = fs::read_dir(folder.path()).unwrap().filter(|e| {
        let name = e.as_ref().unwrap().file_name().into_string().unwrap();
        name.ends_with(".broken")
    });
    assert_eq!(strays.count(), 0, "no kill looks like damage");
    println!("100 kills, {last} notes written and remembered");
}
