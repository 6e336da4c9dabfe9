//! `tsnode limits`: what a peer's owner allows it, and changes while it runs.

use super::{
    ask::{PeerClient, unread},
    asking, is_set, knobs,
    output::{print_json, table},
    switch,
};
use crate::{
    cli::exit::{Exit, ExitKind},
    config::{
        Settings,
        values::{self, ByteSize},
    },
    data_plane::links::check_upload,
    hardware::memory::Size,
};
use clap::{Arg, ArgGroup, ArgMatches, Command};
use indicatif::ProgressBar;
use serde_json::{Map, Value, json};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Settings, and what `/api/limits` calls them.
const LIMITS: [(&str, &str); 4] =
    [("memory", "memory_bytes"), ("threads", "threads"), ("upload-mbit", "upload_mbit"), ("hours", "hours")];
/// More threads are none that anybody means.
const MOST_THREADS: usize = 1024;
/// How long models may take to be lent anew: what runs is moved, and weights are read again when a plan asks for them.
const ANEW: Duration = Duration::from_secs(180);
const LOOK: Duration = Duration::from_millis(200);

pub(super) fn command() -> Command {
    let names = LIMITS.map(|(name, _)| name);
    let set = asking(
        "set",
        "Set some, now and for the next start; other memory and threads take up to a minute, in which others go on with what runs here",
        "tsnode limits set --upload-mbit 20 --hours 22:00-07:00",
    )
    .args(knobs(&names))
    .group(ArgGroup::new("limits").args(names).required(true).multiple(true));
    let which = Arg::new("which").value_name("LIMIT").num_args(1..).required(true).value_parser(names).help("Which");
    let unset = asking(
        "unset",
        "Say nothing of some: memory is half of what is free, threads as many as cores, upload and hours have no limit",
        "tsnode limits unset upload-mbit",
    );
    let waits = |verb: Command| verb.arg(switch("no-wait", "Do not wait until models are lent anew"));
    asking("limits", "What this machine may be used for: memory, threads, upload and hours", "tsnode limits")
        .subcommand(waits(set))
        .subcommand(waits(unset.arg(which)))
}

pub(super) async fn run(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    match matches.subcommand() {
        None => show(&PeerClient::find(settings, matches)?, matches).await,
        Some(("set", matches)) => change(settings, matches, wish(matches)?).await,
        Some((_, matches)) => {
            let which = matches.get_many::<String>("which").into_iter().flatten();
            let field = |name: &String| LIMITS.into_iter().find(|(setting, _)| *setting == name.as_str());
            let none = which.filter_map(field).map(|(_, field)| (field.to_owned(), Value::Null));
            change(settings, matches, none.collect()).await
        }
    }
}

/// What is to be set, by what the peer calls it.
fn wish(matches: &ArgMatches) -> Result<Map<String, Value>, Exit> {
    let mut wish = Map::new();
    for (name, field) in LIMITS {
        let Some(text) = matches.get_one::<String>(name) else { continue };
        let wrong = |error: String| Exit::new(ExitKind::Usage, format!("--{name} {text}: {error}"));
        let value = match name {
            "memory" => json!(text.parse::<ByteSize>().map_err(wrong)?.0),
            "threads" => json!(values::whole(text, &(1..=MOST_THREADS)).map_err(wrong)?),
            "upload-mbit" => {
                let mbit = values::above_0(text).map_err(wrong)?;
                check_upload(mbit).map_err(wrong)?;
                json!(mbit)
            }
            _ => json!(text),
        };
        wish.insert(field.to_owned(), value);
    }
    Ok(wish)
}

async fn change(settings: &Settings, matches: &ArgMatches, wish: Map<String, Value>) -> Result<(), Exit> {
    let peer = PeerClient::find(settings, matches)?;
    let lends = ["memory_bytes", "threads"].into_iter().any(|field| wish.contains_key(field));
    let answer = peer.send(peer.post("/api/limits", &Value::Object(wish))).await?;
    let mut answer: Value = answer.json().await.map_err(|e| Exit::new(ExitKind::Unreachable, unread(&e)))?;
    let is_json = is_set(matches, "json");
    if !is_json {
        say!("{}", answer["done"].as_str().unwrap_or_default());
    }
    if !lends {
        // Where models are lent anew, that is for another change.
        return if is_json { print_json(&answer) } else { Ok(()) };
    }
    if answer["relending"]["state"] == "under_way" && !is_set(matches, "no-wait") {
        answer["relending"] = lent_anew(&peer).await?;
    }
    let relending = &answer["relending"];
    if relending["state"] == "refused" {
        let why = relending["why"].as_str().unwrap_or_default();
        return Err(Exit::new(ExitKind::Request, format!("memory and threads are as before: {why}")));
    }
    match relending["said"].as_str() {
        _ if is_json => print_json(&answer)?,
        Some(said) => say!("{said}"),
        None => {}
    }
    Ok(())
}

