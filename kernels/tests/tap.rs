//! KV packed in the middle of a step is what is packed after it, and the step computes what it would have.
#![expect(clippy::unwrap_used, reason = "a scenario that cannot be run fails")]

use tsnode_kernels::{
    engine::{Engine, EngineConfig, Fresh, Input, Output, Slice, StageKey, Tap, Threads},
    source::ModelSource,
};
use tsnode_protocol::{KvCodec, KvDtype, ModelShape, RequestId, TileHeader, Token};

const TAPPED: RequestId = RequestId([1; 16]);
const PLAIN: RequestId = RequestId([2; 16]);
const PROMPT: u32 = 200;

/// Packs one sequence's tokens of every layer, from where the last step ended.
struct TileTaker {
    codec: KvCodec,
    tokens: std::ops::Range<u32>,
    tiles: Vec<(TileHeader, Vec<u8>)>,
}

impl Tap for TileTaker {
    fn layer(&mut self, layer: u32, fresh: &mut Fresh<'_>) {
        let mut payload = Vec::new();
        assert!(fresh.export(TAPPED, self.tokens.clone(), self.codec, &mut payload));
        let (token_start, token_end) = (self.tokens.start, self.tokens.end);
        let tile = TileHeader { layer, head_start: 0, head_end: 4, token_start, token_end, bytes: 0 };
        self.tiles.push((tile, payload));
        assert!(!fresh.export(PLAIN, 0..PROMPT + 1, self.codec, &mut Vec::new()), "more than it has room for");
        assert!(!fresh.export(RequestId([9; 16]), 0..1, self.codec, &mut Vec::new()), "nobody's");
    }
}

fn engine(ranks: usize) -> (Engine, StageKey, ModelShape) {
    let source = ModelSource::embedded().unwrap();
    let shape = source.card().shape;
    let threads = Threads { count: ranks, ranks };
    let mut engine = Engine::new(EngineConfig { threads, pool_bytes: 16 << 20, kv_dtype: KvDtype::F16 }).unwrap();
    let stage = engine.load(source.load_stage_by(threads, shape.all_layers(), &mut |_| ()).unwrap().0).unwrap();
    engine.admit(stage, TAPPED, PROMPT).unwrap();
    engine.admit(stage, PLAIN, PROMPT).unwrap();
    (engine, stage, shape)
}

fn prompt() -> Vec<Token> {
    (0..PROMPT).map(|n| Token(300 + n * 13 % 3000)).collect()
}

#[test]
fn a_layer_packed_during_its_step_has_the_bytes_it_has_after_it() {
    for codec in [KvCodec::Raw, KvCodec::Int8, KvCodec::Int4, KvCodec::Int3] {
        let (mut engine, stage, shape) = engine(1);
        let (prompt, mut taken) = (prompt(), Vec::new());
        for (chunk, packed) in [(0..130, 0..128), (130..PROMPT, 128..PROMPT)] {
            let slice = |request| [Slice { request, start: chunk.start, len: chunk.len() as u32 }];
            let tokens = &prompt[chunk.start as usize..chunk.end as usize];
            let mut taker = TileTaker { codec, tokens: packed, tiles: Vec::new() };
            let (input, output) = (Input::Tokens(tokens), Output::Hidden);
            let tapped =
                engine.forward_tapped(stage, &slice(TAPPED), input, output, Some(&mut taker)).unwrap().to_vec();
            let plain = engine.forward(stage, &slice(PLAIN), input, output).unwrap();
            assert!(tapped == plain, "{codec:?}: a tap changes nothing");
            assert!(taker.tiles.iter().map(|(tile, _)| tile.layer).eq(shape.all_layers().iter()));
            taken.extend(taker.tiles);
        }
        let mut payload = Vec::new();
        for (tile, bytes) in taken {
            engine.export(stage, PLAIN, &tile, codec, &mut payload).unwrap();
            assert!(payload == bytes, "{codec:?}, {tile:?}");
        }
    }
}

#[test]
fn nobody_taps_one_rank_of_several() {
    let (mut engine, stage, _) = engine(2);
    let mut taker = TileTaker { codec: KvCodec::Raw, tokens: 0..PROMPT, tiles: Vec::new() };
    let slice = [Slice { request: TAPPED, start: 0, len: PROMPT }];
    engine.forward_tapped(stage, &slice, Input::Tokens(&prompt()), Output::Hidden, Some(&mut taker)).unwrap();
    assert!(taker.tiles.is_empty());
}
