//! Which part of a request took longest, and what most likely held it up: a link, layers on a peer, or other work.

use super::Trace;
use crate::gate::PromptCost;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tsnode_protocol::{Advert, LayerProfile, LayerRange, ModelId, PeerId, Seconds, Stage, kv::Delivery};

/// What links and layers are known to take explains a step that took up to so many times as long.
const EXPLAINED: f64 = 2.0;

/// The part of a request that took longest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slowest {
    /// The part that took longest.
    pub part: LatencyPart,
    /// All of it.
    pub took: Seconds,
    /// What held it up most.
    pub cause: SlowCause,
}

/// Parts of a request's time, as `LatencyBreakdown` has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LatencyPart {
    /// For pages and for its turn.
    Queue,
    /// Steps of the prompt.
    Prefill,
    /// Packing of KV.
    Pack,
    /// KV on its way.
    Wire,
    /// Unpacking of KV.
    Unpack,
    /// Steps of the answer.
    Decode,
    /// From the loss of a group to the next token.
    Recovery,
}

/// What held a part up most. Of steps it is what links and layers were measured to take when nothing else was to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SlowCause {
    /// What was waited for at the leader of a group: pages, or a turn.
    Turn {
        /// The leader.
        at: PeerId,
    },
    /// The way from one stage to the next.
    Link {
        /// Whose activations or tokens.
        from: PeerId,
        /// Who waits for them.
        to: PeerId,
        /// One way, in each step.
        latency: Seconds,
    },
    /// Computing of a stage.
    Layers {
        /// Whose.
        peer: PeerId,
        /// Which.
        layers: LayerRange,
        /// In each step; unknown where that was not measured.
        each: Option<Seconds>,
    },
    /// More than links and layers take: the group had other work, or its peers do.
    Busy {
        /// Its leader.
        leader: PeerId,
        /// What one step took.
        step: Seconds,
        /// What its links and layers take.
        expected: Seconds,
    },
    /// KV of the slowest pair of peers.
    Kv {
        /// Who packed and sent it.
        from: PeerId,
        /// Who unpacked it.
        to: PeerId,
        /// Payload.
        bytes: u64,
        /// What that took, whether the prefill hid it or not.
        took: Seconds,
    },
    /// A group broke off.
    Lost {
        /// Its leader.
        leader: PeerId,
        /// Why.
        reason: String,
    },
}

/// The longest part of a request and its cause; none where no time passed.
pub(super) fn of(trace: &Trace, adverts: &BTreeMap<PeerId, Advert>) -> Option<Slowest> {
    let p = trace.parts;
    let parts = [
        (LatencyPart::Queue, p.queue),
        (LatencyPart::Prefill, p.prefill),
        (LatencyPart::Pack, p.pack),
        (LatencyPart::Wire, p.wire),
        (LatencyPart::Unpack, p.unpack),
        (LatencyPart::Decode, p.decode),
        (LatencyPart::Recovery, p.recovery),
    ];
    let (part, took) = parts.into_iter().filter(|(_, took)| took.0 > 0.0).max_by(|a, b| a.1.0.total_cmp(&b.1.0))?;
    let swarm = AdvertisedSwarm { adverts, model: trace.model };
    let cause = match part {
        LatencyPart::Queue => SlowCause::Turn { at: trace.decode },
        LatencyPart::Prefill => swarm.step(&trace.prefill_stages, trace.prefill, took, |profile, layers| {
            let new = trace.prompt_tokens.saturating_sub(trace.cached_tokens);
            PromptCost::measured(profile, layers.len()).of(new, trace.cached_tokens)
        }),
        LatencyPart::Decode => {
            let steps = f64::from(trace.new_tokens.saturating_sub(1).max(1));
            let context = f64::from(trace.prompt_tokens) + f64::from(trace.new_tokens) / 2.0;
            swarm.step(&trace.decode_stages, trace.decode, Seconds(took.0 / steps), |profile, layers| {
                let [fixed, each, sequence] = profile.decode;
                Seconds((fixed + each * context + sequence) * f64::from(layers.len()))
            })
        }
        LatencyPart::Pack => kv(trace, |d| d.pack)?,
        LatencyPart::Wire => kv(trace, |d| d.wire)?,
        LatencyPart::Unpack => kv(trace, |d| d.unpack)?,
        LatencyPart::Recovery => {
            let last = trace.moves.last()?;
            SlowCause::Lost { leader: last.from, reason: last.reason.clone() }
        }
    };
    Some(Slowest { part, took, cause })
}

