//! OPT: learned positions, layer norm before each block and at the end, ReLU, biases everywhere, tied head.

use super::{Family, ModelStage, ROWS_OF_MLP, StageBytes, StageShare, add, add_bias, sized};
use crate::{
    config::{Activation, Keys, ModelConfig, ModelConfigError},
    cpu::Cpu,
    engine::{Attend, AttentionParams},
    linear::Weight,
    ranks::Rank,
    weights::{Checkpoint, Tensor, WeightsError},
};
use std::ops::Range;
use tsnode_protocol::Token;

/// The position table's first two rows are for padding.
const POSITION_OFFSET: usize = 2;

pub(super) static FAMILY: Family = Family {
    model_type: "opt",
    class: "OPTForCausalLM",
    ignores: &["init_std", "layer_norm_eps"],
    reads_quantised: None,
    configure,
    load: |c, checkpoint, share| Ok(Box::new(Opt::load(c, checkpoint, share)?)),
};

fn configure(config: &mut ModelConfig, keys: &Keys) -> Result<(), ModelConfigError> {
    config.activation = keys.activation("activation_function", Activation::Relu)?;
    if config.activation != Activation::Relu {
        return Err(keys.refusal("activation_function"));
    }
    for needed in ["do_layer_norm_before", "enable_bias", "layer_norm_elementwise_affine"] {
        if keys.flag(needed)? == Some(false) {
            return Err(keys.refusal(needed));
        }
    }
    if keys.count("word_embed_proj_dim")?.is_some_and(|w| w != config.hidden) {
        return Err(keys.refusal("word_embed_proj_dim"));
    }
    // Its heads of keys and values are those of queries, and together as wide as the residual stream.
    if config.kv_heads != config.heads {
        return Err(keys.refusal("num_key_value_heads"));
    }
    if config.heads * config.head_dim != config.hidden {
        return Err(keys.refusal("head_dim"));
    }
    // Its reference has no key for it.
    config.norm_eps = 1e-5;
    config.tied = keys.flag("tie_word_embeddings")?.unwrap_or(true);
    Ok(())
}

struct Opt {
    config: ModelConfig,
    embed: Option<OptEmbedding>,
    layers: Vec<OptLayer>,
    head: Option<OptHead>,
    scratch: OptScratch,
}

struct OptEmbedding {
    tokens: Tensor,
    positions: Tensor,
}

struct OptLayer {
    attention_norm: OptNorm,
    query: OptLinear,
    key: OptLinear,
    value: OptLinear,
    output: OptLinear,
    mlp_norm: OptNorm,
    up: OptLinear,
    down: OptLinear,
}

struct OptNorm {
    weight: Vec<f32>,
    bias: Vec<f32>,
}

struct OptLinear {
    weight: Weight,
    bias: Vec<f32>,
}

struct OptHead {
    norm: OptNorm,
    weight: Weight,
}

/// Memory kept from step to step.
#[derive(Default)]
struct OptScratch {
    normed: Vec<f32>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    mixed: Vec<f32>,
    out: Vec<f32>,
    up: Vec<f32>,
}

impl Opt {
    fn load(config: &ModelConfig, checkpoint: &Checkpoint, share: StageShare) -> Result<Self, WeightsError> {
        let (c, StageShare { layers: range, rank }) = (config, share);
        let tokens = || checkpoint.matrix("model.decoder.embed_tokens.weight", c.vocab, c.hidden);
        let positions =
            || checkpoint.matrix("model.decoder.embed_positions.weight", c.context + POSITION_OFFSET, c.hidden);
        let embed = if range.start == 0 && rank.is_first() {
            Some(OptEmbedding { tokens: tokens()?, positions: positions()? })
        } else {
            None
        };
        let head = if range.end as usize == c.layers {
            let tied = c.tied || !checkpoint.has("lm_head.weight");
            let weight = if tied { tokens()? } else { checkpoint.matrix("lm_head.weight", c.vocab, c.hidden)? };
            let norm = OptNorm::load(checkpoint, "model.decoder.final_layer_norm", c.hidden)?;
            Some(OptHead { norm, weight: Weight::new(weight.rows(rank.outputs(c.vocab))) })
        } else {
            None
        };
        let layers = range.iter().map(|i| OptLayer::load(c, checkpoint, rank, i)).collect::<Result<_, _>>()?;
        Ok(Self { embed, layers, head, config: config.clone(), scratch: OptScratch::default() })
    }
}

