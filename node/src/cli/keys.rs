//! `tsnode keys`: makes, lists and removes the keys that HTTP clients show.

use super::{is_set, json as json_flag, knobs, output, verb};
use crate::{
    cli::exit::{Exit, ExitKind},
    config::{Settings, secrets::API_KEY},
    store::keys::{self, KeyScope, KeysError},
};
use clap::{Arg, ArgMatches, Command};
use serde_json::json;

pub(super) fn command() -> Command {
    let name = || Arg::new("key").value_name("NAME").required(true).help("What people call it");
    let scope = Arg::new("scope")
        .long("scope")
        .value_parser(["inference", "admin"])
        .default_value("inference")
        .help("Send prompts only, or everything");
    let one = |verb: Command| verb.args(knobs(&["data-dir"])).arg(json_flag());
    Command::new("keys")
        .about("Keys that HTTP clients show; once there is one, every client needs one")
        .subcommand_required(true)
        .subcommand(one(verb("add", "Make a key and print it, once", "tsnode keys add bob").arg(name()).arg(scope)))
        .subcommand(one(verb("list", "Who has keys", "tsnode keys list")))
        .subcommand(one(verb("remove", "Refuse a key from now on", "tsnode keys remove bob").arg(name())))
}

pub(super) fn run(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let Some((verb, matches)) = matches.subcommand() else { return Ok(()) };
    let folder = settings.data_dir();
    let name = matches.try_get_one::<String>("key").ok().flatten().map_or("", String::as_str);
    let as_json = is_set(matches, "json");
    match verb {
        "add" => {
            let admin = matches.get_one::<String>("scope").is_some_and(|s| s == "admin");
            let scope = if admin { KeyScope::Admin } else { KeyScope::Inference };
            let key = keys::add(&folder, name, scope).map_err(exit)?;
            let first = !settings.has_secret(API_KEY) && keys::read(&folder).map_err(exit)?.len() == 1;
            if as_json {
                return output::print_json(&json!({ "name": name, "key": key }));
            }
            say!("{key}");
            told(name, scope, first);
        }
        "remove" => {
            keys::remove(&folder, name).map_err(exit)?;
            if as_json {
                return output::print_json(&json!({ "removed": name }));
            }
            say!("{name} is refused from now on");
        }
        _ => {
            let all = keys::read(&folder).map_err(exit)?;
            let shown: Vec<_> = all.iter().map(|k| json!({ "name": k.name, "scope": k.scope })).collect();
            if as_json {
                return output::print_json(&shown);
            }
            let mut rows = vec![vec!["KEY".to_owned(), "MAY".to_owned()]];
            rows.extend(all.into_iter().map(|k| vec![k.name, format!("{:?}", k.scope).to_lowercase()]));
            return output::table(&rows);
        }
    }
    Ok(())
}

/// What the key is for, and what changes with the first one.
fn told(name: &str, scope: KeyScope, first: bool) {
    let good_for = match scope {
        KeyScope::Inference => "prompts (/v1/) and nothing else",
        KeyScope::Admin => "everything",
    };
    note!("{name}'s key is shown this once. It is good for {good_for}; clients send it as: Authorization: Bearer …");
    if first {
        note!(
            "From now on every HTTP client needs a key, and who had none so far is answered 401; the page asks for one, too.\n\
             Commands on this host (tsnode status, submit, leave …) need none: they are known by the data folder.\n\
             To do without keys again: tsnode keys remove {name}"
        );
    }
}

fn exit(error: KeysError) -> Exit {
    let kind = match error {
        KeysError::Io { .. } | KeysError::Broken { .. } => ExitKind::DataDir,
        KeysError::Taken(_) | KeysError::Unknown(_) => ExitKind::Usage,
    };
    Exit::new(kind, error.to_string())
}
