//! What goes wrong when: faults drawn from the seed.

use super::{chronicle::Note, process::Held, world::World};
use crate::simulation::byzantine::Lie;
use std::collections::BTreeMap;
use std::time::Duration;

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Messages are lost, repeated, late and out of order.
    Loss,
    /// The network falls into parts.
    Partition,
    /// Processes end without a word, and start again.
    Crash,
    /// Processes are stopped for a while and go on.
    Pause,
    /// Disks take up to a second.
    Disk,
    /// Clocks are off by up to an hour.
    Clock,
    /// Some peers lie.
    Lie,
    /// Peers leave as they should.
    Leave,
}

impl Fault {
    /// All kinds, by name.
    pub const ALL: [(&'static str, Self); 8] = [
        ("loss", Self::Loss),
        ("partition", Self::Partition),
        ("crash", Self::Crash),
        ("pause", Self::Pause),
        ("disk", Self::Disk),
        ("clock", Self::Clock),
        ("lie", Self::Lie),
        ("leave", Self::Leave),
    ];
}

impl World {
    /// One thing goes wrong, or is right again.
    pub(super) fn strike(&mut self, faults: &[Fault]) {
        let Some(fault) = faults.get(self.rng.below(faults.len())) else { return };
        let n = self.rng.below(self.peers.len());
        match fault {
            Fault::Loss => self.make_lossy(),
            Fault::Partition => self.cut_or_heal(),
            Fault::Crash => self.crash_or_restart(n),
            Fault::Pause => self.pause_by_chance(n),
            Fault::Disk => {
                self.peers[n].disk.latency = Duration::from_millis(self.rng.below(1000) as u64);
                let latency = self.peers[n].disk.latency;
                self.note(Note::Fault(format!("p{n}'s disk takes {} ms", latency.as_millis())));
            }
            Fault::Leave if self.is_dispensable(n) => self.leave(n),
            // Clocks are set at each start; byzantine peers lie by themselves.
            Fault::Leave | Fault::Clock | Fault::Lie => {}
        }
    }

    fn make_lossy(&mut self) {
        let rng = &mut self.rng;
        self.net.lost = [0.0, 0.05, 0.1, 0.3][rng.below(4)];
        self.net.repeated = [0.0, 0.1][rng.below(2)];
        self.net.delay = Duration::from_millis([40, 200, 1000, 2000][rng.below(4)]);
        let net = &self.net;
        let what = format!("{:.0} % are lost, delays to {} ms", net.lost * 100.0, net.delay.as_millis());
        self.net_disturbed();
        self.note(Note::Fault(what));
    }

    fn cut_or_heal(&mut self) {
        self.net_disturbed();
        if !self.net.sides.is_empty() {
            self.net.sides.clear();
            return self.note(Note::Fault("the network is whole again".into()));
        }
        let sides = 2 + self.rng.below(2);
        self.net.sides = (0..self.peers.len()).map(|n| (n, self.rng.below(sides) as u8)).collect();
        let count = |side| self.net.sides.values().filter(|s| **s == side).count().to_string();
        let sizes: Vec<String> = (0..sides as u8).map(count).collect();
        self.note(Note::Fault(format!("the network falls into parts of {}", sizes.join(", "))));
    }

    fn crash_or_restart(&mut self, n: usize) {
        if !self.peers[n].is_running() {
            self.start(n);
        } else if self.is_dispensable(n) {
            match self.rng.below(2) {
                0 => self.kill(n),
                _ => self.cut_power(n),
            }
        }
    }

    /// The swarm is not to die out.
    fn is_dispensable(&self, n: usize) -> bool {
        self.peers[n].is_running() && self.peers.iter().filter(|p| p.is_running() && p.lends()).count() > 2
    }

    fn pause_by_chance(&mut self, n: usize) {
        let span = Duration::from_millis(200 + self.rng.below(8000) as u64);
        if self.peers[n].is_running() && self.peers[n].held == Held::No {
            self.pause(n, span);
        }
    }

    /// The network and the disks are as they should be; most of those that are gone come back, byzantine peers say no more than
    /// their machine does, and whoever was stopped goes on when its time comes.
    pub(super) fn calm(&mut self) {
        self.net_disturbed();
        self.net.lost = 0.0;
        self.net.repeated = 0.0;
        self.net.delay = Duration::from_millis(40);
        self.net.sides.clear();
        self.net.lags = BTreeMap::new();
        for n in 0..self.peers.len() {
            self.peers[n].disk.latency = Duration::ZERO;
            if self.peers[n].lie == Some(Lie::Sequence) {
                // It goes on where it had jumped to.
                self.peers[n].jump(1 << 31);
            }
            if !self.peers[n].is_running() && self.rng.below(3) > 0 {
                self.start(n);
            }
        }
        self.note(Note::Quiet);
    }
}
