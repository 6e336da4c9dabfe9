//! Harmony, gpt-oss: an answer is messages, each behind a header that says its channel and, of a call, to whom it goes:
//! `<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…`. Thoughts are messages too, so
//! this parser finds them as well.

use super::{AnswerPart, Callable, Markers, ToolParser};
use std::sync::Arc;

pub(super) const CHANNEL: &str = "<|channel|>";
pub(super) const MESSAGE: &str = "<|message|>";
pub(super) const CONSTRAIN: &str = "<|constrain|>";
pub(super) const START: &str = "<|start|>";
const ENDS: &[&str] = &["<|end|>", "<|return|>", "<|call|>", START];
const HEADS: &[&str] = &[MESSAGE, "<|end|>", "<|return|>"];
const OUTSIDE: &[&str] = &[START, CHANNEL, MESSAGE];
pub(super) const MARKS: &[&str] = &[CHANNEL, MESSAGE, CONSTRAIN, START, "<|end|>", "<|return|>", "<|call|>"];

/// Whom calls of the client's tools go to, before the tool's name.
const FUNCTIONS: &str = "functions.";
/// Letters of a header: what goes on for longer is none.
const HEADER: usize = 1024;

/// What the letters of a message are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HarmonyChannel {
    Thought,
    Content,
    Arguments,
}

#[derive(Debug)]
enum State {
    /// Before a header. An answer that has none is content.
    Outside(Markers),
    Header {
        end: Markers,
        text: String,
    },
    Message {
        end: Markers,
        kind: HarmonyChannel,
    },
}

impl State {
    fn outside() -> Self {
        Self::Outside(Markers::new(OUTSIDE))
    }

    fn header() -> Self {
        Self::Header { end: Markers::new(HEADS), text: String::new() }
    }
}

pub(super) struct Harmony {
    state: State,
    tools: Arc<[Callable]>,
    said: Vec<AnswerPart>,
    calls: usize,
}

impl Harmony {
    pub fn new(tools: Arc<[Callable]>) -> Self {
        Self { state: State::outside(), tools, said: Vec::new(), calls: 0 }
    }

    fn letter(&mut self, letter: char) {
        match &mut self.state {
            State::Outside(begin) => {
                let (passed, mark) = begin.push(letter);
                if let Some(mark) = mark {
                    self.state = if mark == MESSAGE { self.message("") } else { State::header() };
                }
                self.add(HarmonyChannel::Content, &passed);
            }
            State::Header { end, text } => {
                let (passed, mark) = end.push(letter);
                text.push_str(&passed);
                let header = std::mem::take(text);
                match mark {
                    Some(MESSAGE) => self.state = self.message(&header),
                    Some(_) => self.state = State::outside(),
                    None if header.len() > HEADER => {
                        self.state = State::outside();
                        self.add(HarmonyChannel::Content, &header);
                    }
                    None => *text = header,
                }
            }
            State::Message { end, kind } => {
                let (kind, (passed, mark)) = (*kind, end.push(letter));
                if let Some(mark) = mark {
                    self.state = if mark == START { State::header() } else { State::outside() };
                }
                self.add(kind, &passed);
            }
        }
    }

    /// The message behind a header.
    fn message(&mut self, header: &str) -> State {
        let words = || header.split(|c: char| c.is_whitespace() || c == '<' || c == '>' || c == '|');
        let to = words().find_map(|word| word.strip_prefix("to="));
        let name = to.and_then(|to| to.strip_prefix(FUNCTIONS)).filter(|name| self.knows(name));
        let kind = match name {
            Some(name) => {
                self.said.push(AnswerPart::Call { index: self.calls, name: name.to_owned() });
                self.calls += 1;
                HarmonyChannel::Arguments
            }
            // What goes to tools that nobody offered is for nobody; so is what the model thinks.
            None if to.is_some() || words().any(|word| word == "analysis") => HarmonyChannel::Thought,
            None => HarmonyChannel::Content,
        };
        State::Message { end: Markers::new(ENDS), kind }
    }

    fn knows(&self, name: &str) -> bool {
        self.tools.iter().any(|tool| tool.name == name)
    }

    fn add(&mut self, kind: HarmonyChannel, text: &str) {
        if text.is_empty() {
            return;
        }
        let index = self.calls.saturating_sub(1);
        match (kind, self.said.last_mut()) {
            (HarmonyChannel::Thought, Some(AnswerPart::Reasoning(said)))
            | (HarmonyChannel::Content, Some(AnswerPart::Content(said))) => {
                said.push_str(text);
            }
            (HarmonyChannel::Arguments, Some(AnswerPart::Arguments { piece, .. })) => piece.push_str(text),
            (HarmonyChannel::Thought, _) => self.said.push(AnswerPart::Reasoning(text.to_owned())),
            (HarmonyChannel::Content, _) => self.said.push(AnswerPart::Content(text.to_owned())),
            (HarmonyChannel::Arguments, _) => self.said.push(AnswerPart::Arguments { index, piece: text.to_owned() }),
        }
    }
}

