//! What a GPU copies from others of the host, or from itself, in its compute stream.
//!
//! Events and copies are the driver's own across contexts: a stream waits for what an event of any context was recorded for
//! when it was asked to, and peer copies go straight from GPU to GPU where that can be, and by way of the host elsewhere.
//!
//! **Recording over contexts.** A stream that waits for an event of a stream that is recorded is recorded with it, whichever
//! GPU it is of (CUDA's programming guide, "Cross-stream Dependencies and Events"); the stream that began must have waited for
//! all of them, and ends it, which takes all of them out of it also where something failed. An event that was last recorded
//! so may not be waited for later, so what is offered is marked anew each time. `cuMemcpyPeerAsync` cannot be recorded; a
//! copy by addresses alone can, which tell the contexts apart (NVIDIA's Warp does so, `warp/native/warp.cu`). What a
//! recording does of copies by way of the host is written nowhere, so none are recorded.
#![expect(unsafe_code, reason = "as in driver.rs; handles of others are of GPUs that outlive the work (gpus.rs)")]

use super::{DriverCard, GpuError, PeerGpu, Rectangle, failed};
use crate::cuda::machine::Machine;
use cudarc::driver::{result, sys};
use std::ptr::{null, null_mut};

/// The number of the mark of what is offered; layers have those from zero on.
const OFFER: usize = usize::MAX;

impl DriverCard {
    pub(super) fn offered(&self) -> Result<PeerGpu, GpuError> {
        self.mark(OFFER)?;
        let mark = self.state().marks.get(&OFFER).map_or(0, |event| *event as usize);
        Ok(PeerGpu { device: self.device, context: self.context as usize, mark })
    }

    pub(super) fn fetch_from(&self, peer: PeerGpu, rows: Rectangle) -> Result<(), GpuError> {
        self.bind()?;
        self.reach(peer)?;
        // One's own offer is waited for too, which is nothing to wait for.
        self.wait_for_offer(peer)?;
        let context = peer.context as sys::CUcontext;
        if context == self.context {
            return self.copy_inside(rows);
        }
        if self.is_recorded()? {
            return self.copy_by_address(rows);
        }
        let Rectangle { from, to, width, .. } = rows;
        // SAFETY: see above.
        unsafe {
            if rows.rows == 1 {
                result::memcpy_peer_async(self.context, to, context, from, width, self.compute)
            } else {
                sys::cuMemcpy3DPeerAsync(&self.between(context, rows), self.compute).result()
            }
        }
        .map_err(failed("copying columns"))
    }

    /// Has the compute stream wait for what a GPU offered; the GPU is the calling thread's.
    pub(super) fn wait_for_offer(&self, peer: PeerGpu) -> Result<(), GpuError> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: see above.
        unsafe { result::stream::wait_event(self.compute, peer.mark as sys::CUevent, flags) }
            .map_err(failed("waiting for another GPU"))
    }

    /// Whether the compute stream is recorded, with this GPU's recording or another's.
    fn is_recorded(&self) -> Result<bool, GpuError> {
        // SAFETY: see above.
        let status = unsafe { result::stream::is_capturing(self.compute) }.map_err(failed("recording a step"))?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// Copies rows between GPUs in a way that can be recorded.
    fn copy_by_address(&self, rows: Rectangle) -> Result<(), GpuError> {
        let Rectangle { from, to, width, .. } = rows;
        // SAFETY: see above.
        unsafe {
            if rows.rows == 1 {
                sys::cuMemcpyAsync(to, from, width, self.compute)
            } else {
                sys::cuMemcpy2DAsync_v2(&plane(rows, sys::CUmemorytype::CU_MEMORYTYPE_UNIFIED), self.compute)
            }
        }
        .result()
        .map_err(failed("copying columns"))
    }

    /// Copies rows from one's own memory; the GPU is the calling thread's.
    pub(super) fn copy_inside(&self, rows: Rectangle) -> Result<(), GpuError> {
        let Rectangle { from, to, width, .. } = rows;
        // SAFETY: see above.
        unsafe {
            if rows.rows == 1 {
                result::memcpy_dtod_async(to, from, width, self.compute)
            } else {
                let plane = plane(rows, sys::CUmemorytype::CU_MEMORYTYPE_DEVICE);
                sys::cuMemcpy2DAsync_v2(&plane, self.compute).result()
            }
        }
        .map_err(failed("copying columns"))
    }

    /// Lets the GPU read another's memory itself, the first time and where it can: copies are as right without.
    fn reach(&self, peer: PeerGpu) -> Result<(), GpuError> {
        if peer.context == self.context as usize || self.state().reached.contains_key(&peer.context) {
            return Ok(());
        }
        let mut can = 0;
        // SAFETY: see above.
        let reads = unsafe {
            sys::cuDeviceCanAccessPeer(&mut can, self.device, peer.device)
                .result()
                .map_err(failed("asking for ways between GPUs"))?;
            can != 0 && is_allowed(sys::cuCtxEnablePeerAccess(peer.context as sys::CUcontext, 0))
        };
        self.state().reached.insert(peer.context, reads);
        Ok(())
    }

    fn between(&self, context: sys::CUcontext, rows: Rectangle) -> sys::CUDA_MEMCPY3D_PEER {
        sys::CUDA_MEMCPY3D_PEER {
            srcXInBytes: 0,
            srcY: 0,
            srcZ: 0,
            srcLOD: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: null(),
            srcDevice: rows.from,
            srcArray: null_mut(),
            srcContext: context,
            srcPitch: rows.from_pitch,
            srcHeight: rows.rows,
            dstXInBytes: 0,
            dstY: 0,
            dstZ: 0,
            dstLOD: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: null_mut(),
            dstDevice: rows.to,
            dstArray: null_mut(),
            dstContext: self.context,
            dstPitch: rows.to_pitch,
            dstHeight: rows.rows,
            WidthInBytes: rows.width,
            Height: rows.rows,
            Depth: 1,
        }
    }
}

/// Whether a GPU may read another's memory by what the driver says to who allows it: another engine of the process may have.
fn is_allowed(answer: sys::CUresult) -> bool {
    matches!(answer, sys::CUresult::CUDA_SUCCESS | sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
}

fn plane(rows: Rectangle, memory: sys::CUmemorytype) -> sys::CUDA_MEMCPY2D {
    sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: memory,
        srcHost: null(),
        srcDevice: rows.from,
        srcArray: null_mut(),
        srcPitch: rows.from_pitch,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: memory,
        dstHost: null_mut(),
        dstDevice: rows.to,
        dstArray: null_mut(),
        dstPitch: rows.to_pitch,
        WidthInBytes: rows.width,
        Height: rows.rows,
    }
}
