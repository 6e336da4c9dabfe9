//! Steps are recorded where a GPU can, and computed all the same where recording fails.

use super::{attention::POOL, here, machines, read, with};
use crate::{
    cuda::{
        Gpu, GpuInfo,
        machine::{Arg, GpuError, Launch, Machine, PeerGpu, Product, Queue, Recorded, Rectangle},
        ops::Ops,
    },
    engine::{Engine, Input, Output, Slice, StageKey},
    source::ModelSource,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tsnode_protocol::{KvDtype, LayerRange, RequestId, Token};

/// Where recording fails.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum RecordingFault {
    /// It does not, where the machine inside records.
    Nowhere,
    Beginning,
    Launching,
    Ending,
    Running,
}

/// A machine that computes, but records nothing, or counts what runs that was recorded.
#[derive(Debug)]
pub(super) struct Forgetful {
    inner: Arc<dyn Machine>,
    fault: RecordingFault,
    /// Of all machines that are recorded together.
    recording: Arc<AtomicBool>,
    tried: AtomicUsize,
    uploads: AtomicUsize,
    replays: AtomicUsize,
}

impl Forgetful {
    pub(super) fn new(inner: Arc<dyn Machine>, fault: RecordingFault) -> Arc<Self> {
        Self::one_of(inner, fault, Arc::default())
    }

    /// Machines that are recorded together.
    pub(super) fn together(inner: Vec<Arc<dyn Machine>>, fault: RecordingFault) -> Vec<Arc<Self>> {
        let recording = Arc::new(AtomicBool::new(false));
        inner.into_iter().map(|inner| Self::one_of(inner, fault, recording.clone())).collect()
    }

    fn one_of(inner: Arc<dyn Machine>, fault: RecordingFault, recording: Arc<AtomicBool>) -> Arc<Self> {
        let [tried, uploads, replays] = [0; 3].map(AtomicUsize::new);
        Arc::new(Self { inner, fault, recording, tried, uploads, replays })
    }

    /// How often recording was begun.
    pub(super) fn tried(&self) -> usize {
        self.tried.load(Ordering::Relaxed)
    }

    /// How often something ran that was recorded.
    pub(super) fn replays(&self) -> usize {
        self.replays.load(Ordering::Relaxed)
    }

    /// How often something was copied to it, since it was last asked.
    pub(super) fn uploads(&self) -> usize {
        self.uploads.swap(0, Ordering::Relaxed)
    }

    fn fails_at(&self, fault: RecordingFault) -> Result<(), GpuError> {
        let failed = || GpuError::Failed { call: "recording a step", answer: "not here".into() };
        if self.fault == fault { Err(failed()) } else { Ok(()) }
    }
}

impl Machine for Forgetful {
    fn processors(&self) -> usize {
        self.inner.processors()
    }
    fn about(&self) -> GpuInfo {
        self.inner.about()
    }
    fn free_bytes(&self) -> Result<usize, GpuError> {
        self.inner.free_bytes()
    }
    fn take(&self, bytes: usize) -> Result<u64, GpuError> {
        self.inner.take(bytes)
    }
    fn give(&self, at: u64, bytes: usize) {
        self.inner.give(at, bytes);
    }
    fn upload(&self, queue: Queue, to: u64, bytes: &[u8]) -> Result<(), GpuError> {
        self.uploads.fetch_add(1, Ordering::Relaxed);
        self.inner.upload(queue, to, bytes)
    }
    fn download(&self, queue: Queue, from: u64, out: &mut [u8]) -> Result<(), GpuError> {
        self.inner.download(queue, from, out)
    }
    fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<(), GpuError> {
        self.inner.copy(from, to, bytes)
    }
    fn launch(&self, queue: Queue, launch: Launch, args: &[Arg]) -> Result<(), GpuError> {
        if self.recording.load(Ordering::Relaxed) {
            return self.fails_at(RecordingFault::Launching);
        }
        self.inner.launch(queue, launch, args)
    }
    fn product(&self, product: Product, x: u64, w: u64, out: u64) -> Result<bool, GpuError> {
        self.inner.product(product, x, w, out)
    }
    fn mark(&self, number: usize) -> Result<(), GpuError> {
        self.inner.mark(number)
    }
    fn wait_for(&self, number: usize) -> Result<(), GpuError> {
        self.inner.wait_for(number)
    }
    fn offer(&self) -> Result<PeerGpu, GpuError> {
        self.inner.offer()
    }
    fn fetch(&self, from: PeerGpu, rows: Rectangle) -> Result<(), GpuError> {
        if self.recording.load(Ordering::Relaxed) { Ok(()) } else { self.inner.fetch(from, rows) }
    }
    fn follow(&self, from: PeerGpu) -> Result<(), GpuError> {
        self.inner.follow(from)
    }
    fn reaches(&self, from: PeerGpu) -> bool {
        self.inner.reaches(from)
    }
    fn finish(&self) -> Result<(), GpuError> {
        self.inner.finish()
    }
    fn record(&self) -> Result<bool, GpuError> {
        self.tried.fetch_add(1, Ordering::Relaxed);
        if self.fault == RecordingFault::Nowhere {
            return self.inner.record();
        }
        self.fails_at(RecordingFault::Beginning)?;
        self.recording.store(true, Ordering::Relaxed);
        Ok(true)
    }
    fn recorded(&self) -> Result<Recorded, GpuError> {
        if self.fault == RecordingFault::Nowhere {
            return self.inner.recorded();
        }
        assert!(self.recording.swap(false, Ordering::Relaxed), "what was not begun is ended");
        self.fails_at(RecordingFault::Ending).map(|()| Recorded(0))
    }
    fn replay(&self, recorded: Recorded) -> Result<(), GpuError> {
        self.replays.fetch_add(1, Ordering::Relaxed);
        if self.fault == RecordingFault::Nowhere {
            self.inner.replay(recorded)
        } else {
            self.fails_at(RecordingFault::Running)
        }
    }
    fn forget(&self, recorded: Recorded) {
        if self.fault == RecordingFault::Nowhere {
            self.inner.forget(recorded);
        }
    }
    fn forget_recorded(&self) {
        if self.fault == RecordingFault::Nowhere {
            self.inner.forget_recorded();
        }
    }
}

