//! Every instruction set gives the plain kernels' bits, for any rows and threads.

use super::*;
use half::{bf16, f16};
use proptest::prelude::*;

fn stored(values: &[f32], dtype: Dtype) -> Vec<u8> {
    values
        .iter()
        .flat_map(|v| match dtype {
            Dtype::F32 => v.to_le_bytes().to_vec(),
            Dtype::F16 => f16::from_f32(*v).to_le_bytes().to_vec(),
            Dtype::Bf16 => bf16::from_f32(*v).to_le_bytes().to_vec(),
        })
        .collect()
}

/// The definition with every faster version.
fn pairs() -> Vec<[Cpu; 2]> {
    let fast = Simd::all().into_iter().filter(|simd| *simd != Simd::Plain);
    fast.map(|simd| [Simd::Plain, simd].map(|simd| Cpu::new(simd, 1).unwrap())).collect()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

proptest! {
    /// Plain and fast agree to the bit, for every number of rows, outputs and columns, and every storage.
    #[test]
    fn fast_is_plain(
        rows in 1usize..40, outs in 1usize..21, cols in 1usize..140, stride in 1usize..6, seed in any::<u64>(),
    ) {
        for [plain, fast] in pairs() {
            let mut n = seed;
            let mut next = || { n = n.wrapping_mul(6364136223846793005).wrapping_add(1); (n >> 40) as f32 / 8e6 - 1.0 };
            let x: Vec<f32> = (0..rows * cols).map(|_| next()).collect();
            let w: Vec<f32> = (0..outs * cols).map(|_| next()).collect();
            for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
                let w = stored(&w, dtype);
                let w = Matrix::new(&w, dtype, outs, cols);
                let (mut a, mut b) = (vec![0.0; rows * outs], vec![0.0; rows * outs]);
                plain.linear(&x, w, &mut a);
                fast.linear(&x, w, &mut b);
                prop_assert_eq!(bits(&a), bits(&b));
                let (mut a, mut b) = (vec![0.0; rows * (outs + 1)], vec![0.0; rows * (outs + 1)]);
                plain.scores(&x, w, outs + 1, &mut a);
                fast.scores(&x, w, outs + 1, &mut b);
                prop_assert_eq!(bits(&a), bits(&b));
                let p: Vec<f32> = (0..outs).map(|_| next()).collect();
                let heads = outs / stride.min(outs);
                let (mut a, mut b) = (vec![0.5; heads * cols], vec![0.5; heads * cols]);
                let v = w.slice(0, stride.min(outs));
                plain.weighted_rows(&p, stride.min(outs), v, &mut a);
                fast.weighted_rows(&p, stride.min(outs), v, &mut b);
                prop_assert_eq!(bits(&a), bits(&b));
                let (mut a, mut b) = (vec![0.0; outs * cols], vec![0.0; outs * cols]);
                plain.widen(w, &mut a);
                fast.widen(w, &mut b);
                prop_assert_eq!(bits(&a), bits(&b));
            }
            let (mut a, mut b) = (x.clone(), x.clone());
            plain.softmax(&mut a);
            fast.softmax(&mut b);
            prop_assert_eq!(bits(&a), bits(&b));
            // Gates from far below what has a power of e to far above.
            for act in [Gate::Silu, Gate::Gelu] {
                a.iter_mut().zip(&x).for_each(|(a, x)| *a = x * 120.0);
                b.copy_from_slice(&a);
                plain.gate_mul(act, &mut a, &x);
                fast.gate_mul(act, &mut b, &x);
                prop_assert_eq!(bits(&a), bits(&b));
            }
        }
    }

    /// What attention of many rows is made of gives the definition's bits, which are those of single rows.
    #[test]
    fn many_rows_attend_as_single_ones_do(
        rows in 1usize..14, groups in 1usize..4, wide in 1usize..6, seed in any::<u64>(),
    ) {
        let (dim, tokens) = (16 * wide, KEYS * groups);
        let mut n = seed;
        let mut next = || { n = n.wrapping_mul(6364136223846793005).wrapping_add(1); (n >> 40) as f32 / 8e6 - 1.0 };
        let x: Vec<f32> = (0..rows * dim).map(|_| next()).collect();
        let w: Vec<f32> = (0..tokens * dim).map(|_| next()).collect();
        let bytes = stored(&w, Dtype::F32);
        let matrix = Matrix::new(&bytes, Dtype::F32, tokens, dim);
        let q: Vec<&[f32]> = x.chunks_exact(dim).collect();
        for [plain, fast] in pairs() {
            let stride = tokens + 16;
            let mut a = vec![0.0; rows * stride];
            plain.scores(&x, matrix, stride, &mut a);
            a.iter_mut().for_each(|a| *a *= 0.125);
            let mut beside = vec![0.0; tokens * dim];
            for (keys, out) in w.chunks_exact(KEYS * dim).zip(beside.chunks_exact_mut(KEYS * dim)) {
                fast.beside(keys, dim, out);
            }
            for cpu in [&plain, &fast] {
                let mut b = vec![0.0; rows * stride];
                cpu.chunk_scores(&q, dim, &beside, 0.125, stride, &mut b);
                prop_assert_eq!(bits(&a), bits(&b));
            }
            let (mut c, mut d) = (x.clone(), x.clone());
            plain.weighted_rows(&a, stride, matrix, &mut c);
            fast.chunk_mix(&a, stride, &w, dim, &mut d);
            prop_assert_eq!(bits(&c), bits(&d));
        }
    }
}

#[test]
fn a_dense_product_of_no_rows_is_none() {
    for cpu in Simd::all().into_iter().map(|simd| Cpu::new(simd, 2).unwrap()) {
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            let w = stored(&[1.0; 12], dtype);
            cpu.linear(&[], Matrix::new(&w, dtype, 3, 4), &mut []);
        }
    }
}

#[test]
fn a_row_does_not_know_its_neighbours_nor_the_threads() {
    let (rows, outs, cols) = (7, 640, 512);
    let x: Vec<f32> = (0..rows * cols).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    let w: Vec<f32> = (0..outs * cols).map(|i| ((i * 53 % 97) as f32 - 48.0) / 48.0).collect();
    let w = stored(&w, Dtype::Bf16);
    let w = Matrix::new(&w, Dtype::Bf16, outs, cols);
    let (one, many) = (Cpu::new(Simd::detect(), 1).unwrap(), Cpu::new(Simd::detect(), 3).unwrap());
    let (mut together, mut shared) = (vec![0.0; rows * outs], vec![0.0; rows * outs]);
    one.linear(&x, w, &mut together);
    many.linear(&x, w, &mut shared);
    assert_eq!(bits(&together), bits(&shared));
    for r in 0..rows {
        let mut alone = vec![0.0; outs];
        many.linear(&x[r * cols..][..cols], w, &mut alone);
        assert_eq!(bits(&alone), bits(&together[r * outs..][..outs]), "row {r}");
    }
}

#[test]
fn exp_is_close_to_the_real_one() {
    for i in -8700..200 {
        let x = i as f32 / 100.0;
        let (ours, real) = (plain::exp(x) as f64, (x as f64).exp());
        assert!((ours - real).abs() <= 2e-7 * real + 1e-38, "exp({x}) = {ours}, not {real}");
    }
    assert_eq!(plain::exp(f32::NEG_INFINITY), 0.0);
    assert_eq!(plain::exp(0.0), 1.0);
}
