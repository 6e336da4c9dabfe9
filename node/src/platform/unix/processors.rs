//! Which processors threads run on, and when: Linux alone lets a thread say so of itself.

use std::{collections::BTreeSet, io};

/// How much more willingly than others such a thread gives way: as `nice` counts.
#[cfg(target_os = "linux")]
const NICE: i32 = 10;

/// Where this thread may run.
#[cfg(target_os = "linux")]
pub(crate) fn allowed_processors() -> io::Result<BTreeSet<usize>> {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|n| set.is_set(*n)).collect())
}

/// From now on this thread, and those that it starts, run there.
#[cfg(target_os = "linux")]
pub(crate) fn set_processors(processors: &BTreeSet<usize>) -> io::Result<()> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let mut set = CpuSet::new();
    processors.iter().filter(|n| **n < CpuSet::MAX_CPU).for_each(|n| set.set(*n));
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn allowed_processors() -> io::Result<BTreeSet<usize>> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this system keeps no thread on a processor: leave cores unset"))
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn set_processors(_: &BTreeSet<usize>) -> io::Result<()> {
    allowed_processors().map(|_| ())
}

/// Lets this thread run when no other wants to. On Linux threads have priorities of their own; elsewhere it would be the process
/// that gives way, so nothing is done.
pub(crate) fn give_way() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(None, NICE);
}
