//! What a peer tells whoever calls it of the call itself: where it comes from, what the time is, whether both mean the same swarm, and
//! whether many bytes get through as well as few. `tsnode doctor` asks; who has not proven anything is answered, too, as it is told
//! nothing but what it could see elsewhere.
//!
//! ```text
//! who looks → who is there   magic, nonce, length, so many bytes
//! who is there → who looks   protocol version, time, the address that was called from, mark, so many bytes
//! ```
//!
//! These messages stay as they are when the protocol's version changes: they are what tells that it has.

use super::exchange::{AdmissionError, receive, send};
use futures::{AsyncReadExt as _, AsyncWriteExt as _, io::copy};
use libp2p::core::muxing::SubstreamBox;
use std::{
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tsnode_protocol::{SwarmId, codec};

/// What such a question begins with.
pub(super) const MAGIC: [u8; 6] = *b"tsseen";
/// Questions on one connection.
pub(super) const QUESTIONS: usize = 2;
/// The most that is sent along, each way (bytes): more than two packets of any usual size.
pub(super) const LARGE: u16 = 4096;
/// Version, time, address, port, mark.
const ANSWER: usize = 2 + 8 + 16 + 2 + 16;

/// What the far end says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FarEndSight {
    /// Its version of the protocol.
    pub version: u16,
    /// Whether it is of the swarm that was asked for.
    pub is_same_swarm: bool,
    /// Where it sees the call come from; none over a relay.
    pub seen: Option<SocketAddr>,
    /// How much its clock is ahead of this host's (milliseconds), half a round trip more or less.
    pub clock_ahead: i64,
}

/// Answers one question, whose magic has been read.
pub(super) async fn answer(
    stream: &mut SubstreamBox,
    from: Option<SocketAddr>,
    swarm: SwarmId,
) -> Result<(), AdmissionError> {
    let nonce: [u8; 16] = receive(stream).await?;
    let length = u16::from_le_bytes(receive(stream).await?);
    if length > LARGE {
        return Err(AdmissionError::Foreign);
    }
    skip(stream, length).await?;
    let mut said = Vec::with_capacity(ANSWER + usize::from(length));
    said.extend_from_slice(&codec::VERSION.to_le_bytes());
    said.extend_from_slice(&now().to_le_bytes());
    said.extend_from_slice(&octets(from));
    said.extend_from_slice(&from.map_or(0, |from| from.port()).to_le_bytes());
    said.extend_from_slice(&mark(swarm, nonce));
    said.resize(ANSWER + usize::from(length), 0);
    Ok(send(stream, &said).await?)
}

/// Asks, and sends so many bytes along.
pub(super) async fn ask(stream: &mut SubstreamBox, swarm: SwarmId, length: u16) -> io::Result<FarEndSight> {
    let nonce = crate::random_bytes();
    let mut said = [&MAGIC[..], &nonce, &length.to_le_bytes()].concat();
    said.resize(said.len() + usize::from(length), 0);
    let started = Instant::now();
    stream.write_all(&said).await?;
    stream.flush().await?;
    let version = u16::from_le_bytes(receive(stream).await?);
    let theirs = u64::from_le_bytes(receive(stream).await?);
    let half_way = i64::try_from(started.elapsed().as_millis() / 2).unwrap_or(i64::MAX);
    let clock_ahead = theirs.cast_signed().wrapping_sub(now().cast_signed()).saturating_add(half_way);
    let ip = IpAddr::from(receive::<16>(stream).await?).to_canonical();
    let port = u16::from_le_bytes(receive(stream).await?);
    let is_same_swarm = receive(stream).await? == mark(swarm, nonce);
    skip(stream, length).await?;
    let seen = (!ip.is_unspecified()).then_some(SocketAddr::new(ip, port));
    Ok(FarEndSight { version, is_same_swarm, seen, clock_ahead })
}

async fn skip(stream: &mut SubstreamBox, length: u16) -> io::Result<()> {
    let skipped = copy(stream.take(length.into()), &mut futures::io::sink()).await?;
    if skipped == u64::from(length) { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Tells who knows the swarm's id that this is it, and nobody else which it is.
fn mark(swarm: SwarmId, nonce: [u8; 16]) -> [u8; 16] {
    let key = blake3::derive_key("tsnode 2026 same swarm", &[swarm.0, nonce].concat());
    let mut mark = [0; 16];
    mark.copy_from_slice(&key[..16]);
    mark
}

/// As IPv6 writes it; unspecified where it is not known.
fn octets(from: Option<SocketAddr>) -> [u8; 16] {
    match from.map(|from| from.ip()) {
        Some(IpAddr::V4(ip)) => ip.to_ipv6_mapped().octets(),
        Some(IpAddr::V6(ip)) => ip.octets(),
        None => Ipv6Addr::UNSPECIFIED.octets(),
    }
}

/// Since 1970 (milliseconds).
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
