//! A GPU, by the driver's library. Every call is the driver's own; what they have in common is said once:
//!
//! SAFETY of all of them: handles are those that the driver gave and that this GPU keeps until it is dropped; addresses
//! are of memory that callers hold while work on it is under way ([`GpuMemory`](super::machine::GpuMemory) is given back only
//! after that); arguments are those of the kernel, which the emulator's tests run with the same bytes.
#![expect(unsafe_code, reason = "calls of a library of others; each block says why it is sound")]

mod blas;
mod kernels;
mod nccl;
mod overlap;
mod peers;
mod staging;

use super::{
    GpuInfo,
    jit::{self, GpuIdentity, Image, KernelCache, KernelCompiler, Kernels, Loads, NotCompiled},
    libraries::Libraries,
    machine::{Arg, GpuError, GpuSeat, Launch, Machine, PeerGpu, Product, Queue, Recorded, Rectangle},
    nvml,
};
use blas::Blas;
use cudarc::driver::{DriverError, result, sys};
use kernels::Modules;
pub(super) use nccl::{GpuTransfer, Nccl};
use staging::Staging;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Least compute capability that the PTX is for.
const LEAST: (i32, i32) = (8, 0);

/// A GPU.
#[derive(Debug)]
struct DriverCard {
    device: sys::CUdevice,
    context: sys::CUcontext,
    compute: sys::CUstream,
    side: sys::CUstream,
    load: sys::CUstream,
    processors: usize,
    state: Mutex<State>,
    /// Pinned memory of the thread that loads, while it does.
    loading: Mutex<Option<Staging>>,
    /// Or why there is none.
    blas: Result<Mutex<Blas>, String>,
}

/// What is made once and kept.
#[derive(Debug)]
struct State {
    kernels: Modules,
    /// Whether kernels that wait for those before them begin before those are done.
    overlaps: bool,
    staging: Staging,
    marks: BTreeMap<usize, sys::CUevent>,
    /// Contexts of other GPUs that this one has copied from, and whether it reads their memory itself.
    reached: BTreeMap<usize, bool>,
    /// Recordings by their numbers, and the number of the next.
    graphs: BTreeMap<usize, sys::CUgraphExec>,
    next_graph: usize,
}

// SAFETY: the driver's handles may be used from any thread whose context is the GPU's, which `bind` sees to; what is kept
// beside them is behind a lock.
unsafe impl Send for DriverCard {}
// SAFETY: as above.
unsafe impl Sync for DriverCard {}

/// A driver's answer as an error.
fn failed(call: &'static str) -> impl Fn(DriverError) -> GpuError {
    move |error| GpuError::Failed { call, answer: error.to_string() }
}

/// GPUs by number that kernels are written for.
///
/// # Errors
/// When there is no driver.
pub fn usable() -> Result<Vec<u16>, GpuError> {
    if Libraries::find().driver.found.is_none() {
        return Err(GpuError::Missing("no NVIDIA driver (libcuda.so)".into()));
    }
    guarded(|| {
        result::init().map_err(failed("starting the driver"))?;
        let count = result::device::get_count().map_err(failed("counting GPUs"))?;
        let mut found = Vec::new();
        for ordinal in 0..count.clamp(0, 64) {
            let device = result::device::get(ordinal).map_err(failed("naming a GPU"))?;
            if capability(device)? >= LEAST {
                found.push(ordinal as u16);
            }
        }
        Ok(found)
    })
}

/// The bindings panic where a library lacks a symbol.
fn guarded<T>(work: impl FnOnce() -> Result<T, GpuError>) -> Result<T, GpuError> {
    let old = || Err(GpuError::Missing("the NVIDIA driver is too old".into()));
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| old())
}

/// Opens a GPU, whose kernels are PTX.
pub(super) fn open(ordinal: u16) -> Result<Arc<dyn Machine>, GpuError> {
    opened(ordinal).map(|gpu| gpu as Arc<dyn Machine>)
}

