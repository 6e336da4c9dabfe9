//! A swarm's own plan, simulated: times are what its peers' profiles say, and every request ends.
#![allow(clippy::unwrap_used)] // A plan that cannot be simulated fails.

use std::collections::BTreeMap;
use tsnode_coordinator::{
    gate::SplitChoice,
    planner::live,
    policy::{choice::Dispatch, routing::Asked, sharing::TurnOrder},
    replay::machines::{Arrival, Contention, ContentionCurve, Outcome},
    sample,
};
use tsnode_protocol::{
    Advert, Epoch, Group, GroupId, LayerProfile, LayerRange, ModelId, PeerId, Phase, Plan, Route, Seconds, Stage, Term,
};
use tsnode_simulator::{
    live_plan::{LivePlan, LivePlanError, LivePlanRun, PromptSpeed, Resident},
    shared_peer::SharedPeer,
    trace::beside,
};

const PREFILL: [f64; 3] = [1e-3, 2e-5, 1e-8];
const DECODE: [f64; 3] = [9e-4, 3e-8, 5e-5];

fn advert(n: usize) -> Advert {
    sample::measured(n, PREFILL, DECODE)
}

fn swarm(peers: u8) -> BTreeMap<PeerId, Advert> {
    (0..peers).map(|n| (PeerId([n; 32]), advert(0))).collect()
}

fn planned(adverts: &BTreeMap<PeerId, Advert>) -> Plan {
    let members = adverts.iter().map(|(id, advert)| (*id, advert)).collect();
    let part = live::inputs(&members, SplitChoice::Auto).remove(0).plan();
    let (groups, routes) = (part.groups, part.routes);
    Plan { epoch: Epoch(1), term: Term(0), parent: None, groups, routes, chosen: vec![], reason: String::new() }
}

fn run(adverts: &BTreeMap<PeerId, Advert>, plan: &Plan, requests: &[(f64, u32, u32)], how: &LivePlanRun) -> Outcome {
    let members = adverts.iter().map(|(id, advert)| (*id, advert)).collect();
    let live = LivePlan::new(&members, plan, sample::card().id, SplitChoice::Auto).unwrap();
    let arrival = |&(at, prompt, answer)| Arrival { at: Seconds(at), asked: Asked::new(prompt, answer) };
    live.run(&requests.iter().map(arrival).collect::<Vec<_>>(), how)
}

fn usual() -> LivePlanRun {
    let (dispatch, split) = (Dispatch::Live, SplitChoice::Always);
    let (cores, contention) = (vec![1.0], Contention::default());
    let (step, left, hosts) = (Seconds(0.0), cores.clone(), BTreeMap::new());
    let prompts = PromptSpeed::default();
    LivePlanRun { dispatch, split, step, prompts, left, cores, hosts, contention }
}

/// One request alone: four layers by their profile, and behind them the output head by the device's speeds.
#[test]
fn a_request_alone_takes_what_profiles_say() {
    let adverts = swarm(1);
    let plan = planned(&adverts);
    assert!(plan.groups.iter().all(|g| g.phase == Phase::Mixed), "{plan:?}");
    let (card, device) = (sample::card(), &adverts[&PeerId([0; 32])].devices[0]);
    let head = card.shape.head_bytes as f64 / device.bandwidth.0;
    let logits = 2.0 * f64::from(card.shape.vocab) * f64::from(card.shape.hidden) / device.flops.0;
    let [a, b, c] = PREFILL;
    let first = 4.0 * (a + b * 100.0 + c * 1e4) + head + logits;
    let step = |context: f64| 4.0 * (DECODE[0] + DECODE[1] * context + DECODE[2]) + head + logits;
    for (overhead, prompt) in [(0.0, 0.0), (0.25, 0.0), (0.25, 0.5)] {
        let prompts = PromptSpeed { step: Seconds(prompt), ..PromptSpeed::default() };
        let how = LivePlanRun { step: Seconds(overhead), prompts, ..usual() };
        let first = first + prompt;
        let trace = run(&adverts, &plan, &[(0.0, 100, 3)], &how).traces[0];
        assert!((trace.first.0 / (first + overhead) - 1.0).abs() < 1e-9, "{trace:?}, not {first}");
        let whole = first + step(101.0) + step(102.0) + 3.0 * overhead;
        assert!((trace.end.0 / whole - 1.0).abs() < 1e-9, "{trace:?}, not {whole}");
    }
}

