//! Placements to compare with: every service on GPUs of its own, and services dealt to groups in turn.

use super::{
    Placement, Services,
    allocate::can_allocate,
    groups::{self, GpuGroup},
    hosting::Hosting,
};
use tsnode_coordinator::policy::batching::ServiceNo;

/// Every service on groups of its own, more of them the more is asked of it (the paper's "SeaLLM-P", its GPUs in
/// proportion to load): one placement for each partition that allows it.
#[must_use]
pub fn dedicated(services: &Services) -> Vec<Placement> {
    let alone = Services { sharing: 1, ..services.clone() };
    let mut hosting = Hosting::new(&alone);
    let partitions = groups::partitions(&mut hosting);
    partitions.iter().filter_map(|groups| proportional(&mut hosting, groups)).collect()
}

/// Group after group to the service with the most load for what it has; those that have nothing come first.
fn proportional(hosting: &mut Hosting<'_>, groups: &[GpuGroup]) -> Option<Placement> {
    let mut placement = Placement::empty(groups);
    loop {
        let services = hosting.services();
        let lacks = |service: &ServiceNo| {
            let problem = services.problem(*service);
            let load = problem.rate * problem.workload.mean.steps * problem.model.bytes().0;
            match placement.devices(*service) {
                0 => f64::INFINITY,
                devices => load / f64::from(devices),
            }
        };
        let mut order: Vec<ServiceNo> = services.ids().collect();
        order.sort_by(|a, b| lacks(b).total_cmp(&lacks(a)).then(a.cmp(b)));
        let mut pairs = order.iter().flat_map(|s| (0..groups.len()).map(move |g| (g, *s)));
        let Some((place, service)) = pairs.find(|&(g, s)| can_allocate(hosting, &placement, g, s)) else { break };
        placement.add(place, service);
    }
    placement.check(hosting).is_ok().then_some(placement)
}

/// Services dealt to groups in turn until nothing fits any more: one placement for each partition that allows it.
#[must_use]
pub fn in_turn(services: &Services) -> Vec<Placement> {
    let mut hosting = Hosting::new(services);
    let partitions = groups::partitions(&mut hosting);
    partitions.iter().filter_map(|groups| dealt(&mut hosting, groups)).collect()
}

fn dealt(hosting: &mut Hosting<'_>, groups: &[GpuGroup]) -> Option<Placement> {
    let mut placement = Placement::empty(groups);
    let (mut place, mut since) = (0, 0);
    let all: Vec<ServiceNo> = hosting.services().ids().collect();
    for service in all.iter().cycle() {
        since += 1;
        let found = (0..groups.len())
            .map(|step| (place + step) % groups.len())
            .find(|&place| can_allocate(hosting, &placement, place, *service));
        if let Some(found) = found {
            placement.add(found, *service);
            (place, since) = ((found + 1) % groups.len(), 0);
        }
        if since >= all.len() {
            break;
        }
    }
    placement.check(hosting).is_ok().then_some(placement)
}
