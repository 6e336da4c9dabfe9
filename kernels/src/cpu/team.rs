//! Threads that compute together: a team runs one piece of work at a time, its caller among them.
//!
//! A step of a small model is hundreds of products of some microseconds each, so handing work out must cost less than
//! that. Members look for new work for a moment before they sleep; a team that is idle costs nothing.
#![expect(
    unsafe_code,
    reason = "work is borrowed from the caller's stack; the reason it is sound stands where it is used"
)]

use super::dense::Cut;
use std::any::Any;
use std::cell::Cell;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Looks at a shared counter before a member sleeps or a caller yields: some ten microseconds.
const LOOKS: usize = 4_000;

/// Bit of the gate that lets members in.
const OPEN: usize = 1 << 31;

type TeamWork = dyn Fn(usize) + Sync;

thread_local! {
    /// Which member of its team this thread is; 0 for one that is none, as callers are.
    static MEMBER: Cell<usize> = const { Cell::new(0) };
}

/// What the team is to do: the caller's closure, parts handed out so far, and how many there are.
#[derive(Clone, Copy)]
struct TeamJob {
    work: *const TeamWork,
    parts: usize,
}

// SAFETY: the closure is `Sync`, and `Team::share` keeps it alive until every member is done with it.
unsafe impl Send for TeamJob {}

struct Shared {
    job: Mutex<Option<TeamJob>>,
    /// Counts jobs; a member that has seen a smaller number has work.
    round: AtomicUsize,
    next_part: AtomicUsize,
    /// [`OPEN`] while members may take parts of the round, plus how many members are at it.
    gate: AtomicUsize,
    /// Members asleep; changed only while `job` is locked.
    asleep: AtomicUsize,
    wake: Condvar,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// Threads that compute together.
pub struct Team {
    shared: Arc<Shared>,
    members: Vec<JoinHandle<()>>,
    /// One piece of work at a time; a second caller computes alone.
    busy: Mutex<()>,
}

impl Team {
    /// A team of `threads`, the caller's included. Members each do `starting` first, with their numbers: from 1 on, for the
    /// caller is 0.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub fn new(threads: usize, starting: impl Fn(usize) + Clone + Send + 'static) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            job: Mutex::new(None),
            round: AtomicUsize::new(0),
            next_part: AtomicUsize::new(0),
            gate: AtomicUsize::new(0),
            asleep: AtomicUsize::new(0),
            wake: Condvar::new(),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let mut team = Self { shared, members: Vec::new(), busy: Mutex::new(()) };
        for i in 1..threads {
            let (shared, starting) = (team.shared.clone(), starting.clone());
            let run = move || {
                MEMBER.set(i);
                starting(i);
                member(&shared);
            };
            team.members.push(std::thread::Builder::new().name(format!("compute-{i}")).spawn(run)?);
        }
        Ok(team)
    }

    /// Threads, the caller's included.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.members.len() + 1
    }

    /// Runs `work(0)` to `work(parts - 1)`, shared among the threads as they become free.
    ///
    /// # Panics
    /// When `work` does, after all threads have stopped.
    pub fn share(&self, parts: usize, work: impl Fn(usize) + Sync) {
        let alone = parts <= 1 || self.members.is_empty();
        let Some(_turn) = (if alone { None } else { self.busy.try_lock().ok() }) else {
            return (0..parts).for_each(work);
        };
        // SAFETY: only the lifetime is changed. `share` shuts the gate and does not return before nobody is inside; only
        // who is inside uses the job. So the closure outlives every use.
        let work = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), *const TeamWork>(&work) };
        let job = TeamJob { work, parts };
        self.start(job);
        let own = catch_unwind(AssertUnwindSafe(|| self.shared.take_parts(job)));
        self.wait();
        if let Err(panic) = own {
            resume_unwind(panic);
        }
        let theirs = self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = theirs {
            resume_unwind(panic);
        }
    }

    /// Runs `work` on each of the items, side by side if there is a thread for each: then they may wait for each other, if
    /// this is the only work the team has. A thread takes the item of its own number if it can, so that what it works on stays
    /// near it.
    ///
    /// # Panics
    /// As [`Self::share`].
    pub fn share_each<T: Send>(&self, items: &mut [T], work: impl Fn(usize, &mut T) + Sync) {
        let items = Cut::new(items, 1);
        let places = FreeItems::new(items.len());
        self.share(items.len(), |part| {
            let i = places.take(part);
            // SAFETY: each item is handed out once.
            let item = unsafe { items.part(i) };
            work(i, &mut item[0]);
        });
    }

    /// Runs `work` on each part of `all`, of `part` items, the last maybe of fewer.
    pub fn share_parts<T: Send>(&self, all: &mut [T], part: usize, work: impl Fn(usize, &mut [T]) + Sync) {
        let parts = Cut::new(all, part);
        self.share(parts.len(), |i| {
            // SAFETY: each part is handed out once.
            let part = unsafe { parts.part(i) };
            work(i, part);
        });
    }

    fn start(&self, job: TeamJob) {
        let s = &self.shared;
        let mut slot = s.job.lock().unwrap_or_else(PoisonError::into_inner);
        *slot = Some(job);
        s.next_part.store(0, Ordering::Relaxed);
        s.gate.store(OPEN, Ordering::Release);
        s.round.fetch_add(1, Ordering::Release);
        if s.asleep.load(Ordering::Relaxed) > 0 {
            s.wake.notify_all();
        }
    }

    /// Lets nobody in any more and waits for those inside. A member the system has not run yet is not waited for.
    fn wait(&self) {
        self.shared.gate.fetch_and(!OPEN, Ordering::AcqRel);
        let mut looks = 0;
        while self.shared.gate.load(Ordering::Acquire) > 0 {
            looks += 1;
            if looks < LOOKS { spin_loop() } else { std::thread::yield_now() }
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        {
            let _slot = self.shared.job.lock().unwrap_or_else(PoisonError::into_inner);
            self.shared.stop.store(true, Ordering::Release);
            self.shared.wake.notify_all();
        }
        for member in self.members.drain(..) {
            // A member's panics were caught and passed on; it cannot end otherwise.
            let _ = member.join();
        }
    }
}

