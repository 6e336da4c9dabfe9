//! What a peer lends: its models, and the devices to compute them with.

use super::{
    NodeConfig, NodeError,
    devices::DeviceSearch,
    opened::{Opened, at_first, refuse_alike, refuse_unknown},
};
use crate::{
    data_plane::library::Shelf,
    embedding::{Computing, Lenders, LentEncoder},
    faults::Faults,
    hardware::cores,
    hub::CachedOrigin,
    store::Store,
    weights::{Holding, Index},
    worker::{LentModel, PageShare, Turns, compute::Compute},
};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::watch;
use tsnode_kernels::{
    device::Host as Hardware,
    engine::{DevicePool, Engine},
    load::LoadProgress,
    source::ModelSource,
};
use tsnode_protocol::{Advert, Device, EncoderCard, EncoderTask, ModelId, ModelOrigin, Served};

/// A peer's models, what it computes with, and its advert.
pub(super) struct Resources {
    /// None on a gateway.
    pub models: Vec<Opened>,
    /// Engines, for each device of the advert one for each model.
    pub engines: Vec<Vec<Engine>>,
    /// The advert, without addresses yet.
    pub advert: Advert,
}

impl Resources {
    /// Opens the models that are here, names them by their content and measures the host. Whoever waits is told how far the hashing is.
    pub async fn find(
        config: &NodeConfig,
        store: &Store,
        index: &Index,
        progress: &mut (dyn FnMut(LoadProgress) + Send),
    ) -> Result<Self, NodeError> {
        let first = at_first(config);
        let mut models = Vec::with_capacity(first.models.len());
        for wanted in &first.models {
            let how = (config.threads.count, config.computed);
            models.push(Opened::find(wanted, how, index, progress).await?);
        }
        refuse_unknown(&config.keep, &config.models, called(&models))?;
        Self::of(&first, store, models)
    }

    /// The same of models that are open and have their names.
    pub fn of(config: &NodeConfig, store: &Store, models: Vec<Opened>) -> Result<Self, NodeError> {
        refuse_alike(&config.models, &models)?;
        // Some tenths of a second of computing, seconds with a large model, once: nothing else of this peer runs yet.
        let lent = if models.is_empty() {
            Vec::new()
        } else {
            let devices = DeviceSearch { config, models: &models, host: Hardware::detect(), store };
            tokio::task::block_in_place(|| devices.lend())?
        };
        let (mut devices, engines): (Vec<Device>, Vec<Vec<Engine>>) = lent.into_iter().unzip();
        for model in &models {
            let id = model.source.card().id;
            model.takes.into_iter().for_each(|takes| bound(&mut devices, id, takes));
        }
        let advert = advert(config, &models, devices);
        Ok(Self { models, engines, advert })
    }

    /// The models' small files.
    pub fn shelf(&self) -> Shelf {
        Shelf::new(self.sources())
    }

    /// What the models are called.
    pub fn called(&self) -> Vec<String> {
        called(&self.models)
    }

    /// Models for which the owner said how much memory there is: all that is lent, or the model's part of it.
    pub fn limited(&self, config: &NodeConfig) -> BTreeSet<ModelId> {
        let models = self.models.iter().filter(|model| config.memory_bytes.is_some() || model.has_part);
        models.map(|model| model.source.card().id).collect()
    }

    /// The models.
    pub fn sources(&self) -> Vec<Arc<ModelSource>> {
        self.models.iter().map(|model| model.source.clone()).collect()
    }

    /// Starts the threads that compute: what the worker lends, and what gives the weights to others.
    pub fn start(
        self,
        config: &NodeConfig,
        faults: Option<&watch::Receiver<Faults>>,
    ) -> Result<(Vec<LentModel>, Vec<Holding>), NodeError> {
        // The thread that owns the processor's engine is the first of those that compute.
        let first = config.cores.as_ref().and_then(|cores| cores.only(0));
        let start = |turns: &Turns, engine: Engine, share: Option<PageShare>| {
            let on = first.as_ref().filter(|_| !engine.is_on_gpu());
            let faults = faults.cloned();
            let started = cores::run_on(on, || Compute::start_beside(turns, (engine, share), faults));
            started.and_then(|started| started).map_err(|e| NodeError::System(e.to_string()))
        };
        let adverted: Arc<[Device]> = self.advert.devices.into();
        let mut computes: Vec<Vec<Compute>> = self.models.iter().map(|_| Vec::new()).collect();
        for (engines, device) in self.engines.into_iter().zip(&*adverted) {
            let (turns, mut shares) = (Turns::new(config.sharing), shares(device, config.threads.ranks).into_iter());
            for (computes, engine) in computes.iter_mut().zip(engines) {
                computes.push(start(&turns, engine, shares.next())?);
            }
        }
        let lent = |(Opened { source, draft, holding, is_gated, dtype, .. }, computes)| {
            let given = Some(holding).filter(|_| !is_gated || config.give_gated);
            if given.is_none() {
                let model = &source.card().name;
                tracing::warn!(
                    model,
                    "its repository is gated, or counts as that: its weights are not given to peers; where its terms allow it, \
                     --give-gated gives them"
                );
            }
            (LentModel { source, draft, dtype, computes, adverted: adverted.clone() }, given)
        };
        let (lent, given): (_, Vec<_>) = self.models.into_iter().zip(computes).map(lent).unzip();
        Ok((lent, given.into_iter().flatten().collect()))
    }
}

