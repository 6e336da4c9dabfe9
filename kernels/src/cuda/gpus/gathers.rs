//! How GPUs put their columns side by side: every GPU copies the others', or takes them by NCCL where that was found, was
//! tried when the GPUs were put together, gave the same bytes, and was faster.
//!
//! NCCL's way needs no marks. A GPU's part of an exchange is a piece of work in its compute queue: before it the GPU has
//! computed its own columns and is done with what it is to take others' into; behind it its own have left and the others' are
//! there. So whatever a GPU is asked next may write both, sooner than with copies (`gpus.rs`). And as all take from all, none
//! is past an exchange before the others have come to it: what they copied before, rows that entered the first GPU, say, they
//! have copied. An exchange to which a GPU brings nothing would not have that, and is left to copies; so are many rows, which
//! fill the ways between GPUs however they go and would take as much memory again.

mod trial;

use crate::cuda::{
    HEADROOM,
    buffers::Buffer,
    columns::Columns,
    driver_api::{GpuTransfer, Nccl},
    gather_way::{GatherWay, NoNccl, TimedGather},
    machine::{GpuError, Machine, PeerGpu, Rectangle},
};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Rows of an exchange: what steps of single tokens have, and what is tried.
const MOST_ROWS: usize = 64;
/// What columns that land begin at a multiple of (bytes).
const ALIGNED: usize = 256;

/// How long NCCL is waited for while it is tried.
#[derive(Clone, Copy, Debug)]
pub(in crate::cuda) struct NcclTimeouts {
    /// For what it does once: it looks at all links of the host.
    pub start: Duration,
    /// For an exchange, the first of which makes ways between GPUs; and for what was under way to end.
    pub exchange: Duration,
}

impl Default for NcclTimeouts {
    fn default() -> Self {
        Self { start: Duration::from_secs(30), exchange: Duration::from_secs(10) }
    }
}

/// GPUs that exchange columns.
#[derive(Debug)]
pub(in crate::cuda) struct Gathers {
    // Communicators go before the machines they are of.
    nccl: Option<Together>,
    machines: Vec<Arc<dyn Machine>>,
    /// Of the copies at hand; kept from one to the next.
    offers: Vec<PeerGpu>,
    /// None where there is nothing to exchange.
    way: Option<GatherWay>,
    /// Whether copies can be recorded.
    recorded: bool,
}

impl Gathers {
    /// Of one GPU or more, by the faster way.
    ///
    /// # Errors
    /// When GPUs do not come to rest after NCCL was tried in vain.
    pub fn among(machines: Vec<Arc<dyn Machine>>, patience: NcclTimeouts) -> Result<Self, GpuError> {
        let mut gathers = Self { nccl: None, machines, offers: Vec::new(), way: None, recorded: false };
        if gathers.machines.len() > 1 {
            gathers.way = Some(gathers.choose(patience)?);
            // What is the matter with GPUs that fail at it they say when they are asked next.
            gathers.recorded = gathers.nccl.is_none() && gathers.try_recorded().unwrap_or(false);
        }
        Ok(gathers)
    }

    /// How they do; none where there is one GPU.
    pub fn way(&self) -> Option<&GatherWay> {
        self.way.as_ref()
    }

    /// Whether gathers can be recorded: by copies that go straight from GPU to GPU, and gave the same bytes when they were.
    pub fn can_be_recorded(&self) -> bool {
        self.recorded
    }

    fn try_recorded(&self) -> Result<bool, GpuError> {
        let mut work = trial::GatherWork::new(&self.machines)?;
        let checked = work.check_recorded();
        // Memory goes back that a GPU may still copy from, where one failed.
        self.machines.iter().for_each(|machine| drop(machine.finish()));
        checked
    }

    /// Keeps NCCL if it is to be used.
    fn choose(&mut self, patience: NcclTimeouts) -> Result<GatherWay, GpuError> {
        let (free, mut work, mut together) = match self.start(patience) {
            Ok(started) => started,
            Err(why) => return Ok(GatherWay::Copies(why)),
        };
        let why = match self.is_better(&free, &mut work, &mut together, patience) {
            Ok(timed) => {
                let version = together.nccl.version();
                self.nccl = Some(together);
                return Ok(GatherWay::Nccl { version, timed });
            }
            Err(why) => why,
        };
        if !together.end(patience)? {
            // To give memory back that work is under way on would be to wait for that.
            std::mem::forget((work, together));
            return Err(GpuError::Failed { call: "ending an exchange", answer: "it goes on".into() });
        }
        Ok(GatherWay::Copies(why))
    }

    /// NCCL, what to try it with, and how much memory each GPU had before.
    fn start(&self, patience: NcclTimeouts) -> Result<(Vec<usize>, trial::GatherWork, Together), NoNccl> {
        let free = self.machines.iter().map(|machine| machine.free_bytes()).collect::<Result<_, _>>()?;
        let together = Together::start(&self.machines, patience)?;
        Ok((free, trial::GatherWork::new(&self.machines)?, together))
    }

    fn is_better(
        &self,
        free: &[usize],
        work: &mut trial::GatherWork,
        together: &mut Together,
        patience: NcclTimeouts,
    ) -> Result<Vec<TimedGather>, NoNccl> {
        let timed = work.compare(together, patience.exchange)?;
        if !timed.iter().all(TimedGather::is_faster) {
            return Err(NoNccl::Slower(timed));
        }
        for (machine, free) in self.machines.iter().zip(free) {
            let taken = free.saturating_sub(machine.free_bytes()?);
            // What weights and pages leave is for steps first.
            if taken > (HEADROOM + free / 16) / 2 {
                return Err(NoNccl::Memory { taken });
            }
        }
        Ok(timed)
    }

