//! Whom checks of answers find, and whom they do not.

mod gpus;

use super::{
    opinion::{Word, is_tie},
    *,
};
use crate::sample;
use std::sync::Arc;
use tsnode_protocol::{Epoch, Group, KvCodec, LayerRange, Load, Phase, Plan, Sampling, Stage, Term, TokenLogprob};

const MODEL: ModelId = ModelId([1; 16]);
const CHECK: RequestId = RequestId([7; 16]);
const TRUTH: Token = Token(10);
const LIE: Token = Token(66);
const LIKELY: Option<f32> = Some(-0.5);

fn peer(n: u8) -> PeerId {
    PeerId([n; 32])
}

fn stage(n: u8) -> Stage {
    Stage { peer: peer(n), device: 0, layers: LayerRange { start: 0, end: 4 } }
}

/// Peer 1 prefills; peers 2, 3 and so on decode. All are processors.
fn view(groups: u8) -> View {
    let adverts = Arc::new((1..=groups).map(|n| (peer(n), sample::advert(n.into()))).collect());
    let phase = |n| if n == 1 { Phase::Prefill } else { Phase::Decode };
    let groups: Vec<Group> = (1..=groups).map(|n| Group::new(MODEL, phase(n), vec![stage(n)])).collect();
    let up = groups.iter().map(|g| (g.id, Load::default())).collect();
    let reason = String::new();
    let plan = Plan { epoch: Epoch(1), term: Term(0), parent: None, groups, routes: vec![], chosen: vec![], reason };
    View { plan: Some(Arc::new(plan)), up, adverts, ..View::default() }
}

fn served(prefill: u8, decode: u8, answer: Token) -> CheckedAnswer {
    let generation =
        Generation { sampling: Sampling::greedy(), max_new_tokens: 3, stop_tokens: vec![], class: Default::default() };
    let (prompt, answer) = (vec![Token(1); 4], vec![answer; 3]);
    let (prefillers, decoders) = (vec![stage(prefill)], vec![stage(decode)]);
    let (prefill, decode) = (peer(prefill), peer(decode));
    let (logprobs, codec) = (vec![LIKELY; 3], KvCodec::Int4.into());
    CheckedAnswer { model: MODEL, prompt, answer, logprobs, generation, codec, decode, decoders, prefill, prefillers }
}

/// Checks an answer at once; peers in `wrong` always lie, and from wrong KV nobody gets the truth.
fn verdict(groups: u8, served: CheckedAnswer, wrong: &[u8]) -> SpotCheckVerdict {
    let (view, mut checks) = (view(groups), Checks::default());
    let mut ask = (0..NEW).find_map(|_| checks.ended(&view, served.clone(), CHECK, 5 << 32)).unwrap();
    loop {
        assert_eq!((ask.open.answered.len(), ask.open.await_kv), (2, false));
        let lies = wrong.iter().any(|n| peer(*n) == ask.leader);
        let sampled = Sampled { token: if lies { LIE } else { TRUTH }, logprob: LIKELY, top: vec![] };
        match checks.said(&view, CHECK, Some(sampled)).unwrap() {
            CheckStep::Ask(next) => ask = next,
            CheckStep::Wait => unreachable!("everybody answers"),
            CheckStep::Over(verdict) => return verdict,
        }
    }
}

#[test]
fn honest_answers_pass() {
    assert_eq!(verdict(3, served(1, 2, TRUTH), &[]), SpotCheckVerdict::Passed);
    assert_eq!(verdict(3, served(2, 2, TRUTH), &[]), SpotCheckVerdict::Passed);
}

/// Whoever leads a group may say any number of what it has to do.
#[test]
fn a_group_that_says_it_has_all_there_can_be_to_do_is_asked_last() {
    let (mut view, mut checks) = (view(4), Checks::default());
    let least = Group::new(MODEL, Phase::Decode, vec![stage(4)]).id;
    for (id, load) in &mut view.up {
        *load = Load { running: if *id == least { 0 } else { u32::MAX }, waiting: 1, ..Load::default() };
    }
    let ask = (0..NEW).find_map(|_| checks.ended(&view, served(2, 2, TRUTH), CHECK, 5 << 32)).unwrap();
    assert_eq!(ask.leader, peer(4));
}

