//! A model's weights as peers pass them on: files cut into chunks, each named by its part of the file's BLAKE3 tree.
//!
//! A file's root is the hash that `b3sum` prints of it. Its chunks are the subtrees of one mebibyte under that root: whoever has
//! their hashes can show that they belong to the root, and a chunk to its hash, without any other byte of the file.

use crate::{
    ModelCard, ModelFile, ModelId,
    codec::{self, CodecError},
    limits,
};
use bincode::{Decode, Encode};
use blake3::hazmat::{HasherExt as _, Mode, merge_subtrees_non_root, merge_subtrees_root};
use std::ops::Range;

/// Bytes of a chunk, but for a file's last: what a link of 100 Mbit/s carries in 84 ms, and a list of hashes 32,768 times smaller than
/// its file. A power of two, as subtrees are.
pub const CHUNK_BYTES: u64 = 1 << 20;
/// Bytes of the largest file that is passed on: its list of hashes fills a frame.
pub const FILE_BYTES: u64 = (limits::FRAME_BYTES as u64 / HASH_BYTES as u64) * CHUNK_BYTES;
/// Bytes of a hash.
pub const HASH_BYTES: usize = 32;
/// The small files by which a model is another model: what it computes, how text becomes tokens, how messages become text, and how
/// tokens are chosen where a request leaves that open. Without the first two there is none.
const NAMING: [&str; 5] =
    ["config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"];
const NEEDED: usize = 2;

/// The hash of a chunk, or of a whole file: a file of one chunk is its chunk.
pub type ChunkHash = [u8; HASH_BYTES];

/// How a model's weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum WeightsForm {
    /// Safetensors, beside the small files.
    Safetensors,
    /// GGUF, with the small files inside.
    Gguf,
}

/// A file of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WeightsFile {
    /// Size of the file (bytes).
    pub bytes: u64,
    /// BLAKE3 of its content.
    pub root: ChunkHash,
}

/// What a model's weights are: with the small files that its card names, all that its id is made of.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WeightsManifest {
    /// How they are stored.
    pub form: WeightsForm,
    /// In their order.
    pub files: Vec<WeightsFile>,
}

/// What is asked of a peer that has a model, on a stream that was opened for its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum WeightsQuery {
    /// Answer: its [`WeightsManifest`], with the size and hash of every file.
    Manifest,
    /// Answer: the hashes of a file's chunks, one after the other in one frame.
    Hashes {
        /// Place in the manifest.
        file: u16,
    },
    /// Answer: one frame with the chunk, of no bytes where it cannot be given.
    Chunk {
        /// Place in the manifest.
        file: u16,
        /// Place in the file.
        chunk: u32,
    },
    /// Answer: one frame with a file's [`Bitfield`], by which chunks can be had there now.
    Bitfield {
        /// Place in the manifest.
        file: u16,
    },
}

/// Which chunks of a file are there: a bit for each, the first in the lowest bit of the first byte, as they are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bitfield(Vec<u8>);

impl Bitfield {
    /// None of a file of so many bytes.
    #[must_use]
    pub fn none(file: u64) -> Self {
        Self(vec![0; Self::bytes_of(file)])
    }

    /// All of it.
    #[must_use]
    pub fn all(file: u64) -> Self {
        let mut bits = Self(vec![0xff; Self::bytes_of(file)]);
        (chunks(file)..bits.0.len() as u64 * 8).for_each(|beyond| bits.set(beyond, false));
        bits
    }

    /// As it came, if it is one of such a file.
    #[must_use]
    pub fn read(file: u64, bytes: &[u8]) -> Option<Self> {
        let bits = Self(bytes.to_vec());
        let is_whole = bytes.len() == Self::bytes_of(file);
        (is_whole && (chunks(file)..bytes.len() as u64 * 8).all(|beyond| !bits.has(beyond))).then_some(bits)
    }

    /// Bytes of such a file's.
    #[must_use]
    pub fn bytes_of(file: u64) -> usize {
        chunks(file).div_ceil(8) as usize
    }

    /// As it is sent.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether a chunk is there.
    #[must_use]
    pub fn has(&self, chunk: u64) -> bool {
        self.0.get((chunk / 8) as usize).is_some_and(|byte| byte >> (chunk % 8) & 1 == 1)
    }

    /// From now on it is, or is not. One that the file does not have stays away.
    pub fn set(&mut self, chunk: u64, is_there: bool) {
        if let Some(byte) = self.0.get_mut((chunk / 8) as usize) {
            *byte = *byte & !(1 << (chunk % 8)) | u8::from(is_there) << (chunk % 8);
        }
    }
}

/// Chunks of which some bytes are in a place of their file.
#[must_use]
pub fn chunks_at(place: &Range<u64>) -> Range<u64> {
    place.start / CHUNK_BYTES..place.end.div_ceil(CHUNK_BYTES)
}

