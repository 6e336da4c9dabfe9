//! A GPU that fails is an error of the engine, whichever call it fails at; what was there before can be given back.
//!
//! `TSNODE_TEST_MOMENTS=1 cargo test -p tsnode-kernels --lib failing` has it fail at each call; by itself at every 31st.

use super::{attention::POOL, here, machines, several};
use crate::{
    cuda::{
        Gpu, GpuInfo,
        buffers::Buffer,
        machine::{Arg, GpuError, GpuSeat, Launch, Machine, PeerGpu, Product, Queue, Recorded, Rectangle},
    },
    engine::{Engine, EngineError, Input, Output, Slice, StageKey, Threads},
    gpu_check::{self, ProofError},
    source::ModelSource,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tsnode_protocol::{KvDtype, LayerRange, RequestId, Token};

/// A machine that does so many things more, and then nothing, or all but one thing; and that forgets one kernel.
#[derive(Debug)]
struct Failing {
    inner: Arc<dyn Machine>,
    left: AtomicUsize,
    /// Whether it fails at one thing only.
    once: bool,
    forgets: Option<&'static str>,
}

impl Failing {
    fn ask(&self) -> Result<(), GpuError> {
        let more = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if more.is_err() && self.once {
            self.left.store(usize::MAX, Ordering::Relaxed);
        }
        let lost = || GpuError::Failed { call: "anything", answer: "the GPU is lost".into() };
        more.map(|_| ()).map_err(|_| lost())
    }
}

impl Machine for Failing {
    fn processors(&self) -> usize {
        self.inner.processors()
    }
    fn about(&self) -> GpuInfo {
        self.inner.about()
    }
    fn free_bytes(&self) -> Result<usize, GpuError> {
        self.ask().and_then(|()| self.inner.free_bytes())
    }
    fn take(&self, bytes: usize) -> Result<u64, GpuError> {
        self.ask().and_then(|()| self.inner.take(bytes))
    }
    fn give(&self, at: u64, bytes: usize) {
        self.inner.give(at, bytes);
    }
    fn upload(&self, queue: Queue, to: u64, bytes: &[u8]) -> Result<(), GpuError> {
        self.ask().and_then(|()| self.inner.upload(queue, to, bytes))
    }
    fn download(&self, queue: Queue, from: u64, out: &mut [u8]) -> Result<(), GpuError> {
        self.ask().and_then(|()| self.inner.download(queue, from, out))
    }
    fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<(), GpuError> {
        self.ask().and_then(|()| self.inner.copy(from, to, bytes))
    }
    fn launch(&self, queue: Queue, launch: Launch, args: &[Arg]) -> Result<(), GpuError> {
        self.ask()?;
        if self.forgets == Some(launch.kernel) { Ok(()) } else { self.inner.launch(queue, launch, args) }
    }
    fn product(&self, product: Product, x: u64, w: u64, out: u64) -> Result<bool, GpuError> {
        self.ask().and_then(|()| self.inner.product(product, x, w, out))
    }
    fn mark(&self, number: usize) -> Result<(), GpuError> {
        self.ask().and_then(|()| self.inner.mark(number))
    }
    fn wait_for(&self, number: usize) -> Result<(), GpuError> {
        self.ask().and_then(|()| self.inner.wait_for(number))
    }
    fn offer(&self) -> Result<PeerGpu, GpuError> {
        self.ask().and_then(|()| self.inner.offer())
    }
    fn fetch(&self, from: PeerGpu, rows: Rectangle) -> Result<(), GpuError> {
        self.ask().and_then(|()| self.inner.fetch(from, rows))
    }
    fn follow(&self, from: PeerGpu) -> Result<(), GpuError> {
        self.ask().and_then(|()| self.inner.follow(from))
    }
    fn reaches(&self, from: PeerGpu) -> bool {
        self.inner.reaches(from)
    }
    fn lay_out(&self, rows: Rectangle) -> Result<(), GpuError> {
        self.ask().and_then(|()| self.inner.lay_out(rows))
    }
    fn seat(&self) -> Option<GpuSeat> {
        self.inner.seat()
    }
    fn finish(&self) -> Result<(), GpuError> {
        // Of a GPU that is lost all work is over.
        self.inner.finish().and_then(|()| self.ask())
    }
    fn record(&self) -> Result<bool, GpuError> {
        self.ask().and_then(|()| self.inner.record())
    }
    fn recorded(&self) -> Result<Recorded, GpuError> {
        self.inner.recorded()
    }
    fn replay(&self, recorded: Recorded) -> Result<(), GpuError> {
        self.ask().and_then(|()| self.inner.replay(recorded))
    }
    fn forget(&self, recorded: Recorded) {
        self.inner.forget(recorded);
    }
    fn forget_recorded(&self) {
        self.inner.forget_recorded();
    }
}

pub(super) const REQUEST: RequestId = RequestId([1; 16]);

impl Failing {
    fn after(inner: &Arc<dyn Machine>, left: usize) -> Arc<Self> {
        Arc::new(Self { inner: inner.clone(), left: AtomicUsize::new(left), once: false, forgets: None })
    }

    fn that_fails_once(inner: &Arc<dyn Machine>) -> Arc<Self> {
        Arc::new(Self { inner: inner.clone(), left: AtomicUsize::new(usize::MAX), once: true, forgets: None })
    }

    fn that_forgets(inner: &Arc<dyn Machine>, forgets: Option<&'static str>) -> Arc<Self> {
        Arc::new(Self { inner: inner.clone(), left: AtomicUsize::new(usize::MAX), once: false, forgets })
    }
}

/// A stage loaded, a prompt, and one token three times over: on one GPU seen, recorded, run again.
fn scenario(machines: Vec<Arc<Failing>>, source: &ModelSource) -> Result<(), EngineError> {
    let ranks = machines.len();
    let gpus = machines.into_iter().map(|machine| Gpu::on(machine)).collect();
    let mut engine = Engine::on_gpus(gpus, POOL, KvDtype::F16)?;
    let range = LayerRange { start: 0, end: source.card().shape.layers };
    let stage = engine.load(source.load_stage_for_gpus(range, Threads { count: 1, ranks }).unwrap())?;
    let free = engine.pages();
    engine.admit(stage, REQUEST, 20)?;
    let computed = steps(&mut engine, stage);
    engine.release(stage, REQUEST);
    engine.unload(stage);
    assert_eq!(engine.pages(), free);
    computed
}

pub(super) fn steps(engine: &mut Engine, stage: StageKey) -> Result<(), EngineError> {
    for (start, len) in [(0, 9), (9, 1), (9, 1), (9, 1)] {
        engine.set_len(stage, REQUEST, start)?;
        let batch = [Slice { request: REQUEST, start, len }];
        let tokens: Vec<Token> = (0..len).map(Token).collect();
        engine.forward(stage, &batch, Input::Tokens(&tokens), Output::Logits { rows: &[len as usize - 1] })?;
    }
    Ok(())
}

#[test]
fn a_gpu_that_is_lost_is_an_error_whenever_it_is() {
    for inner in machines() {
        let source = ModelSource::open(&here().join("models/reference/llama-gqa")).unwrap();
        let all = Failing::after(&inner, usize::MAX);
        scenario(vec![all.clone()], &source).unwrap();
        for left in moments(&all, 150) {
            let lost = scenario(vec![Failing::after(&inner, left)], &source).unwrap_err();
            assert!(matches!(lost, EngineError::Gpu(GpuError::Failed { .. })), "{left}: {lost}");
        }
    }
}

#[test]
fn a_gpu_is_proved_with_the_model_and_one_that_computes_something_else_is_not() {
    for inner in machines() {
        let prove = |name: &str, forgets| {
            let source = ModelSource::open(&here().join("models/reference").join(name)).unwrap();
            let machine = Failing::that_forgets(&inner, forgets);
            let mut engine = Engine::on_gpu(Gpu::on(machine), POOL, KvDtype::F16).unwrap();
            let proved = gpu_check::compare(&mut engine, &source, 1);
            assert_eq!(engine.pages().free, engine.pages().total, "{name}");
            proved
        };
        for name in [
            "llama-gqa",
            "gemma2-caps",
            "gemma3-local",
            "qwen3-norms",
            "qwen3moe-fused",
            "qwen2moe-every-other",
            "gptoss-sinks",
            "qwen3next-experts",
            "qwen35-dense",
        ] {
            prove(name, None).unwrap();
        }
        let kernels = ["rms_norm", "gate", "choose", "embed"];
        for kernel in kernels {
            let refused = prove("llama-gqa", Some(kernel)).unwrap_err();
            let told = matches!(refused, ProofError::Differs { .. } | ProofError::Choice { .. });
            assert!(told, "{kernel}: {refused}");
        }
        for kernel in ["router", "gate"] {
            let refused = prove("glm4moe-sigmoid", Some(kernel)).unwrap_err();
            assert!(matches!(refused, ProofError::Differs { .. }), "{kernel}: {refused}");
        }
        // Of which each is needed by some steps alone.
        for kernel in ["one_f16", "large_f16", "mix_experts"] {
            let refused = prove("qwen3moe-fused", Some(kernel)).unwrap_err();
            assert!(matches!(refused, ProofError::Differs { .. }), "{kernel}: {refused}");
        }
        for kernel in ["one_mxfp4", "large_mxfp4", "gate_clamped"] {
            let refused = prove("gptoss-sinks", Some(kernel)).unwrap_err();
            assert!(matches!(refused, ProofError::Differs { .. }), "{kernel}: {refused}");
        }
        for kernel in ["delta_pass", "delta_rule_32", "delta_norm", "open_gates"] {
            let refused = prove("qwen35-dense", Some(kernel)).unwrap_err();
            assert!(matches!(refused, ProofError::Differs { .. }), "{kernel}: {refused}");
        }
        let refused = prove("gemma4-inputs", None).unwrap_err().to_string();
        let what = "inputs of each layer, and layers that read the keys and values of others";
        assert_eq!(refused, format!("on a GPU {what} is not supported"));
        assert!(matches!(prove("opt-relu", None), Err(ProofError::Engine(EngineError::Gpu(_)))));
        // Layers behind the first, by rows that are made up.
        let source = ModelSource::open(&here().join("models/reference/llama-gqa")).unwrap();
        let later = LayerRange { start: 1, end: source.card().shape.layers };
        for (forgets, is_fine) in [(None, true), (Some("rms_norm"), false)] {
            let gpu = Gpu::on(Failing::that_forgets(&inner, forgets));
            let mut engine = Engine::on_gpu(gpu, POOL, KvDtype::F16).unwrap();
            let proved = gpu_check::compare_layers(&mut engine, &source, 1, later);
            assert_eq!(proved.is_ok(), is_fine, "{forgets:?}: {proved:?}");
        }
    }
}

/// One in so many calls, and the last of them each: most are alike.
const ALIKE: usize = 31;
const LAST: usize = 12;

/// The calls at which a GPU is lost.
fn moments(all: &Failing, least: usize) -> impl Iterator<Item = usize> + use<> {
    let calls = usize::MAX - all.left.load(Ordering::Relaxed);
    assert!(calls > least, "{calls}");
    (0..calls - 3).step_by(every()).chain(calls - 3 - LAST..calls - 3)
}

fn every() -> usize {
    std::env::var("TSNODE_TEST_MOMENTS").ok().and_then(|n| n.parse().ok()).unwrap_or(ALIKE).max(1)
}

#[test]
fn one_of_several_gpus_that_is_lost_is_an_error_whenever_it_is() {
    let inner = several(2);
    if inner.is_empty() {
        return;
    }
    let source = ModelSource::open(&here().join("models/reference/llama-gqa")).unwrap();
    let gpus = |left: [usize; 2]| inner.iter().zip(left).map(|(inner, left)| Failing::after(inner, left)).collect();
    let all: Vec<Arc<Failing>> = gpus([usize::MAX; 2]);
    scenario(all.clone(), &source).unwrap();
    for (rank, all) in all.iter().enumerate() {
        for left in moments(all, 200) {
            let mut each = [usize::MAX; 2];
            each[rank] = left;
            let lost = scenario(gpus(each), &source).unwrap_err();
            assert!(matches!(lost, EngineError::Gpu(GpuError::Failed { .. })), "{rank}, {left}: {lost}");
        }
    }
}

#[test]
fn gpus_go_on_after_a_step_that_one_had_no_memory_for() {
    let inner = several(2);
    if inner.is_empty() {
        return;
    }
    let source = ModelSource::open(&here().join("models/reference/llama-gqa")).unwrap();
    let scenario = |more: Option<usize>| {
        let machines = [Failing::after(&inner[0], usize::MAX), Failing::after(&inner[1], usize::MAX)];
        let gpus = machines.iter().map(|machine| Gpu::on(machine.clone())).collect();
        let mut engine = Engine::on_gpus(gpus, POOL, KvDtype::F16).unwrap();
        let range = LayerRange { start: 0, end: source.card().shape.layers };
        let stage = engine.load(source.load_stage_for_gpus(range, Threads { count: 1, ranks: 2 }).unwrap()).unwrap();
        engine.admit(stage, REQUEST, 20).unwrap();
        if let Some(more) = more {
            // Nobody takes memory any more, which would have him wait.
            steps(&mut engine, stage).unwrap();
            // The second does not come as far as the first.
            machines[1].left.store(more, Ordering::Relaxed);
            assert!(matches!(steps(&mut engine, stage), Err(EngineError::Gpu(_))));
            machines[1].left.store(usize::MAX, Ordering::Relaxed);
        }
        steps(&mut engine, stage).unwrap();
        let batch = [Slice { request: REQUEST, start: 10, len: 1 }];
        engine.forward(stage, &batch, Input::Tokens(&[Token(3)]), Output::Logits { rows: &[0] }).unwrap().to_vec()
    };
    let wanted = scenario(None);
    // Before it takes rows over, behind that, in the first layer, and later.
    for more in [0, 2, 9, 40] {
        assert_eq!(scenario(Some(more)), wanted, "{more}");
    }
}

/// A state may have been changed by a step that failed: computed again it would be changed twice.
#[test]
fn a_sequence_whose_state_a_failed_step_had_begins_anew_or_not_at_all() {
    for inner in machines() {
        let source = ModelSource::open(&here().join("models/reference/qwen35-dense")).unwrap();
        let machine = Failing::that_fails_once(&inner);
        let mut engine = Engine::on_gpu(Gpu::on(machine.clone()), POOL, KvDtype::F16).unwrap();
        let stage = engine.load(source.load_stage_for_gpu(source.card().shape.all_layers(), 1).unwrap()).unwrap();
        let mut step = |request: RequestId, start: u32, len: u32| -> Result<Vec<f32>, EngineError> {
            let tokens: Vec<Token> = (start..start + len).map(Token).collect();
            let (batch, rows) = ([Slice { request, start, len }], [len as usize - 1]);
            if start == 0 {
                engine.release(stage, request);
                engine.admit(stage, request, 40)?;
            }
            let output = Output::Logits { rows: &rows };
            engine.forward(stage, &batch, Input::Tokens(&tokens), output).map(|logits| logits.to_vec())
        };
        let other = RequestId([2; 16]);
        let wanted = [step(REQUEST, 0, 9).unwrap(), step(REQUEST, 9, 16).unwrap()];
        step(REQUEST, 0, 9).unwrap();
        step(other, 0, 9).unwrap();
        // In the middle of the layers of a step that is not recorded.
        machine.left.store(20, Ordering::Relaxed);
        assert!(matches!(step(REQUEST, 9, 16), Err(EngineError::Gpu(GpuError::Failed { .. }))));
        assert!(matches!(step(REQUEST, 9, 16), Err(EngineError::Position { present: 0, .. })));
        assert_eq!(step(other, 9, 16).unwrap(), wanted[1], "what was in no step that failed goes on");
        assert_eq!(step(REQUEST, 0, 9).unwrap(), wanted[0]);
        assert_eq!(step(REQUEST, 9, 16).unwrap(), wanted[1]);
    }
}

#[test]
fn memory_that_cannot_grow_is_not_what_was_recorded_of() {
    for inner in machines() {
        let machine = Failing::that_fails_once(&inner);
        let mut buffer = Buffer::new(machine.clone());
        buffer.fit(100).unwrap();
        let before = buffer.renewals();
        // It is waited for what uses the old, and then there is no new.
        machine.left.store(1, Ordering::Relaxed);
        assert!(buffer.fit(1000).is_err());
        assert_eq!((buffer.at(), buffer.renewals()), (0, before + 1));
        assert_ne!(buffer.fit(10).unwrap(), 0);
        assert_eq!(buffer.renewals(), before + 2);
    }
}

/// Logits, and how often each GPU was asked for something where they are recorded.
struct AroundRecording {
    seen: Vec<f32>,
    recorded: Result<Vec<f32>, EngineError>,
    later: [Vec<f32>; 2],
    asked: Vec<usize>,
}

/// A token computed several times, where the second time is recorded: there one GPU fails once at one of its calls.
fn around_recording(
    inner: &[Arc<dyn Machine>],
    source: &ModelSource,
    fails: Option<(usize, usize)>,
) -> AroundRecording {
    let machines: Vec<Arc<Failing>> = inner.iter().map(Failing::that_fails_once).collect();
    let gpus = machines.iter().map(|machine| Gpu::on(machine.clone())).collect();
    let mut engine = Engine::on_gpus(gpus, POOL, KvDtype::F16).unwrap();
    let range = LayerRange { start: 0, end: source.card().shape.layers };
    let threads = Threads { count: 1, ranks: inner.len() };
    let stage = engine.load(source.load_stage_for_gpus(range, threads).unwrap()).unwrap();
    engine.admit(stage, REQUEST, 20).unwrap();
    let mut step = |start: u32, len: u32| -> Result<Vec<f32>, EngineError> {
        engine.set_len(stage, REQUEST, start)?;
        let batch = [Slice { request: REQUEST, start, len }];
        let tokens: Vec<Token> = (start..start + len).map(Token).collect();
        let output = Output::Logits { rows: &[len as usize - 1] };
        engine.forward(stage, &batch, Input::Tokens(&tokens), output).map(|logits| logits.to_vec())
    };
    step(0, 9).unwrap();
    let seen = step(9, 1).unwrap();
    machines.iter().for_each(|machine| machine.left.store(usize::MAX, Ordering::Relaxed));
    if let Some((rank, left)) = fails {
        machines[rank].left.store(left, Ordering::Relaxed);
    }
    let recorded = step(9, 1);
    let asked = machines.iter().map(|machine| usize::MAX - machine.left.swap(usize::MAX, Ordering::Relaxed)).collect();
    let later = [step(9, 1).unwrap(), step(9, 1).unwrap()];
    AroundRecording { seen, recorded, later, asked }
}

#[test]
fn what_fails_once_while_gpus_are_recorded_leaves_an_error_or_the_same_logits() {
    let inner = several(2);
    if inner.is_empty() {
        return;
    }
    let source = ModelSource::open(&here().join("models/reference/llama-gqa")).unwrap();
    let all = around_recording(&inner, &source, None);
    assert!(all.recorded.as_ref() == Ok(&all.seen) && all.later.iter().all(|later| *later == all.seen));
    for (rank, asked) in all.asked.iter().enumerate() {
        // The first calls and the last, where recording begins and ends, and some between.
        let between = (0..*asked).step_by(every());
        for left in (0..LAST).chain(between).chain(asked - LAST..*asked) {
            let found = around_recording(&inner, &source, Some((rank, left)));
            match &found.recorded {
                Ok(logits) => assert_eq!(*logits, all.seen, "{rank}, {left}"),
                Err(error) => {
                    assert!(matches!(error, EngineError::Gpu(GpuError::Failed { .. })), "{rank}, {left}: {error}");
                }
            }
            assert!(found.later.iter().all(|later| *later == all.seen), "{rank}, {left}");
        }
    }
}
