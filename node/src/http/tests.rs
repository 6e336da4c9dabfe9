//! What clients see: real requests over a socket, a scripted gateway behind it.

mod apis;
mod bodies;
mod metrics;
mod sites;
mod slow;
mod structured;
mod tolerance;
mod tools;

use super::{ApiState, Controls, Gatekeeper, Texts, serve};
use crate::data_plane::doors::Doors;
use crate::{
    control_plane::owner::OwnerHandle,
    data_plane::{
        measure::Measurer,
        models::{ModelFiles, ModelLibrary},
    },
    gateway::{Accepted, Gateway, Prompt, Reply, Submission, SubmitError},
    store::{
        Store,
        keys::{KeyRing, Scope, add},
        local::{self, LocalToken},
    },
    text::{Templates, TextModel},
    view::{PeerView, Readiness, SwarmView},
};
use reqwest::Response;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tsnode_coordinator::{
    gate::Overrule,
    planner::live::{Lack, Shortfall},
    waiting::NotReady,
};
use tsnode_kernels::source::ModelSource;
use tsnode_protocol::{
    Advert, BytesPerSecond, Device, DeviceKind, FlopsPerSecond, Gpus, KvCodec, Load, ModelCard, ModelId, PeerId,
    PromptLogprob, RequestId, Sampled, Token, kv::KvPace, sampling::TokenLogprob, stream::End,
};

/// What the gateway does with a request.
pub(super) enum Part {
    /// Every token of this text, with one alternative each, then the end.
    Say(&'static str, End),
    /// These tokens, with an alternative each, then the end.
    Write(Vec<Token>),
    /// The text's tokens, and then the channel closes without a word.
    BreakOff(&'static str),
    /// The first token, then nothing.
    Hang,
    /// Nobody takes it.
    Refuse,
}

pub(super) struct Api {
    url: String,
    client: reqwest::Client,
    view: watch::Sender<SwarmView>,
    /// Whether a client asked before there was a plan.
    waits: watch::Receiver<bool>,
    /// What the gateway was asked for.
    asked: Arc<Mutex<Vec<Prompt>>>,
    /// Requests dropped by the HTTP side before their end.
    dropped: mpsc::Receiver<()>,
    stop: CancellationToken,
}

impl Drop for Api {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn files() -> ModelFiles {
    let source = ModelSource::embedded().unwrap();
    let card = source.card().clone();
    let read = |name: &String| (name.clone(), source.file(name).unwrap().to_vec());
    let files: BTreeMap<_, _> = card.files.iter().map(|f| read(&f.name)).collect();
    ModelFiles { card, files: Arc::new(files) }
}

fn view(models: Vec<ModelCard>) -> SwarmView {
    SwarmView { models, ..crate::view::tests::view() }
}

/// Asks for a key, if one is given, and lets each do so many requests a minute.
fn keys(key: Option<&str>, per_minute: Option<u32>) -> Gatekeeper {
    let folder = tempfile::tempdir().unwrap();
    Gatekeeper::new(KeyRing::open(folder.path(), key).unwrap(), per_minute)
}

impl Api {
    pub(super) async fn up(part: Part) -> Self {
        Self::with(part, keys(None, None)).await
    }

    async fn with(part: Part, gatekeeper: Gatekeeper) -> Self {
        Self::of(files(), part, gatekeeper).await
    }

    async fn of(files: ModelFiles, part: Part, gatekeeper: Gatekeeper) -> Self {
        let (view, watched) = watch::channel(view(vec![files.card.clone()]));
        let (gateway, submissions) = Gateway::channel();
        let (library, mut queries) = ModelLibrary::channel();
        let texts = Texts::new(library, Templates::Here);
        let text = TextModel::new(&files, &Templates::Here).unwrap();
        crate::tasks::spawn("test", async move {
            while let Some(query) = queries.recv().await {
                drop(query.answer.send(Ok(files.clone())));
            }
        });
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (drops, dropped) = mpsc::channel(64);
        crate::tasks::spawn("test", play(part, text, submissions, asked.clone(), drops));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let stop = CancellationToken::new();
        let owner = OwnerHandle::new(watch::Sender::new(false), CancellationToken::new());
        let (measurer, _) = Measurer::channel();
        let (wanted, waits) = watch::channel(false);
        let controls = Controls { owner, measurer, faults: None, asked: wanted };
        let state = ApiState::new(gateway, texts, watched, controls, gatekeeper);
        crate::tasks::spawn("test", serve(listener, Doors::default().http, state, stop.clone()));
        let client = reqwest::Client::builder().timeout(Duration::from_secs(20)).build().unwrap();
        Self { url, client, view, waits, asked, dropped, stop }
    }

    async fn send(&self, path: &str, body: &Value) -> Response {
        self.client.post(format!("{}{path}", self.url)).json(body).send().await.unwrap()
    }

    pub(super) async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        let response = self.send(path, &body).await;
        (response.status().as_u16(), response.json().await.unwrap())
    }

    pub(super) async fn get(&self, path: &str) -> Response {
        self.client.get(format!("{}{path}", self.url)).send().await.unwrap()
    }

    /// The data of all events of a streamed answer.
    async fn stream(&self, path: &str, body: Value) -> Vec<String> {
        let text = self.send(path, &body).await.text().await.unwrap();
        text.lines().filter_map(|l| l.strip_prefix("data: ")).map(str::to_owned).collect()
    }

    fn last_asked(&self) -> Prompt {
        self.asked.lock().unwrap().last().unwrap().clone()
    }
}

/// The gateway's part.
async fn play(
    part: Part,
    text: TextModel,
    mut submissions: mpsc::Receiver<Submission>,
    asked: Arc<Mutex<Vec<Prompt>>>,
    drops: mpsc::Sender<()>,
) {
    // Requests that hang end with the test.
    let mut hanging = JoinSet::new();
    while let Some(Submission { prompt, answer }) = submissions.recv().await {
        let (replies, reader) = mpsc::channel(256);
        if prompt.generation.sampling.prompt_logprobs.is_some() {
            replies.send(of_prompt(&prompt.prompt)).await.unwrap();
        }
        asked.lock().unwrap().push(prompt);
        let accepted = Accepted { prefill: PeerId([3; 32]), decode: PeerId([4; 32]), replies: reader };
        let (tokens, end) = match &part {
            Part::Refuse => {
                let reason = "no group".to_owned();
                let refusal = SubmitError::Unserved { reason, retry_after: Duration::from_secs(3) };
                drop(answer.send(Err(refusal)));
                continue;
            }
            Part::Hang => {
                replies.send(token(&text, 0, Token(300))).await.unwrap();
                drop(answer.send(Ok(accepted)));
                let drops = drops.clone();
                hanging.spawn(async move {
                    replies.closed().await;
                    drops.send(()).await.unwrap();
                });
                continue;
            }
            Part::Say(said, end) => (in_tokens(&text, said), Some(end.clone())),
            Part::Write(tokens) => (tokens.clone(), Some(End::Stop)),
            Part::BreakOff(said) => (in_tokens(&text, said), None),
        };
        replies.send(Reply::Settled(KvCodec::Int4)).await.unwrap();
        for (index, one) in tokens.into_iter().enumerate() {
            replies.send(token(&text, index as u32, one)).await.unwrap();
        }
        if let Some(end) = end {
            replies.send(Reply::End(end)).await.unwrap();
        }
        drop(answer.send(Ok(accepted)));
    }
}

/// The prompt's tokens grow unlikelier one by one.
fn of_prompt(prompt: &[Token]) -> Reply {
    let one = |n: usize| PromptLogprob { logprob: -(n as f32), rank: 2, top: Vec::new() };
    Reply::PromptLogprobs((1..prompt.len()).map(one).collect())
}

/// The tokenizer puts a first token in front of every text.
fn in_tokens(text: &TextModel, said: &str) -> Vec<Token> {
    text.encode(said).unwrap().split_off(1)
}

fn token(text: &TextModel, index: u32, token: Token) -> Reply {
    assert!(token.0 < text.card().shape.vocab);
    let top = vec![TokenLogprob { token, logprob: -0.5 }];
    Reply::Token { index, sampled: Sampled { token, logprob: Some(-0.5), top } }
}

pub(super) const CHAT: &str = "/v1/chat/completions";
pub(super) const TEXT: &str = "/v1/completions";

pub(super) fn hello() -> Value {
    json!([{ "role": "user", "content": "Hello" }])
}

pub(super) fn said(end: End) -> Part {
    Part::Say("The wind was in the house.", end)
}

#[tokio::test]
async fn a_whole_answer_has_text_usage_and_names_its_peers() {
    let api = Api::up(said(End::Length)).await;
    let response = api.send(TEXT, &json!({ "prompt": "It was", "max_tokens": 9, "return_token_ids": true })).await;
    for name in ["x-request-id", "x-tsnode-prefill", "x-tsnode-decode"] {
        assert!(!response.headers()[name].is_empty(), "{name}");
    }
    let answer: Value = response.json().await.unwrap();
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], "The wind was in the house.");
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(answer["object"], "text_completion");
    let (prompt, ids) = (choice["prompt_token_ids"].as_array().unwrap(), choice["token_ids"].as_array().unwrap());
    assert_eq!(answer["usage"]["prompt_tokens"], prompt.len());
    assert_eq!(answer["usage"]["completion_tokens"], ids.len());
    assert_eq!(answer["usage"]["total_tokens"], prompt.len() + ids.len());
    assert_eq!(api.last_asked().generation.max_new_tokens, 9);
}

