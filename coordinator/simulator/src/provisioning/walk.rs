//! The lattice of two counts, machines for prompts and machines for answers: the lightest mix that keeps a rate, and the
//! mix within budgets that keeps the most.
//!
//! More machines keep what fewer keep, and a lower rate is kept where a higher one is. So a mix that is kept or missed
//! speaks for all on one side of it, and a best mix is proven by the largest mixes that would be better: one for each
//! number of answer machines. They are tried from the best outwards; where one is kept, halving finds the best there.
//! Simulations are monotone nearly everywhere only: what is found was simulated, and what is just below a mix that misses
//! is tried all the same.

use serde::Serialize;
use std::ops::RangeInclusive;

/// How much a mix grows until it keeps.
const GROWTH: f64 = 1.4;
/// Machines fewer than those of a mix that misses with which another surely misses too.
const CLEARLY: u32 = 3;
/// Rounding, as a part.
const ROUNDING: f64 = 1e-9;

/// Machines of each pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Mix {
    /// For prompts; for both, where there is one pool.
    pub prompts: u32,
    /// For answers.
    pub answers: u32,
}

impl Mix {
    /// Whether it has no more of either.
    fn is_within(self, other: Self) -> bool {
        self.prompts <= other.prompts && self.answers <= other.answers
    }

    /// What it takes, by what a machine of each pool takes.
    #[must_use]
    pub fn weight(self, weights: [f64; 2]) -> f64 {
        weights[0] * f64::from(self.prompts) + weights[1] * f64::from(self.answers)
    }
}

/// How many pools there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolShape {
    /// One for prompts, one for answers.
    Two,
    /// One that does both.
    One,
}

/// What no mix may exceed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// What a machine of each pool takes.
    pub weights: [f64; 2],
    /// What all may take.
    pub most: f64,
}

/// The mixes that are allowed.
#[derive(Clone, Debug, PartialEq)]
pub struct MixSpace {
    /// The pools.
    pub shape: PoolShape,
    /// Budgets.
    pub limits: Vec<Limit>,
    /// Most machines in a pool.
    pub machines: u32,
}

impl MixSpace {
    /// The most prompt machines beside so many for answers; 0 if there is no such mix.
    fn most_prompts(&self, answers: u32, also: Option<&Limit>) -> u32 {
        let left = |limit: &Limit| {
            let [prompts, each] = limit.weights;
            let left = (limit.most - each * f64::from(answers)).max(0.0);
            // What takes nothing is not limited by it.
            if prompts > 0.0 { (left / prompts) as u32 } else { self.machines }
        };
        self.limits.iter().chain(also).map(left).fold(self.machines, u32::min)
    }

    /// Numbers of answer machines beside which there can be one for prompts.
    fn answers(&self, also: Option<&Limit>) -> RangeInclusive<u32> {
        match self.shape {
            PoolShape::One => 0..=0,
            PoolShape::Two => {
                let left = |l: &Limit| {
                    let left = (l.most - l.weights[0]).max(0.0);
                    if l.weights[1] > 0.0 { (left / l.weights[1]) as u32 } else { self.machines }
                };
                1..=self.limits.iter().chain(also).map(left).fold(self.machines, u32::min)
            }
        }
    }

    /// The same numbers, the nearest to one of them first.
    fn answers_from(&self, middle: u32, also: Option<&Limit>) -> Vec<u32> {
        let mut all: Vec<u32> = self.answers(also).collect();
        all.sort_by_key(|n| (n.abs_diff(middle), *n));
        all
    }

    /// The mix, or as much of it as is allowed; `None` if nothing is.
    fn nearest(&self, mix: Mix) -> Option<Mix> {
        let range = self.answers(None);
        let answers = mix.answers.min(*range.end()).max(*range.start());
        let prompts = mix.prompts.clamp(1, self.machines).min(self.most_prompts(answers, None));
        (range.contains(&answers) && prompts > 0).then_some(Mix { prompts, answers })
    }
}

/// A mix that was tried.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TriedMix {
    /// Which.
    pub mix: Mix,
    /// At which rate.
    pub rate: f64,
    /// Whether it kept that.
    pub kept: bool,
}

/// The best mix so far, and the steps of rate it keeps where that is sought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BestMix {
    /// The mix.
    pub mix: Mix,
    /// Multiples of the step.
    pub steps: u32,
}

/// A search. `look` tries a mix at a rate; `None` from it ends the search with the best so far.
pub struct MixWalk<'a> {
    space: &'a MixSpace,
    look: &'a mut dyn FnMut(Mix, f64) -> Option<bool>,
    /// The best so far.
    pub best: Option<BestMix>,
    /// What was tried, in order.
    pub looks: Vec<TriedMix>,
}

impl<'a> MixWalk<'a> {
    /// In a space.
    pub fn new(space: &'a MixSpace, look: &'a mut dyn FnMut(Mix, f64) -> Option<bool>) -> Self {
        Self { space, look, best: None, looks: Vec::new() }
    }

