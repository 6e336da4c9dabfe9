//! What a peer says of itself: the advert when something changes, the heartbeat all the time.

use crate::{
    BytesPerSecond, EncoderCard, Epoch, FlopsPerSecond, Gpus, GroupId, ModelCard, ModelId, ModelOrigin, PartialModel,
    PeerId, Phase, PlanId, Seconds, SwarmSetting, Term, TicketNotice, Traffic, codec::CodecError, limits,
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

/// A peer's sign of life, and what it is doing.
#[derive(Clone, Debug, Default, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Epoch by the peer's own clock.
    pub clock: Epoch,
    /// Epoch of the plan the peer follows.
    pub epoch: Epoch,
    /// Term of that plan.
    pub term: Term,
    /// Plan the peer has adopted.
    pub plan: Option<PlanId>,
    /// Groups of that plan led by this peer and able to take requests now, and what each has to do.
    pub ready: Vec<GroupLoad>,
    /// What waits and runs here, in all groups led by this peer together.
    pub load: Load,
    /// Set when the peer is about to leave: give it nothing new.
    pub leaving: bool,
    /// Whom it has nothing to do with, for what they did to it.
    #[serde(default)]
    pub cut_off: Vec<PeerId>,
    /// How quick groups were for its clients whose leaders' own steps belie what is claimed of them.
    #[serde(default)]
    pub seen_speeds: Vec<SeenSpeed>,
}

/// How quick a group was by the clock of a gateway that it has worked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct SeenSpeed {
    /// The group whose speed the gateway saw.
    pub group: GroupId,
    /// What it did: prompts, or answers.
    pub phase: Phase,
    /// How often the time claimed for it is doubled by the time that it took, beside others: not once where the claim is kept.
    pub doublings: u8,
}

/// What others act by: [`Heartbeat::news`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct News<'a> {
    /// As in the heartbeat.
    pub clock: Epoch,
    /// As in the heartbeat.
    pub term: Term,
    /// As in the heartbeat.
    pub plan: Option<PlanId>,
    /// As in the heartbeat.
    pub leaving: bool,
    /// As in the heartbeat.
    pub ready: Ready<'a>,
    /// As in the heartbeat.
    pub cut_off: &'a [PeerId],
    /// As in the heartbeat.
    pub seen_speeds: &'a [SeenSpeed],
}

/// Which groups take requests: the same however much they have to do.
#[derive(Clone, Copy, Debug)]
pub struct Ready<'a>(pub &'a [GroupLoad]);

impl PartialEq for Ready<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().map(|g| g.group).eq(other.0.iter().map(|g| g.group))
    }
}

/// A group, and what it has to do: its leader may lead others that have more or less, and are faster or slower.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct GroupLoad {
    /// The group, as the adopted plan names it.
    pub group: GroupId,
    /// What waits and runs there; pages of its leader's device, and where models share these, those that its model is sure to get.
    pub load: Load,
}

/// What waits and runs in a group, or in all that a peer leads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct Load {
    /// Sequences in batches.
    pub running: u32,
    /// Sequences that wait for pages or for their first step.
    pub waiting: u32,
    /// Prompt tokens not yet computed.
    pub pending_tokens: u32,
    /// KV pages free.
    pub free_pages: u32,
    /// KV pages in all.
    pub total_pages: u32,
    /// Time of a group's last steps, on average, from setting off to their tokens. None where nothing was computed, nor for
    /// several groups together.
    pub step: Option<Seconds>,
    /// Tokens that each sequence got of one of these steps, on average: more than one where drafts were right.
    #[serde(default)]
    pub chosen: Option<f64>,
    /// The quickest of a group's last steps: what its peers' adverts claim is held against these.
    #[serde(default)]
    pub quickest: Quickest,
}

/// Tokens of one sequence that no step chooses more of.
const MOST_CHOSEN: f64 = 1024.0;