/// However many steps a prompt has, what its beginning takes it takes once.
#[test]
fn what_prompts_begin_with_is_in_their_first_step_alone() {
    let adverts = swarm(1);
    let plan = planned(&adverts);
    for tokens in [10, 100, 2000] {
        let first = |step: f64| {
            let prompts = PromptSpeed { step: Seconds(step), ..PromptSpeed::default() };
            run(&adverts, &plan, &[(0.0, tokens, 3)], &LivePlanRun { prompts, ..usual() }).traces[0].first.0
        };
        assert!((first(0.5) - first(0.0) - 0.5).abs() < 1e-9, "{tokens}: {} and {}", first(0.5), first(0.0));
    }
}

/// Three times as long for each token of a prompt: what every prompt takes, and answers, are as they were.
#[test]
fn prompts_grow_as_they_were_measured_to() {
    let adverts = swarm(1);
    let plan = planned(&adverts);
    let times = |times: f64, tokens: u32| {
        let prompts = PromptSpeed { times, ..PromptSpeed::default() };
        let trace = run(&adverts, &plan, &[(0.0, tokens, 9)], &LivePlanRun { prompts, ..usual() }).traces[0];
        (trace.first.0, (trace.end - trace.first).0)
    };
    let ((short, answer), (long, _)) = (times(1.0, 50), times(1.0, 100));
    let ((short_grown, same), (long_grown, _)) = (times(3.0, 50), times(3.0, 100));
    let ((fixed, _), (as_fixed, _)) = (times(0.0, 50), times(0.0, 100));
    assert!((fixed / as_fixed - 1.0).abs() < 1e-9 && fixed > 0.0, "{fixed} and {as_fixed}");
    assert!(((short_grown - fixed) / (short - fixed) - 3.0).abs() < 1e-6, "{short}, {short_grown}, {fixed}");
    assert!(((long_grown - fixed) / (long - fixed) - 3.0).abs() < 1e-6, "{long}, {long_grown}, {fixed}");
    assert!((same / answer - 1.0).abs() < 1e-9, "{same} and {answer}");
}

/// A group for prompts and one for answers.
fn split() -> Plan {
    let layers = LayerRange { start: 0, end: sample::card().shape.layers };
    let group =
        |n, phase| Group::new(sample::card().id, phase, vec![Stage { peer: PeerId([n; 32]), device: 0, layers }]);
    let groups = vec![group(0, Phase::Prefill), group(1, Phase::Decode)];
    let routes = vec![Route { prefill: groups[0].id, decode: groups[1].id, share: 1.0 }];
    Plan { epoch: Epoch(1), term: Term(0), parent: None, groups, routes, chosen: vec![], reason: String::new() }
}

/// One prompt after another is computed where it is answered, which it holds up nobody; beside answers it is not.
#[test]
fn where_peers_ask_the_gate_prompts_are_computed_where_that_is_sooner() {
    let (adverts, plan) = (swarm(2), split());
    let elsewhere = |split, gap: f64| {
        let requests: Vec<(f64, u32, u32)> = (0..20).map(|n| (f64::from(n) * gap, 400, 50)).collect();
        let outcome = run(&adverts, &plan, &requests, &LivePlanRun { split, ..usual() });
        assert!(outcome.traces.iter().all(|t| t.end.is_finite()));
        outcome.traces.iter().map(|t| t.route.unwrap()).filter(|route| route.prompt != route.answer).count()
    };
    assert_eq!((elsewhere(SplitChoice::Always, 10.0), elsewhere(SplitChoice::Auto, 10.0)), (20, 0));
    let beside = elsewhere(SplitChoice::Auto, 0.06);
    assert!(beside > 5, "{beside}");
}

/// A group for prompts and one for answers that is asked for more than both can do: prompts are parted as gateways part them.
#[test]
fn where_members_have_set_cronus_prompts_are_parted() {
    let (adverts, plan) = (swarm(2), split());
    let requests: Vec<(f64, u32, u32)> = (0..100).map(|n| (f64::from(n) * 0.02, 400, 20)).collect();
    let of = |dispatch| run(&adverts, &plan, &requests, &LivePlanRun { dispatch, ..usual() });
    let (live, cronus) = (of(Dispatch::Live), of(Dispatch::Cronus));
    let parted = |outcome: &Outcome| outcome.traces.iter().filter(|t| t.route.unwrap().split.is_some()).count();
    assert!(parted(&live) == 0 && parted(&cronus) > 10, "{}", parted(&cronus));
    for outcome in [&live, &cronus] {
        assert!(outcome.traces.iter().all(|t| t.end.is_finite()) && outcome.turned_away == 0);
    }
    let last = |outcome: &Outcome| outcome.traces.iter().map(|t| t.end.0).fold(0.0, f64::max);
    assert!(last(&cronus) < last(&live), "{} and {}", last(&cronus), last(&live));
}

