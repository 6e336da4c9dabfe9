//! Damaged files and full disks, on real processes: a peer is never in another swarm than its own, never another peer without a
//! word, and never hangs; what was damaged stays to be looked at.
//!
//! `TSNODE_TEST_DAMAGES=50` damages each file fifty times; by itself five times, once in each way.
#![expect(clippy::unwrap_used, reason = "a peer that cannot be had fails the test")]

mod common;

use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tsnode::store::{Store, identity::Identity, invites, keys};
use tsnode_protocol::{
    Epoch, PeerId, RequestId, Secret, SwarmId, Term, codec, ledger,
    response_log::{Fingerprint, Record, ResponseLogHead},
};

/// How long a peer may take to serve or to refuse: what takes longer hangs.
const LONG: Duration = Duration::from_secs(20);
/// Damages of each file and their seed.
const DAMAGES: usize = 5;
const SEED: u64 = 36;

/// A generator that gives the same damages everywhere (`SplitMix64`).
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// What becomes of a file: it is cut, a bit of it flips, it is emptied, it is noise, a block of it is zeros.
fn damaged(whole: &[u8], way: usize, draw: &mut SplitMix64) -> Vec<u8> {
    loop {
        let mut bytes = whole.to_vec();
        let at = draw.below(whole.len());
        match way % 5 {
            0 => bytes.truncate(at),
            1 => bytes[at] ^= 1 << draw.below(8),
            2 => bytes.clear(),
            3 => bytes.iter_mut().for_each(|b| *b = draw.next() as u8),
            _ => {
                let end = (at + 1 + draw.below(512)).min(bytes.len());
                bytes[at..end].fill(0);
            }
        }
        // A line's end is no loss to a text.
        if bytes.trim_ascii_end() != whole.trim_ascii_end() {
            return bytes;
        }
    }
}

fn damages() -> usize {
    std::env::var("TSNODE_TEST_DAMAGES").ok().and_then(|n| n.parse().ok()).unwrap_or(DAMAGES)
}

/// A `tsnode` that knows nothing but what it is told here.
fn tsnode(home: &Path, limit: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("trap '' XFSZ; {limit}; exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_tsnode")]);
    for name in ["HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"] {
        command.env(name, home);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// What became of a start.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Came {
    /// It serves: who it says it is, and where.
    Up { me: String, swarm: String, private: bool },
    /// It has ended by itself, with this code.
    Refused(i32),
}

/// A gateway on a data folder, killed when it is dropped.
struct Peer {
    child: Child,
    folder: PathBuf,
    said: Arc<Mutex<String>>,
    client: reqwest::Client,
}

impl Peer {
    fn start(home: &Path, folder: &Path, flags: &[&str], limit: &str) -> Self {
        fs::remove_file(folder.join("http.addr")).ok();
        let mut command = tsnode(home, limit);
        command.args(["join", "--no-model", "--mdns=false", "--http", "127.0.0.1:0", "--listen", "127.0.0.1:0"]);
        command.arg("--data-dir").arg(folder).args(flags).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // Through a pipe: a file's growth is limited, too.
        let (said, errors) = (Arc::new(Mutex::new(String::new())), child.stderr.take().unwrap());
        let ear = said.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                ear.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        Self { child, folder: folder.to_owned(), said, client: reqwest::Client::new() }
    }

    fn token(&self) -> String {
        fs::read_to_string(self.folder.join("http.token")).unwrap_or_default().trim().to_owned()
    }

    fn url(&self, path: &str) -> Option<String> {
        let at = fs::read_to_string(self.folder.join("http.addr")).ok()?;
        at.ends_with('\n').then(|| format!("http://{}{path}", at.trim()))
    }

    async fn view(&self) -> Option<Value> {
        let request = self.client.get(self.url("/api/swarm")?).bearer_auth(self.token());
        let answer = request.timeout(Duration::from_secs(2)).send().await.ok()?;
        answer.json().await.ok().filter(|view: &Value| view["me"].is_string())
    }

