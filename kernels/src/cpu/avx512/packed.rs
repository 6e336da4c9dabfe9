//! Products of few rounded rows with packed matrices (`vector/packed.rs`): sixteen outputs to a register.

use super::super::{
    avx2::ask_for_part,
    packed::{Bits, FOUR, Layout, Packed, WIDE, by_kind},
    quantised::{ProductRange, Wide},
    rounded::{Rounded, RowBlock},
    vector::{
        instructions,
        packed::{self, Bytes, PackedLanes},
    },
};
use super::registers::Avx512;
use crate::quant::QuantType;
use std::arch::x86_64::*;

/// See [`super::super::quantised::wide`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(in super::super) fn wide(w: &Packed, panel: usize, x: &Rounded, part: ProductRange, out: &mut [Wide]) {
    by_kind!(w.kind, of_kind(w, panel, x, part, out));
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn of_kind<const KIND: usize>(w: &Packed, panel: usize, x: &Rounded, part: ProductRange, out: &mut [Wide]) {
    packed::wide::<KIND, 1, 1, 1, _, _>((Avx512::here(), Dots), w, panel, x, part, out);
}

impl PackedLanes for Avx512 {
    type Whole = __m512i;
    instructions! {
        fn zeros(self) -> __m512i {
            _mm512_setzero_si512()
        }
        fn times(self, x: __m512, y: __m512) -> __m512 {
            _mm512_mul_ps(x, y)
        }
        fn add_whole(self, sum: __m512i, worth: __m512, acc: __m512) -> __m512 {
            _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), worth, acc)
        }
        fn take_whole(self, sum: __m512i, worth: __m512, acc: __m512) -> __m512 {
            _mm512_fnmadd_ps(_mm512_cvtepi32_ps(sum), worth, acc)
        }
        unsafe fn add_pairs(self, sum: __m512i, bytes: *const u8, of_two: *const i16) -> __m512i {
            _mm512_dpwssd_epi32(sum, words(bytes), everywhere(of_two))
        }
    }
}

/// Four products added up at once (VNNI).
#[derive(Clone, Copy)]
struct Dots;

impl Bytes<Avx512> for Dots {
    #[inline(always)]
    unsafe fn whole<const KIND: usize, const R: usize, const H: usize>(
        self,
        _by: Avx512,
        block: *const u8,
        _from: usize,
        rows: &[RowBlock; R],
    ) -> [[__m512i; H]; R] {
        const { assert!(H == 1) }
        let layout = const { Layout::of(QuantType::ALL[KIND]) };
        let fours = layout.part / 4;
        // SAFETY: parts and fours of columns are those of a block; what each load reads is said where it is defined.
        unsafe {
            let quants = block.add(layout.header());
            let mut sums = [[_mm512_setzero_si512(); H]; R];
            for part in 0..layout.parts() {
                ask_for_part(layout, block, part);
                let mut dots = [[_mm512_setzero_si512(); H]; R];
                if layout.shift != 0 {
                    for (dots, row) in dots.iter_mut().zip(rows) {
                        *dots = [everywhere(row.shift(part)); H];
                    }
                }
                for four in part * fours..(part + 1) * fours {
                    let q = four_columns(layout, quants, four);
                    for (dots, row) in dots.iter_mut().zip(rows) {
                        dots[0] = _mm512_dpbusd_epi32(dots[0], q, everywhere(row.columns(4 * four)));
                    }
                }
                if !layout.is_large() {
                    return dots;
                }
                let scale = block.add(layout.part_scales() + part * WIDE);
                let scale = _mm512_cvtepi8_epi32(_mm_loadu_si128(scale.cast()));
                for (sums, dots) in sums.iter_mut().zip(dots) {
                    sums[0] = _mm512_add_epi32(sums[0], _mm512_mullo_epi32(scale, dots[0]));
                }
            }
            sums
        }
    }
}

/// 32 bytes without signs, as words.
///
/// # Safety
/// 32 readable bytes, and AVX-512.
#[inline(always)]
pub(super) unsafe fn words(at: *const u8) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe { _mm512_cvtepu8_epi16(_mm256_loadu_si256(at.cast())) }
}

/// Four bytes, sixteen times.
///
/// # Safety
/// Four readable bytes, and AVX-512.
#[inline(always)]
pub(super) unsafe fn everywhere<T>(at: *const T) -> __m512i {
    // SAFETY: the caller's promise; unaligned reads are asked for.
    unsafe { _mm512_set1_epi32(at.cast::<i32>().read_unaligned()) }
}

/// Columns `4 * four..` of sixteen outputs, four bytes each, shifted.
///
/// # Safety
/// `quants` points to a block's quants; AVX-512.
#[inline(always)]
pub(super) unsafe fn four_columns(layout: Layout, quants: *const u8, four: usize) -> __m512i {
    // SAFETY: every load is of the 64 bytes that belong to these columns.
    unsafe {
        let at = |from: usize| _mm512_loadu_si512(quants.add(from).cast());
        if layout.bits == Bits::Eight {
            return at(four * FOUR);
        }
        let both = at(four / 2 * FOUR);
        let low = if four.is_multiple_of(2) { both } else { _mm512_srli_epi16::<4>(both) };
        let low = _mm512_and_si512(low, _mm512_set1_epi8(15));
        let (fours, bits, mask) = match layout.bits {
            Bits::Five => (8, 1, 1 << 4),
            Bits::Six => (4, 2, 3 << 4),
            Bits::Four | Bits::Eight => return low,
        };
        // The bits wanted are moved to where they belong: up for the first columns, down for the last.
        let (upper, from) = (at(layout.upper() + four / fours * FOUR), four % fours * bits);
        let moved = if from <= 4 {
            _mm512_sll_epi16(upper, _mm_cvtsi32_si128(4 - from as i32))
        } else {
            _mm512_srl_epi16(upper, _mm_cvtsi32_si128(from as i32 - 4))
        };
        _mm512_or_si512(low, _mm512_and_si512(moved, _mm512_set1_epi8(mask)))
    }
}
