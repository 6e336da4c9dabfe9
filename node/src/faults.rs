//! What a testnet breaks of a peer's network on purpose. Only a peer started with `--faults` listens to such wishes.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use tsnode_protocol::{Advert, PeerId};

/// Everything that is broken at a peer; nothing by default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// Peers that nothing reaches from here, with their data planes' addresses: their datagrams vanish without a word.
    pub cut: BTreeMap<PeerId, Vec<SocketAddr>>,
    /// Links to single peers that carry less, or later, than they could.
    pub slow: BTreeMap<PeerId, SlowLink>,
    /// What every link from here carries (Mbit/s), if less than it could.
    pub mbit: Option<f64>,
    /// How much later everything leaves (milliseconds).
    pub ms: f64,
    /// Part of the KV tiles sent from here that have a bit flipped.
    pub corrupt: f64,
    /// Part of the tokens given by groups that this peer leads which are others than were chosen.
    pub lie: f64,
    /// Part of the KV tiles sent from here that hold something else than was computed.
    pub false_kv: f64,
    /// Whether its compute thread hangs, while everything else goes on.
    pub wedge: bool,
    /// How many times faster its advert says it is than it was measured.
    pub boast: Option<f64>,
    /// What it says to everybody that no honest peer says.
    pub noise: Option<Noise>,
    /// What stands between it and everybody else.
    pub wall: Wall,
}

/// A link from here to one peer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SlowLink {
    /// Where its data plane is.
    pub addresses: Vec<SocketAddr>,
    /// What it carries (Mbit/s), if less than it could.
    pub mbit: Option<f64>,
    /// How much later what goes there leaves (milliseconds).
    pub ms: f64,
}

/// What a peer says to everybody that no honest peer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Noise {
    /// Bytes that are no message.
    Garbage,
    /// Far more messages than there is to say.
    Flood,
    /// Messages that others have long heard the successors of.
    Replay,
    /// Different plans for one term.
    SecondPlan,
}

/// What keeps others' packets from a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wall {
    /// Nothing.
    #[default]
    None,
    /// Who was not called first does not get in: an address translation, or a firewall.
    Nat,
    /// Nor do UDP packets, in either direction.
    Udp,
}

impl Faults {
    /// Whether it can be done.
    ///
    /// # Errors
    /// Says which value is none.
    pub fn check(&self) -> Result<(), &'static str> {
        let is_rate = |mbit: Option<f64>| mbit.is_none_or(|mbit| mbit.is_finite() && mbit > 0.0);
        let is_delay = |ms: f64| (0.0..=60_000.0).contains(&ms);
        if !is_rate(self.mbit) || !self.slow.values().all(|link| is_rate(link.mbit)) {
            return Err("mbit must be above 0");
        }
        if !self.boast.is_none_or(|boast| boast.is_finite() && boast > 0.0) {
            return Err("boast must be above 0");
        }
        if !is_delay(self.ms) || !self.slow.values().all(|link| is_delay(link.ms)) {
            return Err("ms must be from 0 to 60000");
        }
        let is_part = |x: f64| (0.0..=1.0).contains(&x);
        let parts = [self.corrupt, self.lie, self.false_kv];
        if parts.into_iter().all(is_part) { Ok(()) } else { Err("corrupt, lie and false_kv must be from 0 to 1") }
    }

    /// An advert as it is said.
    #[must_use]
    pub fn boasted(&self, mut advert: Advert) -> Advert {
        let Some(times) = self.boast else { return advert };
        for device in &mut advert.devices {
            (device.flops.0, device.bandwidth.0) = (device.flops.0 * times, device.bandwidth.0 * times);
            for profile in device.serves.iter_mut().filter_map(|served| served.profile.as_mut()) {
                profile.prefill.iter_mut().chain(&mut profile.decode).for_each(|seconds| *seconds /= times);
            }
        }
        advert
    }

    /// Whether datagrams to there vanish.
    #[must_use]
    pub fn cuts(&self, to: SocketAddr) -> bool {
        self.cut.values().flatten().any(|cut| *cut == to)
    }

    /// What is wrong with the link to there alone.
    #[must_use]
    pub fn slow_to(&self, to: SocketAddr) -> Option<&SlowLink> {
        self.slow.values().find(|link| link.addresses.contains(&to))
    }

    /// Whether what goes there leaves slower, or later, than it could.
    #[must_use]
    pub fn slows(&self, to: SocketAddr) -> bool {
        self.mbit.is_some() || self.ms > 0.0 || self.slow_to(to).is_some() || self.cuts(to)
    }

    /// Whether the `n`-th of many is one of this part of them: evenly spread.
    #[must_use]
    pub fn hits(part: f64, n: u64) -> bool {
        let so_far = |n: u64| (n as f64 * part) as u64;
        so_far(n + 1) > so_far(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_are_read_as_json_and_nonsense_is_refused() {
        let peer = PeerId([1; 32]);
        let text = format!(r#"{{"cut":{{"{peer}":["127.0.0.1:9"]}},"mbit":8,"corrupt":0.5}}"#);
        let faults: Faults = serde_json::from_str(&text).unwrap();
        assert!(faults.check().is_ok() && faults.cuts("127.0.0.1:9".parse().unwrap()));
        assert!(serde_json::from_str::<Faults>(r#"{"cuts":{}}"#).is_err());
        let text = format!(r#"{{"slow":{{"{peer}":{{"addresses":["127.0.0.1:9"],"ms":40}}}}}}"#);
        let slow: Faults = serde_json::from_str(&text).unwrap();
        assert!(slow.check().is_ok() && slow.slow_to("127.0.0.1:8".parse().unwrap()).is_none());
        assert_eq!(slow.slow_to("127.0.0.1:9".parse().unwrap()).unwrap().ms, 40.0);
        let slows = |faults: &Faults, port: u16| faults.slows(([127, 0, 0, 1], port).into());
        assert!(slows(&slow, 9) && !slows(&slow, 8) && slows(&Faults { ms: 1.0, ..Faults::default() }, 8));
        let text = text.replace("40", "-1");
        assert!(serde_json::from_str::<Faults>(&text).unwrap().check().is_err());
        for wrong in [r#"{"mbit":0}"#, r#"{"ms":-1}"#, r#"{"corrupt":2}"#] {
            assert!(serde_json::from_str::<Faults>(wrong).unwrap().check().is_err(), "{wrong}");
        }
    }
}
