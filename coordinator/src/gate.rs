//! Prompt flow 2: the cost gate. Is it quicker to prefill elsewhere and send the KV, or to prefill where it is needed?
//!
//! Splitting pays only where the link carries the KV faster than the decode side could have computed it (ThunderServe
//! App. H; Splitwise §VI-A). The gate compares predicted times to the decode side being able to go on:
//!
//! - elsewhere: queue + prompt there + α + bytes/β (α and β of the link, bytes by codec);
//! - here: queue + prompt here, counted once more for every sequence it would hold up meanwhile.

use serde::{Deserialize, Serialize};
use std::fmt;
use tsnode_protocol::{BytesPerSecond, FlopsPerSecond, KvCodec, ModelShape, Seconds};

/// What packed elements take, scales included (hundredths of a bit): `kernels::wire`, in whole blocks.
const INT4_CENTIBITS: u64 = 426;
const INT8_CENTIBITS: u64 = 826;
/// Rate at which tiles are packed and unpacked, both counted once: above it, sending 16-bit elements as they are is
/// quicker. A core's share while others compute; `tsnode bench codec` measures what it does alone.
const CODEC_RATE: BytesPerSecond = BytesPerSecond(1.5e9);
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
    /// Four bits.
    Int4,
    /// Eight bits.
    Int8,
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

/// One side of the comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Side {
    /// Rate of its slowest stage, or of the only one.
    pub flops: FlopsPerSecond,
    /// Prompt tokens waiting there.
    pub pending_tokens: u32,
    /// Sequences decoding there.
    pub running: u32,
}

/// What the gate looks at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// The model.
    pub shape: ModelShape,
    /// Tokens of the prompt.
    pub tokens: u32,
    /// Who would prefill it elsewhere.
    pub remote: Side,
    /// Tokens of it whose KV is there from before.
    pub remote_has: u32,
    /// Who decodes it, and could prefill it.
    pub local: Side,
    /// Latency between them.
    pub latency: Seconds,
    /// Bandwidth between them.
    pub bandwidth: BytesPerSecond,
    /// Bytes of a 16-bit (or wider) element in pages.
    pub element_bytes: u64,
}

/// What the gate says, with its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// Predicted time if prefilled elsewhere.
    pub remote: Seconds,
    /// Predicted time if prefilled where it is decoded.
    pub local: Seconds,
    /// KV bytes that would cross the network.
    pub kv_bytes: u64,
    /// The packing that is quicker.
    pub codec: KvCodec,
}

impl Verdict {
    /// Whether sending pays.
    #[must_use]
    pub fn splits(&self) -> bool {
        self.remote.0 <= self.local.0
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (remote, local) = (self.remote.0 * 1e3, self.local.0 * 1e3);
        write!(f, "elsewhere {remote:.1} ms with {} bytes of KV, here {local:.1} ms", self.kv_bytes)
    }
}

/// Operations to prefill `tokens` tokens: two per weight and token, and attention's products over the tokens before.
#[must_use]
pub fn prefill_flops(shape: &ModelShape, tokens: u32) -> f64 {
    let (hidden, kv) = (f64::from(shape.hidden), f64::from(shape.kv_heads * shape.head_dim));
    let heads = f64::from(shape.heads * shape.head_dim);
    let weights = hidden * (2.0 * heads + 2.0 * kv) + 3.0 * hidden * f64::from(shape.intermediate);
    let n = f64::from(tokens);
    f64::from(shape.layers) * (2.0 * weights * n + 2.0 * heads * n * n)
}

/// KV of a prompt on the wire (bytes).
#[must_use]
pub fn kv_bytes(shape: &ModelShape, tokens: u32, codec: KvCodec, element_bytes: u64) -> u64 {
    let elements = shape.kv_elements_per_token_layer() * u64::from(shape.layers) * u64::from(tokens);
    match codec {
        KvCodec::Raw => elements * element_bytes,
        KvCodec::Int4 => elements * INT4_CENTIBITS / 800,
        KvCodec::Int8 => elements * INT8_CENTIBITS / 800,
    }
}

