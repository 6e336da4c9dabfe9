//! A gateway, and a view of groups that do as they are told.

pub use crate::lenders::{MODEL, group, group_of};

use crate::lenders::{self, AdvertBuilder};
use std::sync::Arc;
use std::time::Duration;
use tsnode_coordinator::{
    gate::SplitChoice,
    gateway::{Action, Event, Gateway, GatewayConfig, View},
    sample,
};
use tsnode_protocol::{
    Advert, Group, Load, PeerId, Phase, RequestId, Route, Sampled, Sampling, Token,
    stream::{Computed, DecodeEvent, End, Generation, PrefillEvent},
};

pub const REQUEST: RequestId = RequestId([5; 16]);

pub fn sampled(n: u32) -> Sampled {
    Sampled { token: Token(n), logprob: None, top: vec![] }
}

pub struct Scenario {
    pub gateway: Gateway,
    pub now: Duration,
    pub view: View,
}

impl Scenario {
    /// One prefill group (peer 1) and two decode groups (peers 2 and 3), all up.
    pub fn new() -> Self {
        Self::of([group(1, Phase::Prefill), group(2, Phase::Decode), group(3, Phase::Decode)])
    }

    /// One prefill group and two decode groups, all up.
    pub fn of(groups: [Group; 3]) -> Self {
        let groups = groups.to_vec();
        let route = |i: usize| Route { prefill: groups[0].id, decode: groups[i].id, share: 0.5 };
        let routes = vec![route(1), route(2)];
        let up = groups.iter().map(|g| (g.id, Load::default())).collect();
        let peers: Vec<PeerId> = groups.iter().flat_map(|g| &g.stages).map(|s| s.peer).collect();
        let adverts = peers.into_iter().map(|peer| (peer, sample::gateway(0)));
        let config = GatewayConfig { split: SplitChoice::Always, ..GatewayConfig::default() };
        let view = View { up, ..lenders::view(groups, routes, adverts) };
        let mut scenario = Self { gateway: Gateway::new(config), now: Duration::ZERO, view: view.clone() };
        scenario.tell(Event::View(view));
        scenario
    }

    /// The swarm loses a peer.
    pub fn lose(&mut self, peer: PeerId) -> Vec<Action> {
        Arc::make_mut(&mut self.view.adverts).remove(&peer);
        let lost = |id: &tsnode_protocol::GroupId| {
            let group = self.view.plan.as_ref().and_then(|p| p.group(*id));
            group.and_then(Group::leader) == Some(peer)
        };
        let gone: Vec<_> = self.view.up.keys().copied().filter(lost).collect();
        for id in gone {
            self.view.up.remove(&id);
        }
        self.tell(Event::View(self.view.clone()))
    }

    pub fn tell(&mut self, event: Event) -> Vec<Action> {
        self.gateway.on_event(self.now, event)
    }

    pub fn submit(&mut self) -> (PeerId, Vec<Action>) {
        let generation = Generation {
            sampling: Sampling::greedy(),
            max_new_tokens: 3,
            stop_tokens: vec![],
            class: Default::default(),
        };
        let actions = self.tell(Event::Submit {
            request: REQUEST,
            model: MODEL,
            prompt: vec![Token(1); 4],
            generation,
            begun: None,
            overrule: None,
            codec: None,
        });
        match &actions[..] {
            [Action::OpenDecode { leader, open, .. }] => {
                assert!(open.await_kv);
                (*leader, actions)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Nobody says anything until something is done about it; what that is, and how long it took.
    pub fn silence(&mut self) -> (Vec<Action>, Duration) {
        let since = self.now;
        loop {
            self.now = self.gateway.deadline().unwrap();
            let actions = self.tell(Event::Deadline);
            if !actions.is_empty() {
                return (actions, self.now - since);
            }
        }
    }

    pub fn decode(&mut self, event: DecodeEvent) -> Vec<Action> {
        self.tell(Event::Decode { request: REQUEST, event })
    }

    pub fn token(&mut self, index: u32) -> Vec<Action> {
        self.decode(DecodeEvent::Token { index, sampled: sampled(10 + index) })
    }

    pub fn first(&mut self) -> Vec<Action> {
        let event = PrefillEvent::First { sampled: sampled(10), computed: Computed::default(), cached: 0 };
        self.tell(Event::Prefill { request: REQUEST, event })
    }
}

pub fn ends(actions: &[Action]) -> Option<&End> {
    actions.iter().find_map(|a| if let Action::End { end, .. } = a { Some(end) } else { None })
}

/// Every device is measured: a prompt's token takes a millisecond on all four layers, a step two.
pub fn measured() -> Advert {
    Advert { models: vec![], ..AdvertBuilder::default().build() }
}