impl OptNorm {
    fn load(checkpoint: &Checkpoint, name: &str, width: usize) -> Result<Self, WeightsError> {
        Ok(Self {
            weight: checkpoint.vector(&format!("{name}.weight"), width)?,
            bias: checkpoint.vector(&format!("{name}.bias"), width)?,
        })
    }

    fn forward(&self, cpu: &Cpu, eps: f32, x: &[f32], out: &mut [f32]) {
        cpu.layer_norm(x, &self.weight, &self.bias, eps, out);
    }
}

impl OptLinear {
    /// The outputs `mine` of `rows`.
    fn load(
        checkpoint: &Checkpoint,
        name: &str,
        (rows, cols): (usize, usize),
        mine: Range<usize>,
    ) -> Result<Self, WeightsError> {
        let weight = checkpoint.matrix(&format!("{name}.weight"), rows, cols)?;
        let bias = checkpoint.vector(&format!("{name}.bias"), rows)?;
        Ok(Self { weight: Weight::new(weight.rows(mine.clone())), bias: bias[mine].to_vec() })
    }

    fn forward(&self, cpu: &Cpu, rows: usize, x: &[f32], out: &mut Vec<f32>) {
        self.apply(cpu, x, sized(out, rows * self.bias.len()));
    }

    fn apply(&self, cpu: &Cpu, x: &[f32], out: &mut [f32]) {
        self.weight.apply(cpu, x, out);
        add_bias(out, &self.bias);
    }

    fn bytes(&self) -> u64 {
        self.weight.bytes() + 4 * self.bias.len() as u64
    }
}

impl OptLayer {
    fn load(c: &ModelConfig, checkpoint: &Checkpoint, rank: Rank, index: u32) -> Result<Self, WeightsError> {
        let name = |part: &str| format!("model.decoder.layers.{index}.{part}");
        let heads = rank.heads(c.kv_heads);
        let channels = heads.start * c.head_dim..heads.end * c.head_dim;
        let linear =
            |part: &str, size, mine: &Range<usize>| OptLinear::load(checkpoint, &name(part), size, mine.clone());
        let (hidden, inner) = (rank.outputs(c.hidden), rank.outputs(c.intermediate));
        let square = (c.hidden, c.hidden);
        Ok(Self {
            attention_norm: OptNorm::load(checkpoint, &name("self_attn_layer_norm"), c.hidden)?,
            query: linear("self_attn.q_proj", square, &channels)?,
            key: linear("self_attn.k_proj", square, &channels)?,
            value: linear("self_attn.v_proj", square, &channels)?,
            output: linear("self_attn.out_proj", square, &hidden)?,
            mlp_norm: OptNorm::load(checkpoint, &name("final_layer_norm"), c.hidden)?,
            up: linear("fc1", (c.intermediate, c.hidden), &inner)?,
            down: linear("fc2", (c.hidden, c.intermediate), &hidden)?,
        })
    }

