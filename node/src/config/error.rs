//! Where values come from, and why a configuration cannot be used.

use std::fmt;
use std::path::PathBuf;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingOrigin {
    /// Nobody said anything.
    Default,
    /// The file, at a line.
    File(PathBuf, usize),
    /// The environment.
    Variable(String),
    /// The command line.
    Flag,
    /// It is a secret, and was read where that says.
    Read(String),
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Variable(name) => f.write_str(name),
            Self::Flag => f.write_str("flag"),
            Self::Read(from) => f.write_str(from),
        }
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {error}; name another settings file with --config", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        error: String,
    },
    /// There is nothing in the file, not even a remark.
    #[error("{}: it is empty, and that is most often damage; restore it from a copy, or remove it", path.display())]
    Empty {
        /// Which.
        path: PathBuf,
    },
    /// The file is not TOML.
    #[error("{}:{line}: this is no TOML ({error}); write a setting a line, as memory = \"8GiB\"", path.display())]
    Syntax {
        /// Which.
        path: PathBuf,
        /// Where.
        line: usize,
        /// Why.
        error: String,
    },
    /// The file has a key that is no setting.
    #[error("{}:{line}: unknown key `{key}`; {next}", path.display())]
    Unknown {
        /// Which.
        path: PathBuf,
        /// Where.
        line: usize,
        /// The key.
        key: String,
        /// The setting that was meant, or where all are listed.
        next: String,
    },
    /// The file has something else than a value.
    #[error("{}:{line}: `{key}` is a list or a table; write one value, as {key} = \"…\"", path.display())]
    Shape {
        /// Which.
        path: PathBuf,
        /// Where.
        line: usize,
        /// The key.
        key: String,
    },
    /// The file has something else than models where they are listed.
    #[error("{}:{line}: `models` is a list of tables; write [[models]], and below it model = \"…\"", path.display())]
    Models {
        /// Which.
        path: PathBuf,
        /// Where.
        line: usize,
    },
    /// The file says a setting twice, with dashes and with underscores.
    #[error("{}:{line}: `{key}` is said twice; leave one", path.display())]
    Twice {
        /// Which.
        path: PathBuf,
        /// Where.
        line: usize,
        /// The key.
        key: String,
    },
    /// A value that is not what it should be.
    #[error("{place}: {error}")]
    Value {
        /// The setting with its value, as it was said: `--threads 0`.
        place: String,
        /// Why.
        error: String,
    },
}
