//! What machines did when, as a diagram: a row for each, what it was busy with, how many tasks waited, which
//! requests were late; who sent KV to whom, and how much when. Everything is summed over bins of time: the picture of a
//! million requests is no larger than that of a thousand.

use super::{begun, text};
use std::collections::BTreeMap;
use std::fmt::Write;
use tsnode_coordinator::{
    policy::routing::MachineNo,
    replay::machines::{Outcome, ReplayTrace},
};
use tsnode_protocol::{Bytes, BytesPerToken, Phase, Seconds, Tokens};

const WIDTH: f64 = 1180.0;
const LEFT: f64 = 230.0;
const RIGHT: f64 = 1040.0;
const TOP: f64 = 86.0;
const ROW: f64 = 58.0;
const BAR: f64 = 42.0;
/// Bins of time across.
const BINS: usize = 270;
/// Rows drawn: those with most to do.
const ROWS: usize = 40;
const PROMPTS: &str = "#f2b66d";
const ANSWERS: &str = "#7fb2e5";
const BOTH: &str = "#a8cf8e";
const WAITING: &str = "#2b2b2b";
const LATE: &str = "#c0392b";
const KV: &str = "#7a7a7a";

/// A machine as its row names it.
#[derive(Clone, Debug)]
pub struct Label {
    /// What it does.
    pub phase: Phase,
    /// Its devices.
    pub name: String,
}

/// The picture of a simulation that was recorded. `is_late` says which requests missed their deadlines; `kv` is what a
/// token's KV takes on the wire.
#[must_use]
pub fn svg(
    title: &str,
    labels: &[Label],
    outcome: &Outcome,
    kv: BytesPerToken,
    is_late: &dyn Fn(&ReplayTrace) -> bool,
) -> String {
    let span = outcome.end.0.max(1e-9);
    let rows = TimelineRows::new(labels.len(), outcome, kv, is_late);
    let mut drawn: Vec<usize> = (0..labels.len()).collect();
    drawn.sort_by(|a, b| rows.total(*b).total_cmp(&rows.total(*a)));
    drawn.truncate(ROWS);
    drawn.sort_by_key(|&m| (labels[m].phase as u8, m));
    let height = TOP + ROW * (drawn.len() + 1) as f64 + 50.0;
    let mut out = begun(WIDTH, height);
    text(&mut out, (20.0, 28.0), 16.0, "#1a1a1a", title);
    legend(&mut out);
    let mut places = BTreeMap::new();
    for (place, &machine) in drawn.iter().enumerate() {
        let y = TOP + ROW * place as f64;
        places.insert(machine, y);
        row(&mut out, y, &format!("{} {}", machine + 1, labels[machine].phase), &labels[machine].name);
        rows.draw(&mut out, machine, outcome, span, y);
    }
    arcs(&mut out, &rows.flows, &places);
    let bottom = TOP + ROW * drawn.len() as f64;
    row(&mut out, bottom, "KV sent, 16 bit", &hidden(labels.len() - drawn.len()));
    sent(&mut out, &rows.sent, span, bottom);
    axis(&mut out, span, bottom + BAR);
    out.push_str("</svg>\n");
    out
}

/// Time in bins, of each machine.
struct TimelineRows {
    /// Tasks that wait, on average in each bin.
    waiting: Vec<Vec<f64>>,
    /// Requests that came and went there for their prompts, and those of them that were late.
    came: Vec<Vec<(u32, u32)>>,
    /// Tasks done.
    done: Vec<f64>,
    /// KV between two machines (bytes).
    flows: BTreeMap<(usize, usize), f64>,
    /// All KV in each bin (bytes/s).
    sent: Vec<f64>,
}

impl TimelineRows {
    fn new(machines: usize, outcome: &Outcome, kv: BytesPerToken, is_late: &dyn Fn(&ReplayTrace) -> bool) -> Self {
        let mut rows = Self {
            waiting: vec![vec![0.0; BINS]; machines],
            came: vec![vec![(0, 0); BINS]; machines],
            done: vec![0.0; machines],
            flows: BTreeMap::new(),
            sent: vec![0.0; BINS],
        };
        let width = outcome.end.0.max(1e-9) / BINS as f64;
        for trace in &outcome.traces {
            rows.add(trace, width, kv, is_late(trace));
        }
        rows
    }

    fn add(&mut self, trace: &ReplayTrace, width: f64, kv: BytesPerToken, late: bool) {
        let Some(route) = trace.route else { return };
        let (from, to) = (route.prompt.0 as usize, route.answer.0 as usize);
        let (arrived, asked) = (trace.arrival.at, trace.arrival.asked);
        let came = &mut self.came[from][((arrived.0 / width) as usize).min(BINS - 1)];
        *came = (came.0 + 1, came.1 + u32::from(late));
        over(&mut self.waiting[from], width, arrived, trace.prompt_start, 1.0);
        self.done[from] += 1.0;
        if asked.answer <= 1 || !trace.first.is_finite() {
            return;
        }
        self.done[to] += 1.0;
        let landed = if from == to { trace.first } else { trace.first + trace.sending };
        over(&mut self.waiting[to], width, landed, trace.answer_start, 1.0);
        if from != to {
            let Bytes(bytes) = kv * Tokens(f64::from(asked.prompt));
            *self.flows.entry((from, to)).or_insert(0.0) += bytes;
            // It goes while the prompt is computed and until it has landed.
            let time = (landed - trace.prompt_start).0.max(1e-6);
            over(&mut self.sent, width, trace.prompt_start, landed, bytes / time);
        }
    }

