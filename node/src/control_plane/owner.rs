//! What the owner of this machine wants of it: to lend it, to have it back for a while, to leave.

use crate::store::Store;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tsnode_coordinator::lending::{Hours, Lending};
use tsnode_protocol::{BytesPerSecond, Device, FlopsPerSecond};

/// How long a peer that lends nothing any more serves on where nobody has planned without it: it may be the only one.
const GRACE: Duration = Duration::from_secs(10);

/// The owner's side: says what is wanted.
#[derive(Clone, Debug)]
pub struct OwnerHandle {
    paused: watch::Sender<bool>,
    hours: watch::Sender<Option<Hours>>,
    leave: CancellationToken,
}

impl OwnerHandle {
    /// Says it by these.
    #[must_use]
    pub fn new(paused: watch::Sender<bool>, hours: watch::Sender<Option<Hours>>, leave: CancellationToken) -> Self {
        Self { paused, hours, leave }
    }

    /// The hours in which it is lent; none where that is all day.
    #[must_use]
    pub fn hours(&self) -> Option<Hours> {
        *self.hours.borrow()
    }

    /// It is lent in these hours from now on.
    pub fn set_hours(&self, hours: Option<Hours>) {
        self.hours.send_replace(hours);
    }

    /// The machine is wanted back for now, or lent again.
    pub fn pause(&self, paused: bool) {
        self.paused.send_replace(paused);
    }

    /// The peer leaves its swarm and ends.
    pub fn leave(&self) {
        self.leave.cancel();
    }
}

/// The peer's side: what is lent by that.
pub struct Owner {
    paused: watch::Receiver<bool>,
    hours: watch::Receiver<Option<Hours>>,
    /// What is lent when anything is.
    devices: Vec<Device>,
    lending: Lending,
    since: Instant,
    rested: bool,
    /// Whether what runs here is for others to go on with.
    moving: watch::Sender<bool>,
    store: Store,
}

/// What changes with a look at the owner's wishes.
#[derive(Debug, PartialEq)]
pub enum OwnerChange {
    /// The devices to advertise from now on.
    Lend(Vec<Device>),
    /// Others had their time to plan without this peer: it serves no longer.
    Rest,
}

impl Owner {
    /// As the owner left it. A peer that was paused stays paused when it starts again.
    #[must_use]
    pub fn new(store: Store, hours: Option<Hours>, leave: CancellationToken) -> (OwnerHandle, Self) {
        let (paused, wishes) = watch::channel(store.paused());
        let (lent, hours) = watch::channel(hours);
        let (lending, since) = (Lending::Lends, Instant::now());
        let moving = watch::Sender::new(false);
        (
            OwnerHandle::new(paused, lent, leave),
            Self { paused: wishes, hours, devices: Vec::new(), lending, since, rested: false, moving, store },
        )
    }

    /// There are these devices to lend.
    pub fn set_devices(&mut self, devices: Vec<Device>) {
        self.devices = devices;
    }

    /// These of them, by their places, do nothing any more. What is to be advertised now, if that changes something: those that are left
    /// keep their places, which plans name them by.
    pub fn lose(&mut self, lost: &BTreeSet<u16>) -> Option<Vec<Device>> {
        let before = self.devices.clone();
        for (place, device) in (0..).zip(&mut self.devices) {
            if lost.contains(&place) {
                let (flops, bandwidth) = (FlopsPerSecond(0.0), BytesPerSecond(0.0));
                *device =
                    Device { memory_bytes: 0, kv_bytes: 0, flops, bandwidth, serves: Vec::new(), ..device.clone() };
            }
        }
        if self.devices.iter().all(|device| device.memory_bytes == 0) {
            self.devices.clear();
        }
        (self.devices != before && self.lending == Lending::Lends).then(|| self.devices.clone())
    }

    /// Whether the machine is lent now.
    #[must_use]
    pub fn lending(&self) -> Lending {
        self.lending
    }

    /// Minute of the day at which it is lent, where that is not all day.
    #[must_use]
    pub fn opens(&self) -> Option<u16> {
        self.hours.borrow().map(Hours::opens)
    }

    /// For those who serve here: whether what runs is for others to go on with.
    #[must_use]
    pub fn moving(&self) -> watch::Receiver<bool> {
        self.moving.subscribe()
    }

    /// The peer leaves: what runs here moves.
    pub fn leaves(&self) {
        self.moving.send_replace(true);
    }

