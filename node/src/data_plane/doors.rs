//! The doors of a peer: how many connections each lets in, and the places they have there. Who has one and who loses it is decided
//! in `coordinator`'s `places`.

use crate::platform;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use tsnode_coordinator::places::{
    FILES_LEAST, FileShares, KnownAddresses, Origin, PlaceEntry, PlaceRules, Places, QUIC_UNPROVEN, Regard, Seat,
};
use tsnode_protocol::PeerId;

/// How often it is looked who has done nothing in time.
const SWEEP: Duration = Duration::from_millis(500);
/// How long those may take to go who were sent away.
const ROOM: Duration = Duration::from_millis(100);
/// Lifelines that one member may hold here: one for each of two data connections, and as many that are being had again.
const LIFELINES_EACH: usize = 4;
/// Files that are taken to be allowed where the system sets no limit.
const UNLIMITED: u64 = 1 << 20;

/// Lets this process have as many files open as the system allows it, and says how many that are: shells and service managers
/// give 1,024 for the sake of programs that could not do with more.
#[must_use]
pub fn raise_files() -> u64 {
    let files = platform::most_files().unwrap_or(UNLIMITED);
    if files < FILES_LEAST {
        tracing::warn!(
            files,
            least = FILES_LEAST,
            "few files may be open here: raise the limit (ulimit -n), or connections fail"
        );
    }
    files
}

/// All doors of a peer.
#[derive(Clone, Debug)]
pub struct Doors {
    /// What there are files for.
    pub shares: FileShares,
    /// Clients'.
    pub http: Door<Origin>,
    /// Of the control plane over TCP, for those who have to prove themselves.
    pub control: Door<Origin>,
    /// The same over QUIC.
    pub control_quic: Door<Origin>,
    /// Of the data plane, for those who have to prove themselves.
    pub data: Door<Origin>,
    /// For lifelines of which nobody knows whose they are.
    pub unproven: Door<Origin>,
    /// For members' lifelines.
    pub lifelines: Door<PeerId>,
    known: Arc<Mutex<KnownAddresses>>,
    started: Instant,
}

impl Default for Doors {
    /// With as many files as most systems give.
    fn default() -> Self {
        Self::of(1024)
    }
}

impl Doors {
    /// With so many files.
    #[must_use]
    pub fn of(files: u64) -> Self {
        let shares = FileShares::of(files);
        let lifelines = PlaceRules { places: shares.lifelines, reserve: 0, share: LIFELINES_EACH };
        Self {
            shares,
            http: Door::new(shares.http),
            control: Door::new(shares.door),
            control_quic: Door::new(QUIC_UNPROVEN),
            data: Door::new(QUIC_UNPROVEN),
            unproven: Door::new(shares.lifelines_unproven),
            lifelines: Door::new(lifelines),
            known: Arc::default(),
            started: Instant::now(),
        }
    }

    /// A member is, or was, at this address: who comes from there has the reserve.
    pub fn meet(&self, address: IpAddr) {
        let now = self.started.elapsed();
        self.known.lock().unwrap_or_else(PoisonError::into_inner).meet(now, address.into());
    }

    /// How who comes from there is regarded.
    #[must_use]
    pub fn regard(&self, from: Origin) -> Regard {
        let now = self.started.elapsed();
        self.known.lock().unwrap_or_else(PoisonError::into_inner).regard(now, from)
    }
}

/// One door. Clones are equal; nothing here blocks.
#[derive(Clone, Debug)]
pub struct Door<K> {
    started: Instant,
    /// Held for map operations only.
    inside: Arc<Mutex<Inside<K>>>,
}

#[derive(Debug)]
struct Inside<K> {
    places: Places<K>,
    /// By which those who are in are told to go.
    gone: BTreeMap<Seat, CancellationToken>,
    /// Those who are there, with those who were sent away and have not gone yet; and how many these may be.
    there: usize,
    most: usize,
    /// Who waits for one of them to go.
    waits: Option<Waker>,
}

impl<K: Copy + Ord> Door<K> {
    pub(crate) fn new(rules: PlaceRules) -> Self {
        let most = rules.places + rules.places.div_ceil(8);
        let inside = Inside { places: Places::new(rules), gone: BTreeMap::new(), there: 0, most, waits: None };
        Self { started: Instant::now(), inside: Arc::new(Mutex::new(inside)) }
    }

    /// Lets somebody in who has to do something within `patience`, in place of another where all places are taken; nobody while
    /// all who are in are being served.
    #[must_use]
    pub fn enter(&self, from: K, regard: Regard, patience: Duration) -> Option<Place<K>> {
        let now = self.started.elapsed();
        let mut inside = self.lock();
        let seat = match inside.places.come(now, from, regard, patience) {
            PlaceEntry::Free(seat) => seat,
            PlaceEntry::Instead { of, seat } => {
                inside.send_away(of);
                seat
            }
            PlaceEntry::Full => return None,
        };
        let gone = CancellationToken::new();
        inside.gone.insert(seat, gone.clone());
        inside.there += 1;
        Some(Place { door: self.clone(), seat, gone })
    }

    /// Whether more than half of what strangers have is taken.
    #[must_use]
    pub fn is_pressed(&self) -> bool {
        self.lock().places.is_pressed()
    }

    /// Waits until those who were sent away are gone, but for a few: they hold their files until then, and a burst would hold more
    /// than there are. One that does not go is not waited for.
    pub async fn room(&self) {
        let _ = timeout(ROOM, std::future::poll_fn(|cx| self.poll_room(cx))).await;
    }

