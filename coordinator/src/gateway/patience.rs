//! Prompt flow 8: how long a gateway waits for a sign of progress. A peer may hang with its heartbeats and connections going on.
//!
//! What a group owes is known from its adverts and its queue, and how far it is off that from what this gateway saw of it. A
//! group counts as stalled once it has given none of this gateway's requests a sign for many times as long. Where something
//! is not known, the patience is the longer one: to leave an honest peer costs its work, and one that hangs is found anyway.

use crate::Time;
use std::collections::BTreeMap;
use std::time::Duration;
use tsnode_protocol::GroupId;

/// The least patience: machines have other work, and networks lose packets.
pub(super) const LEAST: Duration = Duration::from_secs(5);
/// The most, however long a prompt is said to take.
const MOST: Duration = Duration::from_secs(600);
/// So many times as long as on an idle machine something may take: others' machines have much else to do.
const TIMES: f64 = 20.0;
/// So many times as late as this gateway was woken a group may be: they may share a machine.
const LATE: f64 = 8.0;
/// So many times as long as the longest gap of late is no stall.
const GAPS: f64 = 4.0;
/// What a gap counts one token later, and what an error of a prompt's prediction counts one prompt later.
const FADES: f64 = 0.99;
const OFF_FADES: f64 = 0.8;
/// Of shorter prompts (s), what a group took says nothing of its speed.
const TELLING: f64 = 0.05;
/// A gateway that is woken so late cannot tell whose fault a silence is.
const ASLEEP: Duration = Duration::from_secs(1);
/// How long a stalled group is left alone at first; twice as long every time it stalls again, up to so many times.
const LEFT_ALONE: Duration = Duration::from_secs(30);
const DOUBLINGS: u32 = 4;
/// Groups remembered.
const GROUPS: usize = 4096;

/// What was seen of a group.
#[derive(Debug, Default)]
struct GroupProgress {
    /// It last gave any request a sign.
    last: Time,
    /// The longest time between two tokens of a request, fading (s).
    gap: f64,
    /// How many times as long as predicted a prompt took, fading.
    off: f64,
    /// Until when nothing is sent there.
    out_until: Time,
    /// How often in a row it stalled.
    stalls: u32,
}

/// Signs of progress, as one gateway sees them.
#[derive(Debug, Default)]
pub(super) struct Patience {
    groups: BTreeMap<GroupId, GroupProgress>,
    /// How late this gateway was woken, fading (s).
    late: f64,
}

/// What a silent request is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SilenceVerdict {
    /// It may still come: look again then.
    Wait(Time),
    /// Its group hangs.
    Stalled,
}

impl Patience {
    /// A group did something for a request.
    pub fn sign(&mut self, now: Time, group: GroupId) {
        if self.groups.len() >= GROUPS {
            self.groups.retain(|_, seen| now < seen.last + MOST);
        }
        let seen = self.groups.entry(group).or_default();
        (seen.last, seen.out_until, seen.stalls) = (now, Time::ZERO, 0);
    }

    /// Between two tokens of a request lay so much.
    pub fn gap(&mut self, group: GroupId, gap: Duration) {
        let seen = self.groups.entry(group).or_default();
        seen.gap = gap.as_secs_f64().max(seen.gap * FADES);
    }

    /// A prompt that was `expected` to take so long (s) took so long.
    pub fn prompt(&mut self, group: GroupId, expected: Option<f64>, took: Duration) {
        if let Some(expected) = expected.filter(|e| *e >= TELLING) {
            let seen = self.groups.entry(group).or_default();
            seen.off = (took.as_secs_f64() / expected).max(seen.off * OFF_FADES);
        }
    }

    /// How long a group may be silent that owes something within `expected` seconds; `most` where that is not known.
    fn of(&self, group: GroupId, expected: Option<f64>, most: Duration) -> Duration {
        let Some(expected) = expected else { return most };
        let (gap, off) = self.groups.get(&group).map_or((0.0, 1.0), |seen| (seen.gap, seen.off.max(1.0)));
        let more = TIMES * expected * off + LATE * self.late + GAPS * gap;
        let more = Duration::try_from_secs_f64(more).unwrap_or(MOST);
        (LEAST + more).min(MOST)
    }

    /// A request was last `heard` of then; its look at it was due then.
    pub fn judge(&mut self, now: Time, due: Time, group: GroupId, heard: Time, owes: Owes) -> SilenceVerdict {
        let late = now.saturating_sub(due);
        self.late = late.min(LEAST).as_secs_f64().max(self.late / 2.0);
        if late > ASLEEP {
            // What the group said meanwhile may lie unread.
            return SilenceVerdict::Wait(now + LEAST);
        }
        let patience = self.of(group, owes.within, owes.most);
        let last = self.groups.get(&group).map_or(heard, |seen| seen.last.max(heard));
        // A group that works for others may still have forgotten this one.
        let until = (last + patience).min(heard + patience.max(owes.most));
        if now < until { SilenceVerdict::Wait(until) } else { SilenceVerdict::Stalled }
    }

