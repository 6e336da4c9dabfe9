//! NVIDIA's compiler at run time: CUDA C++ to machine code for one GPU.

use super::{
    NotCompiled,
    sources::{HEADERS, KernelFile, OPTIONS},
};
use crate::cuda::libraries::{self, Libraries};
use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;

/// What compiles kernels for a GPU.
pub(crate) trait KernelCompiler {
    /// Its version.
    fn version(&self) -> Result<(i32, i32), NotCompiled>;
    /// Whether it compiles for an architecture.
    fn knows(&self, sm: u32) -> Result<bool, NotCompiled>;
    /// Machine code of a file.
    fn compile(&self, file: &KernelFile, sm: u32) -> Result<Vec<u8>, NotCompiled>;
}

type Program = *mut c_void;
type NvrtcVersion = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
type NvrtcNumber = unsafe extern "C" fn(*mut c_int) -> c_int;
type Create = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
type NvrtcSize = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type NvrtcText = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;

/// `NVRTC_ERROR_COMPILATION`: the log says what is wrong with the source.
const WRONG_SOURCE: c_int = 6;
/// What is kept of a log (bytes): one wrong header can fill megabytes.
const LOG: usize = 8 << 10;

/// The library's functions. The library stays loaded until the process ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nvrtc {
    version: NvrtcVersion,
    architectures_count: NvrtcNumber,
    architectures: NvrtcNumber,
    create: Create,
    compile: Compile,
    log_size: NvrtcSize,
    log: NvrtcText,
    cubin_size: NvrtcSize,
    cubin: NvrtcText,
    destroy: Destroy,
}

impl Nvrtc {
    /// The library that was found on this host.
    pub fn find() -> Result<Self, NotCompiled> {
        Self::open(Libraries::find().nvrtc.found.as_deref().ok_or(NotCompiled::NoLibrary)?)
    }

    /// The library at a path.
    pub fn open(path: &Path) -> Result<Self, NotCompiled> {
        let unusable = |why: libloading::Error| NotCompiled::Unusable { path: path.to_owned(), why: why.to_string() };
        libraries::open_beside(path, "libnvrtc-builtins.so");
        // SAFETY: NVIDIA's library does nothing when it is loaded but set itself up; functions are of the types in its
        // header `nvrtc.h`, and stay where they are since the library is never closed.
        #[expect(unsafe_code, reason = "the lines above say why it is sound")]
        unsafe {
            let library = Library::new(path).map_err(unusable)?;
            let functions = Self {
                version: *library.get(b"nvrtcVersion").map_err(unusable)?,
                architectures_count: *library.get(b"nvrtcGetNumSupportedArchs").map_err(unusable)?,
                architectures: *library.get(b"nvrtcGetSupportedArchs").map_err(unusable)?,
                create: *library.get(b"nvrtcCreateProgram").map_err(unusable)?,
                compile: *library.get(b"nvrtcCompileProgram").map_err(unusable)?,
                log_size: *library.get(b"nvrtcGetProgramLogSize").map_err(unusable)?,
                log: *library.get(b"nvrtcGetProgramLog").map_err(unusable)?,
                cubin_size: *library.get(b"nvrtcGetCUBINSize").map_err(unusable)?,
                cubin: *library.get(b"nvrtcGetCUBIN").map_err(unusable)?,
                destroy: *library.get(b"nvrtcDestroyProgram").map_err(unusable)?,
            };
            std::mem::forget(library);
            Ok(functions)
        }
    }

    fn program(&self, file: &KernelFile) -> Result<Source<'_>, NotCompiled> {
        let (text, name) = (text("source", file.source)?, text("source", &format!("{}.cu", file.name))?);
        let texts = HEADERS.map(|(_, header)| header);
        let names = HEADERS.map(|(name, _)| name);
        let (texts, names) = (CStrings::new(&texts)?, CStrings::new(&names)?);
        let mut program: Program = std::ptr::null_mut();
        // SAFETY: texts end with a zero, and are read before the call returns; as many headers as it is told.
        #[expect(unsafe_code, reason = "the lines above say why it is sound")]
        let answer = unsafe {
            let (headers, names) = (texts.at(), names.at());
            (self.create)(&mut program, text.as_ptr(), name.as_ptr(), HEADERS.len() as c_int, headers, names)
        };
        answered("creating a program", answer)?;
        Ok(Source { nvrtc: self, program })
    }
}

