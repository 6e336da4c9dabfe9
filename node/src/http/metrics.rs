//! What is counted, for Prometheus: requests of this gateway's clients by model, and the state of its peer.
//!
//! What vLLM counts too has its name there beside ours, so that dashboards and load generators made for it find what they expect.

mod attainment;
mod exposition;
mod overflows;
mod request;
mod services;

pub(super) use attainment::JudgedRequest;
pub(super) use exposition::ExpositionFormat;
pub(super) use request::RequestStats;

use crate::view::{ModelTurns, SwarmView};
use attainment::AttainmentCounters;
use overflows::Overflows;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeMetric},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use services::ServiceMonitors;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use tsnode_protocol::Seconds;

/// Models that have rows of their own: their names are peers' words. What is more is counted together.
const MODELS: usize = 64;
/// The name of those.
const OTHERS: &str = "other";
/// From a token that is at hand to one that a queue of minutes is waited for (seconds), as vLLM's.
const FIRST_TOKEN: [f64; 20] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
];
/// Between two tokens (seconds).
const BETWEEN: [f64; 18] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0];
/// Of parts of requests, and whole ones (seconds): vLLM's, and some below them for small models.
const LATENCY: [f64; 22] = [
    0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0,
];
/// A request's time as a multiple of what such requests take alone: below 1 where a prefix cache or speculation helped.
const NORMALISED: [f64; 16] = [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.5, 10.0, 20.0, 50.0, 100.0];
/// Tokens of a request.
const TOKENS: [f64; 18] =
    [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5];

/// The model that a request is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByModel {
    model_name: String,
}

/// And how a choice ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByEnd {
    model_name: String,
    finished_reason: &'static str,
}

/// What proposed tokens.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByMethod {
    method: &'static str,
}

type Counters = Family<ByModel, Counter>;
type Gauges = Family<ByModel, Gauge>;
type Histograms = Family<ByModel, Histogram, fn() -> Histogram>;

/// Counters of one peer's HTTP side.
#[derive(Debug)]
pub struct Metrics {
    accepted: Counters,
    unserved: Counters,
    finished: Counters,
    cancelled: Counters,
    failed: Counters,
    choices: Family<ByEnd, Counter>,
    prompt_tokens: Counters,
    cached_tokens: Counters,
    generation_tokens: Counters,
    first_tokens: Counters,
    waiting: Gauges,
    running: Gauges,
    queue_time: Histograms,
    prefill_time: Histograms,
    decode_time: Histograms,
    time_to_first_token: Histograms,
    inter_token_latency: Histograms,
    e2e_latency: Histograms,
    inference_time: Histograms,
    time_per_output_token: Histograms,
    normalised_latency: Histograms,
    prompt_lengths: Histograms,
    generation_lengths: Histograms,
    longest_choices: Histograms,
    kept: Arc<AttainmentCounters>,
    overflows: Arc<Overflows>,
    services: Arc<ServiceMonitors>,
    /// Held for set operations only.
    models: Mutex<BTreeSet<String>>,
}

impl Default for Metrics {
    fn default() -> Self {
        let latency = || Histograms::new_with_constructor(|| Histogram::new(LATENCY));
        let tokens = || Histograms::new_with_constructor(|| Histogram::new(TOKENS));
        Self {
            accepted: Counters::default(),
            unserved: Counters::default(),
            finished: Counters::default(),
            cancelled: Counters::default(),
            failed: Counters::default(),
            choices: Family::default(),
            prompt_tokens: Counters::default(),
            cached_tokens: Counters::default(),
            generation_tokens: Counters::default(),
            first_tokens: Counters::default(),
            waiting: Gauges::default(),
            running: Gauges::default(),
            queue_time: latency(),
            prefill_time: latency(),
            decode_time: latency(),
            time_to_first_token: Histograms::new_with_constructor(|| Histogram::new(FIRST_TOKEN)),
            inter_token_latency: Histograms::new_with_constructor(|| Histogram::new(BETWEEN)),
            e2e_latency: latency(),
            inference_time: latency(),
            time_per_output_token: Histograms::new_with_constructor(|| Histogram::new(BETWEEN)),
            normalised_latency: Histograms::new_with_constructor(|| Histogram::new(NORMALISED)),
            prompt_lengths: tokens(),
            generation_lengths: tokens(),
            longest_choices: tokens(),
            kept: Arc::default(),
            overflows: Arc::default(),
            services: Arc::default(),
            models: Mutex::default(),
        }
    }
}

