//! A shelf of models' small files: this peer's own for others to fetch, and others' fetched for this peer's gateway.

use crate::data_plane::links::{Links, Stream};
use crate::data_plane::models::{FilesQuery, ModelFiles, ModelFilesError};
use crate::data_plane::roster::Roster;
use futures::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tsnode_coordinator::cards::{self, SaidCard};
use tsnode_kernels::{config::ModelConfig, source::ModelSource};
use tsnode_protocol::{
    Experts, ModelCard, ModelFile, ModelId, ModelShape, PeerId, limits,
    stream::Opening,
    weights::{WeightsManifest, WeightsQuery},
};

/// Fetched models kept in memory; the one asked for longest ago goes first.
const KEPT: usize = 8;
/// Models that are fetched at once: above it who asks for more waits.
const FETCHED_AT_ONCE: usize = 16;
/// Holders that are asked which card is the model's own: so many of those who say the same, and in all.
const ASKED: (usize, usize) = (2, 16);
/// How long they are waited for.
const PROOF: Duration = Duration::from_secs(3);
/// How long a file may take: to reach its holder and to begin, and then at what so slow a link carries (bytes/s), 1 Mbit/s.
const BEGUN: Duration = Duration::from_secs(10);
const SLOWEST: u64 = 125_000;

type FetchedFiles = Result<ModelFiles, ModelFilesError>;
type FilesAnswer = oneshot::Sender<FetchedFiles>;

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

/// Answers questions for models' files until `stop`. Each model is fetched once at a time, and none waits for another's holders.
pub async fn run(
    shelf: Shelf,
    links: Links,
    roster: Roster,
    mut queries: mpsc::Receiver<FilesQuery>,
    stop: CancellationToken,
) {
    let (links, roster) = (&links, &roster);
    let mut kept: Vec<ModelFiles> = Vec::new();
    let mut waiting: BTreeMap<ModelId, Vec<FilesAnswer>> = BTreeMap::new();
    let mut fetching: FuturesUnordered<BoxFuture<'_, (ModelId, FetchedFiles)>> = FuturesUnordered::new();
    loop {
        let (answers, found) = tokio::select! {
            () = stop.cancelled() => return,
            Some((model, fetched)) = fetching.next() => (waiting.remove(&model).unwrap_or_default(), fetched),
            query = queries.recv(), if waiting.len() < FETCHED_AT_ONCE => {
                let Some(FilesQuery { model, answer }) = query else { return };
                let at = kept.iter().position(|files| files.card.id == model);
                let here = at.map(|at| kept.remove(at)).or_else(|| shelf.find(model));
                let Some(files) = here else {
                    let asked = waiting.entry(model).or_default();
                    if asked.is_empty() {
                        fetching.push(Box::pin(async move { (model, fetch(model, links, roster).await) }));
                    }
                    asked.push(answer);
                    continue;
                };
                (vec![answer], Ok(files))
            }
        };
        if let Ok(files) = &found {
            kept.push(files.clone());
            if kept.len() > KEPT {
                kept.remove(0);
            }
        }
        for answer in answers {
            // An asker that has gone needs no answer.
            let _ = answer.send(found.clone());
        }
    }
}

async fn fetch(model: ModelId, links: &Links, roster: &Roster) -> Result<ModelFiles, ModelFilesError> {
    let said = roster.cards(model);
    if said.is_empty() {
        return Err(ModelFilesError::Unknown);
    }
    let cards: Vec<ModelCard> = said.iter().map(|said| said.card.clone()).collect();
    let Some(SaidCard { card, by }) = believed(model, said, links, roster).await else {
        return Err(ModelFilesError::Fetch("what members say of the model is not what its id stands for".into()));
    };
    let mut why = String::from("no peer has it");
    for peer in by {
        match fetch_all(&card, peer, links, roster).await {
            Ok(files) => {
                let alike = cards.into_iter().filter(|other| other.files == card.files);
                let sized = std::iter::once(card.clone()).chain(alike).find(|card| has_sizes_of(card, &files));
                let Some(card) = sized else {
                    let why = "what members say of the model's sizes is not what its config.json says";
                    return Err(ModelFilesError::Fetch(why.into()));
                };
                return Ok(ModelFiles { card, files: Arc::new(files) });
            }
            Err(error) => why = format!("{peer}: {error}"),
        }
    }
    Err(ModelFilesError::Fetch(why))
}

