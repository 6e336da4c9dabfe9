//! Files that are only added to: records with checksums, of which a reader finds all that are whole, whatever happened to
//! the rest.
//!
//! A ledger is a [`HEADER`] and then records: a mark, the payload's length (four bytes, little-endian), the first eight bytes
//! of its BLAKE3 hash, the payload. A process that is killed while it writes leaves a torn end, which is cut off. Damage
//! anywhere else costs the records it hits: those behind it are found again by their mark.

use crate::codec::CodecError;

/// How every ledger begins; the last byte is the version of this form.
pub const HEADER: [u8; 8] = *b"tsnode\0\x01";
/// Largest payload of a record.
pub const RECORD_BYTES: usize = 1 << 20;

/// How every record begins: bytes that text and counters do not have.
const MARK: [u8; 4] = [0xF1, 0x1E, 0xD9, 0xE7];
const HASH: usize = 8;
/// Bytes in front of a payload.
const FRAME: usize = MARK.len() + 4 + HASH;
/// Marks without a record that are looked into before the rest of a damaged file is given up: each costs hashing a payload.
const SUSPECTS: usize = 1024;

/// What a ledger holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Contents<'b> {
    /// Payloads, in the order they were written.
    pub records: Vec<&'b [u8]>,
    /// Where the last whole record ends, or the header: what follows was being written when the writer died.
    pub end: usize,
    /// Bytes that are neither records nor a torn end.
    pub damaged: usize,
}

/// A ledger of another version than this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("written by another version of tsnode (form {0})")]
pub struct OtherVersion(pub u8);

/// Adds a record to `file`.
///
/// # Errors
/// When the payload is too large for one.
pub fn push(file: &mut Vec<u8>, payload: &[u8]) -> Result<(), CodecError> {
    if payload.len() > RECORD_BYTES {
        return Err(CodecError::TooLarge { bytes: payload.len(), limit: RECORD_BYTES });
    }
    file.extend_from_slice(&MARK);
    file.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    file.extend_from_slice(&hash(payload));
    file.extend_from_slice(payload);
    Ok(())
}

/// Reads all of a ledger.
///
/// # Errors
/// When it is whole, as far as can be seen, and of another version.
pub fn read(file: &[u8]) -> Result<Contents<'_>, OtherVersion> {
    let mut contents = Contents::default();
    if file.starts_with(&HEADER) {
        contents.end = HEADER.len();
    } else if HEADER.starts_with(file) {
        return Ok(contents);
    }
    let mut suspects = SUSPECTS;
    loop {
        let rest = &file[contents.end..];
        if rest.is_empty() {
            break;
        }
        if let Some(payload) = record(rest) {
            contents.records.push(payload);
            contents.end += FRAME + payload.len();
        } else if let Some(skipped) = next_record(rest, &mut suspects) {
            contents.damaged += skipped;
            contents.end += skipped;
        } else {
            // Nothing is written before the header is.
            let torn = contents.end > 0 && is_torn(rest);
            contents.damaged += if torn { 0 } else { rest.len() };
            break;
        }
    }
    let foreign = file.split_first_chunk::<8>().map(|(header, _)| *header).filter(|h| h[..7] == HEADER[..7]);
    match foreign {
        Some(header) if header != HEADER && contents.records.is_empty() => Err(OtherVersion(header[7])),
        _ => Ok(contents),
    }
}

/// The payload of the record that begins here.
fn record(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = announced(bytes)?;
    let (expected, rest) = rest.split_first_chunk::<HASH>()?;
    let payload = rest.get(..length)?;
    (hash(payload) == *expected).then_some(payload)
}

/// The length that a mark announces, and what follows it.
fn announced(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (length, rest) = bytes.strip_prefix(&MARK)?.split_first_chunk::<4>()?;
    let length = u32::from_le_bytes(*length) as usize;
    (length <= RECORD_BYTES).then_some((length, rest))
}

