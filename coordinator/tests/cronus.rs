//! Scenarios of prompts that are parted between two groups: a slow one that computes first parts, and a fast one that computes the
//! rest of each beside its answers.
#![expect(clippy::unwrap_used, reason = "a scenario that cannot be run fails")]

use crate::lenders::{self, AdvertBuilder, MODEL, group, peer};
use std::sync::Arc;
use std::time::Duration;
use tsnode_coordinator::{
    gate::{KvChoice, Overrule},
    gateway::{Action, Begun, Event, Gateway, GatewayConfig, Trace, View},
};
use tsnode_protocol::{
    Advert, BytesPerSecond, KvCodec, Load, Phase, PromptCodec, RequestId, Route, RoutePolicy, Sampled, Sampling,
    Seconds, SettingKey, SettingValue, SwarmSetting, Token,
    stream::{Computed, DecodeEvent, DecodeOrder, DecodeRequest, End, Generation, PrefillEvent, PrefillRequest},
};

const PROMPT: u32 = 1000;

fn request(n: u8) -> RequestId {
    RequestId([n; 16])
}

/// A device on which a token of a prompt takes so long (ms), of a swarm whose members have set that.
fn advert(prompt_token: f64, settings: &[SwarmSetting]) -> Advert {
    AdvertBuilder { prompt_step: 1e-3, prompt_token, bandwidth: Some(BytesPerSecond(1e9)), settings }.build()
}

fn set(policy: Option<RoutePolicy>, at: u64) -> SwarmSetting {
    let (key, value) = (SettingKey::Route { model: None }, SettingValue::Route(policy));
    SwarmSetting { key, value, at, by: peer(9) }
}

/// Peer 1 prefills at a third of the speed of peer 2, which decodes, and peer 3, which may take its place. The fast one has so many
/// tokens of prompts to compute.
struct Scenario {
    gateway: Gateway,
    view: View,
    now: Duration,
}

impl Scenario {
    fn new(config: GatewayConfig, pending_tokens: u32) -> Self {
        let groups = vec![group(1, Phase::Prefill), group(2, Phase::Decode), group(3, Phase::Decode)];
        let route = |i: usize, share| Route { prefill: groups[0].id, decode: groups[i].id, share };
        let routes = vec![route(1, 1.0), route(2, 1e-9)];
        let up = [(0, 0), (1, pending_tokens), (2, 0)];
        let load = |pending_tokens| Load { pending_tokens, ..Load::default() };
        let up = up.map(|(i, pending): (usize, u32)| (groups[i].id, load(pending))).into();
        let view = View { up, ..lenders::view(groups, routes, []) };
        let mut scenario = Self { gateway: Gateway::new(config), view, now: Duration::ZERO };
        scenario.sets(Some(RoutePolicy::Cronus), 1);
        scenario
    }

    fn busy() -> Self {
        Self::new(GatewayConfig { kv: KvChoice::Int4, ..GatewayConfig::default() }, 2000)
    }

    /// Members have set how requests are routed.
    fn sets(&mut self, policy: Option<RoutePolicy>, at: u64) -> Vec<Action> {
        let set = [set(policy, at)];
        let adverts = [(1, 3.0), (2, 1.0), (3, 1.0)].map(|(n, token)| (peer(n), advert(token, &set)));
        self.view.adverts = Arc::new(adverts.into());
        self.tell(Event::View(self.view.clone()))
    }

    fn tell(&mut self, event: Event) -> Vec<Action> {
        self.gateway.on_event(self.now, event)
    }

    fn ask(
        &mut self,
        n: u8,
        overrule: Option<Overrule>,
        codec: Option<PromptCodec>,
        begun: Option<Begun>,
    ) -> Vec<Action> {
        let sampling = Sampling { temperature: 0.5, ..Sampling::greedy() };
        let generation = Generation { sampling, max_new_tokens: 9, stop_tokens: vec![], class: Default::default() };
        let (request, prompt) = (request(n), (0..PROMPT).map(Token).collect());
        self.tell(Event::Submit { request, model: MODEL, prompt, generation, begun, overrule, codec })
    }

