//! How long a silent group is waited for.

use super::scenario::*;
use std::sync::Arc;
use std::time::Duration;
use tsnode_coordinator::gateway::{Action, Event};
use tsnode_protocol::{
    Group, Load, PeerId, Sampling, Seconds, Token,
    kv::Delivery,
    stream::{DecodeEvent, DecodeOrder, End, Generation, PrefillEvent},
};

#[test]
fn silence_is_not_waited_out() {
    let mut scenario = Scenario::new();
    scenario.submit();
    scenario.decode(DecodeEvent::Granted { cached: 0 });
    let (actions, after) = scenario.silence();
    let order = DecodeOrder::PrefillHere { first: None };
    assert!(actions.contains(&Action::Order { request: REQUEST, order }));
    assert_eq!(after, Duration::from_secs(60), "what is not known is given time");
    let (actions, _) = scenario.silence();
    assert!(matches!(actions.last(), Some(Action::OpenDecode { .. })), "{actions:?}");
}

/// Whoever hangs is in everybody's view, and its connections are open.
#[test]
fn a_group_that_hangs_is_left_within_seconds_and_not_asked_again() {
    let mut scenario = Scenario::new();
    Arc::make_mut(&mut scenario.view.adverts).values_mut().for_each(|a| *a = measured());
    scenario.tell(Event::View(scenario.view.clone()));
    let (decode, _) = scenario.submit();
    scenario.decode(DecodeEvent::Granted { cached: 0 });
    scenario.first();
    scenario.tell(Event::Prefill { request: REQUEST, event: PrefillEvent::KvSent { bytes: 1, after: Seconds(0.1) } });
    for index in 1..20 {
        scenario.now += Duration::from_millis(2);
        scenario.token(index);
    }
    let (actions, after) = scenario.silence();
    let Some(Action::OpenDecode { leader, open, .. }) = actions.last() else { panic!("{actions:?}") };
    assert!(*leader != decode && open.answered.len() == 20 && after < Duration::from_secs(6), "{after:?}");
    for _ in 0..8 {
        scenario.tell(Event::Cancel { request: REQUEST });
        assert_ne!(scenario.submit().0, decode);
    }
    // Nor is the group that prefills waited for, where it is the one.
    scenario.decode(DecodeEvent::Granted { cached: 0 });
    let (actions, after) = scenario.silence();
    let order = DecodeOrder::PrefillHere { first: None };
    assert!(
        actions.contains(&Action::Order { request: REQUEST, order }) && after < Duration::from_secs(6),
        "{after:?}"
    );
}

/// Where pages are short an answer may have to wait until others have ended: that is no reason to leave.
#[test]
fn a_group_short_of_pages_has_its_time() {
    let mut scenario = Scenario::new();
    Arc::make_mut(&mut scenario.view.adverts).values_mut().for_each(|a| *a = measured());
    let full = Load { running: 8, free_pages: 3, total_pages: 100, ..Load::default() };
    scenario.view.up.values_mut().for_each(|load| *load = full);
    scenario.tell(Event::View(scenario.view.clone()));
    scenario.submit();
    scenario.decode(DecodeEvent::Granted { cached: 0 });
    scenario.first();
    scenario.tell(Event::Prefill { request: REQUEST, event: PrefillEvent::KvSent { bytes: 1, after: Seconds(0.1) } });
    scenario.token(1);
    assert_eq!(scenario.silence().1, Duration::from_secs(60));
}

