//! Valid bytes to begin with: the committed bytes of every message, each read in its own way.

use crate::fuzzing::{CONTROL, DATA, SWARM, addressed};
use ed25519_dalek::SigningKey;
use std::path::Path;
use tsnode_protocol::{
    BytesPerSecond, Gossip, GroupId, Heartbeat, Invite, InviteId, KvCodec, ModelId, PeerId, RequestId, Sampled, Secret,
    Signed, SwarmId, Ticket, Token, codec, ledger,
    response_log::{Fingerprint, Record, ResponseLogHead, ResponseLogPart},
    ring::RingFrame,
    stream::{Meeting, Opening, SeenAt, TrainSeen},
};

/// How a message of the committed bytes is read; none where the same bytes come in another way below.
fn reading(name: &str) -> Option<&'static str> {
    Some(match name.split_once(' ').map_or(name, |(first, _)| first) {
        "gossip" => "gossip",
        "envelope" => "envelope",
        "opening" => "opening",
        "ring" => "ring",
        "proof" => "proof",
        "order" => "decode order",
        "decode" => "decode event",
        "prefill" => "prefill event",
        "encoded" | "encoding" => "encode event",
        "weights" if name == "weights manifest" => "weights manifest",
        "weights" => "weights query",
        "kv" if matches!(name, "kv tile" | "kv end") => "kv part",
        "kv" => "kv answer",
        _ => return None,
    })
}

/// Every committed message with the name of its reading.
fn committed() -> Vec<(&'static str, Vec<u8>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wire.txt");
    let text = std::fs::read_to_string(path).unwrap();
    let one = |line: &str| {
        let (name, hex) = line.split_once(": ")?;
        Some((reading(name)?, data_encoding::HEXLOWER.decode(hex.as_bytes()).unwrap()))
    };
    text.lines().filter_map(one).collect()
}

fn written() -> Vec<(&'static str, Vec<u8>)> {
    let address = "/ip4/192.0.2.1/udp/7447/quic-v1/p2p/12D3KooW".to_owned();
    let invite = Invite {
        swarm: SwarmId([3; 16]),
        ticket: Some(Ticket { id: InviteId([4; 8]), secret: Secret([5; 32]), expires: 1_800_000_000 }),
        addresses: vec![address],
    };
    let names = [PeerId([7; 32]).to_string(), RequestId([9; 16]).to_string(), ModelId([1; 16]).to_string()];
    let head = ResponseLogHead { request: RequestId([9; 16]), asked: Fingerprint([4; 32]) };
    let sampled = Sampled { token: Token(300), logprob: Some(-0.5), top: vec![] };
    let part = ResponseLogPart { codec: KvCodec::Int4.into(), holder: Some(GroupId([7; 8])), tokens: vec![sampled; 3] };
    let record =
        Record::Part { request: head.request, gateway: PeerId([6; 32]), from: 5, part: part.clone(), at: 1 << 31 };
    let mut ledger = ledger::HEADER.to_vec();
    [&b"a"[..], &codec::encode(&record), b""]
        .into_iter()
        .for_each(|payload| ledger::push(&mut ledger, payload).unwrap());
    let heartbeat = Gossip::Heartbeat(Heartbeat::default());
    let sealed = Signed::seal(&SigningKey::from_bytes(&[2; 32]), SWARM, 70_000, &heartbeat);
    let addresses = ["192.0.2.1:7448", "[2001:db8::1]:7448"].map(|address| address.parse().unwrap());
    let mut all = vec![
        ("invite", invite.to_string().into_bytes()),
        ("response log head", codec::encode(&head)),
        ("response log part", codec::encode(&part)),
        ("opening", codec::encode(&Opening::ResponseLog(head))),
        ("opening", codec::encode(&Opening::Recall(head))),
        ("ring", codec::encode(&RingFrame::FakeQuantise { request: head.request, tokens: 64, codec: KvCodec::Int8 })),
        ("record", codec::encode(&record)),
        ("ledger", ledger),
        ("train seen", codec::encode(&TrainSeen { rate: Some(BytesPerSecond(1.25e8)) })),
        ("seen at", codec::encode(&SeenAt { address: Some(addresses[0]) })),
        ("meeting", codec::encode(&Meeting { addresses: addresses.to_vec() })),
        ("frame", vec![0, 1, 0, 0]),
        ("envelope", sealed.to_bytes()),
    ];
    all.extend(names.map(|name| ("names", name.into_bytes())));
    all
}

/// What [`super::control`] and [`super::data`] can begin with.
pub fn examples() -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut control, mut data) = (Vec::new(), Vec::new());
    for (name, bytes) in committed().into_iter().chain(written()) {
        let of_control = CONTROL.iter().any(|(other, _)| *other == name);
        let (to, readings) = if of_control { (&mut control, &CONTROL[..]) } else { (&mut data, &DATA[..]) };
        to.push(addressed(readings, name, &bytes));
    }
    (control, data)
}
