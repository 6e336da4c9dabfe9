//! `tsnode status`: what this machine does, for whom and how fast, in plain words; figures for engineers only when asked for.

use super::{
    ask::look,
    is_set,
    output::{name, names, print_json},
    swarm_settings,
    text_layout::{harmless, time, wrapped},
};
use crate::{
    cli::exit::Exit,
    config::Settings,
    hardware::memory::Size,
    view::{PeerView, Readiness, SwarmView},
};
use clap::ArgMatches;
use std::collections::BTreeMap;
use tsnode_coordinator::planner::spare_routes::is_spare;
use tsnode_protocol::{Group, GroupId, LayerProfile, ModelCard, ModelId, PeerId, Phase, Plan, Seconds};

/// Columns that labels take.
const LABELS: usize = 10;
/// Tokens of the prompt whose time is told, and tokens before the one whose time is told.
const PROMPT: f64 = 1000.0;
const CONTEXT: f64 = 500.0;

pub(super) async fn show(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let view = look(settings, matches).await?;
    if is_set(matches, "json") {
        return print_json(&view);
    }
    for line in lines(&view, is_set(matches, "verbose")) {
        say!("{line}");
    }
    Ok(())
}

/// All lines; `verbose` has ids, terms, how well measured times were foretold, and what was refused.
pub(super) fn lines(view: &SwarmView, verbose: bool) -> Vec<String> {
    let rows = [owner(view), work(view), swarm(view)].concat();
    let details = if verbose { details(view) } else { vec![] };
    rows.into_iter().chain(details).flat_map(|(label, text)| wrapped(label, LABELS, &text)).collect()
}

