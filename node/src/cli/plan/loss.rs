//! `tsnode plan --lose`: plans, loses hosts, and compares doing nothing, flipping phases and planning anew.

use super::{PlanQuery, asked::usage, draw};
use crate::cli::{exit::Exit, is_set, output};
use clap::ArgMatches;
use serde_json::json;
use std::time::Instant;
use tsnode_coordinator::scheduler::{Evaluator, InstanceId, Problem, regions, rescheduling, search::Found};
use tsnode_protocol::{BytesPerSecond, Seconds};

/// Rate at which weights come from disk when a plan loads them anew.
const LOADING: BytesPerSecond = BytesPerSecond(1e9);
/// Time until the next plan, over which a full plan must repay its loading.
const HORIZON: Seconds = Seconds(3600.0);

impl PlanQuery {
    /// Plans, loses hosts, and compares: nothing done, phases flipped, planned anew.
    pub(super) fn lose(&self, matches: &ArgMatches) -> Result<(), Exit> {
        if self.cluster.devices() > regions::MOST {
            let (n, most) = (self.cluster.devices(), regions::MOST);
            return Err(usage(format!("--lose compares plans of up to {most} devices; this cluster has {n}")));
        }
        let before = self.search(&self.problem(&self.service, self.cluster.clone())?);
        let whole = self.problem(&self.service, self.cluster.clone())?;
        let left = self.problem(&self.service, self.cluster.clone().without(&self.lose).map_err(usage)?)?;
        let standing = standing(&whole, &left, &before.found);
        let started = Instant::now();
        let flipped = rescheduling::reschedule(&left, &standing);
        let flipping = started.elapsed();
        let full = self.search(&left);
        let loading = self.service.model.bytes() / LOADING;
        let repays = rescheduling::repays(
            full.found.evaluation.attainment,
            flipped.evaluation.attainment,
            1.0,
            loading,
            HORIZON,
        );
        let flips: Vec<String> = standing
            .iter()
            .zip(&flipped.phases)
            .filter(|(s, p)| s.phase != **p)
            .map(|(s, p)| {
                let names: Vec<String> = s
                    .members
                    .iter()
                    .map(|&(i, n)| format!("{n}×{} {}", left.cluster.figures(i).name, left.cluster.instance(i).name))
                    .collect();
                format!("{}: {} becomes {p}", names.join(" + "), s.phase)
            })
            .collect();
        draw(&[&full.outcome], matches)?;
        if is_set(matches, "json") {
            return output::print_json(&json!({
                "before": before.json(), "lost": self.lose, "flips": flips,
                "attainment_unchanged": flipped.before.attainment,
                "attainment_flipped": flipped.evaluation.attainment,
                "flip_evaluations": flipped.evaluations, "flip_s": flipping.as_secs_f64(),
                "loading_s": loading.0, "full_plan_repays": repays, "full": full.json(),
            }));
        }
        before.print(is_set(matches, "why"))?;
        say!("\nwithout {}:", self.lose.join(", "));
        say!("  as it stands       {:5.1} % in time", flipped.before.attainment * 100.0);
        say!(
            "  phases flipped     {:5.1} % in time, nothing loaded, found in {:.1} ms ({} evaluations)",
            flipped.evaluation.attainment * 100.0,
            flipping.as_secs_f64() * 1e3,
            flipped.evaluations
        );
        for flip in &flips {
            say!("    {flip}");
        }
        say!(
            "  planned anew       {:5.1} % in time, about {:.0} s of loading, found in {:.0} ms: {}",
            full.outcome.attainment * 100.0,
            loading.0,
            full.took.as_secs_f64() * 1e3,
            if repays { "repays within the hour" } else { "does not repay within the hour" }
        );
        Ok(())
    }
}

/// The groups of a plan that lost none of their devices, in terms of what is left.
fn standing(whole: &Problem, left: &Problem, found: &Found) -> Vec<rescheduling::StandingGroup> {
    let mut evaluator = Evaluator::new(whole);
    let there = |id: InstanceId| {
        let instance = whole.cluster.instance(id);
        left.cluster.ids().find(|i| {
            let other = left.cluster.instance(*i);
            other.name == instance.name && left.cluster.figures(*i).name == whole.cluster.figures(id).name
        })
    };
    let mut all = Vec::new();
    for part in &found.grouping.parts {
        let Some(group) = evaluator.group(&part.members, part.phase) else { continue };
        let mut config = evaluator.shelved(group).rated.config.clone();
        let members: Option<Vec<_>> = part.members.iter().map(|&(i, n)| Some((there(i)?, n))).collect();
        let Some(members) = members else { continue };
        for stage in &mut config.stages {
            if let Some(instance) = there(stage.instance) {
                stage.instance = instance;
            }
        }
        all.push(rescheduling::StandingGroup { members, config, phase: part.phase });
    }
    all
}
