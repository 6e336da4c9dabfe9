//! What launchd of macOS is told of a peer: the agent's property list, as text, and the commands that have it started and removed.

use super::unit::{Unit, UnitError, absolute};
use std::fmt::Write as _;

/// What the agent is called.
pub const LABEL: &str = "tsnode.peer";

/// A user's agent. It is started again when it ends by an error, not when it has left in order, and has as long to leave as systemd's.
///
/// # Errors
/// When a path or a flag cannot be written into one.
pub fn agent(unit: &Unit) -> Result<String, UnitError> {
    let mut words = vec![absolute(&unit.program)?, "join".to_owned()];
    words.extend(unit.flags.iter().cloned());
    let mut out = String::from(HEAD);
    let _ = writeln!(out, "  <key>Label</key><string>{LABEL}</string>\n  <key>ProgramArguments</key>\n  <array>");
    for word in &words {
        let _ = writeln!(out, "    <string>{}</string>", escaped(word)?);
    }
    let log = escaped(&absolute(&unit.data.join("launchd.log"))?)?;
    let _ = write!(
        out,
        "  </array>\n  <key>RunAtLoad</key><true/>\n  <key>KeepAlive</key><dict><key>SuccessfulExit</key><false/></dict>\n  \
         <key>ThrottleInterval</key><integer>5</integer>\n  <key>ExitTimeOut</key><integer>45</integer>\n  \
         <key>SoftResourceLimits</key><dict><key>NumberOfFiles</key><integer>65536</integer></dict>\n  \
         <key>StandardOutPath</key><string>{log}</string>\n  <key>StandardErrorPath</key><string>{log}</string>\n</dict>\n</plist>\n"
    );
    Ok(out)
}

/// What is said at a terminal, the agent being written to [`path`]: install, look, remove.
#[must_use]
pub fn commands() -> [(&'static str, String); 3] {
    let path = path();
    [
        ("start it", format!("launchctl bootstrap gui/$(id -u) {path}")),
        ("look at it", format!("launchctl print gui/$(id -u)/{LABEL}")),
        ("be rid of it", format!("launchctl bootout gui/$(id -u)/{LABEL}; rm {path}")),
    ]
}

/// Where launchd looks for a user's agents.
#[must_use]
pub fn path() -> String {
    format!("~/Library/LaunchAgents/{LABEL}.plist")
}

const HEAD: &str = "\
<?xml version=\"1.0\" encoding=\"UTF-8\"?>
<!DOCTYPE plist PUBLIC \"-//Apple//DTD PLIST 1.0//EN\" \"http://www.apple.com/DTDs/PropertyList-1.0.dtd\">
<plist version=\"1.0\">
<dict>
";

/// A text between two tags.
pub(super) fn escaped(text: &str) -> Result<String, UnitError> {
    if text.chars().any(char::is_control) {
        return Err(UnitError::Control(text.to_owned()));
    }
    Ok(text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::Level;

    fn unit() -> Unit {
        Unit {
            level: Level::User,
            run_as: None,
            program: "/usr/local/bin/tsnode".into(),
            flags: vec!["--name=a & <b>".into(), "--memory=8GiB".into()],
            credentials: vec![],
            data: "/Users/ann/.local/share/tsnode".into(),
        }
    }

    #[test]
    fn an_agent_says_what_a_unit_says() {
        let expected = "\
<?xml version=\"1.0\" encoding=\"UTF-8\"?>
<!DOCTYPE plist PUBLIC \"-//Apple//DTD PLIST 1.0//EN\" \"http://www.apple.com/DTDs/PropertyList-1.0.dtd\">
<plist version=\"1.0\">
<dict>
  <key>Label</key><string>tsnode.peer</string>
  <key>ProgramArguments</key>
  <array>
    <string>/usr/local/bin/tsnode</string>
    <string>join</string>
    <string>--name=a &amp; &lt;b&gt;</string>
    <string>--memory=8GiB</string>
  </array>
  <key>RunAtLoad</key><true/>
  <key>KeepAlive</key><dict><key>SuccessfulExit</key><false/></dict>
  <key>ThrottleInterval</key><integer>5</integer>
  <key>ExitTimeOut</key><integer>45</integer>
  <key>SoftResourceLimits</key><dict><key>NumberOfFiles</key><integer>65536</integer></dict>
  <key>StandardOutPath</key><string>/Users/ann/.local/share/tsnode/launchd.log</string>
  <key>StandardErrorPath</key><string>/Users/ann/.local/share/tsnode/launchd.log</string>
</dict>
</plist>
";
        assert_eq!(agent(&unit()).unwrap(), expected);
        let wrong = Unit { flags: vec!["--name=a\n".into()], ..unit() };
        assert!(matches!(agent(&wrong), Err(UnitError::Control(_))));
        assert!(commands().iter().all(|(_, command)| command.contains(LABEL)));
    }
}
