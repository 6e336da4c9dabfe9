//! A picture of a run: a line for each peer with what was done to it, one for the plans, and below the requests with their pauses.

use super::{ChaosReport, Deed, FollowedPlan, ServedStream, Stamped};
use std::fmt::Write;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 44.0;
const ROW: f64 = 20.0;
/// Height of the part that shows pauses, and the pause that fills it (seconds).
const PAUSES: f64 = 120.0;
const LEAST_SCALE: f64 = 2.0;

/// How a deed is drawn and told.
const DEEDS: [(Deed, &str, &str); 6] = [
    (Deed::Kill, "#c0392b", "killed"),
    (Deed::Stop, "#e08e1b", "stopped"),
    (Deed::Cut, "#8e44ad", "cut off"),
    (Deed::Part, "#c2569b", "cut off with others"),
    (Deed::Slow, "#2e86c1", "slow"),
    (Deed::Corrupt, "#7d6608", "corrupt"),
];
/// How requests are drawn that nothing happened to, that moved, and whose clients came back.
const UNHURT: &str = "#b8b8b8";
const MOVED: &str = "#2d6fb4";
const RETURNED: &str = "#7b4fa3";

pub(super) fn svg(report: &ChaosReport) -> String {
    let rows = (report.peers.len() + 1) as f64 * ROW;
    let height = TOP + rows + PAUSES + 70.0;
    let x = |at: f64| LEFT + at / report.seconds.max(1e-9) * (WIDTH - LEFT - RIGHT);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{}</text>\n",
        title(report)
    );
    legend(&mut out);
    for (n, peer) in report.peers.iter().enumerate() {
        row(&mut out, report, peer, TOP + n as f64 * ROW, x);
    }
    plans(&mut out, report, TOP + rows - ROW, x);
    pauses(&mut out, &report.streams, TOP + rows + 20.0, x);
    seconds(&mut out, report.seconds, height - 14.0, x);
    out.push_str("</svg>\n");
    out
}

// Writing to a string does not fail: results are dropped.
fn legend(out: &mut String) {
    let _ = write!(out, "<text x=\"{LEFT}\" y=\"35\" fill=\"#666666\">");
    for (_, colour, told) in DEEDS {
        let _ = write!(out, "<tspan fill=\"{colour}\">{told}</tspan>, ");
    }
    let _ = writeln!(
        out,
        "each until its end. Requests by their longest pause: <tspan fill=\"{UNHURT}\">unhurt</tspan>, \
         <tspan fill=\"{MOVED}\">moved to another group</tspan>, <tspan fill=\"{RETURNED}\">back at another gateway</tspan></text>"
    );
}

fn title(report: &ChaosReport) -> String {
    let what = if report.wrongs().is_empty() { "every token right" } else { "NOT ALL RIGHT" };
    let (faults, streams) = (report.faults.len(), report.streams.len());
    format!("chaos, seed {}: {faults} faults, {streams} streams, {what}", report.seed)
}

fn row(out: &mut String, report: &ChaosReport, peer: &str, y: f64, x: impl Fn(f64) -> f64) {
    let end = x(report.seconds);
    let _ = writeln!(
        out,
        "<text x=\"8\" y=\"{:.1}\">{peer}</text><line x1=\"{LEFT}\" y1=\"{m:.1}\" x2=\"{end:.1}\" y2=\"{m:.1}\" stroke=\"#cfe3cf\" stroke-width=\"8\"/>",
        y + 14.0,
        m = y + 10.0
    );
    for fault in report.faults.iter().filter(|f| f.hit(peer)) {
        let (from, to) = (x(fault.at), x(fault.until).max(x(fault.at) + 2.0));
        let role = if fault.peer == peer { fault.role.clone() } else { format!("with {}", fault.peer) };
        let (_, colour, deed) = DEEDS.into_iter().find(|(deed, ..)| *deed == fault.deed).unwrap_or(DEEDS[0]);
        let _ = writeln!(
            out,
            "<rect x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"12\" fill=\"{colour}\"><title>{peer}, {role}: {deed} at {:.1} s, back at {:.1} s</title></rect>",
            y + 4.0,
            to - from,
            fault.at,
            fault.until
        );
    }
}

/// Plans one after the other, two greys in turns; none is white.
fn plans(out: &mut String, report: &ChaosReport, y: f64, x: impl Fn(f64) -> f64) {
    let _ = writeln!(out, "<text x=\"8\" y=\"{:.1}\">plans</text>", y + 14.0);
    let ends = report.plans.iter().skip(1).map(|next| next.at).chain([report.seconds]);
    for (n, (Stamped { at, what: FollowedPlan { plan, coordinator } }, end)) in
        report.plans.iter().zip(ends).enumerate()
    {
        let colour = if plan.is_none() { "#ffffff" } else { ["#9aa5b1", "#cbd2d9"][n % 2] };
        let (plan, coordinator) = (plan.as_deref().unwrap_or("none"), coordinator.as_deref().unwrap_or("nobody"));
        let _ = writeln!(
            out,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"12\" fill=\"{colour}\"><title>plan {plan} from {at:.1} s, {coordinator} plans</title></rect>",
            x(*at),
            y + 4.0,
            (x(end) - x(*at)).max(0.5)
        );
    }
}

