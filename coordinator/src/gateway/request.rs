//! A request as its gateway holds it.

use super::{
    Begun, GatewayConfig, Move, Predicted, Resumption, Trace, patience::LEAST, prefix_cache::Trail, slowest,
    trace::Timeline,
};
use crate::{
    Time,
    claim_check::{Seen, Work},
    gate::Overrule,
    policy::routing::Asked,
    router::Pick,
    spot_check::Served,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tsnode_protocol::{
    Advert, GroupId, KvCodec, ModelId, PeerId, RequestId, Sampled, Stage, Token, kv::KvPace, stream::Generation,
};

/// Where the prompt is computed, and how far that is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Prefill {
    /// By the decode group.
    ByDecode,
    /// By a prefill group, once the decode group has pages.
    Wanted,
    /// By a prefill group, now.
    Running,
    /// A prefill group has done it, and all its KV is confirmed.
    Done,
}

#[derive(Debug)]
pub(super) struct Request {
    pub model: ModelId,
    pub prompt: Vec<Token>,
    /// Prompt and answer, for what groups have of them.
    pub trail: Trail,
    pub generation: Generation,
    pub line: Timeline,
    /// When it is looked at again.
    pub deadline: Time,
    /// Its group last gave it a sign.
    pub heard: Time,
    /// The decode group has pages for it, since then.
    pub granted_at: Option<Time>,
    /// Whether the group had nothing to do when it was asked.
    pub asked_idle: bool,
    /// Whether its decode group has given it tokens.
    pub flows: bool,
    /// Whether it is noted that its decode group has computed what was known of it.
    pub learnt: bool,
    /// When it last got one.
    pub last_token: Option<Time>,
    pub pick: Option<Pick>,
    /// Where the router sent it, as far as it has been told; whether prompts go elsewhere is decided after that.
    pub routed: Option<Pick>,
    pub prefill_leader: Option<PeerId>,
    pub decode_leader: Option<PeerId>,
    /// Stages of the group that prefills for another; the plan may have dropped it since.
    pub prefillers: Vec<Stage>,
    /// Stages of the group that decodes.
    pub decoders: Vec<Stage>,
    pub prefill: Prefill,
    /// What the prompt's KV goes through; it stays so once the client has tokens that rest on it.
    pub codec: KvCodec,
    /// When it leaves.
    pub pace: KvPace,
    /// What its client says of that, and of where the prompt is computed.
    pub overrule: Option<Overrule>,
    /// What its client wants the prompt's KV to go through.
    pub told_codec: Option<KvCodec>,
    /// What the gate expected.
    pub predicted: Option<Predicted>,
    /// Why the prompt is computed where it is.
    pub reason: String,
    pub accepted: bool,
    pub first: Option<Token>,
    /// When its second token came: the first may have been another group's.
    pub second_at: Option<Time>,
    /// The longest wait for a token after that.
    pub stood: Duration,
    /// When a prefill group was asked for the prompt.
    pub prefill_from: Time,
    /// Tokens of the prompt that were not computed: another request had begun with them.
    pub cached: u32,
    /// The answer, as far as the client has it.
    pub answer: Vec<Token>,
    /// Of its tokens, as whoever chose them said.
    pub logprobs: Vec<Option<f32>>,
    /// Of so many of the prompt's tokens its client has the log-probabilities, if it wants them.
    pub prompt_logprobs: usize,
    /// The group that computed the prompt for another: it may still have it.
    pub prefilled_by: Option<GroupId>,
    /// Whether another gateway began it.
    pub resumed: bool,
    /// How often it went on elsewhere.
    pub moves: Vec<Move>,
    /// While no group serves it: until when one is waited for.
    pub homeless_until: Option<Time>,
    /// Decode groups that did not take it, or failed it, since it last got a token.
    pub tried: BTreeSet<GroupId>,
    /// What the last of them said.
    pub refusal: Option<String>,
}

impl Request {
    pub fn new(now: Time, model: ModelId, prompt: Vec<Token>, generation: Generation) -> Self {
        Self {
            model,
            trail: Trail::of(&prompt),
            prompt,
            generation,
            line: Timeline::new(now),
            deadline: now,
            heard: now,
            granted_at: None,
            asked_idle: false,
            flows: false,
            learnt: false,
            last_token: None,
            pick: None,
            routed: None,
            prefill_leader: None,
            decode_leader: None,
            prefillers: Vec::new(),
            decoders: Vec::new(),
            prefill: Prefill::ByDecode,
            codec: KvCodec::Raw,
            pace: KvPace::default(),
            overrule: None,
            told_codec: None,
            predicted: None,
            reason: String::new(),
            accepted: false,
            first: None,
            second_at: None,
            stood: Duration::ZERO,
            prefill_from: now,
            cached: 0,
            answer: Vec::new(),
            logprobs: Vec::new(),
            prompt_logprobs: 0,
            prefilled_by: None,
            resumed: false,
            moves: Vec::new(),
            homeless_until: None,
            tried: BTreeSet::new(),
            refusal: None,
        }
    }

    /// With what its client has from another gateway.
    pub fn with(mut self, begun: Option<Begun>) -> Self {
        if let Some(Begun { codec, holder, answer }) = begun {
            self.trail.extend(&answer);
            (self.codec, self.prefilled_by, self.answer, self.resumed) = (codec, holder, answer, true);
        }
        self
    }

    /// With what its client says of where the prompt is computed.
    pub fn overruled(self, overrule: Option<Overrule>) -> Self {
        Self { overrule, ..self }
    }

    /// With what its client says of the packing of its KV.
    pub fn packed(self, told_codec: Option<KvCodec>) -> Self {
        Self { told_codec, ..self }
    }

