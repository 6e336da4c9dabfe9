//! Layers of files that have nothing else, and what is said where some of them is not there.

use super::*;
use crate::source::ModelSource;
use safetensors::SafeTensors;
use std::fs;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;
use tsnode_protocol::LayerRange;

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models")
}

fn layers(start: u32, end: u32) -> LayerRange {
    LayerRange { start, end }
}

/// A copy of a file of weights that has only what is written to it.
struct Sparse<'w> {
    folder: &'w Path,
    whole: Vec<u8>,
    file: tempfile::NamedTempFile,
    there: Vec<Range<u64>>,
}

impl<'w> Sparse<'w> {
    /// With what `start_of` says.
    fn start(folder: &'w Path) -> Self {
        let whole = fs::read(folder.join("model.safetensors")).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(whole.len() as u64).unwrap();
        let mut copy = Self { folder, whole, file, there: Vec::new() };
        let mut first = 0;
        let places = loop {
            match start_of(WeightsForm::Safetensors, &copy.whole[..first], copy.whole.len() as u64).unwrap() {
                Start::More(more) => {
                    assert!(more as usize > first);
                    first = more as usize;
                }
                Start::Places(places) => break places,
            }
        };
        places.iter().for_each(|place| copy.write(&(place.start as usize..place.end as usize)));
        copy
    }

    fn write(&mut self, at: &Range<usize>) {
        let mut file = self.file.as_file();
        file.seek(SeekFrom::Start(at.start as u64)).unwrap();
        file.write_all(&self.whole[at.clone()]).unwrap();
        self.there.push(at.start as u64..at.end as u64);
    }

    fn open(&self) -> ModelSource {
        let file = PartFile { path: self.file.path().to_owned(), there: self.there.clone() };
        ModelSource::open_parts(self.folder, &[file], WeightsForm::Safetensors).unwrap()
    }
}

/// All numbers of some layers, as products with them have them.
fn sums(source: &ModelSource, layers: LayerRange) -> Vec<blake3::Hash> {
    let stage = source.load_stage(layers).unwrap();
    let matrices = stage.stages.iter().flat_map(|stage| stage.weights()).map(|weight| weight.tensor());
    let tables = stage.stages.iter().flat_map(|stage| stage.tables());
    let sum = |tensor: &crate::weights::Tensor| {
        let (rows, cols) = tensor.size();
        let mut row = vec![0.0; cols];
        let mut hasher = blake3::Hasher::new();
        for n in 0..rows {
            tensor.widen_row(n, &mut row);
            row.iter().for_each(|number| {
                hasher.update(&number.to_le_bytes());
            });
        }
        hasher.finalize()
    };
    matrices.chain(tables).map(sum).collect()
}

#[test]
fn some_layers_load_of_a_file_that_has_nothing_else() {
    let folder = models().join("gutenberg-tiny");
    let all = ModelSource::open(&folder).unwrap();
    for layers in [layers(0, 1), layers(1, 3), layers(3, 4)] {
        let mut copy = Sparse::start(&folder);
        let source = copy.open();
        assert_eq!((source.card().shape, &source.card().files), (all.card().shape, &all.card().files));
        let places = source.places(layers).unwrap();
        assert_eq!(places, all.places(layers).unwrap());
        let bytes: usize = places.iter().map(|(_, place)| place.len()).sum();
        assert!(bytes < copy.whole.len(), "{bytes} of {}", copy.whole.len());
        places.iter().for_each(|(_, place)| copy.write(place));
        assert_eq!(sums(&copy.open(), layers), sums(&all, layers));
        // Other numbers are found, in whatever of these tensors they are.
        places.iter().for_each(|(_, place)| copy.whole[place.end - 2] ^= 1);
        places.iter().for_each(|(_, place)| copy.write(place));
        assert_ne!(sums(&copy.open(), layers), sums(&all, layers));
    }
}

