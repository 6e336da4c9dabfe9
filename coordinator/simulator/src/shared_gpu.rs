//! One GPU that holds several models, and the orders in which it may take their requests (SeaLLM §4.2, §6.3).

use crate::{
    measured_cost::{FittedTimes, ServiceCosts, alone},
    policy::{
        doubling::{Doubling, ServiceProfile},
        feedback::{Feedback, Queues},
        pages::Pages,
        round_robin::{FirstCome, RoundRobin},
        sharing::order::Rules,
        shortest_queue::ShortestQueue,
        turns::TurnBatching,
    },
    summary::normalised,
    trace::{Arriving, beside, drawn},
};
use std::sync::Arc;
use tsnode_coordinator::{
    policy::{
        batching::{Batch, BatchLimits, Batching, ServiceNo},
        choice::{Batches, MachineRoom},
        routing::Asked,
        sharing::TurnOrder,
    },
    replay::{
        iteration_cost::IterationCost,
        machines::{Alike, Arrival, Machine, Outcome, Simulation},
    },
    scheduler::{
        Workload,
        cluster::ClusterLink,
        cost::{LayerCost, StageEnds, USABLE},
        figures::DeviceFigures,
        public_models::Model,
    },
};
use tsnode_protocol::{Bytes, BytesPerSecond, Seconds, SecondsPerToken};

/// What runs at once.
pub const LIMITS: BatchLimits = BatchLimits { tasks: 32, tokens: 4096 };
/// First quantum and queues of the queues with feedback: from an iteration to a minute.
const QUANTUM: Seconds = Seconds(0.02);
const QUEUES: u32 = 12;
/// Tokens of a peer's step, where nothing was measured.
const CHUNK: u32 = 512;

/// In which order requests are taken.
#[derive(Clone, Copy, Debug)]
pub enum SharedGpuOrder {
    /// By doubling budgets, under these rules.
    Doubling(Rules, Known),
    /// As they came.
    FirstCome,
    /// One service after the other.
    RoundRobin,
    /// By queues with feedback, which a request enters by its prompt's time.
    Feedback,
    /// As peers do: each model forms its steps for itself, with memory of its own, and they take turns in this order.
    Peers(TurnOrder),
}

/// What the doubling budget knows of a request.
#[derive(Clone, Copy, Debug)]
pub enum Known {
    /// What its service's requests take.
    Service,
    /// Its prompt's length too.
    Prompt,
}

/// Those of one batcher for all models, by name: ours first; then those of peers.
pub const ORDERS: [(&str, SharedGpuOrder); 7] = [
    ("doubling", SharedGpuOrder::Doubling(Doubling::RULES, Known::Prompt)),
    ("first-come", SharedGpuOrder::FirstCome),
    ("round-robin", SharedGpuOrder::RoundRobin),
    ("feedback", SharedGpuOrder::Feedback),
    ("peers-doubling", SharedGpuOrder::Peers(TurnOrder::Doubling)),
    ("peers-round-robin", SharedGpuOrder::Peers(TurnOrder::RoundRobin)),
    ("peers-first-come", SharedGpuOrder::Peers(TurnOrder::FirstCome)),
];

/// Why models do not share a GPU.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SharedGpuError {
    /// None, or more than can be numbered.
    #[error("{0} services: there must be between 1 and 64")]
    Services(usize),
    /// Their weights leave too little.
    #[error(
        "{models} take {:.1} GB, and the KV of their longest request {:.1} GB; of the {gpu}'s memory {:.1} GB can be used",
        .weights.0 / 1e9, .kv.0 / 1e9, .usable.0 / 1e9
    )]
    Memory {
        /// The GPU.
        gpu: String,
        /// The models.
        models: String,
        /// All their weights.
        weights: Bytes,
        /// KV of the longest request.
        kv: Bytes,
        /// What there is.
        usable: Bytes,
    },
}

