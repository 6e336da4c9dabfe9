//! Products of rounded rows with quantised matrices.

use super::{
    Simd,
    dense::Outputs,
    packed::{Layout, OCTET, Packed},
    rounded::Rounded,
    team::Team,
};
use half::f16;
use std::cell::RefCell;

/// Bytes of rounded rows that stay in a second-level cache while all outputs pass.
const ROWS_BYTES: usize = 192 << 10;
/// Columns that pass at a time: those of four rows and eight outputs fit a first-level cache together.
const DEPTH: usize = 1024;
/// Parts for each thread, so that one that is held up does not hold up all.
const PARTS_PER_THREAD: usize = 4;

/// One number for each of eight outputs.
pub(super) type Octet = [f32; OCTET];

thread_local! {
    static ROUNDED: RefCell<Rounded> = RefCell::default();
    static SUMS: RefCell<Vec<Octet>> = const { RefCell::new(Vec::new()) };
}

/// `out[r][o] = x[r] · w[o]`, the rows rounded first; shared among the team.
pub(super) fn product(simd: Simd, team: &Team, x: &[f32], w: &Packed, out: &mut [f32]) {
    ROUNDED.with_borrow_mut(|rounded| {
        rounded.fill(w.layout, w.cols, x, |x, q| simd.round(x, q));
        let outputs = Outputs::new(out, rounded.rows(), w.rows);
        let octets = w.rows.div_ceil(OCTET);
        let share = octets.div_ceil(team.threads() * PARTS_PER_THREAD).max(1);
        let rounded = &*rounded;
        team.share(octets.div_ceil(share), |part| {
            octets_of(simd, rounded, w, part * share..octets.min((part + 1) * share), &outputs);
        });
    });
}

fn octets_of(simd: Simd, x: &Rounded, w: &Packed, octets: std::ops::Range<usize>, out: &Outputs<'_>) {
    let rows_at_once = (ROWS_BYTES / (2 * w.cols)).clamp(4, 256);
    SUMS.with_borrow_mut(|sums| {
        for first in (0..x.rows()).step_by(rows_at_once) {
            let rows = first..x.rows().min(first + rows_at_once);
            for octet in octets.clone() {
                sums.clear();
                sums.resize(rows.len(), [0.0; OCTET]);
                let blocks = w.cols / w.layout.numbers();
                let at_once = DEPTH / w.layout.numbers();
                for from in (0..blocks).step_by(at_once) {
                    simd.octet(w, octet, x, Part { first: rows.start, from, to: blocks.min(from + at_once) }, sums);
                }
                let width = OCTET.min(w.rows - octet * OCTET);
                for (row, sums) in rows.clone().zip(sums.iter()) {
                    // SAFETY: every part has octets of its own.
                    #[allow(unsafe_code)]
                    unsafe {
                        out.put(row, octet * OCTET, &sums[..width]);
                    }
                }
            }
        }
    });
}

/// Which rows and columns are multiplied.
#[derive(Clone, Copy)]
pub(super) struct Part {
    /// First row.
    pub first: usize,
    /// First block of columns.
    pub from: usize,
    /// One past the last.
    pub to: usize,
}

