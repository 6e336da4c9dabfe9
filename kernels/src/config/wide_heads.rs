//! Heads of several widths in one model (Gemma 4): those of some layers are a few times as wide as those of the others.

use super::{Keys, ModelConfig, ModelConfigError};

/// Heads of keys and values of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvHeads {
    /// How many.
    pub count: usize,
    /// How often as wide as [`ModelConfig::head_dim`] one is.
    pub parts: usize,
}

/// Layers with wide heads among others. Pages have heads of one width, of which a wide head takes several.
#[derive(Clone, Debug, PartialEq)]
pub struct WideHeads {
    /// Of the other layers.
    pub narrow: KvHeads,
    /// Of these.
    pub wide: KvHeads,
    /// Which layers.
    pub layers: Vec<bool>,
    /// Whether their values are their keys, before norms and turning: there are no matrices for them.
    pub values_are_keys: bool,
}

/// Heads by layer, as transformers 5 writes them.
const BY_LAYER: &str = "per_layer_config";
/// Those of layers without a window, as models are published.
const WIDTH: &str = "global_head_dim";
const COUNT: &str = "num_global_key_value_heads";
/// Where nothing is said.
const USUAL_WIDTH: usize = 512;

impl WideHeads {
    /// Those of layers without a window; pages get as many heads as the layer with most takes.
    pub(crate) fn read(config: &mut ModelConfig, keys: &Keys) -> Result<(), ModelConfigError> {
        let layers: Vec<bool> = config.windows.iter().map(Option::is_none).collect();
        let values_are_keys = keys.flag("attention_k_eq_v")?.unwrap_or(false);
        let (width, said) = match keys.within(BY_LAYER)? {
            Some(by_layer) => by_each(&by_layer, &layers, keys)?,
            None => {
                let (width, count) = (keys.count(WIDTH)?, keys.count(COUNT)?);
                (width.unwrap_or(USUAL_WIDTH), count.filter(|_| values_are_keys))
            }
        };
        let narrow = KvHeads { count: config.kv_heads, parts: 1 };
        let wide = KvHeads { count: said.unwrap_or(config.kv_heads), parts: width / config.head_dim.max(1) };
        let most = narrow.count.max(wide.count.saturating_mul(wide.parts));
        // Of a layer with fewer heads, there are as many of the pages' from each to the next.
        let dealt = [narrow, wide].iter().all(|heads| {
            let (count, parts) = (heads.count, heads.parts);
            (1..=config.heads).contains(&count) && (1..=config.heads).contains(&parts) && most.is_multiple_of(count)
        });
        if !(dealt && width.is_multiple_of(config.head_dim) && config.heads.is_multiple_of(most)) {
            let value = format!("{width} beside {} heads of {}", config.heads, config.head_dim);
            return Err(ModelConfigError::Unsupported { what: WIDTH, value });
        }
        config.kv_heads = most;
        config.wide_heads = Some(Self { narrow, wide, layers, values_are_keys });
        Ok(())
    }
}

/// Width and number of wide heads: all layers without a window have the same, and the others what the model has.
fn by_each(by_layer: &Keys, layers: &[bool], keys: &Keys) -> Result<(usize, Option<usize>), ModelConfigError> {
    let mut found = None;
    for (layer, wide) in layers.iter().enumerate() {
        let said = by_layer.part(&layer.to_string())?;
        if said.is_some() != *wide {
            return Err(keys.refusal(BY_LAYER));
        }
        let Some(said) = said else { continue };
        let width = said.count("head_dim")?.ok_or(ModelConfigError::Missing("head_dim"))?;
        let these = (width, said.count("num_key_value_heads")?);
        if found.is_some_and(|others| others != these) || said.has_more_than(&["head_dim", "num_key_value_heads"]) {
            return Err(keys.refusal(BY_LAYER));
        }
        found = Some(these);
    }
    found.ok_or_else(|| keys.refusal(BY_LAYER))
}

impl ModelConfig {
    /// Rows of the matrices of a layer's attention, or of what it has in its place, and columns of the last.
    pub(super) fn attention_width(&self, layer: usize) -> usize {
        if let Some(width) = self.state_width(layer) {
            return width;
        }
        let KvHeads { count, parts } = self.heads_of(layer);
        let matrices = match self.kv_of_another(layer) {
            Some(_) => 0,
            None if self.values_are_keys(layer) => 1,
            None => 2,
        };
        let gates = if self.delta_net.is_some() { self.heads } else { 0 };
        (2 * self.heads + gates + matrices * count) * parts * self.head_dim
    }

