//! The control plane rehearsed: the machine that nodes run, many times over, on a network, disks, clocks and computers
//! that fail as told, with liars among the peers. One seed tells one story, first of trouble, then of quiet.
//!
//! | question | where |
//! |---|---|
//! | which peers there are | [`cast`] |
//! | what one process is: its machine, disk, clock, what waits for it | [`process`] |
//! | when messages arrive, if they do | [`net`] |
//! | time, and everything in it | [`world`] |
//! | what goes wrong when | [`trouble`] |
//! | what liars say | [`liars`] |
//! | clients' requests, and who serves them | [`requests`] |
//! | what must hold, as sentences | [`checks`] |
//! | which plans took effect in a term, and for whom | `terms` |
//! | what happened, for people | [`chronicle`] |
//!
//! Messages are really signed, once, and shared by all who hear them. Plans are the scheduler's, or [`sketch`]ed where a
//! story is not about them; since they follow from the view alone, peers that share a view share the work of making and
//! valuing one (`memo`).

pub mod cast;
pub mod checks;
pub mod chronicle;
pub mod liars;
mod memo;
pub mod net;
pub mod process;
pub mod requests;
mod script;
pub mod sketch;
mod terms;
pub mod trouble;
pub mod world;

pub use checks::{Broken, Figures};
pub use script::{Planning, Report, Script, rehearse};
pub use trouble::Fault;
pub use world::World;
