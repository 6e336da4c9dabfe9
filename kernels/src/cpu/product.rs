//! Products of some rows with one matrix or several: rows are made ready once, and work is handed out once.

use super::{
    Dtype, Matrix, PARALLEL_FROM, Packed, Simd,
    dense::{self, DenseFormats, DenseRows, Outputs},
    quantised,
    rounded::Rounded,
    team::Team,
};
use std::cell::RefCell;
use std::ops::Range;

/// A matrix that rows are multiplied by: `[output][input]`.
#[derive(Clone, Copy)]
pub enum Operand<'a> {
    /// As it lies in a file.
    Dense(Matrix<'a>),
    /// Quantised, laid out for products: rows are rounded to 8 bits first.
    Packed(&'a Packed),
}

thread_local! {
    /// Rounded rows, of each way of rounding some, kept from step to step.
    static ROUNDED: RefCell<Vec<Rounded>> = const { RefCell::new(Vec::new()) };
}

impl Operand<'_> {
    /// Numbers of a row.
    #[must_use]
    pub fn cols(&self) -> usize {
        match self {
            Self::Dense(matrix) => matrix.cols,
            Self::Packed(packed) => packed.cols,
        }
    }

    /// Outputs.
    #[must_use]
    pub fn outputs(&self) -> usize {
        match self {
            Self::Dense(matrix) => matrix.rows,
            Self::Packed(packed) => packed.rows,
        }
    }

    /// How a dense matrix's numbers are stored.
    fn dense(&self) -> Option<Dtype> {
        match self {
            Self::Dense(matrix) => Some(matrix.dtype),
            Self::Packed(_) => None,
        }
    }
}

