//! Page tables stay on a GPU from step to step, and never longer than they are right.

use super::{
    attention::{Shape, apart, both},
    machines,
    recording::{Forgetful, RecordingFault},
};
use crate::{
    cuda::machine::Machine,
    engine::{Engine, Input, Output, Prefix, Slice, StageKey},
    source::ModelSource,
};
use std::sync::Arc;
use tsnode_protocol::{KvDtype, RequestId, Token};

/// Four tokens to a page in single precision, so that sequences get pages all the time.
const SHAPE: Shape =
    Shape { family: "llama", hidden: 32, heads: 8, kv_heads: 8, dim: 256, mlp: 32, vocab: 64, more: "" };

const A: RequestId = RequestId([1; 16]);
const B: RequestId = RequestId([2; 16]);
const C: RequestId = RequestId([3; 16]);
const D: RequestId = RequestId([4; 16]);
const E: RequestId = RequestId([5; 16]);

struct Scenario {
    engine: Engine,
    stage: StageKey,
    /// How often each step is computed.
    times: usize,
    rows: Vec<Vec<f32>>,
}

/// Logits of sequences whose pages change between steps, each of which is computed so many times and has the same logits each time.
pub(super) fn changing(engine: Engine, stage: StageKey, times: usize) -> Vec<Vec<f32>> {
    Scenario { engine, stage, times, rows: Vec::new() }.tell()
}

impl Scenario {
    fn admit(&mut self, request: RequestId, room: u32) {
        self.engine.admit(self.stage, request, room).unwrap();
    }

    /// Computes tokens of some sequences, from where each is told to be on: the same each time.
    fn step(&mut self, slices: &[(RequestId, u32, u32)]) {
        let first = self.computed(slices);
        for time in 1..self.times {
            assert!(self.computed(slices) == first, "{slices:?}, time {time}");
        }
        self.rows.extend(first);
    }

    fn computed(&mut self, slices: &[(RequestId, u32, u32)]) -> Vec<Vec<f32>> {
        let slice = |&(request, start, len): &(RequestId, u32, u32)| Slice { request, start, len };
        let batch: Vec<Slice> = slices.iter().map(slice).collect();
        batch.iter().for_each(|slice| self.engine.set_len(self.stage, slice.request, slice.start).unwrap());
        // Tokens by sequence and position, so that whatever is read in a wrong place is something else.
        let token = |slice: &Slice, i: u32| Token((u32::from(slice.request.0[0]) * 13 + (slice.start + i) * 7) % 64);
        let tokens: Vec<Token> = batch.iter().flat_map(|s| (0..s.len).map(|i| token(s, i))).collect();
        let all: Vec<usize> = (0..tokens.len()).collect();
        let output = Output::Logits { rows: &all };
        let logits = self.engine.forward(self.stage, &batch, Input::Tokens(&tokens), output).unwrap();
        logits.chunks_exact(64).map(<[f32]>::to_vec).collect()
    }

