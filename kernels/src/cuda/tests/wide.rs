//! Heads that lie in several heads of a page, or have heads of none beside them: turned, normed and stored, then attended,
//! against sums in double precision, to 1e-5 and to 3e-5 of the largest value. What belongs to a head and is not needed is zeros.

use super::{Lcg, machines, poisoned, read, with};
use crate::{
    cuda::machine::{Arg, GpuMemory, Launch, Machine, Queue},
    pages::PAGE_BYTES,
};
use std::sync::Arc;

/// Rows of one sequence, the first at position 0.
const ROWS: usize = 70;
/// Numbers in single precision that a page has room for.
const PAGE_NUMBERS: usize = PAGE_BYTES / 4;
const SCALE: f32 = 0.3;
/// Of norms over queries and keys, and over values.
const EPS: [f32; 2] = [1e-5, 1e-6];
const AMPLITUDE: f32 = 1.25;

#[derive(Clone, Copy)]
struct Case {
    dim: usize,
    page_dim: usize,
    kv_heads: usize,
    page_heads: usize,
    /// Query heads that share one of keys.
    group: usize,
    window: usize,
    /// Else they are keys.
    has_values: bool,
    sinks: bool,
}

fn whole(x: usize) -> Arg {
    Arg::Whole(x as u32)
}

fn sink(head: usize) -> f32 {
    [-1.0, 2.0][head % 2]
}

impl Case {
    fn heads(&self) -> usize {
        self.kv_heads * self.group
    }

    /// Numbers from a row to the next.
    fn stride(&self) -> usize {
        (self.heads() + if self.has_values { 2 } else { 1 } * self.kv_heads) * self.dim + 3
    }

    fn tokens(&self) -> usize {
        PAGE_NUMBERS / (2 * self.page_heads * self.page_dim)
    }

    fn pages(&self) -> usize {
        ROWS.div_ceil(self.tokens())
    }

    /// Pages from the last to the first.
    fn table(&self) -> Vec<u32> {
        (0..self.pages() as u32).rev().collect()
    }

    /// A page's heads that belong to one.
    fn apart(&self) -> usize {
        self.page_heads / self.kv_heads
    }

    /// Where channel `c` of those of a head lies.
    fn at(&self, token: usize, side: usize, head: usize, c: usize) -> usize {
        let (page, line) = (self.pages() - 1 - token / self.tokens(), head * self.apart() + c / self.page_dim);
        let row = (side * self.page_heads + line) * self.tokens() + token % self.tokens();
        page * PAGE_NUMBERS + row * self.page_dim + c % self.page_dim
    }

    /// A head after its norm, by weights or by none, and turned if it has weights.
    fn normed(&self, head: &[f32], norm: Option<&[f32]>, frequencies: &[f32], position: usize) -> Vec<f64> {
        let squares: f64 = head.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
        let eps = f64::from(EPS[usize::from(norm.is_none())]);
        let scale = 1.0 / (squares / self.dim as f64 + eps).sqrt();
        let weight = |c: usize| norm.map_or(1.0, |norm| f64::from(norm[c]));
        let mut out: Vec<f64> = head.iter().enumerate().map(|(c, x)| f64::from(*x) * scale * weight(c)).collect();
        if norm.is_some() {
            for (i, frequency) in frequencies.iter().enumerate() {
                let angle = f64::from(position as f32 * frequency);
                let (cos, sin) = (angle.cos() * f64::from(AMPLITUDE), angle.sin() * f64::from(AMPLITUDE));
                let (first, second) = (out[i], out[frequencies.len() + i]);
                out[i] = first * cos - second * sin;
                out[frequencies.len() + i] = second * cos + first * sin;
            }
        }
        out
    }

