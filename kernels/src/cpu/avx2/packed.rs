//! Products of rounded rows with packed matrices: eight outputs to a register.

use super::super::{
    packed::{Layout, OCTET, Packed},
    quantised::{Octet, Part},
    rounded::Rounded,
};
use std::arch::x86_64::*;

/// Rows worked on at once, and where their numbers are.
#[derive(Clone, Copy)]
struct Rows<'a> {
    x: &'a Rounded,
    first: usize,
    /// First block of columns; blocks are counted from it.
    from: usize,
}

/// See [`super::super::quantised::octet`].
pub(in super::super) fn octet(w: &Packed, octet: usize, x: &Rounded, part: Part, out: &mut [Octet]) {
    let blocks = x.rows() * (w.cols / w.layout.numbers());
    assert!(part.first + out.len() <= x.rows() && part.from <= part.to && x.cols == w.cols && x.scales.len() == blocks);
    assert!(x.sums.len() * w.layout.part() == x.bytes.len());
    assert!(w.layout.is_four() || x.words.len() == x.bytes.len());
    let block = w.layout.block();
    let bytes = &w.octet(octet)[part.from * block..part.to * block];
    // SAFETY: `Simd::detect` chose this file only after `is_available`; the lines above are what `groups` asks for.
    unsafe {
        match w.layout {
            Layout::Eight { least: false } => groups::<EightPlain>(bytes, x, part, out),
            Layout::Eight { least: true } => groups::<EightLeast>(bytes, x, part, out),
            Layout::Four => groups::<Four>(bytes, x, part, out),
            Layout::EightParts { least: false } => groups::<EightParts>(bytes, x, part, out),
            Layout::EightParts { least: true } => groups::<EightPartsLeast>(bytes, x, part, out),
            Layout::FourParts => groups::<FourParts>(bytes, x, part, out),
        }
    }
}

/// How a block of eight outputs is multiplied.
trait Block {
    const LAYOUT: Layout;
    /// Adds block `b` of `R` rows.
    ///
    /// # Safety
    /// The processor has AVX2, FMA and F16C; `block` points to a whole block, and `rows` has `R` rows with a block `b`,
    /// its scales and sums.
    unsafe fn add<const R: usize>(block: *const u8, rows: Rows<'_>, b: usize, acc: &mut [__m256; R]);
}

/// # Safety
/// The processor has AVX2, FMA and F16C; `bytes` holds the blocks of `part`, and `x` the rows from `first`
/// on that `out` has, with everything rounding for this layout gives.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn groups<B: Block>(bytes: &[u8], x: &Rounded, part: Part, out: &mut [Octet]) {
    let Part { first, from, .. } = part;
    let mut r = 0;
    // SAFETY: groups stay within the rows of `out`.
    unsafe {
        while r + 4 <= out.len() {
            group::<B, 4>(bytes, Rows { x, first: first + r, from }, &mut out[r..r + 4]);
            r += 4;
        }
        let (rows, rest) = (Rows { x, first: first + r, from }, &mut out[r..]);
        match rest.len() {
            3 => group::<B, 3>(bytes, rows, rest),
            2 => group::<B, 2>(bytes, rows, rest),
            1 => group::<B, 1>(bytes, rows, rest),
            _ => {}
        }
    }
}

/// # Safety
/// As for [`groups`], of `R` rows.
#[inline(always)]
unsafe fn group<B: Block, const R: usize>(bytes: &[u8], rows: Rows<'_>, out: &mut [Octet]) {
    // SAFETY: each chunk is a whole block, and `b` counts them as the rows' blocks are counted.
    unsafe {
        let mut acc: [__m256; R] = std::array::from_fn(|i| _mm256_loadu_ps(out[i].as_ptr()));
        for (b, block) in bytes.chunks_exact(B::LAYOUT.block()).enumerate() {
            B::add::<R>(block.as_ptr(), rows, b, &mut acc);
        }
        for (out, acc) in out.iter_mut().zip(acc) {
            _mm256_storeu_ps(out.as_mut_ptr(), acc);
        }
    }
}

