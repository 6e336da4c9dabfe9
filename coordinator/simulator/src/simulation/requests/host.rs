//! A model of what leaders do: they take what is for groups that are up here, give tokens at a steady pace, and forget everything
//! when their process ends.

use super::{
    Item, Planted, ProcessLife, Requests, Surroundings,
    lines::{BREAKS, LineNo, Up},
    token,
};
use std::collections::BTreeMap;
use std::time::Duration;
use tsnode_coordinator::Time;
use tsnode_protocol::{
    Group, GroupId, RequestId, Sampled, Token,
    stream::{DecodeEvent, DecodeOrder, DecodeRequest, End},
};

/// Until a prompt is computed.
const PROMPT: Duration = Duration::from_millis(150);
/// Between two tokens.
const PACE: Duration = Duration::from_millis(40);

/// What a process leads.
#[derive(Debug, Default)]
pub(super) struct LeadingProcess {
    /// Groups that take requests.
    pub loaded: BTreeMap<GroupId, Group>,
    /// What runs, draining groups' too.
    pub runs: BTreeMap<LineNo, LedRequest>,
}

/// A request at its leader.
#[derive(Debug)]
pub(super) struct LedRequest {
    pub request: RequestId,
    pub(super) group: GroupId,
    /// Its stages' processes as they were at the beginning.
    stages: Vec<ProcessLife>,
    next: u32,
    most: u32,
    /// How much its gateway had when it came.
    given: u32,
    /// Since when a stage is out of reach.
    stalled: Option<Time>,
}

impl Requests {
    /// A gateway's word arrives at a leader.
    pub(super) fn asked(&mut self, around: Surroundings<'_>, line: LineNo, said: Up) {
        let Some(place) = self.lines.get(&line).map(|l| l.leader) else { return };
        match said {
            Up::Open(open) => self.take(around, place, line, open),
            Up::Order(DecodeOrder::PrefillHere { first }) => {
                let Some(run) = self.host(around, place).runs.get_mut(&line) else { return };
                run.next = run.next.max(u32::from(first.is_some()));
                self.at(around.now + PROMPT, Item::Step(place, line));
            }
            // Nobody prefills for others here.
            Up::Order(DecodeOrder::Begin(_)) => {}
            Up::Close => {
                self.lines.remove(&line);
                self.host(around, place).runs.remove(&line);
            }
        }
    }

    fn host(&mut self, around: Surroundings<'_>, place: ProcessLife) -> &mut LeadingProcess {
        &mut self.frontend(around, place.0).host
    }

    fn take(&mut self, around: Surroundings<'_>, place: ProcessLife, line: LineNo, open: DecodeRequest) {
        let host = self.host(around, place);
        let Some(group) = host.loaded.get(&open.group).cloned() else {
            return self.send_down(around, line, DecodeEvent::Refused("that group is not served here".into()));
        };
        if host.runs.values().any(|run| run.request == open.request && run.group == open.group) {
            let reason = "a request of that name runs already".into();
            return self.send_down(around, line, DecodeEvent::Refused(reason));
        }
        self.nobody_runs_it_twice(around, line, &open, &group);
        let place_of = |s: &tsnode_protocol::Stage| around.numbers.get(&s.peer).map(|n| around.place(*n));
        let run = LedRequest {
            request: open.request,
            group: open.group,
            stages: group.stages.iter().filter_map(place_of).collect(),
            next: open.answered.len() as u32,
            most: open.generation.max_new_tokens,
            given: open.answered.len() as u32,
            stalled: None,
        };
        self.host(around, place).runs.insert(line, run);
        self.send_down(around, line, DecodeEvent::Granted { cached: 0 });
        if !open.await_kv {
            self.at(around.now + PROMPT, Item::Step(place, line));
        }
    }

    /// No process has a part in two runs of a request on which its living gateway has not hung up: two groups of one request are
    /// two plans', or one that it was not asked to leave.
    fn nobody_runs_it_twice(&mut self, around: Surroundings<'_>, line: LineNo, open: &DecodeRequest, group: &Group) {
        let counts = |no: &LineNo| {
            let line = self.lines.get(no);
            line.is_some_and(|l| !l.hung_up && around.lives(l.gateway))
        };
        if !counts(&line) {
            return;
        }
        let mut runs =
            self.frontends.iter().filter(|(n, d)| around.lives((**n, d.life))).flat_map(|(_, d)| &d.host.runs);
        let has_part =
            |run: &LedRequest| group.stages.iter().any(|s| run.stages.iter().any(|p| around.peers[p.0].id == s.peer));
        let other = runs.find(|(no, run)| run.request == open.request && counts(no) && has_part(run));
        if let Some((_, run)) = other {
            let what = format!("{} runs in {} and is taken in {}", open.request, run.group, group.id);
            self.break_off(around.now, "no_peer_serves_a_request_under_two_plans", what);
        }
    }

    pub(super) fn dropped(&mut self, around: Surroundings<'_>, place: ProcessLife, line: LineNo) {
        self.host(around, place).runs.remove(&line);
    }

    /// The next token of a run, if all its stages are there.
    pub(super) fn step(&mut self, around: Surroundings<'_>, place: ProcessLife, line: LineNo) {
        let planted = self.planted;
        let Some(run) = self.host(around, place).runs.get_mut(&line) else { return };
        let is_anew = |p: &ProcessLife| around.peers[p.0].life > p.1;
        let is_there = |p: &ProcessLife| around.reaches(place, *p) && !around.is_stopped(p.0);
        if !run.stages.iter().all(is_there) {
            let since = *run.stalled.get_or_insert(around.now);
            if around.now >= since + BREAKS || run.stages.iter().any(is_anew) {
                self.host(around, place).runs.remove(&line);
                let end = End::Failed("a stage is gone".into());
                return self.send_down(around, line, DecodeEvent::End(end));
            }
            return self.at(around.now + PACE, Item::Step(place, line));
        }
        run.stalled = None;
        let (index, most, given, request) = (run.next, run.most, run.given, run.request);
        run.next += 1;
        if index < most {
            let other = planted == Some(Planted::Changed) && given > 0;
            let token = Token(token(request, index).0 ^ u32::from(other));
            let sampled = Sampled { token, logprob: None, top: vec![] };
            self.send_down(around, line, DecodeEvent::Token { index, sampled });
        }
        if index + 1 >= most {
            self.host(around, place).runs.remove(&line);
            return self.send_down(around, line, DecodeEvent::End(End::Length));
        }
        self.at(around.now + PACE, Item::Step(place, line));
    }
}

impl LeadingProcess {
    /// What runs here that nobody has ended.
    pub fn is_idle(&self) -> bool {
        self.runs.is_empty()
    }
}
