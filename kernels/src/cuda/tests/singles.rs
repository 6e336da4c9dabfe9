//! Attention of single rows whose tokens are cut over blocks, the last of which merges: against sums in double precision, to
//! 3e-5 of the largest value, whatever the parts; run twice on the same memory, as a recorded step is; rounded as rows are.

use super::{Lcg, machines, poisoned, read, with};
use crate::{
    cuda::{
        machine::{Arg, GpuMemory, Launch, Machine, Queue},
        ops::NOT_TURNED,
    },
    pages::PAGE_BYTES,
};
use std::sync::Arc;

/// Heads of keys and values.
const KV_HEADS: usize = 2;
/// Positions of the rows; the second is not attended.
const POSITIONS: [u32; 3] = [899, 7, 64];
const ATTENDED: [u32; 2] = [2, 0];

/// Numbers in single precision that a page has room for.
const PAGE_NUMBERS: usize = PAGE_BYTES / 4;

struct Case {
    dim: usize,
    group: usize,
    window: u32,
    cap: f32,
    sinks: bool,
}

/// The score of no token, of a head: less than tokens', among them, more.
fn sink(head: usize) -> f32 {
    [-2.0, 3.0, 12.0][head % 3]
}

impl Case {
    fn heads(&self) -> usize {
        KV_HEADS * self.group
    }
    /// Tokens of a page.
    fn tokens(&self) -> usize {
        PAGE_NUMBERS / (2 * KV_HEADS * self.dim)
    }
    fn pages(&self) -> usize {
        900usize.div_ceil(self.tokens())
    }

    /// What row `row` is to be for query head `head`, in double precision.
    fn wanted(&self, q: &[f32], pool: &[f32], row: usize, head: usize) -> Vec<f64> {
        let Self { dim, group, window, cap, sinks } = *self;
        let position = POSITIONS[row] as usize;
        let seen = if window == 0 { position + 1 } else { (position + 1).min(window as usize) };
        let at = |side: usize, token: usize| {
            let page = token / self.tokens();
            let line = (side * KV_HEADS + head / group) * self.tokens() + token % self.tokens();
            &pool[page * PAGE_NUMBERS + line * dim..][..dim]
        };
        let query = &q[(row * self.heads() + head) * dim..][..dim];
        let scores: Vec<f64> = (position + 1 - seen..=position)
            .map(|token| {
                let dot: f64 = query.iter().zip(at(0, token)).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                if cap > 0.0 { f64::from(cap) * (dot / f64::from(cap)).tanh() } else { dot }
            })
            .collect();
        let sink = if sinks { f64::from(sink(head)) } else { f64::NEG_INFINITY };
        let top = scores.iter().copied().fold(sink, f64::max);
        let total: f64 = scores.iter().map(|score| (score - top).exp()).sum::<f64>() + (sink - top).exp();
        let mut out = vec![0.0; dim];
        for (i, score) in scores.iter().enumerate() {
            let weight = (score - top).exp() / total;
            let values = at(1, position + 1 - seen + i);
            out.iter_mut().zip(values).for_each(|(sum, value)| *sum += weight * f64::from(*value));
        }
        out
    }
}

/// A case's memory on a machine.
struct CaseMemory {
    machine: Arc<dyn Machine>,
    q: GpuMemory,
    pool: GpuMemory,
    table: GpuMemory,
    places: [GpuMemory; 3],
    sinks: Option<GpuMemory>,
    /// Numbers from a row to the next.
    stride: usize,
}

impl CaseMemory {
    /// Of rows of three sequences, which have the same pages where the pool has no more.
    fn new(machine: &Arc<dyn Machine>, case: &Case, q: &[f32], pool: &[f32]) -> Self {
        let words = |words: &[u32]| GpuMemory::of(machine, bytemuck::cast_slice(words)).unwrap();
        let there = (pool.len() / PAGE_NUMBERS) as u32;
        let pages: Vec<u32> = (0..3 * case.pages() as u32).map(|page| page % there).collect();
        let places = [words(&ATTENDED), words(&POSITIONS), words(&[0, 1, 2])];
        let (q, pool, stride) = (with(machine, q), with(machine, pool), q.len() / POSITIONS.len());
        let sinks = case.sinks.then(|| with(machine, &(0..case.heads()).map(sink).collect::<Vec<_>>()));
        Self { machine: machine.clone(), q, pool, table: words(&pages), places, sinks, stride }
    }

    /// Attends the rows into `out`, of kind 0 or a rounded one.
    fn attend(&self, case: &Case, parts: usize, between: &[GpuMemory; 3], out: &GpuMemory, kind: u32) {
        self.attend_turning(case, parts, between, (out, kind), NOT_TURNED);
    }

