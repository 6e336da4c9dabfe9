//! What a peer says all the time: that it is there, which plan it follows, and what waits and runs in the groups that it leads.

use crate::{Epoch, GroupId, PeerId, Phase, PlanId, Seconds, Term, codec::CodecError, limits};
use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

/// A peer's sign of life, and what it is doing.
#[derive(Clone, Debug, Default, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Epoch by the peer's own clock.
    pub clock: Epoch,
    /// Epoch of the plan the peer follows.
    pub epoch: Epoch,
    /// Term of that plan.
    pub term: Term,
    /// Plan the peer has adopted.
    pub plan: Option<PlanId>,
    /// Groups of that plan led by this peer and able to take requests now, and what each has to do.
    pub ready: Vec<GroupLoad>,
    /// What waits and runs here, in all groups led by this peer together.
    pub load: Load,
    /// Set when the peer is about to leave: give it nothing new.
    pub leaving: bool,
    /// Whom it has nothing to do with, for what they did to it.
    #[serde(default)]
    pub cut_off: Vec<PeerId>,
    /// How quick groups were for its clients whose leaders' own steps belie what is claimed of them.
    #[serde(default)]
    pub seen_speeds: Vec<SeenSpeed>,
}

/// How quick a group was by the clock of a gateway that it has worked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct SeenSpeed {
    /// The group whose speed the gateway saw.
    pub group: GroupId,
    /// What it did: prompts, or answers.
    pub phase: Phase,
    /// How often the time claimed for it is doubled by the time that it took, beside others: not once where the claim is kept.
    pub doublings: u8,
}

/// What others act by: [`Heartbeat::news`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct News<'a> {
    /// As in the heartbeat.
    pub clock: Epoch,
    /// As in the heartbeat.
    pub term: Term,
    /// As in the heartbeat.
    pub plan: Option<PlanId>,
    /// As in the heartbeat.
    pub leaving: bool,
    /// As in the heartbeat.
    pub ready: Ready<'a>,
    /// As in the heartbeat.
    pub cut_off: &'a [PeerId],
    /// As in the heartbeat.
    pub seen_speeds: &'a [SeenSpeed],
}

/// Which groups take requests: the same however much they have to do.
#[derive(Clone, Copy, Debug)]
pub struct Ready<'a>(pub &'a [GroupLoad]);

impl PartialEq for Ready<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().map(|g| g.group).eq(other.0.iter().map(|g| g.group))
    }
}

/// A group, and what it has to do: its leader may lead others that have more or less, and are faster or slower.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct GroupLoad {
    /// The group, as the adopted plan names it.
    pub group: GroupId,
    /// What waits and runs there; pages of its leader's device, and where models share these, those that its model is sure to get.
    pub load: Load,
}

/// What waits and runs in a group, or in all that a peer leads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct Load {
    /// Sequences in batches.
    pub running: u32,
    /// Sequences that wait for pages or for their first step.
    pub waiting: u32,
    /// Prompt tokens not yet computed.
    pub pending_tokens: u32,
    /// KV pages free.
    pub free_pages: u32,
    /// KV pages in all.
    pub total_pages: u32,
    /// Time of a group's last steps, on average, from setting off to their tokens. None where nothing was computed, nor for
    /// several groups together.
    pub step: Option<Seconds>,
    /// Tokens that each sequence got of one of these steps, on average: more than one where drafts were right.
    #[serde(default)]
    pub chosen: Option<f64>,
    /// The quickest of a group's last steps: what its peers' adverts claim is held against these.
    #[serde(default)]
    pub quickest: Quickest,
}

/// Tokens of one sequence that no step chooses more of.
const MOST_CHOSEN: f64 = 1024.0;

impl Load {
    /// Whether there is as much to do as there was, however fast it is done: speeds are never twice the same.
    #[must_use]
    pub fn is_as_much_as(&self, before: &Self) -> bool {
        let amount = |load: &Self| Self { step: None, chosen: None, quickest: Quickest::default(), ..*load };
        amount(self) == amount(before)
    }