    fn total(&self, machine: usize) -> f64 {
        self.done[machine]
    }

    fn draw(&self, out: &mut String, machine: usize, outcome: &Outcome, span: f64, y: f64) {
        let busy = busy(outcome, machine, span);
        // One behind the other: what is in front hides what it is a part of.
        area(out, BOTH, busy.iter().map(|[prompts, answers, both]| prompts + answers + both), y);
        area(out, ANSWERS, busy.iter().map(|[prompts, answers, _]| prompts + answers), y);
        area(out, PROMPTS, busy.iter().map(|[prompts, ..]| *prompts), y);
        let most = self.waiting[machine].iter().copied().fold(0.0, f64::max);
        if most >= 0.5 {
            let points = self.waiting[machine].iter().enumerate().map(|(k, w)| (x_of(k), y + BAR * (1.0 - w / most)));
            line(out, WAITING, points);
            text(out, (RIGHT + 6.0, y + 10.0), 10.0, WAITING, &format!("{most:.0} wait"));
        }
        let late = self.came[machine].iter().enumerate().filter(|(_, (_, late))| *late > 0);
        for (k, (came, late)) in late {
            let share = f64::from(*late) / f64::from(*came);
            let _ = writeln!(
                out,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"5\" fill=\"{LATE}\" fill-opacity=\"{share:.2}\"/>",
                x_of(k),
                y + BAR + 2.0,
                x_of(1) - x_of(0)
            );
        }
    }
}

/// Adds a weight over the part of each bin that lies between two times; what never ends, ends with the last bin.
fn over(bins: &mut [f64], width: f64, from: Seconds, to: Seconds, weight: f64) {
    let to = to.0.min(width * BINS as f64);
    if from.0 >= to || !from.is_finite() {
        return;
    }
    let (first, last) = ((from.0 / width) as usize, ((to / width) as usize).min(BINS - 1));
    for (place, bin) in bins.iter_mut().enumerate().take(last + 1).skip(first) {
        let (low, high) = (place as f64 * width, (place + 1) as f64 * width);
        *bin += weight * (to.min(high) - from.0.max(low)).max(0.0) / width;
    }
}

/// Parts of each bin with prompts, with answers, with both.
fn busy(outcome: &Outcome, machine: usize, span: f64) -> Vec<[f64; 3]> {
    let width = span / BINS as f64;
    let mut parts = [vec![0.0; BINS], vec![0.0; BINS], vec![0.0; BINS]];
    if let Some(timeline) = &outcome.timeline {
        let each = timeline.width();
        for (place, bin) in timeline.busy(MachineNo(machine as u32)).iter().enumerate() {
            let (from, to) = (each * place as f64, (each * (place + 1) as f64).min(Seconds(span)));
            let time = (to - from).0.max(1e-9);
            for (part, seconds) in parts.iter_mut().zip([bin.prompts, bin.answers, bin.both]) {
                over(part, width, from, to, seconds / time);
            }
        }
    }
    let [prompts, answers, both] = parts;
    let all = prompts.into_iter().zip(answers).zip(both);
    all.map(|((p, a), b)| [p, a, b].map(|part| part.clamp(0.0, 1.0))).collect()
}

fn x_of(bin: usize) -> f64 {
    LEFT + (RIGHT - LEFT) * bin as f64 / BINS as f64
}

fn hidden(rows: usize) -> String {
    if rows == 0 { "all links together".to_owned() } else { format!("all links; {rows} groups are not shown") }
}

fn row(out: &mut String, y: f64, head: &str, name: &str) {
    let _ = writeln!(
        out,
        "<rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{:.0}\" height=\"{BAR}\" fill=\"#f4f4f4\"/>",
        RIGHT - LEFT
    );
    text(out, (20.0, y + 16.0), 12.0, "#111111", head);
    let short: String =
        if name.chars().count() > 34 { name.chars().take(33).chain(['…']).collect() } else { name.into() };
    text(out, (20.0, y + 32.0), 10.0, "#555555", &short);
}

/// Heights from 0 to 1 as steps; equal neighbours are one.
fn area(out: &mut String, colour: &str, heights: impl Iterator<Item = f64>, y: f64) {
    let floor = y + BAR;
    let mut path = format!("M{LEFT:.0} {floor:.1}");
    let mut before = -1.0;
    for (k, height) in heights.enumerate() {
        let top = ((floor - BAR * height.clamp(0.0, 1.0)) * 2.0).round() / 2.0;
        if top != before {
            let _ = write!(path, "H{:.1}V{top:.1}", x_of(k));
            before = top;
        }
    }
    let _ = writeln!(out, "<path d=\"{path}H{RIGHT}V{floor:.1}Z\" fill=\"{colour}\"/>");
}

