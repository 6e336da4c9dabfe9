//! Plan flow 5: certificates, by which those follow a plan who were not there when it was endorsed.

use super::{Proposal, Proposed, is_majority};
use crate::Time;
use crate::control::{Action, Control, Member, Reject, SignedEndorsement, plan_check};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tsnode_protocol::{Endorsement, Gossip, PeerId, Plan, PlanId, gossip::Certificate};

/// Between certificates sent for those who are behind.
const CERTIFICATE_EVERY: Duration = Duration::from_secs(1);

/// A certificate that proves a plan, taken apart.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    proposed: Proposed,
    endorsements: BTreeMap<PeerId, SignedEndorsement>,
    certificate: Arc<Certificate>,
    heard: Time,
}

/// Whether a peer endorses a plan late, and follows it by that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Joins {
    Now,
    /// Once it has heard more, maybe.
    NotYet,
    /// It follows a better one.
    No,
}

impl Control {
    pub(in crate::control) fn hear_certificate(
        &mut self,
        signer: PeerId,
        certificate: Arc<Certificate>,
        out: &mut Vec<Action>,
    ) {
        if self.adoption.adopted.as_ref().is_some_and(|a| a.certificate.plan == certificate.plan) {
            return;
        }
        let now = self.now;
        if self.members.get_mut(&signer).is_some_and(|member| !member.may_prove(now)) {
            return out.push(Action::Reject { peer: signer, reason: Reject::TooManyCertificates });
        }
        let known =
            self.adoption.proposals.values().find(|p| p.plan.as_ref().is_some_and(|p| p.proof == certificate.plan));
        let mut reject = |reason| out.push(Action::Reject { peer: signer, reason });
        let Some(proposed) = self.read(&certificate, known) else {
            return reject(Reject::BadCertificate);
        };
        let plan = &proposed.plan;
        if self.is_far((plan.epoch, plan.term)) {
            return reject(Reject::WrongEpoch);
        }
        if !self.is_newer((plan.epoch, plan.term)) {
            return;
        }
        let Some(endorsements) = self.endorsements(plan, &certificate, known) else {
            return reject(Reject::BadCertificate);
        };
        let endorsers: BTreeSet<PeerId> = endorsements.keys().copied().collect();
        if !is_majority(&endorsers, &proposed.named) {
            return reject(Reject::BadCertificate);
        }
        let heard = self.now;
        self.follow(Shown { proposed, endorsements, certificate, heard }, out);
    }

    /// Follows a plan that a certificate was shown for, as soon as this peer's view lets it.
    fn follow(&mut self, shown: Shown, out: &mut Vec<Action>) {
        let plan = &shown.proposed.plan;
        if !self.is_newer((plan.epoch, plan.term)) {
            return;
        }
        let endorsers: BTreeSet<PeerId> = shown.endorsements.keys().copied().collect();
        if is_majority(&endorsers, &self.derive().electorate) {
            let Shown { proposed, certificate, .. } = shown;
            return self.adopt(proposed.plan, proposed.named, certificate, endorsers, out);
        }
        match self.joins(&shown.proposed.plan) {
            Joins::Now => self.join_in(shown, out),
            // Who has just come has not heard yet what others are and follow: that takes less time than the next certificate.
            Joins::NotYet => self.adoption.shown = Some(shown),
            Joins::No => {}
        }
    }

    /// Looks again at a certificate that came before what it is to be judged by.
    pub(in crate::control) fn retry_certificate(&mut self, out: &mut Vec<Action>) {
        let (now, catch_up) = (self.now, self.catch_up());
        if let Some(shown) = self.adoption.shown.take().filter(|s| now < s.heard + catch_up) {
            self.follow(shown, out);
        }
    }

    /// Whether this peer endorses late what too few endorsed of those who are there. Any peer has a certificate of a plan that
    /// names it alone: whoever follows a better one stays with it, and the dispute is settled by a new plan; who follows none
    /// that is possible goes with most.
    fn joins(&self, plan: &Plan) -> Joins {
        let (me, id) = (self.config.me, plan.id());
        let mut followers: BTreeMap<PlanId, usize> = BTreeMap::new();
        for followed in self.planned().filter(|(peer, _)| **peer != me).filter_map(|(_, m)| m.heartbeat.plan) {
            *followers.entry(followed).or_default() += 1;
        }
        // An old certificate that somebody shows again says nothing of what stands.
        let Some(stands) = followers.get(&id) else { return Joins::NotYet };
        let votes_elsewhere = self.ballot.waits_until(self.chance() / 2).is_some_and(|at| self.to_come(at).is_some());
        let members = self.planned_members();
        if votes_elsewhere || plan_check::feasible(&plan.groups, &members).is_err() {
            return Joins::NotYet;
        }
        match self.standing(&members) {
            Some(standing) if !self.may_replace(plan, standing, &members) => Joins::No,
            None if followers.values().any(|others| others > stands) => Joins::NotYet,
            _ => Joins::Now,
        }
    }

