//! A folder as Hugging Face and sentence-transformers have it: which files are read, and how large they may be.

use super::EncoderError;
use candle_core::{Device, Tensor};
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use tsnode_protocol::{ModelId, limits};

/// A file of settings (bytes).
const SETTINGS: u64 = 4 << 20;
/// All weights of one model (bytes): larger ones are no business of a processor.
const WEIGHTS: u64 = 16 << 30;
/// Files that weights may be in.
const SHARDS: usize = 64;

/// Tensors by their names.
pub(super) type TensorsByName = HashMap<String, Tensor>;

/// A folder that is read, and a hash of all that was.
pub(super) struct EncoderFolder {
    path: PathBuf,
    hasher: blake3::Hasher,
}

impl EncoderFolder {
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), hasher: blake3::Hasher::new_derive_key("tsnode 2026 encoder") }
    }

    /// What people call it: the folder's own name.
    pub fn name(&self) -> String {
        let whole = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let name = whole.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let short: String = name.chars().take(60).collect();
        if short.is_empty() { "encoder".into() } else { short }
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// What the model is: other bytes in any file that was read make another model.
    pub fn id(&self) -> ModelId {
        let mut id = [0; 16];
        id.copy_from_slice(&self.hasher.finalize().as_bytes()[..16]);
        ModelId(id)
    }

    /// A file that must be there.
    pub fn bytes(&mut self, name: &str, limit: u64) -> Result<Vec<u8>, EncoderError> {
        let path = self.at(name);
        let unreadable = |error: &std::io::Error| EncoderError::Unreadable {
            path: path.clone(),
            error: crate::plain::io_error(error),
        };
        let file = File::open(&path).map_err(|e| unreadable(&e))?;
        let bytes = file.metadata().map_err(|e| unreadable(&e))?.len();
        if bytes > limit {
            return Err(EncoderError::TooLarge { path, bytes, limit });
        }
        let mut content = Vec::new();
        content.try_reserve_exact(bytes as usize).map_err(|e| EncoderError::System(e.to_string()))?;
        file.take(limit).read_to_end(&mut content).map_err(|e| unreadable(&e))?;
        self.hasher.update(name.as_bytes()).update(&(content.len() as u64).to_le_bytes());
        self.hasher.update(&content);
        Ok(content)
    }

    /// The same of JSON.
    pub fn json(&mut self, name: &str) -> Result<Value, EncoderError> {
        let bytes = self.bytes(name, SETTINGS)?;
        let path = self.at(name);
        serde_json::from_slice(&bytes).map_err(|e| EncoderError::Broken { path, error: e.to_string() })
    }

    /// The same, where it may be missing.
    pub fn json_if_there(&mut self, name: &str) -> Result<Option<Value>, EncoderError> {
        if self.at(name).exists() { self.json(name).map(Some) } else { Ok(None) }
    }

    pub fn tokenizer(&mut self) -> Result<Vec<u8>, EncoderError> {
        self.bytes("tokenizer.json", limits::MODEL_FILE_BYTES as u64)
    }

    /// All weights of a folder inside this one; an empty name is the folder itself.
    pub fn weights(&mut self, folder: &str) -> Result<TensorsByName, EncoderError> {
        let inside = |name: &str| if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
        let index = inside("model.safetensors.index.json");
        let names: Vec<String> = match self.json_if_there(&index)? {
            Some(index_json) => self.shards(&index, &index_json)?.into_iter().map(|name| inside(&name)).collect(),
            None => vec![inside("model.safetensors")],
        };
        let (mut all, mut left) = (TensorsByName::new(), WEIGHTS);
        for name in names {
            let bytes = self.bytes(&name, left)?;
            left -= bytes.len() as u64;
            all.extend(self.read(&name, &bytes)?);
        }
        Ok(all)
    }

    fn shards(&self, name: &str, index: &Value) -> Result<BTreeSet<String>, EncoderError> {
        let broken = |error: &str| EncoderError::Broken { path: self.at(name), error: error.into() };
        let map = index["weight_map"].as_object().ok_or_else(|| broken("it has no weight_map"))?;
        let names: BTreeSet<String> = map.values().filter_map(Value::as_str).map(str::to_owned).collect();
        // Names of files here, and no way out of the folder.
        let is_plain = |name: &String| name.ends_with(".safetensors") && !name.contains(['/', '\\']);
        if names.is_empty() || names.len() > SHARDS || !names.iter().all(is_plain) {
            return Err(broken("its weight_map names no weights, or too many files, or some elsewhere"));
        }
        Ok(names)
    }

    fn read(&self, name: &str, bytes: &[u8]) -> Result<TensorsByName, EncoderError> {
        let broken = |error: String| EncoderError::Broken { path: self.at(name), error };
        fenced(|| candle_core::safetensors::load_buffer(bytes, &Device::Cpu)).map_err(broken)
    }
}

/// Work of candle. What it does not like it says by an error most of the time, and by a panic at others.
pub(super) fn fenced<T>(work: impl FnOnce() -> candle_core::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done.map_err(|error| plain(&error)),
        Err(_) => Err("its tensors are not what they say they are".into()),
    }
}

/// The first line: what follows is where candle's own code was.
fn plain(error: &candle_core::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}
