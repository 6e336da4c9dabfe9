//! What a peer reads, hashes and measures before it takes part in a swarm: minutes of a large model, which its end does not wait for.

use super::NodeError;
use crate::tasks;
use std::panic::resume_unwind;
use tokio_util::sync::CancellationToken;

/// What this work comes to, unless the peer is to end first. The work has a thread to itself, since it does not give way where it
/// computes; what is left of it then ends with the process, and on disk is nothing but what it wrote whole.
pub(super) async fn unless_ended<T: Send + 'static>(
    stop: &CancellationToken,
    work: impl Future<Output = Result<T, NodeError>> + Send + 'static,
) -> Result<Option<T>, NodeError> {
    let mut work = tasks::spawn("opening", work);
    let done = stop.run_until_cancelled(&mut work).await;
    let Some(done) = done else {
        work.abort();
        return Ok(None);
    };
    match done {
        Ok(done) => done.map(Some),
        Err(error) => match error.try_into_panic() {
            Ok(thrown) => resume_unwind(thrown),
            Err(ended) => Err(NodeError::System(ended.to_string())),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;
    use tokio::{sync::oneshot, time::timeout};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_is_to_end_does_not_wait_for_what_computes() {
        let stop = CancellationToken::new();
        let (begun, has_begun) = oneshot::channel();
        let (release, released) = mpsc::channel::<()>();
        let work = async move {
            tokio::task::block_in_place(|| {
                let _ = begun.send(());
                // For as long as the test lasts.
                let _ = released.recv();
            });
            Ok::<_, NodeError>(())
        };
        let end = async {
            has_begun.await.unwrap();
            stop.cancel();
        };
        let both = async { tokio::join!(unless_ended(&stop, work), end) };
        let (left, ()) = timeout(Duration::from_secs(10), both).await.expect("it is left");
        assert!(left.unwrap().is_none());
        drop(release);
    }

    #[tokio::test]
    async fn what_it_comes_to_is_what_was_waited_for() {
        let stop = CancellationToken::new();
        let seven = unless_ended(&stop, async { Ok::<_, NodeError>(7) }).await;
        assert_eq!(seven.unwrap(), Some(7));
        let failed = unless_ended(&stop, async { Err::<(), _>(NodeError::System("no memory".into())) }).await;
        assert_eq!(failed.unwrap_err().to_string(), "no memory");
        stop.cancel();
        let late = unless_ended(&stop, std::future::pending::<Result<(), NodeError>>()).await;
        assert!(late.unwrap().is_none());
    }
}
