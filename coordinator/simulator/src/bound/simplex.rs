//! A linear program that columns are added to: maximise c·z where A·z ≤ b, z ≥ 0, b ≥ 0.
//!
//! The revised simplex method with the inverse of the basis written out: rows are few (tens), columns come while it runs. What is
//! taken from it are dual prices, and any prices make a bound, so rounding can make a bound weaker and never wrong.

/// Reduced costs below this gain nothing.
const NOTHING: f64 = 1e-9;
/// Pivots until the prices of now are good enough.
const MOST_PIVOTS: usize = 5_000;
/// Pivots without a gain after which the first column that may enter does: that cannot go round in circles (Bland).
const PATIENCE: usize = 50;
/// Pivots after which the inverse is made anew.
const FRESH: usize = 100;

/// A column: what a unit of it is worth, and what it takes of each row.
#[derive(Clone, Debug)]
pub(super) struct ProgramColumn {
    pub worth: f64,
    pub takes: Vec<(usize, f64)>,
}

pub(super) struct LinearProgram {
    /// b.
    most: Vec<f64>,
    /// A slack for each row, then what was added.
    columns: Vec<ProgramColumn>,
    /// By row, the column in the basis.
    basis: Vec<usize>,
    inverse: Vec<Vec<f64>>,
    /// What basic columns are at.
    level: Vec<f64>,
    pivots: usize,
}

impl LinearProgram {
    /// With no columns yet.
    pub fn new(most: Vec<f64>) -> Self {
        let n = most.len();
        let columns = (0..n).map(|row| ProgramColumn { worth: 0.0, takes: vec![(row, 1.0)] }).collect();
        Self { level: most.clone(), most, columns, basis: (0..n).collect(), inverse: unit(n), pivots: 0 }
    }

    pub fn add(&mut self, column: ProgramColumn) {
        self.columns.push(column);
    }

    /// Columns in the basis, as they were added.
    pub fn used(&self) -> Vec<usize> {
        self.basis.iter().filter_map(|column| column.checked_sub(self.most.len())).collect()
    }

    /// Dual prices of the rows, none below zero.
    pub fn prices(&self) -> Vec<f64> {
        self.duals().into_iter().map(|price| price.max(0.0)).collect()
    }

    /// What the rows are worth at these prices: with no column worth more than what it takes, no solution is worth more.
    pub fn worth(&self, prices: &[f64]) -> f64 {
        self.most.iter().zip(prices).map(|(b, y)| b * y).sum()
    }

    /// Makes the best of the columns there are.
    pub fn solve(&mut self) {
        let (mut idle, mut last) = (0, self.value());
        for _ in 0..MOST_PIVOTS {
            let prices = self.duals();
            let gain = |(k, c): (usize, &ProgramColumn)| (c.worth - taken(c, &prices), k);
            let mut gains = self.columns.iter().enumerate().map(gain).filter(|g| g.0 > NOTHING);
            let entering = match idle < PATIENCE {
                true => gains.max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1))),
                false => gains.next(),
            };
            let Some((_, entering)) = entering else { return };
            if !self.pivot(entering) {
                return;
            }
            let value = self.value();
            idle = if value > last + NOTHING { 0 } else { idle + 1 };
            last = value;
        }
    }

    fn value(&self) -> f64 {
        self.basis.iter().zip(&self.level).map(|(basic, level)| self.columns[*basic].worth * level).sum()
    }

    fn duals(&self) -> Vec<f64> {
        let mut prices = vec![0.0; self.most.len()];
        for (basic, row) in self.basis.iter().zip(&self.inverse) {
            let worth = self.columns[*basic].worth;
            if worth != 0.0 {
                prices.iter_mut().zip(row).for_each(|(price, x)| *price += worth * x);
            }
        }
        prices
    }

    /// What a column takes, in terms of the basis.
    fn seen(&self, column: &ProgramColumn) -> Vec<f64> {
        self.inverse.iter().map(|row| column.takes.iter().map(|(i, a)| row[*i] * a).sum()).collect()
    }

    /// Takes a column into the basis; false if nothing holds it.
    fn pivot(&mut self, entering: usize) -> bool {
        let seen = self.seen(&self.columns[entering]);
        let tight = (0..seen.len()).filter(|&i| seen[i] > 1e-10);
        let ratio = |i: usize| self.level[i].max(0.0) / seen[i];
        let leaving = tight.min_by(|&a, &b| ratio(a).total_cmp(&ratio(b)).then(self.basis[a].cmp(&self.basis[b])));
        let Some(leaving) = leaving else { return false };
        self.exchange(leaving, entering, &seen);
        self.pivots += 1;
        if self.pivots.is_multiple_of(FRESH) {
            self.refresh();
        }
        true
    }

    fn exchange(&mut self, leaving: usize, entering: usize, seen: &[f64]) {
        let pivot = seen[leaving];
        self.inverse[leaving].iter_mut().for_each(|x| *x /= pivot);
        self.level[leaving] /= pivot;
        let (row, level) = (self.inverse[leaving].clone(), self.level[leaving]);
        for i in (0..seen.len()).filter(|&i| i != leaving && seen[i] != 0.0) {
            self.inverse[i].iter_mut().zip(&row).for_each(|(x, r)| *x -= seen[i] * r);
            self.level[i] -= seen[i] * level;
        }
        self.basis[leaving] = entering;
    }

    /// The inverse from the basis alone, rid of what was rounded.
    fn refresh(&mut self) {
        let n = self.most.len();
        let basis = std::mem::replace(&mut self.basis, (0..n).collect());
        (self.inverse, self.level) = (unit(n), self.most.clone());
        let mut free: Vec<usize> = (0..n).filter(|row| !basis.contains(row)).collect();
        for entering in basis.into_iter().filter(|column| *column >= n) {
            let seen = self.seen(&self.columns[entering]);
            let at = (0..free.len()).max_by(|&a, &b| seen[free[a]].abs().total_cmp(&seen[free[b]].abs()));
            if let Some(at) = at.filter(|&at| seen[free[at]].abs() > 1e-12) {
                self.exchange(free.swap_remove(at), entering, &seen);
            }
        }
    }
}

fn unit(n: usize) -> Vec<Vec<f64>> {
    (0..n).map(|i| (0..n).map(|j| f64::from(u8::from(i == j))).collect()).collect()
}

/// What a unit of a column takes at these prices.
pub(super) fn taken(column: &ProgramColumn, prices: &[f64]) -> f64 {
    column.takes.iter().map(|(i, a)| prices[*i] * a).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of two products and three machines: 3x + 5y where x ≤ 4, 2y ≤ 12, 3x + 2y ≤ 18 is 36 at most (Dantzig's first example).
    #[test]
    fn finds_the_best_and_its_prices() {
        let mut program = LinearProgram::new(vec![4.0, 12.0, 18.0]);
        program.add(ProgramColumn { worth: 3.0, takes: vec![(0, 1.0), (2, 3.0)] });
        program.add(ProgramColumn { worth: 5.0, takes: vec![(1, 2.0), (2, 2.0)] });
        program.solve();
        let prices = program.prices();
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} and {b}");
        close(program.value(), 36.0);
        close(program.worth(&prices), 36.0);
        close(prices[1], 1.5);
        close(prices[2], 1.0);
    }
}
