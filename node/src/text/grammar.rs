//! What may follow in an answer that has to have a form (structured outputs), by `llguidance`: grammars over a model's tokens.
//!
//! Clients write grammars, so that compiling one and following it have limits: of size, steps, states and stack. Work on them
//! is done in threads of their own ([`Grammars`]).

mod schema_path;
mod threads;
mod token_bytes;

pub use threads::Grammars;
pub use token_bytes::GrammarVocabulary;

use llguidance::{
    Matcher, ParserFactory,
    api::{ParserLimits, StopReason, TopLevelGrammar},
    earley::SlicedBiasComputer,
    toktrie::{InferenceCapabilities, TokEnv},
};
use serde_json::{Value, json};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tsnode_protocol::{Grammar, Token};

/// Characters of a reason that a client is told.
const REASON: usize = 400;

/// Why a grammar is not followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// It is none, or needs what is not built, or is too large.
    #[error("{0}")]
    Refused(String),
    /// No token can be chosen after those that the answer has.
    #[error("the answer's grammar cannot be followed further: {0}")]
    Stuck(String),
    /// The model's tokenizer says nothing of its tokens' bytes.
    #[error("the model's tokenizer cannot be used for grammars: {0}")]
    NoVocabulary(String),
    /// There is no thread for it, or too much waits for one.
    #[error("too many answers with a grammar are waiting, or the system gives no thread for them")]
    Busy,
}

/// Limits of one answer's grammar. Those that name steps bound time: at 14,000 to 50,000 in a millisecond, compiling takes
/// some 20 ms and a mask some 15 ms at most.
fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2_000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        // One to two kilobytes each.
        max_lexer_states: 10_000,
        max_grammar_size: 100_000,
        precompute_large_lexemes: true,
        // These would repeat the grammar and the answer.
        verbose_errors: false,
    }
}

/// Compiles grammars for the tokens of one model.
pub struct GrammarCompiler {
    factory: ParserFactory,
    vocab: u32,
}

/// What white space there may be between two signs of an answer in JSON: a space, or a line's end and the next one's indentation. JSON
/// allows any, and a small model may fill an answer with it.
const WHITE_SPACE: &str = r" |\n[ \t]{0,32}";
/// llguidance's own keyword, of a schema as a whole.
const OWN: &str = "x-guidance";

/// A schema that has no wishes of its own for white space, with ours.
fn sparing(mut schema: Value) -> Value {
    if let Value::Object(keywords) = &mut schema {
        keywords.entry(OWN).or_insert_with(|| json!({ "whitespace_pattern": WHITE_SPACE }));
    }
    schema
}

impl GrammarCompiler {
    /// For a vocabulary.
    ///
    /// # Errors
    /// When it is not one.
    pub fn new(vocabulary: GrammarVocabulary) -> Result<Self, GrammarError> {
        let vocab = vocabulary.size();
        let build = || {
            let env: TokEnv = vocabulary.into_env();
            let slices = SlicedBiasComputer::general_slices();
            let factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices);
            factory.map_err(|e| GrammarError::NoVocabulary(e.to_string()))
        };
        let mut factory = fenced(build, GrammarError::NoVocabulary)?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(Self { factory, vocab })
    }

    /// Compiles a grammar, whose text is complete where one of these tokens may come.
    ///
    /// # Errors
    /// When it is none, or too large; where in it, as far as that can be said.
    pub fn compile(&self, grammar: &Grammar, ends: &[Token]) -> Result<Follow, GrammarError> {
        let matcher = match grammar {
            Grammar::JsonSchema(text) => {
                let wrong = |e: serde_json::Error| GrammarError::Refused(format!("the schema is not JSON: {e}"));
                let schema = sparing(serde_json::from_str(text).map_err(wrong)?);
                let compiles = |schema| self.matcher(TopLevelGrammar::from_json_schema(schema));
                schema_path::named(schema, compiles)?
            }
            Grammar::Regex(text) => self.matcher(TopLevelGrammar::from_regex(text))?,
            Grammar::Lark(text) => self.matcher(TopLevelGrammar::from_lark(text.clone()))?,
        };
        let ends = ends.iter().map(|token| token.0).filter(|id| *id < self.vocab).collect();
        Ok(Follow { matcher, vocab: self.vocab, ends })
    }

    fn matcher(&self, grammar: TopLevelGrammar) -> Result<Matcher, GrammarError> {
        let build = || {
            let matcher = Matcher::new(self.factory.create_parser(grammar));
            match matcher.get_error() {
                None => Ok(matcher),
                Some(why) => Err(GrammarError::Refused(shortened(&why))),
            }
        };
        fenced(build, GrammarError::Refused)
    }
}

/// A grammar, and how far an answer has followed it.
pub struct Follow {
    matcher: Matcher,
    vocab: u32,
    ends: Vec<u32>,
}

impl Follow {
    /// The answer goes on with these tokens.
    ///
    /// # Errors
    /// When they are not allowed there.
    pub fn consume(&mut self, tokens: &[Token]) -> Result<(), GrammarError> {
        if tokens.is_empty() {
            return Ok(());
        }
        let ids: Vec<u32> = tokens.iter().map(|token| token.0).collect();
        self.matcher.consume_tokens(&ids).map_err(|e| stuck(&e.to_string()))
    }

    /// The tokens that may come next, a bit each: that of token 0 is the lowest of the first word.
    ///
    /// # Errors
    /// When there is none, or finding them takes more than it may.
    pub fn allowed(&mut self) -> Result<Vec<u32>, GrammarError> {
        if self.matcher.is_stopped() && is_failure(self.matcher.stop_reason()) {
            return Err(stuck(&self.matcher.get_error().unwrap_or_default()));
        }
        let mask = self.matcher.compute_mask_or_eos().map_err(|e| stuck(&e.to_string()))?;
        let mut words = mask.as_slice().to_vec();
        // Behind the model's tokens is one that says that the text is complete.
        let is_complete = bit(&words, self.vocab);
        set(&mut words, self.vocab, false);
        for end in &self.ends {
            set(&mut words, *end, is_complete);
        }
        if words.iter().all(|word| *word == 0) {
            return Err(stuck("no token of the model fits"));
        }
        Ok(words)
    }

    /// Whether this token may come next.
    #[cfg(test)]
    fn allows(&mut self, token: Token) -> bool {
        bit(&self.allowed().unwrap(), token.0)
    }
}

fn is_failure(reason: StopReason) -> bool {
    !reason.is_ok()
}

fn bit(words: &[u32], id: u32) -> bool {
    words.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1)
}

fn set(words: &mut [u32], id: u32, to: bool) {
    if let Some(word) = words.get_mut(id as usize / 32) {
        *word = *word & !(1 << (id % 32)) | u32::from(to) << (id % 32);
    }
}

fn stuck(why: &str) -> GrammarError {
    GrammarError::Stuck(shortened(why))
}

/// A reason without what follows a panic, and not longer than a client wants to read.
fn shortened(why: &str) -> String {
    let why = why.split("\n<backtrace>").next().unwrap_or_default().trim();
    let mut short: String = why.chars().take(REASON).collect();
    if short.len() < why.len() {
        short += "…";
    }
    short
}

/// Work of the crate that may panic.
fn fenced<T>(
    work: impl FnOnce() -> Result<T, GrammarError>,
    error: impl FnOnce(String) -> GrammarError,
) -> Result<T, GrammarError> {
    let broken = |_| Err(error("it cannot be read".into()));
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(broken)
}

#[cfg(test)]
mod tests;
