//! Gemma 4 (Google 2026), its text models, dense and with experts: Gemma 3 whose heads are wider in layers without a window, with
//! norms over values, scores as they are, and a factor of each layer. Its small models (E2B, E4B) have inputs of each layer, and
//! layers at the end that read the keys and values of others.

use super::{
    Family,
    decoder::{
        self, LayerStep, Scratch,
        experts::MoeBlock,
        parts::{Attention, GatedInput, GatedMlp, Part, RmsNorm, SharedAttention},
    },
    gemma2::NORMS,
    outline::{AttentionOutline, BesideOutline, ExpertsOutline, LayerOutline, MixerOutline, MlpOutline},
};
use crate::{
    config::{Activation, Keys, LayerInputs, Mixture, ModelConfig, ModelConfigError, OtherRope, SharedKv, WideHeads},
    rope::RopeScaling,
    weights::WeightsError,
};

/// The 12B's, which is called otherwise.
pub(super) static UNIFIED: Family =
    Family { model_type: "gemma4_unified_text", class: "Gemma4UnifiedForCausalLM", configure: unified, ..FAMILY_OF };

pub(super) static FAMILY: Family = FAMILY_OF;

const FAMILY_OF: Family = Family {
    model_type: "gemma4_text",
    class: "Gemma4ForCausalLM",
    // Of layers that have the keys and values of others, of inputs of each layer, and what another key says.
    ignores: &["use_double_wide_mlp", "vocab_size_per_layer_input", "global_head_dim", "num_global_key_value_heads"],
    reads_quantised: None,
    configure: usual,
    load: |c, checkpoint, share| decoder::load(c, checkpoint, share, layer),
};

/// Tokens of a window, where `config.json` has nothing about it.
const WINDOW: usize = 512;
const UNIFIED_WINDOW: usize = 1024;
/// One layer of so many has no window, where `config.json` has nothing about it.
const EVERY: usize = 6;
/// Part of a wide head that turns, where `config.json` has nothing about it.
const TURNING: f32 = 0.25;

fn usual(config: &mut ModelConfig, keys: &Keys) -> Result<(), ModelConfigError> {
    configure(config, keys, WINDOW)?;
    LayerInputs::read(config, keys)?;
    SharedKv::read(config, keys)?;
    if config.mixture.is_some() && config.shared_kv.is_some() {
        let value = "true beside num_kv_shared_layers".to_owned();
        return Err(ModelConfigError::Unsupported { what: "enable_moe_block", value });
    }
    if config.is_whole() {
        config.gpu_lacks = Some("inputs of each layer, and layers that read the keys and values of others");
    }
    Ok(())
}

fn unified(config: &mut ModelConfig, keys: &Keys) -> Result<(), ModelConfigError> {
    SharedKv::refuse(keys)?;
    configure(config, keys, UNIFIED_WINDOW)
}

fn configure(config: &mut ModelConfig, keys: &Keys, window: usize) -> Result<(), ModelConfigError> {
    refuse_variants(keys)?;
    config.activation = keys.gate("hidden_activation", Activation::GeluTanh)?;
    config.embed_scale = (config.hidden as f32).sqrt();
    config.attention_scale = 1.0;
    config.tied = keys.flag("tie_word_embeddings")?.unwrap_or(true);
    config.logit_cap = keys.number("final_logit_softcapping")?;
    config.windows = keys.windows(config.layers, Some(window), |i| !(i + 1).is_multiple_of(EVERY))?;
    // The last never has one, whatever is said.
    config.windows.iter_mut().last().into_iter().for_each(|last| *last = None);
    WideHeads::read(config, keys)?;
    if keys.flag("enable_moe_block")?.unwrap_or(false) {
        let mixture = Mixture::read(config.layers, keys, "moe_intermediate_size")?;
        config.mixture = Some(Mixture { normed: true, shared: Some(config.intermediate), ..mixture });
    }
    rope(config, keys)
}

/// What changes who sees whom.
fn refuse_variants(keys: &Keys) -> Result<(), ModelConfigError> {
    // Of pictures, which are not read.
    const BOTH_WAYS: &str = "use_bidirectional_attention";
    match keys.text(BOTH_WAYS)? {
        None | Some("vision") => Ok(()),
        Some(_) => Err(keys.refusal(BOTH_WAYS)),
    }
}