/// Opens a GPU and chooses its kernels: machine code of this compiler's, where that is faster.
pub(super) fn open_with(
    ordinal: u16,
    compiler: Result<&dyn KernelCompiler, NotCompiled>,
    cache: &KernelCache,
) -> Result<Arc<dyn Machine>, GpuError> {
    let gpu = opened(ordinal)?;
    let chosen = jit::choose(&(gpu.clone() as Arc<dyn Loads>), compiler, cache);
    let failed = matches!(chosen, Kernels::Ahead(NotCompiled::Gpu(_) | NotCompiled::Panicked));
    // What a GPU failed at may have taken its context along; a new one has nothing but PTX to fail at.
    let gpu = if failed { reopened(gpu, ordinal)? } else { gpu };
    gpu.state().kernels.chosen = chosen;
    Ok(gpu)
}

/// Opens a GPU that tests load machine code on.
#[cfg(test)]
pub(super) fn open_to_load(ordinal: u16) -> Result<Arc<dyn Loads>, GpuError> {
    opened(ordinal).map(|gpu| gpu as Arc<dyn Loads>)
}

fn reopened(gpu: Arc<DriverCard>, ordinal: u16) -> Result<Arc<DriverCard>, GpuError> {
    drop(gpu);
    opened(ordinal)
}

fn opened(ordinal: u16) -> Result<Arc<DriverCard>, GpuError> {
    let found = usable()?;
    if !found.contains(&ordinal) {
        let known: Vec<String> = found.iter().map(ToString::to_string).collect();
        let sentence =
            format!("no GPU cuda:{ordinal} of compute capability 8.0 or more; there are [{}]", known.join(", "));
        return Err(GpuError::Missing(sentence));
    }
    guarded(|| Ok(Arc::new(DriverCard::new(ordinal)?)))
}

fn attribute(device: sys::CUdevice, which: sys::CUdevice_attribute) -> Result<i32, GpuError> {
    // SAFETY: see above.
    unsafe { result::device::get_attribute(device, which) }.map_err(failed("asking what a GPU is"))
}

fn capability(device: sys::CUdevice) -> Result<(i32, i32), GpuError> {
    use sys::CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
    };
    Ok((attribute(device, MAJOR)?, attribute(device, MINOR)?))
}

