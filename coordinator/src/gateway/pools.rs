//! Prompt flow 2: what pools are routed by, where members have set `pools` (Splitwise §IV-A): how much KV each group has room for, and
//! how many prompt tokens make a batch of it.

use super::{
    Gateway, Request, judging, parting,
    queues::{self, QueuedLoad},
};
use crate::{
    gate::{Overrule, SplitChoice},
    policy::{caps, choice::Dispatch},
    router::{GroupSize, PoolSizes},
};
use tsnode_protocol::{Group, ModelShape, RequestId, Stage};

impl Gateway {
    /// What a request for a model whose requests are pooled is routed by; nothing otherwise.
    pub(super) fn sizes(&self, request: RequestId) -> PoolSizes {
        let Some(r) = self.requests.get(&request) else { return PoolSizes::default() };
        if self.router.dispatch(r.ask.model) != Dispatch::Pools {
            return PoolSizes::default();
        }
        // Of a second try the first token may have been there already: nobody would be told that what it was lent is done.
        let stays = self.is_sent(r) || r.goes_on();
        let Some(shape) = judging::shape(&self.view, r.ask.model) else {
            return PoolSizes { stays, ..PoolSizes::default() };
        };
        let own = queues::parts(self.requests.values());
        let groups = self.view.plan.iter().flat_map(|plan| &plan.groups).filter(|group| group.model == r.ask.model);
        let size = |group: &Group| {
            let own = own.get(&group.id).copied().unwrap_or_default();
            (group.id, self.size(group, &shape, own))
        };
        PoolSizes { groups: groups.map(size).collect(), stays }
    }

    /// Whether its client or this peer's owner wants its prompt computed elsewhere, which no group that does both does.
    fn is_sent(&self, r: &Request) -> bool {
        matches!(r.ask.overrule, Some(Overrule::Sent(_)))
            || (r.ask.overrule.is_none() && self.config.split == SplitChoice::Always)
    }

    fn size(&self, group: &Group, shape: &ModelShape, own: QueuedLoad) -> GroupSize {
        let profiles = parting::profiles(&self.view, group).map(|(profile, _)| profile);
        let elements = shape.kv_elements_per_token_layer();
        let token_layer = elements.saturating_mul(self.config.element_bytes(group.model)).max(1);
        // Pages are as large on all stages: the one with the fewest tokens fills first.
        let tokens = |stage: &Stage| {
            let device = self.view.adverts.get(&stage.peer)?.devices.get(usize::from(stage.device))?;
            let layers = u64::from(stage.layers.len()).max(1);
            Some(device.served(group.model)?.kv_bytes / token_layer.saturating_mul(layers))
        };
        let room = group.stages.iter().map(tokens).min().flatten().unwrap_or(0);
        let leads = group.stages.first().and_then(tokens).unwrap_or(0);
        let step = caps::chunk(profiles).map_or(0, |tokens| tokens.saturating_mul(caps::LONG));
        GroupSize { room, leads, sent: self.queues.sent_since(group.id, own), step }
    }
}
