//! Who has a place at a door that has few: each address a share, those that are known a reserve, and where there is no room the
//! connection that has been idle longest goes, of the address that has most.

use crate::Time;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// How many places there are, and for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceRules {
    /// Connections at once, of all together.
    pub places: usize,
    /// Of these, for whom is known alone.
    pub reserve: usize,
    /// Of one address that is not known.
    pub share: usize,
}

impl PlaceRules {
    /// So many: a quarter for whom is known, and no more than a quarter for any one address.
    #[must_use]
    pub const fn quarters(places: usize) -> Self {
        let quarter = if places < 8 { places.div_ceil(2) } else { places / 4 };
        Self { places, reserve: places / 4, share: quarter }
    }
}

/// Where a connection comes from, as far as somebody can choose it: whoever has one address of IPv6 has 2⁶⁴ of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// An address of IPv4.
    V4([u8; 4]),
    /// A network of IPv6: the first half of an address.
    V6([u8; 8]),
    /// By another peer: all of them together.
    Relayed,
}

impl From<IpAddr> for Origin {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address.octets()),
            IpAddr::V6(address) => {
                let [a, b, c, d, e, f, g, h, ..] = address.octets();
                Self::V6([a, b, c, d, e, f, g, h])
            }
        }
    }
}

/// How somebody who comes is regarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Regard {
    /// Nothing good is known of its address: it has a share.
    Unknown,
    /// A member has proven itself from there: the reserve is open to it, and it has no share.
    Known,
}

/// A place that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seat(u64);

/// What becomes of one who comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceEntry {
    /// It has a place.
    Free(Seat),
    /// It has the place of another, which is to go.
    Instead {
        /// Whose place it was.
        of: Seat,
        /// The place it has.
        seat: Seat,
    },
    /// All whose place it could have are being served.
    Full,
}

/// The places at one door, by where those come from who have them.
#[derive(Clone, Debug)]
pub struct Places<K> {
    rules: PlaceRules,
    next: u64,
    taken: BTreeMap<Seat, TakenPlace<K>>,
}

#[derive(Clone, Copy, Debug)]
struct TakenPlace<K> {
    from: K,
    regard: Regard,
    /// Since when it has been idle, and when it must have done something; none while it is served.
    idle: Option<(Time, Time)>,
}

impl<K: Copy + Ord> Places<K> {
    /// All places free.
    #[must_use]
    pub fn new(rules: PlaceRules) -> Self {
        Self { rules, next: 0, taken: BTreeMap::new() }
    }

    /// Somebody comes, idle, and must have done something after `patience`.
    pub fn come(&mut self, now: Time, from: K, regard: Regard, patience: Time) -> PlaceEntry {
        let entry = match self.obstacle(from, regard) {
            None => PlaceEntry::Free(Seat(self.next)),
            Some(crowd) => match self.longest_idle(crowd) {
                Some(of) => PlaceEntry::Instead { of, seat: Seat(self.next) },
                None => return PlaceEntry::Full,
            },
        };
        if let PlaceEntry::Instead { of, .. } = entry {
            self.taken.remove(&of);
        }
        self.taken.insert(Seat(self.next), TakenPlace { from, regard, idle: Some((now, now + patience)) });
        self.next += 1;
        entry
    }

    /// Who keeps one who comes from having a place.
    fn obstacle(&self, from: K, regard: Regard) -> Option<Crowd<K>> {
        let unknown = self.taken.values().filter(|taken| taken.regard == Regard::Unknown);
        let PlaceRules { places, reserve, share } = self.rules;
        match regard {
            Regard::Unknown if unknown.clone().filter(|t| t.from == from).count() >= share => Some(Crowd::Of(from)),
            Regard::Unknown if unknown.clone().count() + reserve >= places => Some(Crowd::Unknown),
            _ if self.taken.len() < places => None,
            Regard::Known if unknown.clone().any(|taken| taken.idle.is_some()) => Some(Crowd::Unknown),
            _ => Some(Crowd::All),
        }
    }

    /// Of the address of the crowd that has most places and one that is idle, the one that is idle longest.
    fn longest_idle(&self, crowd: Crowd<K>) -> Option<Seat> {
        let mut held = BTreeMap::<K, usize>::new();
        self.taken.values().for_each(|taken| *held.entry(taken.from).or_default() += 1);
        let idle = self.taken.iter().filter(|(_, taken)| crowd.has(taken));
        let idle = idle.filter_map(|(seat, taken)| Some((held[&taken.from], taken.idle?.0, *seat)));
        // More places go before a longer time.
        let goes = idle.min_by_key(|(held, since, seat)| (std::cmp::Reverse(*held), *since, *seat))?;
        Some(goes.2)
    }

