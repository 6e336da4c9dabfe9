//! A check of one token: whom to ask next, and what it all comes to.

use super::{
    CheckRequest, CheckStep, CheckedAnswer, PATIENCE, SpotCheckVerdict,
    draw::Draw,
    opinion::{Fit, Opinion, Word},
};
use crate::{claim_check::ClaimedWork, view::View};
use std::collections::{BTreeMap, BTreeSet};
use tsnode_protocol::{
    DeviceKind, Group, GroupId, PeerId, RequestId, Sampled, Sampling, Stage, limits,
    stream::{DecodeRequest, Generation},
};

/// Groups that may give no answer until a check is given up: they leave, change over, or have no room just then.
const SILENT: usize = 2;
/// Times that the group that answered may give no answer for itself, each time behind one that it gave a client: whoever has room for
/// those has room for one token, sooner or later.
const REFUSALS: u32 = 3;
/// Answers to clients behind which it is asked though requests wait there, as it says.
const BUSY: u32 = 32;
/// A group may take so many times what it claims where others compute there too.
const BESIDE_OTHERS: f64 = 3.0;
/// Alternatives asked for, to see near ties and what draws may give: as many as there are to be had.
const ALTERNATIVES: u8 = limits::TOP_LOGPROBS as u8;
/// Added to a token's logit it has that token chosen, if it is allowed: as much as anybody may add.
pub(super) const CHOSEN: f32 = 100.0;

/// Leaders that gave no answer to a check lately, and how many more checks ask others first.
pub(super) type Quiet = BTreeMap<PeerId, u32>;

/// One check.
#[derive(Debug)]
pub(super) struct Check {
    pub served: CheckedAnswer,
    /// Place in the answer of the token that is checked.
    index: usize,
    /// Peers of the group that answered.
    answered: Vec<PeerId>,
    /// Whether all who have a part in it compute the same bits.
    is_exact: bool,
    asked: Vec<CheckAnswer>,
    /// Peers of groups that gave no answer, by group.
    silent: Vec<Vec<PeerId>>,
    /// How often the group that answered gave none when it was asked again.
    pub refusals: u32,
    /// Answers to clients since then behind which it was not asked, since it was busy.
    busy: u32,
}

/// A group that is asked, and what it has said.
#[derive(Debug)]
struct CheckAnswer {
    group: GroupId,
    leader: PeerId,
    peers: Vec<PeerId>,
    opinion: Option<Opinion>,
}

impl Check {
    /// Of one of an answer's tokens; `roll` is random. Nothing where the plan has the group that answered no more.
    pub fn of(view: &View, served: CheckedAnswer, roll: u64) -> Option<Self> {
        let index = ((roll >> 32) % served.answer.len().max(1) as u64) as usize;
        let answered = peers(group_of(view, &served)?);
        let is_exact = [&served.decoders, &served.prefillers].into_iter().all(|by| are_on_processors(view, by));
        Some(Self { served, index, answered, is_exact, asked: Vec::new(), silent: Vec::new(), refusals: 0, busy: 0 })
    }

    /// What the answer says.
    fn claimed(&self) -> Word {
        let said = self.served.logprobs.get(self.index).copied().flatten();
        Word::new(self.served.answer[self.index], said)
    }

