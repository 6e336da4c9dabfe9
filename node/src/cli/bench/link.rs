//! `tsnode bench link`: what the data plane carries and costs, beside bare QUIC, TCP and TLS in the same rounds.

mod to;

use crate::{
    cli::{
        asking_args,
        exit::{Exit, ExitKind},
        is_set,
        output::print_json,
        verb, whole,
    },
    config::Settings,
    data_plane::links::{
        LinkError, Shaping,
        trial::{self, MovedBytes, Slowed, TrialCarrier},
    },
};
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde::Serialize;
use std::num::NonZeroU8;
use std::time::Duration;
use tsnode_protocol::{BytesPerSecond, limits};

/// UDP payloads measured: over Ethernet, and within a LAN or a host.
const DATAGRAMS: [u16; 2] = [1452, 6500];
const MIB: u64 = 1 << 20;
/// What is handed over where nothing is said (MiB): on this machine, and to another peer.
const SIZE: u64 = 1024;
const TO_SIZE: u64 = 64;
const GIB: f64 = (1u64 << 30) as f64;
/// Links that are pretended: Mbit/s, and milliseconds one way.
const SLOWER: [(f64, u64); 4] = [(100.0, 0), (1000.0, 0), (1000.0, 20), (1000.0, 40)];
/// How long a KV transfer over one of them takes at its full rate: slow starts count, and do not count for all.
const SLOWER_FOR: f64 = 8.0;

pub(super) fn command() -> Command {
    let number = |name, value, help| Arg::new(name).long(name).value_name(value).help(help);
    verb(
        "link",
        "The data plane between two ends on this machine, or to another peer: speed and processor time",
        "tsnode bench link --to peer3 --size 64",
    )
    .arg(number("to", "PEER", "Measure the link from the running peer to this one, by its name or id"))
    .arg(
        number("size", "MIB", "What is handed over [default: 1024; to another peer 64, and at most 256]")
            .value_parser(whole(1_u64..=65_536)),
    )
    .arg(
        number("rounds", "N", "Rounds, in each of which everything is measured once")
            .default_value("5")
            .value_parser(whole(1_u64..=100)),
    )
    .arg(number("mtu", "BYTES", "Largest UDP payload [default: 1452, then 6500]").value_parser(whole(1200_u16..=6500)))
    .arg(
        number("streams", "N", "Also by as many connections that share a KV transfer, as hosts with cores to spare do")
            .value_parser(whole(2..=limits::KV_STREAMS))
            .alias("lanes"),
    )
    .arg(
        Arg::new("no-slower")
            .long("no-slower")
            .action(ArgAction::SetTrue)
            .help("Leave out the links that are pretended to be slower"),
    )
    .args(asking_args())
}

#[derive(Serialize)]
struct Report {
    /// Bytes handed over each time.
    bytes: u64,
    ways: Vec<CarrierResult>,
    slower: Vec<Slower>,
}

/// One way of carrying them, in medians over the rounds.
#[derive(Serialize)]
struct CarrierResult {
    carrier: TrialCarrier,
    /// Connections that share them.
    kv_streams: NonZeroU8,
    /// Largest UDP payload, where there are any.
    datagram: Option<u16>,
    gbit_s: f64,
    cpu_s_per_gib: Option<f64>,
    /// Median over rounds of its rate over that of bare QUIC, TCP, and TLS in the same round.
    of_bare: Option<f64>,
    of_tcp: f64,
    of_tls: f64,
    rounds: Vec<MovedBytes>,
}

/// A link that is pretended to be slower.
#[derive(Serialize)]
struct Slower {
    mbit_s: f64,
    /// One way.
    latency_ms: u64,
    bytes: u64,
    /// Parts of its rate: that were reached, that a probe had told before, and that traffic told.
    reached: f64,
    probed: f64,
    seen: f64,
    /// Part of a minute's capacity that the probe took.
    probe_part: f64,
    measured: Slowed,
}

pub(super) async fn run(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let size = matches.get_one::<u64>("size").copied();
    if let Some(peer) = matches.get_one::<String>("to") {
        return to::run(settings, matches, peer, size.unwrap_or(TO_SIZE)).await;
    }
    let watch = !is_set(matches, "json");
    let number = |name| matches.get_one::<u64>(name).copied().unwrap_or(1);
    let bytes = size.unwrap_or(SIZE) * MIB;
    let datagrams = matches.get_one::<u16>("mtu").map_or(DATAGRAMS.to_vec(), |mtu| vec![*mtu]);
    let kv_streams = matches.get_one::<u8>("streams").copied().and_then(NonZeroU8::new);
    let ways = ways(bytes, &datagrams, kv_streams, number("rounds") as usize).await.map_err(failed)?;
    if watch {
        say!(
            "{} MiB from one end to the other in one process, over loopback; medians of {} rounds",
            bytes / MIB,
            number("rounds")
        );
        say!("{:<22}{:>9}{:>13}{:>9}{:>8}{:>8}", "", "Gbit/s", "CPU-s/GiB", "of bare", "of TCP", "of TLS");
        ways.iter().for_each(CarrierResult::print);
    }
    let mut slower = Vec::new();
    if !is_set(matches, "no-slower") {
        if watch {
            say!("over links pretended to be slower; parts of their rate");
            say!("{:<22}{:>9}{:>9}{:>9}{:>12}", "", "reached", "probed", "seen", "probe took");
        }
        for (mbit, latency) in SLOWER {
            let link = Slower::measure(mbit, latency).await.map_err(failed)?;
            if watch {
                link.print();
            }
            slower.push(link);
        }
    }
    if watch { Ok(()) } else { print_json(&Report { bytes, ways, slower }) }
}

