//! What fuzz targets do with bytes: [`gguf`] and [`folder`] open them as models, load and run those that let themselves;
//! [`engine`] does what they say to an engine, as a ring and KV streams would. `kernels/fuzz` runs all for as long as one
//! likes, `tests/fuzzed.rs` some thousand times.

#![expect(clippy::unwrap_used, reason = "a fuzz target says what is wrong by failing")]

pub mod orders;
pub mod tiny;

pub use orders::engine;

use std::path::Path;
use std::sync::LazyLock;
use tempfile::TempDir;
use tsnode_kernels::{
    config::ModelConfig,
    engine::{Engine, EngineConfig, Input, Output, Slice, StageKey, Threads},
    gguf::Gguf,
    source::ModelSource,
};
use tsnode_protocol::{KvDtype, LayerRange, RequestId, Token};

/// Where bytes become files; in memory where the system has such a place.
fn place() -> &'static TempDir {
    static PLACE: LazyLock<TempDir> =
        LazyLock::new(|| tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap());
    &PLACE
}

/// Reads bytes as a GGUF file. Says whether a model was in it.
pub fn gguf(bytes: &[u8]) -> bool {
    let Ok(file) = Gguf::parse(bytes) else { return false };
    assert!(file.tensors.iter().all(|tensor| tensor.range.end <= bytes.len()));
    let Ok(files) = file.small_files() else { return false };
    let _ = ModelConfig::parse(&files["config.json"]);
    let path = place().path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    serve(&path)
}

/// Reads bytes as a folder: two of length and `config.json`, two of length and the index, `model.safetensors`. Says whether
/// a model was in it.
pub fn folder(bytes: &[u8]) -> bool {
    let Some((config, rest)) = sized(bytes) else { return false };
    let Some((index, weights)) = sized(rest) else { return false };
    let folder = place().path().join("folder");
    std::fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.join(name), bytes).unwrap();
    write("config.json", config);
    write("tokenizer.json", tiny::TOKENIZER.as_bytes());
    write("model.safetensors", weights);
    if index.is_empty() {
        // There may be none yet.
        let _ = std::fs::remove_file(folder.join("model.safetensors.index.json"));
    } else {
        write("model.safetensors.index.json", index);
    }
    serve(&folder)
}

fn sized(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(u16::from_le_bytes(*len).into())
}

/// Opens a model, loads it and computes a step, as far as it lets itself.
fn serve(path: &Path) -> bool {
    let source = match ModelSource::open(path) {
        Ok(source) => source,
        Err(error) => {
            assert!(error.to_string().len() < 2000, "{error} is no help");
            return false;
        }
    };
    let shape = source.card().shape;
    assert_eq!(source.card().check(), Ok(()), "a card that others refuse");
    let last = LayerRange { start: shape.layers - 1, end: shape.layers };
    // What cannot be loaded in part cannot be loaded whole.
    let _ = source.load_stage(last);
    let Some((mut engine, stage)) = loaded(&source) else { return false };
    let request = RequestId([1; 16]);
    if engine.admit(stage, request, 3).is_err() {
        return false;
    }
    let slice = [Slice { request, start: 0, len: 3 }];
    let tokens = [0, 1, shape.vocab - 1].map(Token);
    engine.forward(stage, &slice, Input::Tokens(&tokens), Output::Logits { rows: &[2] }).is_ok()
}

/// An engine that has all layers of a model, and a few pages.
fn loaded(source: &ModelSource) -> Option<(Engine, StageKey)> {
    let config = EngineConfig { threads: Threads::together(1), pool_bytes: 256 << 10, kv_dtype: KvDtype::F16 };
    let mut engine = Engine::new(config).unwrap();
    let stage = engine.load(source.load_stage(source.card().shape.all_layers()).ok()?).ok()?;
    Some((engine, stage))
}
