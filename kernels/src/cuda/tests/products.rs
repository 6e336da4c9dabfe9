//! Products of every form, of one row, a few and many, against sums in double precision.

use super::{Lcg, machines, poisoned, read, with};
use crate::{
    cpu::{Cpu, Dtype, Simd},
    cuda::{
        machine::{GpuMemory, Machine, Queue},
        mmq::{MmqCut, ROUNDED},
        ops::{GpuRows, Kind, Ops, Out, kind_for},
        weights::{Form, GpuMatrix},
    },
    quant::{Blocks, QuantType},
    weights::TensorData,
};
use half::{bf16, f16};
use std::sync::Arc;

/// A matrix as it lies in a file, widened, and on a machine.
pub(super) struct Case {
    pub form: Form,
    pub quant: Option<QuantType>,
    bytes: Vec<u8>,
    wide: Vec<f32>,
    pub outs: usize,
    pub cols: usize,
}

impl Case {
    pub fn dense(draw: &mut Lcg, dtype: Dtype, outs: usize, cols: usize) -> Self {
        let numbers = draw.numbers(outs * cols);
        let (form, bytes): (_, Vec<u8>) = match dtype {
            Dtype::F32 => (Form::F32, numbers.iter().flat_map(|x| x.to_le_bytes()).collect()),
            Dtype::F16 => (Form::F16, numbers.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect()),
            Dtype::Bf16 => (Form::Bf16, numbers.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect()),
        };
        let wide = (0..outs * cols).map(|i| dtype.get(&bytes, i)).collect();
        Self { form, quant: None, bytes, wide, outs, cols }
    }

    pub fn quantised(draw: &mut Lcg, kind: QuantType, outs: usize, cols: usize) -> Self {
        let count = outs * cols / kind.numbers();
        let mut bytes: Vec<u8> = (0..count * kind.bytes()).map(|_| draw.next() as u8).collect();
        for block in bytes.chunks_exact_mut(kind.bytes()) {
            for at in kind.scales() {
                block[*at..at + 2].copy_from_slice(&f16::from_f32(draw.number()).to_le_bytes());
            }
            if kind == QuantType::Mxfp4 {
                block[0] = 116 + block[0] % 12;
            }
            if kind == QuantType::Iq1M {
                block[55] = block[55] & 0x8f | 0x30;
            }
        }
        let blocks = Blocks::new(&bytes, kind, outs, cols);
        let mut wide = vec![0.0; outs * cols];
        (0..outs).for_each(|o| blocks.widen_row(o, &mut wide[o * cols..][..cols]));
        let form = Form::of(&TensorData::Quantised(blocks));
        Self { form, quant: Some(kind), bytes, wide, outs, cols }
    }

    fn on(&self, machine: &Arc<dyn Machine>) -> GpuMatrix {
        GpuMatrix::of_view(machine, &self.view()).unwrap()
    }

    pub fn view(&self) -> TensorData<'_> {
        match self.quant {
            Some(kind) => TensorData::Quantised(Blocks::new(&self.bytes, kind, self.outs, self.cols)),
            None => {
                let dtype = [Dtype::F32, Dtype::F16, Dtype::Bf16][self.form as usize];
                TensorData::Dense(crate::cpu::Matrix::new(&self.bytes, dtype, self.outs, self.cols))
            }
        }
    }

    /// What the processor makes of quantised weights and a rounded row.
    pub fn rounded_product(&self, x: &[f32]) -> Option<Vec<f32>> {
        let cpu = Cpu::new(Simd::detect(), 1).unwrap();
        let packed = cpu.pack(Blocks::new(&self.bytes, self.quant?, self.outs, self.cols));
        let mut out = vec![0.0; x.len() / self.cols * self.outs];
        cpu.quantised(x, &packed, &mut out);
        Some(out)
    }

    /// The exact sum, and the sum of sizes that errors are measured by.
    pub fn exact(&self, x: &[f32], row: usize, output: usize) -> (f64, f64) {
        let (x, w) = (&x[row * self.cols..][..self.cols], &self.wide[output * self.cols..][..self.cols]);
        let products = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
        (products.clone().sum(), products.map(f64::abs).sum())
    }
}