    fn check(&self) -> Result<(), CodecError> {
        let steps = [self.quickest.prompts, self.quickest.answers].into_iter().flatten();
        if !self.step.into_iter().chain(steps.map(|step| step.took)).all(Seconds::is_plausible) {
            return Err(CodecError::Invalid("time of a step out of range"));
        }
        if !self.chosen.is_none_or(|chosen| (0.0..=MOST_CHOSEN).contains(&chosen)) {
            return Err(CodecError::Invalid("tokens of a step out of range"));
        }
        Ok(())
    }
}

/// The least disturbed steps of a group's last ones, of each kind: the host's other work, and the group's, are in the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct Quickest {
    /// With tokens of prompts in it: the one that took least for each of them.
    pub prompts: Option<TimedStep>,
    /// Of answers alone: the one that took least.
    pub answers: Option<TimedStep>,
}

/// What was computed in a step, and how long that took.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct TimedStep {
    /// From setting off to its tokens.
    pub took: Seconds,
    /// What was computed.
    pub size: StepSize,
}

/// What a step computes, as far as it takes time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct StepSize {
    /// Tokens of prompts.
    pub prompts: u32,
    /// What these attend to: (P + L)² − P² for L tokens behind P others, over all prompts.
    pub pairs: u64,
    /// Tokens of answers, with those guessed.
    pub answers: u32,
    /// Tokens that these attend to, in all.
    pub context: u64,
}

impl Heartbeat {
    /// Whether it says something that others act by and `before` does not: all but how much there is to do.
    #[must_use]
    pub fn is_news_after(&self, before: &Self) -> bool {
        self.news() != before.news()
    }

    /// What of it is news where it changes.
    #[must_use]
    pub fn news(&self) -> News<'_> {
        let Self { clock, term, plan, leaving, .. } = *self;
        let (cut_off, seen_speeds) = (&self.cut_off, &self.seen_speeds);
        News { clock, term, plan, leaving, ready: Ready(&self.ready), cut_off, seen_speeds }
    }

    /// Whether there is as much to do as it was `before`, in all and in each group.
    #[must_use]
    pub fn has_as_much_to_do(before: (&Load, &[GroupLoad]), now: (&Load, &[GroupLoad])) -> bool {
        let alike = |(a, b): (&GroupLoad, &GroupLoad)| a.group == b.group && a.load.is_as_much_as(&b.load);
        now.0.is_as_much_as(before.0) && now.1.len() == before.1.len() && now.1.iter().zip(before.1).all(alike)
    }

    /// Refuses heartbeats that list more than a plan can hold, and figures that nobody can have measured.
    ///
    /// # Errors
    /// Names the rule broken.
    pub fn check(&self) -> Result<(), CodecError> {
        if self.ready.len() > limits::GROUPS {
            return Err(CodecError::Invalid("too many groups"));
        }
        if self.cut_off.len() > limits::CUT_OFF {
            return Err(CodecError::Invalid("too many peers cut off"));
        }
        if self.seen_speeds.len() > limits::SEEN_SPEEDS {
            return Err(CodecError::Invalid("speeds of too many groups"));
        }
        self.ready.iter().map(|g| &g.load).chain([&self.load]).try_for_each(Load::check)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_gateway_saw_of_claims_is_news_and_has_an_end() {
        let seen = SeenSpeed { group: GroupId([1; 8]), phase: Phase::Decode, doublings: 2 };
        let said = |times: usize| Heartbeat { seen_speeds: vec![seen; times], ..Heartbeat::default() };
        assert!(said(1).is_news_after(&said(0)) && !said(1).is_news_after(&said(1)));
        assert!(said(limits::SEEN_SPEEDS).check().is_ok() && said(limits::SEEN_SPEEDS + 1).check().is_err());
    }
}
