//! What a person sees of a peer at a terminal: a few lines that stay, and one that changes.

use super::{count, describe};
use crate::{
    cli::{
        rates,
        text_layout::{COLUMNS, fitted, harmless, padded, width, wrapped},
        ways,
    },
    hardware::memory::Size,
    view::{Readiness, SwarmView},
};
use std::collections::BTreeMap;
use std::path::Path;
use tsnode_coordinator::lending::Lending;
use tsnode_protocol::{Device, Group};

/// Columns of the labels that lines begin with.
const LABELS: usize = 9;

/// What does not change while the peer runs.
pub(super) struct Fixed {
    pub name: String,
    /// What prints an invite.
    pub invite: String,
    /// Where the log is.
    pub log: String,
}

/// Lines that have been printed, by label and how many of it came before: one that changes is printed again.
#[derive(Default)]
pub(super) struct Board(BTreeMap<(&'static str, usize), String>);

impl Board {
    /// Lines that are new since the last time.
    pub(super) fn news(&mut self, view: &SwarmView, fixed: &Fixed) -> Vec<String> {
        let (mut lines, mut last, mut nth) = (Vec::new(), "", 0);
        for (label, text) in rows(view, fixed) {
            nth = if label == last { nth + 1 } else { 0 };
            last = label;
            if self.0.get(&(label, nth)) != Some(&text) {
                // Sentences go on below; what is to be copied stays whole.
                match label {
                    "lends" | "links" | "waits" | "left out" | "unused" | "trouble" => {
                        lines.extend(wrapped(label, LABELS, &text));
                    }
                    _ => lines.push(format!("{}{text}", padded(label, LABELS))),
                }
                self.0.insert((label, nth), text);
            }
        }
        lines
    }
}

/// What can be said so far.
fn rows(view: &SwarmView, fixed: &Fixed) -> Vec<(&'static str, String)> {
    let short = |text: String| fitted(&harmless(&text), COLUMNS - LABELS);
    let kind = if view.private { "private" } else { "open" };
    let mut rows = vec![("name", short(format!("{} (…{}), {kind} swarm", fitted(&fixed.name, 40), view.me.short())))];
    if let Some(http) = view.http {
        rows.push(("page", format!("http://{http}/ (for programs: http://{http}/v1)")));
    }
    // What is to be copied is never cut.
    rows.push(("invite", format!("{} prints what others join with", fixed.invite)));
    rows.push(("log", fixed.log.clone()));
    if let Some(why) = view.lends_nothing() {
        rows.push(("lends", format!("nothing: {why}")));
    }
    if let Some(far) = view.fetching.as_ref().filter(|far| far.why.is_none() && far.done < far.bytes) {
        rows.push(("fetches", short(format!("{} ({})", far.model, Size(far.bytes)))));
    }
    rows.extend(view.troubles.iter().map(|trouble| ("trouble", harmless(&trouble.to_string()))));
    rows.extend(super::describe_alone(view).flatten().map(|alone| ("trouble", alone.to_owned())));
    let own = view.peers.iter().find(|p| p.id == view.me);
    for device in own.iter().flat_map(|p| &p.advert.devices) {
        rows.push(("lends", short(lends(device))));
    }
    let models: Vec<&str> = view.models.iter().map(|m| m.name.as_str()).collect();
    if !models.is_empty() {
        rows.push(("model", short(models.join(", "))));
    }
    match view.readiness {
        Readiness::Ready => {
            rows.push(("role", short(role(view))));
            rows.extend(view.left_out.iter().map(|why| ("left out", harmless(why))));
            rows.extend(view.unused_devices.iter().map(|unused| ("unused", harmless(&unused.why))));
            rows.extend(ways::told(view).map(|told| ("links", harmless(&told))));
        }
        // The line that changes has no room for it.
        _ if width(&waits(view)) > COLUMNS => rows.push(("waits", waits(view))),
        _ => {}
    }
    rows
}

fn lends(device: &Device) -> String {
    let (memory, kv) = (Size(device.memory_bytes), Size(device.kv_bytes));
    format!("{}, {memory} ({kv} of it for KV): {}", device.kind, device.name)
}

/// What the plan has this peer do.
fn role(view: &SwarmView) -> String {
    let groups = view.plan.iter().flat_map(|p| &p.groups);
    let mine = groups.flat_map(|g| g.stages.iter().map(move |s| (g, s))).filter(|(_, s)| s.peer == view.me);
    let work: Vec<String> = mine
        .map(|(group, stage)| {
            let leads = if group.leader() == Some(view.me) && group.stages.len() > 1 { ", leads" } else { "" };
            format!(
                "{}, layers {} of {}{leads}",
                group.phase,
                stage.layers,
                group.stages.last().map_or(0, |s| s.layers.end)
            )
        })
        .collect();
    let lends = view.peers.iter().any(|peer| peer.id == view.me && !peer.advert.devices.is_empty());
    match work.is_empty() {
        false => work.join("; "),
        true if lends => "spare: the plan has no use for it yet; it takes requests".into(),
        true => "gateway: takes requests, others compute them".into(),
    }
}

/// What a peer that is not ready waits for.
fn waits(view: &SwarmView) -> String {
    match (&view.readiness, view.why_not()) {
        (Readiness::Probing, _) => "starting: reads its model and measures this machine".into(),
        (Readiness::Joining, Some(why)) => format!("looking: {why}"),
        (Readiness::Planning, Some(why)) => format!("waiting: {why}"),
        _ => describe(view),
    }
}

/// How a state is to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mood {
    /// It serves.
    Good,
    /// It waits for something.
    Waiting,
}

/// The line that changes, and how it is to be taken.
pub(super) fn live(view: &SwarmView) -> (Mood, String) {
    if let Some(far) = view.loading {
        return (Mood::Waiting, format!("loading: {} of {}", Size(far.done), Size(far.total)));
    }
    if view.readiness != Readiness::Ready {
        return (Mood::Waiting, fitted(&waits(view), COLUMNS));
    }
    if !matches!(view.lending, Lending::Lends | Lending::OtherModel) {
        return (Mood::Waiting, fitted(&format!("lends nothing: {}", view.lending), COLUMNS));
    }
    if let Some(far) = view.fetching.as_ref().filter(|far| far.why.is_none() && far.done < far.bytes) {
        return (Mood::Waiting, fitted(&far.to_string(), COLUMNS));
    }
    let load = view.peers.iter().find(|p| p.id == view.me).map(|p| p.load).unwrap_or_default();
    let groups = view.plan.as_ref().map_or(&[][..], |p| &p.groups);
    let ready = groups.iter().filter(|g| view.ready_groups.contains(&g.id)).count();
    let groups = match (ready, groups.len()) {
        (ready, all) if ready == all => String::new(),
        (ready, all) => format!(", {ready} of {all} groups serve"),
    };
    let queue = if load.waiting > 0 { format!(", {} waiting", load.waiting) } else { String::new() };
    let mine: Vec<&Group> = rates::groups_of(view, view.me).collect();
    let mut phases: Vec<String> = mine.iter().map(|group| group.phase.to_string()).collect();
    phases.dedup();
    let phases = if phases.is_empty() { String::new() } else { format!(" ({})", phases.join(", ")) };
    let rate = rates::sum(mine.iter().filter_map(|group| rates::rate(view, group))).filter(|_| load.running > 0);
    let rate = rate.map_or(String::new(), |rate| format!(", {} tokens/s", rates::tokens(rate)));
    let said = format!("ready: {}{groups}; {} running here{phases}{queue}{rate}", count(view), load.running);
    (Mood::Good, fitted(&said, COLUMNS))
}

/// With its first word in the colour of what it means.
pub(super) fn coloured((mood, text): (Mood, String), colours: bool) -> String {
    let (word, rest) = text.split_at(text.find([':', ' ']).unwrap_or(text.len()));
    match (mood, colours) {
        (_, false) => text,
        (Mood::Good, true) => format!("\u{1b}[32m{word}\u{1b}[0m{rest}"),
        (Mood::Waiting, true) => format!("\u{1b}[33m{word}\u{1b}[0m{rest}"),
    }
}

/// A path as people write it: in their home folder where it is.
pub(super) fn path(path: &Path, home: Option<&Path>) -> String {
    match home.and_then(|home| path.strip_prefix(home).ok()) {
        Some(below) => format!("~/{}", below.display()),
        None => path.display().to_string(),
    }
}

/// The line about the log; the path is never cut, and what explains it goes where it does not fit.
pub(super) fn log(path: &str) -> String {
    let line = format!("{path} (-v shows it here)");
    if width(&line) <= COLUMNS - LABELS { line } else { path.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{PeerView, Trouble, UnusedDevicesView, tests::view as nothing};
    use tsnode_coordinator::waiting::NotReady;
    use tsnode_kernels::{load::LoadProgress, source::ModelSource};
    use tsnode_protocol::{
        Advert, BytesPerSecond, DeviceKind, Epoch, FlopsPerSecond, Group, GroupLoad, LayerRange, Load, ModelId, PeerId,
        Phase, Plan, Seconds, Stage, Term,
    };

    fn fixed(name: &str) -> Fixed {
        Fixed { name: name.into(), invite: "tsnode invite".into(), log: log("~/.local/share/tsnode/join.log") }
    }

    /// A peer with a device, leading a pipeline of two.
    fn view() -> SwarmView {
        let (me, other) = (PeerId([1; 32]), PeerId([2; 32]));
        let device = Device {
            kind: DeviceKind::Cpu { threads: 4 },
            name: "Xeon".into(),
            memory_bytes: 2 << 30,
            kv_bytes: 512 << 20,
            flops: FlopsPerSecond(1e9),
            bandwidth: BytesPerSecond(1e9),
            serves: vec![],
        };
        let advert = Advert { name: "me".into(), devices: vec![device], ..tsnode_coordinator::sample::gateway(0) };
        let peer = |id: PeerId| PeerView {
            id,
            advert: advert.clone(),
            load: Load { running: 2, ..Load::default() },
            groups: vec![],
            silent_for: 0.0,
            silent: false,
            plan: None,
            leaving: false,
        };
        let stage = |peer, start, end| Stage { peer, device: 0, layers: LayerRange { start, end } };
        let group = Group::new(ModelId([1; 16]), Phase::Decode, vec![stage(me, 0, 2), stage(other, 2, 4)]);
        let ready_groups = vec![group.id];
        let plan = Plan {
            epoch: Epoch(1),
            term: Term(0),
            parent: None,
            groups: vec![group],
            routes: vec![],
            chosen: vec![],
            reason: "".into(),
        };
        SwarmView {
            peers: vec![peer(me), peer(other)],
            models: vec![ModelSource::embedded().unwrap().card().clone()],
            http: Some(([127, 0, 0, 1], 7448).into()),
            plan: Some(plan),
            ready_groups,
            ..nothing()
        }
    }

    #[test]
    fn a_board_says_who_one_is_what_one_does_and_how_to_go_on() {
        let me = PeerId([1; 32]).short();
        let expected = format!(
            "\
name     书房的机器 (…{me}), open swarm
page     http://127.0.0.1:7448/ (for programs: http://127.0.0.1:7448/v1)
invite   tsnode invite prints what others join with
log      ~/.local/share/tsnode/join.log (-v shows it here)
lends    cpu, 2.0 GiB (512 MiB of it for KV): Xeon
model    gutenberg-tiny
role     decode, layers 0..2 of 4, leads"
        );
        let (mut board, fixed) = (Board::default(), fixed("书房的机器"));
        let lines = board.news(&view(), &fixed);
        assert_eq!(lines.join("\n"), expected);
        assert!(lines.iter().all(|line| width(line) <= COLUMNS));
        assert_eq!(board.news(&view(), &fixed), Vec::<String>::new(), "nothing is printed twice");
        let mut two = view();
        let devices = &mut two.peers[0].advert.devices;
        devices.push(Device { name: "Ryzen".into(), ..devices[0].clone() });
        assert_eq!(board.news(&two, &fixed), ["lends    cpu, 2.0 GiB (512 MiB of it for KV): Ryzen"]);
        let gateway = SwarmView { plan: None, ..view() };
        let spare = board.news(&gateway, &fixed).concat();
        assert!(spare.starts_with("role     spare: the plan has no use for it yet"), "{spare}");
        let why = "this machine is not in the present plan: nothing has to be done".to_owned();
        let left_out = SwarmView { left_out: Some(why.clone()), ..gateway.clone() };
        assert_eq!(board.news(&left_out, &fixed), [format!("left out {why}")]);
        let in_plan_for_a_while = [board.news(&view(), &fixed), board.news(&left_out, &fixed)].concat();
        assert!(in_plan_for_a_while.iter().all(|line| line.starts_with("role")), "{in_plan_for_a_while:?}");
        let why = "the present plan uses this machine, but not its cuda:1".to_owned();
        let unused_devices = vec![UnusedDevicesView { devices: vec![1], why: why.clone() }];
        let in_part = board.news(&SwarmView { unused_devices, ..view() }, &fixed);
        assert_eq!(in_part.last(), Some(&format!("unused   {why}")));
        let mut gateway = gateway;
        gateway.peers[0].advert.devices.clear();
        assert_eq!(board.news(&gateway, &fixed), ["role     gateway: takes requests, others compute them"]);
    }

    #[test]
    fn long_names_are_cut_and_what_is_to_be_copied_is_not() {
        let mut view = view();
        view.peers[0].advert.devices[0].name = "一个很长的名字".repeat(10);
        view.models[0].name = "model\u{1b}[2J".repeat(30);
        let lines = Board::default().news(&view, &fixed(&"名".repeat(60)));
        assert!(lines.iter().all(|line| width(line) <= COLUMNS), "{}", lines.join("\n"));
        assert!(!lines.concat().contains(char::is_control));
        let long = format!("/mnt/{}/join.log", "x".repeat(100));
        assert_eq!(log(&long), long);
        assert_eq!(path(Path::new("/home/me/a/b"), Some(Path::new("/home/me"))), "~/a/b");
        assert_eq!(path(Path::new("/mnt/a"), Some(Path::new("/home/me"))), "/mnt/a");
    }

    #[test]
    fn the_live_line_says_what_goes_on_or_what_is_waited_for() {
        assert_eq!(live(&view()), (Mood::Good, "ready: 2 peers; 2 running here (decode)".into()));
        let mut fast = view();
        let (group, step) = (fast.ready_groups[0], Some(Seconds(0.05)));
        fast.peers[0].groups = vec![GroupLoad { group, load: Load { running: 2, step, ..Load::default() } }];
        assert_eq!(live(&fast).1, "ready: 2 peers; 2 running here (decode), 40 tokens/s");
        let busy = SwarmView { ready_groups: vec![], ..view() };
        assert_eq!(live(&busy).1, "ready: 2 peers, 0 of 1 groups serve; 2 running here (decode)");
        let loading = SwarmView { loading: Some(LoadProgress { done: 3 << 30, total: 6 << 30 }), ..view() };
        assert_eq!(live(&loading), (Mood::Waiting, "loading: 3.0 GiB of 6.0 GiB".into()));
        for readiness in [Readiness::Probing, Readiness::Joining, Readiness::Planning, Readiness::Leaving] {
            let (mood, text) = live(&SwarmView { readiness, ..view() });
            assert_eq!(mood, Mood::Waiting);
            assert!(!text.is_empty() && width(&text) <= COLUMNS, "{text}");
        }
    }

    #[test]
    fn a_wait_is_told_whole_above_where_the_line_has_no_room() {
        let why = NotReady::SmallKv { model: "a model with a rather long name".repeat(3), needs: 1024, holds: 512 };
        let waits = SwarmView { readiness: Readiness::Planning, waiting: Some(why.clone()), ..view() };
        let lines = Board::default().news(&waits, &fixed("me"));
        let told = lines.iter().skip_while(|line| !line.starts_with("waits")).map(|line| line[LABELS..].to_owned());
        assert!(told.collect::<Vec<_>>().join(" ").contains(&why.to_string()), "{}", lines.join("\n"));
        assert!(lines.iter().all(|line| width(line) <= COLUMNS), "{}", lines.join("\n"));
        assert!(width(&live(&waits).1) <= COLUMNS);
        let other =
            SwarmView { lending: Lending::OtherModel, default_model: Some(view().models[0].id), plan: None, ..view() };
        let lines = Board::default().news(&other, &fixed("me")).join("\n");
        assert!(lines.contains("lends    nothing: this swarm serves gutenberg-tiny; lend"), "{lines}");
        assert_eq!(live(&other), (Mood::Good, "ready: 2 peers; 2 running here".into()));
    }

    #[test]
    fn what_an_owner_should_see_to_is_told_once_whole_and_again_when_it_is_another() {
        let network = |said: &str| Trouble::Network { said: said.into() };
        let all = [
            Trouble::Twin { at: Some("/ip4/192.0.2.9/tcp/7".into()) },
            network("a firewall lets nothing through (UDP to 192.0.2.1:7447 is silent): open it\u{1b}[2J"),
            Trouble::NoLifelines { address: ([127, 0, 0, 1], 7448).into() },
        ];
        let mut board = Board::default();
        let told = |view: &SwarmView, board: &mut Board| {
            let lines = board.news(view, &fixed("me"));
            assert!(lines.iter().all(|line| width(line) <= COLUMNS && !line.contains(char::is_control)), "{lines:?}");
            // Whole sentences: the lines below a label's first go on with it.
            let from = lines.iter().position(|line| line.starts_with("trouble")).unwrap_or(lines.len());
            let until = lines[from..].iter().position(|l| !l.starts_with("trouble") && !l.starts_with(' '));
            let lines = &lines[from..until.map_or(lines.len(), |n| from + n)];
            (
                lines.iter().filter(|l| l.starts_with("trouble")).count(),
                lines.iter().map(|l| &l[LABELS..]).collect::<Vec<_>>().join(" "),
            )
        };
        let three = SwarmView { troubles: all.to_vec(), ..view() };
        let (count, text) = told(&three, &mut board);
        assert_eq!(count, 3, "{text}");
        for part in [
            "with this peer's identity, at /ip4/192.0.2.9",
            "no identity.key",
            "192.0.2.1:7447 is silent",
            "TCP port 7448",
            "--listen",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(told(&three, &mut board), (0, String::new()), "nothing is said twice");
        let other = SwarmView {
            troubles: vec![all[0].clone(), network("the invite has expired: ask for a new one")],
            ..view()
        };
        let (count, text) = told(&other, &mut board);
        assert!(count == 1 && text.contains("the invite has expired"), "{text}");
    }

    #[test]
    fn colour_is_for_the_state_alone_and_only_where_it_is_wanted() {
        let state = || (Mood::Good, "ready: 2 peers".to_owned());
        assert_eq!(coloured(state(), false), "ready: 2 peers");
        assert_eq!(coloured(state(), true), "\u{1b}[32mready\u{1b}[0m: 2 peers");
    }
}
