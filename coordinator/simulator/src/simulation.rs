//! The control plane simulated, deterministically: the machine that nodes run, many times over, on a network, disks, clocks and computers
//! that fail as scripted, with byzantine peers among them. One seed is one scenario: first faults, then quiet.
//!
//! | question | where |
//! |---|---|
//! | which peers there are | [`cast`] |
//! | what one process is: its machine, disk, clock, what waits for it | [`process`] |
//! | when messages arrive, if they do | [`net`] |
//! | time, and everything in it | [`world`] |
//! | what goes wrong when | [`faults`] |
//! | which model clients ask for | `demand` |
//! | what byzantine peers say | [`byzantine`] |
//! | clients' requests, and who serves them | [`requests`] |
//! | what must hold, as sentences | [`invariants`] |
//! | which plans took effect in a term, and for whom | `terms` |
//! | what happened, for people | [`chronicle`] |
//!
//! Messages are really signed, once, and shared by all who hear them. Plans are the scheduler's, or [`sketch`]ed where a
//! scenario is not about them; since they follow from the view alone, peers that share a view share the work of making and
//! valuing one (`memo`).

pub mod byzantine;
pub mod cast;
pub mod chronicle;
mod demand_shifts;
pub mod faults;
pub mod invariants;
mod memo;
pub mod net;
pub mod process;
pub mod requests;
mod script;
pub mod sketch;
pub mod tally;
mod terms;
pub mod world;

pub use faults::Fault;
pub use invariants::{ScenarioFigures, Violation};
pub use script::{PlannerKind, ScenarioReport, Script, simulate};
pub use world::World;
