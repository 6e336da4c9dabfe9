//! Prompts in chunks, answers, and what ends them.

use super::scenario::*;
use std::time::Duration;
use tsnode_coordinator::{
    batcher::{Action, BatcherConfig, Event, SequenceKind},
    policy::choice::Batches,
};
use tsnode_protocol::{Token, ring::RingFrame, stream::End};

#[test]
fn a_prompt_is_computed_in_chunks_and_answered() {
    let mut scenario = Scenario::new(1, 100);
    scenario.tell(Event::Submit(new(1, 20, 4, SequenceKind::Local))).settle();
    assert_eq!(scenario.indices(1), [0, 1, 2, 3]);
    assert_eq!(scenario.heard.last(), Some(&Action::End { request: request(1), end: End::Length }));
    scenario.all_pages_are_free();
}

/// Stages take steps in order, so that a chunk may follow the one before it at once; and chunks are as short as it takes.
#[test]
fn a_lone_prompt_keeps_every_stage_busy() {
    let mut scenario = Scenario::new(3, 100);
    scenario.tell(Event::Submit(new(1, 20, 4, SequenceKind::Local)));
    let admitted = scenario.ring.turn().unwrap();
    scenario.tell(admitted);
    let steps = scenario.ring.on_the_way.iter().filter(|f| matches!(f, RingFrame::Step(_))).count();
    assert_eq!(steps, 5, "chunks of 4 are through sooner than such of 8, 8 and 4");
    scenario.settle();
    assert_eq!(scenario.indices(1), [0, 1, 2, 3]);
    scenario.all_pages_are_free();
}

/// Where nothing is answered no step has to be short, and two for each stage are on their way; where one prompt is all there is, too.
#[test]
fn prompts_that_leave_take_more_and_longer_steps() {
    let tokens = |kind: SequenceKind, answer: u32| {
        let mut scenario = Scenario::new(2, 200);
        scenario.tell(Event::Submit(new(1, 60, answer, kind)));
        let admitted = scenario.ring.turn().unwrap();
        scenario.tell(admitted);
        let of = |f: &RingFrame| match f {
            RingFrame::Step(step) => Some(step.entries.iter().map(|e| e.tokens.len()).sum()),
            _ => None,
        };
        scenario.ring.on_the_way.iter().filter_map(of).collect::<Vec<usize>>()
    };
    assert_eq!(tokens(export(), 4), [12; 4], "in which sixty tokens are through soonest");
    assert_eq!(tokens(SequenceKind::Local, 4), [8; 4], "no longer than answers would have them");
    assert_eq!(tokens(SequenceKind::Local, 1), [12; 4], "behind its first token there is no answer");
}

/// Tokens of each entry of the steps that are on their way, prompts' first.
fn on_their_way(scenario: &Scenario) -> Vec<Vec<(bool, usize)>> {
    let of = |f: &RingFrame| match f {
        RingFrame::Step(step) => Some(step.entries.iter().map(|e| (e.prompt, e.tokens.len())).collect()),
        _ => None,
    };
    let mut steps: Vec<Vec<(bool, usize)>> = scenario.ring.on_the_way.iter().filter_map(of).collect();
    steps.iter_mut().for_each(|entries| entries.sort_unstable_by(|a, b| b.cmp(a)));
    steps
}

/// A stage says what it sampled before it says who has pages: both are of one moment.
#[test]
fn a_prompt_that_came_during_a_step_is_in_the_next_one() {
    let mut scenario = Scenario::new(1, 100);
    scenario.tell(Event::Submit(new(1, 4, 40, SequenceKind::Local)));
    while on_their_way(&scenario) != [[(false, 1)]] {
        let next = scenario.ring.turn().unwrap();
        scenario.tell(next);
    }
    scenario.tell(Event::Submit(new(2, 4, 4, SequenceKind::Local)));
    let sampled = scenario.ring.turn().unwrap();
    assert!(matches!(sampled, Event::Sampled { .. }));
    scenario.tell(sampled);
    let admitted = scenario.ring.turn().unwrap();
    assert!(matches!(admitted, Event::Admitted { .. }), "before another step");
    scenario.tell(admitted);
    assert_eq!(on_their_way(&scenario), [[(true, 4), (false, 1)]]);
    scenario.settle();
    assert_eq!((scenario.indices(1).len(), scenario.indices(2).len()), (40, 4));
    scenario.all_pages_are_free();
}

/// What waits for KV asks the stages for pages behind all that is on its way to them.
#[test]
fn a_lone_prompt_takes_no_more_than_a_step_a_stage_while_kv_is_to_come() {
    let mut scenario = Scenario::new(2, 200);
    scenario.tell(Event::Submit(new(1, 10, 4, SequenceKind::AwaitKv)));
    let granted = scenario.ring.turn().unwrap();
    scenario.tell(granted).tell(Event::Submit(new(2, 60, 4, SequenceKind::Local)));
    let admitted = scenario.ring.turn().unwrap();
    scenario.tell(admitted);
    assert_eq!(on_their_way(&scenario).len(), 2);
}

