//! `tsnode targets`, `tsnode route` and `tsnode batch`: what members set for their swarm.

use super::{
    ask::{PeerClient, unread},
    asking, is_set,
    output::print_json,
    swarm_settings,
};
use crate::{
    cli::exit::{Exit, ExitKind},
    config::Settings,
    view::SwarmView,
};
use clap::{Arg, ArgGroup, ArgMatches, Command};
use serde_json::{Value, json};
use tsnode_protocol::{
    BatchPolicy, RequestClass, RoutePolicy, Seconds, SettingKey, SwarmSetting, setting::LONGEST_TARGET,
};

pub(super) fn targets_command() -> Command {
    let target = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("TIME").value_parser(time).help(help)
    };
    let set = asking("set", "Set them for the whole swarm", "tsnode targets set --ttft 500ms --tpot 50ms --e2e 10s")
        .arg(target("ttft", "Time to the first token, as 500ms, 2s or 1m"))
        .arg(target("tpot", "Time for each token after it, on average"))
        .arg(target("e2e", "Time to the last token"))
        .group(ArgGroup::new("times").args(["ttft", "tpot", "e2e"]).required(true).multiple(true));
    asking(
        "targets",
        "Latency targets that members have set for the swarm, and how many requests keep them",
        "tsnode targets",
    )
    .subcommand(of_model(set).arg(class()))
    .subcommand(of_model(asking("clear", "Take them back", "tsnode targets clear")).arg(class()))
}

pub(super) fn route_command() -> Command {
    let policy = Arg::new("policy").value_name("POLICY").required(true).value_parser(clap::value_parser!(RoutePolicy)).help(
        "live: the plan's shares, corrected by queues; shares: these alone; shortest: the fewest pending prompt tokens; cronus: live, \
         and prefill groups compute the first part of a prompt, as much as is in time; pools: the shortest queues of groups for prompts \
         and for answers, of which one does both where the others have no room; auto: whichever of these does best when the requests \
         of late are replayed on the plan's groups",
    );
    asking("route", "How requests are routed on the plan, and who set it", "tsnode route")
        .subcommand(of_model(asking("set", "Set it for the whole swarm", "tsnode route set shortest")).arg(policy))
        .subcommand(of_model(asking("clear", "Take it back", "tsnode route clear")))
}

pub(super) fn batch_command() -> Command {
    let policy = Arg::new("policy").value_name("POLICY").required(true).value_parser(clap::value_parser!(BatchPolicy)).help(
        "chunked: answers in every step, and prompts in chunks beside them; mixed: prompts in chunks, and answers beside them as far as a \
         step's tokens reach, passed over four times at most; prefill-first: prompts alone, in longer steps, and answers after them, \
         passed over sixteen times at most; auto: whichever of these does best when the requests of late are replayed on the plan's groups",
    );
    asking("batch", "How groups form their steps, and who set it", "tsnode batch")
        .subcommand(of_model(asking("set", "Set it for the whole swarm", "tsnode batch set mixed")).arg(policy))
        .subcommand(of_model(asking("clear", "Take it back", "tsnode batch clear")))
}

fn of_model(command: Command) -> Command {
    let help = "For this model alone [default: all that have none of their own]";
    command.arg(Arg::new("of-model").long("model").value_name("NAME").help(help))
}

fn class() -> Arg {
    Arg::new("class")
        .long("class")
        .value_name("CLASS")
        .value_parser(clap::value_parser!(RequestClass))
        .default_value("interactive")
        .help("For these requests")
}

fn time(text: &str) -> Result<Seconds, String> {
    let wrong = || "write a time above 0 and of a day at most, as 500ms, 2s or 1m".to_owned();
    let at = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(at);
    let unit = match unit {
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        _ => return Err(wrong()),
    };
    let seconds = Seconds(number.parse::<f64>().map_err(|_| wrong())? * unit);
    if seconds.0 > 0.0 && seconds <= LONGEST_TARGET { Ok(seconds) } else { Err(wrong()) }
}

pub(super) async fn targets(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let Some((verb, of)) = matches.subcommand() else { return show(settings, matches, SettingWhat::Targets).await };
    let mut wish = json!({ "about": "targets", "model": of.get_one::<String>("of-model") });
    wish["class"] = json!(of.get_one::<RequestClass>("class"));
    if verb == "set" {
        for name in ["ttft", "tpot", "e2e"] {
            wish[format!("{name}_s")] = json!(of.get_one::<Seconds>(name).map(|s| s.0));
        }
    }
    set(settings, of, &wish).await
}

pub(super) async fn route(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let Some((_, of)) = matches.subcommand() else { return show(settings, matches, SettingWhat::Route).await };
    let policy = of.try_get_one::<RoutePolicy>("policy").ok().flatten();
    set(settings, of, &json!({ "about": "route", "model": of.get_one::<String>("of-model"), "policy": policy })).await
}

pub(super) async fn batch(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let Some((_, of)) = matches.subcommand() else { return show(settings, matches, SettingWhat::Batch).await };
    let policy = of.try_get_one::<BatchPolicy>("policy").ok().flatten();
    set(settings, of, &json!({ "about": "batch", "model": of.get_one::<String>("of-model"), "policy": policy })).await
}

