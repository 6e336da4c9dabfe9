//! Why a plan has nothing for a peer that lends devices, as far as one view tells without making other plans
//! (`planner::live::why` makes them), and what its owner can do.

mod devices;

pub use devices::{NotUsed, UnusedDevices, unused_devices};

use crate::{members::Members, waiting::Mib};
use std::{collections::BTreeSet, fmt};
use tsnode_protocol::{Advert, Device, Group, Link, ModelCard, ModelId, PeerId, Plan, Served};

/// Models that are named of those that a plan serves.
const NAMED: usize = 3;
/// Bytes of an element of what a stage hands on to the next.
const ELEMENT: f64 = 4.0;

/// What keeps a peer out of a plan; the first that has to be dealt with.
#[derive(Clone, Debug, PartialEq)]
pub enum LeftOut {
    /// The plan is for models of which none is lent here.
    OtherModels {
        /// What some of them are called.
        serves: Vec<String>,
    },
    /// No device has memory for the least part that a plan gives anybody (bytes of weights).
    Memory {
        /// What the model is called for which there is most.
        model: String,
        /// What that part takes.
        needs: u64,
        /// What is lent for it.
        lent: u64,
    },
    /// No link between here and any peer of the plan has been measured.
    Unlinked,
    /// No device holds a whole model, and handing a token on to the nearest peer of the plan takes longer than all layers do here.
    SlowLinks,
    /// Nothing of that: others with it would not answer clearly more requests in time.
    NoGain,
}

/// Why a plan has nothing for `me`; none where it has, where it has no groups at all, or where nothing is lent.
#[must_use]
pub fn left_out(plan: &Plan, members: &Members<'_>, me: PeerId) -> Option<LeftOut> {
    let own: &Advert = members.get(&me)?;
    let lends = own.devices.iter().any(|device| device.memory_bytes > 0);
    let is_mine = |group: &Group| group.stages.iter().any(|stage| stage.peer == me);
    if !lends || plan.groups.is_empty() || plan.groups.iter().any(is_mine) {
        return None;
    }
    let planned: BTreeSet<ModelId> = plan.groups.iter().map(|group| group.model).collect();
    let lent = lent(own, &own.devices, &planned);
    let Some(most) = lent.iter().max_by_key(|lent| lent.room) else {
        return Some(LeftOut::OtherModels { serves: names(&planned, members) });
    };
    if lent.iter().all(ServedHere::lacks_room) {
        let (model, needs) = (most.card.name.clone(), most.card.shape.least_bytes());
        return Some(LeftOut::Memory { model, needs, lent: most.room });
    }
    let links = links(plan, members, own, me);
    Some(if links.is_empty() {
        LeftOut::Unlinked
    } else if lent.iter().all(|lent| lent.waits_longer_than_it_computes(&links)) {
        LeftOut::SlowLinks
    } else {
        LeftOut::NoGain
    })
}

/// A model that the plan serves, on a device of this peer.
struct ServedHere<'a> {
    card: &'a ModelCard,
    served: &'a Served,
    /// Memory for its weights (bytes).
    room: u64,
}

impl ServedHere<'_> {
    /// Whether there is none for the least part that a plan gives anybody.
    fn lacks_room(&self) -> bool {
        self.room < self.card.shape.least_bytes()
    }

    /// Whether it is only of use with others, and a token takes longer to the nearest than through all layers here. Nothing is said of
    /// what was not measured.
    fn waits_longer_than_it_computes(&self, links: &[&Link]) -> bool {
        let shape = &self.card.shape;
        let Some(profile) = &self.served.profile else { return false };
        let computes = (profile.decode[0] + profile.decode[2]) * f64::from(shape.layers);
        let hands_on = |link: &&Link| link.latency.0 + ELEMENT * f64::from(shape.hidden) / link.bandwidth.0;
        let nearest = links.iter().map(hands_on).fold(f64::INFINITY, f64::min);
        self.room < shape.stage_bytes(shape.all_layers()) && nearest > computes
    }
}