/// Nor is it where another model has the pages that this group's may count on: they come back when that one's answers end.
#[test]
fn a_group_whose_pages_another_model_has_has_its_time() {
    let after = |is_short: bool| {
        let mut scenario = Scenario::new();
        Arc::make_mut(&mut scenario.view.adverts).values_mut().for_each(|a| *a = measured());
        let free = Load { running: 2, free_pages: 100, total_pages: 100, ..Load::default() };
        scenario.view.up.values_mut().for_each(|load| *load = free);
        let leaders = scenario.view.plan.iter().flat_map(|plan| &plan.groups).filter_map(Group::leader);
        scenario.view.short = Arc::new(leaders.filter(|_| is_short).collect());
        scenario.tell(Event::View(scenario.view.clone()));
        scenario.submit();
        scenario.decode(DecodeEvent::Granted { cached: 0 });
        scenario.silence().1
    };
    assert!(after(false) < Duration::from_secs(60), "{:?}", after(false));
    assert_eq!(after(true), Duration::from_secs(60));
}

/// Whoever leads a group may say any number of what it has to do, and of the KV that came.
#[test]
fn numbers_that_no_group_has_keep_no_request_from_its_end() {
    let most = Load { running: u32::MAX, waiting: u32::MAX, pending_tokens: u32::MAX, ..Load::default() };
    for is_waited_out in [true, false] {
        let mut scenario = Scenario::new();
        Arc::make_mut(&mut scenario.view.adverts).values_mut().for_each(|a| *a = measured());
        scenario.view.up.values_mut().for_each(|load| *load = most);
        scenario.tell(Event::View(scenario.view.clone()));
        let (to, _) = scenario.submit();
        scenario.decode(DecodeEvent::Granted { cached: 0 });
        if is_waited_out {
            assert!(!scenario.silence().0.is_empty());
            continue;
        }
        scenario.first();
        let (from, bytes, none) = (PeerId([1; 32]), u64::MAX, Seconds(0.0));
        let (pack, pack_tail, wire, unpack, unpack_tail) = (none, none, none, none, none);
        let delivery = Delivery { from, to, bytes, tiles: 1, streams: 1, pack, pack_tail, wire, unpack, unpack_tail };
        scenario.decode(DecodeEvent::KvArrived { after: none, deliveries: vec![delivery; 2] });
        scenario.token(1);
        let actions = scenario.decode(DecodeEvent::End(End::Length));
        let told = |action: &Action| matches!(action, Action::Trace(trace) if trace.kv_bytes == bytes);
        assert!(actions.iter().any(told), "{actions:?}");
    }
}

/// A host that computes for other groups as well is slower than its advert says: what its leader saw steps take counts.
#[test]
fn a_group_whose_steps_take_long_has_its_time() {
    let after = |step| {
        let mut scenario = Scenario::new();
        Arc::make_mut(&mut scenario.view.adverts).values_mut().for_each(|a| *a = measured());
        scenario.view.up.values_mut().for_each(|load| *load = Load { step, ..Load::default() });
        scenario.tell(Event::View(scenario.view.clone()));
        scenario.submit();
        scenario.decode(DecodeEvent::Granted { cached: 0 });
        scenario.silence().1
    };
    let (claimed, seen) = (after(None), after(Some(Seconds(20.0))));
    assert!(claimed < Duration::from_secs(10) && seen >= Duration::from_secs(20), "{claimed:?}, {seen:?}");
}

#[test]
fn a_long_prompt_on_a_slow_peer_has_its_time_and_so_has_who_waits_behind_it() {
    let mut scenario = Scenario::new();
    Arc::make_mut(&mut scenario.view.adverts).values_mut().for_each(|a| *a = measured());
    scenario.tell(Event::View(scenario.view.clone()));
    let generation =
        Generation { sampling: Sampling::greedy(), max_new_tokens: 3, stop_tokens: vec![], class: Default::default() };
    let prompt = vec![Token(1); 30_000];
    scenario.tell(Event::Submit {
        request: REQUEST,
        model: MODEL,
        prompt,
        generation,
        begun: None,
        overrule: None,
        codec: None,
    });
    scenario.decode(DecodeEvent::Granted { cached: 0 });
    let (_, after) = scenario.silence();
    assert!(after > Duration::from_secs(240), "{after:?} for what takes thirty seconds when all is well");
}
