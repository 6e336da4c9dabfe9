//! Cronus in a replay: prompts are parted by the rule that gateways part them by (`crate::gateway`), of what machines are seen to have to
//! do and what their steps are counted to take.

use super::iteration_cost::IterationCost;
use crate::policy::{
    balancer::{AT_ONCE, Ahead, PromptFit, SPARED, ready_part},
    batching::{Batch, Seen},
    caps,
    choice::CHUNK,
    routing::{Asked, MachineNo, Routing, RoutingDecision},
    shares::{PhasePair, Shares},
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tsnode_protocol::{PromptCodec, Seconds, SecondsPerToken};

/// Prompts of so many lengths a fit goes through.
const LENGTHS: u32 = 8;

/// What KV takes from one machine to another: whatever its size, and for each token.
pub(super) type KvPathCost = (Seconds, SecondsPerToken);

/// Ways by the plan's shares, corrected by queues; of prompts of which the KV would go elsewhere a first part goes there.
#[derive(Debug)]
pub(super) struct Parted {
    ways: Shares,
    costs: Vec<Arc<dyn IterationCost>>,
    paths: BTreeMap<(MachineNo, MachineNo), KvPathCost>,
    /// What each machine that computes for others has still to compute, in order: for which, and the tokens that are left to that.
    firsts: BTreeMap<MachineNo, VecDeque<(MachineNo, u32)>>,
}

impl Parted {
    /// Over these ways, with nothing on its way.
    pub(super) fn new(
        ways: Vec<PhasePair<MachineNo>>,
        costs: Vec<Arc<dyn IterationCost>>,
        paths: BTreeMap<(MachineNo, MachineNo), KvPathCost>,
    ) -> Self {
        let for_others = ways.iter().filter(|way| way.prefill != way.decode);
        let firsts = for_others.map(|way| (way.prefill, VecDeque::new())).collect();
        Self { ways: Shares::new(ways, true), costs, paths, firsts }
    }

    /// Tokens of a prompt that the first of these computes for the second.
    fn first_part(&self, asked: Asked, slow: MachineNo, fast: MachineNo, seen: &dyn Fn(MachineNo) -> Seen) -> u32 {
        let Some(fit) = self.fit(asked.prompt, slow, fast) else { return asked.prompt };
        let (at_slow, at_fast) = (seen(slow), seen(fast));
        let chunk = chunk(at_fast);
        let coming: u32 = self.firsts.values().flatten().filter(|(to, _)| *to == fast).map(|(_, rest)| *rest).sum();
        let pending = f64::from(at_fast.pending_tokens) + f64::from(coming) - SPARED * f64::from(chunk);
        let waiting = f64::from((at_slow.waiting + at_slow.running).saturating_sub(1));
        let ahead = Ahead {
            slow: Seconds(fit.per_token.0 * f64::from(at_slow.pending_tokens) + fit.fixed.0 * waiting),
            fast: self.iteration(asked.prompt, fast, at_fast) * (pending / f64::from(chunk)),
        };
        match ready_part(asked.prompt, &fit, ahead) {
            all if all >= asked.prompt => asked.prompt,
            first => first - first % PromptCodec::GROUP,
        }
    }

    /// What first parts of prompts up to this long take; KV leaves while they are computed, and whichever is slower counts.
    fn fit(&self, prompt: u32, slow: MachineNo, fast: MachineNo) -> Option<PromptFit> {
        let cost = self.costs.get(slow.0 as usize)?;
        let takes = |tokens: u32| {
            let batch = Batch::prompt(tokens);
            (f64::from(tokens), cost.iteration(&batch) + cost.delay(&batch))
        };
        let measured: Vec<(f64, Seconds)> =
            (1..=LENGTHS).map(|part| takes(prompt.max(LENGTHS) / LENGTHS * part)).collect();
        let fit = PromptFit::of(&measured).filter(|fit| fit.per_token.0 > 0.0)?;
        let (latency, wire) = self.paths.get(&(slow, fast)).copied().unwrap_or_default();
        let per_token = SecondsPerToken(fit.per_token.0.max(wire.0));
        Some(PromptFit { fixed: fit.fixed.max(Seconds(0.0)) + latency, per_token })
    }

    /// A full iteration in the middle of such a prompt, beside the answers that run there.
    fn iteration(&self, prompt: u32, fast: MachineNo, seen: Seen) -> Seconds {
        let (chunk, before) = (u64::from(chunk(seen)), u64::from(prompt) / 2);
        let after = before + chunk;
        let batch = Batch {
            prompts: 1,
            prompt_tokens: chunk,
            prompt_squares: after * after - before * before,
            answers: seen.answers,
            context: seen.context,
            iterations: 1,
            ..Batch::default()
        };
        self.costs.get(fast.0 as usize).map_or(Seconds(0.0), |cost| cost.iteration(&batch))
    }
}

/// Prompt tokens of a machine's iteration beside answers.
fn chunk(seen: Seen) -> u32 {
    if seen.step == 0 { CHUNK } else { (seen.step / caps::LONG).max(1) }
}

impl Routing for Parted {
    fn route(&mut self, asked: Asked, seen: &dyn Fn(MachineNo) -> Seen) -> Option<RoutingDecision> {
        let RoutingDecision { prompt: slow, answer: fast, .. } = self.ways.route(asked, seen)?;
        let first = if slow == fast { 0 } else { self.first_part(asked, slow, fast, seen) };
        if first > 0 {
            self.firsts.entry(slow).or_default().push_back((fast, asked.prompt - first));
        }
        Some(RoutingDecision::parted(slow, fast, first, asked))
    }

    fn holds(&self, _: Asked, _: &dyn Fn(MachineNo) -> Seen) -> bool {
        !self.firsts.is_empty() && self.firsts.values().all(|firsts| firsts.len() >= AT_ONCE)
    }

    fn prompt_done(&mut self, machine: MachineNo, _: Asked) {
        if let Some(firsts) = self.firsts.get_mut(&machine) {
            firsts.pop_front();
        }
    }

    fn answer_done(&mut self, _: MachineNo, _: Asked) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: MachineNo = MachineNo(0);
    const FAST: MachineNo = MachineNo(1);

    /// So many milliseconds a token, whatever else there is.
    #[derive(Debug)]
    struct EvenTokens(f64);

    impl IterationCost for EvenTokens {
        fn iteration(&self, batch: &Batch) -> Seconds {
            Seconds(self.0 * 1e-3 * batch.prompt_tokens as f64)
        }
    }

    fn parted() -> Parted {
        let way = PhasePair { prefill: SLOW, decode: FAST, share: 1.0 };
        Parted::new(vec![way], vec![Arc::new(EvenTokens(3.0)), Arc::new(EvenTokens(1.0))], BTreeMap::new())
    }

    /// Where the second machine has so many tokens to compute, in chunks of 128.
    fn route(parted: &mut Parted, pending_tokens: u32) -> RoutingDecision {
        let fast = Seen { pending_tokens, step: 128 * caps::LONG, ..Seen::default() };
        parted.route(Asked::new(1000, 9), &|m| if m == FAST { fast } else { Seen::default() }).unwrap()
    }

    #[test]
    fn as_much_of_a_prompt_goes_elsewhere_as_is_computed_there_in_time() {
        assert_eq!(route(&mut parted(), 0), RoutingDecision::whole(FAST, FAST), "nobody waits there");
        // 1.5 chunks of 128 tokens are left to it: of 600 ms before that 200 tokens at 3 ms, in groups of 64.
        let decision = route(&mut parted(), 192 + 600);
        assert_eq!((decision.prompt, decision.answer, decision.split), (SLOW, FAST, Some(192)));
        assert_eq!(route(&mut parted(), 192 + 3100), RoutingDecision::whole(SLOW, FAST), "all of it is in time");
    }

    #[test]
    fn while_one_first_part_waits_behind_another_requests_wait() {
        let mut parted = parted();
        let holds = |parted: &Parted| parted.holds(Asked::new(1000, 9), &|_| Seen::default());
        for _ in 0..AT_ONCE {
            assert!(!holds(&parted));
            route(&mut parted, 5000);
        }
        assert!(holds(&parted));
        parted.prompt_done(SLOW, Asked::new(1000, 9));
        assert!(!holds(&parted));
    }
}
