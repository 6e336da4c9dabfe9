//! What blocks of quantised numbers mean, against an implementation that is not ours (`scripts/quant_blocks.py`).

use tsnode_kernels::quant::{Blocks, QuantType};

const FIXTURE: &[u8] = include_bytes!("data/quant-blocks.bin");
/// Blocks of each type in the fixture.
const BLOCKS: usize = 4;
/// Of a block's largest number: the reference may round once more or less on its way.
const TOLERANCE: f32 = 1e-6;

#[test]
fn blocks_mean_what_llama_cpp_says() {
    let mut rest = FIXTURE;
    for kind in QuantType::ALL {
        let (blocks, after) = rest.split_at(BLOCKS * kind.bytes());
        let (numbers, after) = after.split_at(BLOCKS * kind.numbers() * 4);
        rest = after;
        let expected: Vec<f32> =
            numbers.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        let view = Blocks::new(blocks, kind, BLOCKS, kind.numbers());
        let mut row = vec![0.0; kind.numbers()];
        for (index, expected) in expected.chunks_exact(kind.numbers()).enumerate() {
            view.widen_row(index, &mut row);
            let largest = expected.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
            for (at, (ours, theirs)) in row.iter().zip(expected).enumerate() {
                let off = (ours - theirs).abs();
                assert!(off <= TOLERANCE * largest, "{kind:?}, block {index}, number {at}: {ours}, not {theirs}");
            }
        }
    }
    assert!(rest.is_empty(), "the fixture has {} bytes more", rest.len());
}
