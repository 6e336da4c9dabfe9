//! Clients: who asks when, and whether what they get is what an undisturbed run gives, each token once, and one end.

use super::{Effect, Item, Planted, ProcessLife, Requests, SimulatedProcess, Surroundings, token};
use std::collections::BTreeSet;
use std::time::Duration;
use tsnode_coordinator::{
    control::Event as ControlEvent,
    gateway::{Begun, Event},
    sample,
};
use tsnode_protocol::{
    KvCodec, ModelId, RequestId, Sampling, Token,
    stream::{DecodeRequest, End, Generation},
};

/// A client whose gateway died comes to another after this.
const COMES_BACK: Duration = Duration::from_secs(1);
/// Of so many requests one is for a long answer, and one is given up by its client.
const LONG: usize = 6;
const GIVEN_UP: usize = 12;
/// Tokens of a short answer and of a long one, at most.
const SHORT_ANSWER: usize = 80;
const LONG_ANSWER: usize = 600;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// It was told to ask again, or is on its way to another gateway.
    Away,
    Over,
}

/// One request as its client sees it.
#[derive(Debug)]
pub(super) struct SimulatedClient {
    at: ProcessLife,
    model: ModelId,
    prompt: u32,
    most: u32,
    got: u32,
    accepted: bool,
    state: State,
    /// One that all of a calm swarm are to serve.
    is_last: bool,
    /// Groups asked at this gateway.
    asked: u32,
}

/// One of the models that a peer's plan serves, by the request's name; the usual one while there is no plan.
fn asked_for(peer: &SimulatedProcess, request: RequestId) -> ModelId {
    let groups = peer.control().and_then(|control| control.plan()).into_iter().flat_map(|plan| &plan.groups);
    let models: BTreeSet<ModelId> = groups.map(|group| group.model).collect();
    let place = usize::from(request.0[0]) % models.len().max(1);
    models.into_iter().nth(place).unwrap_or(sample::card().id)
}

impl Requests {
    pub(super) fn somebody_asks(&mut self, around: Surroundings<'_>) {
        if self.rate <= 0.0 {
            return;
        }
        let gap = self.rng.exponential(1.0 / self.rate).min(60.0);
        self.at(around.now + Duration::from_secs_f64(gap.max(0.001)), Item::Asks);
        let n = self.rng.below(around.peers.len());
        // One that is stopped takes no connection.
        if around.peers[n].is_running() && !around.is_stopped(n) {
            self.a_client_asks(around, n, false);
        }
    }

    pub(super) fn last_one_asks(&mut self, around: Surroundings<'_>, n: usize) {
        self.a_client_asks(around, n, true);
    }

    fn a_client_asks(&mut self, around: Surroundings<'_>, n: usize, is_last: bool) {
        let name = [self.rng.bits().to_le_bytes(), self.rng.bits().to_le_bytes()].concat();
        let request = RequestId(std::array::from_fn(|i| name[i]));
        let is_long = self.rng.below(LONG) == 0 && !is_last;
        let most = 1 + self.rng.below(if is_long { LONG_ANSWER } else { SHORT_ANSWER }) as u32;
        let prompt = 1 + self.rng.below(64) as u32;
        if self.rng.below(GIVEN_UP) == 0 && !is_last {
            let after = Duration::from_millis(self.rng.below(6000) as u64);
            self.at(around.now + after, Item::Goes(request));
        }
        let (at, model) = (around.place(n), asked_for(&around.peers[n], request));
        let client =
            SimulatedClient { at, model, prompt, most, got: 0, accepted: false, state: State::Open, is_last, asked: 0 };
        self.clients.insert(request, client);
        self.tally.asked += 1;
        self.submit(around, request);
    }

    fn submit(&mut self, around: Surroundings<'_>, request: RequestId) {
        let Some(client) = self.clients.get_mut(&request) else { return };
        (client.state, client.accepted, client.asked) = (State::Open, false, 0);
        let (n, model) = (client.at.0, client.model);
        let answer: Vec<Token> = (0..client.got).map(|index| token(request, index)).collect();
        let begun = (client.got > 0).then_some(Begun { codec: KvCodec::Raw.into(), holder: None, answer });
        let (sampling, max_new_tokens) = (Sampling::greedy(), client.most);
        let generation = Generation { sampling, max_new_tokens, stop_tokens: vec![], class: Default::default() };
        let prompt = (0..client.prompt).map(|k| token(request, u32::MAX - k)).collect();
        self.out.push(Effect::Tell(n, ControlEvent::Asked));
        self.drive(around, n, Event::Submit { request, model, prompt, generation, begun, overrule: None, codec: None });
    }

    /// It asks again, at another gateway if its own is no more.
    pub(super) fn comes_back(&mut self, around: Surroundings<'_>, request: RequestId) {
        let there: Vec<usize> =
            (0..around.peers.len()).filter(|n| around.peers[*n].is_running() && !around.is_stopped(*n)).collect();
        let Some(client) = self.clients.get_mut(&request).filter(|c| c.state == State::Away) else { return };
        if !around.lives(client.at) || around.is_stopped(client.at.0) {
            let Some(n) = there.get(self.rng.below(there.len())) else {
                return self.at(around.now + COMES_BACK, Item::Returns(request));
            };
            client.at = around.place(*n);
        }
        self.submit(around, request);
    }

    /// It goes, if it is still there; its gateway hears of that.
    pub(super) fn goes(&mut self, around: Surroundings<'_>, request: RequestId) {
        let Some(client) = self.clients.get_mut(&request).filter(|c| c.state == State::Open) else { return };
        let at = client.at;
        if around.lives(at) && !around.is_stopped(at.0) {
            client.state = State::Over;
            self.tally.cancelled += 1;
            self.drive(around, at.0, Event::Cancel { request });
        }
    }

