//! Holders who lie in every way, and what becomes of it.

use super::*;
use std::ops::Range;
use std::sync::Mutex;
use tsnode_coordinator::sample;
use tsnode_kernels::source::ModelSource;
use tsnode_protocol::{
    codec,
    weights::{CHUNK_BYTES, WeightsFile},
};

/// What a holder does with a chunk that it is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum HolderBehaviour {
    Honest,
    /// Honest, and gives no chunk before every holder was asked for one: else the first asked may have given all before.
    Together,
    /// Honest, and gives no chunk before somebody was blamed: else nobody need ask who lies.
    Second,
    /// A bit of every chunk is another.
    Corrupt,
    /// Half of it.
    Short,
    /// More than was asked for.
    Long,
    /// It has lost this chunk, and does not know it.
    Lacks(u32),
    /// It has the chunks before this one, and says so.
    Before(u32),
    /// It has this chunk and those after it, and says so.
    From(u32),
    /// It says to have more chunks than there are.
    Beyond,
    /// It breaks off after so many chunks, each time.
    Breaks(u32),
    /// What it says its chunks are is something else.
    Hashes,
    /// What it says its files are is something else.
    Manifest,
}

#[derive(Clone)]
pub(crate) struct FakeHolders(Arc<HoldersInside>);

struct HoldersInside {
    smalls: BTreeMap<String, Vec<u8>>,
    content: Vec<u8>,
    card: ModelCard,
    manifest: WeightsManifest,
    holders: Vec<(PeerId, HolderBehaviour)>,
    blamed: Mutex<Vec<PeerId>>,
    /// Chunks given, by whom.
    given: Mutex<Vec<(PeerId, u32)>>,
}

pub(crate) struct OneTalk {
    world: FakeHolders,
    peer: PeerId,
    way: HolderBehaviour,
    given: u32,
}

fn peer(n: u8) -> PeerId {
    PeerId([n; 32])
}

impl FakeHolders {
    fn of(bytes: usize, ways: &[HolderBehaviour]) -> Self {
        let mut content = vec![0; bytes];
        blake3::Hasher::new().update(b"weights").finalize_xof().fill(&mut content);
        let file = WeightsFile { bytes: bytes as u64, root: *blake3::hash(&content).as_bytes() };
        let manifest = WeightsManifest { form: WeightsForm::Gguf, files: vec![file] };
        let small = |name: &str| ModelFile { name: name.into(), bytes: 1, hash: [1; 32] };
        let files = vec![small("config.json"), small("tokenizer.json")];
        let card = ModelCard { id: manifest.id(&files, None), files, ..sample::card() };
        let holders = (1..).zip(ways).map(|(n, way)| (peer(n), *way)).collect();
        Self::with(HoldersInside {
            smalls: BTreeMap::new(),
            content,
            card,
            manifest,
            holders,
            blamed: Mutex::default(),
            given: Mutex::default(),
        })
    }

    fn with(inside: HoldersInside) -> Self {
        Self(Arc::new(inside))
    }

