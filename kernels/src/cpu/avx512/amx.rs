//! Products of many rounded rows with packed matrices, by tiles (AMX): sixteen rows by sixteen outputs at a time.
//!
//! A panel's quants are unpacked into the cache once and then meet all rows. Blocks of 32 are one product of tiles each,
//! and scaled when that is done. In blocks of 256 a quant times its part's scale is written as two digits, `256 · high +
//! low`, so that whole blocks add up in tiles. Both give the whole numbers that `quantised.rs` defines, so its bits.

use super::super::{
    dense::Outputs,
    packed::{HALVES, Layout, Packed, WIDE, by_kind},
    quantised::{Wide, put},
    rounded::{Rounded, TILE_ROWS},
    vector::{Vector, array_of},
};
use super::{
    packed::{everywhere, four_columns, words},
    registers::Avx512,
};
use crate::quant::QuantType;
use std::arch::{asm, x86_64::*};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::OnceLock;

/// Columns unpacked at a time, a multiple of 256: with both digits 64 KiB.
const COLUMNS: usize = 2048;
/// Rows that meet unpacked quants: with that many columns 1 MiB.
const ROWS: usize = 512;
/// Panels whose sums are kept while rows pass, so that their columns may be read from a cache.
const PANELS: usize = 8;
/// Bytes of a row of a tile.
const TILE_BYTES: usize = 64;

/// A row of a tile, where caches have their lines.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; TILE_BYTES]);

/// Whole numbers of a tile of rows and outputs.
type OutputTile = [[i32; WIDE]; TILE_ROWS];

/// Memory of a thread, kept from step to step.
#[derive(Default)]
struct TileScratch {
    /// Quants as tiles read them: of each block and four columns a line, or one for each digit.
    quants: Vec<Line>,
    /// Of each block and output, what a quant is worth.
    scales: Vec<Wide>,
    /// The same for least values or steps.
    steps: Vec<Wide>,
    /// Of each large block, least values of pairs of parts, as words.
    least: Vec<Line>,
    /// Of each panel and row.
    sums: Vec<Wide>,
}

thread_local! {
    static SCRATCH: RefCell<TileScratch> = RefCell::default();
}

/// Whether the processor has tiles of bytes and the system lets this process use them.
pub(in super::super) fn is_available() -> bool {
    static IS: OnceLock<bool> = OnceLock::new();
    // Leaf 7 exists on every processor with AVX2; bits 24 and 25 are AMX's tiles and their products of bytes.
    *IS.get_or_init(|| __cpuid_count(7, 0).edx >> 24 & 3 == 3 && is_permitted())
}

/// Asks the system for the tiles' registers, for all threads of the process.
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const REQUEST_STATE: i64 = 0x1023;
    const TILE_DATA: i64 = 18;
    let mut result = ARCH_PRCTL;
    // SAFETY: the call takes two numbers and reads and writes no memory. One that does not know the request fails.
    unsafe {
        asm!("syscall", inlateout("rax") result, in("rdi") REQUEST_STATE, in("rsi") TILE_DATA, out("rcx") _, out("r11") _,
            options(nostack));
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}

/// `out[r][o] = x[r] · w[o]` for all rows and the outputs of some panels.
pub(in super::super) fn panels(x: &Rounded, w: &Packed, panels: Range<usize>, out: &Outputs<'_>) {
    assert!(x.fits(w) && panels.end <= w.rows.div_ceil(WIDE) && is_available() && super::is_available());
    // SAFETY: the processor has what is asked for, and rows, blocks and panels exist, by the line above.
    SCRATCH.with_borrow_mut(|scratch| unsafe { by_kind!(w.kind, all(x, w, panels, out, scratch)) });
}