impl Rows<'_> {
    /// Place of block `b` of row `i`, counted in blocks of `layout`.
    #[inline(always)]
    fn block(self, layout: Layout, i: usize, b: usize) -> usize {
        (self.first + i) * (self.x.cols / layout.numbers()) + self.from + b
    }

    /// # Safety
    /// Row `i` and its block `b` exist.
    #[inline(always)]
    unsafe fn scale(self, layout: Layout, i: usize, b: usize) -> __m256 {
        // SAFETY: there is a scale for every block.
        unsafe { _mm256_broadcast_ss(&*self.x.scales.as_ptr().add(self.block(layout, i, b))) }
    }

    /// # Safety
    /// As for [`Self::scale`].
    #[inline(always)]
    unsafe fn sums(self, layout: Layout, i: usize, b: usize) -> *const i16 {
        // SAFETY: there is a sum for every part of every block.
        unsafe { self.x.sums.as_ptr().add(self.block(layout, i, b) * (layout.numbers() / layout.part())) }
    }

    /// # Safety
    /// As for [`Self::scale`].
    #[inline(always)]
    unsafe fn bytes(self, layout: Layout, i: usize, b: usize) -> *const i8 {
        // SAFETY: there is a byte for every number of every block.
        unsafe { self.x.bytes.as_ptr().add(self.block(layout, i, b) * layout.numbers()) }
    }

    /// # Safety
    /// As for [`Self::scale`], and the layout has 8 bits.
    #[inline(always)]
    unsafe fn words(self, layout: Layout, i: usize, b: usize) -> *const i16 {
        // SAFETY: there is a word for every number of every block.
        unsafe { self.x.words.as_ptr().add(self.block(layout, i, b) * layout.numbers()) }
    }
}

/// Eight numbers of half precision, widened.
///
/// # Safety
/// 16 readable bytes, and F16C.
#[inline(always)]
unsafe fn halves(at: *const u8) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) }
}

/// Four bytes, eight times.
///
/// # Safety
/// Four readable bytes, and AVX2.
#[inline(always)]
unsafe fn everywhere<T>(at: *const T) -> __m256i {
    // SAFETY: the caller's promise; unaligned reads are asked for.
    unsafe { _mm256_set1_epi32(at.cast::<i32>().read_unaligned()) }
}

/// Sixteen bytes widened to words.
///
/// # Safety
/// 16 readable bytes, and AVX2.
#[inline(always)]
unsafe fn widened(at: *const u8) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_cvtepi8_epi16(_mm_loadu_si128(at.cast())) }
}

struct EightPlain;
struct EightLeast;
struct Four;
struct EightParts;
struct EightPartsLeast;
struct FourParts;

/// # Safety
/// As for [`Block::add`].
#[inline(always)]
unsafe fn add_eight<const R: usize>(layout: Layout, block: *const u8, rows: Rows<'_>, b: usize, acc: &mut [__m256; R]) {
    // SAFETY: 16 loads of 16 bytes behind the header; pairs of the row's 32 words.
    unsafe {
        let x: [*const i16; R] = std::array::from_fn(|i| rows.words(layout, i, b));
        let quants = block.add(layout.header());
        let mut sums = [_mm256_setzero_si256(); R];
        for pair in 0..16 {
            let w = widened(quants.add(16 * pair));
            for (sum, x) in sums.iter_mut().zip(x) {
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(w, everywhere(x.add(2 * pair))));
            }
        }
        let scales = halves(block);
        for (i, (acc, sum)) in acc.iter_mut().zip(sums).enumerate() {
            let worth = _mm256_mul_ps(scales, rows.scale(layout, i, b));
            *acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), worth, *acc);
        }
    }
}

impl Block for EightPlain {
    const LAYOUT: Layout = Layout::Eight { least: false };
    #[inline(always)]
    unsafe fn add<const R: usize>(block: *const u8, rows: Rows<'_>, b: usize, acc: &mut [__m256; R]) {
        // SAFETY: the caller's promise.
        unsafe { add_eight(Self::LAYOUT, block, rows, b, acc) }
    }
}

