//! How many tokens of prompts a step holds: as many as make it worth reading the weights for, by what was measured.
//!
//! L tokens of a prompt take `a + b·L`, and for attention what they take in steps of any length ([`LayerProfile`]). So of the
//! speed that endless steps have, steps of L tokens have `b·L / (a + b·L)`: it saturates, at L in proportion to `a / b`. Two
//! cores of a server read weights nearly as fast as they multiply, and a hundred tokens will do; GPUs multiply so much faster
//! that it takes some hundreds to a thousand (Splitwise §III-B caps prompt batches at 2,048 for them). Steps longer than that
//! only make answers wait, and prompts that came behind.

use tsnode_protocol::{LayerProfile, PromptCodec};

/// A step's tokens where nothing is answered, as a multiple of these, at most. Twice as long a step reads the weights half as
/// often; four times as long was no better (docs/research/closed-forms.md).
pub const LONG: u32 = 2;
/// Time for a step's tokens, in times for its weights: at four a step has 4/5 of the speed of endless ones. Where no answers
/// wait, steps may be [`LONG`] times as long: 8/9. On the GPUs of the papers that is the 512 and 1,024 tokens that were found
/// best there.
const RATIO: f64 = 4.0;
/// Tokens of a step at least: where fewer would do, handing steps round a ring costs more than it saves.
pub const SHORTEST: u32 = 128;
/// Tokens of a step at most, so that none has more than Splitwise's 2,048.
pub const LONGEST: u32 = 2048 / LONG;
/// Tokens that steps of a prompt through a pipeline are multiples of: what codecs pack together, so that all KV of a step leaves
/// while the next one computes. Of shorter steps than twice that, half.
pub const GRAIN: u32 = PromptCodec::GROUP;

/// Tokens of a step that are worth it on all of these, as stages of one group wait for each other; `None` where nothing was
/// measured.
#[must_use]
pub fn chunk<'a>(profiles: impl Iterator<Item = &'a LayerProfile>) -> Option<u32> {
    profiles.map(|profile| worth(profile.prefill)).max()
}

/// Tokens of a step of prompts that have a pipeline of so many stages to themselves and so many tokens in all, where steps of `chunk`
/// tokens are worth reading the weights for ([`chunk`]).
///
/// Where a step of L tokens takes a + b·L at each of p stages alike, k of them take (k + p − 1)·(a + b·L): some path through stages
/// and steps passes the longest step at every stage and every other one once (a flow shop, `scheduler/prompts.rs`). Shorter steps fill
/// the pipeline sooner and read the weights more often; of n tokens those of √(n·a / (b·(p − 1))) are through soonest, were there no
/// last one shorter than the others. Here those of a few lengths around it are weighed that are multiples of [`GRAIN`], a being what
/// [`chunk`] took for weights; where two are alike the longer ones. What [`SHORTEST`] says of weights is the most that they take: there
/// the shorter ones are taken. Of [`LONGEST`] it is the least: there no step is shorter.
#[must_use]
pub fn through_stages(prompts: u64, chunk: u32, stages: usize) -> u32 {
    let grain = f64::from(if chunk < LONGEST { GRAIN.min(chunk / LONG).max(1) } else { chunk });
    let most = (f64::from(chunk.saturating_mul(LONG)) / grain).floor().max(1.0) * grain;
    let (all, weights, others) = (prompts as f64, f64::from(chunk) / RATIO, stages.saturating_sub(1).max(1) as f64);
    let best = (all * weights / others).sqrt();
    // Of no tokens there is one step of none.
    let steps = (all / best).floor().max(1.0);
    let near = [(best / grain).floor() * grain, best, all / (steps + 1.0), all / steps, all];
    let time = |tokens: f64| (all / tokens).ceil() * weights + others * (weights + tokens.min(all));
    let whole = near.map(|tokens| ((tokens / grain).ceil() * grain).clamp(grain, most));
    let liked = |tokens: f64| if chunk == SHORTEST { tokens } else { -tokens };
    // Planners ask this of each request on each group: each length is weighed once.
    let weighed = whole.map(|tokens| (time(tokens), liked(tokens), tokens));
    let soonest = weighed.into_iter().min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    soonest.map_or(grain, |(_, _, tokens)| tokens) as u32
}

