//! The worker of a peer, started with the models and devices that are lent.

use super::{context::NodeContext, resources::Resources, setup::NodeError};
use crate::{
    data_plane::{
        library::Shelf,
        links::{Incoming, Links},
        roster::Roster,
    },
    embedding::Lenders,
    faults::Faults,
    response_log::ResponseLog,
    weights::{Giver, Stocks},
    worker::{WorkerHandle, WorkerSetup},
};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::watch;
use tsnode_coordinator::batcher::BatcherConfig;
use tsnode_protocol::PeerId;

impl NodeContext {
    pub fn worker(
        &self,
        (resources, shelf, lenders, giver, stocks): (Resources, Shelf, Lenders, Giver, Stocks),
        incoming: Incoming,
        (links, roster, response_log): (&Links, &Roster, &ResponseLog),
        (moving, going): (watch::Receiver<bool>, watch::Receiver<Arc<BTreeSet<PeerId>>>),
        faults: Option<watch::Receiver<Faults>>,
    ) -> Result<WorkerHandle, NodeError> {
        let (models, holdings) = resources.start(&self.config, faults.as_ref())?;
        giver.hold(holdings);
        let setup = WorkerSetup {
            me: self.identity.peer_id(),
            models,
            links: links.clone(),
            incoming,
            roster: roster.clone(),
            shelf,
            giver,
            stocks,
            lenders,
            batcher: BatcherConfig { speculation: self.config.speculation, ..BatcherConfig::default() },
            threads: self.config.threads,
            moving,
            going,
            response_log: response_log.clone(),
            history: self.history.clone(),
            stop: self.ends.clone(),
        };
        Ok(WorkerHandle::start(setup, &self.tasks))
    }
}
