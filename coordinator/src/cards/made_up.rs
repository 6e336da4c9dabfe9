//! For tests: peers that say they have models of which nobody else has heard. Ids cost nothing, so whoever looks through everybody's
//! models again for each of them can be kept busy by few.

use crate::{members::Members, sample};
use std::time::{Duration, Instant};
use tsnode_protocol::{Advert, ModelCard, ModelId, PeerId, limits::MODELS};

/// Whoever looks through all again for each model takes some hundred times as long as who looks once.
const PEERS: u64 = 512;
/// So many times as long as looking once is still that: other things are made of what is seen, and other tests run beside.
const MOST: u32 = 20;
/// Tests beside this one may take its processor for a while, and not each time.
const TRIES: usize = 5;

/// Their adverts: each lends a device that holds one of its models at a time.
pub(crate) fn adverts() -> Vec<(PeerId, Advert)> {
    (0..PEERS).map(|n| (peer(n), advert(n))).collect()
}

fn peer(n: u64) -> PeerId {
    let mut id = [0; 32];
    id[..8].copy_from_slice(&n.to_be_bytes());
    PeerId(id)
}

fn advert(n: u64) -> Advert {
    let id = |m: usize| {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&n.to_be_bytes());
        id[8..].copy_from_slice(&(m as u64).to_be_bytes());
        ModelId(id)
    };
    let cards = (0..MODELS).map(|m| ModelCard { id: id(m), ..sample::card() }).collect();
    let mut advert = sample::lends_several(0, cards);
    for served in &mut advert.devices[0].serves {
        (served.memory_bytes, served.kv_bytes) = (1 << 30, 0);
    }
    advert
}

/// Whether some work on all of them takes about as long as looking at everybody's models once.
#[expect(clippy::disallowed_methods, reason = "how long it takes is what is asked")]
pub(crate) fn is_seen_once<T>(work: impl Fn(&Members<'_>) -> T) -> bool {
    let adverts = adverts();
    let members: Members<'_> = adverts.iter().map(|(peer, advert)| (*peer, advert)).collect();
    let took = |work: &dyn Fn()| {
        let began = Instant::now();
        work();
        began.elapsed()
    };
    let (mut once, mut all) = (Duration::MAX, Duration::MAX);
    (0..TRIES).any(|_| {
        once = once.min(took(&|| assert!(!super::all_agreed(members.values().copied()).is_empty())));
        all = all.min(took(&|| _ = std::hint::black_box(work(&members))));
        all <= once * MOST
    })
}
