//! Plan flow 1: what this host lends, measured once and remembered.

pub mod cores;
mod device_choice;
mod gpu;
pub mod memory;
pub mod memory_parts;
mod sets;

pub use device_choice::{ChoiceError, DeviceChoice, DeviceName, GpuNumbers};
pub use gpu::{GpuModel, GpuUnfit, GpuWanted, lend as gpus, open_gpus, try_gpus};
pub use sets::sets;

use crate::{
    hardware::{
        memory::{Need, Size, StageHolder, TooLarge},
        memory_parts::TooLargeTogether,
    },
    store::{Measured, Store},
};
use serde::{Deserialize, Serialize};
use tsnode_kernels::{device::Host, engine::Threads, probe, profile, source::ModelSource, weights::WeightsError};
use tsnode_protocol::{BytesPerSecond, Device, DeviceKind, FlopsPerSecond, KvDtype, LayerProfile};

/// Part of the host's free memory lent unless told otherwise.
const MEMORY_PART: f64 = 0.5;
/// KV pages unless told otherwise: a part of what is lent, and at most this (bytes).
const KV_PART: f64 = 0.25;
const KV_AT_MOST: u64 = 4 << 30;
/// What to do where a draft model has too little memory.
const LESS_BESIDE: &str = "a layer of the model and its KV pages leave no more: lend less with --kv-memory, or name a smaller \
                           draft model with --draft, or none";
/// Fewer KV pages hold no sequence (bytes).
const KV_AT_LEAST: u64 = 1 << 20;

/// A remembered measurement, with what it holds for.
#[derive(Serialize, Deserialize)]
struct RememberedSpeed {
    cpu: String,
    threads: usize,
    version: String,
    flops: f64,
    bandwidth: f64,
}

/// A remembered profile.
#[derive(Serialize, Deserialize)]
struct Profiled {
    of: Profiling,
    profile: LayerProfile,
}

/// What a profile holds for beside its model.
#[derive(PartialEq, Serialize, Deserialize)]
struct Profiling {
    cpu: String,
    threads: usize,
    ranks: usize,
    version: String,
    kv: String,
    method: u32,
}

/// What is asked of a host.
#[derive(Clone, Copy, Debug)]
pub struct Lend {
    /// Threads that compute.
    pub threads: usize,
    /// At most (bytes), if told.
    pub memory_bytes: Option<u64>,
    /// KV pages (bytes), if told.
    pub kv_bytes: Option<u64>,
}

/// Why a host cannot lend what is asked of it.
#[derive(Debug, thiserror::Error)]
pub enum LendError {
    /// More, or next to nothing.
    #[error(
        "cannot lend {} for KV pages: from 1 MiB to the {} that is free here; set --kv-memory",
        Size(*.asked), Size(*.free)
    )]
    Memory {
        /// Bytes asked for.
        asked: u64,
        /// Bytes there are.
        free: u64,
    },
    /// Not even one layer of the model.
    #[error(transparent)]
    Model(#[from] TooLarge),
    /// Several models that together are too large.
    #[error(transparent)]
    Together(#[from] TooLargeTogether),
    /// A draft model beside models that are not all in memory at once.
    #[error("{0} has a draft model, which none may have of models that are not all in memory at once (--swap-models)")]
    SwapsWithDraft(String),
    /// Models that stay in memory leave too little for another.
    #[error(
        "what --keep holds in memory leaves {} beside the KV pages of all models, where {model} needs {}; keep fewer, or lend more with --memory",
        Size(*.left), Size(*.needs)
    )]
    KeepsTooMuch {
        /// The largest of the others.
        model: String,
        /// Its weights (bytes).
        needs: u64,
        /// What is left (bytes).
        left: u64,
    },
    /// The model's weights, which opening it found well before.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The system gives no threads.
    #[error("cannot measure the processor: {0}")]
    Measure(#[from] std::io::Error),
    /// A GPU that was named.
    #[error("{gpus} cannot be lent: {error}; `tsnode doctor` says what was found, --device cpu does without")]
    Gpu {
        /// Which.
        gpus: GpuNumbers,
        /// Why not.
        error: GpuUnfit,
    },
}

/// Memory lent, of which there may be `at_most` so much (bytes).
fn lent(host: &Host, at_most: Option<u64>) -> u64 {
    let usual = || (host.cpu.available_bytes as f64 * MEMORY_PART) as u64;
    at_most.map_or_else(usual, |most| most.min(host.cpu.available_bytes))
}