type StatusRow = (&'static str, String);

/// Which machine this is, whether it serves, and what it lends.
fn owner(view: &SwarmView) -> Vec<StatusRow> {
    let others = view.peers.iter().filter(|p| p.id != view.me).count();
    let company = match others {
        0 => "nobody else is in it yet".into(),
        1 => "one other peer is in it".into(),
        n => format!("{n} other peers are in it"),
    };
    let kind = if view.private { "private" } else { "open" };
    let state = match view.why_not() {
        None => "takes requests".into(),
        Some(why) if view.readiness == Readiness::Leaving => why.to_string(),
        Some(why) => format!("not ready: {why}"),
    };
    let mut rows = vec![
        ("this peer", shown(view, view.me)),
        ("swarm", format!("{kind}; {company}")),
        ("state", state),
        ("lends", lent(view)),
    ];
    rows.extend(view.troubles.iter().map(|trouble| ("trouble", harmless(&trouble.to_string()))));
    let unreachable = own(view).filter(|own| !own.advert.reachable);
    rows.extend(unreachable.map(|own| {
        let relays = own.advert.addresses.iter().filter(|a| a.contains("/p2p-circuit")).count();
        let way = if relays > 0 { "others come over a relay" } else { "no relay was found either" };
        ("reached", format!("not from outside (a router is in the way); {way}"))
    }));
    rows
}

fn own(view: &SwarmView) -> Option<&PeerView> {
    view.peers.iter().find(|p| p.id == view.me)
}

pub(super) fn lent(view: &SwarmView) -> String {
    if let Some(why) = view.lends_nothing() {
        return format!("nothing: {why}");
    }
    let devices = own(view).map_or(&[][..], |own| &own.advert.devices);
    let device = |d: &tsnode_protocol::Device| match d.memory_bytes {
        0 => format!("{} (lost)", harmless(&d.name)),
        memory => format!("{} with {} of memory, {} of it for KV", harmless(&d.name), Size(memory), Size(d.kv_bytes)),
    };
    match devices {
        [] => "nothing: it only takes requests".into(),
        devices => devices.iter().map(device).collect::<Vec<_>>().join("; "),
    }
}

/// What this machine does by the plan: for whom, how fast, and how much of it now.
fn work(view: &SwarmView) -> Vec<StatusRow> {
    let groups = view.plan.as_ref().map_or(&[][..], |plan| &plan.groups);
    let mine: Vec<&Group> = groups.iter().filter(|g| g.stages.iter().any(|s| s.peer == view.me)).collect();
    let mut rows = Vec::new();
    for group in &mine {
        rows.push(("does", duty(view, group)));
        rows.extend(view.plan.as_ref().map(|plan| ("for", clients(view, plan, group))));
        rows.extend(speed(view, group).map(|speed| ("speed", speed)));
    }
    if mine.is_empty() && view.plan.is_some() {
        rows.push(("does", "passes requests on to those who compute; the plan has no other work for it".into()));
        rows.extend(view.left_out.iter().map(|why| ("left out", harmless(why))));
    }
    rows.extend(view.unused_devices.iter().map(|unused| ("unused", harmless(&unused.why))));
    if let Some(load) = own(view).map(|own| own.load).filter(|_| !mine.is_empty()) {
        let used = load.total_pages.saturating_sub(load.free_pages);
        let part = 100.0 * f64::from(used) / f64::from(load.total_pages.max(1));
        let running = if load.running == 1 { "1 answer".into() } else { format!("{} answers", load.running) };
        rows.push((
            "now",
            format!("{running} running, {} waiting; {part:.0} % of the KV memory is used", load.waiting),
        ));
    }
    rows
}

/// What the group's peers do, and which part of it is this one's.
pub(super) fn duty(view: &SwarmView, group: &Group) -> String {
    let model = model(view, group.model);
    let what = format!("{} of {}", in_words(group.phase), model.map_or("a model".into(), |m| harmless(&m.name)));
    if group.stages.len() == 1 {
        return what;
    }
    let layers =
        group.stages.iter().filter(|s| s.peer == view.me).map(|s| format!("{}–{}", s.layers.start + 1, s.layers.end));
    let layers = layers.collect::<Vec<_>>().join(", ");
    let of = model.map_or(String::new(), |m| format!(" of {}", m.shape.layers));
    let others = group.stages.iter().map(|s| s.peer).filter(|peer| *peer != view.me).map(|peer| shown(view, peer));
    format!("{what}: layers {layers}{of}, together with {}", others.collect::<Vec<_>>().join(", "))
}

/// What a group does, in plain words.
pub(super) fn in_words(phase: Phase) -> &'static str {
    match phase {
        Phase::Prefill => "reads prompts",
        Phase::Decode => "writes answers",
        Phase::Mixed => "reads prompts and writes answers",
    }
}

/// From whom a group gets its work, or to whom it gives it.
fn clients(view: &SwarmView, plan: &Plan, group: &Group) -> String {
    let led = |id: GroupId| plan.group(id).and_then(Group::leader).map_or("a group".into(), |peer| shown(view, peer));
    let far = |mine: fn(&tsnode_protocol::Route) -> (GroupId, GroupId)| -> Vec<(String, f64)> {
        let routes = plan.routes.iter().filter(|r| !is_spare(r)).map(|r| (mine(r), r.share));
        routes
            .filter(|((own, far), share)| *own == group.id && far != own && *share > 0.0)
            .map(|((_, f), s)| (led(f), s))
            .collect()
    };
    let (to, from) = (far(|r| (r.prefill, r.decode)), far(|r| (r.decode, r.prefill)));
    let parts = |far: Vec<(String, f64)>| {
        let all: f64 = far.iter().map(|(_, share)| share).sum();
        let part = |(name, share): &(String, f64)| format!("{name} ({:.0} %)", 100.0 * share / all);
        far.iter().map(part).collect::<Vec<_>>().join(", ")
    };
    match (to.is_empty(), from.is_empty()) {
        (false, _) => format!("answers are written by {}", parts(to)),
        (true, false) => format!("prompts are read by {}", parts(from)),
        (true, true) => "whoever asks, at any peer".into(),
    }
}

