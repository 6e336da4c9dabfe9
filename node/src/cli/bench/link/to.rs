//! `tsnode bench link --to PEER`: what a real link of a running peer carries.

use crate::{
    cli::{
        ask,
        exit::{Exit, ExitKind},
        is_set,
        output::print_json,
    },
    config::Settings,
    data_plane::links::Transfer,
    view::SwarmView,
};
use clap::ArgMatches;
use serde_json::json;
use tsnode_protocol::PeerId;

const MIB: u64 = 1 << 20;

pub(super) async fn run(settings: &Settings, matches: &ArgMatches, to: &str, mib: u64) -> Result<(), Exit> {
    let asked = ask::PeerClient::find(settings, matches)?;
    let view = asked.view().await?;
    let to = find(&view, to)?;
    let wish = json!({ "to": to, "bytes": mib * MIB });
    let answer = asked.send(asked.post("/api/links/measure", &wish)).await?;
    let found: Transfer = answer.json().await.map_err(|e| Exit::new(ExitKind::Unreachable, ask::unread(&e)))?;
    if is_set(matches, "json") {
        return print_json(&found);
    }
    say!("{} MiB to {to}", found.bytes / MIB);
    say!("path       {}", found.path);
    say!("latency    {:.2} ms", found.latency.0 * 1e3);
    say!("bandwidth  {:.1} Mbit/s", found.bandwidth.0 * 8e-6);
    let cpu = found.cpu_s_per_gib.map_or("not told".into(), |cpu| format!("{cpu:.2}"));
    say!("CPU-s/GiB  {cpu} (all that the peer asked did meanwhile)");
    Ok(())
}

/// The peer of that id or name.
fn find(view: &SwarmView, wanted: &str) -> Result<PeerId, Exit> {
    let named: Vec<PeerId> =
        view.peers.iter().filter(|p| p.advert.name == wanted || p.id.to_string() == wanted).map(|p| p.id).collect();
    match named[..] {
        [peer] => Ok(peer),
        [] => Err(Exit::new(ExitKind::Usage, format!("no peer is called {wanted}; see: tsnode peers"))),
        _ => Err(Exit::new(ExitKind::Usage, format!("several peers are called {wanted}: say its id"))),
    }
}
