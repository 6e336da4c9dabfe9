//! Several models on the same devices: which GPU groups there are, and which services share each (SeaLLM §4.1, App. A.1).
//!
//! [`crate::services`] divides a cluster: every device serves one model, phases are split, plans are made by
//! closed forms. Here a group of devices holds several models at once and runs them in turns, so that one service's quiet
//! hour is another's room; both phases stay on a group, and placements are judged by simulation, with the policy that
//! shares a group's time.
//!
//! | question | where |
//! |---|---|
//! | what is a placement, is it allowed | here |
//! | which GPU groups | [`groups`]: one parallel configuration for all, merged until every model fits |
//! | what a group holds, how fast it is | [`hosting`]: weights of all its services and KV pages beside them |
//! | how good is it | [`judge`]: simulated on past requests; SLO attainment first, then normalised latency |
//! | who goes where | [`allocate`] (Algorithm 1), then [`improve`] |
//! | everything together | [`search`]; [`baselines`] to compare |
//! | when to place anew | [`replacement`] (Eq. 8) |
//! | what getting there takes | [`moving`] |
//! | how a trace is served, placed anew on the way | [`serving`] |
//!
//! Everything is a pure function of services, past requests and a seed.

pub mod allocate;
pub mod baselines;
pub mod gpu_group;
pub mod groups;
pub mod hosting;
pub mod improve;
pub mod judge;
pub mod moving;
pub mod replacement;
pub mod search;
pub mod serving;

use crate::placement::{groups::GpuGroup, hosting::Hosting};
use std::collections::BTreeMap;
use tsnode_coordinator::{
    policy::batching::ServiceNo,
    scheduler::{Cluster, InstanceId, problem::Problem},
};

/// Most services that share a group, where nothing says otherwise (SeaLLM §6.1).
pub const MOST_SHARING: usize = 2;

/// What there is to place: services that may use the whole cluster, each with its model, requests and deadlines.
#[derive(Clone, Debug)]
pub struct Services {
    all: Vec<Problem>,
    /// Most services on one group.
    pub sharing: usize,
}

/// Why there is no placement.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlacementError {
    /// Nothing to place, or more than can be numbered.
    #[error("{0} services: there must be between 1 and 65535")]
    Services(usize),
    /// Services that may not share.
    #[error("at most {0} services on a group: it must be at least 1")]
    Sharing(usize),
    /// No GPU groups hold every model at once.
    #[error("no GPU groups of this cluster hold all {0} services at once, at most {1} on a group")]
    DoesNotFit(usize, usize),
}

impl Services {
    /// Services on one cluster, each problem on the whole of it.
    ///
    /// # Errors
    /// No services, too many, or a limit that lets none be placed.
    pub fn new(all: Vec<Problem>, sharing: usize) -> Result<Self, PlacementError> {
        if all.is_empty() || all.len() > usize::from(u16::MAX) {
            return Err(PlacementError::Services(all.len()));
        }
        if sharing == 0 {
            return Err(PlacementError::Sharing(sharing));
        }
        Ok(Self { all, sharing })
    }

    /// Their numbers.
    pub fn ids(&self) -> impl Iterator<Item = ServiceNo> + use<> {
        (0..self.all.len() as u16).map(ServiceNo)
    }

    /// How many.
    #[must_use]
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// One of them.
    #[must_use]
    pub fn problem(&self, service: ServiceNo) -> &Problem {
        &self.all[usize::from(service.0)]
    }

    /// The devices.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.all[0].cluster
    }

    /// The same at other rates (requests/s, by service); a service that nobody asks at present keeps a little.
    #[must_use]
    pub fn at_rates(&self, rates: &[f64]) -> Self {
        let at = |(problem, rate): (&Problem, &f64)| problem.at_rate(rate.max(1e-6));
        Self { all: self.all.iter().zip(rates).map(at).collect(), sharing: self.sharing }
    }
}

/// A GPU group and the services that share it, in order: the paper's sharing group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SharingGroup {
    /// The devices and how they are cut.
    pub group: GpuGroup,
    /// Who shares them.
    pub services: Vec<ServiceNo>,
}

/// A placement of services on groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Placement {
    /// The groups; some may be empty.
    pub groups: Vec<SharingGroup>,
}

/// Why a placement is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPlacement {
    /// A host's devices in more groups than there are.
    #[error("{used} devices of host {host} are used, it has {has}")]
    Devices {
        /// Its number.
        host: u32,
        /// Devices in groups.
        used: u32,
        /// Devices it has.
        has: u16,
    },
    /// Too many on one group.
    #[error("{0} services share a group")]
    Crowded(usize),
    /// Weights of all, and KV of each one's longest request, do not fit.
    #[error("group {0} cannot hold its services")]
    Memory(usize),
    /// A service that is nowhere.
    #[error("service {0} is on no group")]
    Nowhere(u16),
}

impl Placement {
    /// Groups that nobody is on yet.
    #[must_use]
    pub fn empty(groups: &[GpuGroup]) -> Self {
        let empty = |group: &GpuGroup| SharingGroup { group: group.clone(), services: Vec::new() };
        Self { groups: groups.iter().map(empty).collect() }
    }

    /// Groups that hold a service.
    pub fn holders(&self, service: ServiceNo) -> impl Iterator<Item = usize> + '_ {
        self.groups.iter().enumerate().filter(move |(_, s)| s.services.contains(&service)).map(|(place, _)| place)
    }

    /// Devices that serve a service, those it shares counted whole.
    #[must_use]
    pub fn devices(&self, service: ServiceNo) -> u32 {
        self.holders(service).map(|place| self.groups[place].group.devices()).sum()
    }

    /// Puts a service on a group, in order; nothing changes if it is there.
    pub fn add(&mut self, place: usize, service: ServiceNo) {
        let services = &mut self.groups[place].services;
        if let Err(at) = services.binary_search(&service) {
            services.insert(at, service);
        }
    }

    /// Takes a service off a group.
    pub fn remove(&mut self, place: usize, service: ServiceNo) {
        self.groups[place].services.retain(|s| *s != service);
    }

    /// Whether it is allowed: each device in one group, few enough services on each, all in memory, every service
    /// somewhere (SeaLLM Eq. 3, 4).
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self, hosting: &mut Hosting<'_>) -> Result<(), InvalidPlacement> {
        let mut used: BTreeMap<InstanceId, u32> = BTreeMap::new();
        for (instance, tp) in self.groups.iter().flat_map(|s| &s.group.stages) {
            *used.entry(*instance).or_default() += u32::from(*tp);
        }
        for (id, used) in used {
            let has = hosting.services().cluster().instance(id).count;
            if used > u32::from(has) {
                return Err(InvalidPlacement::Devices { host: id.0, used, has });
            }
        }
        for (place, sharing) in self.groups.iter().enumerate() {
            if sharing.services.len() > hosting.services().sharing {
                return Err(InvalidPlacement::Crowded(sharing.services.len()));
            }
            if !hosting.fits(&sharing.group, &sharing.services) {
                return Err(InvalidPlacement::Memory(place));
            }
        }
        match hosting.services().ids().find(|s| self.holders(*s).next().is_none()) {
            Some(service) => Err(InvalidPlacement::Nowhere(service.0)),
            None => Ok(()),
        }
    }
}
