//! Prompt flow 9: what ran where in one request, and where its client's time went.

use super::Slowest;
use crate::{Time, policy::routing::Overflow};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use tsnode_protocol::{Advert, KvCodec, ModelId, PeerId, RequestId, Seconds, Stage, kv::Delivery, stream::Computed};

/// What ran where in one request, with times and bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// The request that is told of.
    pub request: RequestId,
    /// The model that answered.
    pub model: ModelId,
    /// Peer that led the prefill that was used.
    pub prefill: PeerId,
    /// Peer that led the decoding.
    pub decode: PeerId,
    /// Stages of the group that computed the prompt, in order.
    #[serde(default)]
    pub prefill_stages: Vec<Stage>,
    /// Stages of the group that decoded, in order.
    #[serde(default)]
    pub decode_stages: Vec<Stage>,
    /// Why prefill ran where it ran: the cost gate's numbers, or the failure that moved it.
    pub reason: String,
    /// What the gate expected, where there were two ways.
    pub predicted: Option<Predicted>,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Of those, tokens that were not computed: another request had begun with them.
    pub cached_tokens: u32,
    /// Tokens of the answer.
    pub new_tokens: u32,
    /// What the prompt's KV went through, wherever it was computed: the answer's tokens rest on that.
    pub codec: KvCodec,
    /// So many of the prompt's first tokens another group computed, and the group that decoded the rest; none where one computed
    /// all of it.
    #[serde(default)]
    pub first_part: Option<u32>,
    /// Of which pool it found no room, so that one group computed and answered it; none where requests are not pooled.
    #[serde(default)]
    pub overflow: Option<Overflow>,
    /// Packing of the KV, where it crossed the network.
    pub kv_codec: Option<KvCodec>,
    /// KV payload that crossed the network (bytes).
    pub kv_bytes: u64,
    /// From submission to the first token (seconds).
    pub ttft: f64,
    /// From submission to the end (seconds).
    pub total: f64,
    /// What `total` would have been with nobody else there, by what the groups' devices were measured to take.
    #[serde(default)]
    pub alone: Option<Seconds>,
    /// Where `total` went.
    pub parts: LatencyBreakdown,
    /// KV that crossed the network, stream by stream: what each peer packed, sent and unpacked, hidden behind the prefill or
    /// not.
    pub deliveries: Vec<Delivery>,
    /// How often another group went on with it, and why.
    pub moves: Vec<Move>,
    /// The part that took longest, and what held it up most.
    #[serde(default)]
    pub slowest: Option<Slowest>,
    /// What people call the peers in it, by which they can be told apart.
    #[serde(default)]
    pub peers: BTreeMap<PeerId, String>,
}

impl Trace {
    /// What to call the peers in it: their names, with an end of their ids where two have the same one or one has none.
    #[must_use]
    pub fn names(&self, adverts: &BTreeMap<PeerId, Advert>) -> BTreeMap<PeerId, String> {
        let stages = self.prefill_stages.iter().chain(&self.decode_stages).map(|stage| stage.peer);
        let sent = self.deliveries.iter().flat_map(|d| [d.from, d.to]);
        let peers = stages.chain(sent).chain(self.moves.iter().map(|m| m.from)).chain([self.prefill, self.decode]);
        let peers: BTreeSet<PeerId> = peers.collect();
        let own = |peer: &PeerId| adverts.get(peer).map_or("", |advert| advert.name.as_str());
        let label = |peer: &PeerId| match own(peer) {
            "" => format!("…{}", peer.short()),
            name if peers.iter().any(|other| other != peer && own(other) == name) => {
                format!("{name} …{}", peer.short())
            }
            name => name.to_owned(),
        };
        peers.iter().map(|peer| (*peer, label(peer))).collect()
    }

    /// What to call one of its peers.
    #[must_use]
    pub fn name(&self, peer: PeerId) -> String {
        self.peers.get(&peer).cloned().unwrap_or_else(|| format!("…{}", peer.short()))
    }
}

/// Until a prompt's KV is where it is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Predicted {
    /// Computed elsewhere and sent.
    pub elsewhere: Seconds,
    /// Computed where it is decoded.
    pub here: Seconds,
}

