//! Plan flow 1: a GPU that this host lends. It is tried with the model before anybody counts on it.

use super::{GpuNumbers, KV_AT_LEAST, KV_PART, Lend, log};
use crate::{
    hardware::memory::Size,
    store::{Measured, Store, folders::xdg},
};
use serde::{Deserialize, Serialize};
use tsnode_kernels::{
    cuda::{Gpu, GpuError, GpuInfo, GpuSpeeds, KernelCache, PcieLink},
    engine::{Engine, EngineError},
    gpu_check,
    gpu_check::ProofError,
    profile,
    source::ModelSource,
    weights::WeightsError,
};
use tsnode_protocol::{
    BytesPerSecond, Device, DeviceKind, FlopsPerSecond, Gpus, KvDtype, LayerProfile, LayerRange, ModelId,
};

/// Pages of each GPU for a trial alone (bytes).
const TRIED_WITH: usize = 64 << 20;

/// Why a GPU is not lent.
#[derive(Debug, thiserror::Error)]
pub enum GpuUnfit {
    /// It is not there, or does not start.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// It does not compute this model, or not as the processor does.
    #[error("tried with the model: {0}")]
    Proof(#[from] ProofError),
    /// Its pages.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The model's weights, which opening it found well before.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// GPUs of two kinds, of which the slower one would be waited for.
    #[error("{0} and {1} are not of one kind: name each alone, as cuda:0,cuda:1")]
    Apart(String, String),
    /// Two sequences of a trial do not fit the pages.
    #[error(
        "{} of it are for KV pages, where trying the model takes {}; lend more with --memory or --kv-memory, or name a smaller model with --model",
        Size(*.kv), Size(*.least)
    )]
    Pages {
        /// KV pages (bytes).
        kv: u64,
        /// What the trial takes (bytes).
        least: u64,
    },
    /// Not one layer fits beside the pages.
    #[error(
        "{} of it can be lent, where a layer of the model needs {} beside {} of KV pages; lend less KV with --kv-memory, or name a smaller model with --model",
        Size(*.lent), Size(*.layer), Size(*.kv)
    )]
    Memory {
        /// What may be lent (bytes).
        lent: u64,
        /// Its largest layer (bytes).
        layer: u64,
        /// KV pages (bytes).
        kv: u64,
    },
}

/// What a GPU was found to do.
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
struct Speeds {
    multiply: f64,
    copy: f64,
    up: f64,
    down: f64,
}

impl From<GpuSpeeds> for Speeds {
    fn from(GpuSpeeds { multiply, copy, up, down, .. }: GpuSpeeds) -> Self {
        Self { multiply, copy, up, down }
    }
}

/// Memory of a GPU as it is shared out (bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SharedGpuMemory {
    lent: u64,
    kv: u64,
}

/// What is asked for of GPUs.
#[derive(Clone, Copy)]
pub struct GpuWanted<'a> {
    /// The model, and what drafts for it.
    pub models: (&'a ModelSource, Option<&'a ModelSource>),
    /// Memory of each GPU, and threads to try it with.
    pub lend: Lend,
    /// Elements of KV pages.
    pub kv_dtype: KvDtype,
    /// Where measurements are remembered.
    pub store: &'a Store,
}

