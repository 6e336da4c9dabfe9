//! A model as peers talk about it: what it is called, how large it is, which small files belong to it.

use crate::{ModelId, codec::CodecError, limits};
use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What a peer must know of a model to plan for it and to take requests for it.
#[derive(Clone, Debug, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct ModelCard {
    /// What the model is.
    pub id: ModelId,
    /// What people call it; shown in `/v1/models`.
    pub name: String,
    /// Sizes of its layers: what planning and paging go by.
    pub shape: ModelShape,
    /// The small files a gateway needs: tokenizer, templates, generation defaults.
    pub files: Vec<ModelFile>,
}

/// A small file of a model, fetched from any peer that has it and checked by its hash.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct ModelFile {
    /// File name, no folder.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// BLAKE3 of the content.
    pub hash: [u8; 32],
}

/// The sizes of a transformer, as its `config.json` gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct ModelShape {
    /// Transformer blocks: what a plan hands out. Of a model in which some have no keys and values of their own, those that have
    /// some; the last one stands for the others too.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Width of the MLP; of a mixture of experts, of all that one token passes, on average over layers.
    pub intermediate: u32,
    /// Query heads of a block.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Width of one head.
    pub head_dim: u32,
    /// Entries in the vocabulary.
    pub vocab: u32,
    /// Longest sequence, prompt and answer together (tokens).
    pub context: u32,
    /// Weights of one block as stored (bytes), all its experts included.
    pub layer_bytes: u64,
    /// Embedding as stored (bytes).
    pub embed_bytes: u64,
    /// Final norm and output head as stored (bytes); the embedding again where they are tied.
    pub head_bytes: u64,
    /// Of a mixture of experts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<Experts>,
    /// Whether one stage has to hold all of it: its blocks need more of a token, or of each other, than passes from stage to stage.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
    /// What a sequence keeps in all blocks together beside the KV of its tokens, however many these are (bytes). It stays where it was
    /// computed, and KV beside it does so too.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub state_bytes: u64,
}

/// As serde asks it.
fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

/// Experts of a mixture's blocks. A token passes few of them: what is read for it is less than what is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct Experts {
    /// How many a block has.
    pub count: u32,
    /// How many of them each token passes.
    pub used: u32,
    /// Weights of all of them in one block as stored (bytes), a part of [`ModelShape::layer_bytes`].
    pub bytes: u64,
}

impl Experts {
    /// Part of the experts that a step of so many tokens is expected to need, from `used / count` up to 1.
    ///
    /// A token that chooses k of E, each as likely as any other, leaves one out with chance 1 − k/E, and n that know nothing of
    /// each other all leave it out with (1 − k/E)^n: what is left of 1 is an expert's chance, and the mean part of them (drawing
    /// in groups: Stadje, "The collector's problem with group drawings", Adv. Appl. Probab. 22, 1990, eq. 1).
    #[must_use]
    pub fn part_needed(&self, tokens: f64) -> f64 {
        let left_out = 1.0 - f64::from(self.used) / f64::from(self.count.max(1));
        1.0 - left_out.max(0.0).powf(tokens.max(0.0))
    }
}

impl ModelShape {
    /// KV elements of one token in one layer: keys and values.
    #[must_use]
    pub fn kv_elements_per_token_layer(&self) -> u64 {
        2 * u64::from(self.kv_heads) * u64::from(self.head_dim)
    }

    /// The range of all layers, as a group of one stage has them.
    #[must_use]
    pub fn all_layers(&self) -> LayerRange {
        LayerRange { start: 0, end: self.layers }
    }

    /// Whether sequences keep a state in some blocks: it cannot be cut at a token, and neither it nor KV is sent to whoever goes on.
    #[must_use]
    pub fn has_state(&self) -> bool {
        self.state_bytes > 0
    }

    /// Stages that may hold it together, at most.
    #[must_use]
    pub fn most_stages(&self) -> u32 {
        if self.whole { 1 } else { self.layers }
    }

    /// Weights a stage with these layers holds (bytes).
    #[must_use]
    pub fn stage_bytes(&self, layers: LayerRange) -> u64 {
        let embed = if layers.start == 0 { self.embed_bytes } else { 0 };
        let head = if layers.end == self.layers { self.head_bytes } else { 0 };
        u64::from(layers.len()) * self.layer_bytes + embed + head
    }

    /// Weights of the least that a plan gives a peer, but for what comes with the first and the last block (bytes).
    #[must_use]
    pub fn least_bytes(&self) -> u64 {
        if self.whole { self.stage_bytes(self.all_layers()) } else { self.layer_bytes }
    }

    /// Weights of a block that a step of so many tokens is expected to read (bytes): all, but for experts that nobody chooses.
    #[must_use]
    pub fn active_layer_bytes(&self, tokens: f64) -> f64 {
        let all = self.layer_bytes as f64;
        self.experts.map_or(all, |e| all - e.bytes as f64 * (1.0 - e.part_needed(tokens)))
    }

