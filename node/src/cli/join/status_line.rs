//! The one line of a terminal that changes while a peer runs, and what is printed above it.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use std::time::Duration;

/// How long a change may wait to be seen.
const TICK: Duration = Duration::from_millis(250);

static LINE: OnceLock<ProgressBar> = OnceLock::new();

/// Whether there is a person to see it.
pub(in crate::cli) fn is_watched() -> bool {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    std::io::stdout().is_terminal() && std::io::stderr().is_terminal() && !is_dumb
}

/// Whether meaning may be shown in colour.
pub(in crate::cli) fn is_coloured() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Shows this in place of what the line said.
pub(super) fn show(text: String) {
    let line = LINE.get_or_init(|| {
        let style = ProgressStyle::with_template("{wide_msg}").unwrap_or_else(|_| ProgressStyle::default_spinner());
        let line = ProgressBar::new_spinner().with_style(style);
        line.enable_steady_tick(TICK);
        line
    });
    line.set_message(text);
}

/// Writes on standard error, above the line if there is one.
pub(in crate::cli) fn above(text: &[u8]) {
    // Nobody is there to be told where standard error is closed.
    let write = || drop(std::io::stderr().write_all(text));
    match LINE.get() {
        Some(line) => line.suspend(write),
        None => write(),
    }
}

/// Prints a line on standard output, above the line if there is one.
pub(super) fn print(text: &str) {
    match LINE.get() {
        Some(line) => line.suspend(|| say!("{text}")),
        None => say!("{text}"),
    }
}

/// Takes the line away: what follows is the last that is said.
pub(super) fn clear() {
    LINE.get().into_iter().for_each(ProgressBar::finish_and_clear);
}
