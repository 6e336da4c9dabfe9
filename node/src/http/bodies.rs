//! Prompt flow 1: requests' bodies on their way in: so many bytes at once, in order.
//!
//! What is short is read at once. What is long needs a place first, by its length, and keeps it until its text has become
//! tokens: nobody's bodies take more memory than the budget, and whoever comes when that is used up waits, unread. A place is
//! for who sends: a slow sender gives it up when others wait for one.

use super::{ApiError, fields::Fields, mend, naming::Naming};
use crate::text::Workers;
use axum::{
    body::{Body, BodyDataStream, Bytes},
    http::{HeaderMap, header},
};
use futures::StreamExt;
use std::fmt::Display;
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tsnode_kernels::memory;
use tsnode_protocol::limits;

/// Bodies up to here need no place (bytes). Connections are bounded elsewhere, and each has one body at a time.
const SHORT: usize = 64 << 10;
/// Memory for all that is longer (bytes).
const BUDGET: usize = 96 << 20;
/// What one takes of it, in its own length: itself, its text, and what a template makes of that.
const COPIES: usize = 3;
/// A place is so many bytes: a semaphore counts to 2^29.
const PLACE: usize = 4 << 10;
/// How long one waits for places.
const PATIENCE: Duration = Duration::from_secs(15);
/// Requests that may wait for places.
const WAITING: usize = 256;
/// When to come back where there were none.
const RETRY: Duration = Duration::from_secs(10);
/// How much of a body that is refused is read and forgotten, so that its sender reads why, and for how long.
const FORGOTTEN: (usize, Duration) = (2 * limits::HTTP_BODY_BYTES, Duration::from_secs(2));
/// How often a sender's speed is looked at when nothing comes.
const LOOK: Duration = Duration::from_millis(500);
/// What is freed may go back to the system after this time: others may need it at once.
const SETTLED: Duration = Duration::from_millis(200);

/// How slow a sender may be.
struct SenderPace {
    /// After this time.
    from: Duration,
    /// Bytes in a second, on average.
    least: u64,
}

/// Of a sender whom nobody waits for: a telephone's.
const ALONE: SenderPace = SenderPace { from: Duration::from_secs(15), least: 8 << 10 };
/// Of a sender for whose places others wait.
const CROWDED: SenderPace = SenderPace { from: Duration::from_secs(3), least: 1 << 20 };

/// A request as it was read.
pub(super) struct ReadBody {
    /// For what it takes; dropped after all else.
    pub place: Option<BodyPermit>,
    pub naming: Naming,
    pub fields: Fields,
}

/// Reads bodies.
#[derive(Clone, Default)]
pub(super) struct Bodies(Arc<Shared>);

struct Shared {
    places: Arc<Semaphore>,
    waiting: AtomicUsize,
    patience: Duration,
    parsers: Workers,
    is_trimming: AtomicBool,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            places: Arc::new(Semaphore::new(BUDGET / PLACE)),
            waiting: AtomicUsize::new(0),
            patience: PATIENCE,
            parsers: Workers::default(),
            is_trimming: AtomicBool::new(false),
        }
    }
}

impl Bodies {
    /// Reads a request for a completion, where prompts have so many tokens at most.
    pub async fn read(&self, headers: &HeaderMap, body: Body, tokens: usize) -> Result<ReadBody, ApiError> {
        let parse = move |bytes: &[u8]| Ok((Fields::parse(bytes, tokens)?, ()));
        self.read_by(headers, body, parse).await.map(|(asked, ())| asked)
    }

    /// Reads a request for vectors or scores, where inputs have so many tokens at most.
    pub async fn read_inputs(&self, headers: &HeaderMap, body: Body, tokens: usize) -> Result<ReadBody, ApiError> {
        let parse = move |bytes: &[u8]| Ok((Fields::parse_inputs(bytes, tokens)?, ()));
        self.read_by(headers, body, parse).await.map(|(asked, ())| asked)
    }

