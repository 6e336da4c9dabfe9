//! Scenarios of peers that are stopped in the middle of an answer, and of peers that only take long.

use crate::lenders::{self, MODEL, group, group_of, peer};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tsnode_coordinator::{
    gate::SplitChoice,
    gateway::{Action, Event, Gateway, GatewayConfig, View},
    liveness_probe::{LOOK, LivenessProbe, TransportSign},
    sample,
};
use tsnode_protocol::{
    Group, Load, PeerId, Phase, RequestId, Route, Sampled, Sampling, Seconds, Token,
    stream::{Computed, DecodeEvent, DecodeOrder, Generation, PrefillEvent},
};

const REQUEST: RequestId = RequestId([5; 16]);
/// As far apart as tokens of the answer come.
const STEP: Duration = LOOK;

fn sampled(n: u32) -> Sampled {
    Sampled { token: Token(n), logprob: None, top: vec![] }
}

/// A gateway with one request, and what the transport says of those who owe it something.
struct Scenario {
    gateway: Gateway,
    probe: LivenessProbe,
    now: Duration,
    packets: BTreeMap<PeerId, u64>,
    /// Who acknowledges what comes, beside whatever it computes.
    answers: BTreeSet<PeerId>,
    owes: BTreeSet<PeerId>,
}

impl Scenario {
    /// Of groups that are all up; the first prefills for the others.
    fn of(groups: &[Group]) -> Self {
        let groups = groups.to_vec();
        let route = |decode: &Group| Route { prefill: groups[0].id, decode: decode.id, share: 0.5 };
        let routes = groups[1..].iter().map(route).collect();
        let up = groups.iter().map(|g| (g.id, Load::default())).collect();
        let peers: BTreeSet<PeerId> = groups.iter().flat_map(|g| &g.stages).map(|s| s.peer).collect();
        let adverts = peers.iter().map(|peer| (*peer, sample::gateway(0)));
        let view = View { up, ..lenders::view(groups, routes, adverts) };
        let config = GatewayConfig { split: SplitChoice::Always, ..GatewayConfig::default() };
        let mut scenario = Self {
            gateway: Gateway::new(config),
            probe: LivenessProbe::default(),
            now: Duration::from_secs(1),
            packets: BTreeMap::new(),
            answers: peers,
            owes: BTreeSet::new(),
        };
        scenario.tell(Event::View(view));
        scenario
    }

    /// Who speaks is heard; whom the gateway opens a stream to owes it something.
    fn tell(&mut self, event: Event) -> Vec<Action> {
        let actions = self.gateway.on_event(self.now, event);
        for action in &actions {
            if let Action::OpenDecode { leader, .. } | Action::OpenPrefill { leader, .. } = action {
                self.owes.insert(*leader);
            }
        }
        actions
    }

    /// Who decodes.
    fn submit(&mut self) -> PeerId {
        let generation = Generation {
            sampling: Sampling::greedy(),
            max_new_tokens: 300,
            stop_tokens: vec![],
            class: Default::default(),
        };
        let prompt = vec![Token(1); 4];
        let submit = Event::Submit {
            request: REQUEST,
            model: MODEL,
            prompt,
            generation,
            begun: None,
            overrule: None,
            codec: None,
        };
        match self.tell(submit)[..] {
            [Action::OpenDecode { leader, .. }] => leader,
            ref other => panic!("{other:?}"),
        }
    }

    fn decode(&mut self, event: DecodeEvent) -> Vec<Action> {
        self.tell(Event::Decode { request: REQUEST, event })
    }

    /// The answer flows, until this token is next.
    fn flow(&mut self, leader: PeerId, until: u32) {
        self.decode(DecodeEvent::Granted { cached: 0 });
        let event = PrefillEvent::First { sampled: sampled(10), computed: Computed::default(), cached: 0 };
        self.tell(Event::Prefill { request: REQUEST, event });
        self.tell(Event::Prefill { request: REQUEST, event: PrefillEvent::KvSent { bytes: 1, after: Seconds(0.0) } });
        for index in 1..until {
            assert_eq!(self.wait(STEP), [], "nothing but tokens");
            *self.packets.entry(leader).or_default() += 1;
            self.decode(DecodeEvent::Token { index, sampled: sampled(10 + index) });
        }
    }

