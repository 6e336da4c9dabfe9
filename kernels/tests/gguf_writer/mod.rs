//! Writes GGUF files for tests, and models of Hugging Face folders as llama.cpp's converter does.
#![allow(dead_code, reason = "not every test writes everything")]

mod experts;
mod gemma4;
pub mod large;
pub mod made;
mod oss;

use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use tsnode_kernels::quant::QuantType;

/// Where tensors lie: at multiples of this.
const ALIGNMENT: usize = 32;

/// A GGUF file in the making.
#[derive(Default)]
pub struct Writer {
    entries: Vec<u8>,
    entry_count: u64,
    tensors: Vec<WrittenTensor>,
}

struct WrittenTensor {
    name: String,
    shape: Vec<usize>,
    kind: u32,
    bytes: Vec<u8>,
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

impl Writer {
    fn entry(&mut self, key: &str, kind: u32, value: &[u8]) -> &mut Self {
        text(&mut self.entries, key);
        self.entries.extend(kind.to_le_bytes());
        self.entries.extend(value);
        self.entry_count += 1;
        self
    }

    pub fn count(&mut self, key: &str, value: u32) -> &mut Self {
        self.entry(key, 4, &value.to_le_bytes())
    }

    pub fn real(&mut self, key: &str, value: f32) -> &mut Self {
        self.entry(key, 6, &value.to_le_bytes())
    }

    pub fn flag(&mut self, key: &str, value: bool) -> &mut Self {
        self.entry(key, 7, &[value.into()])
    }

    pub fn text(&mut self, key: &str, value: &str) -> &mut Self {
        let mut bytes = Vec::new();
        text(&mut bytes, value);
        self.entry(key, 8, &bytes)
    }

    fn list(&mut self, key: &str, kind: u32, len: usize, values: &[u8]) -> &mut Self {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend((len as u64).to_le_bytes());
        bytes.extend(values);
        self.entry(key, 9, &bytes)
    }

    pub fn texts<S: AsRef<str>>(&mut self, key: &str, values: &[S]) -> &mut Self {
        let mut bytes = Vec::new();
        values.iter().for_each(|value| text(&mut bytes, value.as_ref()));
        self.list(key, 8, values.len(), &bytes)
    }

    pub fn integers(&mut self, key: &str, values: &[i32]) -> &mut Self {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.list(key, 5, values.len(), &bytes)
    }

    pub fn reals(&mut self, key: &str, values: &[f32]) -> &mut Self {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.list(key, 6, values.len(), &bytes)
    }

    pub fn flags(&mut self, key: &str, values: &[bool]) -> &mut Self {
        let bytes: Vec<u8> = values.iter().map(|value| (*value).into()).collect();
        self.list(key, 7, values.len(), &bytes)
    }

    /// A tensor of `shape`, outermost size first.
    pub fn tensor(&mut self, name: &str, shape: &[usize], kind: u32, bytes: Vec<u8>) -> &mut Self {
        self.tensors.push(WrittenTensor { name: name.to_owned(), shape: shape.to_vec(), kind, bytes });
        self
    }

    /// Calls a tensor otherwise.
    pub fn rename(&mut self, from: &str, to: &str) {
        self.tensors.iter_mut().filter(|t| t.name == from).for_each(|t| t.name = to.to_owned());
    }

    /// Leaves a tensor out.
    pub fn forget(&mut self, name: &str) {
        self.tensors.retain(|t| t.name != name);
    }

    /// The whole file.
    pub fn bytes(&self) -> Vec<u8> {
        self.file(&self.tensors.iter().collect::<Vec<_>>())
    }

    fn file(&self, tensors: &[&WrittenTensor]) -> Vec<u8> {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        out.extend((tensors.len() as u64).to_le_bytes());
        out.extend(self.entry_count.to_le_bytes());
        out.extend(&self.entries);
        let mut data = Vec::new();
        for tensor in tensors {
            text(&mut out, &tensor.name);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().rev().for_each(|n| out.extend((*n as u64).to_le_bytes()));
            out.extend(tensor.kind.to_le_bytes());
            out.extend((data.len() as u64).to_le_bytes());
            data.extend(&tensor.bytes);
            data.resize(data.len().next_multiple_of(ALIGNMENT), 0);
        }
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        out.extend(data);
        out
    }

