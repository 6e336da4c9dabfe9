//! When KV has come from one machine to another.

use super::{
    Held, MachineNo, ReplayEvent, RequestNo, Simulation,
    tasks::{answer, rest},
};
use crate::policy::routing::RoutingDecision;
use tsnode_protocol::{Seconds, SecondsPerToken, Tokens};

/// Between two tries to send KV to a machine without room.
const TRY_AGAIN: Seconds = Seconds(1.0);

/// How KV gets from machine to machine.
pub trait KvLinks: std::fmt::Debug + Send {
    /// When KV of a prompt, or of its first part, that is computed from `start` to `done` has come to the other machine.
    fn land(&mut self, route: RoutingDecision, prompt: Tokens, start: Seconds, done: Seconds) -> Seconds;
}

/// Every pair alike, any number of transfers at once, each beginning when its prompt is done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alike {
    /// For each token of a prompt.
    pub per_token: SecondsPerToken,
}

impl KvLinks for Alike {
    fn land(&mut self, _: RoutingDecision, prompt: Tokens, _: Seconds, done: Seconds) -> Seconds {
        done + self.per_token * prompt
    }
}

impl Simulation {
    /// A prompt that is done here, or its first part: when the last of its KV has come to where it is wanted. What has
    /// been computed follows while the rest computes, so that is not known before.
    pub(super) fn lands(&mut self, request: RequestNo, now: Seconds) {
        let trace = &mut self.traces[request.0 as usize];
        let Some(route) = trace.route else { return };
        let prompt = Tokens(f64::from(route.sent(trace.arrival.asked)));
        trace.sending = self.links.land(route, prompt, trace.prompt_start, now) - now;
    }

    pub(super) fn send(&mut self, request: RequestNo, now: Seconds) {
        let Some(RoutingDecision { answer, .. }) = self.traces[request.0 as usize].route else { return };
        let m = answer.0 as usize;
        if self.parked[m].is_empty() && self.offer(answer, request, now) {
            return;
        }
        if self.machines[m].batching.asks_for_kv() {
            self.parked[m].push_back(request);
        } else {
            self.agenda.at(now + TRY_AGAIN, ReplayEvent::Send(request));
        }
    }

    /// Sends KV if there is memory for it.
    pub(super) fn offer(&mut self, to: MachineNo, request: RequestNo, now: Seconds) -> bool {
        let memory = self.asked(request).prompt_memory();
        let takes = self.machines[to.0 as usize].batching.reserve(request, memory);
        if takes {
            self.agenda.at(now + self.traces[request.0 as usize].sending, ReplayEvent::Sent(request));
        }
        takes
    }

    /// KV is where the answer is generated: the sender has room again.
    pub(super) fn sent(&mut self, request: RequestNo, now: Seconds) {
        let Some(route) = self.traces[request.0 as usize].route else { return };
        let from = route.prompt.0 as usize;
        let memory = self.machines[from].batching.release(request);
        self.routing.freed(route.prompt, memory);
        if !self.is_held(route.answer, Held::Kv(request)) {
            self.goes_on(request, route, now);
        }
        let batching = &self.machines[from].batching;
        let Some(first) = batching.first_waiting() else { return };
        if self.takes(route.prompt, now) {
            if batching.has_room(first) {
                self.begin(route.prompt, now);
            }
        } else if batching.has_places() {
            self.cut(route.prompt, now);
        }
    }

    /// What comes behind KV from elsewhere: an answer, or a prompt's rest.
    pub(super) fn goes_on(&mut self, request: RequestNo, route: RoutingDecision, now: Seconds) {
        let asked = self.asked(request);
        let next = match route.split {
            Some(first) => rest(request, asked, first),
            None => answer(request, asked),
        };
        self.add(route.answer, next, now);
    }
}
