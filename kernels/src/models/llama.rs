//! Llama 1–3 and what is built like it: SmolLM, Mistral without a window, Qwen2 (biases on queries, keys and values).

use super::{Stage, StageBytes, add, add_bias, sized};
use crate::{
    config::ModelConfig,
    cpu::Cpu,
    engine::Attend,
    gguf::ROPE_FACTORS,
    linear::Weight,
    rope::{Rope, turn},
    weights::{Checkpoint, Tensor, WeightsError},
};
use tsnode_protocol::{LayerRange, Token};

pub(super) struct Llama {
    config: ModelConfig,
    embed: Option<Tensor>,
    layers: Vec<Layer>,
    head: Option<Head>,
    rope: Rope,
    scratch: Scratch,
}

struct Layer {
    attention_norm: Vec<f32>,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Weight,
    mlp_norm: Vec<f32>,
    gate: Weight,
    up: Weight,
    down: Weight,
}

struct Linear {
    weight: Weight,
    bias: Option<Vec<f32>>,
}

struct Head {
    norm: Vec<f32>,
    weight: Weight,
}

/// Memory kept from step to step.
#[derive(Default)]
struct Scratch {
    normed: Vec<f32>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    mixed: Vec<f32>,
    out: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Llama {
    pub(super) fn load(config: &ModelConfig, checkpoint: &Checkpoint, range: LayerRange) -> Result<Self, WeightsError> {
        let c = config;
        let embed = || checkpoint.matrix("model.embed_tokens.weight", c.vocab, c.hidden);
        let head = if range.end as usize == c.layers {
            // A checkpoint may say nothing of tying and simply have no head.
            let tied = c.tied || !checkpoint.has("lm_head.weight");
            let weight = if tied { embed()? } else { checkpoint.matrix("lm_head.weight", c.vocab, c.hidden)? };
            let weight = Weight::new(weight);
            Some(Head { norm: checkpoint.vector("model.norm.weight", c.hidden)?, weight })
        } else {
            None
        };
        Ok(Self {
            embed: if range.start == 0 { Some(embed()?) } else { None },
            layers: range.iter().map(|i| Layer::load(c, checkpoint, i)).collect::<Result<_, _>>()?,
            head,
            rope: rope(c, checkpoint)?,
            config: config.clone(),
            scratch: Scratch::default(),
        })
    }
}

impl Layer {
    fn load(c: &ModelConfig, checkpoint: &Checkpoint, index: u32) -> Result<Self, WeightsError> {
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let matrix = |part: &str, rows, cols| checkpoint.matrix(&name(part), rows, cols).map(Weight::new);
        let linear = |part: &str, rows| -> Result<Linear, WeightsError> {
            let bias = name(&format!("{part}.bias"));
            let bias = if checkpoint.has(&bias) { Some(checkpoint.vector(&bias, rows)?) } else { None };
            Ok(Linear { weight: matrix(&format!("{part}.weight"), rows, c.hidden)?, bias })
        };
        Ok(Self {
            attention_norm: checkpoint.vector(&name("input_layernorm.weight"), c.hidden)?,
            query: linear("self_attn.q_proj", c.heads * c.head_dim)?,
            key: linear("self_attn.k_proj", c.kv_heads * c.head_dim)?,
            value: linear("self_attn.v_proj", c.kv_heads * c.head_dim)?,
            output: matrix("self_attn.o_proj.weight", c.hidden, c.heads * c.head_dim)?,
            mlp_norm: checkpoint.vector(&name("post_attention_layernorm.weight"), c.hidden)?,
            gate: matrix("mlp.gate_proj.weight", c.intermediate, c.hidden)?,
            up: matrix("mlp.up_proj.weight", c.intermediate, c.hidden)?,
            down: matrix("mlp.down_proj.weight", c.hidden, c.intermediate)?,
        })
    }

