//! Stop strings: the answer ends before the first of them, wherever token borders fall.

/// Looks for stop strings in a growing text, and holds back what could be the start of one.
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    held: String,
    found: Option<String>,
    include: bool,
}

/// What became of a piece of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Passed {
    /// This much may be shown.
    On(String),
    /// This much may be shown, and that was all: a stop string followed.
    Stopped(String),
}

impl StopStrings {
    /// Looks for these; empty ones are none.
    #[must_use]
    pub fn new(stops: Vec<String>) -> Self {
        Self { stops: stops.into_iter().filter(|s| !s.is_empty()).collect(), ..Self::default() }
    }

    /// The stop string that ended the answer.
    #[must_use]
    pub fn found(&self) -> Option<&str> {
        self.found.as_deref()
    }

    /// The same, where the stop string that is found is shown if `include`.
    #[must_use]
    pub fn including(self, include: bool) -> Self {
        Self { include, ..self }
    }

    /// Takes a piece in.
    pub fn push(&mut self, piece: &str) -> Passed {
        if self.stops.is_empty() {
            return Passed::On(piece.to_owned());
        }
        self.held.push_str(piece);
        // Of those that begin at one place the shortest was there first.
        let places = self.stops.iter().filter_map(|s| Some((self.held.find(s.as_str())?, s)));
        if let Some((at, stop)) = places.min_by_key(|(at, s)| (*at, s.len())) {
            self.held.truncate(if self.include { at + stop.len() } else { at });
            self.found = Some(stop.clone());
            return Passed::Stopped(std::mem::take(&mut self.held));
        }
        let keep = self.stops.iter().map(|s| overlap(&self.held, s)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        Passed::On(std::mem::replace(&mut self.held, rest))
    }

    /// What was held back, when no more comes.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes at the end of `text` that begin `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let starts = text.char_indices().rev().map(|(i, _)| i).take_while(|i| text.len() - i < stop.len());
    starts.filter(|i| stop.starts_with(&text[*i..])).map(|i| text.len() - i).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_string_across_pieces_is_cut_off() {
        let mut stop = StopStrings::new(vec!["END".into(), "é!".into()]);
        assert_eq!(stop.push("so E"), Passed::On("so ".into()));
        assert_eq!(stop.push("N"), Passed::On(String::new()));
        assert_eq!(stop.push("o é"), Passed::On("ENo ".into()));
        assert_eq!((stop.push("! more"), stop.found()), (Passed::Stopped(String::new()), Some("é!")));
        let mut stop = StopStrings::new(vec!["aab".into()]);
        assert_eq!(stop.push("aaa"), Passed::On("a".into()));
        assert_eq!(stop.push("b"), Passed::Stopped(String::new()));
    }

    #[test]
    fn a_stop_string_is_shown_to_who_asks_for_it() {
        let mut stop = StopStrings::new(vec!["END".into(), "EN".into()]).including(true);
        assert_eq!(stop.push("so E"), Passed::On("so ".into()));
        assert_eq!(stop.push("ND."), Passed::Stopped("EN".into()));
    }

    #[test]
    fn what_is_held_comes_out_at_the_end() {
        let mut stop = StopStrings::new(vec!["END".into()]);
        assert_eq!(stop.push("the EN"), Passed::On("the ".into()));
        assert_eq!(stop.finish(), "EN");
    }
}
