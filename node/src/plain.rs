//! What the system's errors mean, in plain words.

use std::io;

/// An error of a file, a folder or a port, without the system's numbers.
#[must_use]
pub fn io_error(error: &io::Error) -> String {
    use io::ErrorKind as K;
    let plain = match error.kind() {
        K::NotFound => "there is no such file or folder",
        K::PermissionDenied => "this user may not do that there",
        K::AlreadyExists => "there is something of that name already",
        K::NotADirectory => "a part of that path is a file, and no folder",
        K::IsADirectory => "that is a folder, and no file",
        K::DirectoryNotEmpty => "that folder is not empty",
        K::StorageFull => "the disk is full",
        K::QuotaExceeded => "this user may not have more on that disk",
        K::FileTooLarge => "files may not grow that large there",
        K::ReadOnlyFilesystem => "nothing can be written to that disk",
        K::InvalidData => "it is not text",
        K::AddrInUse => "another program has that port",
        K::AddrNotAvailable => "this machine does not have that address",
        K::BrokenPipe => "nobody reads any more",
        K::UnexpectedEof => "it ends too soon",
        K::TimedOut => "no answer in time",
        K::ConnectionRefused => "nobody answers there",
        _ => return without_numbers(&error.to_string()),
    };
    // Where a library has its own sentence, that says more than the kind.
    match error.get_ref() {
        Some(own) if error.kind() != K::InvalidData => own.to_string(),
        _ => plain.to_owned(),
    }
}

/// A sentence without the system's numbers: `too many open files (os error 24)` is about too many open files.
#[must_use]
pub fn without_numbers(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |said, part| said + part.split_once(')').map_or(part, |(_, rest)| rest))
}

/// A sentence without secrets that somebody wrote where they do not belong: an invite behind a verb that takes none, a key in the
/// place of a name. They are known by how they begin.
#[must_use]
pub fn without_secrets(text: &str) -> String {
    const BEGINNINGS: [&str; 3] = ["ts1", "tsk-", "tsl-"];
    /// So long is no word.
    const LONG: usize = 16;
    let (mut said, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((at, beginning)) = BEGINNINGS.iter().filter_map(|b| Some((rest.find(b)?, *b))).min() {
        let (before, found) = rest.split_at(at);
        let secret = found[beginning.len()..].chars().take_while(char::is_ascii_alphanumeric).count();
        let within = before.chars().last().is_some_and(|c| c.is_ascii_alphanumeric());
        said.push_str(before);
        said.push_str(beginning);
        rest = &found[beginning.len()..];
        if !within && secret >= LONG {
            said.push('…');
            rest = &rest[secret..];
        }
    }
    said + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_error_is_said_by_its_number() {
        for number in 1..=133 {
            let error = io::Error::from_raw_os_error(number);
            let said = io_error(&error);
            assert!(!said.is_empty() && !said.contains("os error"), "{error}: {said}");
        }
        assert_eq!(io_error(&io::Error::other("the moon is full")), "the moon is full");
        let two = "a: No such file (os error 2), b: Is a folder (os error 21); go on";
        assert_eq!(without_numbers(two), "a: No such file, b: Is a folder; go on");
        assert_eq!(without_numbers("nothing of the kind (os"), "nothing of the kind (os");
        assert_eq!(io_error(&std::fs::read("/nowhere/at/all").unwrap_err()), "there is no such file or folder");
    }

    #[test]
    fn no_secret_is_repeated() {
        let invite = format!("ts1{}", "abcdefg2".repeat(20));
        let said =
            without_secrets(&format!("unexpected argument '{invite}' found; tsk-{0} or tsl-{0}", "k7".repeat(26)));
        assert_eq!(said, "unexpected argument 'ts1…' found; tsk-… or tsl-…");
        for harmless in ["tsnode join --invite ts1…", "12D3KooWts1abcdefghijklmnopqrst", "tsk-short", "", "ts1"] {
            assert_eq!(without_secrets(harmless), harmless);
        }
    }
}
