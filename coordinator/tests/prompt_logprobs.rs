//! A group's leader and sequences whose prompts' tokens are to be told of.
#![expect(clippy::unwrap_used, reason = "a scenario that cannot be run fails")]

use std::collections::VecDeque;
use std::time::Duration;
use tsnode_coordinator::batcher::{Action, Batcher, BatcherConfig, Event, NewSequence, SequenceKind};
use tsnode_protocol::{
    KvCodec, PromptLogprob, RequestId, Sampled, Sampling, Token,
    ring::{Admit, RingFrame},
    stream::{End, Generation},
};

const PROMPT: u32 = 40;

/// A leader, and a ring of one stage that says of each token of a prompt where it stands.
#[derive(Default)]
struct Scenario {
    frames: VecDeque<RingFrame>,
    admitted: Vec<Admit>,
    heard: Vec<Action>,
}

impl Scenario {
    fn ask(&mut self, batcher: &mut Batcher, n: u8, prompt_logprobs: Option<u8>, max_new_tokens: u32) {
        let sampling = Sampling { prompt_logprobs, ..Sampling::greedy() };
        let sequence = NewSequence {
            request: RequestId([n; 16]),
            prompt: (0..PROMPT).map(Token).collect(),
            answered: vec![],
            codec: KvCodec::Raw.into(),
            max_tokens: PROMPT + max_new_tokens,
            // The prompt's last token ends answers, and not this.
            generation: Generation {
                sampling,
                max_new_tokens,
                stop_tokens: vec![Token(PROMPT - 1)],
                class: Default::default(),
            },
            kind: SequenceKind::Local,
        };
        self.tell(batcher, Event::Submit(sequence));
        while let Some(frame) = self.frames.pop_front() {
            self.turn(batcher, frame);
        }
    }

    fn turn(&mut self, batcher: &mut Batcher, frame: RingFrame) {
        match frame {
            RingFrame::Admit(admit) => {
                let request = admit.request;
                self.admitted.push(admit);
                self.tell(batcher, Event::Admitted { request, refused: None });
            }
            RingFrame::Step(step) => {
                let mut tokens = Vec::new();
                for entry in &step.entries {
                    let asked = self.admitted.iter().rfind(|admit| admit.request == entry.request).unwrap();
                    if entry.prompt && asked.sampling.prompt_logprobs.is_some() {
                        let end = (entry.start + entry.tokens.len() as u32).min(PROMPT - 1);
                        let logprobs = (entry.start..end).map(of).collect();
                        let (request, from) = (entry.request, entry.start);
                        self.tell(batcher, Event::PromptLogprobs { request, from, logprobs });
                    }
                    let sampled = Sampled { token: Token(7), logprob: None, top: vec![] };
                    tokens.extend(entry.sample.then_some((entry.request, sampled)));
                }
                self.tell(batcher, Event::Sampled { step: step.step, tokens, busy: None });
            }
            _ => {}
        }
    }

    fn tell(&mut self, batcher: &mut Batcher, event: Event) {
        for action in batcher.on_event(Duration::ZERO, event) {
            match action {
                Action::Ring(frame) => self.frames.push_back(frame),
                other => self.heard.push(other),
            }
        }
    }
}

fn of(place: u32) -> PromptLogprob {
    PromptLogprob { logprob: -(place as f32), rank: 1, top: vec![] }
}

#[test]
fn all_of_a_prompt_is_told_once_though_others_have_computed_it() {
    let (mut batcher, mut scenario) = (Batcher::new(BatcherConfig::default()), Scenario::default());
    scenario.ask(&mut batcher, 1, None, 1);
    scenario.heard.clear();
    scenario.ask(&mut batcher, 2, Some(0), 0);
    assert_eq!(scenario.admitted[1].shared, None, "pages have no logits");
    let [Action::Granted { cached: 0, .. }, Action::PromptLogprobs { from: 0, logprobs, .. }, rest @ ..] =
        &scenario.heard[..]
    else {
        panic!("{:?}", scenario.heard)
    };
    assert_eq!(*logprobs, (0..PROMPT - 1).map(of).collect::<Vec<_>>());
    assert!(matches!(rest, [Action::Computed { .. }, Action::End { end: End::Length, .. }]), "{rest:?}");
    scenario.ask(&mut batcher, 3, None, 1);
    assert_eq!(scenario.admitted[2].shared.map(|shared| shared.tokens), Some(PROMPT - 1));
}
