//! Memory that begins with a cache line, so that no vector lies in two of them.

use bytemuck::{Pod, Zeroable};

#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
struct Line([f32; 16]);

/// Numbers in single precision, kept from use to use.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Lines(Vec<Line>);

impl Lines {
    /// Room for so many numbers; what is in it is left from before.
    pub fn fit(&mut self, numbers: usize) -> &mut [f32] {
        self.0.resize(numbers.div_ceil(16), Line([0.0; 16]));
        &mut bytemuck::cast_slice_mut(&mut self.0)[..numbers]
    }

    pub fn numbers(&self) -> &[f32] {
        bytemuck::cast_slice(&self.0)
    }
}
