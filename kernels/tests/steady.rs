//! Steps that come one after the other: they work in memory of those before, and a prompt may be cut into any of them.
#![expect(clippy::unwrap_used, reason = "a scenario that cannot be run fails")]

mod counting;
mod gguf_writer;

use gguf_writer::{MatrixFormat, convert};
use std::path::Path;
use tsnode_kernels::{
    engine::{Engine, EngineConfig, Input, Output, Slice, StageKey, Threads},
    source::ModelSource,
};
use tsnode_protocol::{KvDtype, RequestId, Token};

/// Long enough that each sequence goes from one page to the next.
const STEPS: u32 = 150;
const BATCH: u8 = 4;
/// How often memory of all threads may grow on the way there.
const GROWTH: usize = 40;

fn embedded() -> ModelSource {
    ModelSource::embedded().unwrap()
}

/// The embedded model with matrices of 8 bits.
fn quantised() -> ModelSource {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/gutenberg-tiny");
    std::fs::write(&path, convert(&tiny, MatrixFormat::Q8, "gpt-2").bytes()).unwrap();
    ModelSource::open(&path).unwrap()
}

fn engine(source: &ModelSource, threads: usize) -> (Engine, StageKey) {
    let threads = Threads::together(threads);
    let mut engine = Engine::new(EngineConfig { threads, pool_bytes: 32 << 20, kv_dtype: KvDtype::F16 }).unwrap();
    let stage = engine.load(source.load_stage(source.card().shape.all_layers()).unwrap()).unwrap();
    (engine, stage)
}

/// One step of every sequence, and the likeliest next tokens.
fn step(engine: &mut Engine, stage: StageKey, batch: &mut [Slice], tokens: &mut [Token], rows: &[usize]) {
    let logits = engine.forward(stage, batch, Input::Tokens(tokens), Output::Logits { rows }).unwrap();
    let vocab = logits.len() / rows.len();
    for (token, logits) in tokens.iter_mut().zip(logits.chunks_exact(vocab)) {
        let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
        *token = Token(best.0 as u32);
    }
    batch.iter_mut().for_each(|slice| slice.start += 1);
}

#[test]
fn decoding_takes_no_memory_for_a_token() {
    let _alone = counting::alone();
    for (name, source) in [("bf16", embedded()), ("8 bits", quantised())] {
        let (mut engine, stage) = engine(&source, 2);
        let request = |n| RequestId([n; 16]);
        for n in 0..BATCH {
            engine.admit(stage, request(n), STEPS + 1).unwrap();
        }
        let mut batch: Vec<Slice> = (0..BATCH).map(|n| Slice { request: request(n), start: 0, len: 1 }).collect();
        let mut tokens: Vec<Token> = (0..BATCH).map(|n| Token(300 + u32::from(n))).collect();
        let rows: Vec<usize> = (0..usize::from(BATCH)).collect();
        step(&mut engine, stage, &mut batch, &mut tokens, &rows);
        let meter = counting::MemoryMeter::start();
        for _ in 0..STEPS {
            step(&mut engine, stage, &mut batch, &mut tokens, &rows);
        }
        let (times, most) = (meter.times(), meter.most());
        println!("{name}: memory taken {times} times, {most} bytes at most, in {STEPS} steps of {BATCH}");
        // Each thread's scores grow with their context, by doubling.
        assert!(times <= GROWTH, "{name}: steps take memory {times} times");
    }
}

#[test]
fn a_prompt_in_steps_is_the_prompt_at_once() {
    let _alone = counting::alone();
    let prompt: Vec<Token> = (0..230).map(|n| Token(300 + n * 13 % 3000)).collect();
    for source in [embedded(), quantised()] {
        let ends: [&[usize]; 4] = [&[230], &[1, 230], &[64, 128, 229, 230], &[7, 100, 230]];
        let logits: Vec<Vec<u32>> = ends.iter().map(|ends| in_steps(&source, &prompt, ends)).collect();
        assert!(logits.iter().all(|l| *l == logits[0]), "{}", source.card().name);
    }
}

/// Bits of the last row's logits, where the prompt's steps end so; steps before the last ask for none.
fn in_steps(source: &ModelSource, prompt: &[Token], ends: &[usize]) -> Vec<u32> {
    let (mut engine, stage) = engine(source, 2);
    let request = RequestId([7; 16]);
    engine.admit(stage, request, prompt.len() as u32).unwrap();
    let (mut start, mut last) = (0, Vec::new());
    for &end in ends {
        let slice = [Slice { request, start: start as u32, len: (end - start) as u32 }];
        let row = [end - start - 1];
        let rows = if end == prompt.len() { &row[..] } else { &[] };
        let input = Input::Tokens(&prompt[start..end]);
        let logits = engine.forward(stage, &slice, input, Output::Logits { rows }).unwrap();
        last = logits.iter().map(|x| x.to_bits()).collect();
        start = end;
    }
    assert_eq!(last.len(), source.card().shape.vocab as usize);
    last
}
