//! Folders of safetensors: which file has a tensor, and weights that are not what the model needs, refused with the tensor's name.
#![expect(clippy::unwrap_used, reason = "a scenario that cannot be run fails")]

use safetensors::{Dtype, SafeTensors, serialize_to_file, tensor::TensorView};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tsnode_kernels::{
    engine::{Engine, EngineConfig, Input, Output, Slice, Threads},
    source::ModelSource,
};
use tsnode_protocol::{KvDtype, RequestId, Token};

const UP: &str = "model.layers.0.mlp.up_proj.weight";
const NORM: &str = "model.layers.1.input_layernorm.weight";

/// Tensors by name, as a file has them.
type FolderTensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// A copy of a reference model whose files' tensors are changed; told are a file's name and what is in it.
fn changed(model: &str, change: impl Fn(&str, &mut FolderTensors)) -> TempDir {
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

fn read(path: &PathBuf) -> FolderTensors {
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

const INDEX: &str = "model.safetensors.index.json";
const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];

/// What a folder's model says to some tokens.
fn logits(folder: &Path) -> Vec<f32> {
    let source = ModelSource::open(folder).unwrap();
    let config = EngineConfig { threads: Threads::together(1), pool_bytes: 1 << 20, kv_dtype: KvDtype::F32 };
    let mut engine = Engine::new(config).unwrap();
    let stage = engine.load(source.load_stage(source.card().shape.all_layers()).unwrap()).unwrap();
    let request = RequestId([1; 16]);
    engine.admit(stage, request, 3).unwrap();
    let slice = [Slice { request, start: 0, len: 3 }];
    engine.forward(stage, &slice, Input::Tokens(&[5, 6, 7].map(Token)), Output::Logits { rows: &[2] }).unwrap().to_vec()
}

/// The model in two files, as it is; which file its index says `tensor` is in.
fn two_files(tensor: &str) -> (TempDir, serde_json::Value, &'static str) {
    let folder = changed("llama3-rope", |_, _| ());
    let index: serde_json::Value = serde_json::from_slice(&std::fs::read(folder.path().join(INDEX)).unwrap()).unwrap();
    let file = SHARDS.into_iter().find(|file| index["weight_map"][tensor] == *file).unwrap();
    (folder, index, file)
}

/// The same with another copy of a tensor, all zeros, in the file that the index does not name.
fn copied(tensor: &str) -> (TempDir, serde_json::Value) {
    let (_, index, file) = two_files(tensor);
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/reference/llama3-rope").join(file);
    let (dtype, shape, bytes) = read(&from)[tensor].clone();
    let folder = changed("llama3-rope", |name, tensors| {
        if name != file {
            tensors.insert(tensor.to_owned(), (dtype, shape.clone(), vec![0; bytes.len()]));
        }
    });
    (folder, index)
}

#[test]
fn of_two_copies_of_a_tensor_the_one_of_the_index_counts() {
    // One is in the first file, one in the last: whichever is read later, neither is chosen for that.
    let (whole, _, _) = two_files(UP);
    let expected = logits(whole.path());
    for tensor in [UP, NORM, "model.norm.weight", "model.embed_tokens.weight"] {
        let (folder, mut index) = copied(tensor);
        assert!(logits(folder.path()) == expected, "{tensor}");
        let source = ModelSource::open(folder.path()).unwrap();
        assert!(source.notes().iter().any(|note| note.contains(tensor)), "{:?}", source.notes());
        // The other copy makes another model, which goes by another name.
        let file = SHARDS.into_iter().find(|file| index["weight_map"][tensor] != *file).unwrap();
        index["weight_map"][tensor] = file.into();
        std::fs::write(folder.path().join(INDEX), index.to_string()).unwrap();
        let other = ModelSource::open(folder.path()).unwrap();
        assert_ne!(other.card().id, source.card().id, "{tensor}");
        assert!(logits(folder.path()) != expected, "{tensor}");
    }
}

#[test]
fn of_two_copies_of_a_tensor_without_an_index_neither_counts() {
    for tensor in [UP, NORM] {
        let (folder, mut index) = copied(tensor);
        index["weight_map"].as_object_mut().unwrap().remove(tensor);
        std::fs::write(folder.path().join(INDEX), index.to_string()).unwrap();
        refused(folder.path(), &[tensor, SHARDS[0], SHARDS[1], "weight_map"]);
        std::fs::remove_file(folder.path().join(INDEX)).unwrap();
        refused(folder.path(), &[tensor, SHARDS[0], SHARDS[1], "weight_map"]);
    }
}

#[test]
fn numbered_files_need_no_index() {
    let (folder, _, _) = two_files(UP);
    let expected = logits(folder.path());
    let id = ModelSource::open(folder.path()).unwrap().card().id;
    std::fs::remove_file(folder.path().join(INDEX)).unwrap();
    assert!(logits(folder.path()) == expected);
    assert_eq!(ModelSource::open(folder.path()).unwrap().card().id, id);
    // One of them stands for all.
    assert!(logits(&folder.path().join(SHARDS[1])) == expected);
    std::fs::remove_file(folder.path().join(SHARDS[0])).unwrap();
    refused(folder.path(), &[SHARDS[0], "missing", "2 files"]);

    let single = changed("llama-gqa", |_, _| ());
    let (expected, file) = (logits(single.path()), single.path().join("model.safetensors"));
    for name in ["model-00001-of-00001.safetensors", "weights.safetensors"] {
        std::fs::rename(&file, single.path().join(name)).unwrap();
        assert!(logits(single.path()) == expected, "{name}");
        std::fs::rename(single.path().join(name), &file).unwrap();
    }
    std::fs::rename(&file, single.path().join("a.safetensors")).unwrap();
    std::fs::copy(single.path().join("a.safetensors"), single.path().join("b.safetensors")).unwrap();
    refused(single.path(), &["a.safetensors, b.safetensors", "model.safetensors"]);
    for name in ["a.safetensors", "b.safetensors"] {
        std::fs::remove_file(single.path().join(name)).unwrap();
    }
    std::fs::write(single.path().join("pytorch_model.bin"), b"").unwrap();
    refused(single.path(), &["pytorch_model.bin", "model.safetensors"]);
}

/// As transformers reads it: the whole file comes first.
#[test]
fn a_whole_file_counts_beside_an_index_of_others() {
    let folder = changed("llama-gqa", |_, _| ());
    let expected = logits(folder.path());
    let stale = [
        r#"{"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}"#,
        r#"{"weight_map": {}}"#,
        r#"{"weight_map": "#,
    ];
    for stale in stale {
        std::fs::write(folder.path().join(INDEX), stale).unwrap();
        assert!(logits(folder.path()) == expected, "{stale}");
        let notes = ModelSource::open(folder.path()).unwrap().notes().join("\n");
        assert!(notes.contains(INDEX) && notes.contains("is not read"), "{notes}");
    }
    // An index of that very file says nothing else.
    std::fs::write(folder.path().join(INDEX), r#"{"weight_map": {"model.norm.weight": "model.safetensors"}}"#).unwrap();
    assert!(logits(folder.path()) == expected);
    assert_eq!(ModelSource::open(folder.path()).unwrap().notes(), [""; 0]);
}

#[test]
fn an_index_may_name_files_in_a_folder_within() {
    let (folder, mut index, _) = two_files(UP);
    let expected = logits(folder.path());
    std::fs::create_dir_all(folder.path().join("sub/er")).unwrap();
    for file in SHARDS {
        std::fs::rename(folder.path().join(file), folder.path().join("sub/er").join(file)).unwrap();
    }
    for file in index["weight_map"].as_object_mut().unwrap().values_mut() {
        *file = format!("./sub//er/{}", file.as_str().unwrap()).into();
    }
    std::fs::write(folder.path().join(INDEX), index.to_string()).unwrap();
    assert!(logits(folder.path()) == expected);
    std::fs::remove_file(folder.path().join("sub/er").join(SHARDS[1])).unwrap();
    refused(folder.path(), &["sub/er", SHARDS[1], "missing"]);
    for out in ["../x.safetensors", "sub/../../x.safetensors", "/x.safetensors", "sub\\x.safetensors", ".", "", "sub"] {
        index["weight_map"][UP] = out.into();
        std::fs::write(folder.path().join(INDEX), index.to_string()).unwrap();
        let error = ModelSource::open(folder.path()).err().unwrap().to_string();
        assert!(error.contains(INDEX) || (out == "sub" && error.contains("not a file")), "{out}: {error}");
    }
}

#[test]
fn a_broken_index_is_named_and_what_is_wrong_with_it() {
    let (folder, _, _) = two_files(UP);
    let cases = [
        ("", "ends in the middle"),
        (r#"{"weight_map": {"a": "#, "ends in the middle"),
        (r#"{"weight_map" {}}"#, "line 1"),
        ("{}", "weight_map"),
        (r#"{"weight_map": {"a": 7}}"#, "weight_map"),
        (r#"{"weight_map": {}}"#, "weight_map"),
    ];
    for (index, said) in cases {
        std::fs::write(folder.path().join(INDEX), index).unwrap();
        refused(folder.path(), &[INDEX, said, "again"]);
    }
}

#[test]
fn a_byte_order_mark_is_no_part_of_a_small_file() {
    let (folder, _, _) = two_files(UP);
    let expected = ModelSource::open(folder.path()).unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", INDEX] {
        let path = folder.path().join(name);
        let Ok(text) = std::fs::read(&path) else { continue };
        std::fs::write(&path, [b"\xEF\xBB\xBF", &text[..]].concat()).unwrap();
    }
    let marked = ModelSource::open(folder.path()).unwrap();
    assert_eq!(marked.card().id, expected.card().id);
    for name in ["config.json", "tokenizer.json"] {
        assert_eq!(marked.file(name), expected.file(name), "others are given it without the mark");
    }
}

/// Python writes and reads these; JSON has no word for them.
#[test]
fn numbers_that_only_python_has_are_read_where_nobody_needs_them() {
    let folder = changed("llama-gqa", |_, _| ());
    let path = folder.path().join("config.json");
    let config = std::fs::read_to_string(&path).unwrap();
    let with = |more: &str| std::fs::write(&path, config.replacen('{', &format!("{{{more},"), 1)).unwrap();
    with(r#""initializer_range": NaN, "length_penalty": -Infinity, "prefix": "NaN \" Infinity""#);
    let source = ModelSource::open(folder.path()).unwrap();
    let kept: serde_json::Value = serde_json::from_slice(source.file("config.json").unwrap()).unwrap();
    assert_eq!(kept["prefix"], "NaN \" Infinity");
    with(r#""rms_norm_eps": Infinity"#);
    // Of two values of a key Python takes the last.
    ModelSource::open(folder.path()).unwrap();
    std::fs::write(&path, config.replace("1e-05", "Infinity")).unwrap();
    refused(folder.path(), &["config.json", "rms_norm_eps", "Infinity"]);
}

/// Tensors of experts that are missing, or of other sizes than the configuration says, are named before anything is computed.
#[test]
fn experts_that_do_not_fit_are_named() {
    type Case = (&'static str, &'static str, fn(&mut (Dtype, Vec<usize>, Vec<u8>)));
    let cases: [Case; 7] = [
        ("qwen3moe-fused", "model.layers.1.mlp.experts.gate_up_proj", |t| t.1 = vec![t.1[0] * 2, t.1[1] / 2, t.1[2]]),
        ("qwen3moe-fused", "model.layers.1.mlp.experts.down_proj", |t| t.1 = vec![t.1[0] * t.1[1], t.1[2]]),
        ("qwen3moe-fused", "model.layers.0.mlp.gate.weight", |t| t.1.reverse()),
        ("olmoe-norms", "model.layers.2.mlp.experts.7.down_proj.weight", |t| t.1.reverse()),
        ("olmoe-norms", "model.layers.0.self_attn.q_norm.weight", |t| t.1 = vec![1, t.1[0]]),
        ("mixtral-window", "model.layers.1.block_sparse_moe.experts.3.w2.weight", |t| t.1.insert(0, 1)),
        ("qwen2moe-every-other", "model.layers.1.mlp.shared_expert_gate.weight", |t| t.1.reverse()),
    ];
    for (model, tensor, change) in cases {
        let folder = changed(model, |_, tensors| change(tensors.get_mut(tensor).unwrap()));
        refused(folder.path(), &[tensor, "shape"]);
        let folder = changed(model, |_, tensors| drop(tensors.remove(tensor).unwrap()));
        let error = ModelSource::open(folder.path()).err().unwrap().to_string();
        assert!(error.contains("is missing"), "{error}");
    }
    let folder = changed("mixtral-window", |_, _| ());
    let path = folder.path().join("config.json");
    let config = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, config.replace("\"num_local_experts\": 4", "\"num_local_experts\": 5")).unwrap();
    refused(folder.path(), &["model.layers.0.block_sparse_moe.gate.weight", "[4, 32]", "[5, 32]"]);
}

#[test]
fn models_as_they_are_published_need_no_note() {
    let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/reference");
    let folders = std::fs::read_dir(reference).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    let sources = folders.map(|folder| ModelSource::open(&folder).unwrap()).chain([ModelSource::embedded().unwrap()]);
    let notes: Vec<String> = sources.flat_map(|source| source.notes().to_vec()).collect();
    assert_eq!(notes, [""; 0]);
}

#[test]
fn what_a_configuration_leaves_open_is_said() {
    let folder = changed("llama-gqa", |_, _| ());
    let path = folder.path().join("config.json");
    let config = std::fs::read_to_string(&path).unwrap();
    let expected = logits(folder.path());
    std::fs::write(&path, config.replace("\"model_type\": \"llama\",", "\"frobnicate\": 7,")).unwrap();
    let notes = ModelSource::open(folder.path()).unwrap().notes().join("\n");
    assert!(notes.contains("model_type") && notes.contains("frobnicate"), "{notes}");
    assert!(logits(folder.path()) == expected);
    std::fs::write(&path, config.replacen('{', "{\"quantization_config\": {\"quant_method\": \"gptq\"},", 1)).unwrap();
    refused(folder.path(), &["config.json", "quantization_config", "gptq"]);
}
