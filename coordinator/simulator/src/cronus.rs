//! Cronus's evaluation (§5): a fast and a slow GPU on two hosts, one model, five ways to share requests between them.

use super::capacity::{Capacity, CapacityPass, LoadedGpu};
use crate::policy::{
    ageing::Ageing,
    balancer::{AverageContext, ChunkFit, PromptFit},
    partial::{MachinePair as Known, Partial, PromptCut},
    weighted::{MachineWeight, Weighted},
};
use std::sync::Arc;
use tsnode_coordinator::{
    policy::{
        batching::{Batch, BatchLimits, Batching},
        chunked::Chunked,
        routing::{Asked, MachineNo, Routing},
    },
    replay::{
        iteration_cost::IterationCost,
        machines::{Alike, Arrival, Machine, Simulation},
    },
    scheduler::{
        cost::StageEnds,
        figures::{self, Column},
        public_models::{self, Model},
    },
};
use tsnode_protocol::{Bytes, BytesPerSecond, Seconds, SecondsPerToken, Tokens};

/// Tokens of an iteration, and of one on a slow machine that serves whole requests (§5.1).
const TOKENS: u32 = 512;
const SLOW_TOKENS: u32 = 256;
/// Sequences at once, and tokens of a block of KV: vLLM's of that time, which the paper builds on.
const PLACES: usize = 256;
const BLOCK: u32 = 16;
/// Ours: prompt tokens of an iteration, beside its answers, and sequences that only memory limits.
const READY_TOKENS: u32 = 576;
const READY_PLACES: usize = 512;
/// InfiniBand between the hosts, 100 Gbit/s (§5.1).
const LINK: BytesPerSecond = BytesPerSecond(12.5e9);
/// Data parallelism's weights and longest queues (§5.1).
const FAST: MachineWeight = MachineWeight { turns: 3, most_waiting: 3 };
const SLOW: MachineWeight = MachineWeight { turns: 1, most_waiting: 1 };
/// Prompts that predictors are fitted to are spaced so (tokens).
const SPACING: usize = 256;

/// A column of Table 2, and what its parts carry alone (Tables 2 and 3: utilisation is throughput over capacity).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// The model, as [`public_models::by_name`] knows it.
    pub model: &'static str,
    /// The slow GPU; the fast one is an A100 with 80 GB.
    pub slow: &'static str,
    /// What the fast one carries.
    pub fast_alone: Capacity,
    /// What the slow one carries.
    pub slow_alone: Capacity,
    /// Layers on the fast one with pipeline parallelism.
    pub fast_layers: u32,
    /// Table 2's requests a second, in the order of [`Approach::TABLE_2`].
    pub paper: [f64; 5],
}

const LLAMA: Capacity = Capacity { prefill: 11.8, decode: 13.0 };
const QWEN: Capacity = Capacity { prefill: 12.4, decode: 17.4 };

/// Table 2's columns.
pub const SETTINGS: [Setting; 4] = [
    Setting {
        model: "Llama-3-8B",
        slow: "A10",
        fast_alone: LLAMA,
        slow_alone: Capacity { prefill: 4.15, decode: 1.35 },
        fast_layers: 23,
        paper: [7.28, 3.86, 1.31, 4.11, 7.39],
    },
    Setting {
        model: "Qwen2-7B",
        slow: "A10",
        fast_alone: QWEN,
        slow_alone: Capacity { prefill: 4.18, decode: 3.42 },
        fast_layers: 20,
        paper: [8.70, 4.08, 3.45, 4.35, 8.29],
    },
    Setting {
        model: "Llama-3-8B",
        slow: "A30",
        fast_alone: LLAMA,
        slow_alone: Capacity { prefill: 6.27, decode: 3.05 },
        fast_layers: 21,
        paper: [8.54, 3.96, 2.93, 6.14, 8.7],
    },
    Setting {
        model: "Qwen2-7B",
        slow: "A30",
        fast_alone: QWEN,
        slow_alone: Capacity { prefill: 6.66, decode: 6.74 },
        fast_layers: 18,
        paper: [10.85, 3.97, 6.74, 6.59, 10.27],
    },
];

/// Requests a second if every part of the prompts' work could be anywhere at no cost, answers on the fast GPU: the slow
/// one computes x of each prompt, and both are always busy. From `r·x/P_s = 1` and `r·((1 − x)/P_f + 1/D_f) = 1`:
/// `r = (1 + P_s/P_f)/(1/P_f + 1/D_f)`; without work for all of the slow one's time (x would pass 1), the fast one's
/// answers are what is left: `D_f`.
#[must_use]
pub fn perfect_balance(fast: Capacity, slow: Capacity) -> f64 {
    let balanced = (1.0 + slow.prefill / fast.prefill) / (1.0 / fast.prefill + 1.0 / fast.decode);
    balanced.min(fast.decode)
}

