//! Arithmetic on the processor: one definition in plain Rust, and fast versions of it.
//!
//! All give the same bits. A dot product runs in eight lanes (element `k` belongs to lane `k mod 8`), each lane a chain
//! of fused multiply-adds in the order of `k`, and the lanes are added by one fixed tree ([`plain::reduce`]). With bfloat16
//! matrices lanes take numbers two at a time (`bf16.rs`). How many rows or outputs are worked on at a time changes nothing of
//! that.
//!
//! | file | what it holds |
//! |---|---|
//! | `matrix.rs` | dense matrices |
//! | `simd.rs` | the instructions a processor has, and which version uses them |
//! | `plain.rs` | the definition |
//! | `vector.rs` | loops that are written once for the instruction sets below |
//! | `avx2.rs` | the same for AVX2, FMA and F16C, with and without products of bytes (AVX-VNNI) |
//! | `avx512.rs` | the same for AVX-512 with VNNI, with products of bfloat16, and with tiles (AMX) |
//! | `neon.rs` | the same for NEON, with and without products of bytes (`dotprod`) |
//! | `dense.rs` | products in blocks that stay in caches |
//! | `bf16.rs` | the definition of those with bfloat16 matrices |
//! | `packed.rs` | quantised matrices, laid out for products |
//! | `rounded.rs` | rows rounded to 8 bits, what quantised matrices are multiplied by |
//! | `quantised.rs` | products of the two |
//! | `product.rs` | products with one matrix or several, shared among threads |
//! | `simple.rs` | norms, gates and turns |
//! | `memory.rs` | memory for large matrices |
//! | `team.rs` | the threads |
//!
//! KV packed for links is defined in `wire/`, and is fast by `vector/wire.rs` on processors with AVX2 or AVX-512.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod bf16;
mod dense;
mod matrix;
#[cfg(target_arch = "aarch64")]
mod neon;
mod packed;
pub mod plain;
mod product;
mod quantised;
mod rounded;
mod simd;
mod simple;
mod team;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod vector;
mod widened;

use crate::{
    memory::{Arena, Memory},
    quant::Blocks,
};
pub(crate) use dense::{Cut, Outputs};
pub use matrix::{Dtype, Matrix};
pub use packed::Packed;
pub use product::Operand;
use product::ProductTask;
use simd::by_simd;
pub use simd::{Gate, Simd};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
pub(crate) use team::Team;

/// Lanes of a dot product.
pub const LANES: usize = 8;
/// Keys that lie side by side for attention of many rows.
pub(crate) const KEYS: usize = 16;
/// A dot product under way.
type Lanes = [f32; LANES];
/// Multiply-adds below which handing work to other threads costs more than it saves.
const PARALLEL_FROM: usize = 1 << 16;
/// Items for each thread from which on a thread has whole ones, so that one that is held up does not hold up all.
const EACH_FROM: usize = 8;
/// Numbers below which simple work on each is not shared.
const SHARE_FROM: usize = 1 << 14;

/// The processor: its instructions and the threads lent to computing.
pub struct Cpu {
    simd: Simd,
    team: Team,
    /// Where weights are laid out anew.
    arena: Mutex<Arena>,
}

