//! The forward pass against Hugging Face transformers: logits within 1e-3 where weights are of single or half precision,
//! greedy tokens equal, however it is cut.
#![expect(clippy::unwrap_used, reason = "a scenario that cannot be run fails")]

use crate::{gguf_writer, widened};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use tsnode_kernels::{
    engine::{Engine, EngineConfig, EngineError, Input, Output, Prefix, Slice, StageKey, Threads},
    pages::PAGE_BYTES,
    sampling::sample,
    source::{ModelSource, Precision},
};
use tsnode_protocol::{KvCodec, KvDtype, LayerRange, RequestId, Sampling, TileHeader, Token, TokenLogprob};

/// Folders of `models/reference`: one for each family, and for what families do otherwise.
pub const MODELS: [&str; 31] = [
    "llama-gqa",
    "llama3-rope",
    "qwen2-bias",
    "opt-relu",
    "mistral-window",
    "qwen3-norms",
    "gemma2-caps",
    "gemma3-local",
    "phi3-longrope",
    "qwen3moe-dense-between",
    "qwen3moe-fused",
    "qwen2moe-every-other",
    "mixtral-window",
    "olmoe-norms",
    "olmo2-post-norms",
    "olmo3-yarn",
    "smollm3-still",
    "granite-factors",
    "granite4-dense",
    "ministral3-yarn",
    "glm4-neighbours",
    "glm-neighbours",
    "glm4moe-sigmoid",
    "gemma4-wide",
    "gemma4-values",
    "gemma4-experts",
    "gemma4-shared",
    "gemma4-inputs",
    WITH_STATES[0],
    WITH_STATES[1],
    QUANTISED,
];
/// Some of their layers keep a state in place of keys and values.
pub const WITH_STATES: [&str; 2] = ["qwen3next-experts", "qwen35-dense"];
/// It is published in MXFP4, by which products round rows to 8 bits: in single precision it is compared as a GGUF file.
const QUANTISED: &str = "gptoss-sinks";
/// Those whose weights are bfloat16.
const OF_BFLOAT16: [&str; 7] =
    ["llama-gqa", "llama3-rope", "mistral-window", "gemma2-caps", "gemma3-local", "phi3-longrope", QUANTISED];
/// Quantised for servers.
const CODED: [&str; 6] =
    ["qwen3-fp8-blocks", "llama-fp8-channels", "qwen2-gptq", "mistral-gptq-order", "llama-awq", "qwen3-int4-packed"];
const TOLERANCE: f32 = 1e-3;
/// Of logits with bfloat16 weights, which rows are rounded to as well, where those of transformers were not
/// (models/reference/README.md). Logits spread by 1 to 4; a wrong sign or turn leaves about that.
const ROUNDED: f32 = 0.1;
const REQUEST: RequestId = RequestId([1; 16]);

#[derive(Deserialize)]
struct Cases {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    prompt: Vec<u32>,
    logits: BTreeMap<String, Vec<f32>>,
    greedy: Vec<u32>,
}

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models/reference").join(name)
}

fn coded(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models/coded").join(name)
}

fn cases(name: &str) -> Vec<Case> {
    let folder = if CODED.contains(&name) { coded(name) } else { folder(name) };
    let text = std::fs::read(folder.join("cases.json")).unwrap();
    serde_json::from_slice::<Cases>(&text).unwrap().cases
}

/// A copy of the model with weights that products read without rounding rows.
fn in_single_precision(name: &str) -> tempfile::TempDir {
    if name != QUANTISED {
        return widened::copy(&folder(name));
    }
    let to = tempfile::tempdir().unwrap();
    let file = gguf_writer::convert(&folder(name), gguf_writer::MatrixFormat::F32, "gpt-2").bytes();
    std::fs::write(to.path().join("model.gguf"), file).unwrap();
    to
}

