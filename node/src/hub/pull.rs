//! A model comes into the cache: what it is made of is chosen, there is room for it, and every file of it is verified.

use super::{
    cache::{Cache, CachedModel},
    client::{Hub, RepoFile, RepoInfo},
    download::DownloadJob,
    error::HubError,
    name::{ModelName, RepoId},
    news::PullNews,
    repo_files::{self, CheckpointFormat},
};
use crate::platform;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use tsnode_protocol::ModelOrigin;

/// What a model is fetched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// To be served as it is.
    Serve,
    /// Whatever becomes of it: PyTorch pickles as well, which have to be imported first.
    Keep,
}

/// A model that was pulled.
#[derive(Clone, Debug)]
pub struct PulledModel {
    /// It itself.
    pub model: CachedModel,
    /// What came over the network for it (bytes).
    pub fetched: u64,
    /// Its licence, as the hub calls it.
    pub licence: Option<String>,
}

/// A model that is wholly here, if it is.
#[must_use]
pub fn find(cache: &Cache, name: &ModelName) -> Option<CachedModel> {
    cache.model(name).ok().flatten().filter(|model| model.lacking.is_none())
}

/// A model to be served: as it is here, else fetched, unless that is forbidden.
///
/// # Errors
/// When it cannot be had.
pub async fn obtain(
    hub: &Hub,
    name: &ModelName,
    news: &mut (dyn FnMut(PullNews<'_>) + Send),
) -> Result<CachedModel, HubError> {
    let cache = Cache::new(&hub.settings().cache);
    match find(&cache, name) {
        Some(model) if model.pickles => Err(HubError::NoWeights { repo: name.repo.clone(), pickles: true }),
        Some(model) => Ok(model),
        None => pull(hub, name, Use::Serve, news).await.map(|pulled| pulled.model),
    }
}

/// Fetches what is not here of a model, as it is now at its revision.
///
/// # Errors
/// When it cannot be had; what came so far stays, to go on from there, and counts as nothing.
pub async fn pull(
    hub: &Hub,
    name: &ModelName,
    intent: Use,
    news: &mut (dyn FnMut(PullNews<'_>) + Send),
) -> Result<PulledModel, HubError> {
    let cache = Cache::new(&hub.settings().cache);
    if hub.settings().offline {
        return here(&cache, name);
    }
    let info = hub.info(name).await?;
    // Before anything of it is here that could be given to others.
    cache.mark_gated(&name.repo, info.gated)?;
    let files = chosen(&info, name, intent)?;
    let missing: Vec<&str> =
        files.iter().map(String::as_str).filter(|file| !cache.has(&name.repo, &info.commit, file)).collect();
    let to_come = to_come(&cache, &name.repo, &info, &missing);
    room(&cache, name, to_come)?;
    let listed = |file: &&str| info.files.iter().find(|listed| listed.path == **file).and_then(|listed| listed.bytes);
    news(PullNews::Begins { bytes: missing.iter().filter_map(listed).sum(), files: missing.len() });
    let job = DownloadJob { hub, cache: &cache, name, commit: &info.commit };
    let mut fetched = 0;
    for file in missing {
        fetched += job.fetch(file, news).await?;
    }
    if let Some(licence) = info.licence.as_ref().filter(|licence| ModelOrigin::is_plain(licence)) {
        cache.mark_licence(&name.repo, licence)?;
    }
    // Only now the name means these files.
    cache.remember(&name.repo, &name.revision, &info.commit)?;
    let model = cache.model(name)?.ok_or_else(|| absent(&cache, name))?;
    match model.lacking.clone() {
        Some(file) => Err(HubError::NoFile { repo: name.repo.clone(), file }),
        None => Ok(PulledModel { model, fetched, licence: info.licence }),
    }
}

/// The same where nothing may be asked of the network.
fn here(cache: &Cache, name: &ModelName) -> Result<PulledModel, HubError> {
    let found = cache.model(name).ok().flatten();
    let lacking = found.as_ref().and_then(|model| model.lacking.clone());
    match found.filter(|model| model.lacking.is_none()) {
        Some(model) => Ok(PulledModel { model, fetched: 0, licence: None }),
        None => Err(HubError::Offline { name: name.clone(), folder: cache.folder().to_owned(), lacking }),
    }
}

fn absent(cache: &Cache, name: &ModelName) -> HubError {
    HubError::Absent { name: name.clone(), folder: cache.folder().to_owned() }
}

/// The files that make the model. One that is not there is missed before anything is fetched.
fn chosen(info: &RepoInfo, name: &ModelName, intent: Use) -> Result<Vec<String>, HubError> {
    let paths: Vec<String> = info.files.iter().map(|file| file.path.clone()).collect();
    let choice = repo_files::choose(&paths, name)?;
    if choice.form == CheckpointFormat::Pickles {
        return match intent {
            Use::Serve => Err(HubError::NoWeights { repo: name.repo.clone(), pickles: true }),
            Use::Keep => Ok(choice.files),
        };
    }
    match repo_files::lacking(&choice, None) {
        Some(file) => Err(HubError::NoFile { repo: name.repo.clone(), file }),
        None => Ok(choice.files),
    }
}

/// Bytes that the disk has to take.
fn to_come(cache: &Cache, repo: &RepoId, info: &RepoInfo, missing: &[&str]) -> u64 {
    let listed: BTreeMap<&str, &RepoFile> = info.files.iter().map(|file| (file.path.as_str(), file)).collect();
    let of = |file: &RepoFile| {
        let size = |path: &Path| fs::metadata(path).map_or(0, |about| about.len());
        let here =
            file.hash.as_ref().map_or(0, |hash| size(&cache.blob(repo, hash)).max(size(&cache.incomplete(repo, hash))));
        file.bytes.unwrap_or(0).saturating_sub(here)
    };
    missing.iter().filter_map(|file| listed.get(file)).map(|file| of(file)).sum()
}

/// Whether there is room for so many bytes more.
fn room(cache: &Cache, name: &ModelName, needed: u64) -> Result<(), HubError> {
    let folder = cache.folder();
    let there = folder.ancestors().find(|path| path.exists()).unwrap_or(folder);
    // Where the system does not say it, the disk will.
    let Some(free) = platform::free_bytes(there).map_err(HubError::disk(there))? else { return Ok(()) };
    match needed > free {
        true => Err(HubError::Room { name: name.clone(), folder: folder.to_owned(), needed, free }),
        false => Ok(()),
    }
}
