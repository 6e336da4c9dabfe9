//! What a stage costs: HexGen's model (see [`tsnode_simulator::baselines::hexgen`]) with what it leaves out.
//!
//! Times are linear in what a batch holds, as the references fit them (Splitwise §V, SeaLLM §4, Cronus §3):
//!
//! - prefill of prompts of L tokens: `fixed + per_token·ΣL + per_square·ΣL²`;
//! - one decode iteration of n sequences: `fixed + per_context·Σctx + per_sequence·n`.
//!
//! Formulas are the prior; figures of a device are what it reaches, measured where somebody measured
//! ([`super::figures`], adverts). Beyond HexGen: causal attention's products (2·L²·h·d_h a layer), KV reads, the output
//! head, grouped KV heads. Memory keeps a tenth free.

pub use super::timing::{Decode, Prefill};

use super::{cluster::ClusterLink, figures::DeviceFigures, public_models::Model};
use tsnode_protocol::{Bytes, BytesPerToken, Flops, Tokens};

/// Part of a device's memory that a plan may use: allocators, other programs and estimates take the rest.
pub const USABLE: f64 = 0.9;
/// Prompt tokens in flight that working memory is counted for.
const WORKING_TOKENS: Tokens = Tokens(2048.0);

/// Sequences of a batch between which and one the bytes that a step reads are taken to grow evenly: as many as measured steps
/// have at most. Of a mixture of experts more sequences need more experts, though ever fewer more.
const BATCH: f64 = 16.0;

/// What one layer costs on `tp` devices of one kind on one host, and what comes on top at the ends of the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerCost {
    /// A layer's prefill.
    pub prefill: Prefill,
    /// A layer's decode.
    pub decode: Decode,
    head_prefill: Prefill,
    head_decode: Decode,
    /// Weights of a layer on each device.
    weights: Bytes,
    /// KV of one token in a layer on each device.
    kv: BytesPerToken,
    embed: Bytes,
    head: Bytes,
    /// Memory a plan may use on each device, working memory taken off.
    room: Bytes,
    /// Of that, the most that KV may take.
    pool: Bytes,
}

/// Whether a stage is the model's first, its last, both or neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageEnds {
    /// Holds the embedding.
    pub first: bool,
    /// Holds the output head.
    pub last: bool,
}

impl LayerCost {
    /// On `tp` devices of this kind: by the formulas, or as measured where one device was.
    #[must_use]
    pub fn new(model: &Model, device: &DeviceFigures, inside: ClusterLink, tp: u16) -> Self {
        let (shape, d) = (&model.shape, f64::from(tp));
        // On each device: a part of the weights, and of the work.
        let part = |bytes: u64| Bytes(bytes as f64) / d;
        let work = |flops: f64| Flops(flops / d) / device.flops;
        let (weights, head_bytes) = (part(shape.layer_bytes), part(shape.head_bytes));
        // KV heads cannot be cut further: more devices than heads hold copies.
        let kv_heads = (f64::from(shape.kv_heads) / d).max(1.0);
        let kv = Bytes(2.0 * kv_heads * f64::from(shape.head_dim) * model.element).per_token();
        let row = Bytes(f64::from(shape.hidden) * model.element);
        let all_reduces = 4.0 * (d - 1.0);
        let fixed = weights / device.bandwidth + inside.latency * all_reduces;
        let token = work(2.0 * model.layer_weights) + row / d / inside.bandwidth * all_reduces;
        let attention = work(2.0 * f64::from(shape.heads) * f64::from(shape.head_dim));
        let prefill = Prefill { fixed, per_token: token.per_token(), per_square: attention.per_token().per_token() };
        let read = |sequences| Bytes(shape.active_layer_bytes(sequences)) / d / device.bandwidth;
        let more = (read(BATCH) - read(1.0)) / (BATCH - 1.0);
        let few = read(1.0) - more + inside.latency * all_reduces;
        let decode = Decode { fixed: few, per_context: kv / device.bandwidth, per_sequence: token + more };
        let (prefill, decode) = device.profile.filter(|_| tp == 1).unwrap_or((prefill, decode));
        let logits = work(2.0 * f64::from(shape.vocab) * f64::from(shape.hidden));
        let head = head_bytes / device.bandwidth;
        let working = row.per_token() * WORKING_TOKENS.min(Tokens(f64::from(shape.context))) * 4.0;
        Self {
            prefill,
            decode,
            head_prefill: Prefill { fixed: head + logits, ..Prefill::default() },
            head_decode: Decode { fixed: head, per_sequence: logits, ..Decode::default() },
            weights,
            kv,
            embed: part(shape.embed_bytes),
            head: head_bytes,
            room: device.memory * USABLE - working,
            pool: device.pool.unwrap_or(Bytes(f64::INFINITY)),
        }
    }

    /// A stage's prefill.
    #[must_use]
    pub fn stage_prefill(&self, layers: u32, ends: StageEnds) -> Prefill {
        let body = self.prefill.times(f64::from(layers));
        if ends.last { body.then(&self.head_prefill) } else { body }
    }

