//! Text becomes tokens, tokens become text: tokenizer, chat template, stop strings.

mod chat;
mod detokenise;
mod guarded;
mod model;
mod stop;

pub use chat::{ChatMessage, ChatTemplate};
pub use detokenise::Detokeniser;
pub use model::{Defaults, TextError, TextModel};
pub use stop::{Passed, StopStrings};
