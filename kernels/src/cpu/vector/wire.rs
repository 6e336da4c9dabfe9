//! KV packed for links, 32 channels at a time: the bytes and the bits that `wire/plain.rs` and `wire/key_rotation.rs` define.
//!
//! | file | what it holds |
//! |---|---|
//! | `ranges.rs` | least and largest numbers of groups |
//! | `encode.rs` | codes of rows |
//! | `decode.rs` | rows of codes |
//! | `keys.rs` | the same of keys that turn, and ranges in one go |
//!
//! What a block holds that is no whole 32 channels wide, or has no partner, goes the plain way.

mod decode;
mod encode;
mod keys;
mod ranges;

pub(in super::super) use decode::decode;
pub(in super::super) use encode::encode;
pub(in super::super) use keys::{pack_keys, unpack_keys};
pub(in super::super) use ranges::low_high;

use super::{Bf16, F16, F32, StoredNumber, Vector};
use crate::{
    pages::Side,
    wire::{BlockRows, BlockShape, GROUP, Groups},
};
use std::arch::x86_64::*;

/// Channels worked on at once: a group of values.
pub(in super::super) const WIDE: usize = GROUP;

/// What packing and turning do with a register of numbers.
pub(in super::super) trait Narrow: Vector {
    /// The smaller of two numbers, lane by lane; the second where one is none.
    fn smaller(self, x: Self::Numbers, than: Self::Numbers) -> Self::Numbers;

    /// The larger of two numbers, lane by lane; the second where one is none.
    fn larger(self, x: Self::Numbers, than: Self::Numbers) -> Self::Numbers;

    /// `x · w`.
    fn product(self, x: Self::Numbers, w: Self::Numbers) -> Self::Numbers;

    /// `x · w - less`, each lane rounded once.
    fn multiply_subtract(self, x: Self::Numbers, w: Self::Numbers, less: Self::Numbers) -> Self::Numbers;

    /// The even and the odd ones of two registers' numbers.
    fn apart(self, both: [Self::Numbers; 2]) -> [Self::Numbers; 2];

    /// Undoes [`Self::apart`].
    fn together(self, both: [Self::Numbers; 2]) -> [Self::Numbers; 2];

    /// Writes numbers in half precision; what is too large for it becomes its largest number.
    ///
    /// # Safety
    /// `at` points to [`Vector::COUNT`] writable numbers; they need no alignment.
    unsafe fn store_f16(self, at: *mut u8, x: Self::Numbers);

    /// Writes numbers as bfloat16, each the nearest, the even one of two. All are numbers.
    ///
    /// # Safety
    /// As for [`Self::store_f16`].
    unsafe fn store_bf16(self, at: *mut u8, x: Self::Numbers);
}

/// What packing does with 32 channels, which fill `N` registers. Processors that have this have AVX2 and F16C.
pub(in super::super) trait Packs<const N: usize>: Narrow {
    /// A register of whole numbers.
    type Whole: Copy;

    /// Zeros.
    fn none(self) -> Self::Whole;

    /// The least of all lanes of `least`, and the largest of all of `most`.
    fn range(self, least: Self::Numbers, most: Self::Numbers) -> (f32, f32);

    /// `x · inverse - zero`, rounded.
    fn code(self, x: Self::Numbers, inverse: Self::Numbers, zero: Self::Numbers) -> Self::Whole;

    /// Codes of two rows held within 0 to 15, the first one's in the lower halves of bytes.
    fn halves(self, first: [Self::Whole; N], second: [Self::Whole; N]) -> __m256i;

    /// Codes held within -127 to 127, as signed bytes.
    fn put_bytes(self, codes: [Self::Whole; N], out: &mut [u8; WIDE]);

    /// 32 signed bytes as numbers.
    fn numbers(self, codes: __m256i) -> [Self::Numbers; N];

    /// The codes in the lower halves of 32 bytes as numbers, or those in the upper ones.
    fn half_codes<const UPPER: bool>(self, both: __m256i) -> [Self::Numbers; N];

    /// 32 codes of four bits of one group as stored numbers.
    ///
    /// # Safety
    /// `at` points to 32 writable numbers.
    unsafe fn put_group<S: StoreNumbers>(self, codes: __m256i, step: f32, shift: f32, at: *mut u8);
}