    fn forward(
        &self,
        c: &ModelConfig,
        cpu: &Cpu,
        index: usize,
        hidden: &mut [f32],
        attend: &mut Attend<'_>,
        s: &mut OptScratch,
    ) {
        let rows = hidden.len() / c.hidden;
        let normed = sized(&mut s.normed, hidden.len());
        self.attention_norm.forward(cpu, c.norm_eps, hidden, normed);
        self.query.forward(cpu, rows, normed, &mut s.q);
        self.key.forward(cpu, rows, normed, &mut s.k);
        self.value.forward(cpu, rows, normed, &mut s.v);
        let look = AttentionParams { scale: c.attention_scale, cap: None, window: None, parts: 1 };
        let mixed = sized(&mut s.mixed, s.q.len());
        attend.attend(cpu, index, (look, &[]), None, (&mut s.q, &mut s.k, &s.v), mixed);
        attend.gather(rows, &mut s.mixed);
        self.output.forward(cpu, rows, &s.mixed, &mut s.out);
        attend.gather(rows, &mut s.out);
        cpu.add(hidden, &s.out);

        self.mlp_norm.forward(cpu, c.norm_eps, hidden, normed);
        let width = self.down.bias.len();
        let some = sized(&mut s.out, rows * width).chunks_mut(ROWS_OF_MLP * width);
        for (x, out) in normed.chunks(ROWS_OF_MLP * c.hidden).zip(some) {
            let rows = x.len() / c.hidden;
            self.up.forward(cpu, rows, x, &mut s.up);
            s.up.iter_mut().for_each(|x| *x = x.max(0.0));
            attend.gather(rows, &mut s.up);
            self.down.apply(cpu, &s.up, out);
        }
        attend.gather(rows, &mut s.out);
        cpu.add(hidden, &s.out);
    }

    fn linears(&self) -> [&OptLinear; 6] {
        [&self.query, &self.key, &self.value, &self.output, &self.up, &self.down]
    }

    fn bytes(&self) -> u64 {
        let norms = 8 * (self.attention_norm.weight.len() + self.mlp_norm.weight.len()) as u64;
        norms + self.linears().map(OptLinear::bytes).iter().sum::<u64>()
    }
}

impl ModelStage for Opt {
    fn embed(&self, tokens: &[Token], positions: &[u32], out: &mut [f32]) {
        let Some(embed) = &self.embed else { return };
        let mut place = vec![0.0; self.config.hidden];
        for ((token, position), row) in tokens.iter().zip(positions).zip(out.chunks_exact_mut(self.config.hidden)) {
            embed.tokens.widen_row(token.0 as usize, row);
            embed.positions.widen_row(*position as usize + POSITION_OFFSET, &mut place);
            add(row, &place);
        }
    }

    fn layers(&mut self, cpu: &Cpu, hidden: &mut [f32], attend: &mut Attend<'_>) {
        for (index, layer) in self.layers.iter().enumerate() {
            layer.forward(&self.config, cpu, index, hidden, attend, &mut self.scratch);
        }
    }

    fn logits(&mut self, cpu: &Cpu, hidden: &[f32], out: &mut [f32]) {
        let Some(head) = &self.head else { return };
        let normed = &mut self.scratch.normed;
        normed.resize(hidden.len(), 0.0);
        head.norm.forward(cpu, self.config.norm_eps, hidden, normed);
        head.weight.apply(cpu, normed, out);
    }

    fn bytes(&self) -> StageBytes {
        let embed = self.embed.as_ref().map_or(0, |e| e.tokens.bytes() + e.positions.bytes());
        let norm = |h: &OptHead| 8 * h.norm.weight.len() as u64;
        StageBytes {
            experts: 0,
            layers: self.layers.iter().map(OptLayer::bytes).sum(),
            embed,
            head: self.head.as_ref().map_or(0, |h| h.weight.bytes() + norm(h)),
        }
    }
    fn weights(&self) -> Vec<&Weight> {
        let layers = self.layers.iter().flat_map(OptLayer::linears).map(|linear| &linear.weight);
        layers.chain(self.head.iter().map(|head| &head.weight)).collect()
    }

    fn tables(&self) -> Vec<&Tensor> {
        self.embed.iter().flat_map(|embed| [&embed.tokens, &embed.positions]).collect()
    }
}
