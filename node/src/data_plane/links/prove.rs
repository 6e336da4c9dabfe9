//! The first stream of a connection: both ends prove that they are of the same swarm.

use super::priority::StreamKind;
use super::tuning::Tuning;
use super::{CODE_REFUSED, LinkError, PATIENCE, Stream};
use std::sync::Arc;
use tokio::time::timeout;
use tsnode_protocol::{
    PeerId,
    proof::{Code, ConnectionSide, Ends, Membership, Nonce},
    stream::{ConnectionUse, Opening, ProofAnswer},
};

/// The dialer's half.
pub(super) async fn as_dialer(
    connection: &Arc<Tuning>,
    membership: &Membership,
    me: PeerId,
    peer: PeerId,
) -> Result<(), LinkError> {
    let used = if connection.is_kv_stream() { ConnectionUse::KvStream } else { ConnectionUse::Anything };
    let halves = connection.connection.open_bi().await.map_err(|e| LinkError::Lost(e.to_string()))?;
    let mut stream = Stream::new(halves, StreamKind::Words, connection);
    let nonce = Nonce(crate::random_bytes());
    stream.sender.send(&Opening::Prove(nonce, used)).await?;
    // A listener of another swarm hangs up here.
    let stranger = || LinkError::NotAMember(peer.to_string());
    let answer: ProofAnswer = stream.receiver.recv().await.ok().flatten().ok_or_else(stranger)?;
    let ends = Ends { dialer: me, listener: peer, dialer_nonce: nonce, listener_nonce: answer.nonce };
    if !membership.accepts(ConnectionSide::Listener, &ends, answer.code) {
        connection.connection.close(CODE_REFUSED.into(), b"not of this swarm");
        return Err(stranger());
    }
    stream.sender.send(&membership.code(ConnectionSide::Dialer, &ends)).await?;
    stream.sender.finish()?;
    // The listener ends its side once it is convinced.
    match stream.receiver.recv::<Code>().await {
        Ok(None) => Ok(()),
        _ => Err(stranger()),
    }
}

/// The listener's half; closes the connection of a stranger.
pub(super) async fn as_listener(
    connection: &Arc<Tuning>,
    membership: &Membership,
    me: PeerId,
    peer: PeerId,
) -> Result<(), LinkError> {
    let proven = timeout(PATIENCE, listen(connection, membership, me, peer)).await.unwrap_or(Err(LinkError::TimedOut));
    if proven.is_err() {
        connection.connection.close(CODE_REFUSED.into(), b"not of this swarm");
    }
    proven
}

async fn listen(connection: &Arc<Tuning>, membership: &Membership, me: PeerId, peer: PeerId) -> Result<(), LinkError> {
    let halves = connection.connection.accept_bi().await.map_err(|e| LinkError::Lost(e.to_string()))?;
    let mut stream = Stream::new(halves, StreamKind::Words, connection);
    let stranger = || LinkError::NotAMember(peer.to_string());
    let Some(Opening::Prove(dialer_nonce, used)) = stream.receiver.recv().await? else { return Err(stranger()) };
    let nonce = Nonce(crate::random_bytes());
    let ends = Ends { dialer: peer, listener: me, dialer_nonce, listener_nonce: nonce };
    stream.sender.send(&ProofAnswer { nonce, code: membership.code(ConnectionSide::Listener, &ends) }).await?;
    let shown: Code = stream.receiver.recv().await?.ok_or_else(stranger)?;
    if !membership.accepts(ConnectionSide::Dialer, &ends, shown) {
        return Err(stranger());
    }
    if used == ConnectionUse::KvStream {
        connection.become_kv_stream();
    }
    stream.sender.finish()
}
