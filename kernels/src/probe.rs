//! Plan flow 1: measures what the processor does: matrix products and reading memory, in about a tenth of a second.

use crate::{
    cpu::{Cpu, Dtype, Matrix, Simd},
    memory::Memory,
};
use std::hint::black_box;
use std::time::{Duration, Instant};
use tsnode_protocol::{BytesPerSecond, FlopsPerSecond};

/// Time given to each measurement at a peer's first start: some dozens of runs, of which the best counts.
const EACH: Duration = Duration::from_millis(40);
/// Time given to each limit.
const LIMIT: Duration = Duration::from_millis(150);
/// Memory read for bandwidth: more than the caches of most processors hold.
const READ_BYTES: usize = 64 << 20;
/// Memory read for the limit.
const LIMIT_BYTES: usize = 512 << 20;

/// Measured speeds of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Matrix products of many rows.
    pub flops: FlopsPerSecond,
    /// Reading weights for one row.
    pub bandwidth: BytesPerSecond,
}

/// Measures the processor with `threads` threads, by the very kernels that serve.
///
/// # Errors
/// When the system gives no threads.
pub fn measure(threads: usize) -> std::io::Result<Speed> {
    let cpu = Cpu::new(Simd::detect(), threads.max(1))?;
    Ok(Speed { flops: flops(&cpu), bandwidth: bandwidth(&cpu) })
}

fn flops(cpu: &Cpu) -> FlopsPerSecond {
    let (rows, width) = (64, 512);
    let weights = vec![0u8; width * width * 2];
    let weights = Matrix::new(&weights, Dtype::Bf16, width, width);
    let x = vec![1.0; rows * width];
    let mut out = vec![0.0; rows * width];
    let each = (2 * rows * width * width) as f64;
    FlopsPerSecond(each / best_of(EACH, || cpu.linear(black_box(&x), weights, &mut out)))
}

fn bandwidth(cpu: &Cpu) -> BytesPerSecond {
    let width = 4096;
    let rows = READ_BYTES / (2 * width);
    // Written, so that the pages exist and are not all the same zero page.
    let weights = vec![1u8; READ_BYTES];
    let weights = Matrix::new(&weights, Dtype::Bf16, rows, width);
    let x = vec![1.0; width];
    let mut out = vec![0.0; rows];
    BytesPerSecond(READ_BYTES as f64 / best_of(EACH, || cpu.linear(black_box(&x), weights, &mut out)))
}

/// What the processor could do at most: reading memory and multiplying, with nothing else in the way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProcessorLimits {
    /// Reading memory that no cache holds.
    pub read: BytesPerSecond,
    /// Single-precision fused multiply-adds on registers, two operations each.
    pub multiply: FlopsPerSecond,
}

/// Measures the limits with `threads` threads, in about a second.
///
/// # Errors
/// When the system gives no threads.
pub fn limits(threads: usize) -> std::io::Result<ProcessorLimits> {
    let limiter = Limiter::new(threads)?;
    Ok(ProcessorLimits { read: limiter.read(), multiply: limiter.multiply() })
}

/// What limits are measured with, as often as they are asked for: where memory is shared with other machines they are others
/// a second later.
pub struct Limiter {
    cpu: Cpu,
    threads: usize,
    memory: Memory,
}

impl Limiter {
    /// With so many threads, one at least.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let threads = threads.max(1);
        let mut memory = Memory::zeroed(LIMIT_BYTES);
        memory.fill(1);
        Ok(Self { cpu: Cpu::new(Simd::detect(), threads)?, threads, memory })
    }

    /// Reading memory now.
    #[must_use]
    pub fn read(&self) -> BytesPerSecond {
        let seconds = best_of(LIMIT, || {
            black_box(self.cpu.read_all(black_box(bytemuck::cast_slice(&self.memory))));
        });
        BytesPerSecond(LIMIT_BYTES as f64 / seconds)
    }

    /// Multiplying.
    #[must_use]
    pub fn multiply(&self) -> FlopsPerSecond {
        let multiply_adds = 1 << 22;
        let seconds = best_of(LIMIT, || {
            black_box(self.cpu.multiply_only(black_box(multiply_adds)));
        });
        FlopsPerSecond(2.0 * (multiply_adds * self.threads) as f64 / seconds)
    }
}

/// Seconds of the fastest run: other programs only ever make it slower.
fn best_of(time: Duration, mut run: impl FnMut()) -> f64 {
    let started = Instant::now();
    let mut best = f64::INFINITY;
    while started.elapsed() < time {
        let at = Instant::now();
        run();
        best = best.min(at.elapsed().as_secs_f64());
    }
    best.max(1e-9)
}
