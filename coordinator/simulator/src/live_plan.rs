//! The plan that a live swarm follows, as machines: its groups by their peers' measured profiles, its routes and links by
//! their adverts, steps and routes as nodes form and choose them. What a testnet's replay is held against.

use crate::kv_memory::{PAGE, PagedKv};
use std::collections::BTreeMap;
use std::sync::Arc;
use tsnode_coordinator::{
    batcher::BatcherConfig,
    gate::{GroupCost, SplitChoice},
    links,
    members::Members,
    planner::live::{self, SearchInput},
    policy::{
        batching::Batch,
        choice::{Batches, Dispatch, MachineRoom},
        routing::MachineNo,
    },
    replay::{
        ReplayPlan,
        gated::ReplayGate,
        iteration_cost::IterationCost,
        machines::{Arrival, Contention, Machine, Outcome, SharedCores},
        pipeline::Pipeline,
    },
    scheduler::{
        Evaluator, Problem,
        cluster::{InstanceDevices as Devices, InstanceId},
        evaluate::{Evaluation, GroupNo, RouteShare},
        parallel::{self, ParallelConfig},
    },
    settings::SwarmSettings,
};
use tsnode_protocol::{BatchPolicy, Bytes, Group, LayerProfile, ModelId, PeerId, Plan, Seconds};

/// Why a plan cannot be simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LivePlanError {
    /// It has no groups and routes of the model.
    #[error("the plan has no groups of this model, or none that requests go to")]
    NoGroups,
    /// Adverts of its peers lack, or say that they cannot hold their layers.
    #[error("the adverts that are known do not say what the plan's groups can do")]
    Unknown,
}

/// What is done beside what layers' profiles say, as measured where nothing else ran.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Overheads {
    /// How much longer every step takes: handing it round, choosing tokens, passing them on.
    pub step: Seconds,
    /// How much longer it takes until a request's first token is seen by who asked.
    pub request: Seconds,
    /// And until its end is: less, where its next tokens are computed while the first is on its way.
    pub whole: Seconds,
    /// Processors that are used while nothing is asked.
    pub idle: f64,
    /// Processor time of each request beside steps: those who take it.
    pub asked: Seconds,
    /// And of each token of its answer: those who pass it on.
    pub token: Seconds,
}

impl Overheads {
    /// What hosts with so many processors have left for steps, while so many requests come and tokens of answers are passed on in a second.
    #[must_use]
    pub fn left(&self, cores: &[f64], requests: f64, tokens: f64) -> Vec<f64> {
        let all: f64 = cores.iter().sum();
        let taken = self.idle + self.asked.0 * requests + self.token.0 * tokens;
        let part = (1.0 - taken / all).max(LEAST_LEFT);
        cores.iter().map(|cores| cores * part).collect()
    }
}

/// Part of the processors that steps get, whatever else is measured to use them.
const LEAST_LEFT: f64 = 0.1;

/// How much longer than profiles say prompts take, or shorter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PromptSpeed {
    /// What of a step grows with its prompts takes so many times as long.
    pub times: f64,
    /// What a step in which a prompt begins takes beside that. Steps that only go on with one take none of it: a second one of 12 tokens
    /// was seen to add 6 ms where the first had 20 beside what grows.
    pub step: Seconds,
}

impl Default for PromptSpeed {
    fn default() -> Self {
        Self { times: 1.0, step: Seconds(0.0) }
    }
}

/// How requests are run.
#[derive(Clone, Debug)]
pub struct LivePlanRun {
    /// How they are routed.
    pub dispatch: Dispatch,
    /// Whether the cost gate is asked where prompts are computed.
    pub split: SplitChoice,
    /// What each step takes beside its layers.
    pub step: Seconds,
    /// How prompts are beside what profiles say.
    pub prompts: PromptSpeed,
    /// Processors of each host.
    pub cores: Vec<f64>,
    /// As many of them as what is done beside steps leaves.
    pub left: Vec<f64>,
    /// Who computes on which of these hosts, with so many threads; others share with nobody.
    pub hosts: BTreeMap<PeerId, (usize, f64)>,
    /// How much longer who computes there takes while others do: hosts are parts of one computer.
    pub contention: Contention,
}

/// A model on a device that computes all of it, maybe beside others.
#[derive(Clone, Debug)]
pub struct Resident {
    /// How its steps are formed.
    pub batches: Batches,
    /// Sequences at once.
    pub places: usize,
    /// What a step takes, by what was measured of its layers.
    pub cost: Arc<dyn IterationCost>,
    /// How its KV lies in pages.
    pub pages: PagedKv,
    /// How many of the device's pages are its quota.
    pub quota: u64,
}

