//! Plan flow 3: peers in the order of their turns, by a hash everybody can compute.

use std::iter::Peekable;
use tsnode_protocol::{Epoch, PeerId, PlanId, SwarmId};

type RankHash = [u8; 32];

/// What peers have drawn for an epoch after a plan. Views change far oftener than these do, so that each is hashed once.
#[derive(Clone, Debug, Default)]
pub(super) struct LeaderRanks {
    of: Option<(Epoch, Option<PlanId>)>,
    /// In the order of peers.
    drawn: Vec<(PeerId, RankHash)>,
}

impl LeaderRanks {
    /// These peers, given in ascending order, in the order of what they draw: those first who are marked so.
    pub fn order(
        &mut self,
        swarm: SwarmId,
        of: (Epoch, Option<PlanId>),
        peers: impl Iterator<Item = (PeerId, bool)>,
    ) -> Vec<PeerId> {
        let known = if self.of.replace(of) == Some(of) { std::mem::take(&mut self.drawn) } else { Vec::new() };
        let mut known = known.into_iter().peekable();
        self.drawn.clear();
        let mut order = Vec::new();
        for (peer, first) in peers {
            let rank = find(&mut known, peer).unwrap_or_else(|| draw(swarm, of, peer));
            self.drawn.push((peer, rank));
            order.push((!first, rank, peer));
        }
        order.sort_unstable();
        order.into_iter().map(|(.., peer)| peer).collect()
    }
}

/// What a peer drew before; those before it are passed over.
fn find(known: &mut Peekable<impl Iterator<Item = (PeerId, RankHash)>>, peer: PeerId) -> Option<RankHash> {
    while known.next_if(|(other, _)| *other < peer).is_some() {}
    known.next_if(|(other, _)| *other == peer).map(|(_, rank)| rank)
}

fn draw(swarm: SwarmId, (epoch, last): (Epoch, Option<PlanId>), peer: PeerId) -> RankHash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"tsnode rank v1").update(&swarm.0).update(&epoch.0.to_le_bytes());
    if let Some(plan) = last {
        hasher.update(&plan.0);
    }
    hasher.update(&peer.0);
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(numbers: &[u8]) -> impl Iterator<Item = (PeerId, bool)> {
        numbers.iter().map(|n| (PeerId([*n; 32]), n % 2 == 0))
    }

    #[test]
    fn who_drew_before_comes_in_the_order_of_those_who_draw_anew() {
        let (swarm, of) = (SwarmId([7; 16]), (Epoch(3), Some(PlanId([1; 16]))));
        let mut leader_ranks = LeaderRanks::default();
        for view in [&[1, 2, 5, 9][..], &[0, 2, 3, 5, 8], &[], &[1, 2, 3, 9]] {
            let anew = LeaderRanks::default().order(swarm, of, peers(view));
            assert_eq!(leader_ranks.order(swarm, of, peers(view)), anew);
        }
        let later = (Epoch(4), None);
        assert_eq!(
            leader_ranks.order(swarm, later, peers(&[1, 2])),
            LeaderRanks::default().order(swarm, later, peers(&[1, 2]))
        );
    }
}
