//! Models that come from peers, on real processes: whole, to the byte, whatever breaks on the way; and the index of what is known of
//! them and the history of a peer's work, damaged in every way.
//!
//! `TSNODE_TEST_KILLS=50` kills the peer that fetches so often (seeded), `TSNODE_TEST_DAMAGES=200` damages those so often.
#![expect(clippy::unwrap_used, reason = "a peer that cannot be had fails the test")]

mod common;

use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};

const LONG: Duration = Duration::from_secs(60);
const CHUNK: u64 = 1 << 20;
/// Chunks that may be on their way from one holder.
const STREAMS: u64 = 3;
/// Rows and columns more of MLPs: six megabytes a layer.
const WIDER: usize = 4096;
/// For so many kills at most a model of that size has enough chunks to be killed between.
const KILLS: u64 = 20;
/// What each of two peers lends that together have room for that.
const LITTLE: &str = "40MiB";
const LITTLE_KV: &str = "8MiB";

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// A generator that gives the same everywhere (`SplitMix64`).
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Where it lies in a folder, as in the Hugging Face cache: it is called by its repository.
const INSIDE: &str = "models--org--brought/snapshots/0123456789abcdef0123456789abcdef01234567";
const NAME: &str = "org/brought";

/// A model that is real and not the one inside the program: its layers are larger, their MLPs wider by numbers that are all zero.
fn model(folder: &Path) -> PathBuf {
    wider(folder, WIDER)
}

/// The same, wider by so much.
fn wider(folder: &Path, more: usize) -> PathBuf {
    changed(folder, "intermediate_size", more, |name, tensor| {
        if name.ends_with("gate_proj.weight") || name.ends_with("up_proj.weight") {
            let row = tensor.bytes.len() / tensor.shape[0];
            tensor.bytes.resize(tensor.bytes.len() + row * more, 0);
            tensor.shape[0] += more;
        } else if name.ends_with("down_proj.weight") {
            let row = tensor.bytes.len() / tensor.shape[0];
            let size = row / tensor.shape[1];
            let wider = |row: &[u8]| [row, &vec![0; size * more]].concat();
            tensor.bytes = tensor.bytes.chunks(row).flat_map(wider).collect();
            tensor.shape[1] += more;
        }
    })
}

