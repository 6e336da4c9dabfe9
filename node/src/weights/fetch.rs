//! Fetches a model's weights from all who have some of them, chunk by chunk.
//!
//! What a chunk should be is known before it is asked for: the card's id is made of the manifest, the manifest has the files' roots, a
//! root is made of its chunks' hashes. So nothing is believed that anybody says, and what came before a break is known again by its
//! hash alone: the file itself is the record of what is there.

use super::{
    disk_space,
    drafts::{Chunk, PartialFiles},
    error::FetchError,
    index::Index,
    notes, origin,
    work::{FetchTally, FetchWork, StreamEnded},
};
use crate::{
    data_plane::{
        library,
        links::{Links, Stream},
        offences::OffenceReporter,
        roster::Roster,
    },
    hardware::memory::Size,
    store::disk,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use tsnode_coordinator::{cards, trust::Offence};
use tsnode_kernels::source::SMALL_FILES;
use tsnode_protocol::{
    ModelCard, ModelFile, ModelId, ModelOrigin, PeerId, limits, stream,
    stream::Opening,
    weights::{self, Bitfield, ChunkHash, WeightsForm, WeightsManifest, WeightsQuery},
};

/// Holders that chunks are asked of at once.
const HOLDERS: usize = 8;
/// Holders that are asked what they have.
const KNOWN: usize = 64;
/// Chunks on their way from one holder: while one is written the next is coming.
const STREAMS: usize = 3;
/// How long an answer may take: a chunk in three streams over 1 Mbit/s takes 25 s.
const PATIENCE: Duration = Duration::from_secs(40);
/// Weights of a model at most (bytes), twice those of the largest there are: their chunks' hashes are kept in 128 MiB of memory.
const MODEL_BYTES: u64 = 4 << 40;
/// How often it is looked who else has the model.
const LOOK: Duration = Duration::from_millis(100);

/// How long others are waited for.
#[derive(Clone, Copy, Debug)]
pub struct FetchTimeouts {
    /// A holder that broke off is left alone for so long.
    pub rest: Duration,
    /// Nothing came for so long: who waits is told.
    pub starved: Duration,
}

impl Default for FetchTimeouts {
    fn default() -> Self {
        Self { rest: Duration::from_secs(3), starved: Duration::from_secs(60) }
    }
}

/// Where models are to be had.
pub trait ModelHolders: Clone + Send + Sync + 'static {
    /// A conversation about one model.
    type Talk: HolderTalk;
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
    /// Where those who have it say that it is from.
    fn origin(&self, model: ModelId) -> Option<ModelOrigin>;
    /// Somebody gave what he cannot have taken for right.
    fn blame(&self, peer: PeerId);
}

/// Asks one holder.
pub trait HolderTalk: Send + 'static {
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
    pub offence_reporter: OffenceReporter,
}

impl ModelHolders for Peers {
    type Talk = Stream;

    fn holders(&self, model: ModelId) -> Vec<PeerId> {
        let holders = self.roster.holders(model).into_iter();
        holders.filter(|peer| *peer != self.me && !self.offence_reporter.keeps_out(*peer)).collect()
    }

    async fn open(&self, peer: PeerId, model: ModelId) -> Result<Stream, String> {
        let addresses = self.roster.data_addresses(peer);
        self.links.open(peer, &addresses, &Opening::Weights(model)).await.map_err(|e| e.to_string())
    }

    async fn small(&self, peer: PeerId, model: ModelId, file: &ModelFile) -> Result<Vec<u8>, String> {
        library::fetch_one(model, file, peer, &self.links, &self.roster).await
    }

    fn origin(&self, model: ModelId) -> Option<ModelOrigin> {
        let adverts = self.roster.adverts();
        cards::origin(model, adverts.iter().filter(|(peer, _)| **peer != self.me).map(|(_, advert)| advert))
    }

    fn blame(&self, peer: PeerId) {
        self.offence_reporter.blame(peer, Offence::WrongWeights);
    }
}

impl HolderTalk for Stream {
    async fn ask(&mut self, query: WeightsQuery, most: usize) -> Result<Vec<u8>, String> {
        self.sender.send(&query).await.map_err(|e| e.to_string())?;
        let answer = self.receiver.recv_bytes(most).await.map_err(|e| e.to_string())?;
        answer.ok_or_else(|| "it does not give it (weights of gated repositories need --give-gated there)".into())
    }
}

