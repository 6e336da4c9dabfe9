//! Plans of a swarm, made from its adverts.

use proptest::prelude::*;
use std::collections::BTreeMap;
use tsnode_coordinator::{
    gate::SplitChoice,
    planner::live,
    planner::{self, PlanOptions},
    sample::{self, card},
};
use tsnode_protocol::{
    Advert, BatchPolicy, BytesPerSecond, Device, Experts, Group, LayerRange, Link, ModelCard, ModelShape, PathKind,
    PeerId, Phase, Plan, RequestClass, Route, Seconds, SettingKey, SettingValue, Stage, SwarmSetting, Targets, Traffic,
    traffic::LENGTHS,
};

const LAYERS: u32 = 4;

/// A peer whose processor is so many times as fast as another's.
fn advert(speed: f64) -> Advert {
    let mut advert = sample::advert(0);
    let device = &mut advert.devices[0];
    (device.flops.0, device.bandwidth.0) = (device.flops.0 * speed, device.bandwidth.0 * speed);
    advert
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
    let input = &live::inputs(&members, SplitChoice::Always)[0];
    let routes = input.routes(&groups);
    let to = |g: &Group| routes.iter().filter(|r| r.decode == g.id).map(|r| r.share).sum::<f64>();
    assert!(to(&groups[1]) > 0.98, "{routes:?}");
    assert!((to(&groups[2]) > 0.0) && (to(&groups[3]) > 0.0), "{routes:?}");
    assert!((routes.iter().map(|r| r.share).sum::<f64>() - 1.0).abs() < 1e-9, "{routes:?}");
}

/// What two peers are worth with these phases, where steps are formed so and a first token is to come within this time (s).
fn worth(phases: [Phase; 2], policy: BatchPolicy, ttft: f64) -> f64 {
    let peer = |n: u8| PeerId([n; 32]);
    let set = |key, value| SwarmSetting { key, value, at: 1, by: peer(0) };
    let targets = Targets { ttft: Some(Seconds(ttft)), ..Targets::default() };
    let settings = vec![
        set(SettingKey::Targets { model: None, class: RequestClass::Interactive }, SettingValue::Targets(targets)),
        set(SettingKey::Batch { model: None }, SettingValue::Batch(Some(policy))),
    ];
    let (model, prompts, answers) = (card().id, [200; LENGTHS], [50; LENGTHS]);
    let traffic = vec![Traffic { model, rate: 4.0, variation: 1.0, prompts, answers }];
    let lends = || sample::measured(0, [1e-3, 1e-4, 0.0], [1e-3, 0.0, 1e-4]);
    let adverts = [Advert { settings, traffic, ..lends() }, lends()];
    let members: BTreeMap<PeerId, &Advert> = (0..).zip(&adverts).map(|(n, advert)| (peer(n), advert)).collect();
    let layers = LayerRange { start: 0, end: LAYERS };
    let group = |(n, phase)| Group::new(model, phase, vec![Stage { peer: peer(n), device: 0, layers }]);
    let groups = (0..).zip(phases).map(group).collect();
    planner::value(&sample::plan(groups, vec![]), &members, &PlanOptions::default())
}

