//! What a data folder holds, as a disk that went bad or somebody who mends by hand may leave it: keys, invites and who came with
//! them, and the notes of what a peer remembers.

#![expect(clippy::unwrap_used, reason = "a fuzz target says what is wrong by failing")]

use crate::{
    invites, keys,
    store::{Measured, Store},
};
use std::path::Path;
use tsnode_protocol::{InviteId, LayerProfile, ModelId, PeerId, Secret, SwarmId, ledger};

/// Files, by the first byte of an input; behind them the notes of `state.log`, each by its name.
const FILES: [&str; 5] = [keys::KEYS_FILE, invites::INVITES_FILE, "invites-used.json", STATE, COPY];
const STATE: &str = "state.log";
const COPY: &str = "state.copy";
const NOTES: [&str; 7] =
    ["probe", "profile m-01010101010101010101010101010101", "swarm", KNOWN, "endorsed", "life", "paused"];
const SWARM: SwarmId = SwarmId([3; 16]);
const KNOWN: &str = "known sw-03030303030303030303030303030303";
/// Seconds since 1970.
const NOW: u64 = 1_800_000_000;
const INVITE: InviteId = InviteId([5; 8]);

/// Reads bytes as the file or the note that the first of them says. Says whether something was in them.
pub fn kept(bytes: &[u8]) -> bool {
    let Some((kind, content)) = bytes.split_first() else { return false };
    let kind = usize::from(*kind) % (FILES.len() + NOTES.len());
    let folder = folder();
    let (name, content) = match FILES.get(kind) {
        Some(name) => (*name, content.to_vec()),
        None => (STATE, noted(NOTES[kind - FILES.len()], content)),
    };
    std::fs::write(folder.path().join(name), content).unwrap();
    match name {
        keys::KEYS_FILE => keys_in(folder.path()),
        STATE | COPY => remembered(folder.path()),
        _ => invites_in(folder.path()),
    }
}

/// In memory where there is such a folder.
fn folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.unwrap()
}

/// A ledger with one note.
fn noted(key: &str, value: &[u8]) -> Vec<u8> {
    let mut bytes = ledger::HEADER.to_vec();
    let note = [&(key.len() as u16).to_le_bytes(), key.as_bytes(), value].concat();
    // What is too long for a ledger is in none.
    let _ = ledger::push(&mut bytes, &note);
    bytes
}

fn keys_in(folder: &Path) -> bool {
    let Ok(ring) = keys::KeyRing::open(folder, None) else { return false };
    let nobody = keys::read(folder).is_ok_and(|keys| keys.is_empty());
    // Whatever the file says: where there are keys, nobody gets in without one.
    assert_eq!(ring.check(None).is_ok(), nobody);
    assert_eq!(ring.check(Some("tsk-none")).is_ok(), nobody);
    !nobody
}

fn invites_in(folder: &Path) -> bool {
    let (made, used) = (invites::read(folder), invites::used(folder));
    let all = invites::Invites::new(folder, SWARM, Some(Secret([9; 32])));
    let now = invites::unix_now();
    let good = made.iter().flatten().filter(|made| made.is_good(now) && made.ticket().is_some()).count();
    assert_eq!(all.notices().len(), good.min(tsnode_protocol::limits::INVITES));
    assert!(all.key(InviteId([0xee; 8])).is_none(), "an invite that nobody made is good");
    // Counted invites let nobody in when who came cannot be read.
    let counted = made.iter().flatten().find(|made| made.id == INVITE).is_some_and(|made| made.uses.is_some());
    let came = all.admit(INVITE, PeerId([1; 32]));
    assert!(!(counted && used.is_err() && came.is_some()));
    made.is_ok_and(|made| !made.is_empty()) || used.is_ok_and(|used| !used.is_empty())
}

fn remembered(folder: &Path) -> bool {
    let Ok(store) = Store::open(folder) else { return false };
    let profile =
        store.measured(Measured::Profile(MODEL)).and_then(|bytes| serde_json::from_slice::<LayerProfile>(&bytes).ok());
    let plausible = profile.is_some_and(|profile| profile.is_plausible());
    let known = store.known(SWARM);
    assert!(known.iter().all(|address| !address.contains('\n')));
    let swarm = store.swarm();
    if let Ok(Some(belonging)) = &swarm {
        store.set_swarm(belonging).unwrap();
        assert_eq!(store.swarm().unwrap(), Some(*belonging), "a swarm is remembered as another");
    }
    let last = store.endorsed();
    let (life, next) = (store.begin_life(NOW), store.begin_life(0));
    assert!(next > life || life.0 == u32::MAX, "{life:?} is followed by {next:?}");
    let lived = u64::from(life.0) > NOW;
    let said = [plausible, !known.is_empty(), matches!(swarm, Ok(Some(_))), last.is_some(), lived, store.paused()];
    said.contains(&true) || store.measured(Measured::Processor).is_some()
}

/// The model of the profile.
const MODEL: ModelId = ModelId([1; 16]);

const KEYS: &str = r#"[{"name":"bob","scope":"inference","hash":"ab"},
{"name":"ops","scope":"admin","hash":"af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"}]"#;
const PROFILE: &str = r#"{"model":"MODEL","prefill":[0.001,0.0002,0.0],"decode":[0.001,0.0,0.0001],
"prompts":{"r2":0.99,"mean":0.02,"largest":0.1},"steps":{"r2":0.9,"mean":0.1,"largest":0.2},"mixed":{"r2":1.0,"mean":0.0,"largest":0.0}}"#;

/// Files and notes to begin with.
pub fn examples() -> Vec<Vec<u8>> {
    let secret = "07".repeat(32);
    let made = |id: InviteId, uses: &str| {
        format!(r#"{{"id":"{id}","secret":"{secret}","expires":4000000000,"uses":{uses},"revoked":false}}"#)
    };
    let invites = format!("[{},\n{}]", made(INVITE, "2"), made(InviteId([6; 8]), "null"));
    let used = format!(r#"{{"{INVITE}":["{}"]}}"#, PeerId([1; 32]));
    let profile = PROFILE.replace("MODEL", &MODEL.to_string());
    let swarm = format!("{SWARM} {secret}");
    let measured = Measured::Profile(MODEL).to_string();
    let notes = [
        ("probe", b"{}".to_vec()),
        (measured.as_str(), profile.into_bytes()),
        ("swarm", swarm.into_bytes()),
        (KNOWN, b"/ip4/10.0.0.1/tcp/1\n/ip4/10.0.0.2/tcp/1".to_vec()),
        ("endorsed", vec![3; 12]),
        ("life", 2_000_000_000_u32.to_le_bytes().to_vec()),
        ("paused", vec![1]),
    ];
    let state = notes.iter().fold(ledger::HEADER.to_vec(), |mut all, (key, value)| {
        all.extend(&noted(key, value)[ledger::HEADER.len()..]);
        all
    });
    let copied = notes.iter().skip(2).fold(Vec::new(), |mut all, (key, value)| {
        let note = [&(key.len() as u16).to_le_bytes(), key.as_bytes(), value].concat();
        all.extend((note.len() as u32).to_le_bytes());
        all.extend(note);
        all
    });
    let mut copy = ledger::HEADER.to_vec();
    ledger::push(&mut copy, &copied).unwrap();
    let files = [KEYS.as_bytes().to_vec(), invites.into_bytes(), used.into_bytes(), state, copy];
    let all = files.into_iter().chain(notes.map(|(_, value)| value));
    (0_u8..).zip(all).map(|(kind, content)| [vec![kind], content].concat()).collect()
}
