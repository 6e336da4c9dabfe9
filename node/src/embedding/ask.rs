//! A gateway's side: cuts a client's inputs into pieces, asks lenders for each, and asks another where one does not answer.

use super::Lenders;
use crate::{
    data_plane::{
        links::{LinkError, Links, Stream},
        roster::Roster,
    },
    history::{History, TokenWork},
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tsnode_coordinator::encoding::{EncodeOutcome, EncoderRouter, Lender};
use tsnode_protocol::{
    EncodeEvent, EncodeRefusal, EncodeRequest, Encoded, EncoderCard, EncoderInput, ModelId, PeerId, Seconds,
    codec::CodecError, limits, stream::Opening,
};

/// Clients' requests that were not looked at yet; who comes then is told to come back.
const QUERIES: usize = 64;
/// Clients' requests under way.
const UNDER_WAY: usize = 32;
/// Inputs of one piece: enough to fill a batch, few enough that several lenders share a long list.
const PIECE: usize = 32;
/// Pieces of one request under way.
const PIECES: usize = 4;
/// How long a lender may take for its next answer: others wait before, and a long input takes seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long it is waited for room, where all lenders are busy.
const ROOM: Duration = Duration::from_secs(30);
/// How long another lender is waited for where those that are known are gone: one comes back, or another is heard of.
const SUCCESSOR: Duration = Duration::from_secs(10);
/// Between two looks for either.
const PAUSE: Duration = Duration::from_millis(300);

/// Why inputs are not encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// An input is at fault; its place is that in the client's list.
    #[error(transparent)]
    Refused(EncodeRefusal),
    /// Nobody lends the model any more.
    #[error("no peer lends this model now")]
    NoLender,
    /// All lenders, or this gateway, have too much to do.
    #[error("too many texts wait to be encoded; come back in some seconds, or with fewer")]
    Busy,
    /// Every lender was asked, and the last said this.
    #[error("no lender answered; the last one: {0}")]
    Failed(String),
    /// The peer is shutting down.
    #[error("this peer is shutting down")]
    Closing,
}

/// A client's request.
#[derive(Debug)]
pub struct Query {
    card: EncoderCard,
    inputs: Vec<EncoderInput>,
    truncate: Option<u32>,
    answer: oneshot::Sender<Result<Vec<Encoded>, EncodeError>>,
}

/// The way to encoders, wherever they are.
#[derive(Clone, Debug)]
pub struct Encoders {
    queries: mpsc::Sender<Query>,
}

impl Encoders {
    /// A handle, and the receiving end for [`run`].
    #[must_use]
    pub fn channel() -> (Self, mpsc::Receiver<Query>) {
        let (queries, receiver) = mpsc::channel(QUERIES);
        (Self { queries }, receiver)
    }

    /// A vector or score for each input, in their order. Dropped, it ends the work.
    ///
    /// # Errors
    /// When an input is at fault, or no lender encodes it.
    pub async fn encode(
        &self,
        card: EncoderCard,
        inputs: Vec<EncoderInput>,
        truncate: Option<u32>,
    ) -> Result<Vec<Encoded>, EncodeError> {
        let (answer, encoded) = oneshot::channel();
        self.queries.try_send(Query { card, inputs, truncate, answer }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => EncodeError::Busy,
            mpsc::error::TrySendError::Closed(_) => EncodeError::Closing,
        })?;
        encoded.await.map_err(|_| EncodeError::Closing)?
    }
}

/// What asks lenders.
#[derive(Clone)]
pub struct Asker {
    me: PeerId,
    links: Links,
    roster: Roster,
    own: Lenders,
    /// Where it is counted what others encode.
    history: History,
    /// Held for its operations only.
    router: Arc<Mutex<EncoderRouter>>,
    started: Instant,
}

/// Answers clients' requests until `stop`.
pub async fn run(asker: Asker, mut queries: mpsc::Receiver<Query>, tasks: TaskTracker, stop: CancellationToken) {
    let places = Arc::new(Semaphore::new(UNDER_WAY));
    loop {
        let next = async {
            let place = places.clone().acquire_owned().await.ok()?;
            Some((queries.recv().await?, place))
        };
        let Some(Some((query, place))) = stop.run_until_cancelled(next).await else { return };
        let (asker, stop) = (asker.clone(), stop.clone());
        tasks.spawn(async move {
            let Query { card, inputs, truncate, mut answer } = query;
            let encoded = tokio::select! {
                encoded = asker.encode(&card, inputs, truncate) => encoded,
                () = answer.closed() => return,
                () = stop.cancelled() => Err(EncodeError::Closing),
            };
            drop(place);
            // Whoever asked may be gone.
            let _ = answer.send(encoded);
        });
    }
}

impl Asker {
    /// Asks over these links; `own` are those of this peer.
    #[must_use]
    pub fn new(me: PeerId, links: Links, roster: Roster, own: Lenders, history: History) -> Self {
        Self { me, links, roster, own, history, router: Arc::default(), started: Instant::now() }
    }

