//! What the operating system is asked for beyond the standard library: files of one owner, limits, signals, processes, processors.
//!
//! The one room of `node` that knows which system this is (`scripts/platform_borders.py`): the rest calls the functions below, and
//! each half has all of them. What a system has nothing like is said there: it does nothing, or is an error that says so.

#[cfg(not(unix))]
mod portable;
#[cfg(unix)]
mod unix;

#[cfg(not(unix))]
use portable as system;
#[cfg(unix)]
use unix as system;

pub(crate) use system::{
    HOME, Signals, allowed_processors, confine, edition, for_owner, free_bytes, give_way, host_name, is_same_file,
    is_stopped, let_all_read, let_all_run, make_folder_for_owner, may_write, mode, most_files, next_data, of_its_own,
    own_program, owner, processor_time, punch, read_exact_at, reuse_address, set_processors, stamp, symlink,
    sync_folder, thread_time, write_all_at,
};

#[cfg(test)]
pub(crate) use system::set_mode;

/// What tells a file that was written anew from the one before: dates alone may be the same for some milliseconds, and each is a
/// new file.
pub(crate) type Edition = (u64, std::time::SystemTime);

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File, OpenOptions};
    use std::time::Duration;

    #[test]
    fn files_and_folders_are_for_their_owner_where_the_system_has_owners() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("a/b");
        make_folder_for_owner(&inner).unwrap();
        let path = inner.join("file");
        for_owner(OpenOptions::new().create(true).truncate(true).write(true)).open(&path).unwrap();
        let of = |path: &std::path::Path| mode(&fs::metadata(path).unwrap());
        if of(&path).is_some() {
            assert_eq!((of(&inner), of(&path)), (Some(0o700), Some(0o600)));
            let_all_read(&path).unwrap();
            assert_eq!(of(&path), Some(0o644));
            let_all_run(&path).unwrap();
            assert_eq!(of(&path), Some(0o755));
        }
        assert!(sync_folder(&inner).is_ok() && may_write(&inner).is_ok() && may_write(&inner.join("none")).is_err());
        assert_eq!(owner(&fs::metadata(&path).unwrap()), owner(&fs::metadata(&inner).unwrap()));
    }

    #[test]
    fn a_file_is_known_by_its_edition_and_read_where_it_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other, link] = ["one", "other", "link"].map(|name| folder.path().join(name));
        let file = File::options().create(true).truncate(true).read(true).write(true).open(&one).unwrap();
        write_all_at(&file, b"0123456789", 0).unwrap();
        write_all_at(&file, b"ab", 4).unwrap();
        let mut part = [0; 4];
        read_exact_at(&file, &mut part, 3).unwrap();
        assert_eq!(&part, b"3ab6");
        assert!(read_exact_at(&file, &mut part, 8).is_err());
        punch(&file, 0, 4).unwrap();
        read_exact_at(&file, &mut part, 4).unwrap();
        assert_eq!((&part, fs::metadata(&one).unwrap().len()), (b"ab67", 10), "what is beside it stays");
        write_all_at(&file, b"0123", 0).unwrap();
        fs::write(&other, "another").unwrap();
        let about = |path: &std::path::Path| fs::metadata(path).unwrap();
        assert_eq!(edition(&about(&one)), edition(&about(&one)));
        assert_ne!(edition(&about(&one)), edition(&about(&other)));
        assert_ne!(stamp(&about(&one)), stamp(&about(&other)));
        assert!(!is_same_file(&about(&one), &about(&other)));
        symlink("one", &link).unwrap();
        assert_eq!(fs::read(&link).unwrap(), b"0123ab6789");
    }

    #[test]
    fn a_thread_has_the_time_it_computes() {
        let (before, mut sum) = (thread_time(), 0_u64);
        while thread_time() < before + Duration::from_millis(20) {
            sum = sum.wrapping_mul(31).wrapping_add(1);
        }
        assert!(std::hint::black_box(sum) > 0 && processor_time().is_none_or(|seconds| seconds >= 0.0));
        assert!(own_program().unwrap().exists() && !is_stopped(std::process::id()));
    }
}
