//! Memory of a GPU that is kept from step to step, and grows when a step needs more.

use super::machine::{GpuError, GpuMemory, Machine, Queue};
use std::sync::Arc;

/// Memory kept from step to step; what is in it is lost when it grows.
#[derive(Debug)]
pub(crate) struct Buffer {
    machine: Arc<dyn Machine>,
    memory: Option<GpuMemory>,
    renewals: usize,
}

impl Buffer {
    pub fn new(machine: Arc<dyn Machine>) -> Self {
        Self { machine, memory: None, renewals: 0 }
    }

    /// Makes room for so many bytes, and returns where.
    pub fn fit(&mut self, bytes: usize) -> Result<u64, GpuError> {
        if self.memory.as_ref().is_none_or(|memory| memory.bytes() < bytes) {
            // Kernels that were asked for may still use the old memory, and its room may be what the new needs.
            self.machine.finish()?;
            self.memory = None;
            // Also where there is no room for the new: what was recorded of the old must not run.
            self.renewals += 1;
            self.memory = Some(GpuMemory::take(&self.machine, bytes.next_power_of_two())?);
        }
        Ok(self.at())
    }

    /// The same, for what kernels leave as zeros behind them: memory that is new is zeros before the first uses it.
    pub fn fit_zeroed(&mut self, bytes: usize) -> Result<u64, GpuError> {
        let before = self.renewals;
        let at = self.fit(bytes)?;
        let Some(memory) = self.memory.as_ref().filter(|_| self.renewals != before) else { return Ok(at) };
        let zeroed = self.machine.upload(Queue::Compute, at, &vec![0; memory.bytes()]);
        if zeroed.is_err() {
            // What is in it is not known: it is taken anew.
            self.memory = None;
        }
        zeroed.map(|()| at)
    }

    /// Where it is; nowhere before it was needed.
    pub fn at(&self) -> u64 {
        self.memory.as_ref().map_or(0, GpuMemory::at)
    }

    /// How often the old was given up.
    pub fn renewals(&self) -> usize {
        self.renewals
    }
}