/// How fast the whole group is with one request alone, by what its peers measured; nothing where one of them has not.
fn speed(view: &SwarmView, group: &Group) -> Option<String> {
    let per_token = seconds(view, group, |p| p.decode[0] + p.decode[1] * CONTEXT + p.decode[2])?;
    let prompt = seconds(view, group, |p| p.prefill[0] + p.prefill[1] * PROMPT + p.prefill[2] * PROMPT * PROMPT)?;
    let tokens = match 1.0 / per_token {
        rate if rate < 10.0 => format!("{rate:.1}"),
        rate => format!("{rate:.0}"),
    };
    let (prompts, answers) =
        (format!("a prompt of {PROMPT} tokens in {}", time(Seconds(prompt))), format!("{tokens} tokens/s"));
    Some(match group.phase {
        Phase::Prefill => format!("about {prompts}"),
        Phase::Decode => format!("about {answers} for one answer"),
        Phase::Mixed => format!("about {answers} for one answer, {prompts}"),
    })
}

/// Seconds a group computes for something of which a layer takes so many.
fn seconds(view: &SwarmView, group: &Group, layer: impl Fn(&LayerProfile) -> f64) -> Option<f64> {
    let stage = |stage: &tsnode_protocol::Stage| {
        let peer = view.peers.iter().find(|p| p.id == stage.peer)?;
        let profile = peer.advert.devices.get(usize::from(stage.device))?.profile(group.model)?;
        Some(layer(profile) * f64::from(stage.layers.len()))
    };
    let sum = group.stages.iter().map(stage).sum::<Option<f64>>()?;
    (sum > 0.0).then_some(sum)
}

/// What the swarm serves, and who plans.
fn swarm(view: &SwarmView) -> Vec<StatusRow> {
    let named = |m: &ModelCard| {
        let is_default = view.models.len() > 1 && Some(m.id) == view.default_model;
        format!("{}{}", harmless(&m.name), if is_default { " (where a request names none)" } else { "" })
    };
    let models: Vec<String> = view.models.iter().map(named).collect();
    let groups = view.plan.as_ref().map_or(&[][..], |plan| &plan.groups);
    let up = groups.iter().filter(|g| view.ready_groups.contains(&g.id)).count();
    let plan = match (groups.len(), view.ready_groups.len() - up) {
        (0, _) => "none is adopted yet".into(),
        (all, 0) => format!("{up} of {all} groups take requests"),
        (all, old) => format!("{up} of {all} groups take requests; {old} of the plan before go on until all do"),
    };
    let planner = match view.coordinator {
        Some(peer) if peer == view.me => "; this peer plans".into(),
        Some(peer) => format!("; {} plans", shown(view, peer)),
        None => String::new(),
    };
    let mut rows = vec![
        ("models", if models.is_empty() { "none".into() } else { models.join(", ") }),
        ("plan", format!("{plan}{planner} (tsnode plan --why)")),
    ];
    rows.extend(swarm_settings::lines(view));
    if !view.cut_off.is_empty() {
        rows.push(("cut off", format!("{} peers, for what they did: tsnode peers", view.cut_off.len())));
    }
    rows
}

/// What engineers look at.
fn details(view: &SwarmView) -> Vec<StatusRow> {
    let mut rows = vec![
        ("id", view.me.to_string()),
        ("swarm id", view.swarm.to_string()),
        ("epoch", format!("{}, term {}", view.epoch.0, view.term.0)),
    ];
    rows.extend(view.plan.as_ref().map(|plan| ("plan", format!("{}: {}", plan.id(), harmless(&plan.reason)))));
    rows.extend(own(view).map(|own| ("KV pages", format!("{} of {} free", own.load.free_pages, own.load.total_pages))));
    for profile in
        own(view).iter().flat_map(|own| &own.advert.devices).flat_map(|d| &d.serves).filter_map(|s| s.profile)
    {
        rows.push(("times", format!("prompts {}", profile.prompts)));
        rows.push(("", format!("steps {}; with a prompt beside them {}", profile.steps, profile.mixed)));
    }
    rows.extend(counted("refused", &view.rejected));
    rows.extend(counted("KV", &view.kv_refused));
    rows
}

