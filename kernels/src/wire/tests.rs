mod turned;

use super::*;
use crate::{
    cpu::Simd,
    pages::{PAGE_BYTES, PageLayout, PagePool, SequenceKv},
};
use half::{bf16, f16};
use proptest::prelude::*;
use turned::{check_turned, turn};

/// A sequence of one layer in pages, and tiles of it through the codecs.
struct Scenario {
    pool: PagePool,
    kv: SequenceKv,
    tile: Tile,
    layout: PageLayout,
    turn: Option<KeyRotation>,
}

impl Scenario {
    fn new(tokens: usize, heads: usize, dim: usize, dtype: KvDtype) -> Self {
        Self::paged(tokens, heads, dim, dtype, usize::MAX)
    }

    /// In pages of so many tokens at most: they end inside of blocks, and behind odd rows.
    fn paged(tokens: usize, heads: usize, dim: usize, dtype: KvDtype, most: usize) -> Self {
        let fit = PAGE_BYTES / (2 * heads * dim * dtype.bytes());
        let layout = PageLayout { heads, dim, dtype, tokens: fit.min(most) };
        let mut pool = PagePool::new(layout.pages(tokens) * PAGE_BYTES);
        let kv = SequenceKv::reserve(&mut pool, layout, 1, tokens).unwrap();
        Self { pool, kv, tile: Tile { layer: 0, heads: 0..heads, tokens: 0..tokens }, layout, turn: None }
    }

    /// Fills pages with `number(side, head, token, channel)`.
    fn fill(&mut self, mut number: impl FnMut(Side, usize, usize, usize) -> f32) {
        for side in [Side::Keys, Side::Values] {
            for head in 0..self.layout.heads {
                for token in 0..self.tile.tokens.end {
                    let row: Vec<f32> = (0..self.layout.dim).map(|c| number(side, head, token, c)).collect();
                    self.kv.write(&mut self.pool, 0, side, head, token, &row);
                }
            }
        }
    }

    /// Numbers `[token][channel]` of one head.
    fn numbers(&self, side: Side, head: usize) -> Vec<f32> {
        let mut out = vec![0.0; self.tile.tokens.len() * self.layout.dim];
        self.kv.widen(&self.pool, 0, side, head, 0, &mut out);
        out
    }

    fn export(&self, simd: Simd, codec: KvCodec) -> Vec<u8> {
        // What an earlier, longer tile left must not show.
        let mut payload = vec![0xaa; 100_000];
        let mut scratch = CodecScratch::default();
        export(
            TileCodec { simd, codec, turn: self.turn.as_ref() },
            &self.kv,
            &self.pool,
            &self.tile,
            &mut scratch,
            &mut payload,
        );
        payload
    }

    fn import(&mut self, simd: Simd, codec: KvCodec, payload: &[u8]) -> Result<(), PayloadError> {
        import(
            TileCodec { simd, codec, turn: self.turn.as_ref() },
            &self.kv,
            &mut self.pool,
            &self.tile,
            &mut CodecScratch::default(),
            payload,
        )
    }

    fn bytes(&self) -> Vec<u8> {
        self.export(Simd::Plain, KvCodec::Raw)
    }
}

fn noise(seed: u64) -> impl FnMut() -> f32 {
    let mut n = seed;
    move || {
        n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (n >> 40) as f32 / 8_388_608.0 - 1.0
    }
}

/// All but the definition.
fn fast() -> impl Iterator<Item = Simd> {
    Simd::all().into_iter().filter(|simd| *simd != Simd::Plain)
}

const DTYPES: [KvDtype; 3] = [KvDtype::F16, KvDtype::Bf16, KvDtype::F32];
const PACKED: [KvCodec; 3] = [KvCodec::Int3, KvCodec::Int4, KvCodec::Int8];

