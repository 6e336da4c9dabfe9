//! What ranks hold of a stage, and what each computes with.

use super::{Input, attend::RowRun, key_rotation::StageRotations};
use crate::{
    cpu::Cpu,
    models::ModelStage,
    pages::{PageLayout, PageUse, PagesError, StateLayout},
    ranks::Rank,
};
use std::ops::Range;
use tsnode_protocol::{KvDtype, LayerRange, ModelShape};

/// A stage.
pub(super) struct Loaded {
    pub parts: Vec<RankPart>,
    pub shape: ModelShape,
    pub layers: LayerRange,
    pub turns: StageRotations,
    /// Who owns its sequences' pages.
    pub page_use: PageUse,
    /// What its weights take here (bytes).
    pub weights: u64,
}

/// A rank's part of a stage.
pub(super) struct RankPart {
    pub stage: Box<dyn ModelStage>,
    pub layout: PageLayout,
    /// What its layers keep of a sequence beside.
    pub states: StateLayout,
    /// Its heads of keys and values.
    pub heads: Range<usize>,
    /// Tokens whose logits it computes.
    pub vocab: Range<usize>,
}

impl RankPart {
    pub fn new(rank: Rank, stage: Box<dyn ModelStage>, shape: &ModelShape, dtype: KvDtype) -> Result<Self, PagesError> {
        let heads = rank.heads(shape.kv_heads as usize);
        let layout = PageLayout::new(&ModelShape { kv_heads: heads.len() as u32, ..*shape }, dtype)?;
        let states = stage.states();
        Ok(Self { stage, layout, states, heads, vocab: rank.outputs(shape.vocab as usize) })
    }
}

impl Loaded {
    pub fn layouts(&self) -> impl Iterator<Item = (PageLayout, StateLayout)> {
        self.parts.iter().map(|part| (part.layout, part.states))
    }

    /// Pages that a sequence of so many tokens takes on a rank.
    pub fn pages(&self, rank: usize, tokens: usize) -> usize {
        let RankPart { layout, states, .. } = &self.parts[rank];
        layout.pages(tokens) * self.layers.len() as usize + states.pages()
    }

    /// Whether some layers keep a state of a sequence: then its keys and values are of no use without that.
    pub fn has_states(&self) -> bool {
        self.parts.iter().any(|part| part.states.pages() > 0)
    }

    /// The rank that has a head of keys and values, and the head's place there.
    pub fn place_of(&self, head: u32) -> (usize, usize) {
        let head = head as usize;
        // Ranks have all heads, in order.
        let rank = self.parts.partition_point(|part| part.heads.end <= head);
        (rank, head - self.parts[rank].heads.start)
    }
}

/// What a rank computes with.
pub(super) struct RankDevice {
    pub cpu: Cpu,
    /// Kept from step to step: rows, those that logits are wanted of, and logits.
    pub hidden: Vec<f32>,
    pub chosen: Vec<f32>,
    pub logits: Vec<f32>,
    /// Memory for the runs of a batch; none are left in it.
    pub runs: Vec<RowRun<'static>>,
}

/// What enters a stage, as every rank has it.
pub(super) fn enter(devices: &mut [RankDevice], loaded: &Loaded, input: Input<'_>, positions: &[u32]) {
    let Some((first, others)) = devices.split_first_mut() else { return };
    first.hidden.resize(positions.len() * loaded.shape.hidden as usize, 0.0);
    match input {
        Input::Tokens(tokens) => loaded.parts[0].stage.embed(tokens, positions, &mut first.hidden),
        Input::Hidden(rows) => first.hidden.copy_from_slice(rows),
    }
    for other in others {
        other.hidden.clear();
        other.hidden.extend_from_slice(&first.hidden);
    }
}

/// Logits of all ranks, `[row][vocab]`.
pub(super) fn side_by_side(devices: &[RankDevice], loaded: &Loaded, rows: usize, out: &mut Vec<f32>) {
    let vocab = loaded.shape.vocab as usize;
    out.resize(rows * vocab, 0.0);
    for (device, part) in devices.iter().zip(&loaded.parts) {
        let width = part.vocab.len().max(1);
        for (out, logits) in out.chunks_exact_mut(vocab).zip(device.logits.chunks_exact(width)) {
            out[part.vocab.clone()].copy_from_slice(logits);
        }
    }
}
