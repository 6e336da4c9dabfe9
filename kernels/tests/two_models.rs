//! Two models on one pool: pages go from one to the other as they are needed, and neither's tokens know of it.
#![expect(clippy::unwrap_used, reason = "a scenario that cannot be run fails")]

use std::path::Path;
use tsnode_kernels::{
    engine::{Engine, EngineConfig, EngineError, Input, Output, Prefix, PrefixKey, Slice, StageKey, Threads},
    pages::PAGE_BYTES,
    source::ModelSource,
};
use tsnode_protocol::{KvDtype, RequestId, Token};

/// Tokens a sequence has when it is done.
const LONG: usize = 300;
/// Tokens it may grow by at a time.
const GROWTH: usize = 40;
/// Of each model.
const SEQUENCES: usize = 5;

/// A page of the first holds 128 tokens of one of four layers, of the second 512 of one of three.
fn models() -> [ModelSource; 2] {
    let other = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/reference/llama-gqa");
    [ModelSource::embedded().unwrap(), ModelSource::open(&other).unwrap()]
}

struct Bench {
    engine: Engine,
    stages: [StageKey; 2],
    vocab: [usize; 2],
}

impl Bench {
    fn new(sources: &[ModelSource; 2], pages: usize, ranks: usize) -> Self {
        let threads = Threads { count: ranks, ranks };
        let config = EngineConfig { threads, pool_bytes: pages * PAGE_BYTES, kv_dtype: KvDtype::F16 };
        let mut engine = Engine::new(config).unwrap();
        let load = |source: &ModelSource| {
            let all = source.card().shape.all_layers();
            engine.load(source.load_stage_by(threads, all, &mut |_| ()).unwrap().0).unwrap()
        };
        let stages = sources.each_ref().map(load);
        Self { engine, stages, vocab: sources.each_ref().map(|source| source.card().shape.vocab as usize) }
    }
}

/// A sequence of one model.
#[derive(Clone)]
struct ModelSequence {
    id: RequestId,
    model: usize,
    /// Prompt and answer so far.
    tokens: Vec<Token>,
    present: usize,
    room: usize,
}

impl ModelSequence {
    fn new(model: usize, n: usize) -> Self {
        let tokens = (0..30 + 17 * n).map(|i| Token(((i * 31 + n * 101) % 300) as u32)).collect();
        Self { id: RequestId([(model * SEQUENCES + n) as u8; 16]), model, tokens, present: 0, room: 0 }
    }

    /// The most that is computed of it at once.
    fn slice(&self) -> Slice {
        let len = (self.tokens.len() - self.present).min(25);
        Slice { request: self.id, start: self.present as u32, len: len as u32 }
    }
}

fn best(logits: &[f32]) -> Token {
    Token(logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0 as u32)
}

/// Computes one step of these sequences of one model; each whose tokens are all there then gets its next.
fn step(bench: &mut Bench, model: usize, batch: &mut [&mut ModelSequence]) {
    let slices: Vec<Slice> = batch.iter().map(|s| s.slice()).collect();
    let whole = batch.iter().zip(&slices);
    let tokens: Vec<Token> = whole.flat_map(|(s, cut)| s.tokens[s.present..][..cut.len as usize].to_vec()).collect();
    let rows: Vec<usize> = slices
        .iter()
        .scan(0, |rows, slice| {
            *rows += slice.len as usize;
            Some(*rows - 1)
        })
        .collect();
    let out = Output::Logits { rows: &rows };
    let logits = bench.engine.forward(bench.stages[model], &slices, Input::Tokens(&tokens), out).unwrap();
    for ((sequence, slice), logits) in batch.iter_mut().zip(&slices).zip(logits.chunks_exact(bench.vocab[model])) {
        sequence.present += slice.len as usize;
        if sequence.present == sequence.tokens.len() && sequence.tokens.len() < LONG {
            sequence.tokens.push(best(logits));
        }
    }
}

fn alone(sources: &[ModelSource; 2], mut sequence: ModelSequence) -> Vec<Token> {
    let mut bench = Bench::new(sources, 64, 1);
    bench.engine.admit(bench.stages[sequence.model], sequence.id, LONG as u32).unwrap();
    while sequence.present < LONG {
        step(&mut bench, sequence.model, &mut [&mut sequence]);
    }
    sequence.tokens
}

/// What a group's leader does where pages are short: the youngest gives its own back and is computed anew later.
struct Scenario {
    bench: Bench,
    waiting: Vec<ModelSequence>,
    /// In the order they came.
    running: Vec<ModelSequence>,
    done: Vec<ModelSequence>,
    kept: Vec<(usize, PrefixKey)>,
    pushed_out: usize,
    /// Steps in which sequences of both models ran.
    both: usize,
}

impl Scenario {
    fn tell(&mut self) {
        while self.waiting.len() + self.running.len() > 0 {
            self.admit();
            for model in 0..2 {
                self.make_room(model);
                let of_model = self.running.iter_mut().filter(|s| s.model == model && s.present < LONG);
                let mut batch: Vec<&mut ModelSequence> = of_model.collect();
                if !batch.is_empty() {
                    step(&mut self.bench, model, &mut batch);
                }
            }
            self.both += usize::from((0..2).all(|model| self.running.iter().any(|s| s.model == model)));
            self.end();
        }
    }

