//! The mixes that were tried as a plot: machines for prompts by machines for answers, kept or missed.

use super::page::{AXIS, Area, GRID, INK, PlotResult, Tooltip, ending, legend, letters, noted, page};
use crate::provisioning::{Design, ProvisioningAnswer, Question, Tried, walk::TriedMix};
use plotters::prelude::*;

const WIDTH: u32 = 640;
const PANEL: u32 = 320;
/// Room for a panel's title and legend.
const TOP: u32 = 56;
const KEPT: RGBColor = RGBColor(0x4f, 0x9d, 0x5d);
const MISSED: RGBColor = RGBColor(0xd2, 0x69, 0x5f);

/// One panel for each design that was looked at, one under the other.
#[must_use]
pub fn svg(question: &Question, answer: &ProvisioningAnswer) -> String {
    let shown: Vec<&Tried> = answer.designs.iter().filter(|d| !d.looks.is_empty()).collect();
    let panels = shown.len().max(1);
    let mut notes = Vec::new();
    let picture = page((WIDTH, PANEL * panels as u32), |root| {
        for (area, tried) in root.split_evenly((panels, 1)).iter().zip(&shown) {
            panel(area, question, tried, &mut notes)?;
        }
        Ok(())
    });
    noted(&picture, &notes)
}

fn panel(area: &Area<'_>, question: &Question, tried: &Tried, notes: &mut Vec<Tooltip>) -> PlotResult {
    let (prompts, answers) = tried.design.kinds();
    let (a, b) = (&question.kinds[prompts.0].name, &question.kinds[answers.0].name);
    let (title, across, up) = match tried.design {
        Design::Split { .. } => (
            format!("prompts on {a}, answers on {b}"),
            format!("{a} for prompts (machines)"),
            Some(format!("{b} for answers (machines)")),
        ),
        Design::Together(_) => (format!("both on {a}"), format!("{a} (machines)"), None),
    };
    head(area, tried, title)?;
    let most = |f: fn(&TriedMix) -> u32| tried.looks.iter().map(f).max().unwrap_or(0).max(1);
    let (most_prompts, most_answers) = (most(|l| l.mix.prompts), most(|l| l.mix.answers));
    let below = area.margin(TOP, 0, 0, 0);
    let mut chart = ChartBuilder::on(&below)
        .margin_top(10)
        .margin_left(8)
        .margin_right(24)
        .margin_bottom(6)
        .x_label_area_size(42)
        .y_label_area_size(56)
        .build_cartesian_2d(0..most_prompts, 0..most_answers)?;
    {
        let mut mesh = chart.configure_mesh();
        // One, since of none plotters would look for a step for ever.
        mesh.max_light_lines(1).light_line_style(GRID).bold_line_style(GRID).axis_style(AXIS);
        mesh.set_all_tick_mark_size(4).label_style(letters(12.0)).x_labels(10).y_labels(8).x_desc(across);
        match up {
            Some(up) => mesh.y_desc(up),
            // There is one pool.
            None => mesh.disable_y_axis().disable_y_mesh(),
        };
        mesh.draw()?;
    }
    for look in &tried.looks {
        let (colour, verdict) = if look.kept { (KEPT, "kept") } else { (MISSED, "missed") };
        let (mix, at) = (look.mix, (look.mix.prompts, look.mix.answers));
        chart.plotting_area().draw(&Circle::new(at, 4, colour.filled()))?;
        let said = format!("{} + {} at {:.3} requests/s: {verdict}", mix.prompts, mix.answers, look.rate);
        notes.push(Tooltip { at: chart.backend_coord(&at), said });
    }
    if let Some(best) = &tried.best {
        let ring = Circle::new((best.mix.prompts, best.mix.answers), 9, INK.stroke_width(2));
        chart.plotting_area().draw(&ring)?;
    }
    Ok(())
}

/// What a panel is of, what was chosen, and what its colours stand for.
fn head(area: &Area<'_>, tried: &Tried, title: String) -> PlotResult {
    area.draw(&Text::new(title, (16, 10), letters(14.0)))?;
    legend(area, (16, 40), KEPT, "kept")?;
    legend(area, (80, 40), MISSED, "missed")?;
    let Some(best) = &tried.best else { return Ok(()) };
    let price = best.cost.map_or(String::new(), |c| format!(", {c:.0} $/h"));
    let power = best.power.map_or(String::new(), |p| format!(", {:.0} kW", p / 1e3));
    let said = format!("ring: {} + {}, {:.1} requests/s{price}{power}", best.mix.prompts, best.mix.answers, best.rate);
    area.draw(&Text::new(said, (WIDTH as i32 - 16, 34), ending(12.0)))
}
