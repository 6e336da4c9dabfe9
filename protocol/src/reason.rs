//! Why something does not happen, as a peer says it: people read it, logs and traces keep it, and what a message has room for is more
//! than any of them should.

use crate::limits;

/// Leaves no more of a reason than is kept.
pub(crate) fn shorten(reason: &mut String) {
    if reason.len() > limits::REASON_BYTES {
        reason.truncate(reason.floor_char_boundary(limits::REASON_BYTES));
        reason.push('…');
        reason.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        EncodeRefusal, RequestId,
        kv::KvAnswer,
        ring::{Grow, Refusal, RingFrame},
        stream::{DecodeEvent, End, PrefillEvent},
    };

    #[test]
    fn a_reason_is_cut_between_letters_and_a_short_one_is_as_it_was() {
        let shortened = |text: &str| {
            let mut reason = text.to_owned();
            shorten(&mut reason);
            reason
        };
        assert_eq!(shortened("no pages"), "no pages");
        let whole = "a".repeat(limits::REASON_BYTES);
        assert_eq!(shortened(&whole), whole);
        // A letter of three bytes does not end there.
        let long = shortened(&"…".repeat(limits::REASON_BYTES));
        assert_eq!(long, "…".repeat(limits::REASON_BYTES / 3 + 1));
    }

    #[test]
    fn whatever_says_why_says_it_shortly() {
        let (long, request) = ("a".repeat(1 << 20), RequestId([1; 16]));
        let said = |message: &dyn std::fmt::Debug| format!("{message:?}").len() < 2 * limits::REASON_BYTES;
        let refused = Some(Refusal::Never(long.clone()));
        for mut frame in [
            RingFrame::Grow(Grow { request, room: 1, refused: refused.clone() }),
            RingFrame::Admitted { request, refused: Some(Refusal::Full(long.clone())) },
            RingFrame::Grown { request, refused },
            RingFrame::KvArrived { request, position: 0, arrived: Err(long.clone()) },
            RingFrame::KvSent { request, position: 0, bytes: 0, failed: Some(long.clone()) },
            RingFrame::Failed { request, reason: long.clone() },
        ] {
            frame.shorten_reason();
            assert!(said(&frame));
        }
        for mut event in [
            DecodeEvent::Refused(long.clone()),
            DecodeEvent::KvFailed(long.clone()),
            DecodeEvent::End(End::Failed(long.clone())),
        ] {
            event.shorten_reason();
            assert!(said(&event));
        }
        let mut failed = PrefillEvent::Failed(long.clone());
        failed.shorten_reason();
        let mut answer = KvAnswer::Refused(long.clone());
        answer.shorten_reason();
        assert!(said(&failed) && said(&answer));
        for mut refusal in [EncodeRefusal::Failed(long.clone()), EncodeRefusal::Input { index: 1, why: long }] {
            refusal.shorten_reason();
            assert!(said(&refusal));
        }
    }
}
