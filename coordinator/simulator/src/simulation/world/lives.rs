//! Processes that start, end, leave, and are held up.

use super::{Due, World};
use crate::simulation::{byzantine, chronicle::Note, invariants::ghost, process::Held, requests::Item};
use std::time::Duration;
use tsnode_coordinator::{Time, control::Event};

/// Peers before and after it that one is connected to, in a swarm of more than three times as many.
const NEIGHBOURS: usize = 4;

impl World {
    /// It starts at that time.
    pub fn start_at(&mut self, at: Time, n: usize) {
        self.put(at, Due::Start(n));
    }

    /// It starts, or starts again.
    pub fn start(&mut self, n: usize) {
        if self.peers[n].is_running() {
            return;
        }
        if self.clocks_err {
            let wrong = self.rng.below(10) < 3;
            self.peers[n].skew = if wrong { self.rng.below(7200) as i64 - 3600 } else { 0 };
        }
        let (now, unix, planner) = (self.now, self.unix + self.now, self.planner.clone());
        self.peers[n].start(now, unix, planner);
        self.checks.born(self.peers[n].id);
        self.note(Note::Started(n));
        let id = self.peers[n].id;
        for other in self.neighbours(n) {
            let at = now + Duration::from_millis(20 + self.rng.below(300) as u64);
            let there = self.peers[other].id;
            self.put(at, Due::Connects(other as u32, id));
            self.put(at, Due::Connects(n as u32, there));
        }
        if self.peers[n].lie.is_some() {
            self.put(now + byzantine::EVERY, Due::Lies(n));
        }
        self.run(n);
    }

    /// The process is killed: its system closes its connections, and says so to who asks.
    pub fn kill(&mut self, n: usize) {
        let id = self.peers[n].id;
        for other in self.neighbours(n) {
            let at = self.now + Duration::from_millis(5 + self.rng.below(40) as u64);
            self.put(at, Due::Disconnects(other as u32, id));
            if self.rng.below(2) == 0 {
                let at = at + Duration::from_millis(self.rng.below(250) as u64);
                self.put(at, Due::Refuses(other as u32, id));
            }
        }
        self.put_request(self.now, Item::Killed((n, self.peers[n].life)));
        self.end(n, "is killed");
    }

    /// The whole computer is gone at once: nobody is told.
    pub fn cut_power(&mut self, n: usize) {
        self.end(n, "has no power");
    }

    fn end(&mut self, n: usize, how: &'static str) {
        if let Held::Writing(epoch, term) = self.peers[n].held
            && self.rng.below(2) == 0
        {
            self.peers[n].disk.endorsed = Some((epoch, term));
        }
        let now = self.now;
        self.peers[n].end(now);
        self.reschedule(n);
        self.note(Note::Ended(n, how));
        self.put(now + ghost(self.peers.len()), Due::IsGone(n, now));
    }

    /// It says that it leaves, and ends soon after.
    pub fn leave(&mut self, n: usize) {
        if !self.peers[n].leaving {
            self.peers[n].leaving = true;
            self.note(Note::Fault(format!("p{n} leaves")));
            self.tell(n, Event::Leave);
            let (after, life) = (Duration::from_millis(1000 + self.rng.below(3000) as u64), self.peers[n].life.0);
            self.put(self.now + after, Due::End(n, u64::from(life)));
        }
    }

    /// It is stopped for so long.
    pub fn pause(&mut self, n: usize, span: Duration) {
        self.note(Note::Paused(n, span));
        self.peers[n].disturbed = self.now;
        self.hold(n, Held::Paused, span);
    }

    pub(super) fn hold(&mut self, n: usize, held: Held, span: Duration) {
        self.holds += 1;
        self.peers[n].held = held;
        self.holding.insert(n, self.holds);
        let due = match held {
            Held::Writing(..) => Due::Written(n, self.holds),
            _ => Due::GoesOn(n, self.holds),
        };
        self.put(self.now + span, due);
        self.reschedule(n);
    }

    /// Those a peer is connected to.
    fn neighbours(&self, n: usize) -> Vec<usize> {
        let (all, reach) = (self.peers.len(), NEIGHBOURS);
        let near =
            |other: usize| all <= 3 * reach || (other + all - n) % all <= reach || (n + all - other) % all <= reach;
        (0..all).filter(|other| *other != n && near(*other) && self.peers[*other].is_running()).collect()
    }
}
