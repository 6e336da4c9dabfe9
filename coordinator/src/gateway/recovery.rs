//! Prompt flow 8: what was lost goes on elsewhere, from the tokens that the client has.

use super::{Action, Gateway, Move, Request, left, state::State};
use crate::Time;
use std::time::Duration;
use tsnode_protocol::{
    GroupId, RequestId, Stage,
    stream::{DecodeOrder, End, NOT_LED, NOT_UP, PLAN_CHANGED},
};

/// How often a request that nobody serves asks again, should no news of the swarm come.
const UNROUTED_RETRY: Duration = Duration::from_millis(500);
/// How often the groups may all have failed a request, or not taken it, since it last got a token, with its patience counted anew each
/// time: where they are lost one after another, or pages are waited for, each may be the last. What fails for a reason of its own, as
/// where its grammar allows no token, or a prompt that is too long for all that are left, would else go round without end.
const MOST_ROUNDS: u32 = 16;
/// How long one waits that has not begun, where a group lacks its ring: as long as a ring may take to come round. One that has not
/// come back by then has lost a peer for longer.
const RING_PATIENCE: Duration = Duration::from_secs(5);
/// Why a request is turned away that waited for its model, and one that cannot wait for it.
const OVERSLEPT: &str = "its model is not in memory, and devices that serve it were busy with others for too long";
const TOO_MANY_ASLEEP: &str = "its model is not in memory, and too many requests wait here for such models";

/// A request that was begun and that nobody goes on with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unrouted {
    /// When that was so first since it last got a token.
    since: Time,
    /// How often it was so since then.
    times: u32,
}

impl Unrouted {
    /// It is so now.
    fn again(before: Option<Self>, now: Time) -> Self {
        let Self { since, times } = before.unwrap_or(Self { since: now, times: 0 });
        Self { since, times: times.saturating_add(1) }
    }

    /// Since when its patience counts.
    fn counts_since(self, now: Time) -> Time {
        if self.times > MOST_ROUNDS { self.since } else { now }
    }
}

impl Gateway {
    pub(super) fn prefill_failed(&mut self, now: Time, request: RequestId, reason: String, out: &mut Vec<Action>) {
        let Some(r) = self.requests.get_mut(&request) else { return };
        let State::Prefilling { first, .. } = r.state else { return };
        r.heard(now);
        // Of a prompt that is parted it says what follows a part only.
        let first = first.filter(|_| r.next_index() == 1 && r.first_part().is_none());
        r.moved_home(reason);
        out.push(Action::ClosePrefill { request });
        out.push(Action::Order { request, order: DecodeOrder::PrefillHere { first } });
    }

    /// A prefill group broke off what it did: what it kept is not to be counted with. One that says that it failed may have
    /// the prompt, and nobody to send it to.
    pub(super) fn prefill_lost(&mut self, now: Time, request: RequestId, reason: String, out: &mut Vec<Action>) {
        let is_own = self.requests.get(&request).is_some_and(|r| self.may_be_own(now, r.prefillers()));
        let Some(r) = self.requests.get_mut(&request) else { return };
        if let (State::Prefilling { at, .. }, false) = (&r.state, is_own) {
            let group = at.pick.prefill;
            self.kept.lost(group);
            r.prefilled_by = r.prefilled_by.filter(|holder| *holder != group);
        }
        self.prefill_failed(now, request, reason, out);
    }

    pub(super) fn decode_lost(&mut self, now: Time, request: RequestId, reason: &str, out: &mut Vec<Action>) {
        let Some(r) = self.requests.get(&request) else { return };
        let Some(at) = r.state.placement() else { return };
        // Whatever became of it, what it kept is not to be counted with.
        self.kept.lost(at.pick.decode);
        self.breaks_off(now, request, reason);
        self.elsewhere(now, request, out);
    }

    /// Notes why a request goes on, and from where.
    pub(super) fn breaks_off(&mut self, now: Time, request: RequestId, reason: &str) {
        let Some(r) = self.requests.get_mut(&request) else { return };
        let Some(from) = r.state.placement().map(|at| at.leader) else { return };
        r.refusal = Some(reason.to_owned());
        r.line.lost(now);
        if r.accepted {
            let (answered, at) = (r.next_index(), r.line.since(now));
            r.moves.push(Move { from, reason: reason.to_owned(), answered, at, way: None });
        }
    }

    /// What a group was doing of which a peer is gone from the view is lost, before any connection to it times out and
    /// whatever its leader has noticed. Who is cut off is gone, too.
    pub(super) fn fail_lost_groups(&mut self, now: Time, out: &mut Vec<Action>) {
        let bereft = |stages: &[Stage]| stages.iter().any(|stage| !self.view.adverts.contains_key(&stage.peer));
        let with = |role: fn(&Request) -> &[Stage]| -> Vec<RequestId> {
            self.requests.iter().filter(|(_, r)| bereft(role(r))).map(|(request, _)| *request).collect()
        };
        let (decode, prefill) = (with(Request::decoders), with(Request::prefillers));
        for request in prefill {
            self.prefill_lost(now, request, "a peer that prefilled is gone".into(), out);
        }
        for request in decode {
            self.decode_lost(now, request, "a peer of it is gone from the swarm", out);
        }
    }

