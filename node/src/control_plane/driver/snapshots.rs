//! What others in this process look at: the swarm as HTTP shows it, what requests are routed by, who is where.

use super::{Driver, waiting::readiness};
use crate::{
    data_plane::roster::Adverts,
    view::{CutOffView, PeerView, UnusedDevicesView, is_called},
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tsnode_coordinator::{
    cards,
    control::{Member, Presence},
    default_model::default_model,
    gateway::View,
    settings::SwarmSettings,
    trust::CutOff,
    witnesses::Witnesses,
};
use tsnode_protocol::{Advert, GroupId, Load, ModelId, PeerId};

impl Driver {
    /// Replaces the snapshots others look at, where they have changed.
    pub(super) fn show(&mut self, leaving: bool) {
        self.add_up();
        let adverts = self.adverts();
        let me = self.control.me();
        self.invites.heard(adverts.iter().filter(|(peer, _)| **peer != me).map(|(peer, a)| (*peer, &a.invites[..])));
        replace(&self.going, self.control.going());
        let followed = self.changeover.routed();
        replace(&self.chosen, followed.map_or_else(Vec::new, |plan| plan.chosen.clone()));
        let up = self.control.ready_of(followed.map_or(&[][..], |plan| &plan.groups));
        let (up, reachable) = self.served(up, &adverts);
        let changed = self.roster.send_if_modified(|old| {
            let changed = !Arc::ptr_eq(old, &adverts);
            old.clone_from(&adverts);
            changed
        });
        self.find_place(&adverts);
        self.show_gateway(&up, reachable);
        self.show_everyone(&up, &adverts, changed, leaving);
    }

    /// Everybody's advert: those that are shown already, where nobody says another. This is asked several times a second, and adverts
    /// have all links: that they are the same is seen by where they are, since whoever says another has another.
    fn adverts(&mut self) -> Adverts {
        let said = || self.control.members().filter_map(|(peer, m)| Some((*peer, m.advert.as_ref()?)));
        let is_shown = said().count() == self.shown.len()
            && self
                .shown
                .iter()
                .zip(said())
                .all(|((one, shown), (other, now))| *one == other && Arc::ptr_eq(shown, now));
        if is_shown {
            return self.roster.borrow().clone();
        }
        self.shown = said().map(|(peer, advert)| (peer, advert.clone())).collect();
        Arc::new(self.shown.iter().map(|(peer, advert)| (*peer, (**advert).clone())).collect())
    }

    /// What requests are routed by.
    fn show_gateway(&self, up: &BTreeMap<GroupId, Load>, reachable: Adverts) {
        let (followed, barred) = (self.changeover.routed(), self.trust.barred(self.started.elapsed()));
        self.routes.send_if_modified(|old| {
            let same_plan = old.plan.as_ref() == followed;
            let same_adverts = Arc::ptr_eq(&old.adverts, &reachable) || old.adverts == reachable;
            let (witnesses, short) = (self.witnesses(same_adverts.then_some(&*old.witnesses)), self.short());
            let same_groups = same_plan && old.up == *up && *old.short == short;
            let changed = !same_groups || !same_adverts || *old.barred != barred || *old.witnesses != witnesses;
            if changed {
                let (barred, witnesses, short) = (Arc::new(barred), Arc::new(witnesses), Arc::new(short));
                *old = View { plan: followed.cloned(), up: up.clone(), adverts: reachable, barred, witnesses, short };
            }
            changed
        });
    }

    /// Peers whose models share pages that are short.
    fn short(&self) -> BTreeSet<PeerId> {
        let said = self.control.members();
        View::short_of(said.filter_map(|(peer, m)| Some((*peer, m.advert.as_deref()?, &m.heartbeat.load))))
    }

    /// What other gateways say of groups whose claims are in doubt; `before` is who they were, where adverts are the same.
    fn witnesses(&self, before: Option<&Witnesses>) -> Witnesses {
        let is_other = |peer: &PeerId| *peer != self.control.me() && !self.trust.is_cut_off(*peer);
        let others = self.control.members().filter(|(peer, _)| is_other(peer));
        let others = others.filter_map(|(peer, m)| Some((*peer, m.advert.as_deref()?, &m.heartbeat)));
        match before {
            Some(before) => before.saying(others.map(|(peer, _, heartbeat)| (peer, heartbeat))),
            None => Witnesses::of(others),
        }
    }

    /// The swarm as HTTP shows it.
    fn show_everyone(
        &self,
        up: &BTreeMap<GroupId, Load>,
        adverts: &BTreeMap<PeerId, Advert>,
        changed: bool,
        leaving: bool,
    ) {
        let (control, now) = (&self.control, self.started.elapsed());
        let name = |peer: PeerId| adverts.get(&peer).map(|a| a.name.clone()).unwrap_or_default();
        let cut_off = |(id, cut): (PeerId, &CutOff)| CutOffView {
            id,
            name: name(id),
            reason: cut.reason.to_string(),
            offences: cut.offences,
            seconds_left: cut.until.saturating_sub(now).as_secs_f64(),
        };
        let cut_off = self.trust.cut_off().map(cut_off).collect();
        let links = self.data_plane.measured();
        let ages = links.iter().map(|m| (m.link.to, m.age.as_secs_f64())).collect();
        let ends = links.iter().filter_map(|m| Some((m.link.to, m.at?))).collect();
        let readiness = readiness(control, self.changeover.routed().map(|plan| &**plan), up, leaving);
        let lending = self.lending();
        let left_out = self.reasons.left_out.as_ref().map(ToString::to_string);
        let unused_devices = self.reasons.unused.iter().map(UnusedDevicesView::from).collect();
        let waiting = self.waits(&readiness, lending);
        let settings = SwarmSettings::of(control.members().filter_map(|(_, m)| m.advert.as_deref())).said();
        let spot_checks = self.offence_receiver.spot_checked();
        let groups = self.changeover.routed().map_or(&[][..], |plan| &plan.groups);
        let loaded = groups.iter().filter(|group| up.contains_key(&group.id)).map(|group| group.model).collect();
        self.view.send_modify(|view| {
            view.spot_checks = spot_checks;
            view.readiness = readiness;
            view.waiting = waiting;
            view.lending = lending;
            view.left_out = left_out;
            view.unused_devices = unused_devices;
            view.settings = settings;
            view.epoch = control.epoch();
            view.term = control.term();
            view.coordinator = control.coordinator();
            view.plan_id = control.plan_id();
            if view.plan.as_ref() != control.plan() {
                view.plan = control.plan().cloned();
            }
            view.ready_groups = up.keys().copied().collect();
            let members: Vec<SeenMember> =
                control.members().filter_map(|(peer, m)| Some((*peer, m, adverts.get(peer)?))).collect();
            if !view.peers.iter().map(|peer| peer.id).eq(members.iter().map(|(peer, ..)| *peer)) {
                view.peers = members.iter().map(|seen| peer_view(*seen, now)).collect();
            }
            view.peers.iter_mut().zip(members).for_each(|(shown, seen)| look_again(shown, seen, changed, now));
            view.link_ages = ages;
            view.link_ends = ends;
            view.cut_off = cut_off;
            view.models = unique(adverts, |a| &a.models, |card| (card.name.clone(), card.id));
            let agreed = cards::all_agreed(adverts.values());
            for card in &mut view.models {
                card.shape = agreed.get(&card.id).map_or(card.shape, |agreed| agreed.shape);
            }
            view.encoders = unique(adverts, |a| &a.encoders, |card| (card.name.clone(), card.id));
            view.default_model = default_for(self.default_model.as_deref(), adverts);
            view.loaded = loaded;
            view.short.clone_from(&self.reasons.short.1);
            view.addresses.clone_from(&self.invite.addresses);
        });
    }

    /// What requests may be routed to: nothing that a peer has a part in which is cut off.
    fn served(&self, mut up: BTreeMap<GroupId, Load>, known: &Adverts) -> (BTreeMap<GroupId, Load>, Adverts) {
        if self.trust.cut_off().next().is_none() {
            return (up, known.clone());
        }
        let plans = || self.changeover.routed().map(|plan| &**plan).into_iter().chain(self.control.plan());
        let group = |id: &GroupId| plans().find_map(|plan| plan.group(*id));
        let is_sound =
            |id: &GroupId| group(id).is_some_and(|g| !g.stages.iter().any(|s| self.trust.is_cut_off(s.peer)));
        up.retain(|id, _| is_sound(id));
        let mut reachable = (**known).clone();
        reachable.retain(|peer, _| !self.trust.is_cut_off(*peer));
        (up, Arc::new(reachable))
    }
}

/// Replaces what others hold, unless it is the same.
fn replace<T: PartialEq>(held: &watch::Sender<Arc<T>>, new: T) {
    held.send_if_modified(|old| {
        let changed = **old != new;
        if changed {
            *old = Arc::new(new);
        }
        changed
    });
}

/// What requests that name no model get here: what the owner wants while somebody has it, else what they get everywhere.
fn default_for(wanted: Option<&str>, adverts: &BTreeMap<PeerId, Advert>) -> Option<ModelId> {
    let mut cards = adverts.values().flat_map(|advert| &advert.models);
    let wanted = wanted.and_then(|name| cards.find(|card| is_called(card, name)));
    wanted.or_else(|| default_model(adverts.values())).map(|card| card.id)
}

/// A peer that has said what it is, as it is known here.
type SeenMember<'a> = (PeerId, &'a Member, &'a Advert);

fn peer_view((peer, member, advert): SeenMember<'_>, now: Duration) -> PeerView {
    PeerView {
        id: peer,
        advert: advert.clone(),
        load: member.heartbeat.load,
        groups: member.heartbeat.ready.clone(),
        silent_for: now.saturating_sub(member.last_heard).as_secs_f64(),
        silent: member.presence == Presence::Suspect,
        plan: member.heartbeat.plan,
        leaving: member.heartbeat.leaving,
    }
}

/// What has changed of it: adverts are long, and seldom others.
fn look_again(shown: &mut PeerView, (_, member, advert): SeenMember<'_>, changed: bool, now: Duration) {
    if changed && shown.advert != *advert {
        shown.advert = advert.clone();
    }
    if shown.groups != member.heartbeat.ready {
        shown.groups.clone_from(&member.heartbeat.ready);
    }
    shown.load = member.heartbeat.load;
    shown.silent_for = now.saturating_sub(member.last_heard).as_secs_f64();
    shown.silent = member.presence == Presence::Suspect;
    (shown.plan, shown.leaving) = (member.heartbeat.plan, member.heartbeat.leaving);
}

/// What adverts name, each once, in the order of `key`.
fn unique<T: Clone, K: Ord>(
    adverts: &BTreeMap<PeerId, Advert>,
    of: impl Fn(&Advert) -> &Vec<T>,
    key: impl Fn(&T) -> K,
) -> Vec<T> {
    let mut named = BTreeMap::new();
    for one in adverts.values().flat_map(of) {
        named.entry(key(one)).or_insert_with(|| one.clone());
    }
    named.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_coordinator::sample;
    use tsnode_protocol::ModelCard;

    #[test]
    fn the_owner_chooses_what_a_request_without_a_name_gets_among_those_there_are() {
        let lends = |n: u8, name: &str, layer_bytes| {
            let mut card = ModelCard { id: ModelId([n; 16]), name: name.into(), ..sample::card() };
            card.shape.layer_bytes = layer_bytes;
            (PeerId([n; 32]), sample::lends(0, card))
        };
        let two = BTreeMap::from([lends(1, "small", 1 << 20), lends(2, "large", 100 << 20)]);
        let default = |wanted| default_for(wanted, &two).unwrap().0[0];
        assert_eq!((default(None), default(Some("small")), default(Some("large"))), (2, 1, 2));
        let id = ModelId([1; 16]).to_string();
        assert_eq!(default(Some(&id)), 1);
        assert_eq!(default(Some("gone")), 2, "a request is answered though nobody has what its peer would have");
        assert_eq!(default_for(Some("small"), &BTreeMap::new()), None);
    }
}
