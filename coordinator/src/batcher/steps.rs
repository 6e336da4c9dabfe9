//! Which sequences compute in the next step: the policy that the simulator drives ([`crate::policy`]) is driven here, with
//! sequences that have pages and may go at any moment.
//!
//! The policy has numbers for requests and counts tokens; names, tokens themselves and pages are the batcher's. A
//! sequence that goes and comes back has another number, so that what is still on its way for the first is nobody's.

use crate::policy::{
    batching::{Answered, BatchMember, RequestNo, RequestPhase, ServiceNo, Stepwise, Task},
    choice::{Batches, MachineRoom},
    chunked::AHEAD,
};
use std::collections::{BTreeMap, VecDeque};
use tsnode_protocol::{RequestId, Sampled};

/// A sequence's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SequenceShare {
    pub request: RequestId,
    pub part: RequestPhase,
    /// Tokens that the step computes of it.
    pub tokens: u32,
}

/// A step that is done for a sequence.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SequenceStep {
    pub share: SequenceShare,
    /// The tokens chosen, where some were.
    pub sampled: Vec<Sampled>,
}

#[derive(Debug)]
struct OnTheWay {
    step: u64,
    members: Vec<BatchMember>,
    /// What the last stage chose, once it is known; steps end in order.
    sampled: Option<Vec<(RequestId, Sampled)>>,
}

/// The steps of a group.
#[derive(Debug)]
pub(super) struct Steps {
    policy: Box<dyn Stepwise>,
    stages: usize,
    numbers: BTreeMap<RequestId, RequestNo>,
    requests: BTreeMap<RequestNo, RequestId>,
    next_number: u32,
    on_the_way: VecDeque<OnTheWay>,
    next_step: u64,
}

impl Steps {
    /// No steps. Pages are granted before a sequence comes here: the policy need not count KV.
    pub fn new(batches: Batches, places: usize, stages: usize) -> Self {
        Self {
            policy: batches.batching(MachineRoom { places, tokens: u64::MAX, stages }),
            stages: stages.max(1),
            numbers: BTreeMap::new(),
            requests: BTreeMap::new(),
            next_number: 0,
            on_the_way: VecDeque::new(),
            next_step: 0,
        }
    }

    /// Whether some step is not done.
    pub fn are_on_the_way(&self) -> bool {
        !self.on_the_way.is_empty()
    }

    /// Another policy, to which no sequence has come yet; steps are counted on.
    pub fn form_by(&mut self, batches: Batches, places: usize) {
        self.policy = batches.batching(MachineRoom { places, tokens: u64::MAX, stages: self.stages });
        self.numbers.clear();
        self.requests.clear();
    }

    /// A sequence computes so many tokens of its prompt, after some that are there; if it then answers here, with so many
    /// tokens at most.
    pub fn prompt(&mut self, request: RequestId, before: u32, tokens: u32, answer: Option<u32>) {
        let number = self.number(request);
        let answered = if answer.is_some() { Answered::Here } else { Answered::Elsewhere };
        let memory = u64::from(before + tokens) + 1;
        self.policy.add(Task { before, ..task(number, RequestPhase::Prompt, tokens, memory, answered) });
        if let Some(left) = answer.filter(|_| self.policy.queues_ahead()) {
            self.policy.add(task(number, RequestPhase::Answer, left, u64::from(left), Answered::Here));
        }
    }

    /// A sequence answers, with so many tokens at most; it has KV of `present` tokens.
    pub fn answer(&mut self, request: RequestId, present: u32, left: u32) {
        let computed_here = self.numbers.contains_key(&request);
        let number = self.number(request);
        if !computed_here {
            self.policy.reserve(number, u64::from(present));
        }
        if !(computed_here && self.policy.queues_ahead()) {
            self.policy.add(task(number, RequestPhase::Answer, left, u64::from(left), Answered::Here));
        }
    }

    /// A sequence is no more.
    pub fn leave(&mut self, request: RequestId) {
        if let Some(number) = self.numbers.remove(&request) {
            self.requests.remove(&number);
            self.policy.withdraw(number);
        }
    }

    /// The next step, if one may set off: the policy says how many may be on their way, and more than two for each stage
    /// are of no use. Where KV is to come for a sequence of which the policy does not know yet, no more than one for each: what it
    /// asks the stages for is behind all of them.
    pub fn next(&mut self, kv_comes: bool) -> Option<(u64, Vec<SequenceShare>)> {
        let most = if kv_comes { self.stages } else { AHEAD * self.stages };
        if self.on_the_way.len() >= most.min(self.policy.at_once()) || self.policy.select().is_empty() {
            return None;
        }
        let mut members = Vec::new();
        self.policy.members(&mut |member| members.push(member));
        let shares = members.iter().filter_map(|m| self.share(m)).collect();
        let step = self.next_step;
        self.next_step += 1;
        self.on_the_way.push_back(OnTheWay { step, members, sampled: None });
        Some((step, shares))
    }

    /// What is still here of a step that has not set off yet.
    pub fn shares(&self, step: u64) -> Vec<SequenceShare> {
        let found = self.on_the_way.iter().find(|s| s.step == step);
        found.into_iter().flat_map(|s| &s.members).filter_map(|m| self.share(m)).collect()
    }

    /// The last stage has chosen these tokens in a step. What is done with that, and with steps before it, in order.
    pub fn done(&mut self, step: u64, sampled: Vec<(RequestId, Sampled)>) -> Vec<SequenceStep> {
        if let Some(found) = self.on_the_way.iter_mut().find(|s| s.step == step) {
            found.sampled = Some(sampled);
        }
        let mut done = Vec::new();
        while self.on_the_way.front().is_some_and(|s| s.sampled.is_some()) {
            let Some(OnTheWay { members, sampled, .. }) = self.on_the_way.pop_front() else { break };
            let mut chosen: BTreeMap<RequestId, Vec<Sampled>> = BTreeMap::new();
            for (request, sampled) in sampled.unwrap_or_default() {
                chosen.entry(request).or_default().push(sampled);
            }
            self.policy.ran(1, &mut Vec::new());
            let shares = members.iter().filter_map(|m| self.share(m));
            done.extend(
                shares.map(|share| SequenceStep { share, sampled: chosen.remove(&share.request).unwrap_or_default() }),
            );
        }
        done
    }

    fn number(&mut self, request: RequestId) -> RequestNo {
        if let Some(number) = self.numbers.get(&request) {
            return *number;
        }
        let number = RequestNo(self.next_number);
        self.next_number = self.next_number.wrapping_add(1);
        self.numbers.insert(request, number);
        self.requests.insert(number, request);
        number
    }

    /// Of a sequence that is still here.
    fn share(&self, member: &BatchMember) -> Option<SequenceShare> {
        let request = *self.requests.get(&member.request)?;
        Some(SequenceShare { request, part: member.part, tokens: member.tokens })
    }
}

fn task(request: RequestNo, part: RequestPhase, tokens: u32, memory: u64, answered: Answered) -> Task {
    Task { request, part, service: ServiceNo::default(), tokens, before: 0, memory, answered }
}
