//! Keys of `config.json` that no forward pass here reads: those that would change what is computed are refused by name,
//! others are told of, but for those that a family's reference is known to ignore.

use super::{
    Keys, ModelConfig, ModelConfigError,
    coding::QUANTISED,
    keys::{self, is_off},
};
use serde_json::Value;

/// When a key changes nothing. `null` never does.
enum Neutral {
    /// No, none, zero or empty.
    Off,
    /// Yes.
    On,
    /// A number.
    Is(fn(&ModelConfig) -> f64),
    /// Each of a list, or the only one.
    All(&'static [&'static str]),
    /// Yes for each layer.
    AllOn,
}

use Neutral::{All, AllOn, Is, Off, On};

const ONE: Neutral = Is(|_| 1.0);

/// What families of transformers, vLLM and llama.cpp compute differently by, whether or not ours are among them: models
/// are converted from one family to another, and trained on with what another has.
const ARITHMETIC: &[(&str, Neutral)] = &[
    // Factors: of the embedding, each layer's outputs, scores and logits (Granite, Cohere, MiniCPM, Falcon-H1, µP).
    ("attention_multiplier", Is(|c| f64::from(c.attention_scale))),
    ("query_pre_attn_scalar", Is(|c| c.head_dim as f64)),
    ("softmax_scale", Is(|c| f64::from(c.attention_scale))),
    ("embedding_multiplier", ONE),
    ("residual_multiplier", ONE),
    ("logits_scaling", ONE),
    ("logit_scale", ONE),
    ("lm_head_multiplier", ONE),
    ("key_multiplier", ONE),
    ("attention_in_multiplier", ONE),
    ("attention_out_multiplier", ONE),
    ("attention_value_scale", ONE),
    ("attn_output_multiplier", ONE),
    ("mlp_multipliers", AllOn),
    ("embedding_scale", ONE),
    ("scale_emb", ONE),
    ("scale_depth", Is(|c| (c.layers as f64).sqrt())),
    ("dim_model_base", Is(|c| c.hidden as f64)),
    ("scale_embedding", Off),
    ("mup_enabled", Off),
    ("mup_width_scale", ONE),
    ("mup_output_alpha", ONE),
    ("mup_embeddings_scale", ONE),
    // Caps.
    ("attn_logit_softcapping", Off),
    ("final_logit_softcapping", Off),
    ("attn_logit_softcap", Off),
    ("logits_soft_cap", Off),
    ("output_logit_soft_cap", Off),
    ("clip_qkv", Off),
    ("swiglu_limit", Off),
    ("mlp_gate_softcap", Off),
    ("mlp_up_softcap", Off),
    // Positions.
    ("no_rope_layers", AllOn),
    ("no_rope_layer_interval", Off),
    ("nope_layer_interval", Off),
    ("use_rope", On),
    ("use_rotary_embedding", On),
    ("rope_interleaved", Off),
    ("rope_interleave", Off),
    ("rotary_interleaved", Off),
    ("is_neox_style", On),
    ("rotary_pct", ONE),
    ("rotary_percent", ONE),
    ("rope_pct", ONE),
    ("rope_percentage", ONE),
    ("rotary_dim", Is(|c| c.rope_dim as f64)),
    ("rotary_emb_fraction", ONE),
    ("rotary_emb_base", Is(|c| f64::from(c.rope_theta))),
    ("layer_rope_theta", Off),
    ("position_embedding_type", All(&["rope", "rotary"])),
    ("alibi", Off),
    ("use_alibi", Off),
    ("learned_pos_emb", Off),
    ("attn_temperature_tuning", Off),
    // What attention sees.
    ("sliding_window", Off),
    ("layer_types", All(&["full_attention"])),
    ("attention_chunk_size", Off),
    ("interleaved_sliding_window", Off),
    ("attention_window_size", Off),
    ("use_bidirectional_attention", Off),
    ("use_bidirectional", Off),
    ("is_causal", On),
    ("prefix_lm", Off),
    ("add_cross_attention", Off),
    ("cross_attention_layers", Off),
    ("is_encoder_decoder", Off),
    ("learnable_sink_init", Off),
    ("add_swa_attention_sink_bias", Off),
    ("add_full_attention_sink_bias", Off),
    ("attn_output_gate", Off),
    ("use_attention_gate", Off),
    ("num_kv_shared_layers", Off),
    ("use_cla", Off),
    ("kv_lora_rank", Off),
    ("q_lora_rank", Off),
    // Norms, and where they stand.
    ("use_qk_norm", Off),
    ("qk_norm", Off),
    ("qk_layernorm", Off),
    ("qk_ln", Off),
    ("use_post_norm", Off),
    ("use_sandwich_norm", Off),
    ("apply_layernorm_1p", Off),
    ("zero_centered_gamma", Off),
    ("norm_type", All(&["rmsnorm", "rms_norm", "RMSNorm", "rms"])),
    ("apply_residual_connection_post_layernorm", Off),
    ("use_parallel_residual", Off),
    ("parallel_residual", Off),
    ("parallel_attn", Off),
    ("_remove_final_layer_norm", Off),
    // Biases that no tensor of ours stands for.
    ("lm_head_bias", Off),
    // Other blocks.
    ("num_experts", Off),
    ("num_local_experts", Off),
    ("n_routed_experts", Off),
    ("n_shared_experts", Off),
    ("moe_num_experts", Off),
    ("hidden_size_per_layer_input", Off),
    ("activation_sparsity_pattern", Off),
    ("layers_block_type", All(&["attention"])),
    ("pruned_heads", Off),
];

