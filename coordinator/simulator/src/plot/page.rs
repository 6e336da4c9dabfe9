//! What all plots have in common: a page to draw on, letters, colours, names of colours, and notes for who points at something.

use crate::svg::{COLOURS, escaped};
use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};
use std::fmt::Write;

/// A part of a page; places on it are in pixels from its own corner.
pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// What comes of drawing.
pub(super) type PlotResult = Result<(), DrawingAreaErrorKind<std::io::Error>>;

pub(super) const INK: RGBColor = RGBColor(26, 26, 26);
pub(super) const AXIS: RGBColor = RGBColor(85, 85, 85);
pub(super) const GRID: RGBColor = RGBColor(221, 221, 221);
/// Half of a square in which a note is shown.
const REACH: i32 = 6;
/// What plotters divides a font's size by to have that of the letters.
const LINE: f64 = 1.24;

/// A page of so many pixels. All of it is white, so that lines and letters are read in dark surroundings too.
pub(super) fn page(size: (u32, u32), draw: impl FnOnce(&Area<'_>) -> PlotResult) -> String {
    let mut picture = String::new();
    let root = SVGBackend::with_string(&mut picture, size).into_drawing_area();
    let drawn = root.fill(&WHITE).and_then(|()| draw(&root)).and_then(|()| root.present());
    drop(root);
    // What can fail is a file, a font, and drawing while something else draws: here is a string, no font is asked, and nothing else
    // draws. No value that is drawn can make it fail (`every_line_is_drawn_where_its_values_are` has none, and none that is finite).
    drawn.expect("a string takes whatever is drawn");
    picture
}

/// Letters of a size in pixels.
pub(super) fn letters(size: f64) -> TextStyle<'static> {
    FontDesc::new(FontFamily::SansSerif, size * LINE, FontStyle::Normal).color(&INK)
}

/// Letters that end where they are put.
pub(super) fn ending(size: f64) -> TextStyle<'static> {
    letters(size).pos(Pos::new(HPos::Right, VPos::Top))
}

/// The n-th colour of several.
pub(super) fn colour(n: usize) -> RGBColor {
    let [red, green, blue] = COLOURS[n % COLOURS.len()];
    RGBColor(red, green, blue)
}

/// What a colour stands for; `y` is the middle of it.
pub(super) fn legend(area: &Area<'_>, (x, y): (i32, i32), colour: RGBColor, name: &str) -> PlotResult {
    area.draw(&Rectangle::new([(x, y - 5), (x + 10, y + 5)], colour.filled()))?;
    area.draw(&Text::new(name, (x + 16, y), letters(12.0).pos(Pos::new(HPos::Left, VPos::Center))))
}

/// What is said where somebody points.
pub(super) struct Tooltip {
    /// Its middle, in pixels of the page.
    pub(super) at: (i32, i32),
    /// The words.
    pub(super) said: String,
}

/// Puts notes over a page, which plotters has none of.
pub(super) fn noted(picture: &str, notes: &[Tooltip]) -> String {
    const END: &str = "</svg>\n";
    let mut out = picture.strip_suffix(END).unwrap_or(picture).to_owned();
    for Tooltip { at: (x, y), said } in notes {
        let _ = writeln!(
            out,
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill-opacity=\"0\"><title>{}</title></rect>",
            x - REACH,
            y - REACH,
            2 * REACH,
            2 * REACH,
            escaped(said)
        );
    }
    out.push_str(END);
    out
}
