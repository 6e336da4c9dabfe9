//! GGUF files against the folders they were made of: the same logits, the same tokens, the same small files.
#![expect(clippy::unwrap_used, reason = "a scenario that cannot be run fails")]

use crate::gguf_writer::{MatrixFormat, Writer, convert, large, made};
use crate::widened;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tokenizers::Tokenizer;
use tsnode_kernels::{
    engine::{Engine, EngineConfig, Input, Output, Slice, Threads},
    gguf::Gguf,
    quant::QuantType,
    source::{ModelSource, PartFile, Precision, Start, start_of},
};
use tsnode_protocol::{KvDtype, LayerRange, RequestId, Token, limits, weights::WeightsForm};

/// Between logits of F32 weights and Hugging Face's.
const TOLERANCE: f32 = 1e-3;

fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/reference").join(name)
}

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/gutenberg-tiny")
}

/// Opens a model as a file would be opened.
fn opened(writer: &Writer) -> ModelSource {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, writer.bytes()).unwrap();
    ModelSource::open(&path).unwrap()
}

fn logits(source: &ModelSource, tokens: &[u32]) -> Vec<f32> {
    let mut engine =
        Engine::new(EngineConfig { threads: Threads::together(1), pool_bytes: 16 << 20, kv_dtype: KvDtype::F32 })
            .unwrap();
    let stage = engine.load(source.load_stage(source.card().shape.all_layers()).unwrap()).unwrap();
    let request = RequestId([1; 16]);
    engine.admit(stage, request, tokens.len() as u32).unwrap();
    let tokens: Vec<Token> = tokens.iter().copied().map(Token).collect();
    let rows: Vec<usize> = (0..tokens.len()).collect();
    let slice = [Slice { request, start: 0, len: tokens.len() as u32 }];
    engine.forward(stage, &slice, Input::Tokens(&tokens), Output::Logits { rows: &rows }).unwrap().to_vec()
}