/// Chunks of a file of so many bytes: one at least.
#[must_use]
pub fn chunks(bytes: u64) -> u64 {
    bytes.div_ceil(CHUNK_BYTES).max(1)
}

/// Bytes of a chunk of such a file.
#[must_use]
pub fn chunk_bytes(file: u64, chunk: u64) -> u64 {
    file.saturating_sub(chunk.saturating_mul(CHUNK_BYTES)).min(CHUNK_BYTES)
}

/// The hash of a chunk by its place in a file of so many bytes.
#[must_use]
pub fn chunk_hash(file: u64, chunk: u64, content: &[u8]) -> ChunkHash {
    if chunks(file) == 1 {
        return *blake3::hash(content).as_bytes();
    }
    let mut hasher = blake3::Hasher::new();
    hasher.set_input_offset(chunk * CHUNK_BYTES).update(content);
    hasher.finalize_non_root()
}

/// The root that is made of all chunks' hashes, in order.
#[must_use]
pub fn root(hashes: &[ChunkHash]) -> ChunkHash {
    match hashes {
        [] => *blake3::hash(b"").as_bytes(),
        [one] => *one,
        more => {
            let (left, right) = more.split_at(left(more.len()));
            *merge_subtrees_root(&subtree(left), &subtree(right), Mode::Hash).as_bytes()
        }
    }
}

fn subtree(hashes: &[ChunkHash]) -> ChunkHash {
    match hashes {
        [one] => *one,
        more => {
            let (left, right) = more.split_at(left(more.len()));
            merge_subtrees_non_root(&subtree(left), &subtree(right), Mode::Hash)
        }
    }
}

/// How many of two or more chunks are in the left subtree: the largest power of two that leaves some for the right.
fn left(chunks: usize) -> usize {
    chunks.next_power_of_two() / 2
}

/// A list of hashes as it comes, if it is that of a file.
#[must_use]
pub fn hashes_of(file: &WeightsFile, list: &[u8]) -> Option<Vec<ChunkHash>> {
    if list.len() as u64 != chunks(file.bytes) * HASH_BYTES as u64 {
        return None;
    }
    let hashes: Vec<ChunkHash> = list.chunks_exact(HASH_BYTES).filter_map(|hash| hash.try_into().ok()).collect();
    (root(&hashes) == file.root).then_some(hashes)
}

