//! The panes of `tsnode top`: what each lists of a snapshot.

use super::{
    snapshot::{EndedView, RunningRequest, Snapshot},
    table::{ColumnFit, PaneTable, RowMood, Sort, TableCell, TableColumn, TableRow},
};
use crate::{
    cli::{
        output::names,
        rates::{groups_of, load, rate, sum, tokens},
    },
    hardware::memory::Size,
    view::{PeerView, Readiness, SwarmView},
};
use std::collections::BTreeMap;
use tsnode_protocol::{Group, PathKind, PeerId, Phase, Stage};

/// Lists, in their order on the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pane {
    Peers,
    Groups,
    Requests,
    Links,
}

impl Pane {
    pub const ALL: [Self; 4] = [Self::Peers, Self::Groups, Self::Requests, Self::Links];

    /// What it is called.
    pub fn title(self) -> &'static str {
        match self {
            Self::Peers => "PEERS",
            Self::Groups => "GROUPS",
            Self::Requests => "REQUESTS",
            Self::Links => "LINKS",
        }
    }

    /// What is said where there is nothing to list.
    pub fn empty(self) -> &'static str {
        match self {
            Self::Peers => "nobody is known, this peer included: it has just started",
            Self::Groups => "no plan is adopted yet: tsnode status says what is waited for",
            Self::Requests => "none came to this peer since it started",
            Self::Links => "none is measured yet: it takes another peer, and a few seconds",
        }
    }

    /// How it is sorted by itself; requests are as they came.
    pub fn usual(self) -> Option<Sort> {
        match self {
            Self::Peers => Some(Sort { column: 0, descends: false }),
            Self::Groups | Self::Requests => None,
            Self::Links => Some(Sort { column: 2, descends: true }),
        }
    }

    /// What it lists of a snapshot, unsorted.
    pub fn table(self, snapshot: &Snapshot) -> PaneTable {
        match self {
            Self::Peers => peers(snapshot),
            Self::Groups => groups(&snapshot.view),
            Self::Requests => requests(snapshot),
            Self::Links => links(&snapshot.view),
        }
    }
}