fn counted(label: &'static str, refused: &BTreeMap<String, u64>) -> Vec<StatusRow> {
    let labels = std::iter::once(label).chain(std::iter::repeat(""));
    labels.zip(refused).map(|(label, (reason, count))| (label, format!("{count} × {reason}"))).collect()
}

fn model(view: &SwarmView, id: ModelId) -> Option<&ModelCard> {
    view.models.iter().find(|m| m.id == id)
}

fn shown(view: &SwarmView, peer: PeerId) -> String {
    harmless(&name(&names(view), peer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::text_layout::{COLUMNS, width},
        view::{UnusedDevicesView, tests::view},
    };
    use tsnode_coordinator::waiting::NotReady;
    use tsnode_protocol::{
        Advert, BytesPerSecond, Device, DeviceKind, Epoch, FlopsPerSecond, LayerRange, Load, Misfit, ModelShape, Route,
        Stage, Term,
    };

    const MODEL: ModelId = ModelId([9; 16]);

    fn peer(n: u8, name: &str) -> PeerView {
        let misfit = Misfit { r2: 0.99, mean: 0.05, largest: 0.1 };
        let profile = LayerProfile {
            model: MODEL,
            prefill: [0.0, 1e-3, 0.0],
            decode: [4e-3, 0.0, 1e-3],
            prompts: misfit,
            steps: misfit,
            mixed: misfit,
        };
        let device = Device {
            name: "AMD EPYC".into(),
            kind: DeviceKind::Cpu { threads: 2 },
            memory_bytes: 160 << 20,
            kv_bytes: 40 << 20,
            flops: FlopsPerSecond(5e10),
            bandwidth: BytesPerSecond(9e9),
            serves: vec![],
        }
        .for_one(MODEL, Some(profile));
        let advert = Advert {
            name: name.into(),
            devices: vec![device],
            models: vec![gpu()],
            ..tsnode_coordinator::sample::gateway(0)
        };
        let load = Load { running: 1, free_pages: 75, total_pages: 100, ..Load::default() };
        PeerView {
            id: PeerId([n; 32]),
            advert,
            load,
            groups: vec![],
            silent_for: 0.0,
            silent: false,
            plan: None,
            leaving: false,
        }
    }

    fn gpu() -> ModelCard {
        let shape = ModelShape {
            layers: 4,
            hidden: 8,
            intermediate: 8,
            heads: 1,
            kv_heads: 1,
            head_dim: 8,
            vocab: 8,
            context: 8,
            layer_bytes: 1,
            embed_bytes: 1,
            head_bytes: 1,
            experts: None,
            whole: false,
            state_bytes: 0,
        };
        ModelCard { id: MODEL, name: "SmolLM2-135M".into(), shape, files: vec![] }
    }

    /// Three peers: the first reads prompts, the other two write answers together; the second one looks.
    fn served() -> SwarmView {
        let stage = |n: u8, start, end| Stage { peer: PeerId([n; 32]), device: 0, layers: LayerRange { start, end } };
        let prefill = Group::new(MODEL, Phase::Prefill, vec![stage(1, 0, 4)]);
        let decode = Group::new(MODEL, Phase::Decode, vec![stage(2, 0, 2), stage(3, 2, 4)]);
        let routes = vec![Route { prefill: prefill.id, decode: decode.id, share: 1.0 }];
        SwarmView {
            me: PeerId([2; 32]),
            private: true,
            coordinator: Some(PeerId([1; 32])),
            ready_groups: vec![prefill.id, decode.id],
            plan: Some(Plan {
                epoch: Epoch(7),
                term: Term(2),
                parent: None,
                groups: vec![prefill, decode],
                routes,
                chosen: vec![],
                reason: "1 prefill, 1 decode".into(),
            }),
            peers: vec![peer(1, "attic"), peer(2, "desk"), peer(3, "机器")],
            models: vec![gpu()],
            ..view()
        }
    }

    #[test]
    fn a_machine_at_work_says_what_it_does_for_whom_and_how_fast() {
        let ids: Vec<String> = (1..4).map(|n| PeerId([n; 32]).short().to_string()).collect();
        let [attic, desk, third] = &ids[..] else { panic!("three") };
        let text = lines(&served(), false).join("\n");
        let expected = format!(
            "this peer desk (…{desk})\n\
             swarm     private; 2 other peers are in it\n\
             state     takes requests\n\
             lends     AMD EPYC with 160 MiB of memory, 40 MiB of it for KV\n\
             does      writes answers of SmolLM2-135M: layers 1–2 of 4, together with 机器\n\
             {s:10}(…{third})\n\
             for       prompts are read by attic (…{attic}) (100 %)\n\
             speed     about 50 tokens/s for one answer\n\
             now       1 answer running, 0 waiting; 25 % of the KV memory is used\n\
             models    SmolLM2-135M\n\
             plan      2 of 2 groups take requests; attic (…{attic}) plans (tsnode plan --why)",
            s = ""
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn who_is_left_out_of_the_plan_says_why_and_what_to_do() {
        let why = "this machine is not in the present plan: tsnode limits set --memory SIZE lends more\u{1b}[2J";
        let spare = SwarmView { me: PeerId([4; 32]), left_out: Some(why.into()), ..served() };
        let told = lines(&spare, false).join(" ");
        assert!(told.contains("left out  this machine is not in the present plan: tsnode limits set"), "{told}");
        assert!(!told.contains('\u{1b}'), "{told}");
        let at_work = SwarmView { left_out: None, ..served() };
        assert!(!lines(&at_work, false).join(" ").contains("left out"));
    }

    #[test]
    fn devices_that_the_plan_does_not_use_are_named_beside_what_those_do_that_it_uses() {
        let why = "the present plan uses this machine, but not its cuda:1: nothing has to be done\u{1b}[2J";
        let unused_devices = vec![UnusedDevicesView { devices: vec![1], why: why.into() }];
        let told = lines(&SwarmView { unused_devices, ..served() }, false).join(" ");
        assert!(told.contains("does      writes answers"), "{told}");
        assert!(told.contains("unused    the present plan uses this machine, but not its cuda:1"), "{told}");
        assert!(!told.contains('\u{1b}'), "{told}");
        assert!(!lines(&served(), false).join(" ").contains("unused"));
    }

    #[test]
    fn who_waits_says_why_and_figures_are_for_those_who_ask() {
        let waiting = Some(NotReady::Probing);
        let alone = SwarmView { readiness: Readiness::Planning, waiting, peers: vec![peer(1, "desk")], ..view() };
        let short = lines(&alone, false);
        assert!(short.iter().all(|line| width(line) <= COLUMNS), "{short:?}");
        let why = format!("state     not ready: {}", NotReady::Probing);
        assert!(short.join(" ").contains(why.split_once(',').map_or(&*why, |(first, _)| first)), "{short:?}");
        assert!(short.contains(&"swarm     open; nobody else is in it yet".to_owned()), "{short:?}");
        assert!(!short.iter().any(|l| l.contains("R²")));
        let refused = BTreeMap::from([("message that came late, or again".to_owned(), 3)]);
        let long = lines(&SwarmView { rejected: refused, ..served() }, true);
        assert!(
            long.iter().any(|l| l.contains("R² 0.990"))
                && long.iter().any(|l| l == "refused   3 × message that came late, or again")
        );
        assert!(long.iter().any(|l| l.starts_with("epoch     0, term 0")), "{long:?}");
    }
}
