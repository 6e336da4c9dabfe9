//! Stories of a gateway, its clients and the groups that serve them.
#![expect(clippy::unwrap_used, reason = "a story that cannot be told fails")]

use std::sync::Arc;
use std::time::Duration;
use tsnode_coordinator::{
    gate::{Overrule, SplitChoice},
    gateway::{Action, Begun, Event, Gateway, GatewayConfig, View},
    sample,
};
use tsnode_protocol::{
    Advert, BytesPerSecond, Device, DeviceKind, Epoch, FlopsPerSecond, Group, KvCodec, LayerProfile, LayerRange, Load,
    Misfit, ModelCard, ModelId, PeerId, Phase, Plan, RequestId, Route, Sampled, Sampling, Seconds, Stage, Term, Token,
    kv::{Delivery, KvPace},
    stream::{Computed, DecodeEvent, DecodeOrder, End, Generation, PrefillEvent},
};

const MODEL: ModelId = ModelId([1; 16]);
const REQUEST: RequestId = RequestId([5; 16]);

fn group(n: u8, phase: Phase) -> Group {
    long_group(&[n], phase)
}

/// A group whose stages are these peers', with four layers in all.
fn long_group(peers: &[u8], phase: Phase) -> Group {
    let each = 4 / peers.len() as u32;
    let layers = |i: usize| LayerRange { start: i as u32 * each, end: (i as u32 + 1) * each };
    let stage = |(i, n): (usize, &u8)| Stage { peer: PeerId([*n; 32]), device: 0, layers: layers(i) };
    Group::new(MODEL, phase, peers.iter().enumerate().map(stage).collect())
}

fn sampled(n: u32) -> Sampled {
    Sampled { token: Token(n), logprob: None, top: vec![] }
}

struct Story {
    gateway: Gateway,
    now: Duration,
    view: View,
}

fn advert() -> Advert {
    Advert {
        name: "peer".into(),
        version: "0".into(),
        addresses: vec![],
        data_addresses: vec![],
        devices: vec![],
        models: vec![],
        links: vec![],
        reachable: true,
        encoders: vec![],
        invites: vec![],
        traffic: vec![],
        settings: vec![],
    }
}

impl Story {
    /// One prefill group (peer 1) and two decode groups (peers 2 and 3), all up.
    fn new() -> Self {
        Self::of([group(1, Phase::Prefill), group(2, Phase::Decode), group(3, Phase::Decode)])
    }

    /// One prefill group and two decode groups, all up.
    fn of(groups: [Group; 3]) -> Self {
        let groups = groups.to_vec();
        let route = |i: usize| Route { prefill: groups[0].id, decode: groups[i].id, share: 0.5 };
        let routes = vec![route(1), route(2)];
        let up = groups.iter().map(|g| (g.id, Load::default())).collect();
        let adverts = groups.iter().flat_map(|g| &g.stages).map(|s| (s.peer, advert())).collect();
        let plan = Plan { epoch: Epoch(1), term: Term(0), parent: None, groups, routes, reason: String::new() };
        let config = GatewayConfig { split: SplitChoice::Always, ..GatewayConfig::default() };
        let view = View { plan: Some(Arc::new(plan)), up, adverts: Arc::new(adverts), ..View::default() };
        let mut story = Self { gateway: Gateway::new(config), now: Duration::ZERO, view: view.clone() };
        story.tell(Event::View(view));
        story
    }

