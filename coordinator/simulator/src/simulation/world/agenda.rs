//! What is due when, and what happens then.

use super::{Due, World};
use crate::simulation::{byzantine, chronicle::Note, process::Held, requests::Item};
use std::sync::Arc;
use std::time::Duration;
use tsnode_coordinator::{Time, control::Event};
use tsnode_protocol::{GroupLoad, Load};

impl World {
    pub(super) fn put(&mut self, at: Time, due: Due) {
        self.due.entry(at.as_millis() as u64).or_default().push(due);
    }

    /// Requests only: without them nothing is put there.
    pub(in crate::simulation) fn put_request(&mut self, at: Time, item: Item) {
        if self.requests.is_some() {
            self.put(at, Due::Request(item));
        }
    }

    /// Lets time pass.
    pub fn wait(&mut self, span: Duration) {
        let end = self.now + span;
        while self.checks.broken.is_none() {
            let arrival = self.due.first_key_value().map(|(ms, _)| Time::from_millis(*ms));
            let wake = self.wakes.first().copied();
            let next = [arrival, wake.map(|w| w.0)].into_iter().flatten().min();
            let Some(next) = next.filter(|at| *at <= end) else { break };
            self.now = self.now.max(next);
            if arrival == Some(next) {
                let Some((_, all)) = self.due.pop_first() else { continue };
                all.into_iter().for_each(|due| self.happens(due));
            } else if let Some((_, n)) = wake {
                self.tell(n, Event::Deadline);
            }
        }
        self.now = self.now.max(end);
    }

    fn happens(&mut self, due: Due) {
        match due {
            Due::Message(to, _) if !self.peers[to as usize].is_running() => {}
            Due::Message(to, message) => self.tell(to as usize, Event::Gossip(Arc::unwrap_or_clone(message))),
            Due::Heartbeats(to, from, words) => {
                self.tell(to as usize, Event::Heartbeats { from, words: Arc::unwrap_or_clone(words) });
            }
            // A system refuses connections to a process that is no more, not to one that is there again.
            Due::Refuses(_, id) if self.number(id).is_some_and(|n| self.peers[n].is_running()) => {}
            Due::Refuses(to, id) => self.tell(to as usize, Event::Gone(id)),
            Due::Connects(to, id) => self.tell(to as usize, Event::Connected(id)),
            Due::Disconnects(to, id) => self.tell(to as usize, Event::Disconnected(id)),
            Due::Start(n) => self.start(n),
            Due::End(n, life) if u64::from(self.peers[n].life.0) == life && self.peers[n].is_running() => self.kill(n),
            Due::Written(n, hold) if self.holding.get(&n) == Some(&hold) => self.written(n),
            Due::GoesOn(n, hold) if self.holding.get(&n) == Some(&hold) && self.peers[n].held == Held::Paused => {
                self.goes_on(n);
            }
            Due::Planned(n, life, draft) if self.peers[n].life == life => self.tell(n, Event::Planned(draft)),
            Due::Loaded(n, life) if self.peers[n].life == life => self.loaded(n),
            Due::Request(item) => self.request(item),
            Due::IsGone(n, since) => self.look_for_ghost(n, since),
            Due::Lies(n) => self.lies(n),
            Due::End(..) | Due::Written(..) | Due::GoesOn(..) | Due::Planned(..) | Due::Loaded(..) => {}
        }
    }

    /// Its disk has what it was to remember.
    fn written(&mut self, n: usize) {
        if let Held::Writing(epoch, term) = self.peers[n].held {
            self.peers[n].disk.endorsed = Some((epoch, term));
            (self.peers[n].held, self.peers[n].disturbed) = (Held::No, self.now);
            self.run(n);
        }
    }

    /// It was stopped, and is no longer.
    fn goes_on(&mut self, n: usize) {
        let timer_first = self.rng.below(2) == 0;
        self.peers[n].go_on(self.now, timer_first);
        self.note(Note::WentOn(n));
        self.run(n);
    }

    /// It has loaded what it leads; where clients come, what it does for them says how much it has to do.
    fn loaded(&mut self, n: usize) {
        let (running, ready) = (self.pace.below(4) as u32, self.peers[n].led());
        match self.requests {
            Some(_) => self.request(Item::Loaded((n, self.peers[n].life), ready)),
            None => {
                let load = Load { running, ..Load::default() };
                let ready = ready.into_iter().map(|group| GroupLoad { group, load }).collect();
                self.tell(n, Event::Load { load, ready });
            }
        }
    }

    fn lies(&mut self, n: usize) {
        let may_lie = self.peers[n].is_running() && self.quiet_since.is_none();
        if let Some(lie) = self.peers[n].lie.filter(|_| may_lie) {
            self.lie(n, lie);
            self.run(n);
            let again = byzantine::EVERY.mul_f64(0.3 + self.rng.unit());
            self.put(self.now + again, Due::Lies(n));
        }
    }
}
