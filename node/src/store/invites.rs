//! Invites to a private swarm: those this peer has made, in a file of its own, and those that others say they have out.
//!
//! `tsnode invite` writes the file and a running peer follows it, so that a ticket's secret crosses no wire before it is
//! given away. Who came with an invite that is counted is written down before the newcomer hears the secret.

use crate::{
    plain, platform,
    store::{disk, ledger::advice, sealed},
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tsnode_protocol::{InviteId, PeerId, Secret, SwarmId, Ticket, TicketKey, TicketNotice, limits};

/// File of the invites made here.
pub const INVITES_FILE: &str = "invites.json";
/// File of who came with those that are counted.
pub(crate) const USED_FILE: &str = "invites-used.json";
/// How long an invite is good unless it is said otherwise.
pub const LASTS: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long one that has ended is shown.
const SHOWN: Duration = Duration::from_secs(24 * 3600);
/// Invites in the file, good or not.
const KEPT: usize = 4 * limits::INVITES;
/// How often the file is looked at for changes.
const LOOK: Duration = Duration::from_secs(1);
/// Largest file that is read.
const FILE_BYTES: u64 = 1 << 20;
/// Newcomers that one invite may be for, where they are counted.
pub const USES: u32 = 4096;
/// Peers whose invites are remembered.
const ISSUERS: usize = 1024;

/// An invite made here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IssuedInvite {
    /// Its name.
    pub id: InviteId,
    /// The ticket's secret (hex).
    secret: String,
    /// When it ends (seconds since 1970).
    pub expires: u64,
    /// How many may come with it; any number where nothing is said.
    pub uses: Option<u32>,
    /// It was taken back.
    pub revoked: bool,
}

impl IssuedInvite {
    /// What it is to be given away as; none where the file was bent.
    #[must_use]
    pub fn ticket(&self) -> Option<Ticket> {
        let secret = data_encoding::HEXLOWER.decode(self.secret.as_bytes()).ok()?;
        Some(Ticket { id: self.id, secret: Secret(secret.try_into().ok()?), expires: self.expires })
    }

    /// Whether it is good still, but for its uses.
    #[must_use]
    pub fn is_good(&self, now: u64) -> bool {
        !self.revoked && now < self.expires
    }
}

/// Why invites cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum InvitesError {
    /// A file cannot be read or written.
    #[error("{}: {}{}", path.display(), plain::io_error(error), advice(error))]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A file holds something else.
    #[error(
        "{path}: {error}; restore it from a copy, or start the peer again: it keeps the file aside, and the invites in it are \
         good no more then"
    )]
    Broken {
        /// Which.
        path: PathBuf,
        /// What was found.
        error: String,
    },
    /// As many as there may be are out.
    #[error("{} invites are out already; revoke one with: tsnode invite revoke ID", limits::INVITES)]
    TooMany,
    /// There is none.
    #[error("no invite {0} was made here; tsnode invite list shows all")]
    Unknown(InviteId),
}

/// Seconds since 1970.
#[must_use]
pub fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// A span of time as people say it.
#[must_use]
pub fn span(seconds: u64) -> String {
    match seconds {
        s if s >= 2 * 86_400 => format!("{} days", s / 86_400),
        s if s >= 2 * 3600 => format!("{} hours", s / 3600),
        s if s >= 120 => format!("{} minutes", s / 60),
        s => format!("{s} s"),
    }
}

/// All invites made in a data folder that have not long been over.
///
/// # Errors
/// When the file cannot be read, or holds something else.
pub fn read(folder: &Path) -> Result<Vec<IssuedInvite>, InvitesError> {
    read_json(&folder.join(INVITES_FILE))
}

/// Who came with which of those that are counted.
///
/// # Errors
/// When the file cannot be read, or holds something else.
pub fn used(folder: &Path) -> Result<BTreeMap<InviteId, BTreeSet<PeerId>>, InvitesError> {
    read_json(&folder.join(USED_FILE))
}