/// Layers with a window turn as others' do; of wide heads, a part of the frequencies is that of heads that turn whole, and the
/// rest is 0.
fn rope(config: &mut ModelConfig, keys: &Keys) -> Result<(), ModelConfigError> {
    // What is said of all layers alike would be of neither kind.
    if !keys.is_null("rope_scaling") || config.rope_dim != config.head_dim {
        return Err(keys.refusal("rope_scaling"));
    }
    let by_type = keys.within("rope_parameters")?.unwrap_or_default();
    let local = by_type.within("sliding_attention")?.unwrap_or_default();
    let whole = local.number("partial_rotary_factor")?.is_none_or(|part| part == 1.0);
    if !whole || !matches!(local.text("rope_type")?, None | Some("default")) {
        return Err(keys.refusal("rope_parameters"));
    }
    let layers = config.windows.iter().map(Option::is_some).collect();
    config.other_rope = Some(OtherRope { theta: Some(local.number("rope_theta")?.unwrap_or(10_000.0)), layers });

    let said = by_type.within("full_attention")?;
    let usual = if said.is_some() { 1.0 } else { TURNING };
    let full = said.unwrap_or_default();
    let (part, factor) = match full.text("rope_type")? {
        None | Some("default") => (usual, 1.0),
        Some("proportional") => {
            (full.number("partial_rotary_factor")?.unwrap_or(1.0), full.number("factor")?.unwrap_or(1.0))
        }
        Some(_) => return Err(keys.refusal("rope_parameters")),
    };
    if !(0.0..=1.0).contains(&part) || !(1e-6..=1e6).contains(&factor) {
        return Err(keys.refusal("rope_parameters"));
    }
    let width = config.widest_heads() * config.head_dim;
    config.rope_theta = full.number("rope_theta")?.unwrap_or(1_000_000.0);
    config.rope_scaling = RopeScaling::Proportional { turning: (part * width as f32 / 2.0) as usize, factor };
    Ok(())
}

fn layer(part: &Part<'_>) -> Result<Gemma4Layer, WeightsError> {
    let [attention_norm, attention_post_norm, mlp_norm, mlp_post_norm] = NORMS.map(|name| part.norm(name));
    Ok(Gemma4Layer {
        attention_norm: attention_norm?,
        attention: match part.kv_of_another() {
            Some(layer) => Looking::Shared(Box::new(SharedAttention::load(part, layer)?)),
            None => Looking::Own(Box::new(Attention::load(part)?.with_head_norms(part)?.with_value_norms(part))),
        },
        attention_post_norm: attention_post_norm?,
        mlp_norm: mlp_norm?,
        mlp: GatedMlp::load_at(part, "mlp", part.intermediate())?,
        beside: part.mixture().map(|mixture| Gemma4Mixture::load(part, mixture)).transpose()?,
        mlp_post_norm: mlp_post_norm?,
        input: part.layer_inputs().map(|inputs| GatedInput::load(part, inputs)).transpose()?,
        factor: part.number("layer_scalar")?,
    })
}

struct Gemma4Layer {
    attention_norm: RmsNorm,
    attention: Looking,
    attention_post_norm: RmsNorm,
    mlp_norm: RmsNorm,
    mlp: GatedMlp,
    beside: Option<Gemma4Mixture>,
    mlp_post_norm: RmsNorm,
    input: Option<GatedInput>,
    /// What comes out is multiplied by.
    factor: f32,
}

/// At its own keys and values, or at those of a layer before it.
enum Looking {
    Own(Box<Attention>),
    Shared(Box<SharedAttention>),
}

impl Looking {
    fn forward(&self, step: &mut LayerStep<'_, '_>, s: &mut Scratch) {
        match self {
            Self::Own(attention) => attention.forward(step, s),
            Self::Shared(attention) => attention.forward(step, s),
        }
    }

    fn outline(&self) -> AttentionOutline<'_> {
        match self {
            Self::Own(attention) => attention.outline(),
            Self::Shared(attention) => attention.outline(),
        }
    }
}

/// A mixture that stands beside the MLP.
struct Gemma4Mixture {
    /// Before its router, before its experts, and behind them.
    router_norm: RmsNorm,
    norm: RmsNorm,
    post_norm: RmsNorm,
    /// Behind the MLP, where there is a mixture.
    mlp_post_norm: RmsNorm,
    experts: MoeBlock,
}

impl Gemma4Mixture {
    fn load(part: &Part<'_>, mixture: &Mixture) -> Result<Self, WeightsError> {
        Ok(Self {
            router_norm: part.norm_by("router.scale", 1.0 / part.root())?,
            norm: part.norm("pre_feedforward_layernorm_2")?,
            post_norm: part.norm("post_feedforward_layernorm_2")?,
            mlp_post_norm: part.norm("post_feedforward_layernorm_1")?,
            experts: MoeBlock::load_apart(part, mixture)?,
        })
    }

    /// As data, with the MLP that it stands beside.
    fn outline<'a>(&'a self, mlp: &'a GatedMlp) -> ExpertsOutline<'a> {
        let beside = BesideOutline {
            mlp: mlp.outline(),
            router_norm: self.router_norm.outline(),
            norm: self.norm.outline(),
            post_norm: self.post_norm.outline(),
            mlp_post_norm: self.mlp_post_norm.outline(),
        };
        ExpertsOutline { beside: Some(beside), ..self.experts.outline() }
    }

