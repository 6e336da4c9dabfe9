//! `tsnode models demand`: what is asked of each model at a gateway, and how its clients are served.

use crate::{
    cli::{
        ask::look,
        asking,
        exit::Exit,
        is_set, output, switch,
        text_layout::{fitted, harmless, time},
    },
    config::Settings,
    view::ServiceView,
};
use clap::{ArgMatches, Command};
use std::io::IsTerminal;
use std::time::Duration;
use tsnode_coordinator::service_monitor::{Distribution, ServiceReport};
use tsnode_protocol::Seconds;

/// How often what is watched is shown.
const EVERY: Duration = Duration::from_secs(2);
/// Columns that a model's name takes at most.
const NAME: usize = 20;
/// To the top, and all that is there away.
const CLEARED: &str = "\x1b[H\x1b[2J";

pub(super) fn command() -> Command {
    let about = "What clients of the peer ask of each model, and how they are served: the last ten minutes";
    asking("demand", about, "tsnode models demand --watch")
        .arg(switch("watch", "Every two seconds, until Ctrl-C; with --json one document a line"))
}

pub(super) async fn run(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    if !is_set(matches, "watch") {
        let services = look(settings, matches).await?.services;
        return if is_set(matches, "json") { output::print_json(&services) } else { output::table(&rows(&services)) };
    }
    let clears = std::io::stdout().is_terminal() && !is_set(matches, "json");
    // One that is waited for all the time: while the peer is asked, which may not answer, too.
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    loop {
        let services = tokio::select! {
            view = look(settings, matches) => view?.services,
            _ = &mut interrupted => return Ok(()),
        };
        if is_set(matches, "json") {
            say!("{}", serde_json::json!(services));
        } else {
            say!("{}", if clears { CLEARED } else { "" });
            output::table(&rows(&services))?;
        }
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            _ = &mut interrupted => return Ok(()),
        }
    }
}

/// Two lines for each model: means, and what 99 of 100 requests do not pass.
fn rows(services: &[ServiceView]) -> Vec<Vec<String>> {
    let head = ["MODEL", "RATE/S", "PROMPT", "ANSWER", "TTFT", "TPOT", "E2E", "NORMALISED", "IN TIME"];
    let mut rows = vec![head.map(String::from).to_vec()];
    for ServiceView { model, report } in services {
        let name = fitted(&harmless(model), NAME);
        rows.push(row(name, format!("{:.2}", report.rate), report, |spread| spread.mean, in_time(report)));
        if report.answered > 0 {
            rows.push(row("  p99".into(), String::new(), report, |spread| spread.p99, String::new()));
        }
    }
    rows
}

fn row(name: String, rate: String, of: &ServiceReport, part: fn(Distribution) -> f64, last: String) -> Vec<String> {
    let shown = |spread: Option<Distribution>, text: fn(f64) -> String| spread.map_or("-".into(), |s| text(part(s)));
    let tokens = |tokens: f64| format!("{tokens:.0}");
    let seconds = |seconds: f64| time(Seconds(seconds));
    let times = |times: f64| format!("{times:.2}");
    vec![
        name,
        rate,
        shown(of.prompt_tokens, tokens),
        shown(of.answer_tokens, tokens),
        shown(of.ttft, seconds),
        shown(of.tpot, seconds),
        shown(of.e2e, seconds),
        shown(of.normalised, times),
        last,
    ]
}

fn in_time(report: &ServiceReport) -> String {
    match report.with_targets {
        0 => "-".into(),
        all => format!("{} of {all}", report.in_time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_has_its_means_and_what_nearly_all_requests_keep_below() {
        let spread = |mean: f64| Some(Distribution { mean, p50: mean, p99: 2.0 * mean });
        let report = ServiceReport {
            rate: 1.5,
            answered: 3,
            prompt_tokens: spread(100.0),
            answer_tokens: spread(40.0),
            ttft: spread(0.02),
            tpot: None,
            e2e: spread(0.8),
            normalised: spread(1.25),
            with_targets: 4,
            in_time: 3,
            ..ServiceReport::default()
        };
        let quiet = ServiceReport { rate: 0.02, ..ServiceReport::default() };
        let of = |model: &str, report| ServiceView { model: model.into(), report };
        let rows = rows(&[of("a\u{1b}[2J", report), of(&"b".repeat(90), quiet)]);
        let shown: Vec<String> = rows.iter().map(|row| row.join("|")).collect();
        assert_eq!(shown[1], "a\u{fffd}[2J|1.50|100|40|20 ms|-|800 ms|1.25|3 of 4");
        assert_eq!(shown[2], "  p99||200|80|40 ms|-|1600 ms|2.50|");
        assert!(shown[3].ends_with("…|0.02|-|-|-|-|-|-|-") && shown.len() == 4, "{shown:?}");
    }
}
