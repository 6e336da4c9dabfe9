//! A request as its gateway holds it.

use super::{
    Begun, GatewayConfig, Move, Resumption, Trace, View, alone, patience::LEAST, prefix_cache::Trail,
    recovery::Unrouted, slowest, state::State, trace::RequestTimeline,
};
use crate::{
    Time,
    claim_check::{ClaimedWork, SeenWork},
    gate::Overrule,
    policy::routing::Asked,
    spot_check::CheckedAnswer,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tsnode_protocol::{
    GroupId, KvCodec, ModelId, PromptCodec, RequestId, Sampled, Sampling, Stage, Token,
    kv::KvPace,
    stream::{DecodeRequest, Generation},
};

/// What a client asks for.
#[derive(Debug)]
pub(super) struct ClientAsk {
    pub model: ModelId,
    pub prompt: Vec<Token>,
    pub generation: Generation,
    /// What it says of where the prompt is computed, and of when its KV leaves.
    pub overrule: Option<Overrule>,
    /// What it wants the prompt's KV to go through.
    pub codec: Option<PromptCodec>,
}

/// The answer, as far as the client has it.
#[derive(Debug, Default)]
pub(super) struct ClientAnswer {
    pub tokens: Vec<Token>,
    /// Of its tokens, as whoever chose them said.
    pub logprobs: Vec<Option<f32>>,
    /// From its second token on: the first may have been another group's.
    pub steady: Option<Steady>,
    /// Of so many of the prompt's tokens the client has the log-probabilities, if it wants them.
    pub prompt_logprobs: usize,
}

/// An answer that one group gives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steady {
    /// When its second token came.
    pub since: Time,
    /// The longest wait for a token after that.
    pub stood: Duration,
}

#[derive(Debug)]
pub(super) struct Request {
    pub ask: ClientAsk,
    /// Prompt and answer, for what groups have of them.
    pub trail: Trail,
    pub line: RequestTimeline,
    /// When it is looked at again.
    pub deadline: Time,
    pub state: State,
    pub answer: ClientAnswer,
    /// What the prompt's KV goes through; it stays so once the client has tokens that rest on it.
    pub codec: PromptCodec,
    /// Tokens of the prompt that were not computed: another request had begun with them.
    pub cached: u32,
    /// The group that computed the prompt for another: it may still have it.
    pub prefilled_by: Option<GroupId>,
    /// Whether another gateway began it.
    pub resumed: bool,
    /// Whether it was granted pages before.
    pub accepted: bool,
    /// How often it went on elsewhere.
    pub moves: Vec<Move>,
    /// Decode groups that did not take it, or failed it, since it last got a token.
    pub tried: BTreeSet<GroupId>,
    /// Whether it went back to a group after this gateway slept, since it last got a token: a gateway that is stopped again and again
    /// would go back as often.
    pub went_back: bool,
    /// Whether nobody went on with it since it last got a token.
    pub unrouted: Option<Unrouted>,
    /// What the last of them said.
    pub refusal: Option<String>,
    /// Since when it waits for a group's ring, if it ever did: it may have waited at the group before.
    pub without_ring: Option<Time>,
}

impl Request {
    pub fn new(now: Time, ask: ClientAsk) -> Self {
        Self {
            trail: Trail::of(&ask.prompt),
            ask,
            line: RequestTimeline::new(now),
            deadline: now,
            state: State::Routing,
            answer: ClientAnswer::default(),
            codec: KvCodec::Raw.into(),
            cached: 0,
            prefilled_by: None,
            resumed: false,
            accepted: false,
            moves: Vec::new(),
            tried: BTreeSet::new(),
            went_back: false,
            unrouted: None,
            refusal: None,
            without_ring: None,
        }
    }

    /// With what its client has from another gateway.
    pub fn with(mut self, begun: Option<Begun>) -> Self {
        if let Some(Begun { codec, holder, answer }) = begun {
            self.trail.extend(&answer);
            (self.codec, self.prefilled_by, self.answer.tokens, self.resumed) = (codec, holder, answer, true);
        }
        self
    }

