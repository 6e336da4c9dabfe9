//! Clients' connections: each has a place at the door, is idle until it has asked something, and served until it has its answer.
//!
//! A connection that does not ask in time, sends what it asks too slowly, or does not take its answer, is closed; where all places
//! are taken that is so at once for the one that has been idle longest ([`crate::data_plane::doors`]).

use super::{ApiError, respond::REQUEST_ID};
use crate::data_plane::doors::{Door, Place};
use axum::{
    body::{Body, Bytes, HttpBody},
    extract::{ConnectInfo, Request, connect_info::Connected},
    middleware::Next,
    response::Response,
    serve::{IncomingStream, Listener},
};
use http_body::{Frame, SizeHint};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tsnode_coordinator::places::{Origin, Regard};
use tsnode_protocol::RequestId;

/// How long a new connection may take to ask: the whole of a request's headers.
const HEADERS: Duration = Duration::from_secs(10);
/// How long one that has had an answer may be silent: longer than clients' pools keep it (90 s is usual), so that it is not hung up
/// on just when it is used again.
const KEEP_ALIVE: Duration = Duration::from_secs(120);
/// How long a body may stand still, and what it must bring in the long run (bytes a second): a telephone in a train.
const BODY: Duration = Duration::from_secs(20);
const BODY_PACE: u64 = 8 << 10;
/// How long a client may take nothing of its answer, when the system holds no more of it.
const ANSWER: Duration = Duration::from_secs(30);
/// Pause after a connection could not be accepted: the next may fare better.
const PAUSE: Duration = Duration::from_millis(100);
/// When to come again, for whom there is no place.
const AGAIN: Duration = Duration::from_secs(1);

/// Those who come to HTTP.
pub(super) struct Guests {
    pub(super) listener: TcpListener,
    pub(super) door: Door<Origin>,
}

