//! Prompt flow 3: a leader's way through all stages of its group and back.

use super::Leader;
use crate::data_plane::links::{FrameReceiver, Stream};
use crate::worker::{
    context::StageContext,
    leader_client::refusing,
    member::{RingStream, dropped, open_onward},
    speculator::{Speculator, SpeculatorGone, SpeculatorOrder},
    stage::{Arrived, Downstream, FRAMES, StageError, Worker},
};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tsnode_coordinator::batcher::Event;
use tsnode_protocol::{
    RingId,
    ring::{RingFrame, RingHello},
    stream::PLAN_CHANGED,
};

/// How long a ring may take to come round once.
const RING_PATIENCE: Duration = Duration::from_secs(5);

/// A ring that has come round.
pub(super) struct ConnectedRing {
    pub worker: mpsc::Sender<Arrived>,
    /// Knows this ring's sequences only.
    pub speculator: Option<Speculator>,
    pub back: mpsc::Receiver<RingFrame>,
    /// Resolves when the ring breaks.
    pub end: tokio::task::JoinHandle<StageError>,
}

impl Leader {
    pub(super) async fn build(&mut self) -> Result<ConnectedRing, StageError> {
        let (worker, arrived) = mpsc::channel(FRAMES);
        let (to_leader, back) = mpsc::channel(FRAMES);
        if self.group.stages.len() == 1 {
            let work =
                Worker::run(self.context.clone(), self.kv_receiver.clone(), Downstream::Leader(to_leader), arrived);
            return Ok(ConnectedRing {
                worker,
                speculator: self.speculator(),
                back,
                end: crate::tasks::spawn("stage", work),
            });
        }
        let hello = RingHello {
            group: self.group.id,
            ring: RingId(crate::random_bytes()),
            model: self.group.model,
            stages: self.group.stages.clone(),
            position: 0,
        };
        let onward = open_onward(&self.group, &self.context, &self.roster, &hello);
        let Stream { sender, receiver: mut onward } = refusing(&mut self.requests, onward).await?;
        let (rings, retire) = (&mut self.rings, &self.retire);
        let come = async {
            tokio::select! {
                closing = timeout(RING_PATIENCE, come_round(rings, hello.ring)) => closing
                    .unwrap_or_else(|_| Err(StageError::Protocol("the ring did not come round in time".into()))),
                why = dropped(&mut onward) => Err(why),
                () = retire.cancelled() => Err(StageError::Protocol(PLAN_CHANGED.into())),
            }
        };
        let closing = refusing(&mut self.requests, come).await?;
        // A task of its own: whatever breaks first, the worker runs on until it has given its pages back.
        let work = crate::tasks::spawn(
            "stage",
            Worker::run(self.context.clone(), self.kv_receiver.clone(), Downstream::Stream(sender), arrived),
        );
        let end = crate::tasks::spawn("ring's end", async move {
            let Stream { sender: _keep, receiver } = closing;
            tokio::select! {
                why = work => why.unwrap_or(StageError::Upstream),
                why = read_back(receiver, to_leader) => why,
                why = dropped(&mut onward) => why,
            }
        });
        Ok(ConnectedRing { worker, speculator: self.speculator(), back, end })
    }

    fn speculator(&self) -> Option<Speculator> {
        let StageContext { compute, shape, tasks, .. } = &self.context;
        self.draft.clone().map(|draft| Speculator::start(draft, compute.clone(), shape.vocab, tasks))
    }
}

impl ConnectedRing {
    pub(super) fn ask(&self, order: SpeculatorOrder) -> Result<(), SpeculatorGone> {
        self.speculator.as_ref().ok_or(SpeculatorGone)?.order(order)
    }
}

/// What a ring's speculator says, if there is one.
pub(super) async fn answer_of(speculator: &mut Option<Speculator>) -> Result<Event, SpeculatorGone> {
    match speculator {
        Some(speculator) => speculator.answer().await,
        None => std::future::pending().await,
    }
}

/// Waits until the last stage's stream of this very ring arrives.
async fn come_round(rings: &mut mpsc::Receiver<RingStream>, ring: RingId) -> Result<Stream, StageError> {
    while let Some(arrived) = rings.recv().await {
        if arrived.hello.ring == ring {
            return Ok(arrived.stream);
        }
    }
    Err(StageError::Upstream)
}

/// Frames of the last stage, to the leader.
async fn read_back(mut stream: FrameReceiver, leader: mpsc::Sender<RingFrame>) -> StageError {
    loop {
        match stream.recv::<RingFrame>().await {
            Ok(Some(mut frame)) => {
                if let Err(error) = frame.check() {
                    return stream.refuse(error).into();
                }
                frame.shorten_reason();
                if leader.send(frame).await.is_err() {
                    return StageError::Upstream;
                }
            }
            Ok(None) => return StageError::Upstream,
            Err(error) => return error.into(),
        }
    }
}
