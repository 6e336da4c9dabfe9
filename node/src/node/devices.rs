//! Plan flow 1: the devices of this host that are lent, measured, and the engines that compute on them.

use super::{NodeConfig, NodeError};
use crate::{
    hardware::{self, DeviceChoice, DeviceName, GpuNumbers, Lend, LendError, Wanted, cores},
    store::Store,
};
use std::collections::BTreeMap;
use tsnode_kernels::{
    cuda,
    device::Host,
    engine::{Engine, EngineConfig},
    source::ModelSource,
};
use tsnode_protocol::Device;

/// What is looked for.
pub(super) struct Devices<'a> {
    pub config: &'a NodeConfig,
    /// The model, and what drafts for it.
    pub models: (&'a ModelSource, Option<&'a ModelSource>),
    pub host: Host,
    pub store: &'a Store,
}

impl Devices<'_> {
    /// All that are lent, in the order of the advert.
    pub fn lend(&self) -> Result<Vec<(Device, Engine)>, NodeError> {
        match &self.config.devices {
            DeviceChoice::Named(names) => names.iter().map(|name| self.named(*name)).collect(),
            DeviceChoice::Auto => {
                let gpus = self.gpus();
                if gpus.is_empty() { Ok(vec![self.processor()?]) } else { Ok(gpus) }
            }
        }
    }

    fn named(&self, name: DeviceName) -> Result<(Device, Engine), NodeError> {
        match name {
            DeviceName::Processor => self.processor(),
            DeviceName::Gpus(gpus) => self.together(gpus).map_err(|error| LendError::Gpu { gpus, error }.into()),
        }
    }

    /// All GPUs that compute the model: each a device of its own, or so many together as hold all of it. One that does not is
    /// said, and is no reason not to serve.
    fn gpus(&self) -> Vec<(Device, Engine)> {
        let gpus = match &self.host.gpus {
            Ok(gpus) => gpus,
            Err(why) => {
                tracing::info!(why, "no GPU");
                return Vec::new();
            }
        };
        let usable = cuda::usable().unwrap_or_else(|error| {
            tracing::warn!(%error, "GPUs are not used");
            Vec::new()
        });
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
        for gpus in hardware::sets(&memory, self.models.0.card().shape) {
            match lend(gpus) {
                Some(device) => lent.push(device),
                None if gpus.count > 1 => lent.extend(gpus.each().map(GpuNumbers::one).filter_map(lend)),
                None => {}
            }
        }
        lent
    }

    fn together(&self, gpus: GpuNumbers) -> Result<(Device, Engine), hardware::GpuUnfit> {
        let Self { config, models, store, .. } = *self;
        hardware::gpus(gpus, Wanted { models, lend: self.asked(), kv_dtype: config.kv_dtype, store })
    }

    fn processor(&self) -> Result<(Device, Engine), NodeError> {
        let (Self { config, host, store, .. }, (source, draft)) = (self, self.models);
        let cores = config.cores.as_ref();
        let measured = cores::run_on(cores, || {
            let device = hardware::processor(host, self.asked(), store)?;
            hardware::room(host, &device, source, config.threads.ranks)?;
            let device = hardware::room_beside(host, device, (source, draft), config.threads.ranks)?;
            let profile = hardware::profile(host, source, config.threads, config.kv_dtype, store);
            Ok::<_, LendError>(Device { profile, ..device })
        });
        let system = |e: std::io::Error| NodeError::System(e.to_string());
        let device = measured.map_err(system)??;
        let engine =
            EngineConfig { threads: config.threads, pool_bytes: device.kv_bytes as usize, kv_dtype: config.kv_dtype };
        let started = cores::run_on(cores, || Engine::started(engine, cores::each_its_own(cores)));
        Ok((device, started.and_then(|started| started).map_err(system)?))
    }

    fn asked(&self) -> Lend {
        let NodeConfig { threads, memory_bytes, kv_bytes, .. } = *self.config;
        Lend { threads: threads.count, memory_bytes, kv_bytes }
    }
}
