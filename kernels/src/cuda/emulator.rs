//! The emulator as a machine: kernels compiled by the host's C++ compiler, run block by block on the processor
//! (`emulator/emulator.cpp`). For tests only.

use super::GpuInfo;
use super::machine::{Arg, GpuError, Launch, Machine, PeerGpu, Product, Queue, Recorded, Rectangle};
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

/// Rows from which products are a library's.
const LIBRARY_ROWS: usize = 256;

type EmulatorRun = unsafe extern "C" fn(*const c_char, *const u32, *const u32, u32, *mut *mut c_void) -> c_int;
type Take = unsafe extern "C" fn(usize) -> *mut c_void;
type Give = unsafe extern "C" fn(*mut c_void, usize);

/// Kernels on the processor.
#[derive(Debug)]
pub(crate) struct Emulator {
    library: libloading::Library,
    /// One kernel at a time: the emulator's fibers are one set.
    turn: Mutex<()>,
}

impl Emulator {
    /// The emulator, compiled the first time; or why there is none.
    pub fn get() -> Result<Arc<dyn Machine>, String> {
        static ONE: OnceLock<Result<Arc<Emulator>, String>> = OnceLock::new();
        ONE.get_or_init(|| Self::compile().map(Arc::new)).clone().map(|one| one as Arc<dyn Machine>)
    }

    fn compile() -> Result<Self, String> {
        if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
            return Err("the emulator is written for x86-64 and Linux".into());
        }
        let here = super::tests::here().join("src/cuda");
        let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
        let library = folder.path().join("emulator.so");
        compile(&here, &library)?;
        // SAFETY: the library is ours; what it does when loaded is to list its kernels.
        #[expect(unsafe_code, reason = "the lines above say why it is sound")]
        let library = unsafe { libloading::Library::new(&library) }.map_err(|e| e.to_string())?;
        Ok(Self { library, turn: Mutex::new(()) })
    }

    fn symbol<T>(&self, name: &[u8]) -> libloading::Symbol<'_, T> {
        // SAFETY: types are those that emulator.cpp declares.
        #[expect(unsafe_code, reason = "the lines above say why it is sound")]
        unsafe { self.library.get(name) }.unwrap()
    }

    fn turn(&self) -> std::sync::MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn compile(here: &Path, library: &Path) -> Result<(), String> {
    let options =
        ["-std=c++17", "-O2", "-mf16c", "-mfma", "-ffp-contract=off", "-fno-strict-aliasing", "-shared", "-fPIC"];
    let done = Command::new("g++")
        .args(options)
        .arg("-I")
        .arg(here.join("device"))
        .arg("-I")
        .arg(here.join("emulator"))
        .arg(here.join("emulator/emulator.cpp"))
        .arg("-o")
        .arg(library)
        .output()
        .map_err(|e| format!("g++ cannot be run: {e}"))?;
    // A compiler that is there and refuses the kernels is no reason to skip a test.
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Ok(())
}

impl Machine for Emulator {
    fn processors(&self) -> usize {
        2
    }

    fn about(&self) -> GpuInfo {
        GpuInfo { name: "emulator".into(), ..GpuInfo::default() }
    }

    fn free_bytes(&self) -> Result<usize, GpuError> {
        Ok(1 << 30)
    }

    fn take(&self, bytes: usize) -> Result<u64, GpuError> {
        // SAFETY: it takes a size and answers with memory or nothing.
        #[expect(unsafe_code, reason = "the lines above say why it is sound")]
        let at = unsafe { self.symbol::<Take>(b"tsnode_alloc")(bytes) };
        if at.is_null() { Err(GpuError::Memory { wanted: bytes }) } else { Ok(at as u64) }
    }

    fn give(&self, at: u64, bytes: usize) {
        // SAFETY: memory of this size, taken there.
        #[expect(unsafe_code, reason = "the lines above say why it is sound")]
        unsafe {
            self.symbol::<Give>(b"tsnode_free")(at as *mut c_void, bytes);
        }
    }

