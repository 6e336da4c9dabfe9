//! Plan flow 5: proposals, endorsements, certificates, and the one adopted plan.

use super::{Action, Control, Reject, SignedEndorsement, check};
use crate::{Time, planner};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tsnode_protocol::{Endorsement, Epoch, Gossip, PeerId, Plan, PlanId, Signed, Term, gossip::Certificate};

/// Proposals kept: those of a few terms, by a few impatient ranks.
const PROPOSALS: usize = 64;
/// How long a proposal that does not fit this peer's view yet may wait for the view to catch up.
const CATCH_UP: Duration = Duration::from_secs(3);
/// Between certificates sent for those who are behind.
const CERTIFICATE_EVERY: Duration = Duration::from_secs(1);
/// Epochs a plan may be ahead of this peer's clock.
const EPOCHS_AHEAD: u64 = 1;
/// Terms a plan may be ahead of the last one heard of: nobody can use them all up.
const TERMS_AHEAD: u32 = 1024;

/// The plan in force, and the proof that it is.
#[derive(Clone, Debug)]
pub(super) struct Adopted {
    pub plan: Plan,
    pub id: PlanId,
    pub peers: BTreeSet<PeerId>,
    certificate: Certificate,
}

/// A plan heard of, and who has endorsed it.
#[derive(Clone, Debug, Default)]
pub(super) struct Proposal {
    /// Endorsements may come before the plan.
    plan: Option<(Plan, Signed<Gossip>, PeerId)>,
    endorsements: BTreeMap<PeerId, SignedEndorsement>,
    heard: Time,
    judged: bool,
}

impl Control {
    pub(super) fn hear_plan(&mut self, signer: PeerId, plan: Plan, proof: Signed<Gossip>, out: &mut Vec<Action>) {
        let by_clock = self.epoch();
        if plan.epoch.0 > by_clock.0 + EPOCHS_AHEAD {
            return out.push(Action::Reject { peer: signer, reason: Reject::WrongEpoch });
        }
        let last = if plan.epoch == self.highest.0 { self.highest.1.0 } else { 0 };
        if plan.term.0 > last.saturating_add(TERMS_AHEAD) {
            return out.push(Action::Reject { peer: signer, reason: Reject::WrongEpoch });
        }
        self.highest = self.highest.max((plan.epoch, plan.term));
        if !self.is_newer(plan.epoch, plan.term) {
            return;
        }
        self.make_room();
        let (id, now) = (plan.id(), self.now);
        let proposal = self.proposals.entry(id).or_default();
        proposal.heard = now;
        proposal.plan = Some((plan, proof, signer));
        self.judge(id, out);
        self.adopt_if_endorsed(id, out);
    }

    pub(super) fn hear_endorsement(
        &mut self,
        signer: PeerId,
        endorsement: Endorsement,
        proof: Signed<Gossip>,
        out: &mut Vec<Action>,
    ) {
        if !self.is_newer(endorsement.epoch, endorsement.term) {
            return;
        }
        self.make_room();
        let now = self.now;
        let proposal = self.proposals.entry(endorsement.plan).or_default();
        if proposal.plan.is_none() {
            proposal.heard = now;
        }
        proposal.endorsements.insert(signer, (endorsement, proof));
        self.adopt_if_endorsed(endorsement.plan, out);
    }

    pub(super) fn hear_certificate(&mut self, signer: PeerId, certificate: Certificate, out: &mut Vec<Action>) {
        let Some((plan, endorsers)) = self.read(&certificate) else {
            return out.push(Action::Reject { peer: signer, reason: Reject::BadCertificate });
        };
        if plan.epoch.0 > self.epoch().0 + EPOCHS_AHEAD {
            return out.push(Action::Reject { peer: signer, reason: Reject::WrongEpoch });
        }
        if self.is_newer(plan.epoch, plan.term) && self.carries(&plan, &endorsers) {
            self.adopt(plan, certificate, out);
        }
    }

