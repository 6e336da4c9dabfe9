//! What a folder remembers, through restarts, damage and older versions.

use super::*;
use super::{copy::COPY_FILE, identity::KEY_FILE, note::note};
use std::path::PathBuf;
use tsnode_protocol::Secret;

fn belonging() -> Belonging {
    Belonging { swarm: SwarmId([3; 16]), secret: Some(Secret([4; 32])) }
}

#[test]
fn one_process_at_a_time_and_what_is_set_stays() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    store.set_swarm(&belonging()).unwrap();
    let second = Store::open(folder.path()).err().unwrap().to_string();
    assert!(second.contains(&std::process::id().to_string()), "{second}");
    drop(store);
    let again = Store::open(folder.path()).unwrap();
    assert_eq!(again.swarm().unwrap(), Some(belonging()));
    let (here, there) = (SwarmId([1; 16]), SwarmId([2; 16]));
    again.set_known(here, &["/ip4/10.0.0.1/tcp/1".into(), "/ip4/10.0.0.2/tcp/1".into()]);
    assert_eq!((again.known(here).len(), again.known(there).len()), (2, 0));
    assert_eq!(again.endorsed(), None);
    assert!(again.set_endorsed(Epoch(300), Term(2)));
    assert_eq!(again.endorsed(), Some((Epoch(300), Term(2))));
    let first = again.begin_life(1_800_000_000);
    assert!(again.begin_life(1_799_990_000) > first);
}

#[test]
fn who_knows_others_is_told_from_who_was_alone() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    assert!(!Store::remembers_peers(&data).unwrap() && !data.exists());
    let store = Store::open(&data).unwrap();
    store.set_swarm(&belonging()).unwrap();
    store.set_known(SwarmId([9; 16]), &["/ip4/10.0.0.1/tcp/1".into()]);
    drop(store);
    assert!(!Store::remembers_peers(&data).unwrap(), "those are of another swarm");
    let store = Store::open(&data).unwrap();
    store.set_known(belonging().swarm, &["/ip4/10.0.0.1/tcp/1".into()]);
    assert!(Store::remembers_peers(&data).is_err(), "another has the folder");
    drop(store);
    assert!(Store::remembers_peers(&data).unwrap());
}

#[test]
fn an_open_swarm_of_an_older_version_goes_on_and_a_private_one_is_joined_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    assert_eq!(store.swarm().unwrap(), None);
    // As version 6 wrote them: version, swarm, secret or none, addresses, checksum.
    let invite = |secret: &[u8]| {
        let bytes = [&[6, 0][..], &[3; 16], secret, &[0, 1, 2, 3, 4]].concat();
        format!("ts1{}", data_encoding::BASE32_NOPAD.encode(&bytes).to_lowercase())
    };
    store.set("swarm", invite(&[0]).as_bytes());
    assert_eq!(store.swarm().unwrap(), Some(Belonging { swarm: SwarmId([3; 16]), secret: None }));
    for text in [invite(&[&[1][..], &[4; 32]].concat()), "ts1".into(), "ts1é".into(), "later words".into()] {
        store.set("swarm", text.as_bytes());
        let error = store.swarm().unwrap_err().to_string();
        assert!(error.contains("tsnode join --invite -"), "{error}");
    }
    store.set_swarm(&belonging()).unwrap();
    assert_eq!(store.swarm().unwrap(), Some(belonging()));
}

#[test]
fn damage_costs_what_it_hits_and_the_peer_starts() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    store.set_swarm(&belonging()).unwrap();
    assert!(store.set_endorsed(Epoch(7), Term(1)));
    store.set_paused(true);
    drop(store);
    let path = folder.path().join(STATE_FILE);
    let whole = fs::read(&path).unwrap();
    for at in (0..whole.len()).step_by(3) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0xFF;
        for content in [&damaged[..], &whole[..at]] {
            fs::write(&path, content).unwrap();
            let store = Store::open(folder.path()).unwrap();
            // The copy has all of it.
            assert_eq!(store.swarm().unwrap(), Some(belonging()), "byte {at}");
            assert!(store.endorsed().is_some() && store.paused(), "byte {at}");
            assert!(store.set_endorsed(Epoch(at as u64), Term(0)));
            drop(store);
            assert_eq!(Store::open(folder.path()).unwrap().endorsed(), Some((Epoch(at as u64), Term(0))), "byte {at}");
        }
    }
}

/// A folder whose peer was in [`belonging`], and in another swarm before, as its files are then.
fn private(folder: &Path) -> [(PathBuf, Vec<u8>); 2] {
    let store = Store::open(folder).unwrap();
    store.set_swarm(&Belonging { swarm: SwarmId([8; 16]), secret: None }).unwrap();
    store.set_swarm(&belonging()).unwrap();
    store.set_known(belonging().swarm, &["/ip4/10.0.0.1/tcp/1".into()]);
    store.set_paused(true);
    fs::write(folder.join(KEY_FILE), "a key").unwrap();
    [STATE_FILE, COPY_FILE].map(|file| (folder.join(file), fs::read(folder.join(file)).unwrap()))
}

