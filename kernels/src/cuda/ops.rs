//! Operations on a GPU: which kernel runs, on how many blocks, with what memory between kernels.

mod delta;
mod experts;

pub(crate) use delta::{DeltaParts, DeltaRows, DeltaShape};
pub(crate) use experts::{ExpertRouting, GpuPairs, GpuScores, Tiling, rows_of_many};

use super::{
    buffers::Buffer,
    machine::{Arg, GpuError, Launch, Machine, Product, Queue},
    mmq::{MmqCut, ROUNDED},
    weights::{Form, GpuMatrix},
};
use crate::config::Clamped;
use std::collections::BTreeSet;
use std::sync::Arc;
use tsnode_protocol::KvDtype;

/// Rows that are multiplied by kernels which read dense weights once and the rows in single precision.
pub(super) const FEW: usize = 8;
/// Rows up to which a tile of 32 rows wastes less than one of 128.
const SOME: usize = 64;
/// Rows from which a library multiplies weights in bfloat16 in less time than kernels that read rows for each output.
const LIBRARY_FROM: usize = 3;
/// Memory for widened weights (bytes): the largest matrix of a model of eight billion numbers; larger ones are
/// cut, in tests small ones.
const WIDENED: usize = if cfg!(test) { 64 << 10 } else { 256 << 20 };
/// Tokens that a block of `device/choose.cu` has of a row.
const CHOSEN_AMONG: usize = 8 * 1024;
/// Warps for each processor that keep its memory busy.
const WARPS: usize = 16;

/// How numbers of rows and pages are stored; the numbers are those of `device/common.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Single precision.
    F32 = 0,
    /// Half precision.
    F16 = 1,
    /// bfloat16.
    Bf16 = 2,
    /// Rounded to 8 bits, with a scale for each 32 numbers: `device/rounded.cuh`.
    Rounded32 = 3,
    /// With a scale for each 256.
    Rounded256 = 4,
}

impl Kind {
    /// Bytes of a number; of a rounded one without its scale.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Rounded32 | Self::Rounded256 => 1,
        }
    }

    /// Rows with a scale for so many numbers.
    fn rounded(block: usize) -> Self {
        if block == 32 { Self::Rounded32 } else { Self::Rounded256 }
    }

    /// Numbers that share a scale, of rounded ones.
    pub fn block(self) -> Option<usize> {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => None,
            Self::Rounded32 => Some(32),
            Self::Rounded256 => Some(256),
        }
    }

    /// The same for kernels that round nothing.
    pub fn unrounded(self) -> Self {
        match self {
            Self::Rounded32 | Self::Rounded256 => Self::F32,
            Self::F32 | Self::F16 | Self::Bf16 => self,
        }
    }
}

impl From<KvDtype> for Kind {
    fn from(dtype: KvDtype) -> Self {
        match dtype {
            KvDtype::F32 => Self::F32,
            KvDtype::F16 => Self::F16,
            KvDtype::Bf16 => Self::Bf16,
        }
    }
}

/// Rows of numbers on a GPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GpuRows {
    pub at: u64,
    pub kind: Kind,
}

/// Where a product's columns go: from `at` on, rows `stride` numbers apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out {
    pub at: u64,
    pub stride: usize,
}

/// A machine, and memory that operations need between kernels.
#[derive(Debug)]
pub(crate) struct Ops {
    pub machine: Arc<dyn Machine>,
    rounded: Buffer,
    narrowed: Buffer,
    parts: Buffer,
    widened: Buffer,
    /// Outputs and columns of widened matrices that no library multiplies.
    refused: BTreeSet<(usize, usize)>,
    /// Parts of attention: sums, what they are worth, and how many are done, as of rows that tokens are chosen for.
    sums: Buffer,
    tops: Buffer,
    done: Buffer,
}

