//! Clients that ask a swarm again and again, and keep what they are answered.

use crate::{
    answers::{KINDS, body},
    client::{AnswerStream, BadStream, SeenStream},
};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

const LOOK: Duration = Duration::from_millis(20);

/// Where clients ask; changes when a gateway starts again elsewhere.
pub(crate) type Gateways = Arc<Mutex<Vec<String>>>;

/// What became of one request.
pub(crate) struct LoadRequest {
    /// Its client's name for it.
    pub key: String,
    /// Its number.
    pub request: usize,
    /// Which of the gateways its client asks first.
    pub front: usize,
    pub outcome: Result<SeenStream, BadStream>,
}

/// Clients at work.
pub(crate) struct ClientLoad {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    clients: Vec<JoinHandle<Vec<LoadRequest>>>,
}

impl ClientLoad {
    /// Each client asks one gateway first, and the next when that is gone. Requests of another `seed` have other keys: a swarm
    /// answers a key that it knows with what it answered before.
    pub fn start(seed: u64, streams: usize, gateways: &Gateways) -> Self {
        let (stop, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let client = crate::client::plain_http();
        let one = |front: usize| {
            let (client, gateways) = (client.clone(), gateways.clone());
            let (stop, served) = (stop.clone(), served.clone());
            tokio::spawn(async move {
                let (mut all, mut request, mut nth) = (Vec::new(), front, 0);
                while !stop.load(Relaxed) {
                    (request, nth) = ((request + 3) % KINDS, nth + 1);
                    let key = format!("seed {seed}, client {front}, request {nth}");
                    let reader = AnswerStream::new(&client, key.clone(), body(request));
                    let gateway = |asked: usize| {
                        let known = gateways.lock().unwrap_or_else(PoisonError::into_inner);
                        known[(front + asked) % known.len()].clone()
                    };
                    let outcome = reader.read(gateway).await;
                    all.push(LoadRequest { key, request, front, outcome });
                    served.fetch_add(1, Relaxed);
                }
                all
            })
        };
        let clients = (0..streams).map(one).collect();
        Self { stop, served, clients }
    }

    /// Waits until so many more streams have ended; whether they did in time.
    pub async fn await_more(&self, more: usize, patience: Duration) -> bool {
        let (until, deadline) = (self.served.load(Relaxed) + more, Instant::now() + patience);
        while self.served.load(Relaxed) < until {
            if Instant::now() > deadline {
                return false;
            }
            sleep(LOOK).await;
        }
        true
    }

    /// Lets the clients finish what they read, and takes what they saw.
    pub async fn end(self) -> Vec<LoadRequest> {
        self.stop.store(true, Relaxed);
        let all = futures::future::join_all(self.clients).await;
        all.into_iter().flat_map(Result::unwrap_or_default).collect()
    }
}
