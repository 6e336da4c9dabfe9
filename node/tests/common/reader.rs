//! A client that reads a stream to its end, whatever peer it has to ask: as a careful program would.

use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// How long a stream may stand still, all in all.
const PATIENCE: Duration = Duration::from_secs(40);
const PAUSE: Duration = Duration::from_millis(50);

/// What a client saw of one stream.
#[derive(Default)]
pub struct Seen {
    pub tokens: Vec<u64>,
    /// What its prompt's KV went through.
    pub codec: String,
    /// The longest time between two tokens.
    pub pause: Duration,
    /// Why it went on elsewhere, each time.
    pub moves: Vec<String>,
    /// How often it came back, because its gateway had gone.
    pub returns: usize,
}

/// One streamed answer, asked for by name.
pub struct Reader {
    client: reqwest::Client,
    key: String,
    body: Value,
    last_event: Option<String>,
    last_token: Option<Instant>,
    seen: Seen,
    done: bool,
}

impl Reader {
    pub fn new(client: &reqwest::Client, key: String, mut body: Value) -> Self {
        (body["stream"], body["return_token_ids"]) = (json!(true), json!(true));
        let client = client.clone();
        Self { client, key, body, last_event: None, last_token: None, seen: Seen::default(), done: false }
    }

    /// Reads to the end, asking `gateway(n)` the n-th time.
    pub async fn read(mut self, gateway: impl Fn(usize) -> String) -> Seen {
        let asked = Instant::now();
        for n in 0.. {
            let stands = self.last_token.unwrap_or(asked).elapsed();
            assert!(stands < PATIENCE, "{} stands still after {} tokens", self.key, self.seen.tokens.len());
            // A gateway that has gone, or that nobody serves yet: the next one may do.
            if self.ask(&gateway(n)).await.is_ok() && self.done {
                break;
            }
            self.seen.returns += usize::from(self.last_token.is_some());
            tokio::time::sleep(PAUSE).await;
        }
        self.seen
    }

    async fn ask(&mut self, http: &str) -> reqwest::Result<()> {
        let request = self.client.post(format!("{http}/v1/completions")).header("x-tsnode-trace", "1");
        let request = match &self.last_event {
            Some(id) => request.header("last-event-id", id),
            None => request.header("idempotency-key", &self.key),
        };
        let mut response = request.json(&self.body).send().await?;
        if response.status() == 503 {
            return Ok(());
        }
        assert_eq!(response.status(), 200, "{}", self.key);
        let mut text = Vec::new();
        while let Some(part) = response.chunk().await? {
            text.extend_from_slice(&part);
            while let Some(end) = text.windows(2).position(|w| w == b"\n\n") {
                let event: Vec<u8> = text.drain(..end + 2).collect();
                self.event(std::str::from_utf8(&event).unwrap());
            }
        }
        Ok(())
    }

    fn event(&mut self, event: &str) {
        let line = |name: &str| event.lines().find_map(|l| l.strip_prefix(name).map(str::to_owned));
        let Some(data) = line("data: ") else { return };
        if data == "[DONE]" {
            self.done = true;
            return;
        }
        self.last_event = line("id: ").or(self.last_event.take());
        let data: Value = serde_json::from_str(&data).unwrap();
        assert!(data.get("error").is_none(), "{} after {} tokens: {data}", self.key, self.seen.tokens.len());
        if let Some(trace) = data.get("tsnode") {
            self.seen.codec = trace["codec"].as_str().unwrap().to_owned();
            let moves = trace["moves"].as_array().unwrap().iter();
            self.seen.moves.extend(moves.map(|m| m["reason"].as_str().unwrap().to_owned()));
            return;
        }
        let ids = data["choices"][0]["token_ids"].as_array().unwrap();
        self.seen.tokens.extend(ids.iter().map(|t| t.as_u64().unwrap()));
        let waited = self.last_token.map_or(Duration::ZERO, |at| at.elapsed());
        self.seen.pause = self.seen.pause.max(waited);
        self.last_token = Some(Instant::now());
    }
}
