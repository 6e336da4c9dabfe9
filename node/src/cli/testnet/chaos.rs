//! `tsnode testnet chaos`: breaks a swarm under load by a seed's schedule, and says whether anybody could have noticed.

use super::{config, exit, swarm_args};
use crate::{
    cli::{
        decimal,
        exit::{Exit, ExitKind},
        interrupts::Interrupts,
        is_set, json as json_flag,
        output::print_json,
        switch, verb, whole,
    },
    config::Settings,
};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;
use tsnode_testnet::{
    Answers, Testnet, TestnetConfig,
    chaos::{
        self, Chaos, ChaosReport, ChaosSummary, ChaosVerdict, Deed, Deeds, InjectedFault, PauseLimits, Resumptions,
        Schedule, ServedStream, Spread, Until,
    },
};

/// What is done where nothing is.
const NOTHING: &str = "nothing";

pub(super) fn command() -> Command {
    let example = "tsnode testnet chaos --seed 7 --minutes 2 --svg chaos.svg";
    let about = "Break a swarm under load, and hold every answer against an undisturbed one";
    swarm_args(verb("chaos", about, example), "8", "2")
        .arg(
            Arg::new("seed")
                .long("seed")
                .value_name("N")
                .value_parser(whole(0..=u64::MAX))
                .default_value("1")
                .help("Fixes what is broken and when, counted in answers; --plan lists it"),
        )
        .arg(
            Arg::new("minutes")
                .long("minutes")
                .value_name("N")
                .value_parser(decimal(0.0..=100_000.0))
                .default_value("1")
                .help("For how long"),
        )
        .arg(
            Arg::new("faults")
                .long("faults")
                .value_name("N")
                .value_parser(whole(0..=u32::MAX))
                .conflicts_with("minutes")
                .help("So many faults, however long that takes"),
        )
        .arg(
            Arg::new("streams")
                .long("streams")
                .value_name("N")
                .value_parser(whole(1_u16..=512))
                .default_value("16")
                .help("Streams at once"),
        )
        .arg(
            Arg::new("only")
                .long("only")
                .value_name("DEEDS")
                .value_delimiter(',')
                .value_parser([NOTHING].into_iter().chain(Deed::ALL.map(|(_, name)| name)).collect::<Vec<_>>())
                .help("Only do this to peers, as kill or kill,stop [default: now this, now that]"),
        )
        .arg(
            Arg::new("pairs")
                .long("pairs")
                .value_name("PART")
                .value_parser(decimal(0.0..=1.0))
                .default_value("0")
                .help("Part of the kills and stops that hit two peers at once, as 0.1"),
        )
        .arg(seconds("gap-p99", "Most that 99 of 100 of the streams that a fault hit may stand still"))
        .arg(seconds("gap-worst", "Most that any stream may stand still"))
        .arg(switch("plan", "List what this seed and these options would break and when, and break nothing"))
        .arg(
            Arg::new("split")
                .long("split")
                .value_name("WHEN")
                .value_parser(["auto", "always"])
                .default_value("always")
                .help("Peers' --split: with auto streams go on wherever that is predicted to be soonest"),
        )
        .arg(
            Arg::new("svg")
                .long("svg")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("Draw peers, plans, requests and faults over time"),
        )
        .arg(Arg::new("keep").long("keep").action(ArgAction::SetTrue).help("Leave the peers' logs, however it ends"))
        .arg(json_flag())
}

/// A limit of the run.
fn seconds(name: &'static str, help: &'static str) -> Arg {
    let arg = Arg::new(name).long(name).value_name("SECONDS").value_parser(decimal(0.0..=100_000.0));
    arg.help(format!("{help}; waiting for a gateway that was stopped or cut off is told apart"))
}

