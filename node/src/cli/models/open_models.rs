//! What the peer of a data folder has open: nobody takes its files away from under it.

use super::peers;
use crate::{
    cli::{
        ask::PeerClient,
        exit::{Exit, ExitKind},
        text_layout::harmless,
    },
    config::Settings,
    weights::KeptModel,
};
use std::collections::BTreeSet;
use tsnode_protocol::ModelId;

/// Refuses where the peer that runs on the data folder serves one of these, fetches it, or has had it fetched since it started; and where
/// it does not say what it serves.
pub(super) async fn refuse_open(settings: &Settings, models: &[KeptModel]) -> Result<(), Exit> {
    let peer = PeerClient::own(settings)?;
    let unsaid = |error: Exit| {
        let message = format!("a peer runs on this data folder and does not say what it serves: {}", error.message);
        Exit::new(ExitKind::DataDir, message)
    };
    let view = peer.view().await.map_err(unsaid)?;
    // It answers before it has opened what it is to serve.
    let starting = || unsaid(Exit::new(ExitKind::Other, "it starts; ask again when it is up"));
    let me = view.peers.iter().find(|other| other.id == view.me).ok_or_else(starting)?;
    let lent: BTreeSet<ModelId> = me.advert.models.iter().map(|card| card.id).collect();
    let pulled = peers::pulled(&peer).await.map_err(unsaid)?;
    let is_open = |model: &&KeptModel| lent.contains(&model.id) || pulled.contains(&model.id) || model.is_open();
    match models.iter().find(is_open) {
        Some(model) => Err(Exit::new(
            ExitKind::DataDir,
            format!(
                "{}: the peer of this data folder has it open; stop that first, as with Ctrl-C where it runs",
                harmless(&model.name)
            ),
        )),
        None => Ok(()),
    }
}
