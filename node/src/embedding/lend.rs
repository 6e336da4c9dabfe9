//! A lent encoder: one thread that computes, on as many threads as its peer lends, and a queue before it.

use super::{Encoder, EncoderError};
use crate::{
    data_plane::links::Stream,
    hardware::cores::Cores,
    history::{History, TokenWork},
    platform::give_way,
};
use std::path::Path;
use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};
use tokio::sync::{mpsc, watch};
use tsnode_protocol::{EncodeEvent, EncodeRefusal, EncodeRequest, EncoderCard, EncoderTask};

/// Requests that wait; who comes then is refused, and asks another lender.
const REQUESTS: usize = 64;
/// Their inputs, together.
const INPUTS: u32 = 1024;

/// What computes.
#[derive(Clone, Copy, Debug)]
pub struct Computing<'c> {
    /// Threads.
    pub threads: usize,
    /// Processors they stay on, if the owner says.
    pub cores: Option<&'c Cores>,
}

/// Encoders that this peer lends.
#[derive(Clone, Default)]
pub struct Lenders(Arc<Vec<LentEncoder>>);

impl Lenders {
    /// These.
    #[must_use]
    pub fn new(lenders: Vec<LentEncoder>) -> Self {
        Self(Arc::new(lenders))
    }

    /// What others are told of them.
    #[must_use]
    pub fn cards(&self) -> Vec<EncoderCard> {
        self.0.iter().map(|lender| lender.card.clone()).collect()
    }

    /// Begins to encode; the answer ends with [`EncodeEvent::Done`] or a refusal. Nothing more is computed once it is dropped.
    ///
    /// # Errors
    /// When the model is not lent here, or too much waits.
    pub fn encode(&self, request: EncodeRequest) -> Result<mpsc::Receiver<EncodeEvent>, EncodeRefusal> {
        let lender = self.0.iter().find(|lender| lender.card.id == request.model);
        lender.ok_or(EncodeRefusal::NotLent)?.encode(request)
    }

    /// Answers another peer's request, and counts what is computed for it.
    pub async fn serve(&self, request: EncodeRequest, stream: Stream, history: &History) {
        let Stream { mut sender, receiver: _receiver } = stream;
        let card = self.0.iter().map(|lender| &lender.card).find(|card| card.id == request.model);
        let count = |event: &EncodeEvent| {
            if let (EncodeEvent::Encoded(encoded), Some(card)) = (event, card) {
                history.computed((card.id, &card.name), TokenWork::of(encoded.tokens, 0, 1, 1));
            }
        };
        let mut events = match self.encode(request) {
            Ok(events) => events,
            Err(refusal) => {
                // Whoever asked may be gone.
                let _ = sender.send(&EncodeEvent::Refused(refusal)).await.and_then(|()| sender.finish());
                return;
            }
        };
        let gone = sender.closed();
        let answer = async {
            while let Some(event) = events.recv().await {
                count(&event);
                if sender.send(&event).await.is_err() {
                    return;
                }
            }
            let _ = sender.finish();
        };
        tokio::select! {
            () = answer => {}
            // It hung up: what is left is not computed.
            () = gone => {}
        }
    }
}

/// One encoder with its thread, which ends when nobody can ask it any more.
pub struct LentEncoder {
    card: EncoderCard,
    jobs: mpsc::Sender<EncodeJob>,
    waiting: Arc<AtomicU32>,
    /// Whether what runs here is for others to go on with: the peer leaves, or is paused.
    moving: watch::Receiver<bool>,
}

struct EncodeJob {
    request: EncodeRequest,
    events: mpsc::Sender<EncodeEvent>,
}

impl LentEncoder {
    /// Reads the encoder in that folder and starts its thread.
    ///
    /// # Errors
    /// When it is none that can be lent, or the host gives no thread.
    pub fn start(
        path: &Path,
        task: EncoderTask,
        computing: Computing<'_>,
        moving: watch::Receiver<bool>,
    ) -> Result<Self, EncoderError> {
        // Weights are converted and tried on the threads that compute later.
        let pool = pool(computing)?;
        let encoder = pool.install(|| Encoder::open(path))?;
        if encoder.card().task != task {
            let what = match task {
                EncoderTask::Embed => "it is a cross-encoder, which scores pairs: lend it with --rerank-model",
                EncoderTask::Score => {
                    "it is no cross-encoder (its architectures name none for classification): lend it with --embedding-model"
                }
            };
            return Err(EncoderError::Unsupported { path: path.join("config.json"), what: what.into() });
        }
        Self::of(encoder, pool, moving)
    }

