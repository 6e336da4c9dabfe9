//! How groups compute prompts: whole, one after the other, as the papers have it, or in chunks, as nodes do.
//!
//! A step holds so many tokens of prompts, of several if they are short, and reads all weights once. Groups that only prefill
//! make steps longer when much waits (`policy/chunked.rs`). A prompt's next chunk follows the one before it through the
//! stages, and stages wait for each other where steps differ in length. Alone, a prompt's steps are a flow shop whose jobs
//! take times in proportion at every stage: of equal stages with steps c₁ … c_k the last is done after Σc + (p−1)·max c,
//! since some path through stages and steps passes the longest step at every stage and every other step once. With unequal
//! stages, the slowest computes all steps and each of the others one, the longest; that is a bound, reached where the
//! slowest stage comes first. Where no answers are beside them, steps are as long as makes that least
//! ([`crate::policy::caps::through_stages`]); beside answers they are as long as answers wait for.
//!
//! Where prompts go first ([`BatchPolicy::Mixed`], [`BatchPolicy::PrefillFirst`]) a group that does both computes what has come of
//! them before its next step of answers, and with nothing beside them in steps as long as a group for prompts alone has.

pub use super::problem::PromptChunking;

use super::{cost::Prefill, parallel::ParallelConfig};
use crate::policy::{
    caps::{LONG, through_stages},
    choice::Batches,
};
use tsnode_protocol::{BatchPolicy, Phase, Seconds, Tokens};

impl From<Batches> for PromptChunking {
    /// How prompts are computed so, as closed forms have it.
    fn from(batches: Batches) -> Self {
        let chunks = |tokens: u32, order| Self::Chunks { tokens: Tokens(f64::from(tokens)), order };
        match batches {
            Batches::Chunked(tokens) => chunks(tokens, BatchPolicy::Chunked),
            Batches::Mixed(tokens) => chunks(tokens, BatchPolicy::Mixed),
            Batches::PromptsFirst(tokens) => chunks(tokens, BatchPolicy::PrefillFirst),
            Batches::PrefillFirst => Self::Whole,
        }
    }
}

impl PromptChunking {
    /// What a group does that computes prompts so.
    #[must_use]
    pub fn batches(self) -> Batches {
        match self {
            Self::Whole => Batches::PrefillFirst,
            Self::Chunks { tokens, order } => Batches::Chunked(tokens.0 as u32).by(order),
        }
    }

    /// Whether a group that does both computes prompts before its next answers.
    #[must_use]
    pub fn go_first(self) -> bool {
        matches!(self, Self::Chunks { order: BatchPolicy::Mixed | BatchPolicy::PrefillFirst, .. })
    }

    /// Time of a prompt alone on a group.
    #[must_use]
    pub fn alone(self, config: &ParallelConfig, phase: Phase, prompt: Tokens) -> Seconds {
        let Self::Chunks { tokens, order } = self else { return config.latency.time(prompt) };
        let chunks = Chunks::of(tokens, order, phase, config.stages.len(), prompt);
        let (mut slowest, mut longest, mut at) = (Seconds(0.0), PromptStep { of: 0.0, squares: 0.0 }, Tokens(0.0));
        while slowest <= Seconds(0.0) || at < prompt {
            let after = (at + chunks.next(prompt - at)).min(prompt);
            let step = PromptStep { of: after.0 - at.0, squares: after.0 * after.0 - at.0 * at.0 };
            slowest += step.time(&config.busy);
            if step.time(&config.latency) > longest.time(&config.latency) {
                longest = step;
            }
            at = after;
        }
        slowest + longest.others(config)
    }

    /// What a prompt takes longer than alone when it comes behind others: it passes the other stages in or behind a full
    /// step, however short its own last one is.
    #[must_use]
    pub fn behind(self, config: &ParallelConfig, phase: Phase, prompt: Tokens) -> Seconds {
        let Self::Chunks { tokens, order } = self else { return Seconds(0.0) };
        let own = prompt.min(Chunks::of(tokens, order, phase, config.stages.len(), prompt).next(prompt));
        let step = |of: Tokens| PromptStep { of: of.0, squares: of.0 * of.0 };
        (step(tokens).others(config) - step(own).others(config)).max(Seconds(0.0))
    }

    /// How long a prompt keeps the slowest stage; of the last step's weights, half: another prompt may fill it up.
    #[must_use]
    pub fn keeps(self, busy: &Prefill, prompt: Tokens) -> Seconds {
        self.packed(busy).time(prompt) + self.waste(busy)
    }

    /// The same where steps are always full, which they are at full load. That they are longer then where groups only
    /// prefill, or prompts go alone, is left out: it makes up for what stages lose by waiting for each other.
    #[must_use]
    pub fn packed(self, busy: &Prefill) -> Prefill {
        match self {
            Self::Whole => *busy,
            Self::Chunks { tokens, .. } => Prefill {
                fixed: Seconds(0.0),
                per_token: busy.per_token + (busy.fixed / tokens.0.max(1.0)).per_token(),
                ..*busy
            },
        }
    }