/// Memory for KV pages: as `asked`, or a part of what is lent (bytes).
///
/// # Errors
/// When that is more than the host has, or holds no sequence.
pub fn kv_bytes(host: &Host, asked: Option<u64>, at_most: Option<u64>) -> Result<u64, LendError> {
    let usual = || ((lent(host, at_most) as f64 * KV_PART) as u64).clamp(KV_AT_LEAST, KV_AT_MOST);
    let free = at_most.map_or(host.cpu.available_bytes, |most| most.min(host.cpu.available_bytes));
    let kv = asked.unwrap_or_else(usual);
    if kv < KV_AT_LEAST || kv > free { Err(LendError::Memory { asked: kv, free }) } else { Ok(kv) }
}

/// The processor as a device of the swarm. Measures in a tenth of a second, unless it has before.
///
/// # Errors
/// When the host has not what is asked for.
pub fn processor(host: &Host, lend: Lend, store: &Store) -> Result<Device, LendError> {
    let (memory, kv) = (lent(host, lend.memory_bytes), kv_bytes(host, lend.kv_bytes, lend.memory_bytes)?);
    let speed = speed(host, lend.threads, store)?;
    Ok(Device {
        kind: DeviceKind::Cpu { threads: lend.threads.min(u16::MAX.into()) as u16 },
        name: host.cpu.name.chars().take(100).collect(),
        memory_bytes: if lend.memory_bytes.is_some() { memory } else { memory.max(kv) },
        kv_bytes: kv,
        flops: speed.flops,
        bandwidth: speed.bandwidth,
        serves: Vec::new(),
    })
}

/// Refuses a model of which not one layer fits beside the KV pages that `device` lends, and says so where only a part of it
/// fits: then other peers must hold the rest, or all of a model that one stage has to hold.
///
/// # Errors
/// When there is less memory than that, or the model cannot be cut for so many ranks.
pub fn room(host: &Host, device: &Device, source: &ModelSource, ranks: usize) -> Result<(), LendError> {
    let (free, shape) = (host.cpu.available_bytes, source.card().shape);
    let holder = StageHolder::Ranks(ranks);
    Need::of_least(source, holder, device.kv_bytes)?.within(free)?;
    let whole = Need::of(source, shape.all_layers(), holder, device.kv_bytes)?;
    let planned = shape.stage_bytes(shape.all_layers());
    if planned > device.memory_bytes || whole.total() > free {
        let (lent, free) = (Size(device.memory_bytes), Size(free));
        let room = if shape.whole {
            "this peer has no room for the model, which one peer has to hold: plans do not give it to this one"
        } else {
            "this peer has room for a part of the model only: others must hold the rest"
        };
        tracing::warn!(%whole, planned = %Size(planned), %lent, %free, "{room}");
    }
    Ok(())
}

/// Takes the memory of a draft model, if there is one, off what `device` lends; refuses one that does not fit beside a layer of
/// the model that it drafts for, and the KV pages.
///
/// # Errors
/// When there is less memory than that, or it cannot be cut for so many ranks.
pub fn room_beside(
    host: &Host,
    device: Device,
    (source, draft): (&ModelSource, Option<&ModelSource>),
    ranks: usize,
) -> Result<Device, LendError> {
    let Some(draft) = draft else { return Ok(device) };
    let holder = StageHolder::Ranks(ranks);
    let need = draft_need(source, draft, holder)?;
    let (bytes, model) = (need.total(), Need::of_least(source, holder, device.kv_bytes)?);
    need.within_or(host.cpu.available_bytes.saturating_sub(model.total()), LESS_BESIDE)?;
    let memory_bytes = device.memory_bytes.saturating_sub(bytes).max(device.kv_bytes);
    Ok(Device { memory_bytes, ..device })
}

/// What a draft model needs: its KV lies in pages that nobody else needs just then, and steps use the model's buffers as far as
/// those reach.
pub fn draft_need(source: &ModelSource, draft: &ModelSource, holder: StageHolder) -> Result<Need, WeightsError> {
    let of = |source: &ModelSource| Need::of(source, source.card().shape.all_layers(), holder, 0);
    let (draft, there) = (of(draft)?, of(source)?.working);
    Ok(Need { what: format!("draft model {}", draft.what), working: draft.working.saturating_sub(there), ..draft })
}

