//! The first lines of `tsnode top`: the swarm in a line, and this machine: what it lends, does, and how fast.

use crate::{
    cli::{
        output::names,
        rates::{groups_of, rate, sum, tokens},
        status,
        text_layout::harmless,
    },
    hardware::memory::Size,
    view::{Readiness, SwarmView},
};

/// A label and a text.
pub(super) type LabelledText = (&'static str, String);

/// Who is asked, and what swarm it is in.
pub(super) fn title(view: &SwarmView) -> String {
    let name = names(view).get(&view.me).cloned().unwrap_or_default();
    let kind = if view.private { "private" } else { "open" };
    let peers = match view.peers.len() {
        1 => "1 peer".into(),
        n => format!("{n} peers"),
    };
    let groups = view.plan.as_ref().map_or(&[][..], |plan| &plan.groups);
    let up = groups.iter().filter(|group| view.ready_groups.contains(&group.id)).count();
    let groups =
        if groups.is_empty() { "no plan yet".into() } else { format!("{up} of {} groups ready", groups.len()) };
    harmless(&format!("tsnode top  {name} (…{})  {kind} swarm, {peers}, {groups}", view.me.short()))
}

/// What this machine lends, what it does, and how fast; what its owner should see to.
pub(super) fn lines(view: &SwarmView) -> Vec<LabelledText> {
    let mut rows = vec![("does", does(view)), ("lends", status::lent(view)), ("memory", memory(view))];
    rows.extend(view.left_out.iter().map(|why| ("left out", harmless(why))));
    rows.extend(view.troubles.iter().map(|trouble| ("trouble", harmless(&trouble.to_string()))));
    rows
}

fn does(view: &SwarmView) -> String {
    if let Some(far) = view.loading {
        return format!("loads {} of {}", Size(far.done), Size(far.total));
    }
    if let Some(why) = view.why_not() {
        return if view.readiness == Readiness::Leaving { why.to_string() } else { format!("not ready: {why}") };
    }
    let load = view.peers.iter().find(|peer| peer.id == view.me).map(|peer| peer.load).unwrap_or_default();
    let groups: Vec<_> = groups_of(view, view.me).collect();
    let duties: Vec<String> = groups.iter().map(|group| status::duty(view, group)).collect();
    if duties.is_empty() {
        return "passes requests on to those who compute".into();
    }
    let rate = sum(groups.iter().filter_map(|group| rate(view, group)));
    let rate = rate.map_or(String::new(), |rate| format!(", {} tokens/s", tokens(rate)));
    format!("{} running, {} waiting{rate}: {}", load.running, load.waiting, duties.join("; "))
}

fn memory(view: &SwarmView) -> String {
    let load = view.peers.iter().find(|peer| peer.id == view.me).map(|peer| peer.load).unwrap_or_default();
    let used = load.total_pages.saturating_sub(load.free_pages);
    let part = f64::from(used) * 100.0 / f64::from(load.total_pages.max(1));
    let pages = match load.total_pages {
        0 => "no KV pages".into(),
        all => format!("{used} of {all} KV pages used ({part:.0} %)"),
    };
    format!("weights {}, KV {} touched; {pages}", Size(view.in_use.weights), Size(view.in_use.kv))
}
