//! The one place where tasks start that no tracker joins: each has a name, and it is known which have not ended.
//!
//! Whoever starts one ends it, by a token or by what it reads from; `clippy.toml` has everybody start them here.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};
use tokio::task::JoinHandle;

/// Tasks under way in this process, by name. Held for map operations only.
static RUNNING: Mutex<BTreeMap<&'static str, usize>> = Mutex::new(BTreeMap::new());

/// Counts a task for as long as its future is there, however that ends.
struct TaskGuard(&'static str);

impl TaskGuard {
    fn one(name: &'static str) -> Self {
        *RUNNING.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_default() += 1;
        Self(name)
    }
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = running.get_mut(self.0) {
            *count -= 1;
        }
    }
}

/// Starts a task, which goes on where its handle is dropped.
#[expect(clippy::disallowed_methods, reason = "this is the place")]
pub fn spawn<F>(name: &'static str, work: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let running = TaskGuard::one(name);
    tokio::spawn(async move {
        let _running = running;
        work.await
    })
}

/// Tasks that have not ended, by name, and how many of each.
#[must_use]
pub fn running() -> BTreeMap<&'static str, usize> {
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner).clone();
    running.retain(|_, count| *count > 0);
    running
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn a_task_is_known_by_name_until_it_ends_or_is_aborted() {
        const NAMES: [&str; 2] = ["tasks' test: ends", "tasks' test: aborted"];
        let (end, ended) = oneshot::channel::<()>();
        let (_never, waits) = oneshot::channel::<()>();
        let tasks = [spawn(NAMES[0], ended), spawn(NAMES[1], waits)];
        assert_eq!(NAMES.map(|name| running().get(name).copied()), [Some(1); 2]);
        end.send(()).unwrap();
        tasks[1].abort();
        for task in tasks {
            drop(task.await);
        }
        assert_eq!(NAMES.map(|name| running().get(name).copied()), [None; 2]);
    }
}
