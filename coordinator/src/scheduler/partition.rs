//! Layers over stages of different speed and memory: the cut whose slowest stage is fastest (ThunderServe App. B, ③).

/// A stage to give layers to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageSlot {
    /// Time a layer takes here.
    pub per_layer: f64,
    /// Time on top, whatever its layers.
    pub on_top: f64,
    /// The most layers it holds.
    pub most: u32,
}

/// Layers of each stage: at least one, at most what it holds, the slowest stage as fast as can be. `None` if the
/// stages hold fewer layers than there are, or there are more stages than layers.
///
/// Greedy is optimal: a layer goes where the stage would then be fastest, so no stage is ever raised above the least
/// bottleneck that the layers placed so far need.
#[must_use]
pub fn cut(layers: u32, slots: &[StageSlot]) -> Option<Vec<u32>> {
    if slots.is_empty() || slots.len() > layers as usize || slots.iter().any(|s| s.most == 0) {
        return None;
    }
    let room: u64 = slots.iter().map(|s| u64::from(s.most)).sum();
    if room < u64::from(layers) {
        return None;
    }
    // A stage's time with one layer more; never, of those that are full.
    let with = |slot: &StageSlot, n: u32| match n < slot.most {
        true => (slot.on_top + slot.per_layer * f64::from(n + 1)).min(f64::MAX),
        false => f64::INFINITY,
    };
    let mut given = surely(layers, slots);
    let mut next: Vec<f64> = slots.iter().zip(&given).map(|(slot, n)| with(slot, *n)).collect();
    for _ in given.iter().sum::<u32>()..layers {
        // The first of those that are as fast.
        let (mut least, mut at) = (f64::INFINITY, None);
        for (place, time) in next.iter().enumerate() {
            if *time < least {
                (least, at) = (*time, Some(place));
            }
        }
        let at = at?;
        given[at] += 1;
        next[at] = with(&slots[at], given[at]);
    }
    Some(given)
}

/// Layers that the greedy choice gives each stage in any case: those that take no longer than a time by which fewer layers than
/// there are can be given, whatever is rounded.
fn surely(layers: u32, slots: &[StageSlot]) -> Vec<u32> {
    // By when all would have as much as there is, if layers could be cut.
    let rate: f64 = slots.iter().map(|s| 1.0 / s.per_layer).sum();
    let ahead: f64 = slots.iter().map(|s| s.on_top / s.per_layer).sum();
    let time = (f64::from(layers) + ahead) / rate;
    let by_then = |s: &StageSlot| (((time - s.on_top) / s.per_layer - 1e-6).floor().max(1.0) as u32).min(s.most);
    let given: Vec<u32> = slots.iter().map(by_then).collect();
    // Not so where a stage is slow to begin with, and has its one layer later than that.
    let is_few = time.is_finite() && given.iter().map(|n| u64::from(*n)).sum::<u64>() <= u64::from(layers);
    if is_few { given } else { vec![1; slots.len()] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slowest(slots: &[StageSlot], cut: &[u32]) -> f64 {
        slots.iter().zip(cut).map(|(s, n)| s.on_top + s.per_layer * f64::from(*n)).fold(0.0, f64::max)
    }

    /// Every cut there is.
    fn brute(layers: u32, slots: &[StageSlot]) -> Option<f64> {
        let Some((first, rest)) = slots.split_first() else { return (layers == 0).then_some(0.0) };
        let most = first.most.min(layers);
        let here = |n: u32| Some(brute(layers - n, rest)?.max(first.on_top + first.per_layer * f64::from(n)));
        (1..=most).filter_map(here).min_by(f64::total_cmp)
    }

    proptest! {
        #[test]
        fn no_cut_is_better(layers in 1u32..14, stages in prop::collection::vec((1u32..9, 0u32..5, 0u32..9), 1..5)) {
            let slots: Vec<StageSlot> = stages.iter()
                .map(|&(t, o, most)| StageSlot { per_layer: f64::from(t), on_top: f64::from(o), most })
                .collect();
            let found = cut(layers, &slots);
            prop_assert_eq!(found.as_ref().map(|c| slowest(&slots, c)), brute(layers, &slots));
            if let Some(cut) = found {
                prop_assert_eq!(cut.iter().sum::<u32>(), layers);
            }
        }
    }
}
