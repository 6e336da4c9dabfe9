//! Columns that GPUs exchange by NCCL, where it is found: each sends its own to all others and takes theirs, in its compute
//! stream.
//!
//! One thread asks for all GPUs, so an exchange is one group: a call outside of one would wait for GPUs that nobody has
//! asked yet. What NCCL has no way to call off is asked by a thread of its own while it is tried.
//!
//! SAFETY of all calls: functions are of the types in NCCL's header `nccl.h`; communicators are those that it gave, and are
//! used until they are given back or aborted once; seats are of GPUs that live longer than this, and addresses of memory that
//! callers hold while work on it is under way.
#![expect(unsafe_code, reason = "calls of a library of others; each block says why it is sound")]

use super::failed;
use crate::cuda::{
    gather_way::NoNccl,
    libraries::Libraries,
    machine::{GpuError, GpuSeat},
};
use cudarc::driver::{result, sys};
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

type Communicator = *mut c_void;
type NcclNumber = unsafe extern "C" fn(*mut c_int) -> c_int;
type ErasedFn = unsafe extern "C" fn() -> c_int;
type InitAll = unsafe extern "C" fn(*mut Communicator, c_int, *const c_int) -> c_int;
type SendBytes = unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Communicator, sys::CUstream) -> c_int;
type TakeBytes = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Communicator, sys::CUstream) -> c_int;
type NcclEnd = unsafe extern "C" fn(Communicator) -> c_int;
type AsyncError = unsafe extern "C" fn(Communicator, *mut c_int) -> c_int;
type NcclText = unsafe extern "C" fn(c_int) -> *const c_char;

/// `ncclUint8`.
const BYTE: c_int = 1;
/// `ncclInProgress`, which is no error.
const IN_PROGRESS: c_int = 7;

/// The library's functions. The library stays loaded until the process ends.
#[derive(Clone, Copy, Debug)]
struct Functions {
    version: NcclNumber,
    init_all: InitAll,
    group_start: ErasedFn,
    group_end: ErasedFn,
    send: SendBytes,
    receive: TakeBytes,
    destroy: NcclEnd,
    abort: NcclEnd,
    async_error: AsyncError,
    error_string: NcclText,
}

/// Bytes that one GPU sends and another takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) struct GpuTransfer {
    /// Who sends, by its seat, and from where.
    pub from: usize,
    pub own: u64,
    /// Who takes, and to where.
    pub to: usize,
    pub into: u64,
    pub bytes: usize,
}

/// A communicator for each of several GPUs.
#[derive(Debug)]
pub(in crate::cuda) struct Nccl {
    functions: Functions,
    /// Addresses: they are the library's alone.
    communicators: Vec<usize>,
    seats: Vec<GpuSeat>,
    version: c_int,
    aborted: AtomicBool,
}

/// Held where memory is taken or given back, and where a group is asked for: either of the first may wait for all that GPUs
/// have under way, and half a group waits for GPUs that are asked next.
pub(super) fn memory_or_group() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a thread of its own answers in time; one that does not is left alone.
fn within<T: Send + 'static>(patience: Duration, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (say, hear) = sync_channel(1);
    std::thread::Builder::new().name("nccl".into()).spawn(move || say.send(work()).is_ok()).ok()?;
    hear.recv_timeout(patience).ok()
}

impl Functions {
    fn find() -> Result<Self, NoNccl> {
        Self::open(Libraries::find().nccl.found.as_deref().ok_or(NoNccl::NoLibrary)?)
    }

