//! A layout: groups a person asks for, where the planner would choose otherwise.
//!
//! `prefill=2,decode=3` is a prefill group of two stages and a decode group of three.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use tsnode_protocol::{Group, ModelId, Phase, limits};

/// Groups in the order they get their peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLayout(pub Vec<(Phase, usize)>);

/// A text that is no layout.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no group: write phase=stages, as in prefill=1,decode=2; phases are prefill, decode and mixed")]
pub struct ParseLayoutError(String);

impl GroupLayout {
    /// The same for a model that can be cut into so many stages at most: a group that is to have more has those.
    #[must_use]
    pub fn within(&self, stages: u32) -> Self {
        Self(self.0.iter().map(|(phase, asked)| (*phase, (*asked).min(stages as usize))).collect())
    }

    /// How many of the groups asked for there are, over all models; `most` says how many stages a model can be cut into.
    #[must_use]
    pub fn found_in(&self, groups: &[Group], most: impl Fn(ModelId) -> u32) -> usize {
        let mut there = BTreeMap::<(ModelId, Phase, usize), usize>::new();
        for group in groups {
            *there.entry((group.model, group.phase, group.stages.len())).or_default() += 1;
        }
        let asked = |(model, phase, stages)| {
            self.within(most(model)).0.iter().filter(|group| **group == (phase, stages)).count()
        };
        there.into_iter().map(|(of, n)| n.min(asked(of))).sum()
    }
}

impl FromStr for GroupLayout {
    type Err = ParseLayoutError;
    fn from_str(text: &str) -> Result<Self, ParseLayoutError> {
        let group = |part: &str| {
            let (phase, stages) = part.trim().split_once('=')?;
            let phase = match phase {
                "prefill" => Phase::Prefill,
                "decode" => Phase::Decode,
                "mixed" => Phase::Mixed,
                _ => return None,
            };
            let stages = stages.parse().ok().filter(|n| (1..=limits::STAGES).contains(n))?;
            Some((phase, stages))
        };
        let parse = |part: &str| group(part).ok_or_else(|| ParseLayoutError(part.chars().take(40).collect()));
        text.split(',').map(parse).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for GroupLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (phase, stages)) in self.0.iter().enumerate() {
            write!(f, "{}{phase}={stages}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_read_and_written() {
        let layout: GroupLayout = "prefill=2, decode=3".parse().unwrap();
        assert_eq!(layout.0, [(Phase::Prefill, 2), (Phase::Decode, 3)]);
        assert_eq!(layout.to_string(), "prefill=2,decode=3");
        for wrong in ["", "prefill", "prefill=0", "encode=1", "decode=9999"] {
            assert!(wrong.parse::<GroupLayout>().is_err(), "{wrong}");
        }
    }
}
