//! What small models of Gemma 4 (E2B, E4B) have beside others: layers at the end that read the keys and values of layers before
//! them, and inputs of each layer. One stage holds such a model: neither passes from stage to stage.

use super::{DeltaNet, Keys, ModelConfig, ModelConfigError};
use std::ops::Range;
use tsnode_protocol::LayerRange;

/// Layers at the end that have no keys and values of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedKv {
    /// Of each of them, in their order: the layer whose it reads.
    pub of: Vec<usize>,
    /// Width of their MLPs.
    pub intermediate: usize,
}

/// Inputs of each layer, by token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerInputs {
    /// Numbers of a layer.
    pub width: usize,
    /// Tokens of which the table has a row, with the numbers of all layers.
    pub tokens: usize,
}

const SHARED: &str = "num_kv_shared_layers";
const WIDTH: &str = "hidden_size_per_layer_input";
const TOKENS: &str = "vocab_size_per_layer_input";
/// Where nothing is said.
const USUAL_WIDTH: f32 = 256.0;
const USUAL_TOKENS: usize = 262_144;
/// More numbers of a layer no model has.
const MOST: f32 = 65_536.0;

impl SharedKv {
    /// As many as are said, each with the keys and values of the last of its kind before all of them.
    pub(crate) fn read(config: &mut ModelConfig, keys: &Keys) -> Result<(), ModelConfigError> {
        let wide = keys.flag("use_double_wide_mlp")?.unwrap_or(false);
        let shared = keys.optional(SHARED)?.unwrap_or(0) as usize;
        if shared == 0 {
            return Ok(());
        }
        let own = config.layers.checked_sub(shared).ok_or_else(|| keys.refusal(SHARED))?;
        let kind = |layer: usize| config.windows.get(layer).is_some_and(Option::is_some);
        let whose = |layer: usize| (0..own).rev().find(|before| kind(*before) == kind(layer));
        let of: Option<Vec<usize>> = (own..config.layers).map(whose).collect();
        let of = of.ok_or_else(|| keys.refusal(SHARED))?;
        let intermediate = config.intermediate.saturating_mul(if wide { 2 } else { 1 });
        config.shared_kv = Some(Self { of, intermediate });
        Ok(())
    }

    /// Says that a family's forward pass has none.
    pub(crate) fn refuse(keys: &Keys) -> Result<(), ModelConfigError> {
        match keys.optional(SHARED)? {
            None | Some(0) => Ok(()),
            Some(_) => Err(keys.refusal(SHARED)),
        }
    }
}

impl LayerInputs {
    /// As many as 256 numbers where it is not said.
    pub(crate) fn read(config: &mut ModelConfig, keys: &Keys) -> Result<(), ModelConfigError> {
        let tokens = keys.count(TOKENS)?.unwrap_or(USUAL_TOKENS);
        let Some(width) = keys.number_or(WIDTH, USUAL_WIDTH)?.filter(|width| *width != 0.0) else { return Ok(()) };
        if width.fract() != 0.0 || !(1.0..=MOST).contains(&width) {
            return Err(keys.refusal(WIDTH));
        }
        if tokens < config.vocab {
            return Err(keys.refusal(TOKENS));
        }
        config.layer_inputs = Some(Self { width: width as usize, tokens });
        Ok(())
    }
}

