//! Who a peer is and which swarm it is in, as it starts: by its key and its notes, or by an invite that is redeemed first.

use super::setup::{Membering, NodeConfig, NodeError};
use crate::{
    control_plane::swarm::{self, RedeemError},
    store::{
        self, Belonging, Store,
        identity::{Identity, KEY_FILE},
        invites,
    },
};
use std::path::Path;
use tsnode_protocol::{Invite, Secret, SwarmId, Ticket};

/// Who this peer is. That it is another one than before is said: somebody may have moved its key.
pub(super) fn identity(folder: &Path, store: &Store) -> Result<Identity, NodeError> {
    let before = store.peer();
    let identity = Identity::of(folder, before.or_else(|| store::invited_to(folder)))?;
    let peer = identity.peer_id();
    if let Some(before) = before.filter(|before| *before != peer) {
        let file = folder.join(KEY_FILE);
        tracing::warn!(
            %peer, %before, file = %file.display(),
            "this peer is another one than before: if that is not what you want, stop it and restore its key from a copy"
        );
    }
    store.set_peer(peer);
    Ok(identity)
}

/// The swarm this peer is in, and the ticket it came with, if any: that of an invite is redeemed where this peer is no
/// member yet.
pub(super) async fn belonging(
    config: &NodeConfig,
    store: &Store,
    identity: &Identity,
) -> Result<(Belonging, Invite), NodeError> {
    let place = |swarm: SwarmId, ticket| Invite { swarm, ticket, addresses: Vec::new() };
    let belonging = match &config.membering {
        Membering::Invited(invite) => return Ok((invited(invite, store, identity).await?, invite.clone())),
        Membering::NewPrivate => {
            Belonging { swarm: SwarmId(crate::random_bytes()), secret: Some(Secret(crate::random_bytes())) }
        }
        Membering::Usual => match store.joining() {
            Some(invite) => {
                tracing::info!(swarm = %invite.swarm, "this peer ended on its way into a private swarm, and goes on with its invite");
                return Ok((invited(&invite, store, identity).await?, invite));
            }
            None => store.swarm()?.unwrap_or_else(local_swarm),
        },
    };
    store.set_swarm(&belonging)?;
    let ticket = if belonging.secret.is_some() { standing(&config.data_dir)? } else { None };
    Ok((belonging, place(belonging.swarm, ticket)))
}

/// Membership by an invite.
async fn invited(invite: &Invite, store: &Store, identity: &Identity) -> Result<Belonging, NodeError> {
    // What cannot be read any more is what the invite is for.
    let known = store.swarm().unwrap_or_default().filter(|b| b.swarm == invite.swarm);
    let secret = match (known, &invite.ticket) {
        (Some(known), _) => known.secret,
        (None, None) => None,
        (None, Some(ticket)) => {
            store.set_joining(Some(invite))?;
            match redeemed(identity, invite, ticket).await {
                Ok(secret) => Some(secret),
                Err(error) => {
                    store.set_joining(None)?;
                    return Err(error);
                }
            }
        }
    };
    let belonging = Belonging { swarm: invite.swarm, secret };
    store.set_swarm(&belonging)?;
    Ok(belonging)
}

/// An invite that is good, made here: one that is out for any number, or a new one, for the file that others may be given.
fn standing(folder: &Path) -> Result<Option<Ticket>, NodeError> {
    let now = invites::unix_now();
    let open = invites::read(folder)?.into_iter().find(|made| made.is_good(now) && made.uses.is_none());
    let made = open.map_or_else(|| invites::make(folder, invites::LASTS, None), Ok)?;
    Ok(made.ticket())
}

async fn redeemed(identity: &Identity, invite: &Invite, ticket: &Ticket) -> Result<Secret, NodeError> {
    let now = invites::unix_now();
    if ticket.expires <= now {
        return Err(RedeemError::Expired { ago: invites::span(now - ticket.expires) }.into());
    }
    Ok(swarm::redeem(identity, invite, ticket).await?)
}

/// The open swarm that peers of one network find each other in.
fn local_swarm() -> Belonging {
    let mut id = [0; 16];
    id.copy_from_slice(&blake3::derive_key("tsnode 2026 open local swarm", b"")[..16]);
    Belonging { swarm: SwarmId(id), secret: None }
}
