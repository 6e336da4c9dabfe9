//! What a peer says of itself when something changes: its devices, models, links and measured speeds.

use crate::{
    BytesPerSecond, EncoderCard, FlopsPerSecond, Gpus, ModelCard, ModelId, ModelOrigin, PartialModel, PeerId, Seconds,
    StepSize, SwarmSetting, TicketNotice, Traffic, codec::CodecError, limits,
};
use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, fmt, net::SocketAddr};

/// A peer's statement of its devices, models, links and measured speeds.
#[derive(Clone, Debug, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct Advert {
    /// Name people see; the host name unless set otherwise.
    pub name: String,
    /// Software version (`0.1.0`).
    pub version: String,
    /// Where the control plane listens, as multiaddrs.
    pub addresses: Vec<String>,
    /// Where the data plane listens (UDP).
    pub data_addresses: Vec<SocketAddr>,
    /// Devices lent to the swarm; empty for a peer that is a gateway only.
    pub devices: Vec<Device>,
    /// Models this peer has the weights of, or fetches them as it is given layers.
    pub models: Vec<ModelCard>,
    /// Of these, those that it does not have whole, and what it has of them.
    #[serde(default)]
    pub partial: Vec<PartialModel>,
    /// Where it has them from, as far as it knows.
    #[serde(default)]
    pub origins: Vec<ModelOrigin>,
    /// Encoders that this peer lends now.
    #[serde(default)]
    pub encoders: Vec<EncoderCard>,
    /// Links measured from this peer.
    pub links: Vec<Link>,
    /// Whether other peers can open connections to this one.
    pub reachable: bool,
    /// Invites it has out: whoever comes with one that is not counted may be let in by any member.
    #[serde(skip)]
    pub invites: Vec<TicketNotice>,
    /// What its clients have asked for of late, model by model.
    pub traffic: Vec<Traffic>,
    /// The newest that it knows of what members of its swarm set, by their keys.
    #[serde(default)]
    pub settings: Vec<SwarmSetting>,
}

/// One accelerator, or a share of a CPU.
#[derive(Clone, Debug, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct Device {
    /// CPU or GPU.
    pub kind: DeviceKind,
    /// Vendor's name of it.
    pub name: String,
    /// Memory lent for weights and KV pages (bytes).
    pub memory_bytes: u64,
    /// Of that, the pool of KV pages of all models (bytes).
    pub kv_bytes: u64,
    /// Measured rate of matrix products.
    pub flops: FlopsPerSecond,
    /// Measured read bandwidth of its memory.
    pub bandwidth: BytesPerSecond,
    /// Models that it computes, each once.
    pub serves: Vec<Served>,
}

/// A model on a device: its part of the memory, which is its own while its weights are there, and its speed.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct Served {
    /// The model, one of its peer's.
    pub model: ModelId,
    /// Of the device's memory, what is for this model's weights and KV pages (bytes).
    pub memory_bytes: u64,
    /// Of that, its quota of the device's pool of KV pages: others have it only while it does not need it (bytes).
    pub kv_bytes: u64,
    /// Whether its owner keeps its weights in memory: no other model gets their place, whoever asks for it.
    #[serde(default)]
    pub is_kept: bool,
    /// What a layer of it takes here with the device to itself, if that was measured.
    pub profile: Option<LayerProfile>,
}

impl Device {
    /// With all of it for one model.
    #[must_use]
    pub fn for_one(self, model: ModelId, profile: Option<LayerProfile>) -> Self {
        let (memory_bytes, kv_bytes) = (self.memory_bytes, self.kv_bytes);
        Self { serves: vec![Served { model, memory_bytes, kv_bytes, is_kept: false, profile }], ..self }
    }

    /// What it has for a model, if it computes that.
    #[must_use]
    pub fn served(&self, model: ModelId) -> Option<&Served> {
        self.serves.iter().find(|served| served.model == model)
    }

    /// What a layer of a model takes here, if that was measured.
    #[must_use]
    pub fn profile(&self, model: ModelId) -> Option<&LayerProfile> {
        self.served(model)?.profile.as_ref()
    }