#[tokio::test]
async fn a_header_says_where_a_prompt_is_computed() {
    let api = Api::up(said(End::Length)).await;
    let asked = async |way: &'static str| {
        let request = api.client.post(format!("{}{TEXT}", api.url)).header("x-tsnode-kv", way);
        request.json(&json!({ "prompt": "It was", "max_tokens": 9 })).send().await.unwrap().status().as_u16()
    };
    let ways = [
        ("in-place", Overrule::InPlace),
        ("sent", Overrule::Sent(None)),
        ("layers", Overrule::Sent(Some(KvPace::Layers))),
        ("whole", Overrule::Sent(Some(KvPace::Whole))),
    ];
    for (way, overrule) in ways {
        assert_eq!((asked(way).await, api.last_asked().overrule), (200, Some(overrule)));
    }
    assert_eq!(asked("sideways").await, 400);
    api.send(TEXT, &json!({ "prompt": "It was" })).await;
    assert_eq!(api.last_asked().overrule, None);
}

/// Of both kinds of completion, whole, streamed and of several answers, with what closes a stream.
#[tokio::test]
async fn every_answer_names_what_its_kv_went_through() {
    let api = Api::up(said(End::Length)).await;
    let id = files().card.id;
    let fingerprint = json!(format!("fp_{}_int4", data_encoding::HEXLOWER.encode(&id.0[..6])));
    let asked = [(TEXT, json!({ "prompt": "x" })), (CHAT, json!({ "messages": hello() }))];
    for (path, mut body) in asked {
        body["n"] = json!(2);
        let (status, answer) = api.post(path, body.clone()).await;
        assert_eq!((status, &answer["system_fingerprint"]), (200, &fingerprint), "{path}");
        (body["stream"], body["stream_options"]) = (json!(true), json!({ "include_usage": true }));
        let events = api.stream(path, body).await;
        let parts = events[..events.len() - 1].iter().map(|e| serde_json::from_str::<Value>(e).unwrap());
        let parts: Vec<Value> = parts.collect();
        assert!(parts.len() > 4 && parts.iter().all(|p| p["system_fingerprint"] == fingerprint), "{parts:?}");
    }
}