    /// Holders of the model inside the program.
    pub fn of_model(ways: &[HolderBehaviour]) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/models/gutenberg-tiny");
        let source = ModelSource::open(&folder).unwrap();
        let content = source.weights().next().unwrap().1.to_vec();
        let source = source.identified(&[*blake3::hash(&content).as_bytes()]);
        let (card, manifest) = (source.card().clone(), source.manifest().unwrap().clone());
        let smalls = card.files.iter().map(|file| (file.name.clone(), source.file(&file.name).unwrap().to_vec()));
        let holders = (1..).zip(ways).map(|(n, way)| (peer(n), *way)).collect();
        let (blamed, given) = (Mutex::default(), Mutex::default());
        Self::with(HoldersInside { smalls: smalls.collect(), content, card, manifest, holders, blamed, given })
    }

    pub fn card(&self) -> &ModelCard {
        &self.0.card
    }

    fn blamed(&self) -> BTreeSet<PeerId> {
        self.0.blamed.lock().unwrap().iter().copied().collect()
    }

    fn given_by(&self, n: u8) -> usize {
        self.0.given.lock().unwrap().iter().filter(|(giver, _)| *giver == peer(n)).count()
    }

    /// Waits until one that goes so may give.
    async fn turn_of(&self, way: HolderBehaviour) {
        let asked = || self.0.given.lock().unwrap().iter().map(|(peer, _)| *peer).collect::<BTreeSet<_>>().len();
        let is_turn = || match way {
            HolderBehaviour::Together => asked() == self.0.holders.len(),
            HolderBehaviour::Second => !self.blamed().is_empty(),
            _ => true,
        };
        while !is_turn() {
            sleep(Duration::from_millis(1)).await;
        }
    }

    fn chunk(&self, chunk: u32) -> Vec<u8> {
        let start = chunk as usize * CHUNK_BYTES as usize;
        self.0.content[start..self.0.content.len().min(start + CHUNK_BYTES as usize)].to_vec()
    }

    fn bitfield(&self, way: HolderBehaviour) -> Vec<u8> {
        let mut bits = Bitfield::all(self.0.content.len() as u64);
        let without = match way {
            HolderBehaviour::Before(end) => u64::from(end)..CHUNKS as u64,
            HolderBehaviour::From(start) => 0..u64::from(start),
            HolderBehaviour::Beyond => return vec![0xff; bits.bytes().len() + 1],
            _ => 0..0,
        };
        without.for_each(|chunk| bits.set(chunk, false));
        bits.bytes().to_vec()
    }

    fn hashes(&self) -> Vec<u8> {
        let bytes = self.0.content.len() as u64;
        let hash = |chunk: u64| weights::chunk_hash(bytes, chunk, &self.chunk(chunk as u32));
        (0..weights::chunks(bytes)).map(hash).collect::<Vec<_>>().concat()
    }
}

impl ModelHolders for FakeHolders {
    type Talk = OneTalk;

    fn holders(&self, _: ModelId) -> Vec<PeerId> {
        self.0.holders.iter().map(|(peer, _)| *peer).collect()
    }

    async fn open(&self, peer: PeerId, _: ModelId) -> Result<OneTalk, String> {
        let way = self.0.holders.iter().find(|(other, _)| *other == peer).unwrap().1;
        Ok(OneTalk { world: self.clone(), peer, way, given: 0 })
    }

    async fn small(&self, _: PeerId, _: ModelId, file: &ModelFile) -> Result<Vec<u8>, String> {
        self.0.smalls.get(&file.name).cloned().ok_or_else(|| "GGUF has them inside".into())
    }

    fn origin(&self, model: ModelId) -> Option<ModelOrigin> {
        Some(ModelOrigin { model, source: "org/gated@0".into(), licence: None, is_gated: true, is_given: true })
    }

    fn blame(&self, peer: PeerId) {
        self.0.blamed.lock().unwrap().push(peer);
    }
}

impl HolderTalk for OneTalk {
    async fn ask(&mut self, query: WeightsQuery, most: usize) -> Result<Vec<u8>, String> {
        tokio::task::yield_now().await;
        let mut answer = match query {
            WeightsQuery::Manifest if self.way == HolderBehaviour::Manifest => {
                codec::encode(&WeightsManifest { form: WeightsForm::Safetensors, ..self.world.0.manifest.clone() })
            }
            WeightsQuery::Manifest => codec::encode(&self.world.0.manifest),
            WeightsQuery::Hashes { .. } => self.world.hashes(),
            WeightsQuery::Bitfield { .. } => self.world.bitfield(self.way),
            WeightsQuery::Chunk { chunk, .. } => {
                self.given += 1;
                self.world.0.given.lock().unwrap().push((self.peer, chunk));
                self.world.turn_of(self.way).await;
                self.world.chunk(chunk)
            }
        };
        match (query, self.way) {
            (WeightsQuery::Chunk { .. }, HolderBehaviour::Corrupt)
            | (WeightsQuery::Hashes { .. }, HolderBehaviour::Hashes) => answer[7] ^= 1,
            (WeightsQuery::Chunk { .. }, HolderBehaviour::Short) => answer.truncate(answer.len() / 2),
            (WeightsQuery::Chunk { .. }, HolderBehaviour::Long) => answer.push(0),
            (WeightsQuery::Chunk { chunk, .. }, HolderBehaviour::Lacks(lost)) if chunk == lost => answer.clear(),
            (WeightsQuery::Chunk { .. }, HolderBehaviour::Breaks(after)) if self.given > after => {
                return Err("cut".into());
            }
            _ => {}
        }
        // As the stream itself refuses it.
        if answer.len() > most { Err("too large".into()) } else { Ok(answer) }
    }
}

