//! Safetensors in eight-bit floating point become BF16: each number by its code, times the scale that lies beside its tensor.
//!
//! FP8 checkpoints hold a matrix as `X.weight` and its scales as `X.weight_scale_inv` (of blocks, as DeepSeek and Qwen write them) or
//! `X.weight_scale` (of the whole, or of each row, as compressed-tensors and fbgemm do); in both a number is its code times its scale.

use super::{ImportError, Imported, OUT, SMALL_BYTES, disk, small_files};
use crate::{platform, store::disk as store};
use half::{bf16, f16};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

/// Longest header that is read, as the format's own library has it (bytes).
const HEADER: u64 = 100_000_000;
/// Files of one model.
const FILES: usize = 1000;
/// Sides of a block where the configuration does not say.
const BLOCK: [usize; 2] = [128, 128];
/// Endings of scales that are dropped: of weights, which are used up, and of what a layer is given, which nothing here packs.
const SCALES: [&str; 3] = ["_scale_inv", "_scale", ".input_scale"];

/// How a tensor's numbers lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TensorFormat {
    /// Four bits of exponent, three of fraction.
    E4m3,
    /// Five bits of exponent, two of fraction.
    E5m2,
    /// Written as it is.
    Kept(&'static str, usize),
}

impl TensorFormat {
    fn of(dtype: &str) -> Option<Self> {
        Some(match dtype {
            "F8_E4M3" => Self::E4m3,
            "F8_E5M2" => Self::E5m2,
            "BF16" => Self::Kept("BF16", 2),
            "F16" => Self::Kept("F16", 2),
            "F32" => Self::Kept("F32", 4),
            "I64" => Self::Kept("I64", 8),
            "U8" => Self::Kept("U8", 1),
            _ => return None,
        })
    }

    fn element(self) -> usize {
        match self {
            Self::E4m3 | Self::E5m2 => 1,
            Self::Kept(_, bytes) => bytes,
        }
    }

    fn written(self) -> (&'static str, usize) {
        match self {
            Self::E4m3 | Self::E5m2 => ("BF16", 2),
            Self::Kept(name, bytes) => (name, bytes),
        }
    }

    /// The number of each code.
    fn codes(self) -> Option<[f32; 256]> {
        match self {
            Self::E4m3 => Some(std::array::from_fn(|code| e4m3(code as u8))),
            // The upper half of a half.
            Self::E5m2 => Some(std::array::from_fn(|code| f16::from_bits((code as u16) << 8).to_f32())),
            Self::Kept(..) => None,
        }
    }
}

/// The finite form: no infinities, and one code for what is no number.
fn e4m3(code: u8) -> f32 {
    let (exponent, fraction) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let size = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => fraction / 8.0 * 2_f32.powi(-6),
        _ => (1.0 + fraction / 8.0) * 2_f32.powi(exponent - 7),
    };
    if code >> 7 == 1 { -size } else { size }
}

#[derive(Clone, Debug)]
struct EightBitTensor {
    file: usize,
    form: TensorFormat,
    shape: Vec<usize>,
    at: u64,
    bytes: usize,
}

impl EightBitTensor {
    fn numbers(&self) -> usize {
        self.bytes / self.form.element()
    }

    fn written(&self) -> u64 {
        (self.numbers() * self.form.written().1) as u64
    }
}

/// A checkpoint of safetensors with numbers of eight bits, read as far as where its tensors are.
pub struct EightBit {
    folder: PathBuf,
    files: Vec<(PathBuf, File)>,
    tensors: BTreeMap<String, EightBitTensor>,
    block: [usize; 2],
}