    /// Every GPU gets the columns that it has not where they belong. An error is one of the step; later ones are copied.
    pub fn put_side_by_side(&mut self, columns: &[Columns]) -> Result<(), GpuError> {
        let Some(together) = self.nccl.as_mut().filter(|_| are_exchanged(columns)) else {
            return copy(&self.machines, columns, &mut self.offers, 0..columns.len());
        };
        let gathered = together.gather(&self.machines, columns);
        gathered.map_err(|error| self.give_up(error))
    }

    /// The first GPU gets the others' columns.
    pub fn put_on_first(&mut self, columns: &[Columns]) -> Result<(), GpuError> {
        copy(&self.machines, columns, &mut self.offers, 0..1)
    }

    /// Waits for what was exchanged: of a GPU that fails the others would wait for ever.
    pub fn settle(&mut self) -> Result<(), GpuError> {
        let Some(together) = &self.nccl else { return Ok(()) };
        let settled = together.nccl.settle(None).map(|_| ());
        settled.map_err(|error| self.give_up(error))
    }

    /// No more by NCCL, after what failed.
    fn give_up(&mut self, error: GpuError) -> GpuError {
        if let Some(together) = self.nccl.take() {
            // As when it was tried. A GPU that fails says so when it is asked next.
            if let Ok(false) = together.end(NcclTimeouts::default()) {
                std::mem::forget(together);
            }
        }
        self.way = Some(GatherWay::Copies(NoNccl::Failed(error.clone())));
        error
    }
}

/// Whether columns are few, and every GPU has some.
fn are_exchanged(columns: &[Columns]) -> bool {
    columns.iter().all(|columns| columns.rows() <= MOST_ROWS && columns.bytes() > 0)
}

/// GPUs of these ranks copy the columns that they have not where they belong.
fn copy(
    machines: &[Arc<dyn Machine>],
    columns: &[Columns],
    offers: &mut Vec<PeerGpu>,
    ranks: Range<usize>,
) -> Result<(), GpuError> {
    offers.clear();
    for machine in machines {
        offers.push(machine.offer()?);
    }
    for rank in ranks {
        for (from, (part, offer)) in columns.iter().zip(&*offers).enumerate() {
            if from != rank || !part.are_in_place() {
                machines[rank].fetch(*offer, part.to(columns[rank].whole))?;
            }
        }
    }
    Ok(())
}

/// GPUs that NCCL knows.
#[derive(Debug)]
struct Together {
    nccl: Arc<Nccl>,
    /// Where a GPU takes others' columns of several rows, which lie there without gaps.
    landings: Vec<Buffer>,
    /// Of the exchange at hand; kept from one to the next.
    transfers: Vec<GpuTransfer>,
}

impl Together {
    fn start(machines: &[Arc<dyn Machine>], patience: NcclTimeouts) -> Result<Self, NoNccl> {
        let seats = machines.iter().map(|machine| machine.seat()).collect::<Option<Vec<_>>>();
        let nccl = Arc::new(Nccl::start(seats.ok_or(NoNccl::NoDriver)?, patience.start)?);
        let landings = machines.iter().map(|machine| Buffer::new(machine.clone())).collect();
        Ok(Self { nccl, landings, transfers: Vec::new() })
    }

    /// Every GPU takes the others' columns, and has them where they belong.
    fn gather(&mut self, machines: &[Arc<dyn Machine>], columns: &[Columns]) -> Result<(), GpuError> {
        self.plan(columns)?;
        self.nccl.exchange(&self.transfers)?;
        self.lay_out(machines, columns)
    }

    /// The same, for the first time.
    fn try_gather(
        &mut self,
        machines: &[Arc<dyn Machine>],
        columns: &[Columns],
        patience: Duration,
    ) -> Result<(), NoNccl> {
        self.plan(columns)?;
        self.nccl.try_exchange(&self.transfers, patience)?;
        Ok(self.lay_out(machines, columns)?)
    }

    /// Who sends what to whom: one row to where it belongs, several to where they land.
    fn plan(&mut self, columns: &[Columns]) -> Result<(), GpuError> {
        self.transfers.clear();
        let landing = landing(columns, columns.len());
        for (to, (taker, buffer)) in columns.iter().zip(&mut self.landings).enumerate() {
            let apart = if taker.rows() == 1 { None } else { Some(buffer.fit(landing)?) };
            for (from, part) in columns.iter().enumerate().filter(|(from, _)| *from != to) {
                let into = apart.map_or(part.to(taker.whole).to, |at| at + self::landing(columns, from) as u64);
                self.transfers.push(GpuTransfer { from, own: part.own, to, into, bytes: part.bytes() });
            }
        }
        Ok(())
    }

    /// Lays what is packed out in rows.
    fn lay_out(&self, machines: &[Arc<dyn Machine>], columns: &[Columns]) -> Result<(), GpuError> {
        for (rank, (machine, buffer)) in machines.iter().zip(&self.landings).enumerate() {
            for (from, part) in columns.iter().enumerate().filter(|(_, part)| !part.are_in_place()) {
                let rows = part.to(columns[rank].whole);
                let apart = buffer.at() + landing(columns, from) as u64;
                machine.lay_out(if from == rank { rows } else { Rectangle { from: apart, ..rows } })?;
            }
        }
        Ok(())
    }

    /// Ends what is under way, and waits for that; whether it did.
    fn end(&self, patience: NcclTimeouts) -> Result<bool, GpuError> {
        self.nccl.abort(patience.exchange);
        self.nccl.rest(patience.exchange)
    }
}

/// Where the columns of a rank land; of one rank more than there are, how much room all take.
fn landing(columns: &[Columns], rank: usize) -> usize {
    columns[..rank].iter().map(|part| part.bytes().next_multiple_of(ALIGNED)).sum()
}