/// What attention is told of turning queries and keys where they are turned already: frequencies that are nowhere.
pub(crate) const NOT_TURNED: [Arg; 9] = {
    let (none, zero) = (Arg::Wide(0), Arg::Whole(0));
    [none, Arg::Number(0.0), zero, zero, none, none, Arg::Number(0.0), Arg::Number(0.0), zero]
};

/// Where blocks of attention leave what they have of a row, for the last of them to merge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionParts {
    pub sums: u64,
    pub tops: u64,
    pub done: u64,
}

/// What products of so many rows with weights of a form read.
pub(crate) fn kind_for(form: Form, rows: usize) -> Kind {
    match (form, form.rounded()) {
        (Form::Bf16, _) => Kind::Bf16,
        (_, Some(block)) if rows <= ROUNDED => Kind::rounded(block),
        _ if rows <= FEW => Kind::F32,
        (Form::F32, _) => Kind::F32,
        _ => Kind::F16,
    }
}

/// What all products of a list read, or single precision where they differ.
pub(crate) fn kind_for_all<'a>(matrices: impl Iterator<Item = &'a GpuMatrix>, rows: usize) -> Kind {
    let mut kinds = matrices.map(|matrix| kind_for(matrix.form, rows));
    let first = kinds.next().unwrap_or(Kind::F32);
    if kinds.all(|kind| kind == first) { first } else { Kind::F32 }
}

fn whole(x: usize) -> Arg {
    Arg::Whole(x as u32)
}

fn blocks(x: usize, each: usize) -> u32 {
    x.div_ceil(each).max(1) as u32
}

impl Ops {
    pub fn new(machine: Arc<dyn Machine>) -> Self {
        let buffer = || Buffer::new(machine.clone());
        let (rounded, narrowed, parts, widened) = (buffer(), buffer(), buffer(), buffer());
        let (sums, tops, done, refused) = (buffer(), buffer(), buffer(), BTreeSet::new());
        Self { machine, rounded, narrowed, parts, widened, refused, sums, tops, done }
    }

    /// How often memory between kernels was taken anew: what was recorded before holds addresses of the old.
    pub fn renewals(&self) -> usize {
        let all = [&self.rounded, &self.narrowed, &self.parts, &self.widened, &self.sums, &self.tops, &self.done];
        all.iter().map(|buffer| buffer.renewals()).sum()
    }

    fn run(
        &self,
        module: &'static str,
        kernel: &'static str,
        grid: [u32; 3],
        threads: u32,
        args: &[Arg],
    ) -> Result<(), GpuError> {
        let launch = Launch { module, kernel, grid, threads, shared: 0 };
        self.machine.launch(Queue::Compute, launch, args)
    }

    /// Rows of a table by tokens at `tokens`, times `scale`.
    pub fn embed(&self, table: &GpuMatrix, tokens: u64, rows: usize, scale: f32, out: u64) -> Result<(), GpuError> {
        let form = Arg::Whole(table.form as u32);
        let size = [Arg::Wide(table.rows as u64), whole(table.cols), scale.into(), out.into()];
        let args = [[tokens.into(), (&table.memory).into(), form].as_slice(), &size].concat();
        self.run("rows", "embed", [rows as u32, 1, 1], 256, &args)
    }

    /// `x += delta`, if there is one; `out` is the RMS norm of `x` times `weight`, or `x` as it is where that is 0.
    #[expect(clippy::too_many_arguments, reason = "rows in and out, and a norm")]
    pub fn norm(
        &self,
        x: u64,
        delta: Option<u64>,
        weight: u64,
        eps: f32,
        rows: usize,
        width: usize,
        out: GpuRows,
    ) -> Result<(), GpuError> {
        let args = [
            x.into(),
            delta.unwrap_or(0).into(),
            weight.into(),
            eps.into(),
            whole(width),
            out.at.into(),
            Arg::Whole(out.kind as u32),
        ];
        self.run("rows", "rms_norm", [rows as u32, 1, 1], 512, &args)
    }

