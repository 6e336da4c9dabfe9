//! Model families. Each is one file, read top to bottom beside its paper, and one line in [`FAMILIES`].

mod decoder;
mod gemma2;
mod gemma3;
mod gemma4;
mod glm;
mod glm4;
mod glm4_moe;
mod gpt_oss;
mod granite;
mod granite4;
mod llama;
mod ministral3;
mod mistral;
mod mixtral;
mod olmo2;
mod olmo3;
mod olmoe;
mod opt;
mod outline;
mod phi3;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_moe;
mod qwen3_next;
mod smollm3;

pub(crate) use outline::{
    AttentionOutline, BesideOutline, DeltaOutline, DeltaSizes, ExpertsOutline, HeadOutline, LayerOutline,
    LinearOutline, MixerOutline, MlpOutline, NormOutline, Outline, ROW_NORMS_TOGETHER, STATES_TOGETHER,
};

use crate::{
    config::{Keys, ModelConfig, ModelConfigError},
    cpu::Cpu,
    engine::Attend,
    linear::Weight,
    pages::StateLayout,
    ranks::Rank,
    weights::{Checkpoint, Tensor, WeightsError},
};
use std::fmt;
use tsnode_protocol::{LayerRange, Token};

/// All that is read.
static FAMILIES: [&Family; 27] = [
    &llama::FAMILY,
    &mistral::FAMILY,
    &qwen2::FAMILY,
    &qwen3::FAMILY,
    &qwen3_moe::FAMILY,
    &qwen3_next::FAMILY,
    &qwen3_next::DENSE,
    &qwen3_next::EXPERTS,
    &qwen2_moe::FAMILY,
    &mixtral::FAMILY,
    &olmoe::FAMILY,
    &gemma2::FAMILY,
    &gemma3::FAMILY,
    &gemma4::FAMILY,
    &gemma4::UNIFIED,
    &phi3::FAMILY,
    &smollm3::FAMILY,
    &granite::FAMILY,
    &granite4::FAMILY,
    &olmo2::FAMILY,
    &olmo3::FAMILY,
    &ministral3::FAMILY,
    &glm::FAMILY,
    &glm4::FAMILY,
    &glm4_moe::FAMILY,
    &gpt_oss::FAMILY,
    &opt::FAMILY,
];

/// Models with one forward pass.
pub struct Family {
    /// Its `model_type` in `config.json`.
    model_type: &'static str,
    /// Its class in transformers, as `architectures` name it.
    class: &'static str,
    /// Keys that its files have, and that its reference does not read for a forward pass, or does not read always.
    pub(crate) ignores: &'static [&'static str],
    /// The one method of quantising, by `quantization_config`, that it reads.
    pub(crate) reads_quantised: Option<&'static str>,
    /// Puts what is special of the family into a configuration read the usual way, and refuses what is not written.
    pub(crate) configure: fn(&mut ModelConfig, &Keys) -> Result<(), ModelConfigError>,
    /// Loads layers.
    load: fn(&ModelConfig, &Checkpoint, StageShare) -> LoadedStage,
}

/// What of a model a stage is: some layers, and of their matrices and heads a rank's part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StageShare {
    pub layers: LayerRange,
    pub rank: Rank,
}

/// A stage, or why there is none.
type LoadedStage = Result<Box<dyn ModelStage>, WeightsError>;

impl Family {
    /// Its class in transformers.
    pub(crate) fn class(&self) -> &'static str {
        self.class
    }
}

impl fmt::Debug for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.model_type)
    }
}

impl PartialEq for Family {
    fn eq(&self, other: &Self) -> bool {
        self.model_type == other.model_type
    }
}

/// The family of a `model_type`.
pub(crate) fn family(model_type: &str) -> Option<&'static Family> {
    FAMILIES.into_iter().find(|f| f.model_type == model_type)
}

/// The family of a class in `architectures`.
pub(crate) fn family_of_class(class: &str) -> Option<&'static Family> {
    FAMILIES.into_iter().find(|f| f.class.eq_ignore_ascii_case(class))
}

/// Every class that is read.
pub(crate) fn classes() -> [&'static str; FAMILIES.len()] {
    FAMILIES.map(|f| f.class)
}

/// Every `model_type` that is read.
pub(crate) fn types() -> [&'static str; FAMILIES.len()] {
    FAMILIES.map(|f| f.model_type)
}

/// Some consecutive layers of a model, or a rank's part of them; embedding with the first, on the first rank only, output
/// head with the last.
pub(crate) trait ModelStage: Send {
    /// Embeds tokens at their positions, one row each.
    fn embed(&self, tokens: &[Token], positions: &[u32], out: &mut [f32]);

    /// Runs every layer of the stage over the rows of `hidden`, in place; all ranks have all of them.
    fn layers(&mut self, cpu: &Cpu, hidden: &mut [f32], attend: &mut Attend<'_>);

    /// Logits of rows of `hidden`, one row each: those of the rank's part of the vocabulary.
    fn logits(&mut self, cpu: &Cpu, hidden: &[f32], out: &mut [f32]);

    /// Weights of the stage as stored (bytes): of one layer, of the embedding, of the head.
    fn bytes(&self) -> StageBytes;

    /// All matrices that rows are multiplied by.
    fn weights(&self) -> Vec<&Weight>;

    /// All tensors that rows are taken out of.
    fn tables(&self) -> Vec<&Tensor>;

    /// What its layers keep of a sequence beside keys and values; nothing in most families.
    fn states(&self) -> StateLayout {
        StateLayout::default()
    }

    /// The stage as data, for devices that compute its layers themselves; none where a family has no such form.
    fn outline(&self) -> Option<Outline<'_>> {
        None
    }

    /// Brings quantised weights into the order products read them in.
    fn prepare(&self, cpu: &Cpu) {
        self.weights().into_iter().for_each(|weight| weight.prepare(cpu));
    }
}

/// Bytes of weights by part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StageBytes {
    pub layers: u64,
    /// Of those, what experts take of which a row passes some.
    pub experts: u64,
    pub embed: u64,
    pub head: u64,
}

/// Loads a share of a model.
pub(crate) fn load(config: &ModelConfig, checkpoint: &Checkpoint, share: StageShare) -> LoadedStage {
    (config.family.load)(config, checkpoint, share)
}

/// `out[i] += more[i]`.
fn add(out: &mut [f32], more: &[f32]) {
    for (out, more) in out.iter_mut().zip(more) {
        *out += more;
    }
}

/// Adds `bias` to every row of `out`.
fn add_bias(out: &mut [f32], bias: &[f32]) {
    for row in out.chunks_exact_mut(bias.len().max(1)) {
        add(row, bias);
    }
}

/// Resizes without keeping content: scratch memory that is written whole before it is read.
/// Rows that pass an MLP together: enough that reading its weights again for the next ones is little beside multiplying.
pub(crate) const ROWS_OF_MLP: usize = 512;

fn sized(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    buffer.resize(len, 0.0);
    &mut buffer[..len]
}
