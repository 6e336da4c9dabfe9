//! The requests that machines are bought for: lengths, and Poisson arrivals at any rate.

use tsnode_coordinator::{policy::routing::Asked, replay::machines::Arrival, rng::Rng, scheduler::workload::Workload};
use tsnode_protocol::Seconds;

/// Most requests in a list.
const MOST: usize = 4_000_000;

/// How a request's lengths are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drawn {
    /// A prompt with its own answer.
    Together,
    /// Prompt and answer independently, as Splitwise's simulator draws them from a trace.
    Apart,
}

/// What comes.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    lengths: Vec<Asked>,
    drawn: Drawn,
    seed: u64,
}

impl Demand {
    /// Of these lengths; `None` of none.
    #[must_use]
    pub fn new(lengths: Vec<Asked>, drawn: Drawn, seed: u64) -> Option<Self> {
        (!lengths.is_empty()).then_some(Self { lengths, drawn, seed })
    }

    /// Of a workload's equally likely requests; `None` of none.
    #[must_use]
    pub fn of(workload: &Workload, seed: u64) -> Option<Self> {
        let tokens = |n: f64| n.max(1.0).min(f64::from(u32::MAX)) as u32;
        let asked = workload.requests.iter().map(|r| Asked::new(tokens(r.prompt.0), tokens(r.answer.0)));
        Self::new(asked.collect(), Drawn::Together, seed)
    }

    /// All lengths.
    #[must_use]
    pub fn lengths(&self) -> &[Asked] {
        &self.lengths
    }

    /// KV of the longest request (tokens), prompt and answer drawn as they are.
    #[must_use]
    pub fn longest(&self) -> u64 {
        let most = |f: fn(&Asked) -> u64| self.lengths.iter().map(f).max().unwrap_or(0);
        match self.drawn {
            Drawn::Together => most(|l| l.prompt_memory() + l.answer_memory()),
            Drawn::Apart => most(Asked::prompt_memory) + most(Asked::answer_memory),
        }
    }

    /// Requests of so long a time. At every rate the same ones in the same order, closer together: mixes and rates are
    /// compared on what differs between them, not on luck.
    #[must_use]
    pub fn arrivals(&self, rate: f64, span: Seconds) -> Vec<Arrival> {
        let (mut rng, mut at) = (Rng::new(self.seed), 0.0);
        let mut all = Vec::with_capacity(((rate * span.0 * 1.1) as usize).min(MOST));
        while all.len() < MOST {
            at += rng.exponential(1.0 / rate);
            if at > span.0 {
                break;
            }
            all.push(Arrival { at: Seconds(at), asked: self.draw(&mut rng) });
        }
        all
    }

    /// So many requests, each so long after the one before.
    #[must_use]
    pub fn apart(&self, requests: usize, gap: Seconds) -> Vec<Arrival> {
        let mut rng = Rng::new(self.seed);
        (0..requests).map(|i| Arrival { at: gap * (i as f64 + 1.0), asked: self.draw(&mut rng) }).collect()
    }

    fn draw(&self, rng: &mut Rng) -> Asked {
        let first = self.lengths[rng.below(self.lengths.len())];
        match self.drawn {
            Drawn::Together => first,
            Drawn::Apart => Asked { answer: self.lengths[rng.below(self.lengths.len())].answer, ..first },
        }
    }
}
