//! Cronus's balancer (§4.3, §4.4, App. A): how much of a prompt a slow machine computes before a fast one goes on with
//! the rest, in chunks beside its answers.

use tsnode_protocol::{Seconds, SecondsPerToken};

/// Lengths looked at for each prompt (App. A, Algorithm 1).
const CANDIDATES: u64 = 512;

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

    /// T_prefill.
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

    /// t_chunked.
    #[must_use]
    pub fn time(&self, before: f64, context: f64) -> Seconds {
        self.fixed + Seconds(self.per_before.0 * before + self.per_context.0 * context)
    }
}

/// The fast machine, as a request finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beside {
    /// Answers that run.
    pub answers: u32,
    /// Tokens they have before them, all together.
    pub context: u64,
    /// Blocks of KV that are free.
    pub free_blocks: u64,
    /// Tokens of a block.
    pub block: u32,
    /// Tokens of an iteration.
    pub tokens: u32,
}

impl Beside {
    /// Prompt tokens of an iteration (App. A: n_p).
    #[must_use]
    pub fn room(&self) -> u64 {
        u64::from(self.tokens.saturating_sub(self.answers).max(1))
    }

    /// Whether a prompt's KV finds room.
    #[must_use]
    pub fn takes(&self, prompt: u32) -> bool {
        self.free_blocks >= u64::from(prompt).div_ceil(u64::from(self.block.max(1)))
    }
}

/// What the average context in T_chunked is taken of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AverageContext {
    /// The whole prompt and the last chunk's context: as Algorithm 1 is printed.
    AsPrinted,
    /// The first chunk's context, which is the first part, and the last one's: what Equation 1 means.
    #[default]
    FirstAndLast,
}

/// Tokens of a prompt that the slow machine computes: what makes both take equally long, of the candidates
/// ⌈i·L/512⌉; the smallest of equals. All of it where the fast machine has no room (App. A, Algorithm 1, with n_d for its
/// first n_p and L_ctxd for its L_ctxp).
#[must_use]
pub fn first_part(prompt: u32, slow: &PromptFit, fast: &ChunkFit, beside: &Beside, average: AverageContext) -> u32 {
    if !beside.takes(prompt) {
        return prompt;
    }
    let difference = |first: u32| (slow.time(f64::from(first)) - rest(prompt, first, fast, beside, average)).0.abs();
    let mut best = (f64::INFINITY, prompt);
    for i in 1..=CANDIDATES {
        let first = (i * u64::from(prompt)).div_ceil(CANDIDATES) as u32;
        let difference = difference(first);
        if difference < best.0 {
            best = (difference, first);
        }
    }
    best.1
}

/// T_chunked: the iterations that the rest of a prompt takes.
fn rest(prompt: u32, first: u32, fast: &ChunkFit, beside: &Beside, average: AverageContext) -> Seconds {
    let (left, room) = (u64::from(prompt - first), beside.room());
    let last = u64::from(first) + left / room * room;
    let begin = match average {
        AverageContext::AsPrinted => u64::from(prompt),
        AverageContext::FirstAndLast => u64::from(first),
    };
    fast.time((begin + last) as f64 / 2.0, beside.context as f64) * left.div_ceil(room) as f64
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

    fn beside(answers: u32) -> Beside {
        Beside { answers, context: u64::from(answers) * 1000, free_blocks: 1000, block: 16, tokens: 512 }
    }

    #[test]
    fn a_busier_fast_machine_leaves_more_to_the_slow_one() {
        let of = |answers| first_part(4000, &SLOW, &FAST, &beside(answers), AverageContext::default());
        let parts: Vec<u32> = [0, 100, 200, 400, 511, 600].map(of).to_vec();
        assert!(parts.is_sorted() && parts[0] < parts[4], "{parts:?}");
        assert!(parts.iter().all(|p| (1..=4000).contains(p)));
    }

    #[test]
    fn both_take_about_equally_long() {
        let (prompt, beside) = (8000, beside(64));
        let first = first_part(prompt, &SLOW, &FAST, &beside, AverageContext::default());
        let fast = rest(prompt, first, &FAST, &beside, AverageContext::default());
        let iteration = FAST.time(8000.0, 64_000.0);
        assert!((SLOW.time(f64::from(first)) - fast).0.abs() < iteration.0);
    }

    #[test]
    fn without_room_the_slow_machine_computes_all() {
        let full = Beside { free_blocks: 62, ..beside(10) };
        assert_eq!(first_part(1000, &SLOW, &FAST, &full, AverageContext::default()), 1000);
        let room = Beside { free_blocks: 63, ..full };
        assert!(first_part(1000, &SLOW, &FAST, &room, AverageContext::default()) < 1000);
    }

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
