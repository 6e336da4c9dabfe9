//! What must hold, whatever happens: sentences, checked while a story is told.

use super::requests::Tally;
use crate::{Time, control::Reject};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;
use tsnode_protocol::{Epoch, PeerId, Plan, PlanId, Term};

/// How long a peer that is no more may be in anybody's view: silence at most, a busy listener's grace, the network.
pub const GHOST: Duration = Duration::from_secs(15);
/// How long after trouble with either end a peer's being given up is no wonder.
pub const EXCUSE: Duration = Duration::from_secs(15);

/// A sentence that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// When.
    pub at: Time,
    /// Which.
    pub sentence: &'static str,
    /// By what.
    pub what: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:.2} s: {}", self.sentence, self.at.as_secs_f64(), self.what)
    }
}

/// What was counted and measured.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// From a peer's end to a view without it (s), where its system said that it is gone or its connections closed.
    pub noticed_at_once: Vec<f64>,
    /// The same where there was only silence (s).
    pub noticed_by_silence: Vec<f64>,
    /// Peers given up though they ran, were not held up, and nothing was wrong with the network for a while.
    pub false_deaths: u64,
    /// The same while something was wrong.
    pub excused_deaths: u64,
    /// Plans that took effect.
    pub plans: u64,
    /// From quiet to agreement (s).
    pub agreed_after: Option<f64>,
    /// How requests fared, where clients came.
    pub requests: Tally,
    /// From agreement until a client of each honest peer had its whole answer (s).
    pub served_after: Option<f64>,
    /// Messages and bytes said, by kind.
    pub said: BTreeMap<&'static str, (u64, u64)>,
    /// Bytes of heartbeats that came straight to each peer.
    pub straight: BTreeMap<usize, u64>,
    /// Bytes that arrived of what was for all.
    pub heard_bytes: u64,
    /// Messages that arrived.
    pub heard: u64,
    /// Refused messages of honest peers, beside replays, by reason.
    pub refused: BTreeMap<Reject, u64>,
}

/// The record that the sentences are about.
#[derive(Debug, Default)]
pub struct Checks {
    /// What does not hold, first of all.
    pub broken: Option<Broken>,
    /// What was measured.
    pub figures: Figures,
    /// What each peer endorsed.
    endorsed: BTreeMap<(PeerId, Epoch, Term), PlanId>,
    endorsers: BTreeMap<PlanId, BTreeSet<PeerId>>,
    /// Adopted plans and the peers they name.
    adopted: BTreeMap<(Epoch, Term), BTreeMap<PlanId, BTreeSet<PeerId>>>,
    /// The last (epoch, term) that each peer's present life adopted.
    followed: BTreeMap<PeerId, (Epoch, Term)>,
}

impl Checks {
    pub(super) fn break_off(&mut self, at: Time, sentence: &'static str, what: String) {
        self.broken.get_or_insert(Broken { at, sentence, what });
    }

    /// Nobody endorses two plans of one (epoch, term), whatever happened to it in between.
    pub(super) fn nobody_endorses_twice(&mut self, now: Time, peer: PeerId, at: (Epoch, Term), plan: PlanId) {
        let first = *self.endorsed.entry((peer, at.0, at.1)).or_insert(plan);
        if first != plan {
            let what = format!("{} endorsed {first:.10} and {plan:.10} of {at:?}", peer.short());
            self.break_off(now, "nobody_endorses_twice", what);
        }
    }

    pub(super) fn endorsed_by(&mut self, plan: PlanId, peer: PeerId) {
        self.endorsers.entry(plan).or_default().insert(peer);
    }

    /// A new life knows nothing of the last one's plan.
    pub(super) fn born(&mut self, peer: PeerId) {
        self.followed.remove(&peer);
    }

    /// A plan takes effect once more than half of the peers it names have endorsed it, and a peer's terms only rise.
    pub(super) fn a_plan_takes_effect_by_majority_and_terms_rise(&mut self, now: Time, peer: PeerId, plan: &Plan) {
        let (id, named, at) = (plan.id(), plan.peers(), (plan.epoch, plan.term));
        let endorsed = self.endorsers.get(&id).map_or(0, |e| e.intersection(&named).count());
        if 2 * endorsed <= named.len() {
            let what = format!("{} adopted {id:.10} with {endorsed} of {} endorsements", peer.short(), named.len());
            self.break_off(now, "a_plan_takes_effect_by_majority", what);
        }
        if let Some(last) = self.followed.insert(peer, at).filter(|last| at <= *last) {
            self.break_off(now, "terms_only_rise", format!("{} went from {last:?} to {at:?}", peer.short()));
        }
        let of_term = self.adopted.entry(at).or_default();
        if of_term.insert(id, named).is_none() {
            self.figures.plans += 1;
        }
    }

    /// Two plans of one term are only for peers that had not heard of each other: no majority of the same ones endorsed
    /// both. (Who lies may endorse both; `liars` are not counted.)
    pub(super) fn no_two_plans_of_a_term_share_peers(&mut self, now: Time, liars: &BTreeSet<PeerId>) {
        for (at, plans) in self.adopted.iter().filter(|(_, plans)| plans.len() > 1) {
            let endorsers = |id| self.endorsers.get(id).into_iter().flatten().filter(|p| !liars.contains(p));
            let all: Vec<(&PlanId, BTreeSet<&PeerId>)> = plans.keys().map(|id| (id, endorsers(id).collect())).collect();
            for (k, (a, first)) in all.iter().enumerate() {
                if let Some((b, _)) = all[k + 1..].iter().find(|(_, second)| !first.is_disjoint(second)) {
                    let what = format!("{a:.10} and {b:.10} of {at:?}");
                    self.broken.get_or_insert(Broken { at: now, sentence: "no_two_plans_of_a_term_share_peers", what });
                }
            }
        }
    }

    /// Where nothing is lost, cut off or lied about, there is one plan for an epoch and term.
    #[must_use]
    pub fn one_plan_a_term(&self) -> bool {
        self.adopted.values().all(|plans| plans.len() <= 1)
    }

    /// A peer that is no more is gone from every view in time.
    pub(super) fn no_ghosts(&mut self, now: Time, dead: usize, viewer: usize) {
        self.break_off(now, "no_ghosts", format!("p{viewer} still sees p{dead}"));
    }

    /// Somebody was given up who is there, with nothing in the way.
    pub(super) fn the_living_are_not_buried(&mut self, now: Time, living: usize, viewer: usize) {
        self.break_off(now, "the_living_are_not_buried", format!("p{viewer} gave up p{living}"));
    }

    /// What an honest peer said was taken for a lie.
    pub(super) fn honest_peers_are_not_cut_off(&mut self, now: Time, peer: PeerId, reason: &Reject) {
        self.break_off(now, "honest_peers_are_not_cut_off", format!("{}: {reason}", peer.short()));
    }

    /// After trouble all connected peers reach one plan, which serves exactly the living, within a bound.
    pub(super) fn all_agree_soon_after_trouble(&mut self, now: Time, why: String) {
        self.break_off(now, "all_agree_soon_after_trouble", why);
    }

    /// And they keep to it.
    pub(super) fn agreement_lasts(&mut self, now: Time, why: String) {
        self.break_off(now, "agreement_lasts", why);
    }
}
