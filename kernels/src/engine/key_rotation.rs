//! How the keys of each layer of a stage turn.

use crate::{
    models::{LayerOutline, ModelStage},
    wire::KeyRotation,
};

/// Turns of all layers; layers that turn alike share one.
pub(super) struct StageRotations {
    all: Vec<KeyRotation>,
    /// Which of them, layer by layer; none for models whose keys do not turn, and for layers of which a head lies in pages as
    /// several: pairs of channels are not in the same one.
    of: Vec<Option<usize>>,
}

impl StageRotations {
    pub fn new(stage: &dyn ModelStage) -> Self {
        let Some(outline) = stage.outline() else { return Self { all: Vec::new(), of: Vec::new() } };
        // All layers of a model have their pairs alike.
        let pairs = outline.layers.first().map(|layer| layer.attention.pairs).unwrap_or_default();
        let all = outline.ropes.iter().map(|rope| KeyRotation::new(rope, pairs)).collect();
        let of = |layer: &LayerOutline<'_>| (layer.attention.look.parts == 1).then_some(layer.attention.rope);
        Self { all, of: outline.layers.iter().map(of).collect() }
    }

    /// That of a layer, counted over the stage.
    pub fn of(&self, layer: usize) -> Option<&KeyRotation> {
        self.all.get((*self.of.get(layer)?)?)
    }
}
