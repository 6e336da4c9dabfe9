//! How verbs print: JSON, and tables as wide as what is in them.

use super::text_layout::{padded, width};
use crate::{
    cli::exit::{Exit, ExitKind},
    view::SwarmView,
};
use std::collections::BTreeMap;
use tsnode_protocol::PeerId;

pub(super) fn names(view: &SwarmView) -> BTreeMap<PeerId, String> {
    view.peers.iter().map(|p| (p.id, p.advert.name.clone())).collect()
}

pub(super) fn name(names: &BTreeMap<PeerId, String>, peer: PeerId) -> String {
    match names.get(&peer) {
        Some(name) if !name.is_empty() => format!("{name} (…{})", peer.short()),
        _ => format!("…{}", peer.short()),
    }
}

pub(super) fn print_json<T: serde::Serialize>(value: &T) -> Result<(), Exit> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Exit::new(ExitKind::Other, e.to_string()))?;
    say!("{text}");
    Ok(())
}

/// Prints columns as wide as their widest entry.
pub(super) fn table(rows: &[Vec<String>]) -> Result<(), Exit> {
    let columns = rows.first().map_or(0, Vec::len);
    let widest = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|t| width(t)).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(widest).collect();
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(text, w)| padded(text, *w)).collect();
        say!("{}", cells.join("  ").trim_end());
    }
    Ok(())
}
