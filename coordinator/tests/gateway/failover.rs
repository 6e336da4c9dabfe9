//! Answers outlive groups and gateways: each goes on elsewhere, with the tokens that its client has.

use super::scenario::*;
use std::{sync::Arc, time::Duration};
use tsnode_coordinator::{
    gateway::{Action, Begun, Event, Gateway, GatewayConfig},
    sample,
};
use tsnode_protocol::{
    KvCodec, Load, PeerId, Phase, RequestId, Sampling, Token,
    stream::{DecodeEvent, DecodeOrder, End, Generation, NOT_UP, PLAN_CHANGED},
};

#[test]
fn a_prefill_that_dies_is_done_by_the_decode_side() {
    for first_came in [false, true] {
        let mut scenario = Scenario::new();
        let (decode, _) = scenario.submit();
        scenario.decode(DecodeEvent::Granted { cached: 0 });
        if first_came {
            scenario.first();
        }
        let actions = scenario.tell(Event::PrefillLost { request: REQUEST, reason: "died".into() });
        let order = DecodeOrder::PrefillHere { first: first_came.then_some(Token(10)) };
        assert!(actions.contains(&Action::Order { request: REQUEST, order }), "{actions:?}");
        // Token 0 may come again; the client must see it once.
        let seen = scenario.token(0).len();
        assert_eq!(seen, 2 * usize::from(!first_came), "the token, and what it rests on");
        scenario.token(1);
        let actions = scenario.decode(DecodeEvent::End(End::Length));
        let Some(Action::Trace(trace)) = actions.iter().find(|a| matches!(a, Action::Trace(_))) else { panic!() };
        assert_eq!((trace.prefill, trace.kv_bytes), (decode, 0));
    }
}

/// However a group fails an answer, another goes on with the tokens the client has, and with the same packing.
#[test]
fn an_answer_goes_on_elsewhere() {
    let lost = |reason: &str| Event::DecodeLost { request: REQUEST, reason: reason.into() };
    let failed = Event::Decode { request: REQUEST, event: DecodeEvent::End(End::Failed("ring broke".into())) };
    let gap = Event::Decode { request: REQUEST, event: DecodeEvent::Token { index: 5, sampled: sampled(15) } };
    for failure in [lost("reset"), failed, gap] {
        let mut scenario = Scenario::new();
        let (decode, actions) = scenario.submit();
        let Some(Action::OpenDecode { open: before, .. }) = actions.last() else { panic!("{actions:?}") };
        scenario.decode(DecodeEvent::Granted { cached: 0 });
        scenario.first();
        scenario.token(1);
        let actions = scenario.tell(failure);
        assert_eq!(actions[..2], [Action::CloseDecode { request: REQUEST }, Action::ClosePrefill { request: REQUEST }]);
        let Some(Action::OpenDecode { leader, open, .. }) = actions.last() else { panic!("{actions:?}") };
        assert_ne!(*leader, decode);
        assert_eq!((&open.answered[..], open.codec), (&[Token(10), Token(11)][..], before.codec));
        // The prefill side is asked for the KV again; its first token is the client's already.
        let actions = scenario.decode(DecodeEvent::Granted { cached: 0 });
        assert!(
            matches!(&actions[..], [Action::OpenPrefill { open, .. }] if open.codec == before.codec.codec),
            "{actions:?}"
        );
        assert!(scenario.first().is_empty());
        assert!(scenario.token(1).is_empty());
        assert_eq!(scenario.token(2), [Action::Token { request: REQUEST, index: 2, sampled: sampled(12) }]);
        let actions = scenario.decode(DecodeEvent::End(End::Length));
        assert_eq!(ends(&actions), Some(&End::Length));
        let Some(Action::Trace(trace)) = actions.iter().find(|a| matches!(a, Action::Trace(_))) else { panic!() };
        let moves: Vec<_> = trace.moves.iter().map(|m| (m.from, m.answered)).collect();
        assert_eq!((trace.new_tokens, moves), (3, vec![(decode, 2)]));
    }
}

