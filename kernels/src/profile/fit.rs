//! Least squares over three coefficients none of which is negative, and how far a fit is from what it has not seen.

use tsnode_protocol::Misfit;

/// What was timed: the row whose product with the coefficients is its time, and the seconds it took.
pub(super) type Timed = ([f64; 3], f64);

/// The coefficients x ≥ 0 of least Σ((row·x − seconds)/seconds)²: a short step's error counts as a long one's.
///
/// Where the best is, some coefficients are nothing and the others solve plain least squares; there are seven choices of
/// the others, so all are tried.
pub(super) fn non_negative(timed: &[Timed]) -> [f64; 3] {
    let rows: Vec<[f64; 3]> = timed.iter().map(|(row, seconds)| row.map(|x| x / seconds)).collect();
    let solved = (1..8u8).filter_map(|chosen| least_squares(&rows, chosen)).filter(|x| x.iter().all(|c| *c >= 0.0));
    let error = |x: &[f64; 3]| rows.iter().map(|row| (dot(row, x) - 1.0).powi(2)).sum::<f64>();
    solved.min_by(|x, y| error(x).total_cmp(&error(y))).unwrap_or_default()
}

/// x of least Σ(row·x − 1)² with the chosen coefficients, one a bit, and no others; `None` where rows do not say.
fn least_squares(rows: &[[f64; 3]], chosen: u8) -> Option<[f64; 3]> {
    let chosen: Vec<usize> = (0..3).filter(|i| chosen >> i & 1 == 1).collect();
    // Columns of length one, so that the pivots below compare.
    let length = |i: usize| rows.iter().map(|row| row[i] * row[i]).sum::<f64>().sqrt();
    let lengths: Vec<f64> = chosen.iter().map(|i| length(*i)).collect();
    if lengths.iter().any(|l| !l.is_normal()) {
        return None;
    }
    // Orthogonal columns one after the other (modified Gram–Schmidt): the normal equations would square the condition.
    let mut columns: Vec<Vec<f64>> =
        chosen.iter().zip(&lengths).map(|(i, l)| rows.iter().map(|row| row[*i] / l).collect()).collect();
    let mut rest = vec![1.0; rows.len()];
    let n = chosen.len();
    let (mut upper, mut right) = ([[0.0; 3]; 3], [0.0; 3]);
    for i in 0..n {
        upper[i][i] = inner(&columns[i], &columns[i]).sqrt();
        if upper[i][i] < 1e-9 {
            return None;
        }
        let unit: Vec<f64> = columns[i].iter().map(|x| x / upper[i][i]).collect();
        for j in i + 1..n {
            upper[i][j] = inner(&unit, &columns[j]);
            columns[j].iter_mut().zip(&unit).for_each(|(x, u)| *x -= upper[i][j] * u);
        }
        right[i] = inner(&unit, &rest);
        rest.iter_mut().zip(&unit).for_each(|(x, u)| *x -= right[i] * u);
    }
    let mut x = [0.0; 3];
    for i in (0..n).rev() {
        let later: f64 = (i + 1..n).map(|j| upper[i][j] * x[chosen[j]] * lengths[j]).sum();
        x[chosen[i]] = (right[i] - later) / upper[i][i] / lengths[i];
    }
    x.iter().all(|c| c.is_finite()).then_some(x)
}

/// How far foretold times (first) are from measured ones.
pub(super) fn misfit(times: &[(f64, f64)]) -> Misfit {
    let n = times.len().max(1) as f64;
    let errors = times.iter().map(|(foretold, seconds)| (foretold / seconds - 1.0).abs());
    let mean_time = times.iter().map(|t| t.1).sum::<f64>() / n;
    let (mut unexplained, mut variance) = (0.0, 0.0);
    for (foretold, seconds) in times {
        unexplained += (foretold - seconds).powi(2);
        variance += (seconds - mean_time).powi(2);
    }
    // Times that are all alike leave nothing to explain.
    let r2 = if variance > 0.0 { 1.0 - unexplained / variance } else { 0.0 };
    let largest = errors.clone().fold(0.0, f64::max);
    Misfit { r2: r2.max(Misfit::R2_AT_LEAST), mean: (errors.sum::<f64>() / n).min(largest), largest }
}

pub(super) fn dot(row: &[f64; 3], x: &[f64; 3]) -> f64 {
    inner(row, x)
}

