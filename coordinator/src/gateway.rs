//! Prompt flow 2, 8 and 9: the owner of requests on the peer that took them.
//!
//! Every submitted request ends exactly once: [`Action::Unserved`] or [`Action::End`], unless its client goes first.
//! Prefill and decode groups only help: what fails there is tried elsewhere, or ends the request with a stated error.

mod observed;
mod patience;
mod request;
mod trace;

pub use trace::{Move, Parts, Predicted, Trace};

use crate::{
    Time,
    gate::{self, KvChoice, PromptCost, SplitChoice, Verdict},
    policy::choice::Dispatch,
    profiler,
    router::{Choice, Pick, Router},
    speeds::{Speeds, Work},
    spot::Served,
    traffic,
    trust::Offence,
};
use observed::Observed;
use patience::{Owes, Patience, Silence};
use request::{Prefill, Request};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tsnode_protocol::{
    Advert, BytesPerSecond, FlopsPerSecond, Group, GroupId, KvCodec, Load, ModelId, ModelShape, PeerId, Phase, Plan,
    RequestId, Sampled, Seconds, Stage, Token, Traffic,
    kv::{Delivery, KvPace},
    limits,
    ring::KvTarget,
    stream::{DecodeEvent, DecodeOrder, DecodeRequest, End, Generation, PrefillEvent, PrefillRequest},
};

/// A link nobody has measured: a common home connection's neighbourhood.
const UNKNOWN_LATENCY: Seconds = Seconds(1e-3);
const UNKNOWN_BANDWIDTH: BytesPerSecond = BytesPerSecond(125e6);
/// Pages are short where fewer than one in so many is free: answers may have to wait for others' ends.
const SHORT: u64 = 8;
/// A silent request is looked at no oftener.
const LOOK: Duration = Duration::from_millis(100);
/// How often a request that nobody serves asks again, should no news of the swarm come.
const HOMELESS_RETRY: Duration = Duration::from_millis(500);

/// How a gateway behaves.
#[derive(Clone, Debug, PartialEq)]
pub struct GatewayConfig {
    /// Requests open at once.
    pub max_requests: usize,
    /// How long a decode group with other work may take to grant pages: longer than it lets a request wait for them.
    pub grant_patience: Duration,
    /// How long a request may go without a sign of progress where it is not known what that takes, or where its group works
    /// for others meanwhile.
    pub progress_patience: Duration,
    /// When to tell a client to ask again.
    pub retry_after: Duration,
    /// How long a request that was begun waits for a group that can go on with it.
    pub homeless_patience: Duration,
    /// Packing of KV.
    pub kv: KvChoice,
    /// When KV leaves, where it is not as pays.
    pub pace: Option<KvPace>,
    /// Whether the cost gate is asked.
    pub split: SplitChoice,
    /// Bytes of a KV element in pages.
    pub element_bytes: u64,
    /// How requests are routed.
    pub dispatch: Dispatch,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            max_requests: 4096,
            grant_patience: Duration::from_secs(40),
            progress_patience: Duration::from_secs(60),
            retry_after: Duration::from_secs(2),
            homeless_patience: Duration::from_secs(60),
            kv: KvChoice::Auto,
            pace: None,
            split: SplitChoice::Auto,
            element_bytes: 2,
            dispatch: Dispatch::Live,
        }
    }
}

/// What a gateway routes by.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    /// The adopted plan.
    pub plan: Option<Arc<Plan>>,
    /// Groups whose leaders say they take requests, with what they have to do.
    pub up: BTreeMap<GroupId, Load>,
    /// Everyone's adverts.
    pub adverts: Arc<BTreeMap<PeerId, Advert>>,
    /// Who led prefill and decode where the KV between them was found wrong: such prompts are computed where they are decoded.
    pub barred: Arc<BTreeSet<(PeerId, PeerId)>>,
}

impl View {
    /// Whether every peer of a group is there.
    fn is_whole(&self, group: &Group) -> bool {
        group.stages.iter().all(|stage| self.adverts.contains_key(&stage.peer))
    }

    /// Without the groups that have lost a peer: their leaders may not have noticed yet.
    fn of_whole_groups(mut self) -> Self {
        let up = std::mem::take(&mut self.up);
        let group = |id: &GroupId| self.plan.as_ref().and_then(|plan| plan.group(*id));
        let whole = up.into_iter().filter(|(id, _)| group(id).is_none_or(|group| self.is_whole(group)));
        self.up = whole.collect();
        self
    }
}

