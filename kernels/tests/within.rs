//! Models that also see: the part that reads is the model that it is by itself, whatever the tensors around it are called.
#![expect(clippy::unwrap_used, reason = "a scenario that cannot be run fails")]

use safetensors::{SafeTensors, serialize_to_file};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tsnode_kernels::{
    engine::{Engine, EngineConfig, Input, Output, Slice, Threads},
    source::ModelSource,
};
use tsnode_protocol::{KvDtype, RequestId, Token};

fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/reference").join(name)
}

/// A folder with the model `name` as the text's part of one of `model_type`, its tensors called by `rename`.
fn within(name: &str, model_type: &str, rename: &dyn Fn(&str) -> String) -> tempfile::TempDir {
    let (from, folder) = (reference(name), tempfile::tempdir().unwrap());
    let mut text: Value = serde_json::from_slice(&std::fs::read(from.join("config.json")).unwrap()).unwrap();
    let tied = text["tie_word_embeddings"].take();
    let config = json!({"model_type": model_type, "architectures": ["Some"], "text_config": text,
        "vision_config": {"hidden_size": 8}, "tie_word_embeddings": tied});
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(from.join(file), folder.path().join(file)).unwrap();
    }
    let bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let renamed = tensors.iter().map(|(name, view)| (rename(name), view));
    serialize_to_file(renamed, None, &folder.path().join("model.safetensors")).unwrap();
    folder
}

fn logits(path: &Path) -> Vec<f32> {
    let source = ModelSource::open(path).unwrap();
    let config = EngineConfig { threads: Threads::together(1), pool_bytes: 16 << 20, kv_dtype: KvDtype::F32 };
    let mut engine = Engine::new(config).unwrap();
    let stage = engine.load(source.load_stage(source.card().shape.all_layers()).unwrap()).unwrap();
    let (request, tokens) = (RequestId([1; 16]), [5, 80, 7, 200].map(Token));
    engine.admit(stage, request, 4).unwrap();
    let slice = [Slice { request, start: 0, len: 4 }];
    engine.forward(stage, &slice, Input::Tokens(&tokens), Output::Logits { rows: &[0, 3] }).unwrap().to_vec()
}

#[test]
fn the_text_of_a_model_that_sees_is_the_model() {
    let of_four = |name: &str| format!("language_model.{name}");
    let of_five = |name: &str| match name.strip_prefix("model.") {
        Some(rest) => format!("model.language_model.{rest}"),
        None => name.to_owned(),
    };
    let renames: [&dyn Fn(&str) -> String; 2] = [&of_four, &of_five];
    for (name, model_type) in [
        ("gemma3-local", "gemma3"),
        ("ministral3-yarn", "mistral3"),
        ("gemma4-experts", "gemma4"),
        ("gemma4-shared", "gemma4"),
    ] {
        let alone = logits(&reference(name));
        for rename in renames {
            assert_eq!(logits(within(name, model_type, rename).path()), alone, "{name}");
        }
    }
}
