//! Kernels compiled for the very GPU, by NVRTC where it is found: each file is timed beside its PTX, the faster is used, and
//! what came out is kept. Whatever fails on the way, the PTX is used, and why is kept in a sentence.
//!
//! | file | what it holds |
//! |---|---|
//! | `sources.rs` | the kernels' sources and their PTX |
//! | `nvrtc.rs` | the compiler |
//! | `trial.rs` | the launches that both are timed by |
//! | `overlap.rs` | whether launches of a step overlap |
//! | `cache.rs` | what is kept on disk |

pub(super) mod cache;
mod nvrtc;
mod overlap;
pub(super) mod sources;
pub(super) mod trial;

use cache::JitCacheEntry;
pub use cache::KernelCache;
pub(super) use nvrtc::{KernelCompiler, Nvrtc};
pub use overlap::LaunchOverlap;
pub use trial::TimedFile;

use super::machine::{GpuError, Machine};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

/// Kernels that a GPU computes by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kernels {
    /// PTX, compiled ahead of time; and why nothing else was tried, or kept.
    Ahead(NotCompiled),
    /// Compiled for this GPU as well, and timed: of each file the faster.
    Timed(TimedKernels),
}

/// What was compiled for a GPU, and how fast it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedKernels {
    /// The GPU's architecture: 90 for `sm_90`.
    pub sm: u32,
    /// Which NVRTC compiled.
    pub nvrtc: (i32, i32),
    /// The files that were timed; all others are PTX, but those that wait for others where launches overlap.
    pub files: Vec<TimedFile>,
    /// Whether launches overlap.
    pub overlap: LaunchOverlap,
    /// Where it comes from, and whether the next start will find it.
    pub kept: CacheState,
}

/// Whether something was kept on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheState {
    /// It was there already.
    Found,
    /// It was made now, and is there for the next start.
    Written,
    /// It was made now and could not be kept: the next start makes it again.
    Not(String),
}

/// Why kernels were not compiled for the GPU, or are not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotCompiled {
    /// The GPU was opened without a place to keep them.
    #[error("none were asked for that are compiled for this GPU")]
    NotAsked,
    /// No compiler.
    #[error("libnvrtc.so was not found")]
    NoLibrary,
    /// What was found is no NVRTC, or too old a one.
    #[error("{} cannot be used: {why}", path.display())]
    Unusable {
        /// The library.
        path: PathBuf,
        /// What the system's loader says.
        why: String,
    },
    /// A GPU that came out after the compiler.
    #[error("NVRTC {}.{} does not know sm_{sm}", nvrtc.0, nvrtc.1)]
    Unknown {
        /// The compiler's version.
        nvrtc: (i32, i32),
        /// The GPU's architecture.
        sm: u32,
    },
    /// A driver takes machine code of its own major version at most.
    #[error("NVRTC {}.{} is newer than the driver, which is of CUDA {}.{}", nvrtc.0, nvrtc.1, cuda.0, cuda.1)]
    Newer {
        /// The compiler's version.
        nvrtc: (i32, i32),
        /// The driver's.
        cuda: (i32, i32),
    },
    /// A source that the compiler refuses.
    #[error("{file} does not compile: {}", first_line(log))]
    Source {
        /// Its name.
        file: String,
        /// All that the compiler says.
        log: String,
    },
    /// A call that the compiler refuses.
    #[error("NVRTC answers {answer} at {call}")]
    Compiler {
        /// What was asked for.
        call: &'static str,
        /// An `nvrtcResult`.
        answer: i32,
    },
    /// The driver does not take what was compiled.
    #[error("the driver does not take {file} as it was compiled: {why}")]
    Refused {
        /// The file.
        file: &'static str,
        /// What the driver says.
        why: GpuError,
    },
    /// The two do not compute the same.
    #[error("{file} as it was compiled gives other numbers than its PTX")]
    Differs {
        /// The file.
        file: &'static str,
    },
    /// The GPU failed while they were timed.
    #[error("they could not be timed: {0}")]
    Gpu(#[from] GpuError),
    /// A library lacks something that it should have.
    #[error("choosing kernels panicked")]
    Panicked,
}

/// Of two ways to have a file's kernels, which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Image {
    /// PTX, which the driver compiles.
    Ahead,
    /// Machine code for this GPU.
    Compiled,
}

/// What a choice holds for: another GPU, driver or compiler chooses anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GpuIdentity {
    /// Vendor's name.
    pub name: String,
    /// Processors.
    pub processors: usize,
    /// Architecture.
    pub sm: u32,
    /// CUDA version of the driver.
    pub cuda: (i32, i32),
    /// The driver's own version, where it is known.
    pub driver: String,
}

/// A machine that can have a file's kernels in two ways.
pub(super) trait Loads: Machine {
    /// What it is.
    fn identity(&self) -> Result<GpuIdentity, GpuError>;
    /// Loads a file's machine code beside its PTX.
    fn load(&self, file: &'static str, cubin: &[u8]) -> Result<(), GpuError>;
    /// Has launches of a file's kernels run one or the other from now on.
    fn turn(&self, file: &'static str, image: Image);
    /// Forgets a file's machine code, if there is any: its PTX runs.
    fn put_away(&self, file: &'static str);
    /// Has launches of machine code that waits for others overlap from now on, or no more; or says why they cannot.
    fn overlap(&self, on: bool) -> Result<(), String>;
}

impl Default for Kernels {
    fn default() -> Self {
        Self::Ahead(NotCompiled::NotAsked)
    }
}

impl fmt::Display for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ahead(why) => write!(f, "PTX, compiled ahead; {why}"),
            Self::Timed(timed) => timed.fmt(f),
        }
    }
}

