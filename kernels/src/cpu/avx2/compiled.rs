//! Definitions that compilers make vectors of, compiled with AVX2 and FMA.

use super::super::{packed::Layout, plain, rounded::Filled};
use crate::{
    rope::RopePairs,
    wire::{BlockShape, Groups},
};
use half::bf16;

macro_rules! compiled {
    ($($what:ident($($arg:ident: $kind:ty),*) $(-> $out:ty)?;)*) => {$(
        /// As in `plain.rs`.
        #[target_feature(enable = "avx2,fma")]
        pub(in super::super) fn $what($($arg: $kind),*) $(-> $out)? {
            plain::$what($($arg),*)
        }
    )*};
}

compiled! {
    rms_norm(x: &[f32], w: &[f32], eps: f32, out: &mut [f32]);
    add_rms_norm(x: &mut [f32], more: &[f32], w: &[f32], eps: f32, out: &mut [f32]);
    layer_norm(x: &[f32], w: &[f32], b: &[f32], eps: f32, out: &mut [f32]);
    turn_heads(row: &mut [f32], dim: usize, cos: &[f32], sin: &[f32], pairs: RopePairs);
    gelu_mul(gate: &mut [f32], up: &[f32]);
    silu_mul(gate: &mut [f32], up: &[f32]);
    soft_cap(x: &mut [f32], cap: f32);
    softmax(x: &mut [f32]);
    round(layout: Layout, x: &[f32], out: Filled<'_>);
    round_to_bf16(x: &[f32], out: &mut [bf16]);
    choose(form: BlockShape, groups: &mut Groups, head: &mut [u8]);
    read(form: BlockShape, head: &[u8], groups: &mut Groups);
    multiply_only(count: usize) -> f32;
}
