//! What has to be there of a file of weights before a model can be opened of which nothing else is there yet.

use crate::gguf::{Gguf, GgufError};
use std::ops::Range;
use tsnode_protocol::weights::WeightsForm;

/// Longest header of safetensors that is read, as the format's own library has it (bytes).
const HEADER: u64 = 100_000_000;
/// Longest start of a GGUF file: tokenizers of half a million words take twenty of these (bytes).
const METADATA: u64 = 512 << 20;

/// What is to be there of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// So many of its first bytes at least: then it can be said.
    More(u64),
    /// These places.
    Places(Vec<Range<u64>>),
}

/// By the first bytes of a file of `file` bytes: where it says what tensors it has, and what of them is part of a configuration.
///
/// # Errors
/// When they are no start of such a file.
pub fn start_of(form: WeightsForm, first: &[u8], file: u64) -> Result<Start, String> {
    match form {
        WeightsForm::Safetensors => safetensors(first, file),
        WeightsForm::Gguf => gguf(first, file),
    }
}

fn safetensors(first: &[u8], file: u64) -> Result<Start, String> {
    let Some(length) = first.first_chunk::<8>() else {
        return if file < 8 { Err(format!("it has {file} bytes")) } else { Ok(Start::More(8)) };
    };
    let end = u64::from_le_bytes(*length).saturating_add(8);
    if end > file.min(HEADER) {
        return Err(format!("its header is said to have {end} bytes, the file has {file}"));
    }
    Ok(Start::Places(vec![0..end]))
}

fn gguf(first: &[u8], file: u64) -> Result<Start, String> {
    if first.len() < 4 && file >= 4 {
        return Ok(Start::More(file.min(1 << 20)));
    }
    let head = match Gguf::parse_start(first, file) {
        Err(GgufError::CutShort { .. }) if (first.len() as u64) < file.min(METADATA) => {
            return Ok(Start::More((first.len() as u64 * 2).clamp(1 << 20, file.min(METADATA))));
        }
        head => head.map_err(|error| error.to_string())?,
    };
    let to = |place: &Range<usize>| place.start as u64..place.end as u64;
    // Its own account of itself ends before the first tensor, if there is one.
    let end = head.tensors.iter().map(|tensor| tensor.range.start as u64).min().unwrap_or(first.len() as u64);
    // Factors of positions lie among the tensors.
    let lists = head.tensors.iter().filter(|tensor| tensor.shape.len() == 1 && !tensor.name.starts_with("blk."));
    Ok(Start::Places(std::iter::once(0..end).chain(lists.map(|tensor| to(&tensor.range))).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::ModelSource;
    use std::fs::{self, File};
    use std::os::unix::fs::FileExt as _;
    use std::path::{Path, PathBuf};
    use tsnode_protocol::LayerRange;

    /// Opens a copy of a model that has only what `start_of` and `places` say, and loads some of its layers.
    fn loads_of_parts(folder: &Path, file: &Path, form: WeightsForm, layers: LayerRange) {
        let all = ModelSource::open(if form == WeightsForm::Gguf { file } else { folder }).unwrap();
        let whole = fs::read(file).unwrap();
        let copy = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(folder).unwrap().flatten().filter(|e| e.path().extension() != file.extension()) {
            fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
        let part: PathBuf = copy.path().join("weights.incomplete");
        let out = File::options().create_new(true).write(true).open(&part).unwrap();
        out.set_len(whole.len() as u64).unwrap();
        let write = |at: Range<usize>| out.write_all_at(&whole[at.clone()], at.start as u64).unwrap();
        let mut first = 0;
        let places = loop {
            match start_of(form, &whole[..first], whole.len() as u64).unwrap() {
                Start::More(more) => {
                    assert!(more as usize > first);
                    first = more as usize;
                }
                Start::Places(places) => break places,
            }
        };
        places.into_iter().for_each(|place| write(place.start as usize..place.end as usize));
        let opened = || ModelSource::open_parts(copy.path(), &[part.clone()], form).unwrap();
        let source = opened();
        assert_eq!((source.card().shape, &source.card().files), (all.card().shape, &all.card().files));
        let places = source.places(layers).unwrap();
        let bytes: usize = places.iter().map(|(_, place)| place.len()).sum();
        assert!(bytes < whole.len(), "{bytes} of {}", whole.len());
        places.into_iter().for_each(|(_, place)| write(place));
        // The same numbers as of the whole file, and none of others.
        let sums = |source: &ModelSource| {
            let stage = source.load_stage(layers).unwrap();
            let tensors = stage.stages.iter().flat_map(|stage| stage.weights()).map(|weight| weight.tensor().clone());
            let sum = |tensor: crate::weights::Tensor| {
                let (rows, cols) = tensor.size();
                let mut row = vec![0.0; cols];
                let mut hasher = blake3::Hasher::new();
                for n in 0..rows {
                    tensor.widen_row(n, &mut row);
                    for number in &row {
                        hasher.update(&number.to_le_bytes());
                    }
                }
                hasher.finalize()
            };
            tensors.map(sum).collect::<Vec<_>>()
        };
        assert_eq!(sums(&opened()), sums(&all));
        assert_ne!(sums(&source_of(copy.path(), &whole, form, layers)), sums(&all), "what is not there is not found");
    }

    /// With the last byte of every tensor of those layers another.
    fn source_of(folder: &Path, whole: &[u8], form: WeightsForm, layers: LayerRange) -> ModelSource {
        let path = folder.join("other.incomplete");
        fs::write(&path, whole).unwrap();
        let source = ModelSource::open_parts(folder, &[path.clone()], form).unwrap();
        let out = File::options().write(true).open(&path).unwrap();
        for (_, place) in source.places(layers).unwrap() {
            out.write_all_at(&[whole[place.end - 2] ^ 1], place.end as u64 - 2).unwrap();
        }
        ModelSource::open_parts(folder, &[path], form).unwrap()
    }

    #[test]
    fn some_layers_load_of_a_file_that_has_nothing_else() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/gutenberg-tiny");
        for (start, end) in [(0, 1), (1, 3), (3, 4)] {
            let file = folder.join("model.safetensors");
            loads_of_parts(&folder, &file, WeightsForm::Safetensors, LayerRange { start, end });
        }
    }

    #[test]
    fn a_start_that_lies_is_refused() {
        let of = |first: &[u8]| start_of(WeightsForm::Safetensors, first, 1000);
        assert_eq!(of(&[0; 7]), Ok(Start::More(8)));
        assert_eq!(of(&92_u64.to_le_bytes()), Ok(Start::Places(vec![0..100])));
        assert!(of(&993_u64.to_le_bytes()).is_err() && of(&u64::MAX.to_le_bytes()).is_err());
        assert!(start_of(WeightsForm::Gguf, b"<html>", 1000).is_err());
        // All of it is there, and it still asks for more.
        assert!(start_of(WeightsForm::Gguf, b"GGUF\x03\0\0\0", 8).is_err());
    }
}
