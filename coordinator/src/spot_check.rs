//! Spot checks: of some answers one token is computed again by another group, from the prompt and the tokens before it.
//!
//! Tokens depend on seed and position alone, so honest groups get the same one, and from logits that differ by no more than
//! rounding: whoever chooses a token says how likely it was, and both groups' words are compared. Where they do not agree,
//! a third group decides; where prompt and answer came from two groups, the one that answered is asked once more, alone: if
//! it then gets what the others get, the KV it was sent was wrong. A check looks like any other request, and is hung up on
//! after its first token. A group that gives no answer for itself is asked again whenever it has answered a client, and one that
//! never does is held to have evaded.
//!
//! Where a GPU has a part in it, rounding may change what is drawn. There a token fits that a group draws from logits as near to
//! the others' as honest ones are (`draw`); who asks for it knows the others' likeliest tokens, and asks once more for the
//! answer's where it is none of them. What no rounding does counts as between processors; what it does now and then
//! is added up (`evidence`).

mod check;
mod draw;
mod evidence;
mod opinion;

use crate::{trust::Offence, view::View};
use check::{Check, Quiet};
use evidence::EvidenceScore;
use opinion::Fit;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use tsnode_protocol::{
    ModelId, PeerId, PromptCodec, RequestId, Sampled, Stage, Token,
    stream::{DecodeRequest, Generation},
};

/// How long a group may take to give one token.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// One answer in so many is checked of a group that is new here, and of one that is known.
const NEW: u64 = 4;
const KNOWN: u64 = 32;
/// Checks a leader must pass to be known.
const PASSES: u32 = 8;
/// Leaders remembered.
const LEADERS: usize = 4096;
/// Checks under way at once; above it none is begun.
const OPEN: usize = 8;
/// Checks that wait until the group that answered has answered again; the oldest is given up first.
const OWED: usize = 16;
/// Checks that ask others first, after one to which a group gave no answer.
const QUIET: u32 = 8;

/// Which answers are checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpotChecks {
    /// More of those by leaders that are new, fewer of the others'.
    #[default]
    Auto,
    /// None: every peer is trusted.
    Never,
}

/// An answer that ended well.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedAnswer {
    /// The model that answered.
    pub model: ModelId,
    /// All tokens of the prompt.
    pub prompt: Vec<Token>,
    /// All tokens of the answer.
    pub answer: Vec<Token>,
    /// Its tokens' log-probabilities, as whoever chose them said.
    pub logprobs: Vec<Option<f32>>,
    /// What was asked for.
    pub generation: Generation,
    /// What the prompt's KV went through.
    pub codec: PromptCodec,
    /// Who led the group that answered.
    pub decode: PeerId,
    /// That group's stages: a peer may lead several groups, on several devices.
    pub decoders: Vec<Stage>,
    /// Who led the group that computed the prompt.
    pub prefill: PeerId,
    /// That group's stages.
    pub prefillers: Vec<Stage>,
}

/// A request to a group, of which the first token is wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckRequest {
    /// The leader of the group that is asked.
    pub leader: PeerId,
    /// The request to send there.
    pub open: DecodeRequest,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpotCheckVerdict {
    /// Another group gets the same token, or might.
    Passed,
    /// Two others agree on another one: these peers, together, answered wrongly.
    WrongToken(Vec<PeerId>),
    /// The same, but the group that answered gets the right one by itself: the KV was wrong.
    WrongKv {
        /// Who sent it.
        prefill: PeerId,
        /// Who got it.
        decode: PeerId,
    },
    /// Two others agree on another one, and the group that answered does not say again what it gets by itself: its token or the
    /// KV was wrong.
    Evaded {
        /// Who led the group that sent the KV.
        prefill: PeerId,
        /// Peers of the group that answered.
        peers: Vec<PeerId>,
        /// Whether it may have had too little time for a prompt as long as that.
        is_slow: bool,
    },
    /// The group that checked is alone with its token.
    WrongCheck(Vec<PeerId>),
    /// Nobody can say, or not yet: an honest GPU may have rounded so.
    Unclear,
}