/// What these devices of a peer have for models that a plan serves.
fn lent<'a>(own: &'a Advert, devices: &'a [Device], planned: &BTreeSet<ModelId>) -> Vec<ServedHere<'a>> {
    let served = devices.iter().flat_map(|device| &device.serves);
    let lent = |served: &'a Served| {
        let card = own.models.iter().find(|card| card.id == served.model)?;
        Some(ServedHere { card, served, room: served.memory_bytes.saturating_sub(served.kv_bytes) })
    };
    served.filter(|served| planned.contains(&served.model)).filter_map(lent).collect()
}

fn names(planned: &BTreeSet<ModelId>, members: &Members<'_>) -> Vec<String> {
    let cards = || members.values().flat_map(|advert| &advert.models);
    let name = |id: &ModelId| cards().find(|card| card.id == *id).map(|card| card.name.clone());
    planned.iter().filter_map(name).take(NAMED).collect()
}

/// What was measured between here and the plan's peers, by either side.
fn links<'a>(plan: &Plan, members: &Members<'a>, own: &'a Advert, me: PeerId) -> Vec<&'a Link> {
    let peers: BTreeSet<PeerId> = plan.groups.iter().flat_map(|g| &g.stages).map(|stage| stage.peer).collect();
    let from_here = own.links.iter().filter(|link| peers.contains(&link.to));
    let to_here = peers.iter().filter_map(|peer| members.get(peer)?.links.iter().find(|link| link.to == me));
    from_here.chain(to_here).collect()
}

