//! Perplexity of the embedded model against the figures of its training run, and what int4 adds to it.
#![expect(clippy::unwrap_used, reason = "a scenario that cannot be run fails")]

use std::path::Path;
use tsnode_kernels::{
    engine::{Engine, EngineConfig, Threads},
    eval::{Perplexity, Windows, perplexity},
    source::ModelSource,
};
use tsnode_protocol::{KvCodec, KvDtype, Token};

fn text() -> Vec<Token> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/gutenberg-tiny");
    let tokenizer = tokenizers::Tokenizer::from_file(folder.join("tokenizer.json")).unwrap();
    let text = std::fs::read_to_string(folder.join("eval.txt")).unwrap();
    tokenizer.encode(text, false).unwrap().get_ids().iter().copied().map(Token).collect()
}

fn measure(dtype: KvDtype, window: usize, prompt: usize, codec: Option<KvCodec>) -> Perplexity {
    let source = ModelSource::embedded().unwrap();
    let shape = source.card().shape;
    let mut engine =
        Engine::new(EngineConfig { threads: Threads::together(2), pool_bytes: 64 << 20, kv_dtype: dtype }).unwrap();
    let stage = engine.load(source.load_stage(shape.all_layers()).unwrap()).unwrap();
    perplexity(&mut engine, stage, &shape, &text(), Windows { bos: Token(0), window, prompt }, codec).unwrap()
}

#[test]
fn perplexity_is_what_the_training_run_measured() {
    // models/gutenberg-tiny/README.md: bf16 weights, f32 arithmetic.
    let found = measure(KvDtype::F32, 256, 0, None);
    assert_eq!(found.tokens, 16_380);
    assert!((found.perplexity - 43.7804).abs() < 2e-3, "{}", found.perplexity);
}

#[test]
fn int4_on_the_wire_costs_less_than_a_fifth_of_a_percent() {
    let plain = measure(KvDtype::F16, 512, 256, Some(KvCodec::Raw));
    let packed = measure(KvDtype::F16, 512, 256, Some(KvCodec::Int4));
    let ratio = packed.perplexity / plain.perplexity;
    assert!(ratio <= 1.002, "{} over {} is {ratio}", packed.perplexity, plain.perplexity);
    assert!(packed.kv_bytes * 3 < plain.kv_bytes, "{} bytes for {}", packed.kv_bytes, plain.kv_bytes);
}
