//! Members set targets for their swarm: plans change as the simulator says they should, and peers agree on them.
#![allow(clippy::unwrap_used)] // A scenario that cannot run fails.

use std::time::Duration;
use tsnode_coordinator::{
    control::Event,
    gate::SplitChoice,
    planner::{
        live::{self, SearchInput},
        reranking,
    },
    replay::{Replay, replay},
    sample,
    scheduler::{
        Evaluator,
        moves::Grouping,
        search::{self, Effort},
    },
    settings::SwarmSettings,
};
use tsnode_protocol::{
    Advert, Gossip, PeerId, Phase, PolicyChoice, RequestClass, RoutePolicy, Seconds, SettingKey, SettingValue,
    SwarmSetting, Targets, Traffic, traffic::LENGTHS,
};
use tsnode_simulator::simulation::{World, tally::ScenarioTally};

const KEY: SettingKey = SettingKey::Targets { model: None, class: RequestClass::Interactive };

fn traffic() -> Traffic {
    Traffic { model: sample::card().id, rate: 1.0, variation: 1.0, prompts: [400; LENGTHS], answers: [100; LENGTHS] }
}

fn set(targets: Targets) -> SwarmSetting {
    SwarmSetting { key: KEY, value: SettingValue::Targets(targets), at: 1, by: PeerId([9; 32]) }
}

fn swarm(targets: Targets) -> Vec<Advert> {
    let mut adverts: Vec<Advert> = (0..8).map(sample::advert).collect();
    adverts.push(Advert { traffic: vec![traffic()], settings: vec![set(targets)], ..sample::gateway(8) });
    adverts
}

fn input(targets: Targets, split: SplitChoice) -> SearchInput {
    let adverts = swarm(targets);
    let members = (0..).zip(&adverts).map(|(n, a)| (PeerId([n; 32]), a)).collect();
    live::inputs(&members, split).remove(0)
}

/// So long to the first token, and for each token after it.
fn within(ttft: f64, tpot: f64) -> Targets {
    Targets { ttft: Some(Seconds(ttft)), tpot: Some(Seconds(tpot)), e2e: None }
}

/// A second and ten milliseconds suffice for whoever does both; two milliseconds want decoders that no prompt holds up.
fn loose() -> Targets {
    within(1.0, 0.01)
}

fn tight() -> Targets {
    within(1.0, 0.002)
}

/// The groups that a swarm with these targets is planned to have.
fn planned(targets: Targets) -> (SearchInput, Grouping) {
    let input = input(targets, SplitChoice::Auto);
    let how = Replay { seed: 0, requests: 300 };
    let found = reranking::plan(&input.problem, 0, Effort::default(), how, &|| false).0;
    (input, found.grouping)
}

/// Share of two thousand simulated requests that keep an input's targets on these groups.
fn simulated(input: &SearchInput, grouping: &Grouping) -> f64 {
    let mut evaluator = Evaluator::new(&input.problem);
    let groups = search::shelved(&mut evaluator, grouping).unwrap();
    let evaluation = evaluator.evaluate(&groups);
    replay(&mut evaluator, &groups, &evaluation, Replay { seed: 99, requests: 2000 }).attainment
}

fn mixed(grouping: &Grouping) -> usize {
    grouping.parts.iter().filter(|part| part.phase == Phase::Mixed).count()
}

#[test]
fn tighter_and_looser_targets_change_the_plan_as_the_simulator_says() {
    let ((under_loose, for_loose), (under_tight, for_tight)) = (planned(loose()), planned(tight()));
    assert!(mixed(&for_loose) == 8 && mixed(&for_tight) == 0, "{for_loose:?} {for_tight:?}");
    let each = |input| [simulated(input, &for_loose), simulated(input, &for_tight)];
    let ([loose_mixed, loose_apart], [tight_mixed, tight_apart]) = (each(&under_loose), each(&under_tight));
    println!("loose {loose_mixed} {loose_apart}, tight {tight_mixed} {tight_apart}");
    assert!(loose_mixed >= loose_apart && loose_mixed > 0.95, "{loose_mixed} {loose_apart}");
    assert!(tight_apart > tight_mixed + 0.1, "{tight_apart} {tight_mixed}");
}

/// Groups stay as they are, nothing is loaded, and no two policies take turns.
#[test]
fn a_routing_policy_that_is_left_to_measurement_is_chosen_for_all_and_stays() {
    let mut world = World::new(6);
    for n in 0..8 {
        let n = world.add(sample::advert(n));
        world.start(n);
    }
    let setter = world.add(Advert { traffic: vec![traffic()], ..sample::gateway(9) });
    world.start(setter);
    world.wait(Duration::from_secs(25));
    world.agreement().unwrap();
    let before = world.common_plan().unwrap().clone();
    assert_eq!(before.chosen, []);
    let (key, value) = (SettingKey::Route { model: None }, SettingValue::Route(Some(RoutePolicy::Auto)));
    world.tell(setter, Event::Set { key, value });
    world.wait(Duration::from_secs(15));
    world.agreement().unwrap();
    let plan = world.common_plan().unwrap().clone();
    let chosen = PolicyChoice::of_routes(&plan.chosen, sample::card().id).unwrap().0.clone();
    assert!(chosen.of_chosen().is_some_and(|replayed| replayed.in_time > 0.5) && chosen.tried.len() > 2, "{chosen:?}");
    assert_eq!(plan.groups, before.groups);
    world.wait(Duration::from_secs(60));
    let later = &world.common_plan().unwrap().chosen;
    let policy = PolicyChoice::of_routes(later, sample::card().id).map(|(choice, _)| choice.policy);
    assert_eq!(policy, Some(chosen.policy));
}

