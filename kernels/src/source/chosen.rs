//! How a model is computed where its files do not say it: with which precision, and for how long sequences. Whoever chooses
//! otherwise has another model, by its id.

use super::{ModelSource, shape_of, short};
use crate::{
    models::{self, ModelStage, StageShare},
    ranks::Rank,
    stored::Coding,
    weights::WeightsError,
};
use tsnode_protocol::ModelId;

/// What products do with rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Round them to what a matrix is stored as, where that is bfloat16 or quantised.
    #[default]
    Stored,
    /// Take them as they are.
    Exact,
}

/// What a model's owner chose of how it is computed.
const EXACT: &[u8] = b"exact";
const LONG: &[u8] = b"long context";

impl ModelSource {
    /// The same model computed with that precision. In [`Precision::Exact`] it goes by another id: its bits are others, and no
    /// group may have both.
    ///
    /// # Errors
    /// As loading has them; [`Self::open`] has found them before.
    pub fn in_precision(mut self, precision: Precision) -> Result<Self, WeightsError> {
        if precision == Precision::Stored || self.precision == precision {
            return Ok(self);
        }
        let whole = StageShare { layers: self.card.shape.all_layers(), rank: Rank::ALONE };
        if let Some(coding) = self.config.coding {
            let stale = coded_note(coding, models::load(&self.config, &self.checkpoint, whole)?.as_ref());
            self.notes.retain(|note| *note != stale);
        }
        self.precision = precision;
        self.checkpoint.make_exact();
        self.config.gpu_lacks = self.config.gpu_lacks.or(Some("products in single precision (--precision exact)"));
        let stage = models::load(&self.config, &self.checkpoint, whole)?;
        self.card.shape = shape_of(&self.config, stage.as_ref());
        self.card.id = varied(self.card.id, EXACT);
        let held: u64 = stage.weights().iter().map(|weight| weight.packed_bytes()).sum();
        self.notes.push(format!(
            "rows are multiplied in single precision: matrices that are not of single or half precision are widened, \
             {} MiB for all layers",
            held.div_ceil(1 << 20)
        ));
        Ok(self)
    }

    /// The same model for sequences longer than its first training's, if it has frequencies for those: all sequences turn by
    /// them then, and it goes by another id. None where it has no others.
    #[must_use]
    pub fn with_long_context(mut self) -> Option<Self> {
        let (scaling, context) = self.config.long.take()?;
        (self.config.rope_scaling, self.config.context) = (scaling, context);
        self.card.shape.context = context as u32;
        self.card.id = varied(self.card.id, LONG);
        self.long = true;
        Some(self)
    }

    /// The id of the model `id` as it was chosen to be computed.
    pub(super) fn chosen(&self, id: ModelId) -> ModelId {
        let chosen = [(self.precision == Precision::Exact, EXACT), (self.long, LONG)].into_iter();
        chosen.filter(|(is, _)| *is).fold(id, |id, (_, what)| varied(id, what))
    }
}

/// The id of a model that is computed otherwise than its files say.
fn varied(id: ModelId, how: &[u8]) -> ModelId {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&id.0).update(how);
    short(&hasher)
}

/// What becomes of weights that servers' quantisers stored, and the memory that takes.
pub(super) fn coded_note(coding: Coding, stage: &dyn ModelStage) -> String {
    let held: u64 = stage.weights().iter().map(|weight| weight.packed_bytes()).sum();
    let held = held.div_ceil(1 << 20);
    match coding {
        Coding::Fp8(_) => format!(
            "weights in FP8 are widened to bfloat16 when they are loaded: {held} MiB for all layers, twice what the files \
             take; rows are not rounded to 8 bits, whatever scales of inputs the files have"
        ),
        Coding::Int4(int4) if int4.by_index => format!(
            "4-bit weights whose groups an index gives (desc_act) are widened to half precision when they are loaded: \
             {held} MiB for all layers, about four times what the files take"
        ),
        Coding::Int4(_) => {
            format!("4-bit weights are laid out for products when they are loaded: {held} MiB for all layers")
        }
    }
}
