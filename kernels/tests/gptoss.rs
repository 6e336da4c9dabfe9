//! Files of gpt-oss that are not what they should be: refused by name.
#![expect(clippy::unwrap_used, reason = "a scenario that cannot be run fails")]

use safetensors::{Dtype, SafeTensors, serialize_to_file, tensor::TensorView};
use std::path::{Path, PathBuf};
use tsnode_kernels::source::ModelSource;

type Named = Vec<(String, Dtype, Vec<usize>, Vec<u8>)>;

fn reference() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/reference/gptoss-sinks")
}

/// What is said of the model with its tensors changed, once it is opened and its layers are loaded.
fn refused(change: impl Fn(&mut Named)) -> String {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(reference().join(file), folder.path().join(file)).unwrap();
    }
    let bytes = std::fs::read(reference().join("model.safetensors")).unwrap();
    let mut tensors: Named = SafeTensors::deserialize(&bytes)
        .unwrap()
        .iter()
        .map(|(name, view)| (name.to_owned(), view.dtype(), view.shape().to_vec(), view.data().to_vec()))
        .collect();
    change(&mut tensors);
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, data)| (name.as_str(), TensorView::new(*dtype, shape.clone(), data).unwrap()));
    serialize_to_file(views, None, &folder.path().join("model.safetensors")).unwrap();
    match ModelSource::open(folder.path()) {
        Err(error) => error.to_string(),
        Ok(source) => source.load_stage(source.card().shape.all_layers()).err().unwrap().to_string(),
    }
}

const BLOCKS: &str = "model.layers.1.mlp.experts.gate_up_proj_blocks";
const POWERS: &str = "model.layers.2.mlp.experts.down_proj_scales";

#[test]
fn what_is_wrong_with_experts_is_named() {
    for missing in [BLOCKS, POWERS, "model.layers.0.self_attn.sinks", "model.layers.1.mlp.experts.down_proj_bias"] {
        let error = refused(|tensors| tensors.retain(|(name, ..)| name != missing));
        assert!(error.contains(missing.trim_end_matches("_blocks")), "{missing}: {error}");
    }
    let bias = "model.layers.3.mlp.experts.gate_up_proj_bias";
    let nan = refused(|tensors| {
        let (.., data) = tensors.iter_mut().find(|(name, ..)| name == bias).unwrap();
        data[10..12].copy_from_slice(&half::f16::NAN.to_le_bytes());
    });
    assert!(nan.contains(bias) && nan.contains("NaN"), "{nan}");
    let shape = refused(|tensors| {
        let (.., shape, data) = tensors.iter_mut().find(|(name, ..)| name == BLOCKS).unwrap();
        shape[0] -= 1;
        data.truncate(shape.iter().product());
    });
    assert!(shape.contains(BLOCKS) && shape.contains("64, 1, 16"), "{shape}");
    let dtype = refused(|tensors| tensors.iter_mut().find(|(name, ..)| name == POWERS).unwrap().1 = Dtype::I8);
    assert!(dtype.contains(POWERS) && dtype.contains("I8"), "{dtype}");
    let power = refused(|tensors| tensors.iter_mut().find(|(name, ..)| name == POWERS).unwrap().3[7] = 255);
    assert!(power.contains(POWERS) && power.contains("NaN"), "{power}");
}
