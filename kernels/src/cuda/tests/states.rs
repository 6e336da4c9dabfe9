//! Gated delta rules on a GPU, against the same in double precision: to 5e-6 of a row's largest number, states to 5e-6 of theirs.
//! However a sequence's rows are cut and whatever is computed beside them, they get the same bits and leave the same state. Whole
//! models are beside the processor's: logits within 2 %, equal tokens.

use super::{
    Lcg,
    attention::{apart, both},
    machines,
    models::{OTHER, REQUEST, greedy, prompt, source},
    poisoned, read, with,
};
use crate::{
    cuda::{
        machine::{GpuMemory, Machine},
        ops::{DeltaParts, DeltaRows, DeltaShape, GpuRows, Kind, Ops},
    },
    engine::{Engine, EngineError, Input, Output, Prefix, Slice, StageKey, Threads},
    gpu_check,
    models::DeltaSizes,
    pages::{PAGE_BYTES, StateLayout, StateUnit},
    weights::WeightsError,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use tsnode_protocol::{KvDtype, Token};

/// Tokens of each sequence.
const TOKENS: usize = 21;
const SEQUENCES: usize = 3;
/// Of two layers the second.
const PLACE: usize = 1;
const EPS: f32 = 1e-6;
/// Numbers in single precision that a page has room for.
const PAGE_NUMBERS: usize = PAGE_BYTES / 4;

/// Rows of a sequence that are computed together: which, from which token on, how many.
type SequenceRun = (usize, usize, usize);
/// What the token of a sequence got.
type TokenOutputs = BTreeMap<(usize, usize), Vec<f32>>;

#[derive(Clone, Copy, Debug)]
struct Case {
    sizes: DeltaSizes,
    by_group: bool,
}

impl Case {
    fn states(&self) -> StateLayout {
        let DeltaSizes { groups, shared, key_dim, value_dim, kernel } = self.sizes;
        let tail = (kernel - 1) * (2 * key_dim + shared * value_dim);
        StateLayout { layers: PLACE + 1, groups, tail, matrices: shared, matrix: key_dim * value_dim }
    }

    fn shape(&self) -> DeltaShape {
        DeltaShape::of(self.sizes, self.by_group, self.states().places(PLACE)).unwrap()
    }

    /// What matrices made of a token, the same in any batch.
    fn input(&self, sequence: usize, token: usize) -> Vec<f32> {
        let seed = (sequence * TOKENS + token + 1) as u64;
        Lcg(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)).numbers(self.shape().stride)
    }
}

/// Weights of a layer, by their names in `DeltaOutline`.
struct LayerWeights {
    convolution: Vec<f32>,
    rates: Vec<f32>,
    biases: Vec<f32>,
    norm: Vec<f32>,
}

impl LayerWeights {
    fn draw(case: &Case) -> Self {
        let (mut draw, shape) = (Lcg(5), case.shape());
        let rates = draw.numbers(shape.heads());
        Self {
            convolution: draw.numbers(shape.channels() * case.sizes.kernel),
            rates: rates.iter().map(|rate| -0.6 - rate / 2.0).collect(),
            biases: draw.numbers(shape.heads()),
            norm: draw.numbers(case.sizes.value_dim),
        }
    }
}

/// A sequence in double precision: its inputs so far, and each head's matrix.
struct PlainDelta<'a> {
    case: &'a Case,
    weights: &'a LayerWeights,
    seen: Vec<Vec<f32>>,
    matrices: Vec<Vec<f64>>,
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Divided by its length, and by more.
fn of_length_one(x: &[f64], more: f64) -> Vec<f64> {
    let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
    x.iter().map(|x| x / length / more).collect()
}

impl<'a> PlainDelta<'a> {
    fn new(case: &'a Case, weights: &'a LayerWeights) -> Self {
        let matrix = vec![0.0; case.sizes.key_dim * case.sizes.value_dim];
        Self { case, weights, seen: Vec::new(), matrices: vec![matrix; case.shape().heads()] }
    }