    /// `x` plus the RMS norm of `delta` times `weight`, all times `factor`.
    pub fn norm_add(
        &self,
        delta: u64,
        (weight, eps): (u64, f32),
        rows: usize,
        width: usize,
        x: u64,
        factor: f32,
    ) -> Result<(), GpuError> {
        let args = [delta.into(), weight.into(), eps.into(), whole(width), x.into(), factor.into()];
        self.run("rows", "norm_add", [rows as u32, 1, 1], 256, &args)
    }

    /// `x += delta`.
    pub fn add(&self, x: u64, delta: u64, count: usize) -> Result<(), GpuError> {
        let grid = [blocks(count, 256).min(4096), 1, 1];
        self.run("rows", "add", grid, 256, &[x.into(), delta.into(), Arg::Wide(count as u64)])
    }

    /// Adds a bias to rows that lie `stride` numbers apart.
    pub fn add_bias(&self, x: u64, stride: usize, bias: u64, width: usize, rows: usize) -> Result<(), GpuError> {
        let args = [x.into(), whole(stride), bias.into(), whole(width)];
        self.run("rows", "add_bias", [rows as u32, 1, 1], 256, &args)
    }

    /// `x = cap · tanh(x / cap)`.
    pub fn soft_cap(&self, x: u64, count: usize, cap: f32) -> Result<(), GpuError> {
        let grid = [blocks(count, 256).min(4096), 1, 1];
        self.run("rows", "soft_cap", grid, 256, &[x.into(), Arg::Wide(count as u64), cap.into()])
    }

    /// Rows of `x` by their numbers at `chosen`.
    pub fn gather(&self, x: u64, chosen: u64, rows: usize, width: usize, out: u64) -> Result<(), GpuError> {
        self.run("rows", "gather", [rows as u32, 1, 1], 256, &[x.into(), chosen.into(), whole(width), out.into()])
    }

    /// The gated half of an MLP: `x` is `[row][gate, up]`, each `width` wide.
    pub fn gate(&self, x: u64, rows: usize, width: usize, gelu: bool, out: GpuRows) -> Result<(), GpuError> {
        let args = [x.into(), whole(width), Arg::Whole(u32::from(gelu)), out.at.into(), Arg::Whole(out.kind as u32)];
        self.run("rows", "gate", [rows as u32, blocks(width, 8 * 128), 1], 128, &args)
    }

    /// The gated half of experts, whose gates end somewhere: `x` is `[pair][gate, up]`, and each pair has its expert's bias.
    pub fn gate_clamped(
        &self,
        x: u64,
        pairs: &GpuPairs,
        width: usize,
        bias: u64,
        clamped: Clamped,
        out: GpuRows,
    ) -> Result<(), GpuError> {
        let Clamped { sharpness, limit } = clamped;
        let args = [
            [x.into(), whole(width), pairs.chosen.into(), bias.into()].as_slice(),
            &[sharpness.into(), limit.into(), out.at.into(), Arg::Whole(out.kind as u32)],
        ]
        .concat();
        self.run("rows", "gate_clamped", [pairs.count() as u32, blocks(width, 8 * 128), 1], 128, &args)
    }

    /// Chooses a token for every row of `logits`: [`super::choose::RowChoice`].
    pub fn choose(&mut self, logits: u64, rows: usize, vocab: usize, choices: u64, out: u64) -> Result<(), GpuError> {
        let parts = vocab.div_ceil(CHOSEN_AMONG).max(1);
        let (between, done) = (self.parts.fit(rows * parts * 16)?, self.done.fit_zeroed(rows * 4)?);
        let args = [logits.into(), whole(vocab), choices.into(), out.into(), between.into(), done.into()];
        self.run("choose", "choose", [rows as u32, parts as u32, 1], 1024, &args)
    }

