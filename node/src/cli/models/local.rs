//! `tsnode models list`, `rm` and `verify`: what is in the Hugging Face cache, and what came from peers.

use super::{exit, hub_settings, named, open_models};
use crate::{
    cli::{
        exit::{Exit, ExitKind},
        is_set, output,
        text_layout::harmless,
    },
    config::Settings,
    hardware::memory::Size,
    hub::{self, Cache, CachedModel, Damage, HubError, ModelName, RepoId},
    store::{StoreError, Unused},
    weights::{self, KeptDamage, KeptModel, KeptOrigin},
};
use clap::ArgMatches;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

pub(super) fn list(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let cache = Cache::new(hub_settings().cache);
    let (models, kept) = (cache.models(), weights::kept(&settings.data_dir()));
    if is_set(matches, "json") {
        let shown = |model: &CachedModel| {
            json!({ "model": model.name.to_string(), "from": "hub", "commit": model.commit.as_str(),
                "bytes": model.bytes, "path": model.path, "missing": model.lacking, "pickles": model.pickles,
                "licence": cache.licence(&model.name.repo) })
        };
        let all: Vec<Value> = models.iter().map(shown).chain(kept.iter().map(kept_as_json)).collect();
        return output::print_json(&all);
    }
    if models.is_empty() && kept.is_empty() {
        say!("no model is in {}; fetch one with: tsnode models pull llama3.2:1b", cache.folder().display());
        return Ok(());
    }
    let mut rows = vec![["MODEL", "FROM", "SIZE", "COMMIT", "LICENCE", "STATE"].map(String::from).to_vec()];
    rows.extend(models.iter().map(|model| {
        let commit = short(model.commit.as_str());
        let licence = cache.licence(&model.name.repo).unwrap_or_else(|| "-".into());
        vec![model.name.to_string(), "hub".into(), Size(model.bytes).to_string(), commit, licence, state(model)]
    }));
    rows.extend(kept.iter().map(|model| {
        let commit = model.origin.said().and_then(|origin| Some(short(origin.source.split_once('@')?.1)));
        let licence = model.origin.said().and_then(|origin| origin.licence.clone());
        let [commit, licence] = [commit, licence].map(|said| said.unwrap_or_else(|| "-".into()));
        vec![harmless(&model.name), "peers".into(), Size(model.held).to_string(), commit, licence, kept_state(model)]
    }));
    output::table(&rows)
}

fn kept_as_json(model: &KeptModel) -> Value {
    let origin = model.origin.said();
    let gated = (model.origin != KeptOrigin::Unsaid).then(|| model.origin.is_gated());
    json!({ "model": model.name, "from": "peers", "id": model.id, "bytes": model.bytes, "held": model.held,
        "whole": model.is_whole(), "path": model.folder, "source": origin.map(|origin| &origin.source),
        "licence": origin.and_then(|origin| origin.licence.as_ref()), "gated": gated })
}

fn short(commit: &str) -> String {
    commit.chars().take(8).collect()
}

fn state(model: &CachedModel) -> String {
    match &model.lacking {
        Some(file) => format!("{file} is missing"),
        None if model.pickles => "pickles: import it".into(),
        None => "whole".into(),
    }
}

fn kept_state(model: &KeptModel) -> String {
    let state = match model.bytes {
        0 => "damaged: verify it".into(),
        _ if model.is_whole() => "whole".into(),
        bytes => format!("layers, of {}", Size(bytes)),
    };
    match model.origin {
        KeptOrigin::Unreadable(_) => format!("{state}; counts as gated: its origin.json cannot be read"),
        KeptOrigin::Unsaid | KeptOrigin::Said(_) => state,
    }
}