struct Home {
    folder: tempfile::TempDir,
    wanted: Range<u32>,
    tally: Arc<FetchTally>,
    patience: FetchTimeouts,
}

impl Home {
    fn new() -> Self {
        let (folder, tally) = (tempfile::tempdir().unwrap(), Arc::default());
        Self { folder, wanted: 0..u32::MAX, tally, patience: SHORT }
    }

    async fn fetch(&mut self, world: &FakeHolders) -> Result<Vec<u8>, FetchError> {
        self.tally = Arc::default();
        let (places, folder) = (world.clone(), self.folder.path().to_owned());
        let (index, patience, budget) = (Index::default(), self.patience, u64::MAX);
        let fetcher = Fetcher { places, folder, index, budget, patience, bad: BadPeers::default() };
        let drafts = Arc::new(fetcher.begin(&world.0.card).await?);
        let wanted = drafts.all().filter(|(_, chunk)| self.wanted.contains(chunk)).collect();
        fetcher.get(&world.0.card, &drafts, &wanted, &self.tally).await?;
        Ok(fs::read(&drafts.parts()[0].path).unwrap())
    }

    fn fetched(&self) -> u64 {
        self.tally.fetched.load(Ordering::Relaxed)
    }

    fn draft(&self, world: &FakeHolders) -> PathBuf {
        self.folder.path().join(world.0.card.id.to_string()).join("model.gguf.incomplete")
    }
}

/// Who broke off is asked again soon; what comes slowly on a full computer is still waited for.
pub(crate) const SHORT: FetchTimeouts =
    FetchTimeouts { rest: Duration::from_millis(20), starved: Duration::from_secs(60) };
const CHUNKS: usize = 9;
const BYTES: usize = CHUNKS * CHUNK_BYTES as usize - 100;

#[tokio::test]
async fn it_comes_from_all_who_have_it_and_no_chunk_twice() {
    let world = FakeHolders::of(BYTES, &[HolderBehaviour::Together; 3]);
    let mut home = Home::new();
    assert!(home.fetch(&world).await.unwrap() == world.0.content);
    assert_eq!((home.fetched(), world.blamed().len()), (BYTES as u64, 0));
    let chunks: BTreeSet<u32> = world.0.given.lock().unwrap().iter().map(|(_, chunk)| *chunk).collect();
    assert_eq!(chunks.len(), CHUNKS);
    assert!((1..=3).all(|n| world.given_by(n) > 0));
    // What is whole is not fetched again.
    assert!(home.fetch(&world).await.unwrap() == world.0.content);
    assert_eq!(home.fetched(), 0);
}

#[tokio::test]
async fn a_card_that_names_other_files_than_a_models_overwrites_none() {
    let mut inside = Arc::into_inner(FakeHolders::of_model(&[HolderBehaviour::Honest]).0).unwrap();
    for name in ["model.safetensors", "outline"] {
        let (content, name) = (b"something else".to_vec(), name.to_owned());
        let hash = *blake3::hash(&content).as_bytes();
        inside.card.files.push(ModelFile { name: name.clone(), bytes: content.len() as u64, hash });
        inside.smalls.insert(name, content);
    }
    let (world, mut home) = (FakeHolders::with(inside), Home::new());
    assert!(home.fetch(&world).await.unwrap() == world.0.content);
    assert!(home.fetch(&world).await.unwrap() == world.0.content);
    assert_eq!(home.fetched(), 0, "what was here is here");
}

#[tokio::test]
async fn who_gives_something_else_is_blamed_and_not_asked_again() {
    for way in [HolderBehaviour::Corrupt, HolderBehaviour::Short, HolderBehaviour::Hashes, HolderBehaviour::Manifest] {
        let world = FakeHolders::of(BYTES, &[way, HolderBehaviour::Second]);
        let mut home = Home::new();
        assert!(home.fetch(&world).await.unwrap() == world.0.content, "{way:?}");
        assert_eq!(world.blamed(), BTreeSet::from([peer(1)]), "{way:?}");
        assert!(world.given_by(1) <= STREAMS, "{way:?}: asked {} times", world.given_by(1));
        assert!(home.fetched() <= (BYTES + STREAMS * CHUNK_BYTES as usize) as u64);
    }
}