impl SpotCheckVerdict {
    /// Who did what, by this verdict.
    #[must_use]
    pub fn offences(&self) -> Vec<(PeerId, Offence)> {
        match self {
            Self::Passed | Self::Unclear => Vec::new(),
            Self::WrongKv { prefill, decode } => vec![(*prefill, Offence::WrongKv { with: *decode })],
            Self::Evaded { prefill, peers, is_slow } => {
                let (prefill, count) = (*prefill, peers.len().min(u16::MAX.into()) as u16);
                let offence = Offence::Evasion { prefill, peers: count, is_slow: *is_slow };
                peers.iter().map(|peer| (*peer, offence)).collect()
            }
            Self::WrongToken(peers) | Self::WrongCheck(peers) => match peers[..] {
                [alone] => vec![(alone, Offence::WrongToken)],
                _ => {
                    let offence = Offence::WrongPipeline { peers: peers.len().min(u16::MAX.into()) as u16 };
                    peers.iter().map(|peer| (*peer, offence)).collect()
                }
            },
        }
    }
}

/// What the gateway is to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum CheckStep {
    /// Ask this, and say what came of it.
    Ask(CheckRequest),
    /// Nothing until the group that answered answers again: it is asked then, under another name.
    Wait,
    /// The check is over.
    Over(SpotCheckVerdict),
}

/// The checks of one gateway.
#[derive(Debug, Default)]
pub struct Checks {
    which: SpotChecks,
    open: BTreeMap<RequestId, Check>,
    /// Those of which only the group that answered can say more, the oldest first.
    owed: VecDeque<Check>,
    leaders: BTreeMap<PeerId, GroupChecks>,
    quiet: Quiet,
}

#[derive(Clone, Copy, Debug, Default)]
struct GroupChecks {
    passes: u32,
    /// Answers until the next block of them begins, and until the one of this block that is checked.
    block: u64,
    next: Option<u64>,
    evidence: EvidenceScore,
}

impl Checks {
    /// No check is open.
    #[must_use]
    pub fn new(which: SpotChecks) -> Self {
        Self { which, ..Self::default() }
    }

    /// An answer has ended; `roll` is random. If it is to be checked, or another of the same group is to be said again, whom to ask
    /// first, under the name `check`.
    pub fn ended(&mut self, view: &View, served: CheckedAnswer, check: RequestId, roll: u64) -> Option<CheckRequest> {
        if self.which == SpotChecks::Never {
            return None;
        }
        if let Some(ask) = self.ask_owed(view, &served, check) {
            return Some(ask);
        }
        if !self.is_due(&served, roll) || served.answer.is_empty() || self.open.len() >= OPEN {
            return None;
        }
        let mut begun = Check::of(view, served, roll)?;
        let ask = begun.ask_another(view, check, &self.quiet)?;
        self.quiet.retain(|_, checks| {
            *checks -= 1;
            *checks > 0
        });
        self.open.insert(check, begun);
        Some(ask)
    }

    /// A group that owes an answer for itself has just given a client one: it has room now, if it ever has.
    fn ask_owed(&mut self, view: &View, served: &CheckedAnswer, check: RequestId) -> Option<CheckRequest> {
        if self.open.len() >= OPEN {
            return None;
        }
        let place = self.owed.iter().position(|owed| owed.is_of_group(served))?;
        let owed = self.owed.get_mut(place)?;
        if !owed.is_time_to_ask(view) {
            return None;
        }
        let ask = owed.ask_again(view, check)?;
        self.open.insert(check, self.owed.remove(place)?);
        Some(ask)
    }

