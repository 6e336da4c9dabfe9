//! What NVIDIA's management library knows of a GPU: power, clocks, its link to the host.

use super::libraries::Libraries;
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// What a GPU is by the management library; what it does not say is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuFacts {
    /// The driver's version.
    pub driver: Option<String>,
    /// Most that it draws (milliwatts).
    pub power_limit_mw: Option<u32>,
    /// Most that its processors run at (MHz).
    pub clock_mhz: Option<u32>,
    /// Most that its memory runs at (MHz).
    pub memory_clock_mhz: Option<u32>,
    /// Its link to the host.
    pub pcie: Option<PcieLink>,
}

/// A link of a GPU, and of which of its states that is: idle GPUs save power by a slower one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PcieLink {
    /// The fastest that GPU and host have together.
    Fastest {
        /// Of PCIe.
        generation: u32,
        /// Side by side.
        lanes: u32,
    },
    /// As it was when it was asked for, where the library does not know the fastest.
    AtIdle {
        /// Of PCIe.
        generation: u32,
        /// Side by side.
        lanes: u32,
    },
}

type Handle = *mut c_void;
type Begin = unsafe extern "C" fn() -> c_int;
type Find = unsafe extern "C" fn(*const c_char, *mut Handle) -> c_int;
type NvmlVersion = unsafe extern "C" fn(*mut c_char, c_uint) -> c_int;
type NvmlNumber = unsafe extern "C" fn(Handle, *mut c_uint) -> c_int;
type NvmlClock = unsafe extern "C" fn(Handle, c_uint, *mut c_uint) -> c_int;

/// Clocks as the library numbers them.
const PROCESSORS: c_uint = 1;
const MEMORY: c_uint = 2;

/// Asks about the GPU at a place on the bus; nothing is known where the library is not found or does not answer.
pub(super) fn facts(bus: &CStr) -> GpuFacts {
    let Some(path) = &Libraries::find().nvml.found else { return GpuFacts::default() };
    // SAFETY: NVIDIA's library, which was opened once before; functions are of the types in its header `nvml.h`.
    #[expect(unsafe_code, reason = "the lines above say why it is sound")]
    unsafe {
        Library::new(path).ok().and_then(|library| ask(&library, bus)).unwrap_or_default()
    }
}

/// # Safety
/// The library must be NVIDIA's.
#[expect(unsafe_code, reason = "each block says why it is sound")]
unsafe fn ask(library: &Library, bus: &CStr) -> Option<GpuFacts> {
    // SAFETY: the caller's word; what is written to is ours and as large as the header says.
    unsafe {
        library.get::<Begin>(b"nvmlInit_v2").ok().filter(|begin| begin() == 0)?;
        let mut handle: Handle = std::ptr::null_mut();
        library
            .get::<Find>(b"nvmlDeviceGetHandleByPciBusId_v2")
            .ok()
            .filter(|find| find(bus.as_ptr(), &mut handle) == 0)?;
        let number = |name: &[u8]| -> Option<u32> {
            let mut out = 0;
            library.get::<NvmlNumber>(name).ok().filter(|ask| ask(handle, &mut out) == 0).map(|_| ())?;
            Some(out)
        };
        let clock = |which| -> Option<u32> {
            let mut out = 0;
            let ask = library.get::<NvmlClock>(b"nvmlDeviceGetMaxClockInfo").ok()?;
            (ask(handle, which, &mut out) == 0).then_some(out)
        };
        let fastest = link(&number, b"nvmlDeviceGetMaxPcieLinkGeneration", b"nvmlDeviceGetMaxPcieLinkWidth")
            .map(|(generation, lanes)| PcieLink::Fastest { generation, lanes });
        let at_idle = || {
            link(&number, b"nvmlDeviceGetCurrPcieLinkGeneration", b"nvmlDeviceGetCurrPcieLinkWidth")
                .map(|(generation, lanes)| PcieLink::AtIdle { generation, lanes })
        };
        let facts = GpuFacts {
            driver: version(library),
            power_limit_mw: number(b"nvmlDeviceGetEnforcedPowerLimit"),
            clock_mhz: clock(PROCESSORS),
            memory_clock_mhz: clock(MEMORY),
            pcie: fastest.or_else(at_idle),
        };
        if let Ok(end) = library.get::<Begin>(b"nvmlShutdown") {
            end();
        }
        Some(facts)
    }
}

/// Generation and lanes of a link, by the names of the questions.
fn link(number: &impl Fn(&[u8]) -> Option<u32>, generation: &[u8], lanes: &[u8]) -> Option<(u32, u32)> {
    number(generation).zip(number(lanes))
}

/// # Safety
/// The library must be NVIDIA's.
#[expect(unsafe_code, reason = "each block says why it is sound")]
unsafe fn version(library: &Library) -> Option<String> {
    let mut text = [0u8; 80];
    // SAFETY: the caller's word; the text ends inside what there is room for.
    let answered = unsafe {
        let ask = library.get::<NvmlVersion>(b"nvmlSystemGetDriverVersion").ok()?;
        ask(text.as_mut_ptr().cast(), text.len() as c_uint) == 0
    };
    let text = CStr::from_bytes_until_nul(&text).ok()?.to_str().ok()?;
    answered.then(|| text.to_owned())
}
