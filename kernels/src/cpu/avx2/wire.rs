//! KV packed for links (`vector/wire.rs`): 32 channels in four registers.

use super::super::vector::{
    instructions,
    wire::{self, Narrow, Packs, StoreNumbers, WIDE},
};
use super::Avx2;
use crate::{
    cpu::Dtype,
    wire::{BlockRows, BlockShape, Groups, KeyRotation, KeyScratch},
};
use std::arch::x86_64::*;

/// See [`crate::wire::low_high`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) fn low_high(form: BlockShape, rows: BlockRows<'_>, groups: &mut Groups) {
    wire::low_high::<_, 4>(Avx2::here(), form, rows, groups);
}

/// See [`crate::wire::encode`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) fn encode(form: BlockShape, rows: BlockRows<'_>, groups: &Groups, cells: &mut [u8]) {
    wire::encode::<_, 4>(Avx2::here(), form, rows, groups, cells);
}

/// See [`crate::wire::pack_keys`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) fn pack_keys(
    turn: &KeyRotation,
    form: BlockShape,
    rows: BlockRows<'_>,
    scratch: KeyScratch<'_>,
    head: &mut [u8],
    cells: &mut [u8],
) {
    wire::pack_keys::<_, 4>(Avx2::here(), turn, form, rows, scratch, head, cells);
}

/// See [`crate::wire::decode`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) fn decode(
    form: BlockShape,
    codes: &[u8],
    first: usize,
    groups: &Groups,
    dtype: Dtype,
    out: &mut [u8],
) {
    wire::decode::<_, 4>(Avx2::here(), form, codes, first, groups, dtype, out);
}

/// See [`crate::wire::unpack_keys`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) fn unpack_keys(
    turn: &KeyRotation,
    form: BlockShape,
    codes: &[u8],
    first: usize,
    scratch: KeyScratch<'_>,
    dtype: Dtype,
    out: &mut [u8],
) {
    wire::unpack_keys::<_, 4>(Avx2::here(), turn, form, codes, first, scratch, dtype, out);
}

impl Narrow for Avx2 {
    instructions! {
        fn smaller(self, x: __m256, than: __m256) -> __m256 {
            _mm256_min_ps(x, than)
        }
        fn larger(self, x: __m256, than: __m256) -> __m256 {
            _mm256_max_ps(x, than)
        }
        fn product(self, x: __m256, w: __m256) -> __m256 {
            _mm256_mul_ps(x, w)
        }
        fn multiply_subtract(self, x: __m256, w: __m256, less: __m256) -> __m256 {
            _mm256_fmsub_ps(x, w, less)
        }
        fn apart(self, both: [__m256; 2]) -> [__m256; 2] {
            let first = _mm256_permute2f128_ps::<0x20>(both[0], both[1]);
            let second = _mm256_permute2f128_ps::<0x31>(both[0], both[1]);
            // Numbers 0 to 3 and 8 to 11, then the others.
            [_mm256_shuffle_ps::<0b10_00_10_00>(first, second), _mm256_shuffle_ps::<0b11_01_11_01>(first, second)]
        }
        fn together(self, both: [__m256; 2]) -> [__m256; 2] {
            let (first, second) = (_mm256_unpacklo_ps(both[0], both[1]), _mm256_unpackhi_ps(both[0], both[1]));
            [_mm256_permute2f128_ps::<0x20>(first, second), _mm256_permute2f128_ps::<0x31>(first, second)]
        }
        unsafe fn store_f16(self, at: *mut u8, x: __m256) {
            _mm_storeu_si128(at.cast(), in_f16(x));
        }
        unsafe fn store_bf16(self, at: *mut u8, x: __m256) {
            _mm_storeu_si128(at.cast(), in_bf16(x));
        }
    }
}

/// Numbers in half precision; what is too large for it becomes its largest number.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn in_f16(x: __m256) -> __m128i {
    let x = _mm256_min_ps(_mm256_max_ps(x, _mm256_set1_ps(-65504.0)), _mm256_set1_ps(65504.0));
    _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x)
}

/// Numbers as bfloat16, each the nearest, the even one of two: half of what is cut off, and the last bit that stays, are added.
#[inline]
#[target_feature(enable = "avx2")]
fn in_bf16(x: __m256) -> __m128i {
    let bits = _mm256_castps_si256(x);
    let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    let up = _mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7fff));
    let words = _mm256_srli_epi32::<16>(up);
    _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words))
}

