//! What gateways are asked for: watched where requests come in, said in adverts, taken together where plans are made
//! (ThunderServe §3.4: "the inference workload is constantly monitored and reported to the scheduling algorithm").
//!
//! An advert changes with it when enough has come to say something, when the [`crate::profiler`] notices a shift, and when
//! nothing has come for long: so plans are made anew for requests of another kind, and not for each request. A profiler hears of
//! nothing that does not come: where requests stay away, the rate that was said falls by halves, a few times in all.

use crate::{
    Time,
    members::Members,
    profiler::{Event, Profile, Profiler, ProfilerConfig},
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tsnode_protocol::{
    ModelId, Traffic, limits,
    traffic::{LENGTHS, LONGEST, MOST_A_SECOND, MOST_VARIATION},
};

/// Prompts, and answers, before anything is said of a model's requests.
const ENOUGH: u32 = 100;
/// Between two words about a model: plans are not made anew more often for what gateways are asked for.
const AGAIN: Duration = Duration::from_secs(30);
/// Requests stay away once none has come for so long, and for as long as so many would have taken to come: a burst is followed by
/// such a lull as well.
const LULL: Duration = Duration::from_secs(30);
const MISSED: f64 = 50.0;
/// After so long without a request what there was is no longer said.
const QUIET: Duration = Duration::from_secs(600);

/// Where not all models are in memory at once: after so long without a request a model is asked for no more.
const RECENT: Duration = Duration::from_secs(20);
/// Prompts and answers of a model of which too few requests have come to say of which kind they are (tokens).
const FEW: (u32, u32) = (512, 128);

/// Watches one gateway's requests, model by model.
#[derive(Clone, Debug, Default)]
pub struct TrafficWatch {
    models: BTreeMap<ModelId, WatchedModel>,
}

#[derive(Clone, Debug)]
struct WatchedModel {
    profiler: Profiler,
    prompts: u32,
    answers: u32,
    latest: Time,
    said: Option<Traffic>,
    /// Something is to be said once enough has come: nothing was yet, or requests come again that had stayed away.
    begins: bool,
    /// What is said holds no longer, and may be said anew from then on.
    is_stale: bool,
    next: Time,
}

impl TrafficWatch {
    /// A request for a model came, or its answer ended.
    pub fn on_event(&mut self, now: Time, model: ModelId, event: Event) {
        if !self.models.contains_key(&model) && self.models.len() >= limits::MODELS {
            let longest_quiet = self.models.iter().min_by_key(|(_, w)| w.latest).map(|(model, _)| *model);
            longest_quiet.map(|model| self.models.remove(&model));
        }
        let watched = self.models.entry(model).or_insert_with(|| WatchedModel::new(now));
        watched.on_event(now, model, event);
    }

    /// What is to be said of it where not all models are in memory at once: of those that yield to others and are asked for now,
    /// however few requests have come, and of no others that yield. `open` are models with requests that have not ended.
    pub fn said_now(&mut self, now: Time, open: &BTreeSet<ModelId>, yielding: &BTreeSet<ModelId>) -> Vec<Traffic> {
        let open: BTreeSet<ModelId> = open.intersection(yielding).copied().collect();
        self.models.retain(|model, watched| now < watched.latest + QUIET || open.contains(model));
        self.models.iter_mut().for_each(|(model, watched)| watched.say(now, *model));
        let of = |(model, watched): (&ModelId, &WatchedModel)| {
            if !yielding.contains(model) {
                return watched.said_at(now);
            }
            let is_asked = open.contains(model) || now < watched.latest + RECENT;
            is_asked.then(|| watched.said_at(now).unwrap_or_else(|| few(*model)))
        };
        let said = self.models.iter().filter_map(of);
        // What goes on for a client that was served elsewhere before did not come here as a new request.
        let resumed = open.iter().filter(|model| !self.models.contains_key(*model)).map(|model| few(*model));
        said.chain(resumed).take(limits::MODELS).collect()
    }

    /// What is to be said of it.
    pub fn said(&mut self, now: Time) -> Vec<Traffic> {
        self.models.retain(|_, watched| now < watched.latest + QUIET);
        self.models.iter_mut().for_each(|(model, watched)| watched.say(now, *model));
        self.models.values().filter_map(|watched| watched.said_at(now)).collect()
    }
}

impl WatchedModel {
    fn new(now: Time) -> Self {
        let profiler = Profiler::new(ProfilerConfig::default());
        let (begins, is_stale) = (true, false);
        Self { profiler, prompts: 0, answers: 0, latest: now, said: None, begins, is_stale, next: Time::ZERO }
    }

    /// What is said of it: of requests that stay away, that there are no more than one in that time.
    fn said_at(&self, now: Time) -> Option<Traffic> {
        let said = self.said?;
        let (silent, lull) = (now.saturating_sub(self.latest).as_secs_f64(), lull(said.rate));
        if silent < lull {
            return Some(said);
        }
        let halvings = (silent / lull).log2().floor();
        Some(Traffic { rate: said.rate.min(1.0 / (lull * halvings.exp2())), ..said })
    }

    fn on_event(&mut self, now: Time, model: ModelId, event: Event) {
        let said = self.said_at(now);
        if said != self.said {
            // How many come from now on is another matter: until enough have, it is as few.
            *self = Self { said, next: self.next, ..Self::new(now) };
        }
        self.latest = now;
        let count = match event {
            Event::Arrived { .. } => &mut self.prompts,
            Event::Answered { .. } => &mut self.answers,
        };
        *count = count.saturating_add(1);
        let shift = self.profiler.on_event(now, event);
        let is_enough = self.begins && self.prompts.min(self.answers) >= ENOUGH;
        self.begins &= !is_enough;
        self.is_stale |= shift.is_some() || is_enough;
        self.say(now, model);
    }

    /// Says anew what is stale, as soon as that may be.
    fn say(&mut self, now: Time, model: ModelId) {
        if self.is_stale && now >= self.next {
            // Of a shift of prompts alone no answer may have come yet: what was said of answers holds.
            let profile = self.profiler.profile();
            self.said = stated(model, &profile, self.said.as_ref()).or(self.said);
            (self.is_stale, self.next) = (false, now + AGAIN);
        }
    }
}

/// That some requests come for a model: the same whatever they are, so that plans are not made anew for each.
fn few(model: ModelId) -> Traffic {
    let (prompt, answer) = FEW;
    let (rate, prompts, answers) = (1.0 / RECENT.as_secs_f64(), [prompt; LENGTHS], [answer; LENGTHS]);
    Traffic { model, rate, variation: 1.0, prompts, answers }
}

/// How long requests that came at this rate must stay away until that says anything (s).
fn lull(rate: f64) -> f64 {
    (MISSED / rate.max(f64::MIN_POSITIVE)).max(LULL.as_secs_f64()).min(QUIET.as_secs_f64())
}

/// A profile in short. Where it has no prompts or no answers yet, those said before.
fn stated(model: ModelId, profile: &Profile, before: Option<&Traffic>) -> Option<Traffic> {
    let prompts = sixteen(&profile.prompts).or(before.map(|b| b.prompts))?;
    let answers = sixteen(&profile.answers).or(before.map(|b| b.answers))?;
    let rate = if profile.rate > 0.0 { profile.rate } else { before.map_or(0.0, |b| b.rate) };
    let variation = profile.variation.min(MOST_VARIATION);
    Some(Traffic { model, rate: rate.min(MOST_A_SECOND), variation, prompts, answers })
}

/// The middles of sixteen equal parts.
fn sixteen(sorted: &[u32]) -> Option<[u32; LENGTHS]> {
    let middle = |i: usize| sorted[(2 * i + 1) * sorted.len() / (2 * LENGTHS)].clamp(1, LONGEST);
    (!sorted.is_empty()).then(|| std::array::from_fn(middle))
}

/// What a model's gateways are asked for together; `None` where none says anything of it.
///
/// Lengths and variation are medians by requests a second, of which none counts for more than the one at the lower third by its rate: two
/// thirds of the gateways and more count alike, so that fewer than a third that lie take the medians nowhere that no other is.
#[must_use]
pub fn together(model: ModelId, members: &Members<'_>) -> Option<Profile> {
    let said = members.values().filter_map(|advert| advert.traffic.iter().find(|t| t.model == model));
    combined(&said.filter(|t| t.rate > 0.0).collect::<Vec<_>>())
}

/// The same of every model: what a member says is looked at once, however many models there are.
#[must_use]
pub fn all_together(members: &Members<'_>) -> BTreeMap<ModelId, Profile> {
    let mut all = BTreeMap::<ModelId, Vec<&Traffic>>::new();
    for advert in members.values() {
        let mut said = BTreeSet::new();
        // Nobody says it twice.
        for traffic in advert.traffic.iter().filter(|t| said.insert(t.model)).filter(|t| t.rate > 0.0) {
            all.entry(traffic.model).or_default().push(traffic);
        }
    }
    all.into_iter().filter_map(|(model, said)| Some((model, combined(&said)?))).collect()
}

fn combined(all: &[&Traffic]) -> Option<Profile> {
    let mut rates: Vec<f64> = all.iter().map(|t| t.rate).collect();
    rates.sort_by(f64::total_cmp);
    let most = *rates.get(rates.len().checked_sub(1)? / 3)?;
    let weight = |t: &Traffic| t.rate.min(most);
    let rate = all.iter().map(|t| weight(t)).sum();
    let median = |of: &dyn Fn(&Traffic) -> f64| {
        let mut values: Vec<(f64, f64)> = all.iter().map(|t| (of(t), weight(t))).collect();
        values.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut below = 0.0;
        let reaches = |(_, weight): &&(f64, f64)| {
            below += weight;
            2.0 * below >= rate
        };
        values.iter().find(reaches).or(values.last()).map_or(1.0, |(value, _)| *value)
    };
    let length = |of: &dyn Fn(&Traffic) -> u32| median(&|t| f64::from(of(t))) as u32;
    let prompts = (0..LENGTHS).map(|i| length(&|t| t.prompts[i])).collect();
    let answers = (0..LENGTHS).map(|i| length(&|t| t.answers[i])).collect();
    Some(Profile { rate, variation: median(&|t| t.variation), prompts, answers })
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
        Traffic { model: MODEL, rate, variation: 1.0, prompts: [prompt; LENGTHS], answers: [answer; LENGTHS] }
    }

    fn merged(all: &[Traffic]) -> Option<Profile> {
        let adverts: Vec<Advert> = all.iter().map(|t| Advert { traffic: vec![*t], ..sample::gateway(0) }).collect();
        let members = (0..).zip(&adverts).map(|(n, a)| (PeerId([n; 32]), a)).collect();
        let one = together(MODEL, &members);
        assert_eq!(one, all_together(&members).remove(&MODEL));
        one
    }

    #[test]
    fn what_is_said_changes_with_a_shift_and_ends_with_the_requests() {
        let mut watch = TrafficWatch::default();
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
    fn what_is_said_of_requests_that_stay_away_falls_and_rises_when_enough_have_come_again() {
        let mut watch = TrafficWatch::default();
        let come = |watch: &mut TrafficWatch, from: f64, many: u32| {
            for n in 0..many {
                let now = at(from + 0.5 * f64::from(n));
                watch.on_event(now, MODEL, Event::Arrived { prompt: 100 });
                watch.on_event(now, MODEL, Event::Answered { answer: 10 });
            }
            from + 0.5 * f64::from(many - 1)
        };
        let rate = |watch: &mut TrafficWatch, now: f64| watch.said(at(now)).first().map(|t| t.rate);
        let last = come(&mut watch, 0.0, 200);
        assert_eq!(rate(&mut watch, last + 29.0), Some(2.0), "two a second, and a lull");
        let mut said: Vec<f64> = (0..600).filter_map(|s| rate(&mut watch, last + f64::from(s))).collect();
        said.dedup();
        let expected = [2.0, 1.0 / 30.0, 1.0 / 60.0, 1.0 / 120.0, 1.0 / 240.0, 1.0 / 480.0];
        assert_eq!(said, expected, "a few changes in all");
        // One that comes after two minutes changes nothing, nor do some: a hundred do.
        let again = come(&mut watch, last + 125.0, 1);
        assert_eq!(rate(&mut watch, again), Some(1.0 / 120.0));
        let again = come(&mut watch, again + 0.5, 98);
        assert_eq!(rate(&mut watch, again), Some(1.0 / 120.0));
        let again = come(&mut watch, again + 0.5, 1);
        assert_eq!(rate(&mut watch, again), Some(2.0));
        assert_eq!(watch.models.values().filter(|w| w.begins).count(), 0);
    }

    #[test]
    fn however_often_requests_change_something_else_is_said_twice_a_minute_at_most() {
        let (mut watch, mut now, mut said) = (TrafficWatch::default(), 0.0, Vec::new());
        for n in 0..40_000u32 {
            // Every forty seconds of another kind, and much more or much less often.
            let kind = f64::from(n % 2) + 1.0;
            let is_one = (now as u32 / 40).is_multiple_of(2);
            now += if is_one { 0.02 } else { 0.005 * kind };
            let (prompt, answer) = if is_one { (4000, 10) } else { (20, 900) };
            watch.on_event(at(now), MODEL, Event::Arrived { prompt });
            watch.on_event(at(now), MODEL, Event::Answered { answer });
            let word = watch.said(at(now));
            if said.last() != Some(&word) {
                said.push(word);
            }
        }
        assert!(said.len() > 3 && said.len() as f64 <= 2.0 + now / 30.0, "{} in {now:.0} s", said.len());
    }

    #[test]
    fn where_not_all_are_in_memory_at_once_each_that_is_asked_for_is_said_and_no_other() {
        let (other, mut watch) = (ModelId([2; 16]), TrafficWatch::default());
        let models = |watch: &mut TrafficWatch, now: f64, open: &[ModelId]| {
            let said = watch.said_now(at(now), &open.iter().copied().collect(), &[MODEL, other].into());
            assert!(said.iter().all(|t| t.check().is_ok() && t.rate > 0.0), "{said:?}");
            said.into_iter().map(|t| t.model).collect::<Vec<_>>()
        };
        watch.on_event(at(0.0), MODEL, Event::Arrived { prompt: 10 });
        assert_eq!(models(&mut watch, 1.0, &[MODEL]), [MODEL], "one request");
        assert_eq!(watch.said(at(1.0)), [], "too few to say how many come");
        watch.on_event(at(5.0), other, Event::Arrived { prompt: 10 });
        assert_eq!(models(&mut watch, 19.0, &[other]), [MODEL, other]);
        assert_eq!(models(&mut watch, 20.0, &[other]), [other], "nothing came for a while");
        assert_eq!(models(&mut watch, 900.0, &[other]), [other], "it waits");
        assert_eq!(models(&mut watch, 900.0, &[]), []);
        assert_eq!(models(&mut watch, 900.0, &[other]), [other], "it goes on here");
        let rare = ModelId([3; 16]);
        watch.on_event(at(901.0), rare, Event::Arrived { prompt: 10 });
        assert_eq!(models(&mut watch, 902.0, &[rare]), [], "it yields to none, and too few requests came to say more");
    }

    #[test]
    fn models_are_bounded_and_the_one_that_is_asked_for_stays() {
        let mut watch = TrafficWatch::default();
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