    /// What its KV goes through, if that is not the gate's choice: what tokens that its client has rest on, then what it says, then
    /// what the owner does.
    pub fn fixed_codec(&self, config: &GatewayConfig) -> Option<PromptCodec> {
        if self.is_settled() {
            return Some(self.codec.basis());
        }
        self.ask.codec.or(config.fixed.map(Into::into))
    }

    /// Tokens of the prompt that another group computes where one does, if that is not all of them.
    pub fn first_part(&self) -> Option<u32> {
        let is_sent = self.state.prefill_group().is_some();
        self.codec.first.filter(|first| is_sent && (*first as usize) < self.ask.prompt.len())
    }

    /// When its KV leaves, if that is not the gate's choice.
    pub fn told_pace(&self, config: &GatewayConfig) -> Option<KvPace> {
        self.ask.overrule.and_then(Overrule::pace).or(config.pace)
    }

    /// What a router may know of it; the answer may turn out shorter.
    pub fn asked(&self) -> Asked {
        Asked::new(self.ask.prompt.len() as u32, self.ask.generation.max_new_tokens.max(1))
    }

    /// What a decode group is asked.
    pub fn decode_request(&self, request: RequestId, group: GroupId, await_kv: bool) -> DecodeRequest {
        DecodeRequest {
            request,
            group,
            prompt: self.ask.prompt.clone(),
            answered: self.answer.tokens.clone(),
            generation: self.to_generate(),
            await_kv,
            codec: self.codec,
        }
    }

    /// Its client gets a token.
    pub fn answered(&mut self, sampled: &Sampled) {
        self.trail.extend(&[sampled.token]);
        self.answer.tokens.push(sampled.token);
        self.answer.logprobs.push(sampled.logprob);
    }

    /// Whether log-probabilities of its prompt's tokens are still to come.
    pub fn wants_prompt_logprobs(&self) -> bool {
        let told = self.answer.prompt_logprobs;
        self.ask.generation.sampling.prompt_logprobs.is_some() && told + 1 < self.ask.prompt.len()
    }

    /// What a group is asked to generate: of the prompt it says only what the client has not been told.
    pub fn to_generate(&self) -> Generation {
        let mut generation = self.ask.generation.clone();
        let wanted = self.wants_prompt_logprobs();
        generation.sampling.prompt_logprobs = generation.sampling.prompt_logprobs.filter(|_| wanted);
        generation
    }

    /// What a group that computes the prompt, or its first part, for another is asked for: of a part only its KV is wanted.
    pub fn to_prefill(&self) -> (Vec<Token>, Generation) {
        let Some(first) = self.first_part() else { return (self.ask.prompt.clone(), self.ask.generation.clone()) };
        let (sampling, stop_tokens, class) = (Sampling::greedy(), Vec::new(), self.ask.generation.class);
        let generation = Generation { sampling, max_new_tokens: 1, stop_tokens, class };
        (self.ask.prompt[..first as usize].to_vec(), generation)
    }

    /// Whether it waits for its model, which is not in memory, or for its group's ring.
    pub fn is_asleep(&self) -> bool {
        !self.accepted && matches!(self.state, State::Recovering { .. })
    }

    /// Tokens of prompt and answer that whoever decodes it has computed: what follows the last one nobody has asked for yet.
    pub fn computed(&self) -> usize {
        self.ask.prompt.len() + self.answer.tokens.len().saturating_sub(1)
    }

    /// Whether its client has tokens that rest on its codec.
    pub fn is_settled(&self) -> bool {
        self.resumed || !self.answer.tokens.is_empty()
    }

    /// Whether it is to go on with what its client has, or was granted pages before.
    pub fn goes_on(&self) -> bool {
        self.accepted || self.resumed
    }

    /// Whether its decode group computes it bit for bit as any other would: others may begin with it there, and it with others.
    pub fn computes_at_home(&self) -> bool {
        self.state.computes_here() && self.codec.codec == KvCodec::Raw
    }

    /// Index of the token the client gets next.
    pub fn next_index(&self) -> u32 {
        self.answer.tokens.len() as u32
    }

    /// Whoever owes it something gave a sign.
    pub fn heard(&mut self, now: Time) {
        if let Some(at) = self.state.placement_mut() {
            at.heard = now;
            self.deadline = now + LEAST;
        }
    }

