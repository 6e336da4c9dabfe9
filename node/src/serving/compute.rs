//! The compute thread: the one owner of the engine. Everything that touches tensors is handed to it as a closure.

use std::panic::{AssertUnwindSafe, catch_unwind};
use tokio::sync::{mpsc, oneshot};
use tsnode_kernels::engine::Engine;

/// Jobs waiting for the compute thread. A full queue makes callers wait, which is what slows admission down.
const JOBS: usize = 256;

type Job = Box<dyn FnOnce(&mut Engine) + Send>;

/// The compute thread is gone, or the job made it panic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the compute thread gave no answer")]
pub struct ComputeError;

/// The way to the compute thread.
#[derive(Clone)]
pub struct Compute {
    jobs: mpsc::Sender<Job>,
}

impl Compute {
    /// Starts the thread; it ends when the last handle is dropped.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(engine: Engine) -> std::io::Result<Self> {
        let (jobs, receiver) = mpsc::channel(JOBS);
        std::thread::Builder::new().name("compute".into()).spawn(move || work(engine, receiver))?;
        Ok(Self { jobs })
    }

    /// Runs `job` on the engine and waits for its result.
    ///
    /// # Errors
    /// When the thread is gone or the job panicked.
    pub async fn call<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Engine) -> R + Send + 'static,
    ) -> Result<R, ComputeError> {
        let (answer, result) = oneshot::channel();
        let job: Job = Box::new(move |engine| {
            // Whoever asked may have gone; then nobody wants the result.
            let _ = answer.send(job(engine));
        });
        self.jobs.send(job).await.map_err(|_| ComputeError)?;
        result.await.map_err(|_| ComputeError)
    }
}

fn work(mut engine: Engine, mut jobs: mpsc::Receiver<Job>) {
    while let Some(job) = jobs.blocking_recv() {
        // A panic here is a bug, but one sequence's bug must not end everybody's.
        if catch_unwind(AssertUnwindSafe(|| job(&mut engine))).is_err() {
            tracing::error!("a compute job panicked; what waited for it fails");
        }
    }
}