/// A request goes on elsewhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Move {
    /// Whom it leaves: the leader of the group that decoded it.
    pub from: PeerId,
    /// Why it left, for people.
    pub reason: String,
    /// Tokens that its client had.
    pub answered: u32,
    /// Since submission (seconds).
    pub at: f64,
    /// How it went on; unknown until the group that goes on with it says what it has.
    #[serde(default)]
    pub way: Option<Resumption>,
}

/// How a request goes on elsewhere, by what the groups that do it say they have of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resumption {
    /// A prefill group has kept most of the prompt's KV, and sends it; the answer is computed behind it.
    Kept,
    /// The decode group has most of the prompt itself, from what it did before.
    Cached,
    /// Most of it is computed anew.
    Anew,
}

impl Resumption {
    /// Of a prompt of which so many tokens need not be computed: `there` if they are most.
    pub(super) fn of(there: Self, cached: u32, prompt: usize) -> Self {
        if cached as usize * 2 > prompt { there } else { Self::Anew }
    }
}

/// A request's time, cut where its gateway hears of the next thing: nothing is counted twice, and the sum is all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyBreakdown {
    /// For pages and for its turn, and on the way there.
    pub queue: Seconds,
    /// In steps of its prompt.
    pub prefill: Seconds,
    /// Packing that the prefill did not hide.
    pub pack: Seconds,
    /// Sending that the prefill did not hide.
    pub wire: Seconds,
    /// Unpacking after the last byte.
    pub unpack: Seconds,
    /// In steps of its answer.
    pub decode: Seconds,
    /// Between the loss of a group and the next token from another.
    pub recovery: Seconds,
}

impl LatencyBreakdown {
    /// All of it.
    #[must_use]
    pub fn sum(&self) -> Seconds {
        let Self { queue, prefill, pack, wire, unpack, decode, recovery } = *self;
        queue + prefill + pack + wire + unpack + decode + recovery
    }
}

/// Deliveries remembered of a request, over all its moves.
const DELIVERIES: usize = 1024;

/// When what happened to a request.
#[derive(Clone, Debug)]
pub(super) struct RequestTimeline {
    pub submitted: Time,
    /// Its client's first token.
    pub first: Option<Time>,
    computed: Computed,
    /// All KV was where it is decoded, for the first time.
    arrived: Option<Time>,
    pub deliveries: Vec<Delivery>,
    /// Its group is lost, and no other has given a token yet.
    lost: Option<Time>,
    recovery: Time,
}

impl RequestTimeline {
    pub fn new(submitted: Time) -> Self {
        let (computed, recovery) = (Computed::default(), Time::ZERO);
        Self { submitted, first: None, computed, arrived: None, deliveries: Vec::new(), lost: None, recovery }
    }

    /// The prompt was computed so; of what peers say only what can be.
    pub fn computed(&mut self, computed: Computed) {
        if self.first.is_none() && computed.queued.is_plausible() && computed.took.is_plausible() {
            self.computed = computed;
        }
    }

    /// All KV is where it is needed.
    pub fn arrived(&mut self, now: Time, deliveries: Vec<Delivery>) {
        let times = |d: &Delivery| [d.pack, d.pack_tail, d.wire, d.unpack, d.unpack_tail];
        self.arrived.get_or_insert(now);
        let plausible = deliveries.into_iter().filter(|d| times(d).iter().all(|t| t.is_plausible()));
        self.deliveries.extend(plausible.take(DELIVERIES - self.deliveries.len()));
    }

    /// Its client gets a token; whether it is the first.
    pub fn token(&mut self, now: Time) -> bool {
        if let Some(lost) = self.lost.take() {
            self.recovery += now.saturating_sub(lost);
        }
        let first = self.first.is_none();
        self.first.get_or_insert(now);
        first
    }

    /// The group that decodes it is lost.
    pub fn lost(&mut self, now: Time) {
        if self.first.is_some() {
            self.lost.get_or_insert(now);
        }
    }

    /// Seconds since submission.
    pub fn since(&self, at: Time) -> f64 {
        at.saturating_sub(self.submitted).as_secs_f64()
    }