/// # Safety
/// The processor has AVX-512 (F, BW, DQ, VL, VNNI) and AMX tiles of bytes, and they are permitted; `w` is of kind number
/// `KIND`, `x` fits it, and the panels exist.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn all<const KIND: usize>(
    x: &Rounded,
    w: &Packed,
    panels: Range<usize>,
    out: &Outputs<'_>,
    s: &mut TileScratch,
) {
    let layout = const { Layout::of(QuantType::ALL[KIND]) };
    let at_once = COLUMNS / layout.numbers;
    // SAFETY: as this function's; all that is counted here stays within rows, blocks and panels.
    unsafe {
        configure(layout);
        for group in panels.clone().step_by(PANELS) {
            let group = group..panels.end.min(group + PANELS);
            for first in (0..x.rows).step_by(ROWS) {
                let rows = ROWS.min(x.rows - first);
                let room = rows.next_multiple_of(TILE_ROWS);
                s.sums.clear();
                s.sums.resize(group.len() * room, [0.0; WIDE]);
                for from in (0..w.blocks()).step_by(at_once) {
                    let blocks = from..w.blocks().min(from + at_once);
                    for (i, panel) in group.clone().enumerate() {
                        unpack::<KIND>(Avx512::here(), w.panel(panel, blocks.start, blocks.end), s);
                        let TileScratch { quants, scales, steps, least, sums } = &mut *s;
                        let w = Unpacked { quants, scales, steps, least };
                        multiply::<KIND>(x, first, blocks.clone(), w, &mut sums[i * room..][..room]);
                    }
                }
                for (panel, sums) in group.clone().zip(s.sums.chunks_exact(room)) {
                    put(w, panel, first, &sums[..rows], out);
                }
            }
        }
        asm!("tilerelease", options(nostack));
    }
}

/// Sets the tiles' sizes: 16 rows of 64 bytes; of blocks of 32, tile 4 has 16 rows of 32 bytes and tile 6 has 8 rows.
///
/// # Safety
/// Tiles are there and permitted.
unsafe fn configure(layout: Layout) {
    let mut config = Line([0; 64]);
    config.0[0] = 1;
    for tile in 0..8 {
        (config.0[16 + 2 * tile], config.0[48 + tile]) = (TILE_BYTES as u8, TILE_ROWS as u8);
    }
    if !layout.is_large() {
        (config.0[16 + 2 * 4], config.0[48 + 6]) = (32, 8);
    }
    // SAFETY: the configuration is 64 bytes; who calls this releases the tiles.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, readonly)) }
}

/// A panel's unpacked blocks.
#[derive(Clone, Copy)]
struct Unpacked<'a> {
    quants: &'a [Line],
    scales: &'a [Wide],
    steps: &'a [Wide],
    least: &'a [Line],
}

/// Lines of a digit of a block.
const fn lines(layout: Layout) -> usize {
    layout.numbers / 4
}

/// # Safety
/// `bytes` are whole blocks of kind number `KIND`.
#[inline(always)]
unsafe fn unpack<const KIND: usize>(by: Avx512, bytes: &[u8], s: &mut TileScratch) {
    let layout = const { Layout::of(QuantType::ALL[KIND]) };
    let blocks = bytes.len() / layout.block();
    let digits = if layout.is_large() { 2 } else { 1 };
    s.quants.resize(blocks * digits * lines(layout), Line([0; TILE_BYTES]));
    s.scales.resize(blocks, [0.0; WIDE]);
    if layout.least {
        s.steps.resize(blocks, [0.0; WIDE]);
        s.least.resize(blocks * layout.parts() / 2, Line([0; TILE_BYTES]));
    }
    let quants = s.quants.chunks_exact_mut(digits * lines(layout));
    for (b, (block, quants)) in bytes.chunks_exact(layout.block()).zip(quants).enumerate() {
        // SAFETY: the header's numbers, and what the functions called read and write of a block.
        unsafe {
            by.store(s.scales[b].as_mut_ptr(), by.load_f16(block.as_ptr()));
            if layout.least {
                by.store(s.steps[b].as_mut_ptr(), by.load_f16(block.as_ptr().add(HALVES)));
            }
            if !layout.is_large() {
                unpack_small(layout, block, quants);
                continue;
            }
            unpack_large(layout, block, quants);
            if layout.least {
                let pairs = layout.parts() / 2;
                for (pair, line) in s.least[b * pairs..][..pairs].iter_mut().enumerate() {
                    store(line, words(block.as_ptr().add(layout.part_least() + HALVES * pair)));
                }
            }
        }
    }
}

/// # Safety
/// The processor has AVX-512.
#[inline(always)]
unsafe fn store(line: &mut Line, bytes: __m512i) {
    // SAFETY: a line is as long as a register.
    unsafe { _mm512_store_si512((&raw mut *line).cast(), bytes) }
}

