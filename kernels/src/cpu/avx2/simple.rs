//! The definitions of `simple.rs`, compiled with AVX2 and FMA.

use super::super::simple;
use crate::rope::RopePairs;

macro_rules! compiled {
    ($($what:ident($($arg:ident: $kind:ty),*);)*) => {$(
        /// As in `simple.rs`.
        pub(in super::super) fn $what($($arg: $kind),*) {
            #[target_feature(enable = "avx2,fma")]
            fn fast($($arg: $kind),*) {
                simple::$what($($arg),*);
            }
            // SAFETY: `Simd::detect` chose this file only after `is_available`.
            unsafe { fast($($arg),*) }
        }
    )*};
}

compiled! {
    rms_norm(x: &[f32], w: &[f32], eps: f32, out: &mut [f32]);
    add_rms_norm(x: &mut [f32], more: &[f32], w: &[f32], eps: f32, out: &mut [f32]);
    layer_norm(x: &[f32], w: &[f32], b: &[f32], eps: f32, out: &mut [f32]);
    turn_heads(row: &mut [f32], dim: usize, cos: &[f32], sin: &[f32], pairs: RopePairs);
    gelu_mul(gate: &mut [f32], up: &[f32]);
    soft_cap(x: &mut [f32], cap: f32);
}