/// A plan with what is known of its peers.
#[derive(Debug)]
pub struct LivePlan<'a> {
    members: &'a Members<'a>,
    input: SearchInput,
    /// How its groups form steps.
    batch: BatchPolicy,
    groups: Vec<Group>,
    shares: Vec<RouteShare>,
}

impl<'a> LivePlan<'a> {
    /// A model's part of a plan that peers with these adverts follow.
    ///
    /// # Errors
    /// When it has no part, or the adverts do not say what its groups can do.
    pub fn new(
        members: &'a Members<'a>,
        plan: &Plan,
        model: ModelId,
        split: SplitChoice,
    ) -> Result<Self, LivePlanError> {
        let groups: Vec<Group> = plan.groups.iter().filter(|g| g.model == model).cloned().collect();
        let place = |id| groups.iter().position(|g| g.id == id);
        let share = |r: &tsnode_protocol::Route| {
            Some(RouteShare { prefill: place(r.prefill)?, decode: place(r.decode)?, share: r.share, kept: 0.0 })
        };
        let mut shares: Vec<RouteShare> = plan.routes.iter().filter_map(share).filter(|s| s.share > 0.0).collect();
        let whole: f64 = shares.iter().map(|s| s.share).sum();
        if whole <= 0.0 {
            return Err(LivePlanError::NoGroups);
        }
        // Gateways turn nothing away.
        shares.iter_mut().for_each(|s| s.share /= whole);
        let holds = |s: &SearchInput| {
            let stages = || groups.iter().flat_map(|g| &g.stages);
            s.card.id == model && stages().all(|stage| s.places().contains(&(stage.peer, stage.device)))
        };
        let input =
            live::inputs_under(members, split, &plan.chosen).into_iter().find(holds).ok_or(LivePlanError::Unknown)?;
        let batch = SwarmSettings::of(members.values().copied()).batched(model, &plan.chosen);
        let plan = Self { members, input, batch, groups, shares };
        let known = plan.shelved(&mut Evaluator::new(&plan.input.problem)).is_some();
        if known { Ok(plan) } else { Err(LivePlanError::Unknown) }
    }

    /// Its groups, in the order of the machines.
    #[must_use]
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Runs requests on it to their ends.
    #[must_use]
    pub fn run(&self, arrivals: &[Arrival], how: &LivePlanRun) -> Outcome {
        let mut evaluator = Evaluator::new(&self.input.problem);
        let groups = self.shelved(&mut evaluator).unwrap_or_default();
        let evaluation = Evaluation { shares: self.shares.clone(), ..Evaluation::default() };
        let machine = |problem: &Problem, config: &ParallelConfig, room: MachineRoom| {
            let places = BatcherConfig::default().max_running;
            let batching = self.batches(config).batching(MachineRoom { places, ..room });
            let cost = Pipeline::new(problem, config).reading_once();
            Machine { batching, cost: Arc::new(Stepped { cost, step: how.step, prompts: how.prompts }) }
        };
        let parts = ReplayPlan::new(&mut evaluator, &groups, &evaluation, &machine);
        let simulation = match how.split {
            SplitChoice::Always => parts.dispatched(how.dispatch),
            SplitChoice::Auto => parts.gated(how.dispatch, self.gate()),
        };
        simulation.recorded().behind_steps().on(self.shared(how)).run(arrivals, &|_| false)
    }

    /// What gateways' cost gate knows of the groups.
    fn gate(&self) -> ReplayGate {
        let model = &self.input.problem.model;
        let advert = |peer: PeerId| self.members.get(&peer).copied();
        let cost = |group: &Group| GroupCost::of_group(group, &model.shape, advert);
        let link = |share: &RouteShare| {
            let [from, to] = [share.prefill, share.decode].map(|n| self.groups[n].stages.first().map(|s| s.peer));
            let (from, to) = (from?, to?);
            let known = self.members.get(&from)?.links.iter().find(|link| link.to == to);
            let unmeasured = if from == to { links::WITHIN_PEER } else { links::UNMEASURED };
            let pair = [share.prefill, share.decode].map(|n| MachineNo(n as u32));
            Some(((pair[0], pair[1]), known.map_or(unmeasured, |link| (link.latency, link.bandwidth))))
        };
        ReplayGate {
            shape: model.shape,
            element_bytes: (model.element as u64).max(1),
            costs: self.groups.iter().map(cost).collect(),
            links: self.shares.iter().filter_map(link).collect(),
        }
    }

