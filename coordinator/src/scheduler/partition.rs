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
    let mut given = vec![1u32; slots.len()];
    let after = |slot: &StageSlot, n: u32| slot.on_top + slot.per_layer * f64::from(n);
    for _ in slots.len()..layers as usize {
        let open = (0..slots.len()).filter(|&i| given[i] < slots[i].most);
        let next = open.min_by(|&a, &b| {
            let (ta, tb) = (after(&slots[a], given[a] + 1), after(&slots[b], given[b] + 1));
            ta.total_cmp(&tb).then(a.cmp(&b))
        })?;
        given[next] += 1;
    }
    Some(given)
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
