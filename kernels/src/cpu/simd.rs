//! Which instructions the processor has, and the fast versions that use them.

#[cfg(target_arch = "x86_64")]
use super::avx2;
#[cfg(target_arch = "x86_64")]
use super::avx512;
#[cfg(target_arch = "aarch64")]
use super::neon;
use super::{
    Lanes, Matrix, Outputs,
    dense::Block,
    matrix::Dtype,
    packed::{Layout, Packed},
    plain,
    quantised::{ProductRange, Wide},
    rounded::{Filled, Rounded},
};
use crate::{
    rope::RopePairs,
    wire::{BlockRows, BlockShape, Groups, KeyRotation, KeyScratch},
};
use half::bf16;
use std::ops::Range;
use std::sync::OnceLock;

/// Rounded rows from which tiles are faster, also on their first use of weights.
#[cfg(target_arch = "x86_64")]
const TILES_FROM: usize = 9;

/// How one half of an MLP gates the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// `x / (1 + e^-x)`.
    Silu,
    /// GELU by its tanh form (Hendrycks and Gimpel 2016).
    Gelu,
}

/// The instructions to use, asked of the processor once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Simd {
    /// None beyond what every processor has: the definition.
    Plain,
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// The same with whole-number products of bytes (AVX-VNNI): consumers' processors that have no AVX-512.
    #[cfg(target_arch = "x86_64")]
    Avx2Dots,
    /// AVX-512 with its extensions for bytes and words, short vectors and whole-number products (VNNI).
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// The same, and products of two bfloat16 numbers each, where these are faster than multiply-adds.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
    /// AVX-512 with tiles of bytes (AMX). Such processors' products of bfloat16 are slower than their multiply-adds.
    #[cfg(target_arch = "x86_64")]
    Amx,
    /// NEON, which every aarch64 processor has.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// The same with its extension for whole-number products of bytes (`dotprod`).
    #[cfg(target_arch = "aarch64")]
    NeonDots,
}

/// Calls the definition or a fast version of it, which has its instructions by `#[target_feature]`.
macro_rules! by_simd {
    ($simd:expr, $what:ident($($arg:expr),*)) => {
        match $simd {
            Simd::Plain => plain::$what($($arg),*),
            #[cfg(target_arch = "x86_64")]
            #[expect(unsafe_code, reason = "the line below says why it is sound")]
            // SAFETY: this was chosen by `Simd::all`, only after `avx2::is_available`.
            Simd::Avx2 | Simd::Avx2Dots => unsafe { avx2::$what($($arg),*) },
            #[cfg(target_arch = "x86_64")]
            #[expect(unsafe_code, reason = "the line below says why it is sound")]
            // SAFETY: this was chosen by `Simd::all`, only after `avx512::is_available`, which asks for AVX2 too.
            Simd::Avx512 | Simd::Avx512Bf16 | Simd::Amx => unsafe { avx512::$what($($arg),*) },
            #[cfg(target_arch = "aarch64")]
            #[expect(unsafe_code, reason = "the line below says why it is sound")]
            #[allow(unused_unsafe, reason = "some of these functions are plain ones")]
            // SAFETY: every aarch64 processor has NEON.
            Simd::Neon | Simd::NeonDots => unsafe { neon::$what($($arg),*) },
        }
    };
}
pub(super) use by_simd;

impl Simd {
    /// The best this processor has.
    #[must_use]
    pub fn detect() -> Self {
        static BEST: OnceLock<Simd> = OnceLock::new();
        *BEST.get_or_init(|| Self::all().into_iter().rfind(|simd| simd.is_worth_it()).unwrap_or(Self::Plain))
    }

    /// Whether it is faster than what comes before it.
    fn is_worth_it(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self != Self::Avx512Bf16 || avx512::bf16::is_fast();
        #[cfg(not(target_arch = "x86_64"))]
        true
    }

    /// All that this processor has, the fastest last.
    #[must_use]
    pub fn all() -> Vec<Self> {
        #[cfg(target_arch = "x86_64")]
        if avx2::is_available() {
            let (dots, wider) = (avx2::has_dots(), avx512::is_available());
            let (twos, tiles) = (wider && avx512::bf16::is_available(), wider && avx512::amx::is_available());
            let more = [(Self::Avx2Dots, dots), (Self::Avx512, wider), (Self::Avx512Bf16, twos), (Self::Amx, tiles)];
            let more = more.into_iter().filter(|(_, has)| *has);
            return [Self::Plain, Self::Avx2].into_iter().chain(more.map(|(simd, _)| simd)).collect();
        }
        #[cfg(target_arch = "aarch64")]
        {
            let dots = neon::has_dots().then_some(Self::NeonDots);
            [Self::Plain, Self::Neon].into_iter().chain(dots).collect()
        }
        #[cfg(not(target_arch = "aarch64"))]
        vec![Self::Plain]
    }

    /// Those of [`Self::all`] that pack KV for links each in a way of its own: no products do anything for it.
    #[must_use]
    pub fn packing() -> Vec<Self> {
        #[cfg(target_arch = "x86_64")]
        return Self::all()
            .into_iter()
            .filter(|simd| !matches!(simd, Self::Avx2Dots | Self::Avx512Bf16 | Self::Amx))
            .collect();
        #[cfg(not(target_arch = "x86_64"))]
        vec![Self::Plain]
    }

    /// See [`wire::low_high`].
    pub(crate) fn low_high(self, form: BlockShape, rows: BlockRows<'_>, groups: &mut Groups) {
        by_simd!(self, low_high(form, rows, groups));
    }

