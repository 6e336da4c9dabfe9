//! Response logs on the disk, so that a gateway that is started again goes on with its clients itself.
//!
//! A task of its own writes what is new in batches. What it writes is in the system's hands at once and outlives the process;
//! a power cut may take the last seconds, which the replica has. When the disk refuses, response logs live on in memory, and all of
//! them are written when it takes them again.

use super::{
    EVERY, Recalled,
    book::{Book, ResponseKey},
};
use crate::store::ledger::{Ledger, advice};
use crate::store::{Store, StoreError};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tsnode_protocol::{
    codec,
    ledger::RECORD_BYTES,
    limits,
    response_log::{Fingerprint, Record, ResponseLogPart},
};

/// How long after its last token a response log on the disk is of use to a peer that starts: longer than response logs are kept while it
/// runs, and longer than clocks are set forward.
const OF_USE: Duration = Duration::from_secs(2 * 3600);
/// How often those are forgotten that are of no use any more.
const SWEEP: Duration = Duration::from_secs(30);
/// Pause after the disk has refused.
const RETRY: Duration = Duration::from_secs(5);
/// Tokens' records written at once.
const BATCH: usize = 256;

/// Writes what is new.
pub(super) struct LogWriter {
    book: Arc<Mutex<Book>>,
    ledger: Ledger,
    /// The disk has refused: when to try again.
    again: Option<Instant>,
}

/// Opens the ledger and puts what is of use into a book.
pub(super) fn open(store: &Store) -> Result<(Arc<Mutex<Book>>, LogWriter), StoreError> {
    let mut found = ReadRecords::default();
    let ledger = store.open_response_log(|bytes| {
        // What another version has written is of no use.
        if let Ok(record) = codec::decode::<Record, RECORD_BYTES>(bytes) {
            found.read(record);
        }
    })?;
    let mut book = Book::default();
    let restored = found.restore(&mut book, now());
    if restored > 0 {
        tracing::info!(response_logs = restored, "clients of before may go on here");
    }
    let book = Arc::new(Mutex::new(book));
    let mut writer = LogWriter { book: book.clone(), ledger, again: None };
    if writer.ledger.is_long() {
        writer.save(Instant::now());
    }
    Ok((book, writer))
}

/// What records say, as far as they have been read.
#[derive(Default)]
struct ReadRecords(BTreeMap<ResponseKey, (Fingerprint, Recalled, u64)>);

impl ReadRecords {
    fn read(&mut self, record: Record) {
        match record {
            Record::Begin { head, gateway, at } => {
                let nothing = Recalled::default();
                self.0.insert(ResponseKey { request: head.request, gateway }, (head.asked, nothing, at));
            }
            Record::Part { request, gateway, from, part, at } => {
                let Some((_, said, last)) = self.0.get_mut(&ResponseKey { request, gateway }) else { return };
                // A part that does not fit follows one that was lost: nothing behind a gap is of use.
                if said.answer.len() == from as usize && fits(&part, said) {
                    (said.codec, said.holder, *last) = (part.codec, part.holder, at);
                    said.answer.extend(part.tokens);
                }
            }
            Record::Forget { request, gateway } => drop(self.0.remove(&ResponseKey { request, gateway })),
        }
    }

    /// Those of use, the latest in the end, which are kept longest. One from the future was written before the clock was set
    /// back.
    fn restore(self, book: &mut Book, now: u64) -> usize {
        let of_use = |at: u64| now.saturating_sub(at) <= OF_USE.as_secs();
        let mut found: Vec<_> = self.0.into_iter().filter(|(_, (.., at))| of_use(*at)).collect();
        found.sort_by_key(|(_, (.., at))| *at);
        let count = found.len();
        found.into_iter().for_each(|(key, (asked, said, _))| book.restore(key, asked, said));
        count
    }
}

fn fits(part: &ResponseLogPart, said: &Recalled) -> bool {
    part.check().is_ok() && said.answer.len() + part.tokens.len() <= limits::SEQUENCE_TOKENS as usize
}

