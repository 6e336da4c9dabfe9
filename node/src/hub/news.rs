//! What somebody who waits for a model is told.

/// How far a pull is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullNews<'n> {
    /// It begins: what the model's files have together that are not here (bytes), and how many these are.
    Begins {
        /// Bytes to come, or that are here as parts of files.
        bytes: u64,
        /// Files to come.
        files: usize,
    },
    /// So many bytes of them were here already.
    Here(u64),
    /// So many came.
    Came(u64),
    /// So many that were counted have to come again.
    Lost(u64),
    /// Another process fetches a file just now.
    Waits {
        /// Which.
        file: &'n str,
    },
}