impl Packs<4> for Avx2 {
    type Whole = __m256i;
    instructions! {
        fn none(self) -> __m256i {
            _mm256_setzero_si256()
        }
        fn range(self, least: __m256, most: __m256) -> (f32, f32) {
            // Both as largest numbers, in the two halves of one register.
            let least = _mm256_sub_ps(_mm256_set1_ps(-0.0), least);
            let swapped = _mm256_permute2f128_ps::<0x21>(least, most);
            let both = _mm256_max_ps(swapped, _mm256_blend_ps::<0xf0>(least, most));
            let both = _mm256_max_ps(both, _mm256_permute_ps::<0b01_00_11_10>(both));
            let both = _mm256_max_ps(both, _mm256_permute_ps::<0b10_11_00_01>(both));
            (-_mm256_cvtss_f32(both), _mm_cvtss_f32(_mm256_extractf128_ps::<1>(both)))
        }
        fn code(self, x: __m256, inverse: __m256, zero: __m256) -> __m256i {
            _mm256_cvtps_epi32(_mm256_fmsub_ps(x, inverse, zero))
        }
        fn halves(self, first: [__m256i; 4], second: [__m256i; 4]) -> __m256i {
            // Codes are below 16: nothing moves from one byte into the next.
            in_order(_mm256_or_si256(sixteen(first), _mm256_slli_epi16::<4>(sixteen(second))))
        }
        fn put_bytes(self, codes: [__m256i; 4], out: &mut [u8; WIDE]) {
            let [a, b, c, d] = codes;
            let bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
            let bytes = _mm256_max_epi8(bytes, _mm256_set1_epi8(-127));
            _mm256_storeu_si256(out.as_mut_ptr().cast(), in_order(bytes));
        }
        fn numbers(self, codes: __m256i) -> [__m256; 4] {
            numbers(codes)
        }
    }

    #[inline(always)]
    fn half_codes<const UPPER: bool>(self, both: __m256i) -> [__m256; 4] {
        // SAFETY: who has the token has these instructions.
        unsafe {
            let own = if UPPER { _mm256_srli_epi16::<4>(both) } else { both };
            numbers(_mm256_and_si256(own, _mm256_set1_epi8(15)))
        }
    }

    /// By tables of the upper and of the lower bytes of what the codes 0 to 15 are, as they are stored.
    #[inline(always)]
    unsafe fn put_group<S: StoreNumbers>(self, codes: __m256i, step: f32, shift: f32, at: *mut u8) {
        // SAFETY: who has the token has these instructions; the caller promises the room.
        unsafe {
            let (step, shift) = (_mm256_set1_ps(step), _mm256_set1_ps(shift));
            if S::DTYPE == Dtype::F32 {
                for (i, numbers) in numbers(codes).into_iter().enumerate() {
                    _mm256_storeu_ps(at.add(32 * i).cast(), _mm256_fmadd_ps(numbers, step, shift));
                }
                return;
            }
            let first = _mm256_fmadd_ps(_mm256_setr_ps(0., 1., 2., 3., 4., 5., 6., 7.), step, shift);
            let second = _mm256_fmadd_ps(_mm256_setr_ps(8., 9., 10., 11., 12., 13., 14., 15.), step, shift);
            let words = match S::DTYPE {
                Dtype::F16 => (in_f16(first), in_f16(second)),
                _ => (in_bf16(first), in_bf16(second)),
            };
            let bytes = _mm_set1_epi16(0xff);
            let lower = _mm_packus_epi16(_mm_and_si128(words.0, bytes), _mm_and_si128(words.1, bytes));
            let upper = _mm_packus_epi16(_mm_srli_epi16::<8>(words.0), _mm_srli_epi16::<8>(words.1));
            // Bytes are put together within halves of registers: 16 codes to each half.
            let codes = _mm256_permute4x64_epi64::<0b11_01_10_00>(codes);
            let lower = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(lower), codes);
            let upper = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(upper), codes);
            _mm256_storeu_si256(at.cast(), _mm256_unpacklo_epi8(lower, upper));
            _mm256_storeu_si256(at.add(32).cast(), _mm256_unpackhi_epi8(lower, upper));
        }
    }
}

/// 32 signed bytes as numbers.
#[inline]
#[target_feature(enable = "avx2")]
fn numbers(codes: __m256i) -> [__m256; 4] {
    let (first, second) = (_mm256_castsi256_si128(codes), _mm256_extracti128_si256::<1>(codes));
    let eights = [first, _mm_srli_si128::<8>(first), second, _mm_srli_si128::<8>(second)];
    let mut numbers = [_mm256_setzero_ps(); 4];
    for (number, eight) in numbers.iter_mut().zip(eights) {
        *number = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight));
    }
    numbers
}

/// Codes held within 0 to 15, in the order that packing leaves.
#[inline]
#[target_feature(enable = "avx2")]
fn sixteen([a, b, c, d]: [__m256i; 4]) -> __m256i {
    let bytes = _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    _mm256_min_epu8(bytes, _mm256_set1_epi8(15))
}

/// Undoes that packing works on halves of registers.
#[inline]
#[target_feature(enable = "avx2")]
fn in_order(bytes: __m256i) -> __m256i {
    _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
}
