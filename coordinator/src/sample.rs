//! Small peers and a small model, as tests and simulations have them.

use tsnode_protocol::{Advert, BytesPerSecond, Device, DeviceKind, FlopsPerSecond, ModelCard, ModelId, ModelShape};

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
    };
    ModelCard { id: ModelId([1; 16]), name: "tiny".into(), shape, files: vec![] }
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
        profile: None,
    };
    Advert {
        name: format!("p{n}"),
        version: "0".into(),
        addresses: vec![],
        data_addresses: vec![],
        devices: vec![device],
        models: vec![card()],
        links: vec![],
        reachable: true,
        encoders: vec![],
        invites: vec![],
        traffic: vec![],
        settings: vec![],
    }
}

/// The same of a peer that only takes requests.
#[must_use]
pub fn gateway(n: usize) -> Advert {
    Advert { devices: vec![], models: vec![], ..advert(n) }
}