impl EightBit {
    /// That of a folder, or of one file; none where there are no such numbers in it.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn open(path: &Path) -> Result<Option<Self>, ImportError> {
        let Some((folder, names)) = files_of(path)? else { return Ok(None) };
        let block = block_of(&folder)?;
        let mut found = Self { folder, files: Vec::new(), tensors: BTreeMap::new(), block };
        names.into_iter().try_for_each(|name| found.add(name))?;
        let has_some = found.tensors.values().any(|place| place.form.codes().is_some());
        Ok(has_some.then_some(found))
    }

    fn add(&mut self, path: PathBuf) -> Result<(), ImportError> {
        let file = File::open(&path).map_err(disk(&path))?;
        let size = file.metadata().map_err(disk(&path))?.len();
        let broken = |why: &str| ImportError::Pickle { path: path.clone(), why: why.to_owned() };
        let mut length = [0; 8];
        platform::read_exact_at(&file, &mut length, 0).map_err(|_| broken("it is no safetensors file"))?;
        let start = u64::from_le_bytes(length).saturating_add(8);
        if start > size.min(HEADER) {
            return Err(broken("it is no safetensors file, or cut short"));
        }
        let mut header = vec![0; start as usize - 8];
        platform::read_exact_at(&file, &mut header, 8).map_err(disk(&path))?;
        let header: Map<String, Value> =
            serde_json::from_slice(&header).map_err(|_| broken("its header is no JSON object"))?;
        for (name, entry) in header.into_iter().filter(|(name, _)| name != "__metadata__") {
            let wrong = |why: String| ImportError::Tensor { path: path.clone(), name: name.clone(), why };
            let place = place(&entry, self.files.len(), start, size).map_err(wrong)?;
            if let Some(other) = self.tensors.insert(name.clone(), place) {
                let first = self.files.get(other.file).map_or_else(|| path.clone(), |(path, _)| path.clone());
                return Err(ImportError::Twice { name, first, second: path });
            }
        }
        self.files.push((path, file));
        Ok(())
    }

    /// Bytes of all tensors, as they will be written.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.kept().map(|(_, place)| place.written()).sum()
    }

    /// All but scales.
    fn kept(&self) -> impl Iterator<Item = (&String, &EightBitTensor)> {
        self.tensors.iter().filter(|(name, _)| !self.is_scale(name))
    }

    fn is_scale(&self, name: &str) -> bool {
        let is_eight = |name: &str| self.tensors.get(name).is_some_and(|place| place.form.codes().is_some());
        let mut stems = SCALES.iter().filter_map(|ending| name.strip_suffix(*ending));
        stems.any(|stem| is_eight(stem) || is_eight(&format!("{stem}.weight")))
    }

    /// Writes them to another folder as safetensors that are served, with the small files beside them. `written` is told of bytes
    /// that were written.
    ///
    /// # Errors
    /// When a tensor or its scale cannot be read or the disk refuses; then nothing is left that could be taken for a model.
    pub fn write(&self, to: &Path, mut written: impl FnMut(u64)) -> Result<Imported, ImportError> {
        let out = to.join(OUT);
        let is_own = to.canonicalize().is_ok_and(|to| self.folder.canonicalize().is_ok_and(|own| own == to));
        if out.exists() || is_own {
            return Err(ImportError::There(out));
        }
        fs::create_dir_all(to).map_err(disk(to))?;
        let draft = to.join(format!(".{OUT}.{}.new", std::process::id()));
        let placed = self.draft(&draft, &mut written).and_then(|()| self.take_along(to)).and_then(|()| {
            let placed = fs::rename(&draft, &out).and_then(|()| store::sync_folder(&out));
            placed.map_err(disk(&out))
        });
        if placed.is_err() {
            // The first error is the one worth reporting.
            let _ = fs::remove_file(&draft);
        }
        placed.map(|()| Imported { folder: to.to_owned(), tensors: self.kept().count(), bytes: self.bytes() })
    }

    fn draft(&self, draft: &Path, written: &mut impl FnMut(u64)) -> Result<(), ImportError> {
        let file = File::create(draft).map_err(disk(draft))?;
        let mut out = BufWriter::with_capacity(1 << 20, file);
        let entries =
            self.kept().map(|(name, place)| (name, place.form.written().0, &place.shape[..], place.written()));
        out.write_all(&super::header(entries)).map_err(disk(draft))?;
        for (name, place) in self.kept() {
            let bytes = self.read(place)?;
            let bytes = match place.form.codes() {
                None => bytes,
                Some(codes) => self.widened(name, place, (&bytes, &codes))?,
            };
            out.write_all(&bytes).map_err(disk(draft))?;
            written(bytes.len() as u64);
        }
        let synced = out.into_inner().map_err(io::IntoInnerError::into_error).and_then(|file| file.sync_all());
        synced.map_err(disk(draft))
    }

    fn read(&self, place: &EightBitTensor) -> Result<Vec<u8>, ImportError> {
        let (path, file) = &self.files[place.file];
        // The header was held against the file's size.
        let mut bytes = vec![0; place.bytes];
        platform::read_exact_at(file, &mut bytes, place.at).map_err(disk(path))?;
        Ok(bytes)
    }

    /// Numbers times their scales, in BF16.
    fn widened(
        &self,
        name: &str,
        place: &EightBitTensor,
        (bytes, codes): (&[u8], &[f32; 256]),
    ) -> Result<Vec<u8>, ImportError> {
        let scale = self.scale(name, place)?;
        let columns = place.shape.last().copied().unwrap_or(1).max(1);
        let mut out = Vec::with_capacity(bytes.len() * 2);
        for (row, line) in bytes.chunks(columns).enumerate() {
            for (column, code) in line.iter().enumerate() {
                let number = codes[usize::from(*code)] * scale.at(row, column);
                out.extend(bf16::from_f32(number).to_le_bytes());
            }
        }
        Ok(out)
    }

    fn scale(&self, name: &str, place: &EightBitTensor) -> Result<MatrixScale, ImportError> {
        let wrong =
            |why: String| ImportError::Tensor { path: self.files[place.file].0.clone(), name: name.into(), why };
        let found = SCALES[..2].iter().find_map(|ending| self.tensors.get(&format!("{name}{ending}")));
        let Some(found) = found else { return Err(wrong("there is no scale beside it".into())) };
        let numbers = floats(found.form, &self.read(found)?).ok_or_else(|| wrong("its scale is no number".into()))?;
        let columns = place.shape.last().copied().unwrap_or(1).max(1);
        let rows = place.numbers() / columns;
        let blocks = [rows.div_ceil(self.block[0]), columns.div_ceil(self.block[1])];
        let sides = match (numbers.len(), &found.shape[..]) {
            (1, _) => [rows.max(1), columns],
            (_, [high, wide]) if [*high, *wide] == blocks => self.block,
            (many, [_] | [_, 1]) if many == rows => [1, columns],
            (_, shape) => return Err(wrong(format!("its scale is of {shape:?}, which fits no way that is read"))),
        };
        let wide = columns.div_ceil(sides[1]);
        Ok(MatrixScale { numbers, sides, wide })
    }

    fn take_along(&self, to: &Path) -> Result<(), ImportError> {
        small_files(&self.folder, to)?;
        let path = to.join("config.json");
        let Ok(text) = fs::read(&path) else { return Ok(()) };
        let Ok(mut config) = serde_json::from_slice::<Map<String, Value>>(&text) else { return Ok(()) };
        // What it says of its numbers is no longer so.
        config.remove("quantization_config");
        config.insert("torch_dtype".into(), json!("bfloat16"));
        store::write_whole(&path, Value::Object(config).to_string().as_bytes()).map_err(disk(&path))
    }
}

