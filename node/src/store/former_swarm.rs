//! What else in a data folder tells which swarm its peer was in, where no note does: a peer that was in a private one must not find
//! itself in an open one.

use crate::store::invites::{INVITES_FILE, USED_FILE};
use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;
use tsnode_protocol::{Invite, PeerId, SwarmId};

/// File in the data folder with the invite to the peer's swarm.
pub const INVITE_FILE: &str = "invite";
/// File in the data folder that says where HTTP listens, while the peer runs.
pub const HTTP_FILE: &str = "http.addr";
/// Longer than any invite (bytes).
const FILE_BYTES: u64 = 1 << 20;

/// What is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FolderTrace {
    /// Nothing, or nothing that can be read.
    Nothing,
    /// It was in this open swarm.
    Open(SwarmId),
    /// It was in a private swarm, perhaps this one.
    Private(Option<SwarmId>),
}

/// Looks at the files that a peer writes for others to read.
pub(super) fn look(folder: &Path) -> FolderTrace {
    match own_invite(folder) {
        Some(Invite { swarm, ticket: Some(_), .. }) => FolderTrace::Private(Some(swarm)),
        Some(Invite { swarm, ticket: None, .. }) => FolderTrace::Open(swarm),
        // Only a private swarm has tickets.
        None if [INVITES_FILE, USED_FILE].iter().any(|file| folder.join(file).exists()) => FolderTrace::Private(None),
        None => FolderTrace::Nothing,
    }
}

/// The invite that the peer of this folder has written, as it was in its last run.
#[must_use]
pub fn own_invite(folder: &Path) -> Option<Invite> {
    let mut text = String::new();
    File::open(folder.join(INVITE_FILE)).ok()?.take(FILE_BYTES).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Who the peer of this folder was, by that invite.
#[must_use]
pub fn invited_to(folder: &Path) -> Option<PeerId> {
    let invite = own_invite(folder)?;
    invite.addresses.iter().find_map(|address| address.rsplit_once("/p2p/")?.1.parse().ok())
}

/// Keeps an invite aside that cannot be read. A peer writes its own anew whenever it starts.
pub(super) fn set_damaged_aside(folder: &Path) {
    let path = folder.join(INVITE_FILE);
    if own_invite(folder).is_none() && fs::metadata(&path).is_ok_and(|about| about.is_file() && about.len() > 0) {
        match crate::store::disk::move_aside(&path) {
            Ok(kept) => {
                tracing::info!(file = %path.display(), kept = %kept.display(), "cannot be read, and is written anew")
            }
            Err(error) => tracing::info!(file = %path.display(), %error, "cannot be read, and is written anew"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_protocol::{InviteId, Secret, Ticket};

    #[test]
    fn a_ticket_tells_of_a_private_swarm() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(INVITE_FILE);
        assert_eq!(look(folder.path()), FolderTrace::Nothing);
        let peer = PeerId([3; 32]);
        let ticket = Ticket { id: InviteId([4; 8]), secret: Secret([5; 32]), expires: 1 };
        let addresses =
            vec!["/ip4/192.0.2.1/tcp/7/p2p/x/p2p-circuit".into(), format!("/ip4/192.0.2.1/tcp/7/p2p/{peer}")];
        let mut invite = Invite { swarm: SwarmId([1; 16]), ticket: None, addresses };
        fs::write(&path, format!("{invite}\n")).unwrap();
        assert_eq!(look(folder.path()), FolderTrace::Open(invite.swarm));
        invite.ticket = Some(ticket);
        fs::write(&path, format!("{invite}\n")).unwrap();
        assert_eq!(look(folder.path()), FolderTrace::Private(Some(invite.swarm)));
        assert_eq!(invited_to(folder.path()), Some(peer));
        fs::write(&path, "ts1").unwrap();
        assert_eq!(look(folder.path()), FolderTrace::Nothing);
        fs::write(folder.path().join(USED_FILE), "{}").unwrap();
        assert_eq!(look(folder.path()), FolderTrace::Private(None));
        set_damaged_aside(folder.path());
        assert!(!path.exists() && folder.path().join("invite.broken").exists());
    }
}
