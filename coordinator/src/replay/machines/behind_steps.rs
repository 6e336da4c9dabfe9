//! What waits for a machine's steps although it is no work for it: a node's stage takes one thing after the other, so that whatever comes
//! while it computes is heard of behind that.
//!
//! A gateway has a prompt computed elsewhere once the group that answers it has let it in ([`crate::gateway`]): behind the step that
//! this group computes then. KV that comes while a group computes is told of behind what it has sampled, and the next step is formed by
//! then: its answer is in the one after. A prompt that is computed where it is answered is in the next step all the same, since a group of
//! one stage does not form it before it knows who is let in ([`crate::batcher`]).

use super::{MachineNo, RequestNo, Seconds, Simulation, State};
use crate::policy::batching::Seen;
use std::collections::{BTreeMap, VecDeque};

/// What is held up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// A request whose prompt is to be computed elsewhere.
    Prompt(RequestNo),
    /// One whose KV has come from elsewhere.
    Kv(RequestNo),
}

/// By the machine whose steps they are behind, in the order in which they came, with so many of its batches before them.
#[derive(Debug, Default)]
pub(super) struct BehindSteps {
    held: BTreeMap<MachineNo, VecDeque<(Held, usize)>>,
    /// Of machines that compute prompts those that are held up on their way there: how many, and their tokens.
    coming: BTreeMap<MachineNo, (u32, u32)>,
}

impl BehindSteps {
    /// What gateways see of a machine: prompts that they have routed there are among what waits, wherever they are.
    pub(super) fn beside(&self, machine: MachineNo, seen: Seen) -> Seen {
        let (prompts, tokens) = self.coming.get(&machine).copied().unwrap_or_default();
        Seen { waiting: seen.waiting + prompts, pending_tokens: seen.pending_tokens + tokens, ..seen }
    }

    /// Another batch of a machine is done: what was behind no other.
    fn step_over(&mut self, machine: MachineNo) -> Vec<Held> {
        let Some(held) = self.held.get_mut(&machine) else { return Vec::new() };
        held.iter_mut().for_each(|(_, batches)| *batches = batches.saturating_sub(1));
        // Whoever came later is behind as many at least.
        let over = held.iter().take_while(|(_, batches)| *batches == 0).count();
        held.drain(..over).map(|(held, _)| held).collect()
    }
}

impl Simulation {
    /// The same with machines that take what comes one after the other, as nodes' stages do. For machines that stay to the end.
    #[must_use]
    pub fn behind_steps(mut self) -> Self {
        self.behind_steps = Some(BehindSteps::default());
        self
    }

    /// Whether it is held up by what a machine computes; then it goes on behind that.
    pub(super) fn is_held(&mut self, machine: MachineNo, held: Held) -> bool {
        let batches = match &self.states[machine.0 as usize] {
            State::Idle | State::Stages(_) => 0,
            State::Runs(_) => 1,
            State::Ring(ring) => ring.under_way(),
        };
        let Some(behind) = self.behind_steps.as_mut().filter(|_| batches > 0) else { return false };
        behind.held.entry(machine).or_default().push_back((held, batches));
        if let Held::Prompt(request) = held {
            self.changes_coming(request, |(prompts, tokens), more| (prompts + 1, tokens.saturating_add(more)));
        }
        true
    }

    /// A machine has done a batch, and begun the next.
    pub(super) fn step_over(&mut self, machine: MachineNo, now: Seconds) {
        let over = self.behind_steps.as_mut().map_or_else(Vec::new, |behind| behind.step_over(machine));
        for held in over {
            let (Held::Prompt(request) | Held::Kv(request)) = held;
            let Some(route) = self.traces[request.0 as usize].route else { continue };
            match held {
                Held::Prompt(request) => {
                    self.changes_coming(request, |(prompts, tokens), more| {
                        (prompts.saturating_sub(1), tokens.saturating_sub(more))
                    });
                    self.open_prompt(request, route, now);
                }
                Held::Kv(request) => self.goes_on(request, route, now),
            }
        }
    }

    /// Changes what is on its way to where a request's prompt is computed, by the tokens that are computed there.
    fn changes_coming(&mut self, request: RequestNo, change: impl Fn((u32, u32), u32) -> (u32, u32)) {
        let (asked, route) = (self.asked(request), self.traces[request.0 as usize].route);
        let (Some(route), Some(behind)) = (route, &mut self.behind_steps) else { return };
        let coming = behind.coming.entry(route.prompt).or_default();
        *coming = change(*coming, route.split.unwrap_or(asked.prompt));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        policy::{
            batching::Batch,
            chunked::Chunked,
            routing::{Asked, Routing, RoutingDecision},
        },
        replay::{
            iteration_cost::IterationCost,
            machines::{Alike, Arrival, Machine, ReplayTrace},
        },
    };
    use std::sync::Arc;
    use tsnode_protocol::SecondsPerToken;

