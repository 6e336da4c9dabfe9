//! A GPU's kernels: modules by file, loaded the first time, and functions by name. A file may be there twice, as PTX and as
//! machine code for the GPU; launches run whichever it is turned to.
#![expect(unsafe_code, reason = "see the head of `driver_api.rs`: modules are the driver's own, given back once")]

use super::{GpuError, failed};
use crate::cuda::jit::{Image, Kernels, sources};
use cudarc::driver::{result, sys};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;

/// Dynamic shared memory that a kernel has without being asked for more (bytes).
const SHARED: u32 = 48 << 10;

/// What is loaded.
#[derive(Debug, Default)]
pub(super) struct Modules {
    modules: BTreeMap<(&'static str, Image), sys::CUmodule>,
    functions: BTreeMap<(&'static str, Image, &'static str), LoadedKernel>,
    /// Files whose launches run machine code.
    turned: BTreeSet<&'static str>,
    /// How that was chosen.
    pub chosen: Kernels,
}

/// A kernel that was found.
#[derive(Clone, Copy, Debug)]
struct LoadedKernel {
    handle: sys::CUfunction,
    /// Dynamic shared memory that it may be launched with (bytes).
    shared: u32,
}

impl LoadedKernel {
    /// Lets it be launched with so much shared memory. It is never let less again: launches of a kernel differ in that, and
    /// what was recorded may be of more than the last.
    fn allow(&mut self, shared: u32) -> Result<(), GpuError> {
        if shared > self.shared {
            let which = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: see above.
            unsafe { result::function::set_function_attribute(self.handle, which, shared as i32) }
                .map_err(failed("asking for shared memory"))?;
            self.shared = shared;
        }
        Ok(())
    }
}

impl Modules {
    /// A kernel that may be launched with so much dynamic shared memory (bytes), and which image it is of. PTX is loaded the first
    /// time: the driver compiles it for its GPU then, and keeps what it made.
    pub fn function(
        &mut self,
        file: &'static str,
        kernel: &'static str,
        shared: u32,
    ) -> Result<(sys::CUfunction, Image), GpuError> {
        let image = if self.turned.contains(file) { Image::Compiled } else { Image::Ahead };
        if let Some(function) = self.functions.get_mut(&(file, image, kernel)) {
            function.allow(shared)?;
            return Ok((function.handle, image));
        }
        let module = self.module(file, image)?;
        let name = CString::new(kernel).map_err(|_| GpuError::Unsupported("a kernel without a name".into()))?;
        // SAFETY: see above.
        let handle = unsafe { result::module::get_function(module, name) }.map_err(failed("finding a kernel"))?;
        let mut function = LoadedKernel { handle, shared: SHARED };
        function.allow(shared)?;
        self.functions.insert((file, image, kernel), function);
        Ok((handle, image))
    }

    fn module(&mut self, file: &'static str, image: Image) -> Result<sys::CUmodule, GpuError> {
        if let Some(loaded) = self.modules.get(&(file, image)) {
            return Ok(*loaded);
        }
        let text = sources::file(file).and_then(|file| CString::new(file.ptx).ok());
        let text = text.ok_or_else(|| GpuError::Unsupported(format!("a file {file} of kernels")))?;
        let loaded = load(text.as_bytes_with_nul())?;
        self.modules.insert((file, image), loaded);
        Ok(loaded)
    }

    /// Loads a file's machine code beside its PTX.
    pub fn load(&mut self, file: &'static str, cubin: &[u8]) -> Result<(), GpuError> {
        // The driver is not told a size and reads as much as the image says that it has: what is no image is not shown it.
        if !cubin.starts_with(b"\x7fELF") {
            return Err(GpuError::Unsupported("machine code that is none".into()));
        }
        self.forget(file);
        let loaded = load(cubin)?;
        self.modules.insert((file, Image::Compiled), loaded);
        Ok(())
    }

    /// Has launches of a file's kernels run one or the other; machine code that is not loaded is not turned to.
    pub fn turn(&mut self, file: &'static str, image: Image) {
        if image == Image::Compiled && self.modules.contains_key(&(file, image)) {
            self.turned.insert(file);
        } else {
            self.turned.remove(file);
        }
    }

    /// Forgets a file's machine code, which nothing runs any more.
    pub fn forget(&mut self, file: &'static str) {
        self.turned.remove(file);
        self.functions.retain(|(of, image, _), _| *of != file || *image != Image::Compiled);
        if let Some(module) = self.modules.remove(&(file, Image::Compiled)) {
            // SAFETY: see above. What a lost GPU does not give back is lost with it.
            let _ = unsafe { result::module::unload(module) };
        }
    }

    /// Gives all of it back; nothing runs any more.
    pub fn give_back(&mut self) {
        self.functions.clear();
        for module in std::mem::take(&mut self.modules).into_values() {
            // SAFETY: see above.
            let _ = unsafe { result::module::unload(module) };
        }
    }
}

fn load(image: &[u8]) -> Result<sys::CUmodule, GpuError> {
    // SAFETY: text that ends with a zero, or machine code that says how long it is.
    unsafe { result::module::load_data(image.as_ptr().cast()) }.map_err(failed("compiling kernels"))
}
