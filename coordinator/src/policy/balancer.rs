//! How much of a prompt a slow machine computes before a fast one goes on with the rest, in chunks beside its answers: our rule,
//! with the predictors of Cronus's balancer (§4.3). Its own rule, Algorithm 1, is in the simulator.

use tsnode_protocol::{Seconds, SecondsPerToken};

/// Iterations of work that the fast machine is left with where the slow one is just in time (docs/research/cronus.md).
pub(crate) const SPARED: f64 = 1.5;
/// First parts that a slow machine has before other requests wait: one that is computed, and one that is next.
pub(crate) const AT_ONCE: usize = 2;

/// What computing a prompt takes on the slow machine: `fixed + per_token·L` (Equation 2: b_p, k_p).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PromptFit {
    /// Whatever the length.
    pub fixed: Seconds,
    /// For each token.
    pub per_token: SecondsPerToken,
}

/// What an iteration takes on the fast machine when it is full: `fixed + per_before·L + per_context·Σctx` (Equation 3:
/// b_c, k_ctxp, k_ctxd).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChunkFit {
    /// Whatever is in it.
    pub fixed: Seconds,
    /// For each token of the prompt before its chunk.
    pub per_before: SecondsPerToken,
    /// For each token that answers have before them.
    pub per_context: SecondsPerToken,
}

impl PromptFit {
    /// By least squares from prompts' lengths (tokens) and times; `None` if they do not say.
    #[must_use]
    pub fn of(measured: &[(f64, Seconds)]) -> Option<Self> {
        let rows: Vec<([f64; 2], f64)> = measured.iter().map(|(l, t)| ([1.0, *l], t.0)).collect();
        let [fixed, per_token] = least_squares(&rows)?;
        Some(Self { fixed: Seconds(fixed), per_token: SecondsPerToken(per_token) })
    }

    /// T_prefill: what a prompt of so many tokens takes on the slow machine.
    #[must_use]
    pub fn time(&self, tokens: f64) -> Seconds {
        self.fixed + Seconds(self.per_token.0 * tokens)
    }
}

impl ChunkFit {
    /// By least squares from full iterations: tokens before the chunk, tokens before the answers, time.
    #[must_use]
    pub fn of(measured: &[(f64, f64, Seconds)]) -> Option<Self> {
        let rows: Vec<([f64; 3], f64)> = measured.iter().map(|(l, c, t)| ([1.0, *l, *c], t.0)).collect();
        let [fixed, per_before, per_context] = least_squares(&rows)?;
        Some(Self {
            fixed: Seconds(fixed),
            per_before: SecondsPerToken(per_before),
            per_context: SecondsPerToken(per_context),
        })
    }

    /// t_chunked: what one chunk takes behind `before` tokens of its prompt, beside answers with `context` tokens.
    #[must_use]
    pub fn time(&self, before: f64, context: f64) -> Seconds {
        self.fixed + Seconds(self.per_before.0 * before + self.per_context.0 * context)
    }
}

/// Work that machines have ahead of them (s).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ahead {
    /// The slow one.
    pub slow: Seconds,
    /// The fast one, what comes to it from the slow one included.
    pub fast: Seconds,
}

/// Tokens of a prompt that the slow machine computes: as many as it can before the fast one gets to them, so that neither
/// waits for the other and a prompt that finds the fast one idle is not held up. Ours, with Cronus's predictors.
#[must_use]
pub fn ready_part(prompt: u32, slow: &PromptFit, ahead: Ahead) -> u32 {
    let spare = ahead.fast - ahead.slow - slow.fixed;
    if spare <= Seconds(0.0) {
        return 0;
    }
    (spare.0 / slow.per_token.0.max(f64::MIN_POSITIVE)).min(f64::from(prompt)) as u32
}

/// x of least ‖Ax − b‖, by the normal equations; `None` where the rows do not determine it.
fn least_squares<const N: usize>(rows: &[([f64; N], f64)]) -> Option<[f64; N]> {
    let (mut a, mut b) = ([[0.0; N]; N], [0.0; N]);
    for (x, y) in rows {
        for i in 0..N {
            (0..N).for_each(|j| a[i][j] += x[i] * x[j]);
            b[i] += x[i] * y;
        }
    }
    for i in 0..N {
        let pivot = (i..N).max_by(|p, q| a[*p][i].abs().total_cmp(&a[*q][i].abs()))?;
        a.swap(i, pivot);
        b.swap(i, pivot);
        if a[i][i].abs() < f64::MIN_POSITIVE {
            return None;
        }
        for k in (0..N).filter(|k| *k != i) {
            let factor = a[k][i] / a[i][i];
            (0..N).for_each(|j| a[k][j] -= factor * a[i][j]);
            b[k] -= factor * b[i];
        }
    }
    let solved = std::array::from_fn(|i| b[i] / a[i][i]);
    solved.iter().all(|x: &f64| x.is_finite()).then_some(solved)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: PromptFit = PromptFit { fixed: Seconds(0.01), per_token: SecondsPerToken(2e-4) };
    const FAST: ChunkFit =
        ChunkFit { fixed: Seconds(0.04), per_before: SecondsPerToken(2e-6), per_context: SecondsPerToken(1e-7) };

    #[test]
    fn the_slow_machine_gets_what_it_can_do_in_time() {
        let of = |slow: f64, fast: f64| ready_part(1000, &SLOW, Ahead { slow: Seconds(slow), fast: Seconds(fast) });
        assert_eq!((of(0.0, 0.0), of(0.1, 0.05)), (0, 0));
        assert_eq!(of(0.0, 0.06001), 250);
        assert_eq!(of(0.0, 9.0), 1000);
    }

    #[test]
    fn fits_find_what_times_were_made_of() {
        let lengths: Vec<(f64, Seconds)> =
            (1..20).map(|l| (f64::from(l) * 100.0, SLOW.time(f64::from(l) * 100.0))).collect();
        let slow = PromptFit::of(&lengths).unwrap();
        assert!((slow.per_token.0 / SLOW.per_token.0 - 1.0).abs() < 1e-9, "{slow:?}");
        let grid = (0..10).flat_map(|l| (0..10).map(move |c| (f64::from(l) * 300.0, f64::from(c) * 20_000.0)));
        let fast = ChunkFit::of(&grid.map(|(l, c)| (l, c, FAST.time(l, c))).collect::<Vec<_>>()).unwrap();
        assert!((fast.per_before.0 / FAST.per_before.0 - 1.0).abs() < 1e-6, "{fast:?}");
        assert!((fast.fixed.0 / FAST.fixed.0 - 1.0).abs() < 1e-6, "{fast:?}");
        assert!(PromptFit::of(&lengths[..1]).is_none());
    }
}