    fn forward(
        &self,
        c: &ModelConfig,
        cpu: &Cpu,
        index: usize,
        hidden: &mut [f32],
        attend: &mut Attend<'_>,
        s: &mut Scratch,
    ) {
        let rows = hidden.len() / c.hidden;
        let normed = sized(&mut s.normed, hidden.len());
        cpu.rms_norm(hidden, &self.attention_norm, c.norm_eps, normed);
        let q = sized(&mut s.q, rows * c.heads * c.head_dim);
        let k = sized(&mut s.k, rows * c.kv_heads * c.head_dim);
        let v = sized(&mut s.v, rows * c.kv_heads * c.head_dim);
        self.query.forward(cpu, normed, q);
        self.key.forward(cpu, normed, k);
        self.value.forward(cpu, normed, v);
        turn_rows(q, c, c.heads, &s.cos, &s.sin);
        turn_rows(k, c, c.kv_heads, &s.cos, &s.sin);
        let mixed = sized(&mut s.mixed, q.len());
        attend.attend(cpu, index, q, k, v, mixed);
        let out = sized(&mut s.out, hidden.len());
        self.output.apply(cpu, mixed, out);
        add(hidden, out);

        cpu.rms_norm(hidden, &self.mlp_norm, c.norm_eps, normed);
        let gate = sized(&mut s.gate, rows * c.intermediate);
        let up = sized(&mut s.up, rows * c.intermediate);
        self.gate.apply(cpu, normed, gate);
        self.up.apply(cpu, normed, up);
        cpu.silu_mul(gate, up);
        self.down.apply(cpu, gate, out);
        add(hidden, out);
    }

    fn bytes(&self) -> u64 {
        let norms = 4 * (self.attention_norm.len() + self.mlp_norm.len()) as u64;
        let linears = [&self.query, &self.key, &self.value].map(Linear::bytes).iter().sum::<u64>();
        norms + linears + [&self.output, &self.gate, &self.up, &self.down].map(Weight::bytes).iter().sum::<u64>()
    }
}

impl Linear {
    fn forward(&self, cpu: &Cpu, x: &[f32], out: &mut [f32]) {
        self.weight.apply(cpu, x, out);
        if let Some(bias) = &self.bias {
            add_bias(out, bias);
        }
    }

    fn bytes(&self) -> u64 {
        self.weight.bytes() + self.bias.as_ref().map_or(0, |b| 4 * b.len() as u64)
    }
}

impl Stage for Llama {
    fn embed(&self, tokens: &[Token], _positions: &[u32], out: &mut [f32]) {
        let Some(embed) = &self.embed else { return };
        for (token, row) in tokens.iter().zip(out.chunks_exact_mut(self.config.hidden)) {
            embed.widen_row(token.0 as usize, row);
        }
    }

    fn layers(&mut self, cpu: &Cpu, hidden: &mut [f32], attend: &mut Attend<'_>) {
        let half = self.config.head_dim / 2;
        let s = &mut self.scratch;
        sized(&mut s.cos, attend.positions().len() * half);
        sized(&mut s.sin, attend.positions().len() * half);
        for (row, position) in attend.positions().iter().enumerate() {
            let (cos, sin) = (&mut s.cos[row * half..][..half], &mut s.sin[row * half..][..half]);
            self.rope.angles(*position, cos, sin);
        }
        for (index, layer) in self.layers.iter().enumerate() {
            layer.forward(&self.config, cpu, index, hidden, attend, s);
        }
    }

    fn logits(&self, cpu: &Cpu, hidden: &[f32], out: &mut [f32]) {
        let Some(head) = &self.head else { return };
        let mut normed = vec![0.0; hidden.len()];
        cpu.rms_norm(hidden, &head.norm, self.config.norm_eps, &mut normed);
        head.weight.apply(cpu, &normed, out);
    }

    fn bytes(&self) -> StageBytes {
        StageBytes {
            layers: self.layers.iter().map(Layer::bytes).sum(),
            embed: self.embed.as_ref().map_or(0, Tensor::bytes),
            head: self.head.as_ref().map_or(0, |h| h.weight.bytes() + 4 * h.norm.len() as u64),
        }
    }
}

/// Turns every head of every row by the row's angles.
fn turn_rows(x: &mut [f32], c: &ModelConfig, heads: usize, cos: &[f32], sin: &[f32]) {
    let half = c.head_dim / 2;
    for (row, x) in x.chunks_exact_mut(heads * c.head_dim).enumerate() {
        for head in x.chunks_exact_mut(c.head_dim) {
            turn(head, &cos[row * half..][..half], &sin[row * half..][..half], c.rope_pairs);
        }
    }
}

/// The model's frequencies; GGUF files have Llama 3's stretch as a factor for each.
fn rope(c: &ModelConfig, checkpoint: &Checkpoint) -> Result<Rope, WeightsError> {
    let rope = Rope::new(c.head_dim, c.rope_theta, c.rope_scaling);
    if !checkpoint.has(ROPE_FACTORS) {
        return Ok(rope);
    }
    Ok(rope.divided(&checkpoint.vector(ROPE_FACTORS, c.head_dim / 2)?))
}