    /// A group's channel behind the convolution, which is in a column of what matrices made.
    fn passed(&self, group: usize, channel: usize, column: usize) -> f64 {
        let DeltaSizes { groups, kernel, .. } = self.case.sizes;
        let width = self.case.shape().channels() / groups;
        let weight = |token: usize| f64::from(self.weights.convolution[(group * kernel + token) * width + channel]);
        let before = kernel.saturating_sub(self.seen.len());
        let seen = &self.seen[self.seen.len().saturating_sub(kernel)..];
        let sum: f64 = seen.iter().enumerate().map(|(i, row)| weight(before + i) * f64::from(row[column])).sum();
        sum * sigmoid(sum)
    }

    /// What all heads say for the next token, normed and gated.
    fn next(&mut self, row: &[f32]) -> Vec<f64> {
        let (sizes, shape) = (self.case.sizes, self.case.shape());
        let DeltaSizes { groups, shared, key_dim, value_dim, .. } = sizes;
        let number = |column: usize| f64::from(row[column]);
        self.seen.push(row.to_vec());
        let mut out = Vec::new();
        for group in 0..groups {
            let some = |first: usize, column: usize, count: usize| -> Vec<f64> {
                (0..count).map(|c| self.passed(group, first + c, column + c)).collect()
            };
            let query = some(0, shape.query + group * shape.of_keys, key_dim);
            let key = some(key_dim, shape.key + group * shape.of_keys, key_dim);
            let values = some(2 * key_dim, shape.value + group * shape.of_values, shared * value_dim);
            let (query, key) = (of_length_one(&query, (key_dim as f64).sqrt()), of_length_one(&key, 1.0));
            for (i, value) in values.chunks_exact(value_dim).enumerate() {
                let (head, at) = (group * shared + i, group * shape.of_turns + i);
                let of = |numbers: &[f32]| f64::from(numbers[head]);
                let fade = of(&self.weights.rates) * (number(shape.fade + at) + of(&self.weights.biases)).exp().ln_1p();
                let (fade, turn) = (fade.exp(), sigmoid(number(shape.turn + at)));
                let matrix = &mut self.matrices[head];
                let says = |matrix: &[f64], key: &[f64]| -> Vec<f64> {
                    let column =
                        |v: usize| -> f64 { key.iter().enumerate().map(|(k, x)| x * matrix[k * value_dim + v]).sum() };
                    (0..value_dim).map(column).collect()
                };
                let known = says(matrix.as_slice(), &key);
                for (k, x) in key.iter().enumerate() {
                    for (v, known) in known.iter().enumerate() {
                        let number = &mut matrix[k * value_dim + v];
                        *number = fade * *number + x * (value[v] - fade * known) * turn;
                    }
                }
                let said = says(matrix.as_slice(), &query);
                let mean = said.iter().map(|x| x * x).sum::<f64>() / value_dim as f64;
                let scale = 1.0 / (mean + f64::from(EPS)).sqrt();
                out.extend(said.iter().enumerate().map(|(v, x)| {
                    let gate = number(shape.gate + group * shape.of_values + i * value_dim + v);
                    gate * sigmoid(gate) * x * scale * f64::from(self.weights.norm[v])
                }));
            }
        }
        out
    }
}

/// A layer on a machine, and pages of three sequences in which nothing is a number.
struct LayerMemory<'a> {
    machine: Arc<dyn Machine>,
    case: &'a Case,
    weights: [GpuMemory; 3],
    norm: GpuMemory,
    pool: GpuMemory,
}

impl<'a> LayerMemory<'a> {
    fn new(machine: &Arc<dyn Machine>, case: &'a Case, weights: &LayerWeights) -> Self {
        let weights_at = [&weights.convolution, &weights.rates, &weights.biases].map(|numbers| with(machine, numbers));
        let pool = poisoned(machine, SEQUENCES * case.states().pages() * PAGE_NUMBERS);
        Self { machine: machine.clone(), case, weights: weights_at, norm: with(machine, &weights.norm), pool }
    }

    /// A sequence's pages: those of all in turns, from the last to the first.
    fn pages(&self, sequence: usize) -> Vec<u32> {
        let count = self.case.states().pages();
        (0..count).map(|page| ((count - 1 - page) * SEQUENCES + sequence) as u32).collect()
    }

