//! Copies of models with all weights in single precision.

use half::bf16;
use safetensors::{Dtype, SafeTensors, serialize_to_file, tensor::TensorView};
use std::path::Path;
use tempfile::TempDir;

/// A copy of the folder; numbers that are bfloat16 become single ones.
pub fn copy(folder: &Path) -> TempDir {
    let to = TempDir::new().unwrap();
    for file in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let target = to.path().join(file.file_name().unwrap());
        if file.extension().is_some_and(|extension| extension == "safetensors") {
            widen(&file, &target);
        } else {
            std::fs::copy(&file, &target).unwrap();
        }
    }
    to
}

fn widen(from: &Path, to: &Path) {
    let bytes = std::fs::read(from).unwrap();
    let wide: Vec<(String, Vec<usize>, Dtype, Vec<u8>)> = SafeTensors::deserialize(&bytes)
        .unwrap()
        .iter()
        .map(|(name, tensor)| {
            let (dtype, data) = match tensor.dtype() {
                Dtype::BF16 => (Dtype::F32, singles(tensor.data())),
                other => (other, tensor.data().to_vec()),
            };
            (name.to_owned(), tensor.shape().to_vec(), dtype, data)
        })
        .collect();
    let views =
        wide.iter().map(|(name, shape, dtype, data)| (name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
    serialize_to_file(views, None, to).unwrap();
}

fn singles(bytes: &[u8]) -> Vec<u8> {
    bytes.as_chunks::<2>().0.iter().flat_map(|two| bf16::from_le_bytes(*two).to_f32().to_le_bytes()).collect()
}
