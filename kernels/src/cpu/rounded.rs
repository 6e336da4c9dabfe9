//! Rows rounded to 8 bits: what products with quantised weights multiply by, as llama.cpp's do.
//!
//! Each block of a row has a scale of its own, so a row's rounding knows nothing of its neighbours. Sums of products
//! are then whole numbers, exact in any order.

use super::{
    SHARE_FROM, Simd,
    dense::Cut,
    packed::{Layout, Packed},
    team::Team,
};

/// Rows that tiles take at a time: memory is there for whole tiles of them, what lies past the last row means nothing.
pub(super) const TILE_ROWS: usize = 16;

/// Rows of rounded numbers, memory kept from step to step.
#[derive(Default)]
pub(super) struct Rounded {
    pub rows: usize,
    pub cols: usize,
    way: RoundingKey,
    pub bytes: Vec<i8>,
    /// Of each block, what one is worth.
    pub scales: Vec<f32>,
    /// Of each part, the sum of its numbers: at most 32 · 127.
    pub sums: Vec<i16>,
    /// Of each part, what the weights' shift adds to its products, negative.
    pub shifts: Vec<i32>,
}

/// What of a layout rounding depends on.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct RoundingKey {
    numbers: usize,
    part: usize,
    shift: u8,
}

impl RoundingKey {
    fn of(layout: Layout) -> Self {
        Self { numbers: layout.numbers, part: layout.part, shift: layout.shift }
    }
}

/// Some rows of [`Rounded`], to be filled.
pub(super) struct Filled<'a> {
    pub bytes: &'a mut [i8],
    pub scales: &'a mut [f32],
    pub sums: &'a mut [i16],
    pub shifts: &'a mut [i32],
}

impl Rounded {
    /// Rounds rows of `cols` numbers for products with `layout`.
    pub fn fill(&mut self, simd: Simd, team: Option<&Team>, layout: Layout, cols: usize, x: &[f32]) {
        (self.rows, self.cols, self.way) = (x.len() / cols, cols, RoundingKey::of(layout));
        let (blocks, parts) = (cols / layout.numbers, cols / layout.part);
        let room = self.rows.next_multiple_of(TILE_ROWS);
        self.bytes.resize(room * cols, 0);
        self.scales.resize(room * blocks, 0.0);
        self.sums.resize(room * parts, 0);
        self.shifts.resize(room * parts, 0);
        let each = if x.len() < SHARE_FROM { self.rows } else { TILE_ROWS };
        let bytes = Cut::new(&mut self.bytes, each * cols);
        let scales = Cut::new(&mut self.scales, each * blocks);
        let (sums, shifts) = (Cut::new(&mut self.sums, each * parts), Cut::new(&mut self.shifts, each * parts));
        let round = |i: usize| {
            // SAFETY: each part is handed out once.
            #[expect(unsafe_code, reason = "the lines above say why it is sound")]
            let filled = unsafe {
                Filled { bytes: bytes.part(i), scales: scales.part(i), sums: sums.part(i), shifts: shifts.part(i) }
            };
            let from = i * each * cols;
            simd.round(layout, &x[from..x.len().min(from + each * cols)], filled);
        };
        match team.filter(|_| each < self.rows) {
            Some(team) => team.share(self.rows.div_ceil(each), round),
            None => (0..self.rows.div_ceil(each)).for_each(round),
        }
    }

    /// Whether it was filled as products with `w` want it.
    pub fn is_for(&self, w: &Packed) -> bool {
        self.way == RoundingKey::of(w.layout)
    }

    /// Whether it holds all that products with `w` read: what fast versions rely on.
    pub fn fits(&self, w: &Packed) -> bool {
        let (room, parts) = (self.rows.next_multiple_of(TILE_ROWS), w.cols / w.layout.part);
        self.cols == w.cols
            && self.is_for(w)
            && self.bytes.len() == room * w.cols
            && self.scales.len() == room * w.blocks()
            && [self.sums.len(), self.shifts.len()] == [room * parts; 2]
    }
}

