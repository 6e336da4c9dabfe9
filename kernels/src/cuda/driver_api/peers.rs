//! What a GPU copies from others of the host, or from itself, in its compute stream.
//!
//! Events and copies are the driver's own across contexts: a stream waits for what an event of any context was recorded for
//! when it was asked to, and peer copies go straight from GPU to GPU where that can be, and by way of the host elsewhere.
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
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: see above. One's own offer is waited for too, which is nothing to wait for.
        unsafe { result::stream::wait_event(self.compute, peer.mark as sys::CUevent, flags) }
            .map_err(failed("waiting for another GPU"))?;
        let context = peer.context as sys::CUcontext;
        if context == self.context {
            return self.copy_inside(rows);
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

    /// Copies rows from one's own memory; the GPU is the calling thread's.
    pub(super) fn copy_inside(&self, rows: Rectangle) -> Result<(), GpuError> {
        let Rectangle { from, to, width, .. } = rows;
        // SAFETY: see above.
        unsafe {
            if rows.rows == 1 {
                result::memcpy_dtod_async(to, from, width, self.compute)
            } else {
                sys::cuMemcpy2DAsync_v2(&inside(rows), self.compute).result()
            }
        }
        .map_err(failed("copying columns"))
    }

    /// Lets the GPU read another's memory itself, the first time and where it can: copies are as right without.
    fn reach(&self, peer: PeerGpu) -> Result<(), GpuError> {
        let met = !self.state().reached.insert(peer.context);
        if met || peer.context == self.context as usize {
            return Ok(());
        }
        let mut can = 0;
        // SAFETY: see above. What another engine of the process has allowed already is an error of no weight.
        unsafe {
            sys::cuDeviceCanAccessPeer(&mut can, self.device, peer.device)
                .result()
                .map_err(failed("asking for ways between GPUs"))?;
            if can != 0 {
                let _ = sys::cuCtxEnablePeerAccess(peer.context as sys::CUcontext, 0).result();
            }
        }
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

fn inside(rows: Rectangle) -> sys::CUDA_MEMCPY2D {
    sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcHost: null(),
        srcDevice: rows.from,
        srcArray: null_mut(),
        srcPitch: rows.from_pitch,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: null_mut(),
        dstDevice: rows.to,
        dstArray: null_mut(),
        dstPitch: rows.to_pitch,
        WidthInBytes: rows.width,
        Height: rows.rows,
    }
}
