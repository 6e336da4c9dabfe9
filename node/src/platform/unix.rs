//! Unix, and what Linux has beyond it.

mod processors;

pub(crate) use processors::{allowed_processors, give_way, set_processors};

use super::Edition;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::process::Command;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What macOS gives, though it says that there is no limit.
const MACOS: u64 = 10_240;
/// Ticks of a processor's clock in a second, as Linux reports times, whatever its own clock does.
const TICKS: f64 = 100.0;

/// The variable that has a user's own folder.
pub(crate) const HOME: &str = "HOME";

/// A file that is made is for its owner alone.
pub(crate) fn for_owner(options: &mut OpenOptions) -> &mut OpenOptions {
    options.mode(0o600)
}

/// Makes a folder for its owner alone, and those it lies in.
pub(crate) fn make_folder_for_owner(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Everybody may read it, and its owner write.
pub(crate) fn let_all_read(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(0o644))
}

/// The same, and everybody may run it.
pub(crate) fn let_all_run(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(0o755))
}

/// Who may do what with it; none where the system has no such bits.
pub(crate) fn mode(about: &Metadata) -> Option<u32> {
    Some(about.permissions().mode() & 0o777)
}

#[cfg(test)]
pub(crate) fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Whose it is; none where the system does not say.
pub(crate) fn owner(about: &Metadata) -> Option<u32> {
    Some(about.uid())
}

/// Whether both are one file under two names.
pub(crate) fn is_same_file(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

pub(crate) fn edition(about: &Metadata) -> Option<Edition> {
    Some((about.ino(), about.modified().ok()?))
}

/// What tells a file of any disk, at any time, from all others.
pub(crate) fn stamp(about: &Metadata) -> [u64; 5] {
    [about.dev(), about.ino(), about.len(), about.mtime().cast_unsigned(), about.mtime_nsec().cast_unsigned()]
}

/// Reads from a place of the file, whoever else reads elsewhere.
pub(crate) fn read_exact_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    file.read_exact_at(bytes, at)
}

/// Writes at a place of the file, whoever else writes elsewhere.
pub(crate) fn write_all_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    file.write_all_at(bytes, at)
}

/// Where something was written to the file, from a place on: what was not is not read. Where the disk does not say, all was.
pub(crate) fn next_data(file: &File, from: u64) -> u64 {
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(from)) {
        Ok(at) => at,
        Err(rustix::io::Errno::NXIO) => u64::MAX,
        Err(_) => from,
    }
}

/// Gives the room of a part of the file back to the disk; it reads as zeros then. A disk that cannot keeps it.
#[cfg(target_os = "linux")]
pub(crate) fn punch(file: &File, at: u64, bytes: u64) -> io::Result<()> {
    use rustix::{
        fs::{FallocateFlags, fallocate},
        io::Errno,
    };
    match fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, bytes) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The system keeps it.
#[cfg(not(target_os = "linux"))]
pub(crate) fn punch(_: &File, _: u64, _: u64) -> io::Result<()> {
    Ok(())
}

/// Waits until the disk has the names of what is in a folder.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Makes `link` stand for a file whose path is told from the folder of the link.
pub(crate) fn symlink(to: impl AsRef<Path>, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(to, link)
}

/// Bytes that are free on the disk of a folder; none where the system does not say.
pub(crate) fn free_bytes(folder: &Path) -> io::Result<Option<u64>> {
    let about = rustix::fs::statvfs(folder)?;
    Ok(Some(about.f_bavail.saturating_mul(about.f_frsize)))
}

/// An error where files cannot be made in a folder.
pub(crate) fn may_write(folder: &Path) -> io::Result<()> {
    Ok(rustix::fs::access(folder, rustix::fs::Access::WRITE_OK)?)
}

/// Lets a listener have its address though connections of the one before it are not over yet.
pub(crate) fn reuse_address(socket: &socket2::Socket) -> io::Result<()> {
    socket.set_reuse_address(true)
}