fn inner(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Rows of prompts, as they are measured.
    fn rows() -> Vec<[f64; 3]> {
        [1.0, 16.0, 48.0, 100.0, 128.0, 200.0, 256.0, 1000.0].map(|l| [1.0, l, l * l]).to_vec()
    }

    /// Times of these coefficients, each wrong by a part of it.
    fn timed(x: [f64; 3], noise: &[f64]) -> Vec<Timed> {
        rows().iter().zip(noise).map(|(row, noise)| (*row, dot(row, &x) * (1.0 + noise))).collect()
    }

    fn error(timed: &[Timed], x: &[f64; 3]) -> f64 {
        timed.iter().map(|(row, seconds)| (dot(row, x) / seconds - 1.0).powi(2)).sum()
    }

    fn coefficients() -> impl Strategy<Value = [f64; 3]> {
        let some = |most: f64| prop_oneof![1 => Just(0.0), 4 => (0.01..1.0).prop_map(move |x| x * most)];
        [some(1e-3).boxed(), some(1e-4).boxed(), some(1e-6).boxed()]
            .prop_filter("no layer takes no time", |x| x.iter().sum::<f64>() > 0.0)
    }

    fn noise(most: f64) -> impl Strategy<Value = Vec<f64>> {
        prop::collection::vec(-most..most, rows().len())
    }

    proptest! {
        #[test]
        fn exact_times_give_their_coefficients_back(x in coefficients()) {
            let found = non_negative(&timed(x, &[0.0; 8]));
            for (row, seconds) in timed(x, &[0.0; 8]) {
                prop_assert!((dot(&row, &found) / seconds - 1.0).abs() < 1e-9);
            }
            let near = |f: f64, e: f64, most: f64| (f - e).abs() <= 1e-6 * e + 1e-9 * most;
            let all = near(found[0], x[0], 1e-3) && near(found[1], x[1], 1e-4) && near(found[2], x[2], 1e-6);
            prop_assert!(all, "{:?} of {:?}", found, x);
        }

        /// The conditions of Karush, Kuhn and Tucker: no slope along what is used, none downwards along what is not. For
        /// a convex error they hold at the least and nowhere else.
        #[test]
        fn nothing_that_is_not_negative_fits_better(x in coefficients(), noise in noise(0.9)) {
            let timed = timed(x, &noise);
            let found = non_negative(&timed);
            prop_assert!(found.iter().all(|c| *c >= 0.0));
            for i in 0..3 {
                let slope = |(row, seconds): &Timed| (dot(row, &found) / seconds - 1.0) * row[i] / seconds;
                let size: f64 = timed.iter().map(|(row, seconds)| row[i] / seconds).sum();
                let slope = timed.iter().map(slope).sum::<f64>() / size;
                prop_assert!(slope > -1e-7, "{i}: {slope} at {found:?}");
                prop_assert!(found[i] == 0.0 || slope < 1e-7, "{i}: {slope} at {found:?}");
            }
        }

        /// Another way to the same: one coefficient at a time, many times.
        #[test]
        fn coordinate_descent_comes_to_the_same(x in coefficients(), noise in noise(0.3)) {
            let timed = timed(x, &noise);
            let mut other = [0.0; 3];
            for _ in 0..4_000 {
                for i in 0..3 {
                    other[i] = 0.0;
                    let (mut up, mut down) = (0.0, 0.0);
                    for (row, seconds) in &timed {
                        let weight = row[i] / seconds;
                        up += weight * (1.0 - dot(row, &other) / seconds);
                        down += weight * weight;
                    }
                    other[i] = f64::max(up / down, 0.0);
                }
            }
            let (found, other) = (error(&timed, &non_negative(&timed)), error(&timed, &other));
            prop_assert!(found <= other + 1e-12 && other - found < 1e-4, "{found} and {other}");
        }
    }

    #[test]
    fn too_few_rows_still_give_times() {
        let found = non_negative(&[([1.0, 16.0, 256.0], 2e-3)]);
        assert!((dot(&[1.0, 16.0, 256.0], &found) / 2e-3 - 1.0).abs() < 1e-9, "{found:?}");
        assert_eq!(non_negative(&[]), [0.0; 3]);
    }

    #[test]
    fn errors_are_parts_of_what_was_measured() {
        let exact = misfit(&[(1.0, 1.0), (3.0, 3.0)]);
        assert_eq!((exact.r2, exact.mean, exact.largest), (1.0, 0.0, 0.0));
        // The mean foretells as well as the mean does; by hand: 1/1 and 1/3 off.
        let flat = misfit(&[(2.0, 1.0), (2.0, 3.0)]);
        assert!(flat.r2.abs() < 1e-12 && (flat.mean - 2.0 / 3.0).abs() < 1e-12 && flat.largest == 1.0, "{flat:?}");
        assert!(misfit(&[(1e9, 1.0), (1.0, 1.0 + 1e-9)]).r2 >= Misfit::R2_AT_LEAST);
        assert_eq!(misfit(&[]).largest, 0.0);
    }
}