/// How lanes become stored numbers.
pub(in super::super) trait StoreNumbers: StoredNumber {
    /// # Safety
    /// `at` points to [`Vector::COUNT`] writable numbers; they need no alignment.
    unsafe fn store<V: Narrow>(by: V, at: *mut u8, x: V::Numbers);
}

macro_rules! store_numbers {
    ($($dtype:ident by $store:ident;)*) => {$(
        impl StoreNumbers for $dtype {
            #[inline(always)]
            unsafe fn store<V: Narrow>(by: V, at: *mut u8, x: V::Numbers) {
                // SAFETY: the caller's promise.
                unsafe { by.$store(at.cast(), x) }
            }
        }
    )*};
}

store_numbers! {
    F32 by store;
    F16 by store_f16;
    Bf16 by store_bf16;
}

/// Whether rows are whole groups of 32 channels; they hold `form.dim` numbers of `S` each.
fn fits<S: StoredNumber>(form: BlockShape, rows: BlockRows<'_>) -> bool {
    assert!(rows.are_of(form, S::BYTES), "rows of another form");
    form.dim.is_multiple_of(WIDE)
}

/// Whether ranges are finite.
#[inline(always)]
fn are_finite(low: &[f32], high: &[f32]) -> bool {
    // The exponent of what is infinite is all ones.
    let beyond = |x: &f32| u32::from(x.to_bits() & 0x7f80_0000 == 0x7f80_0000);
    low.iter().chain(high).fold(0, |bad, x| bad | beyond(x)) == 0
}

/// Asks memory for 32 channels from `c` on of a row that is worked on next. The processor's own guesses end where a page of 4 KiB
/// does, which is a block's rows or a part of them. Into the second-level cache: the first holds little more than a block.
#[inline(always)]
fn ask_for_next<S: StoredNumber>(rows: BlockRows<'_>, t: usize, c: usize) {
    if let Some(row) = rows.next(t) {
        for line in (0..WIDE * S::BYTES).step_by(64) {
            // SAFETY: asking reads nothing; every x86-64 processor can.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(row.as_ptr().wrapping_add(c * S::BYTES + line).cast()) };
        }
    }
}

/// What 32 channels of a row are encoded or decoded with: factors and offsets.
type ChannelPairs<V, const N: usize> = [[<V as Vector>::Numbers; 2]; N];

/// Those of a block, one of each for every channel of keys, or for every group of a token's values.
#[derive(Clone, Copy)]
struct BlockScales<'a> {
    side: Side,
    /// Groups of a token's values.
    each: usize,
    factor: &'a [f32],
    offset: &'a [f32],
}

impl<'a> BlockScales<'a> {
    /// Of a block of whole groups.
    fn new(form: BlockShape, groups: &'a Groups) -> Self {
        let Groups { factor, offset, .. } = groups;
        assert!(factor.len() == form.groups() && offset.len() == factor.len(), "groups of another form");
        Self { side: form.side, each: form.dim / WIDE, factor, offset }
    }

    /// Of 32 channels of a row from `c` on.
    ///
    /// # Safety
    /// The block has such a row, and as many channels.
    #[inline(always)]
    unsafe fn of<V: Packs<N>, const N: usize>(self, by: V, row: usize, c: usize) -> ChannelPairs<V, N> {
        // SAFETY: the caller's promise.
        unsafe {
            if self.side == Side::Values {
                let [factor, offset] = self.of_group(row, c);
                return [[by.all(factor), by.all(offset)]; N];
            }
            let mut wide = [[by.all(0.0); 2]; N];
            for (i, pair) in wide.iter_mut().enumerate() {
                let at = c + V::COUNT * i;
                *pair = [by.load(self.factor.as_ptr().add(at)), by.load(self.offset.as_ptr().add(at))];
            }
            wide
        }
    }

    /// That of a row's values which the 32 from `c` on share.
    ///
    /// # Safety
    /// As for [`Self::of`], of a block of values.
    #[inline(always)]
    unsafe fn of_group(self, row: usize, c: usize) -> [f32; 2] {
        let at = row * self.each + c / WIDE;
        // SAFETY: there is one of each for each group of a row's values.
        unsafe { [*self.factor.get_unchecked(at), *self.offset.get_unchecked(at)] }
    }
}