/// What any holder can be asked.
#[derive(Clone, Copy)]
struct HolderQuery {
    what: &'static str,
    query: WeightsQuery,
    /// Whether it is known that the card is that of the model.
    is_card_proven: bool,
}

/// Fetches models into a folder.
#[derive(Clone)]
pub struct Fetcher<P> {
    /// Where from.
    pub places: P,
    /// Where to: a folder for each model, called by its id.
    pub folder: PathBuf,
    /// What is known of files here.
    pub index: Index,
    /// Bytes of a model's layers at most, where nothing else is said of it: whoever brings them holds to that.
    pub budget: u64,
    /// How long others are waited for.
    pub patience: FetchTimeouts,
    /// Who gave what it cannot have taken for right: not asked again.
    pub bad: BadPeers,
}

/// Peers that nothing is asked of. Clones are of the same. Held for operations on the set alone.
#[derive(Clone, Debug, Default)]
pub struct BadPeers(Arc<Mutex<BTreeSet<PeerId>>>);

impl BadPeers {
    fn set(&self) -> MutexGuard<'_, BTreeSet<PeerId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has(&self, peer: PeerId) -> bool {
        self.set().contains(&peer)
    }

    /// Where nobody else is left they are asked again.
    pub(super) fn forget(&self) {
        self.set().clear();
    }
}

impl<P: ModelHolders> Fetcher<P> {
    /// The folder of a model.
    #[must_use]
    pub fn folder_of(&self, model: ModelId) -> PathBuf {
        self.folder.join(model.to_string())
    }

    /// What a model is made of, its small files, and how much of its weights is here from before.
    ///
    /// # Errors
    /// When it cannot be had, or is not to be.
    pub async fn begin(&self, card: &ModelCard) -> Result<PartialFiles, FetchError> {
        let folder = self.folder_of(card.id);
        let place = folder.clone();
        let known = tokio::task::spawn_blocking(move || notes::read(&place)).await.ok().flatten();
        let known = known.filter(|(manifest, _)| manifest.fits(card));
        let is_known = known.is_some();
        let (manifest, hashes) = match known {
            Some(known) => known,
            None => self.outline(card).await?,
        };
        disk::make_folder(&folder).map_err(FetchError::disk(&folder))?;
        if manifest.form == WeightsForm::Safetensors {
            self.small(card, &folder).await?;
        }
        // Before anything of it is here: whoever starts again knows whether it may be given on.
        if let Some(said) = self.places.origin(card.id) {
            origin::keep(&folder, said).map_err(FetchError::disk(&folder))?;
        }
        if !is_known {
            notes::write(&folder, &manifest, &hashes).map_err(FetchError::disk(&folder))?;
        }
        let (index, place) = (self.index.clone(), folder.clone());
        let opened = tokio::task::spawn_blocking(move || PartialFiles::open(&place, manifest, hashes, &index)).await;
        opened.map_err(|e| FetchError::disk(&folder)(std::io::Error::other(e)))?
    }

    /// Fetches of these chunks what is not here. What came stays when that breaks.
    ///
    /// # Errors
    /// When they cannot be had, or there is no room for them.
    pub async fn get(
        &self,
        card: &ModelCard,
        drafts: &Arc<PartialFiles>,
        wanted: &BTreeSet<Chunk>,
        tally: &Arc<FetchTally>,
    ) -> Result<(), FetchError> {
        let work = Arc::new(FetchWork::new(drafts.clone(), wanted, tally.clone()));
        let folder = self.folder_of(card.id);
        self.has_room(card, work.missing_bytes())?;
        let came = if work.is_done() { Ok(()) } else { self.chunks(card, &work).await };
        let (index, kept) = (self.index.clone(), drafts.clone());
        let kept = tokio::task::spawn_blocking(move || kept.keep(&index)).await;
        came.and(kept.map_err(|e| FetchError::disk(&folder)(std::io::Error::other(e)))?)
    }

    /// Whether the disk has room for so many bytes more of a model.
    pub(super) fn has_room(&self, card: &ModelCard, needed: u64) -> Result<(), FetchError> {
        let folder = self.folder_of(card.id);
        let free = disk_space::free(&folder).map_err(FetchError::disk(&folder))?;
        if needed > free {
            return Err(FetchError::Room { model: card.name.clone(), folder, needed, free });
        }
        Ok(())
    }