    /// The same, for the one task that lets people in here.
    pub fn poll_room(&self, cx: &Context<'_>) -> Poll<()> {
        let mut inside = self.lock();
        if inside.there < inside.most {
            return Poll::Ready(());
        }
        inside.waits = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Whether nobody is in.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lock().places.is_empty()
    }

    /// Sends those away who have done nothing in time, until `stop`.
    pub async fn watch(self, stop: CancellationToken) {
        let mut sweep = interval(SWEEP);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(sweep.tick()).await.is_some() {
            let now = self.started.elapsed();
            let mut inside = self.lock();
            for seat in inside.places.overdue(now) {
                inside.send_away(seat);
            }
        }
    }
}

impl<K> Door<K> {
    fn lock(&self) -> MutexGuard<'_, Inside<K>> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K> Inside<K> {
    fn send_away(&mut self, seat: Seat) {
        if let Some(gone) = self.gone.remove(&seat) {
            gone.cancel();
        }
    }
}

/// A place at a door; dropping it frees it.
#[derive(Debug)]
pub struct Place<K: Copy + Ord> {
    door: Door<K>,
    seat: Seat,
    gone: CancellationToken,
}

impl<K: Copy + Ord> Place<K> {
    /// Cancelled once the connection is to go.
    #[must_use]
    pub fn gone(&self) -> &CancellationToken {
        &self.gone
    }

    /// It is being served: it stays, however many come.
    pub fn busy(&self) {
        self.door.lock().places.busy(self.seat);
    }

    /// It has to do something itself, within `patience`.
    pub fn idle(&self, patience: Duration) {
        let now = self.door.started.elapsed();
        self.door.lock().places.idle(now, self.seat, patience);
    }

    /// It has done a part of what it has to do, and has so long for the next; it is as old as before.
    pub fn progress(&self, patience: Duration) {
        let now = self.door.started.elapsed();
        self.door.lock().places.progress(self.seat, now + patience);
    }
}

impl<K: Copy + Ord> Drop for Place<K> {
    fn drop(&mut self) {
        let mut inside = self.door.lock();
        inside.places.leave(self.seat);
        inside.gone.remove(&self.seat);
        inside.there -= 1;
        inside.waits.take().into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn door(places: usize) -> Door<u8> {
        Door::new(PlaceRules { places, reserve: 0, share: places })
    }

    fn enter(door: &Door<u8>, from: u8) -> Option<Place<u8>> {
        door.enter(from, Regard::Unknown, LONG)
    }

    #[test]
    fn where_all_places_are_taken_the_oldest_is_told_to_go() {
        let door = door(2);
        let [first, second, third] = [1, 1, 2].map(|n| enter(&door, n).unwrap());
        assert_eq!([&first, &second, &third].map(|place| place.gone().is_cancelled()), [true, false, false]);
        // Whose place it was takes nothing with it.
        drop(first);
        assert_eq!(door.lock().places.len(), 2);
        drop((second, third));
        assert!(door.lock().places.is_empty() && door.lock().gone.is_empty());
    }

    #[test]
    fn who_is_served_is_not_sent_away_for_another() {
        let door = door(1);
        let place = enter(&door, 1).unwrap();
        place.busy();
        assert!(enter(&door, 2).is_none() && !place.gone().is_cancelled());
        place.idle(LONG);
        assert!(enter(&door, 2).is_some() && place.gone().is_cancelled());
    }

    #[tokio::test]
    async fn nobody_is_let_in_while_many_who_were_sent_away_are_still_there() {
        let door = door(8);
        let mut all: Vec<_> = (0..9).map(|n| enter(&door, n).unwrap()).collect();
        let mut room = std::pin::pin!(std::future::poll_fn(|cx| door.poll_room(cx)));
        assert!(futures::poll!(&mut room).is_pending());
        drop(all.remove(0));
        timeout(LONG, room).await.unwrap();
    }

    #[tokio::test]
    async fn who_does_nothing_in_time_is_told_to_go() {
        let (door, stop) = (door(4), CancellationToken::new());
        let watching = crate::tasks::spawn("door", door.clone().watch(stop.clone()));
        let [idle, served] = [1, 2].map(|n| door.enter(n, Regard::Unknown, SWEEP / 4).unwrap());
        served.busy();
        tokio::time::timeout(LONG, idle.gone().cancelled()).await.unwrap();
        assert!(!served.gone().is_cancelled());
        stop.cancel();
        watching.await.unwrap();
    }

    #[test]
    fn an_address_where_a_member_was_has_the_reserve() {
        let doors = Doors::of(1024);
        let from = |n: u8| Origin::from(IpAddr::from([192, 0, 2, n]));
        let come = |n| doors.control.enter(from(n), doors.regard(from(n)), LONG);
        let all: Vec<_> = (0..200).filter_map(come).collect();
        let lost = || all.iter().filter(|place| place.gone().is_cancelled()).count();
        let before = lost();
        doors.meet(IpAddr::from([192, 0, 2, 250]));
        assert!(doors.control.is_pressed());
        assert!(come(250).is_some() && lost() == before, "it has a place of its own");
    }

    #[test]
    fn as_many_files_as_the_system_allows_may_be_open() {
        let files = raise_files();
        assert_eq!((files, platform::most_files().unwrap_or(UNLIMITED)), (raise_files(), files));
    }
}