/// Most services on one GPU.
const MOST: usize = 64;

/// A GPU with several models on it.
#[derive(Debug)]
pub struct SharedGpu {
    workloads: Vec<Workload>,
    cost: Arc<ServiceCosts>,
    pages: Pages,
    by_service: Vec<ServiceProfile>,
    by_prompt: Vec<ServiceProfile>,
    prompt: Vec<SecondsPerToken>,
}

/// A model on the GPU. A step with prompts and answers reads the weights once.
#[derive(Debug)]
struct Mixed(FittedTimes);

impl IterationCost for Mixed {
    fn iteration(&self, batch: &Batch) -> Seconds {
        if batch.prompts == 0 || batch.answers == 0 {
            return self.0.iteration(batch);
        }
        let prompts = Batch { answers: 0, context: 0, ..*batch };
        let answers = Batch::answers(batch.answers, batch.context);
        self.0.iteration(&prompts) + self.0.iteration(&answers) - self.0.few.fixed
    }
}

/// Closed forms of a model alone on the GPU.
fn fit(model: &Model, gpu: &DeviceFigures) -> FittedTimes {
    let inside = ClusterLink { latency: Seconds(0.0), bandwidth: BytesPerSecond(1e12) };
    let (layer, ends) = (LayerCost::new(model, gpu, inside, 1), StageEnds { first: true, last: true });
    let decode = layer.stage_decode(model.shape.layers, ends);
    FittedTimes {
        prefill: layer.stage_prefill(model.shape.layers, ends),
        few: decode,
        lots: decode,
        many: u32::MAX,
        stages: 1,
        handing_prompts: Seconds(0.0),
        handing: Seconds(0.0),
        handing_token: SecondsPerToken(0.0),
    }
}

impl SharedGpu {
    /// Models with what is asked of them. What their requests take alone is taken from their workloads.
    ///
    /// # Errors
    /// None or too many, or what the GPU cannot hold.
    pub fn new(gpu: &DeviceFigures, services: &[(Model, Workload)]) -> Result<Self, SharedGpuError> {
        let costs: Vec<FittedTimes> = services.iter().map(|(model, _)| fit(model, gpu)).collect();
        let cost = ServiceCosts::new(costs.iter().map(|f| Arc::new(Mixed(*f)) as Arc<dyn IterationCost>).collect());
        let cost = cost.filter(|_| services.len() <= MOST).ok_or(SharedGpuError::Services(services.len()))?;
        let pages = pages(gpu, services)?;
        let mut own = Self {
            workloads: services.iter().map(|(_, workload)| workload.clone()).collect(),
            cost: Arc::new(cost),
            pages,
            by_service: Vec::new(),
            by_prompt: Vec::new(),
            prompt: costs.iter().map(|fit| fit.prefill.per_token).collect(),
        };
        for (n, fit) in costs.iter().enumerate() {
            let (service, by_prompt) = own.profiled(n, fit.prefill.per_token);
            own.by_service.push(service);
            own.by_prompt.push(by_prompt);
        }
        Ok(own)
    }

    /// What is right of a service: as printed, and by prompt.
    fn profiled(&self, n: usize, per_token: SecondsPerToken) -> (ServiceProfile, ServiceProfile) {
        let service = ServiceNo(n as u16);
        let all = self.workloads[n].requests.iter();
        let all = all.map(|r| Asked { service, ..Asked::new(r.prompt.0 as u32, r.answer.0 as u32) });
        let prompt = |a: Asked| alone(&*self.cost, Asked { answer: 1, ..a });
        let whole: Vec<Seconds> = all.clone().map(|a| alone(&*self.cost, a)).collect();
        let answers: Vec<Seconds> = all.map(|a| alone(&*self.cost, a) - prompt(a)).collect();
        let profile = ServiceProfile::of(&whole);
        (profile, profile.by_prompt(per_token, &answers))
    }