/// Scales of a matrix, each of a part with these sides.
struct MatrixScale {
    numbers: Vec<f32>,
    sides: [usize; 2],
    /// Parts beside each other.
    wide: usize,
}

impl MatrixScale {
    fn at(&self, row: usize, column: usize) -> f32 {
        self.numbers[row / self.sides[0] * self.wide + column / self.sides[1]]
    }
}

fn floats(form: TensorFormat, bytes: &[u8]) -> Option<Vec<f32>> {
    let pairs = || bytes.chunks_exact(2).map(|pair| [pair[0], pair[1]]);
    let numbers: Vec<f32> = match form {
        TensorFormat::Kept("F32", _) => {
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
        }
        TensorFormat::Kept("BF16", _) => pairs().map(|pair| bf16::from_le_bytes(pair).to_f32()).collect(),
        TensorFormat::Kept("F16", _) => pairs().map(|pair| f16::from_le_bytes(pair).to_f32()).collect(),
        _ => return None,
    };
    (!numbers.is_empty() && numbers.iter().all(|number| number.is_finite())).then_some(numbers)
}

/// Where a header says that a tensor lies; refused where that is not within the file.
fn place(entry: &Value, file: usize, start: u64, size: u64) -> Result<EightBitTensor, String> {
    let dtype = entry["dtype"].as_str().unwrap_or_default();
    let form = TensorFormat::of(dtype).ok_or_else(|| format!("{dtype:?} is not read"))?;
    let whole = |value: &Value| value.as_u64().and_then(|n| usize::try_from(n).ok());
    let list = |name: &str| entry[name].as_array()?.iter().map(whole).collect::<Option<Vec<usize>>>();
    let (shape, offsets) = (list("shape"), list("data_offsets"));
    let (Some(shape), Some([from, to])) = (shape, offsets.as_deref()) else { return Err("it has no place".into()) };
    let numbers = shape.iter().try_fold(form.element(), |all, n| all.checked_mul(*n));
    let is_there = from <= to && start.saturating_add(*to as u64) <= size && numbers == Some(to - from);
    if !is_there {
        return Err(format!("its place {from}..{to} does not fit its shape {shape:?}, or the file"));
    }
    Ok(EightBitTensor { file, form, shape, at: start + *from as u64, bytes: to - from })
}

