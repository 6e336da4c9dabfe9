//! How fast groups are just now, by what their leaders say of their last steps.

use crate::view::SwarmView;
use tsnode_protocol::{Group, GroupLoad, PeerId, Phase};

/// Tokens a second that a group gives all who wait for answers, by its last steps; none of one that only reads prompts, or is not
/// heard of.
pub(super) fn rate(view: &SwarmView, group: &Group) -> Option<f64> {
    let load = load(view, group)?.load;
    if group.phase == Phase::Prefill {
        return None;
    }
    if load.running == 0 {
        return Some(0.0);
    }
    let each = load.chosen.unwrap_or(1.0);
    load.step.filter(|step| step.0 > 0.0).map(|step| f64::from(load.running) * each / step.0)
}

/// What a group's leader says of it.
pub(super) fn load<'a>(view: &'a SwarmView, group: &Group) -> Option<&'a GroupLoad> {
    let leader = group.leader()?;
    let leader = view.peers.iter().find(|peer| peer.id == leader)?;
    leader.groups.iter().find(|load| load.group == group.id)
}

/// Groups that a peer has a stage of.
pub(super) fn groups_of(view: &SwarmView, peer: PeerId) -> impl Iterator<Item = &Group> {
    let planned = view.plan.iter().flat_map(|plan| &plan.groups);
    planned.filter(move |group| group.stages.iter().any(|stage| stage.peer == peer))
}

/// Of some at least one.
pub(super) fn sum(rates: impl Iterator<Item = f64>) -> Option<f64> {
    rates.reduce(|one, other| one + other)
}

/// Tokens a second, as they are shown.
pub(super) fn tokens(rate: f64) -> String {
    if rate > 0.0 && rate < 9.95 { format!("{rate:.1}") } else { format!("{rate:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_rates_have_a_digit_more() {
        assert_eq!([0.0, 0.54, 9.94, 9.96, 123.4].map(tokens), ["0", "0.5", "9.9", "10", "123"]);
        assert_eq!((sum([].into_iter()), sum([1.0, 2.0].into_iter())), (None, Some(3.0)));
    }
}