    /// Another group may take it, or go on with it from the tokens that its client has.
    pub(super) fn elsewhere(&mut self, now: Time, request: RequestId, out: &mut Vec<Action>) {
        let Some(decode) = self.leave(request, out) else { return };
        if let Some(r) = self.requests.get_mut(&request) {
            r.tried.insert(decode);
        }
        self.route(now, request, out);
    }

    /// Hangs up on whoever has a request; the group that decoded it.
    pub(super) fn leave(&mut self, request: RequestId, out: &mut Vec<Action>) -> Option<GroupId> {
        let r = self.requests.get_mut(&request)?;
        let prefilling = r.state.is_prefilling();
        let at = r.state.leave()?;
        out.push(Action::CloseDecode { request });
        if prefilling {
            out.push(Action::ClosePrefill { request });
        }
        left(&mut self.router, r, at.routed);
        Some(at.pick.decode)
    }

    /// Nobody takes it: a request that was begun waits for somebody, one whose model is not in memory waits for that, one whose group
    /// has lost its ring for a moment waits for that, any other is told so.
    pub(super) fn unserved(&mut self, now: Time, request: RequestId, why: &str, out: &mut Vec<Action>) {
        let asleep = || self.requests.values().filter(|r| r.is_asleep()).count();
        let begins = self.requests.get(&request).is_some_and(|r| !r.accepted && !r.is_asleep());
        // Requests for models that are in memory are to find room.
        let is_crowded = begins && asleep() >= self.config.max_requests.div_ceil(4);
        let Some(r) = self.requests.get_mut(&request) else { return };
        if r.accepted {
            r.tried.clear();
            if !matches!(r.state, State::Recovering { .. }) {
                r.unrouted = Some(Unrouted::again(r.unrouted, now));
            }
            let since = r.unrouted.map_or(now, |unrouted| unrouted.counts_since(now));
            let until = r.state.recover(since + self.config.unrouted_patience);
            r.deadline = until.min(now + UNROUTED_RETRY);
            return;
        }
        let model = r.ask.model;
        let may_sleep = self.view.plan.is_some() && self.yielding.contains(&model);
        let is_down = self.view.is_down(model);
        let has_left = r.refusal.as_deref().is_some_and(|said| [PLAN_CHANGED, NOT_LED].contains(&said));
        if !(may_sleep && (is_down || has_left)) {
            return self.wait_for_ring(now, request, why, out);
        }
        let until = r.line.submitted + self.config.loading_patience;
        if until <= now {
            return self.turn_away_asleep(request, OVERSLEPT, out);
        }
        if is_crowded {
            return self.turn_away_asleep(request, TOO_MANY_ASLEEP, out);
        }
        r.tried.clear();
        // It may have waited for a ring before, and for less long.
        r.without_ring = None;
        r.state = State::Recovering { until };
        // Every change of the view tries it again. Where its group is taken to be up still, that is about to change.
        r.deadline = if is_down { until } else { until.min(now + UNROUTED_RETRY) };
    }

    /// A ring that broke is built again at once: who asked in between waits for it, any other is turned away.
    fn wait_for_ring(&mut self, now: Time, request: RequestId, why: &str, out: &mut Vec<Action>) {
        let Some(r) = self.requests.get_mut(&request) else { return };
        if r.refusal.as_deref() != Some(NOT_UP) {
            return self.turn_away(request, why, out);
        }
        let until = *r.without_ring.get_or_insert(now) + RING_PATIENCE;
        if until <= now {
            return self.turn_away(request, why, out);
        }
        r.tried.clear();
        let until = r.state.recover(until);
        r.deadline = until.min(now + UNROUTED_RETRY);
    }

    /// What the last group said is not why it is turned away.
    fn turn_away_asleep(&mut self, request: RequestId, why: &str, out: &mut Vec<Action>) {
        if let Some(r) = self.requests.get_mut(&request) {
            r.refusal = None;
        }
        self.turn_away(request, why, out);
    }

    fn turn_away(&mut self, request: RequestId, why: &str, out: &mut Vec<Action>) {
        let Some(mut r) = self.requests.remove(&request) else { return };
        let reason = r.refusal.take().unwrap_or_else(|| why.to_owned());
        out.push(Action::Unserved { request, reason, retry_after: self.config.retry_after });
    }

    /// A request that was begun asks again, or has waited long enough.
    pub(super) fn look_for_home(&mut self, now: Time, request: RequestId, until: Time, out: &mut Vec<Action>) {
        if now < until {
            return self.route(now, request, out);
        }
        if let Some(r) = self.requests.get(&request).filter(|r| !r.accepted) {
            let is_for_ring = r.without_ring.is_some_and(|since| until <= since + RING_PATIENCE);
            if is_for_ring && r.refusal.as_deref() == Some(NOT_UP) {
                return self.turn_away(request, NOT_UP, out);
            }
            return self.turn_away_asleep(request, OVERSLEPT, out);
        }
        let refusal = self.requests.get_mut(&request).and_then(|r| r.refusal.take());
        let why = refusal.unwrap_or_else(|| "no group is up".into());
        self.finish(now, request, End::Failed(format!("nobody could go on with it: {why}")), out);
    }

    pub(super) fn retry_unrouted(&mut self, now: Time, out: &mut Vec<Action>) {
        let recovering = self.requests.iter().filter_map(|(request, r)| match r.state {
            State::Recovering { until } => Some((*request, until)),
            _ => None,
        });
        for (request, until) in recovering.collect::<Vec<_>>() {
            self.look_for_home(now, request, until, out);
        }
    }
}