/// How far away the next whole record is.
fn next_record(bytes: &[u8], suspects: &mut usize) -> Option<usize> {
    let mut at = 1;
    while *suspects > 0 {
        at += bytes.get(at..)?.windows(MARK.len()).position(|w| w == MARK)?;
        if record(&bytes[at..]).is_some() {
            return Some(at);
        }
        *suspects -= 1;
        at += 1;
    }
    None
}

/// Whether this is how a file ends whose writer died: within a record, or in room that nothing was written to.
fn is_torn(rest: &[u8]) -> bool {
    let within = match announced(rest) {
        Some((length, behind)) => behind.len() < HASH + length,
        None => rest.len() < MARK.len() + 4 && rest.iter().zip(&MARK).all(|(a, b)| a == b),
    };
    within || rest.iter().all(|b| *b == 0)
}

fn hash(payload: &[u8]) -> [u8; HASH] {
    let whole = blake3::hash(payload);
    std::array::from_fn(|i| whole.as_bytes()[i])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(n: u8) -> Vec<u8> {
        vec![n; usize::from(n) * 3]
    }

    fn ledger(records: u8) -> Vec<u8> {
        let mut file = HEADER.to_vec();
        (0..records).for_each(|n| push(&mut file, &payload(n)).unwrap());
        file
    }

    #[test]
    fn what_was_written_is_read_and_a_torn_end_is_cut_off() {
        let file = ledger(12);
        let all: Vec<Vec<u8>> = (0..12).map(payload).collect();
        for cut in 0..=file.len() {
            let read = read(&file[..cut]).unwrap();
            assert_eq!(read.damaged, 0, "cut at {cut}");
            assert_eq!(read.records, all[..read.records.len()], "cut at {cut}");
            let whole = ledger(read.records.len() as u8).len();
            assert!(read.end == whole || cut < HEADER.len(), "cut at {cut}");
            assert!(ledger(read.records.len() as u8 + 1).len() > cut, "cut at {cut}");
        }
        let zeros = [file.clone(), vec![0; 4096]].concat();
        assert_eq!(read(&zeros), Ok(Contents { damaged: 0, end: file.len(), ..read(&file).unwrap() }));
    }

    #[test]
    fn damage_costs_the_records_it_hits_and_is_told() {
        let file = ledger(12);
        let starts: Vec<usize> = (0..=12).map(|n| ledger(n).len()).collect();
        for at in 0..file.len() {
            let mut damaged = file.clone();
            damaged[at] ^= 0x55;
            let read = read(&damaged).unwrap();
            let hit = (0..12).find(|n| (starts[*n]..starts[n + 1]).contains(&at));
            let left: Vec<Vec<u8>> = (0..12).filter(|n| Some(*n) != hit).map(|n| payload(n as u8)).collect();
            assert_eq!(read.records, left, "byte {at}");
            // A length that now reaches beyond the end of the file cannot be told from a torn end in the last record.
            assert!(read.damaged > 0 || hit == Some(11), "byte {at}");
        }
    }

    #[test]
    fn other_versions_are_named_and_garbage_is_no_ledger() {
        let mut later = HEADER.to_vec();
        later[7] = 9;
        later.extend_from_slice(b"something else");
        assert_eq!(read(&later), Err(OtherVersion(9)));
        let garbage = vec![0xF1; 5000];
        assert_eq!(read(&garbage).map(|c| (c.records.len(), c.damaged)), Ok((0, 5000)));
        assert_eq!(read(&[0; 5000]).map(|c| (c.records.len(), c.damaged)), Ok((0, 5000)));
        // Marks without records are not looked into for ever.
        let marks = [HEADER.to_vec(), [&MARK[..], &[0, 0, 16, 0]].concat().repeat(1 << 17)].concat();
        assert!(read(&marks).unwrap().records.is_empty());
        assert!(push(&mut Vec::new(), &vec![0; RECORD_BYTES + 1]).is_err());
    }
}
