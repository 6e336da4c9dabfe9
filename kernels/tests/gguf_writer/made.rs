//! A folder with a model of random weights that is wide enough for blocks of 256.

use safetensors::{Dtype, serialize_to_file, tensor::TensorView};
use tempfile::TempDir;

const LAYERS: usize = 3;
const HIDDEN: usize = 256;
const MLP: usize = 512;
const HEAD: usize = 64;
const HEADS: usize = 4;
const KV_HEADS: usize = 4;
const VOCAB: usize = 256;

/// A Llama whose rows are one block or two, and whose heads may be shared by up to four ranks.
pub fn wide() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let config = serde_json::json!({
        "model_type": "llama", "num_hidden_layers": LAYERS, "hidden_size": HIDDEN, "intermediate_size": MLP,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "vocab_size": VOCAB,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": false,
        "bos_token_id": 0, "eos_token_id": 1, "hidden_act": "silu",
    });
    write("config.json", &config.to_string());
    let vocab: serde_json::Map<_, _> = (2..VOCAB).map(|id| (format!("t{id}"), id.into())).collect();
    let added = serde_json::json!([{"id": 0, "content": "<s>"}, {"id": 1, "content": "</s>"}]);
    let model = serde_json::json!({"type": "BPE", "vocab": vocab, "merges": []});
    write("tokenizer.json", &serde_json::json!({"version": "1.0", "added_tokens": added, "model": model}).to_string());
    write("tokenizer_config.json", "{}");
    let tensors = tensors();
    let views = tensors
        .iter()
        .map(|(name, shape, bytes)| (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
    serialize_to_file(views, None, &folder.path().join("model.safetensors")).unwrap();
    folder
}

fn tensors() -> Vec<(String, Vec<usize>, Vec<u8>)> {
    let mut all = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("lm_head.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
    ];
    for layer in 0..LAYERS {
        let parts = [
            ("input_layernorm", vec![HIDDEN]),
            ("post_attention_layernorm", vec![HIDDEN]),
            ("self_attn.q_proj", vec![HEADS * HEAD, HIDDEN]),
            ("self_attn.k_proj", vec![KV_HEADS * HEAD, HIDDEN]),
            ("self_attn.v_proj", vec![KV_HEADS * HEAD, HIDDEN]),
            ("self_attn.o_proj", vec![HIDDEN, HEADS * HEAD]),
            ("mlp.gate_proj", vec![MLP, HIDDEN]),
            ("mlp.up_proj", vec![MLP, HIDDEN]),
            ("mlp.down_proj", vec![HIDDEN, MLP]),
        ];
        all.extend(parts.map(|(name, shape)| (format!("model.layers.{layer}.{name}.weight"), shape)));
    }
    let mut state = 1_u64;
    let mut number = move || {
        // Knuth's constants; three of them together are as good as normal.
        let mut one = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 24) as f32 - 0.5
        };
        2.0 * (one() + one() + one())
    };
    let mut filled = |(name, shape): (String, Vec<usize>)| {
        let cols = shape[shape.len() - 1] as f32;
        let around = |x: f32| if shape.len() == 1 { 1.0 + 0.1 * x } else { x / cols.sqrt() };
        let bytes = (0..shape.iter().product::<usize>()).flat_map(|_| around(number()).to_le_bytes()).collect();
        (name, shape, bytes)
    };
    all.into_iter().map(&mut filled).collect()
}
