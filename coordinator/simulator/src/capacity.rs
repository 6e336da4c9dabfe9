//! GPUs as fast as somebody measured them to be: the cost model's shape, with the FLOP/s and the bandwidth at which one
//! alone carries so many prompts and so many answers a second.

use crate::policy::ageing::Ageing;
use std::sync::Arc;
use tsnode_coordinator::{
    policy::{
        batching::{Batch, BatchLimits, Batching},
        chunked::Chunked,
        routing::{Asked, MachineNo},
        shares::{PhasePair, Shares},
    },
    replay::{
        iteration_cost::IterationCost,
        machines::{Alike, Arrival, Machine, Simulation},
    },
    scheduler::{
        cluster::ClusterLink,
        cost::{Decode, LayerCost, Prefill, StageEnds},
        figures::DeviceFigures,
        public_models::Model,
    },
};
use tsnode_protocol::{BytesPerSecond, FlopsPerSecond, Seconds, SecondsPerToken, Tokens};

/// Steps that halve the interval of a factor.
const STEPS: usize = 24;
/// Factors looked at.
const FACTORS: (f64, f64) = (0.02, 8.0);
/// A rate or a memory that is never short.
const AMPLE: f64 = 1e30;
/// Both ends of a model.
const ALONE: StageEnds = StageEnds { first: true, last: true };

/// Requests a second that a GPU alone carries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// Their prompts only.
    pub prefill: f64,
    /// Their answers only.
    pub decode: f64,
}

/// Chunks of prompts and answers in one pass: weights are read once for both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CapacityPass {
    /// Prompts.
    pub prefill: Prefill,
    /// Answers.
    pub decode: Decode,
}

impl IterationCost for CapacityPass {
    fn iteration(&self, batch: &Batch) -> Seconds {
        let mut time = Seconds(0.0);
        if batch.prompts > 0 {
            time += self.prefill.mean(Tokens(batch.prompt_tokens as f64), batch.prompt_squares as f64);
        }
        if batch.answers > 0 {
            let n = f64::from(batch.answers);
            time += self.decode.time(n, Tokens(batch.context as f64 / n));
        }
        if batch.prompts > 0 && batch.answers > 0 {
            time -= self.prefill.fixed.min(self.decode.fixed);
        }
        time
    }
}

/// A kind of GPU with a model on it.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedGpu {
    /// A layer's cost on it.
    pub layer: LayerCost,
    /// What it does with the whole model.
    pub pass: CapacityPass,
    /// KV that fits beside the weights (tokens).
    pub capacity: u64,
    /// FLOP/s, as a multiple of what the cost model assumes.
    pub compute: f64,
    /// Bandwidth, alike.
    pub bandwidth: f64,
}

impl LoadedGpu {
    fn new(model: &Model, figures: &DeviceFigures, compute: f64, bandwidth: f64) -> Self {
        let rates = DeviceFigures {
            flops: FlopsPerSecond(figures.flops.0 * compute),
            bandwidth: BytesPerSecond(figures.bandwidth.0 * bandwidth),
            ..figures.clone()
        };
        let alone = ClusterLink { latency: Seconds(0.0), bandwidth: BytesPerSecond(AMPLE) };
        let (layer, layers) = (LayerCost::new(model, &rates, alone, 1), model.shape.layers);
        let pass =
            CapacityPass { prefill: layer.stage_prefill(layers, ALONE), decode: layer.stage_decode(layers, ALONE) };
        let capacity = layer.kv_tokens(layers, ALONE).0.max(0.0) as u64;
        Self { layer, pass, capacity, compute, bandwidth }
    }

    /// One that carries what was measured with these requests, all sent at once. `None` if no factors do: then reading the weights alone takes longer than prompts did.
    #[must_use]
    pub fn calibrated(
        model: &Model,
        figures: &DeviceFigures,
        places: usize,
        lengths: &[Asked],
        goal: Capacity,
    ) -> Option<Self> {
        let whole = lengths.len() as f64 / goal.prefill;
        let prompts = |compute: f64, bandwidth: f64| prompts(&Self::new(model, figures, compute, bandwidth), lengths).0;
        let with = |bandwidth: f64| {
            let left = whole - prompts(AMPLE, bandwidth);
            (left > 0.0).then(|| Self::new(model, figures, prompts(1.0, AMPLE) / left, bandwidth))
        };
        let (mut low, mut high) = FACTORS;
        for _ in 0..STEPS {
            let middle = (low * high).sqrt();
            match with(middle) {
                Some(gpu) if answers_a_second(&gpu, places, lengths) >= goal.decode => high = middle,
                _ => low = middle,
            }
        }
        with(high)
    }

    /// What it carries, as simulated: prompts one after the other, answers whose KV is there.
    #[must_use]
    pub fn measured(&self, places: usize, lengths: &[Asked]) -> Capacity {
        let prefill = lengths.len() as f64 / prompts(self, lengths).0;
        Capacity { prefill, decode: answers_a_second(self, places, lengths) }
    }
}

/// The time that prompts take one after the other.
fn prompts(gpu: &LoadedGpu, lengths: &[Asked]) -> Seconds {
    lengths.iter().map(|a| gpu.pass.prefill.time(Tokens(f64::from(a.prompt)))).sum()
}

/// Answers a second on a machine that gets all KV at once.
fn answers_a_second(gpu: &LoadedGpu, places: usize, lengths: &[Asked]) -> f64 {
    let limits = BatchLimits { tasks: 1, tokens: u32::MAX };
    let machines = vec![
        Machine { batching: Box::new(Ageing::new(limits, u64::MAX / 2)), cost: Arc::new(Instant) },
        Machine {
            batching: Box::new(Chunked::new(u32::MAX, places, gpu.capacity)) as Box<dyn Batching>,
            cost: Arc::new(gpu.pass),
        },
    ];
    let pair = PhasePair { prefill: MachineNo(0), decode: MachineNo(1), share: 1.0 };
    let links = Alike { per_token: SecondsPerToken(0.0) };
    let all: Vec<Arrival> = lengths.iter().map(|a| Arrival { at: Seconds(0.0), asked: *a }).collect();
    let outcome =
        Simulation::new(machines, Box::new(Shares::new(vec![pair], false)), Box::new(links)).run(&all, &|_| false);
    lengths.len() as f64 / outcome.end.0
}

/// Takes no time.
#[derive(Debug)]
struct Instant;

impl IterationCost for Instant {
    fn iteration(&self, _: &Batch) -> Seconds {
        Seconds(0.0)
    }
}
