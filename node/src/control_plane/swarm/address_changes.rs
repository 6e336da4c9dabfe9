//! Which connections an address change has cut: nothing is heard of it on them, and the system goes on trying for long.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tsnode_protocol::PeerId;

/// The ends of a straight connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionEnds {
    /// Who is at the far end.
    pub(super) peer: PeerId,
    /// The address here, where it is known.
    pub(super) near: Option<IpAddr>,
    /// The address there.
    pub(super) far: IpAddr,
}

/// Open connections by their names, and where their far ends listen.
#[derive(Debug)]
pub(super) struct Moves<C> {
    open: BTreeMap<C, ConnectionEnds>,
    listens: BTreeMap<PeerId, BTreeSet<IpAddr>>,
}

impl<C> Default for Moves<C> {
    fn default() -> Self {
        Self { open: BTreeMap::new(), listens: BTreeMap::new() }
    }
}

impl<C: Copy + Ord> Moves<C> {
    /// One more connection.
    pub(super) fn opened(&mut self, connection: C, ends: ConnectionEnds) {
        self.open.insert(connection, ends);
    }

    /// One fewer.
    pub(super) fn closed(&mut self, connection: C) {
        if let Some(ConnectionEnds { peer, .. }) = self.open.remove(&connection)
            && !self.open.values().any(|ends| ends.peer == peer)
        {
            self.listens.remove(&peer);
        }
    }

    /// This host has this address no more: the connections that are cut.
    pub(super) fn lost(&self, address: IpAddr) -> Vec<C> {
        self.open.iter().filter(|(_, ends)| ends.near == Some(address)).map(|(connection, _)| *connection).collect()
    }

    /// A peer says where it listens. Says whether a connection is cut, as is one to where it said that it does and does no more. What it
    /// never said is the address of whatever translates for it.
    pub(super) fn listens(&mut self, peer: PeerId, addresses: BTreeSet<IpAddr>) -> bool {
        if !self.open.values().any(|ends| ends.peer == peer) {
            return false;
        }
        let before = self.listens.insert(peer, addresses.clone()).unwrap_or_default();
        let is_cut =
            |ends: &ConnectionEnds| ends.peer == peer && before.contains(&ends.far) && !addresses.contains(&ends.far);
        self.open.values().any(is_cut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: PeerId = PeerId([1; 32]);
    const OTHER: PeerId = PeerId([2; 32]);

    fn ip(n: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, n])
    }

    fn moves() -> Moves<u8> {
        let mut moves = Moves::default();
        moves.opened(1, ConnectionEnds { peer: PEER, near: Some(ip(100)), far: ip(1) });
        moves.opened(2, ConnectionEnds { peer: OTHER, near: Some(ip(101)), far: ip(2) });
        moves.opened(3, ConnectionEnds { peer: OTHER, near: None, far: ip(2) });
        moves
    }

    #[test]
    fn an_address_that_is_lost_cuts_what_began_or_ended_there() {
        let mut moves = moves();
        assert_eq!(moves.lost(ip(101)), [2]);
        assert_eq!(moves.lost(ip(1)), [0; 0], "that is the far end's");
        moves.closed(2);
        assert_eq!(moves.lost(ip(101)), [0; 0]);
    }

    #[test]
    fn who_listens_elsewhere_now_is_no_more_where_it_was() {
        let mut moves = moves();
        assert!(!moves.listens(PEER, [ip(1), ip(7)].into()));
        assert!(!moves.listens(OTHER, [ip(2)].into()));
        moves.opened(4, ConnectionEnds { peer: PEER, near: None, far: ip(8) });
        assert!(moves.listens(PEER, [ip(7), ip(8)].into()));
        assert!(!moves.listens(OTHER, [ip(2)].into()), "it has not moved");
        assert!(!moves.listens(PeerId([3; 32]), [ip(1)].into()), "not connected");
    }

    #[test]
    fn an_address_that_a_peer_never_said_is_not_taken_from_it() {
        let mut moves = moves();
        assert!(!moves.listens(PEER, [ip(50)].into()));
        assert!(!moves.listens(PEER, [ip(51)].into()), "it is behind an address translation");
        moves.closed(1);
        assert!(!moves.listens.contains_key(&PEER), "nothing is kept of who is gone");
    }
}
