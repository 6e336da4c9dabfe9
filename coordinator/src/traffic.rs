//! What gateways are asked for: watched where requests come in, said in adverts, taken together where plans are made
//! (ThunderServe §3.4: "the inference workload is constantly monitored and reported to the scheduling algorithm").
//!
//! An advert changes with it when enough has come to say something, when the [`crate::profiler`] notices a shift, and when
//! nothing has come for long: so plans are made anew for requests of another kind, and not for each request.

use crate::{
    Time,
    members::Members,
    profiler::{Event, Profile, Profiler, ProfilerConfig},
};
use std::collections::BTreeMap;
use std::time::Duration;
use tsnode_protocol::{
    ModelId, Traffic, limits,
    traffic::{LENGTHS, LONGEST, MOST_A_SECOND},
};

/// Prompts, and answers, before anything is said of a model's requests.
const ENOUGH: u32 = 100;
/// After so long without a request what there was is no longer said.
const QUIET: Duration = Duration::from_secs(600);

/// Watches one gateway's requests, model by model.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    models: BTreeMap<ModelId, Watched>,
}

#[derive(Clone, Debug)]
struct Watched {
    profiler: Profiler,
    prompts: u32,
    answers: u32,
    latest: Time,
    said: Option<Traffic>,
}

impl Watch {
    /// A request for a model came, or its answer ended.
    pub fn on_event(&mut self, now: Time, model: ModelId, event: Event) {
        if !self.models.contains_key(&model) && self.models.len() >= limits::MODELS {
            let longest_quiet = self.models.iter().min_by_key(|(_, w)| w.latest).map(|(model, _)| *model);
            longest_quiet.map(|model| self.models.remove(&model));
        }
        let watched = self.models.entry(model).or_insert_with(|| Watched::new(now));
        watched.on_event(now, model, event);
    }

    /// What is to be said of it.
    pub fn said(&mut self, now: Time) -> Vec<Traffic> {
        self.models.retain(|_, watched| now < watched.latest + QUIET);
        self.models.values().filter_map(|watched| watched.said).collect()
    }
}

impl Watched {
    fn new(now: Time) -> Self {
        Self { profiler: Profiler::new(ProfilerConfig::default()), prompts: 0, answers: 0, latest: now, said: None }
    }

    fn on_event(&mut self, now: Time, model: ModelId, event: Event) {
        self.latest = now;
        let count = match event {
            Event::Arrived { .. } => &mut self.prompts,
            Event::Answered { .. } => &mut self.answers,
        };
        *count = count.saturating_add(1);
        let shift = self.profiler.on_event(now, event);
        let is_first = self.said.is_none() && self.prompts.min(self.answers) >= ENOUGH;
        if shift.is_some() || is_first {
            // Of a shift of prompts alone no answer may have come yet: what was said of answers holds.
            let profile = self.profiler.profile();
            self.said = stated(model, &profile, self.said.as_ref()).or(self.said);
        }
    }
}

/// A profile in short. Where it has no prompts or no answers yet, those said before.
fn stated(model: ModelId, profile: &Profile, before: Option<&Traffic>) -> Option<Traffic> {
    let prompts = sixteen(&profile.prompts).or(before.map(|b| b.prompts))?;
    let answers = sixteen(&profile.answers).or(before.map(|b| b.answers))?;
    let rate = if profile.rate > 0.0 { profile.rate } else { before.map_or(0.0, |b| b.rate) };
    Some(Traffic { model, rate: rate.min(MOST_A_SECOND), prompts, answers })
}

/// The middles of sixteen equal parts.
fn sixteen(sorted: &[u32]) -> Option<[u32; LENGTHS]> {
    let middle = |i: usize| sorted[(2 * i + 1) * sorted.len() / (2 * LENGTHS)].clamp(1, LONGEST);
    (!sorted.is_empty()).then(|| std::array::from_fn(middle))
}

