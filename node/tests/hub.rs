//! Models by name: the real client, in the library and in the program, against a small hub that is broken in every way.
#![expect(clippy::unwrap_used, reason = "a hub that cannot be had fails the test")]

#[path = "hub/double.rs"]
mod double;

use double::{Double, HubFault, TOKEN};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};
use tsnode::hub::{Cache, Hub, HubSettings, HubTimeouts, ModelName, PullNews, PulledModel, Use, find, obtain, pull};
use tsnode_kernels::source::ModelSource;

/// Longest wait for something that should be soon.
const SOON: Duration = Duration::from_secs(60);

/// A hub with a model that is real, and small; and a cache.
struct PulledHub {
    double: Double,
    folder: tempfile::TempDir,
}

fn model_files() -> BTreeMap<&'static str, Vec<u8>> {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/models/gutenberg-tiny");
    let names =
        ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "model.safetensors"];
    names.into_iter().map(|name| (name, fs::read(from.join(name)).unwrap())).collect()
}

/// Bytes that no run of the same would be taken for.
fn noise(bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    blake3::Hasher::new().update(b"noise").finalize_xof().fill(&mut out);
    out
}

impl PulledHub {
    async fn with_model() -> Self {
        let place = Self::empty().await;
        let files = model_files();
        let mut shown: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (*name, bytes.as_slice())).collect();
        shown.push(("README.md", b"about it"));
        place.double.repo("org/tiny", &shown);
        place
    }

    async fn empty() -> Self {
        Self { double: Double::start().await, folder: tempfile::tempdir().unwrap() }
    }

    /// One GGUF file of so many bytes, of which nothing is opened.
    async fn with_gguf(bytes: usize) -> (Self, Vec<u8>) {
        let (place, content) = (Self::empty().await, noise(bytes));
        place.double.repo("org/gguf", &[("m-Q4_K_M.gguf", &content)]);
        (place, content)
    }

    fn variables(&self) -> Vec<(&'static str, String)> {
        vec![
            ("HF_ENDPOINT", self.double.endpoint.clone()),
            ("HF_HOME", self.folder.path().display().to_string()),
            ("HOME", self.folder.path().display().to_string()),
        ]
    }

    fn hub_with(&self, more: &[(&'static str, &str)]) -> Hub {
        let mut variables = self.variables();
        variables.extend(more.iter().map(|(name, value)| (*name, (*value).to_owned())));
        let said = |name: &str| variables.iter().rev().find(|(n, _)| *n == name).map(|(_, value)| value.clone());
        let mut settings = HubSettings::gather(said);
        settings.patience = HubTimeouts {
            silence: Duration::from_millis(500),
            tries: 3,
            first_wait: Duration::from_millis(10),
            longest_wait: Duration::from_secs(5),
        };
        Hub::new(settings).unwrap()
    }

    fn hub(&self) -> Hub {
        self.hub_with(&[])
    }

    fn cache(&self) -> Cache {
        Cache::new(self.folder.path().join("hub"))
    }

    async fn pull(&self, name: &str) -> Result<PulledModel, String> {
        pull_by(&self.hub(), name).await
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tsnode"));
        command.args(words).env_remove("HF_TOKEN").envs(self.variables()).kill_on_drop(true);
        // What came from peers to somebody's own folder is none of these.
        command.env("TSNODE_DATA_DIR", self.folder.path().join("data"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs the program to its end: its code, and what it said.
    async fn run(&self, words: &[&str]) -> (i32, String, String) {
        let done = self.command(words).output().await.unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (done.status.code().unwrap(), text(done.stdout), text(done.stderr))
    }

    /// What lies in the cache below a folder of a repository.
    fn names(&self, repo: &str, folder: &str) -> Vec<String> {
        let path = self.folder.path().join("hub").join(repo).join(folder);
        let mut names: Vec<String> = fs::read_dir(path)
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

async fn pull_by(hub: &Hub, name: &str) -> Result<PulledModel, String> {
    let pulled = pull(hub, &named(name), Use::Keep, &mut |_| ()).await;
    pulled.map_err(|error| {
        let said = error.to_string();
        assert!(!said.contains('\n') && said.len() < 400, "{said}");
        said
    })
}

fn named(name: &str) -> ModelName {
    name.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_comes_whole_once_and_is_called_by_its_name() {
    let place = PulledHub::with_model().await;
    let pulled = place.pull("org/tiny").await.unwrap();
    let bytes: usize = model_files().values().map(Vec::len).sum();
    assert_eq!(
        (pulled.fetched, pulled.model.bytes, place.double.account().0),
        (bytes as u64, bytes as u64, bytes as u64)
    );
    assert_eq!(pulled.licence.as_deref(), Some("apache-2.0"));
    let source = tsnode::node::open_named(&pulled.model.path).unwrap();
    assert_eq!(source.card().name, "org/tiny");
    assert_eq!(source.card().id, ModelSource::embedded().unwrap().card().id);
    // Every blob is called by its hash, every link leads to one.
    assert_eq!(place.names("models--org--tiny", "blobs").len(), model_files().len());
    assert_eq!(place.cache().verify(&named("org/tiny").repo, |_| ()), []);
    assert_eq!(place.names("models--org--tiny", "refs"), ["main"]);
    // Nothing comes twice; to serve it, nothing is even asked.
    assert_eq!(place.pull("org/tiny").await.unwrap().fetched, 0);
    assert_eq!(place.double.account().0, 0);
    let served = obtain(&place.hub(), &named("org/tiny"), &mut |_| ()).await.unwrap();
    assert_eq!(served.path, pulled.model.path);
    assert!(place.double.account().1.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_commit_shares_what_did_not_change() {
    let place = PulledHub::with_model().await;
    let first = place.pull("org/tiny").await.unwrap().model;
    let mut files = model_files();
    files.insert("generation_config.json", b"{\"temperature\": 0.5}".to_vec());
    let shown: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (*name, bytes.as_slice())).collect();
    place.double.repo("org/tiny", &shown);
    let second = place.pull("org/tiny").await.unwrap();
    assert_eq!(second.fetched, 20, "the one file that is new");
    assert_ne!(second.model.commit, first.commit);
    // The old one is still there by its commit.
    let old = ModelName { revision: first.commit.clone(), ..named("org/tiny") };
    assert_eq!(find(&place.cache(), &old).unwrap().path, first.path);
    assert_eq!(find(&place.cache(), &named("org/tiny")).unwrap().path, second.model.path);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_breaks_goes_on_where_it_broke() {
    let (place, content) = PulledHub::with_gguf(300_000).await;
    // More often than is tried in a row: each time something came.
    for after in [50_000, 60_000, 1, 30_000, 70_000] {
        place.double.fail("m-Q4_K_M.gguf", HubFault::Break(after), 1);
    }
    let pulled = place.pull("org/gguf:Q4_K_M").await.unwrap();
    assert_eq!(fs::read(&pulled.model.path).unwrap(), content);
    let (sent, heard) = place.double.account();
    assert!(sent < 300_000 + 6 * 16_384, "{sent} bytes were sent");
    let ranges: Vec<&str> = heard.iter().filter_map(|heard| heard.range.as_deref()).collect();
    assert!(ranges.len() >= 5, "{ranges:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_never_comes_is_given_up_and_gone_on_with_later() {
    let (place, content) = PulledHub::with_gguf(200_000).await;
    place.double.fail("m-Q4_K_M.gguf", HubFault::Break(80_000), 1);
    place.double.fail("m-Q4_K_M.gguf", HubFault::Break(0), 50);
    let said = place.pull("org/gguf").await.unwrap_err();
    assert!(said.contains("m-Q4_K_M.gguf broke off at 0.1 MiB of 0.2 MiB"), "{said}");
    // Nothing half-written counts.
    assert!(find(&place.cache(), &named("org/gguf")).is_none() && place.cache().models().is_empty());
    place.double.mend();
    place.double.account();
    let pulled = place.pull("org/gguf").await.unwrap();
    assert_eq!((pulled.fetched, fs::read(&pulled.model.path).unwrap() == content), (120_000, true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_is_a_break_and_slowness_is_not() {
    let (place, content) = PulledHub::with_gguf(100_000).await;
    place.double.fail("m-Q4_K_M.gguf", HubFault::Stall, 2);
    place.double.fail("m-Q4_K_M.gguf", HubFault::Slow(Duration::from_millis(50)), 1);
    let pulled = place.pull("org/gguf").await.unwrap();
    assert_eq!(fs::read(&pulled.model.path).unwrap(), content);
    assert_eq!(pulled.fetched, 100_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_ranges_begins_anew() {
    let (place, content) = PulledHub::with_gguf(100_000).await;
    place.double.fail("m-Q4_K_M.gguf", HubFault::Break(40_000), 1);
    place.double.fail("m-Q4_K_M.gguf", HubFault::NoRanges, 1);
    let (mut shown, mut lost) = (0, 0);
    let mut news = |news: PullNews<'_>| match news {
        PullNews::Came(bytes) | PullNews::Here(bytes) => shown += bytes,
        PullNews::Lost(bytes) => lost += bytes,
        _ => {}
    };
    let pulled = pull(&place.hub(), &named("org/gguf"), Use::Serve, &mut news).await.unwrap();
    assert_eq!(fs::read(&pulled.model.path).unwrap(), content);
    assert_eq!((shown - lost, lost), (100_000, 40_000), "what is shown ends at the whole");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_bytes_are_thrown_away() {
    let (place, content) = PulledHub::with_gguf(100_000).await;
    place.double.fail("m-Q4_K_M.gguf", HubFault::Wrong, 1);
    let said = place.pull("org/gguf").await.unwrap_err();
    assert!(said.contains("another hash than the hub says"), "{said}");
    assert!(place.names("models--org--gguf", "blobs").is_empty(), "nothing of it is kept");
    // The half of another file under the right name, as a machine that fell over may leave it.
    let hash = {
        place.pull("org/gguf").await.unwrap();
        place.names("models--org--gguf", "blobs")[0].clone()
    };
    fs::remove_dir_all(place.folder.path().join("hub")).unwrap();
    let blobs = place.folder.path().join("hub/models--org--gguf/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(format!("{hash}.incomplete")), vec![7; 50_000]).unwrap();
    let pulled = place.pull("org/gguf").await.unwrap();
    assert_eq!((fs::read(&pulled.model.path).unwrap() == content, pulled.fetched), (true, 150_000));
    // A whole file that was cut since.
    fs::write(blobs.join(&hash), &content[..10]).unwrap();
    fs::remove_file(&pulled.model.path).unwrap();
    assert_eq!(fs::read(place.pull("org/gguf").await.unwrap().model.path).unwrap(), content);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_is_shown_to_the_hub_and_to_nobody_else() {
    let place = PulledHub::with_model().await;
    place.double.gate("org/tiny");
    let said = place.pull("org/tiny").await.unwrap_err();
    assert!(said.contains("org/tiny is gated: accept its terms at http://") && said.contains("HF_TOKEN"), "{said}");
    let said = pull_by(&place.hub_with(&[("HF_TOKEN", "hf_bad")]), "org/tiny").await.unwrap_err();
    assert!(said.contains("the one that is set may not read it") && !said.contains("hf_bad"), "{said}");
    place.double.account();
    let pulled = pull_by(&place.hub_with(&[("HF_TOKEN", TOKEN)]), "org/tiny").await.unwrap();
    assert!(tsnode::hub::is_gated(&pulled.model.path), "it is not given to peers");
    let (_, heard) = place.double.account();
    let (cdn, hub): (Vec<_>, Vec<_>) = heard.iter().partition(|heard| heard.cdn);
    assert!(!cdn.is_empty() && cdn.iter().all(|heard| heard.token.is_none()), "{cdn:?}");
    assert!(hub.iter().all(|heard| heard.token.as_deref() == Some(TOKEN)), "{hub:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_hub_does_not_give_is_said_in_one_line() {
    let place = PulledHub::with_model().await;
    let said = place.pull("org/nothing").await.unwrap_err();
    assert!(said.contains("the hub knows no model org/nothing, or it is private"), "{said}");
    let said = place.pull("org/tiny@v9").await.unwrap_err();
    assert!(said.contains("org/tiny@v9 is not there: the hub has no such revision"), "{said}");
    place.double.fail("tokenizer.json", HubFault::Gone, 1);
    let said = place.pull("org/tiny").await.unwrap_err();
    assert!(said.contains("org/tiny: the hub has no file tokenizer.json"), "{said}");
    place.double.fail("config.json", HubFault::Page, 1);
    place.double.fail("tokenizer.json", HubFault::Page, 1);
    let said = place.pull("org/tiny").await.unwrap_err();
    assert!(said.contains("what answers there is no model hub (it sent a page)"), "{said}");
    place.double.repo("org/bare", &[("config.json", b"{}"), ("model.safetensors", b"x")]);
    let said = place.pull("org/bare").await.unwrap_err();
    assert!(said.contains("org/bare: the hub has no file tokenizer.json"), "{said}");
    assert!(!place.folder.path().join("hub/models--org--bare").exists(), "nothing was fetched for it");
    place.double.repo("org/words", &[("README.md", b"nothing else")]);
    assert!(place.pull("org/words").await.unwrap_err().contains("neither safetensors nor GGUF files"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hub_that_is_busy_is_waited_for_and_one_that_is_no_hub_is_not() {
    let place = PulledHub::with_model().await;
    place.double.fail("", HubFault::TooMany(1), 1);
    place.double.fail("", HubFault::Trouble, 2);
    let began = Instant::now();
    // Three tries in a row are for one question.
    place.double.mend();
    place.double.fail("", HubFault::TooMany(1), 1);
    place.pull("org/tiny").await.unwrap();
    assert!(began.elapsed() >= Duration::from_secs(1), "it did not wait as long as it was told");
    place.double.fail("", HubFault::Trouble, 2);
    assert_eq!(place.pull("org/tiny").await.unwrap().fetched, 0);
    place.double.fail("", HubFault::Trouble, 3);
    assert!(place.pull("org/tiny").await.unwrap_err().contains("the hub answered 503; try again later"));
    place.double.mend();
    place.double.fail("", HubFault::TooMany(3600), 1);
    let said = place.pull("org/tiny").await.unwrap_err();
    assert!(said.contains("takes no more requests for now; ask again in 3600 s"), "{said}");
    place.double.fail("", HubFault::Page, 1);
    assert!(place.pull("org/tiny").await.unwrap_err().contains("no model hub"));
    let nobody = place.hub_with(&[("HF_ENDPOINT", "http://127.0.0.1:1")]);
    let said = pull_by(&nobody, "org/tiny").await.unwrap_err();
    assert!(said.contains("http://127.0.0.1:1: ") && said.contains("HF_HUB_OFFLINE=1"), "{said}");
    // What is here is served all the same.
    assert!(obtain(&nobody, &named("org/tiny"), &mut |_| ()).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offline_means_what_is_here() {
    let place = PulledHub::with_model().await;
    let offline = place.hub_with(&[("HF_HUB_OFFLINE", "1")]);
    let said = pull_by(&offline, "org/tiny").await.unwrap_err();
    assert!(said.contains("org/tiny is not whole in") && said.contains("HF_HUB_OFFLINE"), "{said}");
    let pulled = place.pull("org/tiny").await.unwrap();
    place.double.account();
    assert_eq!(pull_by(&offline, "org/tiny").await.unwrap().model.path, pulled.model.path);
    assert!(place.double.account().1.is_empty(), "the network was asked");
    fs::remove_file(pulled.model.path.join("tokenizer.json")).unwrap();
    let said = pull_by(&offline, "org/tiny").await.unwrap_err();
    assert!(said.contains("(tokenizer.json is missing)"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_would_lie_elsewhere_are_refused() {
    for bad in ["../../../evil.json", "/tmp/evil.json", "a/../../evil.json", "a\\evil.json"] {
        let place = PulledHub::empty().await;
        let files = model_files();
        let mut shown: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (*name, bytes.as_slice())).collect();
        shown.push((bad, b"evil"));
        place.double.repo("org/evil", &shown);
        let said = place.pull("org/evil").await.unwrap_err();
        assert!(said.contains("which no file of a repository is"), "{said}");
        assert!(!place.folder.path().join("hub").exists(), "nothing was written");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_to_nothing_are_mended() {
    let place = PulledHub::with_model().await;
    let pulled = place.pull("org/tiny").await.unwrap();
    let pointer = pulled.model.path.join("config.json");
    fs::remove_file(pointer.canonicalize().unwrap()).unwrap();
    assert!(find(&place.cache(), &named("org/tiny")).is_none());
    let again = obtain(&place.hub(), &named("org/tiny"), &mut |_| ()).await.unwrap();
    assert_eq!(fs::read(again.path.join("config.json")).unwrap(), model_files()["config.json"]);
    // A link that somebody made to somewhere else is replaced, and what it led to is not touched.
    let other = place.folder.path().join("other");
    fs::remove_file(&pointer).unwrap();
    symlink(&other, &pointer).unwrap();
    place.pull("org/tiny").await.unwrap();
    assert!(!other.exists() && pointer.is_file());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_who_pull_the_same_fetch_it_once() {
    let (place, content) = PulledHub::with_gguf(400_000).await;
    place.double.fail("m-Q4_K_M.gguf", HubFault::Slow(Duration::from_millis(20)), 1);
    let program = || async { place.run(&["models", "pull", "org/gguf", "--json"]).await };
    let (first, second, third) = tokio::join!(program(), program(), place.pull("org/gguf"));
    assert_eq!((first.0, second.0), (0, 0), "{first:?} {second:?}");
    assert_eq!(fs::read(third.unwrap().model.path).unwrap(), content);
    assert_eq!(place.double.sent(), 400_000);
}

/// Starts a pull that is slow, and kills it once so many bytes of the file are on disk.
async fn killed_at(place: &PulledHub, bytes: u64) {
    let mut child: Child = place.command(&["models", "pull", "org/gguf"]).spawn().unwrap();
    let deadline = Instant::now() + SOON;
    let blobs = place.folder.path().join("hub/models--org--gguf/blobs");
    loop {
        let written = fs::read_dir(&blobs).into_iter().flatten().flatten().filter_map(|entry| entry.metadata().ok());
        if written.map(|about| about.len()).sum::<u64>() >= bytes {
            break;
        }
        assert!(Instant::now() < deadline, "{bytes} bytes never came");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    child.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_killed_leaves_nothing_that_counts_and_loses_little() {
    let (place, content) = PulledHub::with_gguf(600_000).await;
    place.double.fail("m-Q4_K_M.gguf", HubFault::Slow(Duration::from_millis(5)), 50);
    for at in [50_000, 200_000, 350_000] {
        killed_at(&place, at).await;
        assert!(find(&place.cache(), &named("org/gguf")).is_none());
        let (code, listed, _) = place.run(&["models", "list"]).await;
        assert!(code == 0 && listed.contains("no model is in"), "{listed}");
    }
    let (code, said, error) = place.run(&["models", "pull", "org/gguf", "--json"]).await;
    assert_eq!(code, 0, "{error}");
    let said: Value = serde_json::from_str(&said).unwrap();
    assert!(said["fetched"].as_u64().unwrap() <= 250_000, "{said}");
    assert_eq!(fs::read(said["path"].as_str().unwrap()).unwrap(), content);
    let sent = place.double.sent();
    // What was on its way to a process that died comes again: at most what sockets hold.
    assert!(sent < 600_000 + 3 * 300_000, "{sent} bytes were sent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_program_keeps_the_cache() {
    let place = PulledHub::with_model().await;
    place.double.repo("org/more", &[("m-Q4_K_M.gguf", &noise(1000)), ("m-Q8_0.gguf", &noise(2000))]);
    let (code, said, error) = place.run(&["models", "pull", "org/tiny"]).await;
    assert!(code == 0 && said.contains("serve it with: tsnode join --model org/tiny"), "{said}{error}");
    place.run(&["models", "pull", "org/more:Q8_0"]).await;
    let (_, listed, _) = place.run(&["models", "list"]).await;
    assert!(
        listed.contains("org/tiny ") && listed.contains("org/more:Q8_0 ") && !listed.contains("Q4_K_M"),
        "{listed}"
    );
    assert_eq!(listed.matches("apache-2.0").count(), 2, "{listed}");
    let whole = find(&place.cache(), &named("org/tiny")).unwrap();
    let origin = tsnode::hub::origin_of(&whole.path).unwrap();
    assert_eq!(origin.source, format!("org/tiny@{}", whole.commit));
    assert_eq!(origin.licence.as_deref(), Some("apache-2.0"));
    let (code, said, _) = place.run(&["models", "verify"]).await;
    assert!(code == 0 && said.contains("2 repositories: every file is what its name says"), "{said}");
    let config = find(&place.cache(), &named("org/tiny")).unwrap().path.join("config.json").canonicalize().unwrap();
    fs::write(&config, "{}").unwrap();
    let (code, said, error) = place.run(&["models", "verify", "org/tiny"]).await;
    assert!(code == 6 && said.contains("it is not what its name says") && error.contains("--remove"), "{said}{error}");
    assert_eq!(place.run(&["models", "verify", "--remove"]).await.0, 6);
    let (code, said, _) = place.run(&["models", "pull", "org/tiny", "--json"]).await;
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, said["fetched"].as_u64()), (0, Some(model_files()["config.json"].len() as u64)));
    assert_eq!(place.run(&["models", "verify"]).await.0, 0);
    let (code, said, _) = place.run(&["models", "rm", "org/more:Q8_0"]).await;
    assert!(code == 0 && said.contains("org/more:Q8_0 is removed"), "{said}");
    let (code, _, error) = place.run(&["models", "rm", "org/more:Q8_0"]).await;
    assert!(code == 6 && error.contains("is not in"), "{error}");
    let (code, said, _) = place.run(&["models", "search", "more"]).await;
    assert!(code == 0 && said.contains("org/more"), "{said}");
    // The catalogue is there without a hub.
    let alone = place.command(&["models", "search", "llama", "1b"]).env("HF_ENDPOINT", "http://127.0.0.1:1").output();
    let alone = alone.await.unwrap();
    assert!(alone.status.success() && String::from_utf8(alone.stdout).unwrap().contains("llama3.2:1b"));
    let (code, _, error) = place.run(&["models", "pull", "../../etc"]).await;
    assert!(code == 2 && error.contains("names no model") && error.lines().count() == 1, "{error}");
    let (code, _, error) = place.run(&["models", "pull", "llama3.2:1c"]).await;
    assert!(code == 2 && error.contains("did you mean llama3.2:1b?"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_fetches_what_it_is_told_to_serve() {
    let place = PulledHub::with_model().await;
    let data = place.folder.path().join("data");
    let flags = ["--data-dir", data.to_str().unwrap(), "--http", "0", "--listen", "127.0.0.1:0", "--mdns=false"];
    let words = [&["join", "--model", "org/tiny", "--private", "--memory", "64MiB"], &flags[..]].concat();
    let mut peer = place.command(&words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let client = reqwest::Client::builder().timeout(SOON).build().unwrap();
    let deadline = Instant::now() + SOON;
    let models = loop {
        assert!(Instant::now() < deadline && peer.try_wait().unwrap().is_none(), "it does not serve");
        let address = fs::read_to_string(data.join("http.addr")).unwrap_or_default();
        let answer = client.get(format!("http://{}/v1/models", address.trim())).send().await;
        if let Ok(answer) = answer
            && let Ok(models) = answer.json::<Value>().await
            && models["data"][0]["id"].is_string()
        {
            break models;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert_eq!(models["data"][0]["id"], "org/tiny", "{models}");
    peer.kill().await.unwrap();
    let absent =
        place.run(&["join", "--model", "org/nothing", "--private", "--data-dir", data.to_str().unwrap()]).await;
    assert!(absent.0 == 6 && absent.2.lines().count() == 1 && absent.2.contains("org/nothing"), "{}", absent.2);
}

/// Serves until it is killed, for `scripts/hub_client.py`: the real client of the hub is held against it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "serves until it is killed"]
async fn serve() {
    let double = Double::start_at(&std::env::var("HUB_DOUBLE_AT").unwrap()).await;
    let files = model_files();
    let shown: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (*name, bytes.as_slice())).collect();
    double.repo("org/tiny", &shown);
    double.repo("org/gated", &shown);
    double.gate("org/gated");
    let large = noise(3_000_000);
    double.repo("org/gguf", &[("m-Q4_K_M.gguf", &large), ("m-Q8_0.gguf", &large[1..])]);
    println!("serving at {}", double.endpoint);
    std::future::pending::<()>().await;
}