fn columns<const N: usize>(columns: [(&'static str, ColumnFit); N]) -> Vec<TableColumn> {
    columns.map(|(title, fit)| TableColumn { title: title.into(), fit }).to_vec()
}

/// Who is there, what each lends and does, and how busy it is.
fn peers(snapshot: &Snapshot) -> PaneTable {
    let view = &snapshot.view;
    let columns = columns([
        ("NAME", ColumnFit::Text),
        ("STATE", ColumnFit::Words),
        ("PHASE", ColumnFit::Words),
        ("DEVICES", ColumnFit::Text),
        ("RUN", ColumnFit::Number),
        ("WAIT", ColumnFit::Number),
        ("KV %", ColumnFit::Number),
        ("TOK/S", ColumnFit::Number),
        ("HEARD", ColumnFit::Spare),
    ]);
    let names = names(view);
    let there = view.peers.iter().map(|peer| peer_row(view, &names, peer));
    let gone = snapshot.gone.iter().map(|(peer, since)| {
        gone_row(peer, snapshot.heard.saturating_duration_since(*since).as_secs_f64() + peer.silent_for)
    });
    PaneTable { columns, rows: there.chain(gone).collect() }
}

/// One that was given up: its last word, and nothing that it does.
fn gone_row(peer: &PeerView, silent: f64) -> TableRow {
    let name = Some(&peer.advert.name).filter(|name| !name.is_empty());
    let nothing = || TableCell::known(None, |_: f64| String::new());
    TableRow {
        cells: vec![
            TableCell::text(name.map_or_else(|| format!("…{}", peer.id.short()), Clone::clone)),
            TableCell::text("gone"),
            TableCell::text("-"),
            TableCell::text(devices(peer)),
            nothing(),
            nothing(),
            nothing(),
            nothing(),
            TableCell::number(silent, format!("{silent:.0} s ago")),
        ],
        mood: RowMood::Bad,
    }
}

fn peer_row(view: &SwarmView, names: &BTreeMap<PeerId, String>, peer: &PeerView) -> TableRow {
    let groups: Vec<&Group> = groups_of(view, peer.id).collect();
    let (state, mood) = state(view, peer, &groups);
    let load = peer.load;
    let used = f64::from(load.total_pages.saturating_sub(load.free_pages)) * 100.0 / f64::from(load.total_pages.max(1));
    let rate = sum(groups.iter().filter_map(|group| rate(view, group)));
    let silent = if peer.id == view.me { 0.0 } else { peer.silent_for };
    TableRow {
        cells: vec![
            TableCell::text(format!("{}{}", called(names, peer.id), if peer.id == view.me { " (this)" } else { "" })),
            TableCell::text(state),
            TableCell::text(phases(&groups)),
            TableCell::text(devices(peer)),
            TableCell::number(load.running.into(), load.running.to_string()),
            TableCell::number(load.waiting.into(), load.waiting.to_string()),
            TableCell::known((load.total_pages > 0).then_some(used), |used| format!("{used:.0}")),
            TableCell::known(rate, tokens),
            TableCell::number(silent, if peer.id == view.me { "-".into() } else { format!("{silent:.0} s ago") }),
        ],
        mood,
    }
}

/// In a word, what a peer is at, as this one sees it.
fn state(view: &SwarmView, peer: &PeerView, groups: &[&Group]) -> (&'static str, RowMood) {
    let is_up = |group: &&Group| view.ready_groups.contains(&group.id);
    let is_lost = !peer.advert.devices.is_empty() && peer.advert.devices.iter().all(|d| d.memory_bytes == 0);
    match () {
        () if peer.leaving => ("leaves", RowMood::Waiting),
        () if peer.silent => ("silent", RowMood::Bad),
        () if peer.id == view.me && view.readiness != Readiness::Ready => {
            (own_state(&view.readiness), RowMood::Waiting)
        }
        () if is_lost => ("lost", RowMood::Bad),
        () if !groups.is_empty() && groups.iter().all(is_up) => ("serves", RowMood::Good),
        () if !groups.is_empty() => ("loads", RowMood::Waiting),
        () if peer.advert.devices.is_empty() && peer.advert.models.is_empty() => ("gateway", RowMood::Good),
        // Paused, outside its hours, or with models that are being lent anew.
        () if peer.advert.devices.is_empty() => ("not lent", RowMood::Quiet),
        () => ("spare", RowMood::Quiet),
    }
}

fn own_state(readiness: &Readiness) -> &'static str {
    match readiness {
        Readiness::Probing => "probes",
        Readiness::Joining => "looks",
        Readiness::Planning => "waits",
        Readiness::Loading => "loads",
        Readiness::Ready => "ready",
        Readiness::Leaving => "leaves",
    }
}

fn devices(peer: &PeerView) -> String {
    let lost = |bytes: u64| if bytes == 0 { "lost".into() } else { Size(bytes).to_string() };
    let devices: Vec<String> =
        peer.advert.devices.iter().map(|d| format!("{} {}", d.name, lost(d.memory_bytes))).collect();
    if devices.is_empty() { "-".into() } else { devices.join(", ") }
}

fn phases(groups: &[&Group]) -> String {
    let has = |phase| groups.iter().any(|group| group.phase == phase);
    let found = [Phase::Prefill, Phase::Decode, Phase::Mixed].into_iter().filter(|phase| has(*phase));
    let words: Vec<String> = found.map(|phase| phase.to_string()).collect();
    if words.is_empty() { "-".into() } else { words.join("+") }
}

/// Groups as chains of stages, the leader first.
fn groups(view: &SwarmView) -> PaneTable {
    let columns = columns([
        ("MODEL", ColumnFit::Text),
        ("PHASE", ColumnFit::Words),
        ("STATE", ColumnFit::Words),
        ("STAGES", ColumnFit::Text),
        ("RUN", ColumnFit::Number),
        ("WAIT", ColumnFit::Number),
        ("STEP", ColumnFit::Number),
        ("TOK/S", ColumnFit::Number),
    ]);
    let names = names(view);
    let planned = view.plan.iter().flat_map(|plan| &plan.groups);
    PaneTable { columns, rows: planned.map(|group| group_row(view, &names, group)).collect() }
}

fn group_row(view: &SwarmView, names: &BTreeMap<PeerId, String>, group: &Group) -> TableRow {
    let is_up = view.ready_groups.contains(&group.id);
    let load = load(view, group).map(|group| group.load);
    let count = |number: Option<u32>| TableCell::known(number.map(f64::from), |n| format!("{n:.0}"));
    let model = view.models.iter().find(|card| card.id == group.model).map_or("a model", |card| &card.name);
    TableRow {
        cells: vec![
            TableCell::text(model),
            TableCell::text(group.phase.to_string()),
            TableCell::text(if is_up { "ready" } else { "loads" }),
            TableCell::text(chain(names, &group.stages)),
            count(load.map(|load| load.running)),
            count(load.map(|load| load.waiting)),
            TableCell::known(load.and_then(|load| load.step).map(|step| step.0), |step| {
                format!("{:.0} ms", step * 1e3)
            }),
            TableCell::known(rate(view, group), tokens),
        ],
        mood: if is_up { RowMood::Good } else { RowMood::Waiting },
    }
}

fn chain(names: &BTreeMap<PeerId, String>, stages: &[Stage]) -> String {
    let stage =
        |stage: &Stage| format!("{} {}–{}", called(names, stage.peer), stage.layers.start + 1, stage.layers.end);
    stages.iter().map(stage).collect::<Vec<_>>().join(" → ")
}

/// Requests under way, the oldest first, and below them those that have ended, the newest first.
fn requests(snapshot: &Snapshot) -> PaneTable {
    let columns = columns([
        ("REQUEST", ColumnFit::Words),
        ("STAGE", ColumnFit::Words),
        ("AGE", ColumnFit::Number),
        ("PROMPT", ColumnFit::Number),
        ("TOKENS", ColumnFit::Number),
        ("TOK/S", ColumnFit::Number),
        ("WHERE", ColumnFit::Text),
        ("MODEL", ColumnFit::Spare),
    ]);
    let names = names(&snapshot.view);
    let mut running: Vec<&RunningRequest> = snapshot.running.iter().collect();
    running.sort_by_key(|one| std::cmp::Reverse(one.seconds));
    let running = running.into_iter().map(|one| running_row(&names, one));
    let ended = snapshot.ended.iter().map(|one| ended_row(&snapshot.view, &names, one));
    PaneTable { columns, rows: running.chain(ended).collect() }
}

fn running_row(names: &BTreeMap<PeerId, String>, one: &RunningRequest) -> TableRow {
    let count = |number: Option<u32>| TableCell::known(number.map(f64::from), |n| format!("{n:.0}"));
    let rate = one.new_tokens.filter(|_| one.seconds > 0).map(|tokens| f64::from(tokens) / one.seconds as f64);
    TableRow {
        cells: vec![
            TableCell::text(id(&one.request.to_string())),
            TableCell::text(if one.stage.is_empty() { "runs" } else { &one.stage }),
            TableCell::number(one.seconds as f64, format!("{} s", one.seconds)),
            count(one.prompt_tokens),
            count(one.new_tokens),
            TableCell::known(rate, tokens),
            TableCell::text(one.prefill.zip(one.decode).map_or("-".into(), |pair| way(names, pair))),
            TableCell::text(&one.model),
        ],
        mood: if one.stage == "decode" { RowMood::Good } else { RowMood::Waiting },
    }
}

fn ended_row(view: &SwarmView, names: &BTreeMap<PeerId, String>, one: &EndedView) -> TableRow {
    let answering = one.total - one.ttft;
    let rate = (one.new_tokens > 1 && answering > 0.0).then(|| f64::from(one.new_tokens - 1) / answering);
    let model = view.models.iter().find(|card| card.id == one.model).map_or("a model", |card| &card.name);
    TableRow {
        cells: vec![
            TableCell::text(id(&one.request.to_string())),
            TableCell::text("ended"),
            TableCell::number(one.total, format!("{:.1} s", one.total)),
            TableCell::number(one.prompt_tokens.into(), one.prompt_tokens.to_string()),
            TableCell::number(one.new_tokens.into(), one.new_tokens.to_string()),
            TableCell::known(rate, tokens),
            TableCell::text(way(names, (one.prefill, one.decode))),
            TableCell::text(model),
        ],
        mood: RowMood::Quiet,
    }
}

/// From whom to whom a request went.
fn way(names: &BTreeMap<PeerId, String>, (prefill, decode): (PeerId, PeerId)) -> String {
    if prefill == decode {
        return called(names, decode);
    }
    format!("{} → {}", called(names, prefill), called(names, decode))
}

/// Links as peers have measured them.
fn links(view: &SwarmView) -> PaneTable {
    let columns = columns([
        ("FROM", ColumnFit::Text),
        ("TO", ColumnFit::Text),
        ("MBIT/S", ColumnFit::Number),
        ("LATENCY", ColumnFit::Number),
        ("PATH", ColumnFit::Text),
        ("AGE", ColumnFit::Spare),
    ]);
    let names = names(view);
    let stated = view.peers.iter().flat_map(|peer| peer.advert.links.iter().map(move |link| (peer.id, link)));
    let row = |(from, link): (PeerId, &tsnode_protocol::Link)| {
        let (mbit, ms) = (link.bandwidth.0 * 8e-6, link.latency.0 * 1e3);
        let age = view.link_ages.get(&link.to).copied().filter(|_| from == view.me);
        let (path, mood) = match link.path {
            PathKind::Direct => ("direct".into(), RowMood::Good),
            PathKind::Relayed { via } => (format!("relayed via {}", called(&names, via)), RowMood::Waiting),
        };
        let cells = vec![
            TableCell::text(called(&names, from)),
            TableCell::text(called(&names, link.to)),
            TableCell::number(mbit, if mbit < 9.95 { format!("{mbit:.1}") } else { format!("{mbit:.0}") }),
            TableCell::number(ms, format!("{ms:.1} ms")),
            TableCell::text(path),
            TableCell::known(age, |age| format!("{age:.0} s")),
        ];
        TableRow { cells, mood }
    };
    PaneTable { columns, rows: stated.map(row).collect() }
}

/// A peer by name, and by how its id ends where others are called the same.
fn called(names: &BTreeMap<PeerId, String>, peer: PeerId) -> String {
    let same = |name: &String| names.values().filter(|other| *other == name).count() > 1;
    match names.get(&peer) {
        Some(name) if !name.is_empty() && !same(name) => name.clone(),
        Some(name) if !name.is_empty() => format!("{name} (…{})", peer.short()),
        _ => format!("…{}", peer.short()),
    }
}

/// So much of a request's id that `tsnode requests` finds it by it.
fn id(whole: &str) -> String {
    whole.chars().take(16).collect()
}