#[test]
fn a_stop_token_ends_the_answer() {
    let mut scenario = Scenario::new(1, 200);
    let mut sequence = new(1, 3, 50, SequenceKind::Local);
    sequence.generation.stop_tokens = vec![Token(105)];
    scenario.tell(Event::Submit(sequence)).settle();
    assert_eq!(scenario.indices(1), [0, 1, 2]);
    assert_eq!(scenario.heard.last(), Some(&Action::End { request: request(1), end: End::Stop }));
}

#[test]
fn a_prompt_for_another_group_ends_when_its_kv_is_sent() {
    let mut scenario = Scenario::new(2, 100);
    scenario.tell(Event::Submit(new(1, 20, 5, export()))).settle();
    assert!(matches!(scenario.heard[..], [Action::First { .. }]));
    scenario.tell(Event::KvSent { request: request(1), position: 1, bytes: 7, failed: None });
    assert_eq!(scenario.ends(1), 0);
    scenario.tell(Event::KvSent { request: request(1), position: 0, bytes: 5, failed: None }).settle();
    assert!(matches!(scenario.heard.last(), Some(Action::KvSent { bytes: 12, .. })));
    scenario.all_pages_are_free();
}

#[test]
fn those_without_pages_wait_for_those_with() {
    let mut scenario = Scenario::new(1, 30);
    for n in 1..=4 {
        scenario.tell(Event::Submit(new(n, 10, 10, SequenceKind::Local)));
    }
    scenario.settle();
    for n in 1..=4 {
        assert_eq!(scenario.indices(n).len(), 10, "request {n}");
    }
    scenario.all_pages_are_free();
    scenario.tell(Event::Submit(new(5, 40, 1, SequenceKind::Local))).settle();
    assert!(matches!(scenario.heard.last(), Some(Action::Refused { .. })), "it would never fit");
}

/// Its gateway has hung up and asks again before the stages have said whether there are pages: there were some for the first, which
/// another has taken before the second is asked for.
#[test]
fn what_stages_say_of_one_that_is_gone_is_not_of_the_next_of_its_name() {
    let mut scenario = Scenario::new(1, 30);
    let again = || Event::Submit(new(1, 10, 10, SequenceKind::Local));
    scenario.tell(again()).tell(Event::Cancel { request: request(1) });
    scenario.tell(Event::Submit(new(2, 15, 10, SequenceKind::Local))).tell(again()).settle();
    assert_eq!((scenario.indices(1).len(), scenario.indices(2).len()), (10, 10));
    assert_eq!((scenario.ends(1), scenario.ends(2)), (1, 1));
    scenario.all_pages_are_free();
}

#[test]
fn a_broken_ring_ends_everything_once() {
    let mut scenario = Scenario::new(2, 100);
    scenario.tell(Event::Submit(new(1, 3, 3, SequenceKind::Local)));
    scenario.tell(Event::Submit(new(2, 3, 3, SequenceKind::AwaitKv)));
    scenario.tell(Event::RingBroken { reason: "gone".into() });
    assert_eq!((scenario.ends(1), scenario.ends(2)), (1, 1));
    assert_eq!(scenario.batcher.deadline(), None);
}

#[test]
fn a_broken_ring_refuses_what_only_waited_for_it() {
    let mut scenario = Scenario::new(2, 100);
    scenario.tell(Event::Submit(new(1, 3, 3, SequenceKind::AwaitKv))).settle();
    scenario.tell(Event::Submit(new(2, 3, 3, SequenceKind::Local)));
    scenario.heard.clear();
    scenario.tell(Event::RingBroken { reason: "gone".into() });
    // The first was granted pages, which are gone; the second was told nothing yet.
    assert!(
        matches!(&scenario.heard[..], [Action::End { request: one, .. }, Action::Refused { request: other, .. }]
            if (*one, *other) == (request(1), request(2))),
        "{:?}",
        scenario.heard
    );
}

fn growing(growth: u32) -> BatcherConfig {
    BatcherConfig { batches: Batches::Chunked(8), growth, ..BatcherConfig::default() }
}

/// Answers that do not fit together: the youngest give way, and every one ends with the tokens it would have had.
#[test]
fn answers_outgrow_the_pages_and_all_end() {
    let mut scenario = Scenario::of(growing(8), 100);
    for n in 1..=6 {
        scenario.tell(Event::Submit(new(n, 10, 60, SequenceKind::Local)));
    }
    scenario.settle();
    for n in 1..=6 {
        assert_eq!(scenario.indices(n), (0..60).collect::<Vec<u32>>(), "request {n}");
        assert_eq!(scenario.tokens(n), (0..60).map(|i| Token(110 + i)).collect::<Vec<_>>(), "request {n}");
    }
    assert!(scenario.ring.computed > 60, "some were computed twice");
    scenario.all_pages_are_free();
}