/// GPUs as one device, and an engine on them that is ready to load. Measures and tries them in some seconds, unless it has before.
///
/// # Errors
/// When they cannot be used, for the model or at all.
pub fn lend(numbers: GpuNumbers, wanted: GpuWanted<'_>) -> Result<(Device, Engine), GpuUnfit> {
    let GpuWanted { models: (source, draft), lend, kv_dtype, store } = wanted;
    gpu_check::refuse_unwritten(source, numbers.count.into())?;
    let (gpus, about) = open_gpus(numbers)?;
    let count = gpus.len();
    let whole = |source: &ModelSource| source.gpu_bytes(source.card().shape.all_layers(), count);
    let (weights, beside) = (whole(source)?, draft.map_or(Ok(0), whole)?);
    let free = (Gpu::pool_bytes_of_all(&gpus, &vec![0; count])? as u64).saturating_sub(beside);
    let shared = shared(lend, count as u64, free, weights);
    // States lie in the pages.
    let least = KV_AT_LEAST * count as u64 + gpu_check::state_bytes(source) as u64;
    refuse_little(shared, largest_layer(source, count)?, least)?;
    let of = Of::new(&about, numbers.count, source.card().id, kv_dtype);
    let place = Measured::Gpus(numbers.first, numbers.count);
    let known = store.measured(place).and_then(|bytes| serde_json::from_slice::<FoundSpeeds>(&bytes).ok());
    let known = known.filter(|known| known.of == of && known.profile.is_none_or(|p| p.is_plausible()));
    let speeds = known.as_ref().map_or_else(|| gpus[0].speeds().map(Speeds::from), |known| Ok(known.speeds))?;
    let mut engine = Engine::on_gpus(gpus, shared.kv as usize, kv_dtype)?;
    let compared = source.is_whole();
    let profile = match known {
        Some(known) if known.compared || !compared => known.profile,
        known => {
            gpu_check::compare(&mut engine, source, lend.threads)?;
            let profile = known.and_then(|known| known.profile).or_else(|| measured(&mut engine, source));
            if let Ok(bytes) = serde_json::to_vec(&FoundSpeeds { of, speeds, profile, compared }) {
                store.set_measured(place, &bytes);
            }
            profile
        }
    };
    if !compared {
        tracing::info!(gpus = %numbers, "the model is still fetched: the GPU is compared with the processor once layers are here");
    }
    tell(numbers, &about, shared, speeds);
    if let Some(way) = engine.gathers() {
        tracing::info!(gpus = %numbers, %way, "how they exchange columns");
    }
    Ok((device(numbers, source, weights, (&about, shared, speeds, profile)), engine))
}

/// Opens GPUs that are to be one device, and says what they are. Kernels that are compiled for them are kept for all peers of this
/// user.
///
/// # Errors
/// When one does not start, or they are not of one kind.
pub fn open_gpus(numbers: GpuNumbers) -> Result<(Vec<Gpu>, GpuInfo), GpuUnfit> {
    let cache = KernelCache::at(xdg("XDG_CACHE_HOME", ".cache").join("tsnode/kernels"));
    let open = |number| Gpu::open_with(number, &cache);
    let gpus = numbers.each().map(open).collect::<Result<Vec<_>, _>>()?;
    let about = gpus.first().map(Gpu::about).unwrap_or_default();
    let other = gpus.iter().map(Gpu::about).find(|other| other.name != about.name);
    match other {
        Some(other) => Err(GpuUnfit::Apart(about.name, other.name)),
        None => Ok((gpus, about)),
    }
}

/// As others are told. Plans count weights as they are stored; formats that are widened on a GPU leave room for fewer of them.
fn device(
    numbers: GpuNumbers,
    source: &ModelSource,
    weights: u64,
    (about, shared, speeds, profile): (&GpuInfo, SharedGpuMemory, Speeds, Option<LayerProfile>),
) -> Device {
    let shape = source.card().shape;
    let stored = shape.stage_bytes(shape.all_layers()) as f64 / weights.max(1) as f64;
    let room = ((shared.lent - shared.kv) as f64 * stored.min(1.0)) as u64;
    let count = f64::from(numbers.count);
    let name = if numbers.count > 1 { format!("{} × {}", numbers.count, about.name) } else { about.name.clone() };
    Device {
        kind: DeviceKind::Cuda(sheet(numbers, about, speeds)),
        name: name.chars().take(100).collect(),
        memory_bytes: shared.kv + room,
        kv_bytes: shared.kv,
        flops: FlopsPerSecond(count * speeds.multiply),
        bandwidth: BytesPerSecond(count * speeds.copy),
        serves: Vec::new(),
    }
    .for_one(source.card().id, profile)
}

