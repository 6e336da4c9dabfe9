//! KV packed for links (`vector/wire.rs`): 32 channels in two registers.

use super::super::vector::{
    instructions,
    wire::{self, Narrow, Packs, StoreNumbers, WIDE},
};
use super::registers::Avx512;
use crate::{
    cpu::Dtype,
    wire::{BlockRows, BlockShape, Groups, KeyRotation, KeyScratch},
};
use std::arch::x86_64::*;

/// See [`crate::wire::choose`]: plain Rust, compiled for AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(in super::super) fn choose(form: BlockShape, groups: &mut Groups, head: &mut [u8]) {
    crate::wire::choose(form, groups, head);
}

/// See [`crate::wire::read`]: the same.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(in super::super) fn read(form: BlockShape, head: &[u8], groups: &mut Groups) {
    crate::wire::read(form, head, groups);
}

/// See [`crate::wire::low_high`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(in super::super) fn low_high(form: BlockShape, rows: BlockRows<'_>, groups: &mut Groups) {
    wire::low_high::<_, 2>(Avx512::here(), form, rows, groups);
}

/// See [`crate::wire::encode`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(in super::super) fn encode(form: BlockShape, rows: BlockRows<'_>, groups: &Groups, cells: &mut [u8]) {
    wire::encode::<_, 2>(Avx512::here(), form, rows, groups, cells);
}

/// See [`crate::wire::pack_keys`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(in super::super) fn pack_keys(
    turn: &KeyRotation,
    form: BlockShape,
    rows: BlockRows<'_>,
    scratch: KeyScratch<'_>,
    head: &mut [u8],
    cells: &mut [u8],
) {
    wire::pack_keys::<_, 2>(Avx512::here(), turn, form, rows, scratch, head, cells);
}

/// See [`crate::wire::decode`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(in super::super) fn decode(
    form: BlockShape,
    codes: &[u8],
    first: usize,
    groups: &Groups,
    dtype: Dtype,
    out: &mut [u8],
) {
    wire::decode::<_, 2>(Avx512::here(), form, codes, first, groups, dtype, out);
}

/// See [`crate::wire::unpack_keys`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(in super::super) fn unpack_keys(
    turn: &KeyRotation,
    form: BlockShape,
    codes: &[u8],
    first: usize,
    scratch: KeyScratch<'_>,
    dtype: Dtype,
    out: &mut [u8],
) {
    wire::unpack_keys::<_, 2>(Avx512::here(), turn, form, codes, first, scratch, dtype, out);
}

impl Narrow for Avx512 {
    instructions! {
        fn smaller(self, x: __m512, than: __m512) -> __m512 {
            _mm512_min_ps(x, than)
        }
        fn larger(self, x: __m512, than: __m512) -> __m512 {
            _mm512_max_ps(x, than)
        }
        fn product(self, x: __m512, w: __m512) -> __m512 {
            _mm512_mul_ps(x, w)
        }
        fn multiply_subtract(self, x: __m512, w: __m512, less: __m512) -> __m512 {
            _mm512_fmsub_ps(x, w, less)
        }
        fn apart(self, both: [__m512; 2]) -> [__m512; 2] {
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
            [_mm512_permutex2var_ps(both[0], even, both[1]), _mm512_permutex2var_ps(both[0], odd, both[1])]
        }
        fn together(self, both: [__m512; 2]) -> [__m512; 2] {
            let first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
            [_mm512_permutex2var_ps(both[0], first, both[1]), _mm512_permutex2var_ps(both[0], second, both[1])]
        }
        unsafe fn store_f16(self, at: *mut u8, x: __m512) {
            _mm256_storeu_si256(at.cast(), in_f16(x));
        }
        unsafe fn store_bf16(self, at: *mut u8, x: __m512) {
            _mm256_storeu_si256(at.cast(), in_bf16(x));
        }
    }
}

/// Numbers in half precision; what is too large for it becomes its largest number.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn in_f16(x: __m512) -> __m256i {
    let x = _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(-65504.0)), _mm512_set1_ps(65504.0));
    _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x)
}

/// Numbers as bfloat16, each the nearest, the even one of two: half of what is cut off, and the last bit that stays, are added.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn in_bf16(x: __m512) -> __m256i {
    let bits = _mm512_castps_si512(x);
    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let up = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
    _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(up))
}

