//! Requests that were never sent: lengths with the distributions of Azure's services, one service or several, each
//! Poisson or in bursts.
//!
//! A distribution is its percentiles at [`SHARES`], joined by straight lines on a logarithmic scale. Prompts and answers
//! are drawn independently: in the traces their rank correlation is −0.02 (coding) and 0.07 (conversation).

use super::trace::{Arriving, gap};
use tsnode_coordinator::{
    policy::{batching::ServiceNo, routing::Asked},
    replay::machines::Arrival,
    rng::Rng,
};
use tsnode_protocol::Seconds;

/// Percentiles of a distribution.
const KNOTS: usize = 32;
/// Where they are.
const SHARES: [f64; KNOTS] = [
    0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7,
    0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999, 1.0,
];

// Percentiles of Azure's LLM inference traces of 2023 (P. Patel et al., "Splitwise", ISCA 2024; Creative Commons
// Attribution 4.0): 8,819 and 19,366 requests.
const CODING: Lengths = Lengths {
    prompts: Percentiles([
        3, 12, 17, 35, 50, 75, 102, 147, 232, 385, 578, 770, 938, 1075, 1261, 1469, 1690, 1909, 2164, 2433, 2745, 3193,
        3923, 5194, 6097, 7315, 7435, 7436, 7436, 7436, 7437, 7437,
    ]),
    answers: Percentiles([
        6, 6, 6, 6, 6, 6, 6, 7, 7, 8, 9, 9, 10, 11, 12, 13, 14, 16, 18, 20, 24, 29, 39, 55, 69, 90, 128, 172, 252, 361,
        831, 1899,
    ]),
};
const CONVERSATION: Lengths = Lengths {
    prompts: Percentiles([
        2, 16, 29, 91, 161, 181, 200, 207, 372, 387, 396, 403, 414, 703, 984, 1020, 1045, 1071, 1097, 1130, 1189, 1315,
        1877, 2735, 4075, 4083, 4090, 4098, 4142, 4831, 6212, 14050,
    ]),
    answers: Percentiles([
        7, 14, 16, 24, 32, 41, 48, 54, 67, 77, 85, 91, 96, 103, 113, 129, 151, 177, 217, 384, 395, 400, 411, 424, 430,
        451, 509, 540, 601, 644, 954, 1000,
    ]),
};

/// What a share of a whole number of lengths may be above a whole number.
const ROUNDING: f64 = 1e-9;

/// A distribution of lengths (tokens): what each of [`SHARES`] does not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percentiles([u32; KNOTS]);

impl Percentiles {
    /// Of these lengths; `None` of none.
    #[must_use]
    pub fn of(mut lengths: Vec<u32>) -> Option<Self> {
        let last = lengths.len().checked_sub(1)?;
        lengths.sort_unstable();
        let at = |share: f64| {
            lengths[((share * (last + 1) as f64 - ROUNDING).ceil() as usize).saturating_sub(1).min(last)].max(1)
        };
        Some(Self(SHARES.map(at)))
    }

    /// The length that a share of them does not pass.
    #[must_use]
    pub fn at(&self, share: f64) -> u32 {
        let k = SHARES.partition_point(|s| *s <= share).clamp(1, KNOTS - 1) - 1;
        let (a, b) = (f64::from(self.0[k]).ln(), f64::from(self.0[k + 1]).ln());
        let part = ((share - SHARES[k]) / (SHARES[k + 1] - SHARES[k])).clamp(0.0, 1.0);
        (a + (b - a) * part).exp().round().max(1.0) as u32
    }
}

/// What requests of a service look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Tokens of prompts.
    pub prompts: Percentiles,
    /// Tokens of answers, the first included.
    pub answers: Percentiles,
}

impl Lengths {
    /// A service's whose traces the papers use: `coding` or `conversation`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "coding" => Some(CODING),
            "conversation" => Some(CONVERSATION),
            _ => None,
        }
    }

    /// A request.
    pub fn draw(&self, rng: &mut Rng) -> Asked {
        let prompt = self.prompts.at(rng.unit());
        Asked::new(prompt, self.answers.at(rng.unit()))
    }
}

