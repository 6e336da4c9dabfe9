//! Tokens chosen on a GPU are those that the processor chooses.

use super::{Lcg, machines, with};
use crate::{
    cuda::{
        choose::{ChosenToken, RowChoice},
        machine::{GpuMemory, Queue},
        ops::Ops,
    },
    sampling,
};
use tsnode_protocol::Sampling;

/// Logits, some equal, some not numbers.
fn logits(draw: &mut Lcg, vocab: usize) -> Vec<f32> {
    let mut all: Vec<f32> = draw.numbers(vocab).into_iter().map(|x| (x * 64.0).round() / 8.0).collect();
    for _ in 0..vocab / 50 {
        all[draw.below(vocab)] = [f32::NAN, f32::NEG_INFINITY, 0.0, -0.0][draw.below(4)];
    }
    all
}

fn ways(draw: &mut Lcg) -> Sampling {
    let seed = draw.next() << 32 | draw.next();
    Sampling {
        temperature: [0.0, 0.3, 1.0, 1.7][draw.below(4)],
        top_k: [0, 1, 2, 40, 5000][draw.below(5)],
        top_p: [1.0, 1.0, 0.9, 0.3, 0.0][draw.below(5)],
        min_p: [0.0, 0.0, 0.05, 0.5][draw.below(4)],
        seed,
        ..Sampling::greedy()
    }
}

#[test]
fn every_way_of_choosing_gives_the_processors_token() {
    for machine in machines() {
        let mut draw = Lcg(11);
        let mut ops = Ops::new(machine.clone());
        // With the last two a thread has more tokens than bins that it keeps to itself, and several blocks have a row.
        for (vocab, rows) in [(3, 24), (64, 24), (1025, 24), (3000, 24), (11_003, 8), (20_003, 4)] {
            let all: Vec<f32> = (0..rows).flat_map(|_| logits(&mut draw, vocab)).collect();
            let ways: Vec<Sampling> = (0..rows).map(|_| ways(&mut draw)).collect();
            let choices: Vec<RowChoice> =
                ways.iter().enumerate().map(|(i, way)| RowChoice::of(way, i as u32).unwrap()).collect();
            let at = with(&machine, &all);
            let choices = GpuMemory::of(&machine, bytemuck::cast_slice(&choices)).unwrap();
            let out = GpuMemory::take(&machine, rows * size_of::<ChosenToken>()).unwrap();
            // Twice, on what the first leaves.
            ops.choose(at.at(), rows, vocab, choices.at(), out.at()).unwrap();
            ops.choose(at.at(), rows, vocab, choices.at(), out.at()).unwrap();
            let mut found = vec![ChosenToken::default(); rows];
            machine.download(Queue::Compute, out.at(), bytemuck::cast_slice_mut(&mut found)).unwrap();
            for (i, (way, logits)) in ways.iter().zip(all.chunks_exact(vocab)).enumerate() {
                let wanted = sampling::sample(&mut logits.to_vec(), way, &[], &[], i as u32);
                assert_eq!(found[i].token, wanted.token.0, "{vocab}, {way:?}");
                // An honest GPU's answers are checked by processors, which compare these.
                let (said, right) = (found[i].logprob, wanted.logprob.unwrap());
                assert!((said - right).abs() < 1e-4 * right.abs().max(1.0), "{said}, {right}: {vocab}, {way:?}");
            }
        }
    }
}
