//! How a plan's machines batch in a simulation: in steps, as nodes can, or by an order of requests (SeaLLM §4.2 and what it
//! is compared with), whose profiles come from the workload and the machine's own speed.

use super::measured_cost::alone;
use crate::policy::{
    ageing::Ageing,
    doubling::{Doubling, ServiceProfile},
    feedback::{Feedback, Queues},
    pages::Pages,
    round_robin::FirstCome,
};
use std::sync::Arc;
use tsnode_coordinator::{
    policy::{
        batching::{Batch, BatchLimits, Batching},
        choice::{Batches, MachineRoom},
        routing::Asked,
    },
    replay::{self, iteration_cost::IterationCost, machines::Machine},
    scheduler::{Problem, parallel::ParallelConfig, prompts::PromptChunking, workload::WorkloadRequest},
};
use tsnode_protocol::{Seconds, SecondsPerToken};

/// Tokens of an iteration (Splitwise §IV-B); a first prompt may have more.
const TOKENS: u32 = 2048;
/// Tokens in a page of KV.
const PAGE: u64 = 16;
/// Queues of skip-join feedback; each has twice the quantum of the one before.
const LEVELS: u32 = 8;

/// How machines batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batched {
    /// In steps that nodes form, too.
    Steps(Batches),
    /// Prompts and answers together, within a number of tokens (Splitwise §IV-B).
    Mixed(BatchLimits),
    /// One phase at a time, requests in this order.
    Ordered(RequestOrder),
}

impl Batched {
    /// A plan's group as a machine.
    #[must_use]
    pub fn machine(self, problem: &Problem, config: &ParallelConfig, room: MachineRoom) -> Machine {
        let batching: Box<dyn Batching> = match self {
            Self::Steps(batches) => return replay::stepping(batches, problem, config, room),
            Self::Mixed(limits) => {
                let tasks = limits.tasks.min(room.places).max(1);
                Box::new(Ageing::new(BatchLimits { tasks, ..limits }, room.tokens))
            }
            Self::Ordered(order) => order.batching(room, config, &problem.workload.requests),
        };
        Machine { batching, cost: Arc::new(config.clone()) }
    }

    /// How prompts are computed so, as closed forms have it.
    #[must_use]
    pub fn prompts(self) -> PromptChunking {
        match self {
            Self::Steps(batches) => batches.into(),
            Self::Mixed(_) | Self::Ordered(_) => PromptChunking::Whole,
        }
    }
}

/// An order of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOrder {
    /// As they came.
    FirstCome,
    /// Skip-join feedback queues (FastServe).
    Feedback,
    /// Doubling budgets (SeaLLM App. A.2).
    Doubling,
}

impl RequestOrder {
    /// The policy on an idle machine of this speed, for requests like these.
    #[must_use]
    pub fn batching(
        self,
        room: MachineRoom,
        cost: &dyn IterationCost,
        requests: &[WorkloadRequest],
    ) -> Box<dyn Batching> {
        let limits = BatchLimits { tasks: room.places.max(1), tokens: TOKENS };
        let pages = Pages::new(room.tokens / PAGE, vec![PAGE]);
        match self {
            Self::FirstCome => Box::new(FirstCome::new(limits, pages)),
            Self::Feedback => {
                let (quantum, patience) = (cost.iteration(&Batch::answers(1, 1024)), Seconds(f64::INFINITY));
                let prompt = vec![per_prompt_token(cost, requests)];
                Box::new(Feedback::new(Queues { quantum, levels: LEVELS, prompt, patience }, limits, pages))
            }
            Self::Doubling => Box::new(Doubling::new(vec![profile(cost, requests)], limits, pages)),
        }
    }
}

fn asked(request: &WorkloadRequest) -> Asked {
    Asked::new(request.prompt.0.max(1.0) as u32, request.answer.0.max(1.0) as u32)
}

fn prompt_time(cost: &dyn IterationCost, prompt: u32) -> Seconds {
    let batch = Batch::prompt(prompt);
    cost.iteration(&batch) + cost.delay(&batch)
}

fn per_prompt_token(cost: &dyn IterationCost, requests: &[WorkloadRequest]) -> SecondsPerToken {
    let prompts = || requests.iter().map(|r| asked(r).prompt);
    let tokens = prompts().map(f64::from).sum::<f64>().max(1.0);
    (prompts().map(|p| prompt_time(cost, p)).sum::<Seconds>() / tokens).per_token()
}

fn profile(cost: &dyn IterationCost, requests: &[WorkloadRequest]) -> ServiceProfile {
    let whole: Vec<Seconds> = requests.iter().map(|r| alone(cost, asked(r))).collect();
    let prompts = requests.iter().map(|r| prompt_time(cost, asked(r).prompt));
    let answers: Vec<Seconds> = whole.iter().zip(prompts).map(|(w, p)| *w - p).collect();
    ServiceProfile::of(&whole).by_prompt(per_prompt_token(cost, requests), &answers)
}
