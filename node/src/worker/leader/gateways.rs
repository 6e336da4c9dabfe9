//! Prompt flow 3 and 4: what a leader tells the gateways of its sequences.

use tokio::sync::mpsc;
use tsnode_coordinator::batcher::Action;
use tsnode_protocol::{
    RequestId,
    stream::{DecodeEvent, End, PrefillEvent},
};

/// The way back to a sequence's gateway.
pub(super) enum GatewayStream {
    Decode(mpsc::Sender<DecodeEvent>),
    Prefill(mpsc::Sender<PrefillEvent>),
}

/// What a gateway is told.
pub(super) enum ToClient {
    Decode(DecodeEvent),
    Prefill(PrefillEvent),
    /// The same to either kind.
    Failed(String),
    /// It is not taken, whichever kind it is.
    Refused(String),
}

impl GatewayStream {
    pub(super) fn tell(&self, event: ToClient) {
        match (self, event) {
            (Self::Decode(events), ToClient::Decode(event)) => drop(events.try_send(event)),
            (Self::Decode(events), ToClient::Failed(why)) => {
                drop(events.try_send(DecodeEvent::End(End::Failed(why))));
            }
            (Self::Decode(events), ToClient::Refused(why)) => drop(events.try_send(DecodeEvent::Refused(why))),
            (Self::Prefill(events), ToClient::Prefill(event)) => drop(events.try_send(event)),
            // Its channel stays open for whoever waits for the gateway's end: nothing else would say that nothing comes.
            (Self::Prefill(events), ToClient::Failed(why) | ToClient::Refused(why)) => {
                drop(events.try_send(PrefillEvent::Failed(why)));
            }
            (Self::Decode(_), ToClient::Prefill(_)) | (Self::Prefill(_), ToClient::Decode(_)) => {}
        }
    }
}

/// What a gateway is told of an action, and whether it is the last it hears.
#[deny(clippy::wildcard_enum_match_arm)]
pub(super) fn to_client(action: Action) -> Option<(RequestId, ToClient, bool)> {
    Some(match action {
        Action::Ring(_) | Action::Propose { .. } | Action::NoDrafts { .. } => return None,
        Action::Granted { request, cached } => (request, ToClient::Decode(DecodeEvent::Granted { cached }), false),
        Action::Refused { request, reason } => (request, ToClient::Refused(reason), true),
        Action::KvArrived { request, after, deliveries } => {
            (request, ToClient::Decode(DecodeEvent::KvArrived { after, deliveries }), false)
        }
        Action::Computed { request, computed } => (request, ToClient::Decode(DecodeEvent::Computed(computed)), false),
        Action::PromptLogprobs { request, from, logprobs } => {
            (request, ToClient::Decode(DecodeEvent::PromptLogprobs { from, logprobs }), false)
        }
        Action::KvFailed { request, reason } => (request, ToClient::Decode(DecodeEvent::KvFailed(reason)), false),
        Action::Token { request, index, sampled } => {
            (request, ToClient::Decode(DecodeEvent::Token { index, sampled }), false)
        }
        Action::First { request, sampled, computed, cached } => {
            (request, ToClient::Prefill(PrefillEvent::First { sampled, computed, cached }), false)
        }
        Action::KvSent { request, bytes, after } => {
            (request, ToClient::Prefill(PrefillEvent::KvSent { bytes, after }), true)
        }
        Action::End { request, end: End::Failed(why) } => (request, ToClient::Failed(why), true),
        Action::End { request, end } => (request, ToClient::Decode(DecodeEvent::End(end)), true),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_for_another_group_that_is_not_taken_fails_at_once() {
        let (events, mut told) = mpsc::channel(1);
        let refused = Action::Refused { request: RequestId([1; 16]), reason: "no pages".into() };
        let Some((_, said, last)) = to_client(refused) else { panic!("its gateway is to hear of it") };
        GatewayStream::Prefill(events.clone()).tell(said);
        assert!(last, "and of nothing after it");
        assert!(matches!(told.try_recv(), Ok(PrefillEvent::Failed(why)) if why == "no pages"));
    }
}