fn line(out: &mut String, colour: &str, points: impl Iterator<Item = (f64, f64)>) {
    let points: Vec<String> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(
        out,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.2\"/>",
        points.join(" ")
    );
}

/// From the prompts' row to the answers', as wide as its part of all KV.
fn arcs(out: &mut String, flows: &BTreeMap<(usize, usize), f64>, places: &BTreeMap<usize, f64>) {
    let all: f64 = flows.values().sum();
    for ((from, to), bytes) in flows {
        let (Some(a), Some(b)) = (places.get(from), places.get(to)) else { continue };
        let (x, y0, y1) = (RIGHT + 46.0, a + BAR / 2.0, b + BAR / 2.0);
        let far = x + 30.0 + 60.0 * (y1 - y0).abs() / (ROW * places.len() as f64);
        let wide = (30.0 * bytes / all).max(0.6);
        let _ = writeln!(
            out,
            "<path d=\"M{x:.0} {y0:.1} C{far:.0} {y0:.1} {far:.0} {y1:.1} {x:.0} {y1:.1}\" fill=\"none\" stroke=\"{KV}\" stroke-opacity=\"0.55\" stroke-width=\"{wide:.1}\"><title>{} to {}: {:.1} GB</title></path>",
            from + 1,
            to + 1,
            bytes / 1e9
        );
    }
}

fn sent(out: &mut String, sent: &[f64], span: f64, y: f64) {
    let most = sent.iter().copied().fold(0.0, f64::max);
    if most > 0.0 {
        area(out, KV, sent.iter().map(|s| s / most), y);
        text(out, (RIGHT + 6.0, y + 10.0), 10.0, WAITING, &format!("{:.2} GB/s", most / 1e9));
    }
    let all = sent.iter().sum::<f64>() * span / BINS as f64;
    text(out, (RIGHT + 6.0, y + 26.0), 10.0, WAITING, &format!("{:.1} GB in all", all / 1e9));
}

fn axis(out: &mut String, span: f64, y: f64) {
    for tick in ticks(0.0, span, 8) {
        let x = LEFT + (RIGHT - LEFT) * tick / span;
        let _ = writeln!(
            out,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{:.1}\" stroke=\"#cccccc\" stroke-width=\"0.6\"/>",
            y + 8.0
        );
        text(out, (x - 8.0, y + 22.0), 11.0, "#333333", &format!("{tick} s"));
    }
}

/// Round numbers between two others, about so many.
fn ticks(from: f64, to: f64, about: usize) -> Vec<f64> {
    let rough = (to - from) / about.max(1) as f64;
    if !(rough.is_finite() && rough > 0.0) {
        return Vec::new();
    }
    let decade = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * decade).into_iter().find(|s| *s >= rough).unwrap_or(rough);
    let first = (from / step).ceil() as i64;
    // A product of a small whole number and a power of ten, without the digits that rounding adds.
    let tidy = |k: i64| if step >= 1.0 { k as f64 * step } else { k as f64 / (1.0 / step).round() };
    (first..).map(tidy).take_while(|t| *t <= to).collect()
}

fn legend(out: &mut String) {
    let kinds = [(PROMPTS, "prompts"), (ANSWERS, "answers"), (BOTH, "both at once"), (LATE, "came and were late")];
    for (i, (colour, what)) in kinds.into_iter().enumerate() {
        let x = LEFT + 130.0 * i as f64;
        let _ = writeln!(out, "<rect x=\"{x}\" y=\"46\" width=\"14\" height=\"14\" rx=\"3\" fill=\"{colour}\"/>");
        text(out, (x + 20.0, 58.0), 12.0, "#333333", what);
    }
    let x = LEFT + 540.0;
    let _ = writeln!(out, "<line x1=\"{x}\" x2=\"{}\" y1=\"53\" y2=\"53\" stroke=\"{WAITING}\"/>", x + 20.0);
    text(out, (x + 26.0, 58.0), 12.0, "#333333", "tasks that wait, each row to its own most");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_falls_into_the_bins_it_covers() {
        let mut bins = vec![0.0; BINS];
        over(&mut bins, 2.0, Seconds(1.0), Seconds(5.0), 3.0);
        assert_eq!(bins[..4], [1.5, 3.0, 1.5, 0.0]);
        over(&mut bins, 2.0, Seconds(500.0), Seconds(f64::INFINITY), 1.0);
        assert_eq!((bins[249], bins[250], bins[BINS - 1]), (0.0, 1.0, 1.0));
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(ticks(0.0, 100.0, 5), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(ticks(0.0, 0.7, 4), [0.0, 0.2, 0.4, 0.6]);
        assert!(ticks(0.0, f64::NAN, 4).is_empty());
    }
}
