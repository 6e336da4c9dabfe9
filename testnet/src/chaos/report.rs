//! What came of breaking a swarm, for programs and people.

use super::timeline;
use crate::client::Moved;
use serde::Serialize;

/// What is done to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Deed {
    /// Killed with -9; later started again.
    Kill,
    /// Its process is stopped with its connections open; later it goes on.
    Stop,
    /// Nothing passes between it and any other; later it does again.
    Cut,
    /// The same between several peers, it among them, and all others.
    Part,
    /// Its links become slow.
    Slow,
    /// KV that it sends has bits flipped.
    Corrupt,
}

/// Something that was done to a peer.
#[derive(Clone, Debug, Serialize)]
pub struct Fault {
    /// What.
    pub deed: Deed,
    /// The peer's name.
    pub peer: String,
    /// Who was cut off together with it.
    pub with: Vec<String>,
    /// What it did when it was hit.
    pub role: String,
    /// Since the start (seconds).
    pub at: f64,
    /// When it was back (seconds).
    pub until: f64,
    /// After how long no living peer saw it any more, if it stayed dead for that (seconds).
    pub gone: Option<f64>,
    /// After how long all followed one plan without it, if it had a part in the one before (seconds).
    pub replanned: Option<f64>,
    /// After how long all saw each other again and followed one plan, where several were cut off together (seconds).
    pub healed: Option<f64>,
}

/// A plan that peers began to follow, as a gateway that nothing is done to tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Followed {
    /// Its name, if there is one.
    pub plan: Option<String>,
    /// Who plans, if anybody does.
    pub coordinator: Option<String>,
}

/// Something at a time since the start (seconds).
#[derive(Clone, Debug, Serialize)]
pub struct At<T> {
    /// When it began.
    pub at: f64,
    /// What.
    #[serde(flatten)]
    pub what: T,
}

/// A stream that ended well, since the start (seconds).
#[derive(Clone, Debug, Serialize)]
pub struct Served {
    /// When it was asked for.
    pub from: f64,
    /// When it had ended.
    pub to: f64,
    /// Its longest pause.
    pub pause: f64,
    /// When that began.
    pub paused: f64,
    /// What peers call it.
    pub request: String,
    /// Each time that another group went on with it.
    pub moves: Vec<Moved>,
    /// Why its prompt was computed where it was, in the end.
    pub reason: String,
    /// How often its client came back elsewhere.
    pub returns: usize,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// How long it took (seconds).
    pub seconds: f64,
    /// Names of the peers.
    pub peers: Vec<String>,
    /// What was done.
    pub faults: Vec<Fault>,
    /// Plans, one after the other.
    pub plans: Vec<At<Followed>>,
    /// Streams that ended well.
    pub streams: Vec<Served>,
    /// What did not hold; empty if all did.
    pub violations: Vec<String>,
}

impl Report {
    /// The stream that stood still for longest.
    #[must_use]
    pub fn slowest(&self) -> Option<&Served> {
        self.streams.iter().max_by(|a, b| a.pause.total_cmp(&b.pause))
    }

    /// Peers, faults and streams over time, as SVG.
    #[must_use]
    pub fn svg(&self) -> String {
        timeline::svg(self)
    }
}
