//! Plan flow 5: proposals, endorsements, and the one adopted plan.

mod certificates;

use super::{Action, Control, Reject, SignedEndorsement, leader_rank::LeaderRanks, plan_check};
use crate::{Time, members::Members};
use certificates::Shown;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tsnode_protocol::{
    Endorsement, Epoch, Gossip, GroupId, PeerId, Plan, PlanId, Signed, Term, gossip::Certificate, limits,
};

/// Proposals kept: those of a few terms, by a few impatient ranks.
const PROPOSALS: usize = 64;
/// How long a proposal that does not fit this peer's view yet may wait for the view to catch up.
const CATCH_UP: Duration = Duration::from_secs(3);
/// Epochs a plan may be ahead of most members'.
const EPOCHS_AHEAD: u64 = 1;
/// The same where somebody follows a plan of such an epoch: two hours, for clocks that are wrong by one.
pub(super) const FAR_EPOCHS: u64 = 12;
/// After so many turns without a plan that is needed, any epoch will do that is not far.
const STUCK: u32 = 4;
/// Terms a plan may be ahead of the last one heard of: nobody can use them all up.
pub(super) const TERMS_AHEAD: u32 = 1024;

/// Plans heard of, and the one in force.
#[derive(Debug, Default)]
pub(super) struct Adoption {
    pub adopted: Option<Adopted>,
    /// Who leads the groups of the plan in force, of the one before it, and of those before whose groups somebody says take requests.
    pub leaders: BTreeMap<GroupId, PeerId>,
    proposals: BTreeMap<PlanId, Proposal>,
    /// A certificate that this peer could not judge yet.
    shown: Option<Shown>,
    /// When the certificate of the plan in force may be shown again.
    next_certificate: Time,
}

/// The plan in force, and the proof that it is.
#[derive(Clone, Debug)]
pub(super) struct Adopted {
    pub plan: Arc<Plan>,
    pub id: PlanId,
    pub peers: BTreeSet<PeerId>,
    certificate: Arc<Certificate>,
    endorsers: BTreeSet<PeerId>,
}

impl Adopted {
    /// One more endorsement for those who come late: they may count more peers than who adopted it first.
    fn add(&mut self, signer: PeerId, endorsement: Endorsement, proof: Signed<Gossip>) {
        let fits = (endorsement.epoch, endorsement.term) == (self.plan.epoch, self.plan.term);
        if fits && self.endorsers.insert(signer) && self.endorsers.len() <= limits::GROUPS * limits::STAGES {
            Arc::make_mut(&mut self.certificate).endorsements.push(proof);
        }
    }
}

/// A plan heard of, and who has endorsed it.
#[derive(Clone, Debug, Default)]
struct Proposal {
    /// Endorsements may come before the plan.
    plan: Option<Proposed>,
    endorsements: BTreeMap<PeerId, SignedEndorsement>,
    heard: Time,
    judged: bool,
}

/// What was proposed.
#[derive(Clone, Debug)]
struct Proposed {
    plan: Arc<Plan>,
    named: BTreeSet<PeerId>,
    proof: Signed<Gossip>,
    by: PeerId,
}

impl Control {
    pub(super) fn hear_plan(&mut self, by: PeerId, plan: Arc<Plan>, proof: Signed<Gossip>, out: &mut Vec<Action>) {
        let at = (plan.epoch, plan.term);
        if self.is_far(at) {
            return out.push(Action::Reject { peer: by, reason: Reject::WrongEpoch });
        }
        self.ballot.heard_of(at);
        if !self.is_newer(at) {
            return;
        }
        let (id, now) = (plan.id(), self.now);
        if self.members.get_mut(&by).is_some_and(|member| !member.dispute.proposes(at, id)) {
            return out.push(Action::Reject { peer: by, reason: Reject::SecondPlan });
        }
        let proposal = self.proposal(id);
        proposal.heard = now;
        proposal.plan = Some(Proposed { named: plan.peers(), plan, proof, by });
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
        if let Some(adopted) = self.adoption.adopted.as_mut().filter(|a| a.id == endorsement.plan) {
            return adopted.add(signer, endorsement, proof);
        }
        if !self.is_newer((endorsement.epoch, endorsement.term)) {
            return;
        }
        let now = self.now;
        let proposal = self.proposal(endorsement.plan);
        if proposal.plan.is_none() {
            proposal.heard = now;
        }
        proposal.endorsements.insert(signer, (endorsement, proof));
        self.adopt_if_endorsed(endorsement.plan, out);
    }

    fn is_newer(&self, at: (Epoch, Term)) -> bool {
        self.adoption.adopted.is_none() || at > self.followed()
    }

    /// The proposal of that name; a new one may push out the one that has waited longest, a name of which no plan was heard before a
    /// plan: anybody can endorse names that he makes up.
    fn proposal(&mut self, id: PlanId) -> &mut Proposal {
        let proposals = &mut self.adoption.proposals;
        let age = |(_, p): &(&PlanId, &Proposal)| (p.plan.is_some(), p.heard);
        if !proposals.contains_key(&id)
            && proposals.len() >= PROPOSALS
            && let Some(oldest) = proposals.iter().min_by_key(age).map(|(id, _)| *id)
        {
            proposals.remove(&oldest);
        }
        proposals.entry(id).or_default()
    }

