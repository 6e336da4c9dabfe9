//! Shifts of a workload: false alarms as rare as stated, changes found within the delays that docs/research/workload.md states.
#![expect(clippy::unwrap_used, reason = "what cannot be had fails the test")]

use std::time::Duration;
use tsnode_coordinator::{
    profiler::{Changed, Event, Profiler, ProfilerConfig, Shift},
    replay::machines::Arrival,
    rng::Rng,
};
use tsnode_protocol::Seconds;
use tsnode_simulator::{
    generator::{Lengths, ServiceTraffic, drawn},
    trace::Arriving,
};

/// Requests before something changes.
const BEFORE: usize = 5000;
/// Seeds that delays are measured over.
const SEEDS: u64 = 40;

fn service(name: &str, rate: f64, arriving: Arriving) -> ServiceTraffic {
    ServiceTraffic { lengths: Lengths::named(name).unwrap(), rate, arriving }
}

fn stream(name: &str, rate: f64, arriving: Arriving, requests: usize, seed: u64) -> Vec<Arrival> {
    drawn(&[service(name, rate, arriving)], requests, seed)
}

/// All shifts, each with the number of requests that had come.
fn watch(settings: ProfilerConfig, arrivals: &[Arrival]) -> Vec<(usize, Shift)> {
    let mut profiler = Profiler::new(settings);
    let mut shifts = Vec::new();
    for (n, arrival) in arrivals.iter().enumerate() {
        let now = Duration::from_secs_f64(arrival.at.0);
        let (prompt, answer) = (arrival.asked.prompt, arrival.asked.answer);
        let shift = profiler.on_event(now, Event::Arrived { prompt });
        let other = profiler.on_event(now, Event::Answered { answer });
        shifts.extend(shift.or(other).map(|s| (n + 1, s)));
    }
    shifts
}

/// One stream, and from its end on another.
fn then(mut before: Vec<Arrival>, after: Vec<Arrival>) -> Vec<Arrival> {
    let end = before.last().unwrap().at;
    before.extend(after.into_iter().map(|a| Arrival { at: a.at + end, ..a }));
    before
}

/// Requests from the change to the shift, of every seed in order; a shift before the change, or none, fails.
fn delays(changes: &dyn Fn(u64) -> Vec<Arrival>, expected: &[Changed]) -> Vec<usize> {
    let delay = |seed: u64| {
        let shifts = watch(ProfilerConfig::default(), &changes(seed));
        let (at, shift) = shifts.first().unwrap_or_else(|| panic!("seed {seed}: the change was not found"));
        assert!(*at > BEFORE, "seed {seed}: a false alarm at {at}");
        assert!(expected.contains(&shift.changed), "seed {seed}: {shift:?}");
        at - BEFORE
    };
    let mut all: Vec<usize> = (0..SEEDS).map(delay).collect();
    all.sort_unstable();
    all
}

fn assert_within(what: &str, delays: &[usize], median: usize, worst: usize) {
    let (middle, last) = (delays[delays.len() / 2], delays[delays.len() - 1]);
    println!("{what}: median {middle}, worst {last} requests");
    assert!(middle <= median && last <= worst, "{what}: median {middle}, worst {last}");
}

/// One in 20,000 is stated here, so that there are enough to count; nothing changes, and requests come in any manner.
#[test]
fn false_alarms_are_as_rare_as_stated() {
    let settings = ProfilerConfig { false_alarms: 5e-5, ..ProfilerConfig::default() };
    let requests = 600_000;
    let count = |arrivals: &[Arrival]| watch(settings, arrivals).len();
    let stated = requests as f64 * settings.false_alarms;
    for (name, arriving) in [
        ("coding", Arriving::Poisson),
        ("conversation", Arriving::Poisson),
        ("coding", Arriving::Bursty(4.0)),
        ("conversation", Arriving::Bursty(16.0)),
    ] {
        let alarms = count(&stream(name, 3.0, arriving, requests, 7));
        println!("{name}, {arriving:?}: {alarms} false alarms, {stated} stated");
        assert!(alarms as f64 <= stated, "{name}, {arriving:?}: {alarms}");
    }
    for size in [5.0, 10.0, 20.0] {
        let alarms = count(&flocks(stream("conversation", 3.0, Arriving::Poisson, requests, 8), size));
        println!("flocks of {size}: {alarms} false alarms, {stated} stated");
        assert!(alarms as f64 <= stated, "flocks of {size}: {alarms}");
    }
}

/// The same requests in flocks: so many on average come within moments of each other, then nobody for long.
fn flocks(mut arrivals: Vec<Arrival>, size: f64) -> Vec<Arrival> {
    let (mut rng, mut at) = (Rng::new(9), Seconds(0.0));
    for arrival in &mut arrivals {
        let gap = if rng.unit() < 1.0 / size { size / 3.0 } else { 0.01 };
        at += Seconds(rng.exponential(gap));
        arrival.at = at;
    }
    arrivals
}

#[test]
fn another_service_is_found_at_any_rate() {
    for rate in [0.5, 3.0, 20.0] {
        for (from, to) in [("coding", "conversation"), ("conversation", "coding")] {
            let change = |seed| {
                let after = stream(to, rate, Arriving::Poisson, 3000, seed + 1000);
                then(stream(from, rate, Arriving::Poisson, BEFORE, seed), after)
            };
            let found = delays(&change, &[Changed::Answers, Changed::Prompts]);
            assert_within(&format!("{from} to {to} at {rate}/s"), &found, 250, 300);
        }
    }
}

#[test]
fn another_rate_is_found_in_bursts_too() {
    for (times, arriving, median, worst) in [
        (2.0, Arriving::Poisson, 250, 300),
        (0.5, Arriving::Poisson, 250, 300),
        (1.5, Arriving::Poisson, 350, 500),
        (2.0, Arriving::Bursty(4.0), 450, 900),
    ] {
        let change = |seed| {
            let after = stream("coding", 3.0 * times, arriving, 5000, seed + 1000);
            then(stream("coding", 3.0, arriving, BEFORE, seed), after)
        };
        assert_within(&format!("rate x{times}, {arriving:?}"), &delays(&change, &[Changed::Rate]), median, worst);
    }
}

/// Longer answers, request by request until they are twice as long.
#[test]
fn what_changes_slowly_is_found_before_it_is_over() {
    let change = |seed| {
        let mut all = stream("conversation", 3.0, Arriving::Poisson, BEFORE + 8000, seed);
        for (n, arrival) in all.iter_mut().enumerate().skip(BEFORE) {
            let part = ((n - BEFORE) as f64 / 4000.0).min(1.0);
            arrival.asked.answer = (f64::from(arrival.asked.answer) * (1.0 + part)) as u32;
        }
        all
    };
    assert_within("answers twice as long over 4,000", &delays(&change, &[Changed::Answers]), 2500, 4000);
}

/// The plan is made for what came since, not for a mixture.
#[test]
fn the_new_profile_is_of_the_new_workload() {
    let after = stream("conversation", 3.0, Arriving::Poisson, 3000, 1);
    let shifts = watch(ProfilerConfig::default(), &then(stream("coding", 3.0, Arriving::Poisson, BEFORE, 1), after));
    let workload = shifts[0].1.profile.workload("now").unwrap();
    assert!((100.0..300.0).contains(&workload.mean.answer.0), "{} tokens out", workload.mean.answer);
    assert!(shifts.len() == 1, "one change is one shift: {}", shifts.len());
}
