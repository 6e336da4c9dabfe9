//! What families of rotary decoders have in common: the stack their layers stand in. The parts are in [`parts`].

pub(super) mod experts;
pub(super) mod parts;

use super::{
    LoadedStage, ModelStage, StageBytes, StageShare,
    outline::{HeadOutline, LayerOutline, LinearOutline, Outline},
    sized,
};
use crate::{
    config::ModelConfig,
    cpu::Cpu,
    engine::Attend,
    gguf::ROPE_FACTORS,
    linear::Weight,
    pages::StateLayout,
    ranks::RankOutputs,
    rope::{Rope, RopeScaling},
    weights::{Checkpoint, Tensor, WeightsError},
};
use parts::{InputTable, Part, RmsNorm};
use tsnode_protocol::Token;

/// One layer of a family.
pub(super) trait DecoderLayer: Send {
    /// Runs over the rows of `hidden`, in place.
    fn forward(&self, step: &mut LayerStep<'_, '_>, hidden: &mut [f32], s: &mut Scratch);

    /// The layer as data.
    fn outline(&self) -> LayerOutline<'_>;
}

/// A batch at one layer of the stage.
pub(super) struct LayerStep<'a, 'b> {
    pub cpu: &'a Cpu,
    /// Rows of the batch.
    pub rows: usize,
    /// The layer's place in the stage.
    pub layer: usize,
    pub attend: &'a mut Attend<'b>,
}

/// Memory kept from step to step. A part's input is in `normed` and its output in `out`; the rest is between parts' own
/// hands.
#[derive(Default)]
pub(super) struct Scratch {
    /// `[row][hidden]`.
    pub normed: Vec<f32>,
    /// `[row][hidden]`.
    pub out: Vec<f32>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    mixed: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    work: experts::MoeScratch,
    /// Those of each layer, `[layer][row][number]`, where there are some.
    inputs: Vec<f32>,
    /// Of layers that keep a state: what matrices made of each row, and the parts it is taken to.
    delta: parts::DeltaScratch,
    /// What a mixture is chosen by, where that is not what its experts get, and what stands beside it: `[row][hidden]`.
    pub routed: Vec<f32>,
    pub beside: Vec<f32>,
    /// By which of the stack's ropes a layer turns.
    angles: [Angles; 2],
}

/// Cosines and sines of every row, `[row][half]`.
#[derive(Default)]
struct Angles {
    cos: Vec<f32>,
    sin: Vec<f32>,
    half: usize,
}

impl Angles {
    fn fill(&mut self, rope: &Rope, positions: &[u32]) {
        let half = rope.frequencies().0.len();
        self.half = half;
        let cos = sized(&mut self.cos, positions.len() * half).chunks_exact_mut(half);
        let sin = sized(&mut self.sin, positions.len() * half).chunks_exact_mut(half);
        for ((position, cos), sin) in positions.iter().zip(cos).zip(sin) {
            rope.angles(*position, cos, sin);
        }
    }
}

/// Consecutive layers of one family.
struct DecoderStage<L> {
    config: ModelConfig,
    embed: Option<Tensor>,
    /// Of stages that begin a model with inputs of each layer.
    inputs: Option<InputTable>,
    layers: Vec<L>,
    head: Option<Head>,
    /// Of all layers or most; then, if there are some with another, of those.
    ropes: Vec<Rope>,
    bytes: StageBytes,
    /// All matrices that rows are multiplied by.
    weights: Vec<Weight>,
    scratch: Scratch,
}

struct Head {
    norm: RmsNorm,
    weight: Weight,
    outputs: RankOutputs,
}

impl Head {
    fn outline(&self) -> LinearOutline<'_> {
        LinearOutline { weight: &self.weight, bias: None, outputs: &self.outputs }
    }
}

