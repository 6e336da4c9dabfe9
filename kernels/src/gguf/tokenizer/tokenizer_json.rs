//! tokenizer.json, as far as models in GGUF files need it, in the form the `tokenizers` crate reads.

use serde::{Serialize, Serializer, ser::SerializeMap};

/// The file.
#[derive(Serialize)]
pub(super) struct Tokenizer<'v> {
    version: &'static str,
    truncation: (),
    padding: (),
    added_tokens: Vec<AddedToken<'v>>,
    normalizer: Option<Normalizer>,
    pre_tokenizer: Option<PreTokenizer>,
    post_processor: Option<PostProcessor<'v>>,
    decoder: Decoder,
    model: BpeModel<'v>,
}

/// What differs between the ways of making tokens.
pub(super) struct TokenizerParts<'v> {
    pub normalizer: Option<Normalizer>,
    pub pre_tokenizer: Option<PreTokenizer>,
    pub decoder: Decoder,
    pub model: BpeModel<'v>,
}

impl<'v> Tokenizer<'v> {
    pub(super) fn new(
        parts: TokenizerParts<'v>,
        added_tokens: Vec<AddedToken<'v>>,
        post_processor: Option<PostProcessor<'v>>,
    ) -> Self {
        let TokenizerParts { normalizer, pre_tokenizer, decoder, model } = parts;
        let (version, truncation, padding) = ("1.0", (), ());
        Self { version, truncation, padding, added_tokens, normalizer, pre_tokenizer, post_processor, decoder, model }
    }
}

/// A token that is found before a text is split.
#[derive(Serialize)]
pub(super) struct AddedToken<'v> {
    id: u32,
    content: &'v str,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

impl<'v> AddedToken<'v> {
    pub(super) fn new(id: u32, content: &'v str, special: bool, rstrip: bool) -> Self {
        Self { id, content, single_word: false, lstrip: false, rstrip, normalized: false, special }
    }
}

#[derive(Serialize)]
pub(super) enum Pattern {
    String(&'static str),
    Regex(&'static str),
}

#[derive(Serialize)]
#[serde(tag = "type")]
pub(super) enum Normalizer {
    Sequence {
        normalizers: Vec<Normalizer>,
    },
    Prepend {
        prepend: &'static str,
    },
    Replace {
        pattern: Pattern,
        content: &'static str,
    },
    #[serde(rename = "NFC")]
    Nfc,
}

#[derive(Serialize)]
#[serde(tag = "type")]
pub(super) enum PreTokenizer {
    Sequence { pretokenizers: Vec<PreTokenizer> },
    Split { pattern: Pattern, behavior: &'static str, invert: bool },
    ByteLevel { add_prefix_space: bool, trim_offsets: bool, use_regex: bool },
}

#[derive(Serialize)]
#[serde(tag = "type")]
pub(super) enum Decoder {
    Sequence { decoders: Vec<Decoder> },
    Replace { pattern: Pattern, content: &'static str },
    ByteFallback,
    Fuse,
    Strip { content: &'static str, start: usize, stop: usize },
    ByteLevel { add_prefix_space: bool, trim_offsets: bool, use_regex: bool },
}

/// Byte pairs; the only model there is, whatever merges come from.
#[derive(Serialize)]
#[serde(tag = "type", rename = "BPE")]
pub(super) struct BpeModel<'v> {
    pub dropout: (),
    pub unk_token: Option<&'v str>,
    pub continuing_subword_prefix: (),
    pub end_of_word_suffix: (),
    pub fuse_unk: bool,
    pub byte_fallback: bool,
    pub ignore_merges: bool,
    pub vocab: Ids<'v>,
    pub merges: Vec<(&'v str, &'v str)>,
}

/// Token texts in the order of their ids.
pub(super) struct Ids<'v>(pub Vec<&'v str>);

impl Serialize for Ids<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (id, text) in self.0.iter().enumerate() {
            map.serialize_entry(text, &id)?;
        }
        map.end()
    }
}

#[derive(Serialize)]
#[serde(tag = "type")]
pub(super) enum PostProcessor<'v> {
    TemplateProcessing { single: Vec<Slot<'v>>, pair: Vec<Slot<'v>>, special_tokens: TemplateTokens<'v> },
}

#[derive(Serialize)]
pub(super) enum Slot<'v> {
    SpecialToken { id: &'v str, type_id: u32 },
    Sequence { id: &'static str, type_id: u32 },
}

/// Special tokens of a template by their texts.
pub(super) struct TemplateTokens<'v>(Vec<(u32, &'v str)>);

#[derive(Serialize)]
struct SpecialToken<'v> {
    id: &'v str,
    ids: [u32; 1],
    tokens: [&'v str; 1],
}

impl Serialize for TemplateTokens<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (id, text) in &self.0 {
            map.serialize_entry(text, &SpecialToken { id: text, ids: [*id], tokens: [text] })?;
        }
        map.end()
    }
}

impl<'v> PostProcessor<'v> {
    /// Puts `first` before a text and `last` behind it.
    pub(super) fn around(first: Option<(u32, &'v str)>, last: Option<(u32, &'v str)>) -> Self {
        let special =
            |token: Option<(u32, &'v str)>, type_id| token.map(|(_, text)| Slot::SpecialToken { id: text, type_id });
        let text = |id, type_id| {
            [special(first, type_id), Some(Slot::Sequence { id, type_id }), special(last, type_id)]
                .into_iter()
                .flatten()
        };
        let mut special_tokens: Vec<_> = first.into_iter().chain(last).collect();
        special_tokens.dedup();
        Self::TemplateProcessing {
            single: text("A", 0).collect(),
            pair: text("A", 0).chain(text("B", 1)).collect(),
            special_tokens: TemplateTokens(special_tokens),
        }
    }
}