    fn open(path: &Path) -> Result<Self, NoNccl> {
        let unusable = |why: libloading::Error| NoNccl::Unusable { path: path.to_owned(), why: why.to_string() };
        // SAFETY: see the head of the file; NVIDIA's library does nothing when it is loaded but set itself up, and functions
        // stay where they are since it is never closed.
        unsafe {
            let library = Library::new(path).map_err(unusable)?;
            let functions = Self {
                version: *library.get(b"ncclGetVersion").map_err(unusable)?,
                init_all: *library.get(b"ncclCommInitAll").map_err(unusable)?,
                group_start: *library.get(b"ncclGroupStart").map_err(unusable)?,
                group_end: *library.get(b"ncclGroupEnd").map_err(unusable)?,
                send: *library.get(b"ncclSend").map_err(unusable)?,
                receive: *library.get(b"ncclRecv").map_err(unusable)?,
                destroy: *library.get(b"ncclCommDestroy").map_err(unusable)?,
                abort: *library.get(b"ncclCommAbort").map_err(unusable)?,
                async_error: *library.get(b"ncclCommGetAsyncError").map_err(unusable)?,
                error_string: *library.get(b"ncclGetErrorString").map_err(unusable)?,
            };
            std::mem::forget(library);
            Ok(functions)
        }
    }

    fn answered(self, call: &'static str, answer: c_int) -> Result<(), GpuError> {
        if answer == 0 {
            return Ok(());
        }
        // SAFETY: see the head of the file; the text is the library's for good.
        let text = unsafe {
            let text = (self.error_string)(answer);
            if text.is_null() { None } else { Some(CStr::from_ptr(text).to_string_lossy().into_owned()) }
        };
        Err(GpuError::Failed { call, answer: text.unwrap_or_else(|| format!("NCCL answers {answer}")) })
    }

    /// Communicators of GPUs by their numbers, as addresses.
    fn start(self, devices: &[c_int]) -> Result<Vec<usize>, GpuError> {
        let mut communicators = vec![std::ptr::null_mut(); devices.len()];
        // SAFETY: see the head of the file; as many places as devices.
        let answer = unsafe { (self.init_all)(communicators.as_mut_ptr(), devices.len() as c_int, devices.as_ptr()) };
        self.answered("starting NCCL", answer)?;
        Ok(communicators.into_iter().map(|one| one as usize).collect())
    }
}

impl Nccl {
    /// Of GPUs, each of which is there once.
    pub fn start(seats: Vec<GpuSeat>, patience: Duration) -> Result<Self, NoNccl> {
        let functions = Functions::find()?;
        let devices: Vec<c_int> = seats.iter().map(|seat| seat.device).collect();
        if devices.iter().enumerate().any(|(at, device)| devices[..at].contains(device)) {
            return Err(NoNccl::Twice);
        }
        let mut version = 0;
        // SAFETY: a place for a number.
        functions.answered("telling NCCL's version", unsafe { (functions.version)(&mut version) })?;
        let started = within(patience, move || functions.start(&devices));
        let communicators = started.ok_or(NoNccl::Late { call: "starting", patience })??;
        Ok(Self { functions, communicators, seats, version, aborted: AtomicBool::new(false) })
    }

    /// Its version.
    pub fn version(&self) -> (i32, i32, i32) {
        // Two digits for the minor one since 2.9.
        let thousand = if self.version < 10_000 { 1000 } else { 10_000 };
        (self.version / thousand, self.version % thousand / 100, self.version % 100)
    }

    /// Asks all GPUs for an exchange, which is under way when this returns.
    pub fn exchange(&self, transfers: &[GpuTransfer]) -> Result<(), GpuError> {
        let _turn = memory_or_group();
        self.ask_for_all(transfers)
    }

    /// The same, by a thread that may never come back: the first exchange makes ways between GPUs.
    pub fn try_exchange(
        self: &std::sync::Arc<Self>,
        transfers: &[GpuTransfer],
        patience: Duration,
    ) -> Result<(), NoNccl> {
        let (one, transfers) = (self.clone(), transfers.to_vec());
        // Without a turn, which it would keep.
        let asked = within(patience, move || one.ask_for_all(&transfers));
        Ok(asked.ok_or(NoNccl::Late { call: "an exchange", patience })??)
    }

    fn ask_for_all(&self, transfers: &[GpuTransfer]) -> Result<(), GpuError> {
        let (functions, call) = (self.functions, "exchanging columns");
        // SAFETY: see the head of the file.
        functions.answered(call, unsafe { (functions.group_start)() })?;
        let asked = transfers.iter().try_for_each(|transfer| self.ask_for(transfer));
        // A group is ended also if something was refused, or what the thread asks next would be of it.
        // SAFETY: see the head of the file.
        let ended = functions.answered(call, unsafe { (functions.group_end)() });
        asked.and(ended)
    }

