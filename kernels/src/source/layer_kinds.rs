//! Which layers of a model are alike to the kernels that compute them.

use super::ModelSource;
use crate::{
    linear::Weight,
    load,
    models::{LayerOutline, MixerOutline, ModelStage},
    weights::{TensorData, WeightsError},
};
use std::collections::BTreeSet;
use tsnode_protocol::LayerRange;

/// What kernels are asked for by a layer, part by part: two layers of which each part is somewhere else too bring nothing new.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LayerPart {
    /// Attention, and how queries and keys turn.
    Attention {
        /// Tokens that a row sees.
        window: Option<usize>,
        /// Which of the model's ways to turn.
        rope: usize,
        /// Channels of the keys of all heads, and of one.
        keys: (usize, usize),
        /// Whether there is a matrix for values.
        has_values: bool,
    },
    /// A state in place of keys and values.
    Delta,
    /// A matrix: of which part of the layer, which one of it, and how its numbers are stored.
    Matrix { part: &'static str, place: usize, stored: String },
}

impl LayerPart {
    /// Those of a layer of the model.
    fn all_of(layer: &LayerOutline<'_>) -> BTreeSet<Self> {
        let mixer = match &layer.mixer {
            MixerOutline::Attention(attention) => Self::Attention {
                window: attention.look.window,
                rope: attention.rope,
                keys: (attention.inputs[1].outputs.all, attention.head_dim),
                has_values: attention.has_values,
            },
            MixerOutline::Delta(_) => Self::Delta,
        };
        let matrix = |((part, place), weight)| Self::Matrix { part, place, stored: stored(weight) };
        [mixer].into_iter().chain(layer.matrices().into_iter().map(matrix)).collect()
    }
}

/// How a matrix's numbers are stored.
fn stored(weight: &Weight) -> String {
    match weight.tensor().view() {
        TensorData::Dense(matrix) => format!("{:?}", matrix.dtype()),
        TensorData::Quantised(blocks) => format!("{:?}", blocks.kind()),
        TensorData::Coded(coded) => format!("coded {:?}", coded.dtype()),
    }
}

impl ModelSource {
    /// Of some layers, as plans count them, the first, the last, and between them one of each kind that is not among those before it.
    /// In their order.
    ///
    /// # Errors
    /// When a tensor is missing or misshapen, which [`Self::open`] has found before.
    pub fn one_of_each_kind(&self, layers: LayerRange) -> Result<Vec<u32>, WeightsError> {
        let ends = [layers.start, layers.end.saturating_sub(1).max(layers.start)];
        let mut seen = BTreeSet::new();
        for end in ends {
            seen.extend(self.layer_parts(end)?);
        }
        let mut chosen = BTreeSet::from(ends);
        for layer in layers.iter() {
            let parts = self.layer_parts(layer)?;
            if !parts.is_subset(&seen) {
                chosen.insert(layer);
                seen.extend(parts);
            }
        }
        Ok(chosen.into_iter().collect())
    }

    /// Parts of all of the model's layers that one of a plan's stands for: of one with attention and of those counted with it, which
    /// have a state. Of a model without outlines, which no GPU computes, there are none. Reads next to nothing of the weights.
    fn layer_parts(&self, layer: u32) -> Result<BTreeSet<LayerPart>, WeightsError> {
        let stages = self.cut(&self.checkpoint, LayerRange { start: layer, end: layer + 1 }, 1)?;
        let layers = load::each(&stages).filter_map(ModelStage::outline).flat_map(|outline| outline.layers);
        Ok(layers.flat_map(|layer| LayerPart::all_of(&layer)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::{SafeTensors, serialize_to_file, tensor::TensorView};
    use serde_json::Value;
    use std::fs;
    use std::path::{Path, PathBuf};

    fn reference(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("models/reference").join(name)
    }

    #[test]
    fn layers_between_the_ends_are_chosen_where_they_are_of_another_kind() {
        let chosen = |name: &str, layers: Option<(u32, u32)>| {
            let source = ModelSource::open(&reference(name)).unwrap();
            let all = source.card().shape.all_layers();
            let layers = layers.map_or(all, |(start, end)| LayerRange { start, end });
            (source.one_of_each_kind(layers).unwrap(), all.end)
        };
        let (plain, layers) = chosen("llama-gqa", None);
        assert_eq!(plain, [0, layers - 1]);
        // The third of five has no window, and turns otherwise.
        assert_eq!(chosen("gemma3-local", None).0, [0, 2, 4]);
        assert_eq!(chosen("gemma3-local", Some((1, 4))).0, [1, 2, 3]);
        assert_eq!(chosen("gemma3-local", Some((3, 4))).0, [3]);
        assert_eq!(chosen("olmo3-yarn", None).0, [0, 3], "the last is the one without a window");
        assert_eq!(chosen("qwen3moe-dense-between", None).0, [0, 1, 2]);
        assert_eq!(chosen("qwen2moe-every-other", None).0, [0, 3]);
        assert_eq!(chosen("qwen3next-experts", None).0, [0], "its four layers are one of a plan's");
    }

    /// What is chosen of a model made of layers of Qwen3.5, of which 0 has a state, and 1 and 4 have attention.
    fn chosen_of_hybrid(layers: &[usize]) -> Vec<u32> {
        let (from, folder) = (reference("qwen35-dense"), tempfile::tempdir().unwrap());
        let to = |name: &str| folder.path().join(name);
        for name in ["tokenizer.json", "tokenizer_config.json"] {
            fs::copy(from.join(name), to(name)).unwrap();
        }
        let mut config: Value = serde_json::from_slice(&fs::read(from.join("config.json")).unwrap()).unwrap();
        let types: Vec<Value> = layers.iter().map(|layer| config["layer_types"][*layer].clone()).collect();
        config["num_hidden_layers"] = types.len().into();
        config["layer_types"] = types.into();
        fs::write(to("config.json"), config.to_string()).unwrap();
        let bytes = fs::read(from.join("model.safetensors")).unwrap();
        let all = SafeTensors::deserialize(&bytes).unwrap();
        let mut tensors: Vec<(String, TensorView<'_>)> = Vec::new();
        for (name, tensor) in all.iter() {
            let of_layer = name.strip_prefix("model.layers.").and_then(|name| name.split_once('.'));
            let Some((number, rest)) = of_layer else {
                tensors.push((name.to_owned(), tensor));
                continue;
            };
            let number: usize = number.parse().unwrap();
            let places = layers.iter().enumerate().filter(|(_, layer)| **layer == number);
            tensors.extend(places.map(|(place, _)| (format!("model.layers.{place}.{rest}"), tensor.clone())));
        }
        serialize_to_file(tensors, None, &to("model.safetensors")).unwrap();
        let source = ModelSource::open(folder.path()).unwrap();
        source.one_of_each_kind(source.card().shape.all_layers()).unwrap()
    }

    #[test]
    fn layers_with_a_state_are_of_the_kind_of_the_one_that_they_are_counted_with() {
        assert_eq!(chosen_of_hybrid(&[0, 1, 0, 0, 4, 0, 1]), [0, 2], "how many there are makes no kind");
        assert_eq!(chosen_of_hybrid(&[1, 0, 4, 1, 4]), [0, 1, 3], "only the second has one");
        assert_eq!(chosen_of_hybrid(&[1, 4, 1, 0]), [0, 2], "what comes behind all attention goes with the last");
    }
}
