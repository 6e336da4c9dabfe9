//! The first stream of a connection: both ends prove that they are of the same swarm.

use super::priority::Kind;
use super::tuning::Tuning;
use super::{CODE_REFUSED, LinkError, PATIENCE, Stream};
use std::sync::Arc;
use tokio::time::timeout;
use tsnode_protocol::{
    PeerId,
    proof::{Code, Ends, Membership, Nonce, Side},
    stream::{Opening, ProofAnswer, Use},
};

/// The dialer's half.
pub(super) async fn as_dialer(
    road: &Arc<Tuning>,
    membership: &Membership,
    me: PeerId,
    peer: PeerId,
) -> Result<(), LinkError> {
    let used = if road.is_lane() { Use::Lane } else { Use::Anything };
    let halves = road.connection.open_bi().await.map_err(|e| LinkError::Lost(e.to_string()))?;
    let mut stream = Stream::new(halves, Kind::Words, road);
    let nonce = Nonce(crate::random_bytes());
    stream.sender.send(&Opening::Prove(nonce, used)).await?;
    // A listener of another swarm hangs up here.
    let stranger = || LinkError::NotAMember(peer.to_string());
    let answer: ProofAnswer = stream.receiver.recv().await.ok().flatten().ok_or_else(stranger)?;
    let ends = Ends { dialer: me, listener: peer, dialer_nonce: nonce, listener_nonce: answer.nonce };
    if !membership.accepts(Side::Listener, &ends, answer.code) {
        road.connection.close(CODE_REFUSED.into(), b"not of this swarm");
        return Err(stranger());
    }
    stream.sender.send(&membership.code(Side::Dialer, &ends)).await?;
    stream.sender.finish()?;
    // The listener ends its side once it is convinced.
    match stream.receiver.recv::<Code>().await {
        Ok(None) => Ok(()),
        _ => Err(stranger()),
    }
}

/// The listener's half; closes the connection of a stranger.
pub(super) async fn as_listener(
    road: &Arc<Tuning>,
    membership: &Membership,
    me: PeerId,
    peer: PeerId,
) -> Result<(), LinkError> {
    let proven = timeout(PATIENCE, listen(road, membership, me, peer)).await.unwrap_or(Err(LinkError::TimedOut));
    if proven.is_err() {
        road.connection.close(CODE_REFUSED.into(), b"not of this swarm");
    }
    proven
}

async fn listen(road: &Arc<Tuning>, membership: &Membership, me: PeerId, peer: PeerId) -> Result<(), LinkError> {
    let halves = road.connection.accept_bi().await.map_err(|e| LinkError::Lost(e.to_string()))?;
    let mut stream = Stream::new(halves, Kind::Words, road);
    let stranger = || LinkError::NotAMember(peer.to_string());
    let Some(Opening::Prove(dialer_nonce, used)) = stream.receiver.recv().await? else { return Err(stranger()) };
    let nonce = Nonce(crate::random_bytes());
    let ends = Ends { dialer: peer, listener: me, dialer_nonce, listener_nonce: nonce };
    stream.sender.send(&ProofAnswer { nonce, code: membership.code(Side::Listener, &ends) }).await?;
    let shown: Code = stream.receiver.recv().await?.ok_or_else(stranger)?;
    if !membership.accepts(Side::Dialer, &ends, shown) {
        return Err(stranger());
    }
    if used == Use::Lane {
        road.become_lane();
    }
    stream.sender.finish()
}
