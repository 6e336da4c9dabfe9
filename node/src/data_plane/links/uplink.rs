//! The owner's limit on uploads: what leaves by this peer's own socket, and what the control plane carries for the data plane,
//! wait in one line.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use tsnode_protocol::BytesPerSecond;

/// What leaves this host, no faster than its owner allows.
#[derive(Debug)]
pub(super) struct Uplink {
    rate: Option<BytesPerSecond>,
    /// When it has sent what it was given. Held for arithmetic only.
    free: Mutex<Instant>,
}

impl Uplink {
    pub fn new(rate: Option<BytesPerSecond>) -> Self {
        Self { rate, free: Mutex::new(Instant::now()) }
    }

    /// When what is given to it at `start` begins to leave.
    pub fn turn(&self, start: Instant) -> Instant {
        if self.rate.is_none() { start } else { start.max(*self.free.lock().unwrap_or_else(PoisonError::into_inner)) }
    }

    /// Gives it so many bytes at `start`; says when they have left.
    pub fn take(&self, start: Instant, bytes: usize) -> Instant {
        let Some(rate) = self.rate else { return start };
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        *free = start.max(*free) + Duration::from_secs_f64(bytes as f64 / rate.0);
        *free
    }

    /// Resolves when so many bytes more have had the time they take.
    pub async fn send(&self, bytes: usize) {
        if self.rate.is_some() {
            sleep_until(self.take(Instant::now(), bytes)).await;
        }
    }
}
