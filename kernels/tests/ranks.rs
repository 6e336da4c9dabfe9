//! Tensor parallelism: stages that several ranks hold together give the bits of one rank.
#![expect(clippy::unwrap_used, reason = "a scenario that cannot be run fails")]

use crate::gguf_writer::{MatrixFormat, convert, made};
use crate::reference::{MODELS, WITH_STATES};
use std::path::{Path, PathBuf};
use tsnode_kernels::{
    engine::{Engine, EngineConfig, EngineError, Input, Output, Prefix, Slice, StageKey, Threads},
    pages::PAGE_BYTES,
    quant::QuantType,
    source::{ModelSource, Precision},
    weights::WeightsError,
};
use tsnode_protocol::{KvCodec, KvDtype, LayerRange, RequestId, TileHeader, Token};

/// Reference models whose heads of keys and values cannot be cut in two, and those of which one rank has all states.
const NOT_CUT: [&str; 5] = ["llama3-rope", "gemma3-local", "gemma4-shared", WITH_STATES[0], WITH_STATES[1]];
const ONE: RequestId = RequestId([1; 16]);
const TWO: RequestId = RequestId([2; 16]);

fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/reference").join(name)
}

/// Stages of one model after each other, each over so many ranks.
struct RankedPipeline {
    engine: Engine,
    stages: Vec<StageKey>,
    vocab: usize,
}

impl RankedPipeline {
    fn new(source: &ModelSource, cuts: &[u32], ranks: usize) -> Self {
        let threads = Threads { count: ranks + 1, ranks };
        let config = EngineConfig { threads, pool_bytes: 32 << 20, kv_dtype: KvDtype::F16 };
        let mut engine = Engine::new(config).unwrap();
        let ends = cuts.iter().copied().chain([source.card().shape.layers]);
        let starts = [0].into_iter().chain(cuts.iter().copied());
        let load = |(start, end)| {
            engine.load(source.load_stage_by(threads, LayerRange { start, end }, &mut |_| ()).unwrap().0).unwrap()
        };
        let stages = starts.zip(ends).map(load).collect();
        Self { engine, stages, vocab: source.card().shape.vocab as usize }
    }

    fn admit(&mut self, request: RequestId, room: u32) {
        self.stages.iter().for_each(|stage| self.engine.admit(*stage, request, room).unwrap());
    }

    /// Logits of every row.
    fn run(&mut self, request: RequestId, start: u32, tokens: &[Token]) -> Vec<f32> {
        let slice = [Slice { request, start, len: tokens.len() as u32 }];
        let rows: Vec<usize> = (0..tokens.len()).collect();
        let mut hidden = Vec::new();
        for (i, stage) in self.stages.iter().enumerate() {
            let input = if i == 0 { Input::Tokens(tokens) } else { Input::Hidden(&hidden) };
            let last = i + 1 == self.stages.len();
            let output = if last { Output::Logits { rows: &rows } } else { Output::Hidden };
            hidden = self.engine.forward(*stage, &slice, input, output).unwrap().to_vec();
        }
        hidden
    }

    /// Logits of a prompt in chunks, then tokens chosen greedily, with the logits each was chosen by.
    fn answer(&mut self, request: RequestId, prompt: &[Token], tokens: usize) -> (Vec<Token>, Vec<f32>) {
        self.admit(request, (prompt.len() + tokens) as u32);
        let mut all: Vec<f32> = Vec::new();
        for (i, chunk) in prompt.chunks(13).enumerate() {
            all.extend(self.run(request, i as u32 * 13, chunk));
        }
        let mut answer = Vec::new();
        for at in prompt.len()..prompt.len() + tokens {
            let last = &all[all.len() - self.vocab..];
            let best = last.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
            answer.push(Token(best as u32));
            let more = self.run(request, at as u32, &answer[answer.len() - 1..]);
            all.extend(more);
        }
        (answer, all)
    }
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

fn prompt(source: &ModelSource) -> Vec<Token> {
    (0..29).map(|n| Token((n * 37 + 11) % source.card().shape.vocab)).collect()
}

/// The same answer with the same logits, whatever the ranks and the stages.
fn check(source: &ModelSource, most: usize) {
    let (name, layers) = (&source.card().name, source.card().shape.most_stages());
    let alone = RankedPipeline::new(source, &[], 1).answer(ONE, &prompt(source), 8);
    for ranks in 2..=most {
        for cuts in [vec![], vec![1], vec![1, layers.saturating_sub(1)]] {
            if layers == 1 && !cuts.is_empty() {
                continue;
            }
            let cut = RankedPipeline::new(source, &cuts, ranks).answer(ONE, &prompt(source), 8);
            assert_eq!(cut.0, alone.0, "{name}: {ranks} ranks, cut at {cuts:?}");
            assert_eq!(bits(&cut.1), bits(&alone.1), "{name}: {ranks} ranks, cut at {cuts:?}");
        }
    }
}

#[test]
fn any_number_of_ranks_and_stages_gives_the_bits_of_one() {
    check(&ModelSource::embedded().unwrap(), 4);
    for name in MODELS.into_iter().filter(|name| !NOT_CUT.contains(name)) {
        let source = ModelSource::open(&reference(name)).unwrap();
        check(&source, if name == "opt-relu" { 3 } else { 2 });
    }
}

/// Quantised for servers: outputs of words that ranks share, blocks of scales that they cut.
#[test]
fn matrices_of_several_tensors_are_cut_too() {
    for name in ["qwen3-fp8-blocks", "qwen2-gptq", "mistral-gptq-order", "llama-awq", "qwen3-int4-packed"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/coded").join(name);
        check(&ModelSource::open(&folder).unwrap(), 2);
    }
    check(&ModelSource::open(&reference("llama-gqa")).unwrap().in_precision(Precision::Exact).unwrap(), 2);
}

#[test]
fn quantised_matrices_are_cut_too() {
    let folder = tempfile::tempdir().unwrap();
    for form in [MatrixFormat::F16, MatrixFormat::Q8] {
        let path = folder.path().join("model.gguf");
        let embedded = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/gutenberg-tiny");
        std::fs::write(&path, convert(&embedded, form, "gpt-2").bytes()).unwrap();
        check(&ModelSource::open(&path).unwrap(), 4);
    }
}

/// Ranks share the rows of a matrix and each row is whole on one of them, so that no block of 256 is cut: rows of one block
/// are shared by four ranks, and three of them have parts that no block divides.
#[test]
fn large_blocks_are_cut_too() {
    let (folder, wide) = (tempfile::tempdir().unwrap(), made::wide());
    for kind in [QuantType::Q4K, QuantType::Q6K, QuantType::Iq2S] {
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, convert(wide.path(), MatrixFormat::Large(kind), "gpt-2").bytes()).unwrap();
        check(&ModelSource::open(&path).unwrap(), 4);
    }
}

