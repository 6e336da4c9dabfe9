//! Against a server that is none of ours: it answers at a pace that it states, and wrongly in every way that servers do.
use super::{MeasuredRun, answered, command, measured};
use crate::{cli::exit::ExitKind, config::Settings};
use axum::{
    Json, Router,
    body::{Body, Bytes},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use futures::stream;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use std::time::{Duration, Instant};
use tokio::{net::TcpListener, sync::Semaphore, task::JoinHandle};

/// To the first piece, and between pieces.
const FIRST: Duration = Duration::from_millis(60);
const GAP: Duration = Duration::from_millis(20);
const KEY: &str = "sk-rival";

/// Ends with the test.
struct Rival {
    base: String,
    /// Bodies that it was sent.
    asked: Arc<std::sync::Mutex<Vec<Value>>>,
    task: JoinHandle<()>,
}

impl Drop for Rival {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Rival {
    /// Computes this many at once; the others wait.
    async fn up(models: &'static [&'static str], at_once: usize) -> Self {
        let asked: Arc<std::sync::Mutex<Vec<Value>>> = Arc::default();
        let (slots, count) = (Arc::new(Semaphore::new(at_once)), Arc::new(AtomicUsize::new(0)));
        let list = move || async move {
            let all: Vec<Value> = models.iter().map(|name| json!({ "id": name })).collect();
            Json(json!({ "object": "list", "data": all }))
        };
        let heard = asked.clone();
        let answer = post(move |headers: HeaderMap, Json(body): Json<Value>| {
            heard.lock().unwrap().push(body.clone());
            let (slots, count) = (slots.clone(), count.fetch_add(1, Ordering::Relaxed));
            async move { answer(&headers, &body, count, slots).await }
        });
        let app = Router::new()
            .route("/v1/models", get(list))
            .route("/v1/completions", answer.clone())
            .route("/v1/chat/completions", answer);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let task = crate::tasks::spawn("test", async move { axum::serve(listener, app).await.unwrap() });
        Self { base, asked, task }
    }

    /// What `tsnode bench serve` says of it.
    async fn bench(&self, words: &[&str]) -> Result<MeasuredRun, crate::cli::exit::Exit> {
        let at = ["serve", "--base-url", &self.base, "--disable-tqdm"];
        let matches = command().try_get_matches_from(at.iter().chain(words)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let flags = BTreeMap::from([("data-dir".to_owned(), folder.path().display().to_string())]);
        let key = |name: &str| (name == "TSNODE_API_KEY").then(|| KEY.to_owned());
        let mut settings = Settings::gather(&flags, key, Path::new("/nowhere"), false).unwrap();
        let secret = settings.read_secret(crate::config::secrets::API_KEY, &mut std::io::empty(), |_| {});
        secret.unwrap();
        measured(&settings, &matches).await
    }
}

/// By the model's name: as it should be, or not.
async fn answer(headers: &HeaderMap, body: &Value, count: usize, slots: Arc<Semaphore>) -> Response {
    if headers.get("authorization").and_then(|v| v.to_str().ok()) != Some(&format!("Bearer {KEY}")) {
        return (StatusCode::UNAUTHORIZED, Json(json!({ "error": { "message": "no key" } }))).into_response();
    }
    let prompt = match (&body["prompt"], &body["messages"][0]["content"]) {
        (Value::Array(ids), _) => ids.len(),
        // A chat template adds seven, and two words are three tokens.
        (_, Value::String(text)) => 7 + text.split(' ').count() * 3 / 2,
        (text, _) => text.as_str().unwrap().split(' ').count(),
    };
    let is_chat = body["messages"].is_array();
    let piece = move |text: &str| {
        let choice = if is_chat { json!({ "delta": { "content": text } }) } else { json!({ "text": text }) };
        format!("data: {}\n\n", json!({ "choices": [choice] }))
    };
    let tokens = body["max_tokens"].as_u64().unwrap();
    let usage = json!({ "prompt_tokens": prompt, "completion_tokens": tokens });
    let end = format!(
        "data: {}\n\ndata: {}\n\ndata: [DONE]\n\n",
        json!({ "choices": [{ "text": "", "finish_reason": "length" }] }),
        json!({ "choices": [], "usage": usage }),
    );
    // The prompts that are counted first are one token long in their answers.
    let model = if tokens == 1 { "good" } else { body["model"].as_str().unwrap() };
    let events: Vec<(Duration, String)> = match model {
        "breaks" => vec![(FIRST, piece("a")), (GAP, piece("b"))],
        "says" => vec![(FIRST, piece("a")), (GAP, "data: {\"error\":{\"message\":\"no room\"}}\n\n".into())],
        "hangs" => vec![(FIRST, piece("a")), (Duration::from_secs(3600), end)],
        "whole" => {
            return Json(json!({ "choices": [{ "text": "a", "finish_reason": "stop" }], "usage": usage }))
                .into_response();
        }
        "page" => return (StatusCode::BAD_GATEWAY, "<html>no</html>").into_response(),
        "half" if count.is_multiple_of(2) => {
            return (StatusCode::TOO_MANY_REQUESTS, Json(json!({ "detail": "too many" }))).into_response();
        }
        _ => {
            let pieces = (0..tokens).map(|n| (if n == 0 { FIRST } else { GAP }, piece("a ")));
            pieces.chain([(Duration::ZERO, end)]).collect()
        }
    };
    let slot = slots.acquire_owned().await.unwrap();
    let paced = stream::unfold((events.into_iter(), slot), |(mut left, slot)| async move {
        let (wait, text) = left.next()?;
        tokio::time::sleep(wait).await;
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(text)), (left, slot)))
    });
    Body::from_stream(paced).into_response()
}

