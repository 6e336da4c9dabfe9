//! How a newcomer with an invite comes into a private swarm: the first exchange on a connection of its own.
//!
//! ```text
//! newcomer → member   magic, protocol version, nonce, the invite's id, a code that proves the ticket
//! member → newcomer   nonce, a code that proves the same, the swarm's secret
//! ```
//!
//! Both ids are proven by the transport, and the codes are bound to them. Whatever is wrong with the invite, the member
//! answers nothing and closes: who has no ticket cannot tell an invite that was revoked from one that never was. A member at whose
//! door there is no room closes, too, so that one who was turned away once comes again. The newcomer knows the secret then, and
//! connects anew, as every member does.

use super::{
    authenticated,
    dialer::without_peer,
    exchange::{AdmissionError, HELLO_BYTES, draw_nonce, driving, first_stream, receive, send},
    names, to_own_id,
};
use crate::store::{identity::Identity, invites::Invites};
use futures::{AsyncReadExt as _, AsyncWriteExt as _};
use libp2p::{
    Multiaddr, Transport as _,
    core::{
        Endpoint,
        muxing::{StreamMuxerBox, SubstreamBox},
        transport::{DialOpts, PortUse},
    },
};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use tsnode_protocol::{
    Invite, InviteId, PeerId, Secret, SwarmId, Ticket, TicketKey, codec,
    proof::{Code, ConnectionSide, Ends, Membership, Nonce},
};

/// What connections of newcomers begin with.
pub(super) const MAGIC: [u8; 6] = *b"tsjoin";
/// How long one address may take.
const PATIENCE: Duration = Duration::from_secs(8);
/// Between two rounds of all addresses: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(8));
/// For how long it is tried again: members that start again, or are thronged, are there by then.
const TRY_FOR: Duration = Duration::from_secs(40);
/// So often in a row an invite is turned away before that is believed.
const REFUSALS: u32 = 2;
/// How long a member waits until the newcomer has read its answer.
const LAST_BYTES: Duration = Duration::from_secs(2);
/// In the first message the member's nonce is still to come.
const NO_NONCE: Nonce = Nonce([0; 32]);

/// Why an invite did not let in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RedeemError {
    /// By this host's clock.
    #[error("the invite expired {ago} ago: ask for a new one (tsnode invite, on a member's machine)")]
    Expired {
        /// How long.
        ago: String,
    },
    /// A member was there and closed the connection.
    #[error(
        "the invite was not accepted: it was revoked or used up, or has expired, or who made it is away; ask for a new one \
         (tsnode invite, on a member's machine)"
    )]
    Refused,
    /// Nobody was there.
    #[error("no member was reached at the invite's addresses ({0}): is one running, and its port open to here?")]
    Unreachable(String),
}

