//! What is remembered, and how it comes back: whole, after a day, damaged or not at all.

use super::*;
use crate::store::spare;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tsnode_protocol::{KvCodec, LayerRange, Stage};

const MODEL: ModelId = ModelId([1; 16]);
const ME: PeerId = PeerId([1; 32]);
const OTHER: PeerId = PeerId([2; 32]);

fn stage(peer: PeerId, start: u32, end: u32) -> Stage {
    Stage { peer, layers: LayerRange { start, end }, device: 0 }
}

fn trace(n: u16, prefill: &[Stage], decode: &[Stage]) -> Trace {
    Trace {
        request: RequestId(std::array::from_fn(|i| n.to_le_bytes()[i % 2])),
        model: MODEL,
        prefill: prefill[0].peer,
        decode: decode[0].peer,
        prefill_stages: prefill.to_vec(),
        decode_stages: decode.to_vec(),
        reason: String::new(),
        predicted: None,
        prompt_tokens: 100,
        cached_tokens: 20,
        new_tokens: 12,
        codec: KvCodec::Raw,
        first_part: None,
        overflow: None,
        kv_codec: None,
        kv_bytes: 0,
        ttft: 0.1,
        total: 0.2,
        alone: None,
        parts: Default::default(),
        deliveries: vec![],
        moves: vec![],
        slowest: None,
        peers: BTreeMap::new(),
    }
}

pub(crate) fn alone(n: u16) -> Trace {
    trace(n, &[stage(OTHER, 0, 12)], &[stage(OTHER, 0, 12)])
}

/// Tokens times layers, of twelve.
fn work(trace: &Trace, me: PeerId) -> (u64, u64) {
    let work = of_trace(trace, me);
    assert_eq!(work.layers, 12);
    (work.prompt, work.answer)
}

#[test]
fn what_others_computed_is_what_their_layers_did() {
    let (whole, first, second) = (stage(OTHER, 0, 12), stage(OTHER, 0, 4), stage(ME, 4, 12));
    assert_eq!(work(&trace(1, &[whole], &[whole]), ME), (80 * 12, 12 * 12), "cached tokens are not computed");
    assert_eq!(work(&trace(1, &[whole], &[whole]), OTHER), (0, 0), "for itself");
    let both = trace(1, &[whole], &[first, second]);
    assert_eq!(work(&both, ME), (80 * 12, 12 + 11 * 4), "the prefill group chose the first token");
    assert_eq!(work(&both, OTHER), (0, 11 * 8));
    let parted = Trace { first_part: Some(60), ..both };
    assert_eq!(work(&parted, ME), (40 * 12 + 40 * 4, 12 * 4), "the decode group computed the rest");
    assert_eq!(work(&parted, OTHER), (40 * 8, 12 * 8));
}

#[test]
fn stages_parts_add_up_to_the_tokens() {
    let mut sums = [Counts::default(), Counts::default(), Counts::default()];
    for (counts, own) in sums.iter_mut().zip([5, 4, 3]) {
        (0..3).for_each(|_| counts.for_others(Day(1), (MODEL, "m"), TokenWork::of(1, 1, own, 12)));
    }
    let told: u64 = sums.iter().flat_map(|counts| counts.lines(1)).map(|line| line.for_others.prompt_tokens).sum();
    assert_eq!(told, 3, "of three tokens each stage computed its layers");
}

#[test]
fn days_are_told_newest_first_and_the_oldest_go() {
    let mut counts = Counts::default();
    for day in 0..DAYS as u32 + 10 {
        counts.for_others(Day(day * 2), (MODEL, "m"), TokenWork::of(day, 1, 1, 1));
    }
    // A clock that was wrong costs a day.
    counts.by_others(Day(u32::MAX), (MODEL, "m"), TokenWork::of(1, 0, 1, 1));
    let lines = counts.lines(DAYS * 2);
    assert_eq!((lines.len(), lines[1].day.as_str()), (DAYS, "1972-01-21"));
    assert_eq!(counts.lines(2).len(), 2);
    assert_eq!(counts.take_changes().iter().filter(|(_, entry)| entry.is_none()).count(), 11);
    assert_eq!(counts.take_changes(), []);
    counts.for_others(Day(1), (MODEL, "m"), TokenWork::of(0, 0, 1, 1));
    assert_eq!(counts.take_changes(), [], "nothing is nothing");
}

#[test]
fn the_oldest_traces_give_way_to_the_newest() {
    let history = History::default();
    (0..300).for_each(|n| history.note(&alone(n)));
    let kept: Vec<RequestId> = history.newest().iter().map(|t| t.request).collect();
    let expected: Vec<RequestId> = (300 - TRACES as u16..300).rev().map(|n| alone(n).request).collect();
    assert_eq!(kept, expected);
    let (fresh, noted) = history.since(Some(298));
    assert_eq!((fresh.len(), fresh[0].request, noted), (2, alone(299).request, 300));
    assert_eq!(history.since(Some(noted)).0, []);
    assert_eq!(history.since(None).0.len(), TRACES);
}

