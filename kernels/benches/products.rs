//! How fast matrix products are, beside what the processor could do: `cargo bench -p tsnode-kernels --bench products`.
//!
//! One row is a step of one sequence and is bound by reading weights; many rows are a prompt and are bound by
//! multiplying. Each line is the best of several runs in turns.
#![allow(clippy::unwrap_used)] // A benchmark that cannot start ends.

use half::f16;
use std::hint::black_box;
use std::time::{Duration, Instant};
use tsnode_kernels::cpu::{Cpu, Dtype, Matrix, Simd};
use tsnode_kernels::probe;
use tsnode_kernels::quant::{Blocks, QuantType};

/// Outputs and columns: the MLP of Llama-3.2-1B.
const SHAPE: (usize, usize) = (8192, 2048);
const EACH: Duration = Duration::from_millis(300);

enum Stored {
    Dense(Dtype, Vec<u8>),
    Packed(QuantType, tsnode_kernels::cpu::Packed, u64),
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
    for stored in all(&cpu) {
        for rows in [1, 2, 4, 16, 128, 512] {
            let seconds = time(&cpu, &stored, rows);
            let (name, bytes) = match &stored {
                Stored::Dense(dtype, bytes) => (format!("{dtype:?}"), bytes.len() as f64),
                Stored::Packed(kind, _, bytes) => (format!("{kind:?}"), *bytes as f64),
            };
            let (speed, flops) = (bytes / seconds / 1e9, 2.0 * (rows * SHAPE.0 * SHAPE.1) as f64 / seconds / 1e9);
            println!(
                "{name:>6} {rows:>5} {:>9.3} {speed:>9.1} {flops:>9.1} {:>7.0}% {:>7.0}%",
                seconds * 1e3,
                100.0 * speed / read,
                100.0 * flops / multiply,
            );
        }
    }
}

fn all(cpu: &Cpu) -> Vec<Stored> {
    let numbers = SHAPE.0 * SHAPE.1;
    let small: Vec<f32> = (0..numbers).map(|i| ((i * 7919) % 1009) as f32 / 1009.0 - 0.5).collect();
    let dense =
        |dtype, store: &dyn Fn(f32) -> Vec<u8>| Stored::Dense(dtype, small.iter().flat_map(|v| store(*v)).collect());
    let mut all = vec![
        dense(Dtype::F32, &|v| v.to_le_bytes().to_vec()),
        dense(Dtype::F16, &|v| f16::from_f32(v).to_le_bytes().to_vec()),
        dense(Dtype::Bf16, &|v| half::bf16::from_f32(v).to_le_bytes().to_vec()),
    ];
    for kind in [QuantType::Q8_0, QuantType::Q4_0, QuantType::Q4K, QuantType::Q6K] {
        // 0x30 as half precision's bytes is a small number: any block of it has a scale.
        let bytes = vec![0x30; numbers / kind.numbers() * kind.bytes()];
        let packed = cpu.pack(Blocks::new(&bytes, kind, SHAPE.0, SHAPE.1));
        all.push(Stored::Packed(kind, packed, bytes.len() as u64));
    }
    all
}

/// Seconds of the fastest run; every run is of a whole matrix that no cache holds once others were read between.
fn time(cpu: &Cpu, stored: &Stored, rows: usize) -> f64 {
    let x: Vec<f32> = (0..rows * SHAPE.1).map(|i| ((i * 31) % 67) as f32 / 67.0 - 0.5).collect();
    let mut out = vec![0.0; rows * SHAPE.0];
    let (started, mut best) = (Instant::now(), f64::INFINITY);
    while best == f64::INFINITY || started.elapsed() < EACH {
        let at = Instant::now();
        match stored {
            Stored::Dense(dtype, bytes) => {
                cpu.linear(black_box(&x), Matrix::new(bytes, *dtype, SHAPE.0, SHAPE.1), &mut out);
            }
            Stored::Packed(_, packed, _) => cpu.quantised(black_box(&x), packed, &mut out),
        }
        best = best.min(at.elapsed().as_secs_f64());
    }
    best
}
