//! What must be kept, and whether a simulation under way still can.
//!
//! A time that has not ended is at least as long as it has lasted: once too many requests are late by that, the rest of
//! the simulation cannot change the verdict.

use crate::{
    measured_cost::Table,
    percentile::Sorted,
    splitwise::{SHARES, TABLE_VI},
};
use serde::Serialize;
use std::sync::Arc;
use tsnode_coordinator::{
    policy::routing::Asked,
    replay::machines::{Arrival, ReplayTrace, SoFar},
    scheduler::{
        slo::{self, Deadline, Reference, Slo},
        workload::WorkloadRequest,
    },
};
use tsnode_protocol::{Seconds, Tokens};

/// Targets.
#[derive(Clone, Debug)]
pub enum ProvisioningTargets {
    /// All nine of Splitwise's Table VI, as multiples of what this machine takes alone.
    TableVi(AloneTimes),
    /// Deadlines, and the share of requests that must keep all of theirs.
    Deadlines {
        /// The deadlines.
        slo: Slo,
        /// What their scales refer to.
        reference: Reference,
        /// The share.
        share: f64,
    },
}

/// What a request takes alone.
#[derive(Clone, Debug)]
pub enum AloneTimes {
    /// By a table.
    Table(Arc<Table>),
    /// By the closed forms.
    Reference(Reference),
}

impl AloneTimes {
    /// To the first token, per token after it, to the last token (s).
    fn times(&self, asked: Asked) -> [f64; 3] {
        let steps = f64::from(asked.answer) - 1.0;
        let (first, token) = match self {
            Self::Table(table) => {
                let prompt = f64::from(asked.prompt);
                (table.prompt.at(prompt), table.answer.at(prompt))
            }
            Self::Reference(reference) => {
                let (first, token) = reference.times(&request(asked));
                (first.0, token.0)
            }
        };
        [first, token, first + token * steps]
    }
}

/// A target that is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MissedTarget {
    /// Which time; all together where deadlines are kept or not.
    pub time: Option<TargetTime>,
    /// For which share of the requests.
    pub share: f64,
    /// What it came to: a multiple of the time alone, or the share in time.
    pub got: f64,
    /// What it may be.
    pub want: f64,
}

/// A time that Table VI has targets for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TargetTime {
    /// To the first token.
    First,
    /// Per token.
    Token,
    /// To the last token.
    Whole,
}

const TIMES: [TargetTime; 3] = [TargetTime::First, TargetTime::Token, TargetTime::Whole];

/// The targets for a list of requests.
#[derive(Clone, Debug)]
pub enum TargetJudge {
    /// What each takes alone.
    TableVi(Vec<[f64; 3]>),
    /// When each must be done, and how many must be.
    Deadlines(Vec<Deadline>, usize),
}

impl TargetJudge {
    /// For these requests.
    #[must_use]
    pub fn new(targets: &ProvisioningTargets, arrivals: &[Arrival]) -> Self {
        match targets {
            ProvisioningTargets::TableVi(alone) => {
                Self::TableVi(arrivals.iter().map(|a| alone.times(a.asked)).collect())
            }
            ProvisioningTargets::Deadlines { slo, reference, share } => {
                let each = arrivals.iter().map(|a| slo::deadline(slo, reference, &request(a.asked))).collect();
                Self::Deadlines(each, (share * arrivals.len() as f64 - 1e-9).ceil().max(0.0) as usize)
            }
        }
    }