fn engine() -> Engine {
    Engine::new(EngineConfig { threads: Threads::together(1), pool_bytes: 16 << 20, kv_dtype: KvDtype::F32 }).unwrap()
}

/// Stages of one model, as peers would hold them.
struct StagedModel {
    engine: Engine,
    stages: Vec<StageKey>,
}

impl StagedModel {
    fn new(source: &ModelSource, cuts: &[u32]) -> Self {
        let mut engine = engine();
        let ends = cuts.iter().copied().chain([source.card().shape.layers]);
        let starts = [0].into_iter().chain(cuts.iter().copied());
        let stages = starts
            .zip(ends)
            .map(|(start, end)| engine.load(source.load_stage(LayerRange { start, end }).unwrap()).unwrap())
            .collect();
        Self { engine, stages }
    }

    fn admit(&mut self, request: RequestId, room: usize) {
        for stage in &self.stages {
            self.engine.admit(*stage, request, room as u32).unwrap();
        }
    }

    /// Logits of every row.
    fn run(&mut self, request: RequestId, start: usize, tokens: &[u32]) -> Vec<f32> {
        let slice = [Slice { request, start: start as u32, len: tokens.len() as u32 }];
        let tokens: Vec<Token> = tokens.iter().copied().map(Token).collect();
        let rows: Vec<usize> = (0..tokens.len()).collect();
        let mut hidden = Vec::new();
        for (i, stage) in self.stages.iter().enumerate() {
            let input = if i == 0 { Input::Tokens(&tokens) } else { Input::Hidden(&hidden) };
            let last = i + 1 == self.stages.len();
            let output = if last { Output::Logits { rows: &rows } } else { Output::Hidden };
            let out = self.engine.forward(*stage, &slice, input, output).unwrap().to_vec();
            hidden = out;
        }
        hidden
    }
}

fn argmax(logits: &[f32]) -> u32 {
    logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0 as u32
}

fn check_logits(name: &str, case: &Case, logits: &[f32], tolerance: f32) {
    let vocab = logits.len() / case.prompt.len();
    for (position, expected) in &case.logits {
        let at: usize = position.parse().unwrap();
        let worst = logits[at * vocab..][..vocab].iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= tolerance, "{name}, prompt {}, position {at}: off by {worst}", case.prompt.len());
    }
}

fn check_greedy(name: &str, case: &Case, pipeline: &mut StagedModel, request: RequestId, last: &[f32]) {
    let mut next = argmax(last);
    for (i, expected) in case.greedy.iter().enumerate() {
        assert_eq!(next, *expected, "{name}, prompt {}, token {i}", case.prompt.len());
        let logits = pipeline.run(request, case.prompt.len() + i, &[next]);
        next = argmax(&logits);
    }
}

#[test]
fn logits_and_greedy_tokens_agree_with_transformers_however_layers_and_prompts_are_cut() {
    for name in MODELS {
        let widened = in_single_precision(name);
        however_cut(name, &ModelSource::open(widened.path()).unwrap(), TOLERANCE);
    }
}

#[test]
fn so_they_do_with_weights_as_they_are_stored() {
    for name in MODELS.into_iter().filter(|name| *name != QUANTISED) {
        let tolerance = if OF_BFLOAT16.contains(&name) { ROUNDED } else { TOLERANCE };
        however_cut(name, &ModelSource::open(&folder(name)).unwrap(), tolerance);
    }
}

/// FP8, GPTQ, AWQ and compressed-tensors: the numbers that they stand for, as the script takes them apart, in transformers.
#[test]
fn so_they_do_with_weights_that_servers_quantisers_stored() {
    for name in CODED {
        let source = ModelSource::open(&coded(name)).unwrap().in_precision(Precision::Exact).unwrap();
        however_cut(name, &source, TOLERANCE);
    }
}