/// What a layer of the model takes here. Measures in a tenth of a second with a small model and some seconds with a large
/// one, unless it has before; a model that cannot be measured is planned for by the device's speeds alone.
pub fn profile(
    host: &Host,
    source: &ModelSource,
    threads: Threads,
    kv: KvDtype,
    store: &Store,
) -> Option<LayerProfile> {
    let of = Profiling {
        cpu: host.cpu.name.clone(),
        threads: threads.count,
        ranks: threads.ranks,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        kv: format!("{kv:?}"),
        method: profile::METHOD,
    };
    let place = Measured::Profile(source.card().id);
    let kept = store.measured(place).and_then(|bytes| serde_json::from_slice::<Profiled>(&bytes).ok());
    if let Some(Profiled { profile, .. }) =
        kept.filter(|k| k.of == of && k.profile.model == source.card().id && k.profile.is_plausible())
    {
        log(&profile, "a layer was measured at an earlier start");
        return Some(profile);
    }
    let profile = match profile::measure(source, threads, kv) {
        Ok(profile) => profile.filter(LayerProfile::is_plausible)?,
        Err(error) => {
            tracing::warn!(%error, "the model was not measured; plans count with this device's speeds alone");
            return None;
        }
    };
    log(&profile, "a layer was measured");
    if let Ok(bytes) = serde_json::to_vec(&Profiled { of, profile }) {
        store.set_measured(place, &bytes);
    }
    Some(profile)
}

fn log(profile: &LayerProfile, what: &str) {
    let LayerProfile { model, prompts, steps, mixed, .. } = profile;
    tracing::info!(%model, %prompts, %steps, %mixed, "{what}");
}

fn speed(host: &Host, threads: usize, store: &Store) -> std::io::Result<probe::Speed> {
    let version = env!("CARGO_PKG_VERSION");
    let fits = |r: &RememberedSpeed| r.cpu == host.cpu.name && r.threads == threads && r.version == version;
    let kept = store
        .measured(Measured::Processor)
        .and_then(|bytes| serde_json::from_slice::<RememberedSpeed>(&bytes).ok())
        .filter(fits);
    if let Some(kept) = kept {
        let (flops, bandwidth) = (FlopsPerSecond(kept.flops), BytesPerSecond(kept.bandwidth));
        return Ok(probe::Speed { flops, bandwidth });
    }
    let speed = probe::measure(threads)?;
    let remembered = RememberedSpeed {
        cpu: host.cpu.name.clone(),
        threads,
        version: version.to_owned(),
        flops: speed.flops.0,
        bandwidth: speed.bandwidth.0,
    };
    if let Ok(bytes) = serde_json::to_vec(&remembered) {
        store.set_measured(Measured::Processor, &bytes);
    }
    Ok(speed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_host_has_not_is_not_lent() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let host = Host::detect();
        for asked in [0, 1 << 50] {
            let lend = Lend { threads: 1, memory_bytes: None, kv_bytes: Some(asked) };
            assert!(matches!(processor(&host, lend, &store), Err(LendError::Memory { .. })), "{asked}");
        }
        let device =
            processor(&host, Lend { threads: 1, memory_bytes: None, kv_bytes: Some(8 << 20) }, &store).unwrap();
        assert_eq!(device.kv_bytes, 8 << 20);
        assert!(store.measured(Measured::Processor).is_some(), "measured once, then remembered");
    }

    #[test]
    fn a_profile_is_remembered_for_what_it_was_measured_of() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let (host, source) = (Host::detect(), ModelSource::embedded().unwrap());
        let place = Measured::Profile(source.card().id);
        let kept_of = |threads| {
            assert!(
                profile(&host, &source, Threads::together(threads), KvDtype::F16, &store)
                    .is_some_and(|p| p.is_plausible())
            );
            String::from_utf8(store.measured(place).unwrap()).unwrap()
        };
        let first = kept_of(1);
        assert_eq!(kept_of(1), first);
        // Two measurements agree in all digits as good as never.
        let second = kept_of(2);
        assert_ne!(second, first);
        assert_eq!(kept_of(2), second);
        // As it was remembered before there was anything about how good it is, and as another method would have it.
        let old = r#"{"of":["cpu",2,"0.1.0","F16"],"profile":{"prefill":[1.0,1.0,1.0],"decode":[1.0,1.0,1.0]}}"#;
        let other = second.replace(&format!(r#""method":{}"#, profile::METHOD), r#""method":0"#);
        assert_ne!(other, second);
        for kept in [old, &other] {
            store.set_measured(place, kept.as_bytes());
            assert!(![kept, &second].contains(&&*kept_of(2)), "{kept}");
        }
    }

    #[test]
    fn a_model_with_no_layer_that_fits_is_refused_with_its_sum() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let (mut host, source) = (Host::detect(), ModelSource::embedded().unwrap());
        let device =
            processor(&host, Lend { threads: 1, memory_bytes: None, kv_bytes: Some(8 << 20) }, &store).unwrap();
        room(&host, &device, &source, 1).unwrap();
        host.cpu.available_bytes = 8 << 20;
        let said = room(&host, &device, &source, 1).unwrap_err().to_string();
        assert!(said.contains("1 of 4 layers of gutenberg-tiny needs") && said.contains("KV 8.0 MiB"), "{said}");
    }
}
