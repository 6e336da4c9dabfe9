//! A share of a stage's layers, where several connections carry one KV transfer.

use crate::{LayerRange, codec::CodecError, limits};
use bincode::{Decode, Encode};

/// Every `of`-th layer of a range, from the `index`-th on: layers are computed in order, so all parallel streams always have some to carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct KvStream {
    /// Place of this stream among them, counted from 0.
    pub index: u8,
    /// How many there are, one at least.
    pub of: u8,
}

impl KvStream {
    /// The only one.
    pub const WHOLE: Self = Self { index: 0, of: 1 };

    /// So many beside each other.
    pub fn beside(of: u8) -> impl Iterator<Item = Self> {
        (0..of).map(move |index| Self { index, of })
    }

    /// Its layers of `range`, in order.
    pub fn layers(self, range: LayerRange) -> impl Iterator<Item = u32> + Clone {
        range.iter().skip(self.index.into()).step_by(self.of.max(1).into())
    }

    /// Whether `layer` of `range` is one of its own.
    #[must_use]
    pub fn carries(self, range: LayerRange, layer: u32) -> bool {
        range.contains(layer) && (layer - range.start) % u32::from(self.of.max(1)) == u32::from(self.index)
    }

    /// Refuses more parallel streams than there may be, and one that is none of them.
    ///
    /// # Errors
    /// Names the rule broken.
    pub fn check(self) -> Result<(), CodecError> {
        if self.index < self.of && self.of <= limits::KV_STREAMS {
            Ok(())
        } else {
            Err(CodecError::Invalid("no such parallel stream"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kv_streams_carry_each_layer_once() {
        let range = LayerRange { start: 3, end: 12 };
        for of in 1..=limits::KV_STREAMS {
            let mut all: Vec<u32> = KvStream::beside(of).flat_map(|kv_stream| kv_stream.layers(range)).collect();
            all.sort_unstable();
            assert_eq!(all, range.iter().collect::<Vec<u32>>(), "{of} parallel streams");
            for kv_stream in KvStream::beside(of) {
                let carried: Vec<u32> = (0..20).filter(|layer| kv_stream.carries(range, *layer)).collect();
                assert_eq!(carried, kv_stream.layers(range).collect::<Vec<u32>>(), "{kv_stream:?}");
                assert!(kv_stream.check().is_ok());
            }
        }
        let wrong = [
            KvStream { index: 0, of: 0 },
            KvStream { index: 1, of: 1 },
            KvStream { index: 0, of: limits::KV_STREAMS + 1 },
        ];
        assert!(wrong.iter().all(|kv_stream| kv_stream.check().is_err()));
    }
}
