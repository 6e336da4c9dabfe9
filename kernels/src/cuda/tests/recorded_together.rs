//! Steps of several GPUs are recorded as one, where columns go straight from GPU to GPU: they give the bits of steps that are not,
//! which are those of one GPU (`together.rs`), and are computed all the same where recording fails.

use super::{
    attention::{POOL, Shape},
    models::{OTHER, REQUEST, prompt},
    recording::{Forgetful, RecordingFault},
    several, tables,
    together::{uneven, written},
};
use crate::{
    cuda::{Gpu, Libraries, machine::Machine},
    engine::{Engine, Input, Output, RowToSample, Slice, StageKey, Threads},
    source::ModelSource,
};
use libloading::Library;
use std::ffi::c_int;
use std::sync::Arc;
use std::time::Instant;
use tsnode_protocol::{KvDtype, Sampling, Token};

type ReachFn = unsafe extern "C" fn(c_int);

/// While this is there all GPUs of what stands in for the driver reach each other; real ones do as they do.
struct AllReach(Option<Library>);

impl AllReach {
    fn from_now() -> Self {
        let driver = Libraries::find().driver.found.as_ref();
        // SAFETY: it was opened before, or is one that does nothing when it is loaded but set itself up.
        #[expect(unsafe_code, reason = "the line above says why it is sound")]
        let library = driver.and_then(|path| unsafe { Library::new(path) }.ok());
        let all = Self(library);
        all.tell(1);
        all
    }

    fn tell(&self, all: c_int) {
        let Some(library) = &self.0 else { return };
        // SAFETY: a function of that name has the type that `emulator/driver.cpp` declares.
        #[expect(unsafe_code, reason = "the line above says why it is sound")]
        unsafe {
            if let Ok(reach) = library.get::<ReachFn>(b"tsnode_cards_reach") {
                reach(all);
            }
        }
    }
}

impl Drop for AllReach {
    fn drop(&mut self) {
        self.tell(0);
    }
}

/// An engine on these machines, with all of a model.
fn on(machines: &[Arc<Forgetful>], source: &ModelSource, dtype: KvDtype) -> (Engine, StageKey) {
    let gpus = machines.iter().map(|machine| Gpu::on(machine.clone())).collect();
    let mut engine = Engine::on_gpus(gpus, POOL, dtype).unwrap();
    let stage = load(&mut engine, source, machines.len());
    (engine, stage)
}

fn load(engine: &mut Engine, source: &ModelSource, ranks: usize) -> StageKey {
    let threads = Threads { count: 1, ranks };
    engine.load(source.load_stage_for_gpus(source.card().shape.all_layers(), threads).unwrap()).unwrap()
}

/// Machines of which none records anything; none where there is nothing that kernels run on.
fn unrecorded(count: usize) -> Option<Vec<Arc<Forgetful>>> {
    let machines = Forgetful::together(several(count), RecordingFault::Beginning);
    (machines.len() == count).then_some(machines)
}

/// Whether steps of these are recorded, once they had some.
fn are_recorded(machines: &[Arc<dyn Machine>]) -> bool {
    let offers: Vec<_> = machines.iter().map(|machine| machine.offer().unwrap()).collect();
    machines.iter().all(|machine| machine.seat().is_some() && offers.iter().all(|offer| machine.reaches(*offer)))
}

/// Single tokens of two sequences, alone and together, with logits and tokens chosen: each step comes up five times, with
/// other tokens and the pages of other sequences.
fn singles(engine: &mut Engine, stage: StageKey) -> Vec<u32> {
    let mut out = Vec::new();
    for request in [REQUEST, OTHER] {
        engine.admit(stage, request, 40).unwrap();
        let batch = [Slice { request, start: 0, len: 17 }];
        let tokens = prompt(17 + usize::from(request.0[0]));
        let output = Output::Logits { rows: &[16] };
        let logits = engine.forward(stage, &batch, Input::Tokens(&tokens[tokens.len() - 17..]), output).unwrap();
        out.extend(logits.iter().map(|x| x.to_bits()));
    }
    for turn in 0..5 {
        let slice = |request| Slice { request, start: 17 + turn, len: 1 };
        let batches = [vec![slice(REQUEST)], vec![slice(OTHER)], vec![slice(OTHER), slice(REQUEST)]];
        let tokens = [Token(turn * 7 + 1), Token(turn * 5 + 2)];
        for batch in &batches {
            again(engine, stage, batch);
            let (rows, tokens) = (&[0, 1][..batch.len()], &tokens[..batch.len()]);
            let logits = engine.forward(stage, batch, Input::Tokens(tokens), Output::Logits { rows }).unwrap();
            out.extend(logits.iter().map(|x| x.to_bits()));
        }
        again(engine, stage, &batches[2]);
        let greedy = Sampling::greedy();
        let picks = [0, 1].map(|row| RowToSample { row, sampling: &greedy, position: 18 + turn });
        let chosen = engine.forward_choosing(stage, &batches[2], Input::Tokens(&tokens), &picks).unwrap();
        out.extend(chosen.iter().map(|chosen| chosen.token.0));
    }
    [REQUEST, OTHER].into_iter().for_each(|request| engine.release(stage, request));
    out
}

/// Has sequences be where a batch begins.
fn again(engine: &mut Engine, stage: StageKey, batch: &[Slice]) {
    batch.iter().for_each(|slice| engine.set_len(stage, slice.request, slice.start).unwrap());
}