    /// Heads of keys and values of a layer.
    pub(crate) fn heads_of(&self, layer: usize) -> KvHeads {
        match &self.wide_heads {
            None => KvHeads { count: self.kv_heads, parts: 1 },
            Some(heads) if heads.layers.get(layer) == Some(&true) => heads.wide,
            Some(heads) => heads.narrow,
        }
    }

    /// Whether a layer has no matrix for values.
    pub(crate) fn values_are_keys(&self, layer: usize) -> bool {
        let is_one = |heads: &WideHeads| heads.values_are_keys && heads.layers.get(layer) == Some(&true);
        self.wide_heads.as_ref().is_some_and(is_one)
    }

    /// How often as wide as others the widest heads are.
    pub(crate) fn widest_heads(&self) -> usize {
        self.wide_heads.as_ref().map_or(1, |heads| heads.wide.parts)
    }

    /// Heads of keys and values that so many ranks cannot share: as pages' heads are dealt out, so are those of every layer.
    pub(crate) fn not_shared(&self, ranks: usize) -> Option<usize> {
        // States lie whole on one.
        let most = if self.delta_net.is_some() { 1 } else { self.kv_heads };
        if ranks > most {
            return Some(most);
        }
        let counts = self.wide_heads.iter().flat_map(|heads| [heads.narrow.count, heads.wide.count]);
        let mut fewer = counts.filter(|count| *count != self.kv_heads);
        fewer.find(|count| !count.is_multiple_of(ranks.max(1)))
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{KvHeads, ModelConfig, ModelConfigError};

    /// The published 31B's keys of attention.
    const LARGE: &str = r#"{"model_type":"gemma4_text","num_hidden_layers":60,"hidden_size":5376,"intermediate_size":21504,
        "num_attention_heads":32,"num_key_value_heads":16,"head_dim":256,"vocab_size":262144,
        "max_position_embeddings":262144,"sliding_window":1024,"attention_k_eq_v":true,"hidden_size_per_layer_input":0"#;
    const HEADS: &str = r#","num_global_key_value_heads":4,"global_head_dim":512"#;

    fn with(more: &str) -> Result<ModelConfig, ModelConfigError> {
        ModelConfig::parse(format!("{LARGE}{more}}}").as_bytes())
    }

    #[test]
    fn wide_heads_take_several_of_a_page() {
        let config = with(HEADS).unwrap();
        assert_eq!((config.kv_heads, config.head_dim, config.widest_heads()), (16, 256, 2));
        assert_eq!(
            [4, 5].map(|layer| config.heads_of(layer)),
            [(16, 1), (4, 2)].map(|(count, parts)| KvHeads { count, parts })
        );
        assert_eq!([4, 5].map(|layer| config.values_are_keys(layer)), [false, true]);
        assert_eq!([2, 3, 4, 8].map(|ranks| config.not_shared(ranks)), [None, Some(4), None, Some(4)]);
        // Its name says 31 thousand million, with what sees.
        let numbers = 60 * config.layer_numbers() + 262_144 * 5376;
        assert_eq!(numbers / 100_000_000, 306);
    }

    #[test]
    fn heads_by_layer_are_those_of_both_kinds() {
        let layers = |more: &str| {
            let each = |i: usize| format!(r#""{i}":{{"head_dim":512,"num_key_value_heads":4{more}}}"#);
            let each: Vec<String> = (0..60).filter(|i| (i + 1) % 6 == 0).map(each).collect();
            format!(r#","per_layer_config":{{{}}}"#, each.join(","))
        };
        assert_eq!(with(&layers("")).unwrap().wide_heads, with(HEADS).unwrap().wide_heads);
        for wrong in [
            layers(r#","sliding_window":8"#),
            layers("").replacen("512", "1024", 1),
            layers("").replacen("\"5\"", "\"4\"", 1),
            r#","per_layer_config":{}"#.to_owned(),
            r#","global_head_dim":384"#.to_owned(),
            r#","num_global_key_value_heads":5"#.to_owned(),
            r#","global_head_dim":65536"#.to_owned(),
        ] {
            assert!(matches!(with(&wrong), Err(ModelConfigError::Unsupported { .. })), "{wrong}");
        }
    }
}