impl Listener for Guests {
    type Io = GuestConnection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (GuestConnection, SocketAddr) {
        loop {
            self.door.room().await;
            let (stream, from) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::debug!(%error, "a client's connection is not accepted");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            match self.door.enter(from.ip().into(), regard(from), HEADERS) {
                Some(place) => {
                    // A token goes when it is there: an answer's first one would else wait until the client's system has acknowledged
                    // the head before it, which it may put off for 40 ms (Nagle's algorithm beside delayed acknowledgements).
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!(%error, "answers to a client may come in larger pieces");
                    }
                    return (GuestConnection::new(stream, place), from);
                }
                None => turn_away(stream),
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Says why, as far as the system takes it at once: who has no place is not waited for.
fn turn_away(stream: TcpStream) {
    if let Ok(mut stream) = stream.into_std() {
        // Who does not hear it is hung up on all the same.
        let _ = stream.write(full().as_bytes());
    }
}

/// What is said to whom there is no place for.
fn full() -> String {
    let reason = "As many connections as there are places for are being served".into();
    let body = ApiError::Unserved { reason, retry_after: AGAIN }.body().to_string();
    let head = "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-type: application/json";
    // Nobody was asked for it: a name of its own, as other errors have one.
    let id = RequestId(crate::random_bytes());
    tracing::debug!(request = %id, status = 503, "turned away: there is no place");
    let head = format!("{head}\r\n{REQUEST_ID}: {id}\r\nretry-after: {}", AGAIN.as_secs());
    format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// Programs of this host have no share: a proxy before this peer brings everybody's requests.
fn regard(from: SocketAddr) -> Regard {
    if from.ip().to_canonical().is_loopback() { Regard::Known } else { Regard::Unknown }
}

/// What a connection is doing, as its place knows it.
#[derive(Debug)]
struct GuestSeat {
    place: Place<Origin>,
    /// Requests whose answers have not ended.
    answering: AtomicU64,
    /// Whether it does not take what is written.
    is_blocked: AtomicBool,
}

impl GuestSeat {
    fn blocked(&self) {
        if !self.is_blocked.swap(true, Relaxed) {
            self.place.idle(ANSWER);
        }
    }

    fn taken(&self) {
        if self.is_blocked.swap(false, Relaxed) {
            self.settle();
        }
    }

    /// Served while it waits for an answer, idle otherwise.
    fn settle(&self) {
        if self.is_blocked.load(Relaxed) {
            return;
        }
        if self.answering.load(Relaxed) > 0 {
            self.place.busy();
        } else {
            self.place.idle(KEEP_ALIVE);
        }
    }
}

/// A client's connection. Reading from it and writing to it fail once it has lost its place.
pub(super) struct GuestConnection {
    stream: TcpStream,
    seat: Arc<GuestSeat>,
    gone: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl GuestConnection {
    fn new(stream: TcpStream, place: Place<Origin>) -> Self {
        let gone = Box::pin(place.gone().clone().cancelled_owned());
        let seat = GuestSeat { place, answering: AtomicU64::new(0), is_blocked: AtomicBool::new(false) };
        Self { stream, seat: Arc::new(seat), gone }
    }

    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.gone.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "its place is another's")),
            Poll::Pending => Ok(()),
        }
    }

    /// Notes whether the client takes what is written.
    fn noted<T>(&self, written: Poll<T>) -> Poll<T> {
        if written.is_pending() {
            self.seat.blocked()
        } else {
            self.seat.taken()
        }
        written
    }
}

impl AsyncRead for GuestConnection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for GuestConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.noted(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.noted(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Who asks, and the place of its connection.
#[derive(Clone, Debug)]
pub(super) struct Guest {
    from: SocketAddr,
    seat: Arc<GuestSeat>,
}

impl Connected<IncomingStream<'_, Guests>> for Guest {
    fn connect_info(stream: IncomingStream<'_, Guests>) -> Self {
        Self { from: *stream.remote_addr(), seat: stream.io().seat.clone() }
    }
}

/// Sees to it that a connection keeps its place from when it has asked until it has its answer.
pub(super) async fn attend(ConnectInfo(guest): ConnectInfo<Guest>, mut request: Request, next: Next) -> Response {
    request.extensions_mut().insert(ConnectInfo(guest.from));
    let turn = AnswerTurn::begin(guest.seat.clone());
    let response = next.run(request.map(|body| receive(body, guest.seat))).await;
    response.map(|body| Body::new(GuardedBody { body, _turn: turn }))
}

/// From a request's headers to the end of its answer.
struct AnswerTurn(Arc<GuestSeat>);

impl AnswerTurn {
    fn begin(seat: Arc<GuestSeat>) -> Self {
        seat.answering.fetch_add(1, Relaxed);
        seat.settle();
        Self(seat)
    }
}

impl Drop for AnswerTurn {
    fn drop(&mut self) {
        self.0.answering.fetch_sub(1, Relaxed);
        self.0.settle();
    }
}

/// A body that keeps its connection's place only while it comes fast enough.
fn receive(body: Body, seat: Arc<GuestSeat>) -> Body {
    if body.is_end_stream() {
        return body;
    }
    seat.place.idle(BODY);
    Body::new(Received { body, seat, since: Instant::now(), bytes: 0 })
}

struct Received {
    body: Body,
    seat: Arc<GuestSeat>,
    since: Instant,
    bytes: u64,
}

/// How long a body has for its next part that has brought so much in this time.
fn patience(bytes: u64, since: Duration) -> Duration {
    let earned = BODY + Duration::from_secs(bytes / BODY_PACE);
    earned.saturating_sub(since).min(BODY)
}

impl HttpBody for Received {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let brought = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()).map(Bytes::len);
        self.bytes += brought.unwrap_or_default() as u64;
        if brought.is_none() || self.body.is_end_stream() {
            self.seat.settle();
        } else {
            self.seat.place.progress(patience(self.bytes, self.since.elapsed()));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Received {
    /// Who takes no more of it waits for nothing.
    fn drop(&mut self) {
        self.seat.settle();
    }
}

/// What is answered, with the turn that ends with it.
struct GuardedBody {
    body: Body,
    _turn: AnswerTurn,
}

impl HttpBody for GuardedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{
        Router, middleware,
        routing::{get, post},
    };
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::Notify;
    use tokio::time::timeout;
    use tsnode_coordinator::places::PlaceRules;

    const LONG: Duration = Duration::from_secs(20);
    /// More than a system holds for a client that does not read.
    const MUCH: usize = 64 << 20;

    /// Serves behind so many places; `/wait` says when it is asked, and answers once it is told to.
    async fn served(places: usize) -> (SocketAddr, Arc<Notify>, Arc<Notify>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let door = Door::new(PlaceRules { places, reserve: 0, share: places });
        let (asked, answers) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (reached, told) = (asked.clone(), answers.clone());
        let waits = move || async move {
            reached.notify_one();
            told.notified().await;
            "waited"
        };
        let routes = Router::new()
            .route("/", get(|| async { "hello" }))
            .route("/wait", get(waits))
            .route("/much", get(|| async { vec![b'a'; MUCH] }))
            .route("/body", post(|body: Bytes| async move { body.len().to_string() }))
            .layer(middleware::from_fn(attend));
        let service = routes.into_make_service_with_connect_info::<Guest>();
        let guests = Guests { listener, door };
        crate::tasks::spawn("test", async move { axum::serve(guests, service).await });
        (address, asked, answers)
    }

    async fn asks(address: SocketAddr, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    fn get_of(path: &str) -> String {
        format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
    }

    async fn answer(mut stream: TcpStream) -> String {
        let mut answer = String::new();
        timeout(LONG, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        answer
    }

    #[tokio::test]
    async fn what_is_written_waits_for_no_acknowledgement() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut guests = Guests { listener, door: Door::new(PlaceRules { places: 1, reserve: 0, share: 1 }) };
        let _client = TcpStream::connect(address).await.unwrap();
        let (guest, _) = timeout(LONG, guests.accept()).await.unwrap();
        assert!(guest.stream.nodelay().unwrap(), "a first token is held back until the answer's head is acknowledged");
    }

    #[tokio::test]
    async fn idle_connections_give_way_the_oldest_first() {
        let (address, ..) = served(4).await;
        let mut idle = Vec::new();
        for _ in 0..20 {
            // Half of a request is none.
            idle.push(asks(address, "GET / HTTP/1.1\r\n").await);
        }
        assert!(answer(asks(address, &get_of("/")).await).await.ends_with("hello"));
        let mut first = idle.remove(0);
        let ended = timeout(LONG, first.read(&mut [0])).await.unwrap();
        assert!(ended.is_err() || ended.is_ok_and(|bytes| bytes == 0), "it was hung up on");
        assert!(timeout(Duration::from_millis(50), idle[18].read(&mut [0])).await.is_err(), "the last is there");
    }

    #[tokio::test]
    async fn who_waits_for_an_answer_stays_and_who_comes_is_told_to_come_again() {
        let (address, asked, answers) = served(1).await;
        let waiting = asks(address, &get_of("/wait")).await;
        timeout(LONG, asked.notified()).await.unwrap();
        let full = answer(TcpStream::connect(address).await.unwrap()).await;
        let (head, body) = full.split_once("\r\n\r\n").unwrap();
        assert!(
            head.starts_with("HTTP/1.1 503") && head.contains(&format!("content-length: {}", body.len())),
            "{full}"
        );
        let id = head.lines().find_map(|line| line.strip_prefix("x-request-id: "));
        assert!(id.is_some_and(|id| !id.is_empty()), "every error has a name: {head}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(body).unwrap()["error"]["type"], "server_error");
        answers.notify_one();
        assert!(answer(waiting).await.ends_with("waited"));
        assert!(answer(asks(address, &get_of("/")).await).await.ends_with("hello"));
    }

    #[tokio::test]
    async fn who_does_not_take_its_answer_is_idle() {
        let (address, ..) = served(1).await;
        let _deaf = asks(address, &get_of("/much")).await;
        let deadline = Instant::now() + LONG;
        while !answer(asks(address, &get_of("/")).await).await.ends_with("hello") {
            assert!(Instant::now() < deadline, "it keeps its place");
        }
    }

    #[tokio::test]
    async fn a_body_under_way_gives_way_and_a_whole_one_is_answered() {
        let (address, ..) = served(1).await;
        let head = |bytes: usize| {
            format!("POST /body HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {bytes}\r\n\r\n")
        };
        let mut slow = asks(address, &(head(9) + "half")).await;
        assert!(answer(asks(address, &(head(5) + "whole")).await).await.ends_with('5'));
        let ended = timeout(LONG, slow.read(&mut [0])).await.unwrap();
        assert!(ended.is_err() || ended.is_ok_and(|bytes| bytes == 0), "it was hung up on");
    }

    #[test]
    fn a_body_must_come_at_a_pace() {
        let seconds = Duration::from_secs;
        assert_eq!(patience(0, seconds(0)), BODY);
        assert_eq!(patience(1, seconds(15)), seconds(5));
        assert_eq!(patience(1, seconds(30)), seconds(0));
        assert_eq!(patience(100 * BODY_PACE, seconds(50)), BODY, "what was quick may pause no longer");
    }
}
