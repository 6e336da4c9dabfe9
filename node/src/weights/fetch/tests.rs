//! Holders who lie in every way, and what becomes of it.

use super::*;
use std::sync::Mutex;
use tsnode_coordinator::sample;
use tsnode_protocol::{
    codec,
    weights::{CHUNK_BYTES, WeightsFile},
};

/// What a holder does with a chunk that it is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Honest,
    /// A bit of every chunk is another.
    Corrupt,
    /// Half of it.
    Short,
    /// More than was asked for.
    Long,
    /// It has lost this chunk.
    Lacks(u32),
    /// It breaks off after so many chunks, each time.
    Breaks(u32),
    /// What it says its chunks are is something else.
    Hashes,
    /// What it says its files are is something else.
    Manifest,
}

#[derive(Clone)]
struct World(Arc<Inside>);

struct Inside {
    content: Vec<u8>,
    card: ModelCard,
    manifest: WeightsManifest,
    holders: Vec<(PeerId, Way)>,
    blamed: Mutex<Vec<PeerId>>,
    /// Chunks given, by whom.
    given: Mutex<Vec<(PeerId, u32)>>,
}

struct OneTalk {
    world: World,
    peer: PeerId,
    way: Way,
    given: u32,
}

fn peer(n: u8) -> PeerId {
    PeerId([n; 32])
}

impl World {
    fn of(bytes: usize, ways: &[Way]) -> Self {
        let mut content = vec![0; bytes];
        blake3::Hasher::new().update(b"weights").finalize_xof().fill(&mut content);
        let file = WeightsFile { bytes: bytes as u64, root: *blake3::hash(&content).as_bytes() };
        let manifest = WeightsManifest { form: WeightsForm::Gguf, files: vec![file] };
        let small = |name: &str| ModelFile { name: name.into(), bytes: 1, hash: [1; 32] };
        let files = vec![small("config.json"), small("tokenizer.json")];
        let card = ModelCard { id: manifest.id(&[1; 32], &[1; 32], None), files, ..sample::card() };
        let holders = (1..).zip(ways).map(|(n, way)| (peer(n), *way)).collect();
        Self(Arc::new(Inside { content, card, manifest, holders, blamed: Mutex::default(), given: Mutex::default() }))
    }

    fn blamed(&self) -> BTreeSet<PeerId> {
        self.0.blamed.lock().unwrap().iter().copied().collect()
    }

    fn given_by(&self, n: u8) -> usize {
        self.0.given.lock().unwrap().iter().filter(|(giver, _)| *giver == peer(n)).count()
    }

    fn chunk(&self, chunk: u32) -> Vec<u8> {
        let start = chunk as usize * CHUNK_BYTES as usize;
        self.0.content[start..self.0.content.len().min(start + CHUNK_BYTES as usize)].to_vec()
    }

    fn hashes(&self) -> Vec<u8> {
        let bytes = self.0.content.len() as u64;
        let hash = |chunk: u64| weights::chunk_hash(bytes, chunk, &self.chunk(chunk as u32));
        (0..weights::chunks(bytes)).map(hash).collect::<Vec<_>>().concat()
    }
}

impl Places for World {
    type Talk = OneTalk;

    fn holders(&self, _: ModelId) -> Vec<PeerId> {
        self.0.holders.iter().map(|(peer, _)| *peer).collect()
    }

    async fn open(&self, peer: PeerId, _: ModelId) -> Result<OneTalk, String> {
        let way = self.0.holders.iter().find(|(other, _)| *other == peer).unwrap().1;
        Ok(OneTalk { world: self.clone(), peer, way, given: 0 })
    }

    async fn small(&self, _: PeerId, _: ModelId, _: &ModelFile) -> Result<Vec<u8>, String> {
        Err("GGUF has them inside".into())
    }

    fn blame(&self, peer: PeerId) {
        self.0.blamed.lock().unwrap().push(peer);
    }
}

impl Talk for OneTalk {
    async fn ask(&mut self, query: WeightsQuery, most: usize) -> Result<Vec<u8>, String> {
        tokio::task::yield_now().await;
        let mut answer = match query {
            WeightsQuery::Manifest if self.way == Way::Manifest => {
                codec::encode(&WeightsManifest { form: WeightsForm::Safetensors, ..self.world.0.manifest.clone() })
            }
            WeightsQuery::Manifest => codec::encode(&self.world.0.manifest),
            WeightsQuery::Hashes { .. } => self.world.hashes(),
            WeightsQuery::Chunk { chunk, .. } => {
                self.given += 1;
                self.world.0.given.lock().unwrap().push((self.peer, chunk));
                self.world.chunk(chunk)
            }
        };
        match (query, self.way) {
            (WeightsQuery::Chunk { .. }, Way::Corrupt) | (WeightsQuery::Hashes { .. }, Way::Hashes) => answer[7] ^= 1,
            (WeightsQuery::Chunk { .. }, Way::Short) => answer.truncate(answer.len() / 2),
            (WeightsQuery::Chunk { .. }, Way::Long) => answer.push(0),
            (WeightsQuery::Chunk { chunk, .. }, Way::Lacks(lost)) if chunk == lost => answer.clear(),
            (WeightsQuery::Chunk { .. }, Way::Breaks(after)) if self.given > after => return Err("cut".into()),
            _ => {}
        }
        // As the stream itself refuses it.
        if answer.len() > most { Err("too large".into()) } else { Ok(answer) }
    }
}