    /// Waits until it serves or has ended.
    async fn came(&mut self) -> Came {
        let deadline = Instant::now() + LONG;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Came::Refused(status.code().unwrap_or(-1));
            }
            if let Some(view) = self.view().await {
                let text = |name: &str| view[name].as_str().unwrap().to_owned();
                return Came::Up { me: text("me"), swarm: text("swarm"), private: view["private"] == true };
            }
            assert!(Instant::now() < deadline, "it hangs: {}", self.said());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until a file is there.
    async fn writes(&self, name: &str) {
        let deadline = Instant::now() + LONG;
        while !self.folder.join(name).exists() {
            assert!(Instant::now() < deadline, "no {name}: {}", self.said());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// All that it says until it is killed now, or has ended.
    fn last_words(mut self) -> String {
        self.child.kill().ok();
        self.child.wait().ok();
        // The ear hears the end of the pipe.
        let deadline = Instant::now() + LONG;
        while Arc::strong_count(&self.said) > 1 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.said()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A data folder with everything in it, of a peer of a private swarm that has been killed.
struct Golden {
    home: TempDir,
    folder: PathBuf,
    files: Vec<(String, Vec<u8>)>,
    /// As it was.
    was: Came,
}

impl Golden {
    async fn make() -> Self {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("data");
        let mut peer = Peer::start(home.path(), &folder, &["--private"], "true");
        let was = peer.came().await;
        let Came::Up { swarm, private: true, .. } = &was else { panic!("{was:?}: {}", peer.said()) };
        peer.writes("invite").await;
        drop(peer);
        keys::add(&folder, "bob", keys::KeyScope::Inference).unwrap();
        let counted = invites::make(&folder, invites::LASTS, Some(2)).unwrap();
        let door = invites::Invites::new(&folder, swarm.parse::<SwarmId>().unwrap(), Some(Secret([7; 32])));
        assert!(door.admit(counted.id, PeerId([5; 32])).is_some());
        let store = Store::open(&folder).unwrap();
        store.set_paused(true);
        store.set_known(swarm.parse().unwrap(), &["/ip4/192.0.2.1/tcp/1".to_owned()]);
        assert!(store.set_endorsed(Epoch(7), Term(1)));
        let begin = |n: u8| {
            let head = ResponseLogHead { request: RequestId([n; 16]), asked: Fingerprint([1; 32]) };
            codec::encode(&Record::Begin { head, gateway: PeerId([2; 32]), at: 1 })
        };
        store.open_response_log(|_| {}).unwrap().append((0..9).map(begin)).unwrap();
        drop(store);
        for (name, content) in [("join.log", "a line\n"), ("http.addr", "127.0.0.1:1\n"), ("http.token", "tsl-old\n")] {
            fs::write(folder.join(name), content).unwrap();
        }
        let files = files_in(&folder);
        Self { home, folder, files, was }
    }

    /// As a version before would have left it: a bare key, and no copy of what is remembered.
    fn of_before(&mut self) {
        let seed = Identity::load_or_create(&self.folder).unwrap().signing.to_bytes();
        let mut state = ledger::HEADER.to_vec();
        let whole = fs::read(self.folder.join("state.log")).unwrap();
        for record in ledger::read(&whole).unwrap().records {
            let is_new = [&b"edition"[..], b"peer", b"joining"].iter().any(|name| record[2..].starts_with(name));
            if !is_new {
                ledger::push(&mut state, record).unwrap();
            }
        }
        self.files.retain(|(name, _)| name != "state.copy");
        for (name, bytes) in &mut self.files {
            match name.as_str() {
                "identity.key" => *bytes = seed.to_vec(),
                "state.log" => *bytes = state.clone(),
                _ => {}
            }
        }
    }

    fn file(&self, name: &str) -> &[u8] {
        &self.files.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no {name}")).1
    }

    /// An empty folder. Who was killed may have left a process that opens the index of weights to see whether it can be, and makes the
    /// folder for that: it ends by itself.
    fn empty(&self) {
        let began = Instant::now();
        let emptied = || fs::remove_dir_all(&self.folder).and_then(|()| fs::create_dir(&self.folder));
        while let Err(error) = emptied() {
            assert!(began.elapsed() < Duration::from_secs(10), "{error}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Puts all back as it was, but for these.
    fn with(&self, broken: &[(&str, Vec<u8>)]) {
        self.empty();
        for (name, bytes) in &self.files {
            let bytes = broken.iter().find(|(n, _)| n == name).map_or(bytes, |(_, bytes)| bytes);
            let path = self.folder.join(name);
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        }
    }

    /// Damages some files in the same way, once for each of the damages, and starts the peer `times` times; hands all to `check`.
    async fn damage(&self, names: &[&str], times: usize, check: impl Fn(&Self, &[(&str, Vec<u8>)], &Came, &str)) {
        for n in 0..damages() {
            let mut draw = SplitMix64(SEED ^ ((n as u64) << 8) ^ names.concat().len() as u64);
            let broken: Vec<_> = names.iter().map(|name| (*name, damaged(self.file(name), n, &mut draw))).collect();
            self.with(&broken);
            for start in 0..times {
                let mut peer = Peer::start(self.home.path(), &self.folder, &[], "true");
                let came = peer.came().await;
                let said = peer.last_words();
                let what = format!("{names:?}, damage {n}, start {start}: {came:?}\n{said}");
                assert!(came == self.was || matches!(came, Came::Refused(5 | 10)), "{what}");
                if let Came::Refused(_) = came {
                    assert!(said.lines().last().is_some_and(|line| line.starts_with("tsnode: ")), "{what}");
                }
                if start == 0 {
                    check(self, &broken, &came, &what);
                }
            }
        }
    }

    /// Whether a damaged file is there still, under its own name or aside.
    fn keeps(&self, (name, bytes): &(&str, Vec<u8>)) -> bool {
        let is_it = |found: &(String, Vec<u8>)| found.0.starts_with(name) && found.1 == *bytes;
        bytes.is_empty() || files_in(&self.folder).iter().any(is_it)
    }
}

fn files_in(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    entries.map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&path).unwrap())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_moves_no_peer_to_another_swarm_and_makes_it_nobody_else() {
    let _turn = common::turn().await;
    let golden = Golden::make().await;

    // Its key cannot be made again: it is refused, left as it is, and what to do is said.
    let key = |golden: &Golden, broken: &[(&str, Vec<u8>)], came: &Came, what: &str| {
        assert!(*came == Came::Refused(10) && what.contains("restore it from a copy"), "{what}");
        assert_eq!(fs::read(golden.folder.join("identity.key")).unwrap(), broken[0].1, "{what}");
    };
    golden.damage(&["identity.key"], 1, key).await;

    // What it remembers is had twice: one file or the other costs nothing, and is said.
    for name in ["state.log", "state.copy"] {
        let told = |golden: &Golden, broken: &[(&str, Vec<u8>)], came: &Came, what: &str| {
            assert!(*came == golden.was && what.contains(&format!("/{name}")), "{what}");
            assert!(!what.contains("kept=") || golden.keeps(&broken[0]), "{what}");
            assert!(Store::open(&golden.folder).unwrap().paused(), "{what}");
        };
        golden.damage(&[name], 2, told).await;
    }
    // Both: then it may not know where it belongs, and goes nowhere, however often it is started.
    let lost = |golden: &Golden, broken: &[(&str, Vec<u8>)], came: &Came, what: &str| {
        assert!(*came == golden.was || what.contains("tsnode join --invite -"), "{what}");
        assert!(!what.contains("kept=") || broken.iter().any(|one| golden.keeps(one)), "{what}");
    };
    golden.damage(&["state.log", "state.copy"], 3, lost).await;

    // Who may ask cannot be guessed: nobody, until the owner has seen to it.
    let keys = |golden: &Golden, broken: &[(&str, Vec<u8>)], came: &Came, what: &str| {
        // Unless its checksum alone is lost.
        if !keys::read(&golden.folder).is_ok_and(|keys| keys[0].name == "bob") {
            assert!(*came == Came::Refused(5) && what.contains("keys.json"), "{what}");
            assert!(what.contains("tsnode keys add") && golden.keeps(&broken[0]), "{what}");
        }
    };
    golden.damage(&["keys.json"], 1, keys).await;

    // Invites are made again.
    let invites = |golden: &Golden, broken: &[(&str, Vec<u8>)], came: &Came, what: &str| {
        assert!(*came == golden.was && what.contains("invites.json") && what.contains("invites-used.json"), "{what}");
        assert!(broken.iter().all(|one| golden.keeps(one)), "{what}");
    };
    golden.damage(&["invites.json", "invites-used.json"], 1, invites).await;

    // The rest is written anew at a start, or is worth little.
    let rest = ["response.log", "invite", "http.addr", "http.token", "lock", "join.log"];
    golden.damage(&rest, 1, |golden, _, came, what| assert_eq!(*came, golden.was, "{what}")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_to_what_a_version_before_has_left_leads_to_no_other_swarm_either() {
    let _turn = common::turn().await;
    let mut golden = Golden::make().await;
    golden.of_before();
    let key = |golden: &Golden, broken: &[(&str, Vec<u8>)], came: &Came, what: &str| {
        assert!(*came == Came::Refused(10) && what.contains("restore it from a copy"), "{what}");
        assert_eq!(fs::read(golden.folder.join("identity.key")).unwrap(), broken[0].1, "{what}");
    };
    golden.damage(&["identity.key"], 1, key).await;
    let lost = |golden: &Golden, _: &[(&str, Vec<u8>)], came: &Came, what: &str| {
        assert!(*came == golden.was || what.contains("tsnode join --invite -"), "{what}");
    };
    golden.damage(&["state.log"], 2, lost).await;

    // Undamaged it is taken over as it is: its key gets a checksum, its notes a copy.
    golden.with(&[]);
    let mut peer = Peer::start(golden.home.path(), &golden.folder, &[], "true");
    assert_eq!(peer.came().await, golden.was, "{}", peer.said());
    assert!(golden.folder.join("state.copy").exists());
    assert!(fs::read(golden.folder.join("identity.key")).unwrap().starts_with(&ledger::HEADER));
}

/// A disk with so much room, if this user may have one.
struct SmallDisk(PathBuf);

/// Its size (KiB): the index of weights alone takes 512.
const DISK: usize = 4096;

impl SmallDisk {
    fn make(folder: &Path, kib: usize) -> Option<Self> {
        fs::create_dir_all(folder).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={kib}k"), "tmpfs"]).arg(folder).stderr(Stdio::null());
        mount.status().is_ok_and(|s| s.success()).then(|| Self(folder.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(&self.0).stderr(Stdio::null()).status().ok();
    }
}

/// A newcomer whose invite is for one, and whose disk refuses at one point or another: whatever it has come to when it is killed, it
/// starts again with the same words when there is room, is the peer it was, and is in that swarm from then on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newcomer_that_is_killed_on_a_full_disk_can_start_again() {
    let _turn = common::turn().await;
    let home = tempfile::tempdir().unwrap();
    let founding = home.path().join("founder");
    let mut founder = Peer::start(home.path(), &founding, &["--private"], "true");
    let Came::Up { swarm: there, .. } = founder.came().await else { panic!("{}", founder.said()) };
    founder.writes("invite").await;
    let aside = home.path().join("aside");
    fs::create_dir(&aside).unwrap();
    // Files may not grow at all, or to half a KiB or one; or the disk has so many free pages.
    let mut rooms: Vec<(String, Option<usize>)> = (0..3).map(|n| (format!("ulimit -f {n}"), None)).collect();
    rooms.extend((0..12).map(|pages| ("true".to_owned(), Some(pages))));
    for (n, (limit, pages)) in rooms.into_iter().enumerate() {
        let folder = home.path().join(format!("newcomer{n}"));
        let disk = pages.map(|_| SmallDisk::make(&folder, DISK));
        if disk.as_ref().is_some_and(Option::is_none) {
            println!("skipped: this user may mount nothing");
            return;
        }
        if let Some(pages) = pages {
            // A filler that leaves so many pages of four KiB.
            let filler = folder.join("filler");
            fs::write(&filler, vec![1; (DISK << 10) + 1]).unwrap_err();
            let size = fs::metadata(&filler).unwrap().len();
            File::options().write(true).open(&filler).unwrap().set_len(size - pages as u64 * 4096).unwrap();
        }
        let mut made = tsnode(home.path(), "true");
        let made = made.args(["invite", "--uses", "1", "--data-dir"]).arg(&founding).stdout(Stdio::piped());
        let made = made.output().unwrap();
        let invite = aside.join(format!("invite{n}"));
        fs::write(&invite, made.stdout).unwrap();
        let flags = ["--invite-file", invite.to_str().unwrap()];
        let mut first = Peer::start(&aside, &folder, &flags, &limit);
        let came = first.came().await;
        let said = first.last_words();
        match &came {
            Came::Up { swarm, private, .. } => assert!(*private && *swarm == there, "{limit}, {pages:?}: {said}"),
            Came::Refused(5 | 10) => assert!(said.contains("free some space"), "{limit}, {pages:?}: {said}"),
            Came::Refused(_) => panic!("{limit}, {pages:?}: {came:?} {said}"),
        }
        let key = Identity::load(&folder, None).unwrap().map(|identity| identity.peer_id().to_string());
        fs::remove_file(folder.join("filler")).ok();
        for flags in [&flags[..], &[]] {
            let mut again = Peer::start(&aside, &folder, flags, "true");
            let came_again = again.came().await;
            let said = again.last_words();
            let Came::Up { me, swarm, private: true } = came_again else {
                panic!("{limit}, {pages:?}, {flags:?}: {came_again:?} after {came:?}\n{said}")
            };
            assert!(swarm == there && key.as_ref().is_none_or(|key| *key == me), "{limit}, {pages:?}: {said}");
        }
        let left: Vec<String> = files_in(&folder).into_iter().map(|(name, _)| name).collect();
        assert!(!left.iter().any(|name| name.contains("broken")), "{limit}, {pages:?}: {left:?}");
    }
}

#[test]
fn a_key_that_cannot_be_written_leaves_nothing_behind() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("new/data");
    let add = |limit: &str| {
        let mut command = tsnode(home.path(), limit);
        let output = command.args(["keys", "add", "bob", "--data-dir"]).arg(&folder).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for _ in 0..2 {
        let (code, said) = add("ulimit -f 0");
        assert!(code == Some(5) && said.contains("keys.json") && said.contains("free some space"), "{said}");
        assert!(!home.path().join("new").exists(), "no folder is left");
    }
    assert_eq!(add("true").0, Some(0));
    let before = files_in(&folder);
    let mut command = tsnode(home.path(), "ulimit -f 0");
    let output = command.args(["keys", "add", "ann", "--data-dir"]).arg(&folder).output().unwrap();
    assert_eq!(output.status.code(), Some(5));
    assert_eq!(files_in(&folder), before, "no draft is left, and bob's key is");
}
