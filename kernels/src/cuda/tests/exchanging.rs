//! GPUs that exchange columns by NCCL, where it is what stands in for it: they give the bits of one GPU, and copy where NCCL
//! is no good, whatever is the matter with it.

use super::{
    attention::{POOL, scenario},
    failing::{REQUEST, steps},
    here, machines,
    models::greedy,
    several,
    together::{on, uneven, written},
};
use crate::{
    cuda::{
        GatherWay, Gpu, GpuError, Libraries, NoNccl,
        gpus::{Gathers, NcclTimeouts},
        machine::Machine,
    },
    engine::{Engine, EngineError, Input, Output, Slice, StageKey},
    source::ModelSource,
};
use libloading::Library;
use std::ffi::{CString, c_char, c_ulong};
use std::sync::Arc;
use std::time::Duration;
use tsnode_protocol::{KvDtype, Token};

type Is = unsafe extern "C" fn(*const c_char);
type Exchanges = unsafe extern "C" fn() -> c_ulong;

/// What stands in for NCCL. It is as it was at first once this is dropped.
struct StandIn {
    library: Library,
}

impl StandIn {
    /// The one that was found, if it is that and there are so many GPUs.
    fn get(gpus: usize) -> Option<Self> {
        let skip = |why: &str| eprintln!("skipped: {why}");
        let machines = several(gpus);
        let mut devices: Vec<i32> =
            machines.iter().filter_map(|machine| machine.seat()).map(|seat| seat.device).collect();
        devices.dedup();
        if devices.len() < gpus {
            skip("there are not so many GPUs");
            return None;
        }
        let path = Libraries::find().nccl.found.as_ref()?;
        // SAFETY: it was opened before; what is looked for has the types that `emulator/nccl.cpp` declares.
        #[expect(unsafe_code, reason = "the lines above say why it is sound")]
        let library = unsafe {
            let library = Library::new(path).unwrap();
            library.get::<Is>(b"tsnode_nccl_is").is_ok().then_some(library)
        };
        if library.is_none() {
            skip("NCCL is none that does as it is told");
        }
        library.map(|library| Self { library })
    }

    fn is(&self, like: &str) {
        let like = CString::new(like).unwrap();
        // SAFETY: as above.
        #[expect(unsafe_code, reason = "the lines above say why it is sound")]
        unsafe {
            self.library.get::<Is>(b"tsnode_nccl_is").unwrap()(like.as_ptr());
        }
    }

    fn exchanges(&self) -> c_ulong {
        // SAFETY: as above.
        #[expect(unsafe_code, reason = "the lines above say why it is sound")]
        unsafe {
            self.library.get::<Exchanges>(b"tsnode_nccl_exchanges").unwrap()()
        }
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        // SAFETY: as above.
        #[expect(unsafe_code, reason = "the lines above say why it is sound")]
        unsafe {
            self.library.get::<Is>(b"tsnode_nccl_is").unwrap()(std::ptr::null());
        }
    }
}

fn is_nccl(engine: &Engine) -> bool {
    matches!(engine.gathers(), Some(GatherWay::Nccl { version: (2, 21, 5), timed }) if timed.len() == 3)
}

/// Several GPUs that exchange by NCCL. The faster of two ways is used, by the clock: where this machine is busy a timing may say
/// that copies are, and then they are timed anew.
fn exchanging(count: usize, source: &ModelSource) -> (Engine, StageKey) {
    for _ in 0..20 {
        let (engine, stage) = on(count, source, KvDtype::F16).unwrap();
        if is_nccl(&engine) {
            return (engine, stage);
        }
        assert!(matches!(why(&engine), NoNccl::Slower(_)), "{:?}", engine.gathers());
    }
    panic!("copies were the faster ones twenty times");
}

