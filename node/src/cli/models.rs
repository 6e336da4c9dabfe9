//! `tsnode models`: what the swarm serves; and models by name: searched, fetched into the Hugging Face cache, listed, removed,
//! verified, imported.

mod bars;
mod demand;
mod import;
mod local;
mod open_models;
mod peers;

use self::bars::Bars;
use super::{asking, is_set, json as json_flag, knobs, output, show, switch, verb, whole};
use crate::{
    cli::exit::{Exit, ExitKind},
    config::Settings,
    hardware::memory::Size,
    hub::{self, Hub, HubError, HubSettings, ModelName, NameError, Use},
    node::{ComputeChoice, Membering, ModelChoice, NodeConfig, NodeError, WantedModel},
    store::Store,
    weights,
};
use clap::{Arg, ArgMatches, Command};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Most repositories that a search shows.
const MOST: usize = 100;

pub(super) fn command() -> Command {
    let name = |help| Arg::new("name").value_name("NAME").help(help);
    let one = |verb: Command| verb.arg(json_flag());
    let here = |verb: Command| verb.args(knobs(&["data-dir"])).arg(json_flag());
    asking("models", "Models the swarm serves; with a verb, models that could be served here", "tsnode models")
        .subcommand(demand::command())
        .subcommand(one(verb(
            "search",
            "Models whose names have these words: of the catalogue, and of the hub",
            "tsnode models search llama 1b",
        )
        .arg(
            Arg::new("words")
                .value_name("WORDS")
                .num_args(0..)
                .help("What to look for; nothing shows the catalogue alone"),
        )
        .arg(
            Arg::new("limit")
                .long("limit")
                .value_name("N")
                .value_parser(whole(1..=MOST))
                .default_value("10")
                .help("Most repositories of the hub"),
        )))
        .subcommand(
            asking(
                "pull",
                "Fetch a model into the Hugging Face cache, or what is missing of it; from the swarm's peers where there is no hub",
                "tsnode models pull llama3.2:1b",
            )
            .arg(name("An alias, org/repo, org/repo:Q4_K_M or org/repo@revision").required(true)),
        )
        .subcommand(here(verb(
            "list",
            "Models in the Hugging Face cache, and those that came from peers",
            "tsnode models list",
        )))
        .subcommand(
            here(verb(
                "rm",
                "Remove a model that is listed, from peers and the hub; of peers' none that this host's peer serves",
                "tsnode models rm llama3.2:1b",
            ))
            .arg(name("As it is listed, or its id").required(true)),
        )
        .subcommand(
            here(verb(
                "verify",
                "Hold the files of models that are listed against their hashes",
                "tsnode models verify",
            ))
            .arg(name("As it is listed, or its id [default: all]"))
            .arg(switch("remove", "Remove what does not fit, so that it is fetched again")),
        )
        .subcommand(import::command())
}

pub(super) async fn run(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let Some((verb, matches)) = matches.subcommand() else { return show::models(settings, matches).await };
    match verb {
        "demand" => demand::run(settings, matches).await,
        "search" => search(matches).await,
        "pull" => pull(settings, matches).await,
        "list" => local::list(settings, matches),
        "rm" => local::remove(settings, matches).await,
        "verify" => local::verify(settings, matches),
        _ => import::run(matches),
    }
}

/// Where the hub and its cache are, by the environment.
fn hub_settings() -> HubSettings {
    HubSettings::gather(|name| std::env::var(name).ok())
}

fn named(matches: &ArgMatches) -> Result<Option<ModelName>, Exit> {
    let name = matches.get_one::<String>("name").map(|text| hub::model(text)).transpose();
    name.map_err(|error| exit(error.into()))
}

