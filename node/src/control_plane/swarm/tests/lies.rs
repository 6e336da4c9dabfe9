//! A member that speaks whatever it likes: its lies are counted, and the swarm goes on.

use super::*;
use crate::control_plane::swarm::admission::{AdmissionDoor, Rejection};
use libp2p::gossipsub;
use tsnode_protocol::limits;

/// A member that speaks whatever it likes.
struct Byzantine {
    net: Swarm<gossipsub::Behaviour>,
    id: PeerId,
}

impl Byzantine {
    async fn beside(peer: &Peer) -> Self {
        let identity = Identity::from_seed(&[66; 32]);
        let keypair = identity.libp2p_keypair();
        let (rejections, _) = mpsc::channel::<Rejection>(1);
        let door = AdmissionDoor {
            process: ProcessId::draw(),
            own: identity.peer_id(),
            swarm: SWARM,
            membership: Membership::new(SWARM, Some(SECRET)),
            invites: no_invites(),
            rejections,
        };
        let config = gossipsub::ConfigBuilder::default()
            .validation_mode(gossipsub::ValidationMode::Anonymous)
            .max_transmit_size(8 * limits::GOSSIP_BYTES)
            .message_id_fn(gossip::message_id)
            .build()
            .unwrap();
        let mut behaviour = gossipsub::Behaviour::new(gossipsub::MessageAuthenticity::Anonymous, config).unwrap();
        behaviour.subscribe(&gossip::topic(SWARM)).unwrap();
        let (circuits, _) = libp2p::relay::client::new(keypair.public().to_peer_id());
        let mut net = Swarm::new(
            transport::admitted(&keypair, door, Doors::default(), circuits).unwrap(),
            behaviour,
            keypair.public().to_peer_id(),
            libp2p::swarm::Config::with_tokio_executor().with_idle_connection_timeout(PATIENCE),
        );
        net.dial(peer.address("/tcp/")).unwrap();
        let heard = async {
            while !matches!(net.select_next_some().await, NetEvent::Behaviour(gossipsub::Event::Subscribed { .. })) {}
        };
        tokio::time::timeout(PATIENCE, heard).await.expect("the byzantine peer was not admitted");
        Self { net, id: identity.peer_id() }
    }

    fn say(&mut self, bytes: Vec<u8>) {
        self.net.behaviour_mut().publish(gossip::topic(SWARM), bytes).unwrap();
    }

    async fn until_blamed(&mut self, peer: &mut Peer) -> String {
        let blamed = peer.until_rejection(self.id);
        self.goes_on_during(blamed).await
    }

    /// Runs the byzantine peer's network until `scenario` is over.
    async fn goes_on_during<T>(&mut self, scenario: impl Future<Output = T>) -> T {
        let mut scenario = std::pin::pin!(scenario);
        loop {
            tokio::select! {
                end = &mut scenario => return end,
                _ = self.net.select_next_some() => {}
            }
        }
    }
}

#[tokio::test]
async fn lies_are_counted_and_the_swarm_goes_on() {
    let (mut a, mut b) = (member(1).await, member(2).await);
    let mut byzantine = Byzantine::beside(&a).await;

    byzantine.say(vec![1; limits::GOSSIP_BYTES + 1]);
    let reason = byzantine.until_blamed(&mut a).await;
    assert!(reason.contains("over its limit"), "{reason}");
    byzantine.say(b"garbage".to_vec());
    byzantine.until_blamed(&mut a).await;
    let (_, mut forged) =
        Sealer::new(Identity::from_seed(&[66; 32]).signing, SWARM, Life(1)).seal(&heartbeat()).unwrap();
    *forged.last_mut().unwrap() ^= 1;
    byzantine.say(forged);
    let reason = byzantine.until_blamed(&mut a).await;
    assert!(reason.contains("does not hold"), "{reason}");
    byzantine.say(vec![7; 4 * limits::GOSSIP_BYTES]);

    let honest = async {
        meet(&mut b, &mut a, "/tcp/").await;
        let said = a.handle.publish(&heartbeat()).unwrap();
        b.until_heard(&said).await;
    };
    byzantine.goes_on_during(honest).await;
}