    /// What requests of each service are known to take.
    #[must_use]
    pub fn profiles(&self, known: Known) -> &[ServiceProfile] {
        match known {
            Known::Service => &self.by_service,
            Known::Prompt => &self.by_prompt,
        }
    }

    /// KV pages that the models share.
    #[must_use]
    pub fn kv_pages(&self) -> u64 {
        self.pages.all()
    }

    /// Whether a request alone fits into them.
    #[must_use]
    pub fn holds(&self, asked: Asked) -> bool {
        self.pages.of(asked.service, u64::from(asked.prompt) + u64::from(asked.answer)) <= self.pages.all()
    }

    /// All services' requests over one span, so many together, each service's so often that alone they would take `load` of
    /// the GPU's time; batches make more than 1 possible.
    #[must_use]
    pub fn requests(&self, load: f64, count: usize, arriving: Arriving, seed: u64) -> Vec<Arrival> {
        let rates: Vec<f64> = self.by_service.iter().map(|p| load / p.mean.0).collect();
        let all: f64 = rates.iter().sum();
        let list = |(n, rate): (usize, &f64)| {
            let requests = ((count as f64 * rate / all) as usize).max(1);
            drawn(&self.workloads[n], *rate, requests, arriving, 10 * seed + n as u64)
        };
        beside(rates.iter().enumerate().map(list).collect())
    }

    /// Runs requests in that order, by profiles that may be wrong.
    #[must_use]
    pub fn run_by(&self, order: SharedGpuOrder, profiles: &[ServiceProfile], arrivals: &[Arrival]) -> SharedGpuRun {
        let machine = Machine { batching: self.policy(order, profiles), cost: self.cost.clone() };
        let links = Alike { per_token: SecondsPerToken(0.0) };
        let simulation = Simulation::new(vec![machine], Box::new(ShortestQueue::new(1)), Box::new(links));
        let outcome = simulation.run(arrivals, &|_| false);
        let means: Vec<Seconds> = self.by_service.iter().map(|p| p.mean).collect();
        let all = normalised(&outcome.traces, &means);
        SharedGpuRun { mean: all.mean(), p50: all.at(0.5), p99: all.at(0.99), busy: outcome.busy[0], outcome }
    }

    /// The same by profiles that are right.
    #[must_use]
    pub fn run(&self, order: SharedGpuOrder, arrivals: &[Arrival]) -> SharedGpuRun {
        self.run_by(order, self.profiles(order.knows()), arrivals)
    }

    /// Pages divided evenly, as peers divide what the models' owner did not.
    fn rooms(&self) -> Vec<MachineRoom> {
        let services = self.workloads.len();
        let room = |n: usize| {
            let tokens = self.pages.tokens(ServiceNo(n as u16)) * (self.pages.all() / services as u64);
            MachineRoom { places: LIMITS.tasks, tokens, stages: 1 }
        };
        (0..services).map(room).collect()
    }

    fn policy(&self, order: SharedGpuOrder, profiles: &[ServiceProfile]) -> Box<dyn Batching> {
        let pages = self.pages.clone();
        match order {
            SharedGpuOrder::Doubling(rules, _) => Box::new(Doubling::new(profiles.to_vec(), LIMITS, pages).by(rules)),
            SharedGpuOrder::FirstCome => Box::new(FirstCome::new(LIMITS, pages)),
            SharedGpuOrder::RoundRobin => Box::new(RoundRobin::new(LIMITS, pages)),
            SharedGpuOrder::Feedback => {
                let (prompt, patience) = (self.prompt.clone(), Seconds(f64::INFINITY));
                Box::new(Feedback::new(Queues { quantum: QUANTUM, levels: QUEUES, prompt, patience }, LIMITS, pages))
            }
            SharedGpuOrder::Peers(order) => {
                let models = self.rooms().into_iter().map(|room| Batches::Chunked(CHUNK).batching(room)).collect();
                Box::new(TurnBatching::new(order.arbiter(), models))
            }
        }
    }
}

