//! Plan flow 1: who is there, by what they say and by their silence, and what follows from it for turns and votes.

use super::{
    Action, Control, Down, Member,
    detector::Sign,
    leader_rank::LeaderRanks,
    liveness::ANSWER,
    member::{Audience, Presence},
    plan_check,
    swapping::{self, SwapDemand},
    voice::LISTENERS,
};
use crate::{Time, cards, members::Members};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tsnode_protocol::{
    Advert, Epoch, Group, GroupId, GroupLoad, Heartbeat, Load, PeerId, PlanId,
    liveness_digest::{Missed, PeerTag},
};

/// How long a peer that is heard may leave its advert unsaid before plans are made without it.
const ADVERT_PATIENCE: Duration = Duration::from_secs(5);
/// How long the dead are remembered, for their sequences.
const REMEMBERED: Duration = Duration::from_secs(600);

/// How often they are looked through.
const CLEARING: Duration = Duration::from_secs(10);

/// What follows from the members and the plan.
#[derive(Clone, Debug)]
pub(super) struct Derived {
    /// The epoch that [`Derived::ranks`] are for.
    pub epoch: Epoch,
    /// Eligible peers in the order of their turns.
    pub ranks: Vec<PeerId>,
    /// Those who listen for all.
    pub listeners: Vec<PeerId>,
    /// Living peers with devices: those a plan is made of, and who decide on it.
    pub electorate: BTreeSet<PeerId>,
    /// Whether a plan is needed that anybody can see: there is none, it does not fit any more, or a peer has no part in it.
    pub pressing: bool,
    /// What is asked for, where not all models are in memory at once.
    pub demand: Option<SwapDemand>,
}

impl Control {
    /// Everyone who is there, this peer included once it has heard itself.
    pub fn members(&self) -> impl Iterator<Item = (&PeerId, &Member)> {
        self.members.iter().filter(|(_, m)| m.is_there()).map(|(peer, m)| (peer, &**m))
    }

    /// Groups whose leaders say that they take requests, with what each has to do. Of the adopted plan's none with a suspect in it,
    /// or with a peer on its way out, unless no other does the same for its model: late is better than never.
    #[must_use]
    pub fn ready(&self) -> BTreeMap<GroupId, Load> {
        self.ready_of(self.plan().map_or(&[][..], |p| &p.groups))
    }

    /// The same where these groups are followed.
    #[must_use]
    pub fn ready_of(&self, groups: &[Group]) -> BTreeMap<GroupId, Load> {
        let mut up = self.said_ready();
        let going = self.going();
        let late = |peer: &PeerId| {
            self.members.get(peer).is_some_and(|m| m.presence == Presence::Suspect) || going.contains(peer)
        };
        let suspect = |g: &&Group| g.stages.iter().any(|s| late(&s.peer));
        let here = groups.iter().filter(|g| up.contains_key(&g.id));
        let (late, fine): (Vec<&Group>, Vec<&Group>) = here.partition(suspect);
        for group in late {
            if fine.iter().any(|f| (f.model, f.phase) == (group.model, group.phase)) {
                up.remove(&group.id);
            }
        }
        up
    }

    /// Every group whose leader says that it takes requests. Who leads a group that no plan has had here is not known.
    #[must_use]
    pub fn said_ready(&self) -> BTreeMap<GroupId, Load> {
        let mut up = BTreeMap::new();
        for (peer, member) in self.members().filter(|(_, m)| !m.heartbeat.leaving) {
            let leads = |g: &&GroupLoad| self.adoption.leaders.get(&g.group).is_none_or(|leader| leader == peer);
            up.extend(member.heartbeat.ready.iter().filter(leads).map(|g| (g.group, g.load)));
        }
        up
    }

    /// Those whose devices plans may be made of: they lend some, do not leave, and not most have cut them off.
    #[must_use]
    pub fn staying(&self) -> BTreeSet<PeerId> {
        let lends = |m: &Member| m.advert.as_ref().is_some_and(|a| !a.devices.is_empty());
        self.planned().filter(|(_, m)| lends(m)).map(|(peer, _)| *peer).collect()
    }

    /// Those whose devices are wanted back: they leave, or lend nothing. What runs on them is for others to go on with.
    #[must_use]
    pub fn going(&self) -> BTreeSet<PeerId> {
        let lends = |m: &Member| m.advert.as_ref().is_none_or(|a| !a.devices.is_empty());
        let going = self.members().filter(|(_, m)| m.heartbeat.leaving || !lends(m));
        going.map(|(peer, _)| *peer).collect()
    }