fn furthest(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[derive(Deserialize)]
struct Cases {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    prompt: Vec<u32>,
    logits: BTreeMap<String, Vec<f32>>,
}

/// Reference models whose files by llama.cpp are read, and the longest prompt to run: Mistral's and Qwen 3's windows are not written
/// into such files.
fn references() -> Vec<(String, usize)> {
    let folders = std::fs::read_dir(reference("")).unwrap().map(|entry| entry.unwrap().path());
    let one = |path: PathBuf| {
        let config = std::fs::read(path.join("config.json")).ok()?;
        let config: serde_json::Value = serde_json::from_slice(&config).unwrap();
        let longest = match config["model_type"].as_str().unwrap() {
            "opt" | "mistral" | "glm" | "qwen3_next" | "qwen3_5_text" => return None,
            // Its cases are of another choice of factors.
            "phi3" if path.ends_with("phi3-long") => return None,
            "qwen3" | "mixtral" => config["sliding_window"].as_u64().unwrap_or(u64::MAX) as usize,
            _ => usize::MAX,
        };
        Some((path.file_name().unwrap().to_string_lossy().into_owned(), longest))
    };
    folders.filter_map(one).collect()
}

#[test]
fn logits_agree_with_transformers() {
    for (name, longest) in references() {
        for form in [MatrixFormat::F32, MatrixFormat::F16] {
            let source = opened(&convert(&reference(&name), form, "gpt-2"));
            let text = std::fs::read(reference(&name).join("cases.json")).unwrap();
            let cases = serde_json::from_slice::<Cases>(&text).unwrap().cases;
            for case in cases.iter().filter(|case| case.prompt.len() <= longest) {
                let logits = logits(&source, &case.prompt);
                let vocab = logits.len() / case.prompt.len();
                for (at, expected) in &case.logits {
                    let off = furthest(&logits[at.parse::<usize>().unwrap() * vocab..][..vocab], expected);
                    assert!(off <= TOLERANCE, "{name} in {form:?}, position {at}: off by {off}");
                }
            }
        }
    }
}

/// Rows are rounded to 8 bits for quantised products, one part in 254 of the largest of 32 numbers: some layers of that
/// leave a few percent of the logits' spread. A wrong scale, sign or column leaves about all of it.
const ROUNDING: f32 = 0.08;

fn spread(x: &[f32]) -> f32 {
    let mean = x.iter().sum::<f32>() / x.len() as f32;
    (x.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / x.len() as f32).sqrt()
}

/// A model with quantised weights beside one with the numbers that these stand for.
fn computes_what_its_numbers_do(name: &str, folder: &Path, form: MatrixFormat, widened: MatrixFormat) {
    let [found, expected] = [form, widened].map(|form| opened(&convert(folder, form, "gpt-2")));
    // Rounding makes a router choose another expert now and then, and then that row and those that see it are others.
    let count = if found.card().shape.experts.is_some() { 8 } else { 40 };
    let tokens: Vec<u32> = (0..count).map(|i| i * 7 % 256).collect();
    let [found, expected] = [found, expected].map(|source| {
        let stored = logits(&source, &tokens);
        (stored, logits(&source.in_precision(Precision::Exact).unwrap(), &tokens))
    });
    // Rows that are not rounded leave nothing of it.
    assert!(furthest(&found.1, &expected.1) <= TOLERANCE, "{name}, {form:?}, exact");
    let (found, expected) = (found.0, expected.0);
    let off: Vec<f32> = found.iter().zip(&expected).map(|(a, b)| a - b).collect();
    let (off, all) = (spread(&off), spread(&expected));
    println!("{name}, {form:?}: {} of the logits' spread", off / all);
    assert!(off <= ROUNDING * all, "{name}, {form:?}: off by {off} where logits spread by {all}");
}

#[test]
fn quantised_weights_compute_what_their_numbers_do() {
    for (name, _) in references() {
        computes_what_its_numbers_do(&name, &reference(&name), MatrixFormat::Q8, MatrixFormat::WidenedQ8);
    }
}

/// gpt-oss as it is published, and as llama.cpp converts it: the same numbers, and the same bits.
#[test]
fn numbers_with_powers_of_two_apart_are_those_with_them_before() {
    let folder = reference("gptoss-sinks");
    let tokens: Vec<u32> = (0..40).map(|i| i * 7 % 256).collect();
    let (theirs, own) = (opened(&convert(&folder, MatrixFormat::Mxfp4, "gpt-2")), ModelSource::open(&folder).unwrap());
    assert_eq!(logits(&theirs, &tokens), logits(&own, &tokens));
    assert_eq!(theirs.card().shape.experts, own.card().shape.experts);
    // Beside what its numbers compute: rows are rounded to 8 bits.
    let exact = logits(&opened(&convert(&folder, MatrixFormat::F32, "gpt-2")), &tokens[..8]);
    let off: Vec<f32> = exact.iter().zip(logits(&own, &tokens[..8])).map(|(a, b)| a - b).collect();
    assert!(spread(&off) <= ROUNDING * spread(&exact), "{} of {}", spread(&off), spread(&exact));
}

/// On a GPU experts in MXFP4 lie as in the file, and whatever else a file has in it is widened to half precision.
#[test]
fn weights_count_as_they_lie_on_a_gpu() {
    let folder = reference("gptoss-sinks");
    let on_gpu = |writer: &Writer| {
        let source = opened(writer);
        source.gpu_bytes(source.card().shape.all_layers(), 1).unwrap()
    };
    let [mut published, half] = [MatrixFormat::Mxfp4, MatrixFormat::F16].map(|form| convert(&folder, form, "gpt-2"));
    let before = on_gpu(&published);
    // Four layers of six experts, each with three matrices of 32 x 32.
    let numbers = 4 * 6 * 3 * 32 * 32;
    assert_eq!(on_gpu(&half) - before, numbers * 2 - numbers / 32 * 17);
    // A layer's queries, 64 x 32.
    let queries = "blk.0.attn_q.weight";
    published.forget(queries);
    published.tensor(queries, &[64, 32], 39, [[127_u8].as_slice(), &[0; 16]].concat().repeat(64));
    assert_eq!(on_gpu(&published), before);
}

/// K-quants that most files are made of, and by how much of a part's largest number one may be off: about a step of the numbers,
/// since scales and least values have steps as well.
const LARGE: [(QuantType, f32); 3] = [(QuantType::Q4K, 0.15), (QuantType::Q5K, 0.1), (QuantType::Q6K, 0.05)];

#[test]
fn large_blocks_compute_what_their_numbers_do() {
    let folder = made::wide();
    for (kind, _) in LARGE {
        computes_what_its_numbers_do(
            "wide",
            folder.path(),
            MatrixFormat::Large(kind),
            MatrixFormat::WidenedLarge(kind),
        );
    }
}

/// IQ kinds of which tables have the numbers: whatever these are.
const TABLES: [QuantType; 7] = [
    QuantType::Iq2Xxs,
    QuantType::Iq2Xs,
    QuantType::Iq2S,
    QuantType::Iq3Xxs,
    QuantType::Iq3S,
    QuantType::Iq1S,
    QuantType::Iq1M,
];

#[test]
fn blocks_by_tables_compute_what_their_numbers_do() {
    let folder = made::wide();
    for kind in TABLES {
        computes_what_its_numbers_do(
            "wide",
            folder.path(),
            MatrixFormat::Large(kind),
            MatrixFormat::WidenedLarge(kind),
        );
    }
}

/// What the tests encode is near what it was, so that a model of it computes something.
#[test]
fn large_blocks_keep_their_numbers() {
    let numbers: Vec<f32> = (0..1024).map(|i| ((i * 37 % 101) as f32 / 101.0 - 0.4) * (1 + i / 100) as f32).collect();
    for (kind, most) in LARGE {
        let blocks = large::encode(kind, &numbers);
        assert_eq!(blocks.len(), 4 * kind.bytes());
        let kept = large::widened(kind, &blocks);
        for (part, kept) in numbers.chunks(16).zip(kept.chunks(16)) {
            let largest = part.iter().fold(0.0_f32, |a, b| a.max(b.abs()));
            assert!(furthest(part, kept) <= most * largest, "{kind:?}: {part:?} became {kept:?}");
        }
        assert_eq!(large::widened(kind, &large::encode(kind, &[0.0; 256])), [0.0; 256]);
    }
}

#[test]
fn the_embedded_model_is_the_same_in_a_file() {
    let wide = widened::copy(&tiny());
    let (source, folder) =
        (opened(&convert(&tiny(), MatrixFormat::F32, "gpt-2")), ModelSource::open(wide.path()).unwrap());
    let tokens: Vec<u32> = (0..120).map(|i| i * 131 % 4096).collect();
    let off = furthest(&logits(&source, &tokens), &logits(&folder, &tokens));
    assert!(off <= TOLERANCE, "off by {off}");
    let shape = |source: &ModelSource| source.card().shape;
    assert_eq!((shape(&source).layers, shape(&source).vocab), (shape(&folder).layers, shape(&folder).vocab));
    let json = |source: &ModelSource, name: &str| -> serde_json::Value {
        serde_json::from_slice(source.file(name).unwrap()).unwrap()
    };
    for key in ["bos_token", "eos_token", "add_bos_token", "chat_template"] {
        let name = "tokenizer_config.json";
        assert_eq!(json(&source, name)[key], json(&folder, name)[key], "{key}");
    }
    assert_eq!(json(&source, "generation_config.json")["eos_token_id"], serde_json::json!([1]));
}

#[test]
fn texts_become_the_same_tokens() {
    let source = opened(&convert(&tiny(), MatrixFormat::F16, "gpt-2"));
    let ours = Tokenizer::from_bytes(source.file("tokenizer.json").unwrap()).unwrap();
    let theirs = Tokenizer::from_file(tiny().join("tokenizer.json")).unwrap();
    let read = |name: &str| std::fs::read_to_string(tiny().join(name)).unwrap();
    let texts =
        [read("prompts.txt"), read("eval.txt"), "<|bos|>\n  ’tis 12,345 \u{e9}\u{1F600}\r\n\n it's<|user|>".into()];
    for text in texts.iter().flat_map(|text| [text.as_str()].into_iter().chain(text.lines())) {
        let ids = |tokenizer: &Tokenizer, special| tokenizer.encode(text, special).unwrap().get_ids().to_vec();
        for special in [true, false] {
            assert_eq!(ids(&ours, special), ids(&theirs, special), "{text:?}");
        }
        let decoded = |tokenizer: &Tokenizer| tokenizer.decode(&ids(&theirs, false), false).unwrap();
        assert_eq!(decoded(&ours), decoded(&theirs));
    }
}

/// A tokenizer of SentencePiece's kind, without a model.
fn pieces() -> Writer {
    let mut texts: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    let mut kinds = vec![2, 3, 3];
    texts.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    kinds.resize(texts.len(), 6);
    let normal = ["▁", "a", "b", "c", "ab", "bc", "▁a", "▁ab", "▁abc", "abc", "▁▁"];
    texts.extend(normal.map(str::to_owned));
    kinds.resize(texts.len(), 1);
    texts.push("<|user|>".to_owned());
    kinds.push(4);
    // Earlier pieces are better, as SentencePiece numbers its merges.
    let scores: Vec<f32> = (0..texts.len()).map(|id| -(id as f32)).collect();
    let mut writer = Writer::default();
    writer
        .text("general.architecture", "llama")
        .text("tokenizer.ggml.model", "llama")
        .texts("tokenizer.ggml.tokens", &texts)
        .integers("tokenizer.ggml.token_type", &kinds)
        .reals("tokenizer.ggml.scores", &scores);
    writer
}

#[test]
fn pieces_are_merged_by_their_scores() {
    let tokens = |writer: &Writer, text: &str| {
        let bytes = writer.bytes();
        let files = Gguf::parse(&bytes).unwrap().text_files().unwrap();
        let tokenizer = Tokenizer::from_bytes(&files["tokenizer.json"]).unwrap();
        let encoding = tokenizer.encode(text, true).unwrap();
        (encoding.get_tokens().join(" "), tokenizer.decode(encoding.get_ids(), true).unwrap())
    };
    let told = |tokens: &str, text: &str| (tokens.to_owned(), text.to_owned());
    assert_eq!(tokens(&pieces(), "abc"), told("<s> ▁abc", "abc"));
    assert_eq!(tokens(&pieces(), "bc cab"), told("<s> ▁ bc ▁ c ab", "bc cab"), "ab is better than bc, ▁ab than both");
    assert_eq!(tokens(&pieces(), "é"), told("<s> ▁ <0xC3> <0xA9>", "é"));
    assert_eq!(tokens(&pieces(), "a<|user|>a").0, "<s> ▁a <|user|> ▁a");
    let mut gemma = pieces();
    gemma.flag("tokenizer.ggml.add_space_prefix", false).flag("tokenizer.ggml.add_bos_token", false);
    assert_eq!(tokens(&gemma, "abc abc"), told("abc ▁abc", "abc abc"));
    // Gemma 4's files say in which order.
    let mut given = Writer::default();
    let texts = ["<unk>", "<bos>", "▁", "a", "b", "c", "ab", "bc", "▁a", "▁abc", "<0xC3>", "<0xA9>", "\n", "\n\n"];
    given
        .text("general.architecture", "gemma4")
        .text("tokenizer.ggml.model", "gemma4")
        .texts("tokenizer.ggml.tokens", &texts)
        .integers("tokenizer.ggml.token_type", &[2, 3, 1, 1, 1, 1, 1, 1, 1, 1, 6, 6, 1, 1])
        .texts("tokenizer.ggml.merges", &["b c", "a b", "▁ a", "▁a bc", "\n \n"])
        .count("tokenizer.ggml.bos_token_id", 1)
        .count("tokenizer.ggml.unknown_token_id", 0)
        .flag("tokenizer.ggml.add_space_prefix", false);
    assert_eq!(tokens(&given, "abc abc"), told("<bos> a bc ▁abc", "abc abc"), "bc before ab, whatever their scores");
    assert_eq!(tokens(&given, "\n\n\né"), told("<bos> \n\n \n <0xC3> <0xA9>", "\n\n\né"));
}

#[test]
fn a_model_may_lie_in_several_files_and_in_a_folder_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = convert(&reference("llama-gqa"), MatrixFormat::F32, "gpt-2");
    let whole = opened(&writer);
    let name = |n: u32| folder.path().join(format!("tiny-{n:05}-of-00002.gguf"));
    let [first, second] = writer.halves();
    std::fs::write(name(1), first).unwrap();
    let error = ModelSource::open(&name(1)).err().unwrap().to_string();
    assert!(error.contains("tiny-00002-of-00002.gguf"), "{error}");
    std::fs::write(name(2), second).unwrap();
    let cut = ModelSource::open(folder.path()).unwrap();
    assert_eq!(cut.card().name, "tiny");
    let tokens = [5, 6, 7];
    assert_eq!(furthest(&logits(&cut, &tokens), &logits(&whole, &tokens)), 0.0);
    let error = ModelSource::open(&name(2)).err().unwrap().to_string();
    assert!(error.contains("general.architecture"), "{error}");
    std::fs::write(folder.path().join("other.gguf"), b"").unwrap();
    let error = ModelSource::open(folder.path()).err().unwrap().to_string();
    assert!(error.contains("other.gguf") && error.contains("tiny-00001-of-00002.gguf"), "{error}");
}