/// Quants with their signs.
///
/// # Safety
/// The processor has AVX-512; `block` is one of 32, and `out` has as many lines as it.
#[inline(always)]
unsafe fn unpack_small(layout: Layout, block: &[u8], out: &mut [Line]) {
    // SAFETY: fours of columns of the block.
    unsafe {
        let shift = _mm512_set1_epi8(layout.shift as i8);
        for (four, line) in out.iter_mut().enumerate() {
            let q = four_columns(layout, block.as_ptr().add(layout.header()), four);
            store(line, _mm512_sub_epi8(q, shift));
        }
    }
}

/// Quants times their part's scale, as a digit without sign and one with.
///
/// # Safety
/// The processor has AVX-512 (BW); `block` is one of 256, and `out` has twice as many lines as it.
#[inline(always)]
unsafe fn unpack_large(layout: Layout, block: &[u8], out: &mut [Line]) {
    let fours = layout.part / 4;
    let (low, high) = out.split_at_mut(lines(layout));
    // SAFETY: parts of the block and fours of their columns.
    unsafe {
        let quants = block.as_ptr().add(layout.header());
        let (first, shift) = (_mm512_set1_epi16(0xff), _mm512_set1_epi16(i16::from(layout.shift)));
        for part in 0..layout.parts() {
            let scale = block.as_ptr().add(layout.part_scales() + part * WIDE);
            let scale = _mm512_cvtepi8_epi32(_mm_loadu_si128(scale.cast()));
            let scale = _mm512_mask_blend_epi16(0xaaaa_aaaa, scale, _mm512_slli_epi32::<16>(scale));
            for four in part * fours..(part + 1) * fours {
                let q = four_columns(layout, quants, four);
                // Columns 0 and 2 of each output, and 1 and 3.
                let even = _mm512_sub_epi16(_mm512_and_si512(q, first), shift);
                let odd = _mm512_sub_epi16(_mm512_srli_epi16::<8>(q), shift);
                let (even, odd) = (_mm512_mullo_epi16(even, scale), _mm512_mullo_epi16(odd, scale));
                store(&mut low[four], digits(first, even, _mm512_slli_epi16::<8>(odd)));
                store(&mut high[four], digits(first, _mm512_srli_epi16::<8>(even), odd));
            }
        }
    }
}

/// Where `lower` has ones the bytes of `a`, elsewhere those of `b`.
#[inline]
#[target_feature(enable = "avx512f")]
fn digits(lower: __m512i, a: __m512i, b: __m512i) -> __m512i {
    _mm512_ternarylogic_epi32::<0xca>(lower, a, b)
}

/// Goes on with the sums of rows from `first` on, as many as `sums`, whole tiles of them.
///
/// # Safety
/// As for [`all`]; the rows and blocks exist, and `w` has them unpacked.
#[inline(always)]
unsafe fn multiply<const KIND: usize>(
    x: &Rounded,
    first: usize,
    blocks: Range<usize>,
    w: Unpacked<'_>,
    sums: &mut [Wide],
) {
    let layout = const { Layout::of(QuantType::ALL[KIND]) };
    let rows = |at: usize| TileRows { x, first: first + at, from: blocks.start };
    // SAFETY: tiles stay within the rows of `sums`, of which there are whole tiles.
    unsafe {
        if !layout.is_large() {
            for (t, sums) in sums.as_chunks_mut::<TILE_ROWS>().0.iter_mut().enumerate() {
                small::<KIND>(rows(t * TILE_ROWS), w, sums);
            }
            return;
        }
        let mut pairs = sums.chunks_exact_mut(2 * TILE_ROWS);
        let mut at = 0;
        for sums in &mut pairs {
            large::<KIND, 2>(rows(at), w, sums);
            at += 2 * TILE_ROWS;
        }
        let last = pairs.into_remainder();
        if !last.is_empty() {
            large::<KIND, 1>(rows(at), w, last);
        }
    }
}

/// Rows of a tile or two, from a block on.
#[derive(Clone, Copy)]
struct TileRows<'a> {
    x: &'a Rounded,
    first: usize,
    from: usize,
}

