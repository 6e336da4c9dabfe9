//! The PTX in the tree is of the sources beside it, and a driver has all that it names.

use super::here;
use crate::cuda::jit::sources::{FILES, HEADERS, OPTIONS, WAITING};

/// FNV-1a of 64 bits: what `scripts/cuda_kernels.py` writes down of each source, and of what it made of them.
fn fnv(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[test]
fn ptx_was_made_of_these_sources() {
    let folder = here().join("src/cuda");
    let noted = std::fs::read_to_string(folder.join("ptx/sources.txt")).unwrap();
    let lines = |part: &str| -> String {
        let entries = std::fs::read_dir(folder.join(part)).unwrap().map(|entry| entry.unwrap().path());
        let mut paths: Vec<_> = entries.filter(|path| path.extension().is_some_and(|end| end != "txt")).collect();
        paths.sort();
        let name = |path: &std::path::Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        paths.iter().map(|path| format!("{} {:016x}\n", name(path), fnv(&std::fs::read(path).unwrap()))).collect()
    };
    let found = lines("device") + &lines("ptx");
    assert_eq!(found, noted, "a kernel, or what was made of one, was changed: run scripts/cuda_kernels.sh");
}

/// What is launched before those before it are done has to wait for them (`driver_api/overlap.rs`); the emulator sees that threads do.
#[test]
fn all_kernels_of_files_that_wait_do() {
    let count = |source: &str, what: &str| source.matches(what).count();
    for file in FILES.iter().filter(|file| WAITING.contains(&file.name)) {
        let waits = count(file.source, "after_others();") + count(file.source, "wait_for_others();");
        assert_eq!(waits, count(file.source, "KERNEL("), "{}", file.name);
        let begins = count(file.source, "after_others();") + count(file.source, "let_next_begin();");
        assert_eq!(begins, waits, "{}", file.name);
    }
    assert!(WAITING.iter().all(|name| FILES.iter().any(|file| file.name == *name)));
}

#[test]
fn ptx_has_all_functions_it_calls() {
    let folder = here().join("src/cuda/ptx");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let missing = text.lines().find(|line| line.contains(".extern .func"));
        assert_eq!(missing, None, "{}: no driver loads it", path.display());
    }
}

#[test]
fn what_is_compiled_at_run_time_is_all_that_was_compiled_ahead() {
    let mut held: Vec<String> = FILES.iter().map(|file| format!("{}.cu", file.name)).collect();
    held.extend(HEADERS.map(|(name, _)| name.to_owned()));
    held.sort();
    let noted = std::fs::read_to_string(here().join("src/cuda/ptx/sources.txt")).unwrap();
    let names = noted.lines().filter_map(|line| line.split(' ').next());
    let noted: Vec<&str> = names.filter(|name| !name.ends_with(".ptx")).collect();
    assert_eq!(held, noted);
    let script = std::fs::read_to_string(here().join("../scripts/cuda_kernels.py")).unwrap();
    let options = OPTIONS.map(|option| format!("\"{option}\"")).join(", ");
    assert!(script.contains(&format!("OPTIONS = [{options}]")), "{options}");
}