/// Asks the invite's members for the swarm's secret, again and again where none is reached, and says so.
///
/// # Errors
/// When they refuse it, or none is there for [`TRY_FOR`].
pub async fn redeem(identity: &Identity, invite: &Invite, ticket: &Ticket) -> Result<Secret, RedeemError> {
    let addresses: Vec<Multiaddr> = invite.addresses.iter().filter_map(|a| a.parse().ok()).collect();
    let (until, mut pause, mut refusals) = (Instant::now() + TRY_FOR, PAUSE.0, 0);
    loop {
        let NotGiven { error, is_final } = match ask_all(identity, &addresses, invite.swarm, ticket).await {
            Ok(secret) => return Ok(secret),
            Err(not_given) => not_given,
        };
        refusals = if error == RedeemError::Refused { refusals + 1 } else { 0 };
        if is_final || refusals == REFUSALS || Instant::now() + pause > until {
            return Err(error);
        }
        tracing::warn!("{error}; trying again in {} s", pause.as_secs());
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// Why no member gave the secret, and whether that will be so however often they are asked.
struct NotGiven {
    error: RedeemError,
    is_final: bool,
}

/// Asks one after the other.
async fn ask_all(
    identity: &Identity,
    addresses: &[Multiaddr],
    swarm: SwarmId,
    ticket: &Ticket,
) -> Result<Secret, NotGiven> {
    let (mut refused, mut is_final) = (false, true);
    let mut last = String::from("it has none");
    // Anew in each round: a network that comes up has a resolver then.
    let (addresses, lost) = names::resolved(addresses).await;
    for address in &addresses {
        match timeout(PATIENCE, ask(identity, address.clone(), swarm, ticket)).await {
            Ok(Ok(secret)) => return Ok(secret),
            Ok(Err(RedeemFailure::OfAnother(error))) => last = format!("{address}: {error}"),
            Ok(Err(RedeemFailure::Refused)) => (refused, is_final) = (true, false),
            Ok(Err(RedeemFailure::NotReached(error))) => (last, is_final) = (format!("{address}: {error}"), false),
            Err(_) => (last, is_final) = (format!("{address}: no answer in time"), false),
        }
    }
    // Whatever else is wrong: a name that leads nowhere may be the only good address there is.
    for (n, lost) in lost.iter().enumerate() {
        (last, is_final) =
            (if n == 0 && addresses.is_empty() { lost.to_string() } else { format!("{last}; {lost}") }, false);
    }
    let error = if refused { RedeemError::Refused } else { RedeemError::Unreachable(last) };
    Err(NotGiven { error, is_final })
}

enum RedeemFailure {
    /// Somebody else is there.
    OfAnother(String),
    Refused,
    NotReached(String),
}

async fn ask(
    identity: &Identity,
    address: Multiaddr,
    swarm: SwarmId,
    ticket: &Ticket,
) -> Result<Secret, RedeemFailure> {
    let unreached = |error: String| RedeemFailure::NotReached(error);
    let mut transport = authenticated::plain(&identity.libp2p_keypair()).map_err(|e| unreached(e.to_string()))?;
    let options = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };
    let named = super::dialer::peer_of(&address);
    let dial = transport.dial(without_peer(address), options).map_err(|e| unreached(e.to_string()))?;
    let (member, mut muxer) = dial.await.map_err(|e| unreached(e.to_string()))?;
    let member = to_own_id(&member).ok_or_else(|| unreached("not an ed25519 key".into()))?;
    if member == identity.peer_id() {
        let why = "another process runs there with this peer's own identity: was its data folder copied?";
        return Err(RedeemFailure::OfAnother(why.into()));
    }
    if named.is_some_and(|named| named != member) {
        return Err(RedeemFailure::OfAnother(format!("{member} is there instead")));
    }
    let key = ticket.key(swarm);
    let exchange = knock(&mut muxer, identity.peer_id(), member, (ticket.id, key));
    exchange.await.map_err(|_| RedeemFailure::Refused)
}

async fn knock(
    muxer: &mut StreamMuxerBox,
    own: PeerId,
    member: PeerId,
    (id, key): (InviteId, TicketKey),
) -> Result<Secret, AdmissionError> {
    let mut stream = first_stream(muxer, ConnectionSide::Dialer).await?;
    let exchange = async {
        let proof = Membership::by_ticket(key);
        let nonce = draw_nonce()?;
        let first = Ends { dialer: own, listener: member, dialer_nonce: nonce, listener_nonce: NO_NONCE };
        let mut knock = [&MAGIC[..], &codec::VERSION.to_le_bytes(), &nonce.0, &id.0].concat();
        knock.extend_from_slice(&proof.code(ConnectionSide::Dialer, &first).0);
        send(&mut stream, &knock).await?;
        let ends = Ends { listener_nonce: Nonce(receive(&mut stream).await?), ..first };
        let code = Code(receive(&mut stream).await?);
        if !proof.accepts(ConnectionSide::Listener, &ends, code) {
            return Err(AdmissionError::Stranger);
        }
        let secret = Secret(receive(&mut stream).await?);
        let _ = stream.close().await;
        Ok(secret)
    };
    driving(muxer, exchange).await?
}

/// A newcomer's knock, whose magic is read: gives it the secret if its ticket is good, else nothing.
pub(super) async fn answer(
    own: PeerId,
    newcomer: PeerId,
    invites: &Invites,
    stream: &mut SubstreamBox,
) -> Result<(), AdmissionError> {
    const REST: usize = HELLO_BYTES - MAGIC.len();
    let rest: [u8; REST] = receive(stream).await?;
    let id = InviteId(receive(stream).await?);
    let shown = Code(receive(stream).await?);
    let (version, nonce) = rest.split_at(2);
    let mut dialer_nonce = NO_NONCE;
    dialer_nonce.0.copy_from_slice(nonce);
    let first = Ends { dialer: newcomer, listener: own, dialer_nonce, listener_nonce: NO_NONCE };
    // One that nobody knows takes as long as one that is wrong.
    let key = invites.key(id);
    let proof = Membership::by_ticket(key.unwrap_or(TicketKey(own.0)));
    let proven = proof.accepts(ConnectionSide::Dialer, &first, shown) && key.is_some();
    if !proven || version != codec::VERSION.to_le_bytes() {
        return Err(AdmissionError::Uninvited);
    }
    let secret = invites.admit(id, newcomer).ok_or(AdmissionError::Uninvited)?;
    let ends = Ends { listener_nonce: draw_nonce()?, ..first };
    let mut reply = ends.listener_nonce.0.to_vec();
    reply.extend_from_slice(&proof.code(ConnectionSide::Listener, &ends).0);
    reply.extend_from_slice(&secret.0);
    send(stream, &reply).await?;
    tracing::info!(peer = %newcomer, invite = %id, "let in by invite");
    Ok(())
}

/// The newcomer hangs up, with the stream or the whole connection, when it has read the answer; closing first could take it back.
pub(super) async fn until_read(muxer: &mut StreamMuxerBox, mut stream: SubstreamBox) {
    let _ = timeout(LAST_BYTES, driving(muxer, stream.read(&mut [0]))).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_that_leads_nowhere_is_named_beside_what_else_is_wrong() {
        let identity = Identity::from_seed(&[1; 32]);
        let ticket = Ticket { id: InviteId([4; 8]), secret: Secret([5; 32]), expires: u64::MAX };
        let asked = async |addresses: &[&str]| {
            let addresses: Vec<Multiaddr> = addresses.iter().map(|address| address.parse().unwrap()).collect();
            let Err(NotGiven { error, is_final }) = ask_all(&identity, &addresses, SwarmId([3; 16]), &ticket).await
            else {
                panic!("nobody is there")
            };
            assert!(!is_final, "{error}: a name may lead somewhere the next time");
            error.to_string()
        };
        let said = asked(&["/dns4/no-such-host.invalid/tcp/7"]).await;
        assert!(
            said.contains("(/dns4/no-such-host.invalid/tcp/7: the name \"no-such-host.invalid\" is not known"),
            "{said}"
        );
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let said = asked(&["/dns4/no-such-host.invalid/tcp/7", &format!("/dns4/localhost/tcp/{closed}")]).await;
        assert!(
            said.contains(&format!("/ip4/127.0.0.1/tcp/{closed}: ")) && said.contains("no-such-host.invalid"),
            "{said}"
        );
    }
}
