//! `tsnode models list`, `rm` and `verify`: what is in the Hugging Face cache.

use super::{exit, hub_settings, named};
use crate::{
    cli::{
        exit::{Exit, Kind},
        is_set, output,
    },
    hardware::memory::Size,
    hub::{Cache, CachedModel, Damage, HubError},
};
use clap::ArgMatches;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

pub(super) fn list(matches: &ArgMatches) -> Result<(), Exit> {
    let cache = Cache::new(hub_settings().cache);
    let models = cache.models();
    if is_set(matches, "json") {
        let shown = |model: &CachedModel| {
            json!({ "model": model.name.to_string(), "commit": model.commit.as_str(), "bytes": model.bytes,
                "path": model.path, "missing": model.lacking, "pickles": model.pickles,
                "licence": cache.licence(&model.name.repo) })
        };
        return output::print_json(&models.iter().map(shown).collect::<Vec<_>>());
    }
    if models.is_empty() {
        say!("no model is in {}; fetch one with: tsnode models pull llama3.2:1b", cache.folder().display());
        return Ok(());
    }
    let mut rows = vec![["MODEL", "SIZE", "COMMIT", "LICENCE", "STATE"].map(String::from).to_vec()];
    rows.extend(models.iter().map(|model| {
        let commit = model.commit.as_str().chars().take(8).collect();
        let licence = cache.licence(&model.name.repo).unwrap_or_else(|| "-".into());
        vec![model.name.to_string(), Size(model.bytes).to_string(), commit, licence, state(model)]
    }));
    output::table(&rows)
}

fn state(model: &CachedModel) -> String {
    match &model.lacking {
        Some(file) => format!("{file} is missing"),
        None if model.pickles => "pickles: import it".into(),
        None => "whole".into(),
    }
}

pub(super) fn remove(matches: &ArgMatches) -> Result<(), Exit> {
    let Some(name) = named(matches)? else { return Ok(()) };
    let bytes = Cache::new(hub_settings().cache).remove(&name).map_err(exit)?;
    if is_set(matches, "json") {
        return output::print_json(&json!({ "removed": name.to_string(), "bytes": bytes }));
    }
    say!("{name} is removed: {}", Size(bytes));
    Ok(())
}

pub(super) fn verify(matches: &ArgMatches) -> Result<(), Exit> {
    let name = named(matches)?;
    let cache = Cache::new(hub_settings().cache);
    let repos = cache.meant(name.as_ref());
    if let (Some(name), true) = (name, repos.is_empty()) {
        return Err(exit(HubError::Absent { name, folder: cache.folder().to_owned() }));
    }
    let bytes: u64 = repos.iter().map(|repo| cache.bytes(repo)).sum();
    let style = ProgressStyle::with_template("verifying {bar:30} {binary_bytes} of {binary_total_bytes}, {eta} left");
    let bar = ProgressBar::new(bytes).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let damage: Vec<Damage> = repos.iter().flat_map(|repo| cache.verify(repo, |read| bar.inc(read))).collect();
    bar.finish_and_clear();
    let remove = is_set(matches, "remove");
    for damaged in damage.iter().filter(|_| remove) {
        let path = damaged.path();
        std::fs::remove_file(path).map_err(|error| Exit::file(Kind::Other, path, &error))?;
    }
    if is_set(matches, "json") {
        let wrong: Vec<_> = damage.iter().map(|d| json!({ "path": d.path(), "problem": d.to_string() })).collect();
        output::print_json(
            &json!({ "repositories": repos.len(), "bytes": bytes, "damaged": wrong, "removed": remove }),
        )?;
    } else {
        damage.iter().for_each(|damaged| say!("{damaged}"));
    }
    match (damage.len(), remove) {
        (0, _) if is_set(matches, "json") => Ok(()),
        (0, _) => {
            let repositories = if repos.len() == 1 { "repository" } else { "repositories" };
            say!("{} in {} {repositories}: every file is what its name says", Size(bytes), repos.len());
            Ok(())
        }
        (n, true) => Err(Exit::new(Kind::Model, format!("{n} damaged files were removed; pull their models again"))),
        (n, false) => Err(Exit::new(
            Kind::Model,
            format!("{n} files are damaged; tsnode models verify --remove removes them, and a pull fetches them again"),
        )),
    }
}