    /// The model in two files, cut after half of its tensors.
    pub fn halves(&mut self) -> [Vec<u8>; 2] {
        let tensors = self.tensors.len() as u32;
        self.count("split.count", 2).count("split.tensors.count", tensors);
        let (first, second) = self.tensors.split_at(self.tensors.len() / 2);
        let rest = Self::default();
        [self.file(&first.iter().collect::<Vec<_>>()), rest.file(&second.iter().collect::<Vec<_>>())]
    }
}

/// How matrices are stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MatrixFormat {
    F32,
    F16,
    /// 32 numbers of 8 bits; half precision where rows are no whole blocks.
    Q8,
    /// Single precision, of the numbers that [`MatrixFormat::Q8`] keeps.
    WidenedQ8,
    /// Blocks of 256; as [`MatrixFormat::Q8`] where rows are no whole blocks.
    Large(QuantType),
    /// Single precision, of the numbers that [`MatrixFormat::Large`] keeps.
    WidenedLarge(QuantType),
    /// As gpt-oss is published: experts in MXFP4, everything else in half precision.
    Mxfp4,
}

/// A folder's model as GGUF.
pub fn convert(folder: &Path, form: MatrixFormat, pre: &str) -> Writer {
    let config = json(&folder.join("config.json"));
    let mut writer = Writer::default();
    metadata(&mut writer, &config);
    family(&mut writer, &config);
    tokenizer(&mut writer, folder, &config, pre);
    tensors(&mut writer, folder, &config, form);
    writer
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn number(config: &Value, key: &str) -> Option<u32> {
    config[key].as_u64().map(|n| n as u32)
}

fn metadata(writer: &mut Writer, config: &Value) {
    let name = architecture(config);
    let key = |key: &str| format!("{name}.{key}");
    let of = |key: &str| number(config, key).unwrap();
    let theta = config["rope_theta"].as_f64().or(rope(config)["rope_theta"].as_f64());
    // Granite 4's converter takes that of the MLP which all rows pass.
    let width = number(config, "shared_intermediate_size").unwrap_or_else(|| of("intermediate_size"));
    writer
        .text("general.architecture", name)
        // With a layer behind the last that proposes tokens.
        .count(&key("block_count"), of("num_hidden_layers") + u32::from(name == "glm4moe"))
        .count(&key("context_length"), of("max_position_embeddings"))
        .count(&key("embedding_length"), of("hidden_size"))
        .count(&key("attention.head_count"), of("num_attention_heads"))
        .real(&key("attention.layer_norm_rms_epsilon"), config["rms_norm_eps"].as_f64().unwrap() as f32)
        .real(&key("rope.freq_base"), theta.unwrap() as f32);
    if name == gemma4::NAME {
        gemma4::widths(writer, config, width);
    } else {
        writer.count(&key("feed_forward_length"), width);
        writer.count(&key("attention.head_count_kv"), of("num_key_value_heads"));
        writer.count(&key("rope.dimension_count"), turning(config) as u32);
    }
    let experts = ["num_experts", "num_local_experts", "n_routed_experts"].iter().find_map(|key| number(config, key));
    if let Some(experts) = experts.filter(|experts| *experts > 0) {
        let used = ["num_experts_per_tok", "top_k_experts"].iter().find_map(|key| number(config, key)).unwrap();
        writer.count(&key("expert_count"), experts).count(&key("expert_used_count"), used);
        if let Some(normed) = config["norm_topk_prob"].as_bool() {
            writer.flag(&key("expert_weights_norm"), normed);
        }
    }
    for (theirs, ours) in [
        ("moe_intermediate_size", "expert_feed_forward_length"),
        ("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
    ] {
        if let Some(width) = number(config, theirs) {
            writer.count(&key(ours), width);
        }
    }
    if name == gemma4::NAME {
        gemma4::heads(writer, config);
    } else if let Some(width) = number(config, "head_dim") {
        writer.count(&key("attention.key_length"), width).count(&key("attention.value_length"), width);
    }
}

/// Parameters of rotary positions, of layers without a window where these have others.
fn rope(config: &Value) -> &Value {
    let all = &config["rope_parameters"];
    if all["full_attention"].is_object() { &all["full_attention"] } else { all }
}

/// llama.cpp's name for a family.
fn architecture(config: &Value) -> &str {
    match config["model_type"].as_str().unwrap() {
        "gemma3_text" => "gemma3",
        "gemma4_text" | "gemma4_unified_text" => gemma4::NAME,
        "qwen2_moe" => "qwen2moe",
        "qwen3_moe" => "qwen3moe",
        "mixtral" => "llama",
        "gpt_oss" => "gpt-oss",
        "granitemoehybrid" => "granite",
        "olmo3" => "olmo2",
        "ministral3" => "mistral3",
        "glm4_moe" => "glm4moe",
        name => name,
    }
}

/// What only some families' files say.
fn family(writer: &mut Writer, config: &Value) {
    let name = architecture(config);
    let key = |key: &str| format!("{name}.{key}");
    let real = |key: &str| config[key].as_f64().map(|x| x as f32);
    if name != "qwen3"
        && config["model_type"] != "mixtral"
        && let Some(window) = number(config, "sliding_window")
    {
        writer.count(&key("attention.sliding_window"), window);
    }
    for (theirs, ours) in [
        ("attn_logit_softcapping", "attn_logit_softcapping"),
        ("final_logit_softcapping", "final_logit_softcapping"),
        ("rope_local_base_freq", "rope.freq_base_swa"),
    ] {
        if let Some(value) = real(theirs) {
            writer.real(&key(ours), value);
        }
    }
    if let Some(scalar) = real("query_pre_attn_scalar") {
        writer.real(&key("attention.scale"), 1.0 / scalar.sqrt());
    }
    if name == "glm4moe" {
        let of = |key: &str| number(config, key).unwrap();
        writer
            .count(&key("expert_shared_count"), of("n_shared_experts"))
            .count(&key("leading_dense_block_count"), of("first_k_dense_replace"))
            .count(&key("expert_gating_func"), 2)
            .count(&key("nextn_predict_layers"), 1)
            .real(&key("expert_weights_scale"), real("routed_scaling_factor").unwrap());
        let behind = format!("blk.{}.nextn.enorm.weight", of("num_hidden_layers"));
        writer.tensor(&behind, &[8], 0, vec![0; 32]);
    }
    if let Some(pattern) = number(config, "_sliding_window_pattern") {
        writer.count(&key("attention.sliding_window_pattern"), pattern);
    }
    for (theirs, ours) in [
        ("embedding_multiplier", "embedding_scale"),
        ("residual_multiplier", "residual_scale"),
        ("attention_multiplier", "attention.scale"),
        ("logits_scaling", "logit_scale"),
    ] {
        if let Some(value) = real(theirs) {
            writer.real(&key(ours), value);
        }
    }
    if name == "olmo2"
        && let Some(types) = config["layer_types"].as_array()
    {
        let windows: Vec<bool> = types.iter().map(|layer| layer == "sliding_attention").collect();
        writer.flags(&key("attention.sliding_window_pattern"), &windows);
    }
    if rope(config)["rope_type"] == "yarn" {
        writer.text(&key("rope.scaling.type"), "yarn");
        for (theirs, ours) in [
            ("factor", "rope.scaling.factor"),
            ("beta_fast", "rope.scaling.yarn_beta_fast"),
            ("beta_slow", "rope.scaling.yarn_beta_slow"),
            ("mscale_all_dim", "rope.scaling.yarn_log_multiplier"),
            ("llama_4_scaling_beta", "attention.temperature_scale"),
        ] {
            if let Some(value) = rope(config)[theirs].as_f64() {
                writer.real(&key(ours), value as f32);
            }
        }
        let original = number(rope(config), "original_max_position_embeddings").unwrap();
        writer.count(&key("rope.scaling.original_context_length"), original);
    }
    if config["rope_scaling"]["rope_type"] == "linear" {
        let factor = config["rope_scaling"]["factor"].as_f64().unwrap() as f32;
        writer.text(&key("rope.scaling.type"), "linear").real(&key("rope.scaling.factor"), factor);
    }
    if let Some(original) = number(config, "original_max_position_embeddings") {
        writer.count(&key("rope.scaling.original_context_length"), original);
        let longer = f64::from(number(config, "max_position_embeddings").unwrap()) / f64::from(original);
        let amplitude = (1.0 + longer.ln() / f64::from(original).ln()).sqrt() as f32;
        writer.real(&key("rope.scaling.attn_factor"), amplitude);
    }
    for (theirs, ours) in [("long_factor", "rope_factors_long.weight"), ("short_factor", "rope_factors_short.weight")] {
        if let Some(factors) = config["rope_scaling"][theirs].as_array() {
            let bytes = factors.iter().flat_map(|x| (x.as_f64().unwrap() as f32).to_le_bytes()).collect();
            writer.tensor(ours, &[factors.len()], 0, bytes);
        }
    }
}

/// Channels of a head that turn.
fn turning(config: &Value) -> usize {
    let part = config["partial_rotary_factor"].as_f64().or(rope(config)["partial_rotary_factor"].as_f64());
    (part.unwrap_or(1.0) * head_dim(config) as f64) as usize
}

fn head_dim(config: &Value) -> usize {
    let of = |key: &str| number(config, key);
    of("head_dim").unwrap_or_else(|| of("hidden_size").unwrap() / of("num_attention_heads").unwrap()) as usize
}

fn tokenizer(writer: &mut Writer, folder: &Path, config: &Value, pre: &str) {
    let tokenizer = json(&folder.join("tokenizer.json"));
    let vocab = number(config, "vocab_size").unwrap() as usize;
    let mut texts: Vec<String> = (0..vocab).map(|id| format!("[PAD{id}]")).collect();
    let mut kinds = vec![5; vocab];
    for (text, id) in tokenizer["model"]["vocab"].as_object().unwrap() {
        let id = id.as_u64().unwrap() as usize;
        (texts[id], kinds[id]) = (text.clone(), 1);
    }
    for token in tokenizer["added_tokens"].as_array().unwrap() {
        let id = token["id"].as_u64().unwrap() as usize;
        (texts[id], kinds[id]) = (token["content"].as_str().unwrap().to_owned(), 3);
    }
    let merge = |merge: &Value| match merge {
        Value::String(merge) => merge.clone(),
        pair => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
    };
    let merges: Vec<String> = tokenizer["model"]["merges"].as_array().unwrap().iter().map(merge).collect();
    writer
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", pre)
        .texts("tokenizer.ggml.tokens", &texts)
        .integers("tokenizer.ggml.token_type", &kinds)
        .texts("tokenizer.ggml.merges", &merges)
        .count("tokenizer.ggml.bos_token_id", number(config, "bos_token_id").unwrap())
        .count("tokenizer.ggml.eos_token_id", number(config, "eos_token_id").unwrap());
    let settings = json(&folder.join("tokenizer_config.json"));
    if let Some(add) = settings["add_bos_token"].as_bool() {
        writer.flag("tokenizer.ggml.add_bos_token", add);
    }
    if let Some(template) = settings["chat_template"].as_str() {
        writer.text("tokenizer.chat_template", template);
    }
}

fn tensors(writer: &mut Writer, folder: &Path, config: &Value, form: MatrixFormat) {
    let (mut all, mut packed) = (BTreeMap::new(), BTreeMap::new());
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "safetensors") {
            let file = std::fs::read(path).unwrap();
            for (name, view) in SafeTensors::deserialize(&file).unwrap().iter() {
                if view.dtype() == Dtype::U8 {
                    packed.insert(name.to_owned(), (view.shape().to_vec(), view.data().to_vec()));
                    continue;
                }
                all.insert(name.to_owned(), (view.shape().to_vec(), widened(view.dtype(), view.data())));
            }
        }
    }
    let blocks = oss::experts(&mut all, &packed);
    if architecture(config) == gemma4::NAME {
        gemma4::tensors(writer, &mut all, config);
    }
    experts::stack(&mut all);
    experts::split_shared(&mut all);
    let name = architecture(config);
    let (llama, gemma) = (
        ["llama", "smollm3", "granite", "mistral3"].contains(&name),
        name.starts_with("gemma") || ["olmo2", "gpt-oss", "glm4moe"].contains(&name),
    );
    for (name, (shape, mut numbers)) in all {
        let heads = match name.rsplit('.').nth(1) {
            Some("q_proj") => number(config, "num_attention_heads"),
            Some("k_proj") => number(config, "num_key_value_heads"),
            _ => None,
        };
        if let Some(heads) = heads.filter(|_| llama) {
            numbers = neighbours(&numbers, heads as usize, shape[0]);
        }
        if ["gemma2", "gemma3"].contains(&architecture(config)) && name.ends_with("norm.weight") {
            numbers.iter_mut().for_each(|x| *x += 1.0);
        }
        let shape = if name.contains("shared_expert_gate") { vec![shape[1]] } else { shape };
        // llama.cpp's converter and quantiser leave routers in single precision.
        let name = if architecture(config) == "glm4" { glm4(&name) } else { name };
        let name = renamed(&name, gemma);
        if let Some(blocks) = blocks.get(&name).filter(|_| form == MatrixFormat::Mxfp4) {
            writer.tensor(&name, &shape, 39, blocks.clone());
            continue;
        }
        let exact = name.contains("ffn_gate_inp") || name.ends_with(".bias");
        let (kind, bytes) = stored(&shape, &numbers, form, exact);
        writer.tensor(&name, &shape, kind, bytes);
    }
    if config["rope_scaling"]["rope_type"] == "llama3" {
        let factors = llama3_factors(config);
        let bytes = factors.iter().flat_map(|x| x.to_le_bytes()).collect();
        writer.tensor("rope_freqs.weight", &[factors.len()], 0, bytes);
    }
}

