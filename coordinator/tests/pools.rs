//! Scenarios of pools (Splitwise §IV-A): one group for prompts and two for answers, which lend each other room.

use crate::lenders::{self, AdvertBuilder, MODEL, group, peer};
use std::collections::BTreeMap;
use std::time::Duration;
use tsnode_coordinator::{
    gate::Overrule,
    gateway::{Action, Event, Gateway, GatewayConfig, Trace, View},
    policy::routing::Overflow,
};
use tsnode_protocol::{
    Advert, BytesPerSecond, Load, PeerId, Phase, RequestId, Route, RoutePolicy, Sampled, Sampling, Seconds, SettingKey,
    SettingValue, SwarmSetting, Token,
    stream::{Computed, DecodeEvent, DecodeRequest, End, Generation, PrefillEvent},
};

/// With batches of 256 tokens a group has more than four of them where four of these wait.
const PROMPT: u32 = 300;

fn request(n: u8) -> RequestId {
    RequestId([n; 16])
}

/// A device on which a token of a prompt takes so long (ms), of a swarm whose members have set pools.
fn advert(prompt_token: f64) -> Advert {
    let (key, value) = (SettingKey::Route { model: None }, SettingValue::Route(Some(RoutePolicy::Pools)));
    let settings = &[SwarmSetting { key, value, at: 1, by: peer(9) }];
    AdvertBuilder { prompt_step: 1e-3, prompt_token, bandwidth: Some(BytesPerSecond(1e9)), settings }.build()
}

/// Of a hundred pages the groups have so many free, and so many tokens of prompts wait there.
fn view(free: [u32; 3], pending: [u32; 3]) -> View {
    let groups = vec![group(1, Phase::Prefill), group(2, Phase::Decode), group(3, Phase::Decode)];
    let route = |i: usize| Route { prefill: groups[0].id, decode: groups[i].id, share: 0.5 };
    let routes = vec![route(1), route(2)];
    let load = |free_pages, pending_tokens| Load { free_pages, pending_tokens, total_pages: 100, ..Load::default() };
    let loads = free.into_iter().zip(pending).map(|(free, pending)| load(free, pending));
    let up = groups.iter().map(|group| group.id).zip(loads).collect();
    let adverts = [(1, 1.0), (2, 3.0), (3, 3.0)].map(|(n, token)| (peer(n), advert(token)));
    View { up, ..lenders::view(groups, routes, adverts) }
}

/// Peer 1 computes prompts, three times as fast as peers 2 and 3, which answer.
struct Scenario {
    gateway: Gateway,
}

impl Scenario {
    /// Of a hundred pages the groups have so many free.
    fn new(free: [u32; 3]) -> Self {
        let mut gateway = Gateway::new(GatewayConfig::default());
        gateway.on_event(Duration::ZERO, Event::View(view(free, [0; 3])));
        Self { gateway }
    }

    fn tell(&mut self, event: Event) -> Vec<Action> {
        self.gateway.on_event(Duration::ZERO, event)
    }

    /// Who is asked to answer a new request, and whether it is sent the prompt's KV.
    fn ask(&mut self, n: u8, overrule: Option<Overrule>) -> (PeerId, bool) {
        let generation = Generation {
            sampling: Sampling::greedy(),
            max_new_tokens: 9,
            stop_tokens: vec![],
            class: Default::default(),
        };
        let (request, prompt) = (request(n), (0..PROMPT).map(Token).collect());
        let submit = Event::Submit { request, model: MODEL, prompt, generation, begun: None, overrule, codec: None };
        let (leader, open) = opened(&self.tell(submit));
        (leader, open.await_kv)
    }

    /// Its prompt is computed: by the group that answers, or by the one that sends its KV.
    fn first_token(&mut self, n: u8, is_sent: bool) {
        let (request, sampled) = (request(n), Sampled { token: Token(7), logprob: None, top: vec![] });
        self.tell(Event::Decode { request, event: DecodeEvent::Granted { cached: 0 } });
        if is_sent {
            let computed = Computed { queued: Seconds(0.0), took: Seconds(0.3) };
            self.tell(Event::Prefill { request, event: PrefillEvent::First { sampled, computed, cached: 0 } });
            self.tell(Event::Prefill { request, event: PrefillEvent::KvSent { bytes: 1, after: Seconds(0.1) } });
        } else {
            self.tell(Event::Decode { request, event: DecodeEvent::Token { index: 0, sampled } });
        }
    }

