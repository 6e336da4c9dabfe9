//! `tsnode bench codec`: how fast one core packs KV for a link and unpacks it, and what that costs in quality.

use super::{loaded, open};
use crate::{
    cli::{
        exit::{Exit, ExitKind},
        is_set, json,
        output::print_json,
        verb,
    },
    data_plane::models::ModelFiles,
    text::{Templates, TextModel},
};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use tsnode_kernels::{
    cpu::Simd,
    device::Host,
    engine::{Engine, EngineConfig, EngineError, StageKey, Threads},
    eval::{LayerError, PROMPTS, PrefixQuality, SideError, Subject, TEXT, as_reference, reference_bits, rouge_l},
    source::ModelSource,
    speed::StepShape,
    wire::{
        codec_speed::{CodecLoad, measure},
        tile_bytes,
    },
};
use tsnode_protocol::{KvCodec, KvDtype, RequestId, Token};

/// What is measured; 16 bit as it is lies beside it.
const CODECS: [KvCodec; 3] = [KvCodec::Int3, KvCodec::Int4, KvCodec::Int8];
/// KV heads, their channels and tokens: a layer of Llama-3-8B, and one of the embedded model. No cache holds either.
const LOADS: [CodecLoad; 2] = [
    CodecLoad { heads: 8, dim: 128, tokens: 16_384, tile: 512 },
    CodecLoad { heads: 4, dim: 32, tokens: 131_072, tile: 512 },
];
const ROUNDS: usize = 21;
/// Of the definition, which is slow.
const ROUNDS_PLAIN: usize = 3;
/// Prefixes handed over once before the rest is predicted (tokens).
const PREFIXES: [usize; 4] = [100, 256, 512, 896];
/// What quality is measured of: codecs, and a layout that four bits are compared with.
const WAYS: [KvPacking; 4] = [
    KvPacking::Codec(KvCodec::Int3),
    KvPacking::Codec(KvCodec::Int4),
    KvPacking::Reference,
    KvPacking::Codec(KvCodec::Int8),
];
/// Tokens of a window, with the first one that is no text.
const WINDOW: usize = 1024;
/// Prefixes of held-out text that are continued, and tokens of a continuation.
const HELD_OUT: usize = 256;
const ANSWER: usize = 64;
/// Prefixes are cut as often again, each time so many tokens later: on 64 alone ROUGE-L says little.
const SHIFT: usize = 51;
const CUTS: usize = 5;

pub(super) fn command() -> Command {
    verb("codec", "Packing KV for a link: speed on one core, size, and quality", "tsnode bench codec --quality")
        .arg(
            Arg::new("quality")
                .long("quality")
                .action(ArgAction::SetTrue)
                .help("Measure what packing costs in quality too (minutes)"),
        )
        .arg(
            Arg::new("text")
                .long("text")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("Text to measure quality on [default: the embedded model's]"),
        )
        .arg(super::model())
        .arg(json())
}

#[derive(Serialize)]
struct Report {
    processor: String,
    instructions: String,
    speed: Vec<CodecSpeed>,
    quality: Vec<Quality>,
}

#[derive(Serialize)]
struct CodecSpeed {
    instructions: String,
    codec: KvCodec,
    heads: usize,
    dim: usize,
    tokens: usize,
    bits_per_element: f64,
    /// Bytes a second of 16-bit numbers, on one core.
    copy: f64,
    pack: f64,
    unpack: f64,
    pack_of_copy: f64,
    unpack_of_copy: f64,
}

/// How prompts' KV is packed.
#[derive(Clone, Copy)]
enum KvPacking {
    Codec(KvCodec),
    /// Groups of 32 with 16 bits for each minimum and step, after KIVI.
    Reference,
}

