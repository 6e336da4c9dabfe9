//! `--requests`: what became of each request of a trace, live and simulated, a line each (CSV). By what of it a figure is off is seen
//! where its requests are side by side.

use super::{fresh_traces::FreshTraces, simulated::SimulatedReplay};
use crate::{
    cli::{
        ask::PeerClient,
        bench::serve::{arrivals::PlannedRequest, client::RequestOutcome, timed_answer::TimedAnswer},
        exit::Exit,
    },
    gateway::Trace,
};
use std::collections::BTreeMap;
use tsnode_protocol::{PeerId, RequestId};

/// Times are seconds: an arrival and when something was simulated to happen since the trace began, all others how long it took. What
/// is not known is empty.
const COLUMNS: [&str; 19] = [
    "arrival",
    "prompt_tokens",
    "answer_tokens",
    "live_late",
    "live_prefill_peer",
    "live_decode_peer",
    "live_ttft",
    "live_e2e",
    "live_queue",
    "live_prefill",
    "live_decode_per_token",
    "simulated_prefill_peer",
    "simulated_decode_peer",
    "simulated_queued",
    "simulated_prompt_start",
    "simulated_first",
    "simulated_end",
    "simulated_ttft",
    "simulated_e2e",
];

/// What its gateway says of a request (s).
#[derive(Clone, Copy, Debug, PartialEq)]
struct LiveRequest {
    prefill: PeerId,
    decode: PeerId,
    queue: f64,
    prompt: f64,
    /// Each token behind the first; none of an answer of one.
    token: Option<f64>,
}

impl LiveRequest {
    fn of(trace: &Trace) -> Self {
        let steps = trace.new_tokens.checked_sub(1).filter(|steps| *steps > 0);
        Self {
            prefill: trace.prefill,
            decode: trace.decode,
            queue: trace.parts.queue.0,
            prompt: trace.parts.prefill.0,
            token: steps.map(|steps| trace.parts.decode.0 / f64::from(steps)),
        }
    }
}

/// What gateways say of a trace's requests, collected while it runs: they remember only the last ones.
pub(super) struct RequestLog<'p> {
    fresh: FreshTraces<'p>,
    /// As many as the trace has.
    most: usize,
    live: BTreeMap<RequestId, LiveRequest>,
}

impl<'p> RequestLog<'p> {
    /// Of so many requests that come from now on.
    pub async fn begun(peer: &'p PeerClient, most: usize) -> Result<Self, Exit> {
        let mut fresh = FreshTraces::new(peer);
        fresh.pass_over().await?;
        Ok(Self { fresh, most, live: BTreeMap::new() })
    }

    /// Takes those that have ended since the last look.
    pub async fn look(&mut self) -> Result<(), Exit> {
        let Self { fresh, most, live } = self;
        let take = |trace: Trace| {
            if live.len() < *most {
                live.insert(trace.request, LiveRequest::of(&trace));
            }
        };
        fresh.each(take).await
    }

    /// All that was seen.
    pub fn ended(self) -> LiveRequests {
        LiveRequests(self.live)
    }
}

/// What was seen of a trace's requests.
#[derive(Debug, Default)]
pub(super) struct LiveRequests(BTreeMap<RequestId, LiveRequest>);

impl LiveRequests {
    fn of(&self, answer: &TimedAnswer) -> Option<&LiveRequest> {
        self.0.get(&answer.request.as_ref()?.parse::<RequestId>().ok()?)
    }

    /// Answers of which the gateway had said nothing when they were asked for: it remembers other ones.
    pub fn missed(&self, outcomes: &[RequestOutcome]) -> usize {
        outcomes
            .iter()
            .filter_map(|outcome| outcome.answer.as_ref().ok())
            .filter(|answer| self.of(answer).is_none())
            .count()
    }

    /// A line for each request, in the order of the trace.
    pub fn csv(
        &self,
        planned: &[PlannedRequest],
        outcomes: &[RequestOutcome],
        simulated: &SimulatedReplay,
        name: impl Fn(PeerId) -> String,
    ) -> String {
        let outcomes: BTreeMap<usize, &RequestOutcome> =
            outcomes.iter().map(|outcome| (outcome.index, outcome)).collect();
        let row = |(n, request): (usize, &PlannedRequest)| {
            let asked = [seconds(request.at.as_secs_f64()), request.prompt.to_string(), request.answer.to_string()];
            let live = self.live_cells(outcomes.get(&n).copied(), &name);
            asked.into_iter().chain(live).chain(simulated_cells(simulated, n, &name)).collect::<Vec<_>>().join(",")
                + "\n"
        };
        let rows = planned.iter().enumerate().map(row);
        std::iter::once(COLUMNS.join(",") + "\n").chain(rows).collect()
    }