/// The pair of peers whose KV took longest there.
fn kv(trace: &Trace, time: fn(&Delivery) -> Seconds) -> Option<SlowCause> {
    let slowest = trace.deliveries.iter().max_by(|a, b| time(a).0.total_cmp(&time(b).0))?;
    let Delivery { from, to, bytes, .. } = *slowest;
    Some(SlowCause::Kv { from, to, bytes, took: time(slowest) })
}

/// What adverts say of a model's devices and links.
struct AdvertisedSwarm<'a> {
    adverts: &'a BTreeMap<PeerId, Advert>,
    model: ModelId,
}

impl AdvertisedSwarm<'_> {
    /// What held up one step round a group's stages.
    fn step(
        &self,
        stages: &[Stage],
        leader: PeerId,
        took: Seconds,
        cost: impl Fn(&LayerProfile, LayerRange) -> Seconds,
    ) -> SlowCause {
        let computing = |stage: &Stage| {
            let each = self.profile(stage).map(|profile| cost(profile, stage.layers));
            SlowCause::Layers { peer: stage.peer, layers: stage.layers, each }
        };
        let onward = stages.iter().zip(stages.iter().cycle().skip(1)).filter(|(a, b)| a.peer != b.peer);
        let link = |(a, b): (&Stage, &Stage)| {
            let latency = self.latency(a.peer, b.peer)?;
            Some(SlowCause::Link { from: a.peer, to: b.peer, latency })
        };
        let causes: Vec<SlowCause> = stages.iter().map(computing).chain(onward.filter_map(link)).collect();
        let expected: f64 = causes.iter().map(weight).sum();
        if expected > 0.0 && took.0 > expected * EXPLAINED {
            return SlowCause::Busy { leader, step: took, expected: Seconds(expected) };
        }
        let most = causes.into_iter().max_by(|a, b| weight(a).total_cmp(&weight(b)));
        most.unwrap_or(SlowCause::Turn { at: leader })
    }

    fn profile(&self, stage: &Stage) -> Option<&LayerProfile> {
        self.adverts.get(&stage.peer)?.devices.get(usize::from(stage.device))?.profile(self.model)
    }

    /// As either end measured it.
    fn latency(&self, from: PeerId, to: PeerId) -> Option<Seconds> {
        let seen = |at: PeerId, other: PeerId| self.adverts.get(&at)?.links.iter().find(|link| link.to == other);
        seen(from, to).or_else(|| seen(to, from)).map(|link| link.latency)
    }
}

