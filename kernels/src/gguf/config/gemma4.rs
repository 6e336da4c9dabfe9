//! What only Gemma 4's files say: heads by layer, how layers of both kinds turn, and what its small models have more.

use super::{
    super::{
        GgufError,
        architecture::{LAYER_INPUTS, ROPE_FACTORS},
    },
    ArchitectureKeys as Said, MetadataValue, Shapes,
};
use serde::Serialize;
use std::collections::BTreeMap;

/// What is written, under the names that its family reads.
#[derive(Serialize)]
pub(super) struct Gemma4Keys {
    per_layer_config: BTreeMap<usize, GlobalHeads>,
    attention_k_eq_v: bool,
    hidden_size_per_layer_input: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    vocab_size_per_layer_input: Option<u32>,
    num_kv_shared_layers: u32,
    use_double_wide_mlp: bool,
    enable_moe_block: bool,
    rope_parameters: BTreeMap<&'static str, RopeParameters>,
}

/// Heads of a layer without a window.
#[derive(Serialize)]
struct GlobalHeads {
    head_dim: u32,
    num_key_value_heads: u32,
}

/// How a kind of layers turns; what of wide heads does not is in a tensor of factors.
#[derive(Serialize)]
struct RopeParameters {
    rope_type: &'static str,
    rope_theta: f32,
}

/// Width of heads of layers with a window, and of the others.
pub(super) const NARROW: &str = "attention.key_length_swa";
const WIDE: &str = "attention.key_length";
/// Number of heads by layer, or of all.
const HEADS: &str = "attention.head_count_kv";
/// Layers at the end that read the keys and values of others, and numbers that enter each layer.
pub(super) const SHARED: &str = "attention.shared_kv_layers";
pub(super) const INPUTS: &str = "embedding_length_per_layer_input";
/// Width of MLPs, by layer or of all.
const WIDTH: &str = "feed_forward_length";
/// What a layer without a window is called.
const FULL: &str = "full_attention";

/// Heads of keys and values of a layer.
fn heads(said: &Said<'_, '_>, layer: usize, usual: u32) -> Result<u32, GgufError> {
    let wrong = || GgufError::Value { key: said.key(HEADS), wanted: "a number for each layer" };
    match said.metadata.get(&said.key(HEADS)) {
        Some(MetadataValue::Array(list)) => match list.iter().nth(layer) {
            Some(MetadataValue::Integer(count)) => u32::try_from(count).map_err(|_| wrong()),
            _ => Err(wrong()),
        },
        _ => Ok(said.count(HEADS)?.unwrap_or(usual)),
    }
}

/// Of layers with a window: the first that has one says it, and others that say something else are refused.
pub(super) fn narrow_heads(said: &Said<'_, '_>, usual: u32) -> Result<u32, GgufError> {
    let types = super::listed(said)?.unwrap_or_default();
    let each = types.iter().enumerate().filter(|(_, kind)| **kind != FULL);
    let counts = each.map(|(layer, _)| heads(said, layer, usual)).collect::<Result<Vec<_>, _>>()?;
    if counts.windows(2).any(|pair| pair[0] != pair[1]) {
        said.refuse(HEADS, "several numbers in layers with a window", "one is")?;
    }
    counts.first().map_or_else(|| heads(said, 0, usual), |count| Ok(*count))
}

/// Width of a layer's MLP.
fn width(said: &Said<'_, '_>, layer: usize) -> Result<u32, GgufError> {
    let wrong = || GgufError::Value { key: said.key(WIDTH), wanted: "a number for each layer" };
    match said.metadata.get(&said.key(WIDTH)) {
        Some(MetadataValue::Array(list)) => match list.iter().nth(layer) {
            Some(MetadataValue::Integer(width)) => u32::try_from(width).map_err(|_| wrong()),
            _ => Err(wrong()),
        },
        _ => said.needed(WIDTH),
    }
}

/// Width of the first layer's MLP: those at the end may be twice as wide.
pub(super) fn intermediate(said: &Said<'_, '_>) -> Result<u32, GgufError> {
    width(said, 0)
}

pub(super) fn keys(
    said: &Said<'_, '_>,
    shapes: &Shapes<'_, '_>,
    types: &[&'static str],
) -> Result<Gemma4Keys, GgufError> {
    let (narrow, wide) = (said.needed(NARROW)?, said.needed(WIDE)?);
    for (key, width) in [
        ("attention.value_length", wide),
        ("attention.value_length_swa", narrow),
        ("rope.dimension_count", wide),
        ("rope.dimension_count_swa", narrow),
    ] {
        if let Some(other) = said.count(key)?.filter(|other| *other != width) {
            said.refuse(key, other, "as many as keys have are")?;
        }
    }
    if !shapes.has(ROPE_FACTORS) {
        let problem = "is missing: nothing says what of wide heads turns".to_owned();
        return Err(GgufError::Tensor { name: ROPE_FACTORS.to_owned(), problem });
    }
    let usual = said.needed("attention.head_count")?;
    let shared = said.count(SHARED)?.unwrap_or(0);
    let own = types.len().saturating_sub(shared as usize);
    let last = types.len().saturating_sub(1);
    let inputs = said.count(INPUTS)?.unwrap_or(0);
    let full = || types.iter().enumerate().filter(|(_, kind)| **kind == FULL).map(|(layer, _)| layer);
    let of = |layer| Ok((layer, GlobalHeads { head_dim: wide, num_key_value_heads: heads(said, layer, usual)? }));
    let turn = |theta| RopeParameters { rope_type: "default", rope_theta: theta };
    let theta = said.real("rope.freq_base")?.unwrap_or(1_000_000.0);
    let local = said.real("rope.freq_base_swa")?.unwrap_or(10_000.0);
    Ok(Gemma4Keys {
        per_layer_config: full().map(of).collect::<Result<_, GgufError>>()?,
        // A layer that has none of its own has its keys, if it is none that reads another's.
        attention_k_eq_v: full().any(|layer| layer < own && !shapes.has(&format!("blk.{layer}.attn_v.weight"))),
        hidden_size_per_layer_input: inputs,
        vocab_size_per_layer_input: if inputs > 0 { Some(shapes.rows(LAYER_INPUTS)?) } else { None },
        num_kv_shared_layers: shared,
        use_double_wide_mlp: shared > 0 && width(said, last)? != width(said, 0)?,
        enable_moe_block: said.architecture.mixture,
        rope_parameters: BTreeMap::from([(FULL, turn(theta)), ("sliding_attention", turn(local))]),
    })
}
