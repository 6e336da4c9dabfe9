//! Layers of a real model that are fetched when they are wanted, and loaded of files that have nothing else.

use super::*;
use crate::weights::{
    BadPeers, FetchTimeouts,
    fetch::tests::{FakeHolders, HolderBehaviour, SHORT},
};
use std::fs;
use std::sync::Mutex;
use tsnode_kernels::engine::Threads;
use tsnode_protocol::weights::CHUNK_BYTES;

const FILE_CHUNKS: usize = 7;

fn fetcher(world: &FakeHolders, folder: &Path) -> Fetcher<FakeHolders> {
    let (places, folder, index) = (world.clone(), folder.to_owned(), Index::default());
    Fetcher { places, folder, index, budget: u64::MAX, patience: SHORT, bad: BadPeers::default() }
}

fn layers(start: u32, end: u32) -> LayerRange {
    LayerRange { start, end }
}

/// All numbers of some layers, as an engine gets them.
fn bytes_of(source: &ModelSource, layers: LayerRange) -> u64 {
    source.load_stage_by(Threads::together(1), layers, &mut |_| ()).unwrap().1.bytes
}

fn chunks_there(stock: &Stock<FakeHolders>) -> usize {
    stock.drafts.all().filter(|chunk| stock.drafts.has(*chunk)).count()
}

#[tokio::test]
async fn layers_come_when_they_are_wanted_and_no_others() {
    let (world, folder) = (FakeHolders::of_model(&[HolderBehaviour::Honest; 2]), tempfile::tempdir().unwrap());
    let told = Arc::new(Mutex::new(Vec::new()));
    let heard = told.clone();
    let tell: Tell = Arc::new(move |far| heard.lock().unwrap().push(far));
    let fetched = Arc::new(AtomicU64::new(0));
    let stock = Stock::open(fetcher(&world, folder.path()), world.card().clone(), fetched, tell).await.unwrap();
    assert_eq!((chunks_there(&stock), stock.fetched()), (1, CHUNK_BYTES), "what the file says of itself");
    assert_eq!(stock.starts, CHUNK_BYTES);
    assert_eq!(stock.source().await.unwrap().card(), world.card());
    assert_eq!(stock.partial().unwrap().layers, []);
    // Two layers of four: about a third of the file.
    let some = stock.bring(layers(1, 3)).await.unwrap();
    let held = bytes_of(&some, layers(1, 3));
    assert_eq!(stock.partial().unwrap().layers, [layers(1, 3)]);
    assert!((3..=4).contains(&chunks_there(&stock)), "{}", chunks_there(&stock));
    assert_eq!(stock.drafts.held(), stock.fetched());
    assert!(stock.fetched() <= held + 3 * CHUNK_BYTES, "{} for {held}", stock.fetched());
    let last = told.lock().unwrap().last().cloned().unwrap();
    assert_eq!((last.layers, last.done == last.bytes, last.fetched), (Some(layers(1, 3)), true, stock.fetched()));
    // What is there is not fetched again, and of other layers only the rest.
    let before = stock.fetched();
    stock.bring(layers(2, 3)).await.unwrap();
    assert_eq!(stock.fetched(), before);
    let all = stock.bring(layers(0, 4)).await.unwrap();
    assert_eq!((chunks_there(&stock), all.card()), (FILE_CHUNKS, world.card()));
    assert_eq!(stock.partial(), None, "all of it is here");
    let file = folder.path().join(world.card().id.to_string()).join("model.safetensors");
    assert_eq!(fs::metadata(&file).unwrap().len(), stock.fetched());
    // It is a model as any other from then on.
    assert_eq!(ModelSource::open(file.parent().unwrap()).unwrap().card().files, world.card().files);
}