    /// A group hangs; whether all of it does, and not one request's part only: then it is left alone for a while.
    pub fn stalled(&mut self, now: Time, group: GroupId) -> bool {
        let seen = self.groups.entry(group).or_default();
        if now < seen.last + LEAST {
            return false;
        }
        if now >= seen.out_until {
            seen.out_until = now + LEFT_ALONE * 2u32.pow(seen.stalls.min(DOUBLINGS));
            seen.stalls += 1;
        }
        true
    }

    /// Whether nothing is to be sent there, if there is anybody else.
    pub fn is_out(&self, now: Time, group: GroupId) -> bool {
        self.groups.get(&group).is_some_and(|seen| now < seen.out_until)
    }
}

/// What a group owes a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Owes {
    /// Until the next sign, by what is known (s).
    pub within: Option<f64>,
    /// How long it may take where that is not known, or where others are served before it.
    pub most: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: GroupId = GroupId([1; 8]);

    fn at(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    /// When a request that was heard of at 0 is given up, looked at whenever that is asked for.
    fn given_up(patience: &mut Patience, within: Option<f64>) -> Time {
        let (owes, mut now) = (Owes { within, most: Duration::from_secs(60) }, LEAST);
        while let SilenceVerdict::Wait(until) = patience.judge(now, now, GROUP, Time::ZERO, owes) {
            now = until;
        }
        now
    }

    #[test]
    fn who_owes_little_is_not_waited_for_long_and_who_is_not_known_is() {
        let mut patience = Patience::default();
        assert_eq!(given_up(&mut patience, Some(0.02)), at(5400));
        assert_eq!(given_up(&mut patience, Some(10.0)), at(205_000));
        assert_eq!(given_up(&mut patience, Some(f64::MAX)), MOST);
        assert_eq!(given_up(&mut patience, None), at(60_000));
    }

    #[test]
    fn who_was_seen_to_be_slow_is_given_more_time_until_it_is_quick_again() {
        let mut patience = Patience::default();
        patience.gap(GROUP, at(1500));
        assert_eq!(given_up(&mut patience, Some(0.0)), at(11_000));
        (0..1000).for_each(|_| patience.gap(GROUP, at(10)));
        assert_eq!(given_up(&mut patience, Some(0.0)), at(5040));
        patience.prompt(GROUP, Some(0.5), at(5000));
        assert_eq!(given_up(&mut patience, Some(0.5)), at(105_040), "ten times as long as predicted");
    }

    #[test]
    fn a_group_that_works_for_others_is_waited_for() {
        let (mut patience, owes) = (Patience::default(), Owes { within: Some(0.0), most: Duration::from_secs(60) });
        patience.sign(at(9000), GROUP);
        assert_eq!(patience.judge(at(10_000), at(10_000), GROUP, at(0), owes), SilenceVerdict::Wait(at(14_000)));
        patience.sign(at(60_000), GROUP);
        assert_eq!(
            patience.judge(at(60_000), at(60_000), GROUP, at(0), owes),
            SilenceVerdict::Stalled,
            "but not for ever"
        );
        assert!(!patience.stalled(at(60_000), GROUP), "which is not the group's end");
    }

    #[test]
    fn a_gateway_that_slept_blames_nobody() {
        let (mut patience, owes) = (Patience::default(), Owes { within: Some(0.0), most: Duration::from_secs(60) });
        assert_eq!(patience.judge(at(30_000), at(5000), GROUP, at(0), owes), SilenceVerdict::Wait(at(35_000)));
        // On a machine with that much else to do, nor does it for a while afterwards.
        let next = patience.judge(at(35_000), at(35_000), GROUP, at(30_000), owes);
        assert_eq!(next, SilenceVerdict::Wait(at(55_000)));
    }

    #[test]
    fn a_group_that_stalls_is_left_alone_longer_every_time_until_it_works() {
        let mut patience = Patience::default();
        assert!(patience.stalled(at(10_000), GROUP) && patience.is_out(at(39_999), GROUP));
        assert!(!patience.is_out(at(40_000), GROUP));
        assert!(patience.stalled(at(50_000), GROUP) && patience.is_out(at(109_999), GROUP));
        patience.sign(at(120_000), GROUP);
        assert!(patience.stalled(at(130_000), GROUP) && !patience.is_out(at(160_000), GROUP));
    }
}