    /// How the token that is checked was to be chosen.
    fn draw(&self) -> Draw<'_> {
        let before = &self.served.answer[..self.index];
        let position = (self.served.prompt.len() + before.len()) as u32;
        Draw::new(&self.served.generation.sampling, before, position)
    }

    pub fn heard(&mut self, view: &View, check: RequestId, sampled: Sampled, quiet: &Quiet) -> CheckStep {
        let claimed = self.claimed().token;
        let Some(last) = self.asked.last_mut() else { return CheckStep::Over(SpotCheckVerdict::Unclear) };
        match &mut last.opinion {
            Some(opinion) => opinion.asked_for(claimed, &sampled),
            None => last.opinion = Some(Opinion::new(sampled)),
        }
        match self.ask_for_claimed(check) {
            Some(ask) => CheckStep::Ask(ask),
            None => self.judge(view, check, quiet),
        }
    }

    fn judge(&mut self, view: &View, check: RequestId, quiet: &Quiet) -> CheckStep {
        let unclear = CheckStep::Over(SpotCheckVerdict::Unclear);
        let fits = self.asked.last().map(|last| self.fit(last)) == Some(Fit::Within);
        match (&self.asked[..], fits) {
            ([_], true) => CheckStep::Over(SpotCheckVerdict::Passed),
            ([_], false) => self.ask_another(view, check, quiet).map_or(unclear, CheckStep::Ask),
            ([first, second], true) if self.is_wrong_beside(first, second) => {
                CheckStep::Over(SpotCheckVerdict::WrongCheck(first.peers.clone()))
            }
            ([_, _], true) => unclear,
            ([first, second], false) if !self.alike(first, second) || self.best_fit() == Some(Fit::Within) => unclear,
            ([_, _], false) if self.served.prefill == self.served.decode => self.wrong_token(),
            ([_, _], false) => self.ask_again(view, check).map_or(CheckStep::Wait, CheckStep::Ask),
            ([first, _, alone], _) if !(self.is_exact && fits) && self.alike(first, alone) => {
                let CheckedAnswer { prefill, decode, .. } = self.served;
                CheckStep::Over(SpotCheckVerdict::WrongKv { prefill, decode })
            }
            _ => self.wrong_token(),
        }
    }

    /// How well the answer fits what a group says.
    fn fit(&self, asked: &CheckAnswer) -> Fit {
        let Some(opinion) = &asked.opinion else { return Fit::Outside };
        if self.is_exact {
            opinion.exact_fit(self.claimed(), &self.served.generation)
        } else {
            opinion.fit(self.claimed(), &self.draw())
        }
    }

    /// How well it fits the one of the two groups that it fits better.
    pub fn best_fit(&self) -> Option<Fit> {
        self.asked.iter().take(2).map(|asked| self.fit(asked)).min()
    }

    /// Whether two groups say the same, or as near to it as they can.
    fn alike(&self, a: &CheckAnswer, b: &CheckAnswer) -> bool {
        let Some((a, b)) = a.opinion.as_ref().zip(b.opinion.as_ref()) else { return false };
        if self.is_exact {
            return a.word().agrees(b.word());
        }
        let draw = self.draw();
        a.fit(b.word(), &draw) == Fit::Within && b.fit(a.word(), &draw) == Fit::Within
    }

    /// Whether the first group, with which the answer is at odds, says what can not be beside the second, which the answer fits.
    fn is_wrong_beside(&self, first: &CheckAnswer, second: &CheckAnswer) -> bool {
        let Some((first, second)) = first.opinion.as_ref().zip(second.opinion.as_ref()) else { return false };
        self.is_exact || second.fit(first.word(), &self.draw()) == Fit::Outside
    }

    /// A group gave no answer: another may. Nobody but the one whose answer it is can say whether it would give it again.
    pub fn not_heard(&mut self, view: &View, check: RequestId, quiet: &Quiet) -> CheckStep {
        let unclear = CheckStep::Over(SpotCheckVerdict::Unclear);
        let Some(asked) = self.asked.pop() else { return unclear };
        if asked.peers == self.answered {
            return self.refused(view);
        }
        if self.silent.len() >= SILENT {
            return unclear;
        }
        self.silent.push(asked.peers);
        self.ask_another(view, check, quiet).map_or(unclear, CheckStep::Ask)
    }

    /// The group that answered did not say it again. An honest one may have had no room just then, so it is asked later.
    fn refused(&mut self, view: &View) -> CheckStep {
        self.refusals += 1;
        if self.refusals < REFUSALS {
            return CheckStep::Wait;
        }
        let (prefill, peers, is_slow) = (self.served.prefill, self.answered.clone(), self.takes_long(view));
        CheckStep::Over(SpotCheckVerdict::Evaded { prefill, peers, is_slow })
    }

    /// Whether the group that answered has too little time to compute all of this by itself, as its adverts claim: that it is slow at
    /// prompts may be why others compute them.
    fn takes_long(&self, view: &View) -> bool {
        let tokens = (self.served.prompt.len() + self.index) as u32;
        let claimed = group_of(view, &self.served).and_then(|g| ClaimedWork::Prompt { tokens }.claimed(view, g));
        claimed.is_some_and(|seconds| seconds * BESIDE_OTHERS > PATIENCE.as_secs_f64())
    }

    /// Whether the group that answered is to be asked now that it has answered a client: where requests wait, this one would, too.
    /// Where some always do, it is asked now and then all the same.
    pub fn is_time_to_ask(&mut self, view: &View) -> bool {
        let load = group_of(view, &self.served).and_then(|group| view.up.get(&group.id));
        let is_time = load.is_some_and(|load| load.waiting == 0) || self.busy >= BUSY;
        self.busy = if is_time { 0 } else { self.busy + 1 };
        is_time
    }

    /// Who was asked last, for the token or for what it says of the answer's.
    pub fn last_asked(&self) -> Option<PeerId> {
        self.asked.last().map(|asked| asked.leader)
    }

    /// Whether both are of answers by the same group, with KV of the same one.
    pub fn is_between_the_same(&self, other: &Self) -> bool {
        self.is_of_group(&other.served) && self.served.prefillers == other.served.prefillers
    }

    /// Whether the group that gave this answer gave the one that is checked.
    pub fn is_of_group(&self, served: &CheckedAnswer) -> bool {
        self.served.model == served.model && self.served.decoders == served.decoders
    }

    fn wrong_token(&self) -> CheckStep {
        CheckStep::Over(SpotCheckVerdict::WrongToken(self.answered.clone()))
    }

    /// The next group that has had no part in this, if there is one.
    pub fn ask_another(&mut self, view: &View, check: RequestId, quiet: &Quiet) -> Option<CheckRequest> {
        let plan = view.plan.as_ref()?;
        let mut had_part: BTreeSet<PeerId> = self.asked.iter().flat_map(|a| &a.peers).copied().collect();
        had_part.extend(self.silent.iter().flatten());
        had_part.extend(self.answered.iter().copied().chain(self.served.prefillers.iter().map(|stage| stage.peer)));
        let fits = |g: &&Group| {
            g.model == self.served.model
                && view.up.contains_key(&g.id)
                && !g.stages.iter().any(|s| had_part.contains(&s.peer))
        };
        // Who gave no answer lately is asked last: friends of a byzantine group would have its checks given up. Who computes the
        // same bits can say more. Of these the least busy: a check is work for nobody's client.
        let is_quiet = |g: &Group| g.leader().is_some_and(|leader| quiet.contains_key(&leader));
        let busy = |g: &Group| view.up.get(&g.id).map_or(u32::MAX, |l| l.running.saturating_add(l.waiting));
        let order = |g: &&Group| (is_quiet(g), self.is_exact && !are_on_processors(view, &g.stages), busy(g));
        let group = plan.groups.iter().filter(fits).min_by_key(order)?;
        self.ask(view, group, check)
    }

    /// Asks the group that answered for itself, while it is there.
    pub fn ask_again(&mut self, view: &View, check: RequestId) -> Option<CheckRequest> {
        let group = group_of(view, &self.served).filter(|g| view.up.contains_key(&g.id))?;
        self.ask(view, group, check)
    }

    fn ask(&mut self, view: &View, group: &Group, check: RequestId) -> Option<CheckRequest> {
        let leader = group.leader()?;
        self.is_exact &= are_on_processors(view, &group.stages);
        self.asked.push(CheckAnswer { group: group.id, leader, peers: peers(group), opinion: None });
        Some(self.request((group.id, leader), check, self.served.generation.clone()))
    }

    /// Asks whom was asked last for the answer's own token, where it has not been named and is to be judged by how likely it is.
    fn ask_for_claimed(&self, check: RequestId) -> Option<CheckRequest> {
        let (last, token) = (self.asked.last()?, self.claimed().token);
        let is_own = last.peers == self.answered;
        let opinion = last.opinion.as_ref().filter(|_| !self.is_exact && !is_own)?;
        let lacks = opinion.lacks(token, &self.served.generation);
        let mut generation = self.served.generation.clone();
        generation.sampling = Sampling {
            temperature: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: vec![(token, CHOSEN)],
            ..generation.sampling
        };
        // The group may not have seen yet that it was hung up on: one name is one request.
        let mut name = check;
        name.0[0] = !name.0[0];
        lacks.then(|| self.request((last.group, last.leader), name, generation))
    }

    fn request(&self, (group, leader): (GroupId, PeerId), name: RequestId, mut generation: Generation) -> CheckRequest {
        // Only a token is compared.
        generation.sampling.prompt_logprobs = None;
        generation.sampling.logprobs = Some(ALTERNATIVES);
        let open = DecodeRequest {
            request: name,
            group,
            prompt: self.served.prompt.clone(),
            answered: self.served.answer[..self.index].to_vec(),
            generation,
            await_kv: false,
            codec: self.served.codec,
        };
        CheckRequest { leader, open }
    }
}

/// The group that answered, while the plan has it.
fn group_of<'v>(view: &'v View, served: &CheckedAnswer) -> Option<&'v Group> {
    view.plan.as_ref()?.groups.iter().find(|g| g.model == served.model && g.stages == served.decoders)
}

/// Whether all of these are known to be on processors, which all compute the same bits. Of who has left nothing is known.
fn are_on_processors(view: &View, stages: &[Stage]) -> bool {
    let device = |stage: &Stage| view.adverts.get(&stage.peer)?.devices.get(usize::from(stage.device));
    let is_processor =
        |stage: &Stage| device(stage).is_some_and(|device| matches!(device.kind, DeviceKind::Cpu { .. }));
    stages.iter().all(is_processor)
}

fn peers(group: &Group) -> Vec<PeerId> {
    group.stages.iter().map(|s| s.peer).collect()
}
