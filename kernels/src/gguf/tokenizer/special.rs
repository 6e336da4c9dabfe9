//! Tokens with a meaning of their own.

use super::{
    super::{GgufError, Metadata},
    split::Split,
    vocabulary::{TokenizerModel, Vocabulary},
};

/// Which token begins a text, which ones end an answer, and whether texts get them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Special {
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub unknown: Option<u32>,
    pub padding: Option<u32>,
    /// All tokens that end an answer, `eos` first.
    pub ends: Vec<u32>,
    pub add_bos: bool,
    pub add_eos: bool,
}

impl Special {
    /// Reads them, and marks them in `vocabulary` as what they are.
    pub(in super::super) fn of(metadata: &Metadata<'_>, vocabulary: &mut Vocabulary<'_>) -> Result<Self, GgufError> {
        // What SentencePiece's models mean when their file says nothing.
        let usual = |id| (vocabulary.model == TokenizerModel::Pieces).then_some(id);
        let (bos, eos, unknown) = (usual(1), usual(2), usual(0));
        let tokens = vocabulary.len();
        let id = |name: &str, usual: Option<u32>| -> Result<Option<u32>, GgufError> {
            let stated = metadata.count(&format!("tokenizer.ggml.{name}_token_id"))?;
            Ok(stated.filter(|id| (*id as usize) < tokens).or(usual).filter(|id| (*id as usize) < tokens))
        };
        let (bos, eos) = (id("bos", bos)?, id("eos", eos)?);
        let mut ends: Vec<u32> = [eos, id("eot", None)?, id("eom", None)?].into_iter().flatten().collect();
        for end in vocabulary.ends() {
            if !ends.contains(&end) {
                ends.push(end);
            }
        }
        ends.dedup();
        ends.iter().copied().chain(bos).for_each(|id| vocabulary.set_control(id));
        let adds = match vocabulary.model {
            TokenizerModel::Pieces | TokenizerModel::MergedPieces => true,
            TokenizerModel::Bytes => Split::of(metadata)?.adds_bos,
        };
        Ok(Self {
            bos,
            eos,
            unknown: id("unknown", unknown)?,
            padding: id("padding", None)?,
            ends,
            add_bos: metadata.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(adds),
            add_eos: metadata.flag("tokenizer.ggml.add_eos_token")?.unwrap_or(false),
        })
    }
}
