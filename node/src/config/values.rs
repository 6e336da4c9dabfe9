//! Values of settings as people write them, and what is said of those that are none: no library's words.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;

/// The least amount of memory that anybody means (bytes): below it a unit was forgotten.
const LEAST_BYTES: f64 = (1 << 20) as f64;
/// The most that is taken for an amount of memory (bytes): 16 TiB.
const MOST_BYTES: f64 = (1_u64 << 44) as f64;

/// An amount of memory, as `512MiB`, `8GiB` or `1.5GB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSize(pub u64);

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const WRONG: &str = "write a number and its unit, as 512MiB or 8GiB";
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let amount: f64 = digits.trim().parse().map_err(|_| WRONG)?;
        let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
            "" => {
                return Err(format!(
                    "no unit, and that many bytes is seldom meant: did you mean {}GiB?",
                    digits.trim()
                ));
            }
            "b" => 1.0,
            "k" | "kib" => 1024.0,
            "m" | "mib" => 1024.0 * 1024.0,
            "g" | "gib" => 1024.0 * 1024.0 * 1024.0,
            "t" | "tib" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
            "kb" => 1e3,
            "mb" => 1e6,
            "gb" => 1e9,
            "tb" => 1e12,
            _ => return Err(WRONG.into()),
        };
        let bytes = amount * unit;
        if !bytes.is_finite() || bytes > MOST_BYTES {
            return Err("more than any machine has: write a number and its unit, as 512MiB or 8GiB".into());
        }
        if bytes < LEAST_BYTES {
            return Err("less than 1MiB, which holds nothing: write a number and its unit, as 512MiB or 8GiB".into());
        }
        Ok(Self(bytes as u64))
    }
}

/// An address to listen at or to ask: `127.0.0.1:7448`, `localhost:7448`, `[::1]:7448`, or a part of that, of which the rest is as
/// in `usual`.
///
/// # Errors
/// Says how to write it.
pub fn address(text: &str, usual: SocketAddr) -> Result<SocketAddr, String> {
    let text = text.trim();
    if let Ok(whole) = text.parse() {
        return Ok(whole);
    }
    if let Some(ip) = host(text) {
        return Ok(SocketAddr::new(ip, usual.port()));
    }
    let (ip, port) = match text.rsplit_once(':') {
        Some(("", port)) => (Some(usual.ip()), port),
        Some((name, port)) => (host(name), port),
        None => (Some(usual.ip()), text),
    };
    let is_number = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    match (ip, port.parse()) {
        (Some(ip), Ok(port)) if is_number => Ok(SocketAddr::new(ip, port)),
        (Some(_), _) if is_number => Err("ports go from 0 to 65535".into()),
        _ => Err(format!("write an address and a port, as {usual}, or a port alone, as {}", usual.port())),
    }
}

fn host(text: &str) -> Option<IpAddr> {
    match text {
        "localhost" => Some(Ipv4Addr::LOCALHOST.into()),
        _ => text.trim_start_matches('[').trim_end_matches(']').parse().ok(),
    }
}

/// A whole number in a range.
///
/// # Errors
/// Says which numbers there are.
pub fn whole<T: FromStr + PartialOrd + Display>(text: &str, range: &RangeInclusive<T>) -> Result<T, String> {
    let wrong = || format!("write a whole number from {} to {}", range.start(), range.end());
    text.trim().parse().ok().filter(|n| range.contains(n)).ok_or_else(wrong)
}

/// A number in a range.
///
/// # Errors
/// Says which numbers there are.
pub fn decimal(text: &str, range: &RangeInclusive<f64>) -> Result<f64, String> {
    let wrong = || format!("write a number from {} to {}", range.start(), range.end());
    text.trim().parse().ok().filter(|n| range.contains(n)).ok_or_else(wrong)
}

/// A number above nothing, and no larger than anything that a machine has of what is counted so.
///
/// # Errors
/// Says so.
pub fn above_0(text: &str) -> Result<f64, String> {
    const MOST: f64 = 1e9;
    match text.trim().parse::<f64>() {
        Ok(n) if n > 0.0 && n <= MOST => Ok(n),
        Ok(n) if n > MOST && n.is_finite() => Err(format!("write a number of at most {MOST}")),
        _ => Err("write a number above 0".into()),
    }
}

