//! A placement as a diagram: a row for each group of devices, with the models that it holds side by side.

use super::{begun, text};
use crate::{
    placement::{Placement, Services, gpu_group::GpuGroup},
    svg::{COLOURS, escaped},
};
use std::fmt::Write;
use tsnode_coordinator::{policy::batching::ServiceNo, scheduler::Cluster};

const WIDTH: f64 = 900.0;
const LEFT: f64 = 300.0;
const RIGHT: f64 = 880.0;
const TOP: f64 = 50.0;
const ROW: f64 = 34.0;
const BAR: f64 = 26.0;

/// A group's devices, host by host (`4×A100 h0 + 4×A100 h1`).
#[must_use]
pub fn devices(cluster: &Cluster, group: &GpuGroup) -> String {
    let named = group.members().into_iter().map(|(id, count)| {
        let instance = cluster.instance(id);
        format!("{count}×{} {}", cluster.figures(id).name, instance.name)
    });
    named.collect::<Vec<_>>().join(" + ")
}

/// The picture. Models on one group share it, whole: its width says nothing of their parts.
#[must_use]
pub fn svg(services: &Services, placement: &Placement, title: &str) -> String {
    let height = TOP + ROW * placement.groups.len() as f64 + 20.0;
    let mut out = begun(WIDTH, height);
    text(&mut out, (20.0, 26.0), 14.0, "#1a1a1a", title);
    for (row, sharing) in placement.groups.iter().enumerate() {
        let y = TOP + ROW * row as f64;
        let named = escaped(&devices(services.cluster(), &sharing.group));
        let _ =
            writeln!(out, "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{named}</text>", LEFT - 10.0, y + 18.0);
        let wide = (RIGHT - LEFT) / sharing.services.len().max(1) as f64;
        for (place, service) in sharing.services.iter().enumerate() {
            bar(&mut out, services, *service, (LEFT + wide * place as f64, y, wide));
        }
    }
    out.push_str("</svg>\n");
    out
}

fn bar(out: &mut String, services: &Services, service: ServiceNo, (x, y, wide): (f64, f64, f64)) {
    let problem = services.problem(service);
    let [red, green, blue] = COLOURS[usize::from(service.0) % COLOURS.len()];
    let said = format!("{} ({}, {:.2} requests/s)", problem.model.name, problem.workload.name, problem.rate);
    let _ = writeln!(
        out,
        "<g><title>{}</title><rect x=\"{x:.1}\" y=\"{y:.0}\" width=\"{:.1}\" height=\"{BAR}\" rx=\"4\" fill=\"rgb({red},{green},{blue})\"/>\
         <text x=\"{:.1}\" y=\"{:.0}\" fill=\"#ffffff\">{}</text></g>",
        escaped(&said),
        wide - 2.0,
        x + 8.0,
        y + 18.0,
        escaped(&problem.model.name),
    );
}
