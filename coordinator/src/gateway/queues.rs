//! Prompt flow 2: what groups have to do at this moment.
//!
//! A group says so once a second: a request that has ended since is still in it, and one that began since is not. Of its own
//! requests a gateway knows better. Those it had there when the group counted are taken off what was said, and those it
//! has there now are added. What is heard is a moment old: a request that ended shortly before may have been counted.

use super::{
    request::Request,
    state::{Planned, State},
};
use crate::Time;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tsnode_protocol::{GroupId, Load};

/// From a group's counting to a gateway's hearing of it: its host looks four times a second, and so does who listens.
const LAG: Duration = Duration::from_millis(600);

/// What one gateway's requests are to a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct QueuedLoad {
    /// Sequences there.
    sequences: u32,
    /// Tokens of prompts that are not computed yet, as far as the gateway knows.
    pending_tokens: u32,
    /// Tokens whose KV answers there begin with, or will.
    kv: u64,
}

impl QueuedLoad {
    fn and(self, other: Self) -> Self {
        Self {
            sequences: self.sequences.saturating_add(other.sequences),
            pending_tokens: self.pending_tokens.saturating_add(other.pending_tokens),
            kv: self.kv.saturating_add(other.kv),
        }
    }

    fn less(self, other: Self) -> Self {
        Self {
            sequences: self.sequences.saturating_sub(other.sequences),
            pending_tokens: self.pending_tokens.saturating_sub(other.pending_tokens),
            kv: self.kv.saturating_sub(other.kv),
        }
    }
}

/// The parts of one request: in the group that decodes, and in another that prefills.
pub(super) type RequestLoads = [Option<(GroupId, QueuedLoad)>; 2];

/// The parts of some requests, by group.
pub(super) type GroupLoads = BTreeMap<GroupId, QueuedLoad>;

/// What groups last said, and what the gateway had given them by then.
#[derive(Debug, Default)]
pub(super) struct GroupQueues {
    said: BTreeMap<GroupId, (Load, QueuedLoad)>,
    /// What was done of late, the oldest first.
    done: VecDeque<(Time, GroupId, QueuedLoad)>,
}

impl GroupQueues {
    /// Groups say this; `own` is what the gateway has there as they do.
    pub fn hear(&mut self, now: Time, up: &BTreeMap<GroupId, Load>, own: &GroupLoads) {
        self.forget(now);
        self.said.retain(|id, _| up.contains_key(id));
        for (id, load) in up {
            if self.said.get(id).is_none_or(|(said, _)| said != load) {
                let done = self.done.iter().filter(|(_, group, _)| group == id).map(|(.., part)| *part);
                let own = own.get(id).copied().unwrap_or_default();
                self.said.insert(*id, (*load, done.fold(own, QueuedLoad::and)));
            }
        }
    }

    /// A request had these parts, and has those now.
    pub fn moved(&mut self, now: Time, before: RequestLoads, after: RequestLoads) {
        let still = |id: GroupId| after.iter().flatten().find(|(group, _)| *group == id).map(|(_, part)| *part);
        for (id, part) in before.into_iter().flatten() {
            let done = part.less(still(id).unwrap_or_default());
            if done != QueuedLoad::default() {
                self.forget(now);
                self.done.push_back((now, id, done));
            }
        }
    }

    fn forget(&mut self, now: Time) {
        while self.done.front().is_some_and(|(at, ..)| *at + LAG < now) {
            self.done.pop_front();
        }
    }

    /// What a group has to do, where the gateway has this there now.
    pub fn now(&self, id: GroupId, said: &Load, own: QueuedLoad) -> Load {
        let before = self.before(id);
        let sequences = said.running.saturating_add(said.waiting);
        let others = QueuedLoad { sequences, pending_tokens: said.pending_tokens, kv: 0 };
        let QueuedLoad { sequences, pending_tokens, .. } = others.less(before).and(own);
        let waiting = said.waiting.min(sequences);
        Load { running: sequences - waiting, waiting, pending_tokens, ..*said }
    }

    /// KV of what the gateway has sent a group since it last said how much it has (tokens), where it has this there now.
    pub fn sent_since(&self, id: GroupId, own: QueuedLoad) -> u64 {
        own.less(self.before(id)).kv
    }

    fn before(&self, id: GroupId) -> QueuedLoad {
        self.said.get(&id).map(|(_, before)| *before).unwrap_or_default()
    }
}

/// What a request is to its groups.
pub(super) fn shares(r: &Request) -> RequestLoads {
    let Some(at) = r.state.placement() else { return [None; 2] };
    let prompt = (r.ask.prompt.len() as u32).saturating_sub(r.cached);
    let kv = r.asked().prompt_memory();
    let part = |computes: bool| QueuedLoad { sequences: 1, pending_tokens: if computes { prompt } else { 0 }, kv };
    let is_open = at.last_token.is_none();
    // Of a prompt that is parted each of the two groups has a part to compute.
    let first = r.first_part();
    let rest = first.map_or(0, |first| prompt.saturating_sub(first));
    let here = QueuedLoad { sequences: 1, pending_tokens: if is_open { rest } else { 0 }, kv };
    let decode = (at.pick.decode, if first.is_some() { here } else { part(r.state.computes_here() && is_open) });
    let part =
        |computes: bool| QueuedLoad { sequences: 1, pending_tokens: if computes { prompt - rest } else { 0 }, kv };
    let prefill = match &r.state {
        State::AwaitingGrant { prompt: Planned::By { .. }, .. } => Some(part(true)),
        State::Prefilling { first, .. } => Some(part(first.is_none())),
        _ => None,
    };
    [Some(decode), prefill.map(|part| (at.pick.prefill, part))]
}

