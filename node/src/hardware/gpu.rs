//! Plan flow 1: a GPU that this host lends. It is tried with the model before anybody counts on it.

mod gpu_memory;
mod opened_model;

use super::{GpuNumbers, Lend, LendError};
use crate::{
    hardware::{
        memory::Size,
        memory_parts::{MemoryPart, Sharer},
    },
    store::{Store, folders::xdg},
};
use gpu_memory::{SharedGpuMemory, fits_trial, memory};
use opened_model::{OpenedModel, Speeds};
use std::sync::Arc;
use tsnode_kernels::{
    cuda::{Gpu, GpuError, GpuInfo, KernelCache, PcieLink},
    engine::{DevicePool, Engine, EngineError, Threads},
    gpu_check,
    gpu_check::ProofError,
    source::ModelSource,
    weights::WeightsError,
};
use tsnode_protocol::{BytesPerSecond, Device, DeviceKind, FlopsPerSecond, Gpus, KvDtype, Served};

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
    /// One of several models.
    #[error(
        "{model}: {error}; a GPU computes all models or none: leave this one out, or have the processor serve all with --device cpu"
    )]
    Of {
        /// What it is called.
        model: String,
        /// Why not.
        error: Box<GpuUnfit>,
    },
    /// Several models do not fit together.
    #[error(transparent)]
    Together(#[from] Box<LendError>),
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

/// What a device of GPUs holds: its memory, that of KV pages (bytes), and each model's part.
struct HeldMemory {
    memory_bytes: u64,
    kv_bytes: u64,
    serves: Vec<Served>,
}

/// What is asked for of GPUs.
#[derive(Clone, Copy)]
pub struct GpuWanted<'a> {
    /// The models; at least one.
    pub models: &'a [GpuModel<'a>],
    /// Memory of each GPU, and threads to try it with.
    pub lend: Lend,
    /// Whether weights of all models need not be there at once.
    pub swaps: bool,
    /// Where measurements are remembered.
    pub store: &'a Store,
}

/// A model that is to be on GPUs.
#[derive(Clone, Copy)]
pub struct GpuModel<'a> {
    /// It, what drafts for it, and its part of their memory where its owner says it.
    pub sharer: Sharer<'a>,
    /// Elements of its KV pages.
    pub kv_dtype: KvDtype,
}

/// GPUs as one device, and on them an engine for each model that is ready to load. Measures and tries them in some seconds, unless it has
/// before.
///
/// # Errors
/// When they cannot be used, for one of the models or at all.
pub fn lend(numbers: GpuNumbers, wanted: GpuWanted<'_>) -> Result<(Device, Vec<Engine>), GpuUnfit> {
    let GpuWanted { models, lend, store, .. } = wanted;
    let of_model = |model: &GpuModel<'_>, error: GpuUnfit| match models {
        [_] => error,
        _ => GpuUnfit::Of { model: model.sharer.source.card().name.clone(), error: error.into() },
    };
    for model in models {
        let written = gpu_check::refuse_unwritten(model.sharer.source, numbers.count.into());
        written.map_err(|error| of_model(model, error.into()))?;
    }
    let (gpus, about) = open_gpus(numbers)?;
    let opened = models.iter().map(|model| OpenedModel::of(model, (numbers, &about), store));
    let opened = opened.collect::<Result<Vec<_>, _>>()?;
    let (shared, parts) = memory(&gpus, wanted, &opened)?;
    for (model, part) in models.iter().zip(&parts) {
        fits_trial(model.sharer.source, *part, gpus.len()).map_err(|error| of_model(model, error))?;
    }
    let known = opened.iter().find_map(OpenedModel::speeds);
    let speeds = known.map_or_else(|| gpus[0].speeds().map(Speeds::from), Ok)?;
    let mut engines = engines(gpus, shared.kv as usize, models)?;
    let mut serves = Vec::with_capacity(models.len());
    // Of weights that are widened there least is held.
    let stored = opened.iter().map(OpenedModel::stored).fold(1.0, f64::min);
    for ((opened, engine), part) in opened.into_iter().zip(&mut engines).zip(parts) {
        let (model, mut served) = (opened.model, opened.served(part, None));
        let tried = opened.tried(engine, (numbers, speeds), (lend.threads, store));
        served.profile = tried.map_err(|error| of_model(&model, error.into()))?;
        serves.push(served);
    }
    if !models.iter().all(|model| model.sharer.source.is_whole()) {
        tracing::info!(gpus = %numbers, "what is still fetched is compared with what the processor computes once layers are here");
    }
    tell(numbers, &about, shared, speeds);
    if let Some(way) = engines[0].turn(|engine| engine.gathers().map(ToString::to_string)) {
        tracing::info!(gpus = %numbers, way, "how they exchange columns");
    }
    let room = shared.kv + (shared.lent.saturating_sub(shared.kv) as f64 * stored) as u64;
    // Of models that are not all there at once the parts are more.
    let memory_bytes = serves.iter().map(|served| served.memory_bytes).sum::<u64>();
    let memory_bytes = if models.len() > 1 && wanted.swaps { memory_bytes.min(room) } else { memory_bytes };
    Ok((device(numbers, (&about, speeds), HeldMemory { memory_bytes, kv_bytes: shared.kv, serves }), engines))
}

/// An engine for each of them; several have one pool of pages.
fn engines(gpus: Vec<Gpu>, kv: usize, models: &[GpuModel<'_>]) -> Result<Vec<Engine>, GpuUnfit> {
    if let [model] = models {
        return Ok(vec![Engine::on_gpus(gpus, kv, model.kv_dtype)?]);
    }
    let pool = DevicePool::on_gpus(gpus, kv)?;
    let engine = |model: &GpuModel<'_>| {
        Engine::started_in(&pool, Threads::together(1), model.kv_dtype, Arc::new(|_| ()))
            .map_err(|error| GpuError::Missing(format!("no thread for a GPU: {error}")).into())
    };
    models.iter().map(engine).collect()
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

/// As others are told, with what it holds.
fn device(numbers: GpuNumbers, (about, speeds): (&GpuInfo, Speeds), held: HeldMemory) -> Device {
    let HeldMemory { memory_bytes, kv_bytes, serves } = held;
    let count = f64::from(numbers.count);
    let name = if numbers.count > 1 { format!("{} × {}", numbers.count, about.name) } else { about.name.clone() };
    Device {
        kind: DeviceKind::Cuda(sheet(numbers, about, speeds)),
        name: name.chars().take(100).collect(),
        memory_bytes,
        kv_bytes,
        flops: FlopsPerSecond(count * speeds.multiply),
        bandwidth: BytesPerSecond(count * speeds.copy),
        serves,
    }
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