fn check(machine: &Arc<dyn Machine>, case: &Case, rows: usize, draw: &mut Lcg) {
    let Case { outs, cols, form, .. } = *case;
    let mut ops = Ops::new(machine.clone());
    let x = draw.numbers(rows * cols);
    let matrix = case.on(machine);
    // Results lie in some columns of wider rows: the others must stay.
    let (stride, from) = (outs + 5, 3);
    let out = poisoned(machine, rows * stride);
    let place = Out { at: out.at() + 4 * from as u64, stride };
    let input = GpuRows { at: with(machine, &x).at(), kind: Kind::F32 };
    let kept = with(machine, &x);
    let input = GpuRows { at: kept.at(), ..input };
    ops.products(input, rows, &[(&matrix, place)]).unwrap();
    let found = read(machine, &out, rows * stride);
    let widened = case.quant.is_some() && form == Form::F16;
    let rounded = if rows <= ROUNDED && !widened { case.rounded_product(&x) } else { None };
    // Sums in single precision; rows of many are rounded to 16 bits, and quantised weights to half precision.
    let tolerance = match kind_for(form, rows) {
        Kind::F32 if widened => 6e-4,
        Kind::F32 | Kind::Rounded32 | Kind::Rounded256 => 2e-6,
        Kind::F16 => 1.5e-3,
        Kind::Bf16 => 5e-3,
    };
    for row in 0..rows {
        for column in 0..stride {
            let found = f64::from(found[row * stride + column]);
            let Some(output) = column.checked_sub(from).filter(|o| *o < outs) else {
                assert!(found.is_nan(), "{form:?} {rows} x {outs} x {cols}: column {column} was written");
                continue;
            };
            let (mut wanted, size) = case.exact(&x, row, output);
            if let Some(rounded) = &rounded {
                wanted = f64::from(rounded[row * outs + output]);
            }
            let off = (found - wanted).abs() / size.max(1e-30);
            assert!(off <= tolerance, "{form:?} {rows} x {outs} x {cols}, {row}, {output}: {found} for {wanted}");
        }
    }
}

#[test]
fn dense_products_are_sums_of_products() {
    for machine in machines() {
        let mut draw = Lcg(5);
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            for (outs, cols) in [(1, 8), (67, 72), (130, 1040), (9, 2064)] {
                let case = Case::dense(&mut draw, dtype, outs, cols);
                for rows in [1, 3, 8, 9, 33, 70, 131] {
                    check(&machine, &case, rows, &mut draw);
                }
            }
        }
    }
}

#[test]
fn quantised_products_of_rounded_rows_are_the_processors_and_of_many_those_of_widened_weights() {
    for machine in machines() {
        let mut draw = Lcg(6);
        for kind in QuantType::ALL {
            for (outs, blocks) in [(5, 1), (67, 3), (130, 5)] {
                let cols = blocks * kind.numbers();
                let case = Case::quantised(&mut draw, kind, outs, cols);
                for rows in [1, 2, 8, 9, 70, 131] {
                    check(&machine, &case, rows, &mut draw);
                }
            }
        }
    }
}

const BY_BYTES: [QuantType; 4] = [QuantType::Q4_0, QuantType::Q8_0, QuantType::Q4K, QuantType::Q6K];

#[test]
fn every_count_of_rows_up_to_the_last_that_is_rounded_is_the_processors() {
    for machine in machines() {
        let mut draw = Lcg(10);
        for kind in BY_BYTES {
            // Steps that blocks do not fill, parts without any, and outputs that fill no sixteen.
            let case = Case::quantised(&mut draw, kind, 21, 9 * kind.numbers());
            (1..=ROUNDED).for_each(|rows| check(&machine, &case, rows, &mut draw));
        }
    }
}

/// What the machine makes of rows, `[row][output]`, with the matrix as a part of one of `all` outputs.
fn product(machine: &Arc<dyn Machine>, case: &Case, all: usize, x: &[f32]) -> Vec<f32> {
    let (rows, matrix) = (x.len() / case.cols, case.on(machine).part_of(all));
    let (input, out) = (with(machine, x), poisoned(machine, rows * case.outs));
    let place = Out { at: out.at(), stride: case.outs };
    Ops::new(machine.clone()).products(GpuRows { at: input.at(), kind: Kind::F32 }, rows, &[(&matrix, place)]).unwrap();
    read(machine, &out, rows * case.outs)
}

#[test]
fn bits_of_a_row_are_the_same_whatever_rows_are_beside_it() {
    for machine in machines() {
        let mut draw = Lcg(11);
        for kind in BY_BYTES {
            for (outs, blocks) in [(40, 1), (19, 10), (130, 17)] {
                let case = Case::quantised(&mut draw, kind, outs, blocks * kind.numbers());
                let x = draw.numbers(ROUNDED * case.cols);
                let all = product(&machine, &case, outs, &x);
                for (from, to) in [(0, 1), (63, 64), (3, 5), (9, 13), (7, 16), (20, 37), (5, 54)] {
                    let some = product(&machine, &case, outs, &x[from * case.cols..to * case.cols]);
                    assert!(some.iter().all(|x| x.is_finite()));
                    assert_eq!(some, all[from * outs..to * outs], "{kind:?} {outs} x {blocks}, rows {from} to {to}");
                }
            }
        }
    }
}

