//! Plans of a swarm, made from its adverts.

use std::collections::BTreeMap;
use tsnode_coordinator::{
    gate::SplitChoice,
    planner::{self, Wish},
    scheduler::live,
};
use tsnode_protocol::{
    Advert, BytesPerSecond, Device, DeviceKind, Epoch, FlopsPerSecond, Group, LayerRange, ModelCard, ModelId,
    ModelShape, PeerId, Phase, Plan, Route, Stage, Term,
};

const LAYERS: u32 = 4;

fn card() -> ModelCard {
    let shape = ModelShape {
        layers: LAYERS,
        hidden: 256,
        intermediate: 512,
        heads: 8,
        kv_heads: 4,
        head_dim: 32,
        vocab: 4096,
        context: 1024,
        layer_bytes: 1 << 20,
        embed_bytes: 2 << 20,
        head_bytes: 2 << 20,
    };
    ModelCard { id: ModelId([1; 16]), name: "tiny".into(), shape, files: vec![] }
}

/// A peer whose processor is so many times as fast as another's.
fn advert(speed: f64) -> Advert {
    let device = Device {
        kind: DeviceKind::Cpu { threads: 1 },
        name: "cpu".into(),
        memory_bytes: 1 << 30,
        kv_bytes: 1 << 28,
        flops: FlopsPerSecond(20e9 * speed),
        bandwidth: BytesPerSecond(10e9 * speed),
        profile: None,
    };
    Advert {
        name: "peer".into(),
        version: "0".into(),
        addresses: vec![],
        data_addresses: vec![],
        devices: vec![device],
        models: vec![card()],
        links: vec![],
        reachable: true,
        invites: vec![],
        traffic: vec![],
    }
}

/// A fast decode group carries all that one prefill group sends it, and a slow one would be late: the plan has no use
/// for the slow one. Queues have, when more comes than was planned for.
#[test]
fn a_group_that_the_plan_has_no_use_for_can_still_be_sent_work() {
    let adverts: Vec<Advert> = [1.0, 1.0, 0.02, 0.02].map(advert).into();
    let ids: Vec<PeerId> = (0..4).map(|n| PeerId([n; 32])).collect();
    let members: BTreeMap<PeerId, &Advert> = ids.iter().copied().zip(&adverts).collect();
    let phases = [Phase::Prefill, Phase::Decode, Phase::Decode, Phase::Decode];
    let stage = |peer| Stage { peer, device: 0, layers: LayerRange { start: 0, end: LAYERS } };
    let group = |(id, phase): (&PeerId, Phase)| Group::new(card().id, phase, vec![stage(*id)]);
    let groups: Vec<Group> = ids.iter().zip(phases).map(group).collect();
    let scene = &live::scenes(&members, SplitChoice::Always)[0];
    let routes = scene.routes(&groups);
    let to = |g: &Group| routes.iter().filter(|r| r.decode == g.id).map(|r| r.share).sum::<f64>();
    assert!(to(&groups[1]) > 0.98, "{routes:?}");
    assert!((to(&groups[2]) > 0.0) && (to(&groups[3]) > 0.0), "{routes:?}");
    assert!((routes.iter().map(|r| r.share).sum::<f64>() - 1.0).abs() < 1e-9, "{routes:?}");
}

