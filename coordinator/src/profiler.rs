//! The workload profiler (ThunderServe §3.4, App. E): what requests look like now, and whether that has changed enough to
//! plan anew. A state machine in bounded memory; what comes in is when prompts arrived and how long answers became.
//!
//! Requests are taken in blocks. Three charts ([`chart`]) watch the logarithms of a block's rate, of its prompts'
//! geometric mean length and of its answers'. Their threshold comes from the false-alarm rate that is stated; bursts that
//! are shorter than a block only make blocks differ more, which charts learn. After a shift everything is learnt anew.

pub mod chart;
mod window;

use self::{
    chart::{Alarm, Chart, threshold},
    window::Window,
};
use crate::{
    Time,
    rng::Rng,
    scheduler::{Workload, workload::WorkloadRequest},
};
use tsnode_protocol::Tokens;

/// Charts that may alarm.
const CHARTS: f64 = 3.0;
/// Alarms are made so many times rarer than stated: bursts of many requests make means of blocks less normal than charts
/// take them to be.
const CAREFUL: f64 = 5.0;
/// Requests that a profile's workload is made of.
const SET: usize = 64;

/// How a profiler watches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProfilerConfig {
    /// Requests in a block: more find smaller changes, later, and bear longer bursts.
    pub block: u32,
    /// False alarms for each request that comes, at most, while nothing changes.
    pub false_alarms: f64,
}

impl Default for ProfilerConfig {
    /// Blocks of 50, one false alarm in a million requests.
    fn default() -> Self {
        Self { block: 50, false_alarms: 1e-6 }
    }
}

/// What the profiler is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request came, with so many tokens.
    Arrived {
        /// Tokens of its prompt.
        prompt: u32,
    },
    /// An answer ended.
    Answered {
        /// Its tokens, the first included.
        answer: u32,
    },
}

/// What of a workload has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Changed {
    /// Requests a second.
    Rate,
    /// Length of prompts.
    Prompts,
    /// Length of answers.
    Answers,
}

/// The workload is no longer what it was: time to plan anew.
#[derive(Clone, Debug, PartialEq)]
pub struct Shift {
    /// What changed, as far as was noticed.
    pub changed: Changed,
    /// When it is thought to have begun.
    pub since: Time,
    /// So many times what it was.
    pub times: f64,
    /// What requests have looked like since.
    pub profile: Profile,
}

/// What requests look like.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// Requests a second; 0 while too few have come.
    pub rate: f64,
    /// Square of the coefficient of variation of the time between the last ones; 0 while too few have come.
    pub variation: f64,
    /// Lengths of the last prompts (tokens), the shortest first.
    pub prompts: Vec<u32>,
    /// Lengths of the last answers (tokens), the shortest first.
    pub answers: Vec<u32>,
}

impl Profile {
    /// The same as something to plan for: lengths evenly spread over those seen, prompts and answers paired at random;
    /// `None` while no prompt or no answer was seen.
    #[must_use]
    pub fn workload(&self, name: &str) -> Option<Workload> {
        let at = |all: &[u32], i: usize| Tokens(f64::from(all[(2 * i + 1) * all.len() / (2 * SET)]));
        if self.prompts.is_empty() || self.answers.is_empty() {
            return None;
        }
        let mut order: Vec<usize> = (0..SET).collect();
        let mut rng = Rng::new(0);
        for i in (1..SET).rev() {
            order.swap(i, rng.below(i + 1));
        }
        let request = |(i, j)| WorkloadRequest { prompt: at(&self.prompts, i), answer: at(&self.answers, j) };
        Some(Workload::new(name.to_owned(), order.into_iter().enumerate().map(request).collect()))
    }
}

/// Watches a workload.
#[derive(Clone, Debug)]
pub struct Profiler {
    settings: ProfilerConfig,
    rate: Watch,
    prompts: Watch,
    answers: Watch,
    arrived: Window,
    answered: Window,
}

impl Profiler {
    /// Nothing has come yet.
    #[must_use]
    pub fn new(settings: ProfilerConfig) -> Self {
        let watch = Watch::new(settings);
        Self {
            settings,
            rate: watch.clone(),
            prompts: watch.clone(),
            answers: watch,
            arrived: Window::default(),
            answered: Window::default(),
        }
    }

    /// Something happened; whether with it the workload has changed.
    pub fn on_event(&mut self, now: Time, event: Event) -> Option<Shift> {
        let (changed, alarm) = match event {
            Event::Arrived { prompt } => {
                self.arrived.add(now, prompt);
                let rate = self.rate.came(now).map(|a| (Changed::Rate, a));
                let prompts = self.prompts.measured(now, prompt).map(|a| (Changed::Prompts, a));
                rate.or(prompts)
            }
            Event::Answered { answer } => {
                self.answered.add(now, answer);
                self.answers.measured(now, answer).map(|a| (Changed::Answers, a))
            }
        }?;
        Some(self.shifted(changed, alarm))
    }

    /// What requests look like now.
    #[must_use]
    pub fn profile(&self) -> Profile {
        Profile {
            rate: self.arrived.rate().unwrap_or(0.0),
            variation: self.arrived.variation().unwrap_or_default(),
            prompts: self.arrived.sorted(),
            answers: self.answered.sorted(),
        }
    }

