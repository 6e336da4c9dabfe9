//! What clients got, kept here and at a buddy, so that a client whose gateway died goes on at any other peer.

use crate::{
    links::{LinkError, Links, Stream},
    roster::Roster,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tsnode_coordinator::buddies;
use tsnode_protocol::{
    KvCodec, PeerId, RequestId, Sampled, TokenLogprob,
    journal::{Fingerprint, JournalHead, JournalPart, PART_TOKENS},
    limits,
    stream::Opening,
};

/// Journals kept, of this peer's clients and of others'; the longest untouched goes first.
const JOURNALS: usize = 4096;
/// Memory they may take (bytes).
const BYTES: usize = 64 << 20;
/// How long one is kept that nobody adds to: clients come back within seconds.
const KEPT: Duration = Duration::from_secs(600);
/// How often the buddy is told.
const EVERY: Duration = Duration::from_millis(100);
/// Buddies tried, should one go.
const BUDDIES: usize = 4;
/// How long likely buddies may take to say what they know.
const PATIENCE: Duration = Duration::from_secs(1);

/// An answer as far as a client may have it.
#[derive(Clone, Debug, PartialEq)]
pub struct Recalled {
    /// What its prompt's KV goes through.
    pub codec: KvCodec,
    /// Its tokens.
    pub answer: Vec<Sampled>,
}

/// All journals of one peer. Clones share them.
#[derive(Clone)]
pub struct Journal {
    /// Held for map operations only.
    book: Arc<Mutex<Book>>,
    me: PeerId,
    links: Links,
    roster: Roster,
    tasks: TaskTracker,
    stop: CancellationToken,
}

#[derive(Default)]
struct Book {
    entries: BTreeMap<RequestId, Entry>,
    bytes: usize,
}

struct Entry {
    asked: Fingerprint,
    said: Recalled,
    touched: Instant,
    over: bool,
}

impl Journal {
    /// No journals.
    #[must_use]
    pub fn new(me: PeerId, links: Links, roster: Roster, tasks: TaskTracker, stop: CancellationToken) -> Self {
        Self { book: Arc::default(), me, links, roster, tasks, stop }
    }

    /// A client of this peer is served, with what it has from elsewhere; a buddy is told from now on.
    pub fn begin(&self, request: RequestId, asked: Fingerprint, said: Option<Recalled>) {
        let said = said.unwrap_or(Recalled { codec: KvCodec::Raw, answer: Vec::new() });
        self.book().open(request, asked, said);
        let (journal, stop) = (self.clone(), self.stop.clone());
        self.tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = journal.copy(request) => {}
            }
        });
    }

    /// The answer's tokens rest on this.
    pub fn settled(&self, request: RequestId, codec: KvCodec) {
        if let Some(entry) = self.book().entries.get_mut(&request) {
            entry.said.codec = codec;
        }
    }

    /// The client gets another token.
    pub fn token(&self, request: RequestId, sampled: Sampled) {
        self.book().add(request, [sampled]);
    }

    /// The answer has ended, or its client has gone.
    pub fn end(&self, request: RequestId) {
        if let Some(entry) = self.book().entries.get_mut(&request) {
            entry.over = true;
        }
    }

    /// What a client got of `request`, from this peer's journals or from likely buddies'; nothing if it asks for something
    /// else under the same name.
    pub async fn recall(&self, request: RequestId, asked: Fingerprint) -> Option<Recalled> {
        let here = self.book().entries.get(&request).map(|e| (e.asked, e.said.clone()));
        let mut found: Vec<(Fingerprint, Recalled)> = here.into_iter().collect();
        if found.is_empty() {
            let ask = |buddy| async move { timeout(PATIENCE, self.ask(buddy, request)).await.ok()?.ok()? };
            let answers = self.buddies(request).into_iter().take(BUDDIES).map(ask);
            found.extend(futures::future::join_all(answers).await.into_iter().flatten());
        }
        let same = found.into_iter().filter(|(of, said)| *of == asked && !said.answer.is_empty());
        same.map(|(_, said)| said).max_by_key(|said| said.answer.len())
    }

    fn buddies(&self, request: RequestId) -> Vec<PeerId> {
        buddies::ranked(request, self.roster.others(self.me).into_iter().map(|(peer, _)| peer))
    }

    /// Tells a buddy what is said until the answer ends; when it goes, the next gets all of it.
    async fn copy(&self, request: RequestId) {
        for buddy in self.buddies(request).into_iter().take(BUDDIES) {
            match self.copy_to(buddy, request).await {
                Ok(()) => return,
                Err(error) => tracing::debug!(%request, %buddy, %error, "journal goes to another buddy"),
            }
        }
    }

    async fn copy_to(&self, buddy: PeerId, request: RequestId) -> Result<(), LinkError> {
        let Some(asked) = self.book().entries.get(&request).map(|e| e.asked) else { return Ok(()) };
        let addresses = self.roster.data_addresses(buddy);
        let head = JournalHead { request, asked };
        let mut stream = self.links.open(buddy, &addresses, &Opening::Journal(head)).await?;
        let mut sent = 0;
        loop {
            let next = self.book().after(request, sent);
            let Some((part, over)) = next else { return stream.sender.finish() };
            if !part.tokens.is_empty() {
                sent += part.tokens.len();
                stream.sender.send(&part).await?;
            } else if over {
                return stream.sender.finish();
            } else {
                sleep(EVERY).await;
            }
        }
    }

    async fn ask(&self, buddy: PeerId, request: RequestId) -> Result<Option<(Fingerprint, Recalled)>, LinkError> {
        let addresses = self.roster.data_addresses(buddy);
        let mut stream = self.links.open(buddy, &addresses, &Opening::Recall(request)).await?;
        let Some(head) = stream.receiver.recv::<JournalHead>().await? else { return Ok(None) };
        let mut said = Recalled { codec: KvCodec::Raw, answer: Vec::new() };
        while let Some(part) = stream.receiver.recv::<JournalPart>().await? {
            part.check()?;
            if said.answer.len() + part.tokens.len() > limits::SEQUENCE_TOKENS as usize {
                return Ok(None);
            }
            said.codec = part.codec;
            said.answer.extend(part.tokens);
        }
        Ok(Some((head.asked, said)))
    }

    /// Another gateway's journal comes in. A new one of the same name replaces the old: its client has moved.
    pub async fn keep(&self, head: JournalHead, mut stream: Stream) -> Result<(), LinkError> {
        let JournalHead { request, asked } = head;
        self.book().open(request, asked, Recalled { codec: KvCodec::Raw, answer: Vec::new() });
        while let Some(part) = stream.receiver.recv::<JournalPart>().await? {
            part.check()?;
            self.settled(request, part.codec);
            if !self.book().add(request, part.tokens) {
                break;
            }
        }
        self.end(request);
        Ok(())
    }

    /// Says what is known of a request to whoever asks by its name.
    pub async fn give(&self, request: RequestId, mut stream: Stream) -> Result<(), LinkError> {
        let known = self.book().entries.get(&request).map(|e| e.asked);
        if let Some(asked) = known {
            stream.sender.send(&JournalHead { request, asked }).await?;
            let mut sent = 0;
            loop {
                let next = self.book().after(request, sent);
                let Some((part, _)) = next.filter(|(part, _)| !part.tokens.is_empty()) else { break };
                sent += part.tokens.len();
                stream.sender.send(&part).await?;
            }
        }
        stream.sender.finish()
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    fn open(&mut self, request: RequestId, asked: Fingerprint, said: Recalled) {
        let now = Instant::now();
        let old = |e: &Entry| now.duration_since(e.touched) > KEPT;
        let stale: Vec<RequestId> = self.entries.iter().filter(|(_, e)| old(e)).map(|(request, _)| *request).collect();
        stale.into_iter().chain([request]).for_each(|request| self.remove(request));
        self.bytes += said.answer.iter().map(size).sum::<usize>();
        self.entries.insert(request, Entry { asked, said, touched: now, over: false });
        self.make_room();
    }

    /// Whether there is such a journal, and room in it.
    fn add(&mut self, request: RequestId, tokens: impl IntoIterator<Item = Sampled>) -> bool {
        let Some(entry) = self.entries.get_mut(&request) else { return false };
        let before = entry.said.answer.len();
        let room = (limits::SEQUENCE_TOKENS as usize).saturating_sub(before);
        entry.said.answer.extend(tokens.into_iter().take(room));
        entry.touched = Instant::now();
        self.bytes += entry.said.answer[before..].iter().map(size).sum::<usize>();
        self.make_room();
        true
    }

    /// What was said after the first `sent` tokens, and whether that was all.
    fn after(&self, request: RequestId, sent: usize) -> Option<(JournalPart, bool)> {
        let entry = self.entries.get(&request)?;
        let tokens = entry.said.answer.iter().skip(sent).take(PART_TOKENS).cloned().collect();
        Some((JournalPart { codec: entry.said.codec, tokens }, entry.over))
    }

    fn make_room(&mut self) {
        while self.entries.len() > JOURNALS || self.bytes > BYTES {
            let oldest = self.entries.iter().min_by_key(|(_, e)| e.touched).map(|(request, _)| *request);
            let Some(oldest) = oldest else { return };
            self.remove(oldest);
        }
    }

    fn remove(&mut self, request: RequestId) {
        if let Some(entry) = self.entries.remove(&request) {
            self.bytes -= entry.said.answer.iter().map(size).sum::<usize>();
        }
    }
}