    /// A stage's decode.
    #[must_use]
    pub fn stage_decode(&self, layers: u32, ends: StageEnds) -> Decode {
        let body = self.decode.times(f64::from(layers));
        if ends.last { body.then(&self.head_decode) } else { body }
    }

    /// Weights of a stage on each of its devices.
    #[must_use]
    pub fn stage_weights(&self, layers: u32, ends: StageEnds) -> Bytes {
        self.weights * f64::from(layers) + (self.room - self.room_at(ends))
    }

    /// KV of one token in so many layers, on each device.
    #[must_use]
    pub fn stage_kv(&self, layers: u32) -> BytesPerToken {
        self.kv * f64::from(layers)
    }

    /// What weights and KV may take on each device, and what KV alone may.
    #[must_use]
    pub fn room(&self) -> (Bytes, Bytes) {
        (self.room, self.pool)
    }

    /// Tokens of KV that fit beside the weights; negative where the weights alone do not.
    #[must_use]
    pub fn kv_tokens(&self, layers: u32, ends: StageEnds) -> Tokens {
        let n = f64::from(layers);
        (self.room_at(ends) - self.weights * n).min(self.pool) / (self.kv * n)
    }

    /// The most layers that fit with room for `tokens` tokens of KV.
    #[must_use]
    pub fn most_layers(&self, tokens: Tokens, ends: StageEnds) -> u32 {
        let kv = self.kv * tokens;
        (self.room_at(ends) / (self.weights + kv)).min(self.pool / kv).clamp(0.0, f64::from(u32::MAX)) as u32
    }

    fn room_at(&self, ends: StageEnds) -> Bytes {
        self.room - self.embed * f64::from(u8::from(ends.first)) - self.head * f64::from(u8::from(ends.last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::{figures, public_models};
    use tsnode_protocol::{BytesPerSecond, Experts, ModelShape, Seconds};

    fn on(figures: &DeviceFigures, tp: u16) -> LayerCost {
        let inside = ClusterLink { latency: Seconds(1e-5), bandwidth: BytesPerSecond(25.6e9) };
        LayerCost::new(&public_models::by_name("LLaMA-30B").unwrap(), figures, inside, tp)
    }

    /// Two products of s²·H/2 multiply-adds each where the mask is causal, against 12·s·H²: s/(12H), 1.3 % here.
    #[test]
    fn attention_is_the_part_that_grows_with_the_square() {
        let cost = on(&figures::from_peaks("g".into(), 100.0, 1000.0, 80.0), 1);
        let part = cost.prefill.per_square * Tokens(1024.0) / cost.prefill.per_token;
        assert!((part / (1024.0 / (12.0 * 6656.0)) - 1.0).abs() < 0.02, "{part}");
    }

    /// All experts lie in memory; a sequence waits for those that it passes, sixteen for most.
    #[test]
    fn experts_that_nobody_passes_take_memory_and_no_time() {
        let inside = ClusterLink { latency: Seconds(1e-5), bandwidth: BytesPerSecond(25.6e9) };
        let device = figures::from_peaks("g".into(), 100.0, 1000.0, 80.0);
        let dense = public_models::by_name("Llama-3-8B").unwrap();
        let bytes = dense.shape.layer_bytes;
        let mixed = |experts| {
            let shape = ModelShape { layer_bytes: 9 * bytes, experts, ..dense.shape };
            LayerCost::new(&Model { shape, ..dense.clone() }, &device, inside, 1)
        };
        let (all, some) = (mixed(None), mixed(Some(Experts { count: 64, used: 4, bytes: 8 * bytes })));
        let ends = StageEnds { first: false, last: false };
        assert_eq!(all.stage_weights(3, ends), some.stage_weights(3, ends));
        assert_eq!(all.kv_tokens(3, ends), some.kv_tokens(3, ends));
        assert_eq!(all.prefill, some.prefill);
        let none = Tokens(0.0);
        let read = |sequences: f64| some.decode.time(sequences, none);
        let token = all.decode.per_sequence;
        let part = |sequences: f64| (read(sequences) - token * sequences) / all.decode.fixed;
        // One byte in nine is no expert's; of the others a sequence reads one in sixteen, sixteen sequences 64 %.
        assert!((part(1.0) - (1.0 + 8.0 / 16.0) / 9.0).abs() < 1e-6, "{}", part(1.0));
        assert!((part(16.0) - (1.0 + 8.0 * 0.644) / 9.0).abs() < 1e-3, "{}", part(16.0));
    }

    #[test]
    fn what_was_measured_replaces_the_formulas_on_one_device() {
        let measured = (
            Prefill { fixed: Seconds(1.0), ..Prefill::default() },
            Decode { fixed: Seconds(2.0), ..Decode::default() },
        );
        let plain = figures::from_peaks("g".into(), 100.0, 1000.0, 80.0);
        let figures = DeviceFigures { profile: Some(measured), ..plain.clone() };
        assert_eq!((on(&figures, 1).prefill, on(&figures, 1).decode), measured);
        assert_eq!(on(&figures, 2), on(&plain, 2), "side by side nothing was measured");
    }
}