#[tokio::test]
async fn a_request_fixes_what_its_kv_goes_through_by_a_name_that_there_is() {
    let api = Api::up(said(End::Length)).await;
    let asked = [(TEXT, json!({ "prompt": "x" })), (CHAT, json!({ "messages": hello() }))];
    for (path, body) in asked {
        let with = |codec: Value| json!({ "kv_codec": codec }).as_object().unwrap().clone();
        let of = |codec: Value| {
            let mut body = body.clone();
            body.as_object_mut().unwrap().extend(with(codec));
            body
        };
        let names = [("raw", KvCodec::Raw), ("int3", KvCodec::Int3), ("int4", KvCodec::Int4), ("int8", KvCodec::Int8)];
        for (name, codec) in names {
            assert_eq!(api.post(path, of(json!(name))).await.0, 200);
            assert_eq!(api.last_asked().codec, Some(codec));
        }
        for unsaid in [body.clone(), of(Value::Null)] {
            assert_eq!(api.post(path, unsaid).await.0, 200);
            assert_eq!(api.last_asked().codec, None);
        }
        for wrong in [json!("int5"), json!("auto"), json!(""), json!(4), json!(["raw"])] {
            let (status, refused) = api.post(path, of(wrong.clone())).await;
            assert_eq!((status, &refused["error"]["param"]), (400, &json!("kv_codec")), "{wrong}: {refused}");
        }
        let (_, refused) = api.post(path, of(json!("int5"))).await;
        assert_eq!(refused["error"]["message"], "'kv_codec' must be one of raw, int3, int4, int8");
    }
    // Three bits are not built for cards: whoever asks for them there must not break a group's ring.
    api.view.send_modify(|view| view.peers.push(with_a_card()));
    assert_eq!(api.post(TEXT, json!({ "prompt": "x", "kv_codec": "int3" })).await.0, 400);
    assert_eq!(api.post(TEXT, json!({ "prompt": "x", "kv_codec": "int4" })).await.0, 200);
}

/// A peer that lends a graphics card.
fn with_a_card() -> PeerView {
    let cards = Gpus {
        first: 0,
        count: 1,
        capability: (9, 0),
        driver: None,
        power_limit_mw: None,
        clocks_mhz: None,
        pcie: None,
        up: BytesPerSecond(1e10),
        down: BytesPerSecond(1e10),
    };
    let card = Device {
        kind: DeviceKind::Cuda(cards),
        name: "card".into(),
        memory_bytes: 1 << 30,
        kv_bytes: 1 << 28,
        flops: FlopsPerSecond(1e13),
        bandwidth: BytesPerSecond(1e12),
        profile: None,
    };
    let advert = Advert {
        name: "peer".into(),
        version: "0".into(),
        addresses: vec![],
        data_addresses: vec![],
        devices: vec![card],
        models: vec![],
        links: vec![],
        reachable: true,
        encoders: vec![],
        invites: vec![],
        traffic: vec![],
    };
    let (id, load) = (PeerId([9; 32]), Load::default());
    PeerView { id, advert, load, groups: vec![], silent_for: 0.0, plan: None, leaving: false }
}

#[tokio::test]
async fn who_comes_back_goes_on_with_the_packing_that_the_answer_began_with() {
    let api = Api::up(said(End::Length)).await;
    let back = async |codec: &str| {
        let request = api.client.post(format!("{}{TEXT}", api.url));
        let request = request.header("last-event-id", format!("{}:2/int4", RequestId([7; 16])));
        let body = json!({ "prompt": "x", "stream": true, "kv_codec": codec });
        request.json(&body).send().await.unwrap().status().as_u16()
    };
    assert_eq!([back("int4").await, back("raw").await], [200, 400]);
}

