//! What is known of a block's groups, number by number.

/// Kept from block to block; as long as the block has groups.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// Least numbers, of values at most zero.
    pub low: Vec<f32>,
    /// Largest numbers, of values at least zero.
    pub high: Vec<f32>,
    /// Names of the steps that these ranges need.
    pub needed: Vec<i32>,
    /// Inverses of steps while numbers become codes, steps while codes become numbers.
    pub factor: Vec<f32>,
    /// `x * factor - offset`, rounded, is a number's code; `code * factor + offset` its number.
    pub offset: Vec<f32>,
}

impl Groups {
    pub fn fit(&mut self, groups: usize) {
        for numbers in [&mut self.low, &mut self.high, &mut self.factor, &mut self.offset] {
            numbers.resize(groups, 0.0);
        }
        self.needed.resize(groups, 0);
    }
}
