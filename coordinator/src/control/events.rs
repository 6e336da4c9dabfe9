//! What happens to a peer, what it does, and why it refuses or gives up others.

use super::{plan_check::Infeasible, planning::PlannerInput};
use crate::{planner::PlanDraft, trust::Offence};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tsnode_protocol::{
    Advert, Epoch, Gossip, GroupLoad, Heartbeat, Load, PeerId, Plan, SeenSpeed, SettingKey, SettingValue, SwarmSetting,
    Term, Verified,
};

/// What happens to a peer.
#[derive(Clone, Debug)]
pub enum Event {
    /// The time [`Control::deadline`] asked for.
    Deadline,
    /// A message, verified; one's own too.
    Gossip(Verified<Gossip>),
    /// Heartbeats for this peer and a few others; one's own, where it was not said to all.
    Heartbeats {
        /// Who sent them.
        from: PeerId,
        /// Its own, and those it passes on, verified.
        words: Vec<Verified<Gossip>>,
    },
    /// This peer's advert is new or has changed.
    Advertise(Advert),
    /// A word that was put behind all that is to be heard here took so long to come through.
    CameThrough(Duration),
    /// What runs here.
    Load {
        /// Its amount, in all.
        load: Load,
        /// Groups led here that take requests, and what each has to do.
        ready: Vec<GroupLoad>,
    },
    /// Whom this peer has cut off now.
    CutOff(Vec<PeerId>),
    /// What its gateway saw of groups whose claims are in doubt.
    SeenSpeeds(Vec<SeenSpeed>),
    /// The transport has a connection to a peer.
    Connected(PeerId),
    /// The transport has lost its last connection to a peer.
    Disconnected(PeerId),
    /// A peer's own system says that its process is no more.
    Gone(PeerId),
    /// The planner's answer to the last [`Action::AskPlanner`].
    Planned(Option<PlanDraft>),
    /// A client of this peer waits for a plan.
    Asked,
    /// A member sets something for the whole swarm, here.
    Set {
        /// About what.
        key: SettingKey,
        /// To what.
        value: SettingValue,
    },
    /// This peer leaves.
    Leave,
}

/// What a peer does.
#[derive(Clone, Debug)]
pub enum Action {
    /// Sign, send to all, and feed back.
    Publish(Gossip),
    /// Send straight to these peers, and feed one's own back as [`Event::Heartbeats`].
    Heartbeats {
        /// Whom.
        to: Vec<PeerId>,
        /// This peer's heartbeat, to be signed.
        own: Option<Heartbeat>,
        /// Others', to be passed on.
        heard: Vec<Verified<Gossip>>,
    },
    /// Write down that this epoch and term is endorsed, before anything that follows is sent.
    Remember(Epoch, Term),
    /// Follow this plan.
    Adopt(Arc<Plan>),
    /// Have the planner answer, without waiting for it, and say what it says. One question is open at a time.
    AskPlanner(Arc<PlannerInput>),
    /// Remember that these are the newest settings of the swarm.
    Settings(Vec<SwarmSetting>),
    /// A message was refused.
    Reject {
        /// Its signer.
        peer: PeerId,
        /// Why.
        reason: Reject,
    },
    /// A peer is there.
    PeerUp(PeerId),
    /// A peer is late: it gets nothing new until it is heard again.
    PeerSuspect(PeerId),
    /// A peer is gone.
    PeerDown {
        /// Which.
        peer: PeerId,
        /// How this was noticed.
        reason: Down,
    },
    /// A peer has started anew, or is elsewhere now: what leads to where it was leads nowhere.
    PeerMoved(PeerId),
    /// Another peer plans now.
    CoordinatorChanged {
        /// Which; none while nobody is eligible.
        coordinator: Option<PeerId>,
        /// In which term.
        term: Term,
    },
}

/// Why a message was refused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reject {
    /// Its sequence is not above the last one's, or it is of a life before its signer's last start.
    Replay,
    /// More peers than are kept.
    TooManyPeers,
    /// A plan by a peer whose turn it is not.
    NotCoordinator,
    /// A second plan of one peer for an epoch and term.
    SecondPlan,
    /// A plan for an epoch and term in which another was endorsed, or one before it.
    Late,
    /// A plan that cannot be carried out.
    Infeasible(Infeasible),
    /// A plan worth less than the present one.
    Worse,
    /// An epoch far from this peer's clock, or a term far from the last.
    WrongEpoch,
    /// A certificate whose parts do not fit or do not suffice.
    BadCertificate,
    /// More certificates than any honest peer shows.
    TooManyCertificates,
}

impl Reject {
    /// What its signer did that no honest peer does, if that is why.
    #[must_use]
    pub fn offence(&self) -> Option<Offence> {
        match self {
            Self::SecondPlan => Some(Offence::SecondPlan),
            Self::BadCertificate => Some(Offence::FalseCertificate),
            _ => None,
        }
    }

    /// Whether whoever said it lied, since no view of the swarm and no clock makes an honest peer say it. All else may
    /// happen to honest peers, and is refused without blame.
    #[must_use]
    pub fn is_lie(&self) -> bool {
        self.offence().is_some()
    }
}

impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replay => f.write_str("message that came late, or again"),
            Self::TooManyPeers => f.write_str("too many peers"),
            Self::NotCoordinator => f.write_str("plan out of turn"),
            Self::SecondPlan => f.write_str("second plan for a term"),
            Self::Late => f.write_str("plan for a term that is taken"),
            Self::Infeasible(why) => write!(f, "infeasible plan: {why}"),
            Self::Worse => f.write_str("plan worse than the present one"),
            Self::WrongEpoch => f.write_str("plan of a far epoch or term"),
            Self::BadCertificate => f.write_str("bad certificate"),
            Self::TooManyCertificates => f.write_str("certificates faster than any peer shows them"),
        }
    }
}

/// How a peer's going was noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Down {
    /// It was silent for too long.
    Silent,
    /// Its process is no more.
    Gone,
    /// It said goodbye.
    Left,
}

impl fmt::Display for Down {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Silent => "silent for too long",
            Self::Gone => "its process has ended",
            Self::Left => "it left",
        })
    }
}