/// As such weights are computed with when nothing is asked for: FP8 as bfloat16, to which rows are rounded too; four bits by
/// an index as half precision; other four bits as blocks, by which rows are rounded to 8 bits.
#[test]
fn weights_of_servers_quantisers_are_off_by_what_rows_are_rounded() {
    for name in CODED {
        let source = ModelSource::open(&coded(name)).unwrap();
        for case in cases(name) {
            let mut pipeline = StagedModel::new(&source, &[]);
            pipeline.admit(REQUEST, case.prompt.len());
            let logits = pipeline.run(REQUEST, 0, &case.prompt);
            let vocab = logits.len() / case.prompt.len();
            for (position, expected) in &case.logits {
                let found = &logits[position.parse::<usize>().unwrap() * vocab..][..vocab];
                let off: Vec<f32> = found.iter().zip(expected).map(|(a, b)| a - b).collect();
                let part = spread(&off) / spread(expected);
                let most = match name {
                    "mistral-gptq-order" => 0.005,
                    "qwen3-fp8-blocks" | "llama-fp8-channels" => 0.03,
                    _ => ROUNDING,
                };
                assert!(part <= most, "{name}, position {position}: off by {part} of the logits' spread");
            }
        }
    }
}

/// LongRoPE's factors for long sequences, of which all positions turn by them.
#[test]
fn so_they_do_beyond_the_first_training() {
    let name = "phi3-long";
    let short = ModelSource::open(&folder(name)).unwrap();
    let (id, context) = (short.card().id, short.card().shape.context);
    let long = short.with_long_context().unwrap();
    assert_ne!(long.card().id, id, "no group has both");
    assert_eq!((context, long.card().shape.context), (64, 512));
    however_cut(name, &long, TOLERANCE);
    assert!(ModelSource::open(&folder("llama-gqa")).unwrap().with_long_context().is_none());
}

/// In single precision, asked for, weights that are bfloat16 give transformers' logits too, by another id.
#[test]
fn exact_rows_leave_nothing_of_what_bfloat16_ones_do() {
    for name in OF_BFLOAT16 {
        let stored = ModelSource::open(&folder(name)).unwrap();
        let id = stored.card().id;
        let source = stored.in_precision(Precision::Exact).unwrap();
        assert_ne!(source.card().id, id, "no group has both");
        for case in cases(name) {
            let mut pipeline = StagedModel::new(&source, &[]);
            pipeline.admit(REQUEST, case.prompt.len() + case.greedy.len() + 1);
            let logits = pipeline.run(REQUEST, 0, &case.prompt);
            check_logits(name, &case, &logits, TOLERANCE);
            let vocab = logits.len() / case.prompt.len();
            check_greedy(name, &case, &mut pipeline, REQUEST, &logits[logits.len() - vocab..]);
        }
    }
}

/// What rounding rows to 8 bits leaves of logits' spread at most (`gguf.rs`).
const ROUNDING: f32 = 0.08;

fn spread(x: &[f32]) -> f32 {
    let mean = x.iter().sum::<f32>() / x.len() as f32;
    (x.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / x.len() as f32).sqrt()
}

fn however_cut(name: &str, source: &ModelSource, tolerance: f32) {
    let layers = source.card().shape.most_stages();
    let mut cuts: Vec<Vec<u32>> = vec![vec![]];
    cuts.extend((1..layers).map(|c| vec![c]));
    cuts.extend((2..layers).map(|c| vec![1, c]));
    for cut in cuts {
        for case in cases(name) {
            for chunk in [case.prompt.len(), 16, 1] {
                let mut pipeline = StagedModel::new(source, &cut);
                pipeline.admit(REQUEST, case.prompt.len() + case.greedy.len() + 1);
                let mut logits = Vec::new();
                for (i, part) in case.prompt.chunks(chunk).enumerate() {
                    logits.extend(pipeline.run(REQUEST, i * chunk, part));
                }
                check_logits(name, &case, &logits, tolerance);
                let vocab = logits.len() / case.prompt.len();
                check_greedy(name, &case, &mut pipeline, REQUEST, &logits[logits.len() - vocab..]);
            }
        }
    }
}

