//! Fetches a model's weights from all who have them, chunk by chunk.
//!
//! What a chunk should be is known before it is asked for: the card's id is made of the manifest, the manifest has the files' roots, a
//! root is made of its chunks' hashes. So nothing is believed that anybody says, and what came before a break is known again by its
//! hash alone: the file itself is the record of what is there.

use super::{
    error::FetchError,
    index::Index,
    room,
    work::{Draft, Ended, Tally, Work},
};
use crate::{
    data_plane::{
        library,
        links::{Links, Stream},
        offences::OffenceReporter,
        roster::Roster,
    },
    store::disk,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use tsnode_coordinator::trust::Offence;
use tsnode_protocol::{
    ModelCard, ModelFile, ModelId, PeerId, limits, stream,
    stream::Opening,
    weights::{self, WeightsForm, WeightsManifest, WeightsQuery},
};

/// Holders that are asked at once.
const HOLDERS: usize = 8;
/// Chunks on their way from one holder: while one is written the next is coming.
const STREAMS: usize = 3;
/// How long an answer may take: a chunk in three streams over 1 Mbit/s takes 25 s.
const PATIENCE: Duration = Duration::from_secs(40);
/// How often it is looked who else has the model.
const LOOK: Duration = Duration::from_millis(100);

/// How long others are waited for.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// A holder that broke off is left alone for so long.
    pub rest: Duration,
    /// Nothing came for so long: who waits is told.
    pub starved: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { rest: Duration::from_secs(3), starved: Duration::from_secs(60) }
    }
}

/// Where models are to be had.
pub trait Places: Clone + Send + Sync + 'static {
    /// A conversation about one model.
    type Talk: Talk;
    /// Who says to have it.
    fn holders(&self, model: ModelId) -> Vec<PeerId>;
    /// Begins to ask one of them.
    fn open(&self, peer: PeerId, model: ModelId) -> impl Future<Output = Result<Self::Talk, String>> + Send;
    /// One of its small files, verified.
    fn small(
        &self,
        peer: PeerId,
        model: ModelId,
        file: &ModelFile,
    ) -> impl Future<Output = Result<Vec<u8>, String>> + Send;
    /// Somebody gave what he cannot have taken for right.
    fn blame(&self, peer: PeerId);
}

/// Asks one holder.
pub trait Talk: Send + 'static {
    /// The answer's bytes, at most so many.
    fn ask(&mut self, query: WeightsQuery, most: usize) -> impl Future<Output = Result<Vec<u8>, String>> + Send;
}

/// The swarm as such a place.
#[derive(Clone)]
pub struct Peers {
    /// This peer.
    pub me: PeerId,
    /// The way to others.
    pub links: Links,
    /// Who they are.
    pub roster: Roster,
    /// Who judges them.
    pub guard: OffenceReporter,
}

impl Places for Peers {
    type Talk = Stream;

    fn holders(&self, model: ModelId) -> Vec<PeerId> {
        let holders = self.roster.holders(model).into_iter();
        holders.filter(|peer| *peer != self.me && !self.guard.keeps_out(*peer)).collect()
    }

    async fn open(&self, peer: PeerId, model: ModelId) -> Result<Stream, String> {
        let addresses = self.roster.data_addresses(peer);
        self.links.open(peer, &addresses, &Opening::Weights(model)).await.map_err(|e| e.to_string())
    }

    async fn small(&self, peer: PeerId, model: ModelId, file: &ModelFile) -> Result<Vec<u8>, String> {
        library::fetch_one(model, file, peer, &self.links, &self.roster).await
    }

    fn blame(&self, peer: PeerId) {
        self.guard.blame(peer, Offence::WrongWeights);
    }
}

impl Talk for Stream {
    async fn ask(&mut self, query: WeightsQuery, most: usize) -> Result<Vec<u8>, String> {
        self.sender.send(&query).await.map_err(|e| e.to_string())?;
        let answer = self.receiver.recv_bytes(most).await.map_err(|e| e.to_string())?;
        answer.ok_or_else(|| "it does not give it".into())
    }
}

/// Fetches models into a folder.
pub struct Fetcher<P> {
    /// Where from.
    pub places: P,
    /// Where to: a folder for each model, called by its id.
    pub folder: PathBuf,
    /// What is known of files here.
    pub index: Index,
    /// Bytes of one model at most.
    pub budget: u64,
    /// How long others are waited for.
    pub patience: Patience,
}

