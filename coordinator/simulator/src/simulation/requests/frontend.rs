//! One process's gateway and changeover, driven as the node drives them.

use super::{
    Effect, Item, Planted, ProcessLife, Requests, Surroundings,
    host::LeadingProcess,
    lines::{LineNo, Up},
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tsnode_coordinator::{
    Time,
    changeover::{Changeover, ChangeoverView},
    control::{Control, Event as ControlEvent},
    gateway::{Action, Event, Gateway, GatewayConfig, View},
};
use tsnode_protocol::{
    Advert, GroupId, GroupLoad, Life, Load, PeerId, Plan, RequestId,
    stream::{DecodeEvent, DecodeRequest},
};

/// What one life of a process has to do with requests.
#[derive(Debug)]
pub(super) struct Frontend {
    pub life: Life,
    pub gateway: Gateway,
    pub host: LeadingProcess,
    changeover: Changeover,
    view: View,
    /// Adverts by where they lie: peers share them, and the world keeps them all.
    seen: Vec<(PeerId, usize)>,
    /// Groups the process has last said are up.
    said: Vec<GroupId>,
    /// Lines to those who decode.
    lines: BTreeMap<RequestId, LineNo>,
    wake: Option<Time>,
}

impl Frontend {
    fn new(life: Life) -> Self {
        Self {
            life,
            gateway: Gateway::new(GatewayConfig::default()),
            host: LeadingProcess::default(),
            changeover: Changeover::default(),
            view: View::default(),
            seen: Vec::new(),
            said: Vec::new(),
            lines: BTreeMap::new(),
            wake: None,
        }
    }

    /// What the gateway is to route by, where that has changed.
    fn new_view(&mut self, control: &Control) -> Option<View> {
        let advert = |(peer, m): (&PeerId, &tsnode_coordinator::control::Member)| Some((*peer, m.advert.clone()?));
        let adverts: Vec<(PeerId, Arc<Advert>)> = control.members().filter_map(advert).collect();
        let seen: Vec<(PeerId, usize)> = adverts.iter().map(|(p, a)| (*p, Arc::as_ptr(a).addr())).collect();
        let followed = self.changeover.routed();
        let up = control.ready_of(followed.map_or(&[][..], |plan| &plan.groups));
        let same = seen == self.seen && self.view.plan.as_ref() == followed && self.view.up == up;
        if same {
            return None;
        }
        if seen != self.seen {
            self.view.adverts = Arc::new(adverts.into_iter().map(|(peer, a)| (peer, (*a).clone())).collect());
            self.seen = seen;
        }
        (self.view.plan, self.view.up) = (followed.cloned(), up);
        Some(self.view.clone())
    }

    /// Lets go of groups that neither the plan has nor are kept beside it; what runs on them goes on.
    fn retire(&mut self, control: &Control) {
        let standing = self.changeover.standing();
        let plan = control.plan();
        let stays = |id: &GroupId| standing.contains(id) || plan.is_some_and(|plan| plan.group(*id).is_some());
        self.host.loaded.retain(|id, _| stays(id));
    }

    /// What the process says of its groups, where that has changed.
    fn report(&mut self) -> Option<ControlEvent> {
        let ready: Vec<GroupId> = self.host.loaded.keys().copied().collect();
        if ready == self.said {
            return None;
        }
        self.said.clone_from(&ready);
        let running = |group: GroupId| self.host.runs.values().filter(|run| run.group == group).count() as u32;
        let load = |running| Load { running, ..Load::default() };
        let ready = ready.into_iter().map(|group| GroupLoad { group, load: load(running(group)) }).collect();
        let load = load(self.host.runs.len() as u32);
        Some(ControlEvent::Load { load, ready })
    }
}

impl Requests {
    /// The frontend of a process's present life.
    pub(super) fn frontend(&mut self, around: Surroundings<'_>, n: usize) -> &mut Frontend {
        let life = around.peers[n].life;
        let frontend = self.frontends.entry(n).or_insert_with(|| Frontend::new(life));
        if frontend.life != life {
            *frontend = Frontend::new(life);
        }
        frontend
    }

    pub(super) fn adopt(&mut self, around: Surroundings<'_>, (n, _): ProcessLife, plan: Arc<Plan>) {
        let Some(control) = around.peers[n].control() else { return };
        let (up, staying) = (control.said_ready(), control.staying());
        let frontend = self.frontend(around, n);
        frontend.changeover.adopt(around.now, plan, ChangeoverView { up: &up, staying: &staying });
        self.look_at(around, n);
    }

    pub(super) fn loaded(&mut self, around: Surroundings<'_>, (n, _): ProcessLife, groups: Vec<GroupId>) {
        let Some(plan) = around.peers[n].control().and_then(Control::plan) else { return };
        let groups: Vec<_> = groups.into_iter().filter_map(|id| Some((id, plan.group(id)?.clone()))).collect();
        self.frontend(around, n).host.loaded.extend(groups);
        self.look_at(around, n);
    }

    /// A process looks which plan it follows, and says what has changed.
    pub(super) fn look_at(&mut self, around: Surroundings<'_>, n: usize) {
        let Some(control) = around.peers[n].control() else { return };
        let (up, staying): (_, BTreeSet<PeerId>) = (control.said_ready(), control.staying());
        let frontend = self.frontend(around, n);
        frontend.changeover.look(around.now, ChangeoverView { up: &up, staying: &staying });
        frontend.retire(control);
        let (report, view) = (frontend.report(), frontend.new_view(control));
        self.out.extend(report.map(|event| Effect::Tell(n, event)));
        if let Some(view) = view {
            self.drive(around, n, Event::View(view));
        }
    }

    /// One event through a process's gateway, and what follows from it.
    pub(super) fn drive(&mut self, around: Surroundings<'_>, n: usize, event: Event) {
        let actions = self.frontend(around, n).gateway.on_event(around.now, event);
        for action in actions {
            self.act(around, n, action);
        }
        let frontend = self.frontend(around, n);
        let due = frontend.gateway.deadline().filter(|at| frontend.wake.is_none_or(|wake| *at < wake));
        if let Some(at) = due {
            frontend.wake = Some(at);
            // The agenda is in whole milliseconds.
            self.at(at.max(around.now) + Duration::from_millis(1), Item::Wake(around.place(n)));
        }
    }

    pub(super) fn woken(&mut self, around: Surroundings<'_>, (n, _): ProcessLife) {
        let frontend = self.frontend(around, n);
        if frontend.wake.take_if(|at| *at <= around.now).is_some() {
            self.drive(around, n, Event::Deadline);
        }
    }

    fn act(&mut self, around: Surroundings<'_>, n: usize, action: Action) {
        match action {
            Action::OpenDecode { request, leader, open } => self.open(around, n, request, leader, open),
            Action::OpenPrefill { request, .. } => {
                self.at(around.now + Duration::from_millis(1), Item::NoPrefill(around.place(n), request));
            }
            Action::Order { request, order } => {
                if let Some(line) = self.frontend(around, n).lines.get(&request).copied() {
                    self.send_up(around, line, Up::Order(order));
                }
            }
            Action::CloseDecode { request } => {
                let holds_on = self.planted == Some(Planted::HoldsOn);
                let line = self.frontend(around, n).lines.remove(&request);
                if let Some(line) = line.filter(|_| !holds_on) {
                    self.lines.get_mut(&line).into_iter().for_each(|l| l.hung_up = true);
                    self.send_up(around, line, Up::Close);
                }
            }
            Action::Accepted { request, .. } => self.is_accepted(around, n, request),
            Action::Unserved { request, retry_after, .. } => self.is_unserved(around, n, request, retry_after),
            Action::Token { request, index, sampled } => self.gets_token(around, n, request, index, sampled.token),
            Action::End { request, end } => self.ends(around, n, request, end),
            Action::ClosePrefill { .. }
            | Action::Settled { .. }
            | Action::PromptLogprobs { .. }
            | Action::Blame { .. }
            | Action::Served(_)
            | Action::Trace(_)
            | Action::HungUp(_) => {}
        }
    }

    /// A gateway asks groups of the plan that it follows, one at a time.
    fn open(&mut self, around: Surroundings<'_>, n: usize, request: RequestId, leader: PeerId, open: DecodeRequest) {
        let place = around.place(n);
        let has = |plan: &Arc<Plan>| plan.group(open.group).is_some_and(|g| g.leader() == Some(leader));
        if !self.frontend(around, n).view.plan.as_ref().is_some_and(has) {
            let what = format!("p{n} asks for {request} in {}, which is not of the plan it follows", open.group);
            self.break_off(around.now, "gateways_ask_groups_of_one_plan", what);
        }
        let asked = |l: &super::RequestLine| l.request == request && !l.hung_up && around.lives(l.gateway);
        if self.lines.values().any(asked) {
            let what = format!("p{n} asks for {request} in {} and has not hung up elsewhere", open.group);
            self.break_off(around.now, "no_peer_serves_a_request_under_two_plans", what);
        }
        let Some(&leader) = around.numbers.get(&leader) else { return };
        self.moves(request, &open);
        let line = self.new_line(request, place, around.place(leader));
        self.frontend(around, n).lines.insert(request, line);
        self.send_up(around, line, Up::Open(open));
    }

    /// A leader's word arrives at a gateway.
    pub(super) fn answered(&mut self, around: Surroundings<'_>, line: LineNo, event: DecodeEvent) {
        let Some((n, request)) = self.lines.get(&line).map(|l| (l.gateway.0, l.request)) else { return };
        let is_last = matches!(event, DecodeEvent::End(_) | DecodeEvent::Refused(_));
        if self.frontend(around, n).lines.get(&request) == Some(&line) {
            self.drive(around, n, Event::Decode { request, event });
        }
        if is_last {
            self.lines.remove(&line);
        }
    }

    pub(super) fn lost(
        &mut self,
        around: Surroundings<'_>,
        (n, _): ProcessLife,
        line: LineNo,
        request: RequestId,
        why: &str,
    ) {
        if self.frontend(around, n).lines.get(&request) == Some(&line) {
            self.drive(around, n, Event::DecodeLost { request, reason: why.to_owned() });
        }
    }

    pub(super) fn no_prefill(&mut self, around: Surroundings<'_>, (n, _): ProcessLife, request: RequestId) {
        let reason = "nobody prefills for others here".to_owned();
        self.drive(around, n, Event::PrefillLost { request, reason });
    }
}