    /// Whether it has memory for the weights of these models at once, beside those that are kept there and the KV pages of all
    /// that it serves: parts may be more together than there is, so that not all are in memory at one time.
    #[must_use]
    pub fn holds(&self, models: &BTreeSet<ModelId>) -> bool {
        let is_there = |served: &Served| served.is_kept || models.contains(&served.model);
        let takes = |served: &Served| if is_there(served) { served.memory_bytes } else { served.kv_bytes };
        self.serves.iter().map(takes).fold(0, u64::saturating_add) <= self.memory_bytes
    }

    /// Whether it has memory for the weights of all models that it serves at once.
    #[must_use]
    pub fn holds_all(&self) -> bool {
        self.serves.iter().map(|served| served.memory_bytes).fold(0, u64::saturating_add) <= self.memory_bytes
    }

    /// Whether every model is one of its peer's and said once, and each has room beside those that are kept and the KV pages of
    /// the others.
    fn serves_what_it_has(&self, models: &BTreeSet<ModelId>) -> bool {
        let mut said = BTreeSet::new();
        let sum = |of: fn(&Served) -> u64| self.serves.iter().map(of).fold(0, u64::saturating_add);
        let each = |served: &Served| {
            models.contains(&served.model)
                && said.insert(served.model)
                && served.kv_bytes <= served.memory_bytes
                && self.holds(&BTreeSet::from([served.model]))
                && served.profile.is_none_or(|p| p.is_plausible() && p.model == served.model)
        };
        self.serves.iter().all(each) && sum(|served| served.kv_bytes) <= self.kv_bytes
    }
}

/// What one layer of a model takes on a device: seconds, as measured.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct LayerProfile {
    /// The model whose layer was timed.
    pub model: ModelId,
    /// a, b, c: L tokens of a prompt behind P others of it take `a + b·L + c·((P + L)² − P²)`.
    pub prefill: [f64; 3],
    /// A, B, C: a step of n sequences with ctx tokens each takes `A + B·n·ctx + C·n`.
    pub decode: [f64; 3],
    /// What prompts took that `prefill` was not fitted to.
    pub prompts: Misfit,
    /// What steps took that `decode` was not fitted to.
    pub steps: Misfit,
    /// What both in one iteration took, beside the sum of the two.
    pub mixed: Misfit,
}

/// How far foretold times are from measured ones.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct Misfit {
    /// R²: the part of their variance that was foretold; below zero where their mean would have foretold them better.
    pub r2: f64,
    /// Mean of the errors, each a part of the time measured.
    pub mean: f64,
    /// Largest of these errors.
    pub largest: f64,
}

impl LayerProfile {
    /// What a layer takes for a step of this size (s).
    #[must_use]
    pub fn takes(&self, size: &StepSize) -> f64 {
        let ([a, b, c], [d, e, f]) = (self.prefill, self.decode);
        let prompts = a + b * f64::from(size.prompts) + c * size.pairs as f64;
        let answers = d + e * size.context as f64 + f * f64::from(size.answers);
        let part = |tokens: u32, takes: f64| if tokens > 0 { takes } else { 0.0 };
        part(size.prompts, prompts) + part(size.answers, answers)
    }

    /// Whether every number is one that a measurement can give, and not all are nothing.
    #[must_use]
    pub fn is_plausible(&self) -> bool {
        let plausible = |c: &[f64; 3]| c.iter().all(|x| (0.0..1e6).contains(x)) && c.iter().sum::<f64>() > 0.0;
        plausible(&self.prefill)
            && plausible(&self.decode)
            && [self.prompts, self.steps, self.mixed].iter().all(Misfit::is_plausible)
    }
}

impl Misfit {
    /// The least R² that is stated, whatever was found.
    pub const R2_AT_LEAST: f64 = -1e6;

    fn is_plausible(&self) -> bool {
        (Self::R2_AT_LEAST..=1.0).contains(&self.r2) && (0.0..=self.largest).contains(&self.mean) && self.largest < 1e6
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { r2, mean, largest } = self;
        write!(f, "R² {r2:.3}, off by {:.1} %, at most {:.1} %", mean * 100.0, largest * 100.0)
    }
}

