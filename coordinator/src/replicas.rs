//! Who keeps a copy of a request's response log: computed from its name and who is there, so that everybody looks for it where
//! its gateway put it (rendezvous hashing).

use tsnode_protocol::{PeerId, RequestId};

/// Peers in the order in which they are asked to keep `request`'s response log. A peer that comes or goes moves the requests it
/// keeps, and no others.
#[must_use]
pub fn ranked(request: RequestId, peers: impl Iterator<Item = PeerId>) -> Vec<PeerId> {
    let mut ranked: Vec<([u8; 32], PeerId)> = peers.map(|peer| (weight(request, peer), peer)).collect();
    ranked.sort_unstable();
    ranked.into_iter().map(|(_, peer)| peer).collect()
}

fn weight(request: RequestId, peer: PeerId) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("tsnode 2026 response log replica");
    hasher.update(&request.0).update(&peer.0);
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(n: u8) -> impl Iterator<Item = PeerId> {
        (0..n).map(|n| PeerId([n; 32]))
    }

    #[test]
    fn all_agree_and_a_loss_moves_only_what_was_lost() {
        let mut kept = [0; 8];
        for n in 0..200 {
            let request = RequestId([n; 16]);
            let all = ranked(request, peers(8));
            assert_eq!(all, ranked(request, peers(8).collect::<Vec<_>>().into_iter().rev()));
            let mut without = all.clone();
            let lost = without.remove(usize::from(n) % 8);
            assert_eq!(without, ranked(request, peers(8).filter(|p| *p != lost)));
            kept[usize::from(all[0].0[0])] += 1;
        }
        assert!(kept.iter().all(|n| (10..45).contains(n)), "{kept:?}");
    }
}
