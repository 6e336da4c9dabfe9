//! One client's answers, and when their tokens came.

use super::swarms::Kept;
use crate::exit::{Exit, Kind};
use crate::gateway::Trace;
use futures::StreamExt;
use serde::Serialize;
use serde_json::{Value, json};
use std::time::Instant;
use tsnode_coordinator::gateway::Parts;

/// What is asked for.
pub(super) struct Ask {
    pub vocab: u32,
    /// Tokens of an answer.
    pub answer: u32,
    /// How often.
    pub rounds: u32,
}

/// When tokens came, from the asking on (seconds).
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Times {
    pub first: f64,
    pub second: f64,
    pub all: f64,
    /// The parts of the gateway's trace over what the client saw.
    pub traced: f64,
    /// Until the first token: for pages, a turn and the way there; then in steps of the prompt.
    pub queue: f64,
    pub prefill: f64,
    /// From the first token until all KV is where it is decoded.
    pub handed_over: f64,
}

impl Ask {
    /// Medians of every swarm's answers to new prompts, asked in turns; and the last trace of each.
    pub async fn in_turns<const N: usize>(&self, swarms: [&Kept; N], prompt: u32) -> Result<[(Times, Trace); N], Exit> {
        let client = reqwest::Client::new();
        let mut seen: [Vec<(Times, Trace)>; N] = std::array::from_fn(|_| Vec::new());
        // The first round is for what has to be done once: connections, pages.
        for round in 0..=self.rounds {
            for (i, swarm) in swarms.iter().enumerate() {
                let answer = self.one(&client, &swarm.http(), prompt).await?;
                if round > 0 {
                    seen[i].push(answer);
                }
            }
        }
        Ok(seen.map(middle))
    }

    /// A prompt that nobody has asked before.
    fn prompt(&self, tokens: u32) -> Vec<u32> {
        let drawn: [u8; 8] = crate::random_bytes();
        let seed = u64::from_le_bytes(drawn);
        let mut state = seed | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % u64::from(self.vocab)) as u32
        };
        (0..tokens).map(|_| next()).collect()
    }

    async fn one(&self, client: &reqwest::Client, http: &str, prompt: u32) -> Result<(Times, Trace), Exit> {
        let failed = |e: &dyn std::fmt::Display| Exit::new(Kind::Request, format!("{http}: {e}"));
        let body = json!({
            "prompt": self.prompt(prompt), "max_tokens": self.answer, "temperature": 0, "ignore_eos": true,
            "stream": true, "return_token_ids": true,
        });
        let asked = Instant::now();
        let sent = client.post(format!("{http}/v1/completions")).header("x-tsnode-trace", "1").json(&body).send();
        let answer = sent.await.and_then(reqwest::Response::error_for_status).map_err(|e| failed(&e))?;
        let (mut stream, mut text, mut came, mut trace) = (answer.bytes_stream(), Vec::new(), Vec::new(), None);
        while let Some(bytes) = stream.next().await {
            let now = asked.elapsed().as_secs_f64();
            text.extend_from_slice(&bytes.map_err(|e| failed(&e))?);
            while let Some(end) = text.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = text.drain(..=end).collect();
                let Some(event) = line.strip_prefix(b"data: ") else { continue };
                let event: Value = serde_json::from_slice(event).unwrap_or_default();
                let tokens = event["choices"][0]["token_ids"].as_array().map_or(0, Vec::len);
                came.extend(std::iter::repeat_n(now, tokens));
                trace = serde_json::from_value(event["tsnode"].clone()).ok().or(trace);
            }
        }
        let trace: Trace = trace.ok_or_else(|| failed(&"the answer came without a trace"))?;
        let [Some(&first), Some(&second), Some(&all)] = [came.first(), came.get(1), came.last()] else {
            return Err(failed(&format!("{} tokens came of {}", came.len(), self.answer)));
        };
        let Parts { queue, prefill, pack, wire, unpack, .. } = trace.parts;
        let handed_over = (pack + wire + unpack).0;
        let (traced, queue, prefill) = (trace.parts.sum().0 / all, queue.0, prefill.0);
        Ok((Times { first, second, all, traced, queue, prefill, handed_over }, trace))
    }
}

/// The median of each time, and the last trace.
fn middle(mut seen: Vec<(Times, Trace)>) -> (Times, Trace) {
    let median = |of: fn(&Times) -> f64| {
        let mut all: Vec<f64> = seen.iter().map(|(times, _)| of(times)).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let times = Times {
        first: median(|t| t.first),
        second: median(|t| t.second),
        all: median(|t| t.all),
        traced: median(|t| t.traced),
        queue: median(|t| t.queue),
        prefill: median(|t| t.prefill),
        handed_over: median(|t| t.handed_over),
    };
    // There is a round at least.
    let (_, trace) = seen.swap_remove(seen.len() - 1);
    (times, trace)
}
