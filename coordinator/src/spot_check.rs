//! Spot checks: of some answers one token is computed again by another group, from the prompt and the tokens before it.
//!
//! Tokens depend on seed and position alone, so honest groups get the same one, and from logits that differ by no more than
//! rounding: whoever chooses a token says how likely it was, and both groups' words are compared. Where they do not agree,
//! a third group decides; where prompt and answer came from two groups, the one that answered is asked once more, alone: if
//! it then gets what the others get, the KV it was sent was wrong. A check looks like any other request, and is hung up on
//! after its first token.

use crate::{trust::Offence, view::View};
use std::collections::{BTreeMap, BTreeSet};
use tsnode_protocol::{
    Group, ModelId, PeerId, PromptCodec, RequestId, Sampled, Token,
    stream::{DecodeRequest, Generation},
};

/// One answer in so many is checked of a group that is new here, and of one that is known.
const NEW: u64 = 4;
const KNOWN: u64 = 32;
/// Checks a leader must pass to be known.
const PASSES: u32 = 8;
/// Leaders remembered.
const LEADERS: usize = 4096;
/// Checks under way at once; above it none is begun.
const OPEN: usize = 8;
/// A greedy token may be this much less likely than the likeliest (nats): other hardware adds in another order.
const TIE: f32 = 0.02;
/// Log-probabilities of one token may be this far apart (nats): GPUs compute with fewer bits than processors do.
const LOGPROBS: f32 = 0.5;
/// Groups that may give no answer until a check is given up: they leave, change over, or have no room just then.
const SILENT: usize = 2;
/// Alternatives asked for, to see near ties.
const ALTERNATIVES: u8 = 5;

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
    /// Who led the group that computed the prompt.
    pub prefill: PeerId,
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
    /// Another group gets the same token.
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
    /// The group that checked is alone with its token.
    WrongCheck(Vec<PeerId>),
    /// Nobody can say.
    Unclear,
}