pub(super) async fn run(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let config = config(settings, matches)?;
    let chaos = asked(matches)?;
    if is_set(matches, "plan") {
        return list(&chaos, &config, is_set(matches, "json"));
    }
    let (bar, mut interrupts) = (bar(chaos.until), Interrupts::heard());
    bar.set_message("asking an undisturbed swarm");
    let answers = interrupts.unless(Box::pin(async { Answers::learn(&config).await.map_err(exit) })).await?;
    bar.set_message(format!("starting {} peers", config.peers.len()));
    let mut net = interrupts.unless(Box::pin(async { Testnet::up(&config).await.map_err(exit) })).await?;
    bar.set_message("under load");
    let quiet = is_set(matches, "json");
    let tell = |fault: &InjectedFault| {
        bar.inc(1);
        if !quiet {
            bar.suspend(|| say!("{}", line(fault)));
        }
    };
    let run = async { chaos::run(&mut net, chaos, answers, tell).await.map_err(exit) };
    let report = interrupts.unless(Box::pin(run)).await?;
    let verdict = ChaosVerdict::of(&report);
    bar.finish_and_clear();
    if let Some(file) = matches.get_one::<PathBuf>("svg") {
        std::fs::write(file, report.svg()).map_err(|e| Exit::file(ExitKind::Other, file, &e))?;
    }
    if quiet {
        let mut document = json!(report);
        document["summary"] = json!(report.summary());
        document["verdict"] = json!(verdict);
        print_json(&document)?
    } else {
        tell_all(&report);
        say!("{verdict}");
    }
    let logs = net.folder().display().to_string();
    if !verdict.holds {
        interrupts.down(net).await?;
        let (wrongs, seed) = (report.wrongs().len(), verdict.seed);
        let again = format!("--seed {seed} with the same options breaks the same again");
        return Err(Exit::new(ExitKind::Other, format!("{wrongs} did not hold; logs are in {logs}; {again}")));
    }
    if is_set(matches, "keep") {
        note!("logs are in {logs}");
        return interrupts.down(net).await;
    }
    super::leave(net, &mut interrupts).await
}

/// Lists the schedule.
fn list(chaos: &Chaos, config: &TestnetConfig, as_json: bool) -> Result<(), Exit> {
    let steps = Schedule::listed(chaos, &config.peers);
    if as_json {
        return print_json(&json!({ "seed": chaos.seed, "steps": steps }));
    }
    steps.iter().for_each(|step| say!("{step}"));
    if let Until::Time(_) = chaos.until {
        note!("a run goes through as many of these as it has time for");
    }
    Ok(())
}

fn asked(matches: &ArgMatches) -> Result<Chaos, Exit> {
    let minutes = matches.get_one::<f64>("minutes").copied().unwrap_or(1.0);
    let span = Duration::from_secs_f64(minutes * 60.0);
    let faults = matches.get_one::<u32>("faults").map(|n| Until::Faults(*n as usize));
    let number = |name: &str| matches.get_one::<f64>(name).copied();
    Ok(Chaos {
        seed: matches.get_one::<u64>("seed").copied().unwrap_or(1),
        streams: matches.get_one::<u16>("streams").copied().unwrap_or(16).into(),
        until: faults.unwrap_or(Until::Time(span)),
        deeds: deeds(matches)?,
        pairs: number("pairs").unwrap_or_default(),
        limits: PauseLimits { p99: number("gap-p99"), worst: number("gap-worst") },
    })
}

fn deeds(matches: &ArgMatches) -> Result<Deeds, Exit> {
    let Some(names) = matches.get_many::<String>("only") else { return Ok(Deeds::Drawn) };
    let names: Vec<&str> = names.map(String::as_str).collect();
    let deeds: Vec<Deed> =
        Deed::ALL.into_iter().filter(|(_, name)| names.contains(name)).map(|(deed, _)| deed).collect();
    match (names.contains(&NOTHING), deeds.is_empty()) {
        (false, _) => Ok(Deeds::Only(deeds)),
        (true, true) => Ok(Deeds::Calm),
        (true, false) => Err(Exit::new(ExitKind::Usage, format!("--only {NOTHING} goes with nothing else"))),
    }
}