impl Cpu {
    /// With `threads` threads, the caller's included.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub fn new(simd: Simd, threads: usize) -> std::io::Result<Self> {
        Self::started(simd, threads, |_| ())
    }

    /// The same, where each thread but the caller's does `starting` first, with its number from 1 on.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(crate) fn started(
        simd: Simd,
        threads: usize,
        starting: impl Fn(usize) + Clone + Send + 'static,
    ) -> std::io::Result<Self> {
        Ok(Self { simd, team: Team::new(threads, starting)?, arena: Mutex::default() })
    }

    /// Its instructions.
    #[must_use]
    pub fn simd(&self) -> Simd {
        self.simd
    }

    /// `out[r][o] = x[r] · w[o]`, for `x` of any number of rows of `w.cols()` numbers.
    ///
    /// # Panics
    /// When sizes do not fit together.
    pub fn linear(&self, x: &[f32], w: Matrix<'_>, out: &mut [f32]) {
        self.products(x, [(Operand::Dense(w), out)]);
    }

    /// `out[r][o] = x[r] · w[o]`, each row rounded to 8 bits first (`rounded.rs`).
    ///
    /// # Panics
    /// When sizes do not fit together.
    pub fn quantised(&self, x: &[f32], w: &Packed, out: &mut [f32]) {
        self.products(x, [(Operand::Packed(w), out)]);
    }

    /// Products of the same rows with several matrices.
    ///
    /// # Panics
    /// When sizes do not fit together.
    pub fn products<const N: usize>(&self, x: &[f32], each: [(Operand<'_>, &mut [f32]); N]) {
        product::product(self.simd, &self.team, x, each, None);
    }

    /// Products of the same rows with two matrices of a gated MLP, and the first's outputs gated: `out[r][o] =
    /// act(x[r] · gate[o]) * (x[r] · up[o])`. Each thread gates what it has multiplied. The second's outputs are left as they
    /// are.
    ///
    /// # Panics
    /// When sizes do not fit together.
    pub fn gated(&self, x: &[f32], gate: (Operand<'_>, &mut [f32]), up: (Operand<'_>, &mut [f32]), act: Gate) {
        assert_eq!(gate.0.outputs(), up.0.outputs(), "outputs of a gated MLP");
        if std::mem::discriminant(&gate.0) != std::mem::discriminant(&up.0) {
            // Cut into other parts, each.
            self.products(x, [(gate.0, &mut *gate.1), (up.0, &mut *up.1)]);
            return self.gate_mul(act, gate.1, up.1);
        }
        let simd = self.simd;
        let then = |tasks: &[ProductTask<'_>], range: Range<usize>| {
            let [gate, up] = tasks else { return };
            for row in 0..gate.out().rows() {
                // SAFETY: both are cut alike, and who multiplied a part has its outputs alone.
                #[allow(unsafe_code)]
                let (gate, up) = unsafe { (gate.out().some(row, range.clone()), up.out().some(row, range.clone())) };
                simd.gate_mul(act, gate, up);
            }
        };
        product::product(self.simd, &self.team, x, [gate, up], Some(&then));
    }

    /// Lays a quantised matrix out for products.
    #[must_use]
    pub fn pack(&self, blocks: Blocks<'_>) -> Packed {
        let memory = self.arena.lock().unwrap_or_else(PoisonError::into_inner).zeroed(Packed::size(&blocks));
        Packed::new(&self.team, memory, blocks)
    }

    /// The numbers of `rows` × `cols` that `row` writes, stored as `dtype`.
    pub(crate) fn widened(
        &self,
        (rows, cols): (usize, usize),
        dtype: Dtype,
        row: impl Fn(usize, &mut [f32]) + Sync,
    ) -> Memory {
        let width = cols * dtype.bytes();
        let memory = self.arena.lock().unwrap_or_else(PoisonError::into_inner).zeroed(rows * width);
        widened::fill(&self.team, memory, (width, cols), dtype, row)
    }

    /// [`Self::linear`] on the calling thread: for work that is already shared out.
    pub fn dots_here(&self, x: &[f32], w: Matrix<'_>, out: &mut [f32]) {
        if w.cols == 0 {
            return out.fill(0.0);
        }
        dense::product_here(self.simd, x, w, out);
    }

    /// `out[r * stride + o] = x[r] · w[o]` on the calling thread, for short rows such as a head's.
    pub fn scores(&self, x: &[f32], w: Matrix<'_>, stride: usize, out: &mut [f32]) {
        by_simd!(self.simd, scores(x, w, stride, out));
    }

    /// `out[r][d] += p[r][t] * v[t][d]`, in the order of `t`. Rows of `p` lie `stride` numbers apart and may be longer
    /// than `v` has rows.
    pub fn weighted_rows(&self, p: &[f32], stride: usize, v: Matrix<'_>, out: &mut [f32]) {
        by_simd!(self.simd, weighted_rows(p, stride, v, out));
    }

    /// Whether attention of many rows has a version of its own for heads of `dim` channels.
    pub(crate) fn has_chunks(&self, dim: usize) -> bool {
        self.simd.has_lines() && dim.is_multiple_of(KEYS)
    }

    /// All numbers of a matrix, widened.
    pub(crate) fn widen(&self, w: Matrix<'_>, out: &mut [f32]) {
        by_simd!(self.simd, widen(w, out));
    }

    /// Lays sixteen keys of `dim` channels side by side: `[channel][key]`.
    pub(crate) fn beside(&self, keys: &[f32], dim: usize, out: &mut [f32]) {
        #[cfg(target_arch = "x86_64")]
        if self.has_chunks(dim) {
            return avx512::chunk::beside(keys, dim, out);
        }
        plain::beside(keys, dim, out);
    }

    /// `out[i * stride + t] = scale · (q[i] · key[t])`, of keys laid out by [`Self::beside`].
    pub(crate) fn chunk_scores(
        &self,
        q: &[&[f32]],
        dim: usize,
        keys: &[f32],
        scale: f32,
        stride: usize,
        out: &mut [f32],
    ) {
        #[cfg(target_arch = "x86_64")]
        if self.has_chunks(dim) {
            return avx512::chunk::scores(q, dim, keys, scale, stride, out);
        }
        plain::chunk_scores(q, dim, keys, scale, stride, out);
    }

    /// `out[i][d] += p[i * stride + t] · values[t][d]`, in the order of `t`.
    pub(crate) fn chunk_mix(&self, p: &[f32], stride: usize, values: &[f32], dim: usize, out: &mut [f32]) {
        #[cfg(target_arch = "x86_64")]
        if self.has_chunks(dim) {
            return avx512::chunk::mix(p, stride, values, dim, out);
        }
        self.weighted_rows(
            p,
            stride,
            Matrix::new(bytemuck::cast_slice(values), Dtype::F32, values.len() / dim, dim),
            out,
        );
    }

    /// Runs `work(0)` to `work(parts - 1)`, shared among the threads when it is worth it.
    pub(crate) fn share(&self, parts: usize, multiply_adds: usize, work: impl Fn(usize) + Sync) {
        if multiply_adds < PARALLEL_FROM { (0..parts).for_each(work) } else { self.team.share(parts, work) }
    }

    /// Runs `work` on each item. Where they are small, and enough for all threads, each takes some, and what it does there it
    /// does alone; else they are done one after the other, and what is done of each is shared.
    pub(crate) fn each<T: Send>(&self, items: &mut [T], small: bool, work: impl Fn(&mut T) + Sync) {
        if !small || items.len() < EACH_FROM * self.team.threads() {
            items.iter_mut().for_each(work);
        } else {
            self.team.share_each(items, |_, item| work(item));
        }
    }

    /// Softmax in place.
    pub fn softmax(&self, x: &mut [f32]) {
        by_simd!(self.simd, softmax(x));
    }

    /// `gate[i] = act(gate[i]) * up[i]`.
    pub fn gate_mul(&self, act: Gate, gate: &mut [f32], up: &[f32]) {
        self.for_each_part(gate, SHARE_FROM / 4, up.len() * 16, |part, gate| {
            self.simd.gate_mul(act, gate, &up[part * (SHARE_FROM / 4)..][..gate.len()]);
        });
    }

    /// Presses every number of `x` smoothly between `-cap` and `cap`.
    pub fn soft_cap(&self, x: &mut [f32], cap: f32) {
        let all = x.len();
        self.for_each_part(x, SHARE_FROM / 4, all * 16, |_, x| self.simd.soft_cap(x, cap));
    }

    /// RMS norm of every row of `x` with weights `w`.
    pub fn rms_norm(&self, x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
        let width = w.len();
        self.for_each_part(out, width, 4 * x.len(), |row, out| {
            by_simd!(self.simd, rms_norm(&x[row * width..][..width], w, eps, out));
        });
    }

    /// Adds `more` to `x`, then the RMS norm of every row, while it is at hand.
    ///
    /// # Panics
    /// When sizes differ.
    pub fn add_rms_norm(&self, x: &mut [f32], more: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
        let width = w.len();
        assert!(x.len() == more.len() && x.len() == out.len() && x.len().is_multiple_of(width), "norm sizes");
        let (all, rows) = (x.len(), Cut::new(x, width));
        self.for_each_part(out, width, 4 * all, |row, out| {
            // SAFETY: each row is handed out once.
            #[allow(unsafe_code)]
            let x = unsafe { rows.part(row) };
            by_simd!(self.simd, add_rms_norm(x, &more[row * width..][..width], w, eps, out));
        });
    }

    /// Layer norm of every row of `x` with weights `w` and biases `b`.
    pub fn layer_norm(&self, x: &[f32], w: &[f32], b: &[f32], eps: f32, out: &mut [f32]) {
        let width = w.len();
        self.for_each_part(out, width, 4 * x.len(), |row, out| {
            by_simd!(self.simd, layer_norm(&x[row * width..][..width], w, b, eps, out));
        });
    }

    /// `x += more`.
    pub fn add(&self, x: &mut [f32], more: &[f32]) {
        self.for_each_part(x, SHARE_FROM / 4, more.len(), |part, x| {
            let more = &more[part * (SHARE_FROM / 4)..][..x.len()];
            x.iter_mut().zip(more).for_each(|(x, more)| *x += more);
        });
    }

    /// The sum of all numbers: reads memory as fast as the threads can.
    pub(crate) fn read_all(&self, numbers: &[u64]) -> u64 {
        let total = std::sync::atomic::AtomicU64::new(0);
        let part = 1 << 16;
        self.team.share(numbers.len().div_ceil(part), |i| {
            let part = &numbers[i * part..numbers.len().min((i + 1) * part)];
            let sum = by_simd!(self.simd, sum(part));
            total.fetch_add(sum, std::sync::atomic::Ordering::Relaxed);
        });
        total.into_inner()
    }

    /// The first part of `parts` for which `is_it` says yes. Threads look side by side, so some after it may be asked too.
    pub(crate) fn first_part(&self, parts: usize, is_it: impl Fn(usize) -> bool + Sync) -> Option<usize> {
        let first = AtomicUsize::new(usize::MAX);
        self.team.share(parts, |i| {
            if i < first.load(Ordering::Relaxed) && is_it(i) {
                first.fetch_min(i, Ordering::Relaxed);
            }
        });
        Some(first.into_inner()).filter(|i| *i != usize::MAX)
    }

    /// `count` multiply-adds on registers by every thread.
    pub(crate) fn multiply_only(&self, count: usize) -> f32 {
        let total = std::sync::atomic::AtomicU32::new(0);
        self.team.share(self.team.threads(), |_| {
            let sum = by_simd!(self.simd, multiply_only(count));
            total.fetch_xor(sum.to_bits(), std::sync::atomic::Ordering::Relaxed);
        });
        f32::from_bits(total.into_inner())
    }

    /// Runs `work` on each part of `out` (`part` numbers each), shared among the threads when it is worth it.
    pub fn for_each_part(
        &self,
        out: &mut [f32],
        part: usize,
        multiply_adds: usize,
        work: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        if multiply_adds < PARALLEL_FROM || self.team.threads() == 1 {
            return out.chunks_mut(part).enumerate().for_each(|(i, out)| work(i, out));
        }
        self.team.share_parts(out, part, work);
    }
}

#[cfg(test)]
mod tests;
