//! Splitwise's clusters (its §V and §VI): machines of eight GPUs with its tables of times and its policies.

use super::{measured_cost::Table, percentile::Sorted};
use crate::policy::{
    ageing::Ageing,
    packing::{MachineSpeed, PackingPolicy, PackingRules},
    piggybacked::Piggybacked,
    pools::Pools,
    repurposing::Repurposing,
    shortest_queue::ShortestQueue,
};
use std::sync::Arc;
use tsnode_coordinator::{
    policy::{
        batching::{Batch, BatchLimits, Batching},
        routing::Routing,
    },
    replay::{
        iteration_cost::IterationCost,
        machines::{Alike, Machine, ReplayTrace, Simulation},
    },
};
use tsnode_protocol::{Bytes, BytesPerSecond, BytesPerToken, Seconds};

/// Memory of a machine: eight GPUs of 80 GiB.
const MEMORY: Bytes = Bytes(8.0 * 80.0 * (1u64 << 30) as f64);
/// Between two machines, for each transfer.
pub const LINK: BytesPerSecond = BytesPerSecond(200.0 * (1u64 << 30) as f64);
/// Between two looks at what pools lend.
const WINDOW: Seconds = Seconds(10.0);
/// What an iteration may hold (§IV-B).
pub const LIMITS: BatchLimits = BatchLimits { tasks: 512, tokens: 2048 };

/// A model as the paper's simulator counts it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizes {
    /// All weights.
    pub weights: Bytes,
    /// KV of a token, without grouped heads.
    pub kv: BytesPerToken,
}

impl Sizes {
    /// By its name in the tables.
    #[must_use]
    pub fn of(model: &str) -> Option<Self> {
        let (weights, layers, hidden) = match model {
            "llama2-70b" => (135e9, 80.0, 8192.0),
            "bloom-176b" => (329e9, 70.0, 14336.0),
            _ => return None,
        };
        Some(Self { weights: Bytes(weights), kv: Bytes(2.0 * 2.0 * layers * hidden).per_token() })
    }

    /// Tokens of KV that fit beside the weights.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        ((MEMORY - self.weights) / self.kv).0.max(0.0) as u64
    }
}

/// Who gets a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// Every machine does both; the shortest queue takes it.
    Baseline,
    /// So many of the first machines are the prompt pool, the others the token pool (§IV-A).
    Pooled(usize),
    /// The same, and machines change sides for good ([`crate::policy::repurposing`]).
    Repurposed(usize),
    /// No pools: answers are packed, prompts go where they slow requests least ([`crate::policy::packing`]).
    Packed(PackingRules),
}

/// A cluster: so many machines of each table, in this order.
#[must_use]
pub fn cluster(sizes: Sizes, machines: &[(&Arc<Table>, usize)], system: System) -> Simulation {
    let capacity = sizes.capacity();
    let batching = |table: &Arc<Table>| -> Box<dyn Batching> {
        match system {
            System::Packed(rules) => Box::new(Piggybacked::new(table.clone(), rules.beside, LIMITS.tasks, capacity)),
            _ => Box::new(Ageing::new(LIMITS, capacity)),
        }
    };
    let tables = || machines.iter().flat_map(|(table, n)| std::iter::repeat_n(*table, *n));
    let all: Vec<Machine> = tables().map(|table| Machine { batching: batching(table), cost: table.clone() }).collect();
    // Slowdowns are multiples of what the slowest kind takes, as in Table VI.
    let slowest = machines.iter().map(|(table, _)| *table).max_by(|a, b| {
        let time = |t: &Table| t.iteration(&Batch::prompt(1024)).0;
        time(a).total_cmp(&time(b))
    });
    let routing: Box<dyn Routing> = match (system, slowest) {
        (System::Pooled(prompts), _) => Box::new(Pools::new(prompts, &vec![capacity; all.len()])),
        (System::Repurposed(prompts), _) => {
            Box::new(Repurposing::new(Pools::new(prompts, &vec![capacity; all.len()]), WINDOW))
        }
        (System::Packed(rules), Some(alone)) => {
            let known = tables().map(|table| MachineSpeed { cost: table.clone(), capacity }).collect();
            Box::new(PackingPolicy::new(alone.clone(), rules, LIMITS.tasks, known))
        }
        _ => Box::new(ShortestQueue::new(all.len())),
    };
    Simulation::new(all, routing, Box::new(Alike { per_token: sizes.kv / LINK }))
}

/// Where the paper's targets are set: P50, P90, P99.
pub const SHARES: [f64; 3] = [0.5, 0.9, 0.99];
/// Table VI: the most that TTFT, TBT and E2E may be, as multiples of an A100 machine's alone.
pub const TABLE_VI: [[f64; 3]; 3] = [[2.0, 3.0, 6.0], [1.25, 1.5, 5.0], [1.25, 1.5, 5.0]];

/// Seconds per token after the first, as the paper's simulator has them: over all tokens, the first included.
#[must_use]
pub fn tbt(trace: &ReplayTrace) -> f64 {
    (trace.end - trace.first).0 / f64::from(trace.arrival.asked.answer)
}

/// TTFT, TBT and E2E as multiples of what the machine of a table takes for the same request alone.
#[must_use]
pub fn slowdowns(traces: &[ReplayTrace], alone: &Table) -> [Sorted; 3] {
    let prompt = |t: &ReplayTrace| alone.prompt.at(f64::from(t.arrival.asked.prompt));
    let token = |t: &ReplayTrace| alone.answer.at(f64::from(t.arrival.asked.prompt));
    let steps = |t: &ReplayTrace| f64::from(t.arrival.asked.answer) - 1.0;
    let of = |f: &dyn Fn(&ReplayTrace) -> f64| Sorted::new(traces.iter().map(f));
    [
        of(&|t| (t.first - t.arrival.at).0 / prompt(t)),
        of(&|t| tbt(t) / token(t)),
        of(&|t| (t.end - t.arrival.at).0 / (prompt(t) + token(t) * steps(t))),
    ]
}

/// Whether all nine targets are kept.
#[must_use]
pub fn keeps_table_vi(slowdowns: &[Sorted; 3]) -> bool {
    let kept = |(sorted, most): (&Sorted, &[f64; 3])| SHARES.iter().zip(most).all(|(s, m)| sorted.at(*s) < *m);
    slowdowns.iter().zip(&TABLE_VI).all(kept)
}
