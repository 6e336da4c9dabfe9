//! A few launches of the kernels that most of a step's time goes to, by which both ways to have them are compared: products
//! of few rows, of rounded ones and of many, attention of single rows and of chunks.

use super::{Image, Loads, NotCompiled};
use crate::{
    cuda::{
        machine::{Arg, GpuError, GpuMemory, Launch, Machine, Queue, Recorded},
        ops::{GpuRows, Kind, NOT_TURNED, Ops, Out},
        weights::{Form, GpuMatrix},
    },
    pages::PAGE_BYTES,
};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// Files that are compared, in the order in which sources are listed.
pub(in crate::cuda) const FILES: [&str; 5] = ["attend", "chunk", "few", "many", "mmq"];
/// Times that each of the two is measured in turn; the best counts, since others only ever make one slower.
const ROUNDS: usize = 5;
/// Launches asked for at once, so that asking takes no part.
const AT_ONCE: usize = 4;
/// Of the PTX's time, in hundredths, what machine code must be below: what is nearer is the same, and then a driver that is
/// renewed may make better code of the PTX by itself.
const BELOW: u64 = 98;
/// Of two results, how far they may lie apart: sums are in the same order, but functions may be of another library.
const APART: f32 = 1e-3;

/// Heads of keys and values, of channels each, and query heads that share one.
pub(in crate::cuda) const HEADS: usize = 2;
pub(in crate::cuda) const DIM: usize = 128;
pub(in crate::cuda) const GROUP: usize = 8;
/// Tokens of a page of two bytes a number, and rows of a tile of a chunk: 64 with their heads.
const PAGE_TOKENS: usize = PAGE_BYTES / (2 * HEADS * DIM * 2);
pub(in crate::cuda) const TILE_ROWS: usize = 64 / GROUP;
/// Parts that tokens of single rows are cut into.
const PARTS: usize = 2;
/// Tokens of a part and parts of a row, as steps have them (`step.rs`).
const PART_TOKENS: usize = 64;
const MOST_PARTS: usize = 64;
/// Rows of a batch that products of rounded rows are timed with, beside a single one.
const BATCH: usize = 16;
/// Times that what is like a layer of a step comes up in one.
const LAYERS: usize = 2;

/// How fast a file's kernels are, in both ways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedFile {
    /// The file.
    pub name: &'static str,
    /// What its PTX takes (nanoseconds).
    pub ahead_ns: u64,
    /// What it takes compiled for the GPU.
    pub compiled_ns: u64,
}

impl TimedFile {
    /// Whether it is used as it was compiled for the GPU.
    #[must_use]
    pub fn is_compiled(&self) -> bool {
        is_faster(self.compiled_ns, self.ahead_ns)
    }
}

/// Whether a time is that much shorter than another that it counts.
pub(super) fn is_faster(ns: u64, than_ns: u64) -> bool {
    ns.saturating_mul(100) < than_ns.saturating_mul(BELOW)
}

impl fmt::Display for TimedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = self.compiled_ns as f64 / self.ahead_ns.max(1) as f64;
        write!(f, "{} (in {part:.2} of PTX's time)", self.name)
    }
}

/// Times every file in both ways, and sees that they compute the same.
pub(super) fn compare(gpu: &Arc<dyn Loads>) -> Result<Vec<TimedFile>, NotCompiled> {
    let machine: Arc<dyn Machine> = gpu.clone();
    let mut work = TrialWork::new(&machine)?;
    FILES.into_iter().map(|file| compare_file(gpu, &mut work, file)).collect()
}

fn compare_file(gpu: &Arc<dyn Loads>, work: &mut TrialWork, file: &'static str) -> Result<TimedFile, NotCompiled> {
    let mut result = |image| {
        gpu.turn(file, image);
        work.result(file)
    };
    let (ahead, compiled) = (result(Image::Ahead)?, result(Image::Compiled)?);
    if !alike(&ahead, &compiled) {
        return Err(NotCompiled::Differs { file });
    }
    let (mut ahead_ns, mut compiled_ns) = (u64::MAX, u64::MAX);
    // In turn, since a GPU's clocks rise while it works.
    for _ in 0..ROUNDS {
        gpu.turn(file, Image::Ahead);
        ahead_ns = ahead_ns.min(work.time(file)?);
        gpu.turn(file, Image::Compiled);
        compiled_ns = compiled_ns.min(work.time(file)?);
    }
    Ok(TimedFile { name: file, ahead_ns, compiled_ns })
}