fn worth([fixed, token, _]: [f64; 3]) -> u32 {
    let tokens = RATIO * fixed / token;
    // Without time for a token there is no end to what is worth it; 0/0 says nothing and is taken for short.
    let tokens = if tokens.is_nan() { 0.0 } else { tokens.ceil() };
    tokens.clamp(f64::from(SHORTEST), f64::from(LONGEST)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tsnode_protocol::{Misfit, ModelId};

    fn profile(prefill: [f64; 3]) -> LayerProfile {
        let exact = Misfit { r2: 1.0, mean: 0.0, largest: 0.0 };
        let (model, decode) = (ModelId([0; 16]), [1e-3; 3]);
        LayerProfile { model, prefill, decode, prompts: exact, steps: exact, mixed: exact }
    }

    fn of(prefill: [f64; 3]) -> Option<u32> {
        chunk([profile(prefill)].iter())
    }

    #[test]
    fn steps_are_as_long_as_weights_take_to_read() {
        // A layer of Llama-30B: 1.0 GB at 560 GB/s, and 1.0 GFLOP a token at 75 TFLOP/s, on an A40.
        assert_eq!(of([1.9e-3, 1.4e-5, 0.0]), Some(543));
        // A layer of a model of 1B on two cores: 120 MB at 26 GB/s, 1.2 ms a token.
        assert_eq!(of([4.6e-3, 1.2e-3, 1e-7]), Some(SHORTEST));
        assert_eq!(of([1.0, 1e-6, 0.0]), Some(LONGEST));
    }

    #[test]
    fn the_stage_that_needs_the_longest_decides() {
        let [short, long] = [0.5, 0.75].map(|fixed| profile([fixed, 1.0 / 256.0, 0.0]));
        assert_eq!((chunk([short].iter()), chunk([long].iter())), (Some(512), Some(768)));
        assert_eq!(chunk([short, long].iter()), Some(768));
        assert_eq!(chunk([long, short].iter()), Some(768));
        assert_eq!(chunk([].iter()), None);
    }

    #[test]
    fn what_was_not_measured_well_is_within_bounds() {
        assert_eq!(of([0.0, 0.0, 1e-6]), Some(SHORTEST));
        assert_eq!(of([0.0, 1e-3, 0.0]), Some(SHORTEST));
        assert_eq!(of([1e-3, 0.0, 1e-6]), Some(LONGEST));
    }

    #[test]
    fn a_prompt_through_a_pipeline_is_cut_so_that_it_is_through_soonest() {
        // 128 tokens are worth reading the weights for, which take as long as 32 of them. Four steps of 64 through two stages take
        // 5 · 96, two of 128 take 3 · 160, and one takes 2 · 288.
        let of = |prompt, stages| through_stages(prompt, 128, stages);
        assert_eq!(
            [of(256, 2), of(1024, 2), of(8192, 2)],
            [64, 128, 256],
            "480 either way, and longer the more there is"
        );
        assert_eq!([of(512, 2), of(512, 4)], [128, 64], "the more stages there are, the shorter");
        assert_eq!([of(64, 2), of(1, 8)], [64; 2], "a step is not cut for nothing");
        assert_eq!([through_stages(512, 512, 2), through_stages(256, 512, 4)], [256, 128]);
        assert_eq!(through_stages(1024, 512, 2), 512, "and no shorter than it must be: 896 either way");
        assert_eq!(through_stages(60, 8, 2), 12, "steps as short as tests have them");
        assert_eq!(through_stages(2000, LONGEST, 8), LONGEST, "how long the weights take is not known");
        assert_eq!([through_stages(u64::MAX, 1, 2), through_stages(0, 1, 2)], [2, 1]);
    }

    proptest! {
        /// Of all multiples hardly any is quicker: by what steps take that are written out one by one.
        #[test]
        fn hardly_anything_is_through_sooner(prompt in 1u64..20_000, chunk in SHORTEST..LONGEST, stages in 2usize..9) {
            let weights = f64::from(chunk) / RATIO;
            let time = |tokens: u64| {
                let (mut left, mut sum, mut longest) = (prompt, 0.0, 0.0f64);
                while left > 0 {
                    let step = weights + left.min(tokens) as f64;
                    (left, sum, longest) = (left.saturating_sub(tokens), sum + step, longest.max(step));
                }
                sum + longest * (stages - 1) as f64
            };
            let tokens = through_stages(prompt, chunk, stages);
            prop_assert_eq!(tokens % GRAIN, 0);
            prop_assert!(tokens <= LONG * chunk);
            for other in (GRAIN..=LONG * chunk).step_by(GRAIN as usize) {
                prop_assert!(time(tokens.into()) <= 1.02 * time(other.into()), "{} and {}", tokens, other);
            }
        }

        #[test]
        fn speed_has_saturated(fixed in 0.0..1.0, token in 1e-7..1e-2, square in 0.0..1e-6) {
            let tokens = of([fixed, token, square]).unwrap();
            let speed = |tokens: f64| token * tokens / (fixed + token * tokens);
            let l = f64::from(tokens);
            prop_assert!((SHORTEST..=LONGEST).contains(&tokens));
            prop_assert!(tokens == LONGEST || speed(l) >= 0.8 - 1e-9, "{}", speed(l));
            prop_assert!(tokens == SHORTEST || speed(l - 1.0) < 0.8 + 1e-9, "{}", speed(l - 1.0));
        }
    }
}
