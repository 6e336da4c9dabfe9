//! A shelf of models' small files: this peer's own for others to fetch, and others' fetched for this peer's gateway.

use crate::data_plane::links::{Links, Stream};
use crate::data_plane::models::{FilesQuery, ModelFiles, ModelFilesError};
use crate::data_plane::roster::Roster;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tsnode_kernels::source::ModelSource;
use tsnode_protocol::{ModelCard, ModelFile, ModelId, PeerId, limits, stream::Opening};

/// Fetched models kept in memory; the one asked for longest ago goes first.
const KEPT: usize = 8;

/// This peer's own models' small files.
#[derive(Clone, Default)]
pub struct Shelf {
    /// Held to take one or put others there.
    sources: Arc<Mutex<Vec<Arc<ModelSource>>>>,
}

impl Shelf {
    /// A shelf with the files of these models.
    #[must_use]
    pub fn new(sources: Vec<Arc<ModelSource>>) -> Self {
        Self { sources: Arc::new(Mutex::new(sources)) }
    }

    /// The files of other models from now on.
    pub fn set(&self, sources: Vec<Arc<ModelSource>>) {
        *self.sources.lock().unwrap_or_else(PoisonError::into_inner) = sources;
    }

    /// Cards of those models.
    #[must_use]
    pub fn cards(&self) -> Vec<ModelCard> {
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.iter().map(|source| source.card().clone()).collect()
    }

    fn source(&self, model: ModelId) -> Option<Arc<ModelSource>> {
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.iter().find(|source| source.card().id == model).cloned()
    }

    /// Answers a request for a file; an unknown one gets a closed stream.
    pub(crate) async fn give(&self, model: ModelId, name: &str, stream: Stream) {
        let Stream { mut sender, receiver: _receiver } = stream;
        if let Some(source) = self.source(model)
            && let Some(bytes) = listed(&source, name)
            && sender.send_bytes(bytes, limits::MODEL_FILE_BYTES).await.is_ok()
        {
            let _ = sender.finish();
        }
    }

    /// All of a model's, if it is here.
    #[must_use]
    pub fn find(&self, model: ModelId) -> Option<ModelFiles> {
        self.source(model).map(|source| files_of(&source))
    }
}

/// A model's small files.
#[must_use]
pub fn files_of(source: &ModelSource) -> ModelFiles {
    let card = source.card();
    let read = |f: &ModelFile| Some((f.name.clone(), listed(source, &f.name)?.to_vec()));
    ModelFiles { card: card.clone(), files: Arc::new(card.files.iter().filter_map(read).collect()) }
}

/// Only what the card lists: a shelf is no way to a peer's disk.
fn listed<'s>(source: &'s ModelSource, name: &str) -> Option<&'s [u8]> {
    source.card().files.iter().find(|file| file.name == name)?;
    source.file(name)
}

/// Answers questions for models' files until `stop`.
pub async fn run(
    shelf: Shelf,
    links: Links,
    roster: Roster,
    mut queries: mpsc::Receiver<FilesQuery>,
    stop: CancellationToken,
) {
    let mut kept: Vec<ModelFiles> = Vec::new();
    loop {
        let query = tokio::select! {
            () = stop.cancelled() => return,
            query = queries.recv() => match query { Some(query) => query, None => return },
        };
        let found = match kept.iter().position(|m| m.card.id == query.model) {
            Some(at) => Ok(kept.remove(at)),
            None => match shelf.find(query.model) {
                Some(files) => Ok(files),
                None => fetch(query.model, &links, &roster).await,
            },
        };
        if let Ok(files) = &found {
            kept.push(files.clone());
            if kept.len() > KEPT {
                kept.remove(0);
            }
        }
        // An asker that has gone needs no answer.
        let _ = query.answer.send(found);
    }
}

async fn fetch(model: ModelId, links: &Links, roster: &Roster) -> Result<ModelFiles, ModelFilesError> {
    let card = roster.card(model).ok_or(ModelFilesError::Unknown)?;
    let mut why = String::from("no peer has it");
    for peer in roster.holders(model) {
        match fetch_all(&card, peer, links, roster).await {
            Ok(files) => return Ok(ModelFiles { card, files: Arc::new(files) }),
            Err(error) => why = format!("{peer}: {error}"),
        }
    }
    Err(ModelFilesError::Fetch(why))
}

async fn fetch_all(
    card: &ModelCard,
    peer: PeerId,
    links: &Links,
    roster: &Roster,
) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let mut files = BTreeMap::new();
    for file in &card.files {
        let bytes = fetch_one(card.id, file, peer, links, roster).await?;
        files.insert(file.name.clone(), bytes);
    }
    Ok(files)
}

pub(crate) async fn fetch_one(
    model: ModelId,
    file: &ModelFile,
    peer: PeerId,
    links: &Links,
    roster: &Roster,
) -> Result<Vec<u8>, String> {
    let opening = Opening::File { model, name: file.name.clone() };
    let addresses = roster.data_addresses(peer);
    let mut stream = links.open(peer, &addresses, &opening).await.map_err(|e| e.to_string())?;
    let limit = file.bytes.min(limits::MODEL_FILE_BYTES as u64) as usize;
    let bytes = stream.receiver.recv_bytes(limit).await.map_err(|e| e.to_string())?;
    let bytes = bytes.ok_or_else(|| format!("{} was not given", file.name))?;
    if *blake3::hash(&bytes).as_bytes() != file.hash {
        return Err(format!("{} is not what its hash says", file.name));
    }
    Ok(bytes.to_vec())
}