impl DriverCard {
    fn new(ordinal: u16) -> Result<Self, GpuError> {
        let device = result::device::get(i32::from(ordinal)).map_err(failed("naming a GPU"))?;
        // SAFETY: see above.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(failed("starting a GPU"))?;
        // SAFETY: see above.
        unsafe { result::ctx::set_current(context) }.map_err(failed("starting a GPU"))?;
        let [compute, side, load] = streams()?;
        let processors = attribute(device, sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let state = State {
            kernels: Modules::default(),
            overlaps: false,
            staging: Staging::new()?,
            marks: BTreeMap::new(),
            reached: BTreeMap::new(),
            graphs: BTreeMap::new(),
            next_graph: 0,
        };
        Ok(Self {
            device,
            context,
            compute,
            side,
            load,
            processors: processors.max(1) as usize,
            state: Mutex::new(state),
            loading: Mutex::new(None),
            blas: blas().map(Mutex::new),
        })
    }

    /// Makes the GPU the calling thread's.
    fn bind(&self) -> Result<(), GpuError> {
        // SAFETY: see above.
        unsafe { result::ctx::set_current(self.context) }.map_err(failed("turning to a GPU"))
    }

    /// The GPU's place on the bus.
    fn bus(&self) -> Option<CString> {
        let mut text = [0u8; 32];
        // SAFETY: see above; the text ends inside what there is room for.
        let answer = unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), text.len() as i32, self.device) };
        answer.result().ok()?;
        CStr::from_bytes_until_nul(&text).ok().map(CStr::to_owned)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // What is in there is whole between any two calls.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stream(&self, queue: Queue) -> sys::CUstream {
        match queue {
            Queue::Compute => self.compute,
            Queue::Side => self.side,
            Queue::Load => self.load,
        }
    }

    /// Asks for a piece of `bytes` bytes on the GPU, if there is one of this number.
    fn ask_for(
        &self,
        queue: Queue,
        from: u64,
        bytes: usize,
        number: usize,
        staging: &mut Staging,
    ) -> Result<(), GpuError> {
        let before = number * staging::PIECE;
        let wanted = bytes.saturating_sub(before).min(staging::PIECE);
        if wanted == 0 {
            return Ok(());
        }
        let landing = staging.landing(number, wanted);
        // SAFETY: see above; the place is used again only after the queue was waited for and the piece copied out.
        unsafe { result::memcpy_dtoh_async(landing, from + before as u64, self.stream(queue)) }
            .map_err(failed("copying from a GPU"))
    }

    /// Destroys recordings once none of them runs any more.
    fn destroy(&self, graphs: impl IntoIterator<Item = sys::CUgraphExec>) {
        let mut graphs = graphs.into_iter().peekable();
        if graphs.peek().is_none() || self.finish().is_err() {
            return;
        }
        for graph in graphs {
            // SAFETY: see above; work was waited for.
            let _ = unsafe { result::graph::exec_destroy(graph) };
        }
    }

    fn loading(&self) -> MutexGuard<'_, Option<Staging>> {
        self.loading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies to the GPU by way of pinned memory that these queues copy from.
    fn stage(
        &self,
        queue: Queue,
        to: u64,
        bytes: &[u8],
        (staging, readers): (&mut Staging, &[Queue]),
    ) -> Result<(), GpuError> {
        let mut at = to;
        for piece in bytes.chunks(staging::PIECE) {
            if !staging.has_room(piece.len()) {
                readers.iter().try_for_each(|reader| self.wait(*reader))?;
                staging.begin_again();
            }
            let staged = staging.put(piece);
            // SAFETY: see above; what is staged stays until the queues were waited for.
            unsafe { result::memcpy_htod_async(at, staged, self.stream(queue)) }.map_err(failed("copying to a GPU"))?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Waits for all work of a queue.
    fn wait(&self, queue: Queue) -> Result<(), GpuError> {
        // SAFETY: see above.
        unsafe { result::stream::synchronize(self.stream(queue)) }.map_err(failed("waiting for work"))
    }
}

/// What computes, what goes on beside it, and what loads. The second one's few blocks go first where both have some that wait: KV that
/// is to leave would otherwise leave when the step it leaves beside is done.
fn streams() -> Result<[sys::CUstream; 3], GpuError> {
    use result::stream::{StreamKind::NonBlocking, create_with_priority, get_priority_range};
    let (least, greatest) = get_priority_range().map_err(failed("making a stream"))?;
    let stream = |priority| create_with_priority(NonBlocking, priority).map_err(failed("making a stream"));
    Ok([stream(least)?, stream(greatest)?, stream(least)?])
}

/// The library for products of many rows, with the GPU that is the calling thread's; or why there is none.
fn blas() -> Result<Blas, String> {
    let library = &Libraries::find().blas;
    let missing = || format!("{} was not found", library.files.join(" or "));
    let path = library.found.as_ref().ok_or_else(missing)?;
    Blas::new().map_err(|error| format!("{} does not start: {error}", path.display()))
}

impl Machine for DriverCard {
    fn processors(&self) -> usize {
        self.processors
    }

    fn about(&self) -> GpuInfo {
        // SAFETY: see above.
        let memory = unsafe { result::device::total_mem(self.device) }.unwrap_or(0);
        GpuInfo {
            name: result::device::get_name(self.device).unwrap_or_default(),
            capability: capability(self.device).unwrap_or_default(),
            processors: self.processors,
            memory_bytes: memory as u64,
            no_library: self.blas.as_ref().err().cloned(),
            facts: self.bus().map(|bus| nvml::facts(&bus)).unwrap_or_default(),
            kernels: self.state().kernels.chosen.clone(),
        }
    }

    fn free_bytes(&self) -> Result<usize, GpuError> {
        self.bind()?;
        Ok(result::mem_get_info().map_err(failed("asking for free memory"))?.0)
    }

    fn take(&self, bytes: usize) -> Result<u64, GpuError> {
        self.bind()?;
        let _turn = nccl::memory_or_group();
        // SAFETY: see above.
        unsafe { result::malloc_sync(bytes) }.map_err(|error| match error.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => GpuError::Memory { wanted: bytes },
            _ => failed("taking memory")(error),
        })
    }

    fn give(&self, at: u64, _bytes: usize) {
        if self.bind().is_ok() {
            let _turn = nccl::memory_or_group();
            // SAFETY: see above. Memory of a GPU that is lost is lost with it.
            let _ = unsafe { result::free_sync(at) };
        }
    }

    fn upload(&self, queue: Queue, to: u64, bytes: &[u8]) -> Result<(), GpuError> {
        self.bind()?;
        if queue == Queue::Load {
            // Its own pinned memory: the ring of steps may be waited for only by who asks for these.
            let mut loading = self.loading();
            let staging = match &mut *loading {
                Some(staging) => staging,
                none => none.insert(Staging::new()?),
            };
            return self.stage(queue, to, bytes, (staging, &[Queue::Load]));
        }
        let staging = &mut self.state().staging;
        self.stage(queue, to, bytes, (staging, &[Queue::Compute, Queue::Side]))
    }

    fn download(&self, queue: Queue, from: u64, out: &mut [u8]) -> Result<(), GpuError> {
        self.bind()?;
        if out.is_empty() {
            self.wait(queue)?;
            if queue == Queue::Load {
                self.loading().take().iter_mut().for_each(Staging::give_back);
            }
            return Ok(());
        }
        let mut state = self.state();
        let bytes = out.len();
        self.ask_for(queue, from, bytes, 0, &mut state.staging)?;
        for (number, piece) in out.chunks_mut(staging::PIECE).enumerate() {
            // Of the queue's work the piece is the last: the next is asked for when it has landed, beside copying it out.
            self.wait(queue)?;
            self.ask_for(queue, from, bytes, number + 1, &mut state.staging)?;
            piece.copy_from_slice(state.staging.landing(number, piece.len()));
        }
        Ok(())
    }

    fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<(), GpuError> {
        self.bind()?;
        // SAFETY: see above.
        unsafe { result::memcpy_dtod_async(to, from, bytes, self.compute) }.map_err(failed("copying on a GPU"))
    }

    fn launch(&self, queue: Queue, launch: Launch, args: &[Arg]) -> Result<(), GpuError> {
        self.bind()?;
        let Launch { module, kernel, grid, threads, shared } = launch;
        let (function, overlaps) = {
            let mut state = self.state();
            let (function, image) = state.kernels.function(module, kernel, shared)?;
            let waits = image == Image::Compiled && overlap::waits(module);
            (function, state.overlaps && waits && queue == Queue::Compute)
        };
        let mut slots: Vec<u64> = args.iter().map(|arg| arg.slot()).collect();
        let mut places: Vec<*mut c_void> = slots.iter_mut().map(|slot| std::ptr::from_mut(slot).cast()).collect();
        if overlaps {
            return self.launch_overlapping(function, launch, &mut places).map_err(failed(kernel));
        }
        let [x, y, z] = grid;
        // SAFETY: see above; the driver reads the arguments before it returns.
        unsafe { result::launch_kernel(function, (x, y, z), (threads, 1, 1), shared, self.stream(queue), &mut places) }
            .map_err(failed(kernel))
    }

    fn product(&self, product: Product, x: u64, w: u64, out: u64) -> Result<bool, GpuError> {
        let Ok(blas) = &self.blas else { return Ok(false) };
        self.bind()?;
        blas.lock().unwrap_or_else(PoisonError::into_inner).product(product, x, w, out, self.compute)
    }

    fn mark(&self, number: usize) -> Result<(), GpuError> {
        self.bind()?;
        let mut state = self.state();
        let event = match state.marks.get(&number) {
            Some(event) => *event,
            None => {
                let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
                let event = result::event::create(flags).map_err(failed("making a mark"))?;
                state.marks.insert(number, event);
                event
            }
        };
        // SAFETY: see above.
        unsafe { result::event::record(event, self.compute) }.map_err(failed("marking work"))
    }

    fn wait_for(&self, number: usize) -> Result<(), GpuError> {
        self.bind()?;
        let Some(event) = self.state().marks.get(&number).copied() else { return Ok(()) };
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: see above.
        unsafe { result::stream::wait_event(self.side, event, flags) }.map_err(failed("waiting for a mark"))
    }

    fn offer(&self) -> Result<PeerGpu, GpuError> {
        self.offered()
    }

    fn fetch(&self, from: PeerGpu, rows: Rectangle) -> Result<(), GpuError> {
        self.fetch_from(from, rows)
    }

    fn follow(&self, from: PeerGpu) -> Result<(), GpuError> {
        self.bind()?;
        self.wait_for_offer(from)
    }

    fn reaches(&self, from: PeerGpu) -> bool {
        from.context == self.context as usize || self.state().reached.get(&from.context).is_some_and(|reads| *reads)
    }

    fn lay_out(&self, rows: Rectangle) -> Result<(), GpuError> {
        self.bind()?;
        self.copy_inside(rows)
    }

    fn seat(&self) -> Option<GpuSeat> {
        Some(GpuSeat { device: self.device, context: self.context as usize, stream: self.compute as usize })
    }

    fn finish(&self) -> Result<(), GpuError> {
        self.bind()?;
        self.wait(Queue::Compute)?;
        self.wait(Queue::Side)
    }

    fn record(&self) -> Result<bool, GpuError> {
        self.bind()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: see above.
        unsafe { result::stream::begin_capture(self.compute, mode) }.map_err(failed("recording a step"))?;
        Ok(true)
    }

    fn recorded(&self) -> Result<Recorded, GpuError> {
        // Another GPU may be the thread's, where several were recorded. Recording is ended even if that cannot be changed.
        let _ = self.bind();
        // SAFETY: see above; the recording is of no use once it was made ready to run.
        let ready = unsafe {
            let graph = result::stream::end_capture(self.compute).map_err(failed("recording a step"))?;
            let ready = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
            let _ = result::graph::destroy(graph);
            ready.map_err(failed("recording a step"))?
        };
        let mut state = self.state();
        let number = state.next_graph;
        state.next_graph += 1;
        state.graphs.insert(number, ready);
        Ok(Recorded(number))
    }

    fn replay(&self, recorded: Recorded) -> Result<(), GpuError> {
        self.bind()?;
        let Some(graph) = self.state().graphs.get(&recorded.0).copied() else {
            return Err(GpuError::Unsupported("a recording that was forgotten".into()));
        };
        // SAFETY: see above.
        unsafe { result::graph::launch(graph, self.compute) }.map_err(failed("running a recorded step"))
    }

    fn forget(&self, recorded: Recorded) {
        let graph = self.state().graphs.remove(&recorded.0);
        self.destroy(graph);
    }

    fn forget_recorded(&self) {
        let graphs = std::mem::take(&mut self.state().graphs);
        self.destroy(graphs.into_values());
    }
}

