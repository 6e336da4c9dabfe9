//! Model families. Each is one file, read top to bottom beside its paper; this list is all that knows them.

mod llama;
mod opt;

use crate::{
    config::{Family, ModelConfig},
    cpu::Cpu,
    engine::Attend,
    weights::{Checkpoint, WeightsError},
};
use tsnode_protocol::{LayerRange, Token};

/// Some consecutive layers of a model; embedding with the first, output head with the last.
pub(crate) trait Stage: Send {
    /// Embeds tokens at their positions, one row each.
    fn embed(&self, tokens: &[Token], positions: &[u32], out: &mut [f32]);

    /// Runs every layer of the stage over the rows of `hidden`, in place.
    fn layers(&mut self, cpu: &Cpu, hidden: &mut [f32], attend: &mut Attend<'_>);

    /// Logits of rows of `hidden`, one row each.
    fn logits(&self, cpu: &Cpu, hidden: &[f32], out: &mut [f32]);

    /// Weights of the stage as stored (bytes): of one layer, of the embedding, of the head.
    fn bytes(&self) -> StageBytes;
}

/// Bytes of weights by part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StageBytes {
    pub layers: u64,
    pub embed: u64,
    pub head: u64,
}

/// Loads `layers` of a model.
pub(crate) fn load(
    config: &ModelConfig,
    checkpoint: &Checkpoint,
    layers: LayerRange,
) -> Result<Box<dyn Stage>, WeightsError> {
    Ok(match config.family {
        Family::Llama => Box::new(llama::Llama::load(config, checkpoint, layers)?),
        Family::Opt => Box::new(opt::Opt::load(config, checkpoint, layers)?),
    })
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
fn sized(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    buffer.resize(len, 0.0);
    &mut buffer[..len]
}
