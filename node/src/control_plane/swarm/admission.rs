//! The first exchange on every connection, in which both sides prove to know the swarm's secret.
//!
//! It runs inside the transport, when ids are proven and streams can be opened but no protocol has been handed the
//! connection: who fails it has been answered nothing. Four messages cross on the first stream, all of fixed size:
//!
//! ```text
//! dialer → listener   hello: magic, protocol version, nonce
//! listener → dialer   hello, and the listener's code
//! dialer → listener   the dialer's code
//! listener → dialer   ADMITTED
//! ```

use super::{
    SwarmEvent,
    exchange::{AdmissionError, HELLO_BYTES, TIME_LIMIT, Verdict, draw_nonce, driving, first_stream, receive, send},
    redeem, sight, to_own_id,
    twin::{self, ProcessId},
};
use crate::store::invites::Invites;
use futures::{AsyncReadExt as _, AsyncWriteExt as _};
use libp2p::core::muxing::{StreamMuxerBox, SubstreamBox};
use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};
use tokio::sync::mpsc;
use tsnode_protocol::{
    PeerId, SwarmId, codec,
    proof::{Code, ConnectionSide, Ends, Membership, Nonce},
};

/// How long who speaks another version may take to read which this one is.
const LAST_BYTES: Duration = Duration::from_secs(1);
/// What tsnode connections begin with.
const MAGIC: [u8; 6] = *b"tsnode";
/// The listener's last word.
const ADMITTED: u8 = 1;

/// Somebody who was not let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rejection {
    /// Who it was; none when its id is of a kind this swarm does not use.
    pub(super) peer: Option<PeerId>,
    /// Why.
    pub(super) reason: String,
    /// What it means for the next attempt.
    pub(super) verdict: Verdict,
    /// Its version of the protocol, where that is why.
    pub(super) version: Option<u16>,
}

impl From<Rejection> for SwarmEvent {
    fn from(Rejection { peer, reason, .. }: Rejection) -> Self {
        Self::Rejected { peer, reason }
    }
}

/// Who has come.
enum AdmittedAs {
    /// One that has proven membership.
    Member,
    /// One that has proven an invite, and has been told the secret on this stream.
    Newcomer(SubstreamBox),
    /// One that speaks another version, and has been told ours on this stream.
    Other { stream: SubstreamBox, theirs: u16 },
}

/// The door: what it takes to prove membership, and where to say who failed.
#[derive(Clone)]
pub(super) struct AdmissionDoor {
    /// Our own id.
    pub(super) own: PeerId,
    /// The swarm.
    pub(super) swarm: SwarmId,
    /// What both sides must know.
    pub(super) membership: Membership,
    /// Which process this is.
    pub(super) process: ProcessId,
    /// What newcomers may come with.
    pub(super) invites: Invites,
    /// Receives every rejection; when it is full the rejection is only logged, as its sender may be a flood.
    pub(super) rejections: mpsc::Sender<Rejection>,
}

impl AdmissionDoor {
    /// Passes the connection through once its far end has proven membership, and tells of it otherwise.
    pub(super) async fn admit(
        self,
        remote: libp2p::PeerId,
        muxer: StreamMuxerBox,
        side: ConnectionSide,
        from: Option<SocketAddr>,
    ) -> Result<(libp2p::PeerId, StreamMuxerBox), AdmissionError> {
        let peer = to_own_id(&remote);
        let outcome = match peer {
            Some(peer) => tokio::time::timeout(TIME_LIMIT, self.prove(peer, muxer, side, from))
                .await
                .unwrap_or(Err(AdmissionError::Silent)),
            None => Err(AdmissionError::ForeignId(remote)),
        };
        outcome.map(|muxer| (remote, muxer)).inspect_err(|error| self.tell(peer, error))
    }

    async fn prove(
        &self,
        remote: PeerId,
        mut muxer: StreamMuxerBox,
        side: ConnectionSide,
        from: Option<SocketAddr>,
    ) -> Result<StreamMuxerBox, AdmissionError> {
        let stream = first_stream(&mut muxer, side).await?;
        if remote == self.own && side == ConnectionSide::Listener {
            return Err(twin::answer(self.process, &mut muxer, stream).await);
        }
        let only_looks = AtomicBool::new(false);
        let exchange = async {
            match side {
                ConnectionSide::Dialer => {
                    knock(self.own, &self.membership, remote, stream).await.map(|()| AdmittedAs::Member)
                }
                ConnectionSide::Listener => self.answer(remote, stream, from, &only_looks).await,
            }
        };
        let arrival = driving(&mut muxer, exchange).await.map_err(AdmissionError::from).and_then(|arrival| arrival);
        match arrival.map_err(|error| error.of_one_who(only_looks.load(Ordering::Relaxed)))? {
            AdmittedAs::Member => Ok(muxer),
            AdmittedAs::Newcomer(stream) => {
                redeem::until_read(&mut muxer, stream).await;
                Err(AdmissionError::Redeemed)
            }
            AdmittedAs::Other { stream, theirs } => {
                until_hung_up(&mut muxer, stream).await;
                Err(AdmissionError::Version { theirs })
            }
        }
    }

