//! Plan flow 1: how long a peer may be silent: by how regular it was, and by how late the listener itself is.
//!
//! An accrual detector (Hayashibara, Défago, Yared, Katayama: The φ accrual failure detector, SRDS 2004): heartbeats'
//! gaps are taken as normal with the mean and deviation seen lately, and φ = −log₁₀ of the chance that the next one is
//! still on its way grows with silence. φ = 1 makes a suspect, φ = 8 a death. Two bounds of our own: silence below a
//! floor never counts, since a busy computer delays anything by a second or two, and above a ceiling always does.
//! From Lifeguard (Dadgar, Phillips, Currey 2018) it has local health: a listener that was itself not run for a while
//! has no right to an opinion about others' silence in that while, and one that is often late is slow to judge. So is one in which
//! what others say waits: where many peers share a full computer, all are late, and none is dead.

use crate::Time;
use std::time::Duration;

/// Standard deviations above the mean at which φ of a normal distribution is 1, and 8.
const SUSPECT: f64 = 1.28;
const DEAD: f64 = 5.61;
/// Weight of a new gap in the mean.
const MEAN: f64 = 1.0 / 16.0;
/// Weight of a surprise in the deviation, where it grows: at once; and where it shrinks: over a minute.
const SURPRISE: f64 = 0.5;
const RELIEF: f64 = 1.0 / 32.0;
/// Of a deviation nobody has measured yet (s).
const UNKNOWN: f64 = 0.4;
/// Times the listener's own lateness counts on top of silence.
const STRAIN: f64 = 2.0;
/// Most of it that counts (s).
const STRAINED: f64 = 1.0;
/// Lateness below this is nothing (s): timers are not exact.
const PUNCTUAL: f64 = 0.05;
/// Lateness above this means that the listener slept (s): what came meanwhile waits to be heard.
const SLEPT: f64 = 0.5;
/// What comes through the listener's own queues in so long did not wait (s).
const NIMBLE: f64 = 0.1;
/// Weight of what took longer to come through than was usual of late, and of what took less: a pause is no rule.
const SLOWER: f64 = 0.25;
const QUICKER: f64 = 1.0 / 16.0;
/// Most of one such wait that counts (s).
const WAITED: f64 = 1.0;
/// So many queues as long as its own a word passes: a call and its answer go over several peers, and through several tasks of each.
const QUEUES: f64 = 8.0;

/// Bounds of the silence that is a death, whatever was seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Silence {
    /// Never below: a heartbeat that is two seconds late is late, no more.
    pub least: Duration,
    /// Never above, while the listener itself is punctual.
    pub most: Duration,
    /// Never above where the transport has lost its connection, or the peer has said that it leaves.
    pub disconnected: Duration,
    /// Of the least silence, the part that makes a suspect.
    pub suspect: f64,
}

impl Default for Silence {
    fn default() -> Self {
        Self {
            least: Duration::from_millis(3500),
            most: Duration::from_secs(10),
            disconnected: Duration::from_millis(1500),
            suspect: 0.48,
        }
    }
}

/// What silence means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sign {
    /// No longer than usual.
    Fine,
    /// Longer than usual: nothing new for it.
    Suspect,
    /// It is taken for dead.
    Dead,
}

/// A peer's heartbeats as they came.
#[derive(Clone, Copy, Debug)]
pub struct ArrivalWindow {
    last_beat: Option<Time>,
    mean: f64,
    deviation: f64,
}

impl ArrivalWindow {
    /// Of a peer that is to beat this often.
    #[must_use]
    pub fn new(every: Duration) -> Self {
        Self { last_beat: None, mean: every.as_secs_f64(), deviation: UNKNOWN }
    }

    /// A heartbeat has come.
    pub fn beat(&mut self, now: Time) {
        if let Some(last) = self.last_beat {
            let off = now.saturating_sub(last).as_secs_f64() - self.mean;
            self.mean += MEAN * off;
            let weight = if off.abs() > self.deviation { SURPRISE } else { RELIEF };
            self.deviation += weight * (off.abs() - self.deviation);
        }
        self.last_beat = Some(now);
    }

