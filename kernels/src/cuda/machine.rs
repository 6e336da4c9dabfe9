//! What computing on a GPU needs of it: memory, copies, launches. A GPU is one machine; in tests the emulator is another,
//! so that all that stands above is run where there is no GPU.

use super::GpuInfo;
use std::fmt;
use std::sync::Arc;

/// Why a GPU did not do what it was asked for. It takes the sequences of its step with it, not the process.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// The driver or a library is not there.
    #[error("{0}")]
    Missing(String),
    /// A call failed; most failures are final for the GPU: lost, an uncorrectable error of its memory, a broken kernel.
    #[error("the GPU fails at {call}: {answer}")]
    Failed {
        /// What was asked for.
        call: &'static str,
        /// What the driver says.
        answer: String,
    },
    /// Its memory is too small.
    #[error("the GPU has no memory for {wanted} bytes more")]
    Memory {
        /// Asked for (bytes).
        wanted: usize,
    },
    /// A step of more rows than kernels are launched for.
    #[error("a step of {rows} rows where a GPU takes {most}")]
    Rows {
        /// Of the step.
        rows: usize,
        /// Taken.
        most: usize,
    },
    /// A model that kernels are not written for.
    #[error("on a GPU {0} is not supported")]
    Unsupported(String),
}

/// A kernel's argument.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arg {
    /// An address on the GPU, or a 64-bit number.
    Wide(u64),
    /// A 32-bit number.
    Whole(u32),
    /// A number in single precision.
    Number(f32),
}

impl Arg {
    /// Its bytes as kernels read them: arguments are little-endian like the processors of both sides.
    pub fn slot(self) -> u64 {
        match self {
            Self::Wide(x) => x,
            Self::Whole(x) => u64::from(x),
            Self::Number(x) => u64::from(x.to_bits()),
        }
    }
}

impl From<u64> for Arg {
    fn from(x: u64) -> Self {
        Self::Wide(x)
    }
}

impl From<u32> for Arg {
    fn from(x: u32) -> Self {
        Self::Whole(x)
    }
}

impl From<f32> for Arg {
    fn from(x: f32) -> Self {
        Self::Number(x)
    }
}

impl From<&GpuMemory> for Arg {
    fn from(x: &GpuMemory) -> Self {
        Self::Wide(x.at())
    }
}

/// A kernel, by the file it is in and its name, and how many threads it is run by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    /// File of its PTX.
    pub module: &'static str,
    /// Its name.
    pub kernel: &'static str,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Shared memory beyond what the kernel declares (bytes).
    pub shared: u32,
}

/// A product of many rows for whoever has a library for it: `out[r][o] = x[r] · w[o]`, 16-bit numbers, sums and result in
/// single precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Product {
    /// bfloat16, or half precision.
    pub brain: bool,
    /// Rows.
    pub rows: usize,
    /// Outputs.
    pub outs: usize,
    /// Columns.
    pub cols: usize,
    /// Numbers from a row of results to the next.
    pub stride: usize,
}

/// What another machine needs to copy from one's memory, in that machine's own words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PeerGpu {
    /// Which device.
    pub device: i32,
    /// The context that the memory is of.
    pub context: usize,
    /// What the work that was asked for before is marked by.
    pub mark: usize,
}

/// Where a machine computes, for a library that has several exchange what they computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GpuSeat {
    /// Which device.
    pub device: i32,
    /// Its context.
    pub context: usize,
    /// Its compute queue.
    pub stream: usize,
}

/// Rows of bytes to be copied, and how far apart they lie on both sides (bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rectangle {
    pub from: u64,
    pub from_pitch: usize,
    pub to: u64,
    pub to_pitch: usize,
    /// Of a row.
    pub width: usize,
    pub rows: usize,
}

/// A recorded run of launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recorded(pub usize);

/// Which queue of work: they run side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// Steps.
    Compute,
    /// KV that leaves and comes while steps compute.
    Side,
    /// Weights that come while steps compute, from a thread of their own.
    Load,
}

