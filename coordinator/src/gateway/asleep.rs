//! Prompt flow 8: what this gateway lost since it was not run itself: its process was stopped, or its host slept.
//!
//! Groups give up a gateway that acknowledges nothing. They have not failed, and may have all that they computed for it still: its
//! requests may go back where they come from.

use super::{Action, Gateway, unresponsive};
use crate::Time;
use std::time::Duration;
use tsnode_protocol::{RequestId, Stage};

/// For so long after it is run again what breaks off may be its own doing: QUIC finds a dead connection within five seconds, and a
/// host that was woken has no network at first.
const AFTERMATH: Duration = Duration::from_secs(10);

impl Gateway {
    /// Whether it may be this gateway's own doing that a line to these has broken off.
    pub(super) fn may_be_own(&self, now: Time, stages: &[Stage]) -> bool {
        let is_there = |stage: &Stage| self.view.adverts.contains_key(&stage.peer);
        self.woke.is_some_and(|woke| now < woke + AFTERMATH)
            && stages.iter().all(is_there)
            && !unresponsive::any(&self.unresponsive, stages)
    }

    /// The line to a decode leader has ended without an end. One from before this gateway slept says nothing of the group, which may
    /// be asked again: once until it says a token, however often this gateway sleeps. What it keeps is counted with until it says
    /// otherwise.
    pub(super) fn line_lost(&mut self, now: Time, request: RequestId, reason: &str, out: &mut Vec<Action>) {
        let Some(r) = self.requests.get(&request) else { return };
        let Some(at) = r.state.placement() else { return };
        if !self.may_be_own(now, &at.stages) {
            return self.decode_lost(now, request, reason, out);
        }
        let goes_back = !r.went_back && self.woke.is_some_and(|woke| at.since < woke);
        if at.learnt {
            self.kept.computed(at.pick.decode, &r.trail, r.computed());
        }
        self.breaks_off(now, request, reason);
        if !goes_back {
            return self.elsewhere(now, request, out);
        }
        if self.leave(request, out).is_some() {
            if let Some(r) = self.requests.get_mut(&request) {
                r.went_back = true;
            }
            self.route(now, request, out);
        }
    }
}
