//! Which machines get a request: the seam between routing policies and whoever drives them.

use super::batching::{Seen, ServiceNo};
use serde::{Deserialize, Serialize};
use std::fmt;
use tsnode_protocol::Seconds;

/// A machine's place in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MachineNo(pub u32);

/// What a router may know of a request. The length of its answer is what a predictor would say; traces know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The model it is for.
    pub service: ServiceNo,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Tokens of the answer, the first included.
    pub answer: u32,
}

impl Asked {
    /// A request where there is one model only.
    #[must_use]
    pub fn new(prompt: u32, answer: u32) -> Self {
        Self { service: ServiceNo::default(), prompt, answer }
    }

    /// KV of the prompt and the first token (tokens).
    #[must_use]
    pub fn prompt_memory(&self) -> u64 {
        u64::from(self.prompt) + 1
    }

    /// KV of the rest of the answer (tokens).
    #[must_use]
    pub fn answer_memory(&self) -> u64 {
        u64::from(self.answer) - 1
    }
}

/// Where a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoutingDecision {
    /// Computes the prompt.
    pub prompt: MachineNo,
    /// Generates the answer; may be the same.
    pub answer: MachineNo,
    /// How many of the prompt's tokens the first machine computes, if the other computes the rest.
    pub split: Option<u32>,
}

impl RoutingDecision {
    /// The whole prompt on one machine, the answer on another or the same.
    #[must_use]
    pub fn whole(prompt: MachineNo, answer: MachineNo) -> Self {
        Self { prompt, answer, split: None }
    }

    /// So many of a prompt's first tokens on one machine, everything else on another.
    #[must_use]
    pub fn parted(low: MachineNo, high: MachineNo, first: u32, asked: Asked) -> Self {
        if first == 0 || low == high {
            Self::whole(high, high)
        } else {
            Self { prompt: low, answer: high, split: (first < asked.prompt).then_some(first) }
        }
    }

    /// Tokens of a prompt whose KV goes from the one machine to the other.
    #[must_use]
    pub fn sent(&self, asked: Asked) -> u32 {
        if self.prompt == self.answer { 0 } else { self.split.unwrap_or(asked.prompt) }
    }
}

/// Of which pool a request found no room, so that a machine of the other computes and answers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Overflow {
    /// Of those that compute prompts: their queues are too long.
    Prompts,
    /// Of those that answer: their memory is taken.
    Answers,
}

impl fmt::Display for Overflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prompts => "overflow: the queues of all groups for prompts are too long, so another does both",
            Self::Answers => "overflow: no group for answers has room, so another does both",
        })
    }
}

/// Chooses machines, and hears what becomes of what it sent them.
pub trait Routing: std::fmt::Debug + Send {
    /// It is so late; said before each of the others.
    fn at(&mut self, now: Seconds) {
        let _ = now;
    }

    /// Where this request goes; nowhere, if it is turned away.
    fn route(&mut self, asked: Asked, seen: &dyn Fn(MachineNo) -> Seen) -> Option<RoutingDecision>;

    /// Whether a request waits before it is routed, and all that come after it. Asked again whenever something happens.
    fn holds(&self, asked: Asked, seen: &dyn Fn(MachineNo) -> Seen) -> bool {
        let _ = (asked, seen);
        false
    }

    /// Why the request that was routed last went to a machine of another pool than its own.
    fn overflow(&self) -> Option<Overflow> {
        None
    }

    /// A prompt is done, or what of it this machine computes.
    fn prompt_done(&mut self, machine: MachineNo, asked: Asked);

    /// An answer is done.
    fn answer_done(&mut self, machine: MachineNo, asked: Asked);

    /// A machine has let go of so many tokens of KV.
    fn freed(&mut self, machine: MachineNo, memory: u64) {
        let _ = (machine, memory);
    }

    /// A machine has nothing to run.
    fn idle(&mut self, machine: MachineNo) {
        let _ = machine;
    }
}
