//! When requests come and how long they are: drawn from a seed, or a trace's. No clock and no socket.

use std::time::Duration;
use tsnode_coordinator::{replay::machines::Arrival, rng::Rng};
use tsnode_protocol::Seconds;

/// Longest time that a request is waited for: what comes later is never sent by a run that anybody waits for.
const LATEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// A request that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) struct PlannedRequest {
    /// After the first one could come.
    pub at: Duration,
    /// Tokens of its prompt.
    pub prompt: u32,
    /// Most tokens of its answer.
    pub answer: u32,
}

/// How requests come that are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::cli) enum Arrivals {
    /// All at once.
    AtOnce,
    /// Gaps of a gamma distribution: with shape 1 a Poisson process, below it bursts, above it more even than that.
    Gamma {
        /// Requests a second.
        rate: f64,
        /// The distribution's shape.
        shape: f64,
    },
}

/// Lengths that are drawn (tokens): evenly from `length · (1 − ratio)` to `length · (1 + ratio)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::cli) struct DrawnLengths {
    pub prompt: u32,
    pub answer: u32,
    pub ratio: f64,
}

/// Draws requests. Times and lengths have streams of their own: other lengths come at the same times.
pub(in crate::cli) fn drawn(
    arrivals: Arrivals,
    lengths: DrawnLengths,
    requests: usize,
    seed: u64,
) -> Vec<PlannedRequest> {
    let mut seeds = Rng::new(seed);
    let (mut times, mut sizes) = (Rng::new(seeds.bits()), Rng::new(seeds.bits()));
    let mut at = 0.0;
    let mut next = || {
        if let Arrivals::Gamma { rate, shape } = arrivals {
            at += gamma(&mut times, shape) / (shape * rate);
        }
        let prompt = near(&mut sizes, lengths.prompt, lengths.ratio);
        PlannedRequest { at: duration(at), prompt, answer: near(&mut sizes, lengths.answer, lengths.ratio) }
    };
    (0..requests).map(|_| next()).collect()
}

/// What is made of a trace's requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::cli) struct TraceScaling {
    /// So many times as fast.
    pub speed: f64,
    /// Of each length so much.
    pub lengths: f64,
}

/// A trace's first requests; a length is at least one token.
pub(in crate::cli) fn traced(trace: &[Arrival], requests: usize, changed: TraceScaling) -> Vec<PlannedRequest> {
    let scaled = |tokens: u32| (f64::from(tokens) * changed.lengths).round().clamp(1.0, f64::from(u32::MAX)) as u32;
    let planned = |Arrival { at: Seconds(at), asked }: &Arrival| PlannedRequest {
        at: duration(at / changed.speed),
        prompt: scaled(asked.prompt),
        answer: scaled(asked.answer),
    };
    trace.iter().take(requests).map(planned).collect()
}

fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(LATEST).min(LATEST)
}

/// Evenly around a length.
fn near(rng: &mut Rng, length: u32, ratio: f64) -> u32 {
    let length = f64::from(length);
    let (least, most) = ((length * (1.0 - ratio)).floor().max(1.0), (length * (1.0 + ratio)).ceil().max(1.0));
    least as u32 + rng.below((most - least) as usize + 1) as u32
}

/// Of a gamma distribution with this shape and scale 1 (Marsaglia and Tsang 2000; below shape 1 by the power of a uniform draw
/// that they give).
fn gamma(rng: &mut Rng, shape: f64) -> f64 {
    if shape < 1.0 {
        let power = (1.0 - rng.unit()).powf(1.0 / shape);
        return gamma(rng, shape + 1.0) * power;
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = normal(rng);
        let v = (1.0 + c * x).powi(3);
        let u = 1.0 - rng.unit();
        if v > 0.0 && u.ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return d * v;
        }
    }
}

/// Of the normal distribution (Box and Muller 1958).
fn normal(rng: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.unit()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.unit()).cos()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_coordinator::policy::routing::Asked;

    const LENGTHS: DrawnLengths = DrawnLengths { prompt: 100, answer: 20, ratio: 0.5 };

    #[test]
    fn a_seed_says_when_what_comes_and_another_says_otherwise() {
        let poisson = Arrivals::Gamma { rate: 10.0, shape: 1.0 };
        let one = drawn(poisson, LENGTHS, 500, 7);
        assert_eq!(one, drawn(poisson, LENGTHS, 500, 7));
        assert_ne!(one, drawn(poisson, LENGTHS, 500, 8));
        assert_eq!(one[..100], drawn(poisson, LENGTHS, 100, 7)[..], "a shorter run is the beginning of a longer one");
        let longer = drawn(poisson, DrawnLengths { prompt: 1000, ..LENGTHS }, 500, 7);
        assert!(one.iter().zip(&longer).all(|(a, b)| a.at == b.at), "times do not go by lengths");
        assert!(one.iter().all(|p| (50..=150).contains(&p.prompt) && (10..=30).contains(&p.answer)));
        assert!([50, 150].iter().all(|end| one.iter().any(|p| p.prompt.abs_diff(*end) <= 2)), "the ends are reached");
        let fixed = drawn(Arrivals::AtOnce, DrawnLengths { ratio: 0.0, ..LENGTHS }, 3, 7);
        assert_eq!(fixed, [PlannedRequest { at: Duration::ZERO, prompt: 100, answer: 20 }; 3]);
    }

    #[test]
    fn gaps_have_the_rate_and_burstiness_asked_for() {
        for shape in [0.25, 1.0, 4.0] {
            let all = drawn(Arrivals::Gamma { rate: 5.0, shape }, LENGTHS, 100_000, 1);
            let gaps: Vec<f64> = all.windows(2).map(|w| (w[1].at - w[0].at).as_secs_f64()).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let square = gaps.iter().map(|g| (g / mean - 1.0).powi(2)).sum::<f64>() / gaps.len() as f64;
            assert!((mean * 5.0 - 1.0).abs() < 0.02, "shape {shape}: mean {mean}");
            // The squared variation of a gamma distribution is one over its shape.
            assert!((square * shape - 1.0).abs() < 0.05, "shape {shape}: variation {square}");
        }
    }

    #[test]
    fn a_trace_keeps_its_order_and_is_bounded() {
        let arrival = |at, prompt, answer| Arrival { at: Seconds(at), asked: Asked::new(prompt, answer) };
        let trace = [arrival(0.0, 1000, 3), arrival(2.0, 10, 40), arrival(3.0, 1, 1)];
        let planned = traced(&trace, 2, TraceScaling { speed: 4.0, lengths: 0.1 });
        let first = PlannedRequest { at: Duration::ZERO, prompt: 100, answer: 1 };
        assert_eq!(planned, [first, PlannedRequest { at: Duration::from_millis(500), prompt: 1, answer: 4 }]);
        let never = traced(&trace, 9, TraceScaling { speed: f64::MIN_POSITIVE, lengths: f64::MAX });
        assert_eq!((never.len(), never[2].at, never[2].prompt), (3, LATEST, u32::MAX));
    }
}
