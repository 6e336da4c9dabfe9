//! Checks in which GPUs have a part.

use super::*;
use crate::spot_check::check::CHOSEN;
use tsnode_protocol::{BytesPerSecond, DeviceKind, Gpus, philox::uniform};

/// The likely token's probability is 0.9, the other's 0.1.
const TOP: [(Token, f32); 2] = [(TRUTH, -0.105_36), (LIE, -std::f32::consts::LN_10)];

/// The same groups as ever, these of them on GPUs.
fn view_with_gpus(groups: u8, gpus: &[u8]) -> View {
    let rate = BytesPerSecond(1e10);
    let gpu = Gpus {
        first: 0,
        count: 1,
        capability: (9, 0),
        driver: None,
        power_limit_mw: None,
        clocks_mhz: None,
        pcie: None,
        up: rate,
        down: rate,
    };
    let advert = |n: u8| {
        let mut advert = sample::advert(n.into());
        if gpus.contains(&n) {
            advert.devices[0].kind = DeviceKind::Cuda(gpu);
        }
        (peer(n), advert)
    };
    View { adverts: Arc::new((1..=groups).map(advert).collect()), ..view(groups) }
}

/// Peer 2 answered with this token, which the likely one's probability is said of, where this number was drawn.
fn drawn(answer: (Token, f32), at: f64) -> CheckedAnswer {
    let mut drawn = served(2, 2, answer.0);
    drawn.logprobs = vec![Some(answer.1); 3];
    drawn.generation.sampling.temperature = 1.0;
    let is_near = |seed: &u64| (uniform(*seed, 6) - at).abs() < 0.002;
    drawn.generation.sampling.seed = (0..).find(is_near).unwrap();
    drawn
}

/// What others say who draw the other token.
fn other() -> Sampled {
    let one = |(token, logprob): (Token, f32)| TokenLogprob { token, logprob };
    Sampled { token: LIE, logprob: Some(TOP[1].1), top: TOP.map(one).to_vec() }
}

fn begun(checks: &mut Checks, view: &View, served: &CheckedAnswer) -> CheckRequest {
    (0..=KNOWN).find_map(|_| checks.ended(view, served.clone(), CHECK, 5 << 32)).unwrap()
}

/// The verdict where all who are asked say that.
fn all_say(checks: &mut Checks, view: &View, served: &CheckedAnswer, said: &Sampled) -> SpotCheckVerdict {
    begun(checks, view, served);
    loop {
        if let CheckStep::Over(verdict) = checks.said(view, CHECK, Some(said.clone())).unwrap() {
            return verdict;
        }
    }
}

#[test]
fn a_draw_beside_another_is_no_lie_of_a_gpu_and_is_one_of_a_processor() {
    let beside = drawn(TOP[0], 0.92);
    let found = |gpus: &[u8]| all_say(&mut Checks::default(), &view_with_gpus(4, gpus), &beside, &other());
    assert_eq!(found(&[2]), SpotCheckVerdict::Passed);
    assert_eq!(found(&[1, 3, 4]), SpotCheckVerdict::Passed);
    assert_eq!(found(&[]), SpotCheckVerdict::WrongToken(vec![peer(2)]));
}

#[test]
fn a_draw_far_from_another_is_a_lie_whoever_computes() {
    let far = drawn(TOP[0], 0.995);
    let found = all_say(&mut Checks::default(), &view_with_gpus(4, &[1, 2, 3, 4]), &far, &other());
    assert_eq!(found, SpotCheckVerdict::WrongToken(vec![peer(2)]));
}

#[test]
fn what_an_honest_gpu_draws_now_and_then_is_a_lie_if_it_is_always_so() {
    let (view, mut checks) = (view_with_gpus(4, &[2]), Checks::default());
    let doubtful = drawn(TOP[0], 0.96);
    for _ in 0..5 {
        assert_eq!(all_say(&mut checks, &view, &doubtful, &other()), SpotCheckVerdict::Unclear);
    }
    for _ in 0..2 {
        let found = all_say(&mut checks, &view, &doubtful, &other());
        assert_eq!(found, SpotCheckVerdict::WrongToken(vec![peer(2)]));
    }
}

#[test]
fn now_and_then_among_honest_answers_it_never_is() {
    let (view, mut checks) = (view_with_gpus(4, &[2]), Checks::default());
    let (doubtful, beside) = (drawn(TOP[0], 0.96), drawn(TOP[0], 0.92));
    for _ in 0..20 {
        assert_eq!(all_say(&mut checks, &view, &doubtful, &other()), SpotCheckVerdict::Unclear);
        for _ in 0..25 {
            assert_eq!(all_say(&mut checks, &view, &beside, &other()), SpotCheckVerdict::Passed);
        }
    }
}

