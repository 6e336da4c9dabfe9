//! Folders of safetensors whose weights are not what the model needs: refused with the tensor's name, and where it was looked for.
#![allow(clippy::unwrap_used)] // A story that cannot be told fails.

use safetensors::{Dtype, SafeTensors, serialize_to_file, tensor::TensorView};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tsnode_kernels::source::ModelSource;

const UP: &str = "model.layers.0.mlp.up_proj.weight";
const NORM: &str = "model.layers.1.input_layernorm.weight";

/// Tensors by name, as a file has them.
type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// A copy of a reference model whose files' tensors are changed; told are a file's name and what is in it.
fn changed(model: &str, change: impl Fn(&str, &mut Tensors)) -> TempDir {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/reference").join(model);
    let to = tempfile::tempdir().unwrap();
    for path in std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()) {
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.ends_with(".safetensors") {
            let mut tensors = read(&path);
            change(name, &mut tensors);
            let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
                (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
            });
            serialize_to_file(views, None, &to.path().join(name)).unwrap();
        } else {
            std::fs::copy(&path, to.path().join(name)).unwrap();
        }
    }
    to
}

fn read(path: &PathBuf) -> Tensors {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let owned = |(name, view): (&str, TensorView<'_>)| {
        (name.to_owned(), (view.dtype(), view.shape().to_vec(), view.data().to_vec()))
    };
    file.iter().map(owned).collect()
}

/// What is said of a folder, which names it and all of these.
fn refused(folder: &Path, parts: &[&str]) {
    let error = ModelSource::open(folder).err().unwrap().to_string();
    let folder = folder.display().to_string();
    assert!(error.starts_with(&folder) && parts.iter().all(|part| error.contains(part)), "{error}");
}

#[test]
fn a_tensor_in_a_form_that_is_not_read_is_named() {
    // A whole number of bytes for each number, so that the file itself is a good one.
    for (dtype, width) in [(Dtype::I64, 8), (Dtype::F8_E4M3, 1), (Dtype::F64, 8), (Dtype::BOOL, 1)] {
        for tensor in [UP, NORM] {
            let folder = changed("llama-gqa", |_, tensors| {
                if let Some((kind, shape, bytes)) = tensors.get_mut(tensor) {
                    *kind = dtype;
                    *bytes = vec![0; shape.iter().product::<usize>() * width];
                }
            });
            refused(folder.path(), &[tensor, &format!("{dtype:?}"), "BF16"]);
            let file = folder.path().join("model.safetensors");
            refused(&file, &[tensor, &format!("{dtype:?}")]);
        }
    }
}

#[test]
fn a_tensor_that_is_missing_is_named() {
    for tensor in [UP, NORM, "model.embed_tokens.weight"] {
        let folder = changed("llama-gqa", |_, tensors| drop(tensors.remove(tensor)));
        refused(folder.path(), &[tensor, "missing"]);
        refused(&folder.path().join("model.safetensors"), &[tensor, "missing"]);
    }
}

/// The index promises it: then it says in which file it should be, and a file that is not there is named itself.
#[test]
fn of_several_files_the_one_that_should_have_it_is_named() {
    let whole = changed("llama3-rope", |_, _| ());
    let index = std::fs::read(whole.path().join("model.safetensors.index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
    ModelSource::open(whole.path()).unwrap();
    for tensor in [UP, NORM] {
        let file = index["weight_map"][tensor].as_str().unwrap();
        let folder = changed("llama3-rope", |_, tensors| drop(tensors.remove(tensor)));
        refused(folder.path(), &[tensor, "missing", file]);
        std::fs::remove_file(folder.path().join(file)).unwrap();
        refused(folder.path(), &[file]);
    }
    // Of a tensor that the index does not promise nobody knows where it should be.
    let folder = changed("llama3-rope", |_, tensors| drop(tensors.remove(UP)));
    let mut short = index.clone();
    short["weight_map"].as_object_mut().unwrap().remove(UP);
    std::fs::write(folder.path().join("model.safetensors.index.json"), short.to_string()).unwrap();
    refused(folder.path(), &[UP, "missing"]);
}
