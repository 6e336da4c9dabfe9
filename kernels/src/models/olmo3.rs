//! OLMo 3 (OLMo team 2025): OLMo 2 with a window in three layers of four. Only those without one have frequencies that
//! are stretched.

use super::{Family, decoder, olmo2};
use crate::config::{Keys, ModelConfig, ModelConfigError, OtherRope};

pub(super) static FAMILY: Family = Family {
    model_type: "olmo3",
    class: "Olmo3ForCausalLM",
    ignores: &[],
    reads_quantised: None,
    configure,
    load: |c, checkpoint, share| decoder::load(c, checkpoint, share, olmo2::layer),
};

/// Tokens, where `config.json` has nothing about it.
const WINDOW: usize = 4096;
/// One layer of so many has no window.
const EVERY: usize = 4;
/// Base of the frequencies, where `config.json` has nothing about it.
const THETA: f32 = 500_000.0;

fn configure(config: &mut ModelConfig, keys: &Keys) -> Result<(), ModelConfigError> {
    olmo2::configure(config, keys)?;
    config.windows = keys.windows(config.layers, Some(WINDOW), |i| !(i + 1).is_multiple_of(EVERY))?;
    // transformers 5 has parameters by type of layer; 4 has one base, and the stretch beside it.
    let by_type = keys.within("rope_parameters")?.unwrap_or_default();
    if keys.is_null("rope_theta") && by_type.is_null("rope_theta") {
        config.rope_theta = THETA;
    }
    let mut theta = config.rope_theta;
    if let Some(local) = by_type.within("sliding_attention")? {
        if !matches!(local.text("rope_type")?, None | Some("default")) {
            return Err(keys.refusal("rope_parameters"));
        }
        theta = local.number("rope_theta")?.unwrap_or(theta);
    }
    if let Some(full) = by_type.within("full_attention")? {
        config.read_rope(keys, &full)?;
    }
    let layers = config.windows.iter().map(Option::is_some).collect();
    config.other_rope = Some(OtherRope { theta: Some(theta), layers });
    Ok(())
}