/// Requests of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServiceTraffic {
    /// What they look like.
    pub lengths: Lengths,
    /// How many come in a second.
    pub rate: f64,
    /// How they come.
    pub arriving: Arriving,
}

/// Rates of so many services that are one rate together: the n-th has a part in proportion to n^−`exponent`. With 0 all
/// are alike.
#[must_use]
pub fn power_law(services: u16, rate: f64, exponent: f64) -> Vec<f64> {
    let parts: Vec<f64> = (1..=services).map(|n| f64::from(n).powf(-exponent)).collect();
    let all: f64 = parts.iter().sum();
    parts.into_iter().map(|part| rate * part / all).collect()
}

/// Draws requests of several services, in order of arrival. A service's requests are the same whatever the others are,
/// as far as they come.
#[must_use]
pub fn drawn(services: &[ServiceTraffic], requests: usize, seed: u64) -> Vec<Arrival> {
    let mut seeds = Rng::new(seed);
    let mut streams: Vec<(Rng, Seconds)> = services.iter().map(|_| (Rng::new(seeds.bits()), Seconds(0.0))).collect();
    for (service, (rng, at)) in services.iter().zip(&mut streams) {
        *at = Seconds(gap(rng, service.arriving) / service.rate);
    }
    let mut next = || {
        let first = streams.iter().enumerate().min_by(|a, b| a.1.1.0.total_cmp(&b.1.1.0)).map(|(place, _)| place)?;
        let (service, (rng, at)) = (&services[first], &mut streams[first]);
        let asked = Asked { service: ServiceNo(first as u16), ..service.lengths.draw(rng) };
        let arrival = Arrival { at: *at, asked };
        *at += Seconds(gap(rng, service.arriving) / service.rate);
        Some(arrival)
    };
    (0..requests).map_while(|_| next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_met_and_lines_join_them() {
        let coding = Lengths::named("coding").unwrap();
        let at = |p: &Percentiles| [0.0, 0.5, 0.9, 1.0].map(|share| p.at(share));
        assert_eq!((at(&coding.prompts), at(&coding.answers)), ([3, 1469, 5194, 7437], [6, 13, 55, 1899]));
        let same = Percentiles::of((1..=100).collect()).unwrap();
        assert_eq!([0.5, 0.525, 0.9].map(|share| same.at(share)), [50, 52, 90]);
        assert_eq!(Percentiles::of(Vec::new()), None);
    }

    #[test]
    fn services_have_the_rates_of_a_power_law() {
        let lengths = Lengths::named("conversation").unwrap();
        let rates = power_law(4, 25.0, 1.0);
        assert!((rates.iter().sum::<f64>() - 25.0).abs() < 1e-9 && (rates[0] / rates[3] - 4.0).abs() < 1e-9);
        let service = |rate: &f64| ServiceTraffic { lengths, rate: *rate, arriving: Arriving::Bursty(4.0) };
        let services: Vec<ServiceTraffic> = rates.iter().map(service).collect();
        let all = drawn(&services, 40_000, 1);
        assert!(all.windows(2).all(|w| w[0].at <= w[1].at));
        let span = all.last().unwrap().at.0;
        for (no, rate) in rates.iter().enumerate() {
            let came = all.iter().filter(|a| a.asked.service == ServiceNo(no as u16)).count() as f64;
            // Counts of bursty arrivals vary about c² times as much as Poisson ones: four standard deviations.
            let off = (came - rate * span).abs() / (4.0 * rate * span).sqrt();
            assert!(off < 4.0, "service {no}: {came} came, {} expected", rate * span);
        }
        let alone = drawn(&services[..1], 1000, 1);
        let among: Vec<Arrival> = all.into_iter().filter(|a| a.asked.service == ServiceNo(0)).take(1000).collect();
        assert_eq!(alone, among, "one service does not change with its neighbours");
    }
}