/// That so many GPUs give these bits, and are recorded where they can be.
fn check_singles(count: usize, family: &str, source: &ModelSource, wanted: &[u32]) {
    let inner = several(count);
    let machines = Forgetful::together(inner.clone(), RecordingFault::Nowhere);
    let (mut engine, stage) = on(&machines, source, KvDtype::F16);
    let tried = machines[0].replays();
    assert!(singles(&mut engine, stage) == wanted, "{family} on {count}");
    let replays = machines[0].replays() - tried;
    assert!(if are_recorded(&inner) { replays > 10 } else { replays == 0 }, "{family} on {count}: {replays}");
    assert!(machines[1..].iter().all(|machine| machine.tried() == 0 && machine.replays() == 0));
}

#[test]
fn recorded_steps_of_several_gpus_give_the_bits_of_those_that_are_not() {
    for (nth, shape) in uneven().iter().enumerate() {
        let (_folder, source) = written(shape);
        let [Some(two), Some(three)] = [2, 3].map(|count| {
            let (mut engine, stage) = on(&unrecorded(count)?, &source, KvDtype::F16);
            Some(singles(&mut engine, stage))
        }) else {
            return;
        };
        check_singles(2, shape.family, &source, &two);
        // Of what stands in for the driver the first and the third do not reach each other: nothing is recorded, whatever the shape.
        if nth == 0 {
            check_singles(3, shape.family, &source, &three);
        }
        let _all = AllReach::from_now();
        check_singles(3, shape.family, &source, &three);
    }
}

#[test]
fn recorded_steps_of_several_gpus_see_the_pages_that_sequences_have_now() {
    let _all = AllReach::from_now();
    let folder = tempfile::tempdir().unwrap();
    let source = tables::source(folder.path());
    // Each GPU has tables of its own, and a third has none that are other.
    let Some(plain) = unrecorded(2) else { return };
    let (engine, stage) = on(&plain, &source, KvDtype::F32);
    let wanted = tables::changing(engine, stage, 1);
    let machines = Forgetful::together(several(2), RecordingFault::Nowhere);
    let (engine, stage) = on(&machines, &source, KvDtype::F32);
    assert!(tables::changing(engine, stage, 3) == wanted);
}

#[test]
fn what_was_recorded_of_a_stage_does_not_run_for_another() {
    let _all = AllReach::from_now();
    let [first, _, second] = uneven();
    let ((_here, first), (_there, second)) = (written(&first), written(&second));
    let Some(plain) = unrecorded(2) else { return };
    let wanted = [&first, &second].map(|source| {
        let (mut engine, stage) = on(&plain, source, KvDtype::F16);
        singles(&mut engine, stage)
    });
    let machines = Forgetful::together(several(2), RecordingFault::Nowhere);
    let (mut engine, stage) = on(&machines, &first, KvDtype::F16);
    let other = load(&mut engine, &second, 2);
    for _ in 0..2 {
        assert!(singles(&mut engine, stage) == wanted[0] && singles(&mut engine, other) == wanted[1]);
    }
    engine.unload(stage);
    assert!(singles(&mut engine, other) == wanted[1]);
    // Where the weights were there are others now.
    let stage = load(&mut engine, &second, 2);
    assert!(singles(&mut engine, stage) == wanted[1]);
    engine.unload(other);
    let first = load(&mut engine, &first, 2);
    assert!(singles(&mut engine, first) == wanted[0] && singles(&mut engine, stage) == wanted[1]);
}

#[test]
fn gpus_that_cannot_be_recorded_compute_and_are_asked_once() {
    let [shape, ..] = uneven();
    let (_folder, source) = written(&shape);
    let Some(plain) = unrecorded(2) else { return };
    let (mut engine, stage) = on(&plain, &source, KvDtype::F16);
    let wanted = singles(&mut engine, stage);
    for fault in [RecordingFault::Launching, RecordingFault::Ending, RecordingFault::Running] {
        let machines = Forgetful::together(several(2), fault);
        let (mut engine, stage) = on(&machines, &source, KvDtype::F16);
        assert!(singles(&mut engine, stage) == wanted, "{fault:?}");
        assert_eq!([machines[0].tried(), machines[1].tried()], [1, 0], "{fault:?}");
    }
}

/// `TSNODE_TEST_CARD=0 cargo test -p tsnode-kernels --lib -- --ignored --nocapture steps_are_timed`
#[test]
#[ignore = "times steps of two GPUs, or of one that is opened twice"]
fn recorded_steps_are_timed() {
    const STEPS: u32 = 500;
    let base =
        Shape { family: "llama", hidden: 1024, heads: 16, kv_heads: 8, dim: 64, mlp: 4096, vocab: 1024, more: "" };
    let (_folder, source) = written(&base);
    for (name, fault) in [("as they come", RecordingFault::Beginning), ("recorded", RecordingFault::Nowhere)] {
        let machines = Forgetful::together(several(2), fault);
        if machines.is_empty() {
            return;
        }
        let (mut engine, stage) = on(&machines, &source, KvDtype::F16);
        engine.admit(stage, REQUEST, 20).unwrap();
        let mut step = |start: u32, len: u32| {
            let batch = [Slice { request: REQUEST, start, len }];
            again(&mut engine, stage, &batch);
            let output = Output::Logits { rows: &[0] };
            engine.forward(stage, &batch, Input::Tokens(&prompt(len as usize)), output).unwrap();
        };
        step(0, 9);
        (0..20).for_each(|_| step(9, 1));
        let began = Instant::now();
        (0..STEPS).for_each(|_| step(9, 1));
        let each = began.elapsed() / STEPS;
        eprintln!("two layers on two GPUs, {name}: {each:?} a step, {} run from recordings", machines[0].replays());
    }
}
