//! A model that the peer of this host fetches whole from others, where there is no hub.

use super::bars::Bars;
use crate::{
    cli::{
        ask::{PeerClient, unread},
        exit::{Exit, ExitKind},
        is_set, output,
    },
    config::Settings,
    hardware::memory::Size,
    hub::ModelName,
    weights::Pull,
};
use clap::ArgMatches;
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::sleep;
use tsnode_protocol::ModelId;

/// Where a peer is asked for it, and how far it is.
const PATH: &str = "/api/models/pulls";
/// How often it is looked how far it is.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Deserialize)]
struct PullList {
    pulls: Vec<NamedPeer>,
}

/// One of them. Names may be the same.
#[derive(Deserialize)]
struct NamedPeer {
    id: ModelId,
    #[serde(flatten)]
    pull: Pull,
}

/// What it says to have begun.
#[derive(Deserialize)]
struct BegunPull {
    id: ModelId,
}

/// Whether a peer runs here, and one of its swarm has a model of that name.
pub(super) async fn has(settings: &Settings, matches: &ArgMatches, name: &ModelName) -> bool {
    let Ok(peer) = PeerClient::find(settings, matches) else { return false };
    let name = name.to_string();
    peer.view().await.is_ok_and(|view| view.models.iter().any(|card| card.name == name))
}

/// Has it fetched, and waits for that.
pub(super) async fn pull(settings: &Settings, matches: &ArgMatches, name: &ModelName) -> Result<(), Exit> {
    let peer = PeerClient::find(settings, matches)?;
    let begun = peer.send(peer.post(PATH, &json!({ "model": name.to_string() }))).await?;
    let BegunPull { id } = begun.json().await.map_err(|e| Exit::new(ExitKind::Unreachable, unread(&e)))?;
    let Pull { far, path, .. } = wait(&peer, name, id).await?;
    let Some(path) = path else {
        let why = far.why.unwrap_or_else(|| "the peer does not say why".into());
        return Err(Exit::new(ExitKind::Unreachable, format!("{name} was not fetched from peers: {why}")));
    };
    let path = path.display().to_string();
    if is_set(matches, "json") {
        return output::print_json(
            &json!({ "model": name.to_string(), "path": path, "bytes": far.bytes, "fetched": far.fetched }),
        );
    }
    say!("{name}: {} ({} fetched from peers) in {path}", Size(far.bytes), Size(far.fetched));
    say!("serve it with: tsnode join --model {name}");
    Ok(())
}

/// Models that a peer was told to fetch whole since it started.
pub(super) async fn pulled(peer: &PeerClient) -> Result<BTreeSet<ModelId>, Exit> {
    let PullList { pulls } = peer.get(PATH).await?;
    Ok(pulls.into_iter().map(|named| named.id).collect())
}

/// Shows how far it is until that is over.
async fn wait(peer: &PeerClient, name: &ModelName, id: ModelId) -> Result<Pull, Exit> {
    let mut bars = Bars::new(name);
    loop {
        let PullList { pulls } = peer.get(PATH).await?;
        let gone = || Exit::new(ExitKind::Unreachable, "the peer has started anew meanwhile: ask again");
        let NamedPeer { pull, .. } = pulls.into_iter().find(|named| named.id == id).ok_or_else(gone)?;
        bars.stand(pull.far.done, pull.far.bytes);
        if pull.is_over {
            return Ok(pull);
        }
        sleep(LOOK).await;
    }
}
