//! Which GPUs of a host are one device, where nobody says it: as few together as hold the models, since every GPU more waits for
//! the others in every layer.

use super::GpuNumbers;
use std::collections::BTreeMap;
use tsnode_protocol::ModelShape;

/// Of a GPU's memory, what is for weights: the rest is for KV pages, what is between kernels, and the driver.
const FOR_WEIGHTS: f64 = 0.7;

/// GPUs by number and memory (bytes), in sets that follow each other, for models that are to be there at once. Where all together do
/// not hold them, each is a device of its own: other peers must hold the rest.
#[must_use]
pub fn sets(memory: &BTreeMap<u16, u64>, models: &[ModelShape]) -> Vec<GpuNumbers> {
    let needed: f64 = models.iter().map(|shape| shape.stage_bytes(shape.all_layers()) as f64).sum();
    let numbers: Vec<u16> = memory.keys().copied().collect();
    let holds = |gpus: &[u16]| {
        let least = gpus.iter().filter_map(|gpu| memory.get(gpu)).min().copied().unwrap_or(0);
        least as f64 * FOR_WEIGHTS * gpus.len() as f64 >= needed
    };
    let follows = |gpus: &[u16]| gpus.windows(2).all(|pair| u32::from(pair[0]) + 1 == u32::from(pair[1]));
    // Heads are dealt out by whole ones, and evenly only to such numbers of GPUs; experts and states not at all.
    let is_apart = |shape: &ModelShape| shape.experts.is_some() || shape.state_bytes > 0;
    let most = models.iter().map(|shape| if is_apart(shape) { 1 } else { shape.kv_heads as usize }).min().unwrap_or(1);
    let counts = std::iter::successors(Some(1usize), |count| Some(count * 2));
    let mut counts = counts.take_while(|count| *count <= numbers.len().min(most));
    let count = counts.find(|count| numbers.chunks_exact(*count).any(|gpus| follows(gpus) && holds(gpus)));
    let mut sets = Vec::new();
    for gpus in numbers.chunks(count.unwrap_or(1)) {
        if gpus.len() > 1 && follows(gpus) && holds(gpus) {
            sets.push(GpuNumbers { first: gpus[0], count: gpus.len() as u16 });
        } else {
            sets.extend(gpus.iter().copied().map(GpuNumbers::one));
        }
    }
    sets
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_protocol::Experts;

    const GIB: u64 = 1 << 30;

    fn shape(gib: u64) -> ModelShape {
        ModelShape {
            layers: 32,
            hidden: 4096,
            intermediate: 14_336,
            heads: 32,
            kv_heads: 8,
            head_dim: 128,
            vocab: 128_256,
            context: 8192,
            layer_bytes: gib * GIB / 32,
            embed_bytes: 0,
            head_bytes: 0,
            experts: None,
            whole: false,
            state_bytes: 0,
        }
    }

    /// Sets as people name them, for GPUs of so much memory (GiB).
    fn named(gpus: &[(u16, u64)], model: u64) -> String {
        let memory = gpus.iter().map(|(number, gib)| (*number, gib * GIB)).collect();
        sets(&memory, &[shape(model)]).iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn as_few_gpus_as_hold_the_model_are_one_device() {
        let four = [(0, 24), (1, 24), (2, 24), (3, 24)];
        assert_eq!(named(&four, 15), "cuda:0 cuda:1 cuda:2 cuda:3");
        assert_eq!(named(&four, 30), "cuda:0-1 cuda:2-3");
        assert_eq!(named(&four, 60), "cuda:0-3");
        assert_eq!(named(&four, 140), "cuda:0 cuda:1 cuda:2 cuda:3", "others hold the rest");
        assert_eq!(named(&four[..3], 30), "cuda:0-1 cuda:2");
        assert_eq!(named(&[(0, 24), (2, 24)], 30), "cuda:0 cuda:2", "GPUs between them are not ours");
        assert_eq!(named(&[(0, 24), (1, 8), (2, 24), (3, 24)], 30), "cuda:0 cuda:1 cuda:2-3");
        assert_eq!(named(&[], 1), "");
    }

    #[test]
    fn models_together_are_held_by_as_many_as_all_of_them_take() {
        let memory = [(0, 24 * GIB), (1, 24 * GIB)].into();
        assert_eq!(sets(&memory, &[shape(8), shape(8)]), [0, 1].map(GpuNumbers::one));
        assert_eq!(sets(&memory, &[shape(15), shape(15)]), [GpuNumbers { first: 0, count: 2 }]);
        let one_head = ModelShape { kv_heads: 1, ..shape(15) };
        assert_eq!(sets(&memory, &[shape(15), one_head]), [0, 1].map(GpuNumbers::one), "one cannot be dealt out");
    }

    #[test]
    fn gpus_do_not_hold_a_mixture_of_experts_or_states_together() {
        let memory = [(0, 24 * GIB), (1, 24 * GIB)].into();
        let experts = Some(Experts { count: 8, used: 2, bytes: 0 });
        assert_eq!(sets(&memory, &[ModelShape { experts, ..shape(30) }]), [0, 1].map(GpuNumbers::one));
        assert_eq!(sets(&memory, &[ModelShape { state_bytes: 1, ..shape(30) }]), [0, 1].map(GpuNumbers::one));
    }
}
