//! Which processors this process uses, and which of them compute. All else, the network above all, keeps off these where there are
//! others: a thread that sends is otherwise woken where the one runs whose result it sends, and takes its turn.

use crate::platform;
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use tsnode_kernels::engine::Starting;

/// Processors by their numbers, as `0-3,6`; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores(BTreeSet<usize>);

/// The system knows no more.
const MOST: usize = 1024;

impl FromStr for Cores {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "write processors as 0-3 or 0,2, from 0 to 1023";
        let number = |text: &str| text.trim().parse::<usize>().ok().filter(|n| *n < MOST).ok_or(WRONG);
        let mut all = BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let range = number(first)?..=number(last)?;
            if range.is_empty() {
                return Err(WRONG);
            }
            all.extend(range);
        }
        Ok(Self(all))
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.write_str(&all.join(","))
    }
}

impl Cores {
    /// How many, one at least.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "there is one at least")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The first so many are for threads that compute; the others, or all where there are no others, are for the rest.
    #[must_use]
    pub fn divided(&self, threads: usize) -> (Self, Self) {
        let first = self.0.iter().take(threads.max(1)).copied().collect();
        let others: BTreeSet<usize> = self.0.difference(&first).copied().collect();
        (Self(first), if others.is_empty() { self.clone() } else { Self(others) })
    }

    /// One of them alone, for the thread of that number among those that compute; none where there are more threads.
    #[must_use]
    pub fn only(&self, number: usize) -> Option<Self> {
        self.0.iter().nth(number).map(|core| Self([*core].into()))
    }

    /// This thread, and whatever thread it starts from now on, stays on them.
    ///
    /// # Errors
    /// When this process may not run on one of them, or the system keeps threads nowhere.
    pub fn stay(&self) -> io::Result<()> {
        self.check()?;
        platform::set_processors(&self.0)
    }

    /// Whether this thread may run on all of them.
    ///
    /// # Errors
    /// As [`Self::stay`].
    pub fn check(&self) -> io::Result<()> {
        let Some(missing) = self.0.difference(&platform::allowed_processors()?).next().copied() else { return Ok(()) };
        let why = format!("there is no processor {missing} that this process may use");
        Err(io::Error::new(io::ErrorKind::NotFound, why))
    }

    /// Runs `work` on them, and goes back to where this thread was; threads that `work` starts stay there.
    ///
    /// # Errors
    /// When the system refuses. This thread may be kept off them: whether they are there is asked before ([`Self::check`]).
    pub fn run<R>(&self, work: impl FnOnce() -> R) -> io::Result<R> {
        let before = platform::allowed_processors()?;
        platform::set_processors(&self.0)?;
        let done = work();
        platform::set_processors(&before)?;
        Ok(done)
    }
}

/// Runs `work` on these processors, or anywhere where none are named.
///
/// # Errors
/// As [`Cores::run`].
pub fn run_on<R>(cores: Option<&Cores>, work: impl FnOnce() -> R) -> io::Result<R> {
    match cores {
        Some(cores) => cores.run(work),
        None => Ok(work()),
    }
}

/// Keeps each thread that computes on a processor of its own, where some are named: neighbours then keep their caches, and no two
/// take turns on one while another is idle. Where none are named the system places threads, for several peers on one host would
/// all take the same ones.
#[must_use]
pub fn each_its_own(cores: Option<&Cores>) -> Starting {
    let cores = cores.cloned();
    Arc::new(move |number| {
        let own = cores.as_ref().and_then(|cores| cores.only(number));
        if let Some(Err(error)) = own.map(|own| own.stay()) {
            tracing::warn!(number, %error, "a thread that computes does not stay on its processor");
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::BTreeMap, sync::Mutex};
    use tsnode_kernels::engine::{Engine, EngineConfig, Threads};
    use tsnode_protocol::KvDtype;

    #[test]
    fn lists_are_read_and_nonsense_is_refused() {
        let read = |text: &str| text.parse::<Cores>().map(|cores| cores.to_string());
        assert_eq!(read("0-2, 5,1"), Ok("0,1,2,5".into()));
        assert_eq!("7".parse::<Cores>().unwrap().len(), 1);
        for wrong in ["", "a", "2-1", "0-", "-1", "1024", "0-99999999999", "0,,1"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn some_compute_and_the_others_do_the_rest() {
        let divided = |text: &str, threads| {
            let (compute, rest) = text.parse::<Cores>().unwrap().divided(threads);
            (compute.to_string(), rest.to_string())
        };
        assert_eq!(divided("4-7", 3), ("4,5,6".into(), "7".into()));
        assert_eq!(divided("4-7", 4), ("4,5,6,7".into(), "4,5,6,7".into()));
    }

    #[test]
    fn threads_stay_where_they_are_started() {
        let here = || platform::allowed_processors().unwrap();
        let on_its_own = std::thread::spawn(move || {
            let (compute, rest) = Cores(here()).divided(1);
            rest.stay().unwrap();
            assert_eq!(here(), rest.0);
            // That the rest may not run where others compute is no obstacle to these.
            let started = compute.run(|| std::thread::spawn(here).join().unwrap()).unwrap();
            assert_eq!((&started, &here()), (&compute.0, &rest.0));
            assert!(Cores([MOST - 1].into()).stay().is_err());
            assert_eq!(compute.check().is_ok(), compute == rest);
        });
        on_its_own.join().unwrap();
    }

    /// Members' processors by number, in an engine with so many threads and ranks.
    fn members(cores: &Cores, threads: Threads) -> BTreeMap<usize, BTreeSet<usize>> {
        let places: Arc<Mutex<BTreeMap<usize, BTreeSet<usize>>>> = Arc::default();
        let (seen, stay) = (places.clone(), each_its_own(Some(cores)));
        let starting = move |number| {
            stay(number);
            assert!(
                seen.lock().unwrap().insert(number, platform::allowed_processors().unwrap()).is_none(),
                "two are {number}"
            );
        };
        let config = EngineConfig { threads, pool_bytes: 1 << 20, kv_dtype: KvDtype::F16 };
        // When it has gone its threads have begun, and ended.
        drop(cores.run(|| Engine::started(config, Arc::new(starting))).unwrap().unwrap());
        std::mem::take(&mut places.lock().unwrap())
    }

    #[test]
    fn each_thread_that_computes_has_a_processor_of_its_own() {
        let here = Cores(platform::allowed_processors().unwrap());
        if here.len() < 2 {
            println!("one processor: no two threads can have one each");
            return;
        }
        let count = here.len().min(4);
        let on_its_own = std::thread::spawn(move || {
            let (compute, _) = here.divided(count);
            for ranks in 1..=count {
                let places = members(&compute, Threads { count, ranks });
                let expected: BTreeMap<_, _> = (1..count).map(|n| (n, compute.only(n).unwrap().0)).collect();
                assert_eq!(places, expected, "{ranks} ranks");
            }
            assert_eq!(compute.only(count), None);
            // The caller's is that of the thread which owns the engine.
            let first = compute.only(0);
            let owner = || std::thread::spawn(|| platform::allowed_processors().unwrap()).join().unwrap();
            assert_eq!(Some(Cores(run_on(first.as_ref(), owner).unwrap())), first);
            assert_eq!(here.0, platform::allowed_processors().unwrap());
        });
        on_its_own.join().unwrap();
    }
}
