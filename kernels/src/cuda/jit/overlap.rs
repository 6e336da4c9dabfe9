//! Whether launches of a step overlap: a kernel begins while the one before it ends, on GPUs and drivers that can. Tried with
//! a few launches that follow each other as in a step, recorded as steps are; used where they leave the same bits in less time.

use super::{Image, KernelCompiler, Loads, NotCompiled, TimedFile, sources, trial};
use crate::cuda::machine::{GpuError, Machine};
use std::fmt;
use std::sync::Arc;

/// Whether a kernel begins while the one before it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaunchOverlap {
    /// It does: of the files that wait for others all run as they were compiled for the GPU.
    Used {
        /// What launches in a row take one after the other, by the faster code of each file (nanoseconds).
        plain_ns: u64,
        /// What they take so.
        overlapping_ns: u64,
    },
    /// It does not, for this reason.
    Not(String),
}

impl LaunchOverlap {
    /// Whether it does.
    #[must_use]
    pub fn is_used(&self) -> bool {
        matches!(self, Self::Used { .. })
    }
}

impl fmt::Display for LaunchOverlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Used { plain_ns, overlapping_ns } => {
                let part = *overlapping_ns as f64 / (*plain_ns).max(1) as f64;
                write!(f, "launches of {} overlap (in {part:.2} of the time)", sources::WAITING.join(", "))
            }
            Self::Not(why) => write!(f, "launches do not overlap: {why}"),
        }
    }
}

/// Machine code of files.
pub(super) type Cubins = Vec<(&'static str, Vec<u8>)>;

/// Chooses, once each file runs its faster code: `files` says which, `cubins` are those that were compiled.
pub(super) fn choose(
    gpu: &Arc<dyn Loads>,
    compiler: &dyn KernelCompiler,
    sm: u32,
    files: &[TimedFile],
    cubins: &mut Cubins,
) -> Result<LaunchOverlap, NotCompiled> {
    if sm < sources::WAITS_FROM {
        return Ok(LaunchOverlap::Not(format!("sm_{sm} cannot")));
    }
    if let Err(why) = gpu.overlap(true) {
        return Ok(LaunchOverlap::Not(why));
    }
    gpu.overlap(false).map_err(GpuError::Unsupported)?;
    let machine: Arc<dyn Machine> = gpu.clone();
    let mut work = trial::TrialWork::new(&machine)?;
    let (plain, plain_ns) = work.step()?;
    let compiled = compile_all(gpu, compiler, sm, cubins).map_err(|why| why.to_string());
    let why = match compiled.and_then(|()| tried(gpu, &mut work, &plain)) {
        Ok(overlapping_ns) if trial::is_faster(overlapping_ns, plain_ns) => {
            return Ok(LaunchOverlap::Used { plain_ns, overlapping_ns });
        }
        Ok(overlapping_ns) => {
            let part = overlapping_ns as f64 / plain_ns.max(1) as f64;
            format!("they take {part:.2} of the time that they take one after the other")
        }
        Err(why) => why,
    };
    gpu.overlap(false).map_err(GpuError::Unsupported)?;
    let slower = |name: &str| !files.iter().any(|file| file.name == name && file.is_compiled());
    sources::WAITING.iter().filter(|file| slower(file)).for_each(|file| gpu.put_away(file));
    // A GPU that this was too much for fails at plain launches, too.
    work.step()?;
    Ok(LaunchOverlap::Not(why))
}

/// Has all files that wait run as they are compiled for the GPU.
fn compile_all(
    gpu: &Arc<dyn Loads>,
    compiler: &dyn KernelCompiler,
    sm: u32,
    cubins: &mut Cubins,
) -> Result<(), NotCompiled> {
    for file in sources::FILES.iter().filter(|file| sources::WAITING.contains(&file.name)) {
        let name = file.name;
        if !cubins.iter().any(|(compiled, _)| *compiled == name) {
            cubins.push((name, compiler.compile(file, sm)?));
        }
        for (_, cubin) in cubins.iter().filter(|(compiled, _)| *compiled == name) {
            gpu.load(name, cubin).map_err(|why| NotCompiled::Refused { file: name, why })?;
        }
        gpu.turn(name, Image::Compiled);
    }
    Ok(())
}

/// Nanoseconds of launches that overlap; or why they are of no use.
fn tried(gpu: &Arc<dyn Loads>, work: &mut trial::TrialWork, plain: &[f32]) -> Result<u64, String> {
    let fails = |why: GpuError| format!("they fail, {why}");
    // The same machine code one after the other: to the bit what it is to leave.
    let (compiled, _) = work.step().map_err(fails)?;
    gpu.overlap(true)?;
    let (overlapping, overlapping_ns) = work.step().map_err(fails)?;
    let bits = |numbers: &[f32]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    if bits(&compiled) != bits(&overlapping) || !trial::alike(plain, &compiled) {
        return Err("they leave other numbers".into());
    }
    Ok(overlapping_ns)
}
