//! What stands behind a model: modules of sentence-transformers that change a vector, or the head of a cross-encoder.

use super::{
    EncoderError,
    batch::EncoderBatch,
    encoder_settings::EncoderSettings,
    family::EncoderFamily,
    folder::{EncoderFolder, TensorsByName, fenced},
    pooling::{Pooling, pool},
};
use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::{Linear, Module, VarBuilder, layer_norm_no_bias, linear, linear_no_bias};
use serde_json::{Value, json};

/// A module behind the pooling.
pub(super) enum HeadModule {
    Dense(Linear, EncoderActivation),
    Normalise,
}

/// What a layer's values go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EncoderActivation {
    None,
    Tanh,
    Sigmoid,
}

impl HeadModule {
    /// A dense layer of sentence-transformers.
    pub fn dense(folder: &mut EncoderFolder, name: &str) -> std::result::Result<(Self, usize), EncoderError> {
        let file = format!("{name}/config.json");
        let settings = EncoderSettings { json: folder.json(&file)?, path: folder.at(&file) };
        let (input, output) = (settings.number("in_features", 1 << 16)?, settings.number("out_features", 1 << 16)?);
        let activation = EncoderActivation::named(&settings, "activation_function", EncoderActivation::Tanh)?;
        let tensors = folder.weights(name)?;
        let builder = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
        let is_biased = settings.json["bias"].as_bool().unwrap_or(true);
        let make = || {
            if is_biased {
                linear(input, output, builder.pp("linear"))
            } else {
                linear_no_bias(input, output, builder.pp("linear"))
            }
        };
        let path = folder.at(&format!("{name}/model.safetensors"));
        let layer = fenced(make).map_err(|error| EncoderError::Broken { path, error })?;
        Ok((Self::Dense(layer, activation), output))
    }

    pub fn apply(&self, vectors: &Tensor) -> Result<Tensor> {
        match self {
            Self::Dense(layer, activation) => activation.of(layer.forward(vectors)?),
            Self::Normalise => {
                let length = vectors.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?.clamp(1e-12, f64::MAX)?;
                vectors.broadcast_div(&length)
            }
        }
    }
}

impl EncoderActivation {
    /// What a settings file names by its class in PyTorch.
    fn named(settings: &EncoderSettings, key: &str, usual: Self) -> std::result::Result<Self, EncoderError> {
        let Some(name) = settings.text(key) else { return Ok(usual) };
        match name.rsplit('.').next() {
            Some("Identity") => Ok(Self::None),
            Some("Tanh") => Ok(Self::Tanh),
            Some("Sigmoid") => Ok(Self::Sigmoid),
            _ => Err(settings.unsupported(format!("{key} is {name:?}, and Identity, Tanh and Sigmoid are computed"))),
        }
    }

    fn of(self, values: Tensor) -> Result<Tensor> {
        match self {
            Self::None => Ok(values),
            Self::Tanh => values.tanh(),
            Self::Sigmoid => candle_nn::ops::sigmoid(&values),
        }
    }
}

/// The head of a cross-encoder: one number for a pair.
pub(super) struct Scorer {
    layers: ScorerLayers,
    activation: EncoderActivation,
}

enum ScorerLayers {
    /// Pooler and classifier.
    Bert(Linear, Linear),
    /// A classifier of two layers.
    Roberta(Linear, Linear),
    DistilBert(Linear, Linear),
    ModernBert {
        dense: Linear,
        norm: candle_nn::LayerNorm,
        classifier: Linear,
        pooling: Pooling,
    },
}

impl Scorer {
    /// Whether a model is a cross-encoder.
    pub fn is_in(config: &EncoderSettings) -> bool {
        let named = |name: &Value| name.as_str().is_some_and(|name| name.ends_with("ForSequenceClassification"));
        config.json["architectures"].as_array().is_some_and(|names| names.iter().any(named))
    }

