//! What a file says of experts and is not so: their sizes, kinds, places, names, numbers and counts. Refused, or served; without a panic,
//! and within the memory that the files pay for.
#![expect(clippy::unwrap_used, reason = "a scenario that cannot be run fails")]

use crate::counting::alone;
use crate::loader_bounds::{Files, folder, odd, serve_files};
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";

/// Mixtures: all of a layer in one tensor, and in MXFP4; each expert in tensors of its own; beside what all rows pass; behind sigmoids.
static MIXTURES: LazyLock<[Files; 8]> = LazyLock::new(|| {
    [
        "reference/qwen3moe-fused",
        "reference/gptoss-sinks",
        "reference/qwen3moe-dense-between",
        "reference/qwen2moe-every-other",
        "reference/mixtral-window",
        "reference/olmoe-norms",
        "reference/glm4moe-sigmoid",
        "reference/gemma4-experts",
    ]
    .map(folder)
});

/// What says how many experts there are, and which layers have some; beside all that is called after them.
const COUNTS: [&str; 6] = [
    "moe_intermediate_size",
    "first_k_dense_replace",
    "decoder_sparse_step",
    "n_group",
    "topk_group",
    "num_hidden_layers",
];

/// A model that something is done to.
struct Model {
    config: Map<String, Value>,
    header: Map<String, Value>,
    data: Vec<u8>,
}

impl Model {
    fn of(files: &Files) -> Self {
        let (told, rest) = files[WEIGHTS].split_first_chunk::<8>().unwrap();
        let (header, data) = rest.split_at(u64::from_le_bytes(*told) as usize);
        let config = serde_json::from_slice(&files[CONFIG]).unwrap();
        Self { config, header: serde_json::from_slice(header).unwrap(), data: data.to_vec() }
    }

    /// Names of experts' tensors, and of those that choose among them.
    fn names(&self) -> Vec<String> {
        let is_meant = |name: &&String| ["expert", "router", ".gate."].iter().any(|part| name.contains(part));
        self.header.keys().filter(is_meant).cloned().collect()
    }

    /// As files, beside those that are as they were.
    fn files(&self, others: &Files) -> Files {
        let header = serde_json::to_vec(&self.header).unwrap();
        let mut files = others.clone();
        let bytes = [&(header.len() as u64).to_le_bytes()[..], &header, &self.data].concat();
        files.insert(WEIGHTS.to_owned(), bytes);
        files.insert(CONFIG.to_owned(), serde_json::to_vec(&self.config).unwrap());
        files
    }
}

/// Something done to experts.
#[derive(Clone, Debug)]
enum ExpertChange {
    /// Other sizes of as many numbers.
    Shape(Index, usize),
    /// Another kind of as many bytes.
    Dtype(Index, usize),
    /// One is where another is, and the other where it was.
    Swap(Index, Index),
    /// Another expert's, or nobody's.
    Name(Index, u64),
    /// A byte of one.
    Byte(Index, Index, u8),
    /// Another count.
    Count(Index, u64),
}

fn change() -> impl Strategy<Value = ExpertChange> {
    let place = any::<Index>;
    prop_oneof![
        3 => (place(), 0..5_usize).prop_map(|(at, how)| ExpertChange::Shape(at, how)),
        1 => (place(), 0..4_usize).prop_map(|(at, how)| ExpertChange::Dtype(at, how)),
        2 => (place(), place()).prop_map(|(at, other)| ExpertChange::Swap(at, other)),
        2 => (place(), prop_oneof![0..9_u64, odd()]).prop_map(|(at, number)| ExpertChange::Name(at, number)),
        2 => (place(), place(), any::<u8>()).prop_map(|(at, which, byte)| ExpertChange::Byte(at, which, byte)),
        3 => (place(), prop_oneof![0..9_u64, odd()]).prop_map(|(at, number)| ExpertChange::Count(at, number)),
    ]
}

