//! What the text of an answer must be (structured outputs): a grammar that says after every token which may follow.

use crate::{Token, codec::CodecError, limits};
use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

/// What an answer's text must be. Which tokens may follow depends on it and on the answer so far alone, so that whoever goes
/// on with an answer chooses among the same tokens.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
pub struct Constraint {
    /// What the text must follow, token by token.
    pub grammar: Grammar,
    /// Tokens that may come where the text is complete: those that end an answer.
    pub ends: Vec<Token>,
}

/// A grammar, in one of the forms that clients write them in.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grammar {
    /// A JSON schema, in JSON. Its properties come in the order that it has them.
    JsonSchema(String),
    /// A regular expression that the whole text matches.
    Regex(String),
    /// A grammar in Lark's notation, from its rule `start`.
    Lark(String),
}

impl Grammar {
    /// As it is written.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::JsonSchema(text) | Self::Regex(text) | Self::Lark(text) => text,
        }
    }
}

impl Constraint {
    /// Refuses what is too long to be sent; whether the grammar is one is seen where it is compiled.
    ///
    /// # Errors
    /// Names the rule broken.
    pub fn check(&self) -> Result<(), CodecError> {
        if self.grammar.text().len() > limits::GRAMMAR_BYTES {
            return Err(CodecError::Invalid("grammar too long"));
        }
        if self.ends.len() > limits::GRAMMAR_ENDS {
            return Err(CodecError::Invalid("too many tokens that end an answer"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sampling;

    #[test]
    fn a_grammar_has_an_end() {
        let of = |bytes: usize, ends: usize| {
            let grammar = Grammar::Lark("a".repeat(bytes));
            let constraint = Constraint { grammar, ends: vec![Token(1); ends] };
            Sampling { constraint: Some(constraint.into()), ..Sampling::greedy() }.check()
        };
        let (bytes, ends) = (limits::GRAMMAR_BYTES, limits::GRAMMAR_ENDS);
        assert_eq!(of(bytes, ends), Ok(()));
        assert_eq!(of(bytes + 1, 0), Err(CodecError::Invalid("grammar too long")));
        assert!(of(0, ends + 1).is_err());
    }

    #[test]
    fn what_is_constrained_wants_logits() {
        let constraint = Constraint { grammar: Grammar::Regex("a+".into()), ends: vec![] };
        assert!(Sampling { constraint: Some(constraint.into()), ..Sampling::greedy() }.changes_logits());
        assert!(!Sampling::greedy().changes_logits());
    }
}