    /// How long what does not fit this peer's view waits for it: on a full computer as much longer as all else.
    fn catch_up(&self) -> Duration {
        CATCH_UP + self.health.backlog()
    }

    /// Endorses a proposal, refuses it, or leaves it for later.
    fn judge(&mut self, id: PlanId, out: &mut Vec<Action>) {
        let Some(proposal) = self.adoption.proposals.get(&id).filter(|p| !p.judged) else { return };
        let Some(Proposed { plan, by, .. }) = &proposal.plan else { return };
        // Another one was endorsed just now: it may have its chance before votes are split.
        if let Some(free) = self.ballot.waits_until(self.chance() / 2).and_then(|at| self.to_come(at)) {
            self.next_look = self.next_look.min(free);
            return;
        }
        let (plan, by, heard) = (plan.clone(), *by, proposal.heard);
        let verdict = self.verdict(&plan, by);
        let late = self.now >= heard + self.catch_up();
        match verdict {
            Ok(()) => {
                self.proposal(id).judged = true;
                self.endorse((plan.epoch, plan.term), id, out);
            }
            Err(Reject::Late) => self.refuse(id, by, Reject::Late, out),
            // Adverts and deaths travel at their own speed: the view may catch up.
            Err(reason) if late => self.refuse(id, by, reason, out),
            Err(_) => {}
        }
    }

    /// Endorses a plan, if this peer lends anything.
    fn endorse(&mut self, (epoch, term): (Epoch, Term), plan: PlanId, out: &mut Vec<Action>) {
        if self.own.lends() && !self.own.leaving {
            self.ballot.endorse(self.now, (epoch, term));
            self.remember((epoch, term), out);
            out.push(Action::Publish(Gossip::Endorsement(Endorsement { epoch, term, plan })));
        }
    }

    /// An (epoch, term) is used up, also for this peer's next life.
    pub(super) fn remember(&mut self, at: (Epoch, Term), out: &mut Vec<Action>) {
        if self.ballot.remember(at) {
            out.push(Action::Remember(at.0, at.1));
        }
    }

    fn refuse(&mut self, id: PlanId, peer: PeerId, reason: Reject, out: &mut Vec<Action>) {
        self.proposal(id).judged = true;
        out.push(Action::Reject { peer, reason });
    }

    fn verdict(&mut self, plan: &Plan, by: PeerId) -> Result<(), Reject> {
        if !self.ballot.is_free((plan.epoch, plan.term)) {
            return Err(Reject::Late);
        }
        self.is_its_turn(plan, by)?;
        let members = self.planned_members();
        plan_check::feasible(&plan.groups, &members).map_err(Reject::Infeasible)?;
        match self.standing(&members) {
            Some(standing) if !self.may_replace(plan, standing, &members) => return Err(Reject::Worse),
            _ => {}
        }
        Ok(())
    }

    /// The plan in force, where it is possible still.
    fn standing(&self, members: &Members<'_>) -> Option<&Plan> {
        let standing = self.adoption.adopted.as_ref().map(|a| &*a.plan);
        standing.filter(|plan| plan_check::feasible(&plan.groups, members).is_ok())
    }

    /// Whether a plan is worth as much as the one that stands, but for the margin, or has a model in it whose turn has come.
    fn may_replace(&self, plan: &Plan, standing: &Plan, members: &Members<'_>) -> bool {
        let worth = |plan| self.config.planner.value(plan, members, &self.config.wish);
        // How steps are formed is chosen by what was replayed: groups are held against each other by what it is now.
        let plan = &Plan { chosen: standing.chosen.clone(), ..plan.clone() };
        let is_worse = worth(plan) < worth(standing) * (1.0 - self.config.margin);
        !is_worse || self.is_turn(plan, standing, members)
    }

    /// A later rank may plan when those before it have let their turns pass. Clocks and views differ a little.
    fn is_its_turn(&mut self, plan: &Plan, by: PeerId) -> Result<(), Reject> {
        let epoch = plan.epoch;
        let others = self.members().filter(|(peer, m)| **peer != by && m.heartbeat.plan.is_some());
        let latest = others.map(|(_, m)| m.heartbeat.epoch).max().unwrap_or_default();
        // What it has endorsed in before is no news to a peer.
        let latest = latest.max(self.ballot.epoch());
        // Some may have endorsed in an epoch that others' clocks never were in: better a late epoch than no plan.
        let stuck = self.turn.needed_since.is_some_and(|since| self.now > since + self.config.patience * STUCK);
        if epoch.0 > self.epoch().0.saturating_add(EPOCHS_AHEAD) && epoch > latest && !stuck {
            return Err(Reject::WrongEpoch);
        }
        let place = |ranks: &[PeerId]| ranks.iter().position(|p| *p == by);
        // Where the swarm was in parts, each part's turns follow from its own plan; one that nobody follows has none.
        let mine = self.plan_id();
        let followed = self.members().any(|(peer, m)| *peer != by && m.heartbeat.plan == plan.parent);
        let last = if followed { plan.parent } else { mine };
        let here = self.derive();
        let rank = match (here.epoch, mine) == (epoch, last) {
            true => place(&here.ranks),
            false => place(&self.ranks((epoch, last), &mut LeaderRanks::default())),
        };
        let rank = rank.ok_or(Reject::NotCoordinator)? as u32;
        let turn = self.turn.needed_since.map(|since| since + self.config.patience * rank);
        let slack = self.config.patience / 2;
        if rank > 0 && turn.is_none_or(|at| self.now + slack < at) {
            return Err(Reject::NotCoordinator);
        }
        Ok(())
    }