/// Shape and numbers of tensors by name.
type NamedTensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// GLM-4's names for norms, where they would be taken for others'.
fn glm4(name: &str) -> String {
    name.replace("post_attention_layernorm", "ffn_norm")
        .replace("post_self_attn_layernorm", "post_attention_norm")
        .replace("post_mlp_layernorm", "post_ffw_norm")
}

fn widened(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        Dtype::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        Dtype::F16 => bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        Dtype::BF16 => bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        other => panic!("{other:?}"),
    }
}

/// Rows of each head in the order 0, d/2, 1, d/2 + 1, …
fn neighbours(numbers: &[f32], heads: usize, rows: usize) -> Vec<f32> {
    let (cols, dim) = (numbers.len() / rows, rows / heads);
    let row = |row: usize| {
        let (head, at) = (row / dim, row % dim);
        let from = head * dim + at % 2 * (dim / 2) + at / 2;
        &numbers[from * cols..][..cols]
    };
    (0..rows).flat_map(row).copied().collect()
}

fn stored(shape: &[usize], numbers: &[f32], form: MatrixFormat, exact: bool) -> (u32, Vec<u8>) {
    let whole = |block: usize| shape[shape.len() - 1].is_multiple_of(block);
    let single = |numbers: &[f32]| (0, numbers.iter().flat_map(|x| x.to_le_bytes()).collect());
    let half = |numbers: &[f32]| (1, numbers.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect());
    match form {
        _ if shape.len() == 1 || exact => single(numbers),
        MatrixFormat::F32 => single(numbers),
        MatrixFormat::Large(kind) if whole(large::NUMBERS) => (large::number(kind), large::encode(kind, numbers)),
        MatrixFormat::WidenedLarge(kind) if whole(large::NUMBERS) => {
            single(&large::widened(kind, &large::encode(kind, numbers)))
        }
        MatrixFormat::Q8 | MatrixFormat::Large(_) if whole(32) => {
            (8, numbers.chunks_exact(32).flat_map(|x| q8(x).0).collect())
        }
        MatrixFormat::WidenedQ8 | MatrixFormat::WidenedLarge(_) if whole(32) => {
            single(&numbers.chunks_exact(32).flat_map(|x| q8(x).1).collect::<Vec<_>>())
        }
        MatrixFormat::F16
        | MatrixFormat::Mxfp4
        | MatrixFormat::Q8
        | MatrixFormat::WidenedQ8
        | MatrixFormat::Large(_)
        | MatrixFormat::WidenedLarge(_) => half(numbers),
    }
}

