//! Parts of an answer that was taken apart.

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerPart {
    /// Thought, before the answer.
    Reasoning(String),
    /// Said to the user.
    Content(String),
    /// A call begins.
    Call {
        /// Which of the answer's calls, from 0.
        index: usize,
        /// The tool.
        name: String,
    },
    /// More of a call's arguments, as JSON text.
    Arguments {
        /// Of that call.
        index: usize,
        /// What is added.
        piece: String,
    },
}
