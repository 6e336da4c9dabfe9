//! How fast matrix products are, beside what the processor could do: `cargo bench -p tsnode-kernels --bench products`,
//! or some formats only: `… -- Bf16 Q4K`.
//!
//! One row is a step of one sequence and is bound by reading weights; many rows are a prompt and are bound by
//! multiplying. Each line is the best of several runs in turns.
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot start ends")]

use half::f16;
use std::hint::black_box;
use std::time::{Duration, Instant};
use tsnode_kernels::cpu::{Cpu, Dtype, Matrix, Packed, Simd};
use tsnode_kernels::probe;
use tsnode_kernels::quant::{Blocks, QuantType};

/// Outputs and columns: the MLP of Llama-3.2-1B.
const SHAPE: (usize, usize) = (8192, 2048);
const EACH: Duration = Duration::from_millis(300);
/// Weights read before any is read again: more than a third-level cache holds.
const TOGETHER: usize = 256 << 20;

/// Matrices of one format, used in turns.
enum BenchMatrix {
    Dense(Dtype, Vec<Vec<u8>>),
    Packed(QuantType, Vec<Packed>),
}

impl BenchMatrix {
    fn name(&self) -> String {
        match self {
            Self::Dense(dtype, _) => format!("{dtype:?}"),
            Self::Packed(kind, _) => format!("{kind:?}"),
        }
    }

    /// Bytes of a matrix as stored in a file.
    fn bytes(&self) -> f64 {
        let numbers = SHAPE.0 * SHAPE.1;
        match self {
            Self::Dense(dtype, _) => (numbers * dtype.bytes()) as f64,
            Self::Packed(kind, _) => (numbers / kind.numbers() * kind.bytes()) as f64,
        }
    }
}

fn main() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let limits = probe::limits(threads).unwrap();
    let (read, multiply) = (limits.read.0 / 1e9, limits.multiply.0 / 1e9);
    println!("{threads} threads; reading {read:.1} GB/s, multiplying {multiply:.0} GFLOP/s");
    println!(
        "{:>6} {:>5} {:>9} {:>9} {:>9} {:>8} {:>8}",
        "format", "rows", "ms", "GB/s", "GFLOP/s", "of read", "of mul."
    );
    let cpu = Cpu::new(Simd::detect(), threads).unwrap();
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    for name in FORMATS.iter().filter(|name| wanted.is_empty() || wanted.iter().any(|w| w == *name)) {
        let stored = make(&cpu, name);
        for rows in [1, 2, 4, 16, 128, 512] {
            let seconds = time(&cpu, &stored, rows);
            let speed = stored.bytes() / seconds / 1e9;
            let flops = 2.0 * (rows * SHAPE.0 * SHAPE.1) as f64 / seconds / 1e9;
            println!(
                "{:>6} {rows:>5} {:>9.3} {speed:>9.1} {flops:>9.1} {:>7.0}% {:>7.0}%",
                stored.name(),
                seconds * 1e3,
                100.0 * speed / read,
                100.0 * flops / multiply,
            );
        }
    }
}

const FORMATS: [&str; 7] = ["F32", "F16", "Bf16", "Q8_0", "Q4_0", "Q4K", "Q6K"];

fn make(cpu: &Cpu, name: &str) -> BenchMatrix {
    let dense = |dtype: Dtype, store: &dyn Fn(f32) -> Vec<u8>| {
        let number = |i: usize| store(((i * 7919) % 1009) as f32 / 1009.0 - 0.5);
        let one: Vec<u8> = (0..SHAPE.0 * SHAPE.1).flat_map(number).collect();
        BenchMatrix::Dense(dtype, vec![one; TOGETHER / (SHAPE.0 * SHAPE.1 * dtype.bytes())])
    };
    let packed = |kind: QuantType| {
        let len = SHAPE.0 * SHAPE.1 / kind.numbers() * kind.bytes();
        // 0x30 as both bytes of a half-precision number is a small one: any block of it has a scale.
        let bytes = vec![0x30; len];
        let one = || cpu.pack(Blocks::new(&bytes, kind, SHAPE.0, SHAPE.1));
        BenchMatrix::Packed(kind, (0..TOGETHER / len).map(|_| one()).collect())
    };
    match name {
        "F32" => dense(Dtype::F32, &|v| v.to_le_bytes().to_vec()),
        "F16" => dense(Dtype::F16, &|v| f16::from_f32(v).to_le_bytes().to_vec()),
        "Bf16" => dense(Dtype::Bf16, &|v| half::bf16::from_f32(v).to_le_bytes().to_vec()),
        "Q8_0" => packed(QuantType::Q8_0),
        "Q4_0" => packed(QuantType::Q4_0),
        "Q4K" => packed(QuantType::Q4K),
        _ => packed(QuantType::Q6K),
    }
}

/// Seconds for a matrix in the fastest round over all; few rows, so that reading is what counts, or many.
fn time(cpu: &Cpu, stored: &BenchMatrix, rows: usize) -> f64 {
    let x: Vec<f32> = (0..rows * SHAPE.1).map(|i| ((i * 31) % 67) as f32 / 67.0 - 0.5).collect();
    let mut out = vec![0.0; rows * SHAPE.0];
    let (started, mut best) = (Instant::now(), f64::INFINITY);
    while best == f64::INFINITY || started.elapsed() < EACH {
        let at = Instant::now();
        let used = match stored {
            BenchMatrix::Dense(dtype, all) => {
                let used = if rows > 16 { &all[..1] } else { all };
                for bytes in used {
                    cpu.linear(black_box(&x), Matrix::new(bytes, *dtype, SHAPE.0, SHAPE.1), &mut out);
                }
                used.len()
            }
            BenchMatrix::Packed(_, all) => {
                let used = if rows > 16 { &all[..1] } else { all };
                used.iter().for_each(|packed| cpu.quantised(black_box(&x), packed, &mut out));
                used.len()
            }
        };
        best = best.min(at.elapsed().as_secs_f64() / used as f64);
    }
    best
}
