//! What the operating system is asked of processes and folders: the one room of this crate that knows which it is. Testnets are for
//! Unix; of other systems it is said here what they have not.

use crate::TestnetError;
use std::io;
use std::path::Path;
use std::process::Stdio;

/// Ticks of the processor clock a second, as Linux reports times (fixed for programs).
const TICKS: f64 = 100.0;
const PAGE: u64 = 4096;

/// Makes a folder for its owner alone, and those it lies in; where folders have no such bits, as those it lies in.
pub(crate) fn make_folder_for_owner(folder: &Path) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(folder)
}

/// What a process was started with; empty where it has ended, or the system does not tell: then nothing is taken for a peer.
pub(crate) fn command_line(process: u32) -> Vec<u8> {
    std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default()
}

/// Memory that a process has in use (bytes), and processor time it has used (s), where the system tells.
pub(crate) fn usage(process: &str) -> Option<(u64, f64)> {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{process}/{file}")).ok();
    let pages: u64 = read("statm")?.split_whitespace().nth(1)?.parse().ok()?;
    let stat = read("stat")?;
    // The name in parentheses may hold spaces; times are the 12th and 13th field behind it.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|t| t.parse::<f64>().ok());
    Some((pages * PAGE, (ticks(11)? + ticks(12)?) / TICKS))
}

/// Processor time that the whole machine has used (s), and what was taken from it by others of the hardware it runs on; where the
/// system tells.
pub(crate) fn machine_usage() -> Option<f64> {
    busy_time(&std::fs::read_to_string("/proc/stat").ok()?)
}

/// That of Linux' table: all but waiting for nothing and for disks. Guests are among users there.
fn busy_time(stat: &str) -> Option<f64> {
    let all = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<f64> = all.split_whitespace().map(|ticks| ticks.parse().ok()).collect::<Option<_>>()?;
    let [user, nice, system, _, _, interrupts, soft, stolen, ..] = ticks[..] else { return None };
    Some((user + nice + system + interrupts + soft + stolen) / TICKS)
}

/// Sends a signal, by the command every Unix has: `unsafe` system calls are not for this crate. Elsewhere there is no such command,
/// and the error names it.
pub(crate) fn signal(process: u32, signal: &str) -> Result<(), TestnetError> {
    let sent = std::process::Command::new("kill").args([signal, &process.to_string()]).stderr(Stdio::null()).status();
    sent.map(drop).map_err(|error| TestnetError::Io { what: format!("kill {signal} {process}"), error })
}

#[cfg(test)]
mod tests {
    use super::busy_time;

    #[test]
    fn a_machines_busy_time_is_all_but_its_idle_time() {
        let table = "cpu  100 20 30 9000 400 5 6 7 50 3\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(busy_time(table), Some(1.68));
        for odd in ["", "cpu0 1 2 3 4 5 6 7 8", "cpu  1 2 3", "cpu  1 2 x 4 5 6 7 8"] {
            assert_eq!(busy_time(odd), None, "{odd}");
        }
    }
}
