//! What is typed or piped into a conversation, line by line, read on a thread of its own.

use crate::cli::exit::{Exit, ExitKind};
use rustyline::{DefaultEditor, error::ReadlineError};
use std::io::{BufRead, Read};
use tokio::sync::mpsc;

/// Longest line that is read (bytes).
const LONGEST: u64 = 8 << 20;

/// What came.
#[derive(Debug)]
pub(super) enum InputLine {
    /// A line.
    Line(String),
    /// Ctrl-C where a line is edited.
    Interrupted,
    /// Nothing more will come.
    End,
    /// It cannot be read.
    Failed(Exit),
}

/// Lines, each read when it is asked for: while an answer is printed nobody prompts.
pub(super) struct InputLines {
    ask: mpsc::Sender<()>,
    said: mpsc::Receiver<InputLine>,
}

impl InputLines {
    /// Of a terminal, with editing and the lines of this conversation to go back to. They stay in memory: what was said is
    /// nobody else's business, and the data folder of the peer that is asked may be another user's.
    pub(super) fn edited() -> Result<Self, Exit> {
        let failed = |e: ReadlineError| Exit::new(ExitKind::Other, format!("the terminal cannot be read: {e}"));
        let mut editor = DefaultEditor::new().map_err(failed)?;
        Ok(Self::by(move || match editor.readline("> ") {
            Ok(line) => {
                // A line that is not kept can be typed again.
                let _ = editor.add_history_entry(line.as_str());
                InputLine::Line(line)
            }
            Err(ReadlineError::Interrupted) => InputLine::Interrupted,
            Err(ReadlineError::Eof) => InputLine::End,
            Err(other) => InputLine::Failed(failed(other)),
        }))
    }

    /// Of standard input.
    pub(super) fn read() -> Self {
        Self::by(|| next(&mut std::io::stdin().lock()))
    }

    fn by(mut read: impl FnMut() -> InputLine + Send + 'static) -> Self {
        let (ask, mut asks) = mpsc::channel(1);
        let (sender, said) = mpsc::channel(1);
        std::thread::spawn(move || {
            while let Some(()) = asks.blocking_recv() {
                if sender.blocking_send(read()).is_err() {
                    return;
                }
            }
        });
        Self { ask, said }
    }

    pub(super) async fn next(&mut self) -> InputLine {
        if self.ask.send(()).await.is_err() {
            return InputLine::End;
        }
        self.said.recv().await.unwrap_or(InputLine::End)
    }
}

fn next(input: &mut impl BufRead) -> InputLine {
    let failed = |why: String| InputLine::Failed(Exit::new(ExitKind::Usage, format!("standard input: {why}")));
    let mut line = Vec::new();
    match input.take(LONGEST + 1).read_until(b'\n', &mut line) {
        Err(e) => return failed(e.to_string()),
        Ok(0) => return InputLine::End,
        Ok(_) if line.len() as u64 > LONGEST => return failed(format!("a line of more than {} MiB", LONGEST >> 20)),
        Ok(_) => {}
    }
    String::from_utf8(line).map_or_else(|_| failed("a line that is not UTF-8".into()), InputLine::Line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_text_is_an_error_and_no_end() {
        let mut input = &b"a\n\xff\nb"[..];
        assert!(matches!(next(&mut input), InputLine::Line(line) if line == "a\n"));
        assert!(matches!(next(&mut input), InputLine::Failed(why) if why.message.contains("UTF-8")));
        assert!(matches!(next(&mut input), InputLine::Line(line) if line == "b"));
        assert!(matches!(next(&mut input), InputLine::End));
        let long = vec![b'a'; LONGEST as usize + 1];
        assert!(matches!(next(&mut &long[..]), InputLine::Failed(_)));
    }
}