    /// Looks at the owner's wish and the clock.
    pub fn look(&mut self, at: Instant) -> Option<OwnerChange> {
        let paused = *self.paused.borrow_and_update();
        let hours = *self.hours.borrow_and_update();
        // Reading the clock of the wall costs little, and is done only for those who set hours.
        let minute = hours.map_or(0, |_| minute_of_day());
        let now = Lending::at(minute, paused, hours);
        if now != self.lending {
            return self.turn(at, now);
        }
        let over = now != Lending::Lends && at > self.since + GRACE;
        (over && !std::mem::replace(&mut self.rested, true)).then_some(OwnerChange::Rest)
    }

    fn turn(&mut self, at: Instant, now: Lending) -> Option<OwnerChange> {
        tracing::info!(was = %self.lending, %now, "what this machine lends has changed");
        self.store.set_paused(now == Lending::Paused);
        let lent = |lending| lending == Lending::Lends;
        let same = lent(self.lending) == lent(now);
        self.lending = now;
        if same {
            return None;
        }
        (self.since, self.rested) = (at, false);
        self.moving.send_replace(!lent(now));
        Some(OwnerChange::Lend(if lent(now) { self.devices.clone() } else { Vec::new() }))
    }
}

/// By the wall clock and the time zone of this machine.
fn minute_of_day() -> u16 {
    let now = jiff::Zoned::now();
    (now.hour().unsigned_abs()) as u16 * 60 + u16::from(now.minute().unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_protocol::DeviceKind;

    fn device() -> Device {
        Device {
            kind: DeviceKind::Cpu { threads: 1 },
            name: "cpu".into(),
            memory_bytes: 1 << 30,
            kv_bytes: 1 << 28,
            flops: FlopsPerSecond(20e9),
            bandwidth: BytesPerSecond(10e9),
            serves: vec![],
        }
    }

    #[test]
    fn a_pause_takes_the_devices_away_and_outlives_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let (handle, mut owner) = Owner::new(store.clone(), None, CancellationToken::new());
        owner.set_devices(vec![device()]);
        let (moving, now) = (owner.moving(), Instant::now());
        assert_eq!(owner.look(now), None);
        handle.pause(true);
        assert_eq!(owner.look(now), Some(OwnerChange::Lend(vec![])));
        assert!(*moving.borrow() && owner.look(now).is_none(), "others have time to plan");
        let later = now + GRACE + Duration::from_millis(1);
        assert_eq!((owner.look(later), owner.look(later)), (Some(OwnerChange::Rest), None));
        let (handle, mut again) = Owner::new(store, None, CancellationToken::new());
        again.set_devices(vec![device()]);
        assert_eq!((again.look(now), again.lending()), (Some(OwnerChange::Lend(vec![])), Lending::Paused));
        handle.pause(false);
        assert_eq!(again.look(now), Some(OwnerChange::Lend(vec![device()])));
        assert!(!*again.moving().borrow() && !again.store.paused());
    }

    #[test]
    fn hours_that_are_set_while_it_runs_are_kept_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let (handle, mut owner) = Owner::new(Store::open(folder.path()).unwrap(), None, CancellationToken::new());
        owner.set_devices(vec![device()]);
        let now = Instant::now();
        assert_eq!((owner.look(now), handle.hours(), owner.opens()), (None, None, None));
        // A minute that is not now: the clock may go on to the next while this runs.
        let later = (minute_of_day() + 60) % (24 * 60);
        let text = |minute: u16| format!("{:02}:{:02}", minute / 60 % 24, minute % 60);
        let text = format!("{}-{}", text(later), text(later + 1));
        handle.set_hours(Some(text.parse().unwrap()));
        assert_eq!((owner.look(now), owner.lending()), (Some(OwnerChange::Lend(vec![])), Lending::OutsideHours));
        assert_eq!(owner.opens(), Some(later));
        handle.set_hours(None);
        assert_eq!(owner.look(now), Some(OwnerChange::Lend(vec![device()])));
    }

    #[test]
    fn a_device_that_is_lost_keeps_its_place_until_none_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let (_handle, mut owner) = Owner::new(store, None, CancellationToken::new());
        owner.set_devices(vec![device(), device()]);
        let said = owner.lose(&BTreeSet::from([0])).unwrap();
        assert_eq!((said.len(), said[0].memory_bytes, &said[1]), (2, 0, &device()));
        assert_eq!(owner.lose(&BTreeSet::from([0])), None, "it is known");
        assert_eq!(owner.lose(&BTreeSet::from([0, 1])), Some(vec![]));
        assert_eq!(owner.lose(&BTreeSet::from([0, 1])), None);
    }
}