    /// The gap that is being measured now means nothing: the peer started anew, or the listener slept.
    pub fn skip(&mut self) {
        self.last_beat = None;
    }

    /// What `silent` means to a listener of that health.
    #[must_use]
    pub fn sign(&self, silent: Duration, stays: bool, health: &Health, rules: &Silence) -> Sign {
        let (suspect, dead) = self.bounds(stays, health, rules);
        match silent.as_secs_f64() {
            s if s >= dead => Sign::Dead,
            s if s >= suspect => Sign::Suspect,
            _ => Sign::Fine,
        }
    }

    /// How much longer than the least it may be silent, by how regular it was: little, unless the network is uneven.
    #[must_use]
    pub fn unevenness(&self, rules: &Silence) -> Duration {
        let (_, dead) = self.bounds(true, &Health::default(), rules);
        Duration::from_secs_f64(dead).saturating_sub(rules.least)
    }

    /// Silence that makes a suspect, and a death (s).
    fn bounds(&self, stays: bool, health: &Health, rules: &Silence) -> (f64, f64) {
        let (least, most) = (rules.least.as_secs_f64(), rules.most.as_secs_f64());
        let grace = (health.grace() + health.backlog()).as_secs_f64();
        let dead = (self.mean + DEAD * self.deviation).clamp(least, most.max(least)) + grace;
        let suspect = (self.mean + SUSPECT * self.deviation).clamp(least * rules.suspect.min(1.0), least) + grace;
        let dead = if stays { dead } else { dead.min(rules.disconnected.as_secs_f64() + grace) };
        (suspect.min(dead), dead)
    }
}

/// How late the listener itself is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Health {
    /// Lateness, as it fades (s).
    strain: f64,
    judged: Time,
    /// How long what is to be heard waits here, as a mean (s).
    wait: f64,
}

impl Health {
    /// How much longer others may take to be heard here.
    #[must_use]
    pub fn grace(&self) -> Duration {
        Duration::from_secs_f64(STRAIN * self.strain)
    }

    /// How much longer others may take beside that, since words wait: here, and most likely where others share this computer. Eight
    /// seconds at most, and none on a computer that has time.
    #[must_use]
    pub fn backlog(&self) -> Duration {
        Duration::from_secs_f64(QUEUES * self.wait)
    }

    /// A word that was put behind all that is to be heard here took so long to come through.
    pub fn came_through(&mut self, took: Duration) {
        let wait = (took.as_secs_f64() - NIMBLE).clamp(0.0, WAITED);
        let weight = if wait > self.wait { SLOWER } else { QUICKER };
        self.wait += weight * (wait - self.wait);
    }