/// What is done to outputs of several matrices when a thread has them: all rows' numbers in a range of outputs.
pub(super) type Then<'a> = &'a (dyn Fn(&[ProductTask<'_>], Range<usize>) + Sync);

/// `out[r][o] = x[r] · w[o]` for every matrix and its outputs. `then` is called with the
/// first one's outputs of a part: for matrices of one kind and as many outputs it is the same for all.
///
/// # Panics
/// When sizes do not fit together.
pub(super) fn product<const N: usize>(
    simd: Simd,
    team: &Team,
    x: &[f32],
    each: [(Operand<'_>, &mut [f32]); N],
    then: Option<Then<'_>>,
) {
    let cols = each.first().map_or(0, |(w, _)| w.cols());
    let outputs: usize = each.iter().map(|(w, _)| w.outputs()).sum();
    let rows = x.len() / cols.max(1);
    let fit = |(w, out): &(Operand<'_>, &mut [f32])| w.cols() == cols && out.len() == rows * w.outputs();
    assert!(x.len() == rows * cols && each.iter().all(fit), "sizes of products");
    if rows == 0 {
        // A step in the middle of a prompt asks for no logits; and where there is nothing to add up, that is zero.
        return each.into_iter().for_each(|(_, out)| out.fill(0.0));
    }
    let team = Some(team).filter(|_| rows * outputs * cols >= PARALLEL_FROM);
    let threads = team.map_or(1, Team::threads);
    let wanted = DenseFormats::by(each.iter().filter_map(|(w, _)| w.dense()));
    ROUNDED.with_borrow_mut(|rounded| {
        let mut ways = 0;
        let round = each.each_ref().map(|(w, _)| match w {
            Operand::Dense(_) => None,
            Operand::Packed(w) => Some(fill(simd, team, x, w, rounded, &mut ways)),
        });
        dense::with_laid(simd, team, x, cols, wanted, |laid| {
            let mut round = round.into_iter().flatten();
            let tasks = each.map(|(w, out)| {
                let (outputs, out) = (w.outputs(), Outputs::new(out, rows, w.outputs()));
                match w {
                    Operand::Dense(w) => ProductTask {
                        simd,
                        by: ProductInputs::Dense(laid, w),
                        out,
                        width: laid.width(outputs, threads),
                    },
                    Operand::Packed(w) => {
                        // Every packed matrix has its rows' place.
                        let x = &rounded[round.next().unwrap_or(0)];
                        ProductTask {
                            simd,
                            by: ProductInputs::Packed(x, w),
                            out,
                            width: quantised::width(outputs, threads),
                        }
                    }
                }
            });
            let part = |part: usize| {
                for task in &tasks {
                    task.run(task.range(part));
                }
                if let Some(then) = then {
                    then(&tasks, tasks[0].range(part));
                }
            };
            let parts = tasks.iter().map(ProductTask::parts).max().unwrap_or(0);
            match team {
                Some(team) => team.share(parts, part),
                None => (0..parts).for_each(part),
            }
        });
    });
}

/// Rounds rows as products with `w` want them, unless that was done for the matrices before, and says where they are.
fn fill(simd: Simd, team: Option<&Team>, x: &[f32], w: &Packed, all: &mut Vec<Rounded>, ways: &mut usize) -> usize {
    if let Some(there) = all[..*ways].iter().position(|rounded| rounded.is_for(w)) {
        return there;
    }
    if all.len() == *ways {
        all.push(Rounded::default());
    }
    all[*ways].fill(simd, team, w.layout, w.cols, x);
    *ways += 1;
    *ways - 1
}

/// A product that is shared out by ranges of outputs.
pub(super) struct ProductTask<'a> {
    simd: Simd,
    by: ProductInputs<'a>,
    out: Outputs<'a>,
    /// Outputs of a part.
    width: usize,
}

enum ProductInputs<'a> {
    Dense(&'a DenseRows<'a>, Matrix<'a>),
    Packed(&'a Rounded, &'a Packed),
}

impl<'a> ProductTask<'a> {
    /// Its outputs.
    pub fn out(&self) -> &Outputs<'a> {
        &self.out
    }

    fn parts(&self) -> usize {
        self.out.width().div_ceil(self.width)
    }

    /// Outputs of a part; none past the last.
    fn range(&self, part: usize) -> Range<usize> {
        let end = self.out.width();
        end.min(part * self.width)..end.min((part + 1) * self.width)
    }

    fn run(&self, range: Range<usize>) {
        match &self.by {
            _ if range.is_empty() => {}
            ProductInputs::Dense(laid, w) => {
                laid.panel(self.simd, w.slice(range.start, range.end), &self.out, range.start)
            }
            ProductInputs::Packed(rounded, w) => quantised::outputs(self.simd, rounded, w, range, &self.out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Cpu, Dtype, Gate};
    use super::*;
    use crate::quant::{Blocks, QuantType};

    const COLS: usize = 512;

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 37 + seed * 11) % 101) as f32 / 50.0 - 1.0).collect()
    }

    fn bits(x: &[f32]) -> Vec<u32> {
        x.iter().map(|x| x.to_bits()).collect()
    }

    /// Bytes of a quantised matrix whose scales are all a small number.
    fn quantised(kind: QuantType, outputs: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> =
            (0..outputs * COLS / kind.numbers() * kind.bytes()).map(|i| (i * 73 % 251) as u8).collect();
        for block in bytes.chunks_exact_mut(kind.bytes()) {
            for at in kind.scales() {
                block[*at..at + 2].copy_from_slice(&half::f16::from_f32(0.01).to_le_bytes());
            }
        }
        bytes
    }

    /// Matrices of any kinds and sizes give together what each gives alone, for one row and for many, and whatever the threads.
    #[test]
    fn together_is_as_alone() {
        let dense = numbers(200 * COLS, 3);
        let dense = Matrix::new(bytemuck::cast_slice(&dense), Dtype::F32, 200, COLS);
        let kinds = [(QuantType::Q4K, 130), (QuantType::Q6K, 33), (QuantType::Q8_0, 64)];
        let stored = kinds.map(|(kind, outputs)| quantised(kind, outputs));
        for simd in Simd::all() {
            let cpu = Cpu::new(simd, 2).unwrap();
            let mut stored = stored.iter().zip(kinds);
            let packed: [Packed; 3] = std::array::from_fn(|_| {
                let (bytes, (kind, outputs)) = stored.next().unwrap();
                cpu.pack(Blocks::new(bytes, kind, outputs, COLS))
            });
            let all = [
                Operand::Dense(dense),
                Operand::Packed(&packed[0]),
                Operand::Packed(&packed[1]),
                Operand::Packed(&packed[2]),
            ];
            for rows in [1, 2, 5, 37] {
                let x = numbers(rows * COLS, rows);
                let mut together = all.map(|w| vec![f32::NAN; rows * w.outputs()]);
                let mut outs = together.iter_mut();
                cpu.products(&x, all.map(|w| (w, &mut outs.next().unwrap()[..])));
                for (w, together) in all.iter().zip(&together) {
                    let mut alone = vec![f32::NAN; together.len()];
                    cpu.products(&x, [(*w, &mut alone[..])]);
                    assert_eq!(bits(&alone), bits(together), "{simd:?}, {rows} rows");
                }
            }
        }
    }

    /// Gating as outputs come gives what gating all of them after gives; also where the two are cut into other parts.
    #[test]
    fn gated_at_once_is_gated_after() {
        let outputs = 300;
        let [one, two] = [1, 2].map(|seed| numbers(outputs * COLS, seed));
        let [one, two] = [&one, &two].map(|w| Matrix::new(bytemuck::cast_slice(w), Dtype::F32, outputs, COLS));
        let [four, six] = [QuantType::Q4K, QuantType::Q6K].map(|kind| (kind, quantised(kind, outputs)));
        for simd in Simd::all() {
            let cpu = Cpu::new(simd, 2).unwrap();
            let [four, six] = [&four, &six].map(|(kind, bytes)| cpu.pack(Blocks::new(bytes, *kind, outputs, COLS)));
            let (dense, packed) = ([one, two].map(Operand::Dense), [Operand::Packed(&four), Operand::Packed(&six)]);
            for [gate, up] in [dense, packed, [dense[0], packed[1]]] {
                for (rows, act) in [(1, Gate::Silu), (1, Gate::Gelu), (33, Gate::Silu)] {
                    let x = numbers(rows * COLS, 5);
                    let [mut a, mut b, mut up_a, mut up_b] = [(); 4].map(|()| vec![f32::NAN; rows * outputs]);
                    cpu.gated(&x, (gate, &mut a), (up, &mut up_a), act);
                    cpu.products(&x, [(gate, &mut b[..]), (up, &mut up_b[..])]);
                    cpu.gate_mul(act, &mut b, &up_b);
                    assert_eq!((bits(&a), bits(&up_a)), (bits(&b), bits(&up_b)), "{simd:?}, {rows} rows, {act:?}");
                }
            }
        }
    }
}