#[test]
fn a_shift_of_targets_is_adopted_loses_no_request_and_outlives_whoever_set_it() {
    let mut world = World::new(4);
    for n in 0..8 {
        let n = world.add(sample::advert(n));
        world.start(n);
    }
    let setter = world.add(Advert { traffic: vec![traffic()], ..sample::gateway(9) });
    world.start(setter);
    world.let_clients_come(4, 2.0, None);
    world.wait(Duration::from_secs(25));
    world.agreement().unwrap();
    let does_both = |world: &World| {
        let groups = &world.common_plan().unwrap().groups;
        groups.iter().filter(|g| g.phase == Phase::Mixed).count()
    };
    assert_eq!(does_both(&world), 8);
    world.tell(setter, Event::Set { key: KEY, value: SettingValue::Targets(tight()) });
    world.wait(Duration::from_secs(15));
    world.agreement().unwrap();
    assert_eq!(does_both(&world), 0);
    let known = |world: &World, n: usize| {
        let mut settings = SwarmSettings::default();
        settings.take_in(&world.peers[n].disk.settings);
        settings.targets(sample::card().id, RequestClass::Interactive).map(|(targets, set)| (targets, set.by))
    };
    let by = world.peers[setter].id;
    assert!((0..9).all(|n| known(&world, n) == Some((tight(), by))));
    // It goes, all others start anew one after another, and one that never heard of it comes.
    world.kill(setter);
    for n in 0..8 {
        world.kill(n);
        world.wait(Duration::from_secs(2));
        world.start(n);
        world.wait(Duration::from_secs(10));
    }
    let new = world.add(sample::advert(8));
    world.start(new);
    world.wait(Duration::from_secs(20));
    world.agreement().unwrap();
    assert_eq!(known(&world, new), Some((tight(), by)));
    assert_eq!(world.checks.broken, None);
}

/// How clients fare in a minute and a half, in which targets shift six times or never.
fn served(shifts: bool) -> ScenarioTally {
    let mut world = World::new(5);
    for n in 0..8 {
        let n = world.add(sample::advert(n));
        world.start(n);
    }
    let setter = world.add(Advert { traffic: vec![traffic()], ..sample::gateway(9) });
    world.start(setter);
    world.let_clients_come(5, 5.0, None);
    world.wait(Duration::from_secs(20));
    let early = world.checks.figures.requests.unserved;
    for n in 0..6 {
        let targets = if n % 2 == 0 { tight() } else { loose() };
        if shifts {
            world.tell(setter, Event::Set { key: KEY, value: SettingValue::Targets(targets) });
        }
        world.wait(Duration::from_secs(15));
    }
    world.agreement().unwrap();
    assert_eq!(world.checks.broken, None);
    // Before the first plan nobody is served.
    let all = world.checks.figures.requests;
    ScenarioTally { unserved: all.unserved - early, asked: all.asked - early, ..all }
}

#[test]
fn requests_go_on_while_targets_shift() {
    let (plain, shifted) = (served(false), served(true));
    println!("{plain:?} {shifted:?}");
    let open = |t: &ScenarioTally| t.asked - t.complete - t.cancelled - t.unserved;
    assert!(shifted.asked > 300 && open(&shifted) < 40, "{shifted:?}");
    assert_eq!((shifted.failed, shifted.lost), (0, 0), "{shifted:?}");
    assert!(shifted.unserved <= plain.unserved, "{plain:?} {shifted:?}");
}

/// A clock of next year would be the newest for a year; who sets something with a slow clock sets it all the same.
#[test]
fn what_is_of_the_future_is_not_followed() {
    let mut world = World::new(6);
    for n in 0..3 {
        let n = world.add(sample::advert(n));
        world.start(n);
    }
    let liar = world.add(sample::gateway(9));
    world.start(liar);
    world.wait(Duration::from_secs(10));
    let wrong = SwarmSetting { at: 1_900_000_000_000, ..set(within(0.001, 0.001)) };
    world.say(liar, Gossip::Advert(Advert { settings: vec![wrong], ..sample::gateway(9) }.into()));
    world.wait(Duration::from_secs(3));
    assert!((0..3).all(|n| world.peers[n].disk.settings.is_empty()));
    world.tell(0, Event::Set { key: KEY, value: SettingValue::Targets(tight()) });
    world.wait(Duration::from_secs(3));
    assert!((0..3).all(|n| world.peers[n].disk.settings.len() == 1));
    assert_eq!(world.checks.broken, None);
}
