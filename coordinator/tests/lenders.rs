//! Peers, groups and the model of scenarios in which it matters how long something takes.

use std::sync::Arc;
use tsnode_coordinator::{gateway::View, sample};
use tsnode_protocol::{
    Advert, BytesPerSecond, Group, LayerRange, Link, ModelCard, ModelId, ModelShape, PathKind, PeerId, Phase, Route,
    Seconds, Stage, SwarmSetting,
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
    whole: false,
    state_bytes: 0,
};

pub fn peer(n: u8) -> PeerId {
    PeerId([n; 32])
}

/// A peer's device with all layers.
pub fn group(n: u8, phase: Phase) -> Group {
    group_of(&[n], phase)
}

/// A group whose stages are these peers', with four layers in all.
pub fn group_of(peers: &[u8], phase: Phase) -> Group {
    let each = SHAPE.layers / peers.len() as u32;
    let layers = |i: usize| LayerRange { start: i as u32 * each, end: (i as u32 + 1) * each };
    let stage = |(i, n): (usize, &u8)| Stage { peer: peer(*n), device: 0, layers: layers(i) };
    Group::new(MODEL, phase, peers.iter().enumerate().map(stage).collect())
}

/// What a gateway sees that hears these adverts and follows a plan with these groups and routes; no group is up yet.
pub fn view<A: IntoIterator<Item = (PeerId, Advert)>>(groups: Vec<Group>, routes: Vec<Route>, adverts: A) -> View {
    let adverts = Arc::new(adverts.into_iter().collect());
    View { plan: Some(Arc::new(sample::plan(groups, routes))), adverts, ..View::default() }
}

/// The advert of a peer with the model that has measured its device: a scenario says what it is about.
pub struct AdvertBuilder<'a> {
    /// What a step of prompts takes beside its tokens, by the layer (s).
    pub prompt_step: f64,
    /// What a token of a prompt takes on all layers (ms).
    pub prompt_token: f64,
    /// Of links to peers 1 to 8, if there are any.
    pub bandwidth: Option<BytesPerSecond>,
    /// What its owner has set for the swarm.
    pub settings: &'a [SwarmSetting],
}

impl Default for AdvertBuilder<'_> {
    fn default() -> Self {
        Self { prompt_step: 0.0, prompt_token: 1.0, bandwidth: None, settings: &[] }
    }
}

impl AdvertBuilder<'_> {
    /// What it says of itself; a step of answers takes two milliseconds on all layers.
    pub fn build(self) -> Advert {
        let link = |bandwidth, n| Link { to: peer(n), latency: Seconds(1e-3), bandwidth, path: PathKind::Direct };
        let links = self.bandwidth.into_iter().flat_map(|bandwidth| (1..9).map(move |n| link(bandwidth, n))).collect();
        let models = vec![ModelCard { shape: SHAPE, ..sample::card() }];
        let measured = sample::measured(0, [self.prompt_step, self.prompt_token * 0.25e-3, 0.0], [0.5e-3, 0.0, 0.0]);
        Advert { models, links, settings: self.settings.to_vec(), ..measured }
    }
}
