//! Encoders: models that make a vector or a score of a text, whole on each peer that lends one, computed by candle.
//!
//! They stand beside the plan: who lends one says so in its advert, and any gateway asks any lender. A vector depends on its
//! text alone, so nothing is kept between requests, and one that a lender did not answer is asked of another.

mod ask;
mod batch;
mod candle_models;
mod encoder;
mod encoder_settings;
mod error;
mod family;
mod folder;
mod head;
mod lend;
mod pooling;

#[cfg(test)]
mod tests;

pub use ask::{Asker, EncodeError, Encoders, Query, run};
pub use encoder::Encoder;
pub use error::EncoderError;
pub use lend::{Computing, Lenders, LentEncoder};