    async fn answer(
        &self,
        dialer: PeerId,
        mut stream: SubstreamBox,
        from: Option<SocketAddr>,
        only_looks: &AtomicBool,
    ) -> Result<AdmittedAs, AdmissionError> {
        let mut magic: [u8; 6] = receive(&mut stream).await?;
        for _ in 0..sight::QUESTIONS {
            if magic == sight::MAGIC {
                sight::answer(&mut stream, from, self.swarm).await?;
                only_looks.store(true, Ordering::Relaxed);
                magic = receive(&mut stream).await?;
            }
        }
        only_looks.store(false, Ordering::Relaxed);
        if magic == redeem::MAGIC {
            redeem::answer(self.own, dialer, &self.invites, &mut stream).await?;
            return Ok(AdmittedAs::Newcomer(stream));
        }
        let dialer_nonce = match read_hello_after(magic, &mut stream).await {
            Err(AdmissionError::Version { theirs }) => {
                // It is to know why, too.
                send(&mut stream, &hello(draw_nonce()?)).await?;
                return Ok(AdmittedAs::Other { stream, theirs });
            }
            read => read?,
        };
        let listener_nonce = draw_nonce()?;
        let ends = Ends { dialer, listener: self.own, dialer_nonce, listener_nonce };
        let mut reply = hello(listener_nonce).to_vec();
        reply.extend_from_slice(&self.membership.code(ConnectionSide::Listener, &ends).0);
        send(&mut stream, &reply).await?;
        check_code(&self.membership, ConnectionSide::Dialer, &ends, &mut stream).await?;
        send(&mut stream, &[ADMITTED]).await?;
        let _ = stream.close().await;
        Ok(AdmittedAs::Member)
    }

    fn tell(&self, peer: Option<PeerId>, error: &AdmissionError) {
        if matches!(error, AdmissionError::Redeemed | AdmissionError::Looked | AdmissionError::Itself) {
            return;
        }
        let version = if let AdmissionError::Version { theirs } = error { Some(*theirs) } else { None };
        let rejection = Rejection { peer, reason: error.to_string(), verdict: error.verdict(), version };
        if let Err(unsent) = self.rejections.try_send(rejection) {
            tracing::debug!(rejection = ?unsent.into_inner(), "rejections come faster than they are counted");
        }
    }
}

/// Proves membership as the one who calls.
///
/// # Errors
/// Says why it is not admitted, or does not admit.
pub(super) async fn knock(
    own: PeerId,
    membership: &Membership,
    listener: PeerId,
    mut stream: SubstreamBox,
) -> Result<(), AdmissionError> {
    let dialer_nonce = draw_nonce()?;
    send(&mut stream, &hello(dialer_nonce)).await?;
    let listener_nonce = read_hello(&mut stream).await?;
    let ends = Ends { dialer: own, listener, dialer_nonce, listener_nonce };
    check_code(membership, ConnectionSide::Listener, &ends, &mut stream).await?;
    send(&mut stream, &membership.code(ConnectionSide::Dialer, &ends).0).await?;
    let [verdict] = receive(&mut stream).await?;
    // A peer that closes first makes this fail, and that is no reason to doubt the verdict.
    let _ = stream.close().await;
    if verdict == ADMITTED { Ok(()) } else { Err(AdmissionError::Foreign) }
}

async fn check_code(
    membership: &Membership,
    side: ConnectionSide,
    ends: &Ends,
    stream: &mut SubstreamBox,
) -> Result<(), AdmissionError> {
    let code = Code(receive(stream).await?);
    if membership.accepts(side, ends, code) { Ok(()) } else { Err(AdmissionError::Stranger) }
}

/// The far end hangs up, with the stream or the whole connection, when it has read the last word; closing first could take it back.
async fn until_hung_up(muxer: &mut StreamMuxerBox, mut stream: SubstreamBox) {
    let mut rest = [0; HELLO_BYTES];
    let hung_up = async { while stream.read(&mut rest).await.is_ok_and(|bytes| bytes > 0) {} };
    let _ = tokio::time::timeout(LAST_BYTES, driving(muxer, hung_up)).await;
}

fn hello(nonce: Nonce) -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    bytes[..6].copy_from_slice(&MAGIC);
    bytes[6..8].copy_from_slice(&codec::VERSION.to_le_bytes());
    bytes[8..].copy_from_slice(&nonce.0);
    bytes
}

async fn read_hello(stream: &mut SubstreamBox) -> Result<Nonce, AdmissionError> {
    let magic: [u8; 6] = receive(stream).await?;
    read_hello_after(magic, stream).await
}

async fn read_hello_after(magic: [u8; 6], stream: &mut SubstreamBox) -> Result<Nonce, AdmissionError> {
    if magic != MAGIC {
        return Err(AdmissionError::Foreign);
    }
    let theirs = u16::from_le_bytes(receive(stream).await?);
    if theirs != codec::VERSION {
        return Err(AdmissionError::Version { theirs });
    }
    Ok(Nonce(receive(stream).await?))
}
