//! Secrets that no other user of the machine should read in the list of processes: they come from standard input or from files.

use super::{ConfigError, SettingOrigin, Settings};
use crate::plain;
use std::fs::File;
use std::io::{self, BufRead, Read as _};
use std::path::Path;

/// Longer than any secret (bytes).
const LONGEST: u64 = 64 << 10;
/// As a value, what stands for a line of standard input.
const STANDARD_INPUT: &str = "-";

/// A setting that is a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecretSetting {
    /// Its name.
    pub name: &'static str,
    /// Name of the setting that says in which file it is.
    pub file: &'static str,
    /// What it is, for people.
    pub what: &'static str,
}

/// The swarm to join.
pub const INVITE: SecretSetting = SecretSetting { name: "invite", file: "invite-file", what: "the invite" };
/// The key of HTTP clients.
pub const API_KEY: SecretSetting = SecretSetting { name: "api-key", file: "api-key-file", what: "the key" };
/// All of them.
pub const SECRETS: [SecretSetting; 2] = [INVITE, API_KEY];

/// Where a secret is.
enum SecretPlace {
    /// It is said, or not.
    Said,
    /// In a line of standard input.
    Input,
    /// In the file that another setting names.
    File,
}

impl Settings {
    /// Reads a secret that is in a file or to come from `input`, and takes it for what was said; `ask` is told before a line of
    /// `input` is waited for.
    ///
    /// # Errors
    /// When it is in two places at once, or cannot be read.
    pub fn read_secret(
        &mut self,
        secret: SecretSetting,
        input: &mut impl BufRead,
        ask: impl Fn(&str),
    ) -> Result<(), ConfigError> {
        let (from, read) = match self.secret_place(secret)? {
            SecretPlace::Said => return Ok(()),
            SecretPlace::Input => {
                ask(secret.what);
                (format!("{} (standard input)", self.place(secret.name)), line(input))
            }
            SecretPlace::File => (self.place(secret.file), file(Path::new(self.text(secret.file)))),
        };
        let wrong = |error: String| ConfigError::Value { place: from.clone(), error };
        let text = read.map_err(|error| wrong(plain::io_error(&error)))?;
        let text = text.trim();
        if text.is_empty() {
            return Err(wrong(format!("nothing is there; {} is one line", secret.what)));
        }
        if text.contains(char::is_whitespace) {
            return Err(wrong(format!("there is more than {}, which is one line without spaces", secret.what)));
        }
        self.0.insert(secret.name, (text.to_owned(), SettingOrigin::Read(from)));
        Ok(())
    }

    /// Whether there is such a secret, read or not.
    #[must_use]
    pub fn has_secret(&self, secret: SecretSetting) -> bool {
        [secret.name, secret.file].iter().any(|name| !self.text(name).is_empty())
    }

    /// What to do about secrets that everybody can read who lists this machine's processes.
    #[must_use]
    pub fn exposed(&self) -> Vec<String> {
        let is_exposed = |secret: &&SecretSetting| {
            self.origin(secret.name) == Some(&SettingOrigin::Flag) && self.text(secret.name) != STANDARD_INPUT
        };
        let said = |secret: &SecretSetting| {
            let SecretSetting { name, file, what } = secret;
            let variable = super::knobs::variable(name);
            format!(
                "other users of this machine can read {what} in the list of processes; they cannot with --{name} -, which reads \
                 it from standard input, --{file} FILE, or {variable}"
            )
        };
        SECRETS.iter().filter(is_exposed).map(said).collect()
    }

    /// Flags over variables over the file, as everywhere.
    fn secret_place(&self, secret: SecretSetting) -> Result<SecretPlace, ConfigError> {
        let rank = |name| match self.origin(name) {
            Some(SettingOrigin::Flag) => 3,
            Some(SettingOrigin::Variable(_)) => 2,
            Some(SettingOrigin::File(..)) => 1,
            Some(SettingOrigin::Default | SettingOrigin::Read(_)) | None => 0,
        };
        let (said, file) = (rank(secret.name), rank(secret.file));
        if said == file && said > 0 {
            return Err(self.wrong(secret.file, format!("{} is said as well; leave one", secret.name)));
        }
        Ok(match self.text(secret.name) {
            _ if file > said => SecretPlace::File,
            STANDARD_INPUT if said > 0 => SecretPlace::Input,
            _ => SecretPlace::Said,
        })
    }
}