    async fn encode(
        &self,
        card: &EncoderCard,
        inputs: Vec<EncoderInput>,
        truncate: Option<u32>,
    ) -> Result<Vec<Encoded>, EncodeError> {
        let all = inputs.len();
        let piece = move |(from, inputs): (u32, Vec<EncoderInput>)| async move {
            let request = EncodeRequest { model: card.id, inputs, truncate };
            let encoded = self.encode_piece(card, request).await;
            encoded.map_err(|error| moved(error, from))
        };
        let encoded = stream::iter(pieces(inputs)).map(piece).buffered(PIECES);
        let gather = |mut all: Vec<Encoded>, more: Vec<Encoded>| async move {
            all.extend(more);
            Ok(all)
        };
        encoded.try_fold(Vec::with_capacity(all), gather).await
    }

    /// Asks lenders for one piece, one after the other until one has done it.
    async fn encode_piece(&self, card: &EncoderCard, request: EncodeRequest) -> Result<Vec<Encoded>, EncodeError> {
        let inputs = request.inputs.len() as u32;
        let (began, mut tried, mut last) = (Instant::now(), BTreeSet::new(), EncodeError::NoLender);
        // How long this piece waits for a lender, if none of those that are known takes it.
        let mut patience = Duration::ZERO;
        loop {
            let lenders = self.lenders(card.id);
            let chosen = self.router().choose(self.started.elapsed(), &lenders, &tried);
            let Some(peer) = chosen else {
                if began.elapsed() > patience {
                    return Err(last);
                }
                // The first that is not busy any more, or is there again, is asked.
                sleep(PAUSE).await;
                tried.clear();
                continue;
            };
            let asked = LentPiece::of(self, peer, inputs);
            let sent = Instant::now();
            let ended = self.ask(peer, card, request.clone()).await;
            let took = Seconds(sent.elapsed().as_secs_f64());
            match ended {
                Ok((encoded, waiting)) => {
                    if peer != self.me {
                        // A lender says how many there were, and none takes more than its context.
                        let read = encoded.iter().map(|one| one.tokens.min(card.context));
                        let tokens = read.fold(0, u32::saturating_add);
                        self.history.computed_by_others((card.id, &card.name), TokenWork::of(tokens, 0, 1, 1));
                    }
                    asked.ends(EncodeOutcome::Done { took, waiting });
                    return Ok(encoded);
                }
                Err(PieceFailure::Refused(refusal)) if refusal.is_final() => {
                    asked.ends(EncodeOutcome::Refused);
                    return Err(EncodeError::Refused(refusal));
                }
                Err(PieceFailure::Refused(EncodeRefusal::Busy { waiting })) => {
                    asked.ends(EncodeOutcome::Busy { waiting });
                    (last, patience) = (EncodeError::Busy, ROOM);
                }
                Err(ended) => {
                    if patience.is_zero() && ended.is_lost() {
                        patience = began.elapsed() + SUCCESSOR;
                    }
                    let why = ended.to_string();
                    tracing::info!(%peer, model = card.name, why, "a lender did not encode: another is asked");
                    asked.ends(EncodeOutcome::Failed);
                    if last != EncodeError::Busy {
                        last = EncodeError::Failed(why);
                    }
                }
            }
            tried.insert(peer);
        }
    }

    async fn ask(
        &self,
        peer: PeerId,
        card: &EncoderCard,
        request: EncodeRequest,
    ) -> Result<(Vec<Encoded>, u32), PieceFailure> {
        let inputs = request.inputs.len();
        if peer == self.me {
            let mut events = self.own.encode(request).map_err(PieceFailure::Refused)?;
            let mut all = Vec::with_capacity(inputs);
            while let Some(event) = events.recv().await {
                match event {
                    EncodeEvent::Encoded(encoded) => all.push(encoded),
                    EncodeEvent::Done { waiting } => return Ok((all, waiting)),
                    EncodeEvent::Refused(refusal) => return Err(PieceFailure::Refused(refusal)),
                }
            }
            return Err(PieceFailure::Silent);
        }
        let addresses = self.roster.data_addresses(peer);
        let _attended = self.links.attend(peer);
        let answered = async {
            let mut stream = self.links.open(peer, &addresses, &Opening::Encode(request)).await?;
            follow(&mut stream, card, inputs).await
        };
        tokio::select! {
            answered = answered => answered,
            // It hangs, or is cut off from here.
            () = self.links.until_unresponsive(peer) => Err(PieceFailure::Silent),
        }
    }

    /// Who lends the model now, and how far each is.
    fn lenders(&self, model: ModelId) -> Vec<Lender> {
        let measured = self.links.measured().into_iter().map(|m| (m.link.to, m.link.latency));
        let latencies: BTreeMap<PeerId, Seconds> = measured.collect();
        let latency = |peer: PeerId| match latencies.get(&peer) {
            _ if peer == self.me => Seconds(0.0),
            Some(latency) => *latency,
            None => Seconds(0.01),
        };
        let lenders = self.roster.encoding(model);
        self.router().keep_only(&lenders.iter().copied().collect());
        lenders.into_iter().map(|peer| Lender { peer, latency: latency(peer) }).collect()
    }