impl Metrics {
    /// A client's request for that model has its prompt's tokens, and waits for groups to take it.
    pub(super) fn arrived(&self, model_name: &str, judged: JudgedRequest) -> RequestStats {
        RequestStats::new(self, self.row(model_name), judged, Instant::now())
    }

    /// The row of a model.
    fn row(&self, model_name: &str) -> ByModel {
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        if models.len() < MODELS {
            models.insert(model_name.to_owned());
        }
        let model_name = if models.contains(model_name) { model_name } else { OTHERS };
        ByModel { model_name: model_name.to_owned() }
    }

    /// All of it, in the form that was asked for, by the names that were asked for.
    pub(super) fn render(&self, view: &SwarmView, format: ExpositionFormat, names: MetricNames) -> String {
        let mut page = MetricsPage { registry: Registry::default(), names };
        self.requests(&mut page);
        self.tokens(&mut page);
        of_swarm(view, &mut page);
        of_peer(view, &mut page);
        exposition::encode(&page.registry, format)
    }

    fn requests(&self, page: &mut MetricsPage) {
        page.add("tsnode_requests_accepted", "Requests taken by groups", &self.accepted);
        page.add("tsnode_requests_unserved", "Requests nobody served", &self.unserved);
        page.add("tsnode_requests_finished", "Requests answered to the end", &self.finished);
        page.add("tsnode_requests_cancelled", "Requests whose client went before the end", &self.cancelled);
        page.add("tsnode_requests_failed", "Requests whose answer broke off", &self.failed);
        let help = "Requests that ended while there were targets for them (tsnode targets)";
        page.add("tsnode_requests_with_targets", help, &self.kept.judged);
        page.add("tsnode_requests_in_time", "Of those, requests that kept every target", &self.kept.in_time);
        let help = "Answers that one group computed and gave since a pool had no room, by pool (tsnode route)";
        page.add("tsnode_pool_overflows", help, &self.overflows.counted);
        let help = "Answers that came to their end, several of a request with n, by how";
        page.add("tsnode_choices_finished", help, &self.choices);
        page.add("vllm:request_success", help, &self.choices);
        let help = "Requests that no group has taken yet";
        page.add("tsnode_requests_waiting", help, &self.waiting);
        page.add("vllm:num_requests_waiting", help, &self.waiting);
        let help = "Requests that groups have taken, and that have not ended";
        page.add("tsnode_requests_running", help, &self.running);
        page.add("vllm:num_requests_running", help, &self.running);
        let help = "Seconds that a request waited for pages, for its turn, and on the way there";
        page.add("tsnode_request_queue_time_seconds", help, &self.queue_time);
        page.add("vllm:request_queue_time_seconds", help, &self.queue_time);
        let help = "Seconds in steps of a request's prompt";
        page.add("tsnode_request_prefill_time_seconds", help, &self.prefill_time);
        page.add("vllm:request_prefill_time_seconds", help, &self.prefill_time);
        let help = "Seconds in steps of a request's answer";
        page.add("tsnode_request_decode_time_seconds", help, &self.decode_time);
        page.add("vllm:request_decode_time_seconds", help, &self.decode_time);
        let help = "Seconds from a request's prompt to the first token of its answer";
        page.add("tsnode_time_to_first_token_seconds", help, &self.time_to_first_token);
        page.add("vllm:time_to_first_token_seconds", help, &self.time_to_first_token);
        let help = "Seconds between two tokens of an answer";
        page.add("tsnode_inter_token_latency_seconds", help, &self.inter_token_latency);
        page.add("vllm:inter_token_latency_seconds", help, &self.inter_token_latency);
        page.add("vllm:time_per_output_token_seconds", help, &self.inter_token_latency);
        let help = "Seconds from a request's prompt to the end of its last answer";
        page.add("tsnode_e2e_request_latency_seconds", help, &self.e2e_latency);
        page.add("vllm:e2e_request_latency_seconds", help, &self.e2e_latency);
        let help = "Seconds from when a request has its turn to its end";
        page.add("tsnode_request_inference_time_seconds", help, &self.inference_time);
        page.add("vllm:request_inference_time_seconds", help, &self.inference_time);
        let help = "Seconds between tokens of a request that was answered to the end, on average";
        page.add("tsnode_request_time_per_output_token_seconds", help, &self.time_per_output_token);
        page.add("vllm:request_time_per_output_token_seconds", help, &self.time_per_output_token);
        let help = "A request's time over the mean time that its model's requests take alone (SeaLLM)";
        page.add("tsnode_request_normalised_latency_ratio", help, &self.normalised_latency);
    }

