//! Prompt flow 2 and 8: what the gate is asked about two groups, and which two an answer that was begun goes on with.
//!
//! A new request goes where the plan's shares send it. One that was begun has a client that waits: it goes wherever it is
//! predicted to go on soonest, be it with KV that a prefill group has still, with what a decode group computed of it
//! before, or with all of it computed anew.

use super::{
    GatewayConfig, Observed, Request, View,
    parting::{PartedPair, Parting, Predictors},
    prefix_cache::PrefixIndex,
    unresponsive,
};
use crate::{
    cards,
    gate::{self, GateVerdict, GroupCost, KvChoice, Overrule, SplitChoice},
    links::WITHIN_PEER,
    router::{self, Pick, RouterView},
};
use std::collections::{BTreeMap, BTreeSet};
use tsnode_protocol::{BytesPerSecond, Group, GroupId, KvCodec, Load, ModelId, ModelShape, PeerId, Seconds};

/// A link nobody has measured: a common home connection's neighbourhood.
const UNKNOWN_LATENCY: Seconds = Seconds(1e-3);
const UNKNOWN_BANDWIDTH: BytesPerSecond = BytesPerSecond(125e6);
/// Groups that have some of a prompt, of which each decode group is compared with: those that have most.
const HOLDERS: usize = 4;

/// What a gateway judges by.
#[derive(Clone, Copy)]
pub(super) struct Judging<'a> {
    pub config: &'a GatewayConfig,
    pub view: &'a View,
    pub observed: &'a Observed,
    pub kept: &'a PrefixIndex,
    /// Who gives no sign of life now.
    pub unresponsive: &'a BTreeSet<PeerId>,
    /// What parts of prompts take, where members have set that prompts are parted.
    pub parts: Option<&'a Predictors>,
}