    /// What a row is to be for a query head.
    fn mixed(&self, q: &[f32], pool: &[f32], row: usize, head: usize) -> Vec<f64> {
        let begin = if self.window == 0 { 0 } else { (row + 1).saturating_sub(self.window) };
        let query = &q[row * self.stride() + head * self.dim..][..self.dim];
        let number = |token, side, c| f64::from(pool[self.at(token, side, head / self.group, c)]);
        let dot = |token| query.iter().enumerate().map(|(c, x)| f64::from(*x) * number(token, 0, c)).sum::<f64>();
        let scores: Vec<f64> = (begin..=row).map(|token| dot(token) * f64::from(SCALE)).collect();
        let sink = if self.sinks { f64::from(sink(head)) } else { f64::NEG_INFINITY };
        let top = scores.iter().copied().fold(sink, f64::max);
        let total = scores.iter().map(|score| (score - top).exp()).sum::<f64>() + (sink - top).exp();
        let weights: Vec<f64> = scores.iter().map(|score| (score - top).exp() / total).collect();
        let value = |c| weights.iter().enumerate().map(|(i, weight)| weight * number(begin + i, 1, c)).sum::<f64>();
        (0..self.dim).map(value).collect()
    }
}

/// Rows of a case on a machine, and where their keys and values go.
struct Laid {
    machine: Arc<dyn Machine>,
    x: GpuMemory,
    pool: GpuMemory,
    table: GpuMemory,
    positions: GpuMemory,
    sequences: GpuMemory,
}

impl Laid {
    fn new(machine: &Arc<dyn Machine>, case: &Case, x: &[f32]) -> Self {
        let words = |words: &[u32]| GpuMemory::of(machine, bytemuck::cast_slice(words)).unwrap();
        Self {
            machine: machine.clone(),
            x: with(machine, x),
            pool: poisoned(machine, case.pages() * PAGE_NUMBERS),
            table: words(&case.table()),
            positions: words(&(0..ROWS as u32).collect::<Vec<_>>()),
            sequences: words(&[0; ROWS]),
        }
    }

    fn launch(&self, kernel: &'static str, grid: [usize; 3], threads: u32, args: &[Arg]) {
        let grid = grid.map(|blocks| blocks as u32);
        let launch = Launch { module: "wide", kernel, grid, threads, shared: 0 };
        self.machine.launch(Queue::Compute, launch, args).unwrap();
    }

    fn pages(&self, case: &Case) -> [Arg; 6] {
        let sizes = [case.pages(), case.tokens(), case.page_heads, case.page_dim].map(whole);
        [(&self.pool).into(), (&self.table).into(), sizes[0], sizes[1], sizes[2], sizes[3]]
    }

    fn append(&self, case: &Case, frequencies: &[f32], norms: [&[f32]; 2]) {
        let (held, [query, key]) = (with(&self.machine, frequencies), norms.map(|norm| with(&self.machine, norm)));
        let args = [
            [(&self.x).into(), whole(case.stride()), whole(case.heads()), whole(case.kv_heads)].as_slice(),
            &[whole(case.dim), whole(usize::from(case.has_values)), EPS[1].into()],
            &[(&self.positions).into(), (&self.sequences).into(), (&held).into(), AMPLITUDE.into()],
            &[
                whole(frequencies.len()),
                whole(0),
                (&query).into(),
                (&key).into(),
                EPS[0].into(),
                0.0f32.into(),
                whole(0),
            ],
            &self.pages(case),
            &[whole(0)],
        ]
        .concat();
        self.launch("append_wide", [ROWS, case.heads() + 2 * case.kv_heads, 1], 32, &args);
        self.machine.finish().unwrap();
    }

    fn attend(&self, case: &Case, parts: usize) -> Vec<f32> {
        let (heads, count) = (case.heads(), ROWS * case.heads() * case.dim);
        let (out, sums) = (poisoned(&self.machine, count), poisoned(&self.machine, count * parts));
        let tops = poisoned(&self.machine, ROWS * heads * parts * 2);
        let sinks = with(&self.machine, &(0..heads).map(sink).collect::<Vec<_>>());
        let sinks_at = if case.sinks { Arg::from(&sinks) } else { Arg::Wide(0) };
        let args = [
            [(&self.x).into(), whole(case.stride()), whole(case.group)].as_slice(),
            &[(&self.positions).into(), (&self.sequences).into(), SCALE.into(), 0.0f32.into()],
            &[whole(case.window), sinks_at],
            &self.pages(case),
            &[whole(case.kv_heads), whole(case.dim), (&sums).into(), (&tops).into(), (&out).into(), whole(0)],
        ]
        .concat();
        let grid = [parts, case.kv_heads * case.group.div_ceil(8), ROWS];
        self.launch("attend_wide_f32", grid, 256, &args);
        if parts > 1 {
            let args = [
                [(&sums).into(), (&tops).into(), whole(parts), whole(case.dim)].as_slice(),
                &[(&self.positions).into(), whole(case.window), (&out).into(), whole(0)],
            ]
            .concat();
            self.launch("merge_wide", [heads, ROWS, 1], 128, &args);
        }
        read(&self.machine, &out, count)
    }
}

