//! Orders to an engine, as leaders and prefill stages give them: any of them in any order, with any numbers.

use super::{loaded, place, tiny};
use std::sync::LazyLock;
use tsnode_kernels::{
    engine::{Engine, Input, Output, Prefix, PrefixKey, Slice, StageKey},
    source::ModelSource,
    wire,
};
use tsnode_protocol::{KvCodec, KvDtype, RequestId, TileHeader, Token};

/// Orders of one input.
const ORDERS: usize = 64;
const CODECS: [KvCodec; 4] = [KvCodec::Raw, KvCodec::Int4, KvCodec::Int8, KvCodec::Int3];
/// KV heads and their width, of the model the orders are for.
const HEADS: [usize; 2] = [1, 16];

/// Numbers of orders, as long as there are any.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// A number up to 509: pages of the model hold 512 tokens; or one of the largest.
    fn number(&mut self) -> Option<u32> {
        Some(match self.byte()? {
            255 => u32::MAX - u32::from(self.byte()?),
            small @ 0..128 => small.into(),
            large => u32::from(large - 128) * 3 + u32::from(self.byte()? % 3),
        })
    }

    fn request(&mut self) -> Option<RequestId> {
        Some(RequestId([self.byte()? % 3; 16]))
    }

    fn codec(&mut self) -> Option<KvCodec> {
        Some(CODECS[usize::from(self.byte()?) % CODECS.len()])
    }

    /// So many of what is left, again and again from the start.
    fn cycle(&self, len: usize) -> Vec<u8> {
        self.0.iter().chain(&[0]).cycle().take(len).copied().collect()
    }
}

/// An engine, and what it keeps by name.
struct Scenario {
    engine: Engine,
    stage: StageKey,
    kept: Vec<PrefixKey>,
}

/// Gives an engine the orders in some bytes. Says whether any of them was carried out.
pub fn engine(bytes: &[u8]) -> bool {
    static SOURCE: LazyLock<ModelSource> = LazyLock::new(|| {
        let path = place().path().join("tiny.gguf");
        std::fs::write(&path, &tiny::ggufs()[1]).unwrap();
        ModelSource::open(&path).unwrap()
    });
    let (engine, stage) = loaded(&SOURCE).unwrap();
    let (mut scenario, mut reader) = (Scenario { engine, stage, kept: Vec::new() }, Reader(bytes));
    let done = (0..ORDERS).map_while(|_| scenario.order(&mut reader)).filter(|done| *done).count();
    scenario.end();
    done > 0
}

impl Scenario {
    /// Carries the next order out, if there is one and it can be.
    fn order(&mut self, reader: &mut Reader<'_>) -> Option<bool> {
        let (kind, request) = (reader.byte()?, reader.request()?);
        let (engine, stage) = (&mut self.engine, self.stage);
        Some(match kind % 10 {
            0 => engine.admit(stage, request, reader.number()?).is_ok(),
            1 => self.admit_after(request, reader)?,
            2 => engine.grow(stage, request, reader.number()?).is_ok(),
            3 => engine.truncate(stage, request, reader.number()?).is_ok(),
            4 => {
                let kept = engine.keep(stage, request, reader.number()?);
                self.kept.extend(kept);
                kept.is_some()
            }
            5 => self.kept.pop().map(|key| engine.forget(key)).is_some(),
            6 => self.import(request, reader)?,
            7 => engine.set_len(stage, request, reader.number()?).is_ok(),
            8 => engine.fake_quantise(stage, request, reader.number()?..reader.number()?, reader.codec()?).is_ok(),
            _ => self.forward(request, reader)?,
        })
    }

    fn admit_after(&mut self, request: RequestId, reader: &mut Reader<'_>) -> Option<bool> {
        let (room, tokens, other) = (reader.number()?, reader.number()?, reader.request()?);
        let prefix = self.kept.last().map_or(Prefix::Running(other), |key| Prefix::Kept(*key));
        Some(self.engine.admit_after(self.stage, request, room, prefix, tokens).is_ok())
    }

