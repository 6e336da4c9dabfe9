//! What computes on GPUs against what computes on the processor: on the GPU `TSNODE_TEST_CARD`, where that is set, and in
//! the emulator elsewhere, where there is a C++ compiler. Without either, tests say so and pass; with `TSNODE_TEST_CARD=none` too,
//! which `.ci/run` says where it runs them apart.

mod attention;
mod choosing;
mod compiled;
mod copies;
mod exchanging;
mod experts;
mod failing;
mod jit;
mod models;
mod packing;
mod pooled;
mod products;
mod recorded_together;
mod recording;
mod singles;
mod states;
mod tables;
mod together;
mod wide;

use super::{
    driver_api,
    emulator::Emulator,
    machine::{GpuMemory, Machine, Queue},
};
use std::path::PathBuf;
use std::sync::Arc;

/// Where kernels are to be run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum RunOn {
    Gpu(u16),
    Emulator,
    /// Another run has all that computes on GPUs.
    Nothing,
}

impl RunOn {
    pub fn said() -> Self {
        match std::env::var("TSNODE_TEST_CARD").as_deref() {
            Ok("none") => {
                eprintln!("skipped: TSNODE_TEST_CARD=none, so another run has this");
                Self::Nothing
            }
            Ok(ordinal) => Self::Gpu(ordinal.parse().unwrap()),
            Err(_) => {
                eprintln!("skipped on a GPU: TSNODE_TEST_CARD says no number");
                Self::Emulator
            }
        }
    }
}

/// Every machine that kernels are to be run on here: the GPU, or else the emulator.
pub(super) fn machines() -> Vec<Arc<dyn Machine>> {
    match RunOn::said() {
        // With kernels as NVRTC makes them, none of which is PTX.
        RunOn::Gpu(ordinal) if std::env::var_os("TSNODE_TEST_COMPILED").is_some() => vec![jit::compiled(ordinal)],
        RunOn::Gpu(ordinal) => vec![driver_api::open(ordinal).unwrap()],
        RunOn::Emulator => match Emulator::get() {
            Ok(emulator) => vec![emulator],
            Err(why) => {
                eprintln!("skipped on the emulator: {why}");
                Vec::new()
            }
        },
        RunOn::Nothing => Vec::new(),
    }
}

/// So many machines of one kind, different GPUs as far as there are: from `TSNODE_TEST_CARD` on, or the emulator.
pub(super) fn several(count: usize) -> Vec<Arc<dyn Machine>> {
    let RunOn::Gpu(first) = RunOn::said() else {
        return machines().into_iter().cycle().take(count).collect();
    };
    let usable: Vec<u16> = driver_api::usable().unwrap().into_iter().filter(|ordinal| *ordinal >= first).collect();
    usable.iter().cycle().take(count).map(|ordinal| driver_api::open(*ordinal).unwrap()).collect()
}

/// The crate's folder: where a test binary is run on another machine, that machine's.
pub(super) fn here() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from)
}

/// Numbers of a linear congruential generator.
pub(super) struct Lcg(pub u64);

impl Lcg {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    pub fn below(&mut self, end: usize) -> usize {
        self.next() as usize % end
    }

    /// Between -1 and 1.
    pub fn number(&mut self) -> f32 {
        self.next() as f32 / (1u64 << 30) as f32 - 1.0
    }

    pub fn numbers(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.number()).collect()
    }
}

/// Memory with these numbers.
pub(super) fn with(machine: &Arc<dyn Machine>, numbers: &[f32]) -> GpuMemory {
    GpuMemory::of(machine, bytemuck::cast_slice(numbers)).unwrap()
}

/// Memory for so many numbers, none of which is one.
pub(super) fn poisoned(machine: &Arc<dyn Machine>, count: usize) -> GpuMemory {
    with(machine, &vec![f32::NAN; count])
}

/// Numbers that lie on a machine.
pub(super) fn read(machine: &Arc<dyn Machine>, memory: &GpuMemory, count: usize) -> Vec<f32> {
    let mut out = vec![0.0f32; count];
    machine.download(Queue::Compute, memory.at(), bytemuck::cast_slice_mut(&mut out)).unwrap();
    out
}
