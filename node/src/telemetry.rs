//! Logs: to standard error, or to a file where a person watches, as text or JSON.

mod log_file;

use self::log_file::LogFile;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Mutex;
use tracing_subscriber::{EnvFilter, Layer, filter::LevelFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

/// Why logs cannot be written as asked.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TelemetryError(String);

/// Where logs go.
#[derive(Clone, Debug)]
pub enum Sink {
    /// All to standard error.
    StandardError,
    /// All to a file of bounded size, and warnings also to whoever watches.
    File {
        /// The file; when it is full it becomes `….log.1`.
        path: PathBuf,
        /// Shows a warning.
        warnings: fn(&[u8]),
    },
}

/// Libraries say much that is of use only to their authors: gossipsub warns of neighbours that were started again, and quinn that
/// a connection has ended which another connection carried, or that a token comes from a process that was here before.
const LIBRARIES: &str =
    "warn,libp2p_kad=error,libp2p_gossipsub=error,quinn::endpoint=off,quinn_proto::bloom_token_log=error";

/// Starts logging by `filter` in `format` (`text` or `json`).
///
/// # Errors
/// When either is not understood.
pub fn start(filter: &str, format: &str, sink: Sink) -> Result<(), TelemetryError> {
    let quiet = format!("{LIBRARIES},tsnode={filter},tsnode_coordinator={filter},tsnode_kernels={filter}");
    let directives = if filter.contains(['=', ',']) { filter } else { &quiet };
    let wrong = || {
        let levels =
            "write a level (error, warn, info, debug or trace), or one for each part, as tsnode=debug,libp2p=info";
        TelemetryError(format!("--log {filter:?}: {levels}"))
    };
    // A lone word that is no level would be taken for the name of a part of ours, and log everything of it.
    let is_level = |word: &str| word.parse::<LevelFilter>().is_ok();
    if !filter.contains(['=', ',']) && !is_level(filter) {
        return Err(wrong());
    }
    let filter = EnvFilter::try_new(directives).map_err(|_| wrong())?;
    let is_json = match format {
        "text" => false,
        "json" => true,
        other => return Err(TelemetryError(format!("--log-format {other:?}: choose text or json"))),
    };
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    match sink {
        // Of these none says on standard error that it cannot be written to: that would be a panic.
        Sink::StandardError => {
            let all = fmt::layer().with_writer(std::io::stderr).with_ansi(colour);
            let all = if is_json { all.json().boxed() } else { all.boxed() };
            tracing_subscriber::registry().with(filter).with(all).try_init()
        }
        Sink::File { path, warnings } => {
            let all = fmt::layer().with_writer(Mutex::new(LogFile::new(path, warnings))).with_ansi(false);
            let all = if is_json { all.json().boxed() } else { all.boxed() };
            let shown = fmt::layer().with_writer(move || WarningWriter(warnings)).with_ansi(colour);
            let shown = shown.without_time().with_target(false).with_filter(LevelFilter::WARN);
            tracing_subscriber::registry().with(filter).with(all).with(shown).try_init()
        }
    }
    .map_err(|e| TelemetryError(e.to_string()))
}

/// Whoever watches, as something to write to: a whole line at a time.
struct WarningWriter(fn(&[u8]));

impl Write for WarningWriter {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        (self.0)(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