/// Compares.
#[must_use]
pub fn weigh(case: &Case, choice: KvChoice) -> Verdict {
    let send = |codec| {
        let bytes = kv_bytes(&case.shape, case.tokens, codec, case.element_bytes);
        let raw = kv_bytes(&case.shape, case.tokens, KvCodec::Raw, case.element_bytes);
        let packing = if codec == KvCodec::Raw { Seconds(0.0) } else { CODEC_RATE.time_for(raw) };
        (case.latency + case.bandwidth.time_for(bytes) + packing, bytes)
    };
    let codec = match choice {
        KvChoice::Raw => KvCodec::Raw,
        KvChoice::Int4 => KvCodec::Int4,
        KvChoice::Int8 => KvCodec::Int8,
        KvChoice::Auto if send(KvCodec::Raw).0.0 < send(KvCodec::Int4).0.0 => KvCodec::Raw,
        KvChoice::Auto => KvCodec::Int4,
    };
    let prompt = |side: &Side, has: u32| {
        let tokens = case.tokens.saturating_sub(has).max(1).saturating_add(side.pending_tokens);
        side.flops.time_for(prefill_flops(&case.shape, tokens.min(case.shape.context.max(case.tokens))))
    };
    let (sending, kv_bytes) = send(codec);
    let held_up = f64::from(1 + case.local.running.min(HELD_UP_AT_MOST));
    Verdict {
        remote: prompt(&case.remote, case.remote_has) + sending,
        local: Seconds(prompt(&case.local, 0).0 * held_up),
        kv_bytes,
        codec,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn llama3_8b() -> ModelShape {
        ModelShape {
            layers: 32,
            hidden: 4096,
            intermediate: 14336,
            heads: 32,
            kv_heads: 8,
            head_dim: 128,
            vocab: 128_256,
            context: 8192,
            layer_bytes: 436_224_000,
            embed_bytes: 1_050_673_152,
            head_bytes: 1_050_681_344,
        }
    }

    fn case(mbit: f64) -> Case {
        let gpu = Side { flops: FlopsPerSecond(50e12), pending_tokens: 0, running: 0 };
        Case {
            shape: llama3_8b(),
            tokens: 4096,
            remote: gpu,
            remote_has: 0,
            local: Side { flops: FlopsPerSecond(20e12), ..gpu },
            latency: Seconds(0.01),
            bandwidth: BytesPerSecond(mbit * 1e6 / 8.0),
            element_bytes: 2,
        }
    }

    #[test]
    fn kv_is_as_large_as_the_design_says() {
        assert_eq!(kv_bytes(&llama3_8b(), 4096, KvCodec::Raw, 2), 512 << 20);
        // Two operations a weight: 8 B parameters less the embeddings are 7 B.
        let flops = prefill_flops(&llama3_8b(), 1);
        assert!((flops / 2.0 / 6.98e9 - 1.0).abs() < 0.01, "{flops}");
    }

    #[test]
    fn a_slow_link_does_not_pay_and_a_fast_one_does() {
        assert!(!weigh(&case(100.0), KvChoice::Auto).splits());
        assert!(weigh(&case(10_000.0), KvChoice::Auto).splits());
    }

    #[test]
    fn a_busy_decode_side_makes_it_pay_sooner() {
        let mut busy = case(700.0);
        assert!(!weigh(&busy, KvChoice::Int4).splits());
        busy.local.running = 4;
        assert!(weigh(&busy, KvChoice::Int4).splits());
    }

    #[test]
    fn packing_is_for_links_slower_than_it() {
        assert_eq!(weigh(&case(1000.0), KvChoice::Auto).codec, KvCodec::Int4);
        assert_eq!(weigh(&case(100_000.0), KvChoice::Auto).codec, KvCodec::Raw);
        assert_eq!(weigh(&case(100_000.0), KvChoice::Int4).codec, KvCodec::Int4);
    }
}