#[tokio::test]
async fn what_is_here_is_lent_by_itself_and_what_is_not_is_waited_for() {
    let (world, folder) = (FakeHolders::of_model(&[HolderBehaviour::Honest]), tempfile::tempdir().unwrap());
    let (fetched, quiet): (Arc<AtomicU64>, Tell) = (Arc::default(), Arc::new(|_| ()));
    let stock =
        Stock::open(fetcher(&world, folder.path()), world.card().clone(), fetched, quiet.clone()).await.unwrap();
    stock.bring(layers(0, 1)).await.unwrap();
    let place = folder.path().join(world.card().id.to_string());
    drop(stock);
    // Nobody is there any more.
    let nobody = FakeHolders::of_model(&[]);
    let told = Arc::new(Mutex::new(Vec::new()));
    let heard = told.clone();
    let tell: Tell = Arc::new(move |far: Fetching| heard.lock().unwrap().extend(far.why));
    let again = Fetcher {
        patience: FetchTimeouts { starved: Duration::from_millis(50), ..SHORT },
        ..fetcher(&nobody, folder.path())
    };
    let stock = Stock::reopen(again, &place, &world.card().name, tell).await.unwrap();
    assert_eq!(stock.card(), world.card());
    assert_eq!((stock.starts, stock.partial().unwrap().layers), (CHUNK_BYTES, vec![layers(0, 1)]), "as it was left");
    let origin = stock.origin().said().unwrap().clone();
    assert_eq!((origin.source.as_str(), origin.is_gated, origin.is_given), ("org/gated@0", true, false));
    stock.bring(layers(0, 1)).await.unwrap();
    assert_eq!(stock.fetched(), 0);
    // Who wants all of it meanwhile has its turn, and is told that nobody has it.
    let all = async {
        while told.lock().unwrap().is_empty() {
            sleep(Duration::from_millis(1)).await;
        }
        stock.whole(&quiet).await
    };
    let all = async {
        tokio::select! {
            _ = stock.bring(layers(1, 2)) => None,
            all = all => Some(all),
        }
    };
    let all = tokio::time::timeout(Duration::from_secs(60), all).await.unwrap();
    assert!(matches!(all, Some(Err(FetchError::Starved { .. }))), "there is nobody to bring it: {all:?}");
    assert!(told.lock().unwrap()[0].contains("nothing came for"), "{:?}", told.lock().unwrap());
    // Of a folder that is another model's, nothing is.
    let other = folder.path().join("0123");
    fs::rename(&place, &other).unwrap();
    assert!(Stock::reopen(fetcher(&nobody, folder.path()), &other, "x", quiet).await.is_none());
}

#[tokio::test]
async fn the_rest_of_it_comes_when_all_is_wanted_and_only_who_wants_that_hears_of_it() {
    let (world, folder) = (FakeHolders::of_model(&[HolderBehaviour::Honest; 2]), tempfile::tempdir().unwrap());
    let listener = || {
        let told = Arc::new(Mutex::new(Vec::<Fetching>::new()));
        let heard = told.clone();
        let tell: Tell = Arc::new(move |far| heard.lock().unwrap().push(far));
        (told, tell)
    };
    let ((first, of_opening), (second, of_layers), (third, of_all)) = (listener(), listener(), listener());
    let opening = Stock::open(fetcher(&world, folder.path()), world.card().clone(), Arc::default(), of_opening);
    let stock = opening.await.unwrap();
    let opened = first.lock().unwrap().len();
    stock.hear(of_layers);
    stock.bring(layers(0, 1)).await.unwrap();
    let some = chunks_there(&stock);
    let whole = stock.whole(&of_all).await.unwrap();
    assert!(some < FILE_CHUNKS && chunks_there(&stock) == FILE_CHUNKS, "{some}");
    assert_eq!(whole, folder.path().join(world.card().id.to_string()));
    assert_eq!(ModelSource::open(&whole).unwrap().card().files, world.card().files);
    assert_eq!(first.lock().unwrap().len(), opened);
    assert!(second.lock().unwrap().iter().all(|far| far.layers == Some(layers(0, 1))));
    let last = third.lock().unwrap().last().cloned().unwrap();
    assert_eq!((last.layers, last.done, last.bytes), (None, stock.drafts.held(), stock.fetched()));
    // Nothing of it comes twice.
    let before = stock.fetched();
    stock.whole(&of_all).await.unwrap();
    assert_eq!(stock.fetched(), before);
}