impl KvPacking {
    fn name(self) -> &'static str {
        match self {
            Self::Codec(codec) => name(codec),
            Self::Reference => "4 bits in groups of 32, minimum and step of 16 bits",
        }
    }

    /// Of prompts of all lengths together.
    fn bits_per_element(self, lengths: &[usize], dim: usize) -> f64 {
        let bits = |n: &usize| match self {
            Self::Codec(codec) => 8 * tile_bytes(codec, KvDtype::F16, *n, 1, dim),
            Self::Reference => reference_bits(*n, dim),
        };
        lengths.iter().map(bits).sum::<usize>() as f64 / (2 * dim * lengths.iter().sum::<usize>()) as f64
    }
}

/// ROUGE-L of greedy continuations, over tokens.
#[derive(Clone, Copy, Serialize)]
struct Rouge {
    mean: f64,
    /// Standard error of the mean.
    error: f64,
    texts: usize,
}

impl Rouge {
    fn of(scores: &[f64]) -> Self {
        let n = scores.len().max(1) as f64;
        let mean = scores.iter().sum::<f64>() / n;
        let spread = scores.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n;
        Self { mean, error: (spread / n).sqrt(), texts: scores.len() }
    }
}

#[derive(Serialize)]
struct Quality {
    codec: &'static str,
    /// Of all prefixes together.
    bits_per_element: f64,
    perplexity: f64,
    perplexity_packed: f64,
    ratio: f64,
    same_top: f64,
    by_prefix: Vec<PrefixQuality>,
    divergence: f64,
    rouge_prompts: Rouge,
    prompt_bits_per_element: f64,
    rouge_held_out: Rouge,
    /// On prefixes cut elsewhere too.
    rouge_all_cuts: Rouge,
    layers: Vec<LayerError>,
}

pub(super) fn run(matches: &ArgMatches) -> Result<(), Exit> {
    let watch = !is_set(matches, "json");
    let cpu = Host::detect().cpu;
    let mut report =
        Report { processor: cpu.name, instructions: format!("{:?}", cpu.simd), speed: Vec::new(), quality: Vec::new() };
    if watch {
        say!("one core of {}, {}; GB/s of 16-bit numbers", report.processor, report.instructions);
        say!(
            "{:<9}{:<7}{:>7}{:>8}{:>8}{:>8}{:>8}{:>8}",
            "by",
            "codec",
            "width",
            "bits",
            "copy",
            "pack",
            "unpack",
            "of copy"
        );
    }
    let all = Simd::packing().into_iter().rev();
    let loads = || CODECS.into_iter().flat_map(|codec| LOADS.map(|load| (codec, load)));
    for (simd, (codec, load)) in all.flat_map(|simd| loads().map(move |load| (simd, load))) {
        let speed = speed(simd, codec, load)?;
        if watch {
            speed.print();
        }
        report.speed.push(speed);
    }
    if is_set(matches, "quality") {
        let mut bench = Bench::open(matches, watch)?;
        for way in WAYS {
            let quality = bench.quality(way).map_err(|e| failed(&e))?;
            if watch {
                quality.print();
            }
            report.quality.push(quality);
        }
    }
    if watch { Ok(()) } else { print_json(&report) }
}

fn failed(error: &dyn std::fmt::Display) -> Exit {
    Exit::new(ExitKind::Model, error.to_string())
}

fn speed(simd: Simd, codec: KvCodec, load: CodecLoad) -> Result<CodecSpeed, Exit> {
    let rounds = if simd == Simd::Plain { ROUNDS_PLAIN } else { ROUNDS };
    let rates = measure(simd, codec, load, rounds).map_err(|e| failed(&e))?;
    Ok(CodecSpeed {
        instructions: format!("{simd:?}"),
        codec,
        heads: load.heads,
        dim: load.dim,
        tokens: load.tokens,
        bits_per_element: rates.bits_per_element,
        copy: rates.copy.0,
        pack: rates.pack.0,
        unpack: rates.unpack.0,
        pack_of_copy: rates.pack.0 / rates.copy.0,
        unpack_of_copy: rates.unpack.0 / rates.copy.0,
    })
}

