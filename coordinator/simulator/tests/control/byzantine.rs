//! Peers that lie, and messages that come again.

use super::{all_is_well, control, coordinator, next_of, seconds};
use std::time::Duration;
use tsnode_coordinator::{
    control::{Event, Reject},
    sample,
};
use tsnode_protocol::{
    Call, Endorsement, Gossip, GroupLoad, Load, Phase, PlanId, SeenSpeed,
    gossip::Certificate,
    liveness_digest::{Missed, PeerTag},
};
use tsnode_simulator::simulation::{World, byzantine::Lie, process::SimulatedProcess, sketch::Sketch};

#[test]
fn a_replayed_message_is_refused_and_counted() {
    let mut world = World::of(2, 5);
    world.wait(seconds(4));
    let of_first = |m: &&tsnode_protocol::Verified<Gossip>| m.signer() == world.peers[0].id;
    let old = world.archive.iter().find(of_first).unwrap().clone();
    world.rejected.clear();
    world.tell(1, Event::Gossip(old));
    assert_eq!(world.rejected[&1], [Reject::Replay]);
}

#[test]
fn what_a_peer_said_before_it_started_again_counts_no_more() {
    let mut world = World::of(3, 5);
    world.wait(seconds(4));
    // A heartbeat that nobody has heard yet: its sequence is new, its life is over.
    let late = world.peers[2].seal(Gossip::Heartbeat(tsnode_protocol::Heartbeat::default())).unwrap();
    world.kill(2);
    // The clock was moved back by an hour meanwhile.
    world.peers[2].skew = -3600;
    world.start(2);
    world.wait(seconds(6));
    all_is_well(&mut world);
    world.rejected.clear();
    world.tell(1, Event::Gossip(late));
    assert_eq!(world.rejected[&1], [Reject::Replay]);
}

#[test]
fn a_plan_out_of_turn_is_not_endorsed_and_a_false_certificate_convinces_nobody() {
    let mut world = World::of(4, 6);
    world.wait(seconds(4));
    let before = world.common_plan().unwrap().clone();
    let byzantine = (0..4).find(|n| *n != coordinator(&world)).unwrap();
    world.make_byzantine(byzantine, Lie::Unresponsive);
    let plan = next_of(&world, "mine");
    let signed = world.peers[byzantine].seal(Gossip::Plan(plan.into())).unwrap();
    let certificate = Certificate { plan: signed.proof().clone(), endorsements: vec![] };
    world.spread(byzantine, &signed, None);
    let signed = world.peers[byzantine].seal(Gossip::Certificate(certificate.into())).unwrap();
    world.spread(byzantine, &signed, None);
    world.wait(seconds(6));
    assert_eq!(*world.common_plan().unwrap(), before);
    let rejected: Vec<&Reject> = world.rejected.values().flatten().collect();
    assert!(rejected.contains(&&Reject::NotCoordinator) && rejected.contains(&&Reject::BadCertificate), "{rejected:?}");
}

/// It proves what a certificate has to, and somebody follows it.
#[test]
fn a_plan_that_names_its_maker_alone_takes_nobody_from_the_one_that_stands() {
    for seed in 0..8 {
        let mut world = World::planned_by(Sketch, seed);
        for n in 0..6 {
            let n = world.add(sample::advert(n));
            if n == 5 {
                world.make_byzantine(n, Lie::Usurper);
            }
            world.start(n);
        }
        let alone = |peer: &SimulatedProcess| peer.control().unwrap().plan().is_some_and(|p| p.peers().len() == 1);
        for _ in 0..160 {
            world.wait(Duration::from_millis(250));
            assert!(!world.honest().any(alone), "seed {seed}");
        }
        assert!(world.honest().all(|peer| peer.control().unwrap().plan().is_some_and(|p| p.peers().len() == 6)));
        assert_eq!(world.checks.broken, None);
        let shown = world.checks.figures.said.get("certificate").map_or(0, |said| said.0);
        assert!(shown > 10, "{shown}: else this shows nothing");
    }
}