#[test]
fn peers_on_one_processor_take_turns() {
    let adverts = swarm(4);
    let plan = planned(&adverts);
    let requests: Vec<(f64, u32, u32)> = (0..200).map(|n| (f64::from(n) * 0.02, 50 + n % 60, 10)).collect();
    let apart = run(&adverts, &plan, &requests, &usual());
    let hosts = adverts.keys().map(|id| (*id, (0, 1.0))).collect();
    let shared = run(&adverts, &plan, &requests, &LivePlanRun { hosts, ..usual() });
    let mean = |outcome: &Outcome| outcome.traces.iter().map(|t| (t.end - t.arrival.at).0).sum::<f64>() / 200.0;
    for outcome in [&apart, &shared] {
        assert!(outcome.traces.iter().all(|t| t.end.is_finite()) && outcome.turned_away == 0);
    }
    assert!(mean(&shared) > 1.5 * mean(&apart), "{} and {}", mean(&shared), mean(&apart));
}

/// Two groups that compute and answer.
fn mixed() -> Plan {
    let layers = LayerRange { start: 0, end: sample::card().shape.layers };
    let group =
        |n| Group::new(sample::card().id, Phase::Mixed, vec![Stage { peer: PeerId([n; 32]), device: 0, layers }]);
    let groups = vec![group(0), group(1)];
    let routes = groups.iter().map(|group| Route { prefill: group.id, decode: group.id, share: 0.5 }).collect();
    Plan { epoch: Epoch(1), term: Term(0), parent: None, groups, routes, chosen: vec![], reason: String::new() }
}

/// A processor for each of two peers, and a request for each at the same time.
#[test]
fn peers_beside_each_other_lose_what_was_measured() {
    let (adverts, plan) = (swarm(2), mixed());
    let hosts: BTreeMap<PeerId, (usize, f64)> = adverts.keys().map(|id| (*id, (0, 1.0))).collect();
    let curve = |times| ContentionCurve::measured(1.0, [(2.0, times)]);
    let times = |contention| {
        let how = LivePlanRun { cores: vec![2.0], left: vec![2.0], hosts: hosts.clone(), contention, ..usual() };
        let traces = run(&adverts, &plan, &[(0.0, 100, 20), (0.0, 100, 20)], &how).traces;
        let routes: Vec<_> = traces.iter().map(|t| t.route.unwrap()).collect();
        assert!(routes[0].prompt != routes[1].prompt && routes.iter().all(|r| r.prompt == r.answer), "{routes:?}");
        traces.iter().map(|t| (t.first.0, (t.end - t.first).0)).collect::<Vec<_>>()
    };
    let alone = times(Contention::default());
    let beside = times(Contention { prompts: curve(1.5), answers: curve(1.25), ..Contention::default() });
    for ((prompt, answer), (longer_prompt, longer_answer)) in alone.iter().zip(&beside) {
        assert!((longer_prompt / prompt - 1.5).abs() < 1e-6, "{longer_prompt} of {prompt}");
        assert!((longer_answer / answer - 1.25).abs() < 1e-6, "{longer_answer} of {answer}");
    }
}