    /// Whether these endorsers make the plan effective, by this peer's view of who is there.
    fn carries(&self, plan: &Plan, endorsers: &BTreeSet<PeerId>) -> bool {
        let (named, all) = (plan.peers(), self.electorate());
        let majority = |of: &BTreeSet<PeerId>| 2 * endorsers.intersection(of).count() > of.len();
        majority(&named) && majority(&all)
    }

    /// What a certificate proves: the plan, and who endorsed it; more than half of the peers it names must have.
    fn read(&self, certificate: &Certificate) -> Option<(Plan, BTreeSet<PeerId>)> {
        let Gossip::Plan(plan) = certificate.plan.clone().verify(self.config.swarm).ok()?.into_parts().0 else {
            return None;
        };
        let (id, named) = (plan.id(), plan.peers());
        let mut endorsers = BTreeSet::new();
        for signed in &certificate.endorsements {
            let verified = signed.clone().verify(self.config.swarm).ok()?;
            let Gossip::Endorsement(e) = verified.message() else { return None };
            if e.plan == id && (e.epoch, e.term) == (plan.epoch, plan.term) {
                endorsers.insert(verified.signer());
            }
        }
        (2 * endorsers.intersection(&named).count() > named.len()).then_some((plan, endorsers))
    }

    fn is_newer(&self, epoch: Epoch, term: Term) -> bool {
        self.adopted.as_ref().is_none_or(|a| (epoch, term) > (a.plan.epoch, a.plan.term))
    }

    fn make_room(&mut self) {
        if self.proposals.len() >= PROPOSALS
            && let Some(oldest) = self.proposals.iter().min_by_key(|(_, p)| p.heard).map(|(id, _)| *id)
        {
            self.proposals.remove(&oldest);
        }
    }

    /// Endorses a proposal, refuses it, or leaves it for later.
    fn judge(&mut self, id: PlanId, out: &mut Vec<Action>) {
        let Some(proposal) = self.proposals.get(&id).filter(|p| !p.judged) else { return };
        let Some((plan, _, signer)) = &proposal.plan else { return };
        let (signer, at, heard) = (*signer, (plan.epoch, plan.term), proposal.heard);
        let mine = self.advert.as_ref().is_some_and(|a| !a.devices.is_empty());
        let verdict = self.verdict(plan, signer);
        let late = self.now >= heard + CATCH_UP;
        match verdict {
            Ok(()) => {
                self.proposals.entry(id).or_default().judged = true;
                if mine && !self.leaving {
                    self.endorsed = Some(at);
                    out.push(Action::Remember(at.0, at.1));
                    let endorsement = Endorsement { epoch: at.0, term: at.1, plan: id };
                    out.push(Action::Publish(Gossip::Endorsement(endorsement)));
                }
            }
            // Adverts and deaths travel at their own speed: the view may catch up.
            Err(Reject::SecondPlan) if self.equivocates(id, at, signer) => {
                self.refuse(id, signer, Reject::Equivocation, out);
            }
            Err(Reject::SecondPlan) => self.refuse(id, signer, Reject::SecondPlan, out),
            Err(reason) if late => self.refuse(id, signer, reason, out),
            Err(_) => {}
        }
    }

    /// Whether another plan for the same term is signed by the same peer: two peers may each think it is their turn, but an
    /// honest one never plans twice.
    fn equivocates(&self, id: PlanId, at: (Epoch, Term), signer: PeerId) -> bool {
        self.proposals.iter().any(|(other, proposal)| {
            let same = |(plan, _, by): &(Plan, _, PeerId)| *by == signer && (plan.epoch, plan.term) == at;
            *other != id && proposal.plan.as_ref().is_some_and(same)
        })
    }

    fn refuse(&mut self, id: PlanId, peer: PeerId, reason: Reject, out: &mut Vec<Action>) {
        self.proposals.entry(id).or_default().judged = true;
        out.push(Action::Reject { peer, reason });
    }