#[test]
fn an_answer_of_which_no_token_can_be_chosen_ends_alone() {
    let mut scenario = Scenario::new(1, 1000);
    scenario.tell(Event::Submit(new(1, 10, 40, SequenceKind::Local))).tell(Event::Submit(new(
        2,
        10,
        40,
        SequenceKind::Local,
    )));
    while scenario.tokens(1).len() < 3 {
        let event = scenario.next().unwrap();
        scenario.tell(event);
    }
    let reason = "nothing fits".to_owned();
    scenario.tell(Event::Failed { request: request(1), reason: reason.clone() });
    // It is gone: nobody is told twice.
    scenario.tell(Event::Failed { request: request(1), reason: reason.clone() }).settle();
    let failed = Action::End { request: request(1), end: End::Failed(reason) };
    assert!(scenario.heard.contains(&failed), "{:?}", scenario.heard);
    assert_eq!((scenario.ends(1), scenario.ends(2), scenario.tokens(2).len()), (1, 1, 40));
    scenario.all_pages_are_free();
}

/// Another group on the device has the pages: they are asked for again until it gives them back.
#[test]
fn pages_that_another_group_holds_are_waited_for() {
    let mut scenario = Scenario::of(growing(8), 100);
    scenario.ring.held.insert(request(99), 95);
    scenario.tell(Event::Submit(new(1, 10, 20, SequenceKind::Local))).settle();
    for _ in 0..5 {
        scenario.now = scenario.batcher.deadline().unwrap();
        scenario.tell(Event::Deadline).settle();
    }
    assert!(scenario.heard.is_empty() && scenario.now < Duration::from_secs(1), "{:?}", scenario.heard);
    scenario.ring.held.clear();
    scenario.now = scenario.batcher.deadline().unwrap();
    scenario.tell(Event::Deadline).settle();
    assert_eq!(scenario.indices(1).len(), 20);
}

/// Another model may give pages back while this group has some: nobody waits for the group's own to come back first.
#[test]
fn pages_that_another_model_gives_back_are_had_beside_what_runs() {
    for shares_pages in [false, true] {
        let mut scenario = Scenario::of(BatcherConfig { shares_pages, ..growing(8) }, 100);
        scenario.ring.held.insert(request(99), 70);
        scenario.tell(Event::Submit(new(1, 10, 10, SequenceKind::AwaitKv))).settle();
        scenario.tell(Event::Submit(new(2, 10, 10, SequenceKind::Local))).settle();
        let again = scenario.batcher.deadline().unwrap();
        assert_eq!(again < Duration::from_secs(1), shares_pages, "{again:?}");
        if shares_pages {
            scenario.ring.held.remove(&request(99));
            scenario.now = again;
            scenario.tell(Event::Deadline).settle();
            assert_eq!(scenario.indices(2).len(), 10);
        }
    }
}

/// Where another model has the pages, an answer with room left goes on, and gets more once they are back; none is computed anew.
#[test]
fn who_shares_pages_with_another_model_gives_way_only_when_its_room_is_used_up() {
    for shares_pages in [false, true] {
        let mut scenario = Scenario::of(BatcherConfig { shares_pages, ..growing(8) }, 40);
        scenario.tell(Event::Submit(new(1, 10, 20, SequenceKind::Local)));
        // Its prompt and eight tokens have room. It asks for more when it has six, and there is none before it has seven.
        scenario.ring.held.insert(request(99), 22);
        while scenario.tokens(1).len() < 7 {
            let Some(event) = scenario.next() else { break };
            scenario.tell(event);
        }
        scenario.ring.held.remove(&request(99));
        scenario.settle();
        if let Some(again) = scenario.batcher.deadline() {
            scenario.now = again;
            scenario.tell(Event::Deadline).settle();
        }
        assert_eq!(scenario.indices(1), (0..20).collect::<Vec<u32>>());
        assert_eq!(scenario.ring.computed > 10, !shares_pages, "{} tokens of prompts", scenario.ring.computed);
    }
}

/// Where another model has the pages, those that have room left do not all ask for more with each of their tokens.
#[test]
fn one_that_lacks_room_asks_for_all_that_have_some_left() {
    let mut scenario = Scenario::of(BatcherConfig { shares_pages: true, ..growing(32) }, 200);
    scenario.ring.held.insert(request(99), 116);
    for n in 1..=2 {
        scenario.tell(Event::Submit(new(n, 10, 60, SequenceKind::Local)));
    }
    // Their prompts and 32 tokens of each have room; more is asked for where eight are left, and is not there.
    let mut asked = 0;
    while scenario.tokens(1).len() < 31 {
        let event = scenario.next().unwrap();
        asked += usize::from(matches!(event, Event::Grown { .. }));
        scenario.tell(event);
    }
    assert!((1..=8).contains(&asked), "they have asked {asked} times");
    scenario.ring.held.remove(&request(99));
    scenario.settle();
    for n in 1..=2 {
        assert_eq!(scenario.indices(n), (0..60).collect::<Vec<u32>>(), "request {n}");
    }
    assert_eq!(scenario.ring.computed, 20, "none is computed anew");
    scenario.all_pages_are_free();
}