#[tokio::test]
async fn for_a_card_that_is_false_nobody_is_blamed_who_has_the_model() {
    let world = FakeHolders::of(1000, &[HolderBehaviour::Honest, HolderBehaviour::Honest]);
    let mut inside = Arc::into_inner(world.0).unwrap();
    // Its id, and a template that it does not have.
    inside.card.files.push(ModelFile { name: "chat_template.jinja".into(), bytes: 1, hash: [9; 32] });
    let world = FakeHolders(Arc::new(inside));
    let error = Home::new().fetch(&world).await.unwrap_err();
    assert!(matches!(&error, FetchError::NotGiven { what: "the manifest", .. }), "{error}");
    assert!(error.to_string().contains("does not fit what members say"), "{error}");
    assert!(world.blamed().is_empty());
}

#[tokio::test]
async fn a_length_that_lies_is_no_chunk() {
    // Of a last chunk there is room for more than it has.
    let world = FakeHolders::of(1000, &[HolderBehaviour::Long, HolderBehaviour::Second]);
    assert!(Home::new().fetch(&world).await.unwrap() == world.0.content);
    assert_eq!(world.blamed(), BTreeSet::from([peer(1)]));
}

#[tokio::test]
async fn what_one_has_lost_another_gives_and_nobody_is_blamed() {
    let world = FakeHolders::of(BYTES, &[HolderBehaviour::Lacks(4), HolderBehaviour::Breaks(1)]);
    assert!(Home::new().fetch(&world).await.unwrap() == world.0.content);
    assert!(world.blamed().is_empty());
}

#[tokio::test]
async fn a_lost_chunk_that_nobody_has_is_waited_for_and_said() {
    let world = FakeHolders::of(BYTES, &[HolderBehaviour::Lacks(4)]);
    let mut home = Home { patience: FetchTimeouts { starved: Duration::from_secs(1), ..SHORT }, ..Home::new() };
    let said = home.fetch(&world).await.unwrap_err().to_string();
    assert!(said.contains("nothing came for 1 s"), "{said}");
    assert_eq!(home.tally.done.load(Ordering::Relaxed), BYTES as u64 - CHUNK_BYTES);
    // Another has it.
    home.patience = SHORT;
    let other = FakeHolders::of(BYTES, &[HolderBehaviour::Honest]);
    assert!(home.fetch(&other).await.unwrap() == world.0.content);
    assert_eq!(home.fetched(), CHUNK_BYTES, "only that one");
}

#[tokio::test]
async fn what_is_there_counts_as_far_as_it_is_right() {
    let world = FakeHolders::of(BYTES, &[HolderBehaviour::Honest]);
    let mut home = Home::new();
    fs::create_dir(home.draft(&world).parent().unwrap()).unwrap();
    // Two chunks that are right, one that is not, a part of one.
    let mut there = world.0.content[..3 * CHUNK_BYTES as usize + 5].to_vec();
    there[CHUNK_BYTES as usize] ^= 1;
    fs::write(home.draft(&world), there).unwrap();
    assert!(home.fetch(&world).await.unwrap() == world.0.content);
    assert_eq!(home.fetched(), BYTES as u64 - 2 * CHUNK_BYTES);
    assert!(!home.draft(&world).exists());
}

#[tokio::test]
async fn of_what_nobody_has_nothing_is_begun() {
    let none = FakeHolders::of(BYTES, &[]);
    assert!(matches!(Home::new().fetch(&none).await, Err(FetchError::NotGiven { .. })));
}

#[tokio::test]
async fn what_is_not_wanted_is_not_fetched_and_no_file_is_whole_before_all_is() {
    let world = FakeHolders::of(BYTES, &[HolderBehaviour::Honest; 2]);
    let mut home = Home { wanted: 2..5, ..Home::new() };
    let there = home.fetch(&world).await.unwrap();
    assert_eq!(home.fetched(), 3 * CHUNK_BYTES);
    let place = 2 * CHUNK_BYTES as usize..5 * CHUNK_BYTES as usize;
    assert!(there.len() == BYTES && there[place.clone()] == world.0.content[place.clone()]);
    assert!(there[..place.start].iter().chain(&there[place.end..]).all(|byte| *byte == 0));
    let chunks: BTreeSet<u32> = world.0.given.lock().unwrap().iter().map(|(_, chunk)| *chunk).collect();
    assert_eq!(chunks, BTreeSet::from([2, 3, 4]));
    assert!(home.draft(&world).exists() && !home.draft(&world).with_extension("").exists());
    // Others: only what is not there of them.
    home.wanted = 4..7;
    home.fetch(&world).await.unwrap();
    assert_eq!(home.fetched(), 2 * CHUNK_BYTES);
    home.wanted = 0..u32::MAX;
    assert!(home.fetch(&world).await.unwrap() == world.0.content);
    assert_eq!(home.fetched(), BYTES as u64 - 5 * CHUNK_BYTES);
    assert!(!home.draft(&world).exists() && home.draft(&world).with_extension("").exists());
}

