//! Small changes to a placement, kept where the simulation finds them better: what Algorithm 1, which only adds, cannot
//! undo.

use super::{
    Placement,
    allocate::{RatedPlacement, loads},
    hosting::Hosting,
    judge::Judged,
};
use std::collections::BTreeSet;
use tsnode_coordinator::{policy::batching::ServiceNo, rng::Rng};

/// Of so many draws, a service or a group is the worst off in all but one.
const DRAWS: usize = 3;

/// Tries so many changes, each from the best so far.
pub fn improve(
    hosting: &mut Hosting<'_>,
    start: RatedPlacement,
    tries: usize,
    seed: u64,
    judge: &mut dyn FnMut(&Placement) -> Judged,
    stop: &dyn Fn() -> bool,
) -> RatedPlacement {
    let (mut best, mut rng) = (start, Rng::new(seed));
    let mut seen: BTreeSet<Placement> = BTreeSet::from([best.placement.clone()]);
    for _ in 0..tries {
        if stop() {
            break;
        }
        let Some(next) = changed(hosting, &best, &mut rng) else { continue };
        if next.check(hosting).is_err() || !seen.insert(next.clone()) {
            continue;
        }
        let judged = judge(&next);
        if judged.is_better_than(&best.judged) {
            best = RatedPlacement { placement: next, judged };
        }
    }
    best
}

/// One of the changes, at random: more of a service, less of one, one in another's stead, two exchanged, two groups made
/// one, one made two.
fn changed(hosting: &mut Hosting<'_>, from: &RatedPlacement, rng: &mut Rng) -> Option<Placement> {
    let mut next = from.placement.clone();
    let service = urgent(hosting, &from.judged, rng);
    let place = quiet(hosting, &next, rng)?;
    let there = next.groups[place].services.clone();
    match rng.below(6) {
        0 => next.add(place, service),
        1 => {
            let place = rng.below(next.groups.len());
            let leaves = *pick(&next.groups[place].services, rng)?;
            next.remove(place, leaves);
        }
        2 => {
            next.remove(place, *pick(&there, rng)?);
            next.add(place, service);
        }
        3 => {
            let other = rng.below(next.groups.len());
            let (a, b) = (*pick(&there, rng)?, *pick(&next.groups[other].services, rng)?);
            next.remove(place, a);
            next.remove(other, b);
            next.add(place, b);
            next.add(other, a);
        }
        4 => {
            let other = rng.below(next.groups.len());
            if other == place {
                return None;
            }
            let both = next.groups[place].group.with(&next.groups[other].group, hosting.services().cluster())?;
            let mut services = [&there[..], &next.groups[other].services].concat();
            services.sort_unstable();
            services.dedup();
            while services.len() > hosting.services().sharing {
                services.remove(rng.below(services.len()));
            }
            next.groups[place] = super::SharingGroup { group: both, services };
            next.groups.remove(other);
        }
        _ => {
            let half = halved(&next.groups[place].group)?;
            next.groups[place].group = half.0;
            let (first, second) = match rng.below(2) {
                0 if there.len() > 1 => (vec![there[0]], there[1..].to_vec()),
                _ => (there.clone(), vec![service]),
            };
            next.groups[place].services = first;
            next.groups.push(super::SharingGroup { group: half.1, services: second });
        }
    }
    next.groups.sort();
    Some(next)
}

/// A service, the likelier the more urgent.
fn urgent(hosting: &Hosting<'_>, judged: &Judged, rng: &mut Rng) -> ServiceNo {
    let count = hosting.services().count();
    let draws = (0..DRAWS).map(|_| ServiceNo(rng.below(count) as u16));
    let mut draws: Vec<ServiceNo> = draws.collect();
    draws.sort_by(|a, b| judged.urgency(*b).total_cmp(&judged.urgency(*a)));
    draws[0]
}

/// A group, the likelier the less it is loaded.
fn quiet(hosting: &mut Hosting<'_>, placement: &Placement, rng: &mut Rng) -> Option<usize> {
    let loads = loads(hosting, placement);
    (0..DRAWS - 1).map(|_| rng.below(loads.len())).min_by(|a, b| loads[*a].total_cmp(&loads[*b]))
}

fn pick<'a, T>(of: &'a [T], rng: &mut Rng) -> Option<&'a T> {
    of.get(rng.below(of.len()))
}

/// A group made two: half of its stages each, or half of the devices of its only one.
fn halved(group: &super::GpuGroup) -> Option<(super::GpuGroup, super::GpuGroup)> {
    let of = |stages: &[_]| super::GpuGroup { stages: stages.to_vec() };
    match &group.stages[..] {
        [(instance, tp)] if tp.is_multiple_of(2) => {
            let half = of(&[(*instance, tp / 2)]);
            Some((half.clone(), half))
        }
        [_] => None,
        stages => {
            let (a, b) = stages.split_at(stages.len() / 2);
            Some((of(a), of(b)))
        }
    }
}
