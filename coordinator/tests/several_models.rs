//! Swarms whose hosts lend several models: who gets what, and what sharing is worth.

use std::collections::{BTreeMap, BTreeSet};
use tsnode_coordinator::{
    gate::SplitChoice,
    planner::{self, PlanDraft, PlanOptions},
    sample,
};
use tsnode_protocol::{Advert, Group, LayerRange, ModelId, PeerId, Phase, Plan, Stage, Traffic};

fn id(n: usize) -> PeerId {
    PeerId([n as u8; 32])
}

fn model(n: u8) -> ModelId {
    ModelId([n; 16])
}

/// So many hosts that lend so many models each.
fn swarm(hosts: usize, models: u8) -> BTreeMap<PeerId, Advert> {
    (0..hosts).map(|n| (id(n), sample::lends_several(n, sample::cards(models)))).collect()
}

fn planned(adverts: &BTreeMap<PeerId, Advert>) -> PlanDraft {
    planner::plan(&members(adverts), &PlanOptions::default(), None)
}

fn members(adverts: &BTreeMap<PeerId, Advert>) -> BTreeMap<PeerId, &Advert> {
    adverts.iter().map(|(peer, advert)| (*peer, advert)).collect()
}

fn value(adverts: &BTreeMap<PeerId, Advert>, groups: &[Group]) -> f64 {
    planner::value(&plan(groups), &members(adverts), &PlanOptions::default())
}

fn plan(groups: &[Group]) -> Plan {
    sample::plan(groups.to_vec(), vec![])
}

fn served(groups: &[Group]) -> BTreeSet<ModelId> {
    groups.iter().map(|g| g.model).collect()
}

fn of(groups: &[Group], of: u8) -> Vec<Group> {
    groups.iter().filter(|g| g.model == model(of)).cloned().collect()
}

/// So many requests a second for a model, said by a gateway.
fn asked(adverts: &mut BTreeMap<PeerId, Advert>, rates: &[(u8, f64)]) {
    let traffic = |(n, rate): &(u8, f64)| Traffic {
        model: model(*n),
        rate: *rate,
        variation: 1.0,
        prompts: [200; 16],
        answers: [50; 16],
    };
    let gateway = Advert { traffic: rates.iter().map(traffic).collect(), ..sample::gateway(99) };
    adverts.insert(id(99), gateway);
}

#[test]
fn one_host_serves_all_its_models_at_once() {
    for models in [2, 3] {
        let adverts = swarm(1, models);
        let draft = planned(&adverts);
        assert_eq!(served(&draft.groups).len(), usize::from(models), "{draft:?}");
        for n in 1..=models {
            let ids: BTreeSet<_> = of(&draft.groups, n).iter().map(|g| g.id).collect();
            let share: f64 = draft.routes.iter().filter(|r| ids.contains(&r.prefill)).map(|r| r.share).sum();
            assert!((share - 1.0).abs() < 1e-9, "{share} of the requests for model {n} have a way");
        }
        assert!(value(&adverts, &draft.groups) > 0.9 * f64::from(models));
    }
}

#[test]
fn several_hosts_with_several_models_serve_all_of_them_and_nobody_is_left_out() {
    for hosts in 2..5 {
        let adverts = swarm(hosts, 3);
        let draft = planned(&adverts);
        assert_eq!(served(&draft.groups).len(), 3, "{draft:?}");
        assert_eq!(plan(&draft.groups).peers().len(), hosts);
        assert_eq!(planned(&adverts), draft, "who sees the same plans the same");
    }
}

/// Requests a second that so many hosts would carry of one model alone, by the scheduler's own measure.
fn carries(hosts: usize) -> f64 {
    planner::live::inputs(&members(&swarm(hosts, 1)), SplitChoice::Auto).remove(0).problem.rate / 0.6
}

#[test]
fn groups_that_share_a_device_are_valued_with_the_load_of_both() {
    let mut adverts = swarm(1, 2);
    asked(&mut adverts, &[(1, 0.5 * carries(1)), (2, 0.5 * carries(1))]);
    let groups = planned(&adverts).groups;
    let first = |groups: &[Group]| {
        let why = planner::live::why(&plan(groups), &members(&adverts), SplitChoice::Auto);
        why.into_iter().find(|w| w.model == "tiny-1").unwrap()
    };
    let (alone, shared) = (first(&of(&groups, 1)), first(&groups));
    assert!(alone.adopted > shared.adopted && shared.adopted > 0.0, "{} and {}", alone.adopted, shared.adopted);
    assert_eq!(alone.shared, []);
    let taken = shared.shared.iter().map(|device| device.taken).collect::<Vec<_>>();
    assert!(matches!(taken[..], [part] if (0.3..0.7).contains(&part)), "{taken:?}");
}