    const READS: MachineNo = MachineNo(0);
    const WRITES: MachineNo = MachineNo(1);

    /// Three quarters of a second for a step with a prompt, a second for one of answers.
    #[derive(Debug)]
    struct EvenSteps;

    impl IterationCost for EvenSteps {
        fn iteration(&self, batch: &Batch) -> Seconds {
            Seconds(if batch.prompts > 0 { 0.75 } else { 1.0 })
        }
    }

    /// Each request goes the next way.
    #[derive(Debug)]
    struct GivenWays(VecDeque<RoutingDecision>);

    impl Routing for GivenWays {
        fn route(&mut self, _: Asked, _: &dyn Fn(MachineNo) -> Seen) -> Option<RoutingDecision> {
            self.0.pop_front()
        }
        fn prompt_done(&mut self, _: MachineNo, _: Asked) {}
        fn answer_done(&mut self, _: MachineNo, _: Asked) {}
    }

    /// A request of five tokens at once whose prompt is computed elsewhere, and one of two tokens after a second and a quarter, that way.
    fn second(way: RoutingDecision, is_behind: bool) -> (ReplayTrace, f64) {
        let machine = || Machine { batching: Box::new(Chunked::new(512, 8, 10_000)), cost: Arc::new(EvenSteps) };
        let ways = GivenWays([RoutingDecision::whole(READS, WRITES), way].into());
        let links = Box::new(Alike { per_token: SecondsPerToken(0.0) });
        let simulation = Simulation::new(vec![machine(), machine()], Box::new(ways), links);
        let simulation = if is_behind { simulation.behind_steps() } else { simulation };
        let arrivals = [(0.0, 5), (1.25, 2)].map(|(at, n)| Arrival { at: Seconds(at), asked: Asked::new(9, n) });
        let traces = simulation.run(&arrivals, &|_| false).traces;
        (traces[1], traces[0].end.0)
    }

    /// Steps of the first answer end at 1.75 s, 2.75 s and so on. The second prompt is let in at 1.75 s, and its KV comes at 2.5 s, told of
    /// behind the step until 2.75 s and when the next has begun.
    #[test]
    fn a_prompt_elsewhere_is_begun_behind_a_step_and_its_answer_in_the_one_after_the_next() {
        let way = RoutingDecision::whole(READS, WRITES);
        let times = |is_behind| {
            let (t, other) = second(way, is_behind);
            [t.prompt_start.0, t.first.0, t.answer_start.0, t.end.0, other]
        };
        assert_eq!(times(false), [1.25, 2.0, 2.75, 3.75, 4.75]);
        assert_eq!(times(true), [1.75, 2.5, 3.75, 4.75, 4.75]);
    }

    #[test]
    fn a_prompt_that_is_computed_where_it_is_answered_is_in_the_next_step_all_the_same() {
        let times = |is_behind| second(RoutingDecision::whole(WRITES, WRITES), is_behind);
        assert_eq!(times(false), times(true));
        assert_eq!(times(true).0.prompt_start, Seconds(1.75));
        // Nor is one held up whose answer is written where nobody computes.
        let idle = |is_behind| second(RoutingDecision::whole(WRITES, READS), is_behind);
        assert_eq!(idle(false), idle(true));
    }

    #[test]
    fn what_is_held_up_goes_on_behind_its_batches_and_is_seen_until_then() {
        let held = |all: &[(Held, usize)]| BTreeMap::from([(WRITES, all.iter().copied().collect())]);
        let (first, second) = (Held::Kv(RequestNo(4)), Held::Prompt(RequestNo(5)));
        let coming = BTreeMap::from([(READS, (1, 900))]);
        let mut behind = BehindSteps { held: held(&[(first, 1), (second, 2)]), coming };
        let seen = Seen { waiting: 2, pending_tokens: 100, running: 3, ..Seen::default() };
        assert_eq!(behind.beside(READS, seen), Seen { waiting: 3, pending_tokens: 1000, ..seen });
        assert_eq!(behind.beside(WRITES, seen), seen);
        assert_eq!(
            [READS, WRITES, WRITES, WRITES].map(|m| behind.step_over(m)),
            [vec![], vec![first], vec![second], vec![]]
        );
    }
}
