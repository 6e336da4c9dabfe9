//! How numbers as they are stored become a register's.

use super::super::{
    LANES,
    bf16::SIXTEEN,
    isa::{Bf16, F16, F32, Isa, Stored, avx512::Avx512, instructions},
};
use super::rows::{Form, Line};
use bytemuck::cast;
use std::arch::x86_64::*;
use std::marker::PhantomData;

/// How eight stored numbers become the lanes of two rows.
pub(super) trait Twice: Stored {
    /// Eight numbers, twice.
    fn twice(isa: Avx512, at: &[Self::Bytes; LANES]) -> __m512;
}

impl Twice for F32 {
    #[inline(always)]
    fn twice(isa: Avx512, at: &[[u8; 4]; LANES]) -> __m512 {
        isa.twice_f32(at)
    }
}

impl Twice for F16 {
    #[inline(always)]
    fn twice(isa: Avx512, at: &[[u8; 2]; LANES]) -> __m512 {
        isa.twice_f16(at)
    }
}

impl Twice for Bf16 {
    #[inline(always)]
    fn twice(isa: Avx512, at: &[[u8; 2]; LANES]) -> __m512 {
        isa.twice_bf16(at)
    }
}

/// What is stored for a byte of zeros.
const NONE: i32 = 0x80;

/// Where a shuffle takes number `i` of bfloat16 from: its two bytes become the upper half of a number.
const fn upper_half(i: i32) -> i32 {
    NONE | NONE << 8 | (2 * i) << 16 | (2 * i + 1) << 24
}

impl Avx512 {
    instructions! { "avx512f,avx512bw,avx512dq,avx512vl",
        fn twice_f32(at: &[[u8; 4]; 8]) -> __m512 {
            _mm512_broadcast_f32x8(cast(*at))
        }
        fn twice_f16(at: &[[u8; 2]; 8]) -> __m512 {
            _mm512_cvtph_ps(_mm256_broadcastsi128_si256(cast(*at)))
        }
        fn twice_bf16(at: &[[u8; 2]; 8]) -> __m512 {
            let (low, high) = (
                [upper_half(0), upper_half(1), upper_half(2), upper_half(3)],
                [upper_half(4), upper_half(5), upper_half(6), upper_half(7)],
            );
            #[rustfmt::skip]
            let places = _mm512_setr_epi32(
                low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3],
                low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3],
            );
            _mm512_castsi512_ps(_mm512_shuffle_epi8(_mm512_broadcast_i32x4(cast(*at)), places))
        }
        fn sixteen_twice(at: &[[u8; 2]; 16]) -> __m512i {
            _mm512_broadcast_i64x4(cast(*at))
        }
        fn second_and_first(both: __m512i) -> [__m512; 2] {
            let second = _mm512_and_si512(both, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            [_mm512_castsi512_ps(second), _mm512_castsi512_ps(_mm512_slli_epi32::<16>(both))]
        }
        /// Adds up eight lanes of each of two rows in the order of `plain::reduce`.
        pub(super) fn reduce_two(lanes: __m512) -> [f32; 2] {
            let four = _mm512_add_ps(lanes, _mm512_shuffle_f32x4::<0b10_11_00_01>(lanes, lanes));
            let two = _mm512_add_ps(four, _mm512_permute_ps::<0b01_00_11_10>(four));
            let one = _mm512_add_ps(two, _mm512_permute_ps::<0b10_11_00_01>(two));
            [_mm512_cvtss_f32(one), _mm_cvtss_f32(_mm512_extractf32x4_ps::<2>(one))]
        }
        fn mul_add_some(lanes: u16, x: __m512, y: __m512, z: __m512) -> __m512 {
            _mm512_mask3_fmadd_ps(x, y, z, lanes)
        }
        /// Adds up the lanes of four registers in the order of `plain::reduce`: the first rows' four sums, then the second rows'.
        pub(super) fn reduce_two_fours(acc: [__m512; 4]) -> [f32; 8] {
            let low = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
            let high = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
            let [a, b, c, d] = acc;
            let mut two = [_mm512_setzero_ps(); 2];
            for (two, (one, other)) in two.iter_mut().zip([(a, b), (c, d)]) {
                let (one, other) = (_mm512_castps_pd(one), _mm512_castps_pd(other));
                let halves = _mm512_add_ps(
                    _mm512_castpd_ps(_mm512_permutex2var_pd(one, low, other)),
                    _mm512_castpd_ps(_mm512_permutex2var_pd(one, high, other)),
                );
                let quarters = _mm512_add_ps(halves, _mm512_permute_ps::<0b01_00_11_10>(halves));
                *two = _mm512_add_ps(quarters, _mm512_permute_ps::<0b10_11_00_01>(quarters));
            }
            let places = _mm512_setr_epi32(0, 4, 16, 20, 8, 12, 24, 28, 0, 0, 0, 0, 0, 0, 0, 0);
            cast(_mm512_castps512_ps256(_mm512_permutex2var_ps(two[0], places, two[1])))
        }
    }
}

