//! Plan flow 2: what this peer says of itself, and when it says it anew.

use super::Driver;
use crate::store::INVITE_FILE;
use libp2p::{Multiaddr, multiaddr::Protocol};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tsnode_coordinator::{control::Event, planner::fetching};
use tsnode_protocol::{Advert, Plan};

impl Driver {
    /// Addresses are known: the invite can be written, and the advert says where the data plane is.
    pub(super) fn listening(&mut self, addresses: Vec<String>) -> Option<Event> {
        self.invite.addresses = addresses.clone();
        let text = self.invite.to_string();
        if let Err(error) = self.store.write_file(INVITE_FILE, &format!("{text}\n")) {
            tracing::warn!(%error, "invite not written");
        }
        let data = data_addresses(&addresses, self.data_port);
        self.data_plane.listens_at(&data);
        self.advertise(|advert| {
            advert.addresses = addresses;
            advert.data_addresses = data;
        })
    }

    /// Changes the advert, and says it anew where that makes it another.
    pub(super) fn advertise(&mut self, change: impl FnOnce(&mut Advert)) -> Option<Event> {
        let before = self.advert.clone();
        change(&mut self.advert);
        (self.advert != before).then(|| Event::Advertise(self.said()))
    }

    /// The advert as others hear it.
    pub(super) fn said(&self) -> Advert {
        let mut advert = self.advert.clone();
        if self.fallback.as_ref().is_some_and(|fallback| !fallback.lends()) {
            (advert.models, advert.devices) = (Vec::new(), Vec::new());
        }
        let Advert { models, partial, origins, .. } = &mut advert;
        partial.retain(|partial| models.iter().any(|card| card.id == partial.model));
        origins.retain(|origin| models.iter().any(|card| card.id == origin.model));
        match &self.faults {
            Some(faults) => faults.borrow().boasted(advert),
            None => advert,
        }
    }

    /// Lends the model inside the program only where no other is served.
    pub(super) fn fall_back(&mut self) -> Option<Event> {
        let (now, me) = (self.started.elapsed(), self.control.me());
        let others = self.control.members().filter(|(peer, _)| **peer != me).filter_map(|(_, m)| m.advert.as_deref());
        let fallback = self.fallback.as_mut()?;
        let (changed, lends) = (fallback.look(now, others), fallback.lends());
        changed.then(|| {
            tracing::info!(lends, "the embedded model is lent only where no other is served");
            Event::Advertise(self.said())
        })
    }

    /// Says what is here of models that are not here whole, when that has changed.
    pub(super) fn hold(&mut self) -> Option<Event> {
        let partial = self.stocks.partial();
        self.advertise(|advert| advert.partial = partial)
    }

    /// How long hosts fetch for a plan, by what is known of them.
    pub(super) fn fetching_for(&self, plan: &Plan) -> Duration {
        let members = self.control.members();
        let members = members.filter_map(|(peer, m)| Some((*peer, m.advert.as_deref()?))).collect();
        fetching::patience(plan, &members)
    }

    /// Says which invites are out, when that has changed.
    pub(super) fn invite(&mut self) -> Option<Event> {
        let notices = self.invites.notices();
        self.advertise(|advert| advert.invites = notices)
    }

    /// Says its advert anew where a testnet has it say something else.
    pub(super) fn lie(&mut self) -> Option<Event> {
        let boast = self.faults.as_mut()?.borrow_and_update().boast;
        (std::mem::replace(&mut self.boast, boast) != boast).then(|| Event::Advertise(self.said()))
    }
}

/// The data plane's place at every IP address the control plane has.
fn data_addresses(addresses: &[String], port: u16) -> Vec<SocketAddr> {
    let ip = |text: &String| {
        let address: Multiaddr = text.parse().ok()?;
        if address.iter().any(|part| part == Protocol::P2pCircuit) {
            // That is its relay's.
            return None;
        }
        address.iter().find_map(|part| match part {
            Protocol::Ip4(ip) => Some(IpAddr::V4(ip)),
            Protocol::Ip6(ip) => Some(IpAddr::V6(ip)),
            _ => None,
        })
    };
    let mut ips: Vec<IpAddr> = Vec::new();
    for ip in addresses.iter().filter_map(ip) {
        if !ips.contains(&ip) {
            ips.push(ip);
        }
    }
    // The host's own address helps nobody elsewhere, unless there is no other.
    if ips.iter().any(|ip| !ip.is_loopback()) {
        ips.retain(|ip| !ip.is_loopback());
    }
    ips.into_iter().map(|ip| SocketAddr::new(ip, port)).collect()
}