/// Reads the encoders to lend and starts their threads; `moving` says when what runs here is for others to go on with.
pub(super) fn lenders(config: &NodeConfig, moving: &watch::Receiver<bool>) -> Result<Lenders, NodeError> {
    let computing = Computing { threads: config.threads.count, cores: config.cores.as_ref() };
    let start = |(path, task): &(PathBuf, EncoderTask)| {
        let lender = LentEncoder::start(path, *task, computing, moving.clone())?;
        let EncoderCard { name, dimensions, context, .. } = lender.card();
        tracing::info!(name, dimensions, context, "lends an encoder");
        Ok(lender)
    };
    let started: Result<Vec<LentEncoder>, NodeError> =
        tokio::task::block_in_place(|| config.encoders.iter().map(start).collect());
    Ok(Lenders::new(started?))
}

/// What each model of a device has of its one pool of pages; nothing is said of one that is alone.
fn shares(device: &Device, ranks: usize) -> Vec<PageShare> {
    if device.serves.len() < 2 {
        return Vec::new();
    }
    let quota = |served: &Served| DevicePool::pages(served.kv_bytes as usize, ranks) as u64;
    PageShare::of_device(&device.serves.iter().map(quota).collect::<Vec<_>>())
}

/// Has devices say no more memory for a model's weights than plans may give this peer of it (bytes): to each its part of that.
fn bound(devices: &mut [Device], model: ModelId, takes: u64) {
    let all: u128 = devices.iter().filter_map(|device| device.served(model)).map(weights_room).sum();
    if all <= u128::from(takes) {
        return;
    }
    for served in devices.iter_mut().flat_map(|device| &mut device.serves).filter(|served| served.model == model) {
        // No more than it was.
        let part = (weights_room(served) * u128::from(takes) / all) as u64;
        served.memory_bytes = served.kv_bytes.saturating_add(part);
    }
}

/// Memory for a model's weights (bytes).
fn weights_room(served: &Served) -> u128 {
    u128::from(served.memory_bytes.saturating_sub(served.kv_bytes))
}

fn called(models: &[Opened]) -> Vec<String> {
    models.iter().map(|model| model.source.card().name.clone()).collect()
}

/// Where a model came from that is gated, and of which nothing else is known: others have to know that it is not given.
const UNKNOWN: &str = "unknown";

/// Where a model came from, as it is told to others.
fn origin(config: &NodeConfig, model: &Opened) -> Option<ModelOrigin> {
    told(model.source.card().id, model.origin.clone(), (model.is_gated, config.give_gated))
}

fn told(model: ModelId, known: Option<CachedOrigin>, (is_gated, gives_gated): (bool, bool)) -> Option<ModelOrigin> {
    let known = known.filter(|origin| ModelOrigin::is_plain(&origin.source));
    let unknown = || is_gated.then(|| CachedOrigin { source: UNKNOWN.into(), licence: None });
    let CachedOrigin { source, licence } = known.or_else(unknown)?;
    let licence = licence.filter(|licence| ModelOrigin::is_plain(licence));
    Some(ModelOrigin { model, source, licence, is_gated, is_given: !is_gated || gives_gated })
}

fn advert(config: &NodeConfig, models: &[Opened], devices: Vec<Device>) -> Advert {
    Advert {
        name: config.name.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        addresses: Vec::new(),
        data_addresses: Vec::new(),
        devices,
        models: models.iter().map(|model| model.source.card().clone()).collect(),
        partial: Vec::new(),
        origins: models.iter().filter_map(|model| origin(config, model)).collect(),
        links: Vec::new(),
        reachable: true,
        encoders: vec![],
        invites: vec![],
        traffic: vec![],
        settings: vec![],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_coordinator::sample;

    #[test]
    fn of_a_gated_model_others_know_that_it_is_not_given_whatever_else_is_known() {
        let model = ModelId([1; 16]);
        let said = |known: Option<&str>, is_gated: bool, gives: bool| {
            let known = known.map(|source| CachedOrigin { source: source.into(), licence: None });
            told(model, known, (is_gated, gives)).map(|origin| (origin.source, origin.is_gated, origin.is_given))
        };
        assert_eq!(said(None, false, false), None);
        assert_eq!(said(Some("org/a@0"), false, false), Some(("org/a@0".into(), false, true)));
        for known in [None, Some("a\u{1b}[2J")] {
            assert_eq!(said(known, true, false), Some((UNKNOWN.into(), true, false)));
        }
        assert_eq!(said(None, true, true), Some((UNKNOWN.into(), true, true)));
        assert!(told(model, None, (true, false)).unwrap().check().is_ok());
    }

    #[test]
    fn devices_together_say_as_much_of_a_model_as_may_be_fetched() {
        let (device, model) = (sample::advert(0).devices[0].clone(), sample::card().id);
        let with = |memory_bytes: u64| {
            let mut device = device.clone();
            (device.serves[0].memory_bytes, device.serves[0].kv_bytes) = (memory_bytes, 10);
            device
        };
        let bounded = |takes: u64| {
            let mut devices = [with(110), with(310)];
            bound(&mut devices, model, takes);
            devices.map(|device| device.serves[0].memory_bytes)
        };
        assert_eq!((bounded(400), bounded(u64::MAX)), ([110, 310], [110, 310]));
        assert_eq!((bounded(200), bounded(0)), ([60, 160], [10, 10]));
        let mut others = [with(110)];
        bound(&mut others, ModelId([99; 16]), 1);
        assert_eq!(others[0].serves[0].memory_bytes, 110);
    }
}
