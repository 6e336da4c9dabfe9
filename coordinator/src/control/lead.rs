//! Plan flow 3: whose turn it is, whether a plan is needed, and its proposal.

use super::{
    Action, Control, Member,
    adoption::{FAR_EPOCHS, TERMS_AHEAD},
    planning::{Planning, SearchPause},
};
use crate::{Time, planner::PlanDraft};
use std::time::Duration;
use tsnode_protocol::{Epoch, Gossip, PeerId, Plan, Term};

/// So many times as long a peer waits that is alone and has no plan.
const ALONE: u32 = 3;
/// How long two plans may stand side by side before a new one settles it.
const DISPUTE: Duration = Duration::from_secs(4);

/// On a full computer a turn lasts longer by what waits there, by twice as much after a turn that brought no plan, and so on for so many
/// turns, as raft's candidates wait longer after a split vote; by so much at most.
const DOUBLINGS: u32 = 4;
const LONGER_AT_MOST: Duration = Duration::from_secs(20);

/// One of the turns that pass while a plan is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turn {
    number: usize,
    lasts: Duration,
    /// When it is over, from when a plan was needed.
    over: Duration,
}

impl Turn {
    /// The one that goes on after so long, where each lasts for `patience`, and longer by what waits here. Turns that are over before
    /// those who are to come later have heard what was proposed in them split votes, each time anew.
    fn after(waited: Duration, patience: Duration, backlog: Duration) -> Self {
        let lasts = |number: u32| patience + (backlog * 2u32.pow(number.min(DOUBLINGS))).min(LONGER_AT_MOST);
        let (mut number, mut over) = (0, lasts(0));
        while number < DOUBLINGS && over <= waited {
            number += 1;
            over += lasts(number);
        }
        // From here on one is as long as another.
        let lasts = lasts(number).max(Duration::from_millis(1));
        let passed = if over <= waited { (waited - over).as_millis() / lasts.as_millis() + 1 } else { 0 };
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        let number = (number as usize).saturating_add(passed as usize);
        Self { number, lasts, over: over + lasts.saturating_mul(passed) }
    }
}

/// Whose turn of `ranks` it is: 0 1 2 3, 2 3 4 5, 4 5 6 7 and so on, so that one at a time proposes, everybody comes to
/// it, and each twice soon after another.
fn whose(turn: usize, ranks: usize) -> usize {
    let (round, place) = (turn / 4, turn % 4);
    (2 * round + place) % ranks.max(1)
}

/// Who plans, and how far this peer is with a plan of its own.
#[derive(Debug, Default)]
pub(super) struct PlanningTurn {
    /// The first of ranks.
    pub coordinator: Option<PeerId>,
    /// Since when the adopted plan no longer fits.
    pub needed_since: Option<Time>,
    pub proposed_at: Option<Time>,
    pub planning: Planning,
    /// What links that are measured all the time may ask of the planner.
    pub rest: SearchPause,
}

impl Control {
    /// Finds out whose turn it is; proposes if it is this peer's and a plan is needed.
    pub(super) fn lead(&mut self, out: &mut Vec<Action>) {
        self.count_epochs();
        self.look_at_swaps();
        let first = self.derive().ranks.first().copied();
        if first != self.turn.coordinator {
            self.turn.coordinator = first;
            out.push(Action::CoordinatorChanged { coordinator: first, term: self.term() });
        }
        self.retry_certificate(out);
        self.retry_proposals(out);
        self.welcome(out);
        let quiet = self.changed + self.settle();
        if self.now < quiet {
            self.next_look = self.next_look.min(quiet);
            return;
        }
        if self.own.advert.is_none() || self.awaits_adverts() {
            return;
        }
        self.end_rest();
        let disputed = self.is_disputed();
        let settled = self.turn.planning.is_settled();
        let pressing = disputed || (!settled && self.derive().pressing);
        if !pressing && (settled || first != Some(self.config.me)) {
            self.turn.needed_since = None;
            self.turn.proposed_at = None;
            return self.convince(out);
        }
        if pressing {
            // Who never plans judges others' turns all the same.
            self.turn.needed_since.get_or_insert(self.now);
        }
        // Searching is work: only whose turn it is does it, and may propose what it finds though its turn is over then.
        let due = self.turn.planning.is_due();
        if !self.may_propose() || !(due || self.is_my_turn(pressing)) || self.others_have_a_chance() {
            return;
        }
        match self.draft(disputed, out) {
            Some(draft) => {
                self.turn.proposed_at = Some(self.now);
                let plan = self.number(draft, disputed);
                // What it proposed it must not propose again in another form, should it start anew.
                self.remember((plan.epoch, plan.term), out);
                out.push(Action::Publish(Gossip::Plan(plan.into())));
            }
            None => self.convince(out),
        }
    }

    fn may_propose(&mut self) -> bool {
        let me = self.config.me;
        !self.own.leaving && self.derive().ranks.contains(&me)
    }

    fn is_my_turn(&mut self, pressing: bool) -> bool {
        let me = self.config.me;
        if !pressing {
            return true;
        }
        let since = self.turn.needed_since.unwrap_or(self.now);
        let turn = self.turn_now();
        let ranks = &self.derive().ranks;
        let mine = ranks.get(whose(turn.number, ranks.len())) == Some(&me);
        if !mine {
            self.next_look = self.next_look.min(since.saturating_add(turn.over));
        }
        mine
    }