/// Compares GPUs with the processor and gives them back: what they are.
///
/// # Errors
/// When they cannot be used, for the model or at all.
pub fn try_gpus(
    numbers: GpuNumbers,
    source: &ModelSource,
    threads: usize,
    kv_dtype: KvDtype,
) -> Result<GpuInfo, GpuUnfit> {
    let (gpus, about) = open_gpus(numbers)?;
    let pool = (TRIED_WITH + gpu_check::state_bytes(source)) * gpus.len();
    let mut engine = Engine::on_gpus(gpus, pool, kv_dtype)?;
    gpu_check::compare(&mut engine, source, threads)?;
    Ok(about)
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

fn tell(numbers: GpuNumbers, about: &GpuInfo, shared: SharedGpuMemory, speeds: Speeds) {
    let (lent, kv) = (Size(shared.lent), Size(shared.kv));
    let (gb_s, tflop_s) = ((speeds.copy / 1e9).round(), (speeds.multiply / 1e12).round());
    let driver = about.facts.driver.as_deref().unwrap_or("unknown");
    tracing::info!(gpu = %numbers, name = %about.name, driver, kernels = %about.kernels, %lent, %kv, gb_s, tflop_s, "a GPU is lent");
}

/// What others are told of the GPU.
fn sheet(GpuNumbers { first, count }: GpuNumbers, about: &GpuInfo, speeds: Speeds) -> Gpus {
    let facts = &about.facts;
    let small = |n: i32| n.clamp(0, 255) as u8;
    let (major, minor) = about.capability;
    Gpus {
        first,
        count,
        capability: (small(major), small(minor)),
        driver: facts.driver.as_ref().and_then(|text| text.parse().ok()),
        power_limit_mw: facts.power_limit_mw,
        clocks_mhz: facts.clock_mhz.zip(facts.memory_clock_mhz),
        pcie: facts.pcie.map(|link| match link {
            PcieLink::Fastest { generation, lanes } | PcieLink::AtIdle { generation, lanes } => {
                (generation.min(255) as u8, lanes.min(255) as u8)
            }
        }),
        up: BytesPerSecond(speeds.up),
        down: BytesPerSecond(speeds.down),
    }
}

/// What of `free` memory of all GPUs is lent, and what of that is for KV pages: what the whole model leaves, where that is no small
/// part. An owner speaks of each GPU.
fn shared(lend: Lend, gpus: u64, free: u64, weights: u64) -> SharedGpuMemory {
    let lent = lend.memory_bytes.map_or(free, |most| most.saturating_mul(gpus).min(free));
    let beside = lent.saturating_sub(weights);
    let least = (lent as f64 * KV_PART) as u64;
    SharedGpuMemory { lent, kv: lend.kv_bytes.map_or(beside.max(least), |each| each.saturating_mul(gpus)) }
}

/// Refuses memory that the model cannot be tried in: with so large a layer beside pages for keys, values and states.
fn refuse_little(SharedGpuMemory { lent, kv }: SharedGpuMemory, layer: u64, least: u64) -> Result<(), GpuUnfit> {
    if lent < layer + kv {
        return Err(GpuUnfit::Memory { lent, layer, kv });
    }
    if kv < least { Err(GpuUnfit::Pages { kv, least }) } else { Ok(()) }
}

/// What the largest of those layers takes on a GPU that are tried there, embedding and head with the first and the last (bytes).
fn largest_layer(source: &ModelSource, gpus: usize) -> Result<u64, WeightsError> {
    let kinds = source.one_of_each_kind(source.card().shape.all_layers())?;
    let mut layers = kinds.into_iter().map(|start| LayerRange { start, end: start + 1 });
    layers.try_fold(0, |most, layer| Ok(source.gpu_bytes(layer, gpus)?.max(most)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_get_what_the_model_leaves_or_a_part_where_it_leaves_little() {
        let lend = |memory_bytes, kv_bytes| Lend { threads: 1, memory_bytes, kv_bytes };
        assert_eq!(shared(lend(None, None), 1, 80, 16), SharedGpuMemory { lent: 80, kv: 64 });
        assert_eq!(shared(lend(None, None), 1, 80, 140), SharedGpuMemory { lent: 80, kv: 20 });
        assert_eq!(shared(lend(Some(40), None), 1, 80, 16), SharedGpuMemory { lent: 40, kv: 24 });
        assert_eq!(shared(lend(Some(100), Some(8)), 1, 80, 16), SharedGpuMemory { lent: 80, kv: 8 });
        assert_eq!(shared(lend(Some(40), Some(8)), 2, 160, 16), SharedGpuMemory { lent: 80, kv: 16 });
    }

    #[test]
    fn little_memory_is_refused_with_what_is_missing() {
        let refused = |layer, least| refuse_little(SharedGpuMemory { lent: 80, kv: 40 }, layer, least);
        assert!(refused(40, 40).is_ok());
        assert!(matches!(refused(41, 40), Err(GpuUnfit::Memory { lent: 80, layer: 41, kv: 40 })));
        assert!(matches!(refused(40, 41), Err(GpuUnfit::Pages { kv: 40, least: 41 })));
    }
}
