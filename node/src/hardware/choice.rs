//! What an owner names to compute with: the processor, cards, or whatever there is.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// What computes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// All cards that compute the model as the processor does; the processor where there is none.
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
    /// A card, by its number among those that `CUDA_VISIBLE_DEVICES` leaves.
    Card(u16),
}

impl DeviceName {
    /// Its number, if it is a card.
    #[must_use]
    pub fn card(self) -> Option<u16> {
        match self {
            Self::Processor => None,
            Self::Card(number) => Some(number),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Processor => f.write_str("cpu"),
            Self::Card(number) => write!(f, "cuda:{number}"),
        }
    }
}

/// Why a text names no devices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    /// It is no device's name.
    #[error("{0:?} is no device: write auto, cpu, cuda:0, or several as cuda:0,cuda:1")]
    Name(String),
    /// A device twice.
    #[error("{0} is named twice")]
    Twice(DeviceName),
    /// More than a peer may lend.
    #[error("{0} devices are more than the {limit} a peer may lend", limit = tsnode_protocol::limits::DEVICES)]
    Many(usize),
}

impl FromStr for DeviceName {
    type Err = ChoiceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = text.strip_prefix("cuda:").and_then(|number| number.parse().ok());
        match (text, number) {
            ("cpu", _) => Ok(Self::Processor),
            (_, Some(number)) => Ok(Self::Card(number)),
            _ => Err(ChoiceError::Name(text.to_owned())),
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
        for name in text.split(',') {
            let name: DeviceName = name.trim().parse()?;
            if !seen.insert(name) {
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
        assert_eq!("auto".parse(), Ok(DeviceChoice::Auto));
        let both = DeviceChoice::Named(vec![DeviceName::Card(1), DeviceName::Processor]);
        assert_eq!("cuda:1, cpu".parse(), Ok(both));
        for wrong in ["", "cuda", "cuda:", "cuda:-1", "gpu", "cpu,", "cuda:70000", "auto,cpu"] {
            assert!(matches!(wrong.parse::<DeviceChoice>(), Err(ChoiceError::Name(_))), "{wrong}");
        }
        assert_eq!("cuda:0,cuda:00".parse::<DeviceChoice>(), Err(ChoiceError::Twice(DeviceName::Card(0))));
        let many: Vec<String> = (0..100).map(|n| format!("cuda:{n}")).collect();
        assert_eq!(many.join(",").parse::<DeviceChoice>(), Err(ChoiceError::Many(100)));
    }
}
