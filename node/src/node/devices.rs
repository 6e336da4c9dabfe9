//! Plan flow 1: the devices of this host that are lent, measured, and the engines that compute on them.

use super::{NodeConfig, NodeError, opened::Opened};
use crate::{
    hardware::{
        self, DeviceChoice, DeviceName, GpuModel, GpuNumbers, GpuWanted, Lend, LendError, cores,
        memory::StageHolder,
        memory_parts::{MemoryPart, SharedMemory, Sharer, divide},
    },
    store::Store,
};
use std::collections::BTreeMap;
use tsnode_kernels::{
    cuda,
    device::Host,
    engine::{DevicePool, Engine, EngineConfig},
    source::ModelSource,
};
use tsnode_protocol::{Device, ModelShape, Served};

/// A device, and an engine on it for each model.
pub(super) type LentDevice = (Device, Vec<Engine>);

/// What is looked for.
pub(super) struct DeviceSearch<'a> {
    pub config: &'a NodeConfig,
    /// The models; at least one.
    pub models: &'a [Opened],
    pub host: Host,
    pub store: &'a Store,
}

impl DeviceSearch<'_> {
    /// All that are lent, in the order of the advert.
    pub fn lend(&self) -> Result<Vec<LentDevice>, NodeError> {
        match &self.config.devices {
            DeviceChoice::Named(names) => names.iter().map(|name| self.named(*name)).collect(),
            DeviceChoice::Auto => {
                let gpus = self.gpus()?;
                if gpus.is_empty() { Ok(vec![self.processor()?]) } else { Ok(gpus) }
            }
        }
    }

    fn named(&self, name: DeviceName) -> Result<LentDevice, NodeError> {
        match name {
            DeviceName::Processor => self.processor(),
            DeviceName::Gpus(gpus) => self.together(gpus).map_err(|error| LendError::Gpu { gpus, error }.into()),
        }
    }

    /// All GPUs that compute the models: each a device of its own, or so many together as hold all of them. One that does not is
    /// said, and is no reason not to serve.
    fn gpus(&self) -> Result<Vec<LentDevice>, NodeError> {
        let gpus = match &self.host.gpus {
            Ok(gpus) => gpus,
            Err(why) => {
                tracing::info!(why, "no GPU");
                return Ok(Vec::new());
            }
        };
        let usable = cuda::usable().unwrap_or_else(|error| {
            tracing::warn!(%error, "GPUs are not used");
            Vec::new()
        });
        if usable.is_empty() {
            return Ok(Vec::new());
        }
        let usable = usable.into_iter().take(tsnode_protocol::limits::DEVICES);
        let memory = |number: &u16| gpus.iter().find(|gpu| gpu.ordinal == *number).map_or(0, |gpu| gpu.memory_bytes);
        let memory: BTreeMap<u16, u64> = usable.map(|number| (number, memory(&number))).collect();
        let lend = |gpus| match self.together(gpus) {
            Ok(lent) => Some(lent),
            Err(error) => {
                tracing::warn!(%gpus, %error, "not used");
                None
            }
        };
        let mut lent = Vec::new();
        for gpus in hardware::sets(&memory, &self.held_together()) {
            match lend(gpus) {
                Some(device) => lent.push(device),
                None if gpus.count > 1 => lent.extend(gpus.each().map(GpuNumbers::one).filter_map(lend)),
                None => {}
            }
        }
        Ok(lent)
    }

    /// Shapes of the models that a device is to hold at once: the largest, where they are loaded as they are asked for.
    fn held_together(&self) -> Vec<ModelShape> {
        let mut shapes: Vec<ModelShape> = self.models.iter().map(|model| model.source.card().shape).collect();
        if self.config.swap_models {
            shapes.sort_by_key(|shape| std::cmp::Reverse(shape.stage_bytes(shape.all_layers())));
            shapes.truncate(1);
        }
        shapes
    }

    fn together(&self, gpus: GpuNumbers) -> Result<LentDevice, hardware::GpuUnfit> {
        let models = self.sharers().into_iter().zip(self.models);
        let models: Vec<_> = models.map(|(sharer, model)| GpuModel { sharer, kv_dtype: model.dtype }).collect();
        let swaps = self.config.swap_models;
        hardware::gpus(gpus, GpuWanted { models: &models, lend: self.asked(), swaps, store: self.store })
    }

    fn processor(&self) -> Result<LentDevice, NodeError> {
        let (Self { config, host, store, .. }, threads) = (self, self.config.threads);
        let cores = config.cores.as_ref();
        let measured = cores::run_on(cores, || {
            let device = hardware::processor(host, self.asked(), store)?;
            let parts = self.parts(&device)?;
            let served = |(model, part): (&Opened, &MemoryPart)| {
                let source: &ModelSource = &model.source;
                let profile = hardware::profile(host, source, threads, model.dtype, store);
                let (MemoryPart { memory_bytes, kv_bytes }, is_kept) = (*part, self.is_kept(model));
                Served { model: source.card().id, memory_bytes, kv_bytes, is_kept, profile }
            };
            let serves: Vec<Served> = self.models.iter().zip(&parts).map(served).collect();
            let kv_bytes = serves.iter().map(|served| served.kv_bytes).sum();
            // Of models that are not all there at once the parts are more.
            let memory_bytes = serves.iter().map(|served| served.memory_bytes).sum::<u64>().min(device.memory_bytes);
            Ok::<_, LendError>(Device { memory_bytes, kv_bytes, serves, ..device })
        });
        let system = |e: std::io::Error| NodeError::System(e.to_string());
        let device = measured.map_err(system)??;
        let pool_bytes = device.kv_bytes as usize;
        let pool = (self.models.len() > 1).then(|| DevicePool::new(pool_bytes, threads.ranks));
        let engine = |model: &Opened| {
            let (kv_dtype, starting) = (model.dtype, cores::each_its_own(cores));
            let started = cores::run_on(cores, || match &pool {
                Some(pool) => Engine::started_in(pool, threads, kv_dtype, starting),
                None => Engine::started(EngineConfig { threads, pool_bytes, kv_dtype }, starting),
            });
            started.and_then(|started| started).map_err(system)
        };
        let engines = self.models.iter().map(engine).collect::<Result<_, _>>()?;
        Ok((device, engines))
    }

    /// Each model's part of the processor's memory.
    fn parts(&self, device: &Device) -> Result<Vec<MemoryPart>, LendError> {
        let (host, ranks) = (&self.host, self.config.threads.ranks);
        if let [model] = self.models {
            let (source, draft) = (&*model.source, model.draft.as_deref());
            hardware::room(host, device, source, ranks)?;
            let Device { memory_bytes, kv_bytes, .. } =
                hardware::room_beside(host, device.clone(), (source, draft), ranks)?;
            return Ok(vec![MemoryPart { memory_bytes, kv_bytes }]);
        }
        let is_kv_told = self.config.kv_bytes.is_some();
        let (lent, holder, swaps) = (device.memory_bytes, StageHolder::Ranks(ranks), self.config.swap_models);
        divide(SharedMemory { lent, kv_bytes: device.kv_bytes, is_kv_told, holder, swaps }, &self.sharers())
    }

    /// The models, as they share a device.
    fn sharers(&self) -> Vec<Sharer<'_>> {
        let models = self.models.iter().zip(&self.config.models);
        let sharers = models.map(|(model, wanted)| Sharer {
            source: &model.source,
            draft: model.draft.as_deref(),
            memory_bytes: wanted.memory_bytes,
            is_kept: self.is_kept(model),
        });
        sharers.collect()
    }

    fn is_kept(&self, model: &Opened) -> bool {
        model.is_kept || self.config.keep.contains(&model.source.card().name)
    }

    /// A model alone has no more than its own part.
    fn asked(&self) -> Lend {
        let NodeConfig { threads, memory_bytes, kv_bytes, models, .. } = self.config;
        let part = if let [model] = &models[..] { model.memory_bytes } else { None };
        let memory_bytes = memory_bytes.iter().copied().chain(part).min();
        Lend { threads: threads.count, memory_bytes, kv_bytes: *kv_bytes }
    }
}