/// Whether all are numbers, and lie near each other as measured by the largest.
pub(super) fn alike(a: &[f32], b: &[f32]) -> bool {
    let size = a.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= APART * size)
}

/// What is computed: as much for each of a GPU's processors on a small GPU as on a large one.
pub(in crate::cuda) struct TrialWork {
    machine: Arc<dyn Machine>,
    ops: Ops,
    x: GpuMemory,
    dense: GpuMatrix,
    quantised: GpuMatrix,
    out: GpuMemory,
    /// A pool of pages, and one sequence's table of them.
    pages: GpuMemory,
    table: GpuMemory,
    /// Numbers of rows, their positions, their sequences.
    rows: GpuMemory,
    positions: GpuMemory,
    sequences: GpuMemory,
    tiles: GpuMemory,
    sums: GpuMemory,
    tops: GpuMemory,
    done: GpuMemory,
    /// One row, what it is normed by, and normed.
    hidden: GpuMemory,
    norm: GpuMemory,
    normed: GpuMemory,
    size: TrialSize,
}

/// How much of it.
#[derive(Clone, Copy)]
struct TrialSize {
    outs: usize,
    cols: usize,
    /// Rows of products of many: one tile.
    many: usize,
    context: usize,
    singles: usize,
    tiles: usize,
}

impl TrialSize {
    fn of(processors: usize) -> Self {
        // Small where processors are few: there it is the emulator that computes.
        let scale = (processors / 8).clamp(1, 16);
        Self {
            outs: 128 * processors,
            cols: 256 * scale,
            many: 128,
            context: 128 * scale.max(2),
            // As many as a tile has, so that both kinds of attention compute some row alike.
            singles: (processors / 2).max(TILE_ROWS),
            tiles: processors.max(2),
        }
    }

    /// Numbers that a file's launches leave.
    fn left(self, file: &str) -> usize {
        match file {
            "few" => self.outs,
            "mmq" => (1 + BATCH) * self.outs,
            "many" => self.many * self.outs,
            "attend" => self.singles * HEADS * GROUP * DIM,
            _ => self.tiles * TILE_ROWS * HEADS * GROUP * DIM,
        }
    }
}

impl TrialWork {
    pub fn new(machine: &Arc<dyn Machine>) -> Result<Self, GpuError> {
        let size = TrialSize::of(machine.processors());
        let TrialSize { outs, cols, many, context, singles, tiles } = size;
        let bytes = |count: usize| GpuMemory::of(machine, &numbers(count));
        let matrix =
            |form: Form| Ok(GpuMatrix { memory: bytes(form.bytes(outs * cols))?, form, rows: outs, cols, all: outs });
        let words = |words: &[u32]| GpuMemory::of(machine, bytemuck::cast_slice(words));
        let most = FILES.map(|file| size.left(file)).into_iter().max().unwrap_or(0);
        // As many numbers as products of many rows read, or attention as queries.
        let rows = singles.max(tiles * TILE_ROWS);
        let inputs = (many * cols).max(rows * HEADS * GROUP * DIM);
        let last = context - TILE_ROWS;
        let tile = |i: usize| [0, (i * TILE_ROWS) as u32, last as u32, TILE_ROWS as u32];
        let pages = context.div_ceil(PAGE_TOKENS);
        Ok(Self {
            machine: machine.clone(),
            ops: Ops::new(machine.clone()),
            x: bytes(inputs * 4)?,
            dense: matrix(Form::Bf16)?,
            quantised: matrix(Form::Q4K)?,
            out: GpuMemory::take(machine, most * 4)?,
            pages: bytes(pages * PAGE_BYTES)?,
            table: words(&(0..pages as u32).collect::<Vec<_>>())?,
            rows: words(&(0..singles as u32).collect::<Vec<_>>())?,
            positions: words(&vec![context as u32 - 1; singles])?,
            sequences: words(&vec![0; singles])?,
            tiles: words((0..tiles).map(tile).collect::<Vec<_>>().as_flattened())?,
            sums: GpuMemory::take(machine, PARTS * singles * HEADS * GROUP * DIM * 4)?,
            tops: GpuMemory::take(machine, PARTS * singles * HEADS * GROUP * 2 * 4)?,
            done: words(&vec![0; singles * HEADS])?,
            hidden: GpuMemory::take(machine, cols * 4)?,
            norm: bytes(cols * 4)?,
            normed: GpuMemory::take(machine, cols * 4)?,
            size,
        })
    }