/// The one of `names` that was most likely meant, if any is near.
pub fn nearest<'n>(meant: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    /// Of letters that may be other ones: a third.
    const PART: usize = 3;
    let far = |name: &str| strsim::damerau_levenshtein(meant, name);
    let found = names.into_iter().map(|name| (far(name), name)).min()?;
    (found.0 <= meant.chars().count().div_ceil(PART)).then_some(found.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_as_people_write_it() {
        let read = |text: &str| text.parse::<ByteSize>().map(|b| b.0);
        for (text, bytes) in [("512MiB", 512 << 20), ("2GiB", 2 << 30), ("2g", 2 << 30), ("1.5GiB", 3 << 29)] {
            assert_eq!(read(text), Ok(bytes), "{text}");
        }
        assert_eq!((read("8GB"), read("8 GiB"), read("1048576B")), (Ok(8_000_000_000), Ok(8 << 30), Ok(1 << 20)));
        for wrong in ["2 elephants", "99999999GiB", "-1GiB", "GiB", "8B", "0GiB", "infGiB", "nan"] {
            let said = read(wrong).unwrap_err();
            assert!(said.contains("as 512MiB or 8GiB"), "{wrong}: {said}");
        }
    }

    #[test]
    fn a_forgotten_unit_is_asked_for() {
        for text in ["8", "8 ", "17179869184"] {
            let said = text.parse::<ByteSize>().unwrap_err();
            assert!(said.contains(&format!("did you mean {}GiB?", text.trim())), "{text}: {said}");
        }
    }

    #[test]
    fn what_is_left_out_of_an_address_is_as_usual() {
        let usual = "127.0.0.1:7448".parse().unwrap();
        let read = |text: &str| address(text, usual).map(|a| a.to_string());
        for (text, meant) in [
            ("17499", "127.0.0.1:17499"),
            (":17499", "127.0.0.1:17499"),
            ("localhost:17499", "127.0.0.1:17499"),
            ("localhost", "127.0.0.1:7448"),
            ("0.0.0.0", "0.0.0.0:7448"),
            ("::1", "[::1]:7448"),
            ("[::1]", "[::1]:7448"),
            ("[::1]:5", "[::1]:5"),
            ("10.0.0.7:0", "10.0.0.7:0"),
        ] {
            assert_eq!(read(text), Ok(meant.to_owned()), "{text}");
        }
        for wrong in ["", ":", "host:7448", "127.0.0.1:", "127.0.0.1:x", "1.2.3", "+5", "http://127.0.0.1:7448"] {
            let said = read(wrong).unwrap_err();
            assert!(said.contains("127.0.0.1:7448") && said.contains("a port alone"), "{wrong}: {said}");
        }
        assert_eq!(read("70000"), Err("ports go from 0 to 65535".into()));
        assert_eq!(read("localhost:99999"), Err("ports go from 0 to 65535".into()));
        assert_eq!(address("9", "[::]:7447".parse().unwrap()).unwrap().to_string(), "[::]:9");
    }

    #[test]
    fn numbers_say_which_there_are() {
        assert_eq!(whole("7", &(1_u32..=9)), Ok(7));
        for wrong in ["0", "10", "-1", "x", "", "1.5"] {
            assert_eq!(whole(wrong, &(1_u32..=9)), Err("write a whole number from 1 to 9".into()), "{wrong}");
            let said = decimal(wrong, &(20.0..=30.0)).unwrap_err();
            assert_eq!(said, "write a number from 20 to 30", "{wrong}");
        }
        for wrong in ["0", "inf", "nan", "-1", "fast"] {
            assert_eq!(above_0(wrong), Err("write a number above 0".into()), "{wrong}");
        }
        assert_eq!(above_0("1e20"), Err("write a number of at most 1000000000".into()));
    }

    #[test]
    fn the_nearest_name_is_found_and_none_that_is_far() {
        let names = ["memory", "kv-memory", "threads", "hours"];
        assert_eq!(nearest("memroy", names), Some("memory"));
        assert_eq!(nearest("thread", names), Some("threads"));
        assert_eq!(nearest("kvmemory", names), Some("kv-memory"));
        assert_eq!(nearest("colour-of-the-sky", names), None);
    }
}
