//! Products of rounded rows with quantised matrices.

use super::{
    Simd,
    dense::Outputs,
    packed::{HALVES, Layout, Packed, WIDE},
    rounded::Rounded,
};
use half::f16;
use std::cell::RefCell;
use std::ops::Range;

/// Bytes of rounded rows that stay in a second-level cache while all outputs pass.
const ROWS_BYTES: usize = 192 << 10;
/// Columns that pass at a time: those of four rows and sixteen outputs fit a first-level cache together.
const DEPTH: usize = 1024;
/// Parts for each thread, so that one that is held up does not hold up all.
const PARTS_PER_THREAD: usize = 4;

/// One number for each of sixteen outputs.
pub(super) type Wide = [f32; WIDE];

thread_local! {
    static SUMS: RefCell<Vec<Wide>> = const { RefCell::new(Vec::new()) };
}

/// Outputs of a part for `threads` threads: whole panels.
pub(super) fn width(outputs: usize, threads: usize) -> usize {
    outputs.div_ceil(WIDE).div_ceil(threads * PARTS_PER_THREAD).max(1) * WIDE
}

/// `out[r][o] = x[r] · w[o]` for some outputs, from the first of a panel on.
pub(super) fn outputs(simd: Simd, x: &Rounded, w: &Packed, range: Range<usize>, out: &Outputs<'_>) {
    let panels = range.start / WIDE..range.end.div_ceil(WIDE);
    if simd.has_tiles_for(x.rows) {
        simd.tiles(x, w, panels, out);
    } else {
        panels_of(simd, x, w, panels, out);
    }
}

fn panels_of(simd: Simd, x: &Rounded, w: &Packed, panels: Range<usize>, out: &Outputs<'_>) {
    let rows_at_once = (ROWS_BYTES / w.cols).clamp(4, 256);
    let blocks = w.cols / w.layout.numbers;
    let at_once = DEPTH / w.layout.numbers;
    SUMS.with_borrow_mut(|sums| {
        for first in (0..x.rows).step_by(rows_at_once) {
            let rows = first..x.rows.min(first + rows_at_once);
            for panel in panels.clone() {
                sums.clear();
                sums.resize(rows.len(), [0.0; WIDE]);
                for from in (0..blocks).step_by(at_once) {
                    simd.wide(
                        w,
                        panel,
                        x,
                        ProductRange { first: rows.start, from, to: blocks.min(from + at_once) },
                        sums,
                    );
                }
                put(w, panel, rows.start, sums, out);
            }
        }
    });
}

/// Writes a panel's sums of the rows from `first` on.
pub(super) fn put(w: &Packed, panel: usize, first: usize, sums: &[Wide], out: &Outputs<'_>) {
    let (width, worth) = (WIDE.min(w.rows - panel * WIDE), w.kind.worth());
    for (row, sums) in (first..).zip(sums) {
        // A power of two, one but for few kinds: of the same bits as if each scale had been multiplied by it.
        let sums = sums.map(|sum| sum * worth);
        // SAFETY: every part of a product has panels of its own.
        #[expect(unsafe_code, reason = "the lines above say why it is sound")]
        unsafe {
            out.put(row, panel * WIDE, &sums[..width]);
        }
    }
}

/// Which rows and columns are multiplied.
#[derive(Clone, Copy)]
pub(super) struct ProductRange {
    /// First row.
    pub first: usize,
    /// First block of columns.
    pub from: usize,
    /// One past the last.
    pub to: usize,
}

/// The definition: goes on with sixteen outputs of some rows. Whole numbers within a block, then one fused multiply-add
/// a block for scales and one for least values, in the order of blocks.
pub(super) fn wide(w: &Packed, panel: usize, x: &Rounded, part: ProductRange, out: &mut [Wide]) {
    let layout = w.layout;
    let (numbers, per_row) = (layout.numbers, w.cols / layout.numbers);
    let blocks = w.panel(panel, part.from, part.to);
    for (row, out) in (part.first..).zip(out) {
        for (b, block) in (part.from..).zip(blocks.chunks_exact(layout.block())) {
            let q = &x.bytes[row * w.cols + b * numbers..][..numbers];
            let parts = layout.parts();
            let sums = &x.sums[(row * per_row + b) * parts..][..parts];
            let scale = x.scales[row * per_row + b];
            for (j, out) in out.iter_mut().enumerate() {
                *out = add_block(layout, block, j, q, sums, scale, *out);
            }
        }
    }
}

