//! Each of these has the machine to itself: it measures times or memory, or has all that the machine can do.

mod bodies;
mod byzantine;
mod crowd;
mod kv_transfer;
mod lending;
mod loaded;
mod pipeline;
mod plan;
mod recovery;
mod serving;
mod stopped;
mod switching;
mod verbs;

use tokio::sync::OnceCell;
use tsnode_testnet::{Answers, TestnetConfig};

/// What one peer of the model inside the program answers alone: asked for once, since it is the same for every swarm of it that is broken.
async fn undisturbed(config: &TestnetConfig) -> Answers {
    static KNOWN: OnceCell<Answers> = OnceCell::const_new();
    KNOWN.get_or_try_init(|| Answers::learn(config)).await.unwrap().clone()
}
