//! Which layers of a model are alike to the kernels that compute them.

use super::ModelSource;
use crate::weights::{TensorData, WeightsError};
use std::collections::BTreeSet;
use tsnode_protocol::LayerRange;

/// What kernels are asked for by a layer, part by part: two layers of which each part is somewhere else too bring nothing new.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LayerPart {
    /// Attention, and how queries and keys turn.
    Attention {
        /// Tokens that a row sees.
        window: Option<usize>,
        /// Whether heads turn otherwise than in most layers.
        turns_otherwise: bool,
        /// How many heads of keys and values, and how wide.
        heads: (usize, usize),
        /// Whether there is no matrix for values.
        values_are_keys: bool,
    },
    /// A matrix: of a mixture of experts or not, which one, counted from the layer's last, and how its numbers are stored.
    Matrix { experts: bool, place: usize, stored: String },
}

impl ModelSource {
    /// Of some layers the first, the last, and between them one of each kind that is not among those before it. In their order.
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

    /// Reads next to nothing of the layer's weights.
    fn layer_parts(&self, layer: u32) -> Result<BTreeSet<LayerPart>, WeightsError> {
        let (c, place, experts) = (&self.config, layer as usize, self.has_experts(layer));
        let heads = c.heads_of(place);
        let attention = LayerPart::Attention {
            window: c.windows.get(place).copied().flatten(),
            turns_otherwise: c.other_rope.as_ref().is_some_and(|other| other.layers.get(place) == Some(&true)),
            heads: (heads.count, heads.parts),
            values_are_keys: c.values_are_keys(place),
        };
        let mut parts = BTreeSet::from([attention]);
        for stage in self.cut(&self.checkpoint, LayerRange { start: layer, end: layer + 1 }, 1)? {
            // A head comes before the layer's own.
            for (place, weight) in stage.weights().into_iter().rev().enumerate() {
                let stored = match weight.tensor().view() {
                    TensorData::Dense(matrix) => format!("{:?}", matrix.dtype()),
                    TensorData::Quantised(blocks) => format!("{:?}", blocks.kind()),
                    TensorData::Coded(coded) => format!("coded {:?}", coded.dtype()),
                };
                parts.insert(LayerPart::Matrix { experts, place, stored });
            }
        }
        Ok(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn layers_between_the_ends_are_chosen_where_they_are_of_another_kind() {
        let chosen = |name: &str, layers: Option<(u32, u32)>| {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/reference").join(name);
            let source = ModelSource::open(&folder).unwrap();
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
    }
}
