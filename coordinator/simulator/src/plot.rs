//! Plots, drawn by `plotters`: lines over rates, of what is measured of several policies or systems as more requests come or as a swarm
//! grows, and in [`mixes`] points over two numbers of machines. What has no axes is a [diagram](crate::diagram).

pub mod mixes;
mod page;

use self::page::{AXIS, Area, GRID, PlotResult, colour, legend, letters, page};
use plotters::{
    coord::{ranged1d::ValueFormatter, types::RangedCoordf64},
    prelude::*,
};

/// The part with the axes, without the names at its right (pixels).
const WIDTH: u32 = 600;
const HEIGHT: u32 = 380;
/// Room for the title.
const TOP: u32 = 34;
/// Height of a name.
const ROW: u32 = 20;
/// Decades with marks at 1, 2 and 5; of more only the powers of ten have room.
const DECADES: usize = 6;

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

/// A plot of lines.
#[derive(Clone, Debug)]
pub struct Plot<'a> {
    /// What it shows.
    pub title: &'a str,
    /// What goes from left to right, with its unit: requests/s, or something else.
    pub across: &'a str,
    /// What goes up. Marks have its unit.
    pub up: &'a str,
    /// Values of what goes from left to right.
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
        let (low, high) = self.range();
        if self.scale == Scale::Share {
            return self.drawn(RangedCoordf64::from(low..high));
        }
        // Own marks: those of plotters are powers of ten, of which a decade of times may have none.
        self.drawn((low..high).log_scale().with_key_points(marks(low, high)))
    }

    fn drawn<Y>(&self, up: Y) -> String
    where
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let longest = self.series.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let side = (40 + 7 * longest as u32).clamp(110, 360);
        let height = HEIGHT.max(TOP + ROW * (self.series.len() as u32 + 1));
        page((WIDTH + side, height), |root| {
            root.draw(&Text::new(self.title, (16, 10), letters(14.0)))?;
            let (area, names) = root.margin(TOP, 0, 0, 0).split_horizontally(WIDTH);
            self.lines(&area, up)?;
            for (n, (name, _)) in self.series.iter().enumerate() {
                legend(&names, (4, (ROW * (n as u32 + 1)) as i32), colour(n), name)?;
            }
            Ok(())
        })
    }

    fn lines<Y>(&self, area: &Area<'_>, up: Y) -> PlotResult
    where
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let (low, high) = self.range();
        let last = self.rates.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let mut chart = ChartBuilder::on(area)
            .margin_left(8)
            .margin_right(16)
            .margin_bottom(6)
            .x_label_area_size(42)
            .y_label_area_size(72)
            .build_cartesian_2d(0.0..last, up)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .max_light_lines(0)
            .bold_line_style(GRID)
            .axis_style(AXIS)
            .set_all_tick_mark_size(4)
            .label_style(letters(12.0))
            .x_desc(self.across)
            .y_desc(self.up)
            .x_labels(11)
            .y_labels(6)
            .x_label_formatter(&|x: &f64| ((*x * 1e4).round() / 1e4).to_string())
            .y_label_formatter(&|y: &f64| self.label(*y))
            .draw()?;
        for (n, (_, values)) in self.series.iter().enumerate() {
            let shown = self.rates.iter().zip(values).filter(|(_, v)| v.is_finite() && **v <= high);
            let points = shown.map(|(x, v)| (*x, (*v).max(low)));
            chart.draw_series(LineSeries::new(points, colour(n).filled().stroke_width(2)).point_size(3))?;
        }
        Ok(())
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

    /// A mark's words.
    fn label(&self, value: f64) -> String {
        match self.scale {
            Scale::Multiples => format!("{value}x"),
            Scale::Share => format!("{:.0} %", value * 100.0),
            Scale::Seconds if value < 0.9995e-3 => format!("{:.0} µs", value * 1e6),
            Scale::Seconds if value < 0.9995 => format!("{:.0} ms", value * 1e3),
            Scale::Seconds => format!("{value:.0} s"),
            Scale::ByteRate if value < 999.5 => format!("{value:.0} B/s"),
            Scale::ByteRate => format!("{:.0} kB/s", value / 1e3),
        }
    }
}

/// Round numbers on a logarithmic scale.
fn marks(low: f64, high: f64) -> Vec<f64> {
    let decades = (low.log10().floor() as i32)..=(high.log10().ceil() as i32);
    let parts: &[f64] = if decades.clone().count() > DECADES { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let all = decades.flat_map(|decade| parts.iter().map(move |part| *part * 10f64.powi(decade)));
    all.filter(|mark| (low..=high).contains(mark)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_drawn_where_its_values_are() {
        let series = [("a<b".to_owned(), vec![1.0, 0.5]), ("gone".to_owned(), vec![f64::NAN, f64::INFINITY])];
        let (rates, scale) = (&[1.0, 2.0], Scale::Share);
        let plot = Plot { title: "t", across: "requests/s", up: "in time", rates, scale, series: &series };
        let svg = plot.svg();
        // At half the way right and the top, then at the right end half-way down.
        assert!(svg.contains("stroke-width=\"2\" points=\"331,34 583,183 \""), "{svg}");
        assert_eq!(svg.matches("stroke-width=\"2\" points=").count(), 1, "nothing is drawn of what is missing: {svg}");
        for words in ["t", "a&lt;b", "gone", "requests/s", "in time", "20 %", "100 %", "1.6"] {
            assert!(svg.contains(&format!(">\n{words}\n</text>")), "{words}: {svg}");
        }
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("fill=\"#FFFFFF\""), "a light ground: {svg}");
        assert!(Plot { rates: &[], series: &[], ..plot }.svg().contains("requests/s"));
        for scale in [Scale::Seconds, Scale::ByteRate, Scale::Multiples] {
            let nothing = [("none".to_owned(), vec![f64::NAN])];
            assert!(Plot { rates: &[0.0], series: &nothing, scale, ..plot }.svg().contains("none"), "of nothing, too");
        }
    }

    #[test]
    fn logarithmic_scales_have_round_marks() {
        assert_eq!(marks(0.8, 100.0), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        assert_eq!(marks(0.12, 0.45), [0.2]);
        assert_eq!(marks(1.0, 1e7).len(), 8, "powers of ten");
        let series = [("a".to_owned(), vec![0.0005, 0.03, 7.0])];
        let rates = &[1.0, 50.0, 99.0];
        let plot = Plot { title: "t", across: "percentile", up: "time", rates, scale: Scale::Seconds, series: &series };
        let svg = plot.svg();
        for words in ["500 µs", "20 ms", "5 s"] {
            assert!(svg.contains(&format!("\n{words}\n")), "{words}: {svg}");
        }
        let above = [("a".to_owned(), vec![99.0, 101.0, 1.0])];
        let svg = Plot { scale: Scale::Multiples, series: &above, ..plot }.svg();
        assert_eq!(svg.matches("<circle").count(), 2, "a multiple above the scale is not drawn: {svg}");
    }
}
