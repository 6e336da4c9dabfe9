//! A bound by groups in pairs, that may be taken in part.
//!
//! A plan is valued at a ceiling on the load of either phase ([`tsnode_coordinator::scheduler::evaluate`]). At given ceilings
//! its requests are spread over pairs of groups, z_ij of them over a pair, of which D_ij are kept, by the evaluator's own
//! closed forms: both phases' times against one deadline, over the links between these two. Of devices of an instance k a
//! pair takes z_ij·(n_ik/c_i + n_jk/c_j), where c is the part of all requests that a group carries at the ceiling. So no plan
//! keeps more than the linear program
//!
//! > max Σ z·D where Σ z ≤ 1, and for each instance Σ z·(n_i/c_i + n_j/c_j) ≤ its devices
//!
//! over every group that there may be. A link at load u takes 1/(1−u) times as long, and all that use it together are no more
//! than u: a pair is a column for each step ℓ of the load, with D at that load, and takes z·s/ℓ of a row for each of its links, of
//! which there is 1, where s is the link's time for its requests. If a link has load ℓ all of its pairs take 1 of that
//! at most; columns of several loads side by side relax that.
//!
//! Columns are made where prices say that one gains (Gilmore and Gomory 1961). Ceilings are looked at in blocks: what is kept is
//! taken from the lowest loads in a block, what is carried from the highest, and blocks that may hold more than is known are
//! divided (branch and bound). Any prices make a bound, so rounding makes none wrong.
//!
//! It holds for plans as the evaluator values them: one pair of ceilings for all, groups configured as it finds best, prompts whole. Of
//! a cluster that is planned region by region each has ceilings of its own, and no bound by this.

use super::{
    columns::{ColumnKey, LoadBlock, PairColumns, gain},
    simplex::LinearProgram,
};
use tsnode_coordinator::scheduler::{
    pair::MOST_LOAD,
    problem::{Problem, PromptChunking},
};

/// What a column may gain without being looked at: how far a block's bound may be from the best there is.
const LITTLE: f64 = 5e-4;
/// Pairs looked at before prices are made anew.
const LOOKS: usize = 4_000;
/// Turns of columns and prices for a block.
const TURNS: usize = 200;
/// Blocks looked at.
const MOST_BLOCKS: usize = 400;

/// No plan keeps more; `None` where there are too many groups to say, or prompts come in chunks, for which the best of all groups
/// is not known to be as good as each.
pub(super) fn attainment(problem: &Problem, known: f64) -> Option<f64> {
    if problem.prompts != PromptChunking::Whole {
        return None;
    }
    let mut columns = PairColumns::new(problem)?;
    let whole = LoadBlock { prefill: (1, MOST_LOAD), decode: (1, MOST_LOAD) };
    let mut open: Vec<(f64, LoadBlock, Vec<ColumnKey>)> = vec![(1.0, whole, Vec::new())];
    // The highest bound of what was looked at as closely as can be.
    let mut closed = known;
    for _ in 0..MOST_BLOCKS {
        let next = (0..open.len()).max_by(|&a, &b| open[a].0.total_cmp(&open[b].0));
        let Some((bound, block, keys)) = next.map(|next| open.swap_remove(next)) else { break };
        if bound <= closed {
            return Some(closed);
        }
        let parts = divided(block);
        if parts.is_empty() {
            closed = closed.max(bound);
        }
        for part in parts {
            let (bound, keys) = most(&mut columns, part, &keys, closed);
            open.push((bound, part, keys));
        }
    }
    Some(open.iter().map(|o| o.0).fold(closed, f64::max))
}

/// The two halves of a block, of its longer side; none, of one load each.
fn divided(block: LoadBlock) -> Vec<LoadBlock> {
    let size = |(low, high): (u8, u8)| high - low;
    let halves = |(low, high): (u8, u8)| [(low, (low + high) / 2), ((low + high) / 2 + 1, high)];
    if size(block.prefill) == 0 && size(block.decode) == 0 {
        return Vec::new();
    }
    match size(block.prefill) >= size(block.decode) {
        true => halves(block.prefill).map(|prefill| LoadBlock { prefill, ..block }).to_vec(),
        false => halves(block.decode).map(|decode| LoadBlock { decode, ..block }).to_vec(),
    }
}

/// The most that is kept in a block, and the columns that say so, beginning with some that were good nearby. What is no more than
/// is known is not told closer.
fn most(columns: &mut PairColumns<'_>, block: LoadBlock, keys: &[ColumnKey], known: f64) -> (f64, Vec<ColumnKey>) {
    let mut valued = columns.valued(block);
    let mut program = LinearProgram::new(columns.rows());
    let mut keys = keys.to_vec();
    keys.iter().for_each(|key| program.add(columns.column(&mut valued, *key)));
    let mut bound = 1.0f64;
    for _ in 0..TURNS {
        program.solve();
        let prices = program.prices();
        let (new, is_all) = columns.gaining(&mut valued, &prices, LITTLE, LOOKS);
        let made: Vec<_> = new.iter().map(|key| columns.column(&mut valued, *key)).collect();
        if is_all {
            // No column gains more than the most of these does: a request's price that much higher leaves none.
            let beyond = made.iter().map(|column| gain(column, &prices)).fold(LITTLE, f64::max);
            bound = bound.min(program.worth(&prices) + beyond);
        }
        if (is_all && new.is_empty()) || bound <= known {
            break;
        }
        keys.extend(new);
        made.into_iter().for_each(|column| program.add(column));
    }
    (bound, program.used().into_iter().map(|column| keys[column]).collect())
}