fn ms(document: &Value, name: &str) -> f64 {
    document[name].as_f64().unwrap_or_else(|| panic!("{name} in {document}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_servers_pace_is_measured() {
    let rival = Rival::up(&["one"], 64).await;
    let words =
        ["--num-prompts", "12", "--request-rate", "100", "--input-len", "40", "--output-len", "6", "--ignore-eos"];
    let goodput = ["--goodput", "ttft:30", "tpot:100"];
    let began = Instant::now();
    let MeasuredRun { report, .. } = rival.bench(&[&words[..], &goodput].concat()).await.unwrap();
    let document = report.json(&Value::Null);
    // A server is never quicker than it says; how much slower is the test host's.
    let (first, gap) = (FIRST.as_secs_f64() * 1e3, GAP.as_secs_f64() * 1e3);
    assert!(ms(&document, "p50_ttft_ms") >= first - 1.0 && ms(&document, "p50_tpot_ms") >= gap - 1.0, "{document}");
    assert!(ms(&document, "p50_e2el_ms") >= first + 5.0 * gap - 2.0, "{document}");
    let most = began.elapsed().as_secs_f64() * 1e3;
    assert!(ms(&document, "p99_e2el_ms") < most && ms(&document, "p99_itl_ms") < most, "{document}");
    assert_eq!(document["total_input_tokens"], 12 * 40);
    assert_eq!(document["total_output_tokens"], 12 * 6);
    assert_eq!((&document["completed"], &document["request_goodput"]), (&json!(12), &json!(0.0)), "none is so fast");
    let asked = rival.asked.lock().unwrap();
    assert_eq!((asked.len(), &asked[5]["model"], &asked[5]["ignore_eos"]), (13, &json!("one"), &json!(true)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chats_have_the_lengths_asked_for_once_words_are_counted() {
    let rival = Rival::up(&["one"], 64).await;
    let words = ["--endpoint", "/v1/chat/completions", "--num-prompts", "3", "--input-len", "307", "--output-len", "2"];
    let MeasuredRun { report, .. } = rival.bench(&words).await.unwrap();
    assert_eq!(report.json(&Value::Null)["total_input_tokens"], 3 * 307);
    assert!(rival.asked.lock().unwrap().iter().all(|body| body.get("ignore_eos").is_none()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_run_at_once_than_were_allowed() {
    let rival = Rival::up(&["one"], 64).await;
    let words = ["--num-prompts", "6", "--output-len", "2", "--max-concurrency", "2"];
    let MeasuredRun { report, .. } = rival.bench(&words).await.unwrap();
    let document = report.json(&Value::Null);
    assert_eq!((&document["max_concurrent_requests"], &document["completed"]), (&json!(2), &json!(6)));
    // The last two waited for four others, and it is said.
    let four = 2.0 * (FIRST + GAP).as_secs_f64() * 1e3;
    assert!(ms(&document, "p99_sent_late_ms") >= four * 0.9, "{document}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_servers_do_wrong_is_counted_and_said() {
    let rival = Rival::up(&["one", "two"], 64).await;
    for (model, why) in [
        ("breaks", "the answer ended without an end"),
        ("says", "the answer broke off: no room"),
        ("whole", "no stream of events, as stream: true asks for"),
        ("page", "502: Bad Gateway"),
    ] {
        let words = ["--model", model, "--num-prompts", "3", "--output-len", "4"];
        let MeasuredRun { report, .. } = rival.bench(&words).await.unwrap();
        assert_eq!((report.failed, report.reasons.clone()), (3, vec![(why.to_owned(), 3)]), "{model}");
        let exit = answered(&report).unwrap_err();
        assert!(exit.kind == ExitKind::Request && exit.message.ends_with(why), "{}", exit.message);
    }
    let words = ["--model", "half", "--num-prompts", "8", "--output-len", "4", "--goodput", "e2el:3600000"];
    let MeasuredRun { report, .. } = rival.bench(&words).await.unwrap();
    assert_eq!((report.completed, report.failed), (4, 4));
    assert_eq!(report.reasons, [("429: too many".to_owned(), 4)]);
    assert_eq!(report.json(&Value::Null)["attainment"], 0.5, "what failed kept no target");
    answered(&report).unwrap();
    let none = |exit: Result<MeasuredRun, crate::cli::exit::Exit>| exit.map(drop).unwrap_err();
    let several = none(rival.bench(&["--num-prompts", "1"]).await);
    assert!(
        several.kind == ExitKind::Usage && several.message.contains("2 models, as one, two; name one with --model")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_ends_with_the_time() {
    let rival = Rival::up(&["one"], 64).await;
    let words =
        ["--model", "hangs", "--num-prompts", "3", "--output-len", "4", "--max-seconds", "1", "--request-rate", "100"];
    let MeasuredRun { report, .. } = rival.bench(&words).await.unwrap();
    assert_eq!((report.completed, report.cut, report.unsent), (0, 3, 0));
    let exit = answered(&report).unwrap_err();
    assert!(exit.message.contains("--max-seconds"), "{}", exit.message);
    let seldom =
        ["--model", "one", "--num-prompts", "100", "--output-len", "2", "--max-seconds", "1", "--request-rate", "5"];
    let MeasuredRun { report, .. } = rival.bench(&seldom).await.unwrap();
    assert!(report.completed > 0 && report.unsent > 0, "{:?}", report.lines());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_not_there_and_who_refuses_is_named() {
    let mut rival = Rival::up(&[], 1).await;
    let none = rival.bench(&["--num-prompts", "1"]).await.map(drop).unwrap_err();
    assert!(none.kind == ExitKind::Unserved && none.message.contains("name one with --model"), "{}", none.message);
    // A port that nobody has any more.
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
    rival.base = format!("http://{}", gone.local_addr().unwrap());
    drop(gone);
    for words in [&["--num-prompts", "1"][..], &["--model", "m"]] {
        let gone = rival.bench(words).await.map(drop).unwrap_err();
        assert_eq!(gone.kind, ExitKind::Unreachable, "{}", gone.message);
        assert!(
            gone.message.contains(&rival.base) && gone.message.contains("nobody answers there"),
            "{}",
            gone.message
        );
    }
}
