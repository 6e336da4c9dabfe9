//! Who sends to whom: ThunderServe §3.3's two-stage transportation problem, with the capacities it lacks.
//!
//! With Z_ij = X_i·Y_ij the problem is linear: maximise Σ Z_ij·D_ij where Z ≥ 0, Σ Z ≤ 1, rows and columns keep their
//! capacities (shares of the arriving rate), and each arc its own. As printed, without capacities, its optimum sends
//! everything over the single best pair. Solved exactly by successive best paths: each augmentation takes the path of
//! most profit in the residual graph, so the flow is optimal for its size throughout, and stops when a path no longer
//! gains.

/// Flows smaller than this are none.
const NOTHING: f64 = 1e-12;

/// A problem of `rows` × `columns` pairs, row by row.
#[derive(Clone, Copy, Debug)]
pub struct TransportProblem<'a> {
    /// D_ij: what each pair is worth for a unit of flow.
    pub value: &'a [f64],
    /// The most each pair carries; zero where two groups cannot work together.
    pub arc: &'a [f64],
    /// The most each row carries.
    pub row: &'a [f64],
    /// The most each column carries.
    pub column: &'a [f64],
}

/// Memory that a solver keeps between problems.
#[derive(Clone, Debug, Default)]
pub struct Solver {
    /// Z, row by row, of the last problem.
    pub flow: Vec<f64>,
    row_left: Vec<f64>,
    column_left: Vec<f64>,
    row_gain: Vec<f64>,
    column_gain: Vec<f64>,
    row_from: Vec<usize>,
    column_from: Vec<usize>,
    path: Vec<(usize, f64)>,
}

const NONE: usize = usize::MAX;

impl Solver {
    /// Solves; the flow is in [`Solver::flow`], its value is returned.
    pub fn solve(&mut self, problem: &TransportProblem<'_>) -> f64 {
        let (m, n) = (problem.row.len(), problem.column.len());
        self.flow.clear();
        self.flow.resize(m * n, 0.0);
        self.row_left.clear();
        self.row_left.extend_from_slice(problem.row);
        self.column_left.clear();
        self.column_left.extend_from_slice(problem.column);
        let mut left = 1.0;
        while left > NOTHING {
            let Some((gain, end)) = self.best_path(problem, m, n) else { break };
            if gain <= NOTHING {
                break;
            }
            left -= self.push(problem, end, left, n);
        }
        self.flow.iter().zip(problem.value).map(|(z, d)| z * d).sum()
    }

    /// The residual path of most gain from a row with capacity to a column with capacity (Bellman and Ford).
    fn best_path(&mut self, problem: &TransportProblem<'_>, m: usize, n: usize) -> Option<(f64, usize)> {
        self.row_gain.clear();
        self.row_gain.extend(self.row_left.iter().map(|l| if *l > NOTHING { 0.0 } else { f64::NEG_INFINITY }));
        self.row_from.clear();
        self.row_from.resize(m, NONE);
        self.column_gain.clear();
        self.column_gain.resize(n, f64::NEG_INFINITY);
        self.column_from.clear();
        self.column_from.resize(n, NONE);
        // A path visits each row once, so that many rounds suffice.
        for _ in 0..=m {
            let mut changed = false;
            for i in (0..m).filter(|&i| self.row_gain[i] > f64::NEG_INFINITY) {
                for j in 0..n {
                    let k = i * n + j;
                    let gain = self.row_gain[i] + problem.value[k];
                    if self.flow[k] + NOTHING < problem.arc[k] && gain > self.column_gain[j] + NOTHING {
                        (self.column_gain[j], self.column_from[j], changed) = (gain, i, true);
                    }
                }
            }
            if !changed {
                break;
            }
            for j in (0..n).filter(|&j| self.column_gain[j] > f64::NEG_INFINITY) {
                for i in 0..m {
                    let k = i * n + j;
                    let gain = self.column_gain[j] - problem.value[k];
                    if self.flow[k] > NOTHING && gain > self.row_gain[i] + NOTHING {
                        (self.row_gain[i], self.row_from[i]) = (gain, j);
                    }
                }
            }
        }
        let open = (0..n).filter(|&j| self.column_left[j] > NOTHING && self.column_from[j] != NONE);
        open.map(|j| (self.column_gain[j], j)).max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)))
    }

    /// Sends as much as fits along the path found to column `end`; returns how much.
    fn push(&mut self, problem: &TransportProblem<'_>, end: usize, most: f64, n: usize) -> f64 {
        let (mut column, mut amount) = (end, most.min(self.column_left[end]));
        self.path.clear();
        let start = loop {
            let i = self.column_from[column];
            self.path.push((i * n + column, 1.0));
            amount = amount.min(problem.arc[i * n + column] - self.flow[i * n + column]);
            match self.row_from[i] {
                NONE => break i,
                back => {
                    self.path.push((i * n + back, -1.0));
                    amount = amount.min(self.flow[i * n + back]);
                    column = back;
                }
            }
            // A path has no more steps than there are pairs; only rounding could make it a loop.
            if self.path.len() > 2 * self.flow.len() {
                return most;
            }
        };
        amount = amount.min(self.row_left[start]);
        for &(k, sign) in &self.path {
            self.flow[k] += sign * amount;
        }
        self.row_left[start] -= amount;
        self.column_left[end] -= amount;
        amount
    }
}
