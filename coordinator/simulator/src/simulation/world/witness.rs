//! What peers say of each other, held against what is so.

use super::{Due, World};
use crate::simulation::{
    byzantine::Lie,
    invariants::{EXCUSE, ghost},
    process::{Held, SimulatedProcess},
    terms::PlanAdoption,
};
use std::sync::Arc;
use std::time::Duration;
use tsnode_coordinator::{
    Time,
    control::{Down, Reject},
};
use tsnode_protocol::{PeerId, Plan};

impl World {
    pub(super) fn refused(&mut self, n: usize, peer: PeerId, reason: Reject) {
        let honest = self.numbers.get(&peer).is_some_and(|p| self.peers[*p].lie.is_none());
        if honest && reason != Reject::Replay && self.peers[n].lie.is_none() {
            *self.checks.figures.refused.entry(reason.clone()).or_default() += 1;
            if reason.is_lie() {
                self.checks.honest_peers_are_not_cut_off(self.now, peer, &reason);
            }
        }
        self.rejected.entry(n).or_default().push(reason);
    }

    pub(super) fn has_liars(&self) -> bool {
        self.peers.iter().any(|p| p.lie.is_some())
    }

    /// An honest peer follows a plan from now on.
    pub(super) fn adopts(&mut self, n: usize, plan: &Plan) {
        let electorate = self.peers[n].control().map(|c| c.staying()).unwrap_or_default();
        let calm_since = self.calm_since(n);
        let adoption = PlanAdoption { peer: n, at: self.now, electorate: Arc::new(electorate), calm_since };
        let byzantine = self.byzantine();
        self.checks.one_plan_a_term_is_adopted(plan, adoption, &byzantine);
    }

    /// Since when nothing has been wrong with a peer, or with the network.
    fn calm_since(&self, n: usize) -> Time {
        let is_whole = self.net.sides.is_empty() && self.net.lost == 0.0;
        if is_whole { self.peers[n].disturbed.max(self.net_disturbed) } else { self.now }
    }

    pub(super) fn gave_up(&mut self, viewer: usize, peer: PeerId, reason: Down) {
        let Some(&other) = self.numbers.get(&peer) else { return };
        if self.peers[viewer].lie.is_some() || self.peers[other].lie.is_some() {
            return;
        }
        if !self.peers[other].is_running() {
            let after = self.now.saturating_sub(self.peers[other].since).as_secs_f64();
            let figures = &mut self.checks.figures;
            match reason {
                Down::Silent => figures.noticed_by_silence.push(after),
                Down::Gone | Down::Left => figures.noticed_at_once.push(after),
            }
        } else if reason != Down::Left {
            let recent = |at: Time| self.now < at + EXCUSE && at > Time::ZERO;
            let excused = [viewer, other].iter().any(|n| {
                let p = &self.peers[*n];
                recent(p.disturbed) || p.held != Held::No
            });
            let cut = self.net.lost > 0.0 || self.net.is_cut(other, viewer);
            if excused || cut || recent(self.net_disturbed) {
                self.checks.figures.excused_deaths += 1;
            } else {
                self.checks.figures.false_deaths += 1;
                self.checks.the_living_are_not_buried(self.now, other, viewer);
            }
        }
    }

    pub(super) fn look_for_ghost(&mut self, n: usize, since: Time) {
        let dead = &self.peers[n];
        if dead.is_running() || dead.since != since {
            return;
        }
        let bound = ghost(self.peers.len());
        let sees = |viewer: &SimulatedProcess| {
            let rested = viewer.held == Held::No && self.now >= viewer.disturbed + bound && viewer.lie.is_none();
            rested && viewer.control().is_some_and(|c| c.members().any(|(id, _)| *id == dead.id))
        };
        // A byzantine peer that says again what some had not heard keeps the dead alive for them, for as long as it has more of it.
        let echoes = self.peers.iter().any(|p| p.lie == Some(Lie::Replay));
        if echoes {
            return;
        }
        let parted = self.parted >= since || !self.net.sides.is_empty();
        if parted && self.now < since + 2 * bound {
            // Those who listen for all may be in another part.
            // The agenda is in whole milliseconds.
            return self.put(since + 2 * bound + Duration::from_millis(1), Due::IsGone(n, since));
        }
        if let Some(viewer) = self.peers.iter().position(sees) {
            self.checks.no_ghosts(self.now, n, viewer);
        }
    }
}