/// Where no group is up an answer that was begun waits for one, and not for ever.
#[test]
fn an_answer_waits_for_a_group_that_can_go_on_with_it() {
    let mut scenario = Scenario::new();
    let (decode, _) = scenario.submit();
    scenario.decode(DecodeEvent::Granted { cached: 0 });
    scenario.first();
    let up = std::mem::take(&mut scenario.view.up);
    scenario.tell(Event::View(scenario.view.clone()));
    let actions = scenario.tell(Event::DecodeLost { request: REQUEST, reason: "reset".into() });
    assert!(!actions.iter().any(|a| matches!(a, Action::OpenDecode { .. } | Action::End { .. })), "{actions:?}");
    // Asking again changes nothing while nothing has changed.
    scenario.now = scenario.gateway.deadline().unwrap();
    assert!(scenario.tell(Event::Deadline).is_empty());
    let mut back = scenario.view.clone();
    back.up = up;
    // The very group that failed may take it again, once it is up.
    back.up.retain(|id, _| *id == group(decode.0[0], Phase::Decode).id);
    let actions = scenario.tell(Event::View(back));
    assert!(
        matches!(&actions[..], [Action::OpenDecode { leader, open, .. }] if *leader == decode && open.answered.len() == 1)
    );

    scenario.tell(Event::View(scenario.view.clone()));
    scenario.tell(Event::DecodeLost { request: REQUEST, reason: "reset".into() });
    let since = scenario.now;
    let end = loop {
        scenario.now = scenario.gateway.deadline().unwrap();
        let actions = scenario.tell(Event::Deadline);
        if let Some(end) = ends(&actions) {
            break end.clone();
        }
    };
    assert!(matches!(end, End::Failed(why) if why.contains("reset")));
    assert_eq!(scenario.now - since, GatewayConfig::default().unrouted_patience);
    assert_eq!(scenario.gateway.open_requests(), 0);
}

/// Groups that are up may fail an answer each time for the same reason: it ends, with that reason.
#[test]
fn an_answer_that_every_group_fails_does_not_go_round_for_ever() {
    let why = "this will never do";
    let says = [(DecodeEvent::End(End::Failed(why.into())), true), (DecodeEvent::Refused(why.into()), false)];
    for (says, grants) in says {
        let mut scenario = Scenario::new();
        scenario.submit();
        scenario.decode(DecodeEvent::Granted { cached: 0 });
        scenario.first();
        let (since, mut asked) = (scenario.now, 0);
        let end = loop {
            let mut actions = scenario.decode(says.clone());
            while !actions.iter().any(|a| matches!(a, Action::OpenDecode { .. } | Action::End { .. })) {
                scenario.now = scenario.gateway.deadline().unwrap();
                actions = scenario.tell(Event::Deadline);
            }
            if let Some(end) = ends(&actions) {
                break end.clone();
            }
            asked += 1;
            assert!(asked < 1000, "it goes round for ever");
            if grants {
                scenario.decode(DecodeEvent::Granted { cached: 0 });
            }
        };
        assert!(matches!(end, End::Failed(said) if said.contains(why)));
        assert_eq!(scenario.now - since, GatewayConfig::default().unrouted_patience);
        assert_eq!(scenario.gateway.open_requests(), 0);
    }
}