/// Chosen for its likelihood though the grammar forbids it: no tie, but a grammar that was not followed.
#[test]
fn what_is_likelier_than_all_that_a_grammar_allows_is_no_tie() {
    let top = vec![TokenLogprob { token: LIE, logprob: -0.1 }, TokenLogprob { token: TRUTH, logprob: -0.5 }];
    let found = Sampled { token: TRUTH, logprob: LIKELY, top };
    let mut generation = served(2, 2, TRUTH).generation;
    let likelier = |generation: &Generation| is_tie(generation, Word::new(LIE, Some(-0.1)), &found);
    assert!(likelier(&generation));
    let grammar = tsnode_protocol::Grammar::Regex("a".into());
    generation.sampling.constraint = Some(tsnode_protocol::Constraint { grammar, ends: vec![] }.into());
    assert!(!likelier(&generation));
    assert!(is_tie(&generation, Word::new(TRUTH, LIKELY), &found));
}

#[test]
fn who_trusts_everybody_asks_nobody() {
    let (view, mut checks) = (view(3), Checks::new(SpotChecks::Never));
    assert!((0..2 * NEW).all(|roll| checks.ended(&view, served(2, 2, LIE), CHECK, roll).is_none()));
}

#[test]
fn who_says_what_two_others_do_not_is_found() {
    assert_eq!(verdict(4, served(2, 2, LIE), &[2]), SpotCheckVerdict::WrongToken(vec![peer(2)]));
    assert_eq!(verdict(4, served(1, 2, LIE), &[2]), SpotCheckVerdict::WrongToken(vec![peer(2)]));
    let found = verdict(4, served(2, 2, LIE), &[2]).offences();
    assert_eq!(found, [(peer(2), Offence::WrongToken)]);
}

#[test]
fn who_got_wrong_kv_is_not_to_blame() {
    let kv = SpotCheckVerdict::WrongKv { prefill: peer(1), decode: peer(2) };
    assert_eq!(verdict(4, served(1, 2, LIE), &[]), kv);
    assert_eq!(kv.offences(), [(peer(1), Offence::WrongKv { with: peer(2) })]);
}

#[test]
fn a_lying_check_is_found_by_a_third() {
    assert_eq!(verdict(3, served(3, 3, TRUTH), &[1]), SpotCheckVerdict::WrongCheck(vec![peer(1)]));
}

#[test]
fn a_group_that_gives_no_answer_leaves_the_check_to_another() {
    let (view, mut checks) = (view(5), Checks::default());
    let first = (0..NEW).find_map(|_| checks.ended(&view, served(2, 2, TRUTH), CHECK, 0)).unwrap();
    let Some(CheckStep::Ask(second)) = checks.said(&view, CHECK, None) else { panic!("nobody else is asked") };
    assert_ne!(first.leader, second.leader);
    let sampled = Sampled { token: TRUTH, logprob: LIKELY, top: vec![] };
    assert_eq!(checks.said(&view, CHECK, Some(sampled)), Some(CheckStep::Over(SpotCheckVerdict::Passed)));
    // Not for ever.
    (0..2 * NEW).find_map(|_| checks.ended(&view, served(2, 2, TRUTH), CHECK, 0)).unwrap();
    let steps: Vec<CheckStep> = std::iter::from_fn(|| checks.said(&view, CHECK, None)).collect();
    assert!(
        matches!(&steps[..], [CheckStep::Ask(_), CheckStep::Ask(_), CheckStep::Over(SpotCheckVerdict::Unclear)]),
        "{steps:?}"
    );
}

/// Peer 2 answered wrongly with KV of another, as two say who are asked: now it is asked itself, if it is there.
fn suspected(checks: &mut Checks, view: &View, prefill: u8) -> CheckStep {
    let truth = || Some(Sampled { token: TRUTH, logprob: LIKELY, top: vec![] });
    (0..NEW).find_map(|_| checks.ended(view, served(prefill, 2, LIE), CHECK, 5 << 32)).unwrap();
    assert!(matches!(checks.said(view, CHECK, truth()), Some(CheckStep::Ask(_))));
    checks.said(view, CHECK, truth()).unwrap()
}

/// It is asked once more, since it has answered a client.
fn asked_after_an_answer(checks: &mut Checks, view: &View) -> RequestId {
    let name = RequestId([8; 16]);
    let ask = checks.ended(view, served(2, 2, TRUTH), name, 1).unwrap();
    assert_eq!((ask.leader, ask.open.request, ask.open.answered.len()), (peer(2), name, 2));
    name
}

