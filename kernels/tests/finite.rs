//! Weights that are no numbers are refused, by name, wherever they lie.
#![expect(clippy::unwrap_used, reason = "a scenario that cannot be run fails")]

use crate::gguf_writer::{MatrixFormat, convert};
use half::f16;
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tsnode_kernels::{
    engine::{Engine, EngineConfig, Threads},
    gguf::Gguf,
    load::{Largest, LoadProgress},
    source::ModelSource,
    weights::Stored,
};
use tsnode_protocol::{KvDtype, LayerRange};

fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models").join(name)
}

fn references() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(model("reference")).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.is_dir()).collect()
}

/// A copy of a model's folder, to be broken.
fn copy(folder: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    copy
}

/// What is said of a model when all its layers are loaded.
fn complaint(path: &Path) -> Option<String> {
    let source = match ModelSource::open(path) {
        Ok(source) => source,
        Err(error) => return Some(error.to_string()),
    };
    source.load_stage(source.card().shape.all_layers()).err().map(|error| error.to_string())
}

/// A tensor's last number: where it is in the file, its place in the tensor, and NaN as it is stored.
type Last = (usize, usize, Vec<u8>);

fn last_numbers(file: &[u8]) -> BTreeMap<String, Last> {
    let parsed = SafeTensors::deserialize(file).unwrap();
    // Of MXFP4 any byte is a number, and powers of two that are none are looked for in gptoss.rs.
    let numbers = |(_, view): &(&str, safetensors::tensor::TensorView<'_>)| view.dtype() != Dtype::U8;
    let one = |(name, view): (&str, safetensors::tensor::TensorView<'_>)| {
        let end = view.data().as_ptr_range().end as usize - file.as_ptr() as usize;
        let nan = match view.dtype() {
            Dtype::F32 => f32::NAN.to_le_bytes().to_vec(),
            Dtype::F16 => f16::NAN.to_le_bytes().to_vec(),
            Dtype::BF16 => half::bf16::NAN.to_le_bytes().to_vec(),
            other => panic!("{other:?}"),
        };
        let last = view.shape().iter().product::<usize>() - 1;
        (name.to_owned(), (end - nan.len(), last, nan))
    };
    parsed.iter().filter(numbers).map(one).collect()
}

#[test]
fn no_tensor_of_any_family_goes_unseen() {
    for folder in references() {
        let broken = copy(&folder);
        let config: serde_json::Value =
            serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|e| e != "safetensors") {
                continue;
            }
            let (whole, name) = (std::fs::read(&path).unwrap(), path.file_name().unwrap().to_str().unwrap());
            for (tensor, (at, index, nan)) in last_numbers(&whole) {
                // A head that is there and not used is not read.
                if tensor == "lm_head.weight" && config["tie_word_embeddings"] == true {
                    continue;
                }
                let mut bytes = whole.clone();
                bytes[at..at + nan.len()].copy_from_slice(&nan);
                std::fs::write(broken.path().join(name), bytes).unwrap();
                let error = complaint(broken.path()).unwrap_or_else(|| panic!("{tensor} of {folder:?} went unseen"));
                let expected = format!("{name}: tensor {tensor} holds NaN at number {index}");
                assert!(error.contains(&expected), "{error} does not say: {expected}");
            }
            std::fs::write(broken.path().join(name), whole).unwrap();
        }
        assert_eq!(complaint(broken.path()), None, "what was mended loads");
    }
}

#[test]
fn no_tensor_of_a_gguf_file_goes_unseen() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broken.gguf");
    for name in ["llama-gqa", "phi3-longrope", "gemma2-caps"] {
        let whole = convert(&model("reference").join(name), MatrixFormat::Q8, "gpt-2").bytes();
        let tensors = Gguf::parse(&whole).unwrap().tensors;
        // Frequencies' factors are read as part of the configuration.
        for tensor in tensors.iter().filter(|tensor| !tensor.name.starts_with("rope")) {
            let numbers = tensor.shape.iter().product::<usize>();
            let (at, nan, said) = match tensor.stored {
                Stored::Dense(dtype) => {
                    let nan = if dtype.bytes() == 4 { f32::NAN.to_le_bytes().to_vec() } else { vec![0xff; 2] };
                    (tensor.range.end - nan.len(), nan, format!("NaN at number {}", numbers - 1))
                }
                Stored::Quantised(kind) => {
                    let said = format!("NaN as a scale of numbers {} to {}", numbers - kind.numbers(), numbers - 1);
                    (tensor.range.end - kind.bytes(), f16::NAN.to_le_bytes().to_vec(), said)
                }
            };
            let mut bytes = whole.clone();
            bytes[at..at + nan.len()].copy_from_slice(&nan);
            std::fs::write(&path, bytes).unwrap();
            let error = complaint(&path).unwrap_or_else(|| panic!("{} of {name} went unseen", tensor.name));
            for part in ["broken.gguf: tensor ", tensor.name, &said] {
                assert!(error.contains(part), "{error} does not say: {part}");
            }
        }
    }
}

