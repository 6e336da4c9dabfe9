//! Policies by name: to add one, add a line.

use super::super::plan::asked::usage;
use crate::cli::exit::Exit;
use tsnode_coordinator::{
    policy::{batching::BatchLimits, choice::Batches},
    scheduler::prompts::PromptChunking,
};
use tsnode_simulator::{
    orders::{Batched, RequestOrder},
    policy::dispatch::ComparedDispatch,
};

/// Splitwise's limits of an iteration (§IV-B).
const MIXED: BatchLimits = BatchLimits { tasks: 512, tokens: 2048 };
/// Tokens of an iteration with chunks, as nodes have them.
const CHUNKS: u32 = 512;

/// Prompts first, one after the other.
const WHOLE: Batched = Batched::Steps(Batches::PrefillFirst);

/// What nodes do.
pub(super) const USUAL: &str = "live+chunked";

/// A way to route and to batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct ComparedPolicy {
    pub(super) name: &'static str,
    pub(super) dispatch: ComparedDispatch,
    pub(super) batched: Batched,
    what: &'static str,
}

impl ComparedPolicy {
    /// How it computes prompts, as closed forms have it.
    pub(super) fn prompts(&self) -> PromptChunking {
        self.batched.prompts()
    }
}

const fn policy(
    name: &'static str,
    dispatch: ComparedDispatch,
    batched: Batched,
    what: &'static str,
) -> ComparedPolicy {
    ComparedPolicy { name, dispatch, batched, what }
}

/// Routed as the plan's shares and live queues say.
const fn ordered(name: &'static str, order: RequestOrder, what: &'static str) -> ComparedPolicy {
    ComparedPolicy { name, dispatch: ComparedDispatch::Live, batched: Batched::Ordered(order), what }
}

const POLICIES: &[ComparedPolicy] = &[
    policy("live", ComparedDispatch::Live, WHOLE, "the plan's shares corrected by queues, prompts first"),
    policy("shares", ComparedDispatch::Shares, WHOLE, "the plan's shares alone"),
    policy("shortest", ComparedDispatch::Shortest, WHOLE, "the shortest queues, whatever the shares"),
    policy("random", ComparedDispatch::Random, WHOLE, "any route"),
    policy(
        "live+chunked",
        ComparedDispatch::Live,
        Batched::Steps(Batches::Chunked(CHUNKS)),
        "as live; answers, and prompts in chunks beside them",
    ),
    policy(
        "live+chunked-mixed",
        ComparedDispatch::Live,
        Batched::Steps(Batches::Mixed(CHUNKS)),
        "as live; prompts in chunks, and answers beside them as far as tokens reach",
    ),
    policy(
        "live+prefill-first",
        ComparedDispatch::Live,
        Batched::Steps(Batches::PromptsFirst(CHUNKS)),
        "as live; prompts alone, in longer chunks, answers after them",
    ),
    policy(
        "live+mixed",
        ComparedDispatch::Live,
        Batched::Mixed(MIXED),
        "as live; prompts and answers in one iteration",
    ),
    policy(
        "shortest+mixed",
        ComparedDispatch::Shortest,
        Batched::Mixed(MIXED),
        "as shortest; prompts and answers in one iteration",
    ),
    policy(
        "pools+chunked",
        ComparedDispatch::Pools,
        Batched::Steps(Batches::Chunked(CHUNKS)),
        "shortest queues of pools that lend each other groups (Splitwise), prompts in chunks",
    ),
    ordered("live+first-come", RequestOrder::FirstCome, "as live; one phase at a time, requests as they came"),
    ordered("live+feedback", RequestOrder::Feedback, "as live; skip-join feedback queues (FastServe)"),
    ordered("live+doubling", RequestOrder::Doubling, "as live; doubling budgets, shortest expected first (SeaLLM)"),
];

/// The policies of a list of names.
pub(super) fn named(names: &str) -> Result<Vec<ComparedPolicy>, Exit> {
    let known: Vec<&str> = POLICIES.iter().map(|p| p.name).collect();
    let find = |name: &str| {
        let found = POLICIES.iter().find(|p| p.name == name.trim()).copied();
        found.ok_or_else(|| usage(format!("no policy is called {name:?}; there are {}", known.join(", "))))
    };
    names.split(',').map(find).collect()
}

/// All of them, for `--help`.
pub(super) fn help() -> String {
    let lines: Vec<String> = POLICIES.iter().map(|p| format!("{} ({})", p.name, p.what)).collect();
    format!("Policies:\n  {}", lines.join("\n  "))
}
