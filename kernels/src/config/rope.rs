//! Rotary positions of `config.json`: `rope_theta` and `rope_scaling` of transformers 4, `rope_parameters` of 5.

use super::{Keys, ModelConfig, ModelConfigError};
use crate::rope::RopeScaling;
use tsnode_protocol::limits;

/// Context of the first training.
const ORIGINAL: &str = "original_max_position_embeddings";

/// Reads base, stretch and turning channels into `config`.
pub(super) fn read(config: &mut ModelConfig, keys: &Keys) -> Result<(), ModelConfigError> {
    read_from(config, keys, &keys.rope()?.unwrap_or_default())
}

/// As [`read`], from the parameters `rope`.
pub(super) fn read_from(config: &mut ModelConfig, keys: &Keys, rope: &Keys) -> Result<(), ModelConfigError> {
    if let Some(theta) = either(keys, rope, "rope_theta")? {
        config.rope_theta = theta;
    }
    if let Some(part) = either(keys, rope, "partial_rotary_factor")? {
        let dim = (f64::from(part) * config.head_dim as f64) as usize;
        if dim == 0 || dim > config.head_dim || !dim.is_multiple_of(2) {
            return Err(ModelConfigError::Unsupported { what: "partial_rotary_factor", value: part.to_string() });
        }
        config.rope_dim = dim;
    }
    config.rope_scaling = match rope.text("rope_type")?.or(rope.text("type")?) {
        None | Some("default") => RopeScaling::None,
        // Stretches once a sequence is longer than `max_position_embeddings`, where contexts end.
        Some("dynamic") => {
            need(rope, "factor")?;
            RopeScaling::None
        }
        Some("linear") => RopeScaling::Linear { factor: need(rope, "factor")? },
        Some("llama3") => RopeScaling::Llama3 {
            factor: need(rope, "factor")?,
            low: need(rope, "low_freq_factor")?,
            high: need(rope, "high_freq_factor")?,
            original: need(rope, "original_max_position_embeddings")?,
        },
        Some("yarn") => yarn(config, keys, rope)?,
        Some("longrope" | "su") => long(config, keys, rope)?,
        Some(_) if rope.text("rope_type")?.is_some() => return Err(rope.refusal("rope_type")),
        Some(_) => return Err(rope.refusal("type")),
    };
    Ok(())
}

/// YaRN: which frequencies are kept and which stretched, by how often they turn within the first training's context.
fn yarn(config: &mut ModelConfig, keys: &Keys, rope: &Keys) -> Result<RopeScaling, ModelConfigError> {
    let original = match (keys.count(ORIGINAL)?, rope.count(ORIGINAL)?) {
        (Some(length), _) | (None, Some(length)) => length,
        (None, None) => config.context,
    };
    let factor = match rope.number("factor")? {
        Some(factor) => factor,
        None => config.context as f32 / original as f32,
    };
    if !(1.0..=1e6).contains(&factor) {
        return Err(rope.refusal("factor"));
    }
    let turns = |key, usual: f32| match rope.number(key)?.filter(|turns| *turns != 0.0) {
        Some(turns) if turns < 0.0 => Err(rope.refusal(key)),
        turns => Ok(f64::from(turns.unwrap_or(usual))),
    };
    let (fast, slow) = (turns("beta_fast", 32.0)?, turns("beta_slow", 1.0)?);
    let whole = rope.flag("truncate")?.unwrap_or(true);
    let (dim, base) = (config.rope_dim as f64, f64::from(config.rope_theta));
    // The number of the frequency that turns so often.
    let number =
        |turns: f64| dim * libm::log(original as f64 / (turns * 2.0 * std::f64::consts::PI)) / (2.0 * libm::log(base));
    let (kept, stretched) = (number(fast), number(slow));
    let (kept, stretched) = if whole { (kept.floor(), stretched.ceil()) } else { (kept, stretched) };
    let (kept, stretched) = (kept.max(0.0), stretched.min(dim - 1.0));
    if !(kept.is_finite() && stretched.is_finite()) {
        return Err(keys.refusal("rope_theta"));
    }
    let stretched = if kept == stretched { stretched + 0.001 } else { stretched };
    let amplitude = amplitude(rope, factor)?;
    // What it was stretched for, where `max_position_embeddings` are those of the first training.
    let reached = (original as f64 * f64::from(factor)).min(f64::from(limits::SEQUENCE_TOKENS)) as usize;
    config.context = config.context.max(reached);
    Ok(RopeScaling::Yarn { factor, kept: kept as f32, stretched: stretched as f32, amplitude })
}

/// What YaRN multiplies sines and cosines by.
fn amplitude(rope: &Keys, factor: f32) -> Result<f32, ModelConfigError> {
    let grown = |by: f32| if factor <= 1.0 { 1.0 } else { 0.1 * by * libm::logf(factor) + 1.0 };
    let (some, all) = (rope.number("mscale")?, rope.number("mscale_all_dim")?);
    let by_length = match (some.filter(|m| *m != 0.0), all.filter(|m| *m != 0.0)) {
        (Some(some), Some(all)) => grown(some) / grown(all),
        _ => grown(1.0),
    };
    let amplitude = rope.number("attention_factor")?.unwrap_or(by_length);
    if amplitude.is_finite() && amplitude > 0.0 { Ok(amplitude) } else { Err(rope.refusal("attention_factor")) }
}

/// LongRoPE's short factors, for a context that ends where they do; the long ones are kept for who chooses them.
fn long(config: &mut ModelConfig, keys: &Keys, rope: &Keys) -> Result<RopeScaling, ModelConfigError> {
    let factors_of = |key| match rope.numbers(key)? {
        Some(all) if all.len() == config.rope_dim / 2 && all.iter().all(|f| *f > 0.0) => Ok(all),
        _ => Err(rope.refusal(key)),
    };
    let factors = factors_of("short_factor")?;
    let longer = if rope.is_null("long_factor") { None } else { Some(factors_of("long_factor")?) };
    let longest = keys.length("max_position_embeddings")?.unwrap_or(config.context as f64);
    let original = keys.count(ORIGINAL)?.or(rope.count(ORIGINAL)?).unwrap_or(config.context);
    if original < 2 {
        return Err(ModelConfigError::Unsupported { what: ORIGINAL, value: original.to_string() });
    }
    let stretch = match rope.number("factor")? {
        // transformers prefers what the two lengths say to what is written.
        Some(factor) if keys.count(ORIGINAL)?.is_none() => f64::from(factor),
        _ => longest / original as f64,
    };
    let by_length = libm::sqrt(1.0 + libm::log(stretch.max(1.0)) / libm::log(original as f64)) as f32;
    let amplitude = rope.number("attention_factor")?.unwrap_or(by_length);
    if !amplitude.is_finite() {
        return Err(keys.refusal("max_position_embeddings"));
    }
    let reached = config.context;
    config.long =
        longer.filter(|_| reached > original).map(|factors| (RopeScaling::Long { factors, amplitude }, reached));
    config.context = reached.min(original);
    Ok(RopeScaling::Long { factors, amplitude })
}

fn either(keys: &Keys, rope: &Keys, key: &'static str) -> Result<Option<f32>, ModelConfigError> {
    // As transformers 5 has it; 4 writes each in one place only.
    let (outside, within) = (keys.number(key)?, rope.number(key)?);
    Ok(within.or(outside))
}

fn need(rope: &Keys, what: &'static str) -> Result<f32, ModelConfigError> {
    rope.number(what)?
        .filter(|x| *x > 0.0)
        .ok_or_else(|| ModelConfigError::Unsupported { what, value: "missing or out of range".into() })
}