/// Sides of blocks, by the configuration.
fn block_of(folder: &Path) -> Result<[usize; 2], ImportError> {
    let path = folder.join("config.json");
    if fs::metadata(&path).map_or(0, |about| about.len()) > SMALL_BYTES {
        return Err(ImportError::Index { path, why: format!("at most {SMALL_BYTES} bytes are read") });
    }
    let config: Value = fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
    let sides = &config["quantization_config"]["weight_block_size"];
    let side = |n: usize| sides[n].as_u64().and_then(|side| usize::try_from(side).ok()).filter(|side| *side > 0);
    Ok([side(0).unwrap_or(BLOCK[0]), side(1).unwrap_or(BLOCK[1])])
}

/// The safetensors of a folder, or one; none where it has none, or names none.
fn files_of(path: &Path) -> Result<Option<(PathBuf, Vec<PathBuf>)>, ImportError> {
    let is_one = |path: &Path| path.extension().is_some_and(|ending| ending == "safetensors");
    if path.is_file() && is_one(path) {
        let folder = path.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
        return Ok(Some((folder.to_owned(), vec![path.to_owned()])));
    }
    if !path.is_dir() {
        return Ok(None);
    }
    let entries = fs::read_dir(path).map_err(disk(path))?.flatten().map(|entry| entry.path());
    let names: BTreeSet<PathBuf> = entries.filter(|path| is_one(path) && path.is_file()).collect();
    if names.len() > FILES {
        let why = format!("{} safetensors files, at most {FILES} are read", names.len());
        return Err(ImportError::Index { path: path.to_owned(), why });
    }
    Ok((!names.is_empty()).then(|| (path.to_owned(), names.into_iter().collect())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::{Dtype, SafeTensors, tensor::TensorView};

    #[test]
    fn codes_are_those_of_the_formats() {
        // Largest, smallest, one, and what is no number: OCP 8-bit floating point, 2023, tables 1 and 2.
        for (code, number) in
            [(0x7e, 448.0), (0x08, 2_f32.powi(-6)), (0x01, 2_f32.powi(-9)), (0x38, 1.0), (0xb9, -1.125)]
        {
            assert_eq!(e4m3(code), number, "{code:x}");
        }
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan() && e4m3(0) == 0.0);
        let wide = TensorFormat::E5m2.codes().unwrap();
        assert_eq!((wide[0x7b], wide[0x3c], wide[0x01], wide[0xbd]), (57344.0, 1.0, 2_f32.powi(-16), -1.25));
    }

    /// Matrices with scales of every kind, and what is no matrix of eight bits.
    fn checkpoint(folder: &Path, without: &str) {
        let floats = |numbers: &[f32]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>();
        let eight = |numbers: usize| (0..numbers).map(|n| 0x30 + (n % 16) as u8).collect::<Vec<_>>();
        let tensors: Vec<(&str, Dtype, Vec<usize>, Vec<u8>)> = vec![
            ("blocks.weight", Dtype::F8_E4M3, vec![3, 5], eight(15)),
            ("blocks.weight_scale_inv", Dtype::F32, vec![2, 3], floats(&[1.0, 2.0, 4.0, 0.5, 8.0, 16.0])),
            ("rows.weight", Dtype::F8_E4M3, vec![3, 2], eight(6)),
            ("rows.weight_scale", Dtype::F32, vec![3, 1], floats(&[1.0, 2.0, 0.25])),
            ("rows.input_scale", Dtype::F32, vec![1], floats(&[9.0])),
            ("whole.weight", Dtype::F8_E5M2, vec![2, 2], vec![0x3c, 0x40, 0xbc, 0x00]),
            ("whole.weight_scale", Dtype::F32, vec![], floats(&[3.0])),
            ("norm.weight", Dtype::BF16, vec![2], vec![0x80, 0x3f, 0, 0x40]),
        ];
        let views = tensors.iter().filter(|(name, ..)| *name != without);
        let views = views.map(|(name, dtype, shape, bytes)| {
            ((*name).to_owned(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        fs::write(folder.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
        let config = json!({ "quantization_config": { "quant_method": "fp8", "weight_block_size": [2, 2] }, "x": 1 });
        fs::write(folder.join("config.json"), config.to_string()).unwrap();
    }

    #[test]
    fn numbers_are_their_codes_times_their_scales() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        checkpoint(from.path(), "");
        let opened = EightBit::open(from.path()).unwrap().unwrap();
        let mut told = 0;
        let imported = opened.write(to.path(), |bytes| told += bytes).unwrap();
        assert_eq!((imported.tensors, imported.bytes, told), (4, 2 * (15 + 6 + 4 + 2), imported.bytes));
        let bytes = fs::read(to.path().join(OUT)).unwrap();
        let read = SafeTensors::deserialize(&bytes).unwrap();
        let of = |name: &str| {
            let tensor = read.tensor(name).unwrap();
            assert_eq!(tensor.dtype(), Dtype::BF16);
            tensor.data().chunks(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect::<Vec<_>>()
        };
        let code = |n: usize| e4m3(0x30 + (n % 16) as u8);
        let scales = [[1.0, 2.0, 4.0], [0.5, 8.0, 16.0]];
        let blocks: Vec<f32> = (0..15).map(|n| code(n) * scales[n / 5 / 2][n % 5 / 2]).collect();
        assert_eq!(of("blocks.weight"), blocks);
        let rows: Vec<f32> = (0..6).map(|n| code(n) * [1.0, 2.0, 0.25][n / 2]).collect();
        assert_eq!((of("rows.weight"), of("whole.weight")), (rows, vec![3.0, 6.0, -3.0, 0.0]));
        assert_eq!(of("norm.weight"), [1.0, 2.0]);
        let config: Value = serde_json::from_slice(&fs::read(to.path().join("config.json")).unwrap()).unwrap();
        assert_eq!(config, json!({ "torch_dtype": "bfloat16", "x": 1 }));
        assert!(EightBit::open(to.path()).unwrap().is_none(), "there are none any more");
        let again = opened.write(to.path(), |_| ()).unwrap_err().to_string();
        assert!(again.contains("there is one already"), "{again}");
    }

    #[test]
    fn what_lacks_its_scale_or_lies_about_its_place_is_refused() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        checkpoint(from.path(), "rows.weight_scale");
        let said = EightBit::open(from.path()).unwrap().unwrap().write(to.path(), |_| ()).unwrap_err().to_string();
        assert!(said.contains("rows.weight: there is no scale beside it"), "{said}");
        assert_eq!(fs::read_dir(to.path()).unwrap().count(), 0);
        checkpoint(from.path(), "");
        let path = from.path().join("model.safetensors");
        let whole = fs::read(&path).unwrap();
        for cut in (0..whole.len()).step_by(7) {
            fs::write(&path, &whole[..cut]).unwrap();
            let said = EightBit::open(from.path()).map(drop).unwrap_err().to_string();
            assert!(!said.contains('\n'), "{cut}: {said}");
        }
        for at in 0..whole.len().min(600) {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x15;
            fs::write(&path, &damaged).unwrap();
            // It is read, or refused in a line; and there is never half of it.
            match EightBit::open(from.path()) {
                Ok(Some(opened)) => match opened.write(to.path(), |_| ()) {
                    Ok(_) => fs::remove_dir_all(to.path()).and_then(|()| fs::create_dir(to.path())).unwrap(),
                    Err(_) => assert!(!to.path().join(OUT).exists(), "{at}"),
                },
                Ok(None) => {}
                Err(error) => assert!(!error.to_string().contains('\n'), "{at}: {error}"),
            }
        }
    }
}
