//! Quantised weights as they lie on a GPU (`device/forms.cuh`): blocks of the same columns of sixteen rows together, piece by piece, so
//! that what a warp multiplies at a time is one run of memory. Laid out on the way from the file's memory map.

use super::{Form, GpuError, PIECE, Send};
use crate::quant::Blocks;
use std::ops::Range;

/// Rows of a matrix that lie together; of an expert's a row is by itself.
pub(super) const TOGETHER: usize = 16;

/// How a block lies: `Blocks` of `device/forms.cuh`.
struct BlockLayout {
    /// Bytes of the file's block that lie apart, at its start or its end: its scale, or none.
    scale: Range<usize>,
    /// Bytes of a first piece of another size.
    head: usize,
    /// Of other pieces.
    piece: usize,
}

impl BlockLayout {
    fn of(form: Form) -> Self {
        let (scale, head, piece) = match form {
            Form::Q4K => (0..0, 16, 32),
            Form::Q6K => (208..210, 0, 16),
            Form::Q8_0 => (0..2, 0, 32),
            Form::Mxfp4 => (0..1, 0, 16),
            _ => (0..2, 0, 16),
        };
        Self { scale, head, piece }
    }

    /// Of a file's block what is not its scale.
    fn quants<'a>(&self, block: &'a [u8]) -> &'a [u8] {
        if self.scale.start == 0 { &block[self.scale.end..] } else { &block[..self.scale.start] }
    }

    /// Puts a block's quants among those of `rows` rows, of which its own is number `row`.
    fn put(&self, quants: &[u8], row: usize, rows: usize, to: &mut [u8]) {
        let (head, pieces) = quants.split_at(self.head);
        let (heads, to) = to.split_at_mut(rows * self.head);
        heads[row * self.head..][..self.head].copy_from_slice(head);
        if self.piece == 16 {
            put_pieces::<16>(pieces, row, rows, to);
        } else {
            put_pieces::<32>(pieces, row, rows, to);
        }
    }
}

/// Pieces have a size that is known, or copying them would take longer than the link to a GPU.
fn put_pieces<const SIZE: usize>(pieces: &[u8], row: usize, rows: usize, to: &mut [u8]) {
    for (to, piece) in to.chunks_exact_mut(rows * SIZE).zip(pieces.chunks_exact(SIZE)) {
        to[row * SIZE..][..SIZE].copy_from_slice(piece);
    }
}