#[test]
fn only_stages_that_hold_it_are_refused() {
    let broken = copy(&model("gutenberg-tiny"));
    let path = broken.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let (at, _, nan) = last_numbers(&bytes)["model.layers.2.mlp.up_proj.weight"].clone();
    bytes[at..at + nan.len()].copy_from_slice(&nan);
    std::fs::write(&path, bytes).unwrap();
    let source = ModelSource::open(broken.path()).unwrap();
    let load = |start, end| source.load_stage(LayerRange { start, end }).map(drop);
    load(0, 2).unwrap();
    let error = load(1, 3).unwrap_err().to_string();
    assert!(error.contains("model.layers.2.mlp.up_proj.weight"), "{error}");
    load(2, 3).unwrap_err();
}

#[test]
fn loading_says_how_far_it_is_and_what_it_took() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, convert(&model("reference/llama-gqa"), MatrixFormat::Q8, "gpt-2").bytes()).unwrap();
    let source = ModelSource::open(&path).unwrap();
    let layers = source.card().shape.all_layers();
    let mut told: Vec<LoadProgress> = Vec::new();
    let (stage, report) =
        source.load_stage_by(Threads::together(2), layers, &mut |progress| told.push(progress)).unwrap();
    let (first, last) = (told[0], told[told.len() - 1]);
    assert_eq!((first.done, last.done), (0, last.total));
    assert!(told.windows(2).all(|pair| pair[0].done < pair[1].done && pair[0].total == pair[1].total));
    let memory = source.stage_memory(layers, 1).unwrap();
    assert_eq!((report.bytes, report.packed), (last.total, memory.packed));
    assert!(report.quantised > 0 && report.quantised <= report.bytes && report.packing <= report.took);
    let config = EngineConfig { threads: Threads::together(1), pool_bytes: 1 << 20, kv_dtype: KvDtype::F16 };
    Engine::new(config).unwrap().load(stage).unwrap();
}

#[test]
fn memory_is_what_lies_in_files_and_what_is_laid_out_anew() {
    let source = ModelSource::open(&model("gutenberg-tiny")).unwrap();
    let (shape, all) = (source.card().shape, source.card().shape.all_layers());
    let memory = source.stage_memory(all, 1).unwrap();
    assert_eq!(memory.packed, 0);
    // Embedding and head are one matrix there, and a whole model's card counts it twice.
    let twice = source.stage_memory(LayerRange { start: 0, end: 1 }, 1).unwrap().mapped
        + source.stage_memory(LayerRange { start: 1, end: shape.layers }, 1).unwrap().mapped;
    assert_eq!(twice - memory.mapped, shape.embed_bytes);
    assert!(memory.total() <= shape.stage_bytes(all) && memory.total() + shape.embed_bytes >= shape.stage_bytes(all));

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, convert(&model("gutenberg-tiny"), MatrixFormat::Q8, "gpt-2").bytes()).unwrap();
    let packed = ModelSource::open(&path).unwrap().stage_memory(all, 1).unwrap();
    // 34 bytes for 32 numbers, as in the file; of the embedding rows are taken where they lie.
    let halves = memory.mapped;
    assert_eq!((packed.packed, packed.mapped), (halves / 2 / 32 * 34, shape.embed_bytes / 2 / 32 * 34));
    let working = |tokens| source.working_bytes(all, 1, Largest { tokens, logits: 1 });
    assert!(working(1) > 4 * u64::from(shape.vocab) && working(3) - working(2) == working(2) - working(1));
}
