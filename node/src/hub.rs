//! Models by name: what a name means, where the hub's files lie in the Hugging Face cache of this host, and how they come there.
//!
//! The cache is the one that `huggingface_hub` keeps, in its own layout, so that nothing is downloaded twice: `blobs` by the hash
//! that the hub gives, `snapshots` of links to them by commit, `refs` from branches and tags to commits.

mod asked_model;
mod cache;
mod catalogue;
mod client;
mod download;
mod error;
mod hash;
mod name;
mod news;
mod pull;
mod repo_files;
mod settings;

pub use asked_model::{AskedModel, model};
pub use cache::{Cache, CachedModel, CachedOrigin, Damage, is_gated, name_of, origin_of};
pub use catalogue::{Alias, aliases};
pub use client::{FoundRepo, Hub};
pub use error::HubError;
pub use name::{ModelName, NameError, Quant, RepoId, Revision};
pub use news::PullNews;
pub use pull::{PulledModel, Use, find, obtain, pull};
pub use settings::{HubSettings, HubTimeouts, HubToken};
