//! What clients got, kept here and at a replica, so that a client whose gateway died goes on at any other peer, or at the same
//! one when it is started again.

mod book;
mod disk;

use crate::{
    data_plane::{
        links::{LinkError, Links, Stream},
        roster::Roster,
    },
    store::{Store, StoreError},
};
use book::{Book, LogLife, ResponseKey};
use futures::stream::{FuturesUnordered, StreamExt as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tsnode_coordinator::replicas;
use tsnode_protocol::{
    GroupId, KvCodec, PeerId, PromptCodec, RequestId, Sampled,
    codec::CodecError,
    limits,
    response_log::{Fingerprint, ResponseLogHead, ResponseLogPart},
    stream::Opening,
};

/// How often the replica is told, and the disk.
const EVERY: Duration = Duration::from_millis(100);
/// Replicas tried, should one go.
const REPLICAS: usize = 4;
/// How long likely replicas may take to say what they know of an answer that a client has begun to read.
const PATIENCE: Duration = Duration::from_secs(1);
/// The same where the client has nothing yet: little is lost if it begins anew.
const HASTE: Duration = Duration::from_millis(250);

/// An answer as far as a client may have it.
#[derive(Clone, Debug, PartialEq)]
pub struct Recalled {
    /// What its prompt's KV goes through.
    pub codec: PromptCodec,
    /// The group that computed the prompt for another.
    pub holder: Option<GroupId>,
    /// Its tokens.
    pub answer: Vec<Sampled>,
}

impl Default for Recalled {
    /// Nothing yet.
    fn default() -> Self {
        Self { codec: KvCodec::Raw.into(), holder: None, answer: Vec::new() }
    }
}

/// All response logs of one peer. Clones share them.
#[derive(Clone)]
pub struct ResponseLog {
    /// Held for map operations only.
    book: Arc<Mutex<Book>>,
    /// Wakes whoever writes to the disk.
    news: Arc<Notify>,
    me: PeerId,
    links: Links,
    roster: Roster,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl ResponseLog {
    /// Those that the store has; what is new goes there until `stop`.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn open(
        store: &Store,
        me: PeerId,
        (links, roster): (Links, Roster),
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> Result<Self, StoreError> {
        let (book, writer) = disk::open(store)?;
        let news = Arc::new(Notify::new());
        tasks.spawn(writer.run(news.clone(), stop.clone()));
        Ok(Self { book, news, me, links, roster, tasks, stop })
    }

    /// A client of this peer is served, with what it has from elsewhere; a replica is told from now on.
    pub fn begin(&self, request: RequestId, asked: Fingerprint, said: Option<Recalled>) {
        let key = self.own(request);
        let Some(life) = self.book().open(key, asked, said.unwrap_or_default()) else {
            return tracing::debug!(%request, "too many gateways have a response log of that name: not logged");
        };
        self.news.notify_one();
        let (response_log, stop) = (self.clone(), self.stop.clone());
        self.tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = response_log.copy(key, life) => {}
            }
        });
    }

    /// The answer's tokens rest on this, and that group has computed its prompt for another.
    pub fn settled(&self, request: RequestId, codec: PromptCodec, holder: Option<GroupId>) {
        let (mut book, key) = (self.book(), self.own(request));
        if let Some(life) = book.life(key) {
            book.settled(key, life, codec, holder);
        }
    }

    /// The client gets another token.
    pub fn token(&self, request: RequestId, sampled: Sampled) {
        let (mut book, key) = (self.book(), self.own(request));
        if let Some(life) = book.life(key) {
            book.add(key, life, [sampled]);
        }
        drop(book);
        self.news.notify_one();
    }

    /// The answer has ended, nobody serves it, or its client has gone.
    pub fn end(&self, request: RequestId) {
        let (mut book, key) = (self.book(), self.own(request));
        if let Some(life) = book.life(key) {
            book.end(key, life);
        }
    }

    /// What a client got of just this, from this peer's response logs or from likely replicas'. Who says as much as the client has
    /// already `seen` says enough.
    pub async fn recall(&self, request: RequestId, asked: Fingerprint, seen: usize) -> Option<Recalled> {
        let head = ResponseLogHead { request, asked };
        let suffices = |said: &Recalled| said.answer.len() >= seen.max(1);
        let mut best = self.known(head);
        if best.as_ref().is_some_and(suffices) {
            return best;
        }
        let ask = |replica| async move {
            // One that is stopped says nothing, and the client waits.
            let _attended = self.links.attend(replica);
            tokio::select! {
                said = self.ask(replica, head) => said.ok().flatten(),
                () = self.links.until_unresponsive(replica) => None,
            }
        };
        let replicas = self.replicas(request).into_iter().take(REPLICAS);
        let mut answers: FuturesUnordered<_> = replicas.map(ask).collect();
        let asking = async {
            while let Some(said) = answers.next().await {
                best = [best.take(), said].into_iter().flatten().max_by_key(|said| said.answer.len());
                if best.as_ref().is_some_and(suffices) {
                    return;
                }
            }
        };
        if timeout(if seen > 0 { PATIENCE } else { HASTE }, asking).await.is_err() {
            tracing::debug!(%request, "not all replicas said what they know");
        }
        best
    }

    fn known(&self, head: ResponseLogHead) -> Option<Recalled> {
        let book = self.book();
        book.best(head).and_then(|key| book.said(key))
    }

    fn own(&self, request: RequestId) -> ResponseKey {
        ResponseKey { request, gateway: self.me }
    }

    fn replicas(&self, request: RequestId) -> Vec<PeerId> {
        replicas::ranked(request, self.roster.others(self.me).into_iter().map(|(peer, _)| peer))
    }

    /// Tells a replica what is said until the answer ends; when it goes, the next gets all of it.
    async fn copy(&self, key: ResponseKey, life: LogLife) {
        for replica in self.replicas(key.request).into_iter().take(REPLICAS) {
            match self.copy_to(replica, key, life).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::debug!(request = %key.request, %replica, %error, "response log goes to another replica")
                }
            }
        }
    }

    async fn copy_to(&self, replica: PeerId, key: ResponseKey, life: LogLife) -> Result<(), LinkError> {
        let Some(asked) = self.book().asked(key) else { return Ok(()) };
        let addresses = self.roster.data_addresses(replica);
        let head = ResponseLogHead { request: key.request, asked };
        let mut stream = self.links.open(replica, &addresses, &Opening::ResponseLog(head)).await?;
        let mut sent = 0;
        loop {
            let next = self.book().after(key, life, sent);
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

    async fn ask(&self, replica: PeerId, asked: ResponseLogHead) -> Result<Option<Recalled>, LinkError> {
        let addresses = self.roster.data_addresses(replica);
        let mut stream = self.links.open(replica, &addresses, &Opening::Recall(asked)).await?;
        let head = stream.receiver.recv::<ResponseLogHead>().await?;
        if head != Some(asked) {
            return Ok(None);
        }
        let mut said = Recalled::default();
        while let Some(part) = stream.receiver.recv::<ResponseLogPart>().await? {
            part.check().map_err(|why| stream.receiver.refuse(why))?;
            if said.answer.len() + part.tokens.len() > limits::SEQUENCE_TOKENS as usize {
                return Ok(None);
            }
            (said.codec, said.holder) = (part.codec, part.holder);
            said.answer.extend(part.tokens);
        }
        Ok(Some(said).filter(|said| !said.answer.is_empty()))
    }

    /// Another gateway's response log comes in: `gateway` is who TLS proves it to be, and it replaces only what it wrote itself.
    ///
    /// # Errors
    /// When the stream breaks, most likely because the gateway has died, or says what it may not. What came is kept.
    pub async fn keep(&self, gateway: PeerId, head: ResponseLogHead, mut stream: Stream) -> Result<(), LinkError> {
        let key = ResponseKey { request: head.request, gateway };
        let mut life = None;
        let kept = self.keep_parts(key, head.asked, &mut stream, &mut life).await;
        if let Some(life) = life {
            self.book().end(key, life);
        }
        kept
    }

    async fn keep_parts(
        &self,
        key: ResponseKey,
        asked: Fingerprint,
        stream: &mut Stream,
        begun: &mut Option<LogLife>,
    ) -> Result<(), LinkError> {
        while let Some(part) = stream.receiver.recv::<ResponseLogPart>().await? {
            part.check().map_err(|why| stream.receiver.refuse(why))?;
            let mut book = self.book();
            // Not before there is something to replace the gateway's last one with.
            let full = CodecError::Invalid("too many gateways have a response log of that name");
            let life = match *begun {
                Some(life) => life,
                None => *begun.insert(book.open(key, asked, Recalled::default()).ok_or(full)?),
            };
            book.settled(key, life, part.codec, part.holder);
            if !book.add(key, life, part.tokens) {
                return Ok(());
            }
            self.news.notify_one();
        }
        Ok(())
    }

    /// Says what is known of an answer to whoever asks by its name, and knows what was asked.
    ///
    /// # Errors
    /// When the stream breaks.
    pub async fn give(&self, asked: ResponseLogHead, mut stream: Stream) -> Result<(), LinkError> {
        let known = {
            let book = self.book();
            book.best(asked).and_then(|key| Some((key, book.life(key)?)))
        };
        if let Some((key, life)) = known {
            stream.sender.send(&asked).await?;
            let mut sent = 0;
            loop {
                let next = self.book().after(key, life, sent);
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
