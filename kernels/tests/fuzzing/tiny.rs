//! A model of one layer and eight tokens, as small as what is to be changed should be.

use crate::gguf_writer::{MatrixFormat, convert};
use safetensors::{Dtype, tensor::TensorView};
use std::collections::BTreeMap;
use tempfile::TempDir;
use tsnode_kernels::quant::QuantType;

pub const CONFIG: &str = r#"{"model_type":"llama","num_hidden_layers":1,"hidden_size":32,"intermediate_size":32,
"num_attention_heads":2,"num_key_value_heads":1,"head_dim":16,"vocab_size":8,"max_position_embeddings":256,
"rms_norm_eps":1e-5,"rope_theta":1e4,"tie_word_embeddings":true,"bos_token_id":6,"eos_token_id":7,
"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,
"original_max_position_embeddings":64},"hidden_act":"silu","sliding_window":null}"#;
pub const TOKENIZER: &str = r#"{"version":"1.0","added_tokens":[{"id":6,"content":"<s>"},{"id":7,"content":"</s>"}],
"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"c":3,"abc":4,"d":5},"merges":[["a","b"],["ab","c"]]}}"#;
const INDEX: &str = r#"{"weight_map":{"model.norm.weight":"model.safetensors"}}"#;

/// The model's width, and one that blocks of 256 fit.
const NARROW: usize = 32;
const WIDE: usize = 256;

/// Tensors and their sizes; 0 is the width.
const TENSORS: [(&str, &[usize]); 11] = [
    ("model.embed_tokens.weight", &[8, 0]),
    ("model.norm.weight", &[0]),
    ("model.layers.0.input_layernorm.weight", &[0]),
    ("model.layers.0.post_attention_layernorm.weight", &[0]),
    ("model.layers.0.self_attn.q_proj.weight", &[32, 0]),
    ("model.layers.0.self_attn.k_proj.weight", &[16, 0]),
    ("model.layers.0.self_attn.v_proj.weight", &[16, 0]),
    ("model.layers.0.self_attn.o_proj.weight", &[0, 32]),
    ("model.layers.0.mlp.gate_proj.weight", &[32, 0]),
    ("model.layers.0.mlp.up_proj.weight", &[32, 0]),
    ("model.layers.0.mlp.down_proj.weight", &[0, 32]),
];

/// Its MLP as a mixture of two experts, all in one tensor.
const EXPERTS: [(&str, &[usize]); 3] = [
    ("model.layers.0.mlp.gate.weight", &[2, 0]),
    ("model.layers.0.mlp.experts.gate_up_proj", &[2, 64, 0]),
    ("model.layers.0.mlp.experts.down_proj", &[2, 0, 32]),
];

/// Names and sizes of a model's tensors.
type TensorSizes = BTreeMap<&'static str, &'static [usize]>;

fn dense() -> TensorSizes {
    TENSORS.into()
}

fn mixed() -> TensorSizes {
    TENSORS.into_iter().filter(|(name, _)| !name.contains("mlp")).chain(EXPERTS).collect()
}

/// What `config.json` is with two experts.
fn mixed_config() -> String {
    let experts = "mixtral\",\"num_local_experts\":2,\"num_experts_per_tok\":1,\"num_h";
    CONFIG.replace("llama\",\"num_h", experts)
}

/// `model.safetensors`.
fn weights(tensors: &TensorSizes, width: usize) -> Vec<u8> {
    let numbers = |len: usize| (0..len).flat_map(|i| half::f16::from_f32((i % 13) as f32 / 16.0 - 0.3).to_le_bytes());
    let sized = |shape: &[usize]| shape.iter().map(|n| if *n == 0 { width } else { *n }).collect::<Vec<_>>();
    let filled = |(name, shape): (&&'static str, &&'static [usize])| {
        let shape = sized(shape);
        let bytes: Vec<u8> = numbers(shape.iter().product()).collect();
        (*name, (shape, bytes))
    };
    let all: BTreeMap<_, _> = tensors.iter().map(filled).collect();
    let views =
        all.iter().map(|(name, (shape, bytes))| (*name, TensorView::new(Dtype::F16, shape.clone(), bytes).unwrap()));
    safetensors::serialize(views, None).unwrap()
}

/// The model as [`super::folder`] reads one, without an index and with one.
pub fn folders() -> Vec<Vec<u8>> {
    let mistral = CONFIG.replace("llama\",\"num_h", "mistral\",\"num_h").replace("null", "16");
    let mixtral = mixed_config();
    [(CONFIG, "", dense()), (CONFIG, INDEX, dense()), (&mistral, INDEX, dense()), (&mixtral, "", mixed())]
        .map(|(config, index, tensors)| {
            let sized = |text: &str| [&(text.len() as u16).to_le_bytes()[..], text.as_bytes()].concat();
            [sized(config), sized(index), weights(&tensors, NARROW)].concat()
        })
        .to_vec()
}

/// The model as GGUF files: quantised, and not; and a wider one in blocks of 256, also of those that look numbers up.
pub fn ggufs() -> Vec<Vec<u8>> {
    let narrow = files(CONFIG, &dense(), NARROW);
    let mut pieces = convert(narrow.path(), MatrixFormat::F16, "default");
    pieces
        .count("general.alignment", 64)
        .reals("tokenizer.ggml.scores", &[-1.0, -2.0, -3.0, -4.0, -5.0, -6.0, 0.0, 0.0]);
    pieces.flag("tokenizer.ggml.add_space_prefix", false).count("llama.attention.sliding_window", 0);
    let config = CONFIG.replace("\"hidden_size\":32", "\"hidden_size\":256");
    let wide = files(&config, &dense(), WIDE);
    let large = |kind| convert(wide.path(), MatrixFormat::Large(kind), "llama-bpe").bytes();
    let quantised = convert(narrow.path(), MatrixFormat::Q8, "llama-bpe").bytes();
    let mixtral = convert(files(&mixed_config(), &mixed(), NARROW).path(), MatrixFormat::Q8, "llama-bpe").bytes();
    let blocks = [QuantType::Q4K, QuantType::Q6K, QuantType::Iq2Xs, QuantType::Iq3S, QuantType::Iq1M].map(large);
    [quantised, pieces.bytes(), mixtral].into_iter().chain(blocks).collect()
}

/// A folder with the model.
fn files(config: &str, tensors: &TensorSizes, width: usize) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    write("config.json", config.as_bytes());
    write("tokenizer.json", TOKENIZER.as_bytes());
    write("tokenizer_config.json", br#"{"add_bos_token":true,"chat_template":"{{ messages }}"}"#);
    write("model.safetensors", &weights(tensors, width));
    folder
}
