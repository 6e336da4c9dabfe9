//! What fake quantisation leaves in pages is what sending would have left: the same bits, whatever the tiles.
#![expect(clippy::unwrap_used, reason = "a scenario that cannot be run fails")]

use proptest::prelude::*;
use tsnode_kernels::{
    engine::{Engine, EngineConfig, EngineError, Input, Output, Prefix, Slice, StageKey, Threads},
    source::ModelSource,
};
use tsnode_protocol::{KvCodec, KvDtype, ModelShape, RequestId, TileHeader, Token};

const SENT: RequestId = RequestId([1; 16]);
const RECEIVED: RequestId = RequestId([2; 16]);
const IN_PLACE: RequestId = RequestId([3; 16]);

struct Bench {
    engine: Engine,
    stage: StageKey,
    shape: ModelShape,
}

impl Bench {
    fn new(ranks: usize) -> Self {
        let source = ModelSource::embedded().unwrap();
        let shape = source.card().shape;
        let threads = Threads { count: ranks, ranks };
        let config = EngineConfig { threads, pool_bytes: 16 << 20, kv_dtype: KvDtype::F16 };
        let mut engine = Engine::new(config).unwrap();
        let stage = engine.load(source.load_stage_by(threads, shape.all_layers(), &mut |_| ()).unwrap().0).unwrap();
        Self { engine, stage, shape }
    }

    fn compute(&mut self, request: RequestId, tokens: u32) {
        self.engine.admit(self.stage, request, tokens).unwrap();
        let prompt: Vec<Token> = (0..tokens).map(|n| Token(300 + n * 13 % 3000)).collect();
        let slice = [Slice { request, start: 0, len: tokens }];
        self.engine.forward(self.stage, &slice, Input::Tokens(&prompt), Output::Hidden).unwrap();
    }

    fn tile(&self, layer: u32, token_start: u32, token_end: u32) -> TileHeader {
        TileHeader { layer, head_start: 0, head_end: self.shape.kv_heads, token_start, token_end, bytes: 0 }
    }

    /// Sends what is computed in steps that end at `ends`, as a prefill stage does.
    fn send(&mut self, tokens: u32, ends: &[u32], codec: KvCodec) {
        self.engine.admit(self.stage, RECEIVED, tokens).unwrap();
        let (mut done, mut payload) = (0, Vec::new());
        for computed in ends.iter().copied().chain([tokens]) {
            let end = codec.tile_end(computed, tokens);
            if end <= done {
                continue;
            }
            for layer in self.shape.all_layers().iter() {
                let tile = self.tile(layer, done, end);
                self.engine.export(self.stage, SENT, &tile, codec, &mut payload).unwrap();
                self.engine.import(self.stage, RECEIVED, &tile, codec, &payload).unwrap();
            }
            done = end;
        }
        self.engine.set_len(self.stage, RECEIVED, tokens).unwrap();
    }

    fn pages(&mut self, request: RequestId, tokens: u32) -> Vec<Vec<u8>> {
        let mut pages = Vec::new();
        for layer in self.shape.all_layers().iter() {
            let mut bytes = Vec::new();
            let tile = self.tile(layer, 0, tokens);
            self.engine.export(self.stage, request, &tile, KvCodec::Raw, &mut bytes).unwrap();
            pages.push(bytes);
        }
        pages
    }

    fn fake_quantise(
        &mut self,
        request: RequestId,
        tokens: std::ops::Range<u32>,
        codec: KvCodec,
    ) -> Result<(), EngineError> {
        self.engine.fake_quantise(self.stage, request, tokens, codec)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn quantised_in_place_is_sent(ranks in 1usize..3, tokens in 1u32..400, steps in proptest::collection::vec(1u32..400, 0..4)) {
        for codec in [KvCodec::Raw, KvCodec::Int8, KvCodec::Int4, KvCodec::Int3] {
            let mut bench = Bench::new(ranks);
            let mut ends: Vec<u32> = steps.iter().map(|end| end % tokens).collect();
            ends.sort_unstable();
            bench.compute(SENT, tokens);
            bench.compute(IN_PLACE, tokens);
            bench.send(tokens, &ends, codec);
            bench.fake_quantise(IN_PLACE, 0..tokens, codec).unwrap();
            let in_place = bench.pages(IN_PLACE, tokens);
            prop_assert!(in_place == bench.pages(RECEIVED, tokens), "{codec:?}, {tokens} tokens, steps to {ends:?}");
            let lossless = in_place == bench.pages(SENT, tokens);
            prop_assert!(lossless == (codec == KvCodec::Raw), "{codec:?}, {tokens} tokens");
        }
    }
}

#[test]
fn in_parts_is_as_at_once() {
    let mut bench = Bench::new(1);
    bench.compute(SENT, 300);
    bench.compute(IN_PLACE, 300);
    bench.fake_quantise(SENT, 0..300, KvCodec::Int4).unwrap();
    let step = KvCodec::Int4.tile_step();
    for part in [0..step, step..3 * step, 3 * step..300] {
        bench.fake_quantise(IN_PLACE, part, KvCodec::Int4).unwrap();
    }
    assert!(bench.pages(IN_PLACE, 300) == bench.pages(SENT, 300));
}

#[test]
fn what_cannot_be_quantised_is_left_as_it_was() {
    let mut bench = Bench::new(1);
    bench.compute(SENT, 300);
    let before = bench.pages(SENT, 300);
    // No tile begins at token 10, and there are no 301 tokens.
    assert!(matches!(bench.fake_quantise(SENT, 10..300, KvCodec::Int4), Err(EngineError::Tile(_))));
    assert!(matches!(bench.fake_quantise(SENT, 0..301, KvCodec::Int4), Err(EngineError::Tile(_))));
    assert!(matches!(bench.fake_quantise(IN_PLACE, 0..1, KvCodec::Int4), Err(EngineError::NoSequence(_))));
    // Somebody else begins with the same pages.
    bench.engine.admit_after(bench.stage, IN_PLACE, 300, Prefix::Running(SENT), 256).unwrap();
    assert!(matches!(bench.fake_quantise(SENT, 0..300, KvCodec::Int4), Err(EngineError::Position { .. })));
    assert!(bench.pages(SENT, 300) == before);
    bench.fake_quantise(SENT, 256..300, KvCodec::Int4).unwrap();
    assert!(bench.pages(SENT, 300) != before);
}
