//! Eight or sixteen lanes of a register, whatever the processor: what fast versions that several processors share are written
//! in, with no `unsafe` of their own.
//!
//! A value of an instruction set ([`Isa`]) says that the processor has it, so its methods are safe to call. Each is inlined into
//! what calls it, and so must all be that lies between: an entry ([`entries`]) is compiled with the set's instructions, and
//! what is not inlined into one would call a function for every instruction. Loads and stores are of whole arrays, which says
//! how much memory they touch.
#![expect(unsafe_code, reason = "vector instructions; each block says why it is sound")]

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
#[cfg(target_arch = "x86_64")]
pub(super) mod pack;

mod sealed {
    /// No other module has instruction sets or kinds of numbers.
    pub trait Sealed {}
}
use sealed::Sealed;

/// An instruction set that the processor has, with `W` single-precision numbers to a register (or to two that are used as one).
pub(super) trait Isa<const W: usize>: Copy + Sealed {
    /// `W` single-precision numbers.
    type Floats: Copy;
    /// Eight chains of sums.
    type Sums: Copy;

    /// The same number in every lane.
    fn splat(self, x: f32) -> Self::Floats;
    /// Numbers of memory.
    fn load(self, at: &[f32; W]) -> Self::Floats;
    /// Numbers of memory, of any alignment.
    fn load_bytes(self, at: &[[u8; 4]; W]) -> Self::Floats;
    /// Numbers of half precision, widened.
    fn load_f16(self, at: &[[u8; 2]; W]) -> Self::Floats;
    /// bfloat16 numbers, widened: each is the upper half of the single-precision number.
    fn load_bf16(self, at: &[[u8; 2]; W]) -> Self::Floats;
    /// Writes numbers to memory.
    fn store(self, x: Self::Floats, at: &mut [f32; W]);
    /// `x + y`.
    fn add(self, x: Self::Floats, y: Self::Floats) -> Self::Floats;
    /// `x - y`.
    fn sub(self, x: Self::Floats, y: Self::Floats) -> Self::Floats;
    /// `x · y`.
    fn mul(self, x: Self::Floats, y: Self::Floats) -> Self::Floats;
    /// `x / y`.
    fn div(self, x: Self::Floats, y: Self::Floats) -> Self::Floats;
    /// `-x`: the sign turned, whatever the number.
    fn neg(self, x: Self::Floats) -> Self::Floats;
    /// `x · y + z`, rounded once.
    fn mul_add(self, x: Self::Floats, y: Self::Floats, z: Self::Floats) -> Self::Floats;
    /// `x` where it is more than `y`, and `y` elsewhere: an `x` that is not a number leaves `y` as it is.
    fn larger(self, x: Self::Floats, y: Self::Floats) -> Self::Floats;
    /// Numbers held between two others; what is not a number stays.
    fn clamp(self, x: Self::Floats, least: f32, most: f32) -> Self::Floats;
    /// Rounded down to whole numbers.
    fn floor(self, x: Self::Floats) -> Self::Floats;
    /// 2 to the power of whole numbers from -126 to 127.
    fn power_of_two(self, n: Self::Floats) -> Self::Floats;
    /// `y`, and zero where `x` is less than `limit`.
    fn zero_below(self, limit: f32, x: Self::Floats, y: Self::Floats) -> Self::Floats;
    /// The largest lane, of lanes that are all numbers.
    fn largest(self, x: Self::Floats) -> f32;
    /// Sums of nothing.
    fn no_sums(self) -> Self::Sums;
    /// Adds eight lanes to the sums, and then, of sixteen, the other eight.
    fn add_to(self, sums: Self::Sums, x: Self::Floats) -> Self::Sums;
    /// The sums.
    fn sums(self, sums: Self::Sums) -> [f32; 8];
    /// Asks memory for what lies at an address, if asking helps: it reads nothing.
    #[inline(always)]
    fn ask(self, _at: *const u8) {}
}

/// An instruction set whose registers hold the eight lanes of a dot product.
pub(super) trait Eight: Isa<8> {
    /// The second and the first ones of sixteen bfloat16 numbers, widened.
    fn load_apart(self, at: &[[u8; 2]; 16]) -> [Self::Floats; 2];
    /// Four sums of lanes, by the tree of [`super::plain::reduce`].
    fn reduce_four(self, lanes: [Self::Floats; 4]) -> [f32; 4];
}

/// How stored numbers become lanes.
pub(super) trait Stored: Copy + Sealed {
    /// A number as it lies in memory.
    type Bytes: Copy;
    /// Numbers of some bytes.
    fn numbers(bytes: &[u8]) -> &[Self::Bytes];
    /// Numbers as lanes.
    fn load<I: Isa<W>, const W: usize>(isa: I, at: &[Self::Bytes; W]) -> I::Floats;
}

