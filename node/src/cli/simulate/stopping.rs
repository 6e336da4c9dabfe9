//! Ctrl-C while something is computed: the first has it end with what there is, the second ends the process.

use crate::cli::{exit::Exit, joined};
use futures::{
    Stream, StreamExt,
    stream::{self, BoxStream},
};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// The code of a process that a second Ctrl-C has ended, as of every verb.
const ENDED: i32 = 130;

/// Computes on a thread of its own what looks now and then whether it is to stop.
pub(super) async fn stoppable(work: impl FnOnce(&AtomicBool) -> Result<(), Exit> + Send + 'static) -> Result<(), Exit> {
    let stopped = Arc::new(AtomicBool::new(false));
    let heard = heard(interrupts(), stopped.clone(), || std::process::exit(ENDED));
    let listener = crate::tasks::spawn("signals", heard);
    let result = joined(tokio::task::spawn_blocking(move || work(&stopped))).await?;
    listener.abort();
    result
}

fn interrupts() -> BoxStream<'static, ()> {
    stream::unfold((), |()| async { tokio::signal::ctrl_c().await.ok().map(|()| ((), ())) }).boxed()
}

/// Not all of what is computed looks, nor at once: whoever asks a second time does not want to wait for that.
async fn heard(mut interrupts: impl Stream<Item = ()> + Unpin, stopped: Arc<AtomicBool>, end: impl FnOnce()) {
    if interrupts.next().await.is_none() {
        return;
    }
    stopped.store(true, Ordering::Relaxed);
    note!("tsnode: note: ending with what there is; Ctrl-C once more ends at once");
    if interrupts.next().await.is_some() {
        end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_interrupt_stops_and_the_second_ends() {
        for (count, is_stopped, is_ended) in [(0, false, false), (1, true, false), (2, true, true)] {
            let (stopped, mut ended) = (Arc::new(AtomicBool::new(false)), false);
            heard(stream::iter(vec![(); count]), stopped.clone(), || ended = true).await;
            assert_eq!((stopped.load(Ordering::Relaxed), ended), (is_stopped, is_ended), "{count}");
        }
    }
}
