//! What a peer says of its GPUs beside their speeds and memory.

use crate::BytesPerSecond;
use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// GPUs of one kind that compute as one device, and what each is by its own word and by measurement.
#[derive(Clone, Copy, Debug, PartialEq, Encode, Decode, Serialize, Deserialize)]
pub struct Gpus {
    /// Number of the first on its host.
    pub first: u16,
    /// How many there are, the numbers following each other; several hold every layer together.
    pub count: u16,
    /// Compute capability, as 9 and 0.
    pub capability: (u8, u8),
    /// The driver's version, where the management library says it.
    pub driver: Option<DriverVersion>,
    /// Most that one draws (mW), where that is known.
    pub power_limit_mw: Option<u32>,
    /// Most that processors and memory run at (MHz), where that is known.
    pub clocks_mhz: Option<(u32, u32)>,
    /// Generation and parallel streams of the link to the host, where they are known.
    pub pcie: Option<(u8, u8)>,
    /// Measured from the host to one of them.
    pub up: BytesPerSecond,
    /// Measured to the host.
    pub down: BytesPerSecond,
}

/// A driver's version, as 535.104.5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct DriverVersion(pub [u16; 3]);

/// A text that is no driver's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a driver's version is two or three numbers, as 535.104.5")]
pub struct DriverVersionError;

impl Gpus {
    /// Whether every figure is one that a GPU can have.
    #[must_use]
    pub fn is_plausible(&self) -> bool {
        let (most_mw, most_mhz) = (10_000_000, 100_000);
        self.count > 0
            && self.first.checked_add(self.count).is_some()
            && self.up.is_plausible()
            && self.down.is_plausible()
            && self.power_limit_mw.is_none_or(|mw| mw <= most_mw)
            && self.clocks_mhz.is_none_or(|(a, b)| a <= most_mhz && b <= most_mhz)
    }
}

impl fmt::Display for Gpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A peer that says it has none in a device is refused.
        match self.count {
            0 | 1 => write!(f, "cuda:{}", self.first),
            count => write!(f, "cuda:{}-{}", self.first, u32::from(self.first) + u32::from(count) - 1),
        }
    }
}

impl fmt::Display for DriverVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c] = self.0;
        write!(f, "{a}.{b}.{c:02}")
    }
}

impl FromStr for DriverVersion {
    type Err = DriverVersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut numbers = [0; 3];
        let mut parts = text.trim().split('.');
        for (n, number) in numbers.iter_mut().enumerate() {
            match parts.next() {
                Some(part) => *number = part.parse().map_err(|_| DriverVersionError)?,
                None if n == 2 => {}
                None => return Err(DriverVersionError),
            }
        }
        if parts.next().is_some() { Err(DriverVersionError) } else { Ok(Self(numbers)) }
    }
}

impl TryFrom<String> for DriverVersion {
    type Error = DriverVersionError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<DriverVersion> for String {
    fn from(version: DriverVersion) -> Self {
        version.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_versions_are_read_as_they_are_written() {
        for (text, numbers, written) in [
            ("535.104.05", [535, 104, 5], "535.104.05"),
            ("580.65", [580, 65, 0], "580.65.00"),
            (" 550.54.15\n", [550, 54, 15], "550.54.15"),
        ] {
            let version: DriverVersion = text.parse().unwrap();
            assert_eq!((version.0, version.to_string().as_str()), (numbers, written));
        }
        for wrong in ["", "535", "a.b.c", "1.2.3.4", "70000.1", "535.-1"] {
            assert_eq!(wrong.parse::<DriverVersion>(), Err(DriverVersionError), "{wrong}");
        }
        assert!(DriverVersion([535, 104, 5]) < DriverVersion([550, 54, 15]));
    }

    #[test]
    fn gpus_are_named_by_their_numbers() {
        let gpus = |first, count| Gpus {
            first,
            count,
            capability: (9, 0),
            driver: None,
            power_limit_mw: None,
            clocks_mhz: None,
            pcie: None,
            up: BytesPerSecond(1e9),
            down: BytesPerSecond(1e9),
        };
        assert_eq!((gpus(1, 1).to_string(), gpus(2, 4).to_string()), ("cuda:1".into(), "cuda:2-5".into()));
        assert!(gpus(0, 8).is_plausible() && !gpus(0, 0).is_plausible() && !gpus(65_000, 1000).is_plausible());
        assert!(!Gpus { up: BytesPerSecond(f64::NAN), ..gpus(0, 1) }.is_plausible());
        assert!(!Gpus { power_limit_mw: Some(u32::MAX), ..gpus(0, 1) }.is_plausible());
    }
}
