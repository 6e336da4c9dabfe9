//! The compute thread: the one owner of the engine. Everything that touches tensors is handed to it as a closure.

use super::{
    device_turns::{TurnSeat, Turns},
    page_share::PageShare,
};
use crate::{faults::Faults, platform};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use std::task::{Context, Poll, Wake};
use std::thread::Thread;
use std::time::{Duration, Instant};
use tokio::sync::{
    mpsc::{self, error::TryRecvError},
    oneshot, watch,
};
use tsnode_coordinator::policy::sharing::{
    TurnOrder,
    arbiter::{DeviceWork, StepShare},
    device_use::ServiceUse,
};
use tsnode_kernels::engine::Engine;
use tsnode_protocol::RequestId;

/// Jobs waiting for the compute thread. A full queue makes callers wait, which is what slows admission down.
const JOBS: usize = 256;

/// A thread without work for that long is not about to get some: until then a core is better left to the network, which brings it.
const RESTED: Duration = Duration::from_millis(50);

/// How often a thread that hangs on purpose looks whether it still should.
const HANG_LOOK: Duration = Duration::from_millis(20);

/// What is to be done, and as what it asks for its turn.
struct ComputeJob {
    work: DeviceWork<RequestId>,
    run: Box<dyn FnOnce(&mut Engine) + Send>,
}

/// The compute thread is gone, or the job made it panic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the compute thread gave no answer")]
pub struct ComputeError;

/// The way to the compute thread.
#[derive(Clone)]
pub struct Compute {
    jobs: mpsc::Sender<ComputeJob>,
    busy: ComputeTime,
    seat: TurnSeat,
    share: Option<PageShare>,
}

/// How long the thread has computed (ns). Of a processor's, how long it had one: what others on this host take of the processors
/// is not in it. Of a GPU's, which computes while its thread waits, how long its jobs took. Turns of others are in neither.
#[derive(Clone, Debug)]
struct ComputeTime {
    on_gpu: bool,
    so_far: Arc<AtomicU64>,
}

impl ComputeTime {
    /// A job is done that took so long; this thread tells of itself.
    fn tell(&self, took: Duration) {
        if self.on_gpu {
            self.so_far.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
            return;
        }
        let now = platform::thread_time().as_nanos();
        self.so_far.store(u64::try_from(now).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl Compute {
    /// Starts the thread; it ends when the last handle is dropped. Where a testnet wishes so it hangs.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(engine: Engine, faults: Option<watch::Receiver<Faults>>) -> std::io::Result<Self> {
        Self::start_beside(&Turns::new(TurnOrder::default()), (engine, None), faults)
    }

    /// The same beside other threads of its device, which take turns; where these have one pool of pages, with its share of them.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_beside(
        turns: &Turns,
        (engine, share): (Engine, Option<PageShare>),
        faults: Option<watch::Receiver<Faults>>,
    ) -> std::io::Result<Self> {
        let (jobs, receiver) = mpsc::channel(JOBS);
        let busy = ComputeTime { on_gpu: engine.is_on_gpu(), so_far: Arc::default() };
        let seat = turns.join();
        let own = (seat.clone(), share.clone());
        std::thread::Builder::new().name("compute".into()).spawn(move || work(engine, receiver, faults, &own))?;
        Ok(Self { jobs, busy, seat, share })
    }

    /// How long the thread has computed since it began, by its last job: waiting for turns is not in it.
    pub fn busy(&self) -> Duration {
        Duration::from_nanos(self.busy.so_far.load(Ordering::Relaxed))
    }

    /// What it has had of its device since it began: steps and other turns that are over.
    pub fn used(&self) -> ServiceUse {
        self.seat.used()
    }

    /// Whether its device is a GPU, or several.
    pub fn is_on_gpu(&self) -> bool {
        self.busy.on_gpu
    }

    /// Its model's share of the device's pages; none where it has all of them.
    pub(super) fn share(&self) -> Option<PageShare> {
        self.share.clone()
    }

    /// A request comes that has so many prompt tokens to compute: its steps have turns accordingly.
    pub fn enters(&self, request: RequestId, prompt: u32) {
        self.seat.enters(request, prompt);
    }

    /// A request has no more steps.
    pub fn leaves(&self, request: RequestId) {
        self.seat.leaves(request);
    }

    /// Runs a step of these requests on the engine when it is its turn, and waits for its result.
    ///
    /// # Errors
    /// When the thread is gone or the job panicked.
    pub async fn step<R: Send + 'static>(
        &self,
        shares: Vec<StepShare<RequestId>>,
        job: impl FnOnce(&mut Engine) -> R + Send + 'static,
    ) -> Result<R, ComputeError> {
        self.ask(DeviceWork::Step(shares), job).await
    }

