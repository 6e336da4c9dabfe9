//! The mixes of each design as a picture (SVG).
