//! tokenizer.json and what belongs to it, from `tokenizer.ggml.*`: gateways know only the files of Hugging Face.

mod bpe;
mod pieces;
pub(super) mod special;
mod split;
mod tokenizer_json;
pub(super) mod vocabulary;

use super::{GgufError, Metadata};
use serde::Serialize;
use special::Special;
use std::collections::BTreeMap;
use tokenizer_json::{AddedToken, PostProcessor, Tokenizer};
use vocabulary::{TokenType, Vocabulary};

/// `tokenizer_config.json`.
#[derive(Serialize)]
struct TokenizerConfig<'v> {
    add_bos_token: bool,
    add_eos_token: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    bos_token: Option<&'v str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    eos_token: Option<&'v str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unk_token: Option<&'v str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pad_token: Option<&'v str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chat_template: Option<&'v str>,
    clean_up_tokenization_spaces: bool,
    tokenizer_class: &'static str,
}

/// `generation_config.json`.
#[derive(Serialize)]
struct GenerationConfig {
    #[serde(skip_serializing_if = "Option::is_none")]
    bos_token_id: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    eos_token_id: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_k: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_p: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    repetition_penalty: Option<f32>,
}

/// Everything about text that a folder would have files for, by their names.
pub(super) fn files(
    metadata: &Metadata<'_>,
    vocabulary: &Vocabulary<'_>,
    special: &Special,
) -> Result<BTreeMap<String, Vec<u8>>, GgufError> {
    let text = |bytes: serde_json::Result<Vec<u8>>| bytes.map_err(|error| GgufError::Tokenizer(error.to_string()));
    Ok(BTreeMap::from([
        ("tokenizer.json".to_owned(), text(serde_json::to_vec(&tokenizer(metadata, vocabulary, special)?))?),
        (
            "tokenizer_config.json".to_owned(),
            text(serde_json::to_vec_pretty(&settings(metadata, vocabulary, special)?))?,
        ),
        ("generation_config.json".to_owned(), text(serde_json::to_vec_pretty(&generation(metadata, special)?))?),
    ]))
}

fn tokenizer<'v>(
    metadata: &Metadata<'v>,
    vocabulary: &'v Vocabulary<'v>,
    special: &Special,
) -> Result<Tokenizer<'v>, GgufError> {
    let parts = match vocabulary.model {
        vocabulary::TokenizerModel::Bytes => bpe::parts(metadata, vocabulary)?,
        vocabulary::TokenizerModel::Pieces | vocabulary::TokenizerModel::MergedPieces => {
            pieces::parts(metadata, vocabulary, special)?
        }
    };
    let added = added(metadata, vocabulary)?;
    Ok(Tokenizer::new(parts, added, post_processor(vocabulary, special)))
}

/// Tokens that are found in a text before it is split.
fn added<'v>(metadata: &Metadata<'_>, vocabulary: &'v Vocabulary<'v>) -> Result<Vec<AddedToken<'v>>, GgufError> {
    let name = metadata.text("general.name")?.unwrap_or_default().to_lowercase();
    // Phi 3 swallows the space after its special tokens; files do not say so, llama.cpp goes by the name too.
    let phi3 = name.contains("phi-3") || name.contains("phi3");
    let strips = |text: &str| phi3 && !matches!(text, "<unk>" | "<s>" | "<|endoftext|>");
    let add = |(id, (text, kind)): (u32, (&'v str, TokenType))| match kind {
        TokenType::Control | TokenType::Unknown => Some(AddedToken::new(id, text, true, strips(text))),
        TokenType::UserDefined => Some(AddedToken::new(id, text, false, strips(text))),
        TokenType::Normal | TokenType::Unused | TokenType::Byte => None,
    };
    Ok((0..).zip(vocabulary.iter()).filter_map(add).collect())
}

fn post_processor<'v>(vocabulary: &'v Vocabulary<'v>, special: &Special) -> Option<PostProcessor<'v>> {
    let named = |wanted: bool, id: Option<u32>| id.filter(|_| wanted).map(|id| (id, vocabulary.text(id)));
    let (first, last) = (named(special.add_bos, special.bos), named(special.add_eos, special.eos));
    (first.is_some() || last.is_some()).then(|| PostProcessor::around(first, last))
}

fn settings<'v>(
    metadata: &Metadata<'v>,
    vocabulary: &'v Vocabulary<'v>,
    special: &Special,
) -> Result<TokenizerConfig<'v>, GgufError> {
    let text = |id: Option<u32>| id.map(|id| vocabulary.text(id));
    Ok(TokenizerConfig {
        add_bos_token: special.add_bos,
        add_eos_token: special.add_eos,
        bos_token: text(special.bos),
        eos_token: text(special.eos),
        unk_token: text(special.unknown),
        pad_token: text(special.padding),
        chat_template: metadata.text("tokenizer.chat_template")?,
        clean_up_tokenization_spaces: false,
        tokenizer_class: "PreTrainedTokenizerFast",
    })
}

fn generation(metadata: &Metadata<'_>, special: &Special) -> Result<GenerationConfig, GgufError> {
    let real = |key: &str| Ok(metadata.real(&format!("general.sampling.{key}"))?.map(|number| number as f32));
    Ok(GenerationConfig {
        bos_token_id: special.bos,
        eos_token_id: special.ends.clone(),
        temperature: real("temp")?,
        top_p: real("top_p")?,
        top_k: metadata.count("general.sampling.top_k")?,
        min_p: real("min_p")?,
        repetition_penalty: real("penalty_repeat")?,
    })
}