#[test]
fn who_never_says_again_what_it_answered_has_evaded() {
    let (view, mut checks) = (view(5), Checks::default());
    let CheckStep::Ask(ask) = suspected(&mut checks, &view, 1) else { panic!("it is not asked") };
    assert_eq!(ask.leader, peer(2));
    let mut found = checks.said(&view, CHECK, None);
    for _ in 1..3 {
        assert_eq!(found, Some(CheckStep::Wait));
        assert_eq!(checks.ended(&view, served(3, 3, TRUTH), CHECK, 3), None, "nor does another's answer bring it");
        let name = asked_after_an_answer(&mut checks, &view);
        found = checks.said(&view, name, None);
    }
    let evaded = SpotCheckVerdict::Evaded { prefill: peer(1), peers: vec![peer(2)], is_slow: false };
    assert_eq!(found, Some(CheckStep::Over(evaded.clone())));
    assert_eq!(evaded.offences(), [(peer(2), Offence::Evasion { prefill: peer(1), peers: 1, is_slow: false })]);
}

/// Its four layers take eleven seconds for any prompt, as it says: beside what else it computes it may need half a minute.
#[test]
fn who_is_too_slow_to_say_it_again_in_time_is_known_to_be() {
    let (mut view, mut checks) = (view(4), Checks::default());
    Arc::make_mut(&mut view.adverts).insert(peer(2), sample::measured(2, [2.75, 0.0, 0.0], [0.001, 0.0, 0.0]));
    suspected(&mut checks, &view, 1);
    let mut found = checks.said(&view, CHECK, None);
    for _ in 1..3 {
        assert_eq!(found, Some(CheckStep::Wait));
        let name = asked_after_an_answer(&mut checks, &view);
        found = checks.said(&view, name, None);
    }
    let evaded = SpotCheckVerdict::Evaded { prefill: peer(1), peers: vec![peer(2)], is_slow: true };
    assert_eq!(found, Some(CheckStep::Over(evaded)));
}

#[test]
fn where_requests_wait_it_is_asked_when_none_do_or_after_a_while() {
    let (there, mut checks) = (view(4), Checks::default());
    let mut busy = there.clone();
    let group = Group::new(MODEL, Phase::Decode, vec![stage(2)]).id;
    busy.up.insert(group, Load { waiting: 1, ..Load::default() });
    suspected(&mut checks, &there, 1);
    assert_eq!(checks.said(&there, CHECK, None), Some(CheckStep::Wait));
    // Others are asked of every fourth answer meanwhile.
    let asked = |checks: &mut Checks, view: &View| {
        let ask = checks.ended(view, served(2, 2, TRUTH), RequestId([8; 16]), 3);
        ask.is_some_and(|ask| ask.leader == peer(2))
    };
    assert!(!asked(&mut checks, &busy));
    assert!(asked(&mut checks, &there));
    assert_eq!(checks.said(&there, RequestId([8; 16]), None), Some(CheckStep::Wait));
    let first = (0..100).position(|_| asked(&mut checks, &busy));
    assert_eq!(first, Some(32), "who always says so is asked all the same");
}

#[test]
fn who_had_no_room_when_it_was_asked_again_is_judged_by_what_it_says_later() {
    for (says, verdict) in [
        (TRUTH, SpotCheckVerdict::WrongKv { prefill: peer(1), decode: peer(2) }),
        (LIE, SpotCheckVerdict::WrongToken(vec![peer(2)])),
    ] {
        let (view, mut checks) = (view(4), Checks::default());
        suspected(&mut checks, &view, 1);
        assert_eq!(checks.said(&view, CHECK, None), Some(CheckStep::Wait));
        let name = asked_after_an_answer(&mut checks, &view);
        assert_eq!(checks.said(&view, name, None), Some(CheckStep::Wait));
        let name = asked_after_an_answer(&mut checks, &view);
        let said = Sampled { token: says, logprob: LIKELY, top: vec![] };
        assert_eq!(checks.said(&view, name, Some(said)), Some(CheckStep::Over(verdict)));
    }
}

#[test]
fn whose_group_is_down_when_it_is_to_be_asked_is_asked_when_it_is_back() {
    let (there, mut checks) = (view(4), Checks::default());
    let mut down = there.clone();
    down.up.remove(&Group::new(MODEL, Phase::Decode, vec![stage(2)]).id);
    assert_eq!(suspected(&mut checks, &down, 1), CheckStep::Wait);
    let name = asked_after_an_answer(&mut checks, &there);
    let said = Sampled { token: LIE, logprob: LIKELY, top: vec![] };
    let found = checks.said(&there, name, Some(said));
    assert_eq!(found, Some(CheckStep::Over(SpotCheckVerdict::WrongToken(vec![peer(2)]))));
}

