//! Why a peer takes no requests yet: one reason, in plain words, the same in `join`, `status`, `/readyz` and errors.

use crate::{
    lending::Lending,
    planner::live::{DeviceShortfall, Shortfall},
};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// Minutes by which clocks may be apart: what they are told by is coarser.
const CLOCKS: u64 = 15;
/// Silence of whoever plans next that is worth a word.
const SILENT: Duration = Duration::from_secs(4);

/// Why a peer takes no requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum NotReady {
    /// It has just started.
    Probing,
    /// It is on its way out.
    Leaving,
    /// It has found nobody.
    NoPeer {
        /// Addresses of others that it knows.
        addresses: usize,
    },
    /// Whom it has found speaks another protocol.
    OtherVersion {
        /// Theirs.
        theirs: u16,
        /// This peer's.
        ours: u16,
    },
    /// It is to lend itself later, and nobody else does.
    Hours {
        /// Minute of this host's day at which it begins.
        opens: u16,
    },
    /// Its owner has paused it, and nobody else lends.
    Paused,
    /// Nobody lends a device with a model.
    NothingLent,
    /// A model does not fit.
    TooLarge {
        /// Its name.
        model: String,
        /// What a group must have (bytes).
        needs: u64,
        /// What is lent (bytes).
        lent: u64,
    },
    /// A model that one peer has to hold does not fit on any.
    TooLargeForOne {
        /// Its name.
        model: String,
        /// What a device must have (bytes).
        needs: u64,
        /// What the largest lends (bytes).
        lent: u64,
    },
    /// Too little memory for KV.
    SmallKv {
        /// For which model.
        model: String,
        /// What a plan needs (tokens).
        needs: u64,
        /// What there is (tokens).
        holds: u64,
    },
    /// Clocks are apart, and what is said in one's epoch counts for nothing in another's.
    Clock {
        /// Whose is wrong, by name; none where this host's is.
        whose: Option<String>,
        /// By how much (minutes): positive where it is ahead.
        minutes: i64,
    },
    /// Two clocks are apart, and nobody can say which is right.
    Clocks {
        /// Whose is the other.
        with: String,
        /// How much this host's is ahead of it (minutes).
        minutes: i64,
    },
    /// Nobody who is there may plan.
    NoPlanner,
    /// Who is to plan is not heard.
    Silent {
        /// Its name.
        who: String,
        /// For how long, at least (s).
        seconds: u64,
    },
    /// A plan is being made.
    Planning {
        /// By whom; none where it is this peer.
        who: Option<String>,
    },
    /// The plan's groups are not up yet.
    Loading,
}

/// How far a peer has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerStage {
    /// It looks at its own machine.
    Probing,
    /// It follows no plan.
    Planless,
    /// It follows one of which no group takes requests.
    Planned,
    /// It takes requests.
    Ready,
    /// It leaves the swarm.
    Leaving,
}

/// A peer that is there, as another sees it.
#[derive(Clone, Debug)]
pub struct PeerSighting {
    /// What people call it.
    pub name: String,
    /// Whether it lends a device with a model.
    pub lends: bool,
    /// How much its clock is ahead of this host's (minutes); none where it has not said.
    pub clock: Option<i64>,
    /// For how long it has been silent.
    pub silent: Duration,
    /// Whether it is the one to plan next.
    pub plans: bool,
}

/// What a peer knows of itself and of others.
#[derive(Clone, Debug)]
pub struct WaitingView<'a> {
    /// How far it is.
    pub stage: PeerStage,
    /// Whether its owner lends it.
    pub lending: Lending,
    /// Minute of the day at which its hours begin, if it has any.
    pub opens: Option<u16>,
    /// Whether it lends a device with a model now.
    pub lends: bool,
    /// Whether it is the one to plan next.
    pub plans: bool,
    /// Everybody else who is there.
    pub others: &'a [PeerSighting],
    /// Addresses of others that it knows.
    pub addresses: usize,
    /// The protocol of somebody it could not talk to, and its own.
    pub versions: Option<(u16, u16)>,
    /// Models that cannot be held by what is lent.
    pub short: &'a [Shortfall],
    /// Models that devices are lent for.
    pub models: usize,
}

/// The one reason that is to be dealt with first; none where the peer is ready.
#[must_use]
pub fn why(view: &WaitingView<'_>) -> Option<NotReady> {
    match view.stage {
        PeerStage::Ready => None,
        PeerStage::Probing => Some(NotReady::Probing),
        PeerStage::Leaving => Some(NotReady::Leaving),
        // A plan whose peers have gone stands until there is another, and there may never be one.
        PeerStage::Planned => Some(lacking(view).unwrap_or(NotReady::Loading)),
        PeerStage::Planless => Some(planless(view)),
    }
}

