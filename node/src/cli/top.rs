//! `tsnode top`: the swarm as a peer sees it, on one screen, as it changes.
//!
//! `snapshot` is what is known, and `feed` keeps it so; `panes` and `machine` make lists and lines of it, `screen` is what keys have
//! chosen, `frame` draws both, and `terminal` is where that is seen.

mod feed;
mod frame;
mod header;
mod panes;
mod screen;
mod snapshot;
mod table;
mod terminal;
#[cfg(test)]
mod tests;

use self::{
    frame::{FrameLook, Theme},
    screen::Screen,
    snapshot::{Feed, Snapshot},
};
use super::{
    ask::PeerClient, asking, decimal, is_set, join::status_line, output::print_json, switch, text_layout::COLUMNS,
};
use crate::{cli::exit::Exit, config::Settings};
use clap::{Arg, ArgMatches, Command};
use ratatui::{buffer::Buffer, layout::Rect};
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Lines of a frame that is printed: what is in no more of them is in the other verbs.
const LINES: u16 = 400;

pub(super) fn command() -> Command {
    asking(
        "top",
        "The swarm on one screen, as it changes; ? says which keys there are",
        "tsnode top\n  tsnode top --once",
    )
    .arg(switch("once", "Print one frame as text and end, as where standard output is no terminal"))
    .arg(
        Arg::new("interval")
            .long("interval")
            .value_name("SECONDS")
            .value_parser(decimal(0.2..=3600.0))
            .default_value("1")
            .help("Seconds between two frames, and between two questions where the peer has no place for a listener"),
    )
}

pub(super) async fn run(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let peer = PeerClient::find(settings, matches)?;
    if is_set(matches, "json") {
        let (swarm, requests) = (peer.view().await?, peer.get::<Value>("/api/requests").await?);
        return print_json(
            &json!({ "swarm": swarm, "requests": requests["requests"], "running": requests["running"] }),
        );
    }
    // What fails at once is said as by any other verb, before there is a screen.
    let (view, requests) = feed::ask(&peer).await?;
    let snapshot = Snapshot::new(view, requests, Feed::Once);
    if is_set(matches, "once") || !has_screen() {
        for line in printed(&snapshot) {
            say!("{line}");
        }
        return Ok(());
    }
    let every = Duration::from_secs_f64(matches.get_one::<f64>("interval").copied().unwrap_or(1.0));
    let (sender, receiver) = watch::channel(snapshot);
    let follows = crate::tasks::spawn("top's feed", feed::follow(peer, every, sender));
    let shown = terminal::show(receiver, every, Theme { colours: status_line::is_coloured() }).await;
    follows.abort();
    shown
}

/// Whether standard output is a terminal that can be drawn on.
fn has_screen() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}

/// A frame with all rows, as text.
fn printed(snapshot: &Snapshot) -> Vec<String> {
    let columns = crossterm::terminal::size().ok().filter(|_| has_screen());
    let columns = columns.map_or(COLUMNS as u16, |(columns, _)| columns.max(COLUMNS as u16));
    let area = Rect::new(0, 0, columns, frame::lines(snapshot).min(LINES));
    let mut buffer = Buffer::empty(area);
    let screen = Screen::default();
    let look = FrameLook { screen: &screen, theme: Theme { colours: false }, now: Instant::now(), has_keys: false };
    frame::draw(&mut buffer, area, snapshot, look);
    frame::text(&buffer)
}