impl SharedGpuOrder {
    /// By what requests are judged.
    #[must_use]
    pub fn knows(self) -> Known {
        match self {
            Self::Doubling(_, known) => known,
            Self::FirstCome | Self::RoundRobin | Self::Feedback | Self::Peers(_) => Known::Service,
        }
    }
}

/// Pages of what the weights leave.
fn pages(gpu: &DeviceFigures, services: &[(Model, Workload)]) -> Result<Pages, SharedGpuError> {
    let weights = Bytes(services.iter().map(|(model, _)| model.bytes().0).sum());
    let longest = |(model, workload): &(Model, Workload)| {
        let tokens = workload.requests.iter().map(|r| r.prompt.0 + r.answer.0);
        model.kv().0 * tokens.fold(0.0, f64::max)
    };
    let kv = Bytes(services.iter().map(longest).fold(0.0, f64::max));
    let usable = Bytes(gpu.memory.0 * USABLE);
    if weights.0 + kv.0 > usable.0 {
        let models: Vec<&str> = services.iter().map(|(model, _)| model.name.as_str()).collect();
        let (gpu, models) = (gpu.name.clone(), models.join(", "));
        return Err(SharedGpuError::Memory { gpu, models, weights, kv, usable });
    }
    let per_token: Vec<_> = services.iter().map(|(model, _)| model.kv()).collect();
    Ok(Pages::merged(Bytes(usable.0 - weights.0), &per_token))
}

/// What came of requests in one order.
#[derive(Clone, Debug)]
pub struct SharedGpuRun {
    /// Mean normalised latency.
    pub mean: f64,
    /// Its median.
    pub p50: f64,
    /// Its P99.
    pub p99: f64,
    /// Part of the time in which the GPU was busy.
    pub busy: f64,
    /// Request by request.
    pub outcome: Outcome,
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_coordinator::scheduler::{
        figures::{Column, shipped},
        public_models,
    };

    fn service(model: &str, workload: &str) -> (Model, Workload) {
        (public_models::by_name(model).unwrap(), Workload::named(workload).unwrap())
    }

    #[test]
    fn budgets_keep_short_requests_from_waiting_behind_long_ones() {
        let gpu = shipped(Column::Vendor).remove("A800").unwrap();
        let services = [service("Llama-2-7B", "coding"), service("Llama-2-13B", "conversation")];
        let gpu = SharedGpu::new(&gpu, &services).unwrap();
        let arrivals = gpu.requests(1.2, 300, Arriving::Bursty(16.0), 11);
        let mean = |order: SharedGpuOrder| gpu.run(order, &arrivals).mean;
        let all = ORDERS.map(|(_, order)| mean(order));
        let [doubling, first_come, _, _, peers_doubling, peers_in_turn, peers_first_come] = all;
        assert!(doubling >= 1.0 && doubling < 0.8 * first_come, "{doubling} to {first_come}");
        // By what was measured, with a bound on every wait, and without telling one request of a model from another.
        assert!(peers_doubling < 0.9 * peers_in_turn && peers_doubling < 0.9 * peers_first_come, "{all:?}");
        assert!((280..=300).contains(&arrivals.len()));
    }

    #[test]
    fn what_a_gpu_cannot_hold_is_refused_with_the_sum() {
        let gpu = shipped(Column::Vendor).remove("A800").unwrap();
        let three = ["LLaMA-30B", "LLaMA-13B"].map(|model| service(model, "coding"));
        let refused = SharedGpu::new(&gpu, &three).unwrap_err().to_string();
        assert!(refused.starts_with("LLaMA-30B, LLaMA-13B take 9") && refused.contains("A800's memory"), "{refused}");
        assert_eq!(SharedGpu::new(&gpu, &[]).unwrap_err(), SharedGpuError::Services(0));
    }
}
