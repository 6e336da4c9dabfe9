//! What a data folder holds: keys, invites, notes.

#![no_main]

#[path = "../../tests/fuzzing/kept.rs"]
#[allow(dead_code)] // The target uses a part.
mod kept;

#[path = "../../src"]
mod src {
    #[allow(dead_code)]
    pub mod invites;
    #[allow(dead_code)]
    pub mod keys;
    #[allow(dead_code)]
    pub mod ledger;
    #[allow(dead_code)]
    pub mod store;
}

use src::{invites, keys, ledger, store};

/// As the files have it from their crate.
fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    bytes
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    kept::kept(bytes);
});