/// What clients are told of tokens' probabilities, by transformers' own logits: with weights and KV of single precision.
#[test]
fn log_probabilities_are_those_of_transformers_in_single_precision() {
    let sampling = Sampling { logprobs: Some(20), ..Sampling::greedy() };
    for name in MODELS {
        let widened = in_single_precision(name);
        let source = ModelSource::open(widened.path()).unwrap();
        for case in cases(name) {
            let mut pipeline = StagedModel::new(&source, &[]);
            pipeline.admit(REQUEST, case.prompt.len() + 1);
            let mut logits = pipeline.run(REQUEST, 0, &case.prompt);
            let vocab = logits.len() / case.prompt.len();
            for (position, theirs) in &case.logits {
                let at: usize = position.parse().unwrap();
                let said = sample(&mut logits[at * vocab..][..vocab], &sampling, &[], &[], at as u32);
                let total = theirs.iter().map(|x| f64::from(*x).exp()).sum::<f64>().ln();
                assert_eq!((said.top.len(), said.logprob), (20, Some(said.top[0].logprob)));
                for TokenLogprob { token, logprob } in said.top {
                    let off = f64::from(logprob) - (f64::from(theirs[token.0 as usize]) - total);
                    assert!(off.abs() <= f64::from(TOLERANCE), "{name}, position {at}, {token:?}: off by {off}");
                }
            }
        }
    }
}

#[test]
fn kv_handed_from_one_cut_to_another_continues_as_if_nothing_happened() {
    for name in MODELS.into_iter().filter(|name| !WITH_STATES.contains(name)) {
        let single = (name == QUANTISED).then(|| in_single_precision(name));
        let path = single.as_ref().map_or_else(|| folder(name), |single| single.path().to_owned());
        let source = ModelSource::open(&path).unwrap();
        let shape = source.card().shape;
        let mut prefill = StagedModel::new(&source, if shape.whole { &[] } else { &[1] });
        let mut decode = StagedModel::new(&source, if shape.most_stages() > 2 { &[2] } else { &[] });
        for (n, case) in cases(name).into_iter().enumerate() {
            let request = RequestId([n as u8; 16]);
            prefill.admit(request, case.prompt.len());
            decode.admit(request, case.prompt.len() + case.greedy.len() + 1);
            let logits = prefill.run(request, 0, &case.prompt);
            let tokens = case.prompt.len() as u32;
            for layer in 0..shape.layers {
                let tile = TileHeader {
                    layer,
                    head_start: 0,
                    head_end: shape.kv_heads,
                    token_start: 0,
                    token_end: tokens,
                    bytes: 0,
                };
                let mut payload = Vec::new();
                let from = prefill.stages[usize::from(layer >= 1 && prefill.stages.len() > 1)];
                prefill.engine.export(from, request, &tile, KvCodec::Raw, &mut payload).unwrap();
                let to = decode.stages[usize::from(layer >= 2 && decode.stages.len() > 1)];
                decode.engine.import(to, request, &tile, KvCodec::Raw, &payload).unwrap();
            }
            for stage in decode.stages.clone() {
                decode.engine.set_len(stage, request, tokens).unwrap();
            }
            check_greedy(name, &case, &mut decode, request, &logits[logits.len() - shape.vocab as usize..]);
        }
    }
}

/// Gemma 4 E2B and E4B: their layers need more of each other, and of tokens, than rows.
#[test]
fn a_model_that_one_stage_has_to_hold_is_not_cut() {
    for (name, blocks) in [("gemma4-shared", 3), ("gemma4-inputs", 2)] {
        let source = ModelSource::open(&folder(name)).unwrap();
        let shape = source.card().shape;
        assert_eq!((shape.layers, shape.whole, shape.most_stages()), (blocks, true, 1));
        for (start, end) in [(0, 1), (1, blocks)] {
            let refusal = source.load_stage(LayerRange { start, end }).err().unwrap().to_string();
            assert!(refusal.contains(&format!("layers {start}..{end} of {blocks} are no stage")), "{refusal}");
        }
        // Pages are those of layers that have keys and values of their own.
        let mut pipeline = StagedModel::new(&source, &[]);
        let free = pipeline.engine.pages().free;
        pipeline.admit(REQUEST, 1);
        assert_eq!(free - pipeline.engine.pages().free, blocks as usize);
    }
}