fn add_block(layout: Layout, block: &[u8], j: usize, x: &[i8], sums: &[i16], scale: f32, acc: f32) -> f32 {
    let half = |at: usize| f16::from_le_bytes([block[at + 2 * j], block[at + 2 * j + 1]]).to_f32();
    let quants = &block[layout.header()..];
    let whole = |part: usize| -> i32 {
        let quant = |k| i32::from(layout.get(quants, j, k)) - i32::from(layout.shift);
        (part * layout.part..(part + 1) * layout.part).map(|k| quant(k) * i32::from(x[k])).sum()
    };
    let sum = |p: usize| i32::from(sums[p]);
    if !layout.is_large() {
        let acc = (whole(0) as f32).mul_add(half(0) * scale, acc);
        return if layout.least { (sum(0) as f32).mul_add(half(HALVES) * scale, acc) } else { acc };
    }
    let part_scale = |p: usize| i32::from(block[layout.part_scales() + p * WIDE + j] as i8);
    let all = (0..layout.parts()).map(|p| part_scale(p) * whole(p)).sum::<i32>();
    let acc = (all as f32).mul_add(half(0) * scale, acc);
    if !layout.least {
        return acc;
    }
    let least = |p: usize| i32::from(block[layout.part_least() + p / 2 * HALVES + 2 * j + p % 2]);
    let below = (0..layout.parts()).map(|p| least(p) * sum(p)).sum::<i32>();
    (-(below as f32)).mul_add(half(HALVES) * scale, acc)
}

#[cfg(test)]
mod tests {
    use super::super::{Cpu, rounded::Filled};
    use super::*;
    use crate::quant::{Blocks, QuantType};
    use proptest::prelude::*;

    struct Lcg(u64);

    impl Lcg {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            self.0 >> 33
        }

        fn number(&mut self) -> f32 {
            self.next() as f32 / (1u64 << 30) as f32 - 1.0
        }

