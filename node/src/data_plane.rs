//! The data plane: links between peers, what is known of them, and what travels over them.

pub mod carrier;
pub mod doors;
pub mod heartbeats;
pub mod library;
pub mod links;
pub mod listening;
pub mod measure;
pub mod models;
pub mod offences;
pub mod prober;
pub mod roster;