#[tokio::test]
async fn a_streamed_chat_says_who_speaks_ends_with_done_and_adds_up() {
    let api = Api::up(said(End::Stop)).await;
    let body = json!({ "messages": hello(), "stream": true, "stream_options": { "include_usage": true } });
    let events = api.stream(CHAT, body).await;
    assert_eq!(events.last().unwrap(), "[DONE]");
    let parts: Vec<Value> = events[..events.len() - 1].iter().map(|e| serde_json::from_str(e).unwrap()).collect();
    assert_eq!(parts[0]["choices"][0]["delta"]["role"], "assistant");
    assert!(parts.iter().all(|p| p["object"] == "chat.completion.chunk" && p["id"] == parts[0]["id"]));
    let (usage, parts) = parts.split_last().unwrap();
    assert!(usage["usage"]["completion_tokens"].as_u64() > Some(3) && usage["choices"] == json!([]), "{usage}");
    let text: String = parts.iter().filter_map(|p| p["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, "The wind was in the house.");
    let finishes: Vec<&Value> = parts.iter().map(|p| &p["choices"][0]["finish_reason"]).collect();
    assert_eq!(finishes.iter().filter(|f| **f == "stop").count(), 1);
    assert_eq!(*finishes.last().unwrap(), "stop");
}

#[tokio::test]
async fn a_stop_string_ends_the_answer_before_it_streamed_or_not() {
    let api = Api::up(said(End::Length)).await;
    for stop in [json!(" in the"), json!(["nowhere", " in the"])] {
        let (status, answer) = api.post(TEXT, json!({ "prompt": "x", "stop": stop })).await;
        assert_eq!((status, &answer["choices"][0]["text"]), (200, &json!("The wind was")));
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        let events = api.stream(TEXT, json!({ "prompt": "x", "stop": stop, "stream": true })).await;
        let parts = events[..events.len() - 1].iter().map(|e| serde_json::from_str::<Value>(e).unwrap());
        let text: String = parts.map(|p| p["choices"][0]["text"].as_str().unwrap().to_owned()).collect();
        assert_eq!(text, "The wind was");
    }
}

#[tokio::test]
async fn several_answers_come_numbered_with_seeds_of_their_own() {
    let api = Api::up(said(End::Length)).await;
    let (_, answer) = api.post(TEXT, json!({ "prompt": ["a", "b"], "n": 2, "seed": 7 })).await;
    let indices: Vec<u64> =
        answer["choices"].as_array().unwrap().iter().map(|c| c["index"].as_u64().unwrap()).collect();
    assert_eq!(indices, [0, 1, 2, 3]);
    let seeds: Vec<u64> = api.asked.lock().unwrap().iter().map(|p| p.generation.sampling.seed).collect();
    assert_eq!((seeds[0], seeds[2], seeds[1]), (7, 7, seeds[3]), "a prompt has the answers that it has alone");
    assert!(![7, 8].contains(&seeds[1]), "and none of the next seed's");
    let prompt = api.asked.lock().unwrap()[0].prompt.len();
    assert_eq!(answer["usage"]["prompt_tokens"], 2 * prompt, "a prompt counts once, however many answers it has");
    let events = api.stream(CHAT, json!({ "messages": hello(), "n": 3, "stream": true })).await;
    let finished = events[..events.len() - 1].iter().map(|e| serde_json::from_str::<Value>(e).unwrap());
    let mut finished: Vec<u64> = finished
        .filter(|p| !p["choices"][0]["finish_reason"].is_null())
        .map(|p| p["choices"][0]["index"].as_u64().unwrap())
        .collect();
    finished.sort_unstable();
    assert_eq!(finished, [0, 1, 2]);
}

/// Who says no seed wants draws, also of equal prompts; who asks again by the same name gets the same ones.
#[tokio::test]
async fn equal_prompts_of_one_list_draw_each_for_itself() {
    let api = Api::up(said(End::Length)).await;
    let asked = async || {
        let request = api.client.post(format!("{}{TEXT}", api.url)).header("idempotency-key", "mine");
        request.json(&json!({ "prompt": ["a", "a", "a", "a"], "n": 2 })).send().await.unwrap();
        api.asked.lock().unwrap().drain(..).map(|p| p.generation.sampling.seed).collect::<Vec<_>>()
    };
    let (seeds, again) = (asked().await, asked().await);
    let different: std::collections::BTreeSet<u64> = seeds.iter().copied().collect();
    assert_eq!((seeds.len(), different.len()), (8, 8), "{seeds:?}");
    assert_eq!(seeds, again);
}

#[tokio::test]
async fn logprobs_come_in_either_form() {
    let api = Api::up(said(End::Length)).await;
    let (_, chat) = api.post(CHAT, json!({ "messages": hello(), "logprobs": true, "top_logprobs": 1 })).await;
    let content = &chat["choices"][0]["logprobs"]["content"];
    assert_eq!(content[0]["logprob"], -0.5);
    assert_eq!(content[0]["top_logprobs"][0]["token"], content[0]["token"]);
    let (_, text) = api.post(TEXT, json!({ "prompt": "x", "logprobs": 1 })).await;
    let columns = &text["choices"][0]["logprobs"];
    let tokens: Vec<&str> = columns["tokens"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    assert_eq!(tokens.concat(), "The wind was in the house.");
    assert_eq!(columns["text_offset"][1], tokens[0].len());
    // However few are asked for, the chosen one is among them.
    for asked in [0, 3] {
        let (_, text) = api.post(TEXT, json!({ "prompt": "x", "logprobs": asked })).await;
        let columns = &text["choices"][0]["logprobs"];
        for (token, top) in tokens.iter().zip(columns["top_logprobs"].as_array().unwrap()) {
            assert_eq!(top[token], -0.5, "{columns}");
        }
    }
    let (_, text) = api.post(TEXT, json!({ "prompt": "x", "logprobs": 1 })).await;
    assert_eq!(text["choices"][0]["logprobs"]["tokens"], json!(tokens));
    assert_eq!(api.last_asked().generation.sampling.logprobs, Some(1));
}

/// A model whose tokenizer spells characters of many bytes in byte tokens, and the tokens of "hello가나다라 end".
fn with_byte_tokens() -> (ModelFiles, Vec<Token>) {
    let mut files = files();
    let tokenizer = include_bytes!("../text/byte_tokens.json");
    files.files = Arc::new([("tokenizer.json".to_owned(), tokenizer.to_vec())].into());
    files.card.shape.vocab = 264;
    let vocab: Value = serde_json::from_slice(tokenizer).unwrap();
    let id = |token: &str| Token(vocab["model"]["vocab"][token].as_u64().unwrap() as u32);
    let bytes = "가나다라".bytes().map(|byte| id(&format!("<0x{byte:02X}>")));
    let tokens = [id("▁hello")].into_iter().chain(bytes).chain([id("▁end")]).collect();
    (files, tokens)
}

#[tokio::test]
async fn characters_of_byte_tokens_reach_the_client_whole() {
    let (files, tokens) = with_byte_tokens();
    let count = tokens.len();
    let api = Api::of(files, Part::Write(tokens), keys(None, None)).await;
    let ask = |more: Value| {
        let mut body = json!({ "prompt": [1, 261], "logprobs": 1 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for (stop, said) in [(json!([]), "hello가나다라 end"), (json!(["다라 e"]), "hello가나")] {
        let (status, answer) = api.post(TEXT, ask(json!({ "stop": stop }))).await;
        assert_eq!((status, &answer["choices"][0]["text"]), (200, &json!(said)), "{answer}");
        let events = api.stream(TEXT, ask(json!({ "stop": stop, "stream": true }))).await;
        let parts = events[..events.len() - 1].iter().map(|e| serde_json::from_str::<Value>(e).unwrap());
        let text: String = parts.map(|p| p["choices"][0]["text"].as_str().unwrap().to_owned()).collect();
        assert_eq!(text, said);
    }
    // Offsets are where characters begin.
    let (_, answer) = api.post(TEXT, ask(json!({}))).await;
    let offsets = &answer["choices"][0]["logprobs"]["text_offset"];
    assert_eq!(*offsets, json!([0, 5, 5, 5, 6, 6, 6, 7, 7, 7, 8, 8, 8, 9]));
    assert_eq!(answer["choices"][0]["logprobs"]["tokens"][count - 1], " end");
    // The answer goes on where the prompt ends.
    let (_, answer) = api.post(TEXT, json!({ "prompt": [1, 261], "echo": true })).await;
    assert_eq!(answer["choices"][0]["text"], "the hello가나다라 end");
}

#[tokio::test]
async fn a_token_beyond_the_model_is_refused_where_the_tokenizer_has_it() {
    let (mut files, tokens) = with_byte_tokens();
    files.card.shape.vocab = 262;
    let api = Api::of(files, Part::Write(tokens[..4].to_vec()), keys(None, None)).await;
    let (status, answer) = api.post(TEXT, json!({ "prompt": [1, 262] })).await;
    assert_eq!(status, 400, "{answer}");
    assert_eq!(answer["error"]["message"], "token id 262 is outside the vocabulary of 262");
    let (status, answer) = api.post(TEXT, json!({ "prompt": "." })).await;
    assert!(status == 400 && answer["error"]["message"].as_str().unwrap().contains("token 263"), "{answer}");
    let (status, answer) = api.post(TEXT, json!({ "prompt": [1, 261] })).await;
    assert_eq!((status, &answer["choices"][0]["text"]), (200, &json!("hello가")));
}

#[tokio::test]
async fn the_history_reaches_the_template_and_defaults_are_the_models() {
    let api = Api::up(said(End::Stop)).await;
    let turns = json!([
        { "role": "developer", "content": "Be brief." },
        { "role": "user", "content": [{ "type": "text", "text": "One " }, { "type": "text", "text": "two" }] },
        { "role": "assistant", "content": "three" },
        { "role": "user", "content": "four" },
    ]);
    let (status, answer) = api.post(CHAT, json!({ "messages": turns, "return_token_ids": true })).await;
    assert_eq!(status, 200, "{answer}");
    let text = TextModel::new(&files(), &Templates::Here).unwrap();
    let ids: Vec<u32> = api.last_asked().prompt.iter().map(|t| t.0).collect();
    let prompt = text.tokenizer().decode(&ids, false).unwrap();
    let places: Vec<usize> = ["<|system|>", "Be brief.", "<|user|>", "One two", "<|assistant|>", "three", "four"]
        .iter()
        .map(|part| prompt.find(part).unwrap_or_else(|| panic!("{part} in {prompt}")))
        .collect();
    assert!(places.is_sorted(), "{prompt}");
    let Prompt { generation, prompt, .. } = api.last_asked();
    // Its generation_config.json says 0.7 and 0.9; a chat answer may fill the context.
    assert_eq!((generation.sampling.temperature, generation.sampling.top_p), (0.7, 0.9));
    assert_eq!(generation.max_new_tokens as usize + prompt.len(), 1024);
}

/// A client that comes back with the last event's id gets the events after it, of the same request.
#[tokio::test]
async fn a_stream_goes_on_after_the_last_event() {
    let api = Api::up(said(End::Length)).await;
    let body = json!({ "prompt": "x", "stream": true, "max_tokens": 40 });
    let events = |text: &str| -> Vec<(Option<String>, String)> {
        let line = |event: &str, name: &str| event.lines().find_map(|l| l.strip_prefix(name).map(str::to_owned));
        text.split("\n\n").filter_map(|e| Some((line(e, "id: "), line(e, "data: ")?))).collect()
    };
    let ask = |name: &'static str, value: String| {
        let request = api.client.post(format!("{}{TEXT}", api.url)).header(name, value);
        let request = request.header("x-tsnode-event-ids", "1").json(&body).send();
        async move { request.await.unwrap().text().await.unwrap() }
    };
    let all = events(&ask("idempotency-key", "mine".into()).await);
    let first = api.last_asked();
    assert!(first.comes_back && all.len() > 4, "{all:?}");
    let seen = all[1].0.clone().unwrap();
    let rest = events(&ask("last-event-id", seen).await);
    let again = api.last_asked();
    assert_eq!((again.request, &again.generation), (first.request, &first.generation), "the same seed, too");
    let data = |events: &[(Option<String>, String)]| -> Vec<Value> {
        let choices = |d: &String| serde_json::from_str::<Value>(d).ok().map(|e| e["choices"].clone());
        events.iter().filter_map(|(_, d)| choices(d)).collect()
    };
    assert_eq!(data(&rest), data(&all[2..]));
    let response = api.client.post(format!("{}{TEXT}", api.url)).header("last-event-id", "7").json(&body).send().await;
    assert_eq!(response.unwrap().status(), 400);
    // Without a name nobody can come back, and nobody is looked for.
    api.stream(TEXT, body.clone()).await;
    assert!(!api.last_asked().comes_back && api.last_asked().request != first.request);
}

/// Load generators and simple clients take each line that is not empty for `data: …`.
#[tokio::test]
async fn who_does_not_ask_for_ids_gets_nothing_but_data_lines() {
    let api = Api::up(said(End::Length)).await;
    for (path, body) in [(TEXT, json!({ "prompt": "x" })), (CHAT, json!({ "messages": hello() }))] {
        let mut body = body;
        (body["stream"], body["n"]) = (json!(true), json!(2));
        for key in [None, Some("mine")] {
            let request = api.client.post(format!("{}{path}", api.url));
            let request = key.into_iter().fold(request, |request, key| request.header("idempotency-key", key));
            let text = request.json(&body).send().await.unwrap().text().await.unwrap();
            assert!(text.lines().all(|line| line.is_empty() || line.starts_with("data: ")), "{text}");
            assert!(text.lines().count() > 8, "{text}");
        }
    }
}

#[tokio::test]
async fn a_failure_has_a_status_before_the_stream_and_an_event_within_it() {
    let fails = [
        (said(End::Failed("the peer is gone".into())), "the peer is gone"),
        (Part::BreakOff("The wind"), "the answer broke off"),
    ];
    for (part, why) in fails {
        let api = Api::up(part).await;
        let (status, answer) = api.post(TEXT, json!({ "prompt": "x" })).await;
        assert_eq!((status, &answer["error"]["message"]), (502, &json!(why)));
        for (path, body) in [(TEXT, json!({ "prompt": "x" })), (CHAT, json!({ "messages": hello() }))] {
            let mut body = body;
            body["stream"] = json!(true);
            let events = api.stream(path, body).await;
            let [.., error, done] = &events[..] else { panic!("{events:?}") };
            let error: Value = serde_json::from_str(error).unwrap();
            assert_eq!((&error["error"]["message"], &error["error"]["code"]), (&json!(why), &json!("peer_failed")));
            assert_eq!(done, "[DONE]");
        }
    }
}

#[tokio::test]
async fn nobody_to_serve_is_503_with_a_time_to_come_back() {
    let api = Api::up(Part::Refuse).await;
    let response = api.send(TEXT, &json!({ "prompt": "x", "stream": true })).await;
    assert_eq!((response.status().as_u16(), response.headers()["retry-after"].to_str().unwrap()), (503, "3"));
    let stages = [
        (Readiness::Probing, "measures"),
        (Readiness::Joining, "other peers"),
        (Readiness::Planning, "no plan"),
        (Readiness::Loading, "loading"),
        (Readiness::Leaving, "leaving"),
    ];
    for (stage, word) in stages {
        api.view.send_modify(|v| v.readiness = stage);
        let (status, answer) = api.post(CHAT, json!({ "messages": hello() })).await;
        assert_eq!(status, 503);
        let has_plan_to_come = !matches!(api.view.borrow().readiness, Readiness::Probing);
        assert_eq!(*api.waits.borrow(), has_plan_to_come, "whoever plans is told that a client waits");
        assert!(answer["error"]["message"].as_str().unwrap().contains(word), "{answer}");
        assert_eq!(api.get("/readyz").await.status(), 503);
        assert_eq!(api.get("/healthz").await.status(), 200);
    }
}

/// Two models, of which the second is the swarm's default.
fn two_models() -> SwarmView {
    let own = files().card;
    let large = ModelCard { id: ModelId([9; 16]), name: "large".into(), ..own.clone() };
    SwarmView { default_model: Some(large.id), ..view(vec![own, large]) }
}

#[test]
fn a_request_without_a_name_is_for_the_swarms_default_and_a_wrong_name_is_told_the_right_ones() {
    let (one, two, none) = (view(vec![files().card]), two_models(), view(vec![]));
    let found = |view: &SwarmView, name| super::texts::find_card(view, name).map(|card| card.name.clone());
    assert_eq!(found(&one, None).unwrap(), one.models[0].name);
    assert_eq!(found(&two, None).unwrap(), "large");
    assert_eq!(found(&two, Some(&one.models[0].name)).unwrap(), one.models[0].name);
    let wrong = found(&two, Some("gpt-4")).unwrap_err().to_string();
    assert_eq!(
        wrong,
        format!("The model `gpt-4` does not exist in this swarm, which has: {}, large", one.models[0].name)
    );
    let many = (0..30u8).map(|n| ModelCard { id: ModelId([n; 16]), name: format!("m{n}"), ..files().card });
    let wrong = found(&view(many.collect()), Some("x")).unwrap_err().to_string();
    assert!(wrong.ends_with("m11, and 18 more"), "{wrong}");
    let nothing = found(&none, None).unwrap_err();
    assert!(
        matches!(&nothing, super::ApiError::Unserved { .. }) && nothing.to_string().contains("tsnode join --model")
    );
}

#[tokio::test]
async fn who_waits_is_told_why_everywhere_in_the_same_words() {
    let api = Api::up(Part::Refuse).await;
    let why = NotReady::SmallKv { model: "llama".into(), needs: 1024, holds: 512 };
    let words = "KV holds 512 tokens of llama, a plan needs 1024";
    for stage in [Readiness::Joining, Readiness::Planning] {
        api.view.send_modify(|v| (v.readiness, v.waiting) = (stage.clone(), Some(why.clone())));
        let (status, answer) = api.post(CHAT, json!({ "messages": hello() })).await;
        assert_eq!(status, 503);
        assert!(answer["error"]["message"].as_str().unwrap().contains(words), "{answer}");
        let ready = api.get("/readyz").await;
        assert_eq!(ready.status(), 503);
        let ready = ready.json::<Value>().await.unwrap();
        assert!(ready["reason"].as_str().unwrap().contains(words), "{ready}");
        assert_eq!((&ready["stage"], &ready["waiting"]["why"]), (&json!(stage)["stage"], &json!("small_kv")));
    }
    // Ready for others, and not for this one.
    let short =
        Shortfall { model: "tiny".into(), id: files().card.id, lack: Lack::Memory { needs: 9 << 30, lent: 1 << 30 } };
    api.view.send_modify(|v| (v.readiness, v.waiting, v.short) = (Readiness::Ready, None, vec![short]));
    let (status, answer) = api.post(CHAT, json!({ "messages": hello() })).await;
    assert_eq!(status, 503);
    assert!(answer["error"]["message"].as_str().unwrap().starts_with("tiny needs 9.0 GiB"), "{answer}");
    assert_eq!(api.get("/readyz").await.json::<Value>().await.unwrap(), json!({ "stage": "ready" }));
}

#[tokio::test]
async fn a_client_that_hangs_up_is_let_go_even_while_nothing_is_said() {
    for stream in [true, false] {
        let mut api = Api::up(Part::Hang).await;
        let url = format!("{}{TEXT}", api.url);
        let body = json!({ "prompt": "x", "stream": stream });
        let request = crate::tasks::spawn("test", api.client.post(url).json(&body).send());
        let taken = async {
            while api.asked.lock().unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), taken).await.unwrap();
        if stream {
            drop(request.await.unwrap().unwrap());
        } else {
            request.abort();
        }
        tokio::time::timeout(Duration::from_secs(10), api.dropped.recv()).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_field_that_is_wrong_is_named() {
    let api = Api::up(said(End::Stop)).await;
    let cases = [
        (TEXT, json!({}), "prompt"),
        (TEXT, json!({ "prompt": "" }), "prompt"),
        (TEXT, json!({ "prompt": [] }), "prompt"),
        (TEXT, json!({ "prompt": [[]] }), "prompt"),
        (TEXT, json!({ "prompt": [1.5] }), "prompt"),
        (TEXT, json!({ "prompt": [4_000_000_000u32] }), "prompt"),
        (TEXT, json!({ "prompt": { "a": 1 } }), "prompt"),
        (TEXT, json!({ "prompt": vec!["x"; 129] }), "prompt"),
        (CHAT, json!({ "messages": hello(), "max_tokens": 0 }), "max_tokens"),
        (TEXT, json!({ "prompt": "x", "max_tokens": -3 }), "max_tokens"),
        (TEXT, json!({ "prompt": "x", "n": 0 }), "n"),
        (TEXT, json!({ "prompt": "x", "temperature": 2.5 }), "temperature"),
        (TEXT, json!({ "prompt": "x", "top_p": -0.1 }), "top_p"),
        (TEXT, json!({ "prompt": "x", "seed": "lucky" }), "seed"),
        (TEXT, json!({ "prompt": "x", "stop": ["a", 1] }), "stop"),
        (TEXT, json!({ "prompt": "x", "stop": vec!["a"; 17] }), "stop"),
        (TEXT, json!({ "prompt": "x", "logprobs": 9 }), "logprobs"),
        (TEXT, json!({ "prompt": "x", "logit_bias": { "0": 101 } }), "logit_bias"),
        (TEXT, json!({ "prompt": "x", "logit_bias": { "x": 1 } }), "logit_bias"),
        (TEXT, json!({ "prompt": "x", "stream": "yes" }), "stream"),
        (TEXT, json!({ "prompt": "x", "stream_options": {} }), "stream_options"),
        (TEXT, json!({ "prompt": "x", "suffix": "y" }), "suffix"),
        (TEXT, json!({ "prompt": "x", "no_such_field": 1 }), "no_such_field"),
        (CHAT, json!({ "messages": [] }), "messages"),
        (CHAT, json!({ "messages": "Hello" }), "messages"),
        (CHAT, json!({ "messages": [{ "role": "king", "content": "x" }] }), "messages"),
        (CHAT, json!({ "messages": [{ "role": "user" }] }), "messages"),
        (CHAT, json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url" }] }] }), "messages"),
        (CHAT, json!({ "messages": hello(), "tools": [{}] }), "tools"),
        (CHAT, json!({ "messages": hello(), "response_format": { "type": "xml" } }), "response_format"),
        (CHAT, json!({ "messages": hello(), "top_logprobs": 2 }), "top_logprobs"),
    ];
    for (path, body, param) in cases {
        let (status, answer) = api.post(path, body.clone()).await;
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(param)), "{body} {answer}");
        assert_eq!(answer["error"]["type"], "invalid_request_error");
    }
    assert!(api.asked.lock().unwrap().is_empty(), "nothing wrong reaches the gateway");
}

#[tokio::test]
async fn what_asks_for_nothing_is_let_pass() {
    let api = Api::up(said(End::Stop)).await;
    let body = json!({
        "messages": hello(), "model": null, "stop": null, "n": 1, "tools": [], "tool_choice": "none", "user": "me",
        "response_format": { "type": "text" }, "frequency_penalty": 0, "presence_penalty": 0.5, "logit_bias": {},
        "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "max_completion_tokens": 5, "store": false,
    });
    let (status, answer) = api.post(CHAT, body).await;
    assert_eq!(status, 200, "{answer}");
    let sampling = api.last_asked().generation.sampling;
    assert_eq!((sampling.top_k, sampling.min_p, sampling.presence_penalty), (5, 0.1, 0.5));
}

#[tokio::test]
async fn too_much_for_the_context_is_said_in_openais_words() {
    let api = Api::up(said(End::Stop)).await;
    for body in [json!({ "prompt": vec![9; 1024] }), json!({ "prompt": "x", "max_tokens": 1024 })] {
        let (status, answer) = api.post(TEXT, body).await;
        assert_eq!((status, &answer["error"]["code"]), (400, &json!("context_length_exceeded")));
        assert!(answer["error"]["message"].as_str().unwrap().contains("maximum context length is 1024 tokens"));
        assert!(answer["error"]["message"].as_str().unwrap().contains("your prompt resulted in"), "{answer}");
        assert_eq!(answer["error"]["param"], "prompt");
    }
    let (_, answer) = api.post(CHAT, json!({ "messages": hello(), "max_tokens": 1024 })).await;
    assert_eq!(
        (&answer["error"]["param"], &answer["error"]["code"]),
        (&json!("messages"), &json!("context_length_exceeded"))
    );
}

#[tokio::test]
async fn models_are_listed_found_and_missed() {
    let api = Api::up(said(End::Stop)).await;
    let list: Value = api.get("/v1/models").await.json().await.unwrap();
    assert_eq!(list["data"][0]["id"], "gutenberg-tiny");
    assert_eq!(api.get("/v1/models/gutenberg-tiny").await.status(), 200);
    assert_eq!(api.get("/v1/models/other").await.status(), 404);
    let (status, answer) = api.post(TEXT, json!({ "prompt": "x", "model": "other" })).await;
    assert_eq!((status, &answer["error"]["code"]), (404, &json!("model_not_found")));
    for (path, status) in [("/nowhere", 404), (TEXT, 405)] {
        let response = api.get(path).await;
        assert_eq!(response.status(), status);
        assert!(response.json::<Value>().await.unwrap()["error"]["message"].is_string());
    }
}

#[tokio::test]
async fn a_key_guards_everything_but_health() {
    let api = Api::with(said(End::Stop), keys(Some("sesame"), None)).await;
    let ask = |key: &str| api.client.get(format!("{}/v1/models", api.url)).bearer_auth(key).send();
    assert_eq!(ask("sesame").await.unwrap().status(), 200);
    let wrong = ask("sesam").await.unwrap();
    assert_eq!(
        (wrong.status().as_u16(), challenge(&wrong).as_str()),
        (401, r#"Bearer realm="tsnode", error="invalid_token""#)
    );
    assert_eq!(challenge(&api.get("/v1/models").await), r#"Bearer realm="tsnode""#);
    for (path, status) in [("/v1/models", 401), ("/api/swarm", 401), ("/metrics", 401), ("/healthz", 200), ("/", 200)] {
        assert_eq!(api.get(path).await.status(), status, "{path}");
    }
    let (status, answer) = api.post(TEXT, json!({ "prompt": "x" })).await;
    assert_eq!((status, &answer["error"]["code"]), (401, &json!("invalid_api_key")));
    assert!(answer["error"]["message"].as_str().unwrap().contains("tsnode keys add"), "{answer}");
}

fn challenge(response: &Response) -> String {
    response.headers()["www-authenticate"].to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_keys_scheme_may_be_written_in_any_letters() {
    let api = Api::with(said(End::Stop), keys(Some("sesame"), None)).await;
    for (shown, status) in [
        ("bearer sesame", 200),
        ("BEARER sesame", 200),
        ("Bearer  sesame", 200),
        ("Basic sesame", 401),
        ("sesame", 401),
        ("bearersesame", 401),
    ] {
        let asked =
            api.client.get(format!("{}/v1/models", api.url)).header("authorization", shown).send().await.unwrap();
        assert_eq!(asked.status(), status, "{shown}");
    }
}

/// Whatever goes wrong and wherever: JSON in OpenAI's form, and an id to ask about.
#[tokio::test]
async fn every_error_is_json_and_has_an_id() {
    let api = Api::up(said(End::Stop)).await;
    let bodies = [
        ("/api/pause", "text/plain", "{}", 415),
        ("/api/pause", "application/json", "{", 400),
        ("/api/links/measure", "application/json", "{}", 422),
        ("/api/faults", "application/json", "1", 422),
        ("/api/nothing", "application/json", "{}", 404),
        (TEXT, "application/json", "{", 400),
        (CHAT, "application/json", "{\"messages\": 1}", 400),
    ];
    let mut answers = Vec::new();
    for (path, kind, body, status) in bodies {
        let request = api.client.post(format!("{}{path}", api.url)).header("content-type", kind).body(body.to_owned());
        answers.push((path, request.send().await.unwrap(), status));
    }
    for (path, status) in [("/v1/models/%ff", 400), ("/api/requests/%ff", 400), ("/api/pause", 405), ("/nowhere", 404)]
    {
        answers.push((path, api.get(path).await, status));
    }
    for (path, answer, status) in answers {
        assert_eq!(answer.status(), status, "{path}");
        assert!(answer.headers()["x-request-id"].to_str().unwrap().starts_with("req-"), "{path}");
        let error = answer.json::<Value>().await.unwrap()["error"].clone();
        assert!(error["message"].as_str().is_some_and(|m| !m.is_empty()), "{path}: {error}");
        assert_eq!(error["type"], "invalid_request_error", "{path}: {error}");
    }
    let first = api.get("/v1/models").await.headers()["x-request-id"].clone();
    assert_ne!(api.get("/v1/models").await.headers()["x-request-id"], first);
}

/// An emoji that a JavaScript program cut in two, and what programs on Windows put in front.
#[tokio::test]
async fn half_an_emoji_and_a_byte_order_mark_are_taken() {
    let api = Api::up(said(End::Stop)).await;
    let text = TextModel::new(&files(), &Templates::Here).unwrap();
    let ask = |path: &str, body: &str| {
        let request = api.client.post(format!("{}{path}", api.url)).header("content-type", "application/json");
        let request = request.body(body.to_owned()).send();
        async move { request.await.unwrap().status().as_u16() }
    };
    assert_eq!(ask(TEXT, r#"{"prompt":"a\ud83d"}"#).await, 200);
    assert_eq!(api.last_asked().prompt, text.encode("a\u{FFFD}").unwrap());
    assert_eq!(ask(CHAT, r#"{"messages":[{"role":"user","content":"a\ud83d"}],"stop":["\udc00"]}"#).await, 200);
    assert_eq!(ask(TEXT, "\u{FEFF}{\"prompt\":\"b\"}").await, 200);
    assert_eq!(api.last_asked().prompt, text.encode("b").unwrap());
}

#[tokio::test]
async fn the_page_says_nothing_without_a_key_and_shows_the_one_it_is_given() {
    let api = Api::with(said(End::Stop), keys(Some("sesame"), None)).await;
    let page = api.get("/").await;
    assert_eq!(page.status(), 200);
    let page = page.text().await.unwrap();
    // All there is to know comes by requests of its own, which show the key.
    assert_eq!(page.matches("fetch(").count(), 1, "{page}");
    let fetch = page.lines().find(|line| line.contains("fetch(")).unwrap();
    assert!(fetch.contains("\"/api/swarm\"") && fetch.contains("Authorization: \"Bearer \" + key"), "{fetch}");
    assert!(!page.contains(&api.view.borrow().swarm.to_string()));
    let swarm = api.client.get(format!("{}/api/swarm", api.url)).header("Authorization", "Bearer sesame").send();
    assert_eq!(swarm.await.unwrap().status(), 200);
}

#[tokio::test]
async fn the_owners_token_opens_everything_and_at_any_rate() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let token = LocalToken::leave(&store, "127.0.0.1:0".parse().unwrap()).unwrap();
    let api = Api::with(said(End::Stop), keys(Some("sesame"), Some(20)).with_local(token)).await;
    let token = local::read(folder.path(), "127.0.0.1:0").unwrap();
    for _ in 0..10 {
        for path in ["/api/swarm", "/metrics", "/v1/models"] {
            let asked = api.client.get(format!("{}{path}", api.url)).bearer_auth(&token).send().await.unwrap();
            assert_eq!(asked.status(), 200, "{path}");
        }
    }
    assert_eq!(api.get("/api/swarm").await.status(), 401, "who does not show it needs a key");
}

#[tokio::test]
async fn a_key_for_prompts_is_good_for_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let key = add(folder.path(), "bob", Scope::Inference).unwrap();
    let api = Api::with(said(End::Stop), Gatekeeper::new(KeyRing::open(folder.path(), None).unwrap(), None)).await;
    let get = |path: &str| api.client.get(format!("{}{path}", api.url)).bearer_auth(&key).send();
    for (path, status) in
        [("/v1/models", 200), ("/api/swarm", 403), ("/api/requests", 403), ("/metrics", 403), ("/", 200)]
    {
        assert_eq!(get(path).await.unwrap().status(), status, "{path}");
    }
    let leave = api.client.post(format!("{}/api/leave", api.url)).bearer_auth(&key).json(&json!({})).send();
    assert_eq!(leave.await.unwrap().status(), 403);
}

#[tokio::test]
async fn who_asks_too_often_is_told_when_to_come_back() {
    let api = Api::with(said(End::Stop), keys(None, Some(20))).await;
    let ask = || api.get("/v1/models");
    assert_eq!([ask().await.status(), ask().await.status()], [200, 200]);
    let refused = ask().await;
    assert_eq!(refused.status(), 429);
    let wait: u64 = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=3).contains(&wait), "{wait}");
    assert_eq!(refused.json::<Value>().await.unwrap()["error"]["code"], "rate_limit_exceeded");
    assert_eq!(api.get("/healthz").await.status(), 200, "whether it is alive may be asked at any time");
}
