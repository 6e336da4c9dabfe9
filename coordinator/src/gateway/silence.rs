//! Prompt flow 8: requests that were not heard of for a while, and what their groups owe them.

use super::{
    Action, Gateway, Request, View,
    patience::{Owes, SilenceVerdict},
    state::{PromptSource, RequestPlacement, State},
};
use crate::{Time, claim_check::ClaimedWork};
use std::time::Duration;
use tsnode_protocol::{
    Group, GroupId, Load, PeerId, RequestId,
    stream::{DecodeEvent, End},
};

/// A silent request is looked at no oftener.
const LOOK: Duration = Duration::from_millis(100);

impl Gateway {
    /// A token comes; how long its group took for it says how long others of it may take.
    pub(super) fn learn_pace(&mut self, now: Time, request: RequestId) {
        let Some(r) = self.requests.get_mut(&request) else { return };
        let Some(at) = r.state.placement_mut() else { return };
        let (decode, before) = (at.pick.decode, at.last_token.replace(now));
        let gap = now.saturating_sub(before.unwrap_or(now));
        if let Some(steady) = &mut r.answer.steady {
            steady.stood = steady.stood.max(gap);
        }
        if before.is_some() {
            return self.patience.gap(decode, gap);
        }
        let State::Decoding { granted_at, prompt: PromptSource::Here, .. } = r.state else { return };
        let tokens = r.ask.prompt.len() as u32 + r.next_index();
        let group = self.view.plan.as_ref().and_then(|plan| plan.group(decode));
        let expected = group.and_then(|group| ClaimedWork::Prompt { tokens }.claimed(&self.view, group));
        self.patience.prompt(decode, expected, now.saturating_sub(granted_at));
    }

    /// A request was not heard of for a while: it waits on, or its group hangs.
    pub(super) fn judge_silence(&mut self, now: Time, request: RequestId, out: &mut Vec<Action>) {
        let Some(r) = self.requests.get(&request) else { return };
        let (Some(at), Some(group)) = (r.state.placement(), r.state.debtor()) else { return };
        let (owes, due, heard) = (self.owes(r, at, group), r.deadline, at.heard);
        // Once the first token is there, a silence may be the far side's as well.
        let is_its_own = !matches!(r.state, State::Prefilling { first: Some(_), .. });
        let prefilling = r.state.is_prefilling();
        if let SilenceVerdict::Wait(until) = self.patience.judge(now, due, group, heard, owes) {
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
        let waits = |r: &Request| matches!(&r.state, State::AwaitingGrant { at, .. } if at.pick.decode == group);
        let waiting: Vec<RequestId> = self.requests.iter().filter(|(_, r)| waits(r)).map(|(id, _)| *id).collect();
        for request in waiting {
            self.decode_lost(now, request, "it made no progress", out);
        }
    }

    /// What a group owes a request, by its adverts and its queue. Nothing is known where pages may be others' for long.
    fn owes(&self, r: &Request, at: &RequestPlacement, group: GroupId) -> Owes {
        let (most, is_known) = match r.state {
            State::AwaitingGrant { asked_idle, .. } => (self.config.grant_patience, asked_idle),
            _ => (self.config.progress_patience, true),
        };
        let load = self.view.up.get(&group).copied().unwrap_or_default();
        // Others' answers have its pages: those of its own model, or of another that shares them.
        let leader = self.view.group(group).and_then(Group::leader);
        let is_beside_others = leader.is_some_and(|leader| self.view.short.contains(&leader));
        let is_short = is_beside_others || (load.running > 1 && View::lacks_pages(&load));
        if is_short || !is_known {
            return Owes { within: None, most };
        }
        let steps = self.steps_until_a_sign(r, group, load);
        let within = if matches!(r.state, State::Prefilling { first: Some(_), .. }) {
            // The KV of its prompt is on its way.
            let sent = at.predicted.filter(|_| self.is_measured(r)).map(|p| p.elsewhere.0);
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
        let flows = |other: &Request| other.state.placement().is_some_and(|at| at.last_token.is_some());
        let waits = |other: &&Request| other.state.debtor() == Some(group) && other.state.is_granted() && !flows(other);
        let tokens = |r: &Request| r.ask.prompt.len() as u32 + r.next_index();
        let mine = self.requests.values().filter(waits).map(tokens).fold(0, u32::saturating_add);
        let prompts =
            ClaimedWork::Prompt { tokens: load.pending_tokens.max(mine).max(1) }.claimed(&self.view, known)?;
        let step = ClaimedWork::Answer { tokens: 1, context: tokens(r) }.claimed(&self.view, known)?;
        // What its steps took of late says more than a claim where the host computes for other groups as well.
        let seen = load.step.map_or(0.0, |step| step.0.min(self.config.progress_patience.as_secs_f64()));
        Some(prompts + (step * (1.0 + f64::from(load.running))).max(seen))
    }

    /// Whether the link is known over which the KV of a request's prompt goes.
    fn is_measured(&self, r: &Request) -> bool {
        let is_known = |(from, to): (PeerId, PeerId)| {
            let advert = self.view.adverts.get(&from);
            from == to || advert.is_some_and(|a| a.links.iter().any(|l| l.to == to))
        };
        r.state.leaders().is_some_and(is_known)
    }
}

/// Whether it says that something was done for the request.
pub(super) fn is_progress(event: &DecodeEvent) -> bool {
    !matches!(event, DecodeEvent::Refused(_) | DecodeEvent::KvFailed(_) | DecodeEvent::End(End::Failed(_)))
}