    /// A plan stands that too few of those endorsed who are there now, since some came after it. Where it leaves them out, as a
    /// layout does or whoever would only slow it down, no other follows that would take them in: they endorse it late, each
    /// by its own view, and it takes effect for them by the same majority as for everybody.
    fn join_in(&mut self, Shown { proposed, endorsements, .. }: Shown, out: &mut Vec<Action>) {
        let (id, at) = (proposed.plan.id(), (proposed.plan.epoch, proposed.plan.term));
        let now = self.now;
        let proposal = self.proposal(id);
        (proposal.heard, proposal.judged) = (now, true);
        proposal.plan.get_or_insert(proposed);
        for (peer, endorsement) in endorsements {
            proposal.endorsements.entry(peer).or_insert(endorsement);
        }
        if self.ballot.is_free(at) {
            self.endorse(at, id, out);
        }
        self.adopt_if_endorsed(id, out);
    }

    /// The plan a certificate is for, whom it names, and who proposed it.
    fn read(&self, certificate: &Certificate, known: Option<&Proposal>) -> Option<Proposed> {
        if let Some(proposed) = known.and_then(|k| k.plan.as_ref()) {
            return Some(proposed.clone());
        }
        let verified = certificate.plan.clone().verify(self.config.swarm).ok()?;
        let by = verified.signer();
        match verified.into_parts() {
            (Gossip::Plan(plan), proof) => Some(Proposed { named: plan.peers(), plan, proof, by }),
            _ => None,
        }
    }

    /// Who endorsed the plan, as a certificate proves; signatures that were checked when they came are not checked again.
    fn endorsements(
        &self,
        plan: &Plan,
        of: &Certificate,
        known: Option<&Proposal>,
    ) -> Option<BTreeMap<PeerId, SignedEndorsement>> {
        let id = plan.id();
        let fits = |e: &Endorsement| e.plan == id && (e.epoch, e.term) == (plan.epoch, plan.term);
        let heard: BTreeMap<&[u8; 64], (&PeerId, &SignedEndorsement)> = known
            .into_iter()
            .flat_map(|k| &k.endorsements)
            .map(|(peer, signed)| (signed.1.signature(), (peer, signed)))
            .collect();
        let mut endorsements = BTreeMap::new();
        for signed in &of.endorsements {
            if let Some((peer, known)) = heard.get(signed.signature()).filter(|(_, (_, proof))| proof == signed) {
                endorsements.extend(fits(&known.0).then(|| (**peer, (*known).clone())));
                continue;
            }
            let verified = signed.clone().verify(self.config.swarm).ok()?;
            let signer = verified.signer();
            let (Gossip::Endorsement(e), proof) = verified.into_parts() else { return None };
            endorsements.extend(fits(&e).then_some((signer, (e, proof))));
        }
        Some(endorsements)
    }

    /// The coordinator shows the certificate to those who have followed another plan, or none, for a while.
    pub(in crate::control) fn convince(&mut self, out: &mut Vec<Action>) {
        self.show_certificate(|_| true, out);
    }

    /// The same for those who follow no plan, though who is there changes still: whoever has no part in the plan, and gets
    /// none in the next, need not wait until that is known.
    pub(in crate::control) fn welcome(&mut self, out: &mut Vec<Action>) {
        self.show_certificate(|m| m.heartbeat.plan.is_none(), out);
    }

    fn show_certificate(&mut self, to: impl Fn(&Member) -> bool, out: &mut Vec<Action>) {
        let Some(adopted) = &self.adoption.adopted else { return };
        if self.now < self.adoption.next_certificate {
            return;
        }
        let me = self.config.me;
        if !self.members().any(|(peer, m)| *peer != me && m.dispute.is_behind() && to(m)) {
            return;
        }
        // The first rank may be who has just come: it has no certificate to show.
        let follows = |peer: &&PeerId| self.members.get(peer).is_some_and(|m| m.heartbeat.plan == Some(adopted.id));
        let ranks = self.derived.as_ref().map_or(&[][..], |d| &d.ranks);
        if ranks.iter().find(follows) == Some(&me) {
            out.push(Action::Publish(Gossip::Certificate(adopted.certificate.clone())));
            self.adoption.next_certificate = self.now + CERTIFICATE_EVERY;
        }
    }
}