    /// Products of the same rows with several matrices. `input` is of the kind that all of them read
    /// ([`kind_for_all`]), or in single precision.
    pub fn products(&mut self, input: GpuRows, rows: usize, list: &[(&GpuMatrix, Out)]) -> Result<(), GpuError> {
        // What was rounded or narrowed for one serves the next.
        let (mut rounded, mut narrowed) = (None, None);
        for (w, out) in list {
            let (wanted, mut at) = (kind_for(w.form, rows), input.at);
            let rounds = w.form.rounded().filter(|_| rows <= ROUNDED);
            if input.kind != wanted {
                if let Some(block) = rounds {
                    if rounded != Some(block) {
                        self.round(input.at, rows * w.cols, block)?;
                        rounded = Some(block);
                    }
                    at = self.rounded.at();
                } else {
                    if narrowed != Some(wanted) {
                        self.narrow(input.at, rows * w.cols, wanted)?;
                        narrowed = Some(wanted);
                    }
                    at = self.narrowed.at();
                }
            }
            if rounds.is_some() {
                self.by_bytes(at, rows, w, *out)?;
            } else if rows <= FEW {
                self.few(at, rows, w, *out)?;
            } else {
                self.many(at, rows, w, *out)?;
            }
        }
        Ok(())
    }

    fn round(&mut self, x: u64, numbers: usize, block: usize) -> Result<(), GpuError> {
        let out = self.rounded.fit(rounded_bytes(numbers))?;
        let args = [x.into(), Arg::Wide(numbers as u64), out.into(), Arg::Whole(Kind::rounded(block) as u32)];
        self.run("rows", "round_rows", [blocks(numbers, 8 * 128), 1, 1], 128, &args)
    }

    fn narrow(&mut self, x: u64, numbers: usize, kind: Kind) -> Result<(), GpuError> {
        self.narrowed.fit(numbers * 2)?;
        let args = [x.into(), Arg::Wide(numbers as u64), self.narrowed.at().into(), Arg::Whole(kind as u32)];
        self.run("rows", "narrow", [blocks(numbers, 256).min(4096), 1, 1], 256, &args)
    }

    /// Warps of a block of eight that share an output's columns, so that all processors have work: `outputs` is how many
    /// are worked on by others, here or on other GPUs, `most` how often the columns can be cut.
    fn split(&self, outputs: usize, most: usize) -> usize {
        let mut split = 1;
        while split < 8 && split * 2 <= most && outputs * split < self.machine.processors() * WARPS {
            split *= 2;
        }
        split
    }

    fn few(&self, x: u64, rows: usize, w: &GpuMatrix, out: Out) -> Result<(), GpuError> {
        if w.form == Form::Bf16 && rows >= LIBRARY_FROM && self.by_library(x, rows, w, out)? {
            return Ok(());
        }
        let kernel = match (w.form, rows) {
            (Form::F32, 1) => "few_f32_1",
            (Form::F32, 2..=4) => "few_f32_4",
            (Form::F32, _) => "few_f32_8",
            (Form::F16, 1) => "few_f16_1",
            (Form::F16, 2..=4) => "few_f16_4",
            (Form::F16, _) => "few_f16_8",
            (_, 1) => "few_bf16_1",
            (_, 2..=4) => "few_bf16_4",
            _ => "few_bf16_8",
        };
        let groups = w.rows.div_ceil(2);
        let split = self.split(w.all.div_ceil(2), w.cols.div_ceil(512));
        let args = [
            x.into(),
            whole(rows),
            (&w.memory).into(),
            Arg::Wide(w.rows as u64),
            whole(w.cols),
            whole(split),
            out.at.into(),
            whole(out.stride),
        ];
        self.run("few", kernel, [blocks(groups, 8 / split), 1, 1], 256, &args)
    }