/// Large swarms are planned in regions, and a loss moves their borders: groups over a border stand all the same.
#[test]
fn in_a_large_swarm_a_loss_and_a_newcomer_leave_every_other_group_as_it_is() {
    let speeds: Vec<f64> = (0..45).map(|n| 1.0 + f64::from(n % 7)).collect();
    let adverts: Vec<Advert> = speeds.into_iter().map(advert).collect();
    let ids: Vec<PeerId> = (0..45).map(|n| PeerId([n; 32])).collect();
    let there = |from: usize| -> BTreeMap<PeerId, &Advert> { ids.iter().copied().zip(&adverts).skip(from).collect() };
    let stage = |n: usize, start, end| Stage { peer: ids[n], device: 0, layers: LayerRange { start, end } };
    // Of the first and the last, the second and the last but one, and so on: over any border there is. The last is new.
    let pair = |n: usize| Group::new(card().id, Phase::Mixed, vec![stage(n, 0, 2), stage(43 - n, 2, LAYERS)]);
    let groups: Vec<Group> = (0..22).map(pair).collect();
    let routes = groups.iter().map(|g| Route { prefill: g.id, decode: g.id, share: 1.0 / 22.0 }).collect();
    let plan =
        Plan { epoch: Epoch(0), term: Term(0), parent: None, groups: groups.clone(), routes, reason: String::new() };
    let (left, wish) = (there(1), Wish::default());
    assert!(live::scenes(&left, wish.split).len() > 1, "it is no large swarm");
    let stood: Vec<_> = groups[1..].iter().map(|g| g.id).collect();
    let flipped = planner::flip(&plan, &left, &wish).unwrap();
    let grown = planner::grow(&plan, &left, &wish).unwrap();
    for (draft, new) in [(&flipped, 0), (&grown, 2)] {
        assert!(stood.iter().all(|id| draft.groups.iter().any(|g| g.id == *id)), "a group was given up");
        let served: usize = draft.groups.iter().map(|g| g.stages.len()).sum();
        assert_eq!(served, 2 * 21 + new, "the widowed device and the newcomer");
        let share: f64 = draft.routes.iter().map(|r| r.share).sum();
        assert!((share - 1.0).abs() < 1e-9, "{share}");
        assert!(draft.groups.iter().all(|g| draft.routes.iter().any(|r| r.prefill == g.id || r.decode == g.id)));
    }
}

/// Losing one device of 32, or all that prefill: what stands goes on as it is, and where a phase is lost others take it. Stages
/// stay as they are, so that nobody has anything to load.
#[test]
fn after_a_loss_32_devices_are_scheduled_anew_with_what_they_have_loaded() {
    let adverts: Vec<Advert> = (0..32).map(|n| advert(1.0 + f64::from(n % 7))).collect();
    let ids: Vec<PeerId> = (0..32).map(|n| PeerId([n; 32])).collect();
    let without = |lost: &[PeerId]| -> BTreeMap<PeerId, &Advert> {
        ids.iter().copied().zip(&adverts).filter(|(peer, _)| !lost.contains(peer)).collect()
    };
    let wish = Wish { split: SplitChoice::Always, ..Wish::default() };
    let draft = planner::plan(&without(&[]), &wish, None);
    let plan = Plan {
        epoch: Epoch(0),
        term: Term(0),
        parent: None,
        groups: draft.groups,
        routes: draft.routes,
        reason: draft.reason,
    };
    assert_eq!(plan.peers().len(), 32, "all have a part");
    let peers_of = |phase| -> Vec<PeerId> {
        plan.groups.iter().filter(|g| g.phase == phase).flat_map(|g| &g.stages).map(|s| s.peer).collect()
    };
    let (prefill, decode) = (peers_of(Phase::Prefill), peers_of(Phase::Decode));
    assert!(!prefill.is_empty() && !decode.is_empty());
    for lost in [vec![decode[0]], prefill] {
        let flipped = planner::flip(&plan, &without(&lost), &wish).unwrap();
        let is_left = |g: &&Group| !g.stages.iter().any(|s| lost.contains(&s.peer));
        let mut left: Vec<(_, &Vec<Stage>)> = plan.groups.iter().filter(is_left).map(|g| (g.id, &g.stages)).collect();
        let mut there: Vec<(_, &Vec<Stage>)> = flipped.groups.iter().map(|g| (g.id, &g.stages)).collect();
        left.sort_by_key(|(id, _)| *id);
        there.sort_by_key(|(id, _)| *id);
        assert_eq!(there, left, "a group is new, or is missing");
        for phase in [Phase::Prefill, Phase::Decode] {
            assert!(flipped.groups.iter().any(|g| g.phase == phase), "nobody does {phase}");
        }
        let share: f64 = flipped.routes.iter().map(|r| r.share).sum();
        assert!((share - 1.0).abs() < 1e-9, "{share}");
    }
}