    fn end(&mut self, n: u8) -> Trace {
        let actions = self.tell(Event::Decode { request: request(n), event: DecodeEvent::End(End::Stop) });
        let trace = |action: &Action| match action {
            Action::Trace(trace) => Some((**trace).clone()),
            _ => None,
        };
        actions.iter().find_map(trace).unwrap_or_else(|| panic!("{actions:?}"))
    }
}

fn opened(actions: &[Action]) -> (PeerId, DecodeRequest) {
    let open = |action: &Action| match action {
        Action::OpenDecode { leader, open, .. } => Some((*leader, open.clone())),
        _ => None,
    };
    actions.iter().find_map(open).unwrap_or_else(|| panic!("{actions:?}"))
}

#[test]
fn a_burst_overflows_into_a_group_for_answers_which_returns_when_its_prompts_are_done() {
    let mut scenario = Scenario::new([100; 3]);
    assert_eq!([1, 2, 3].map(|n| scenario.ask(n, None)), [(peer(2), true), (peer(3), true), (peer(2), true)]);
    // 900 tokens wait and 1,024 may: the fourth has both of its parts where the fewest answers are.
    assert_eq!([4, 5].map(|n| scenario.ask(n, None)), [(peer(3), false); 2]);
    for n in [1, 2, 3] {
        scenario.tell(Event::Cancel { request: request(n) });
    }
    assert_eq!(scenario.ask(6, None), (peer(2), true), "the burst is over; who is on loan comes last");
    assert_eq!(scenario.ask(7, None).0, peer(2));
    [4, 5].into_iter().for_each(|n| scenario.first_token(n, false));
    let trace = scenario.end(4);
    assert_eq!((trace.overflow, trace.prefill, trace.decode), (Some(Overflow::Prompts), peer(3), peer(3)));
    assert!(trace.reason.starts_with("overflow: the queues of all groups for prompts"), "{}", trace.reason);
    assert_eq!(scenario.ask(8, None).0, peer(3), "it is one of its pool again");
}

#[test]
fn where_answers_have_no_memory_the_group_for_prompts_answers_too() {
    let mut scenario = Scenario::new([100, 0, 0]);
    assert_eq!(scenario.ask(1, None), (peer(1), false));
    assert_eq!(scenario.ask(2, Some(Overrule::Sent(None))), (peer(2), true), "its client wants it sent");
    scenario.first_token(1, false);
    assert_eq!(scenario.end(1).overflow, Some(Overflow::Answers));
}

#[test]
fn what_goes_on_with_its_tokens_is_lent_nothing() {
    let mut scenario = Scenario::new([100; 3]);
    assert_eq!(scenario.ask(1, None), (peer(2), true));
    scenario.first_token(1, true);
    // It is lost, and for a while nobody is up who would go on with it.
    scenario.tell(Event::View(View { up: BTreeMap::new(), ..view([100; 3], [0; 3]) }));
    scenario.tell(Event::DecodeLost { request: request(1), reason: "cut".into() });
    let (_, open) = opened(&scenario.tell(Event::View(view([100; 3], [5000, 10, 20]))));
    assert_eq!(open.answered, [Token(7)]);
    assert_eq!(scenario.end(1).overflow, None);
    // Its first token was there before: of a loan for it nobody would say that it is over.
    scenario.tell(Event::View(view([100; 3], [0, 50, 90])));
    assert_eq!(scenario.ask(2, None).0, peer(2), "no group is on loan");
}

#[test]
fn what_was_sent_since_counts_as_taken() {
    // 1 % of 131,072 tokens is 1,310: four prompts of 301 tokens fit, and each of two groups takes as many.
    let mut scenario = Scenario::new([100, 1, 1]);
    let mut to_prompts = 0;
    for n in 1..=10 {
        let (leader, is_sent) = scenario.ask(n, None);
        scenario.first_token(n, is_sent);
        to_prompts += u32::from(leader == peer(1));
        assert!((leader == peer(1)) == (n > 8), "request {n} went to {leader}");
    }
    assert_eq!(to_prompts, 2);
}