    /// A tile whose payload is as long as it should be, or nearly; what was put in comes out as it was.
    fn import(&mut self, request: RequestId, reader: &mut Reader<'_>) -> Option<bool> {
        let codec = reader.codec()?;
        let (layer, head_start, head_end) = (reader.number()?, reader.number()?, reader.number()?);
        let (token_start, token_end) = (reader.number()?, reader.number()?);
        let mut tile = TileHeader { layer, head_start, head_end, token_start, token_end, bytes: 0 };
        let [heads, dim] = HEADS;
        let bytes = wire::tile_bytes(codec, KvDtype::F16, tile.tokens().min(512) as usize, heads, dim);
        let off = [2, 2, 2, 1, 3][usize::from(reader.byte()?) % 5];
        let payload = reader.cycle((bytes + 2).saturating_sub(off));
        tile.bytes = payload.len() as u32;
        let imported = self.engine.import(self.stage, request, &tile, codec, &payload).is_ok();
        if imported && self.engine.set_len(self.stage, request, token_end).is_ok() {
            let mut out = Vec::new();
            self.engine.export(self.stage, request, &tile, KvCodec::Raw, &mut out).unwrap();
            assert!(codec != KvCodec::Raw || out == payload, "raw KV is another than it was");
            let numbers = out.chunks_exact(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]));
            assert!(codec == KvCodec::Raw || numbers.into_iter().all(half::f16::is_finite), "unpacked KV is no number");
        }
        Some(imported)
    }

    /// A step of one or two slices.
    fn forward(&mut self, request: RequestId, reader: &mut Reader<'_>) -> Option<bool> {
        let mut batch = vec![Slice { request, start: reader.number()?, len: reader.number()? }];
        if reader.byte()? % 2 == 0 {
            batch.push(Slice { request: reader.request()?, start: reader.number()?, len: reader.number()? });
        }
        let rows: u64 = batch.iter().map(|slice| u64::from(slice.len)).sum();
        let named = [rows.saturating_sub(1) as usize, reader.number()? as usize];
        let tokens: Vec<Token> = reader.cycle(rows.min(600) as usize).iter().map(|b| Token((b % 9).into())).collect();
        let hidden = vec![0.5; tokens.len() * 32];
        let (input, rows) = match reader.byte()? % 8 {
            0 => (Input::Hidden(&hidden), &named[..1]),
            1 => (Input::Tokens(&tokens), &named[..]),
            _ => (Input::Tokens(&tokens), &named[..1]),
        };
        Some(self.engine.forward(self.stage, &batch, input, Output::Logits { rows }).is_ok())
    }

    /// When all have gone, all pages are free.
    fn end(mut self) {
        for request in 0..3 {
            self.engine.release(self.stage, RequestId([request; 16]));
        }
        self.kept.into_iter().for_each(|key| self.engine.forget(key));
        let pages = self.engine.pages();
        assert_eq!(pages.free, pages.total, "pages were lost");
    }
}

/// Some sensible orders.
pub fn examples() -> Vec<Vec<u8>> {
    let admitted = |more: &[u8]| [&[0, 1, 150][..], more].concat();
    vec![
        // Prompt, step, draft tokens rejected, kept, and another that begins alike.
        admitted(&[
            9, 1, 0, 4, 1, 3, 2, 3, 1, 2, 9, 1, 2, 1, 1, 0, 2, 5, 4, 1, 2, 1, 2, 120, 2, 1, 0, 2, 9, 2, 2, 3, 1, 2, 1,
            7,
        ]),
        // Two sequences in one step, one of them longer than its room.
        [&[0, 1, 90, 0, 2, 60, 9, 1, 0, 20, 0, 2, 0, 30, 49, 2, 7, 3][..], &[2, 2, 140, 0, 5, 0, 0]].concat(),
        // KV from elsewhere, in all codecs; quantised in place; a step after it.
        admitted(&[6, 1, 1, 0, 0, 1, 0, 64, 0, 17, 34, 51, 7, 1, 64, 8, 1, 0, 64, 2, 9, 1, 64, 2, 1, 1, 3, 5]),
        admitted(&[6, 1, 2, 0, 0, 1, 0, 70, 1, 99, 200, 255, 1]),
        admitted(&[6, 1, 0, 0, 0, 1, 3, 20, 2, 60, 61, 62, 63]),
    ]
}