impl Block for EightLeast {
    const LAYOUT: Layout = Layout::Eight { least: true };
    #[inline(always)]
    unsafe fn add<const R: usize>(block: *const u8, rows: Rows<'_>, b: usize, acc: &mut [__m256; R]) {
        // SAFETY: the caller's promise; least values follow the scales.
        unsafe {
            add_eight(Self::LAYOUT, block, rows, b, acc);
            let least = halves(block.add(2 * OCTET));
            for (i, acc) in acc.iter_mut().enumerate() {
                let sum = _mm256_set1_ps(f32::from(*rows.sums(Self::LAYOUT, i, b)));
                *acc = _mm256_fmadd_ps(sum, _mm256_mul_ps(least, rows.scale(Self::LAYOUT, i, b)), *acc);
            }
        }
    }
}

/// Sums of products of 32 columns of four bits, two words for each output; 8 · 2 · 15 · 127 fits a word.
///
/// # Safety
/// 128 readable bytes at `quants`, 32 at each of `x`, and AVX2.
#[inline(always)]
unsafe fn four_words<const R: usize>(quants: *const u8, x: [*const i8; R]) -> [__m256i; R] {
    // SAFETY: four loads of 32 bytes; fours of the row's 32 bytes.
    unsafe {
        let lower = _mm256_set1_epi8(15);
        let mut words = [_mm256_setzero_si256(); R];
        for eight in 0..4 {
            let both = _mm256_loadu_si256(quants.add(32 * eight).cast());
            let low = _mm256_and_si256(both, lower);
            let high = _mm256_and_si256(_mm256_srli_epi16::<4>(both), lower);
            for (words, x) in words.iter_mut().zip(x) {
                *words = _mm256_add_epi16(*words, _mm256_maddubs_epi16(low, everywhere(x.add(8 * eight))));
                *words = _mm256_add_epi16(*words, _mm256_maddubs_epi16(high, everywhere(x.add(8 * eight + 4))));
            }
        }
        words
    }
}

impl Block for Four {
    const LAYOUT: Layout = Layout::Four;
    #[inline(always)]
    unsafe fn add<const R: usize>(block: *const u8, rows: Rows<'_>, b: usize, acc: &mut [__m256; R]) {
        // SAFETY: the caller's promise.
        unsafe {
            let x = std::array::from_fn(|i| rows.bytes(Self::LAYOUT, i, b));
            let words = four_words::<R>(block.add(Self::LAYOUT.header()), x);
            let (scales, ones) = (halves(block), _mm256_set1_epi16(1));
            for (i, (acc, words)) in acc.iter_mut().zip(words).enumerate() {
                let shift = _mm256_set1_epi32(8 * i32::from(*rows.sums(Self::LAYOUT, i, b)));
                let sum = _mm256_sub_epi32(_mm256_madd_epi16(words, ones), shift);
                let worth = _mm256_mul_ps(scales, rows.scale(Self::LAYOUT, i, b));
                *acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), worth, *acc);
            }
        }
    }
}

/// Bytes of eight outputs, each as the upper half of two words.
///
/// # Safety
/// Eight readable bytes, and AVX2.
#[inline(always)]
unsafe fn twice_upper(at: *const u8) -> __m256i {
    const NONE: i8 = -1;
    // SAFETY: the caller's promise.
    unsafe {
        let bytes = _mm256_set1_epi64x(at.cast::<i64>().read_unaligned());
        #[rustfmt::skip]
        let places = _mm256_setr_epi8(
            NONE, 0, NONE, 0, NONE, 1, NONE, 1, NONE, 2, NONE, 2, NONE, 3, NONE, 3,
            NONE, 4, NONE, 4, NONE, 5, NONE, 5, NONE, 6, NONE, 6, NONE, 7, NONE, 7,
        );
        _mm256_shuffle_epi8(bytes, places)
    }
}

