//! Whether all is as it should be.

use super::World;
use std::collections::BTreeSet;
use tsnode_protocol::{GroupId, PeerId, Plan};

impl World {
    /// The plan that all honest peers follow.
    ///
    /// # Errors
    /// Says who does not.
    pub fn common_plan(&self) -> Result<&Plan, String> {
        let mut plans = self.honest().map(|p| (p, p.control().and_then(|c| c.plan())));
        let first = plans.next().and_then(|(_, plan)| plan).ok_or("a peer has no plan")?;
        // Peers share what they heard: the same place in memory is the same plan.
        let is_first = |plan: &Plan| std::ptr::eq(plan, first) || plan == first;
        match plans.find(|(_, plan)| !plan.is_some_and(is_first)) {
            Some((p, Some(other))) => {
                let of = |p: &Plan| format!("{:.10} (epoch {} term {})", p.id(), p.epoch.0, p.term.0);
                Err(format!("{} follows {} and others {}", p.advert.name, of(other), of(first)))
            }
            Some((p, None)) => Err(format!("{} has no plan", p.advert.name)),
            None => Ok(first),
        }
    }

    /// The groups of a plan that no byzantine peer has a part in.
    fn sound_groups(&self, plan: &Plan) -> Vec<GroupId> {
        let is_honest = |id: &PeerId| self.numbers.get(id).is_some_and(|n| self.peers[*n].lie.is_none());
        let groups = plan.groups.iter().filter(|g| g.stages.iter().all(|s| is_honest(&s.peer)));
        groups.map(|g| g.id).collect()
    }

    /// Whether all honest peers follow one plan, which serves exactly the living, see each other and nobody else, know
    /// which groups are up, and agree who plans next.
    ///
    /// # Errors
    /// Says what is not so.
    pub fn agreement(&self) -> Result<(), String> {
        let plan = self.common_plan()?;
        let (served, sound) = (plan.peers(), self.sound_groups(plan));
        let name = |id: &PeerId| self.numbers.get(id).map_or_else(|| id.short(), |n| format!("p{n}"));
        let living: BTreeSet<PeerId> = self.honest().map(|p| p.id).collect();
        let running: BTreeSet<PeerId> = self.peers.iter().filter(|p| p.is_running()).map(|p| p.id).collect();
        if let Some(lost) = self.honest().filter(|p| p.lends()).find(|p| !served.contains(&p.id)) {
            return Err(format!("the plan leaves out {}", lost.advert.name));
        }
        if let Some(dead) = served.difference(&running).next() {
            return Err(format!("the plan names {}, which is gone", name(dead)));
        }
        let mut planners = BTreeSet::new();
        for (peer, control) in self.honest().filter_map(|p| Some((p, p.control()?))) {
            let seen: BTreeSet<PeerId> = control.members().map(|(id, _)| *id).collect();
            if let Some(lost) = living.difference(&seen).next() {
                return Err(format!("{} does not see {}", peer.advert.name, name(lost)));
            }
            if let Some(ghost) = seen.difference(&running).next() {
                return Err(format!("{} sees {}, which is gone", peer.advert.name, name(ghost)));
            }
            planners.insert(control.coordinator());
            let ready = control.ready();
            if let Some(group) = sound.iter().find(|g| !ready.contains_key(g)) {
                return Err(format!("{} does not see that group {group} is up", peer.advert.name));
            }
        }
        // Who lies may be seen by some and not by others.
        if planners.len() > 1 && !self.has_liars() {
            return Err(format!("{} peers are taken for the coordinator", planners.len()));
        }
        Ok(())
    }
}
