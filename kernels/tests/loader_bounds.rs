//! No file makes a loader panic, read outside it, or take memory that the files do not pay for: folders of safetensors
//! and GGUF files, changed where they describe themselves, are opened, loaded and run, or refused by name.
#![expect(clippy::unwrap_used, reason = "a scenario that cannot be run fails")]

use crate::counting::{MemoryMeter, alone};
use crate::gguf_writer::{MatrixFormat, convert};
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use tsnode_kernels::{
    engine::{Engine, EngineConfig, Input, Output, Slice, Threads},
    gguf::{Gguf, TensorInfo},
    source::ModelSource,
};
use tsnode_protocol::{KvDtype, LayerRange, RequestId, Token};

/// Bytes of memory a byte of the files may ask for. Small files are read and kept, JSON is parsed into trees and maps of
/// names; quantised weights are laid out anew, with at most 8 bits for each of at least 2 in the file.
const PER_BYTE: usize = 16;
/// Bytes that need no file: the engine's pages and buffers for the step, errors' texts.
const FREE: usize = 2 << 20;

/// A model's files by name.
pub type Files = BTreeMap<String, Vec<u8>>;

pub fn folder(name: &str) -> Files {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models").join(name);
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let named = |path: PathBuf| (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(&path).unwrap());
    entries.map(named).filter(|(name, _)| name != "cases.json").collect()
}

/// Small models that are valid, of different families: one in two files, one with learned positions, one fused, some with experts, in
/// a tensor each and in one, two that are held whole, with states and with inputs of layers; and those that quantisers stored, MXFP4
/// first.
static FOLDERS: LazyLock<[Files; 16]> = LazyLock::new(|| {
    [
        "reference/llama3-rope",
        "reference/opt-relu",
        "reference/phi3-longrope",
        "reference/gemma3-local",
        "reference/qwen3moe-fused",
        "reference/qwen2moe-every-other",
        "reference/glm4moe-sigmoid",
        "reference/gemma4-inputs",
        "reference/qwen3next-experts",
        "reference/gptoss-sinks",
        "coded/qwen3-fp8-blocks",
        "coded/llama-fp8-channels",
        "coded/qwen2-gptq",
        "coded/mistral-gptq-order",
        "coded/llama-awq",
        "coded/qwen3-int4-packed",
    ]
    .map(folder)
});
/// The first of those that quantisers stored.
const CODED: usize = 9;
/// The same as GGUF, where there is such a thing; with quantised blocks.
static GGUFS: LazyLock<[Vec<u8>; 7]> = LazyLock::new(|| {
    let folder = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("models/reference").join(name);
    [
        ("llama-gqa", MatrixFormat::Q8),
        ("phi3-longrope", MatrixFormat::Q8),
        ("gemma2-caps", MatrixFormat::Q8),
        ("qwen2moe-every-other", MatrixFormat::Q8),
        ("mixtral-window", MatrixFormat::Q8),
        ("gptoss-sinks", MatrixFormat::Mxfp4),
        ("glm4moe-sigmoid", MatrixFormat::Q8),
    ]
    .map(|(name, form)| convert(&folder(name), form, "gpt-2").bytes())
});

/// Opens, loads and runs a model as far as it lets itself; within memory for `bytes` of files.
fn serve(path: &Path, bytes: usize) -> Result<(), String> {
    let meter = MemoryMeter::start();
    let served = run(path);
    let took = meter.most();
    assert!(took <= FREE + PER_BYTE * bytes, "{took} bytes of memory for {bytes} of files");
    if let Err(error) = &served {
        assert!(error.len() < 2000, "an error of {} bytes is no help", error.len());
    }
    served
}

fn run(path: &Path) -> Result<(), String> {
    let source = ModelSource::open(path).map_err(|e| e.to_string())?;
    let shape = source.card().shape;
    let last = LayerRange { start: shape.layers - 1, end: shape.layers };
    let one = if shape.whole { shape.all_layers() } else { last };
    source.load_stage(one).map_err(|e| e.to_string())?;
    let all = source.load_stage(shape.all_layers()).map_err(|e| e.to_string())?;
    let config = EngineConfig { threads: Threads::together(1), pool_bytes: 1 << 20, kv_dtype: KvDtype::F16 };
    let mut engine = Engine::new(config).map_err(|e| e.to_string())?;
    let stage = engine.load(all).map_err(|e| e.to_string())?;
    let request = RequestId([1; 16]);
    engine.admit(stage, request, 3).map_err(|e| e.to_string())?;
    let slice = [Slice { request, start: 0, len: 3 }];
    let tokens = [0, 1, shape.vocab - 1].map(Token);
    let output = Output::Logits { rows: &[2] };
    engine.forward(stage, &slice, Input::Tokens(&tokens), output).map(drop).map_err(|e| e.to_string())
}

/// Writes files into a fresh folder and serves the model in it.
pub fn serve_files(files: &Files) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    serve(folder.path(), files.values().map(Vec::len).sum())
}

