//! The whole search (SeaLLM App. A.1, Algorithm 1): every partition is allocated, the best are improved, the last are
//! judged on all past requests.

use super::{
    Placement, PlacementError, Services,
    allocate::{self, RatedPlacement},
    groups,
    hosting::Hosting,
    improve,
    judge::{Judge, Judged, PastRequests},
};
/// Placements that are judged on all past requests.
const FINALISTS: usize = 3;

/// How hard to search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlacementEffort {
    /// Past requests that guide the search; the last placements are judged on all.
    pub guide: usize,
    /// Changes tried on each of the best allocations.
    pub changes: usize,
    /// How many times as fast past requests come while placements are compared: what just suffices for one past does
    /// not for the next. 1 compares them as they came, as the paper does.
    pub margin: f64,
}

impl Default for PlacementEffort {
    fn default() -> Self {
        Self { guide: 600, changes: 200, margin: 1.2 }
    }
}

/// What a search found.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundPlacement {
    /// Who is where.
    pub placement: Placement,
    /// How well that served all past requests.
    pub judged: Judged,
    /// Partitions into GPU groups looked at.
    pub partitions: usize,
    /// Placements simulated.
    pub simulated: usize,
}

/// Finds a placement for services by their past requests; one that is there already, `present`, is improved like those
/// found. `stop` ends it early, as soon as there is one.
///
/// # Errors
/// No groups of this cluster hold all models at once.
pub fn search(
    services: &Services,
    past: &PastRequests,
    present: Option<&Placement>,
    effort: PlacementEffort,
    seed: u64,
    stop: &dyn Fn() -> bool,
) -> Result<FoundPlacement, PlacementError> {
    let none = PlacementError::DoesNotFit(services.count(), services.sharing);
    let mut hosting = Hosting::new(services);
    let partitions = groups::partitions(&mut hosting);
    let hastened = past.hastened(effort.margin);
    let (guide, mut simulated) = (hastened.first(effort.guide), 0);
    let mut judge = Judge::new(services, &guide);
    let mut rated: Vec<RatedPlacement> = Vec::new();
    for groups in &partitions {
        let found = allocate::allocate(
            &mut hosting,
            groups,
            &mut |p| {
                simulated += 1;
                judge.judge(p)
            },
            &|| stop(),
        );
        rated.extend(found);
        if !rated.is_empty() && stop() {
            break;
        }
    }
    if let Some(placement) = present.filter(|p| p.check(&mut hosting).is_ok()) {
        simulated += 1;
        rated.push(RatedPlacement { placement: placement.clone(), judged: judge.judge(placement) });
    }
    sort(&mut rated);
    rated.truncate(FINALISTS);
    for (place, start) in rated.iter_mut().enumerate() {
        let mut one = |p: &Placement| {
            simulated += 1;
            judge.judge(p)
        };
        let seed = seed.wrapping_add(place as u64);
        *start = improve::improve(&mut hosting, start.clone(), effort.changes, seed, &mut one, stop);
    }
    if rated.len() > 1 && past.len() > guide.len() {
        let mut judge = Judge::new(services, &hastened);
        for rated in &mut rated {
            simulated += 1;
            rated.judged = judge.judge(&rated.placement);
        }
    }
    sort(&mut rated);
    let placement = rated.into_iter().next().ok_or(none)?.placement;
    let judged = Judge::new(services, past).judge(&placement);
    Ok(FoundPlacement { placement, judged, partitions: partitions.len(), simulated: simulated + 1 })
}

/// Best first.
fn sort(rated: &mut [RatedPlacement]) {
    rated.sort_by(|a, b| a.judged.order(&b.judged).then(a.placement.cmp(&b.placement)));
}
