//! Who drops a ring is heard of at once by the stage before, though nothing is on its way.

use super::*;
use crate::data_plane::links::{Incoming, IncomingStream};
use crate::worker::kv_receiver::tests::links;
use tokio::time::timeout;
use tsnode_protocol::{
    LayerRange, ModelId, RequestId, RingId, Stage, Token, limits,
    ring::{Step, StepEntry},
};

const SOON: Duration = Duration::from_secs(10);

/// A ring's stream from one peer to another, as both have it.
async fn opened(from: &Links, to: (PeerId, &Links, &mut Incoming)) -> (Stream, Stream) {
    let stage = Stage { peer: to.0, device: 0, layers: LayerRange { start: 0, end: 1 } };
    let hello = RingHello {
        group: GroupId([1; 8]),
        ring: RingId([2; 8]),
        model: ModelId([3; 16]),
        stages: vec![stage; 2],
        position: 1,
    };
    let (addresses, opening) = ([to.1.local_addr().unwrap()], Opening::Ring(hello));
    let (mine, arrived) = tokio::join!(from.open(to.0, &addresses, &opening), to.2.next());
    let IncomingStream { stream: theirs, .. } = arrived.unwrap();
    (mine.unwrap(), theirs)
}

#[tokio::test]
async fn a_ring_that_the_next_stage_drops_ends_at_the_stage_before() {
    let stop = CancellationToken::new();
    let _end = stop.clone().drop_guard();
    let (_, before, _) = links(&stop);
    let (me, here, mut incoming) = links(&stop);
    let (after, next, mut there) = links(&stop);
    let (_held, arrived) = opened(&before, (me, &here, &mut incoming)).await;
    let (Stream { sender: _sender, receiver: mut onward }, theirs) = opened(&here, (after, &next, &mut there)).await;
    let (frames, _worker) = mpsc::channel(FRAMES);
    let mut ring = std::pin::pin!(until_dropped(arrived.receiver, frames, &mut onward));
    // As long as all hold it, it lasts.
    timeout(Duration::from_millis(200), &mut ring).await.unwrap_err();
    drop(theirs);
    let why = timeout(SOON, ring).await.unwrap().unwrap_err();
    assert_eq!(why.to_string(), "the next stage dropped the ring");
}

#[test]
fn a_reason_is_news_once_and_again_after_a_ring_of_use() {
    let mut said = LastRingError::default();
    let news = ["not loaded", "not loaded", "gone", "not loaded"].map(|why| said.is_news(why));
    assert_eq!(news, [true, false, true, true]);
    said.forget();
    assert!(said.is_news("not loaded"));
}

/// It may send what no leader asked for, and faster than anybody computes.
#[tokio::test]
async fn of_what_the_stage_before_sends_no_more_is_read_than_there_is_room_for() {
    let stop = CancellationToken::new();
    let _end = stop.clone().drop_guard();
    let (_, before, _) = links(&stop);
    let (me, here, mut incoming) = links(&stop);
    let (Stream { mut sender, receiver: _receiver }, arrived) = opened(&before, (me, &here, &mut incoming)).await;
    let entry =
        StepEntry { request: RequestId([1; 16]), start: 0, tokens: vec![Token(1)], sample: false, prompt: true };
    for step in 0..3 {
        sender.send(&RingFrame::Step(Step { step, entries: vec![entry.clone()], rows: 1 })).await.unwrap();
        sender.send_bytes(&[0; 4000], limits::ACTIVATION_BYTES).await.unwrap();
    }
    let (frames, mut worker) = mpsc::channel(FRAMES);
    let reading = crate::tasks::spawn("test", read_ring(arrived.receiver, frames, 10_000));
    let first = timeout(SOON, worker.recv()).await.unwrap().unwrap();
    let second = timeout(SOON, worker.recv()).await.unwrap().unwrap();
    assert_eq!((first.hidden.len(), second.hidden.len()), (1000, 1000));
    timeout(Duration::from_millis(200), worker.recv()).await.unwrap_err();
    drop(first);
    let third = timeout(SOON, worker.recv()).await.unwrap().unwrap();
    assert!(matches!(&third.frame, RingFrame::Step(step) if step.step == 2));
    reading.abort();
}
