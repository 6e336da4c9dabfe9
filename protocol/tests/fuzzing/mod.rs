//! What fuzz targets do with bytes: [`control`] reads them as what peers gossip and people type, [`data`] as what a data
//! stream carries. `protocol/fuzz` runs both for as long as one likes, `tests/fuzzed.rs` some thousand times.
//!
//! Whatever is read must be what its sender wrote and nothing else: its encoding is the bytes it was read from.

#![expect(clippy::unwrap_used, reason = "a fuzz target says what is wrong by failing")]

use ed25519_dalek::SigningKey;
use std::fmt::{Debug, Display};
use std::str::FromStr;
use tsnode_protocol::{
    EncodeEvent, Gossip, GroupId, Invite, KvCodec, LayerRange, ModelCard, ModelId, PeerId, Plan, PlanId, RequestId,
    RingId, Signed, SwarmId,
    codec::{self, Wire},
    kv::{KvAnswer, KvPart},
    ledger, limits,
    proof::Code,
    response_log::{Fingerprint, Record, ResponseLogHead, ResponseLogPart},
    ring::RingFrame,
    stream::{self, DecodeEvent, DecodeOrder, Meeting, Opening, PrefillEvent, ProofAnswer, SeenAt, TrainSeen},
    weights::{self, WeightsManifest, WeightsQuery},
};

/// The swarm of the examples.
pub const SWARM: SwarmId = SwarmId([7; 16]);