const REQUEST: RequestId = RequestId([1; 16]);

/// Logits of a prompt and of tokens after it, each computed often enough that it would be recorded.
fn logits(machine: Arc<dyn Machine>, source: &ModelSource) -> Vec<Vec<f32>> {
    let mut engine = Engine::on_gpu(Gpu::on(machine), POOL, KvDtype::F16).unwrap();
    let range = LayerRange { start: 0, end: source.card().shape.layers };
    let stage = engine.load(source.load_stage_for_gpu(range, 1).unwrap()).unwrap();
    engine.admit(stage, REQUEST, 20).unwrap();
    let mut step = |start, len| forward(&mut engine, stage, start, len);
    [(0, 9), (9, 1), (9, 1), (9, 1), (9, 1), (0, 9), (0, 9), (9, 1)].map(|(start, len)| step(start, len)).to_vec()
}

fn forward(engine: &mut Engine, stage: StageKey, start: u32, len: u32) -> Vec<f32> {
    engine.set_len(stage, REQUEST, start).unwrap();
    let tokens: Vec<Token> = (start..start + len).map(Token).collect();
    let (batch, output) = ([Slice { request: REQUEST, start, len }], Output::Logits { rows: &[len as usize - 1] });
    engine.forward(stage, &batch, Input::Tokens(&tokens), output).unwrap().to_vec()
}

#[test]
fn a_gpu_that_cannot_record_computes_and_is_asked_once() {
    for inner in machines() {
        let source = ModelSource::open(&here().join("models/reference/llama-gqa")).unwrap();
        let wanted = logits(inner.clone(), &source);
        for fault in
            [RecordingFault::Beginning, RecordingFault::Launching, RecordingFault::Ending, RecordingFault::Running]
        {
            let machine = Forgetful::new(inner.clone(), fault);
            assert_eq!(logits(machine.clone(), &source), wanted, "{fault:?}");
            assert_eq!(machine.tried(), 1, "{fault:?}");
        }
    }
}

#[test]
fn what_is_forgotten_runs_no_more_and_what_is_not_does() {
    for machine in machines() {
        let (ops, x) = (Ops::new(machine.clone()), with(&machine, &[1.0; 4]));
        // Kernels are loaded when they first run, which is not while launches are recorded.
        ops.add(x.at(), x.at(), 4).unwrap();
        let record = || {
            let records = machine.record().unwrap();
            ops.add(x.at(), x.at(), 4).unwrap();
            records.then(|| machine.recorded().unwrap())
        };
        let (Some(first), Some(second)) = (record(), record()) else { continue };
        machine.replay(first).unwrap();
        machine.forget(first);
        assert!(machine.replay(first).is_err());
        machine.replay(second).unwrap();
        assert_eq!(read(&machine, &x, 4), [8.0; 4]);
    }
}