    fn verdict(&self, plan: &Plan, signer: PeerId) -> Result<(), Reject> {
        if self.endorsed.is_some_and(|last| (plan.epoch, plan.term) <= last) {
            return Err(Reject::SecondPlan);
        }
        let ranks = self.ranks(plan.epoch);
        let rank = ranks.iter().position(|p| *p == signer).ok_or(Reject::NotCoordinator)? as u32;
        // A later rank may plan when those before it have let their turns pass. Clocks and views differ a little.
        let turn = self.needed_since.map(|since| since + self.config.patience * rank);
        let slack = self.config.patience / 2;
        if rank > 0 && turn.is_none_or(|at| self.now + slack < at) {
            return Err(Reject::NotCoordinator);
        }
        let members = self.planned_members();
        check::feasible(plan, &members).map_err(Reject::Infeasible)?;
        let present = self.adopted.as_ref().filter(|a| check::feasible(&a.plan, &members).is_ok());
        if let Some(present) = present {
            let worth = |plan| planner::value(plan, &members, &self.config.wish);
            let (new, old) = (worth(plan), worth(&present.plan));
            if new < old * (1.0 - self.config.margin) {
                return Err(Reject::Worse);
            }
        }
        Ok(())
    }

    /// Looks again at proposals that did not fit the view when they came.
    pub(super) fn retry_proposals(&mut self, out: &mut Vec<Action>) {
        let open: Vec<PlanId> = self.proposals.iter().filter(|(_, p)| !p.judged).map(|(id, _)| *id).collect();
        for id in open {
            self.judge(id, out);
        }
        // Endorsements may suffice now that some of the living are not any more.
        let complete: Vec<PlanId> =
            self.proposals.iter().filter(|(_, p)| p.plan.is_some()).map(|(id, _)| *id).collect();
        for id in complete {
            self.adopt_if_endorsed(id, out);
        }
    }

    fn adopt_if_endorsed(&mut self, id: PlanId, out: &mut Vec<Action>) {
        let Some(Proposal { plan: Some((plan, proof, proposer)), endorsements, .. }) = self.proposals.get(&id) else {
            return;
        };
        let endorsers = endorsements.keys().copied().collect();
        if !self.is_newer(plan.epoch, plan.term) || !self.carries(plan, &endorsers) {
            return;
        }
        let signed = endorsements.values().map(|(_, signed)| signed.clone()).collect();
        let certificate = Certificate { plan: proof.clone(), endorsements: signed };
        let (plan, mine) = (plan.clone(), *proposer == self.config.me);
        self.adopt(plan, certificate.clone(), out);
        if mine {
            out.push(Action::Publish(Gossip::Certificate(certificate)));
        }
    }

    fn adopt(&mut self, plan: Plan, certificate: Certificate, out: &mut Vec<Action>) {
        let (epoch, term) = (plan.epoch, plan.term);
        self.highest = self.highest.max((epoch, term));
        self.adopted = Some(Adopted { id: plan.id(), peers: plan.peers(), plan: plan.clone(), certificate });
        self.proposals.retain(|_, p| p.plan.as_ref().is_none_or(|(p, _, _)| (p.epoch, p.term) > (epoch, term)));
        self.needed_since = None;
        self.proposed_at = None;
        self.draft = None;
        // What a plan changed must show before it is judged again.
        self.changed = self.now;
        self.next_heartbeat = self.now;
        for member in self.members.values_mut() {
            member.behind_since = None;
        }
        out.push(Action::Adopt(plan));
    }

    /// The coordinator shows the certificate to those who have followed another plan, or none, for a while.
    pub(super) fn convince(&mut self, ranks: &[PeerId], out: &mut Vec<Action>) {
        let Some(adopted) = &self.adopted else { return };
        // The first rank may be who has just come: it has no certificate to show.
        let follows = |peer: &&PeerId| self.members.get(peer).is_some_and(|m| m.heartbeat.plan == Some(adopted.id));
        if ranks.iter().find(follows) != Some(&self.config.me) || self.now < self.next_certificate {
            return;
        }
        let behind = self.members().any(|(peer, m)| *peer != self.config.me && m.behind_since.is_some());
        if behind {
            out.push(Action::Publish(Gossip::Certificate(adopted.certificate.clone())));
            self.next_certificate = self.now + CERTIFICATE_EVERY;
        }
    }
}