impl CodecSpeed {
    fn print(&self) {
        let [copy, pack, unpack] = [self.copy, self.pack, self.unpack].map(|rate| rate / 1e9);
        let (name, dim, bits) = (name(self.codec), self.dim, self.bits_per_element);
        let [packing, unpacking] = [self.pack_of_copy, self.unpack_of_copy].map(|share| share * 100.0);
        say!(
            "{:<9}{name:<7}{dim:>7}{bits:>8.3}{copy:>8.2}{pack:>8.2}{unpack:>8.2}{packing:>6.0} % and {unpacking:.0} %",
            self.instructions
        );
    }
}

fn name(codec: KvCodec) -> &'static str {
    match codec {
        KvCodec::Raw => "16 bit",
        KvCodec::Int4 => "int4",
        KvCodec::Int8 => "int8",
        KvCodec::Int3 => "int3",
    }
}

/// A loaded model, and texts as its tokens.
struct Bench {
    source: ModelSource,
    engine: Engine,
    stage: StageKey,
    windows: Vec<Vec<Token>>,
    prompts: Vec<Vec<Token>>,
    /// By where they are cut.
    held_out: Vec<Vec<Vec<Token>>>,
    /// Greedy continuations of prompts, then of each cut's prefixes, with KV as it is.
    answers: Vec<Vec<Vec<Token>>>,
}

impl Bench {
    fn open(matches: &ArgMatches, watch: bool) -> Result<Self, Exit> {
        let source = open(matches)?;
        let text = match matches.get_one::<PathBuf>("text") {
            Some(path) => std::fs::read_to_string(path).map_err(|e| Exit::file(ExitKind::Usage, path, &e))?,
            None => TEXT.to_owned(),
        };
        let reader = text_model(&source).map_err(|e| failed(&e))?;
        let tokens = |text: &str| tokens(&reader, text).map_err(|e| failed(&e));
        let begun = |piece: &[Token]| [&[Token(0)], piece].concat();
        let text = tokens(&text)?;
        let pieces = |from: usize, len: usize| -> Vec<_> {
            let text = text.get(from..).unwrap_or_default();
            text.chunks(len - 1).map(begun).filter(|w| w.len() == len).collect()
        };
        let windows = pieces(0, WINDOW);
        let held_out: Vec<_> = (0..CUTS).map(|cut| pieces(cut * SHIFT, HELD_OUT)).collect();
        let prompts = PROMPTS.lines().map(|line| Ok(begun(&tokens(line)?))).collect::<Result<Vec<_>, Exit>>()?;
        if windows.is_empty() || source.card().shape.context < WINDOW as u32 {
            return Err(failed(&format!("a text and a context of at least {WINDOW} tokens are needed")));
        }
        let threads = Threads::together(std::thread::available_parallelism().map_or(1, usize::from));
        // Continuations run side by side.
        let room = StepShape { batch: held_out[0].len() as u32 + 2, context: 0, new: (HELD_OUT + ANSWER) as u32 };
        let kv = room.kv_bytes(&source, KvDtype::F16) * 2 + (64 << 20);
        let (model, _) = loaded(&source, threads, kv, watch)?;
        let pool_bytes = usize::try_from(kv).map_err(|e| failed(&e))?;
        let config = EngineConfig { threads, pool_bytes, kv_dtype: KvDtype::F16 };
        let mut engine = Engine::new(config).map_err(|e| failed(&e))?;
        let stage = engine.load(model).map_err(|e| failed(&e))?;
        Ok(Self { source, engine, stage, windows, prompts, held_out, answers: Vec::new() })
    }

