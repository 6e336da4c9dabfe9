//! Two models that take turns on GPUs and have one pool of pages there: each says what it says alone, and pages go from one to the
//! other.

use super::{
    attention::POOL,
    models::{prompt, source},
    several,
};
use crate::{
    cuda::Gpu,
    engine::{DevicePool, Engine, EngineError, Input, Output, Prefix, RowToSample, Slice, StageKey, Threads},
    pages::{PAGE_BYTES, PageCount, PagesError},
    source::ModelSource,
};
use std::sync::Arc;
use tsnode_protocol::{KvDtype, RequestId, Sampling, Token};

const PROMPT: usize = 14;
const ANSWER: usize = 12;
/// Each sequence of these models has one page a layer.
const MODELS: [(&str, KvDtype); 2] = [("llama-gqa", KvDtype::F16), ("qwen3-norms", KvDtype::F32)];

/// A model's engine, and its stage.
struct Model {
    engine: Engine,
    stage: StageKey,
    layers: usize,
}

fn id(n: u8) -> RequestId {
    RequestId([n; 16])
}

/// None where there is nothing that kernels run on.
fn gpus(count: usize) -> Option<Vec<Gpu>> {
    let gpus: Vec<Gpu> = several(count).into_iter().map(Gpu::on).collect();
    (gpus.len() == count).then_some(gpus)
}

fn pool(count: usize, pages: usize) -> Option<DevicePool> {
    Some(DevicePool::on_gpus(gpus(count)?, count * pages * PAGE_BYTES).unwrap())
}

impl Model {
    fn alone(source: &ModelSource, dtype: KvDtype, count: usize) -> Self {
        Self::loaded(Engine::on_gpus(gpus(count).unwrap(), count * POOL, dtype).unwrap(), source)
    }

    fn in_pool(source: &ModelSource, dtype: KvDtype, pool: &DevicePool) -> Self {
        Self::loaded(Engine::started_in(pool, Threads::together(1), dtype, Arc::new(|_| ())).unwrap(), source)
    }

    fn loaded(mut engine: Engine, source: &ModelSource) -> Self {
        assert!(engine.is_on_gpu());
        let (layers, ranks) = (source.card().shape.all_layers(), engine.turn(|engine| engine.gpus()));
        let model = source.load_stage_for_gpus(layers, Threads { count: 1, ranks }).unwrap();
        let stage = engine.turn(|engine| engine.load(model)).unwrap();
        Self { engine, stage, layers: layers.len() as usize }
    }

    fn admit(&mut self, n: u8, room: usize) -> Result<(), EngineError> {
        let stage = self.stage;
        self.engine.turn(|engine| engine.admit(stage, id(n), room as u32))
    }

    fn release(&mut self, n: u8) {
        let stage = self.stage;
        self.engine.turn(|engine| engine.release(stage, id(n)));
    }

    fn pages(&mut self) -> PageCount {
        self.engine.turn(|engine| engine.pages())
    }

    /// One more token of an answer, chosen there; the prompt is computed first, and its last row's logits are told.
    fn step(&mut self, n: u8, tokens: &mut Vec<Token>) -> Vec<f32> {
        let (stage, request) = (self.stage, id(n));
        let fresh = if tokens.len() == PROMPT { PROMPT } else { 1 };
        let start = tokens.len() - fresh;
        let batch = [Slice { request, start: start as u32, len: fresh as u32 }];
        self.engine.turn(|engine| {
            let input = Input::Tokens(&tokens[start..]);
            let logits = if fresh == 1 {
                let picks = [RowToSample { row: 0, sampling: &Sampling::greedy(), position: tokens.len() as u32 }];
                tokens.push(engine.forward_choosing(stage, &batch, input, &picks).unwrap()[0].token);
                return Vec::new();
            } else {
                engine.forward(stage, &batch, input, Output::Logits { rows: &[fresh - 1] }).unwrap().to_vec()
            };
            let likeliest = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
            tokens.push(Token(likeliest as u32));
            logits
        })
    }
}