/// A row of Table 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Approach {
    /// Whole requests to either, prompts in chunks.
    DataParallel,
    /// A part of the layers on each, prompts in chunks, two batches on their way.
    PipelineParallel,
    /// Prompts on the fast one, answers on the slow one.
    HighLow,
    /// Prompts on the slow one, answers on the fast one.
    LowHigh,
    /// First parts of prompts on the slow one, where Cronus's balancer cuts them.
    Cronus(AverageContext),
    /// The same where the slow one is just in time.
    Ready,
}

impl Approach {
    /// The table's rows, in order.
    pub const TABLE_2: [Self; 5] = [
        Self::DataParallel,
        Self::PipelineParallel,
        Self::HighLow,
        Self::LowHigh,
        Self::Cronus(AverageContext::FirstAndLast),
    ];
}

/// Two GPUs that are as fast as the paper's.
#[derive(Clone, Debug)]
pub struct GpuPair {
    model: Model,
    /// The fast one.
    pub fast: LoadedGpu,
    /// The slow one.
    pub slow: LoadedGpu,
    fast_layers: u32,
    /// What each iteration of the pipeline takes on top of computing and the link.
    pub handing: Seconds,
}

impl GpuPair {
    /// Calibrated with these requests; `None` if something of the setting is not known.
    #[must_use]
    pub fn calibrated(setting: &Setting, lengths: &[Asked]) -> Option<Self> {
        let model = public_models::by_name(setting.model)?;
        let mut known = figures::shipped(Column::Vendor);
        let mut gpu = |name: &str, goal| LoadedGpu::calibrated(&model, &known.remove(name)?, PLACES, lengths, goal);
        let (fast, slow) = (gpu("A100-80G", setting.fast_alone)?, gpu(setting.slow, setting.slow_alone)?);
        Some(Self { model, fast, slow, fast_layers: setting.fast_layers, handing: Seconds(0.0) })
    }

    /// What the fast and the slow one carry alone, as simulated.
    #[must_use]
    pub fn measured(&self, lengths: &[Asked]) -> [Capacity; 2] {
        [&self.fast, &self.slow].map(|gpu| gpu.measured(PLACES, lengths))
    }

    /// Machines, and who gets a request.
    #[must_use]
    pub fn parts(&self, approach: Approach) -> (Vec<Machine>, Box<dyn Routing>) {
        let (fast, slow) = (&self.fast, &self.slow);
        match approach {
            Approach::DataParallel => {
                let machines = vec![chunked(fast, TOKENS), chunked(slow, SLOW_TOKENS)];
                (machines, Box::new(Weighted::new(vec![FAST, SLOW])))
            }
            Approach::PipelineParallel => {
                let weight = MachineWeight { turns: 1, most_waiting: u32::MAX };
                (vec![self.pipeline(), self.pipeline()], Box::new(Weighted::new(vec![weight; 2])))
            }
            Approach::HighLow => (vec![prompts(fast), chunked(slow, TOKENS)], self.partial(PromptCut::Nowhere)),
            Approach::LowHigh => (vec![prompts(slow), chunked(fast, TOKENS)], self.partial(PromptCut::Nowhere)),
            Approach::Cronus(average) => {
                (vec![prompts(slow), chunked(fast, TOKENS)], self.partial(PromptCut::Even(average)))
            }
            Approach::Ready => {
                let batching = Box::new(Chunked::new(READY_TOKENS, READY_PLACES, fast.capacity).for_prompts());
                (vec![prompts(slow), Machine { batching, cost: Arc::new(fast.pass) }], self.partial(PromptCut::Ready))
            }
        }
    }

    /// Ready to run.
    #[must_use]
    pub fn simulation(&self, approach: Approach) -> Simulation {
        let (machines, routing) = self.parts(approach);
        Simulation::new(machines, routing, Box::new(self.links()))
    }

    /// KV between the hosts.
    #[must_use]
    pub fn links(&self) -> Alike {
        Alike { per_token: self.model.kv() / LINK }
    }

    fn partial(&self, cut: PromptCut) -> Box<dyn Routing> {
        let (slow, fast) = (MachineNo(0), MachineNo(1));
        let (capacity, prompts) = (self.fast.capacity, prompt_fit(&self.slow.pass));
        let (tokens, room): (u32, fn(u32) -> u32) = match cut {
            PromptCut::Ready => (READY_TOKENS, |_| READY_TOKENS),
            PromptCut::Nowhere | PromptCut::Even(_) => (TOKENS, |answers| TOKENS - answers),
        };
        let chunks = chunk_fit(&self.fast.pass, room);
        Box::new(Partial::new(Known { slow, fast, prompts, chunks, capacity, block: BLOCK, tokens }, cut))
    }

