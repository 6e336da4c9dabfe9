//! Why a plan that uses a peer has nothing for some of its devices. That is nothing wrong: a processor beside a GPU has seldom a part.
//! No link is in the way of a device: those beside it are on the same host.

use super::{ServedHere, lent};
use crate::{members::Members, waiting::Mib};
use std::collections::{BTreeMap, BTreeSet};
use std::{fmt, slice};
use tsnode_protocol::{Advert, Device, ModelId, PeerId, Plan};

/// Where a token takes so many times as long, that is why: such a device beside another gives a quarter as many answers more, at most.
const SLOW: f64 = 4.0;

/// Devices of a peer that a plan does not use for the same reason, while it uses others of the peer.
#[derive(Clone, Debug, PartialEq)]
pub struct UnusedDevices {
    /// What they are (`cuda:1`), by their places in the advert.
    pub devices: BTreeMap<u16, String>,
    /// What keeps them out.
    pub why: NotUsed,
}

/// What keeps a device out of a plan that uses another of the same peer; the first that has to be dealt with.
#[derive(Clone, Debug, PartialEq)]
pub enum NotUsed {
    /// It has no memory for the least part that a plan gives anybody (bytes of weights).
    Memory {
        /// What the model is called for which there is most.
        model: String,
        /// What that part takes.
        needs: u64,
        /// What is lent for it.
        lent: u64,
    },
    /// A step takes several times as long as on every device that is used.
    Slow {
        /// Which of those is the slowest.
        than: String,
        /// How many times as long.
        times: u64,
    },
    /// Nothing of that: a plan that uses more would not answer clearly more requests in time.
    NoGain,
}

/// Which devices of `me` a plan has nothing for, by reason; none where it has nothing for any, which [`super::left_out`] is for.
#[must_use]
pub fn unused_devices(plan: &Plan, members: &Members<'_>, me: PeerId) -> Vec<UnusedDevices> {
    let Some(own) = members.get(&me) else { return Vec::new() };
    let mine = plan.groups.iter().flat_map(|group| &group.stages).filter(|stage| stage.peer == me);
    let planned: BTreeSet<u16> = mine.map(|stage| stage.device).collect();
    let (used, others): (Vec<_>, Vec<_>) = (0..).zip(&own.devices).partition(|(place, _)| planned.contains(place));
    if used.is_empty() {
        return Vec::new();
    }
    let used: Vec<&Device> = used.into_iter().map(|(_, device)| device).collect();
    let models = plan.groups.iter().map(|group| group.model).collect();
    let mut unused = Vec::<UnusedDevices>::new();
    for (place, device) in others {
        let Some(why) = why_unused(own, device, &used, &models) else { continue };
        let device = device.kind.to_string();
        match unused.iter_mut().find(|others| others.why == why) {
            Some(others) => _ = others.devices.insert(place, device),
            None => unused.push(UnusedDevices { devices: BTreeMap::from([(place, device)]), why }),
        }
    }
    unused
}

/// None of a device that is lost or is lent for none of these models.
fn why_unused(own: &Advert, device: &Device, used: &[&Device], models: &BTreeSet<ModelId>) -> Option<NotUsed> {
    let lent = lent(own, slice::from_ref(device), models);
    let most = lent.iter().filter(|_| device.memory_bytes > 0).max_by_key(|lent| lent.room)?;
    if lent.iter().all(ServedHere::lacks_room) {
        let (model, needs) = (most.card.name.clone(), most.card.shape.least_bytes());
        return Some(NotUsed::Memory { model, needs, lent: most.room });
    }
    let longer = |other: &&Device| {
        let times = |model: &ModelId| Some(step(device, *model)? / step(other, *model)?);
        let least = models.iter().filter_map(times).filter(|times| times.is_finite()).min_by(f64::total_cmp)?;
        Some((least, other.kind.to_string()))
    };
    let least = used.iter().filter_map(longer).min_by(|(one, _), (other, _)| one.total_cmp(other));
    Some(match least {
        Some((times, than)) if times >= SLOW => NotUsed::Slow { than, times: times.round() as u64 },
        _ => NotUsed::NoGain,
    })
}

/// What a step of one answer takes in a layer (s), where that was measured.
fn step(device: &Device, model: ModelId) -> Option<f64> {
    device.profile(model).map(|profile| profile.decode[0] + profile.decode[2])
}

impl fmt::Display for UnusedDevices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices: Vec<&str> = self.devices.values().map(String::as_str).collect();
        write!(f, "the present plan uses this machine, but not its {}: {}", devices.join(", "), self.why)
    }
}

