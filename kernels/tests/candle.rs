//! Products with quantised matrices, against an implementation that is not ours: candle 0.11.1 quantised the fixture's
//! matrices and multiplied by them. `scripts/candle_products` made the fixture, and says how and what is in it:
//! `cargo run --release --manifest-path scripts/candle_products/Cargo.toml`.
//!
//! Tolerances are of the sum of |x · w|, each about four times the largest difference seen. Rounding the rows itself
//! moves products by up to 2e-3 or, in blocks of 256, 4e-3 of it: one that rounds otherwise, or not at all, is noticed.
#![expect(clippy::unwrap_used, reason = "a fixture that cannot be read fails")]

use safetensors::SafeTensors;
use tsnode_kernels::cpu::{Cpu, Simd};
use tsnode_kernels::quant::{Blocks, QuantType};

const FIXTURE: &[u8] = include_bytes!("data/candle-products.safetensors");
/// Products with widened numbers: candle's sums are of single precision, ours here of double. Seen: 4.5e-8.
const WIDENED: f64 = 2e-7;
/// Blocks of 256: candle rounds rows to the very numbers that we do, and only adds up in another order. Seen: 6.4e-8.
const LARGE: f64 = 3e-7;
/// Blocks of 32: the same, but candle keeps the scales of a row's blocks in half precision, up to 1 in 2048 off. Seen:
/// 3.9e-5.
const SMALL: f64 = 1.5e-4;
/// With least values, candle also keeps the sums of a row's blocks in half precision. Seen: 1.1e-4.
const SMALL_LEAST: f64 = 4e-4;
/// Copies of the rows, so that there are enough for the versions that take many at a time.
const COPIES: [usize; 2] = [1, 4];

#[test]
fn widened_numbers_give_candles_products() {
    let file = Fixture::open();
    for kind in kinds() {
        let theirs = file.numbers(&format!("{kind:?}.widened"));
        for (at, (exact, theirs)) in file.exact(kind).iter().zip(theirs).enumerate() {
            exact.expect_near(theirs, WIDENED, &format!("{kind:?}, product {at}"));
        }
    }
}

#[test]
fn quantised_products_are_candles() {
    let file = Fixture::open();
    for kind in kinds() {
        let (blocks, theirs) = (file.blocks(kind), file.numbers(&format!("{kind:?}.quantised")));
        let exact = file.exact(kind);
        for simd in Simd::all() {
            let cpu = Cpu::new(simd, 1).unwrap();
            let packed = cpu.pack(blocks);
            for copies in COPIES {
                let mut ours = vec![0.0; copies * theirs.len()];
                cpu.quantised(&file.x.repeat(copies), &packed, &mut ours);
                for (at, ours) in ours.iter().enumerate() {
                    let i = at % theirs.len();
                    let ours = ExactProduct { sum: f64::from(*ours), ..exact[i] };
                    ours.expect_near(theirs[i], tolerance(kind), &format!("{kind:?} by {simd:?}, product {at}"));
                }
            }
        }
    }
}

/// Those that candle has.
fn kinds() -> impl Iterator<Item = QuantType> {
    QuantType::ALL.into_iter().take_while(|kind| *kind != QuantType::Iq4Nl)
}

fn tolerance(kind: QuantType) -> f64 {
    match kind {
        QuantType::Q4_0 | QuantType::Q5_0 | QuantType::Q8_0 => SMALL,
        QuantType::Q4_1 | QuantType::Q5_1 => SMALL_LEAST,
        _ => LARGE,
    }
}

/// What candle wrote.
struct Fixture {
    file: SafeTensors<'static>,
    x: Vec<f32>,
    cols: usize,
}

impl Fixture {
    fn open() -> Self {
        let file = SafeTensors::deserialize(FIXTURE).unwrap();
        let x = file.tensor("x").unwrap();
        Self { x: numbers(x.data()), cols: x.shape()[1], file }
    }

    fn numbers(&self, name: &str) -> Vec<f32> {
        numbers(self.file.tensor(name).unwrap().data())
    }

    fn blocks(&self, kind: QuantType) -> Blocks<'static> {
        let bytes = self.file.tensor(&format!("{kind:?}.blocks")).unwrap().data();
        let rows = bytes.len() / kind.bytes() * kind.numbers() / self.cols;
        Blocks::new(bytes, kind, rows, self.cols)
    }

    /// Products of `x` with widened blocks, `[row][output]`.
    fn exact(&self, kind: QuantType) -> Vec<ExactProduct> {
        let blocks = self.blocks(kind);
        let mut w = vec![0.0; blocks.rows() * self.cols];
        for (index, out) in w.chunks_exact_mut(self.cols).enumerate() {
            blocks.widen_row(index, out);
        }
        let rows = self.x.chunks_exact(self.cols);
        rows.flat_map(|x| w.chunks_exact(self.cols).map(|w| ExactProduct::of(x, w))).collect()
    }
}

fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

#[derive(Clone, Copy)]
struct ExactProduct {
    sum: f64,
    /// The sum of |x · w|.
    magnitude: f64,
}

impl ExactProduct {
    fn of(x: &[f32], w: &[f32]) -> Self {
        let terms = || x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
        Self { sum: terms().sum(), magnitude: terms().map(f64::abs).sum() }
    }

    fn expect_near(&self, theirs: f32, tolerance: f64, what: &str) {
        let off = (self.sum - f64::from(theirs)).abs() / self.magnitude;
        // Written so that what is not a number fails.
        assert!(off <= tolerance, "{what}: {}, not {theirs}: {off:.2e} of the magnitude", self.sum);
    }
}