/// Single precision.
#[derive(Clone, Copy)]
pub(super) struct F32;
/// Half precision.
#[derive(Clone, Copy)]
pub(super) struct F16;
/// bfloat16.
#[derive(Clone, Copy)]
pub(super) struct Bf16;

impl Sealed for F32 {}
impl Sealed for F16 {}
impl Sealed for Bf16 {}

impl Stored for F32 {
    type Bytes = [u8; 4];
    #[inline(always)]
    fn numbers(bytes: &[u8]) -> &[[u8; 4]] {
        bytes.as_chunks().0
    }
    #[inline(always)]
    fn load<I: Isa<W>, const W: usize>(isa: I, at: &[[u8; 4]; W]) -> I::Floats {
        isa.load_bytes(at)
    }
}

impl Stored for F16 {
    type Bytes = [u8; 2];
    #[inline(always)]
    fn numbers(bytes: &[u8]) -> &[[u8; 2]] {
        bytes.as_chunks().0
    }
    #[inline(always)]
    fn load<I: Isa<W>, const W: usize>(isa: I, at: &[[u8; 2]; W]) -> I::Floats {
        isa.load_f16(at)
    }
}

impl Stored for Bf16 {
    type Bytes = [u8; 2];
    #[inline(always)]
    fn numbers(bytes: &[u8]) -> &[[u8; 2]] {
        bytes.as_chunks().0
    }
    #[inline(always)]
    fn load<I: Isa<W>, const W: usize>(isa: I, at: &[[u8; 2]; W]) -> I::Floats {
        isa.load_bf16(at)
    }
}

/// What `of` makes of 0 to `N - 1`, at least one. Of registers, where [`std::array::from_fn`] and other iterators would now and then
/// be a call.
#[inline(always)]
pub(super) fn each<T: Copy, const N: usize>(of: impl Fn(usize) -> T) -> [T; N] {
    let (mut all, mut i) = ([of(0); N], 1);
    while i < N {
        all[i] = of(i);
        i += 1;
    }
    all
}

/// `N` items from `from` on.
///
/// # Panics
/// When there are fewer.
#[inline(always)]
pub(super) fn some<T, const N: usize>(all: &[T], from: usize) -> &[T; N] {
    all[from..].first_chunk().expect("as many items as are read at once")
}

/// The same, to be written.
///
/// # Panics
/// When there are fewer.
#[inline(always)]
pub(super) fn some_mut<T, const N: usize>(all: &mut [T], from: usize) -> &mut [T; N] {
    all[from..].first_chunk_mut().expect("as many items as are written at once")
}

/// Makes functions that are compiled with an instruction set's features of generic ones that take the set as their first
/// argument and are always inlined.
#[cfg(target_arch = "x86_64")]
macro_rules! entries {
    ($isa:ident, $features:literal,
        $($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $kind:ty),*) $(-> $ret:ty)? = $what:expr;)*) => {$(
        $(#[$doc])*
        $vis fn $name($($arg: $kind),*) $(-> $ret)? {
            #[target_feature(enable = $features)]
            fn compiled(isa: $isa, $($arg: $kind),*) $(-> $ret)? {
                $what(isa, $($arg),*)
            }
            // SAFETY: `Simd::detect` chose this only where the processor has the features.
            unsafe { compiled($isa::had(), $($arg),*) }
        }
    )*};
}
#[cfg(target_arch = "x86_64")]
pub(super) use entries;

/// Makes functions of the definitions of the same name: plain Rust, compiled with an instruction set's features.
#[cfg(target_arch = "x86_64")]
macro_rules! compiled {
    ($features:literal, $($vis:vis fn $name:ident($($arg:ident: $kind:ty),*) $(-> $ret:ty)?;)*) => {$(
        $vis fn $name($($arg: $kind),*) $(-> $ret)? {
            #[target_feature(enable = $features)]
            fn compiled($($arg: $kind),*) $(-> $ret)? {
                $crate::cpu::plain::$name($($arg),*)
            }
            // SAFETY: `Simd::detect` chose this only where the processor has the features.
            unsafe { compiled($($arg),*) }
        }
    )*};
}
#[cfg(target_arch = "x86_64")]
pub(super) use compiled;

/// Methods of an instruction set, each compiled with its features: the compiler sees that they ask for no others, and touch no
/// memory but what is borrowed.
macro_rules! instructions {
    ($features:literal,
        $($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $kind:ty),*) $(-> $ret:ty)? $body:block)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        $vis fn $name(self, $($arg: $kind),*) $(-> $ret)? {
            #[inline]
            #[target_feature(enable = $features)]
            fn compiled($($arg: $kind),*) $(-> $ret)? $body
            // SAFETY: there is a `self` only where the processor has the features.
            unsafe { compiled($($arg),*) }
        }
    )*};
}
pub(super) use instructions;