/// What a name means here: models that came from peers, and repositories of the cache; all where there is none.
fn meant(settings: &Settings, matches: &ArgMatches, cache: &Cache) -> Result<(Vec<KeptModel>, Vec<RepoId>), Exit> {
    let text = matches.get_one::<String>("name").map(String::as_str);
    let mut kept = weights::kept(&settings.data_dir());
    kept.retain(|model| text.is_none_or(|text| is_called(model, text)));
    let name = match named(matches) {
        Ok(name) => name,
        // Peers may call a model as no repository can be called.
        Err(_) if !kept.is_empty() => return Ok((kept, Vec::new())),
        Err(error) => return Err(error),
    };
    let repos = cache.meant(name.as_ref());
    match name {
        Some(name) if repos.is_empty() && kept.is_empty() => Err(absent(name, cache)),
        _ => Ok((kept, repos)),
    }
}

fn absent(name: ModelName, cache: &Cache) -> Exit {
    exit(HubError::Absent { name, folder: cache.folder().to_owned() })
}

/// By its name, by an alias of that, or by its id.
fn is_called(model: &KeptModel, text: &str) -> bool {
    model.name == text
        || model.id.to_string() == text
        || hub::model(text).is_ok_and(|name| name.to_string() == model.name)
}

pub(super) async fn remove(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let (cache, data_dir) = (Cache::new(hub_settings().cache), settings.data_dir());
    let text = matches.get_one::<String>("name").map_or("", String::as_str);
    let kept: Vec<KeptModel> = weights::kept(&data_dir).into_iter().filter(|model| is_called(model, text)).collect();
    let name = named(matches);
    if kept.is_empty() {
        let Some(name) = name? else { return Ok(()) };
        let bytes = cache.remove(&name).map_err(exit)?;
        return RemovedModel { peers: None, hub: Some(bytes) }.tell(matches, &name.to_string());
    }
    // As long as it is removed no peer begins to serve it.
    let _unused = match Unused::hold(&data_dir) {
        Ok(unused) => Some(unused),
        Err(StoreError::Locked { .. }) => {
            open_models::refuse_open(settings, &kept).await?;
            None
        }
        Err(error) => return Err(Exit::new(ExitKind::DataDir, error.to_string())),
    };
    let mut removed = RemovedModel { peers: None, hub: None };
    for model in &kept {
        match weights::remove_kept(&data_dir, model) {
            Ok(bytes) => *removed.peers.get_or_insert(0) += bytes,
            Err(error) => {
                if removed.peers.is_some() {
                    note!("tsnode: note: {}", removed.sentence(text));
                }
                return Err(Exit::file(ExitKind::Other, &model.folder, &error));
            }
        }
    }
    match name {
        Ok(Some(name)) if !cache.meant(Some(&name)).is_empty() => match cache.remove(&name) {
            Ok(bytes) => removed.hub = Some(bytes),
            // Of that repository something else is there.
            Err(HubError::Absent { .. }) => {}
            Err(error) => {
                note!("tsnode: note: {}", removed.sentence(text));
                return Err(exit(error));
            }
        },
        _ => {}
    }
    removed.tell(matches, text)
}

/// What of a name is gone (bytes): a model may have come from peers, and from the hub as well.
struct RemovedModel {
    peers: Option<u64>,
    hub: Option<u64>,
}

impl RemovedModel {
    fn tell(&self, matches: &ArgMatches, name: &str) -> Result<(), Exit> {
        if is_set(matches, "json") {
            let bytes = self.peers.unwrap_or(0) + self.hub.unwrap_or(0);
            return output::print_json(
                &json!({ "removed": name, "bytes": bytes, "from_peers": self.peers, "from_hub": self.hub }),
            );
        }
        say!("{}", self.sentence(name));
        Ok(())
    }

    fn sentence(&self, name: &str) -> String {
        let places = [(self.peers, "that came from peers"), (self.hub, "in the Hugging Face cache")];
        let gone = places.into_iter().filter_map(|(bytes, place)| Some(format!("{} {place}", Size(bytes?))));
        format!("{name} is removed: {}", gone.collect::<Vec<_>>().join(", and "))
    }
}