#[test]
fn layers_load_of_a_file_that_has_nothing_else() {
    use std::os::unix::fs::FileExt as _;
    for (name, layers) in [("llama3-rope", 0..1), ("llama-gqa", 1..2)] {
        let whole = convert(&reference(name), MatrixFormat::F32, "gpt-2").bytes();
        let folder = tempfile::tempdir().unwrap();
        let [part, all] = ["model.gguf.incomplete", "model.gguf"].map(|name| folder.path().join(name));
        std::fs::write(&all, &whole).unwrap();
        let all = ModelSource::open(&all).unwrap();
        let file = std::fs::File::options().create_new(true).write(true).open(&part).unwrap();
        file.set_len(whole.len() as u64).unwrap();
        let mut first = 0;
        let places = loop {
            match start_of(WeightsForm::Gguf, &whole[..first], whole.len() as u64).unwrap() {
                Start::More(more) => first = more as usize,
                Start::Places(places) => break places,
            }
        };
        assert!(places.len() > 1, "the last norm, and factors of positions");
        let there = std::cell::RefCell::new(Vec::new());
        let write = |from: usize, to: usize| {
            file.write_all_at(&whole[from..to], from as u64).unwrap();
            there.borrow_mut().push(from as u64..to as u64);
        };
        places.iter().for_each(|place| write(place.start as usize, place.end as usize));
        let open = || {
            let part = PartFile { path: part.clone(), there: there.borrow().clone() };
            ModelSource::open_parts(folder.path(), &[part], WeightsForm::Gguf).unwrap()
        };
        let source = open();
        assert_eq!((&source.card().files, source.card().shape), (&all.card().files, all.card().shape));
        let layers = LayerRange { start: layers.start, end: layers.end };
        let places = source.places(layers).unwrap();
        assert_eq!(places, all.places(layers).unwrap());
        assert!(places.iter().map(|(_, place)| place.len()).sum::<usize>() < whole.len() / 2 + first);
        places.into_iter().for_each(|(_, place)| write(place.start, place.end));
        assert_eq!(hidden(&open(), layers), hidden(&all, layers), "{name}");
        let everything = all.card().shape.all_layers();
        let rest = open().load_stage(everything).map(drop).unwrap_err().to_string();
        assert!(rest.contains("is not here yet") && rest.contains("tensor "), "{rest}");
        source.places(everything).unwrap().into_iter().for_each(|(_, place)| write(place.start, place.end));
        assert_eq!(logits(&open(), &[5, 6]), logits(&all, &[5, 6]), "{name}");
    }
}

