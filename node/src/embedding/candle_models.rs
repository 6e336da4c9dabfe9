//! The models of candle-transformers behind one door: tokens in, a vector for each token out.

use super::{
    EncoderError,
    batch::EncoderBatch,
    encoder_settings::EncoderSettings,
    family::{EncoderFamily, EncoderSizes, configure},
    folder::{TensorsByName, fenced},
};
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::{bert, distilbert, modernbert, nomic_bert, qwen2, qwen3, xlm_roberta};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::Path;

/// A model.
pub(super) enum EncoderNetwork {
    Bert(bert::BertModel),
    Roberta(xlm_roberta::XLMRobertaModel),
    DistilBert(distilbert::DistilBertModel),
    ModernBert(modernbert::ModernBert),
    NomicBert(nomic_bert::NomicBertModel),
    Qwen2(qwen2::Model),
    Qwen3(qwen3::Model),
}

impl EncoderNetwork {
    /// Of these tensors, as `config.json` says; `weights` is where they are from.
    pub fn load(
        family: EncoderFamily,
        config: &EncoderSettings,
        tensors: &TensorsByName,
        weights: &Path,
    ) -> std::result::Result<(Self, EncoderSizes), EncoderError> {
        let (sizes, json) = configure(family, config)?;
        let broken = |error: String| EncoderError::Broken { path: weights.to_owned(), error };
        let tensors = renamed(family, tensors).ok_or_else(|| broken(format!("it has no {}", family.anchor())))?;
        let builder = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
        let network = fenced(|| Self::build(family, json, builder)).map_err(broken)?;
        Ok((network, sizes))
    }

    fn build(family: EncoderFamily, config: Value, builder: VarBuilder<'_>) -> Result<Self> {
        Ok(match family {
            EncoderFamily::Bert => Self::Bert(bert::BertModel::load(builder, &read(config)?)?),
            EncoderFamily::Roberta => Self::Roberta(xlm_roberta::XLMRobertaModel::new(&read(config)?, builder)?),
            EncoderFamily::DistilBert => Self::DistilBert(distilbert::DistilBertModel::load(builder, &read(config)?)?),
            EncoderFamily::ModernBert => Self::ModernBert(modernbert::ModernBert::load(builder, &read(config)?)?),
            EncoderFamily::NomicBert => Self::NomicBert(nomic_bert::NomicBertModel::load(builder, &read(config)?)?),
            EncoderFamily::Qwen2 => Self::Qwen2(qwen2::Model::new(&read(config)?, builder)?),
            EncoderFamily::Qwen3 => Self::Qwen3(qwen3::Model::new(&read(config)?, builder)?),
        })
    }

    /// A vector for each token: (inputs, longest, width). Those of padding mean nothing.
    pub fn forward(&self, batch: &EncoderBatch) -> Result<Tensor> {
        let EncoderBatch { ids, types, mask, .. } = batch;
        match self {
            Self::Bert(model) => model.forward(ids, types, Some(mask)),
            // It has one type of tokens; pairs are told apart by what stands between them.
            Self::Roberta(model) => model.forward(ids, mask, &types.zeros_like()?, None, None, None),
            Self::DistilBert(model) => {
                let hidden = mask.eq(0u32)?.unsqueeze(1)?.unsqueeze(1)?;
                model.forward(ids, &hidden)
            }
            Self::ModernBert(model) => model.forward(ids, mask),
            Self::NomicBert(model) => model.forward(ids, Some(types), Some(mask)),
            // A decoder's tokens see nothing behind them, padding least of all. It keeps what it has seen: each batch begins with a
            // copy that has seen nothing; weights are shared.
            Self::Qwen2(model) => model.clone().forward(ids, 0, None),
            Self::Qwen3(model) => model.clone().forward(ids, 0),
        }
    }
}

fn read<T: DeserializeOwned>(config: Value) -> Result<T> {
    serde_json::from_value(config).map_err(candle_core::Error::wrap)
}

/// The model's tensors under the names that candle looks for: they are saved behind the name of whatever the model was a part of.
fn renamed(family: EncoderFamily, tensors: &TensorsByName) -> Option<TensorsByName> {
    let before =
        tensors.keys().filter_map(|name| name.strip_suffix(family.anchor())).min_by_key(|before| before.len())?;
    let own = tensors.iter().filter_map(|(name, tensor)| Some((name.strip_prefix(before)?, tensor)));
    Some(own.map(|(name, tensor)| (format!("{}{name}", family.prefix()), tensor.clone())).collect())
}
