//! Mistral: `[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`, and since its later tokenizers
//! `[TOOL_CALLS]name[ARGS]{…}`, as often as there are calls.

use super::{
    AnswerPart, Markers, ToolParser,
    call::{CallProgress, CallScanner},
    found::FoundPieces,
};

pub(super) const CALLS: &str = "[TOOL_CALLS]";
const ARGUMENTS: &str = "[ARGS]";
const ID: &str = "[CALL_ID]";
pub(super) const MARKS: &[&str] = &[CALLS, ARGUMENTS, ID];
/// The longest head of a call (bytes): a name and an id.
const HEAD: usize = 256;

enum State {
    Outside(Markers),
    /// Behind the mark, with all that came since.
    Head(String),
    Within {
        call: CallScanner,
        raw: String,
        in_list: bool,
    },
    /// In a list, behind a call.
    Between(String),
}

impl State {
    fn outside() -> Self {
        Self::Outside(Markers::new(&[CALLS]))
    }
}

pub(super) struct Mistral {
    state: State,
    found: FoundPieces,
}

impl Default for Mistral {
    fn default() -> Self {
        Self { state: State::outside(), found: FoundPieces::default() }
    }
}

/// What the head of a call says.
enum CallHead {
    More,
    /// An object follows, in a list or alone.
    Object {
        in_list: bool,
    },
    /// The arguments of that tool follow.
    Named(String),
    None,
}

fn head(text: &str) -> CallHead {
    let said = text.trim_start();
    let Some(before) = said.strip_suffix('{') else {
        let may_go_on = said.is_empty()
            || said.strip_prefix('[').is_some_and(|rest| rest.trim().is_empty())
            || said.len() < HEAD && said.chars().all(|c| c.is_ascii_alphanumeric() || "_-.[]: ".contains(c));
        return if may_go_on { CallHead::More } else { CallHead::None };
    };
    match before.trim() {
        "" => CallHead::Object { in_list: false },
        "[" => CallHead::Object { in_list: true },
        before => {
            let before = before.strip_suffix(ARGUMENTS).unwrap_or(before);
            let name = before.split_once(ID).map_or(before, |(name, _)| name).trim();
            let is_name = !name.is_empty() && !name.contains(['[', ']', ' ']);
            if is_name { CallHead::Named(name.to_owned()) } else { CallHead::None }
        }
    }
}

impl Mistral {
    fn letter(&mut self, letter: char) {
        match &mut self.state {
            State::Outside(mark) => {
                let (passed, mark) = mark.push(letter);
                self.found.content(&passed);
                if mark.is_some() {
                    self.state = State::Head(String::new());
                }
            }
            State::Head(said) => {
                said.push(letter);
                let (mut call, in_list) = match head(said) {
                    CallHead::More => return,
                    CallHead::Object { in_list } => (CallScanner::new(), in_list),
                    CallHead::Named(name) => (CallScanner::arguments_of(name), false),
                    CallHead::None => {
                        let said = std::mem::take(said);
                        return self.not_call(&format!("{CALLS}{said}"));
                    }
                };
                let raw = format!("{CALLS}{said}");
                call.push('{', None, &mut self.found);
                self.state = State::Within { call, raw, in_list };
            }
            State::Within { call, raw, in_list } => {
                raw.push(letter);
                match (call.push(letter, None, &mut self.found), *in_list) {
                    (CallProgress::More, _) => {}
                    (CallProgress::End, true) => self.state = State::Between(String::new()),
                    (CallProgress::End, false) => self.state = State::outside(),
                    (CallProgress::Broken, _) => {
                        self.state = State::outside();
                        self.letter(letter);
                    }
                    (CallProgress::NotCall, _) => {
                        let raw = std::mem::take(raw);
                        self.not_call(&raw);
                    }
                }
            }
            State::Between(held) => {
                held.push(letter);
                match (letter, held.trim()) {
                    (_, "" | ",") => {}
                    ('{', _) => {
                        let (mut call, raw) = (CallScanner::new(), std::mem::take(held));
                        call.push('{', None, &mut self.found);
                        self.state = State::Within { call, raw, in_list: true };
                    }
                    (']', _) => self.state = State::outside(),
                    _ => {
                        let held = std::mem::take(held);
                        self.not_call(&held);
                    }
                }
            }
        }
    }

    /// The last letter may begin a mark.
    fn not_call(&mut self, raw: &str) {
        self.state = State::outside();
        let (last, before) =
            raw.chars().next_back().map_or((None, raw), |c| (Some(c), &raw[..raw.len() - c.len_utf8()]));
        self.found.content(before);
        last.into_iter().for_each(|letter| self.letter(letter));
    }
}

impl ToolParser for Mistral {
    fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        text.chars().for_each(|letter| self.letter(letter));
        self.found.take()
    }

    fn finish(&mut self) -> Vec<AnswerPart> {
        match std::mem::replace(&mut self.state, State::outside()) {
            State::Outside(mut mark) => self.found.content(&mark.finish()),
            State::Head(said) => self.found.content(&format!("{CALLS}{said}")),
            State::Within { call, raw, .. } if !call.is_begun() => self.found.content(&raw),
            // Of what closes a list some was to come.
            State::Within { .. } | State::Between(_) => {}
        }
        self.found.finish()
    }
}
