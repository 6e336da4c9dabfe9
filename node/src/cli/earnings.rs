//! `tsnode earnings`: what this machine has computed for others, and others for it, by day and model.

use super::{
    ask::PeerClient,
    asking, is_set,
    output::print_json,
    text_layout::{fitted, harmless, padded, width},
    whole,
};
use crate::{
    cli::exit::{Exit, ExitKind},
    config::Settings,
    history::{DAYS, DayLine, Tokens, Total},
};
use clap::{Arg, ArgMatches, Command};
use serde::Deserialize;
use serde_json::Value;

/// Most columns for a model's name.
const NAMES: usize = 24;

pub(super) fn command() -> Command {
    asking(
        "earnings",
        "Tokens that this machine computed for others, and others for it, by day and model",
        "tsnode earnings --days 7",
    )
    .arg(
        Arg::new("days")
            .long("days")
            .value_name("N")
            .value_parser(whole(1..=DAYS))
            .default_value("30")
            .help("The last days on which there were any"),
    )
}

pub(super) async fn run(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let peer = PeerClient::find(settings, matches)?;
    let days = matches.get_one::<usize>("days").copied().unwrap_or(DAYS);
    let answer: Value = peer.get(&format!("/api/earnings?days={days}")).await?;
    if is_set(matches, "json") {
        return print_json(&answer);
    }
    let EarningsAnswer { earnings, total } = serde_json::from_value(answer)
        .map_err(|e| Exit::new(ExitKind::Unreachable, format!("the peer's answer is not understood: {e}")))?;
    rows(&earnings, total).iter().for_each(|line| say!("{line}"));
    Ok(())
}

/// What `/api/earnings` says.
#[derive(Deserialize)]
struct EarningsAnswer {
    earnings: Vec<DayLine>,
    total: Total,
}

/// The table, newest day first.
fn rows(lines: &[DayLine], total: Total) -> Vec<String> {
    if lines.is_empty() {
        let what = "nothing yet: neither has this machine computed for others, nor others for it";
        return vec![what.into()];
    }
    let models: Vec<String> = lines.iter().map(|line| fitted(&harmless(&line.model), NAMES)).collect();
    let wide = models.iter().map(|name| width(name)).max().unwrap_or(0).max("MODEL".len());
    let row = |day: &str, model: &str, [a, b, c, d]: [&str; 4]| {
        format!("{day:<10}  {}  {a:>9}  {b:>9}  {c:>9}  {d:>9}", padded(model, wide))
    };
    let numbers = |for_others: Tokens, by_others: Tokens| {
        [for_others.prompt_tokens, for_others.completion_tokens, by_others.prompt_tokens, by_others.completion_tokens]
            .map(|n| n.to_string())
    };
    let mut rows = vec![
        format!("{:<10}  {}  {:>20}  {:>20}", "", padded("", wide), "FOR OTHERS", "BY OTHERS"),
        row("DAY (UTC)", "MODEL", ["PROMPT", "ANSWER", "PROMPT", "ANSWER"]),
    ];
    for (line, model) in lines.iter().zip(&models) {
        let numbers = numbers(line.for_others, line.by_others);
        rows.push(row(&line.day, model, numbers.each_ref().map(String::as_str)));
    }
    let numbers = numbers(total.for_others, total.by_others);
    rows.push(row("all", "", numbers.each_ref().map(String::as_str)));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_protocol::ModelId;

    #[test]
    fn a_day_is_a_line_and_the_last_is_the_sum() {
        let tokens = |prompt_tokens, completion_tokens| Tokens { prompt_tokens, completion_tokens };
        let line = |day: &str, model: &str, n| DayLine {
            day: day.into(),
            model: model.into(),
            model_id: ModelId([1; 16]),
            for_others: tokens(n, 2),
            by_others: tokens(30, 4),
        };
        let lines = [line("2026-11-26", "gutenberg-tiny", 1000), line("2026-11-25", "q\u{1b}[31m", 1)];
        let total = Total { for_others: tokens(1001, 4), by_others: tokens(60, 8) };
        let rows = rows(&lines, total);
        assert_eq!(rows.len(), 5);
        assert_eq!(rows[2], "2026-11-26  gutenberg-tiny       1000          2         30          4");
        assert!(rows[4].starts_with("all ") && rows[4].contains("1001"), "{}", rows[4]);
        assert!(!rows.concat().contains('\u{1b}'));
        assert!(rows.iter().all(|row| row.len() <= 80), "{rows:#?}");
        assert_eq!(super::rows(&[], Total::default()).len(), 1);
    }
}