impl TileRows<'_> {
    /// Number of a block among all rows'.
    #[inline(always)]
    fn block(self, layout: Layout, row: usize, b: usize) -> usize {
        (self.first + row) * (self.x.cols / layout.numbers) + self.from + b
    }
}

/// A tile of rows by a panel, in blocks of 32.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn small<const KIND: usize>(rows: TileRows<'_>, w: Unpacked<'_>, sums: &mut [Wide; TILE_ROWS]) {
    let layout = const { Layout::of(QuantType::ALL[KIND]) };
    let mut products: [OutputTile; 2] = [[[0; WIDE]; TILE_ROWS]; 2];
    // SAFETY: a tile reads 32 bytes of sixteen rows, which have a block `b`, and 8 lines; it writes sixteen rows. Scales
    // and sums are those of the rows' block.
    unsafe {
        let mut acc: [__m512; TILE_ROWS] = array_of!(TILE_ROWS; |i| _mm512_loadu_ps(sums[i].as_ptr()));
        for (b, scales) in w.scales.iter().enumerate() {
            let block = rows.block(layout, 0, b);
            // Two in turns, so that one may be filled while the other is read.
            let products = &mut products[b % 2];
            asm!(
                "tilezero tmm0",
                "tileloadd tmm4, [{x} + {cols}*1]",
                "tileloadd tmm6, [{w} + {line}*1]",
                "tdpbssd tmm0, tmm4, tmm6",
                "tilestored [{out} + {line}*1], tmm0",
                x = in(reg) rows.x.bytes.as_ptr().add(block * layout.numbers),
                cols = in(reg) rows.x.cols,
                w = in(reg) w.quants.as_ptr().add(b * lines(layout)),
                line = in(reg) TILE_BYTES,
                out = in(reg) products.as_mut_ptr(),
                out("tmm0") _, out("tmm4") _, out("tmm6") _,
                options(nostack),
            );
            let scales = _mm512_loadu_ps(scales.as_ptr());
            let per_row = rows.x.cols / layout.numbers;
            for (i, acc) in acc.iter_mut().enumerate() {
                let sum = _mm512_cvtepi32_ps(_mm512_loadu_si512(products[i].as_ptr().cast()));
                let scale = _mm512_set1_ps(*rows.x.scales.as_ptr().add(block + i * per_row));
                *acc = _mm512_fmadd_ps(sum, _mm512_mul_ps(scales, scale), *acc);
                if layout.least {
                    let steps = _mm512_loadu_ps(w.steps[b].as_ptr());
                    let of = f32::from(*rows.x.sums.as_ptr().add(block + i * per_row));
                    *acc = _mm512_fmadd_ps(_mm512_set1_ps(of), _mm512_mul_ps(steps, scale), *acc);
                }
            }
        }
        for (sums, acc) in sums.iter_mut().zip(acc) {
            _mm512_storeu_ps(sums.as_mut_ptr(), acc);
        }
    }
}

