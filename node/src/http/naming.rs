//! What a request is called, and how far its client has read it: how a client whose gateway died goes on at another peer.
//!
//! Every event of a streamed answer has an id, for who asks for ids (`x-tsnode-event-ids`): the request's name and how
//! many tokens of each answer came with it and before, and what they rest on. With that any peer computes the same answer,
//! also where nobody has a response log of it. A client that asks again, at any peer, with the same body and the id of the
//! last event it got (`Last-Event-ID`, as in server-sent events) gets the events after it, with ids. One that has no such
//! id yet gives a name of its own (`Idempotency-Key`), and gets the same answer however often it asks.
//!
//! Not all get ids: many clients take a stream for lines that begin with `data: `, and stumble over any other.

use super::{ApiError, fingerprint};
use crate::gateway::SeenAnswer;
use axum::http::{HeaderMap, HeaderName};
use tsnode_protocol::RequestId;

pub(super) const KEY: HeaderName = HeaderName::from_static("idempotency-key");
pub(super) const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");
/// A request with this header (1) gets its events with their ids.
pub(super) const EVENT_IDS: HeaderName = HeaderName::from_static("x-tsnode-event-ids");
/// Longest name a client may give.
const KEY_BYTES: usize = 256;
/// Most answers an event's id counts.
const ANSWERS: usize = 128;

/// A request's name, and what its client has of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Naming {
    /// Of the first answer.
    pub request: RequestId,
    /// The client may have been served before.
    pub comes_back: bool,
    /// It reads events' ids.
    pub reads_ids: bool,
    /// What it has of each answer.
    seen: Vec<SeenAnswer>,
}

impl Naming {
    /// By the client's headers; without any the request gets a name that nobody knows yet. A key names a request only
    /// together with its body, so that nobody takes another's by choosing the same key.
    pub fn of(headers: &HeaderMap, body: &[u8]) -> Result<Self, ApiError> {
        let reads_ids = reads_ids(headers)?;
        if let Some(value) = headers.get(LAST_EVENT) {
            let id = value.to_str().ok().and_then(read);
            let (request, seen) = id.ok_or_else(|| {
                ApiError::param(
                    LAST_EVENT.as_str(),
                    "'Last-Event-ID' must be the id of an event of this request's stream",
                )
            })?;
            return Ok(Self { request, comes_back: true, reads_ids: true, seen });
        }
        let Some(key) = headers.get(KEY) else {
            let request = RequestId(crate::random_bytes());
            return Ok(Self { request, comes_back: false, reads_ids, seen: Vec::new() });
        };
        if key.is_empty() || key.len() > KEY_BYTES {
            let why = format!("'Idempotency-Key' must have from 1 to {KEY_BYTES} bytes");
            return Err(ApiError::param(KEY.as_str(), why));
        }
        let mut hasher = blake3::Hasher::new_derive_key("tsnode 2026 request name");
        hasher.update(&(key.len() as u64).to_le_bytes()).update(key.as_bytes()).update(body);
        Ok(Self { request: name(&hasher), comes_back: true, reads_ids, seen: Vec::new() })
    }

    /// The seed of a request that does not say one: whoever is asked for it again draws the same.
    pub fn seed(&self) -> u64 {
        let hash = blake3::derive_key("tsnode 2026 request seed", &self.request.0);
        u64::from_le_bytes(std::array::from_fn(|i| hash[i]))
    }

    /// The name of one of the request's answers.
    pub fn answer(&self, index: usize) -> RequestId {
        if index == 0 {
            return self.request;
        }
        let mut hasher = blake3::Hasher::new_derive_key("tsnode 2026 answer name");
        hasher.update(&self.request.0).update(&(index as u64).to_le_bytes());
        name(&hasher)
    }

    /// What the client has of an answer.
    pub fn seen(&self, index: usize) -> SeenAnswer {
        self.seen.get(index).copied().unwrap_or_default()
    }

    /// The id of an event after which the client has so much of each answer.
    pub fn event(&self, seen: impl Iterator<Item = SeenAnswer>) -> String {
        use std::fmt::Write;
        let mut id = self.request.to_string();
        for (n, SeenAnswer { tokens, codec }) in seen.enumerate() {
            // Writing to a string does not fail.
            let _ = write!(id, "{}{tokens}", if n == 0 { ':' } else { ',' });
            if let Some(codec) = codec {
                let _ = write!(id, "/{}", fingerprint::name(codec));
            }
        }
        id
    }
}