/// Waits until models are lent anew, or are not.
async fn lent_anew(peer: &PeerClient) -> Result<Value, Exit> {
    let (bar, until) = (ProgressBar::new_spinner(), Instant::now() + ANEW);
    bar.enable_steady_tick(Duration::from_millis(120));
    bar.set_message("lends its models anew");
    loop {
        let shown: Value = peer.get("/api/limits").await?;
        if shown["relending"]["state"] != "under_way" {
            bar.finish_and_clear();
            return Ok(shown["relending"].clone());
        }
        if Instant::now() > until {
            let why = format!("models are not lent yet after {} s; tsnode limits says when they are", ANEW.as_secs());
            return Err(Exit::new(ExitKind::Other, why));
        }
        sleep(LOOK).await;
    }
}

async fn show(peer: &PeerClient, matches: &ArgMatches) -> Result<(), Exit> {
    let shown: Value = peer.get("/api/limits").await?;
    if is_set(matches, "json") {
        return print_json(&shown);
    }
    table(&rows(&shown))?;
    match shown["relending"]["state"].as_str() {
        Some("under_way") => say!("models are being lent anew: memory and threads change with that"),
        Some("refused") => {
            say!("memory and threads are as before: {}", shown["relending"]["why"].as_str().unwrap_or_default());
        }
        _ => {}
    }
    Ok(())
}

/// What holds now, and what the next start makes of it.
fn rows(shown: &Value) -> Vec<Vec<String>> {
    let limits = &shown["limits"];
    let unsaid = |name: &str| match name {
        "memory" => "half of what is free".to_owned(),
        "threads" => "as many as cores".to_owned(),
        _ => "no limit".to_owned(),
    };
    let now = |name: &str| match name {
        "memory" => limits["memory_bytes"].as_u64().map(|bytes| format!("{} at most", Size(bytes))),
        "threads" => limits["threads"].as_u64().map(|count| count.to_string()),
        "upload-mbit" => limits["upload_mbit"].as_f64().map(|mbit| format!("{mbit} Mbit/s")),
        _ => shown["hours"].as_str().map(str::to_owned),
    };
    let next = |name: &str| {
        let [fixed, kept] = ["fixed", "kept"].map(|from| shown[from][name].as_str());
        match (fixed, kept) {
            (Some(place), _) => place.to_owned(),
            (None, Some("")) => unsaid(name),
            (None, Some(kept)) => kept.to_owned(),
            (None, None) => "as its settings say".to_owned(),
        }
    };
    let titles = ["LIMIT", "NOW", "AT THE NEXT START"].map(String::from).to_vec();
    let row = |(name, _): (&str, &str)| vec![name.to_owned(), now(name).unwrap_or_else(|| unsaid(name)), next(name)];
    std::iter::once(titles).chain(LIMITS.into_iter().map(row)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<Map<String, Value>, String> {
        let matches = crate::cli::command().try_get_matches_from(words).map_err(|e| e.to_string())?;
        let (_, limits) = matches.subcommand().ok_or("no verb")?;
        let (_, set) = limits.subcommand().ok_or("no verb of limits")?;
        wish(set).map_err(|e| e.to_string())
    }

    #[test]
    fn limits_are_written_as_settings_are() {
        let words = ["tsnode", "limits", "set", "--memory", "2GiB", "--threads", "3", "--upload-mbit", "1.5"];
        let wish = parsed(&words).unwrap();
        assert_eq!(Value::Object(wish), json!({ "memory_bytes": 2_u64 << 30, "threads": 3, "upload_mbit": 1.5 }));
        for wrong in
            [&["--memory", "2"][..], &["--threads", "0"], &["--upload-mbit", "fast"], &["--upload-mbit", "0.5"], &[]]
        {
            let words = [&["tsnode", "limits", "set"][..], wrong].concat();
            assert!(parsed(&words).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_the_next_start_makes_of_it_is_shown() {
        let shown = json!({
            "limits": { "memory_bytes": null, "threads": 4, "upload_mbit": 8.0 }, "hours": "22:00-07:00",
            "kept": { "upload-mbit": "8", "memory": "" }, "fixed": { "hours": "--hours 22:00-07:00" },
        });
        let rows: Vec<String> = rows(&shown).into_iter().map(|row| row.join("|")).collect();
        assert_eq!(
            rows[1..],
            [
                "memory|half of what is free|half of what is free",
                "threads|4|as its settings say",
                "upload-mbit|8 Mbit/s|8",
                "hours|22:00-07:00|--hours 22:00-07:00"
            ]
        );
    }
}
