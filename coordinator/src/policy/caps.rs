//! How many tokens of prompts a step holds: as many as make it worth reading the weights for, by what was measured.
//!
//! L tokens of a prompt take `a + b·L`, and for attention what they take in steps of any length ([`LayerProfile`]). So of the
//! speed that endless steps have, steps of L tokens have `b·L / (a + b·L)`: it saturates, at L in proportion to `a / b`. Two
//! cores of a server read weights nearly as fast as they multiply, and a hundred tokens will do; GPUs multiply so much faster
//! that it takes some hundreds to a thousand (Splitwise §III-B caps prompt batches at 2,048 for them). Steps longer than that
//! only make answers wait, and prompts that came behind.

use tsnode_protocol::LayerProfile;

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

/// Tokens of a step that are worth it on all of these, as stages of one group wait for each other; `None` where nothing was
/// measured.
#[must_use]
pub fn chunk<'a>(profiles: impl Iterator<Item = &'a LayerProfile>) -> Option<u32> {
    profiles.map(|profile| worth(profile.prefill)).max()
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

    proptest! {
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