    /// A product of rounded rows with quantised weights. Where blocks have parts of the same outputs, those are added then.
    fn by_bytes(&mut self, x: u64, rows: usize, w: &GpuMatrix, out: Out) -> Result<(), GpuError> {
        let cut = MmqCut::of(w, rows, self.machine.processors());
        let across = cut.across();
        let to =
            if across == 1 { out } else { Out { at: self.parts.fit(across * rows * w.rows * 4)?, stride: w.rows } };
        let [bytes, scales, halves] = rounded_parts(x, rows * w.cols);
        let args = [
            bytes,
            scales,
            halves,
            whole(rows),
            (&w.memory).into(),
            Arg::Wide(w.rows as u64),
            whole(w.cols),
            whole(cut.parts),
            whole(cut.here),
            to.at.into(),
            whole(to.stride),
        ];
        let (kernel, shared) = (cut.kernel(w.form), cut.shared as u32);
        let launch = Launch { module: "mmq", kernel, grid: cut.grid(w.rows), threads: cut.threads(), shared };
        self.machine.launch(Queue::Compute, launch, &args)?;
        if across == 1 {
            return Ok(());
        }
        let args = [to.at.into(), whole(across), whole(rows), whole(w.rows), out.at.into(), whole(out.stride)];
        self.run("mmq", "mmq_sum", [blocks(w.rows, 256), rows as u32, 1], 256, &args)
    }

    /// A product with dense weights by a library; `false` where there is none.
    fn by_library(&self, x: u64, rows: usize, w: &GpuMatrix, out: Out) -> Result<bool, GpuError> {
        let brain = w.form == Form::Bf16;
        let product = Product { brain, rows, outs: w.rows, cols: w.cols, stride: out.stride };
        self.machine.product(product, x, w.memory.at(), out.at)
    }

    /// A product of many rows that are stored as it reads them, into rows without a gap.
    pub fn product_of_many(&mut self, x: u64, rows: usize, w: &GpuMatrix, out: u64) -> Result<(), GpuError> {
        self.many(x, rows, w, Out { at: out, stride: w.rows })
    }

    fn many(&mut self, x: u64, rows: usize, w: &GpuMatrix, out: Out) -> Result<(), GpuError> {
        if matches!(w.form, Form::F16 | Form::Bf16) && self.by_library(x, rows, w, out)? {
            return Ok(());
        }
        if w.form.rounded().is_some() && self.many_widened(x, rows, w, out)? {
            return Ok(());
        }
        if w.form == Form::F32 {
            let grid = [blocks(rows, 64), blocks(w.rows, 64), 1];
            return self.run("many", "many_f32", grid, 256, &product_args(x, rows, w, out));
        }
        let large = blocks(rows, 128) as usize * blocks(w.all, 128) as usize;
        if rows > SOME && large >= self.machine.processors() {
            let grid = [blocks(rows, 128), blocks(w.rows, 128), 1];
            return self.run("many", many_kernel(w.form), grid, 256, &product_args(x, rows, w, out));
        }
        let (across, down) = (blocks(rows, 32), blocks(w.rows, 64));
        // Columns are cut so that all processors have two blocks, but not into less than four steps of 32.
        let wanted = (2 * self.machine.processors()).div_ceil((across * blocks(w.all, 64)) as usize);
        let parts = wanted.min(w.cols.div_ceil(32) / 4).clamp(1, 16);
        if parts == 1 {
            return self.run("many", some_kernel(w.form), [across, down, 1], 256, &product_args(x, rows, w, out));
        }
        self.parts.fit(parts * rows * w.rows * 4)?;
        let between = Out { at: self.parts.at(), stride: w.rows };
        self.run("many", some_kernel(w.form), [across, down, parts as u32], 256, &product_args(x, rows, w, between))?;
        let args = [between.at.into(), whole(parts), whole(rows), whole(w.rows), out.at.into(), whole(out.stride)];
        self.run("many", "sum_parts", [blocks(rows * w.rows, 256).min(8192), 1, 1], 256, &args)
    }

