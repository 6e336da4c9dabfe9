//! Streams between gateways and leaders: in order, whole, and broken when an end dies or is out of reach for too long.

use super::{Item, ProcessLife, Requests, Surroundings};
use std::time::Duration;
use tsnode_coordinator::Time;
use tsnode_protocol::{
    PeerId, RequestId,
    stream::{DecodeEvent, DecodeOrder, DecodeRequest},
};

/// After so long without a packet the node's connections break.
pub(super) const BREAKS: Duration = Duration::from_secs(4);
/// What a lost packet costs.
const AGAIN: Duration = Duration::from_millis(200);

pub(super) type LineNo = u64;

/// From a gateway.
#[expect(clippy::large_enum_variant, reason = "a simulation holds few of them at once")]
#[derive(Debug)]
pub(crate) enum Up {
    Open(DecodeRequest),
    Order(DecodeOrder),
    Close,
}

/// From a leader.
pub(super) type LeaderEvent = DecodeEvent;

/// One stream.
#[derive(Debug)]
pub(super) struct RequestLine {
    pub request: RequestId,
    pub gateway: ProcessLife,
    pub leader: ProcessLife,
    /// The gateway no longer counts on it.
    pub hung_up: bool,
    /// When what was said last arrives, up and down.
    last: [Time; 2],
    /// Since when nothing comes through.
    out_of_reach: Option<Time>,
    /// What could not be sent yet.
    backlog: Vec<Item>,
}

impl Requests {
    pub(super) fn new_line(&mut self, request: RequestId, gateway: ProcessLife, leader: ProcessLife) -> LineNo {
        self.last_line += 1;
        let last = [Time::ZERO; 2];
        let line =
            RequestLine { request, gateway, leader, hung_up: false, last, out_of_reach: None, backlog: Vec::new() };
        self.lines.insert(self.last_line, line);
        self.last_line
    }

    pub(super) fn send_up(&mut self, around: Surroundings<'_>, line: LineNo, said: Up) {
        self.send(around, line, Item::Up(line, said));
    }

    pub(super) fn send_down(&mut self, around: Surroundings<'_>, line: LineNo, said: LeaderEvent) {
        self.send(around, line, Item::Down(line, said));
    }

    fn send(&mut self, around: Surroundings<'_>, no: LineNo, item: Item) {
        let Some(line) = self.lines.get_mut(&no) else { return };
        if !line.backlog.is_empty() || !around.reaches(line.gateway, line.leader) {
            return line.backlog.push(item);
        }
        let (way, from) = match &item {
            Item::Up(..) => (0, line.gateway.0),
            _ => (1, line.leader.0),
        };
        let mut late = Duration::from_millis(1);
        if line.gateway != line.leader {
            let (net, a, b) = (around.net, self.rng.unit(), self.rng.unit());
            late += net.lags.get(&from).copied().unwrap_or_default() + net.delay.mul_f64(a * b * b);
            while net.lost > 0.0 && self.rng.unit() < net.lost {
                late += AGAIN;
            }
        }
        let at = (around.now + late).max(line.last[way]);
        line.last[way] = at;
        self.at(at, item);
    }

    /// Looks what has become of every stream.
    pub(super) fn sweep(&mut self, around: Surroundings<'_>) {
        for no in self.lines.keys().copied().collect::<Vec<_>>() {
            let Some(line) = self.lines.get_mut(&no) else { continue };
            let stopped = |place: ProcessLife| around.is_stopped(place.0);
            let is_well = around.reaches(line.gateway, line.leader) && !stopped(line.gateway) && !stopped(line.leader);
            if !is_well && around.now >= *line.out_of_reach.get_or_insert(around.now) + BREAKS {
                self.break_line(around, no, "the connection timed out");
            } else if is_well {
                line.out_of_reach = None;
                let backlog = std::mem::take(&mut line.backlog);
                backlog.into_iter().for_each(|item| self.send(around, no, item));
            }
        }
    }

    pub(super) fn break_line(&mut self, around: Surroundings<'_>, no: LineNo, why: &'static str) {
        let Some(line) = self.lines.remove(&no) else { return };
        let soon = around.now + Duration::from_millis(1);
        self.at(soon, Item::Lost(line.gateway, no, line.request, why));
        // The other end learns of it by the same silence, or by a packet that says so.
        self.at(soon + around.net.delay, Item::Dropped(line.leader, no));
    }

    /// A system closes the connections of a process that was killed; where that does not arrive, silence says so.
    pub(super) fn hang_up_for(&mut self, around: Surroundings<'_>, place: ProcessLife) {
        let hears = |l: &RequestLine| {
            let other = if l.gateway == place { l.leader } else { l.gateway };
            (l.gateway == place || l.leader == place) && !around.net.is_cut(place.0, other.0)
        };
        let ended: Vec<LineNo> = self.lines.iter().filter(|(_, l)| hears(l)).map(|(no, _)| *no).collect();
        ended.into_iter().for_each(|no| self.break_line(around, no, "its process has ended"));
    }

    /// A process closes its connections to a peer that is gone from its view, or is there anew.
    pub(super) fn forget(&mut self, around: Surroundings<'_>, place: ProcessLife, peer: PeerId) {
        let Some(&other) = around.numbers.get(&peer) else { return };
        let between = |l: &RequestLine| {
            (l.gateway == place && l.leader.0 == other) || (l.leader == place && l.gateway.0 == other)
        };
        let ended: Vec<LineNo> = self.lines.iter().filter(|(_, l)| between(l)).map(|(no, _)| *no).collect();
        ended.into_iter().for_each(|no| self.break_line(around, no, "hung up on a peer that is gone"));
    }
}
