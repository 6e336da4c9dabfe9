//! What this peer remembers of its work: tokens computed for others and by others for it, by day and model, and the traces of the last
//! requests. No word of a prompt or an answer is in it.
//!
//! It is counted in memory and written down now and then ([`keep`]): it may be lost, and a peer serves without it.

mod arrivals;
mod counts;
mod disk;
mod plans;
mod traces;

pub use arrivals::{PeerStay, watch};
pub use counts::{DAYS, Day, DayLine, TokenWork, Tokens, Total, total};
pub use disk::keep;
pub use plans::AdoptedPlan;
pub use traces::KEPT as TRACES;

use arrivals::PeerStays;
use counts::{Counts, of_trace};
use plans::Plans;
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;
use traces::Traces;
use tsnode_coordinator::gateway::Trace;
use tsnode_protocol::{ModelId, PeerId, RequestId};

/// Requests of this peer's own gateway that are known as such; far more than wait or run at once.
const OWN: usize = 8192;

/// The memory of one peer. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct History(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Each held for map operations only.
    counts: Mutex<Counts>,
    traces: Mutex<Traces>,
    own: Mutex<OwnRequests>,
    arrivals: Mutex<PeerStays>,
    plans: Mutex<Plans>,
    /// That there is something to be written down.
    news: Notify,
}

/// The latest requests of this peer's own gateway.
#[derive(Debug, Default)]
struct OwnRequests {
    known: BTreeSet<RequestId>,
    order: VecDeque<RequestId>,
}

impl History {
    /// A request begins at this peer's gateway: what is computed of it here is for nobody else.
    pub fn begins(&self, request: RequestId) {
        let mut own = self.0.own.lock().unwrap_or_else(PoisonError::into_inner);
        if !own.known.insert(request) {
            return;
        }
        own.order.push_back(request);
        if own.order.len() > OWN
            && let Some(oldest) = own.order.pop_front()
        {
            own.known.remove(&oldest);
        }
    }

    /// Whether a request is of another peer's gateway.
    #[must_use]
    pub fn is_for_others(&self, request: &RequestId) -> bool {
        !self.0.own.lock().unwrap_or_else(PoisonError::into_inner).known.contains(request)
    }

    /// This peer has computed so much for another's gateway.
    pub fn computed(&self, model: (ModelId, &str), work: TokenWork) {
        self.count(|counts| counts.for_others(Day::today(), model, work));
    }

    /// Another peer has computed so much for a client of this peer's gateway.
    pub fn computed_by_others(&self, model: (ModelId, &str), work: TokenWork) {
        self.count(|counts| counts.by_others(Day::today(), model, work));
    }

    /// A request of this peer's gateway has ended: others computed their parts of it.
    pub fn ended(&self, me: PeerId, name: &str, trace: &Trace) {
        self.count(|counts| counts.by_others(Day::today(), (trace.model, name), of_trace(trace, me)));
    }

    fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.0.counts.lock().unwrap_or_else(PoisonError::into_inner));
        self.0.news.notify_one();
    }

    /// What was computed on the last days on which anything was, newest first.
    #[must_use]
    pub fn lines(&self, days: usize) -> Vec<DayLine> {
        self.0.counts.lock().unwrap_or_else(PoisonError::into_inner).lines(days)
    }

    /// Remembers a trace, and forgets the oldest above the limit.
    pub fn note(&self, trace: &Trace) {
        self.traces().note(trace.clone());
        self.0.news.notify_one();
    }

    /// Traces that are remembered, newest first.
    #[must_use]
    pub fn newest(&self) -> Vec<Trace> {
        self.traces().newest()
    }

    /// Those that were noted behind the first `seen` of this run, or all; newest first, and how many were noted in this run.
    #[must_use]
    pub fn since(&self, seen: Option<u64>) -> (Vec<Trace>, u64) {
        self.traces().since(seen)
    }

    /// Since when it is looked who is there (seconds since 1970), and who was, who came last first. It is not on the disk.
    #[must_use]
    pub fn arrivals(&self) -> (Option<u64>, Vec<PeerStay>) {
        self.0.arrivals.lock().unwrap_or_else(PoisonError::into_inner).list()
    }

    /// Plans that were followed since this peer started, newest first. They are not on the disk.
    #[must_use]
    pub fn plans(&self) -> Vec<AdoptedPlan> {
        self.0.plans.lock().unwrap_or_else(PoisonError::into_inner).list()
    }

    /// Whether nothing has happened in this run that is not on the disk.
    fn is_new(&self) -> bool {
        self.since(None).1 == 0 && self.0.counts.lock().unwrap_or_else(PoisonError::into_inner).is_kept()
    }

    fn traces(&self) -> std::sync::MutexGuard<'_, Traces> {
        self.0.traces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Day {
    fn today() -> Self {
        Self::at(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
    }
}

#[cfg(test)]
pub(crate) mod tests;