impl LogWriter {
    /// Writes what is new, soon after `news`, until `stop`; then once more.
    pub async fn run(mut self, news: Arc<Notify>, stop: CancellationToken) {
        loop {
            let patience = if self.again.is_some() { RETRY } else { SWEEP };
            tokio::select! {
                () = stop.cancelled() => {}
                // With nothing new, those that are of no use any more are forgotten.
                heard = timeout(patience, news.notified()) => if heard.is_ok() {
                    tokio::select! {
                        () = stop.cancelled() => {}
                        () = sleep(EVERY) => {}
                    }
                },
            }
            let last = stop.is_cancelled();
            let saved = tokio::task::spawn_blocking(move || {
                self.save(Instant::now());
                self
            });
            match saved.await {
                Ok(writer) if !last => self = writer,
                _ => return,
            }
        }
    }

    fn save(&mut self, now: Instant) {
        self.book().forget_old(now);
        if self.again.is_some_and(|again| now < again) {
            return;
        }
        let saved = if self.again.is_some() || self.ledger.is_long() || self.holds_only_what_is_forgotten() {
            self.write_anew()
        } else {
            self.write_on()
        };
        match (&saved, self.again) {
            (Ok(()), Some(_)) => tracing::info!("the disk takes response logs again"),
            (Err(error), None) => {
                let advice = advice(error);
                tracing::warn!(%error, "clients' answers are logged in memory and at other peers only{advice}");
            }
            _ => {}
        }
        self.again = saved.is_err().then(|| now + RETRY);
    }

    /// Nothing of an answer stays in a file longer than it is of use.
    fn holds_only_what_is_forgotten(&self) -> bool {
        self.book().is_empty() && self.ledger.length() > tsnode_protocol::ledger::HEADER.len() as u64
    }

    fn write_on(&mut self) -> io::Result<()> {
        loop {
            let batch: Vec<Vec<u8>> = records(&self.book).take(BATCH).collect();
            if batch.is_empty() {
                return Ok(());
            }
            self.ledger.append(batch)?;
        }
    }

    fn write_anew(&mut self) -> io::Result<()> {
        self.book().nothing_is_saved();
        self.ledger.rewrite(records(&self.book))
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        lock(&self.book)
    }
}

/// What the disk does not have, response log by response log: the book is held for one at a time.
fn records(book: &Mutex<Book>) -> impl Iterator<Item = Vec<u8>> {
    let at = now();
    std::iter::from_fn(move || lock(book).next_unsaved(at)).flatten().map(|record| codec::encode(&record))
}