impl<P: Places> Fetcher<P> {
    /// Fetches what is not here of a model, and says what to open. What came so far stays when that breaks.
    ///
    /// # Errors
    /// When it cannot be had, or is not to be.
    pub async fn fetch(&self, card: &ModelCard, tally: &Arc<Tally>) -> Result<PathBuf, FetchError> {
        let mut bad = BTreeSet::new();
        let manifest = self.manifest(card, &mut bad).await?;
        let (bytes, model) = (manifest.bytes(), card.name.clone());
        if bytes > self.budget {
            return Err(FetchError::Budget { model, bytes, budget: self.budget });
        }
        tally.bytes.store(bytes, Ordering::Relaxed);
        let folder = self.folder.join(card.id.to_string());
        disk::make_folder(&folder).map_err(FetchError::disk(&folder))?;
        let drafts = self.drafts(card, &manifest, &folder, &mut bad).await?;
        let work = Arc::new(Work::new(drafts, tally.clone()));
        let (needed, free) = (work.missing_bytes(), room::free(&folder).map_err(FetchError::disk(&folder))?);
        if needed > free {
            return Err(FetchError::Room { model, folder, needed, free });
        }
        if manifest.form == WeightsForm::Safetensors {
            self.small(card, &folder, &mut bad).await?;
        }
        self.chunks(card, &work, bad).await?;
        let (index, last) = (self.index.clone(), folder.clone());
        let placed = tokio::task::spawn_blocking(move || work.place(&index)).await;
        placed.map_err(|e| FetchError::disk(&last)(std::io::Error::other(e)))??;
        Ok(match manifest.form {
            WeightsForm::Safetensors => folder,
            WeightsForm::Gguf => folder.join(name(WeightsForm::Gguf, 0, manifest.files.len())),
        })
    }

    async fn manifest(&self, card: &ModelCard, bad: &mut BTreeSet<PeerId>) -> Result<WeightsManifest, FetchError> {
        let read = |answer: &[u8]| {
            let manifest = stream::decode_frame::<WeightsManifest>(answer).ok()?;
            (manifest.check().is_ok() && manifest.fits(card)).then_some(manifest)
        };
        self.ask_any(card, "the manifest", WeightsQuery::Manifest, bad, read).await
    }

    /// Every file as far as it is here, with what its chunks should be.
    async fn drafts(
        &self,
        card: &ModelCard,
        manifest: &WeightsManifest,
        folder: &Path,
        bad: &mut BTreeSet<PeerId>,
    ) -> Result<Vec<Draft>, FetchError> {
        let mut drafts = Vec::new();
        for (n, file) in manifest.files.iter().enumerate() {
            let query = WeightsQuery::Hashes { file: n as u16 };
            let read = |answer: &[u8]| weights::hashes_of(file, answer);
            let hashes = self.ask_any(card, "the hashes", query, bad, read).await?;
            let (to, file) = (folder.join(name(manifest.form, n, manifest.files.len())), *file);
            let (index, path) = (self.index.clone(), to.clone());
            let opened = tokio::task::spawn_blocking(move || Draft::open(&to, file, hashes, &index)).await;
            let opened = opened.map_err(std::io::Error::other).and_then(|opened| opened);
            drafts.push(opened.map_err(FetchError::disk(&path))?);
        }
        Ok(drafts)
    }