/// A block of 32 numbers of 8 bits, and the numbers it stands for.
fn q8(numbers: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let largest = numbers.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    let scale = f16::from_f32(largest / 127.0);
    let quant = |x: &f32| if largest == 0.0 { 0 } else { (x / scale.to_f32()).round().clamp(-127.0, 127.0) as i8 };
    let quants: Vec<i8> = numbers.iter().map(quant).collect();
    let bytes = scale.to_le_bytes().into_iter().chain(quants.iter().map(|q| q.to_le_bytes()[0])).collect();
    (bytes, quants.iter().map(|q| scale.to_f32() * f32::from(*q)).collect())
}

fn renamed(name: &str, gemma: bool) -> String {
    const PARTS: [(&str, &str); 27] = [
        ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
        ("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
        ("mlp.shared_experts.up_proj", "ffn_up_shexp"),
        ("mlp.shared_experts.down_proj", "ffn_down_shexp"),
        ("mlp.router.", "ffn_gate_inp."),
        ("self_attn.sinks", "attn_sinks.weight"),
        ("shared_mlp.output_linear", "ffn_down"),
        ("mlp.shared_expert_gate.", "ffn_gate_inp_shexp."),
        ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
        ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
        ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
        ("mlp.gate.", "ffn_gate_inp."),
        ("block_sparse_moe.gate.", "ffn_gate_inp."),
        ("input_layernorm", "attn_norm"),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("self_attn.qkv_proj", "attn_qkv"),
        ("mlp.gate_up_proj", "ffn_up"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ];
    match name {
        "model.embed_tokens.weight" => return "token_embd.weight".to_owned(),
        "model.norm.weight" => return "output_norm.weight".to_owned(),
        "lm_head.weight" => return "output.weight".to_owned(),
        _ => {}
    }
    let second = if gemma { "post_attention_norm" } else { "ffn_norm" };
    let name = name.replace("model.layers.", "blk.").replace("post_attention_layernorm", second);
    PARTS.iter().fold(name, |name, (theirs, ours)| name.replace(theirs, ours))
}

/// What llama.cpp's converter writes for Llama 3's stretch.
fn llama3_factors(config: &Value) -> Vec<f32> {
    let of = |key: &str| config["rope_scaling"][key].as_f64().unwrap();
    let (factor, low, high) = (of("factor"), of("low_freq_factor"), of("high_freq_factor"));
    let (context, base) = (of("original_max_position_embeddings"), config["rope_theta"].as_f64().unwrap());
    let dim = head_dim(config);
    let one = |i: usize| {
        let wavelength = 2.0 * std::f64::consts::PI * base.powf(2.0 * i as f64 / dim as f64);
        if wavelength < context / high {
            1.0
        } else if wavelength > context / low {
            factor
        } else {
            let smooth = (context / wavelength - low) / (high - low);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    };
    (0..dim / 2).map(|i| one(i) as f32).collect()
}