/// Makes an invite.
///
/// # Errors
/// When too many are out, or the file cannot be written.
pub fn make(folder: &Path, lasts: Duration, uses: Option<u32>) -> Result<IssuedInvite, InvitesError> {
    let (mut all, now) = (read(folder)?, unix_now());
    // Those that are over are shown for a while.
    all.retain(|made| now < made.expires.saturating_add(SHOWN.as_secs()));
    if all.iter().filter(|made| made.is_good(now)).count() >= limits::INVITES {
        return Err(InvitesError::TooMany);
    }
    while all.len() >= KEPT
        && let Some(over) = all.iter().position(|made| !made.is_good(now))
    {
        all.remove(over);
    }
    let secret = data_encoding::HEXLOWER.encode(&crate::random_bytes::<32>());
    let expires = now.saturating_add(lasts.as_secs());
    let made = IssuedInvite { id: InviteId(crate::random_bytes()), secret, expires, uses, revoked: false };
    all.push(made.clone());
    write_json(&folder.join(INVITES_FILE), &all)?;
    Ok(made)
}

/// Takes an invite back: within seconds nobody is let in with it. Who came with it stays.
///
/// # Errors
/// When none of that name was made here, or the file cannot be written.
pub fn revoke(folder: &Path, id: InviteId) -> Result<(), InvitesError> {
    let mut all = read(folder)?;
    let made = all.iter_mut().find(|made| made.id == id).ok_or(InvitesError::Unknown(id))?;
    made.revoked = true;
    write_json(&folder.join(INVITES_FILE), &all)
}

fn read_json<T: Default + serde::de::DeserializeOwned>(path: &Path) -> Result<T, InvitesError> {
    let io = |error| InvitesError::Io { path: path.to_owned(), error };
    let size = match fs::metadata(path) {
        Ok(found) => found.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(T::default()),
        Err(error) => return Err(io(error)),
    };
    let broken = |error: String| InvitesError::Broken { path: path.to_owned(), error };
    if size > FILE_BYTES {
        return Err(broken(format!("{size} bytes are no list of invites")));
    }
    sealed::unseal(&fs::read(path).map_err(io)?).map_err(|e| broken(e.to_string()))
}

/// Whole or not at all, for the owner alone.
fn write_json<T: Serialize>(path: &Path, what: &T) -> Result<(), InvitesError> {
    let written = sealed::seal(what).map_err(Into::into).and_then(|bytes| disk::write_whole(path, &bytes));
    written.map_err(|error| InvitesError::Io { path: path.to_owned(), error })
}

/// Has a peer start that cannot read its invites: their files are kept aside, and what was in them is good no more. Where nobody
/// knows any more who came with those that are counted, they are taken back.
///
/// # Errors
/// When the disk refuses.
pub fn set_damaged_aside(folder: &Path) -> Result<(), InvitesError> {
    let aside = |name: &str, lost: &str, error: InvitesError| {
        let path = folder.join(name);
        let kept = disk::move_aside(&path).map_err(|error| InvitesError::Io { path: path.clone(), error })?;
        let InvitesError::Broken { error, .. } = error else { return Err(error) };
        tracing::warn!(file = %path.display(), %error, kept = %kept.display(), "{lost}; make new ones with: tsnode invite");
        Ok(())
    };
    match read(folder) {
        Err(broken @ InvitesError::Broken { .. }) => {
            aside(INVITES_FILE, "the invites made here are lost, and good no more", broken)?;
        }
        outcome => drop(outcome?),
    }
    match used(folder) {
        Err(broken @ InvitesError::Broken { .. }) => {
            let mut all = read(folder)?;
            all.iter_mut().filter(|made| made.uses.is_some()).for_each(|made| made.revoked = true);
            if !all.is_empty() {
                write_json(&folder.join(INVITES_FILE), &all)?;
            }
            aside(USED_FILE, "who came with which invite is lost, and those for so many are taken back", broken)
        }
        outcome => outcome.map(drop),
    }
}

/// The invites a running peer lets newcomers in by. Clones are equal.
#[derive(Clone, Debug)]
pub struct Invites {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    folder: PathBuf,
    swarm: SwarmId,
    /// What a newcomer gets; none in an open swarm.
    secret: Option<Secret>,
    /// Held for a look at the file once a second, and while a newcomer is written down.
    known: Mutex<KnownInvites>,
}

#[derive(Debug, Default)]
struct KnownInvites {
    mine: Vec<IssuedInvite>,
    others: BTreeMap<PeerId, Vec<TicketNotice>>,
    looked: Option<Instant>,
    file: Option<(u64, SystemTime)>,
}

