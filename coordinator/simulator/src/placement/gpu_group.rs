//! Devices that serve together.

use std::collections::BTreeMap;
use tsnode_coordinator::scheduler::{
    cluster::{Cluster, InstanceId},
    parallel::InstanceDevices,
};

/// Devices that serve together: each stage so many devices of one host side by side, activations passing from stage to
/// stage.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuGroup {
    /// The stages, by host.
    pub stages: Vec<(InstanceId, u16)>,
}

impl GpuGroup {
    /// How many devices.
    #[must_use]
    pub fn devices(&self) -> u32 {
        self.stages.iter().map(|s| u32::from(s.1)).sum()
    }

    /// Its devices by host.
    #[must_use]
    pub fn members(&self) -> InstanceDevices {
        let mut of: BTreeMap<InstanceId, u16> = BTreeMap::new();
        for (instance, tp) in &self.stages {
            *of.entry(*instance).or_default() += tp;
        }
        of.into_iter().collect()
    }

    /// Both as one: side by side if they are alike on one host, in a row otherwise; `None` where no link is, or
    /// where devices of one kind would be cut differently.
    #[must_use]
    pub fn with(&self, other: &Self, cluster: &Cluster) -> Option<Self> {
        if let (&[(a, tp)], &[(b, same)]) = (&self.stages[..], &other.stages[..])
            && a == b
            && tp == same
        {
            return Some(Self { stages: vec![(a, 2 * tp)] });
        }
        let mut stages = [&self.stages[..], &other.stages].concat();
        stages.sort_unstable();
        // Devices of one kind are cut alike.
        let kind = |i: InstanceId| cluster.instance(i).kind;
        if stages.iter().any(|a| stages.iter().any(|b| kind(a.0) == kind(b.0) && a.1 != b.1)) {
            return None;
        }
        let open = stages.windows(2).all(|w| cluster.path(w[0].0, w[1].0).is_open());
        open.then_some(Self { stages })
    }
}