/// Half a step, by what the group's numbers need, and the rounding of pages.
fn bound(codec: KvCodec, side: Side, group: &[f32], largest: f32, dtype: KvDtype) -> f32 {
    let (low, high) = group.iter().fold((0.0f32, 0.0f32), |(l, h), x| (l.min(*x), h.max(*x)));
    let reach = (-low).max(high);
    let most_code = if codec == KvCodec::Int3 { 7.0 } else { 15.0 };
    let (mut step, coarser) = match (codec, side) {
        (KvCodec::Int8, _) => (reach / 127.0, 1.0 / 32.0),
        // Ranges of keys need not reach zero.
        (_, Side::Keys) => {
            let own = |of: fn(f32, f32) -> f32| group.iter().copied().reduce(of).unwrap_or(0.0);
            (((own(f32::max) - own(f32::min)) / most_code).max(reach / 126.0), 1.0 / 32.0)
        }
        // Scales of values are up to a spread apart, a fifteenth of the octaves between the block's tokens.
        (_, Side::Values) => ((high - low) / most_code, 3.0),
    };
    // No step is more than eight octaves below the block's largest.
    let most = if codec == KvCodec::Int8 { largest / 127.0 } else { largest * 2.0 / most_code };
    step = step.max(most * 2f32.powf(-255.0 / 32.0));
    let page = match dtype {
        KvDtype::F16 => 2f32.powi(-11),
        KvDtype::Bf16 => 2f32.powi(-8),
        KvDtype::F32 => 2f32.powi(-22),
    };
    // Of keys that turn both of a pair are rounded to what pages have.
    let rounded = if side == Side::Keys { largest * 1.5 } else { reach * 1.1 };
    step * (1.0 + coarser) * 0.501 + rounded * page + 1e-7
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Half a step and the rounding of pages is all that is lost, sizes are exact, and fast is plain to the bit.
    #[test]
    fn error_is_bounded_and_fast_is_plain(
        tokens in 1usize..150, heads in 1usize..3, eights in 1usize..17, seed in any::<u64>(),
        spread in 0.01f32..50.0, away in -20.0f32..20.0, odd in any::<bool>(), rope in any::<Option<(bool, bool)>>(),
    ) {
        let dim = if odd { eights * 8 - 1 } else { eights * 8 };
        for dtype in DTYPES {
            let mut scenario = Scenario::new(tokens, heads, dim, dtype);
            scenario.turn = rope.and_then(|(all, pairs)| turn(if all { dim } else { dim / 2 }, pairs));
            let mut next = noise(seed);
            scenario.fill(|side, _, t, c| match side {
                // Channels of keys lie in places of their own, tokens of values have sizes of their own.
                Side::Keys => (next() + away * (c % 5) as f32) * spread,
                Side::Values => next() * spread * ((t * 7 % 16) as f32 / 4.0 - 2.0).exp2(),
            });
            let before: Vec<_> = [Side::Keys, Side::Values].map(|side| (0..heads).map(|h| scenario.numbers(side, h)).collect::<Vec<_>>()).into();
            let bytes = scenario.bytes();
            for codec in PACKED {
                let payload = scenario.export(Simd::Plain, codec);
                prop_assert_eq!(payload.len(), tile_bytes(codec, dtype, tokens, heads, dim));
                for simd in fast() {
                    prop_assert!(scenario.export(simd, codec) == payload, "{:?} {:?} {:?}: packed otherwise", simd, codec, dtype);
                }
                scenario.import(Simd::Plain, codec, &payload).unwrap();
                let plain = scenario.bytes();
                for (side, before) in [Side::Keys, Side::Values].into_iter().zip(&before) {
                    for (head, before) in before.iter().enumerate() {
                        let after = scenario.numbers(side, head);
                        match scenario.turn.as_ref().filter(|_| side == Side::Keys && codec != KvCodec::Int8) {
                            // Short blocks have eight bits, and as they are.
                            Some(turn) => check_turned(codec, turn, dim, before, &after, dtype)?,
                            None => check_bounds(codec, side, dim, before, &after, dtype)?,
                        }
                    }
                }
                for simd in fast() {
                    scenario.import(Simd::Plain, KvCodec::Raw, &bytes).unwrap();
                    scenario.import(simd, codec, &payload).unwrap();
                    prop_assert!(scenario.bytes() == plain, "{:?} {:?} {:?}: unpacked otherwise", simd, codec, dtype);
                }
                scenario.import(Simd::Plain, KvCodec::Raw, &bytes).unwrap();
            }
        }
    }

    /// Whatever numbers lie in pages, packing ends, fast is plain, and what is unpacked is finite.
    #[test]
    fn any_bits_do_no_harm(tokens in 1usize..70, seed in any::<u64>(), wild in 1u64..200, rope in any::<Option<bool>>()) {
        for dtype in DTYPES {
            let mut scenario = Scenario::paged(tokens, 1, 64, dtype, 23);
            scenario.turn = rope.and_then(|pairs| turn(64, pairs));
            let mut next = noise(seed);
            let mut n = 0u64;
            scenario.fill(|_, _, _, _| {
                n += 1;
                if n.is_multiple_of(wild) { f32::from_bits(next().to_bits().wrapping_mul(2_654_435_761)) } else { next() }
            });
            for codec in PACKED {
                let payload = scenario.export(Simd::Plain, codec);
                for simd in fast() {
                    prop_assert!(scenario.export(simd, codec) == payload, "{:?} {:?} {:?}", simd, codec, dtype);
                }
                let mut other = Scenario::paged(tokens, 1, 64, dtype, 23);
                other.turn.clone_from(&scenario.turn);
                other.import(Simd::detect(), codec, &payload).unwrap();
                prop_assert!([Side::Keys, Side::Values].iter().all(|side| other.numbers(*side, 0).iter().all(|x| x.is_finite())));
            }
        }
    }

    /// Whatever bytes come, unpacking gives finite numbers, the same on every processor, or an error.
    #[test]
    fn any_payload_does_no_harm(
        seed in any::<u64>(), tokens in 1usize..70, more in -2isize..3, rope in any::<Option<bool>>(),
    ) {
        for (dtype, codec) in DTYPES.into_iter().flat_map(|d| PACKED.map(|c| (d, c))) {
            let mut scenario = Scenario::paged(tokens, 1, 32, dtype, 23);
            scenario.turn = rope.and_then(|pairs| turn(32, pairs));
            let needed = tile_bytes(codec, dtype, tokens, 1, 32);
            let mut next = noise(seed);
            let payload: Vec<u8> = (0..needed.saturating_add_signed(more)).map(|_| next().to_bits() as u8).collect();
            prop_assert_eq!(scenario.import(Simd::Plain, codec, &payload).is_ok(), more == 0);
            let plain = scenario.bytes();
            for simd in fast() {
                prop_assert_eq!(scenario.import(simd, codec, &payload).is_ok(), more == 0);
                prop_assert!(scenario.bytes() == plain);
            }
            prop_assert!([Side::Keys, Side::Values].iter().all(|side| scenario.numbers(*side, 0).iter().all(|x| x.is_finite())));
        }
    }
}

