//! Jinja as transformers runs it: the language of chat templates, with Python's values under it.
//!
//! Models are trained on what Jinja2 makes of their templates, to the space, so this renders as Jinja2 3.1 does in
//! transformers' environment: an immutable sandbox with `trim_blocks`, `lstrip_blocks`, loop controls and the tag
//! `generation`. It is written here because no library does that: minijinja has other values under it, whose printing,
//! comparing and methods differ from Python's without an error, and nothing outside it can change them.
//!
//! What cannot be rendered as Jinja2 renders it is refused by name: whole numbers of more than 128 bits, what would print an
//! address in memory, other templates, `autoescape`. `jinja/cases.jsonl` holds what Jinja2 makes of some hundred templates.

mod args;
mod ast;
mod braces;
mod checks;
mod display;
mod error;
mod filters;
mod functions;
mod json;
mod letters;
mod lexer;
mod machine;
mod methods;
mod numbers;
mod objects;
mod operators;
mod parser;
mod printf;
mod scope;
mod spec;
mod value;

pub use error::Error;
pub use value::{Dict, Value};

use super::clock::Clock;
use error::Result;
use std::sync::Arc;

/// Stack for reading and rendering (bytes): templates put values, tags and calls into each other.
const STACK: usize = 64 << 20;

/// A template that was read.
pub struct Template(parser::ParsedTemplate);

impl Drop for Template {
    /// It may be as deep as it was read.
    fn drop(&mut self) {
        let whole = std::mem::take(&mut self.0);
        // Without a thread it is dropped here, with what stack there is.
        _ = deep(move || {
            drop(whole);
            Ok(())
        });
    }
}

impl Template {
    /// Reads it.
    ///
    /// # Errors
    /// When it is not Jinja: why, and in which line.
    pub fn read(source: &str) -> Result<Self> {
        deep(|| parser::parse(source)).map(Self)
    }

    /// The text it makes of what it is given by name. What is given is made where it is rendered: values are not for other
    /// threads.
    ///
    /// # Errors
    /// When it refuses what it is given, asks for what there is not, or takes too many steps.
    pub fn render(
        &self,
        clock: Clock,
        given: impl FnOnce() -> Result<Vec<(Arc<str>, Value)>> + Send,
    ) -> Result<String> {
        deep(|| machine::Machine::new(&self.0, clock, given()?).render())
    }
}

/// Work on a stack of its own, which is as deep as the limits allow.
fn deep<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("template".into()).stack_size(STACK).spawn_scoped(scope, work);
        let failed = |why: &dyn std::fmt::Display| Error::new(format!("no thread for the template: {why}"));
        let thread = thread.map_err(|error| failed(&error))?;
        thread.join().unwrap_or_else(|_| Err(failed(&"it ended early")))
    })
}