impl fmt::Display for NotUsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory { model, needs, lent } => write!(
                f,
                "the least part of {model} takes {}, and {} is lent there for weights; tsnode limits set --memory SIZE lends more",
                Mib(*needs),
                Mib(*lent)
            ),
            Self::Slow { than, times } => write!(
                f,
                "a token takes about {times} times as long there as on {than}, which is used; nothing has to be done: more is planned \
                 with when peers go or more is asked for"
            ),
            Self::NoGain => f.write_str(
                "no plan that uses more was clearly better; nothing has to be done: more is planned with when peers go or more is asked \
                 for; tsnode plan --why has what other groups are worth",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use tsnode_protocol::{BytesPerSecond, DeviceKind, Gpus, Group, Phase, Stage};

    const HERE: PeerId = PeerId([1; 32]);
    const THERE: PeerId = PeerId([2; 32]);

    /// A plan in which each of these devices of a peer computes all of a model.
    fn plan(peer: PeerId, devices: &[u16]) -> Plan {
        let (card, layers) = (sample::card(), sample::card().shape.all_layers());
        let group = |device: &u16| Group::new(card.id, Phase::Mixed, vec![Stage { peer, device: *device, layers }]);
        sample::plan(devices.iter().map(group).collect(), vec![])
    }

    /// A processor on which a token takes so long in a layer (s), with so much for weights (bytes).
    fn processor(token: f64, weights: u64) -> Device {
        let mut device = sample::measured(0, [0.0, 1e-3, 0.0], [token, 0.0, 0.0]).devices.remove(0);
        let served = &mut device.serves[0];
        served.memory_bytes = served.kv_bytes + weights;
        device
    }

    /// A GPU on which a token takes a millisecond in a layer, with room for the whole model.
    fn gpu(first: u16) -> Device {
        let gpus = Gpus {
            first,
            count: 1,
            capability: (9, 0),
            driver: None,
            power_limit_mw: None,
            clocks_mhz: None,
            pcie: None,
            up: BytesPerSecond(25e9),
            down: BytesPerSecond(25e9),
        };
        Device { kind: DeviceKind::Cuda(gpus), ..processor(1e-3, 8 << 20) }
    }

    fn unused(plan: &Plan, devices: Vec<Device>) -> Vec<UnusedDevices> {
        let own = Advert { devices, ..sample::advert(0) };
        unused_devices(plan, &Members::from([(HERE, &own)]), HERE)
    }

    fn at(devices: &[(u16, &str)]) -> BTreeMap<u16, String> {
        devices.iter().map(|(place, device)| (*place, (*device).to_owned())).collect()
    }

    #[test]
    fn the_first_thing_in_the_way_of_a_device_is_said() {
        let first = |other: Device| unused(&plan(HERE, &[0]), vec![gpu(0), other]);
        let why = |other: Device| first(other).into_iter().map(|unused| unused.why).collect::<Vec<_>>();
        let (model, needs) = (sample::card().name, 1 << 20);
        assert_eq!(why(processor(40e-3, needs - 1)), [NotUsed::Memory { model, needs, lent: needs - 1 }]);
        assert_eq!(why(processor(40e-3, needs)), [NotUsed::Slow { than: "cuda:0".into(), times: 40 }]);
        assert_eq!(why(processor(3e-3, needs)), [NotUsed::NoGain]);
        let unmeasured = Device { serves: sample::advert(0).devices.remove(0).serves, ..processor(1.0, needs) };
        assert_eq!(why(unmeasured), [NotUsed::NoGain], "nothing is said of what was not measured");
        let cpu = at(&[(1, "cpu")]);
        assert_eq!(first(processor(3e-3, needs)), [UnusedDevices { devices: cpu, why: NotUsed::NoGain }]);
    }

    #[test]
    fn a_device_is_compared_with_the_slowest_that_is_used() {
        let three = vec![gpu(0), processor(4e-3, 8 << 20), processor(32e-3, 8 << 20)];
        let slow = NotUsed::Slow { than: "cpu".into(), times: 8 };
        assert_eq!(unused(&plan(HERE, &[0, 1]), three), [UnusedDevices { devices: at(&[(2, "cpu")]), why: slow }]);
    }

    #[test]
    fn devices_with_one_reason_are_named_together() {
        let four = vec![gpu(0), gpu(1), processor(40e-3, 8 << 20), gpu(2)];
        let said = unused(&plan(HERE, &[0]), four);
        assert_eq!(said[0], UnusedDevices { devices: at(&[(1, "cuda:1"), (3, "cuda:2")]), why: NotUsed::NoGain });
        assert_eq!(said[1].devices, at(&[(2, "cpu")]));
        let (gpus, cpu) = (said[0].to_string(), said[1].to_string());
        assert!(gpus.starts_with("the present plan uses this machine, but not its cuda:1, cuda:2: no plan"), "{gpus}");
        assert!(cpu.contains("not its cpu: a token takes about 40 times as long there as on cuda:0"), "{cpu}");
    }

    #[test]
    fn nothing_is_said_where_all_are_used_or_none_is() {
        let both = || vec![gpu(0), gpu(1)];
        assert_eq!(unused(&plan(HERE, &[0, 1]), both()), []);
        assert_eq!(unused(&plan(THERE, &[0]), both()), [], "that is said of the whole machine");
        assert_eq!(unused(&plan(HERE, &[7]), both()), [], "the plan is of a time when more was lent");
        assert_eq!(unused(&plan(HERE, &[0]), vec![gpu(0)]), []);
        assert_eq!(unused(&plan(HERE, &[0]), vec![gpu(0), Device { memory_bytes: 0, ..gpu(1) }]), [], "it is lost");
        assert_eq!(unused(&plan(HERE, &[0]), vec![gpu(0), Device { serves: vec![], ..gpu(1) }]), []);
        assert_eq!(unused_devices(&plan(HERE, &[0]), &Members::new(), HERE), [], "nor of who is not known yet");
    }
}
