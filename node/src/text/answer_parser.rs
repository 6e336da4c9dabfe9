//! An answer taken apart as it grows: what the model thought, what it says, and the tools it calls.

use super::{
    answer_part::AnswerPart,
    reasoning::ThoughtParser,
    tools::{Callable, ToolFormat, ToolParser},
};
use std::sync::Arc;

/// Takes one answer apart; without parsers all of it is content.
#[derive(Default)]
pub struct AnswerParser {
    reasoning: Option<Box<dyn ThoughtParser>>,
    tools: Option<Box<dyn ToolParser>>,
}

impl AnswerParser {
    /// With thoughts apart.
    #[must_use]
    pub fn reasoning(self, parser: Option<Box<dyn ThoughtParser>>) -> Self {
        Self { reasoning: parser, ..self }
    }

    /// With calls of these tools apart, in a family's form.
    #[must_use]
    pub fn tools(self, format: ToolFormat, callable: Arc<[Callable]>) -> Self {
        Self { tools: Some(format.parser(callable)), ..self }
    }

    /// What a piece of text adds.
    pub fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        let Some(reasoning) = &mut self.reasoning else { return self.answer(text) };
        let (thought, content) = reasoning.push(text);
        self.both(thought, &content)
    }

    /// What was held back, when no more comes.
    pub fn finish(&mut self) -> Vec<AnswerPart> {
        let (thought, content) = self.reasoning.as_mut().map(|parser| parser.finish()).unwrap_or_default();
        let mut said = self.both(thought, &content);
        if let Some(tools) = &mut self.tools {
            said.extend(tools.finish());
        }
        said
    }

    /// Whether what comes next is thought, as far as is known.
    #[must_use]
    pub fn is_thinking(&self) -> bool {
        let by_thoughts = self.reasoning.as_ref().is_some_and(|parser| parser.is_thinking());
        by_thoughts || self.tools.as_ref().is_some_and(|parser| parser.is_thinking())
    }

    fn both(&mut self, thought: String, content: &str) -> Vec<AnswerPart> {
        let mut said = Vec::new();
        if !thought.is_empty() {
            said.push(AnswerPart::Reasoning(thought));
        }
        said.extend(self.answer(content));
        said
    }

    fn answer(&mut self, text: &str) -> Vec<AnswerPart> {
        match &mut self.tools {
            _ if text.is_empty() => Vec::new(),
            Some(tools) => tools.push(text),
            None => vec![AnswerPart::Content(text.to_owned())],
        }
    }
}
