//! What Windows is told of a peer: a task of its scheduler, as text, and the commands that have it started and removed.
//!
//! A service proper answers the service manager from within; `tsnode join` is a program of the console, which that would end after
//! half a minute. The scheduler starts any program at logon, and starts it again when it ends by an error.

use super::{
    launchd::escaped,
    unit::{Unit, UnitError},
};

/// What the task is called.
pub const TASK: &str = "tsnode";

/// The task, for `schtasks /Create /XML`.
///
/// # Errors
/// When a path or a flag cannot be written into one.
pub fn task(unit: &Unit) -> Result<String, UnitError> {
    let program = unit.program.to_str().ok_or_else(|| UnitError::Control(unit.program.display().to_string()))?;
    let words: Vec<String> = std::iter::once("join").chain(unit.flags.iter().map(String::as_str)).map(quoted).collect();
    let (program, words) = (escaped(program)?, escaped(&words.join(" "))?);
    Ok(format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>
<Task version=\"1.2\" xmlns=\"http://schemas.microsoft.com/windows/2004/02/mit/task\">
  <RegistrationInfo><Description>tsnode peer</Description></RegistrationInfo>
  <Triggers><LogonTrigger><Enabled>true</Enabled></LogonTrigger></Triggers>
  <Principals><Principal id=\"Author\"><LogonType>InteractiveToken</LogonType><RunLevel>LeastPrivilege</RunLevel></Principal></Principals>
  <Settings>
    <MultipleInstancesPolicy>IgnoreNew</MultipleInstancesPolicy>
    <DisallowStartIfOnBatteries>true</DisallowStartIfOnBatteries>
    <StopIfGoingOnBatteries>true</StopIfGoingOnBatteries>
    <ExecutionTimeLimit>PT0S</ExecutionTimeLimit>
    <RestartOnFailure><Interval>PT1M</Interval><Count>255</Count></RestartOnFailure>
  </Settings>
  <Actions Context=\"Author\"><Exec><Command>{program}</Command><Arguments>{words}</Arguments></Exec></Actions>
</Task>
"
    ))
}

/// What is said at a prompt, the task being in a file: install, look, remove.
#[must_use]
pub fn commands() -> [(&'static str, String); 3] {
    [
        ("start it", format!("schtasks /Create /TN {TASK} /XML {TASK}.xml && schtasks /Run /TN {TASK}")),
        ("look at it", format!("schtasks /Query /TN {TASK} /V /FO LIST")),
        ("be rid of it", format!("tsnode leave && schtasks /Delete /TN {TASK} /F")),
    ]
}

/// A word as programs of Windows take a command line apart: a quote is behind a backslash, and so is each backslash before one.
fn quoted(word: &str) -> String {
    if !word.is_empty() && !word.contains([' ', '\t', '"']) {
        return word.to_owned();
    }
    let (mut out, mut backslashes) = (String::from("\""), 0);
    for c in word.chars() {
        match c {
            '\\' => backslashes += 1,
            '"' => {
                out.push_str(&"\\".repeat(2 * backslashes + 1));
                backslashes = 0;
                out.push('"');
                continue;
            }
            _ => {
                out.push_str(&"\\".repeat(backslashes));
                backslashes = 0;
            }
        }
        if c != '\\' {
            out.push(c);
        }
    }
    out.push_str(&"\\".repeat(2 * backslashes));
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::Level;

    #[test]
    fn words_are_quoted_as_windows_takes_them_apart() {
        for (word, said) in [
            ("--memory=8GiB", "--memory=8GiB"),
            ("--name=a b", "\"--name=a b\""),
            (r"C:\models\a b\", r#""C:\models\a b\\""#),
            (r#"a "b" \"c"#, r#""a \"b\" \\\"c""#),
            ("", "\"\""),
        ] {
            assert_eq!(quoted(word), said, "{word}");
        }
    }

    #[test]
    fn a_task_starts_a_peer_at_logon_and_again_when_it_fails() {
        let unit = Unit {
            level: Level::User,
            run_as: None,
            program: r"C:\Program Files\tsnode\tsnode.exe".into(),
            flags: vec!["--name=a & b".into()],
            credentials: vec![],
            data: r"C:\Users\ann\tsnode".into(),
        };
        let said = task(&unit).unwrap();
        let command = r"<Command>C:\Program Files\tsnode\tsnode.exe</Command><Arguments>join &quot;--name=a &amp; b&quot;</Arguments>";
        assert!(said.contains(command), "{said}");
        for part in ["<LogonTrigger>", "<RestartOnFailure><Interval>PT1M</Interval>", "<ExecutionTimeLimit>PT0S<"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        let wrong = Unit { flags: vec!["--name=a\n".into()], ..unit };
        assert!(matches!(task(&wrong), Err(UnitError::Control(_))));
        assert!(commands().iter().all(|(_, command)| command.contains(TASK)));
    }
}
