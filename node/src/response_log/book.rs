//! Response logs in memory: whose, what was said, and how much of it the disk has.

use super::Recalled;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;
use tsnode_protocol::{
    GroupId, PeerId, PromptCodec, RequestId, Sampled, TokenLogprob, limits,
    response_log::{Fingerprint, PART_TOKENS, Record, ResponseLogHead, ResponseLogPart},
};

/// Response logs kept, of this peer's clients and of others'; the longest untouched goes first.
const RESPONSE_LOGS: usize = 4096;
/// Memory they may take (bytes).
const BYTES: usize = 64 << 20;
/// How long one is kept that nobody adds to: clients come back within seconds.
const KEPT: Duration = Duration::from_secs(600);
/// Gateways whose response logs of one name are kept side by side: its client may have moved, or somebody pretends that it has.
const GATEWAYS: usize = 4;

/// Whose response log. Those of one request lie side by side, by the gateway that TLS proved to write them, so that nobody can
/// change or replace another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ResponseKey {
    pub request: RequestId,
    pub gateway: PeerId,
}

/// Tells a response log from an earlier one of the same key: a request may come to its gateway again, and what was written of its
/// first coming is none of the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogLife(u64);

#[derive(Default)]
pub(super) struct Book {
    lives: u64,
    entries: BTreeMap<ResponseKey, LogEntry>,
    bytes: usize,
    /// Those of which the disk does not have all.
    unsaved: BTreeSet<ResponseKey>,
    /// Those that are of no use any more, and that the disk still has.
    forgotten: BTreeSet<ResponseKey>,
}

struct LogEntry {
    life: LogLife,
    asked: Fingerprint,
    said: Recalled,
    touched: Instant,
    over: bool,
    /// Tokens that the disk has, if it knows of the response log at all.
    saved: Option<usize>,
}

impl Book {
    /// A response log begins; the same gateway's of before is replaced. No response log begins where too many gateways write one of that
    /// name.
    pub fn open(&mut self, key: ResponseKey, asked: Fingerprint, said: Recalled) -> Option<LogLife> {
        self.forget_old(Instant::now());
        if !self.entries.contains_key(&key) && self.of(key.request).count() >= GATEWAYS {
            return None;
        }
        self.insert(key, asked, said, None, false);
        self.life(key)
    }

    /// One that was found on the disk. It is kept as if it had been written now: clocks may have been set meanwhile.
    pub fn restore(&mut self, key: ResponseKey, asked: Fingerprint, said: Recalled) {
        let saved = Some(said.answer.len());
        self.insert(key, asked, said, saved, true);
    }

    fn insert(&mut self, key: ResponseKey, asked: Fingerprint, said: Recalled, saved: Option<usize>, over: bool) {
        self.remove(key);
        self.bytes += said.answer.iter().map(size).sum::<usize>();
        self.lives += 1;
        let life = LogLife(self.lives);
        self.entries.insert(key, LogEntry { life, asked, said, touched: Instant::now(), over, saved });
        if saved.is_none() {
            self.unsaved.insert(key);
        }
        self.make_room();
    }

    /// The response log of that key there is now.
    pub fn life(&self, key: ResponseKey) -> Option<LogLife> {
        self.entries.get(&key).map(|e| e.life)
    }

    /// Whether there is still that response log, and room in it.
    pub fn add(&mut self, key: ResponseKey, life: LogLife, tokens: impl IntoIterator<Item = Sampled>) -> bool {
        let Some(entry) = self.entries.get_mut(&key).filter(|e| e.life == life) else { return false };
        let before = entry.said.answer.len();
        let room = (limits::SEQUENCE_TOKENS as usize).saturating_sub(before);
        entry.said.answer.extend(tokens.into_iter().take(room));
        entry.touched = Instant::now();
        self.bytes += entry.said.answer[before..].iter().map(size).sum::<usize>();
        self.unsaved.insert(key);
        self.make_room();
        true
    }

    pub fn settled(&mut self, key: ResponseKey, life: LogLife, codec: PromptCodec, holder: Option<GroupId>) {
        if let Some(entry) = self.entries.get_mut(&key).filter(|e| e.life == life) {
            (entry.said.codec, entry.said.holder) = (codec, holder);
        }
    }

    pub fn end(&mut self, key: ResponseKey, life: LogLife) {
        if let Some(entry) = self.entries.get_mut(&key).filter(|e| e.life == life) {
            entry.over = true;
        }
    }

    pub fn asked(&self, key: ResponseKey) -> Option<Fingerprint> {
        self.entries.get(&key).map(|e| e.asked)
    }

