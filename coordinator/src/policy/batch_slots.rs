//! Answers on a machine: they get places in order, as far as the batch and the KV memory reach, and the batches of a
//! pipeline share them.

use super::batching::{BatchMember, RequestNo, RequestPhase};
use std::collections::VecDeque;

/// An answer that is generated.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlacedAnswer {
    pub request: RequestNo,
    /// Tokens still to come.
    pub left: u32,
    /// Tokens it has before its next one.
    pub context: u64,
    /// KV it will have had when it ends (tokens); it counts while the answer has a place.
    pub whole: u64,
}

/// The answers of a machine.
#[derive(Debug)]
pub(super) struct AnswerPlaces {
    /// Most answers at once.
    places: usize,
    /// KV that fits (tokens); one answer alone runs even if it does not.
    capacity: u64,
    /// Batches that are on their way at once.
    stages: usize,
    used: u64,
    waiting: VecDeque<PlacedAnswer>,
    /// With a place and in no batch, and in batches, the oldest first.
    resting: VecDeque<PlacedAnswer>,
    under_way: VecDeque<PlacedAnswer>,
}

impl AnswerPlaces {
    pub(super) fn new(places: usize, capacity: u64) -> Self {
        Self {
            places: places.max(1),
            capacity,
            stages: 1,
            used: 0,
            waiting: VecDeque::new(),
            resting: VecDeque::new(),
            under_way: VecDeque::new(),
        }
    }

    /// On a pipeline of so many stages.
    pub(super) fn in_stages(self, stages: usize) -> Self {
        Self { stages: stages.max(1), ..self }
    }

    pub(super) fn stages(&self) -> usize {
        self.stages
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn running(&self) -> usize {
        self.resting.len() + self.under_way.len()
    }

    /// Tokens that running answers have before them, all together.
    pub(super) fn context(&self) -> u64 {
        self.resting.iter().chain(&self.under_way).map(|a| a.context).sum()
    }

    pub(super) fn queue(&mut self, answer: PlacedAnswer) {
        self.waiting.push_back(answer);
    }

    /// Gives places to answers that wait, in order.
    pub(super) fn admit(&mut self, starting: &mut Vec<(RequestNo, RequestPhase)>) {
        while let Some(answer) = self.waiting.front() {
            let full = self.running() >= self.places || self.used + answer.whole > self.capacity;
            if full && self.running() > 0 {
                return;
            }
            self.used += answer.whole;
            starting.push((answer.request, RequestPhase::Answer));
            self.resting.extend(self.waiting.pop_front());
        }
    }

    /// Answers that the next batch's share has, alike for each stage.
    pub(super) fn next_share(&self) -> usize {
        self.running().div_ceil(self.stages).min(self.resting.len())
    }

    /// A batch's share of the answers: how many, and the tokens they have before them.
    pub(super) fn share(&mut self) -> (u32, u64) {
        self.share_up_to(usize::MAX)
    }

    /// The same, of no more than so many: those that were in a batch last are left out.
    pub(super) fn share_up_to(&mut self, most: usize) -> (u32, u64) {
        let share = self.next_share().min(most);
        let mut context = 0;
        for answer in self.resting.drain(..share) {
            context += answer.context;
            self.under_way.push_back(answer);
        }
        (share as u32, context)
    }

    /// What the newest batch, with so many answers, computes.
    pub(super) fn members(&self, answers: u32, each: &mut dyn FnMut(BatchMember)) {
        let before = self.under_way.len().saturating_sub(answers as usize);
        let member = |a: &PlacedAnswer| BatchMember { request: a.request, part: RequestPhase::Answer, tokens: 1 };
        self.under_way.range(before..).map(member).for_each(each);
    }

    /// An answer goes before its end: at once, or with the batch it is in.
    pub(super) fn withdraw(&mut self, request: RequestNo) {
        self.waiting.retain(|a| a.request != request);
        if let Some(place) = self.resting.iter().position(|a| a.request == request) {
            self.used -= self.resting.remove(place).map_or(0, |a| a.whole);
        }
        self.under_way.iter_mut().filter(|a| a.request == request).for_each(|a| a.left = 0);
    }

    /// The oldest batch, with so many answers, has run so many iterations: those that end, in order.
    pub(super) fn ran(&mut self, answers: u32, iterations: u32, ended: &mut Vec<(RequestNo, RequestPhase)>) {
        let batch = self.under_way.len().min(answers as usize);
        for mut answer in self.under_way.drain(..batch) {
            answer.left -= iterations.min(answer.left);
            answer.context += u64::from(iterations);
            if answer.left == 0 {
                self.used -= answer.whole;
                ended.push((answer.request, RequestPhase::Answer));
            } else {
                self.resting.push_back(answer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_of_a_pipeline_share_the_answers() {
        let mut places = AnswerPlaces::new(5, 1000).in_stages(2);
        let answer = |n: u32| PlacedAnswer { request: RequestNo(n), left: n, context: 10 * u64::from(n), whole: 100 };
        (1..=6).for_each(|n| places.queue(answer(n)));
        let mut starting = Vec::new();
        places.admit(&mut starting);
        assert_eq!((starting.len(), places.running(), places.waiting()), (5, 5, 1), "five have a place");
        assert_eq!(places.share(), (3, 60), "half of them, rounded up: 1, 2, 3");
        assert_eq!(places.share(), (2, 90), "4, 5");
        assert_eq!(places.share(), (0, 0), "all are on their way");
        let mut ended = Vec::new();
        places.ran(3, 1, &mut ended);
        assert_eq!(ended, [(RequestNo(1), RequestPhase::Answer)]);
        places.admit(&mut starting);
        assert_eq!(starting.last(), Some(&(RequestNo(6), RequestPhase::Answer)));
        assert_eq!(places.share(), (3, 21 + 31 + 60), "2, 3, 6, half of five again");
        assert_eq!(places.running(), 5);
    }

    #[test]
    fn an_answer_that_goes_leaves_its_place_at_once_or_with_its_batch() {
        let mut places = AnswerPlaces::new(2, 1000);
        let answer = |n: u32| PlacedAnswer { request: RequestNo(n), left: 9, context: 10, whole: 400 };
        (1..=4).for_each(|n| places.queue(answer(n)));
        places.admit(&mut Vec::new());
        assert_eq!(places.share().0, 2);
        places.withdraw(RequestNo(1));
        places.withdraw(RequestNo(3));
        let mut members = Vec::new();
        places.members(2, &mut |m| members.push(m.request.0));
        assert_eq!(members, [1, 2], "it still counts in the batch that is on its way");
        places.ran(2, 1, &mut Vec::new());
        places.admit(&mut Vec::new());
        assert_eq!((places.running(), places.waiting(), places.used), (2, 0, 800), "2 and 4 are left");
        places.withdraw(RequestNo(4));
        assert_eq!((places.running(), places.used), (1, 400));
    }
}
