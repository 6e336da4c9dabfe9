//! What a testnet breaks of a peer's network on purpose. Only a peer started with `--faults` listens to such wishes.

mod noise;

pub use noise::{Noise, make as make_noise};

use crate::{
    links::Shaping,
    swarm::{Ban, CommandError, SwarmHandle},
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tsnode_protocol::{Advert, BytesPerSecond, PeerId};

/// Everything that is broken at a peer; nothing by default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// Peers that nothing reaches from here, with their data planes' addresses: their datagrams vanish without a word.
    pub cut: BTreeMap<PeerId, Vec<SocketAddr>>,
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
        if !self.mbit.is_none_or(|mbit| mbit.is_finite() && mbit > 0.0) {
            return Err("mbit must be above 0");
        }
        if !self.boast.is_none_or(|boast| boast.is_finite() && boast > 0.0) {
            return Err("boast must be above 0");
        }
        if !(0.0..=60_000.0).contains(&self.ms) {
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
            if let Some(profile) = &mut device.profile {
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

    /// Whether the `n`-th of many is one of this part of them: evenly spread.
    #[must_use]
    pub fn hits(part: f64, n: u64) -> bool {
        let so_far = |n: u64| (n as f64 * part) as u64;
        so_far(n + 1) > so_far(n)
    }

    /// Limits on what leaves: those of `usual`, and these.
    #[must_use]
    pub fn shape(&self, usual: Shaping) -> Shaping {
        let bandwidth = self.mbit.map(|mbit| BytesPerSecond(mbit * 1e6 / 8.0)).or(usual.bandwidth);
        Shaping { bandwidth, latency: usual.latency + Duration::from_secs_f64(self.ms / 1e3), ..usual }
    }
}

/// Keeps the control plane's connections cut as wished, until `stop`.
pub async fn cut(mut faults: watch::Receiver<Faults>, swarm: SwarmHandle, stop: CancellationToken) {
    let mut cut = BTreeSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            changed = faults.changed() => if changed.is_err() { return },
        }
        let wanted: BTreeSet<PeerId> = faults.borrow_and_update().cut.keys().copied().collect();
        let ordered = wanted.difference(&cut).try_for_each(|peer| swarm.ban(*peer, Ban::Fault));
        let ordered =
            ordered.and_then(|()| cut.difference(&wanted).try_for_each(|peer| swarm.allow(*peer, Ban::Fault)));
        match ordered {
            Ok(()) => cut = wanted,
            // Orders are few: a task that far behind has other troubles, and the next wish sets it right.
            Err(CommandError::Busy) => tracing::info!("a fault was not done: the network task is busy"),
            Err(CommandError::Stopped) => return,
        }
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
        let shaped = faults.shape(Shaping::default());
        assert_eq!((shaped.bandwidth, shaped.latency), (Some(BytesPerSecond(1e6)), Duration::ZERO));
        assert!(serde_json::from_str::<Faults>(r#"{"cuts":{}}"#).is_err());
        for wrong in [r#"{"mbit":0}"#, r#"{"ms":-1}"#, r#"{"corrupt":2}"#] {
            assert!(serde_json::from_str::<Faults>(wrong).unwrap().check().is_err(), "{wrong}");
        }
    }
}
