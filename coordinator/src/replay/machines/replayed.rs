//! Requests as they come to machines, and what came of them.

use super::super::timeline::Timeline;
use crate::policy::routing::{Asked, RoutingDecision};
use tsnode_protocol::Seconds;

/// A request that comes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrival {
    /// When it comes, since the start.
    pub at: Seconds,
    /// Lengths of its prompt and answer.
    pub asked: Asked,
}

/// When what happened to a request; infinite where it never did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplayTrace {
    /// When it came, and its lengths.
    pub arrival: Arrival,
    /// Where it went; nowhere, if it was turned away.
    pub route: Option<RoutingDecision>,
    /// Its prompt began.
    pub prompt_start: Seconds,
    /// Its prompt was done: the first token.
    pub first: Seconds,
    /// Its answer's first iteration began.
    pub answer_start: Seconds,
    /// Its last token.
    pub end: Seconds,
    /// What its KV takes after the prompt is done.
    pub sending: Seconds,
}

/// What came of a simulation.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Every request, in order.
    pub traces: Vec<ReplayTrace>,
    /// Part of the time each machine was busy, until the last event.
    pub busy: Vec<f64>,
    /// Requests that no route took.
    pub turned_away: usize,
    /// Requests that had come when the simulation ended.
    pub arrived: usize,
    /// Batches that were begun, on all machines.
    pub runs: u64,
    /// Events handled: what a simulation costs.
    pub events: u64,
    /// The last event.
    pub end: Seconds,
    /// What machines did when, if that was recorded.
    pub timeline: Option<Timeline>,
}

/// A simulation under way.
#[derive(Clone, Copy, Debug)]
pub struct SoFar<'a> {
    /// Time since the start.
    pub now: Seconds,
    /// Requests that have come.
    pub arrived: usize,
    /// Every request, those included that are still to come.
    pub traces: &'a [ReplayTrace],
}