/// Something that kernels run on. Work on a queue is done in the order in which it was asked for.
pub(crate) trait Machine: Send + Sync + fmt::Debug {
    /// Processors: how many blocks keep all of it busy follows from that.
    fn processors(&self) -> usize;
    /// What it is.
    fn about(&self) -> GpuInfo;
    /// Memory that nobody has (bytes).
    fn free_bytes(&self) -> Result<usize, GpuError>;
    /// Memory of so many bytes, whatever is in it; [`GpuMemory`] is how to get and give it.
    fn take(&self, bytes: usize) -> Result<u64, GpuError>;
    /// Gives it back once nothing uses it any more.
    fn give(&self, at: u64, bytes: usize);
    /// Copies to the GPU; `bytes` may be changed once this returns.
    fn upload(&self, queue: Queue, to: u64, bytes: &[u8]) -> Result<(), GpuError>;
    /// Copies from the GPU and waits for it, and so for all that the queue was asked before.
    fn download(&self, queue: Queue, from: u64, out: &mut [u8]) -> Result<(), GpuError>;
    /// Copies on the GPU.
    fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<(), GpuError>;
    /// Runs a kernel.
    fn launch(&self, queue: Queue, launch: Launch, args: &[Arg]) -> Result<(), GpuError>;
    /// Computes a product by a library; `false` where there is none, and nothing was done.
    fn product(&self, product: Product, x: u64, w: u64, out: u64) -> Result<bool, GpuError>;
    /// Marks what the compute queue was asked so far under a number.
    fn mark(&self, number: usize) -> Result<(), GpuError>;
    /// Has the side queue wait for a mark.
    fn wait_for(&self, number: usize) -> Result<(), GpuError>;
    /// Marks what the compute queue was asked so far, for machines that copy what it leaves.
    fn offer(&self) -> Result<PeerGpu, GpuError>;
    /// Has the compute queue copy rows from the memory of a machine of the same kind, this one or another, once that has done
    /// all it was asked before it made the offer. Nobody waits but the queue.
    fn fetch(&self, from: PeerGpu, rows: Rectangle) -> Result<(), GpuError>;
    /// Has the compute queue wait until a machine of the same kind has done all that it was asked before it made the offer.
    fn follow(&self, from: PeerGpu) -> Result<(), GpuError>;
    /// Whether what is fetched from a machine comes straight from there; not known, and so not, before something was.
    fn reaches(&self, from: PeerGpu) -> bool;
    /// Has the compute queue copy rows from one place of the machine to another.
    fn lay_out(&self, rows: Rectangle) -> Result<(), GpuError> {
        let Rectangle { from, from_pitch, to, to_pitch, width, rows } = rows;
        let at = |start: u64, pitch: usize, row: usize| start + (row * pitch) as u64;
        (0..rows).try_for_each(|row| self.copy(at(from, from_pitch, row), at(to, to_pitch, row), width))
    }
    /// Its seat; none where no library has machines exchange anything.
    fn seat(&self) -> Option<GpuSeat> {
        None
    }
    /// Waits for both queues that the owner of the engine asks.
    fn finish(&self) -> Result<(), GpuError>;
    /// Begins to record launches on the compute queue instead of running them; `false` where that is not done. With it all
    /// machines are recorded that follow what it offers, or fetch from there, until it ends recording: before that it has to
    /// follow what they offer.
    fn record(&self) -> Result<bool, GpuError>;
    /// Ends recording.
    fn recorded(&self) -> Result<Recorded, GpuError>;
    /// Runs what was recorded.
    fn replay(&self, recorded: Recorded) -> Result<(), GpuError>;
    /// Forgets one recording, once it does not run any more.
    fn forget(&self, recorded: Recorded);
    /// Forgets all that was recorded.
    fn forget_recorded(&self);
}

/// Memory of a GPU, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct GpuMemory {
    machine: Arc<dyn Machine>,
    at: u64,
    bytes: usize,
}

impl GpuMemory {
    /// Memory of so many bytes, whatever is in it.
    pub fn take(machine: &Arc<dyn Machine>, bytes: usize) -> Result<Self, GpuError> {
        let bytes = bytes.max(16);
        Ok(Self { at: machine.take(bytes)?, machine: machine.clone(), bytes })
    }

    /// With these bytes in it.
    pub fn of(machine: &Arc<dyn Machine>, bytes: &[u8]) -> Result<Self, GpuError> {
        let memory = Self::take(machine, bytes.len())?;
        machine.upload(Queue::Compute, memory.at, bytes)?;
        Ok(memory)
    }

    /// With these bytes in it once [`Queue::Load`] was waited for.
    pub fn loaded(machine: &Arc<dyn Machine>, bytes: &[u8]) -> Result<Self, GpuError> {
        let memory = Self::take(machine, bytes.len())?;
        machine.upload(Queue::Load, memory.at, bytes)?;
        Ok(memory)
    }

    /// Where it is.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Its size (bytes).
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for GpuMemory {
    fn drop(&mut self) {
        self.machine.give(self.at, self.bytes);
    }
}
