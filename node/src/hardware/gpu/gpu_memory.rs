//! Which part of GPUs' memory is lent, and of that each model's.

use super::{GpuUnfit, GpuWanted, opened_model::OpenedModel};
use crate::hardware::{
    KV_AT_LEAST, KV_PART, Lend,
    memory::StageHolder,
    memory_parts::{MemoryPart, SharedMemory, Sharer, divide},
};
use tsnode_kernels::{cuda::Gpu, gpu_check, source::ModelSource, weights::WeightsError};
use tsnode_protocol::LayerRange;

/// Memory of a GPU as it is shared out (bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SharedGpuMemory {
    pub lent: u64,
    pub kv: u64,
}

/// What of the GPUs' memory is lent, and each model's part of it.
pub(super) fn memory(
    gpus: &[Gpu],
    GpuWanted { models, lend, swaps, .. }: GpuWanted<'_>,
    opened: &[OpenedModel<'_>],
) -> Result<(SharedGpuMemory, Vec<MemoryPart>), GpuUnfit> {
    let count = gpus.len();
    let free = Gpu::pool_bytes_of_all(gpus, &vec![0; count])? as u64;
    let whole = |source: &ModelSource| source.gpu_bytes(source.card().shape.all_layers(), count);
    let mut beside = 0;
    for draft in models.iter().filter_map(|model| model.sharer.draft) {
        beside += whole(draft)?;
    }
    let weights = opened.iter().map(|opened| opened.weights).fold(0, u64::saturating_add);
    if let [_] = models {
        let shared = shared(lend, count as u64, free.saturating_sub(beside), weights);
        return Ok((shared, vec![MemoryPart { memory_bytes: shared.lent, kv_bytes: shared.kv }]));
    }
    let all = shared(lend, count as u64, free, weights.saturating_add(beside));
    let sharers: Vec<Sharer<'_>> = models.iter().map(|model| model.sharer).collect();
    let (is_kv_told, holder) = (lend.kv_bytes.is_some(), StageHolder::Gpus(count));
    let parts = divide(SharedMemory { lent: all.lent, kv_bytes: all.kv, is_kv_told, holder, swaps }, &sharers);
    let parts = parts.map_err(Box::new)?;
    let kv = parts.iter().map(|part| part.kv_bytes).sum();
    Ok((SharedGpuMemory { kv, ..all }, parts))
}

/// Refuses a part that the model cannot be tried in.
pub(super) fn fits_trial(source: &ModelSource, part: MemoryPart, gpus: usize) -> Result<(), GpuUnfit> {
    let MemoryPart { memory_bytes: lent, kv_bytes: kv } = part;
    // States lie in the pages.
    let least = KV_AT_LEAST * gpus as u64 + gpu_check::state_bytes(source) as u64;
    refuse_little(SharedGpuMemory { lent, kv }, largest_layer(source, gpus)?, least)
}

/// What of `free` memory of all GPUs is lent, and what of that is for KV pages: what the whole model leaves, where that is no small
/// part. An owner speaks of each GPU.
fn shared(lend: Lend, gpus: u64, free: u64, weights: u64) -> SharedGpuMemory {
    let lent = lend.memory_bytes.map_or(free, |most| most.saturating_mul(gpus).min(free));
    let beside = lent.saturating_sub(weights);
    let least = (lent as f64 * KV_PART) as u64;
    SharedGpuMemory { lent, kv: lend.kv_bytes.map_or(beside.max(least), |each| each.saturating_mul(gpus)) }
}

/// Refuses memory that the model cannot be tried in: with so large a layer beside pages for keys, values and states.
fn refuse_little(SharedGpuMemory { lent, kv }: SharedGpuMemory, layer: u64, least: u64) -> Result<(), GpuUnfit> {
    if lent < layer + kv {
        return Err(GpuUnfit::Memory { lent, layer, kv });
    }
    if kv < least { Err(GpuUnfit::Pages { kv, least }) } else { Ok(()) }
}

/// What the largest of those layers takes on a GPU that are tried there, embedding and head with the first and the last (bytes).
fn largest_layer(source: &ModelSource, gpus: usize) -> Result<u64, WeightsError> {
    let kinds = source.one_of_each_kind(source.card().shape.all_layers())?;
    let mut layers = kinds.into_iter().map(|start| LayerRange { start, end: start + 1 });
    layers.try_fold(0, |most, layer| Ok(source.gpu_bytes(layer, gpus)?.max(most)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_get_what_the_model_leaves_or_a_part_where_it_leaves_little() {
        let lend = |memory_bytes, kv_bytes| Lend { threads: 1, memory_bytes, kv_bytes };
        assert_eq!(shared(lend(None, None), 1, 80, 16), SharedGpuMemory { lent: 80, kv: 64 });
        assert_eq!(shared(lend(None, None), 1, 80, 140), SharedGpuMemory { lent: 80, kv: 20 });
        assert_eq!(shared(lend(Some(40), None), 1, 80, 16), SharedGpuMemory { lent: 40, kv: 24 });
        assert_eq!(shared(lend(Some(100), Some(8)), 1, 80, 16), SharedGpuMemory { lent: 80, kv: 8 });
        assert_eq!(shared(lend(Some(40), Some(8)), 2, 160, 16), SharedGpuMemory { lent: 80, kv: 16 });
    }

    #[test]
    fn little_memory_is_refused_with_what_is_missing() {
        let refused = |layer, least| refuse_little(SharedGpuMemory { lent: 80, kv: 40 }, layer, least);
        assert!(refused(40, 40).is_ok());
        assert!(matches!(refused(41, 40), Err(GpuUnfit::Memory { lent: 80, layer: 41, kv: 40 })));
        assert!(matches!(refused(40, 41), Err(GpuUnfit::Pages { kv: 40, least: 41 })));
    }
}
