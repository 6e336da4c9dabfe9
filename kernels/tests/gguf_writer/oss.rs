//! Experts of gpt-oss, as llama.cpp's converter has them: gate and up apart, powers of two before their numbers.

use super::NamedTensors;
use std::collections::BTreeMap;
use tsnode_kernels::quant::{Blocks, QuantType};

/// Numbers in a block.
const NUMBERS: usize = 32;

/// Shape and bytes of tensors by name.
type PackedTensors = BTreeMap<String, (Vec<usize>, Vec<u8>)>;

/// Puts experts and their biases into `all` by llama.cpp's names; their blocks by the same.
pub fn experts(all: &mut NamedTensors, packed: &PackedTensors) -> BTreeMap<String, Vec<u8>> {
    let mut blocks = BTreeMap::new();
    for (name, (shape, pairs)) in packed {
        let Some(whole) = name.strip_suffix("_blocks") else { continue };
        let powers = &packed[&format!("{whole}_scales")].1;
        let layer = whole.split(".mlp.").next().unwrap();
        let (experts, cols) = (shape[0], shape[2] * NUMBERS);
        let rows: Vec<Vec<u8>> =
            (0..experts * shape[1]).map(|row| joined(row * shape[2], shape[2], powers, pairs)).collect();
        for (part, first, every) in parts(whole) {
            let bytes: Vec<u8> = rows.iter().skip(first).step_by(every).flatten().copied().collect();
            let mut numbers = vec![0.0; bytes.len() / QuantType::Mxfp4.bytes() * NUMBERS];
            let len = numbers.len();
            Blocks::new(&bytes, QuantType::Mxfp4, 1, len).widen_row(0, &mut numbers);
            let name = format!("{layer}.ffn_{part}_exps.weight");
            all.insert(name.clone(), (vec![experts, shape[1] / every, cols], numbers));
            blocks.insert(name.replace("model.layers.", "blk."), bytes);
        }
        let (shape, bias) = all.remove(&format!("{whole}_bias")).unwrap();
        for (part, first, every) in parts(whole) {
            let numbers = bias.iter().skip(first).step_by(every).copied().collect();
            all.insert(format!("{layer}.ffn_{part}_exps.bias"), (vec![shape[0], shape[1] / every], numbers));
        }
    }
    blocks
}

/// What a tensor's rows are: those of gate and up lie in turn.
fn parts(whole: &str) -> Vec<(&'static str, usize, usize)> {
    if whole.ends_with("gate_up_proj") { vec![("gate", 0, 2), ("up", 1, 2)] } else { vec![("down", 0, 1)] }
}

/// A row's blocks, of numbers in pairs.
fn joined(from: usize, count: usize, powers: &[u8], pairs: &[u8]) -> Vec<u8> {
    let block = |at: usize| {
        let pairs = &pairs[16 * at..][..16];
        let numbers: Vec<u8> = pairs.iter().flat_map(|two| [two & 15, two >> 4]).collect();
        let both: Vec<u8> = (0..16).map(|i| numbers[i] | numbers[i + 16] << 4).collect();
        std::iter::once(powers[at]).chain(both).collect::<Vec<u8>>()
    };
    (from..from + count).flat_map(block).collect()
}
