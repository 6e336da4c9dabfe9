//! Models' weights between peers: named by all of their bytes, given to whoever asks, fetched from whoever has them, chunk by chunk.

mod drafts;
mod error;
mod fetch;
mod fetching;
mod give;
mod identify;
mod index;
mod kept;
mod notes;
mod origin;
mod provision;
mod pulls;
mod remembered;
mod room;
mod shed;
mod stock;
mod stocks;
mod work;

pub use drafts::PartialFiles;
pub use error::FetchError;
pub use fetch::{BadPeers, FetchTimeouts, Fetcher, HolderTalk, ModelHolders, Peers};
pub use fetching::{ConcurrentFetches, Fetching};
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