/// What a model's gateways are asked for together; `None` where none says anything of it.
///
/// Lengths are medians by requests a second, of which none counts for more than the one at the lower third by its rate: two
/// thirds of the gateways and more count alike, so that fewer than a third that lie take the medians nowhere that no other is.
#[must_use]
pub fn together(model: ModelId, members: &Members<'_>) -> Option<Profile> {
    let all: Vec<&Traffic> = members
        .values()
        .filter_map(|advert| advert.traffic.iter().find(|t| t.model == model))
        .filter(|t| t.rate > 0.0)
        .collect();
    let mut rates: Vec<f64> = all.iter().map(|t| t.rate).collect();
    rates.sort_by(f64::total_cmp);
    let most = *rates.get(rates.len().checked_sub(1)? / 3)?;
    let weight = |t: &Traffic| t.rate.min(most);
    let rate = all.iter().map(|t| weight(t)).sum();
    let median = |of: &dyn Fn(&Traffic) -> u32| {
        let mut lengths: Vec<(u32, f64)> = all.iter().map(|t| (of(t), weight(t))).collect();
        lengths.sort_by_key(|(length, _)| *length);
        let mut below = 0.0;
        let reaches = |(_, weight): &&(u32, f64)| {
            below += weight;
            2.0 * below >= rate
        };
        lengths.iter().find(reaches).or(lengths.last()).map_or(1, |(length, _)| *length)
    };
    let prompts = (0..LENGTHS).map(|i| median(&|t| t.prompts[i])).collect();
    let answers = (0..LENGTHS).map(|i| median(&|t| t.answers[i])).collect();
    Some(Profile { rate, prompts, answers })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use tsnode_protocol::{Advert, PeerId};

    const MODEL: ModelId = ModelId([1; 16]);

    fn at(seconds: f64) -> Time {
        Time::from_secs_f64(seconds)
    }

    fn traffic(rate: f64, prompt: u32, answer: u32) -> Traffic {
        Traffic { model: MODEL, rate, prompts: [prompt; LENGTHS], answers: [answer; LENGTHS] }
    }

    fn merged(all: &[Traffic]) -> Option<Profile> {
        let adverts: Vec<Advert> = all.iter().map(|t| Advert { traffic: vec![*t], ..sample::gateway(0) }).collect();
        let members = (0..).zip(&adverts).map(|(n, a)| (PeerId([n; 32]), a)).collect();
        together(MODEL, &members)
    }

    #[test]
    fn what_is_said_changes_with_a_shift_and_ends_with_the_requests() {
        let mut watch = Watch::default();
        let mut now = 0.0;
        let mut said = Vec::new();
        for n in 0..2000 {
            let (prompt, answer) = if n < 1000 { (1000, 20) } else { (100, 200) };
            now += 0.5;
            watch.on_event(at(now), MODEL, Event::Arrived { prompt: prompt + n % 7 });
            watch.on_event(at(now), MODEL, Event::Answered { answer });
            let now_said = watch.said(at(now));
            assert!(now_said.iter().all(|t| t.check().is_ok()), "{now_said:?}");
            if said.last() != Some(&now_said) {
                said.push(now_said);
            }
        }
        assert!((3..=8).contains(&said.len()), "nothing, coding, conversation: {said:?}");
        assert_eq!(said[0], []);
        assert_eq!((said[1][0].answers, said[1][0].rate), ([20; LENGTHS], 2.0));
        let last = said.last().unwrap()[0];
        assert!(last.answers == [200; LENGTHS] && last.prompts[15] < 110, "{last:?}");
        assert_eq!(watch.said(at(now + 601.0)), []);
    }

    #[test]
    fn models_are_bounded_and_the_one_that_is_asked_for_stays() {
        let mut watch = Watch::default();
        for n in 0..200u8 {
            watch.on_event(at(f64::from(n)), MODEL, Event::Arrived { prompt: 1 });
            watch.on_event(at(f64::from(n)), ModelId([n; 16]), Event::Arrived { prompt: 1 });
        }
        assert!(watch.models.len() == limits::MODELS && watch.models.contains_key(&MODEL));
    }

    #[test]
    fn fewer_than_a_third_that_lie_change_no_length() {
        for all in 4..30 {
            let lying = (all - 1) / 3;
            let honest: Vec<Traffic> = (lying..all).map(|n| traffic(f64::from(n), 1000, 20)).collect();
            for (rate, prompt, answer) in [(1e6, 1 << 24, 1), (1e6, 1, 1 << 24), (1e-9, 1, 1)] {
                let lies = vec![traffic(rate, prompt, answer); lying as usize];
                let profile = merged(&[&honest[..], &lies[..]].concat()).unwrap();
                assert_eq!(
                    (profile.prompts, profile.answers),
                    (vec![1000; LENGTHS], vec![20; LENGTHS]),
                    "{all} {rate}"
                );
                assert!(profile.rate <= f64::from(all * all), "{}", profile.rate);
            }
        }
        assert_eq!(merged(&[]), None);
        assert_eq!(merged(&[traffic(0.0, 5, 5)]), None);
    }
}
