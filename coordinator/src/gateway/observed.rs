//! How fast peers were seen to pack and unpack KV: what the gate counts with, once something is known.

use crate::gate;
use std::collections::BTreeMap;
use tsnode_protocol::{BytesPerSecond, Group, KvCodec, ModelShape, PeerId, kv::Delivery};

/// Weight of a new observation.
const NEW: f64 = 0.3;
/// A delivery of less says more about clocks than about rates (bytes of 16-bit numbers).
const LEAST: f64 = 65_536.0;

/// What a peer does with KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CodecWork {
    Pack,
    Unpack,
}

/// Rates of packing and unpacking, bytes a second of the numbers as they lie in pages.
#[derive(Debug, Default)]
pub(super) struct Observed(BTreeMap<(PeerId, u8, CodecWork), f64>);

impl Observed {
    /// A prompt's KV has come so, packed by `codec`.
    pub fn note(&mut self, deliveries: &[Delivery], codec: KvCodec, shape: &ModelShape, element_bytes: u64) {
        let part = |c| gate::kv_bytes(shape, 1, c, element_bytes) as f64;
        let widening = part(KvCodec::Raw) / part(codec).max(1.0);
        for d in deliveries {
            let bytes = d.bytes as f64 * widening;
            for (peer, work, took) in [(d.from, CodecWork::Pack, d.pack), (d.to, CodecWork::Unpack, d.unpack)] {
                if bytes >= LEAST && took.is_plausible() && took.0 > 0.0 {
                    let rate = bytes / took.0;
                    let known = self.0.entry((peer, codec as u8, work)).or_insert(rate);
                    *known += NEW * (rate - *known);
                }
            }
        }
    }

    /// What the stages of a group pack together; none where one of them has not been seen.
    pub fn packs(&self, group: &Group, codec: KvCodec) -> Option<BytesPerSecond> {
        self.together(group, codec, CodecWork::Pack)
    }

    /// The same of unpacking.
    pub fn unpacks(&self, group: &Group, codec: KvCodec) -> Option<BytesPerSecond> {
        self.together(group, codec, CodecWork::Unpack)
    }

    fn together(&self, group: &Group, codec: KvCodec, work: CodecWork) -> Option<BytesPerSecond> {
        let rates = group.stages.iter().map(|s| self.0.get(&(s.peer, codec as u8, work)).copied());
        rates.sum::<Option<f64>>().map(BytesPerSecond)
    }

    /// Of peers that are still there.
    pub fn retain(&mut self, there: impl Fn(&PeerId) -> bool) {
        self.0.retain(|(peer, ..), _| there(peer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_protocol::{LayerRange, ModelId, Phase, Seconds, Stage};

    const SHAPE: ModelShape = ModelShape {
        layers: 4,
        hidden: 128,
        intermediate: 256,
        heads: 4,
        kv_heads: 4,
        head_dim: 32,
        vocab: 100,
        context: 1024,
        layer_bytes: 1,
        embed_bytes: 1,
        head_bytes: 1,
        experts: None,
        whole: false,
        state_bytes: 0,
    };

    fn delivery(from: u8, bytes: u64, pack: f64) -> Delivery {
        let none = Seconds(0.0);
        Delivery {
            from: PeerId([from; 32]),
            to: PeerId([9; 32]),
            bytes,
            tiles: 1,
            streams: 1,
            pack: Seconds(pack),
            pack_tail: none,
            wire: none,
            unpack: Seconds(0.1),
            unpack_tail: none,
        }
    }

    fn group(peers: &[u8]) -> Group {
        let stage = |n: &u8| Stage { peer: PeerId([*n; 32]), device: 0, layers: LayerRange { start: 0, end: 1 } };
        Group::new(ModelId([1; 16]), Phase::Prefill, peers.iter().map(stage).collect())
    }

    #[test]
    fn rates_are_of_numbers_as_they_lie_in_pages_and_stages_work_side_by_side() {
        let mut seen = Observed::default();
        let both = [delivery(1, 1 << 20, 0.01), delivery(2, 1 << 20, 0.02)];
        seen.note(&both, KvCodec::Raw, &SHAPE, 2);
        let mb = f64::from(1 << 20);
        let rate = |peers: &[u8]| seen.packs(&group(peers), KvCodec::Raw).map(|r| (r.0 / mb).round());
        assert_eq!((rate(&[1]), rate(&[2]), rate(&[1, 2])), (Some(100.0), Some(50.0), Some(150.0)));
        assert_eq!((rate(&[1, 3]), seen.packs(&group(&[1]), KvCodec::Int4)), (None, None));
        // Packed to about a quarter, the same bytes were four times as many numbers.
        seen.note(&both, KvCodec::Int4, &SHAPE, 2);
        let packed = seen.packs(&group(&[1]), KvCodec::Int4).unwrap().0 / mb;
        assert!((370.0..380.0).contains(&packed), "{packed}");
    }

    #[test]
    fn one_odd_delivery_is_a_part_of_what_is_believed() {
        let mut seen = Observed::default();
        seen.note(&[delivery(1, 1 << 20, 0.01)], KvCodec::Raw, &SHAPE, 2);
        for odd in [delivery(1, 100, 9.0), delivery(1, 1 << 20, f64::NAN), delivery(1, 1 << 20, 0.0)] {
            seen.note(&[odd], KvCodec::Raw, &SHAPE, 2);
        }
        let rate = |seen: &Observed| seen.packs(&group(&[1]), KvCodec::Raw).unwrap().0 / f64::from(1 << 20);
        assert_eq!(rate(&seen).round(), 100.0);
        seen.note(&[delivery(1, 1 << 20, 0.02)], KvCodec::Raw, &SHAPE, 2);
        assert_eq!(rate(&seen).round(), 85.0);
        seen.retain(|_| false);
        assert_eq!(seen.packs(&group(&[1]), KvCodec::Raw), None);
    }
}