/// Prompts of 200 tokens take two steps of 128 at most, or one where they go alone.
#[test]
fn groups_that_do_both_are_valued_by_how_steps_are_formed_and_others_are_not() {
    let all = [BatchPolicy::Chunked, BatchPolicy::Mixed, BatchPolicy::PrefillFirst];
    let by = |phases, ttft| all.map(|policy| worth(phases, policy, ttft));
    let mut gained: f64 = 0.0;
    for ttft in (40..160).step_by(2).map(|ms| f64::from(ms) * 1e-3) {
        let apart = by([Phase::Prefill, Phase::Decode], ttft);
        assert!(apart.iter().all(|worth| (worth - apart[0]).abs() < 1e-9), "{ttft}: {apart:?}");
        let [chunked, mixed, prefill_first] = by([Phase::Mixed; 2], ttft);
        assert!(chunked <= mixed + 1e-3 && mixed <= prefill_first + 1e-3, "{ttft}: {chunked} {mixed} {prefill_first}");
        gained = gained.max(prefill_first - chunked);
    }
    assert!(gained > 0.1, "{gained}");
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
    let plan = sample::plan(groups.clone(), routes);
    let (left, wish) = (there(1), PlanOptions::default());
    assert!(live::inputs(&left, wish.split).len() > 1, "it is no large swarm");
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
    let wish = PlanOptions { split: SplitChoice::Always, ..PlanOptions::default() };
    let draft = planner::plan(&without(&[]), &wish, None);
    let plan = Plan { chosen: draft.chosen, ..sample::plan(draft.groups, draft.routes) };
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

/// The model that is built in, as its peers advert it.
fn embedded() -> ModelCard {
    let shape = ModelShape { layer_bytes: 1_180_672, embed_bytes: 2_097_152, head_bytes: 2_097_664, ..card().shape };
    ModelCard { shape, ..card() }
}

/// What a peer lends.
#[derive(Clone, Debug)]
struct LentResources {
    memory: u64,
    kv: u64,
    speed: f64,
    /// Of each link to another, by that one's number; none where it was never measured.
    links: Vec<Option<(f64, f64)>>,
}

fn id(n: usize) -> PeerId {
    PeerId([n as u8; 32])
}

/// Adverts of these lenders of a model.
fn adverts(card: &ModelCard, lenders: &[LentResources]) -> Vec<Advert> {
    let of = |lender: &LentResources| {
        let mut advert = Advert { models: vec![card.clone()], ..advert(lender.speed) };
        let device = Device { memory_bytes: lender.memory, kv_bytes: lender.kv, ..advert.devices[0].clone() };
        advert.devices = vec![device.for_one(card.id, None)];
        let link = |(to, link): (usize, &Option<(f64, f64)>)| {
            let (latency, bandwidth) = (*link)?;
            Some(Link {
                to: id(to),
                latency: Seconds(latency),
                bandwidth: BytesPerSecond(bandwidth),
                path: PathKind::Direct,
            })
        };
        advert.links = lender.links.iter().enumerate().take(lenders.len()).filter_map(link).collect();
        advert
    };
    lenders.iter().map(of).collect()
}

/// What is planned of them.
fn planned(card: &ModelCard, lenders: &[LentResources], split: SplitChoice) -> planner::PlanDraft {
    let adverts = adverts(card, lenders);
    let members: BTreeMap<PeerId, &Advert> = (0..).map(id).zip(&adverts).collect();
    planner::plan(&members, &PlanOptions { split, ..PlanOptions::default() }, None)
}

/// Whether requests can be served: whole groups, and a way for every request.
fn serves(draft: &planner::PlanDraft) -> bool {
    let routed: f64 = draft.routes.iter().map(|r| r.share).sum();
    !draft.groups.is_empty() && (routed - 1.0).abs() < 1e-6
}

/// From so little that only both together hold the model, to so much that each would alone if its KV pages were more: then
/// both together as before.
#[test]
fn two_peers_that_serve_together_serve_with_any_memory_more() {
    let mut served = false;
    for memory in (2..=64).map(|half| half * (1 << 19)).chain([1 << 30, 1 << 40]) {
        let lender = LentResources { memory, kv: 1 << 20, speed: 1.0, links: vec![] };
        let draft = planned(&embedded(), &[lender.clone(), lender], SplitChoice::Auto);
        assert!(serves(&draft) || !served, "no plan with {memory} bytes each, and one with less");
        served |= serves(&draft);
        assert!(draft.groups.iter().all(|g| g.stages.len() == 2), "{:?}", draft.groups);
    }
    assert!(served);
}

/// Qwen3-30B-A3B in four bits: 17 GB that must lie somewhere, of which a token reads two.
fn mixture() -> ModelCard {
    let shape = ModelShape {
        layers: 48,
        hidden: 2048,
        intermediate: 6144,
        heads: 32,
        kv_heads: 4,
        head_dim: 128,
        vocab: 151_936,
        context: 40_960,
        layer_bytes: 350_000_000,
        embed_bytes: 175_000_000,
        head_bytes: 255_000_000,
        experts: Some(Experts { count: 128, used: 8, bytes: 340_000_000 }),
        whole: false,
        state_bytes: 0,
    };
    ModelCard { shape, ..card() }
}

/// Four hold it together, each as many layers as it has memory for; three are told what they lack.
#[test]
fn experts_that_no_peer_holds_lie_over_four() {
    let links = vec![Some((1e-3, 1.25e8)); 4];
    let lender = LentResources { memory: 11 << 29, kv: 1 << 30, speed: 10.0, links };
    let draft = planned(&mixture(), &vec![lender.clone(); 4], SplitChoice::Auto);
    assert!(serves(&draft), "{draft:?}");
    let [Group { stages, .. }] = &draft.groups[..] else { panic!("{:?}", draft.groups) };
    assert_eq!(stages.len(), 4);
    let shape = mixture().shape;
    assert!(stages.iter().all(|stage| shape.stage_bytes(stage.layers) < lender.memory * 9 / 10), "{stages:?}");
    let three = vec![lender; 3];
    assert!(planned(&mixture(), &three, SplitChoice::Auto).groups.is_empty());
    let adverts = adverts(&mixture(), &three);
    let members: BTreeMap<PeerId, &Advert> = (0..).map(id).zip(&adverts).collect();
    let [short] = &live::shortfalls(&members)[..] else { panic!("nothing is said") };
    let live::DeviceShortfall::Memory { needs, lent } = short.lack else { panic!("{short:?}") };
    assert!(needs > shape.stage_bytes(shape.all_layers()) && lent < needs, "{needs} of {lent}");
}

/// KV beside states is not sent: nobody computes prompts for others, even where owners always want it so. Who has no pages for a state
/// has none for the model.
#[test]
fn groups_of_a_model_with_states_have_no_phases() {
    let with = |state_bytes| {
        let shape = ModelShape { whole: true, state_bytes, ..embedded().shape };
        ModelCard { shape, ..card() }
    };
    let lender = LentResources { memory: 64 << 20, kv: 8 << 20, speed: 1.0, links: vec![] };
    for split in [SplitChoice::Auto, SplitChoice::Always] {
        let draft = planned(&with(1 << 20), &[lender.clone(), lender.clone()], split);
        assert!(serves(&draft) && draft.groups.iter().all(|group| group.phase == Phase::Mixed), "{draft:?}");
    }
    assert!(planned(&with(8 << 20), &[lender.clone(), lender], SplitChoice::Auto).groups.is_empty());
}

/// Two hold it together, and one stage has to: whoever holds all of it serves it, and where nobody does it is said what is lacking.
#[test]
fn a_model_that_one_stage_has_to_hold_lies_on_one_peer() {
    let whole = ModelCard { shape: ModelShape { whole: true, ..embedded().shape }, ..card() };
    let lender = |memory, kv| LentResources { memory, kv, speed: 1.0, links: vec![] };
    let (small, large) = (lender(10 << 20, 2 << 20), lender(64 << 20, 8 << 20));
    let both = [small.clone(), small.clone()];
    assert!(serves(&planned(&embedded(), &both, SplitChoice::Auto)), "cut in two");
    assert!(planned(&whole, &both, SplitChoice::Auto).groups.is_empty());
    let adverts = adverts(&whole, &both);
    let members: BTreeMap<PeerId, &Advert> = (0..).map(id).zip(&adverts).collect();
    let [short] = &live::shortfalls(&members)[..] else { panic!("nothing is said") };
    let live::DeviceShortfall::MemoryOfOne { needs, lent } = short.lack else { panic!("{short:?}") };
    assert!(lent < small.memory && needs > lent, "{needs} of {lent}, which one of them lends");
    for (lenders, groups) in [(vec![large.clone(), small.clone(), small], 1), (vec![large.clone(), large], 2)] {
        let draft = planned(&whole, &lenders, SplitChoice::Auto);
        assert!(serves(&draft) && draft.groups.len() == groups, "{draft:?}");
        assert!(draft.groups.iter().all(|group| group.stages.len() == 1), "{draft:?}");
    }
}

/// Most peers of a cluster that is drawn.
const DRAWN: usize = 9;

/// A model of which a peer's memory holds anything from nothing to all.
fn models() -> impl Strategy<Value = ModelCard> {
    (1u32..=10, 0u64..=3, 0u64..=3, 1u32..=4).prop_map(|(layers, embed, head, kv_heads)| {
        let (embed_bytes, head_bytes) = (embed << 20, head << 20);
        ModelCard { shape: ModelShape { layers, embed_bytes, head_bytes, kv_heads, ..embedded().shape }, ..card() }
    })
}

fn lenders() -> impl Strategy<Value = Vec<LentResources>> {
    let link = prop::option::of((1e-4..0.3, prop_oneof![1e3..1e6, 1e6..1e9]));
    // Half MiB: within a few of what a stage needs, where it matters.
    let lender = (1u64..=24, 1u64..=12, 0.05f64..4.0, prop::collection::vec(link, DRAWN));
    let lender = lender.prop_map(|(memory, kv, speed, links)| LentResources {
        memory: memory << 19,
        kv: kv << 18,
        speed,
        links,
    });
    prop::collection::vec(lender, 1..DRAWN)
}

/// What each lends more, of memory and of KV memory, and who comes besides.
fn more() -> impl Strategy<Value = (Vec<(u64, u64)>, Vec<LentResources>)> {
    let step = prop_oneof![2 => Just(0u64), 2 => 1u64..=8, 1 => 9u64..=200];
    (prop::collection::vec((step.clone(), step), DRAWN), prop_oneof![Just(vec![]), lenders()])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Memory, KV memory and peers that are added never take a plan away.
    #[test]
    fn who_serves_serves_with_anything_more(
        card in models(),
        few in lenders(),
        (lent, newcomers) in more(),
        always in any::<bool>(),
    ) {
        let split = if always { SplitChoice::Always } else { SplitChoice::Auto };
        let draft = planned(&card, &few, split);
        prop_assert!(draft.groups.is_empty() || serves(&draft), "half a plan: {draft:?}");
        prop_assume!(serves(&draft));
        let mut many = few;
        for (lender, (memory, kv)) in many.iter_mut().zip(lent) {
            lender.memory += memory << 19;
            lender.kv += kv << 18;
        }
        many.extend(newcomers);
        many.truncate(DRAWN);
        let draft = planned(&card, &many, split);
        prop_assert!(serves(&draft), "of more: {draft:?}");
    }
}
