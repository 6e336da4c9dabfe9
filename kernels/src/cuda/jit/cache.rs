//! What was compiled for a GPU and how fast it was, kept on disk: one file for each kind of GPU, which the next choice
//! replaces. It holds for the same sources, GPU, driver and compiler only, and carries a checksum: a file that is cut
//! short, damaged or somebody else's is as good as none.

use super::{
    GpuIdentity,
    sources::{FILES, HEADERS, OPTIONS},
    trial::{self, TimedFile},
};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// How such a file begins; the number is that of what follows it.
const MAGIC: &[u8] = b"tsnode kernels 1\n";
/// Largest file that is read: all kernels together are less than two megabytes.
pub(in crate::cuda) const LARGEST: u64 = 32 << 20;
/// Bytes of a hash.
const HASH: usize = blake3::OUT_LEN;

/// A folder in which kernels are kept that were compiled for a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelCache {
    folder: PathBuf,
}

/// What a choice holds for.
pub(in crate::cuda) type JitCacheKey = [u8; HASH];

/// What is kept of a choice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::cuda) struct JitCacheEntry {
    /// How fast files are.
    pub files: Vec<TimedFile>,
    /// Machine code of those that are used.
    pub cubins: Vec<(&'static str, Vec<u8>)>,
}

/// A hash of all that a choice depends on.
pub(in crate::cuda) fn key(identity: &GpuIdentity, nvrtc: (i32, i32)) -> JitCacheKey {
    let mut hasher = blake3::Hasher::new();
    let mut add = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    let files = FILES.iter().flat_map(|file| [file.name, file.source, file.ptx]);
    let headers = HEADERS.iter().flat_map(|(name, text)| [*name, *text]);
    let GpuIdentity { name, processors, sm, cuda, driver } = identity;
    let gpu = [name.as_str(), driver.as_str()];
    files.chain(headers).chain(OPTIONS).chain(trial::FILES).chain(gpu).for_each(|text| add(text.as_bytes()));
    let versions = [cuda.0, cuda.1, nvrtc.0, nvrtc.1].map(i32::to_le_bytes);
    add(&[(*processors as u64).to_le_bytes().as_slice(), &sm.to_le_bytes(), versions.as_flattened()].concat());
    *hasher.finalize().as_bytes()
}

impl KernelCache {
    /// In a folder, which is made when something is first kept.
    #[must_use]
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The file of a kind of GPU.
    fn place(&self, identity: &GpuIdentity) -> PathBuf {
        let kind = format!("{} of {} processors", identity.name, identity.processors);
        let kind = blake3::hash(kind.as_bytes()).to_hex();
        self.folder.join(format!("sm_{}-{}.kernels", identity.sm, &kind[..16]))
    }

    /// What was kept for a key; none where nothing was, or where it is not whole.
    pub(in crate::cuda) fn read(&self, identity: &GpuIdentity, key: &JitCacheKey) -> Option<JitCacheEntry> {
        let bytes = bounded(&self.place(identity)).ok()?;
        let (kept, sum) = bytes.split_last_chunk::<HASH>()?;
        // It finds damage, not forgery: the folder is the peer's own, as its programs are.
        if blake3::hash(kept).as_bytes() != sum {
            return None;
        }
        let entry = kept.strip_prefix(MAGIC)?.strip_prefix(key.as_slice())?;
        JitCacheEntry::parse(entry)
    }

    /// Keeps an entry in place of what was there: whole, or not at all.
    pub(in crate::cuda) fn write(
        &self,
        identity: &GpuIdentity,
        key: &JitCacheKey,
        entry: &JitCacheEntry,
    ) -> io::Result<()> {
        // Several GPUs of a kind, in this process or another, may be opened at once.
        static DRAFTS: AtomicU64 = AtomicU64::new(0);
        fs::create_dir_all(&self.folder)?;
        let number = DRAFTS.fetch_add(1, Ordering::Relaxed);
        let draft = self.folder.join(format!(".draft-{}-{number}", std::process::id()));
        let mut bytes = [MAGIC, key.as_slice(), &entry.bytes()].concat();
        bytes.extend_from_slice(blake3::hash(&bytes).as_bytes());
        let written = fs::write(&draft, bytes).and_then(|()| fs::rename(&draft, self.place(identity)));
        if written.is_err() {
            // What cannot be written can often not be removed either; the next draft has another name.
            let _ = fs::remove_file(&draft);
        }
        written
    }
}

/// A plain file's bytes, if it is not too large. Nothing else is opened: a pipe would be waited for.
fn bounded(path: &Path) -> io::Result<Vec<u8>> {
    let about = fs::metadata(path)?;
    if !about.is_file() || about.len() > LARGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = Vec::new();
    // It may grow while it is read.
    fs::File::open(path)?.take(LARGEST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl JitCacheEntry {
    /// Of each file: its name's length and name, two times, its machine code's length and that.
    fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for TimedFile { name, ahead_ns, compiled_ns } in &self.files {
            let cubin = self.cubins.iter().find(|(file, _)| file == name).map_or(&[][..], |(_, cubin)| cubin);
            out.push(name.len() as u8);
            out.extend_from_slice(name.as_bytes());
            let numbers = [*ahead_ns, *compiled_ns, cubin.len() as u64].map(u64::to_le_bytes);
            out.extend_from_slice(numbers.as_flattened());
            out.extend_from_slice(cubin);
        }
        out
    }

    fn parse(mut bytes: &[u8]) -> Option<Self> {
        let mut entry = Self::default();
        while !bytes.is_empty() {
            let len = take(&mut bytes, 1)?[0];
            let name = take(&mut bytes, usize::from(len))?;
            let name = trial::FILES.into_iter().find(|file| file.as_bytes() == name)?;
            let [ahead_ns, compiled_ns, len] = [number(&mut bytes)?, number(&mut bytes)?, number(&mut bytes)?];
            let cubin = take(&mut bytes, usize::try_from(len).ok()?)?;
            let file = TimedFile { name, ahead_ns, compiled_ns };
            if file.is_compiled() == cubin.is_empty() {
                return None;
            }
            if file.is_compiled() {
                entry.cubins.push((name, cubin.to_vec()));
            }
            entry.files.push(file);
        }
        let all = entry.files.iter().map(|file| file.name).eq(trial::FILES);
        all.then_some(entry)
    }
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (first, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(first)
}

fn number(bytes: &mut &[u8]) -> Option<u64> {
    take(bytes, 8)?.try_into().ok().map(u64::from_le_bytes)
}