/// Keys of every family's file that say how to train, what a tokenizer adds, how to sample where no other file says so, or
/// what a file was made with. Which biases there are, the weights say.
const ELSEWHERE: &[&str] = &[
    "activation_function",
    "attention_bias",
    "attn_implementation",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "cache_implementation",
    "chunk_size_feed_forward",
    "cross_attention_hidden_size",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "gradient_checkpointing",
    "head_dim",
    "hidden_act",
    "hidden_activation",
    "id2label",
    "intermediate_size",
    "is_decoder",
    "label2id",
    "layerdrop",
    "length_penalty",
    "max_length",
    "max_seq_len",
    "max_sequence_length",
    "min_length",
    "mlp_bias",
    "model_max_length",
    "name_or_path",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "original_max_position_embeddings",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "rope_scaling",
    "seq_length",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
];

/// Names in a line.
const NAMED: usize = 8;

/// Refuses what would change the arithmetic; the line about keys that nobody knows, if there are some.
pub(super) fn check(config: &ModelConfig, keys: &Keys) -> Result<Option<String>, ModelConfigError> {
    let ignored = |key: &str| keys.was_asked(key) || config.family.ignores.contains(&key);
    for (key, neutral) in ARITHMETIC.iter().filter(|(key, _)| !ignored(key)) {
        match keys.value(key) {
            Some(value) if !neutral.is(value, config) => return Err(keys.refusal(key)),
            _ => {}
        }
    }
    refuse_rope_by_layer(config, keys)?;
    let known = |key: &str| {
        ignored(key) || QUANTISED.contains(&key) || ARITHMETIC.iter().any(|(k, _)| *k == key) || is_elsewhere(key)
    };
    let unknown: Vec<String> =
        keys.iter().filter(|(key, v)| !known(key) && !is_off(v)).map(|(k, _)| shown(k)).collect();
    Ok((!unknown.is_empty()).then(|| line(&unknown)))
}

/// transformers 5 can have rotary positions for each type of layer; only Gemma 3 and OLMo 3 read them so.
fn refuse_rope_by_layer(config: &ModelConfig, keys: &Keys) -> Result<(), ModelConfigError> {
    let by_layer = |value: &Value| value.as_object().is_some_and(|rope| rope.values().any(Value::is_object));
    for key in ["rope_parameters", "rope_scaling"] {
        if config.other_rope.is_none() && keys.value(key).is_some_and(by_layer) {
            return Err(keys.refusal(key));
        }
    }
    Ok(())
}

fn line(unknown: &[String]) -> String {
    let more = if unknown.len() > NAMED { format!(" and {} more", unknown.len() - NAMED) } else { String::new() };
    let names = unknown.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    format!("config.json: {names}{more}: not known, and not read")
}

fn shown(key: &str) -> String {
    key.chars().take(64).flat_map(char::escape_default).collect()
}

/// Whether it is for others than a forward pass, in every family.
fn is_elsewhere(key: &str) -> bool {
    let named = key.starts_with('_') || key.starts_with("initializer_") || key.ends_with("_token_id");
    named || key.contains("dropout") || key.ends_with("pdrop") || ELSEWHERE.contains(&key)
}

impl Neutral {
    fn is(&self, value: &Value, config: &ModelConfig) -> bool {
        let each = |holds: &dyn Fn(&Value) -> bool| match value {
            Value::Array(list) => list.iter().all(holds),
            one => holds(one),
        };
        match self {
            Off => is_off(value),
            On => is_on(value),
            Is(usual) => keys::decimal(value).is_some_and(|x| (x - usual(config)).abs() <= 1e-5 * usual(config).abs()),
            All(words) => each(&|v| v.as_str().is_some_and(|v| words.contains(&v))),
            AllOn => each(&is_on),
        }
    }
}

fn is_on(value: &Value) -> bool {
    match value {
        Value::Bool(on) => *on,
        other => keys::decimal(other) == Some(1.0),
    }
}
