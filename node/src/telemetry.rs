//! Logs: to standard error, as text or JSON.

use std::io::IsTerminal;
use tracing_subscriber::{EnvFilter, fmt};

/// Why logs cannot be written as asked.
#[derive(Debug, thiserror::Error)]
#[error("log: {0}")]
pub struct TelemetryError(String);

/// Starts logging by `filter` in `format` (`text` or `json`).
///
/// # Errors
/// When either is not understood.
pub fn start(filter: &str, format: &str) -> Result<(), TelemetryError> {
    // Libraries say much that is of use only to their authors.
    let quiet = format!("warn,libp2p_kad=error,tsnode={filter},tsnode_coordinator={filter},tsnode_kernels={filter}");
    let directives = if filter.contains(['=', ',']) { filter } else { &quiet };
    let filter = EnvFilter::try_new(directives).map_err(|e| TelemetryError(e.to_string()))?;
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let builder = fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colour);
    match format {
        "text" => builder.try_init(),
        "json" => builder.json().try_init(),
        other => return Err(TelemetryError(format!("{other:?} is no format; choose text or json"))),
    }
    .map_err(|e| TelemetryError(e.to_string()))
}
