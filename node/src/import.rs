//! PyTorch pickles become safetensors: read by candle, which runs nothing of them, and written whole or not at all. Safetensors of
//! eight bits become others that are served.

mod eight_bit;

pub use eight_bit::EightBit;

use crate::{plain, store::disk};
use candle_core::{DType, Tensor, pickle::PthTensors};
use half::{bf16, f16};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Files of one model.
const FILES: usize = 1000;
/// Largest index of a sharded checkpoint that is read (bytes).
const INDEX_BYTES: u64 = 64 << 20;
/// Small files that are taken along (bytes each).
const SMALL_BYTES: u64 = 64 << 20;
/// Where PyTorch says in which file a tensor is.
const INDEX: &str = "pytorch_model.bin.index.json";
/// What a folder of pickles is called after.
const WHOLE: &str = "pytorch_model.bin";
/// What comes out.
const OUT: &str = "model.safetensors";
/// Headers of safetensors begin their data at multiples of this.
const ALIGNED: usize = 8;

/// Why pickles cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// There are none.
    #[error(
        "{0}: there is no pytorch_model.bin and no pytorch_model.bin.index.json; name a folder with one, or a .bin or .pth file"
    )]
    Nothing(PathBuf),
    /// The index cannot be used.
    #[error("{path}: {why}")]
    Index {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A pickle cannot be read.
    #[error("{path}: {why}")]
    Pickle {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A tensor cannot be read.
    #[error("{path}: tensor {name}: {why}")]
    Tensor {
        /// In which file.
        path: PathBuf,
        /// Which.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// A tensor is in two files.
    #[error("tensor {name} is in {first} and in {second}: these files are of several models")]
    Twice {
        /// Which.
        name: String,
        /// One file.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
    /// What would be written is there.
    #[error("{0}: there is one already; name another folder with --to")]
    There(PathBuf),
    /// The disk.
    #[error("{}: {}", .path.display(), plain::io_error(.error))]
    Disk {
        /// Where.
        path: PathBuf,
        /// What it says.
        error: io::Error,
    },
}

/// What was imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The folder with the model.
    pub folder: PathBuf,
    /// Its tensors.
    pub tensors: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// A checkpoint of pickles, read as far as where its tensors are.
pub struct Pickles {
    folder: PathBuf,
    files: Vec<(PathBuf, PthTensors)>,
    /// By name: in which file, and how it will lie.
    tensors: BTreeMap<String, TensorPlace>,
}

#[derive(Clone)]
struct TensorPlace {
    file: usize,
    kept: WrittenAs,
    shape: Vec<usize>,
    bytes: u64,
}

/// How a tensor is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WrittenAs {
    /// As it is, under this name.
    As(DType, &'static str),
    /// Doubles, which nothing computes with.
    Narrowed,
}

impl WrittenAs {
    fn of(dtype: DType) -> Option<Self> {
        Some(match dtype {
            DType::F64 => Self::Narrowed,
            DType::F32 => Self::As(dtype, "F32"),
            DType::F16 => Self::As(dtype, "F16"),
            DType::BF16 => Self::As(dtype, "BF16"),
            DType::I64 => Self::As(dtype, "I64"),
            DType::U8 => Self::As(dtype, "U8"),
            _ => return None,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::As(_, name) => name,
            Self::Narrowed => "F32",
        }
    }

    fn element_bytes(self) -> usize {
        match self {
            Self::As(dtype, _) => dtype.size_in_bytes(),
            Self::Narrowed => DType::F32.size_in_bytes(),
        }
    }
}

impl Pickles {
    /// Those of a folder, or one by its name.
    ///
    /// # Errors
    /// When there are none, or they cannot be read.
    pub fn open(path: &Path) -> Result<Self, ImportError> {
        let (folder, names) = match path.is_dir() {
            true => (path.to_owned(), files_of(path)?),
            false if path.is_file() => {
                let folder = path.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
                (folder.to_owned(), vec![path.to_owned()])
            }
            false => return Err(ImportError::Nothing(path.to_owned())),
        };
        let mut pickles = Self { folder, files: Vec::new(), tensors: BTreeMap::new() };
        for file in names {
            pickles.add(file)?;
        }
        Ok(pickles)
    }

    fn add(&mut self, path: PathBuf) -> Result<(), ImportError> {
        let size = fs::metadata(&path).map_err(disk(&path))?.len();
        let wrong = |why: String| ImportError::Pickle { path: path.clone(), why };
        let read = guarded(|| PthTensors::new(&path, None)).map_err(wrong)?;
        let read = match read.tensor_infos().is_empty() {
            // As trainers keep it: with other things beside.
            true => guarded(|| PthTensors::new(&path, Some("state_dict"))).map_err(wrong)?,
            false => read,
        };
        if read.tensor_infos().is_empty() {
            return Err(wrong("there are no tensors in it".into()));
        }
        for (name, info) in read.tensor_infos() {
            let wrong = |why: String| ImportError::Tensor { path: path.clone(), name: name.clone(), why };
            let kept = WrittenAs::of(info.dtype).ok_or_else(|| wrong(format!("{:?} is not read", info.dtype)))?;
            let shape = info.layout.dims().to_vec();
            let numbers = shape.iter().try_fold(1_usize, |all, n| all.checked_mul(*n));
            let stored = numbers.and_then(|n| n.checked_mul(info.dtype.size_in_bytes()));
            // Nothing is made room for that the file cannot hold: pickles are stored as they are, and not packed.
            let stored = stored.filter(|bytes| *bytes as u64 <= size);
            stored.ok_or_else(|| wrong(format!("its shape {shape:?} is larger than the file")))?;
            let bytes = (numbers.unwrap_or(0) * kept.element_bytes()) as u64;
            let place = TensorPlace { file: self.files.len(), kept, shape, bytes };
            if let Some(other) = self.tensors.insert(name.clone(), place) {
                let first = self.files.get(other.file).map_or_else(|| path.clone(), |(path, _)| path.clone());
                return Err(ImportError::Twice { name: name.clone(), first, second: path.clone() });
            }
        }
        self.files.push((path, read));
        Ok(())
    }

    /// Bytes of all tensors, as they will be written.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.tensors.values().map(|place| place.bytes).sum()
    }

    /// Writes them to a folder as safetensors, with the small files beside them. `written` is told of bytes that were written.
    ///
    /// # Errors
    /// When a tensor cannot be read or the disk refuses; then nothing is left that could be taken for a model.
    pub fn write(&self, to: &Path, mut written: impl FnMut(u64)) -> Result<Imported, ImportError> {
        let out = to.join(OUT);
        if out.exists() {
            return Err(ImportError::There(out));
        }
        fs::create_dir_all(to).map_err(disk(to))?;
        let draft = to.join(format!(".{OUT}.{}.new", std::process::id()));
        let placed = self.draft(&draft, &mut written).and_then(|()| small_files(&self.folder, to)).and_then(|()| {
            let placed = fs::rename(&draft, &out).and_then(|()| disk::sync_folder(&out));
            placed.map_err(disk(&out))
        });
        if placed.is_err() {
            // The first error is the one worth reporting.
            let _ = fs::remove_file(&draft);
        }
        placed.map(|()| Imported { folder: to.to_owned(), tensors: self.tensors.len(), bytes: self.bytes() })
    }

    fn draft(&self, draft: &Path, written: &mut impl FnMut(u64)) -> Result<(), ImportError> {
        let file = File::create(draft).map_err(disk(draft))?;
        let mut out = BufWriter::with_capacity(1 << 20, file);
        let entries = self.tensors.iter().map(|(name, place)| (name, place.kept.name(), &place.shape[..], place.bytes));
        out.write_all(&header(entries)).map_err(disk(draft))?;
        for (name, place) in &self.tensors {
            let (path, tensors) = &self.files[place.file];
            let wrong = |why: String| ImportError::Tensor { path: path.clone(), name: name.clone(), why };
            let tensor = guarded(|| tensors.get(name)).map_err(wrong)?.ok_or_else(|| wrong("it is gone".into()))?;
            let bytes = raw(&tensor, place.kept).map_err(|e| wrong(e.to_string()))?;
            if bytes.len() as u64 != place.bytes {
                return Err(wrong("it is cut short".into()));
            }
            out.write_all(&bytes).map_err(disk(draft))?;
            written(place.bytes);
        }
        let synced = out.into_inner().map_err(io::IntoInnerError::into_error).and_then(|file| file.sync_all());
        synced.map_err(disk(draft))
    }
}

/// What says where tensors lie, one after the other: its length, and JSON.
fn header<'a>(tensors: impl Iterator<Item = (&'a String, &'static str, &'a [usize], u64)>) -> Vec<u8> {
    let (mut at, mut entries) = (0, Map::new());
    entries.insert("__metadata__".into(), json!({ "format": "pt" }));
    for (name, dtype, shape, bytes) in tensors {
        let end = at + bytes;
        entries.insert(name.clone(), json!({ "dtype": dtype, "shape": shape, "data_offsets": [at, end] }));
        at = end;
    }
    let mut json = Value::Object(entries).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(ALIGNED), b' ');
    [&(json.len() as u64).to_le_bytes()[..], &json].concat()
}