    fn ask_for(&self, transfer: &GpuTransfer) -> Result<(), GpuError> {
        let GpuTransfer { from, own, to, into, bytes } = *transfer;
        let functions = self.functions;
        let place = |rank: usize| (self.communicators[rank] as Communicator, self.seats[rank].stream as sys::CUstream);
        let ((sender, out), (taker, stream)) = (place(from), place(to));
        // SAFETY: see the head of the file.
        unsafe {
            let sent = (functions.send)(own as *const c_void, bytes, BYTE, to as c_int, sender, out);
            functions.answered("sending columns", sent)?;
            let taken = (functions.receive)(into as *mut c_void, bytes, BYTE, from as c_int, taker, stream);
            functions.answered("taking columns", taken)
        }
    }

    /// Waits until all GPUs have done what their compute streams were asked for; whether they have, in time.
    ///
    /// Not by waiting for one after the other: of one that is lost the others would wait for ever for what it has not sent.
    pub fn settle(&self, patience: Option<Duration>) -> Result<bool, GpuError> {
        let settled = self.wait(patience, || self.check())?;
        self.check().map(|()| settled)
    }

    /// The same behind [`Self::abort`].
    pub fn rest(&self, patience: Duration) -> Result<bool, GpuError> {
        self.wait(Some(patience), || Ok(()))
    }

    fn wait(&self, patience: Option<Duration>, check: impl Fn() -> Result<(), GpuError>) -> Result<bool, GpuError> {
        let began = Instant::now();
        while !self.is_at_rest()? {
            check()?;
            if patience.is_some_and(|patience| began.elapsed() > patience) {
                return Ok(false);
            }
            std::thread::yield_now();
        }
        Ok(true)
    }

    fn is_at_rest(&self) -> Result<bool, GpuError> {
        let mut all = true;
        for seat in &self.seats {
            // SAFETY: see the head of the file.
            let answer = unsafe {
                result::ctx::set_current(seat.context as sys::CUcontext).map_err(failed("turning to a GPU"))?;
                sys::cuStreamQuery(seat.stream as sys::CUstream)
            };
            match answer {
                sys::CUresult::CUDA_ERROR_NOT_READY => all = false,
                answer => answer.result().map_err(failed("waiting for work"))?,
            }
        }
        Ok(all)
    }

    /// Whether nothing failed meanwhile.
    fn check(&self) -> Result<(), GpuError> {
        for communicator in &self.communicators {
            let mut meanwhile = 0;
            // SAFETY: see the head of the file; a place for a number.
            let answer = unsafe { (self.functions.async_error)(*communicator as Communicator, &mut meanwhile) };
            self.functions.answered("asking NCCL for errors", answer)?;
            if meanwhile != IN_PROGRESS {
                self.functions.answered("exchanging columns", meanwhile)?;
            }
        }
        Ok(())
    }

    /// Ends what is under way, for good: GPUs that wait for others stop waiting.
    pub fn abort(&self, patience: Duration) {
        if self.aborted.swap(true, Ordering::SeqCst) {
            return;
        }
        let began = Instant::now();
        let abort = self.functions.abort;
        // All at once, since one may wait for what another is to end.
        let asked = self.communicators.iter().map(|communicator| {
            let (communicator, (say, hear)) = (*communicator, sync_channel(1));
            // SAFETY: see the head of the file; any thread may abort.
            let work = move || say.send(unsafe { abort(communicator as Communicator) });
            // A thread that does not start ends nothing, and is waited for in vain.
            let _ = std::thread::Builder::new().name("nccl".into()).spawn(work);
            hear
        });
        for hear in asked.collect::<Vec<_>>() {
            let _ = hear.recv_timeout(patience.saturating_sub(began.elapsed()));
        }
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        if *self.aborted.get_mut() {
            return;
        }
        for communicator in &self.communicators {
            // SAFETY: see the head of the file; who holds this has let all work end.
            let _ = unsafe { (self.functions.destroy)(*communicator as Communicator) };
        }
    }
}
