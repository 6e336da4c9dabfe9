//! How far a model is that is fetched from peers, in few lines.

use crate::weights::Fetching;
use tsnode_protocol::LayerRange;

/// Lines about one model.
const LINES: u64 = 10;

/// What has been said of it.
#[derive(Default)]
pub(super) struct ModelArrival {
    model: String,
    layers: Option<LayerRange>,
    told: Option<u64>,
}

impl ModelArrival {
    /// A line, where there is something new to say. What keeps a model away is said by others.
    pub(super) fn news(&mut self, far: &Fetching) -> Option<String> {
        if far.why.is_some() || far.bytes == 0 {
            return None;
        }
        if self.model != far.model || self.layers != far.layers {
            *self = Self { model: far.model.clone(), layers: far.layers, told: None };
        }
        let part = far.done.saturating_mul(LINES) / far.bytes;
        (self.told < Some(part)).then(|| {
            self.told = Some(part);
            far.to_string()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_few() {
        let far = |done| Fetching { model: "m".into(), bytes: 1 << 30, done, holders: 2, ..Fetching::default() };
        let mut arrival = ModelArrival::default();
        let lines: Vec<String> = (0..=300).filter_map(|n| arrival.news(&far((1 << 30) / 300 * n))).collect();
        assert!(lines.len() == 10 && lines[0] == "fetching m from 2 peers: 0.0 MiB of 1.0 GiB", "{lines:?}");
        let why = Fetching { why: Some("no room".into()), ..far(1 << 29) };
        assert_eq!(arrival.news(&why), None);
    }
}