    fn quality(&mut self, way: KvPacking) -> Result<Quality, EngineError> {
        let (stage, shape) = (self.stage, self.source.card().shape);
        let dim = shape.head_dim as usize;
        let mut subject = Subject { engine: &mut self.engine, stage, vocab: shape.vocab as usize };
        let mut packed = |engine: &mut Engine, request: RequestId, tokens: u32| match way {
            KvPacking::Codec(codec) => engine.fake_quantise(stage, request, 0..tokens, codec),
            KvPacking::Reference => as_reference(engine, stage, request, tokens, dim),
        };
        let mut by_prefix = Vec::new();
        for prefix in PREFIXES {
            by_prefix.push(subject.predict(&self.windows, prefix, &mut packed)?);
        }
        let texts = || std::iter::once(&self.prompts).chain(&self.held_out);
        if self.answers.is_empty() {
            let mut as_it_is = |_: &mut Engine, _: RequestId, _: u32| Ok(());
            self.answers =
                texts().map(|texts| subject.answers(texts, ANSWER, &mut as_it_is)).collect::<Result<_, _>>()?;
        }
        let mut scores: Vec<Vec<f64>> = Vec::new();
        for (texts, before) in texts().zip(&self.answers) {
            let now = subject.answers(texts, ANSWER, &mut packed)?;
            scores.push(before.iter().zip(&now).map(|(a, b)| rouge_l(a, b)).collect());
        }
        let all = PrefixQuality::all(&by_prefix);
        let lengths: Vec<usize> = self.prompts.iter().map(Vec::len).collect();
        Ok(Quality {
            codec: way.name(),
            bits_per_element: way.bits_per_element(&PREFIXES, dim),
            perplexity: all.before.exp(),
            perplexity_packed: all.after.exp(),
            ratio: all.ratio(),
            same_top: all.same_top,
            divergence: all.divergence,
            by_prefix,
            rouge_prompts: Rouge::of(&scores[0]),
            prompt_bits_per_element: way.bits_per_element(&lengths, dim),
            rouge_held_out: Rouge::of(&scores[1]),
            rouge_all_cuts: Rouge::of(&scores[1..].concat()),
            layers: subject.errors(&self.windows[0], &mut packed)?,
        })
    }
}

impl Quality {
    fn print(&self) {
        let Self { perplexity, perplexity_packed, ratio, bits_per_element: bits, .. } = self;
        say!("");
        say!("{}: {bits:.3} bits an element; prefixes handed over once, the rest predicted", self.codec);
        say!(
            "perplexity {perplexity_packed:.4} over {perplexity:.4}: {ratio:.5}; likeliest the same {:.2} %; divergence {:.6}",
            self.same_top * 100.0,
            self.divergence
        );
        for p in &self.by_prefix {
            let (ratio, top) = (p.ratio(), p.same_top * 100.0);
            say!("  {:>4} tokens: {ratio:.5}, {top:.2} % of {}, {:.6}", p.prefix, p.tokens, p.divergence);
        }
        let rouge = |r: &Rouge| format!("{:.3} ± {:.3} on {}", r.mean, r.error, r.texts);
        say!(
            "ROUGE-L of {ANSWER} greedy tokens: {} prompts ({:.3} bits an element), {} prefixes of {HELD_OUT}, {} cut elsewhere too",
            rouge(&self.rouge_prompts),
            self.prompt_bits_per_element,
            rouge(&self.rouge_held_out),
            rouge(&self.rouge_all_cuts)
        );
        say!("{:<7}{:>31}{:>31}", "layer", "keys: worst, mean, relative", "values: worst, mean, relative");
        for LayerError { layer, keys, values } in &self.layers {
            let side = |e: &SideError| format!("{:.4} {:.5} {:.4}", e.worst, e.mean, e.relative);
            say!("{layer:<7}{:>31}{:>31}", side(keys), side(values));
        }
    }
}

fn text_model(source: &ModelSource) -> Result<TextModel, String> {
    let card = source.card().clone();
    let files = card.files.iter().filter_map(|f| Some((f.name.clone(), source.file(&f.name)?.to_vec()))).collect();
    TextModel::new(&ModelFiles { card, files: Arc::new(files) }, &Templates::Here).map_err(|e| e.to_string())
}

fn tokens(model: &TextModel, text: &str) -> Result<Vec<Token>, String> {
    let encoding = model.tokenizer().encode(text, false).map_err(|e| e.to_string())?;
    Ok(encoding.get_ids().iter().copied().map(Token).collect())
}
