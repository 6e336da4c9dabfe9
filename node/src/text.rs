//! Text becomes tokens, tokens become text: tokenizer, chat template, stop strings.

mod answer;
mod answers;
mod bytes;
mod chat;
mod defaults;
mod detokenise;
mod fewest;
pub mod grammar;
mod jinja;
mod model;
mod reader;
mod reasoning;
mod said;
pub mod sandbox;
mod short;
mod specials;
mod stop;
mod templates;
mod tokenizer_guard;
mod tools;
mod vocabulary;
mod workers;

pub use answer::AnswerParser;
pub use answers::{Parsers, ReasoningFormat};
pub use chat::{ChatMessage, ChatTemplate, Conversation, TemplateText, ToolCall};
pub use defaults::Defaults;
pub use detokenise::{Detokeniser, TokenText};
pub use model::{TextError, TextModel};
pub use reasoning::ReasoningParser;
pub use said::Said;
pub use specials::SpecialText;
pub use stop::{Passed, StopStrings};
pub use templates::Templates;
pub use tools::{ToolFormat, ToolParser};
pub use vocabulary::{VocabularyError, speak_alike};
pub use workers::{Unfinished, Workers};
