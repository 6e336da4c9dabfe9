//! Prompt flow 7: receives KV for sequences that wait for it. Nothing half-received is ever decoded from.
//!
//! A stage registers what it expects and for how long; each KV stream is checked against that, unpacked straight into
//! the reserved pages, and counted only once its manifest fits. When every layer of the stage has arrived, or the
//! patience is over, the stage hears of it once.

mod incoming;

use super::context::{AdmissionNo, AdmittedFrame, SideFrames, StageContext};
use crate::data_plane::links::Stream;
use incoming::{IncomingKv, ReceiveError};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tsnode_kernels::engine::{Engine, StageKey};
use tsnode_protocol::{
    KvCodec, LayerRange, PeerId, RequestId,
    kv::{Delivery, KvAnswer, KvHeader},
    limits,
    ring::RingFrame,
};

/// A sequence that waits for KV at one stage.
pub(super) struct ExpectedKv {
    /// This peer.
    pub me: PeerId,
    pub request: RequestId,
    /// Of its prompt those that come, the first ones.
    pub tokens: u32,
    pub codec: KvCodec,
    pub patience: Duration,
    pub stage: StageContext,
    pub side: SideFrames,
    pub admission: AdmissionNo,
    pub ring: CancellationToken,
}

/// What has come of it so far.
struct PendingKv {
    expected: Arc<ExpectedKv>,
    /// Layers that lie in pages, each counted once.
    arrived: Vec<u32>,
    /// By the layers that both stages have.
    deliveries: Vec<(LayerRange, Delivery)>,
    /// Ends patience and receiving when the sequence is released.
    end: CancellationToken,
}

impl PendingKv {
    /// What came by several connections from one stage is one delivery. Once there are as many as one frame may tell of, what else
    /// comes is told with the last: who sends KV in ever other pieces must not have the leader refuse, and blame, what this stage says.
    fn add(&mut self, header: &KvHeader, new: Delivery) {
        let same = self.deliveries.iter().position(|(layers, d)| (*layers, d.from) == (header.layers, new.from));
        let last = (self.deliveries.len() >= limits::STAGES).then_some(limits::STAGES - 1);
        match same.or(last).and_then(|at| self.deliveries.get_mut(at)) {
            Some((_, delivery)) => delivery.join(&new),
            None => self.deliveries.push((header.layers, new)),
        }
        self.arrived.extend(header.carried());
    }
}

/// Sequences that wait for KV on this peer, by request and stage. Held for map operations only, never across an await.
#[derive(Clone, Default)]
pub(super) struct KvReceiver {
    pending: Arc<Mutex<BTreeMap<(RequestId, StageKey), PendingKv>>>,
    /// KV streams refused, by why.
    refused: Arc<Mutex<BTreeMap<&'static str, u64>>>,
}

impl KvReceiver {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(RequestId, StageKey), PendingKv>> {
        // Every critical section is a map operation that leaves the map whole.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a sequence's KV; the stage hears `KvArrived` exactly once unless the sequence is forgotten first.
    pub fn expect(&self, expected: ExpectedKv) {
        let end = expected.ring.child_token();
        let key = (expected.request, expected.stage.key);
        let (patience, admission, tasks) = (expected.patience, expected.admission, expected.stage.tasks.clone());
        let pending =
            PendingKv { expected: Arc::new(expected), arrived: Vec::new(), deliveries: Vec::new(), end: end.clone() };
        self.lock().insert(key, pending);
        let kv_receiver = self.clone();
        tasks.spawn(async move {
            tokio::select! {
                () = end.cancelled() => drop(kv_receiver.leave(key, admission)),
                () = tokio::time::sleep(patience) => {
                    let why = format!("no KV within {:.1} s of the reservation", patience.as_secs_f64());
                    kv_receiver.finish(key, admission, Some(why)).await;
                }
            }
        });
    }

    /// The sequence is released: whatever still arrives for it is refused.
    pub fn forget(&self, request: RequestId, key: StageKey) {
        if let Some(pending) = self.lock().remove(&(request, key)) {
            pending.end.cancel();
        }
    }

