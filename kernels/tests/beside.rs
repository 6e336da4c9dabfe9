//! A stage beside the others takes only what nobody needs: its sequences go when others come, and bits do not change.
#![expect(clippy::unwrap_used, reason = "a scenario that cannot be run fails")]

use tsnode_kernels::{
    engine::{Engine, EngineConfig, EngineError, HeldSequence, Input, Output, Prefix, Slice, StageKey, Threads},
    pages::PAGE_BYTES,
    source::ModelSource,
};
use tsnode_protocol::{KvDtype, RequestId, Token};

/// The embedded model twice: once as it serves, once beside that.
struct Bench {
    engine: Engine,
    serves: StageKey,
    beside: StageKey,
    layers: usize,
    /// Tokens in a page.
    page: u32,
}

impl Bench {
    /// With so many pages for each layer, on each of so many ranks.
    fn new(pages: usize, ranks: usize) -> Self {
        let source = ModelSource::embedded().unwrap();
        let shape = source.card().shape;
        let (layers, threads) = (shape.layers as usize, Threads { count: ranks, ranks });
        let config = EngineConfig { threads, pool_bytes: pages * ranks * layers * PAGE_BYTES, kv_dtype: KvDtype::F16 };
        let mut engine = Engine::new(config).unwrap();
        let load = || source.load_stage_by(threads, shape.all_layers(), &mut |_| ()).unwrap().0;
        let (serves, beside) = (engine.load(load()).unwrap(), engine.load_beside(load()).unwrap());
        let page = PAGE_BYTES * ranks / (shape.kv_elements_per_token_layer() as usize * 2);
        Self { engine, serves, beside, layers, page: page as u32 }
    }

    fn run(&mut self, stage: StageKey, n: u8, start: u32, tokens: &[Token]) -> Vec<f32> {
        let slice = [Slice { request: id(n), start, len: tokens.len() as u32 }];
        let rows = [tokens.len() - 1];
        self.engine.forward(stage, &slice, Input::Tokens(tokens), Output::Logits { rows: &rows }).unwrap().to_vec()
    }

    fn free(&self) -> usize {
        self.engine.pages().free / self.layers
    }
}

fn id(n: u8) -> RequestId {
    RequestId([n; 16])
}

fn tokens(len: u32) -> Vec<Token> {
    (0..len).map(|n| Token(300 + n * 7 % 3000)).collect()
}

#[test]
fn sequences_beside_give_way_to_others_and_to_nobody_else() {
    for ranks in [1, 2] {
        let mut bench = Bench::new(4, ranks);
        let (page, pages) = (bench.page, 4 * ranks);
        bench.engine.admit(bench.beside, id(1), 2 * page).unwrap();
        bench.engine.admit(bench.beside, id(2), page).unwrap();
        assert_eq!(bench.free(), pages, "what gives way counts as free");
        let there = bench.run(bench.beside, 2, 0, &tokens(9));
        let full = bench.engine.admit(bench.beside, id(3), 2 * page);
        assert!(matches!(full, Err(EngineError::Pages(_))), "none of its kind is displaced: {full:?}");
        assert!(bench.engine.grow(bench.beside, id(2), 3 * page).is_err());

        // A name may be on both: they are two sequences.
        bench.engine.admit(bench.serves, id(1), page).unwrap();
        assert_eq!((bench.held(1), bench.held(2)), (Some((0, 2 * page)), Some((9, page))), "there was a page");
        bench.engine.grow(bench.serves, id(1), 3 * page).unwrap();
        assert_eq!((bench.held(1), bench.held(2)), (None, Some((9, page))), "the largest goes first");
        assert_eq!(bench.run(bench.serves, 1, 0, &tokens(9)), there, "it computes as the other does");
        let full = bench.engine.admit(bench.serves, id(4), 2 * page);
        assert!(matches!(full, Err(EngineError::Pages(_))));
        assert!(bench.held(2).is_some(), "nothing goes where that would not help");
        bench.engine.grow(bench.serves, id(1), 4 * page).unwrap();
        assert_eq!((bench.held(2), bench.free()), (None, 0));
        assert!(bench.engine.admit(bench.beside, id(5), 1).is_err());
        bench.engine.release(bench.serves, id(1));
        assert_eq!(bench.free(), pages);
    }
}

#[test]
fn what_is_kept_goes_before_a_sequence_beside() {
    let mut bench = Bench::new(4, 1);
    let page = bench.page;
    for n in 1..=3 {
        bench.engine.admit(bench.serves, id(n), page).unwrap();
        bench.run(bench.serves, n, 0, &tokens(page));
    }
    let kept: Vec<_> = (1..=3).map(|n| bench.engine.keep(bench.serves, id(n), page).unwrap()).collect();
    bench.engine.admit(bench.beside, id(9), 2 * page).unwrap();
    assert_eq!(bench.free(), 4);
    let after = |bench: &mut Bench, n: u8, kept| {
        bench.engine.admit_after(bench.serves, id(n), page + 1, Prefix::Kept(kept), page)
    };
    assert_eq!(after(&mut bench, 4, kept[0]), Err(EngineError::NoPrefix), "it went for the one beside");
    bench.engine.admit(bench.serves, id(5), page).unwrap();
    assert!(bench.held(9).is_some(), "something kept goes first");
    bench.engine.admit(bench.serves, id(6), 3 * page).unwrap();
    assert_eq!((bench.held(9), bench.free()), (None, 0));
}

#[test]
fn a_sequence_beside_is_nothing_to_begin_with() {
    let mut bench = Bench::new(4, 1);
    bench.engine.admit(bench.beside, id(1), bench.page).unwrap();
    bench.run(bench.beside, 1, 0, &tokens(40));
    bench.engine.truncate(bench.beside, id(1), 20).unwrap();
    assert_eq!(bench.held(1), Some((20, bench.page)));
    let begun = bench.engine.admit_after(bench.beside, id(2), 60, Prefix::Running(id(1)), 20);
    assert_eq!(begun, Err(EngineError::NoPrefix));
    assert_eq!(bench.engine.keep(bench.beside, id(1), 20), None);
    assert_eq!((bench.held(1), bench.free()), (None, 4));
    bench.engine.admit(bench.beside, id(3), 1).unwrap();
    bench.engine.unload(bench.beside);
    assert_eq!(bench.free(), 4);
}

impl Bench {
    fn held(&self, n: u8) -> Option<(u32, u32)> {
        self.engine.held(self.beside, id(n)).map(|HeldSequence { present, room }| (present, room))
    }
}