    /// The listener wanted to wake at `due` and woke `now`. Says how long it slept, if it did: what others said in that
    /// while is still to be heard.
    pub fn woke(&mut self, due: Time, now: Time) -> Option<Duration> {
        let late = now.saturating_sub(due);
        let fade = 0.5f64.powf(now.saturating_sub(self.judged).as_secs_f64() / 10.0);
        self.judged = now;
        let excess = (late.as_secs_f64() - PUNCTUAL).max(0.0);
        self.strain = (self.strain * fade).max(excess.min(STRAINED));
        (late.as_secs_f64() > SLEPT).then_some(late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(s: f64) -> Duration {
        Duration::from_secs_f64(s)
    }

    /// The longest silence that is no death, by tenths of a second.
    fn patience(arrivals: &ArrivalWindow, health: &Health) -> f64 {
        let rules = Silence::default();
        let alive = |s: &f64| arrivals.sign(seconds(*s), true, health, &rules) != Sign::Dead;
        (1..).map(|tenths| f64::from(tenths) / 10.0).take_while(alive).last().unwrap_or(0.0)
    }

    fn beaten(gaps: impl IntoIterator<Item = f64>) -> ArrivalWindow {
        let mut arrivals = ArrivalWindow::new(seconds(1.0));
        let mut now = seconds(1.0);
        for gap in gaps {
            now += seconds(gap);
            arrivals.beat(now);
        }
        arrivals
    }

    #[test]
    fn a_regular_peer_is_given_up_soon_and_an_irregular_one_later() {
        let regular = beaten([1.0; 100]);
        let irregular = beaten((0..100).map(|n| if n % 3 == 0 { 2.2 } else { 0.6 }));
        let health = Health::default();
        assert_eq!(patience(&regular, &health), 3.4);
        assert!((4.0..10.0).contains(&patience(&irregular, &health)), "{}", patience(&irregular, &health));
    }

    #[test]
    fn one_beat_that_is_two_seconds_late_is_no_death_and_makes_more_patient() {
        let before = beaten([1.0; 50]);
        let health = Health::default();
        assert_ne!(before.sign(seconds(3.0), true, &health, &Silence::default()), Sign::Dead);
        let after = beaten([1.0; 50].into_iter().chain([3.0]));
        assert!(patience(&after, &health) > patience(&before, &health) + 2.0);
        let long_after = beaten([1.0; 50].into_iter().chain([3.0]).chain([1.0; 120]));
        assert!(patience(&long_after, &health) < patience(&before, &health) + 0.2);
    }

    #[test]
    fn a_suspect_is_one_before_it_is_dead() {
        let arrivals = beaten([1.0; 50]);
        let sign = |s| arrivals.sign(seconds(s), true, &Health::default(), &Silence::default());
        assert_eq!([sign(1.5), sign(2.5), sign(3.6)], [Sign::Fine, Sign::Suspect, Sign::Dead]);
        let lost = arrivals.sign(seconds(1.6), false, &Health::default(), &Silence::default());
        assert_eq!(lost, Sign::Dead);
    }

    #[test]
    fn a_listener_that_is_late_itself_is_slow_to_judge() {
        let arrivals = beaten([1.0; 50]);
        let mut health = Health::default();
        assert_eq!(health.woke(seconds(50.0), seconds(50.4)), None);
        assert!((4.1..4.3).contains(&patience(&arrivals, &health)));
        assert_eq!(health.woke(seconds(51.0), seconds(55.0)), Some(seconds(4.0)));
        assert_eq!(patience(&arrivals, &health), 5.4);
        for n in 0..100 {
            health.woke(seconds(56.0 + f64::from(n)), seconds(56.0 + f64::from(n)));
        }
        // Its health comes back by halves: what is left of them is next to nothing.
        assert!((3.35..3.55).contains(&patience(&arrivals, &health)));
    }

    #[test]
    fn a_listener_in_which_words_wait_is_slow_to_judge_within_bounds_and_a_quick_one_is_not() {
        let arrivals = beaten([1.0; 50]);
        let after = |waits: &[(usize, f64)]| {
            let mut health = Health::default();
            for (times, took) in waits {
                (0..*times).for_each(|_| health.came_through(seconds(*took)));
            }
            (patience(&arrivals, &health), health.backlog().as_secs_f64())
        };
        assert_eq!(after(&[(1000, 0.09)]), (3.4, 0.0), "a computer that has time");
        let (one_pause, _) = after(&[(100, 0.01), (1, 30.0)]);
        assert!((4.5..5.6).contains(&one_pause), "{one_pause}");
        let (soon_after, _) = after(&[(1, 30.0), (40, 0.01)]);
        assert!(soon_after < 3.7, "{soon_after}");
        let (full, backlog) = after(&[(100, 0.6)]);
        assert!((7.3..7.6).contains(&full) && (3.9..4.1).contains(&backlog), "{full} {backlog}");
        let (most, backlog) = after(&[(1000, 3600.0)]);
        assert!((11.3..11.6).contains(&most) && backlog <= 8.0, "{most} {backlog}");
    }

    #[test]
    fn where_words_wait_a_lost_connection_is_no_death_yet() {
        let (arrivals, mut health) = (beaten([1.0; 50]), Health::default());
        (0..100).for_each(|_| health.came_through(seconds(0.6)));
        let lost = |silent| arrivals.sign(seconds(silent), false, &health, &Silence::default());
        assert_eq!([lost(4.0), lost(6.0)].map(|sign| sign == Sign::Dead), [false, true]);
    }
}
