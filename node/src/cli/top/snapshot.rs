//! What `tsnode top` knows of a swarm at one moment: all that a frame is made of.

use crate::view::{PeerView, SwarmView};
use serde::Deserialize;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tsnode_protocol::{ModelId, PeerId, RequestId};

/// Ended requests that are shown; peers remember more.
const ENDED: usize = 64;
/// How long a peer is shown that has gone without a word, and how many of these.
const GONE_FOR: Duration = Duration::from_secs(60);
const GONE: usize = 64;

/// A peer's view, its requests, and how it is asked.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Snapshot {
    pub view: SwarmView,
    pub running: Vec<RunningRequest>,
    /// Newest first.
    pub ended: VecDeque<EndedView>,
    pub feed: Feed,
    /// When anything of it was last told.
    pub heard: Instant,
    /// Peers that the swarm has given up while this looked on, and when: they did not say that they leave.
    pub gone: Vec<(PeerView, Instant)>,
}

/// How the peer is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Feed {
    /// It was asked, and is not asked again.
    Once,
    /// It tells what changes.
    Live,
    /// It is asked now and then: why.
    Polled { why: String },
    /// It does not answer: why. It is asked again.
    Lost { why: String },
}

/// A request under way. What a peer of an earlier version leaves out is not known.
#[derive(Clone, Debug, Deserialize)]
pub(in crate::cli) struct RunningRequest {
    pub request: RequestId,
    pub model: String,
    pub seconds: u64,
    #[serde(default)]
    pub stage: String,
    pub prompt_tokens: Option<u32>,
    pub new_tokens: Option<u32>,
    pub prefill: Option<PeerId>,
    pub decode: Option<PeerId>,
}

/// A request that has ended.
#[derive(Clone, Debug, Deserialize)]
pub(in crate::cli) struct EndedView {
    pub request: RequestId,
    pub model: ModelId,
    pub prefill: PeerId,
    pub decode: PeerId,
    pub prompt_tokens: u32,
    pub new_tokens: u32,
    /// Until the first token (seconds).
    pub ttft: f64,
    /// Until the last (seconds).
    pub total: f64,
}

/// What `/api/requests` and the event `requests` say.
#[derive(Clone, Debug, Default, Deserialize)]
pub(in crate::cli) struct RequestsView {
    #[serde(default)]
    pub requests: VecDeque<EndedView>,
    #[serde(default)]
    pub running: Vec<RunningRequest>,
}

impl Snapshot {
    pub(super) fn new(view: SwarmView, RequestsView { requests, running }: RequestsView, feed: Feed) -> Self {
        let mut new = Self { view, running, ended: requests, feed, heard: Instant::now(), gone: Vec::new() };
        new.ended.truncate(ENDED);
        new
    }

    /// Takes in the swarm as it is now.
    pub(super) fn see(&mut self, view: SwarmView, now: Instant) {
        let is_there = |peer: &PeerView| view.peers.iter().any(|other| other.id == peer.id);
        let before = std::mem::take(&mut self.view.peers);
        // Whoever asks another peer than before has lost nobody.
        let missing = before.into_iter().filter(|peer| self.view.me == view.me && !peer.leaving && !is_there(peer));
        let missing: Vec<(PeerView, Instant)> = missing.map(|peer| (peer, now)).collect();
        self.gone.retain(|(peer, since)| !is_there(peer) && now.saturating_duration_since(*since) < GONE_FOR);
        self.gone.extend(missing);
        self.gone.drain(..self.gone.len().saturating_sub(GONE));
        (self.view, self.heard) = (view, now);
    }

    /// Takes in those that ended since the last time, newest first, and those under way now.
    pub(super) fn take_in(&mut self, RequestsView { requests, running }: RequestsView) {
        for ended in requests.into_iter().rev() {
            // A peer that is asked anew tells all that it remembers.
            if !self.ended.iter().any(|known| known.request == ended.request) {
                self.ended.push_front(ended);
            }
        }
        self.ended.truncate(ENDED);
        self.running = running;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::view;
    use serde_json::json;

    #[test]
    fn what_ended_is_told_once_and_not_kept_for_ever() {
        let ended = |n: usize| {
            json!({
                "request": RequestId([n as u8; 16]), "model": ModelId([1; 16]), "prefill": PeerId([1; 32]),
                "decode": PeerId([1; 32]), "prompt_tokens": 1, "new_tokens": 1, "ttft": 0.1, "total": 0.2,
                "slowest": null, "peers": {},
            })
        };
        let requests = |numbers: &[usize]| {
            let all: Vec<_> = numbers.iter().map(|n| ended(*n)).collect();
            serde_json::from_value::<RequestsView>(json!({ "requests": all, "running": [] })).unwrap()
        };
        let mut snapshot = Snapshot::new(view(), requests(&[2, 1]), Feed::Live);
        snapshot.take_in(requests(&[3, 2, 1]));
        let kept: Vec<u8> = snapshot.ended.iter().map(|one| one.request.0[0]).collect();
        assert_eq!(kept, [3, 2, 1]);
        (4..100).for_each(|n| snapshot.take_in(requests(&[n])));
        assert_eq!((snapshot.ended.len(), snapshot.ended[0].request.0[0]), (ENDED, 99));
    }

    #[test]
    fn a_peer_of_an_earlier_version_says_less_of_what_runs() {
        let said = json!({ "running": [{ "request": RequestId([1; 16]), "model": "m", "seconds": 3 }] });
        let requests: RequestsView = serde_json::from_value(said).unwrap();
        let one = &requests.running[0];
        assert_eq!((one.seconds, one.stage.as_str(), one.new_tokens), (3, "", None));
    }
}