/// Settings, tokenizers and templates of a folder, where they are not in that other folder yet.
fn small_files(folder: &Path, to: &Path) -> Result<(), ImportError> {
    let names = fs::read_dir(folder).map_err(disk(folder))?.flatten();
    for entry in names {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_meant = (name.ends_with(".json") && !name.ends_with(".index.json")) || name.ends_with(".jinja");
        let (from, place) = (entry.path(), to.join(&name));
        let is_small = fs::metadata(&from).is_ok_and(|about| about.is_file() && about.len() <= SMALL_BYTES);
        if is_meant && is_small && !place.exists() {
            fs::read(&from).and_then(|bytes| disk::write_whole(&place, &bytes)).map_err(disk(&place))?;
        }
    }
    Ok(())
}

/// The pickles of a folder: one, or those that its index names.
fn files_of(folder: &Path) -> Result<Vec<PathBuf>, ImportError> {
    let whole = folder.join(WHOLE);
    if whole.is_file() {
        return Ok(vec![whole]);
    }
    let path = folder.join(INDEX);
    if !path.is_file() {
        return Err(ImportError::Nothing(folder.to_owned()));
    }
    let wrong = |why: String| ImportError::Index { path: path.clone(), why };
    let size = fs::metadata(&path).map_err(disk(&path))?.len();
    if size > INDEX_BYTES {
        return Err(wrong(format!("{size} bytes, at most {INDEX_BYTES} are read")));
    }
    let index: Value =
        serde_json::from_slice(&fs::read(&path).map_err(disk(&path))?).map_err(|e| wrong(e.to_string()))?;
    let map = index["weight_map"].as_object().ok_or_else(|| wrong("there is no weight_map in it".into()))?;
    let names: BTreeSet<&str> = map.values().filter_map(Value::as_str).collect();
    if names.is_empty() || names.len() > FILES {
        return Err(wrong(format!("it names {} files", names.len())));
    }
    let is_plain = |name: &&&str| name.contains(['/', '\\']) || **name == "..";
    if let Some(bad) = names.iter().find(is_plain) {
        return Err(wrong(format!("it names {bad:?}, which is no file of this folder")));
    }
    let lacking = names.iter().map(|name| folder.join(name)).find(|path| !path.is_file());
    match lacking {
        Some(lacking) => Err(wrong(format!("it names {}, which is not there", lacking.display()))),
        None => Ok(names.into_iter().map(|name| folder.join(name)).collect()),
    }
}