/// The definition: goes on with eight outputs of some rows. Whole numbers within a block, then one fused multiply-add
/// a block for scales and one for least values, in the order of blocks.
pub(super) fn octet(w: &Packed, octet: usize, x: &Rounded, part: Part, out: &mut [Octet]) {
    let layout = w.layout;
    let (numbers, per_row) = (layout.numbers(), w.cols / layout.numbers());
    for (row, out) in (part.first..).zip(out) {
        for (b, block) in w.octet(octet).chunks_exact(layout.block()).enumerate().take(part.to).skip(part.from) {
            let q = &x.bytes[row * w.cols + b * numbers..][..numbers];
            let parts = numbers / layout.part();
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
    let parts = sums.len();
    let whole = |part: usize| -> i32 {
        let columns = part * layout.part()..(part + 1) * layout.part();
        columns.map(|k| quant(layout, block, j, k) * i32::from(x[k])).sum()
    };
    let sum_of_parts = |worth: &dyn Fn(usize) -> i32, of: &dyn Fn(usize) -> i32| -> f32 {
        (0..parts).map(|p| worth(p) * of(p)).sum::<i32>() as f32
    };
    let sum = |p: usize| i32::from(sums[p]);
    match layout {
        Layout::Four => ((whole(0) - 8 * sum(0)) as f32).mul_add(half(0) * scale, acc),
        Layout::Eight { least } => {
            let acc = (whole(0) as f32).mul_add(half(0) * scale, acc);
            if least { (sum(0) as f32).mul_add(half(16) * scale, acc) } else { acc }
        }
        Layout::EightParts { .. } | Layout::FourParts => {
            let part_scale = |p: usize| i32::from(block[32 + p * OCTET + j] as i8);
            let acc = sum_of_parts(&part_scale, &whole).mul_add(half(0) * scale, acc);
            if layout == (Layout::EightParts { least: false }) {
                return acc;
            }
            let least = |p: usize| i32::from(block[32 + parts * OCTET + p / 2 * 16 + 2 * j + p % 2]);
            (-sum_of_parts(&least, &sum)).mul_add(half(16) * scale, acc)
        }
    }
}

fn quant(layout: Layout, block: &[u8], j: usize, k: usize) -> i32 {
    let (at, upper) = layout.place(j, k);
    let byte = block[layout.header() + at];
    match (layout.is_four(), upper) {
        (true, true) => i32::from(byte >> 4),
        (true, false) => i32::from(byte & 15),
        (false, _) => i32::from(byte as i8),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Cpu;
    use super::*;
    use crate::quant::{Blocks, QuantType};
    use proptest::prelude::*;

    /// Where a block's numbers of half precision lie.
    fn halves(kind: QuantType) -> &'static [usize] {
        match kind {
            QuantType::Q4_0 | QuantType::Q5_0 | QuantType::Q8_0 => &[0],
            QuantType::Q4_1 | QuantType::Q5_1 | QuantType::Q4K | QuantType::Q5K => &[0, 2],
            QuantType::Q2K => &[80, 82],
            QuantType::Q3K => &[108],
            QuantType::Q6K => &[208],
        }
    }

    struct Draw(u64);

    impl Draw {
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
                for at in halves(kind) {
                    block[*at..at + 2].copy_from_slice(&f16::from_f32(self.number()).to_le_bytes());
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
        /// The fast version gives the definition's bits, whatever the threads and however many rows come together; and
        /// both are what multiplying widened numbers gives, but for the rows' rounding.
        #[test]
        fn packed_products_are_products(rows in 1usize..8, outs in 1usize..20, blocks in 1usize..4, seed in any::<u64>()) {
            let (plain, fast) = (Cpu::new(Simd::Plain, 1).unwrap(), Cpu::new(Simd::detect(), 2).unwrap());
            for kind in QuantType::ALL {
                let mut draw = Draw(seed);
                let cols = blocks * kind.numbers();
                let bytes = draw.blocks(kind, outs * blocks);
                let stored = Blocks::new(&bytes, kind, outs, cols);
                let x: Vec<f32> = (0..rows * cols).map(|_| draw.number()).collect();
                let (mut a, mut b) = (vec![0.0; rows * outs], vec![0.0; rows * outs]);
                plain.quantised(&x, &plain.pack(stored), &mut a);
                fast.quantised(&x, &fast.pack(stored), &mut b);
                prop_assert_eq!(bits(&a), bits(&b), "{:?}", kind);
                let mut alone = vec![0.0; outs];
                fast.quantised(&x[(rows - 1) * cols..], &fast.pack(stored), &mut alone);
                prop_assert_eq!(bits(&a[(rows - 1) * outs..]), bits(&alone));
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

    #[test]
    fn what_is_not_a_number_stays_harmless() {
        let mut q = [1; 32];
        let x = [f32::NAN, f32::INFINITY, 1.0, -1.0];
        assert_eq!(super::super::rounded::round(&x, &mut q[..4]), f32::INFINITY);
        assert_eq!(q[..4], [0; 4]);
        assert_eq!((super::super::rounded::round(&[0.0; 32], &mut q), q), (0.0, [0; 32]));
    }
}
