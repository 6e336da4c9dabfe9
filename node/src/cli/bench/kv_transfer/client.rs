//! One client's answers, and when their tokens came.

use super::swarms::KeptSwarm;
use crate::{
    cli::exit::{Exit, ExitKind},
    gateway::Trace,
};
use futures::StreamExt;
use serde::Serialize;
use serde_json::{Value, json};
use std::time::Instant;
use tsnode_coordinator::gateway::LatencyBreakdown;

/// What is asked for.
pub(super) struct BenchAsk {
    pub vocab: u32,
    /// Tokens of an answer.
    pub answer: u32,
    /// How often.
    pub rounds: u32,
}

/// How a prompt's KV comes to where it is decoded: what the request says of it (`x-tsnode-kv`), if anything.
#[derive(Clone, Copy, Debug)]
pub(super) struct KvTransferMode(pub Option<&'static str>);

impl KvTransferMode {
    pub const IN_PLACE: Self = Self(Some("in-place"));
    pub const SENT: Self = Self(Some("sent"));
    pub const LAYERS: Self = Self(Some("layers"));
    pub const WHOLE: Self = Self(Some("whole"));
    /// As the cost gate likes.
    pub const GATED: Self = Self(None);
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

impl BenchAsk {
    /// One swarm's answers to new prompts, asked for in turns, whoever comes first taking turns too. Two processes of one program on one
    /// machine differ by several percent, for as long as they live: so the same peer decodes on every way.
    pub async fn in_turns<const N: usize>(
        &self,
        swarm: &KeptSwarm,
        ways: [KvTransferMode; N],
        prompt: u32,
    ) -> Result<[SeenAnswers; N], Exit> {
        let client = tsnode_testnet::client::plain_http();
        let mut seen: [Vec<(Times, Trace)>; N] = std::array::from_fn(|_| Vec::new());
        // The first round is for what has to be done once: connections, pages.
        for round in 0..=self.rounds as usize {
            for turn in 0..N {
                let at = (round + turn) % N;
                let answer = self.one(&client, &swarm.http(), ways[at], prompt).await?;
                if round > 0 {
                    seen[at].push(answer);
                }
            }
        }
        Ok(seen.map(SeenAnswers))
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

    async fn one(
        &self,
        client: &reqwest::Client,
        http: &str,
        way: KvTransferMode,
        prompt: u32,
    ) -> Result<(Times, Trace), Exit> {
        let failed = |e: &dyn std::fmt::Display| Exit::new(ExitKind::Request, format!("{http}: {e}"));
        let body = json!({
            "prompt": self.prompt(prompt), "max_tokens": self.answer, "temperature": 0, "ignore_eos": true,
            "stream": true, "return_token_ids": true,
        });
        let asked = Instant::now();
        let request = client.post(format!("{http}/v1/completions")).header("x-tsnode-trace", "1").json(&body);
        let request = match way.0 {
            Some(way) => request.header("x-tsnode-kv", way),
            None => request,
        };
        let answer = request.send().await.and_then(reqwest::Response::error_for_status).map_err(|e| failed(&e))?;
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
        let LatencyBreakdown { queue, prefill, pack, wire, unpack, .. } = trace.parts;
        let handed_over = (pack + wire + unpack).0;
        let (traced, queue, prefill) = (trace.parts.sum().0 / all, queue.0, prefill.0);
        Ok((Times { first, second, all, traced, queue, prefill, handed_over }, trace))
    }
}

/// Answers that came one way, in the order of their asking: one a round.
pub(super) struct SeenAnswers(Vec<(Times, Trace)>);

/// How much longer one way takes than another: the median over rounds, less one, and what it is uncertain by.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Slowdown {
    pub median: f64,
    /// The median's standard error, by the quartiles.
    pub error: f64,
}

impl SeenAnswers {
    /// The median of each time.
    pub fn times(&self) -> Times {
        let median = |of: fn(&Times) -> f64| quantile(self.0.iter().map(|(times, _)| of(times)).collect(), 0.5);
        Times {
            first: median(|t| t.first),
            second: median(|t| t.second),
            all: median(|t| t.all),
            traced: median(|t| t.traced),
            queue: median(|t| t.queue),
            prefill: median(|t| t.prefill),
            handed_over: median(|t| t.handed_over),
        }
    }

    /// The last answer's.
    pub fn trace(&self) -> Option<&Trace> {
        self.0.last().map(|(_, trace)| trace)
    }

    /// Round by round, since a machine is not as fast in one minute as in the next.
    pub fn over(&self, other: &Self, of: fn(&Times) -> f64) -> Slowdown {
        let ratios: Vec<f64> = self.0.iter().zip(&other.0).map(|((a, _), (b, _))| of(a) / of(b) - 1.0).collect();
        let spread = quantile(ratios.clone(), 0.75) - quantile(ratios.clone(), 0.25);
        // Of a normal distribution: quartiles 1.349 apart, and the error of a median 1.253 times that of the mean.
        let error = 1.253 / 1.349 * spread / (ratios.len() as f64).sqrt();
        Slowdown { median: quantile(ratios, 0.5), error }
    }
}

/// Between values by how far it is; of none, no number.
fn quantile(mut all: Vec<f64>, part: f64) -> f64 {
    all.sort_by(f64::total_cmp);
    let at = part * all.len().saturating_sub(1) as f64;
    let (below, above) = (all.get(at.floor() as usize), all.get(at.ceil() as usize));
    match (below, above) {
        (Some(below), Some(above)) => below + (above - below) * at.fract(),
        _ => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::quantile;

    #[test]
    fn quantiles_lie_between_values() {
        assert_eq!(quantile(vec![4.0, 1.0, 3.0, 2.0], 0.5), 2.5);
        assert_eq!(quantile(vec![5.0, 1.0, 3.0], 0.25), 2.0);
        assert_eq!(quantile(vec![7.0], 0.75), 7.0);
        assert!(quantile(vec![], 0.5).is_nan());
    }
}