async fn search(matches: &ArgMatches) -> Result<(), Exit> {
    let words: Vec<&str> = matches.get_many::<String>("words").into_iter().flatten().map(String::as_str).collect();
    let most = matches.get_one::<usize>("limit").copied().unwrap_or(MOST);
    let settings = hub_settings();
    let fits = |alias: &&hub::Alias| {
        let own = format!("{} {}", alias.alias, alias.model).to_lowercase();
        words.iter().all(|word| own.contains(&word.to_lowercase()))
    };
    let aliases: Vec<&hub::Alias> = hub::aliases().iter().filter(fits).collect();
    let found = match words.is_empty() || settings.offline {
        true => Ok(Vec::new()),
        false => ask(settings, &words.join(" "), most).await,
    };
    let found = match found {
        // The catalogue needs no network.
        Err(unanswered) if !aliases.is_empty() => {
            note!("tsnode: note: {unanswered}");
            Vec::new()
        }
        found => found.map_err(exit)?,
    };
    if is_set(matches, "json") {
        let aliases = aliases.iter().map(|a| {
            json!({ "alias": a.alias, "model": a.model.to_string(), "gigabytes": a.gigabytes, "licence": a.licence })
        });
        let found = found.iter().map(|f| {
            json!({ "model": f.repo.to_string(), "downloads": f.downloads, "licence": f.licence, "gated": f.gated })
        });
        return output::print_json(
            &json!({ "catalogue": aliases.collect::<Vec<_>>(), "hub": found.collect::<Vec<_>>() }),
        );
    }
    if aliases.is_empty() && found.is_empty() {
        return Err(Exit::new(ExitKind::Model, format!("nothing is called {:?}", words.join(" "))));
    }
    let mut rows = vec![["ALIAS", "MODEL", "SIZE", "LICENCE"].map(String::from).to_vec()];
    rows.extend(
        aliases
            .iter()
            .map(|a| vec![a.alias.clone(), a.model.to_string(), format!("{:.1} GB", a.gigabytes), a.licence.clone()]),
    );
    if !aliases.is_empty() {
        output::table(&rows)?;
    }
    if !aliases.is_empty() && !found.is_empty() {
        say!("");
    }
    let mut rows = vec![["MODEL", "DOWNLOADS", "LICENCE", "ACCESS"].map(String::from).to_vec()];
    rows.extend(found.into_iter().map(|f| {
        let access = if f.gated { "terms to accept" } else { "open" };
        vec![f.repo.to_string(), f.downloads.to_string(), f.licence.unwrap_or_else(|| "-".into()), access.into()]
    }));
    if rows.len() > 1 { output::table(&rows) } else { Ok(()) }
}

/// Who searches asks again by himself.
async fn ask(mut settings: HubSettings, words: &str, most: usize) -> Result<Vec<hub::FoundRepo>, HubError> {
    settings.patience.tries = 1;
    Hub::new(settings)?.search(words, most).await
}

async fn pull(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let Some(name) = named(matches)? else { return Ok(()) };
    let hub = Hub::new(hub_settings()).map_err(exit)?;
    let mut bars = Bars::new(&name);
    let pulled = hub::pull(&hub, &name, Use::Keep, &mut |news| bars.show(news)).await;
    drop(bars);
    if let Err(error) = &pulled
        && error.is_out_of_reach()
        && peers::has(settings, matches, &name).await
    {
        note!("tsnode: note: {error}; {name} is fetched from peers of the swarm");
        return peers::pull(settings, matches, &name).await;
    }
    let hub::PulledModel { model, fetched, licence } = pulled.map_err(exit)?;
    let path = model.path.display().to_string();
    if is_set(matches, "json") {
        return output::print_json(&json!({ "model": name.to_string(), "commit": model.commit.as_str(), "path": path,
            "bytes": model.bytes, "fetched": fetched, "licence": licence, "pickles": model.pickles }));
    }
    let licence = licence.map_or(String::new(), |licence| format!(", licence {licence}"));
    say!("{name}: {} ({} fetched){licence}", Size(model.bytes), Size(fetched));
    match model.pickles {
        true => say!("these are PyTorch pickles; make safetensors of them with: tsnode models import {path}"),
        false => say!("serve it with: tsnode join --model {name}"),
    }
    Ok(())
}

