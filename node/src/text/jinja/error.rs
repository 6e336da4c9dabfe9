//! Why a template gives no text.

use std::fmt;

/// A template that cannot be read, that refuses what it is given, or that asks for what cannot be done as Python does it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What is wrong.
    why: String,
    /// The line of the template, counted from one.
    line: Option<u32>,
}

/// A value, or why there is none.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error whose place is not known yet.
    pub fn new(why: impl Into<String>) -> Self {
        Self { why: why.into(), line: None }
    }

    /// The same, of this line if nobody has said another: what is innermost knows best.
    pub fn at(self, line: u32) -> Self {
        Self { line: self.line.or(Some(line)), ..self }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.why),
            None => f.write_str(&self.why),
        }
    }
}

/// An error from what `format!` takes.
macro_rules! refuse {
    ($($given:tt)*) => { Err($crate::text::jinja::error::Error::new(format!($($given)*))) };
}
pub(super) use refuse;