struct ChangedTensor {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

/// The model inside the program, with a size that is larger and tensors that are changed alike.
fn changed(folder: &Path, size: &str, more: usize, change: impl Fn(&str, &mut ChangedTensor)) -> PathBuf {
    let (from, to) =
        (Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/models/gutenberg-tiny"), folder.join(INSIDE));
    fs::create_dir_all(&to).unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        fs::copy(from.join(name), to.join(name)).unwrap();
    }
    let own = fs::read(from.join("model.safetensors")).unwrap();
    let mut tensors = Vec::new();
    for (name, view) in SafeTensors::deserialize(&own).unwrap().tensors() {
        let (dtype, shape, bytes) = (view.dtype(), view.shape().to_vec(), view.data().to_vec());
        let mut tensor = ChangedTensor { dtype, shape, bytes };
        change(&name, &mut tensor);
        tensors.push((name, tensor));
    }
    let mut views = Vec::new();
    for (name, tensor) in &tensors {
        views.push((name.clone(), TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes).unwrap()));
    }
    fs::write(to.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    let mut config: Value = serde_json::from_slice(&fs::read(from.join("config.json")).unwrap()).unwrap();
    config[size] = json!(config[size].as_u64().unwrap() + more as u64);
    fs::write(to.join("config.json"), config.to_string()).unwrap();
    to
}

/// Bytes of the tensors that a stage of these layers has, by what a file says of itself.
fn stage_bytes(model: &Path, layers: &std::ops::Range<u64>, all: u64) -> u64 {
    let file = fs::read(model.join("model.safetensors")).unwrap();
    let parsed = SafeTensors::deserialize(&file).unwrap();
    let is_held = |name: &str| match name.strip_prefix("model.layers.") {
        Some(rest) => layers.contains(&rest.split('.').next().unwrap().parse().unwrap()),
        None if name.contains("embed_tokens") => layers.start == 0 || layers.end == all,
        None => layers.end == all,
    };
    parsed.tensors().iter().filter(|(name, _)| is_held(name)).map(|(_, view)| view.data().len() as u64).sum()
}

/// A process of its own, killed when it is dropped.
struct Peer {
    child: Child,
    data: PathBuf,
    client: reqwest::Client,
}

impl Peer {
    fn start(data: &Path, words: &[&str]) -> Self {
        fs::remove_file(data.join("http.addr")).ok();
        let usual = ["--mdns=false", "--http", "127.0.0.1:0", "--device", "cpu", "--threads", "1"];
        let anywhere = ["--listen", "127.0.0.1:0"];
        let anywhere = anywhere.iter().filter(|_| !words.contains(&"--listen"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_tsnode"));
        command.arg("join").args(usual).args(anywhere).args(words).arg("--data-dir").arg(data).kill_on_drop(true);
        command.env("HOME", data).env_remove("HF_HOME").env("HF_HUB_OFFLINE", "1");
        let log = fs::File::options().create(true).append(true).open(data.with_extension("log")).unwrap();
        let child = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        let client = reqwest::Client::builder().timeout(LONG).build().unwrap();
        Self { child, data: data.to_owned(), client }
    }

    async fn view(&self) -> Option<Value> {
        let http = fs::read_to_string(self.data.join("http.addr")).ok()?;
        self.client.get(format!("http://{}/api/swarm", http.trim())).send().await.ok()?.json().await.ok()
    }

    /// Waits until what it sees is as it should be.
    async fn until(&mut self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        let mut last = Value::Null;
        loop {
            if let Some(view) = self.view().await {
                if is_so(&view) {
                    return view;
                }
                last = view;
            }
            assert!(self.child.try_wait().unwrap().is_none(), "{what}: it has ended\n{}", self.log());
            assert!(begun.elapsed() < LONG, "{what}: not within {LONG:?}\n{}\n{}", last["fetching"], self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.data.with_extension("log")).unwrap_or_default()
    }

    /// An answer, and its history on the disk.
    async fn works(&self) {
        self.tokens().await;
        let http = fs::read_to_string(self.data.join("http.addr")).unwrap();
        let requests = self.client.get(format!("http://{}/api/requests", http.trim())).send().await.unwrap();
        assert!(!requests.json::<Value>().await.unwrap()["requests"].as_array().unwrap().is_empty());
        let begun = Instant::now();
        while !self.data.join("history/db").exists() {
            assert!(begun.elapsed() < LONG, "nothing is kept\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn invite(&mut self) -> String {
        self.until("it listens", |view| view["addresses"].as_array().is_some_and(|a| !a.is_empty())).await;
        fs::read_to_string(self.data.join("invite")).unwrap().trim().to_owned()
    }

    async fn faults(&self, faults: Value) {
        let http = fs::read_to_string(self.data.join("http.addr")).unwrap();
        let answer = self.client.post(format!("http://{}/api/faults", http.trim())).json(&faults).send().await.unwrap();
        assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
    }

    /// The tokens of an answer.
    async fn tokens(&self) -> Value {
        let http = fs::read_to_string(self.data.join("http.addr")).unwrap();
        let body = json!({ "prompt": common::PROMPT, "max_tokens": 12, "temperature": 0.0, "return_token_ids": true });
        let url = format!("http://{}/v1/completions", http.trim());
        let begun = Instant::now();
        loop {
            let answer = self.client.post(&url).json(&body).send().await.unwrap().json::<Value>().await.unwrap();
            if answer["choices"][0]["token_ids"].is_array() {
                assert_eq!(answer["model"], NAME);
                return answer["choices"][0]["token_ids"].clone();
            }
            assert!(begun.elapsed() < LONG, "{answer}\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// The same as soon as it has a model to answer with.
    async fn tokens_of_whom_starts(&self) -> Value {
        let begun = Instant::now();
        while self.view().await.is_none_or(|view| !is_ready(&view)) {
            assert!(begun.elapsed() < LONG, "{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.tokens().await
    }

    async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }
}

fn is_lent(view: &Value) -> bool {
    let own = view["peers"].as_array().and_then(|peers| peers.iter().find(|peer| peer["id"] == view["me"]));
    own.is_some_and(|own| own["advert"]["models"][0]["name"] == NAME && own["advert"]["devices"][0].is_object())
}

/// All that a plan gives it is here.
fn has_its_layers(view: &Value) -> bool {
    let far = &view["fetching"];
    is_lent(view) && far["layers"].is_object() && far["done"] == far["bytes"] && far["holders"] == 0
}

fn is_ready(view: &Value) -> bool {
    view["ready_groups"].as_array().is_some_and(|groups| !groups.is_empty())
}

fn fetched(view: &Value) -> u64 {
    view["fetching"]["fetched"].as_u64().unwrap_or(0)
}

/// What a peer has fetched, file by file as it came.
fn files_equal(model: &Path, data: &Path) {
    let folder = fs::read_dir(data.join("models"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.is_dir())
        .unwrap();
    let same =
        |name: &str| assert!(fs::read(model.join(name)).unwrap() == fs::read(folder.join(name)).unwrap(), "{name}");
    ["model.safetensors", "config.json", "tokenizer.json"].into_iter().for_each(same);
    assert!(!folder.join("model.safetensors.incomplete").exists());
}

/// An address whose port, and the one above it, nobody has.
fn free_address() -> String {
    use std::net::{TcpListener, UdpSocket};
    let is_free = |port: u16| {
        let data = UdpSocket::bind(("127.0.0.1", port + 1));
        data.is_ok() && UdpSocket::bind(("127.0.0.1", port)).is_ok()
    };
    let draw = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let port = std::iter::repeat_with(draw).take(100).find(|port| *port < u16::MAX && is_free(*port)).unwrap();
    format!("127.0.0.1:{port}")
}

/// A volunteer with an invite and nothing else: it fetches, is killed meanwhile, and so is whoever gives; it goes on, and serves when the
/// other has gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_with_nothing_but_an_invite_fetches_and_serves() {
    let _turn = common::seat().await;
    let home = tempfile::tempdir().unwrap();
    let (kills, mut draw) = (number("TSNODE_TEST_KILLS", 2), SplitMix64(number("TSNODE_SEED", 41)));
    let sizes = 1 + kills / KILLS;
    let model = wider(home.path(), WIDER * sizes as usize);
    let all = fs::metadata(model.join("model.safetensors")).unwrap().len();
    let memory = format!("{}MiB", 256 * sizes);
    let (from, listen) = (home.path().join("a"), free_address());
    let path = model.to_str().unwrap();
    let words = ["--listen", &listen, "--upload-mbit", "100", "--memory", &memory, "--model", path];
    let mut a = Peer::start(&from, &[&words[..], &["--private"]].concat());
    a.until("it lends", is_lent).await;
    let (invite, tokens) = (a.invite().await, a.tokens().await);
    let data = home.path().join("b");
    let invited = ["--memory", &memory, "--invite", invite.as_str()];
    let mut b = Peer::start(&data, &invited);
    let (mut given, mut came) = (0, 0);
    for kill in 0..kills {
        let at = all / (kills + 1) * kill + draw.below(all / (kills + 1));
        let seen = b
            .until("it fetches", |view| {
                view["fetching"]["layers"].is_object()
                    && view["fetching"]["done"].as_u64().is_some_and(|done| done >= at)
            })
            .await;
        if kill % 2 == 0 {
            b.kill().await;
            came += fetched(&seen);
            b = Peer::start(&data, &invited);
        } else {
            given += a.view().await.unwrap()["weights_given"].as_u64().unwrap();
            a.kill().await;
            a = Peer::start(&from, &words);
        }
        let who = if kill % 2 == 0 { "who fetches" } else { "who gives" };
        println!("kill {kill}, of {who}: {} of {all} were there", seen["fetching"]["done"]);
    }
    let view = b.until("it has what it serves", has_its_layers).await;
    // What a peer that is killed gave since it was looked at is not counted.
    let (again, unseen) = (kills * STREAMS * CHUNK, kills / 2 * STREAMS * CHUNK);
    let is_given = |view: &Value| view["weights_given"].as_u64() >= Some(all.saturating_sub(given + unseen));
    given += a.until("it has given", is_given).await["weights_given"].as_u64().unwrap();
    println!("{all} bytes: {given} were given, {} seen to come", came + fetched(&view));
    assert!(given <= all + again, "{given} of {all} were given");
    files_equal(&model, &data);
    // It serves alone, and says the same.
    a.kill().await;
    assert_eq!(b.tokens().await, tokens);
    b.kill().await;
    // And when it starts again, and nobody is there who could say what to serve.
    let mut b = Peer::start(&data, &["--memory", &memory]);
    let view = b.until("it lends what it fetched before", is_lent).await;
    assert_eq!(fetched(&view), 0);
    assert_eq!(b.tokens().await, tokens);
    b.kill().await;
}

/// Models that a peer says to have in part, and which layers.
fn partial(view: &Value) -> Vec<Value> {
    let own = view["peers"].as_array().unwrap().iter().find(|peer| peer["id"] == view["me"]);
    own.map_or_else(Vec::new, |own| own["advert"]["partial"].as_array().unwrap().clone())
}

/// What `tsnode models` says of a peer's data folder.
async fn models(data: &Path, words: &[&str]) -> std::process::Output {
    let mut verb = Command::new(env!("CARGO_BIN_EXE_tsnode"));
    verb.arg("models").args(words).arg("--data-dir").arg(data).kill_on_drop(true);
    verb.env("HOME", data).env_remove("HF_HOME").env("HF_HUB_OFFLINE", "1");
    tokio::time::timeout(LONG, verb.output()).await.unwrap().unwrap()
}

/// The one that came from peers.
async fn list(data: &Path) -> Value {
    let listed = models(data, &["list", "--json"]).await;
    let listed: Vec<Value> = serde_json::from_slice(&listed.stdout).unwrap();
    listed.into_iter().find(|model| model["from"] == "peers" && model["model"] == NAME).unwrap()
}

/// Two peers that together have room for a model, of which one has it: the other fetches the layers that it holds and no others,
/// and both compute what one alone would.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_fetches_the_layers_that_it_holds_and_no_others() {
    let _turn = common::seat().await;
    let home = tempfile::tempdir().unwrap();
    let model = model(home.path());
    let file = fs::metadata(model.join("model.safetensors")).unwrap().len();
    let path = model.to_str().unwrap();
    let alone = Peer::start(&home.path().join("alone"), &["--private", "--memory", "256MiB", "--model", path]);
    let tokens = alone.tokens_of_whom_starts().await;
    alone.kill().await;
    let some = ["--memory", LITTLE, "--kv-memory", LITTLE_KV];
    let mut a = Peer::start(&home.path().join("a"), &[&some[..], &["--private", "--model", path]].concat());
    let invite = a.invite().await;
    // Less than the model: it holds a part.
    let bounded = ["--invite", &invite, "--model-budget", "24MiB"];
    assert!(file > 24 << 20, "{file}");
    let mut b = Peer::start(&home.path().join("b"), &[&some[..], &bounded].concat());
    let view = b.until("it has its layers and they serve", |view| has_its_layers(view) && is_ready(view)).await;
    let (layers, all) = (&view["fetching"]["layers"], view["models"][0]["shape"]["layers"].as_u64().unwrap());
    let layers = layers["start"].as_u64().unwrap()..layers["end"].as_u64().unwrap();
    let (held, came) = (stage_bytes(&model, &layers, all), fetched(&view));
    println!("layers {layers:?} of {all}: {came} bytes came, {held} are held, {file} are in the file");
    // What the file says of itself is in its first chunk; what is held lies in two places at most.
    assert!(layers.end - layers.start < all);
    assert!(came <= held + held / 50 + 5 * CHUNK && came < file * 3 / 4, "{came} for {held}");
    assert_eq!(b.tokens().await, tokens);
    let covers =
        |piece: &Value| piece["start"].as_u64() <= Some(layers.start) && piece["end"].as_u64() >= Some(layers.end);
    let says_which = |view: &Value| partial(view).iter().any(|of| of["layers"].as_array().unwrap().iter().any(covers));
    b.until("its advert says which layers it has", says_which).await;
    let listed = list(&b.data).await;
    assert!(listed["whole"] == false && listed["held"].as_u64() <= Some(file), "{listed}");
    assert!(listed["source"].as_str().unwrap().starts_with("org/brought@0123"), "{listed}");
    // The rest of it, for later, whatever the budget.
    let pulled = models(&b.data, &["pull", NAME, "--json"]).await;
    let said = String::from_utf8_lossy(&pulled.stderr).into_owned();
    assert!(pulled.status.success() && said.contains("is fetched from peers of the swarm"), "{said}");
    let pulled: Value = serde_json::from_slice(&pulled.stdout).unwrap();
    println!("{} of {file} bytes came in all", pulled["fetched"]);
    assert!(pulled["fetched"].as_u64().unwrap() <= file + STREAMS * CHUNK, "{pulled}");
    files_equal(&model, &b.data);
    b.until("its advert says that it has all", |view| partial(view).is_empty()).await;
    assert_eq!(b.tokens().await, tokens);
    let listed = list(&b.data).await;
    assert!(listed["whole"] == true && listed["held"].as_u64() == Some(file), "{listed}");
    assert!(models(&b.data, &["verify", NAME]).await.status.success());
    let refused = models(&b.data, &["rm", NAME]).await;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(5) && said.contains("has it open"), "{said}");
    b.kill().await;
    // Without weights and without an invite: the peers that it knew have them.
    assert!(models(&home.path().join("b"), &["rm", NAME]).await.status.success());
    let mut b = Peer::start(&home.path().join("b"), &[&some[..], &["--model", NAME]].concat());
    let view = b.until("it has its layers again", |view| has_its_layers(view) && is_ready(view)).await;
    assert!(fetched(&view) > 0, "{view}");
    assert_eq!(b.tokens().await, tokens);
    b.kill().await;
    a.kill().await;
}

/// One holder sends something else than was asked for, of another the file is damaged in many places: all comes from whoever has it right.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_what_its_hash_says_comes_from_elsewhere() {
    let _turn = common::seat().await;
    let home = tempfile::tempdir().unwrap();
    let model = model(home.path());
    let all = fs::metadata(model.join("model.safetensors")).unwrap().len();
    let place = |name: &str| home.path().join(name);
    let copy = |name: &str| {
        let to = place(name).join(INSIDE);
        fs::create_dir_all(&to).unwrap();
        fs::read_dir(&model)
            .unwrap()
            .map(Result::unwrap)
            .for_each(|file| drop(fs::copy(file.path(), to.join(file.file_name()))));
        to.display().to_string()
    };
    let flags = ["--faults", "--upload-mbit", "200", "--memory", "256MiB"];
    let files = ["a", "b", "c"].map(|name| copy(&format!("of-{name}")));
    let mut a = Peer::start(&place("a"), &[&flags[..], &["--private", "--model", &files[0]]].concat());
    a.until("it lends", is_lent).await;
    let invite = a.invite().await;
    let mut others = Vec::new();
    for (name, file) in ["b", "c"].into_iter().zip(&files[1..]) {
        let mut peer = Peer::start(&place(name), &[&flags[..], &["--invite", &invite, "--model", file]].concat());
        peer.until("it lends", is_lent).await;
        others.push(peer);
    }
    a.until("all are there", |view| view["peers"].as_array().is_some_and(|peers| peers.len() == 3)).await;
    a.faults(json!({ "corrupt": 1.0 })).await;
    let damaged = Path::new(&files[1]).join("model.safetensors");
    let places = number("TSNODE_TEST_CORRUPTIONS", 20);
    (1..=places).for_each(|place| damage_in_place(&damaged, all / (places + 1) * place));
    // By its name, as the swarm has it: the hub is not asked.
    let mut d = Peer::start(&place("d"), &["--memory", "256MiB", "--invite", &invite, "--model", NAME]);
    let view = d.until("it has what it serves", has_its_layers).await;
    let came = fetched(&view);
    println!("{all} bytes: {came} came");
    files_equal(&model, &place("d"));
    assert!(came > all && came <= all + STREAMS * CHUNK, "{came} of {all}: of the liar a chunk a stream and no more");
    assert!(d.log().contains("gave weights that are not what their hash says"), "{}", d.log());
    d.kill().await;
    a.kill().await;
    for peer in others {
        peer.kill().await;
    }
}

/// A bit of a file is another, as on a bad disk: its size and times stay.
fn damage_in_place(path: &Path, at: u64) {
    use std::os::unix::fs::FileExt as _;
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

/// Every file of the index and of the history cut or overwritten: the peer is up within its usual time and 5 s, with the same model,
/// and keeps a history.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_be_spared_costs_a_moment_where_it_is_damaged() {
    // It measures how long a start takes.
    let _turn = common::turn().await;
    let home = tempfile::tempdir().unwrap();
    let model = model(home.path());
    let data = home.path().join("a");
    let words = ["--private", "--memory", "256MiB", "--model", model.to_str().unwrap()];
    let id = |view: &Value| view["models"][0]["id"].as_str().unwrap().to_owned();
    // Measures the host.
    let mut first = Peer::start(&data, &words);
    let expected = id(&first.until("it lends", is_lent).await);
    first.works().await;
    first.kill().await;
    let begun = Instant::now();
    let mut usual = Peer::start(&data, &words);
    usual.until("it lends", is_lent).await;
    usual.kill().await;
    let usual = begun.elapsed();
    let (damages, mut draw) = (number("TSNODE_TEST_DAMAGES", 4), SplitMix64(number("TSNODE_SEED", 41)));
    let mut longest = Duration::ZERO;
    for way in 0..damages {
        let mut files = Vec::new();
        ["weights.index", "history"].iter().for_each(|folder| files_below(&data.join(folder), &mut files));
        let file = files[draw.below(files.len() as u64) as usize].clone();
        let mut bytes = fs::read(&file).unwrap();
        let at = draw.below(bytes.len() as u64) as usize;
        match way % 4 {
            0 => bytes.truncate(at),
            1 => bytes[at..].iter_mut().take(512).for_each(|byte| *byte = draw.next() as u8),
            2 => bytes[at..].iter_mut().take(4096).for_each(|byte| *byte = 0),
            _ => bytes[at] ^= 1 << draw.below(8),
        }
        fs::write(&file, bytes).unwrap();
        let begun = Instant::now();
        let mut peer = Peer::start(&data, &words);
        assert_eq!(id(&peer.until("it lends", is_lent).await), expected, "damage {way} of {}", file.display());
        longest = longest.max(begun.elapsed());
        assert!(
            begun.elapsed() < usual + Duration::from_secs(5),
            "damage {way}: {:?}, usual {usual:?}",
            begun.elapsed()
        );
        peer.works().await;
        peer.kill().await;
    }
    println!("{damages} damages: up within {longest:.1?}, {usual:.1?} as a rule");
}

fn files_below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        match entry.path() {
            path if path.is_dir() => files_below(&path, found),
            path if entry.metadata().unwrap().len() > 0 => found.push(path),
            _ => {}
        }
    }
}
