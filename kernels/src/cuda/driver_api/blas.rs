//! Products of many rows by cuBLASLt, where it is found.
#![expect(unsafe_code, reason = "handles are cuBLASLt's own and live as long as this; addresses are the caller's")]

use super::{GpuError, Product, failed};
use cudarc::{
    cublaslt::{result, sys},
    driver::{result as driver, sys as cuda},
};
use std::collections::BTreeMap;
use std::ffi::c_void;

/// Memory for the library's own use (bytes): what its documentation advises for Hopper.
const WORKSPACE: usize = 32 << 20;

/// The library, and how it does the products it was asked for.
#[derive(Debug)]
pub(super) struct Blas {
    handle: sys::cublasLtHandle_t,
    workspace: u64,
    ways: BTreeMap<(Product, Aligned), Option<MatmulPlan>>,
}

/// Powers of two that the addresses of weights, rows and results are multiples of: a way may read more at once than an
/// address allows, and the library takes all of them for multiples of [`MOST_ALIGNED`] if it is told nothing.
type Aligned = [u32; 3];
/// Nothing is gained by addresses that are multiples of more.
const MOST_ALIGNED: u32 = 256;

fn aligned(at: u64) -> u32 {
    1 << at.trailing_zeros().min(MOST_ALIGNED.ilog2())
}

/// How one shape is multiplied.
#[derive(Debug)]
struct MatmulPlan {
    how: sys::cublasLtMatmulDesc_t,
    weights: sys::cublasLtMatrixLayout_t,
    rows: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

fn no(error: result::CublasError) -> GpuError {
    GpuError::Failed { call: "cuBLASLt", answer: error.to_string() }
}

/// Whether the library refused what it was asked, so that nothing is under way.
fn refused(error: &result::CublasError) -> bool {
    use sys::cublasStatus_t::{CUBLAS_STATUS_INVALID_VALUE as WRONG, CUBLAS_STATUS_NOT_SUPPORTED as NONE};
    matches!(error.0, WRONG | NONE)
}

impl Blas {
    /// With the GPU that is the calling thread's.
    pub fn new() -> Result<Self, GpuError> {
        let handle = result::create_handle().map_err(no)?;
        // SAFETY: a size.
        let workspace = unsafe { driver::malloc_sync(WORKSPACE) }.map_err(failed("taking memory"))?;
        Ok(Self { handle, workspace, ways: BTreeMap::new() })
    }

    /// Multiplies; `false` for a shape that the library has no way for, or refuses to go the way it named.
    pub fn product(
        &mut self,
        product: Product,
        x: u64,
        w: u64,
        out: u64,
        stream: cuda::CUstream,
    ) -> Result<bool, GpuError> {
        let handle = self.handle;
        let key = (product, [w, x, out].map(aligned));
        let place = self.ways.entry(key).or_insert_with(|| MatmulPlan::find(handle, product, key.1).ok());
        let Some(way) = place else { return Ok(false) };
        let (one, zero) = (1.0f32, 0.0f32);
        let at = |address: u64| address as *const c_void;
        // SAFETY: see the head of the file; the numbers are read before the call returns.
        let done = unsafe {
            result::matmul(
                handle,
                way.how,
                std::ptr::from_ref(&one).cast(),
                std::ptr::from_ref(&zero).cast(),
                at(w),
                way.weights,
                at(x),
                way.rows,
                at(out),
                way.out,
                out as *mut c_void,
                way.out,
                &way.algorithm,
                self.workspace as *mut c_void,
                WORKSPACE,
                stream.cast(),
            )
        };
        match done {
            Ok(()) => Ok(true),
            Err(error) if refused(&error) => {
                // It would be refused again.
                *place = None;
                Ok(false)
            }
            Err(error) => Err(no(error)),
        }
    }
}

impl MatmulPlan {
    /// Columns come first in the library's matrices: ours, `[row][column]`, are its turned ones. So the result, `[row][output]`
    /// here, is a matrix of outputs × rows there: weights turned, times rows.
    fn find(
        handle: sys::cublasLtHandle_t,
        product: Product,
        [w, x, out]: Aligned,
    ) -> Result<Self, result::CublasError> {
        use sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA as TURN;
        use sys::cublasLtMatmulPreferenceAttributes_t::{
            CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES as SPACE, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES as A,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES as B, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES as C,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES as D,
        };
        // The matrix that is added to is that of the result.
        let alignments = [(A, w), (B, x), (C, out), (D, out)];
        let Product { brain, rows, outs, cols, stride } = product;
        let single = sys::cudaDataType_t::CUDA_R_32F;
        let kind = if brain { sys::cudaDataType_t::CUDA_R_16BF } else { sys::cudaDataType_t::CUDA_R_16F };
        let layout = |kind, first: usize, second: usize, apart: usize| {
            result::create_matrix_layout(kind, first as u64, second as u64, apart as i64)
        };
        let how = result::create_matmul_desc(sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, single)?;
        // CUBLAS_OP_T.
        let turned = 1i32;
        let (weights, x, out) =
            (layout(kind, cols, outs, cols)?, layout(kind, cols, rows, cols)?, layout(single, outs, rows, stride)?);
        let preference = result::create_matmul_pref()?;
        // SAFETY: see the head of the file; attributes are of the types the library says.
        let found = unsafe {
            result::set_matmul_desc_attribute(how, TURN, std::ptr::from_ref(&turned).cast(), size_of_val(&turned))?;
            let space = WORKSPACE;
            result::set_matmul_pref_attribute(
                preference,
                SPACE,
                std::ptr::from_ref(&space).cast(),
                size_of_val(&space),
            )?;
            for (which, bytes) in alignments {
                result::set_matmul_pref_attribute(
                    preference,
                    which,
                    std::ptr::from_ref(&bytes).cast(),
                    size_of_val(&bytes),
                )?;
            }
            let found = result::get_matmul_algo_heuristic(handle, how, weights, x, out, out, preference);
            result::destroy_matmul_pref(preference)?;
            found?
        };
        Ok(Self { how, weights, rows: x, out, algorithm: found.algo })
    }
}

impl Drop for MatmulPlan {
    fn drop(&mut self) {
        // SAFETY: see the head of the file; the library reads descriptions only while it is asked.
        unsafe {
            let _ = result::destroy_matmul_desc(self.how);
            for layout in [self.weights, self.rows, self.out] {
                let _ = result::destroy_matrix_layout(layout);
            }
        }
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        self.ways.clear();
        // SAFETY: see the head of the file; nothing runs any more.
        unsafe {
            let _ = driver::free_sync(self.workspace);
            let _ = result::destroy_handle(self.handle);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::aligned;

    #[test]
    fn addresses_are_told_as_they_are_and_never_as_more() {
        let found =
            [0x7f00_0000_0000u64, 0x7f00_0000_0100, 0x7f00_0000_0180, 0x7f00_0000_0012, 0x7f00_0000_0001].map(aligned);
        assert_eq!(found, [256, 256, 128, 2, 1]);
    }
}