/// What no plan could be made without, if it is not there.
fn lacking(view: &WaitingView<'_>) -> Option<NotReady> {
    if !view.lends && !view.others.iter().any(|o| o.lends) {
        return Some(nothing_lent(view));
    }
    let all_short = view.models > 0 && view.short.len() >= view.models;
    view.short.first().filter(|_| all_short).map(NotReady::from)
}

fn planless(view: &WaitingView<'_>) -> NotReady {
    if let Some(lack) = lacking(view) {
        return lack;
    }
    if let Some(clock) = clocks(view.others) {
        return clock;
    }
    if view.others.is_empty() {
        return nobody(view);
    }
    match view.others.iter().find(|o| o.plans) {
        Some(other) if other.silent >= SILENT => {
            // In steps, so that it is said anew now and then, and not every second.
            let seconds = 1 << other.silent.as_secs().ilog2();
            NotReady::Silent { who: other.name.clone(), seconds }
        }
        Some(other) => NotReady::Planning { who: Some(other.name.clone()) },
        None if view.plans => NotReady::Planning { who: None },
        None => NotReady::NoPlanner,
    }
}

fn nothing_lent(view: &WaitingView<'_>) -> NotReady {
    match (view.lending, view.opens) {
        (Lending::OutsideHours, Some(opens)) => NotReady::Hours { opens },
        (Lending::Paused, _) => NotReady::Paused,
        _ if view.others.is_empty() => nobody(view),
        _ => NotReady::NothingLent,
    }
}

fn nobody(view: &WaitingView<'_>) -> NotReady {
    match view.versions {
        Some((theirs, ours)) => NotReady::OtherVersion { theirs, ours },
        None => NotReady::NoPeer { addresses: view.addresses },
    }
}

/// Whose clock is wrong: of three or more, the one that most others disagree with.
fn clocks(others: &[PeerSighting]) -> Option<NotReady> {
    let mut ahead: Vec<i64> = others.iter().filter_map(|o| o.clock).collect();
    let is_off = |by: i64| by.unsigned_abs() > CLOCKS;
    let farthest = |from: i64| {
        let by = |o: &&PeerSighting| o.clock.map_or(0, |clock| (clock - from).unsigned_abs());
        others.iter().filter(|o| o.clock.is_some()).max_by_key(by).map(|o| (o, o.clock.unwrap_or(from) - from))
    };
    if ahead.len() < 2 {
        let (other, by) = farthest(0).filter(|(_, by)| is_off(*by))?;
        return Some(NotReady::Clocks { with: other.name.clone(), minutes: -by });
    }
    ahead.push(0);
    ahead.sort_unstable();
    let common = ahead[(ahead.len() - 1) / 2];
    if is_off(common) {
        return Some(NotReady::Clock { whose: None, minutes: -common });
    }
    let (other, by) = farthest(common).filter(|(_, by)| is_off(*by))?;
    Some(NotReady::Clock { whose: Some(other.name.clone()), minutes: by })
}

