//! Text becomes tokens, tokens become text: tokenizer, chat template, stop strings.

pub mod apart;
mod bytes;
mod chat;
mod defaults;
mod detokenise;
mod fewest;
mod guarded;
mod jinja;
mod model;
mod reader;
mod short;
mod specials;
mod stop;
mod templates;
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