    /// See [`wire::choose`].
    pub(crate) fn choose(self, form: BlockShape, groups: &mut Groups, head: &mut [u8]) {
        by_simd!(self, choose(form, groups, head));
    }

    /// See [`wire::encode`].
    pub(crate) fn encode(self, form: BlockShape, rows: BlockRows<'_>, groups: &Groups, cells: &mut [u8]) {
        by_simd!(self, encode(form, rows, groups, cells));
    }

    /// See [`wire::pack_keys`].
    pub(crate) fn pack_keys(
        self,
        turn: &KeyRotation,
        form: BlockShape,
        rows: BlockRows<'_>,
        scratch: KeyScratch<'_>,
        head: &mut [u8],
        cells: &mut [u8],
    ) {
        by_simd!(self, pack_keys(turn, form, rows, scratch, head, cells));
    }

    /// See [`wire::read`].
    pub(crate) fn read(self, form: BlockShape, head: &[u8], groups: &mut Groups) {
        by_simd!(self, read(form, head, groups));
    }

    /// See [`wire::decode`].
    pub(crate) fn decode(
        self,
        form: BlockShape,
        codes: &[u8],
        first: usize,
        groups: &Groups,
        dtype: Dtype,
        out: &mut [u8],
    ) {
        by_simd!(self, decode(form, codes, first, groups, dtype, out));
    }

    /// See [`wire::unpack_keys`].
    #[expect(clippy::too_many_arguments, reason = "a block's codes, what it is unpacked with, and where to")]
    pub(crate) fn unpack_keys(
        self,
        turn: &KeyRotation,
        form: BlockShape,
        codes: &[u8],
        first: usize,
        scratch: KeyScratch<'_>,
        dtype: Dtype,
        out: &mut [u8],
    ) {
        by_simd!(self, unpack_keys(turn, form, codes, first, scratch, dtype, out));
    }

    pub(super) fn lanes(self, block: Block<'_>, acc: &mut [Lanes]) {
        by_simd!(self, lanes(block, acc));
    }

    pub(super) fn lanes_of_two(self, block: Block<'_, bf16>, acc: &mut [Lanes]) {
        #[cfg(target_arch = "x86_64")]
        if self == Self::Avx512Bf16 {
            return avx512::bf16::lanes_of_two(block, acc);
        }
        by_simd!(self, lanes_of_two(block, acc));
    }

    pub(super) fn round_to_bf16(self, x: &[f32], out: &mut [bf16]) {
        by_simd!(self, round_to_bf16(x, out));
    }

    pub(super) fn reduce(self, acc: &[Lanes], sums: &mut [f32]) {
        by_simd!(self, reduce_all(acc, sums));
    }

    pub(super) fn round(self, layout: Layout, x: &[f32], out: Filled<'_>) {
        by_simd!(self, round(layout, x, out));
    }

    pub(super) fn wide(self, w: &Packed, panel: usize, x: &Rounded, part: ProductRange, out: &mut [Wide]) {
        #[cfg(target_arch = "x86_64")]
        if self == Self::Avx2Dots {
            return avx2::wide_by_dots(w, panel, x, part, out);
        }
        #[cfg(target_arch = "aarch64")]
        if self == Self::NeonDots {
            return neon::wide_by_dots(w, panel, x, part, out);
        }
        by_simd!(self, wide(w, panel, x, part, out));
    }

    /// `gate[i] = act(gate[i]) * up[i]`.
    pub(crate) fn gate_mul(self, act: Gate, gate: &mut [f32], up: &[f32]) {
        match act {
            Gate::Silu => by_simd!(self, silu_mul(gate, up)),
            Gate::Gelu => by_simd!(self, gelu_mul(gate, up)),
        }
    }

    /// Presses every number of `x` smoothly between `-cap` and `cap`.
    pub(crate) fn soft_cap(self, x: &mut [f32], cap: f32) {
        by_simd!(self, soft_cap(x, cap));
    }

    /// Turns every head of `dim` channels of a row ([`crate::rope::turn`]).
    pub(crate) fn turn_heads(self, row: &mut [f32], dim: usize, cos: &[f32], sin: &[f32], pairs: RopePairs) {
        by_simd!(self, turn_heads(row, dim, cos, sin, pairs));
    }

    /// Asks memory for a matrix that will be read soon: the processor's own guesses end where a page of 4 KiB does.
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "others are not asked"))]
    pub(crate) fn ask_for(self, w: Matrix<'_>) {
        #[cfg(target_arch = "x86_64")]
        if self != Self::Plain {
            avx2::ask_for(w.bytes);
        }
    }

    /// Whether dense products of several rows read them in lines, two rows to each.
    pub(super) fn has_lines(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return matches!(self, Self::Avx512 | Self::Avx512Bf16 | Self::Amx);
        #[cfg(not(target_arch = "x86_64"))]
        return false;
    }

    /// Whether it multiplies bfloat16 numbers as they are.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn multiplies_bf16(self) -> bool {
        self == Self::Avx512Bf16
    }

    /// Whether products of so many rounded rows are faster by [`Self::tiles`].
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "only AMX has tiles"))]
    pub(super) fn has_tiles_for(self, rows: usize) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Amx => rows >= TILES_FROM,
            _ => false,
        }
    }

    /// Products of many rounded rows with some panels, by tiles; by nothing if there are none.
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "only AMX has tiles"))]
    pub(super) fn tiles(self, x: &Rounded, w: &Packed, panels: Range<usize>, out: &Outputs<'_>) {
        #[cfg(target_arch = "x86_64")]
        if self == Self::Amx {
            avx512::amx::panels(x, w, panels, out);
        }
    }
}
