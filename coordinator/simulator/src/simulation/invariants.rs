//! What must hold, whatever happens: sentences, checked while a scenario runs.

use super::{
    tally::ScenarioTally,
    terms::{AdoptedTerms, PlanAdoption, must_meet},
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tsnode_coordinator::{
    Time,
    control::{Reject, digest_every},
};
use tsnode_protocol::{Epoch, PeerId, Plan, PlanId, Term};

/// How long a peer that is no more may be in anybody's view: silence at most, a busy listener's grace, the network. Where
/// rolls are rarer than once a second, that much longer ([`ghost`]).
pub const GHOST: Duration = Duration::from_secs(15);
/// The same in a swarm of so many: who has lost the word that somebody leaves finds it out from a roll.
pub fn ghost(peers: usize) -> Duration {
    GHOST + digest_every(peers).saturating_sub(digest_every(0))
}

/// How long after faults of either end a peer's being given up is no wonder.
pub const EXCUSE: Duration = Duration::from_secs(15);
/// How long peers may take to see each other, and to be done with what they endorsed before, once nothing is in the way.
pub const MEET: Duration = Duration::from_secs(10);

/// A sentence that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// When.
    pub at: Time,
    /// Which.
    pub sentence: &'static str,
    /// By what.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:.2} s: {}", self.sentence, self.at.as_secs_f64(), self.what)
    }
}

/// What was counted and measured.
#[derive(Clone, Debug, Default)]
pub struct ScenarioFigures {
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
    pub requests: ScenarioTally,
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
pub struct InvariantChecks {
    /// What does not hold, first of all.
    pub broken: Option<Violation>,
    /// What was measured.
    pub figures: ScenarioFigures,
    /// What each peer endorsed.
    endorsed: BTreeMap<(PeerId, Epoch, Term), PlanId>,
    endorsers: BTreeMap<PlanId, BTreeSet<PeerId>>,
    /// Adopted plans, and by whom.
    terms: AdoptedTerms,
    /// The last (epoch, term) that each peer's present life adopted.
    followed: BTreeMap<PeerId, (Epoch, Term)>,
}

impl InvariantChecks {
    pub(super) fn break_off(&mut self, at: Time, sentence: &'static str, what: String) {
        self.broken.get_or_insert(Violation { at, sentence, what });
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
    }

    /// Of the plans of one term a peer adopts the one that others did: where their views of who decides have so much in common
    /// that majorities of both must share a peer that votes once, always; and where nobody lies, if they were connected.
    pub(super) fn one_plan_a_term_is_adopted(
        &mut self,
        plan: &Plan,
        adoption: PlanAdoption,
        byzantine: &BTreeSet<PeerId>,
    ) {
        let mine = adoption.clone();
        let (others, is_first) = self.terms.adopt(plan, adoption);
        self.figures.plans += u64::from(is_first);
        let mut met = BTreeSet::new();
        // Most see the same peers: one set of them is looked at once.
        let mut meets = |a: &PlanAdoption| {
            met.insert(Arc::as_ptr(&a.electorate)) && must_meet(&a.electorate, &mine.electorate, byzantine)
        };
        let connected = |a: &PlanAdoption| byzantine.is_empty() && a.calm_since.max(mine.calm_since) + MEET <= a.at;
        let what = |(id, a): &(PlanId, &PlanAdoption)| {
            let (first, second) = (format!("p{} {id:.10}", a.peer), format!("p{} {:.10}", mine.peer, plan.id()));
            format!("{first} and {second}, both of {:?}", (plan.epoch, plan.term))
        };
        let apart = others.iter().find(|(_, a)| meets(a)).map(what);
        let together = others.iter().find(|(_, a)| connected(a)).map(what);
        if let Some(what) = apart {
            self.break_off(mine.at, "whose_majorities_meet_adopt_one_plan_a_term", what);
        }
        if let Some(what) = together {
            self.break_off(mine.at, "connected_peers_adopt_one_plan_a_term", what);
        }
    }

    /// Two plans of one term are only for peers that had not heard of each other: no majority of the same ones endorsed
    /// both. (Who lies may endorse both: byzantine peers are not counted.)
    pub(super) fn no_two_plans_of_a_term_share_peers(&mut self, now: Time, byzantine: &BTreeSet<PeerId>) {
        for (at, plans) in self.terms.contested() {
            let endorsers = |id| self.endorsers.get(id).into_iter().flatten().filter(|p| !byzantine.contains(p));
            let all: Vec<(&PlanId, BTreeSet<&PeerId>)> =
                plans.into_iter().map(|id| (id, endorsers(id).collect())).collect();
            for (k, (a, first)) in all.iter().enumerate() {
                if let Some((b, _)) = all[k + 1..].iter().find(|(_, second)| !first.is_disjoint(second)) {
                    let what = format!("{a:.10} and {b:.10} of {at:?}");
                    self.broken.get_or_insert(Violation {
                        at: now,
                        sentence: "no_two_plans_of_a_term_share_peers",
                        what,
                    });
                }
            }
        }
    }

    /// Where nothing is lost, cut off or lied about, there is one plan for an epoch and term.
    #[must_use]
    pub fn one_plan_a_term(&self) -> bool {
        self.terms.one_plan_each()
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

    /// After faults all connected peers reach one plan, which serves exactly the living, within a bound.
    pub(super) fn all_agree_soon_after_faults(&mut self, now: Time, why: String) {
        self.break_off(now, "all_agree_soon_after_faults", why);
    }

    /// And they keep to it.
    pub(super) fn agreement_lasts(&mut self, now: Time, why: String) {
        self.break_off(now, "agreement_lasts", why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The `n`th peer adopts a plan of one term, at that second, in an electorate, undisturbed since that second.
    fn adopts(
        checks: &mut InvariantChecks,
        n: u8,
        plan: &str,
        at: u64,
        electorate: std::ops::Range<u8>,
        calm_since: u64,
    ) {
        let (epoch, term, reason) = (Epoch(1), Term(1), plan.into());
        let plan = Plan { epoch, term, parent: None, groups: vec![], routes: vec![], chosen: vec![], reason };
        let electorate = Arc::new(electorate.map(|n| PeerId([n; 32])).collect());
        let (at, calm_since) = (Duration::from_secs(at), Duration::from_secs(calm_since));
        let adoption = PlanAdoption { peer: n.into(), at, electorate, calm_since };
        checks.one_plan_a_term_is_adopted(&plan, adoption, &BTreeSet::new());
    }

    #[test]
    fn a_second_plan_of_a_term_is_found_where_views_meet_or_peers_do() {
        let sentence = |checks: &InvariantChecks| checks.broken.as_ref().map(|b| b.sentence);
        let mut checks = InvariantChecks::default();
        adopts(&mut checks, 0, "one", 20, 0..5, 19);
        adopts(&mut checks, 1, "one", 21, 0..5, 19);
        // Of the other side of a network in parts.
        adopts(&mut checks, 5, "two", 22, 5..9, 19);
        assert_eq!((sentence(&checks), checks.figures.plans), (None, 2));
        adopts(&mut checks, 6, "two", 23, 0..6, 19);
        assert_eq!(sentence(&checks), Some("whose_majorities_meet_adopt_one_plan_a_term"));

        let mut checks = InvariantChecks::default();
        adopts(&mut checks, 0, "one", 20, 0..5, 9);
        adopts(&mut checks, 5, "two", 22, 5..9, 9);
        assert_eq!(sentence(&checks), Some("connected_peers_adopt_one_plan_a_term"));
    }
}
