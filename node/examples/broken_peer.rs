//! What `scripts/doctor_check.sh` needs that no sound peer does: to speak another version, to have a wrong secret, and invites to
//! wherever one likes.
//!
//! ```text
//! broken_peer version ADDRESS     listens there (as /ip4/192.0.2.1/tcp/7446), and prints an invite first
//! broken_peer secret FOLDER INVITE   makes a data folder that knows the invite's swarm, and another secret
//! broken_peer invite ADDRESS…     prints an invite to an open swarm at these
//! ```
#![expect(clippy::unwrap_used, reason = "a tool of a script, which sees how it ends")]

use futures::{AsyncReadExt as _, AsyncWriteExt as _, StreamExt as _, future::poll_fn};
use libp2p::{
    Multiaddr, Transport as _,
    core::{
        muxing::{StreamMuxerBox, StreamMuxerExt as _},
        transport::{ListenerId, TransportEvent},
        upgrade::Version,
    },
    noise, tcp, yamux,
};
use std::{path::Path, task::Poll};
use tsnode::store::{Belonging, Store, identity::Identity};
use tsnode_protocol::{Invite, Secret, SwarmId, codec};

const SWARM: SwarmId = SwarmId([1; 16]);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["version", address] => of_another_version(address.parse().unwrap()).await,
        ["secret", folder, invite] => with_another_secret(Path::new(folder), &invite.parse().unwrap()),
        ["invite", ..] => invite(words[1..].iter().map(ToString::to_string).collect()),
        _ => panic!("broken_peer version ADDRESS | secret FOLDER INVITE | invite ADDRESS…"),
    }
}

fn invite(addresses: Vec<String>) {
    println!("{}", Invite { swarm: SWARM, ticket: None, addresses });
}

fn with_another_secret(folder: &Path, invite: &Invite) {
    let store = Store::open(folder).unwrap();
    store.set_swarm(&Belonging { swarm: invite.swarm, secret: Some(Secret([9; 32])) }).unwrap();
    store.set_known(invite.swarm, &invite.addresses);
    Identity::load_or_create(folder).unwrap();
}

/// Answers every hello with one of the next version, and hangs up on all else.
async fn of_another_version(address: Multiaddr) {
    let keypair = Identity::from_seed(&[8; 32]).libp2p_keypair();
    let mut transport = tcp::tokio::Transport::new(tcp::Config::default())
        .upgrade(Version::V1)
        .authenticate(noise::Config::new(&keypair).unwrap())
        .multiplex(yamux::Config::default())
        .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)))
        .boxed();
    transport.listen_on(ListenerId::next(), address.clone()).unwrap();
    invite(vec![format!("{address}/p2p/{}", keypair.public().to_peer_id())]);
    let hello = [&b"tsnode"[..], &(codec::VERSION + 1).to_le_bytes(), &[3; 32]].concat();
    loop {
        let TransportEvent::Incoming { upgrade, .. } = transport.select_next_some().await else { continue };
        let hello = hello.clone();
        tsnode::tasks::spawn("caller", async move {
            let Ok((_, mut muxer)) = upgrade.await else { return };
            let Ok(mut stream) = poll_fn(|cx| {
                let inbound = muxer.poll_inbound_unpin(cx);
                let _ = muxer.poll_unpin(cx);
                inbound
            })
            .await
            else {
                return;
            };
            let answering = async {
                let mut magic = [0; 6];
                stream.read_exact(&mut magic).await?;
                if magic == *b"tsnode" {
                    stream.write_all(&hello).await?;
                    stream.flush().await?;
                    stream.read_to_end(&mut Vec::new()).await?;
                }
                Ok::<(), std::io::Error>(())
            };
            let mut answering = std::pin::pin!(answering);
            poll_fn(|cx| {
                if answering.as_mut().poll(cx).is_ready() || matches!(muxer.poll_unpin(cx), Poll::Ready(Err(_))) {
                    return Poll::Ready(());
                }
                Poll::Pending
            })
            .await;
        });
    }
}
