//! Layers that keep a state of a sequence in place of keys and values: gated delta rules behind a short convolution (Yang et al.
//! 2024). One stage holds a model that has some: plans count layers with keys and values only.

use super::{Keys, ModelConfig, ModelConfigError};
use crate::pages::{PAGE_NUMBERS, StateLayout};

/// Gated delta rules, and which layers have one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeltaNet {
    /// Which layers; the others have attention.
    pub layers: Vec<bool>,
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, several to each of those: each has a matrix.
    pub value_heads: usize,
    /// Channels of a head of keys.
    pub key_dim: usize,
    /// Channels of a head of values.
    pub value_dim: usize,
    /// Tokens that the convolution sees.
    pub kernel: usize,
}

const TYPES: &str = "layer_types";
const LINEAR: &str = "linear_attention";
const FULL: &str = "full_attention";
/// Most heads, and most channels of one.
const MOST: usize = 1024;
/// Most tokens of a convolution.
const LONGEST: usize = 64;

impl DeltaNet {
    /// As published models have it where nothing is said.
    pub(crate) fn read(layers: usize, keys: &Keys) -> Result<Self, ModelConfigError> {
        let count = |key: &'static str, usual: usize, most: usize| -> Result<usize, ModelConfigError> {
            let found = keys.count(key)?.unwrap_or(usual);
            if found > most { Err(keys.refusal(key)) } else { Ok(found) }
        };
        let net = Self {
            layers: linear_layers(layers, keys)?,
            key_heads: count("linear_num_key_heads", 16, MOST)?,
            value_heads: count("linear_num_value_heads", 32, MOST)?,
            key_dim: count("linear_key_head_dim", 128, MOST)?,
            value_dim: count("linear_value_head_dim", 128, MOST)?,
            kernel: count("linear_conv_kernel_dim", 4, LONGEST)?,
        };
        if !net.value_heads.is_multiple_of(net.key_heads) {
            return Err(keys.refusal("linear_num_value_heads"));
        }
        let StateLayout { tail, matrix, .. } = net.states();
        if matrix > PAGE_NUMBERS {
            return Err(keys.refusal("linear_value_head_dim"));
        }
        if tail > PAGE_NUMBERS || net.kernel < 2 {
            return Err(keys.refusal("linear_conv_kernel_dim"));
        }
        Ok(net)
    }

    /// Heads of values to one of keys.
    #[must_use]
    pub fn shared_by(&self) -> usize {
        self.value_heads / self.key_heads
    }

    /// Channels that the convolution passes: queries, keys, values.
    #[must_use]
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// Channels of all heads of values.
    #[must_use]
    pub fn values(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Layers that have one.
    #[must_use]
    pub fn count(&self) -> usize {
        self.layers.iter().filter(|has| **has).count()
    }

    /// The first of the model's layers that one of a plan's stands for: those with a state come before the one with keys and values
    /// that they are counted with.
    pub(super) fn first_of(&self, block: usize) -> usize {
        let mut full = self.layers.iter().enumerate().filter(|(_, linear)| !**linear);
        block.checked_sub(1).and_then(|before| full.nth(before)).map_or(0, |(layer, _)| layer + 1)
    }

    /// What its layers keep of a sequence: a group is a head of keys and the heads of values that share it.
    #[must_use]
    pub fn states(&self) -> StateLayout {
        StateLayout {
            layers: self.count(),
            groups: self.key_heads,
            tail: (self.kernel - 1) * (self.channels() / self.key_heads),
            matrices: self.shared_by(),
            matrix: self.key_dim * self.value_dim,
        }
    }

    /// Rows of a layer's matrices, and columns of the last.
    fn width(&self) -> usize {
        self.channels() + 2 * self.values() + 2 * self.value_heads
    }
}

/// Those that `layer_types` names; without it all but each fourth, or as often as is said.
fn linear_layers(layers: usize, keys: &Keys) -> Result<Vec<bool>, ModelConfigError> {
    const EVERY: &str = "full_attention_interval";
    let types = keys.words(TYPES);
    let every = keys.count(EVERY)?.unwrap_or(4);
    let (key, linear): (_, Vec<bool>) = if keys.is_null(TYPES) {
        (EVERY, (0..layers).map(|layer| !(layer + 1).is_multiple_of(every)).collect())
    } else {
        (TYPES, types.iter().map(|layer| *layer == LINEAR).collect())
    };
    let known = types.iter().all(|layer| [LINEAR, FULL].contains(layer));
    // Plans need a layer with keys and values.
    if !known || linear.len() != layers || !linear.contains(&false) || !linear.contains(&true) {
        return Err(keys.refusal(key));
    }
    Ok(linear)
}

