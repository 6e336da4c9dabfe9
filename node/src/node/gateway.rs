//! The gateway of a peer, put together: what it works with, and what it tells.

use super::context::NodeContext;
use crate::{
    data_plane::{links::Links, offences::OffenceReporter, roster::Roster},
    gateway::{Drive, Submission},
    response_log::ResponseLog,
    worker::WorkerHandle,
};
use std::collections::BTreeMap;
use tokio::sync::{mpsc, watch};
use tsnode_coordinator::gateway::{Gateway, GatewayConfig, View};
use tsnode_protocol::{ModelId, SeenSpeed, Traffic};

/// What a gateway works with.
pub(super) struct Ways<'w> {
    pub worker: &'w WorkerHandle,
    pub links: &'w Links,
    pub roster: &'w Roster,
    pub response_log: &'w ResponseLog,
    pub offence_reporter: &'w OffenceReporter,
}

/// What a gateway tells the peer it is of: how many requests are open, what is asked for, and whose claims of speed are in doubt.
pub(super) struct GatewayWords {
    pub open: watch::Sender<usize>,
    pub traffic: watch::Sender<Vec<Traffic>>,
    pub seen_speeds: watch::Sender<Vec<SeenSpeed>>,
}

impl NodeContext {
    pub fn drive(
        &self,
        ways: &Ways<'_>,
        elements: BTreeMap<ModelId, u64>,
        (view, submissions): (watch::Receiver<View>, mpsc::Receiver<Submission>),
        GatewayWords { open, traffic, seen_speeds }: GatewayWords,
    ) -> Drive {
        let settings = GatewayConfig {
            kv: self.config.kv_codec,
            fixed: self.config.fixed_kv,
            pace: self.config.kv_pace,
            split: self.config.split,
            element_bytes: self.config.kv_dtype.bytes() as u64,
            model_element_bytes: elements,
            ..GatewayConfig::default()
        };
        Drive {
            machine: Gateway::new(settings),
            me: self.identity.peer_id(),
            worker: ways.worker.clone(),
            links: ways.links.clone(),
            roster: ways.roster.clone(),
            offence_reporter: ways.offence_reporter.clone(),
            spot_checks: self.config.spot_checks,
            view,
            submissions,
            response_log: ways.response_log.clone(),
            history: self.history.clone(),
            open,
            traffic,
            seen_speeds,
            tasks: self.tasks.clone(),
            started: self.started,
        }
    }
}