fn failed(error: LinkError) -> Exit {
    Exit::new(ExitKind::Other, error.to_string())
}

/// Everything once a round, beginning elsewhere each time.
async fn ways(
    bytes: u64,
    datagrams: &[u16],
    kv_streams: Option<NonZeroU8>,
    rounds: usize,
) -> Result<Vec<CarrierResult>, LinkError> {
    let ours = [Some(TrialCarrier::Own), kv_streams.map(|_| TrialCarrier::KvStreams), Some(TrialCarrier::Bare)];
    let quic = datagrams.iter().flat_map(|d| ours.into_iter().flatten().map(|carrier| (carrier, Some(*d))));
    let shared = kv_streams.unwrap_or(NonZeroU8::MIN);
    let all: Vec<(TrialCarrier, Option<u16>)> =
        quic.chain([(TrialCarrier::Tcp, None), (TrialCarrier::Tls, None)]).collect();
    let mut moved: Vec<Vec<MovedBytes>> = vec![Vec::new(); all.len()];
    for round in 0..rounds {
        for k in 0..all.len() {
            let at = (round + k) % all.len();
            let (carrier, datagram) = all[at];
            moved[at].push(trial::carry(carrier, bytes, datagram.unwrap_or_default(), shared).await?);
        }
    }
    let of = |at: usize, carrier, datagram| {
        let other = all.iter().position(|way| *way == (carrier, datagram))?;
        Some(median(moved[at].iter().zip(&moved[other]).map(|(ours, theirs)| theirs.seconds / ours.seconds)))
    };
    let way = |(at, (carrier, datagram)): (usize, &(TrialCarrier, Option<u16>))| CarrierResult {
        carrier: *carrier,
        kv_streams: if *carrier == TrialCarrier::KvStreams { shared } else { NonZeroU8::MIN },
        datagram: *datagram,
        gbit_s: median(moved[at].iter().map(|m| bytes as f64 * 8e-9 / m.seconds)),
        cpu_s_per_gib: moved[at]
            .iter()
            .map(|m| m.cpu_seconds.map(|cpu| cpu / (bytes as f64 / GIB)))
            .collect::<Option<Vec<f64>>>()
            .map(|cpu| median(cpu.into_iter())),
        of_bare: of(at, TrialCarrier::Bare, *datagram),
        of_tcp: of(at, TrialCarrier::Tcp, None).unwrap_or(f64::NAN),
        of_tls: of(at, TrialCarrier::Tls, None).unwrap_or(f64::NAN),
        rounds: moved[at].clone(),
    };
    Ok(all.iter().enumerate().map(way).collect())
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

impl CarrierResult {
    fn print(&self) {
        let name = match self.carrier {
            TrialCarrier::Own => "tiles, manifest".into(),
            TrialCarrier::KvStreams => format!("on {} connections", self.kv_streams),
            TrialCarrier::Bare => "bare QUIC".into(),
            TrialCarrier::Tcp => "TCP".into(),
            TrialCarrier::Tls => "TLS over TCP".into(),
        };
        let name: String = self.datagram.map_or(name.clone(), |datagram| format!("{name}, {datagram}"));
        let cpu = self.cpu_s_per_gib.map_or("not told".into(), |cpu| format!("{cpu:.2}"));
        let bare = self.of_bare.map_or(String::new(), |part| format!("{:.0} %", part * 100.0));
        let [tcp, tls] = [self.of_tcp, self.of_tls].map(|part| format!("{:.0} %", part * 100.0));
        say!("{name:<22}{:>9.2}{cpu:>13}{bare:>9}{tcp:>8}{tls:>8}", self.gbit_s);
    }
}

impl Slower {
    async fn measure(mbit: f64, latency: u64) -> Result<Self, LinkError> {
        let rate = mbit * 125e3;
        let bandwidth = Some(BytesPerSecond(rate));
        let shaping = Shaping { bandwidth, upload: None, latency: Duration::from_millis(latency) };
        let bytes = (rate * SLOWER_FOR) as u64 / MIB * MIB;
        let measured = trial::slowed(shaping, bytes).await?;
        Ok(Self {
            mbit_s: mbit,
            latency_ms: latency,
            bytes,
            reached: bytes as f64 / measured.moved.seconds / rate,
            probed: measured.probed / rate,
            seen: measured.seen / rate,
            probe_part: measured.probe_bytes as f64 / (60.0 * rate),
            measured,
        })
    }

    fn print(&self) {
        let name = format!("{:.0} Mbit/s, {} ms", self.mbit_s, self.latency_ms);
        let [reached, probed, seen] = [self.reached, self.probed, self.seen].map(|p| format!("{:.1} %", p * 100.0));
        let took = format!("{:.2} %", self.probe_part * 100.0);
        say!("{name:<22}{reached:>9}{probed:>9}{seen:>9}{took:>12}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn every_way_is_measured_in_every_round() {
        let ways = ways(4 * MIB, &[1452], NonZeroU8::new(2), 2).await.unwrap();
        let names: Vec<TrialCarrier> = ways.iter().map(|w| w.carrier).collect();
        assert_eq!(
            names,
            [TrialCarrier::Own, TrialCarrier::KvStreams, TrialCarrier::Bare, TrialCarrier::Tcp, TrialCarrier::Tls]
        );
        for way in &ways {
            assert!(way.gbit_s > 0.0 && way.of_tcp > 0.0 && way.rounds.len() == 2, "{:?}", way.carrier);
            assert_eq!(way.of_bare.is_some(), way.datagram.is_some());
        }
    }
}