    fn tokens(&self, page: &mut MetricsPage) {
        let help = "Prompt tokens of accepted requests, each prompt once";
        page.add("tsnode_prompt_tokens", help, &self.prompt_tokens);
        page.add("vllm:prompt_tokens", help, &self.prompt_tokens);
        page.add("vllm:prefix_cache_queries", help, &self.prompt_tokens);
        let help = "Prompt tokens not computed anew";
        page.add("tsnode_prompt_tokens_cached", help, &self.cached_tokens);
        page.add("vllm:prefix_cache_hits", help, &self.cached_tokens);
        let help = "Tokens given to clients";
        page.add("tsnode_generation_tokens", help, &self.generation_tokens);
        page.add("vllm:generation_tokens", help, &self.generation_tokens);
        page.add("tsnode_new_tokens", "Deprecated: tsnode_generation_tokens_total", &self.generation_tokens);
        page.add("tsnode_first_tokens", "Answers begun", &self.first_tokens);
        let help = "Prompt tokens of a request that was answered to the end";
        page.add("tsnode_request_prompt_tokens", help, &self.prompt_lengths);
        page.add("vllm:request_prompt_tokens", help, &self.prompt_lengths);
        let help = "Tokens of all answers of a request that was answered to the end";
        page.add("tsnode_request_generation_tokens", help, &self.generation_lengths);
        page.add("vllm:request_generation_tokens", help, &self.generation_lengths);
        let help = "Tokens of the longest answer of a request that was answered to the end";
        page.add("tsnode_request_max_num_generation_tokens", help, &self.longest_choices);
        page.add("vllm:request_max_num_generation_tokens", help, &self.longest_choices);
    }
}

/// By whose names a page is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum MetricNames {
    /// Ours and vLLM's.
    #[default]
    Both,
    /// Ours alone.
    Ours,
    /// vLLM's alone.
    Vllm,
}

/// What is written out.
struct MetricsPage {
    registry: Registry,
    names: MetricNames,
}

impl MetricsPage {
    fn add<M: EncodeMetric + Clone + Debug + Send + Sync + 'static>(&mut self, name: &str, help: &str, metric: &M) {
        let is_ours = name.starts_with("tsnode_");
        if match self.names {
            MetricNames::Both => true,
            MetricNames::Ours => is_ours,
            MetricNames::Vllm => !is_ours,
        } {
            self.registry.register(name, help, metric.clone());
        }
    }

    fn count(&mut self, name: &str, help: &str, value: u64) {
        let counter = Counter::<u64>::default();
        counter.inc_by(value);
        self.add(name, help, &counter);
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        let gauge = Gauge::<i64>::default();
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        self.add(name, help, &gauge);
    }
}

fn of_swarm(view: &SwarmView, page: &mut MetricsPage) {
    page.gauge("tsnode_peers", "Peers alive", view.peers.len() as u64);
    page.gauge("tsnode_groups_ready", "Groups that take requests", view.ready_groups.len() as u64);
    page.count("tsnode_messages_refused", "Messages refused since the start", view.rejected.values().sum());
    let fetched = view.fetching.as_ref().map_or(0, |far| far.fetched);
    page.count("tsnode_weights_fetched_bytes", "Weights fetched from other peers since the start (bytes)", fetched);
    let help = "Weights given to other peers since the start (bytes)";
    page.count("tsnode_weights_given_bytes", help, view.weights_given);
    page.count("tsnode_kv_refused", "KV streams refused since the start", view.kv_refused.values().sum());
    let checks = &view.spot_checks;
    page.count("tsnode_spot_checks_passed", "Spot checks whose token another group got too", checks.passed);
    page.count("tsnode_spot_checks_failed", "Spot checks that found a wrong answer", checks.failed);
    page.count("tsnode_spot_checks_unclear", "Spot checks that nobody could decide", checks.unclear);
}