    /// What a file's launches leave where nothing was before.
    pub fn result(&mut self, file: &str) -> Result<Vec<f32>, GpuError> {
        let mut out = vec![f32::NAN; self.size.left(file)];
        self.machine.upload(Queue::Compute, self.out.at(), bytemuck::cast_slice(&out))?;
        self.launch(file)?;
        self.machine.download(Queue::Compute, self.out.at(), bytemuck::cast_slice_mut(&mut out))?;
        Ok(out)
    }

    /// Nanoseconds of a file's launches.
    fn time(&mut self, file: &str) -> Result<u64, GpuError> {
        self.machine.finish()?;
        let started = Instant::now();
        (0..AT_ONCE).try_for_each(|_| self.launch(file))?;
        self.machine.finish()?;
        Ok(started.elapsed().as_nanos() as u64 / AT_ONCE as u64)
    }

    /// What launches in a row leave that are like a step of one row, and their time: recorded, where the machine does that.
    pub fn step(&mut self) -> Result<(Vec<f32>, u64), GpuError> {
        // Kernels are loaded when they first run, which is not while launches are recorded.
        self.layers()?;
        let recorded = self.recorded_layers()?;
        let found = self.left_and_time(recorded);
        if let Some(recorded) = recorded {
            self.machine.forget(recorded);
        }
        found
    }

    fn recorded_layers(&mut self) -> Result<Option<Recorded>, GpuError> {
        if !self.machine.record()? {
            return Ok(None);
        }
        let ran = self.layers();
        // Recording is ended also if something failed, or nothing would run any more.
        let recorded = self.machine.recorded();
        ran?;
        recorded.map(Some)
    }

    fn left_and_time(&mut self, recorded: Option<Recorded>) -> Result<(Vec<f32>, u64), GpuError> {
        let mut left = vec![0.0f32; self.size.outs];
        self.machine.upload(Queue::Compute, self.hidden.at(), &vec![0; self.size.cols * 4])?;
        // One row's attention leaves fewer numbers than the norm behind it reads: the others must be the same each time.
        self.machine.upload(Queue::Compute, self.out.at(), bytemuck::cast_slice(&left))?;
        self.run_layers(recorded)?;
        self.machine.download(Queue::Compute, self.out.at(), bytemuck::cast_slice_mut(&mut left))?;
        let mut best = u64::MAX;
        for _ in 0..ROUNDS {
            self.machine.finish()?;
            let started = Instant::now();
            (0..AT_ONCE).try_for_each(|_| self.run_layers(recorded))?;
            self.machine.finish()?;
            best = best.min(started.elapsed().as_nanos() as u64 / AT_ONCE as u64);
        }
        Ok((left, best))
    }

    fn run_layers(&mut self, recorded: Option<Recorded>) -> Result<(), GpuError> {
        match recorded {
            Some(recorded) => self.machine.replay(recorded),
            None => self.layers(),
        }
    }

    /// Attention, norms and products, each of what the one before left, written where an earlier one wrote. Attention is one row's,
    /// cut as a step of one sequence cuts it: more would take most of the time, and of that nothing overlaps.
    fn layers(&mut self) -> Result<(), GpuError> {
        let (hidden, norm, cols) = (self.hidden.at(), self.norm.at(), self.size.cols);
        let out = Out { at: self.out.at(), stride: self.size.outs };
        let parts = (self.size.context / PART_TOKENS).clamp(1, PARTS * self.size.singles).min(MOST_PARTS);
        for _ in 0..LAYERS {
            self.attend(1, parts)?;
            for (w, kind) in [(&self.quantised, Kind::Rounded256), (&self.dense, Kind::Bf16)] {
                let normed = GpuRows { at: self.normed.at(), kind };
                self.ops.norm(hidden, Some(out.at), norm, 1e-5, 1, cols, normed)?;
                self.ops.products(normed, 1, &[(w, out)])?;
            }
        }
        Ok(())
    }