    /// This admission waits no longer; a later one of the same sequence may.
    fn leave(&self, key: (RequestId, StageKey), admission: AdmissionNo) -> Option<PendingKv> {
        let mut pending = self.lock();
        if pending.get(&key)?.expected.admission != admission {
            return None;
        }
        pending.remove(&key)
    }

    /// Says how the waiting ended, if it has not ended yet.
    async fn finish(&self, key: (RequestId, StageKey), admission: AdmissionNo, failed: Option<String>) {
        let Some(pending) = self.leave(key, admission) else { return };
        pending.end.cancel();
        let position = pending.expected.stage.position;
        let deliveries = pending.deliveries.into_iter().map(|(_, delivery)| delivery).collect();
        let arrived = failed.map_or(Ok(deliveries), Err);
        let frame = RingFrame::KvArrived { request: key.0, position, arrived };
        // A ring that has ended no longer listens.
        let _ = pending.expected.side.send(AdmittedFrame { admission, frame }).await;
    }

    /// KV streams refused since the start, by why.
    pub fn refused(&self) -> BTreeMap<&'static str, u64> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn find(&self, header: &KvHeader) -> Option<((RequestId, StageKey), Arc<ExpectedKv>, CancellationToken)> {
        let wanted = |e: &ExpectedKv| header.layers.intersection(e.stage.layers) == header.layers;
        self.lock()
            .iter()
            .find(|((request, _), p)| *request == header.request && wanted(&p.expected))
            .map(|(key, p)| (*key, p.expected.clone(), p.end.clone()))
    }

    /// Takes one KV stream in and answers it.
    pub async fn receive(&self, from: PeerId, header: KvHeader, stream: Stream) {
        let Stream { mut sender, receiver } = stream;
        let answer = match self.find(&header) {
            None => Err(ReceiveError::Unexpected),
            Some((key, expected, end)) => {
                let taken = tokio::select! {
                    () = end.cancelled() => Err(ReceiveError::Unexpected),
                    taken = IncomingKv::new(&expected, &header, receiver).take_in(from, &mut sender) => taken,
                };
                self.conclude(key, &expected, &header, taken).await
            }
        };
        let answer = match answer {
            Ok(()) => KvAnswer::Committed,
            Err(error) => {
                tracing::info!(request = %header.request, %from, %error, "KV refused");
                *self.refused.lock().unwrap_or_else(PoisonError::into_inner).entry(error.kind()).or_default() += 1;
                KvAnswer::Refused(error.to_string())
            }
        };
        if sender.send(&answer).await.is_ok() {
            let _ = sender.finish();
        }
    }

    /// Counts layers that arrived whole; commits the sequence when none is missing.
    async fn conclude(
        &self,
        key: (RequestId, StageKey),
        expected: &ExpectedKv,
        header: &KvHeader,
        taken: Result<Delivery, ReceiveError>,
    ) -> Result<(), ReceiveError> {
        let delivery = match taken {
            Ok(delivery) => delivery,
            Err(error) => {
                self.finish(key, expected.admission, Some(error.to_string())).await;
                return Err(error);
            }
        };
        let whole = {
            let mut pending = self.lock();
            let entry = pending.get_mut(&key).filter(|p| p.expected.admission == expected.admission);
            let entry = entry.ok_or(ReceiveError::Unexpected)?;
            entry.add(header, delivery);
            entry.arrived.sort_unstable();
            entry.arrived.dedup();
            entry.arrived.len() == expected.stage.layers.len() as usize
        };
        if whole {
            let (stage, request, tokens) = (expected.stage.key, expected.request, expected.tokens);
            let commit = move |engine: &mut Engine| engine.set_len(stage, request, tokens);
            let committed = expected.stage.compute.call(commit).await;
            let failed = match committed {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(error) => Some(error.to_string()),
            };
            self.finish(key, expected.admission, failed).await;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests;
