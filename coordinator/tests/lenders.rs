//! Peers, groups and the model of scenarios in which it matters how long something takes.

use tsnode_coordinator::sample;
use tsnode_protocol::{
    Advert, BytesPerSecond, Group, LayerRange, Link, ModelCard, ModelId, ModelShape, PathKind, PeerId, Phase, Seconds,
    Stage,
};

pub const MODEL: ModelId = ModelId([1; 16]);

/// A token's KV takes 2 KiB.
pub const SHAPE: ModelShape = ModelShape {
    layers: 4,
    hidden: 128,
    intermediate: 256,
    heads: 4,
    kv_heads: 4,
    head_dim: 32,
    vocab: 100,
    context: 2048,
    layer_bytes: 1,
    embed_bytes: 1,
    head_bytes: 1,
    experts: None,
};

pub fn peer(n: u8) -> PeerId {
    PeerId([n; 32])
}

/// A peer's device with all layers.
pub fn group(n: u8, phase: Phase) -> Group {
    Group::new(MODEL, phase, vec![Stage { peer: peer(n), device: 0, layers: LayerRange { start: 0, end: 4 } }])
}

/// A peer with the model that has measured what a layer takes, and links of that speed to peers 1 to 8.
pub fn lender(prefill: [f64; 3], decode: [f64; 3], bandwidth: BytesPerSecond) -> Advert {
    let link = |n| Link { to: peer(n), latency: Seconds(1e-3), bandwidth, path: PathKind::Direct };
    let models = vec![ModelCard { shape: SHAPE, ..sample::card() }];
    Advert { models, links: (1..9).map(link).collect(), ..sample::measured(0, prefill, decode) }
}