    /// It is being served: it stays, however many come.
    pub fn busy(&mut self, seat: Seat) {
        self.change(seat, None);
    }

    /// It has to do something itself, within `patience`.
    pub fn idle(&mut self, now: Time, seat: Seat, patience: Time) {
        self.change(seat, Some((now, now + patience)));
    }

    /// It has done a part of what it has to do: it has until then for the next, and is as old as before.
    pub fn progress(&mut self, seat: Seat, due: Time) {
        if let Some(TakenPlace { idle: Some((_, before)), .. }) = self.taken.get_mut(&seat) {
            *before = due;
        }
    }

    fn change(&mut self, seat: Seat, idle: Option<(Time, Time)>) {
        if let Some(taken) = self.taken.get_mut(&seat) {
            taken.idle = idle;
        }
    }

    /// Its place is free again.
    pub fn leave(&mut self, seat: Seat) {
        self.taken.remove(&seat);
    }

    /// Takes the places of those who have done nothing in time, and says whose they were.
    pub fn overdue(&mut self, now: Time) -> Vec<Seat> {
        let mut late = Vec::new();
        self.taken.retain(|seat, taken| {
            let is_late = taken.idle.is_some_and(|(_, due)| due <= now);
            late.extend(is_late.then_some(*seat));
            !is_late
        });
        late
    }

    /// How many places are taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.taken.len()
    }

    /// Whether nobody is there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    /// Whether more than half of what those have who are not known is taken: then it is worth asking them for more.
    #[must_use]
    pub fn is_pressed(&self) -> bool {
        let unknown = self.taken.values().filter(|taken| taken.regard == Regard::Unknown).count();
        2 * unknown > self.rules.places - self.rules.reserve
    }
}

/// Those one of whom must go.
#[derive(Clone, Copy)]
enum Crowd<K> {
    All,
    Unknown,
    Of(K),
}

impl<K: Copy + Eq> Crowd<K> {
    fn has(self, taken: &TakenPlace<K>) -> bool {
        match self {
            Self::All => true,
            Self::Unknown => taken.regard == Regard::Unknown,
            Self::Of(from) => taken.regard == Regard::Unknown && taken.from == from,
        }
    }
}

/// Addresses from which members have proven themselves, those of late.
#[derive(Clone, Debug, Default)]
pub struct KnownAddresses {
    last: BTreeMap<Origin, Time>,
}

/// How long an address is known after a member was there: a night's sleep of a notebook.
const KNOWN_FOR: Time = Time::from_secs(12 * 3600);
/// Addresses remembered; above it the one that was there longest ago is forgotten.
const KNOWN: usize = 1024;

impl KnownAddresses {
    /// A member was at this address.
    pub fn meet(&mut self, now: Time, origin: Origin) {
        self.last.insert(origin, now);
        if self.last.len() > KNOWN {
            let oldest = self.last.iter().min_by_key(|(_, at)| **at).map(|(origin, _)| *origin);
            oldest.map(|oldest| self.last.remove(&oldest));
        }
    }

    /// How who comes from there is regarded.
    #[must_use]
    pub fn regard(&self, now: Time, origin: Origin) -> Regard {
        let is_known = self.last.get(&origin).is_some_and(|at| now <= *at + KNOWN_FOR);
        if is_known { Regard::Known } else { Regard::Unknown }
    }
}

/// What the files that a process may have open are for. A connection of TCP is one; those of QUIC share a socket, and cost memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileShares {
    /// Clients of HTTP.
    pub http: PlaceRules,
    /// Connections of the control plane to members, in all.
    pub neighbours: usize,
    /// Of these, such as others opened.
    pub neighbours_incoming: usize,
    /// Connections over TCP that have to prove themselves to the control plane.
    pub door: PlaceRules,
    /// Lifelines of members that have proven themselves.
    pub lifelines: usize,
    /// Lifelines of which nobody knows yet whose they are.
    pub lifelines_unproven: PlaceRules,
    /// Lifelines that are held at others.
    pub calls: usize,
    /// What is left for models, response logs, the log, and all else.
    pub files: usize,
}

/// Connections over QUIC that have to prove themselves, at the control plane's port and at that of data: each is some 50 KB.
pub const QUIC_UNPROVEN: PlaceRules = PlaceRules { places: 256, reserve: 64, share: 48 };

/// With fewer files than that a peer cannot hold what it needs even alone.
pub const FILES_LEAST: u64 = 256;

