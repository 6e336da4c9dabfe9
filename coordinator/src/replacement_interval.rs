//! How long a placement stands before the next (SeaLLM §4.3, Equation 8): longer where all is as it was expected to be, shorter
//! where it is not. Models that take turns in devices' memory stand so long on running peers ([`crate::control`]), and placements
//! that follow a trace in the simulator.

use tsnode_protocol::Seconds;

/// Between which lengths an interval stays, and how fast it changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// I₀: the first interval.
    pub start: Seconds,
    /// No interval is shorter: a placement must last longer than getting to it takes. The paper has no such bound.
    pub least: Seconds,
    /// No interval is longer.
    pub most: Seconds,
    /// β: the part by which what is measured may differ from what was expected, and by which the interval changes then.
    pub beta: f64,
}

/// How long the present interval is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplacementInterval {
    bounds: Bounds,
    length: Seconds,
}

impl ReplacementInterval {
    /// The first one.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, length: bounds.start.max(bounds.least).min(bounds.most) }
    }

    /// How long the present interval is.
    #[must_use]
    pub fn length(&self) -> Seconds {
        self.length
    }

    /// It is over, and what was measured in it was off what had been expected by such a part: the next one begins.
    pub fn over(&mut self, off: f64) {
        let Bounds { least, most, beta, .. } = self.bounds;
        let factor = if off > beta { -beta } else { beta };
        self.length = (self.length * (1.0 + factor)).max(least).min(most);
    }

    /// It is cut short: what it was planned for is no more.
    pub fn cut(&mut self) {
        self.length = self.bounds.least;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_equation_8_within_bounds() {
        let bounds = Bounds { start: Seconds(100.0), least: Seconds(85.0), most: Seconds(115.0), beta: 0.1 };
        let mut interval = ReplacementInterval::new(bounds);
        let mut over = |off| {
            interval.over(off);
            (interval.length().0 * 100.0).round() / 100.0
        };
        assert_eq!([over(0.05), over(0.0), over(0.2), over(3.0), over(0.11)], [110.0, 115.0, 103.5, 93.15, 85.0]);
        interval.over(0.0);
        interval.cut();
        assert_eq!(interval.length(), Seconds(85.0));
        let narrow = Bounds { start: Seconds(5.0), ..bounds };
        assert_eq!(ReplacementInterval::new(narrow).length(), Seconds(85.0));
    }
}
