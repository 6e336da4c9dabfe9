//! Text becomes tokens, tokens become text: tokenizer, chat template, stop strings.

mod bytes;
mod chat;
mod defaults;
mod detokenise;
mod fewest;
pub mod grammar;
mod jinja;
mod model;
mod reader;
pub mod sandbox;
mod short;
mod specials;
mod stop;
mod templates;
mod tokenizer_guard;
mod vocabulary;
mod workers;

pub use chat::{ChatMessage, ChatTemplate, TemplateText};
pub use defaults::Defaults;
pub use detokenise::{Detokeniser, TokenText};
pub use model::{TextError, TextModel};
pub use specials::SpecialText;
pub use stop::{Passed, StopStrings};
pub use templates::Templates;
pub use vocabulary::{VocabularyError, speak_alike};
pub use workers::{Unfinished, Workers};