    fn live_cells(&self, outcome: Option<&RequestOutcome>, name: impl Fn(PeerId) -> String) -> [String; 8] {
        let Some(RequestOutcome { late, answer, .. }) = outcome else { return Default::default() };
        let (late, answer) = (seconds(late.as_secs_f64()), answer.as_ref().ok());
        let [ttft, e2e] =
            answer.map_or_else(Default::default, |a| [a.first, a.whole].map(|t| seconds(t.as_secs_f64())));
        let seen = answer.and_then(|answer| self.of(answer));
        let [prefill, decode] = seen.map_or_else(Default::default, |seen| [seen.prefill, seen.decode].map(&name));
        let time = |of: fn(&LiveRequest) -> Option<f64>| seen.and_then(of).map_or_else(String::new, seconds);
        let [queue, prompt, token] = [time(|s| Some(s.queue)), time(|s| Some(s.prompt)), time(|s| s.token)];
        [late, prefill, decode, ttft, e2e, queue, prompt, token]
    }
}

fn simulated_cells(simulated: &SimulatedReplay, n: usize, name: impl Fn(PeerId) -> String) -> [String; 8] {
    let Some(request) = simulated.request(n) else { return Default::default() };
    let [prefill, decode] = request.peers.map(|peer| peer.map_or_else(String::new, &name));
    let trace = request.trace;
    let queued = trace.prompt_start - trace.arrival.at;
    let [queued, start, first, end] = [queued, trace.prompt_start, trace.first, trace.end].map(|time| seconds(time.0));
    let [ttft, e2e] = [request.first, request.whole].map(seconds);
    [prefill, decode, queued, start, first, end, ttft, e2e]
}

/// To the microsecond; nothing of what never happened.
fn seconds(time: f64) -> String {
    if time.is_finite() { format!("{time:.6}") } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{
        bench::serve::timed_answer::Failure,
        requests::tests::trace,
        testnet::replay::simulated::tests::{replay, traced},
    };
    use std::time::Duration;

    const MS: Duration = Duration::from_millis(1);

    fn planned(at: u32) -> PlannedRequest {
        PlannedRequest { at: at * MS, prompt: 61, answer: 41 }
    }

    fn outcome(index: usize, answer: Result<TimedAnswer, Failure>) -> RequestOutcome {
        RequestOutcome { index, late: 2 * MS, answer }
    }

    fn answer(request: Option<&str>) -> TimedAnswer {
        TimedAnswer { first: 45 * MS, whole: 3700 * MS, request: request.map(str::to_owned), ..TimedAnswer::default() }
    }

    #[test]
    fn a_request_is_a_line_with_what_was_seen_of_it_and_what_was_simulated() {
        let seen = trace(["a", "b", "c", "d"]);
        let live = LiveRequests(BTreeMap::from([(seen.request, LiveRequest::of(&seen))]));
        let refused = Failure::Refused { status: 503, said: "no room".into() };
        // In order of their ends; of the last nothing came, and the one before it the gateway had forgotten.
        let outcomes = [
            outcome(2, Ok(answer(Some("req-77777777777777777777777777777777")))),
            outcome(1, Err(refused)),
            outcome(0, Ok(answer(Some(&seen.request.to_string())))),
        ];
        assert_eq!(live.missed(&outcomes), 1);
        let simulated = replay(vec![traced(0.0), traced(0.5)]);
        let planned = [planned(0), planned(500), planned(600), planned(700)];
        let name = |peer: PeerId| format!("peer{}", peer.0[0]);
        let csv = live.csv(&planned, &outcomes, &simulated, name);
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!((lines.len(), lines[0].split(',').count()), (5, 19));
        let cells = |line: usize| lines[line].split(',').map(str::to_owned).collect::<Vec<_>>();
        assert!(lines.iter().all(|line| line.split(',').count() == 19), "{csv}");
        let asked = ["0.000000", "61", "41", "0.002000"];
        let seen = ["peer1", "peer3", "0.045000", "3.700000", "0.002000", "0.038000", "0.090000"];
        assert_eq!((&cells(1)[..4], &cells(1)[4..11]), (&asked.map(String::from)[..], &seen.map(String::from)[..]));
        // A prompt that waited 100 ms and took 200, an answer of a second; 10 ms and 5 beside them.
        let ours = ["peer8", "peer9", "0.100000", "0.100000", "0.300000", "1.300000", "0.310000", "1.305000"];
        assert_eq!(&cells(1)[11..], &ours.map(String::from)[..]);
        assert!(lines[2].starts_with("0.500000,61,41,0.002000,,,,,,,,peer8,peer9,0.100000,0.600000,"), "{csv}");
        assert!(lines[3].starts_with("0.600000,61,41,0.002000,,,0.045000,3.700000,,,,,,"), "{csv}");
        assert_eq!(lines[4], "0.700000,61,41,,,,,,,,,,,,,,,,");
    }

    #[test]
    fn what_never_happened_is_empty() {
        let mut never = traced(0.0);
        never.end = tsnode_protocol::Seconds(f64::INFINITY);
        let cells = simulated_cells(&replay(vec![never]), 0, |_| String::new());
        assert_eq!((cells[4].as_str(), cells[5].as_str(), cells[7].as_str()), ("0.300000", "", ""));
        let one = Trace { new_tokens: 1, ..trace(["a", "b", "c", "d"]) };
        assert_eq!(LiveRequest::of(&one).token, None);
    }
}
