//! Scenarios of answers that lose their group, and go on where that is predicted to be soonest: with KV that a prefill group has
//! still, with what a decode group has computed of it before, or with all of it computed anew.
#![expect(clippy::unwrap_used, reason = "a scenario that cannot be run fails")]

use crate::lenders::{self, AdvertBuilder, MODEL, group, peer};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tsnode_coordinator::{
    gate::Overrule,
    gateway::{Action, Begun, Event, Gateway, GatewayConfig, Resumption, View},
};
use tsnode_protocol::{
    Advert, BytesPerSecond, Group, GroupId, KvCodec, Load, PeerId, Phase, PromptLogprob, RequestId, Route, Sampled,
    Sampling, Token,
    stream::{Computed, DecodeEvent, DecodeRequest, Generation, PrefillEvent},
};

/// Tokens of a prompt: 0.64 s on any device, and 1.3 MB of KV.
const PROMPT: u32 = 640;
const FAST: BytesPerSecond = BytesPerSecond(1e9);
const SLOW: BytesPerSecond = BytesPerSecond(1e5);

/// A device on which a token of a prompt takes a millisecond, with links of that speed to all others.
fn advert(bandwidth: BytesPerSecond) -> Advert {
    AdvertBuilder { bandwidth: Some(bandwidth), ..AdvertBuilder::default() }.build()
}

/// Prefill groups of peers 1 and 5, decode groups of peers 2, 3 and 4, every pair with the same share; the gate is asked.
struct Scenario {
    gateway: Gateway,
    view: View,
    now: Duration,
}

impl Scenario {
    fn new() -> Self {
        let prefill = [1, 5].map(|n| group(n, Phase::Prefill));
        let decode = [2, 3, 4].map(|n| group(n, Phase::Decode));
        let pair = |p: &Group, d: &Group| Route { prefill: p.id, decode: d.id, share: 1.0 / 6.0 };
        let routes = prefill.iter().flat_map(|p| decode.iter().map(move |d| pair(p, d))).collect();
        let groups: Vec<Group> = prefill.iter().chain(&decode).cloned().collect();
        let view = lenders::view(groups, routes, (1..6).map(|n| (peer(n), advert(FAST))));
        let mut scenario = Self { gateway: Gateway::new(GatewayConfig::default()), view, now: Duration::ZERO };
        scenario.up(&[1, 2, 3, 4, 5], 0);
        scenario
    }

    /// These peers' groups are up; each runs so many sequences.
    fn up(&mut self, peers: &[u8], running: u32) {
        let load = Load { running, ..Load::default() };
        self.loads(peers.iter().map(|n| (*n, load)));
    }

    fn loads(&mut self, loads: impl IntoIterator<Item = (u8, Load)>) {
        let loads: BTreeMap<PeerId, Load> = loads.into_iter().map(|(n, load)| (peer(n), load)).collect();
        let groups = self.view.plan.iter().flat_map(|p| &p.groups);
        let up = groups.filter_map(|g| Some((g.id, *loads.get(&g.leader()?)?)));
        self.view.up = up.collect();
        self.tell(Event::View(self.view.clone()));
    }

    fn tell(&mut self, event: Event) -> Vec<Action> {
        self.gateway.on_event(self.now, event)
    }

    fn submit(&mut self, request: RequestId, begun: Option<Begun>) -> (PeerId, DecodeRequest) {
        let generation = Generation {
            sampling: Sampling::greedy(),
            max_new_tokens: 9,
            stop_tokens: vec![],
            class: Default::default(),
        };
        let prompt = (0..PROMPT).map(Token).collect();
        opened(&self.tell(Event::Submit {
            request,
            model: MODEL,
            prompt,
            generation,
            begun,
            overrule: None,
            codec: None,
        }))
    }

    fn decode(&mut self, request: RequestId, event: DecodeEvent) -> Vec<Action> {
        self.tell(Event::Decode { request, event })
    }

    /// A prefill group has the first token, and had so much of the prompt.
    fn first(&mut self, request: RequestId, cached: u32) -> Vec<Action> {
        let sampled = Sampled { token: Token(700), logprob: None, top: vec![] };
        let event = PrefillEvent::First { sampled, computed: Computed::default(), cached };
        self.tell(Event::Prefill { request, event })
    }

    /// The answer ends; how it went on after each of its moves.
    fn ways(&mut self, request: RequestId) -> Vec<Option<Resumption>> {
        let actions = self.decode(request, DecodeEvent::End(tsnode_protocol::stream::End::Stop));
        let trace = actions.into_iter().find_map(|a| if let Action::Trace(trace) = a { Some(trace) } else { None });
        trace.unwrap().moves.iter().map(|m| m.way).collect()
    }