/// Models that a peer is told by their names become folders and files of this disk, fetched if they were not there.
pub(super) async fn fetch(config: &mut NodeConfig) -> Result<(), Exit> {
    let mut models = std::mem::take(&mut config.models);
    for model in &mut models {
        let ModelChoice::Path(path) = &model.choice else { continue };
        let Some(name) = by_name(path)? else { continue };
        if let Some(folder) = pulled(&config.data_dir, &name) {
            model.name.get_or_insert_with(|| name.to_string());
            model.choice = ModelChoice::Path(folder);
            continue;
        }
        model.choice = match obtain(&name).await {
            Ok(path) => ModelChoice::Path(path),
            Err(error) if error.is_out_of_reach() && comes_to_peers(config)? => {
                note!("tsnode: note: {error}; {name} is fetched from peers of the swarm that have it");
                ModelChoice::Named(name.to_string())
            }
            Err(error) => return Err(exit(error)),
        };
    }
    config.models = models;
    // What drafts and encodes is not given by peers.
    for path in paths(config) {
        let Some(name) = by_name(path)? else { continue };
        *path = obtain(&name).await.map_err(exit)?;
    }
    Ok(())
}

/// Whether there will be peers that may have what the hub does not give: who was invited comes to some, who starts again to those that it
/// knew. Computed otherwise it would be another model than theirs.
fn comes_to_peers(config: &NodeConfig) -> Result<bool, Exit> {
    let comes = match config.membering {
        Membering::Invited(_) => true,
        Membering::NewPrivate => false,
        Membering::Usual => Store::remembers_peers(&config.data_dir).map_err(NodeError::from)?,
    };
    Ok(comes && config.computed == ComputeChoice::default())
}

/// Where all of it came from peers before. What is in the hub's cache goes first.
fn pulled(data_dir: &Path, name: &ModelName) -> Option<PathBuf> {
    let is_cached = hub::find(&hub::Cache::new(hub_settings().cache), name).is_some();
    weights::pulled(data_dir, &name.to_string()).filter(|_| !is_cached)
}

async fn obtain(name: &ModelName) -> Result<PathBuf, HubError> {
    let hub = Hub::new(hub_settings())?;
    let mut bars = Bars::new(name);
    Ok(hub::obtain(&hub, name, &mut |news| bars.show(news)).await?.path)
}

/// The same without fetching anything.
pub(super) fn find(config: &mut NodeConfig) -> Result<(), Exit> {
    let (cache, data_dir) = (hub::Cache::new(hub_settings().cache), config.data_dir.clone());
    for path in paths(config) {
        let Some(name) = by_name(path)? else { continue };
        let found = pulled(&data_dir, &name).or_else(|| hub::find(&cache, &name).map(|model| model.path));
        *path = found.ok_or_else(|| exit(HubError::Absent { name, folder: cache.folder().to_owned() }))?;
    }
    Ok(())
}

/// Whatever a peer is told to lend.
fn paths(config: &mut NodeConfig) -> impl Iterator<Item = &mut PathBuf> {
    let encoders = config.encoders.iter_mut().map(|(path, _)| path);
    config.models.iter_mut().flat_map(paths_of).chain(encoders)
}

fn paths_of(model: &mut WantedModel) -> impl Iterator<Item = &mut PathBuf> {
    let path = match &mut model.choice {
        ModelChoice::Path(path) => Some(path),
        ModelChoice::Fallback | ModelChoice::Embedded | ModelChoice::Named(_) => None,
    };
    path.into_iter().chain(&mut model.draft)
}

fn by_name(path: &Path) -> Result<Option<ModelName>, Exit> {
    let Some(text) = path.to_str() else { return Ok(None) };
    match hub::AskedModel::of(text).map_err(|error| exit(error.into()))? {
        hub::AskedModel::Path(_) => Ok(None),
        hub::AskedModel::Model(name) => Ok(Some(name)),
    }
}

fn exit(error: HubError) -> Exit {
    let kind = match &error {
        HubError::Name(NameError { .. }) => ExitKind::Usage,
        HubError::Unreachable { .. } | HubError::NotAHub { .. } => ExitKind::Unreachable,
        HubError::Disk { .. } | HubError::Room { .. } => ExitKind::Other,
        _ => ExitKind::Model,
    };
    Exit::new(kind, error.to_string())
}
