//! Thoughts apart from the answer: models write them between `<think>` and `</think>` before it, and some templates write
//! the first of the two.

use super::tools::{Markers, ThoughtMarks};

const BEGIN: &str = "<think>";
const END: &str = "</think>";
/// What stands around them.
pub(super) const MARKS: ThoughtMarks = ThoughtMarks { begin: BEGIN, label: "", end: END };

/// Finds thoughts in a growing answer. Any cut of it into pieces gives the same.
pub trait ThoughtParser: Send {
    /// What a piece adds to thoughts and answer.
    fn push(&mut self, text: &str) -> (String, String);
    /// What was held back, when no more comes.
    fn finish(&mut self) -> (String, String);
    /// Whether what comes next is thought, as far as is known.
    fn is_thinking(&self) -> bool;
}

/// Within thoughts. Newlines at their begin are no part of them, nor those at their end.
#[derive(Debug)]
pub(super) struct Thinking {
    end: Markers,
    newlines: String,
    is_begun: bool,
}

impl Thinking {
    /// Up to one of these marks.
    pub fn until(ends: &'static [&'static str]) -> Self {
        Self { end: Markers::new(ends), newlines: String::new(), is_begun: false }
    }

    /// Adds what a letter says of them, and says whether it is the last of a mark that ends them.
    pub fn push(&mut self, letter: char, thought: &mut String) -> bool {
        let (passed, found) = self.end.push(letter);
        for letter in passed.chars() {
            if letter == '\n' {
                self.newlines.push(letter);
                continue;
            }
            if std::mem::replace(&mut self.is_begun, true) {
                thought.push_str(&self.newlines);
            }
            self.newlines.clear();
            thought.push(letter);
        }
        found.is_some()
    }

    /// What was held back, when no more comes.
    pub fn finish(mut self) -> String {
        let held = self.end.finish();
        if held.is_empty() { held } else { self.newlines + &held }
    }
}

/// Where an answer is.
#[derive(Debug)]
enum State {
    /// Nothing but white space came.
    Before(String),
    Thinking(Thinking),
    /// Newlines between thoughts and answer are no part of either.
    Between,
    Answering,
}

/// Looks for thoughts in a growing text.
#[derive(Debug)]
pub struct ReasoningParser(State);

impl ReasoningParser {
    /// For an answer whose prompt does not begin them, or does.
    #[must_use]
    pub fn new(is_thinking: bool) -> Self {
        Self(if is_thinking { State::thinking() } else { State::Before(String::new()) })
    }

    fn letter(&mut self, letter: char, thought: &mut String, answer: &mut String) {
        match &mut self.0 {
            // However much white space comes, it is not looked through again.
            State::Before(held) if letter.is_whitespace() && held.ends_with(char::is_whitespace) => held.push(letter),
            State::Before(held) => {
                held.push(letter);
                let said = held.trim_start();
                if said == BEGIN {
                    self.0 = State::thinking();
                } else if !BEGIN.starts_with(said) {
                    answer.push_str(held);
                    self.0 = State::Answering;
                }
            }
            State::Thinking(thinking) => {
                if thinking.push(letter, thought) {
                    self.0 = State::Between;
                }
            }
            State::Between if letter == '\n' => {}
            State::Between => {
                answer.push(letter);
                self.0 = State::Answering;
            }
            State::Answering => answer.push(letter),
        }
    }
}

impl State {
    fn thinking() -> Self {
        Self::Thinking(Thinking::until(&[END]))
    }
}

impl ThoughtParser for ReasoningParser {
    fn push(&mut self, text: &str) -> (String, String) {
        let (mut thought, mut answer) = (String::new(), String::new());
        for letter in text.chars() {
            self.letter(letter, &mut thought, &mut answer);
        }
        (thought, answer)
    }

    fn finish(&mut self) -> (String, String) {
        match std::mem::replace(&mut self.0, State::Answering) {
            State::Before(held) => (String::new(), held),
            State::Thinking(thinking) => (thinking.finish(), String::new()),
            State::Between | State::Answering => Default::default(),
        }
    }

    fn is_thinking(&self) -> bool {
        matches!(self.0, State::Thinking(_))
    }
}

/// What a parser makes of pieces in all.
#[cfg(test)]
pub(super) fn parsed_by<'t>(
    parser: &mut impl ThoughtParser,
    pieces: impl IntoIterator<Item = &'t str>,
) -> (String, String) {
    let (mut thought, mut answer) = (String::new(), String::new());
    let mut add = |(more, said): (String, String)| {
        thought.push_str(&more);
        answer.push_str(&said);
    };
    pieces.into_iter().for_each(|piece| add(parser.push(piece)));
    add(parser.finish());
    (thought, answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed<'t>(is_thinking: bool, pieces: impl IntoIterator<Item = &'t str>) -> (String, String) {
        parsed_by(&mut ReasoningParser::new(is_thinking), pieces)
    }

    #[test]
    fn thoughts_are_apart_from_the_answer() {
        for (is_thinking, text, thought, answer) in [
            (false, "<think>\nOne and one.\n\nSo two.\n</think>\n\nTwo.\n", "One and one.\n\nSo two.", "Two.\n"),
            (true, "One and one.</think>Two.", "One and one.", "Two."),
            (true, "\nOne </thin> and\n</think>\n\nTwo", "One </thin> and", "Two"),
            (false, " \n<think></think>Two.", "", "Two."),
            (false, "Two <think>no</think>.", "", "Two <think>no</think>."),
            (false, " <thinking>", "", " <thinking>"),
            (false, "<thi", "", "<thi"),
            (false, "<think>cut off\n", "cut off", ""),
            (true, "cut off </thi", "cut off </thi", ""),
            (false, "", "", ""),
        ] {
            assert_eq!(parsed(is_thinking, [text]), (thought.into(), answer.into()), "{text:?}");
        }
    }

    #[test]
    fn a_prompt_may_begin_them() {
        assert!(MARKS.are_begun_by("<|assistant|><think>\n"));
        assert!(!MARKS.are_begun_by("<|assistant|><think>\n\n</think>\n\n"));
        assert!(!MARKS.are_begun_by("<|assistant|>"));
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same(text in "(<think>|</think>|\n|<|th|a){0,12}", cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6), is_thinking: bool) {
            let pieces = crate::text::tools::split(&text, &cuts);
            prop_assert_eq!(parsed(is_thinking, pieces), parsed(is_thinking, [text.as_str()]));
        }

        #[test]
        fn an_answer_without_thoughts_loses_nothing(text in "[ \n<>/a-z]{0,40}") {
            prop_assert_eq!(parsed(false, [text.as_str()]), (String::new(), text));
        }
    }
}