/// What happens to requests.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A client's request.
    Submit {
        /// Its name.
        request: RequestId,
        /// The model.
        model: ModelId,
        /// The prompt.
        prompt: Vec<Token>,
        /// What to generate.
        generation: Generation,
        /// What its client has already, from a gateway that died.
        begun: Option<Begun>,
    },
    /// The client no longer wants it.
    Cancel {
        /// The request.
        request: RequestId,
    },
    /// The swarm has changed.
    View(View),
    /// The decode leader says something.
    Decode {
        /// The request.
        request: RequestId,
        /// What.
        event: DecodeEvent,
    },
    /// The line to the decode leader ended without an end.
    DecodeLost {
        /// The request.
        request: RequestId,
        /// Why.
        reason: String,
    },
    /// The prefill leader says something.
    Prefill {
        /// The request.
        request: RequestId,
        /// What.
        event: PrefillEvent,
    },
    /// The line to the prefill leader ended without an end.
    PrefillLost {
        /// The request.
        request: RequestId,
        /// Why.
        reason: String,
    },
    /// The time [`Gateway::deadline`] asked for.
    Deadline,
}

/// An answer that another gateway began.
#[derive(Clone, Debug, PartialEq)]
pub struct Begun {
    /// What its prompt's KV goes through.
    pub codec: KvCodec,
    /// The answer so far; at least one token.
    pub answer: Vec<Token>,
}

/// What a gateway does.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Ask this leader to decode.
    OpenDecode {
        /// The request.
        request: RequestId,
        /// Whom.
        leader: PeerId,
        /// What to ask.
        open: DecodeRequest,
    },
    /// Ask this leader to prefill.
    OpenPrefill {
        /// The request.
        request: RequestId,
        /// Whom.
        leader: PeerId,
        /// What to ask.
        open: PrefillRequest,
    },
    /// Tell the decode leader.
    Order {
        /// The request.
        request: RequestId,
        /// What.
        order: DecodeOrder,
    },
    /// Hang up on the decode leader.
    CloseDecode {
        /// The request.
        request: RequestId,
    },
    /// Hang up on the prefill leader.
    ClosePrefill {
        /// The request.
        request: RequestId,
    },
    /// Tell the client that it is being served.
    Accepted {
        /// The request.
        request: RequestId,
        /// Who prefills.
        prefill: PeerId,
        /// Who decodes.
        decode: PeerId,
    },
    /// Tell the client that nobody serves it now.
    Unserved {
        /// The request.
        request: RequestId,
        /// Why.
        reason: String,
        /// When to ask again.
        retry_after: Duration,
    },
    /// Give the client the next token.
    Token {
        /// The request.
        request: RequestId,
        /// Place in the answer.
        index: u32,
        /// The token.
        sampled: Sampled,
    },
    /// The client has its first token: from now on the prompt's KV goes through this wherever the request goes.
    Settled {
        /// The request.
        request: RequestId,
        /// The packing.
        codec: KvCodec,
    },
    /// A peer has done what it should not.
    Blame {
        /// Who.
        peer: PeerId,
        /// What.
        offence: Offence,
    },
    /// It ended well, all of it computed where it began; right before the end.
    Served(Served),
    /// What ran where; right before the end.
    Trace(Trace),
    /// Tell the client that this was all.
    End {
        /// The request.
        request: RequestId,
        /// How it ended.
        end: End,
    },
}

/// The requests of one peer's clients.
#[derive(Debug)]
pub struct Gateway {
    config: GatewayConfig,
    view: View,
    requests: BTreeMap<RequestId, Request>,
    router: Router,
    observed: Observed,
    speeds: Speeds,
    patience: Patience,
    traffic: traffic::Watch,
}

impl Gateway {
    /// A gateway without requests.
    #[must_use]
    pub fn new(config: GatewayConfig) -> Self {
        let router = Router::new(config.dispatch);
        let (observed, speeds, patience) = (Observed::default(), Speeds::default(), Patience::default());
        let (view, requests, traffic) = (View::default(), BTreeMap::new(), traffic::Watch::default());
        Self { config, view, requests, router, observed, speeds, patience, traffic }
    }

    /// Requests that have not ended.
    #[must_use]
    pub fn open_requests(&self) -> usize {
        self.requests.len()
    }

    /// What this gateway's clients have asked for of late.
    pub fn traffic(&mut self, now: Time) -> Vec<Traffic> {
        self.traffic.said(now)
    }