    /// Clients whose gateway is no more: every second one comes to another with what it has.
    pub(super) fn miss_gateways(&mut self, around: Surroundings<'_>) {
        // Nothing may be said to the others any more, and those are as unknown as they are over.
        self.clients.retain(|_, c| c.state != State::Over || c.is_last);
        let lost = |c: &SimulatedClient| c.state == State::Open && !around.lives(c.at);
        let lost: Vec<RequestId> = self.clients.iter().filter(|(_, c)| lost(c)).map(|(id, _)| *id).collect();
        for request in lost {
            let comes_back = self.rng.below(2) == 0;
            let Some(client) = self.clients.get_mut(&request) else { continue };
            client.state = if comes_back { State::Away } else { State::Over };
            match comes_back {
                true => {
                    self.tally.resumed += 1;
                    self.at(around.now + COMES_BACK, Item::Returns(request));
                }
                false => self.tally.lost += 1,
            }
        }
    }

    /// A gateway asks a group for it.
    pub(super) fn moves(&mut self, request: RequestId, open: &DecodeRequest) {
        let Some(client) = self.clients.get_mut(&request) else { return };
        client.asked += 1;
        if client.asked > 1 {
            self.tally.moved += 1;
            self.tally.went_on += u64::from(!open.answered.is_empty());
        }
    }

    /// The client of a request that a gateway has something to say of; none may be said after the end.
    fn hears(
        &mut self,
        around: Surroundings<'_>,
        n: usize,
        request: RequestId,
        what: &str,
    ) -> Option<&mut SimulatedClient> {
        let place = around.place(n);
        let hears = |c: &SimulatedClient| c.state == State::Open && c.at == place;
        if !self.clients.get(&request).is_some_and(hears) {
            let what = format!("{what} of {request} at p{n}, which has ended there");
            self.break_off(around.now, "a_request_ends_once", what);
            return None;
        }
        self.clients.get_mut(&request)
    }

    pub(super) fn is_accepted(&mut self, around: Surroundings<'_>, n: usize, request: RequestId) {
        let Some(client) = self.hears(around, n, request, "acceptance") else { return };
        if std::mem::replace(&mut client.accepted, true) {
            self.break_off(around.now, "a_request_ends_once", format!("{request} is accepted twice"));
        }
    }

    pub(super) fn is_unserved(
        &mut self,
        around: Surroundings<'_>,
        n: usize,
        request: RequestId,
        retry_after: Duration,
    ) {
        let Some(client) = self.hears(around, n, request, "refusal") else { return };
        let (accepted, asks_again) = (client.accepted, client.is_last);
        client.state = if asks_again { State::Away } else { State::Over };
        self.tally.unserved += 1;
        if accepted {
            self.break_off(around.now, "a_request_ends_once", format!("{request} is refused though it was accepted"));
        }
        if asks_again {
            self.at(around.now + retry_after, Item::Returns(request));
        }
    }

    pub(super) fn gets_token(
        &mut self,
        around: Surroundings<'_>,
        n: usize,
        request: RequestId,
        index: u32,
        got: Token,
    ) {
        let Some(client) = self.hears(around, n, request, "a token") else { return };
        let (next, right) = (client.got, token(request, index));
        client.got += 1;
        if index != next || got != right {
            let what = format!("p{n} gives token {index} of {request} where {next} is next: {} for {}", got.0, right.0);
            self.break_off(around.now, "no_token_is_lost_repeated_or_changed", what);
        }
    }

    pub(super) fn ends(&mut self, around: Surroundings<'_>, n: usize, request: RequestId, end: End) {
        if self.planted == Some(Planted::NoEnd) {
            return;
        }
        let Some(client) = self.hears(around, n, request, "an end") else { return };
        client.state = State::Over;
        let (got, most, was_accepted) = (client.got, client.most, client.accepted);
        match &end {
            End::Failed(_) => self.tally.failed += 1,
            End::Stop | End::Length => self.tally.complete += 1,
        }
        if !was_accepted {
            self.break_off(around.now, "a_request_ends_once", format!("{request} ends and was never accepted"));
        }
        if let (End::Failed(why), true, None) = (&end, self.is_calm, around.peers[n].lie) {
            let what = format!("{request} fails at p{n} though all agree: {why}");
            self.break_off(around.now, "everybody_is_served_again", what);
        }
        if !matches!(end, End::Failed(_)) && got != most {
            let what = format!("{request} is said to be complete with {got} of {most} tokens");
            self.break_off(around.now, "no_token_is_lost_repeated_or_changed", what);
        }
    }

    /// Who of the last ones has not got all it asked for.
    pub(super) fn waits_to_be_served(&self) -> Option<String> {
        let waits = |c: &&SimulatedClient| c.is_last && c.got < c.most;
        let client = self.clients.values().find(waits)?;
        Some(format!("a client of p{} has {} of {} tokens", client.at.0, client.got, client.most))
    }

    /// What has not ended that is to.
    pub(super) fn has_not_ended(&self) -> Option<String> {
        let open = self.clients.iter().find(|(_, c)| c.state != State::Over);
        if let Some((request, client)) = open {
            return Some(format!("{request} at p{} is open with {} of {}", client.at.0, client.got, client.most));
        }
        let (n, _) = self.frontends.iter().find(|(_, d)| !d.host.is_idle() || d.gateway.open_requests() > 0)?;
        Some(format!("p{n} still has work that nobody waits for"))
    }
}
