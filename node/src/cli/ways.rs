//! How a peer's links go: straight, by a hole punched from both sides, or over another peer.

use super::output::{name, names};
use crate::{
    reachability::observation::{PathVia, PeerPath},
    view::{PeerView, SwarmView},
};
use std::collections::BTreeMap;
use tsnode_protocol::{Link, PeerId};

/// Peers that a line names; of more, those that are not straight.
const NAMED: usize = 6;

/// Each link that the peer of a view has measured, and to whom.
pub(super) fn of(view: &SwarmView) -> Vec<(PeerId, PeerPath)> {
    let all = names(view);
    // A large swarm has as many links as peers, and is looked at whenever anybody is heard.
    let peers: BTreeMap<PeerId, &PeerView> = view.peers.iter().map(|peer| (peer.id, peer)).collect();
    let own = peers.get(&view.me);
    let is_reachable = own.is_none_or(|own| own.advert.reachable);
    let path = |link: &Link| {
        let there = peers.get(&link.to)?;
        let is_told = view.link_ends.get(&link.to).is_none_or(|at| there.advert.data_addresses.contains(at));
        let is_hole = !is_reachable && !there.advert.reachable && !is_told;
        let way = PathVia::of(link.path, |relay| name(&all, relay), is_hole);
        Some((link.to, PeerPath { name: name(&all, link.to), is_reachable: there.advert.reachable, way }))
    };
    own.iter().flat_map(|own| &own.advert.links).filter_map(path).collect()
}

/// All of them in a line; none where none is measured.
pub(super) fn told(view: &SwarmView) -> Option<String> {
    let mut paths: BTreeMap<PeerId, PeerPath> = of(view).into_iter().collect();
    let all = paths.len();
    if all > NAMED {
        paths.retain(|_, path| path.way != PathVia::Direct);
    }
    let others = all - paths.len();
    let is_relayed = paths.values().any(|path| matches!(path.way, PathVia::Relayed { .. }));
    let mut said: Vec<String> = paths.values().take(NAMED).map(|path| format!("{} {}", path.name, path.way)).collect();
    match paths.len().saturating_sub(NAMED) {
        0 => {}
        more => said.push(format!("{more} more not straight")),
    }
    match (others, said.is_empty()) {
        (0, _) => {}
        (_, true) => said.push("all direct".into()),
        (_, false) => said.push("all others direct".into()),
    }
    let why = if is_relayed { " (tsnode doctor says why)" } else { "" };
    (!said.is_empty()).then(|| format!("{}{why}", said.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::view;
    use tsnode_protocol::{Advert, BytesPerSecond, Load, PathKind, Seconds};

    fn peer(n: u8, reachable: bool, links: &[(u8, PathKind)]) -> PeerView {
        let link = |(to, path): &(u8, PathKind)| Link {
            to: PeerId([*to; 32]),
            latency: Seconds(0.01),
            bandwidth: BytesPerSecond(1e9),
            path: *path,
        };
        let links = links.iter().map(link).collect();
        let advert = Advert { name: String::new(), reachable, links, ..tsnode_coordinator::sample::gateway(0) };
        PeerView {
            id: PeerId([n; 32]),
            advert,
            load: Load::default(),
            groups: vec![],
            silent_for: 0.0,
            silent: false,
            plan: None,
            leaving: false,
        }
    }

    #[test]
    fn each_peer_is_told_with_its_way_and_of_many_those_that_are_not_straight() {
        assert_eq!(told(&view()), None);
        let via = PeerId([2; 32]);
        let links = [(2, PathKind::Direct), (3, PathKind::Direct), (4, PathKind::Relayed { via })];
        let mut few = view();
        few.peers = vec![peer(1, false, &links), peer(2, true, &[]), peer(3, false, &[]), peer(4, false, &[])];
        // Where it is reached is no address of its own: a hole.
        few.link_ends = [(PeerId([3; 32]), ([192, 0, 2, 1], 9).into())].into();
        let [two, three, four] = [2, 3, 4].map(|n| format!("…{}", PeerId([n; 32]).short()));
        let expected =
            format!("{two} direct, {three} hole-punched, {four} relayed over {two} (tsnode doctor says why)");
        assert_eq!(told(&few).unwrap(), expected);
        let mut many = view();
        let links: Vec<_> = (2..30).map(|n| (n, PathKind::Direct)).collect();
        many.peers = vec![peer(1, true, &links)];
        many.peers.extend((2..30).map(|n| peer(n, true, &[])));
        assert_eq!(told(&many).unwrap(), "all direct");
        many.peers[0].advert.links[7].path = PathKind::Relayed { via };
        let nine = format!("…{}", PeerId([9; 32]).short());
        assert_eq!(
            told(&many).unwrap(),
            format!("{nine} relayed over {two}, all others direct (tsnode doctor says why)")
        );
    }
}
