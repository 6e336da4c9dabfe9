//! What clients see: real requests over a socket, a scripted gateway behind it.

mod answers;
mod apis;
mod bodies;
mod keys;
mod limits;
mod metrics;
mod page;
mod pulls;
mod refusals;
mod settings;
mod sites;
mod slow;
mod streams;
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
    gateway::{Accepted, GatewayHandle, PreparedRequest, Reply, Submission, SubmitError, Trace},
    limits::{LimitBounds, Limits, LimitsHandle},
    store::{
        Store,
        keys::{KeyRing, KeyScope, add},
        owner_token::{self, LocalToken},
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
    planner::live::{DeviceShortfall, Shortfall},
    waiting::NotReady,
};
use tsnode_kernels::source::ModelSource;
use tsnode_protocol::{
    Advert, BytesPerSecond, Device, DeviceKind, FlopsPerSecond, Gpus, KvCodec, Load, ModelCard, ModelId, PeerId,
    PromptCodec, PromptLogprob, RequestId, Sampled, SettingKey, SettingValue, Token, kv::KvPace,
    sampling::TokenLogprob, stream::End,
};

/// What the gateway does with a request.
pub(super) enum GatewayReply {
    /// Every token of this text, with one alternative each, then the end.
    Say(&'static str, End),
    /// These tokens, with an alternative each, then the end.
    Write(Vec<Token>),
    /// The text's tokens, a trace in which so many of the prompt's tokens were cached, and the end.
    Traced(&'static str, u32),
    /// The text's tokens, as another gateway had them, then what is said of the prompt's, and the end.
    Recalled(&'static str),
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
    asked: Arc<Mutex<Vec<PreparedRequest>>>,
    /// Requests dropped by the HTTP side before their end.
    dropped: mpsc::Receiver<()>,
    /// What was to be set for the swarm.
    set: mpsc::Receiver<(SettingKey, SettingValue)>,
    /// Where limits are kept.
    folder: tempfile::TempDir,
    stop: CancellationToken,
}

impl Drop for Api {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub(super) fn files() -> ModelFiles {
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
    pub(super) async fn up(part: GatewayReply) -> Self {
        Self::with(part, keys(None, None)).await
    }

    async fn with(part: GatewayReply, gatekeeper: Gatekeeper) -> Self {
        Self::of(files(), part, gatekeeper).await
    }

    async fn of(files: ModelFiles, part: GatewayReply, gatekeeper: Gatekeeper) -> Self {
        let (view, watched) = watch::channel(view(vec![files.card.clone()]));
        let (gateway, submissions) = GatewayHandle::channel();
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
        let owner = OwnerHandle::new(watch::Sender::new(false), watch::Sender::new(None), CancellationToken::new());
        let (measurer, _) = Measurer::channel();
        let (wanted, waits) = watch::channel(false);
        let (settings, set) = mpsc::channel(4);
        let folder = tempfile::tempdir().unwrap();
        let controls = Controls {
            owner,
            measurer,
            faults: None,
            testnet: None,
            asked: wanted,
            settings,
            limits: LimitsHandle::new(folder.path(), Limits::default(), LimitBounds::default()).0,
            pulls: crate::weights::Pulls::channel().0,
        };
        let state = ApiState::new(gateway, texts, watched, controls, gatekeeper);
        crate::tasks::spawn("test", serve(listener, Doors::default().http, state, stop.clone()));
        let client = reqwest::Client::builder().timeout(Duration::from_secs(20)).build().unwrap();
        Self { url, client, view, waits, asked, dropped, set, folder, stop }
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

    fn last_asked(&self) -> PreparedRequest {
        self.asked.lock().unwrap().last().unwrap().clone()
    }
}

/// The gateway's part.
async fn play(
    part: GatewayReply,
    text: TextModel,
    mut submissions: mpsc::Receiver<Submission>,
    asked: Arc<Mutex<Vec<PreparedRequest>>>,
    drops: mpsc::Sender<()>,
) {
    // Requests that hang end with the test.
    let mut hanging = JoinSet::new();
    while let Some(Submission { prompt, answer }) = submissions.recv().await {
        let (replies, reader) = mpsc::channel(256);
        let mut said_of_prompt = prompt.generation.sampling.prompt_logprobs.map(|_| of_prompt(&prompt.prompt));
        if !matches!(part, GatewayReply::Recalled(_))
            && let Some(said) = said_of_prompt.take()
        {
            replies.send(said).await.unwrap();
        }
        let request = prompt.request;
        asked.lock().unwrap().push(prompt);
        let (prefill, decode) = (PeerId([3; 32]), PeerId([4; 32]));
        let accepted = Accepted { prefill, decode, replies: reader, enough: CancellationToken::new() };
        let (tokens, cached, end) = match &part {
            GatewayReply::Refuse => {
                let reason = "no group".to_owned();
                let refusal = SubmitError::Unserved { reason, retry_after: Duration::from_secs(3) };
                drop(answer.send(Err(refusal)));
                continue;
            }
            GatewayReply::Hang => {
                replies.send(token(&text, 0, Token(300))).await.unwrap();
                drop(answer.send(Ok(accepted)));
                let drops = drops.clone();
                hanging.spawn(async move {
                    replies.closed().await;
                    drops.send(()).await.unwrap();
                });
                continue;
            }
            GatewayReply::Say(said, end) => (in_tokens(&text, said), None, Some(end.clone())),
            GatewayReply::Write(tokens) => (tokens.clone(), None, Some(End::Stop)),
            GatewayReply::Traced(said, cached) => (in_tokens(&text, said), Some(*cached), Some(End::Length)),
            GatewayReply::Recalled(said) => (in_tokens(&text, said), None, Some(End::Length)),
            GatewayReply::BreakOff(said) => (in_tokens(&text, said), None, None),
        };
        replies.send(Reply::Settled(KvCodec::Int4.into())).await.unwrap();
        for (index, one) in tokens.into_iter().enumerate() {
            replies.send(token(&text, index as u32, one)).await.unwrap();
        }
        if let Some(said) = said_of_prompt {
            replies.send(said).await.unwrap();
        }
        if let Some(cached_tokens) = cached {
            let trace = Trace { request, cached_tokens, ..crate::history::tests::alone(1) };
            replies.send(Reply::Trace(Box::new(trace))).await.unwrap();
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

pub(super) fn said(end: End) -> GatewayReply {
    GatewayReply::Say("The wind was in the house.", end)
}
