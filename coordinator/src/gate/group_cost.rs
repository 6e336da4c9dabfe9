//! What prompts take on a group: its stages side by side, each at another chunk.

use super::PromptCost;
use crate::{
    links,
    policy::{caps, choice::CHUNK},
    scheduler::public_models::HANDED_ON,
};
use tsnode_protocol::{Advert, Device, FlopsPerSecond, Group, LayerProfile, ModelShape, PeerId, Seconds, Stage};

/// What a group's steps over prompts take.
///
/// On a pipeline a prompt's next chunk is computed while the one before it is at the next stage: the stage that takes longest computes
/// all of them, and each of the others the last one before or behind it (`scheduler/prompts.rs`, where plans are valued so).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupCost {
    /// One step at every stage, and handed on between them.
    pub all: PromptCost,
    /// The same step at the stage that takes longest.
    slowest: PromptCost,
    stages: usize,
    /// Tokens of a step that are worth reading the weights for.
    chunk: u32,
}

impl From<PromptCost> for GroupCost {
    /// One stage.
    fn from(cost: PromptCost) -> Self {
        Self { all: cost, slowest: cost, stages: 1, chunk: CHUNK }
    }
}

impl GroupCost {
    /// Of a group of a model of this shape, where peers say this of themselves: what their devices measured of the model or, where that
    /// is not known, operations at their rate.
    #[must_use]
    pub fn of_group<'a>(group: &Group, shape: &ModelShape, advert: impl Fn(PeerId) -> Option<&'a Advert>) -> Self {
        let device =
            |stage: &Stage| -> Option<&'a Device> { advert(stage.peer)?.devices.get(usize::from(stage.device)) };
        let profile = |stage: &Stage| -> Option<&'a LayerProfile> { device(stage)?.profile(group.model) };
        let cost = |stage: &Stage| match profile(stage) {
            Some(profile) => PromptCost::measured(profile, stage.layers.len()),
            None => {
                let flops = device(stage).map_or(FlopsPerSecond(1e9), |device| device.flops);
                PromptCost::at_rate(shape, stage.layers.len(), flops)
            }
        };
        let handed_on = |pair: &[Stage]| {
            let (from, to) = (pair[0].peer, pair[1].peer);
            let link = advert(from).and_then(|advert| advert.links.iter().find(|link| link.to == to));
            let unmeasured = if from == to { links::WITHIN_PEER } else { links::UNMEASURED };
            let (latency, bandwidth) = link.map_or(unmeasured, |link| (link.latency, link.bandwidth));
            let token = bandwidth.time_for(u64::from(shape.hidden) * HANDED_ON).0;
            PromptCost { fixed: latency.0, token, square: 0.0 }
        };
        let stages: Vec<PromptCost> = group.stages.iter().map(cost).collect();
        let handed_on = group.stages.windows(2).map(handed_on);
        Self::new(&stages, handed_on, caps::chunk(group.stages.iter().filter_map(profile)).unwrap_or(CHUNK))
    }

    fn new(stages: &[PromptCost], handed_on: impl Iterator<Item = PromptCost>, chunk: u32) -> Self {
        let longer = |a: PromptCost, b: &PromptCost| if b.of(chunk, 0) > a.of(chunk, 0) { *b } else { a };
        Self {
            all: stages.iter().copied().chain(handed_on).fold(PromptCost::default(), std::ops::Add::add),
            slowest: stages.iter().fold(PromptCost::default(), longer),
            stages: stages.len(),
            chunk,
        }
    }

    /// `tokens` tokens behind `behind` others, with the group to themselves.
    #[must_use]
    pub fn of(&self, tokens: u32, behind: u32) -> Seconds {
        if self.stages < 2 {
            return self.all.of(tokens, behind);
        }
        let last = caps::through_stages(tokens.into(), self.chunk, self.stages).min(tokens);
        let steps = tokens.div_ceil(last.max(1)).max(1);
        let before = behind.saturating_add(tokens - last);
        let others = (self.all.of(last, before) - self.slowest.of(last, before)).0.max(0.0);
        self.slowest.of(tokens, behind) + Seconds(self.slowest.fixed * f64::from(steps - 1) + others)
    }

    /// Until so many tokens of other prompts have left a stage to the next one.
    #[must_use]
    pub fn behind(&self, pending: u32) -> Seconds {
        Seconds(self.slowest.token * f64::from(pending))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use tsnode_protocol::{BytesPerSecond, LayerRange, Link, Phase};

    /// 32 ms for the weights, and 1 ms a token.
    const STAGE: PromptCost = PromptCost { fixed: 0.032, token: 1e-3, square: 0.0 };

    fn close(a: Seconds, b: f64) {
        assert!((a.0 - b).abs() < 1e-9, "{a:?} and {b}");
    }

    #[test]
    fn stages_compute_a_prompt_side_by_side() {
        let alike = |n| GroupCost::new(&vec![STAGE; n], std::iter::empty(), 128);
        close(alike(1).of(256, 0), 0.288);
        // Four steps of 64 tokens, and the last of them at the other stage: not 0.576.
        close(alike(2).of(256, 0), 4.0 * 0.096 + 0.096);
        close(alike(2).of(0, 0), 2.0 * 0.032);
        close(alike(4).behind(100), 0.1);
        let twice = PromptCost { token: 2e-3, ..STAGE };
        let uneven = GroupCost::new(&[STAGE, twice, STAGE], std::iter::empty(), 128);
        close(uneven.behind(100), 0.2);
        let by_hand = 256.0 * 2e-3 + 4.0 * 0.032 + 2.0 * 0.096;
        close(uneven.of(256, 0), by_hand);
    }

    #[test]
    fn attention_reaches_back_over_all_before() {
        let stage = PromptCost { square: 1e-6, ..STAGE };
        let pair = GroupCost::new(&[stage; 2], std::iter::empty(), 128);
        let last = stage.of(64, 100 + 192).0;
        close(pair.of(256, 100), stage.of(256, 100).0 + 3.0 * 0.032 + last);
    }

    #[test]
    fn activations_wait_for_their_link() {
        let measured = |n| sample::measured(n, [0.016, 5e-4, 0.0], [1e-3; 3]);
        let (mut first, second) = (measured(1), measured(2));
        let ids = [PeerId([1; 32]), PeerId([2; 32])];
        let (latency, bandwidth) = (Seconds(0.05), BytesPerSecond(1e6));
        first.links.push(Link { to: ids[1], latency, bandwidth, path: Default::default() });
        let layers = [LayerRange { start: 0, end: 2 }, LayerRange { start: 2, end: 4 }];
        let stage = |n: usize| Stage { peer: ids[n], device: 0, layers: layers[n] };
        let group = Group::new(sample::card().id, Phase::Mixed, vec![stage(0), stage(1)]);
        let advert = |peer: PeerId| if peer == ids[0] { Some(&first) } else { Some(&second) };
        let cost = GroupCost::of_group(&group, &sample::card().shape, advert);
        // 256 channels of four bytes a token: one step of 64 tokens crosses that no other hides.
        close(cost.of(128, 0), 2.0 * 0.096 + 0.096 + 0.05 + 64.0 * 1024e-6);
    }
}