#[test]
fn damage_to_one_file_costs_nothing_and_damage_to_both_leads_to_no_other_swarm() {
    let folder = tempfile::tempdir().unwrap();
    let files = private(folder.path());
    let put_back = || files.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    let broken = |whole: &[u8], n: usize| {
        let (mut bytes, at) = (whole.to_vec(), n * 7 % whole.len());
        match n % 4 {
            0 => bytes.truncate(at),
            1 => bytes[at] ^= 1 << (n % 8),
            2 => bytes[at..].fill(0),
            _ => bytes.iter_mut().enumerate().for_each(|(i, b)| *b = blake3::hash(&[i as u8, n as u8]).as_bytes()[0]),
        }
        bytes
    };
    for n in 0..120 {
        for (path, whole) in &files {
            put_back();
            fs::write(path, broken(whole, n)).unwrap();
            let store = Store::open(folder.path()).unwrap();
            assert_eq!(store.swarm().unwrap(), Some(belonging()), "{n}: {}", path.display());
            assert!(store.paused() && store.known(belonging().swarm).len() == 1, "{n}: {}", path.display());
            drop(store);
            // And both are whole again.
            for (other, _) in &files {
                fs::write(other, b"").unwrap();
                assert_eq!(Store::open(folder.path()).unwrap().swarm().unwrap(), Some(belonging()));
            }
        }
        put_back();
        files.iter().for_each(|(path, whole)| fs::write(path, broken(whole, n)).unwrap());
        for start in 0..2 {
            let store = Store::open(folder.path()).unwrap();
            match store.swarm() {
                Ok(swarm) => assert_eq!(swarm, Some(belonging()), "{n}, start {start}"),
                Err(error) => assert!(matches!(error, StoreError::Lost { .. }), "{n}, start {start}: {error}"),
            }
        }
        for entry in fs::read_dir(folder.path()).unwrap().flatten() {
            if entry.file_name().to_string_lossy().contains(".broken") {
                fs::remove_file(entry.path()).unwrap();
            }
        }
    }
}

/// As a version before left it: a key, a ledger, and an invite beside it.
#[test]
fn an_emptied_ledger_without_a_copy_leads_to_no_open_swarm() {
    for (content, ticket, lost) in [
        (&b""[..], true, true),
        (&b""[..], false, true),
        (b"noise", true, true),
        (b"noise", false, true),
        // Cut off where a record ends, which only the invite tells.
        (b"tsnode\0\x01", true, true),
        (b"tsnode\0\x01", false, false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(KEY_FILE), "a key").unwrap();
        fs::write(folder.path().join(STATE_FILE), content).unwrap();
        let ticket = ticket.then_some(tsnode_protocol::Ticket {
            id: tsnode_protocol::InviteId([1; 8]),
            secret: Secret([2; 32]),
            expires: 1,
        });
        let invite = Invite { swarm: belonging().swarm, ticket, addresses: Vec::new() };
        if ticket.is_some() {
            fs::write(folder.path().join(INVITE_FILE), invite.to_string()).unwrap();
        }
        for _ in 0..2 {
            let swarm = Store::open(folder.path()).unwrap().swarm();
            assert_eq!(swarm.is_err(), lost, "{content:?}, {ticket:?}: {swarm:?}");
            if let Err(error) = swarm {
                let said = error.to_string();
                assert!(said.contains("tsnode join --invite -") && said.contains("--data-dir"), "{said}");
                assert_eq!(said.contains(&belonging().swarm.to_string()), ticket.is_some(), "{said}");
            }
        }
        // Until its owner says where it belongs.
        Store::open(folder.path()).unwrap().set_swarm(&belonging()).unwrap();
        assert_eq!(Store::open(folder.path()).unwrap().swarm().unwrap(), Some(belonging()));
    }
}

#[test]
fn an_invite_that_is_being_used_is_remembered_until_its_peer_is_in() {
    let folder = tempfile::tempdir().unwrap();
    let invite = Invite { swarm: belonging().swarm, ticket: None, addresses: Vec::new() };
    let again = || Store::open(folder.path()).unwrap();
    again().set_joining(None).unwrap();
    again().set_joining(Some(&invite)).unwrap();
    assert_eq!(again().joining(), Some(invite.clone()));
    again().set_swarm(&belonging()).unwrap();
    assert_eq!(again().joining(), None);
    let written = fs::read(folder.path().join(STATE_FILE)).unwrap();
    let text = invite.to_string();
    assert!(!written.windows(text.len()).any(|w| w == text.as_bytes()), "nothing of it stays");
}

#[test]
fn a_ledger_of_old_notes_is_written_anew() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    (0..20_000).for_each(|n| store.notes.lock().unwrap().ledger.append([note("endorsed", &[n as u8; 12])]).unwrap());
    let path = folder.path().join(STATE_FILE);
    assert!(fs::metadata(&path).unwrap().len() > 600_000);
    assert!(store.set_endorsed(Epoch(5), Term(0)));
    assert!(fs::metadata(&path).unwrap().len() < 100);
    drop(store);
    assert_eq!(Store::open(folder.path()).unwrap().endorsed(), Some((Epoch(5), Term(0))));
}

#[test]
fn the_response_log_of_the_version_before_is_found_by_its_name_then() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    store.open_response_log(|_| ()).unwrap().append([b"an answer".to_vec()]).unwrap();
    fs::rename(folder.path().join(RESPONSE_LOG_FILE), folder.path().join(FORMER_RESPONSE_LOG_FILE)).unwrap();
    let mut records = Vec::new();
    drop(store.open_response_log(|record| records.push(record.to_vec())).unwrap());
    assert_eq!(records, [b"an answer"]);
    assert!(!folder.path().join(FORMER_RESPONSE_LOG_FILE).exists());
}