impl Judging<'_> {
    /// Where a request goes that the router sends that way.
    pub fn way(&self, r: &Request, routed: Pick, choice: RouterView<'_>) -> Pick {
        // Whoever computed the prompt before may have it still.
        let is_up = |id: &GroupId| choice.up.contains_key(id) && self.is_of(*id, r.ask.model);
        let holder = r.prefilled_by.filter(|id| is_up(id) && routed.prefill != routed.decode);
        let routed = Pick { prefill: holder.unwrap_or(routed.prefill), ..routed };
        if self.config.split == SplitChoice::Always || !r.goes_on() {
            return routed;
        }
        let soonest = |best: Option<(f64, Pick)>, pick| match self.goes_on_after(r, pick, choice) {
            Some(after) if best.is_none_or(|(least, _)| after < least) => Some((after, pick)),
            _ => best,
        };
        // Where nothing is sooner it is the router's.
        let ways = [routed].into_iter().chain(self.ways(r, choice));
        ways.fold(None, soonest).map_or(routed, |(_, pick)| pick)
    }

    /// Pairs of the plan, and each of its decode groups with those that have some of the prompt.
    fn ways(&self, r: &Request, choice: RouterView<'_>) -> Vec<Pick> {
        let mut ways = router::open(choice, r.ask.model);
        let decode: BTreeSet<GroupId> = ways.iter().map(|way| way.decode).collect();
        let known = self.kept.holders(&r.trail).chain(r.prefilled_by);
        let known = known.filter(|id| choice.up.contains_key(id) && self.is_of(*id, r.ask.model));
        let mut holders: Vec<GroupId> = known.collect::<BTreeSet<_>>().into_iter().collect();
        holders.sort_by_key(|id| std::cmp::Reverse(self.prompt_at(r, *id)));
        holders.truncate(HOLDERS);
        for decode in decode {
            ways.extend(holders.iter().map(|prefill| Pick { prefill: *prefill, decode }));
        }
        ways
    }

    fn is_of(&self, id: GroupId, model: ModelId) -> bool {
        self.view.group(id).is_some_and(|group| group.model == model)
    }

    /// How long it takes to go on with these two (s); longer where they are slower than they claim.
    fn goes_on_after(&self, r: &Request, pick: Pick, choice: RouterView<'_>) -> Option<f64> {
        let (prefill, decode) = (self.view.group(pick.prefill)?, self.view.group(pick.decode)?);
        let weight = |id| choice.weights.get(&id).copied().unwrap_or(1.0);
        let verdict = self.verdict(r, prefill, decode, choice.up)?;
        let here = verdict.local.0 / weight(decode.id);
        let elsewhere = verdict.remote.0 / weight(decode.id).min(weight(prefill.id));
        let sends = prefill.id != decode.id && !self.keeps_states(r) && !self.view.is_barred(prefill, decode);
        Some(if sends && verdict.splits() { elsewhere } else { here })
    }

    /// Whether some layers of its model keep a state, without which KV is worth nothing, and which is not sent.
    fn keeps_states(&self, r: &Request) -> bool {
        shape(self.view, r.ask.model).is_some_and(|shape| shape.has_state())
    }

    /// What the gate says of two groups; nothing where the model is not known.
    pub fn verdict(
        &self,
        r: &Request,
        prefill: &Group,
        decode: &Group,
        up: &BTreeMap<GroupId, Load>,
    ) -> Option<GateVerdict> {
        let shape = shape(self.view, r.ask.model)?;
        let (from, to) = (prefill.leader()?, decode.leader()?);
        let (latency, bandwidth) = self.link(from, to);
        let kv = r.fixed_codec(self.config).map_or(self.config.kv, |fixed| fixed.codec.into());
        let packed = match kv {
            KvChoice::Int3 => KvCodec::Int3,
            KvChoice::Int8 => KvCodec::Int8,
            KvChoice::Auto | KvChoice::Int4 | KvChoice::Raw => KvCodec::Int4,
        };
        let seen = |c| gate::Codec { pack: self.observed.packs(prefill, c), unpack: self.observed.unpacks(decode, c) };
        let case = gate::GateCase {
            shape,
            tokens: r.ask.prompt.len() as u32,
            remote: self.side(&shape, prefill, up),
            remote_has: self.prompt_at(r, prefill.id),
            local: self.side(&shape, decode, up),
            local_has: self.usable_at(r, decode.id),
            answered: r.next_index(),
            latency,
            bandwidth,
            element_bytes: self.config.element_bytes(r.ask.model),
            packed: seen(packed),
            raw: seen(KvCodec::Raw),
            pace: r.told_pace(self.config),
        };
        Some(gate::weigh(&case, kv))
    }

    fn link(&self, from: PeerId, to: PeerId) -> (Seconds, BytesPerSecond) {
        let unmeasured = if from == to { WITHIN_PEER } else { (UNKNOWN_LATENCY, UNKNOWN_BANDWIDTH) };
        let link = self.view.adverts.get(&from).and_then(|a| a.links.iter().find(|l| l.to == to));
        link.map_or(unmeasured, |l| (l.latency, l.bandwidth))
    }

    /// How many of the prompt's tokens the first of two groups computes for the other, and why; none where the other computes all.
    pub fn elsewhere(
        &self,
        r: &Request,
        (prefill, decode): (&Group, &Group),
        verdict: Option<&GateVerdict>,
        up: &BTreeMap<GroupId, Load>,
    ) -> (Option<u32>, String) {
        let prompt = r.ask.prompt.len() as u32;
        let (splits, why) = self.splits(r, prefill, decode, verdict);
        let fixed = r.fixed_codec(self.config);
        let (Some(predictors), Some(verdict), true) = (self.parts, verdict, self.may_part(r, prefill, decode)) else {
            return (splits.then(|| fixed.map_or(prompt, |fixed| fixed.tokens(prompt))), why);
        };
        let Some(pair) = self.pair(r, (prefill, decode), up) else { return (splits.then_some(prompt), why) };
        let parting = Parting { view: self.view, predictors };
        let (first, why) = parting.first_part(prompt, &pair, verdict);
        ((first > 0).then_some(first), why)
    }

    /// Whether a prompt may be parted between two groups: nobody says where it is to be computed, and nothing its answer rests on
    /// would change.
    fn may_part(&self, r: &Request, prefill: &Group, decode: &Group) -> bool {
        let is_free = r.fixed_codec(self.config).is_none_or(|fixed| fixed == KvCodec::Raw.into());
        let is_said = r.ask.overrule.is_some() || self.config.split == SplitChoice::Always;
        is_free && !is_said && !r.goes_on() && self.bar(r, prefill, decode).is_none()
    }

    /// Two groups as they are parted between.
    pub fn pair<'a>(
        &self,
        r: &Request,
        (prefill, decode): (&'a Group, &'a Group),
        up: &BTreeMap<GroupId, Load>,
    ) -> Option<PartedPair<'a>> {
        let shape = shape(self.view, r.ask.model)?;
        let (latency, bandwidth) = self.link(prefill.leader()?, decode.leader()?);
        let at_remote = up.get(&prefill.id).map_or(0, |load| load.running.saturating_add(load.waiting));
        let (remote, local) = (self.side(&shape, prefill, up), self.side(&shape, decode, up));
        Some(PartedPair { prefill, decode, remote, local, at_remote, latency, bandwidth })
    }

    /// Why the first of two groups computes nothing for the other, whatever it would take.
    fn bar(&self, r: &Request, prefill: &Group, decode: &Group) -> Option<&'static str> {
        if r.wants_prompt_logprobs() && prefill.id != decode.id {
            // Whoever prefills for another says nothing of the prompt, and its KV has no logits.
            return Some("the prompt's log-probabilities are wanted");
        }
        if prefill.id == decode.id {
            return Some("one group does both");
        }
        if r.ask.generation.max_new_tokens == 0 {
            // Who prefills for another sends its KV behind the answer's first token.
            return Some("nothing is to be generated");
        }
        if self.keeps_states(r) {
            return Some("some of its layers keep a state that is not sent");
        }
        if self.view.is_barred(prefill, decode) {
            return Some("KV between these two was found wrong");
        }
        unresponsive::any(self.unresponsive, &prefill.stages).then_some("who prefills gives no sign of life")
    }

    /// Whether the first of two groups computes the prompt for the other, and why.
    fn splits(&self, r: &Request, prefill: &Group, decode: &Group, verdict: Option<&GateVerdict>) -> (bool, String) {
        if let Some(why) = self.bar(r, prefill, decode) {
            return (false, why.to_owned());
        }
        let splits = match (r.ask.overrule, self.config.split) {
            (Some(overrule), _) => overrule != Overrule::InPlace,
            (None, SplitChoice::Always) => true,
            (None, SplitChoice::Auto) => verdict.is_some_and(GateVerdict::splits),
        };
        (splits, verdict.map_or_else(|| "one group does both".to_owned(), ToString::to_string))
    }

    /// Tokens of the prompt that a group need not compute to send them.
    fn prompt_at(&self, r: &Request, group: GroupId) -> u32 {
        let prompt = r.ask.prompt.len() as u32;
        if r.prefilled_by == Some(group) { prompt } else { self.kept.has(group, &r.trail).min(prompt) }
    }

    /// Tokens of prompt and answer that a group need not compute to decode behind them: none where the answer is to rest on KV that
    /// goes through a codec wherever it is computed, since groups keep it as it was computed.
    fn usable_at(&self, r: &Request, group: GroupId) -> u32 {
        let is_exact = r.fixed_codec(self.config).is_none_or(|fixed| fixed.codec == KvCodec::Raw);
        if is_exact { self.kept.has(group, &r.trail) } else { 0 }
    }

    fn side(&self, shape: &ModelShape, group: &Group, up: &BTreeMap<GroupId, Load>) -> gate::GateSide {
        let load = up.get(&group.id).copied().unwrap_or_default();
        gate::GateSide {
            cost: GroupCost::of_group(group, shape, |peer| self.view.adverts.get(&peer)),
            pending_tokens: load.pending_tokens,
            running: load.running,
        }
    }
}

/// A model's shape, as most of its hosts say.
pub(super) fn shape(view: &View, model: ModelId) -> Option<ModelShape> {
    cards::agreed(model, view.adverts.values()).map(|card| card.shape)
}