    fn launch(&mut self, file: &str) -> Result<(), GpuError> {
        match file {
            "few" => self.few(),
            "many" => self.many(),
            "mmq" => self.mmq(),
            "attend" => self.attend(self.size.singles, PARTS),
            _ => self.chunk(),
        }
    }

    /// One token's product with dense weights.
    fn few(&mut self) -> Result<(), GpuError> {
        let out = Out { at: self.out.at(), stride: self.size.outs };
        self.ops.products(GpuRows { at: self.x.at(), kind: Kind::F32 }, 1, &[(&self.dense, out)])
    }

    /// One token's and a batch's with quantised ones.
    fn mmq(&mut self) -> Result<(), GpuError> {
        let outs = self.size.outs;
        let x = GpuRows { at: self.x.at(), kind: Kind::F32 };
        [(1, 0), (BATCH, outs)].into_iter().try_for_each(|(rows, from)| {
            let out = Out { at: self.out.at() + from as u64 * 4, stride: outs };
            self.ops.products(x, rows, &[(&self.quantised, out)])
        })
    }

    /// Those of many rows, which no library computes with quantised weights.
    fn many(&mut self) -> Result<(), GpuError> {
        let out = Out { at: self.out.at(), stride: self.size.outs };
        self.ops.products(GpuRows { at: self.x.at(), kind: Kind::F32 }, self.size.many, &[(&self.quantised, out)])
    }

    /// What both kinds of attention are told of scores and pages.
    fn pool(&self) -> [Arg; 9] {
        let most = (self.size.context.div_ceil(PAGE_TOKENS)) as u32;
        let (scale, cap, window) = (1.0 / (DIM as f32).sqrt(), 0.0, 0u32);
        let look = [Arg::from(scale), cap.into(), window.into()];
        let [tokens, heads] = [PAGE_TOKENS, HEADS].map(|x| Arg::Whole(x as u32));
        let sinks = Arg::Wide(0);
        [look[0], look[1], look[2], sinks, (&self.pages).into(), (&self.table).into(), most.into(), tokens, heads]
    }

    /// Of so many rows, whose tokens are cut into so many parts.
    fn attend(&self, rows: usize, parts: usize) -> Result<(), GpuError> {
        let whole = |x: usize| Arg::Whole(x as u32);
        let numbers = Arg::Wide((rows * HEADS * GROUP * DIM) as u64);
        let args = [
            [(&self.x).into(), whole(HEADS * GROUP * DIM), whole(GROUP)].as_slice(),
            &[(&self.rows).into(), (&self.positions).into(), (&self.sequences).into()],
            &self.pool(),
            &[whole(DIM), (&self.sums).into(), (&self.tops).into(), (&self.done).into()],
            &[(&self.out).into(), numbers, whole(Kind::F32 as usize)],
            &NOT_TURNED,
        ]
        .concat();
        let grid = [parts as u32, HEADS as u32, rows as u32];
        let launch = Launch { module: "attend", kernel: "attend_128_f16", grid, threads: 128, shared: 0 };
        self.ops.attention(launch, &args)
    }

    fn chunk(&self) -> Result<(), GpuError> {
        let whole = |x: usize| Arg::Whole(x as u32);
        let args = [
            [(&self.x).into(), whole(HEADS * GROUP * DIM), whole(GROUP), (&self.tiles).into()].as_slice(),
            &self.pool(),
            &[whole(DIM), (&self.out).into(), whole(Kind::F32 as usize)],
        ]
        .concat();
        // As a stage asks for it: queries, keys and values, rows apart by eight numbers more than they have.
        let shared = (3 * 64 * (DIM + 8) * 2) as u32;
        let grid = [self.size.tiles as u32, HEADS as u32, 1];
        self.ops.attention(Launch { module: "chunk", kernel: "chunk_128_f16", grid, threads: 128, shared }, &args)
    }
}

/// Bytes that are small numbers above zero in every format; zeros would take less power, and the GPU run faster.
fn numbers(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i * 37 + i / 251) as u8 & 0x3f).collect()
}