/// Sizes that are as many numbers.
fn reshaped(shape: &[u64], how: usize) -> Vec<u64> {
    match (how, shape) {
        (0, _) => shape.iter().rev().copied().collect(),
        (1, [first, second, others @ ..]) => [&[first * second][..], others].concat(),
        (2, _) => [shape, &[1]].concat(),
        (3, [first, others @ .., last]) if first.is_multiple_of(2) => [&[first / 2][..], others, &[last * 2]].concat(),
        _ => [&[1][..], shape].concat(),
    }
}

/// A kind whose numbers have as many bytes.
fn alike(dtype: &str, how: usize) -> &'static str {
    match dtype {
        "U8" => ["I8", "BOOL", "F8_E4M3", "U8"][how],
        "F32" => ["I32", "U32", "F32", "F32"][how],
        _ => ["BF16", "I16", "U16", "F16"][how],
    }
}

/// A name with another expert's number in it.
fn renamed(name: &str, number: u64) -> String {
    match name.split_once("experts.") {
        Some((before, after)) => {
            let part = after.trim_start_matches(|c: char| c.is_ascii_digit());
            format!("{before}experts.{number}{part}")
        }
        None => format!("{name}.{number}"),
    }
}

impl ExpertChange {
    fn apply(&self, model: &mut Model) {
        let names = model.names();
        match self {
            Self::Shape(at, how) => {
                let entry = &mut model.header[at.get(&names)];
                let shape: Vec<u64> = entry["shape"].as_array().unwrap().iter().filter_map(Value::as_u64).collect();
                entry["shape"] = json!(reshaped(&shape, *how));
            }
            Self::Dtype(at, how) => {
                let entry = &mut model.header[at.get(&names)];
                entry["dtype"] = json!(alike(entry["dtype"].as_str().unwrap(), *how));
            }
            Self::Swap(at, other) => {
                let (at, other) = (at.get(&names), other.get(&names));
                let (one, two) = (model.header[at].clone(), model.header[other].clone());
                model.header.insert(at.clone(), two);
                model.header.insert(other.clone(), one);
            }
            Self::Name(at, number) => {
                let name = at.get(&names);
                let entry = model.header.remove(name).unwrap();
                model.header.insert(renamed(name, *number), entry);
            }
            Self::Byte(at, which, byte) => {
                let range = &model.header[at.get(&names)]["data_offsets"];
                let [from, to] = [0_usize, 1].map(|n| range[n].as_u64().unwrap() as usize);
                *which.get_mut(&mut model.data[from..to]) = *byte;
            }
            Self::Count(at, number) => {
                let is_meant = |key: &&String| key.contains("expert") || COUNTS.contains(&key.as_str());
                let keys: Vec<String> = model.config.keys().filter(is_meant).cloned().collect();
                model.config.insert(at.get(&keys).clone(), json!(*number));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_experts_are_refused_or_served(
        which in any::<Index>(),
        changes in prop::collection::vec(change(), 1..4),
    ) {
        let _alone = alone();
        let files = which.get(&*MIXTURES);
        let mut model = Model::of(files);
        changes.iter().for_each(|change| change.apply(&mut model));
        let _ = serve_files(&model.files(files));
    }
}

#[test]
fn experts_of_other_sizes_are_refused_by_name() {
    let _alone = alone();
    for files in &*MIXTURES {
        serve_files(&Model::of(files).files(files)).unwrap();
        let names = Model::of(files).names();
        // Some of each: every expert of every layer is read by the same lines.
        for name in names.iter().filter(|name| name.contains("experts.")).step_by(7) {
            for how in [0, 2] {
                let mut model = Model::of(files);
                let entry = &mut model.header[name];
                let shape: Vec<u64> = entry["shape"].as_array().unwrap().iter().filter_map(Value::as_u64).collect();
                let other = reshaped(&shape, how);
                if other == shape {
                    continue;
                }
                entry["shape"] = json!(other);
                let error = serve_files(&model.files(files)).unwrap_err();
                assert!(error.contains("experts"), "{name}, {other:?} in place of {shape:?}: {error}");
            }
        }
    }
}
