//! A terminal of 80 columns with a program in it, as a person sees it.

use rustix::{fs, pty, termios};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub const COLUMNS: usize = 80;

pub struct Terminal {
    keyboard: File,
    seen: Arc<Mutex<Vec<u8>>>,
    program: Child,
}

impl Terminal {
    pub fn run(mut command: Command) -> Self {
        let master = pty::openpt(pty::OpenptFlags::RDWR | pty::OpenptFlags::NOCTTY).unwrap();
        pty::grantpt(&master).unwrap();
        pty::unlockpt(&master).unwrap();
        let size = termios::Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        termios::tcsetwinsize(&master, size).unwrap();
        let name = pty::ptsname(&master, Vec::new()).unwrap();
        let name = std::ffi::OsStr::from_bytes(name.as_bytes());
        let end = || fs::open(name, fs::OFlags::RDWR | fs::OFlags::NOCTTY, fs::Mode::empty()).unwrap();
        command.stdin(end()).stdout(end()).stderr(end()).env("TERM", "xterm").env_remove("NO_COLOR");
        let program = command.spawn().unwrap();
        let keyboard = File::from(master);
        let (mut screen, seen) = (keyboard.try_clone().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let kept = seen.clone();
        // Ends with the program, which has the terminal's last other end.
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(length @ 1..) = screen.read(&mut piece) {
                kept.lock().unwrap().extend_from_slice(&piece[..length]);
            }
        });
        Self { keyboard, seen, program }
    }

    /// All that was written so far, with what moves the cursor and gives colours.
    pub fn raw(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap()).into_owned()
    }

    /// Lines as they were written, also those that were written over.
    pub fn lines(&self) -> Vec<String> {
        self.raw().split(['\r', '\n']).map(without_escapes).filter(|line| !line.is_empty()).collect()
    }

    /// Waits until a line has these words.
    pub fn until(&self, words: &str) {
        let begun = Instant::now();
        while !self.lines().iter().any(|line| line.contains(words)) {
            assert!(begun.elapsed() < Duration::from_secs(20), "no line has {words:?}: {:#?}", self.lines());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether the terminal reads lines and shows what is typed, as programs find it.
    pub fn has_lines(&self) -> bool {
        let modes = termios::tcgetattr(&self.keyboard).unwrap().local_modes;
        modes.contains(termios::LocalModes::ICANON | termios::LocalModes::ECHO)
    }

    pub fn type_in(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// The program's exit code, when it has ended by itself.
    pub fn ended(&mut self) -> Option<i32> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.program.try_wait().unwrap() {
                return status.code();
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "it does not end: {:#?}", self.lines());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// What is to be read: control sequences end with a letter.
fn without_escapes(line: &str) -> String {
    let mut parts = line.split("\u{1b}[");
    let mut read = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c.is_ascii_alphabetic()).map_or(part.len(), |at| at + 1);
        read += &part[end..];
    }
    read.trim_end().to_owned()
}
