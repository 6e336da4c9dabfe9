//! Where the program is: whose it is, and how another takes its place.

use super::{Archive, UpdateError};
use crate::{
    platform,
    store::disk::{beside, sync_folder},
};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program's file.
pub struct ProgramPlace(PathBuf);

/// Who brought a program, where that was neither a person nor `install.sh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installer {
    /// A Debian package.
    Debian,
    /// An RPM package.
    Rpm,
    /// `cargo install`.
    Cargo,
}

impl ProgramPlace {
    /// A program that is there.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// The program before, where there is one.
    #[must_use]
    pub fn previous(&self) -> PathBuf {
        beside(&self.0, "previous")
    }

    /// Refuses what others keep.
    ///
    /// # Errors
    /// Says whose it is, and what to do.
    pub fn is_ours(&self) -> Result<(), UpdateError> {
        let Some(installer) = self.installer() else { return Ok(()) };
        let (owner, next) = match installer {
            Installer::Debian => ("a Debian package", "sudo apt install ./tsnode_VERSION_ARCHITECTURE.deb"),
            Installer::Rpm => ("a package", "the system's package manager installs the next"),
            Installer::Cargo => ("cargo install", "cargo install --path node"),
        };
        Err(UpdateError::Owned { path: self.0.clone(), owner, next })
    }

    /// Who brought it.
    #[must_use]
    pub fn installer(&self) -> Option<Installer> {
        let knows = |program: &str, flag: &str| {
            let asked = Command::new(program).arg(flag).arg(&self.0).stdin(Stdio::null()).output();
            asked.is_ok_and(|done| done.status.success())
        };
        // cargo notes what it installed one folder up from where it puts it.
        let noted = || {
            let file = self.0.parent()?.parent()?.join(".crates.toml");
            fs::read_to_string(file).ok().filter(|text| text.contains("\"tsnode "))
        };
        if knows("dpkg", "-S") {
            return Some(Installer::Debian);
        }
        if knows("rpm", "-qf") {
            return Some(Installer::Rpm);
        }
        noted().map(|_| Installer::Cargo)
    }

    /// A folder for what is to take its place: on the same disk, and gone when it is dropped.
    ///
    /// # Errors
    /// When this user may not write there.
    pub fn workshop(&self) -> Result<Workshop, UpdateError> {
        let folder = self.0.with_file_name(format!(".tsnode.update.{}", std::process::id()));
        match fs::create_dir(&folder) {
            Ok(()) => Ok(Workshop(folder)),
            Err(error) => Err(UpdateError::Disk { path: folder.parent().unwrap_or(&folder).to_owned(), error }),
        }
    }

    /// Puts the program of a verified archive in this one's place, which is kept beside it. Whenever this process or the machine
    /// ends, one of the two is there, whole.
    ///
    /// # Errors
    /// When there is no such program, it does not run here, or the disk refuses.
    pub fn replace(&self, archive: &Archive, packed: &Path, workshop: &Workshop) -> Result<(), UpdateError> {
        let wrong = |why: String| UpdateError::Unusable { archive: format!("{}.tar.gz", archive.stem), why };
        let inside = format!("{}/tsnode", archive.stem);
        let unpacked = Command::new("tar").arg("-xzf").arg(packed).arg("-C").arg(&workshop.0).arg(&inside).output();
        match unpacked {
            Err(error) => return Err(wrong(format!("tar does not unpack it: {}", crate::plain::io_error(&error)))),
            Ok(done) if !done.status.success() => return Err(wrong(format!("there is no {inside} in it"))),
            Ok(_) => {}
        }
        let program = workshop.0.join(&inside);
        if !fs::symlink_metadata(&program).is_ok_and(|about| about.is_file()) {
            return Err(wrong(format!("{inside} is no file")));
        }
        platform::let_all_run(&program).map_err(UpdateError::disk(&program))?;
        let said = Command::new(&program).arg("version").stdin(Stdio::null()).output();
        let said = match said {
            Ok(done) if done.status.success() => String::from_utf8_lossy(&done.stdout).trim().to_owned(),
            _ => return Err(wrong("the program in it does not run on this machine".into())),
        };
        if said != format!("tsnode {}", archive.version) {
            let said: String = said.chars().filter(|c| !c.is_control()).take(40).collect();
            return Err(wrong(format!("the program in it says that it is {said:?}")));
        }
        self.keep().and_then(|()| fs::File::open(&program)?.sync_all()).map_err(UpdateError::disk(&self.0))?;
        let placed = fs::rename(&program, &self.0).and_then(|()| sync_folder(&self.0));
        placed.map_err(UpdateError::disk(&self.0))
    }

    /// Gives the program a second name, under which it stays.
    fn keep(&self) -> io::Result<()> {
        let (draft, previous) = (beside(&self.0, "previous.new"), self.previous());
        let _ = fs::remove_file(&draft);
        // No disk has to know of two names for a file.
        fs::hard_link(&self.0, &draft).or_else(|_| fs::copy(&self.0, &draft).map(drop))?;
        fs::rename(draft, previous)
    }

    /// Changes the program with the one before.
    ///
    /// # Errors
    /// When there is none, or the disk refuses.
    pub fn go_back(&self) -> Result<(), UpdateError> {
        let (previous, draft) = (self.previous(), beside(&self.0, "previous.new"));
        if !previous.is_file() {
            return Err(UpdateError::NoPrevious(self.0.clone()));
        }
        let _ = fs::remove_file(&draft);
        let changed = fs::hard_link(&self.0, &draft)
            .or_else(|_| fs::copy(&self.0, &draft).map(drop))
            .and_then(|()| fs::rename(&previous, &self.0))
            .and_then(|()| fs::rename(&draft, &previous))
            .and_then(|()| sync_folder(&self.0));
        changed.map_err(UpdateError::disk(&self.0))
    }
}

/// See [`ProgramPlace::workshop`].
pub struct Workshop(PathBuf);

impl Workshop {
    /// A file in it.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Workshop {
    fn drop(&mut self) {
        // What is left is of no use, and does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}