impl WeightsManifest {
    /// All bytes of the files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.bytes))
    }

    /// The model that these weights are with these small files, of which others than those that answers depend on do not count. What
    /// else they need to be the same model, as which of two copies of a tensor counts, is `choice`.
    #[must_use]
    pub fn id(&self, small: &[ModelFile], choice: Option<&ChunkHash>) -> ModelId {
        let mut hasher = blake3::Hasher::new_derive_key("tsnode 2026 model with all that its answers depend on");
        for name in NAMING {
            // One that a model does not have is told from any that it has.
            match small.iter().find(|file| file.name == name) {
                Some(file) => hasher.update(&[1]).update(&file.hash),
                None => hasher.update(&[0]),
            };
        }
        // One way to write it.
        hasher.update(&codec::encode(self)[size_of_val(&codec::VERSION)..]);
        if let Some(choice) = choice {
            hasher.update(choice);
        }
        let mut id = [0; 16];
        id.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        ModelId(id)
    }

    /// Whether these are the weights of that model, and the files that its card names are its own.
    #[must_use]
    pub fn fits(&self, card: &ModelCard) -> bool {
        let has = |name: &&str| card.files.iter().any(|file| file.name == **name);
        NAMING[..NEEDED].iter().all(has) && self.id(&card.files, None) == card.id
    }

    /// Refuses what is out of bounds.
    ///
    /// # Errors
    /// Names the rule broken.
    pub fn check(&self) -> Result<(), CodecError> {
        if !(1..=limits::WEIGHTS_FILES).contains(&self.files.len()) {
            return Err(CodecError::Invalid("no files of weights, or too many"));
        }
        if !self.files.iter().all(|file| (1..=FILE_BYTES).contains(&file.bytes)) {
            return Err(CodecError::Invalid("a file of weights is empty or too large"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        blake3::Hasher::new().update(b"noise").finalize_xof().fill(&mut out);
        out
    }

    fn hashes(content: &[u8]) -> Vec<ChunkHash> {
        let bytes = content.len() as u64;
        let of = |chunk: u64| {
            let start = (chunk * CHUNK_BYTES) as usize;
            chunk_hash(bytes, chunk, &content[start..start + chunk_bytes(bytes, chunk) as usize])
        };
        (0..chunks(bytes)).map(of).collect()
    }

    #[test]
    fn a_root_is_the_hash_that_everybody_knows() {
        let most = CHUNK_BYTES as usize;
        for bytes in [0, 1, 1024, most - 1, most, most + 1, 2 * most, 3 * most - 7, 4 * most + 1, 5 * most, 7 * most] {
            let content = noise(bytes);
            assert_eq!(root(&hashes(&content)), *blake3::hash(&content).as_bytes(), "{bytes} bytes");
        }
    }

    #[test]
    fn a_list_that_was_changed_in_any_way_is_none() {
        let content = noise(3 * CHUNK_BYTES as usize + 5);
        let file = WeightsFile { bytes: content.len() as u64, root: *blake3::hash(&content).as_bytes() };
        let list = hashes(&content).concat();
        assert_eq!(hashes_of(&file, &list), Some(hashes(&content)));
        for at in 0..list.len() {
            let mut other = list.clone();
            other[at] ^= 1;
            assert_eq!(hashes_of(&file, &other), None, "byte {at}");
        }
        assert_eq!(hashes_of(&file, &list[..list.len() - 1]), None);
        assert_eq!(hashes_of(&file, &[&list[..], &[0; 32]].concat()), None);
        assert_eq!(hashes_of(&WeightsFile { bytes: CHUNK_BYTES * 2, ..file }, &list), None, "a length that lies");
    }

    #[test]
    fn a_bitfield_has_a_bit_for_each_chunk_and_no_other() {
        for count in [1, 7, 8, 9, 17] {
            let file = (count - 1) * CHUNK_BYTES + 1;
            let (all, mut none) = (Bitfield::all(file), Bitfield::none(file));
            assert!((0..count).all(|chunk| all.has(chunk) && !none.has(chunk)) && !all.has(count));
            assert_eq!(Bitfield::read(file, all.bytes()), Some(all.clone()));
            assert_eq!(Bitfield::read(file + 8 * CHUNK_BYTES, all.bytes()), None);
            (0..count).rev().for_each(|chunk| none.set(chunk, true));
            assert_eq!(none, all);
            none.set(count / 2, false);
            assert!((0..count).all(|chunk| none.has(chunk) == (chunk != count / 2)));
            let mut beyond = all.bytes().to_vec();
            beyond[(count / 8) as usize % all.bytes().len()] = 0xff;
            assert_eq!(Bitfield::read(file, &beyond).is_some(), count % 8 == 0, "{count}");
        }
        assert_eq!(chunks_at(&(0..1)), 0..1);
        assert_eq!(chunks_at(&(CHUNK_BYTES - 1..2 * CHUNK_BYTES)), 0..2);
        assert_eq!(chunks_at(&(CHUNK_BYTES..CHUNK_BYTES + 1)), 1..2);
    }

    #[test]
    fn a_model_is_another_by_any_part_of_it() {
        let file = WeightsFile { bytes: 5, root: [1; 32] };
        let manifest = WeightsManifest { form: WeightsForm::Gguf, files: vec![file; 2] };
        let small = |name: &str, hash: u8| ModelFile { name: name.into(), bytes: 1, hash: [hash; 32] };
        let own_files = [small("config.json", 2), small("tokenizer.json", 3)];
        let id = |manifest: &WeightsManifest| manifest.id(&own_files, None);
        let own = id(&manifest);
        for other in [
            WeightsManifest { form: WeightsForm::Safetensors, ..manifest.clone() },
            WeightsManifest { files: vec![file], ..manifest.clone() },
            WeightsManifest { files: vec![file, WeightsFile { bytes: 6, ..file }], ..manifest.clone() },
            WeightsManifest { files: vec![file, WeightsFile { root: [9; 32], ..file }], ..manifest.clone() },
        ] {
            assert_ne!(id(&other), own, "{other:?}");
        }
        assert_ne!(manifest.id(&[small("config.json", 3), small("tokenizer.json", 2)], None), own);
        assert_ne!(manifest.id(&own_files, Some(&[0; 32])), own);
        // Nobody gives another template, or other settings, for it.
        let with = |more: ModelFile| manifest.id(&[&own_files[..], &[more]].concat(), None);
        let more = ["tokenizer_config.json", "chat_template.jinja", "generation_config.json"];
        let ids = more.map(|name| [with(small(name, 4)), with(small(name, 5))]);
        let all: std::collections::BTreeSet<ModelId> = ids.into_iter().flatten().chain([own]).collect();
        assert_eq!(all.len(), 7);
        assert_eq!(with(small("README.md", 4)), own, "nothing is made of it");
    }

    #[test]
    fn sizes_are_bounded() {
        let of = |files| WeightsManifest { form: WeightsForm::Gguf, files }.check();
        let file = WeightsFile { bytes: FILE_BYTES, root: [0; 32] };
        assert_eq!(of(vec![file; limits::WEIGHTS_FILES]), Ok(()));
        assert!(chunks(FILE_BYTES) * HASH_BYTES as u64 <= limits::FRAME_BYTES as u64);
        assert!(of(vec![]).is_err() && of(vec![file; limits::WEIGHTS_FILES + 1]).is_err());
        assert!(of(vec![WeightsFile { bytes: FILE_BYTES + 1, ..file }]).is_err());
        assert!(of(vec![WeightsFile { bytes: 0, ..file }]).is_err());
    }
}
