//! Models of which a peer has some layers and not others, as its advert says it.

use crate::{LayerRange, ModelId, codec::CodecError, limits};
use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

/// The layers that a peer has of a model: verified, on its disk, and given to whoever asks. Of a model that its advert has and that is
/// not named so, it has all.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct PartialModel {
    /// The model of which the peer has a part.
    pub model: ModelId,
    /// Layers, each with what a stage of it alone reads: the first with the embedding, the last with the head. In order, with others
    /// between them; where they are in more pieces than are said, the longest.
    pub layers: Vec<LayerRange>,
}

impl PartialModel {
    /// With these layers, in any order.
    #[must_use]
    pub fn of(model: ModelId, layers: impl IntoIterator<Item = u32>) -> Self {
        let mut sorted: Vec<u32> = layers.into_iter().collect();
        sorted.sort_unstable();
        let mut pieces: Vec<LayerRange> = Vec::new();
        for layer in sorted {
            let end = layer.saturating_add(1);
            match pieces.last_mut() {
                Some(piece) if layer <= piece.end => piece.end = piece.end.max(end),
                _ => pieces.push(LayerRange { start: layer, end }),
            }
        }
        if pieces.len() > limits::LAYER_PIECES {
            pieces.sort_by_key(|piece| std::cmp::Reverse(piece.len()));
            pieces.truncate(limits::LAYER_PIECES);
            pieces.sort_unstable();
        }
        Self { model, layers: pieces }
    }

    /// Whether a layer is there.
    #[must_use]
    pub fn has(&self, layer: u32) -> bool {
        self.layers.iter().any(|piece| piece.contains(layer))
    }

    /// Refuses pieces that are no layers of a model with so many, that are out of order, or that should be one.
    ///
    /// # Errors
    /// Names the rule broken.
    pub fn check(&self, layers: u32) -> Result<(), CodecError> {
        if self.layers.len() > limits::LAYER_PIECES {
            return Err(CodecError::Invalid("too many pieces of a model"));
        }
        let apart = self.layers.windows(2).all(|two| two[0].end < two[1].start);
        let are_layers = self.layers.iter().all(|piece| piece.start < piece.end && piece.end <= layers);
        if apart && are_layers { Ok(()) } else { Err(CodecError::Invalid("pieces of a model out of order")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(layers: &[u32]) -> Vec<(u32, u32)> {
        let partial = PartialModel::of(ModelId([1; 16]), layers.iter().copied());
        partial.layers.iter().map(|piece| (piece.start, piece.end)).collect()
    }

    fn check(pieces: &[(u32, u32)]) -> Result<(), CodecError> {
        let layers = pieces.iter().map(|(start, end)| LayerRange { start: *start, end: *end }).collect();
        PartialModel { model: ModelId([1; 16]), layers }.check(8)
    }

    #[test]
    fn layers_beside_each_other_are_one_piece() {
        assert_eq!(of(&[]), []);
        assert_eq!(of(&[2, 0, 1, 1, 5]), [(0, 3), (5, 6)]);
        let partial = PartialModel::of(ModelId([1; 16]), [0, 1, 5]);
        assert_eq!([0, 1, 2, 5, 6].map(|layer| partial.has(layer)), [true, true, false, true, false]);
    }

    #[test]
    fn of_more_pieces_than_are_said_the_longest_are() {
        let single = (0..limits::LAYER_PIECES as u32).map(|n| 3 * n);
        let last = 3 * limits::LAYER_PIECES as u32;
        let partial = PartialModel::of(ModelId([1; 16]), single.chain([last, last + 1]));
        assert_eq!(partial.layers.len(), limits::LAYER_PIECES);
        assert!(partial.has(last) && partial.has(last + 1));
        assert_eq!(partial.check(limits::LAYERS), Ok(()));
    }

    #[test]
    fn what_is_no_part_of_a_model_is_refused() {
        assert_eq!((check(&[]), check(&[(0, 8)]), check(&[(0, 2), (3, 8)])), (Ok(()), Ok(()), Ok(())));
        for wrong in [&[(0, 9)][..], &[(2, 2)], &[(3, 2)], &[(0, 2), (2, 3)], &[(4, 5), (0, 1)], &[(0, 3), (1, 5)]] {
            assert!(check(wrong).is_err(), "{wrong:?}");
        }
        let many: Vec<(u32, u32)> = (0..=limits::LAYER_PIECES as u32).map(|n| (2 * n, 2 * n + 1)).collect();
        assert!(check(&many).is_err());
    }
}