/// One line, and nothing behind it: that may be a prompt.
fn line(input: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    input.take(LONGEST).read_until(b'\n', &mut line)?;
    text(line)
}

/// A file, which may be a pipe.
fn file(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(LONGEST).read_to_end(&mut bytes)?;
    text(bytes)
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    if bytes.len() as u64 >= LONGEST {
        return Err(io::Error::other("too long for a secret"));
    }
    String::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::super::tests::gather;
    use super::*;

    fn read(flags: &[(&str, &str)], variables: &[(&str, &str)], input: &str) -> Result<String, String> {
        let mut settings = gather(flags, variables, "").unwrap();
        let outcome = settings.read_secret(INVITE, &mut input.as_bytes(), |_| {});
        outcome.map(|()| settings.text("invite").to_owned()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_secret_comes_from_where_it_is_said_to_be() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("invite");
        std::fs::write(&path, "ts1file\n").unwrap();
        let path = path.to_str().unwrap();
        let file = ("invite-file", path);
        assert_eq!(read(&[], &[], "").as_deref(), Ok(""));
        assert_eq!(read(&[("invite", "ts1said")], &[], "").as_deref(), Ok("ts1said"));
        assert_eq!(read(&[("invite", "-")], &[], "ts1typed\nand a prompt\n").as_deref(), Ok("ts1typed"));
        assert_eq!(read(&[file], &[], "").as_deref(), Ok("ts1file"));
        assert_eq!(read(&[], &[("TSNODE_INVITE_FILE", path)], "").as_deref(), Ok("ts1file"));
        // Flags over variables.
        assert_eq!(read(&[file], &[("TSNODE_INVITE", "ts1variable")], "").as_deref(), Ok("ts1file"));
        assert_eq!(read(&[("invite", "ts1said")], &[("TSNODE_INVITE_FILE", path)], "").as_deref(), Ok("ts1said"));
    }

    #[test]
    fn what_is_wrong_is_said_without_the_secret() {
        let secret = format!("ts1{}", "abcdefgh".repeat(9));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("two");
        std::fs::write(&path, format!("{secret}\n{secret}\n")).unwrap();
        let path = path.to_str().unwrap();
        for (flags, input, why) in [
            (&[("invite", "-")][..], "\n", "--invite - (standard input): nothing is there"),
            (&[("invite-file", "/nowhere/at/all")], "", "--invite-file /nowhere/at/all: there is no such file"),
            (&[("invite-file", path)], "", "there is more than the invite"),
            (&[("invite-file", path), ("invite", &secret)], "", "invite is said as well; leave one"),
        ] {
            let said = read(flags, &[], input).unwrap_err();
            assert!(said.contains(why) && !said.contains("abcdefgh"), "{said}");
        }
        // The line that is read is no invite.
        let mut settings = gather(&[("invite", "-")], &[], "").unwrap();
        settings.read_secret(INVITE, &mut secret.as_bytes(), |_| {}).unwrap();
        let said = settings.node().unwrap_err().to_string();
        assert!(said.starts_with("--invite - (standard input): ") && !said.contains("abcdefgh"), "{said}");
    }

    #[test]
    fn a_secret_on_the_command_line_is_told() {
        let exposed =
            |flags: &[(&str, &str)], variables: &[(&str, &str)]| gather(flags, variables, "").unwrap().exposed();
        let said = exposed(&[("invite", "ts1abc"), ("api-key", "tsk-secret")], &[]);
        assert_eq!(said.len(), 2);
        assert!(said[0].contains("--invite -") && said[0].contains("TSNODE_INVITE"), "{said:?}");
        assert!(said[1].contains("--api-key-file FILE") && !said[1].contains("tsk-"), "{said:?}");
        assert!(exposed(&[("invite", "-"), ("api-key-file", "f")], &[("TSNODE_API_KEY", "k")]).is_empty());
    }
}