    fn admit(&mut self) {
        while let Some(sequence) = self.waiting.last_mut() {
            let room = (sequence.tokens.len() + GROWTH).min(LONG);
            match self.bench.engine.admit(self.bench.stages[sequence.model], sequence.id, room as u32) {
                Ok(()) => sequence.room = room,
                Err(EngineError::Pages(_)) if !self.running.is_empty() => return,
                Err(error) => panic!("{error}"),
            }
            self.running.extend(self.waiting.pop());
        }
    }

    /// Room for the next step of every sequence of a model, at the cost of the youngest of any.
    fn make_room(&mut self, model: usize) {
        let mut i = 0;
        while i < self.running.len() {
            let ModelSequence { id, model: of, room, ref tokens, .. } = self.running[i];
            if of == model && tokens.len() > room {
                let more = (room + GROWTH).min(LONG);
                match self.bench.engine.grow(self.bench.stages[of], id, more as u32) {
                    Ok(()) => self.running[i].room = more,
                    Err(_) => {
                        self.push_out();
                        continue;
                    }
                }
            }
            i += 1;
        }
    }

    fn push_out(&mut self) {
        let mut youngest = self.running.pop().unwrap();
        self.bench.engine.release(self.bench.stages[youngest.model], youngest.id);
        youngest.present = 0;
        self.pushed_out += 1;
        self.waiting.push(youngest);
    }

    /// What is done is kept until another, of either model, needs its pages.
    fn end(&mut self) {
        let (done, running) = std::mem::take(&mut self.running).into_iter().partition(|s| s.present == LONG);
        self.running = running;
        for sequence in &done {
            let stage = self.bench.stages[sequence.model];
            self.kept.push((sequence.model, self.bench.engine.keep(stage, sequence.id, LONG as u32).unwrap()));
        }
        self.done.extend(done);
    }
}

/// Pages of both come to as many as the pool has many times over.
fn check(ranks: usize) {
    let sources = models();
    let all = || (0..2 * SEQUENCES).map(|i| ModelSequence::new(i % 2, i / 2));
    let bench = Bench::new(&sources, 30, ranks);
    let free = bench.engine.pages();
    let (running, done, kept) = (Vec::new(), Vec::new(), Vec::new());
    let mut scenario = Scenario { bench, waiting: all().collect(), running, done, kept, pushed_out: 0, both: 0 };
    scenario.tell();
    assert!(
        scenario.pushed_out > 0 && scenario.both > LONG,
        "{} and {}: no pressure",
        scenario.pushed_out,
        scenario.both
    );
    assert_eq!(scenario.done.len(), 2 * SEQUENCES);
    for sequence in &scenario.done {
        let expected = alone(&sources, ModelSequence { present: 0, ..all().find(|s| s.id == sequence.id).unwrap() });
        assert_eq!(sequence.tokens, expected, "model {}, {ranks} ranks", sequence.model);
    }
    assert_eq!(scenario.bench.engine.pages(), free, "what is kept counts as free");
    // What was kept first had to go for others; what was kept last is there.
    let Bench { engine, stages, .. } = &mut scenario.bench;
    let mut is_there = |(model, key): &(usize, PrefixKey)| {
        let (stage, probe) = (stages[*model], RequestId([99; 16]));
        let admitted = engine.admit_after(stage, probe, LONG as u32, Prefix::Kept(*key), LONG as u32);
        engine.release(stage, probe);
        admitted.is_ok()
    };
    assert!(is_there(&scenario.kept[scenario.kept.len() - 1]) && !is_there(&scenario.kept[0]));
    stages.iter().for_each(|stage| engine.unload(*stage));
    assert_eq!(engine.pages(), free);
}

#[test]
fn two_models_under_pressure_say_what_each_says_alone_and_all_pages_come_back() {
    check(1);
}

#[test]
fn so_do_two_models_over_two_ranks() {
    check(2);
}

#[test]
fn a_page_of_one_model_is_the_next_page_of_the_other() {
    let sources = models();
    let mut bench = Bench::new(&sources, 12, 1);
    let [first, second] = bench.stages;
    let (a, b) = (RequestId([1; 16]), RequestId([2; 16]));
    bench.engine.admit(first, a, 3 * 128).unwrap();
    assert_eq!(bench.engine.pages().free, 0);
    assert!(matches!(bench.engine.admit(second, b, 1), Err(EngineError::Pages(_))));
    bench.engine.release(first, a);
    for n in 0..4 {
        bench.engine.admit(second, RequestId([n; 16]), 512).unwrap();
    }
    assert_eq!(bench.engine.pages().free, 0, "four times three layers");
    assert!(matches!(bench.engine.admit(first, RequestId([9; 16]), 1), Err(EngineError::Pages(_))));
    bench.engine.unload(second);
    bench.engine.admit(first, a, 3 * 128).unwrap();
}