async fn set(settings: &Settings, matches: &ArgMatches, wish: &Value) -> Result<(), Exit> {
    let peer = PeerClient::find(settings, matches)?;
    let answer = peer.send(peer.post("/api/settings", wish)).await?;
    let answer: Value = answer.json().await.map_err(|e| Exit::new(ExitKind::Unreachable, unread(&e)))?;
    if is_set(matches, "json") {
        return print_json(&answer);
    }
    say!("{}", answer["done"].as_str().unwrap_or_default());
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SettingWhat {
    Targets,
    Route,
    Batch,
}

impl SettingWhat {
    /// What the swarm's settings call it, and what became of it.
    fn of(label: &str) -> Self {
        match label {
            "routing" | "overflow" => Self::Route,
            "batching" => Self::Batch,
            _ => Self::Targets,
        }
    }
}

async fn show(settings: &Settings, matches: &ArgMatches, what: SettingWhat) -> Result<(), Exit> {
    let view = super::ask::look(settings, matches).await?;
    if is_set(matches, "json") {
        let shown: Vec<&SwarmSetting> = view.settings.iter().filter(|s| is_of(s, what)).collect();
        return print_json(&match what {
            SettingWhat::Targets => json!({ "targets": shown, "attainment": view.attainment }),
            SettingWhat::Route => {
                json!({ "route": shown, "chosen": swarm_settings::routes(&view), "overflows": view.overflows })
            }
            SettingWhat::Batch => json!({ "batch": shown, "chosen": swarm_settings::batches(&view) }),
        });
    }
    for line in lines(&view, what) {
        say!("{line}");
    }
    Ok(())
}

fn is_of(setting: &SwarmSetting, what: SettingWhat) -> bool {
    let about = match setting.key {
        SettingKey::Targets { .. } => SettingWhat::Targets,
        SettingKey::Route { .. } => SettingWhat::Route,
        SettingKey::Batch { .. } => SettingWhat::Batch,
    };
    about == what
}

fn lines(view: &SwarmView, what: SettingWhat) -> Vec<String> {
    let all = swarm_settings::lines(view).into_iter();
    let (labels, mut lines): (Vec<&str>, Vec<String>) = all.filter(|(label, _)| SettingWhat::of(label) == what).unzip();
    let (label, unset) = match what {
        SettingWhat::Targets => {
            ("targets", "none are set: plans are held against ten times what the swarm's fastest group takes")
        }
        SettingWhat::Route => {
            ("routing", "live: by the plan's shares, corrected by queues; nobody has set anything else")
        }
        SettingWhat::Batch => (
            "batching",
            "chunked: answers in every step, and prompts in chunks beside them; nobody has set anything else",
        ),
    };
    // What became of it while it was set stays there after that.
    if !labels.contains(&label) {
        lines.insert(0, unset.into());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{OverflowView, tests::view};
    use tsnode_protocol::SettingValue;

    #[test]
    fn what_was_taken_back_is_said_to_be_so_whatever_became_of_it() {
        let mut seen = view();
        let said = |seen: &SwarmView| lines(seen, SettingWhat::Route);
        assert!(matches!(&said(&seen)[..], [unset] if unset.starts_with("live: ")), "{:?}", said(&seen));
        seen.overflows = vec![OverflowView { model: "tiny".into(), prompts: 12, answers: 3 }];
        let both = said(&seen);
        assert!(both.len() == 2 && both[0].starts_with("live: ") && both[1].contains("12 times"), "{both:?}");
        let (key, value) = (SettingKey::Route { model: None }, SettingValue::Route(Some(RoutePolicy::Pools)));
        seen.settings = vec![SwarmSetting { key, value, at: 0, by: seen.me }];
        let set = said(&seen);
        assert!(set.len() == 2 && set[0].starts_with("pools for every model"), "{set:?}");
    }

    #[test]
    fn how_steps_are_formed_is_said_apart_from_the_rest() {
        let mut seen = view();
        assert!(matches!(&lines(&seen, SettingWhat::Batch)[..], [unset] if unset.starts_with("chunked: ")));
        let (key, value) = (SettingKey::Batch { model: None }, SettingValue::Batch(Some(BatchPolicy::PrefillFirst)));
        seen.settings = vec![SwarmSetting { key, value, at: 0, by: seen.me }];
        let said = lines(&seen, SettingWhat::Batch);
        assert!(said.len() == 1 && said[0].starts_with("prefill-first for every model; set by this peer"), "{said:?}");
        assert!(matches!(&lines(&seen, SettingWhat::Route)[..], [unset] if unset.starts_with("live: ")));
        assert!(is_of(&seen.settings[0], SettingWhat::Batch) && !is_of(&seen.settings[0], SettingWhat::Targets));
    }

    #[test]
    fn times_are_read_with_their_units() {
        assert_eq!(["500ms", "2s", "1.5m"].map(|t| time(t).unwrap()), [0.5, 2.0, 90.0].map(Seconds));
        for wrong in ["5", "ms", "0s", "-1s", "nans", "2d", "1e9s", ""] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }
}