/// Loads a stage whose layers `layer` loads.
pub(super) fn load<L: DecoderLayer + 'static>(
    c: &ModelConfig,
    checkpoint: &Checkpoint,
    share: StageShare,
    layer: fn(&Part<'_>) -> Result<L, WeightsError>,
) -> LoadedStage {
    let StageShare { layers: range, rank } = share;
    let matrix = |name: &str| checkpoint.matrix(name, c.vocab, c.hidden);
    let embed = if range.start == 0 && rank.is_first() { Some(matrix("model.embed_tokens.weight")?) } else { None };
    let mut bytes = StageBytes { embed: embed.as_ref().map_or(0, Tensor::bytes), ..StageBytes::default() };
    let head = if range.end as usize == c.blocks() {
        // A checkpoint may say nothing of tying and simply have no head.
        let tied = c.tied || !checkpoint.has("lm_head.weight");
        let all = matrix(if tied { "model.embed_tokens.weight" } else { "lm_head.weight" })?;
        let outputs = RankOutputs { all: c.vocab, mine: rank.outputs(c.vocab) };
        let weight = Weight::new(all.rows(outputs.mine.clone()));
        let part = Part::new(c, checkpoint, rank, "model".to_owned(), 0);
        let norm = part.norm("norm")?.scaled(c.logit_scale);
        bytes.head = weight.bytes() + part.bytes();
        Some(Head { norm, weight, outputs })
    } else {
        None
    };
    let mut weights: Vec<Weight> = head.iter().map(|h: &Head| h.weight.clone()).collect();
    let inputs = match c.layer_inputs.as_ref().filter(|_| range.start == 0) {
        Some(inputs) => {
            let part = Part::new(c, checkpoint, rank, "model".to_owned(), 0);
            let table = InputTable::load(&part, inputs)?;
            bytes.layers += part.bytes();
            bytes.embed += if rank.is_first() { table.table().bytes() } else { 0 };
            weights.extend(part.weights());
            Some(table)
        }
        None => None,
    };
    let mut layers = Vec::with_capacity(range.len() as usize);
    let of_model = c.layers_of(range);
    let first = of_model.start;
    for index in of_model {
        let part = Part::new(c, checkpoint, rank, format!("model.layers.{index}"), index).of_stage_from(first);
        layers.push(layer(&part)?);
        bytes.layers += part.bytes();
        bytes.experts += part.expert_bytes();
        weights.extend(part.weights());
    }
    let ropes = ropes(c, checkpoint)?;
    Ok(Box::new(DecoderStage {
        config: c.clone(),
        embed,
        inputs,
        layers,
        head,
        ropes,
        bytes,
        weights,
        scratch: Scratch::default(),
    }))
}

/// GGUF files have Llama 3's stretch as a factor for each frequency.
fn ropes(c: &ModelConfig, checkpoint: &Checkpoint) -> Result<Vec<Rope>, WeightsError> {
    // Wide heads turn as a whole.
    let dim = c.rope_dim * c.widest_heads();
    let mut everywhere = Rope::new(dim, c.rope_theta, &c.rope_scaling);
    if checkpoint.has(ROPE_FACTORS) {
        everywhere = everywhere.divided(&checkpoint.vector(ROPE_FACTORS, dim / 2)?);
    }
    let unstretched = |theta| Rope::new(c.rope_dim, theta, &RopeScaling::None);
    let other = c.other_rope.as_ref().map(|other| other.theta.map_or_else(|| Rope::still(c.rope_dim), unstretched));
    Ok([everywhere].into_iter().chain(other).collect())
}

impl<L: DecoderLayer> ModelStage for DecoderStage<L> {
    fn embed(&self, tokens: &[Token], _positions: &[u32], out: &mut [f32]) {
        let Some(embed) = &self.embed else { return };
        for (token, row) in tokens.iter().zip(out.chunks_exact_mut(self.config.hidden)) {
            embed.widen_row(token.0 as usize, row);
            row.iter_mut().for_each(|x| *x *= self.config.embed_scale);
        }
    }

    fn layers(&mut self, cpu: &Cpu, hidden: &mut [f32], attend: &mut Attend<'_>) {
        let s = &mut self.scratch;
        for (rope, angles) in self.ropes.iter().zip(&mut s.angles) {
            angles.fill(rope, attend.positions());
        }
        if let Some(inputs) = &self.inputs {
            inputs.forward(cpu, hidden, attend, s);
        }
        let rows = hidden.len() / self.config.hidden;
        for (index, layer) in self.layers.iter().enumerate() {
            layer.forward(&mut LayerStep { cpu, rows, layer: index, attend }, hidden, s);
        }
    }

    fn logits(&mut self, cpu: &Cpu, hidden: &[f32], out: &mut [f32]) {
        let Some(head) = &self.head else { return };
        let normed = &mut self.scratch.normed;
        head.norm.forward(cpu, hidden, normed);
        head.weight.apply(cpu, normed, out);
        if let Some(cap) = self.config.logit_cap {
            cpu.soft_cap(out, cap);
        }
    }

    fn bytes(&self) -> StageBytes {
        self.bytes
    }

    fn weights(&self) -> Vec<&Weight> {
        self.weights.iter().collect()
    }

    fn tables(&self) -> Vec<&Tensor> {
        // All ranks read one, where it lies.
        let inputs = self.inputs.as_ref().filter(|_| self.embed.is_some()).map(InputTable::table);
        self.embed.iter().chain(inputs).collect()
    }

    fn states(&self) -> StateLayout {
        self.config.states()
    }

    fn outline(&self) -> Option<Outline<'_>> {
        let cap = self.config.logit_cap;
        Some(Outline {
            hidden: self.config.hidden,
            embed: self.embed.as_ref().map(|table| (table, self.config.embed_scale)),
            layers: self.layers.iter().map(DecoderLayer::outline).collect(),
            head: self.head.as_ref().map(|h| HeadOutline { norm: h.norm.outline(), linear: h.outline(), cap }),
            ropes: &self.ropes,
            states: self.config.states(),
            lacks: self.config.gpu_lacks,
        })
    }
}
