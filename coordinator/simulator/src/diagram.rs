//! Diagrams, as SVG of our own: boxes, rows and flows, which have places and no axes, so that no crate for plots draws them. Each is a file;
//! what they have in common is here.

pub mod heat;
pub mod placement;
pub mod plan;
pub mod timeline;

use crate::svg::escaped;
use std::fmt::Write;

/// A picture's beginning: its size and its letters. All of it is white, so that lines and letters are read in dark surroundings too.
fn begun(width: f64, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    )
}

// Writing to a string does not fail: results are dropped.
fn text(out: &mut String, (x, y): (f64, f64), size: f64, colour: &str, words: &str) {
    let safe = escaped(words);
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" fill=\"{colour}\">{safe}</text>");
}
