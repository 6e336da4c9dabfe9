//! What the members of a swarm set for all of it: targets for latency, and how requests are routed and batched. Part of adverts: each peer says
//! the newest it knows, so that what was set stays when whoever set it goes.

use crate::{ModelId, PeerId, Seconds, codec::CodecError, limits};
use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The longest target (s).
pub const LONGEST_TARGET: Seconds = Seconds(86_400.0);

/// For whom an answer is: somebody who waits for it, or nobody yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RequestClass {
    /// Somebody waits for the answer.
    #[default]
    Interactive,
    /// Gives way to those for whom somebody waits, for a bounded time.
    Batch,
}

impl RequestClass {
    /// All there are.
    pub const ALL: [Self; 2] = [Self::Interactive, Self::Batch];
}

impl fmt::Display for RequestClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Interactive => "interactive",
            Self::Batch => "batch",
        })
    }
}

/// A name that is none of those there are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{said:?} is none of {known}")]
pub struct UnknownName {
    /// What was said.
    pub said: String,
    /// What there is.
    pub known: &'static str,
}

impl FromStr for RequestClass {
    type Err = UnknownName;
    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let unknown = || UnknownName { said: text.chars().take(40).collect(), known: "interactive, batch" };
        Self::ALL.into_iter().find(|class| class.to_string() == text).ok_or_else(unknown)
    }
}

/// Times that requests are to keep; without any, plans are valued by their own measure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct Targets {
    /// To the first token (s).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft: Option<Seconds>,
    /// For each token after it, on average (s).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tpot: Option<Seconds>,
    /// To the last token (s).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub e2e: Option<Seconds>,
}

impl Targets {
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a request kept them all that took so long; `tpot` is none where it had one token.
    #[must_use]
    pub fn are_kept(&self, ttft: Seconds, tpot: Option<Seconds>, e2e: Seconds) -> bool {
        let within = |time: Seconds, target: Option<Seconds>| target.is_none_or(|target| time <= target);
        within(ttft, self.ttft) && within(tpot.unwrap_or(Seconds(0.0)), self.tpot) && within(e2e, self.e2e)
    }

    fn check(&self) -> Result<(), CodecError> {
        let is_time = |time: &Seconds| time.0 > 0.0 && *time <= LONGEST_TARGET;
        if ![self.ttft, self.tpot, self.e2e].iter().flatten().all(is_time) {
            return Err(CodecError::Invalid("target out of range"));
        }
        Ok(())
    }
}

impl fmt::Display for Targets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for (name, target) in [("ttft", self.ttft), ("tpot", self.tpot), ("e2e", self.e2e)] {
            let Some(Seconds(s)) = target else { continue };
            let gap = if first { "" } else { ", " };
            first = false;
            if s < 1.0 {
                write!(f, "{gap}{name} {} ms", rounded(s * 1e3))?
            } else {
                write!(f, "{gap}{name} {} s", rounded(s))?
            }
        }
        if first { f.write_str("none") } else { Ok(()) }
    }
}

/// Three digits behind the point at most.
fn rounded(x: f64) -> f64 {
    (x * 1e3).round() / 1e3
}

/// How requests are routed on a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RoutePolicy {
    /// By the plan's shares, corrected by live queues.
    #[default]
    Live,
    /// By the plan's shares alone.
    Shares,
    /// To the shortest queues: the fewest pending prompt tokens, and from there the fewest sequences.
    Shortest,
    /// As [`RoutePolicy::Live`], and of prompts of which the KV would go elsewhere only as many tokens are computed there as can be
    /// in time: the decode group computes the others beside its answers (Cronus §4).
    Cronus,
    /// To the shortest queues of two pools, of groups that compute prompts and of groups that answer; where the queues of one are
    /// too long, a group of the other does both meanwhile (Splitwise §IV-A).
    Pools,
    /// By whichever of the others does best when the requests of late are replayed on the plan's groups: the plan says by which
    /// ([`crate::PolicyChoice`]).
    Auto,
}

impl RoutePolicy {
    /// All there are.
    pub const ALL: [Self; 6] = [Self::Live, Self::Shares, Self::Shortest, Self::Cronus, Self::Pools, Self::Auto];
}

impl fmt::Display for RoutePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Live => "live",
            Self::Shares => "shares",
            Self::Shortest => "shortest",
            Self::Cronus => "cronus",
            Self::Pools => "pools",
            Self::Auto => "auto",
        })
    }
}

impl FromStr for RoutePolicy {
    type Err = UnknownName;
    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let known = "live, shares, shortest, cronus, pools, auto";
        let unknown = || UnknownName { said: text.chars().take(40).collect(), known };
        Self::ALL.into_iter().find(|policy| policy.to_string() == text).ok_or_else(unknown)
    }
}

/// How a group's leader forms steps of the requests that it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BatchPolicy {
    /// Answers in every step, and prompts in chunks beside them.
    #[default]
    Chunked,
    /// Prompts in chunks, and answers beside them as far as a step's tokens reach; after a few such steps answers go first.
    Mixed,
    /// Prompts alone, in longer steps; answers when none is left, or after many such steps.
    PrefillFirst,
    /// By whichever of the others does best when the requests of late are replayed on the plan's groups: the plan says by which
    /// ([`crate::PolicyChoice`]).
    Auto,
}

impl BatchPolicy {
    /// All there are.
    pub const ALL: [Self; 4] = [Self::Chunked, Self::Mixed, Self::PrefillFirst, Self::Auto];
}

