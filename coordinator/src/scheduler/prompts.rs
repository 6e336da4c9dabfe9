//! How groups compute prompts: whole, one after the other, as the papers have it, or in chunks, as nodes do.
//!
//! A step holds so many tokens of prompts, of several if they are short, and reads all weights once. A prompt's next chunk
//! follows the one before it through the stages, so that a prompt alone is done when the slowest stage has computed all
//! its chunks and the last has gone through the others.

use super::{cost::Prefill, parallel::Config};
use tsnode_protocol::{Seconds, Tokens};

/// What a step holds of prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Prompts {
    /// One, whole.
    #[default]
    Whole,
    /// So many tokens.
    Chunks(Tokens),
}

impl Prompts {
    /// Time of a prompt alone on a group.
    #[must_use]
    pub fn alone(self, config: &Config, prompt: Tokens) -> Seconds {
        let Self::Chunks(chunk) = self else { return config.latency.time(prompt) };
        let steps = (prompt / chunk).ceil().max(1.0);
        let slowest = config.busy.time(prompt) + config.busy.fixed * (steps - 1.0);
        let last = prompt - chunk * (steps - 1.0);
        slowest + (config.latency.time(last) - config.busy.time(last)).max(Seconds(0.0))
    }

    /// How long a prompt keeps the slowest stage; of the last step's weights, half: another prompt may fill it up.
    #[must_use]
    pub fn keeps(self, busy: &Prefill, prompt: Tokens) -> Seconds {
        self.packed(busy).time(prompt) + self.waste(busy)
    }

    /// The same where steps are always full, which they are at full load.
    #[must_use]
    pub fn packed(self, busy: &Prefill) -> Prefill {
        match self {
            Self::Whole => *busy,
            Self::Chunks(chunk) => Prefill {
                fixed: Seconds(0.0),
                per_token: busy.per_token + (busy.fixed / chunk.0.max(1.0)).per_token(),
                ..*busy
            },
        }
    }

    fn waste(self, busy: &Prefill) -> Seconds {
        match self {
            Self::Whole => Seconds(0.0),
            Self::Chunks(_) => busy.fixed * 0.5,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_protocol::SecondsPerToken;

    /// Two stages alike: 10 ms for the weights, 1 ms a token.
    fn config() -> Config {
        let busy = Prefill { fixed: Seconds(0.01), per_token: SecondsPerToken(0.001), ..Prefill::default() };
        let latency = busy.then(&busy);
        let (stages, rounds, kv_tokens) = (Vec::new(), Vec::new(), Tokens(1e6));
        Config { stages, latency, busy, rounds, kv_tokens, batch: 1.0, rate: 1.0 }
    }

    #[test]
    fn chunks_follow_each_other_and_each_reads_the_weights() {
        let chunks = Prompts::Chunks(Tokens(100.0));
        let close = |a: Seconds, b: f64| assert!((a.0 - b).abs() < 1e-12, "{a:?} and {b}");
        close(Prompts::Whole.alone(&config(), Tokens(250.0)), 2.0 * 0.26);
        // The first stage has its three chunks done at 0.28 s; the last, of 50 tokens, then takes 0.06 s in the second.
        close(chunks.alone(&config(), Tokens(250.0)), 0.28 + 0.06);
        close(chunks.alone(&config(), Tokens(40.0)), 2.0 * 0.05);
        close(chunks.packed(&config().busy).time(Tokens(250.0)), 0.25 + 2.5 * 0.01);
        close(chunks.keeps(&config().busy, Tokens(250.0)), 0.25 + 3.0 * 0.01);
    }
}
