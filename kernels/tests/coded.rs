//! Weights that servers' quantisers stored and that are not what they should be: refused by name.
#![expect(clippy::unwrap_used, reason = "a scenario that cannot be run fails")]

use safetensors::{Dtype, SafeTensors, serialize_to_file, tensor::TensorView};
use std::path::{Path, PathBuf};
use tsnode_kernels::source::{ModelSource, Precision};

type FileTensors = Vec<(String, Dtype, Vec<usize>, Vec<u8>)>;

fn coded(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/coded").join(name)
}

/// What is said of a model with its tensors changed, once it is opened and its layers are loaded.
fn said(name: &str, change: impl Fn(&mut FileTensors)) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(coded(name).join(file), folder.path().join(file)).unwrap();
    }
    let bytes = std::fs::read(coded(name).join("model.safetensors")).unwrap();
    let mut tensors: FileTensors = SafeTensors::deserialize(&bytes)
        .unwrap()
        .iter()
        .map(|(name, view)| (name.to_owned(), view.dtype(), view.shape().to_vec(), view.data().to_vec()))
        .collect();
    change(&mut tensors);
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, data)| (name.as_str(), TensorView::new(*dtype, shape.clone(), data).unwrap()));
    serialize_to_file(views, None, &folder.path().join("model.safetensors")).unwrap();
    let source = ModelSource::open(folder.path()).map_err(|error| error.to_string())?;
    source.load_stage(source.card().shape.all_layers()).map(drop).map_err(|error| error.to_string())
}

/// The same of one tensor.
fn refused(model: &str, tensor: &str, change: impl Fn(&mut Dtype, &mut Vec<usize>, &mut Vec<u8>)) -> String {
    let error = said(model, |tensors| {
        let (_, dtype, shape, data) = tensors.iter_mut().find(|(name, ..)| name.ends_with(tensor)).unwrap();
        change(dtype, shape, data);
    });
    error.unwrap_err()
}

const MODELS: [&str; 6] =
    ["qwen3-fp8-blocks", "llama-fp8-channels", "qwen2-gptq", "mistral-gptq-order", "llama-awq", "qwen3-int4-packed"];

#[test]
fn a_tensor_that_is_missing_is_named() {
    for (model, tensors) in [
        (MODELS[0], &["1.mlp.up_proj.weight", "0.self_attn.q_proj.weight_scale_inv"][..]),
        (MODELS[2], &["1.mlp.up_proj.qweight", "1.mlp.up_proj.qzeros", "1.mlp.up_proj.scales"]),
        (MODELS[3], &["1.mlp.up_proj.g_idx", "2.self_attn.k_proj.qzeros"]),
        (MODELS[4], &["0.mlp.down_proj.qzeros", "0.mlp.down_proj.scales"]),
        (MODELS[5], &["0.mlp.down_proj.weight_packed", "0.mlp.down_proj.weight_scale"]),
    ] {
        for tensor in tensors {
            let error = said(model, |all| all.retain(|(name, ..)| !name.ends_with(tensor))).unwrap_err();
            let stem = tensor.replace("qweight", "weight").replace("weight_packed", "weight");
            assert!(error.contains(&stem) && error.contains("missing"), "{model} without {tensor}: {error}");
        }
    }
}

#[test]
fn a_tensor_of_another_shape_or_type_is_named() {
    for (model, tensor) in [
        (MODELS[0], "1.mlp.up_proj.weight"),
        (MODELS[0], "1.mlp.up_proj.weight_scale_inv"),
        (MODELS[1], "1.mlp.up_proj.weight_scale"),
        (MODELS[2], "1.mlp.up_proj.qweight"),
        (MODELS[2], "1.mlp.up_proj.qzeros"),
        (MODELS[2], "1.mlp.up_proj.scales"),
        (MODELS[3], "1.mlp.up_proj.g_idx"),
        (MODELS[4], "1.mlp.up_proj.qweight"),
        (MODELS[5], "1.mlp.up_proj.weight_packed"),
    ] {
        let shape = refused(model, tensor, |_, shape, data| {
            let row = data.len() / shape[0];
            shape[0] -= 1;
            data.truncate(shape[0] * row);
        });
        assert!(shape.contains(tensor) && shape.contains("shape"), "{model}, {tensor}: {shape}");
        let dtype = refused(model, tensor, |dtype, shape, data| {
            *dtype = Dtype::F64;
            data.resize(8 * shape.iter().product::<usize>(), 0);
        });
        assert!(dtype.contains(tensor) && dtype.contains("F64"), "{model}, {tensor}: {dtype}");
    }
}

#[test]
fn numbers_that_nothing_can_be_computed_with_are_named() {
    let nan = refused(MODELS[0], "1.mlp.up_proj.weight", |_, _, data| data[77] = 0xff);
    assert!(nan.contains("1.mlp.up_proj.weight") && nan.contains("NaN at number 77"), "{nan}");
    let scale =
        refused(MODELS[0], "up_proj.weight_scale_inv", |_, _, data| data[4..8].copy_from_slice(&1e38f32.to_le_bytes()));
    assert!(scale.contains("weight_scale_inv") && scale.contains("number 1"), "{scale}");
    let infinite = half::f16::INFINITY.to_le_bytes();
    for model in [MODELS[2], MODELS[3], MODELS[4]] {
        let scale = refused(model, "1.mlp.up_proj.scales", |_, _, data| data[6..8].copy_from_slice(&infinite));
        assert!(scale.contains("1.mlp.up_proj.scales") && scale.contains("inf as a scale"), "{model}: {scale}");
    }
    let group = refused(MODELS[3], "1.mlp.up_proj.g_idx", |_, _, data| data[20..24].copy_from_slice(&[0xff; 4]));
    assert!(group.contains("1.mlp.up_proj.g_idx") && group.contains("input 5"), "{group}");
    let zero = refused(MODELS[3], "1.mlp.up_proj.qzeros", |_, _, data| data[4] = 0x76);
    assert!(zero.contains("1.mlp.up_proj.qzeros") && zero.contains("number 8") && zero.contains("sym"), "{zero}");
}

#[test]
fn what_is_not_changed_is_loaded_and_its_memory_is_said() {
    for model in MODELS {
        said(model, |_| ()).unwrap();
        let source = ModelSource::open(&coded(model)).unwrap();
        let note = source.notes().iter().find(|note| note.contains("MiB")).unwrap();
        assert_eq!(note.contains("bfloat16"), model.contains("fp8"), "{model}: {note}");
        let shape = source.card().shape;
        let memory = source.stage_memory(shape.all_layers(), 1).unwrap();
        let layers = u64::from(shape.layers) * shape.layer_bytes;
        // Sixteen outputs lie side by side, which few of these matrices fill.
        let held = memory.packed + memory.copied;
        assert!(held + 64 >= layers && held <= 2 * layers + (64 << 10), "{model}: {held} for {layers}");
        let exact = source.in_precision(Precision::Exact).unwrap();
        assert!(exact.card().shape.layer_bytes > shape.layer_bytes, "{model}");
        assert!(exact.gpu_lacks().unwrap().contains("--precision exact"));
    }
}
