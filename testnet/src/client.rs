//! A client that reads a streamed answer to its end, whatever peer it has to ask for the rest: as a careful program would.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt;
use std::time::{Duration, Instant};

/// How long a stream may stand still, all in all.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);
/// Pauses that are told one by one: shorter ones nobody notices.
const TOLD: Duration = Duration::from_millis(250);

/// Asks peers of this host: they have no certificates, and a small system may have none to judge them by.
#[must_use]
pub fn plain_http() -> reqwest::Client {
    reqwest::Client::builder().tls_certs_only([]).build().unwrap_or_default()
}

/// What a client saw of one stream.
#[derive(Clone, Debug)]
pub struct SeenStream {
    /// When it asked, and when it had everything.
    pub asked: Instant,
    /// When it had everything.
    pub ended: Instant,
    /// Token ids.
    pub tokens: Vec<u64>,
    /// What the prompt's KV went through, by the answer's fingerprint; the tokens rest on it.
    pub codec: String,
    /// The longest time without a token, from when it asked on.
    pub pause: Duration,
    /// When that began.
    pub paused: Instant,
    /// All times of a quarter of a second and more without a token.
    pub pauses: Vec<Paused>,
    /// Each time that it went on at another group.
    pub moves: Vec<Moved>,
    /// What peers call it.
    pub request: String,
    /// How often the client came back, because its gateway had gone.
    pub returns: usize,
    /// Why its prompt was computed where it was, in the end.
    pub reason: String,
}

/// A time without a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paused {
    /// When it began.
    pub began: Instant,
    /// How long it was.
    pub lasted: Duration,
    /// The client asked for the this-many-th time when it began, counted from 0.
    pub first_asked: usize,
    /// The same when it ended.
    pub last_asked: usize,
}

/// A stream went on at another group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Moved {
    /// Why.
    pub reason: String,
    /// From what, as far as its gateway knew.
    pub way: Option<Resumption>,
}

impl Moved {
    /// As a trace tells it.
    pub(crate) fn told(told: &Value) -> Option<Self> {
        Some(Self { reason: told["reason"].as_str()?.to_owned(), way: Resumption::deserialize(&told["way"]).ok() })
    }
}

/// What a stream went on from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resumption {
    /// KV of the prompt that a prefill group had kept, and the answer computed behind it.
    Kept,
    /// What the decode group had of it itself.
    Cached,
    /// Nothing, or little: it was computed anew.
    Anew,
}

/// Why a stream is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadStream {
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
        "{key}, by {codec}: {how} tokens: {found}, of which the first {same} are as they should be, of {expected}; moves {moves:?}, \
         returns {returns}"
    )]
    Tokens {
        /// The client's name for it.
        key: String,
        /// In what way.
        how: Difference,
        /// What its KV went through.
        codec: String,
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

/// In what way an answer is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Difference {
    /// Some of it, or all, never came.
    Lost,
    /// Some of it came twice.
    Repeated,
    /// It says something else.
    Changed,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lost => "lost",
            Self::Repeated => "repeated",
            Self::Changed => "changed",
        })
    }
}

impl Difference {
    /// What has become of tokens that should be the expected ones; nothing, if they are. A few tokens that fit elsewhere may do so by
    /// chance.
    pub(crate) fn of(found: &[u64], expected: &[u64]) -> Option<Self> {
        const FEW: usize = 4;
        if found == expected {
            return None;
        }
        let same = same(found, expected);
        let (rest, missing) = (&found[same..], &expected[same..]);
        if rest.is_empty() {
            return Some(Self::Lost);
        }
        if missing.is_empty() {
            return Some(Self::Repeated);
        }
        let goes_on_at = |place: usize| expected.get(place..).is_some_and(|e| goes_on(rest, e));
        let fits = rest.len() >= FEW;
        match () {
            () if fits && (0..same).rev().any(goes_on_at) => Some(Self::Repeated),
            () if fits && (same + 1..expected.len()).any(goes_on_at) => Some(Self::Lost),
            () => Some(Self::Changed),
        }
    }
}

/// Whether one is the beginning of the other, and the first to the last of what there is.
fn goes_on(rest: &[u64], expected: &[u64]) -> bool {
    !expected.is_empty() && rest.iter().zip(expected).all(|(a, b)| a == b) && rest.len() <= expected.len()
}

/// How many of the first tokens are the same.
pub(crate) fn same(found: &[u64], expected: &[u64]) -> usize {
    found.iter().zip(expected).take_while(|(a, b)| a == b).count()
}

impl BadStream {
    /// What has become of the answer.
    #[must_use]
    pub fn difference(&self) -> Difference {
        match self {
            Self::Stands { .. } | Self::Failed { .. } => Difference::Lost,
            Self::Tokens { how, .. } => *how,
        }
    }
}

/// One streamed answer, asked for by name.
pub struct AnswerStream {
    client: reqwest::Client,
    key: String,
    body: Value,
    last_event: Option<String>,
    last_token: Option<Instant>,
    /// How often it has asked, and how often before its last token.
    asked: usize,
    asked_before: usize,
    seen: SeenStream,
    failed: Option<String>,
    done: bool,
}

impl AnswerStream {
    /// Of a completion request; `key` is the client's name for it.
    #[must_use]
    pub fn new(client: &reqwest::Client, key: String, mut body: Value) -> Self {
        (body["stream"], body["return_token_ids"]) = (json!(true), json!(true));
        let now = Instant::now();
        let seen = SeenStream {
            asked: now,
            ended: now,
            tokens: Vec::new(),
            codec: String::new(),
            pause: Duration::ZERO,
            paused: now,
            pauses: Vec::new(),
            moves: Vec::new(),
            request: String::new(),
            returns: 0,
            reason: String::new(),
        };
        Self {
            client: client.clone(),
            key,
            body,
            last_event: None,
            last_token: None,
            asked: 0,
            asked_before: 0,
            seen,
            failed: None,
            done: false,
        }
    }