/// Something done to a text that describes the rest.
#[derive(Clone, Debug)]
enum Change {
    /// Another byte.
    Byte(Index, u8),
    /// Another number, where one is.
    Number(Index, u64),
    /// Another quoted word: one of the text, or one that means something.
    Word(Index, Result<Index, &'static str>),
    /// Some bytes less.
    Without(Index, usize),
    /// Some bytes twice.
    Twice(Index, usize),
    /// The end is missing.
    Cut(Index),
}

const WORDS: [&str; 16] = [
    "F32",
    "F16",
    "BF16",
    "F64",
    "I8",
    "BOOL",
    "F8_E4M3",
    "F4",
    "llama",
    "gemma2",
    "opt",
    "relu",
    "..",
    "",
    "/dev/zero",
    "model.safetensors",
];

/// Numbers that break arithmetic which is not careful.
pub fn odd() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        (0..64_u32).prop_map(|bit| 1 << bit),
        (0..64_u32).prop_map(|bit| u64::MAX >> bit),
        0..300_u64,
    ]
}

fn change() -> impl Strategy<Value = Change> {
    let word = prop_oneof![any::<Index>().prop_map(Ok), prop::sample::select(&WORDS[..]).prop_map(Err)];
    prop_oneof![
        1 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        6 => (any::<Index>(), odd()).prop_map(|(at, number)| Change::Number(at, number)),
        3 => (any::<Index>(), word).prop_map(|(at, word)| Change::Word(at, word)),
        1 => (any::<Index>(), 1..40_usize).prop_map(|(at, len)| Change::Without(at, len)),
        1 => (any::<Index>(), 1..40_usize).prop_map(|(at, len)| Change::Twice(at, len)),
        1 => any::<Index>().prop_map(Change::Cut),
    ]
}

/// Where runs of bytes that `inside` holds for are.
fn runs(text: &[u8], inside: impl Fn(u8) -> bool) -> Vec<std::ops::Range<usize>> {
    let mut found: Vec<std::ops::Range<usize>> = Vec::new();
    for (at, _) in text.iter().enumerate().filter(|(_, byte)| inside(**byte)) {
        match found.last_mut() {
            Some(last) if last.end == at => last.end += 1,
            _ => found.push(at..at + 1),
        }
    }
    found
}

/// What is between quotes, every other run of bytes that are none.
fn words(text: &[u8]) -> Vec<std::ops::Range<usize>> {
    let quotes: Vec<usize> = text.iter().enumerate().filter(|(_, b)| **b == b'"').map(|(at, _)| at).collect();
    quotes.chunks_exact(2).map(|pair| pair[0] + 1..pair[1]).collect()
}

impl Change {
    fn apply(&self, text: &mut Vec<u8>) {
        if text.is_empty() {
            return;
        }
        let range = |at: &Index, len: usize| {
            let from = at.index(text.len());
            from..text.len().min(from + len)
        };
        match self {
            Self::Byte(at, byte) => {
                let at = at.index(text.len());
                text[at] = *byte;
            }
            Self::Number(at, number) => {
                let numbers = runs(text, |byte| byte.is_ascii_digit());
                if !numbers.is_empty() {
                    text.splice(numbers[at.index(numbers.len())].clone(), number.to_string().into_bytes());
                }
            }
            Self::Word(at, with) => {
                let words = words(text);
                if !words.is_empty() {
                    let with = match with {
                        Ok(other) => text[words[other.index(words.len())].clone()].to_vec(),
                        Err(word) => word.as_bytes().to_vec(),
                    };
                    text.splice(words[at.index(words.len())].clone(), with);
                }
            }
            Self::Without(at, len) => drop(text.drain(range(at, *len))),
            Self::Twice(at, len) => {
                let range = range(at, *len);
                let again = text[range.clone()].to_vec();
                text.splice(range.end..range.end, again);
            }
            Self::Cut(at) => text.truncate(at.index(text.len())),
        }
    }
}