#[test]
fn a_request_of_the_own_gateway_is_for_nobody_else() {
    let history = History::default();
    let id = |n: usize| RequestId(std::array::from_fn(|i| n.to_le_bytes()[i % 8]));
    (0..=OWN).for_each(|n| history.begins(id(n)));
    history.begins(id(OWN));
    assert!(history.is_for_others(&id(0)) && !history.is_for_others(&id(1)) && !history.is_for_others(&id(OWN)));
    assert!(history.is_for_others(&RequestId([0xff; 16])));
}

/// Runs for as long as `while_open` takes, and ends cleanly.
async fn run(folder: &Path, while_open: impl AsyncFnOnce(&History)) {
    let (history, stop) = (History::default(), CancellationToken::new());
    let keeper = crate::tasks::spawn("history's test", keep(history.clone(), folder.to_owned(), stop.clone()));
    while_open(&history).await;
    stop.cancel();
    tokio::time::timeout(Duration::from_secs(20), keeper).await.expect("it ends").unwrap();
}

/// Until so much is known.
async fn known(history: &History, traces: usize) {
    let known = async {
        while history.newest().len() < traces {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), known).await.expect("it comes back");
}

#[tokio::test]
async fn what_is_kept_comes_back_and_is_added_to() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), async |_| ()).await;
    assert!(!folder.path().join("history").exists(), "nothing has happened");
    run(folder.path(), async |history| {
        history.computed((MODEL, "m"), TokenWork::of(100, 10, 6, 12));
        history.ended(ME, "m", &alone(1));
        (1..=3).for_each(|n| history.note(&alone(n)));
    })
    .await;
    run(folder.path(), async |history| {
        history.computed((MODEL, "m"), TokenWork::of(100, 10, 6, 12));
        known(history, 3).await;
        assert_eq!(history.newest(), [3, 2, 1].map(alone));
        assert_eq!(history.since(Some(0)).0, [], "of this run there is none");
        let lines = history.lines(1);
        assert_eq!((lines.len(), lines[0].model.as_str()), (1, "m"));
        assert_eq!(lines[0].for_others, Tokens { prompt_tokens: 100, completion_tokens: 10 });
        assert_eq!(lines[0].by_others, Tokens { prompt_tokens: 80, completion_tokens: 12 });
    })
    .await;
    run(folder.path(), async |history| {
        known(history, 3).await;
        assert_eq!(history.lines(1)[0].for_others.prompt_tokens, 100, "it was written at the end");
    })
    .await;
}

#[tokio::test]
async fn no_more_traces_are_kept_than_are_remembered() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), async |history| (0..200).for_each(|n| history.note(&alone(n)))).await;
    run(folder.path(), async |history| {
        known(history, 200).await;
        (200..400).for_each(|n| history.note(&alone(n)));
        assert_eq!(history.newest().len(), TRACES);
    })
    .await;
    let (_, kept, next) = disk::read(&spare::open(&folder.path().join("history")).unwrap());
    assert_eq!((kept.len(), &kept[0], kept.last().unwrap(), next), (TRACES, &alone(144), &alone(399), 400));
}

/// As where the guard's process comes through and this one does not; what the guard finds is shown by `node/tests/weights.rs`.
#[tokio::test]
async fn what_cannot_be_opened_costs_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("history"), b"no folder").unwrap();
    run(folder.path(), async |history| {
        history.note(&alone(2));
        history.computed((MODEL, "m"), TokenWork::of(1, 1, 1, 1));
        assert_eq!((history.newest().len(), history.lines(1).len()), (1, 1));
    })
    .await;
}

#[tokio::test]
async fn an_entry_that_lies_counts_for_nothing() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), async |history| {
        history.note(&alone(1));
        history.computed((MODEL, "m"), TokenWork::of(1, 1, 1, 1));
    })
    .await;
    let db = spare::open(&folder.path().join("history")).unwrap();
    let whole: Vec<_> = db.iter().map(Result::unwrap).collect();
    assert_eq!(whole.len(), 2);
    for (key, value) in &whole {
        for at in 0..value.len() {
            let mut other = value.to_vec();
            other[at] ^= 1;
            db.insert(key, other).unwrap();
            let (counts, traces, _) = disk::read(&db);
            assert_eq!(counts.len() + traces.len(), 1, "byte {at}");
        }
        db.insert(key, value).unwrap();
    }
}
