//! How GPUs put their columns side by side, and why not by NCCL.

use super::machine::GpuError;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Of the time of copies, in hundredths, what NCCL's must be below: what is nearer is the same.
const BELOW: u64 = 98;

/// How GPUs exchange columns of few rows; those of many are always copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GatherWay {
    /// By copies from GPU to GPU; and why not by NCCL.
    Copies(NoNccl),
    /// By NCCL.
    Nccl {
        /// Its version.
        version: (i32, i32, i32),
        /// How fast it was beside copies.
        timed: Vec<TimedGather>,
    },
}

/// Why GPUs do not exchange columns by NCCL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoNccl {
    /// What computes here is no GPU of a driver's.
    #[error("there is no driver")]
    NoDriver,
    /// No library.
    #[error("libnccl.so was not found")]
    NoLibrary,
    /// What was found is no NCCL, or too old a one.
    #[error("{} cannot be used: {why}", path.display())]
    Unusable {
        /// The library.
        path: PathBuf,
        /// What the system's loader says.
        why: String,
    },
    /// One GPU in two places.
    #[error("a GPU is there twice")]
    Twice,
    /// It hangs.
    #[error("NCCL takes more than {} s for {call}", patience.as_secs_f32())]
    Late {
        /// What was asked for.
        call: &'static str,
        /// How long it was waited for.
        patience: Duration,
    },
    /// The two ways do not give the same.
    #[error("NCCL gives other bytes than copies")]
    Differs,
    /// It gains nothing.
    #[error("NCCL is not faster: {}", listed(.0))]
    Slower(Vec<TimedGather>),
    /// It takes memory that steps may need.
    #[error("NCCL takes {taken} bytes of a GPU's memory")]
    Memory {
        /// Of one GPU.
        taken: usize,
    },
    /// It fails.
    #[error("with NCCL {0}")]
    Failed(#[from] GpuError),
}

impl fmt::Display for GatherWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Copies(why) => write!(f, "copies from GPU to GPU; {why}"),
            Self::Nccl { version: (major, minor, patch), timed } => {
                write!(f, "NCCL {major}.{minor}.{patch}: {}", listed(timed))
            }
        }
    }
}

fn listed(timed: &[TimedGather]) -> String {
    timed.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// How fast both ways are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedGather {
    /// Rows.
    pub rows: usize,
    /// What copies take (nanoseconds).
    pub copies_ns: u64,
    /// What NCCL takes.
    pub nccl_ns: u64,
}

impl TimedGather {
    /// Whether NCCL is faster.
    #[must_use]
    pub fn is_faster(&self) -> bool {
        self.nccl_ns.saturating_mul(100) < self.copies_ns.saturating_mul(BELOW)
    }
}

impl fmt::Display for TimedGather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = self.nccl_ns as f64 / self.copies_ns.max(1) as f64;
        write!(f, "{} row{} (in {part:.2} of copies' time)", self.rows, if self.rows == 1 { "" } else { "s" })
    }
}