impl ModelConfig {
    /// The layer's place among those with a state, if it is one.
    pub(crate) fn state_place(&self, layer: usize) -> Option<usize> {
        let linear = &self.delta_net.as_ref()?.layers;
        (linear.get(layer) == Some(&true)).then(|| linear[..layer].iter().filter(|has| **has).count())
    }

    /// What layers keep of a sequence beside keys and values.
    pub(crate) fn states(&self) -> StateLayout {
        self.delta_net.as_ref().map(DeltaNet::states).unwrap_or_default()
    }

    /// Rows of the matrices of a layer that has a state in place of attention, and columns of the last.
    pub(super) fn state_width(&self, layer: usize) -> Option<usize> {
        self.state_place(layer)?;
        self.delta_net.as_ref().map(DeltaNet::width)
    }

    /// Numbers of a row beside those that all attention has, where layers have states: what their matrices make of it, together and
    /// apart, and what heads say, before their norm and behind it; of attention that is gated, queries and gates, together and apart.
    pub(crate) fn state_numbers(&self) -> usize {
        let gated = 3 * self.heads * self.head_dim;
        self.delta_net.as_ref().map_or(0, |net| 2 * net.channels() + 4 * net.values() + 4 * net.value_heads + gated)
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{ModelConfig, ModelConfigError};
    use crate::pages::StateLayout;
    use tsnode_protocol::LayerRange;

    /// Qwen3-Next-80B-A3B, as published.
    const LARGE: &str = r#"{"model_type":"qwen3_next","num_hidden_layers":48,"hidden_size":2048,"intermediate_size":5120,
        "num_attention_heads":16,"num_key_value_heads":2,"head_dim":256,"vocab_size":151936,"num_experts":512,
        "max_position_embeddings":262144,"num_experts_per_tok":10,"moe_intermediate_size":512,"norm_topk_prob":true,
        "shared_expert_intermediate_size":512,"partial_rotary_factor":0.25,"rope_theta":10000000,"decoder_sparse_step":1,
        "full_attention_interval":4,"linear_conv_kernel_dim":4,"linear_key_head_dim":128,"linear_num_key_heads":16,
        "linear_num_value_heads":32,"linear_value_head_dim":128,"mlp_only_layers":[],"hidden_act":"silu""#;

    fn with(more: &str) -> Result<ModelConfig, ModelConfigError> {
        ModelConfig::parse(format!("{LARGE}{more}}}").as_bytes())
    }

    #[test]
    fn a_published_shape_adds_up_to_its_name() {
        let config = with("").unwrap();
        assert_eq!(config.notes, [""; 0]);
        assert_eq!((config.blocks(), config.is_whole(), config.rope_dim), (12, true, 64));
        let states = StateLayout { layers: 36, groups: 16, tail: 1536, matrices: 2, matrix: 16_384 };
        assert_eq!((config.states(), config.state_place(3), config.state_place(5)), (states, None, Some(4)));
        // A layer of a plan is one with attention and those with a state before it.
        let of = |start, end| config.layers_of(LayerRange { start, end });
        assert_eq!([of(0, 12), of(0, 1), of(1, 3), of(11, 12)], [0..48, 0..4, 4..12, 44..48]);
        // 80 thousand million numbers, of which a token passes three.
        let shape = config.shape_in_16_bit();
        let thousand_millions = |bytes: f64| (bytes / 2e9) as u64;
        assert_eq!(thousand_millions(shape.stage_bytes(shape.all_layers()) as f64), 79);
        let tables = (shape.embed_bytes + shape.head_bytes) as f64;
        assert_eq!(thousand_millions(12.0 * shape.active_layer_bytes(1.0) + tables), 3);
    }

    #[test]
    fn what_no_state_is_written_for_is_refused_by_its_name() {
        for (more, named) in [
            (r#","linear_num_value_heads":24"#, "linear_num_value_heads"),
            (r#","linear_value_head_dim":256"#, "linear_value_head_dim"),
            (r#","linear_conv_kernel_dim":1"#, "linear_conv_kernel_dim"),
            (r#","linear_conv_kernel_dim":65"#, "linear_conv_kernel_dim"),
            (r#","linear_num_key_heads":0"#, "linear_num_key_heads"),
            (r#","full_attention_interval":49"#, "full_attention_interval"),
            (r#","full_attention_interval":1"#, "full_attention_interval"),
            (r#","layer_types":["linear_attention"]"#, "layer_types"),
        ] {
            let error = with(more).unwrap_err().to_string();
            assert!(error.contains(named), "{more}: {error}");
        }
    }
}