/// Each has everybody check as many signatures as its maker cares to put in.
#[test]
fn certificates_faster_than_any_peer_shows_them_are_not_looked_at() {
    let mut world = World::of(3, 7);
    world.wait(seconds(4));
    let first = coordinator(&world);
    let [listener, liar] = [1, 2].map(|n| (first + n) % 3);
    let plan = next_of(&world, "mine");
    let plan = world.peers[liar].seal(Gossip::Plan(plan.into())).unwrap().proof().clone();
    world.rejected.clear();
    for _ in 0..100 {
        let certificate = Certificate { plan: plan.clone(), endorsements: vec![] };
        let shown = world.peers[liar].seal(Gossip::Certificate(certificate.into())).unwrap();
        world.tell(listener, Event::Gossip(shown));
    }
    let unread = world.rejected[&listener].iter().filter(|reason| **reason == Reject::TooManyCertificates).count();
    assert_eq!((world.rejected[&listener].len(), unread), (100, 84));
}

#[test]
fn whom_most_have_cut_off_no_plan_names_and_whom_a_few_slander_stays() {
    let mut world = World::of(6, 14);
    world.wait(seconds(4));
    let outlaw = world.peers[5].id;
    for n in 0..2 {
        // True or not, it is said the same way.
        world.tell(n, Event::CutOff(vec![outlaw]));
        world.wait(seconds(4));
        assert_eq!(world.common_plan().unwrap().peers().len(), 6, "two of five are not most");
    }
    world.tell(2, Event::CutOff(vec![outlaw]));
    world.wait(seconds(6));
    let plan = world.common_plan().unwrap();
    assert_eq!((plan.peers().len(), plan.peers().contains(&outlaw)), (5, false));
    (0..3).for_each(|n| world.tell(n, Event::CutOff(vec![])));
    world.wait(seconds(6));
    all_is_well(&mut world);
}

#[test]
fn what_a_gateway_saw_of_a_claim_comes_to_all_and_changes_no_plan() {
    let mut world = World::of(6, 14);
    world.wait(seconds(4));
    let before = world.common_plan().unwrap().clone();
    let teller = world.peers[2].id;
    for doublings in [3, 0] {
        let seen = SeenSpeed { group: before.groups[0].id, phase: Phase::Decode, doublings };
        world.tell(2, Event::SeenSpeeds(vec![seen]));
        world.wait(seconds(4));
        for n in 0..6 {
            let mut members = control(&world, n).members();
            let said = members.find(|(peer, _)| **peer == teller).map(|(_, m)| m.heartbeat.seen_speeds.clone());
            assert_eq!(said, Some(vec![seen]), "at {n}");
        }
    }
    assert_eq!(world.common_plan().unwrap().groups, before.groups);
}

/// Requests would go elsewhere, or to a group that is not up, and what its own steps are said to take is held against its leader.
#[test]
fn what_a_peer_says_of_a_group_that_another_leads_counts_for_nothing() {
    let mut world = World::of(3, 1);
    world.wait(seconds(6));
    let group = world.common_plan().unwrap().groups[0].clone();
    let leader = world.number(group.leader().unwrap()).unwrap();
    let load = |running| Load { running, ..Load::default() };
    let ready = |running| vec![GroupLoad { group: group.id, load: load(running) }];
    for n in 0..3 {
        let running = if n == leader { 1 } else { 99 };
        world.tell(n, Event::Load { load: load(running), ready: ready(running) });
    }
    world.wait(seconds(4));
    for n in 0..3 {
        assert_eq!(control(&world, n).said_ready().get(&group.id), Some(&load(1)), "peer {n}");
    }
    world.tell(leader, Event::Load { load: load(0), ready: vec![] });
    world.wait(seconds(4));
    for n in 0..3 {
        assert_eq!(control(&world, n).said_ready().get(&group.id), None, "peer {n}");
    }
}

#[test]
fn a_second_plan_for_a_term_is_refused() {
    let mut world = World::of(3, 7);
    world.wait(seconds(4));
    let n = coordinator(&world);
    world.make_byzantine(n, Lie::SecondPlan);
    let plans = ["one", "two"].map(|reason| next_of(&world, reason));
    for plan in plans {
        world.say(n, Gossip::Plan(plan.into()));
        world.wait(seconds(1));
    }
    assert_eq!(world.common_plan().unwrap().reason, "one");
    all_is_well(&mut world);
}

