//! Registers of lanes, for loops that are written once for all instruction sets.
//!
//! | file | what it holds |
//! |---|---|
//! | `dense.rs` | dense products |
//! | `packed.rs` | quantised products |
//! | `attend.rs` | attention's scores and mixtures |
//! | `wire.rs` | KV packed for links |
//!
//! A loop here is a generic function that is always inlined: it gets its instructions from the function that calls it, which is one
//! of an instruction set's folder and has them by `#[target_feature]`. There a token is made that says so: only who has these
//! instructions can make one, so whoever holds one may use them. Closures have no part in it: what a library's function calls is
//! not always inlined, and has none of these instructions then (`array_of!` is a loop). What an instruction set is to these loops it
//! says in `avx2/registers.rs`, `avx512/registers.rs` and `neon/eight.rs`.
#![allow(unsafe_code)] // Numbers are read and written where pointers say; each block says why it is sound.

pub(super) mod attend;
pub(super) mod dense;
pub(super) mod packed;
#[cfg(target_arch = "x86_64")]
pub(super) mod wire;

use super::Dtype;

/// A token of an instruction set, and what it does with a register. It is for this module's folder and those of instruction sets
/// alone, and whatever implements it reads and writes as many numbers as it says.
pub(super) trait Vector: Copy {
    /// Lanes of a register.
    const COUNT: usize;
    /// A register, or two of half the size.
    type Numbers: Copy;

    /// A number in all lanes.
    fn all(self, x: f32) -> Self::Numbers;

    /// `x · w + sum`, each lane rounded once.
    fn multiply_add(self, x: Self::Numbers, w: Self::Numbers, sum: Self::Numbers) -> Self::Numbers;

    /// # Safety
    /// `at` points to [`Self::COUNT`] readable numbers; they need no alignment.
    unsafe fn load(self, at: *const f32) -> Self::Numbers;

    /// Numbers of half precision, widened.
    ///
    /// # Safety
    /// As for [`Self::load`].
    unsafe fn load_f16(self, at: *const u8) -> Self::Numbers;

    /// bfloat16 numbers, widened.
    ///
    /// # Safety
    /// As for [`Self::load`].
    unsafe fn load_bf16(self, at: *const u8) -> Self::Numbers;

    /// # Safety
    /// `at` points to [`Self::COUNT`] writable numbers; they need no alignment.
    unsafe fn store(self, at: *mut f32, x: Self::Numbers);

    /// The numbers of an array, all of them.
    #[inline(always)]
    fn lanes<const N: usize>(self, at: &[f32; N]) -> Self::Numbers {
        const { assert!(N == Self::COUNT) }
        // SAFETY: as many numbers as a register has.
        unsafe { self.load(at.as_ptr()) }
    }

    /// Writes all numbers of an array.
    #[inline(always)]
    fn put_lanes<const N: usize>(self, at: &mut [f32; N], x: Self::Numbers) {
        const { assert!(N == Self::COUNT) }
        // SAFETY: as many numbers as a register has.
        unsafe { self.store(at.as_mut_ptr(), x) }
    }
}

/// Where a register holds the lanes of one dot product.
pub(super) trait EightLanes: Vector {
    /// Adds up the lanes of four dot products, by the tree of [`super::plain::reduce`].
    fn add_up(self, lanes: [Self::Numbers; 4], sums: &mut [f32; 4]);

    /// Asks memory for a line that will be read soon, where the processor's own guesses are not enough. There need not be any.
    fn ask_for(self, line: *const u8);

    /// Two bfloat16 numbers for each lane, widened: the second ones and the first ones.
    ///
    /// # Safety
    /// `at` points to sixteen readable numbers; they need no alignment.
    unsafe fn load_two(self, at: *const u8) -> [Self::Numbers; 2];
}

/// Defines methods of [`Vector`] and of traits above it whose bodies are instructions of the token's instruction set.
macro_rules! instructions {
    (
        $(fn $name:ident($this:ident $(, $arg:ident: $kind:ty)*) $(-> $out:ty)? { $($body:tt)* })*
        $(unsafe fn $promised:ident($of:ident $(, $at:ident: $at_kind:ty)*) $(-> $got:ty)? { $($with:tt)* })*
    ) => {
        $(
            #[inline(always)]
            fn $name($this $(, $arg: $kind)*) $(-> $out)? {
                // SAFETY: who has the token has these instructions; pointers are those of references to as many numbers.
                unsafe { $($body)* }
            }
        )*
        $(
            #[inline(always)]
            unsafe fn $promised($of $(, $at: $at_kind)*) $(-> $got)? {
                // SAFETY: who has the token has these instructions; what pointers point to is the caller's promise.
                unsafe { $($with)* }
            }
        )*
    };
}
pub(super) use instructions;

/// What `std::array::from_fn` makes, by a loop. What closures are called by has none of the instructions of whoever calls it, and where
/// the compiler does not inline all of it, each instruction in it is a function's call (sixteen times as slow, once).
macro_rules! array_of {
    ($count:expr; |$i:ident| $value:expr) => {{
        let mut all = {
            let $i = 0;
            [$value; $count]
        };
        for $i in 1..$count {
            all[$i] = $value;
        }
        all
    }};
}
pub(super) use array_of;

/// How numbers are stored.
pub(super) trait StoredNumber {
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "what packs for links on x86 alone asks"))]
    const DTYPE: Dtype;
    /// Of a number.
    const BYTES: usize;

    /// A register of them, widened.
    ///
    /// # Safety
    /// `at` points to [`Vector::COUNT`] readable numbers; they need no alignment.
    unsafe fn load<V: Vector>(by: V, at: *const u8) -> V::Numbers;
}

macro_rules! stored {
    ($($dtype:ident of $bytes:literal by $load:ident;)*) => {$(
        pub(super) struct $dtype;

        impl StoredNumber for $dtype {
            const DTYPE: Dtype = Dtype::$dtype;
            const BYTES: usize = $bytes;
            #[inline(always)]
            unsafe fn load<V: Vector>(by: V, at: *const u8) -> V::Numbers {
                // SAFETY: the caller's promise.
                unsafe { by.$load(at.cast()) }
            }
        }
    )*};
}

stored! {
    F32 of 4 by load;
    F16 of 2 by load_f16;
    Bf16 of 2 by load_bf16;
}