fn size(sampled: &Sampled) -> usize {
    size_of::<Sampled>() + sampled.top.len() * size_of::<TokenLogprob>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_protocol::Token;

    fn tokens(ids: std::ops::Range<u32>) -> Vec<Sampled> {
        ids.map(|id| Sampled { token: Token(id), logprob: None, top: vec![] }).collect()
    }

    #[test]
    fn a_book_has_room_for_the_latest() {
        let (asked, nothing) = (Fingerprint([1; 32]), || Recalled { codec: KvCodec::Raw, answer: vec![] });
        let mut book = Book::default();
        for n in 0..=JOURNALS as u128 {
            book.open(RequestId(n.to_le_bytes()), asked, nothing());
        }
        assert_eq!(book.entries.len(), JOURNALS);
        let last = RequestId((JOURNALS as u128).to_le_bytes());
        assert!(book.add(last, tokens(0..3000)));
        let (part, over) = book.after(last, 10).unwrap();
        assert_eq!((part.tokens.len(), part.tokens[0].token, over), (PART_TOKENS, Token(10), false));
        assert!(!book.add(RequestId([0; 16]), tokens(0..1)), "the first had to go");
        assert_eq!(book.bytes, 3000 * size_of::<Sampled>());
        book.open(last, asked, nothing());
        assert_eq!(book.bytes, 0, "a new one of the same name replaces the old");
        // A journal as large as all may be together leaves room for itself alone, if at all.
        let many = BYTES / size_of::<Sampled>();
        book.add(last, tokens(0..(many as u32).min(limits::SEQUENCE_TOKENS)));
        assert!(book.bytes <= BYTES);
    }
}