/// Logits of the last of some tokens, as bits.
fn last_bits(engine: &mut Engine, stage: StageKey, request: RequestId, start: u32, tokens: &[Token]) -> Vec<u32> {
    let slice = Slice { request, start, len: tokens.len() as u32 };
    let output = Output::Logits { rows: &[tokens.len() - 1] };
    let logits = engine.forward(stage, &[slice], Input::Tokens(tokens), output).unwrap();
    logits.iter().map(|x| x.to_bits()).collect()
}

/// Qwen3-Next and Qwen3.5: a state is only there behind a sequence's last token, and in no tile.
#[test]
fn a_sequence_with_a_state_goes_on_from_its_end() {
    let [one, two, three] = [1, 2, 3].map(|n| RequestId([n; 16]));
    for (name, pages) in WITH_STATES.into_iter().zip([3 * 2, 4 * 2]) {
        let source = ModelSource::open(&folder(name)).unwrap();
        let shape = source.card().shape;
        assert!(shape.whole && shape.has_state() && shape.state_bytes == pages * 65536, "{shape:?}");
        let mut engine = engine();
        let stage = engine.load(source.load_stage(shape.all_layers()).unwrap()).unwrap();
        let tokens: Vec<Token> = (0..60).map(|n| Token(n * 37 % 256)).collect();
        let all = engine.pages().free;
        engine.admit(stage, one, 64).unwrap();
        assert_eq!(all - engine.pages().free, (pages + u64::from(shape.layers)) as usize);
        last_bits(&mut engine, stage, one, 0, &tokens[..20]);

        assert_eq!(engine.truncate(stage, one, 20), Ok(()));
        assert!(matches!(engine.truncate(stage, one, 19), Err(EngineError::Position { .. })));
        assert_eq!([20, 19, 21].map(|len| engine.set_len(stage, one, len).is_ok()), [true, false, false]);
        let (head_end, token_end) = (shape.kv_heads, 20);
        let tile = TileHeader { layer: 0, head_start: 0, head_end, token_start: 0, token_end, bytes: 0 };
        let mut payload = Vec::new();
        let sent = engine.export(stage, one, &tile, KvCodec::Raw, &mut payload);
        assert_eq!(sent, Err(EngineError::State));
        assert_eq!(engine.import(stage, one, &tile, KvCodec::Raw, &[]), Err(EngineError::State));

        let behind =
            |engine: &mut Engine, request, tokens| engine.admit_after(stage, request, 64, Prefix::Running(one), tokens);
        assert_eq!(behind(&mut engine, two, 19), Err(EngineError::NoPrefix));
        behind(&mut engine, two, 20).unwrap();
        let whole = last_bits(&mut engine, stage, two, 20, &tokens[20..40]);
        // The other one has its own state.
        for (n, token) in tokens[20..40].iter().enumerate() {
            let bits = last_bits(&mut engine, stage, one, 20 + n as u32, &[*token]);
            assert!(n < 19 || bits == whole, "{name}: token by token");
        }
        assert_eq!(engine.keep(stage, two, 30), None);
        let kept = engine.keep(stage, one, 40).unwrap();
        engine.admit_after(stage, three, 64, Prefix::Kept(kept), 40).unwrap();
        let behind_kept = last_bits(&mut engine, stage, three, 40, &tokens[40..]);
        engine.admit(stage, one, 64).unwrap();
        // Pages that are had again hold what others left in them.
        assert_eq!(last_bits(&mut engine, stage, one, 0, &tokens), behind_kept, "{name}: in one go");
        [one, three].into_iter().for_each(|request| engine.release(stage, request));
        engine.forget(kept);
        assert_eq!(engine.pages().free, all);
    }
}