    /// The epoch this peer is in: what most members say theirs is, or a later one that a plan has brought. A clock that is
    /// wrong by an hour moves nobody else.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.common_epoch.unwrap_or_else(|| self.clock_epoch()).max(self.followed().0)
    }

    /// The epoch by this peer's own clock.
    pub(super) fn clock_epoch(&self) -> Epoch {
        Epoch((self.unix_start + self.now).as_secs() / self.config.epoch_length.as_secs().max(1))
    }

    /// How much a peer's clock is ahead of this one's (minutes), as exactly as epochs tell; none where it has not said.
    #[must_use]
    pub fn clock_ahead(&self, member: &Member) -> Option<i64> {
        let theirs = Some(member.heartbeat.clock).filter(|clock| *clock > Epoch(0))?;
        let epochs = i64::try_from(theirs.0).ok()? - i64::try_from(self.clock_epoch().0).ok()?;
        epochs.checked_mul(i64::try_from(self.config.epoch_length.as_secs() / 60).ok()?)
    }

    /// What it is this peer looks at has changed; what follows from it is found out when it is asked for.
    pub(super) fn view_changed(&mut self) {
        self.turn.planning.view_changed();
        self.derived = None;
    }

    /// The same, and plans wait until it is quiet.
    fn members_changed(&mut self) {
        self.view_changed();
        self.changed = self.now;
    }

    pub(super) fn hear_advert(&mut self, signer: PeerId, advert: Arc<Advert>, out: &mut Vec<Action>) {
        let me = self.config.me;
        let mut advert = self.take_in_settings(advert, out);
        if let Some(own) = &self.own.advert {
            cards::correct(&mut advert, own);
        }
        let Some(member) = self.members.get_mut(&signer) else { return };
        if member.advert.as_deref() != Some(&*advert) {
            // Its first word after a new start may have come before its new addresses, and been answered at the old ones.
            if signer != me && member.advert.as_ref().is_some_and(|a| has_moved(a, &advert)) {
                out.push(Action::PeerMoved(signer));
            }
            // A measured link is no reason to wait; a device that comes or goes is.
            let moved = member.advert.as_ref().is_none_or(|a| a.devices != advert.devices || a.models != advert.models);
            let moved = moved && member.stirs(self.now);
            let only_links = member.advert.as_ref().is_some_and(|old| differ_in_links(old, &advert));
            member.advert = Some(advert);
            if moved {
                self.members_changed();
            } else if only_links {
                self.links_changed();
            } else {
                self.view_changed();
            }
        }
    }

    /// This peer has other models than before, and knows their sizes now whatever others say.
    pub(super) fn correct_sizes(&mut self) {
        let Some(own) = self.own.advert.clone() else { return };
        let mut is_another = false;
        for advert in self.members.values_mut().filter_map(|member| member.advert.as_mut()) {
            is_another |= cards::correct(advert, &own);
        }
        if is_another {
            self.members_changed();
        }
    }

    pub(super) fn hear_heartbeat(&mut self, signer: PeerId, heartbeat: Heartbeat, way: Audience) {
        let behind = heartbeat.plan != self.plan_id();
        let Some(member) = self.members.get_mut(&signer) else { return };
        let turned = heartbeat.leaving != member.heartbeat.leaving;
        let accuses = heartbeat.cut_off != member.heartbeat.cut_off;
        let outlaws = if accuses { self.outlaws() } else { BTreeSet::new() };
        let Some(member) = self.members.get_mut(&signer) else { return };
        let stirs = turned && member.stirs(self.now);
        member.dispute.follows(self.now, behind);
        member.tells(self.now, heartbeat, way);
        if stirs {
            self.members_changed();
        } else if turned {
            self.view_changed();
        }
        if accuses && self.outlaws() != outlaws {
            self.members_changed();
        }
        if behind && signer != self.config.me && self.may_repeat_advert(Duration::ZERO) {
            // It may have started again, too soon to have been missed, and lack the adverts it would judge us by.
            self.advertise_within(Duration::from_secs(1));
        }
    }

    /// A peer with an advert and a fresh word is there.
    pub(super) fn revive(&mut self, peer: PeerId, out: &mut Vec<Action>) {
        let Some(member) = self.members.get_mut(&peer) else { return };
        if !member.is_there() && !member.is_gone() && member.advert.is_some() {
            member.presence = Presence::Present;
            self.members_changed();
            out.push(Action::PeerUp(peer));
            if peer != self.config.me {
                // It may have been here before, and forgotten us.
                self.newcomer();
            }
        }
    }

    /// Finds out who is late, and who is no more.
    pub(super) fn expire(&mut self, out: &mut Vec<Action>) {
        let (now, me, defer, listens) = (self.now, self.config.me, self.defer(), self.listens());
        let (rules, health, listeners) = (&self.config.silence, &self.health, &self.voice.listeners);
        let answer = ANSWER + health.grace() + self.unevenness();
        let backlog = health.backlog();
        let (mut lost, mut bereft, mut missed) = (false, 0, Vec::new());
        for (peer, member) in self.members.iter_mut().filter(|(peer, m)| m.is_there() && **peer != me) {
            let leaves = member.heartbeat.leaving;
            let watched = listens || leaves || member.disconnected || listeners.contains(peer);
            member.watch(watched, now);
            let sign = if watched { member.sign(now, health, rules) } else { Sign::Fine };
            let left = leaves && (member.disconnected || sign == Sign::Dead);
            if !left && (member.is_to_be_called(sign, now, defer) || (listens && member.is_to_be_asked(now))) {
                missed.push(Missed { peer: PeerTag::of(*peer), last: member.last() });
                member.call_heard = Some(now);
            }
            // Whom this peer should hear itself it knows: that one may be late as often as it is.
            let patience = if watched && sign != Sign::Dead { 2 * answer } else { answer };
            let unanswered = member.called.is_some_and(|at| now >= at + patience + backlog);
            if left || member.is_gone() || unanswered {
                member.give_up();
                lost = true;
                bereft += usize::from(!leaves && listeners.contains(peer));
                let reason = match member.is_gone() {
                    _ if member.heartbeat.leaving => Down::Left,
                    true => Down::Gone,
                    false => Down::Silent,
                };
                out.push(Action::PeerDown { peer: *peer, reason });
            } else if sign == Sign::Suspect && member.doubt() {
                out.push(Action::PeerSuspect(*peer));
            }
        }
        if bereft > 0 {
            self.listeners_lost(bereft, defer);
        }
        missed.extend(self.collect_missing(!missed.is_empty()));
        if !missed.is_empty() {
            self.call(missed, out);
        }
        if lost {
            self.members_changed();
        }
        if now >= self.next_clearing {
            self.next_clearing = now + CLEARING;
            self.members.retain(|_, m| m.is_there() || now < m.last_heard + REMEMBERED);
        }
    }

    /// The epoch of most members' clocks, so far as this peer has heard them.
    pub(super) fn count_epochs(&mut self) {
        let mut epochs: Vec<Epoch> = self.members().map(|(_, m)| m.heartbeat.clock).filter(|e| *e > Epoch(0)).collect();
        if epochs.is_empty() {
            return self.common_epoch = None;
        }
        let middle = (epochs.len() - 1) / 2;
        self.common_epoch = Some(*epochs.select_nth_unstable(middle).1);
    }

    /// What follows from the members and the plan.
    pub(super) fn derive(&mut self) -> &Derived {
        let epoch = self.epoch();
        let known = self.derived.take().filter(|d| d.epoch == epoch);
        let mut leader_ranks = std::mem::take(&mut self.leader_ranks);
        let derived = known.unwrap_or_else(|| self.derived_anew(epoch, &mut leader_ranks));
        self.leader_ranks = leader_ranks;
        self.derived.insert(derived)
    }

    fn derived_anew(&self, epoch: Epoch, (turns, listening): &mut (LeaderRanks, LeaderRanks)) -> Derived {
        let members = self.planned_members();
        let lends = |a: &Advert| !a.devices.is_empty();
        let electorate: BTreeSet<PeerId> = members.iter().filter(|(_, a)| lends(a)).map(|(peer, _)| *peer).collect();
        let pressing = match &self.adoption.adopted {
            None => !electorate.is_empty(),
            Some(a) => plan_check::feasible(&a.plan.groups, &members).is_err() || !electorate.is_subset(&a.peers),
        };
        let ranks = self.ranks((epoch, self.plan_id()), turns);
        let listeners = self.listeners(ranks.first().copied(), listening);
        let demand = swapping::demand(&members);
        Derived { epoch, ranks, listeners, electorate, pressing, demand }
    }

    /// The coordinator, and the first of ranks that follow from the epoch alone: these are the same for all, whatever plan
    /// each follows. Where few may plan, others are beside them.
    fn listeners(&self, coordinator: Option<PeerId>, leader_ranks: &mut LeaderRanks) -> Vec<PeerId> {
        let epoch = self.common_epoch.unwrap_or_else(|| self.clock_epoch());
        let all = self.planned().map(|(peer, m)| (*peer, m.is_eligible()));
        let deputies = leader_ranks.order(self.config.swarm, (epoch, None), all);
        let others = deputies.into_iter().filter(|peer| Some(*peer) != coordinator);
        coordinator.into_iter().chain(others).take(LISTENERS).collect()
    }

    /// Eligible peers in the order of their turns in an epoch after a plan.
    pub(super) fn ranks(&self, of: (Epoch, Option<PlanId>), leader_ranks: &mut LeaderRanks) -> Vec<PeerId> {
        let eligible = self.planned().filter(|(_, m)| m.is_eligible()).map(|(peer, _)| (*peer, true));
        leader_ranks.order(self.config.swarm, of, eligible)
    }

    /// Those who are there to stay, and whom not most have cut off.
    pub(super) fn planned(&self) -> impl Iterator<Item = (&PeerId, &Member)> {
        let outlaws = self.outlaws();
        self.members().filter(move |(peer, m)| !m.heartbeat.leaving && !outlaws.contains(*peer))
    }

    /// Whom more than half of the other lenders have cut off, each for what it did to them: no plan is made with them, or by
    /// them. Nobody is believed about a third party, but so many could plan without it anyway.
    fn outlaws(&self) -> BTreeSet<PeerId> {
        let lends = |m: &Member| m.advert.as_ref().is_some_and(|a| !a.devices.is_empty());
        let mut votes: BTreeMap<PeerId, usize> = BTreeMap::new();
        for (_, member) in self.members().filter(|(_, m)| !m.heartbeat.cut_off.is_empty() && lends(m)) {
            for peer in member.heartbeat.cut_off.iter().collect::<BTreeSet<_>>() {
                *votes.entry(*peer).or_default() += 1;
            }
        }
        if votes.is_empty() {
            return BTreeSet::new();
        }
        let lenders: BTreeSet<PeerId> = self.members().filter(|(_, m)| lends(m)).map(|(peer, _)| *peer).collect();
        let others = |peer: &PeerId| lenders.len() - usize::from(lenders.contains(peer));
        votes.into_iter().filter(|(peer, votes)| 2 * votes > others(peer)).map(|(peer, _)| peer).collect()
    }

    /// Adverts of the members that plans may name.
    pub(super) fn planned_members(&self) -> Members<'_> {
        self.planned().filter_map(|(peer, m)| Some((*peer, &**m.advert.as_ref()?))).collect()
    }

    /// Somebody is there whose advert is still on its way: a plan made now would leave it out.
    pub(super) fn awaits_adverts(&self) -> bool {
        let patience = ADVERT_PATIENCE + self.health.backlog();
        let new = |m: &Member| m.advert.is_none() && self.now < m.first_heard + patience;
        self.members.values().any(|m| new(m))
    }

    /// A time that is still to come.
    pub(super) fn to_come(&self, at: Time) -> Option<Time> {
        (at > self.now).then_some(at)
    }
}

/// Whether a peer is nowhere any more where it was.
fn has_moved(before: &Advert, now: &Advert) -> bool {
    !before.data_addresses.is_empty() && !before.data_addresses.iter().any(|a| now.data_addresses.contains(a))
}

/// Whether nothing but measured links makes it another, and what has come of models: plans that fetch are worth something else then.
fn differ_in_links(before: &Advert, now: &Advert) -> bool {
    let Advert {
        name,
        version,
        addresses,
        data_addresses,
        devices,
        models,
        partial: _,
        origins,
        encoders,
        links,
        reachable,
        invites,
        traffic,
        settings,
    } = before;
    (name, version, addresses, data_addresses) == (&now.name, &now.version, &now.addresses, &now.data_addresses)
        && (devices, models, encoders, reachable) == (&now.devices, &now.models, &now.encoders, &now.reachable)
        && origins == &now.origins
        && (invites, traffic, settings) == (&now.invites, &now.traffic, &now.settings)
        // One that goes another way is another link.
        && !links.iter().any(|was| now.links.iter().any(|is| is.to == was.to && is.path != was.path))
}