/// How lines of rows and stored numbers become lanes.
pub(super) trait Multiplied: Copy {
    /// What the lanes of two rows take at once, of an output.
    type Weights: Copy;
    /// The same in memory.
    type Group: Copy;
    /// Of a stored number.
    const BYTES: usize;
    /// Of the rows.
    const FORM: Form;
    /// Stored numbers in groups.
    fn groups(bytes: &[u8]) -> &[Self::Group];
    /// Some stored numbers, fewer than a group, and zeros.
    fn rest(bytes: &[u8]) -> Self::Group;
    /// A group of stored numbers.
    fn weights(self, isa: Avx512, at: &Self::Group) -> Self::Weights;
    /// Goes on with sums; `x` holds [`Form::lines`] lines.
    fn multiply_add(self, isa: Avx512, x: &[Line], w: Self::Weights, sums: __m512) -> __m512;
    /// Of the last columns, fewer than a group, behind which rows and weights are zero.
    #[inline(always)]
    fn multiply_add_rest(self, isa: Avx512, x: &[Line], w: Self::Weights, sums: __m512, _columns: usize) -> __m512 {
        self.multiply_add(isa, x, w, sums)
    }
}

/// A number for each lane.
#[derive(Clone, Copy)]
pub(super) struct One<S>(PhantomData<S>);

impl<S> One<S> {
    pub const NEW: Self = Self(PhantomData);
}

impl<S: Twice<Bytes = [u8; N]>, const N: usize> Multiplied for One<S> {
    type Weights = __m512;
    type Group = [[u8; N]; LANES];
    const BYTES: usize = N;
    const FORM: Form = Form::Eight;
    #[inline(always)]
    fn groups(bytes: &[u8]) -> &[[[u8; N]; LANES]] {
        S::numbers(bytes).as_chunks().0
    }
    #[inline(always)]
    fn rest(bytes: &[u8]) -> [[u8; N]; LANES] {
        let mut all = [[0; N]; LANES];
        all.as_flattened_mut()[..bytes.len()].copy_from_slice(bytes);
        all
    }
    #[inline(always)]
    fn weights(self, isa: Avx512, at: &[[u8; N]; LANES]) -> __m512 {
        S::twice(isa, at)
    }
    #[inline(always)]
    fn multiply_add(self, isa: Avx512, x: &[Line], w: __m512, sums: __m512) -> __m512 {
        isa.mul_add(x[0].load(isa), w, sums)
    }
    #[inline(always)]
    fn multiply_add_rest(self, isa: Avx512, x: &[Line], w: __m512, sums: __m512, columns: usize) -> __m512 {
        // Lanes past the end keep what they have, as the definition's do.
        isa.mul_add_some(((1u16 << columns) - 1) * 0x101, x[0].load(isa), w, sums)
    }
}

/// Stored bfloat16 numbers in groups.
#[inline(always)]
fn sixteens(bytes: &[u8]) -> &[[[u8; 2]; SIXTEEN]] {
    bytes.as_chunks().0.as_chunks().0
}

/// Some of them, fewer than a group, and zeros.
#[inline(always)]
fn rest_of_sixteen(bytes: &[u8]) -> [[u8; 2]; SIXTEEN] {
    let mut all = [[0; 2]; SIXTEEN];
    all.as_flattened_mut()[..bytes.len()].copy_from_slice(bytes);
    all
}

/// Two bfloat16 numbers for each lane, as they are. Says that the processor multiplies them so.
#[derive(Clone, Copy)]
pub(super) struct Two(());

impl Two {
    /// # Safety
    /// The processor has AVX-512 and its products of bfloat16.
    #[inline(always)]
    pub unsafe fn had() -> Self {
        Self(())
    }

    instructions! { "avx512f,avx512bf16",
        fn add_products(x: __m512, w: __m512i, sums: __m512) -> __m512 {
            _mm512_dpbf16_ps(sums, cast(x), cast(w))
        }
    }
}

impl Multiplied for Two {
    type Weights = __m512i;
    type Group = [[u8; 2]; SIXTEEN];
    const BYTES: usize = 2;
    const FORM: Form = Form::Two;
    #[inline(always)]
    fn groups(bytes: &[u8]) -> &[[[u8; 2]; SIXTEEN]] {
        sixteens(bytes)
    }
    #[inline(always)]
    fn rest(bytes: &[u8]) -> [[u8; 2]; SIXTEEN] {
        rest_of_sixteen(bytes)
    }
    #[inline(always)]
    fn weights(self, isa: Avx512, at: &[[u8; 2]; SIXTEEN]) -> __m512i {
        isa.sixteen_twice(at)
    }
    #[inline(always)]
    fn multiply_add(self, isa: Avx512, x: &[Line], w: __m512i, sums: __m512) -> __m512 {
        self.add_products(x[0].load(isa), w, sums)
    }
}

/// The same, widened: the second ones and the first ones. A bfloat16 is the upper half of the single-precision number.
#[derive(Clone, Copy)]
pub(super) struct TwoApart;

impl Multiplied for TwoApart {
    type Weights = [__m512; 2];
    type Group = [[u8; 2]; SIXTEEN];
    const BYTES: usize = 2;
    const FORM: Form = Form::TwoApart;
    #[inline(always)]
    fn groups(bytes: &[u8]) -> &[[[u8; 2]; SIXTEEN]] {
        sixteens(bytes)
    }
    #[inline(always)]
    fn rest(bytes: &[u8]) -> [[u8; 2]; SIXTEEN] {
        rest_of_sixteen(bytes)
    }
    #[inline(always)]
    fn weights(self, isa: Avx512, at: &[[u8; 2]; SIXTEEN]) -> [__m512; 2] {
        isa.second_and_first(isa.sixteen_twice(at))
    }
    #[inline(always)]
    fn multiply_add(self, isa: Avx512, x: &[Line], w: [__m512; 2], sums: __m512) -> __m512 {
        isa.mul_add(x[1].load(isa), w[1], isa.mul_add(x[0].load(isa), w[0], sums))
    }
}