impl KernelCompiler for Nvrtc {
    fn version(&self) -> Result<(i32, i32), NotCompiled> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: two places for a number each.
        #[expect(unsafe_code, reason = "the lines above say why it is sound")]
        answered("telling its version", unsafe { (self.version)(&mut major, &mut minor) })?;
        Ok((major, minor))
    }

    fn knows(&self, sm: u32) -> Result<bool, NotCompiled> {
        let mut count = 0;
        // SAFETY: a place for a number.
        #[expect(unsafe_code, reason = "the lines above say why it is sound")]
        answered("counting architectures", unsafe { (self.architectures_count)(&mut count) })?;
        let mut known = vec![0; count.clamp(0, 1024) as usize];
        if known.len() != count as usize {
            return Ok(false);
        }
        // SAFETY: as many places as it said that there are architectures.
        #[expect(unsafe_code, reason = "the lines above say why it is sound")]
        answered("listing architectures", unsafe { (self.architectures)(known.as_mut_ptr()) })?;
        Ok(known.contains(&(sm as c_int)))
    }

    fn compile(&self, file: &KernelFile, sm: u32) -> Result<Vec<u8>, NotCompiled> {
        let program = self.program(file)?;
        let architecture = format!("--gpu-architecture=sm_{sm}");
        let options = [OPTIONS.as_slice(), &[architecture.as_str()]].concat();
        let options = CStrings::new(&options)?;
        // SAFETY: a program that was just created; options end with a zero, and there are as many as it is told.
        #[expect(unsafe_code, reason = "the lines above say why it is sound")]
        let answer = unsafe { (self.compile)(program.program, options.count(), options.at()) };
        if answer == WRONG_SOURCE {
            return Err(NotCompiled::Source { file: format!("{}.cu", file.name), log: program.log()? });
        }
        answered("compiling", answer)?;
        program.cubin()
    }
}

/// A program of the compiler's, given back when it is dropped.
struct Source<'a> {
    nvrtc: &'a Nvrtc,
    program: Program,
}

impl Source<'_> {
    fn log(&self) -> Result<String, NotCompiled> {
        let mut log = self.bytes(self.nvrtc.log_size, self.nvrtc.log)?;
        log.truncate(LOG);
        let log = CStr::from_bytes_until_nul(&log).map_or(log.as_slice(), CStr::to_bytes);
        Ok(String::from_utf8_lossy(log).trim().to_owned())
    }

    fn cubin(&self) -> Result<Vec<u8>, NotCompiled> {
        self.bytes(self.nvrtc.cubin_size, self.nvrtc.cubin)
    }

    fn bytes(&self, size: NvrtcSize, copy: NvrtcText) -> Result<Vec<u8>, NotCompiled> {
        let mut len = 0;
        // SAFETY: the program is kept until this is dropped; a place for a number.
        #[expect(unsafe_code, reason = "the lines above say why it is sound")]
        answered("telling a size", unsafe { size(self.program, &mut len) })?;
        let mut out = vec![0u8; len];
        // SAFETY: as above; room for as many bytes as it said.
        #[expect(unsafe_code, reason = "the lines above say why it is sound")]
        answered("handing over", unsafe { copy(self.program, out.as_mut_ptr().cast()) })?;
        Ok(out)
    }
}

impl Drop for Source<'_> {
    fn drop(&mut self) {
        // SAFETY: created in `program`, destroyed once.
        #[expect(unsafe_code, reason = "the lines above say why it is sound")]
        unsafe {
            (self.nvrtc.destroy)(&mut self.program);
        }
    }
}

/// Texts as C has them: pointers to what ends with a zero.
struct CStrings {
    /// What is pointed to; it stays where it is when this moves.
    _texts: Vec<CString>,
    pointers: Vec<*const c_char>,
}

impl CStrings {
    fn new(texts: &[&str]) -> Result<Self, NotCompiled> {
        let texts = texts.iter().map(|each| text("options", each)).collect::<Result<Vec<_>, _>>()?;
        let pointers = texts.iter().map(|text| text.as_ptr()).collect();
        Ok(Self { _texts: texts, pointers })
    }

    fn at(&self) -> *const *const c_char {
        self.pointers.as_ptr()
    }

    fn count(&self) -> c_int {
        self.pointers.len() as c_int
    }
}

fn text(what: &str, text: &str) -> Result<CString, NotCompiled> {
    CString::new(text).map_err(|_| NotCompiled::Source { file: what.to_owned(), log: "it holds a zero".into() })
}

fn answered(call: &'static str, answer: c_int) -> Result<(), NotCompiled> {
    if answer == 0 { Ok(()) } else { Err(NotCompiled::Compiler { call, answer }) }
}