    fn attend_turning(
        &self,
        case: &Case,
        parts: usize,
        between: &[GpuMemory; 3],
        (out, kind): (&GpuMemory, u32),
        turning: [Arg; 9],
    ) {
        let whole = |x: usize| Arg::Whole(x as u32);
        let [rows, positions, sequences] = &self.places;
        let (numbers, across) = (POSITIONS.len() * case.heads() * case.dim, KV_HEADS * case.group.div_ceil(8));
        let args = [
            [(&self.q).into(), whole(self.stride), whole(case.group), rows.into()].as_slice(),
            &[positions.into(), sequences.into(), 1.0f32.into(), case.cap.into(), case.window.into()],
            &[self.sinks.as_ref().map_or(Arg::Wide(0), Arg::from)],
            &[(&self.pool).into(), (&self.table).into(), whole(case.pages()), whole(case.tokens())],
            &[whole(KV_HEADS), whole(case.dim), (&between[0]).into(), (&between[1]).into(), (&between[2]).into()],
            &[out.into(), Arg::Wide(numbers as u64), kind.into()],
            &turning,
        ]
        .concat();
        let kernel = match case.dim {
            ..=64 => "attend_64_f32",
            65..=128 => "attend_128_f32",
            _ => "attend_256_f32",
        };
        let grid = [parts as u32, across as u32, ATTENDED.len() as u32];
        self.machine
            .launch(Queue::Compute, Launch { module: "attend", kernel, grid, threads: 128, shared: 0 }, &args)
            .unwrap();
    }

    /// Turns queries and keys of all rows where they are, and stores keys and values.
    fn turn_and_store(&self, case: &Case, turning: [Arg; 9]) {
        let whole = |x: usize| Arg::Whole(x as u32);
        let [_, positions, sequences] = &self.places;
        let args = [
            [(&self.q).into(), whole(self.stride), whole(case.heads()), whole(KV_HEADS), whole(case.dim)].as_slice(),
            &[positions.into(), sequences.into()],
            &turning,
            &[(&self.pool).into(), (&self.table).into(), whole(case.pages()), whole(case.tokens()), whole(0)],
        ]
        .concat();
        let grid = [POSITIONS.len() as u32, (case.heads() + 2 * KV_HEADS) as u32, 1];
        let launch = Launch { module: "rows", kernel: "rope_append", grid, threads: 32, shared: 0 };
        self.machine.launch(Queue::Compute, launch, &args).unwrap();
    }

    /// Memory for parts: what blocks leave for each other is none, how many are done is zero.
    fn between(&self, case: &Case, parts: usize) -> [GpuMemory; 3] {
        let heads = ATTENDED.len() * case.heads();
        let blocks = ATTENDED.len() * KV_HEADS * case.group.div_ceil(8);
        let sums = poisoned(&self.machine, parts * heads * case.dim);
        [sums, poisoned(&self.machine, parts * heads * 2), with(&self.machine, &vec![0.0; blocks])]
    }
}

/// What is attended with these parts, in single precision.
fn attended(laid: &CaseMemory, case: &Case, parts: usize) -> Vec<f32> {
    let (count, between) = (POSITIONS.len() * case.heads() * case.dim, laid.between(case, parts));
    let runs = [0, 1, 2].map(|_| {
        let out = poisoned(&laid.machine, count);
        laid.attend(case, parts, &between, &out, 0);
        read(&laid.machine, &out, count)
    });
    let bits = |run: &[f32]| run.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&runs[0]), bits(&runs[1]), "a second run on the same memory, {parts} parts");
    assert_eq!(bits(&runs[0]), bits(&runs[2]), "a third run on the same memory, {parts} parts");
    let blocks = between[2].bytes() / 4;
    assert!(read(&laid.machine, &between[2], blocks).iter().all(|count| count.to_bits() == 0), "a count is left");
    let [first, _, _] = runs;
    first
}

fn check(machine: &Arc<dyn Machine>, case: &Case) {
    let (mut draw, row) = (Lcg(5), case.heads() * case.dim);
    let q = draw.numbers(POSITIONS.len() * row);
    let pool = draw.numbers(case.pages() * PAGE_NUMBERS);
    let laid = CaseMemory::new(machine, case, &q, &pool);
    for parts in [1, 2, 5, 64] {
        let out = attended(&laid, case, parts);
        assert!(out[row..2 * row].iter().all(|x| x.is_nan()), "a row that nobody asked for was written");
        for (row, head) in ATTENDED.iter().flat_map(|row| (0..case.heads()).map(move |head| (*row as usize, head))) {
            let wanted = case.wanted(&q, &pool, row, head);
            let found = &out[(row * case.heads() + head) * case.dim..][..case.dim];
            let size = wanted.iter().fold(0.0f64, |most, x| most.max(x.abs()));
            for (found, wanted) in found.iter().zip(&wanted) {
                let apart = (f64::from(*found) - wanted).abs();
                let Case { dim, group, .. } = case;
                assert!(
                    apart <= 3e-5 * size,
                    "{dim} channels, groups of {group}, {parts} parts, row {row}, head {head}: {found} {wanted}"
                );
            }
        }
    }
}

