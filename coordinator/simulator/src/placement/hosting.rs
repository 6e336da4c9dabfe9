//! What a GPU group holds and how fast it is: each service's parallel configuration there, the weights of all who share it,
//! and what is left for KV pages.

use super::{Placement, Services, SharingGroup, gpu_group::GpuGroup};
use crate::{
    measured_cost::ServiceCosts,
    policy::{
        doubling::{Doubling, ServiceProfile},
        least_loaded::ServiceHolder,
        pages::Pages,
        pool::TOKENS_A_PAGE,
    },
};
use std::collections::BTreeMap;
use std::sync::Arc;
use tsnode_coordinator::{
    policy::{
        batching::{BatchLimits, ServiceNo},
        routing::MachineNo,
    },
    replay::{iteration_cost::IterationCost, machines::Machine},
    scheduler::{
        cost::StageEnds,
        parallel::{self, ParallelConfig},
        problem::Problem,
        workload::WorkloadRequest,
    },
};
use tsnode_protocol::{Bytes, BytesPerToken, Phase, Seconds, Tokens};

/// What an iteration may hold.
const LIMITS: BatchLimits = BatchLimits { tasks: 256, tokens: 2048 };

/// A service on a group, alone.
#[derive(Clone, Debug)]
pub struct Hosted {
    /// How the devices are used, and what that gives.
    pub config: ParallelConfig,
    /// Its requests' times with nothing else there.
    pub profile: ServiceProfile,
    cost: Arc<dyn IterationCost>,
    /// By stage, in the order of hosts.
    stages: Vec<StageNeeds>,
}

/// What a service takes on each device of a stage.
#[derive(Clone, Copy, Debug)]
struct StageNeeds {
    weights: Bytes,
    kv: BytesPerToken,
    /// For weights and KV of all, and for KV alone.
    room: (Bytes, Bytes),
}

/// Memory for KV on a group.
#[derive(Clone, Debug, PartialEq)]
pub struct KvRoom {
    /// On each device of the tightest stage.
    pub bytes: Bytes,
    /// What a token takes there, by service of the group.
    pub token: Vec<BytesPerToken>,
}

impl KvRoom {
    /// As pages; services are numbered by their place on the group.
    #[must_use]
    pub fn pages(&self) -> Pages {
        Pages::merged(self.bytes, &self.token)
    }
}

/// Answers for services and groups, each found once.
#[derive(Debug)]
pub struct Hosting<'s> {
    services: &'s Services,
    known: BTreeMap<(ServiceNo, GpuGroup), Option<Arc<Hosted>>>,
}

impl<'s> Hosting<'s> {
    /// Nothing known yet.
    #[must_use]
    pub fn new(services: &'s Services) -> Self {
        Self { services, known: BTreeMap::new() }
    }