/// Its gateway died before anybody had a copy: only the client knows what its tokens rest on.
#[test]
fn an_answer_that_nobody_has_a_response_log_of_is_computed_as_its_client_says() {
    for codec in [KvCodec::Raw, KvCodec::Int3, KvCodec::Int4, KvCodec::Int8] {
        let mut scenario = Scenario::new();
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
        let actions = scenario.tell(submit);
        let [Action::OpenDecode { open, .. }] = &actions[..] else { panic!("{actions:?}") };
        assert_eq!((open.codec, &open.answered[..]), (codec.into(), &[][..]));
        scenario.decode(DecodeEvent::Granted { cached: 0 });
        let settled = Action::Settled { request: REQUEST, codec: codec.into(), holder: None };
        assert!(scenario.token(0).contains(&settled), "{codec:?}");
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
    let mut scenario = Scenario::new();
    let actions = scenario.tell(submit(begun(10..12)));
    let [Action::OpenDecode { open, .. }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!((open.codec, &open.answered[..]), (KvCodec::Raw.into(), &[Token(10), Token(11)][..]));
    let actions = scenario.decode(DecodeEvent::Granted { cached: 0 });
    assert!(matches!(actions[..], [Action::Accepted { .. }, Action::OpenPrefill { .. }]), "{actions:?}");
    assert_eq!(scenario.token(2), [Action::Token { request: REQUEST, index: 2, sampled: sampled(12) }]);
    assert_eq!(ends(&scenario.decode(DecodeEvent::End(End::Length))), Some(&End::Length));

    // One that was complete already is accepted, too: its client waits for that.
    scenario.tell(submit(begun(10..13)));
    let actions = scenario.decode(DecodeEvent::End(End::Length));
    assert!(matches!(actions[0], Action::Accepted { .. }), "{actions:?}");
    assert_eq!(ends(&actions), Some(&End::Length));
}

#[test]
fn a_peer_gone_from_the_view_is_not_waited_for() {
    let mut scenario = Scenario::new();
    let (decode, _) = scenario.submit();
    let actions = scenario.lose(decode);
    let Some(Action::OpenDecode { leader, .. }) = actions.last() else { panic!("{actions:?}") };
    assert_ne!(*leader, decode);
    scenario.decode(DecodeEvent::Granted { cached: 0 });
    let actions = scenario.lose(PeerId([1; 32]));
    let order = DecodeOrder::PrefillHere { first: None };
    assert!(actions.contains(&Action::Order { request: REQUEST, order }), "{actions:?}");
}

/// Neither the leader of a group nor its gateway's lines need have noticed: whoever is gone, or cut off, is not in the view.
#[test]
fn a_group_that_loses_any_of_its_peers_is_left() {
    let groups = [group_of(&[1, 4], Phase::Prefill), group_of(&[2, 5], Phase::Decode), group(3, Phase::Decode)];
    for first_came in [false, true] {
        let mut scenario = Scenario::of(groups.clone());
        while scenario.submit().0 != PeerId([2; 32]) {
            scenario.tell(Event::Cancel { request: REQUEST });
        }
        scenario.decode(DecodeEvent::Granted { cached: 0 });
        if first_came {
            scenario.first();
        }
        // The second stage of the prefill group, whose leader is there and says that it is up.
        let actions = scenario.lose(PeerId([4; 32]));
        let order = DecodeOrder::PrefillHere { first: first_came.then_some(Token(10)) };
        assert!(actions.contains(&Action::Order { request: REQUEST, order }), "{actions:?}");
        // The second stage of the decode group: what it began goes on elsewhere, and nothing new comes to it.
        let actions = scenario.lose(PeerId([5; 32]));
        assert!(actions.contains(&Action::CloseDecode { request: REQUEST }), "{actions:?}");
        let Some(Action::OpenDecode { leader, open, .. }) = actions.last() else { panic!("{actions:?}") };
        assert_eq!((*leader, open.answered.len()), (PeerId([3; 32]), usize::from(first_came)));
        assert!(scenario.tell(Event::View(scenario.view.clone())).is_empty(), "it is left once");
    }
}

#[test]
fn a_prefill_peer_that_goes_before_there_are_pages_is_not_asked() {
    let mut scenario = Scenario::new();
    let (decode, _) = scenario.submit();
    scenario.lose(PeerId([1; 32]));
    let actions = scenario.decode(DecodeEvent::Granted { cached: 0 });
    let order = DecodeOrder::PrefillHere { first: None };
    assert_eq!(actions.last(), Some(&Action::Order { request: REQUEST, order }), "{actions:?}");
    assert!(!actions.iter().any(|a| matches!(a, Action::OpenPrefill { .. })), "{actions:?}");
    scenario.token(0);
    let actions = scenario.decode(DecodeEvent::End(End::Length));
    let Some(Action::Trace(trace)) = actions.iter().find(|a| matches!(a, Action::Trace(_))) else { panic!() };
    assert_eq!((trace.prefill, trace.decode), (decode, decode));
}

/// A swarm whose groups are not up, and a peer that serves two models and holds one at a time, or both.
fn without_groups(holds_both: bool) -> Scenario {
    let mut scenario = Scenario::new();
    let mut lender = sample::lends_several(0, sample::cards(2));
    let device = &mut lender.devices[0];
    let all = device.memory_bytes;
    device.serves.iter_mut().filter(|_| !holds_both).for_each(|served| served.memory_bytes = all);
    Arc::make_mut(&mut scenario.view.adverts).insert(PeerId([9; 32]), lender);
    scenario.view.up.clear();
    let view = scenario.view.clone();
    scenario.tell(Event::View(view));
    scenario
}

fn asks(scenario: &mut Scenario) -> Vec<Action> {
    asks_as(scenario, REQUEST)
}

fn asks_as(scenario: &mut Scenario, request: RequestId) -> Vec<Action> {
    scenario.tell(Event::Submit {
        request,
        model: MODEL,
        prompt: vec![Token(1); 4],
        generation: Generation {
            sampling: Sampling::greedy(),
            max_new_tokens: 3,
            stop_tokens: vec![],
            class: Default::default(),
        },
        begun: None,
        overrule: None,
        codec: None,
    })
}

#[test]
fn a_request_for_a_model_that_yielded_its_memory_waits_until_it_is_loaded() {
    let mut scenario = without_groups(false);
    assert_eq!(scenario.gateway.traffic(scenario.now), []);
    assert_eq!(asks(&mut scenario), []);
    assert_eq!(scenario.gateway.traffic(scenario.now).len(), 1, "others hear of it at once");
    scenario.now += Duration::from_secs(100);
    assert_eq!(scenario.gateway.traffic(scenario.now).len(), 1, "for as long as it waits");
    let loaded = scenario.view.plan.iter().flat_map(|plan| &plan.groups).map(|g| (g.id, Load::default())).collect();
    scenario.view.up = loaded;
    let view = scenario.view.clone();
    let actions = scenario.tell(Event::View(view));
    assert!(matches!(&actions[..], [Action::OpenDecode { .. }]), "{actions:?}");
}

#[test]
fn a_request_waits_for_memory_no_longer_than_it_is_told() {
    let mut scenario = without_groups(false);
    assert_eq!(asks(&mut scenario), []);
    let (actions, waited) = scenario.silence();
    assert!(matches!(&actions[..], [Action::Unserved { .. }]), "{actions:?}");
    assert_eq!(waited, GatewayConfig::default().loading_patience);
    assert_eq!(scenario.gateway.traffic(scenario.now), []);

    // Nobody waits for what all of the swarm's memory together does not hold.
    let mut scenario = without_groups(false);
    let lender = Arc::make_mut(&mut scenario.view.adverts).get_mut(&PeerId([9; 32])).unwrap();
    lender.devices[0].serves.iter_mut().for_each(|served| served.kv_bytes = served.memory_bytes);
    let view = scenario.view.clone();
    scenario.tell(Event::View(view));
    let actions = asks(&mut scenario);
    assert!(matches!(&actions[..], [Action::Unserved { .. }]), "{actions:?}");

    let actions = asks(&mut without_groups(true));
    assert!(matches!(&actions[..], [Action::Unserved { .. }]), "it is not memory that is missing: {actions:?}");
}

#[test]
fn a_request_that_meets_its_model_as_it_is_swapped_out_waits_for_it() {
    // Who only waited there hears that there is no ring.
    for said in [PLAN_CHANGED, NOT_UP] {
        let mut scenario = without_groups(false);
        let groups = scenario.view.plan.iter().flat_map(|plan| &plan.groups);
        scenario.view.up = groups.map(|group| (group.id, Load::default())).collect();
        let view = scenario.view.clone();
        scenario.tell(Event::View(view));
        let mut actions = asks(&mut scenario);
        assert!(matches!(&actions[..], [Action::OpenDecode { .. }]), "{actions:?}");
        while actions.iter().any(|action| matches!(action, Action::OpenDecode { .. })) {
            actions = scenario.decode(DecodeEvent::Refused(said.into()));
            assert!(!actions.iter().any(|action| matches!(action, Action::Unserved { .. })), "{actions:?}");
        }
        scenario.view.up.clear();
        let view = scenario.view.clone();
        scenario.tell(Event::View(view));
        let (actions, waited) = scenario.silence();
        let [Action::Unserved { reason, .. }] = &actions[..] else { panic!("{actions:?}") };
        assert!(reason.contains("not in memory"), "{reason}");
        assert_eq!(waited, GatewayConfig::default().loading_patience);
    }
}

#[test]
fn requests_that_wait_for_memory_leave_room_for_others() {
    let mut scenario = without_groups(false);
    scenario.gateway = Gateway::new(GatewayConfig { max_requests: 8, ..GatewayConfig::default() });
    let view = scenario.view.clone();
    scenario.tell(Event::View(view));
    for n in 0..2 {
        assert_eq!(asks_as(&mut scenario, RequestId([n; 16])), []);
    }
    let actions = asks(&mut scenario);
    let [Action::Unserved { reason, .. }] = &actions[..] else { panic!("{actions:?}") };
    assert!(reason.contains("too many requests wait"), "{reason}");
}