    /// When to wake if nothing else happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.requests.values().map(|r| r.deadline).min()
    }

    /// One event, and what follows from it.
    pub fn on_event(&mut self, now: Time, event: Event) -> Vec<Action> {
        let mut out = Vec::new();
        match event {
            Event::View(view) => {
                self.view = view.of_whole_groups();
                self.observed.retain(|peer| self.view.adverts.contains_key(peer));
                self.leave_the_dead(now, &mut out);
                self.house_the_homeless(now, &mut out);
            }
            Event::Submit { request, model, prompt, generation, begun } => {
                if begun.is_none() {
                    let arrived = profiler::Event::Arrived { prompt: tokens(prompt.len()) };
                    self.traffic.on_event(now, model, arrived);
                }
                self.submit(now, request, Request::new(now, model, prompt, generation).with(begun), &mut out);
            }
            Event::Cancel { request } => self.hang_up(request, &mut out),
            Event::Decode { request, event } => self.decode(now, request, event, &mut out),
            Event::DecodeLost { request, reason } => self.decode_lost(now, request, &reason, &mut out),
            Event::Prefill { request, event } => self.prefill(now, request, event, &mut out),
            Event::PrefillLost { request, reason } => self.prefill_failed(now, request, reason, &mut out),
            Event::Deadline => self.expire(now, &mut out),
        }
        out
    }

    fn submit(&mut self, now: Time, request: RequestId, new: Request, out: &mut Vec<Action>) {
        if self.requests.len() >= self.config.max_requests || self.requests.contains_key(&request) {
            let reason = "this peer has too many requests open".to_owned();
            return out.push(Action::Unserved { request, reason, retry_after: self.config.retry_after });
        }
        self.requests.insert(request, new);
        self.route(now, request, out);
    }

    /// Picks groups not tried yet and asks the decode leader; without any, the request ends.
    fn route(&mut self, now: Time, request: RequestId, out: &mut Vec<Action>) {
        let (up, weights) = (self.live_queues(now), self.weights());
        let Some(r) = self.requests.get_mut(&request) else { return };
        let plan = self.view.plan.as_deref();
        // Names are random: gateways begin their draws anywhere.
        let seed = u64::from_le_bytes(std::array::from_fn(|i| request.0[i]));
        let choice = Choice { plan, up: &up, tried: &r.tried, weights: &weights };
        self.router.at(Seconds(now.as_secs_f64()));
        let picked = self.router.pick(choice, r.model, r.asked(), seed);
        r.routed = picked.as_ref().ok().copied();
        // Whoever computed the prompt before may have it still.
        let holder = r.prefilled_by.filter(|id| up.contains_key(id) && plan.is_some_and(|p| p.group(*id).is_some()));
        let groups = picked.as_ref().ok().and_then(|p| {
            Some((plan?.group(holder.filter(|_| p.prefill != p.decode).unwrap_or(p.prefill))?, plan?.group(p.decode)?))
        });
        let leaders = groups.and_then(|(p, d)| Some((p, p.leader()?, d, d.leader()?)));
        let Some((prefill, prefill_leader, decode, decode_leader)) = leaders else {
            let why = picked.err().map_or_else(|| "the plan is incomplete".to_owned(), |e| e.to_string());
            return self.unserved(now, request, &why, out);
        };
        let verdict = judge(&self.config, &self.view, &self.observed, r, prefill, decode);
        let barred = self.view.barred.contains(&(prefill_leader, decode_leader));
        let split = prefill.id != decode.id
            && !barred
            && match (self.config.split, &verdict) {
                (SplitChoice::Always, _) => true,
                (SplitChoice::Auto, Some(verdict)) => verdict.splits(),
                (SplitChoice::Auto, None) => false,
            };
        r.reason = match &verdict {
            _ if barred => "KV between these two was found wrong".to_owned(),
            Some(verdict) if prefill.id != decode.id => verdict.to_string(),
            _ => "one group does both".to_owned(),
        };
        if r.answer.is_empty() {
            r.codec = if split { verdict.map_or(KvCodec::Int4, |v| v.codec) } else { KvCodec::Raw };
        }
        r.pace = self.config.pace.or(verdict.map(|v| v.pace)).unwrap_or_default();
        r.predicted = verdict.map(|v| Predicted { elsewhere: v.remote, here: v.local });
        r.homeless_until = None;
        r.pick = Some(Pick { prefill: if split { prefill.id } else { decode.id }, decode: decode.id });
        r.prefill_leader = Some(if split { prefill_leader } else { decode_leader });
        r.decode_leader = Some(decode_leader);
        r.prefillers = if split { peers(prefill) } else { Vec::new() };
        r.decoders = peers(decode);
        r.prefill = if split { Prefill::Wanted } else { Prefill::ByDecode };
        r.heard(now);
        (r.granted_at, r.flows, r.last_token) = (None, false, None);
        let has_nothing_to_do = |load: &Load| load.running + load.waiting + load.pending_tokens == 0;
        r.asked_idle = up.get(&decode.id).is_some_and(has_nothing_to_do);
        let open = DecodeRequest {
            request,
            group: decode.id,
            prompt: r.prompt.clone(),
            answered: r.answer.clone(),
            generation: r.generation.clone(),
            await_kv: split,
            codec: r.codec,
        };
        out.push(Action::OpenDecode { request, leader: decode_leader, open });
    }

    /// What groups have to do: heartbeats lag, so what this gateway gave them itself counts at least.
    /// One that hangs is none where another is up.
    fn live_queues(&self, now: Time) -> BTreeMap<GroupId, Load> {
        let mut own: BTreeMap<GroupId, u32> = BTreeMap::new();
        for pick in self.requests.values().filter_map(|r| r.pick) {
            *own.entry(pick.decode).or_default() += 1;
        }
        let model = |id: &GroupId| self.view.plan.as_ref().and_then(|plan| Some(plan.group(*id)?.model));
        let works = |id: &GroupId| !self.patience.is_out(now, *id);
        let working: BTreeSet<ModelId> = self.view.up.keys().filter(|id| works(id)).filter_map(model).collect();
        let counts = |id: &GroupId| works(id) || model(id).is_none_or(|model| !working.contains(&model));
        let corrected = |(id, load): (&GroupId, &Load)| {
            let own = own.get(id).copied().unwrap_or(0);
            (*id, Load { running: load.running.max(own.saturating_sub(load.waiting)), ..*load })
        };
        self.view.up.iter().filter(|(id, _)| counts(id)).map(corrected).collect()
    }

    /// Of groups that are slower than they claim.
    fn weights(&self) -> BTreeMap<GroupId, f64> {
        let groups = self.view.plan.iter().flat_map(|p| &p.groups);
        let of = |id| self.speeds.weight(id, Phase::Prefill).min(self.speeds.weight(id, Phase::Decode));
        groups.map(|g| (g.id, of(g.id))).filter(|(_, weight)| *weight < 1.0).collect()
    }

    /// How long a group took is held against what it claims.
    fn saw(&mut self, group: Option<GroupId>, work: Work, took: Duration, out: &mut Vec<Action>) {
        let group = group.and_then(|id| self.view.plan.as_ref()?.group(id));
        if let (Some(group), Work::Prompt { .. }) = (group, work) {
            self.patience.prompt(group.id, work.claimed(&self.view, group), took);
        }
        let blame = group.and_then(|group| self.speeds.saw(&self.view, group, work, took.as_secs_f64()));
        out.extend(blame.map(|(peer, offence)| Action::Blame { peer, offence }));
    }

    fn decode(&mut self, now: Time, request: RequestId, event: DecodeEvent, out: &mut Vec<Action>) {
        let Some(r) = self.requests.get_mut(&request) else { return };
        if let (Some(pick), true) = (r.pick, is_progress(&event)) {
            self.patience.sign(now, pick.decode);
            // While a prefill group is at work, it is that one which owes something.
            if r.prefill != Prefill::Running {
                r.heard(now);
            }
        }
        match event {
            DecodeEvent::Granted { cached } => {
                if r.answer.is_empty() {
                    r.cached = cached;
                }
                self.granted(now, request, out);
            }
            DecodeEvent::Refused(reason) => {
                r.refusal = Some(reason);
                self.elsewhere(now, request, out);
            }
            DecodeEvent::KvArrived { mut deliveries, .. } => {
                let plan = self.view.plan.as_deref();
                deliveries.retain(|d| r.pick.is_some_and(|pick| is_between(plan, pick, d)));
                deliveries.truncate(2 * limits::STAGES);
                if let Some(shape) = shape(&self.view, r.model) {
                    self.observed.note(&deliveries, r.codec, &shape, self.config.element_bytes);
                }
                r.line.arrived(now, deliveries);
            }
            DecodeEvent::Computed(computed) => r.line.computed(computed),
            DecodeEvent::KvFailed(reason) => {
                // The decode side computes the prompt itself; whatever the prefill side still does is of no use.
                r.moved_home(reason);
                r.heard(now);
                out.push(Action::ClosePrefill { request });
            }
            DecodeEvent::Token { index, sampled } => {
                self.learn_pace(now, request);
                self.token(now, request, index, sampled, out);
            }
            DecodeEvent::End(End::Failed(reason)) => self.decode_lost(now, request, &reason, out),
            DecodeEvent::End(end) => self.finish(now, request, end, out),
        }
    }

    fn granted(&mut self, now: Time, request: RequestId, out: &mut Vec<Action>) {
        let Some(r) = self.requests.get_mut(&request) else { return };
        let (Some(prefill), Some(decode), Some(pick)) = (r.prefill_leader, r.decode_leader, r.pick) else { return };
        if !std::mem::replace(&mut r.accepted, true) {
            out.push(Action::Accepted { request, prefill, decode });
        }
        r.granted_at = Some(now);
        if r.prefill != Prefill::Wanted {
            return;
        }
        if !r.prefillers.iter().all(|peer| self.view.adverts.contains_key(peer)) {
            // It went while the decode side looked for pages.
            r.moved_home("a peer that was to prefill is gone".into());
            return out.push(Action::Order { request, order: DecodeOrder::PrefillHere { first: None } });
        }
        r.prefill = Prefill::Running;
        r.prefill_from = now;
        r.heard(now);
        let decode_group = self.view.plan.as_ref().and_then(|p| p.group(pick.decode));
        let targets = decode_group.map_or_else(Vec::new, |group| targets(&self.view, group));
        let open = PrefillRequest {
            request,
            group: pick.prefill,
            prompt: r.prompt.clone(),
            generation: r.generation.clone(),
            targets,
            codec: r.codec,
            pace: r.pace,
        };
        out.push(Action::OpenPrefill { request, leader: prefill, open });
    }

    fn prefill(&mut self, now: Time, request: RequestId, event: PrefillEvent, out: &mut Vec<Action>) {
        let Some(r) = self.requests.get_mut(&request) else { return };
        if r.prefill != Prefill::Running {
            return;
        }
        r.heard(now);
        if let (Some(pick), false) = (r.pick, matches!(event, PrefillEvent::Failed(_))) {
            self.patience.sign(now, pick.prefill);
        }
        match event {
            PrefillEvent::First { sampled, computed, cached } => {
                if r.next_index() > 0 {
                    return;
                }
                r.line.computed(computed);
                (r.cached, r.prefilled_by) = (cached, r.pick.map(|p| p.prefill));
                let token = sampled.token;
                r.first = Some(token);
                let computed = Work::Prompt { tokens: (r.prompt.len() as u32).saturating_sub(cached) };
                let (group, took) = (r.prefilled_by, now.saturating_sub(r.prefill_from));
                self.saw(group, computed, took, out);
                self.token(now, request, 0, sampled, out);
                out.push(Action::Order { request, order: DecodeOrder::Begin(token) });
            }
            PrefillEvent::KvSent { .. } => {
                r.prefill = Prefill::Done;
                out.push(Action::ClosePrefill { request });
            }
            PrefillEvent::Failed(reason) => self.prefill_failed(now, request, reason, out),
        }
    }

    fn prefill_failed(&mut self, now: Time, request: RequestId, reason: String, out: &mut Vec<Action>) {
        let Some(r) = self.requests.get_mut(&request) else { return };
        if r.prefill != Prefill::Running {
            return;
        }
        r.heard(now);
        let first = r.first.filter(|_| r.next_index() == 1);
        r.moved_home(reason);
        out.push(Action::ClosePrefill { request });
        out.push(Action::Order { request, order: DecodeOrder::PrefillHere { first } });
    }

    /// Tokens come in order; one that was passed on already may come again after a fallback, and is the same.
    fn token(&mut self, now: Time, request: RequestId, index: u32, sampled: Sampled, out: &mut Vec<Action>) {
        let Some(r) = self.requests.get_mut(&request) else { return };
        if index < r.next_index() {
            return;
        }
        if index > r.next_index() {
            let reason = format!("token {index} came where {} was next", r.next_index());
            return self.decode_lost(now, request, &reason, out);
        }
        r.answer.push(sampled.token);
        r.tried.clear();
        if index == 1 {
            r.second_at = Some(now);
        }
        if index == 0 {
            out.push(Action::Settled { request, codec: r.codec });
        }
        if let (true, Some(routed)) = (r.line.token(now), r.routed) {
            self.router.prompt_done(r.model, routed.prefill, r.asked());
        }
        out.push(Action::Token { request, index, sampled });
    }

    fn decode_lost(&mut self, now: Time, request: RequestId, reason: &str, out: &mut Vec<Action>) {
        let Some(r) = self.requests.get_mut(&request) else { return };
        r.refusal = Some(reason.to_owned());
        r.line.lost(now);
        r.moves.extend(r.decode_leader.filter(|_| r.accepted).map(|from| Move {
            from,
            reason: reason.to_owned(),
            answered: r.next_index(),
            at: r.line.since(now),
        }));
        self.elsewhere(now, request, out);
    }

    /// A token comes; how long its group took for it says how long others of it may take.
    fn learn_pace(&mut self, now: Time, request: RequestId) {
        let Some(r) = self.requests.get_mut(&request) else { return };
        let (Some(pick), flows) = (r.pick, std::mem::replace(&mut r.flows, true)) else { return };
        let gap = now.saturating_sub(r.last_token.replace(now).unwrap_or(now));
        if flows {
            return self.patience.gap(pick.decode, gap);
        }
        let Some(granted) = r.granted_at.filter(|_| r.prefill == Prefill::ByDecode) else { return };
        let tokens = r.prompt.len() as u32 + r.next_index();
        let group = self.view.plan.as_ref().and_then(|plan| plan.group(pick.decode));
        let expected = group.and_then(|group| Work::Prompt { tokens }.claimed(&self.view, group));
        self.patience.prompt(pick.decode, expected, now.saturating_sub(granted));
    }

    /// What a group owes a request, by its adverts and its queue. Nothing is known where pages may be others' for long.
    fn owes(&self, r: &Request, group: GroupId) -> Owes {
        let most = if r.granted_at.is_some() { self.config.progress_patience } else { self.config.grant_patience };
        let load = self.view.up.get(&group).copied().unwrap_or_default();
        let is_short = load.running > 1 && u64::from(load.free_pages) * SHORT < u64::from(load.total_pages);
        if is_short || (r.granted_at.is_none() && !r.asked_idle) {
            return Owes { within: None, most };
        }
        let steps = self.steps_until_a_sign(r, group, load);
        let within = if r.prefill == Prefill::Running && r.first.is_some() {
            // The KV of its prompt is on its way.
            let sent = r.predicted.filter(|_| self.is_measured(r)).map(|p| p.elsewhere.0);
            steps.zip(sent).map(|(steps, sent)| steps + sent)
        } else {
            steps
        };
        Owes { within, most }
    }

    /// How long a group computes before it gives a request a sign (s): all prompts there may come first, and a step be shared
    /// by all who are there.
    fn steps_until_a_sign(&self, r: &Request, group: GroupId, load: Load) -> Option<f64> {
        let known = self.view.plan.as_ref()?.group(group)?;
        let waits = |other: &&Request| other.debtor() == Some(group) && !other.flows && other.granted_at.is_some();
        let tokens = |r: &Request| r.prompt.len() as u32 + r.next_index();
        let mine = self.requests.values().filter(waits).map(tokens).fold(0, u32::saturating_add);
        let prompts = Work::Prompt { tokens: load.pending_tokens.max(mine).max(1) }.claimed(&self.view, known)?;
        let step = Work::Answer { tokens: 1, context: tokens(r) }.claimed(&self.view, known)?;
        Some(prompts + step * f64::from(1 + load.running))
    }

    /// Whether the link is known over which the KV of a request's prompt goes.
    fn is_measured(&self, r: &Request) -> bool {
        let link = |(from, to): (PeerId, PeerId)| self.view.adverts.get(&from)?.links.iter().find(|l| l.to == to);
        r.prefill_leader.zip(r.decode_leader).and_then(link).is_some()
    }

    /// What a group was doing of which a peer is gone from the view is lost, before any connection to it times out and
    /// whatever its leader has noticed. Who is cut off is gone, too.
    fn leave_the_dead(&mut self, now: Time, out: &mut Vec<Action>) {
        let bereft = |peers: &[PeerId]| peers.iter().any(|peer| !self.view.adverts.contains_key(peer));
        let with = |role: fn(&Request) -> &[PeerId]| -> Vec<RequestId> {
            self.requests.iter().filter(|(_, r)| bereft(role(r))).map(|(request, _)| *request).collect()
        };
        let (decode, prefill) = (with(|r| &r.decoders), with(|r| &r.prefillers));
        for request in prefill {
            self.prefill_failed(now, request, "a peer that prefilled is gone".into(), out);
        }
        for request in decode {
            self.decode_lost(now, request, "a peer of it is gone from the swarm", out);
        }
    }

    /// Another group may take it, or go on with it from the tokens that its client has.
    fn elsewhere(&mut self, now: Time, request: RequestId, out: &mut Vec<Action>) {
        let Some(r) = self.requests.get_mut(&request) else { return };
        out.push(Action::CloseDecode { request });
        if r.prefill == Prefill::Running {
            out.push(Action::ClosePrefill { request });
        }
        r.first = None;
        (r.decode_leader, r.prefill_leader) = (None, None);
        (r.decoders, r.prefillers) = (Vec::new(), Vec::new());
        if let Some(pick) = r.pick.take() {
            r.tried.insert(pick.decode);
        }
        left(&mut self.router, r);
        self.route(now, request, out);
    }

    /// Nobody takes it: a request that was begun waits for somebody, any other is told so.
    fn unserved(&mut self, now: Time, request: RequestId, why: &str, out: &mut Vec<Action>) {
        let Some(r) = self.requests.get_mut(&request) else { return };
        left(&mut self.router, r);
        if r.accepted {
            r.tried.clear();
            let until = *r.homeless_until.get_or_insert(now + self.config.homeless_patience);
            r.deadline = until.min(now + HOMELESS_RETRY);
            return;
        }
        let reason = r.refusal.take().unwrap_or_else(|| why.to_owned());
        self.requests.remove(&request);
        out.push(Action::Unserved { request, reason, retry_after: self.config.retry_after });
    }

    /// A request that was begun asks again, or has waited long enough.
    fn look_for_home(&mut self, now: Time, request: RequestId, until: Time, out: &mut Vec<Action>) {
        if now < until {
            return self.route(now, request, out);
        }
        let refusal = self.requests.get_mut(&request).and_then(|r| r.refusal.take());
        let why = refusal.unwrap_or_else(|| "no group is up".into());
        self.finish(now, request, End::Failed(format!("nobody could go on with it: {why}")), out);
    }

    fn house_the_homeless(&mut self, now: Time, out: &mut Vec<Action>) {
        let homeless = self.requests.iter().filter_map(|(request, r)| Some((*request, r.homeless_until?)));
        for (request, until) in homeless.collect::<Vec<_>>() {
            self.look_for_home(now, request, until, out);
        }
    }

    fn finish(&mut self, now: Time, request: RequestId, end: End, out: &mut Vec<Action>) {
        let Some(mut r) = self.requests.remove(&request) else { return };
        left(&mut self.router, &mut r);
        if let (false, Some(prefill), Some(decode)) = (r.accepted, r.prefill_leader, r.decode_leader) {
            // An answer that was complete when its gateway died.
            out.push(Action::Accepted { request, prefill, decode });
        }
        out.push(Action::CloseDecode { request });
        if matches!(r.prefill, Prefill::Running) {
            out.push(Action::ClosePrefill { request });
        }
        if let Some(trace) = r.trace(now, request) {
            out.push(Action::Trace(trace));
        }
        if matches!(end, End::Stop | End::Length) {
            let answered = profiler::Event::Answered { answer: tokens(r.answer.len()) };
            self.traffic.on_event(now, r.model, answered);
            if let Some((group, work, took)) = r.answered_at_once(now) {
                self.saw(Some(group), work, took, out);
            }
            out.extend(r.served().map(Action::Served));
        }
        out.push(Action::End { request, end });
    }

    fn hang_up(&mut self, request: RequestId, out: &mut Vec<Action>) {
        if let Some(mut r) = self.requests.remove(&request) {
            left(&mut self.router, &mut r);
            out.push(Action::ClosePrefill { request });
            out.push(Action::CloseDecode { request });
        }
    }

    fn expire(&mut self, now: Time, out: &mut Vec<Action>) {
        let due: Vec<RequestId> =
            self.requests.iter().filter(|(_, r)| r.deadline <= now).map(|(request, _)| *request).collect();
        for request in due {
            if let Some(until) = self.requests.get(&request).and_then(|r| r.homeless_until) {
                self.look_for_home(now, request, until, out);
                continue;
            }
            self.judge_silence(now, request, out);
        }
    }

    /// A request was not heard of for a while: it waits on, or its group hangs.
    fn judge_silence(&mut self, now: Time, request: RequestId, out: &mut Vec<Action>) {
        let Some(r) = self.requests.get(&request) else { return };
        let Some(group) = r.debtor() else { return self.decode_lost(now, request, "it made no progress", out) };
        let (owes, due, heard) = (self.owes(r, group), r.deadline, r.heard);
        // Once the first token is there, a silence may be the far side's as well.
        let (prefilling, is_its_own) =
            (r.prefill == Prefill::Running, r.prefill != Prefill::Running || r.first.is_none());
        if let Silence::Wait(until) = self.patience.judge(now, due, group, heard, owes) {
            if let Some(r) = self.requests.get_mut(&request) {
                r.deadline = until.max(now + LOOK);
            }
            return;
        }
        let hangs = is_its_own && self.patience.stalled(now, group);
        if prefilling {
            self.prefill_failed(now, request, "the prefill made no progress".into(), out);
        } else {
            self.decode_lost(now, request, "it made no progress", out);
        }
        if hangs {
            self.leave_queue(now, group, out);
        }
    }

    /// Who waits for pages of a group that hangs need not wait.
    fn leave_queue(&mut self, now: Time, group: GroupId, out: &mut Vec<Action>) {
        let waits = |r: &Request| r.granted_at.is_none() && r.pick.is_some_and(|pick| pick.decode == group);
        let waiting: Vec<RequestId> = self.requests.iter().filter(|(_, r)| waits(r)).map(|(id, _)| *id).collect();
        for request in waiting {
            self.decode_lost(now, request, "it made no progress", out);
        }
    }
}

