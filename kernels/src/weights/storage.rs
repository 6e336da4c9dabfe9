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
    held: StorageBytes,
    /// Which of its bytes are there, in order and none beside another; all of them where it is not said.
    there: Option<Arc<[Range<usize>]>>,
}

#[derive(Clone)]
enum StorageBytes {
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
        Ok(Self { file: path.display().to_string().into(), held: StorageBytes::Map(Arc::new(map)), there: None })
    }

    /// The same of a file of which only these places are there: the rest of it is zeros.
    pub(crate) fn map_part(path: &Path, there: &[Range<u64>]) -> Result<Self, WeightsError> {
        let mut sorted: Vec<Range<usize>> = there.iter().map(|of| of.start as usize..of.end as usize).collect();
        sorted.sort_by_key(|place| place.start);
        let mut merged: Vec<Range<usize>> = Vec::new();
        for place in sorted {
            match merged.last_mut().filter(|last| place.start <= last.end) {
                Some(last) => last.end = last.end.max(place.end),
                None => merged.push(place),
            }
        }
        Ok(Self { there: Some(merged.into()), ..Self::map(path)? })
    }

    /// Whether all of these bytes are there.
    pub(super) fn has(&self, range: &Range<usize>) -> bool {
        let Some(there) = &self.there else { return true };
        let at = there.partition_point(|place| place.end < range.end);
        range.is_empty() || there.get(at).is_some_and(|place| place.start <= range.start)
    }

    /// Whether all of the file is there.
    pub(super) fn is_whole(&self) -> bool {
        self.has(&(0..self.bytes().len()))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.held {
            StorageBytes::Map(map) => map,
            StorageBytes::Static(bytes) => bytes,
        }
    }

    /// Tells the system that these bytes will hardly be read again: their memory is free for others. They still can be.
    pub(super) fn forget(&self, range: &Range<usize>) {
        #[cfg(not(unix))]
        let _ = range;
        #[cfg(unix)]
        if let StorageBytes::Map(map) = &self.held {
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
        Self { file: file.into(), held: StorageBytes::Static(bytes), there: None }
    }
}
