//! A card that fails is an error of the engine, whichever call it fails at; what was there before can be given back.

use super::{attention::POOL, here, machines};
use crate::{
    cuda::{
        Card, CardInfo,
        machine::{Arg, CardError, Launch, Machine, Product, Queue, Recorded},
    },
    engine::{Engine, EngineError, Input, Output, Slice, StageKey},
    source::ModelSource,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tsnode_protocol::{KvDtype, LayerRange, RequestId, Token};

/// A machine that does so many things more, and then nothing.
#[derive(Debug)]
struct Failing {
    inner: Arc<dyn Machine>,
    left: AtomicUsize,
}

impl Failing {
    fn ask(&self) -> Result<(), CardError> {
        let more = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        let lost = || CardError::Failed { call: "anything", answer: "the card is lost".into() };
        more.map(|_| ()).map_err(|_| lost())
    }
}

impl Machine for Failing {
    fn processors(&self) -> usize {
        self.inner.processors()
    }
    fn about(&self) -> CardInfo {
        self.inner.about()
    }
    fn free_bytes(&self) -> Result<usize, CardError> {
        self.ask().and_then(|()| self.inner.free_bytes())
    }
    fn take(&self, bytes: usize) -> Result<u64, CardError> {
        self.ask().and_then(|()| self.inner.take(bytes))
    }
    fn give(&self, at: u64, bytes: usize) {
        self.inner.give(at, bytes);
    }
    fn upload(&self, queue: Queue, to: u64, bytes: &[u8]) -> Result<(), CardError> {
        self.ask().and_then(|()| self.inner.upload(queue, to, bytes))
    }
    fn download(&self, queue: Queue, from: u64, out: &mut [u8]) -> Result<(), CardError> {
        self.ask().and_then(|()| self.inner.download(queue, from, out))
    }
    fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<(), CardError> {
        self.ask().and_then(|()| self.inner.copy(from, to, bytes))
    }
    fn launch(&self, queue: Queue, launch: Launch, args: &[Arg]) -> Result<(), CardError> {
        self.ask().and_then(|()| self.inner.launch(queue, launch, args))
    }
    fn product(&self, product: Product, x: u64, w: u64, out: u64) -> Result<bool, CardError> {
        self.ask().and_then(|()| self.inner.product(product, x, w, out))
    }
    fn mark(&self, number: usize) -> Result<(), CardError> {
        self.ask().and_then(|()| self.inner.mark(number))
    }
    fn wait_for(&self, number: usize) -> Result<(), CardError> {
        self.ask().and_then(|()| self.inner.wait_for(number))
    }
    fn finish(&self) -> Result<(), CardError> {
        self.ask().and_then(|()| self.inner.finish())
    }
    fn record(&self) -> Result<bool, CardError> {
        self.ask().and_then(|()| self.inner.record())
    }
    fn recorded(&self) -> Result<Recorded, CardError> {
        self.inner.recorded()
    }
    fn replay(&self, recorded: Recorded) -> Result<(), CardError> {
        self.ask().and_then(|()| self.inner.replay(recorded))
    }
    fn forget(&self, recorded: Recorded) {
        self.inner.forget(recorded);
    }
    fn forget_recorded(&self) {
        self.inner.forget_recorded();
    }
}

const REQUEST: RequestId = RequestId([1; 16]);

/// A stage loaded, a prompt, and one token three times over: seen, recorded, run again.
fn story(machine: Arc<Failing>, source: &ModelSource) -> Result<(), EngineError> {
    let mut engine = Engine::on_card(Card::on(machine), POOL, KvDtype::F16)?;
    let range = LayerRange { start: 0, end: source.card().shape.layers };
    let stage = engine.load(source.load_stage_for_card(range, 1).unwrap())?;
    let free = engine.pages();
    engine.admit(stage, REQUEST, 20)?;
    let computed = steps(&mut engine, stage);
    engine.release(stage, REQUEST);
    engine.unload(stage);
    assert_eq!(engine.pages(), free);
    computed
}

fn steps(engine: &mut Engine, stage: StageKey) -> Result<(), EngineError> {
    for (start, len) in [(0, 9), (9, 1), (9, 1), (9, 1)] {
        engine.set_len(stage, REQUEST, start)?;
        let batch = [Slice { request: REQUEST, start, len }];
        let tokens: Vec<Token> = (0..len).map(Token).collect();
        engine.forward(stage, &batch, Input::Tokens(&tokens), Output::Logits { rows: &[len as usize - 1] })?;
    }
    Ok(())
}

#[test]
fn a_card_that_is_lost_is_an_error_whenever_it_is() {
    for inner in machines() {
        let source = ModelSource::open(&here().join("models/reference/llama-gqa")).unwrap();
        let failing = |left| Arc::new(Failing { inner: inner.clone(), left: AtomicUsize::new(left) });
        let all = failing(usize::MAX);
        story(all.clone(), &source).unwrap();
        let calls = usize::MAX - all.left.load(Ordering::Relaxed);
        assert!(calls > 200, "{calls}");
        // Every call of a card that is about to be lost, but for most of those that are alike.
        for left in (0..calls - 3).step_by(7).chain(calls - 40..calls - 3) {
            let lost = story(failing(left), &source).unwrap_err();
            assert!(matches!(lost, EngineError::Card(CardError::Failed { .. })), "{left}: {lost}");
        }
    }
}
