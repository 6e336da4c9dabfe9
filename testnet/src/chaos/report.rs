//! What came of breaking a swarm, for programs and people.

use super::{PauseLimits, ScheduledFault, timeline};
use crate::client::{Difference, Moved};
use serde::Serialize;

/// What is done to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
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

impl Deed {
    /// All of them, by name.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::Kill, "kill"),
        (Self::Stop, "stop"),
        (Self::Cut, "cut"),
        (Self::Part, "part"),
        (Self::Slow, "slow"),
        (Self::Corrupt, "corrupt"),
    ];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(deed, _)| *deed == self).map_or("", |(_, name)| name)
    }
}

/// What two peers do that are hit at once.
const TWO: &str = "two at once";

/// Something that was done to a peer.
#[derive(Clone, Debug, Serialize)]
pub struct InjectedFault {
    /// The step of the schedule, from 1.
    pub nth: usize,
    /// What.
    pub deed: Deed,
    /// The peer's name.
    pub peer: String,
    /// Who was hit, or cut off, together with it.
    pub with: Vec<String>,
    /// What it did when it was hit, in a word; `two at once` where two were.
    pub role: String,
    /// All that each of them did, it first.
    pub roles: Vec<Vec<String>>,
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

impl InjectedFault {
    /// A step that was done, from and until so many seconds since the start.
    pub(super) fn new(step: &ScheduledFault, roles: Vec<Vec<String>>, at: f64, until: f64) -> Self {
        let (peer, with) = step.peers.split_first().map_or_else(Default::default, |(p, w)| (p.clone(), w.to_vec()));
        let is_two = !with.is_empty() && step.deed != Deed::Part;
        let first = roles.first().and_then(|all| all.first()).map_or("", String::as_str);
        let role = if is_two { TWO } else { first }.to_owned();
        let (nth, deed) = (step.nth, step.deed);
        Self { nth, deed, peer, with, role, roles, at, until, gone: None, replanned: None, healed: None }
    }

    /// Whether one of them was in the plan.
    pub(super) fn had_a_part(&self) -> bool {
        self.roles.iter().flatten().any(|role| role.ends_with("leader") || role.ends_with("member"))
    }

    /// Whether it was this peer that was hit, or one of several.
    pub(super) fn hit(&self, peer: &str) -> bool {
        self.peer == peer || self.with.iter().any(|with| with == peer)
    }

    /// Whether two were hit at once.
    #[must_use]
    pub fn is_of_two(&self) -> bool {
        self.role == TWO
    }
}

/// A plan that peers began to follow, as a gateway that nothing is done to tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FollowedPlan {
    /// Its name, if there is one.
    pub plan: Option<String>,
    /// Who plans, if anybody does.
    pub coordinator: Option<String>,
}

/// Something at a time since the start (seconds).
#[derive(Clone, Debug, Serialize)]
pub struct Stamped<T> {
    /// When it began.
    pub at: f64,
    /// What.
    #[serde(flatten)]
    pub what: T,
}

/// A stream that ended well, since the start (seconds).
#[derive(Clone, Debug, Serialize)]
pub struct ServedStream {
    /// When it was asked for.
    pub from: f64,
    /// When it had ended.
    pub to: f64,
    /// Its tokens.
    pub tokens: usize,
    /// Its longest pause.
    pub pause: f64,
    /// When that began.
    pub paused: f64,
    /// All its pauses of a quarter of a second and more.
    pub pauses: Vec<Stood>,
    /// What peers call it.
    pub request: String,
    /// Each time that another group went on with it.
    pub moves: Vec<Moved>,
    /// Why its prompt was computed where it was, in the end.
    pub reason: String,
    /// How often its client came back elsewhere.
    pub returns: usize,
}

/// A pause of a stream.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stood {
    /// When it began, since the start (seconds).
    pub from: f64,
    /// How long it was (seconds).
    pub pause: f64,
    /// Whom its client was asking meanwhile.
    pub at: Vec<String>,
}

/// A stream that did not end as it should.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Wronged {
    /// What became of it.
    pub how: Difference,
    /// In words.
    pub what: String,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct ChaosReport {
    /// The seed.
    pub seed: u64,
    /// How long it took (seconds).
    pub seconds: f64,
    /// Names of the peers.
    pub peers: Vec<String>,
    /// What was done.
    pub faults: Vec<InjectedFault>,
    /// Plans, one after the other.
    pub plans: Vec<Stamped<FollowedPlan>>,
    /// Streams that ended well.
    pub streams: Vec<ServedStream>,
    /// Streams that did not.
    pub wronged: Vec<Wronged>,
    /// Who cut off whom, and why: nobody has a reason to.
    pub cut_off: Vec<String>,
    /// What else did not hold.
    pub violations: Vec<String>,
}

impl ChaosReport {
    /// With what is not allowed among what did not hold.
    pub(super) fn within(mut self, PauseLimits { p99, worst }: PauseLimits) -> Self {
        let summary = self.summary();
        let over = |found: Option<f64>, most: Option<f64>| found.zip(most).filter(|(found, most)| found > most);
        let p99 = over(summary.pauses.map(|p| p.ninety_nine), p99).map(|(found, most)| {
            format!("of the streams that were hit 99 of 100 stood still for {found:.2} s, not {most} s")
        });
        let worst = over(summary.pauses_of_all.map(|p| p.most), worst)
            .map(|(found, most)| format!("a stream stood still for {found:.2} s, which is more than {most} s"));
        self.violations.extend(p99.into_iter().chain(worst));
        self
    }

    /// All that did not hold, in words; empty if all did.
    #[must_use]
    pub fn wrongs(&self) -> Vec<String> {
        let wronged = self.wronged.iter().map(|w| w.what.clone());
        wronged.chain(self.cut_off.iter().cloned()).chain(self.violations.iter().cloned()).collect()
    }

    /// Peers, faults and streams over time, as SVG.
    #[must_use]
    pub fn svg(&self) -> String {
        timeline::svg(self)
    }
}