/// What these requests are to their groups.
pub(super) fn parts<'a>(requests: impl Iterator<Item = &'a Request>) -> GroupLoads {
    let mut parts = GroupLoads::new();
    for (id, part) in requests.flat_map(shares).flatten() {
        let known = parts.entry(id).or_default();
        *known = known.and(part);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: GroupId = GroupId([1; 8]);

    fn load(running: u32, waiting: u32, pending_tokens: u32) -> Load {
        Load { running, waiting, pending_tokens, ..Load::default() }
    }

    fn part(sequences: u32, pending_tokens: u32) -> QueuedLoad {
        QueuedLoad { sequences, pending_tokens, kv: 0 }
    }

    /// Said so while the gateway had `before` there, and seen so by it with `own` there now.
    fn seen(said: Load, before: QueuedLoad, own: QueuedLoad) -> Load {
        let mut queues = GroupQueues::default();
        queues.hear(Time::ZERO, &[(GROUP, said)].into(), &[(GROUP, before)].into());
        queues.now(GROUP, &said, own)
    }

    #[test]
    fn a_request_that_has_ended_is_none_and_one_that_has_begun_is_one() {
        assert_eq!(seen(load(1, 0, 256), part(1, 256), part(0, 0)), load(0, 0, 0));
        assert_eq!(seen(load(0, 0, 0), part(0, 0), part(2, 512)), load(2, 0, 512));
        assert_eq!(seen(load(1, 0, 100), part(1, 100), part(1, 300)), load(1, 0, 300));
    }

    #[test]
    fn those_of_others_stay() {
        assert_eq!(seen(load(3, 2, 700), part(1, 200), part(0, 0)), load(2, 2, 500));
        assert_eq!(seen(load(3, 2, 700), part(0, 0), part(1, 10)), load(4, 2, 710));
        // More of its own have ended than the group says it runs: it spoke of some that waited.
        assert_eq!(seen(load(1, 3, 0), part(3, 0), part(0, 0)), load(0, 1, 0));
    }

    #[test]
    fn kv_that_was_sent_counts_until_the_group_says_what_it_has() {
        let (mut queues, part) =
            (GroupQueues::default(), |kv| QueuedLoad { sequences: 1, kv, ..QueuedLoad::default() });
        assert_eq!(queues.sent_since(GROUP, part(700)), 700);
        queues.hear(Time::ZERO, &[(GROUP, load(1, 0, 0))].into(), &[(GROUP, part(700))].into());
        assert_eq!(queues.sent_since(GROUP, part(700)), 0);
        assert_eq!(queues.sent_since(GROUP, part(900)), 200);
        assert_eq!(queues.sent_since(GROUP, part(0)), 0, "what has ended since was in what it said");
    }

    #[test]
    fn what_is_said_again_is_no_news_and_who_is_down_is_forgotten() {
        let mut queues = GroupQueues::default();
        let up = [(GROUP, load(1, 0, 0))].into();
        queues.hear(Time::ZERO, &up, &[(GROUP, part(1, 0))].into());
        queues.hear(Time::ZERO, &up, &GroupLoads::new());
        assert_eq!(queues.now(GROUP, &load(1, 0, 0), part(0, 0)), load(0, 0, 0));
        queues.hear(Time::ZERO, &BTreeMap::new(), &GroupLoads::new());
        queues.hear(Time::ZERO, &up, &GroupLoads::new());
        assert_eq!(queues.now(GROUP, &load(1, 0, 0), part(0, 0)), load(1, 0, 0));
    }

    #[test]
    fn what_was_done_a_moment_before_it_was_said_may_be_in_it() {
        let (mut queues, up) = (GroupQueues::default(), [(GROUP, load(1, 0, 210))].into());
        let (asked, prompted) = ([Some((GROUP, part(1, 512))), None], [Some((GROUP, part(1, 0))), None]);
        let ms = Duration::from_millis;
        queues.moved(ms(100), asked, prompted);
        queues.moved(ms(200), prompted, [None; 2]);
        queues.hear(ms(300), &up, &GroupLoads::new());
        assert_eq!(queues.now(GROUP, &load(1, 0, 210), part(0, 0)), load(0, 0, 0));
        // Said later it is others' work.
        let more = [(GROUP, load(2, 0, 100))].into();
        queues.hear(ms(2000), &more, &GroupLoads::new());
        assert_eq!(queues.now(GROUP, &load(2, 0, 100), part(0, 0)), load(2, 0, 100));
        assert!(queues.done.is_empty());
    }
}
