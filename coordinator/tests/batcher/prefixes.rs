//! What prompts have in common is computed once.

use super::scenario::*;
use tsnode_coordinator::batcher::{Action, BatcherConfig, Event, SequenceKind, Speculation};
use tsnode_protocol::Token;

/// Prompts that begin with the same tokens: the first is computed, of the others only what differs, whether they come
/// while it computes, while it answers, or when it has ended.
#[test]
fn what_prompts_have_in_common_is_computed_once() {
    for together in [true, false] {
        let mut scenario = Scenario::new(2, 4000);
        for n in 1..=32 {
            let mut sequence = new(n, 500, 4, SequenceKind::Local);
            sequence.prompt.extend([Token(n.into()); 10]);
            sequence.max_tokens += 10;
            scenario.tell(Event::Submit(sequence));
            if !together {
                scenario.settle();
            }
        }
        scenario.settle();
        assert_eq!((scenario.ring.computed, scenario.ring.shared), (510 + 31 * 10, 31 * 500), "together: {together}");
        let cached = |a: &Action| matches!(a, Action::Granted { cached: 500, .. });
        assert_eq!(scenario.heard.iter().filter(|a| cached(a)).count(), 31);
        assert!((1..=32).all(|n| scenario.indices(n) == [0, 1, 2, 3]));
        scenario.all_pages_are_free();
    }
}

/// A conversation goes on: what was answered is there, too.
#[test]
fn an_answer_is_part_of_the_next_prompt() {
    let mut scenario = Scenario::new(1, 200);
    scenario.tell(Event::Submit(new(1, 40, 10, SequenceKind::Local))).settle();
    let mut next = new(2, 40, 10, SequenceKind::Local);
    next.prompt.extend((0..9).map(|n| Token(140 + n)));
    next.prompt.push(Token(3));
    next.max_tokens += 10;
    scenario.tell(Event::Submit(next)).settle();
    assert_eq!(scenario.ring.shared, 49, "the last token of an answer is never computed");
}

/// What was kept is gone where its pages were wanted: the prompt is computed, and nothing else happens.
#[test]
fn what_is_no_longer_kept_is_computed_anew() {
    let mut scenario = Scenario::new(1, 60);
    scenario.tell(Event::Submit(new(1, 40, 4, SequenceKind::Local))).settle();
    assert_eq!(scenario.ring.kept.len(), 1);
    scenario.ring.kept.clear();
    scenario.tell(Event::Submit(new(2, 40, 4, SequenceKind::Local))).settle();
    assert_eq!((scenario.ring.computed, scenario.ring.shared), (80, 0));
    assert_eq!(scenario.indices(2), [0, 1, 2, 3]);
}

/// KV from elsewhere was packed on its way: nothing that is computed here begins with it.
#[test]
fn only_what_is_computed_here_is_shared() {
    let mut scenario = Scenario::new(1, 100);
    scenario.tell(Event::Submit(new(1, 20, 3, SequenceKind::AwaitKv))).settle();
    scenario.ring.present.insert(request(1), vec![Token(1); 20]);
    scenario.tell(Event::KvArrived { request: request(1), position: 0, arrived: Ok(vec![]) });
    scenario.tell(Event::Begin { request: request(1), first: Token(50) }).settle();
    assert_eq!(scenario.ends(1), 1);
    scenario.tell(Event::Submit(new(2, 20, 3, SequenceKind::Local))).settle();
    assert_eq!(scenario.ring.shared, 0);
}

/// Where layers keep a state of a sequence, the next turn begins with all of the last one or with nothing; and what would have to be
/// taken back is not proposed, neither by a draft model nor by what repeats itself.
#[test]
fn where_nothing_is_cut_whole_turns_are_shared_and_nothing_is_proposed() {
    let config = BatcherConfig { cuts: false, speculation: Speculation::Drafted, ..BatcherConfig::default() };
    let mut scenario = Scenario::of(config, 400);
    scenario.ring.period = 3;
    scenario.tell(Event::Submit(new(1, 40, 10, SequenceKind::Local))).settle();
    assert_eq!(scenario.indices(1), (0..10).collect::<Vec<_>>());
    let next = |n, more: Vec<Token>| {
        let mut next = new(n, 40, 10, SequenceKind::Local);
        next.max_tokens += more.len() as u32;
        next.prompt.extend(more);
        next
    };
    scenario.tell(Event::Submit(next(2, vec![Token(5); 20]))).settle();
    assert_eq!(scenario.ring.shared, 0, "it parts from the other in its answer");
    let said = (0..9).map(|n| answer(3, 40 + n)).chain([Token(5)]).collect();
    scenario.tell(Event::Submit(next(3, said))).settle();
    assert_eq!((scenario.ring.shared, scenario.ring.drafted, scenario.draft.asked), (49, 0, 0));
}
