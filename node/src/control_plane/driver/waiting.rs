//! How far this peer is, and why it waits.

use super::Driver;
use crate::{data_plane::roster::Adverts, view::Readiness};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tsnode_coordinator::{
    control::{Control, Member},
    fallback::Fallback,
    left_out::{LeftOut, UnusedDevices, left_out, unused_devices},
    lending::Lending,
    planner::live::{Shortfall, shortfalls},
    waiting::{self, NotReady, PeerSighting, PeerStage, WaitingView},
};
use tsnode_protocol::{Advert, Group, GroupId, Load, ModelId, PeerId, Plan, PlanId, codec};

/// What is known of why a peer waits, beside what the control machine knows.
#[derive(Default)]
pub struct Reasons {
    /// Addresses of others that it started with.
    addresses: usize,
    /// The protocol of somebody it could not talk to.
    pub(super) version: Option<u16>,
    /// Which models what is lent cannot hold, by these adverts.
    pub(super) short: (Adverts, Vec<Shortfall>),
    /// By which plan and adverts it was last looked why the plan has nothing for this peer.
    placed: (Option<PlanId>, Adverts),
    /// Why the plan has nothing for what is lent here.
    pub(super) left_out: Option<LeftOut>,
    /// Devices that the plan has nothing for, while it has for others here.
    pub(super) unused: Vec<UnusedDevices>,
}

impl Reasons {
    /// Of a peer that starts with so many addresses of others.
    #[must_use]
    pub fn new(addresses: usize) -> Self {
        Self { addresses, ..Self::default() }
    }
}

impl Driver {
    /// Finds out which models what is lent cannot hold, where one of them has no part in the plan and adverts have changed.
    pub(super) fn add_up(&mut self) {
        let adverts = self.roster.borrow().clone();
        if Arc::ptr_eq(&adverts, &self.reasons.short.0) {
            return;
        }
        // A group with somebody in it who has left serves nobody.
        let is_there = |group: &&Group| group.stages.iter().all(|s| adverts.contains_key(&s.peer));
        let groups = self.control.plan().into_iter().flat_map(|plan| &plan.groups);
        let planned: BTreeSet<ModelId> = groups.filter(is_there).map(|group| group.model).collect();
        let lent = |a: &&Advert| !a.devices.is_empty();
        let lent = adverts.values().filter(lent).flat_map(|a| &a.models);
        let short = if lent.map(|card| card.id).all(|id| planned.contains(&id)) {
            Vec::new()
        } else {
            shortfalls(&adverts.iter().map(|(peer, advert)| (*peer, advert)).collect())
        };
        self.reasons.short = (adverts, short);
    }

    /// Whether this peer lends its devices, and if not why.
    pub(super) fn lending(&self) -> Lending {
        let yields = self.fallback.as_ref().is_some_and(Fallback::yields) && self.owner.lending() == Lending::Lends;
        if yields { Lending::OtherModel } else { self.owner.lending() }
    }

    /// Finds out why the plan has nothing for what is lent here, or for some of it, where it or adverts have changed, and says what is new.
    pub(super) fn find_place(&mut self, adverts: &Adverts) {
        let plan = self.control.plan_id();
        if self.reasons.placed.0 == plan && Arc::ptr_eq(&self.reasons.placed.1, adverts) {
            return;
        }
        self.reasons.placed = (plan, adverts.clone());
        let members = adverts.iter().map(|(peer, advert)| (*peer, advert)).collect();
        let lends = self.lending() == Lending::Lends;
        let (plan, me) = (self.control.plan().filter(|_| lends), self.control.me());
        let why = plan.and_then(|plan| left_out(plan, &members, me));
        let unused = plan.map_or_else(Vec::new, |plan| unused_devices(plan, &members, me));
        let said = self.reasons.left_out.take();
        let why = why.map(|why| why.after(said.clone()));
        if let Some(why) = why.as_ref().filter(|why| said.as_ref() != Some(*why)) {
            tracing::info!(%why, "left out of the plan");
        }
        self.reasons.left_out = why;
        for devices in unused.iter().filter(|devices| !self.reasons.unused.contains(devices)) {
            tracing::info!(why = %devices, "devices left out of the plan");
        }
        self.reasons.unused = unused;
    }

    /// Why no requests are taken here.
    pub(super) fn waits(&self, readiness: &Readiness, lending: Lending) -> Option<NotReady> {
        let (control, me, now) = (&self.control, self.control.me(), self.started.elapsed());
        let stage = match readiness {
            Readiness::Probing => PeerStage::Probing,
            Readiness::Joining | Readiness::Planning => PeerStage::Planless,
            Readiness::Loading => PeerStage::Planned,
            Readiness::Ready => return None,
            Readiness::Leaving => PeerStage::Leaving,
        };
        let lends = |m: &Member| m.advert.as_ref().is_some_and(|a| !a.devices.is_empty() && !a.models.is_empty());
        let seen = |(peer, m): (&PeerId, &Member)| PeerSighting {
            name: m.advert.as_ref().map_or_else(|| peer.short(), |a| a.name.clone()),
            lends: lends(m),
            clock: control.clock_ahead(m),
            silent: now.saturating_sub(m.last_heard),
            plans: control.coordinator() == Some(*peer),
        };
        let others: Vec<PeerSighting> = control.members().filter(|(peer, _)| **peer != me).map(seen).collect();
        let lent = control.members().filter(|(_, m)| lends(m)).filter_map(|(_, m)| m.advert.as_ref());
        let view = WaitingView {
            stage,
            lending,
            opens: self.owner.opens(),
            lends: control.members().any(|(peer, m)| *peer == me && lends(m)),
            plans: control.coordinator() == Some(me),
            others: &others,
            addresses: self.reasons.addresses,
            versions: self.reasons.version.map(|theirs| (theirs, codec::VERSION)),
            short: &self.reasons.short.1,
            models: lent.flat_map(|advert| &advert.models).map(|card| card.id).collect::<BTreeSet<_>>().len(),
        };
        waiting::why(&view)
    }
}

/// How far this peer is, by what it knows of the swarm.
pub(super) fn readiness(
    control: &Control,
    followed: Option<&Plan>,
    up: &BTreeMap<GroupId, Load>,
    leaving: bool,
) -> Readiness {
    if leaving {
        return Readiness::Leaving;
    }
    match followed {
        None if control.members().count() < 2 => Readiness::Joining,
        None => Readiness::Planning,
        Some(plan) if plan.groups.iter().any(|g| up.contains_key(&g.id)) => Readiness::Ready,
        Some(_) => Readiness::Loading,
    }
}
