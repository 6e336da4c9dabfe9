//! Each of these has the machine to itself: it measures times or memory, or has all that the machine can do.

mod bodies;
mod byzantine;
mod crowd;
mod kv_transfer;
mod lending;
mod loaded;
mod plan;
mod recovery;
mod serving;
mod stopped;
mod switching;
mod verbs;
