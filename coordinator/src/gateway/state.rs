//! Prompt flow 2: where a request is: which groups have it, and what is waited for.
//!
//! ```text
//! Routing ──▶ AwaitingGrant ──▶ Prefilling ──▶ Decoding      a group fails: Routing again, with what the client has
//!    │              └────────────────────────────▲          nobody takes what was begun: Recovering, then Routing
//!    └──▶ Recovering ──▶ AwaitingGrant
//! ```

use super::Predicted;
use crate::{Time, policy::routing::Overflow, router::Pick};
use tsnode_protocol::{GroupId, PeerId, Stage, Token, kv::KvPace};

/// The states of a request that has not ended.
#[derive(Debug)]
pub(super) enum State {
    /// No group has it; the event that brought it here picks one.
    Routing,
    /// A decode group was asked to take it, and has not found pages for it yet.
    AwaitingGrant {
        at: RequestPlacement,
        prompt: Planned,
        /// Whether the group had nothing to do when it was asked.
        asked_idle: bool,
    },
    /// The decode group has pages, and another group computes the prompt for it.
    Prefilling {
        at: RequestPlacement,
        granted_at: Time,
        by: PrefillGroup,
        /// When that group was asked for the prompt.
        from: Time,
        /// What it chose as the answer's first token; its KV may still be on its way.
        first: Option<Token>,
    },
    /// The decode group has pages, and nobody else owes it anything.
    Decoding { at: RequestPlacement, granted_at: Time, prompt: PromptSource },
    /// No group serves what was begun, or its model is not in memory; one is waited for until then.
    Recovering { until: Time },
}

/// The decode group that has a request, and what is known of the two.
#[derive(Debug)]
pub(super) struct RequestPlacement {
    /// Where the router sent it, as far as it has been told; whether prompts go elsewhere is decided after that.
    pub routed: Pick,
    pub pick: Pick,
    pub leader: PeerId,
    /// The group's; the plan may have dropped it since.
    pub stages: Vec<Stage>,
    /// When it was asked.
    pub since: Time,
    /// When whoever owes it something last gave it a sign.
    pub heard: Time,
    /// When this group last gave it a token.
    pub last_token: Option<Time>,
    /// Whether it is noted that this group has computed what was known of it.
    pub learnt: bool,
    /// What the gate expected.
    pub predicted: Option<Predicted>,
    /// Why the prompt is computed where it is.
    pub reason: String,
    /// Of which pool it found no room, where requests are pooled.
    pub overflow: Option<Overflow>,
}

/// A group that prefills for another.
#[derive(Debug)]
pub(super) struct PrefillGroup {
    pub leader: PeerId,
    pub stages: Vec<Stage>,
}

/// Who is to compute a prompt once there are pages.
#[derive(Debug)]
pub(super) enum Planned {
    /// The decode group.
    Here,
    /// Another group, whose KV leaves at this pace.
    By { group: PrefillGroup, pace: KvPace },
}

/// Who computed a prompt, or does now.
#[derive(Debug)]
pub(super) enum PromptSource {
    /// The decode group.
    Here,
    /// Another group, and all its KV is confirmed.
    By(PrefillGroup),
}

impl State {
    pub fn placement(&self) -> Option<&RequestPlacement> {
        match self {
            Self::AwaitingGrant { at, .. } | Self::Prefilling { at, .. } | Self::Decoding { at, .. } => Some(at),
            Self::Routing | Self::Recovering { .. } => None,
        }
    }

    pub fn placement_mut(&mut self) -> Option<&mut RequestPlacement> {
        match self {
            Self::AwaitingGrant { at, .. } | Self::Prefilling { at, .. } | Self::Decoding { at, .. } => Some(at),
            Self::Routing | Self::Recovering { .. } => None,
        }
    }

    /// The group that prefills for the decode group, before, while and after it does.
    pub fn prefill_group(&self) -> Option<&PrefillGroup> {
        match self {
            Self::AwaitingGrant { prompt: Planned::By { group, .. }, .. }
            | Self::Prefilling { by: group, .. }
            | Self::Decoding { prompt: PromptSource::By(group), .. } => Some(group),
            Self::AwaitingGrant { prompt: Planned::Here, .. }
            | Self::Decoding { prompt: PromptSource::Here, .. }
            | Self::Routing
            | Self::Recovering { .. } => None,
        }
    }

    /// Leaders of the groups that prefill and decode: one, where one group does both.
    pub fn leaders(&self) -> Option<(PeerId, PeerId)> {
        let decode = self.placement()?.leader;
        Some((self.prefill_group().map_or(decode, |group| group.leader), decode))
    }

    pub fn is_prefilling(&self) -> bool {
        matches!(self, Self::Prefilling { .. })
    }

    /// Whether the decode group computes the prompt itself.
    pub fn computes_here(&self) -> bool {
        self.placement().is_some() && self.prefill_group().is_none()
    }

    /// Whether a decode group has pages for it.
    pub fn is_granted(&self) -> bool {
        matches!(self, Self::Prefilling { .. } | Self::Decoding { .. })
    }

    /// The group that owes it something.
    pub fn debtor(&self) -> Option<GroupId> {
        let pick = self.placement()?.pick;
        Some(if self.is_prefilling() { pick.prefill } else { pick.decode })
    }

