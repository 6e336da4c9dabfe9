//! Thoughts apart from the answer: models write them between `<think>` and `</think>` before it, and some templates write
//! the first of the two.

use super::tools::Markers;

const BEGIN: &str = "<think>";
const END: &str = "</think>";

/// Where an answer is.
#[derive(Debug)]
enum State {
    /// Nothing but white space came.
    Before(String),
    /// Newlines at the begin of thoughts are no part of them, nor those at their end.
    Thinking {
        end: Markers,
        newlines: String,
        is_begun: bool,
    },
    /// Nor are those between thoughts and answer.
    Between,
    Answering,
}

/// Looks for thoughts in a growing text.
#[derive(Debug)]
pub struct ReasoningParser(State);

impl ReasoningParser {
    /// What stands around thoughts.
    pub const MARKS: [&str; 2] = [BEGIN, END];

    /// For an answer whose prompt does not begin them, or does.
    #[must_use]
    pub fn new(is_thinking: bool) -> Self {
        Self(if is_thinking { State::thinking() } else { State::Before(String::new()) })
    }

    /// Whether a prompt of that text ends where thoughts have begun.
    #[must_use]
    pub fn begins_within(prompt: &str) -> bool {
        prompt.trim_end().ends_with(BEGIN)
    }

    /// What a piece adds to thoughts and answer.
    pub fn push(&mut self, text: &str) -> (String, String) {
        let (mut thought, mut answer) = (String::new(), String::new());
        for letter in text.chars() {
            self.letter(letter, &mut thought, &mut answer);
        }
        (thought, answer)
    }

    /// What was held back, when no more comes.
    pub fn finish(&mut self) -> (String, String) {
        match std::mem::replace(&mut self.0, State::Answering) {
            State::Before(held) => (String::new(), held),
            State::Thinking { mut end, mut newlines, .. } => {
                let held = end.finish();
                newlines.push_str(&held);
                (if held.is_empty() { String::new() } else { newlines }, String::new())
            }
            State::Between | State::Answering => Default::default(),
        }
    }

    fn letter(&mut self, letter: char, thought: &mut String, answer: &mut String) {
        match &mut self.0 {
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
            State::Thinking { end, newlines, is_begun } => {
                let (passed, found) = end.push(letter);
                for letter in passed.chars() {
                    if letter == '\n' {
                        newlines.push(letter);
                        continue;
                    }
                    if std::mem::replace(is_begun, true) {
                        thought.push_str(newlines);
                    }
                    newlines.clear();
                    thought.push(letter);
                }
                if found.is_some() {
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
        Self::Thinking { end: Markers::new(&[END]), newlines: String::new(), is_begun: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed<'t>(is_thinking: bool, pieces: impl IntoIterator<Item = &'t str>) -> (String, String) {
        let mut parser = ReasoningParser::new(is_thinking);
        let (mut thought, mut answer) = (String::new(), String::new());
        let mut add = |(more, said): (String, String)| {
            thought.push_str(&more);
            answer.push_str(&said);
        };
        pieces.into_iter().for_each(|piece| add(parser.push(piece)));
        add(parser.finish());
        (thought, answer)
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
        assert!(ReasoningParser::begins_within("<|assistant|><think>\n"));
        assert!(!ReasoningParser::begins_within("<|assistant|><think>\n\n</think>\n\n"));
        assert!(!ReasoningParser::begins_within("<|assistant|>"));
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