impl Packs<2> for Avx512 {
    type Whole = __m512i;
    instructions! {
        fn none(self) -> __m512i {
            _mm512_setzero_si512()
        }
        fn range(self, least: __m512, most: __m512) -> (f32, f32) {
            // Both as largest numbers, in the two halves of one register.
            let least = _mm512_sub_ps(_mm512_set1_ps(-0.0), least);
            let firsts = _mm512_shuffle_f32x4::<0b01_00_01_00>(least, most);
            let seconds = _mm512_shuffle_f32x4::<0b11_10_11_10>(least, most);
            let both = _mm512_max_ps(firsts, seconds);
            let both = _mm512_max_ps(both, _mm512_shuffle_f32x4::<0b10_11_00_01>(both, both));
            let both = _mm512_max_ps(both, _mm512_permute_ps::<0b01_00_11_10>(both));
            let both = _mm512_max_ps(both, _mm512_permute_ps::<0b10_11_00_01>(both));
            (-_mm512_cvtss_f32(both), _mm_cvtss_f32(_mm512_extractf32x4_ps::<2>(both)))
        }
        fn code(self, x: __m512, inverse: __m512, zero: __m512) -> __m512i {
            _mm512_cvtps_epi32(_mm512_fmsub_ps(x, inverse, zero))
        }
        fn halves(self, first: [__m512i; 2], second: [__m512i; 2]) -> __m256i {
            let words = [_mm512_packs_epi32(first[0], first[1]), _mm512_packs_epi32(second[0], second[1])];
            let codes = _mm512_min_epu8(_mm512_packus_epi16(words[0], words[1]), _mm512_set1_epi8(15));
            // Eights of the first row and of the second in turns.
            let (a, b) = (_mm512_castsi512_si256(codes), _mm512_extracti64x4_epi64::<1>(codes));
            let (firsts, seconds) = (_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
            // Codes are below 16: nothing moves from one byte into the next.
            let both = _mm256_or_si256(firsts, _mm256_slli_epi16::<4>(seconds));
            _mm256_permutevar8x32_epi32(both, _mm256_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7))
        }
        fn put_bytes(self, codes: [__m512i; 2], out: &mut [u8; WIDE]) {
            for (out, codes) in out.as_chunks_mut::<16>().0.iter_mut().zip(codes) {
                let bytes = _mm512_cvtsepi32_epi8(codes);
                _mm_storeu_si128(out.as_mut_ptr().cast(), _mm_max_epi8(bytes, _mm_set1_epi8(-127)));
            }
        }
        fn numbers(self, codes: __m256i) -> [__m512; 2] {
            let (first, second) = (_mm256_castsi256_si128(codes), _mm256_extracti128_si256::<1>(codes));
            [
                _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(first)),
                _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(second)),
            ]
        }
    }

    #[inline(always)]
    fn half_codes<const UPPER: bool>(self, both: __m256i) -> [__m512; 2] {
        // SAFETY: who has the token has AVX-512.
        unsafe {
            // Of what names a number only the lowest four bits count.
            let all = _mm512_setr_ps(0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.);
            let runs = [_mm256_castsi256_si128(both), _mm256_extracti128_si256::<1>(both)];
            let mut numbers = [_mm512_setzero_ps(); 2];
            for (numbers, run) in numbers.iter_mut().zip(runs) {
                let bytes = _mm512_cvtepu8_epi32(run);
                let own = if UPPER { _mm512_srli_epi32::<4>(bytes) } else { bytes };
                *numbers = _mm512_permutexvar_ps(own, all);
            }
            numbers
        }
    }

    /// By a table of what the codes 0 to 15 are, as they are stored: of two bytes 32 numbers are one permutation.
    #[inline(always)]
    unsafe fn put_group<S: StoreNumbers>(self, codes: __m256i, step: f32, shift: f32, at: *mut u8) {
        // SAFETY: who has the token has AVX-512; the caller promises the room.
        unsafe {
            let all = _mm512_setr_ps(0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.);
            let numbers = _mm512_fmadd_ps(all, _mm512_set1_ps(step), _mm512_set1_ps(shift));
            let table = match S::DTYPE {
                Dtype::F16 => in_f16(numbers),
                Dtype::Bf16 => in_bf16(numbers),
                Dtype::F32 => {
                    let halves = [_mm256_castsi256_si128(codes), _mm256_extracti128_si256::<1>(codes)];
                    for (i, half) in halves.into_iter().enumerate() {
                        let table = _mm512_castps_si512(numbers);
                        let found = _mm512_permutexvar_epi32(_mm512_cvtepu8_epi32(half), table);
                        _mm512_storeu_si512(at.add(64 * i).cast(), found);
                    }
                    return;
                }
            };
            let found = _mm512_permutexvar_epi16(_mm512_cvtepu8_epi16(codes), _mm512_castsi256_si512(table));
            _mm512_storeu_si512(at.cast(), found);
        }
    }
}