    fn shifted(&mut self, changed: Changed, alarm: Noticed) -> Shift {
        self.arrived.keep_since(alarm.since);
        self.answered.keep_since(alarm.since);
        let watch = Watch::new(self.settings);
        (self.rate, self.prompts, self.answers) = (watch.clone(), watch.clone(), watch);
        Shift { changed, since: alarm.since, times: alarm.times, profile: self.profile() }
    }
}

/// One number of a workload, block by block.
#[derive(Clone, Debug)]
struct Watch {
    block: u32,
    chart: Chart,
    /// The present block: when it began, how many are in it, the sum of their logarithms.
    began: Option<Time>,
    count: u32,
    sum: f64,
    /// When the last blocks began, the latest last.
    blocks: std::collections::VecDeque<Time>,
}

/// Blocks whose beginnings are remembered: a change that took longer is told as that long ago.
const REMEMBERED: usize = 256;

/// A chart's alarm as time and multiple.
#[derive(Clone, Copy, Debug)]
struct Noticed {
    since: Time,
    times: f64,
}

impl Watch {
    fn new(settings: ProfilerConfig) -> Self {
        let blocks = CAREFUL * CHARTS / (settings.false_alarms.max(1e-300) * f64::from(settings.block.max(1)));
        Self {
            block: settings.block.max(1),
            chart: Chart::new(threshold(blocks)),
            began: None,
            count: 0,
            sum: 0.0,
            blocks: std::collections::VecDeque::new(),
        }
    }

    /// One more came: after a block, its rate.
    fn came(&mut self, now: Time) -> Option<Noticed> {
        // The first one only says when.
        let began = *self.began.get_or_insert(now);
        if began == now && self.count == 0 && self.blocks.is_empty() {
            self.blocks.push_back(now);
            return None;
        }
        self.count += 1;
        if self.count < self.block {
            return None;
        }
        let span = now.saturating_sub(began).as_secs_f64().max(1e-6);
        self.ended(now, (f64::from(self.count) / span).ln())
    }

    /// One more length: after a block, their mean.
    fn measured(&mut self, now: Time, tokens: u32) -> Option<Noticed> {
        if self.began.is_none() {
            self.began = Some(now);
            self.blocks.push_back(now);
        }
        self.count += 1;
        self.sum += f64::from(tokens.max(1)).ln();
        if self.count < self.block {
            return None;
        }
        self.ended(now, self.sum / f64::from(self.count))
    }

    /// A block ended with this value.
    fn ended(&mut self, now: Time, value: f64) -> Option<Noticed> {
        (self.began, self.count, self.sum) = (Some(now), 0, 0.0);
        let noticed = self.chart.add(value).map(|Alarm { since, usual, now }| {
            let place = self.blocks.len().saturating_sub(since as usize);
            let since = self.blocks.get(place).or(self.blocks.front()).copied().unwrap_or_default();
            Noticed { since, times: (now - usual).exp() }
        });
        if self.blocks.len() == REMEMBERED {
            self.blocks.pop_front();
        }
        self.blocks.push_back(now);
        noticed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Time {
        Time::from_secs_f64(seconds)
    }

    #[test]
    fn a_profile_is_what_came_last() {
        let mut profiler = Profiler::new(ProfilerConfig::default());
        assert_eq!(profiler.profile(), Profile::default());
        assert!(profiler.profile().workload("now").is_none());
        for n in 0..5000u32 {
            let now = at(f64::from(n) * 0.25);
            assert_eq!(profiler.on_event(now, Event::Arrived { prompt: 100 + n % 10 }), None);
            assert_eq!(profiler.on_event(now, Event::Answered { answer: 20 }), None);
        }
        let profile = profiler.profile();
        assert!((profile.rate - 4.0).abs() < 1e-9 && profile.prompts.len() == 512);
        let workload = profile.workload("now").unwrap();
        assert!((workload.mean.prompt.0 - 104.5).abs() < 0.5 && (workload.mean.answer.0 - 20.0).abs() < 1e-9);
    }

    #[test]
    fn a_shift_says_what_changed_since_when_and_by_how_much() {
        let mut profiler = Profiler::new(ProfilerConfig::default());
        let (mut now, mut shift) = (0.0, None);
        for n in 0..4000u32 {
            now += if n < 2000 { 0.2 } else { 0.1 };
            shift = shift.or(profiler.on_event(at(now), Event::Arrived { prompt: 100 }));
        }
        let shift = shift.unwrap();
        assert_eq!(shift.changed, Changed::Rate);
        assert!((shift.times - 2.0).abs() < 0.1 && (shift.since.as_secs_f64() - 400.0).abs() < 10.0, "{shift:?}");
        assert!((shift.profile.rate - 10.0).abs() < 0.5, "only what came since: {}", shift.profile.rate);
    }

    #[test]
    fn strange_times_and_settings_do_no_harm() {
        for settings in
            [ProfilerConfig { block: 0, false_alarms: 0.0 }, ProfilerConfig { block: 1, false_alarms: f64::NAN }]
        {
            let mut profiler = Profiler::new(settings);
            for n in 0..2000u32 {
                profiler.on_event(at(f64::from(n % 7)), Event::Arrived { prompt: n % 3 });
                profiler.on_event(at(0.0), Event::Answered { answer: u32::MAX });
            }
            assert!(profiler.profile().rate.is_finite());
        }
    }
}
