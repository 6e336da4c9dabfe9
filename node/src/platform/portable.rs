//! Systems that are no Unix: what the standard library has, and for the rest what is said at each function.

use super::Edition;
use std::collections::BTreeSet;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};
use tokio::process::Command;

/// Windows has it for every user.
pub(crate) const HOME: &str = "USERPROFILE";

/// The folder decides who may read what is made in it: a user's own is that user's.
pub(crate) fn for_owner(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

/// The same of folders.
pub(crate) fn make_folder_for_owner(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)
}

/// So may those who may read its folder.
pub(crate) fn let_all_read(path: &Path) -> io::Result<()> {
    fs::metadata(path).map(|_| ())
}

/// What a program is follows from its name.
pub(crate) fn let_all_run(path: &Path) -> io::Result<()> {
    fs::metadata(path).map(|_| ())
}

/// There are no such bits.
pub(crate) fn mode(_: &Metadata) -> Option<u32> {
    None
}

#[cfg(test)]
pub(crate) fn set_mode(_: &Path, _: u32) {}

/// It is not said whose a file is, so nothing is taken for this user's own.
pub(crate) fn owner(_: &Metadata) -> Option<u32> {
    None
}

/// Two names are two files.
pub(crate) fn is_same_file(_: &Metadata, _: &Metadata) -> bool {
    false
}

/// By its length and time.
pub(crate) fn edition(about: &Metadata) -> Option<Edition> {
    Some((about.len(), about.modified().ok()?))
}

/// The same; whoever needs more hashes the file again.
pub(crate) fn stamp(about: &Metadata) -> [u64; 5] {
    let since = about.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    [0, 0, about.len(), since.as_secs(), since.subsec_nanos().into()]
}

/// Files are read and written one after the other: a place in one is where its cursor is.
static CURSOR: Mutex<()> = Mutex::new(());

pub(crate) fn read_exact_at(mut file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    let _turn = CURSOR.lock().unwrap_or_else(PoisonError::into_inner);
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(bytes)
}

pub(crate) fn write_all_at(mut file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    let _turn = CURSOR.lock().unwrap_or_else(PoisonError::into_inner);
    file.seek(SeekFrom::Start(at))?;
    file.write_all(bytes)
}

/// Nothing says where nothing was written.
pub(crate) fn next_data(_: &File, from: u64) -> u64 {
    from
}

/// The disk keeps the room of what is not needed any more.
pub(crate) fn punch(_: &File, _: u64, _: u64) -> io::Result<()> {
    Ok(())
}

/// A folder is no file that could be synced: names are in the journal of its disk, with the files' lengths.
pub(crate) fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Links are for administrators: the file has a second name instead.
pub(crate) fn symlink(to: impl AsRef<Path>, link: &Path) -> io::Result<()> {
    fs::hard_link(link.parent().unwrap_or(Path::new("")).join(to), link)
}

/// It is not said: whoever has no room hears of it when it writes.
pub(crate) fn free_bytes(folder: &Path) -> io::Result<Option<u64>> {
    fs::metadata(folder).map(|_| None)
}

/// As far as a folder itself says so.
pub(crate) fn may_write(folder: &Path) -> io::Result<()> {
    match fs::metadata(folder)?.permissions().readonly() {
        true => Err(io::ErrorKind::PermissionDenied.into()),
        false => Ok(()),
    }
}

/// Nobody waits for old connections there, and what is called so lets a second process listen at the same address.
pub(crate) fn reuse_address(_: &socket2::Socket) -> io::Result<()> {
    Ok(())
}

/// There is no limit that a process can raise.
pub(crate) fn most_files() -> Option<u64> {
    None
}

/// No process gives itself limits: the patience of who started it alone ends it.
pub(crate) fn confine(_: u64, _: u64) -> io::Result<()> {
    Ok(())
}

/// It ends by `kill_on_drop` alone.
pub(crate) fn of_its_own(command: &mut Command) -> &mut Command {
    command
}

pub(crate) fn own_program() -> io::Result<PathBuf> {
    std::env::current_exe()
}

pub(crate) fn host_name() -> String {
    std::env::var("COMPUTERNAME").or_else(|_| std::env::var("HOSTNAME")).unwrap_or_default()
}

/// As if the thread had a processor all the time.
pub(crate) fn thread_time() -> Duration {
    static STARTED: LazyLock<Instant> = LazyLock::new(Instant::now);
    STARTED.elapsed()
}

/// It is not told.
pub(crate) fn processor_time() -> Option<f64> {
    None
}

/// Processes are not stopped.
pub(crate) fn is_stopped(_: u32) -> bool {
    false
}

pub(crate) fn allowed_processors() -> io::Result<BTreeSet<usize>> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this system keeps no thread on a processor: leave cores unset"))
}

pub(crate) fn set_processors(_: &BTreeSet<usize>) -> io::Result<()> {
    allowed_processors().map(|_| ())
}

/// A thread has no say in when it runs.
pub(crate) fn give_way() {}

/// Ctrl-C, which is all that asks a process to end.
#[derive(Debug)]
pub(crate) struct Signals {
    hears: bool,
}

impl Signals {
    pub fn to_end() -> io::Result<Self> {
        Ok(Self { hears: true })
    }

    /// Where Ctrl-C is a key there is nothing else.
    pub fn beside_keys() -> io::Result<Self> {
        Ok(Self { hears: false })
    }

    pub async fn next(&mut self) {
        if !self.hears || tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