    /// Adds to what the MLP made of `hidden` what experts make of it; both are normed.
    fn forward(&self, step: &LayerStep<'_, '_>, hidden: &[f32], s: &mut Scratch) {
        self.mlp_post_norm.forward(step.cpu, &s.out, &mut s.beside);
        self.router_norm.forward(step.cpu, hidden, &mut s.routed);
        self.norm.forward(step.cpu, hidden, &mut s.normed);
        self.experts.forward(step, s);
        self.post_norm.forward(step.cpu, &s.out, &mut s.normed);
        step.cpu.add(&mut s.beside, &s.normed);
        std::mem::swap(&mut s.out, &mut s.beside);
    }
}

impl decoder::DecoderLayer for Gemma4Layer {
    fn forward(&self, step: &mut LayerStep<'_, '_>, hidden: &mut [f32], s: &mut Scratch) {
        self.attention_norm.forward(step.cpu, hidden, &mut s.normed);
        self.attention.forward(step, s);
        self.attention_post_norm.forward(step.cpu, &s.out, &mut s.normed);
        step.cpu.add(hidden, &s.normed);

        self.mlp_norm.forward(step.cpu, hidden, &mut s.normed);
        self.mlp.forward(step, s);
        if let Some(beside) = &self.beside {
            beside.forward(step, hidden, s);
        }
        self.mlp_post_norm.forward(step.cpu, &s.out, &mut s.normed);
        step.cpu.add(hidden, &s.normed);
        if let Some(input) = &self.input {
            input.forward(step, hidden, s);
        }
        hidden.iter_mut().for_each(|x| *x *= self.factor);
    }

    fn outline(&self) -> LayerOutline<'_> {
        LayerOutline {
            attention_norm: Some(self.attention_norm.outline()),
            mixer: MixerOutline::Attention(self.attention.outline()),
            attention_post_norm: Some(self.attention_post_norm.outline()),
            mlp_norm: Some(self.mlp_norm.outline()),
            mlp: match &self.beside {
                Some(beside) => MlpOutline::Experts(Box::new(beside.outline(&self.mlp))),
                None => MlpOutline::Gated(self.mlp.outline()),
            },
            mlp_post_norm: Some(self.mlp_post_norm.outline()),
            factor: self.factor,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{ModelConfig, ModelConfigError};

    const LARGE: &str = r#"{"model_type":"gemma4_text","num_hidden_layers":6,"hidden_size":32,"intermediate_size":64,
        "num_attention_heads":4,"num_key_value_heads":4,"num_global_key_value_heads":2,"head_dim":16,"global_head_dim":32,
        "attention_k_eq_v":true,"vocab_size":64,"max_position_embeddings":64"#;

    fn with(more: &str) -> Result<ModelConfig, ModelConfigError> {
        ModelConfig::parse(format!("{LARGE}{more}}}").as_bytes())
    }

    #[test]
    fn what_is_not_written_is_refused_by_its_name() {
        const NONE: &str = r#","hidden_size_per_layer_input":0"#;
        let config = with(NONE).unwrap();
        assert_eq!((config.notes.len(), config.windows[4], config.windows[5]), (0, Some(512), None));
        assert_eq!((config.blocks(), config.is_whole(), config.layer_inputs), (6, false, None));
        // As many as 256 where it is not said.
        assert_eq!(with("").unwrap().layer_inputs.map(|inputs| inputs.width), Some(256));
        let more = |more: &str| format!("{NONE}{more}");
        let mixed = r#","layer_types":["full_attention","sliding_attention","sliding_attention","sliding_attention",
            "sliding_attention","full_attention"],"num_kv_shared_layers":2,"enable_moe_block":true,"num_experts":4,
            "top_k_experts":2,"moe_intermediate_size":8"#;
        let unified = |more: &str| {
            ModelConfig::parse(format!("{LARGE}{more}}}").replace("gemma4_text", "gemma4_unified_text").as_bytes())
        };
        let error = unified(r#","num_kv_shared_layers":2"#).unwrap_err().to_string();
        assert!(error.contains("num_kv_shared_layers = 2"), "{error}");
        for (more, named) in [
            // The last one's kind has none before it.
            (more(r#","num_kv_shared_layers":2"#), "num_kv_shared_layers = 2"),
            (more(mixed), "enable_moe_block = true beside"),
            (more(r#","use_bidirectional_attention":"all""#), "use_bidirectional_attention"),
            (more(r#","rope_scaling":{"rope_type":"yarn","factor":2.0}"#), "rope_scaling"),
            (more(r#","rope_parameters":{"full_attention":{"rope_type":"yarn"}}"#), "rope_parameters"),
            (more(r#","enable_moe_block":true,"num_experts":4"#), "num_experts_per_tok"),
        ] {
            let error = with(&more).unwrap_err().to_string();
            assert!(error.contains(named), "{more}: {error}");
        }
    }
}
