//! Gives the weights of this peer's models to others of its swarm: all of them, or what it has of those that it fetches itself.

use super::{
    drafts::PartialFiles,
    identify::{Identified, place},
};
use crate::data_plane::links::{LinkError, Links, Stream};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::timeout;
use tsnode_kernels::source::ModelSource;
use tsnode_protocol::{
    ModelId, PeerId, limits,
    weights::{self, Bitfield, CHUNK_BYTES, ChunkHash, WeightsManifest, WeightsQuery},
};

/// Streams that are answered at once; others are closed, and whoever opened them goes elsewhere or comes again. Each holds a chunk.
const STREAMS: usize = 32;
/// Of these, those of one peer, which asks for a model in four: one that asks and does not read must not keep all others out.
const STREAMS_OF_ONE: usize = 16;
/// How long a stream may ask for nothing.
const IDLE: Duration = Duration::from_secs(30);

/// A model that others may have from here.
pub struct Holding(GivenModel);

enum GivenModel {
    /// All of it.
    Whole { source: Arc<ModelSource>, hashes: Vec<Vec<ChunkHash>> },
    /// What is here of it, from the first chunk on.
    Part { model: ModelId, drafts: Arc<PartialFiles> },
}

impl Holding {
    /// Of a model that was hashed.
    #[must_use]
    pub fn new(identified: Identified) -> (Arc<ModelSource>, Self) {
        let source = Arc::new(identified.source);
        (source.clone(), Self(GivenModel::Whole { source, hashes: identified.hashes }))
    }

    /// Of one that is fetched.
    #[must_use]
    pub fn part(model: ModelId, drafts: Arc<PartialFiles>) -> Self {
        Self(GivenModel::Part { model, drafts })
    }

    fn model(&self) -> ModelId {
        match &self.0 {
            GivenModel::Whole { source, .. } => source.card().id,
            GivenModel::Part { model, .. } => *model,
        }
    }

    fn manifest(&self) -> Option<&WeightsManifest> {
        match &self.0 {
            GivenModel::Whole { source, .. } => source.manifest(),
            GivenModel::Part { drafts, .. } => Some(drafts.manifest()),
        }
    }

    fn hashes(&self, file: u16) -> Option<&[ChunkHash]> {
        match &self.0 {
            GivenModel::Whole { hashes, .. } => hashes.get(usize::from(file)).map(Vec::as_slice),
            GivenModel::Part { drafts, .. } => drafts.hashes(file),
        }
    }

    fn bitfield(&self, file: u16) -> Option<Bitfield> {
        match &self.0 {
            GivenModel::Whole { source, .. } => {
                let (_, bytes) = source.weights().nth(usize::from(file))?;
                Some(Bitfield::all(bytes.len() as u64))
            }
            GivenModel::Part { drafts, .. } => drafts.bitfield(file),
        }
    }

    /// A chunk, as it lies on the disk.
    fn chunk(&self, file: u16, chunk: u32) -> Option<Vec<u8>> {
        match &self.0 {
            GivenModel::Whole { source, hashes } => {
                let hash = hashes.get(usize::from(file))?.get(chunk as usize)?;
                let (path, bytes) = source.weights().nth(usize::from(file))?;
                whole_chunk((path, bytes), chunk, hash)
            }
            GivenModel::Part { drafts, .. } => drafts.read((file, chunk)),
        }
    }
}

fn whole_chunk((path, bytes): (&Path, &[u8]), chunk: u32, hash: &ChunkHash) -> Option<Vec<u8>> {
    let (size, chunk) = (bytes.len() as u64, u64::from(chunk));
    let content = bytes[place(size, chunk)].to_vec();
    // Who is asked for what it has lost says so: others would take it for a liar.
    if weights::chunk_hash(size, chunk, &content) != *hash {
        tracing::error!(
            file = %path.display(), chunk,
            "the file has changed since it was hashed: it is damaged, or somebody writes to it; get it again"
        );
        return None;
    }
    Some(content)
}

/// Who is answered just now, and in how many streams.
#[derive(Default)]
struct GivingTurns(Mutex<BTreeMap<PeerId, usize>>);

