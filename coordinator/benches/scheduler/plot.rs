//! Lines over rates, as SVG: the documentation's plots. Values are on a logarithmic scale, what is missing ends a line.

use std::fmt::Write;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 60.0;
const BOTTOM: f64 = 310.0;
const COLOURS: [&str; 5] = ["#c0392b", "#2d6fb4", "#5b8c3a", "#8a8a8a", "#c58a1b"];
/// The scale's ends.
const RANGE: (f64, f64) = (0.8, 100.0);

/// A picture of series over rates.
pub fn svg(title: &str, rates: &[f64], series: &[(&str, Vec<f64>)]) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"14\">{title}</text>"
    );
    let last = rates.last().copied().unwrap_or(1.0);
    let x = |rate: f64| LEFT + (WIDTH - LEFT - 150.0) * rate / last;
    let y = |value: f64| {
        let part = (value.clamp(RANGE.0, RANGE.1) / RANGE.0).ln() / (RANGE.1 / RANGE.0).ln();
        BOTTOM - (BOTTOM - 45.0) * part
    };
    for tick in [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0] {
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{:.0}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#dddddd\"/><text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{tick}x</text>",
            WIDTH - 150.0,
            LEFT - 8.0,
            y(tick) + 4.0,
            y = y(tick)
        );
    }
    for rate in rates {
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{rate}</text>",
            x(*rate),
            BOTTOM + 18.0
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">requests/s</text>",
        x(last / 2.0),
        BOTTOM + 38.0
    );
    for (k, (name, values)) in series.iter().enumerate() {
        let colour = COLOURS[k % COLOURS.len()];
        let shown = rates.iter().zip(values).filter(|(_, v)| v.is_finite() && **v <= RANGE.1);
        let points: Vec<String> = shown.map(|(r, v)| format!("{:.1},{:.1}", x(*r), y(*v))).collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2.5\"/>\n\
             <text x=\"{:.0}\" y=\"{:.0}\" fill=\"{colour}\">{name}</text>",
            points.join(" "),
            WIDTH - 142.0,
            60.0 + 18.0 * k as f64
        );
    }
    out.push_str("</svg>\n");
    out
}
