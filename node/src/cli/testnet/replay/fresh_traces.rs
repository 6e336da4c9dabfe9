//! What the gateway that is asked says of requests that have ended: the last ones, which is all that it remembers.

use crate::{
    cli::{ask::PeerClient, bench::serve::client::RequestOutcome, exit::Exit},
    gateway::Trace,
};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::time::Duration;
use tsnode_protocol::RequestId;

/// A gateway may write down that a request has ended a moment after its client has the end: how often it is asked, and between tries.
const TRIES: usize = 10;
const AGAIN: Duration = Duration::from_millis(50);

/// Of those that have just been answered, in that order; one that it knows nothing of is left out.
pub(super) async fn of_answers(peer: &PeerClient, outcomes: &[RequestOutcome]) -> Vec<Trace> {
    let mut traces = Vec::new();
    for answer in outcomes.iter().filter_map(|outcome| outcome.answer.as_ref().ok()) {
        let Some(request) = answer.request.as_ref().and_then(|id| id.parse::<RequestId>().ok()) else { continue };
        for _ in 0..TRIES {
            if let Ok(trace) = of(peer, request).await {
                traces.push(trace);
                break;
            }
            tokio::time::sleep(AGAIN).await;
        }
    }
    traces
}

async fn of(peer: &PeerClient, request: RequestId) -> Result<Trace, Exit> {
    peer.get(&format!("/api/requests/{request}")).await
}

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

    /// Those that were not asked for before. What was taken stays so where another one fails.
    pub async fn each(&mut self, mut take: impl FnMut(Trace)) -> Result<(), Exit> {
        let listed = self.listed().await?;
        self.known.retain(|request| listed.contains(request));
        // The oldest is the first to be forgotten.
        for request in listed.into_iter().rev() {
            if self.known.contains(&request) {
                continue;
            }
            let trace = of(self.peer, request).await?;
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
