//! The wire, from outside: what each message looks like in bytes, and that no bytes at all do harm.

use crate::messages::*;
use proptest::prelude::*;
use tsnode_protocol::{
    EncodeEvent, Gossip, Invite, KvCodec, KvStream, PromptCodec, Sampled, Seconds, Signed,
    codec::{self, CodecError, Wire},
    kv::{KvAnswer, KvHeader, KvPart},
    limits,
    response_log::ResponseLogPart,
    ring::{RingFrame, RingHello},
    stream::{
        Computed, DecodeEvent, DecodeOrder, MEETING_ADDRESSES, Meeting, Opening, PrefillEvent, ProofAnswer, SeenAt,
        TrainSeen,
    },
    weights::{WeightsManifest, WeightsQuery},
};

const LIMIT: usize = 1 << 20;

fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(bytes)
}

/// The bytes each message had when the version was set. If this fails, either put the change back, or raise
/// `codec::VERSION` and run again with `TSNODE_WRITE_WIRE=1`, which writes the file anew.
#[test]
fn no_message_changes_its_bytes_within_a_version() {
    let now: String = messages().iter().map(|(name, bytes)| format!("{name}: {}\n", hex(bytes))).collect();
    let now = format!("version {}\n{now}", codec::VERSION);
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wire.txt");
    if std::env::var_os("TSNODE_WRITE_WIRE").is_some() {
        std::fs::write(&path, &now).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap();
    for (now, then) in now.lines().zip(committed.lines()) {
        assert_eq!(now, then);
    }
    assert_eq!(now.lines().count(), committed.lines().count());
}

/// Reads bytes as every kind of message; true where at least one reading was possible.
fn read_as_everything(bytes: &[u8]) -> bool {
    fn read<T: Wire>(bytes: &[u8]) -> bool {
        codec::decode::<T, LIMIT>(bytes).is_ok()
    }
    let gossip = codec::decode::<Gossip, LIMIT>(bytes).map(|m| m.check());
    let opening = codec::decode::<Opening, LIMIT>(bytes).map(|m| m.check());
    let ring = codec::decode::<RingFrame, LIMIT>(bytes).map(|m| m.check());
    let tile = codec::decode::<KvPart, LIMIT>(bytes).map(|m| if let KvPart::Tile(t) = m { t.check() } else { Ok(()) });
    let signed = Signed::<Gossip>::from_bytes(bytes).map(|s| s.verify(SWARM));
    let others = [
        read::<ProofAnswer>(bytes),
        read::<KvAnswer>(bytes),
        read::<TrainSeen>(bytes),
        read::<SeenAt>(bytes),
        read::<Meeting>(bytes),
        read::<DecodeOrder>(bytes),
        read::<DecodeEvent>(bytes),
        read::<PrefillEvent>(bytes),
        read::<Invite>(bytes),
        read::<EncodeEvent>(bytes),
        read::<WeightsManifest>(bytes),
        read::<WeightsQuery>(bytes),
    ];
    gossip.is_ok() || opening.is_ok() || ring.is_ok() || tile.is_ok() || signed.is_ok() || others.contains(&true)
}

#[test]
fn every_message_is_read_back() {
    for (name, message) in gossip() {
        assert_eq!(codec::decode::<Gossip, LIMIT>(&codec::encode(&message)), Ok(message.clone()), "{name}");
        assert_eq!(message.check(), Ok(()), "{name}");
    }
    for (name, message) in openings() {
        assert_eq!(codec::decode::<Opening, LIMIT>(&codec::encode(&message)), Ok(message.clone()), "{name}");
        assert_eq!(message.check(), Ok(()), "{name}");
    }
    for (name, message) in ring_frames() {
        assert_eq!(codec::decode::<RingFrame, LIMIT>(&codec::encode(&message)), Ok(message.clone()), "{name}");
        assert_eq!(message.check(), Ok(()), "{name}");
    }
    assert!(messages().iter().all(|(_, bytes)| read_as_everything(bytes)));
}

#[test]
fn cut_short_lengthened_or_of_another_version_nothing_is_read() {
    for (name, bytes) in messages() {
        for end in 0..bytes.len() {
            // A shorter message of another kind may be in there by chance; the message itself is not.
            let (cut, whole) = (&bytes[..end], hex(&bytes));
            if name.starts_with("gossip") {
                assert!(codec::decode::<Gossip, LIMIT>(cut).is_err(), "{name} cut at {end}: {whole}");
            }
            read_as_everything(cut);
        }
        let longer = [&bytes[..], &[0]].concat();
        let future = [&(codec::VERSION + 1).to_le_bytes()[..], &bytes[2..]].concat();
        if name.starts_with("gossip") {
            assert!(matches!(codec::decode::<Gossip, LIMIT>(&longer), Err(CodecError::Malformed(_))), "{name}");
        }
        assert!(!read_as_everything(&future), "{name} of a future version");
    }
}

#[test]
fn a_size_is_refused_before_memory_is_taken_for_it() {
    // A list that claims more than the limit allows, in a message of a few bytes.
    let claim = [&codec::VERSION.to_le_bytes()[..], &[1], &[8; 16], &[253], &u64::MAX.to_le_bytes()].concat();
    assert!(codec::decode::<Opening, LIMIT>(&claim).is_err());
    let large = vec![0; LIMIT + 1];
    assert_eq!(codec::decode::<Gossip, LIMIT>(&large), Err(CodecError::TooLarge { bytes: LIMIT + 1, limit: LIMIT }));
}

#[test]
fn openings_are_within_what_a_group_can_be() {
    let named = |name: &str| openings().into_iter().find(|(other, _)| *other == name).unwrap().1;
    let refused = |opening: Opening| assert!(opening.check().is_err(), "{opening:?}");
    let Opening::Kv(header) = named("opening kv") else { panic!("another opening") };
    refused(Opening::Kv(KvHeader { layers: layers(0, limits::LAYERS + 1), ..header }));
    refused(Opening::Kv(KvHeader { tokens: limits::SEQUENCE_TOKENS + 1, ..header }));
    refused(Opening::Kv(KvHeader { kv_stream: KvStream { index: 2, of: 2 }, ..header }));
    let Opening::Ring(hello) = named("opening ring") else { panic!("another opening") };
    refused(Opening::Ring(RingHello { position: 2, ..hello.clone() }));
    refused(Opening::Ring(RingHello { stages: vec![], position: 0, ..hello }));
    let Opening::Prefill(mut prefill) = named("opening prefill") else { panic!("another opening") };
    prefill.targets[0].addresses = vec!["10.0.0.1:7447".parse().unwrap(); limits::ADDRESSES + 1];
    refused(Opening::Prefill(prefill));
    let Opening::Meet(meeting) = named("opening meet") else { panic!("another opening") };
    refused(Opening::Meet(Meeting { addresses: vec![meeting.addresses[0]; MEETING_ADDRESSES + 1] }));
}

/// A token comes with no more alternatives than may be asked for, by whatever message it comes.
#[test]
fn answers_are_within_what_may_be_asked_for() {
    let of = |count: usize| Sampled { top: vec![sampled().top[0]; count], ..sampled() };
    let computed = Computed { queued: Seconds(0.25), took: Seconds(1.5) };
    let parts = |sampled: Sampled| {
        let (codec, tokens) = (PromptCodec::from(KvCodec::Int4), vec![sampled.clone()]);
        [
            DecodeEvent::Token { index: 4, sampled: sampled.clone() }.check(),
            PrefillEvent::First { sampled: sampled.clone(), computed, cached: 0 }.check(),
            RingFrame::Sampled { step: 1, tokens: vec![(REQUEST, sampled)] }.check(),
            ResponseLogPart { codec, holder: None, tokens }.check(),
        ]
    };
    assert!(parts(of(limits::TOP_LOGPROBS)).iter().all(Result::is_ok));
    assert!(parts(of(limits::TOP_LOGPROBS + 1)).iter().all(Result::is_err));

    let chosen = |count| RingFrame::Sampled { step: 1, tokens: vec![(REQUEST, of(0)); count] }.check();
    assert!(chosen(limits::CHOSEN).is_ok() && chosen(limits::CHOSEN + 1).is_err());
    let pieces = |count| DecodeEvent::KvArrived { after: Seconds(0.5), deliveries: vec![delivery(); count] }.check();
    let most = limits::STAGES * limits::STAGES;
    assert!(pieces(most).is_ok() && pieces(most + 1).is_err());
}

proptest! {
    #[test]
    fn no_bytes_do_harm(mut bytes in prop::collection::vec(any::<u8>(), 0..2048)) {
        read_as_everything(&bytes);
        // With the right version in front they get further.
        if let Some(version) = bytes.first_chunk_mut() {
            *version = codec::VERSION.to_le_bytes();
        }
        read_as_everything(&bytes);
    }

    #[test]
    fn no_bent_message_does_harm(which in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), to: u8) {
        let all = messages();
        let mut bytes = all[which.index(all.len())].1.clone();
        let place = at.index(bytes.len());
        bytes[place] = to;
        read_as_everything(&bytes);
    }
}
