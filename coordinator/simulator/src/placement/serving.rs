//! A trace served by placements that follow the traffic: at the end of each interval the past one is planned for, and
//! groups that change close, load weights and open again.

use super::{
    Placement, PlacementError, Services, SharingGroup,
    hosting::Hosting,
    judge::{Judge, Judged, PastRequests},
    moving,
    replacement::{Decision, IntervalSeen, Replacement, Rule},
    search::{self, PlacementEffort},
};
use crate::policy::least_loaded::LeastLoaded;
use tsnode_coordinator::{
    policy::routing::MachineNo,
    replay::machines::{Alike, OpeningMachine, Simulation},
    service_monitor::Performance,
};
use tsnode_protocol::{Bytes, BytesPerSecond, Seconds, SecondsPerToken};

/// How a trace is served.
#[derive(Clone, Copy, Debug)]
pub struct ServingOptions {
    /// When to place anew; never, if there is no rule.
    pub rule: Option<Rule>,
    /// Of each search.
    pub effort: PlacementEffort,
    /// Of each search.
    pub seed: u64,
    /// At which a group loads weights, while none of its services run.
    pub loading: BytesPerSecond,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct ServedTrace {
    /// Of all requests.
    pub judged: Judged,
    /// Intervals that ended.
    pub intervals: usize,
    /// Changes of placement that were made.
    pub replacements: usize,
    /// Weights loaded by them.
    pub loaded: Bytes,
}

/// Serves requests, first by a placement for those of the past.
///
/// # Errors
/// No groups hold all models at once.
pub fn serve(
    services: &Services,
    past: &PastRequests,
    all: &PastRequests,
    how: ServingOptions,
) -> Result<ServedTrace, PlacementError> {
    let found = search::search(services, past, None, how.effort, how.seed, &|| false)?;
    let mut hosting = Hosting::new(services);
    let (machines, holders) = hosting.machines(&found.placement);
    let links = Alike { per_token: SecondsPerToken(0.0) };
    let simulation = Simulation::new(machines, Box::new(LeastLoaded::new(holders)), Box::new(links));
    let mut live = Live { simulation: simulation.expecting(all.arrivals()), hosting, present: Vec::new() };
    let occupied = found.placement.groups.iter().filter(|s| !s.services.is_empty());
    live.present = occupied.enumerate().map(|(m, s)| (s.clone(), MachineNo(m as u32))).collect();
    let last = all.arrivals().last().map_or(Seconds(0.0), |a| a.at);
    let (mut intervals, mut replacements, mut loaded) = (0, 0, Bytes(0.0));
    let mut from = Seconds(0.0);
    let length = past.arrivals().last().map_or(Seconds(1.0), |a| a.at);
    let expected = Some(Performance::from(&found.judged));
    let mut replacement = how.rule.map(|rule| Replacement::new(rule, from, expected, past.counts(length)));
    while let Some(replacement) = replacement.as_mut().filter(|r| r.deadline() < last) {
        let now = replacement.deadline();
        live.simulation.until(now);
        let since = std::mem::replace(&mut from, now);
        let Some(since) = replacement.look(now, &all.between(since, now).counts(now - since)) else { continue };
        intervals += 1;
        let window = all.between(since, now);
        let counts = window.counts(now - since);
        let rates: Vec<f64> = counts.requests.iter().map(|n| f64::from(*n) / counts.time.0).collect();
        let services = services.at_rates(&rates);
        let placement = live.placement();
        let seed = how.seed.wrapping_add(intervals as u64);
        let found = search::search(&services, &window, Some(&placement), how.effort, seed, &|| false)?;
        let real = all.ended_between(live.simulation.traces(), since, now);
        let kept = Judge::new(&services, &window).judge(&placement);
        let seen = IntervalSeen { counts, real: (&real).into(), kept: (&kept).into(), found: (&found.judged).into() };
        if replacement.over(now, seen) == Decision::Replace {
            let bytes = live.replace(&found.placement, how.loading);
            replacements += usize::from(bytes > Bytes(0.0));
            loaded += bytes;
        }
    }
    let outcome = live.simulation.finish();
    Ok(ServedTrace { judged: all.judged(&outcome.traces), intervals, replacements, loaded })
}

/// What serves now.
#[derive(Debug)]
struct Live<'s> {
    simulation: Simulation,
    hosting: Hosting<'s>,
    present: Vec<(SharingGroup, MachineNo)>,
}

impl Live<'_> {
    fn placement(&self) -> Placement {
        Placement { groups: self.present.iter().map(|(s, _)| s.clone()).collect() }
    }

    /// Gets to another placement; what has to be loaded for that.
    fn replace(&mut self, after: &Placement, bandwidth: BytesPerSecond) -> Bytes {
        let (before, services) = (self.placement(), self.hosting.services());
        let after = moving::aligned(services, &before, after);
        let had = moving::counterparts(&before, &after);
        let (mut present, mut opening, mut loaded) = (Vec::new(), Vec::new(), Bytes(0.0));
        for (sharing, had) in after.groups.into_iter().zip(had) {
            let there = had.map(|p| &self.present[p]);
            if let Some((_, machine)) = there.filter(|(s, _)| s.services == sharing.services) {
                present.push((sharing, *machine));
                continue;
            }
            let Some(machine) = self.hosting.machine(&sharing) else { continue };
            let bytes = moving::to_load(services, there.map_or(&[], |t| &t.0.services), &sharing.services);
            loaded += bytes;
            let number = MachineNo((self.simulation.machines() + opening.len()) as u32);
            opening.push(OpeningMachine { machine, loading: bytes / bandwidth });
            present.push((sharing, number));
        }
        let stays = |m: MachineNo| present.iter().any(|(_, p)| *p == m);
        let closing: Vec<MachineNo> = self.present.iter().map(|p| p.1).filter(|m| !stays(*m)).collect();
        let holders = self.hosting.holders(present.iter().map(|(s, m)| (s, *m)));
        self.simulation.change(&closing, opening, Box::new(LeastLoaded::new(holders)));
        self.present = present;
        loaded
    }
}