    /// What a decode group is asked for a new request.
    fn asked(&mut self, n: u8) -> DecodeRequest {
        opened(&self.ask(n, None, None, None))
    }

    fn decode(&mut self, n: u8, event: DecodeEvent) -> Vec<Action> {
        self.tell(Event::Decode { request: request(n), event })
    }

    fn grant(&mut self, n: u8) -> Option<PrefillRequest> {
        let actions = self.decode(n, DecodeEvent::Granted { cached: 0 });
        actions.into_iter().find_map(|action| match action {
            Action::OpenPrefill { open, .. } => Some(open),
            _ => None,
        })
    }

    fn token(&mut self, n: u8, index: u32) -> Vec<Action> {
        self.decode(n, DecodeEvent::Token { index, sampled: sampled(10 + index) })
    }

    /// The slow one has computed what it was asked for.
    fn first(&mut self, n: u8) -> Vec<Action> {
        let computed = Computed { queued: Seconds(0.0), took: Seconds(0.5) };
        let event = PrefillEvent::First { sampled: sampled(99), computed, cached: 0 };
        self.tell(Event::Prefill { request: request(n), event })
    }

    fn kv_sent(&mut self, n: u8) -> Vec<Action> {
        let event = PrefillEvent::KvSent { bytes: 1, after: Seconds(0.1) };
        self.tell(Event::Prefill { request: request(n), event })
    }
}

fn sampled(n: u32) -> Sampled {
    Sampled { token: Token(n), logprob: None, top: vec![] }
}

fn opened(actions: &[Action]) -> DecodeRequest {
    let open = |action: &Action| match action {
        Action::OpenDecode { open, .. } => Some(open.clone()),
        _ => None,
    };
    actions.iter().find_map(open).unwrap_or_else(|| panic!("{actions:?}"))
}

fn told(actions: &[Action]) -> Vec<u32> {
    let token = |action: &Action| match action {
        Action::Token { sampled, .. } => Some(sampled.token.0),
        _ => None,
    };
    actions.iter().filter_map(token).collect()
}

fn trace(actions: &[Action]) -> Trace {
    let trace = |action: &Action| match action {
        Action::Trace(trace) => Some((**trace).clone()),
        _ => None,
    };
    actions.iter().find_map(trace).unwrap()
}

#[test]
fn the_slow_side_computes_what_it_can_before_the_fast_one_gets_to_it() {
    // Who has nothing to do begins at once.
    let mut scenario = Scenario::new(GatewayConfig::default(), 0);
    let open = scenario.asked(1);
    assert_eq!((open.await_kv, open.codec), (false, KvCodec::Raw.into()));
    // 2000 tokens there take it two seconds, but for what it is spared; a third of that speed is 400 tokens or so.
    let mut parts = [600, 1000, 2000].map(|pending| {
        let open = Scenario::new(GatewayConfig::default(), pending).asked(1);
        assert!(open.await_kv && open.codec.check().is_ok() && open.prompt.len() == PROMPT as usize, "{open:?}");
        open.codec.first.unwrap()
    });
    assert!(parts.is_sorted() && (448..=640).contains(&parts[2]), "{parts:?}");
    parts.reverse();
    assert!(!parts.is_sorted());
    // What it can compute all of in time it does, as without the policy.
    let open = Scenario::new(GatewayConfig::default(), 20_000).asked(1);
    assert!(open.await_kv && open.codec.first.is_none());
}

