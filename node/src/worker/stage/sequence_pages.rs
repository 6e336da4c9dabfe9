//! Prompt flow 3, 4 and 8: pages of a stage's sequences, from when they are reserved until they are given back or kept.

use super::{StageError, Worker};
use crate::worker::page_share::NoPages;
use tsnode_kernels::{
    engine::{Engine, EngineError, Prefix},
    pages::PagesError,
};
use tsnode_protocol::{
    KvCodec, RequestId,
    ring::{Admit, Grow, PrefixId, Refusal, RingFrame, SharedPrefix, SharedWith},
};

impl Worker {
    /// Pages for a sequence, and those it shares; says why where there are none.
    pub(super) async fn reserve(&self, admit: &Admit) -> Result<Option<Refusal>, StageError> {
        let (key, request, room, most) = (self.context.key, admit.request, admit.room, admit.most);
        let (share, kept, shared) = (self.context.compute.share(), self.kept.clone(), admit.shared);
        let reserve = move |engine: &mut Engine| -> Result<(), NoPages> {
            let prefix = |with| match with {
                SharedWith::Running(other) => Ok(Prefix::Running(other)),
                SharedWith::Kept(prefix) => kept.find(prefix).map(Prefix::Kept).ok_or(EngineError::NoPrefix),
            };
            let shared = match shared {
                Some(SharedPrefix { with, tokens }) => Some((prefix(with)?, tokens)),
                None => None,
            };
            engine.could_hold(key, most)?;
            let admit = |engine: &mut Engine| match shared {
                Some((prefix, tokens)) => engine.admit_after(key, request, room, prefix, tokens),
                None => engine.admit(key, request, room),
            };
            let Some(share) = share else { return admit(engine).map_err(NoPages::from) };
            share.could_hold(engine.admit_pages(key, most, None)?)?;
            let wanted = engine.admit_pages(key, room, shared)?;
            share.take(engine, wanted, admit)
        };
        Ok(self.context.compute.call(reserve).await?.err().map(refusal))
    }

    pub(super) async fn grow(&mut self, mut grow: Grow) -> Result<(), StageError> {
        let Grow { request, room, .. } = grow;
        if grow.refused.is_none() {
            let (key, share) = (self.context.key, self.context.compute.share());
            let more = move |engine: &mut Engine| -> Result<(), NoPages> {
                let Some(share) = share else { return engine.grow(key, request, room).map_err(NoPages::from) };
                let wanted = engine.grow_pages(key, request, room)?;
                share.take(engine, wanted, |engine| engine.grow(key, request, room))
            };
            grow.refused = self.context.compute.call(more).await?.err().map(refusal);
        }
        if self.context.is_last() {
            return self.pass(RingFrame::Grown { request, refused: grow.refused }).await;
        }
        self.pass(RingFrame::Grow(grow)).await
    }

    /// Leaves a prompt's KV as if it had come from another group.
    pub(super) async fn fake_quantise(
        &mut self,
        request: RequestId,
        tokens: u32,
        codec: KvCodec,
    ) -> Result<(), StageError> {
        let key = self.context.key;
        let done =
            self.context.compute.call(move |engine| engine.fake_quantise(key, request, 0..tokens, codec)).await?;
        done.map_err(|e| StageError::Protocol(e.to_string()))
    }

    /// Ends a sequence, but for its first tokens' KV.
    pub(super) async fn keep(&mut self, request: RequestId, prefix: PrefixId, tokens: u32) -> Result<(), StageError> {
        self.kv_receiver.forget(request, self.context.key);
        if let Some(sequence) = self.sequences.remove(&request) {
            self.note(&sequence);
            self.context.compute.leaves(request);
            let (kept, of) = (self.kept.clone(), (self.context.key, request));
            self.context.compute.post(move |engine| kept.keep(engine, of, (prefix, tokens))).await?;
        }
        Ok(())
    }

    pub(super) async fn forget(&self, prefix: PrefixId) -> Result<(), StageError> {
        let kept = self.kept.clone();
        Ok(self.context.compute.post(move |engine| kept.forget(engine, prefix)).await?)
    }

    pub(super) async fn release(&mut self, request: RequestId) -> Result<(), StageError> {
        self.kv_receiver.forget(request, self.context.key);
        if let Some(sequence) = self.sequences.remove(&request) {
            tracing::trace!(%request, tokens = sequence.prompt_tokens, "pages given back");
            self.note(&sequence);
            self.context.compute.leaves(request);
            // Dropping the sequence ends its export, which may still wait for the far side.
            drop(sequence);
            let key = self.context.key;
            // Its pages are there again before whatever is asked for next.
            self.context.compute.post(move |engine| engine.release(key, request)).await?;
        }
        Ok(())
    }
}

/// Why there are no pages, as leaders are told.
fn refusal(error: NoPages) -> Refusal {
    match error {
        NoPages::Engine(EngineError::NoPrefix) => Refusal::PrefixGone,
        NoPages::Engine(EngineError::Pages(PagesError::Full { wanted, total, .. })) if wanted <= total => {
            Refusal::Full(error.to_string())
        }
        NoPages::SetAside { .. } => Refusal::Full(error.to_string()),
        NoPages::Engine(_) | NoPages::TooLong { .. } => Refusal::Never(error.to_string()),
    }
}