impl LeftOut {
    /// What to say where `said` was said before. Links are measured anew all the time: whether they or what is gained with them are in
    /// the way is said once, as it was first.
    #[must_use]
    pub fn after(self, said: Option<Self>) -> Self {
        let is_by_links = |why: &Self| matches!(why, Self::SlowLinks | Self::NoGain);
        match said {
            Some(said) if is_by_links(&said) && is_by_links(&self) => said,
            _ => self,
        }
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this machine is not in the present plan: ")?;
        match self {
            Self::OtherModels { serves } if serves.is_empty() => f.write_str(
                "that serves other models than are lent here; tsnode models lists them, and tsnode join --model NAME lends \
                 one",
            ),
            Self::OtherModels { serves } => write!(
                f,
                "that serves {}, and none of it is lent here; tsnode join --model NAME lends it",
                serves.join(", ")
            ),
            Self::Memory { model, needs, lent } => write!(
                f,
                "the least part of {model} takes {}, and {} is lent for weights; tsnode limits set --memory SIZE lends more",
                Mib(*needs),
                Mib(*lent)
            ),
            Self::Unlinked => f.write_str(
                "no link between it and a peer of the plan has been measured yet, which takes some seconds; where none comes, tsnode \
                 doctor says why",
            ),
            Self::SlowLinks => f.write_str(
                "a token takes longer to the nearest peer of the plan than through all layers here, and no device here holds a whole \
                 model; a better network, or more memory (tsnode limits set --memory SIZE), makes it of use; tsnode peers --links has \
                 the links",
            ),
            Self::NoGain => f.write_str(
                "no plan with it was clearly better since it came; nothing has to be done: it takes requests, and is planned with when \
                 peers go or more is asked for; tsnode plan --why has what other groups are worth",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use tsnode_protocol::{BytesPerSecond, LayerRange, PathKind, Phase, Seconds, Stage};

    const HERE: PeerId = PeerId([1; 32]);
    const THERE: PeerId = PeerId([2; 32]);

    /// A plan in which the other computes all of a model.
    fn plan_of(peer: PeerId, card: &ModelCard) -> Plan {
        let layers = LayerRange { start: 0, end: card.shape.layers };
        sample::plan(vec![Group::new(card.id, Phase::Mixed, vec![Stage { peer, device: 0, layers }])], vec![])
    }

    /// A millisecond a token and layer, a link of so many seconds to the other, and so much for weights (bytes).
    fn advert(latency: Option<f64>, weights: u64) -> Advert {
        let mut advert = sample::measured(0, [0.0, 1e-3, 0.0], [1e-3, 0.0, 0.0]);
        let bandwidth = BytesPerSecond(1e9);
        let link = |latency| Link { to: THERE, latency: Seconds(latency), bandwidth, path: PathKind::Direct };
        advert.links = latency.map(link).into_iter().collect();
        let served = &mut advert.devices[0].serves[0];
        served.memory_bytes = served.kv_bytes + weights;
        advert
    }

    fn why(plan: &Plan, own: &Advert) -> Option<LeftOut> {
        let other = sample::advert(1);
        left_out(plan, &Members::from([(HERE, own), (THERE, &other)]), HERE)
    }

    #[test]
    fn the_first_thing_in_the_way_is_said() {
        let (card, all) = (sample::card(), 8 << 20);
        let plan = plan_of(THERE, &card);
        let another = ModelCard { id: ModelId([9; 16]), name: "another".into(), ..sample::card() };
        let of_another = |own: &Advert| why(&plan_of(THERE, &another), own);
        assert_eq!(of_another(&advert(None, all)), Some(LeftOut::OtherModels { serves: vec![] }));
        let small = why(&plan, &advert(Some(1.0), (1 << 20) - 1));
        assert_eq!(small, Some(LeftOut::Memory { model: card.name.clone(), needs: 1 << 20, lent: (1 << 20) - 1 }));
        assert_eq!(why(&plan, &advert(None, all)), Some(LeftOut::Unlinked));
        // Four layers take four milliseconds.
        assert_eq!(why(&plan, &advert(Some(5e-3), 1 << 20)), Some(LeftOut::SlowLinks));
        assert_eq!(why(&plan, &advert(Some(3e-3), 1 << 20)), Some(LeftOut::NoGain));
        assert_eq!(why(&plan, &advert(Some(5e-3), all)), Some(LeftOut::NoGain), "it needs nobody to hand anything to");
    }

    #[test]
    fn nothing_is_said_of_who_has_a_part_or_lends_nothing_or_where_there_are_no_groups() {
        let (card, own) = (sample::card(), advert(None, 8 << 20));
        assert_eq!(why(&plan_of(HERE, &card), &own), None);
        assert_eq!(why(&sample::plan(vec![], vec![]), &own), None);
        assert_eq!(why(&plan_of(THERE, &card), &sample::gateway(0)), None);
        assert_eq!(left_out(&plan_of(THERE, &card), &Members::new(), HERE), None, "nor of who is not known yet");
    }

    #[test]
    fn a_link_that_the_other_side_measured_counts_and_what_the_plan_serves_is_named() {
        let card = sample::card();
        let other = Advert { links: advert(Some(5e-3), 0).links, ..sample::advert(1) };
        let back = other.links.iter().map(|link| Link { to: HERE, ..*link }).collect();
        let other = Advert { links: back, ..other };
        let own = advert(None, 1 << 20);
        let seen = left_out(&plan_of(THERE, &card), &Members::from([(HERE, &own), (THERE, &other)]), HERE);
        assert_eq!(seen, Some(LeftOut::SlowLinks));
        let another = ModelCard { id: ModelId([9; 16]), name: "another".into(), ..sample::card() };
        let (plan, lends) = (plan_of(THERE, &another), sample::lends(1, another));
        let said = left_out(&plan, &Members::from([(HERE, &own), (THERE, &lends)]), HERE).unwrap().to_string();
        assert!(said.contains("not in the present plan: that serves another, and none of it is lent here"), "{said}");
    }

    #[test]
    fn links_that_are_measured_anew_are_no_news() {
        assert_eq!(LeftOut::NoGain.after(Some(LeftOut::SlowLinks)), LeftOut::SlowLinks);
        assert_eq!(LeftOut::SlowLinks.after(Some(LeftOut::NoGain)), LeftOut::NoGain);
        assert_eq!(LeftOut::NoGain.after(Some(LeftOut::Unlinked)), LeftOut::NoGain);
        assert_eq!(LeftOut::Unlinked.after(Some(LeftOut::NoGain)), LeftOut::Unlinked);
        assert_eq!(LeftOut::NoGain.after(None), LeftOut::NoGain);
    }
}
