//! What machines did when, in bins of time, and the gaps between tokens. Kept only for simulations that ask for it, in
//! memory that does not grow with their length.

use super::ring::Passing;
use crate::policy::{batching::Batch, routing::MachineNo};
use tsnode_protocol::Seconds;

/// Most bins of a machine: at twice the time they become twice as wide.
const BINS: usize = 512;
/// Width they begin with.
const NARROWEST: Seconds = Seconds(0.05);
/// A gap is told within this part of it.
const RESOLUTION: f64 = 0.01;
/// Gaps no longer than this are one.
const SHORTEST: f64 = 1e-5;
/// Bins of gaps: the last is for anything above about three days.
const GAPS: usize = 1200;

/// Time that a machine was busy with what (s).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BusyTime {
    /// With prompts alone.
    pub prompts: f64,
    /// With answers alone.
    pub answers: f64,
    /// With both in one iteration.
    pub both: f64,
}

impl BusyTime {
    /// Time busy with prompts, answers or both.
    #[must_use]
    pub fn all(&self) -> f64 {
        self.prompts + self.answers + self.both
    }

    fn add(&mut self, batch: &Batch, time: f64) {
        match (batch.prompts, batch.answers) {
            (0, _) => self.answers += time,
            (_, 0) => self.prompts += time,
            _ => self.both += time,
        }
    }

    fn and(self, other: Self) -> Self {
        Self {
            prompts: self.prompts + other.prompts,
            answers: self.answers + other.answers,
            both: self.both + other.both,
        }
    }
}

/// A machine's past.
#[derive(Clone, Debug, Default)]
struct MachinePast {
    bins: Vec<BusyTime>,
    /// Answers that begin with what runs now.
    beginning: u32,
    /// Its last iteration with answers ended.
    answered: Option<Seconds>,
}

/// What machines did when.
#[derive(Clone, Debug)]
pub struct Timeline {
    width: Seconds,
    rows: Vec<MachinePast>,
    gaps: Gaps,
}

impl Timeline {
    /// Of so many machines, before anything happened.
    #[must_use]
    pub fn new(machines: usize) -> Self {
        Self { width: NARROWEST, rows: vec![MachinePast::default(); machines], gaps: Gaps::default() }
    }

    /// There is one more machine.
    pub(super) fn opens(&mut self) {
        self.rows.push(MachinePast::default());
    }

    /// Width of a bin.
    #[must_use]
    pub fn width(&self) -> Seconds {
        self.width
    }

    /// A machine's bins, from time 0 to the last in which it was busy.
    #[must_use]
    pub fn busy(&self, machine: MachineNo) -> &[BusyTime] {
        self.rows.get(machine.0 as usize).map_or(&[], |r| &r.bins)
    }

    /// Gaps between one token of an answer and the next, all answers together.
    #[must_use]
    pub fn gaps(&self) -> &Gaps {
        &self.gaps
    }

    /// An answer begins with the batch that begins: its second token comes so long after its first.
    pub(super) fn begins(&mut self, machine: MachineNo, gap: Seconds) {
        self.rows[machine.0 as usize].beginning += 1;
        self.gaps.add(gap, 1);
    }

    /// A batch has run for some iterations of `step` each. Its answers that ran before had their last token when this
    /// machine last ran answers: of one that was put off meanwhile the gap is told too short.
    pub(super) fn ran(&mut self, machine: MachineNo, batch: &Batch, iterations: u32, started: Seconds, step: Seconds) {
        let end = started + step * f64::from(iterations);
        self.spread(machine, batch, started, end);
        if batch.answers == 0 {
            return;
        }
        let row = &mut self.rows[machine.0 as usize];
        let beginning = std::mem::take(&mut row.beginning);
        let before = row.answered.replace(end).unwrap_or(started);
        self.gaps.add(started + step - before, u64::from(batch.answers.saturating_sub(beginning)));
        self.gaps.add(step, u64::from(batch.answers) * u64::from(iterations.saturating_sub(1)));
    }

    /// A batch has come through a pipeline: it kept each stage for a while, and its answers' tokens are as far apart as it
    /// took, if they set off again at once.
    pub(super) fn passed(&mut self, machine: MachineNo, passing: &Passing, now: Seconds) {
        let Passing { batch, entered, busy } = passing;
        self.spread(machine, batch, now - *busy, now);
        let beginning = std::mem::take(&mut self.rows[machine.0 as usize].beginning);
        self.gaps.add(now - *entered, u64::from(batch.answers.saturating_sub(beginning)));
    }

    /// Time from `start` to `end` into the bins it lies in.
    fn spread(&mut self, machine: MachineNo, batch: &Batch, start: Seconds, end: Seconds) {
        while end >= self.width * BINS as f64 && end.is_finite() {
            self.widen();
        }
        let width = self.width.0;
        let bins = &mut self.rows[machine.0 as usize].bins;
        let (first, last) = ((start.0 / width) as usize, ((end.0 / width) as usize).min(BINS - 1));
        if bins.len() <= last {
            bins.resize(last + 1, BusyTime::default());
        }
        for (place, bin) in bins.iter_mut().enumerate().take(last + 1).skip(first) {
            let (from, to) = (place as f64 * width, (place + 1) as f64 * width);
            bin.add(batch, (end.0.min(to) - start.0.max(from)).max(0.0));
        }
    }