/// Runs a reader that may stumble over what a pickle has been made to say: that is an error, and not the end.
fn guarded<T>(read: impl FnOnce() -> candle_core::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => {
            Err(format!("it is no PyTorch checkpoint that can be read ({})", first_line(&error.to_string())))
        }
        Err(_) => Err("it is no PyTorch checkpoint that can be read".into()),
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// A tensor's numbers as they lie in safetensors.
fn raw(tensor: &Tensor, kept: WrittenAs) -> candle_core::Result<Vec<u8>> {
    let flat = tensor.flatten_all()?;
    Ok(match kept {
        WrittenAs::Narrowed => {
            flat.to_dtype(DType::F32)?.to_vec1::<f32>()?.iter().flat_map(|x| x.to_le_bytes()).collect()
        }
        WrittenAs::As(DType::F32, _) => flat.to_vec1::<f32>()?.iter().flat_map(|x| x.to_le_bytes()).collect(),
        WrittenAs::As(DType::F16, _) => flat.to_vec1::<f16>()?.iter().flat_map(|x| x.to_le_bytes()).collect(),
        WrittenAs::As(DType::BF16, _) => flat.to_vec1::<bf16>()?.iter().flat_map(|x| x.to_le_bytes()).collect(),
        WrittenAs::As(DType::I64, _) => flat.to_vec1::<i64>()?.iter().flat_map(|x| x.to_le_bytes()).collect(),
        WrittenAs::As(..) => flat.to_vec1::<u8>()?,
    })
}

fn disk(path: &Path) -> impl FnOnce(io::Error) -> ImportError + '_ {
    |error| ImportError::Disk { path: path.to_owned(), error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::{Dtype, SafeTensors};

    fn pickles() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pickles")
    }

    fn copied() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(pickles()).unwrap().flatten() {
            fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
        }
        folder
    }

    #[test]
    fn parts_become_one_file_of_the_same_numbers() {
        let (from, to) = (copied(), tempfile::tempdir().unwrap());
        fs::write(from.path().join("config.json"), "{}").unwrap();
        let mut told = 0;
        let imported = Pickles::open(from.path()).unwrap().write(to.path(), |bytes| told += bytes).unwrap();
        assert_eq!((imported.tensors, imported.bytes, told), (4, 60, 60));
        let bytes = fs::read(to.path().join(OUT)).unwrap();
        let read = SafeTensors::deserialize(&bytes).unwrap();
        let of = |name: &str| read.tensor(name).unwrap();
        let floats =
            |name| of(name).data().chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect::<Vec<_>>();
        assert_eq!((of("a.weight").shape(), floats("a.weight")), (&[2, 3][..], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
        assert_eq!((of("a.bias").dtype(), of("a.bias").data()), (Dtype::F16, &[0x00, 0x38, 0x00, 0xb8][..]));
        assert_eq!((of("b.weight").dtype(), floats("b.weight")), (Dtype::F32, vec![0.25, 1e-3]));
        assert_eq!((of("b.ids").dtype(), of("b.ids").data()[8]), (Dtype::I64, 8));
        let mut names: Vec<_> = fs::read_dir(to.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["config.json", OUT], "nothing else is left or taken along");
        let again = Pickles::open(from.path()).unwrap().write(to.path(), |_| ()).unwrap_err().to_string();
        assert!(again.contains("there is one already; name another folder with --to"), "{again}");
    }

    #[test]
    fn what_is_damaged_is_named_and_nothing_is_left_of_it() {
        let (from, to) = (copied(), tempfile::tempdir().unwrap());
        let part = from.path().join("pytorch_model-00002-of-00002.bin");
        let whole = fs::read(&part).unwrap();
        for cut in 0..whole.len() {
            fs::write(&part, &whole[..cut]).unwrap();
            let said = Pickles::open(from.path()).map(drop).unwrap_err().to_string();
            assert!(said.contains("00002-of-00002.bin: ") && !said.contains('\n'), "{cut}: {said}");
        }
        // Each byte another: it is read, or refused in a line; never half-written.
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x15;
            fs::write(&part, &damaged).unwrap();
            let written = Pickles::open(from.path()).and_then(|pickles| pickles.write(to.path(), |_| ()));
            match written {
                Ok(_) => fs::remove_file(to.path().join(OUT)).unwrap(),
                Err(error) => assert!(!error.to_string().contains('\n'), "{at}: {error}"),
            }
            assert_eq!(fs::read_dir(to.path()).unwrap().count(), 0, "{at}");
        }
    }

    #[test]
    fn an_index_that_leads_elsewhere_is_refused() {
        let from = copied();
        let index = from.path().join(INDEX);
        for (content, why) in [
            (r#"{"weight_map": {"a": "../secret.bin"}}"#, "no file of this folder"),
            (r#"{"weight_map": {"a": "absent.bin"}}"#, "which is not there"),
            (r#"{"weight_map": {}}"#, "it names 0 files"),
            (r#"{}"#, "no weight_map"),
            ("<html>", "expected value"),
        ] {
            fs::write(&index, content).unwrap();
            let said = Pickles::open(from.path()).map(drop).unwrap_err().to_string();
            assert!(said.contains(why), "{said}");
        }
        fs::remove_file(&index).unwrap();
        assert!(matches!(Pickles::open(from.path()), Err(ImportError::Nothing(_))));
    }
}