    /// What a group said first to such a question, or said when it was asked again; nothing if it did not answer.
    pub fn said(&mut self, view: &View, check: RequestId, sampled: Option<Sampled>) -> Option<CheckStep> {
        let mut begun = self.open.remove(&check)?;
        let asked = begun.last_asked();
        let step = match sampled {
            Some(sampled) => {
                asked.map(|leader| self.quiet.remove(&leader));
                begun.heard(view, check, sampled, &self.quiet)
            }
            None => {
                self.passes_over(asked);
                begun.not_heard(view, check, &self.quiet)
            }
        };
        Some(match step {
            CheckStep::Over(verdict) => CheckStep::Over(self.weighed(&begun, verdict)),
            CheckStep::Ask(ask) => {
                self.open.insert(check, begun);
                CheckStep::Ask(ask)
            }
            CheckStep::Wait => {
                if self.owes(begun) {
                    CheckStep::Wait
                } else {
                    CheckStep::Over(SpotCheckVerdict::Unclear)
                }
            }
        })
    }

    /// Has the next checks ask others before this one.
    fn passes_over(&mut self, leader: Option<PeerId>) {
        if self.quiet.len() < LEADERS {
            self.quiet.extend(leader.map(|leader| (leader, QUIET)));
        }
    }

    /// Two groups are against an answer, and its own says nothing more: until it does, its answers are checked as those of a new one.
    /// Whether this is kept: a second answer from the same two says nothing that the first does not, but how often it was refused.
    fn owes(&mut self, check: Check) -> bool {
        let leader = self.leader(check.served.decode);
        (leader.passes, leader.block, leader.next) = (0, 0, None);
        if let Some(owed) = self.owed.iter_mut().find(|owed| owed.is_between_the_same(&check)) {
            owed.refusals = owed.refusals.max(check.refusals);
            return false;
        }
        if self.owed.len() >= OWED {
            self.owed.pop_front();
        }
        self.owed.push_back(check);
        true
    }

    /// What there is to a verdict: one that an honest group gets now and then is none until there are too many.
    fn weighed(&mut self, over: &Check, verdict: SpotCheckVerdict) -> SpotCheckVerdict {
        let CheckedAnswer { prefill, decode, .. } = over.served;
        let blamed = match verdict {
            SpotCheckVerdict::Passed => {
                for leader in BTreeSet::from([prefill, decode]) {
                    self.leader(leader).evidence.passed();
                }
                let leader = self.leader(decode);
                leader.passes = leader.passes.saturating_add(1);
                return verdict;
            }
            SpotCheckVerdict::WrongToken(_) | SpotCheckVerdict::Evaded { .. } => decode,
            SpotCheckVerdict::WrongKv { .. } => prefill,
            SpotCheckVerdict::WrongCheck(_) | SpotCheckVerdict::Unclear => return verdict,
        };
        if over.best_fit() == Some(Fit::Doubtful) {
            // Answers are counted by who led them to their end.
            let leader = self.leader(decode);
            (leader.block, leader.next) = (0, None);
            if !self.leader(blamed).evidence.failed() {
                return SpotCheckVerdict::Unclear;
            }
        }
        verdict
    }

    fn leader(&mut self, leader: PeerId) -> &mut GroupChecks {
        if self.leaders.len() >= LEADERS && !self.leaders.contains_key(&leader) {
            self.leaders.pop_first();
        }
        self.leaders.entry(leader).or_default()
    }

    /// Of every block of answers by a leader one is checked, at a random place: none can know which, and the bound is hard. Where
    /// there is something against it, or against whose KV it got, it is looked at as closely as one that is new.
    fn is_due(&mut self, served: &CheckedAnswer, roll: u64) -> bool {
        let is_in_doubt = |peer: &PeerId| self.leaders.get(peer).is_some_and(|known| known.evidence.is_there());
        let is_in_doubt = [&served.prefill, &served.decode].into_iter().any(is_in_doubt);
        let known = self.leader(served.decode);
        if known.block == 0 {
            let is_known = known.passes >= PASSES && !is_in_doubt;
            known.block = if is_known { KNOWN } else { NEW };
            known.next = Some(u64::from(roll as u32) % known.block);
        }
        known.block -= 1;
        match &mut known.next {
            Some(0) => {
                known.next = None;
                true
            }
            Some(n) => {
                *n -= 1;
                false
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests;