#[tokio::test]
async fn who_has_some_gives_some_and_is_not_asked_for_more() {
    let world =
        FakeHolders::of(BYTES, &[HolderBehaviour::Before(6), HolderBehaviour::From(3), HolderBehaviour::Beyond]);
    let mut home = Home::new();
    assert!(home.fetch(&world).await.unwrap() == world.0.content);
    assert_eq!((home.fetched(), world.blamed().len()), (BYTES as u64, 0));
    let given = world.0.given.lock().unwrap();
    let by =
        |n: u8| given.iter().filter(|(giver, _)| *giver == peer(n)).map(|(_, chunk)| *chunk).collect::<BTreeSet<_>>();
    assert!(by(1).iter().all(|chunk| *chunk < 6) && by(2).iter().all(|chunk| *chunk >= 3) && by(3).is_empty());
    assert_eq!(given.len(), CHUNKS);
}

#[tokio::test]
async fn what_is_rare_comes_first() {
    // The second has the last chunks alone among two, the first has all.
    let world = FakeHolders::of(BYTES, &[HolderBehaviour::Honest, HolderBehaviour::Before(7)]);
    let drafts = {
        let (places, folder) = (world.clone(), tempfile::tempdir().unwrap());
        let fetcher = Fetcher {
            places,
            folder: folder.path().to_owned(),
            index: Index::default(),
            budget: u64::MAX,
            patience: SHORT,
            bad: BadPeers::default(),
        };
        Arc::new(fetcher.begin(&world.0.card).await.unwrap())
    };
    let work = Arc::new(FetchWork::new(drafts.clone(), &drafts.all().collect(), Arc::default()));
    for (n, way) in [(1, HolderBehaviour::Honest), (2, HolderBehaviour::Before(7))] {
        let bits = Bitfield::read(BYTES as u64, &world.bitfield(way)).unwrap();
        work.say(peer(n), BTreeMap::from([(0, bits)]));
    }
    let turns: Vec<_> = (0..CHUNKS).map(|_| work.take(peer(1)).unwrap()).collect();
    let first: BTreeSet<u32> = turns[..2].iter().map(|turn| turn.chunk.1).collect();
    assert_eq!(first, BTreeSet::from([7, 8]));
    assert!(work.take(peer(1)).is_none());
    drop(turns);
    assert!(work.take(peer(2)).is_some_and(|turn| turn.chunk.1 < 7));
}

#[tokio::test]
async fn a_file_that_is_half_there_is_known_by_its_hashes_or_by_the_index() {
    let world = FakeHolders::of(BYTES, &[HolderBehaviour::Honest]);
    let mut home = Home { wanted: 2..5, ..Home::new() };
    home.fetch(&world).await.unwrap();
    let data = tempfile::tempdir().unwrap();
    let index = Index::open_here(data.path());
    let folder = home.draft(&world).parent().unwrap().to_owned();
    let open = || {
        let (manifest, hashes) = notes::read(&folder).unwrap();
        PartialFiles::open(&folder, manifest, hashes, &index).unwrap()
    };
    let there =
        |drafts: &PartialFiles| drafts.all().filter(|chunk| drafts.has(*chunk)).map(|(_, n)| n).collect::<Vec<_>>();
    assert_eq!(there(&open()), [2, 3, 4], "by their hashes");
    open().keep(&index).unwrap();
    assert_eq!(there(&open()), [2, 3, 4], "by the index");
    // Somebody writes to it: another file for the index, and a chunk less by its hash.
    let path = home.draft(&world);
    let mut bytes = fs::read(&path).unwrap();
    bytes[3 * CHUNK_BYTES as usize] ^= 1;
    fs::write(&path, bytes).unwrap();
    assert_eq!(there(&open()), [2, 4]);
}