#[test]
fn a_rank_has_a_part_of_the_weights_and_of_the_pages() {
    let source = ModelSource::embedded().unwrap();
    let all = source.card().shape.all_layers();
    let [one, two, four] = [1, 2, 4].map(|ranks| source.stage_memory(all, ranks).unwrap());
    assert_eq!((one.mapped, one.packed), (two.mapped, two.packed), "no matrix is there twice");
    assert_eq!(one.mapped, four.mapped);
    // Norms are on every rank.
    assert_eq!((two.copied, four.copied), (2 * one.copied, 4 * one.copied));
    let mut pages = Vec::new();
    for ranks in [1, 2, 4] {
        let mut pipeline = RankedPipeline::new(&source, &[], ranks);
        let before = pipeline.engine.pages();
        pipeline.admit(ONE, 512);
        pages.push(before.free - pipeline.engine.pages().free);
        pipeline.engine.release(pipeline.stages[0], ONE);
        assert_eq!(pipeline.engine.pages(), before);
    }
    assert_eq!(pages, [pages[0]; 3], "each has its heads' pages");
}

#[test]
fn what_cannot_be_cut_so_is_refused() {
    let source = ModelSource::open(&reference("gemma3-local")).unwrap();
    let all = source.card().shape.all_layers();
    let threads = Threads { count: 2, ranks: 2 };
    let refused = source.load_stage_by(threads, all, &mut |_| ()).err();
    assert!(matches!(refused, Some(WeightsError::Ranks { ranks: 2, heads: 1 })), "{refused:?}");
    // They have two heads of keys and values, but states are whole.
    for name in WITH_STATES {
        let source = ModelSource::open(&reference(name)).unwrap();
        let refused = source.load_stage_by(threads, source.card().shape.all_layers(), &mut |_| ()).err();
        assert!(matches!(refused, Some(WeightsError::Ranks { ranks: 2, heads: 1 })), "{name}: {refused:?}");
    }
    let config = EngineConfig { threads, pool_bytes: 1 << 20, kv_dtype: KvDtype::F16 };
    let whole = source.load_stage(all).unwrap();
    assert_eq!(Engine::new(config).unwrap().load(whole), Err(EngineError::Ranks { found: 1, expected: 2 }));
}

/// Bits of logits behind a prompt whose KV went from so many ranks to so many others.
fn handed(source: &ModelSource, [from, to]: [usize; 2], codec: KvCodec) -> Vec<u32> {
    let (shape, tokens) = (source.card().shape, prompt(source));
    let [mut from, mut to] = [from, to].map(|ranks| RankedPipeline::new(source, &[], ranks));
    from.admit(ONE, 64);
    to.admit(ONE, 64);
    from.run(ONE, 0, &tokens);
    for layer in 0..shape.layers {
        // Heads in two tiles, neither of them a rank's own.
        for (head_start, head_end) in [(0, 1), (1, shape.kv_heads)] {
            let token_end = tokens.len() as u32;
            let tile = TileHeader { layer, head_start, head_end, token_start: 0, token_end, bytes: 0 };
            let mut payload = Vec::new();
            from.engine.export(from.stages[0], ONE, &tile, codec, &mut payload).unwrap();
            to.engine.import(to.stages[0], ONE, &tile, codec, &payload).unwrap();
        }
    }
    to.engine.set_len(to.stages[0], ONE, tokens.len() as u32).unwrap();
    bits(&to.run(ONE, tokens.len() as u32, &REST))
}