impl Loads for DriverCard {
    fn identity(&self) -> Result<GpuIdentity, GpuError> {
        let GpuInfo { name, capability: (major, minor), processors, facts, .. } = self.about();
        let mut version = 0;
        // SAFETY: a place for a number.
        unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(failed("asking for the driver's version"))?;
        Ok(GpuIdentity {
            name,
            processors,
            sm: (10 * major + minor).unsigned_abs(),
            cuda: (version / 1000, version % 1000 / 10),
            driver: facts.driver.unwrap_or_default(),
        })
    }

    fn load(&self, file: &'static str, cubin: &[u8]) -> Result<(), GpuError> {
        self.bind()?;
        self.state().kernels.load(file, cubin)
    }

    fn turn(&self, file: &'static str, image: Image) {
        self.state().kernels.turn(file, image);
    }

    fn put_away(&self, file: &'static str) {
        // Nothing may run any more of what is forgotten; of a lost GPU nothing does.
        let _ = self.finish();
        self.state().kernels.forget(file);
    }

    fn overlap(&self, on: bool) -> Result<(), String> {
        if on {
            self.can_overlap()?;
        }
        self.state().overlaps = on;
        Ok(())
    }
}

impl Drop for DriverCard {
    fn drop(&mut self) {
        // What a lost GPU does not give back is lost with it.
        let _ = self.finish();
        let _ = self.wait(Queue::Load);
        self.forget_recorded();
        self.loading().take().iter_mut().for_each(Staging::give_back);
        self.blas = Err("the GPU was given back".into());
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let marks = std::mem::take(&mut state.marks);
        state.staging.give_back();
        state.kernels.give_back();
        // SAFETY: see above; nothing runs any more.
        unsafe {
            for event in marks.into_values() {
                let _ = result::event::destroy(event);
            }
            let _ = result::stream::destroy(self.compute);
            let _ = result::stream::destroy(self.side);
            let _ = result::stream::destroy(self.load);
            let _ = result::primary_ctx::release(self.device);
        }
    }
}
