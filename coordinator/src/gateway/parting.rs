//! Prompt flow 2: how much of a prompt a prefill group computes for the decode group that computes the rest (Cronus §4): as much as
//! it can before the decode group would get to it. What steps take is what devices measured; what groups then say that parts took
//! corrects it.

use crate::{
    gate::{GateSide, GateVerdict, GroupCost},
    policy::{
        balancer::{Ahead, ChunkFit, PromptFit, SPARED, ready_part},
        caps,
        choice::CHUNK,
    },
    view::View,
};
use std::collections::{BTreeMap, VecDeque};
use tsnode_protocol::{
    BytesPerSecond, Group, GroupId, LayerProfile, PromptCodec, Seconds, SecondsPerToken, stream::Computed,
};

/// Measured parts that a fit is made of: the last ones, and no fewer than these.
const MEASURED: usize = 32;
const TELLING: usize = 8;
/// Weight of a new observation, and how far off its measured profile a group may be said to be.
const NEW: f64 = 0.3;
const FARTHEST: f64 = 16.0;

/// What parts of prompts take, as this gateway saw it.
#[derive(Debug, Default)]
pub(super) struct Predictors {
    /// First parts of the groups that computed them: tokens and time, the latest in the end.
    firsts: BTreeMap<GroupId, VecDeque<(f64, Seconds)>>,
    /// How many times as long as by its profile a decode group's rests take.
    rests: BTreeMap<GroupId, f64>,
}

impl Predictors {
    /// A group says that it took so long for so many tokens of a prompt.
    pub fn computed_first(&mut self, group: GroupId, tokens: u32, computed: Computed) {
        if tokens == 0 || !computed.took.is_plausible() {
            return;
        }
        let known = self.firsts.entry(group).or_default();
        known.push_back((f64::from(tokens), computed.took));
        if known.len() > MEASURED {
            known.pop_front();
        }
    }

    /// A group says that it took so long for the rest of a prompt, which should have taken so long.
    pub fn computed_rest(&mut self, group: GroupId, expected: Seconds, computed: Computed) {
        if expected.0 > 0.0 && computed.took.is_plausible() {
            let off = (computed.took.0 / expected.0).clamp(1.0 / FARTHEST, FARTHEST);
            let known = self.rests.entry(group).or_insert(1.0);
            *known += NEW * (off - *known);
        }
    }

    /// Of groups that are still there.
    pub fn retain(&mut self, there: impl Fn(&GroupId) -> bool) {
        self.firsts.retain(|group, _| there(group));
        self.rests.retain(|group, _| there(group));
    }

    /// What first parts take there: a line through what was seen; until that says enough, through what the group's profile says of
    /// prompts up to this long.
    fn first(&self, group: GroupId, cost: &GroupCost, prompt: u32) -> PromptFit {
        let seen: Vec<(f64, Seconds)> = self.firsts.get(&group).into_iter().flatten().copied().collect();
        let lengths = seen.iter().map(|(tokens, _)| *tokens);
        let (least, most) = (lengths.clone().fold(f64::INFINITY, f64::min), lengths.fold(0.0, f64::max));
        let says_enough = seen.len() >= TELLING && most >= 2.0 * least;
        let grows = |fit: &PromptFit| fit.per_token.0 > 0.0;
        // No part takes less than nothing.
        let from_zero = |fit: PromptFit| PromptFit { fixed: fit.fixed.max(Seconds(0.0)), ..fit };
        if let Some(fit) = PromptFit::of(&seen).filter(|fit| says_enough && grows(fit)) {
            return from_zero(fit);
        }
        let lengths = (1..=8).map(|part| prompt.max(8) / 8 * part);
        let by_profile: Vec<(f64, Seconds)> = lengths.map(|tokens| (f64::from(tokens), cost.of(tokens, 0))).collect();
        let as_it_is = PromptFit { fixed: Seconds(cost.all.fixed), per_token: SecondsPerToken(cost.all.token) };
        PromptFit::of(&by_profile).filter(grows).map_or(as_it_is, from_zero)
    }
}

/// Two groups between which prompts may be parted.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartedPair<'a> {
    pub prefill: &'a Group,
    pub decode: &'a Group,
    pub remote: GateSide,
    pub local: GateSide,
    /// Sequences that the prefill group has.
    pub at_remote: u32,
    /// Of the link between them.
    pub latency: Seconds,
    pub bandwidth: BytesPerSecond,
}

/// What the gate sees of such a pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parting<'a> {
    pub view: &'a View,
    pub predictors: &'a Predictors,
}