    fn token(&mut self, request: RequestId, index: u32) -> Vec<Action> {
        let sampled = Sampled { token: Token(700 + index), logprob: None, top: vec![] };
        self.decode(request, DecodeEvent::Token { index, sampled })
    }

    /// The group that decodes it ends without a word; where it goes on.
    fn lost(&mut self, request: RequestId) -> (PeerId, DecodeRequest) {
        opened(&self.tell(Event::DecodeLost { request, reason: "reset".into() }))
    }

    /// An answer of two tokens from `decode` alone.
    fn served_by(&mut self, request: RequestId, decode: u8) {
        self.up(&[decode], 0);
        let (leader, open) = self.submit(request, None);
        assert_eq!((leader, open.await_kv), (peer(decode), false));
        self.decode(request, DecodeEvent::Granted { cached: 0 });
        self.token(request, 0);
        self.token(request, 1);
    }

    /// An answer of one token whose prompt `prefill` computed for `decode`, which had much else to do.
    fn split(&mut self, request: RequestId, prefill: u8, decode: u8) {
        self.loads([(prefill, Load::default()), (decode, Load { running: 3, ..Load::default() })]);
        let (leader, open) = self.submit(request, None);
        assert_eq!((leader, open.await_kv), (peer(decode), true));
        self.decode(request, DecodeEvent::Granted { cached: 0 });
        let actions = self.first(request, 0);
        let told = |a: &Action| matches!(a, Action::Settled { holder: Some(id), .. } if *id == group(prefill, Phase::Prefill).id);
        assert!(actions.iter().any(told), "{actions:?}");
    }

    /// Whom it asks for the prompt once there are pages.
    fn prefills(&mut self, request: RequestId) -> Option<PeerId> {
        let actions = self.decode(request, DecodeEvent::Granted { cached: 0 });
        actions.iter().find_map(|a| if let Action::OpenPrefill { leader, .. } = a { Some(*leader) } else { None })
    }
}

fn opened(actions: &[Action]) -> (PeerId, DecodeRequest) {
    match actions.last() {
        Some(Action::OpenDecode { leader, open, .. }) => (*leader, open.clone()),
        other => panic!("{other:?}"),
    }
}

fn id(n: u8) -> RequestId {
    RequestId([n; 16])
}

#[test]
fn an_answer_goes_on_from_kv_that_a_prefill_group_has_still() {
    for holder in [1, 5] {
        let mut scenario = Scenario::new();
        scenario.split(id(1), holder, 2);
        scenario.up(&[1, 3, 4, 5], 0);
        // Computing it anew takes 640 ms anywhere, sending what is there a few.
        let (_, open) = scenario.lost(id(1));
        assert!(open.await_kv);
        assert_eq!(scenario.prefills(id(1)), Some(peer(holder)));
    }
}

#[test]
fn an_answer_goes_on_where_its_prompt_was_computed_before() {
    for cached in [3, 4] {
        let mut scenario = Scenario::new();
        scenario.served_by(id(1), cached);
        scenario.decode(id(1), DecodeEvent::End(tsnode_protocol::stream::End::Stop));
        scenario.served_by(id(2), 2);
        scenario.up(&[1, 3, 4, 5], 0);
        let (leader, open) = scenario.lost(id(2));
        assert_eq!((leader, open.await_kv, open.answered.len()), (peer(cached), false, 2));
        // It has let go of it meanwhile, and says so: nobody counts with it again.
        scenario.decode(id(2), DecodeEvent::Granted { cached: 0 });
        scenario.up(&[1, 2, 3, 4, 5], 0);
        scenario.served_by(id(3), 2);
        scenario.loads([1, 2, 3, 4, 5].map(|n| (n, Load { running: u32::from(n == cached), ..Load::default() })));
        assert_ne!(scenario.lost(id(3)).0, peer(cached));
    }
}

#[test]
fn an_answer_is_computed_anew_by_who_has_least_to_do_where_that_is_sooner_than_what_others_have() {
    for (busy, idle) in [(3, 4), (4, 3)] {
        let mut scenario = Scenario::new();
        scenario.split(id(1), 1, 2);
        // What the prefill group has would take seconds to anybody else.
        *Arc::make_mut(&mut scenario.view.adverts).get_mut(&peer(1)).unwrap() = advert(SLOW);
        scenario.loads([1, 3, 4, 5].map(|n| (n, Load { running: 2 * u32::from(n == busy), ..Load::default() })));
        let (leader, open) = scenario.lost(id(1));
        assert_eq!((leader, open.await_kv), (peer(idle), false));
    }
}

