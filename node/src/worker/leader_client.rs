//! Prompt flow 3: how gateways talk to a group's leader, in this process or over a stream.

use crate::data_plane::links::{FrameSender, LinkError, Stream};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tsnode_protocol::{
    PeerId, RequestId, limits,
    stream::{DecodeEvent, DecodeOrder, DecodeRequest, NOT_UP, PrefillEvent, PrefillRequest},
};

/// Orders to one sequence that its leader has not read yet; a gateway sends at most three in a request's life.
pub const ORDERS: usize = 8;

/// How long a sequence's last event may be on its way.
const LAST_WORD: Duration = Duration::from_secs(1);

/// Why a leader takes no token that its model does not have: the first stage could not compute it, and the ring would break.
pub(super) const FOREIGN: &str = "the model has no such token";

/// A gateway's request to the leader of a group on this peer.
#[derive(Debug)]
pub enum LeaderRequest {
    /// Take a sequence for decoding.
    Decode {
        /// Whose client it is for, as TLS proved, or this very peer.
        gateway: PeerId,
        /// What is asked.
        request: DecodeRequest,
        /// Orders that follow; closed means the gateway has gone.
        orders: mpsc::Receiver<DecodeOrder>,
        /// Where the leader answers.
        events: mpsc::Sender<DecodeEvent>,
    },
    /// Compute a prompt and send its KV away.
    Prefill {
        /// Whose client it is for, as TLS proved, or this very peer.
        gateway: PeerId,
        /// What is asked.
        request: PrefillRequest,
        /// Where the leader answers; closed means the gateway has gone.
        events: mpsc::Sender<PrefillEvent>,
    },
}

impl LeaderRequest {
    /// Whose request.
    #[must_use]
    pub fn request(&self) -> RequestId {
        match self {
            Self::Decode { request, .. } => request.request,
            Self::Prefill { request, .. } => request.request,
        }
    }

    /// Who asks.
    #[must_use]
    pub fn gateway(&self) -> PeerId {
        let (Self::Decode { gateway, .. } | Self::Prefill { gateway, .. }) = self;
        *gateway
    }

    /// Whether all its tokens are of a vocabulary of so many.
    pub(super) fn is_within(&self, vocab: u32) -> bool {
        let (prompt, answered) = match self {
            Self::Decode { request, .. } => (&request.prompt[..], &request.answered[..]),
            Self::Prefill { request, .. } => (&request.prompt[..], &[][..]),
        };
        prompt.iter().chain(answered).all(|token| token.0 < vocab)
    }

    /// Tells the gateway that nothing is taken, and why. One that has gone need not be told.
    pub(super) fn refuse(self, why: &str) {
        match self {
            Self::Decode { events, .. } => drop(events.try_send(DecodeEvent::Refused(why.into()))),
            Self::Prefill { events, .. } => drop(events.try_send(PrefillEvent::Failed(why.into()))),
        }
    }
}

/// Whether the token that a gateway has from elsewhere, if any, is of a vocabulary of so many.
pub(super) fn order_is_within(order: &DecodeOrder, vocab: u32) -> bool {
    match order {
        DecodeOrder::Begin(first) | DecodeOrder::PrefillHere { first: Some(first) } => first.0 < vocab,
        DecodeOrder::PrefillHere { first: None } => true,
    }
}

/// Waits without a ring. Who asks meanwhile is better served elsewhere than by one that may never come round.
pub(super) async fn refusing<T>(requests: &mut mpsc::Receiver<LeaderRequest>, until: impl Future<Output = T>) -> T {
    let mut until = std::pin::pin!(until);
    loop {
        tokio::select! {
            done = &mut until => return done,
            Some(request) = requests.recv() => request.refuse(NOT_UP),
        }
    }
}

/// Refuses all that have been brought and not been looked at: whose request is only dropped is not told why, and takes it for a fault.
pub(super) fn refuse_all(requests: &mut mpsc::Receiver<LeaderRequest>, why: &str) {
    while let Ok(request) = requests.try_recv() {
        request.refuse(why);
    }
}

/// Events that are no tokens: what is said of a prompt in parts, and what is said once.
const OTHER_EVENTS: usize = limits::SEQUENCE_TOKENS as usize / limits::PROMPT_LOGPROBS + 8;

/// Room for every event a sequence can have, up to a bound: a client that stops reading must not hold the batch up.
#[must_use]
pub fn event_room(max_new_tokens: u32) -> usize {
    (max_new_tokens as usize).saturating_add(OTHER_EVENTS).min(64 * 1024)
}

/// Serves a gateway's decode stream: its orders to `orders`, the leader's `events` to the stream.
/// Ends when either side does; the leader sees a closed channel then.
pub(super) async fn serve_decode(
    stream: Stream,
    orders: mpsc::Sender<DecodeOrder>,
    mut events: mpsc::Receiver<DecodeEvent>,
) {
    let Stream { mut sender, mut receiver } = stream;
    loop {
        tokio::select! {
            order = receiver.recv::<DecodeOrder>() => match order {
                Ok(Some(order)) => if orders.send(order).await.is_err() { return },
                Ok(None) | Err(_) => return,
            },
            event = events.recv() => {
                let Some(event) = event else { return said(sender).await };
                let last = matches!(event, DecodeEvent::End(_) | DecodeEvent::Refused(_));
                if sender.send(&event).await.is_err() { return }
                if last { return said(sender).await }
            }
        }
    }
}

