//! `tsnode plan --service … --service …`: several models share the cluster.

use super::{PlanQuery, REPLAYED, ValuedPlan, asked::usage, draw, percent};
use crate::cli::{exit::Exit, is_set, output};
use clap::ArgMatches;
use serde_json::json;
use std::time::{Duration, Instant};
use tsnode_coordinator::{
    replay::Replay,
    scheduler::{Problem, search::Found},
};
use tsnode_simulator::{
    bound,
    outcome::PlanOutcome,
    services::{self, Division, ServedService, SharedCluster},
};

impl PlanQuery {
    /// Deals the devices to services and plans each.
    pub(super) fn share(&self, matches: &ArgMatches) -> Result<(), Exit> {
        let whole = |s| self.problem(s, self.cluster.clone());
        let wholes: Vec<Problem> = self.sharing.iter().map(whole).collect::<Result<_, _>>()?;
        let started = Instant::now();
        let bar = indicatif::ProgressBar::new_spinner().with_message(format!(
            "dealing {} devices to {} services",
            self.cluster.devices(),
            wholes.len()
        ));
        bar.enable_steady_tick(Duration::from_millis(100));
        let after = |part: u32| move || self.budget.is_some_and(|b| started.elapsed() >= b * part / 2);
        let replay = Replay { seed: self.seed, requests: REPLAYED };
        let shared = services::search(&wholes, self.seed, self.effort(), replay, &after(1), &after(2));
        let took = started.elapsed();
        bar.finish_and_clear();
        let mut shared = shared.map_err(|e| usage(e.to_string()))?;
        let plans: Vec<ValuedPlan> =
            std::mem::take(&mut shared.services).into_iter().map(|s| planned(s, took)).collect();
        draw(&plans.iter().map(|p| &p.outcome).collect::<Vec<_>>(), matches)?;
        let total: f64 = plans.iter().map(|p| p.outcome.rate).sum();
        let attainment = plans.iter().map(|p| p.outcome.rate / total * p.outcome.attainment).sum();
        if is_set(matches, "json") {
            return output::print_json(&json!({
                "services": plans.iter().map(ValuedPlan::json).collect::<Vec<_>>(),
                "attainment": attainment, "value": shared.value,
                "divisions": shared.divisions, "search_s": took.as_secs_f64(),
            }));
        }
        self.print_shared(&plans, &shared, attainment, is_set(matches, "why"))
    }

    fn print_shared(
        &self,
        plans: &[ValuedPlan],
        shared: &SharedCluster,
        attainment: f64,
        why: bool,
    ) -> Result<(), Exit> {
        for plan in plans {
            plan.print(why)?;
            say!("");
        }
        say!(
            "together   {} of all requests in time, {} divisions of the devices compared",
            percent(attainment),
            shared.divisions
        );
        for (i, (division, value)) in shared.runners_up.iter().enumerate().filter(|_| why) {
            say!("\nother division {}: briefly planned it is worth {}", i + 1, percent(*value));
            for (service, members) in self.sharing.iter().zip(division) {
                say!("  {}: {}", service.model.name, self.devices(members));
            }
        }
        Ok(())
    }

    fn devices(&self, members: &<Division as IntoIterator>::Item) -> String {
        let name =
            |&(i, n): &(_, u16)| format!("{n}×{} {}", self.cluster.figures(i).name, self.cluster.instance(i).name);
        members.iter().map(name).collect::<Vec<_>>().join(" + ")
    }
}

fn planned(served: ServedService, took: Duration) -> ValuedPlan {
    match &served.regions[..] {
        [only] => {
            let mut outcome = PlanOutcome::new(&only.problem, &only.found);
            outcome.bound = bound::attainment(&only.problem).filter(|b| *b < 1.0);
            ValuedPlan { found: only.found.clone(), outcome, report: served.report, took }
        }
        many => ValuedPlan {
            found: Found::default(),
            outcome: PlanOutcome::together(&served.problem, many),
            report: None,
            took,
        },
    }
}
