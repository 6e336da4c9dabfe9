//! Thoughts on a channel of their own: Gemma 4 writes them between `<|channel>thought` and `<channel|>`, before the answer and
//! perhaps again within it or behind it.

use super::{
    reasoning::{Thinking, ThoughtParser},
    tools::{Markers, ThoughtMarks},
};

const BEGIN: &str = "<|channel>";
const NAME: &str = "thought\n";
const END: &str = "<channel|>";
/// What stands around them.
pub(super) const MARKS: ThoughtMarks = ThoughtMarks { begin: BEGIN, label: NAME, end: END };

#[derive(Debug)]
enum State {
    Outside(Markers),
    /// Behind the mark of a channel, with what may be its name.
    Opened(String),
    Thinking(Thinking),
}

impl State {
    /// A mark that ends no thoughts is no part of the answer, either.
    fn outside() -> Self {
        Self::Outside(Markers::new(&[BEGIN, END]))
    }

    fn thinking() -> Self {
        Self::Thinking(Thinking::until(&[END]))
    }
}

/// How far the answer is.
#[derive(Debug)]
enum AnswerProgress {
    /// Nothing but white space came, which is of it unless thoughts follow.
    Before(String),
    /// Thoughts came, and newlines behind them are no part of it.
    BehindThoughts,
    Begun,
}

impl AnswerProgress {
    fn say(&mut self, text: &str, answer: &mut String) {
        for letter in text.chars() {
            let is_said = match self {
                Self::Before(spaces) if letter.is_whitespace() => {
                    spaces.push(letter);
                    false
                }
                Self::Before(spaces) => {
                    answer.push_str(spaces);
                    true
                }
                Self::BehindThoughts => letter != '\n',
                Self::Begun => true,
            };
            if is_said {
                *self = Self::Begun;
                answer.push(letter);
            }
        }
    }

    fn interrupt(&mut self) {
        if !matches!(self, Self::Begun) {
            *self = Self::BehindThoughts;
        }
    }
}

/// Looks for channels in a growing text.
#[derive(Debug)]
pub struct ChannelParser {
    state: State,
    answer: AnswerProgress,
}

impl ChannelParser {
    /// For an answer whose prompt does not begin thoughts, or does.
    #[must_use]
    pub fn new(is_thinking: bool) -> Self {
        if is_thinking {
            Self { state: State::thinking(), answer: AnswerProgress::BehindThoughts }
        } else {
            Self { state: State::outside(), answer: AnswerProgress::Before(String::new()) }
        }
    }

    fn letter(&mut self, letter: char, thought: &mut String, answer: &mut String) {
        match &mut self.state {
            State::Outside(marks) => {
                let (passed, mark) = marks.push(letter);
                self.answer.say(&passed, answer);
                if mark == Some(BEGIN) {
                    self.answer.interrupt();
                    self.state = State::Opened(String::new());
                }
            }
            State::Opened(name) => {
                name.push(letter);
                if name.as_str() == NAME {
                    self.state = State::thinking();
                } else if name.as_str() == BEGIN {
                    // The channel before had nothing in it.
                    name.clear();
                } else if !NAME.starts_with(name.as_str()) && !BEGIN.starts_with(name.as_str()) {
                    // One without a name is for thoughts all the same.
                    let text = std::mem::take(name);
                    self.state = State::thinking();
                    for letter in text.chars() {
                        self.letter(letter, thought, answer);
                    }
                }
            }
            State::Thinking(thinking) => {
                if thinking.push(letter, thought) {
                    self.state = State::outside();
                }
            }
        }
    }
}

impl ThoughtParser for ChannelParser {
    fn push(&mut self, text: &str) -> (String, String) {
        let (mut thought, mut answer) = (String::new(), String::new());
        for letter in text.chars() {
            self.letter(letter, &mut thought, &mut answer);
        }
        (thought, answer)
    }

    fn finish(&mut self) -> (String, String) {
        let (mut thought, mut answer) = (String::new(), String::new());
        match std::mem::replace(&mut self.state, State::outside()) {
            State::Outside(mut marks) => self.answer.say(&marks.finish(), &mut answer),
            State::Opened(name) if NAME.starts_with(name.as_str()) => {}
            State::Opened(name) => thought = name,
            State::Thinking(thinking) => thought = thinking.finish(),
        }
        if let AnswerProgress::Before(spaces) = &mut self.answer {
            answer.push_str(&std::mem::take(spaces));
        }
        (thought, answer)
    }

    fn is_thinking(&self) -> bool {
        matches!(self.state, State::Thinking(_))
    }
}

#[cfg(test)]
mod tests {
    use super::super::reasoning::parsed_by;
    use super::*;
    use proptest::prelude::*;

    fn parsed<'t>(is_thinking: bool, pieces: impl IntoIterator<Item = &'t str>) -> (String, String) {
        parsed_by(&mut ChannelParser::new(is_thinking), pieces)
    }

    #[test]
    fn thoughts_are_apart_from_the_answer() {
        for (is_thinking, text, thought, answer) in [
            (
                false,
                "<|channel>thought\nOne and one.\n\nSo two.\n<channel|>Two.\n",
                "One and one.\n\nSo two.",
                "Two.\n",
            ),
            (true, "One and one.\n<channel|>\n\nTwo.", "One and one.", "Two."),
            (false, " \n<|channel>thought\n<channel|>\nTwo.", "", "Two."),
            // Again within the answer, and once more with nothing in it.
            (
                false,
                "Two\n<|channel>thought\nIs it?\n<channel|>\nplus two.<|channel>thought\n<channel|>",
                "Is it?",
                "Two\n\nplus two.",
            ),
            // Empty channels, one without a name, and an end without a begin.
            (false, "<|channel><|channel>thought\nOne.<channel|>Two.<channel|>", "One.", "Two."),
            (false, "<|channel>thoughts<channel|>Two.", "thoughts", "Two."),
            (false, "<|channel><channel|>Two.", "", "Two."),
            (false, "Two <|chan> <channel> thought\n", "", "Two <|chan> <channel> thought\n"),
            (false, "<|channel>thought\ncut off\n", "cut off", ""),
            (false, "<|channel>thou", "", ""),
            (true, "cut off <chan", "cut off <chan", ""),
            (false, "Two <|chan", "", "Two <|chan"),
            (false, " \n", "", " \n"),
        ] {
            assert_eq!(parsed(is_thinking, [text]), (thought.into(), answer.into()), "{text:?}");
        }
    }

    #[test]
    fn a_prompt_may_begin_them() {
        assert!(MARKS.are_begun_by("<|turn>model\n<|channel>thought\n"));
        // As templates say that nothing is to be thought.
        assert!(!MARKS.are_begun_by("<|turn>model\n<|channel>thought\n<channel|>"));
        assert!(!MARKS.are_begun_by("<|turn>model\n") && !MARKS.are_begun_by("a thought\n"));
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same(text in "(<[|]channel>|thought\n|<channel[|]>|\n|<[|]|th|a){0,12}", cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6), is_thinking: bool) {
            let pieces = crate::text::tools::split(&text, &cuts);
            prop_assert_eq!(parsed(is_thinking, pieces), parsed(is_thinking, [text.as_str()]));
        }

        #[test]
        fn an_answer_without_thoughts_loses_nothing(text in "[ \n<>|/a-z]{0,40}") {
            prop_assert_eq!(parsed(false, [text.as_str()]), (String::new(), text));
        }
    }
}