    pub fn parts(&self, now: Time) -> LatencyBreakdown {
        let total = Seconds(self.since(now));
        let first = self.first.unwrap_or(now);
        let ttft = Seconds(self.since(first));
        let prefill = self.computed.took.min(ttft);
        let tail = |of: fn(&Delivery) -> Seconds| self.deliveries.iter().map(of).fold(Seconds(0.0), Seconds::max);
        let handed_over = self.arrived.map_or(Seconds(0.0), |at| Seconds(at.saturating_sub(first).as_secs_f64()));
        let unpack = tail(|d| d.unpack_tail).min(handed_over);
        let pack = tail(|d| d.pack_tail).min(handed_over - unpack);
        let recovery = Seconds(self.recovery.as_secs_f64());
        LatencyBreakdown {
            queue: ttft - prefill,
            prefill,
            pack,
            wire: handed_over - unpack - pack,
            unpack,
            decode: (total - ttft - handed_over - recovery).max(Seconds(0.0)),
            recovery,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    fn delivery() -> Delivery {
        Delivery {
            from: PeerId([1; 32]),
            to: PeerId([2; 32]),
            bytes: 1000,
            tiles: 4,
            streams: 1,
            pack: Seconds(0.08),
            pack_tail: Seconds(0.01),
            wire: Seconds(0.3),
            unpack: Seconds(0.05),
            unpack_tail: Seconds(0.005),
        }
    }

    fn close(found: Seconds, expected: f64) -> bool {
        (found.0 - expected).abs() < 1e-9
    }

    #[test]
    fn a_handed_over_request_is_cut_where_its_parts_meet() {
        let mut line = RequestTimeline::new(at(1000));
        line.computed(Computed { queued: Seconds(0.02), took: Seconds(0.4) });
        assert!(line.token(at(1500)));
        line.arrived(at(1600), vec![delivery()]);
        assert!(!line.token(at(1650)));
        let parts = line.parts(at(2000));
        assert!(close(parts.queue, 0.1) && close(parts.prefill, 0.4), "{parts:?}");
        assert!(close(parts.pack, 0.01) && close(parts.unpack, 0.005) && close(parts.wire, 0.085), "{parts:?}");
        assert!(close(parts.decode, 0.4) && close(parts.sum(), 1.0), "{parts:?}");
    }

    #[test]
    fn kv_that_was_there_before_the_first_token_costs_nothing() {
        let mut line = RequestTimeline::new(at(0));
        line.computed(Computed { queued: Seconds(0.0), took: Seconds(0.3) });
        line.arrived(at(290), vec![delivery()]);
        line.token(at(300));
        let parts = line.parts(at(400));
        assert!(close(parts.pack + parts.wire + parts.unpack, 0.0) && close(parts.decode, 0.1), "{parts:?}");
        assert!(close(parts.sum(), 0.4));
    }

    #[test]
    fn time_without_a_group_is_neither_waiting_nor_decoding() {
        let mut line = RequestTimeline::new(at(0));
        line.token(at(100));
        line.lost(at(200));
        line.lost(at(250));
        line.token(at(700));
        let parts = line.parts(at(1000));
        assert!(close(parts.recovery, 0.5) && close(parts.decode, 0.4) && close(parts.queue, 0.1), "{parts:?}");
    }

    #[test]
    fn what_cannot_be_is_not_counted() {
        let mut line = RequestTimeline::new(at(0));
        line.computed(Computed { queued: Seconds(0.0), took: Seconds(f64::NAN) });
        line.token(at(100));
        line.arrived(at(200), vec![Delivery { wire: Seconds(-1.0), ..delivery() }, delivery()]);
        assert_eq!(line.deliveries.len(), 1);
        (0..100).for_each(|_| line.arrived(at(200), vec![delivery(); 100]));
        assert_eq!(line.deliveries.len(), DELIVERIES);
        line.computed(Computed { queued: Seconds(0.0), took: Seconds(0.05) });
        let parts = line.parts(at(300));
        assert!(close(parts.prefill, 0.0) && close(parts.queue, 0.1) && close(parts.sum(), 0.3), "{parts:?}");
    }
}