/// Whether it says that something was done for the request.
fn is_progress(event: &DecodeEvent) -> bool {
    !matches!(event, DecodeEvent::Refused(_) | DecodeEvent::KvFailed(_) | DecodeEvent::End(End::Failed(_)))
}

/// Whether a delivery is from a stage of the group that prefills to one of the group that decodes: a leader may say anything.
fn is_between(plan: Option<&Plan>, pick: Pick, delivery: &Delivery) -> bool {
    let has = |group, peer| {
        let group = plan.and_then(|plan| plan.group(group));
        group.is_some_and(|group| group.stages.iter().any(|stage| stage.peer == peer))
    };
    has(pick.prefill, delivery.from) && has(pick.decode, delivery.to)
}

fn peers(group: &Group) -> Vec<PeerId> {
    group.stages.iter().map(|stage| stage.peer).collect()
}

/// A request is no longer where it was sent.
fn left(router: &mut Router, r: &mut Request) {
    let Some(routed) = r.routed.take() else { return };
    if r.line.first.is_none() {
        router.prompt_done(r.model, routed.prefill, r.asked());
    }
    router.answer_done(r.model, routed.decode, r.asked());
}

fn targets(view: &View, group: &Group) -> Vec<KvTarget> {
    let addresses = |peer| view.adverts.get(&peer).map(|a| a.data_addresses.clone()).unwrap_or_default();
    group.stages.iter().map(|s| KvTarget { peer: s.peer, layers: s.layers, addresses: addresses(s.peer) }).collect()
}

