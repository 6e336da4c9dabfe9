//! Rows rounded to 8 bits: what products with quantised weights multiply by, as llama.cpp's do.
//!
//! Each block of a row has a scale of its own, so a row's rounding knows nothing of its neighbours. Sums of products
//! are then whole numbers, exact in any order.

use super::packed::Layout;

/// Rows of rounded numbers, memory kept from step to step.
#[derive(Default)]
pub(super) struct Rounded {
    pub cols: usize,
    /// Numbers as bytes, for weights of four bits.
    pub bytes: Vec<i8>,
    /// Numbers as 16 bits, for weights of eight.
    pub words: Vec<i16>,
    /// Of each block, what one is worth.
    pub scales: Vec<f32>,
    /// Of each part, the sum of its numbers: at most 32 · 127.
    pub sums: Vec<i16>,
}

impl Rounded {
    /// Rounds rows of `cols` numbers for products with `layout`.
    pub fn fill(&mut self, layout: Layout, cols: usize, x: &[f32], round: impl Fn(&[f32], &mut [i8]) -> f32) {
        let (numbers, part) = (layout.numbers(), layout.part());
        self.cols = cols;
        self.bytes.resize(x.len(), 0);
        self.scales.clear();
        self.sums.clear();
        for (x, q) in x.chunks_exact(numbers).zip(self.bytes.chunks_exact_mut(numbers)) {
            self.scales.push(round(x, q));
        }
        self.sums.extend(self.bytes.chunks_exact(part).map(|q| q.iter().map(|q| i16::from(*q)).sum::<i16>()));
        if !layout.is_four() {
            self.words.clear();
            self.words.extend(self.bytes.iter().map(|q| i16::from(*q)));
        }
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.bytes.len() / self.cols.max(1)
    }
}

/// Rounds a block to the nearest of 255 steps and returns the step.
#[inline(always)]
pub(super) fn round(x: &[f32], out: &mut [i8]) -> f32 {
    let mut tops = [0.0f32; super::LANES];
    for x in x.chunks(super::LANES) {
        for (top, x) in tops.iter_mut().zip(x) {
            *top = if x.abs() > *top { x.abs() } else { *top };
        }
    }
    let top = tops.into_iter().fold(0.0, f32::max);
    let step = top / 127.0;
    let steps = if top > 0.0 { 127.0 / top } else { 0.0 };
    for (out, x) in out.iter_mut().zip(x) {
        // What is not a number becomes 0, infinities the ends: `as` saturates.
        *out = (x * steps).round_ties_even() as i8;
    }
    step
}
