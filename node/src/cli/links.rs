//! `tsnode peers --links`: what links carry, as a table and as a picture.

use super::output::{name, names, print_json, table};
use crate::{
    cli::exit::{Exit, ExitKind},
    view::SwarmView,
};
use clap::ArgMatches;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use tsnode_protocol::{Link, PathKind, PeerId};
use tsnode_simulator::diagram::heat::{Heat, HeatCell};

/// A link as it is shown.
#[derive(Serialize)]
struct LinkRow {
    from: PeerId,
    #[serde(flatten)]
    link: Link,
    /// Since its bandwidth was last shown (seconds); known of links from the peer that is asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    age: Option<f64>,
}

/// All links that the peers of a view state.
pub(super) fn show(view: &SwarmView, matches: &ArgMatches) -> Result<(), Exit> {
    if let Some(path) = matches.get_one::<PathBuf>("picture") {
        let failed = |e| Exit::new(ExitKind::Other, format!("{}: {e}", path.display()));
        return std::fs::write(path, picture(view)).map_err(failed);
    }
    let rows = rows(view);
    if super::is_set(matches, "json") {
        return print_json(&rows);
    }
    let names = names(view);
    let mut lines = vec![["FROM", "TO", "LATENCY", "BANDWIDTH", "AGE", "PATH"].map(String::from).to_vec()];
    lines.extend(rows.iter().map(|row| {
        vec![
            name(&names, row.from),
            name(&names, row.link.to),
            format!("{:.2} ms", row.link.latency.0 * 1e3),
            format!("{:.0} Mbit/s", row.link.bandwidth.0 * 8e-6),
            row.age.map_or("not told".into(), |age| format!("{age:.0} s")),
            path(&names, row.link.path),
        ]
    }));
    table(&lines)
}

/// How a link goes, with its relay's name.
fn path(names: &BTreeMap<PeerId, String>, path: PathKind) -> String {
    match path {
        PathKind::Direct => "direct".into(),
        PathKind::Relayed { via } => format!("relayed via {}", name(names, via)),
    }
}

fn rows(view: &SwarmView) -> Vec<LinkRow> {
    let stated = view.peers.iter().flat_map(|peer| peer.advert.links.iter().map(|link| (peer.id, *link)));
    let row = |(from, link): (PeerId, Link)| {
        let age = (from == view.me).then(|| view.link_ages.get(&link.to).copied()).flatten();
        LinkRow { from, link, age }
    };
    stated.map(row).collect()
}

/// Every peer by every other.
fn picture(view: &SwarmView) -> String {
    let peers: Vec<PeerId> = view.peers.iter().map(|p| p.id).collect();
    let all = names(view);
    let labels: Vec<String> = peers.iter().map(|p| name(&all, *p)).collect();
    let place = |peer: PeerId| peers.iter().position(|p| *p == peer);
    let cell = |row: &LinkRow| {
        let (latency, mbit) = (row.link.latency.0 * 1e3, row.link.bandwidth.0 * 8e-6);
        let said = format!("{latency:.2} ms, {mbit:.0} Mbit/s, {}", path(&all, row.link.path));
        let shown = if mbit < 9.95 { format!("{mbit:.1}") } else { format!("{mbit:.0}") };
        Some(HeatCell { row: place(row.from)?, column: place(row.link.to)?, value: mbit, shown, said })
    };
    let cells: Vec<HeatCell> = rows(view).iter().filter_map(cell).collect();
    Heat { title: "Bandwidth from row to column (Mbit/s)", labels: &labels, cells: &cells }.svg()
}