fn judge(
    config: &GatewayConfig,
    view: &View,
    observed: &Observed,
    r: &Request,
    prefill: &Group,
    decode: &Group,
) -> Option<Verdict> {
    let shape = shape(view, r.model)?;
    let (from, to) = (prefill.leader()?, decode.leader()?);
    let link = view.adverts.get(&from).and_then(|a| a.links.iter().find(|l| l.to == to));
    let seen = |c| gate::Codec { pack: observed.packs(prefill, c), unpack: observed.unpacks(decode, c) };
    let case = gate::Case {
        shape,
        tokens: r.prompt.len() as u32,
        remote: side(view, &shape, prefill),
        local: side(view, &shape, decode),
        latency: link.map_or(UNKNOWN_LATENCY, |l| l.latency),
        bandwidth: link.map_or(UNKNOWN_BANDWIDTH, |l| l.bandwidth),
        remote_has: if r.prefilled_by == Some(prefill.id) { r.prompt.len() as u32 } else { 0 },
        element_bytes: config.element_bytes,
        int4: seen(KvCodec::Int4),
        raw: seen(KvCodec::Raw),
    };
    let kv = match r.codec {
        _ if r.answer.is_empty() => config.kv,
        KvCodec::Raw => KvChoice::Raw,
        KvCodec::Int4 => KvChoice::Int4,
        KvCodec::Int8 => KvChoice::Int8,
    };
    Some(gate::weigh(&case, kv))
}

fn shape(view: &View, model: ModelId) -> Option<ModelShape> {
    view.adverts.values().flat_map(|a| &a.models).find(|m| m.id == model).map(|m| m.shape)
}

/// A prompt goes through a group's stages one after the other.
fn side(view: &View, shape: &ModelShape, group: &Group) -> gate::Side {
    let cost = |stage: &Stage| {
        let device = view.adverts.get(&stage.peer).and_then(|a| a.devices.get(usize::from(stage.device)));
        let layers = stage.layers.len();
        match device.and_then(|d| d.profile.as_ref()).filter(|p| p.model == group.model) {
            Some(profile) => PromptCost::measured(profile, layers),
            None => PromptCost::at_rate(shape, layers, device.map_or(FlopsPerSecond(1e9), |d| d.flops)),
        }
    };
    let load = view.up.get(&group.id).copied().unwrap_or_default();
    gate::Side {
        cost: group.stages.iter().map(cost).fold(PromptCost::default(), std::ops::Add::add),
        pending_tokens: load.pending_tokens,
        running: load.running,
    }
}

fn tokens(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
