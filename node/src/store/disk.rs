//! Files of a data folder: written whole or not at all, for their owner alone, and kept aside where they are damaged.

use crate::platform;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Damaged files of one name that are kept; the next takes the place of the last.
const KEPT: usize = 9;
/// A draft that is older was left by a process that was killed: writing one takes no longer.
const STALE: Duration = Duration::from_secs(60);

/// A file is in its place, and the disk has not said that it has its name.
#[derive(Debug, thiserror::Error)]
#[error(
    "it is written, but the disk does not say that it stays ({0}): after a power cut what was there before may be there again"
)]
struct Unsynced(#[source] io::Error);

/// Whether what [`write_whole`] could not make sure of is in its place all the same, and is read from now on.
#[must_use]
pub fn is_placed(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|own| own.is::<Unsynced>())
}

/// Makes a file of these bytes in the place of what was there. Whenever this process or the machine ends, the file is the one
/// before or this one, and a draft that is left is not taken for either.
///
/// # Errors
/// When it cannot be written; then nothing is left of it. And when it is there, but may not be after a power cut: [`is_placed`].
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_and(path, bytes, sync_folder)
}

/// The same where the folder cannot be synced.
#[cfg(test)]
pub(crate) fn write_unsynced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_and(path, bytes, |_| Err(io::ErrorKind::PermissionDenied.into()))
}

fn write_and(path: &Path, bytes: &[u8], sync_folder: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let draft = path.with_file_name(format!(".{name}.{}.new", std::process::id()));
    let file = platform::for_owner(OpenOptions::new().write(true).create(true).truncate(true)).open(&draft);
    let written = file.and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()));
    if let Err(error) = written.and_then(|()| fs::rename(&draft, path)) {
        // The first error is the one worth reporting.
        let _ = fs::remove_file(draft);
        return Err(error);
    }
    sync_folder(path).map_err(|error| io::Error::new(error.kind(), Unsynced(error)))
}

/// Waits until the disk has a file's name.
///
/// # Errors
/// When it does not take it.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => platform::sync_folder(folder),
        _ => platform::sync_folder(Path::new(".")),
    }
}

/// Gives a damaged file a name under which it stays, `NAME.broken` or `NAME.broken-2` and so on, and says it. The file itself may
/// have gone from its own name then, or be written anew there.
///
/// # Errors
/// When the disk refuses.
pub fn keep_aside(path: &Path) -> io::Result<PathBuf> {
    let own = fs::metadata(path)?;
    let mut last = beside(path, "broken");
    for number in 1..=KEPT {
        if number > 1 {
            last = beside(path, &format!("broken-{number}"));
        }
        match fs::metadata(&last) {
            // As it was kept by a process that was killed before it could go on.
            Ok(there) if platform::is_same_file(&there, &own) => return Ok(last),
            Ok(_) => {}
            // No disk has to know of two names for a file.
            Err(_) if fs::hard_link(path, &last).is_ok() => return Ok(last),
            Err(_) => return fs::rename(path, &last).map(|()| last),
        }
    }
    fs::rename(path, &last).map(|()| last)
}

/// The same, and the file is no more under its own name.
///
/// # Errors
/// When the disk refuses.
pub fn move_aside(path: &Path) -> io::Result<PathBuf> {
    let kept = keep_aside(path)?;
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(kept),
    }
}

/// The path with an ending more.
#[must_use]
pub fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".");
    name.push(ending);
    name.into()
}

/// Makes a folder for its owner alone, and those it lies in, where they are not there. Says which it made, innermost first.
///
/// # Errors
/// When the disk refuses.
pub fn make_folder(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let lacking = folder.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists());
    let made = lacking.map(Path::to_owned).collect();
    platform::make_folder_for_owner(folder)?;
    Ok(made)
}

/// Removes folders that were made for nothing. One that holds something stays.
pub fn unmake(made: &[PathBuf]) {
    for folder in made {
        if fs::remove_dir(folder).is_err() {
            return;
        }
    }
}

/// Removes what killed processes left half-written in a folder. What another process writes just now stays.
pub fn sweep(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_old = || entry.metadata().and_then(|about| about.modified()).ok().and_then(|at| at.elapsed().ok());
        if is_draft(&name.to_string_lossy()) && is_old().is_some_and(|age| age > STALE) {
            // It is of no use, and does no harm.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Also as versions before wrote them: `invites.json.new`, `identity.new-123`.
fn is_draft(name: &str) -> bool {
    (name.starts_with('.') && name.ends_with(".new"))
        || (name.starts_with("invites") && name.ends_with(".json.new"))
        || name.strip_prefix("identity.new-").is_some_and(|pid| pid.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = entries.collect();
        names.sort();
        names
    }

    #[test]
    fn what_the_disk_may_lose_again_is_told_from_what_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some.json");
        let error = write_unsynced(&path, b"first").unwrap_err();
        assert!(is_placed(&error) && crate::plain::io_error(&error).starts_with("it is written"), "{error}");
        assert_eq!((fs::read(&path).unwrap(), names(folder.path())), (b"first".to_vec(), vec!["some.json".to_owned()]));
    }

    #[test]
    fn a_file_is_written_whole_and_a_refusal_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some.json");
        write_whole(&path, b"first").unwrap();
        write_whole(&path, b"second").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(platform::mode(&fs::metadata(&path).unwrap()), Some(0o600));
        // A folder of that name cannot be replaced.
        let taken = folder.path().join("taken");
        fs::create_dir(&taken).unwrap();
        fs::write(taken.join("inside"), "").unwrap();
        assert!(!is_placed(&write_whole(&taken, b"third").unwrap_err()));
        assert_eq!(names(folder.path()), ["some.json", "taken"]);
    }

    #[test]
    fn damaged_files_are_kept_side_by_side() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some.log");
        for content in ["1", "2"] {
            fs::write(&path, content).unwrap();
            let kept = keep_aside(&path).unwrap();
            assert_eq!(keep_aside(&path).unwrap(), kept, "it is kept already");
            // Its place is taken by a new file, as the owner of the file does it.
            write_whole(&path, b"mended").unwrap();
            assert_eq!(fs::read_to_string(kept).unwrap(), content);
        }
        for _ in 0..2 * KEPT {
            fs::write(&path, "more").unwrap();
            move_aside(&path).unwrap();
        }
        assert_eq!(names(folder.path()).len(), KEPT);
        assert_eq!(fs::read_to_string(folder.path().join("some.log.broken")).unwrap(), "1", "the first stay");
    }

    #[test]
    fn folders_that_were_made_for_nothing_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("a/b");
        let made = make_folder(&inner).unwrap();
        assert_eq!(made, [inner.clone(), folder.path().join("a")]);
        assert!(make_folder(&inner).unwrap().is_empty());
        unmake(&made);
        assert!(names(folder.path()).is_empty());
    }

    #[test]
    fn drafts_are_known_by_their_names() {
        let drafts =
            [".keys.json.77.new", ".invite.new", "invites.json.new", "invites-used.json.new", "identity.new-7"];
        assert!(drafts.into_iter().all(is_draft));
        assert!(!["identity.key", "keys.json", "state.log", "state.log.new", ".hidden"].into_iter().any(is_draft));
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(drafts[0]), "").unwrap();
        sweep(folder.path());
        assert_eq!(names(folder.path()).len(), 1, "another process may be writing it");
    }
}