/// What it takes in each step (s).
fn weight(cause: &SlowCause) -> f64 {
    match cause {
        SlowCause::Link { latency, .. } => latency.0,
        SlowCause::Layers { each, .. } => each.map_or(0.0, |each| each.0),
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        gateway::{LatencyBreakdown, Move},
        sample,
    };
    use tsnode_protocol::{BytesPerSecond, KvCodec, Link, PathKind, RequestId};

    const MODEL: ModelId = ModelId([1; 16]);

    fn peer(n: u8) -> PeerId {
        PeerId([n; 32])
    }

    fn stage(n: u8, start: u32, end: u32) -> Stage {
        Stage { peer: peer(n), device: 0, layers: LayerRange { start, end } }
    }

    /// A peer of this name whose layers take 1 ms a step, and whose links take so many milliseconds.
    fn advert(name: &str, links: &[(u8, f64)]) -> Advert {
        let link = |(to, ms): &(u8, f64)| Link {
            to: peer(*to),
            latency: Seconds(ms * 1e-3),
            bandwidth: BytesPerSecond(1e6),
            path: PathKind::Direct,
        };
        let links = links.iter().map(link).collect();
        Advert { name: name.into(), links, ..sample::measured(0, [0.0, 1e-3, 0.0], [1e-3, 0.0, 0.0]) }
    }

    fn trace(parts: LatencyBreakdown) -> Trace {
        Trace {
            request: RequestId([1; 16]),
            model: MODEL,
            prefill: peer(1),
            decode: peer(2),
            prefill_stages: vec![stage(1, 0, 4)],
            decode_stages: vec![stage(2, 0, 2), stage(3, 2, 4)],
            reason: String::new(),
            predicted: None,
            prompt_tokens: 8,
            cached_tokens: 0,
            new_tokens: 11,
            codec: KvCodec::Raw,
            first_part: None,
            overflow: None,
            kv_codec: None,
            kv_bytes: 0,
            ttft: 0.1,
            total: 1.0,
            alone: None,
            parts,
            deliveries: vec![],
            moves: vec![],
            slowest: None,
            peers: BTreeMap::new(),
        }
    }

    fn adverts() -> BTreeMap<PeerId, Advert> {
        let peers = [(1, advert("peer1", &[])), (2, advert("peer2", &[(3, 40.0)])), (3, advert("peer3", &[(2, 3.0)]))];
        peers.into_iter().map(|(n, advert)| (peer(n), advert)).collect()
    }

    #[test]
    fn the_slowest_link_of_a_ring_is_named_with_what_it_takes() {
        let parts = LatencyBreakdown { decode: Seconds(0.5), prefill: Seconds(0.1), ..LatencyBreakdown::default() };
        let slowest = of(&trace(parts), &adverts()).unwrap();
        let cause = SlowCause::Link { from: peer(2), to: peer(3), latency: Seconds(0.04) };
        assert_eq!(slowest, Slowest { part: LatencyPart::Decode, took: Seconds(0.5), cause });
    }

    #[test]
    fn where_links_are_short_the_layers_that_take_longest_are_named() {
        let parts = LatencyBreakdown { prefill: Seconds(0.04), ..LatencyBreakdown::default() };
        let slowest = of(&trace(parts), &adverts()).unwrap();
        let SlowCause::Layers { peer: whose, layers, each: Some(each) } = slowest.cause else { panic!("{slowest:?}") };
        assert_eq!((slowest.part, whose, layers), (LatencyPart::Prefill, peer(1), LayerRange { start: 0, end: 4 }));
        assert!((each.0 - 0.032).abs() < 1e-9, "four layers, eight tokens, a millisecond each: {each:?}");
    }

    #[test]
    fn no_link_is_blamed_for_what_links_and_layers_do_not_explain() {
        let parts = LatencyBreakdown { decode: Seconds(5.0), ..LatencyBreakdown::default() };
        let slowest = of(&trace(parts), &adverts()).unwrap();
        let SlowCause::Busy { leader, step, expected } = slowest.cause else { panic!("{slowest:?}") };
        assert_eq!((leader, step), (peer(2), Seconds(0.5)));
        assert!((expected.0 - 0.047).abs() < 1e-9, "43 ms of links, four layers: {expected:?}");
    }

    #[test]
    fn what_nobody_measured_is_put_down_to_nobody_s_link() {
        let parts = LatencyBreakdown { decode: Seconds(0.5), ..LatencyBreakdown::default() };
        let slowest = of(&trace(parts), &BTreeMap::new()).unwrap();
        assert!(matches!(slowest.cause, SlowCause::Layers { each: None, .. }), "{slowest:?}");
        assert_eq!(of(&trace(LatencyBreakdown::default()), &adverts()), None);
    }

    #[test]
    fn a_kv_transfer_is_as_slow_as_its_slowest_pair_and_a_recovery_has_its_reason() {
        let delivery = |to: u8, wire: f64| Delivery {
            from: peer(1),
            to: peer(to),
            bytes: 1000,
            tiles: 1,
            streams: 1,
            pack: Seconds(0.0),
            pack_tail: Seconds(0.0),
            wire: Seconds(wire),
            unpack: Seconds(0.0),
            unpack_tail: Seconds(0.0),
        };
        let sent = Trace {
            deliveries: vec![delivery(2, 0.1), delivery(3, 0.3)],
            ..trace(LatencyBreakdown { wire: Seconds(0.3), ..LatencyBreakdown::default() })
        };
        let cause = SlowCause::Kv { from: peer(1), to: peer(3), bytes: 1000, took: Seconds(0.3) };
        assert_eq!(of(&sent, &adverts()).unwrap().cause, cause);
        let left = Move { from: peer(3), reason: "gone".into(), answered: 3, at: 0.1, way: None };
        let moved = Trace {
            moves: vec![left],
            ..trace(LatencyBreakdown { recovery: Seconds(0.3), ..LatencyBreakdown::default() })
        };
        let cause = SlowCause::Lost { leader: peer(3), reason: "gone".into() };
        assert_eq!(of(&moved, &adverts()).unwrap().cause, cause);
    }

    #[test]
    fn peers_of_one_name_are_told_apart_and_others_are_called_by_it() {
        let mut adverts = adverts();
        adverts.insert(peer(3), advert("peer2", &[]));
        adverts.remove(&peer(1));
        let names = trace(LatencyBreakdown::default()).names(&adverts);
        let end = |n: u8| format!("…{}", peer(n).short());
        let expected = [end(1), format!("peer2 {}", end(2)), format!("peer2 {}", end(3))];
        assert_eq!(names.into_values().collect::<Vec<_>>(), expected);
    }
}
