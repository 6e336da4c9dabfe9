//! Fixed texts in a growing one.

/// Looks for texts letter by letter, and holds back what could be the start of one. None may begin another.
#[derive(Debug)]
pub(in crate::text) struct Markers {
    texts: &'static [&'static str],
    held: String,
}

impl Markers {
    pub fn new(texts: &'static [&'static str]) -> Self {
        Self { texts, held: String::new() }
    }

    /// What is surely none of them, and the one that ends with this letter.
    pub fn push(&mut self, letter: char) -> (String, Option<&'static str>) {
        self.held.push(letter);
        let mut passed = String::new();
        loop {
            if let Some(text) = self.texts.iter().copied().find(|text| *text == self.held) {
                self.held.clear();
                return (passed, Some(text));
            }
            if self.texts.iter().any(|text| text.starts_with(&self.held)) {
                return (passed, None);
            }
            passed.push(self.held.remove(0));
        }
    }

    /// What was held back.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}
