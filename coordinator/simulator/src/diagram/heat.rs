//! Values between pairs as a diagram: a row and a column for each, the darker the larger.

use super::{begun, text};
use crate::svg::escaped;
use std::fmt::Write;

const CELL: f64 = 46.0;
const LEFT: f64 = 170.0;
const TOP: f64 = 150.0;
const MARGIN: f64 = 20.0;
/// The lightest and the darkest colour: red, green, blue.
const LIGHT: [f64; 3] = [247.0, 244.0, 233.0];
const DARK: [f64; 3] = [23.0, 84.0, 122.0];

/// A value between two.
#[derive(Clone, Debug)]
pub struct HeatCell {
    /// From whom.
    pub row: usize,
    /// To whom.
    pub column: usize,
    /// What decides the colour, on a logarithmic scale.
    pub value: f64,
    /// What stands in it.
    pub shown: String,
    /// What is said when it is pointed at.
    pub said: String,
}

/// A picture of values between pairs.
#[derive(Clone, Copy, Debug)]
pub struct Heat<'a> {
    /// What it shows.
    pub title: &'a str,
    /// Names of rows and columns alike.
    pub labels: &'a [String],
    /// Values that are known.
    pub cells: &'a [HeatCell],
}

impl Heat<'_> {
    /// The picture.
    #[must_use]
    pub fn svg(&self) -> String {
        let side = CELL * self.labels.len() as f64;
        let (width, height) = (LEFT + side + MARGIN, TOP + side + MARGIN);
        let mut out = begun(width, height);
        text(&mut out, (MARGIN, 24.0), 14.0, "#1a1a1a", self.title);
        for (k, label) in self.labels.iter().enumerate() {
            let (middle, label) = (CELL * (k as f64 + 0.5), escaped(label));
            let _ = writeln!(
                out,
                "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{label}</text>\n\
                 <text transform=\"translate({:.0} {:.0}) rotate(-45)\">{label}</text>",
                LEFT - 8.0,
                TOP + middle + 4.0,
                LEFT + middle,
                TOP - 8.0,
            );
        }
        let range = self.range();
        self.cells.iter().for_each(|cell| draw(&mut out, cell, range));
        let _ = writeln!(
            out,
            "<rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{side}\" height=\"{side}\" fill=\"none\" stroke=\"#999999\"/>\n</svg>"
        );
        out
    }

    /// The least and the largest value, as logarithms.
    fn range(&self) -> (f64, f64) {
        let values = || self.cells.iter().map(|cell| cell.value).filter(|v| v.is_finite() && *v > 0.0);
        (values().fold(f64::INFINITY, f64::min).ln(), values().fold(0.0, f64::max).ln())
    }
}

fn draw(out: &mut String, cell: &HeatCell, (least, most): (f64, f64)) {
    let part = if most > least { ((cell.value.ln() - least) / (most - least)).clamp(0.0, 1.0) } else { 0.5 };
    let [r, g, b] = std::array::from_fn(|k| LIGHT[k] + (DARK[k] - LIGHT[k]) * part);
    let ink = if part > 0.55 { "#ffffff" } else { "#1a1a1a" };
    let (x, y) = (LEFT + CELL * cell.column as f64, TOP + CELL * cell.row as f64);
    let _ = writeln!(
        out,
        "<g><title>{}</title><rect x=\"{x:.0}\" y=\"{y:.0}\" width=\"{CELL}\" height=\"{CELL}\" fill=\"rgb({r:.0},{g:.0},{b:.0})\"/>\
         <text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\" fill=\"{ink}\">{}</text></g>",
        escaped(&cell.said),
        x + 0.5 * CELL,
        y + 0.5 * CELL + 4.0,
        escaped(&cell.shown),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_is_the_darkest_and_what_is_not_known_is_white() {
        let cell =
            |row, column, value: f64| HeatCell { row, column, value, shown: format!("{value}"), said: "a<b".into() };
        let labels = ["one".to_owned(), "two".to_owned()];
        let cells = [cell(0, 1, 10.0), cell(1, 0, 1000.0)];
        let svg = Heat { title: "t", labels: &labels, cells: &cells }.svg();
        assert!(svg.contains("x=\"216\" y=\"150\" width=\"46\" height=\"46\" fill=\"rgb(247,244,233)\""), "{svg}");
        assert!(svg.contains("x=\"170\" y=\"196\" width=\"46\" height=\"46\" fill=\"rgb(23,84,122)\""), "{svg}");
        assert_eq!((svg.matches("<g>").count(), svg.contains("a&lt;b")), (2, true));
        assert!(Heat { title: "none", labels: &[], cells: &[] }.svg().ends_with("</svg>\n"));
    }
}