    pub fn load(
        family: EncoderFamily,
        config: &EncoderSettings,
        tensors: &TensorsByName,
        width: usize,
        weights: std::path::PathBuf,
    ) -> std::result::Result<Self, EncoderError> {
        let labels = config.json["id2label"].as_object().map_or(2, |labels| labels.len());
        if labels != 1 {
            let what = format!("it classifies into {labels} labels (id2label); a model that ranks has one");
            return Err(config.unsupported(what));
        }
        let activation = activation(config)?;
        let builder = VarBuilder::from_tensors(tensors.clone(), DType::F32, &Device::Cpu);
        let layers = match family {
            EncoderFamily::ModernBert => Self::modernbert(config, &builder, width),
            _ => fenced(|| ScorerLayers::load(family, &builder, width)),
        };
        Ok(Self { layers: layers.map_err(|error| EncoderError::Broken { path: weights, error })?, activation })
    }

    fn modernbert(
        config: &EncoderSettings,
        builder: &VarBuilder<'_>,
        width: usize,
    ) -> std::result::Result<ScorerLayers, String> {
        let pooling = match config.text("classifier_pooling").as_deref() {
            None | Some("cls") => Pooling::Cls,
            Some("mean") => Pooling::Mean,
            Some(other) => return Err(format!("classifier_pooling is {other:?}, and cls and mean are computed")),
        };
        let eps = config.real("norm_eps", 1e-5).map_err(|e| e.to_string())?;
        fenced(|| {
            Ok(ScorerLayers::ModernBert {
                dense: linear_no_bias(width, width, builder.pp("head.dense"))?,
                norm: layer_norm_no_bias(width, eps, builder.pp("head.norm"))?,
                classifier: linear(width, 1, builder.pp("classifier"))?,
                pooling,
            })
        })
    }

    /// A score for each input, (inputs, 1), of its tokens' vectors.
    pub fn score(&self, hidden: &Tensor, batch: &EncoderBatch) -> Result<Tensor> {
        let first = || pool(&[Pooling::Cls], hidden, batch);
        let logits = match &self.layers {
            ScorerLayers::Bert(inner, outer) | ScorerLayers::Roberta(inner, outer) => {
                outer.forward(&inner.forward(&first()?)?.tanh()?)?
            }
            ScorerLayers::DistilBert(inner, outer) => outer.forward(&inner.forward(&first()?)?.relu()?)?,
            ScorerLayers::ModernBert { dense, norm, classifier, pooling } => {
                let pooled = pool(&[*pooling], hidden, batch)?;
                classifier.forward(&norm.forward(&dense.forward(&pooled)?.gelu_erf()?)?)?
            }
        };
        self.activation.of(logits)
    }
}

impl ScorerLayers {
    fn load(family: EncoderFamily, builder: &VarBuilder<'_>, width: usize) -> Result<Self> {
        let layer = |name: &str, output: usize| linear(width, output, builder.pp(name));
        Ok(match family {
            EncoderFamily::Bert => Self::Bert(layer("bert.pooler.dense", width)?, layer("classifier", 1)?),
            EncoderFamily::Roberta => {
                Self::Roberta(layer("classifier.dense", width)?, layer("classifier.out_proj", 1)?)
            }
            EncoderFamily::DistilBert => Self::DistilBert(layer("pre_classifier", width)?, layer("classifier", 1)?),
            _ => candle_core::bail!("cross-encoders of this kind are not computed"),
        })
    }
}

/// What a cross-encoder's number goes through: a sigmoid, unless its settings say otherwise.
fn activation(config: &EncoderSettings) -> std::result::Result<EncoderActivation, EncoderError> {
    const OLD: &str = "sbert_ce_default_activation_function";
    let new = &config.json["sentence_transformers"]["activation_fn"];
    let named = if new.is_null() { config.json[OLD].clone() } else { new.clone() };
    let settings = EncoderSettings { path: config.path.clone(), json: json!({ "activation_fn": named }) };
    EncoderActivation::named(&settings, "activation_fn", EncoderActivation::Sigmoid)
}
