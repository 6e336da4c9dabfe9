//! The PTX in the tree is of the sources beside it, and a driver has all that it names.

use super::here;
use crate::cuda::jit::sources::{FILES, HEADERS, OPTIONS};

/// FNV-1a of 64 bits: what `scripts/cuda_kernels.py` writes down of each source.
fn fnv(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[test]
fn ptx_was_made_of_these_sources() {
    let folder = here().join("src/cuda");
    let noted = std::fs::read_to_string(folder.join("ptx/sources.txt")).unwrap();
    let mut names: Vec<String> = std::fs::read_dir(folder.join("device"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let line =
        |name: &String| format!("{name} {:016x}\n", fnv(&std::fs::read(folder.join("device").join(name)).unwrap()));
    let found: String = names.iter().map(line).collect();
    assert_eq!(found, noted, "a kernel was changed: run scripts/cuda_kernels.sh");
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
    let noted: Vec<&str> = noted.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(held, noted);
    let script = std::fs::read_to_string(here().join("../scripts/cuda_kernels.py")).unwrap();
    let options = OPTIONS.map(|option| format!("\"{option}\"")).join(", ");
    assert!(script.contains(&format!("OPTIONS = [{options}]")), "{options}");
}
