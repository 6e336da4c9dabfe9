//! What a GPU can do, measured: memory, tensor cores, its link to the host.

use super::{
    Gpu, GpuError,
    machine::{GpuMemory, Machine, Product, Queue},
    ops::Ops,
    weights::{Form, GpuMatrix},
};
use std::sync::Arc;
use std::time::Instant;

/// Runs of each measurement; the best counts, since others only ever make one slower.
const RUNS: usize = 5;
/// Times a measured operation is asked for at once, so that asking takes no part.
const AT_ONCE: usize = 8;
/// Rows, outputs and columns, for each of a GPU's processors, of the product that tensor cores are measured by.
const PRODUCT: [usize; 3] = [32, 64, 32];

/// Ceilings of a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuSpeeds {
    /// Bytes a second that memory is read and written at, together, while it is copied on the GPU.
    pub copy: f64,
    /// Operations a second of a product in bfloat16, two for each multiply-add.
    pub multiply: f64,
    /// Whether that is cuBLASLt's; our own kernel's if not.
    pub by_library: bool,
    /// Bytes a second from the host, through pinned memory as weights go.
    pub up: f64,
    /// Bytes a second to the host.
    pub down: f64,
}

impl Gpu {
    /// Measures the GPU's ceilings, in about a second.
    ///
    /// # Errors
    /// When the GPU has too little memory, or fails.
    pub fn speeds(&self) -> Result<GpuSpeeds, GpuError> {
        let machine = &self.machine;
        let size = (machine.free_bytes()? / 8).min(machine.processors() << 22) / 4096 * 4096;
        let (from, to) = (GpuMemory::take(machine, size)?, GpuMemory::take(machine, size)?);
        let copy = best(machine, AT_ONCE, || machine.copy(from.at(), to.at(), size))?;
        let mut bytes = vec![1u8; size.min(64 << 20)];
        let count = bytes.len() as f64;
        let up = best(machine, 1, || machine.upload(Queue::Compute, from.at(), &bytes))?;
        let down = best(machine, 1, || machine.download(Queue::Compute, from.at(), &mut bytes))?;
        let (multiply, by_library) = multiply(machine)?;
        Ok(GpuSpeeds { copy: 2.0 * size as f64 / copy, multiply, by_library, up: count / up, down: count / down })
    }
}

/// Operations a second, and whether a library's.
fn multiply(machine: &Arc<dyn Machine>) -> Result<(f64, bool), GpuError> {
    let [rows, outs, cols] = PRODUCT.map(|each| each * machine.processors());
    // Zeros would take less power than numbers, and the GPU run faster: bytes that are small numbers of both signs.
    let bytes: Vec<u8> = (0..2 * outs.max(rows) * cols)
        .map(|i| if i % 2 == 0 { (i / 2 * 37) as u8 } else { 0x3c | (i as u8 & 2) << 6 })
        .collect();
    let (x, out) = (GpuMemory::of(machine, &bytes[..2 * rows * cols])?, GpuMemory::take(machine, 4 * rows * outs)?);
    let memory = GpuMemory::of(machine, &bytes[..2 * outs * cols])?;
    let w = GpuMatrix { memory, form: Form::Bf16, rows: outs, cols, all: outs };
    let product = Product { brain: true, rows, outs, cols, stride: outs };
    let by_library = machine.product(product, x.at(), w.memory.at(), out.at())?;
    let mut ops = Ops::new(machine.clone());
    let seconds = best(machine, AT_ONCE, || ops.product_of_many(x.at(), rows, &w, out.at()))?;
    Ok((2.0 * (rows * outs * cols) as f64 / seconds, by_library))
}

/// Seconds of one of `count` at once, in the best run.
pub(super) fn best(
    machine: &Arc<dyn Machine>,
    count: usize,
    mut work: impl FnMut() -> Result<(), GpuError>,
) -> Result<f64, GpuError> {
    work()?;
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        machine.finish()?;
        let started = Instant::now();
        (0..count).try_for_each(|_| work())?;
        machine.finish()?;
        best = best.min(started.elapsed().as_secs_f64() / count as f64);
    }
    Ok(best)
}