    /// Pages grown, shared, copied, truncated, given back, had by another and kept.
    fn tell(mut self) -> Vec<Vec<f32>> {
        self.admit(A, 3);
        self.step(&[(A, 0, 3)]);
        self.engine.grow(self.stage, A, 12).unwrap();
        self.step(&[(A, 3, 5)]);
        self.step(&[(A, 8, 1)]);
        self.admit(B, 8);
        self.step(&[(B, 0, 5)]);
        self.step(&[(A, 9, 1), (B, 5, 1)]);
        self.step(&[(B, 6, 1), (A, 10, 1)]);
        // The first page is shared, the second copied, and both go on in it.
        self.engine.admit_after(self.stage, C, 12, Prefix::Running(A), 6).unwrap();
        self.step(&[(C, 6, 1), (A, 11, 1)]);
        self.step(&[(A, 7, 1), (C, 7, 1)]);
        // Truncated, and a page later than it was.
        self.step(&[(A, 2, 1), (B, 7, 1)]);
        self.engine.grow(self.stage, A, 16).unwrap();
        self.step(&[(A, 3, 10), (B, 7, 1)]);
        // The same requests and as much room in the next batch, in other pages: another sequence has those given back.
        for other in [None, Some(D)] {
            self.engine.release(self.stage, A);
            other.into_iter().for_each(|other| self.admit(other, 16));
            self.admit(A, 16);
            self.step(&[(A, 0, 9), (B, 7, 1)]);
        }
        self.step(&[(D, 0, 9)]);
        self.step(&[(A, 9, 1), (B, 7, 1)]);
        self.step(&[(D, 9, 1)]);
        // Kept, begun with, and what is kept is gone on from by two.
        let kept = self.engine.keep(self.stage, D, 7).unwrap();
        self.engine.admit_after(self.stage, E, 12, Prefix::Kept(kept), 7).unwrap();
        self.step(&[(E, 7, 1), (A, 10, 1)]);
        self.engine.admit_after(self.stage, D, 12, Prefix::Kept(kept), 7).unwrap();
        self.engine.release(self.stage, C);
        self.step(&[(D, 7, 2), (E, 8, 1)]);
        [(A, 11, 1), (B, 7, 1), (D, 9, 1), (E, 9, 1)].into_iter().for_each(|slice| self.step(&[slice]));
        self.rows
    }
}

pub(super) fn source(folder: &std::path::Path) -> ModelSource {
    SHAPE.write(folder);
    ModelSource::open(folder).unwrap()
}

#[test]
fn steps_see_the_pages_that_sequences_have_now() {
    let folder = tempfile::tempdir().unwrap();
    let source = source(folder.path());
    for machine in machines() {
        let [cpu, gpu] = both(&machine, &source, KvDtype::F32).map(|(engine, stage)| changing(engine, stage, 1));
        for (i, (cpu, gpu)) in cpu.iter().zip(&gpu).enumerate() {
            assert!(apart(cpu, gpu) < 0.004, "row {i}: {}", apart(cpu, gpu));
        }
    }
}

#[test]
fn tables_are_copied_to_a_gpu_when_they_changed() {
    let folder = tempfile::tempdir().unwrap();
    let source = source(folder.path());
    for inner in machines() {
        let forgetful = Forgetful::new(inner, RecordingFault::Beginning);
        let machine: Arc<dyn Machine> = forgetful.clone();
        let [_, (engine, stage)] = both(&machine, &source, KvDtype::F32);
        let mut scenario = Scenario { engine, stage, times: 1, rows: Vec::new() };
        scenario.admit(A, 8);
        scenario.admit(B, 8);
        forgetful.uploads();
        let uploads = |scenario: &mut Scenario, slices: &[(RequestId, u32, u32)]| {
            scenario.step(slices);
            forgetful.uploads()
        };
        // What is told of a step, and its tables.
        assert_eq!(uploads(&mut scenario, &[(A, 0, 3), (B, 0, 2)]), 2);
        assert_eq!(uploads(&mut scenario, &[(A, 3, 1), (B, 2, 1)]), 1);
        assert_eq!(uploads(&mut scenario, &[(A, 4, 1), (B, 3, 1)]), 1, "the next page was there");
        scenario.engine.grow(stage, A, 8).unwrap();
        assert_eq!(uploads(&mut scenario, &[(A, 5, 1), (B, 4, 1)]), 1, "there was room");
        scenario.engine.grow(stage, A, 9).unwrap();
        assert_eq!(uploads(&mut scenario, &[(A, 6, 1), (B, 5, 1)]), 2);
        assert_eq!(uploads(&mut scenario, &[(B, 6, 1), (A, 7, 1)]), 2, "another order");
        scenario.engine.release(stage, A);
        scenario.admit(A, 9);
        assert_eq!(uploads(&mut scenario, &[(B, 7, 1), (A, 0, 1)]), 2);
    }
}
