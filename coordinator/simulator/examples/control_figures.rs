//! What the control plane costs as a swarm grows, for docs/design/control-plane.md: `control_figures planning|gossip [most peers] [SVG
//! file]`.
//!
//! Gossip and detection are measured in the simulation, by its clock; planning by the processor's.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tsnode_coordinator::{
    members::Members,
    planner::{self, PlanOptions},
    sample,
};
use tsnode_protocol::{Advert, PeerId, Plan};
use tsnode_simulator::{
    plot::{Plot, Scale},
    simulation::{World, sketch::Sketch},
};

const SIZES: [usize; 6] = [10, 50, 100, 200, 500, 1000];
/// How long an idle swarm is listened to.
const IDLE: Duration = Duration::from_secs(20);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let most = arguments.get(1).and_then(|a| a.parse().ok()).unwrap_or(1000);
    match arguments.first().map(String::as_str) {
        Some("planning") => planning(most),
        Some("gossip") => growing(most, arguments.get(2)),
        _ => eprintln!("control_figures planning|gossip [most peers] [SVG file]"),
    }
}

fn growing(most: usize, svg: Option<&String>) {
    let rows: Vec<FigureRow> = SIZES.into_iter().filter(|n| *n <= most).map(gossip).collect();
    let Some(path) = svg else { return };
    let line = |name: &str, of: fn(&FigureRow) -> f64| (name.to_owned(), rows.iter().map(of).collect());
    let bytes = [line("heard by a peer", |r| r.heard), line("said by a peer", |r| r.said)];
    let title = "Gossip of an idle swarm, each message counted once";
    draw(path, title, "a peer's traffic", &rows, Scale::ByteRate, &bytes);
    let seconds = [line("after the last start", |r| r.first), line("after a silent death", |r| r.again)];
    let path = path.replace(".svg", "-plans.svg");
    draw(&path, "Until all follow one plan", "time", &rows, Scale::Seconds, &seconds);
}

fn draw(path: &str, title: &str, up: &str, rows: &[FigureRow], scale: Scale, series: &[(String, Vec<f64>)]) {
    let rates: Vec<f64> = rows.iter().map(|r| r.peers as f64).collect();
    let plot = Plot { title, across: "peers", up, rates: &rates, scale, series };
    if let Err(error) = std::fs::write(path, plot.svg()) {
        eprintln!("{path}: {error}");
    }
}

struct FigureRow {
    peers: usize,
    said: f64,
    heard: f64,
    /// Until the first plan is followed, and until the next (s).
    first: f64,
    again: f64,
}

/// A swarm whose peers start within two seconds, comes to a plan, is idle, and loses a peer.
fn gossip(peers: usize) -> FigureRow {
    let mut world = World::planned_by(Sketch, 1);
    for n in 0..peers {
        let n = world.add(sample::advert(n));
        let at = world.rng.below(2000) as u64;
        world.start_at(Duration::from_millis(1 + at), n);
    }
    let follow = |world: &World| world.common_plan().is_ok_and(|p| p.peers().len() == world.honest().count());
    let until = |world: &mut World, done: &dyn Fn(&World) -> bool| {
        let from = world.now;
        while !done(world) && world.now < from + Duration::from_secs(120) {
            world.wait(Duration::from_millis(50));
        }
        (world.now - from).as_secs_f64()
    };
    world.wait(Duration::from_secs(2));
    let first = until(&mut world, &follow);
    let starting = world.checks.figures.heard_bytes as f64 / peers as f64;
    // Adverts are repeated for a while after a start.
    world.wait(Duration::from_secs(30));
    world.forget_bytes();
    world.wait(IDLE);
    let figures = &world.checks.figures;
    let bytes: u64 = figures.said.values().map(|(_, b)| b).sum();
    for (kind, (messages, bytes)) in &figures.said {
        println!("  {kind}: {messages} messages, {bytes} bytes");
    }
    let of_each = |bytes: f64| bytes / peers as f64 / IDLE.as_secs_f64();
    let (said, heard) = (of_each(bytes as f64), of_each(figures.heard_bytes as f64));
    world.cut_power(peers / 2);
    let again = until(&mut world, &follow);
    let mut noticed = world.checks.figures.noticed_by_silence.clone();
    noticed.sort_by(f64::total_cmp);
    let at = |q: f64| noticed.get((q * noticed.len().saturating_sub(1) as f64) as usize).copied().unwrap_or(f64::NAN);
    println!(
        "{peers} peers: says {said:.0} B/s, hears {heard:.0} B/s; first plan {first:.2} s after the last start, \
         {:.0} kB heard until then; a silent death noticed after {:.2} s (median), {:.2} s (last), new plan followed by all \
         after {again:.2} s; {} false deaths",
        starting / 1e3,
        at(0.5),
        at(1.0),
        world.checks.figures.false_deaths + world.checks.figures.excused_deaths,
    );
    FigureRow { peers, said, heard, first, again }
}

/// The scheduler's own times.
fn planning(most: usize) {
    let wish = PlanOptions::default();
    for n in [10, 32, 100, 1000].into_iter().filter(|n| *n <= most) {
        let adverts: BTreeMap<PeerId, Advert> = (0..n).map(|k| (id(k), sample::advert(k))).collect();
        let members: Members<'_> = adverts.iter().map(|(id, a)| (*id, a)).collect();
        let (draft, plan_took) = timed(|| planner::plan(&members, &wish, None));
        let plan = Plan {
            epoch: Default::default(),
            term: Default::default(),
            parent: None,
            groups: draft.groups,
            routes: draft.routes,
            chosen: draft.chosen,
            reason: draft.reason,
        };
        let mut rest = members.clone();
        rest.pop_first();
        let (flipped, flip_took) = timed(|| planner::flip(&plan, &rest, &wish));
        let (value, value_took) = timed(|| planner::value(&plan, &members, &wish));
        println!(
            "{n} devices: plan of {} groups in {plan_took:.1?}, flip to {} in {flip_took:.1?}, value {value:.3} in {value_took:.1?}",
            plan.groups.len(),
            flipped.map_or(0, |d| d.groups.len()),
        );
    }
}

fn id(n: usize) -> PeerId {
    let mut id = [0; 32];
    id[..8].copy_from_slice(&(n as u64 + 1).to_be_bytes());
    PeerId(id)
}

/// What something takes of the processor, so that other programs do not count; of the clock, where that is not known.
fn timed<T>(f: impl FnOnce() -> T) -> (T, Duration) {
    let busy = || {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
    };
    let (before, started) = (busy(), Instant::now());
    let done = f();
    let took = before.zip(busy()).map_or_else(|| started.elapsed(), |(before, after)| after.saturating_sub(before));
    (done, took)
}