/// `T` tiles of rows, one or two, by a panel, in blocks of 256.
///
/// # Safety
/// As for [`multiply`]; `sums` has `T` tiles of rows.
#[inline(always)]
unsafe fn large<const KIND: usize, const T: usize>(rows: TileRows<'_>, w: Unpacked<'_>, sums: &mut [Wide]) {
    let layout = const { Layout::of(QuantType::ALL[KIND]) };
    let pairs = layout.parts() / 2;
    let mut products: [[OutputTile; 2]; T] = [[[[0; WIDE]; TILE_ROWS]; 2]; T];
    // SAFETY: tiles read 256 bytes of `T` times sixteen rows, which have a block `b`, and both digits of the panel's; they
    // write as many rows. Scales and sums are those of the rows' block.
    unsafe {
        for (b, scales) in w.scales.iter().enumerate() {
            let quants = w.quants.as_ptr().add(b * 2 * lines(layout));
            let x = rows.x.bytes.as_ptr().add(rows.block(layout, 0, b) * layout.numbers);
            if T == 2 {
                two_tiles(x, rows.x.cols, quants, products.as_mut_ptr().cast());
            } else {
                one_tile(x, rows.x.cols, quants, products.as_mut_ptr().cast());
            }
            let scales = _mm512_loadu_ps(scales.as_ptr());
            let mut least = [_mm512_setzero_si512(); 8];
            if layout.least {
                for (pair, least) in least.iter_mut().enumerate().take(pairs) {
                    *least = _mm512_load_si512(w.least.as_ptr().add(b * pairs + pair).cast());
                }
            }
            let steps = if layout.least { _mm512_loadu_ps(w.steps[b].as_ptr()) } else { scales };
            for (i, sums) in sums.iter_mut().enumerate() {
                let block = rows.block(layout, i, b);
                let [low, high] = array_of!(2; |digit| {
                    _mm512_loadu_si512(products[i / TILE_ROWS][digit][i % TILE_ROWS].as_ptr().cast())
                });
                let sum = _mm512_cvtepi32_ps(_mm512_add_epi32(low, _mm512_slli_epi32::<8>(high)));
                let scale = _mm512_set1_ps(*rows.x.scales.as_ptr().add(block));
                let mut acc = _mm512_loadu_ps(sums.as_ptr());
                acc = _mm512_fmadd_ps(sum, _mm512_mul_ps(scales, scale), acc);
                if layout.least {
                    let of = rows.x.sums.as_ptr().add(block * layout.parts());
                    let mut below = _mm512_setzero_si512();
                    for (pair, least) in least.iter().enumerate().take(pairs) {
                        below = _mm512_dpwssd_epi32(below, *least, everywhere(of.add(2 * pair)));
                    }
                    acc = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(below), _mm512_mul_ps(steps, scale), acc);
                }
                _mm512_storeu_ps(sums.as_mut_ptr(), acc);
            }
        }
    }
}

/// Sums of 256 columns of sixteen rows, for both digits.
///
/// # Safety
/// Tiles are configured for large blocks; 256 bytes of sixteen rows that are `cols` apart at `x`, 128 lines at `w`, room
/// for two tiles at `out`.
#[inline(always)]
unsafe fn one_tile(x: *const i8, cols: usize, w: *const Line, out: *mut i32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "2:",
            "tileloadd tmm4, [{x} + {cols}*1]",
            "tileloadd tmm6, [{low} + {line}*1]",
            "tileloadd tmm7, [{high} + {line}*1]",
            "tdpbsud tmm0, tmm4, tmm6",
            "tdpbssd tmm1, tmm4, tmm7",
            "add {x}, 64",
            "add {low}, 1024",
            "add {high}, 1024",
            "dec {count:e}",
            "jnz 2b",
            "tilestored [{out} + {line}*1], tmm0",
            "tilestored [{out} + {line}*1 + 1024], tmm1",
            x = inout(reg) x => _,
            cols = in(reg) cols,
            low = inout(reg) w => _,
            high = inout(reg) w.add(64) => _,
            line = in(reg) TILE_BYTES,
            count = inout(reg) 4 => _,
            out = in(reg) out,
            out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// The same for 32 rows, four tiles.
///
/// # Safety
/// As for [`one_tile`], of 32 rows and four tiles.
#[inline(always)]
unsafe fn two_tiles(x: *const i8, cols: usize, w: *const Line, out: *mut i32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{x} + {cols}*1]",
            "tileloadd tmm6, [{low} + {line}*1]",
            "tdpbsud tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{high} + {line}*1]",
            "tdpbssd tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{below} + {cols}*1]",
            "tdpbsud tmm2, tmm5, tmm6",
            "tdpbssd tmm3, tmm5, tmm7",
            "add {x}, 64",
            "add {below}, 64",
            "add {low}, 1024",
            "add {high}, 1024",
            "dec {count:e}",
            "jnz 2b",
            "tilestored [{out} + {line}*1], tmm0",
            "tilestored [{out} + {line}*1 + 1024], tmm1",
            "tilestored [{out} + {line}*1 + 2048], tmm2",
            "tilestored [{out} + {line}*1 + 3072], tmm3",
            x = inout(reg) x => _,
            below = inout(reg) x.add(TILE_ROWS * cols) => _,
            cols = in(reg) cols,
            low = inout(reg) w => _,
            high = inout(reg) w.add(64) => _,
            line = in(reg) TILE_BYTES,
            count = inout(reg) 4 => _,
            out = in(reg) out,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}
