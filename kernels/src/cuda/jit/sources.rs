//! The kernels' sources, and the PTX that they were compiled to (`scripts/cuda_kernels.sh`).

/// A file of kernels: a module of its own on a GPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelFile {
    /// By which launches call it.
    pub name: &'static str,
    /// CUDA C++.
    pub source: &'static str,
    /// What the oldest driver takes.
    pub ptx: &'static str,
}

macro_rules! file {
    ($name:literal) => {
        KernelFile {
            name: $name,
            source: include_str!(concat!("../device/", $name, ".cu")),
            ptx: include_str!(concat!("../ptx/", $name, ".ptx")),
        }
    };
}

/// All of them.
pub(crate) const FILES: [KernelFile; 11] = [
    file!("attend"),
    file!("choose"),
    file!("chunk"),
    file!("delta"),
    file!("experts"),
    file!("few"),
    file!("many"),
    file!("mmq"),
    file!("rows"),
    file!("tiles"),
    file!("wide"),
];

/// What they include, by name. They include nothing else, so that a compiler needs no headers of CUDA's.
pub(crate) const HEADERS: [(&str, &str); 15] = [
    ("channels.cuh", include_str!("../device/channels.cuh")),
    ("common.cuh", include_str!("../device/common.cuh")),
    ("eights.cuh", include_str!("../device/eights.cuh")),
    ("few.cuh", include_str!("../device/few.cuh")),
    ("forms.cuh", include_str!("../device/forms.cuh")),
    ("four_bits.cuh", include_str!("../device/four_bits.cuh")),
    ("four_keys.cuh", include_str!("../device/four_keys.cuh")),
    ("four_values.cuh", include_str!("../device/four_values.cuh")),
    ("many.cuh", include_str!("../device/many.cuh")),
    ("mmq.cuh", include_str!("../device/mmq.cuh")),
    ("mmq_row.cuh", include_str!("../device/mmq_row.cuh")),
    ("packed.cuh", include_str!("../device/packed.cuh")),
    ("pages.cuh", include_str!("../device/pages.cuh")),
    ("rope.cuh", include_str!("../device/rope.cuh")),
    ("rounded.cuh", include_str!("../device/rounded.cuh")),
];

/// Files whose kernels all wait for those before them, as code for [`WAITS_FROM`] (`common.cuh`: `after_others`): only they may
/// be launched before what they need is there.
///
/// Attention waits too and is not named: its blocks are few and small or many and long, and many that begin early share
/// processors unevenly (on an H200, two for each processor took 1.5 times as long).
pub(crate) const WAITING: [&str; 3] = ["few", "mmq", "rows"];
/// Architecture from which they do.
pub(crate) const WAITS_FROM: u32 = 90;

/// How they are compiled, whatever for; `scripts/cuda_kernels.py` says the same.
pub(crate) const OPTIONS: [&str; 3] = ["--std=c++17", "--fmad=false", "--device-as-default-execution-space"];

/// A file by its name.
pub(crate) fn file(name: &str) -> Option<&'static KernelFile> {
    const ALL: &[KernelFile] = &FILES;
    ALL.iter().find(|file| file.name == name)
}