    /// The turn that goes on now; the first while no plan is needed.
    fn turn_now(&self) -> Turn {
        let waited = self.turn.needed_since.map_or(Duration::ZERO, |since| self.now.saturating_sub(since));
        Turn::after(waited, self.config.patience, self.health.backlog())
    }

    /// How long a plan that was proposed or endorsed has its chance: as long as a turn lasts now.
    pub(super) fn chance(&self) -> Duration {
        self.turn_now().lasts
    }

    /// A proposal that was endorsed here, or made here, has its chance first.
    fn others_have_a_chance(&self) -> bool {
        let waits = |until: Option<Time>| until.is_some_and(|until| self.now < until);
        let chance = self.chance();
        waits(self.turn.proposed_at.map(|at| at + chance)) || waits(self.ballot.waits_until(chance))
    }

    /// Quiet to wait for. Who starts alone has most likely company on its way: a plan made just before it comes would be
    /// one of two in its term, and seconds go by until that is settled. A client who asks meanwhile is not kept waiting,
    /// least of all where no company is known of. On a full computer all of that takes longer.
    fn settle(&self) -> Duration {
        let alone = self.own.lends() && self.adoption.adopted.is_none() && self.members().count() < 2;
        let (settle, backlog) = (self.config.settle, self.health.backlog());
        match (alone, self.own.asked) {
            (true, true) if !self.config.company => Duration::ZERO,
            (true, false) if self.config.company => settle * ALONE + backlog,
            (true, false) => settle * ALONE,
            _ => settle + backlog.min(settle * ALONE),
        }
    }

    /// Somebody follows another plan of this term or a later one, and no certificate has settled it.
    fn is_disputed(&self) -> bool {
        self.members().any(|(_, m)| self.is_astray(m))
    }

    pub(super) fn is_astray(&self, m: &Member) -> bool {
        // Where words wait, what brought others to their plan may be on its way still.
        let for_long = m.dispute.is_for_long(self.now, DISPUTE + self.health.backlog());
        let followed = (m.heartbeat.epoch, m.heartbeat.term);
        for_long && m.heartbeat.plan.is_some() && followed >= self.followed() && !self.is_far(followed)
    }

    /// Epoch and term of the adopted plan.
    pub(super) fn followed(&self) -> (Epoch, Term) {
        self.adoption.adopted.as_ref().map_or((Epoch(0), Term(0)), |a| (a.plan.epoch, a.plan.term))
    }

    /// An epoch that no honest clock can be in, or a term that so few plans cannot have used up.
    pub(super) fn is_far(&self, (epoch, term): (Epoch, Term)) -> bool {
        let last = self.ballot.heard_in(epoch).map_or(0, |t| t.0);
        epoch.0 > self.clock_epoch().max(self.epoch()).0.saturating_add(FAR_EPOCHS)
            || term.0 > last.saturating_add(TERMS_AHEAD)
    }

    /// A draft becomes a plan of the next free term, above whatever those follow with whom it is to settle a dispute.
    fn number(&self, draft: PlanDraft, disputed: bool) -> Plan {
        let astray = self.members().filter(|(_, m)| disputed && self.is_astray(m));
        let theirs = astray.map(|(_, m)| (m.heartbeat.epoch, m.heartbeat.term)).max();
        let last =
            [Some(self.followed()), self.ballot.remembered(), theirs].into_iter().flatten().max().unwrap_or_default();
        let epoch = self.epoch().max(last.0);
        let used = [(last.0 == epoch).then_some(last.1), self.ballot.heard_in(epoch)];
        let term = Term(used.into_iter().flatten().max().map_or(0, |t| t.0.saturating_add(1)));
        let PlanDraft { groups, routes, chosen, reason } = draft;
        Plan { epoch, term, parent: self.plan_id(), groups, routes, chosen, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(2);

    fn turns(backlog: u64, waited: impl IntoIterator<Item = u64>) -> Vec<usize> {
        let backlog = Duration::from_secs(backlog);
        waited.into_iter().map(|s| Turn::after(Duration::from_secs(s), PATIENCE, backlog).number).collect()
    }

    #[test]
    fn where_nothing_waits_turns_are_all_as_long() {
        assert_eq!(turns(0, [0, 1, 2, 3, 4, 7, 8, 9, 10, 11, 12, 3600]), [0, 0, 1, 1, 2, 3, 4, 4, 5, 5, 6, 1800]);
        let last = Turn::after(Duration::from_millis(13_900), PATIENCE, Duration::ZERO);
        assert_eq!((last.number, last.lasts, last.over), (6, PATIENCE, Duration::from_secs(14)));
    }

    /// 2 s, and of words that wait for 3 s: 3, 6, 12, and then 20 s, the most.
    #[test]
    fn where_words_wait_each_turn_is_longer_than_the_one_before_within_bounds() {
        assert_eq!(turns(3, [0, 4, 5, 12, 13, 26, 27, 48, 49, 70, 71, 93]), [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 6]);
        for waited in [0, 4, 5, 30, 60, 100, 3600] {
            let turn = Turn::after(Duration::from_secs(waited), PATIENCE, Duration::from_secs(3));
            let waited = Duration::from_secs(waited);
            assert!(turn.over > waited && turn.over - turn.lasts <= waited && turn.lasts <= PATIENCE + LONGER_AT_MOST);
        }
    }
}
