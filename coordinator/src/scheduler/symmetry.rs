//! Hosts that are alike: of one kind and size, with the same links to everyone. Groupings that differ only in which of them
//! does what are worth the same, so the search looks at one of them. On cloud32 that is one of eight.

use super::{
    cluster::{Cluster, InstanceId},
    moves::Grouping,
    parallel::InstanceDevices,
};
use crate::rng::mixed;

/// Which hosts of a cluster are alike.
#[derive(Clone, Debug, Default)]
pub struct Symmetry {
    /// By instance: what all hosts like it have in common, and nobody else.
    kin: Vec<u64>,
    /// Sets of two or more hosts that are alike, each in order.
    sets: Vec<Vec<InstanceId>>,
}

impl Symmetry {
    /// Of a cluster.
    #[must_use]
    pub fn of(cluster: &Cluster) -> Self {
        let mut sets: Vec<Vec<InstanceId>> = Vec::new();
        let mut kin = Vec::with_capacity(cluster.instances.len());
        for id in cluster.ids() {
            let place = sets.iter().position(|set| are_alike(cluster, set[0], id)).unwrap_or(sets.len());
            if place == sets.len() {
                sets.push(Vec::new());
            }
            sets[place].push(id);
            kin.push(mixed(place as u64 + 1));
        }
        sets.retain(|set| set.len() > 1);
        Self { kin, sets }
    }

    /// Whether no host is like another.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.sets.is_empty()
    }

    /// The grouping that stands for all that differ from this one in which of like hosts does what. With three or more it
    /// may now and then be one of a few that do: then something is looked at twice, and nothing is missed.
    #[must_use]
    pub fn one_for_all(&self, mut grouping: Grouping) -> Grouping {
        if self.sets.is_empty() {
            return grouping;
        }
        let mut kin = self.kin.clone();
        for set in &self.sets {
            let roles = roles(&grouping, &kin);
            let mut order: Vec<(u64, InstanceId)> = set.iter().map(|i| (roles[i.0 as usize], *i)).collect();
            order.sort_unstable();
            if order.iter().zip(set).any(|(from, to)| from.1 != *to) {
                let to = |i: InstanceId| order.iter().position(|o| o.1 == i).map_or(i, |place| set[place]);
                grouping = renamed(grouping, &to);
            }
            // From here on these are told apart, so that the next set's order follows theirs.
            set.iter().for_each(|i| kin[i.0 as usize] = mixed(!u64::from(i.0)));
        }
        grouping
    }
}

fn are_alike(cluster: &Cluster, a: InstanceId, b: InstanceId) -> bool {
    let (of_a, of_b) = (cluster.instance(a), cluster.instance(b));
    let path = |from, to| cluster.path(from, to);
    let to_others = |c: &InstanceId| path(a, *c) == path(b, *c) && path(*c, a) == path(*c, b);
    let alone = |i| cluster.ids().filter(|o| cluster.instance(*o).name == cluster.instance(i).name).count() == 1;
    (of_a.kind, of_a.count) == (of_b.kind, of_b.count)
        && of_a.inside == of_b.inside
        && path(a, b) == path(b, a)
        && cluster.ids().filter(|c| *c != a && *c != b).all(|c| to_others(&c))
        // Devices of two kinds on one host could only change places together.
        && alone(a)
        && alone(b)
}

/// By instance, a number for what it does with whom: the same for the same, whatever the order and names of the groups.
fn roles(grouping: &Grouping, kin: &[u64]) -> Vec<u64> {
    let mut roles = vec![0u64; kin.len()];
    for part in &grouping.parts {
        let of = |&(i, n): &(InstanceId, u16)| mixed(kin[i.0 as usize] ^ u64::from(n));
        let with = part.members.iter().map(of).fold(part.phase as u64, u64::wrapping_add);
        for (i, n) in &part.members {
            let role = &mut roles[i.0 as usize];
            *role = role.wrapping_add(mixed(with ^ mixed(u64::from(*n))));
        }
    }
    roles
}

fn renamed(mut grouping: Grouping, to: &dyn Fn(InstanceId) -> InstanceId) -> Grouping {
    let rename = |members: &mut InstanceDevices| {
        members.iter_mut().for_each(|m| m.0 = to(m.0));
        members.sort_unstable();
    };
    grouping.parts.iter_mut().for_each(|part| rename(&mut part.members));
    Grouping::new(grouping.parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        rng::Rng,
        scheduler::{
            cluster_file,
            figures::Column,
            moves::{DeviceGroup, add},
        },
    };
    use tsnode_protocol::Phase;

    fn cloud32(links: &str) -> Cluster {
        let text = cluster_file::SHIPPED.iter().find(|(name, _)| *name == "cloud32").expect("it ships").1;
        cluster_file::read(text, Column::Paper, Some(links)).expect("it can be read")
    }

    /// Some devices of every host, dealt to groups.
    fn any(cluster: &Cluster, rng: &mut Rng) -> Grouping {
        let phases = [Phase::Prefill, Phase::Decode, Phase::Mixed];
        let part = |phase: &Phase| DeviceGroup { members: InstanceDevices::new(), phase: *phase };
        let mut parts: Vec<DeviceGroup> = phases.iter().chain(&phases).map(part).collect();
        for id in cluster.ids() {
            for _ in 0..cluster.instance(id).count {
                add(&mut parts[rng.below(phases.len() * 2)].members, id, 1);
            }
        }
        Grouping::new(parts)
    }

    #[test]
    fn are_found_where_links_are_alike() {
        let cluster = cloud32("low");
        let names = |set: &Vec<InstanceId>| set.iter().map(|i| cluster.instance(*i).name.clone()).collect::<Vec<_>>();
        let sets: Vec<Vec<String>> = Symmetry::of(&cluster).sets.iter().map(names).collect();
        assert_eq!(sets, [["a6000-0", "a6000-1"], ["a5000-0", "a5000-1"], ["3090ti-0", "3090ti-1"]]);
        // By default the A40 are nearer to one of each.
        assert!(Symmetry::of(&cloud32("default")).sets.is_empty());
    }

    #[test]
    fn one_grouping_stands_for_all_that_are_alike() {
        let cluster = cloud32("low");
        let symmetry = Symmetry::of(&cluster);
        let mut rng = Rng::new(1);
        for _ in 0..200 {
            let grouping = any(&cluster, &mut rng);
            let one = symmetry.one_for_all(grouping.clone());
            for set in &symmetry.sets {
                let to = |i: InstanceId| {
                    if i == set[0] {
                        set[1]
                    } else if i == set[1] {
                        set[0]
                    } else {
                        i
                    }
                };
                assert_eq!(symmetry.one_for_all(renamed(grouping.clone(), &to)), one);
            }
            assert_eq!(symmetry.one_for_all(one.clone()), one);
        }
    }
}
