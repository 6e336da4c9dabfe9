//! What a request would have taken alone: computed by its groups as they were measured, with nobody else there.

use super::{Trace, View};
use tsnode_protocol::{GroupId, LayerProfile, ModelId, Quickest, Seconds, Stage, StepSize, TimedStep};

/// The groups that served a request, one where it did both.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServedBy {
    /// That computed its prompt.
    pub prefill: GroupId,
    /// The one that decoded its answer.
    pub decode: GroupId,
}

/// Steps of the prompt, which gives the first token, and of each token after it. Layers take what was measured of their devices; what a
/// step takes beyond that, for the model's ends and from stage to stage, the groups' quickest steps of late say. A prompt goes through
/// the stages whole, one after another, as if it were short: of one that they compute in chunks, side by side, it is more than it took.
/// Nothing where a device's times are not measured, or its peer has gone.
pub(super) fn alone(trace: &Trace, by: ServedBy, view: &View) -> Option<Seconds> {
    // The last token's logits are wanted, whatever is there already.
    let behind = trace.cached_tokens.min(trace.prompt_tokens.saturating_sub(1));
    let [all, behind] = [trace.prompt_tokens, behind].map(u64::from);
    let size = StepSize { prompts: (all - behind) as u32, pairs: all * all - behind * behind, ..StepSize::default() };
    let stages = (&trace.prefill_stages[..], trace.model);
    let prompt = layers(stages, &size, view)? + beyond(stages, by.prefill, |quickest| quickest.prompts, view);
    let steps = u64::from(trace.new_tokens.saturating_sub(1));
    // Step i attends to the prompt and to i tokens of the answer.
    let size = StepSize { answers: 1, context: all + steps.div_ceil(2), ..StepSize::default() };
    let stages = (&trace.decode_stages[..], trace.model);
    let step = layers(stages, &size, view)? + beyond(stages, by.decode, |quickest| quickest.answers, view);
    let alone = Seconds(prompt + steps as f64 * step);
    (alone.is_plausible() && alone.0 > 0.0).then_some(alone)
}

/// What the layers of these stages take for a step (s).
fn layers((stages, model): (&[Stage], ModelId), size: &StepSize, view: &View) -> Option<f64> {
    let profile = |stage: &Stage| -> Option<LayerProfile> {
        let device = view.adverts.get(&stage.peer)?.devices.get(usize::from(stage.device))?;
        device.profile(model).copied()
    };
    stages.iter().map(|stage| Some(f64::from(stage.layers.len()) * profile(stage)?.takes(size))).sum()
}

/// What a group's steps take beyond their layers, as far as its leader has said (s).
fn beyond(
    (stages, model): (&[Stage], ModelId),
    group: GroupId,
    kind: impl Fn(&Quickest) -> Option<TimedStep>,
    view: &View,
) -> f64 {
    let seen = view.up.get(&group).and_then(|load| kind(&load.quickest).or(load.quickest.answers));
    let beyond = |step: TimedStep| Some(step.took.0 - layers((stages, model), &step.size, view)?);
    seen.and_then(beyond).unwrap_or(0.0).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{gateway::LatencyBreakdown, sample};
    use std::{collections::BTreeMap, sync::Arc};
    use tsnode_protocol::{KvCodec, LayerRange, Load, Misfit, PeerId, RequestId};

    const MODEL: ModelId = ModelId([1; 16]);

    fn view(prefill: [f64; 3], decode: [f64; 3]) -> View {
        let none = Misfit { r2: 1.0, mean: 0.0, largest: 0.0 };
        let profile = LayerProfile { model: MODEL, prefill, decode, prompts: none, steps: none, mixed: none };
        let mut advert = sample::advert(1);
        advert.devices = advert.devices.into_iter().map(|device| device.for_one(MODEL, Some(profile))).collect();
        View { adverts: Arc::new([(PeerId([1; 32]), advert)].into()), ..View::default() }
    }

    fn stage(peer: u8, start: u32, end: u32) -> Stage {
        Stage { peer: PeerId([peer; 32]), device: 0, layers: LayerRange { start, end } }
    }

    fn trace(prompt_tokens: u32, cached_tokens: u32, new_tokens: u32) -> Trace {
        let stages = vec![stage(1, 0, 1), stage(1, 1, 4)];
        Trace {
            request: RequestId([1; 16]),
            model: MODEL,
            prefill: PeerId([1; 32]),
            decode: PeerId([1; 32]),
            prefill_stages: stages.clone(),
            decode_stages: stages,
            reason: String::new(),
            predicted: None,
            prompt_tokens,
            cached_tokens,
            new_tokens,
            codec: KvCodec::Raw,
            kv_codec: None,
            kv_bytes: 0,
            ttft: 9.0,
            total: 99.0,
            alone: None,
            first_part: None,
            overflow: None,
            parts: LatencyBreakdown::default(),
            deliveries: vec![],
            moves: vec![],
            slowest: None,
            peers: BTreeMap::new(),
        }
    }

    const BY: ServedBy = ServedBy { prefill: GroupId([1; 8]), decode: GroupId([2; 8]) };

    fn is(trace: &Trace, view: &View, expected: f64) {
        let took = alone(trace, BY, view).unwrap().0;
        assert!((took - expected).abs() < 1e-9, "{took}, not {expected}");
    }

    #[test]
    fn a_request_alone_takes_its_prompts_step_and_one_for_each_further_token() {
        let mut view = view([0.1, 0.01, 0.001], [0.2, 0.002, 0.05]);
        let prompt = 4.0 * (0.1 + 0.1 + 0.1);
        is(&trace(10, 0, 1), &view, prompt);
        // Three more steps, behind 11, 12 and 13 tokens.
        let steps = 4.0 * (3.0 * 0.25 + 36.0 * 0.002);
        is(&trace(10, 0, 4), &view, prompt + steps);
        // The last token is computed, whatever was there.
        is(&trace(10, 10, 1), &view, 4.0 * (0.1 + 0.01 + 0.001 * (100.0 - 81.0)));
        // The quickest step of three answers, which attended to 30 tokens, took a second more than its layers.
        let size = StepSize { answers: 3, context: 30, ..StepSize::default() };
        let took = Seconds(1.0 + 4.0 * (0.2 + 30.0 * 0.002 + 3.0 * 0.05));
        let quickest = Quickest { prompts: None, answers: Some(TimedStep { took, size }) };
        view.up.insert(BY.decode, Load { quickest, ..Load::default() });
        is(&trace(10, 0, 4), &view, prompt + steps + 3.0);
        view.up.insert(BY.prefill, Load { quickest, ..Load::default() });
        is(&trace(10, 0, 4), &view, prompt + steps + 4.0);
        let unknown = |trace: Trace| assert_eq!(alone(&trace, BY, &view), None);
        unknown(Trace { prefill_stages: vec![stage(2, 0, 4)], ..trace(10, 0, 1) });
        unknown(Trace { model: ModelId([2; 16]), ..trace(10, 0, 1) });
    }
}