    /// Looks again at proposals that did not fit the view when they came.
    pub(super) fn retry_proposals(&mut self, out: &mut Vec<Action>) {
        let open: Vec<PlanId> = self.adoption.proposals.iter().filter(|(_, p)| !p.judged).map(|(id, _)| *id).collect();
        for id in open {
            self.judge(id, out);
        }
        // Endorsements may suffice now that some of the living are not any more.
        let complete: Vec<PlanId> =
            self.adoption.proposals.iter().filter(|(_, p)| p.plan.is_some()).map(|(id, _)| *id).collect();
        for id in complete {
            self.adopt_if_endorsed(id, out);
        }
    }

    fn adopt_if_endorsed(&mut self, id: PlanId, out: &mut Vec<Action>) {
        // Counting comes before comparing: a large swarm's endorsements come one by one.
        let enough = |p: &&Proposal| p.plan.as_ref().is_some_and(|p2| 2 * p.endorsements.len() > p2.named.len());
        if self.adoption.proposals.get(&id).filter(enough).is_none() {
            return;
        }
        self.derive();
        let (Some(proposal), Some(derived)) = (self.adoption.proposals.get(&id), &self.derived) else { return };
        let Some(Proposed { plan, named, proof, by }) = &proposal.plan else { return };
        let fits = |e: &Endorsement| (e.epoch, e.term) == (plan.epoch, plan.term);
        if 2 * proposal.endorsements.len() <= derived.electorate.len() || !self.is_newer((plan.epoch, plan.term)) {
            return;
        }
        let valid = || proposal.endorsements.iter().filter(|(_, (e, _))| fits(e));
        let endorsers: BTreeSet<PeerId> = valid().map(|(peer, _)| *peer).collect();
        if !is_majority(&endorsers, named) || !is_majority(&endorsers, &derived.electorate) {
            return;
        }
        let endorsements = valid().map(|(_, (_, signed))| signed.clone()).collect();
        let certificate = Arc::new(Certificate { plan: proof.clone(), endorsements });
        let (plan, named, mine) = (plan.clone(), named.clone(), *by == self.config.me);
        self.adopt(plan, named, certificate.clone(), endorsers, out);
        if mine {
            out.push(Action::Publish(Gossip::Certificate(certificate)));
        }
    }

    fn adopt(
        &mut self,
        plan: Arc<Plan>,
        peers: BTreeSet<PeerId>,
        certificate: Arc<Certificate>,
        endorsers: BTreeSet<PeerId>,
        out: &mut Vec<Action>,
    ) {
        let at = (plan.epoch, plan.term);
        self.ballot.heard_of(at);
        let astray: Vec<PeerId> = self.members().filter(|(_, m)| self.is_astray(m)).map(|(peer, _)| *peer).collect();
        for peer in astray {
            self.members.entry(peer).and_modify(|m| m.dispute.brought_back());
        }
        self.note_leaders(&plan);
        self.adoption.adopted = Some(Adopted { id: plan.id(), peers, plan: plan.clone(), certificate, endorsers });
        self.adoption.proposals.retain(|_, p| p.plan.as_ref().is_none_or(|p| (p.plan.epoch, p.plan.term) > at));
        self.turn.needed_since = None;
        self.turn.proposed_at = None;
        self.ballot.settle();
        self.view_changed();
        // What a plan changed must show before it is judged again.
        self.changed = self.now;
        for member in self.members.values_mut() {
            member.dispute.plan_changed();
        }
        out.push(Action::Adopt(plan));
    }

    /// A plan takes effect: its leaders speak for its groups from now on. Groups of plans before may be followed until these are up.
    fn note_leaders(&mut self, plan: &Plan) {
        let ready = self.said_ready();
        let before: BTreeSet<GroupId> =
            self.adoption.adopted.iter().flat_map(|a| a.plan.groups.iter().map(|group| group.id)).collect();
        self.adoption.leaders.retain(|group, _| ready.contains_key(group) || before.contains(group));
        self.adoption.leaders.extend(plan.groups.iter().filter_map(|group| Some((group.id, group.leader()?))));
    }
}

/// Whether more than half of `all` are among them.
fn is_majority(some: &BTreeSet<PeerId>, all: &BTreeSet<PeerId>) -> bool {
    2 * some.intersection(all).count() > all.len()
}
