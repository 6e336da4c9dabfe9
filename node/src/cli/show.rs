//! Verbs that print what a peer knows: `peers`, `models`, `invite`, `config show`, `version`.

use super::{
    ask::look,
    is_set, links,
    output::{print_json, table},
    text_layout::{fitted, harmless},
};
use crate::{
    cli::exit::Exit,
    config::Settings,
    view::{PeerView, SwarmView},
};
use clap::ArgMatches;
use serde_json::json;
use std::collections::BTreeMap;
use tsnode_protocol::{Device, EncoderTask, Group, LayerProfile, ModelCard, ModelShape, Phase, Stage};

pub(super) async fn peers(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let view = look(settings, matches).await?;
    if is_set(matches, "links") {
        return links::show(&view, matches);
    }
    if is_set(matches, "json") {
        return print_json(&json!({ "peers": view.peers, "cut_off": view.cut_off }));
    }
    let verbose = is_set(matches, "verbose");
    let titles = ["PEER", "LENDS", "DOES", "RUNNING", "KV USED", "HEARD"];
    let figures = ["GFLOP/S", "OFF BY", "ID"];
    let titles = titles.iter().chain(figures.iter().filter(|_| verbose));
    let mut rows = vec![titles.map(|t| (*t).to_owned()).collect()];
    rows.extend(view.peers.iter().map(|peer| {
        let figures = if verbose { figures_of(peer).to_vec() } else { vec![] };
        [columns_of(&view, peer).to_vec(), figures].concat()
    }));
    table(&rows)?;
    for cut in &view.cut_off {
        let who =
            if cut.name.is_empty() { cut.id.to_string() } else { format!("{} (…{})", cut.name, cut.id.short()) };
        say!("cut off: {who} {} ({} offences), for {:.0} s more", cut.reason, cut.offences, cut.seconds_left);
    }
    Ok(())
}

/// What people look at, in 80 columns.
fn columns_of(view: &SwarmView, peer: &PeerView) -> [String; 6] {
    let lost = |d: &Device| if d.memory_bytes == 0 { " (lost)" } else { "" };
    let devices: Vec<String> = peer.advert.devices.iter().map(|d| format!("{}{}", d.name, lost(d))).collect();
    let lends = match devices.is_empty() {
        true if peer.advert.models.is_empty() => "gateway only".into(),
        true => "nothing now".into(),
        false => devices.join(", "),
    };
    let groups = view.plan.as_ref().map_or(&[][..], |plan| &plan.groups);
    let part = |group: &Group| {
        let stages = group.stages.iter().filter(|s| s.peer == peer.id);
        let layers = |s: &Stage| format!(" {}–{}", s.layers.start + 1, s.layers.end);
        stages
            .map(|s| format!("{}{}", in_short(group.phase), if group.stages.len() > 1 { layers(s) } else { "".into() }))
            .collect::<Vec<_>>()
    };
    let parts: Vec<String> = groups.iter().flat_map(part).collect();
    let load = peer.load;
    let used = 100.0 * f64::from(load.total_pages.saturating_sub(load.free_pages)) / f64::from(load.total_pages.max(1));
    [
        fitted(&format!("{}{}", harmless(&peer.advert.name), if peer.id == view.me { " (this)" } else { "" }), 18),
        fitted(&harmless(&lends), 18),
        fitted(&if parts.is_empty() { "-".into() } else { parts.join(", ") }, 18),
        load.running.to_string(),
        if load.total_pages == 0 { "-".into() } else { format!("{used:.0} %") },
        if peer.id == view.me { "-".into() } else { format!("{:.0} s ago", peer.silent_for) },
    ]
}

/// What a group does, in a column.
fn in_short(phase: Phase) -> &'static str {
    match phase {
        Phase::Prefill => "prompts",
        Phase::Decode => "answers",
        Phase::Mixed => "both",
    }
}

/// What engineers look at.
fn figures_of(peer: &PeerView) -> [String; 3] {
    let flops = peer.advert.devices.iter().fold(0.0, |sum, d| sum + d.flops.0);
    let off_by = off_by(peer.advert.devices.iter().flat_map(|d| &d.serves).find_map(|served| served.profile));
    [format!("{:.0}", flops / 1e9), off_by, peer.id.to_string()]
}

/// Mean errors of the times that plans count with: prompts', and answers'.
fn off_by(profile: Option<LayerProfile>) -> String {
    let percent = |part: f64| format!("{:.0} %", part * 100.0);
    profile.map_or("-".into(), |p| format!("{}, {}", percent(p.prompts.mean), percent(p.steps.mean)))
}