/// What does the computing.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum DeviceKind {
    /// A share of the host's processor.
    Cpu {
        /// Threads used for computing.
        threads: u16,
    },
    /// NVIDIA GPUs that compute as one device.
    Cuda(Gpus),
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu { .. } => f.write_str("cpu"),
            Self::Cuda(gpus) => gpus.fmt(f),
        }
    }
}

/// A measured link from the advert's peer to another.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct Link {
    /// The far end.
    pub to: PeerId,
    /// Latency α, one way.
    pub latency: Seconds,
    /// Bandwidth β, as measured towards the far end (bytes a second).
    pub bandwidth: BytesPerSecond,
    /// How packets travel.
    pub path: PathKind,
}

/// How packets travel between two peers; the better way is the lesser.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PathKind {
    /// Straight from host to host.
    #[default]
    Direct,
    /// Over a third peer.
    Relayed {
        /// That peer.
        via: PeerId,
    },
}

impl fmt::Display for PathKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct => f.write_str("direct"),
            Self::Relayed { via } => write!(f, "relayed via {via}"),
        }
    }
}

impl Advert {
    /// What it has of a model that it does not have whole.
    #[must_use]
    pub fn partial(&self, model: ModelId) -> Option<&PartialModel> {
        self.partial.iter().find(|partial| partial.model == model)
    }

    /// Where it has a model from, if it says so.
    #[must_use]
    pub fn origin(&self, model: ModelId) -> Option<&ModelOrigin> {
        self.origins.iter().find(|origin| origin.model == model)
    }

    /// Whether members who ask get a model's weights here, as far as they are here.
    #[must_use]
    pub fn gives(&self, model: ModelId) -> bool {
        let has = self.models.iter().any(|card| card.id == model);
        has && self.origin(model).is_none_or(|origin| origin.is_given)
    }

    /// Refuses adverts whose counts, texts or numbers are out of bounds.
    ///
    /// # Errors
    /// Names the first rule broken.
    pub fn check(&self) -> Result<(), CodecError> {
        let texts = [&self.name, &self.version];
        if texts.iter().any(|t| t.len() > limits::TEXT_BYTES)
            || self.addresses.iter().any(|t| t.len() > limits::TEXT_BYTES)
            || self.devices.iter().any(|d| d.name.len() > limits::TEXT_BYTES)
        {
            return Err(CodecError::Invalid("text too long"));
        }
        if self.addresses.len() > limits::ADDRESSES
            || self.data_addresses.len() > limits::ADDRESSES
            || self.devices.len() > limits::DEVICES
            || self.models.len() > limits::MODELS
            || self.devices.iter().any(|d| d.serves.len() > limits::MODELS)
            || self.encoders.len() > limits::ENCODERS
            || self.links.len() > limits::LINKS
            || self.invites.len() > limits::INVITES
            || self.traffic.len() > limits::MODELS
        {
            return Err(CodecError::Invalid("too many entries"));
        }
        let models = self.models.iter().map(|card| card.id).collect();
        let device = |d: &Device| {
            d.flops.is_plausible()
                && d.bandwidth.is_plausible()
                && d.memory_bytes <= 1 << 44
                && d.kv_bytes <= d.memory_bytes
                && d.serves_what_it_has(&models)
                && match d.kind {
                    DeviceKind::Cpu { .. } => true,
                    DeviceKind::Cuda(gpus) => gpus.is_plausible(),
                }
        };
        if !self.devices.iter().all(device) {
            return Err(CodecError::Invalid("device figures out of range"));
        }
        if !self.links.iter().all(|l| l.latency.is_plausible() && l.bandwidth.is_plausible()) {
            return Err(CodecError::Invalid("link figures out of range"));
        }
        SwarmSetting::check_all(&self.settings)?;
        self.check_partial()?;
        self.check_origins()?;
        self.traffic.iter().try_for_each(Traffic::check)?;
        self.encoders.iter().try_for_each(EncoderCard::check)?;
        self.models.iter().try_for_each(ModelCard::check)
    }