    /// The decode group has pages for it. At which pace the KV of its prompt is to leave, if another group is to be asked now.
    pub fn grant(&mut self, now: Time) -> Option<KvPace> {
        match std::mem::replace(self, Self::Routing) {
            Self::AwaitingGrant { at, prompt: Planned::By { group: by, pace }, .. } => {
                *self = Self::Prefilling { at, granted_at: now, by, from: now, first: None };
                return Some(pace);
            }
            Self::AwaitingGrant { at, prompt: Planned::Here, .. } => {
                *self = Self::Decoding { at, granted_at: now, prompt: PromptSource::Here };
            }
            Self::Prefilling { at, by, from, first, .. } => {
                *self = Self::Prefilling { at, granted_at: now, by, from, first };
            }
            Self::Decoding { at, prompt, .. } => *self = Self::Decoding { at, granted_at: now, prompt },
            unplaced @ (Self::Routing | Self::Recovering { .. }) => *self = unplaced,
        }
        None
    }

    /// Whoever prefills for it chose its first token.
    pub fn begins_with(&mut self, token: Token) {
        if let Self::Prefilling { first, .. } = self {
            *first = Some(token);
        }
    }

    /// All KV of its prompt is where it is decoded.
    pub fn prefilled(&mut self) {
        *self = match std::mem::replace(self, Self::Routing) {
            Self::Prefilling { at, granted_at, by, .. } => {
                Self::Decoding { at, granted_at, prompt: PromptSource::By(by) }
            }
            other => other,
        };
    }

    /// From now on the decode group computes the prompt itself.
    pub fn moved_home(&mut self, reason: String) {
        *self = match std::mem::replace(self, Self::Routing) {
            Self::AwaitingGrant { at, asked_idle, .. } => {
                Self::AwaitingGrant { at: RequestPlacement { reason, ..at }, prompt: Planned::Here, asked_idle }
            }
            Self::Prefilling { at, granted_at, .. } | Self::Decoding { at, granted_at, .. } => {
                Self::Decoding { at: RequestPlacement { reason, ..at }, granted_at, prompt: PromptSource::Here }
            }
            unplaced @ (Self::Routing | Self::Recovering { .. }) => unplaced,
        };
    }

    /// Whoever has it has it no longer: another group is looked for.
    pub fn leave(&mut self) -> Option<RequestPlacement> {
        match std::mem::replace(self, Self::Routing) {
            Self::AwaitingGrant { at, .. } | Self::Prefilling { at, .. } | Self::Decoding { at, .. } => Some(at),
            unplaced @ (Self::Routing | Self::Recovering { .. }) => {
                *self = unplaced;
                None
            }
        }
    }

    /// Nobody takes it: until when somebody is waited for, from the first time on that nobody did.
    pub fn recover(&mut self, until: Time) -> Time {
        let until = if let Self::Recovering { until } = self { *until } else { until };
        *self = Self::Recovering { until };
        until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFILL: GroupId = GroupId([1; 8]);
    const DECODE: GroupId = GroupId([2; 8]);

    fn at(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    fn placement() -> RequestPlacement {
        let pick = Pick { prefill: PREFILL, decode: DECODE };
        RequestPlacement {
            routed: pick,
            pick,
            leader: PeerId([2; 32]),
            stages: Vec::new(),
            since: Time::ZERO,
            heard: Time::ZERO,
            last_token: None,
            learnt: false,
            predicted: None,
            reason: "it pays".into(),
            overflow: None,
        }
    }

    fn awaiting(prompt: Planned) -> State {
        State::AwaitingGrant { at: placement(), prompt, asked_idle: true }
    }

    fn elsewhere() -> Planned {
        let group = PrefillGroup { leader: PeerId([1; 32]), stages: Vec::new() };
        Planned::By { group, pace: KvPace::Layers }
    }

    #[test]
    fn whoever_prefills_is_asked_once_there_are_pages_and_owes_it_until_its_kv_is_there() {
        let mut state = awaiting(elsewhere());
        assert_eq!((state.debtor(), state.is_granted()), (Some(DECODE), false));
        assert_eq!(state.grant(at(1)), Some(KvPace::Layers));
        assert_eq!((state.debtor(), state.is_granted()), (Some(PREFILL), true));
        assert_eq!(state.grant(at(2)), None, "a second grant asks nobody");
        state.begins_with(Token(7));
        state.prefilled();
        assert_eq!(state.debtor(), Some(DECODE));
        assert_eq!(state.leaders(), Some((PeerId([1; 32]), PeerId([2; 32]))), "it is told who prefilled");
        assert!(matches!(state, State::Decoding { granted_at, .. } if granted_at == at(2)));
    }

    #[test]
    fn a_prompt_that_is_computed_where_it_is_decoded_needs_nobody_else() {
        let mut state = awaiting(Planned::Here);
        assert_eq!(state.grant(at(1)), None);
        assert!(state.computes_here() && !state.is_prefilling());
        assert_eq!(state.leaders(), Some((PeerId([2; 32]), PeerId([2; 32]))));
    }

    #[test]
    fn a_prefill_that_fails_leaves_the_request_where_it_is_at_any_time() {
        for grants in 0..2 {
            let mut state = awaiting(elsewhere());
            (0..grants).for_each(|n| _ = state.grant(at(n)));
            state.moved_home("it broke".into());
            assert!(state.computes_here() && state.is_granted() == (grants > 0));
            assert_eq!(state.placement().map(|at| &*at.reason), Some("it broke"));
        }
    }

    #[test]
    fn nobody_who_lost_a_request_has_it_and_what_was_begun_waits_no_longer_for_trying_again() {
        let mut state = awaiting(Planned::Here);
        assert_eq!(state.leave().map(|at| at.pick.decode), Some(DECODE));
        assert!(state.leave().is_none() && state.leaders().is_none() && !state.computes_here());
        assert_eq!([state.recover(at(60)), state.recover(at(90))], [at(60); 2]);
        assert!(state.leave().is_none() && matches!(state, State::Recovering { .. }));
    }
}
