//! A machine that services share by SeaLLM's doubling budget ([`tsnode_coordinator::policy::sharing::budgets`]).

use super::{
    pages::Pages,
    sharing::{
        Sharing,
        order::{Lead, MemoryRule, PromptStart, Rules},
    },
};
use tsnode_coordinator::policy::{batching::BatchLimits, sharing::budgets::Budgets};

pub use tsnode_coordinator::policy::sharing::budgets::{ExpectedTime, ServiceProfile};

/// The policy.
pub type Doubling = Sharing<Budgets>;

impl Sharing<Budgets> {
    /// The rules that do best: budgets are costs, so batches can be weighed and memory be taken back.
    pub const RULES: Rules = Rules { prompts: PromptStart::Join, memory: MemoryRule::TakenBack, lead: Lead::Together };

    /// An idle machine with services of these profiles, by [`Self::RULES`]; a service that has none counts as one that takes
    /// no time.
    #[must_use]
    pub fn new(profiles: Vec<ServiceProfile>, limits: BatchLimits, pages: Pages) -> Self {
        Self::ordered(Budgets::new(profiles), limits, pages).by(Self::RULES)
    }
}
