//! What packing KV for links takes beyond arithmetic: 32 channels at a time, in registers of `W` lanes.

use super::{Bf16, F16, F32, Isa, Stored};

/// Channels that are packed together.
pub(in super::super) const TOGETHER: usize = 32;

/// An instruction set that packs 32 channels in `N` registers of `W`.
pub(in super::super) trait Pack<const W: usize, const N: usize>: Isa<W> {
    /// `W` whole numbers of 32 bits.
    type Ints: Copy;
    /// 32 bytes.
    type Codes: Copy;

    /// `x` where it is less than `y`, and `y` elsewhere: an `x` that is not a number leaves `y` as it is.
    fn smaller(self, x: Self::Floats, y: Self::Floats) -> Self::Floats;
    /// The least of some lanes and the largest of others, of lanes that are all numbers.
    fn least_and_largest(self, low: Self::Floats, high: Self::Floats) -> (f32, f32);
    /// `x · y - z`, rounded once and then to the nearest whole number, the even one of two; the least where 32 bits have none.
    fn nearest(self, x: Self::Floats, y: Self::Floats, z: Self::Floats) -> Self::Ints;
    /// Codes of 0 to 15 of two rows, the first one's in the lower halves of bytes.
    fn in_halves(self, first: [Self::Ints; N], second: [Self::Ints; N]) -> Self::Codes;
    /// Codes of -127 to 127 as bytes.
    fn in_bytes(self, codes: [Self::Ints; N]) -> Self::Codes;
    /// Bytes of memory.
    fn load_codes(self, at: &[u8; TOGETHER]) -> Self::Codes;
    /// Writes bytes to memory.
    fn store_codes(self, codes: Self::Codes, at: &mut [u8; TOGETHER]);
    /// The lower halves of bytes.
    fn lower(self, codes: Self::Codes) -> Self::Codes;
    /// The upper halves of bytes.
    fn upper(self, codes: Self::Codes) -> Self::Codes;
    /// Bytes with signs as numbers.
    fn numbers(self, codes: Self::Codes) -> [Self::Floats; N];
    /// Writes numbers to memory, of any alignment.
    fn store_bytes(self, x: Self::Floats, at: &mut [[u8; 4]; W]);
    /// Writes numbers in half precision, those too large as the largest.
    fn store_f16(self, x: Self::Floats, at: &mut [[u8; 2]; W]);
    /// Writes finite numbers as bfloat16, rounded to the nearest, the even one of two.
    fn store_bf16(self, x: Self::Floats, at: &mut [[u8; 2]; W]);

    /// Writes what codes of 0 to 15 stand for that share a step and a shift.
    #[inline(always)]
    fn store_group<S: Store>(self, codes: Self::Codes, step: f32, shift: f32, at: &mut [S::Bytes; TOGETHER]) {
        let (step, shift) = (self.splat(step), self.splat(shift));
        for (code, at) in self.numbers(codes).into_iter().zip(at.as_chunks_mut::<W>().0) {
            S::store(self, self.mul_add(code, step, shift), at);
        }
    }
}

/// How lanes become stored numbers.
pub(in super::super) trait Store: Stored<Bytes: bytemuck::Pod> {
    /// Numbers of some bytes, to be written.
    fn numbers_mut(bytes: &mut [u8]) -> &mut [Self::Bytes];
    /// Writes lanes.
    fn store<I: Pack<W, N>, const W: usize, const N: usize>(isa: I, x: I::Floats, at: &mut [Self::Bytes; W]);
}

impl Store for F32 {
    #[inline(always)]
    fn numbers_mut(bytes: &mut [u8]) -> &mut [[u8; 4]] {
        bytes.as_chunks_mut().0
    }
    #[inline(always)]
    fn store<I: Pack<W, N>, const W: usize, const N: usize>(isa: I, x: I::Floats, at: &mut [[u8; 4]; W]) {
        isa.store_bytes(x, at);
    }
}

impl Store for F16 {
    #[inline(always)]
    fn numbers_mut(bytes: &mut [u8]) -> &mut [[u8; 2]] {
        bytes.as_chunks_mut().0
    }
    #[inline(always)]
    fn store<I: Pack<W, N>, const W: usize, const N: usize>(isa: I, x: I::Floats, at: &mut [[u8; 2]; W]) {
        isa.store_f16(x, at);
    }
}

impl Store for Bf16 {
    #[inline(always)]
    fn numbers_mut(bytes: &mut [u8]) -> &mut [[u8; 2]] {
        bytes.as_chunks_mut().0
    }
    #[inline(always)]
    fn store<I: Pack<W, N>, const W: usize, const N: usize>(isa: I, x: I::Floats, at: &mut [[u8; 2]; W]) {
        isa.store_bf16(x, at);
    }
}
