//! Prompt flow 2: the ways to leaders, in this process and over streams.

use crate::{
    data_plane::{links::Links, roster::Roster},
    worker::{
        WorkerHandle,
        leader_client::{LeaderRequest, follow_decode},
    },
};
use tokio::sync::mpsc;
use tsnode_protocol::{
    PeerId,
    stream::{DecodeEvent, DecodeOrder, DecodeRequest, Opening, PrefillEvent, PrefillRequest},
};

/// The ways to leaders, on this peer and on others. Clones are equal.
#[derive(Clone)]
pub(super) struct LeaderReach {
    pub me: PeerId,
    pub worker: WorkerHandle,
    pub links: Links,
    pub roster: Roster,
}

impl LeaderReach {
    /// Brings a request to its leader and follows it there, in this process or over a stream.
    pub async fn decode(
        self,
        leader: PeerId,
        open: DecodeRequest,
        orders: mpsc::Receiver<DecodeOrder>,
        events: mpsc::Sender<DecodeEvent>,
    ) -> Result<(), String> {
        if leader == self.me {
            let group = open.group;
            let request = LeaderRequest::Decode { gateway: self.me, request: open, orders, events };
            return self.worker.serve(group, request).await.map_err(|e| e.to_string());
        }
        let addresses = self.roster.data_addresses(leader);
        let _attended = self.links.attend(leader);
        let stream = self.links.open(leader, &addresses, &Opening::Decode(open)).await.map_err(|e| e.to_string())?;
        follow_decode(stream, orders, events).await.map_err(|e| e.to_string())
    }

    /// Has a prompt computed there, and follows how far it is.
    pub async fn prefill(
        self,
        leader: PeerId,
        open: PrefillRequest,
        events: mpsc::Sender<PrefillEvent>,
    ) -> Result<(), String> {
        if leader == self.me {
            let group = open.group;
            let request = LeaderRequest::Prefill { gateway: self.me, request: open, events };
            return self.worker.serve(group, request).await.map_err(|e| e.to_string());
        }
        let addresses = self.roster.data_addresses(leader);
        let _attended = self.links.attend(leader);
        let mut stream =
            self.links.open(leader, &addresses, &Opening::Prefill(open)).await.map_err(|e| e.to_string())?;
        while let Some(mut event) = stream.receiver.recv::<PrefillEvent>().await.map_err(|e| e.to_string())? {
            event.check().map_err(|why| stream.receiver.refuse(why).to_string())?;
            event.shorten_reason();
            let last = matches!(event, PrefillEvent::KvSent { .. } | PrefillEvent::Failed(_));
            if events.send(event).await.is_err() || last {
                break;
            }
        }
        Ok(())
    }
}
