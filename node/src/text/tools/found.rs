//! What a parser has found, in order.

use crate::text::answer_part::AnswerPart;
use serde_json::Value;

/// Pieces that belong together are one. White space before a call is no content, nor is what follows the last one.
#[derive(Debug, Default)]
pub(super) struct FoundPieces {
    said: Vec<AnswerPart>,
    calls: usize,
    /// At the end of the content so far.
    spaces: String,
}

impl FoundPieces {
    pub fn content(&mut self, text: &str) {
        self.spaces.push_str(text);
        if text.trim_end().is_empty() {
            // However much white space comes, it is not looked through again.
            return;
        }
        let words = self.spaces.trim_end().len();
        let spaces = self.spaces.split_off(words);
        let words = std::mem::replace(&mut self.spaces, spaces);
        match self.said.last_mut() {
            Some(AnswerPart::Content(said)) => said.push_str(&words),
            _ => self.said.push(AnswerPart::Content(words)),
        }
    }

    pub fn begin(&mut self, name: &str) {
        self.spaces.clear();
        self.said.push(AnswerPart::Call { index: self.calls, name: name.to_owned() });
        self.calls += 1;
    }

    /// Of the call that began last.
    pub fn arguments(&mut self, piece: &str) {
        match self.said.last_mut() {
            Some(AnswerPart::Arguments { piece: so_far, .. }) => so_far.push_str(piece),
            _ => self.said.push(AnswerPart::Arguments { index: self.calls.saturating_sub(1), piece: piece.to_owned() }),
        }
    }

    /// More of a text within the arguments, as JSON writes it.
    pub fn within_text(&mut self, text: &str) {
        let quoted = Value::from(text).to_string();
        if !text.is_empty() {
            self.arguments(&quoted[1..quoted.len() - 1]);
        }
    }

    /// What was found since the last time.
    pub fn take(&mut self) -> Vec<AnswerPart> {
        std::mem::take(&mut self.said)
    }

    /// The rest.
    pub fn finish(&mut self) -> Vec<AnswerPart> {
        let spaces = std::mem::take(&mut self.spaces);
        let mut said = self.take();
        if self.calls == 0 && !spaces.is_empty() {
            said.push(AnswerPart::Content(spaces));
        }
        said
    }
}