    /// Each is of one of its models, and said once.
    fn check_origins(&self) -> Result<(), CodecError> {
        let mut said = BTreeSet::new();
        let is_of_one = |origin: &ModelOrigin| self.models.iter().any(|card| card.id == origin.model);
        if !self.origins.iter().all(|origin| is_of_one(origin) && said.insert(origin.model)) {
            return Err(CodecError::Invalid("origin of no model, or twice"));
        }
        self.origins.iter().try_for_each(ModelOrigin::check)
    }

    /// Each is one of its models, and said once.
    fn check_partial(&self) -> Result<(), CodecError> {
        let mut said = BTreeSet::new();
        for partial in &self.partial {
            let card = self.models.iter().find(|card| card.id == partial.model);
            let card =
                card.filter(|card| said.insert(card.id)).ok_or(CodecError::Invalid("part of no model, or twice"))?;
            partial.check(card.shape.layers)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_model_fits_beside_the_pages_of_the_others() {
        let models = [1, 2].map(|n| ModelId([n; 16]));
        let part = |model| Served { model, memory_bytes: 60, kv_bytes: 40, is_kept: false, profile: None };
        let serves = models.map(part).to_vec();
        let device = Device {
            kind: DeviceKind::Cpu { threads: 1 },
            name: "cpu".into(),
            memory_bytes: 100,
            kv_bytes: 80,
            flops: FlopsPerSecond(1e9),
            bandwidth: BytesPerSecond(1e9),
            serves,
        };
        assert!(device.serves_what_it_has(&models.into()));
        assert!(!device.holds_all());
        assert!(!Device { memory_bytes: 99, ..device.clone() }.serves_what_it_has(&models.into()));
        assert!(!device.serves_what_it_has(&[models[0]].into()), "it has no such model");
        let mut kept = device.clone();
        kept.serves[0].is_kept = true;
        assert!(!kept.serves_what_it_has(&models.into()), "what is kept leaves no room for the other");
        let alone = Device { serves: vec![], ..device }.for_one(models[0], None);
        assert!(alone.serves_what_it_has(&models.into()) && alone.holds_all());
    }

    #[test]
    fn a_profile_is_a_measurement_or_nothing() {
        let misfit = Misfit { r2: 0.99, mean: 0.02, largest: 0.05 };
        let good = LayerProfile {
            model: ModelId([1; 16]),
            prefill: [1e-3, 1e-5, 0.0],
            decode: [1e-3, 0.0, 1e-6],
            prompts: misfit,
            steps: misfit,
            mixed: Misfit { r2: -3.0, ..misfit },
        };
        assert!(good.is_plausible());
        for wrong in [f64::NAN, -1e-9, f64::INFINITY, 1e7] {
            assert!(!LayerProfile { prefill: [wrong, 1e-5, 0.0], ..good }.is_plausible(), "{wrong}");
            assert!(!LayerProfile { decode: [1e-3, wrong, 0.0], ..good }.is_plausible(), "{wrong}");
        }
        assert!(!LayerProfile { prefill: [0.0; 3], ..good }.is_plausible(), "no layer takes no time");
        let wrong = [
            Misfit { r2: f64::NAN, ..misfit },
            Misfit { r2: 1.1, ..misfit },
            Misfit { r2: -1e7, ..misfit },
            Misfit { mean: -0.1, ..misfit },
            Misfit { mean: f64::NAN, ..misfit },
            Misfit { mean: 0.06, ..misfit },
            Misfit { largest: f64::INFINITY, ..misfit },
        ];
        for wrong in wrong {
            assert!(!LayerProfile { prompts: wrong, ..good }.is_plausible(), "{wrong:?}");
            assert!(!LayerProfile { steps: wrong, ..good }.is_plausible(), "{wrong:?}");
            assert!(!LayerProfile { mixed: wrong, ..good }.is_plausible(), "{wrong:?}");
        }
    }
}