/// What is wrong with what is here.
#[derive(Default)]
struct LocalDamage {
    cached: Vec<Damage>,
    kept: Vec<KeptDamage>,
}

impl LocalDamage {
    /// What it is, and where: a line for each.
    fn lines(&self) -> Vec<(String, String)> {
        let cached = self.cached.iter().map(|damage| (damage.path().display().to_string(), damage.to_string()));
        let kept = self.kept.iter().map(|damage| (damage.path().display().to_string(), damage.to_string()));
        cached.chain(kept).collect()
    }

    /// Has what is wrong fetched again by whoever wants it.
    fn remove(&self) -> Result<(), Exit> {
        for damaged in &self.cached {
            let path = damaged.path();
            std::fs::remove_file(path).map_err(|error| Exit::file(ExitKind::Other, path, &error))?;
        }
        for damaged in &self.kept {
            damaged.undo().map_err(|error| Exit::file(ExitKind::Other, damaged.path(), &error))?;
        }
        Ok(())
    }
}

pub(super) fn verify(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let cache = Cache::new(hub_settings().cache);
    let (kept, repos) = meant(settings, matches, &cache)?;
    let remove = is_set(matches, "remove");
    // What a peer has open it may be giving to others just now.
    let hold = || Unused::hold(&settings.data_dir()).map_err(|error| Exit::new(ExitKind::DataDir, error.to_string()));
    let _unused = if remove && !kept.is_empty() { Some(hold()?) } else { None };
    let of_repos = repos.iter().map(|repo| cache.bytes(repo));
    let bytes: u64 = of_repos.chain(kept.iter().map(|model| model.held)).sum();
    let style = ProgressStyle::with_template("verifying {bar:30} {binary_bytes} of {binary_total_bytes}, {eta} left");
    let bar = ProgressBar::new(bytes).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let found = LocalDamage {
        cached: repos.iter().flat_map(|repo| cache.verify(repo, |read| bar.inc(read))).collect(),
        kept: kept.iter().flat_map(|model| model.verify(|read| bar.inc(read))).collect(),
    };
    bar.finish_and_clear();
    if remove {
        found.remove()?;
    }
    let lines = found.lines();
    if is_set(matches, "json") {
        let wrong: Vec<_> = lines.iter().map(|(path, problem)| json!({ "path": path, "problem": problem })).collect();
        output::print_json(&json!({ "repositories": repos.len(), "from_peers": kept.len(), "bytes": bytes,
            "damaged": wrong, "removed": remove }))?;
    } else {
        lines.iter().for_each(|(_, problem)| say!("{problem}"));
    }
    match (lines.len(), remove) {
        (0, _) if is_set(matches, "json") => Ok(()),
        (0, _) => {
            let repositories = if repos.len() == 1 { "repository" } else { "repositories" };
            let from_peers = match kept.len() {
                0 => String::new(),
                1 => " and a model from peers".into(),
                n => format!(" and {n} models from peers"),
            };
            say!("{} in {} {repositories}{from_peers}: every file is what its name says", Size(bytes), repos.len());
            Ok(())
        }
        (n, true) => Err(Exit::new(
            ExitKind::Model,
            format!(
                "{n} damaged files were removed, or of what came from peers what is wrong of them; pull their models again"
            ),
        )),
        (n, false) => Err(Exit::new(
            ExitKind::Model,
            format!("{n} files are damaged; tsnode models verify --remove removes them, and a pull fetches them again"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_removed_of_a_name_is_told_with_where_it_was() {
        let told = |peers, hub| RemovedModel { peers, hub }.sentence("a/b");
        assert_eq!(told(None, Some(1 << 30)), "a/b is removed: 1.0 GiB in the Hugging Face cache");
        let both = told(Some(2 << 30), Some(1 << 30));
        assert_eq!(both, "a/b is removed: 2.0 GiB that came from peers, and 1.0 GiB in the Hugging Face cache");
    }
}