#[test]
fn of_a_token_that_is_not_named_the_group_is_asked_once_more() {
    let view = view_with_gpus(4, &[2]);
    let rare = (Token(500), -5.0);
    let said = |said: Sampled| {
        let mut checks = Checks::default();
        let first = begun(&mut checks, &view, &drawn(rare, 0.998));
        assert_eq!(first.open.generation.sampling.temperature, 1.0);
        let Some(CheckStep::Ask(again)) = checks.said(&view, CHECK, Some(other())) else { panic!("not asked again") };
        assert_ne!(again.open.request, first.open.request, "the first may run there still");
        let Sampling { temperature, logit_bias, .. } = again.open.generation.sampling;
        assert_eq!((again.leader, temperature, logit_bias), (first.leader, 0.0, vec![(rare.0, CHOSEN)]));
        checks.said(&view, CHECK, Some(said)).unwrap()
    };
    let of = |token: Token, logprob: f32| Sampled { token, logprob: Some(logprob), ..other() };
    assert_eq!(said(of(rare.0, -5.2)), CheckStep::Over(SpotCheckVerdict::Passed));
    // Far less likely than is said of it, and not to be had at all.
    for wrong in [of(rare.0, -12.0), of(TRUTH, -0.1)] {
        assert!(matches!(said(wrong), CheckStep::Ask(_)));
    }
}

#[test]
fn a_check_that_says_what_cannot_be_is_found_beside_a_gpu() {
    let (view, mut checks) = (view_with_gpus(4, &[2]), Checks::default());
    let likely = drawn(TOP[0], 0.5);
    let ask = begun(&mut checks, &view, &likely);
    let one = |token, logprob| TokenLogprob { token, logprob };
    let lie = Sampled { token: LIE, logprob: Some(-0.01), top: vec![one(LIE, -0.01), one(TRUTH, -5.0)] };
    let Some(CheckStep::Ask(second)) = checks.said(&view, CHECK, Some(lie)) else { panic!("no other is asked") };
    assert_ne!(ask.leader, second.leader);
    let truth = Sampled { token: TRUTH, logprob: Some(TOP[0].1), ..other() };
    let over = checks.said(&view, CHECK, Some(truth)).unwrap();
    assert_eq!(over, CheckStep::Over(SpotCheckVerdict::WrongCheck(vec![ask.leader])));
}

#[test]
fn processors_are_checked_by_processors_while_there_are_some() {
    let (view, mut checks) = (view_with_gpus(4, &[1, 4]), Checks::default());
    assert_eq!(begun(&mut checks, &view, &served(2, 2, TRUTH)).leader, peer(3));
    let (view, mut checks) = (view_with_gpus(4, &[1, 2, 4]), Checks::default());
    assert_eq!(begun(&mut checks, &view, &served(2, 2, TRUTH)).leader, peer(1), "whoever is least busy");
}

/// A host's GPU and its processor lead a group each.
#[test]
fn of_a_leaders_groups_the_one_that_answered_is_judged() {
    let gpu = view_with_gpus(4, &[2]).adverts[&peer(2)].devices[0].clone();
    let on_gpu = Stage { device: 1, ..stage(2) };
    let mut view = view_with_gpus(4, &[]);
    Arc::make_mut(&mut view.adverts).get_mut(&peer(2)).unwrap().devices.push(gpu);
    let groups = &mut Arc::make_mut(view.plan.as_mut().unwrap()).groups;
    groups.push(Group::new(MODEL, Phase::Mixed, vec![on_gpu]));
    groups.push(Group::new(ModelId([2; 16]), Phase::Mixed, vec![stage(2), stage(3)]));
    let beside = drawn(TOP[0], 0.92);
    let by_gpu = CheckedAnswer { decoders: vec![on_gpu], prefillers: vec![on_gpu], ..beside.clone() };
    let found = |served: &CheckedAnswer| all_say(&mut Checks::default(), &view, served, &other());
    assert_eq!(found(&by_gpu), SpotCheckVerdict::Passed);
    assert_eq!(found(&beside), SpotCheckVerdict::WrongToken(vec![peer(2)]), "not whom it leads for another model");
}

#[test]
fn who_has_left_meanwhile_may_have_had_a_gpu() {
    let beside = drawn(TOP[0], 0.92);
    let by_two = CheckedAnswer { prefill: peer(1), prefillers: vec![stage(1)], ..beside };
    let found = |view: &View| all_say(&mut Checks::default(), view, &by_two, &other());
    let kv = SpotCheckVerdict::WrongKv { prefill: peer(1), decode: peer(2) };
    assert_eq!(found(&view_with_gpus(4, &[])), kv);
    // Its group is gone, and then itself.
    let mut view = view_with_gpus(4, &[1]);
    Arc::make_mut(view.plan.as_mut().unwrap()).groups.retain(|group| group.leader() != Some(peer(1)));
    assert_eq!(found(&view), SpotCheckVerdict::Passed);
    Arc::make_mut(&mut view.adverts).remove(&peer(1));
    assert_eq!(found(&view), SpotCheckVerdict::Passed);
}

#[test]
fn who_gets_doubtful_kv_is_checked_as_often_as_one_that_is_new() {
    let (view, mut checks) = (view_with_gpus(4, &[1]), Checks::default());
    let with_kv = |served: CheckedAnswer| CheckedAnswer { prefill: peer(1), prefillers: vec![stage(1)], ..served };
    let (beside, doubtful) = (with_kv(drawn(TOP[0], 0.92)), with_kv(drawn(TOP[0], 0.96)));
    for _ in 0..PASSES {
        assert_eq!(all_say(&mut checks, &view, &beside, &other()), SpotCheckVerdict::Passed);
    }
    assert_eq!(all_say(&mut checks, &view, &doubtful, &other()), SpotCheckVerdict::Unclear);
    let is_checked = |_: &u64| checks.ended(&view, beside.clone(), CHECK, 5 << 32).is_some();
    assert_eq!((0..2 * NEW).filter(is_checked).count(), 2);
}
