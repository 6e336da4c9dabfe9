//! Prompt flow 2: the cost gate. Is it quicker to prefill elsewhere and send the KV, or to prefill where it is needed?
//!
//! Splitting pays only where the link carries the KV faster than the decode side could have computed it (ThunderServe
//! App. H; Splitwise §VI-A). The gate compares predicted times to the decode side being able to go on:
//!
//! - elsewhere: queue + prompt there + α + what of packing, bytes/β and unpacking the prompt does not hide (α and β of the
//!   link, bytes by codec; Splitwise §IV-C);
//! - here: queue + prompt here, counted once more for every sequence it would hold up meanwhile.
//!
//! What either side has of it from before is not computed again. An answer that goes on elsewhere is computed anew behind its
//! prompt, on both ways.
//!
//! Prompts take what devices were measured to take, where that is known; stages of a pipeline compute theirs side by side
//! ([`GroupCost`]).
//!
//! Which packing is quicker changes from one request to the next, and tokens rest on it ([`kv_codec`]): who wants the same tokens
//! every time fixes it.

mod group_cost;

pub use group_cost::GroupCost;

use serde::{Deserialize, Serialize};
use std::fmt;
use tsnode_protocol::{
    BytesPerSecond, FlopsPerSecond, KvCodec, LayerProfile, ModelShape, PromptCodec, Seconds, kv::KvPace,
};

/// What packed elements take, scales included (hundredths of a bit): `kernels::wire`, in whole blocks.
const INT3_CENTIBITS: u64 = 328;
const INT4_CENTIBITS: u64 = 428;
const INT8_CENTIBITS: u64 = 819;
/// Rate at which 16-bit elements are packed, and unpacked, until something is seen of it. A core's share while others compute;
/// `tsnode bench codec` measures what it does alone.
const CODEC_RATE: BytesPerSecond = BytesPerSecond(2e9);
/// The same where they are sent as they are.
const COPY_RATE: BytesPerSecond = BytesPerSecond(5e9);
/// What one tile costs that leaves while others are computed: a core is taken for it, and the others wait for what it computes.
/// As measured where both peers have the same two cores (0.3 to 1.4 ms, docs/research/kv-transfer.md).
const TILE: Seconds = Seconds(1e-3);
/// Sequences beyond this number do not make holding them up worse: their tokens are read slower than they come.
const HELD_UP_AT_MOST: u32 = 8;

/// Which packing to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvChoice {
    /// Whichever is predicted to be quicker.
    #[default]
    Auto,
    /// The pages' own elements.
    Raw,
    /// Four bits an element, as ThunderServe sends KV.
    Int4,
    /// Eight bits an element.
    Int8,
    /// Three bits an element.
    Int3,
}

impl KvChoice {
    /// The one packing, where it is not to be chosen.
    #[must_use]
    pub fn codec(self) -> Option<KvCodec> {
        match self {
            Self::Auto => None,
            Self::Raw => Some(KvCodec::Raw),
            Self::Int4 => Some(KvCodec::Int4),
            Self::Int8 => Some(KvCodec::Int8),
            Self::Int3 => Some(KvCodec::Int3),
        }
    }
}

impl From<KvCodec> for KvChoice {
    fn from(codec: KvCodec) -> Self {
        match codec {
            KvCodec::Raw => Self::Raw,
            KvCodec::Int4 => Self::Int4,
            KvCodec::Int8 => Self::Int8,
            KvCodec::Int3 => Self::Int3,
        }
    }
}

/// What a prompt's KV goes through: what is fixed, sent or not; else what it is packed in where it is sent, and nothing where it is
/// decoded where it was computed. Numbers that stay as they are may be parted anywhere.
#[must_use]
pub fn kv_codec(fixed: Option<PromptCodec>, sent: Option<PromptCodec>) -> PromptCodec {
    match (fixed, sent) {
        (Some(PromptCodec { codec: KvCodec::Raw, .. }), Some(sent)) => PromptCodec { codec: KvCodec::Raw, ..sent },
        (fixed, sent) => fixed.or(sent).unwrap_or(KvCodec::Raw.into()),
    }
}

/// Whether to ask the gate at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SplitChoice {
    /// Where it pays.
    #[default]
    Auto,
    /// Always, as the plan says.
    Always,
}

/// Where a client says that its prompt is to be computed: the gate is not asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overrule {
    /// Where it is decoded.
    InPlace,
    /// Elsewhere, its KV leaving so; as pays, where that is not said.
    Sent(Option<KvPace>),
}

impl Overrule {
    /// When KV leaves, where it does.
    #[must_use]
    pub fn pace(self) -> Option<KvPace> {
        match self {
            Self::InPlace => None,
            Self::Sent(pace) => pace,
        }
    }
}

