//! Speculative decoding: fewer steps, and the same tokens.

use super::scenario::*;
use std::time::Duration;
use tsnode_coordinator::batcher::{Checked, Event, SequenceKind};
use tsnode_protocol::{Constraint, Grammar, Token};

/// Answers that repeat themselves take fewer steps, and have the same tokens.
#[test]
fn what_is_drafted_right_needs_no_step() {
    let mut scenario = Scenario::new(1, 1000);
    scenario.ring.period = 6;
    scenario.tell(Event::Submit(new(1, 10, 200, SequenceKind::Local)));
    let mut steps = 0;
    while let Some(event) = scenario.ring.turn() {
        steps += u32::from(matches!(event, Event::Sampled { .. }));
        scenario.now += Duration::from_millis(1);
        scenario.tell(event);
    }
    assert_eq!(scenario.tokens(1), (0..200).map(|i| answer(6, 10 + i)).collect::<Vec<_>>());
    assert!(scenario.ring.drafted > 80 && steps < 120, "{} accepted, {steps} steps", scenario.ring.drafted);
}

/// Whatever a draft model knows and takes, the tokens are the same; it is asked as long as that pays.
#[test]
fn a_draft_model_is_asked_where_it_helps() {
    let fast = Duration::from_millis(5);
    for (knows, takes, helps) in [
        (Knows::All, fast, true),
        (Knows::Some, fast, true),
        (Knows::Other, fast, false),
        (Knows::Nothing, fast, false),
        (Knows::All, Duration::from_millis(80), false),
    ] {
        let mut scenario = Scenario::drafted(1, 4000, knows);
        scenario.tell(Event::Submit(new(1, 10, 1000, SequenceKind::Local)));
        let steps = scenario.take(takes);
        assert_eq!(scenario.tokens(1), (0..1000).map(|i| Token(110 + i)).collect::<Vec<_>>(), "{knows:?}");
        let (asked, checked) = (scenario.draft.asked, scenario.batcher.take_checked());
        let of_steps = asked as f64 / f64::from(steps);
        assert_eq!(of_steps > 0.8, helps, "{knows:?} in {takes:?}: asked for {asked} of {steps} steps");
        assert!(helps || asked < 80, "{knows:?} in {takes:?}: asked for {asked} of {steps} steps");
        let Checked { made, right } = checked.draft;
        match knows {
            Knows::All => assert!(made > 0 && made == right, "{checked:?}"),
            Knows::Some => assert!(right * 3 > made && right < made, "{checked:?}"),
            Knows::Other => assert!(made > 0 && right == 0, "{checked:?}"),
            Knows::Nothing => assert_eq!(made, 0),
        }
        assert_eq!(checked.lookup, Checked::default(), "nothing repeats itself");
        scenario.all_pages_are_free();
    }
}

/// Answers that repeat themselves need no draft model, those beside them do.
/// Which tokens a grammar allows after a draft token is known once that is accepted.
#[test]
fn an_answer_with_a_grammar_is_never_guessed() {
    for period in [0, 3] {
        let mut scenario = Scenario::drafted(1, 1000, Knows::All);
        scenario.ring.period = period;
        let mut one = new(1, 10, 60, SequenceKind::Local);
        let constraint = Constraint { grammar: Grammar::Regex("a+".into()), ends: vec![] };
        one.generation.sampling.constraint = Some(constraint.into());
        scenario.tell(Event::Submit(one)).settle();
        assert_eq!(scenario.tokens(1).len(), 60);
        assert_eq!((scenario.draft.asked, scenario.ring.drafted), (0, 0), "period {period}");
    }
}

#[test]
fn what_repeats_itself_is_not_asked_about() {
    let mut scenario = Scenario::drafted(1, 4000, Knows::All);
    scenario.ring.period = 6;
    scenario.tell(Event::Submit(new(1, 10, 400, SequenceKind::Local)));
    scenario.take(Duration::from_millis(5));
    let checked = scenario.batcher.take_checked();
    assert!(checked.lookup.right > 10 * checked.draft.right && checked.lookup.right > 150, "{checked:?}");
    assert_eq!(scenario.tokens(1), (0..400).map(|i| answer(6, 10 + i)).collect::<Vec<_>>());
}

/// The step that waits for the draft model sets off with those that are left, and comes to nothing if nobody is.
#[test]
fn those_who_go_while_the_draft_model_drafts_are_in_no_step() {
    for leaving in [vec![1], vec![1, 2]] {
        let mut scenario = Scenario::drafted(1, 1000, Knows::All);
        for n in 1..=2 {
            scenario.tell(Event::Submit(new(n, 5, 100, SequenceKind::Local)));
        }
        scenario.until_asked();
        while scenario.draft.told.len() < 2 {
            let event = scenario.next().unwrap();
            scenario.tell(event).until_asked();
        }
        for n in &leaving {
            scenario.tell(Event::Cancel { request: request(*n) });
        }
        scenario.tell(Event::Submit(new(3, 5, 20, SequenceKind::Local)));
        // One of the same name is another: draft tokens for the first are not for it.
        scenario.tell(Event::Submit(new(1, 7, 20, SequenceKind::AwaitKv)));
        scenario.settle().kv_of(1, 7).tell(Event::Begin { request: request(1), first: answer(0, 7) }).settle();
        assert_eq!(scenario.indices(3), (0..20).collect::<Vec<_>>());
        assert_eq!((scenario.ends(1), scenario.ends(3)), (1, 1));
        assert_eq!(scenario.ends(2), usize::from(leaving.len() == 1));
        scenario.all_pages_are_free();
    }
}

/// A ring breaks while the draft model proposes: what it says then is about nothing that exists.
#[test]
fn drafts_for_a_broken_ring_are_nobodys() {
    let mut scenario = Scenario::drafted(2, 1000, Knows::All);
    scenario.tell(Event::Submit(new(1, 5, 100, SequenceKind::Local))).until_asked();
    let late = scenario.draft.answers.pop_front().unwrap();
    scenario.tell(Event::RingBroken { reason: "gone".into() });
    scenario.ring = Ring::new(2, 1000);
    scenario.draft.told.clear();
    scenario.heard.clear();
    scenario.tell(late.clone());
    assert!(scenario.ring.on_the_way.is_empty() && scenario.heard.is_empty());
    // A step of the next ring has the same number.
    scenario.tell(Event::Submit(new(1, 6, 50, SequenceKind::Local))).until_asked().tell(late).settle();
    assert_eq!(scenario.tokens(1), (0..50).map(|i| Token(106 + i)).collect::<Vec<_>>());
    scenario.all_pages_are_free();
}
