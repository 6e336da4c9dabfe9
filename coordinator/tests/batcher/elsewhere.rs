//! KV and answers that were begun elsewhere: waited for, gone on from, computed here where they do not come.

use super::scenario::*;
use tsnode_coordinator::batcher::{Action, Event, SequenceKind};
use tsnode_protocol::{KvCodec, PromptCodec, Token, stream::End};

#[test]
fn decoding_waits_for_both_the_kv_and_the_first_token() {
    for begin_first in [true, false] {
        let mut scenario = Scenario::new(3, 100);
        scenario.tell(Event::Submit(new(1, 3, 3, SequenceKind::AwaitKv))).settle();
        assert_eq!(scenario.heard, [Action::Granted { request: request(1), cached: 0 }]);
        let begin = Event::Begin { request: request(1), first: Token(50) };
        if begin_first {
            scenario.tell(begin).settle().kv_arrives(1);
        } else {
            scenario.kv_arrives(1).settle().tell(begin);
        }
        scenario.settle();
        assert_eq!(scenario.indices(1), [1, 2]);
        assert_eq!(scenario.ends(1), 1);
        scenario.all_pages_are_free();
    }
}

#[test]
fn kv_that_fails_is_computed_here_and_no_token_comes_twice() {
    let mut scenario = Scenario::new(2, 100);
    scenario.tell(Event::Submit(new(1, 3, 3, SequenceKind::AwaitKv))).settle();
    scenario.tell(Event::Begin { request: request(1), first: Token(50) });
    scenario.tell(Event::KvArrived { request: request(1), position: 0, arrived: Err("wrong".into()) }).settle();
    assert_eq!(scenario.indices(1), [1, 2], "the client has token 0 already");
    assert_eq!(scenario.ends(1), 1);
    scenario.all_pages_are_free();
}

#[test]
fn kv_that_never_comes_is_given_up_on() {
    let mut scenario = Scenario::new(1, 100);
    scenario.tell(Event::Submit(new(1, 3, 3, SequenceKind::AwaitKv))).settle();
    scenario.now = scenario.batcher.deadline().unwrap();
    scenario.tell(Event::Deadline).settle();
    assert!(scenario.heard.iter().any(|a| matches!(a, Action::KvFailed { .. })));
    assert_eq!(scenario.indices(1), [0, 1, 2]);
    scenario.all_pages_are_free();
}

/// Another group began the answer: this one goes on from the next token, whether the prompt's KV comes or is computed here.
#[test]
fn an_answer_begun_elsewhere_goes_on() {
    for (kind, codec) in [SequenceKind::Local, SequenceKind::AwaitKv]
        .into_iter()
        .flat_map(|k| [(k.clone(), KvCodec::Raw), (k, KvCodec::Int4)])
    {
        let mut scenario = Scenario::new(2, 100);
        let mut sequence = new(1, 20, 9, kind.clone());
        (sequence.codec, sequence.answered) = (codec.into(), (0..4).map(|i| Token(120 + i)).collect());
        if codec == KvCodec::Int4 {
            scenario.ring.packed.insert(request(1), 20);
        }
        scenario.tell(Event::Submit(sequence)).settle();
        if kind == SequenceKind::AwaitKv {
            assert!(scenario.indices(1).is_empty());
            scenario.kv_of(1, 20).settle();
        }
        assert_eq!(scenario.indices(1), [4, 5, 6, 7, 8], "{kind:?}, {codec:?}");
        assert_eq!(scenario.tokens(1), (124..129).map(Token).collect::<Vec<_>>());
        assert_eq!(scenario.ring.computed, if kind == SequenceKind::Local { 24 } else { 4 });
        assert_eq!(scenario.ring.settled.len(), usize::from(codec == KvCodec::Int4));
        assert_eq!(scenario.ends(1), 1);
        scenario.all_pages_are_free();
    }
}

/// The group that began it could not say that this was all.
#[test]
fn an_answer_that_is_complete_ends_at_once() {
    let mut scenario = Scenario::new(1, 100);
    let mut sequence = new(1, 20, 3, SequenceKind::Local);
    sequence.answered = vec![Token(120), Token(121), Token(122)];
    scenario.tell(Event::Submit(sequence)).settle();
    assert_eq!(scenario.heard, [Action::End { request: request(1), end: End::Length }]);
    let mut sequence = new(2, 20, 30, SequenceKind::AwaitKv);
    sequence.answered = vec![Token(120), Token(9)];
    scenario.tell(Event::Submit(sequence)).settle();
    assert_eq!(scenario.heard.last(), Some(&Action::End { request: request(2), end: End::Stop }));
}