    /// Stages of the group that decodes it.
    pub fn decoders(&self) -> &[Stage] {
        self.state.placement().map_or(&[][..], |at| &at.stages)
    }

    /// Stages of the group that prefills for another.
    pub fn prefillers(&self) -> &[Stage] {
        self.state.prefill_group().map_or(&[][..], |group| &group.stages)
    }

    /// The decode group, if it computes all that is known, and that is noted from now on.
    pub fn learn(&mut self) -> Option<GroupId> {
        let exact = self.computes_at_home();
        let at = self.state.placement_mut().filter(|at| exact && !at.learnt)?;
        at.learnt = true;
        Some(at.pick.decode)
    }

    /// How it goes on since its last move, if there was one.
    pub fn goes_by(&mut self, way: Resumption) {
        self.moves.last_mut().into_iter().for_each(|last| last.way = Some(way));
    }

    /// From now on the decode side computes the prompt itself.
    pub fn moved_home(&mut self, reason: String) {
        self.goes_by(Resumption::Anew);
        self.state.moved_home(reason);
    }

    /// How long one group took for the answer from its second token on, if it did all of it.
    pub fn answered_at_once(&self, now: Time) -> Option<(GroupId, SeenWork)> {
        if self.resumed || !self.moves.is_empty() {
            return None;
        }
        let Steady { since, stood } = self.answer.steady?;
        let tokens = self.next_index().checked_sub(2)?;
        let context = self.ask.prompt.len() as u32 + self.next_index() / 2;
        let (work, took) = (ClaimedWork::Answer { tokens, context }, now.saturating_sub(since));
        Some((self.state.placement()?.pick.decode, SeenWork { work, at: now, took, stood, sequences: 1 }))
    }

    /// What was answered, if one group did it from the first token on.
    pub fn served(self) -> Option<CheckedAnswer> {
        if self.resumed || !self.moves.is_empty() {
            return None;
        }
        let (prefill, decode) = self.state.leaders()?;
        let decoders = self.decoders().to_vec();
        let prefillers = Some(self.prefillers()).filter(|stages| !stages.is_empty()).unwrap_or(&decoders).to_vec();
        Some(CheckedAnswer {
            model: self.ask.model,
            prompt: self.ask.prompt,
            answer: self.answer.tokens,
            logprobs: self.answer.logprobs,
            generation: self.ask.generation,
            codec: self.codec.basis(),
            decode,
            decoders,
            prefill,
            prefillers,
        })
    }

    /// What is told of it; peers are named, and their links and devices judged, as they are in this view.
    pub fn trace(&self, now: Time, request: RequestId, view: &View) -> Option<Trace> {
        let deliveries = self.line.deliveries.clone();
        let (at, (prefill, decode)) = (self.state.placement()?, self.state.leaders()?);
        let prefillers = self.state.prefill_group().map(|group| &group.stages).filter(|stages| !stages.is_empty());
        let mut trace = Trace {
            request,
            model: self.ask.model,
            prefill_stages: prefillers.unwrap_or(&at.stages).clone(),
            decode_stages: at.stages.clone(),
            prefill,
            decode,
            reason: at.reason.clone(),
            predicted: at.predicted,
            prompt_tokens: self.ask.prompt.len() as u32,
            cached_tokens: self.cached,
            new_tokens: self.next_index(),
            moves: self.moves.clone(),
            codec: self.codec.codec,
            first_part: self.first_part(),
            overflow: at.overflow,
            kv_codec: (!deliveries.is_empty()).then_some(self.codec.codec),
            kv_bytes: deliveries.iter().map(|d| d.bytes).fold(0, u64::saturating_add),
            ttft: self.line.since(self.line.first.unwrap_or(now)),
            total: self.line.since(now),
            alone: None,
            parts: self.line.parts(now),
            deliveries,
            slowest: None,
            peers: BTreeMap::new(),
        };
        let prefilled = if self.state.prefill_group().is_some() { at.pick.prefill } else { at.pick.decode };
        trace.alone = alone::alone(&trace, alone::ServedBy { prefill: prefilled, decode: at.pick.decode }, view);
        trace.slowest = slowest::of(&trace, &view.adverts);
        trace.peers = trace.names(&view.adverts);
        Some(trace)
    }
}