    /// Refuses shapes that no model has, so that arithmetic on the rest cannot overflow.
    ///
    /// # Errors
    /// Names the first rule broken.
    pub fn check(&self) -> Result<(), CodecError> {
        let sane = |x: u32, most: u32| x >= 1 && x <= most;
        if !sane(self.layers, limits::LAYERS) {
            return Err(CodecError::Invalid("layers out of range"));
        }
        let widths = [self.hidden, self.intermediate, self.vocab];
        if !widths.iter().all(|&x| sane(x, 1 << 22)) || !sane(self.context, limits::SEQUENCE_TOKENS) {
            return Err(CodecError::Invalid("model width out of range"));
        }
        if !sane(self.heads, 1024) || !sane(self.kv_heads, self.heads) || !sane(self.head_dim, 1024) {
            return Err(CodecError::Invalid("heads out of range"));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(CodecError::Invalid("heads not a multiple of KV heads"));
        }
        let bytes = [self.layer_bytes, self.embed_bytes, self.head_bytes, self.state_bytes];
        if bytes.iter().any(|&b| b > 1 << 44) {
            return Err(CodecError::Invalid("model bytes out of range"));
        }
        if self.has_state() && !self.whole {
            return Err(CodecError::Invalid("a state that stages would share"));
        }
        let possible =
            |e: Experts| sane(e.count, limits::EXPERTS) && sane(e.used, e.count) && e.bytes <= self.layer_bytes;
        if !self.experts.is_none_or(possible) {
            return Err(CodecError::Invalid("experts out of range"));
        }
        Ok(())
    }
}

/// Layers `start..end` of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode, Serialize, Deserialize)]
pub struct LayerRange {
    /// First layer, counted from 0.
    pub start: u32,
    /// One past the last layer.
    pub end: u32,
}

impl LayerRange {
    /// How many layers.
    #[must_use]
    pub fn len(self) -> u32 {
        self.end.saturating_sub(self.start)
    }

    /// Whether there is no layer in it.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Whether `layer` is in it.
    #[must_use]
    pub fn contains(self, layer: u32) -> bool {
        (self.start..self.end).contains(&layer)
    }

    /// What both have.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        let start = self.start.max(other.start);
        Self { start, end: self.end.min(other.end).max(start) }
    }

    /// The layers in order.
    pub fn iter(self) -> impl Iterator<Item = u32> + Clone {
        self.start..self.end
    }
}

impl std::fmt::Display for LayerRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

impl ModelCard {
    /// Refuses cards whose texts, counts or sizes are out of bounds.
    ///
    /// # Errors
    /// Names the first rule broken.
    pub fn check(&self) -> Result<(), CodecError> {
        if self.name.len() > limits::TEXT_BYTES || self.name.is_empty() {
            return Err(CodecError::Invalid("model name empty or too long"));
        }
        let plain = |f: &ModelFile| {
            f.name.len() <= 64
                && !f.name.starts_with('.')
                && f.name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
                && f.bytes <= limits::MODEL_FILE_BYTES as u64
        };
        if self.files.len() > 16 || !self.files.iter().all(plain) {
            return Err(CodecError::Invalid("model file name or size out of bounds"));
        }
        let names: BTreeSet<&str> = self.files.iter().map(|f| f.name.as_str()).collect();
        if names.len() < self.files.len() {
            // Which of two counts nobody could tell.
            return Err(CodecError::Invalid("a model's file is named twice"));
        }
        self.shape.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_names_a_file_once() {
        let sizes = ModelShape {
            layers: 1,
            hidden: 1,
            intermediate: 1,
            heads: 1,
            kv_heads: 1,
            head_dim: 1,
            vocab: 1,
            context: 1,
            layer_bytes: 1,
            embed_bytes: 1,
            head_bytes: 1,
            experts: None,
            whole: false,
            state_bytes: 0,
        };
        assert_eq!([false, true].map(|whole| ModelShape { layers: 7, whole, ..sizes }.most_stages()), [7, 1]);
        // One stage has all that a sequence keeps.
        let kept = |whole| ModelShape { whole, state_bytes: 1, ..sizes }.check();
        assert!(kept(true).is_ok() && kept(false).is_err());
        let of = |names: &[&str]| {
            let file = |(n, name): (u8, &&str)| ModelFile { name: (*name).into(), bytes: 1, hash: [n; 32] };
            let files = (0..).zip(names).map(file).collect();
            ModelCard { id: ModelId([1; 16]), name: "tiny".into(), shape: sizes, files }.check()
        };
        assert_eq!(of(&["config.json", "tokenizer.json"]), Ok(()));
        assert!(of(&["config.json", "config.json"]).is_err());
    }
}
