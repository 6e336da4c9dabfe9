//! Which devices a host has, asked once at run time.

use crate::cpu::Simd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

/// What a host computes with.
#[derive(Clone, Debug)]
pub struct Host {
    /// Its processor.
    pub cpu: CpuInfo,
    /// Its NVIDIA GPUs, or why there are none.
    pub gpus: Result<Vec<HostGpu>, String>,
}

/// A processor.
#[derive(Clone, Debug)]
pub struct CpuInfo {
    /// Vendor's name.
    pub name: String,
    /// Cores this process may use.
    pub cores: usize,
    /// Memory of the host (bytes).
    pub memory_bytes: u64,
    /// Of that, free now (bytes).
    pub available_bytes: u64,
    /// Instructions used.
    pub simd: Simd,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostGpu {
    /// Its number.
    pub ordinal: u16,
    /// Vendor's name.
    pub name: String,
    /// Its memory (bytes).
    pub memory_bytes: u64,
}

impl Host {
    /// Asks the system.
    #[must_use]
    pub fn detect() -> Self {
        let what = RefreshKind::nothing()
            .with_cpu(CpuRefreshKind::nothing())
            .with_memory(MemoryRefreshKind::nothing().with_ram());
        let system = System::new_with_specifics(what);
        let memory = HostMemory::of(&system);
        let name = system.cpus().first().map(|c| c.brand().trim().to_owned()).filter(|n| !n.is_empty());
        let cpu = CpuInfo {
            name: name.unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory.total,
            available_bytes: memory.free,
            simd: Simd::detect(),
        };
        Self { cpu, gpus: gpus() }
    }
}

/// Memory as far as this process can have it (bytes).
struct HostMemory {
    total: u64,
    free: u64,
}

impl HostMemory {
    /// The host's, or that of the container the process is in where it is less: whoever takes more than that is ended,
    /// however much the host has. What a container keeps of files is free, as it is of the host.
    fn of(system: &System) -> Self {
        let (total, free) = (system.total_memory(), system.available_memory());
        match system.cgroup_limits() {
            Some(inside) if inside.total_memory < total => {
                Self { total: inside.total_memory, free: free.min(inside.total_memory.saturating_sub(inside.rss)) }
            }
            _ => Self { total, free },
        }
    }
}

/// Memory that is free now (bytes): [`CpuInfo::available_bytes`] without asking for anything else.
#[must_use]
pub fn free_memory() -> u64 {
    let what = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    HostMemory::of(&System::new_with_specifics(what)).free
}

/// NVIDIA GPUs by the driver's own count.
fn gpus() -> Result<Vec<HostGpu>, String> {
    // SAFETY: only looks whether the driver's library can be opened.
    #[expect(unsafe_code, reason = "the lines above say why it is sound")]
    let present = unsafe { cudarc::driver::sys::is_culib_present() };
    if !present {
        return Err("no NVIDIA driver found (libcuda.so)".into());
    }
    // The bindings panic where a driver lacks a symbol; a strange driver must not keep the peer from starting.
    catch_unwind(AssertUnwindSafe(ask_driver)).unwrap_or_else(|_| Err("the NVIDIA driver is too old".into()))
}

fn ask_driver() -> Result<Vec<HostGpu>, String> {
    use cudarc::driver::result;
    let failed = |e: cudarc::driver::DriverError| format!("the NVIDIA driver answers: {e}");
    result::init().map_err(failed)?;
    let count = result::device::get_count().map_err(failed)?;
    let mut found = Vec::new();
    for ordinal in 0..count.clamp(0, 64) {
        let device = result::device::get(ordinal).map_err(failed)?;
        let name = result::device::get_name(device).map_err(failed)?;
        // SAFETY: `device` is a handle the driver gave a line above.
        #[expect(unsafe_code, reason = "the lines above say why it is sound")]
        let memory = unsafe { result::device::total_mem(device) }.map_err(failed)?;
        found.push(HostGpu { ordinal: ordinal as u16, name, memory_bytes: memory as u64 });
    }
    if found.is_empty() { Err("the NVIDIA driver finds no GPU".into()) } else { Ok(found) }
}
