//! Who goes on which group (SeaLLM App. A.1, Algorithm 1, lines 7 to 18): the least loaded group takes the most urgent
//! service it has room for, again and again.
//!
//! Beyond the paper: a service is only put where all that are still nowhere find a place afterwards, so that popular
//! services do not crowd out large ones; load is time asked for, not requests; and of all placements on the way the best
//! is kept, since another service on a group takes KV memory from those that are there.

use super::{Placement, Services, groups, groups::GpuGroup, hosting::Hosting, judge::Judged};
use tsnode_coordinator::policy::batching::ServiceNo;

/// A placement and what came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct RatedPlacement {
    /// Who is where.
    pub placement: Placement,
    /// How well that served.
    pub judged: Judged,
}

/// Places services on groups, guided by simulation; `None` if not all find a place. `stop` ends it early, once every
/// service has one.
pub fn allocate(
    hosting: &mut Hosting<'_>,
    groups: &[GpuGroup],
    judge: &mut dyn FnMut(&Placement) -> Judged,
    stop: &dyn Fn() -> bool,
) -> Option<RatedPlacement> {
    let mut placement = Placement::empty(groups);
    let mut best: Option<RatedPlacement> = None;
    loop {
        let whole = is_whole(hosting.services(), &placement);
        if whole && best.is_some() && stop() {
            return best;
        }
        let judged = judge(&placement);
        if whole && best.as_ref().is_none_or(|b| judged.is_better_than(&b.judged)) {
            best = Some(RatedPlacement { placement: placement.clone(), judged: judged.clone() });
        }
        let Some((place, service)) = next(hosting, &placement, &judged) else { return best };
        placement.add(place, service);
    }
}

fn is_whole(services: &Services, placement: &Placement) -> bool {
    services.ids().all(|s| placement.holders(s).next().is_some())
}

/// The least loaded group that takes anyone, and the most urgent service it takes.
fn next(hosting: &mut Hosting<'_>, placement: &Placement, judged: &Judged) -> Option<(usize, ServiceNo)> {
    let loads = loads(hosting, placement);
    let mut order: Vec<usize> = (0..loads.len()).collect();
    order.sort_by(|a, b| loads[*a].total_cmp(&loads[*b]).then(a.cmp(b)));
    let mut urgent: Vec<ServiceNo> = hosting.services().ids().collect();
    urgent.sort_by(|a, b| judged.urgency(*b).total_cmp(&judged.urgency(*a)).then(a.cmp(b)));
    for place in order {
        for &service in &urgent {
            if can_allocate(hosting, placement, place, service) {
                return Some((place, service));
            }
        }
    }
    None
}

/// By group: time its services ask of it in a second, batching not counted; each request goes to any holder alike.
pub fn loads(hosting: &mut Hosting<'_>, placement: &Placement) -> Vec<f64> {
    let services = hosting.services();
    let mut load = |sharing: &super::SharingGroup| {
        let of = |service: &ServiceNo| {
            let alone = hosting.hosted(*service, &sharing.group).map_or(0.0, |h| h.profile.mean.0);
            services.problem(*service).rate * alone / placement.holders(*service).count().max(1) as f64
        };
        sharing.services.iter().map(of).sum()
    };
    placement.groups.iter().map(&mut load).collect()
}

/// Whether a group takes another service: few enough there, memory for all of them, and room elsewhere for those that
/// are nowhere yet.
pub fn can_allocate(hosting: &mut Hosting<'_>, placement: &Placement, place: usize, service: ServiceNo) -> bool {
    let sharing = &placement.groups[place];
    if sharing.services.len() >= hosting.services().sharing || sharing.services.contains(&service) {
        return false;
    }
    let mut with = placement.clone();
    with.add(place, service);
    if !hosting.fits(&sharing.group, &with.groups[place].services) {
        return false;
    }
    let nowhere: Vec<ServiceNo> = hosting.services().ids().filter(|s| with.holders(*s).next().is_none()).collect();
    let places: Vec<_> = with.groups.into_iter().map(|s| (s.group, s.services)).collect();
    groups::places_for_all(hosting, &places, &nowhere)
}