    /// Its model on a device that computes all of it; none where several devices do.
    #[must_use]
    pub fn resident(&self) -> Option<Resident> {
        let mut evaluator = Evaluator::new(&self.input.problem);
        let groups = self.shelved(&mut evaluator)?;
        let [group] = groups[..] else { return None };
        let config = &evaluator.shelved(group).rated.config;
        let [stage] = &config.stages[..] else { return None };
        let (peer, device) = self.input.places().get(stage.instance.0 as usize)?;
        let served = self.members.get(peer)?.devices.get(usize::from(*device))?.served(self.input.card.id)?;
        let model = &self.input.problem.model;
        let layers = model.shape.layers;
        Some(Resident {
            batches: self.batches(config),
            places: BatcherConfig::default().max_running,
            cost: Arc::new(Pipeline::new(&self.input.problem, config).reading_once()),
            pages: PagedKv::new(layers, Bytes(model.kv().0 / f64::from(layers))),
            quota: (served.kv_bytes as f64 / PAGE.0) as u64,
        })
    }

    /// How nodes form the steps of a group.
    fn batches(&self, config: &ParallelConfig) -> Batches {
        Batches::measured(self.profiles(config)).by(self.batch)
    }

    /// What was measured of a group's stages.
    fn profiles(&self, config: &ParallelConfig) -> impl Iterator<Item = &LayerProfile> {
        let of = |stage: &parallel::ParallelStage| {
            let (peer, device) = self.input.places().get(stage.instance.0 as usize)?;
            self.members.get(peer)?.devices.get(usize::from(*device))?.profile(self.input.card.id)
        };
        config.stages.iter().filter_map(of).collect::<Vec<_>>().into_iter()
    }

    fn shared(&self, how: &LivePlanRun) -> SharedCores {
        let host = |group: &Group| match &group.stages[..] {
            [alone] => how.hosts.get(&alone.peer).copied(),
            _ => None,
        };
        let cores = SharedCores::new(how.cores.clone(), self.groups.iter().map(host).collect());
        cores.leaving(how.left.clone()).contended(how.contention.clone())
    }

    fn shelved(&self, evaluator: &mut Evaluator<'_>) -> Option<Vec<GroupNo>> {
        let place = |stage: &tsnode_protocol::Stage| {
            self.input.places().iter().position(|p| *p == (stage.peer, stage.device)).map(|n| InstanceId(n as u32))
        };
        let mut numbers = Vec::with_capacity(self.groups.len());
        for group in &self.groups {
            let stage = |s: &tsnode_protocol::Stage| {
                Some(parallel::ParallelStage { instance: place(s)?, tp: 1, layers: s.layers.len() })
            };
            let stages: Vec<parallel::ParallelStage> = group.stages.iter().map(stage).collect::<Option<_>>()?;
            let config = parallel::given(&self.input.problem, &stages, group.phase)?;
            let mut devices: Devices = stages.iter().map(|s| (s.instance, 1)).collect();
            devices.sort_unstable();
            numbers.push(evaluator.shelve(devices, group.phase, config));
        }
        Some(numbers)
    }
}

/// Steps that take a while beside what they compute, and whose prompts take longer than profiles say, or less.
#[derive(Debug)]
struct Stepped {
    cost: Pipeline,
    step: Seconds,
    prompts: PromptSpeed,
}

impl Stepped {
    /// What a batch takes beside what its stages compute.
    fn beside(&self, batch: &Batch) -> Seconds {
        if begins_prompts(batch) { self.step + self.prompts.step } else { self.step }
    }

    /// A time that a batch takes, of which what grows with its prompts takes so many times as long.
    fn grown(&self, batch: &Batch, time: impl Fn(&Batch) -> Seconds) -> Seconds {
        let whole = time(batch);
        if batch.prompts == 0 {
            return whole;
        }
        let fixed = time(&Batch { prompt_tokens: 0, prompt_squares: 0, ..*batch });
        fixed + (whole - fixed) * self.prompts.times
    }
}

/// Whether some prompt's first tokens are in a batch: what goes on behind others has more pairs than its own tokens make.
fn begins_prompts(batch: &Batch) -> bool {
    batch.prompts > 0 && batch.prompt_squares <= batch.prompt_tokens * batch.prompt_tokens
}

impl IterationCost for Stepped {
    fn iteration(&self, batch: &Batch) -> Seconds {
        self.grown(batch, |batch| self.cost.iteration(batch)) + self.beside(batch)
    }

    fn delay(&self, batch: &Batch) -> Seconds {
        self.grown(batch, |batch| self.cost.delay(batch))
    }

    fn stages(&self) -> usize {
        self.cost.stages()
    }

    fn stage(&self, place: usize, batch: &Batch) -> Seconds {
        self.grown(batch, |batch| self.cost.stage(place, batch))
    }

    fn kv_transfer(&self, place: usize, batch: &Batch) -> Seconds {
        let rest = if place + 1 == self.cost.stages() { self.beside(batch) } else { Seconds(0.0) };
        self.cost.kv_transfer(place, batch) + rest
    }
}