    /// Computes a batch.
    fn step(&self, runs: &[SequenceRun], said: &mut TokenOutputs) {
        let (shape, machine) = (self.case.shape(), &self.machine);
        let words = |words: Vec<u32>| GpuMemory::of(machine, bytemuck::cast_slice(&words)).unwrap();
        let tokens: Vec<(usize, usize)> = runs
            .iter()
            .flat_map(|&(sequence, start, len)| (start..start + len).map(move |at| (sequence, at)))
            .collect();
        let rows = tokens.len();
        let x: Vec<f32> = tokens.iter().flat_map(|(sequence, token)| self.case.input(*sequence, *token)).collect();
        let owner = |(i, run): (usize, &SequenceRun)| vec![i as u32; run.2];
        let mut firsts = vec![0];
        runs.iter().for_each(|run| firsts.push(firsts[firsts.len() - 1] + run.2 as u32));
        let [x, positions, sequences, firsts, table] = [
            with(machine, &x),
            words(tokens.iter().map(|(_, token)| *token as u32).collect()),
            words(runs.iter().enumerate().flat_map(owner).collect()),
            words(firsts),
            words(runs.iter().flat_map(|run| self.pages(run.0)).collect()),
        ];
        let batch = DeltaRows {
            rows,
            positions: positions.at(),
            sequences: sequences.at(),
            firsts: firsts.at(),
            sequence_count: runs.len(),
            memory: self.pool.at(),
            table: table.at(),
            pages: self.case.states().pages(),
        };
        let held = [shape.channels(), 2 * shape.heads(), shape.values()].map(|each| poisoned(machine, rows * each));
        let parts = DeltaParts { passed: held[0].at(), turned: held[1].at(), said: held[2].at() };
        let out = poisoned(machine, rows * shape.values());
        let ops = Ops::new(machine.clone());
        ops.delta_pass(x.at(), &shape, self.weights.each_ref().map(GpuMemory::at), &batch, &parts).unwrap();
        ops.delta_rule(x.at(), &shape, &batch, &parts).unwrap();
        let to = GpuRows { at: out.at(), kind: Kind::F32 };
        ops.delta_norm((parts.said, x.at()), &shape, (self.norm.at(), EPS), rows, to).unwrap();
        let found = read(machine, &out, rows * shape.values());
        said.extend(tokens.into_iter().zip(found.chunks_exact(shape.values()).map(<[f32]>::to_vec)));
    }

    /// A unit of a sequence's state.
    fn unit(&self, pool: &[f32], sequence: usize, unit: StateUnit) -> Vec<f32> {
        let (page, bytes) = self.case.states().place(PLACE, unit);
        let from = self.pages(sequence)[page] as usize * PAGE_NUMBERS;
        pool[from + bytes.start / 4..from + bytes.end / 4].to_vec()
    }

    fn all(&self) -> Vec<f32> {
        read(&self.machine, &self.pool, SEQUENCES * self.case.states().pages() * PAGE_NUMBERS)
    }
}