impl ToolParser for Harmony {
    fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        text.chars().for_each(|letter| self.letter(letter));
        std::mem::take(&mut self.said)
    }

    fn finish(&mut self) -> Vec<AnswerPart> {
        match std::mem::replace(&mut self.state, State::outside()) {
            State::Outside(mut end) => self.add(HarmonyChannel::Content, &end.finish()),
            State::Message { mut end, kind } => self.add(kind, &end.finish()),
            // A header that nothing follows says nothing.
            State::Header { .. } => {}
        }
        std::mem::take(&mut self.said)
    }

    fn is_thinking(&self) -> bool {
        matches!(self.state, State::Message { kind: HarmonyChannel::Thought, .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn tools() -> Arc<[Callable]> {
        Arc::from([Callable::new("get_weather", &json!({"type": "object"}))])
    }

    /// Pieces of one kind put together.
    fn parsed<'t>(pieces: impl IntoIterator<Item = &'t str>) -> Vec<AnswerPart> {
        let mut parser = Harmony::new(tools());
        let mut all: Vec<AnswerPart> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
        all.extend(parser.finish());
        let mut joined: Vec<AnswerPart> = Vec::new();
        for said in all {
            match (joined.last_mut(), &said) {
                (Some(AnswerPart::Reasoning(before)), AnswerPart::Reasoning(more))
                | (Some(AnswerPart::Content(before)), AnswerPart::Content(more)) => before.push_str(more),
                (Some(AnswerPart::Arguments { piece: before, .. }), AnswerPart::Arguments { piece, .. }) => {
                    before.push_str(piece)
                }
                _ => joined.push(said),
            }
        }
        joined
    }

    fn thought(text: &str) -> AnswerPart {
        AnswerPart::Reasoning(text.to_owned())
    }

    fn content(text: &str) -> AnswerPart {
        AnswerPart::Content(text.to_owned())
    }

    #[test]
    fn channels_are_thoughts_and_answers() {
        let said = "<|channel|>analysis<|message|>One and one.<|end|><|start|>assistant<|channel|>final<|message|>Two.";
        assert_eq!(parsed([said]), [thought("One and one."), content("Two.")]);
        assert_eq!(parsed(["<|channel|>final<|message|>Two <b> < 3<|return|>"]), [content("Two <b> < 3")]);
        // Before a call the model may say what it is about to do.
        let said = "<|channel|>commentary<|message|>I look it up.<|end|>";
        assert_eq!(parsed([said]), [content("I look it up.")]);
    }

    #[test]
    fn calls_go_to_the_functions_that_there_are() {
        let call = [
            thought("Rain?"),
            AnswerPart::Call { index: 0, name: "get_weather".to_owned() },
            AnswerPart::Arguments { index: 0, piece: r#"{"city": "Oslo"}"#.to_owned() },
        ];
        let thoughts = "<|channel|>analysis<|message|>Rain?<|end|><|start|>assistant";
        for header in [
            "<|channel|>commentary to=functions.get_weather <|constrain|>json",
            " to=functions.get_weather<|channel|>commentary json",
        ] {
            let said = format!("{thoughts}{header}<|message|>{{\"city\": \"Oslo\"}}<|call|>");
            assert_eq!(parsed([said.as_str()]), call, "{header}");
        }
        let other = "<|channel|>commentary to=functions.rm <|constrain|>json<|message|>{}<|call|>";
        assert_eq!(parsed([other]), [thought("{}")], "nobody offered it");
    }

    #[test]
    fn what_has_no_form_is_content() {
        for text in ["Two.", "a <|b|> c", "<|chan", ""] {
            let expected: Vec<AnswerPart> = (!text.is_empty()).then(|| content(text)).into_iter().collect();
            assert_eq!(parsed([text]), expected, "{text}");
        }
        assert_eq!(parsed(["<|channel|>final"]), [], "cut off in a header");
        assert_eq!(parsed(["<|channel|>final<|message|>Two <|en"]), [content("Two <|en")]);
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same(
            text in "(<[|]channel[|]>|<[|]message[|]>|<[|]end[|]>|<[|]start[|]>|analysis| to=functions.get_weather|<[|]|a){0,12}",
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            prop_assert_eq!(parsed(crate::text::tools::split(&text, &cuts)), parsed([text.as_str()]));
        }
    }
}