struct Home {
    folder: tempfile::TempDir,
    tally: Arc<Tally>,
}

impl Home {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), tally: Arc::default() }
    }

    async fn fetch(&mut self, world: &World, budget: u64) -> Result<Vec<u8>, FetchError> {
        self.tally = Arc::default();
        let (places, folder) = (world.clone(), self.folder.path().to_owned());
        let fetcher = Fetcher { places, folder, index: Index::default(), budget, patience: SHORT };
        fetcher.fetch(&world.0.card, &self.tally).await.map(|path| fs::read(path).unwrap())
    }

    fn fetched(&self) -> u64 {
        self.tally.fetched.load(Ordering::Relaxed)
    }

    fn draft(&self, world: &World) -> PathBuf {
        self.folder.path().join(world.0.card.id.to_string()).join("model.gguf.incomplete")
    }
}

const SHORT: Patience = Patience { rest: Duration::from_millis(20), starved: Duration::from_secs(1) };
const CHUNKS: usize = 9;
const BYTES: usize = CHUNKS * CHUNK_BYTES as usize - 100;

#[tokio::test]
async fn it_comes_from_all_who_have_it_and_no_chunk_twice() {
    let world = World::of(BYTES, &[Way::Honest; 3]);
    let mut home = Home::new();
    assert!(home.fetch(&world, u64::MAX).await.unwrap() == world.0.content);
    assert_eq!((home.fetched(), world.blamed().len()), (BYTES as u64, 0));
    let chunks: BTreeSet<u32> = world.0.given.lock().unwrap().iter().map(|(_, chunk)| *chunk).collect();
    assert_eq!(chunks.len(), CHUNKS);
    assert!((1..=3).all(|n| world.given_by(n) > 0));
    // What is whole is not fetched again.
    assert!(home.fetch(&world, u64::MAX).await.unwrap() == world.0.content);
    assert_eq!(home.fetched(), 0);
}

#[tokio::test]
async fn who_gives_something_else_is_blamed_and_not_asked_again() {
    for way in [Way::Corrupt, Way::Short, Way::Hashes, Way::Manifest] {
        let world = World::of(BYTES, &[way, Way::Honest]);
        let mut home = Home::new();
        assert!(home.fetch(&world, u64::MAX).await.unwrap() == world.0.content, "{way:?}");
        assert_eq!(world.blamed(), BTreeSet::from([peer(1)]), "{way:?}");
        assert!(world.given_by(1) <= STREAMS, "{way:?}: asked {} times", world.given_by(1));
        assert!(home.fetched() <= (BYTES + STREAMS * CHUNK_BYTES as usize) as u64);
    }
}

#[tokio::test]
async fn a_length_that_lies_is_no_chunk() {
    // Of a last chunk there is room for more than it has.
    let world = World::of(1000, &[Way::Long, Way::Honest]);
    assert!(Home::new().fetch(&world, u64::MAX).await.unwrap() == world.0.content);
    assert_eq!(world.blamed(), BTreeSet::from([peer(1)]));
}

#[tokio::test]
async fn what_one_has_lost_another_gives_and_nobody_is_blamed() {
    let world = World::of(BYTES, &[Way::Lacks(4), Way::Breaks(1)]);
    assert!(Home::new().fetch(&world, u64::MAX).await.unwrap() == world.0.content);
    assert!(world.blamed().is_empty());
}

#[tokio::test]
async fn a_lost_chunk_that_nobody_has_is_waited_for_and_said() {
    let world = World::of(BYTES, &[Way::Lacks(4)]);
    let mut home = Home::new();
    let said = home.fetch(&world, u64::MAX).await.unwrap_err().to_string();
    assert!(said.contains("nothing came for 1 s"), "{said}");
    assert_eq!(home.tally.done.load(Ordering::Relaxed), BYTES as u64 - CHUNK_BYTES);
    // Another has it.
    let other = World::of(BYTES, &[Way::Honest]);
    assert!(home.fetch(&other, u64::MAX).await.unwrap() == world.0.content);
    assert_eq!(home.fetched(), CHUNK_BYTES, "only that one");
}

#[tokio::test]
async fn what_is_there_counts_as_far_as_it_is_right() {
    let world = World::of(BYTES, &[Way::Honest]);
    let mut home = Home::new();
    fs::create_dir(home.draft(&world).parent().unwrap()).unwrap();
    // Two chunks that are right, one that is not, a part of one.
    let mut there = world.0.content[..3 * CHUNK_BYTES as usize + 5].to_vec();
    there[CHUNK_BYTES as usize] ^= 1;
    fs::write(home.draft(&world), there).unwrap();
    assert!(home.fetch(&world, u64::MAX).await.unwrap() == world.0.content);
    assert_eq!(home.fetched(), BYTES as u64 - 2 * CHUNK_BYTES);
    assert!(!home.draft(&world).exists());
}

#[tokio::test]
async fn what_is_too_large_is_not_begun() {
    let world = World::of(BYTES, &[Way::Honest]);
    let said = Home::new().fetch(&world, BYTES as u64 - 1).await.unwrap_err().to_string();
    assert!(said.contains("--model-budget"), "{said}");
    assert_eq!(world.given_by(1), 0);
    let none = World::of(BYTES, &[]);
    assert!(matches!(Home::new().fetch(&none, u64::MAX).await, Err(FetchError::NotGiven { .. })));
}
