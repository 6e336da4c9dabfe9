//! Requests' place in a scenario: clients come while it runs, and at its end everybody is served.

use super::{Effect, Item, LOOK, Planted, Requests, Surroundings};
use crate::simulation::{Violation, World};
use std::time::Duration;

/// How long it may take after agreement until a client of any honest peer is served whole, should it ask again when told to.
pub const SERVED: Duration = Duration::from_secs(20);
/// How long requests may take to end when nobody asks any more: a gateway waits a minute for a group to go on with one, and a
/// minute for a sign of progress.
pub const ENDED: Duration = Duration::from_secs(150);

impl World {
    /// Clients come from now on, so many a second.
    pub fn let_clients_come(&mut self, seed: u64, rate: f64, planted: Option<Planted>) {
        self.requests = Some(Box::new(Requests::new(seed, rate, planted)));
        self.request(Item::Look);
        self.request(Item::Asks);
    }

    /// Something happens to requests.
    pub(in crate::simulation) fn request(&mut self, item: Item) {
        self.of_requests(|requests, around| requests.happens(around, item));
    }

    fn of_requests(&mut self, what: impl FnOnce(&mut Requests, Surroundings<'_>)) {
        let Some(mut requests) = self.requests.take() else { return };
        what(&mut requests, Surroundings { now: self.now, peers: &self.peers, net: &self.net, numbers: &self.numbers });
        let effects = std::mem::take(&mut requests.out);
        if let Some(Violation { at, sentence, what }) = requests.broken.take() {
            self.checks.break_off(at, sentence, what);
        }
        self.checks.figures.requests = requests.tally;
        self.requests = Some(requests);
        for effect in effects {
            match effect {
                Effect::At(at, item) => self.put_request(at, item),
                Effect::Tell(n, event) => self.tell(n, event),
            }
        }
    }

    /// Nobody else comes but one client to each honest peer, who asks again when told to: all are to be served soon, and whatever
    /// was asked for is to end.
    pub(in crate::simulation) fn serve_everybody(&mut self) {
        if self.requests.is_none() {
            return;
        }
        let there: Vec<usize> = (0..self.peers.len())
            .filter(|n| self.peers[*n].is_running() && self.peers[*n].lie.is_none() && !self.peers[*n].leaving)
            .collect();
        self.of_requests(|requests, around| {
            (requests.rate, requests.is_calm) = (0.0, true);
            there.into_iter().for_each(|n| requests.last_one_asks(around, n));
        });
        let (begun, look) = (self.now, LOOK);
        while let Some(waits) = self.waits_for(Requests::waits_to_be_served) {
            if self.now >= begun + SERVED {
                return self.checks.break_off(self.now, "everybody_is_served_again", waits);
            }
            self.wait(look);
        }
        self.checks.figures.served_after = Some((self.now - begun).as_secs_f64());
        while let Some(open) = self.waits_for(Requests::has_not_ended) {
            if self.now >= begun + ENDED {
                return self.checks.break_off(self.now, "every_request_ends", open);
            }
            self.wait(look);
        }
    }

    fn waits_for(&self, what: impl FnOnce(&Requests) -> Option<String>) -> Option<String> {
        self.requests.as_ref().filter(|_| self.checks.broken.is_none()).and_then(|requests| what(requests))
    }
}