    /// Asks one holder after the other, until one gives what can be read. Who gives something else is not asked again.
    async fn ask_any<T>(
        &self,
        card: &ModelCard,
        what: &'static str,
        query: WeightsQuery,
        bad: &mut BTreeSet<PeerId>,
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<T, FetchError> {
        let mut why = "nobody has it".to_owned();
        for peer in self.places.holders(card.id) {
            if bad.contains(&peer) {
                continue;
            }
            let asked = async {
                let mut talk = self.places.open(peer, card.id).await?;
                talk.ask(query, limits::FRAME_BYTES).await
            };
            match timeout(PATIENCE, asked).await.unwrap_or_else(|_| Err("no answer in time".into())) {
                Ok(answer) => match read(&answer) {
                    Some(read) => return Ok(read),
                    None => {
                        why = format!("what …{} gives is not what its hash says", peer.short());
                        self.places.blame(peer);
                        bad.insert(peer);
                    }
                },
                Err(error) => why = format!("…{}: {error}", peer.short()),
            }
        }
        Err(FetchError::NotGiven { model: card.name.clone(), what, why })
    }

    /// The small files beside the weights.
    async fn small(&self, card: &ModelCard, folder: &Path, bad: &mut BTreeSet<PeerId>) -> Result<(), FetchError> {
        for file in &card.files {
            let path = folder.join(&file.name);
            if fs::read(&path).is_ok_and(|there| *blake3::hash(&there).as_bytes() == file.hash) {
                continue;
            }
            let mut why = "nobody has it".to_owned();
            let mut given = None;
            for peer in self.places.holders(card.id).into_iter().filter(|peer| !bad.contains(peer)) {
                let asked = timeout(PATIENCE, self.places.small(peer, card.id, file)).await;
                match asked.unwrap_or_else(|_| Err("no answer in time".into())) {
                    Ok(bytes) => {
                        given = Some(bytes);
                        break;
                    }
                    Err(error) => why = format!("…{}: {error}", peer.short()),
                }
            }
            let what = "a small file";
            let bytes = given.ok_or_else(|| FetchError::NotGiven { model: card.name.clone(), what, why })?;
            disk::write_whole(&path, &bytes).map_err(FetchError::disk(&path))?;
        }
        Ok(())
    }

    /// Has all missing chunks fetched, by some streams from each of several holders. The nearer one is, the more it gives.
    async fn chunks(&self, card: &ModelCard, work: &Arc<Work>, mut bad: BTreeSet<PeerId>) -> Result<(), FetchError> {
        let mut streams = JoinSet::new();
        let mut open = BTreeMap::<PeerId, Vec<AbortHandle>>::new();
        let mut resting = BTreeMap::<PeerId, Instant>::new();
        let (mut last, mut since) = (work.done(), Instant::now());
        while !work.is_done() {
            let now = Instant::now();
            resting.retain(|_, until| *until > now);
            open.retain(|_, handles| {
                handles.retain(|handle| !handle.is_finished());
                !handles.is_empty()
            });
            let holders = self.places.holders(card.id).into_iter();
            for peer in holders.filter(|peer| !bad.contains(peer) && !resting.contains_key(peer)).take(HOLDERS) {
                let handles = open.entry(peer).or_default();
                while handles.len() < STREAMS && work.has_some_for(peer) {
                    let (places, work, model) = (self.places.clone(), work.clone(), card.id);
                    handles.push(streams.spawn(async move { (peer, take(places, &work, peer, model).await) }));
                }
            }
            work.tally().holders.store(open.values().filter(|handles| !handles.is_empty()).count(), Ordering::Relaxed);
            tokio::select! {
                Some(ended) = streams.join_next() => match ended {
                    Ok((_, Ok(()))) | Err(_) => sleep(Duration::from_millis(5)).await,
                    Ok((peer, Err(Ended::Broke(why)))) => {
                        tracing::info!(%peer, why, "a stream of weights broke");
                        resting.insert(peer, Instant::now() + self.patience.rest);
                    }
                    Ok((peer, Err(Ended::Wrong { file, chunk }))) => {
                        tracing::warn!(%peer, file, chunk, "gave weights that are not what their hash says: not asked again");
                        self.places.blame(peer);
                        bad.insert(peer);
                        open.remove(&peer).into_iter().flatten().for_each(|handle| handle.abort());
                    }
                    Ok((_, Err(Ended::Disk(path, error)))) => return Err(FetchError::Disk { path, error }),
                },
                () = sleep(LOOK) => {}
            }
            if work.done() > last {
                (last, since) = (work.done(), Instant::now());
            } else if since.elapsed() > self.patience.starved {
                let (bytes, done) = (work.tally().bytes.load(Ordering::Relaxed), work.done());
                return Err(FetchError::Starved {
                    model: card.name.clone(),
                    waited: self.patience.starved,
                    done,
                    bytes,
                });
            }
        }
        Ok(())
    }
}

/// One stream: asks for a chunk after the other, as long as there are some to take.
async fn take<P: Places>(places: P, work: &Arc<Work>, peer: PeerId, model: ModelId) -> Result<(), Ended> {
    let opened = timeout(PATIENCE, places.open(peer, model)).await;
    let mut talk = opened.unwrap_or_else(|_| Err("no answer in time".into())).map_err(Ended::Broke)?;
    while let Some(turn) = work.take(peer) {
        let query = WeightsQuery::Chunk { file: turn.file, chunk: turn.chunk };
        let answer = timeout(PATIENCE, talk.ask(query, weights::CHUNK_BYTES as usize)).await;
        let content = answer.unwrap_or_else(|_| Err("no answer in time".into())).map_err(Ended::Broke)?;
        turn.give(content).await?;
    }
    Ok(())
}

/// What a file of weights is called here: as those that read models expect it.
fn name(form: WeightsForm, n: usize, files: usize) -> String {
    let ending = match form {
        WeightsForm::Safetensors => "safetensors",
        WeightsForm::Gguf => "gguf",
    };
    if files == 1 { format!("model.{ending}") } else { format!("model-{:05}-of-{files:05}.{ending}", n + 1) }
}

#[cfg(test)]
mod tests;