    fn router(&self) -> MutexGuard<'_, EncoderRouter> {
        self.router.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a lender did not do a piece.
#[derive(Debug, thiserror::Error)]
enum PieceFailure {
    #[error("{0}")]
    Refused(EncodeRefusal),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("it gives no answer")]
    Silent,
}

impl PieceFailure {
    /// Whether the lender is gone, and not what it was asked at fault: another may do it, or the same when it is back.
    fn is_lost(&self) -> bool {
        match self {
            Self::Refused(_) => false,
            Self::Link(_) | Self::Silent => true,
        }
    }
}

/// Reads a lender's answer: as many vectors as were asked for, each of the right size.
async fn follow(stream: &mut Stream, card: &EncoderCard, inputs: usize) -> Result<(Vec<Encoded>, u32), PieceFailure> {
    let mut all = Vec::with_capacity(inputs);
    loop {
        let next = timeout(PATIENCE, stream.receiver.recv::<EncodeEvent>());
        let event = next.await.map_err(|_| LinkError::TimedOut)??.ok_or(PieceFailure::Silent)?;
        let wrong = |why| PieceFailure::Link(stream.receiver.refuse(CodecError::Invalid(why)));
        match event {
            EncodeEvent::Encoded(encoded) => {
                if encoded.values.len() != card.dimensions as usize || !encoded.values.iter().all(|x| x.is_finite()) {
                    return Err(wrong("a vector of another size, or not of numbers"));
                }
                if all.len() == inputs {
                    return Err(wrong("more vectors than were asked for"));
                }
                all.push(encoded);
            }
            EncodeEvent::Done { .. } if all.len() != inputs => return Err(wrong("fewer vectors than were asked for")),
            EncodeEvent::Done { waiting } => return Ok((all, waiting)),
            EncodeEvent::Refused(mut refusal) => {
                refusal.shorten_reason();
                return Err(PieceFailure::Refused(refusal));
            }
        }
    }
}

/// A piece that a lender has; one whose client has gone is no more expected of it.
struct LentPiece<'a> {
    asker: &'a Asker,
    peer: PeerId,
    inputs: u32,
    outcome: EncodeOutcome,
}

impl<'a> LentPiece<'a> {
    fn of(asker: &'a Asker, peer: PeerId, inputs: u32) -> Self {
        asker.router().asks(peer, inputs);
        Self { asker, peer, inputs, outcome: EncodeOutcome::Refused }
    }

    fn ends(mut self, outcome: EncodeOutcome) {
        self.outcome = outcome;
    }
}

impl Drop for LentPiece<'_> {
    fn drop(&mut self) {
        let now = self.asker.started.elapsed();
        self.asker.router().ended(now, self.peer, self.inputs, self.outcome);
    }
}

/// Inputs in pieces that a request may have, each with the place of its first.
fn pieces(inputs: Vec<EncoderInput>) -> Vec<(u32, Vec<EncoderInput>)> {
    let mut pieces: Vec<(u32, Vec<EncoderInput>)> = Vec::new();
    let mut bytes = 0;
    for (at, input) in inputs.into_iter().enumerate() {
        let more = input.bytes();
        match pieces.last_mut().filter(|(_, piece)| piece.len() < PIECE && bytes + more <= limits::ENCODER_BYTES) {
            Some((_, piece)) => {
                bytes += more;
                piece.push(input);
            }
            None => {
                bytes = more;
                pieces.push((at as u32, vec![input]));
            }
        }
    }
    pieces
}

/// An error of an input by its place in the client's list.
fn moved(error: EncodeError, from: u32) -> EncodeError {
    let EncodeError::Refused(refusal) = error else { return error };
    EncodeError::Refused(match refusal {
        EncodeRefusal::TooLong { index, tokens, context } => {
            EncodeRefusal::TooLong { index: index.saturating_add(from), tokens, context }
        }
        EncodeRefusal::Input { index, why } => EncodeRefusal::Input { index: index.saturating_add(from), why },
        other => other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_what_a_request_may_have_and_name_their_first() {
        let text = |bytes: usize| EncoderInput::Text("a".repeat(bytes));
        let many = pieces(vec![text(1); PIECE + 1]);
        assert_eq!(many.iter().map(|(from, piece)| (*from, piece.len())).collect::<Vec<_>>(), [(0, 32), (32, 1)]);
        let half = limits::ENCODER_BYTES / 2 + 1;
        let long = pieces(vec![text(half), text(half), text(1)]);
        assert_eq!(long.iter().map(|(from, piece)| (*from, piece.len())).collect::<Vec<_>>(), [(0, 1), (1, 2)]);
        for (_, inputs) in many.into_iter().chain(long) {
            let request = EncodeRequest { model: ModelId([1; 16]), inputs, truncate: None };
            assert_eq!(request.check(), Ok(()));
        }
        let late = EncodeError::Refused(EncodeRefusal::TooLong { index: 1, tokens: 600, context: 512 });
        let at_33 = EncodeError::Refused(EncodeRefusal::TooLong { index: 33, tokens: 600, context: 512 });
        assert_eq!(moved(late, 32), at_33);
    }
}