/// What some layers make of some numbers, or of tokens where they are the first.
fn hidden(source: &ModelSource, layers: LayerRange) -> Vec<f32> {
    let threads = Threads::together(1);
    let mut engine = Engine::new(EngineConfig { threads, pool_bytes: 16 << 20, kv_dtype: KvDtype::F32 }).unwrap();
    let stage = engine.load(source.load_stage(layers).unwrap()).unwrap();
    let request = RequestId([1; 16]);
    engine.admit(stage, request, 2).unwrap();
    let rows: Vec<f32> = (0..2 * source.card().shape.hidden).map(|n| (n as f32 * 0.37).sin()).collect();
    let tokens = [Token(5), Token(6)];
    let input = if layers.start == 0 { Input::Tokens(&tokens) } else { Input::Hidden(&rows) };
    let is_last = layers.end == source.card().shape.layers;
    let output = if is_last { Output::Logits { rows: &[0, 1] } } else { Output::Hidden };
    engine.forward(stage, &[Slice { request, start: 0, len: 2 }], input, output).unwrap().to_vec()
}

#[test]
fn a_tensor_in_two_files_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = convert(&reference("llama-gqa"), MatrixFormat::F32, "gpt-2");
    let name = |n: u32| folder.path().join(format!("tiny-{n:05}-of-00002.gguf"));
    let [first, second] = writer.halves();
    std::fs::write(name(1), &first).unwrap();
    std::fs::write(name(2), &first).unwrap();
    let error = ModelSource::open(&name(1)).err().unwrap().to_string();
    assert!(error.contains("twice") || error.contains("were written"), "{error}");
    std::fs::write(name(2), second).unwrap();
    ModelSource::open(&name(1)).unwrap();
}

