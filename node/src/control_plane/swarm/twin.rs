//! Whether another process runs with this peer's identity, as a copied data folder makes it: members take either for the other.
//!
//! A peer cannot meet its like by itself: nobody dials itself, and gossip with one's own signature is an echo. So it looks where
//! it was found in its last run. Whoever answers there with the same key, and is not this process, is another.
//!
//! ```text
//! who looks → who is there   magic, a number that this process has drawn
//! who is there → who looks   ANOTHER, or ITSELF where it has drawn that number
//! ```

use super::{
    authenticated,
    dialer::without_peer,
    exchange::{AdmissionError, driving, first_stream, receive, send},
    redeem, to_own_id,
};
use crate::store::identity::Identity;
use futures::{AsyncReadExt as _, StreamExt as _, stream::FuturesUnordered};
use libp2p::{
    Multiaddr, Transport as _,
    core::{
        Endpoint,
        muxing::{StreamMuxerBox, SubstreamBox},
        transport::{DialOpts, PortUse},
    },
    multiaddr::Protocol,
};
use std::{io, time::Duration};
use tokio::time::timeout;
use tsnode_protocol::{limits, proof::ConnectionSide};

/// What such a connection begins with.
const MAGIC: [u8; 6] = *b"tstwin";
const ITSELF: u8 = 0;
const ANOTHER: u8 = 1;
/// How long all of it may take at one address.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long the answer is held open.
const LAST_BYTES: Duration = Duration::from_secs(1);

/// Tells processes with the same key apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessId([u8; 16]);

impl ProcessId {
    /// One that no other process has.
    #[must_use]
    pub fn draw() -> Self {
        Self(crate::random_bytes())
    }
}

/// Where another process answers with this identity, if one does.
pub async fn find(identity: &Identity, me: ProcessId, addresses: &[Multiaddr]) -> Option<Multiaddr> {
    // Who is found by one way is not looked for by another.
    let is_tcp = |address: &&Multiaddr| address.iter().any(|part| matches!(part, Protocol::Tcp(_)));
    let straight = |address: &&Multiaddr| address.iter().all(|part| part != Protocol::P2pCircuit);
    let looked = addresses.iter().filter(is_tcp).filter(straight).take(limits::ADDRESSES).map(|address| async move {
        let is_another = timeout(PATIENCE, is_another(identity, me, address.clone())).await;
        is_another.ok().flatten()?.then(|| without_peer(address.clone()))
    });
    let mut looked: FuturesUnordered<_> = looked.collect();
    while let Some(found) = looked.next().await {
        if found.is_some() {
            return found;
        }
    }
    None
}

async fn is_another(identity: &Identity, me: ProcessId, address: Multiaddr) -> Option<bool> {
    let mut transport = authenticated::plain(&identity.libp2p_keypair()).ok()?;
    let options = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };
    let (peer, mut muxer) = transport.dial(without_peer(address), options).ok()?.await.ok()?;
    if to_own_id(&peer) != Some(identity.peer_id()) {
        return Some(false);
    }
    let mut stream = first_stream(&mut muxer, ConnectionSide::Dialer).await.ok()?;
    let asking = async {
        send(&mut stream, &[&MAGIC[..], &me.0].concat()).await?;
        receive(&mut stream).await
    };
    // One that does not know the question is another: this process does.
    let answer = driving(&mut muxer, asking).await.ok().and_then(Result::ok).unwrap_or([ANOTHER]);
    Some(answer != [ITSELF])
}

/// Answers somebody with this peer's own key.
pub(super) async fn answer(me: ProcessId, muxer: &mut StreamMuxerBox, mut stream: SubstreamBox) -> AdmissionError {
    let mut found = AdmissionError::Itself;
    let exchange = async {
        let magic: [u8; 6] = receive(&mut stream).await?;
        // A way of this peer's that leads back to it begins as all do. Newcomers do not listen yet.
        let theirs = if magic == MAGIC { Some(receive::<16>(&mut stream).await?) } else { None };
        let is_another = theirs.map_or(magic == redeem::MAGIC, |theirs| theirs != me.0);
        if theirs.is_some() {
            send(&mut stream, &[if is_another { ANOTHER } else { ITSELF }]).await?;
        }
        if is_another {
            found = AdmissionError::Twin;
        }
        // Whoever asked hangs up, with the stream or the whole connection, when it has read the answer; closing first could take it back.
        let _ = timeout(LAST_BYTES, stream.read(&mut [0])).await;
        Ok::<(), io::Error>(())
    };
    // What was found out before the connection ended holds.
    let _ = driving(muxer, exchange).await;
    found
}