impl Invites {
    /// Those of a data folder, for a swarm.
    #[must_use]
    pub fn new(folder: &Path, swarm: SwarmId, secret: Option<Secret>) -> Self {
        Self { inner: Arc::new(Inner { folder: folder.to_owned(), swarm, secret, known: Mutex::default() }) }
    }

    /// What this peer's advert says of its own.
    #[must_use]
    pub fn notices(&self) -> Vec<TicketNotice> {
        let now = unix_now();
        let notice = |made: &IssuedInvite| {
            let ticket = made.ticket().filter(|_| made.is_good(now))?;
            let (key, counted) = (ticket.key(self.inner.swarm), made.uses.is_some());
            Some(TicketNotice { id: made.id, key, expires: made.expires, counted })
        };
        self.known().mine.iter().filter_map(notice).take(limits::INVITES).collect()
    }

    /// What another's advert says of its own: those it no longer names are good no more.
    pub fn heard<'a>(&self, adverts: impl Iterator<Item = (PeerId, &'a [TicketNotice])>) {
        let mut known = self.known();
        for (peer, notices) in adverts {
            if notices.is_empty() {
                known.others.remove(&peer);
            } else if known.others.len() < ISSUERS || known.others.contains_key(&peer) {
                known.others.insert(peer, notices.to_vec());
            }
        }
    }

    /// How a newcomer proves that it has this one; none where it is not good.
    #[must_use]
    pub fn key(&self, id: InviteId) -> Option<TicketKey> {
        // One that was printed a moment ago is good, and one that was taken back is not.
        let (now, known) = (unix_now(), self.known_now());
        if let Some(made) = known.mine.iter().find(|made| made.id == id) {
            return made.ticket().filter(|_| made.is_good(now)).map(|ticket| ticket.key(self.inner.swarm));
        }
        let notice = known.others.values().flatten().find(|notice| notice.id == id)?;
        (!notice.counted && now < notice.expires).then_some(notice.key)
    }

    /// Lets a newcomer in that has proven the ticket, and writes it down where that is counted.
    #[must_use]
    pub fn admit(&self, id: InviteId, newcomer: PeerId) -> Option<Secret> {
        let known = self.known();
        let made = known.mine.iter().find(|made| made.id == id);
        if let Some(uses) = made.and_then(|made| made.uses) {
            let mut used =
                used(&self.inner.folder).inspect_err(|error| tracing::warn!(%error, "nobody let in")).ok()?;
            let with_it = used.entry(id).or_default();
            if !with_it.contains(&newcomer) && with_it.len() >= uses as usize {
                return None;
            }
            // Who was let in and did not hear of it may ask again.
            if with_it.insert(newcomer) {
                used.retain(|id, _| known.mine.iter().any(|made| made.id == *id));
                let written = write_json(&self.inner.folder.join(USED_FILE), &used);
                written.inspect_err(|error| tracing::warn!(%error, "nobody let in")).ok()?;
            }
        }
        self.inner.secret
    }

    fn known(&self) -> MutexGuard<'_, KnownInvites> {
        let mut known = self.inner.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.looked.is_none_or(|at| at.elapsed() >= LOOK) {
            self.look(&mut known);
        }
        known
    }

    /// The same, with the file looked at whenever it was looked at last.
    fn known_now(&self) -> MutexGuard<'_, KnownInvites> {
        let mut known = self.inner.known.lock().unwrap_or_else(PoisonError::into_inner);
        self.look(&mut known);
        known
    }

    /// Reads the file again, if it is another one.
    fn look(&self, known: &mut KnownInvites) {
        known.looked = Some(Instant::now());
        let found = fs::metadata(self.inner.folder.join(INVITES_FILE)).ok();
        let edition = found.and_then(|found| platform::edition(&found));
        if edition != known.file {
            known.file = edition;
            match read(&self.inner.folder) {
                Ok(made) => known.mine = made,
                // A broken file must not open the door.
                Err(error) => {
                    tracing::warn!(%error, "invites not read: none of this peer's is good");
                    known.mine.clear();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SWARM: SwarmId = SwarmId([1; 16]);

    fn invites(folder: &Path) -> Invites {
        Invites::new(folder, SWARM, Some(Secret([9; 32])))
    }

    #[test]
    fn an_invite_is_good_until_it_ends_or_is_taken_back_and_others_hear_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let made = make(folder.path(), LASTS, None).unwrap();
        make(folder.path(), Duration::ZERO, None).unwrap();
        let (issuer, member) = (invites(folder.path()), invites(Path::new("/nowhere")));
        let notices = issuer.notices();
        assert_eq!(notices.iter().map(|n| n.id).collect::<Vec<_>>(), [made.id]);
        member.heard([(PeerId([1; 32]), &notices[..])].into_iter());
        let key = made.ticket().unwrap().key(SWARM);
        assert_eq!((issuer.key(made.id), member.key(made.id)), (Some(key), Some(key)));
        assert_eq!(member.admit(made.id, PeerId([2; 32])), Some(Secret([9; 32])));
        revoke(folder.path(), made.id).unwrap();
        let later = invites(folder.path());
        assert_eq!((later.key(made.id), later.notices().len()), (None, 0));
        member.heard([(PeerId([1; 32]), &[][..])].into_iter());
        assert_eq!(member.key(made.id), None);
    }

    #[test]
    fn an_invite_is_good_as_soon_as_it_is_printed_and_no_more_as_soon_as_it_is_taken_back() {
        let folder = tempfile::tempdir().unwrap();
        let running = invites(folder.path());
        for _ in 0..6 {
            // A running peer looks at the file all the time, and has just done so.
            let _ = running.notices();
            let made = make(folder.path(), LASTS, Some(1)).unwrap();
            assert_eq!(running.key(made.id), made.ticket().map(|ticket| ticket.key(SWARM)));
            assert!(running.admit(made.id, PeerId([2; 32])).is_some());
            assert!(running.admit(made.id, PeerId([3; 32])).is_none(), "it was for one");
            revoke(folder.path(), made.id).unwrap();
            assert_eq!(running.key(made.id), None);
        }
    }

    #[test]
    fn a_counted_invite_lets_in_as_many_also_over_restarts_and_only_by_who_counts() {
        let folder = tempfile::tempdir().unwrap();
        let made = make(folder.path(), LASTS, Some(2)).unwrap();
        let come = |n| invites(folder.path()).admit(made.id, PeerId([n; 32])).is_some();
        assert_eq!([come(1), come(1), come(2), come(3), come(2)], [true, true, true, false, true]);
        let other = invites(Path::new("/nowhere"));
        other.heard([(PeerId([1; 32]), &invites(folder.path()).notices()[..])].into_iter());
        assert_eq!(other.key(made.id), None);
    }

    #[test]
    fn damaged_files_are_kept_aside_and_open_no_door() {
        let folder = tempfile::tempdir().unwrap();
        let (open, counted) = (make(folder.path(), LASTS, None).unwrap(), make(folder.path(), LASTS, Some(1)).unwrap());
        assert!(invites(folder.path()).admit(counted.id, PeerId([1; 32])).is_some());
        let path = |file: &str| folder.path().join(file);
        let mut bytes = fs::read(path(USED_FILE)).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(path(USED_FILE), &bytes).unwrap();
        set_damaged_aside(folder.path()).unwrap();
        assert_eq!(fs::read(path("invites-used.json.broken")).unwrap(), bytes);
        let after = invites(folder.path());
        assert!(after.key(open.id).is_some() && after.key(counted.id).is_none(), "it was used up, perhaps");
        set_damaged_aside(folder.path()).unwrap();
        fs::write(path(INVITES_FILE), "").unwrap();
        assert!(matches!(make(folder.path(), LASTS, None), Err(InvitesError::Broken { .. })));
        set_damaged_aside(folder.path()).unwrap();
        assert!(read(folder.path()).unwrap().is_empty() && path("invites.json.broken").exists());
    }

    #[test]
    fn no_more_are_out_than_an_advert_holds() {
        let folder = tempfile::tempdir().unwrap();
        let all: Vec<_> = (0..=limits::INVITES).map(|_| make(folder.path(), LASTS, None)).collect();
        assert!(all[..limits::INVITES].iter().all(Result::is_ok));
        assert!(matches!(all.last(), Some(Err(InvitesError::TooMany))));
        assert!(matches!(revoke(folder.path(), InviteId([0; 8])), Err(InvitesError::Unknown(_))));
    }
}
