//! Calls addresses of peers to see what comes of it, as nobody in particular: with a key drawn for that, and gone with it.

use super::{
    admission, authenticated,
    connection::Connection,
    dialer::without_peer,
    exchange::{AdmissionError, driving, first_stream},
    sight::{self, FarEndSight},
    to_own_id,
};
use crate::store::identity::Identity;
use futures::future::join_all;
use libp2p::{
    Multiaddr, Transport as _,
    core::{
        Endpoint,
        muxing::StreamMuxerBox,
        transport::{Boxed, DialOpts, PortUse, TransportError},
    },
};
use std::time::Duration;
use tokio::time::timeout;
use tsnode_protocol::{
    PeerId, SwarmId,
    proof::{ConnectionSide, Membership},
};

/// How long a connection may take: QUIC's own limit, and a little.
const CONNECTING: Duration = Duration::from_secs(6);
/// How long an answer may take that fits a packet, and one that takes several.
const ANSWER: Duration = Duration::from_secs(3);

/// What came of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookOutcome {
    /// It cannot be called by this peer.
    Unsupported,
    /// Nobody answered, or not to the end.
    Unanswered(String),
    /// A peer answered.
    Peer(PeerSeen),
}

/// A peer that answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerSeen {
    /// Who, as the transport proved.
    pub peer: Option<PeerId>,
    /// What it said of the call; none of one that does not know the question.
    pub sight: Option<FarEndSight>,
    /// Whether many bytes got through; none where few did not, or it ended otherwise.
    pub large: Option<bool>,
    /// What came of proving membership.
    pub proof: Proof,
}

/// What came of proving membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Both are of one swarm, and know its secret.
    Member,
    /// It speaks another version of the protocol.
    OtherVersion(u16),
    /// Its proof is not that of this swarm.
    Stranger,
    /// It is not known here what is to be proven, or the exchange broke off.
    Unknown,
}

/// Calls all of these at once: over QUIC by one socket, so that it can be compared what they see.
pub async fn look(addresses: &[Multiaddr], swarm: SwarmId, membership: Option<&Membership>) -> Vec<LookOutcome> {
    let identity = Identity::from_seed(&crate::random_bytes());
    let Ok(mut transport) = authenticated::plain(&identity.libp2p_keypair()) else {
        return vec![LookOutcome::Unsupported; addresses.len()];
    };
    let looker = Looker { own: identity.peer_id(), swarm, membership };
    // Two calls each: one that knows no questions hangs up.
    let calls: Vec<_> = addresses.iter().map(|a| [dial(&mut transport, a), dial(&mut transport, a)]).collect();
    let looking = calls.into_iter().map(|[first, second]| async {
        let (Some(first), Some(second)) = (first, second) else { return LookOutcome::Unsupported };
        looker.look(first, second).await.unwrap_or_else(LookOutcome::Unanswered)
    });
    join_all(looking).await
}

type Dial = <Boxed<Connection> as libp2p::Transport>::Dial;

fn dial(transport: &mut Boxed<Connection>, address: &Multiaddr) -> Option<Dial> {
    let is_quic = address.iter().any(|part| matches!(part, libp2p::multiaddr::Protocol::QuicV1));
    let port_use = if is_quic { PortUse::Reuse } else { PortUse::New };
    match transport.dial(without_peer(address.clone()), DialOpts { role: Endpoint::Dialer, port_use }) {
        Ok(dial) => Some(dial),
        Err(TransportError::MultiaddrNotSupported(_)) => None,
        Err(TransportError::Other(error)) => Some(Box::pin(std::future::ready(Err(error)))),
    }
}

struct Looker<'m> {
    own: PeerId,
    swarm: SwarmId,
    membership: Option<&'m Membership>,
}

impl Looker<'_> {
    async fn look(&self, first: Dial, second: Dial) -> Result<LookOutcome, String> {
        let (id, mut muxer) = connected(first).await?;
        let peer = to_own_id(&id);
        let (sight, large) = self.ask(&mut muxer).await;
        drop(muxer);
        let proof = match peer {
            // Where nothing can be proven only the version is to be known.
            Some(peer) if self.membership.is_some() || sight.is_none() => self.prove(peer, second).await,
            _ => Proof::Unknown,
        };
        Ok(LookOutcome::Peer(PeerSeen { peer, sight, large, proof }))
    }

    /// A small question, and a large one where that was answered.
    async fn ask(&self, muxer: &mut StreamMuxerBox) -> (Option<FarEndSight>, Option<bool>) {
        let Ok(mut stream) = first_stream(muxer, ConnectionSide::Dialer).await else { return (None, None) };
        let small = timeout(ANSWER, driving(muxer, sight::ask(&mut stream, self.swarm, 0))).await;
        let Ok(Ok(Ok(sight))) = small else { return (None, None) };
        let large = timeout(ANSWER, driving(muxer, sight::ask(&mut stream, self.swarm, sight::LARGE))).await;
        let large = match large {
            Ok(Ok(Ok(_))) => Some(true),
            // What is lost without a word is waited for in vain.
            Err(_) => Some(false),
            Ok(_) => None,
        };
        (Some(sight), large)
    }

    /// Proves membership, where it is known how; else asks for the version alone.
    async fn prove(&self, peer: PeerId, call: Dial) -> Proof {
        let Ok((_, mut muxer)) = connected(call).await else { return Proof::Unknown };
        let anyone = Membership::new(self.swarm, None);
        let membership = self.membership.unwrap_or(&anyone);
        let Ok(stream) = first_stream(&mut muxer, ConnectionSide::Dialer).await else { return Proof::Unknown };
        let knocked = timeout(ANSWER, driving(&mut muxer, admission::knock(self.own, membership, peer, stream))).await;
        match knocked {
            Ok(Ok(Ok(()))) => Proof::Member,
            Ok(Ok(Err(AdmissionError::Version { theirs }))) => Proof::OtherVersion(theirs),
            Ok(Ok(Err(AdmissionError::Stranger))) if self.membership.is_some() => Proof::Stranger,
            _ => Proof::Unknown,
        }
    }
}

async fn connected(dial: Dial) -> Result<Connection, String> {
    let connected = timeout(CONNECTING, dial).await.map_err(|_| "no answer in time".to_owned())?;
    connected.map_err(|error| error.to_string())
}
