//! Attention on a GPU against the processor's, through engines: chunks and single rows, windows, caps, groups.

use super::{Lcg, machines};
use crate::{
    cuda::Gpu,
    engine::{Engine, EngineConfig, Input, Output, Slice, StageKey, Threads},
    source::ModelSource,
};
use std::path::Path;
use tsnode_protocol::{KvDtype, LayerRange, RequestId, Token};

/// A model of two layers with random weights in half precision.
pub(super) struct Shape {
    pub family: &'static str,
    pub hidden: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub dim: usize,
    pub mlp: usize,
    pub vocab: usize,
    pub more: &'static str,
}

const LAYERS: usize = 2;

impl Shape {
    /// Writes the model's files.
    pub fn write(&self, folder: &Path) {
        let Self { family, hidden, heads, kv_heads, dim, mlp, vocab, more } = *self;
        let config = format!(
            r#"{{"model_type":"{family}","num_hidden_layers":{LAYERS},"hidden_size":{hidden},"intermediate_size":{mlp},
            "num_attention_heads":{heads},"num_key_value_heads":{kv_heads},"head_dim":{dim},"vocab_size":{vocab},
            "max_position_embeddings":1024,"tie_word_embeddings":true{more}}}"#
        );
        std::fs::write(folder.join("config.json"), config).unwrap();
        let mut tensors = vec![("model.embed_tokens.weight".to_owned(), vec![vocab, hidden])];
        tensors.push(("model.norm.weight".to_owned(), vec![hidden]));
        for layer in 0..LAYERS {
            let norms = [
                "input_layernorm",
                "post_attention_layernorm",
                "pre_feedforward_layernorm",
                "post_feedforward_layernorm",
            ];
            let norms = &norms[..if family.starts_with("gemma") { 4 } else { 2 }];
            let matrices = [
                ("self_attn.q_proj", heads * dim, hidden),
                ("self_attn.k_proj", kv_heads * dim, hidden),
                ("self_attn.v_proj", kv_heads * dim, hidden),
                ("self_attn.o_proj", hidden, heads * dim),
                ("mlp.gate_proj", mlp, hidden),
                ("mlp.up_proj", mlp, hidden),
                ("mlp.down_proj", hidden, mlp),
            ];
            if family == "qwen2" {
                let biases = [("q_proj", heads), ("k_proj", kv_heads), ("v_proj", kv_heads)];
                tensors
                    .extend(biases.map(|(n, h)| (format!("model.layers.{layer}.self_attn.{n}.bias"), vec![h * dim])));
            }
            tensors.extend(norms.iter().map(|n| (format!("model.layers.{layer}.{n}.weight"), vec![hidden])));
            tensors.extend(matrices.map(|(n, o, i)| (format!("model.layers.{layer}.{n}.weight"), vec![o, i])));
        }
        std::fs::write(folder.join("model.safetensors"), safetensors(&tensors)).unwrap();
        let reference = super::here().join("models/reference/llama-gqa");
        for file in ["tokenizer.json", "tokenizer_config.json"] {
            std::fs::copy(reference.join(file), folder.join(file)).unwrap();
        }
    }
}

