//! What came of models that share a peer, live and simulated: how far the simulator is off, and what the orders are worth.

use super::{simulated::ModelOverheads, turns};
use crate::cli::{
    bench::serve::report::time,
    exit::{Exit, ExitKind},
};
use serde_json::{Value, json};
use tsnode_coordinator::policy::sharing::device_use::ServiceUse;
use tsnode_protocol::LayerProfile;
use tsnode_simulator::percentile::Sorted;

/// How far means may be off, where nothing else is asked for.
const MEANS: f64 = 0.15;

/// Of all orders.
pub(super) struct OrderComparison {
    pub load: f64,
    pub seed: u64,
    pub models: Vec<ComparedModel>,
    pub rows: Vec<Row>,
    /// Where it ended before all orders were measured.
    pub stopped: Option<Stopped>,
}

/// The order at which it ended, and why.
pub(super) struct Stopped {
    pub order: &'static str,
    pub reason: String,
}

/// A model, and what was asked of it.
pub(super) struct ComparedModel {
    pub name: String,
    /// What was measured of its layers; none of a model that has only one.
    pub profile: Option<LayerProfile>,
    pub requests: usize,
    /// What its requests take alone, on average (s).
    pub mean_alone: f64,
}

/// What came of one order.
pub(super) struct Row {
    pub order: &'static str,
    /// Requests that were not answered to the end, and why one was not.
    pub failed: usize,
    pub reason: Option<String>,
    /// Normalised latencies of each model's requests.
    pub live: Vec<Sorted>,
    pub simulated: Vec<Sorted>,
    /// What each model had of the device.
    pub live_turns: Vec<ServiceUse>,
    pub simulated_turns: Vec<ServiceUse>,
    /// Of each model.
    pub overheads: Vec<ModelOverheads>,
}

/// The mean over all requests; each model's part goes by how many were asked.
fn mean(of: &[Sorted], models: &[ComparedModel]) -> f64 {
    let all: f64 = models.iter().map(|model| model.requests as f64).sum();
    of.iter().zip(models).map(|(own, model)| own.mean() * model.requests as f64).sum::<f64>() / all
}

/// How far the simulator is off.
fn percent(live: f64, simulated: f64) -> String {
    format!("{:+.1} %", (simulated / live - 1.0) * 100.0)
}

impl OrderComparison {
    /// Means of an order, live and simulated.
    fn means(&self, row: &Row) -> (f64, f64) {
        (mean(&row.live, &self.models), mean(&row.simulated, &self.models))
    }

    fn off(&self, row: &Row) -> f64 {
        let (live, simulated) = self.means(row);
        (simulated / live - 1.0).abs()
    }

    /// Doubling's mean over first come's, live and simulated; none where one of the two was not asked for.
    fn gains(&self) -> Option<(f64, f64)> {
        let of = |name: &str| self.rows.iter().find(|row| row.order == name).map(|row| self.means(row));
        let (doubling, first_come) = (of("doubling")?, of("first-come")?);
        Some((doubling.0 / first_come.0, doubling.1 / first_come.1))
    }

