//! What byzantine peers say.

use super::World;
use crate::simulation::{byzantine::Lie, process::SimulatedProcess};
use std::sync::Arc;
use tsnode_protocol::{
    Call, Endorsement, Epoch, Gossip, Group, Heartbeat, LayerRange, LivenessDigest, PeerId, Phase, Plan, PlanId, Route,
    Stage, Term, Verified,
    gossip::Certificate,
    limits,
    liveness_digest::{Missed, PeerTag, Present},
};

impl World {
    /// What a byzantine peer says instead of what its machine decided, and to which half of the peers.
    pub(super) fn twisted(&self, lie: Lie, gossip: Gossip) -> Vec<(Gossip, Option<usize>)> {
        match (lie, gossip) {
            (Lie::SecondPlan, Gossip::Plan(plan)) => {
                let other = Plan { reason: "another".into(), ..(*plan).clone() };
                vec![(Gossip::Plan(plan), Some(0)), (Gossip::Plan(other.into()), Some(1))]
            }
            (Lie::Infeasible, Gossip::Plan(plan)) => {
                let mut plan = (*plan).clone();
                let group = &mut plan.groups[0];
                group.stages[0].device = 77;
                *group = Group::new(group.model, group.phase, group.stages.clone());
                plan.routes.clear();
                vec![(Gossip::Plan(plan.into()), None)]
            }
            (Lie::Unresponsive, Gossip::Plan(_)) => vec![],
            (Lie::Slander, Gossip::Heartbeat(said)) => {
                let cut_off = self.peers.iter().map(|p| p.id).take(limits::CUT_OFF).collect();
                vec![(Gossip::Heartbeat(Heartbeat { cut_off, ..said }), None)]
            }
            (Lie::Deaf, Gossip::Call(_)) => vec![],
            (Lie::Deaf | Lie::Caller, Gossip::LivenessDigest(_)) => {
                let listed = |p: &SimulatedProcess| Present { peer: PeerTag::of(p.id), said: Some(0) };
                let all = self.peers.iter().filter(|_| lie == Lie::Deaf);
                vec![(Gossip::LivenessDigest(LivenessDigest { present: all.map(listed).collect() }), None)]
            }
            (_, gossip) => vec![(gossip, None)],
        }
    }

    /// What a byzantine peer says of its own accord.
    pub(super) fn lie(&mut self, n: usize, lie: Lie) {
        let Some(control) = self.peers[n].control() else { return };
        let plan = control.plan().cloned();
        let (epoch, term) = plan.as_ref().map_or((control.epoch(), Term(0)), |p| (p.epoch, p.term));
        let stray = |epoch, term, n: u64| {
            let plan = Some(PlanId([n as u8; 16]));
            Gossip::Heartbeat(Heartbeat { clock: epoch, epoch, term, plan, ..Heartbeat::default() })
        };
        match lie {
            Lie::OutOfTurn => {
                let Some(plan) = plan else { return };
                let mine = Plan { term: Term(term.0 + 1), reason: "mine".into(), ..plan };
                self.say(n, Gossip::Plan(mine.into()));
            }
            Lie::FalseCertificate => {
                let Some(plan) = plan else { return };
                let mine = Plan { term: Term(term.0 + 1), reason: "mine".into(), ..plan };
                self.show_certificate(n, mine);
            }
            Lie::Usurper => {
                let me = self.peers[n].id;
                let Some(mine) = plan.and_then(|plan| alone(me, &plan)) else { return };
                let heartbeat = Heartbeat { clock: epoch, epoch, term: mine.term, ..Heartbeat::default() };
                self.say(n, Gossip::Heartbeat(Heartbeat { plan: Some(mine.id()), ..heartbeat }));
                self.show_certificate(n, mine);
            }
            Lie::Replay => {
                if let Some(old) = self.some_old_message() {
                    self.spread(n, &old, None);
                }
            }
            Lie::Sequence => {
                let by = 1 << self.rng.below(31);
                self.peers[n].jump(by);
                self.say(n, stray(epoch, term, 1));
                self.peers[n].jump(-by);
            }
            Lie::Future => match self.rng.below(3) {
                0 => self.say(n, stray(Epoch(u64::MAX), Term(u32::MAX), 2)),
                1 => self.say(n, stray(epoch, Term(u32::MAX), 3)),
                _ => {
                    let Some(plan) = plan else { return };
                    let far = Plan { epoch: Epoch(epoch.0.saturating_add(1000)), ..plan };
                    self.say(n, Gossip::Plan(far.into()));
                }
            },
            Lie::Stray => self.say(n, stray(epoch, Term(term.0.saturating_add(1)), self.now.as_secs())),
            Lie::Boast => {
                let mut advert = self.peers[n].advert.clone();
                for device in &mut advert.devices {
                    device.flops.0 = 1e15 * (1.0 + self.rng.unit());
                    device.memory_bytes = 1 << (30 + self.rng.below(10));
                    let each = device.memory_bytes / device.serves.len().max(1) as u64;
                    device.serves.iter_mut().for_each(|served| served.memory_bytes = each);
                }
                self.say(n, Gossip::Advert(advert.into()));
            }
            Lie::Endorses => {
                let (epoch, term, plan) = self.last_proposed;
                for plan in [plan, PlanId([9; 16])] {
                    self.say(n, Gossip::Endorsement(Endorsement { epoch, term, plan }));
                }
            }
            Lie::Caller => {
                let peers = self.peers.iter().map(|p| Missed { peer: PeerTag::of(p.id), last: u64::MAX }).collect();
                self.say(n, Gossip::Call(Call { peers }));
            }
            Lie::SecondPlan | Lie::Infeasible | Lie::Unresponsive | Lie::Slander | Lie::Deaf => {}
        }
    }

    /// Shows a plan that nobody but this peer has endorsed.
    fn show_certificate(&mut self, n: usize, plan: Plan) {
        let Plan { epoch, term, .. } = plan;
        // Of a plan for the byzantine peer alone its own word proves what it has to.
        self.checks.endorsed_by(plan.id(), self.peers[n].id);
        let mut seal = |gossip| self.peers[n].seal(gossip).ok().map(|v| v.proof().clone());
        let endorsement = Endorsement { epoch, term, plan: plan.id() };
        let Some(plan) = seal(Gossip::Plan(plan.into())) else { return };
        let endorsements = (0..4).filter_map(|_| seal(Gossip::Endorsement(endorsement))).collect();
        self.say(n, Gossip::Certificate(Arc::new(Certificate { plan, endorsements })));
    }

    /// Something that was heard long ago.
    fn some_old_message(&mut self) -> Option<Verified<Gossip>> {
        let n = self.rng.below(self.archive.len());
        self.archive.get(n).cloned()
    }
}

/// The next plan, for one peer and all layers of a model that is in the present one.
fn alone(peer: PeerId, plan: &Plan) -> Option<Plan> {
    let group = plan.groups.iter().find(|group| group.stages.iter().any(|stage| stage.peer == peer))?;
    let layers = LayerRange { start: 0, end: group.stages.last()?.layers.end };
    let group = Group::new(group.model, Phase::Mixed, vec![Stage { peer, device: 0, layers }]);
    let routes = vec![Route { prefill: group.id, decode: group.id, share: 1.0 }];
    let (term, reason) = (Term(plan.term.0.saturating_add(1)), "mine".into());
    Some(Plan { term, groups: vec![group], routes, chosen: vec![], reason, ..plan.clone() })
}