impl ModelConfig {
    /// Whether one stage has to hold all of it.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.shared_kv.is_some() || self.layer_inputs.is_some() || self.delta_net.is_some()
    }

    /// Layers as plans count them: those with keys and values of their own. The last one stands for those behind it too, and each
    /// for its part of those that have a state.
    #[must_use]
    pub fn blocks(&self) -> usize {
        let shared = self.shared_kv.as_ref().map_or(0, |shared| shared.of.len());
        self.layers - shared - self.delta_net.as_ref().map_or(0, DeltaNet::count)
    }

    /// The model's layers that one of those stands for, on average.
    pub(super) fn layers_of_a_block(&self) -> f64 {
        self.layers as f64 / self.blocks() as f64
    }

    /// The model's layers that some of a plan's are.
    pub(crate) fn layers_of(&self, blocks: LayerRange) -> Range<usize> {
        let (start, end) = (blocks.start as usize, blocks.end as usize);
        let first = |block| self.delta_net.as_ref().map_or(block, |net| net.first_of(block));
        first(start)..if end == self.blocks() { self.layers } else { first(end) }
    }

    /// The layer whose keys and values a layer reads, if it has none of its own.
    pub(crate) fn kv_of_another(&self, layer: usize) -> Option<usize> {
        let shared = self.shared_kv.as_ref()?;
        shared.of.get(layer.checked_sub(self.blocks())?).copied()
    }

    /// Width of a layer's MLP.
    pub(crate) fn intermediate_of(&self, layer: usize) -> usize {
        let shared = self.shared_kv.as_ref().filter(|_| layer >= self.blocks());
        shared.map_or(self.intermediate, |shared| shared.intermediate)
    }

    /// Numbers of the inputs of all layers, of one token.
    pub(crate) fn input_numbers(&self) -> usize {
        self.layer_inputs.map_or(0, |inputs| self.layers * inputs.width)
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{LayerInputs, ModelConfig, ModelConfigError};
    use tsnode_protocol::LayerRange;

    /// What the published E2B says of its text.
    const SMALL: &str = r#"{"model_type":"gemma4_text","num_hidden_layers":35,"hidden_size":1536,"intermediate_size":6144,
        "num_attention_heads":8,"num_key_value_heads":1,"head_dim":256,"global_head_dim":512,"vocab_size":262144,
        "max_position_embeddings":131072,"sliding_window":512,"num_kv_shared_layers":20,"use_double_wide_mlp":true,
        "hidden_size_per_layer_input":256,"vocab_size_per_layer_input":262144"#;

    fn with(more: &str) -> Result<ModelConfig, ModelConfigError> {
        let kind = |i: usize| if (i + 1).is_multiple_of(5) { "\"full_attention\"" } else { "\"sliding_attention\"" };
        let kinds: Vec<&str> = (0..35).map(kind).collect();
        ModelConfig::parse(format!("{SMALL},\"layer_types\":[{}]{more}}}", kinds.join(",")).as_bytes())
    }

    #[test]
    fn layers_at_the_end_read_the_last_of_their_kind_before_them() {
        let config = with("").unwrap();
        assert_eq!((config.notes.len(), config.blocks(), config.is_whole()), (0, 15, true));
        assert_eq!(
            [13, 14, 15, 18, 19, 34].map(|i| config.kv_of_another(i)),
            [None, None, Some(13), Some(13), Some(14), Some(14)]
        );
        assert_eq!([14, 15].map(|layer| config.intermediate_of(layer)), [6144, 12_288]);
        let layers = |start, end| config.layers_of(LayerRange { start, end });
        assert_eq!([layers(0, 14), layers(14, 15), layers(0, 15)], [0..14, 14..35, 0..35]);
        assert_eq!(config.layer_inputs, Some(LayerInputs { width: 256, tokens: 262_144 }));
        let shape = config.shape(1, 0, 0);
        assert_eq!((shape.layers, shape.whole, shape.most_stages()), (15, true, 1));
        // Its name says two thousand million that a token passes: without what is only looked up.
        let numbers = 15 * config.layer_numbers();
        assert_eq!(numbers / 100_000_000, 18);
    }

    #[test]
    fn what_cannot_be_is_refused_by_its_name() {
        let wrong = |from: &str, to: &str, named: &str| {
            let json = format!("{SMALL}}}").replace(from, to);
            let error = ModelConfig::parse(json.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(named), "{to}: {error}");
        };
        // All but every sixth have a window: of the first ones all have.
        wrong(":20,", ":30,", "num_kv_shared_layers = 30");
        wrong(":20,", ":36,", "num_kv_shared_layers = 36");
        wrong(":20,", ":35,", "num_kv_shared_layers = 35");
        wrong("_input\":256", "_input\":0.5", "hidden_size_per_layer_input = 0.5");
        wrong("_input\":256", "_input\":-1", "hidden_size_per_layer_input = -1");
        wrong("_input\":262144", "_input\":262143", "vocab_size_per_layer_input = 262143");
    }
}