/// What a group's steps over a prompt take: L tokens behind P others of it, `fixed + token·L + square·((P + L)² − P²)`
/// seconds (Cronus Eq. 2, with attention).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PromptCost {
    /// Whatever its length.
    pub fixed: f64,
    /// For each token.
    pub token: f64,
    /// For each pair of tokens that look at each other.
    pub square: f64,
}

impl PromptCost {
    /// Of so many layers on a device whose time for one is measured.
    #[must_use]
    pub fn measured(profile: &LayerProfile, layers: u32) -> Self {
        let [fixed, token, square] = profile.prefill.map(|c| c * f64::from(layers));
        Self { fixed, token, square }
    }

    /// Of so many layers at a rate: two operations a weight and token, and attention's products over the tokens before.
    #[must_use]
    pub fn at_rate(shape: &ModelShape, layers: u32, rate: FlopsPerSecond) -> Self {
        let (hidden, kv) = (f64::from(shape.hidden), f64::from(shape.kv_heads * shape.head_dim));
        let heads = f64::from(shape.heads * shape.head_dim);
        let weights = hidden * (2.0 * heads + 2.0 * kv) + 3.0 * hidden * f64::from(shape.intermediate);
        let each = f64::from(layers) / rate.0.max(1.0);
        Self { fixed: 0.0, token: each * 2.0 * weights, square: each * 2.0 * heads }
    }

    /// `tokens` tokens behind `behind` others.
    #[must_use]
    pub fn of(&self, tokens: u32, behind: u32) -> Seconds {
        let (new, old) = (f64::from(tokens), f64::from(behind));
        Seconds(self.fixed + self.token * new + self.square * ((old + new).powi(2) - old.powi(2)))
    }
}

impl std::ops::Add for PromptCost {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        let Self { fixed, token, square } = other;
        Self { fixed: self.fixed + fixed, token: self.token + token, square: self.square + square }
    }
}

/// One side of the comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GateSide {
    /// What prompts take there.
    pub cost: GroupCost,
    /// Prompt tokens waiting there.
    pub pending_tokens: u32,
    /// Sequences decoding there.
    pub running: u32,
}

impl GateSide {
    /// Until a prompt that comes now is computed, of which `has` tokens are there.
    fn time(&self, tokens: u32, has: u32) -> Seconds {
        let has = has.min(tokens.saturating_sub(1));
        self.cost.of(tokens - has, has) + self.cost.behind(self.pending_tokens)
    }
}

/// What the gate looks at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GateCase {
    /// Sizes of the model: how many bytes its KV has.
    pub shape: ModelShape,
    /// Tokens of the prompt.
    pub tokens: u32,
    /// Who would prefill it elsewhere.
    pub remote: GateSide,
    /// Tokens of it whose KV is there from before.
    pub remote_has: u32,
    /// Who decodes it, and could prefill it.
    pub local: GateSide,
    /// Tokens of prompt and answer whose KV is there from before, and may be decoded from.
    pub local_has: u32,
    /// Tokens of the answer that the client has already: their KV is computed where it goes on.
    pub answered: u32,
    /// Latency between them.
    pub latency: Seconds,
    /// Bandwidth between them.
    pub bandwidth: BytesPerSecond,
    /// Bytes of a 16-bit (or wider) element in pages.
    pub element_bytes: u64,
    /// What was seen of packing and unpacking in fewer bits: in those that are told, or as int4.
    pub packed: Codec,
    /// The same of numbers that are sent as they are.
    pub raw: Codec,
    /// When KV is sent, where the owner says.
    pub pace: Option<KvPace>,
}

/// How fast KV is packed on one side and unpacked on the other, where that was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Codec {
    /// By the prefill side, of numbers as they lie in pages.
    pub pack: Option<BytesPerSecond>,
    /// By the decode side.
    pub unpack: Option<BytesPerSecond>,
}

/// What the gate says, with its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GateVerdict {
    /// Predicted time if prefilled elsewhere.
    pub remote: Seconds,
    /// Predicted time if prefilled where it is decoded.
    pub local: Seconds,
    /// Tokens that are there from before, elsewhere and here.
    pub has: [u32; 2],
    /// KV bytes that would cross the network.
    pub kv_bytes: u64,
    /// The packing that is quicker.
    pub codec: KvCodec,
    /// When KV is sent: as told, or so that it is there soonest.
    pub pace: KvPace,
}

impl GateVerdict {
    /// Whether sending pays.
    #[must_use]
    pub fn splits(&self) -> bool {
        self.remote.0 <= self.local.0
    }

    /// Until it can go on, where what is quicker is done.
    #[must_use]
    pub fn soonest(&self) -> Seconds {
        if self.splits() { self.remote } else { self.local }
    }
}

