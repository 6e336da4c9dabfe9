//! The bytes of a file of weights: mapped into memory, or part of the program.

use super::WeightsError;
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// A file and its bytes.
#[derive(Clone)]
pub(crate) struct Storage {
    pub(super) file: Arc<str>,
    held: Held,
}

#[derive(Clone)]
enum Held {
    Map(Arc<memmap2::Mmap>),
    Static(&'static [u8]),
}

impl Storage {
    /// Maps a file.
    pub(crate) fn map(path: &Path) -> Result<Self, WeightsError> {
        let io = |error| WeightsError::Io { path: path.to_owned(), error };
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err(WeightsError::NotAFile(path.to_owned()));
        }
        let file = File::open(path).map_err(io)?;
        // SAFETY: the map is read only. Someone who shortens the file while it is served can make reads fail with
        // SIGBUS, as with any program that maps its data; weights are not files people edit. Of one that is still fetched
        // nothing is loaded before it was written, and files are mapped anew then.
        #[expect(unsafe_code, reason = "the lines above say why it is sound")]
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
        Ok(Self { file: path.display().to_string().into(), held: Held::Map(Arc::new(map)) })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.held {
            Held::Map(map) => map,
            Held::Static(bytes) => bytes,
        }
    }

    /// Tells the system that these bytes will hardly be read again: their memory is free for others. They still can be.
    pub(super) fn forget(&self, range: &Range<usize>) {
        #[cfg(unix)]
        if let Held::Map(map) = &self.held {
            // SAFETY: the map is of a file, shared and read only: pages dropped are read from the file again.
            #[expect(unsafe_code, reason = "the lines above say why it is sound")]
            let told =
                unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len()) };
            // Advice: a system that does not take it keeps the pages.
            let _ = told;
        }
    }

    /// Bytes inside the program.
    pub(super) fn embedded(file: &str, bytes: &'static [u8]) -> Self {
        Self { file: file.into(), held: Held::Static(bytes) }
    }
}