/// What was stored, and the queries.
fn check_stored(case: &Case, x: &[f32], (q, pool): (&[f32], &[f32]), frequencies: &[f32], norms: [&[f32]; 2]) {
    let Case { dim, kv_heads, has_values, .. } = *case;
    let near = |found: f32, wanted: f64| assert!((f64::from(found) - wanted).abs() < 1e-5, "{dim}: {found} {wanted}");
    for row in 0..ROWS {
        let head = |number: usize| &x[row * case.stride() + number * dim..][..dim];
        for number in 0..case.heads() {
            let wanted = case.normed(head(number), Some(norms[0]), frequencies, row);
            let found = &q[row * case.stride() + number * dim..][..dim];
            found.iter().zip(wanted).for_each(|(found, wanted)| near(*found, wanted));
        }
        for number in 0..kv_heads {
            let (key, value) = (case.heads() + number, case.heads() + number + if has_values { kv_heads } else { 0 });
            let sides = [(key, Some(norms[1])), (value, None)];
            for (side, (from, norm)) in sides.into_iter().enumerate() {
                let wanted = case.normed(head(from), norm, frequencies, row);
                for c in 0..case.apart() * case.page_dim {
                    near(pool[case.at(row, side, number, c)], wanted.get(c).copied().unwrap_or(0.0));
                }
            }
        }
    }
}

#[test]
fn wide_heads_are_stored_and_attended() {
    let base = Case {
        dim: 512,
        page_dim: 256,
        kv_heads: 1,
        page_heads: 4,
        group: 9,
        window: 0,
        has_values: false,
        sinks: false,
    };
    let cases = [
        base,
        Case { dim: 48, page_dim: 24, kv_heads: 2, page_heads: 8, group: 3, has_values: true, sinks: true, ..base },
        Case { dim: 16, page_dim: 16, kv_heads: 2, page_heads: 4, group: 1, window: 24, ..base },
    ];
    for machine in machines() {
        for case in &cases {
            let mut draw = Lcg(31);
            let x = draw.numbers(ROWS * case.stride());
            // Some pairs of channels stay as they are.
            let mut frequencies = draw.numbers(case.dim / 2);
            frequencies[case.dim / 4..].fill(0.0);
            let norms = [draw.numbers(case.dim), draw.numbers(case.dim)];
            let norms = norms.each_ref().map(Vec::as_slice);
            let laid = Laid::new(&machine, case, &x);
            laid.append(case, &frequencies, norms);
            let (q, pool) = (read(&machine, &laid.x, x.len()), read(&machine, &laid.pool, case.pages() * PAGE_NUMBERS));
            check_stored(case, &x, (&q, &pool), &frequencies, norms);
            let all = (0..ROWS * case.heads()).map(|i| case.mixed(&q, &pool, i / case.heads(), i % case.heads()));
            let all: Vec<_> = all.collect();
            for parts in [1, 3] {
                let found = laid.attend(case, parts);
                for (i, (found, wanted)) in found.chunks_exact(case.dim).zip(&all).enumerate() {
                    let size = wanted.iter().fold(0.0f64, |most, x| most.max(x.abs()));
                    for (found, wanted) in found.iter().zip(wanted) {
                        let apart = (f64::from(*found) - wanted).abs();
                        assert!(apart <= 3e-5 * size, "{} channels, {parts} parts, {i}: {found} {wanted}", case.dim);
                    }
                }
            }
        }
    }
}