    /// The manifest, and the hashes of all chunks.
    async fn outline(&self, card: &ModelCard) -> Result<(WeightsManifest, Vec<Vec<ChunkHash>>), FetchError> {
        let read = |answer: &[u8]| {
            let manifest = stream::decode_frame::<WeightsManifest>(answer).ok()?;
            (manifest.check().is_ok() && manifest.fits(card)).then_some(manifest)
        };
        let what = HolderQuery { what: "the manifest", query: WeightsQuery::Manifest, is_card_proven: false };
        let manifest = self.ask_any(card, what, read).await?;
        if manifest.bytes() > MODEL_BYTES {
            let why = format!("its weights are said to have {}", Size(manifest.bytes()));
            return Err(FetchError::Unusable { model: card.name.clone(), why });
        }
        let mut hashes = Vec::new();
        for (n, file) in manifest.files.iter().enumerate() {
            let query = WeightsQuery::Hashes { file: n as u16 };
            let read = |answer: &[u8]| weights::hashes_of(file, answer);
            hashes
                .push(self.ask_any(card, HolderQuery { what: "the hashes", query, is_card_proven: true }, read).await?);
        }
        Ok((manifest, hashes))
    }

    /// Asks one holder after the other, until one gives what can be read. Who gives something else is not asked again. Before anybody
    /// gave what fits the card it may be the card that is false, and whoever gives the model's own would be blamed for it.
    async fn ask_any<T>(
        &self,
        card: &ModelCard,
        HolderQuery { what, query, is_card_proven }: HolderQuery,
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<T, FetchError> {
        let (mut why, mut others) = ("nobody has it".to_owned(), Vec::new());
        for peer in self.places.holders(card.id) {
            if self.bad.has(peer) {
                continue;
            }
            let asked = async {
                let mut talk = self.places.open(peer, card.id).await?;
                talk.ask(query, limits::FRAME_BYTES).await
            };
            match timeout(PATIENCE, asked).await.unwrap_or_else(|_| Err("no answer in time".into())) {
                Ok(answer) => match read(&answer) {
                    Some(read) => {
                        others.into_iter().for_each(|peer| self.blame(peer));
                        return Ok(read);
                    }
                    None if is_card_proven => {
                        why = format!("what …{} gives is not what its hash says", peer.short());
                        self.blame(peer);
                    }
                    None => {
                        why = format!("what …{} gives does not fit what members say of the model", peer.short());
                        others.push(peer);
                    }
                },
                Err(error) => why = format!("…{}: {error}", peer.short()),
            }
        }
        Err(FetchError::NotGiven { model: card.name.clone(), what, why })
    }

    fn blame(&self, peer: PeerId) {
        self.places.blame(peer);
        self.bad.set().insert(peer);
    }

    /// The small files beside the weights. A card may name others than a model has, and so what lies here already.
    async fn small(&self, card: &ModelCard, folder: &Path) -> Result<(), FetchError> {
        for file in card.files.iter().filter(|file| SMALL_FILES.contains(&file.name.as_str())) {
            let path = folder.join(&file.name);
            if fs::read(&path).is_ok_and(|there| *blake3::hash(&there).as_bytes() == file.hash) {
                continue;
            }
            let mut why = "nobody has it".to_owned();
            let mut given = None;
            for peer in self.places.holders(card.id).into_iter().filter(|peer| !self.bad.has(*peer)) {
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
    async fn chunks(&self, card: &ModelCard, work: &Arc<FetchWork>) -> Result<(), FetchError> {
        let mut streams = JoinSet::new();
        let mut open = BTreeMap::<PeerId, Vec<AbortHandle>>::new();
        // Who is asked what it has takes no place from those that give: it may never answer.
        let mut asking = BTreeMap::<PeerId, AbortHandle>::new();
        let mut resting = BTreeMap::<PeerId, Instant>::new();
        let (mut last, mut since) = (work.done(), Instant::now());
        while !work.is_done() {
            let now = Instant::now();
            resting.retain(|_, until| *until > now);
            open.retain(|_, handles| {
                handles.retain(|handle| !handle.is_finished());
                !handles.is_empty()
            });
            asking.retain(|_, handle| !handle.is_finished());
            let may = |peer: &PeerId| !self.bad.has(*peer) && !resting.contains_key(peer) && !asking.contains_key(peer);
            // Who is of no use now is passed over, else those behind it would never be asked where many lend the model.
            let is_of_use = |peer: &PeerId| work.asks(*peer) || work.has_some_for(*peer);
            let holders = self.places.holders(card.id).into_iter();
            let useful: Vec<PeerId> = holders.filter(may).filter(is_of_use).take(KNOWN).collect();
            for peer in useful {
                let (places, work, model) = (self.places.clone(), work.clone(), card.id);
                let is_one_more = open.contains_key(&peer) || open.len() < HOLDERS;
                if !open.contains_key(&peer) && work.asks(peer) {
                    let said = async move { (peer, ask(places, &work, peer, model).await) };
                    asking.insert(peer, streams.spawn(said));
                } else if is_one_more && work.has_some_for(peer) {
                    let handles = open.entry(peer).or_default();
                    while handles.len() < STREAMS && work.has_some_for(peer) {
                        let (places, work) = (places.clone(), work.clone());
                        let took = async move { (peer, take(places, &work, peer, model).await) };
                        handles.push(streams.spawn(took));
                    }
                }
            }
            work.tally().holders.store(open.values().filter(|handles| !handles.is_empty()).count(), Ordering::Relaxed);
            tokio::select! {
                Some(ended) = streams.join_next() => match ended {
                    Ok((_, Ok(()))) | Err(_) => sleep(Duration::from_millis(5)).await,
                    Ok((peer, Err(StreamEnded::Broke(why)))) => {
                        tracing::info!(%peer, why, "a stream of weights broke");
                        resting.insert(peer, Instant::now() + self.patience.rest);
                    }
                    Ok((peer, Err(StreamEnded::Wrong { file, chunk }))) => {
                        tracing::warn!(%peer, file, chunk, "gave weights that are not what their hash says: not asked again");
                        self.blame(peer);
                        open.remove(&peer).into_iter().flatten().for_each(|handle| handle.abort());
                    }
                    Ok((_, Err(StreamEnded::Disk(path, error)))) => return Err(FetchError::Disk { path, error }),
                },
                () = sleep(LOOK) => {}
            }
            if work.done() > last {
                (last, since) = (work.done(), Instant::now());
            } else if since.elapsed() > self.patience.starved {
                let (bytes, done) = (work.tally().bytes.load(Ordering::Relaxed), work.done());
                let (model, waited) = (card.name.clone(), self.patience.starved);
                return Err(FetchError::Starved { model, waited, done, bytes });
            }
        }
        Ok(())
    }
}

/// Asks a holder which of the chunks that are wanted it has.
async fn ask<P: ModelHolders>(
    places: P,
    work: &Arc<FetchWork>,
    peer: PeerId,
    model: ModelId,
) -> Result<(), StreamEnded> {
    let asked = async {
        let mut talk = places.open(peer, model).await?;
        let mut said = BTreeMap::new();
        for (file, bytes) in work.files() {
            let answer = talk.ask(WeightsQuery::Bitfield { file }, Bitfield::bytes_of(bytes)).await?;
            let bits = Bitfield::read(bytes, &answer).ok_or("it says to have chunks that the file has not")?;
            said.insert(file, bits);
        }
        Ok::<_, String>(said)
    };
    let said = timeout(PATIENCE, asked).await.unwrap_or_else(|_| Err("no answer in time".into()));
    work.say(peer, said.map_err(StreamEnded::Broke)?);
    Ok(())
}

/// One stream: asks for a chunk after the other, as long as there are some to take.
async fn take<P: ModelHolders>(
    places: P,
    work: &Arc<FetchWork>,
    peer: PeerId,
    model: ModelId,
) -> Result<(), StreamEnded> {
    let opened = timeout(PATIENCE, places.open(peer, model)).await;
    let mut talk = opened.unwrap_or_else(|_| Err("no answer in time".into())).map_err(StreamEnded::Broke)?;
    while let Some(turn) = work.take(peer) {
        let (file, chunk) = turn.chunk;
        let answer =
            timeout(PATIENCE, talk.ask(WeightsQuery::Chunk { file, chunk }, weights::CHUNK_BYTES as usize)).await;
        let content = answer.unwrap_or_else(|_| Err("no answer in time".into())).map_err(StreamEnded::Broke)?;
        turn.give(content).await?;
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests;
