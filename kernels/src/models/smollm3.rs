//! SmolLM3 (Hugging Face 2025): Llama of which one layer in four does not turn queries and keys by their positions.

use super::{
    Family,
    decoder::{
        self,
        parts::{Attention, GatedMlp, Part},
    },
    llama::LlamaLayer,
};
use crate::{
    config::{Activation, Keys, ModelConfig, ModelConfigError, OtherRope},
    weights::WeightsError,
};

pub(super) static FAMILY: Family = Family {
    model_type: "smollm3",
    class: "SmolLM3ForCausalLM",
    ignores: &["max_window_layers", "sliding_window"],
    reads_quantised: None,
    configure,
    load: |c, checkpoint, share| decoder::load(c, checkpoint, share, layer),
};

/// One layer of so many does not turn, where `config.json` has nothing about it.
const EVERY: usize = 4;
/// Base of the frequencies, where `config.json` has nothing about it.
const THETA: f32 = 2_000_000.0;

fn configure(config: &mut ModelConfig, keys: &Keys) -> Result<(), ModelConfigError> {
    const LAYERS: &str = "no_rope_layers";
    config.activation = keys.gate("hidden_act", Activation::Silu)?;
    config.tied = keys.flag("tie_word_embeddings")?.unwrap_or(true);
    // Windows would be those of layers that do not turn; no published model has one.
    if keys.flag("use_sliding_window")? == Some(true) {
        return Err(keys.refusal("use_sliding_window"));
    }
    let rope = keys.within("rope_parameters")?.unwrap_or_default();
    if keys.is_null("rope_theta") && rope.is_null("rope_theta") {
        config.rope_theta = THETA;
    }
    let every = keys.count("no_rope_layer_interval")?.unwrap_or(EVERY);
    let still: Vec<bool> = match keys.numbers(LAYERS)? {
        Some(turn) if turn.len() >= config.layers => turn[..config.layers].iter().map(|turn| *turn == 0.0).collect(),
        Some(_) => return Err(keys.refusal(LAYERS)),
        None => (0..config.layers).map(|i| (i + 1).is_multiple_of(every)).collect(),
    };
    config.other_rope = Some(OtherRope { theta: None, layers: still });
    Ok(())
}

fn layer(part: &Part<'_>) -> Result<LlamaLayer, WeightsError> {
    LlamaLayer::of(part, Attention::load(part)?, GatedMlp::load(part)?)
}