#[test]
fn bits_of_a_product_with_whole_columns_are_the_processors() {
    for machine in machines() {
        let mut draw = Lcg(12);
        for kind in BY_BYTES {
            // More steps than there is room for at a time, the last of which small blocks do not fill.
            let blocks = if kind.numbers() == 32 { 43 } else { 11 };
            let case = Case::quantised(&mut draw, kind, 37, blocks * kind.numbers());
            for rows in [1, 2, 4, 6, 30, 64] {
                let x = draw.numbers(rows * case.cols);
                // As a part of a matrix with so many outputs that its columns are not cut.
                assert_eq!(product(&machine, &case, 1 << 17, &x), case.rounded_product(&x).unwrap(), "{kind:?} {rows}");
            }
        }
    }
}

/// Where a GPU has least, kernels have 99 KiB of shared memory.
#[test]
fn shared_memory_of_products_of_rounded_rows_is_what_every_gpu_has() {
    for machine in machines() {
        for kind in BY_BYTES {
            // As many steps for each part as there is room for, and more.
            let case = Case::quantised(&mut Lcg(13), kind, 3, 8 << 10);
            for (all, processors) in [(3, 1), (3, 200), (1 << 17, 1), (1 << 17, 200)] {
                let matrix = case.on(&machine).part_of(all);
                for rows in 1..=ROUNDED {
                    let cut = MmqCut::of(&matrix, rows, processors);
                    assert!(cut.shared <= 99 << 10 && cut.threads() <= 256, "{kind:?} {rows} {cut:?}");
                    assert!(cut.tiles * 8 >= rows && cut.here * cut.tiles <= 8, "{kind:?} {rows} {cut:?}");
                    assert!(cut.parts <= 8 && cut.across() * cut.here == cut.parts, "{kind:?} {rows} {cut:?}");
                }
            }
        }
    }
}

/// A product large enough for tiles of 128 rows and outputs on a machine of two processors.
#[test]
fn large_tiles_give_what_small_ones_do() {
    for machine in machines() {
        let mut draw = Lcg(7);
        check(&machine, &Case::dense(&mut draw, Dtype::Bf16, 300, 200), 200, &mut draw);
        check(&machine, &Case::quantised(&mut draw, QuantType::Q4K, 260, 256), 150, &mut draw);
        check(&machine, &Case::quantised(&mut draw, QuantType::Q6K, 260, 512), 150, &mut draw);
        check(&machine, &Case::quantised(&mut draw, QuantType::Q4_0, 260, 96), 150, &mut draw);
        check(&machine, &Case::quantised(&mut draw, QuantType::Q8_0, 260, 96), 150, &mut draw);
    }
}

/// From 256 rows on quantised weights are widened for a library, where there is one: in the emulator there is.
#[test]
fn products_of_hundreds_of_rows_with_widened_weights_are_those_of_our_own_kernels() {
    for machine in machines() {
        let mut draw = Lcg(9);
        for (kind, cols) in
            [(QuantType::Q4_0, 96), (QuantType::Q8_0, 160), (QuantType::Q4K, 256), (QuantType::Q6K, 512)]
        {
            let case = Case::quantised(&mut draw, kind, 67, cols);
            check(&machine, &case, 256, &mut draw);
            check(&machine, &case, 259, &mut draw);
        }
    }
}

#[test]
fn rows_of_a_table_are_its_numbers() {
    for machine in machines() {
        let mut draw = Lcg(8);
        let mut cases = vec![Case::dense(&mut draw, Dtype::Bf16, 40, 72)];
        let kinds = [QuantType::Q4_0, QuantType::Q8_0, QuantType::Q4K, QuantType::Q6K];
        cases.extend(kinds.map(|kind| Case::quantised(&mut draw, kind, 40, 2 * kind.numbers())));
        for case in cases {
            let tokens = [3u32, 39, 0, 17];
            let table = case.on(&machine);
            let at = GpuMemory::of(&machine, bytemuck::cast_slice(&tokens)).unwrap();
            let out = poisoned(&machine, 4 * case.cols);
            Ops::new(machine.clone()).embed(&table, at.at(), 4, 2.0, out.at()).unwrap();
            let found = read(&machine, &out, 4 * case.cols);
            for (row, token) in found.chunks_exact(case.cols).zip(tokens) {
                for (found, wanted) in row.iter().zip(&case.wide[token as usize * case.cols..]) {
                    assert!((found - 2.0 * wanted).abs() <= 1e-6 * wanted.abs(), "{:?}: {found} {wanted}", case.form);
                }
            }
        }
        machine.finish().unwrap();
        let _ = Queue::Side;
    }
}
