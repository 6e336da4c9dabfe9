//! Prompt flow 2: which groups a request goes to.

use super::{
    Action, Gateway, Predicted,
    judging::Judging,
    left, queues,
    state::{Planned, PrefillGroup, RequestPlacement, State},
};
use crate::{
    Time, gate,
    router::{Pick, RouterView},
};
use std::collections::{BTreeMap, BTreeSet};
use tsnode_protocol::{GroupId, KvCodec, Load, ModelId, Phase, PromptCodec, RequestId, Seconds, kv::KvPace};

impl Gateway {
    /// Picks groups not tried yet and asks the decode leader; without any, the request ends.
    pub(super) fn route(&mut self, now: Time, request: RequestId, out: &mut Vec<Action>) {
        let (up, weights) = (self.live_queues(now), self.weights());
        let parts = self.requests.get(&request).is_some_and(|r| self.parts_prompts(r.ask.model));
        self.router.look(self.sizes(request));
        let Some(r) = self.requests.get_mut(&request) else { return };
        let plan = self.view.plan.as_deref();
        // Names are random: gateways begin their draws anywhere.
        let seed = u64::from_le_bytes(std::array::from_fn(|i| request.0[i]));
        let choice = RouterView { plan, up: &up, tried: &r.tried, weights: &weights };
        self.router.at(Seconds(now.as_secs_f64()));
        let picked = self.router.pick(choice, r.ask.model, r.asked(), seed);
        let overflow = self.router.overflow();
        let judging = Judging {
            config: &self.config,
            view: &self.view,
            observed: &self.observed,
            kept: &self.kept,
            unresponsive: &self.unresponsive,
            parts: parts.then_some(&self.predictors),
        };
        let hosts = picked.as_ref().ok().and_then(|picked| {
            let pick = judging.way(r, *picked, choice);
            let (prefill, decode) = (plan?.group(pick.prefill)?, plan?.group(pick.decode)?);
            Some((*picked, (prefill, prefill.leader()?), (decode, decode.leader()?)))
        });
        let Some((routed, (prefill, prefill_leader), (decode, leader))) = hosts else {
            if let Ok(routed) = picked {
                left(&mut self.router, r, routed);
            }
            let why = picked.err().map_or_else(|| "the plan is incomplete".to_owned(), |e| e.to_string());
            return self.unserved(now, request, &why, out);
        };
        let verdict = judging.verdict(r, prefill, decode, &up);
        let (elsewhere, reason) = judging.elsewhere(r, (prefill, decode), verdict.as_ref(), &up);
        // One that goes on with what somebody has of it may have gone there.
        let overflow = overflow.filter(|_| (prefill.id, decode.id) == (routed.prefill, routed.decode));
        let split = elsewhere.is_some();
        let unknown = || self.config.kv.codec().unwrap_or(KvCodec::Int4);
        let codec = || verdict.map_or_else(unknown, |v| v.codec);
        let sent = elsewhere.map(|tokens| PromptCodec::of_first(codec(), tokens, r.ask.prompt.len() as u32));
        r.codec = gate::kv_codec(r.fixed_codec(&self.config), sent);
        let at = RequestPlacement {
            routed,
            pick: Pick { prefill: if split { prefill.id } else { decode.id }, decode: decode.id },
            leader,
            stages: decode.stages.clone(),
            since: now,
            heard: now,
            last_token: None,
            learnt: false,
            predicted: verdict.map(|v| Predicted { elsewhere: v.remote, here: v.local }),
            reason: overflow.map_or(reason, |overflow| overflow.to_string()),
            overflow,
        };
        let prompt = if split {
            // A first part's KV leaves while it is computed: the rest waits for it.
            let best = if r.codec.first.is_some() { Some(KvPace::Layers) } else { verdict.map(|v| v.pace) };
            let pace = r.told_pace(&self.config).or(best).unwrap_or_default();
            Planned::By { group: PrefillGroup { leader: prefill_leader, stages: prefill.stages.clone() }, pace }
        } else {
            Planned::Here
        };
        let has_nothing_to_do = |load: &Load| (load.running, load.waiting, load.pending_tokens) == (0, 0, 0);
        let asked_idle = up.get(&decode.id).is_some_and(has_nothing_to_do);
        r.state = State::AwaitingGrant { at, prompt, asked_idle };
        r.heard(now);
        out.push(Action::OpenDecode { request, leader, open: r.decode_request(request, decode.id, split) });
    }

    /// What groups have to do. One that hangs is none where another is up, and one with a peer that is
    /// unresponsive none where another is that does the same.
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
}
