//! A stage of a group led by another peer: waits for a ring, works in it until it ends, waits for the next.

use super::stage::{Downstream, FRAMES, StageContext, StageError, Worker, read_ring};
use crate::links::{Links, Stream};
use crate::roster::Roster;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tsnode_protocol::{Group, GroupId, PeerId, ring::RingHello, stream::Opening};

/// How long a leader has to move what runs on a stage of a peer that lends no longer.
const PARTING: Duration = Duration::from_secs(2);

/// A stream of the stage before, with which a ring reaches this stage.
#[derive(Debug)]
pub(super) struct RingStream {
    pub hello: RingHello,
    pub stream: Stream,
}

/// Serves one stage until `retire`, and then until its ring ends, for a short while only where what runs here is for others
/// to go on with (`moving`); a new ring replaces the one before.
pub(super) async fn run(
    group: Group,
    context: StageContext,
    roster: Roster,
    mut rings: mpsc::Receiver<RingStream>,
    (retire, moving): (CancellationToken, watch::Receiver<bool>),
) {
    let mut next = None;
    loop {
        let ring = match next.take() {
            Some(ring) => ring,
            None => tokio::select! {
                () = retire.cancelled() => return,
                ring = rings.recv() => match ring { Some(ring) => ring, None => return },
            },
        };
        let (group_id, name) = (group.id, ring.hello.ring);
        tracing::debug!(group = %group_id, ring = %name, position = context.position, "ring reached this stage");
        tokio::select! {
            why = live(&group, &context, &roster, ring) => {
                tracing::info!(group = %group_id, ring = %name, %why, "ring ended");
            }
            () = parted(&retire, moving.clone()) => {
                tracing::info!(group = %group_id, ring = %name, "ring dropped: this peer lends no longer");
                return;
            }
            // None comes any more where the plan has dropped the group: what runs here runs on.
            Some(newer) = rings.recv() => next = Some(newer),
        }
        // Dropping the ring's future drops its streams; its pages go back when its worker notices, before new ones
        // are taken: both happen in the order of the compute thread's queue.
    }
}

/// Resolves when this peer has lent its part of a group that it no longer serves for long enough.
async fn parted(retire: &CancellationToken, mut moving: watch::Receiver<bool>) {
    retire.cancelled().await;
    // The owner being gone, the process ends.
    let _ = moving.wait_for(|moving| *moving).await;
    sleep(PARTING).await;
}

async fn live(group: &Group, context: &StageContext, roster: &Roster, ring: RingStream) -> StageError {
    let downstream = match open_onward(group, context, roster, &ring.hello).await {
        Ok(stream) => stream,
        Err(error) => return error,
    };
    // Nothing comes back on the stream to the next stage; its receiver only keeps it open.
    let Stream { sender, receiver: _onward } = downstream;
    let Stream { sender: _back, receiver } = ring.stream;
    let (frames, arrived) = mpsc::channel(FRAMES);
    let worker = tokio::spawn(Worker::run(context.clone(), Downstream::Stream(sender), arrived));
    let read = read_ring(receiver, frames).await;
    // The reader has ended and with it the worker's input: it gives its pages back and ends.
    let worked = worker.await.unwrap_or(StageError::Upstream);
    read.err().unwrap_or(worked)
}

/// Opens the stream to the next stage, or from the last stage to the leader.
pub(super) async fn open_onward(
    group: &Group,
    context: &StageContext,
    roster: &Roster,
    hello: &RingHello,
) -> Result<Stream, StageError> {
    let position = (usize::from(context.position) + 1) % group.stages.len();
    let onward = RingHello { position: position as u16, ..hello.clone() };
    let peer = group.stages[position].peer;
    open(&context.links, roster, peer, group.id, onward).await
}

async fn open(
    links: &Links,
    roster: &Roster,
    peer: PeerId,
    group: GroupId,
    hello: RingHello,
) -> Result<Stream, StageError> {
    let addresses = roster.data_addresses(peer);
    tracing::trace!(%group, %peer, ?addresses, "opening ring onward");
    Ok(links.open(peer, &addresses, &Opening::Ring(hello)).await?)
}
