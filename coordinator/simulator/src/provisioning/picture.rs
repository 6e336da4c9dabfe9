//! The mixes that were tried as a picture (SVG): machines for prompts by machines for answers, kept or missed.

use super::{ProvisioningAnswer, Question, Tried};
use std::fmt::Write;

const WIDTH: f64 = 640.0;
const PANEL: f64 = 300.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 50.0;
const RIGHT: f64 = 20.0;
const BOTTOM: f64 = 50.0;

/// One panel for each design that was looked at, one under the other.
#[must_use]
pub fn svg(question: &Question, answer: &ProvisioningAnswer) -> String {
    let shown: Vec<&Tried> = answer.designs.iter().filter(|d| !d.looks.is_empty()).collect();
    let height = PANEL * shown.len().max(1) as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    for (i, tried) in shown.iter().enumerate() {
        let _ = writeln!(out, "<g transform=\"translate(0 {})\">", PANEL * i as f64);
        panel(&mut out, question, tried);
        out.push_str("</g>\n");
    }
    out.push_str("</svg>\n");
    out
}

fn panel(out: &mut String, question: &Question, tried: &Tried) {
    let most = |f: fn(&super::TriedMix) -> u32| tried.looks.iter().map(f).max().unwrap_or(0).max(1);
    let (most_prompts, most_answers) = (most(|l| l.mix.prompts), most(|l| l.mix.answers));
    let x = |n: u32| LEFT + (WIDTH - LEFT - RIGHT) * f64::from(n) / f64::from(most_prompts);
    let y = |n: u32| PANEL - BOTTOM - (PANEL - TOP - BOTTOM) * f64::from(n) / f64::from(most_answers);
    let (prompts, answers) = tried.design.kinds();
    let (a, b) = (&question.kinds[prompts.0].name, &question.kinds[answers.0].name);
    let (title, across) = match tried.design {
        super::Design::Split { .. } => (format!("prompts on {a}, answers on {b}"), format!("{a} for prompts")),
        super::Design::Together(_) => (format!("both on {a}"), a.clone()),
    };
    text(out, LEFT, 24.0, "start", &title);
    let (right, bottom) = (x(most_prompts), y(0));
    let _ = writeln!(out, "<path d=\"M{LEFT} {TOP} V{bottom} H{right}\" fill=\"none\" stroke=\"#555555\"/>");
    for (n, place) in [(0, LEFT), (most_prompts, right)] {
        text(out, place, bottom + 16.0, "middle", &n.to_string());
    }
    text(out, LEFT - 8.0, y(most_answers) + 4.0, "end", &most_answers.to_string());
    text(out, 0.5 * (LEFT + right), bottom + 34.0, "middle", &across);
    if matches!(tried.design, super::Design::Split { .. }) {
        let middle = 0.5 * (TOP + bottom);
        let _ = writeln!(out, "<g transform=\"rotate(-90 18 {middle})\">");
        text(out, 18.0, middle, "middle", &format!("{b} for answers"));
        out.push_str("</g>\n");
    }
    for look in &tried.looks {
        let (colour, verdict) = if look.kept { ("#4f9d5d", "kept") } else { ("#d2695f", "missed") };
        let (cx, cy, mix) = (x(look.mix.prompts), y(look.mix.answers), look.mix);
        let said = format!("{} + {} at {:.3} requests/s: {verdict}", mix.prompts, mix.answers, look.rate);
        let _ = writeln!(
            out,
            "<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"4\" fill=\"{colour}\"><title>{said}</title></circle>"
        );
    }
    let Some(best) = tried.best else { return };
    let (cx, cy) = (x(best.mix.prompts), y(best.mix.answers));
    let _ = writeln!(
        out,
        "<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"9\" fill=\"none\" stroke=\"#1a1a1a\" stroke-width=\"2\"/>"
    );
    let price = best.cost.map_or(String::new(), |c| format!(", {c:.0} $/h"));
    let power = best.power.map_or(String::new(), |p| format!(", {:.0} kW", p / 1e3));
    let said = format!("{} + {}: {:.1} requests/s{price}{power}", best.mix.prompts, best.mix.answers, best.rate);
    text(out, WIDTH - RIGHT, 24.0, "end", &said);
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    let safe = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"#1a1a1a\">{safe}</text>");
}