    /// Runs what is no step on the engine, before steps that wait for their turn, and waits for its result.
    ///
    /// # Errors
    /// When the thread is gone or the job panicked.
    pub async fn call<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Engine) -> R + Send + 'static,
    ) -> Result<R, ComputeError> {
        self.ask(DeviceWork::Errand, job).await
    }

    /// Has the engine do what is no step once all is done that was asked for before, and does not wait for it: whoever only gives
    /// something back need not.
    ///
    /// # Errors
    /// When the thread is gone.
    pub async fn post(&self, job: impl FnOnce(&mut Engine) + Send + 'static) -> Result<(), ComputeError> {
        let busy = self.busy.clone();
        let run = Box::new(move |engine: &mut Engine| {
            let since = Instant::now();
            job(engine);
            busy.tell(since.elapsed());
        });
        self.jobs.send(ComputeJob { work: DeviceWork::Errand, run }).await.map_err(|_| ComputeError)
    }

    async fn ask<R: Send + 'static>(
        &self,
        work: DeviceWork<RequestId>,
        job: impl FnOnce(&mut Engine) -> R + Send + 'static,
    ) -> Result<R, ComputeError> {
        let (answer, result) = oneshot::channel();
        let busy = self.busy.clone();
        let run = Box::new(move |engine: &mut Engine| {
            let since = Instant::now();
            let result = job(engine);
            // Before the answer, which is what somebody waits for who then asks for this.
            busy.tell(since.elapsed());
            // Whoever asked may have gone; then nobody wants the result.
            let _ = answer.send(result);
        });
        self.jobs.send(ComputeJob { work, run }).await.map_err(|_| ComputeError)?;
        result.await.map_err(|_| ComputeError)
    }
}

/// The next job. A thread that has had none for a while makes the engine ready for some, a few hundredths of a millisecond at a
/// time.
fn next(engine: &mut Engine, jobs: &mut mpsc::Receiver<ComputeJob>) -> Option<ComputeJob> {
    if let Some(job) = within(RESTED, jobs) {
        return job;
    }
    loop {
        match jobs.try_recv() {
            Ok(job) => return Some(job),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) if engine.make_ready() => {}
            Err(TryRecvError::Empty) => return jobs.blocking_recv(),
        }
    }
}

/// What comes within that time: a job, or the end of them. The thread may outlive the runtime, whose clock it could not use then.
fn within(time: Duration, jobs: &mut mpsc::Receiver<ComputeJob>) -> Option<Option<ComputeJob>> {
    struct Sleeper(Thread);
    impl Wake for Sleeper {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Sleeper(std::thread::current())).into();
    let (mut context, until) = (Context::from_waker(&waker), Instant::now() + time);
    loop {
        if let Poll::Ready(job) = jobs.poll_recv(&mut context) {
            return Some(job);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        std::thread::park_timeout(left);
    }
}

fn work(
    mut engine: Engine,
    mut jobs: mpsc::Receiver<ComputeJob>,
    faults: Option<watch::Receiver<Faults>>,
    (seat, share): &(TurnSeat, Option<PageShare>),
) {
    let hangs = || faults.as_ref().is_some_and(|faults| faults.borrow().wedge);
    while let Some(ComputeJob { work, run }) = next(&mut engine, &mut jobs) {
        while hangs() {
            std::thread::sleep(HANG_LOOK);
        }
        let _turn = seat.take(work);
        // A panic here is a bug, but one sequence's bug must not end everybody's.
        if catch_unwind(AssertUnwindSafe(|| engine.turn(run))).is_err() {
            tracing::error!("a compute job panicked; what waited for it fails");
        }
        if let Some(share) = share {
            share.uses(engine.pages_used());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_kernels::{
        engine::{DevicePool, EngineConfig, Threads},
        pages::{PAGE_BYTES, PageCount},
        source::ModelSource,
    };
    use tsnode_protocol::KvDtype;

    /// Takes and gives pages as fast as it can: one in each of four layers.
    async fn takes_and_gives(compute: Compute, source: &ModelSource) -> Compute {
        let loaded = source.load_stage(source.card().shape.all_layers()).unwrap();
        let key = compute.call(move |engine| engine.load(loaded)).await.unwrap().unwrap();
        for n in 0..100 {
            let request = RequestId([n; 16]);
            compute.call(move |engine| engine.admit(key, request, 128)).await.unwrap().unwrap();
            compute.post(move |engine| engine.release(key, request)).await.unwrap();
            assert_eq!(
                compute.call(|engine| engine.pages_used()).await.unwrap(),
                0,
                "they are back before what is next"
            );
        }
        compute
    }

    #[tokio::test]
    async fn models_of_a_device_have_its_pages_one_after_the_other() {
        let (pool, turns) = (DevicePool::new(12 * PAGE_BYTES, 1), Turns::new(TurnOrder::default()));
        let start = |share: PageShare| {
            let threads = Threads::together(1);
            let engine = Engine::started_in(&pool, threads, KvDtype::F16, Arc::new(|_| ())).unwrap();
            Compute::start_beside(&turns, (engine, Some(share)), None).unwrap()
        };
        let mut computes = PageShare::of_device(&[6, 6]).into_iter().map(start);
        let (one, other) = (computes.next().unwrap(), computes.next().unwrap());
        let source = ModelSource::embedded().unwrap();
        let (one, other) = tokio::join!(takes_and_gives(one, &source), takes_and_gives(other, &source));
        for compute in [one, other] {
            let pages = compute.call(|engine| engine.pages()).await.unwrap();
            assert_eq!(pages, PageCount { free: 12, total: 12 });
        }
    }

    #[tokio::test]
    async fn who_waits_is_not_busy_and_who_computes_is() {
        let config = EngineConfig { threads: Threads::together(1), pool_bytes: 0, kv_dtype: KvDtype::F16 };
        let compute = Compute::start(Engine::new(config).unwrap(), None).unwrap();
        let long = Duration::from_millis(200);
        compute.call(move |_| std::thread::sleep(long)).await.unwrap();
        let waited = compute.busy();
        assert!(waited < long / 2, "{waited:?}");
        let own = platform::thread_time;
        let spun = move |_: &mut Engine| {
            let until = own() + long;
            while own() < until {}
        };
        compute.call(spun).await.unwrap();
        assert!(compute.busy() >= long, "{:?}", compute.busy());
    }
}