fn pauses(out: &mut String, streams: &[ServedStream], y: f64, x: impl Fn(f64) -> f64) {
    let scale = streams.iter().map(|s| s.pause).fold(LEAST_SCALE, f64::max);
    let height = |pause: f64| y + PAUSES * (1.0 - pause / scale);
    for mark in [0.0, scale / 2.0, scale] {
        let at = height(mark);
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{:.1}\" y2=\"{at:.1}\" stroke=\"#e4e4e4\"/><text x=\"8\" y=\"{:.1}\">{mark:.1} s pause</text>",
            WIDTH - RIGHT,
            at + 4.0
        );
    }
    for s in streams {
        let colour = match (s.returns, s.moves.len()) {
            (1.., _) => RETURNED,
            (0, 1..) => MOVED,
            _ => UNHURT,
        };
        let (from, to, at) = (x(s.from), x(s.to), height(s.pause));
        let _ = writeln!(
            out,
            "<line x1=\"{from:.1}\" y1=\"{at:.1}\" x2=\"{to:.1}\" y2=\"{at:.1}\" stroke=\"{colour}\" stroke-opacity=\"0.25\"/>\
             <circle cx=\"{to:.1}\" cy=\"{at:.1}\" r=\"2.5\" fill=\"{colour}\"><title>{}: {:.1} s to {:.1} s, longest pause {:.2} s {}</title></circle>",
            escaped(&s.request),
            s.from,
            s.to,
            s.pause,
            escaped(&s.moves.iter().map(|m| m.reason.as_str()).collect::<Vec<_>>().join("; "))
        );
    }
}

fn seconds(out: &mut String, all: f64, y: f64, x: impl Fn(f64) -> f64) {
    let step =
        [1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0].into_iter().find(|step| all / step <= 12.0).unwrap_or(600.0);
    let mut at = 0.0;
    while at <= all {
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{y:.1}\" text-anchor=\"middle\" fill=\"#666666\">{at:.0} s</text>",
            x(at)
        );
        at += step;
    }
}

/// Words of a peer as XML has them.
fn escaped(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        chaos::{InjectedFault, Spread},
        client::Moved,
    };

    #[test]
    fn a_picture_has_every_peer_fault_and_stream() {
        let fault = |deed, peer: &str| InjectedFault {
            nth: 1,
            deed,
            peer: peer.into(),
            with: if deed == Deed::Part { vec!["gateway0".into()] } else { vec![] },
            role: "decode leader".into(),
            roles: vec![vec!["decode leader".into()]],
            at: 1.0,
            until: 2.0,
            gone: Some(0.5),
            replanned: None,
            healed: None,
        };
        let plan = |at, plan: &str| Stamped { at, what: FollowedPlan { plan: Some(plan.into()), coordinator: None } };
        let stream = |moves: usize, returns| {
            let moves = vec![Moved { reason: "lost <it>".into(), way: None }; moves];
            ServedStream {
                from: 0.0,
                to: 3.0,
                tokens: 160,
                pause: 0.5,
                paused: 1.0,
                pauses: vec![],
                request: String::new(),
                moves,
                reason: String::new(),
                returns,
            }
        };
        let report = ChaosReport {
            seed: 7,
            seconds: 4.0,
            peers: vec!["peer0".into(), "gateway0".into()],
            faults: vec![fault(Deed::Kill, "peer0"), fault(Deed::Stop, "peer0"), fault(Deed::Part, "peer0")],
            plans: vec![plan(0.0, "first"), plan(2.0, "second")],
            streams: vec![stream(0, 0), stream(1, 0), stream(0, 2)],
            wronged: vec![],
            cut_off: vec![],
            violations: vec![],
        };
        let svg = svg(&report);
        let faults = [
            "peer0",
            "gateway0",
            "killed at 1.0 s",
            "stopped at 1.0 s",
            "with peer0: cut off with others",
            "every token right",
        ];
        for part in
            faults.into_iter().chain([RETURNED, "lost &lt;it&gt;", "plan first from 0.0 s", "plan second from 2.0 s"])
        {
            assert!(svg.contains(part), "{part}");
        }
        assert_eq!(svg.matches("<circle").count(), 3);
        let spread = |median, of| Some(Spread { median, ninety: median, ninety_nine: median, most: median, of });
        let summary = report.summary();
        assert_eq!((summary.pauses, summary.gone, summary.replanned), (spread(0.5, 2), spread(0.5, 3), None));
        assert_eq!(summary.hits, [("decode leader", 3)].into());
    }
}