/// Friends of a byzantine group, which say nothing to checks, would be asked each time.
#[test]
fn who_gave_a_check_no_answer_is_asked_after_others() {
    let (view, mut checks) = (view(6), Checks::default());
    let begin = |checks: &mut Checks| {
        (0..NEW).find_map(|_| checks.ended(&view, served(2, 2, TRUTH), CHECK, 0)).map(|ask| ask.leader)
    };
    assert_eq!(begin(&mut checks), Some(peer(1)));
    for next in [3, 4] {
        let Some(CheckStep::Ask(ask)) = checks.said(&view, CHECK, None) else { panic!("nobody else is asked") };
        assert_eq!(ask.leader, peer(next));
    }
    assert_eq!(checks.said(&view, CHECK, None), Some(CheckStep::Over(SpotCheckVerdict::Unclear)));
    let passed = |checks: &mut Checks| {
        let truth = Sampled { token: TRUTH, logprob: LIKELY, top: vec![] };
        assert_eq!(checks.said(&view, CHECK, Some(truth)), Some(CheckStep::Over(SpotCheckVerdict::Passed)));
    };
    for _ in 0..QUIET {
        assert_eq!(begin(&mut checks), Some(peer(5)));
        passed(&mut checks);
    }
    assert_eq!(begin(&mut checks), Some(peer(1)), "it has another chance");
}

#[test]
fn without_a_third_nobody_can_say() {
    assert_eq!(verdict(2, served(2, 2, LIE), &[2]), SpotCheckVerdict::Unclear);
}

#[test]
fn a_near_tie_is_no_lie() {
    let (view, mut checks) = (view(2), Checks::default());
    let (top, logprob) = (vec![TokenLogprob { token: LIE, logprob: -0.51 }], Some(-0.50));
    (0..NEW).find_map(|_| checks.ended(&view, served(2, 2, LIE), CHECK, 0)).unwrap();
    let said = checks.said(&view, CHECK, Some(Sampled { token: TRUTH, logprob, top }));
    assert_eq!(said, Some(CheckStep::Over(SpotCheckVerdict::Passed)));
}

/// What a check says of the right token with this log-probability, where the others get another.
fn of_logprob(claimed: Option<f32>, right: f32) -> SpotCheckVerdict {
    let (view, mut checks) = (view(4), Checks::default());
    let served = CheckedAnswer { logprobs: vec![claimed; 3], ..served(2, 2, TRUTH) };
    (0..NEW).find_map(|_| checks.ended(&view, served.clone(), CHECK, 0)).unwrap();
    loop {
        let said = Sampled { token: TRUTH, logprob: Some(right), top: vec![] };
        if let CheckStep::Over(verdict) = checks.said(&view, CHECK, Some(said)).unwrap() {
            return verdict;
        }
    }
}

#[test]
fn who_gets_the_token_from_other_logits_is_found() {
    assert_eq!(of_logprob(Some(-0.5), -0.5), SpotCheckVerdict::Passed);
    assert_eq!(of_logprob(Some(-0.5), -0.8), SpotCheckVerdict::Passed);
    for wrong in [Some(-0.5), Some(f32::NAN), Some(f32::INFINITY), None] {
        assert_eq!(of_logprob(wrong, -1.5), SpotCheckVerdict::WrongToken(vec![peer(2)]), "{wrong:?}");
    }
}

#[test]
fn one_answer_of_every_block_is_checked_and_known_leaders_have_longer_blocks() {
    let (view, mut checks) = (view(3), Checks::default());
    let mut checked = Vec::new();
    for n in 0..4 * 8 + 2 * 32_u64 {
        let roll = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        if checks.ended(&view, served(2, 2, TRUTH), CHECK, roll).is_some() {
            checked.push(n);
            checks.said(&view, CHECK, Some(Sampled { token: TRUTH, logprob: LIKELY, top: vec![] }));
        }
    }
    let block = |n: u64| if n < 32 { n / 4 } else { 8 + (n - 32) / 32 };
    assert_eq!(checked.iter().map(|n| block(*n)).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>(), "{checked:?}");
}