    fn waste(self, busy: &Prefill) -> Seconds {
        match self {
            Self::Whole => Seconds(0.0),
            Self::Chunks { .. } => busy.fixed * 0.5,
        }
    }
}

/// How a prompt alone is cut (`policy/chunked.rs`).
struct Chunks {
    shortest: Tokens,
    longest: Tokens,
}

impl Chunks {
    fn of(tokens: Tokens, order: BatchPolicy, phase: Phase, stages: usize, prompt: Tokens) -> Self {
        let shortest = tokens.max(Tokens(1.0));
        let is_alone = phase == Phase::Prefill || order == BatchPolicy::PrefillFirst;
        if is_alone && stages > 1 {
            let step = Tokens(f64::from(through_stages(prompt.0.ceil() as u64, shortest.0 as u32, stages)));
            return Self { shortest: step, longest: step };
        }
        Self { shortest, longest: if is_alone { shortest * f64::from(LONG) } else { shortest } }
    }

    fn next(&self, left: Tokens) -> Tokens {
        Tokens(left.0.ceil()).max(self.shortest).min(self.longest)
    }
}

/// Tokens of a prompt in a step, and pairs of them with all before.
#[derive(Clone, Copy)]
struct PromptStep {
    of: f64,
    squares: f64,
}

impl PromptStep {
    fn time(&self, cost: &Prefill) -> Seconds {
        cost.mean(Tokens(self.of), self.squares)
    }

    /// Time in all stages but the slowest, KV transfers included.
    fn others(&self, config: &ParallelConfig) -> Seconds {
        (self.time(&config.latency) - self.time(&config.busy)).max(Seconds(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{cluster::InstanceId, parallel::ParallelStage},
        *,
    };
    use tsnode_protocol::SecondsPerToken;

    /// Two stages alike: 10 ms for the weights, 1 ms a token.
    fn config() -> ParallelConfig {
        let busy = Prefill { fixed: Seconds(0.01), per_token: SecondsPerToken(0.001), ..Prefill::default() };
        let latency = busy.then(&busy);
        let stage = ParallelStage { instance: InstanceId(0), tp: 1, layers: 1 };
        let (stages, rounds, kv_tokens) = (vec![stage; 2], Vec::new(), Tokens(1e6));
        ParallelConfig { stages, latency, busy, rounds, kv_tokens, batch: 1.0, rate: 1.0 }
    }

    #[test]
    fn chunks_follow_each_other_and_each_reads_the_weights() {
        let chunks = PromptChunking::from(Batches::Chunked(100));
        let close = |a: Seconds, b: f64| assert!((a.0 - b).abs() < 1e-12, "{a:?} and {b}");
        close(PromptChunking::Whole.alone(&config(), Phase::Mixed, Tokens(250.0)), 2.0 * 0.26);
        // The first stage has its three chunks done at 0.28 s; the second has the second of them until 0.33 s, and takes
        // 0.06 s for the last, of 50 tokens.
        let alone = |phase, prompt| chunks.alone(&config(), phase, Tokens(prompt));
        close(alone(Phase::Mixed, 250.0), 0.33 + 0.06);
        close(alone(Phase::Mixed, 40.0), 2.0 * 0.05);
        // Where nothing is answered as well; a hundred are cut in two, so that both stages compute.
        close(alone(Phase::Prefill, 250.0), 0.33 + 0.06);
        close(alone(Phase::Prefill, 100.0), 3.0 * 0.06);
        close(alone(Phase::Mixed, 100.0), 2.0 * 0.11);
        close(chunks.behind(&config(), Phase::Mixed, Tokens(40.0)), 0.11 - 0.05);
        close(chunks.packed(&config().busy).time(Tokens(250.0)), 0.25 + 2.5 * 0.01);
        close(chunks.keeps(&config().busy, Tokens(250.0)), 0.25 + 3.0 * 0.01);
    }

    #[test]
    fn prompts_that_go_alone_go_in_longer_steps() {
        let one = ParallelConfig { stages: config().stages[..1].to_vec(), latency: config().busy, ..config() };
        let alone = |batches: Batches, config: &ParallelConfig| {
            let prompts = PromptChunking::from(batches);
            assert_eq!(prompts.batches(), batches);
            prompts.alone(config, Phase::Mixed, Tokens(250.0)).0
        };
        let all = [Batches::Chunked(100), Batches::Mixed(100), Batches::PromptsFirst(100)];
        let of = |config: &ParallelConfig| all.map(|batches| alone(batches, config));
        let close = |found: [f64; 3], by_hand: [f64; 3]| {
            assert!(found.iter().zip(by_hand).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?} and {by_hand:?}");
        };
        // 100, 100 and 50 tokens, or 200 and 50.
        close(of(&one), [0.28, 0.28, 0.27]);
        // On two stages neither waits for a step of 200.
        close(of(&config()), [0.28 + 0.11; 3]);
    }
}