/// Three GPUs that copy, and for such a reason. Two of the reasons come behind the clock's, which may find the other way slower where this
/// machine is busy: then both are timed anew.
fn copying(source: &ModelSource, is_right: impl Fn(&NoNccl) -> bool) -> (Engine, StageKey) {
    for _ in 0..20 {
        let (engine, stage) = on(3, source, KvDtype::F16).unwrap();
        let is_found = match engine.gathers() {
            Some(GatherWay::Copies(why)) if is_right(why) => true,
            Some(GatherWay::Copies(NoNccl::Slower(_)) | GatherWay::Nccl { .. }) => false,
            other => panic!("{other:?}"),
        };
        if is_found {
            return (engine, stage);
        }
    }
    panic!("the clock said something else twenty times");
}

/// Why an engine copies.
fn why(engine: &Engine) -> NoNccl {
    match engine.gathers() {
        Some(GatherWay::Copies(why)) => why.clone(),
        other => panic!("{other:?}"),
    }
}

fn bits(rows: &[Vec<f32>]) -> Vec<u32> {
    rows.iter().flatten().map(|x| x.to_bits()).collect()
}

#[test]
fn gpus_that_exchange_give_the_bits_of_one() {
    let Some(nccl) = StandIn::get(3) else { return };
    nccl.is("used");
    for shape in uneven() {
        let (_folder, source) = written(&shape);
        let (mut one, stage) = on(1, &source, KvDtype::F16).unwrap();
        assert_eq!(one.gathers(), None);
        let wanted = scenario(&mut one, stage, shape.vocab);
        for count in [2, 3] {
            let (mut gpus, stage) = exchanging(count, &source);
            let before = nccl.exchanges();
            let found = scenario(&mut gpus, stage, shape.vocab);
            assert!(bits(&found) == bits(&wanted), "{} on {count}", shape.family);
            assert!(nccl.exchanges() > before + 20, "{}", nccl.exchanges() - before);
        }
    }
}

#[test]
fn reference_models_on_gpus_that_exchange_give_the_bits_and_tokens_of_one() {
    let Some(nccl) = StandIn::get(2) else { return };
    nccl.is("used");
    for name in ["llama-gqa", "gemma2-caps", "qwen3-norms"] {
        let source = ModelSource::open(&here().join("models/reference").join(name)).unwrap();
        // One row, few, as many as are exchanged, and one more, with steps of single tokens behind each.
        for len in [1, 5, 64, 65] {
            let (mut one, stage) = on(1, &source, KvDtype::F16).unwrap();
            let wanted = greedy(&mut one, stage, len, 4);
            let (mut two, stage) = exchanging(2, &source);
            let before = nccl.exchanges();
            assert!(greedy(&mut two, stage, len, 4) == wanted, "{name}, {len}");
            assert!(nccl.exchanges() > before, "{name}, {len}");
        }
    }
}

/// The model of `steps` on three GPUs, with the bits of a step behind those.
fn reference(open: impl FnOnce(&ModelSource) -> (Engine, StageKey)) -> (ModelSource, Engine, StageKey) {
    let (_folder, source) = written(&uneven()[0]);
    let (mut engine, stage) = open(&source);
    engine.admit(stage, REQUEST, 20).unwrap();
    (source, engine, stage)
}

fn next(engine: &mut Engine, stage: StageKey) -> Vec<u32> {
    engine.set_len(stage, REQUEST, 10).unwrap();
    let batch = [Slice { request: REQUEST, start: 10, len: 1 }];
    let output = Output::Logits { rows: &[0] };
    let logits = engine.forward(stage, &batch, Input::Tokens(&[Token(3)]), output).unwrap();
    logits.iter().map(|x| x.to_bits()).collect()
}

fn copied() -> Vec<u32> {
    let (_source, mut engine, stage) = reference(|source| on(3, source, KvDtype::F16).unwrap());
    assert!(matches!(why(&engine), NoNccl::Failed(_)));
    steps(&mut engine, stage).unwrap();
    next(&mut engine, stage)
}

