//! A few gathers by which both ways are compared, and copies that are recorded with those that are not, with parts as no model
//! has them and at the sizes of steps of single tokens.

use super::{MOST_ROWS, Together, copy};
use crate::{
    cuda::{
        buffers::Buffer,
        columns::Columns,
        gather_way::{NoNccl, TimedGather},
        gpus::recording::RecordedAsOne,
        machine::{GpuError, GpuMemory, Machine, PeerGpu, Queue, Recorded},
    },
    ranks::RankOutputs,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Times that each of the two is measured in turn; the best counts, since others only ever make one slower.
const ROUNDS: usize = 5;
/// Gathers asked for at once: a layer's, twice.
const AT_ONCE: u32 = 8;
/// Bytes of nothing.
const POISON: u8 = 0xa5;

#[derive(Clone, Copy)]
enum GatherMethod {
    Copies,
    Nccl,
}

/// What is gathered.
#[derive(Clone, Copy)]
struct GatherSize {
    rows: usize,
    /// Numbers of a row, and bytes of a number.
    all: usize,
    bytes: usize,
    /// Whether parts are alike as far as they can be.
    even: bool,
}

/// Parts that differ, at odd addresses.
const ODD: [GatherSize; 2] = [
    GatherSize { rows: 1, all: 1021, bytes: 1, even: false },
    GatherSize { rows: 5, all: 1021, bytes: 2, even: false },
];

/// Rows of steps of single tokens: of one sequence, of some, of as many as are exchanged.
fn timed() -> [GatherSize; 3] {
    [1, 8, MOST_ROWS].map(|rows| GatherSize { rows, all: 8190, bytes: 4, even: true })
}

impl GatherSize {
    /// Bytes of the columns of all.
    fn whole(self) -> usize {
        self.rows * self.all * self.bytes
    }

    /// Where the part of a rank of so many begins: parts grow with their ranks, or are alike.
    fn start(self, rank: usize, count: usize) -> usize {
        if self.even { self.all * rank / count } else { self.all * rank * (rank + 1) / (count * (count + 1)) }
    }

    fn outputs(self, rank: usize, count: usize) -> RankOutputs {
        RankOutputs { all: self.all, mine: self.start(rank, count)..self.start(rank + 1, count) }
    }
}

/// Memory for it on every GPU.
#[derive(Debug)]
pub(super) struct GatherWork {
    machines: Vec<Arc<dyn Machine>>,
    whole: Vec<GpuMemory>,
    apart: Vec<Buffer>,
    offers: Vec<PeerGpu>,
}

impl GatherWork {
    pub fn new(machines: &[Arc<dyn Machine>]) -> Result<Self, GpuError> {
        let most = timed().into_iter().chain(ODD).map(GatherSize::whole).max().unwrap_or(0);
        Ok(Self {
            machines: machines.to_vec(),
            whole: machines.iter().map(|machine| GpuMemory::take(machine, most)).collect::<Result<_, _>>()?,
            apart: machines.iter().map(|machine| Buffer::new(machine.clone())).collect(),
            offers: Vec::new(),
        })
    }

    /// Sees that both ways give the same, and times them.
    pub fn compare(&mut self, together: &mut Together, patience: Duration) -> Result<Vec<TimedGather>, NoNccl> {
        for size in ODD {
            self.check(size, together, patience)?;
        }
        timed().into_iter().map(|size| self.time_both(size, together, patience)).collect()
    }

    fn check(&mut self, size: GatherSize, together: &mut Together, patience: Duration) -> Result<Vec<Columns>, NoNccl> {
        let columns = self.columns(size)?;
        let copied = self.result(size, &columns, GatherMethod::Copies, together, patience)?;
        let exchanged = self.result(size, &columns, GatherMethod::Nccl, together, patience)?;
        if copied == exchanged { Ok(columns) } else { Err(NoNccl::Differs) }
    }

    fn columns(&mut self, size: GatherSize) -> Result<Vec<Columns>, GpuError> {
        let count = self.machines.len();
        let places = self.whole.iter().zip(&mut self.apart).enumerate();
        let place = |(rank, (whole, apart)): (usize, (&GpuMemory, &mut Buffer))| {
            Columns::place(&size.outputs(rank, count), size.rows, size.bytes, whole.at(), apart)
        };
        places.map(place).collect()
    }

    /// What all GPUs have where nothing was but their own columns.
    fn result(
        &mut self,
        size: GatherSize,
        columns: &[Columns],
        way: GatherMethod,
        together: &mut Together,
        patience: Duration,
    ) -> Result<Vec<u8>, NoNccl> {
        self.begin(size, columns)?;
        match way {
            GatherMethod::Copies => self.copy(columns)?,
            GatherMethod::Nccl => together.try_gather(&self.machines, columns, patience)?,
        }
        settle(together, patience)?;
        Ok(self.gathered(size, columns)?)
    }

    /// Leaves nothing on all GPUs but their own columns.
    fn begin(&self, size: GatherSize, columns: &[Columns]) -> Result<(), GpuError> {
        let nothing = vec![POISON; size.whole()];
        for (rank, (machine, part)) in self.machines.iter().zip(columns).enumerate() {
            machine.upload(Queue::Compute, part.whole, &nothing)?;
            machine.upload(Queue::Compute, part.own, &bytes_of(rank, part.bytes()))?;
        }
        Ok(())
    }

    /// Waits for what all GPUs have.
    fn gathered(&self, size: GatherSize, columns: &[Columns]) -> Result<Vec<u8>, GpuError> {
        let mut all = vec![0; size.whole() * columns.len()];
        for ((machine, part), out) in self.machines.iter().zip(columns).zip(all.chunks_exact_mut(size.whole())) {
            machine.download(Queue::Compute, part.whole, out)?;
        }
        Ok(all)
    }

    /// Whether copies go straight from GPU to GPU, and give the same when they are recorded; `false` where that is not done.
    pub fn check_recorded(&mut self) -> Result<bool, GpuError> {
        let gpus = RecordedAsOne::new(self.machines.clone());
        for size in timed().into_iter().chain(ODD) {
            let columns = self.columns(size)?;
            self.begin(size, &columns)?;
            self.copy(&columns)?;
            let copied = self.gathered(size, &columns)?;
            if !self.reach_each_other() {
                return Ok(false);
            }
            let Some(recorded) = gpus.record(|| self.copy(&columns))? else { return Ok(false) };
            let found = self.replayed(size, &columns, &gpus, recorded);
            gpus.forget(recorded);
            if found? != copied {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn replayed(
        &self,
        size: GatherSize,
        columns: &[Columns],
        gpus: &RecordedAsOne,
        recorded: Recorded,
    ) -> Result<Vec<u8>, GpuError> {
        self.begin(size, columns)?;
        gpus.replay(recorded)?;
        gpus.others_follow()?;
        self.gathered(size, columns)
    }

    /// Whether each GPU reads the memory of all others itself.
    fn reach_each_other(&self) -> bool {
        let reaches = |machine: &Arc<dyn Machine>| self.offers.iter().all(|offer| machine.reaches(*offer));
        self.machines.iter().all(reaches)
    }

    fn copy(&mut self, columns: &[Columns]) -> Result<(), GpuError> {
        copy(&self.machines, columns, &mut self.offers, 0..columns.len())
    }

    fn time_both(
        &mut self,
        size: GatherSize,
        together: &mut Together,
        patience: Duration,
    ) -> Result<TimedGather, NoNccl> {
        let columns = self.check(size, together, patience)?;
        let (mut copies_ns, mut nccl_ns) = (u64::MAX, u64::MAX);
        // In turn, since a GPU's clocks rise while it works.
        for _ in 0..ROUNDS {
            copies_ns = copies_ns.min(self.time(&columns, GatherMethod::Copies, together, patience)?);
            nccl_ns = nccl_ns.min(self.time(&columns, GatherMethod::Nccl, together, patience)?);
        }
        Ok(TimedGather { rows: size.rows, copies_ns, nccl_ns })
    }

    /// Nanoseconds of a gather.
    fn time(
        &mut self,
        columns: &[Columns],
        way: GatherMethod,
        together: &mut Together,
        patience: Duration,
    ) -> Result<u64, NoNccl> {
        let started = Instant::now();
        for _ in 0..AT_ONCE {
            match way {
                GatherMethod::Copies => self.copy(columns)?,
                GatherMethod::Nccl => together.gather(&self.machines, columns)?,
            }
        }
        settle(together, patience)?;
        Ok((started.elapsed() / AT_ONCE).as_nanos() as u64)
    }
}

fn settle(together: &Together, patience: Duration) -> Result<(), NoNccl> {
    let settled = together.nccl.settle(Some(patience))?;
    if settled { Ok(()) } else { Err(NoNccl::Late { call: "an exchange", patience }) }
}

/// Columns of a rank, other than those of all others.
fn bytes_of(rank: usize, count: usize) -> Vec<u8> {
    (0..count).map(|i| (i * 37 + i / 251 + rank * 89) as u8).collect()
}