fn bar(until: Until) -> ProgressBar {
    let (bar, form) = match until {
        Until::Faults(faults) => (ProgressBar::new(faults as u64), "{bar:30} {pos} of {len} faults, {msg} ({elapsed})"),
        Until::Time(_) => (ProgressBar::new_spinner(), "{spinner} {pos} faults, {msg} ({elapsed})"),
    };
    if let Ok(style) = ProgressStyle::with_template(form) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

fn line(fault: &InjectedFault) -> String {
    let deed = match fault.deed {
        Deed::Kill => "killed",
        Deed::Stop => "stopped",
        Deed::Cut => "cut off",
        Deed::Part => "parted",
        Deed::Slow => "slow",
        Deed::Corrupt => "corrupt",
    };
    let with = if fault.with.is_empty() { String::new() } else { format!(", with {}", fault.with.join(", ")) };
    format!("{:>7.1} s  {:<9} {deed} for {:.1} s, {}{with}", fault.at, fault.peer, fault.until - fault.at, fault.role)
}

fn tell_all(report: &ChaosReport) {
    let (faults, streams) = (report.faults.len(), report.streams.len());
    say!("{faults} faults in {:.0} s, {streams} streams ended as an undisturbed swarm's", report.seconds);
    let summary = report.summary();
    let ChaosSummary { hits, pauses, pauses_of_all, pauses_at_stopped_gateways, pauses_by_role, .. } = &summary;
    let ChaosSummary { ways, gone, replanned, healed, .. } = summary;
    let hits: Vec<String> = hits.iter().map(|(role, hits)| format!("{role} {hits}")).collect();
    say!("hit: {}", hits.join(", "));
    if let Some(pauses) = pauses {
        say!("{} streams were hit: longest pause {}", pauses.of, times(*pauses));
    }
    for (role, pauses) in pauses_by_role {
        say!("  by a fault of {role:<15} {:>4}: {}", pauses.of, times(*pauses));
    }
    if let Some(pauses) = pauses_at_stopped_gateways {
        say!("  told apart, at gateways stopped or cut off {:>4}: {}", pauses.of, times(*pauses));
    }
    if let Some(pauses) = pauses_of_all {
        say!("all {} streams, hit or not: longest pause {}", pauses.of, times(*pauses));
    }
    let Resumptions { kept, cached, anew, unknown } = ways;
    if ways != Resumptions::default() {
        say!(
            "moves: {kept} from KV that a prefill group had kept, {cached} from what the decode group had, {anew} computed anew, \
             {unknown} not known"
        );
    }
    if let Some(gone) = gone {
        say!("{} stayed dead: gone from every view after {}", gone.of, times(gone));
    }
    if let Some(replanned) = replanned {
        say!("{} of those had a part: all followed a plan without it after {}", replanned.of, times(replanned));
    }
    if let Some(healed) = healed {
        say!("{} partitions: all of one mind again after {}", healed.of, times(healed));
    }
    if let Some((slowest, stood)) = report.slowest().filter(|(_, stood)| stood.pause > 1.0) {
        let moves: Vec<&str> = slowest.moves.iter().map(|m| m.reason.as_str()).collect();
        let (moves, asked, ServedStream { from, to, request, returns, reason, .. }) =
            (moves.join("; "), stood.at.join(", "), slowest);
        say!(
            "the longest, {:.2} s from {:.1} s on, was of {request} ({from:.1} s to {to:.1} s), asked of {asked}; \
             moved: [{moves}], {returns} returns; prefill: {reason}",
            stood.pause,
            stood.from
        );
    }
    for wrong in report.wrongs() {
        say!("did not hold: {wrong}");
    }
}

fn times(spread: Spread) -> String {
    let Spread { median, ninety, ninety_nine, most, of: _ } = spread;
    format!("{median:.2} s in the median, {ninety:.2} s in 90 %, {ninety_nine:.2} s in 99 %, {most:.2} s at most")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::testnet::flags;

    #[test]
    fn peers_are_told_when_to_split_as_chaos_was() {
        let told = |args: &[&str]| {
            let matches = command().try_get_matches_from([&["chaos"], args].concat())?;
            Ok::<_, clap::Error>(flags(&matches, "info"))
        };
        assert_eq!(told(&[]).unwrap(), ["--split", "always", "--log", "info"]);
        let auto = told(&["--split", "auto", "--layout", "prefill=1,decode=1"]).unwrap();
        assert_eq!(auto, ["--split", "auto", "--log", "info", "--layout", "prefill=1,decode=1"]);
        assert!(told(&["--split", "sometimes"]).is_err());
    }

    #[test]
    fn a_seed_and_options_are_read_as_a_run_has_them() {
        let told = |args: &[&str]| asked(&command().try_get_matches_from([&["chaos"], args].concat()).unwrap());
        let chaos = told(&["--only", "stop,kill", "--pairs", "0.1", "--faults", "9", "--gap-p99", "1.5"]).unwrap();
        assert_eq!((chaos.deeds, chaos.pairs), (Deeds::Only(vec![Deed::Kill, Deed::Stop]), 0.1));
        assert!(matches!(chaos.until, Until::Faults(9)));
        assert_eq!(chaos.limits, PauseLimits { p99: Some(1.5), worst: None });
        assert_eq!(told(&["--only", "nothing"]).unwrap().deeds, Deeds::Calm);
        assert_eq!(told(&[]).unwrap().deeds, Deeds::Drawn);
        assert!(told(&["--only", "nothing,kill"]).unwrap_err().to_string().contains("nothing else"));
    }
}