#[test]
fn the_last_block_of_a_row_merges_its_parts() {
    let case = |dim, group, window, cap, sinks| Case { dim, group, window, cap, sinks };
    let cases = [
        case(16, 1, 0, 0.0, false),
        case(24, 3, 40, 0.0, true),
        case(64, 9, 0, 0.0, true),
        case(80, 4, 100, 2.0, false),
        case(128, 8, 0, 0.0, false),
        case(256, 2, 0, 5.0, true),
    ];
    for machine in machines() {
        cases.iter().for_each(|case| check(&machine, case));
    }
}

#[test]
fn rows_are_mixed_already_rounded() {
    for machine in machines() {
        // A scale for 256 numbers, whose heads share a block, and for 32.
        for (dim, group, kind, block) in [(128, 4, 4u32, 256), (64, 12, 4, 256), (128, 1, 3, 32), (16, 2, 3, 32)] {
            let case = Case { dim, group, window: 0, cap: 0.0, sinks: false };
            let (mut draw, numbers) = (Lcg(6), POSITIONS.len() * case.heads() * dim);
            let q = draw.numbers(numbers);
            let laid = CaseMemory::new(&machine, &case, &q, &draw.numbers(case.pages() * PAGE_NUMBERS));
            for parts in [1, 2, 64] {
                let between = laid.between(&case, parts);
                let [plain, rounded, wanted] =
                    [4, 2, 2].map(|size| with(&machine, &vec![0.0; numbers * size / 4 + 16]));
                laid.attend(&case, parts, &between, &plain, 0);
                laid.attend(&case, parts, &between, &rounded, kind);
                let args = [(&plain).into(), Arg::Wide(numbers as u64), (&wanted).into(), kind.into()];
                let grid = [numbers.div_ceil(1024) as u32, 1, 1];
                let launch = Launch { module: "rows", kernel: "round_rows", grid, threads: 128, shared: 0 };
                machine.launch(Queue::Compute, launch, &args).unwrap();
                let words = |memory: &GpuMemory| -> Vec<u32> {
                    read(&machine, memory, numbers / 2).iter().map(|x| x.to_bits()).collect()
                };
                assert_eq!(words(&rounded), words(&wanted), "{dim} channels, groups of {group}, blocks of {block}");
            }
        }
    }
}

/// What attention mixes of rows that are turned before, or by it, and the pages afterwards.
fn turned(machine: &Arc<dyn Machine>, case: &Case, parts: usize, norms: bool, at_once: bool) -> [Vec<u32>; 2] {
    let (mut draw, dim) = (Lcg(7), case.dim);
    let q = draw.numbers(POSITIONS.len() * (case.heads() + 2 * KV_HEADS) * dim);
    let pool = draw.numbers(3 * case.pages() * PAGE_NUMBERS);
    let laid = CaseMemory::new(machine, case, &q, &pool);
    let half = if norms { dim / 4 } else { dim / 2 };
    let [frequencies, query, key] = [half, dim, dim].map(|count| with(machine, &draw.numbers(count)));
    let norm = |weights: &GpuMemory| if norms { Arg::from(weights) } else { Arg::Wide(0) };
    let pairs = [Arg::Number(1.25), Arg::Whole(half as u32), Arg::Whole(u32::from(norms))];
    // Queries that grow every 50 tokens, in some cases.
    let growth = [Arg::Number(if norms { 0.3 } else { 0.0 }), Arg::Whole(if norms { 50 } else { 0 })];
    let norms = [norm(&query), norm(&key), Arg::Number(1e-5)];
    let turning =
        [(&frequencies).into(), pairs[0], pairs[1], pairs[2], norms[0], norms[1], norms[2], growth[0], growth[1]];
    let count = POSITIONS.len() * case.heads() * dim;
    let out = with(machine, &vec![0.0; count]);
    if !at_once {
        laid.turn_and_store(case, turning);
    }
    let by_attention = if at_once { turning } else { NOT_TURNED };
    laid.attend_turning(case, parts, &laid.between(case, parts), (&out, 0), by_attention);
    if at_once {
        // The row that is not attended is stored by nobody else.
        laid.turn_and_store(case, turning);
    }
    let bits = |memory: &GpuMemory, count: usize| read(machine, memory, count).iter().map(|x| x.to_bits()).collect();
    [bits(&out, count), bits(&laid.pool, pool.len())]
}

#[test]
fn attention_turns_and_stores_as_rows_do_by_themselves() {
    for machine in machines() {
        for (dim, group, norms) in [(16, 1, false), (64, 8, true), (128, 4, false), (256, 3, true)] {
            let case = Case { dim, group, window: 0, cap: 0.0, sinks: false };
            for parts in [1, 3, 64] {
                let [apart, at_once] = [false, true].map(|at_once| turned(&machine, &case, parts, norms, at_once));
                assert!(apart == at_once, "{dim} channels, groups of {group}, {parts} parts");
            }
        }
    }
}