    /// Two bins become one.
    fn widen(&mut self) {
        self.width = self.width * 2.0;
        for row in &mut self.rows {
            let pair = |two: &[BusyTime]| two.iter().fold(BusyTime::default(), |a, b| a.and(*b));
            row.bins = row.bins.chunks(2).map(pair).collect();
        }
    }
}

/// How often tokens of an answer came how far apart: a histogram of equal steps on a logarithmic scale.
#[derive(Clone, Debug, PartialEq)]
pub struct Gaps {
    bins: Vec<u64>,
    count: u64,
    sum: f64,
    longest: f64,
}

impl Default for Gaps {
    fn default() -> Self {
        Self { bins: vec![0; GAPS], count: 0, sum: 0.0, longest: 0.0 }
    }
}

impl Gaps {
    fn add(&mut self, gap: Seconds, times: u64) {
        if times == 0 || !gap.is_finite() {
            return;
        }
        let gap = gap.0.max(0.0);
        let place = ((gap / SHORTEST).max(1.0).ln() / step()) as usize;
        self.bins[place.min(GAPS - 1)] += times;
        self.count += times;
        self.sum += gap * times as f64;
        self.longest = self.longest.max(gap);
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The gap that a share of them does not pass, within a hundredth; 0 of none.
    #[must_use]
    pub fn at(&self, share: f64) -> Seconds {
        let wanted = (share.clamp(0.0, 1.0) * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let found = self.bins.iter().position(|n| {
            seen += n;
            seen >= wanted
        });
        let middle = |place: usize| SHORTEST * ((place as f64 + 0.5) * step()).exp();
        Seconds(found.map_or(0.0, |place| middle(place).min(self.longest)))
    }

    /// Their mean; 0 of none.
    #[must_use]
    pub fn mean(&self) -> Seconds {
        Seconds(self.sum / self.count.max(1) as f64)
    }

    /// The longest gap; 0 of none.
    #[must_use]
    pub fn longest(&self) -> Seconds {
        Seconds(self.longest)
    }
}

/// Of a bin, on the logarithmic scale: its middle is within the resolution of anything in it.
fn step() -> f64 {
    2.0 * (1.0 + RESOLUTION).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWERS: Batch = Batch {
        service: crate::policy::batching::ServiceNo(0),
        prompts: 0,
        prompt_tokens: 0,
        prompt_squares: 0,
        answers: 2,
        context: 10,
        iterations: 3,
    };
    const PROMPT: Batch = Batch { prompts: 1, answers: 0, ..ANSWERS };
    const ONE: MachineNo = MachineNo(0);

    #[test]
    fn busy_time_is_kept_when_bins_widen() {
        let mut timeline = Timeline::new(1);
        for second in 0..10_000u32 {
            let batch = if second % 4 == 0 { PROMPT } else { ANSWERS };
            timeline.ran(ONE, &batch, 1, Seconds(f64::from(second)), Seconds(0.5));
        }
        let sum = timeline.busy(ONE).iter().fold(BusyTime::default(), |a, b| a.and(*b));
        assert!((sum.prompts - 1250.0).abs() < 1e-6 && (sum.answers - 3750.0).abs() < 1e-6, "{sum:?}");
        assert!(timeline.busy(ONE).len() <= BINS && timeline.width() * BINS as f64 > Seconds(9999.0));
        assert!(timeline.busy(ONE).iter().all(|b| b.all() <= timeline.width().0 + 1e-9));
    }

    /// Two answers, three iterations of 0.1 s, a prompt of 1 s between, three more: four gaps of 0.1 s each time, and two
    /// of 1.1 s.
    #[test]
    fn a_prompt_between_iterations_is_a_long_gap() {
        let mut timeline = Timeline::new(1);
        timeline.begins(ONE, Seconds(0.1));
        timeline.begins(ONE, Seconds(0.1));
        timeline.ran(ONE, &ANSWERS, 3, Seconds(0.0), Seconds(0.1));
        timeline.ran(ONE, &PROMPT, 1, Seconds(0.3), Seconds(1.0));
        timeline.ran(ONE, &ANSWERS, 3, Seconds(1.3), Seconds(0.1));
        let gaps = timeline.gaps();
        assert_eq!(gaps.count(), 12);
        assert!((gaps.longest().0 - 1.1).abs() < 1e-9);
        assert!((gaps.at(0.5).0 / 0.1 - 1.0).abs() < 0.011 && (gaps.at(0.9).0 / 1.1 - 1.0).abs() < 0.011);
        assert!((gaps.mean().0 - (10.0 * 0.1 + 2.0 * 1.1) / 12.0).abs() < 1e-9);
    }
}