    /// Finds the mix of the least weight that keeps a rate; `None` if that was stopped.
    pub fn lightest(&mut self, weights: [f64; 2], rate: f64, start: Mix) -> Option<()> {
        self.grow(rate, start)?;
        loop {
            let lighter = self.best.map(|b| Limit { weights, most: b.mix.weight(weights) * (1.0 - ROUNDING) });
            let middle = self.best.map_or(start.answers, |b| b.mix.answers);
            let Some(mix) = self.first_kept(lighter.as_ref(), middle, rate)? else { return Some(()) };
            self.shrink(mix, rate)?;
        }
    }

    /// A first mix that keeps the rate, by more and more of both.
    fn grow(&mut self, rate: f64, start: Mix) -> Option<()> {
        let Some(mut mix) = self.space.nearest(start) else { return Some(()) };
        loop {
            if self.keeps(mix, rate)? {
                self.best = Some(BestMix { mix, steps: 0 });
                return Some(());
            }
            let more = |n: u32| if n == 0 { 0 } else { (f64::from(n) * GROWTH).ceil() as u32 };
            match self.space.nearest(Mix { prompts: more(mix.prompts), answers: more(mix.answers) }) {
                Some(next) if next != mix => mix = next,
                _ => return Some(()),
            }
        }
    }

    /// Of the largest mixes within one more limit, the first that keeps the rate.
    fn first_kept(&mut self, also: Option<&Limit>, middle: u32, rate: f64) -> Option<Option<Mix>> {
        for answers in self.space.answers_from(middle, also) {
            let prompts = self.space.most_prompts(answers, also);
            let mix = Mix { prompts, answers };
            if prompts > 0 && self.keeps(mix, rate)? {
                return Some(Some(mix));
            }
        }
        Some(None)
    }

    /// Fewer prompt machines, then fewer for answers, as far as the rate is kept.
    fn shrink(&mut self, mix: Mix, rate: f64) -> Option<()> {
        self.best = Some(BestMix { mix, steps: 0 });
        let prompts = self.least(mix.prompts, rate, |prompts| Mix { prompts, ..mix })?;
        let mix = Mix { prompts, ..mix };
        self.least(mix.answers, rate, |answers| Mix { answers, ..mix })?;
        Some(())
    }

    /// The least number that keeps the rate, by halves; so many do.
    fn least(&mut self, mut high: u32, rate: f64, with: impl Fn(u32) -> Mix) -> Option<u32> {
        let mut low = 0;
        while low + 1 < high {
            let middle = u32::midpoint(low, high);
            if self.keeps(with(middle), rate)? {
                high = middle;
                self.best = Some(BestMix { mix: with(middle), steps: 0 });
            } else {
                low = middle;
            }
        }
        Some(high)
    }

    /// Finds the mix that keeps the most steps of rate; `None` if that was stopped. `start` says where to begin.
    pub fn most(&mut self, step: f64, start: BestMix) -> Option<()> {
        for answers in self.space.answers_from(start.mix.answers, None) {
            let prompts = self.space.most_prompts(answers, None);
            let mix = Mix { prompts, answers };
            let known = self.best.map_or(0, |b| b.steps);
            // Only one that keeps more than the best is looked at further.
            let first = if known == 0 { start.steps.max(1) } else { known + 1 };
            if prompts > 0 {
                self.climb(mix, step, known, first)?;
            }
        }
        Some(())
    }

    /// The most steps that a mix keeps, if more than are `known` to be kept by another; the first one tried is given.
    pub(super) fn climb(&mut self, mix: Mix, step: f64, known: u32, first: u32) -> Option<()> {
        let (mut low, mut high, mut jump) = (known, None, 1u32);
        let mut next = first;
        loop {
            if self.keeps(mix, step * f64::from(next))? {
                (low, self.best) = (next, Some(BestMix { mix, steps: next }));
            } else if known > 0 && next == known + 1 {
                return Some(());
            } else {
                high = Some(next);
            }
            // Up or down in larger and larger jumps; between two that are known, by halves.
            next = match high {
                None => low.saturating_add(jump),
                Some(high) if low + 1 >= high => return Some(()),
                Some(high) if low == known => high.saturating_sub(jump).max(known + 1),
                Some(high) => u32::midpoint(low, high),
            };
            jump = jump.saturating_mul(2);
        }
    }

    /// Whether a mix keeps a rate: known from others, or tried.
    fn keeps(&mut self, mix: Mix, rate: f64) -> Option<bool> {
        let says = |l: &TriedMix| match l.kept {
            true => l.mix.is_within(mix) && l.rate >= rate,
            // Just below one that is missed there may be one that is kept: slow machines are not always a help.
            false => {
                let fewer = (l.mix.prompts + l.mix.answers).saturating_sub(mix.prompts + mix.answers);
                mix.is_within(l.mix) && rate >= l.rate && (fewer == 0 || fewer >= CLEARLY)
            }
        };
        if let Some(look) = self.looks.iter().find(|l| says(l)) {
            return Some(look.kept);
        }
        let kept = (self.look)(mix, rate)?;
        self.looks.push(TriedMix { mix, rate, kept });
        Some(kept)
    }
}
