//! What a leader hears from its ring, as its batcher has it.

use std::time::Duration;
use tsnode_coordinator::batcher::Event;
use tsnode_protocol::ring::RingFrame;

/// The event that a frame is; none where it is not for a leader to hear.
#[deny(clippy::wildcard_enum_match_arm)]
pub(super) fn from_ring(frame: RingFrame, busy: Option<Duration>) -> Option<Event> {
    Some(match frame {
        RingFrame::Admitted { request, refused } => Event::Admitted { request, refused },
        RingFrame::Grown { request, refused } => Event::Grown { request, refused },
        RingFrame::Sampled { step, tokens } => Event::Sampled { step, tokens, busy },
        RingFrame::PromptLogprobs { request, from, logprobs } => Event::PromptLogprobs { request, from, logprobs },
        RingFrame::KvArrived { request, position, arrived } => Event::KvArrived { request, position, arrived },
        RingFrame::KvSent { request, position, bytes, failed } => Event::KvSent { request, position, bytes, failed },
        RingFrame::Failed { request, reason } => Event::Failed { request, reason },
        // What a leader says is not for a leader to hear.
        RingFrame::Admit(_)
        | RingFrame::Grow(_)
        | RingFrame::Step(_)
        | RingFrame::Release(_)
        | RingFrame::FakeQuantise { .. }
        | RingFrame::Keep { .. }
        | RingFrame::Forget(_) => return None,
    })
}