/// A request of each at once: the device is never idle, and who comes first goes first where the order says so.
#[test]
fn models_of_one_peer_take_turns_on_its_device_by_their_profiles() {
    let cards = sample::cards(2);
    let mut advert = sample::lends_several(0, cards.clone());
    let profile = *sample::measured(0, PREFILL, DECODE).devices[0].profile(sample::card().id).unwrap();
    for served in &mut advert.devices[0].serves {
        served.profile = Some(LayerProfile { model: served.model, ..profile });
    }
    let adverts = BTreeMap::from([(PeerId([0; 32]), advert)]);
    let members = adverts.iter().map(|(id, advert)| (*id, advert)).collect();
    let (mut groups, mut routes) = (Vec::new(), Vec::new());
    for input in live::inputs(&members, SplitChoice::Auto) {
        let part = input.plan();
        groups.extend(part.groups);
        routes.extend(part.routes);
    }
    let plan =
        Plan { epoch: Epoch(1), term: Term(0), parent: None, groups, routes, chosen: vec![], reason: String::new() };
    let resident = |model| LivePlan::new(&members, &plan, model, SplitChoice::Auto).unwrap().resident().unwrap();
    let models: Vec<Resident> = cards.iter().map(|card| resident(card.id)).collect();
    let peer = SharedPeer::new(models.clone(), vec![Seconds(0.0); 2]).unwrap();
    let one = Arrival { at: Seconds(0.0), asked: Asked::new(100, 9) };
    let arrivals = beside(vec![vec![one], vec![one]]);
    let alone = peer.alone(one.asked).0;
    for (name, order) in TurnOrder::ALL {
        let ends: Vec<f64> = peer.run(order, &arrivals).iter().map(|whole| whole.0).collect();
        let last = ends.iter().copied().fold(0.0, f64::max);
        assert!((last / (2.0 * alone) - 1.0).abs() < 1e-6, "{name}: {ends:?}, {alone} alone");
        match order {
            TurnOrder::FirstCome => assert!((ends[0] / alone - 1.0).abs() < 1e-6, "{ends:?}, {alone} alone"),
            TurnOrder::RoundRobin => assert!(ends[0] > 1.5 * alone, "{ends:?}, {alone} alone"),
            TurnOrder::Doubling => {}
        }
    }
    let handled = SharedPeer::new(models.clone(), vec![Seconds(0.005); 2]).unwrap();
    let (alone, whole) = (handled.alone(one.asked).0, handled.run(TurnOrder::RoundRobin, &arrivals));
    assert!(whole.iter().all(|whole| whole.0 < 1.5 * alone), "one computes while the other's tokens go out: {whole:?}");
    // A prompt of two chunks, and after its first token eight steps; alone it takes as long as where nobody else comes.
    let long = Asked::new(300, 9);
    let beside_steps = handled.alone(long).0 - peer.alone(long).0;
    assert!((beside_steps / (10.0 * 0.005) - 1.0).abs() < 1e-6, "{beside_steps} s beside ten steps");
    // A device that takes longer for each step than its layers do, and what it is said to have done.
    let slower = SharedPeer::new(models.clone(), vec![Seconds(0.0); 2]).unwrap().taking_longer(&[Seconds(0.002); 2]);
    let (took, used) = slower.alone_counted(one.asked);
    assert_eq!((used.steps, used.sequences, used.prompt_tokens, used.errands), (9, 9, 100, 0));
    assert!(((took.0 - peer.alone(one.asked).0) / (9.0 * 0.002) - 1.0).abs() < 1e-6, "{took:?}");
    assert!((used.busy.0 / took.0 - 1.0).abs() < 1e-6 && used.idle.0 < 1e-9, "{used:?}");
    // Who comes while a step is computed is in the next one.
    let late = Arrival { at: Seconds(1e-5), ..one };
    let steps = |at: Arrival| peer.run_counted(TurnOrder::FirstCome, &[one, at]).used[0].steps;
    assert_eq!((steps(one), steps(late)), (10, 10));
    let whole = peer.run(TurnOrder::Doubling, &[Arrival { at: Seconds(0.0), asked: long }]);
    assert_eq!(whole, [peer.alone(long)]);
    one_pool_is_shared_by_the_quotas(models);
}

/// A request of 109 tokens has four pages, a layer's keys and values of 128 tokens in each.
fn one_pool_is_shared_by_the_quotas(mut models: Vec<Resident>) {
    let arrivals = beside(vec![vec![Arrival { at: Seconds(0.0), asked: Asked::new(100, 9) }; 4]]);
    let mut longest = |quota| {
        models.iter_mut().for_each(|model| model.quota = quota);
        let whole = SharedPeer::new(models.clone(), vec![Seconds(0.0); 2]).unwrap().run(TurnOrder::Doubling, &arrivals);
        whole.iter().map(|whole| whole.0).fold(0.0, f64::max)
    };
    let (all, three, none) = (longest(1000), longest(8), longest(3));
    assert!(three > 1.1 * all && three < 1.6 * all, "three at once, of which two have the quota: {three}, {all}");
    assert!(none.is_infinite(), "none ever has as many");
}

#[test]
fn a_plan_that_says_nothing_of_the_model_is_refused() {
    let adverts = swarm(2);
    let members = adverts.iter().map(|(id, advert)| (*id, advert)).collect();
    let plan = planned(&adverts);
    let of = |plan: &Plan, model| LivePlan::new(&members, plan, model, SplitChoice::Auto).map(|_| ()).unwrap_err();
    assert_eq!(of(&plan, ModelId([9; 16])), LivePlanError::NoGroups);
    let elsewhere = Route { prefill: GroupId([7; 8]), decode: GroupId([7; 8]), share: 1.0 };
    let plan_of = |routes| Plan { routes, ..plan.clone() };
    assert_eq!(of(&plan_of(vec![elsewhere]), sample::card().id), LivePlanError::NoGroups);
    let mut strange = plan.clone();
    strange.groups[0].stages[0].peer = PeerId([77; 32]);
    assert_eq!(of(&strange, sample::card().id), LivePlanError::Unknown);
}
