//! What an owner names to compute with: the processor, GPUs, or whatever there is.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// What computes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// All GPUs that compute the model as the processor does; the processor where there is none.
    #[default]
    Auto,
    /// These, each once.
    Named(Vec<DeviceName>),
}

/// A device of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceName {
    /// Its processor.
    Processor,
    /// GPUs by their numbers among those that `CUDA_VISIBLE_DEVICES` leaves; several are one device, and hold every layer
    /// together.
    Gpus(GpuNumbers),
}

/// GPUs that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuNumbers {
    /// The first one's number.
    pub first: u16,
    /// How many.
    pub count: u16,
}

impl GpuNumbers {
    /// One alone.
    #[must_use]
    pub fn one(first: u16) -> Self {
        Self { first, count: 1 }
    }

    /// Each of them.
    pub fn each(self) -> impl Iterator<Item = u16> {
        self.first..self.first.saturating_add(self.count)
    }
}

impl DeviceName {
    /// Their numbers, if it is GPUs.
    #[must_use]
    pub fn gpus(self) -> Option<GpuNumbers> {
        match self {
            Self::Processor => None,
            Self::Gpus(numbers) => Some(numbers),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Processor => f.write_str("cpu"),
            Self::Gpus(numbers) => numbers.fmt(f),
        }
    }
}

impl fmt::Display for GpuNumbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.each().last() {
            Some(last) if last != self.first => write!(f, "cuda:{}-{last}", self.first),
            _ => write!(f, "cuda:{}", self.first),
        }
    }
}

/// Why a text names no devices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    /// It is no device's name.
    #[error(
        "{0:?} is no device: write auto, cpu, cuda:0, several as cuda:0,cuda:1, or GPUs that are one together as cuda:0-1"
    )]
    Name(String),
    /// A device, or a part of one, twice.
    #[error("{0} is named twice, or a part of it is")]
    Twice(DeviceName),
    /// More than a peer may lend.
    #[error("{0} devices are more than the {limit} a peer may lend", limit = tsnode_protocol::limits::DEVICES)]
    Many(usize),
}

impl FromStr for DeviceName {
    type Err = ChoiceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let gpus = |numbers: &str| {
            let (first, last) = numbers.split_once('-').unwrap_or((numbers, numbers));
            let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
            let count = last.checked_sub(first)?.checked_add(1)?;
            Some(GpuNumbers { first, count })
        };
        match (text, text.strip_prefix("cuda:").and_then(gpus)) {
            ("cpu", _) => Ok(Self::Processor),
            (_, Some(gpus)) => Ok(Self::Gpus(gpus)),
            _ => Err(ChoiceError::Name(text.chars().take(40).collect())),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = ChoiceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let (mut names, mut seen) = (Vec::new(), BTreeSet::new());
        let one = |number| DeviceName::Gpus(GpuNumbers::one(number));
        for name in text.split(',') {
            let name: DeviceName = name.trim().parse()?;
            let parts = name.gpus().map_or_else(|| vec![name], |all| all.each().map(one).collect());
            if !parts.into_iter().all(|part| seen.insert(part)) {
                return Err(ChoiceError::Twice(name));
            }
            names.push(name);
        }
        if names.len() > tsnode_protocol::limits::DEVICES {
            return Err(ChoiceError::Many(names.len()));
        }
        Ok(Self::Named(names))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_once_each() {
        let gpus = |first, count| DeviceName::Gpus(GpuNumbers { first, count });
        assert_eq!("auto".parse(), Ok(DeviceChoice::Auto));
        assert_eq!("cuda:1, cpu".parse(), Ok(DeviceChoice::Named(vec![gpus(1, 1), DeviceName::Processor])));
        let pairs: DeviceChoice = "cuda:0-1,cuda:2-3".parse().unwrap();
        assert_eq!(pairs, DeviceChoice::Named(vec![gpus(0, 2), gpus(2, 2)]));
        assert_eq!((gpus(0, 2).to_string(), gpus(3, 1).to_string()), ("cuda:0-1".into(), "cuda:3".into()));
        let wrong =
            ["", "cuda", "cuda:", "cuda:-1", "gpu", "cpu,", "cuda:70000", "auto,cpu", "cuda:2-1", "cuda:0-65535"];
        for wrong in wrong {
            assert!(matches!(wrong.parse::<DeviceChoice>(), Err(ChoiceError::Name(_))), "{wrong}");
        }
        assert_eq!("cuda:0,cuda:00".parse::<DeviceChoice>(), Err(ChoiceError::Twice(gpus(0, 1))));
        assert_eq!("cuda:1,cuda:0-3".parse::<DeviceChoice>(), Err(ChoiceError::Twice(gpus(0, 4))));
        let many: Vec<String> = (0..100).map(|n| format!("cuda:{n}")).collect();
        assert_eq!(many.join(",").parse::<DeviceChoice>(), Err(ChoiceError::Many(100)));
    }
}