    /// Lines before the table.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for ComparedModel { name, profile, requests, mean_alone } in &self.models {
            lines.push(format!("{name}: {requests} requests, {} alone on average by its profile", time(*mean_alone)));
            lines.push(match profile {
                Some(LayerProfile { prompts, steps, mixed, .. }) => {
                    format!("{name}, profile: prompts {prompts}; answers {steps}; both in a step {mixed}")
                }
                None => format!(
                    "{name} has no measured profile, as no model of one layer has: it is simulated by what its device can do, \
                     which may be far off; take one of two layers or more"
                ),
            });
        }
        for row in &self.rows {
            for (ComparedModel { name, .. }, overheads) in self.models.iter().zip(&row.overheads) {
                let ModelOverheads { device, step, request, measured, simulated } = overheads;
                let both = format!("alone {} measured and {} simulated", time(*measured), time(*simulated));
                let (device, step, request) = (device * 1e3, time(*step), time(*request));
                lines.push(format!(
                    "{}, {name}: {both}; beside its profile {device:+.2} ms of the device a step, {step} until the next and \
                     {request} a request",
                    row.order
                ));
            }
        }
        lines
    }

    /// Normalised latencies: a row for each order, and in each for each model.
    pub fn table(&self) -> Vec<Vec<String>> {
        let head = ["ORDER", "OF", "LIVE", "SIMULATED", "OFF", "P99 LIVE", "P99 SIMULATED", "FAILED"];
        let mut table = vec![head.map(String::from).to_vec()];
        for row in &self.rows {
            let (live, simulated) = self.means(row);
            let mut cells = vec![row.order.to_owned(), "all".to_owned()];
            cells.extend([live, simulated].map(|mean| format!("{mean:.2}")));
            cells.extend([percent(live, simulated), String::new(), String::new(), row.failed.to_string()]);
            table.push(cells);
            for (model, (live, simulated)) in self.models.iter().zip(row.live.iter().zip(&row.simulated)) {
                let mut cells = vec![String::new(), model.name.clone()];
                cells.extend([live, simulated].map(|own| format!("{:.2}", own.mean())));
                cells.push(percent(live.mean(), simulated.mean()));
                cells.extend([live, simulated].map(|own| format!("{:.1}", own.at(0.99))));
                cells.push(String::new());
                table.push(cells);
            }
        }
        table
    }

    /// What models had of the device, live and simulated.
    pub fn turns(&self) -> Vec<Vec<String>> {
        let names: Vec<&str> = self.models.iter().map(|model| model.name.as_str()).collect();
        turns::table(self.rows.iter().map(|row| (row.order, &row.live_turns[..], &row.simulated_turns[..])), &names)
    }

    pub fn verdict(&self) -> String {
        let beyond: Vec<&str> = self.beyond(MEANS).map(|row| row.order).collect();
        let within = if beyond.is_empty() {
            format!("means of normalised latency within {:.0} % of each other", MEANS * 100.0)
        } else {
            format!("further off than {:.0} %, or not all answered: {}", MEANS * 100.0, beyond.join(", "))
        };
        let failed: Vec<String> =
            self.rows.iter().filter_map(|row| Some(format!("{}: {}", row.order, row.reason.as_ref()?))).collect();
        let gains = self
            .gains()
            .map(|(live, simulated)| format!("doubling / first come {live:.2} live and {simulated:.2} simulated"));
        let failed = (!failed.is_empty()).then(|| format!("failed: {}", failed.join("; ")));
        let stopped = self.stopped.as_ref().map(|Stopped { order, reason }| format!("stopped at {order}: {reason}"));
        [Some(within), gains, failed, stopped].into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    fn beyond(&self, most: f64) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| {
            let off = self.off(row);
            row.failed > 0 || off.is_nan() || off > most
        })
    }

    /// Fails where the simulator is further off than that.
    pub fn held(&self, most: Option<f64>) -> Result<(), Exit> {
        let Some(most) = most else { return Ok(()) };
        match self.beyond(most).next() {
            Some(row) => {
                let (live, simulated) = self.means(row);
                let what = format!("{}: {live:.3} live, {simulated:.3} simulated, {} failed", row.order, row.failed);
                Err(Exit::new(ExitKind::Other, format!("{what}; --most-off {}", most * 100.0)))
            }
            None => Ok(()),
        }
    }

    pub fn json(&self) -> Value {
        let models = |row: &Row| -> Vec<Value> {
            let latencies = row.live.iter().zip(&row.simulated);
            let turns = row.live_turns.iter().zip(&row.simulated_turns);
            let all = self.models.iter().zip(latencies.zip(row.overheads.iter().zip(turns)));
            let spread = |own: &Sorted| json!({ "mean": own.mean(), "p50": own.at(0.5), "p99": own.at(0.99) });
            type Told<'a> = ((&'a Sorted, &'a Sorted), (&'a ModelOverheads, (&'a ServiceUse, &'a ServiceUse)));
            let one = |(model, ((live, simulated), (own, turns))): (&ComparedModel, Told<'_>)| {
                json!({
                    "model": model.name, "live": spread(live), "simulated": spread(simulated),
                    "turns": { "live": turns.0, "simulated": turns.1 }, "device_overhead_ms": own.device * 1e3,
                    "step_overhead_ms": own.step * 1e3, "request_overhead_ms": own.request * 1e3,
                    "alone_measured_ms": own.measured * 1e3, "alone_simulated_ms": own.simulated * 1e3,
                })
            };
            all.map(one).collect()
        };
        let order = |row: &Row| {
            let (live, simulated) = self.means(row);
            json!({
                "order": row.order, "live": live, "simulated": simulated, "ratio": simulated / live,
                "failed": row.failed, "reason": row.reason, "models": models(row),
            })
        };
        let named = |ComparedModel { name, profile, requests, mean_alone }: &ComparedModel| json!({ "model": name, "requests": requests, "mean_alone_ms": mean_alone * 1e3, "profile": profile });
        let gains = self.gains().map(|(live, simulated)| json!({ "live": live, "simulated": simulated }));
        let stopped = self.stopped.as_ref().map(|stopped| json!({ "order": stopped.order, "reason": stopped.reason }));
        json!({
            "load": self.load, "seed": self.seed, "models": self.models.iter().map(named).collect::<Vec<_>>(),
            "orders": self.rows.iter().map(order).collect::<Vec<_>>(), "doubling_to_first_come": gains,
            "stopped": stopped, "within": self.stopped.is_none() && self.beyond(MEANS).next().is_none(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(order: &'static str, live: f64, simulated: f64) -> Row {
        // Of two models, of which the second has three quarters of the requests and twice the latency.
        let of = |mean: f64| [mean, 2.0 * mean].map(|value| Sorted::new([value].into_iter())).to_vec();
        let (live, simulated) = (of(live), of(simulated));
        let (live_turns, simulated_turns) = (vec![ServiceUse::default(); 2], vec![ServiceUse::default(); 2]);
        let overheads = vec![ModelOverheads::default(); 2];
        Row { order, failed: 0, reason: None, live, simulated, live_turns, simulated_turns, overheads }
    }

    fn compared(rows: Vec<Row>) -> OrderComparison {
        let model = |(name, requests): (&str, usize)| {
            let name = name.to_owned();
            ComparedModel { name, profile: None, requests, mean_alone: 0.1 }
        };
        let models = [("a", 1), ("b", 3)].map(model).into();
        OrderComparison { load: 1.2, seed: 1, models, rows, stopped: None }
    }

    #[test]
    fn means_stand_beside_each_other_and_orders_against_each_other() {
        let alike = compared(vec![row("doubling", 1.0, 1.125), row("first-come", 2.0, 2.0)]);
        let verdict = alike.verdict();
        assert!(verdict.starts_with("means of normalised latency within 15 %"), "{verdict}");
        assert!(verdict.ends_with("0.50 live and 0.56 simulated"), "{verdict}");
        let table = alike.table();
        assert_eq!(table.len(), 7);
        assert_eq!(table[1][..5], ["doubling", "all", "1.75", "1.97", "+12.5 %"].map(String::from));
        assert_eq!(table[3][1..5], ["b", "2.00", "2.25", "+12.5 %"].map(String::from));
        assert!(alike.held(Some(0.13)).is_ok() && alike.held(Some(0.05)).is_err());
        assert_eq!(alike.json()["within"], true);
        assert_eq!(alike.json()["orders"][0]["models"][1]["turns"]["live"]["steps"], 0);
        assert!(alike.lines()[1].contains("no measured profile"));
    }

    #[test]
    fn what_is_further_off_or_failed_is_said() {
        let far = compared(vec![row("round-robin", 1.0, 1.2)]);
        assert_eq!(far.verdict(), "further off than 15 %, or not all answered: round-robin");
        assert!(far.held(None).is_ok());
        let failed = Row { failed: 1, reason: Some("503".into()), ..row("doubling", 1.0, 1.0) };
        let failed = compared(vec![failed]);
        assert_eq!(failed.verdict(), "further off than 15 %, or not all answered: doubling; failed: doubling: 503");
        assert!(failed.held(Some(0.5)).is_err());
    }

    #[test]
    fn what_was_measured_is_told_where_a_later_order_could_not_be() {
        let stopped = Some(Stopped { order: "round-robin", reason: "interrupted".into() });
        let part = OrderComparison { stopped, ..compared(vec![row("doubling", 1.0, 1.1)]) };
        assert!(part.verdict().ends_with("; stopped at round-robin: interrupted"), "{}", part.verdict());
        assert_eq!(part.table().len(), 4);
        let told = part.json();
        assert_eq!((&told["orders"][0]["order"], &told["within"]), (&json!("doubling"), &json!(false)));
        assert_eq!(told["stopped"], json!({ "order": "round-robin", "reason": "interrupted" }));
        assert_eq!(compared(vec![row("doubling", 1.0, 1.1)]).json()["stopped"], Value::Null);
    }
}
