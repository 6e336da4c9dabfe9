//! `tsnode leave`, `pause`, `resume`: what the owner of a machine wants of its peer.

use super::{
    ask::{PeerClient, unread},
    is_set,
    output::print_json,
};
use crate::{
    cli::exit::{Exit, ExitKind},
    config::Settings,
};
use clap::ArgMatches;
use indicatif::ProgressBar;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long a peer may take to leave: it waits that long for what runs there, and a little for its last bytes.
const LEAVING: Duration = Duration::from_secs(40);
const LOOK: Duration = Duration::from_millis(200);

pub(super) async fn ask(verb: &str, settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let peer = PeerClient::find(settings, matches)?;
    let answer = peer.send(peer.post(&format!("/api/{verb}"), &json!({}))).await?;
    let answer: Value = answer.json().await.map_err(|e| Exit::new(ExitKind::Unreachable, unread(&e)))?;
    if verb == "leave" && !is_set(matches, "no-wait") {
        gone(&peer).await?;
        return say_done(matches, &json!({ "done": "left" }));
    }
    say_done(matches, &answer)
}

fn say_done(matches: &ArgMatches, answer: &Value) -> Result<(), Exit> {
    if is_set(matches, "json") {
        return print_json(answer);
    }
    say!("{}", answer["done"].as_str().unwrap_or_default());
    Ok(())
}

/// Waits until nobody answers there any more.
async fn gone(peer: &PeerClient) -> Result<(), Exit> {
    let (bar, until) = (ProgressBar::new_spinner(), Instant::now() + LEAVING);
    bar.enable_steady_tick(Duration::from_millis(120));
    while let Ok(view) = peer.view().await {
        let own = view.peers.iter().find(|p| p.id == view.me).map(|p| p.load).unwrap_or_default();
        bar.set_message(format!("leaving: {} running, {} waiting", own.running, own.waiting));
        if Instant::now() > until {
            let why = format!("the peer still answers after {} s; end it with a signal", LEAVING.as_secs());
            return Err(Exit::new(ExitKind::Other, why));
        }
        sleep(LOOK).await;
    }
    bar.finish_and_clear();
    Ok(())
}