    /// The swarm loses a peer.
    fn lose(&mut self, peer: PeerId) -> Vec<Action> {
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

    fn tell(&mut self, event: Event) -> Vec<Action> {
        self.gateway.on_event(self.now, event)
    }

    fn submit(&mut self) -> (PeerId, Vec<Action>) {
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
    fn silence(&mut self) -> (Vec<Action>, Duration) {
        let since = self.now;
        loop {
            self.now = self.gateway.deadline().unwrap();
            let actions = self.tell(Event::Deadline);
            if !actions.is_empty() {
                return (actions, self.now - since);
            }
        }
    }

    fn decode(&mut self, event: DecodeEvent) -> Vec<Action> {
        self.tell(Event::Decode { request: REQUEST, event })
    }

    fn token(&mut self, index: u32) -> Vec<Action> {
        self.decode(DecodeEvent::Token { index, sampled: sampled(10 + index) })
    }

    fn first(&mut self) -> Vec<Action> {
        let event = PrefillEvent::First { sampled: sampled(10), computed: Computed::default(), cached: 0 };
        self.tell(Event::Prefill { request: REQUEST, event })
    }
}

fn ends(actions: &[Action]) -> Option<&End> {
    actions.iter().find_map(|a| if let Action::End { end, .. } = a { Some(end) } else { None })
}

#[test]
fn a_prompt_goes_to_one_group_and_its_answer_comes_from_another() {
    let mut story = Story::new();
    let (decode, _) = story.submit();
    let actions = story.decode(DecodeEvent::Granted { cached: 0 });
    let prefill = PeerId([1; 32]);
    assert_eq!(actions[0], Action::Accepted { request: REQUEST, prefill, decode });
    assert!(
        matches!(&actions[1], Action::OpenPrefill { leader, open, .. } if *leader == prefill && open.targets.len() == 1)
    );
    let order = DecodeOrder::Begin(Token(10));
    assert_eq!(
        story.first(),
        [
            Action::Settled {
                request: REQUEST,
                codec: KvCodec::Int4.into(),
                holder: Some(group(1, Phase::Prefill).id)
            },
            Action::Token { request: REQUEST, index: 0, sampled: sampled(10) },
            Action::Order { request: REQUEST, order }
        ]
    );
    // The answer may end before the prefill side says that its KV was confirmed: whoever decodes knows what came.
    let none = Seconds(0.0);
    let (pack, pack_tail, wire, unpack, unpack_tail) = (none, none, none, none, none);
    let bytes = 77;
    let delivery =
        Delivery { from: prefill, to: decode, bytes, tiles: 1, streams: 1, pack, pack_tail, wire, unpack, unpack_tail };
    // A leader may speak of others' work, and say it over and over.
    let stranger = Delivery { from: PeerId([99; 32]), ..delivery };
    story.decode(DecodeEvent::KvArrived { after: Seconds(0.2), deliveries: vec![stranger, delivery] });
    for _ in 0..100 {
        story.decode(DecodeEvent::KvArrived { after: Seconds(0.2), deliveries: vec![stranger; 1000] });
    }
    assert_eq!(story.token(1), [Action::Token { request: REQUEST, index: 1, sampled: sampled(11) }]);
    let actions = story.decode(DecodeEvent::End(End::Length));
    assert_eq!(ends(&actions), Some(&End::Length));
    let Some(Action::Trace(trace)) = actions.iter().find(|a| matches!(a, Action::Trace(_))) else { panic!("no trace") };
    assert_eq!((trace.prefill, trace.decode, trace.kv_bytes, trace.new_tokens), (prefill, decode, bytes, 2));
    assert_eq!((&trace.deliveries[..], trace.kv_codec), (&[delivery][..], Some(KvCodec::Int4)));
    assert_eq!(story.gateway.open_requests(), 0);
}

#[test]
fn what_clients_ask_for_is_said_when_there_is_enough_of_it() {
    let mut story = Story::new();
    for _ in 0..100 {
        assert_eq!(story.gateway.traffic(story.now), []);
        story.now += Duration::from_secs(1);
        story.submit();
        story.decode(DecodeEvent::Granted { cached: 0 });
        story.first();
        story.token(1);
        story.decode(DecodeEvent::End(End::Length));
    }
    let said = story.gateway.traffic(story.now);
    let lengths = said.iter().map(|t| (t.model, t.prompts, t.answers)).collect::<Vec<_>>();
    assert_eq!(lengths, [(MODEL, [4; 16], [2; 16])]);
    assert!((said[0].rate - 1.0).abs() < 1e-9, "{said:?}");
}

#[test]
fn a_prefill_that_dies_is_done_by_the_decode_side() {
    for first_came in [false, true] {
        let mut story = Story::new();
        let (decode, _) = story.submit();
        story.decode(DecodeEvent::Granted { cached: 0 });
        if first_came {
            story.first();
        }
        let actions = story.tell(Event::PrefillLost { request: REQUEST, reason: "died".into() });
        let order = DecodeOrder::PrefillHere { first: first_came.then_some(Token(10)) };
        assert!(actions.contains(&Action::Order { request: REQUEST, order }), "{actions:?}");
        // Token 0 may come again; the client must see it once.
        let seen = story.token(0).len();
        assert_eq!(seen, 2 * usize::from(!first_came), "the token, and what it rests on");
        story.token(1);
        let actions = story.decode(DecodeEvent::End(End::Length));
        let Some(Action::Trace(trace)) = actions.iter().find(|a| matches!(a, Action::Trace(_))) else { panic!() };
        assert_eq!((trace.prefill, trace.kv_bytes), (decode, 0));
    }
}

#[test]
fn a_refusal_is_taken_elsewhere_until_nobody_is_left() {
    let mut story = Story::new();
    let (one, _) = story.submit();
    let actions = story.decode(DecodeEvent::Refused("full".into()));
    let Some(Action::OpenDecode { leader: other, .. }) = actions.last() else { panic!("{actions:?}") };
    assert_ne!(one, *other);
    // The prefill group holds all layers too.
    let actions = story.decode(DecodeEvent::Refused("full".into()));
    assert!(matches!(actions.last(), Some(Action::OpenDecode { leader, .. }) if *leader == PeerId([1; 32])));
    let actions = story.decode(DecodeEvent::Refused("full".into()));
    assert!(matches!(actions.last(), Some(Action::Unserved { reason, .. }) if reason == "full"), "{actions:?}");
    assert_eq!(story.gateway.open_requests(), 0);
}

/// However a group fails an answer, another goes on with the tokens the client has, and with the same packing.
#[test]
fn an_answer_goes_on_elsewhere() {
    let lost = |reason: &str| Event::DecodeLost { request: REQUEST, reason: reason.into() };
    let failed = Event::Decode { request: REQUEST, event: DecodeEvent::End(End::Failed("ring broke".into())) };
    let gap = Event::Decode { request: REQUEST, event: DecodeEvent::Token { index: 5, sampled: sampled(15) } };
    for failure in [lost("reset"), failed, gap] {
        let mut story = Story::new();
        let (decode, actions) = story.submit();
        let Some(Action::OpenDecode { open: before, .. }) = actions.last() else { panic!("{actions:?}") };
        story.decode(DecodeEvent::Granted { cached: 0 });
        story.first();
        story.token(1);
        let actions = story.tell(failure);
        assert_eq!(actions[..2], [Action::CloseDecode { request: REQUEST }, Action::ClosePrefill { request: REQUEST }]);
        let Some(Action::OpenDecode { leader, open, .. }) = actions.last() else { panic!("{actions:?}") };
        assert_ne!(*leader, decode);
        assert_eq!((&open.answered[..], open.codec), (&[Token(10), Token(11)][..], before.codec));
        // The prefill side is asked for the KV again; its first token is the client's already.
        let actions = story.decode(DecodeEvent::Granted { cached: 0 });
        assert!(
            matches!(&actions[..], [Action::OpenPrefill { open, .. }] if open.codec == before.codec.codec),
            "{actions:?}"
        );
        assert!(story.first().is_empty());
        assert!(story.token(1).is_empty());
        assert_eq!(story.token(2), [Action::Token { request: REQUEST, index: 2, sampled: sampled(12) }]);
        let actions = story.decode(DecodeEvent::End(End::Length));
        assert_eq!(ends(&actions), Some(&End::Length));
        let Some(Action::Trace(trace)) = actions.iter().find(|a| matches!(a, Action::Trace(_))) else { panic!() };
        let moves: Vec<_> = trace.moves.iter().map(|m| (m.from, m.answered)).collect();
        assert_eq!((trace.new_tokens, moves), (3, vec![(decode, 2)]));
    }
}

/// Where no group is up an answer that was begun waits for one, and not for ever.
#[test]
fn an_answer_waits_for_a_group_that_can_go_on_with_it() {
    let mut story = Story::new();
    let (decode, _) = story.submit();
    story.decode(DecodeEvent::Granted { cached: 0 });
    story.first();
    let up = std::mem::take(&mut story.view.up);
    story.tell(Event::View(story.view.clone()));
    let actions = story.tell(Event::DecodeLost { request: REQUEST, reason: "reset".into() });
    assert!(!actions.iter().any(|a| matches!(a, Action::OpenDecode { .. } | Action::End { .. })), "{actions:?}");
    // Asking again changes nothing while nothing has changed.
    story.now = story.gateway.deadline().unwrap();
    assert!(story.tell(Event::Deadline).is_empty());
    let mut back = story.view.clone();
    back.up = up;
    // The very group that failed may take it again, once it is up.
    back.up.retain(|id, _| *id == group(decode.0[0], Phase::Decode).id);
    let actions = story.tell(Event::View(back));
    assert!(
        matches!(&actions[..], [Action::OpenDecode { leader, open, .. }] if *leader == decode && open.answered.len() == 1)
    );

    story.tell(Event::View(story.view.clone()));
    story.tell(Event::DecodeLost { request: REQUEST, reason: "reset".into() });
    let since = story.now;
    let end = loop {
        story.now = story.gateway.deadline().unwrap();
        let actions = story.tell(Event::Deadline);
        if let Some(end) = ends(&actions) {
            break end.clone();
        }
    };
    assert!(matches!(end, End::Failed(why) if why.contains("reset")));
    assert_eq!(story.now - since, GatewayConfig::default().homeless_patience);
    assert_eq!(story.gateway.open_requests(), 0);
}

/// Its gateway died before anybody had a copy: only the client knows what its tokens rest on.
#[test]
fn an_answer_that_nobody_has_a_response_log_of_is_computed_as_its_client_says() {
    for codec in [KvCodec::Raw, KvCodec::Int3, KvCodec::Int4, KvCodec::Int8] {
        let mut story = Story::new();
        let generation = Generation {
            sampling: Sampling::greedy(),
            max_new_tokens: 3,
            stop_tokens: vec![],
            class: Default::default(),
        };
        let begun = Some(Begun { codec: codec.into(), holder: None, answer: vec![] });
        let submit = Event::Submit {
            request: REQUEST,
            model: MODEL,
            prompt: vec![Token(1); 4],
            generation,
            begun,
            overrule: None,
            codec: None,
        };
        let actions = story.tell(submit);
        let [Action::OpenDecode { open, .. }] = &actions[..] else { panic!("{actions:?}") };
        assert_eq!((open.codec, &open.answered[..]), (codec.into(), &[][..]));
        story.decode(DecodeEvent::Granted { cached: 0 });
        let settled = Action::Settled { request: REQUEST, codec: codec.into(), holder: None };
        assert!(story.token(0).contains(&settled), "{codec:?}");
    }
}

/// A client comes from a gateway that died, with what it got there.
#[test]
fn an_answer_begun_at_another_gateway_goes_on() {
    let begun = |tokens: std::ops::Range<u32>| Begun {
        codec: KvCodec::Raw.into(),
        holder: None,
        answer: tokens.map(Token).collect(),
    };
    let submit = |begun| {
        let generation = Generation {
            sampling: Sampling::greedy(),
            max_new_tokens: 3,
            stop_tokens: vec![],
            class: Default::default(),
        };
        Event::Submit {
            request: REQUEST,
            model: MODEL,
            prompt: vec![Token(1); 4],
            generation,
            begun: Some(begun),
            overrule: None,
            codec: None,
        }
    };
    let mut story = Story::new();
    let actions = story.tell(submit(begun(10..12)));
    let [Action::OpenDecode { open, .. }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!((open.codec, &open.answered[..]), (KvCodec::Raw.into(), &[Token(10), Token(11)][..]));
    let actions = story.decode(DecodeEvent::Granted { cached: 0 });
    assert!(matches!(actions[..], [Action::Accepted { .. }, Action::OpenPrefill { .. }]), "{actions:?}");
    assert_eq!(story.token(2), [Action::Token { request: REQUEST, index: 2, sampled: sampled(12) }]);
    assert_eq!(ends(&story.decode(DecodeEvent::End(End::Length))), Some(&End::Length));

    // One that was complete already is accepted, too: its client waits for that.
    story.tell(submit(begun(10..13)));
    let actions = story.decode(DecodeEvent::End(End::Length));
    assert!(matches!(actions[0], Action::Accepted { .. }), "{actions:?}");
    assert_eq!(ends(&actions), Some(&End::Length));
}

#[test]
fn a_peer_gone_from_the_view_is_not_waited_for() {
    let mut story = Story::new();
    let (decode, _) = story.submit();
    let actions = story.lose(decode);
    let Some(Action::OpenDecode { leader, .. }) = actions.last() else { panic!("{actions:?}") };
    assert_ne!(*leader, decode);
    story.decode(DecodeEvent::Granted { cached: 0 });
    let actions = story.lose(PeerId([1; 32]));
    let order = DecodeOrder::PrefillHere { first: None };
    assert!(actions.contains(&Action::Order { request: REQUEST, order }), "{actions:?}");
}

/// Neither the leader of a group nor its gateway's lines need have noticed: whoever is gone, or cut off, is not in the view.
#[test]
fn a_group_that_loses_any_of_its_peers_is_left() {
    let groups = [long_group(&[1, 4], Phase::Prefill), long_group(&[2, 5], Phase::Decode), group(3, Phase::Decode)];
    for first_came in [false, true] {
        let mut story = Story::of(groups.clone());
        while story.submit().0 != PeerId([2; 32]) {
            story.tell(Event::Cancel { request: REQUEST });
        }
        story.decode(DecodeEvent::Granted { cached: 0 });
        if first_came {
            story.first();
        }
        // The second stage of the prefill group, whose leader is there and says that it is up.
        let actions = story.lose(PeerId([4; 32]));
        let order = DecodeOrder::PrefillHere { first: first_came.then_some(Token(10)) };
        assert!(actions.contains(&Action::Order { request: REQUEST, order }), "{actions:?}");
        // The second stage of the decode group: what it began goes on elsewhere, and nothing new comes to it.
        let actions = story.lose(PeerId([5; 32]));
        assert!(actions.contains(&Action::CloseDecode { request: REQUEST }), "{actions:?}");
        let Some(Action::OpenDecode { leader, open, .. }) = actions.last() else { panic!("{actions:?}") };
        assert_eq!((*leader, open.answered.len()), (PeerId([3; 32]), usize::from(first_came)));
        assert!(story.tell(Event::View(story.view.clone())).is_empty(), "it is left once");
    }
}

#[test]
fn a_prefill_peer_that_goes_before_there_are_pages_is_not_asked() {
    let mut story = Story::new();
    let (decode, _) = story.submit();
    story.lose(PeerId([1; 32]));
    let actions = story.decode(DecodeEvent::Granted { cached: 0 });
    let order = DecodeOrder::PrefillHere { first: None };
    assert_eq!(actions.last(), Some(&Action::Order { request: REQUEST, order }), "{actions:?}");
    assert!(!actions.iter().any(|a| matches!(a, Action::OpenPrefill { .. })), "{actions:?}");
    story.token(0);
    let actions = story.decode(DecodeEvent::End(End::Length));
    let Some(Action::Trace(trace)) = actions.iter().find(|a| matches!(a, Action::Trace(_))) else { panic!() };
    assert_eq!((trace.prefill, trace.decode), (decode, decode));
}

#[test]
fn a_burst_is_spread_before_any_heartbeat_tells() {
    let mut story = Story::new();
    let mut leaders = std::collections::BTreeMap::<PeerId, u32>::new();
    for n in 0..16 {
        let generation = Generation {
            sampling: Sampling::greedy(),
            max_new_tokens: 3,
            stop_tokens: vec![],
            class: Default::default(),
        };
        let request = RequestId([n; 16]);
        let actions = story.tell(Event::Submit {
            request,
            model: MODEL,
            prompt: vec![Token(1)],
            generation,
            begun: None,
            overrule: None,
            codec: None,
        });
        let [Action::OpenDecode { leader, .. }] = &actions[..] else { panic!("{actions:?}") };
        *leaders.entry(*leader).or_default() += 1;
    }
    let counts: Vec<u32> = leaders.into_values().collect();
    assert!(counts.len() == 2 && counts[0].abs_diff(counts[1]) <= 2, "{counts:?}");
}

#[test]
fn a_client_that_hangs_up_hears_nothing_more() {
    let mut story = Story::new();
    story.submit();
    story.decode(DecodeEvent::Granted { cached: 0 });
    let actions = story.tell(Event::Cancel { request: REQUEST });
    assert_eq!(actions, [Action::ClosePrefill { request: REQUEST }, Action::CloseDecode { request: REQUEST }]);
    assert!(story.first().is_empty() && story.token(1).is_empty());
}

#[test]
fn silence_is_not_waited_out() {
    let mut story = Story::new();
    story.submit();
    story.decode(DecodeEvent::Granted { cached: 0 });
    let (actions, after) = story.silence();
    let order = DecodeOrder::PrefillHere { first: None };
    assert!(actions.contains(&Action::Order { request: REQUEST, order }));
    assert_eq!(after, Duration::from_secs(60), "what is not known is given time");
    let (actions, _) = story.silence();
    assert!(matches!(actions.last(), Some(Action::OpenDecode { .. })), "{actions:?}");
}

/// Every device is measured: a prompt's token takes a millisecond on all four layers, a step two.
fn measured() -> Advert {
    let misfit = Misfit { r2: 1.0, mean: 0.0, largest: 0.0 };
    let (prefill, decode) = ([0.0, 0.25e-3, 0.0], [0.5e-3, 0.0, 0.0]);
    let profile = LayerProfile { model: MODEL, prefill, decode, prompts: misfit, steps: misfit, mixed: misfit };
    let device = Device {
        name: "cpu".into(),
        kind: DeviceKind::Cpu { threads: 1 },
        memory_bytes: 1 << 30,
        kv_bytes: 1 << 20,
        flops: FlopsPerSecond(1e9),
        bandwidth: BytesPerSecond(1e9),
        profile: Some(profile),
    };
    Advert { devices: vec![device], ..advert() }
}

/// Whoever hangs is in everybody's view, and its connections are open.
#[test]
fn a_group_that_hangs_is_left_within_seconds_and_not_asked_again() {
    let mut story = Story::new();
    Arc::make_mut(&mut story.view.adverts).values_mut().for_each(|a| *a = measured());
    story.tell(Event::View(story.view.clone()));
    let (decode, _) = story.submit();
    story.decode(DecodeEvent::Granted { cached: 0 });
    story.first();
    story.tell(Event::Prefill { request: REQUEST, event: PrefillEvent::KvSent { bytes: 1, after: Seconds(0.1) } });
    for index in 1..20 {
        story.now += Duration::from_millis(2);
        story.token(index);
    }
    let (actions, after) = story.silence();
    let Some(Action::OpenDecode { leader, open, .. }) = actions.last() else { panic!("{actions:?}") };
    assert!(*leader != decode && open.answered.len() == 20 && after < Duration::from_secs(6), "{after:?}");
    for _ in 0..8 {
        story.tell(Event::Cancel { request: REQUEST });
        assert_ne!(story.submit().0, decode);
    }
    // Nor is the group that prefills waited for, where it is the one.
    story.decode(DecodeEvent::Granted { cached: 0 });
    let (actions, after) = story.silence();
    let order = DecodeOrder::PrefillHere { first: None };
    assert!(
        actions.contains(&Action::Order { request: REQUEST, order }) && after < Duration::from_secs(6),
        "{after:?}"
    );
}

/// Where pages are short an answer may have to wait until others have ended: that is no reason to leave.
#[test]
fn a_group_short_of_pages_has_its_time() {
    let mut story = Story::new();
    Arc::make_mut(&mut story.view.adverts).values_mut().for_each(|a| *a = measured());
    let full = Load { running: 8, free_pages: 3, total_pages: 100, ..Load::default() };
    story.view.up.values_mut().for_each(|load| *load = full);
    story.tell(Event::View(story.view.clone()));
    story.submit();
    story.decode(DecodeEvent::Granted { cached: 0 });
    story.first();
    story.tell(Event::Prefill { request: REQUEST, event: PrefillEvent::KvSent { bytes: 1, after: Seconds(0.1) } });
    story.token(1);
    assert_eq!(story.silence().1, Duration::from_secs(60));
}

/// A host that computes for other groups as well is slower than its advert says: what its leader saw steps take counts.
#[test]
fn a_group_whose_steps_take_long_has_its_time() {
    let after = |step| {
        let mut story = Story::new();
        Arc::make_mut(&mut story.view.adverts).values_mut().for_each(|a| *a = measured());
        story.view.up.values_mut().for_each(|load| *load = Load { step, ..Load::default() });
        story.tell(Event::View(story.view.clone()));
        story.submit();
        story.decode(DecodeEvent::Granted { cached: 0 });
        story.silence().1
    };
    let (claimed, seen) = (after(None), after(Some(Seconds(20.0))));
    assert!(claimed < Duration::from_secs(10) && seen >= Duration::from_secs(20), "{claimed:?}, {seen:?}");
}

#[test]
fn a_long_prompt_on_a_slow_peer_has_its_time_and_so_has_who_waits_behind_it() {
    let mut story = Story::new();
    Arc::make_mut(&mut story.view.adverts).values_mut().for_each(|a| *a = measured());
    story.tell(Event::View(story.view.clone()));
    let generation =
        Generation { sampling: Sampling::greedy(), max_new_tokens: 3, stop_tokens: vec![], class: Default::default() };
    let prompt = vec![Token(1); 30_000];
    story.tell(Event::Submit {
        request: REQUEST,
        model: MODEL,
        prompt,
        generation,
        begun: None,
        overrule: None,
        codec: None,
    });
    story.decode(DecodeEvent::Granted { cached: 0 });
    let (_, after) = story.silence();
    assert!(after > Duration::from_secs(240), "{after:?} for what takes thirty seconds when all is well");
}

/// A client may have its prompt computed where it likes; without a word of its own it is the gate's choice.
#[test]
fn who_says_where_a_prompt_is_computed_is_obeyed() {
    let asked = |overrule| {
        let mut story = Story::new();
        let generation = Generation {
            sampling: Sampling::greedy(),
            max_new_tokens: 3,
            stop_tokens: vec![],
            class: Default::default(),
        };
        let prompt = vec![Token(1); 4];
        let submit =
            Event::Submit { request: REQUEST, model: MODEL, prompt, generation, begun: None, overrule, codec: None };
        match &story.tell(submit)[..] {
            [Action::OpenDecode { open, .. }] => open.await_kv,
            other => panic!("{other:?}"),
        }
    };
    assert!(asked(None), "these gateways always split");
    assert!(!asked(Some(Overrule::InPlace)));
    assert!(asked(Some(Overrule::Sent(None))) && asked(Some(Overrule::Sent(Some(KvPace::Whole)))));
}

/// A prompt's KV goes through what its client says, or else the gateway's owner, wherever it is computed: only then are two answers to
/// one request the same tokens.
#[test]
fn what_kv_goes_through_is_fixed_by_a_request_or_by_the_gateways_owner() {
    let asked = |fixed, codec: Option<KvCodec>, overrule, begun: Option<Begun>| {
        let codec = codec.map(Into::into);
        let config = GatewayConfig { fixed, split: SplitChoice::Always, ..GatewayConfig::default() };
        let mut story = Story::new();
        story.gateway = Gateway::new(config);
        story.tell(Event::View(story.view.clone()));
        let generation = Generation {
            sampling: Sampling::greedy(),
            max_new_tokens: 3,
            stop_tokens: vec![],
            class: Default::default(),
        };
        let prompt = vec![Token(1); 4];
        let submit = Event::Submit { request: REQUEST, model: MODEL, prompt, generation, begun, overrule, codec };
        match &story.tell(submit)[..] {
            [Action::OpenDecode { open, .. }] => open.codec.codec,
            other => panic!("{other:?}"),
        }
    };
    let in_place = Some(Overrule::InPlace);
    assert_eq!([asked(None, None, None, None), asked(None, None, in_place, None)], [KvCodec::Int4, KvCodec::Raw]);
    for codec in [KvCodec::Raw, KvCodec::Int3, KvCodec::Int4, KvCodec::Int8] {
        for overrule in [None, in_place] {
            assert_eq!(asked(None, Some(codec), overrule, None), codec, "as the client says, {overrule:?}");
            assert_eq!(asked(Some(codec), None, overrule, None), codec, "as the owner says, {overrule:?}");
            assert_eq!(asked(Some(KvCodec::Int4), Some(codec), overrule, None), codec, "the client comes first");
            // Whoever has tokens that rest on something else goes on with that.
            let begun = Begun { codec: KvCodec::Int8.into(), holder: None, answer: vec![Token(10)] };
            assert_eq!(asked(Some(codec), Some(codec), overrule, Some(begun)), KvCodec::Int8);
        }
    }
}

/// Load is a group's: one host leads two groups that decode, and one of them is busy. A prompt is computed elsewhere for the
/// busy one, which others would wait for, and in place for the idle one.
#[test]
fn the_gate_looks_at_the_queue_of_the_group_and_not_of_its_leaders_other_one() {
    let on = |device| {
        let stage = Stage { peer: PeerId([2; 32]), device, layers: LayerRange { start: 0, end: 4 } };
        Group::new(MODEL, Phase::Decode, vec![stage])
    };
    let (prefill, busy, idle) = (group(1, Phase::Prefill), on(0), on(1));
    let is_sent = |to: &Group| {
        let mut story = Story::of([prefill.clone(), busy.clone(), idle.clone()]);
        story.gateway = Gateway::new(GatewayConfig::default());
        let lends = |a: &mut Advert| {
            let devices = [measured().devices, measured().devices].concat();
            *a = Advert { devices, models: vec![ModelCard { id: MODEL, ..sample::card() }], ..measured() };
        };
        Arc::make_mut(&mut story.view.adverts).values_mut().for_each(lends);
        story.view.up.insert(busy.id, Load { running: 8, ..Load::default() });
        let plan = story.view.plan.as_mut().unwrap();
        let routes = vec![Route { prefill: prefill.id, decode: to.id, share: 1.0 }];
        *plan = Arc::new(Plan { routes, ..Plan::clone(plan) });
        story.tell(Event::View(story.view.clone()));
        let generation = Generation {
            sampling: Sampling::greedy(),
            max_new_tokens: 3,
            stop_tokens: vec![],
            class: Default::default(),
        };
        let (prompt, overrule, codec) = (vec![Token(1); 200], None, None);
        let submit = Event::Submit { request: REQUEST, model: MODEL, prompt, generation, begun: None, overrule, codec };
        match &story.tell(submit)[..] {
            [Action::OpenDecode { open, .. }] if open.group == to.id => open.await_kv,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((is_sent(&busy), is_sent(&idle)), (true, false));
}