impl Parting<'_> {
    /// How many of a prompt's first tokens the prefill group computes, whole groups of tokens, and why; all of them where it can
    /// compute all in time.
    pub fn first_part(&self, prompt: u32, pair: &PartedPair<'_>, verdict: &GateVerdict) -> (u32, String) {
        let fit = self.predictors.first(pair.prefill.id, &pair.remote.cost, prompt);
        // KV leaves while it is computed: whichever is slower counts.
        let wire = pair.bandwidth.time_for(verdict.kv_bytes).0 / f64::from(prompt.max(1));
        let per_token = SecondsPerToken(fit.per_token.0.max(wire));
        let fit = PromptFit { fixed: fit.fixed + pair.latency, per_token };
        let ahead = self.ahead(prompt, pair, &fit);
        let first = match ready_part(prompt, &fit, ahead) {
            all if all >= prompt => prompt,
            first => first - first % PromptCodec::GROUP,
        };
        let (slow, fast) = (ahead.slow.0 * 1e3, ahead.fast.0.max(0.0) * 1e3);
        let why =
            format!("{first} of {prompt} tokens elsewhere, with {slow:.0} ms of work there and {fast:.0} ms here");
        (first, why)
    }

    fn ahead(&self, prompt: u32, pair: &PartedPair<'_>, fit: &PromptFit) -> Ahead {
        let waiting = f64::from(pair.at_remote.saturating_sub(1));
        let chunk = f64::from(self.chunk(pair.decode));
        let pending = f64::from(pair.local.pending_tokens) - SPARED * chunk;
        let iteration = self.iteration(prompt, pair).0 * self.off(pair.decode.id);
        Ahead {
            slow: Seconds(fit.per_token.0 * f64::from(pair.remote.pending_tokens) + fit.fixed.0 * waiting),
            // What one prompt leaves of an iteration another fills: no rounding up.
            fast: Seconds(iteration * pending / chunk),
        }
    }

    fn off(&self, decode: GroupId) -> f64 {
        self.predictors.rests.get(&decode).copied().unwrap_or(1.0)
    }

    /// A full iteration of the decode group in the middle of such a prompt, beside the answers that run there.
    fn iteration(&self, prompt: u32, pair: &PartedPair<'_>) -> Seconds {
        let (chunk, cost) = (f64::from(self.chunk(pair.decode)), pair.local.cost.all);
        let profiles = || profiles(self.view, pair.decode);
        let of_answers =
            |n: usize| profiles().map(|(profile, layers)| profile.decode[n] * f64::from(layers)).sum::<f64>();
        let running = f64::from(pair.local.running);
        let answers = if running > 0.0 { of_answers(0) + of_answers(2) * running } else { 0.0 };
        let fit = ChunkFit {
            fixed: Seconds(cost.fixed + cost.token * chunk + cost.square * chunk * chunk + answers),
            per_before: SecondsPerToken(2.0 * cost.square * chunk),
            per_context: SecondsPerToken(of_answers(1)),
        };
        // Of others' answers only their number is known: they are taken to be as long as this prompt.
        fit.time(f64::from(prompt) / 2.0, running * f64::from(prompt))
    }

    /// What the rest of a prompt takes by the decode group's profile, beside the answers that run there.
    pub fn rest(&self, prompt: u32, first: u32, pair: &PartedPair<'_>) -> Seconds {
        let rest = prompt.saturating_sub(first);
        let whole = f64::from(rest) / f64::from(self.chunk(pair.decode));
        let answers = self.iteration(prompt, pair)
            - self.iteration(prompt, &PartedPair { local: GateSide { running: 0, ..pair.local }, ..*pair });
        pair.local.cost.of(rest, first) + Seconds(answers.0.max(0.0) * whole.ceil())
    }

    /// Tokens of an iteration of a group.
    fn chunk(&self, group: &Group) -> u32 {
        caps::chunk(profiles(self.view, group).map(|(profile, _)| profile)).unwrap_or(CHUNK)
    }
}

/// What was measured of a group's stages, with their layers.
pub(super) fn profiles<'a>(view: &'a View, group: &'a Group) -> impl Iterator<Item = (&'a LayerProfile, u32)> {
    group.stages.iter().filter_map(|stage| {
        let device = view.adverts.get(&stage.peer)?.devices.get(usize::from(stage.device))?;
        let profile = device.profile(group.model)?;
        Some((profile, stage.layers.len()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::PromptCost;

    const GROUP: GroupId = GroupId([1; 8]);
    const COST: PromptCost = PromptCost { fixed: 0.01, token: 1e-3, square: 0.0 };

    fn took(seconds: f64) -> Computed {
        Computed { queued: Seconds(0.0), took: Seconds(seconds) }
    }

    #[test]
    fn first_parts_take_what_a_group_measured_until_it_is_seen_to_take_longer() {
        let mut predictors = Predictors::default();
        let of = |predictors: &Predictors| predictors.first(GROUP, &COST.into(), 1000).time(500.0).0;
        assert!((of(&predictors) - 0.51).abs() < 1e-6);
        (1..8).for_each(|n| predictors.computed_first(GROUP, 100 * n, took(0.2 * f64::from(n))));
        assert!((of(&predictors) - 0.51).abs() < 1e-6, "seven say too little");
        predictors.computed_first(GROUP, 800, took(1.6));
        assert!((of(&predictors) - 1.0).abs() < 1e-6);
        for odd in [f64::NAN, -1.0, f64::INFINITY] {
            predictors.computed_first(GROUP, 800, took(odd));
        }
        assert!((of(&predictors) - 1.0).abs() < 1e-6, "what cannot be is not believed");
        predictors.retain(|_| false);
        assert!((of(&predictors) - 0.51).abs() < 1e-6);
    }

    #[test]
    fn parts_of_one_length_say_nothing_of_others() {
        let mut predictors = Predictors::default();
        (0..40).for_each(|_| predictors.computed_first(GROUP, 64, took(9.0)));
        assert!((predictors.first(GROUP, &COST.into(), 1000).time(500.0).0 - 0.51).abs() < 1e-6);
        assert_eq!(predictors.firsts[&GROUP].len(), MEASURED);
    }
}
