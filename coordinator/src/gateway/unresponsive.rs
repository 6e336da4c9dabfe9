//! Prompt flow 8: groups with a peer that gives no sign of life, though nobody takes it for dead yet.
//!
//! What runs there goes on elsewhere where somebody else can do it: where nobody can, moving it gains nothing, and the peer may
//! be back before anybody is. Nobody is blamed.

use super::{Action, Gateway, Request};
use crate::Time;
use std::collections::BTreeSet;
use tsnode_protocol::{Group, GroupId, PeerId, Phase, RequestId, Stage};

/// Whether one of these stages is of a peer that is unresponsive.
pub(super) fn any(unresponsive: &BTreeSet<PeerId>, stages: &[Stage]) -> bool {
    stages.iter().any(|stage| unresponsive.contains(&stage.peer))
}

impl Gateway {
    /// Groups that are up, without a peer that is unresponsive.
    pub(super) fn responsive(&self) -> BTreeSet<GroupId> {
        let responds = |id: &GroupId| self.view.group(*id).is_none_or(|group| !any(&self.unresponsive, &group.stages));
        self.view.up.keys().copied().filter(responds).collect()
    }

    /// Whether one of these other groups does what it does, for the same model.
    pub(super) fn has_substitute(&self, id: GroupId, among: &BTreeSet<GroupId>) -> bool {
        let Some(group) = self.view.group(id) else { return false };
        // Who decodes computes prompts as well where nobody else does.
        let stands_in = |phase: Phase| (phase == Phase::Prefill) == (group.phase == Phase::Prefill);
        let same = |other: &Group| other.id != id && other.model == group.model && stands_in(other.phase);
        among.iter().filter_map(|other| self.view.group(*other)).any(same)
    }

    /// What is done for requests by peers that are unresponsive is taken elsewhere, as far as there is anybody.
    pub(super) fn leave_unresponsive(&mut self, now: Time, out: &mut Vec<Action>) {
        if self.unresponsive.is_empty() {
            return;
        }
        let responsive = self.responsive();
        let goes = |r: &Request| any(&self.unresponsive, r.decoders()) && self.can_go_on(r, &responsive);
        let waits = |r: &Request| r.state.is_prefilling() && any(&self.unresponsive, r.prefillers());
        let with = |which: &dyn Fn(&Request) -> bool| -> Vec<RequestId> {
            self.requests.iter().filter(|(_, r)| which(r)).map(|(request, _)| *request).collect()
        };
        let (decode, prefill) = (with(&goes), with(&|r| waits(r) && !any(&self.unresponsive, r.decoders())));
        for request in prefill {
            self.prefill_lost(now, request, "a peer that prefilled gives no sign of life".into(), out);
        }
        for request in decode {
            self.decode_lost(now, request, "a peer of it gives no sign of life", out);
        }
    }

    /// Whether another group decodes for its model, that it has not tried.
    fn can_go_on(&self, r: &Request, responsive: &BTreeSet<GroupId>) -> bool {
        let decodes = |group: &Group| group.model == r.ask.model && group.phase != Phase::Prefill;
        let other =
            |id: &&GroupId| !r.tried.contains(id) && r.state.placement().is_none_or(|at| at.pick.decode != **id);
        responsive.iter().filter(other).filter_map(|id| self.view.group(*id)).any(decodes)
    }
}
