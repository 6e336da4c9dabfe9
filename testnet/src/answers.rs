//! What an undisturbed swarm answers, by the kind of request and by what the prompt's KV went through.
//!
//! One peer alone is asked for each, with the packing fixed in the request: nothing is sent, nothing falls back, and no answer can be
//! taken for another's. An answer that a run brings and nobody asked for before is asked for then.

use crate::{
    PeerConfig, Testnet, TestnetConfig, TestnetError,
    client::{AnswerStream, BadStream, Difference, SeenStream, same},
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Different requests, every other one greedy.
pub(crate) const KINDS: usize = 8;
/// Tokens of an answer.
const TOKENS: usize = 160;
const PROMPT: &str = "It was a dark and windy night, and the old house";
/// What a swarm is not told that is to answer by itself, undisturbed: who computes what, and what is sent how.
const OF_MANY: [&str; 4] = ["--layout", "--split", "--kv-codec", "--fixed-kv"];

/// The request of that number, from 0 to [`KINDS`].
pub(crate) fn body(request: usize) -> Value {
    let prompt = format!("{PROMPT} {}", "and the wind blew ".repeat(request * 4));
    let temperature = if request.is_multiple_of(2) { 0.0 } else { 0.9 };
    json!({ "prompt": prompt, "max_tokens": TOKENS, "seed": request, "ignore_eos": true, "temperature": temperature })
}

/// What an answer's tokens follow from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AnswerKind {
    /// The number of the request.
    pub request: usize,
    /// What its prompt's KV goes through.
    pub codec: String,
}

/// What undisturbed swarms answer.
#[derive(Clone, Debug)]
pub struct Answers {
    undisturbed: TestnetConfig,
    known: BTreeMap<AnswerKind, Vec<u64>>,
}

impl Answers {
    /// Asks one peer of such as `config` has, alone, for what these are likely to be asked for.
    ///
    /// # Errors
    /// When it is not up in time, or answers wrongly.
    pub async fn learn(config: &TestnetConfig) -> Result<Self, TestnetError> {
        let mut answers = Self { undisturbed: alone(config), known: BTreeMap::new() };
        let codecs = likely(&config.flags);
        let of =
            |codec: &String| (0..KINDS).map(|request| AnswerKind { request, codec: codec.clone() }).collect::<Vec<_>>();
        answers.ask(&codecs.iter().flat_map(of).collect()).await?;
        Ok(answers)
    }

