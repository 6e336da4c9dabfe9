//! What the gateway that is asked says of requests that have ended: the last ones, which is all that it remembers.

use crate::{
    cli::{ask::PeerClient, exit::Exit},
    gateway::Trace,
};
use serde::Deserialize;
use std::collections::BTreeSet;
use tsnode_protocol::RequestId;

/// Asks for each of them once.
pub(super) struct FreshTraces<'p> {
    peer: &'p PeerClient,
    /// Those it has asked for, of the ones that the gateway still remembers.
    known: BTreeSet<RequestId>,
}

/// What `/api/requests` lists, newest first.
#[derive(Deserialize)]
struct ListedRequests {
    requests: Vec<ListedRequest>,
}

#[derive(Deserialize)]
struct ListedRequest {
    request: RequestId,
}

impl<'p> FreshTraces<'p> {
    pub fn new(peer: &'p PeerClient) -> Self {
        Self { peer, known: BTreeSet::new() }
    }

    /// Leaves out all that have ended so far.
    pub async fn pass_over(&mut self) -> Result<(), Exit> {
        self.known.extend(self.listed().await?);
        Ok(())
    }

    /// Those among the newest, so many at most, that were not asked for before. What was taken stays so where a later one fails.
    pub async fn each(&mut self, most: usize, mut take: impl FnMut(Trace)) -> Result<(), Exit> {
        let listed = self.listed().await?;
        self.known.retain(|request| listed.contains(request));
        for request in listed.into_iter().take(most) {
            if self.known.contains(&request) {
                continue;
            }
            let trace: Trace = self.peer.get(&format!("/api/requests/{request}")).await?;
            self.known.insert(request);
            take(trace);
        }
        Ok(())
    }

    async fn listed(&self) -> Result<Vec<RequestId>, Exit> {
        let ListedRequests { requests } = self.peer.get("/api/requests").await?;
        Ok(requests.into_iter().map(|listed| listed.request).collect())
    }
}