impl FileShares {
    /// Of so many files: by sixteenths where they are few, and no more than each can use where they are many.
    #[must_use]
    pub fn of(files: u64) -> Self {
        let all = usize::try_from(files.max(FILES_LEAST)).unwrap_or(usize::MAX);
        let part = |sixteenths: usize, most: usize| (all / 16).saturating_mul(sixteenths).min(most);
        let (neighbours, door) = (part(4, 256), part(2, 128));
        let (lifelines, unproven, calls) = (part(2, 1024), part(1, 128), part(1, 1024));
        // A client's connection has no reserve: its clients are known by what they ask, after they have come.
        let clients = part(3, 4096);
        let http = PlaceRules { places: clients, reserve: 0, share: clients / 4 };
        let used = clients + neighbours + door + lifelines + unproven + calls;
        Self {
            http,
            neighbours,
            neighbours_incoming: neighbours * 3 / 4,
            door: PlaceRules::quarters(door),
            lifelines,
            lifelines_unproven: PlaceRules::quarters(unproven),
            calls,
            files: all - used,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PATIENCE: Time = Time::from_secs(10);
    const RULES: PlaceRules = PlaceRules { places: 8, reserve: 2, share: 4 };

    fn at(n: u8) -> Origin {
        Origin::V4([10, 0, 0, n])
    }

    fn seconds(n: u64) -> Time {
        Time::from_secs(n)
    }

    /// One after the other, a second apart; which of them are there in the end.
    fn come(places: &mut Places<Origin>, from: &[u8]) -> Vec<PlaceEntry> {
        let enter = |(second, n): (usize, &u8)| places.come(seconds(second as u64), at(*n), Regard::Unknown, PATIENCE);
        from.iter().enumerate().map(enter).collect()
    }

    fn seat(entry: PlaceEntry) -> Seat {
        match entry {
            PlaceEntry::Free(seat) | PlaceEntry::Instead { seat, .. } => seat,
            PlaceEntry::Full => panic!("it has none"),
        }
    }

    #[test]
    fn who_has_its_share_loses_its_oldest() {
        let mut places = Places::new(RULES);
        let entered = come(&mut places, &[1, 1, 1, 1, 1]);
        assert_eq!(entered[4], PlaceEntry::Instead { of: seat(entered[0]), seat: Seat(4) });
        assert_eq!(places.len(), 4);
    }

    #[test]
    fn the_reserve_is_for_whom_is_known() {
        let mut places = Places::new(RULES);
        let entered = come(&mut places, &[1, 1, 1, 2, 2, 2, 3]);
        assert_eq!(entered[6], PlaceEntry::Instead { of: seat(entered[0]), seat: Seat(6) });
        assert_eq!(places.len(), 6);
        for free in [true, true, false] {
            let entry = places.come(seconds(9), at(9), Regard::Known, PATIENCE);
            assert_eq!(matches!(entry, PlaceEntry::Free(_)), free, "{entry:?}");
        }
        assert_eq!(places.len(), 8);
        // The third had the place of one that nobody knows.
        assert_eq!(places.taken.values().filter(|t| t.regard == Regard::Known).count(), 3);
    }

    #[test]
    fn whoever_has_most_gives_way_before_who_has_been_idle_longer() {
        let mut places = Places::new(RULES);
        let entered = come(&mut places, &[1, 2, 2, 3, 2, 4, 5]);
        assert_eq!(entered[6], PlaceEntry::Instead { of: seat(entered[1]), seat: Seat(6) });
    }

    #[test]
    fn who_is_served_stays() {
        let mut places = Places::new(RULES);
        let entered = come(&mut places, &[1, 1, 1, 2, 2, 2]);
        entered.iter().for_each(|entry| places.busy(seat(*entry)));
        assert_eq!(places.come(seconds(9), at(3), Regard::Unknown, PATIENCE), PlaceEntry::Full);
        places.idle(seconds(10), seat(entered[4]), PATIENCE);
        let entry = places.come(seconds(11), at(3), Regard::Unknown, PATIENCE);
        assert_eq!(entry, PlaceEntry::Instead { of: seat(entered[4]), seat: Seat(6) });
        places.leave(seat(entered[0]));
        assert!(matches!(places.come(seconds(11), at(3), Regard::Unknown, PATIENCE), PlaceEntry::Free(_)));
    }

    #[test]
    fn who_does_nothing_goes_and_who_does_something_has_longer() {
        let mut places = Places::new(RULES);
        let entered = come(&mut places, &[1, 2, 3]).into_iter().map(seat).collect::<Vec<_>>();
        places.progress(entered[0], seconds(30));
        places.busy(entered[1]);
        assert_eq!(places.overdue(seconds(11)), []);
        assert_eq!(places.overdue(seconds(12)), [entered[2]]);
        assert_eq!(places.overdue(seconds(30)), [entered[0]]);
        assert_eq!((places.overdue(seconds(99)), places.len()), (vec![], 1));
    }

    #[test]
    fn addresses_that_one_owner_may_choose_from_are_one() {
        let origin = |text: &str| Origin::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(origin("2001:db8::1"), origin("2001:db8::ffff:2"));
        assert_ne!(origin("2001:db8::1"), origin("2001:db8:0:1::1"));
        assert_eq!(origin("::ffff:192.0.2.1"), origin("192.0.2.1"));
        assert_ne!(origin("192.0.2.1"), origin("192.0.2.2"));
    }

    #[test]
    fn addresses_are_known_for_hours_and_few_of_them() {
        let (mut known, start) = (KnownAddresses::default(), Time::ZERO);
        known.meet(start, at(1));
        assert_eq!(known.regard(start + KNOWN_FOR, at(1)), Regard::Known);
        assert_eq!(known.regard(start + 2 * KNOWN_FOR, at(1)), Regard::Unknown);
        assert_eq!(known.regard(start, at(2)), Regard::Unknown);
        (0..2 * KNOWN as u32).for_each(|n| known.meet(seconds(u64::from(n)), Origin::V4(n.to_be_bytes())));
        assert_eq!((known.last.len(), known.regard(start, at(1))), (KNOWN, Regard::Unknown));
    }

    #[test]
    fn what_a_thousand_files_are_for() {
        let few = FileShares::of(1024);
        assert_eq!((few.http.places, few.neighbours, few.door.places, few.lifelines), (192, 256, 128, 128));
        assert_eq!((few.lifelines_unproven.places, few.calls, few.files), (64, 64, 192));
        let many = FileShares::of(1 << 19);
        assert_eq!((many.http.places, many.neighbours, many.lifelines), (4096, 256, 1024));
        assert!(many.files > 1 << 18);
    }

    proptest! {
        #[test]
        fn shares_are_no_more_than_there_is(files in 0_u64..2_000_000) {
            let shares = FileShares::of(files);
            let FileShares { http, neighbours, door, lifelines, lifelines_unproven, calls, .. } = shares;
            let sockets = http.places + neighbours + door.places + lifelines + lifelines_unproven.places + calls;
            prop_assert_eq!(sockets + shares.files, files.max(FILES_LEAST) as usize);
            prop_assert!(shares.files >= 48);
            for rules in [http, door, lifelines_unproven] {
                prop_assert!(rules.share > 0 && rules.share + rules.reserve <= rules.places, "{:?}", rules);
            }
        }

        #[test]
        fn however_they_come_bounds_hold_and_who_is_served_or_has_least_stays(
            steps in proptest::collection::vec((0_u8..6, 0_u8..4, 0_usize..8), 1..200)
        ) {
            let mut places = Places::new(RULES);
            for (second, (from, what, nth)) in steps.into_iter().enumerate() {
                let now = seconds(second as u64);
                let one = places.taken.keys().copied().nth(nth);
                match (what, one) {
                    (2, Some(seat)) => places.busy(seat),
                    (3, Some(seat)) => places.idle(now, seat, PATIENCE),
                    (4, Some(seat)) => places.leave(seat),
                    _ => {
                        let before = places.clone();
                        let regard = if what == 1 { Regard::Known } else { Regard::Unknown };
                        match places.come(now, at(from), regard, PATIENCE) {
                            PlaceEntry::Instead { of, .. } => {
                                let gone = before.taken[&of];
                                let held = |origin| before.taken.values().filter(|t| t.from == origin).count();
                                prop_assert!(gone.idle.is_some(), "it was served");
                                // Who has one of its own that is idle takes no place of who has fewer.
                                let own = before.taken.values().any(|t| t.from == at(from) && t.idle.is_some()
                                    && t.regard == Regard::Unknown);
                                let fewer = held(gone.from) < held(at(from));
                                prop_assert!(!own || !fewer || regard == Regard::Known);
                                prop_assert!(regard == Regard::Known || gone.regard == Regard::Unknown
                                    || before.len() == RULES.places);
                            }
                            PlaceEntry::Full => prop_assert!(before.taken.values().any(|t| t.idle.is_none())),
                            PlaceEntry::Free(_) => prop_assert!(before.len() < RULES.places),
                        }
                    }
                }
                let unknown = |from: Option<Origin>| places.taken.values()
                    .filter(|t| t.regard == Regard::Unknown && (from.is_none() || from == Some(t.from))).count();
                prop_assert!(places.len() <= RULES.places);
                prop_assert!(unknown(None) <= RULES.places - RULES.reserve);
                prop_assert!((0..6).all(|n| unknown(Some(at(n))) <= RULES.share));
            }
        }
    }
}