/// Where a block of a row lies, for fast versions, which read it by pointers. Whether there is one is not asked here.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[derive(Clone, Copy)]
pub(super) struct RowBlock {
    bytes: *const i8,
    pub scale: *const f32,
    pub sums: *const i16,
    shifts: *const i32,
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
impl RowBlock {
    /// The block so many further on in the same row. Reached so, the blocks of all rows have one index in the compiler's hands; reached by
    /// [`Rounded::block`] each row has its own, which it computes anew for every block.
    #[inline(always)]
    pub fn after(self, layout: Layout, blocks: usize) -> Self {
        Self {
            bytes: self.bytes.wrapping_add(blocks * layout.numbers),
            scale: self.scale.wrapping_add(blocks),
            sums: self.sums.wrapping_add(blocks * layout.parts()),
            shifts: self.shifts.wrapping_add(blocks * layout.parts()),
        }
    }

    /// Columns from `at` on.
    #[inline(always)]
    pub fn columns(self, at: usize) -> *const i8 {
        self.bytes.wrapping_add(at)
    }

    /// The sums of parts `2 * pair` and the next.
    #[inline(always)]
    pub fn pair_of_sums(self, pair: usize) -> *const i16 {
        self.sums.wrapping_add(2 * pair)
    }

    /// What the weights' shift adds to a part.
    #[inline(always)]
    pub fn shift(self, part: usize) -> *const i32 {
        self.shifts.wrapping_add(part)
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
impl Rounded {
    /// Block number `at` of all rows'.
    #[inline(always)]
    pub fn block(&self, layout: Layout, at: usize) -> RowBlock {
        RowBlock {
            bytes: self.bytes.as_ptr().wrapping_add(at * layout.numbers),
            scale: self.scales.as_ptr().wrapping_add(at),
            sums: self.sums.as_ptr().wrapping_add(at * layout.parts()),
            shifts: self.shifts.as_ptr().wrapping_add(at * layout.parts()),
        }
    }
}

impl Filled<'_> {
    /// Whether there is room for all that rounding `x` gives.
    pub fn fits(&self, layout: Layout, x: &[f32]) -> bool {
        let parts = x.len() / layout.part;
        x.len().is_multiple_of(layout.numbers)
            && self.bytes.len() >= x.len()
            && self.scales.len() >= x.len() / layout.numbers
            && self.sums.len() >= parts
            && self.shifts.len() >= parts
    }
}

/// The definition: rounds whole blocks, and adds up their parts.
#[inline(always)]
pub(super) fn round(layout: Layout, x: &[f32], out: Filled<'_>) {
    let Filled { bytes, scales, sums, shifts } = out;
    for ((x, q), scale) in x.chunks_exact(layout.numbers).zip(bytes.chunks_exact_mut(layout.numbers)).zip(scales) {
        *scale = round_block(x, q);
    }
    let parts = bytes.chunks_exact(layout.part).take(x.len() / layout.part);
    for ((q, sum), shift) in parts.zip(sums).zip(shifts) {
        *sum = q.iter().map(|q| i16::from(*q)).sum();
        *shift = -i32::from(layout.shift) * i32::from(*sum);
    }
}

/// Rounds a block to the nearest of 255 steps and returns the step.
#[inline(always)]
pub(super) fn round_block(x: &[f32], out: &mut [i8]) -> f32 {
    let mut tops = [0.0f32; super::LANES];
    for x in x.chunks(super::LANES) {
        for (top, x) in tops.iter_mut().zip(x) {
            *top = if x.abs() > *top { x.abs() } else { *top };
        }
    }
    let top = tops.into_iter().fold(0.0, f32::max);
    let steps = if top > 0.0 { 127.0 / top } else { 0.0 };
    for (out, x) in out.iter_mut().zip(x) {
        // What is not a number becomes 0. Steps of numbers next to zero are infinite: those become the ends.
        *out = (x * steps).clamp(-127.0, 127.0).round_ties_even() as i8;
    }
    top / 127.0
}