#[test]
fn the_first_token_comes_from_who_computes_the_rest() {
    let mut scenario = Scenario::busy();
    let open = scenario.asked(1);
    let (codec, first) = (open.codec, open.codec.first.unwrap());
    assert_eq!(codec.codec, KvCodec::Int4);
    let prefill = scenario.grant(1).unwrap();
    assert_eq!((prefill.prompt.len(), prefill.codec), (first as usize, KvCodec::Int4));
    assert_eq!(prefill.prompt[..], open.prompt[..first as usize]);
    assert_eq!(prefill.generation.max_new_tokens, 1);
    assert_eq!(scenario.first(1), [], "what follows a part is nobody's token");
    assert_eq!(scenario.kv_sent(1), [Action::ClosePrefill { request: request(1) }]);
    let actions = scenario.token(1, 0);
    assert_eq!(told(&actions), [10]);
    assert!(actions.contains(&Action::Settled { request: request(1), codec, holder: None }), "{actions:?}");
    let actions = scenario.decode(1, DecodeEvent::End(End::Stop));
    let trace = trace(&actions);
    assert_eq!((trace.first_part, trace.prefill, trace.decode), (Some(first), peer(1), peer(2)));
    assert!(trace.reason.starts_with(&format!("{first} of 1000 tokens elsewhere")), "{}", trace.reason);
    let served = actions.iter().find_map(|a| if let Action::Served(served) = a { Some(served) } else { None });
    assert_eq!(served.unwrap().codec, codec, "a check computes it in the same way");
}

/// Wherever it is when the slow side fails, the fast one computes all of it, and the client notices nothing.
#[test]
fn a_first_part_that_fails_is_computed_where_the_rest_is() {
    for is_computed in [false, true] {
        let mut scenario = Scenario::busy();
        let codec = scenario.asked(1).codec;
        scenario.grant(1).unwrap();
        if is_computed {
            scenario.first(1);
        }
        let lost = scenario.tell(Event::PrefillLost { request: request(1), reason: "it died".into() });
        let home = Action::Order { request: request(1), order: DecodeOrder::PrefillHere { first: None } };
        assert_eq!(lost, [Action::ClosePrefill { request: request(1) }, home]);
        let actions = scenario.token(1, 0);
        assert!(told(&actions) == [10]);
        assert!(actions.contains(&Action::Settled { request: request(1), codec, holder: None }), "{actions:?}");
    }
    // One that hangs is waited for as long as it may take, and no longer.
    let mut scenario = Scenario::busy();
    scenario.asked(1);
    scenario.grant(1).unwrap();
    let home = loop {
        scenario.now = scenario.gateway.deadline().unwrap();
        let actions = scenario.tell(Event::Deadline);
        if !actions.is_empty() {
            break actions;
        }
    };
    assert!(home.contains(&Action::Order { request: request(1), order: DecodeOrder::PrefillHere { first: None } }));
    assert!(scenario.now < Duration::from_secs(120), "{:?}", scenario.now);
}

#[test]
fn an_answer_goes_on_elsewhere_as_its_prompt_was_parted() {
    let mut scenario = Scenario::busy();
    let codec = scenario.asked(1).codec;
    scenario.grant(1).unwrap();
    scenario.first(1);
    scenario.kv_sent(1);
    scenario.token(1, 0);
    scenario.token(1, 1);
    let actions = scenario.tell(Event::DecodeLost { request: request(1), reason: "it died".into() });
    let open = opened(&actions);
    assert_eq!((open.codec, &open.answered[..]), (codec, &[Token(10), Token(11)][..]));
    if let Some(prefill) = scenario.grant(1) {
        assert_eq!(prefill.prompt.len(), codec.first.unwrap() as usize);
    }
    // So does a gateway that has it from a response log, or from the client alone.
    for answer in [vec![Token(10)], vec![]] {
        let mut scenario = Scenario::new(GatewayConfig::default(), 0);
        let begun = Begun { codec, holder: None, answer };
        assert_eq!(opened(&scenario.ask(1, None, None, Some(begun))).codec, codec);
    }
}

/// Numbers that stay as they are say nothing of where a prompt was parted.
#[test]
fn raw_numbers_rest_on_no_part() {
    let mut scenario = Scenario::new(GatewayConfig { kv: KvChoice::Raw, ..GatewayConfig::default() }, 2000);
    assert!(scenario.asked(1).codec.first.is_some());
    scenario.grant(1).unwrap();
    scenario.first(1);
    scenario.kv_sent(1);
    let actions = scenario.token(1, 0);
    let settled = Action::Settled { request: request(1), codec: KvCodec::Raw.into(), holder: None };
    assert!(actions.contains(&settled), "{actions:?}");
    let actions = scenario.tell(Event::DecodeLost { request: request(1), reason: "it died".into() });
    assert_eq!(opened(&actions).codec.basis(), KvCodec::Raw.into());
}

