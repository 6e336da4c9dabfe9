//! Keys that turn.

use super::{
    super::key_rotation::{turn_back, turn_on},
    *,
};
use crate::rope::{Rope, RopePairs, RopeScaling};

/// Of keys whose first `dim` channels turn, or none if those make no pairs.
pub(super) fn turn(dim: usize, neighbours: bool) -> Option<KeyRotation> {
    let pairs = if neighbours { RopePairs::Neighbours } else { RopePairs::Halves };
    (dim >= 2).then(|| KeyRotation::new(&Rope::new(dim, 10_000.0, &RopeScaling::None), pairs))
}

/// Rows of keys turned back to where their blocks begin, by double precision.
fn turned_back(turn: &KeyRotation, dim: usize, keys: &[f32]) -> Vec<f32> {
    let mut keys = keys.to_vec();
    for (t, row) in keys.chunks_exact_mut(dim).enumerate() {
        let (cos, sin) = turn.angles(t % BLOCK);
        for (i, (cos, sin)) in cos.iter().zip(sin).enumerate() {
            let (first, second) = match turn.pairs() {
                RopePairs::Halves => (i, turn.half() + i),
                RopePairs::Neighbours => (2 * i, 2 * i + 1),
            };
            let [a, b, cos, sin] = [row[first], row[second], *cos, *sin].map(f64::from);
            (row[first], row[second]) = ((a * cos + b * sin) as f32, (b * cos - a * sin) as f32);
        }
    }
    keys
}

/// As [`check_bounds`] of keys in three or four bits: turned back they are as far apart as they were packed.
pub(super) fn check_turned(
    codec: KvCodec,
    turn: &KeyRotation,
    dim: usize,
    before: &[f32],
    after: &[f32],
    dtype: KvDtype,
) -> Result<(), TestCaseError> {
    let whole = before.len() / dim / BLOCK * BLOCK;
    let short = before.len() / dim - whole <= SHORT;
    let end = if short { whole * dim } else { before.len() };
    check_bounds(codec, Side::Keys, dim, &before[end..], &after[end..], dtype)?;
    let [before, after] = [before, after].map(|keys| turned_back(turn, dim, &keys[..end]));
    check_bounds(codec, Side::Keys, dim, &before, &after, dtype)
}

#[test]
fn keys_that_turn_lose_as_little_as_if_they_did_not() {
    let mean_error = |turned: bool| {
        let mut scenario = Scenario::new(256, 1, 32, KvDtype::F32);
        let turn = turn(32, false).unwrap();
        let mut next = noise(7);
        // Each channel keeps to a place of its own until it is turned.
        let still: Vec<f32> = (0..256 * 32).map(|i| (i % 32) as f32 - 16.0 + next()).collect();
        let (mut rows, still): (Vec<u8>, &[u8]) = (vec![0; 256 * 128], bytemuck::cast_slice(&still));
        for (still, rows) in still.chunks(BLOCK * 128).zip(rows.chunks_mut(BLOCK * 128)) {
            turn_on(&turn, 32, 0, still, Dtype::F32, rows);
        }
        scenario.fill(|_, _, t, c| Dtype::F32.get(&rows, t * 32 + c));
        scenario.turn = turned.then_some(turn);
        let before = scenario.numbers(Side::Keys, 0);
        let payload = scenario.export(Simd::detect(), KvCodec::Int4);
        scenario.import(Simd::detect(), KvCodec::Int4, &payload).unwrap();
        let errors = before.iter().zip(scenario.numbers(Side::Keys, 0)).map(|(a, b)| (a - b).abs());
        errors.sum::<f32>() / before.len() as f32
    };
    let (known, unknown) = (mean_error(true), mean_error(false));
    // The channels' own ranges are 2, those of what they turn over up to 45.
    assert!(known < 0.04 && unknown > 4.0 * known, "{known} and {unknown}");
}

#[test]
fn what_turns_back_is_what_was_turned_on_and_the_rest_stays() {
    for pairs in [false, true] {
        let turn = turn(8, pairs).unwrap();
        let keys: Vec<f32> = (0..20 * 12).map(|i| i as f32 / 16.0).collect();
        let (mut placed, mut back) = (vec![0; 20 * 48], vec![0; 20 * 48]);
        turn_on(&turn, 12, 0, bytemuck::cast_slice(&keys), Dtype::F32, &mut placed);
        for (t, (placed, back)) in placed.chunks(48).zip(back.chunks_mut(48)).enumerate() {
            turn_back(&turn, t, (placed, Dtype::F32), back);
        }
        for (i, key) in keys.iter().enumerate() {
            let [on, off] = [&placed, &back].map(|bytes| Dtype::F32.get(bytes, i));
            assert!((off - key).abs() < 1e-5, "{off} was {key}");
            assert!(i % 12 < 8 || on == *key, "channel {} does not turn", i % 12);
        }
    }
}

/// The largest step of a block is known only when all channels have been seen: those far below it are packed once more.
#[test]
fn channels_far_below_the_largest_are_packed_as_the_definition_packs_them() {
    for (tokens, dim, neighbours) in [(64, 64, false), (65, 128, true), (130, 96, false), (17, 32, true)] {
        let mut scenario = Scenario::new(tokens, 2, dim, KvDtype::F32);
        // Of pairs, which share their numbers; the last channels do not turn where there are more than 64.
        scenario.turn = turn(dim.min(64), neighbours);
        let mut next = noise(3);
        scenario.fill(|_, _, _, c| match c / 2 % 16 {
            0 => 0.0,
            n => next() * (-2.0 * n as f32).exp2(),
        });
        for codec in PACKED {
            let payload = scenario.export(Simd::Plain, codec);
            for simd in fast() {
                assert!(scenario.export(simd, codec) == payload, "{simd:?} {codec:?} {dim}");
            }
        }
    }
}
