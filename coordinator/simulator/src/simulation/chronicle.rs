//! What happened, for people: the lines of a scenario.

use std::collections::BTreeMap;
use std::fmt;
use tsnode_coordinator::Time;
use tsnode_protocol::{Epoch, PlanId, Term};

/// Something worth a line.
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    /// A peer started, for the first time or again.
    Started(usize),
    /// It ended: how.
    Ended(usize, &'static str),
    /// It was stopped for so long.
    Paused(usize, Time),
    /// It goes on.
    WentOn(usize),
    /// The network, or a disk, or a byzantine peer.
    Fault(String),
    /// A plan was proposed.
    Proposed(usize, Epoch, Term, PlanId, String),
    /// A plan was adopted by a first peer.
    Adopted(PlanId, Epoch, Term),
    /// Everything is as it should be, and stays so from here on.
    Quiet,
    /// All agree.
    Agreed(usize),
    /// An invariant does not hold.
    Broken(String),
}

/// All lines of a scenario, in order.
#[derive(Clone, Debug, Default)]
pub struct Chronicle {
    lines: Vec<(Time, Note)>,
    adopters: BTreeMap<PlanId, (Time, Time, usize)>,
}

impl Chronicle {
    pub(super) fn note(&mut self, at: Time, note: Note) {
        self.lines.push((at, note));
    }

    pub(super) fn adopted(&mut self, at: Time, plan: PlanId, epoch: Epoch, term: Term) {
        if !self.adopters.contains_key(&plan) {
            self.note(at, Note::Adopted(plan, epoch, term));
        }
        let of = self.adopters.entry(plan).or_insert((at, at, 0));
        (of.1, of.2) = (at, of.2 + 1);
    }

    /// The lines, in order of time.
    pub fn lines(&self) -> impl Iterator<Item = (Time, String)> + '_ {
        self.lines.iter().map(|(at, note)| (*at, self.line(note)))
    }

    fn line(&self, note: &Note) -> String {
        match note {
            Note::Adopted(plan, epoch, term) => {
                let (first, last, count) = self.adopters.get(plan).copied().unwrap_or_default();
                let span = last.saturating_sub(first).as_secs_f64();
                format!("{plan:.10} adopted, epoch {} term {}, by {count} in {span:.2} s", epoch.0, term.0)
            }
            other => other.to_string(),
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started(n) => write!(f, "p{n} starts"),
            Self::Ended(n, how) => write!(f, "p{n} {how}"),
            Self::Paused(n, span) => write!(f, "p{n} stopped for {:.1} s", span.as_secs_f64()),
            Self::WentOn(n) => write!(f, "p{n} goes on"),
            Self::Fault(what) => f.write_str(what),
            Self::Proposed(n, epoch, term, plan, why) => {
                write!(f, "p{n} proposes {plan:.10}, epoch {} term {}: {why}", epoch.0, term.0)
            }
            Self::Adopted(plan, ..) => write!(f, "{plan:.10} adopted"),
            Self::Quiet => f.write_str("quiet from here on"),
            Self::Agreed(peers) => write!(f, "{peers} peers follow one plan of the living"),
            Self::Broken(what) => write!(f, "BROKEN: {what}"),
        }
    }
}