#[test]
fn what_is_fixed_stays_as_it_is() {
    let of = |fixed, overrule, codec: Option<PromptCodec>| {
        let mut scenario = Scenario::new(GatewayConfig { fixed, ..GatewayConfig::default() }, 2000);
        opened(&scenario.ask(1, overrule, codec, None))
    };
    let parted = PromptCodec::of_first(KvCodec::Int4, 128, PROMPT);
    assert_eq!(of(Some(KvCodec::Int4), None, None).codec, KvCodec::Int4.into(), "all of it, as the owner says");
    assert!(of(Some(KvCodec::Raw), None, None).codec.first.is_some(), "which changes no token");
    let (here, sent) = (Some(Overrule::InPlace), Some(Overrule::Sent(None)));
    assert!(!of(None, here, None).await_kv && of(None, sent, None).codec.first.is_none());
    // A client may say where it is parted, and is answered the same wherever it is computed.
    for overrule in [None, here, sent] {
        let open = of(None, overrule, Some(parted));
        assert_eq!(open.codec, parted);
        assert!(overrule.is_none() || open.await_kv == (overrule == sent));
    }
}

#[test]
fn requests_wait_at_the_gate_while_one_waits_at_the_slow_side() {
    let mut scenario = Scenario::busy();
    scenario.asked(1);
    scenario.asked(2);
    assert_eq!((scenario.ask(3, None, None, None), scenario.ask(4, None, None, None)), (vec![], vec![]));
    assert_eq!(scenario.ask(5, None, None, None), [], "nobody overtakes");
    opened(&scenario.ask(7, Some(Overrule::InPlace), None, None));
    assert!(scenario.gateway.deadline().is_some_and(|at| at > scenario.now), "and nobody is busy waiting");
    scenario.now = Duration::from_millis(700);
    assert_eq!(scenario.tell(Event::Deadline), []);
    assert!(scenario.gateway.deadline().is_some_and(|at| at > scenario.now));
    // One of those that wait goes; the next gets its turn once a first part is computed.
    scenario.tell(Event::Cancel { request: request(3) });
    scenario.grant(1).unwrap();
    let let_through = scenario.first(1);
    assert!(matches!(&let_through[..], [Action::OpenDecode { request: r, .. }] if *r == request(4)), "{let_through:?}");
    // Another policy holds nobody.
    let let_through = scenario.sets(Some(RoutePolicy::Live), 2);
    assert!(matches!(&let_through[..], [Action::OpenDecode { request: r, .. }] if *r == request(5)), "{let_through:?}");
    assert!(opened(&scenario.ask(6, None, None, None)).codec.first.is_none());
}

/// Slower than it measured itself, the slow side gets less.
#[test]
fn what_parts_took_is_learnt() {
    let mut scenario = Scenario::busy();
    let before = scenario.asked(1).codec.first.unwrap();
    scenario.tell(Event::Cancel { request: request(1) });
    for n in 0..12 {
        let first = scenario.asked(10 + n).codec.first.unwrap_or(0);
        if first == 0 {
            break;
        }
        scenario.grant(10 + n).unwrap();
        // Ten times as long as by its profile, of more tokens and of fewer.
        let cached = if n % 2 == 0 { 0 } else { first / 3 * 2 };
        let computed = Computed { queued: Seconds(0.0), took: Seconds(0.03 * f64::from(first - cached)) };
        let event = PrefillEvent::First { sampled: sampled(9), computed, cached };
        scenario.tell(Event::Prefill { request: request(10 + n), event });
        scenario.tell(Event::Cancel { request: request(10 + n) });
    }
    let after = opened(&scenario.ask(2, None, None, None)).codec.first.unwrap_or(0);
    assert!(after < before / 2, "{after} after {before}");
}