#[test]
fn nccl_that_is_no_good_leaves_copies_and_a_reason() {
    let Some(nccl) = StandIn::get(3) else { return };
    nccl.is("absent");
    let wanted = copied();
    type IsRight = fn(&NoNccl) -> bool;
    let reasons: [(&str, IsRight, &str); 6] = [
        ("absent", |why| matches!(why, NoNccl::Failed(GpuError::Failed { call: "starting NCCL", .. })), "unhandled"),
        ("wrong", |why| matches!(why, NoNccl::Differs), "other bytes"),
        ("slow", |why| matches!(why, NoNccl::Slower(timed) if timed.iter().all(|one| !one.is_faster())), "64 rows (in"),
        ("greedy", |why| matches!(why, NoNccl::Memory { taken } if *taken >= 1 << 30), "of a GPU's memory"),
        ("broken", |why| matches!(why, NoNccl::Failed(_)), "an error"),
        ("lost", |why| matches!(why, NoNccl::Failed(_)), "remote process"),
    ];
    for (like, is_right, said) in reasons {
        nccl.is(like);
        let (_source, mut engine, stage) = reference(|source| copying(source, is_right));
        let (why, text) = (why(&engine), engine.gathers().unwrap().to_string());
        assert!(is_right(&why) && text.starts_with("copies") && text.contains(said), "{like}: {text}");
        let before = nccl.exchanges();
        steps(&mut engine, stage).unwrap();
        assert!(next(&mut engine, stage) == wanted && nccl.exchanges() == before, "{like}");
    }
}

#[test]
fn nccl_that_never_answers_is_not_waited_for() {
    let Some(nccl) = StandIn::get(3) else { return };
    for (like, call) in [("hangs", "an exchange"), ("stuck", "an exchange"), ("late", "starting")] {
        nccl.is(like);
        let machines: Vec<Arc<dyn Machine>> = several(3);
        // What starts in time is given as much as it takes.
        let start = Duration::from_millis(if like == "late" { 100 } else { 60_000 });
        let patience = NcclTimeouts { start, exchange: Duration::from_millis(300) };
        let gathers = Gathers::among(machines.clone(), patience).unwrap();
        let way = gathers.way().unwrap();
        assert!(matches!(way, GatherWay::Copies(NoNccl::Late { call: told, .. }) if *told == call), "{like}: {way}");
        // Or waiting for this would never end.
        machines.iter().for_each(|machine| machine.finish().unwrap());
    }
}

#[test]
fn an_exchange_that_fails_is_an_error_of_its_step_and_the_last() {
    let Some(nccl) = StandIn::get(3) else { return };
    nccl.is("absent");
    let wanted = copied();
    for like in ["broken", "lost"] {
        nccl.is("used");
        let (_source, mut engine, stage) = reference(|source| exchanging(3, source));
        steps(&mut engine, stage).unwrap();
        assert!(next(&mut engine, stage) == wanted, "{like}");
        nccl.is(like);
        let failed = steps(&mut engine, stage).unwrap_err();
        assert!(matches!(failed, EngineError::Gpu(GpuError::Failed { .. })), "{failed}");
        assert!(matches!(why(&engine), NoNccl::Failed(_)), "{like}");
        nccl.is("used");
        let before = nccl.exchanges();
        steps(&mut engine, stage).unwrap();
        assert!(next(&mut engine, stage) == wanted && nccl.exchanges() == before, "{like}");
    }
}

#[test]
fn machines_without_nccl_say_why_they_copy() {
    for machine in machines() {
        // The same GPU twice, or no GPU of a driver's.
        let gpus = [machine.clone(), machine].map(Gpu::on).into_iter().collect();
        let engine = Engine::on_gpus(gpus, POOL, KvDtype::F16).unwrap();
        assert!(matches!(why(&engine), NoNccl::NoDriver | NoNccl::NoLibrary | NoNccl::Twice), "{:?}", engine.gathers());
    }
}
