//! `tsnode testnet partition|heal|slow|corrupt|lie|wedge`: breaks peers of a detached swarm, and mends them.

use super::{asked_peer, dir, exit, fault, folder};
use crate::cli::{decimal, exit::Exit, is_set, json as json_flag, output::print_json, verb};
use clap::{Arg, ArgMatches, Command};
use serde_json::json;
use tsnode_testnet::{Flaw, Network, Noise, TestnetState};

pub(super) fn commands() -> [Command; 6] {
    let side = Arg::new("side")
        .value_name("PEERS")
        .required(true)
        .value_delimiter(',')
        .help("Peers on the one side, by name; all others are on the other");
    let number = |name: &'static str, most: f64, help: &'static str| {
        Arg::new(name).long(name).value_name("N").value_parser(decimal(0.0..=most)).help(help)
    };
    [
        verb("partition", "Cut the network in two", "tsnode testnet partition peer0,peer1")
            .arg(side)
            .arg(dir())
            .arg(json_flag()),
        verb("heal", "Mend every network that was broken", "tsnode testnet heal").arg(dir()).arg(json_flag()),
        fault("slow", "Make a peer's links slow")
            .arg(number("mbit", 1e6, "What each carries in Mbit/s [default: as before]"))
            .arg(number("ms", 60_000.0, "How much later everything leaves, in milliseconds").default_value("0"))
            .arg(
                Arg::new("to")
                    .long("to")
                    .value_name("PEER")
                    .help("Only the link between the two, in both directions [default: all links from the peer]"),
            )
            .arg(dir()),
        fault("lie", "Let a peer answer wrongly, as a byzantine peer would")
            .arg(number("tokens", 1.0, "Part of the tokens it gives that are wrong").default_value("1"))
            .arg(number("kv", 1.0, "Part of the KV it sends that is wrong, with right checksums").default_value("0"))
            .arg(
                number("speed", 1e6, "How many times faster than it is its advert says; nothing else is a lie then")
                    .conflicts_with_all(["tokens", "kv"]),
            )
            .arg(
                Arg::new("gossip")
                    .long("gossip")
                    .value_name("KIND")
                    .value_parser(Noise::ALL.map(|(name, _)| name))
                    .conflicts_with_all(["tokens", "kv", "speed"])
                    .help("What it says to everybody; nothing else is a lie then"),
            )
            .arg(dir()),
        fault("wedge", "Let a peer's compute thread hang while everything else goes on").arg(dir()),
        fault("corrupt", "Flip bits in the KV that a peer sends")
            .arg(number("part", 1.0, "Part of its tiles, from 0 to 1").default_value("0.5"))
            .arg(dir()),
    ]
}

pub(super) async fn run(fault: &str, matches: &ArgMatches) -> Result<(), Exit> {
    let state = TestnetState::read(&folder(matches)).map_err(exit)?;
    let network = Network::of(state.alive());
    let number = |name: &str| matches.try_get_one::<f64>(name).ok().flatten().copied();
    let done = match fault {
        "partition" => {
            let side: Vec<&str> =
                matches.get_many::<String>("side").into_iter().flatten().map(String::as_str).collect();
            network.partition(&side).await.map_err(exit)?;
            format!("{} cut off from all others", side.join(", "))
        }
        "slow" if matches.contains_id("to") => {
            let (one, other) = (asked_peer(matches), matches.get_one::<String>("to").map_or("", String::as_str));
            network.slow_link([one, other], number("mbit"), number("ms").unwrap_or(0.0)).await.map_err(exit)?;
            format!("the link between {one} and {other} is slow until: tsnode testnet heal")
        }
        "heal" => {
            network.heal().await.map_err(exit)?;
            "every network is whole again".to_owned()
        }
        _ => {
            let slow = || Flaw::Slow { mbit: number("mbit"), ms: number("ms").unwrap_or(0.0) };
            let corrupt = || Flaw::Corrupt { part: number("part").unwrap_or(0.5) };
            let lie = || Flaw::Lie { tokens: number("tokens").unwrap_or(1.0), kv: number("kv").unwrap_or(0.0) };
            let flaw = match (fault, number("speed"), noise(matches)) {
                ("lie", Some(times), _) => Flaw::Boast { times },
                ("lie", None, Some(noise)) => Flaw::Noise(noise),
                ("lie", ..) => lie(),
                ("slow", ..) => slow(),
                ("wedge", ..) => Flaw::Wedged,
                _ => corrupt(),
            };
            network.spoil(asked_peer(matches), flaw).await.map_err(exit)?;
            format!("{} is broken until: tsnode testnet heal", asked_peer(matches))
        }
    };
    if is_set(matches, "json") {
        return print_json(&json!({ "done": done }));
    }
    say!("{done}");
    Ok(())
}

fn noise(matches: &ArgMatches) -> Option<Noise> {
    let asked = matches.try_get_one::<String>("gossip").ok().flatten()?;
    Noise::ALL.into_iter().find(|(name, _)| name == asked).map(|(_, noise)| noise)
}