impl SpotCheckVerdict {
    /// Who did what, by this verdict.
    #[must_use]
    pub fn offences(&self) -> Vec<(PeerId, Offence)> {
        match self {
            Self::Passed | Self::Unclear => Vec::new(),
            Self::WrongKv { prefill, decode } => vec![(*prefill, Offence::WrongKv { with: *decode })],
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
    /// The check is over.
    Over(SpotCheckVerdict),
}

/// The checks of one gateway.
#[derive(Debug, Default)]
pub struct Checks {
    which: SpotChecks,
    open: BTreeMap<RequestId, Check>,
    leaders: BTreeMap<PeerId, GroupChecks>,
}

#[derive(Clone, Copy, Debug, Default)]
struct GroupChecks {
    passes: u32,
    /// Answers until the next block of them begins, and until the one of this block that is checked.
    block: u64,
    next: Option<u64>,
}

#[derive(Debug)]
struct Check {
    served: CheckedAnswer,
    /// Place in the answer of the token that is checked.
    index: usize,
    /// Peers of the group that answered.
    answered: Vec<PeerId>,
    asked: Vec<CheckAnswer>,
    /// Peers of groups that gave no answer, by group.
    silent: Vec<Vec<PeerId>>,
}

#[derive(Debug)]
struct CheckAnswer {
    peers: Vec<PeerId>,
    said: Option<Word>,
}

/// A token, and what somebody says of it.
#[derive(Clone, Copy, Debug)]
struct Word {
    token: Token,
    /// Minus infinity where nothing is said of it: then there is no such token.
    logprob: f32,
}

impl Word {
    fn new(token: Token, logprob: Option<f32>) -> Self {
        Self { token, logprob: logprob.unwrap_or(f32::NEG_INFINITY) }
    }

    fn agrees(self, other: Self) -> bool {
        // What is no number agrees with nothing, nor do infinities.
        self.token == other.token && (self.logprob - other.logprob).abs() <= LOGPROBS
    }
}

impl Checks {
    /// No check is open.
    #[must_use]
    pub fn new(which: SpotChecks) -> Self {
        Self { which, ..Self::default() }
    }

    /// An answer has ended; `roll` is random. If it is to be checked, the first group to ask, under the name `check`.
    pub fn ended(&mut self, view: &View, served: CheckedAnswer, check: RequestId, roll: u64) -> Option<CheckRequest> {
        if self.which == SpotChecks::Never
            || !self.is_due(served.decode, roll)
            || served.answer.is_empty()
            || self.open.len() >= OPEN
        {
            return None;
        }
        let index = ((roll >> 32) % served.answer.len() as u64) as usize;
        let answered = group_of(view, served.decode).map(peers)?;
        let mut begun = Check { served, index, answered, asked: Vec::new(), silent: Vec::new() };
        let ask = begun.ask_another(view, check)?;
        self.open.insert(check, begun);
        Some(ask)
    }

    /// What a group said first to such a question; nothing if it did not answer.
    pub fn said(&mut self, view: &View, check: RequestId, sampled: Option<Sampled>) -> Option<CheckStep> {
        let mut begun = self.open.remove(&check)?;
        let step = match sampled {
            Some(sampled) => begun.heard(view, check, &sampled),
            None => begun.not_heard(view, check),
        };
        match &step {
            CheckStep::Ask(_) => drop(self.open.insert(check, begun)),
            CheckStep::Over(SpotCheckVerdict::Passed) => {
                let leader = self.leaders.entry(begun.served.decode).or_default();
                leader.passes = leader.passes.saturating_add(1);
            }
            CheckStep::Over(_) => {}
        }
        Some(step)
    }

    /// Of every block of answers by a leader one is checked, at a random place: none can know which, and the bound is hard.
    fn is_due(&mut self, leader: PeerId, roll: u64) -> bool {
        if self.leaders.len() >= LEADERS && !self.leaders.contains_key(&leader) {
            self.leaders.pop_first();
        }
        let known = self.leaders.entry(leader).or_default();
        if known.block == 0 {
            known.block = if known.passes < PASSES { NEW } else { KNOWN };
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

impl Check {
    /// What the answer says.
    fn claimed(&self) -> Word {
        let said = self.served.logprobs.get(self.index).copied().flatten();
        Word::new(self.served.answer[self.index], said)
    }

    fn heard(&mut self, view: &View, check: RequestId, sampled: &Sampled) -> CheckStep {
        let (claimed, found) = (self.claimed(), Word::new(sampled.token, sampled.logprob));
        let agrees = found.agrees(claimed) || is_tie(&self.served.generation, claimed, sampled);
        let Some(last) = self.asked.last_mut() else { return CheckStep::Over(SpotCheckVerdict::Unclear) };
        last.said = Some(if agrees { claimed } else { found });
        let alike = |a: &CheckAnswer, b: &CheckAnswer| a.said.zip(b.said).is_some_and(|(a, b)| a.agrees(b));
        match (&self.asked[..], agrees) {
            ([_], true) => CheckStep::Over(SpotCheckVerdict::Passed),
            ([_], false) => {
                self.ask_another(view, check).map_or(CheckStep::Over(SpotCheckVerdict::Unclear), CheckStep::Ask)
            }
            ([first, _], true) => CheckStep::Over(SpotCheckVerdict::WrongCheck(first.peers.clone())),
            ([first, second], false) if !alike(first, second) => CheckStep::Over(SpotCheckVerdict::Unclear),
            ([_, _], false) if self.served.prefill == self.served.decode => self.wrong_token(),
            ([_, _], false) => {
                self.ask_again(view, check).map_or(CheckStep::Over(SpotCheckVerdict::Unclear), CheckStep::Ask)
            }
            ([first, _, alone], _) if alike(first, alone) => {
                let CheckedAnswer { prefill, decode, .. } = self.served;
                CheckStep::Over(SpotCheckVerdict::WrongKv { prefill, decode })
            }
            _ => self.wrong_token(),
        }
    }

    /// A group gave no answer: another may, but for the one whose answer it is.
    fn not_heard(&mut self, view: &View, check: RequestId) -> CheckStep {
        let is_its_own = |asked: &CheckAnswer| asked.peers == self.answered;
        let Some(asked) = self.asked.pop().filter(|a| !is_its_own(a) && self.silent.len() < SILENT) else {
            return CheckStep::Over(SpotCheckVerdict::Unclear);
        };
        self.silent.push(asked.peers);
        self.ask_another(view, check).map_or(CheckStep::Over(SpotCheckVerdict::Unclear), CheckStep::Ask)
    }

    fn wrong_token(&self) -> CheckStep {
        CheckStep::Over(SpotCheckVerdict::WrongToken(self.answered.clone()))
    }

    /// The next group that has had no part in this, if there is one.
    fn ask_another(&mut self, view: &View, check: RequestId) -> Option<CheckRequest> {
        let plan = view.plan.as_ref()?;
        let mut had_part: BTreeSet<PeerId> = self.asked.iter().flat_map(|a| &a.peers).copied().collect();
        had_part.extend(self.silent.iter().flatten());
        had_part.extend(self.answered.iter().copied().chain([self.served.prefill]));
        let fits = |g: &&Group| {
            g.model == self.served.model
                && view.up.contains_key(&g.id)
                && !g.stages.iter().any(|s| had_part.contains(&s.peer))
        };
        // The least busy: a check is work for nobody's client.
        let busy = |g: &&Group| view.up.get(&g.id).map_or(u32::MAX, |l| l.running + l.waiting);
        let group = plan.groups.iter().filter(fits).min_by_key(busy)?;
        self.ask(group, check)
    }

    fn ask_again(&mut self, view: &View, check: RequestId) -> Option<CheckRequest> {
        let group = group_of(view, self.served.decode).filter(|g| view.up.contains_key(&g.id))?;
        self.ask(group, check)
    }

    fn ask(&mut self, group: &Group, check: RequestId) -> Option<CheckRequest> {
        let leader = group.leader()?;
        self.asked.push(CheckAnswer { peers: peers(group), said: None });
        let mut generation = self.served.generation.clone();
        // Only a token is compared.
        generation.sampling.prompt_logprobs = None;
        generation.sampling.logprobs = Some(generation.sampling.logprobs.unwrap_or(0).max(ALTERNATIVES));
        let open = DecodeRequest {
            request: check,
            group: group.id,
            prompt: self.served.prompt.clone(),
            answered: self.served.answer[..self.index].to_vec(),
            generation,
            await_kv: false,
            codec: self.served.codec,
        };
        Some(CheckRequest { leader, open })
    }
}

/// Whether `claimed` is as likely as the token that greedy choice gave, but for rounding. What is likelier than that under a
/// grammar was forbidden by it.
fn is_tie(generation: &Generation, claimed: Word, sampled: &Sampled) -> bool {
    let best = sampled.logprob.unwrap_or(0.0);
    let most = if generation.sampling.constraint.is_some() { best + TIE } else { f32::INFINITY };
    let near = |t: &tsnode_protocol::TokenLogprob| {
        t.logprob > best - TIE && t.logprob < most && claimed.agrees(Word::new(t.token, Some(t.logprob)))
    };
    generation.sampling.temperature == 0.0 && sampled.top.iter().any(near)
}

/// The group that `leader` leads and that answers.
fn group_of(view: &View, leader: PeerId) -> Option<&Group> {
    view.plan.as_ref()?.groups.iter().filter(|g| g.leader() == Some(leader)).max_by_key(|g| g.phase)
}

fn peers(group: &Group) -> Vec<PeerId> {
    group.stages.iter().map(|s| s.peer).collect()
}

#[cfg(test)]
mod tests;