pub(super) async fn models(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let view = look(settings, matches).await?;
    let origin = |card: &ModelCard| view.peers.iter().find_map(|peer| peer.advert.origin(card.id));
    if is_set(matches, "json") {
        let shown = |card: &ModelCard| {
            let mut shown = json!(card);
            shown["source"] = json!(origin(card).map(|origin| &origin.source));
            shown["licence"] = json!(origin(card).and_then(|origin| origin.licence.as_ref()));
            let mut origins = view.peers.iter().filter_map(|peer| peer.advert.origin(card.id));
            shown["gated"] = json!(origins.any(|origin| origin.is_gated));
            shown
        };
        return print_json(&view.models.iter().map(shown).collect::<Vec<_>>());
    }
    let titles = ["MODEL", "ID", "LAYERS", "CONTEXT", "WEIGHTS", "PEERS", "LOADED", "LICENCE", "SOURCE"];
    let mut rows = vec![titles.map(String::from).to_vec()];
    for card in &view.models {
        let holders = view.peers.iter().filter(|p| p.advert.models.iter().any(|m| m.id == card.id)).count();
        rows.push(vec![
            card.name.clone(),
            card.id.to_string(),
            card.shape.layers.to_string(),
            card.shape.context.to_string(),
            weights(&card.shape),
            holders.to_string(),
            if view.loaded.contains(&card.id) { "yes" } else { "no" }.into(),
            origin(card).and_then(|origin| origin.licence.clone()).unwrap_or_else(|| "-".into()),
            origin(card).map_or_else(|| "-".into(), |origin| origin.source.clone()),
        ]);
    }
    table(&rows)?;
    encoders(&view)
}

/// All of them, and, of a mixture of experts, what a token reads of them.
fn weights(shape: &ModelShape) -> String {
    let megabytes = |bytes: f64| format!("{:.1} MB", bytes / 1e6);
    let all = megabytes(shape.stage_bytes(shape.all_layers()) as f64);
    match shape.experts {
        None => all,
        Some(_) => {
            let layers = f64::from(shape.layers) * shape.active_layer_bytes(1.0);
            format!("{all}, {} a token", megabytes(layers + shape.head_bytes as f64))
        }
    }
}

/// Those that make vectors and scores, where there are any.
fn encoders(view: &SwarmView) -> Result<(), Exit> {
    if view.encoders.is_empty() {
        return Ok(());
    }
    let mut rows = vec![["ENCODER", "ID", "MAKES", "CONTEXT", "PEERS"].map(String::from).to_vec()];
    for card in &view.encoders {
        let lenders = view.peers.iter().filter(|p| p.advert.encoders.iter().any(|other| other.id == card.id)).count();
        let makes = match card.task {
            EncoderTask::Embed => format!("vectors of {}", card.dimensions),
            EncoderTask::Score => "scores".into(),
        };
        rows.push(vec![card.name.clone(), card.id.to_string(), makes, card.context.to_string(), lenders.to_string()]);
    }
    say!("");
    table(&rows)
}

pub(super) fn config(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let deepest = matches.subcommand().map_or(matches, |(_, m)| m);
    let shown = |name: &str, value: &str| {
        let secret = matches!(name, "api-key" | "invite") && !value.is_empty();
        if secret { "(set)".to_owned() } else { value.to_owned() }
    };
    if is_set(deepest, "json") {
        let all: BTreeMap<&str, _> = settings
            .iter()
            .map(|(name, value, origin)| (name, json!({ "value": shown(name, value), "origin": origin.to_string() })))
            .collect();
        return print_json(&all);
    }
    let mut rows = vec![["SETTING", "VALUE", "ORIGIN"].map(String::from).to_vec()];
    rows.extend(settings.iter().map(|(name, value, origin)| vec![name.into(), shown(name, value), origin.to_string()]));
    for (n, model) in settings.model_tables().enumerate() {
        let origin = |line| format!("{}:{line}", model.path.display());
        let row = |(name, (value, line)): (&&str, &(String, usize))| {
            vec![format!("models {}: {name}", n + 1), value.clone(), origin(*line)]
        };
        rows.extend(model.values.iter().map(row));
    }
    table(&rows)
}

pub(super) fn version(matches: &ArgMatches) -> Result<(), Exit> {
    let version = env!("CARGO_PKG_VERSION");
    if is_set(matches, "json") {
        return print_json(&json!({ "version": version, "protocol": tsnode_protocol::codec::VERSION }));
    }
    say!("tsnode {version}");
    Ok(())
}