impl Load {
    /// Whether there is as much to do as there was, however fast it is done: speeds are never twice the same.
    #[must_use]
    pub fn is_as_much_as(&self, before: &Self) -> bool {
        let amount = |load: &Self| Self { step: None, chosen: None, quickest: Quickest::default(), ..*load };
        amount(self) == amount(before)
    }

    fn check(&self) -> Result<(), CodecError> {
        let steps = [self.quickest.prompts, self.quickest.answers].into_iter().flatten();
        if !self.step.into_iter().chain(steps.map(|step| step.took)).all(Seconds::is_plausible) {
            return Err(CodecError::Invalid("time of a step out of range"));
        }
        if !self.chosen.is_none_or(|chosen| (0.0..=MOST_CHOSEN).contains(&chosen)) {
            return Err(CodecError::Invalid("tokens of a step out of range"));
        }
        Ok(())
    }
}

/// The least disturbed steps of a group's last ones, of each kind: the host's other work, and the group's, are in the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct Quickest {
    /// With tokens of prompts in it: the one that took least for each of them.
    pub prompts: Option<TimedStep>,
    /// Of answers alone: the one that took least.
    pub answers: Option<TimedStep>,
}

/// What was computed in a step, and how long that took.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct TimedStep {
    /// From setting off to its tokens.
    pub took: Seconds,
    /// What was computed.
    pub size: StepSize,
}

/// What a step computes, as far as it takes time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct StepSize {
    /// Tokens of prompts.
    pub prompts: u32,
    /// What these attend to: (P + L)² − P² for L tokens behind P others, over all prompts.
    pub pairs: u64,
    /// Tokens of answers, with those guessed.
    pub answers: u32,
    /// Tokens that these attend to, in all.
    pub context: u64,
}

impl Heartbeat {
    /// Whether it says something that others act by and `before` does not: all but how much there is to do.
    #[must_use]
    pub fn is_news_after(&self, before: &Self) -> bool {
        self.news() != before.news()
    }

    /// What of it is news where it changes.
    #[must_use]
    pub fn news(&self) -> News<'_> {
        let Self { clock, term, plan, leaving, .. } = *self;
        let (cut_off, seen_speeds) = (&self.cut_off, &self.seen_speeds);
        News { clock, term, plan, leaving, ready: Ready(&self.ready), cut_off, seen_speeds }
    }

    /// Whether there is as much to do as it was `before`, in all and in each group.
    #[must_use]
    pub fn has_as_much_to_do(before: (&Load, &[GroupLoad]), now: (&Load, &[GroupLoad])) -> bool {
        let alike = |(a, b): (&GroupLoad, &GroupLoad)| a.group == b.group && a.load.is_as_much_as(&b.load);
        now.0.is_as_much_as(before.0) && now.1.len() == before.1.len() && now.1.iter().zip(before.1).all(alike)
    }

    /// Refuses heartbeats that list more than a plan can hold, and figures that nobody can have measured.
    ///
    /// # Errors
    /// Names the rule broken.
    pub fn check(&self) -> Result<(), CodecError> {
        if self.ready.len() > limits::GROUPS {
            return Err(CodecError::Invalid("too many groups"));
        }
        if self.cut_off.len() > limits::CUT_OFF {
            return Err(CodecError::Invalid("too many peers cut off"));
        }
        if self.seen_speeds.len() > limits::SEEN_SPEEDS {
            return Err(CodecError::Invalid("speeds of too many groups"));
        }
        self.ready.iter().map(|g| &g.load).chain([&self.load]).try_for_each(Load::check)
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
    fn what_a_gateway_saw_of_claims_is_news_and_has_an_end() {
        let seen = SeenSpeed { group: GroupId([1; 8]), phase: Phase::Decode, doublings: 2 };
        let said = |times: usize| Heartbeat { seen_speeds: vec![seen; times], ..Heartbeat::default() };
        assert!(said(1).is_news_after(&said(0)) && !said(1).is_news_after(&said(1)));
        assert!(said(limits::SEEN_SPEEDS).check().is_ok() && said(limits::SEEN_SPEEDS + 1).check().is_err());
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