/// By turns, a step each: steps are alike and come up again, so that they are recorded where that is done.
#[test]
fn models_on_the_same_gpus_say_what_each_says_alone() {
    let sources = MODELS.map(|(name, dtype)| (source(name), dtype));
    for count in [1, 2] {
        let Some(pool) = pool(count, 64) else { return };
        let mut together = sources.each_ref().map(|(source, dtype)| Model::in_pool(source, *dtype, &pool));
        assert_ne!(together[0].stage, together[1].stage);
        let free = together[0].pages();
        // The pages of the first model's sequence are the second one's afterwards.
        for n in 1..3 {
            let mut said = [prompt(PROMPT), prompt(PROMPT)];
            let mut logits = [Vec::new(), Vec::new()];
            let order = |at: usize| if n == 1 { at } else { 1 - at };
            for at in 0..2 {
                together[order(at)].admit(n, PROMPT + ANSWER).unwrap();
            }
            for _ in 0..ANSWER {
                for at in [order(0), order(1)] {
                    logits[at].extend(together[at].step(n, &mut said[at]));
                }
            }
            for (at, (source, dtype)) in sources.iter().enumerate() {
                let (mut alone, mut tokens) = (Model::alone(source, *dtype, count), prompt(PROMPT));
                alone.admit(n, PROMPT + ANSWER).unwrap();
                let wanted: Vec<f32> = (0..ANSWER).flat_map(|_| alone.step(n, &mut tokens)).collect();
                assert_eq!((&said[at], &logits[at]), (&tokens, &wanted), "{count} GPUs, {}", MODELS[at].0);
            }
            let used = together.iter().map(|model| model.layers).sum::<usize>() * count;
            assert_eq!(together[1].pages().free, free.free - used);
            together.iter_mut().for_each(|model| model.release(n));
            assert_eq!(together[0].pages(), free);
        }
    }
}

/// Of a beginning that two sequences share, a page is copied on the GPU before what is next, also where that is another model's.
#[test]
fn what_one_is_to_have_copied_is_copied_before_another_computes() {
    let sources = MODELS.map(|(name, dtype)| (source(name), dtype));
    let Some(pool) = pool(1, 64) else { return };
    let [mut first, mut second] = sources.each_ref().map(|(source, dtype)| Model::in_pool(source, *dtype, &pool));
    let (mut tokens, room) = (prompt(PROMPT), PROMPT + ANSWER);
    first.admit(1, room).unwrap();
    (0..ANSWER / 2).for_each(|_| drop(first.step(1, &mut tokens)));
    let (stage, shared) = (first.stage, tokens.len() as u32 - 1);
    first.engine.turn(|engine| engine.admit_after(stage, id(2), room as u32, Prefix::Running(id(1)), shared)).unwrap();
    // Its pages are the second model's, which writes there before the first computes again.
    first.release(1);
    second.admit(1, room).unwrap();
    let mut others = prompt(PROMPT);
    (0..ANSWER).for_each(|_| drop(second.step(1, &mut others)));
    (ANSWER / 2..ANSWER).for_each(|_| drop(first.step(2, &mut tokens)));
    let (mut alone, mut wanted) = (Model::alone(&sources[0].0, sources[0].1, 1), prompt(PROMPT));
    alone.admit(1, room).unwrap();
    (0..ANSWER).for_each(|_| drop(alone.step(1, &mut wanted)));
    assert_eq!(tokens, wanted);
}

#[test]
fn what_the_pool_has_not_is_refused_until_the_other_gives_it_back() {
    let sources = MODELS.map(|(name, dtype)| (source(name), dtype));
    let layers = sources[1].0.card().shape.layers as usize;
    // All that the second model's sequence takes.
    let Some(pool) = pool(1, layers) else { return };
    let [mut first, mut second] = sources.each_ref().map(|(source, dtype)| Model::in_pool(source, *dtype, &pool));
    first.admit(1, PROMPT).unwrap();
    let refused = second.admit(1, PROMPT);
    assert!(matches!(refused, Err(EngineError::Pages(PagesError::Full { .. }))), "{refused:?}");
    first.release(1);
    second.admit(1, PROMPT).unwrap();
    let mut tokens = prompt(PROMPT);
    second.step(1, &mut tokens);
    assert_eq!(tokens.len(), PROMPT + 1);
}
