//! Prompt flow 3 and 8: requests that gateways bring to a leader, and what they say of them while they run.

use super::{GatewayStream, Leader, LeaderEvents};
use crate::worker::leader_client::{FOREIGN, LeaderRequest, order_is_within};
use tsnode_coordinator::batcher::{Action, Event, NewSequence, SequenceKind};
use tsnode_protocol::{
    KvCodec, PeerId, PromptCodec, RequestId, Token,
    ring::KvExport,
    stream::{DecodeOrder, DecodeRequest, End, Generation, PLAN_CHANGED},
};

/// What a gateway says of a running sequence.
pub(super) enum SequenceCommand {
    Order(RequestTurn, DecodeOrder),
    Gone(RequestTurn),
}

/// A request as it came: the same one may come again after its gateway has hung up, and before that is heard of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct RequestTurn {
    request: RequestId,
    nth: u64,
}

/// What a gateway knows of a sequence beside its prompt.
struct AnsweredSoFar {
    answered: Vec<Token>,
    codec: PromptCodec,
}

/// A request that was taken.
pub(super) struct ServedRequest {
    turn: RequestTurn,
    /// Who asked, and alone may ask for it again.
    gateway: PeerId,
    pub client: GatewayStream,
}

impl Leader {
    pub(super) fn take(&mut self, request: LeaderRequest, retiring: bool) -> LeaderEvents {
        let id = request.request();
        if retiring {
            request.refuse(PLAN_CHANGED);
            return LeaderEvents::default();
        }
        if !request.is_within(self.context.shape.vocab) {
            request.refuse(FOREIGN);
            return LeaderEvents::default();
        }
        // Its gateway's stream being open is what shows that somebody still wants it. A gateway that dies or stops loses its
        // streams within seconds; until then its client, who has come back at another one, is served elsewhere, or asks again.
        if self.clients.get(&id).is_some_and(|before| before.gateway != request.gateway()) {
            tracing::debug!(request = %id, gateway = %request.gateway(), "runs here for another gateway: refused");
            request.refuse("another gateway has this request here");
            return LeaderEvents::default();
        }
        let gateway = request.gateway();
        // One that comes again has been given up by its gateway, which is not heard of yet.
        let before = self.clients.remove(&id).map(|_| Event::Cancel { request: id });
        self.turns += 1;
        let turn = RequestTurn { request: id, nth: self.turns };
        let speak = self.speak.clone();
        let (sequence, client) = match request {
            LeaderRequest::Decode { request, mut orders, events, .. } => {
                crate::tasks::spawn("gateway's orders", async move {
                    while let Some(order) = orders.recv().await {
                        if speak.send(SequenceCommand::Order(turn, order)).await.is_err() {
                            return;
                        }
                    }
                    let _ = speak.send(SequenceCommand::Gone(turn)).await;
                });
                let kind = if request.await_kv { SequenceKind::AwaitKv } else { SequenceKind::Local };
                let DecodeRequest { prompt, answered, generation, codec, .. } = request;
                let known = AnsweredSoFar { answered, codec };
                (self.sequence(id, prompt, known, generation, kind), GatewayStream::Decode(events))
            }
            LeaderRequest::Prefill { request, events, .. } => {
                let watched = events.clone();
                crate::tasks::spawn("gateway's end", async move {
                    watched.closed().await;
                    let _ = speak.send(SequenceCommand::Gone(turn)).await;
                });
                let export = KvExport { targets: request.targets, codec: request.codec, pace: request.pace };
                let kind = SequenceKind::Export(export);
                // What is packed are copies: here the prompt's KV stays as it is.
                let known = AnsweredSoFar { answered: Vec::new(), codec: KvCodec::Raw.into() };
                (self.sequence(id, request.prompt, known, request.generation, kind), GatewayStream::Prefill(events))
            }
        };
        self.clients.insert(id, ServedRequest { turn, gateway, client });
        [before, Some(Event::Submit(sequence))]
    }

    fn sequence(
        &self,
        request: RequestId,
        prompt: Vec<Token>,
        known: AnsweredSoFar,
        generation: Generation,
        kind: SequenceKind,
    ) -> NewSequence {
        let room = match kind {
            // Only the prompt's KV lives on the prefill side.
            SequenceKind::Export(_) => prompt.len() as u32,
            _ => (prompt.len() as u32).saturating_add(generation.max_new_tokens),
        };
        let AnsweredSoFar { answered, codec } = known;
        let max_tokens = room.min(self.context.shape.context);
        NewSequence { request, max_tokens, prompt, answered, codec, generation, kind }
    }

    pub(super) fn hear(&mut self, word: SequenceCommand) -> Option<Event> {
        let (SequenceCommand::Order(turn, _) | SequenceCommand::Gone(turn)) = word;
        let request = turn.request;
        self.clients.get(&request).filter(|served| served.turn == turn)?;
        Some(match word {
            // Gateways pass on what a prefill group's leader has told them.
            SequenceCommand::Order(_, order) if !order_is_within(&order, self.context.shape.vocab) => {
                self.answer(Action::End { request, end: End::Failed(FOREIGN.into()) });
                Event::Cancel { request }
            }
            SequenceCommand::Order(_, DecodeOrder::Begin(first)) => Event::Begin { request, first },
            SequenceCommand::Order(_, DecodeOrder::PrefillHere { first }) => Event::PrefillHere { request, first },
            SequenceCommand::Gone(_) => {
                self.clients.remove(&request);
                Event::Cancel { request }
            }
        })
    }
}