    /// What it is about.
    #[must_use]
    pub fn services(&self) -> &'s Services {
        self.services
    }

    /// A service on a group; `None` if the group does not hold its model.
    pub fn hosted(&mut self, service: ServiceNo, group: &GpuGroup) -> Option<Arc<Hosted>> {
        let key = (service, group.clone());
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let found = hosted(self.services.problem(service), group).map(Arc::new);
        self.known.insert(key, found.clone());
        found
    }

    /// Whether a group holds these services at once, with KV of each one's longest request.
    pub fn fits(&mut self, group: &GpuGroup, services: &[ServiceNo]) -> bool {
        services.is_empty() || self.room(group, services).is_some()
    }

    /// What is left for KV beside the weights of these services; `None` if that is not enough for the longest request of
    /// each. On several stages a token takes the part of this pool that it takes where it takes most.
    pub fn room(&mut self, group: &GpuGroup, services: &[ServiceNo]) -> Option<KvRoom> {
        let all: Vec<Arc<Hosted>> = services.iter().map(|s| self.hosted(*s, group)).collect::<Option<_>>()?;
        let left = |stage: usize| {
            let rooms = || all.iter().map(|h| h.stages[stage]);
            let weights: Bytes = rooms().map(|r| r.weights).sum();
            let room = rooms().map(|r| r.room.0).fold(Bytes(f64::INFINITY), Bytes::min);
            let pool = rooms().map(|r| r.room.1).fold(Bytes(f64::INFINITY), Bytes::min);
            (room - weights).min(pool)
        };
        let left: Vec<Bytes> = (0..group.stages.len()).map(left).collect();
        let least = left.iter().copied().fold(Bytes(f64::INFINITY), Bytes::min);
        if least <= Bytes(0.0) || !least.is_finite() {
            return None;
        }
        let part = |(stage, left): (&StageNeeds, &Bytes)| stage.kv.0 / left.0;
        let most = |h: &Arc<Hosted>| h.stages.iter().zip(&left).map(part).fold(0.0, f64::max) * least.0;
        let room = KvRoom { bytes: least, token: all.iter().map(|h| BytesPerToken(most(h))).collect() };
        let pages = room.pages();
        let longest = |s: &ServiceNo| self.services.problem(*s).workload.mean.longest.0.ceil() as u64;
        let fits = |(place, s)| pages.has(pages.of(ServiceNo(place as u16), longest(s) + TOKENS_A_PAGE));
        services.iter().enumerate().all(fits).then_some(room)
    }

    /// A machine for each group that somebody is on, in order, and each service's holders.
    pub fn machines(&mut self, placement: &Placement) -> (Vec<Machine>, Vec<Vec<ServiceHolder>>) {
        let (mut machines, mut numbered) = (Vec::with_capacity(placement.groups.len()), Vec::new());
        for sharing in &placement.groups {
            let Some(machine) = self.machine(sharing) else { continue };
            numbered.push((sharing, MachineNo(machines.len() as u32)));
            machines.push(machine);
        }
        (machines, self.holders(numbered.into_iter()))
    }

    /// Each service's holders, where these groups are these machines.
    pub fn holders<'p>(
        &mut self,
        groups: impl Iterator<Item = (&'p SharingGroup, MachineNo)>,
    ) -> Vec<Vec<ServiceHolder>> {
        let mut holders = vec![Vec::new(); self.services.count()];
        for (sharing, machine) in groups {
            for service in &sharing.services {
                let alone = self.hosted(*service, &sharing.group).map_or(1.0, |h| h.profile.mean.0);
                holders[usize::from(service.0)].push(ServiceHolder { machine, speed: 1.0 / alone });
            }
        }
        holders
    }

    /// A group that shares its time by the doubling budget; `None` if nobody is on it, or it does not hold all.
    pub fn machine(&mut self, sharing: &SharingGroup) -> Option<Machine> {
        let room = self.room(&sharing.group, &sharing.services)?;
        let all: Vec<Arc<Hosted>> =
            sharing.services.iter().map(|s| self.hosted(*s, &sharing.group)).collect::<Option<_>>()?;
        let place = |service: ServiceNo| sharing.services.iter().position(|s| *s == service).unwrap_or(0);
        let places: Vec<usize> = self.services.ids().map(place).collect();
        let token: Vec<BytesPerToken> = places.iter().map(|p| room.token.get(*p).copied()).collect::<Option<_>>()?;
        let cost = ServiceCosts::new(places.iter().map(|p| all[*p].cost.clone()).collect())?;
        let profiles = places.iter().map(|p| all[*p].profile).collect();
        let batching = Doubling::new(profiles, LIMITS, Pages::merged(room.bytes, &token));
        Some(Machine { batching: Box::new(batching), cost: Arc::new(cost) })
    }
}

/// The best configuration with just these stages.
fn hosted(problem: &Problem, group: &GpuGroup) -> Option<Hosted> {
    let mut degrees: Vec<(_, u16)> = group.stages.clone();
    degrees.sort_unstable();
    let stages = |config: &ParallelConfig| {
        let mut stages: Vec<_> = config.stages.iter().map(|s| (s.instance, s.tp)).collect();
        stages.sort_unstable();
        stages
    };
    let all = parallel::all(problem, &group.members(), Phase::Mixed);
    let fitting = all.into_iter().filter(|c| c.kv_tokens > Tokens(0.0) && stages(c) == degrees);
    let config = fitting.max_by(|a, b| a.rate.total_cmp(&b.rate))?;
    let last = config.stages.len() - 1;
    let mut rooms = Vec::with_capacity(config.stages.len());
    for (place, stage) in config.stages.iter().enumerate() {
        let cost = problem.layer_cost(stage.instance, stage.tp)?;
        let ends = StageEnds { first: place == 0, last: place == last };
        let (weights, kv) = (cost.stage_weights(stage.layers, ends), cost.stage_kv(stage.layers));
        rooms.push(((stage.instance, stage.tp), StageNeeds { weights, kv, room: cost.room() }));
    }
    // Another service's stages are those of the same devices.
    rooms.sort_by_key(|r| r.0);
    let time = |r: &WorkloadRequest| {
        config.latency.time(r.prompt) + config.iteration(1.0, r.prompt + r.answer * 0.5) * r.steps()
    };
    let times: Vec<Seconds> = problem.workload.requests.iter().map(time).collect();
    let (profile, cost) = (ServiceProfile::of(&times), Arc::new(config.clone()));
    Some(Hosted { config, profile, cost, stages: rooms.into_iter().map(|r| r.1).collect() })
}