    /// Reads to the end, asking `gateway(n)` the n-th time.
    ///
    /// # Errors
    /// When it fails, or stands still for too long.
    pub async fn read(mut self, gateway: impl Fn(usize) -> String) -> Result<SeenStream, BadStream> {
        for n in 0.. {
            self.asked = n;
            if self.last_token.unwrap_or(self.seen.asked).elapsed() > PATIENCE {
                return Err(BadStream::Stands { key: self.key, tokens: self.seen.tokens.len() });
            }
            // A gateway that has gone, or that nobody serves yet: the next one may do.
            let asked = self.ask(&gateway(n)).await;
            if let Some(why) = self.failed.take() {
                return Err(BadStream::Failed { key: self.key, tokens: self.seen.tokens.len(), why });
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
        let request = self.client.post(format!("{http}/v1/completions"));
        let request = request.header("x-tsnode-trace", "1").header("x-tsnode-event-ids", "1");
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
            return;
        }
        self.rests_on(data["system_fingerprint"].as_str().unwrap_or_default());
        if let Some(trace) = data.get("tsnode") {
            self.seen.request = trace["request"].as_str().unwrap_or_default().to_owned();
            self.seen.reason = trace["reason"].as_str().unwrap_or_default().to_owned();
            let moves = trace["moves"].as_array().into_iter().flatten();
            self.seen.moves.extend(moves.filter_map(Moved::told));
        } else {
            let ids = data["choices"][0]["token_ids"].as_array().into_iter().flatten();
            self.seen.tokens.extend(ids.filter_map(Value::as_u64));
            self.came();
        }
    }

    /// The end of a fingerprint (`fp_…_int4`) says what the answer rests on, and stays the same.
    fn rests_on(&mut self, fingerprint: &str) {
        let Some((_, codec)) = fingerprint.rsplit_once('_') else { return };
        if !self.seen.codec.is_empty() && self.seen.codec != codec {
            self.failed = Some(format!("its KV went through {} first, and then through {codec}", self.seen.codec));
        }
        codec.clone_into(&mut self.seen.codec);
    }

    /// A token has come.
    fn came(&mut self) {
        let began = self.last_token.replace(Instant::now()).unwrap_or(self.seen.asked);
        let (lasted, last_asked) = (began.elapsed(), self.asked);
        let first_asked = std::mem::replace(&mut self.asked_before, last_asked);
        if lasted > self.seen.pause {
            (self.seen.pause, self.seen.paused) = (lasted, began);
        }
        if lasted >= TOLD {
            self.seen.pauses.push(Paused { began, lasted, first_asked, last_asked });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_became_of_an_answer_is_told() {
        let expected: Vec<u64> = (0..40).collect();
        let of = |parts: &[(u64, u64)]| {
            let found: Vec<u64> = parts.iter().flat_map(|(from, to)| *from..*to).collect();
            Difference::of(&found, &expected)
        };
        assert_eq!(of(&[(0, 40)]), None);
        let lost = [of(&[(0, 30)]), of(&[]), of(&[(0, 10), (11, 40)])];
        assert_eq!(lost, [Some(Difference::Lost); 3]);
        let repeated = [of(&[(0, 10), (9, 40)]), of(&[(0, 40), (39, 40)]), of(&[(0, 20), (0, 20)])];
        assert_eq!(repeated, [Some(Difference::Repeated); 3]);
        let changed = [of(&[(0, 10), (90, 120)]), of(&[(90, 130)]), of(&[(0, 39), (90, 91)])];
        assert_eq!(changed, [Some(Difference::Changed); 3]);
        assert_eq!(of(&[(0, 10), (90, 91), (11, 40)]), Some(Difference::Changed), "one other token in the middle");
    }

    fn reader() -> AnswerStream {
        AnswerStream::new(&plain_http(), "key".into(), json!({}))
    }

    fn said(fingerprint: &str, tokens: &[u64]) -> String {
        let body = json!({ "system_fingerprint": fingerprint, "choices": [{ "token_ids": tokens }] });
        format!("id: req-1:1\ndata: {body}\n\n")
    }

    #[test]
    fn an_answer_rests_on_what_its_fingerprint_says_from_first_to_last() {
        let mut reader = reader();
        reader.event(&said("fp_0011_int4", &[1, 2]));
        reader.event(&said("fp_0011_int4", &[3]));
        assert_eq!((reader.seen.codec.as_str(), &reader.seen.tokens[..]), ("int4", &[1, 2, 3][..]));
        assert_eq!(reader.failed, None);
        reader.event(&said("fp_0011_raw", &[4]));
        assert!(reader.failed.is_some_and(|why| why.contains("int4 first, and then through raw")));
    }

    #[test]
    fn a_pause_knows_how_often_its_client_asked_meanwhile() {
        let mut reader = reader();
        reader.came();
        assert_eq!(reader.seen.pauses, [], "a short one is not told");
        reader.asked = 3;
        reader.last_token = Instant::now().checked_sub(TOLD * 2);
        reader.came();
        let [Paused { lasted, first_asked, last_asked, .. }] = reader.seen.pauses[..] else { panic!("one pause") };
        assert!(lasted >= TOLD * 2);
        assert_eq!((first_asked, last_asked), (0, 3));
    }
}
