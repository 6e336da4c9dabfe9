//! Rotary positions of `config.json`: `rope_theta` and `rope_scaling` of transformers 4, `rope_parameters` of 5.

use super::{ConfigError, Keys, ModelConfig};
use crate::rope::RopeScaling;

/// Reads base, stretch and turning channels into `config`.
pub(super) fn read(config: &mut ModelConfig, keys: &Keys) -> Result<(), ConfigError> {
    // Where a file has both, transformers 5 takes the old name too.
    let new = keys.within("rope_parameters")?;
    let rope = keys.within("rope_scaling")?.filter(|old| !old.is_empty()).or(new).unwrap_or_default();
    read_from(config, keys, &rope)
}

/// As [`read`], from the parameters `rope`.
pub(super) fn read_from(config: &mut ModelConfig, keys: &Keys, rope: &Keys) -> Result<(), ConfigError> {
    if let Some(theta) = either(keys, rope, "rope_theta")? {
        config.rope_theta = theta;
    }
    if let Some(part) = either(keys, rope, "partial_rotary_factor")? {
        let dim = (f64::from(part) * config.head_dim as f64) as usize;
        if dim == 0 || dim > config.head_dim || !dim.is_multiple_of(2) {
            return Err(ConfigError::Unsupported { what: "partial_rotary_factor", value: part.to_string() });
        }
        config.rope_dim = dim;
    }
    config.rope_scaling = match rope.text("rope_type")?.or(rope.text("type")?) {
        None | Some("default") => RopeScaling::None,
        Some("linear") => RopeScaling::Linear { factor: need(rope, "factor")? },
        Some("llama3") => RopeScaling::Llama3 {
            factor: need(rope, "factor")?,
            low: need(rope, "low_freq_factor")?,
            high: need(rope, "high_freq_factor")?,
            original: need(rope, "original_max_position_embeddings")?,
        },
        Some("longrope" | "su") => long(config, keys, rope)?,
        Some(_) if rope.text("rope_type")?.is_some() => return Err(rope.refusal("rope_type")),
        Some(_) => return Err(rope.refusal("type")),
    };
    Ok(())
}

/// LongRoPE's short factors, for a context that ends where they do.
fn long(config: &mut ModelConfig, keys: &Keys, rope: &Keys) -> Result<RopeScaling, ConfigError> {
    const ORIGINAL: &str = "original_max_position_embeddings";
    let factors = rope.numbers("short_factor")?.ok_or_else(|| rope.refusal("short_factor"))?;
    if factors.len() != config.rope_dim / 2 || factors.iter().any(|f| *f <= 0.0) {
        return Err(rope.refusal("short_factor"));
    }
    let longest = keys.length("max_position_embeddings")?.unwrap_or(config.context as f64);
    let original = keys.count(ORIGINAL)?.or(rope.count(ORIGINAL)?).unwrap_or(config.context);
    if original < 2 {
        return Err(ConfigError::Unsupported { what: ORIGINAL, value: original.to_string() });
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
    config.context = config.context.min(original);
    Ok(RopeScaling::Long { factors, amplitude })
}

fn either(keys: &Keys, rope: &Keys, key: &'static str) -> Result<Option<f32>, ConfigError> {
    // As transformers 5 has it; 4 writes each in one place only.
    let (outside, within) = (keys.number(key)?, rope.number(key)?);
    Ok(within.or(outside))
}

fn need(rope: &Keys, what: &'static str) -> Result<f32, ConfigError> {
    rope.number(what)?
        .filter(|x| *x > 0.0)
        .ok_or_else(|| ConfigError::Unsupported { what, value: "missing or out of range".into() })
}
