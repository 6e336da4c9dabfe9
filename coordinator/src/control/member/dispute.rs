//! Plan flow 5: which plan a peer follows, beside the one in force.

use crate::Time;
use std::time::Duration;
use tsnode_protocol::{Epoch, PlanId, Term};

/// Each dispute with one peer doubles the wait for the next one, so often.
const DOUBLINGS: u32 = 6;

/// How far one peer is from the plan in force, as its heartbeats and plans say.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::control) struct Dispute {
    /// Since when its heartbeats name another plan.
    behind_since: Option<Time>,
    /// Plans made to bring it back to the others: it gets ever fewer, since it may be lying.
    disputes: u32,
    /// The last plan it proposed, and when it was for.
    proposed: Option<(Epoch, Term, PlanId)>,
}

impl Dispute {
    /// Whether its heartbeats name another plan.
    pub fn is_behind(&self) -> bool {
        self.behind_since.is_some()
    }

    /// Its heartbeat names another plan, or the one in force.
    pub fn follows(&mut self, now: Time, behind: bool) {
        if behind {
            self.behind_since.get_or_insert(now);
        } else {
            (self.behind_since, self.disputes) = (None, 0);
        }
    }

    /// Whether it has followed another for so long, and twice as long for each plan that was made to bring it back.
    pub fn is_for_long(&self, now: Time, patience: Duration) -> bool {
        let patience = patience * 2u32.pow(self.disputes.min(DOUBLINGS));
        self.behind_since.is_some_and(|since| now > since + patience)
    }

    /// A plan was made to bring it back.
    pub fn brought_back(&mut self) {
        self.disputes += 1;
    }

    /// Another plan is in force: its next heartbeat says which it follows.
    pub fn plan_changed(&mut self) {
        self.behind_since = None;
    }

    /// It proposes a plan; false where it proposed another for the same time.
    pub fn proposes(&mut self, (epoch, term): (Epoch, Term), plan: PlanId) -> bool {
        if self.proposed.is_some_and(|(e, t, other)| (e, t) == (epoch, term) && other != plan) {
            return false;
        }
        self.proposed = Some((epoch, term, plan));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(2);

    #[test]
    fn who_is_brought_back_again_and_again_is_waited_for_ever_longer() {
        let mut dispute = Dispute::default();
        for times in 0..3 {
            dispute.follows(Time::ZERO, true);
            dispute.follows(Time::from_secs(1), true);
            let long = Time::ZERO + PATIENCE * 2u32.pow(times);
            assert!(dispute.is_behind() && !dispute.is_for_long(long, PATIENCE));
            assert!(dispute.is_for_long(long + Duration::from_millis(1), PATIENCE));
            dispute.brought_back();
            dispute.plan_changed();
            assert!(!dispute.is_behind());
        }
        dispute.follows(Time::ZERO, false);
        dispute.follows(Time::ZERO, true);
        assert!(dispute.is_for_long(Time::from_secs(3), PATIENCE), "who has come back is new to it");
    }

    #[test]
    fn one_plan_is_proposed_for_one_time() {
        let (at, plans) = ((Epoch(1), Term(2)), [1, 2].map(|n| PlanId([n; 16])));
        let mut dispute = Dispute::default();
        assert!(dispute.proposes(at, plans[0]) && dispute.proposes(at, plans[0]));
        assert!(!dispute.proposes(at, plans[1]));
        assert!(dispute.proposes((Epoch(1), Term(3)), plans[1]));
    }
}