    /// Whether the targets cannot be kept any more.
    #[must_use]
    pub fn is_lost(&self, so_far: SoFar<'_>) -> bool {
        let traces = &so_far.traces[..so_far.arrived];
        match self {
            Self::TableVi(alone) => {
                let mut late = [[0usize; 3]; 3];
                for (trace, alone) in traces.iter().zip(alone) {
                    let slow = slowdowns(trace, alone, so_far.now);
                    for (slow, (late, most)) in slow.iter().zip(late.iter_mut().zip(&TABLE_VI)) {
                        late.iter_mut().zip(most).for_each(|(n, most)| *n += usize::from(slow >= most));
                    }
                }
                let last = alone.len().saturating_sub(1) as f64;
                // With this many too long, the lower of the two values that a percentile lies between is.
                let fatal = SHARES.map(|share| alone.len() - (share * last).floor() as usize);
                late.iter().any(|late| late.iter().zip(&fatal).any(|(n, fatal)| n >= fatal))
            }
            Self::Deadlines(each, need) => {
                let late = traces.iter().zip(each).filter(|(t, d)| is_late(t, d, so_far.now)).count();
                late > each.len() - need
            }
        }
    }

    /// The first target that all these requests together do not keep.
    #[must_use]
    pub fn broken(&self, traces: &[ReplayTrace]) -> Option<MissedTarget> {
        let forever = Seconds(f64::INFINITY);
        match self {
            Self::TableVi(alone) => TIMES.iter().enumerate().find_map(|(i, time)| {
                let sorted = Sorted::new(traces.iter().zip(alone).map(|(t, alone)| slowdowns(t, alone, forever)[i]));
                let broken = |(share, want): (&f64, &f64)| {
                    // Between two that never end there is no number.
                    let got = if sorted.at(*share).is_nan() { f64::INFINITY } else { sorted.at(*share) };
                    (got >= *want).then_some(MissedTarget { time: Some(*time), share: *share, got, want: *want })
                };
                SHARES.iter().zip(&TABLE_VI[i]).find_map(broken)
            }),
            Self::Deadlines(each, need) => {
                let kept = traces.iter().zip(each).filter(|(t, d)| !is_late(t, d, forever)).count();
                let all = each.len().max(1) as f64;
                let (got, want) = (kept as f64 / all, *need as f64 / all);
                (kept < *need).then_some(MissedTarget { time: None, share: want, got, want })
            }
        }
    }

    /// When each request's first token must be there after it came (s), and how many may miss that.
    #[must_use]
    pub fn first_tokens(&self) -> (Vec<f64>, usize) {
        match self {
            Self::TableVi(alone) => {
                let last = alone.len().saturating_sub(1) as f64;
                let may_miss = alone.len() - (SHARES[2] * last).floor() as usize;
                (alone.iter().map(|a| a[0] * TABLE_VI[0][2]).collect(), may_miss)
            }
            Self::Deadlines(each, need) => (each.iter().map(|d| d.ttft.min(d.e2e).0).collect(), each.len() - need),
        }
    }
}

fn request(asked: Asked) -> WorkloadRequest {
    WorkloadRequest { prompt: Tokens(f64::from(asked.prompt)), answer: Tokens(f64::from(asked.answer)) }
}

/// To the first token, from there on, and in all (s): what it was, or at least is.
fn at_least(trace: &ReplayTrace, now: Seconds) -> [f64; 3] {
    let (at, first, end) = (trace.arrival.at.0, trace.first.0.min(now.0), trace.end.0.min(now.0));
    // What never began never ends.
    let rest = if first == f64::INFINITY { first } else { end - first };
    [first - at, rest, end - at]
}

/// Multiples of the times alone, tokens counted as Splitwise's simulator does ([`crate::splitwise::tbt`]).
fn slowdowns(trace: &ReplayTrace, alone: &[f64; 3], now: Seconds) -> [f64; 3] {
    let [first, rest, whole] = at_least(trace, now);
    [first / alone[0], rest / f64::from(trace.arrival.asked.answer) / alone[1], whole / alone[2]]
}

fn is_late(trace: &ReplayTrace, deadline: &Deadline, now: Seconds) -> bool {
    let [first, rest, whole] = at_least(trace, now);
    let steps = f64::from(trace.arrival.asked.answer) - 1.0;
    // Without steps there is nothing that could be late.
    let slow = steps > 0.0 && rest > (deadline.tpot * steps).0;
    first > deadline.ttft.0 || slow || whole > deadline.e2e.0
}