    /// No token comes for so long, or until something is done about it: that.
    fn wait(&mut self, longest: Duration) -> Vec<Action> {
        let end = self.now + longest;
        while self.now < end {
            self.now += LOOK;
            let round_trip = Duration::from_millis(1);
            let seen = |id: &PeerId| {
                let packets = self.packets.get(id).copied().unwrap_or_default();
                (*id, TransportSign { packets, round_trip, connected: true, owes: true, unanswered: None })
            };
            let seen = self.owes.iter().map(seen).collect();
            let look = self.probe.look(self.now, &seen);
            for id in look.ask.iter().filter(|id| self.answers.contains(id)) {
                *self.packets.entry(*id).or_default() += 1;
            }
            let mut actions = Vec::new();
            if !look.unresponsive.is_empty() || !look.responsive.is_empty() {
                let peers = self.probe.unresponsive().collect();
                actions.extend(self.tell(Event::Unresponsive { peers }));
            }
            if self.gateway.deadline().is_some_and(|at| at <= self.now) {
                actions.extend(self.tell(Event::Deadline));
            }
            if !actions.is_empty() {
                return actions;
            }
        }
        Vec::new()
    }
}

fn asked(actions: &[Action]) -> Option<PeerId> {
    actions.iter().find_map(|a| if let Action::OpenDecode { leader, .. } = a { Some(*leader) } else { None })
}

#[test]
fn the_answer_of_a_stopped_peer_goes_on_elsewhere_within_a_second() {
    let decode = |n| group(n, Phase::Decode);
    let mut scenario = Scenario::of(&[group(1, Phase::Prefill), decode(2), decode(3)]);
    let leader = scenario.submit();
    scenario.flow(leader, 40);
    let stopped = scenario.now;
    scenario.answers.remove(&leader);
    let other = asked(&scenario.wait(Duration::from_secs(60)));
    assert!(other.is_some_and(|other| other != leader), "{other:?}");
    assert!(scenario.now - stopped <= Duration::from_millis(800), "{:?}", scenario.now - stopped);
}

#[test]
fn a_peer_that_computes_for_seconds_and_acknowledges_is_waited_for() {
    let decode = |n| group(n, Phase::Decode);
    let mut scenario = Scenario::of(&[group(1, Phase::Prefill), decode(2), decode(3)]);
    let leader = scenario.submit();
    scenario.flow(leader, 40);
    // A long prompt in the same batch, on a slow processor.
    assert_eq!(scenario.wait(Duration::from_millis(4900)), []);
}

#[test]
fn a_prompt_at_a_stopped_peer_is_computed_where_it_is_decoded() {
    let mut scenario = Scenario::of(&[group(1, Phase::Prefill), group(2, Phase::Decode)]);
    scenario.submit();
    scenario.answers.remove(&peer(1));
    let opened = scenario.decode(DecodeEvent::Granted { cached: 0 });
    assert!(opened.iter().any(|a| matches!(a, Action::OpenPrefill { .. })), "{opened:?}");
    let began = scenario.now;
    let actions = scenario.wait(Duration::from_secs(60));
    let here = DecodeOrder::PrefillHere { first: None };
    assert!(actions.contains(&Action::Order { request: REQUEST, order: here }), "{actions:?}");
    assert!(scenario.now - began <= Duration::from_millis(800), "{:?}", scenario.now - began);
}

#[test]
fn who_is_unresponsive_gets_nothing_new_where_another_does_the_same() {
    let decode = |n| group(n, Phase::Decode);
    for unresponsive in [2, 3] {
        let mut scenario = Scenario::of(&[group(1, Phase::Prefill), decode(2), decode(3)]);
        scenario.tell(Event::Unresponsive { peers: BTreeSet::from([peer(unresponsive)]) });
        assert_eq!(scenario.submit(), peer(5 - unresponsive));
    }
    // A member of it counts as much as its leader.
    let mut scenario = Scenario::of(&[group(1, Phase::Prefill), group_of(&[2, 4], Phase::Decode), decode(3)]);
    scenario.tell(Event::Unresponsive { peers: BTreeSet::from([peer(4)]) });
    assert_eq!(scenario.submit(), peer(3));
    // So does who decodes for who does both, whichever of them the request would have gone to.
    for (unresponsive, phases) in [(2, [Phase::Mixed, Phase::Decode]), (3, [Phase::Decode, Phase::Mixed])] {
        let [second, third] = phases;
        let groups = [group(1, Phase::Prefill), group(2, second), group(3, third)];
        let mut scenario = Scenario::of(&groups);
        scenario.tell(Event::Unresponsive { peers: BTreeSet::from([peer(unresponsive)]) });
        assert_eq!(scenario.submit(), peer(5 - unresponsive));
    }
}

#[test]
fn where_nobody_else_is_a_peer_that_is_unresponsive_is_waited_for() {
    let mut scenario = Scenario::of(&[group(1, Phase::Prefill), group(2, Phase::Decode)]);
    let leader = scenario.submit();
    scenario.flow(leader, 40);
    scenario.answers.remove(&leader);
    assert_eq!(scenario.wait(Duration::from_millis(4900)), [], "moving it gains nothing");
    let mut scenario = Scenario::of(&[group(1, Phase::Prefill), group(2, Phase::Decode)]);
    scenario.tell(Event::Unresponsive { peers: BTreeSet::from([peer(2)]) });
    assert_eq!(scenario.submit(), peer(2));
}
