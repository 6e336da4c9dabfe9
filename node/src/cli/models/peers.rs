//! A model that the peer of this host fetches whole from others, where there is no hub.

use crate::{
    cli::{
        ask::Peer,
        exit::{Exit, Kind},
        is_set, output,
    },
    config::Settings,
    hardware::memory::Size,
    hub::ModelName,
    weights::Pull,
};
use clap::ArgMatches;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;
use serde_json::json;
use std::time::Duration;
use tokio::time::sleep;

/// How often it is looked how far it is.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Deserialize)]
struct Pulls {
    pulls: Vec<Pull>,
}

/// Whether a peer runs here, and one of its swarm has a model of that name.
pub(super) async fn has(settings: &Settings, matches: &ArgMatches, name: &ModelName) -> bool {
    let Ok(peer) = Peer::find(settings, matches) else { return false };
    let name = name.to_string();
    peer.view().await.is_ok_and(|view| view.models.iter().any(|card| card.name == name))
}

/// Has it fetched, and waits for that.
pub(super) async fn pull(settings: &Settings, matches: &ArgMatches, name: &ModelName) -> Result<(), Exit> {
    let (peer, name) = (Peer::find(settings, matches)?, name.to_string());
    peer.send(peer.post("/api/models/pulls", &json!({ "model": name }))).await?;
    let template = "{prefix} {bar:30} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left";
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(0).with_style(style).with_prefix(name.clone());
    let pull = loop {
        let Pulls { pulls } = peer.get("/api/models/pulls").await?;
        let gone = || Exit::new(Kind::Unreachable, "the peer has started anew meanwhile: ask again");
        let pull = pulls.into_iter().find(|pull| pull.far.model == name).ok_or_else(gone)?;
        bar.set_length(pull.far.bytes);
        bar.set_position(pull.far.done);
        if pull.is_over {
            break pull;
        }
        sleep(LOOK).await;
    };
    bar.finish_and_clear();
    let Some(path) = pull.path else {
        return Err(Exit::new(Kind::Unreachable, pull.far.why.unwrap_or_else(|| "it was not fetched".into())));
    };
    let path = path.display().to_string();
    if is_set(matches, "json") {
        return output::print_json(
            &json!({ "model": name, "path": path, "bytes": pull.far.bytes, "fetched": pull.far.fetched }),
        );
    }
    say!("{name}: {} ({} fetched from peers) in {path}", Size(pull.far.bytes), Size(pull.far.fetched));
    say!("serve it with: tsnode join --model {name}, in that swarm");
    Ok(())
}
