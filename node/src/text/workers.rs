//! Long work on clients' texts, away from the threads that serve: so many bytes at once, in order.
//!
//! A tokenizer takes up to 260 bytes of memory and a microsecond for every byte of a text. What is short is done at once or
//! among others that are short; what is long has turns of its own, so that nobody waits for it who asks for little.

use crate::platform::give_way;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Texts up to here are not worth another thread (bytes): their work takes as long as starting it elsewhere does.
const AT_ONCE: usize = 4 << 10;
/// Texts up to here are short (bytes): 16,000 tokens of English, some 30 ms.
const SHORT: usize = 64 << 10;
/// Long texts at once (bytes): with what a tokenizer takes, 130 MiB. One that is longer has it for itself.
const LONG_AT_ONCE: usize = 512 << 10;
/// Threads for short texts.
const SHORT_THREADS: usize = 4;

/// Work that did not end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there is no thread for it, or it broke off")]
pub struct Unfinished;

/// Turns of work on texts.
pub struct Workers {
    short: Arc<Semaphore>,
    /// A place is a byte.
    long: Arc<Semaphore>,
    /// What a long text takes of [`LONG_AT_ONCE`] at least, so that there are no more threads than that.
    least: usize,
}

impl Default for Workers {
    /// For half of this machine's processors.
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from) / 2;
        Self::with_threads(threads.clamp(1, LONG_AT_ONCE / SHORT))
    }
}

impl Workers {
    fn with_threads(threads: usize) -> Self {
        Self {
            short: Arc::new(Semaphore::new(SHORT_THREADS)),
            long: Arc::new(Semaphore::new(LONG_AT_ONCE)),
            least: LONG_AT_ONCE / threads,
        }
    }

    /// Does work on so many bytes of text when it is its turn. It goes on when nobody waits for it any more, and keeps its
    /// turn until it ends.
    ///
    /// # Errors
    /// When there is no thread for it, or it panics.
    pub async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Unfinished> {
        if bytes <= AT_ONCE {
            return Ok(work());
        }
        if bytes <= SHORT {
            let turn = self.short.clone().acquire_owned().await.map_err(|_| Unfinished)?;
            return tokio::task::spawn_blocking(move || done(work, turn)).await.map_err(|_| Unfinished);
        }
        let places = u32::try_from(bytes.clamp(self.least, LONG_AT_ONCE)).unwrap_or(u32::MAX);
        let turn = self.long.clone().acquire_many_owned(places).await.map_err(|_| Unfinished)?;
        let (sender, result) = oneshot::channel();
        let whole = move || {
            give_way();
            // Nobody may be left to hear it.
            drop(sender.send(done(work, turn)));
        };
        std::thread::Builder::new().name("long text".into()).spawn(whole).map_err(|_| Unfinished)?;
        result.await.map_err(|_| Unfinished)
    }
}

fn done<T>(work: impl FnOnce() -> T, turn: OwnedSemaphorePermit) -> T {
    let done = work();
    drop(turn);
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    /// Work that says when it begins and waits until it is told to end.
    fn held(said: &Sender<&'static str>, name: &'static str) -> (impl FnOnce() -> &'static str + use<>, Sender<()>) {
        let (end, ended) = channel();
        let said = said.clone();
        let work = move || {
            said.send(name).unwrap();
            ended.recv().unwrap();
            name
        };
        (work, end)
    }

    fn next(begun: &Receiver<&'static str>) -> &'static str {
        begun.recv_timeout(Duration::from_secs(10)).unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn long_texts_have_turns_in_order_and_short_ones_do_not_wait_for_them() {
        let workers = Arc::new(Workers::with_threads(1));
        let (said, begun) = channel();
        let start = |bytes: usize, name| {
            let (work, end) = held(&said, name);
            let workers = workers.clone();
            (crate::tasks::spawn("work in a process", async move { workers.run(bytes, work).await }), end)
        };
        let (first, end_first) = start(8 << 20, "first");
        assert_eq!(next(&begun), "first");
        let (second, end_second) = start(SHORT + 1, "second");
        // It queues before the third does.
        while Arc::strong_count(&workers.long) < 3 {
            tokio::task::yield_now().await;
        }
        let (third, end_third) = start(8 << 20, "third");
        let (short, end_short) = start(SHORT, "short");
        assert_eq!(next(&begun), "short", "with all long places taken");
        end_short.send(()).unwrap();
        assert_eq!(short.await.unwrap(), Ok("short"));
        end_first.send(()).unwrap();
        assert_eq!((first.await.unwrap(), next(&begun)), (Ok("first"), "second"));
        assert!(begun.try_recv().is_err(), "one at a time");
        end_second.send(()).unwrap();
        assert_eq!((second.await.unwrap(), next(&begun)), (Ok("second"), "third"));
        end_third.send(()).unwrap();
        assert_eq!(third.await.unwrap(), Ok("third"));
    }

    #[tokio::test]
    async fn work_that_panics_is_an_error_and_gives_its_turn_back() {
        let workers = Workers::with_threads(2);
        for bytes in [SHORT, SHORT + 1, 1 << 30] {
            assert_eq!(workers.run(bytes, || -> () { panic!("as it should") }).await, Err(Unfinished), "{bytes}");
            assert_eq!(workers.run(bytes, || 7).await, Ok(7), "{bytes}");
        }
    }

    #[tokio::test]
    async fn who_does_not_wait_any_more_leaves_the_turn_to_the_work() {
        let workers = Workers::with_threads(1);
        let (said, begun) = channel();
        let (work, end) = held(&said, "left");
        drop(tokio::time::timeout(Duration::from_millis(1), workers.run(1 << 20, work)).await);
        assert_eq!(next(&begun), "left");
        assert_eq!(workers.long.available_permits(), 0);
        end.send(()).unwrap();
        assert_eq!(workers.run(1 << 20, || 7).await, Ok(7));
    }
}