/// Lets this process have as many files open as the system allows it, and says how many that are; none where there is no limit.
pub(crate) fn most_files() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    // What the first of these gives; a limit that was higher stays.
    let wishes = [limit.maximum, Some(MACOS)].into_iter().filter(|wish| is_more(*wish, limit.current));
    let raised = wishes
        .into_iter()
        .find(|wish| setrlimit(Resource::Nofile, Rlimit { current: *wish, maximum: limit.maximum }).is_ok());
    raised.unwrap_or(limit.current)
}

/// Whether one limit is higher than another; none is the highest.
fn is_more(one: Option<u64>, other: Option<u64>) -> bool {
    other.is_some_and(|other| one.is_none_or(|one| one > other))
}

/// From now on this process may have so much address space (bytes), use a processor for so many seconds, and goes before others
/// where memory is short. Not every system limits address space.
pub(crate) fn confine(memory: u64, processor: u64) -> io::Result<()> {
    let most = |most| Rlimit { current: Some(most), maximum: Some(most) };
    setrlimit(Resource::Core, most(0))?;
    setrlimit(Resource::Cpu, most(processor))?;
    // Linux alone has it, and lets everybody raise it.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    let _ = setrlimit(Resource::As, most(memory));
    Ok(())
}

/// A process of its own, called as this program is: Ctrl-C is for the peer, which may have something to end.
pub(crate) fn of_its_own(command: &mut Command) -> &mut Command {
    command.arg0("tsnode").process_group(0)
}

/// The program that runs, also where its file was replaced by a newer one meanwhile.
pub(crate) fn own_program() -> io::Result<PathBuf> {
    let running = PathBuf::from("/proc/self/exe");
    if running.exists() { Ok(running) } else { std::env::current_exe() }
}

/// What this host is called; nothing where the system does not say.
pub(crate) fn host_name() -> String {
    let said = fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let said = said.or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_default();
    said.trim().to_owned()
}

/// How long this thread has had a processor.
pub(crate) fn thread_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    // Neither is below zero for a thread's own time.
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Processor time of this process (s), where the system tells.
pub(crate) fn processor_time() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name in parentheses may hold anything; user and system time are the 14th and 15th field of the line.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: Vec<f64> = fields.split_whitespace().skip(11).take(2).filter_map(|f| f.parse().ok()).collect();
    (ticks.len() == 2).then(|| ticks.iter().sum::<f64>() / TICKS)
}

/// Whether a process is stopped, as by SIGSTOP; not where the system does not say.
pub(crate) fn is_stopped(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The state is behind the name, which is in parentheses and may hold anything.
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().as_bytes().first().copied());
    matches!(state, Some(b'T' | b't'))
}

/// Signals that ask this process to end.
#[derive(Debug)]
pub(crate) struct Signals([Signal; 2]);

impl Signals {
    /// By whoever manages it, or Ctrl-C.
    ///
    /// # Errors
    /// When the system lets none be heard.
    pub fn to_end() -> io::Result<Self> {
        Ok(Self([signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?]))
    }

    /// By whoever manages it, or because its terminal has gone; Ctrl-C is a key like others.
    ///
    /// # Errors
    /// When the system lets none be heard.
    pub fn beside_keys() -> io::Result<Self> {
        Ok(Self([signal(SignalKind::terminate())?, signal(SignalKind::hangup())?]))
    }

    /// Until the next comes.
    pub async fn next(&mut self) {
        let [one, other] = &mut self.0;
        tokio::select! {
            _ = one.recv() => {}
            _ = other.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_may_be_as_many_as_the_system_allows() {
        let files = most_files();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!((limit.current, files), (limit.maximum, limit.current));
        assert!(is_more(None, Some(1)) && is_more(Some(2), Some(1)) && !is_more(Some(1), None) && !is_more(None, None));
    }
}