/// KV that went through a codec is not what groups keep: an answer that rests on it does not begin with that.
#[test]
fn what_a_group_has_exactly_is_of_no_use_to_an_answer_that_rests_on_packed_kv() {
    let mut scenario = Scenario::new();
    scenario.served_by(id(1), 3);
    scenario.split(id(2), 1, 2);
    scenario.up(&[1, 3, 4, 5], 0);
    let (_, open) = scenario.lost(id(2));
    assert_eq!((open.await_kv, open.codec), (true, KvCodec::Int4.into()));
}

#[test]
fn an_answer_begun_at_another_gateway_goes_on_from_the_kv_it_names() {
    for holder in [1, 5] {
        let mut scenario = Scenario::new();
        let begun = |holder| Begun { codec: KvCodec::Int4.into(), holder, answer: vec![Token(700)] };
        let named = Some(group(holder, Phase::Prefill).id);
        let (_, open) = scenario.submit(id(1), Some(begun(named)));
        assert!(open.await_kv);
        assert_eq!(scenario.prefills(id(1)), Some(peer(holder)));
        // What is named may be nothing that there is.
        for named in [None, Some(GroupId([99; 8]))] {
            let (_, open) = scenario.submit(id(if named.is_some() { 2 } else { 3 }), Some(begun(named)));
            assert!(!open.await_kv);
        }
    }
}

/// One whose peer has gone, or whose ring broke, keeps nothing.
#[test]
fn a_prefill_group_that_breaks_off_is_not_counted_with() {
    let mut scenario = Scenario::new();
    scenario.split(id(1), 1, 2);
    scenario.tell(Event::PrefillLost { request: id(1), reason: "reset".into() });
    scenario.up(&[1, 3, 4, 5], 0);
    assert!(!scenario.lost(id(1)).1.await_kv);
}

/// Groups give up a gateway that is stopped, or whose host sleeps, and keep what they computed for it.
#[test]
fn a_gateway_that_slept_goes_back_to_the_group_that_has_its_answer() {
    let awake = Duration::from_secs(20);
    for (slept, lost_after) in [(false, 0), (true, 0), (true, 9), (true, 10)] {
        let mut scenario = Scenario::new();
        scenario.served_by(id(1), 2);
        scenario.up(&[1, 2, 3, 4, 5], 0);
        scenario.now = awake;
        if slept {
            scenario.tell(Event::Woke);
        }
        scenario.now = awake + Duration::from_secs(lost_after);
        let (leader, open) = scenario.lost(id(1));
        let goes_back = slept && lost_after < 10;
        assert_eq!((leader == peer(2), open.answered.len()), (goes_back, 2), "{slept}, {lost_after} s");
        if goes_back {
            assert!(!open.await_kv);
            assert_ne!(scenario.lost(id(1)).0, peer(2), "once: now it is the group's doing");
        }
    }
}

/// One that is stopped again and again, as by whoever debugs it, has new lines that are from before it slept.
#[test]
fn a_gateway_that_sleeps_again_goes_back_again_only_to_who_went_on() {
    for goes_on in [false, true] {
        let mut scenario = Scenario::new();
        scenario.served_by(id(1), 2);
        scenario.up(&[1, 2, 3, 4, 5], 0);
        scenario.now = Duration::from_secs(20);
        scenario.tell(Event::Woke);
        assert_eq!(scenario.lost(id(1)).0, peer(2));
        if goes_on {
            scenario.decode(id(1), DecodeEvent::Granted { cached: 0 });
            scenario.token(id(1), 2);
        }
        scenario.now = Duration::from_secs(40);
        scenario.tell(Event::Woke);
        assert_eq!(scenario.lost(id(1)).0 == peer(2), goes_on);
    }
}

#[test]
fn a_gateway_that_slept_counts_with_what_a_prefill_group_has_and_not_with_one_that_is_gone() {
    for is_gone in [false, true] {
        let mut scenario = Scenario::new();
        scenario.split(id(1), 1, 2);
        scenario.now = Duration::from_secs(20);
        scenario.tell(Event::Woke);
        if is_gone {
            Arc::make_mut(&mut scenario.view.adverts).remove(&peer(1));
            scenario.tell(Event::View(scenario.view.clone()));
        } else {
            scenario.tell(Event::PrefillLost { request: id(1), reason: "timed out".into() });
        }
        scenario.up(&[1, 3, 4, 5], 0);
        assert_eq!(scenario.lost(id(1)).1.await_kv, !is_gone);
    }
}