impl Shared {
    fn take_parts(&self, job: TeamJob) {
        // SAFETY: the caller is `Team::share` itself or a member inside the gate, so the closure is alive.
        let work = unsafe { &*job.work };
        loop {
            let part = self.next_part.fetch_add(1, Ordering::Relaxed);
            if part >= job.parts {
                return;
            }
            work(part);
        }
    }

    /// Enters if the gate is open. Who is inside must [`Self::leave`].
    fn enter(&self) -> Option<TeamJob> {
        let into = |gate: usize| (gate & OPEN != 0).then_some(gate + 1);
        self.gate.fetch_update(Ordering::AcqRel, Ordering::Acquire, into).ok()?;
        let job = *self.job.lock().unwrap_or_else(PoisonError::into_inner);
        if job.is_none() {
            self.leave();
        }
        job
    }

    fn leave(&self) {
        self.gate.fetch_sub(1, Ordering::AcqRel);
    }

    /// Waits until the round is another than `seen` and returns it; `None` when the team ends.
    fn next_round(&self, seen: usize) -> Option<usize> {
        for _ in 0..LOOKS {
            let round = self.round.load(Ordering::Acquire);
            if round != seen {
                return Some(round);
            }
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            spin_loop();
        }
        let mut slot = self.job.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if self.stop.load(Ordering::Acquire) {
                return None;
            }
            let round = self.round.load(Ordering::Acquire);
            if round != seen {
                return Some(round);
            }
            self.asleep.fetch_add(1, Ordering::Relaxed);
            slot = self.wake.wait(slot).unwrap_or_else(PoisonError::into_inner);
            self.asleep.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Items that nobody has taken, a bit for each; with more than there are bits they are taken in order.
struct FreeItems {
    free: Option<AtomicU64>,
}

impl FreeItems {
    fn new(items: usize) -> Self {
        let bits = u64::BITS as usize;
        Self { free: (1..=bits).contains(&items).then(|| AtomicU64::new(u64::MAX >> (bits - items))) }
    }

    /// The caller's own item, or another that is free. Asked once for each part of the work there always is one, and each is
    /// given once.
    fn take(&self, part: usize) -> usize {
        let Some(all) = &self.free else { return part };
        loop {
            let free = all.load(Ordering::Relaxed);
            let own = Some(MEMBER.get()).filter(|own| free.checked_shr(*own as u32).is_some_and(|bits| bits & 1 == 1));
            let place = own.unwrap_or(free.trailing_zeros() as usize);
            let bit = 1 << place;
            if all.fetch_and(!bit, Ordering::Relaxed) & bit != 0 {
                return place;
            }
        }
    }
}

fn member(shared: &Shared) {
    let mut seen = 0;
    while let Some(round) = shared.next_round(seen) {
        seen = round;
        let Some(job) = shared.enter() else { continue };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| shared.take_parts(job))) {
            *shared.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
        }
        shared.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_done_once_in_every_round() {
        let team = Team::new(3, |_| ()).unwrap();
        for parts in [0, 1, 2, 3, 100] {
            for _ in 0..200 {
                let done: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
                team.share(parts, |i| {
                    done[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(done.iter().all(|d| d.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn every_item_is_somebodys_and_each_threads_is_its_own() {
        let team = Team::new(3, |_| ()).unwrap();
        for items in [0, 1, 2, 3, 64, 65, 100] {
            let mut done = vec![0; items];
            team.share_each(&mut done, |i, done| *done += i + 1);
            assert_eq!(done, (1..=items).collect::<Vec<_>>());
        }
        let met = std::sync::Barrier::new(3);
        for _ in 0..100 {
            team.share_each(&mut [(); 3], |i, ()| {
                // Nobody has two of them: each waits for all.
                met.wait();
                assert_eq!(i, MEMBER.get());
            });
        }
    }

    #[test]
    fn members_begin_by_what_they_are_told() {
        let began: Arc<Mutex<Vec<usize>>> = Arc::default();
        let here = began.clone();
        drop(Team::new(4, move |member| here.lock().unwrap().push(member)).unwrap());
        let mut began = began.lock().unwrap().clone();
        began.sort_unstable();
        assert_eq!(began, [1, 2, 3]);
    }

    #[test]
    fn members_that_slept_are_woken() {
        let team = Team::new(2, |_| ()).unwrap();
        for _ in 0..3 {
            // Members go to sleep on their own; whether they have by now changes nothing of what must hold.
            while team.shared.asleep.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            let done = AtomicUsize::new(0);
            team.share(2, |_| {
                done.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(done.load(Ordering::Relaxed), 2);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_goes_on() {
        let team = Team::new(3, |_| ()).unwrap();
        for bad in 0..8 {
            let failed = catch_unwind(AssertUnwindSafe(|| team.share(8, |i| assert_ne!(i, bad))));
            assert!(failed.is_err());
        }
        let done = AtomicUsize::new(0);
        team.share(8, |_| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.load(Ordering::Relaxed), 8);
    }
}
