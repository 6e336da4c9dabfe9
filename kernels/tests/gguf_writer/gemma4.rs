//! What llama.cpp's converter writes for Gemma 4.

use super::{Tensors, Writer, number};
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
        .count(&key("attention.shared_kv_layers"), 0)
        .count(&key("embedding_length_per_layer_input"), 0)
        .real(&key("rope.freq_base_swa"), theta as f32);
    for (part, width) in [("", wide), ("_swa", narrow)] {
        for name in ["attention.key_length", "attention.value_length", "rope.dimension_count"] {
            writer.count(&key(&format!("{name}{part}")), width);
        }
    }
}

/// Its own names, and what of wide heads turns.
pub fn tensors(writer: &mut Writer, all: &mut Tensors, config: &Value) {
    const NAMES: [(&str, &str); 9] = [
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
    let renamed = |name: String| match NAMES.iter().find(|(theirs, _)| name.ends_with(&format!(".{theirs}"))) {
        Some((theirs, ours)) => name.replace(theirs, ours),
        None => name,
    };
    *all = std::mem::take(all).into_iter().map(|(name, tensor)| (renamed(name), tensor)).collect();
    let layers = config["per_layer_config"].as_object().unwrap();
    let wide = number(layers.values().next().unwrap(), "head_dim").unwrap() as usize;
    let part = config["rope_parameters"]["full_attention"]["partial_rotary_factor"].as_f64().unwrap();
    let turning = (wide as f64 * part / 2.0) as usize;
    let factors = (0..wide / 2).flat_map(|i| (if i < turning { 1.0_f32 } else { 1e30 }).to_le_bytes()).collect();
    writer.tensor("rope_freqs.weight", &[wide / 2], 0, factors);
}
