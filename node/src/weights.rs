//! Models' weights between peers: named by all of their bytes, given to whoever asks, fetched from whoever has them, chunk by chunk.

mod disk_space;
mod drafts;
mod error;
mod fetch;
mod fetch_progress;
mod give;
mod identify;
mod index;
mod kept;
mod notes;
mod origin;
mod provision;
mod pulls;
mod remembered;
mod shed;
mod stock;
mod stocks;
mod work;

pub use drafts::PartialFiles;
pub use error::FetchError;
pub use fetch::{BadPeers, FetchTimeouts, Fetcher, HolderTalk, ModelHolders, Peers};
pub use fetch_progress::{ConcurrentFetches, Fetching};
pub use give::{Giver, Holding};
pub use identify::{Identified, identify};
pub use index::Index;
pub use kept::{KeptDamage, KeptModel, kept, remove_kept};
pub use origin::{KeptOrigin, kept_origin};
pub use provision::{MeasureLayer, Provision, ProvisionLimits};
pub use pulls::{Pull, Pulled, Puller, Pulls, TooMany, Wishes};
pub use remembered::pulled;
pub use shed::LayersInUse;
pub use stock::{Stock, Tell};
pub use stocks::Stocks;
pub use work::FetchTally;