/// Whether the client says that it reads events' ids.
fn reads_ids(headers: &HeaderMap) -> Result<bool, ApiError> {
    match headers.get(EVENT_IDS).map(|value| value.as_bytes()) {
        None | Some(b"0") => Ok(false),
        Some(b"1") => Ok(true),
        Some(_) => Err(ApiError::param(EVENT_IDS.as_str(), format!("'{EVENT_IDS}' must be 1 or 0"))),
    }
}

fn name(hasher: &blake3::Hasher) -> RequestId {
    let hash = hasher.finalize();
    RequestId(std::array::from_fn(|i| hash.as_bytes()[i]))
}

fn read(id: &str) -> Option<(RequestId, Vec<SeenAnswer>)> {
    let (request, answers) = id.split_once(':')?;
    if answers.split(',').count() > ANSWERS {
        return None;
    }
    Some((request.parse().ok()?, answers.split(',').map(seen).collect::<Option<_>>()?))
}

fn seen(answer: &str) -> Option<SeenAnswer> {
    let (tokens, codec) = answer.split_once('/').map_or((answer, None), |(tokens, codec)| (tokens, Some(codec)));
    let codec = match codec {
        Some(name) => Some(fingerprint::read(name)?),
        None => None,
    };
    Some(SeenAnswer { tokens: tokens.parse().ok()?, codec })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_protocol::{KvCodec, PromptCodec};

    fn of(headers: &[(HeaderName, &str)], body: &[u8]) -> Result<Naming, ApiError> {
        let headers = headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect();
        Naming::of(&headers, body)
    }

    #[test]
    fn a_key_names_a_request_with_its_body() {
        let (one, other) = (of(&[(KEY, "a")], b"x").unwrap(), of(&[(KEY, "a")], b"y").unwrap());
        assert!(one.comes_back && one == of(&[(KEY, "a")], b"x").unwrap());
        assert_ne!(one.request, other.request);
        assert_ne!(one.seed(), other.seed());
        assert_ne!(one.answer(1), one.answer(0));
        let nameless = of(&[], b"x").unwrap();
        assert!(!nameless.comes_back && nameless != of(&[], b"x").unwrap());
        assert!(of(&[(KEY, "")], b"x").is_err() && of(&[(KEY, &"k".repeat(257))], b"x").is_err());
    }

    #[test]
    fn ids_are_for_who_asks_for_them_and_who_comes_back_with_one() {
        let last = of(&[], b"x").unwrap().event([SeenAnswer { tokens: 2, codec: None }].into_iter());
        let reads = |name, value: &str| of(&[(name, value)], b"x").unwrap().reads_ids;
        assert!(reads(EVENT_IDS, "1") && reads(LAST_EVENT, &last));
        assert!(!reads(EVENT_IDS, "0") && !reads(KEY, "a") && !of(&[], b"x").unwrap().reads_ids);
        assert!(of(&[(EVENT_IDS, "yes")], b"x").is_err());
    }

    #[test]
    fn an_events_id_says_all_that_is_needed() {
        let asked = of(&[(KEY, "a")], b"x").unwrap();
        let parted = PromptCodec::of_first(KvCodec::Int4, 128, 300);
        let all = [(12, Some(parted)), (0, None), (3, Some(KvCodec::Raw.into()))]
            .map(|(tokens, codec)| SeenAnswer { tokens, codec });
        let back = of(&[(LAST_EVENT, &asked.event(all.into_iter()))], b"x").unwrap();
        assert_eq!((back.request, [0, 1, 2].map(|n| back.seen(n))), (asked.request, all));
        assert_eq!(back.seen(3), SeenAnswer::default());
        assert_eq!(back.seed(), asked.seed());
        let of_it = |answers: &str| format!("{}:{answers}", asked.request);
        for wrong in [
            "",
            "12",
            "req-00:1",
            &of_it("x"),
            &of_it(""),
            &of_it("1/int2"),
            &of_it("1/int4@65"),
            &of_it("1/int4@"),
            &of_it("/raw"),
        ] {
            assert!(of(&[(LAST_EVENT, wrong)], b"x").is_err(), "{wrong}");
        }
        assert!(of(&[(LAST_EVENT, &asked.event([SeenAnswer::default(); 129].into_iter()))], b"x").is_err());
    }
}