        /// Blocks of any bytes, but with scales that are numbers.
        fn blocks(&mut self, kind: QuantType, count: usize) -> Vec<u8> {
            let mut bytes: Vec<u8> = (0..count * kind.bytes()).map(|_| self.next() as u8).collect();
            for block in bytes.chunks_exact_mut(kind.bytes()) {
                for at in kind.scales() {
                    block[*at..at + 2].copy_from_slice(&f16::from_f32(self.number()).to_le_bytes());
                }
                if kind == QuantType::Mxfp4 {
                    block[0] = 116 + block[0] % 12;
                }
                if kind == QuantType::Iq1M {
                    block[55] = block[55] & 0x8f | 0x30;
                }
            }
            bytes
        }
    }

    fn bits(x: &[f32]) -> Vec<u32> {
        x.iter().map(|x| x.to_bits()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Every fast version gives the definition's bits, whatever the threads and however many rows come together; and
        /// all are what multiplying widened numbers gives, but for the rows' rounding.
        #[test]
        fn packed_products_are_products(rows in 1usize..40, outs in 1usize..40, blocks in 1usize..4, seed in any::<u64>()) {
            let plain = Cpu::new(Simd::Plain, 1).unwrap();
            for kind in QuantType::ALL {
                let mut draw = Lcg(seed);
                let cols = blocks * kind.numbers();
                let bytes = draw.blocks(kind, outs * blocks);
                let stored = Blocks::new(&bytes, kind, outs, cols);
                let x: Vec<f32> = (0..rows * cols).map(|_| draw.number()).collect();
                let mut a = vec![0.0; rows * outs];
                plain.quantised(&x, &plain.pack(stored), &mut a);
                for simd in Simd::all() {
                    let fast = Cpu::new(simd, 2).unwrap();
                    let packed = fast.pack(stored);
                    let mut b = vec![0.0; rows * outs];
                    fast.quantised(&x, &packed, &mut b);
                    prop_assert_eq!(bits(&a), bits(&b), "{:?} {:?}", kind, simd);
                    let mut alone = vec![0.0; outs];
                    fast.quantised(&x[(rows - 1) * cols..], &packed, &mut alone);
                    prop_assert_eq!(bits(&a[(rows - 1) * outs..]), bits(&alone), "{:?} {:?}", kind, simd);
                }
                let mut row = vec![0.0; cols];
                for o in 0..outs {
                    stored.widen_row(o, &mut row);
                    // Rounding moves a number of at most 1 by at most 1/254.
                    let most = row.iter().map(|w| f64::from(w.abs())).sum::<f64>() / 250.0;
                    for r in 0..rows {
                        let exact: f64 = row.iter().zip(&x[r * cols..]).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                        let found = f64::from(a[r * outs + o]);
                        prop_assert!((found - exact).abs() <= most, "{kind:?}: {found} for {exact} within {most}");
                    }
                }
            }
        }
    }

    /// A step in the middle of a prompt asks for the logits of no row.
    #[test]
    fn no_rows_are_no_work() {
        for kind in QuantType::ALL {
            let bytes = Lcg(1).blocks(kind, 20);
            for cpu in Simd::all().into_iter().map(|simd| Cpu::new(simd, 2).unwrap()) {
                cpu.quantised(&[], &cpu.pack(Blocks::new(&bytes, kind, 20, kind.numbers())), &mut []);
            }
        }
    }

    /// More columns, rows and panels than any version takes at a time.
    #[test]
    fn large_products_are_the_same_everywhere() {
        for (kind, rows, outs, cols) in [(QuantType::Q8_0, 530, 9 * 16 + 3, 64), (QuantType::Q6K, 33, 17, 2048 + 512)] {
            let mut draw = Lcg(7);
            let bytes = draw.blocks(kind, outs * cols / kind.numbers());
            let stored = Blocks::new(&bytes, kind, outs, cols);
            let x: Vec<f32> = (0..rows * cols).map(|_| draw.number()).collect();
            let results = Simd::all().into_iter().map(|simd| {
                let cpu = Cpu::new(simd, 1).unwrap();
                let mut out = vec![0.0; rows * outs];
                cpu.quantised(&x, &cpu.pack(stored), &mut out);
                bits(&out)
            });
            let results: Vec<Vec<u32>> = results.collect();
            assert!(results.iter().all(|r| *r == results[0]), "{kind:?}");
        }
    }

    #[test]
    fn every_version_rounds_alike_and_what_is_not_a_number_stays_harmless() {
        let mut draw = Lcg(3);
        let mut x: Vec<f32> = (0..512).map(|_| draw.number()).collect();
        (x[0], x[40], x[41], x[70]) = (f32::NAN, f32::INFINITY, -1.0, f32::NEG_INFINITY);
        // Halves between whole steps, numbers next to zero, and nothing.
        x[96..128].iter_mut().enumerate().for_each(|(i, x)| *x = (127.0 - 0.5 * i as f32) / 8.0);
        x[128..160].iter_mut().for_each(|x| *x *= 1e-40);
        x[160..192].fill(0.0);
        for kind in QuantType::ALL {
            let layout = Layout::of(kind);
            let round = |simd: Simd| {
                let (mut bytes, mut scales, mut sums, mut shifts) = (vec![1; 512], [1.0; 16], [1; 32], [1; 32]);
                let (scales, sums, shifts) = (&mut scales[..], &mut sums[..], &mut shifts[..]);
                simd.round(layout, &x, Filled { bytes: &mut bytes, scales, sums, shifts });
                (bytes, bits(scales), sums.to_vec(), shifts.to_vec())
            };
            let plain = round(Simd::Plain);
            assert!(plain.0.iter().all(|q| *q > -128) && plain.0[0] == 0 && plain.0[40] == 0);
            for simd in Simd::all() {
                assert_eq!(round(simd), plain, "{kind:?} {simd:?}");
            }
        }
    }
}
