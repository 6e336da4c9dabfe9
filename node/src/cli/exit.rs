//! How the process ends: one code for each kind of trouble, the same in every version.

use crate::{control_plane::swarm::RedeemError, node::NodeError, plain};
use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use tsnode_testnet::TestnetError;

/// Kinds of endings, by exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitKind {
    /// Anything without a code of its own.
    Other = 1,
    /// Wrong words on the command line.
    Usage = 2,
    /// A configuration that cannot be used.
    Config = 3,
    /// A port that another program has.
    PortInUse = 4,
    /// A data folder that cannot be used, or is used by another process.
    DataDir = 5,
    /// A model that is missing or broken.
    Model = 6,
    /// No peer answers.
    Unreachable = 7,
    /// Peers answer, and nobody serves the request.
    Unserved = 8,
    /// The request was refused, or failed on the way.
    Request = 9,
    /// An identity that cannot be used.
    Identity = 10,
}

/// An ending with its one line: what, where, what to do.
#[derive(Debug)]
pub struct Exit {
    /// Its code.
    pub kind: ExitKind,
    /// What is said.
    pub message: String,
}

impl Exit {
    /// An ending of this kind.
    pub fn new(kind: ExitKind, message: impl Into<String>) -> Self {
        let message: String = message.into();
        // Errors of other crates come with numbers, which say nothing to people.
        Self { kind, message: plain::without_secrets(&plain::without_numbers(&message)) }
    }

    /// An ending for a file or folder.
    pub fn file(kind: ExitKind, path: impl AsRef<Path>, error: &io::Error) -> Self {
        Self::new(kind, format!("{}: {}", path.as_ref().display(), plain::io_error(error)))
    }

    /// Says it on standard error, and gives the code.
    #[must_use]
    pub fn report(self) -> ExitCode {
        note(format_args!("tsnode: {}", self.message));
        ExitCode::from(self.kind as u8)
    }
}

/// A line on standard error. That it is closed is no reason to fail, or to stop.
pub fn note(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<TestnetError> for Exit {
    fn from(error: TestnetError) -> Self {
        match error {
            TestnetError::Io { what, error } => Self::file(ExitKind::Other, what, &error),
            error => Self::new(ExitKind::Other, error.to_string()),
        }
    }
}

impl From<NodeError> for Exit {
    fn from(error: NodeError) -> Self {
        let kind = match &error {
            NodeError::Store(_) | NodeError::Keys(_) | NodeError::Invites(_) => ExitKind::DataDir,
            NodeError::Identity(_) => ExitKind::Identity,
            NodeError::Model(_) | NodeError::Text { .. } | NodeError::Fetch(_) | NodeError::Encoder(_) => {
                ExitKind::Model
            }
            NodeError::Listen { in_use: true, .. } => ExitKind::PortInUse,
            NodeError::Lend(_)
            | NodeError::Draft { .. }
            | NodeError::DraftOfState { .. }
            | NodeError::NoLongContext(_)
            | NodeError::KeepsNone { .. }
            | NodeError::SameModel { .. }
            | NodeError::SameName { .. } => ExitKind::Config,
            NodeError::Redeem(RedeemError::Unreachable(_)) => ExitKind::Unreachable,
            NodeError::Redeem(_) => ExitKind::Request,
            NodeError::Listen { .. } | NodeError::System(_) => ExitKind::Other,
        };
        let hint = match &error {
            NodeError::Listen { in_use: true, what: "HTTP", .. } => "; choose another with --http",
            NodeError::Listen { in_use: true, .. } => "; choose another with --listen",
            NodeError::Listen { what: "HTTP", .. } => {
                "; name an address of this machine with --http, as 127.0.0.1:7448"
            }
            NodeError::Listen { .. } => "; name an address of this machine with --listen, or a port alone, as 7447",
            _ => "",
        };
        Self::new(kind, format!("{error}{hint}"))
    }
}