/// The card that is the model's own, where a holder's manifest shows which that is: the id is made of both, and nobody can make another
/// manifest for a card of his own. Where none gives one, as of gated models, what most of those say who were not found to lie; that
/// they differ is said.
async fn believed(model: ModelId, mut said: Vec<SaidCard>, links: &Links, roster: &Roster) -> Option<SaidCard> {
    let (each, all) = ASKED;
    let asked: Vec<PeerId> = said.iter().flat_map(|said| said.by.iter().take(each).copied()).take(all).collect();
    let mut answers = FuturesUnordered::new();
    for peer in asked {
        answers.push(async move { (peer, manifest(model, peer, links, roster).await) });
    }
    let proof = async {
        while let Some((peer, manifest)) = answers.next().await {
            let Some(manifest) = manifest else { continue };
            if cards::heard(&mut said, peer, |card| manifest.fits(card)) {
                return;
            }
            tracing::warn!(%model, %peer, "gives a manifest that fits nothing that is said of the model: it is not believed");
        }
    };
    // Who does not answer in time has said nothing.
    let _ = timeout(PROOF, proof).await;
    if let [first, _, ..] = &said[..] {
        let (cards, agree) = (said.len(), first.by.len());
        tracing::warn!(%model, cards, agree, "members name different files for one model, and none shows that his are its own: most are believed");
    }
    said.into_iter().next()
}

/// Whether a card has the sizes that the model's configuration gives, which is one of the files that its id is made of: not what weights
/// take, and of contexts either, where it has another for long sequences. Of a family that this program does not know nothing is said.
fn has_sizes_of(card: &ModelCard, files: &BTreeMap<String, Vec<u8>>) -> bool {
    let Some(config) = files.get("config.json").and_then(|json| ModelConfig::parse(json).ok()) else { return true };
    let said = card.shape;
    let own = config.shape(said.layer_bytes, said.embed_bytes, said.head_bytes);
    let experts = own.experts.map(|own| Experts { bytes: said.experts.map_or(0, |said| said.bytes), ..own });
    let long = config.long.as_ref().map(|(_, context)| *context as u32);
    let context = long.filter(|long| *long == said.context).unwrap_or(own.context);
    ModelShape { context, experts, ..own } == said
}

/// What a peer says that the model's weights are.
async fn manifest(model: ModelId, peer: PeerId, links: &Links, roster: &Roster) -> Option<WeightsManifest> {
    let addresses = roster.data_addresses(peer);
    let mut stream = links.open(peer, &addresses, &Opening::Weights(model)).await.ok()?;
    stream.sender.send(&WeightsQuery::Manifest).await.ok()?;
    let manifest: WeightsManifest = stream.receiver.recv().await.ok()??;
    manifest.check().is_ok().then_some(manifest)
}

async fn fetch_all(
    card: &ModelCard,
    peer: PeerId,
    links: &Links,
    roster: &Roster,
) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let mut files = BTreeMap::new();
    for file in &card.files {
        let fetched = timeout(patience(file), fetch_one(card.id, file, peer, links, roster)).await;
        let bytes = fetched.map_err(|_| format!("{} did not come in time", file.name))??;
        files.insert(file.name.clone(), bytes);
    }
    Ok(files)
}

/// How long a file is waited for from one holder. One that hangs keeps nobody from asking the next.
fn patience(file: &ModelFile) -> Duration {
    BEGUN + Duration::from_secs(file.bytes.min(limits::MODEL_FILE_BYTES as u64) / SLOWEST)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_has_the_sizes_of_the_models_configuration() {
        let own = files_of(&ModelSource::embedded().unwrap());
        assert!(has_sizes_of(&own.card, &own.files));
        let with = |change: fn(&mut ModelShape)| {
            let mut card = own.card.clone();
            change(&mut card.shape);
            has_sizes_of(&card, &own.files)
        };
        assert!(
            !with(|shape| shape.layers += 1) && !with(|shape| shape.vocab -= 1) && !with(|shape| shape.kv_heads = 1)
        );
        assert!(!with(|shape| shape.context = 1) && !with(|shape| shape.context += 1));
        assert!(with(|shape| shape.layer_bytes += 1), "that is not in it");
        assert!(!with(|shape| shape.experts = Some(Experts { count: 2, used: 1, bytes: 0 })));
        assert!(has_sizes_of(&own.card, &BTreeMap::new()), "nothing is known");
    }

    #[test]
    fn large_files_may_take_longer_and_none_for_ever() {
        let of = |bytes| patience(&ModelFile { name: "tokenizer.json".into(), bytes, hash: [0; 32] });
        assert_eq!(of(0), Duration::from_secs(10));
        assert_eq!(of(12_500_000), Duration::from_secs(110));
        assert!(of(u64::MAX) < Duration::from_secs(600));
    }
}