/// What comes behind it.
const REST: [Token; 2] = [Token(5), Token(77)];

fn not_handed(source: &ModelSource) -> Vec<u32> {
    let (mut alone, tokens) = (RankedPipeline::new(source, &[], 1), prompt(source));
    alone.admit(ONE, 64);
    alone.run(ONE, 0, &tokens);
    bits(&alone.run(ONE, tokens.len() as u32, &REST))
}

#[test]
fn kv_goes_from_any_number_of_ranks_to_any_other() {
    let source = ModelSource::embedded().unwrap();
    let expected = not_handed(&source);
    for ranks in [[1, 2], [2, 3], [4, 1], [3, 4]] {
        assert_eq!(handed(&source, ranks, KvCodec::Raw), expected);
    }
}

/// Gemma 4: a wide head is several of the pages', which all ranks deal out alike.
#[test]
fn so_does_kv_of_wide_heads() {
    for name in ["gemma4-wide", "gemma4-values", "gemma4-inputs"] {
        let source = ModelSource::open(&reference(name)).unwrap();
        let expected = not_handed(&source);
        let packed = handed(&source, [1, 1], KvCodec::Int4);
        assert_ne!(packed, expected, "four bits are fewer");
        for ranks in [[1, 2], [2, 1], [2, 2]] {
            assert_eq!(handed(&source, ranks, KvCodec::Raw), expected, "{name}, {ranks:?}");
            assert_eq!(handed(&source, ranks, KvCodec::Int4), packed, "{name}, {ranks:?}");
        }
    }
    // Eight heads of pages, of which a wide one takes four.
    let source = ModelSource::open(&reference("gemma4-wide")).unwrap();
    let threads = Threads { count: 4, ranks: 4 };
    let refused = source.load_stage_by(threads, source.card().shape.all_layers(), &mut |_| ()).err();
    assert!(matches!(refused, Some(WeightsError::Ranks { ranks: 4, heads: 2 })), "{refused:?}");
}

#[test]
fn beginnings_are_shared_and_guesses_forgotten_on_every_rank() {
    let source = ModelSource::embedded().unwrap();
    let begin: Vec<Token> = (0..200).map(|n| Token(300 + n * 7)).collect();
    let rest = [Token(9), Token(8), Token(7)];
    let scenario = |ranks: usize| {
        let mut pipeline = RankedPipeline::new(&source, &[], ranks);
        let (stage, free) = (pipeline.stages[0], pipeline.engine.pages());
        pipeline.admit(ONE, 300);
        pipeline.run(ONE, 0, &begin);
        pipeline.engine.admit_after(stage, TWO, 300, Prefix::Running(ONE), 150).unwrap();
        let mut said = pipeline.run(TWO, 150, &rest);
        pipeline.engine.truncate(stage, TWO, 151).unwrap();
        said.extend(pipeline.run(TWO, 151, &rest));
        let kept = pipeline.engine.keep(stage, ONE, 200).unwrap();
        pipeline.engine.grow(stage, TWO, 600).unwrap();
        pipeline.engine.release(stage, TWO);
        pipeline.engine.admit_after(stage, TWO, 300, Prefix::Kept(kept), 200).unwrap();
        said.extend(pipeline.run(TWO, 200, &rest));
        pipeline.engine.release(stage, TWO);
        assert_eq!(pipeline.engine.pages(), free, "what is kept counts as free");
        pipeline.engine.unload(stage);
        assert_eq!(pipeline.engine.pages(), free);
        bits(&said)
    };
    let alone = scenario(1);
    // Three ranks have other numbers of heads, so their pages hold other numbers of tokens.
    for ranks in [2, 3, 4] {
        assert_eq!(scenario(ranks), alone, "{ranks} ranks");
    }
}

#[test]
fn a_rank_without_pages_leaves_the_others_theirs() {
    let source = ModelSource::embedded().unwrap();
    let threads = Threads { count: 3, ranks: 3 };
    // Of four heads the last rank has two: a page holds 256 of its tokens, and 512 of the others'.
    let config = EngineConfig { threads, pool_bytes: 3 * 4 * PAGE_BYTES, kv_dtype: KvDtype::F16 };
    let mut engine = Engine::new(config).unwrap();
    let all = source.card().shape.all_layers();
    let stage = engine.load(source.load_stage_by(threads, all, &mut |_| ()).unwrap().0).unwrap();
    let free = engine.pages();
    engine.could_hold(stage, 256).unwrap();
    assert!(matches!(engine.could_hold(stage, 257), Err(EngineError::Pages(_))));
    assert!(matches!(engine.admit(stage, ONE, 257), Err(EngineError::Pages(_))));
    assert_eq!(engine.pages(), free);
    engine.admit(stage, ONE, 256).unwrap();
    let before = engine.pages();
    assert!(matches!(engine.grow(stage, ONE, 257), Err(EngineError::Pages(_))));
    assert_eq!(engine.pages(), before);
    engine.release(stage, ONE);
    assert_eq!(engine.pages(), free);
}
