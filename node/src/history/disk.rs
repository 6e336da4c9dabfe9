//! What is remembered, on the disk: read once, written now and then and at the end. Where that does not work, one line in the log says
//! it, and nothing is written any more in this run.

use super::{
    History,
    counts::{CountEntry, CountKey, Day, WorkSide},
    traces::KEPT,
};
use crate::store::spare::Spare;
use serde::{Serialize, de::DeserializeOwned};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tsnode_coordinator::gateway::Trace;
use tsnode_protocol::ModelId;

/// Where it lies, and what follows where it is lost.
const FOLDER: Spare =
    Spare { folder: "history", name: "the history of this peer's work", without: "counting begins anew" };
/// Between two writings: what is lost with a process that is killed.
const PERIOD: Duration = Duration::from_secs(10);
/// How long one may take; less than a peer that ends waits for its tasks.
const PATIENCE: Duration = Duration::from_secs(4);
/// Bytes before an entry: the beginning of a hash over its key and itself.
const CHECK: usize = 8;
/// Longest trace that is kept (bytes): one of ordinary length is a fiftieth of it.
const TRACE_BYTES: usize = 64 << 10;
/// What keys of counts begin with, and of traces.
const COUNTS: u8 = b'c';
const TRACES: u8 = b't';

/// Keeps a peer's history in its data folder until `stop`, and writes then what is new. The folder is made once there is something.
pub async fn keep(history: History, data_dir: PathBuf, stop: CancellationToken) {
    if !FOLDER.is_in(&data_dir) {
        tokio::select! {
            () = history.0.news.notified() => {}
            () = stop.cancelled() => if history.is_new() {
                return;
            },
        }
    }
    let Some(mut book) = HistoryBook::open(&data_dir, &history).await else { return };
    loop {
        let ends = stop.is_cancelled();
        book = match book.write(&history).await {
            Ok(book) => book,
            Err(why) => {
                tracing::info!(why, "{} is written no longer: {}", FOLDER.name, FOLDER.without);
                return;
            }
        };
        if ends {
            return;
        }
        tokio::select! {
            () = sleep(PERIOD) => {}
            () = stop.cancelled() => {}
        }
    }
}

/// The open folder.
struct HistoryBook {
    db: sled::Db,
    /// Traces of this run that are in it.
    noted: u64,
    /// The next trace's number in it.
    next: u64,
}

impl HistoryBook {
    /// Opens it and reads what earlier runs have left.
    async fn open(data_dir: &Path, history: &History) -> Option<Self> {
        let db = FOLDER.open(data_dir).await?;
        let history = history.clone();
        let read = tokio::task::spawn_blocking(move || {
            let (counts, traces, next) = read(&db);
            let mut known = history.0.counts.lock().unwrap_or_else(PoisonError::into_inner);
            known.restore(counts);
            drop(known);
            history.traces().restore(traces.into_iter().rev());
            Self { db, noted: 0, next }
        });
        match timeout(PATIENCE, read).await {
            Ok(Ok(book)) => Some(book),
            Ok(Err(panic)) => Self::without(&panic.to_string()),
            Err(_) => Self::without("reading it takes too long"),
        }
    }

    fn without(why: &str) -> Option<Self> {
        tracing::info!(why, "{} cannot be read: {}", FOLDER.name, FOLDER.without);
        None
    }

    /// Writes what is new, and waits until the disk has it.
    async fn write(self, history: &History) -> Result<Self, String> {
        let (traces, noted) = history.since(Some(self.noted));
        let changes = history.0.counts.lock().unwrap_or_else(PoisonError::into_inner).take_changes();
        if traces.is_empty() && changes.is_empty() {
            return Ok(self);
        }
        let write = tokio::task::spawn_blocking(move || {
            let Self { db, mut next, .. } = self;
            let mut batch = sled::Batch::default();
            for (key, entry) in changes {
                let key = counts_key(key);
                match entry.and_then(|entry| sealed(&key, &entry)) {
                    Some(value) => batch.insert(&key[..], value),
                    None => batch.remove(&key[..]),
                }
            }
            for trace in traces.iter().rev() {
                let key = trace_key(next);
                if let Some(value) = sealed(&key, trace).filter(|value| value.len() <= TRACE_BYTES) {
                    batch.insert(&key[..], value);
                }
                if let Some(oldest) = next.checked_sub(KEPT as u64) {
                    batch.remove(trace_key(oldest));
                }
                next += 1;
            }
            db.apply_batch(batch).and_then(|()| db.flush())?;
            Ok::<_, sled::Error>(Self { db, noted, next })
        });
        match timeout(PATIENCE, write).await {
            Ok(Ok(written)) => written.map_err(|error| error.to_string()),
            Ok(Err(panic)) => Err(panic.to_string()),
            Err(_) => Err("writing it takes too long".into()),
        }
    }
}

/// Counts, traces from the oldest on, and the number behind the last trace. What is not as it was written is left out.
pub(super) fn read(db: &sled::Db) -> (Vec<(CountKey, CountEntry)>, Vec<Trace>, u64) {
    let count = |(key, value): (sled::IVec, sled::IVec)| Some((counts_key_of(&key)?, unsealed(&key, &value)?));
    let counts = db.scan_prefix([COUNTS]).map_while(Result::ok).filter_map(count).collect();
    let (mut traces, mut next) = (Vec::new(), 0);
    for (key, value) in db.scan_prefix([TRACES]).map_while(Result::ok) {
        let Some(number) = trace_number(&key) else { continue };
        next = number.saturating_add(1);
        traces.extend(unsealed::<Trace>(&key, &value));
    }
    (counts, traces, next)
}

fn counts_key(CountKey { day, model, side }: CountKey) -> Vec<u8> {
    let side = match side {
        WorkSide::ForOthers => 0,
        WorkSide::ByOthers => 1,
    };
    [&[COUNTS][..], &day.0.to_be_bytes(), &model.0, &[side]].concat()
}

fn counts_key_of(bytes: &[u8]) -> Option<CountKey> {
    let (day, rest) = bytes.strip_prefix(&[COUNTS])?.split_first_chunk::<4>()?;
    let (model, side) = rest.split_first_chunk::<16>()?;
    let side = match side {
        [0] => WorkSide::ForOthers,
        [1] => WorkSide::ByOthers,
        _ => return None,
    };
    Some(CountKey { day: Day(u32::from_be_bytes(*day)), model: ModelId(*model), side })
}

fn trace_key(number: u64) -> Vec<u8> {
    [&[TRACES][..], &number.to_be_bytes()].concat()
}

fn trace_number(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.strip_prefix(&[TRACES])?.try_into().ok()?))
}

/// An entry behind its checksum.
fn sealed<T: Serialize>(key: &[u8], what: &T) -> Option<Vec<u8>> {
    let text = serde_json::to_vec(what).ok()?;
    Some([&check(key, &text)[..], &text].concat())
}

fn unsealed<T: DeserializeOwned>(key: &[u8], value: &[u8]) -> Option<T> {
    let (checked, text) = value.split_first_chunk::<CHECK>()?;
    (check(key, text) == *checked).then(|| serde_json::from_slice(text).ok()).flatten()
}

fn check(key: &[u8], text: &[u8]) -> [u8; CHECK] {
    let hash = blake3::Hasher::new().update(key).update(text).finalize();
    std::array::from_fn(|n| hash.as_bytes()[n])
}
