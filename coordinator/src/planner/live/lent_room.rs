//! Whether devices have memory for a model's weights at all, looked at before anything is planned.

use tsnode_protocol::{ModelShape, Served};

/// Memory for the weights of one model (bytes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LentRoom {
    together: u64,
    largest: u64,
}

impl LentRoom {
    /// A device more that serves it.
    pub(crate) fn add(&mut self, served: &Served) {
        let room = served.memory_bytes.saturating_sub(served.kv_bytes);
        self.together = self.together.saturating_add(room);
        self.largest = self.largest.max(room);
    }

    /// Whether they hold a model of these sizes: all together, or one of them where one stage has to hold it.
    pub(crate) fn holds(self, shape: &ModelShape) -> bool {
        let room = if shape.whole { self.largest } else { self.together };
        shape.stage_bytes(shape.all_layers()) <= room
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn one_has_to_have_room_for_a_model_that_is_not_cut() {
        let card = sample::card();
        let room = |parts: &[u64]| {
            let mut room = LentRoom::default();
            for part in parts {
                let (memory_bytes, kv_bytes) = ((part + 1) << 20, 1 << 20);
                room.add(&Served { model: card.id, memory_bytes, kv_bytes, is_kept: false, profile: None });
            }
            room
        };
        // Eight MiB.
        let whole = ModelShape { whole: true, ..card.shape };
        let held = |parts: &[u64]| [card.shape, whole].map(|shape| room(parts).holds(&shape));
        assert_eq!(
            [held(&[4, 3]), held(&[4, 4]), held(&[8]), held(&[])],
            [[false; 2], [true, false], [true; 2], [false; 2]]
        );
    }
}
