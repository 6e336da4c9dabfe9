//! What comes for the groups here: requests for leaders, rings for stages, KV, files, response logs.

use super::StageManager;
use crate::{
    data_plane::links::{IncomingStream, Stream},
    worker::{
        leader_client::{LeaderRequest, ORDERS, event_room, serve_decode, serve_prefill},
        member::RingStream,
    },
};
use tokio::sync::mpsc;
use tsnode_protocol::{
    GroupId, PeerId,
    ring::RingHello,
    stream::{NOT_LED, Opening},
};

impl StageManager {
    /// Gives a request to the leader here, or says why not.
    pub(super) fn serve(&self, group: GroupId, request: LeaderRequest) {
        let leader = self.groups.get(&group).and_then(|r| r.requests.as_ref());
        let Some(leader) = leader else {
            return request.refuse(NOT_LED);
        };
        if let Err(full) = leader.try_send(request) {
            full.into_inner().refuse("too many requests wait here");
        }
    }

    #[deny(clippy::wildcard_enum_match_arm)]
    pub(super) fn receive(&self, arrived: IncomingStream) {
        let IncomingStream { peer, opening, stream } = arrived;
        match opening {
            Opening::Decode(request) => {
                let (events, told) = mpsc::channel(event_room(request.generation.max_new_tokens));
                let (order, orders) = mpsc::channel(ORDERS);
                let group = request.group;
                self.tasks.spawn(self.talks.track_future(serve_decode(stream, order, told)));
                self.serve(group, LeaderRequest::Decode { gateway: peer, request, orders, events });
            }
            Opening::Prefill(request) => {
                let (events, told) = mpsc::channel(ORDERS);
                let group = request.group;
                self.tasks.spawn(self.talks.track_future(serve_prefill(stream, told)));
                self.serve(group, LeaderRequest::Prefill { gateway: peer, request, events });
            }
            Opening::Ring(hello) => self.ring(peer, hello, stream),
            Opening::Kv(header) => {
                let kv_receiver = self.kv_receiver.clone();
                self.tasks.spawn(async move { kv_receiver.receive(peer, header, stream).await });
            }
            Opening::Weights(model) => {
                let (giver, links) = (self.setup.giver.clone(), self.setup.links.clone());
                self.tasks.spawn(async move { giver.give(peer, model, stream, &links).await });
            }
            Opening::File { model, name } => {
                let shelf = self.setup.shelf.clone();
                self.tasks.spawn(async move { shelf.give(model, &name, stream).await });
            }
            Opening::ResponseLog(head) => {
                let response_log = self.setup.response_log.clone();
                self.tasks.spawn(async move {
                    if let Err(error) = response_log.keep(peer, head, stream).await {
                        tracing::debug!(request = %head.request, gateway = %peer, %error, "response log ended early");
                    }
                });
            }
            Opening::Recall(asked) => {
                let response_log = self.setup.response_log.clone();
                self.tasks.spawn(async move { drop(response_log.give(asked, stream).await) });
            }
            Opening::Encode(request) => {
                let lenders = self.setup.lenders.clone();
                let history = self.setup.history.clone();
                self.tasks
                    .spawn(self.talks.track_future(async move { lenders.serve(request, stream, &history).await }));
            }
            // Answered by the links themselves.
            Opening::Prove(..) | Opening::Probe { .. } | Opening::Where | Opening::Meet(_) | Opening::Heartbeats(_) => {
            }
        }
    }

    /// Brings a ring to its stage, if the peer before it in the plan opened it. Otherwise the stream is dropped;
    /// a leader tries again, so a peer that adopts the plan a moment later misses nothing.
    fn ring(&self, from: PeerId, hello: RingHello, stream: Stream) {
        let Some(running) = self.groups.get(&hello.group) else { return };
        let stages = &running.group.stages;
        let position = usize::from(hello.position);
        let before = (position + stages.len() - 1) % stages.len();
        let expected = hello.stages == *stages
            && stages.get(position).is_some_and(|s| s.peer == self.setup.me)
            && stages[before].peer == from;
        if !expected {
            tracing::debug!(%from, group = %hello.group, position, "ring does not fit the plan");
            return;
        }
        // A full queue means rings are built faster than they are used; the leader tries again.
        let _ = running.rings.try_send(RingStream { hello, stream });
    }
}