/// A way to read bytes, and what it is called. Says whether something was in them.
pub type Reading = (&'static str, fn(&[u8]) -> bool);

/// What comes over the control plane, or out of somebody's mail.
pub const CONTROL: [Reading; 4] = [("envelope", envelope), ("gossip", gossip), ("invite", invite), ("names", names)];
/// What comes over a data stream, or out of a ledger on a disk.
pub const DATA: [Reading; 19] = [
    ("opening", opening),
    ("ring", ring),
    ("kv part", kv_part),
    ("kv answer", frame::<KvAnswer>),
    ("decode event", frame::<DecodeEvent>),
    ("decode order", frame::<DecodeOrder>),
    ("prefill event", frame::<PrefillEvent>),
    ("proof", proof),
    ("response log head", frame::<ResponseLogHead>),
    ("response log part", response_log_part),
    ("frame", frame_header),
    ("record", frame::<Record>),
    ("ledger", ledger),
    ("train seen", frame::<TrainSeen>),
    ("seen at", frame::<SeenAt>),
    ("meeting", meeting),
    ("encode event", frame::<EncodeEvent>),
    ("weights manifest", weights_manifest),
    ("weights query", frame::<WeightsQuery>),
];

/// Reads all bytes but the first, in the way that one stands for. Says whether something was in them.
pub fn control(bytes: &[u8]) -> bool {
    choose(&CONTROL, bytes)
}

/// The same for data streams.
pub fn data(bytes: &[u8]) -> bool {
    choose(&DATA, bytes)
}

fn choose(readings: &[Reading], bytes: &[u8]) -> bool {
    bytes.split_first().is_some_and(|(first, rest)| readings[usize::from(*first) % readings.len()].1(rest))
}

/// Bytes for [`control`] or [`data`] that are read in the way of that name.
pub fn addressed(readings: &[Reading], name: &str, bytes: &[u8]) -> Vec<u8> {
    let place = readings.iter().position(|(other, _)| *other == name).unwrap();
    [&[place as u8], bytes].concat()
}

fn same_bytes<T: Wire + Debug>(message: &T, bytes: &[u8]) {
    assert!(codec::encode(message) == bytes, "there are two encodings of {message:?}");
}

/// Reads a message of a data stream.
fn read<T: Wire + Debug>(bytes: &[u8]) -> Option<T> {
    let message = stream::decode_frame(bytes).ok()?;
    same_bytes(&message, bytes);
    Some(message)
}

fn frame<T: Wire + Debug>(bytes: &[u8]) -> bool {
    read::<T>(bytes).is_some()
}

fn weights_manifest(bytes: &[u8]) -> bool {
    let Some(manifest) = read::<WeightsManifest>(bytes).filter(|manifest| manifest.check().is_ok()) else {
        return false;
    };
    assert!(manifest.files.iter().all(|file| weights::chunks(file.bytes) * 32 <= limits::FRAME_BYTES as u64));
    manifest.bytes() > 0 && manifest.id(&[], None) == manifest.clone().id(&[], None)
}

fn envelope(bytes: &[u8]) -> bool {
    let Ok(signed) = Signed::<Gossip>::from_bytes(bytes) else { return false };
    same_bytes(&signed, bytes);
    let Ok(verified) = signed.verify(SWARM) else { return false };
    understand(verified.message());
    verified.into_parts().1.to_bytes() == bytes
}

/// A message as one who may sign would have it: gets past the signature, with one bit changed it does not.
fn gossip(bytes: &[u8]) -> bool {
    let Ok(message) = codec::decode::<Gossip, { limits::GOSSIP_BYTES }>(bytes) else { return false };
    same_bytes(&message, bytes);
    if message.check().is_err() {
        return false;
    }
    understand(&message);
    let sealed = Signed::seal(&SigningKey::from_bytes(&[1; 32]), SWARM, 3, &message).to_bytes();
    if sealed.len() > limits::GOSSIP_BYTES {
        return false;
    }
    let verified = Signed::<Gossip>::from_bytes(&sealed).unwrap().verify(SWARM).unwrap();
    same_bytes(verified.message(), bytes);
    // Which bit follows from the content, so that what is found can be found again.
    let bit = bytes.iter().fold(0, |sum: usize, byte| sum.wrapping_mul(31).wrapping_add((*byte).into()));
    let (mut bent, bit) = (sealed.clone(), bit % (8 * sealed.len()));
    bent[bit / 8] ^= 1 << (bit % 8);
    let read = Signed::<Gossip>::from_bytes(&bent).map(|signed| signed.verify(SWARM));
    assert!(!matches!(read, Ok(Ok(_))), "bit {bit} went unnoticed");
    true
}

/// What is asked of a message that passed its checks.
fn understand(message: &Gossip) {
    match message {
        Gossip::Advert(advert) => advert.models.iter().for_each(model),
        Gossip::Plan(plan) => understand_plan(plan),
        Gossip::Certificate(certificate) => {
            for signed in [&certificate.plan].into_iter().chain(&certificate.endorsements) {
                // Envelopes do not nest deeper: what is inside one is judged like any other.
                let _ = signed.clone().verify(SWARM).map(|verified| verified.message().kind());
            }
        }
        Gossip::Call(call) => {
            assert!((1..=limits::PEERS).contains(&call.peers.len()));
            assert!(call.peers.iter().all(|missed| missed.peer.range().start() <= missed.peer.range().end()));
        }
        Gossip::LivenessDigest(roll) => assert!(roll.present.len() <= limits::PEERS),
        Gossip::Heartbeat(_) | Gossip::Endorsement(_) => {}
    }
}

fn model(card: &ModelCard) {
    let shape = card.shape;
    assert!(shape.stage_bytes(shape.all_layers()) >= shape.stage_bytes(LayerRange { start: 1, end: 1 }));
    assert!(shape.kv_elements_per_token_layer() > 0);
}

fn understand_plan(plan: &Plan) {
    assert_eq!(plan.id(), plan.clone().id());
    assert!(plan.groups.iter().all(|group| group.leader().is_some() && plan.group(group.id).is_some()));
    assert!(plan.routes.iter().all(|route| plan.group(route.prefill).is_some() && plan.group(route.decode).is_some()));
    assert!(plan.peers().len() <= limits::GROUPS * limits::STAGES);
}

fn invite(bytes: &[u8]) -> bool {
    let Some(invite) = parsed::<Invite>(bytes) else { return false };
    let written = String::from_utf8_lossy(bytes).trim().to_lowercase();
    assert_eq!(invite.to_string(), written, "there are two ways to write {invite:?}");
    true
}

/// Names as clients and files write them.
fn names(bytes: &[u8]) -> bool {
    fn name<T: FromStr + Display + PartialEq>(bytes: &[u8]) -> bool {
        let Some(name) = parsed::<T>(bytes) else { return false };
        assert!(name.to_string().parse::<T>().is_ok_and(|again| again == name), "{name} is not read back");
        true
    }
    let kinds = [
        name::<PeerId>,
        name::<SwarmId>,
        name::<RequestId>,
        name::<ModelId>,
        name::<GroupId>,
        name::<PlanId>,
        name::<RingId>,
    ];
    kinds.iter().any(|name| name(bytes))
}

fn parsed<T: FromStr>(bytes: &[u8]) -> Option<T> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

fn opening(bytes: &[u8]) -> bool {
    let Some(opening) = read::<Opening>(bytes).filter(|opening| opening.check().is_ok()) else { return false };
    match opening {
        Opening::Decode(asked) => drop(Fingerprint::of(ModelId([5; 16]), &asked.prompt, &asked.generation)),
        Opening::Kv(header) => assert!(header.layers.end <= limits::LAYERS && header.tokens <= limits::SEQUENCE_TOKENS),
        Opening::Ring(hello) => assert!(usize::from(hello.position) < hello.stages.len()),
        _ => {}
    }
    true
}

fn meeting(bytes: &[u8]) -> bool {
    let met = read::<Meeting>(bytes).filter(|meeting| meeting.check().is_ok());
    met.is_some_and(|meeting| meeting.addresses.len() <= stream::MEETING_ADDRESSES)
}

fn ring(bytes: &[u8]) -> bool {
    let Some(frame) = read::<RingFrame>(bytes).filter(|frame| frame.check().is_ok()) else { return false };
    if let RingFrame::Step(step) = frame {
        assert!(step.entries.iter().all(|entry| entry.start.checked_add(entry.tokens.len() as u32).is_some()));
    }
    true
}

fn kv_part(bytes: &[u8]) -> bool {
    match read::<KvPart>(bytes) {
        Some(KvPart::Tile(tile)) if tile.check().is_ok() => {
            assert!(tile.heads() > 0 && tile.tokens() > 0 && tile.bytes as usize <= limits::TILE_BYTES);
            for codec in [KvCodec::Raw, KvCodec::Int3, KvCodec::Int4, KvCodec::Int8] {
                assert!(codec.tile_end(tile.token_start, tile.token_end) <= tile.token_end);
            }
            true
        }
        Some(KvPart::End(..)) => true,
        _ => false,
    }
}

fn proof(bytes: &[u8]) -> bool {
    frame::<ProofAnswer>(bytes) || frame::<Code>(bytes)
}

fn response_log_part(bytes: &[u8]) -> bool {
    read::<ResponseLogPart>(bytes).is_some_and(|part| part.check().is_ok())
}

/// All bytes are accounted for; what is whole is found again in what is written of it.
fn ledger(bytes: &[u8]) -> bool {
    let Ok(contents) = ledger::read(bytes) else { return false };
    assert!(contents.end <= bytes.len() && contents.damaged <= bytes.len());
    let mut whole = ledger::HEADER.to_vec();
    contents.records.iter().for_each(|payload| ledger::push(&mut whole, payload).unwrap());
    let again = ledger::read(&whole).unwrap();
    assert_eq!((again.records, again.end, again.damaged), (contents.records.clone(), whole.len(), 0));
    !contents.records.is_empty()
}

fn frame_header(bytes: &[u8]) -> bool {
    let Some(header) = bytes.first_chunk() else { return false };
    let announced =
        [limits::FRAME_BYTES, limits::TILE_BYTES, limits::ACTIVATION_BYTES, limits::MODEL_FILE_BYTES].map(|limit| {
            let length = stream::frame_length(*header, limit);
            assert!(length.is_err() || length.as_ref().is_ok_and(|length| *length <= limit));
            length.is_ok_and(|length| stream::frame_header(length, limit) == Ok(*header))
        });
    announced.contains(&true)
}