impl From<&Shortfall> for NotReady {
    fn from(short: &Shortfall) -> Self {
        let model = short.model.clone();
        match short.lack {
            DeviceShortfall::Memory { needs, lent } => Self::TooLarge { model, needs, lent },
            DeviceShortfall::MemoryOfOne { needs, lent } => Self::TooLargeForOne { model, needs, lent },
            DeviceShortfall::Kv { needs, holds } => Self::SmallKv { model, needs, holds },
        }
    }
}

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Probing => f.write_str("it measures its hardware and reads its model"),
            Self::Leaving => f.write_str("it is leaving"),
            Self::NoPeer { addresses: 0 } => f.write_str("no other peers found yet, and no address of any is known"),
            Self::NoPeer { addresses } => write!(f, "no other peers found yet; {addresses} known addresses are tried"),
            Self::OtherVersion { theirs, ours } => write!(
                f,
                "the peers found speak protocol version {theirs}, this one {ours}: run the same version of tsnode"
            ),
            Self::Hours { opens } => {
                write!(f, "lending begins at {:02}:{:02} (--hours), and nobody else lends", opens / 60, opens % 60)
            }
            Self::Paused => f.write_str("its owner has paused it, and nobody else lends: tsnode resume"),
            Self::NothingLent => {
                f.write_str("no peer lends a device with a model: tsnode join --model PATH on one of them")
            }
            Self::TooLarge { model, needs, lent } => write!(
                f,
                "{model} needs {} for its weights and one request, {} is lent: more peers are needed, or more --memory",
                Mib(*needs),
                Mib(*lent)
            ),
            Self::TooLargeForOne { model, needs, lent } => write!(
                f,
                "{model} needs {} for its weights and one request on one peer, none lends more than {}: one with more memory is needed, or more --memory",
                Mib(*needs),
                Mib(*lent)
            ),
            Self::SmallKv { model, needs, holds } => {
                write!(f, "KV holds {holds} tokens of {model}, a plan needs {needs}: lend more with --kv-memory")
            }
            Self::Clock { whose: None, minutes } => {
                write!(f, "the clock of this host is {} most others': set it", ClockSkew(*minutes))
            }
            Self::Clock { whose: Some(name), minutes } => {
                write!(f, "the clock of {name} is {} most others': it has to be set", ClockSkew(*minutes))
            }
            Self::Clocks { with, minutes } => {
                write!(f, "the clock of this host is {} that of {with}: set the wrong one", ClockSkew(*minutes))
            }
            Self::NoPlanner => f.write_str("no peer here can be reached from outside, so that none may plan"),
            Self::Silent { who, seconds } => {
                write!(f, "the swarm has no plan yet: {who} is to make it, and was not heard for {seconds} s")
            }
            Self::Planning { who: Some(who) } => write!(f, "the swarm has no plan yet: {who} is to make it"),
            Self::Planning { who: None } => f.write_str("the swarm has no plan yet: this peer is making it"),
            Self::Loading => f.write_str("the plan's groups are loading their weights"),
        }
    }
}

/// Bytes in units that people read.
pub(crate) struct Mib(pub(crate) u64);

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = self.0 as f64 / f64::from(1 << 20);
        if mib >= 1024.0 { write!(f, "{:.1} GiB", mib / 1024.0) } else { write!(f, "{mib:.1} MiB") }
    }
}

/// Minutes between two clocks.
struct ClockSkew(i64);