    /// One of the two batches that are on their way through both stages.
    fn pipeline(&self) -> Machine {
        let all = self.model.shape.layers;
        let ends = [StageEnds { first: true, last: false }, StageEnds { first: false, last: true }];
        let layers = [self.fast_layers, all - self.fast_layers];
        let gpus = [&self.fast.layer, &self.slow.layer];
        let stages = [0, 1].map(|s| CapacityPass {
            prefill: gpus[s].stage_prefill(layers[s], ends[s]),
            decode: gpus[s].stage_decode(layers[s], ends[s]),
        });
        let capacity = (0..2).map(|s| gpus[s].kv_tokens(layers[s], ends[s]).0).fold(f64::INFINITY, f64::min);
        let row = Bytes(f64::from(self.model.shape.hidden) * self.model.element).per_token();
        Machine {
            batching: Box::new(Chunked::new(TOKENS, PLACES, capacity.max(0.0) as u64 / 2)),
            cost: Arc::new(PairPipeline { stages, per_token: row / LINK, handing: self.handing }),
        }
    }
}

/// All requests at once: how the paper measures the most requests a second (§5.2).
#[must_use]
pub fn at_once(lengths: &[Asked]) -> Vec<Arrival> {
    lengths.iter().map(|a| Arrival { at: Seconds(0.0), asked: *a }).collect()
}

/// Requests at a fixed interval (§5.1).
#[must_use]
pub fn evenly(lengths: &[Asked], rate: f64) -> Vec<Arrival> {
    lengths.iter().enumerate().map(|(i, a)| Arrival { at: Seconds(i as f64 / rate), asked: *a }).collect()
}

/// One prompt after the other.
fn prompts(gpu: &LoadedGpu) -> Machine {
    let limits = BatchLimits { tasks: 1, tokens: u32::MAX };
    Machine { batching: Box::new(Ageing::new(limits, gpu.capacity)), cost: Arc::new(gpu.pass) }
}

fn chunked(gpu: &LoadedGpu, tokens: u32) -> Machine {
    let batching: Box<dyn Batching> = Box::new(Chunked::new(tokens, PLACES, gpu.capacity));
    Machine { batching, cost: Arc::new(gpu.pass) }
}

/// The first predictor, fitted to prompts up to eight iterations long.
fn prompt_fit(slow: &CapacityPass) -> PromptFit {
    let lengths = (1..=8 * TOKENS as usize / SPACING).map(|i| (i * SPACING) as f64);
    let measured: Vec<(f64, Seconds)> = lengths.map(|l| (l, slow.prefill.time(Tokens(l)))).collect();
    let through = PromptFit { fixed: slow.prefill.fixed, per_token: slow.prefill.per_token };
    PromptFit::of(&measured).unwrap_or(through)
}

/// The second, fitted to full iterations with any number of answers; `room` says how many prompt tokens are beside those.
fn chunk_fit(fast: &CapacityPass, room: impl Fn(u32) -> u32) -> ChunkFit {
    let mut measured = Vec::new();
    for answers in (0..=PLACES as u32).step_by(64) {
        for context in [500, 1000, 2000].map(|c| u64::from(answers) * c) {
            for before in (0..8 * u64::from(TOKENS)).step_by(SPACING) {
                let chunk = u64::from(room(answers));
                let prompt_squares = (before + chunk).pow(2) - before.pow(2);
                let filled =
                    Batch { prompts: 1, prompt_tokens: chunk, prompt_squares, iterations: 1, ..Batch::default() };
                let time = fast.iteration(&Batch { answers, context, ..filled });
                measured.push((before as f64, context as f64, time));
            }
        }
    }
    let zero = SecondsPerToken(0.0);
    let flat = ChunkFit { fixed: fast.prefill.fixed, per_before: zero, per_context: zero };
    ChunkFit::of(&measured).unwrap_or(flat)
}

/// A fast and a slow stage with half of all requests: another machine like it has the other half. A batch takes its way
/// through both stages and both links, and each stage serves the other half's batch in between.
#[derive(Clone, Copy, Debug)]
struct PairPipeline {
    stages: [CapacityPass; 2],
    per_token: SecondsPerToken,
    handing: Seconds,
}

impl IterationCost for PairPipeline {
    fn iteration(&self, batch: &Batch) -> Seconds {
        let [first, second] = [&self.stages[0], &self.stages[1]].map(|s| s.iteration(batch));
        let way = self.per_token * Tokens(batch.tokens() as f64) + self.handing;
        (first + second + way).max(first.max(second) * 2.0)
    }
}
