//! Which runs came up, and what was recorded of them.

use super::machine::Recorded;

/// Runs that are kept at a time: common batch sizes, and lengths by powers of two.
const RECORDINGS: usize = 64;

/// Runs that came up, the one unused the longest first.
#[derive(Debug)]
pub(super) struct Recordings<K>(Vec<(K, Option<Recorded>)>);

impl<K> Default for Recordings<K> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: PartialEq> Recordings<K> {
    /// Whether a run came up before, and what was recorded of it; to ask is to use it.
    pub fn find(&mut self, run: &K) -> Option<Option<Recorded>> {
        let place = self.0.iter().position(|(known, _)| known == run)?;
        // They are few, and moved once a step.
        self.0[place..].rotate_left(1);
        self.0.last().map(|(_, recorded)| *recorded)
    }

    /// Notes that a run came up that is not known; what was recorded of the one that gives way is returned.
    pub fn came_up(&mut self, run: K) -> Option<Recorded> {
        let gives_way = if self.0.len() < RECORDINGS { None } else { self.0.remove(0).1 };
        self.0.push((run, None));
        gives_way
    }

    /// Notes what was recorded of the run that was used last.
    pub fn was_recorded(&mut self, recorded: Recorded) {
        if let Some((_, last)) = self.0.last_mut() {
            *last = Some(recorded);
        }
    }

    /// Forgets all of them.
    pub fn clear(&mut self) {
        self.0.clear();
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
}
