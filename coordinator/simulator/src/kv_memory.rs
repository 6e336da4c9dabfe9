//! KV that machines hold, in tokens and in pages, from when what happened to requests.
//!
//! A prompt's machine holds its KV from the prompt's beginning until it has gone to the answer's machine; that one holds
//! it from then on, and the answer's KV, set aside as a whole, from the answer's beginning; all until the answer's end.

use tsnode_coordinator::{
    policy::routing::MachineNo,
    replay::machines::{Outcome, ReplayTrace},
};
use tsnode_protocol::{Bytes, Seconds};

/// Bytes of a page, as nodes have them.
pub(crate) const PAGE: Bytes = Bytes(65_536.0);

/// How KV lies in pages: a page holds tokens of one sequence in one layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PagedKv {
    /// The model's layers.
    pub layers: u32,
    /// Tokens of a layer in a page.
    pub tokens: u64,
}

impl PagedKv {
    /// For a model whose token takes so much in each of its layers.
    #[must_use]
    pub fn new(layers: u32, token: Bytes) -> Self {
        Self { layers, tokens: ((PAGE / token) as u64).max(1) }
    }

    /// That a sequence of so many tokens takes.
    #[must_use]
    pub fn of(&self, tokens: u64) -> u64 {
        u64::from(self.layers) * tokens.div_ceil(self.tokens)
    }
}

/// KV that a machine held.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HeldKv {
    /// Most at once (tokens).
    pub most_tokens: u64,
    /// Most at once (pages).
    pub most_pages: u64,
    /// On average over the whole time (tokens).
    pub mean_tokens: f64,
}

/// Of each machine.
#[must_use]
pub fn held(outcome: &Outcome, pages: PagedKv) -> Vec<HeldKv> {
    let mut changes: Vec<Vec<KvChange>> = vec![Vec::new(); outcome.busy.len()];
    for trace in &outcome.traces {
        stays(trace, outcome.end, &mut |machine, from, to, tokens| {
            let Some(changes) = changes.get_mut(machine.0 as usize) else { return };
            let (pages, tokens) = (pages.of(tokens) as i64, tokens as i64);
            changes.push(KvChange { at: from, tokens, pages });
            changes.push(KvChange { at: to, tokens: -tokens, pages: -pages });
        });
    }
    changes.into_iter().map(|all| sweep(all, outcome.end)).collect()
}

/// KV comes or goes.
#[derive(Clone, Copy)]
struct KvChange {
    at: Seconds,
    tokens: i64,
    pages: i64,
}

/// Where a request's KV lay, from when to when.
fn stays(trace: &ReplayTrace, last: Seconds, stay: &mut dyn FnMut(MachineNo, Seconds, Seconds, u64)) {
    let Some(route) = trace.route.filter(|_| trace.prompt_start.is_finite()) else { return };
    let (asked, end) = (trace.arrival.asked, trace.end.min(last));
    let landed =
        if asked.answer > 1 && route.prompt != route.answer { (trace.first + trace.sending).min(last) } else { end };
    stay(route.prompt, trace.prompt_start, landed, asked.prompt_memory());
    if landed < end {
        stay(route.answer, landed, end, asked.prompt_memory());
    }
    if trace.answer_start < end {
        stay(route.answer, trace.answer_start, end, asked.answer_memory());
    }
}

fn sweep(mut changes: Vec<KvChange>, last: Seconds) -> HeldKv {
    // What goes makes room for what comes at the same time.
    changes.sort_by(|a, b| a.at.0.total_cmp(&b.at.0).then(a.tokens.cmp(&b.tokens)));
    let (mut held, mut tokens, mut pages, mut before, mut sum) = (HeldKv::default(), 0i64, 0i64, Seconds(0.0), 0.0);
    for change in changes {
        sum += tokens as f64 * (change.at - before).0;
        (tokens, pages, before) = (tokens + change.tokens, pages + change.pages, change.at);
        held.most_tokens = held.most_tokens.max(tokens.max(0) as u64);
        held.most_pages = held.most_pages.max(pages.max(0) as u64);
    }
    held.mean_tokens = if last.0 > 0.0 { sum / last.0 } else { 0.0 };
    held
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_coordinator::{
        policy::routing::{Asked, RoutingDecision},
        replay::machines::Arrival,
    };

    /// A prompt of 100 tokens from 1 s to 2 s, gone at 3 s; its answer of 11 tokens from 4 s to 6 s. Twenty tokens of a
    /// layer in a page, two layers.
    #[test]
    fn kv_lies_where_it_was_computed_until_it_has_gone() {
        let route = Some(RoutingDecision { prompt: MachineNo(0), answer: MachineNo(1), split: None });
        let trace = ReplayTrace {
            arrival: Arrival { at: Seconds(0.0), asked: Asked::new(100, 11) },
            route,
            prompt_start: Seconds(1.0),
            first: Seconds(2.0),
            answer_start: Seconds(4.0),
            end: Seconds(6.0),
            sending: Seconds(1.0),
        };
        let outcome = Outcome { traces: vec![trace], busy: vec![0.0; 2], end: Seconds(10.0), ..Outcome::default() };
        let held = held(&outcome, PagedKv { layers: 2, tokens: 20 });
        assert_eq!((held[0].most_tokens, held[0].most_pages), (101, 12));
        assert_eq!((held[1].most_tokens, held[1].most_pages), (111, 14));
        assert!((held[0].mean_tokens - 101.0 * 2.0 / 10.0).abs() < 1e-9);
        assert!((held[1].mean_tokens - (101.0 * 3.0 + 10.0 * 2.0) / 10.0).abs() < 1e-9);
    }

    #[test]
    fn pages_are_those_of_a_node() {
        // LLaMA-30B: 2 · 6656 elements of two bytes in a layer.
        let pages = PagedKv::new(60, Bytes(2.0 * 6656.0 * 2.0));
        assert_eq!((pages.tokens, pages.of(3)), (2, 120));
    }
}