/// Serves a gateway's prefill stream.
pub(super) async fn serve_prefill(stream: Stream, mut events: mpsc::Receiver<PrefillEvent>) {
    let Stream { mut sender, receiver } = stream;
    loop {
        tokio::select! {
            () = sender.closed() => return,
            event = events.recv() => {
                let Some(event) = event else { break };
                let last = matches!(event, PrefillEvent::KvSent { .. } | PrefillEvent::Failed(_));
                if sender.send(&event).await.is_err() { return }
                if last { break }
            }
        }
    }
    said(sender).await;
    drop(receiver);
}

/// That was all: until the far end has it, or has gone. A peer that leaves waits for that with its connections.
async fn said(mut sender: FrameSender) {
    if sender.finish().is_ok() {
        // Whoever does not take it in that time misses it.
        let _ = timeout(LAST_WORD, sender.closed()).await;
    }
}

/// The gateway's end of a decode stream, wherever the leader is.
pub(crate) async fn follow_decode(
    stream: Stream,
    mut orders: mpsc::Receiver<DecodeOrder>,
    events: mpsc::Sender<DecodeEvent>,
) -> Result<(), LinkError> {
    let Stream { mut sender, mut receiver } = stream;
    loop {
        tokio::select! {
            order = orders.recv() => match order {
                Some(order) => sender.send(&order).await?,
                None => return Ok(()),
            },
            event = receiver.recv::<DecodeEvent>() => {
                let Some(mut event) = event? else { return Ok(()) };
                event.check().map_err(|why| receiver.refuse(why))?;
                event.shorten_reason();
                let last = matches!(event, DecodeEvent::End(_) | DecodeEvent::Refused(_));
                if events.send(event).await.is_err() || last { return Ok(()) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;
    use tsnode_protocol::{
        GroupId, KvCodec, Sampling, Token,
        kv::KvPace,
        stream::{Generation, PLAN_CHANGED},
    };

    fn prefill(events: mpsc::Sender<PrefillEvent>) -> LeaderRequest {
        let (sampling, class) = (Sampling::greedy(), Default::default());
        let request = PrefillRequest {
            request: RequestId([1; 16]),
            group: GroupId([1; 8]),
            prompt: vec![Token(1)],
            generation: Generation { sampling, max_new_tokens: 1, stop_tokens: vec![], class },
            targets: vec![],
            codec: KvCodec::Int4,
            pace: KvPace::default(),
        };
        LeaderRequest::Prefill { gateway: PeerId([1; 32]), request, events }
    }

    #[tokio::test]
    async fn who_asks_while_there_is_no_ring_is_told_before_there_is_one() {
        let ((ask, mut requests), (end, ended)) = (mpsc::channel(1), oneshot::channel());
        let asking = async {
            let (events, mut told) = mpsc::channel(1);
            ask.send(prefill(events)).await.unwrap();
            let said = told.recv().await;
            end.send(7).unwrap();
            said
        };
        let (came, said) = tokio::join!(refusing(&mut requests, ended), asking);
        assert!(matches!(said, Some(PrefillEvent::Failed(why)) if why == NOT_UP));
        assert_eq!(came, Ok(7));
    }

    #[test]
    fn tokens_that_the_model_does_not_have_are_seen_wherever_they_stand() {
        let (events, _told) = mpsc::channel(1);
        let asked = prefill(events);
        assert!(asked.is_within(2) && !asked.is_within(1));
        let (sampling, class) = (Sampling::greedy(), Default::default());
        let request = DecodeRequest {
            request: RequestId([1; 16]),
            group: GroupId([1; 8]),
            prompt: vec![Token(1)],
            answered: vec![Token(5)],
            generation: Generation { sampling, max_new_tokens: 2, stop_tokens: vec![], class },
            await_kv: false,
            codec: KvCodec::Raw.into(),
        };
        let ((_, orders), (events, _told)) = (mpsc::channel(1), mpsc::channel(1));
        let asked = LeaderRequest::Decode { gateway: PeerId([1; 32]), request, orders, events };
        assert!(asked.is_within(6) && !asked.is_within(5));
        for order in [DecodeOrder::Begin(Token(5)), DecodeOrder::PrefillHere { first: Some(Token(5)) }] {
            assert!(order_is_within(&order, 6) && !order_is_within(&order, 5));
        }
        assert!(order_is_within(&DecodeOrder::PrefillHere { first: None }, 5));
    }

    #[tokio::test]
    async fn who_was_brought_to_a_group_that_has_ended_is_told_why() {
        let (ask, mut requests) = mpsc::channel(2);
        let told = [(); 2].map(|()| {
            let (events, told) = mpsc::channel(1);
            ask.try_send(prefill(events)).unwrap();
            told
        });
        refuse_all(&mut requests, PLAN_CHANGED);
        for mut told in told {
            assert!(matches!(told.recv().await, Some(PrefillEvent::Failed(why)) if why == PLAN_CHANGED));
        }
    }
}