impl fmt::Display for ClockSkew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = if self.0 < 0 { "behind" } else { "ahead of" };
        match self.0.unsigned_abs() {
            minutes if minutes < 120 => write!(f, "about {minutes} minutes {side}"),
            minutes if minutes < 48 * 60 => write!(f, "about {} hours {side}", (minutes + 30) / 60),
            minutes => write!(f, "about {} days {side}", (minutes + 720) / 1440),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_protocol::ModelId;

    fn seen(name: &str) -> PeerSighting {
        let silent = Duration::from_millis(200);
        PeerSighting { name: name.into(), lends: true, clock: Some(0), silent, plans: false }
    }

    fn view(others: &[PeerSighting]) -> WaitingView<'_> {
        WaitingView {
            stage: PeerStage::Planless,
            lending: Lending::Lends,
            opens: None,
            lends: true,
            plans: false,
            others,
            addresses: 3,
            versions: None,
            short: &[],
            models: 1,
        }
    }

    fn said(view: &WaitingView<'_>) -> String {
        why(view).unwrap().to_string()
    }

    #[test]
    fn stages_speak_for_themselves() {
        let at = |stage| why(&WaitingView { stage, ..view(&[]) });
        assert_eq!(at(PeerStage::Ready), None);
        let reasons = [PeerStage::Probing, PeerStage::Planned, PeerStage::Leaving].map(at);
        assert_eq!(reasons, [NotReady::Probing, NotReady::Loading, NotReady::Leaving].map(Some));
    }

    #[test]
    fn a_plan_whose_other_half_has_left_is_not_loading() {
        let lack = DeviceShortfall::Memory { needs: 244 << 20, lent: 163 << 20 };
        let short = [Shortfall { id: ModelId([1; 16]), model: "big".into(), lack }];
        let half = WaitingView { stage: PeerStage::Planned, short: &short, ..view(&[]) };
        assert!(said(&half).contains("more peers are needed"), "{}", said(&half));
        let gateway = WaitingView { stage: PeerStage::Planned, lends: false, addresses: 0, ..view(&[]) };
        assert_eq!(why(&gateway), Some(NotReady::NoPeer { addresses: 0 }));
    }

    #[test]
    fn who_finds_nobody_says_so_and_what_it_has_tried() {
        assert!(said(&view(&[])).contains("3 known addresses"));
        let (theirs, ours) = (9, 8);
        let other = WaitingView { versions: Some((theirs, ours)), ..view(&[]) };
        assert!(said(&other).contains("protocol version 9, this one 8"));
        // Whoever it can talk to counts for more.
        let others = [PeerSighting { plans: true, ..seen("p2") }];
        let found = WaitingView { versions: Some((theirs, ours)), ..view(&others) };
        assert!(said(&found).contains("p2 is to make it"));
    }

    #[test]
    fn hours_and_pauses_are_reasons_where_nobody_else_lends() {
        let (lending, opens) = (Lending::OutsideHours, Some(22 * 60));
        let night = WaitingView { lending, opens, lends: false, ..view(&[]) };
        assert!(said(&night).contains("lending begins at 22:00"), "{}", said(&night));
        let others = [PeerSighting { plans: true, ..seen("p2") }];
        assert!(said(&WaitingView { others: &others, ..night.clone() }).contains("p2"));
        assert_eq!(why(&WaitingView { lending: Lending::Paused, ..night.clone() }), Some(NotReady::Paused));
        let gateways = [PeerSighting { lends: false, ..seen("g") }];
        let gateway = WaitingView { lending: Lending::Lends, others: &gateways, ..night };
        assert_eq!(why(&gateway), Some(NotReady::NothingLent));
    }

    #[test]
    fn what_is_too_little_is_said_in_numbers_unless_another_model_fits() {
        let short = |lack| [Shortfall { model: "llama".into(), id: ModelId([1; 16]), lack }];
        let memory = short(DeviceShortfall::Memory { needs: 16 << 30, lent: 9 << 29 });
        let large = WaitingView { short: &memory, ..view(&[]) };
        assert!(said(&large).contains("llama needs 16.0 GiB") && said(&large).contains("4.5 GiB is lent"));
        let one = short(DeviceShortfall::MemoryOfOne { needs: 16 << 30, lent: 9 << 29 });
        let one = said(&WaitingView { short: &one, ..view(&[]) });
        assert!(one.contains("16.0 GiB") && one.contains("on one peer, none lends more than 4.5 GiB"), "{one}");
        let kv = short(DeviceShortfall::Kv { needs: 1024, holds: 512 });
        let small = WaitingView { short: &kv, ..view(&[]) };
        assert!(said(&small).contains("KV holds 512 tokens of llama, a plan needs 1024"), "{}", said(&small));
        assert!(matches!(why(&WaitingView { models: 2, ..small }), Some(NotReady::NoPeer { .. })));
    }

    #[test]
    fn a_wrong_clock_is_named_with_its_owner() {
        let clock = |name: &str, minutes| PeerSighting { clock: Some(minutes), ..seen(name) };
        let reason = |others: &[PeerSighting]| why(&view(others)).unwrap();
        let two = reason(&[clock("p2", -60)]);
        assert_eq!(two, NotReady::Clocks { with: "p2".into(), minutes: 60 });
        assert!(two.to_string().contains("this host is about 60 minutes ahead of that of p2"), "{two}");
        let mine = reason(&[clock("p2", 60), clock("p3", 60)]);
        assert_eq!(mine, NotReady::Clock { whose: None, minutes: -60 });
        assert!(mine.to_string().contains("this host is about 60 minutes behind most"), "{mine}");
        let theirs = reason(&[clock("p2", 0), clock("p3", 180)]);
        assert_eq!(theirs, NotReady::Clock { whose: Some("p3".into()), minutes: 180 });
        assert!(theirs.to_string().contains("p3 is about 3 hours ahead of"), "{theirs}");
        // An epoch begins sooner for one than for another.
        assert_eq!(reason(&[clock("p2", 10), clock("p3", -10)]), NotReady::NoPlanner);
    }

    #[test]
    fn who_is_to_plan_is_named() {
        let planner = |silent| [PeerSighting { plans: true, silent: Duration::from_secs(silent), ..seen("p7") }];
        assert_eq!(why(&view(&planner(1))), Some(NotReady::Planning { who: Some("p7".into()) }));
        assert_eq!(why(&view(&planner(13))), Some(NotReady::Silent { who: "p7".into(), seconds: 8 }));
        let others = [seen("p2")];
        assert_eq!(why(&WaitingView { plans: true, ..view(&others) }), Some(NotReady::Planning { who: None }));
        assert_eq!(why(&view(&others)), Some(NotReady::NoPlanner));
    }
}
