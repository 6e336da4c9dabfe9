//! A log file that stays small: one that is full becomes the one before, and the one before that goes.

use crate::platform;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

/// Most that is written into one file (bytes); there are two.
const MOST: u64 = 4 << 20;

/// Lines of a log on their way to the disk. It is opened with the first, and again when it has failed.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    most: u64,
    open: Option<(File, u64)>,
    /// Says once that the log cannot be written; the peer serves on.
    failed: Option<fn(&[u8])>,
}

impl LogFile {
    pub(super) fn new(path: PathBuf, failed: fn(&[u8])) -> Self {
        Self { path, most: MOST, open: None, failed: Some(failed) }
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        if self.open.as_ref().is_some_and(|(_, size)| *size > 0 && size + line.len() as u64 > self.most) {
            self.open = None;
            fs::rename(&self.path, self.path.with_extension("log.1"))?;
        }
        let (mut file, size) = match self.open.take() {
            Some(open) => open,
            None => open(&self.path)?,
        };
        file.write_all(line)?;
        self.open = Some((file, size + line.len() as u64));
        Ok(())
    }
}

fn open(path: &std::path::Path) -> io::Result<(File, u64)> {
    if let Some(folder) = path.parent() {
        platform::make_folder_for_owner(folder)?;
    }
    let file = platform::for_owner(OpenOptions::new().append(true).create(true)).open(path)?;
    let size = file.metadata()?.len();
    Ok((file, size))
}

impl Write for LogFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let (Err(error), Some(failed)) = (self.append(line), self.failed) {
            self.failed = None;
            failed(format!("the log cannot be written to {}: {error}\n", self.path.display()).as_bytes());
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    static FAILED: AtomicUsize = AtomicUsize::new(0);

    fn failed(_: &[u8]) {
        FAILED.fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn a_log_keeps_its_last_lines_in_two_files_of_bounded_size_that_others_cannot_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/join.log");
        // Started twice: what was there counts.
        for part in [0..30, 30..60] {
            let mut log = LogFile { most: 100, ..LogFile::new(path.clone(), failed) };
            part.for_each(|n| log.write_all(format!("line {n:03}\n").as_bytes()).unwrap());
        }
        let [newest, before] = [path.clone(), path.with_extension("log.1")].map(|p| fs::read_to_string(p).unwrap());
        assert!(newest.len() <= 100 && before.len() <= 100, "{} and {}", newest.len(), before.len());
        let expected: String = (45..60).map(|n| format!("line {n:03}\n")).collect();
        assert!(format!("{before}{newest}").ends_with(&expected), "{before}{newest}");
        assert_eq!(platform::mode(&fs::metadata(&path).unwrap()), Some(0o600));
    }

    #[test]
    fn a_log_that_cannot_be_written_is_said_once_and_stops_nobody() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        let mut log = LogFile::new(folder.path().join("file/join.log"), failed);
        (0..3).for_each(|_| log.write_all(b"line\n").unwrap());
        assert_eq!(FAILED.load(Ordering::Relaxed), 1);
    }
}