#[test]
fn what_changes_nothing_is_no_hindrance() {
    let mut writer = convert(&reference("qwen2-bias"), MatrixFormat::F32, "gpt-2");
    let plain = opened(&writer).card().id;
    writer.real("qwen2.logit_scale", 1.0).real("qwen2.residual_scale", 0.0).flag("qwen2.attention.causal", true);
    writer.count("qwen2.leading_dense_block_count", 0).real("qwen2.rope.scaling.yarn_ext_factor", -1.0);
    let source = opened(&writer);
    assert_eq!(
        logits(&source, &[5, 6]),
        logits(&opened(&convert(&reference("qwen2-bias"), MatrixFormat::F32, "gpt-2")), &[5, 6])
    );
    assert_ne!(source.card().id, plain, "another file goes by another name");
    assert_eq!(source.notes(), [""; 0]);
}

#[test]
fn what_is_wrong_is_named() {
    let error = |change: &dyn Fn(&mut Writer)| {
        let mut writer = convert(&reference("qwen2-bias"), MatrixFormat::F32, "gpt-2");
        change(&mut writer);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("odd.gguf");
        std::fs::write(&path, writer.bytes()).unwrap();
        let error = ModelSource::open(&path).err().unwrap().to_string();
        assert!(error.contains("odd.gguf"), "{error}");
        error
    };
    let named = |change: &dyn Fn(&mut Writer), parts: &[&str]| {
        let error = error(change);
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    };
    named(&|w| _ = w.tensor("blk.0.ssm_a.weight", &[32], 0, vec![0; 128]), &["blk.0.ssm_a.weight", "qwen2"]);
    named(&|w| _ = w.tensor("blk.0.attn_q.weight", &[32], 0, vec![0; 128]), &["blk.0.attn_q.weight", "twice"]);
    named(&|w| _ = w.tensor("x", &[256], 34, vec![0; 66]), &["x", "TQ1_0", "all IQ kinds"]);
    named(&|w| _ = w.tensor("x", &[2, 16], 8, vec![0; 34]), &["x", "16", "32"]);
    named(&|w| _ = w.tensor("x", &[2, usize::MAX], 0, vec![]), &["x", "shape"]);
    named(&|w| _ = w.tensor("x", &[0], 0, vec![]), &["x", "shape"]);
    named(&|w| _ = w.tensor("x", &[64], 0, vec![0; 128]), &["x", "cut short"]);
    named(&|w| _ = w.count("qwen2.expert_count", 8), &["expert_count", "8"]);
    // What llama.cpp computes by, and nobody does here.
    named(&|w| _ = w.real("qwen2.logit_scale", 0.0625), &["qwen2.logit_scale", "0.0625"]);
    named(&|w| _ = w.real("qwen2.residual_scale", 0.22), &["qwen2.residual_scale", "0.22"]);
    named(&|w| _ = w.real("qwen2.attention.clamp_kqv", 8.0), &["qwen2.attention.clamp_kqv", "8"]);
    named(&|w| _ = w.flag("qwen2.attention.causal", false), &["qwen2.attention.causal", "false"]);
    named(&|w| _ = w.integers("qwen2.rope.dimension_sections", &[2, 3, 3, 0]), &["qwen2.rope.dimension_sections"]);
    named(&|w| _ = w.real("qwen2.attn_logit_softcapping", 50.0), &["attn_logit_softcapping", "50"]);
    named(&|w| _ = w.text("general.architecture", "qwen2"), &["general.architecture", "twice"]);
    named(&|w| w.rename("blk.1.ffn_up.weight", "rope"), &["rope", "part"]);
    named(&|w| w.forget("blk.1.ffn_up.weight"), &["blk.1.ffn_up.weight", "model.layers.1.mlp.up_proj.weight"]);
    named(&|w| w.forget("token_embd.weight"), &["token_embd.weight"]);
    let mixed = |change: &dyn Fn(&mut Writer), parts: &[&str]| {
        let mut writer = convert(&reference("qwen2moe-every-other"), MatrixFormat::F32, "gpt-2");
        change(&mut writer);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("odd.gguf");
        std::fs::write(&path, writer.bytes()).unwrap();
        let error = ModelSource::open(&path).err().unwrap().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    };
    mixed(&|w| w.forget("blk.1.ffn_up_exps.weight"), &["blk.1.ffn_up_exps.weight", "missing"]);
    mixed(&|w| w.forget("blk.3.ffn_gate_inp_shexp.weight"), &["blk.3.ffn_gate_inp_shexp.weight", "missing"]);
    mixed(&|w| w.forget("blk.3.ffn_gate_inp.weight"), &["blk.3.ffn_gate.weight", "missing"]);
    mixed(&|w| w.rename("blk.1.ffn_gate_exps.weight", "blk.1.ffn_gate.0.weight"), &["blk.1.ffn_gate.0.weight", "part"]);
    mixed(
        &|w| w.rename("blk.1.ffn_gate_exps.weight", "blk.1.ffn_gate_exps.bias"),
        &["blk.1.ffn_gate_exps.bias", "part"],
    );
    mixed(&|w| _ = w.real("qwen2moe.expert_weights_scale", 2.5), &["qwen2moe.expert_weights_scale", "2.5"]);
    mixed(&|w| _ = w.count("qwen2moe.expert_gating_func", 2), &["qwen2moe.expert_gating_func", "2"]);
    mixed(&|w| _ = w.count("qwen2moe.expert_shared_count", 2), &["qwen2moe.expert_shared_count", "2"]);
    let cut = tempfile::tempdir().unwrap();
    let path = cut.path().join("cut.gguf");
    let bytes = convert(&reference("qwen2-bias"), MatrixFormat::F32, "gpt-2").bytes();
    std::fs::write(&path, &bytes[..bytes.len() - 64]).unwrap();
    let error = ModelSource::open(&path).err().unwrap().to_string();
    assert!(error.contains("cut.gguf") && error.contains("cut short"), "{error}");
}

