//! What plots and diagrams share: colours, and text as XML has it.

/// Colours of lines and boxes beside each other: red, green, blue. Each is told from the others on white, and has white text read on it.
pub(crate) const COLOURS: [[u8; 3]; 8] = [
    [0xc0, 0x39, 0x2b],
    [0x2d, 0x6f, 0xb4],
    [0x5b, 0x8c, 0x3a],
    [0x8a, 0x8a, 0x8a],
    [0xc5, 0x8a, 0x1b],
    [0x7b, 0x4f, 0xa3],
    [0x1f, 0x9e, 0x9e],
    [0x5a, 0x3e, 0x2b],
];

/// Text as XML has it.
pub(crate) fn escaped(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
