//! What was compiled for a GPU and how fast it was, kept on disk: one file for each kind of GPU, which the next choice
//! replaces. It holds for the same sources, GPU, driver and compiler only, and carries a checksum: a file that is cut
//! short, damaged or somebody else's is as good as none.

use super::{
    GpuIdentity, LaunchOverlap,
    sources::{FILES, HEADERS, OPTIONS, WAITING},
    trial::{self, TimedFile},
};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// How such a file begins; the number is that of what follows it.
const MAGIC: &[u8] = b"tsnode kernels 2\n";
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cuda) struct JitCacheEntry {
    /// How fast files are.
    pub files: Vec<TimedFile>,
    /// Whether launches overlap.
    pub overlap: LaunchOverlap,
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
    files
        .chain(headers)
        .chain(OPTIONS)
        .chain(trial::FILES)
        .chain(WAITING)
        .chain(gpu)
        .for_each(|text| add(text.as_bytes()));
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
    /// Two times of launches in a row, and why they do not overlap, if they do not, with its length before it. Then of each file
    /// that was timed, or has machine code: its name's length and name, two times, its machine code's length and that.
    fn bytes(&self) -> Vec<u8> {
        let (times, why) = match &self.overlap {
            LaunchOverlap::Used { plain_ns, overlapping_ns } => ([*plain_ns, *overlapping_ns], ""),
            LaunchOverlap::Not(why) => ([0, 0], why.as_str()),
        };
        let mut out = times.map(u64::to_le_bytes).concat();
        out.extend_from_slice(&(why.len() as u64).to_le_bytes());
        out.extend_from_slice(why.as_bytes());
        let timed = |name: &str| self.files.iter().any(|file| file.name == name);
        let more = self.cubins.iter().filter(|(name, _)| !timed(name));
        let more = more.map(|(name, _)| TimedFile { name, ahead_ns: 0, compiled_ns: 0 });
        for TimedFile { name, ahead_ns, compiled_ns } in self.files.iter().cloned().chain(more) {
            let cubin = self.cubins.iter().find(|(file, _)| *file == name).map_or(&[][..], |(_, cubin)| cubin);
            out.push(name.len() as u8);
            out.extend_from_slice(name.as_bytes());
            let numbers = [ahead_ns, compiled_ns, cubin.len() as u64].map(u64::to_le_bytes);
            out.extend_from_slice(numbers.as_flattened());
            out.extend_from_slice(cubin);
        }
        out
    }

    fn parse(mut bytes: &[u8]) -> Option<Self> {
        let [plain_ns, overlapping_ns, len] = [number(&mut bytes)?, number(&mut bytes)?, number(&mut bytes)?];
        let why = std::str::from_utf8(take(&mut bytes, usize::try_from(len).ok()?)?).ok()?;
        let overlap = match why {
            "" => LaunchOverlap::Used { plain_ns, overlapping_ns },
            why => LaunchOverlap::Not(why.into()),
        };
        let mut entry = Self { files: Vec::new(), overlap, cubins: Vec::new() };
        while !bytes.is_empty() {
            let len = take(&mut bytes, 1)?[0];
            let name = take(&mut bytes, usize::from(len))?;
            let name = FILES.iter().map(|file| file.name).find(|file| file.as_bytes() == name)?;
            let [ahead_ns, compiled_ns, len] = [number(&mut bytes)?, number(&mut bytes)?, number(&mut bytes)?];
            let cubin = take(&mut bytes, usize::try_from(len).ok()?)?;
            let file = TimedFile { name, ahead_ns, compiled_ns };
            let is_used = file.is_compiled() || (entry.overlap.is_used() && WAITING.contains(&name));
            if is_used == cubin.is_empty() {
                return None;
            }
            if is_used {
                entry.cubins.push((name, cubin.to_vec()));
            }
            if trial::FILES.contains(&name) {
                entry.files.push(file);
            }
        }
        let all = entry.files.iter().map(|file| file.name).eq(trial::FILES);
        let waiting = WAITING.iter().all(|file| entry.cubins.iter().any(|(name, _)| name == file));
        (all && (waiting || !entry.overlap.is_used())).then_some(entry)
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