    fn upload(&self, _: Queue, to: u64, bytes: &[u8]) -> Result<(), GpuError> {
        // SAFETY: callers copy inside memory they took.
        #[expect(unsafe_code, reason = "the lines above say why it is sound")]
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, bytes.len());
        }
        Ok(())
    }

    fn download(&self, _: Queue, from: u64, out: &mut [u8]) -> Result<(), GpuError> {
        // SAFETY: as above.
        #[expect(unsafe_code, reason = "the lines above say why it is sound")]
        unsafe {
            std::ptr::copy_nonoverlapping(from as *const u8, out.as_mut_ptr(), out.len());
        }
        Ok(())
    }

    fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<(), GpuError> {
        // SAFETY: as above.
        #[expect(unsafe_code, reason = "the lines above say why it is sound")]
        unsafe {
            std::ptr::copy(from as *const u8, to as *mut u8, bytes);
        }
        Ok(())
    }

    fn launch(&self, _: Queue, launch: Launch, args: &[Arg]) -> Result<(), GpuError> {
        let _turn = self.turn();
        let Launch { kernel, grid, threads, shared, .. } = launch;
        let mut slots: Vec<u64> = args.iter().map(|arg| arg.slot()).collect();
        let mut places: Vec<*mut c_void> = slots.iter_mut().map(|slot| std::ptr::from_mut(slot).cast()).collect();
        let name = CString::new(kernel).unwrap();
        // SAFETY: arguments are those of the kernel; one that is wrong ends the test, which is what it is for.
        #[expect(unsafe_code, reason = "the lines above say why it is sound")]
        let known = unsafe {
            let run = self.symbol::<EmulatorRun>(b"tsnode_launch");
            run(name.as_ptr(), grid.as_ptr(), [threads, 1, 1].as_ptr(), shared, places.as_mut_ptr())
        };
        assert_eq!(known, 1, "no kernel {kernel}");
        Ok(())
    }

    /// In place of a library, from so many rows on that our own kernels are still what most tests run.
    fn product(&self, product: Product, x: u64, w: u64, out: u64) -> Result<bool, GpuError> {
        let Product { brain, rows, outs, cols, stride } = product;
        if rows < LIBRARY_ROWS || brain {
            return Ok(false);
        }
        let numbers = |at: u64, count: usize| -> Vec<f32> {
            // SAFETY: callers multiply inside memory they took.
            #[expect(unsafe_code, reason = "the lines above say why it is sound")]
            let halves = unsafe { std::slice::from_raw_parts(at as *const half::f16, count) };
            halves.iter().map(|x| x.to_f32()).collect()
        };
        let (x, w) = (numbers(x, rows * cols), numbers(w, outs * cols));
        for (row, x) in x.chunks_exact(cols).enumerate() {
            for (output, w) in w.chunks_exact(cols).enumerate() {
                let sum: f32 = x.iter().zip(w).map(|(x, w)| x * w).sum();
                // SAFETY: as above.
                #[expect(unsafe_code, reason = "the lines above say why it is sound")]
                unsafe {
                    (out as *mut f32).add(row * stride + output).write(sum);
                }
            }
        }
        Ok(true)
    }

    fn mark(&self, _: usize) -> Result<(), GpuError> {
        Ok(())
    }

    fn wait_for(&self, _: usize) -> Result<(), GpuError> {
        Ok(())
    }

    fn offer(&self) -> Result<PeerGpu, GpuError> {
        Ok(PeerGpu::default())
    }

    fn fetch(&self, _: PeerGpu, rows: Rectangle) -> Result<(), GpuError> {
        self.lay_out(rows)
    }

    fn follow(&self, _: PeerGpu) -> Result<(), GpuError> {
        Ok(())
    }

    fn reaches(&self, _: PeerGpu) -> bool {
        true
    }

    fn finish(&self) -> Result<(), GpuError> {
        Ok(())
    }

    fn record(&self) -> Result<bool, GpuError> {
        Ok(false)
    }

    fn recorded(&self) -> Result<Recorded, GpuError> {
        Ok(Recorded(0))
    }

    fn replay(&self, _: Recorded) -> Result<(), GpuError> {
        Ok(())
    }

    fn forget(&self, _: Recorded) {}

    fn forget_recorded(&self) {}
}
