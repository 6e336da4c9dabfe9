//! Numbers and texts one after the other, never past the end.

use super::GgufError;

/// A place in a file.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes read so far.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Bytes there are to read, all together.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The next `len` bytes.
    pub(super) fn take(&mut self, len: u64) -> Result<&'a [u8], GgufError> {
        let rest = &self.bytes[self.at..];
        let short = GgufError::CutShort { at: self.at as u64, needed: len, len: self.bytes.len() as u64 };
        let len = usize::try_from(len).ok().filter(|len| *len <= rest.len()).ok_or(short)?;
        self.at += len;
        Ok(&rest[..len])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64)?);
        Ok(out)
    }

    pub(super) fn u32(&mut self) -> Result<u32, GgufError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, GgufError> {
        self.array().map(u64::from_le_bytes)
    }

    /// A length, then as many bytes.
    pub(super) fn text(&mut self) -> Result<&'a [u8], GgufError> {
        let len = self.u64()?;
        self.take(len)
    }

    /// The bytes of `count` texts, each of which is there.
    pub(super) fn texts(&mut self, count: u64) -> Result<&'a [u8], GgufError> {
        let from = self.at;
        for _ in 0..count {
            self.text()?;
        }
        Ok(&self.bytes[from..self.at])
    }

    /// A name of at most `limit` bytes.
    pub(super) fn name(&mut self, what: &str, limit: u64) -> Result<&'a str, GgufError> {
        let at = self.at;
        let len = self.u64()?;
        super::at_most(&format!("bytes of a {what}'s name"), len, limit)?;
        std::str::from_utf8(self.take(len)?).map_err(|_| GgufError::Text(format!("a {what}'s name at byte {at}")))
    }
}