/// Hands on what matrices one below the other have: all quants in the first plane, scales that lie apart in the second. They have
/// the same columns.
pub(super) fn lay_out(matrices: &[Blocks<'_>], form: Form, together: usize, send: Send<'_>) -> Result<(), GpuError> {
    let Some(first) = matrices.first() else { return Ok(()) };
    let layout = BlockLayout::of(form);
    let (of_row, scales_of_row) = form.planes(first.cols());
    let (of_block, scale_size) = form.planes(first.kind().numbers());
    let mut lines = matrices.iter().flat_map(|blocks| (0..blocks.rows()).map(move |row| (blocks, row)));
    let mut left: usize = matrices.iter().map(Blocks::rows).sum();
    let mut quants: Vec<u8> = Vec::with_capacity(PIECE);
    let mut scales: Vec<u8> = Vec::with_capacity(PIECE / 16);
    while left > 0 {
        let rows = left.min(together);
        left -= rows;
        let (quants_before, scales_before) = (quants.len(), scales.len());
        quants.resize(quants_before + rows * of_row, 0);
        scales.resize(scales_before + rows * scales_of_row, 0);
        for (row, (blocks, index)) in lines.by_ref().take(rows).enumerate() {
            let mut to = quants[quants_before..].chunks_exact_mut(rows * of_block);
            let mut to_scales = scales[scales_before..].chunks_exact_mut((rows * scale_size).max(1));
            blocks.each_block(index, |block| {
                if let Some(to) = to.next() {
                    layout.put(layout.quants(block), row, rows, to);
                }
                if let Some(to) = to_scales.next() {
                    to[row * scale_size..][..scale_size].copy_from_slice(&block[layout.scale.clone()]);
                }
            });
        }
        if quants.len() >= PIECE || left == 0 {
            send(&quants, &scales)?;
            quants.clear();
            scales.clear();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{BlockLayout, Form, TOGETHER, lay_out};
    use crate::quant::{Blocks, QuantType};

    const FORMS: [(Form, QuantType); 5] = [
        (Form::Q4_0, QuantType::Q4_0),
        (Form::Q8_0, QuantType::Q8_0),
        (Form::Q4K, QuantType::Q4K),
        (Form::Q6K, QuantType::Q6K),
        (Form::Mxfp4, QuantType::Mxfp4),
    ];

    /// Both planes, one behind the other.
    fn laid_out(matrices: &[Blocks<'_>], form: Form, together: usize) -> Vec<u8> {
        let (mut quants, mut scales) = (Vec::new(), Vec::new());
        let mut send = |a: &[u8], b: &[u8]| {
            quants.extend_from_slice(a);
            scales.extend_from_slice(b);
            Ok(())
        };
        lay_out(matrices, form, together, &mut send).unwrap();
        quants.extend(scales);
        quants
    }

    fn bytes(count: usize) -> Vec<u8> {
        (0..count).map(|i| ((i * 2_654_435_761) >> 13) as u8).collect()
    }

    /// As `Block::at` of `device/forms.cuh` finds them.
    #[test]
    fn every_byte_of_a_block_lies_where_kernels_look_for_it() {
        let (rows, blocks) = (37, 3);
        for (form, kind) in FORMS {
            let (file, layout) = (bytes(rows * blocks * kind.bytes()), BlockLayout::of(form));
            let found = laid_out(&[Blocks::new(&file, kind, rows, blocks * kind.numbers())], form, TOGETHER);
            let size = form.planes(kind.numbers()).0;
            assert_eq!(found.len(), form.bytes(rows * blocks * kind.numbers()));
            for (i, block) in file.chunks_exact(kind.bytes()).enumerate() {
                let (row, column) = (i / blocks, i % blocks);
                let begin = row / TOGETHER * TOGETHER;
                let (of, row) = (TOGETHER.min(rows - begin), row - begin);
                let first = begin * blocks + column * of;
                for (at, byte) in layout.quants(block).iter().enumerate() {
                    let place = match at.checked_sub(layout.head) {
                        None => row * layout.head + at,
                        Some(at) => {
                            let piece = at / layout.piece * of + row;
                            of * layout.head + piece * layout.piece + at % layout.piece
                        }
                    };
                    assert_eq!(found[first * size + place], *byte, "{form:?} block {i}, byte {at}");
                }
                let scale = &block[layout.scale.clone()];
                let place = rows * blocks * size + (first + row) * scale.len();
                assert_eq!(found[place..][..scale.len()], *scale, "{form:?} block {i}");
            }
        }
    }

    #[test]
    fn matrices_one_below_the_other_lie_as_one() {
        for (form, kind) in FORMS {
            let (cols, line) = (2 * kind.numbers(), 2 * kind.bytes());
            let file = bytes(45 * line);
            let part = |from: usize, to: usize| Blocks::new(&file[from * line..to * line], kind, to - from, cols);
            let whole = laid_out(&[part(0, 45)], form, TOGETHER);
            assert_eq!(laid_out(&[part(0, 10), part(10, 11), part(11, 45)], form, TOGETHER), whole);
        }
    }

    /// A row by itself lies as in the file, but for its scales.
    #[test]
    fn rows_that_are_not_together_lie_one_after_the_other() {
        for (form, kind) in FORMS {
            let file = bytes(6 * kind.bytes());
            let found = laid_out(&[Blocks::new(&file, kind, 3, 2 * kind.numbers())], form, 1);
            let layout = BlockLayout::of(form);
            let quants: Vec<u8> =
                file.chunks_exact(kind.bytes()).flat_map(|block| layout.quants(block).to_vec()).collect();
            assert_eq!(found[..quants.len()], quants);
        }
    }
}