impl GivingTurns {
    fn taken(&self) -> MutexGuard<'_, BTreeMap<PeerId, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(self: &Arc<Self>, peer: PeerId) -> Option<GivingTurn> {
        let mut taken = self.taken();
        let own = taken.get(&peer).copied().unwrap_or_default();
        if own >= STREAMS_OF_ONE || taken.values().sum::<usize>() >= STREAMS {
            return None;
        }
        taken.insert(peer, own + 1);
        Some(GivingTurn { turns: self.clone(), peer })
    }
}

/// One stream that is answered.
struct GivingTurn {
    turns: Arc<GivingTurns>,
    peer: PeerId,
}

impl Drop for GivingTurn {
    fn drop(&mut self) {
        let mut taken = self.turns.taken();
        let own = taken.remove(&self.peer).unwrap_or_default();
        if own > 1 {
            taken.insert(self.peer, own - 1);
        }
    }
}

/// Gives chunks of what it holds. Clones are equal.
#[derive(Clone, Default)]
pub struct Giver {
    holdings: Arc<Mutex<Vec<Arc<Holding>>>>,
    turns: Arc<GivingTurns>,
    given: Arc<AtomicU64>,
}

impl Giver {
    /// Gives these from now on.
    pub fn hold(&self, holdings: Vec<Holding>) {
        let holdings = holdings.into_iter().map(Arc::new).collect();
        *self.holdings.lock().unwrap_or_else(PoisonError::into_inner) = holdings;
    }

    /// Bytes of chunks given since the start.
    #[must_use]
    pub fn given(&self) -> u64 {
        self.given.load(Ordering::Relaxed)
    }

    /// Answers one stream until whoever opened it has enough. Who asks for another model is told by its end.
    pub(crate) async fn give(&self, peer: PeerId, model: ModelId, mut stream: Stream, links: &Links) {
        let Some(_turn) = self.turns.take(peer) else { return };
        let is_asked_for = |held: &&Arc<Holding>| held.model() == model;
        let held = self.holdings.lock().unwrap_or_else(PoisonError::into_inner).iter().find(is_asked_for).cloned();
        let Some(held) = held else { return };
        while let Ok(Ok(Some(query))) = timeout(IDLE, stream.receiver.recv::<WeightsQuery>()).await {
            if self.answer(&held, query, &mut stream, links).await.is_err() {
                return;
            }
        }
        // Whoever has gone needs no end.
        let _ = stream.sender.finish();
    }

    async fn answer(
        &self,
        held: &Arc<Holding>,
        query: WeightsQuery,
        stream: &mut Stream,
        links: &Links,
    ) -> Result<(), LinkError> {
        let lost = || LinkError::Lost("nothing of the kind is here".into());
        match query {
            WeightsQuery::Manifest => stream.sender.send(held.manifest().ok_or_else(lost)?).await,
            WeightsQuery::Hashes { file } => {
                let list = held.hashes(file).ok_or_else(lost)?;
                stream.sender.send_bytes(list.as_flattened(), limits::FRAME_BYTES).await
            }
            WeightsQuery::Bitfield { file } => {
                let bits = held.bitfield(file).ok_or_else(lost)?;
                stream.sender.send_bytes(bits.bytes(), limits::FRAME_BYTES).await
            }
            WeightsQuery::Chunk { file, chunk } => {
                let held = held.clone();
                // The disk may take its time.
                let read = tokio::task::spawn_blocking(move || held.chunk(file, chunk)).await;
                let mut content = read.ok().flatten().unwrap_or_default();
                if !content.is_empty() && links.spoils_tile() {
                    content[0] ^= 1;
                }
                let bytes = content.len() as u64;
                stream.sender.send_payload(content.into(), CHUNK_BYTES as usize).await?;
                self.given.fetch_add(bytes, Ordering::Relaxed);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_the_turns_of_all() {
        let turns = Arc::new(GivingTurns::default());
        let take = |n: u8| turns.take(PeerId([n; 32]));
        let mut taken: Vec<GivingTurn> = (0..STREAMS).filter_map(|_| take(1)).collect();
        assert_eq!(taken.len(), STREAMS_OF_ONE);
        taken.extend((2..=u8::MAX).filter_map(take));
        assert_eq!(taken.len(), STREAMS);
        assert!(take(1).is_none());
        taken.truncate(STREAMS_OF_ONE - 1);
        assert!(take(1).is_some() && take(2).is_some());
        taken.clear();
        assert!(turns.taken().is_empty());
    }
}