impl fmt::Display for GateVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (remote, local) = (self.remote.0 * 1e3, self.local.0 * 1e3);
        let there = |has: u32| if has > 0 { format!(", {has} tokens being there") } else { String::new() };
        let [far, near] = self.has.map(there);
        write!(f, "elsewhere {remote:.1} ms with {} bytes of KV{far}, here {local:.1} ms{near}", self.kv_bytes)
    }
}

/// KV of a prompt on the wire (bytes).
#[must_use]
pub fn kv_bytes(shape: &ModelShape, tokens: u32, codec: KvCodec, element_bytes: u64) -> u64 {
    let elements = shape.kv_elements_per_token_layer() * u64::from(shape.layers) * u64::from(tokens);
    match codec {
        KvCodec::Raw => elements * element_bytes,
        KvCodec::Int4 => elements * INT4_CENTIBITS / 800,
        KvCodec::Int8 => elements * INT8_CENTIBITS / 800,
        KvCodec::Int3 => elements * INT3_CENTIBITS / 800,
    }
}

/// Compares a remote prefill and the transfer of its KV with a local prefill, in predicted time.
#[must_use]
pub fn weigh(case: &GateCase, choice: KvChoice) -> GateVerdict {
    let computed = case.remote.time(case.tokens, case.remote_has);
    let codec = choice.codec().unwrap_or_else(|| {
        let there = |codec| KvTransferCost::of(case, codec).sent(case.pace, computed).0.0;
        if there(KvCodec::Raw) < there(KvCodec::Int4) { KvCodec::Raw } else { KvCodec::Int4 }
    });
    let (remote, pace) = KvTransferCost::of(case, codec).sent(case.pace, computed);
    let held_up = f64::from(1 + case.local.running.min(HELD_UP_AT_MOST));
    let answer = if case.answered > 0 { case.local.cost.of(case.answered, case.tokens) } else { Seconds(0.0) };
    GateVerdict {
        remote: remote + Seconds(answer.0 * held_up),
        local: Seconds(case.local.time(case.tokens + case.answered, case.local_has).0 * held_up),
        has: [case.remote_has, case.local_has],
        kv_bytes: kv_bytes(&case.shape, case.tokens, codec, case.element_bytes),
        codec,
        pace,
    }
}

/// What it takes to bring a prompt's KV to the decode side, in the pieces that tiles are.
#[derive(Clone, Copy, Debug, PartialEq)]
struct KvTransferCost {
    tiles: f64,
    latency: Seconds,
    pack: Seconds,
    wire: Seconds,
    unpack: Seconds,
}

impl KvTransferCost {
    fn of(case: &GateCase, codec: KvCodec) -> Self {
        let bytes = |codec| kv_bytes(&case.shape, case.tokens, codec, case.element_bytes);
        let (seen, unseen) = if codec == KvCodec::Raw { (case.raw, COPY_RATE) } else { (case.packed, CODEC_RATE) };
        let time = |rate: Option<BytesPerSecond>| rate.unwrap_or(unseen).time_for(bytes(KvCodec::Raw));
        Self {
            tiles: f64::from(case.shape.layers.max(1)),
            latency: case.latency,
            pack: time(seen.pack),
            wire: case.bandwidth.time_for(bytes(codec)),
            unpack: time(seen.unpack),
        }
    }

    /// When all of it is there, sent as told or as is best.
    fn sent(&self, pace: Option<KvPace>, computed: Seconds) -> (Seconds, KvPace) {
        match pace {
            None => self.best(computed),
            Some(KvPace::Whole) => (self.whole(computed), KvPace::Whole),
            Some(KvPace::Layers) => (self.by_layers(computed), KvPace::Layers),
        }
    }

    /// When all of it is there, and how it is best sent. Layer by layer costs something for every tile.
    fn best(&self, computed: Seconds) -> (Seconds, KvPace) {
        let (whole, layers) = (self.whole(computed), self.by_layers(computed));
        if layers.0 + self.tiles * TILE.0 < whole.0 { (layers, KvPace::Layers) } else { (whole, KvPace::Whole) }
    }

    /// Tiles follow each other through packing, wire and unpacking: the slowest counts whole, the others for one tile.
    fn whole(&self, computed: Seconds) -> Seconds {
        let all = self.pack + self.wire + self.unpack;
        let slowest = self.pack.max(self.wire).max(self.unpack);
        computed + self.latency + slowest + Seconds((all - slowest).0 / self.tiles)
    }

    /// Packing is part of computing then; what wire and decode side do meanwhile is hidden.
    fn by_layers(&self, computed: Seconds) -> Seconds {
        let computed = computed + self.pack;
        let hidden = Seconds(computed.0 * (1.0 - 1.0 / self.tiles));
        let (slow, quick) = (self.wire.max(self.unpack), self.wire.min(self.unpack));
        let late = (slow - hidden).max(Seconds(slow.0 / self.tiles));
        computed + self.latency + late + Seconds(quick.0 / self.tiles)
    }
}

#[cfg(test)]
mod tests;
