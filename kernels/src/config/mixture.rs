//! Mixtures of experts in `config.json`: which layers have one, and what a row passes there.

use super::{Keys, ModelConfigError};
use tsnode_protocol::limits;

/// A mixture of experts, which layers have in place of an MLP (Shazeer et al. 2017).
#[derive(Clone, Debug, PartialEq)]
pub struct Mixture {
    /// Experts of a layer.
    pub experts: usize,
    /// How many of them a row passes.
    pub used: usize,
    /// Width of an expert's MLP.
    pub width: usize,
    /// Width of the expert that every row passes beside these, where there is one.
    pub shared: Option<usize>,
    /// Whether the chances of those used are divided by their sum.
    pub normed: bool,
    /// Where chances are by themselves (a sigmoid each, chosen by them and a bias), what those used are multiplied by.
    pub sigmoid: Option<f32>,
    /// Which layers have it; the others have an MLP.
    pub layers: Vec<bool>,
    /// How an expert's gate bends, where it is not by SiLU.
    pub clamped: Option<Clamped>,
}

/// A gate that ends somewhere: `min(g, limit) · σ(sharpness · min(g, limit))`, times the other half between the limits and 1
/// more (gpt-oss).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clamped {
    /// Of the sigmoid.
    pub sharpness: f32,
    /// Largest gate, and largest size of the other half.
    pub limit: f32,
}

/// Experts of a layer.
const EXPERTS: &str = "num_experts";
/// Experts that a row passes; Gemma 4 calls them otherwise.
const USED: [&str; 2] = ["num_experts_per_tok", "top_k_experts"];

impl Mixture {
    /// Widest MLP.
    pub(crate) const WIDEST: usize = 1 << 22;

    /// Of all layers, with experts as wide as `width` says. Chances are used as they are.
    pub(crate) fn read(layers: usize, keys: &Keys, width: &'static str) -> Result<Self, ModelConfigError> {
        // Mixtral's name for it; transformers 5 writes it for other families too.
        let said = [EXPERTS, "num_local_experts", "n_routed_experts"]
            .into_iter()
            .find(|key| !keys.is_null(key))
            .unwrap_or(EXPERTS);
        let needed = |key| keys.count(key)?.ok_or(ModelConfigError::Missing(key));
        let of_row = USED.into_iter().find(|key| !keys.is_null(key)).unwrap_or(USED[0]);
        let (experts, used) = (needed(said)?, needed(of_row)?);
        if experts > limits::EXPERTS as usize {
            return Err(keys.refusal(said));
        }
        if used > experts {
            return Err(keys.refusal(of_row));
        }
        let width = Self::width(keys, width)?.ok_or(ModelConfigError::Missing(width))?;
        let layers = vec![true; layers];
        Ok(Self { experts, used, width, shared: None, normed: false, sigmoid: None, layers, clamped: None })
    }

    /// What Qwen's files say more: which layers have it, and whether chances are divided by their sum.
    pub(crate) fn of_qwen(mut self, keys: &Keys) -> Result<Self, ModelConfigError> {
        const DENSE: &str = "mlp_only_layers";
        self.normed = keys.flag("norm_topk_prob")?.unwrap_or(false);
        let every = keys.count("decoder_sparse_step")?.unwrap_or(1);
        let dense = keys.numbers(DENSE)?.unwrap_or_default();
        for (index, layer) in self.layers.iter_mut().enumerate() {
            *layer = (index + 1).is_multiple_of(every) && !dense.contains(&(index as f32));
        }
        if !self.layers.contains(&true) {
            return Err(keys.refusal(DENSE));
        }
        Ok(self)
    }

    /// The width that `key` says, if it does.
    pub(crate) fn width(keys: &Keys, key: &'static str) -> Result<Option<usize>, ModelConfigError> {
        match keys.count(key)? {
            Some(width) if width > Self::WIDEST => Err(keys.refusal(key)),
            width => Ok(width),
        }
    }

    /// Width of all MLPs that a row passes in a layer that has it.
    #[must_use]
    pub fn passed(&self) -> usize {
        self.used * self.width + self.shared.unwrap_or(0)
    }

    /// Part of the layers that have it.
    #[must_use]
    pub fn part(&self) -> f64 {
        self.layers.iter().filter(|has| **has).count() as f64 / self.layers.len().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{ModelConfig, ModelConfigError};

    const MIXTURE: &str = r#"{"model_type":"qwen3_moe","num_hidden_layers":4,"hidden_size":8,"intermediate_size":16,
        "num_attention_heads":2,"vocab_size":10,"max_position_embeddings":64,"num_experts":6,"num_experts_per_tok":2,
        "moe_intermediate_size":5"#;

    fn with(more: &str) -> Result<ModelConfig, ModelConfigError> {
        ModelConfig::parse(format!("{MIXTURE}{more}}}").as_bytes())
    }

    #[test]
    fn layers_without_experts_are_those_that_are_named_and_those_between() {
        let layers = |more: &str| with(more).unwrap().mixture.unwrap().layers;
        assert_eq!(layers(""), [true; 4]);
        assert_eq!(layers(r#","mlp_only_layers":[0,2]"#), [false, true, false, true]);
        assert_eq!(layers(r#","decoder_sparse_step":2,"mlp_only_layers":[1]"#), [false, false, false, true]);
        // Two experts of five, or sixteen.
        let shape = with(r#","mlp_only_layers":[0,2]"#).unwrap().shape(0, 0, 0);
        assert_eq!((shape.intermediate, shape.experts.map(|e| (e.count, e.used))), (13, Some((6, 2))));
    }

    /// Its name says 30 thousand million numbers, of which a token passes three.
    #[test]
    fn a_published_shape_adds_up_to_its_name() {
        let config = r#"{"model_type":"qwen3_moe","num_hidden_layers":48,"hidden_size":2048,"intermediate_size":6144,
            "num_attention_heads":32,"num_key_value_heads":4,"head_dim":128,"vocab_size":151936,"num_experts":128,
            "max_position_embeddings":40960,"num_experts_per_tok":8,"moe_intermediate_size":768,"norm_topk_prob":true}"#;
        let config = ModelConfig::parse(config.as_bytes()).unwrap();
        let shape = config.shape_in_16_bit();
        let millions = |bytes: f64| (bytes / 2e6) as u64;
        assert_eq!(millions(shape.stage_bytes(shape.all_layers()) as f64), 30_531);
        let tables = (shape.embed_bytes + shape.head_bytes) as f64;
        assert_eq!(millions(48.0 * shape.active_layer_bytes(1.0) + tables), 3_352);
        assert_eq!(config.layer_numbers(), (shape.active_layer_bytes(1.0) / 2.0) as u64);
    }

    #[test]
    fn what_no_mixture_says_is_refused_by_its_name() {
        for (more, named) in [
            (r#","num_experts":0"#, "num_experts"),
            (r#","num_experts":100000"#, "num_experts"),
            (r#","num_experts_per_tok":7"#, "num_experts_per_tok"),
            (r#","num_experts_per_tok":null"#, "num_experts_per_tok"),
            (r#","moe_intermediate_size":4194305"#, "moe_intermediate_size"),
            (r#","mlp_only_layers":[0,1,2,3]"#, "mlp_only_layers"),
            (r#","decoder_sparse_step":0"#, "decoder_sparse_step"),
            (r#","n_shared_experts":1"#, "n_shared_experts"),
        ] {
            let error = with(more).unwrap_err().to_string();
            assert!(error.contains(named), "{more}: {error}");
        }
    }
}
