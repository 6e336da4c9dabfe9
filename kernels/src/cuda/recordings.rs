//! Which runs came up, and what was recorded of them.

use super::machine::Recorded;

/// Runs of one GPU that are kept at a time: common batch sizes, and lengths by powers of two.
const RECORDINGS: usize = 64;

/// Runs that came up.
#[derive(Debug)]
pub(super) struct Recordings<K> {
    /// The one unused the longest first.
    runs: Vec<(K, Option<Recorded>)>,
    most: usize,
}

impl<K> Default for Recordings<K> {
    fn default() -> Self {
        Self::of(1)
    }
}

impl<K> Recordings<K> {
    /// Of runs on so many GPUs: each takes memory for the launches of all, and for copies between any two.
    pub fn of(gpus: usize) -> Self {
        Self { runs: Vec::new(), most: (RECORDINGS / gpus.max(1)).max(1) }
    }
}

impl<K: PartialEq> Recordings<K> {
    /// Whether a run came up before, and what was recorded of it; to ask is to use it.
    pub fn find(&mut self, run: &K) -> Option<Option<Recorded>> {
        let place = self.runs.iter().position(|(known, _)| known == run)?;
        // They are few, and moved once a step.
        self.runs[place..].rotate_left(1);
        self.runs.last().map(|(_, recorded)| *recorded)
    }

    /// Notes that a run came up that is not known; what was recorded of the one that gives way is returned.
    pub fn came_up(&mut self, run: K) -> Option<Recorded> {
        let gives_way = if self.runs.len() < self.most { None } else { self.runs.remove(0).1 };
        self.runs.push((run, None));
        gives_way
    }

    /// Notes what was recorded of the run that was used last.
    pub fn was_recorded(&mut self, recorded: Recorded) {
        if let Some((_, last)) = self.runs.last_mut() {
            *last = Some(recorded);
        }
    }

    /// Forgets all of them.
    pub fn clear(&mut self) {
        self.runs.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_unused_the_longest_gives_way() {
        let mut runs = Recordings::default();
        for run in 0..RECORDINGS {
            assert_eq!((runs.find(&run), runs.came_up(run)), (None, None));
            assert_eq!(runs.find(&run), Some(None));
            runs.was_recorded(Recorded(100 + run));
        }
        assert_eq!(runs.find(&0), Some(Some(Recorded(100))));
        assert_eq!(runs.came_up(1000), Some(Recorded(101)), "0 was used since");
        assert_eq!(runs.came_up(1001), Some(Recorded(102)));
        assert_eq!((runs.find(&0), runs.find(&1)), (Some(Some(Recorded(100))), None));
        assert_eq!((runs.find(&1000), runs.find(&63)), (Some(None), Some(Some(Recorded(163)))));
        runs.clear();
        assert_eq!(runs.find(&0), None);
    }

    #[test]
    fn of_several_gpus_fewer_are_kept() {
        let mut runs = Recordings::of(4);
        for run in 0..=RECORDINGS / 4 {
            assert_eq!(runs.came_up(run), None);
        }
        assert_eq!((runs.find(&0), runs.find(&1)), (None, Some(None)));
    }
}
