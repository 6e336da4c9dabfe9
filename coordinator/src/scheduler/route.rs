//! The order of a pipeline's stages: a path through all of them over the best links (ThunderServe App. B, ②).
//!
//! A dynamic program over sets of stages, as in Held and Karp: exact up to [`EXACT`] stages; beyond, the nearest
//! neighbour first, from every start.

/// Stages up to which the best order is found for certain.
pub const EXACT: usize = 12;

/// What makes a path good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathObjective {
    /// The least sum of costs.
    Total,
    /// The least of the largest costs.
    Bottleneck,
}

impl PathObjective {
    fn join(self, path: f64, step: f64) -> f64 {
        match self {
            Self::Total => path + step,
            Self::Bottleneck => path.max(step),
        }
    }
}

/// The best order of `n` stages and its cost, where `cost(i, j)` is that of a step from i to j.
#[must_use]
pub fn best(n: usize, aim: PathObjective, cost: impl Fn(usize, usize) -> f64) -> (Vec<usize>, f64) {
    match n {
        0 => (Vec::new(), 0.0),
        1 => (vec![0], 0.0),
        _ if n <= EXACT => exact(n, aim, cost),
        _ => nearest(n, aim, cost),
    }
}

fn exact(n: usize, aim: PathObjective, cost: impl Fn(usize, usize) -> f64) -> (Vec<usize>, f64) {
    let full = (1usize << n) - 1;
    // For each set of visited stages and its last: the path's cost and the stage before.
    let mut states = vec![(f64::INFINITY, usize::MAX); (full + 1) * n];
    for start in 0..n {
        states[(1 << start) * n + start] = (0.0, usize::MAX);
    }
    for set in 1..=full {
        for last in (0..n).filter(|l| set >> l & 1 == 1) {
            let (so_far, _) = states[set * n + last];
            if so_far == f64::INFINITY && set.count_ones() > 1 {
                continue;
            }
            for next in (0..n).filter(|x| set >> x & 1 == 0) {
                let then = aim.join(so_far, cost(last, next));
                let state = &mut states[(set | 1 << next) * n + next];
                if then < state.0 || state.1 == usize::MAX {
                    *state = (then, last);
                }
            }
        }
    }
    let end = (0..n).min_by(|&a, &b| states[full * n + a].0.total_cmp(&states[full * n + b].0)).unwrap_or(0);
    let total = states[full * n + end].0;
    let (mut order, mut set, mut at) = (Vec::with_capacity(n), full, end);
    while at != usize::MAX {
        order.push(at);
        let before = states[set * n + at].1;
        set &= !(1 << at);
        at = before;
    }
    order.reverse();
    (order, total)
}

fn nearest(n: usize, aim: PathObjective, cost: impl Fn(usize, usize) -> f64) -> (Vec<usize>, f64) {
    let walk = |start: usize| {
        let (mut order, mut left, mut total) = (vec![start], vec![true; n], 0.0);
        left[start] = false;
        let mut at = start;
        while let Some(next) =
            (0..n).filter(|&x| left[x]).min_by(|&a, &b| cost(at, a).total_cmp(&cost(at, b)).then(a.cmp(&b)))
        {
            total = aim.join(total, cost(at, next));
            left[next] = false;
            order.push(next);
            at = next;
        }
        (order, total)
    };
    (0..n).map(walk).min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_default()
}
