//! Layers whose heads lie in several heads of a page, or whose values are normed or are keys (Gemma 4): stored and attended by
//! kernels of their own (`device/wide.cu`).

use super::{GpuAttention, GpuLayerPages, whole};
use crate::{
    cuda::{
        machine::{Arg, GpuError, Launch},
        ops::{GpuRows, Kind, Ops},
        step::GpuStep,
    },
    engine::AttentionParams,
    models::AttentionOutline,
    pages::PageLayout,
};
use tsnode_protocol::KvDtype;

/// Query heads that share a block.
const HEADS: usize = 8;

/// Heads of keys and values as they lie in pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoredHeads {
    /// How many the layer has here, and channels of one.
    heads: usize,
    dim: usize,
    /// Whether they are not just a page's.
    pub are_wide: bool,
    /// Whether values have columns of their own.
    has_values: bool,
    /// Of the norm over values; 0 where there is none.
    value_eps: f32,
}

impl StoredHeads {
    /// Of a layer that has so many outputs of keys here.
    pub fn of(attention: &AttentionOutline<'_>, keys: usize, layout: &PageLayout) -> Self {
        let (dim, has_values) = (attention.head_dim, attention.has_values);
        let heads = keys / dim.max(1);
        let are_wide = dim != layout.dim || heads != layout.heads;
        let value_eps = attention.value_norm.map_or(0.0, |eps| eps.max(f32::MIN_POSITIVE));
        Self { heads, dim, are_wide, has_values, value_eps }
    }

    /// Whether a kernel of their own stores them.
    pub fn are_stored_apart(self) -> bool {
        self.are_wide || !self.has_values || self.value_eps > 0.0
    }
}

impl GpuAttention {
    /// Turns queries and keys of all rows, norms values, and stores keys and values.
    pub(super) fn append_wide(
        &self,
        ops: &Ops,
        step: &GpuStep,
        x: u64,
        turning: [Arg; 9],
        pages: GpuLayerPages,
    ) -> Result<(), GpuError> {
        let StoredHeads { heads, dim, has_values, value_eps, .. } = self.stored;
        let PageLayout { heads: page_heads, dim: page_dim, dtype, tokens } = pages.layout;
        let args = [
            [x.into(), whole(self.inputs.outs), whole(self.heads), whole(heads), whole(dim)].as_slice(),
            &[Arg::Whole(u32::from(has_values)), value_eps.into(), step.positions.into(), step.sequences.into()],
            &turning,
            &[pages.memory.into(), pages.table.into(), whole(pages.most), whole(tokens)],
            &[whole(page_heads), whole(page_dim), Arg::Whole(Kind::from(dtype) as u32)],
        ]
        .concat();
        let grid = [step.rows as u32, (self.heads + 2 * heads) as u32, 1];
        ops.attention(Launch { module: "wide", kernel: "append_wide", grid, threads: 32, shared: 0 }, &args)
    }

    /// Attends all rows one by one, whichever they are of.
    pub(super) fn attend_wide(
        &self,
        ops: &mut Ops,
        step: &GpuStep,
        q: u64,
        pages: GpuLayerPages,
        out: GpuRows,
    ) -> Result<(), GpuError> {
        let StoredHeads { heads, dim, .. } = self.stored;
        let PageLayout { heads: page_heads, dim: page_dim, dtype, tokens } = pages.layout;
        let AttentionParams { scale, cap, window, .. } = self.look;
        let group = self.heads / heads.max(1);
        let eights = group.div_ceil(HEADS);
        // As on one GPU that had all heads, so that sums are the same.
        let of_all = self.all_kv_heads * eights;
        let parts = step.parts_of(step.rows, window, of_all, ops.machine.processors());
        let between = ops.attention_parts(parts, step.rows * self.heads, dim, 1)?;
        let sinks = self.sinks.as_ref().map_or(Arg::Wide(0), Arg::from);
        let args = [
            [q.into(), whole(self.inputs.outs), whole(group), step.positions.into(), step.sequences.into()].as_slice(),
            &[scale.into(), cap.unwrap_or(0.0).into(), whole(window.unwrap_or(0)), sinks],
            &[pages.memory.into(), pages.table.into(), whole(pages.most), whole(tokens)],
            &[whole(page_heads), whole(page_dim), whole(heads), whole(dim)],
            &[between.sums.into(), between.tops.into(), out.at.into(), Arg::Whole(out.kind as u32)],
        ]
        .concat();
        let kernel = match dtype {
            KvDtype::F32 => "attend_wide_f32",
            KvDtype::F16 => "attend_wide_f16",
            KvDtype::Bf16 => "attend_wide_bf16",
        };
        let grid = [parts as u32, (heads * eights) as u32, step.rows as u32];
        ops.attention(Launch { module: "wide", kernel, grid, threads: 256, shared: 0 }, &args)?;
        if parts == 1 {
            return Ok(());
        }
        let args = [
            [between.sums.into(), between.tops.into(), whole(parts), whole(dim)].as_slice(),
            &[step.positions.into(), whole(window.unwrap_or(0)), out.at.into(), Arg::Whole(out.kind as u32)],
        ]
        .concat();
        let grid = [self.heads as u32, step.rows as u32, 1];
        ops.attention(Launch { module: "wide", kernel: "merge_wide", grid, threads: 128, shared: 0 }, &args)
    }
}
