//! Two engines in one pool, as the models of a device have it: pages go from one to the other, and neither's tokens know of it.

use std::path::Path;
use std::sync::Arc;
use tsnode_kernels::{
    engine::{DevicePool, Engine, EngineConfig, EngineError, Input, Output, Prefix, Slice, StageKey, Threads},
    pages::{PAGE_BYTES, PageCount},
    source::ModelSource,
};
use tsnode_protocol::{KvDtype, RequestId, Token};

/// A page of the first holds 128 tokens of one of four layers, of the second 512 of one of three.
fn models() -> [ModelSource; 2] {
    let other = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/reference/llama-gqa");
    [ModelSource::embedded().unwrap(), ModelSource::open(&other).unwrap()]
}

fn id(n: u8) -> RequestId {
    RequestId([n; 16])
}

/// A model's engine, and its stage.
struct Model {
    engine: Engine,
    stage: StageKey,
    vocab: usize,
}

impl Model {
    /// In a device's pool, or with one of its own.
    fn new(source: &ModelSource, pool: Option<&DevicePool>) -> Self {
        let (threads, kv_dtype) = (Threads::together(1), KvDtype::F16);
        let mut engine = match pool {
            Some(pool) => Engine::started_in(pool, threads, kv_dtype, Arc::new(|_| ())).unwrap(),
            None => Engine::new(EngineConfig { threads, pool_bytes: 64 * PAGE_BYTES, kv_dtype }).unwrap(),
        };
        let shape = source.card().shape;
        let loaded = source.load_stage(shape.all_layers()).unwrap();
        let stage = engine.turn(|engine| engine.load(loaded)).unwrap();
        Self { engine, stage, vocab: shape.vocab as usize }
    }

    fn admit(&mut self, n: u8, room: u32) -> Result<(), EngineError> {
        let stage = self.stage;
        self.engine.turn(|engine| engine.admit(stage, id(n), room))
    }

    fn release(&mut self, n: u8) {
        let stage = self.stage;
        self.engine.turn(|engine| engine.release(stage, id(n)));
    }

    fn pages(&mut self) -> PageCount {
        self.engine.turn(|engine| engine.pages())
    }

    /// The next token behind these, of which the last ones are not computed yet.
    fn next(&mut self, n: u8, tokens: &[Token], fresh: usize) -> Token {
        let start = tokens.len() - fresh;
        let slice = [Slice { request: id(n), start: start as u32, len: fresh as u32 }];
        let (stage, vocab) = (self.stage, self.vocab);
        self.engine.turn(|engine| {
            let output = Output::Logits { rows: &[fresh - 1] };
            let logits = engine.forward(stage, &slice, Input::Tokens(&tokens[start..]), output).unwrap();
            let best = logits[..vocab].iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
            Token(best as u32)
        })
    }
}

const PROMPT: usize = 150;
const ANSWER: usize = 20;

fn prompt(n: u8) -> Vec<Token> {
    (0..PROMPT).map(|i| Token(((i * 31 + usize::from(n) * 101) % 300) as u32)).collect()
}

/// One step of an answer: its prompt first.
fn step(model: &mut Model, n: u8, tokens: &mut Vec<Token>) {
    let fresh = if tokens.len() == PROMPT { PROMPT } else { 1 };
    let token = model.next(n, tokens, fresh);
    tokens.push(token);
}

#[test]
fn models_that_compute_in_turns_on_one_pool_say_what_each_says_alone() {
    let (sources, pool) = (models(), DevicePool::new(30 * PAGE_BYTES, 1));
    let mut together = sources.each_ref().map(|source| Model::new(source, Some(&pool)));
    let free = together[0].pages();
    // A request of one name is two sequences, and the first of each model is gone before the second comes.
    for n in 1..3 {
        let mut said = [prompt(n), prompt(n)];
        for model in &mut together {
            model.admit(n, (PROMPT + ANSWER) as u32).unwrap();
        }
        for _ in 0..ANSWER {
            for (model, tokens) in together.iter_mut().zip(&mut said) {
                step(model, n, tokens);
            }
        }
        for (source, said) in sources.iter().zip(said) {
            let (mut alone, mut tokens) = (Model::new(source, None), prompt(n));
            alone.admit(n, (PROMPT + ANSWER) as u32).unwrap();
            (0..ANSWER).for_each(|_| step(&mut alone, n, &mut tokens));
            assert_eq!(said, tokens);
        }
        // Two pages of each of four layers, and one of each of three.
        let counts = together.each_ref().map(|model| model.engine.pages_used());
        assert_eq!((counts, together[1].pages().free), ([8, 3], free.free - 11));
        together.iter_mut().for_each(|model| model.release(n));
        assert_eq!((together[0].pages(), together.each_ref().map(|model| model.engine.pages_used())), (free, [0, 0]));
    }
}