/// A safetensors file whose header was changed; `len` is what it says of the header's length if not the truth.
fn with_header(file: &[u8], changes: &[Change], len: Option<u64>) -> Vec<u8> {
    let (told, rest) = file.split_at(8);
    let (header, data) = rest.split_at(u64::from_le_bytes(told.try_into().unwrap()) as usize);
    let mut header = header.to_vec();
    changes.iter().for_each(|change| change.apply(&mut header));
    let len = len.unwrap_or(header.len() as u64).to_le_bytes();
    [&len, &header[..], data].concat()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_headers_are_refused_or_served(
        which in any::<Index>(),
        changes in prop::collection::vec(change(), 0..3),
        len in prop::option::weighted(0.1, odd()),
        data in prop::option::weighted(0.2, any::<Index>()),
    ) {
        let _alone = alone();
        let mut files = which.get(&*FOLDERS).clone();
        let names: Vec<String> = files.keys().filter(|name| name.ends_with(".safetensors")).cloned().collect();
        let file = files.get_mut(which.get(&names)).unwrap();
        *file = with_header(file, &changes, len);
        if let Some(cut) = data {
            file.truncate(cut.index(file.len()));
        }
        let _ = serve_files(&files);
    }

    #[test]
    fn changed_small_files_are_refused_or_served(
        which in any::<Index>(),
        changes in prop::collection::vec(change(), 1..4),
        name in prop::sample::select(&["config.json", "model.safetensors.index.json"][..]),
    ) {
        let _alone = alone();
        let index = name.ends_with("index.json");
        let mut files = if index { FOLDERS[0].clone() } else { which.get(&*FOLDERS).clone() };
        changes.iter().for_each(|change| change.apply(files.get_mut(name).unwrap()));
        let _ = serve_files(&files);
    }

    #[test]
    fn changed_gguf_files_are_refused_or_served(
        which in any::<Index>(),
        changes in prop::collection::vec(number(), 1..4),
        cut in prop::option::weighted(0.1, any::<Index>()),
    ) {
        let _alone = alone();
        let mut bytes = which.get(&*GGUFS).clone();
        let (fields, data) = fields(&bytes);
        changes.iter().for_each(|change| change.apply(&mut bytes, &fields, data));
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("changed.gguf");
        std::fs::write(&path, &bytes).unwrap();
        let _ = serve(&path, bytes.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    /// Numbers, scales, zeros and groups of what servers' quantisers stored, whatever they are.
    #[test]
    fn changed_numbers_are_refused_or_served(
        which in any::<Index>(),
        changes in prop::collection::vec((any::<Index>(), any::<u8>()), 1..400),
    ) {
        let _alone = alone();
        let mut files = which.get(&FOLDERS[CODED..]).clone();
        let file = files.get_mut("model.safetensors").unwrap();
        let header = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        changes.iter().for_each(|(at, byte)| *at.get_mut(&mut file[header..]) = *byte);
        let _ = serve_files(&files);
    }
}

/// Where a GGUF file has numbers that describe its tensors, as (place, bytes), and where the tensors begin.
fn fields(bytes: &[u8]) -> (Vec<(usize, usize)>, usize) {
    let tensors = Gguf::parse(bytes).unwrap().tensors;
    let of = |tensor: &TensorInfo<'_>| {
        let at = tensor.name.as_bytes().as_ptr_range().end as usize - bytes.as_ptr() as usize;
        let after = at + 4 + 8 * tensor.shape.len();
        let sizes = (0..tensor.shape.len()).map(move |i| (at + 4 + 8 * i, 8));
        // How many sizes, which, the kind, the place.
        [(at, 4)].into_iter().chain(sizes).chain([(after, 4), (after + 4, 8)]).collect::<Vec<_>>()
    };
    (tensors.iter().flat_map(of).collect(), tensors[0].range.start)
}

/// Something done to a number of a GGUF file.
#[derive(Clone, Debug)]
enum Number {
    /// A tensor's, to what would be odd.
    Odd(Index, u64),
    /// A tensor's, to what another tensor has.
    Other(Index, Index),
    /// Some bytes before the tensors.
    Anywhere(Index, u64, usize),
}

fn number() -> impl Strategy<Value = Number> {
    prop_oneof![
        3 => (any::<Index>(), odd()).prop_map(|(at, number)| Number::Odd(at, number)),
        3 => (any::<Index>(), any::<Index>()).prop_map(|(at, from)| Number::Other(at, from)),
        1 => (any::<Index>(), odd(), 1..9_usize).prop_map(|(at, number, len)| Number::Anywhere(at, number, len)),
    ]
}

impl Number {
    fn apply(&self, bytes: &mut [u8], fields: &[(usize, usize)], data: usize) {
        match self {
            Self::Odd(at, number) => {
                let (at, len) = *at.get(fields);
                bytes[at..at + len].copy_from_slice(&number.to_le_bytes()[..len]);
            }
            Self::Other(at, from) => {
                let (at, len) = *at.get(fields);
                let alike: Vec<usize> = fields.iter().filter(|field| field.1 == len).map(|field| field.0).collect();
                let from = *from.get(&alike);
                bytes.copy_within(from..from + len, at);
            }
            Self::Anywhere(at, number, len) => {
                let at = at.index(data - len);
                bytes[at..at + len].copy_from_slice(&number.to_le_bytes()[..*len]);
            }
        }
    }
}

#[test]
fn what_is_not_changed_is_served() {
    let _alone = alone();
    for files in &*FOLDERS {
        serve_files(files).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    for bytes in &*GGUFS {
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, bytes).unwrap();
        serve(&path, bytes.len()).unwrap();
    }
}

#[test]
fn an_index_cannot_point_out_of_its_folder_or_at_what_is_no_file() {
    let _alone = alone();
    for name in ["../x", "/dev/zero", "..", ".", "", "missing.safetensors", "config.json"] {
        let mut files = FOLDERS[0].clone();
        let index = format!(r#"{{"weight_map": {{"a": "{name}"}}}}"#);
        files.insert("model.safetensors.index.json".into(), index.into_bytes());
        let error = serve_files(&files).unwrap_err();
        assert!(error.contains("index.json") || error.contains(name), "{name}: {error}");
    }
}