    /// The longest answer to just this.
    pub fn best(&self, head: ResponseLogHead) -> Option<ResponseKey> {
        let same = self.of(head.request).filter(|(_, e)| e.asked == head.asked && !e.said.answer.is_empty());
        same.max_by_key(|(_, e)| e.said.answer.len()).map(|(key, _)| *key)
    }

    pub fn said(&self, key: ResponseKey) -> Option<Recalled> {
        self.entries.get(&key).map(|e| e.said.clone())
    }

    /// What was said after the first `sent` tokens, and whether that was all.
    pub fn after(&self, key: ResponseKey, life: LogLife, sent: usize) -> Option<(ResponseLogPart, bool)> {
        let entry = self.entries.get(&key).filter(|e| e.life == life)?;
        Some((part(entry, sent, PART_TOKENS), entry.over))
    }

    /// Those that nobody has added to for long are of no use any more.
    pub fn forget_old(&mut self, now: Instant) {
        let old = |e: &LogEntry| now.saturating_duration_since(e.touched) > KEPT;
        let stale: Vec<ResponseKey> = self.entries.iter().filter(|(_, e)| old(e)).map(|(key, _)| *key).collect();
        stale.into_iter().for_each(|key| self.remove(key));
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The next of what the disk does not have, of one response log at a time; it counts as saved from then on.
    pub fn next_unsaved(&mut self, at: u64) -> Option<Vec<Record>> {
        if let Some(ResponseKey { request, gateway }) = self.forgotten.pop_first() {
            return Some(vec![Record::Forget { request, gateway }]);
        }
        let key = self.unsaved.pop_first()?;
        let ResponseKey { request, gateway } = key;
        let mut records = Vec::new();
        let Some(entry) = self.entries.get_mut(&key) else { return Some(records) };
        if entry.saved.is_none() {
            records.push(Record::Begin { head: ResponseLogHead { request, asked: entry.asked }, gateway, at });
        }
        let from = entry.saved.unwrap_or(0);
        // With all alternatives a part stays below what a record of a ledger may have.
        let part = part(entry, from, PART_TOKENS);
        entry.saved = Some(from + part.tokens.len());
        if entry.saved < Some(entry.said.answer.len()) {
            self.unsaved.insert(key);
        }
        if !part.tokens.is_empty() {
            records.push(Record::Part { request, gateway, from: from as u32, part, at });
        }
        Some(records)
    }

    /// The disk has nothing, or is to be written anew.
    pub fn nothing_is_saved(&mut self) {
        self.forgotten.clear();
        self.unsaved = self.entries.keys().copied().collect();
        self.entries.values_mut().for_each(|e| e.saved = None);
    }

    fn of(&self, request: RequestId) -> impl Iterator<Item = (&ResponseKey, &LogEntry)> {
        let [first, last] = [[0; 32], [0xFF; 32]].map(|id| ResponseKey { request, gateway: PeerId(id) });
        self.entries.range(first..=last)
    }

    fn make_room(&mut self) {
        while self.entries.len() > RESPONSE_LOGS || self.bytes > BYTES {
            let oldest = self.entries.iter().min_by_key(|(_, e)| e.touched).map(|(key, _)| *key);
            let Some(oldest) = oldest else { return };
            self.remove(oldest);
        }
    }

    fn remove(&mut self, key: ResponseKey) {
        self.unsaved.remove(&key);
        if let Some(entry) = self.entries.remove(&key) {
            self.bytes -= entry.said.answer.iter().map(size).sum::<usize>();
            if entry.saved.is_some() {
                self.forgotten.insert(key);
            }
        }
    }
}

fn part(entry: &LogEntry, from: usize, most: usize) -> ResponseLogPart {
    let tokens = entry.said.answer.iter().skip(from).take(most).cloned().collect();
    ResponseLogPart { codec: entry.said.codec, holder: entry.said.holder, tokens }
}

fn size(sampled: &Sampled) -> usize {
    size_of::<Sampled>() + sampled.top.len() * size_of::<TokenLogprob>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_protocol::Token;

    const ASKED: Fingerprint = Fingerprint([1; 32]);

    fn tokens(ids: std::ops::Range<u32>) -> Vec<Sampled> {
        ids.map(|id| Sampled { token: Token(id), logprob: None, top: vec![] }).collect()
    }

    fn nothing() -> Recalled {
        Recalled::default()
    }

    fn add(book: &mut Book, key: ResponseKey, said: Vec<Sampled>) {
        let life = book.life(key).unwrap();
        assert!(book.add(key, life, said));
    }

    fn key(request: u128, gateway: u8) -> ResponseKey {
        ResponseKey { request: RequestId(request.to_le_bytes()), gateway: PeerId([gateway; 32]) }
    }

    #[test]
    fn a_book_has_room_for_the_latest() {
        let mut book = Book::default();
        for n in 0..=RESPONSE_LOGS as u128 {
            assert!(book.open(key(n, 1), ASKED, nothing()).is_some());
        }
        assert_eq!(book.entries.len(), RESPONSE_LOGS);
        let last = key(RESPONSE_LOGS as u128, 1);
        let life = book.life(last).unwrap();
        assert!(book.add(last, life, tokens(0..3000)));
        let (part, over) = book.after(last, life, 10).unwrap();
        assert_eq!((part.tokens.len(), part.tokens[0].token, over), (PART_TOKENS, Token(10), false));
        assert_eq!(book.life(key(0, 1)), None, "the first had to go");
        assert_eq!(book.bytes, 3000 * size_of::<Sampled>());
        let again = book.open(last, ASKED, nothing()).unwrap();
        assert_eq!(book.bytes, 0, "a new one of the same gateway replaces the old");
        // A response log as large as all may be together leaves room for itself alone, if at all.
        let many = BYTES / size_of::<Sampled>();
        book.add(last, again, tokens(0..(many as u32).min(limits::SEQUENCE_TOKENS)));
        assert!(book.bytes <= BYTES);
    }

    #[test]
    fn no_gateway_changes_anothers_response_log_and_the_longest_answer_is_given() {
        let mut book = Book::default();
        assert!(book.open(key(5, 1), ASKED, nothing()).is_some());
        add(&mut book, key(5, 1), tokens(0..20));
        // Another one pretends: with less, with something else, with nothing.
        assert!(book.open(key(5, 2), ASKED, nothing()).is_some());
        add(&mut book, key(5, 2), tokens(900..903));
        assert!(book.open(key(5, 3), Fingerprint([9; 32]), nothing()).is_some());
        add(&mut book, key(5, 3), tokens(900..999));
        assert!(book.open(key(5, 4), ASKED, nothing()).is_some());
        assert!(book.open(key(5, 6), ASKED, nothing()).is_none(), "there are enough of that name");
        assert!(book.open(key(5, 2), ASKED, nothing()).is_some(), "whoever has one may begin again");
        let head = ResponseLogHead { request: key(5, 1).request, asked: ASKED };
        assert_eq!(book.best(head).and_then(|k| book.said(k)).unwrap().answer, tokens(0..20));
        // The client has moved, and got more there.
        add(&mut book, key(5, 4), tokens(0..30));
        assert_eq!(book.best(head), Some(key(5, 4)));
        assert_eq!(book.best(ResponseLogHead { asked: Fingerprint([2; 32]), ..head }), None);
        assert_eq!(book.best(ResponseLogHead { request: key(6, 1).request, ..head }), None);
    }

    /// A request came to its gateway, nobody served it, and it came again: what is still on its way of the first time must not be
    /// added to the second. (One stream of 2,801 had another token than it should, after 200 kills.)
    #[test]
    fn what_was_written_of_a_request_that_came_before_is_none_of_the_one_that_runs() {
        let mut book = Book::default();
        let first = book.open(key(1, 1), ASKED, nothing()).unwrap();
        let second = book.open(key(1, 1), ASKED, nothing()).unwrap();
        assert!(book.add(key(1, 1), second, tokens(0..4)));
        assert!(!book.add(key(1, 1), first, tokens(0..4)));
        assert!(book.after(key(1, 1), first, 0).is_none(), "nor is the second copied as the first");
        book.end(key(1, 1), first);
        let (part, over) = book.after(key(1, 1), second, 0).unwrap();
        assert_eq!((part.tokens, over), (tokens(0..4), false));
    }

    #[test]
    fn what_is_of_no_use_any_more_is_forgotten_on_the_disk_too() {
        let mut book = Book::default();
        book.open(key(1, 1), ASKED, nothing());
        book.open(key(2, 1), ASKED, nothing());
        let all = |book: &mut Book| std::iter::from_fn(|| book.next_unsaved(0)).flatten().collect::<Vec<Record>>();
        assert_eq!(all(&mut book).len(), 2);
        add(&mut book, key(2, 1), tokens(0..5000));
        let parts = all(&mut book);
        let froms: Vec<u32> =
            parts.iter().filter_map(|r| if let Record::Part { from, .. } = r { Some(*from) } else { None }).collect();
        assert_eq!(froms, [0, 2048, 4096]);
        let (entry, later) = (book.entries.get_mut(&key(2, 1)).unwrap(), Duration::from_secs(1));
        entry.touched += later;
        book.forget_old(Instant::now() + KEPT + later / 2);
        let ResponseKey { request, gateway } = key(1, 1);
        assert_eq!(all(&mut book), [Record::Forget { request, gateway }]);
        book.nothing_is_saved();
        assert_eq!(all(&mut book).len(), 4);
    }
}
