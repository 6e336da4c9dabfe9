//! What llama.cpp's converter writes for Gemma 4.

use super::{NamedTensors, Writer, number};
use serde_json::Value;

pub const NAME: &str = "gemma4";

/// Heads by layer, windows, and how both kinds of layers turn.
pub fn heads(writer: &mut Writer, config: &Value) {
    let key = |key: &str| format!("{NAME}.{key}");
    let full: Vec<bool> = config["layer_types"].as_array().unwrap().iter().map(|t| t == "full_attention").collect();
    let (narrow, count) = (number(config, "head_dim").unwrap(), number(config, "num_key_value_heads").unwrap());
    let of = |layer: usize, name: &str| number(&config["per_layer_config"][layer.to_string()], name);
    let counts = |(i, full): (usize, &bool)| if *full { of(i, "num_key_value_heads").unwrap_or(count) } else { count };
    let counts: Vec<i32> = full.iter().enumerate().map(counts).map(|count| count as i32).collect();
    let wide = of(full.iter().position(|full| *full).unwrap(), "head_dim").unwrap();
    let theta = config["rope_parameters"]["sliding_attention"]["rope_theta"].as_f64().unwrap();
    writer
        .integers(&key("attention.head_count_kv"), &counts)
        .flags(&key("attention.sliding_window_pattern"), &full.iter().map(|full| !full).collect::<Vec<_>>())
        .count(&key("attention.shared_kv_layers"), shared(config))
        .count(&key("embedding_length_per_layer_input"), number(config, "hidden_size_per_layer_input").unwrap_or(0))
        .real(&key("rope.freq_base_swa"), theta as f32);
    for (part, width) in [("", wide), ("_swa", narrow)] {
        for name in ["attention.key_length", "attention.value_length", "rope.dimension_count"] {
            writer.count(&key(&format!("{name}{part}")), width);
        }
    }
}

/// Layers at the end with the keys and values of others.
fn shared(config: &Value) -> u32 {
    number(config, "num_kv_shared_layers").unwrap_or(0)
}

/// Width of MLPs: by layer, where those at the end are twice as wide.
pub fn widths(writer: &mut Writer, config: &Value, width: u32) {
    let key = format!("{NAME}.feed_forward_length");
    if config["use_double_wide_mlp"] != true {
        writer.count(&key, width);
        return;
    }
    let layers = number(config, "num_hidden_layers").unwrap();
    let of = |layer: u32| if layer >= layers - shared(config) { 2 * width } else { width };
    writer.integers(&key, &(0..layers).map(|layer| of(layer) as i32).collect::<Vec<_>>());
}

/// Its own names, and what of wide heads turns.
pub fn tensors(writer: &mut Writer, all: &mut NamedTensors, config: &Value) {
    const NAMES: [(&str, &str); 12] = [
        ("per_layer_input_gate.weight", "inp_gate.weight"),
        ("per_layer_projection.weight", "proj.weight"),
        ("post_per_layer_input_norm.weight", "post_norm.weight"),
        ("layer_scalar", "layer_output_scale.weight"),
        ("router.proj.weight", "ffn_gate_inp.weight"),
        ("router.scale", "ffn_gate_inp.scale"),
        ("router.per_expert_scale", "ffn_down_exps.scale"),
        ("experts.gate_up_proj", "ffn_gate_up_exps.weight"),
        ("experts.down_proj", "ffn_down_exps.weight"),
        ("pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight"),
        ("post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight"),
        ("post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight"),
    ];
    const OUTSIDE: [(&str, &str); 3] = [
        ("model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight"),
        ("model.per_layer_model_projection.weight", "per_layer_model_proj.weight"),
        ("model.per_layer_projection_norm.weight", "per_layer_proj_norm.weight"),
    ];
    let outside = |name: String| match OUTSIDE.iter().find(|(theirs, _)| *theirs == name) {
        Some((_, ours)) => (*ours).to_owned(),
        None => name,
    };
    let renamed = |name: String| match NAMES.iter().find(|(theirs, _)| name.ends_with(&format!(".{theirs}"))) {
        Some((theirs, ours)) => name.replace(theirs, ours),
        None => name,
    };
    *all = std::mem::take(all).into_iter().map(|(name, tensor)| (outside(renamed(name)), tensor)).collect();
    let layers = config["per_layer_config"].as_object().unwrap();
    let wide = number(layers.values().next().unwrap(), "head_dim").unwrap() as usize;
    let part = config["rope_parameters"]["full_attention"]["partial_rotary_factor"].as_f64().unwrap();
    let turning = (wide as f64 * part / 2.0) as usize;
    let factors = (0..wide / 2).flat_map(|i| (if i < turning { 1.0_f32 } else { 1e30 }).to_le_bytes()).collect();
    writer.tensor("rope_freqs.weight", &[wide / 2], 0, factors);
}