fn near(what: &str, found: &[f32], wanted: &[f64]) {
    let size = wanted.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    assert_eq!(found.len(), wanted.len());
    for (i, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        let apart = (f64::from(*found) - wanted).abs();
        assert!(apart <= 5e-6 * size, "{what}, {i}: {found}, not {wanted}, of {size}");
    }
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

const CASES: [Case; 4] = [
    Case { sizes: DeltaSizes { groups: 2, shared: 2, key_dim: 16, value_dim: 8, kernel: 4 }, by_group: true },
    // More than one block has of a head's columns, and less than it has room for; more tails than a page holds.
    Case { sizes: DeltaSizes { groups: 3, shared: 3, key_dim: 60, value_dim: 40, kernel: 30 }, by_group: false },
    Case { sizes: DeltaSizes { groups: 1, shared: 2, key_dim: 128, value_dim: 128, kernel: 4 }, by_group: true },
    Case { sizes: DeltaSizes { groups: 2, shared: 1, key_dim: 100, value_dim: 72, kernel: 2 }, by_group: false },
];

/// Sequences at once, by themselves, row by row, and cut in other places beside others.
fn batches() -> [Vec<Vec<SequenceRun>>; 3] {
    let all = |len: usize| (0..TOKENS).step_by(len).map(move |start| (start, len.min(TOKENS - start)));
    let alone = |len: usize| (0..SEQUENCES).flat_map(move |s| all(len).map(move |(start, len)| vec![(s, start, len)]));
    let mixed = vec![
        vec![(0, 0, 2), (1, 0, 13)],
        vec![(2, 0, 1), (0, 2, 1), (1, 13, 8)],
        vec![(0, 3, 17), (2, 1, 1)],
        vec![(2, 2, 18)],
        vec![(0, 20, 1), (2, 20, 1)],
    ];
    [alone(TOKENS).collect(), alone(1).collect(), mixed]
}

#[test]
fn states_are_changed_row_by_row_however_rows_are_cut() {
    for machine in machines() {
        for case in &CASES {
            let weights = LayerWeights::draw(case);
            let mut all = batches().into_iter().map(|batches| {
                let (laid, mut said) = (LayerMemory::new(&machine, case, &weights), TokenOutputs::new());
                batches.iter().for_each(|runs| laid.step(runs, &mut said));
                let pool = laid.all();
                (laid, said, pool)
            });
            let (laid, said, pool) = all.next().unwrap();
            assert_eq!(said.len(), SEQUENCES * TOKENS);
            for sequence in 0..SEQUENCES {
                let mut plain = PlainDelta::new(case, &weights);
                for token in 0..TOKENS {
                    let wanted = plain.next(&case.input(sequence, token));
                    near(&format!("{case:?}, token {token}"), &said[&(sequence, token)], &wanted);
                }
                for (head, wanted) in plain.matrices.iter().enumerate() {
                    let (group, matrix) = (head / case.sizes.shared, head % case.sizes.shared);
                    let found = laid.unit(&pool, sequence, StateUnit::Matrix { group, matrix });
                    near(&format!("{case:?}, head {head}"), &found, wanted);
                }
            }
            for (_, other, other_pool) in all {
                assert!(said.iter().all(|(token, row)| bits(row) == bits(&other[token])), "{case:?}");
                assert!(
                    bits(&pool) == bits(&other_pool),
                    "{case:?}: what is nobody's is as it was, states are the same"
                );
            }
        }
    }
}

#[test]
fn gates_are_opened_wherever_they_lie() {
    for machine in machines() {
        for (rows, width, from, stride) in [(1, 64, 8, 136), (3, 24, 3, 61), (2, 2056, 1, 2060)] {
            let mut draw = Lcg(8);
            let (mixed, x) = (draw.numbers(rows * width), draw.numbers(rows * stride));
            let (mixed_at, x_at) = (with(&machine, &mixed), with(&machine, &x));
            let out = poisoned(&machine, rows * width);
            let to = GpuRows { at: out.at(), kind: Kind::F32 };
            let gates = (x_at.at() + 4 * from as u64, stride);
            Ops::new(machine.clone()).open_gates(mixed_at.at(), (rows, width), gates, to).unwrap();
            for (i, found) in read(&machine, &out, rows * width).into_iter().enumerate() {
                let gate = f64::from(x[i / width * stride + from + i % width]);
                let wanted = f64::from(mixed[i]) * sigmoid(gate);
                assert!((f64::from(found) - wanted).abs() < 1e-6, "{width}, {i}: {found}, not {wanted}");
            }
        }
    }
}

#[test]
fn a_state_that_no_kernel_is_written_for_is_refused_in_words() {
    let places = StateLayout::default().places(0);
    for (key_dim, value_dim) in [(132, 8), (18, 8), (16, 12)] {
        let sizes = DeltaSizes { groups: 1, shared: 1, key_dim, value_dim, kernel: 4 };
        let refusal = DeltaShape::of(sizes, false, places).unwrap_err().to_string();
        let what = format!("a state of {key_dim} channels of keys by {value_dim} of values");
        assert_eq!(refusal, format!("on a GPU {what} is not supported"));
    }
}

const NAMES: [&str; 2] = ["qwen3next-experts", "qwen35-dense"];

#[test]
fn greedy_tokens_of_models_with_states_are_the_processors() {
    for machine in machines() {
        for name in NAMES {
            for (len, dtype) in [(5, KvDtype::F32), (14, KvDtype::F16), (40, KvDtype::F16)] {
                let found = both(&machine, &source(name), dtype).map(|(mut e, stage)| greedy(&mut e, stage, len, 6));
                let [(cpu, wanted), (gpu, tokens)] = found;
                assert!(apart(&cpu, &gpu) < 0.02, "{name}, {len}: {}", apart(&cpu, &gpu));
                assert_eq!(tokens, wanted, "{name}, {len}");
            }
        }
    }
}

/// Logits of the last row of each slice.
fn step(engine: &mut Engine, stage: StageKey, batch: &[Slice]) -> Vec<Vec<f32>> {
    let token = |at: u32| Token((at * 29 + 3) % 320);
    let tokens: Vec<Token> = batch.iter().flat_map(|slice| (slice.start..slice.start + slice.len).map(token)).collect();
    let ends = batch.iter().scan(0, |end, slice| {
        *end += slice.len as usize;
        Some(*end - 1)
    });
    let ends: Vec<usize> = ends.collect();
    let logits = engine.forward(stage, batch, Input::Tokens(&tokens), Output::Logits { rows: &ends }).unwrap();
    logits.chunks_exact(320).map(<[f32]>::to_vec).collect()
}

/// Prompts in chunks beside each other, single tokens, and what is kept of one that two go on from.
#[test]
fn sequences_with_states_are_batched_cut_kept_and_begun_with() {
    let slice = |request, start, len| Slice { request, start, len };
    for machine in machines() {
        for name in NAMES {
            let found = both(&machine, &source(name), KvDtype::F32).map(|(mut engine, stage)| {
                let free = engine.pages();
                [REQUEST, OTHER].into_iter().for_each(|request| engine.admit(stage, request, 80).unwrap());
                let mut logits = step(&mut engine, stage, &[slice(REQUEST, 0, 33)]);
                logits.extend(step(&mut engine, stage, &[slice(OTHER, 0, 2), slice(REQUEST, 33, 20)]));
                logits.extend(step(&mut engine, stage, &[slice(REQUEST, 53, 1), slice(OTHER, 2, 1)]));
                logits.extend(step(&mut engine, stage, &[slice(OTHER, 3, 51)]));
                let kept = engine.keep(stage, REQUEST, 54).unwrap();
                engine.release(stage, OTHER);
                for request in [OTHER, REQUEST] {
                    engine.admit_after(stage, request, 80, Prefix::Kept(kept), 54).unwrap();
                    logits.extend(step(&mut engine, stage, &[slice(request, 54, 1)]));
                }
                logits.extend(step(&mut engine, stage, &[slice(REQUEST, 55, 1), slice(OTHER, 55, 3)]));
                let last = logits.len() - 4;
                assert!(logits[last] == logits[last + 1], "{name}: what begins alike goes on alike");
                [REQUEST, OTHER].into_iter().for_each(|request| engine.release(stage, request));
                engine.forget(kept);
                assert_eq!(engine.pages(), free);
                logits
            });
            let [cpu, gpu] = found;
            for (i, (cpu, gpu)) in cpu.iter().zip(&gpu).enumerate() {
                assert!(apart(cpu, gpu) < 0.02, "{name}, row {i}: {}", apart(cpu, gpu));
            }
        }
    }
}

/// Nothing of it is sent, nor taken out while it is computed; several GPUs do not hold one.
#[test]
fn states_stay_on_one_gpu() {
    for name in NAMES {
        let source = source(name);
        let refusal = gpu_check::refuse_unwritten(&source, 2).unwrap_err().to_string();
        let of_experts = "a mixture of experts that several GPUs hold together";
        let of_states = "a state in place of keys and values, which several GPUs hold together,";
        let what = if name == "qwen35-dense" { of_states } else { of_experts };
        assert_eq!(refusal, format!("on a GPU {what} is not supported"));
        assert!(gpu_check::refuse_unwritten(&source, 1).is_ok());
        let all = source.card().shape.all_layers();
        let two = source.load_stage_for_gpus(all, Threads { count: 1, ranks: 2 });
        assert!(matches!(two, Err(WeightsError::Ranks { ranks: 2, .. })));
    }
    for machine in machines() {
        let [_, (mut engine, stage)] = both(&machine, &source("qwen35-dense"), KvDtype::F16);
        engine.admit(stage, REQUEST, 70).unwrap();
        let (tokens, mut taken) = (prompt(64), super::models::Taken(Vec::new()));
        let (batch, output) = ([Slice { request: REQUEST, start: 0, len: 64 }], Output::Logits { rows: &[63] });
        engine.forward_tapped(stage, &batch, Input::Tokens(&tokens), output, Some(&mut taken)).unwrap();
        assert!(taken.0.is_empty());
        assert_eq!(engine.set_len(stage, REQUEST, 32), Err(EngineError::State));
    }
}