#[tokio::test]
async fn layers_that_no_stage_has_go_where_others_come_within_the_budget() {
    let (world, folder) = (FakeHolders::of_model(&[HolderBehaviour::Honest; 2]), tempfile::tempdir().unwrap());
    let (fetched, quiet): (Arc<AtomicU64>, Tell) = (Arc::default(), Arc::new(|_| ()));
    let stock = Stock::open(fetcher(&world, folder.path()), world.card().clone(), fetched, quiet).await.unwrap();
    assert_eq!(stock.takes(), None, "all of it may be here");
    stock.bring(layers(0, 2)).await.unwrap();
    let most = stock.drafts.held();
    stock.bind(most);
    assert!(stock.takes().is_some_and(|takes| takes < most), "{:?}", stock.takes());
    // What serves stays, and what is to come is refused.
    let given_up = CancellationToken::new();
    let serves = stock.hold(layers(0, 2), given_up.clone());
    let error = stock.bring(layers(2, 3)).await.err().unwrap();
    assert!(matches!(&error, FetchError::Budget { budget, .. } if *budget == most), "{error}");
    assert!(error.to_string().contains("--model-budget"), "{error}");
    assert_eq!((stock.drafts.held(), stock.partial().unwrap().layers), (most, vec![layers(0, 2)]));
    // It is still held where a plan has dropped it, but is in nobody's way.
    given_up.cancel();
    let some = stock.bring(layers(2, 3)).await.unwrap();
    drop(serves);
    assert!(bytes_of(&some, layers(2, 3)) > 0 && stock.drafts.held() <= most);
    let here = stock.partial().unwrap();
    assert!(here.has(2) && !(here.has(0) && here.has(1)), "{here:?}");
    // What has gone is fetched again where it is wanted, and all of it is what it should be.
    stock.bind(u64::MAX);
    stock.bring(layers(0, 4)).await.unwrap();
    assert!(stock.drafts.all().all(|chunk| stock.drafts.read(chunk).is_some()));
    assert!(stock.fetched() > stock.drafts.held(), "some came twice");
}

#[tokio::test]
async fn what_files_say_of_themselves_is_not_fetched_where_it_alone_is_more_than_the_budget() {
    let (world, folder) = (FakeHolders::of_model(&[HolderBehaviour::Honest]), tempfile::tempdir().unwrap());
    let (fetched, quiet): (Arc<AtomicU64>, Tell) = (Arc::default(), Arc::new(|_| ()));
    let tight = Fetcher { budget: CHUNK_BYTES - 1, ..fetcher(&world, folder.path()) };
    let opened = Stock::open(tight, world.card().clone(), fetched.clone(), quiet).await;
    assert!(matches!(opened.err(), Some(FetchError::Budget { bytes: CHUNK_BYTES, .. })));
    assert_eq!(fetched.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn what_is_wanted_whole_is_not_bounded() {
    let (world, folder) = (FakeHolders::of_model(&[HolderBehaviour::Honest]), tempfile::tempdir().unwrap());
    let (fetched, quiet): (Arc<AtomicU64>, Tell) = (Arc::default(), Arc::new(|_| ()));
    let opening = Stock::open(fetcher(&world, folder.path()), world.card().clone(), fetched, quiet.clone());
    let stock = opening.await.unwrap();
    stock.bind(CHUNK_BYTES);
    assert!(matches!(stock.bring(layers(0, 2)).await.err(), Some(FetchError::Budget { .. })));
    stock.whole(&quiet).await.unwrap();
    stock.bring(layers(0, 2)).await.unwrap();
    assert_eq!(chunks_there(&stock), FILE_CHUNKS);
}

#[tokio::test]
async fn sizes_that_members_say_are_over_once_the_files_say_them() {
    let (world, folder) = (FakeHolders::of_model(&[HolderBehaviour::Honest]), tempfile::tempdir().unwrap());
    let mut card = world.card().clone();
    (card.shape.layers, card.shape.layer_bytes) = (9, 1);
    let quiet: Tell = Arc::new(|_| ());
    let stock = Stock::open(fetcher(&world, folder.path()), card, Arc::default(), quiet).await.unwrap();
    assert_eq!(stock.card(), world.card());
    stock.bring(layers(0, 4)).await.unwrap();
    assert_eq!(stock.partial(), None);
}