fn check_bounds(
    codec: KvCodec,
    side: Side,
    dim: usize,
    before: &[f32],
    after: &[f32],
    dtype: KvDtype,
) -> Result<(), TestCaseError> {
    for (before, after) in before.chunks(BLOCK * dim).zip(after.chunks(BLOCK * dim)) {
        let largest = before.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        let n = before.len() / dim;
        let codec = if n <= SHORT { KvCodec::Int8 } else { codec };
        let group = |t: usize, c: usize| -> Vec<f32> {
            match side {
                Side::Keys => (0..n).map(|t| before[t * dim + c]).collect(),
                Side::Values => before[t * dim..][..dim].chunks(GROUP).nth(c / GROUP).unwrap_or(&[]).to_vec(),
            }
        };
        for (i, (a, b)) in before.iter().zip(after).enumerate() {
            let bound = bound(codec, side, &group(i / dim, i % dim), largest, dtype);
            prop_assert!((a - b).abs() <= bound, "{codec:?} {side:?} {dtype:?}: {a} became {b}, {bound} allowed");
        }
    }
    Ok(())
}

#[test]
fn what_is_infinite_or_none_spoils_no_other_number() {
    for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for simd in Simd::all() {
            let mut scenario = Scenario::new(64, 1, 32, KvDtype::F16);
            scenario.fill(|_, _, t, c| if (t, c) == (5, 3) { wrong } else { ((t * 31 + c * 17) % 64) as f32 / 64.0 });
            let payload = scenario.export(simd, KvCodec::Int4);
            let before = [Side::Keys, Side::Values].map(|side| scenario.numbers(side, 0));
            scenario.import(simd, KvCodec::Int4, &payload).unwrap();
            for (before, side) in before.iter().zip([Side::Keys, Side::Values]) {
                for (i, (a, b)) in before.iter().zip(scenario.numbers(side, 0)).enumerate() {
                    assert!(b.is_finite() && (i == 5 * 32 + 3 || (a - b).abs() <= 0.05), "{a} became {b}");
                }
            }
        }
    }
}

