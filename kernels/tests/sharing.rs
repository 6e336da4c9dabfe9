//! Sequences that begin alike share pages: the bits are those of sequences that share nothing, and no page is lost.
#![expect(clippy::unwrap_used, reason = "a scenario that cannot be run fails")]

use proptest::prelude::*;
use tsnode_kernels::{
    engine::{Engine, EngineConfig, EngineError, Input, Output, Prefix, PrefixKey, Slice, StageKey, Threads},
    pages::PAGE_BYTES,
    source::ModelSource,
};
use tsnode_protocol::{KvDtype, LayerRange, RequestId, Token};

struct Bench {
    engine: Engine,
    stage: StageKey,
    layers: usize,
    /// Tokens in a page.
    page: u32,
}

impl Bench {
    /// With so many pages for each layer.
    fn new(pages: usize) -> Self {
        let source = ModelSource::embedded().unwrap();
        let shape = source.card().shape;
        let layers = shape.layers as usize;
        let config = EngineConfig {
            threads: Threads::together(1),
            pool_bytes: pages * layers * PAGE_BYTES,
            kv_dtype: KvDtype::F16,
        };
        let mut engine = Engine::new(config).unwrap();
        let all = LayerRange { start: 0, end: shape.layers };
        let stage = engine.load(source.load_stage(all).unwrap()).unwrap();
        let page = PAGE_BYTES / (shape.kv_elements_per_token_layer() as usize * 2);
        Self { engine, stage, layers, page: page as u32 }
    }

    fn run(&mut self, n: u8, start: u32, tokens: &[Token]) -> Vec<f32> {
        let slice = [Slice { request: id(n), start, len: tokens.len() as u32 }];
        let rows = [tokens.len() - 1];
        self.engine.forward(self.stage, &slice, Input::Tokens(tokens), Output::Logits { rows: &rows }).unwrap().to_vec()
    }

    fn admit(&mut self, n: u8, room: u32) -> Result<(), EngineError> {
        self.engine.admit(self.stage, id(n), room)
    }

    fn admit_after(&mut self, n: u8, room: u32, prefix: Prefix, tokens: u32) -> Result<(), EngineError> {
        self.engine.admit_after(self.stage, id(n), room, prefix, tokens)
    }

    /// Pages for each layer that are free, or kept only until somebody needs them.
    fn free(&self) -> usize {
        self.engine.pages().free / self.layers
    }
}

fn id(n: u8) -> RequestId {
    RequestId([n; 16])
}

fn tokens(from: u32, len: u32) -> Vec<Token> {
    (from..from + len).map(|n| Token(300 + n * 7 % 3000)).collect()
}

#[test]
fn a_shared_beginning_gives_the_same_bits_and_nobody_writes_into_it() {
    let mut bench = Bench::new(16);
    let (begin, rest, other) = (bench.page + bench.page / 2, tokens(9000, 40), tokens(500, 40));
    let common = tokens(0, begin);
    let room = begin + 100;
    bench.admit(1, room).unwrap();
    bench.run(1, 0, &common);
    let expected = bench.run(1, begin, &rest);
    // From one that runs and is further on, then from what is kept of it.
    bench.admit_after(2, room, Prefix::Running(id(1)), begin).unwrap();
    assert_eq!(bench.run(2, begin, &other).len(), expected.len());
    bench.admit_after(3, room, Prefix::Running(id(1)), begin).unwrap();
    assert_eq!(bench.run(3, begin, &rest), expected);
    let kept = Prefix::Kept(bench.engine.keep(bench.stage, id(1), begin).unwrap());
    bench.admit_after(4, room, kept, begin).unwrap();
    assert_eq!(bench.run(4, begin, &rest), expected);
    let more = tokens(7000, 5);
    assert_eq!(bench.run(3, begin + 40, &more), bench.run(4, begin + 40, &more));
    assert_eq!(bench.admit_after(5, room, kept, begin + 1), Err(EngineError::NoPrefix), "so much was not kept");
}