fn safetensors(tensors: &[(String, Vec<usize>)]) -> Vec<u8> {
    let (mut header, mut data, mut draw) = (Vec::new(), Vec::new(), Lcg(3));
    for (name, shape) in tensors {
        let from = data.len();
        let size = (*shape.last().unwrap() as f32).sqrt();
        for _ in 0..shape.iter().product::<usize>() {
            let x = if shape.len() == 1 { 1.0 + draw.number() / 4.0 } else { 2.0 * draw.number() / size };
            data.extend(half::f16::from_f32(x).to_le_bytes());
        }
        let shape: Vec<String> = shape.iter().map(ToString::to_string).collect();
        let (shape, to) = (shape.join(","), data.len());
        header.push(format!(r#""{name}":{{"dtype":"F16","shape":[{shape}],"data_offsets":[{from},{to}]}}"#));
    }
    let header = format!("{{{}}}", header.join(","));
    [(header.len() as u64).to_le_bytes().as_slice(), header.as_bytes(), &data].concat()
}

pub(super) const POOL: usize = 24 << 20;

pub(super) fn both(
    machine: &std::sync::Arc<dyn crate::cuda::machine::Machine>,
    source: &ModelSource,
    dtype: KvDtype,
) -> [(Engine, StageKey); 2] {
    let config = EngineConfig { threads: Threads::together(1), pool_bytes: POOL, kv_dtype: dtype };
    let engines = [Engine::new(config).unwrap(), Engine::on_gpu(Gpu::on(machine.clone()), POOL, dtype).unwrap()];
    engines.map(|mut engine| {
        let range = LayerRange { start: 0, end: source.card().shape.layers };
        let model = if engine.is_on_gpu() { source.load_stage_for_gpu(range, 1) } else { source.load_stage(range) };
        let stage = engine.load(model.unwrap()).unwrap();
        (engine, stage)
    })
}

/// Distance of two rows of logits, as a part of their size.
pub(super) fn apart(a: &[f32], b: &[f32]) -> f32 {
    let size = a.iter().map(|x| x * x).sum::<f32>().sqrt();
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f32>().sqrt() / size
}

/// Two sequences, in chunks and tokens, together and alone.
pub(super) fn scenario(engine: &mut Engine, stage: StageKey, vocab: usize) -> Vec<Vec<f32>> {
    let (a, b) = (RequestId([1; 16]), RequestId([2; 16]));
    engine.admit(stage, a, 300).unwrap();
    engine.admit(stage, b, 120).unwrap();
    let slice = |request, start, len| Slice { request, start, len };
    let steps = [
        vec![slice(a, 0, 37)],
        vec![slice(b, 0, 3), slice(a, 37, 90)],
        vec![slice(a, 127, 1), slice(b, 3, 1)],
        vec![slice(a, 128, 5), slice(b, 4, 20)],
        vec![slice(b, 24, 1), slice(a, 133, 1)],
        vec![slice(a, 134, 1)],
    ];
    let mut out = Vec::new();
    let mut draw = Lcg(9);
    for batch in steps {
        let rows: usize = batch.iter().map(|s| s.len as usize).sum();
        let tokens: Vec<Token> = (0..rows).map(|_| Token(draw.below(vocab) as u32)).collect();
        let wanted = if rows > 60 { vec![rows - 1, 0, 5] } else { (0..rows).collect() };
        let logits = engine.forward(stage, &batch, Input::Tokens(&tokens), Output::Logits { rows: &wanted }).unwrap();
        out.extend(logits.chunks_exact(vocab).map(<[f32]>::to_vec));
    }
    out
}

#[test]
fn engines_on_gpus_give_the_processors_logits() {
    let base = Shape { family: "llama", hidden: 64, heads: 4, kv_heads: 2, dim: 16, mlp: 96, vocab: 320, more: "" };
    let window = r#","sliding_window":40"#;
    let gemma = r#","query_pre_attn_scalar":24,"sliding_window":24,"attn_logit_softcapping":5.0,"hidden_activation":"gelu_pytorch_tanh""#;
    let shapes = [
        Shape { hidden: 72, heads: 6, dim: 24, mlp: 104, ..base },
        Shape { heads: 9, kv_heads: 1, dim: 64, ..base },
        Shape { family: "mistral", heads: 8, kv_heads: 2, dim: 80, more: window, ..base },
        Shape { heads: 4, kv_heads: 4, dim: 96, ..base },
        Shape { family: "gemma2", heads: 2, kv_heads: 1, dim: 256, more: gemma, ..base },
        Shape { family: "qwen2", heads: 6, kv_heads: 2, dim: 128, ..base },
    ];
    for machine in machines() {
        for (number, shape) in shapes.iter().enumerate() {
            let folder = tempfile::tempdir().unwrap();
            shape.write(folder.path());
            let source = ModelSource::open(folder.path()).unwrap();
            let all = [KvDtype::F16, KvDtype::Bf16, KvDtype::F32];
            // The widest heads take the longest: two kinds of pages each, other ones than the shape before.
            for dtype in all.into_iter().cycle().skip(number % 3).take(if shape.dim > 64 { 2 } else { 3 }) {
                let [cpu, gpu] =
                    both(&machine, &source, dtype).map(|(mut e, stage)| scenario(&mut e, stage, shape.vocab));
                for (i, (cpu, gpu)) in cpu.iter().zip(&gpu).enumerate() {
                    let apart = apart(cpu, gpu);
                    // Rows of many are rounded to half precision before products, queries of chunks to the pages' elements.
                    let most = if dtype == KvDtype::Bf16 { 0.02 } else { 0.004 };
                    assert!(apart < most, "{} {} {dtype:?}, row {i}: {apart}", shape.family, shape.dim);
                }
            }
        }
    }
}