fn lock(book: &Mutex<Book>) -> MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_protocol::{GroupId, KvCodec, PeerId, RequestId, Sampled, Token, response_log::ResponseLogHead};

    const KEY: ResponseKey = ResponseKey { request: RequestId([3; 16]), gateway: PeerId([4; 32]) };
    const ASKED: Fingerprint = Fingerprint([1; 32]);
    const HOLDER: Option<GroupId> = Some(GroupId([7; 8]));

    fn tokens(ids: std::ops::Range<u32>) -> Vec<Sampled> {
        ids.map(|id| Sampled { token: Token(id), logprob: None, top: vec![] }).collect()
    }

    fn said(count: u32) -> Recalled {
        Recalled { codec: KvCodec::Int4.into(), holder: HOLDER, answer: tokens(0..count) }
    }

    fn begin(at: u64) -> Record {
        Record::Begin { head: ResponseLogHead { request: KEY.request, asked: ASKED }, gateway: KEY.gateway, at }
    }

    fn part(from: u32, to: u32, at: u64) -> Record {
        let ResponseKey { request, gateway } = KEY;
        let part = ResponseLogPart { codec: KvCodec::Int4.into(), holder: HOLDER, tokens: tokens(from..to) };
        Record::Part { request, gateway, from, part, at }
    }

    fn restored(records: Vec<Record>, now: u64) -> Option<Recalled> {
        let (mut found, mut book) = (ReadRecords::default(), Book::default());
        records.into_iter().for_each(|r| found.read(r));
        found.restore(&mut book, now);
        book.said(KEY)
    }

    #[test]
    fn what_was_written_is_there_when_the_peer_starts_again() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let (book, mut writer) = open(&store).unwrap();
        let life = lock(&book).open(KEY, ASKED, Recalled::default()).unwrap();
        lock(&book).settled(KEY, life, KvCodec::Int4.into(), HOLDER);
        for n in 0..200 {
            lock(&book).add(KEY, life, tokens(n * 10..n * 10 + 10));
            writer.save(Instant::now());
        }
        drop((book, writer));
        let (book, mut writer) = open(&store).unwrap();
        assert_eq!(lock(&book).said(KEY), Some(said(2000)));
        // The client goes on here, with what it had; somebody else's is forgotten.
        let life = lock(&book).open(KEY, ASKED, said(2000)).unwrap();
        lock(&book).add(KEY, life, tokens(2000..2001));
        let other = ResponseKey { request: RequestId([8; 16]), ..KEY };
        lock(&book).open(other, ASKED, said(5));
        writer.save(Instant::now());
        drop((book, writer));
        let (book, _) = open(&store).unwrap();
        assert_eq!(lock(&book).said(KEY), Some(said(2001)));
        assert_eq!(lock(&book).said(other), Some(said(5)));
    }

    #[test]
    fn nothing_behind_a_gap_is_of_use() {
        assert_eq!(restored(vec![begin(5), part(0, 3, 5), part(3, 9, 6)], 7), Some(said(9)));
        assert_eq!(restored(vec![begin(5), part(0, 3, 5), part(4, 9, 6), part(9, 12, 6)], 7), Some(said(3)));
        assert_eq!(restored(vec![part(0, 3, 5)], 7), None);
        let again = vec![begin(5), part(0, 3, 5), begin(6), part(0, 2, 6)];
        assert_eq!(restored(again, 7), Some(said(2)));
    }

    #[test]
    fn clocks_that_are_set_by_an_hour_lose_nothing() {
        const NOW: u64 = 1_700_000_000;
        let records = vec![begin(NOW), part(0, 3, NOW)];
        for now in [NOW, NOW + 3600, NOW - 3600, NOW + 600 + 3600] {
            assert_eq!(restored(records.clone(), now), Some(said(3)), "the clock is at {now}");
        }
        assert_eq!(restored(records, NOW + 24 * 3600), None, "what is old is forgotten");
    }

    #[test]
    fn the_file_is_empty_when_nothing_in_it_is_of_use() {
        let folder = tempfile::tempdir().unwrap();
        let (book, mut writer) = open(&Store::open(folder.path()).unwrap()).unwrap();
        let life = lock(&book).open(KEY, ASKED, said(500)).unwrap();
        writer.save(Instant::now());
        assert!(writer.ledger.length() > 500);
        lock(&book).end(KEY, life);
        writer.save(Instant::now() + Duration::from_secs(601));
        assert_eq!(writer.ledger.length(), 8);
        assert_eq!(std::fs::metadata(folder.path().join("response.log")).unwrap().len(), 8);
    }

    #[test]
    fn a_file_that_is_written_to_for_long_stays_small() {
        let folder = tempfile::tempdir().unwrap();
        let (book, mut writer) = open(&Store::open(folder.path()).unwrap()).unwrap();
        for n in 0..20_000_u32 {
            let request = RequestId(u128::from(n % 8).to_le_bytes());
            let key = ResponseKey { request, ..KEY };
            if n % 800 < 8 {
                lock(&book).open(key, ASKED, Recalled::default());
            }
            let life = lock(&book).life(key).unwrap();
            lock(&book).add(key, life, tokens(0..3));
            writer.save(Instant::now());
        }
        assert!(writer.ledger.length() < 1 << 20, "{} bytes", writer.ledger.length());
    }
}