/// What Gemma 4's files say of each layer is looked for in lists: of millions of layers that would not end.
#[test]
fn more_layers_than_a_model_has_are_refused_before_they_are_looked_at() {
    let layers = limits::LAYERS as usize + 1;
    let mut writer = Writer::default();
    writer
        .text("general.architecture", "gemma4")
        .text("tokenizer.ggml.model", "gemma4")
        .texts("tokenizer.ggml.tokens", &["<unk>", "a", "b", "ab"])
        .texts("tokenizer.ggml.merges", &["a b"])
        .count("gemma4.block_count", layers as u32)
        .count("gemma4.embedding_length", 64)
        .count("gemma4.feed_forward_length", 64)
        .count("gemma4.attention.head_count", 4)
        .count("gemma4.attention.key_length_swa", 16)
        .integers("gemma4.attention.head_count_kv", &vec![1; layers])
        .flags("gemma4.attention.sliding_window_pattern", &vec![true; layers]);
    let bytes = writer.bytes();
    let error = Gguf::parse(&bytes).unwrap().small_files().unwrap_err().to_string();
    assert!(error.contains("block_count: 1025, at most 1024"), "{error}");
}

/// llama.cpp's own tests of tokenizers: `models/ggml-vocab-*.gguf` with texts (`.inp`) and tokens (`.out`).
#[test]
#[ignore = "needs llama.cpp's source: GGUF_VOCABS=its/models cargo test --workspace --test kernels -- --ignored llama_cpp"]
fn tokens_are_those_of_llama_cpp() {
    const NAMES: [&str; 10] = [
        "llama-bpe",
        "llama-spm",
        "phi-3",
        "qwen2",
        "gpt-2",
        "starcoder",
        "refact",
        "command-r",
        "deepseek-coder",
        "mpt",
    ];
    let folder = PathBuf::from(std::env::var("GGUF_VOCABS").unwrap());
    for name in NAMES {
        let path = folder.join(format!("ggml-vocab-{name}.gguf"));
        let read = |more: &str| std::fs::read_to_string(format!("{}{more}", path.display())).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let files = Gguf::parse(&bytes).unwrap().text_files().unwrap();
        let tokenizer = Tokenizer::from_bytes(&files["tokenizer.json"]).unwrap();
        let (texts, tokens) = (read(".inp"), read(".out"));
        let texts: Vec<&str> = texts.split_terminator("\n__ggml_vocab_test__\n").collect();
        let tokens: Vec<&str> = tokens.lines().collect();
        assert_eq!(texts.len(), tokens.len(), "{name}");
        for (text, tokens) in texts.iter().zip(tokens) {
            let expected: Vec<u32> = tokens.split_whitespace().map(|id| id.parse().unwrap()).collect();
            let ids = tokenizer.encode(*text, false).unwrap().get_ids().to_vec();
            assert_eq!(ids, expected, "{name}: {text:?}");
        }
    }
}
