//! How the keys of each layer of a stage turn.

use crate::{
    models::{AttentionOutline, LayerOutline, ModelStage},
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
        let mut attention = outline.layers.iter().filter_map(LayerOutline::attention).peekable();
        let pairs = attention.peek().map(|attention| attention.pairs).unwrap_or_default();
        let all = outline.ropes.iter().map(|rope| KeyRotation::new(rope, pairs)).collect();
        let of = |attention: &AttentionOutline<'_>| (attention.look.parts == 1).then_some(attention.rope);
        Self { all, of: attention.map(of).collect() }
    }

    /// That of a layer, counted over those of the stage with keys and values.
    pub fn of(&self, layer: usize) -> Option<&KeyRotation> {
        self.all.get((*self.of.get(layer)?)?)
    }
}
