//! A share of a stage's layers, where several connections carry one hand-over.

use crate::{LayerRange, codec::CodecError, limits};
use bincode::{Decode, Encode};

/// Every `of`-th layer of a range, from the `index`-th on: layers are computed in order, so all lanes always have some to carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Lane {
    /// Which one.
    pub index: u8,
    /// How many there are, one at least.
    pub of: u8,
}

impl Lane {
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

    /// Refuses more lanes than there may be, and one that is none of them.
    ///
    /// # Errors
    /// Names the rule broken.
    pub fn check(self) -> Result<(), CodecError> {
        if self.index < self.of && self.of <= limits::LANES { Ok(()) } else { Err(CodecError::Invalid("no such lane")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_carry_each_layer_once() {
        let range = LayerRange { start: 3, end: 12 };
        for of in 1..=limits::LANES {
            let mut all: Vec<u32> = Lane::beside(of).flat_map(|lane| lane.layers(range)).collect();
            all.sort_unstable();
            assert_eq!(all, range.iter().collect::<Vec<u32>>(), "{of} lanes");
            for lane in Lane::beside(of) {
                let carried: Vec<u32> = (0..20).filter(|layer| lane.carries(range, *layer)).collect();
                assert_eq!(carried, lane.layers(range).collect::<Vec<u32>>(), "{lane:?}");
                assert!(lane.check().is_ok());
            }
        }
        let wrong = [Lane { index: 0, of: 0 }, Lane { index: 1, of: 1 }, Lane { index: 0, of: limits::LANES + 1 }];
        assert!(wrong.iter().all(|lane| lane.check().is_err()));
    }
}