/// Whoever has heard of a plan and of most endorsements of it follows it, whatever else is endorsed meanwhile.
#[test]
fn endorsements_of_plans_that_nobody_made_push_out_no_plan() {
    let mut world = World::of(3, 7);
    world.wait(seconds(4));
    let first = coordinator(&world);
    let [listener, liar] = [1, 2].map(|n| (first + n) % 3);
    let plan = next_of(&world, "next");
    let endorses = |id| Gossip::Endorsement(Endorsement { epoch: plan.epoch, term: plan.term, plan: id });
    let hears = |world: &mut World, by: usize, gossip: Gossip| {
        let said = world.peers[by].seal(gossip).unwrap();
        world.tell(listener, Event::Gossip(said));
    };
    hears(&mut world, first, Gossip::Plan(plan.clone().into()));
    world.wait(Duration::from_millis(20));
    for n in 0..100 {
        hears(&mut world, liar, endorses(PlanId([n; 16])));
    }
    hears(&mut world, first, endorses(plan.id()));
    assert_eq!(control(&world, listener).plan().map(|plan| plan.reason.as_str()), Some("next"));
}

#[test]
fn whom_a_lie_about_its_plan_makes_others_plan_for_gets_ever_less_of_it() {
    let mut world = World::of(4, 12);
    world.wait(seconds(4));
    // It says nothing else.
    world.make_byzantine(3, Lie::Stray);
    world.pause(3, seconds(100));
    let before = world.checks.figures.plans;
    for _ in 0..120 {
        let (epoch, term) = (world.common_plan().unwrap().epoch, control(&world, 0).term());
        let plan = Some(tsnode_protocol::PlanId([1; 16]));
        world.say(3, Gossip::Heartbeat(tsnode_protocol::Heartbeat { epoch, term, plan, ..Default::default() }));
        world.wait(Duration::from_millis(500));
    }
    let made = world.checks.figures.plans - before;
    assert!((1..=6).contains(&made), "{made} plans in a minute");
}

fn twelve_of_one_mind() -> World {
    let mut world = World::planned_by(Sketch, 7);
    for n in 0..12 {
        let n = world.add(sample::advert(n));
        world.start(n);
    }
    world.wait(seconds(20));
    world
}

/// What a byzantine peer can do with a call that somebody did not hear: it is news there, and to whom it names it is not.
#[test]
fn an_old_call_that_comes_again_buries_nobody() {
    let mut world = twelve_of_one_mind();
    // Who plans speaks to all each second; whom most have not heard for long is one of those who do not.
    let caller = coordinator(&world);
    let strangers = |n: usize| {
        let id = world.peers[n].id;
        let is_quiet =
            |v: &usize| control(&world, *v).members().any(|(p, m)| *p == id && world.now > m.last_heard + seconds(4));
        (0..12).filter(is_quiet).count()
    };
    let named = (0..12).max_by_key(|n| strangers(*n)).unwrap();
    assert!(strangers(named) > 6);
    let missed = Missed { peer: PeerTag::of(world.peers[named].id), last: 0 };
    let call = world.peers[caller].seal(Gossip::Call(Call { peers: vec![missed] })).unwrap();
    world.net.sides = (0..12).filter(|n| ![caller, named].contains(n)).map(|n| (n, 1)).collect();
    world.spread(caller, &call, None);
    world.net.sides.clear();
    world.wait(seconds(20));
    world.rejected.clear();
    world.spread(caller, &call, None);
    world.wait(seconds(8));
    assert_eq!((world.checks.figures.false_deaths, world.checks.figures.excused_deaths), (0, 0));
    assert_eq!(world.rejected.len(), 11, "all but the caller");
    assert!(world.rejected.values().all(|all| *all == [Reject::Replay]), "{:?}", world.rejected);
    all_is_well(&mut world);
}

#[test]
fn nor_does_one_of_a_peer_that_is_gone_where_nobody_knew_it() {
    let mut world = twelve_of_one_mind();
    let missed = |n: usize| Missed { peer: PeerTag::of(world.peers[n].id), last: 0 };
    let peers = (1..12).map(missed).collect();
    let call = world.peers[0].seal(Gossip::Call(Call { peers })).unwrap();
    world.spread(0, &call, None);
    world.wait(seconds(20));
    // More than those who listen, who hear everybody all the time, start anew when it is gone.
    (0..5).for_each(|n| world.kill(n));
    world.wait(seconds(10));
    (1..5).for_each(|n| world.start(n));
    world.wait(seconds(20));
    all_is_well(&mut world);
    world.spread(0, &call, None);
    world.wait(seconds(8));
    assert_eq!((world.checks.figures.false_deaths, world.checks.figures.excused_deaths), (0, 0));
    all_is_well(&mut world);
}
