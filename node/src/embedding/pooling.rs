//! How the vectors of an input's tokens become one: as sentence-transformers' `1_Pooling/config.json` says.

use super::{EncoderError, batch::EncoderBatch, encoder_settings::EncoderSettings};
use candle_core::{Device, Result, Tensor};

/// One way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pooling {
    /// Of the first token.
    Cls,
    /// The largest of each value.
    Max,
    /// The mean.
    Mean,
    /// The sum, by the root of the length.
    MeanSqrtLen,
    /// The mean, where the n-th token counts n times.
    WeightedMean,
    /// Of the last token.
    Last,
}

/// What each is called as a flag and as a mode. Where several are wanted, they are put one behind the other in this order.
const NAMES: [(Pooling, &str, &str); 6] = [
    (Pooling::Cls, "pooling_mode_cls_token", "cls"),
    (Pooling::Max, "pooling_mode_max_tokens", "max"),
    (Pooling::Mean, "pooling_mode_mean_tokens", "mean"),
    (Pooling::MeanSqrtLen, "pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"),
    (Pooling::WeightedMean, "pooling_mode_weightedmean_tokens", "weightedmean"),
    (Pooling::Last, "pooling_mode_lasttoken", "lasttoken"),
];

/// The ways that a pooling module's settings name.
pub(super) fn read(settings: &EncoderSettings) -> std::result::Result<Vec<Pooling>, EncoderError> {
    let named = |name: &str| match &settings.json["pooling_mode"] {
        serde_json::Value::Array(all) => all.iter().any(|mode| mode == name),
        one => one == name,
    };
    let wanted = NAMES.iter().filter(|(_, flag, mode)| settings.flag(flag) || named(mode));
    let ways: Vec<Pooling> = wanted.map(|(way, ..)| *way).collect();
    if ways.is_empty() {
        let known: Vec<&str> = NAMES.iter().map(|(_, flag, _)| *flag).collect();
        return Err(settings.unsupported(format!("it names no way of pooling that is known: {}", known.join(", "))));
    }
    Ok(ways)
}

/// One vector for each input, of its tokens' vectors (inputs, longest, width).
pub(super) fn pool(ways: &[Pooling], hidden: &Tensor, batch: &EncoderBatch) -> Result<Tensor> {
    let pooled: Result<Vec<Tensor>> = ways.iter().map(|way| way.pool(hidden, batch)).collect();
    Tensor::cat(&pooled?, 1)
}

impl Pooling {
    fn pool(self, hidden: &Tensor, batch: &EncoderBatch) -> Result<Tensor> {
        let weights = batch.weights()?;
        match self {
            Self::Cls => hidden.narrow(1, 0, 1)?.squeeze(1),
            Self::Last => {
                let row = |(at, length): (usize, &usize)| hidden.get(at)?.get(length.saturating_sub(1));
                let rows: Result<Vec<Tensor>> = batch.lengths.iter().enumerate().map(row).collect();
                Tensor::stack(&rows?, 0)
            }
            Self::Max => {
                // Padding is far below whatever a token has.
                let below = ((weights - 1.0)? * 1e9)?;
                hidden.broadcast_add(&below)?.max(1)
            }
            Self::Mean => mean(hidden, &weights),
            Self::MeanSqrtLen => hidden.broadcast_mul(&weights)?.sum(1)?.broadcast_div(&weights.sum(1)?.sqrt()?),
            Self::WeightedMean => {
                let longest = hidden.dim(1)?;
                let places: Vec<f32> = (1..=longest).map(|at| at as f32).collect();
                let places = Tensor::from_vec(places, (1, longest, 1), &Device::Cpu)?;
                mean(hidden, &weights.broadcast_mul(&places)?)
            }
        }
    }
}

fn mean(hidden: &Tensor, weights: &Tensor) -> Result<Tensor> {
    hidden.broadcast_mul(weights)?.sum(1)?.broadcast_div(&weights.sum(1)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedding::batch::Tokenised;
    use serde_json::json;

    fn settings(json: serde_json::Value) -> EncoderSettings {
        EncoderSettings { path: "config.json".into(), json }
    }

    #[test]
    fn padding_counts_for_nothing() {
        let input = |length: usize| Tokenised { ids: vec![1; length], types: vec![0; length] };
        let batch = EncoderBatch::of(&[&input(2), &input(1)], 0).unwrap();
        let hidden = Tensor::new(&[[[1.0f32, 4.0], [3.0, 2.0]], [[5.0, -6.0], [100.0, 100.0]]], &Device::Cpu).unwrap();
        let pooled = |way: Pooling| pool(&[way], &hidden, &batch).unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(pooled(Pooling::Cls), [[1.0, 4.0], [5.0, -6.0]]);
        assert_eq!(pooled(Pooling::Last), [[3.0, 2.0], [5.0, -6.0]]);
        assert_eq!(pooled(Pooling::Max), [[3.0, 4.0], [5.0, -6.0]]);
        assert_eq!(pooled(Pooling::Mean), [[2.0, 3.0], [5.0, -6.0]]);
        assert_eq!(pooled(Pooling::MeanSqrtLen)[1], [5.0, -6.0]);
        assert_eq!(pooled(Pooling::WeightedMean), [[7.0 / 3.0, 8.0 / 3.0], [5.0, -6.0]]);
        let both = pool(&[Pooling::Cls, Pooling::Mean], &hidden, &batch).unwrap();
        assert_eq!(both.to_vec2::<f32>().unwrap()[0], [1.0, 4.0, 2.0, 3.0]);
    }

    #[test]
    fn ways_are_named_by_flags_or_by_mode() {
        let flags = json!({ "pooling_mode_cls_token": false, "pooling_mode_mean_tokens": true });
        assert_eq!(read(&settings(flags)).unwrap(), [Pooling::Mean]);
        assert_eq!(read(&settings(json!({ "pooling_mode": "lasttoken" }))).unwrap(), [Pooling::Last]);
        assert_eq!(read(&settings(json!({ "pooling_mode": ["mean", "cls"] }))).unwrap(), [Pooling::Cls, Pooling::Mean]);
        assert!(read(&settings(json!({ "word_embedding_dimension": 32 }))).is_err());
    }
}
