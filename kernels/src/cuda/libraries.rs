//! Where NVIDIA's libraries are: on the system's paths, in a toolkit, or in Python's packages.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A library, and where it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// Its name.
    pub name: &'static str,
    /// What it is for.
    pub purpose: &'static str,
    /// Names of its file that are looked for.
    pub files: &'static [&'static str],
    /// Where it is; none if it is nowhere.
    pub found: Option<PathBuf>,
}

/// What a GPU is used by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Libraries {
    /// Without it there is no GPU.
    pub driver: Library,
    /// Products of many rows; own kernels do without.
    pub blas: Library,
    /// Kernels compiled for this very GPU; PTX does without.
    pub nvrtc: Library,
    /// Power, clocks and link of a GPU.
    pub nvml: Library,
    /// What several GPUs exchange; copies from GPU to GPU do without.
    pub nccl: Library,
}

impl Libraries {
    /// Looks for them, once.
    #[must_use]
    pub fn find() -> &'static Self {
        static FOUND: OnceLock<Libraries> = OnceLock::new();
        FOUND.get_or_init(|| {
            let driver = library("libcuda.so", "runs a GPU", &["libcuda.so.1", "libcuda.so"]);
            let version = driver.found.as_deref().and_then(version);
            Self {
                driver,
                blas: library("libcublasLt.so", "faster prompts", blas_files(version)),
                nvrtc: library("libnvrtc.so", "kernels compiled for this very GPU", nvrtc_files(version)),
                nvml: library("libnvidia-ml.so", "power, clocks and link", &["libnvidia-ml.so.1", "libnvidia-ml.so"]),
                nccl: library("libnccl.so", "several GPUs together", &["libnccl.so.2", "libnccl.so"]),
            }
        })
    }
}

/// Of what release of CUDA a driver is, as it numbers them: 12020 is 12.2.
fn version(driver: &Path) -> Option<i32> {
    type Version = unsafe extern "C" fn(*mut i32) -> i32;
    let mut out = 0;
    // SAFETY: NVIDIA's library, which was opened once before; the function is of the type in its header `cuda.h`, and may be
    // called before the driver was started.
    #[expect(unsafe_code, reason = "the lines above say why it is sound")]
    let answered = unsafe {
        let library = libloading::Library::new(driver).ok()?;
        let ask = library.get::<Version>(b"cuDriverGetVersion").ok()?;
        ask(&mut out) == 0
    };
    answered.then_some(out)
}

fn blas_files(driver: Option<i32>) -> &'static [&'static str] {
    no_newer(driver, &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"])
}

fn nvrtc_files(driver: Option<i32>) -> &'static [&'static str] {
    no_newer(driver, &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"])
}

/// All but the first, which is of CUDA 13, where the driver is older: such a library opens beside it, and then starts no GPU, or
/// compiles what the driver does not take.
fn no_newer(driver: Option<i32>, files: &'static [&'static str]) -> &'static [&'static str] {
    if driver.is_some_and(|version| version < 13000) { &files[1..] } else { files }
}

fn library(name: &'static str, purpose: &'static str, files: &'static [&'static str]) -> Library {
    let system = files.iter().map(PathBuf::from);
    let elsewhere = folders().into_iter().flat_map(|folder| files.iter().map(move |file| folder.join(file)));
    let found = system.chain(elsewhere.filter(|path| path.exists())).find(|path| opens(path));
    Library { name, purpose, files, found }
}

/// Opens a library for good: whoever asks for it by name later gets this one.
fn opens(path: &Path) -> bool {
    #[cfg(unix)]
    {
        use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LAZY};
        // SAFETY: NVIDIA's libraries do nothing when they are loaded but set themselves up.
        #[expect(unsafe_code, reason = "the lines above say why it is sound")]
        let opened = unsafe { Library::open(Some(path), RTLD_LAZY | RTLD_GLOBAL) };
        opened.map(std::mem::forget).is_ok()
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        false
    }
}

/// Opens what lies beside a library and begins so: what that library asks for by name alone once it works.
pub(super) fn open_beside(path: &Path, start: &str) {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else { return };
    for file in inside(folder, |name| name.starts_with(start)) {
        opens(&file);
    }
}

/// Folders of toolkits, and of packages that Python has.
fn folders() -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let toolkits = [variable("CUDA_HOME"), variable("CUDA_PATH"), Some(PathBuf::from("/usr/local/cuda"))];
    let toolkits = toolkits.into_iter().flatten().flat_map(|home| [home.join("lib64"), home.join("lib")]);
    let prefixes = [
        variable("VIRTUAL_ENV"),
        variable("CONDA_PREFIX"),
        python(),
        variable("HOME").map(|home| home.join(".local")),
        Some(PathBuf::from("/usr/local")),
        Some(PathBuf::from("/usr")),
    ];
    let packages = prefixes.into_iter().flatten().flat_map(|prefix| python_packages(&prefix));
    toolkits.chain(packages.flat_map(|folder| wheels(&folder.join("nvidia")))).collect()
}

/// Where the Python is that would be run.
fn python() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folder = std::env::split_paths(&path).find(|folder| folder.join("python3").exists())?;
    folder.parent().map(Path::to_owned)
}

/// `lib/python3.*/site-packages` and Debian's `dist-packages` under a prefix.
fn python_packages(prefix: &Path) -> Vec<PathBuf> {
    let pythons = inside(&prefix.join("lib"), |name| name.starts_with("python3"));
    pythons.into_iter().flat_map(|python| [python.join("site-packages"), python.join("dist-packages")]).collect()
}

/// `lib` of every package of NVIDIA's.
fn wheels(folder: &Path) -> Vec<PathBuf> {
    inside(folder, |_| true).into_iter().map(|package| package.join("lib")).collect()
}

fn inside(folder: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let named = |entry: &std::fs::DirEntry| entry.file_name().to_str().is_some_and(&wanted);
    let mut found: Vec<PathBuf> = entries.flatten().filter(named).map(|entry| entry.path()).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::blas_files;

    #[test]
    fn a_driver_of_cuda_12_gets_no_library_of_cuda_13() {
        assert_eq!(blas_files(Some(12020)), ["libcublasLt.so.12", "libcublasLt.so"]);
        assert_eq!(blas_files(Some(12090)), ["libcublasLt.so.12", "libcublasLt.so"]);
        assert_eq!(blas_files(Some(13000))[0], "libcublasLt.so.13");
        assert_eq!(blas_files(None)[0], "libcublasLt.so.13");
    }
}
