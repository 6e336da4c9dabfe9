//! Cronus's balancer (§4.3, §4.4, App. A): how much of a prompt a slow machine computes before a fast one goes on with
//! the rest, in chunks beside its answers. Its predictors are those that nodes use, too.

pub use tsnode_coordinator::policy::balancer::{Ahead, ChunkFit, PromptFit, ready_part};

use tsnode_protocol::Seconds;

/// Lengths looked at for each prompt (App. A, Algorithm 1).
const CANDIDATES: u64 = 512;

/// The fast machine, as a request finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastMachine {
    /// Answers that run.
    pub answers: u32,
    /// Tokens they have before them, all together.
    pub context: u64,
    /// Blocks of KV that are free.
    pub free_blocks: u64,
    /// Tokens of a block.
    pub block: u32,
    /// Tokens of an iteration.
    pub tokens: u32,
}

impl FastMachine {
    /// Prompt tokens of an iteration (App. A: n_p).
    #[must_use]
    pub fn room(&self) -> u64 {
        u64::from(self.tokens.saturating_sub(self.answers).max(1))
    }

    /// Whether a prompt's KV finds room.
    #[must_use]
    pub fn takes(&self, prompt: u32) -> bool {
        self.free_blocks >= u64::from(prompt).div_ceil(u64::from(self.block.max(1)))
    }
}

/// What the average context in T_chunked is taken of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AverageContext {
    /// The whole prompt and the last chunk's context: as Algorithm 1 is printed.
    AsPrinted,
    /// The first chunk's context, which is the first part, and the last one's: what Equation 1 means.
    #[default]
    FirstAndLast,
}

/// Tokens of a prompt that the slow machine computes: what makes both take equally long, of the candidates
/// ⌈i·L/512⌉; the smallest of equals. All of it where the fast machine has no room (App. A, Algorithm 1, with n_d for its
/// first n_p and L_ctxd for its L_ctxp).
#[must_use]
pub fn first_part(
    prompt: u32,
    slow: &PromptFit,
    fast: &ChunkFit,
    beside: &FastMachine,
    average: AverageContext,
) -> u32 {
    if !beside.takes(prompt) {
        return prompt;
    }
    let difference = |first: u32| (slow.time(f64::from(first)) - rest(prompt, first, fast, beside, average)).0.abs();
    let mut best = (f64::INFINITY, prompt);
    for i in 1..=CANDIDATES {
        let first = (i * u64::from(prompt)).div_ceil(CANDIDATES) as u32;
        let difference = difference(first);
        if difference < best.0 {
            best = (difference, first);
        }
    }
    best.1
}

/// T_chunked: the iterations that the rest of a prompt takes.
fn rest(prompt: u32, first: u32, fast: &ChunkFit, beside: &FastMachine, average: AverageContext) -> Seconds {
    let (left, room) = (u64::from(prompt - first), beside.room());
    let last = u64::from(first) + left / room * room;
    let begin = match average {
        AverageContext::AsPrinted => u64::from(prompt),
        AverageContext::FirstAndLast => u64::from(first),
    };
    fast.time((begin + last) as f64 / 2.0, beside.context as f64) * left.div_ceil(room) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_protocol::SecondsPerToken;

    const SLOW: PromptFit = PromptFit { fixed: Seconds(0.01), per_token: SecondsPerToken(2e-4) };
    const FAST: ChunkFit =
        ChunkFit { fixed: Seconds(0.04), per_before: SecondsPerToken(2e-6), per_context: SecondsPerToken(1e-7) };

    fn beside(answers: u32) -> FastMachine {
        FastMachine { answers, context: u64::from(answers) * 1000, free_blocks: 1000, block: 16, tokens: 512 }
    }

    #[test]
    fn a_busier_fast_machine_leaves_more_to_the_slow_one() {
        let of = |answers| first_part(4000, &SLOW, &FAST, &beside(answers), AverageContext::default());
        let parts: Vec<u32> = [0, 100, 200, 400, 511, 600].map(of).to_vec();
        assert!(parts.is_sorted() && parts[0] < parts[4], "{parts:?}");
        assert!(parts.iter().all(|p| (1..=4000).contains(p)));
    }

    #[test]
    fn both_take_about_equally_long() {
        let (prompt, beside) = (8000, beside(64));
        let first = first_part(prompt, &SLOW, &FAST, &beside, AverageContext::default());
        let fast = rest(prompt, first, &FAST, &beside, AverageContext::default());
        let iteration = FAST.time(8000.0, 64_000.0);
        assert!((SLOW.time(f64::from(first)) - fast).0.abs() < iteration.0);
    }

    #[test]
    fn without_room_the_slow_machine_computes_all() {
        let full = FastMachine { free_blocks: 62, ..beside(10) };
        assert_eq!(first_part(1000, &SLOW, &FAST, &full, AverageContext::default()), 1000);
        let room = FastMachine { free_blocks: 63, ..full };
        assert!(first_part(1000, &SLOW, &FAST, &room, AverageContext::default()) < 1000);
    }
}
