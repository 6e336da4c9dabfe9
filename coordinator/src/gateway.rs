//! Prompt flow 2, 8 and 9: the owner of requests on the peer that took them.
//!
//! Every submitted request ends exactly once: [`Action::Unserved`] or [`Action::End`], unless its client goes first.
//! Prefill and decode groups only help: what fails there is tried elsewhere, or ends the request with a stated error.

mod alone;
mod asleep;
mod cronus;
mod events;
mod judging;
mod observed;
mod parting;
mod patience;
mod pools;
mod prefix_cache;
mod prompt_logprobs;
mod queues;
mod recovery;
mod request;
mod routing;
mod silence;
mod slowest;
mod state;
mod trace;
mod unresponsive;

pub use crate::view::View;
pub use events::{Action, Begun, Event, GatewayConfig};
pub use slowest::{LatencyPart, SlowCause, Slowest};
pub use trace::{LatencyBreakdown, Move, Predicted, Resumption, Trace};

use crate::{
    Time,
    claim_check::{ClaimCheck, ClaimedWork, SeenWork},
    gateway::{
        cronus::HeldPrompts,
        judging::shape,
        observed::Observed,
        parting::Predictors,
        patience::Patience,
        prefix_cache::PrefixIndex,
        queues::{GroupQueues, RequestLoads},
        request::{ClientAsk, Request, Steady},
        silence::is_progress,
        state::{RequestPlacement, State},
    },
    profiler,
    router::{Pick, Router},
    settings::SwarmSettings,
    traffic,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tsnode_protocol::{
    Group, GroupId, ModelId, PeerId, Plan, RequestId, Sampled, SeenSpeed, Traffic,
    kv::Delivery,
    limits,
    ring::KvTarget,
    stream::{DecodeEvent, DecodeOrder, End, NOT_UP, PrefillEvent, PrefillRequest},
};

/// The requests of one peer's clients.
#[derive(Debug)]
pub struct Gateway {
    config: GatewayConfig,
    view: View,
    requests: BTreeMap<RequestId, Request>,
    router: Router,
    queues: GroupQueues,
    observed: Observed,
    kept: PrefixIndex,
    predictors: Predictors,
    held: HeldPrompts,
    speeds: ClaimCheck,
    patience: Patience,
    /// Who gives no sign of life now.
    unresponsive: BTreeSet<PeerId>,
    /// When this gateway was last run again after it had not been for a while.
    woke: Option<Time>,
    traffic: traffic::TrafficWatch,
    /// Models of which some device does not hold the weights beside those of all others that it serves, and that are waited for.
    yielding: BTreeSet<ModelId>,
}

impl Gateway {
    /// A gateway without requests.
    #[must_use]
    pub fn new(config: GatewayConfig) -> Self {
        let router = Router::new(config.dispatch);
        let (queues, observed, kept) = (GroupQueues::default(), Observed::default(), PrefixIndex::default());
        let (speeds, patience) = (ClaimCheck::default(), Patience::default());
        let (view, requests, traffic) = (View::default(), BTreeMap::new(), traffic::TrafficWatch::default());
        let unresponsive = BTreeSet::new();
        let (predictors, held) = (Predictors::default(), HeldPrompts::default());
        Self {
            config,
            view,
            requests,
            router,
            queues,
            observed,
            kept,
            predictors,
            held,
            speeds,
            patience,
            unresponsive,
            woke: None,
            traffic,
            yielding: BTreeSet::new(),
        }
    }

    /// Requests that have not ended.
    #[must_use]
    pub fn open_requests(&self) -> usize {
        self.requests.len()
    }

    /// What this gateway's clients have asked for of late.
    pub fn traffic(&mut self, now: Time) -> Vec<Traffic> {
        if self.yielding.is_empty() {
            return self.traffic.said(now);
        }
        let open = self.requests.values().map(|r| r.ask.model).collect();
        self.traffic.said_now(now, &open, &self.yielding)
    }

    /// What this gateway tells others of groups whose claims of speed are in doubt.
    #[must_use]
    pub fn seen_speeds(&self) -> Vec<SeenSpeed> {
        self.speeds.seen_speeds()
    }

    /// When to wake if nothing else happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.requests.values().map(|r| r.deadline).min()
    }

    /// One event, and what follows from it.
    pub fn on_event(&mut self, now: Time, event: Event) -> Vec<Action> {
        let mut out = Vec::new();
        let touched = event.request();
        let before = self.shares(touched);
        match event {
            Event::View(view) => {
                self.view = view.of_whole_groups();
                self.yielding = self.view.yielding();
                self.router.follow(SwarmSettings::of(self.view.adverts.values()), self.view.plan.clone());
                self.speeds.hear(now, &self.view);
                self.queues.hear(now, &self.view.up, &queues::parts(self.requests.values()));
                self.observed.retain(|peer| self.view.adverts.contains_key(peer));
                self.predictors.retain(|id| self.view.group(*id).is_some());
                self.kept.retain(|id| self.view.group(*id).is_some_and(|group| self.view.is_whole(group)));
                self.fail_lost_groups(now, &mut out);
                self.leave_unresponsive(now, &mut out);
                self.retry_unrouted(now, &mut out);
            }
            Event::Submit { request, model, prompt, generation, begun, overrule, codec } => {
                if begun.is_none() {
                    let arrived = profiler::Event::Arrived { prompt: tokens(prompt.len()) };
                    self.traffic.on_event(now, model, arrived);
                }
                let ask = ClientAsk { model, prompt, generation, overrule, codec };
                self.submit(now, request, Request::new(now, ask).with(begun), &mut out);
            }
            Event::Cancel { request } => self.hang_up(now, request, &mut out),
            Event::Decode { request, event } => self.decode(now, request, event, &mut out),
            Event::DecodeLost { request, reason } => self.line_lost(now, request, &reason, &mut out),
            Event::Prefill { request, event } => self.prefill(now, request, event, &mut out),
            Event::PrefillLost { request, reason } => self.prefill_lost(now, request, reason, &mut out),
            Event::Unresponsive { peers } => {
                self.unresponsive = peers;
                self.leave_unresponsive(now, &mut out);
                self.retry_unrouted(now, &mut out);
            }
            Event::Woke => self.woke = Some(now),
            Event::Deadline => self.expire(now, &mut out),
        }
        self.let_through(now, &mut out);
        let after = self.shares(touched);
        self.queues.moved(now, before, after);
        out
    }

    fn shares(&self, request: Option<RequestId>) -> RequestLoads {
        request.and_then(|request| self.requests.get(&request)).map_or([None; 2], queues::shares)
    }

    fn submit(&mut self, now: Time, request: RequestId, new: Request, out: &mut Vec<Action>) {
        if self.requests.len() >= self.config.max_requests || self.requests.contains_key(&request) {
            let reason = "this peer has too many requests open".to_owned();
            return out.push(Action::Unserved { request, reason, retry_after: self.config.retry_after });
        }
        self.requests.insert(request, new);
        if !self.holds(now, request) {
            self.route(now, request, out);
        }
    }

    /// How long a group took is held against what it claims.
    fn saw(&mut self, group: GroupId, seen: SeenWork, out: &mut Vec<Action>) {
        let group = self.view.group(group);
        if let (Some(group), ClaimedWork::Prompt { .. }) = (group, seen.work) {
            self.patience.prompt(group.id, seen.work.claimed(&self.view, group), seen.took);
        }
        let sequences = group.map_or(1, |group| self.sequences(group.id));
        let seen = SeenWork { sequences, ..seen };
        let blame = group.and_then(|group| self.speeds.saw(&self.view, group, seen));
        out.extend(blame.map(|(peer, offence)| Action::Blame { peer, offence }));
    }

    /// How many sequences share a group's steps: as many as it said, or more of this gateway's own; with one that just ended.
    fn sequences(&self, group: GroupId) -> u32 {
        let said = self.view.up.get(&group).map_or(0, |load| load.running);
        let has = |at: &RequestPlacement| at.last_token.is_some() && at.pick.decode == group;
        let is_there = |r: &&Request| r.state.placement().is_some_and(has);
        let own = tokens(self.requests.values().filter(is_there).count());
        said.max(own.saturating_add(1))
    }

    fn decode(&mut self, now: Time, request: RequestId, event: DecodeEvent, out: &mut Vec<Action>) {
        let Some(r) = self.requests.get_mut(&request) else { return };
        // A group that has it no longer was hung up on.
        let Some(pick) = r.state.placement().map(|at| at.pick) else { return };
        if is_progress(&event) {
            self.patience.sign(now, pick.decode);
            // While a prefill group is at work, it is that one which owes something.
            if !r.state.is_prefilling() {
                r.heard(now);
            }
        }
        match event {
            DecodeEvent::Granted { cached } => {
                if r.answer.tokens.is_empty() {
                    r.cached = cached;
                }
                if r.state.computes_here() {
                    r.goes_by(Resumption::of(Resumption::Cached, cached, r.ask.prompt.len()));
                }
                if r.computes_at_home() {
                    self.kept.found(pick.decode, &r.trail, cached);
                }
                self.granted(now, request, out);
            }
            DecodeEvent::Refused(reason) => {
                if reason == NOT_UP {
                    // What it kept went with its ring.
                    self.kept.lost(pick.decode);
                }
                r.refusal = Some(reason);
                self.elsewhere(now, request, out);
            }
            DecodeEvent::KvArrived { mut deliveries, .. } => {
                let plan = self.view.plan.as_deref();
                deliveries.retain(|d| is_between(plan, pick, d));
                deliveries.truncate(2 * limits::STAGES);
                if let Some(shape) = shape(&self.view, r.ask.model) {
                    let element_bytes = self.config.element_bytes(r.ask.model);
                    self.observed.note(&deliveries, r.codec.codec, &shape, element_bytes);
                }
                r.line.arrived(now, deliveries);
            }
            DecodeEvent::Computed(computed) => {
                r.line.computed(computed);
                self.learn_rest(request, computed);
            }
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
            DecodeEvent::PromptLogprobs { from, logprobs } => {
                self.prompt_logprobs(now, request, from, logprobs, out);
            }
            DecodeEvent::End(End::Failed(reason)) => self.decode_lost(now, request, &reason, out),
            DecodeEvent::End(_) if self.lacks_prompt_logprobs(request) => {
                self.decode_lost(now, request, prompt_logprobs::MISSING, out);
            }
            DecodeEvent::End(end) => self.finish(now, request, end, out),
        }
    }

    fn granted(&mut self, now: Time, request: RequestId, out: &mut Vec<Action>) {
        let Some(r) = self.requests.get_mut(&request) else { return };
        let (Some(at), Some((prefill, decode))) = (r.state.placement(), r.state.leaders()) else { return };
        let pick = at.pick;
        if !std::mem::replace(&mut r.accepted, true) {
            out.push(Action::Accepted { request, prefill, decode });
        }
        let Some(pace) = r.state.grant(now) else { return };
        // They may have gone while the decode side looked for pages.
        let gone = unresponsive::any(&self.unresponsive, r.prefillers())
            || !r.prefillers().iter().all(|stage| self.view.adverts.contains_key(&stage.peer));
        let decode_group = self.view.plan.as_ref().and_then(|p| p.group(pick.decode));
        let Some(decode_group) = decode_group.filter(|_| !gone) else {
            let why = if gone { "a peer that was to prefill is gone" } else { "the plan has changed" };
            r.moved_home(why.into());
            return out.push(Action::Order { request, order: DecodeOrder::PrefillHere { first: None } });
        };
        r.heard(now);
        let targets = targets(&self.view, decode_group);
        let (prompt, generation) = r.to_prefill();
        let codec = r.codec.codec;
        let open = PrefillRequest { request, group: pick.prefill, prompt, generation, targets, codec, pace };
        out.push(Action::OpenPrefill { request, leader: prefill, open });
    }

    fn prefill(&mut self, now: Time, request: RequestId, event: PrefillEvent, out: &mut Vec<Action>) {
        let Some(r) = self.requests.get_mut(&request) else { return };
        let State::Prefilling { at, from, .. } = &r.state else { return };
        let (group, from) = (at.pick.prefill, *from);
        r.heard(now);
        if !matches!(event, PrefillEvent::Failed(_)) {
            self.patience.sign(now, group);
        }
        match event {
            PrefillEvent::First { sampled, computed, cached } => {
                self.kept.found(group, &r.trail, cached);
                let tokens = r.codec.tokens(r.ask.prompt.len() as u32);
                self.kept.computed(group, &r.trail, tokens as usize);
                let work = ClaimedWork::Prompt { tokens: tokens.saturating_sub(cached) };
                let took = now.saturating_sub(from);
                let seen = SeenWork { work, at: now, took, stood: Duration::ZERO, sequences: 1 };
                if r.first_part().is_some() {
                    // What follows it is not what follows the prompt.
                    r.state.begins_with(sampled.token);
                    r.goes_by(Resumption::of(Resumption::Kept, cached, r.ask.prompt.len()));
                    self.predictors.computed_first(group, tokens.saturating_sub(cached), computed);
                    return self.saw(group, seen, out);
                }
                let before = r.prefilled_by.replace(group);
                if r.next_index() > 0 {
                    r.goes_by(Resumption::of(Resumption::Kept, cached, r.ask.prompt.len()));
                    if before != r.prefilled_by {
                        out.push(Action::Settled { request, codec: r.codec.basis(), holder: r.prefilled_by });
                    }
                    return;
                }
                r.line.computed(computed);
                r.cached = cached;
                let token = sampled.token;
                r.state.begins_with(token);
                self.saw(group, seen, out);
                self.token(now, request, 0, sampled, out);
                out.push(Action::Order { request, order: DecodeOrder::Begin(token) });
            }
            PrefillEvent::KvSent { .. } => {
                r.state.prefilled();
                out.push(Action::ClosePrefill { request });
            }
            PrefillEvent::Failed(reason) => self.prefill_failed(now, request, reason, out),
        }
    }

    /// Tokens come in order; one that was passed on already may come again after a fallback, and is the same.
    fn token(&mut self, now: Time, request: RequestId, index: u32, sampled: Sampled, out: &mut Vec<Action>) {
        let Some(r) = self.requests.get_mut(&request) else { return };
        if index < r.next_index() {
            return;
        }
        if r.wants_prompt_logprobs() {
            return self.decode_lost(now, request, prompt_logprobs::MISSING, out);
        }
        if index > r.next_index() {
            let reason = format!("token {index} came where {} was next", r.next_index());
            return self.decode_lost(now, request, &reason, out);
        }
        r.answered(&sampled);
        r.tried.clear();
        r.went_back = false;
        r.unrouted = None;
        if index == 1 {
            r.answer.steady = Some(Steady { since: now, stood: Duration::ZERO });
        }
        if index == 0 {
            out.push(Action::Settled { request, codec: r.codec.basis(), holder: r.prefilled_by });
        }
        if let Some(decode) = r.learn() {
            self.kept.computed(decode, &r.trail, r.computed());
        }
        if let (true, Some(at)) = (r.line.token(now), r.state.placement()) {
            self.router.prompt_done(r.ask.model, at.routed.prefill, r.asked());
        }
        out.push(Action::Token { request, index, sampled });
    }

    fn finish(&mut self, now: Time, request: RequestId, end: End, out: &mut Vec<Action>) {
        let Some(r) = self.requests.remove(&request) else { return };
        self.forget(&r);
        if let (false, Some((prefill, decode))) = (r.accepted, r.state.leaders()) {
            // An answer that was complete when its gateway died.
            out.push(Action::Accepted { request, prefill, decode });
        }
        out.push(Action::CloseDecode { request });
        if r.state.is_prefilling() {
            out.push(Action::ClosePrefill { request });
        }
        if let Some(trace) = r.trace(now, request, &self.view) {
            out.push(Action::Trace(Box::new(trace)));
        }
        if matches!(end, End::Stop | End::Length) {
            let answered = profiler::Event::Answered { answer: tokens(r.answer.tokens.len()) };
            self.traffic.on_event(now, r.ask.model, answered);
            if let Some((group, seen)) = r.answered_at_once(now) {
                self.saw(group, seen, out);
            }
            out.extend(r.served().map(Action::Served));
        }
        out.push(Action::End { request, end });
    }

    fn hang_up(&mut self, now: Time, request: RequestId, out: &mut Vec<Action>) {
        if let Some(r) = self.requests.remove(&request) {
            self.forget(&r);
            self.held.forget(r.ask.model, request);
            out.push(Action::ClosePrefill { request });
            out.push(Action::CloseDecode { request });
            // Before the first token nobody here knows how much of the prompt was computed.
            let trace = r.trace(now, request, &self.view).filter(|trace| trace.new_tokens > 0);
            out.extend(trace.map(|trace| Action::HungUp(Box::new(trace))));
        }
    }

    /// A request is no longer where it was sent; what a group computed of it, it may keep.
    fn forget(&mut self, r: &Request) {
        let Some(at) = r.state.placement() else { return };
        left(&mut self.router, r, at.routed);
        if at.learnt {
            self.kept.computed(at.pick.decode, &r.trail, r.computed());
        }
    }

    fn expire(&mut self, now: Time, out: &mut Vec<Action>) {
        let due: Vec<RequestId> =
            self.requests.iter().filter(|(_, r)| r.deadline <= now).map(|(request, _)| *request).collect();
        for request in due {
            match self.requests.get(&request).map(|r| &r.state) {
                Some(&State::Recovering { until }) => self.look_for_home(now, request, until, out),
                Some(State::Routing) => self.waits_on(now, request),
                _ => self.judge_silence(now, request, out),
            }
        }
    }
}

/// Whether a delivery is from a stage of the group that prefills to one of the group that decodes: a leader may say anything.
fn is_between(plan: Option<&Plan>, pick: Pick, delivery: &Delivery) -> bool {
    let has = |group, peer| {
        let group = plan.and_then(|plan| plan.group(group));
        group.is_some_and(|group| group.stages.iter().any(|stage| stage.peer == peer))
    };
    has(pick.prefill, delivery.from) && has(pick.decode, delivery.to)
}

/// A request is no longer where it was sent.
fn left(router: &mut Router, r: &Request, routed: Pick) {
    if r.line.first.is_none() {
        router.prompt_done(r.ask.model, routed.prefill, r.asked());
    }
    router.answer_done(r.ask.model, routed.decode, r.asked());
}

fn targets(view: &View, group: &Group) -> Vec<KvTarget> {
    let addresses = |peer| view.adverts.get(&peer).map(|a| a.data_addresses.clone()).unwrap_or_default();
    group.stages.iter().map(|s| KvTarget { peer: s.peer, layers: s.layers, addresses: addresses(s.peer) }).collect()
}

fn tokens(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
