//! A stage of a group led by another peer: waits for a ring, works in it until it ends, waits for the next.

use super::{
    context::StageContext,
    kv_receiver::KvReceiver,
    stage::{Arrived, Downstream, FRAMES, ROOM, StageError, Worker, read_ring},
};
use crate::data_plane::links::{FrameReceiver, Links, Stream};
use crate::data_plane::roster::Roster;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tsnode_protocol::{
    Group, GroupId, PeerId,
    ring::{RingFrame, RingHello},
    stream::Opening,
};

/// How long a leader has to move what runs on a stage of a peer that lends no longer.
const PARTING: Duration = Duration::from_secs(2);
/// A ring that lasted for so long is one that worked.
const OF_USE: Duration = Duration::from_secs(2);

/// A stream of the stage before, with which a ring reaches this stage.
#[derive(Debug)]
pub(super) struct RingStream {
    pub hello: RingHello,
    pub stream: Stream,
}

/// When a stage has served long enough.
pub(super) struct StageEnd {
    /// The group is no longer served.
    pub retire: CancellationToken,
    /// What runs here is for others to go on with: this peer lends no longer.
    pub moving: watch::Receiver<bool>,
    /// What is loaded next needs its memory.
    pub evict: CancellationToken,
}

impl StageEnd {
    /// Resolves when a group that is no longer served has had long enough to end.
    async fn parted(&self) -> &'static str {
        self.retire.cancelled().await;
        let mut moving = self.moving.clone();
        let moved = async {
            // The owner being gone, the process ends.
            drop(moving.wait_for(|moving| *moving).await);
            sleep(PARTING).await;
        };
        tokio::select! {
            () = self.evict.cancelled() => "its memory is needed",
            () = moved => "this peer lends no longer",
        }
    }
}

/// Serves one stage until it is retired, and then until its ring ends, or has had long enough to ([`StageEnd`]); a new ring replaces
/// the one before.
pub(super) async fn run(
    group: Group,
    (context, kv_receiver): (StageContext, KvReceiver),
    roster: Roster,
    mut rings: mpsc::Receiver<RingStream>,
    over: StageEnd,
) {
    let mut next = None;
    let mut said = LastRingError::default();
    loop {
        let ring = match next.take() {
            Some(ring) => ring,
            None => tokio::select! {
                () = over.retire.cancelled() => return,
                ring = rings.recv() => match ring { Some(ring) => ring, None => return },
            },
        };
        let (group_id, name) = (group.id, ring.hello.ring);
        tracing::debug!(group = %group_id, ring = %name, position = context.position, "ring reached this stage");
        let began = Instant::now();
        tokio::select! {
            why = live(&group, (&context, &kv_receiver), &roster, ring) => {
                if began.elapsed() > OF_USE {
                    said.forget();
                }
                let why = why.to_string();
                if said.is_news(&why) {
                    tracing::info!(group = %group_id, ring = %name, %why, "ring ended");
                }
            }
            why = over.parted() => {
                tracing::info!(group = %group_id, ring = %name, why, "ring dropped");
                return;
            }
            // None comes any more where the plan has dropped the group: what runs here runs on.
            Some(newer) = rings.recv() => next = Some(newer),
        }
        // Dropping the ring's future drops its streams; its pages go back when its worker notices, before new ones
        // are taken: both happen in the order of the compute thread's queue.
    }
}

async fn live(
    group: &Group,
    (context, kv_receiver): (&StageContext, &KvReceiver),
    roster: &Roster,
    ring: RingStream,
) -> StageError {
    let downstream = match open_onward(group, context, roster, &ring.hello).await {
        Ok(stream) => stream,
        Err(error) => return error,
    };
    let Stream { sender, receiver: mut onward } = downstream;
    let Stream { sender: _back, receiver } = ring.stream;
    let (frames, arrived) = mpsc::channel(FRAMES);
    let worker = crate::tasks::spawn(
        "stage",
        Worker::run(context.clone(), kv_receiver.clone(), Downstream::Stream(sender), arrived),
    );
    let read = until_dropped(receiver, frames, &mut onward).await;
    // The reader has ended and with it the worker's input: it gives its pages back and ends.
    let worked = worker.await.unwrap_or(StageError::Upstream);
    read.err().unwrap_or(worked)
}

/// Reads what the stage before says until its stream ends, or until the stage after this one drops the ring: so the leader hears of
/// it at once wherever in the ring that was, as when a stage is not loaded yet, and does not wait until its patience is over.
async fn until_dropped(
    before: FrameReceiver,
    frames: mpsc::Sender<Arrived>,
    onward: &mut FrameReceiver,
) -> Result<(), StageError> {
    tokio::select! {
        read = read_ring(before, frames, ROOM) => read,
        why = dropped(onward) => Err(why),
    }
}

/// Resolves when the next stage has dropped the ring, or is gone: it never says anything on this stream.
pub(super) async fn dropped(onward: &mut FrameReceiver) -> StageError {
    let _ = onward.recv::<RingFrame>().await;
    StageError::Protocol("the next stage dropped the ring".into())
}

/// Why the last ring ended: while a stage is loading rings end a few times a second, and are spoken of once.
#[derive(Debug, Default)]
pub(super) struct LastRingError(Option<String>);

impl LastRingError {
    /// Whether this is another reason than the last.
    pub fn is_news(&mut self, why: &str) -> bool {
        let is_news = self.0.as_deref() != Some(why);
        self.0 = is_news.then(|| why.to_owned()).or(self.0.take());
        is_news
    }

    /// A ring was of use: why the next one ends is news.
    pub fn forget(&mut self) {
        self.0 = None;
    }
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

#[cfg(test)]
mod tests;
