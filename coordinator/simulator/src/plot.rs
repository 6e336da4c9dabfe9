//! Lines over rates, as SVG: what is measured of several policies or systems as more requests come, or of a swarm as it
//! grows.

pub mod heat;
pub mod placement;
pub mod plan;
pub mod timeline;

use std::fmt::Write;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 45.0;
const BOTTOM: f64 = 310.0;
/// Room for the names of the lines.
const NAMES: f64 = 150.0;
const COLOURS: [&str; 8] = ["#c0392b", "#2d6fb4", "#5b8c3a", "#8a8a8a", "#c58a1b", "#7b4fa3", "#1f9e9e", "#5a3e2b"];

/// What the values are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// Multiples from 0.8 to 100, logarithmic; a line ends where it is above.
    Multiples,
    /// Parts of one, from 0 to 1.
    Share,
    /// Seconds, logarithmic, as far as the values go.
    Seconds,
    /// Bytes a second, the same.
    ByteRate,
}

/// A plot.
#[derive(Clone, Debug)]
pub struct Plot<'a> {
    /// What it shows.
    pub title: &'a str,
    /// What goes from left to right: requests/s, or something else.
    pub across: &'a str,
    /// Its values.
    pub rates: &'a [f64],
    /// What the values are.
    pub scale: Scale,
    /// Lines: a name, and a value at each rate. What is not finite is missing.
    pub series: &'a [(String, Vec<f64>)],
}

impl Plot<'_> {
    /// The picture.
    #[must_use]
    pub fn svg(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
             <text x=\"{LEFT}\" y=\"24\" font-size=\"14\">{}</text>",
            escaped(self.title)
        );
        let range = self.range();
        self.axes(&mut out, range);
        for (k, (name, values)) in self.series.iter().enumerate() {
            let colour = COLOURS[k % COLOURS.len()];
            let shown = self.rates.iter().zip(values).filter(|(_, v)| v.is_finite() && **v <= range.1);
            let points: Vec<String> =
                shown.map(|(r, v)| format!("{:.1},{:.1}", self.x(*r), self.y(*v, range))).collect();
            let _ = writeln!(
                out,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2.5\"/>\n\
                 <text x=\"{:.0}\" y=\"{:.0}\" fill=\"{colour}\">{}</text>",
                points.join(" "),
                WIDTH - NAMES + 8.0,
                60.0 + 18.0 * k as f64,
                escaped(name)
            );
        }
        out.push_str("</svg>\n");
        out
    }

    /// The scale's ends.
    fn range(&self) -> (f64, f64) {
        match self.scale {
            Scale::Multiples => (0.8, 100.0),
            Scale::Share => (0.0, 1.0),
            Scale::Seconds | Scale::ByteRate => {
                let all = || self.series.iter().flat_map(|s| &s.1).copied().filter(|v| v.is_finite() && *v > 0.0);
                let (low, high) = (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
                if high > 0.0 { (low * 0.8, (high * 1.2).max(low * 2.0)) } else { (0.1, 1.0) }
            }
        }
    }

    fn ticks(&self, range: (f64, f64)) -> Vec<(f64, String)> {
        match self.scale {
            Scale::Multiples => {
                [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0].iter().map(|t| (*t, format!("{t}x"))).collect()
            }
            Scale::Share => (0..=5).map(|k| (f64::from(k) / 5.0, format!("{} %", k * 20))).collect(),
            Scale::Seconds | Scale::ByteRate => {
                let decades = (range.0.log10().floor() as i32)..=(range.1.log10().ceil() as i32);
                let steps = decades.flat_map(|d| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(d)));
                let inside = steps.filter(|t| (range.0..=range.1).contains(t));
                let label = |t: f64| match self.scale {
                    Scale::ByteRate if t < 999.5 => format!("{t:.0} B/s"),
                    Scale::ByteRate => format!("{:.0} kB/s", t / 1e3),
                    _ if t < 0.9995 => format!("{:.0} ms", t * 1e3),
                    _ => format!("{t:.0} s"),
                };
                inside.map(|t| (t, label(t))).collect()
            }
        }
    }

    fn axes(&self, out: &mut String, range: (f64, f64)) {
        for (tick, label) in self.ticks(range) {
            let y = self.y(tick, range);
            let _ = writeln!(
                out,
                "<line x1=\"{LEFT}\" x2=\"{:.0}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#dddddd\"/><text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
                WIDTH - NAMES,
                LEFT - 8.0,
                y + 4.0
            );
        }
        for rate in self.rates {
            let _ = writeln!(
                out,
                "<text x=\"{:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{rate}</text>",
                self.x(*rate),
                BOTTOM + 18.0
            );
        }
        let _ = writeln!(
            out,
            "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>",
            0.5 * (LEFT + WIDTH - NAMES),
            BOTTOM + 38.0,
            escaped(self.across)
        );
    }

    fn x(&self, rate: f64) -> f64 {
        let last = self.rates.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        LEFT + (WIDTH - LEFT - NAMES) * rate / last
    }

    fn y(&self, value: f64, (low, high): (f64, f64)) -> f64 {
        let value = value.clamp(low, high);
        let part = if self.scale == Scale::Share { value } else { (value / low).ln() / (high / low).ln() };
        BOTTOM - (BOTTOM - TOP) * part
    }
}

/// Round numbers between two others, about so many.
#[must_use]
pub fn ticks(from: f64, to: f64, about: usize) -> Vec<f64> {
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

/// Text as XML has it.
#[must_use]
pub fn escaped(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_drawn_where_its_values_are() {
        let series = [("a<b".to_owned(), vec![1.0, 0.5]), ("gone".to_owned(), vec![f64::NAN, f64::INFINITY])];
        let plot = Plot { title: "t", across: "requests/s", rates: &[1.0, 2.0], scale: Scale::Share, series: &series };
        let svg = plot.svg();
        // At half the way right and the top, then at the right end half-way down.
        assert!(svg.contains("points=\"275.0,45.0 490.0,177.5\""), "{svg}");
        assert!(svg.contains("a&lt;b") && svg.contains("points=\"\""));
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(ticks(0.0, 100.0, 5), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(ticks(0.0, 0.7, 4), [0.0, 0.2, 0.4, 0.6]);
        assert!(ticks(0.0, f64::NAN, 4).is_empty());
    }
}
