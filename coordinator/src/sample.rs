//! Small peers and a small model, as tests and simulations have them.

use tsnode_protocol::{
    Advert, BytesPerSecond, Device, DeviceKind, Epoch, FlopsPerSecond, Group, LayerProfile, Misfit, ModelCard, ModelId,
    ModelShape, Plan, Route, Served, Term,
};

/// A model that every device can hold whole.
#[must_use]
pub fn card() -> ModelCard {
    let shape = ModelShape {
        layers: 4,
        hidden: 256,
        intermediate: 512,
        heads: 8,
        kv_heads: 4,
        head_dim: 32,
        vocab: 4096,
        context: 1024,
        layer_bytes: 1 << 20,
        embed_bytes: 2 << 20,
        head_bytes: 2 << 20,
        experts: None,
        whole: false,
        state_bytes: 0,
    };
    ModelCard { id: ModelId([1; 16]), name: "tiny".into(), shape, files: vec![] }
}

/// So many models, each like it.
#[must_use]
pub fn cards(count: u8) -> Vec<ModelCard> {
    (1..=count).map(|n| ModelCard { id: ModelId([n; 16]), name: format!("tiny-{n}"), ..card() }).collect()
}

/// What the `n`th peer says of itself: each a little faster than the one before.
#[must_use]
pub fn advert(n: usize) -> Advert {
    let device = Device {
        kind: DeviceKind::Cpu { threads: 1 },
        name: "cpu".into(),
        memory_bytes: 1 << 30,
        kv_bytes: 1 << 28,
        flops: FlopsPerSecond(20e9 + (n % 50) as f64 * 1e9),
        bandwidth: BytesPerSecond(10e9),
        serves: vec![],
    };
    Advert {
        name: format!("p{n}"),
        version: "0".into(),
        addresses: vec![],
        data_addresses: vec![],
        devices: vec![device.for_one(card().id, None)],
        models: vec![card()],
        partial: vec![],
        origins: vec![],
        links: vec![],
        reachable: true,
        encoders: vec![],
        invites: vec![],
        traffic: vec![],
        settings: vec![],
    }
}

/// The same of a peer that measured what a layer takes, as [`LayerProfile`] has it (s), and found no step off that.
#[must_use]
pub fn measured(n: usize, prefill: [f64; 3], decode: [f64; 3]) -> Advert {
    let exact = Misfit { r2: 1.0, mean: 0.0, largest: 0.0 };
    let profile = LayerProfile { model: card().id, prefill, decode, prompts: exact, steps: exact, mixed: exact };
    let advert = advert(n);
    let devices = advert.devices.into_iter().map(|device| device.for_one(card().id, Some(profile))).collect();
    Advert { devices, ..advert }
}

/// The same of a peer with another model.
#[must_use]
pub fn lends(n: usize, card: ModelCard) -> Advert {
    let advert = advert(n);
    let devices = advert.devices.into_iter().map(|device| device.for_one(card.id, None)).collect();
    Advert { devices, models: vec![card], ..advert }
}

/// The same of a peer with several models, each with the same part of its device.
#[must_use]
pub fn lends_several(n: usize, cards: Vec<ModelCard>) -> Advert {
    let (advert, parts) = (advert(n), cards.len().max(1) as u64);
    let part = |device: &Device, card: &ModelCard| Served {
        model: card.id,
        memory_bytes: device.memory_bytes / parts,
        kv_bytes: device.kv_bytes / parts,
        is_kept: false,
        profile: None,
    };
    let several = |device: Device| Device { serves: cards.iter().map(|card| part(&device, card)).collect(), ..device };
    Advert { devices: advert.devices.into_iter().map(several).collect(), models: cards, ..advert }
}

/// The same of a peer that only takes requests.
#[must_use]
pub fn gateway(n: usize) -> Advert {
    Advert { devices: vec![], models: vec![], ..advert(n) }
}

/// A plan with these groups and routes, which follows no other.
#[must_use]
pub fn plan(groups: Vec<Group>, routes: Vec<Route>) -> Plan {
    Plan { epoch: Epoch(1), term: Term(0), parent: None, groups, routes, chosen: vec![], reason: String::new() }
}