    fn of(encoder: Encoder, pool: rayon::ThreadPool, moving: watch::Receiver<bool>) -> Result<Self, EncoderError> {
        let card = encoder.card().clone();
        let (jobs, queue) = mpsc::channel(REQUESTS);
        let waiting = Arc::<AtomicU32>::default();
        let worker = EncoderWorker { encoder, pool, waiting: waiting.clone() };
        let system = |error: std::io::Error| EncoderError::System(error.to_string());
        std::thread::Builder::new().name("encoder".into()).spawn(move || worker.run(queue)).map_err(system)?;
        Ok(Self { card, jobs, waiting, moving })
    }

    /// What others are told of it.
    #[must_use]
    pub fn card(&self) -> &EncoderCard {
        &self.card
    }

    fn encode(&self, request: EncodeRequest) -> Result<mpsc::Receiver<EncodeEvent>, EncodeRefusal> {
        if *self.moving.borrow() {
            return Err(EncodeRefusal::NotLent);
        }
        let inputs = request.inputs.len() as u32;
        let before = self.waiting.fetch_add(inputs, Ordering::Relaxed);
        let leave = |refusal| {
            self.waiting.fetch_sub(inputs, Ordering::Relaxed);
            refusal
        };
        if before > 0 && before + inputs > INPUTS {
            return Err(leave(EncodeRefusal::Busy { waiting: before }));
        }
        // Room for all there is to say: the thread waits for nobody.
        let (events, told) = mpsc::channel(inputs as usize + 1);
        match self.jobs.try_send(EncodeJob { request, events }) {
            Ok(()) => Ok(told),
            Err(mpsc::error::TrySendError::Full(_)) => Err(leave(EncodeRefusal::Busy { waiting: before })),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(leave(EncodeRefusal::NotLent)),
        }
    }
}

/// Has candle start the threads that it keeps for itself, which take over where they run and how much they give way. They are one
/// set for the whole process, started once.
fn start_own_threads(cores: Option<&Cores>) -> Result<(), EncoderError> {
    let cores = cores.cloned();
    let begin = move || {
        if let Some(Err(error)) = cores.map(|cores| cores.stay()) {
            tracing::warn!(%error, "candle's threads do not stay on their processors");
        }
        give_way();
        candle_core::utils::barrier_pool().n_workers()
    };
    let system = |error: std::io::Error| EncoderError::System(error.to_string());
    let started = std::thread::Builder::new().name("encoder start".into()).spawn(begin).map_err(system)?.join();
    let workers = started.map_err(|_| EncoderError::System("candle starts no threads".into()))?;
    tracing::debug!(workers, "candle has its threads");
    Ok(())
}

/// Threads for candle's arithmetic. They give way to those that serve tokens.
fn pool(computing: Computing<'_>) -> Result<rayon::ThreadPool, EncoderError> {
    start_own_threads(computing.cores)?;
    let cores = computing.cores.cloned();
    let begin = move |number: usize| {
        let own = cores.as_ref().and_then(|cores| cores.only(number));
        if let Some(Err(error)) = own.map(|own| own.stay()) {
            tracing::warn!(number, %error, "a thread of the encoder does not stay on its processor");
        }
        give_way();
    };
    let threads = rayon::ThreadPoolBuilder::new().num_threads(computing.threads.max(1)).start_handler(begin);
    let threads = threads.thread_name(|number| format!("encoder {number}"));
    threads.build().map_err(|error| EncoderError::System(error.to_string()))
}

struct EncoderWorker {
    encoder: Encoder,
    pool: rayon::ThreadPool,
    waiting: Arc<AtomicU32>,
}

impl EncoderWorker {
    fn run(self, mut queue: mpsc::Receiver<EncodeJob>) {
        while let Some(job) = queue.blocking_recv() {
            let inputs = job.request.inputs.len() as u32;
            let refused = self.pool.install(|| self.encode(&job)).err();
            let waiting = self.waiting.fetch_sub(inputs, Ordering::Relaxed).saturating_sub(inputs);
            let last = refused.map_or(EncodeEvent::Done { waiting }, EncodeEvent::Refused);
            // Whoever asked may be gone.
            let _ = job.events.try_send(last);
        }
    }

    /// Encodes all inputs, and says each as soon as those before it are done.
    fn encode(&self, job: &EncodeJob) -> Result<(), EncodeRefusal> {
        let EncodeRequest { inputs, truncate, .. } = &job.request;
        let read = self.encoder.tokenise(inputs, *truncate)?;
        let mut done: Vec<Option<tsnode_protocol::Encoded>> = vec![None; read.len()];
        let mut said = 0;
        for places in self.encoder.batches(&read) {
            if job.events.is_closed() {
                return Ok(());
            }
            for (at, encoded) in places.iter().zip(self.encoder.compute(&read, &places)?) {
                done[*at] = Some(encoded);
            }
            while let Some(encoded) = done.get_mut(said).and_then(Option::take) {
                let _ = job.events.try_send(EncodeEvent::Encoded(encoded));
                said += 1;
            }
        }
        Ok(())
    }
}