/// Gateways say what they like of an answer; no stage is asked to compute beyond a sequence's room for it.
#[test]
fn an_answer_longer_than_it_may_be_is_not_taken() {
    let mut scenario = Scenario::new(2, 100);
    let mut sequence = new(1, 20, 1, SequenceKind::Local);
    sequence.answered = vec![Token(120); 50];
    sequence.generation.sampling.prompt_logprobs = Some(0);
    scenario.tell(Event::Submit(sequence)).settle();
    assert!(matches!(&scenario.heard[..], [Action::Refused { .. }]), "{:?}", scenario.heard);
    scenario.all_pages_are_free();
}

#[test]
fn a_first_token_that_there_is_no_room_for_is_not_computed() {
    let mut scenario = Scenario::new(2, 100);
    scenario.tell(Event::Submit(new(1, 3, 0, SequenceKind::AwaitKv)));
    scenario.tell(Event::PrefillHere { request: request(1), first: Some(Token(50)) }).settle();
    assert_eq!(scenario.heard.last(), Some(&Action::End { request: request(1), end: End::Length }));
    assert_eq!(scenario.ring.computed, 3);
    scenario.all_pages_are_free();
}

/// Where packed KV does not come it is computed here, and then goes through the same codec; and again, should the sequence
/// have to give its pages back.
#[test]
fn kv_that_would_have_come_packed_is_packed_here() {
    let mut scenario = Scenario::new(2, 100);
    let mut sequence = new(1, 30, 5, SequenceKind::AwaitKv);
    sequence.codec = KvCodec::Int4.into();
    scenario.ring.packed.insert(request(1), 30);
    scenario.tell(Event::Submit(sequence)).settle();
    scenario.tell(Event::PrefillHere { request: request(1), first: None }).settle();
    assert_eq!(scenario.indices(1), [0, 1, 2, 3, 4]);
    assert!(scenario.ring.settled.contains(&request(1)) && scenario.ring.kept.is_empty());
    scenario.all_pages_are_free();
}

/// The KV of a prompt's first part comes from elsewhere and the rest is computed behind it, or the first part is computed here as
/// well and goes through the same codec; either way the first token is chosen here.
#[test]
fn the_rest_of_a_prompt_is_computed_behind_its_first_part() {
    for (kind, codec, stages) in [
        (SequenceKind::AwaitKv, KvCodec::Raw, 1),
        (SequenceKind::AwaitKv, KvCodec::Int4, 2),
        (SequenceKind::Local, KvCodec::Raw, 2),
        (SequenceKind::Local, KvCodec::Int4, 1),
    ] {
        let mut scenario = Scenario::new(stages, 200);
        let mut sequence = new(1, 100, 5, kind.clone());
        sequence.codec = PromptCodec::of_first(codec, 64, 100);
        if codec == KvCodec::Int4 {
            scenario.ring.packed.insert(request(1), 64);
        }
        scenario.tell(Event::Submit(sequence)).settle();
        if kind == SequenceKind::AwaitKv {
            assert!(scenario.indices(1).is_empty() && scenario.ring.computed == 0);
            assert_eq!(scenario.batcher.load().pending_tokens, 36, "what is to be computed here");
            scenario.kv_of(1, 64).settle();
        }
        assert_eq!(scenario.indices(1), [0, 1, 2, 3, 4], "{kind:?}, {codec:?}");
        assert_eq!(scenario.ring.computed, if kind == SequenceKind::Local { 100 } else { 36 });
        assert_eq!(scenario.ring.settled.len(), usize::from(codec == KvCodec::Int4));
        assert!(scenario.heard.iter().any(|a| matches!(a, Action::Computed { .. })));
        assert_eq!(scenario.ends(1), 1);
        scenario.all_pages_are_free();
    }
}

/// A first part that fails, is late or comes to nothing is computed here.
#[test]
fn a_first_part_that_does_not_come_in_time_is_computed_here() {
    for codec in [KvCodec::Raw, KvCodec::Int4] {
        for late in [false, true] {
            let mut scenario = Scenario::new(2, 200);
            let mut sequence = new(1, 100, 5, SequenceKind::AwaitKv);
            sequence.codec = PromptCodec::of_first(codec, 64, 100);
            if codec == KvCodec::Int4 {
                scenario.ring.packed.insert(request(1), 64);
            }
            scenario.tell(Event::Submit(sequence)).settle();
            if late {
                scenario.now = scenario.batcher.deadline().unwrap();
                scenario.tell(Event::Deadline).settle();
            } else {
                scenario.tell(Event::PrefillHere { request: request(1), first: None }).settle();
            }
            assert_eq!(scenario.indices(1), [0, 1, 2, 3, 4], "{codec:?}");
            assert_eq!(scenario.ring.computed, 100);
            // What comes after all is nobody's.
            scenario.tell(Event::KvArrived { request: request(1), position: 0, arrived: Ok(vec![]) }).settle();
            assert_eq!(scenario.ends(1), 1);
            scenario.all_pages_are_free();
        }
    }
}
