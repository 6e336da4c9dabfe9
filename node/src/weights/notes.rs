//! What a folder's weights are to be, kept beside them: with it they are fetched on, and served, where nobody is there to ask.

use crate::store::disk;
use std::fs;
use std::io;
use std::path::Path;
use tsnode_protocol::{
    codec, limits, stream,
    weights::{self, ChunkHash, WeightsManifest},
};

/// Its name.
const FILE: &str = "outline";
/// Bytes before the manifest: how many it has.
const LENGTH: usize = 4;

/// Writes it.
pub(super) fn write(folder: &Path, manifest: &WeightsManifest, hashes: &[Vec<ChunkHash>]) -> io::Result<()> {
    let frame = codec::encode(manifest);
    let length = u32::try_from(frame.len()).map_err(io::Error::other)?.to_le_bytes();
    let lists = hashes.iter().map(|list| list.as_flattened());
    let bytes: Vec<&[u8]> = [&length[..], &frame].into_iter().chain(lists).collect();
    disk::write_whole(&folder.join(FILE), &bytes.concat())
}

/// Reads it; nothing where any of it is not what it was.
pub(super) fn read(folder: &Path) -> Option<(WeightsManifest, Vec<Vec<ChunkHash>>)> {
    let path = folder.join(FILE);
    let most = (limits::WEIGHTS_FILES + 2) * limits::FRAME_BYTES;
    fs::metadata(&path).ok().filter(|about| about.is_file() && about.len() <= most as u64)?;
    let bytes = fs::read(path).ok()?;
    let (length, rest) = bytes.split_first_chunk::<LENGTH>()?;
    let (frame, mut lists) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    let manifest = stream::decode_frame::<WeightsManifest>(frame).ok().filter(|manifest| manifest.check().is_ok())?;
    let mut hashes = Vec::new();
    for file in &manifest.files {
        let list = weights::chunks(file.bytes) as usize * weights::HASH_BYTES;
        let (own, others) = lists.split_at_checked(list)?;
        hashes.push(weights::hashes_of(file, own)?);
        lists = others;
    }
    lists.is_empty().then_some((manifest, hashes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_protocol::weights::{CHUNK_BYTES, WeightsFile, WeightsForm};

    #[test]
    fn any_byte_that_is_another_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let hashes = vec![vec![[1; 32], [2; 32]], vec![[3; 32]]];
        let file = |bytes, list: &[ChunkHash]| WeightsFile { bytes, root: weights::root(list) };
        let files = vec![file(CHUNK_BYTES + 1, &hashes[0]), file(5, &hashes[1])];
        let manifest = WeightsManifest { form: WeightsForm::Gguf, files };
        assert_eq!(read(folder.path()), None);
        write(folder.path(), &manifest, &hashes).unwrap();
        assert_eq!(read(folder.path()), Some((manifest.clone(), hashes)));
        let path = folder.path().join(FILE);
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut other = whole.clone();
            other[at] ^= 1;
            fs::write(&path, other).unwrap();
            // Another manifest may be one as well: it makes another model.
            assert!(read(folder.path()).is_none_or(|(read, _)| read != manifest), "byte {at}");
            fs::write(&path, &whole[..at]).unwrap();
            assert_eq!(read(folder.path()), None, "cut at {at}");
        }
    }
}
