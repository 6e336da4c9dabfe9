//! Products of two bfloat16 numbers each, added to a lane at once (`VDPBF16PS`): of single rows here, of many in `dense.rs`.

use super::super::{
    LANES, Lanes,
    avx2::Avx2,
    bf16::lanes_of_two as by_definition,
    dense::Block,
    matrix::{Dtype, Matrix},
    vector::dense::{Multiplied, outputs},
};
use half::bf16;
use std::arch::x86_64::*;
use std::time::{Duration, Instant};

/// Draws that are compared with the definition.
const DRAWS: usize = 256;
/// Instructions that are timed, and how often: some ten microseconds each time.
const TIMED: (usize, u32) = (1 << 15, 5);

/// Whether the processor has the instruction, and it gives the definition's bits: what makers of processors say of its order
/// is looked at, not believed.
pub(in super::super) fn is_available() -> bool {
    is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512vl") && is_the_definition()
}

/// Whether it multiplies as fast as multiply-adds or faster; then it does twice as much. On some processors it takes four times as
/// long.
pub(in super::super) fn is_fast() -> bool {
    // SAFETY: asked only of a processor that has AVX-512 and the instruction.
    unsafe {
        let [two, one] = [best_of(|| in_twos()), best_of(|| in_ones())];
        two < one * 3 / 2
    }
}

fn best_of(work: impl Fn()) -> Duration {
    let timed = || {
        let at = Instant::now();
        work();
        at.elapsed()
    };
    (0..TIMED.1).map(|_| timed()).min().unwrap_or_default()
}

#[target_feature(enable = "avx512f,avx512bf16")]
fn in_twos() {
    // One half, twice; hidden from the compiler, which else works out the end.
    let half = _mm512_set1_epi32(std::hint::black_box(0x3f00_3f00));
    let mut sums = [_mm512_setzero_ps(); 16];
    for _ in 0..TIMED.0 / sums.len() {
        for sum in &mut sums {
            // SAFETY: both are 512 bits, and any are numbers.
            let half = unsafe { std::mem::transmute::<__m512i, __m512bh>(half) };
            *sum = _mm512_dpbf16_ps(*sum, half, half);
        }
    }
    std::hint::black_box(sums);
}

#[target_feature(enable = "avx512f")]
fn in_ones() {
    let half = _mm512_set1_ps(std::hint::black_box(0.5));
    let mut sums = [_mm512_setzero_ps(); 16];
    for _ in 0..TIMED.0 / sums.len() {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(half, half, *sum);
        }
    }
    std::hint::black_box(sums);
}

fn is_the_definition() -> bool {
    let mut n = 1_u64;
    let mut next = || {
        n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // A sign, seven digits, and powers of two from -16 to 15: sums of unlike sizes, where an order shows.
        let (upper, power) = ((n >> 40) as u16, 111 + (n >> 58) as u16 % 32);
        bf16::from_bits(upper & 0x807f | power << 7)
    };
    (0..DRAWS).all(|_| {
        let mut x = [bf16::ZERO; 4 * LANES];
        let mut w = [0; 8 * LANES];
        x.fill_with(&mut next);
        w.as_chunks_mut::<2>().0.iter_mut().for_each(|w| *w = next().to_le_bytes());
        let w = Matrix::new(&w, Dtype::Bf16, 1, x.len());
        let block = Block { x: &x, w, from: 0, len: x.len() };
        let [mut ours, mut theirs] = [[[next().to_f32() / 3.0; LANES]]; 2];
        by_definition(block, &mut ours);
        lanes_of_two(block, &mut theirs);
        ours[0].map(f32::to_bits) == theirs[0].map(f32::to_bits)
    })
}

/// See [`super::super::plain::lanes_of_two`].
pub(in super::super) fn lanes_of_two(block: Block<'_, bf16>, acc: &mut [Lanes]) {
    block.check(acc);
    assert_eq!(block.w.dtype, Dtype::Bf16);
    // SAFETY: called only where the processor has the instruction; the block lies inside its matrices.
    unsafe { all(block, acc) }
}

/// # Safety
/// The processor has AVX2, FMA, F16C, AVX-512VL and its products of bfloat16, and `block.check(acc)` holds.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512vl,avx512bf16")]
unsafe fn all(block: Block<'_, bf16>, acc: &mut [Lanes]) {
    for r in 0..block.rows() {
        // SAFETY: the row exists, and this has the instructions.
        unsafe { outputs::<Avx2, Two, 1, 4>(Avx2::here(), block, acc, r) };
    }
}

/// Two bfloat16 numbers for each lane, as they are.
struct Two;

impl Multiplied<Avx2> for Two {
    type Number = bf16;
    type Group = __m256i;
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn row(_by: Avx2, at: *const bf16) -> __m256i {
        // SAFETY: the caller promises 32 readable bytes; the load needs no alignment.
        unsafe { _mm256_loadu_si256(at.cast()) }
    }
    #[inline(always)]
    unsafe fn weights(_by: Avx2, at: *const u8) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_loadu_si256(at.cast()) }
    }
    #[inline(always)]
    unsafe fn multiply_add(_by: Avx2, x: __m256i, w: __m256i, sums: __m256) -> __m256 {
        // SAFETY: registers only; any 256 bits are numbers.
        unsafe {
            let [x, w] = [std::mem::transmute::<__m256i, __m256bh>(x), std::mem::transmute::<__m256i, __m256bh>(w)];
            _mm256_dpbf16_ps(sums, x, w)
        }
    }
}
