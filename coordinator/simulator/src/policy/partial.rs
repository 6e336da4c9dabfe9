//! Partially disaggregated prefill (Cronus §4): a slow machine computes the first part of each prompt, a fast one the rest
//! beside all answers. Requests wait at the gate while one waits at the slow machine, so that each is cut by what the
//! fast one does then.

use super::balancer::{self, Ahead, AverageContext, ChunkFit, FastMachine, PromptFit};
use std::collections::VecDeque;
use tsnode_coordinator::policy::{
    batching::Seen,
    routing::{Asked, MachineNo, Routing, RoutingDecision},
};

/// Iterations of work that the fast machine is left with where the slow one is just in time: estimates are not exact, and
/// it runs its answers alone, for the price of a whole iteration, whenever no prompt is there.
const SPARED: f64 = 1.5;

/// What is known of the two machines.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MachinePair {
    /// Computes first parts.
    pub slow: MachineNo,
    /// Computes the rest, and answers.
    pub fast: MachineNo,
    /// What first parts take.
    pub prompts: PromptFit,
    /// What iterations of the fast machine take.
    pub chunks: ChunkFit,
    /// KV that fits on the fast machine (tokens).
    pub capacity: u64,
    /// Tokens of a block of it.
    pub block: u32,
    /// Tokens of an iteration of it.
    pub tokens: u32,
}

/// Where prompts are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptCut {
    /// Not at all: the slow machine computes them (disaggregated prefill).
    Nowhere,
    /// Where both machines take equally long, each prompt by itself (Algorithm 1).
    Even(AverageContext),
    /// Where the slow machine is just in time for the fast one ([`balancer::ready_part`]), whose tokens are for prompts
    /// alone.
    Ready,
}

/// Routes over two machines.
#[derive(Clone, Debug)]
pub struct Partial {
    pair: MachinePair,
    cut: PromptCut,
    /// The rests (tokens) of what the slow machine has still to compute, in order.
    rests: VecDeque<u32>,
}

impl Partial {
    /// With nothing on its way.
    #[must_use]
    pub fn new(pair: MachinePair, cut: PromptCut) -> Self {
        Self { pair, cut, rests: VecDeque::new() }
    }

    fn beside(&self, seen: Seen) -> FastMachine {
        let free_blocks = self.pair.capacity.saturating_sub(seen.held) / u64::from(self.pair.block.max(1));
        let (block, tokens) = (self.pair.block, self.pair.tokens);
        FastMachine { answers: seen.answers, context: seen.context, free_blocks, block, tokens }
    }

    fn ahead(&self, asked: Asked, slow: Seen, fast: Seen) -> Ahead {
        let prompts = f64::from(slow.waiting + slow.running.min(1));
        let (pending, room) = (f64::from(fast.pending_tokens), f64::from(self.pair.tokens));
        let tokens = pending + self.rests.iter().map(|r| f64::from(*r)).sum::<f64>() - SPARED * room;
        let iteration = self.pair.chunks.time(f64::from(asked.prompt) / 2.0, fast.context as f64);
        Ahead {
            slow: self.pair.prompts.time(f64::from(slow.pending_tokens)) + self.pair.prompts.fixed * (prompts - 1.0),
            // What one prompt leaves of an iteration another fills: no rounding up.
            fast: iteration * (tokens / room),
        }
    }
}

impl Routing for Partial {
    fn route(&mut self, asked: Asked, seen: &dyn Fn(MachineNo) -> Seen) -> Option<RoutingDecision> {
        let MachinePair { slow, fast, prompts, chunks, .. } = self.pair;
        let beside = self.beside(seen(fast));
        let first = match self.cut {
            PromptCut::Nowhere => asked.prompt,
            PromptCut::Even(average) => balancer::first_part(asked.prompt, &prompts, &chunks, &beside, average),
            PromptCut::Ready if !beside.takes(asked.prompt) => asked.prompt,
            PromptCut::Ready => balancer::ready_part(asked.prompt, &prompts, self.ahead(asked, seen(slow), seen(fast))),
        };
        if first > 0 {
            self.rests.push_back(asked.prompt - first);
        }
        Some(RoutingDecision::parted(slow, fast, first, asked))
    }

    fn holds(&self, _: Asked, seen: &dyn Fn(MachineNo) -> Seen) -> bool {
        seen(self.pair.slow).waiting > 0
    }

    fn prompt_done(&mut self, machine: MachineNo, _: Asked) {
        if machine == self.pair.slow {
            self.rests.pop_front();
        }
    }

    fn answer_done(&mut self, _: MachineNo, _: Asked) {}
}