    /// What its KV goes through, if that is not the gate's choice: what tokens that its client has rest on, then what it says, then
    /// what the owner does.
    pub fn fixed_codec(&self, config: &GatewayConfig) -> Option<KvCodec> {
        if self.is_settled() { Some(self.codec) } else { self.told_codec.or(config.fixed) }
    }

    /// When its KV leaves, if that is not the gate's choice.
    pub fn told_pace(&self, config: &GatewayConfig) -> Option<KvPace> {
        self.overrule.and_then(Overrule::pace).or(config.pace)
    }

    /// What a router may know of it; the answer may turn out shorter.
    pub fn asked(&self) -> Asked {
        Asked::new(self.prompt.len() as u32, self.generation.max_new_tokens.max(1))
    }

    /// Its client gets a token.
    pub fn answered(&mut self, sampled: &Sampled) {
        self.trail.extend(&[sampled.token]);
        self.answer.push(sampled.token);
        self.logprobs.push(sampled.logprob);
    }

    /// Whether log-probabilities of its prompt's tokens are still to come.
    pub fn wants_prompt_logprobs(&self) -> bool {
        self.generation.sampling.prompt_logprobs.is_some() && self.prompt_logprobs + 1 < self.prompt.len()
    }

    /// What a group is asked to generate: of the prompt it says only what the client has not been told.
    pub fn to_generate(&self) -> Generation {
        let mut generation = self.generation.clone();
        let wanted = self.wants_prompt_logprobs();
        generation.sampling.prompt_logprobs = generation.sampling.prompt_logprobs.filter(|_| wanted);
        generation
    }

    /// Tokens of prompt and answer that whoever decodes it has computed: what follows the last one nobody has asked for yet.
    pub fn computed(&self) -> usize {
        self.prompt.len() + self.answer.len().saturating_sub(1)
    }

    /// Whether its client has tokens that rest on its codec.
    pub fn is_settled(&self) -> bool {
        self.resumed || !self.answer.is_empty()
    }

    /// Whether it is to go on with what its client has, or was granted pages before.
    pub fn goes_on(&self) -> bool {
        self.accepted || self.resumed
    }

    /// Whether its decode group computes it bit for bit as any other would: others may begin with it there, and it with others.
    pub fn computes_at_home(&self) -> bool {
        self.prefill == Prefill::ByDecode && self.codec == KvCodec::Raw
    }

    /// Index of the token the client gets next.
    pub fn next_index(&self) -> u32 {
        self.answer.len() as u32
    }

    /// Its group gave a sign.
    pub fn heard(&mut self, now: Time) {
        self.heard = now;
        self.deadline = now + LEAST;
    }

    /// The group that owes it something.
    pub fn debtor(&self) -> Option<GroupId> {
        self.pick.map(|pick| if self.prefill == Prefill::Running { pick.prefill } else { pick.decode })
    }

    /// How it goes on since its last move, if there was one.
    pub fn goes_by(&mut self, way: Resumption) {
        self.moves.last_mut().into_iter().for_each(|last| last.way = Some(way));
    }

    /// From now on the decode side computes the prompt itself.
    pub fn moved_home(&mut self, reason: String) {
        self.goes_by(Resumption::Anew);
        self.prefill = Prefill::ByDecode;
        self.prefill_leader = self.decode_leader;
        self.prefillers.clear();
        self.reason = reason;
    }

    /// How long one group took for the answer from its second token on, if it did all of it.
    pub fn answered_at_once(&self, now: Time) -> Option<(GroupId, Seen)> {
        if self.resumed || !self.moves.is_empty() {
            return None;
        }
        let tokens = self.next_index().checked_sub(2)?;
        let context = self.prompt.len() as u32 + self.next_index() / 2;
        let (work, took) = (Work::Answer { tokens, context }, now.saturating_sub(self.second_at?));
        Some((self.pick?.decode, Seen { work, at: now, took, stood: self.stood, sequences: 1 }))
    }

    /// What was answered, if one group did it from the first token on.
    pub fn served(self) -> Option<Served> {
        if self.resumed || !self.moves.is_empty() {
            return None;
        }
        Some(Served {
            model: self.model,
            prompt: self.prompt,
            answer: self.answer,
            logprobs: self.logprobs,
            generation: self.generation,
            codec: self.codec,
            decode: self.decode_leader?,
            prefill: self.prefill_leader?,
        })
    }

    /// What is told of it; peers are named, and their links and devices judged, by these adverts.
    pub fn trace(&self, now: Time, request: RequestId, adverts: &BTreeMap<PeerId, Advert>) -> Option<Trace> {
        let deliveries = self.line.deliveries.clone();
        let prefill_stages = if self.prefillers.is_empty() { &self.decoders } else { &self.prefillers }.clone();
        let mut trace = Trace {
            request,
            model: self.model,
            prefill_stages,
            decode_stages: self.decoders.clone(),
            prefill: self.prefill_leader?,
            decode: self.decode_leader?,
            reason: self.reason.clone(),
            predicted: self.predicted,
            prompt_tokens: self.prompt.len() as u32,
            cached_tokens: self.cached,
            new_tokens: self.next_index(),
            moves: self.moves.clone(),
            codec: self.codec,
            kv_codec: (!deliveries.is_empty()).then_some(self.codec),
            kv_bytes: deliveries.iter().map(|d| d.bytes).sum(),
            ttft: self.line.since(self.line.first.unwrap_or(now)),
            total: self.line.since(now),
            parts: self.line.parts(now),
            deliveries,
            slowest: None,
            peers: BTreeMap::new(),
        };
        trace.slowest = slowest::of(&trace, adverts);
        trace.peers = trace.names(adverts);
        Some(trace)
    }
}