impl fmt::Display for BatchPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Chunked => "chunked",
            Self::Mixed => "mixed",
            Self::PrefillFirst => "prefill-first",
            Self::Auto => "auto",
        })
    }
}

impl FromStr for BatchPolicy {
    type Err = UnknownName;
    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let known = "chunked, mixed, prefill-first, auto";
        let unknown = || UnknownName { said: text.chars().take(40).collect(), known };
        Self::ALL.into_iter().find(|policy| policy.to_string() == text).ok_or_else(unknown)
    }
}

/// What a setting is about: of each there is one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode, Serialize, Deserialize)]
#[serde(tag = "about", rename_all = "lowercase")]
pub enum SettingKey {
    /// Targets for a class of requests.
    Targets {
        /// For this model alone; else for all that have none of their own.
        model: Option<ModelId>,
        /// For these requests.
        class: RequestClass,
    },
    /// How requests for a model are routed.
    Route {
        /// This one; else all that have none of their own.
        model: Option<ModelId>,
    },
    /// How groups of a model form their steps.
    Batch {
        /// This one; else all that have none of their own.
        model: Option<ModelId>,
    },
}

/// What was set. Nothing takes back what was set before.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SettingValue {
    /// Of [`SettingKey::Targets`]; none takes them back.
    Targets(Targets),
    /// Of [`SettingKey::Route`]: how requests are routed; none takes back what was set.
    Route(Option<RoutePolicy>),
    /// Of [`SettingKey::Batch`]: how steps are formed; none takes back what was set.
    Batch(Option<BatchPolicy>),
}

/// Something that a member set for the whole swarm.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct SwarmSetting {
    /// What it is about.
    pub key: SettingKey,
    /// What is wanted.
    pub value: SettingValue,
    /// When it was set (ms since 1970, by the clock of whoever set it).
    pub at: u64,
    /// Who set it, by the word of whoever passes it on.
    pub by: PeerId,
}

impl SwarmSetting {
    /// Whether this takes the place of `other`, of the same key: the newest does, and of two of one moment that of the peer with
    /// the greater name.
    #[must_use]
    pub fn is_newer_than(&self, other: &Self) -> bool {
        (self.at, self.by) > (other.at, other.by)
    }

    /// Refuses values of another kind than their key's, and targets that nobody can mean.
    ///
    /// # Errors
    /// Names the rule broken.
    pub fn check(&self) -> Result<(), CodecError> {
        match (&self.key, &self.value) {
            (SettingKey::Targets { .. }, SettingValue::Targets(targets)) => targets.check(),
            (SettingKey::Route { .. }, SettingValue::Route(_)) | (SettingKey::Batch { .. }, SettingValue::Batch(_)) => {
                Ok(())
            }
            _ => Err(CodecError::Invalid("setting of another kind than its key")),
        }
    }

    /// Refuses lists that are too long, out of order, or have two of a key.
    ///
    /// # Errors
    /// Names the rule broken.
    pub fn check_all(all: &[Self]) -> Result<(), CodecError> {
        if all.len() > limits::SETTINGS {
            return Err(CodecError::Invalid("too many settings"));
        }
        if !all.is_sorted_by(|a, b| a.key < b.key) {
            return Err(CodecError::Invalid("settings out of order"));
        }
        all.iter().try_for_each(Self::check)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: SettingKey = SettingKey::Targets { model: None, class: RequestClass::Interactive };

    fn set(e2e: f64) -> SwarmSetting {
        let targets = Targets { e2e: Some(Seconds(e2e)), ..Targets::default() };
        SwarmSetting { key: KEY, value: SettingValue::Targets(targets), at: 1, by: PeerId([1; 32]) }
    }

    #[test]
    fn targets_are_times_and_values_are_of_their_keys_kind() {
        assert_eq!(set(10.0).check(), Ok(()));
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e6] {
            assert!(set(wrong).check().is_err(), "{wrong}");
        }
        for value in [SettingValue::Route(None), SettingValue::Batch(None)] {
            assert!(SwarmSetting { value, ..set(1.0) }.check().is_err(), "{value:?}");
        }
        assert!(SwarmSetting::check_all(&[set(1.0), set(1.0)]).is_err(), "two of one key");
    }

    #[test]
    fn a_request_keeps_its_targets_if_it_keeps_each() {
        let targets = Targets { ttft: Some(Seconds(0.5)), tpot: Some(Seconds(0.05)), e2e: None };
        let kept = |ttft, tpot: Option<f64>| targets.are_kept(Seconds(ttft), tpot.map(Seconds), Seconds(1e4));
        assert!(kept(0.5, Some(0.05)) && kept(0.1, None));
        assert!(!kept(0.6, Some(0.01)) && !kept(0.1, Some(0.06)));
        assert_eq!(targets.to_string(), "ttft 500 ms, tpot 50 ms");
        assert_eq!(Targets::default().to_string(), "none");
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        assert!(RequestClass::ALL.iter().all(|c| c.to_string().parse() == Ok(*c)));
        assert!(RoutePolicy::ALL.iter().all(|p| p.to_string().parse() == Ok(*p)));
        assert!(BatchPolicy::ALL.iter().all(|p| p.to_string().parse() == Ok(*p)));
        assert!("fast".parse::<RoutePolicy>().is_err() && "fast".parse::<BatchPolicy>().is_err());
    }
}
