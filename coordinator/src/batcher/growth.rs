//! Room for answers as they grow, and whose pages go where there is none.
//!
//! An answer's length is not known before it ends, so pages are reserved for a part at a time, ahead of need. Where a
//! stage has none left the sequence that came last gives its own back and waits: its tokens are computed anew when there
//! is room, and since arithmetic does not depend on batches it goes on with the tokens it would have had. What it had is
//! kept while nobody needs it. One that had to give way twice reserves all it may need (`sequence.rs`). Where other models share the
//! pages nobody gives way before room is used up: until then others may give back what is this model's. Meanwhile one of those that
//! have room left asks for all, with each of its tokens: each time that a stage is asked may cost a step of another model.

use super::{Action, Batcher, SequenceRole, State};
use crate::Time;
use tsnode_protocol::{
    RequestId,
    ring::{Grow, Refusal, RingFrame},
    stream::End,
};

/// Room is asked for while this part of a reservation is left.
const AHEAD: u32 = 4;

impl Batcher {
    /// Sees to it that a sequence has room for its next token's KV, and that it will have for those after.
    pub(super) fn make_room(&mut self, request: RequestId, out: &mut Vec<Action>) {
        let growth = self.config.growth;
        let Some(sequence) = self.sequences.get_mut(&request) else { return };
        let (all, most, wanted) = (sequence.len(), sequence.max_tokens, sequence.wanted_room(growth));
        let Some((pages, growing)) = sequence.state.growth() else { return };
        let has = pages.room;
        let may_ask = all > has || self.lacks_room.is_none_or(|first| first == request);
        if may_ask && has < most && has <= all + growth / AHEAD && growing.is_none() {
            *growing = Some(wanted);
            out.push(Action::Ring(RingFrame::Grow(Grow { request, room: wanted, refused: None })));
        }
        if all > has {
            sequence.state.pause();
            self.steps.leave(request);
        }
    }

    pub(super) fn grown(&mut self, request: RequestId, out: &mut Vec<Action>) {
        let Some(room) = self.asked(request) else { return };
        self.lacks_no_room(request);
        let Some(sequence) = self.sequences.get_mut(&request) else { return };
        if let Some((pages, _)) = sequence.state.growth() {
            pages.room = room;
        }
        if sequence.state.decode() {
            self.steps.answer(request, sequence.len(), sequence.left());
        }
        self.make_room(request, out);
    }

    pub(super) fn not_grown(&mut self, now: Time, request: RequestId, why: Refusal, out: &mut Vec<Action>) {
        if self.asked(request).is_none() {
            return;
        }
        if let Refusal::Never(reason) = why {
            self.drop_sequence(request, out);
            return out.push(Action::End { request, end: End::Failed(reason) });
        }
        let has_room = self.sequences.get(&request).is_some_and(|s| matches!(s.state, State::Decoding { .. }));
        if self.config.shares_pages && has_room {
            // It is asked for again with the next token.
            self.lacks_room.get_or_insert(request);
            return;
        }
        let those_that_may = self.sequences.iter().filter(|(_, s)| s.may_be_pushed_out());
        let youngest = those_that_may.max_by_key(|(request, s)| s.place(**request));
        let Some(youngest) = youngest.map(|(request, _)| *request) else { return };
        self.push_out(now, youngest, out);
        self.queue.is_full();
        if youngest != request {
            self.make_room(request, out);
        }
    }

    /// It has room, or is gone: if it asked for all that have some left, each asks for itself again.
    pub(super) fn lacks_no_room(&mut self, request: RequestId) {
        if self.lacks_room == Some(request) {
            self.lacks_room = None;
        }
    }

    /// The room that was asked for, now that there is an answer, unless the answer no longer counts.
    fn asked(&mut self, request: RequestId) -> Option<u32> {
        let sequence = self.sequences.get_mut(&request)?;
        if sequence.overtaken.growth > 0 {
            sequence.overtaken.growth -= 1;
            return None;
        }
        sequence.state.growth()?.1.take()
    }

    /// Takes a sequence's pages; it waits before those that came after it.
    fn push_out(&mut self, now: Time, request: RequestId, out: &mut Vec<Action>) {
        let Some(mut sequence) = self.sequences.remove(&request) else { return };
        self.lacks_no_room(request);
        self.steps.leave(request);
        self.let_go(request, &sequence, out);
        sequence.overtaken.growth += u32::from(sequence.state.growth().is_some_and(|(_, growing)| growing.is_some()));
        sequence.pushed_out += 1;
        sequence.drafts.told = 0;
        (sequence.role, sequence.state) = (SequenceRole::Local, State::waiting(now));
        self.queue.push(sequence.place(request));
        self.sequences.insert(request, sequence);
    }
}