/// Adds scales times sums, less steps times what `least` comes to.
///
/// # Safety
/// As for [`Block::add`].
#[inline(always)]
unsafe fn add_parts<const R: usize>(
    layout: Layout,
    block: *const u8,
    rows: Rows<'_>,
    b: usize,
    sums: [__m256i; R],
    acc: &mut [__m256; R],
) {
    let parts = layout.numbers() / layout.part();
    // SAFETY: scales and steps are the header's first 32 bytes, then `parts` scales of eight outputs, then least values.
    unsafe {
        let scales = halves(block);
        for (i, (acc, sum)) in acc.iter_mut().zip(sums).enumerate() {
            let worth = _mm256_mul_ps(scales, rows.scale(layout, i, b));
            *acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), worth, *acc);
        }
        if layout == (Layout::EightParts { least: false }) {
            return;
        }
        let steps = halves(block.add(2 * OCTET));
        let least = block.add(4 * OCTET + parts * OCTET);
        for (i, acc) in acc.iter_mut().enumerate() {
            let of = rows.sums(layout, i, b);
            let mut sum = _mm256_setzero_si256();
            for pair in 0..parts / 2 {
                let least = _mm256_cvtepu8_epi16(_mm_loadu_si128(least.add(16 * pair).cast()));
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(least, everywhere(of.add(2 * pair))));
            }
            let worth = _mm256_mul_ps(steps, rows.scale(layout, i, b));
            *acc = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(sum), worth, *acc);
        }
    }
}

/// # Safety
/// As for [`Block::add`].
#[inline(always)]
unsafe fn add_eight_parts<const R: usize>(
    layout: Layout,
    block: *const u8,
    rows: Rows<'_>,
    b: usize,
    acc: &mut [__m256; R],
) {
    // SAFETY: 16 parts of 8 loads of 16 bytes behind the header; pairs of the row's 256 words.
    unsafe {
        let x: [*const i16; R] = std::array::from_fn(|i| rows.words(layout, i, b));
        let quants = block.add(layout.header());
        let mut sums = [_mm256_setzero_si256(); R];
        for part in 0..16 {
            let scale = _mm256_srai_epi16::<8>(twice_upper(block.add(4 * OCTET + part * OCTET)));
            for pair in 8 * part..8 * part + 8 {
                // A quant times its part's scale fits a word: 128 · 128.
                let w = _mm256_mullo_epi16(widened(quants.add(16 * pair)), scale);
                for (sum, x) in sums.iter_mut().zip(x) {
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(w, everywhere(x.add(2 * pair))));
                }
            }
        }
        add_parts(layout, block, rows, b, sums, acc);
    }
}

impl Block for EightParts {
    const LAYOUT: Layout = Layout::EightParts { least: false };
    #[inline(always)]
    unsafe fn add<const R: usize>(block: *const u8, rows: Rows<'_>, b: usize, acc: &mut [__m256; R]) {
        // SAFETY: the caller's promise.
        unsafe { add_eight_parts(Self::LAYOUT, block, rows, b, acc) }
    }
}

impl Block for EightPartsLeast {
    const LAYOUT: Layout = Layout::EightParts { least: true };
    #[inline(always)]
    unsafe fn add<const R: usize>(block: *const u8, rows: Rows<'_>, b: usize, acc: &mut [__m256; R]) {
        // SAFETY: the caller's promise.
        unsafe { add_eight_parts(Self::LAYOUT, block, rows, b, acc) }
    }
}

impl Block for FourParts {
    const LAYOUT: Layout = Layout::FourParts;
    #[inline(always)]
    unsafe fn add<const R: usize>(block: *const u8, rows: Rows<'_>, b: usize, acc: &mut [__m256; R]) {
        // SAFETY: the caller's promise; 8 parts of 128 bytes behind the header.
        unsafe {
            let x: [*const i8; R] = std::array::from_fn(|i| rows.bytes(Self::LAYOUT, i, b));
            let quants = block.add(Self::LAYOUT.header());
            let mut sums = [_mm256_setzero_si256(); R];
            for part in 0..8 {
                // Scales are below 64, so as words they are the upper byte moved down.
                let scale = _mm256_srli_epi16::<8>(twice_upper(block.add(4 * OCTET + part * OCTET)));
                let words = four_words::<R>(quants.add(128 * part), x.map(|x| x.add(32 * part)));
                for (sum, words) in sums.iter_mut().zip(words) {
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(words, scale));
                }
            }
            add_parts(Self::LAYOUT, block, rows, b, sums, acc);
        }
    }
}
