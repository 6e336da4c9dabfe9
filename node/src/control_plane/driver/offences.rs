//! Who is cut off for what it did, for how long, and who is told.

use super::Driver;
use crate::control_plane::swarm::Ban;
use std::sync::Arc;
use tsnode_coordinator::{control::Event, trust::Offence};
use tsnode_protocol::PeerId;

impl Driver {
    /// Counts an offence; says whether somebody is cut off for it.
    pub(super) fn judge(&mut self, peer: PeerId, offence: Offence) -> bool {
        if peer == self.control.me() {
            // A peer cannot do without itself; others judge it as they must.
            return self.doubts_itself(offence);
        }
        let Some(cut) = self.trust.offends(self.started.elapsed(), peer, offence) else { return false };
        tracing::warn!(%peer, reason = %cut.reason, offences = cut.offences, "cut off");
        self.data_plane.forget(peer);
        if let Err(error) = self.swarm.ban(peer, Ban::Offence) {
            tracing::warn!(%peer, %error, "still connected");
        }
        self.tell_guards();
        true
    }

    /// This peer's own groups do not do what they should: says what its owner can know of why.
    fn doubts_itself(&mut self, offence: Offence) -> bool {
        if let Offence::FalseSpeed { .. } = offence {
            if std::mem::replace(&mut self.is_slow, true) {
                return false;
            }
            // Not the memory, nor the model: tokens are right, and late.
            let advice = "this peer is slower than it was measured: other programs may have its processors, or they are throttled; \
                          give it fewer threads, or start it again to measure anew";
            tracing::warn!(%offence, "{advice}");
        } else {
            tracing::error!(%offence, "other peers compute something else than this one: check its memory and its model");
        }
        false
    }

    /// Gives those another chance whose time is over.
    pub(super) fn forgive(&mut self) {
        let forgiven = self.trust.forgive(self.started.elapsed());
        for peer in &forgiven {
            tracing::info!(%peer, "no longer cut off");
            if let Err(error) = self.swarm.allow(*peer, Ban::Offence) {
                tracing::warn!(%peer, %error, "still banned");
            }
        }
        if !forgiven.is_empty() {
            self.tell_guards();
        }
    }

    /// Says whom it has cut off, when that has changed.
    pub(super) fn accuse(&mut self) -> Option<Event> {
        let cut_off: Vec<PeerId> = self.trust.cut_off().map(|(peer, _)| peer).collect();
        (cut_off != self.accused).then(|| {
            self.accused.clone_from(&cut_off);
            Event::CutOff(cut_off)
        })
    }

    fn tell_guards(&self) {
        self.offence_receiver.cut_off.send_replace(Arc::new(self.trust.cut_off().map(|(peer, _)| peer).collect()));
    }
}
