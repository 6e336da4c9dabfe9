//! Models' weights between peers: named by all of their bytes, given to whoever asks, fetched from whoever has them, chunk by chunk.

mod error;
mod fetch;
mod give;
mod identify;
mod index;
mod provision;
mod room;
mod work;

pub use error::FetchError;
pub use fetch::{Fetcher, Patience, Peers, Places, Talk};
pub use give::{Giver, Holding};
pub use identify::{Identified, identify};
pub use index::Index;
pub use provision::{Fetching, Limits, Provision};
pub use work::Tally;
