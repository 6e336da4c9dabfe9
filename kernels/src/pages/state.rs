//! Where what layers keep of a sequence beside keys and values of its tokens lies: states of a fixed size, in pages too.

use super::PAGE_BYTES;
use std::ops::Range;

/// Numbers of a page.
pub(crate) const PAGE_NUMBERS: usize = PAGE_BYTES / size_of::<f32>();

/// How the states of some layers lie in pages: of each layer first the tails of all its groups of heads, then their matrices,
/// in single precision. None of these is cut, so the last numbers of a page may be nobody's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateLayout {
    /// Layers that have one.
    pub layers: usize,
    /// Groups of heads.
    pub groups: usize,
    /// Numbers of a group's tail: the last inputs of its convolution.
    pub tail: usize,
    /// Matrices of a group.
    pub matrices: usize,
    /// Numbers of a matrix.
    pub matrix: usize,
}

/// What of a state lies together: of a layer's group, counted from 0 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateUnit {
    Tail { group: usize },
    Matrix { group: usize, matrix: usize },
}

/// Where a layer's units lie, for who finds them himself: unit `i` of a kind in the page that is as many whole pages of units behind
/// the kind's first, counted over a sequence's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StatePlaces {
    /// First page of tails, and how many lie in one.
    pub tail_page: usize,
    pub tails: usize,
    /// The same of matrices.
    pub matrix_page: usize,
    pub matrices: usize,
}

impl StateLayout {
    /// Where the units of a layer lie.
    pub(crate) fn places(&self, layer: usize) -> StatePlaces {
        let tail_page = layer * self.layer_pages();
        let matrix_page = tail_page + pages_for(self.groups, self.tail);
        StatePlaces { tail_page, tails: in_page(self.tail), matrix_page, matrices: in_page(self.matrix) }
    }

    /// Pages of a sequence.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.layers * self.layer_pages()
    }

    fn layer_pages(&self) -> usize {
        pages_for(self.groups, self.tail) + pages_for(self.groups * self.matrices, self.matrix)
    }

    /// Which of a sequence's pages a unit of a layer lies in, and its bytes there.
    pub(crate) fn place(&self, layer: usize, unit: StateUnit) -> (usize, Range<usize>) {
        let (before, index, numbers) = match unit {
            StateUnit::Tail { group } => (0, group, self.tail),
            StateUnit::Matrix { group, matrix } => {
                (pages_for(self.groups, self.tail), group * self.matrices + matrix, self.matrix)
            }
        };
        let (page, at) = (index / in_page(numbers), index % in_page(numbers));
        let bytes = numbers * size_of::<f32>();
        (layer * self.layer_pages() + before + page, at * bytes..(at + 1) * bytes)
    }
}

/// Units of so many numbers that lie in a page.
fn in_page(numbers: usize) -> usize {
    (PAGE_NUMBERS / numbers.max(1)).max(1)
}

fn pages_for(units: usize, numbers: usize) -> usize {
    units.div_ceil(in_page(numbers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// A unit's page and first byte, as who is told of a layer's places finds them.
    fn found(layout: &StateLayout, layer: usize, unit: StateUnit) -> (usize, usize) {
        let StatePlaces { tail_page, tails, matrix_page, matrices } = layout.places(layer);
        let (first, each, index, numbers) = match unit {
            StateUnit::Tail { group } => (tail_page, tails, group, layout.tail),
            StateUnit::Matrix { group, matrix } => {
                (matrix_page, matrices, group * layout.matrices + matrix, layout.matrix)
            }
        };
        (first + index / each, index % each * numbers * size_of::<f32>())
    }

    /// Qwen3-Next's 36 layers take what its matrices and tails do, rounded up to pages.
    #[test]
    fn units_of_a_state_lie_apart_and_inside_its_pages() {
        let published = StateLayout { layers: 36, groups: 16, tail: 3 * 512, matrices: 2, matrix: 128 * 128 };
        assert_eq!(published.pages(), 36 * (2 + 32));
        assert_eq!(StateLayout::default().pages(), 0);
        let small = StateLayout { layers: 2, groups: 3, tail: 10, matrices: 2, matrix: PAGE_NUMBERS / 2 - 3 };
        for layout in [published, small] {
            let mut taken: BTreeMap<usize, Vec<Range<usize>>> = BTreeMap::new();
            for layer in 0..layout.layers {
                for group in 0..layout.groups {
                    let matrices = (0..layout.matrices).map(|matrix| StateUnit::Matrix { group, matrix });
                    for unit in matrices.chain([StateUnit::Tail { group }]) {
                        let (page, bytes) = layout.place(layer, unit);
                        assert_eq!((page, bytes.start), found(&layout, layer, unit), "{unit:?}");
                        assert!(page < layout.pages() && bytes.end <= PAGE_BYTES, "{unit:?}");
                        let others = taken.entry(page).or_default();
                        assert!(others.iter().all(|o| o.end <= bytes.start || bytes.end <= o.start), "{unit:?}");
                        others.push(bytes);
                    }
                }
            }
            assert_eq!(taken.len(), layout.pages());
        }
    }
}
