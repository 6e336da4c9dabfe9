//! What a stage has computed of a sequence.

use crate::history::TokenWork;
use std::collections::BTreeMap;
use tsnode_protocol::{LayerRange, RequestId, Sampled, ring::StepEntry};

/// Tokens of a sequence, since it was admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SequenceTokens {
    /// Computed as a prompt's: those of an answer that another group began are among them.
    prompt: u32,
    /// Places of the first and the last token that were chosen here.
    chosen: Option<(u32, u32)>,
}

impl SequenceTokens {
    /// A step has computed this, and chosen so many tokens behind it.
    pub fn step(&mut self, entry: &StepEntry, chosen: u32) {
        let tokens = entry.tokens.len() as u32;
        // Behind the last token of a prompt, and behind the first of an answer's, since the others are drafts.
        let place = entry.start.saturating_add(if entry.prompt { tokens } else { 1 });
        if entry.prompt {
            self.prompt = self.prompt.saturating_add(tokens);
        }
        if chosen > 0 {
            let first = self.chosen.map_or(place, |(first, _)| first);
            self.chosen = Some((first, place.saturating_add(chosen - 1)));
        }
    }

    /// In tokens times layers.
    pub fn work(self, own: LayerRange, layers: u32) -> TokenWork {
        let answer = self.chosen.map_or(0, |(first, last)| last.saturating_sub(first).saturating_add(1));
        TokenWork::of(self.prompt, answer, own.len(), layers)
    }
}

/// How many tokens were chosen of each sequence.
pub(super) fn chosen(tokens: &[(RequestId, Sampled)]) -> BTreeMap<RequestId, u32> {
    let mut chosen = BTreeMap::new();
    tokens.iter().for_each(|(request, _)| *chosen.entry(*request).or_default() += 1);
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_protocol::Token;

    fn entry(start: u32, tokens: usize, prompt: bool) -> StepEntry {
        StepEntry { request: RequestId([1; 16]), start, tokens: vec![Token(7); tokens], sample: true, prompt }
    }

    fn counted(steps: &[(StepEntry, u32)]) -> (u64, u64) {
        let mut counted = SequenceTokens::default();
        steps.iter().for_each(|(entry, chosen)| counted.step(entry, *chosen));
        let work = counted.work(LayerRange { start: 2, end: 5 }, 12);
        (work.prompt / 3, work.answer / 3)
    }

    #[test]
    fn a_prompt_and_its_answer_count_once_each() {
        let steps =
            [(entry(0, 64, true), 0), (entry(64, 36, true), 1), (entry(100, 1, false), 1), (entry(101, 1, false), 1)];
        assert_eq!(counted(&steps), (100, 3));
        assert_eq!(counted(&steps[..2]), (100, 1), "a prefill group chooses the first token");
        assert_eq!(counted(&steps[2..]), (0, 2), "and a decode group all others");
        assert_eq!(counted(&[]), (0, 0));
    }

    #[test]
    fn drafts_count_where_they_hold() {
        // Of three drafts two hold; then all three; then none.
        let last =
            [(entry(10, 1, true), 1), (entry(11, 4, false), 3), (entry(14, 4, false), 4), (entry(18, 4, false), 1)];
        assert_eq!(counted(&last), (1, 9));
        // A stage that chooses no tokens sees the same by where the next step begins.
        let between = last.map(|(entry, _)| (entry, 1));
        assert_eq!(counted(&between), (1, 9));
    }
}