    /// Asks for those of these kinds that are not known yet.
    ///
    /// # Errors
    /// As [`Answers::learn`].
    pub(crate) async fn ask(&mut self, kinds: &BTreeSet<AnswerKind>) -> Result<(), TestnetError> {
        let missing: Vec<&AnswerKind> = kinds.iter().filter(|kind| !self.known.contains_key(kind)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let net = Testnet::up(&self.undisturbed).await?;
        let http = net.peers()[0].http.clone();
        let mut asked = Ok(());
        for kind in missing {
            match one(&http, kind).await {
                Ok(tokens) => drop(self.known.insert(kind.clone(), tokens)),
                Err(wrong) => {
                    asked = Err(TestnetError::Wrong(wrong));
                    break;
                }
            }
        }
        net.down().await?;
        // Logs of a run that ended well are of no use.
        if asked.is_ok() {
            let _ = std::fs::remove_dir_all(&self.undisturbed.folder);
        }
        asked
    }

    /// An answer to that request, held against what it should be. Those of its kind must be known.
    pub(crate) fn check(&self, key: String, request: usize, seen: SeenStream) -> Result<SeenStream, BadStream> {
        let kind = AnswerKind { request, codec: seen.codec.clone() };
        let Some(expected) = self.known.get(&kind) else {
            let why = format!("nothing is known of what its KV went through ({:?})", kind.codec);
            return Err(BadStream::Failed { key, tokens: seen.tokens.len(), why });
        };
        let Some(how) = Difference::of(&seen.tokens, expected) else { return Ok(seen) };
        let (found, expected, same) = (seen.tokens.len(), expected.len(), same(&seen.tokens, expected));
        let SeenStream { moves, returns, codec, .. } = seen;
        Err(BadStream::Tokens { key, how, codec, found, same, expected, moves, returns })
    }
}

/// One such peer.
fn alone(config: &TestnetConfig) -> TestnetConfig {
    let host = config.peers.iter().find(|p| matches!(p, PeerConfig::Host { .. })).cloned();
    let host = host.unwrap_or_else(|| PeerConfig::Host { flags: vec!["--threads".into(), "1".into()] });
    let mut said = config.flags.iter();
    let mut flags = Vec::new();
    while let Some(flag) = said.next() {
        if OF_MANY.contains(&flag.as_str()) {
            said.next();
        } else {
            flags.push(flag.clone());
        }
    }
    let folder = config.folder.join("undisturbed");
    let (link_mbit, link_ms, http_port) = (None, None, None);
    TestnetConfig {
        executable: config.executable.clone(),
        folder,
        peers: vec![host],
        link_mbit,
        link_ms,
        http_port,
        flags,
    }
}

/// What peers with these flags send KV as, and what they leave it as.
fn likely(flags: &[String]) -> BTreeSet<String> {
    let told = |flag: &str| flags.iter().skip_while(|f| *f != flag).nth(1).cloned();
    if let Some(fixed) = told("--fixed-kv") {
        return [fixed].into();
    }
    let sent = told("--kv-codec").filter(|codec| codec != "auto").unwrap_or_else(|| "int4".into());
    ["raw".to_owned(), sent].into()
}

/// The answer of a peer that is alone.
async fn one(http: &str, kind: &AnswerKind) -> Result<Vec<u64>, BadStream> {
    let mut body = body(kind.request);
    body["kv_codec"] = json!(kind.codec);
    let key = format!("undisturbed request {} by {}", kind.request, kind.codec);
    let reader = AnswerStream::new(&crate::client::plain_http(), key.clone(), body);
    let seen = reader.read(|_| http.to_owned()).await?;
    if seen.codec != kind.codec {
        let why = format!("its KV went through {:?} instead", seen.codec);
        return Err(BadStream::Failed { key, tokens: seen.tokens.len(), why });
    }
    Ok(seen.tokens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn config(flags: &[&str]) -> TestnetConfig {
        TestnetConfig {
            executable: "/nowhere/tsnode".into(),
            folder: "/nowhere".into(),
            peers: PeerConfig::alike(2, 2, &[]),
            link_mbit: Some(10.0),
            link_ms: None,
            http_port: Some(7448),
            flags: flags.iter().map(|f| (*f).to_owned()).collect(),
        }
    }

    fn seen(codec: &str, tokens: &[u64]) -> SeenStream {
        let now = Instant::now();
        SeenStream {
            asked: now,
            ended: now,
            tokens: tokens.to_vec(),
            codec: codec.into(),
            pause: Duration::ZERO,
            paused: now,
            pauses: vec![],
            moves: vec![],
            request: String::new(),
            returns: 0,
            reason: String::new(),
        }
    }

    /// Answers 0, 1, 2 … by what they should be: each request has tokens of its own, and others by each codec.
    fn answers() -> Answers {
        let kinds = (0..KINDS).flat_map(|request| ["raw", "int4"].map(|codec| (request, codec)));
        let tokens = |request: usize, codec: &str| vec![request as u64, codec.len() as u64, 7, 8, 9];
        let known = kinds.map(|(request, codec)| (AnswerKind { request, codec: codec.into() }, tokens(request, codec)));
        Answers { undisturbed: alone(&config(&[])), known: known.collect() }
    }

    /// One request fell back to another codec, and then all went on as before: nobody's answer is taken for another's.
    #[test]
    fn an_answer_is_held_against_its_own_kind_whatever_codecs_others_had() {
        let answers = answers();
        for (request, codec) in (0..KINDS).map(|request| (request, if request == 2 { "raw" } else { "int4" })) {
            let tokens = [request as u64, codec.len() as u64, 7, 8, 9];
            assert!(answers.check("key".into(), request, seen(codec, &tokens)).is_ok(), "{request}");
        }
        let wrong = answers.check("key".into(), 3, seen("int4", &[2, 4, 7, 8, 9])).unwrap_err();
        assert_eq!(wrong.difference(), Difference::Changed);
        let wrong = answers.check("key".into(), 3, seen("int4", &[3, 4, 7])).unwrap_err();
        assert_eq!(wrong.difference(), Difference::Lost);
        // What nothing is known of is not taken for right, nor held against anything else.
        let wrong = answers.check("key".into(), 3, seen("int8", &[3, 4, 7, 8, 9])).unwrap_err();
        assert!(wrong.to_string().contains("nothing is known"), "{wrong}");
    }

    #[test]
    fn who_is_asked_undisturbed_is_alone_and_computes_as_they_do() {
        let told = ["--split", "always", "--log", "info", "--kv-codec", "int8", "--layout", "prefill=1,decode=1"];
        let all = [&told[..], &["--kv-dtype", "bf16"]].concat();
        let alone = alone(&config(&all));
        assert_eq!(alone.flags, ["--log", "info", "--kv-dtype", "bf16"]);
        assert_eq!((alone.peers.len(), alone.http_port, alone.link_mbit), (1, None, None));
        let flags = |flags: &[&str]| likely(&config(flags).flags).into_iter().collect::<Vec<_>>();
        assert_eq!(flags(&told), ["int8", "raw"]);
        assert_eq!(flags(&[]), ["int4", "raw"]);
        assert_eq!(flags(&["--kv-codec", "auto"]), ["int4", "raw"]);
        assert_eq!(flags(&["--fixed-kv", "int3"]), ["int3"]);
    }
}
