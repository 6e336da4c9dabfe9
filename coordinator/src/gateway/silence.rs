//! Prompt flow 8: requests that were not heard of for a while, and what their groups owe them.

use super::{
    Action, Gateway, Prefill, Request,
    patience::{Owes, Silence},
};
use crate::{Time, claim_check::Work};
use std::time::Duration;
use tsnode_protocol::{
    GroupId, Load, PeerId, RequestId,
    stream::{DecodeEvent, End},
};

/// Pages are short where fewer than one in so many is free: answers may have to wait for others' ends.
const SHORT: u64 = 8;
/// A silent request is looked at no oftener.
const LOOK: Duration = Duration::from_millis(100);

impl Gateway {
    /// A token comes; how long its group took for it says how long others of it may take.
    pub(super) fn learn_pace(&mut self, now: Time, request: RequestId) {
        let Some(r) = self.requests.get_mut(&request) else { return };
        let (Some(pick), flows) = (r.pick, std::mem::replace(&mut r.flows, true)) else { return };
        let gap = now.saturating_sub(r.last_token.replace(now).unwrap_or(now));
        if r.second_at.is_some() {
            r.stood = r.stood.max(gap);
        }
        if flows {
            return self.patience.gap(pick.decode, gap);
        }
        let Some(granted) = r.granted_at.filter(|_| r.prefill == Prefill::ByDecode) else { return };
        let tokens = r.prompt.len() as u32 + r.next_index();
        let group = self.view.plan.as_ref().and_then(|plan| plan.group(pick.decode));
        let expected = group.and_then(|group| Work::Prompt { tokens }.claimed(&self.view, group));
        self.patience.prompt(pick.decode, expected, now.saturating_sub(granted));
    }

    /// A request was not heard of for a while: it waits on, or its group hangs.
    pub(super) fn judge_silence(&mut self, now: Time, request: RequestId, out: &mut Vec<Action>) {
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
        // What its steps took of late says more than a claim where the host computes for other groups as well.
        let seen = load.step.map_or(0.0, |step| step.0.min(self.config.progress_patience.as_secs_f64()));
        Some(prompts + (step * f64::from(1 + load.running)).max(seen))
    }

    /// Whether the link is known over which the KV of a request's prompt goes.
    fn is_measured(&self, r: &Request) -> bool {
        let is_known = |(from, to): (PeerId, PeerId)| {
            let advert = self.view.adverts.get(&from);
            from == to || advert.is_some_and(|a| a.links.iter().any(|l| l.to == to))
        };
        r.prefill_leader.zip(r.decode_leader).is_some_and(is_known)
    }
}

/// Whether it says that something was done for the request.
pub(super) fn is_progress(event: &DecodeEvent) -> bool {
    !matches!(event, DecodeEvent::Refused(_) | DecodeEvent::KvFailed(_) | DecodeEvent::End(End::Failed(_)))
}