    /// Reads a request in any form that `parse` makes fields of, and something more.
    pub async fn read_by<T: Send + 'static>(
        &self,
        headers: &HeaderMap,
        body: Body,
        parse: impl FnOnce(&[u8]) -> Result<(Fields, T), ApiError> + Send + 'static,
    ) -> Result<(ReadBody, T), ApiError> {
        let mut body = body.into_data_stream();
        let (mut bytes, place) = match self.receive(headers, &mut body).await {
            Ok(received) => received,
            Err(error) => {
                forget(body, &error).await;
                return Err(error);
            }
        };
        let (length, headers) = (bytes.len(), headers.clone());
        let read = move || {
            let naming = Naming::of(&headers, &bytes)?;
            let (fields, more) = parse(mend::json(&mut bytes))?;
            Ok((ReadBody { place, naming, fields }, more))
        };
        self.0.parsers.run(length, read).await.unwrap_or_else(|error| Err(busy(&error)))
    }

    async fn receive(
        &self,
        headers: &HeaderMap,
        body: &mut BodyDataStream,
    ) -> Result<(Vec<u8>, Option<BodyPermit>), ApiError> {
        const MOST: usize = limits::HTTP_BODY_BYTES;
        let declared = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let declared: usize = declared.unwrap_or(0);
        if declared > MOST {
            return Err(ApiError::TooLarge(MOST));
        }
        let mut place = if declared > SHORT { Some(self.place(declared).await?) } else { None };
        let (mut bytes, mut began) = (Vec::with_capacity(memory::room(declared)), Instant::now());
        while let Some(piece) = self.next(body, began, bytes.len(), place.is_some()).await? {
            let length = bytes.len() + piece.len();
            if length > MOST {
                return Err(ApiError::TooLarge(MOST));
            }
            if length > SHORT && place.is_none() {
                // It does not say how long it gets.
                place = Some(self.place(MOST).await?);
                began = Instant::now();
                bytes.reserve_exact(memory::room(MOST));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok((bytes, place))
    }

    /// A place for a body of so many bytes, in order of asking.
    async fn place(&self, bytes: usize) -> Result<BodyPermit, ApiError> {
        let Some(_waits) = Waits::among(&self.0) else { return Err(busy(&"too many wait for their turn already")) };
        let places = u32::try_from((bytes * COPIES).div_ceil(PLACE)).unwrap_or(u32::MAX);
        match timeout(self.0.patience, self.0.places.clone().acquire_many_owned(places)).await {
            Ok(Ok(permit)) => Ok(BodyPermit { _permit: permit, shared: self.0.clone() }),
            _ => Err(busy(&"others before it are not done")),
        }
    }

    /// The next piece of a body.
    async fn next(
        &self,
        body: &mut BodyDataStream,
        began: Instant,
        received: usize,
        has_place: bool,
    ) -> Result<Option<Bytes>, ApiError> {
        loop {
            let piece = timeout(LOOK, body.next()).await;
            let is_crowded = has_place && self.0.waiting.load(Ordering::Relaxed) > 0;
            let (pace, after) = (if is_crowded { CROWDED } else { ALONE }, began.elapsed());
            match piece {
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => {
                    return Err(ApiError::Invalid { message: format!("The body broke off: {error}"), param: None });
                }
                _ if pace.is_above(received, after) => return Err(ApiError::TooSlow { received, after }),
                Ok(Some(Ok(piece))) => return Ok(Some(piece)),
                Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
impl Bodies {
    /// Who waits for a place is refused after this time.
    pub fn patient(patience: Duration) -> Self {
        Self(Arc::new(Shared { patience, ..Shared::default() }))
    }

    /// So many bodies of this length could begin now.
    pub fn places_for(&self, bytes: usize) -> usize {
        self.0.places.available_permits() / (bytes * COPIES).div_ceil(PLACE)
    }

    pub fn waiting(&self) -> usize {
        self.0.waiting.load(Ordering::Relaxed)
    }
}

impl SenderPace {
    /// Whether so many bytes in this time are too few.
    fn is_above(&self, received: usize, after: Duration) -> bool {
        let since = after.saturating_sub(self.from);
        (received as f64) < self.least as f64 * since.as_secs_f64()
    }
}

/// Memory for a request with a long body.
pub(super) struct BodyPermit {
    _permit: OwnedSemaphorePermit,
    shared: Arc<Shared>,
}

impl Drop for BodyPermit {
    /// The allocator keeps what was freed, in every thread's own heap.
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.shared.is_trimming.swap(true, Ordering::Relaxed) {
            return;
        }
        let shared = self.shared.clone();
        runtime.spawn(async move {
            tokio::time::sleep(SETTLED).await;
            shared.is_trimming.store(false, Ordering::Relaxed);
            let _ended = tokio::task::spawn_blocking(memory::trim).await;
        });
    }
}

/// One of those who wait for a place.
struct Waits<'s>(&'s Shared);

impl<'s> Waits<'s> {
    /// Unless there are too many.
    fn among(shared: &'s Shared) -> Option<Self> {
        let waits = Self(shared);
        (shared.waiting.fetch_add(1, Ordering::Relaxed) < WAITING).then_some(waits)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

fn busy(why: &dyn Display) -> ApiError {
    let reason = format!("this peer has no room for another long request: {why}; ask again later, or shorter");
    ApiError::Unserved { reason, retry_after: RETRY }
}

/// Reads on for a while without keeping anything: a sender that is cut short sees a broken connection, and not why.
async fn forget(mut body: BodyDataStream, why: &ApiError) {
    if matches!(why, ApiError::TooSlow { .. } | ApiError::Invalid { .. }) {
        return;
    }
    let (most, patience) = FORGOTTEN;
    let all = async {
        let mut forgotten = 0;
        while let Some(Ok(piece)) = body.next().await {
            forgotten += piece.len();
            if forgotten > most {
                return;
            }
        }
    };
    // Whoever sends more has been told.
    let _ = timeout(patience, all).await;
}
