//! The phases of joining, as an installer tells them: each in a line once it is done, with how long it took, and how long what
//! is waited for has been.

use super::board::Mood;
use crate::{
    cli::text_layout::{COLUMNS, fitted, harmless, padded, time, width},
    hardware::memory::Size,
    view::{Readiness, SwarmView},
};
use std::time::Duration;
use tsnode_protocol::Seconds;

/// Columns of the labels that lines begin with.
const LABELS: usize = 9;
/// A wait that is over sooner is not counted where it is shown.
const WORTH_COUNTING: Duration = Duration::from_secs(2);

/// What is waited for before there is a peer to look at.
pub(super) fn proves() -> (Mood, String) {
    (Mood::Waiting, "proving: asks the invite's members to let this machine in".into())
}

/// The phase before all others, where there is an invite: members have let this machine in, or it was one of them.
pub(super) fn proved(took: Duration) -> String {
    written("prove", took, "this machine is a member of the invite's swarm")
}

/// On its way to being useful, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum JoinPhase {
    Probe,
    Find,
    Plan,
    Load,
    Ready,
}

impl JoinPhase {
    fn of(readiness: &Readiness) -> Option<Self> {
        match readiness {
            Readiness::Probing => Some(Self::Probe),
            Readiness::Joining => Some(Self::Find),
            Readiness::Planning => Some(Self::Plan),
            Readiness::Loading => Some(Self::Load),
            Readiness::Ready => Some(Self::Ready),
            Readiness::Leaving => None,
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::Probe => "probe",
            Self::Find => "find",
            Self::Plan => "plan",
            Self::Load => "load",
            Self::Ready => "ready",
        }
    }

    /// What it came to.
    fn outcome(self, view: &SwarmView) -> String {
        match self {
            Self::Probe => measured(view),
            Self::Find => match view.peers.iter().filter(|peer| peer.id != view.me).count() {
                0 => "nobody else yet: this peer is the first".into(),
                1 => "one other peer".into(),
                n => format!("{n} other peers"),
            },
            Self::Plan => view.plan.as_ref().map_or("adopted".into(), |plan| plan.reason.to_string()),
            Self::Load => match view.weights.stages {
                0 => "nothing had to be loaded".into(),
                _ => format!("{} of weights", Size(view.weights.bytes)),
            },
            Self::Ready => "takes requests".into(),
        }
    }
}

/// Where a peer is, and since when.
#[derive(Debug, Default)]
pub(super) struct Phases {
    at: Option<JoinPhase>,
    /// When that began, since the start.
    since: Duration,
    /// It was ready once: what follows is no joining any more.
    done: bool,
}

impl Phases {
    /// Lines on what was done since the last look, so long after the start.
    pub fn news(&mut self, now: Duration, view: &SwarmView) -> Vec<String> {
        let Some(phase) = JoinPhase::of(&view.readiness) else { return vec![] };
        let before = self.at.unwrap_or(JoinPhase::Probe);
        if self.at == Some(phase) {
            return vec![];
        }
        let took = now.saturating_sub(self.since);
        let has_begun = self.at.replace(phase).is_some();
        let mut lines = Vec::new();
        if !self.done && has_begun && before < phase {
            lines.push(line(before, took, view));
        }
        if has_begun {
            self.since = now;
        }
        if !self.done && phase == JoinPhase::Ready {
            self.done = true;
            lines.push(line(phase, now, view));
        }
        lines
    }

    /// The line that changes, with how long it has been waited where that is worth a word.
    pub fn counted(&self, now: Duration, (mood, text): (Mood, String)) -> (Mood, String) {
        let waited = now.saturating_sub(self.since);
        if mood != Mood::Waiting || waited < WORTH_COUNTING {
            return (mood, text);
        }
        let suffix = format!(" ({} s)", waited.as_secs());
        (mood, fitted(&text, COLUMNS - width(&suffix)) + &suffix)
    }
}

fn line(phase: JoinPhase, took: Duration, view: &SwarmView) -> String {
    written(phase.label(), took, &phase.outcome(view))
}

fn written(label: &str, took: Duration, outcome: &str) -> String {
    let took = time(Seconds(took.as_secs_f64()));
    let said = format!("{}{}{outcome}", padded(label, LABELS), padded(&took, LABELS));
    fitted(&harmless(&said), COLUMNS)
}

/// What this machine can do.
fn measured(view: &SwarmView) -> String {
    let own = view.peers.iter().find(|peer| peer.id == view.me);
    let devices = own.map_or(&[][..], |own| &own.advert.devices);
    let figures =
        devices.iter().map(|d| format!("{}: {:.0} GFLOP/s, {:.0} GB/s", d.kind, d.flops.0 / 1e9, d.bandwidth.0 / 1e9));
    let figures: Vec<String> = figures.collect();
    if figures.is_empty() { "this machine is measured".into() } else { figures.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::view;

    fn at(readiness: Readiness) -> SwarmView {
        SwarmView { readiness, ..view() }
    }

    fn told(steps: &[(u64, Readiness)]) -> Vec<String> {
        let mut phases = Phases::default();
        steps.iter().flat_map(|(ms, state)| phases.news(Duration::from_millis(*ms), &at(state.clone()))).collect()
    }

    #[test]
    fn each_phase_is_a_line_with_its_time_once_it_is_done() {
        let expected = "\
probe    1200 ms  this machine is measured
find     800 ms   nobody else yet: this peer is the first
plan     12.5 s   adopted
load     500 ms   nothing had to be loaded
ready    15.0 s   takes requests";
        let lines = told(&[
            (10, Readiness::Probing),
            (1200, Readiness::Joining),
            (1700, Readiness::Joining),
            (2000, Readiness::Planning),
            (14_500, Readiness::Loading),
            (15_000, Readiness::Ready),
        ]);
        assert_eq!(lines.join("\n"), expected);
        let first = proved(Duration::from_millis(310));
        assert_eq!(first, "prove    310 ms   this machine is a member of the invite's swarm");
        assert!(width(&proves().1) <= COLUMNS);
    }

    #[test]
    fn what_comes_after_one_is_ready_is_no_joining_and_a_step_back_is_not_done() {
        let lines = told(&[
            (0, Readiness::Planning),
            (1000, Readiness::Joining),
            (3000, Readiness::Ready),
            (9000, Readiness::Loading),
            (9500, Readiness::Ready),
            (9900, Readiness::Leaving),
        ]);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].starts_with("find     2000 ms") && lines[1].starts_with("ready    3000 ms"), "{lines:?}");
    }

    #[test]
    fn a_long_wait_is_counted_and_the_line_keeps_to_its_columns() {
        let mut phases = Phases::default();
        phases.news(Duration::ZERO, &at(Readiness::Probing));
        phases.news(Duration::from_secs(5), &at(Readiness::Planning));
        let shown = |seconds, text: &str| phases.counted(Duration::from_secs(seconds), (Mood::Waiting, text.into())).1;
        assert_eq!(shown(6, "waiting: no plan"), "waiting: no plan");
        assert_eq!(shown(17, "waiting: no plan"), "waiting: no plan (12 s)");
        let long = shown(17, &"x".repeat(COLUMNS));
        assert!(width(&long) == COLUMNS && long.ends_with("… (12 s)"), "{long}");
        let good = (Mood::Good, "ready: 2 peers".to_owned());
        assert_eq!(phases.counted(Duration::from_secs(99), good.clone()), good);
    }
}