/// Of every way in which weights are stored: what is said to be read is enough, and without any of it nothing is loaded.
#[test]
fn a_tensor_that_is_not_there_is_named_however_it_is_stored() {
    let folders = ["reference", "coded"].map(|kind| fs::read_dir(models().join(kind)).unwrap().flatten());
    let folders = folders.into_iter().flatten().map(|entry| entry.path());
    let mut endings = std::collections::BTreeSet::new();
    for folder in folders.filter(|folder| folder.join("model.safetensors").exists()) {
        let all = ModelSource::open(&folder).unwrap();
        let bytes = fs::read(folder.join("model.safetensors")).unwrap();
        let named = SafeTensors::deserialize(&bytes).unwrap();
        let start = |bytes: &[u8], of: &[u8]| of.as_ptr() as usize - bytes.as_ptr() as usize;
        let name_at = |place: &Range<usize>| {
            named.iter().find(|(_, view)| start(&bytes, view.data()) == place.start).unwrap().0.to_owned()
        };
        let shape = all.card().shape;
        let (count, whole) = (shape.layers, shape.all_layers());
        for layers in if shape.whole { [whole; 2] } else { [layers(0, 1), layers(count - 1, count)] } {
            let mut copy = Sparse::start(&folder);
            let places = copy.open().places(layers).unwrap();
            let missing = |copy: &Sparse<'_>| copy.open().load_stage(layers).map(drop).unwrap_err().to_string();
            assert!(missing(&copy).contains("is not here yet"), "{}", missing(&copy));
            places.iter().for_each(|(_, place)| copy.write(place));
            assert_eq!(sums(&copy.open(), layers), sums(&all, layers), "{}", folder.display());
            for (n, (_, place)) in places.iter().enumerate() {
                let name = name_at(place);
                endings.insert(name.rsplit('.').next().unwrap().to_owned());
                let at = copy.there.len() - places.len() + n;
                // All but its last byte.
                copy.there[at].end -= 1;
                let error = missing(&copy);
                assert!(error.contains(&format!("tensor {name} is not here yet")), "{}: {error}", folder.display());
                copy.there[at].end += 1;
            }
        }
    }
    let expected = ["qweight", "qzeros", "scales", "g_idx", "weight_scale_inv", "weight_scale", "weight_packed"];
    let expected = expected.into_iter().chain(["gate_up_proj_blocks", "down_proj_scales", "bias", "sinks"]);
    let lacking: Vec<&str> = expected.filter(|ending| !endings.contains(*ending)).collect();
    assert!(lacking.is_empty(), "{lacking:?} of {endings:?}");
}

/// Numbers that cannot be of a model as it should be are no reason not to measure steps with what is there of it.
#[test]
fn steps_are_measured_before_anything_is_there() {
    for name in ["qwen2-gptq", "mistral-gptq-order", "llama-awq", "qwen3-fp8-blocks"] {
        let folder = models().join("coded").join(name);
        let copy = Sparse::start(&folder);
        let threads = crate::engine::Threads::together(1);
        copy.open().outlined(layers(0, 1), threads).unwrap();
        assert!(copy.open().load_stage(layers(0, 1)).is_err(), "{name}");
    }
}

#[test]
fn a_start_that_lies_is_refused() {
    let of = |first: &[u8]| start_of(WeightsForm::Safetensors, first, 1000);
    assert_eq!(of(&[0; 7]), Ok(Start::More(8)));
    assert_eq!(of(&92_u64.to_le_bytes()), Ok(Start::Places(iter::once(0..100).collect())));
    assert!(of(&993_u64.to_le_bytes()).is_err() && of(&u64::MAX.to_le_bytes()).is_err());
    assert!(start_of(WeightsForm::Gguf, b"<html>", 1000).is_err());
    // All of it is there, and it still asks for more.
    assert!(start_of(WeightsForm::Gguf, b"GGUF\x03\0\0\0", 8).is_err());
}
