//! A model on GPUs that are open: tried and measured there, unless that was done before.

use super::{super::log, GpuModel, GpuNumbers, MemoryPart};
use crate::store::{Measured, Store};
use serde::{Deserialize, Serialize};
use tsnode_kernels::{
    cuda::{GpuInfo, GpuSpeeds},
    engine::Engine,
    gpu_check,
    gpu_check::ProofError,
    profile,
    source::ModelSource,
    weights::WeightsError,
};
use tsnode_protocol::{KvDtype, LayerProfile, ModelId, Served};

/// What a GPU was found to do with a model.
#[derive(Clone, Serialize, Deserialize)]
struct FoundSpeeds {
    of: Of,
    speeds: Speeds,
    /// None where the model cannot be measured.
    profile: Option<LayerProfile>,
    /// Whether what it computes was compared with the processor's: not of weights that were not there yet.
    #[serde(default)]
    compared: bool,
}

/// What it holds for.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Of {
    gpu: String,
    count: u16,
    driver: Option<String>,
    capability: (i32, i32),
    version: String,
    model: ModelId,
    kv: String,
    method: u32,
    tried: u32,
}

impl Of {
    fn new(about: &GpuInfo, count: u16, model: ModelId, kv_dtype: KvDtype) -> Self {
        Self {
            gpu: about.name.clone(),
            count,
            driver: about.facts.driver.clone(),
            capability: about.capability,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            model,
            kv: format!("{kv_dtype:?}"),
            method: profile::METHOD,
            tried: gpu_check::METHOD,
        }
    }
}

/// Of one GPU.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct Speeds {
    pub multiply: f64,
    pub copy: f64,
    pub up: f64,
    pub down: f64,
}

impl From<GpuSpeeds> for Speeds {
    fn from(GpuSpeeds { multiply, copy, up, down, .. }: GpuSpeeds) -> Self {
        Self { multiply, copy, up, down }
    }
}

/// A model on GPUs that are open, and what is known of it there.
pub(super) struct OpenedModel<'a> {
    pub model: GpuModel<'a>,
    of: Of,
    known: Option<FoundSpeeds>,
    /// All of it there (bytes).
    pub weights: u64,
}

impl<'a> OpenedModel<'a> {
    pub fn of(
        model: &GpuModel<'a>,
        (numbers, about): (GpuNumbers, &GpuInfo),
        store: &Store,
    ) -> Result<Self, WeightsError> {
        let card = model.sharer.source.card();
        let of = Of::new(about, numbers.count, card.id, model.kv_dtype);
        let kept = store.measured(place(numbers, card.id));
        let known = kept.and_then(|bytes| serde_json::from_slice::<FoundSpeeds>(&bytes).ok());
        let known = known.filter(|known| known.of == of && known.profile.is_none_or(|p| p.is_plausible()));
        let weights = model.sharer.source.gpu_bytes(card.shape.all_layers(), numbers.count.into())?;
        Ok(Self { model: *model, of, known, weights })
    }

    /// What the GPU was found to do when the model was tried.
    pub fn speeds(&self) -> Option<Speeds> {
        self.known.as_ref().map(|known| known.speeds)
    }

    /// Tries the model on an engine, and measures it, unless that was done before; what a layer of it takes.
    pub fn tried(
        self,
        engine: &mut Engine,
        (numbers, speeds): (GpuNumbers, Speeds),
        (threads, store): (usize, &Store),
    ) -> Result<Option<LayerProfile>, ProofError> {
        let Self { model, of, known, .. } = self;
        let source = model.sharer.source;
        let compared = source.is_whole();
        if let Some(known) = known.as_ref().filter(|known| known.compared || !compared) {
            return Ok(known.profile);
        }
        let profile = engine.turn(|engine| {
            gpu_check::compare(engine, source, threads)?;
            Ok::<_, ProofError>(known.and_then(|known| known.profile).or_else(|| measured(engine, source)))
        })?;
        if let Ok(bytes) = serde_json::to_vec(&FoundSpeeds { of, speeds, profile, compared }) {
            store.set_measured(place(numbers, source.card().id), &bytes);
        }
        Ok(profile)
    }

    /// Its part of the device. Plans count weights as they are stored; formats that are widened on a GPU leave room for fewer of them.
    pub fn served(&self, part: MemoryPart, profile: Option<LayerProfile>) -> Served {
        let (MemoryPart { memory_bytes, kv_bytes }, source) = (part, self.model.sharer.source);
        let room = (memory_bytes.saturating_sub(kv_bytes) as f64 * self.stored()) as u64;
        let is_kept = self.model.sharer.is_kept;
        Served { model: source.card().id, memory_bytes: kv_bytes + room, kv_bytes, is_kept, profile }
    }

    /// Bytes of its weights as they are stored for each there, if these are no fewer.
    pub fn stored(&self) -> f64 {
        let shape = self.model.sharer.source.card().shape;
        (shape.stage_bytes(shape.all_layers()) as f64 / self.weights.max(1) as f64).min(1.0)
    }
}

fn place(numbers: GpuNumbers, model: ModelId) -> Measured {
    Measured::Gpus(numbers.first, numbers.count, model)
}

/// What a layer takes on the GPU.
fn measured(engine: &mut Engine, source: &ModelSource) -> Option<LayerProfile> {
    match profile::measure_on(engine, source) {
        Ok(profile) => {
            let profile = profile.filter(LayerProfile::is_plausible);
            profile.iter().for_each(|profile| log(profile, "a layer was measured on a GPU"));
            profile
        }
        Err(error) => {
            tracing::warn!(%error, "the model was not measured on a GPU; plans count with the GPU's speeds alone");
            None
        }
    }
}