#[test]
fn a_model_that_is_new_gets_a_place_at_once_and_nobody_moves_for_it() {
    let (before, after) = (swarm(3, 1), swarm(3, 2));
    let standing = planned(&before);
    // Its part of the memory is another one; its groups stand.
    let grown = planner::grow(&plan(&standing.groups), &members(&after), &PlanOptions::default()).unwrap();
    assert_eq!(served(&grown.groups).len(), 2);
    let stages = |groups: Vec<Group>| groups.into_iter().map(|g| g.stages).collect::<BTreeSet<_>>();
    assert_eq!(stages(of(&grown.groups, 1)), stages(standing.groups.clone()));
    assert!(value(&after, &grown.groups) > value(&after, &standing.groups), "who is served late is served");
}

/// A group that does both, whole on one host.
fn whole(model_no: u8, host: usize) -> Group {
    let layers = LayerRange { start: 0, end: 4 };
    Group::new(model(model_no), Phase::Mixed, vec![Stage { peer: id(host), device: 0, layers }])
}

#[test]
fn what_is_planned_is_worth_no_less_than_sharing_all_or_dividing_evenly() {
    for rates in [[0.4, 0.4], [0.8, 0.05], [1.1, 1.1]] {
        let mut adverts = swarm(4, 2);
        let carries = carries(4);
        asked(&mut adverts, &[(1, rates[0] * carries), (2, rates[1] * carries)]);
        let found = value(&adverts, &planned(&adverts).groups);
        let shared: Vec<Group> = (0..4).flat_map(|host| [whole(1, host), whole(2, host)]).collect();
        let divided = [whole(1, 0), whole(1, 1), whole(2, 2), whole(2, 3)];
        let simple = value(&adverts, &shared).max(value(&adverts, &divided));
        assert!(found > 0.0 && found >= simple * 0.99, "{found}, and {simple} at {rates:?}");
    }
}

/// Such hosts, each of which holds one of its models at a time.
fn crowded(hosts: usize, models: u8) -> BTreeMap<PeerId, Advert> {
    let mut adverts = swarm(hosts, models);
    for device in adverts.values_mut().flat_map(|advert| &mut advert.devices) {
        let part = device.memory_bytes / 4 * 3;
        device.serves.iter_mut().for_each(|served| served.memory_bytes = part);
    }
    adverts
}

#[test]
fn models_that_are_not_in_memory_at_once_have_a_device_as_they_are_asked_for() {
    let mut adverts = crowded(1, 2);
    assert_eq!(planned(&adverts).groups.len(), 1, "nobody says what is asked for");
    for (busy, idle) in [(2, 1), (1, 2)] {
        asked(&mut adverts, &[(busy, 0.1 * carries(1))]);
        let (groups, stands) = (planned(&adverts).groups, [whole(idle, 0)]);
        assert_eq!(served(&groups), BTreeSet::from([model(busy)]));
        let (better, good) = (value(&adverts, &groups), value(&adverts, &stands));
        assert!(good > 0.0 && better > 1.5 * good, "{better} and {good}");
        // Nothing is put beside what stands that has no memory there.
        let grown = planner::grow(&plan(&stands), &members(&adverts), &PlanOptions::default()).unwrap();
        assert_eq!(served(&grown.groups), BTreeSet::from([model(idle)]));
    }
    // Of two that are asked for neither has to go for the other.
    asked(&mut adverts, &[(1, 0.1 * carries(1)), (2, 0.1 * carries(1))]);
    let alone = [1, 2].map(|n| value(&adverts, &[whole(n, 0)]));
    assert!(alone[0] > 0.0 && (alone[0] - alone[1]).abs() < 0.05 * alone[0], "{alone:?}");
}

#[test]
fn hosts_that_hold_one_model_at_a_time_divide_them() {
    for models in [2, 3] {
        let adverts = crowded(usize::from(models), models);
        let groups = planned(&adverts).groups;
        assert_eq!(served(&groups).len(), usize::from(models), "{groups:?}");
        let stages: Vec<_> = groups.iter().flat_map(|g| &g.stages).map(|s| s.peer).collect();
        assert_eq!(stages.len(), stages.iter().collect::<BTreeSet<_>>().len(), "no host has two: {groups:?}");
    }
}

#[test]
fn groups_of_a_model_for_which_a_newcomer_has_no_room_go_on_as_without_it() {
    let adverts = crowded(4, 2);
    let apart = |host, phase| Group { phase, ..whole(2, host) };
    let standing = plan(&[whole(1, 0), apart(1, Phase::Prefill), apart(2, Phase::Decode)]);
    let grown = planner::grow(&standing, &members(&adverts), &PlanOptions::default()).unwrap().groups;
    let flipped = planner::flip(&standing, &members(&adverts), &PlanOptions::default()).unwrap().groups;
    assert_eq!((of(&grown, 1).len(), of(&flipped, 1).len()), (2, 1), "the newcomer is the first one's");
    assert_eq!(of(&grown, 2), of(&flipped, 2));
}