    /// A product with weights widened for a library, as many outputs at a time as there is memory for; `false` where no library
    /// multiplies them.
    fn many_widened(&mut self, x: u64, rows: usize, w: &GpuMatrix, out: Out) -> Result<bool, GpuError> {
        let shape = (w.rows, w.cols);
        if self.refused.contains(&shape) {
            return Ok(false);
        }
        let each = (WIDENED / 2 / w.cols).clamp(1, w.rows);
        let at = self.widened.fit(each * w.cols * 2)?;
        for first in (0..w.rows).step_by(each) {
            let outs = each.min(w.rows - first);
            let size = [Arg::Wide(w.rows as u64), whole(w.cols), Arg::Wide(first as u64), at.into()];
            let args = [[(&w.memory).into()].as_slice(), &size].concat();
            self.run("many", widen_kernel(w.form), [outs as u32, 1, 1], 256, &args)?;
            let product = Product { brain: false, rows, outs, cols: w.cols, stride: out.stride };
            if !self.machine.product(product, x, at, out.at + first as u64 * 4)? {
                self.refused.insert(shape);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Memory for `parts` parts of attention of so many heads of rows, computed by `blocks` blocks each.
    pub fn attention_parts(
        &mut self,
        parts: usize,
        heads: usize,
        dim: usize,
        blocks: usize,
    ) -> Result<AttentionParts, GpuError> {
        if parts > 1 {
            self.sums.fit(parts * heads * dim * 4)?;
            self.tops.fit(parts * heads * 2 * 4)?;
            self.done.fit_zeroed(blocks * 4)?;
        }
        Ok(AttentionParts { sums: self.sums.at(), tops: self.tops.at(), done: self.done.at() })
    }

    /// Runs one of attention's kernels.
    pub fn attention(&self, launch: Launch, args: &[Arg]) -> Result<(), GpuError> {
        self.machine.launch(Queue::Compute, launch, args)
    }
}

/// Bytes of so many rounded numbers: themselves, at most one scale for each 32, and two halves of the sum of each 32.
fn rounded_bytes(numbers: usize) -> usize {
    numbers.next_multiple_of(16) + numbers.div_ceil(32).next_multiple_of(4) * 4 + numbers / 16
}

/// Where the bytes, the scales and the sums' halves of rounded rows lie.
fn rounded_parts(at: u64, numbers: usize) -> [Arg; 3] {
    let scales = at + numbers.next_multiple_of(16) as u64;
    [at.into(), scales.into(), (scales + numbers.div_ceil(32).next_multiple_of(4) as u64 * 4).into()]
}

fn product_args(x: u64, rows: usize, w: &GpuMatrix, out: Out) -> [Arg; 7] {
    let size = [Arg::Wide(w.rows as u64), whole(w.cols)];
    [x.into(), whole(rows), (&w.memory).into(), size[0], size[1], out.at.into(), whole(out.stride)]
}

fn many_kernel(form: Form) -> &'static str {
    match form {
        Form::F32 => "many_f32",
        // Only experts are in MXFP4.
        Form::F16 | Form::Mxfp4 => "many_f16",
        Form::Bf16 => "many_bf16",
        Form::Q4_0 => "many_q4_0",
        Form::Q8_0 => "many_q8_0",
        Form::Q4K => "many_q4_k",
        Form::Q6K => "many_q6_k",
    }
}

/// Of quantised weights.
fn widen_kernel(form: Form) -> &'static str {
    match form {
        Form::Q4_0 => "widen_q4_0",
        Form::Q8_0 => "widen_q8_0",
        Form::Q4K => "widen_q4_k",
        _ => "widen_q6_k",
    }
}

fn some_kernel(form: Form) -> &'static str {
    match form {
        Form::F32 => "many_f32",
        Form::F16 | Form::Mxfp4 => "some_f16",
        Form::Bf16 => "some_bf16",
        Form::Q4_0 => "some_q4_0",
        Form::Q8_0 => "some_q8_0",
        Form::Q4K => "some_q4_k",
        Form::Q6K => "some_q6_k",
    }
}
