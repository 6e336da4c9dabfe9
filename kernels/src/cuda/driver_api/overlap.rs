//! Launches that overlap: a kernel is begun while the one before it ends (CUDA calls that programmatic dependent launch), also in
//! steps that are recorded.
//!
//! The rule that makes it sound: **a kernel that is launched so waits, in every thread, before it reads what any kernel wrote
//! or writes anything** (`wait_for_others` in `device/common.cuh`). The wait is for the end of the one kernel before it, and that one
//! ended after its own wait or was launched as ever, after all before it: so by induction all are done. A kernel that does not
//! wait, of PTX or of a file that [`WAITING`] does not name, is launched as ever and begins when all before it are done; so do copies,
//! marks and what libraries launch. One that waited for nothing and was launched so all the same would be a race, of which the
//! kernels behind it would not know either.
#![expect(unsafe_code, reason = "as in driver_api.rs")]

use super::{DriverCard, GpuError, capability, failed, guarded};
use crate::cuda::{
    jit::sources::{WAITING, WAITS_FROM},
    machine::Launch,
};
use cudarc::driver::{DriverError, sys};
use std::ffi::c_void;
use std::ptr::null_mut;

/// CUDA's version of the first driver that records such launches as what they are.
const DRIVER: i32 = 12_030;

/// Whether machine code of a file's kernels waits for those before them.
pub(super) fn waits(file: &str) -> bool {
    WAITING.contains(&file)
}

impl DriverCard {
    /// Why launches cannot overlap, if they cannot.
    pub(super) fn can_overlap(&self) -> Result<(), String> {
        let (major, minor) = capability(self.device).map_err(|why| why.to_string())?;
        let sm = (10 * major + minor).unsigned_abs();
        if sm < WAITS_FROM {
            return Err(format!("sm_{sm} cannot"));
        }
        let mut version = 0;
        // SAFETY: a place for a number.
        let answer = unsafe { sys::cuDriverGetVersion(&mut version) }.result();
        answer.map_err(|why| failed("asking for the driver's version")(why).to_string())?;
        if version < DRIVER {
            return Err(format!("the driver is of CUDA {}.{}", version / 1000, version % 1000 / 10));
        }
        guarded(has_call).map_err(|why| why.to_string())
    }

    /// Launches a kernel that waits for those before it on the compute queue.
    pub(super) fn launch_overlapping(
        &self,
        function: sys::CUfunction,
        launch: Launch,
        args: &mut [*mut c_void],
    ) -> Result<(), DriverError> {
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { pad: [0; 64] },
        };
        attribute.value.programmaticStreamSerializationAllowed = 1;
        let Launch { grid: [x, y, z], threads, shared, .. } = launch;
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared,
            hStream: self.compute,
            attrs: &mut attribute,
            numAttrs: 1,
        };
        // SAFETY: see above; the driver reads the attribute and the arguments before it returns.
        unsafe { sys::cuLaunchKernelEx(&config, function, args.as_mut_ptr(), null_mut()) }.result()
    }
}

/// Whether the driver's library has the call, which the bindings would panic without.
fn has_call() -> Result<(), GpuError> {
    // SAFETY: the symbol is only looked for.
    let found = unsafe { sys::culib().get::<*const c_void>(b"cuLaunchKernelEx") };
    found.map(|_| ()).map_err(|_| GpuError::Missing("the driver has no cuLaunchKernelEx".into()))
}
