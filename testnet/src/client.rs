//! A client that reads a streamed answer to its end, whatever peer it has to ask for the rest: as a careful program would.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// How long a stream may stand still, all in all.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);

/// What a client saw of one stream.
#[derive(Clone, Debug)]
pub struct Seen {
    /// When it asked, and when it had everything.
    pub asked: Instant,
    /// When it had everything.
    pub ended: Instant,
    /// Token ids.
    pub tokens: Vec<u64>,
    /// What the prompt's KV went through; the tokens rest on it.
    pub codec: String,
    /// The longest time without a token, from when it asked on.
    pub pause: Duration,
    /// When that began.
    pub paused: Instant,
    /// Each time that it went on at another group.
    pub moves: Vec<Moved>,
    /// What peers call it.
    pub request: String,
    /// How often the client came back, because its gateway had gone.
    pub returns: usize,
    /// Why its prompt was computed where it was, in the end.
    pub reason: String,
}

/// A stream went on at another group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Moved {
    /// Why.
    pub reason: String,
    /// From what, as far as its gateway knew.
    pub way: Option<Way>,
}

impl Moved {
    /// As a trace tells it.
    pub(crate) fn told(told: &Value) -> Option<Self> {
        Some(Self { reason: told["reason"].as_str()?.to_owned(), way: Way::deserialize(&told["way"]).ok() })
    }
}

/// What a stream went on from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// KV of the prompt that a prefill group had kept, and the answer computed behind it.
    Kept,
    /// What the decode group had of it itself.
    Cached,
    /// Nothing, or little: it was computed anew.
    Anew,
}

/// Why a stream is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// Nothing came for too long, from anybody.
    #[error("{key} stands still after {tokens} tokens")]
    Stands {
        /// The client's name for it.
        key: String,
        /// How far it came.
        tokens: usize,
    },
    /// A peer said that it failed.
    #[error("{key} failed after {tokens} tokens: {why}")]
    Failed {
        /// The client's name for it.
        key: String,
        /// How far it came.
        tokens: usize,
        /// What the peer said.
        why: String,
    },
    /// It ended, with other tokens.
    #[error(
        "{key} has {found} tokens, of which the first {same} are as they should be, of {expected}; moves {moves:?}, returns {returns}"
    )]
    Tokens {
        /// The client's name for it.
        key: String,
        /// Tokens that came.
        found: usize,
        /// Of those, the first that are right.
        same: usize,
        /// Tokens of an undisturbed run.
        expected: usize,
        /// Each time that it went on at another group.
        moves: Vec<Moved>,
        /// How often the client came back.
        returns: usize,
    },
}

/// One streamed answer, asked for by name.
pub struct Reader {
    client: reqwest::Client,
    key: String,
    body: Value,
    last_event: Option<String>,
    last_token: Option<Instant>,
    seen: Seen,
    failed: Option<String>,
    done: bool,
}

impl Reader {
    /// Of a completion request; `key` is the client's name for it.
    #[must_use]
    pub fn new(client: &reqwest::Client, key: String, mut body: Value) -> Self {
        (body["stream"], body["return_token_ids"]) = (json!(true), json!(true));
        let now = Instant::now();
        let seen = Seen {
            asked: now,
            ended: now,
            tokens: Vec::new(),
            codec: String::new(),
            pause: Duration::ZERO,
            paused: now,
            moves: Vec::new(),
            request: String::new(),
            returns: 0,
            reason: String::new(),
        };
        Self { client: client.clone(), key, body, last_event: None, last_token: None, seen, failed: None, done: false }
    }

    /// Reads to the end, asking `gateway(n)` the n-th time.
    ///
    /// # Errors
    /// When it fails, or stands still for too long.
    pub async fn read(mut self, gateway: impl Fn(usize) -> String) -> Result<Seen, Wrong> {
        for n in 0.. {
            if self.last_token.unwrap_or(self.seen.asked).elapsed() > PATIENCE {
                return Err(Wrong::Stands { key: self.key, tokens: self.seen.tokens.len() });
            }
            // A gateway that has gone, or that nobody serves yet: the next one may do.
            let asked = self.ask(&gateway(n)).await;
            if let Some(why) = self.failed.take() {
                return Err(Wrong::Failed { key: self.key, tokens: self.seen.tokens.len(), why });
            }
            if asked.is_ok() && self.done {
                break;
            }
            self.seen.returns += usize::from(self.last_token.is_some());
            tokio::time::sleep(PAUSE).await;
        }
        self.seen.ended = Instant::now();
        Ok(self.seen)
    }

    async fn ask(&mut self, http: &str) -> reqwest::Result<()> {
        let request = self.client.post(format!("{http}/v1/completions")).header("x-tsnode-trace", "1");
        let request = match &self.last_event {
            Some(id) => request.header("last-event-id", id),
            None => request.header("idempotency-key", &self.key),
        };
        let mut response = request.timeout(PATIENCE).json(&self.body).send().await?;
        match response.status().as_u16() {
            200 => {}
            503 => return Ok(()),
            status => {
                self.failed = Some(format!("status {status}: {}", response.text().await?));
                return Ok(());
            }
        }
        let mut text = Vec::new();
        while let Some(part) = response.chunk().await? {
            text.extend_from_slice(&part);
            while let Some(end) = text.windows(2).position(|w| w == b"\n\n") {
                let event: Vec<u8> = text.drain(..end + 2).collect();
                self.event(&String::from_utf8_lossy(&event));
            }
        }
        Ok(())
    }

    fn event(&mut self, event: &str) {
        let line = |name: &str| event.lines().find_map(|l| l.strip_prefix(name));
        let Some(data) = line("data: ") else { return };
        if data == "[DONE]" {
            self.done = true;
            return;
        }
        self.last_event = line("id: ").map(str::to_owned).or(self.last_event.take());
        let data: Value = serde_json::from_str(data).unwrap_or_default();
        if let Some(error) = data.get("error") {
            self.failed = Some(error["message"].as_str().unwrap_or("without a word").to_owned());
        } else if let Some(trace) = data.get("tsnode") {
            self.seen.codec = trace["codec"].as_str().unwrap_or_default().to_owned();
            self.seen.request = trace["request"].as_str().unwrap_or_default().to_owned();
            self.seen.reason = trace["reason"].as_str().unwrap_or_default().to_owned();
            let moves = trace["moves"].as_array().into_iter().flatten();
            self.seen.moves.extend(moves.filter_map(Moved::told));
        } else {
            let ids = data["choices"][0]["token_ids"].as_array().into_iter().flatten();
            self.seen.tokens.extend(ids.filter_map(Value::as_u64));
            let before = self.last_token.replace(Instant::now()).unwrap_or(self.seen.asked);
            if before.elapsed() > self.seen.pause {
                (self.seen.pause, self.seen.paused) = (before.elapsed(), before);
            }
        }
    }
}