#[test]
fn a_trace_says_how_each_move_went_on_by_what_the_groups_had() {
    for (cached, way) in [(PROMPT - 1, Resumption::Kept), (PROMPT / 2, Resumption::Anew)] {
        let mut scenario = Scenario::new();
        scenario.split(id(1), 1, 2);
        scenario.up(&[1, 3, 4, 5], 0);
        assert!(scenario.lost(id(1)).1.await_kv);
        assert_eq!(scenario.prefills(id(1)), Some(peer(1)));
        scenario.first(id(1), cached);
        assert_eq!(scenario.ways(id(1)), [Some(way)]);
    }
    for (cached, way) in [(PROMPT, Resumption::Cached), (16, Resumption::Anew)] {
        let mut scenario = Scenario::new();
        scenario.served_by(id(1), 2);
        scenario.up(&[3, 4], 0);
        // Nobody takes it up before the group is lost, too: of that move nothing is known.
        assert!(!scenario.lost(id(1)).1.await_kv);
        assert!(!scenario.lost(id(1)).1.await_kv);
        scenario.decode(id(1), DecodeEvent::Granted { cached });
        assert_eq!(scenario.ways(id(1)), [None, Some(way)]);
    }
    // A prefill group that fails leaves all of it to the one that decodes.
    let mut scenario = Scenario::new();
    scenario.split(id(1), 1, 2);
    scenario.up(&[1, 3, 4, 5], 0);
    scenario.lost(id(1));
    scenario.prefills(id(1));
    scenario.tell(Event::Prefill { request: id(1), event: PrefillEvent::Failed("no".into()) });
    assert_eq!(scenario.ways(id(1)), [Some(Resumption::Anew)]);
}

/// Log-probabilities of its prompt are told once, from wherever they come; and never by who prefills for another.
#[test]
fn what_is_said_of_a_prompt_is_said_once_though_groups_are_lost() {
    let (mut scenario, request) = (Scenario::new(), RequestId([3; 16]));
    let sampling = Sampling { prompt_logprobs: Some(1), ..Sampling::greedy() };
    let generation = Generation { sampling, max_new_tokens: 9, stop_tokens: vec![], class: Default::default() };
    let prompt: Vec<Token> = (0..PROMPT).map(Token).collect();
    let (_, open) = opened(&scenario.tell(Event::Submit {
        request,
        model: MODEL,
        prompt,
        generation,
        begun: None,
        overrule: Some(Overrule::Sent(None)),
        codec: None,
    }));
    assert!(!open.await_kv && open.generation.sampling.prompt_logprobs == Some(1));
    let part = |from: u32, to: u32| {
        let one = |place| PromptLogprob { logprob: -(place as f32), rank: 1, top: vec![] };
        DecodeEvent::PromptLogprobs { from, logprobs: (from..to).map(one).collect() }
    };
    let told = |actions: Vec<Action>| -> Vec<f32> {
        let all = actions.into_iter().map(|action| match action {
            Action::PromptLogprobs { logprobs, .. } => logprobs.iter().map(|one| one.logprob).collect(),
            _ => Vec::new(),
        });
        all.flatten().collect()
    };
    scenario.decode(request, DecodeEvent::Granted { cached: 0 });
    let mut all = told(scenario.decode(request, part(0, 400)));
    let (_, again) = scenario.lost(request);
    assert_eq!(again.generation.sampling.prompt_logprobs, Some(1));
    scenario.decode(request, DecodeEvent::Granted { cached: 0 });
    all.extend(told(scenario.decode(request, part(0, 400))));
    all.extend(told(scenario.decode(request, part(400, PROMPT - 1))));
    assert_eq!(all, (0..PROMPT - 1).map(|place| -(place as f32)).collect::<Vec<_>>());
    scenario.token(request, 0);
    let (_, last) = scenario.lost(request);
    assert_eq!((last.generation.sampling.prompt_logprobs, last.answered.len()), (None, 1));
}

/// A group that answers without them has not done what it was asked: another does.
#[test]
fn who_says_nothing_of_a_prompt_is_left() {
    let (mut scenario, request) = (Scenario::new(), RequestId([3; 16]));
    let sampling = Sampling { prompt_logprobs: Some(1), ..Sampling::greedy() };
    let generation = Generation { sampling, max_new_tokens: 0, stop_tokens: vec![], class: Default::default() };
    let prompt = (0..PROMPT).map(Token).collect();
    let submit = Event::Submit { request, model: MODEL, prompt, generation, begun: None, overrule: None, codec: None };
    let (first, _) = opened(&scenario.tell(submit));
    scenario.decode(request, DecodeEvent::Granted { cached: 0 });
    let (other, _) = opened(&scenario.decode(request, DecodeEvent::End(tsnode_protocol::stream::End::Length)));
    assert_ne!(first, other);
}
