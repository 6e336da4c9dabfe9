//! A request from prompt to end, and where its prompt is computed.

use super::scenario::*;
use crate::lenders::SHAPE;
use std::sync::Arc;
use std::time::Duration;
use tsnode_coordinator::{
    gate::{Overrule, SplitChoice},
    gateway::{Action, Begun, Event, Gateway, GatewayConfig},
    sample,
};
use tsnode_protocol::{
    Advert, Group, KvCodec, LayerRange, Load, ModelCard, ModelShape, PeerId, Phase, Plan, RequestId, Route, Sampling,
    Seconds, Stage, Token,
    kv::{Delivery, KvPace},
    stream::{DecodeEvent, DecodeOrder, End, Generation, NOT_UP},
};

#[test]
fn a_prompt_goes_to_one_group_and_its_answer_comes_from_another() {
    let mut scenario = Scenario::new();
    let (decode, _) = scenario.submit();
    let actions = scenario.decode(DecodeEvent::Granted { cached: 0 });
    let prefill = PeerId([1; 32]);
    assert_eq!(actions[0], Action::Accepted { request: REQUEST, prefill, decode });
    assert!(
        matches!(&actions[1], Action::OpenPrefill { leader, open, .. } if *leader == prefill && open.targets.len() == 1)
    );
    let order = DecodeOrder::Begin(Token(10));
    assert_eq!(
        scenario.first(),
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
    scenario.decode(DecodeEvent::KvArrived { after: Seconds(0.2), deliveries: vec![stranger, delivery] });
    for _ in 0..100 {
        scenario.decode(DecodeEvent::KvArrived { after: Seconds(0.2), deliveries: vec![stranger; 1000] });
    }
    assert_eq!(scenario.token(1), [Action::Token { request: REQUEST, index: 1, sampled: sampled(11) }]);
    let actions = scenario.decode(DecodeEvent::End(End::Length));
    assert_eq!(ends(&actions), Some(&End::Length));
    let Some(Action::Trace(trace)) = actions.iter().find(|a| matches!(a, Action::Trace(_))) else { panic!("no trace") };
    assert_eq!((trace.prefill, trace.decode, trace.kv_bytes, trace.new_tokens), (prefill, decode, bytes, 2));
    assert_eq!((&trace.deliveries[..], trace.kv_codec), (&[delivery][..], Some(KvCodec::Int4)));
    assert_eq!(scenario.gateway.open_requests(), 0);
}

#[test]
fn what_clients_ask_for_is_said_when_there_is_enough_of_it() {
    let mut scenario = Scenario::new();
    for _ in 0..100 {
        assert_eq!(scenario.gateway.traffic(scenario.now), []);
        scenario.now += Duration::from_secs(1);
        scenario.submit();
        scenario.decode(DecodeEvent::Granted { cached: 0 });
        scenario.first();
        scenario.token(1);
        scenario.decode(DecodeEvent::End(End::Length));
    }
    let said = scenario.gateway.traffic(scenario.now);
    let lengths = said.iter().map(|t| (t.model, t.prompts, t.answers)).collect::<Vec<_>>();
    assert_eq!(lengths, [(MODEL, [4; 16], [2; 16])]);
    assert!((said[0].rate - 1.0).abs() < 1e-9, "{said:?}");
}

#[test]
fn a_refusal_is_taken_elsewhere_until_nobody_is_left() {
    let mut scenario = Scenario::new();
    let (one, _) = scenario.submit();
    let actions = scenario.decode(DecodeEvent::Refused("full".into()));
    let Some(Action::OpenDecode { leader: other, .. }) = actions.last() else { panic!("{actions:?}") };
    assert_ne!(one, *other);
    // The prefill group holds all layers too.
    let actions = scenario.decode(DecodeEvent::Refused("full".into()));
    assert!(matches!(actions.last(), Some(Action::OpenDecode { leader, .. }) if *leader == PeerId([1; 32])));
    let actions = scenario.decode(DecodeEvent::Refused("full".into()));
    assert!(matches!(actions.last(), Some(Action::Unserved { reason, .. }) if reason == "full"), "{actions:?}");
    assert_eq!(scenario.gateway.open_requests(), 0);
}

#[test]
fn a_ring_that_broke_is_waited_for_where_no_other_group_is_left_and_not_for_ever() {
    let opens = |actions: &[Action]| actions.iter().any(|action| matches!(action, Action::OpenDecode { .. }));
    // All that are up lack their rings; what the last of them leads to.
    let nobody = |scenario: &mut Scenario| loop {
        let actions = scenario.decode(DecodeEvent::Refused(NOT_UP.into()));
        if !opens(&actions) {
            return actions;
        }
    };
    let mut scenario = Scenario::new();
    scenario.submit();
    // However long it waited there for pages.
    scenario.now += Duration::from_secs(7);
    let since = scenario.now;
    let refused = loop {
        assert_eq!(nobody(&mut scenario), [Action::CloseDecode { request: REQUEST }], "its client waits");
        let (actions, waited) = scenario.silence();
        assert!(waited < Duration::from_secs(1), "{waited:?}");
        if !opens(&actions) {
            break actions;
        }
    };
    assert!(matches!(&refused[..], [Action::Unserved { reason, .. }] if reason == NOT_UP), "{refused:?}");
    assert_eq!(scenario.now - since, Duration::from_secs(5));
    // One that comes back serves what waited for it.
    scenario.submit();
    nobody(&mut scenario);
    assert!(opens(&scenario.silence().0));
    let actions = scenario.decode(DecodeEvent::Granted { cached: 0 });
    assert!(matches!(actions[0], Action::Accepted { request: REQUEST, .. }), "{actions:?}");
}

#[test]
fn a_burst_is_spread_before_any_heartbeat_tells() {
    let mut scenario = Scenario::new();
    let mut leaders = std::collections::BTreeMap::<PeerId, u32>::new();
    for n in 0..16 {
        let generation = Generation {
            sampling: Sampling::greedy(),
            max_new_tokens: 3,
            stop_tokens: vec![],
            class: Default::default(),
        };
        let request = RequestId([n; 16]);
        let actions = scenario.tell(Event::Submit {
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
    let mut scenario = Scenario::new();
    scenario.submit();
    scenario.decode(DecodeEvent::Granted { cached: 0 });
    let actions = scenario.tell(Event::Cancel { request: REQUEST });
    assert_eq!(actions, [Action::ClosePrefill { request: REQUEST }, Action::CloseDecode { request: REQUEST }]);
    assert!(scenario.first().is_empty() && scenario.token(1).is_empty());
}

#[test]
fn what_was_computed_for_a_client_that_hung_up_is_told_as_far_as_it_came() {
    let mut scenario = Scenario::new();
    scenario.submit();
    scenario.decode(DecodeEvent::Granted { cached: 0 });
    scenario.first();
    scenario.token(1);
    let actions = scenario.tell(Event::Cancel { request: REQUEST });
    let Some(Action::HungUp(trace)) = actions.last() else { panic!("{actions:?}") };
    assert_eq!((trace.request, trace.new_tokens, trace.prompt_tokens), (REQUEST, 2, 4));
    assert!(
        !actions.iter().any(|action| matches!(action, Action::Trace(_) | Action::End { .. })),
        "it has not ended well"
    );
}

/// A client may have its prompt computed where it likes; without a word of its own it is the gate's choice.
#[test]
fn who_says_where_a_prompt_is_computed_is_obeyed() {
    let asked = |overrule| {
        let mut scenario = Scenario::new();
        let generation = Generation {
            sampling: Sampling::greedy(),
            max_new_tokens: 3,
            stop_tokens: vec![],
            class: Default::default(),
        };
        let prompt = vec![Token(1); 4];
        let submit =
            Event::Submit { request: REQUEST, model: MODEL, prompt, generation, begun: None, overrule, codec: None };
        match &scenario.tell(submit)[..] {
            [Action::OpenDecode { open, .. }] => open.await_kv,
            other => panic!("{other:?}"),
        }
    };
    assert!(asked(None), "these gateways always split");
    assert!(!asked(Some(Overrule::InPlace)));
    assert!(asked(Some(Overrule::Sent(None))) && asked(Some(Overrule::Sent(Some(KvPace::Whole)))));
}

/// Nor is it sent for anybody's word where some layers keep a state, without which KV is worth nothing.
#[test]
fn a_prompt_of_a_model_with_states_is_computed_where_it_is_decoded() {
    for (state_bytes, sent) in [(0, true), (65_536, false)] {
        let mut scenario = Scenario::new();
        let shape = ModelShape { whole: true, state_bytes, ..SHAPE };
        for advert in Arc::make_mut(&mut scenario.view.adverts).values_mut() {
            advert.models = vec![ModelCard { shape, ..sample::card() }];
        }
        scenario.tell(Event::View(scenario.view.clone()));
        let generation = Generation {
            sampling: Sampling::greedy(),
            max_new_tokens: 3,
            stop_tokens: vec![],
            class: Default::default(),
        };
        let prompt = vec![Token(1); 4];
        let overrule = Some(Overrule::Sent(None));
        let submit =
            Event::Submit { request: REQUEST, model: MODEL, prompt, generation, begun: None, overrule, codec: None };
        match &scenario.tell(submit)[..] {
            [Action::OpenDecode { open, .. }] => assert_eq!(open.await_kv, sent),
            other => panic!("{other:?}"),
        }
    }
}

/// A prompt's KV goes through what its client says, or else the gateway's owner, wherever it is computed: only then are two answers to
/// one request the same tokens.
#[test]
fn what_kv_goes_through_is_fixed_by_a_request_or_by_the_gateways_owner() {
    let asked = |fixed, codec: Option<KvCodec>, overrule, begun: Option<Begun>| {
        let codec = codec.map(Into::into);
        let config = GatewayConfig { fixed, split: SplitChoice::Always, ..GatewayConfig::default() };
        let mut scenario = Scenario::new();
        scenario.gateway = Gateway::new(config);
        scenario.tell(Event::View(scenario.view.clone()));
        let generation = Generation {
            sampling: Sampling::greedy(),
            max_new_tokens: 3,
            stop_tokens: vec![],
            class: Default::default(),
        };
        let prompt = vec![Token(1); 4];
        let submit = Event::Submit { request: REQUEST, model: MODEL, prompt, generation, begun, overrule, codec };
        match &scenario.tell(submit)[..] {
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
        let mut scenario = Scenario::of([prefill.clone(), busy.clone(), idle.clone()]);
        scenario.gateway = Gateway::new(GatewayConfig::default());
        let lends = |a: &mut Advert| {
            let devices = [measured().devices, measured().devices].concat();
            *a = Advert { devices, models: vec![sample::card()], ..measured() };
        };
        Arc::make_mut(&mut scenario.view.adverts).values_mut().for_each(lends);
        scenario.view.up.insert(busy.id, Load { running: 8, ..Load::default() });
        let plan = scenario.view.plan.as_mut().unwrap();
        let routes = vec![Route { prefill: prefill.id, decode: to.id, share: 1.0 }];
        *plan = Arc::new(Plan { routes, ..Plan::clone(plan) });
        scenario.tell(Event::View(scenario.view.clone()));
        let generation = Generation {
            sampling: Sampling::greedy(),
            max_new_tokens: 3,
            stop_tokens: vec![],
            class: Default::default(),
        };
        let (prompt, overrule, codec) = (vec![Token(1); 200], None, None);
        let submit = Event::Submit { request: REQUEST, model: MODEL, prompt, generation, begun: None, overrule, codec };
        match &scenario.tell(submit)[..] {
            [Action::OpenDecode { open, .. }] if open.group == to.id => open.await_kv,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((is_sent(&busy), is_sent(&idle)), (true, false));
}

/// A group that prefills for another would end with the prompt, and send nothing.
#[test]
fn a_prompt_that_nothing_is_to_follow_is_computed_in_place() {
    for overrule in [None, Some(Overrule::Sent(None))] {
        let mut scenario = Scenario::new();
        let generation = Generation {
            sampling: Sampling::greedy(),
            max_new_tokens: 0,
            stop_tokens: vec![],
            class: Default::default(),
        };
        let (prompt, codec) = (vec![Token(1); 4], None);
        let submit = Event::Submit { request: REQUEST, model: MODEL, prompt, generation, begun: None, overrule, codec };
        let actions = scenario.tell(submit);
        assert!(matches!(&actions[..], [Action::OpenDecode { open, .. }] if !open.await_kv), "{actions:?}");
        let actions = scenario.decode(DecodeEvent::Granted { cached: 0 });
        assert!(!actions.iter().any(|a| matches!(a, Action::OpenPrefill { .. })), "{actions:?}");
        assert_eq!(ends(&scenario.decode(DecodeEvent::End(End::Length))), Some(&End::Length));
    }
}