#[test]
fn zeros_stay_zeros_and_the_largest_number_stays_finite() {
    let mut scenario = Scenario::new(70, 2, 32, KvDtype::F16);
    scenario.fill(|_, _, _, _| 0.0);
    for codec in PACKED {
        let payload = scenario.export(Simd::detect(), codec);
        scenario.import(Simd::detect(), codec, &payload).unwrap();
        assert!(scenario.numbers(Side::Values, 1).iter().all(|x| *x == 0.0));
    }
    for largest in [f16::MAX.to_f32(), bf16::MAX.to_f32()] {
        let dtype = if largest > 1e5 { KvDtype::Bf16 } else { KvDtype::F16 };
        let mut scenario = Scenario::new(70, 2, 32, dtype);
        scenario.fill(|_, _, t, c| if (t + c) % 2 == 0 { largest } else { -largest });
        for codec in PACKED {
            let payload = scenario.export(Simd::detect(), codec);
            scenario.import(Simd::detect(), codec, &payload).unwrap();
            assert!(scenario.numbers(Side::Keys, 0).iter().all(|x| x.is_finite()), "{codec:?} {dtype:?}");
        }
    }
}

#[test]
fn sizes_are_as_documented() {
    let bits = |codec, tokens: usize, dim: usize| {
        tile_bytes(codec, KvDtype::F16, tokens, 1, dim) as f64 * 8.0 / (2 * tokens * dim) as f64
    };
    assert!((bits(KvCodec::Int3, 4096, 128) - 3.2837).abs() < 1e-4);
    assert!((bits(KvCodec::Int4, 4096, 128) - 4.2837).abs() < 1e-4);
    assert!((bits(KvCodec::Int4, 1024, 32) - 4.2910).abs() < 1e-4);
    assert!(bits(KvCodec::Int8, 4096, 128) < 8.2);
    assert_eq!(bits(KvCodec::Raw, 7, 32), 16.0);
    // One token is short: a scale for each channel of keys and a byte a number.
    assert_eq!(tile_bytes(KvCodec::Int4, KvDtype::F16, 1, 1, 5), 2 + 5 + 5 + 2 + 1 + 5);
    assert_eq!(
        tile_bytes(KvCodec::Int4, KvDtype::F16, SHORT, 1, 5),
        tile_bytes(KvCodec::Int8, KvDtype::F16, SHORT, 1, 5)
    );
    // One more: a scale and a zero of twelve bits for each channel of keys, and half a byte a number.
    assert_eq!(tile_bytes(KvCodec::Int4, KvDtype::F16, 17, 1, 5), 2 + 5 + 5 + 3 + 43 + 3 + 17 + 43);
}