#[test]
fn what_is_kept_makes_room_the_longest_unused_first() {
    let mut bench = Bench::new(4);
    let page = bench.page;
    let keep = |bench: &mut Bench, n: u8| {
        bench.admit(n, page).unwrap();
        bench.run(n, 0, &tokens(n.into(), page));
        Prefix::Kept(bench.engine.keep(bench.stage, id(n), page).unwrap())
    };
    let (first, second) = (keep(&mut bench, 1), keep(&mut bench, 2));
    assert_eq!(bench.free(), 4, "nobody runs");
    bench.admit_after(3, 2 * page, first, page).unwrap();
    assert_eq!(bench.free(), 2, "one page is shared, one is its own");
    // What it has in common with the first is used and stays; the second is longest unused.
    bench.admit(4, 2 * page).unwrap();
    assert_eq!(bench.free(), 0);
    assert_eq!(bench.admit_after(5, page, second, page), Err(EngineError::NoPrefix));
    assert!(matches!(bench.admit(5, page), Err(EngineError::Pages(_))), "nothing is taken from those that run");
    bench.engine.release(bench.stage, id(4));
    bench.admit_after(5, page + 1, first, page).unwrap();
    assert_eq!(bench.free(), 1);
}

#[test]
fn room_grows_while_there_are_pages() {
    let mut bench = Bench::new(3);
    let page = bench.page;
    bench.admit(1, 1).unwrap();
    bench.run(1, 0, &tokens(0, 1));
    bench.engine.grow(bench.stage, id(1), page + 1).unwrap();
    bench.run(1, 1, &tokens(1, page));
    assert_eq!(bench.free(), 1);
    bench.admit(2, 1).unwrap();
    assert!(bench.engine.grow(bench.stage, id(1), 2 * page + 1).is_err());
    bench.engine.release(bench.stage, id(2));
    bench.engine.grow(bench.stage, id(1), 2 * page + 1).unwrap();
    assert!(bench.engine.could_hold(bench.stage, 3 * page).is_ok());
    assert!(bench.engine.could_hold(bench.stage, 3 * page + 1).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever is admitted, shared, grown, kept, forgotten and let go of, in any order: all pages come back.
    #[test]
    fn no_page_is_lost(steps in prop::collection::vec((0u8..7, 0u8..4, 0u32..400), 1..60)) {
        let mut bench = Bench::new(6);
        let (total, stage) = (bench.free(), bench.stage);
        let mut kept: Vec<PrefixKey> = Vec::new();
        for (what, n, tokens) in steps {
            // Whatever cannot be done is refused, and changes nothing.
            match what {
                0 => drop(bench.admit(n, tokens)),
                1 => drop(bench.engine.set_len(stage, id(n), tokens)),
                2 => drop(bench.admit_after(n, tokens + 50, Prefix::Running(id((n + 1) % 4)), tokens)),
                3 => drop(bench.engine.grow(stage, id(n), tokens)),
                4 => kept.extend(bench.engine.keep(stage, id(n), tokens)),
                5 => bench.engine.release(stage, id(n)),
                _ => {
                    if let Some(key) = kept.get(tokens as usize % (kept.len() + 1)) {
                        drop(bench.admit_after(n, tokens + 50, Prefix::Kept(*key), tokens));
                        if tokens % 2 == 0 {
                            bench.engine.forget(*key);
                        }
                    }
                }
            }
            prop_assert!(bench.free() <= total);
        }
        (0..4).for_each(|n| bench.engine.release(stage, id(n)));
        prop_assert_eq!(bench.free(), total);
        // What is kept is no obstacle.
        prop_assert!(bench.admit(0, total as u32 * bench.page).is_ok());
        bench.engine.unload(stage);
        prop_assert_eq!(bench.free(), total);
    }
}