impl fmt::Display for TimedKernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sm, nvrtc: (major, minor), files, overlap, kept } = self;
        let named = |compiled: bool| {
            let files = files.iter().filter(|file| file.is_compiled() == compiled).map(ToString::to_string);
            files.collect::<Vec<_>>().join(", ")
        };
        match (named(true), named(false)) {
            (ours, slower) if ours.is_empty() => {
                write!(f, "PTX, faster than NVRTC {major}.{minor} for sm_{sm}: {slower}")?
            }
            (ours, slower) if slower.is_empty() => {
                write!(f, "NVRTC {major}.{minor} for sm_{sm}: {ours}; PTX elsewhere")?
            }
            (ours, slower) => {
                write!(f, "NVRTC {major}.{minor} for sm_{sm}: {ours}; PTX elsewhere, faster in {slower}")?
            }
        }
        write!(f, "; {overlap}")?;
        match kept {
            CacheState::Not(why) => write!(f, "; not kept: {why}"),
            CacheState::Found | CacheState::Written => Ok(()),
        }
    }
}

fn first_line(log: &str) -> &str {
    log.lines().find(|line| !line.trim().is_empty()).unwrap_or("it does not say why")
}

/// Chooses a GPU's kernels, of each file by itself: files are modules of their own, and a compiler that is better at one may
/// be worse at another. Files that nothing is timed of stay PTX, since nothing would show that they gain.
pub(super) fn choose(
    gpu: &Arc<dyn Loads>,
    compiler: Result<&dyn KernelCompiler, NotCompiled>,
    cache: &KernelCache,
) -> Kernels {
    let chosen = catch_unwind(AssertUnwindSafe(|| kept_or_timed(gpu, compiler?, cache)));
    chosen.unwrap_or(Err(NotCompiled::Panicked)).map_or_else(
        |why| {
            forget_all(gpu);
            Kernels::Ahead(why)
        },
        Kernels::Timed,
    )
}

fn forget_all(gpu: &Arc<dyn Loads>) {
    // To stop is what every machine can.
    let _ = gpu.overlap(false);
    trial::FILES.iter().chain(&sources::WAITING).for_each(|file| gpu.put_away(file));
}

fn kept_or_timed(
    gpu: &Arc<dyn Loads>,
    compiler: &dyn KernelCompiler,
    cache: &KernelCache,
) -> Result<TimedKernels, NotCompiled> {
    let identity = gpu.identity()?;
    let (nvrtc, sm) = (suitable(compiler, &identity)?, identity.sm);
    let key = cache::key(&identity, nvrtc);
    if let Some(entry) = cache.read(&identity, &key) {
        // What a driver does not take any more is made anew, like what is not there.
        if take(gpu, &entry).is_ok() {
            let JitCacheEntry { files, overlap, .. } = entry;
            return Ok(TimedKernels { sm, nvrtc, files, overlap, kept: CacheState::Found });
        }
        forget_all(gpu);
    }
    let entry = time(gpu, compiler, sm)?;
    let kept = cache
        .write(&identity, &key, &entry)
        .map_or_else(|why| CacheState::Not(why.to_string()), |()| CacheState::Written);
    let JitCacheEntry { files, overlap, .. } = entry;
    Ok(TimedKernels { sm, nvrtc, files, overlap, kept })
}

/// The compiler's version, if what it makes can be of use.
fn suitable(compiler: &dyn KernelCompiler, identity: &GpuIdentity) -> Result<(i32, i32), NotCompiled> {
    let (nvrtc, cuda, sm) = (compiler.version()?, identity.cuda, identity.sm);
    if nvrtc.0 > cuda.0 {
        return Err(NotCompiled::Newer { nvrtc, cuda });
    }
    if !compiler.knows(sm)? {
        return Err(NotCompiled::Unknown { nvrtc, sm });
    }
    Ok(nvrtc)
}

/// Turns to what was kept.
fn take(gpu: &Arc<dyn Loads>, entry: &JitCacheEntry) -> Result<(), GpuError> {
    for (file, cubin) in &entry.cubins {
        gpu.load(file, cubin)?;
        gpu.turn(file, Image::Compiled);
    }
    if entry.overlap.is_used() { gpu.overlap(true).map_err(GpuError::Unsupported) } else { Ok(()) }
}

/// Compiles files, times them beside their PTX, and turns to the faster; then has launches overlap, if that is faster yet.
fn time(gpu: &Arc<dyn Loads>, compiler: &dyn KernelCompiler, sm: u32) -> Result<JitCacheEntry, NotCompiled> {
    let mut cubins = Vec::new();
    for file in sources::FILES.iter().filter(|file| trial::FILES.contains(&file.name)) {
        let (name, cubin) = (file.name, compiler.compile(file, sm)?);
        // Each is loaded before the next is compiled: a driver that takes none does not take the first.
        gpu.load(name, &cubin).map_err(|why| NotCompiled::Refused { file: name, why })?;
        cubins.push((name, cubin));
    }
    let files = trial::compare(gpu)?;
    for file in &files {
        if file.is_compiled() { gpu.turn(file.name, Image::Compiled) } else { gpu.put_away(file.name) }
    }
    let overlap = overlap::choose(gpu, compiler, sm, &files, &mut cubins)?;
    let compiled = |name: &str| files.iter().any(|file| file.name == name && file.is_compiled());
    cubins.retain(|(name, _)| compiled(name) || (overlap.is_used() && sources::WAITING.contains(name)));
    Ok(JitCacheEntry { files, overlap, cubins })
}
