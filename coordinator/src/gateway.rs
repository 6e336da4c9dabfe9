//! Prompt flow 2, 8 and 9: the owner of requests on the peer that took them.
//!
//! Every submitted request ends exactly once: [`Action::Unserved`] or [`Action::End`], unless its client goes first.
//! Prefill and decode groups only help: what fails there is tried elsewhere, or ends the request with a stated error.

mod events;
mod judging;
mod observed;
mod patience;
mod prefix_cache;
mod prompt_logprobs;
mod queues;
mod recovery;
mod request;
mod silence;
mod slowest;
mod trace;
mod unresponsive;

pub use crate::view::View;
pub use events::{Action, Begun, Event, GatewayConfig};
pub use slowest::{Cause, Part, Slowest};
pub use trace::{Move, Parts, Predicted, Resumption, Trace};

use crate::{
    Time,
    claim_check::{ClaimCheck, Seen, Work},
    gate::{self, Overrule, SplitChoice},
    gateway::{
        judging::{Judging, shape},
        observed::Observed,
        patience::Patience,
        prefix_cache::PrefixCache,
        queues::{Queues, Shares},
        request::{Prefill, Request},
        silence::is_progress,
    },
    profiler,
    router::{Choice, Pick, Router},
    traffic,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tsnode_protocol::{
    Group, GroupId, KvCodec, Load, ModelId, PeerId, Phase, Plan, RequestId, Sampled, Seconds, Traffic,
    kv::Delivery,
    limits,
    ring::KvTarget,
    stream::{DecodeEvent, DecodeOrder, DecodeRequest, End, PrefillEvent, PrefillRequest},
};

/// The requests of one peer's clients.
#[derive(Debug)]
pub struct Gateway {
    config: GatewayConfig,
    view: View,
    requests: BTreeMap<RequestId, Request>,
    router: Router,
    queues: Queues,
    observed: Observed,
    kept: PrefixCache,
    speeds: ClaimCheck,
    patience: Patience,
    /// Who gives no sign of life now.
    unresponsive: BTreeSet<PeerId>,
    traffic: traffic::Watch,
}

impl Gateway {
    /// A gateway without requests.
    #[must_use]
    pub fn new(config: GatewayConfig) -> Self {
        let router = Router::new(config.dispatch);
        let (queues, observed, kept) = (Queues::default(), Observed::default(), PrefixCache::default());
        let (speeds, patience) = (ClaimCheck::default(), Patience::default());
        let (view, requests, traffic) = (View::default(), BTreeMap::new(), traffic::Watch::default());
        let unresponsive = BTreeSet::new();
        Self { config, view, requests, router, queues, observed, kept, speeds, patience, unresponsive, traffic }
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
        let touched = event.request();
        let before = self.shares(touched);
        match event {
            Event::View(view) => {
                self.view = view.of_whole_groups();
                self.speeds.hear(now, &self.view);
                self.queues.hear(now, &self.view.up, &queues::parts(self.requests.values()));
                self.observed.retain(|peer| self.view.adverts.contains_key(peer));
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
                let new = Request::new(now, model, prompt, generation).with(begun);
                let new = new.overruled(overrule).packed(codec);
                self.submit(now, request, new, &mut out);
            }
            Event::Cancel { request } => self.hang_up(request, &mut out),
            Event::Decode { request, event } => self.decode(now, request, event, &mut out),
            Event::DecodeLost { request, reason } => self.decode_lost(now, request, &reason, &mut out),
            Event::Prefill { request, event } => self.prefill(now, request, event, &mut out),
            Event::PrefillLost { request, reason } => self.prefill_lost(now, request, reason, &mut out),
            Event::Unresponsive { peers } => {
                self.unresponsive = peers;
                self.leave_unresponsive(now, &mut out);
                self.retry_unrouted(now, &mut out);
            }
            Event::Deadline => self.expire(now, &mut out),
        }
        let after = self.shares(touched);
        self.queues.moved(now, before, after);
        out
    }

    fn shares(&self, request: Option<RequestId>) -> Shares {
        request.and_then(|request| self.requests.get(&request)).map_or([None; 2], queues::shares)
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
        let judging = Judging { config: &self.config, view: &self.view, observed: &self.observed, kept: &self.kept };
        let groups = picked.as_ref().ok().and_then(|picked| {
            let pick = judging.way(r, *picked, choice);
            Some((plan?.group(pick.prefill)?, plan?.group(pick.decode)?))
        });
        let leaders = groups.and_then(|(p, d)| Some((p, p.leader()?, d, d.leader()?)));
        let Some((prefill, prefill_leader, decode, decode_leader)) = leaders else {
            let why = picked.err().map_or_else(|| "the plan is incomplete".to_owned(), |e| e.to_string());
            return self.unserved(now, request, &why, out);
        };
        let verdict = judging.verdict(r, prefill, decode, &up);
        let barred = self.view.is_barred(prefill, decode);
        let unresponsive = unresponsive::any(&self.unresponsive, &prefill.stages);
        let split = prefill.id != decode.id
            && !barred
            && !unresponsive
            // Whoever prefills for another says nothing of the prompt, and its KV has no logits.
            && !r.wants_prompt_logprobs()
            && match (r.overrule, self.config.split, &verdict) {
                (Some(overrule), ..) => overrule != Overrule::InPlace,
                (None, SplitChoice::Always, _) => true,
                (None, SplitChoice::Auto, Some(verdict)) => verdict.splits(),
                (None, SplitChoice::Auto, None) => false,
            };
        r.reason = match &verdict {
            _ if r.wants_prompt_logprobs() && prefill.id != decode.id => {
                "the prompt's log-probabilities are wanted".to_owned()
            }
            _ if barred => "KV between these two was found wrong".to_owned(),
            _ if unresponsive && prefill.id != decode.id => "who prefills gives no sign of life".to_owned(),
            Some(verdict) if prefill.id != decode.id => verdict.to_string(),
            _ => "one group does both".to_owned(),
        };
        let unknown = || self.config.kv.codec().unwrap_or(KvCodec::Int4);
        let sent = split.then(|| verdict.map_or_else(unknown, |v| v.codec));
        r.codec = gate::kv_codec(r.fixed_codec(&self.config), sent);
        r.pace = r.told_pace(&self.config).or(verdict.map(|v| v.pace)).unwrap_or_default();
        r.predicted = verdict.map(|v| Predicted { elsewhere: v.remote, here: v.local });
        r.homeless_until = None;
        r.pick = Some(Pick { prefill: if split { prefill.id } else { decode.id }, decode: decode.id });
        r.prefill_leader = Some(if split { prefill_leader } else { decode_leader });
        r.decode_leader = Some(decode_leader);
        r.prefillers = if split { prefill.stages.clone() } else { Vec::new() };
        r.decoders = decode.stages.clone();
        r.prefill = if split { Prefill::Wanted } else { Prefill::ByDecode };
        r.heard(now);
        (r.granted_at, r.flows, r.last_token, r.learnt) = (None, false, None, false);
        let has_nothing_to_do = |load: &Load| load.running + load.waiting + load.pending_tokens == 0;
        r.asked_idle = up.get(&decode.id).is_some_and(has_nothing_to_do);
        let open = DecodeRequest {
            request,
            group: decode.id,
            prompt: r.prompt.clone(),
            answered: r.answer.clone(),
            generation: r.to_generate(),
            await_kv: split,
            codec: r.codec,
        };
        out.push(Action::OpenDecode { request, leader: decode_leader, open });
    }

    /// What groups have to do. One that hangs is none where another is up, and one with a peer that is unresponsive none where another is
    /// that does the same.
    fn live_queues(&self, now: Time) -> BTreeMap<GroupId, Load> {
        let own = queues::parts(self.requests.values());
        let model = |id: &GroupId| self.view.plan.as_ref().and_then(|plan| Some(plan.group(*id)?.model));
        let works = |id: &GroupId| !self.patience.is_out(now, *id);
        let working: BTreeSet<ModelId> = self.view.up.keys().filter(|id| works(id)).filter_map(model).collect();
        let responsive = self.responsive();
        let responds = |id: &GroupId| responsive.contains(id) || !self.has_substitute(*id, &responsive);
        let counts =
            |id: &GroupId| responds(id) && (works(id) || model(id).is_none_or(|model| !working.contains(&model)));
        let current =
            |(id, said): (&GroupId, &Load)| (*id, self.queues.now(*id, said, own.get(id).copied().unwrap_or_default()));
        self.view.up.iter().filter(|(id, _)| counts(id)).map(current).collect()
    }

    /// Of groups that are slower than they claim.
    fn weights(&self) -> BTreeMap<GroupId, f64> {
        let groups = self.view.plan.iter().flat_map(|p| &p.groups);
        let of = |id| self.speeds.weight(id, Phase::Prefill).min(self.speeds.weight(id, Phase::Decode));
        groups.map(|g| (g.id, of(g.id))).filter(|(_, weight)| *weight < 1.0).collect()
    }

    /// How long a group took is held against what it claims.
    fn saw(&mut self, group: Option<GroupId>, seen: Seen, out: &mut Vec<Action>) {
        let group = group.and_then(|id| self.view.plan.as_ref()?.group(id));
        if let (Some(group), Work::Prompt { .. }) = (group, seen.work) {
            self.patience.prompt(group.id, seen.work.claimed(&self.view, group), seen.took);
        }
        let sequences = group.map_or(1, |group| self.sequences(group.id));
        let seen = Seen { sequences, ..seen };
        let blame = group.and_then(|group| self.speeds.saw(&self.view, group, seen));
        out.extend(blame.map(|(peer, offence)| Action::Blame { peer, offence }));
    }

    /// How many sequences share a group's steps: as many as it said, or more of this gateway's own; with one that just ended.
    fn sequences(&self, group: GroupId) -> u32 {
        let said = self.view.up.get(&group).map_or(0, |load| load.running);
        let is_there = |r: &&Request| r.flows && r.pick.is_some_and(|pick| pick.decode == group);
        let own = tokens(self.requests.values().filter(is_there).count());
        said.max(own.saturating_add(1))
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
                if r.prefill == Prefill::ByDecode {
                    r.goes_by(Resumption::of(Resumption::Cached, cached, r.prompt.len()));
                }
                if let (Some(pick), true) = (r.pick, r.computes_at_home()) {
                    self.kept.found(pick.decode, &r.trail, cached);
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
        let (Some(prefill), Some(decode), Some(pick)) = (r.prefill_leader, r.decode_leader, r.pick) else { return };
        if !std::mem::replace(&mut r.accepted, true) {
            out.push(Action::Accepted { request, prefill, decode });
        }
        r.granted_at = Some(now);
        if r.prefill != Prefill::Wanted {
            return;
        }
        // They may have gone while the decode side looked for pages.
        let gone = unresponsive::any(&self.unresponsive, &r.prefillers)
            || !r.prefillers.iter().all(|stage| self.view.adverts.contains_key(&stage.peer));
        let decode_group = self.view.plan.as_ref().and_then(|p| p.group(pick.decode));
        let Some(decode_group) = decode_group.filter(|_| !gone) else {
            let why = if gone { "a peer that was to prefill is gone" } else { "the plan has changed" };
            r.moved_home(why.into());
            return out.push(Action::Order { request, order: DecodeOrder::PrefillHere { first: None } });
        };
        r.prefill = Prefill::Running;
        r.prefill_from = now;
        r.heard(now);
        let targets = targets(&self.view, decode_group);
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
                if let Some(pick) = r.pick {
                    self.kept.found(pick.prefill, &r.trail, cached);
                    self.kept.computed(pick.prefill, &r.trail, r.prompt.len());
                }
                let before = std::mem::replace(&mut r.prefilled_by, r.pick.map(|p| p.prefill));
                if r.next_index() > 0 {
                    r.goes_by(Resumption::of(Resumption::Kept, cached, r.prompt.len()));
                    if before != r.prefilled_by {
                        out.push(Action::Settled { request, codec: r.codec, holder: r.prefilled_by });
                    }
                    return;
                }
                r.line.computed(computed);
                r.cached = cached;
                let token = sampled.token;
                r.first = Some(token);
                let computed = Work::Prompt { tokens: (r.prompt.len() as u32).saturating_sub(cached) };
                let (group, took) = (r.prefilled_by, now.saturating_sub(r.prefill_from));
                let seen = Seen { work: computed, at: now, took, stood: Duration::ZERO, sequences: 1 };
                self.saw(group, seen, out);
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
        if index == 1 {
            r.second_at = Some(now);
        }
        if index == 0 {
            out.push(Action::Settled { request, codec: r.codec, holder: r.prefilled_by });
        }
        if let (Some(pick), true) = (r.pick, r.computes_at_home() && !std::mem::replace(&mut r.learnt, true)) {
            self.kept.computed(pick.decode, &r.trail, r.computed());
        }
        if let (true, Some(routed)) = (r.line.token(now), r.routed) {
            self.router.prompt_done(r.model, routed.prefill, r.asked());
        }
        out.push(Action::Token { request, index, sampled });
    }

    fn finish(&mut self, now: Time, request: RequestId, end: End, out: &mut Vec<Action>) {
        let Some(mut r) = self.requests.remove(&request) else { return };
        left(&mut self.router, &mut r);
        self.keeps(&r);
        if let (false, Some(prefill), Some(decode)) = (r.accepted, r.prefill_leader, r.decode_leader) {
            // An answer that was complete when its gateway died.
            out.push(Action::Accepted { request, prefill, decode });
        }
        out.push(Action::CloseDecode { request });
        if matches!(r.prefill, Prefill::Running) {
            out.push(Action::ClosePrefill { request });
        }
        if let Some(trace) = r.trace(now, request, &self.view.adverts) {
            out.push(Action::Trace(Box::new(trace)));
        }
        if matches!(end, End::Stop | End::Length) {
            let answered = profiler::Event::Answered { answer: tokens(r.answer.len()) };
            self.traffic.on_event(now, r.model, answered);
            if let Some((group, seen)) = r.answered_at_once(now) {
                self.saw(Some(group), seen, out);
            }
            out.extend(r.served().map(Action::Served));
        }
        out.push(Action::End { request, end });
    }

    fn hang_up(&mut self, request: RequestId, out: &mut Vec<Action>) {
        if let Some(mut r) = self.requests.remove(&request) {
            left(&mut self.router, &mut r);
            self.keeps(&r);
            out.push(Action::ClosePrefill { request });
            out.push(Action::CloseDecode { request });
        }
    }

    /// What a group computed of a request that it runs no longer, it may keep.
    fn keeps(&mut self, r: &Request) {
        if let (Some(pick), true) = (r.pick, r.learnt && r.computes_at_home()) {
            self.kept.computed(pick.decode, &r.trail, r.computed());
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

fn tokens(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