/// A kept one's state is copied: where there are no pages for both, whoever leads computes its tokens anew, and does not wait.
#[test]
fn a_kept_state_that_leaves_no_room_for_another_is_as_good_as_gone() {
    let source = ModelSource::open(&folder(WITH_STATES[0])).unwrap();
    let all = source.card().shape.all_layers();
    let [one, two] = [1, 2].map(|n| RequestId([n; 16]));
    let tokens: Vec<Token> = (0..20).map(|n| Token(n * 37 % 256)).collect();
    // A state takes six pages, and its sequence's tokens one.
    for (pages, has_room) in [(13, false), (14, true)] {
        let (threads, pool_bytes) = (Threads::together(1), pages * PAGE_BYTES);
        let mut engine = Engine::new(EngineConfig { threads, pool_bytes, kv_dtype: KvDtype::F32 }).unwrap();
        let stage = engine.load(source.load_stage(all).unwrap()).unwrap();
        engine.admit(stage, one, 64).unwrap();
        last_bits(&mut engine, stage, one, 0, &tokens);
        let kept = engine.keep(stage, one, 20).unwrap();
        let admitted = engine.admit_after(stage, two, 64, Prefix::Kept(kept), 20);
        assert_eq!(admitted, if has_room { Ok(()) } else { Err(EngineError::NoPrefix) }, "{pages} pages");
        engine.forget(kept);
        engine.release(stage, two);
        engine.admit(stage, two, 64).unwrap();
    }
}

#[test]
fn a_sequence_does_not_know_its_batch() {
    alone_and_together(&ModelSource::embedded().unwrap());
    for name in ["qwen3moe-fused", "qwen2moe-every-other", "olmoe-norms", "gemma4-shared", "gemma4-inputs"] {
        alone_and_together(&ModelSource::open(&folder(name)).unwrap());
    }
    for name in WITH_STATES {
        alone_and_together(&ModelSource::open(&folder(name)).unwrap());
    }
}

fn alone_and_together(source: &ModelSource) {
    let vocab = source.card().shape.vocab;
    let mut engine =
        Engine::new(EngineConfig { threads: Threads::together(2), pool_bytes: 16 << 20, kv_dtype: KvDtype::F16 })
            .unwrap();
    let stage = engine.load(source.load_stage(source.card().shape.all_layers()).unwrap()).unwrap();
    let prompt = |n: u32| (0..37 + n).map(|i| Token((i * 131 + n * 17) % vocab)).collect::<Vec<_>>();
    let alone: Vec<Vec<f32>> = (0..5)
        .map(|n| {
            let request = RequestId([n as u8; 16]);
            let tokens = prompt(n);
            engine.admit(stage, request, 64).unwrap();
            let slice = Slice { request, start: 0, len: tokens.len() as u32 };
            let rows = [tokens.len() - 1];
            let out = engine.forward(stage, &[slice], Input::Tokens(&tokens), Output::Logits { rows: &rows });
            let out = out.unwrap().to_vec();
            engine.release(stage, request);
            out
        })
        .collect();
    let (mut batch, mut tokens, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    for n in 0..5 {
        let request = RequestId([n as u8; 16]);
        engine.admit(stage, request, 64).unwrap();
        batch.push(Slice { request, start: 0, len: prompt(n).len() as u32 });
        tokens.extend(prompt(n));
        rows.push(tokens.len() - 1);
    }
    let out = engine.forward(stage, &batch, Input::Tokens(&tokens), Output::Logits { rows: &rows }).unwrap();
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for (together, alone) in out.chunks_exact(vocab as usize).zip(&alone) {
        assert_eq!(bits(together), bits(alone));
    }
}