#[test]
fn what_one_gives_back_or_keeps_is_the_others() {
    let (sources, pool) = (models(), DevicePool::new(12 * PAGE_BYTES, 1));
    let [mut first, mut second] = sources.each_ref().map(|source| Model::new(source, Some(&pool)));
    assert_ne!(first.stage, second.stage, "what is kept tells them apart");
    first.admit(1, 3 * 128).unwrap();
    assert_eq!((second.pages().free, first.engine.pages_used(), second.engine.pages_used()), (0, 12, 0));
    assert!(matches!(second.admit(1, 1), Err(EngineError::Pages(_))));
    // Kept, they count as free, and go as soon as they are needed.
    let stage = first.stage;
    let kept = first.engine.turn(|engine| {
        engine.set_len(stage, id(1), 3 * 128).unwrap();
        engine.keep(stage, id(1), 3 * 128).unwrap()
    });
    assert_eq!((second.pages().free, first.engine.pages_used()), (12, 0));
    let begins = Some((Prefix::Kept(kept), 128));
    let pages = |model: &mut Model, prefix| model.engine.turn(|engine| engine.admit_pages(stage, 129, prefix));
    assert_eq!((pages(&mut first, begins), pages(&mut first, None)), (Ok(8), Ok(8)), "what is kept is free");
    for n in 1..=4 {
        second.admit(n, 512).unwrap();
    }
    assert_eq!((first.pages().free, second.engine.pages_used()), (0, 12), "four times three layers");
    let gone = first.engine.turn(|engine| engine.admit_after(stage, id(2), 129, Prefix::Kept(kept), 128));
    assert_eq!(gone, Err(EngineError::NoPrefix));
    let stage = second.stage;
    let more = second.engine.turn(|engine| engine.grow_pages(stage, id(1), 513));
    assert_eq!(more, Ok(3));
    second.engine.turn(|engine| engine.unload(stage));
    first.admit(1, 3 * 128).unwrap();
    assert_eq!(second.engine.turn(|engine| engine.pages_used()), 0);
}

#[test]
fn sequences_that_give_way_do_so_for_another_model_when_it_is_their_turn() {
    let (sources, pool) = (models(), DevicePool::new(12 * PAGE_BYTES, 1));
    let [mut first, mut second] = sources.each_ref().map(|source| Model::new(source, Some(&pool)));
    let draft = sources[0].load_stage(sources[0].card().shape.all_layers()).unwrap();
    let beside = first.engine.turn(|engine| engine.load_beside(draft)).unwrap();
    first.engine.turn(|engine| engine.admit(beside, id(1), 2 * 128)).unwrap();
    assert_eq!((second.pages().free, first.engine.pages_used()), (12, 0), "they count as free");
    second.admit(1, 512).unwrap();
    assert!(matches!(second.admit(2, 2 * 512), Err(EngineError::Pages(_))), "six of nine, eight of which give way");
    let mut comes_back = || first.engine.turn(|engine| engine.admit(beside, id(2), 128));
    assert!(matches!(comes_back(), Err(EngineError::Pages(_))), "six of nine are left to who asked for them");
    second.admit(3, 1).unwrap();
    assert!(matches!(comes_back(), Err(EngineError::Pages(_))), "it has asked for more than three");
    second.release(3);
    assert_eq!(first.engine.held(beside, id(1)), None);
    second.admit(2, 2 * 512).unwrap();
    let full = first.engine.turn(|engine| engine.admit(beside, id(1), 128));
    assert!(matches!(full, Err(EngineError::Pages(_))), "three are free");
    second.release(2);
    first.engine.turn(|engine| engine.admit(beside, id(1), 128)).unwrap();
}

#[test]
fn a_turn_that_ends_by_a_panic_gives_the_pool_back() {
    let (sources, pool) = (models(), DevicePool::new(12 * PAGE_BYTES, 1));
    let [mut first, mut second] = sources.each_ref().map(|source| Model::new(source, Some(&pool)));
    first.admit(1, 128).unwrap();
    let broken = std::panic::AssertUnwindSafe(|| first.engine.turn::<()>(|_| panic!("as it is meant to")));
    assert!(std::panic::catch_unwind(broken).is_err());
    assert_eq!((second.pages().free, first.engine.pages_used()), (8, 4));
    assert!(!second.engine.is_on_gpu() && first.pages().total == 12);
}

/// One rank's pool may be full when others' are not: pages are counted as many of each as of the one that needs most.
#[test]
fn ranks_with_unlike_parts_of_a_model_are_counted_alike() {
    let (source, pool) = (ModelSource::embedded().unwrap(), DevicePool::new(30 * PAGE_BYTES, 3));
    let threads = Threads { count: 3, ranks: 3 };
    let mut engine = Engine::started_in(&pool, threads, KvDtype::F16, Arc::new(|_| ())).unwrap();
    let loaded = source.load_stage_by(threads, source.card().shape.all_layers(), &mut |_| ()).unwrap().0;
    let stage = engine.turn(|engine| engine.load(loaded)).unwrap();
    // Of four heads two ranks have one each, and the third has two: 512 tokens of a layer in a page, and 256.
    let pages = engine.turn(|engine| engine.admit_pages(stage, 512, None));
    engine.turn(|engine| engine.admit(stage, id(1), 512)).unwrap();
    let more = engine.turn(|engine| engine.grow_pages(stage, id(1), 600));
    let free = engine.turn(|engine| engine.pages().free);
    assert_eq!((pages, engine.pages_used(), more, free), (Ok(24), 24, Ok(12), 30 - 16));
}