fn of_peer(view: &SwarmView, page: &mut MetricsPage) {
    let own = view.peers.iter().find(|p| p.id == view.me);
    let (free, all) = own.map_or((0, 0), |p| (p.load.free_pages, p.load.total_pages));
    page.gauge("tsnode_kv_pages_free", "KV pages free on this peer", free.into());
    page.gauge("tsnode_kv_pages", "KV pages of this peer", all.into());
    page.gauge("tsnode_kv_bytes", "Bytes of KV pages that the system has given", view.in_use.kv);
    page.gauge("tsnode_weight_bytes", "Bytes of weights of the stages that are loaded", view.in_use.weights);
    page.count("tsnode_stages_loaded", "Stages loaded or begun to be since the start", view.weights.stages);
    page.count("tsnode_weight_bytes_read", "Bytes of weights read since the start", view.weights.bytes);
    let usage = Family::<ByModel, Gauge<f64, AtomicU64>>::default();
    for model_name in served(view) {
        let used = 1.0 - f64::from(free) / f64::from(all.max(1));
        usage.get_or_create(&ByModel { model_name }).set(if all == 0 { 0.0 } else { used });
    }
    let help = "Share of this peer's KV pages that is taken, 0 to 1";
    page.add("tsnode_kv_cache_usage_ratio", help, &usage);
    page.add("vllm:kv_cache_usage_perc", help, &usage);
    page.add("vllm:gpu_cache_usage_perc", help, &usage);
    turns(view, page);
    speculation(view, page);
}

/// What models have had of this peer's devices.
fn turns(view: &SwarmView, page: &mut MetricsPage) {
    type Times = Family<ByModel, Counter<f64, AtomicU64>>;
    let [steps, sequences, prompt_tokens, errands, passed]: [Counters; 5] =
        std::array::from_fn(|_| Counters::default());
    let [busy, errands_busy, waited, idle]: [Times; 4] = std::array::from_fn(|_| Times::default());
    for ModelTurns { model, used } in &view.turns {
        let Some(card) = view.models.iter().find(|card| card.id == *model) else { continue };
        let of = ByModel { model_name: card.name.clone() };
        let counts = [
            (&steps, used.steps),
            (&sequences, used.sequences),
            (&prompt_tokens, used.prompt_tokens),
            (&errands, used.errands),
            (&passed, used.passed),
        ];
        for (counter, value) in counts {
            counter.get_or_create(&of).inc_by(value);
        }
        let times =
            [(&busy, used.busy), (&errands_busy, used.errands_busy), (&waited, used.waited), (&idle, used.idle)];
        for (counter, Seconds(value)) in times {
            // A counter that falls would be an error.
            counter.get_or_create(&of).inc_by(value.max(0.0));
        }
    }
    page.add("tsnode_steps", "Steps that were computed here", &steps);
    page.add("tsnode_step_sequences", "Sequences in these steps, each counted in every step", &sequences);
    page.add("tsnode_step_prompt_tokens", "Tokens of prompts in these steps", &prompt_tokens);
    page.add("tsnode_step_seconds", "Seconds that these steps took on their devices", &busy);
    page.add("tsnode_errands", "Turns that were no steps, as setting memory aside", &errands);
    page.add("tsnode_errand_seconds", "Seconds that these took", &errands_busy);
    page.add("tsnode_turn_wait_seconds", "Seconds that steps and errands waited for their turns", &waited);
    let help = "Seconds that a device was nobody's before these turns while somebody waited";
    page.add("tsnode_device_idle_seconds", help, &idle);
    page.add("tsnode_device_kept_in_vain", "Times that a device was kept for a step that came too late", &passed);
}

fn speculation(view: &SwarmView, page: &mut MetricsPage) {
    let (drafted, accepted) = (Family::<ByMethod, Counter>::default(), Family::<ByMethod, Counter>::default());
    let methods = [
        ("ngram", view.drafts.lookup, ["tsnode_guesses_lookup", "tsnode_guesses_lookup_right"]),
        ("draft_model", view.drafts.draft, ["tsnode_guesses_draft", "tsnode_guesses_draft_right"]),
    ];
    for (method, checked, former) in methods {
        drafted.get_or_create(&ByMethod { method }).inc_by(checked.made);
        accepted.get_or_create(&ByMethod { method }).inc_by(checked.right);
        page.gauge(former[0], "Deprecated: tsnode_spec_decode_num_draft_tokens_total", checked.made);
        page.gauge(former[1], "Deprecated: tsnode_spec_decode_num_accepted_tokens_total", checked.right);
    }
    page.add("tsnode_spec_decode_num_draft_tokens", "Tokens proposed, by what", &drafted);
    page.add("tsnode_spec_decode_num_accepted_tokens", "Of those, tokens that were accepted", &accepted);
}

/// Names of models that this peer has stages of.
fn served(view: &SwarmView) -> BTreeSet<String> {
    let groups = view.plan.iter().flat_map(|plan| &plan.groups);
    let own = groups.filter(|group| group.stages.iter().any(|stage| stage.peer == view.me));
    let models: BTreeSet<_> = own.map(|group| group.model).collect();
    view.models.iter().filter(|card| models.contains(&card.id)).map(|card| card.name.clone()).collect()
}
