//! What is counted, for Prometheus.

use crate::view::SwarmView;
use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};

/// Counters of one peer's HTTP side.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Requests that a prefill and a decode group took.
    accepted: Counter,
    /// Requests that nobody served.
    unserved: Counter,
    /// Requests answered to the end.
    finished: Counter,
    /// Streams whose client went before the end.
    hung_up: Counter,
    /// Prompt tokens of accepted requests.
    prompt_tokens: Counter,
    /// Prompt tokens that were not computed: another request had begun with them.
    cached_tokens: Counter,
    /// Tokens given to clients.
    new_tokens: Counter,
    /// Answers begun.
    first_tokens: Counter,
}

impl Metrics {
    pub(super) fn accepted(&self, prompt_tokens: usize) {
        self.accepted.inc();
        self.prompt_tokens.inc_by(prompt_tokens as u64);
    }

    pub(super) fn cached(&self, tokens: u32) {
        self.cached_tokens.inc_by(tokens.into());
    }

    pub(super) fn unserved(&self) {
        self.unserved.inc();
    }

    pub(super) fn finished(&self) {
        self.finished.inc();
    }

    pub(super) fn hung_up(&self) {
        self.hung_up.inc();
    }

    pub(super) fn token(&self, index: u32) {
        self.new_tokens.inc();
        if index == 0 {
            self.first_tokens.inc();
        }
    }

    /// All counters and the swarm's gauges in Prometheus' text form.
    #[must_use]
    pub fn render(&self, view: &SwarmView) -> String {
        let mut registry = Registry::with_prefix("tsnode");
        registry.register("requests_accepted", "Requests taken by groups", self.accepted.clone());
        registry.register("requests_unserved", "Requests nobody served", self.unserved.clone());
        registry.register("requests_finished", "Requests answered to the end", self.finished.clone());
        registry.register("requests_hung_up", "Streams whose client went early", self.hung_up.clone());
        registry.register("prompt_tokens", "Prompt tokens of accepted requests", self.prompt_tokens.clone());
        registry.register("prompt_tokens_cached", "Prompt tokens not computed anew", self.cached_tokens.clone());
        registry.register("new_tokens", "Tokens given to clients", self.new_tokens.clone());
        registry.register("first_tokens", "Answers begun", self.first_tokens.clone());
        let own = view.peers.iter().find(|p| p.id == view.me);
        let pages = own.map_or((0, 0), |p| (p.load.free_pages, p.load.total_pages));
        let gauges = [
            ("peers", "Peers alive", view.peers.len() as i64),
            ("groups_ready", "Groups that take requests", view.ready_groups.len() as i64),
            ("kv_pages_free", "KV pages free on this peer", pages.0.into()),
            ("kv_pages", "KV pages of this peer", pages.1.into()),
            ("kv_bytes", "Bytes of KV pages that the system has given", view.in_use.kv as i64),
            ("weight_bytes", "Bytes of weights of the stages that are loaded", view.in_use.weights as i64),
            ("stages_loaded", "Stages loaded or begun to be since the start", view.weights.stages as i64),
            ("weight_bytes_read", "Bytes of weights read since the start", view.weights.bytes as i64),
            ("kv_refused", "KV streams refused since the start", view.kv_refused.values().sum::<u64>() as i64),
            ("guesses_lookup", "Tokens guessed by what an answer repeats", view.drafts.lookup.made as i64),
            ("guesses_lookup_right", "Of those, the right ones", view.drafts.lookup.right as i64),
            ("guesses_draft", "Tokens guessed by the draft model", view.drafts.draft.made as i64),
            ("guesses_draft_right", "Of those, the right ones", view.drafts.draft.right as i64),
            ("spot_checks_passed", "Spot checks whose token another group got too", view.spot_checks.passed as i64),
            ("spot_checks_failed", "Spot checks that found a wrong answer", view.spot_checks.failed as i64),
            ("spot_checks_unclear", "Spot checks that nobody could decide", view.spot_checks.unclear as i64),
            ("messages_refused", "Messages refused since the start", view.rejected.values().sum::<u64>() as i64),
        ];
        for (name, help, value) in gauges {
            let gauge = Gauge::<i64>::default();
            gauge.set(value);
            registry.register(name, help, gauge);
        }
        let mut text = String::new();
        // Writing into a string does not fail.
        let _ = encode(&mut text, &registry);
        text
    }
}
