//! Plan flow 4: which policy requests are routed by on a plan, where members have left that to measurement (`tsnode route set auto`).
//! Requests like those of late are replayed on the plan's groups by each policy, and another one is taken where it does clearly better.

use super::{BUSIEST, Place, REPLAYED, SEED, Scene, beside, profiles, scenes};
use crate::{
    batcher::BatcherConfig,
    gate::SplitChoice,
    members::Members,
    policy::{
        caps,
        choice::{Batches, Dispatch, Room},
    },
    replay::{self, Parts, Replay, machines::Machine},
    scheduler::{
        Evaluation, Evaluator, Problem,
        evaluate::Share,
        parallel::{self, Config},
        workload::Means,
    },
    settings::Settings,
    traffic,
};
use std::collections::BTreeSet;
use tsnode_protocol::{
    BatchPolicy, Group, GroupId, ModelId, Replayed, Route, RouteChoice, RoutePolicy, limits, plan::MOST_STATED,
};

/// Shares of requests in time are told apart in steps of this size, and another policy is taken for no smaller gain: of the requests that
/// are replayed so many are chance.
const STEP: f64 = 0.02;
/// Where as many are in time, another policy is taken by which the slowest tenth takes this part of the time, or less.
const FASTER: f64 = 0.9;
/// What slowness is told of: nine of ten take no longer.
const NINE_OF_TEN: f64 = 0.9;
/// The least that is replayed, as a part of what devices carry, however rarely a gateway says that requests come: nothing waits there, and
/// times stay such as can be counted with.
const IDLEST: f64 = 1e-3;
/// Steps that a replay's requests take one after the other, all together: where answers are long, fewer requests are replayed, so
/// that the planner is soon done. And the fewest.
const MOST_STEPS: f64 = 500_000.0;
const FEWEST: usize = 50;

/// What is chosen for each model of these groups that it is left to: as before, where there is nothing to choose by, or nothing is
/// clearly better.
#[must_use]
pub fn route(
    groups: &[Group],
    routes: &[Route],
    members: &Members<'_>,
    split: SplitChoice,
    before: &[RouteChoice],
) -> Vec<RouteChoice> {
    let settings = Settings::of(members.values().copied());
    let is_left = |model: &ModelId| settings.route(*model).is_some_and(|(policy, _)| policy == RoutePolicy::Auto);
    let models: BTreeSet<ModelId> = groups.iter().map(|g| g.model).filter(is_left).collect();
    if models.is_empty() {
        return Vec::new();
    }
    let scenes = beside(scenes(members, split), groups);
    let choice = |model: ModelId| {
        let before = before.iter().find(|choice| choice.model == model);
        let scenes = scenes.iter().filter(|scene| scene.card.id == model).collect();
        let batch = settings.batch(model).map_or_else(BatchPolicy::default, |(policy, _)| policy);
        let ground = Ground { members, split, batch, scenes, groups, routes };
        ground.choose(model, before.map(|choice| choice.policy)).or_else(|| before.cloned())
    };
    models.into_iter().take(limits::MODELS).filter_map(choice).collect()
}

/// A model's part of a plan, to replay requests on.
struct Ground<'a> {
    members: &'a Members<'a>,
    split: SplitChoice,
    batch: BatchPolicy,
    /// The model's alone.
    scenes: Vec<&'a Scene>,
    groups: &'a [Group],
    routes: &'a [Route],
}

impl Ground<'_> {
    /// `None` where too few requests have come, or there is but one thing to do with them.
    fn choose(&self, model: ModelId, before: Option<RoutePolicy>) -> Option<RouteChoice> {
        let policies = self.policies(model);
        if policies.len() < 2 {
            return None;
        }
        let profile = traffic::together(model, self.members)?;
        let carries: f64 = self.scenes.iter().map(|scene| scene.carries).sum();
        // Where all are late, policies cannot be told apart.
        let rate = profile.rate.max(IDLEST * carries).min(BUSIEST * carries).min(MOST_STATED);
        let problem = self.scenes.first()?.problem.at_rate(rate);
        let how = Replay { seed: SEED, requests: requests(&problem.workload.mean) };
        let replayed = |policy: RoutePolicy| {
            let dispatch = Dispatch::from(policy);
            let report = replay::replay_routed(self.parts()?, &problem, dispatch, how, profile.variation);
            Some(Replayed { policy, in_time: report.attainment, slowness: stated(report.scale_at(NINE_OF_TEN)) })
        };
        let tried: Vec<Replayed> = policies.into_iter().filter_map(replayed).collect();
        let policy = best(&tried, before.unwrap_or(RoutePolicy::Live))?;
        Some(RouteChoice { model, policy, requests: how.requests as u32, rate, tried })
    }

    /// Policies that differ on these routes.
    fn policies(&self, model: ModelId) -> Vec<RoutePolicy> {
        let is_here = |id: GroupId| self.groups.iter().any(|g| g.id == id && g.model == model);
        let ways: Vec<&Route> = self.routes.iter().filter(|r| r.share > 0.0 && is_here(r.prefill)).collect();
        let mut policies = vec![RoutePolicy::Live];
        if ways.len() > 1 {
            policies.extend([RoutePolicy::Shares, RoutePolicy::Shortest]);
        }
        if ways.iter().any(|way| way.prefill != way.decode) {
            // Whoever wants each prompt computed elsewhere has none parted.
            policies.extend((self.split == SplitChoice::Auto).then_some(RoutePolicy::Cronus));
            policies.push(RoutePolicy::Pools);
        }
        policies
    }

    /// The groups as machines, of all regions.
    fn parts(&self) -> Option<Parts> {
        let parts = self.scenes.iter().filter_map(|scene| self.parts_of(scene));
        parts.reduce(|all, more| all.beside(more, 1.0))
    }

    fn parts_of(&self, scene: &Scene) -> Option<Parts> {
        let is_here = |g: &&Group| g.model == scene.card.id && g.stages.iter().all(|stage| scene.has(stage));
        let groups: Vec<Group> = self.groups.iter().filter(is_here).cloned().collect();
        let place = |id: GroupId| groups.iter().position(|g| g.id == id);
        let share =
            |r: &Route| Some(Share { prefill: place(r.prefill)?, decode: place(r.decode)?, share: r.share, kept: 0.0 });
        let shares: Vec<Share> = self.routes.iter().filter_map(share).filter(|s| s.share > 0.0).collect();
        if shares.is_empty() {
            return None;
        }
        let mut evaluator = Evaluator::new(&scene.problem);
        let numbers = scene.shelve(&mut evaluator, &groups)?;
        let plan = Evaluation { shares, ..Evaluation::default() };
        let machine = |problem: &Problem, config: &Config, room: Room| self.machine(scene, problem, config, room);
        Some(Parts::new(&mut evaluator, &numbers, &plan, &machine))
    }

    /// A group that steps as its leader's batcher does.
    fn machine(&self, scene: &Scene, problem: &Problem, config: &Config, room: Room) -> Machine {
        let place = |stage: &parallel::Stage| scene.places.get(stage.instance.0 as usize).copied();
        let places: Vec<Place> = config.stages.iter().filter_map(place).collect();
        let batches = Batches::measured(profiles(&places, self.members, scene.card.id)).by(self.batch);
        let places = BatcherConfig::default().max_running;
        replay::stepping(batches, problem, config, Room { places, ..room })
    }
}

/// How many requests like these are replayed.
fn requests(mean: &Means) -> usize {
    let steps = mean.steps + mean.prompt.0 / f64::from(caps::SHORTEST);
    ((MOST_STEPS / steps.max(1.0)) as usize).clamp(FEWEST, REPLAYED)
}

/// As a plan may state it; what is no number is as slow as can be.
fn stated(slowness: f64) -> f64 {
    if slowness < MOST_STATED { slowness.max(0.0) } else { MOST_STATED }
}

/// What requests are routed by now, unless another of these is clearly better. Who is best is an order of all, so that no two take turns
/// while requests stay as they are: it alone is ever changed to.
fn best(tried: &[Replayed], now: RoutePolicy) -> Option<RoutePolicy> {
    let level = |r: &Replayed| (r.in_time / STEP) as u32;
    let order = |a: &&Replayed, b: &&Replayed| level(b).cmp(&level(a)).then(a.slowness.total_cmp(&b.slowness));
    let best = tried.iter().min_by(order)?;
    let Some(present) = tried.iter().find(|r| r.policy == now) else { return Some(best.policy) };
    let keeps_more = best.in_time >= present.in_time + STEP;
    // As many are in time by it, or more.
    let is_faster = best.slowness <= present.slowness * FASTER;
    Some(if keeps_more || is_faster { best.policy } else { now })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        sample::{self, card},
        scheduler::workload::Workload,
    };
    use RoutePolicy::{Auto, Cronus, Live, Pools, Shares, Shortest};
    use tsnode_protocol::{
        Advert, Epoch, LayerRange, PeerId, Phase, Plan, SettingKey, SettingValue, Stage, SwarmSetting, Term, Tokens,
        Traffic, traffic::LENGTHS,
    };

    fn told(policy: RoutePolicy, in_time: f64, slowness: f64) -> Replayed {
        Replayed { policy, in_time, slowness }
    }

    #[test]
    fn another_policy_is_taken_for_a_clear_gain_alone_and_none_takes_turns() {
        let by = |now, all: &[Replayed]| best(all, now).unwrap();
        let alike = [told(Live, 0.97, 3.0), told(Pools, 0.975, 2.9), told(Shortest, 0.96, 3.1)];
        assert_eq!([Live, Pools, Shortest].map(|now| by(now, &alike)), [Live, Pools, Shortest]);
        let more = [told(Live, 0.90, 3.0), told(Pools, 0.95, 4.0)];
        assert_eq!([Live, Pools].map(|now| by(now, &more)), [Pools, Pools]);
        let faster = [told(Live, 1.0, 3.0), told(Cronus, 1.0, 2.0)];
        assert_eq!([Live, Cronus].map(|now| by(now, &faster)), [Cronus, Cronus]);
        assert_eq!(by(Pools, &faster), Cronus, "what is there no more is not kept");
        let both = [told(Live, 0.99, 5.0), told(Shortest, 1.0, 1.5)];
        assert_eq!(
            [Live, Shortest].map(|now| by(now, &both)),
            [Shortest, Shortest],
            "a few more are in time, and all faster"
        );
        assert_eq!(best(&[], Live), None);
        // Each is better than the next by another measure: from wherever it begins, it comes to rest.
        let round = [told(Live, 0.99, 9.0), told(Shares, 0.97, 5.0), told(Pools, 0.95, 1.0)];
        for mut now in [Live, Shares, Pools] {
            (0..3).for_each(|_| now = by(now, &round));
            assert_eq!(by(now, &round), now);
        }
    }

    /// Two peers alike, each a group that does both, of which the plan sends one nearly everything.
    struct Uneven {
        adverts: Vec<Advert>,
        groups: Vec<Group>,
        routes: Vec<Route>,
    }

    impl Uneven {
        fn new(policy: RoutePolicy, rate: f64) -> Self {
            let peer = |n: u8| PeerId([n; 32]);
            let (key, value) = (SettingKey::Route { model: None }, SettingValue::Route(Some(policy)));
            let settings = vec![SwarmSetting { key, value, at: 1, by: peer(1) }];
            let (model, prompts, answers) = (card().id, [200; LENGTHS], [50; LENGTHS]);
            let traffic = vec![Traffic { model, rate, variation: 1.0, prompts, answers }];
            let lends = || sample::measured(0, [1e-3, 1e-4, 0.0], [1e-3, 0.0, 1e-4]);
            let adverts = vec![Advert { settings, traffic, ..lends() }, lends()];
            let layers = LayerRange { start: 0, end: card().shape.layers };
            let group = |n| Group::new(model, Phase::Mixed, vec![Stage { peer: peer(n), device: 0, layers }]);
            let groups = vec![group(0), group(1)];
            let route = |g: &Group, share| Route { prefill: g.id, decode: g.id, share };
            let routes = vec![route(&groups[0], 0.95), route(&groups[1], 0.05)];
            Self { adverts, groups, routes }
        }

        fn chosen(&self, before: &[RouteChoice]) -> Vec<RouteChoice> {
            let members: Members<'_> = (0..).zip(&self.adverts).map(|(n, a)| (PeerId([n; 32]), a)).collect();
            route(&self.groups, &self.routes, &members, SplitChoice::Auto, before)
        }
    }

    #[test]
    fn shares_that_overload_a_group_lose_to_queues() {
        let chosen = Uneven::new(Auto, 8.0).chosen(&[]);
        let [choice] = &chosen[..] else { panic!("{chosen:?}") };
        let of = |policy| choice.tried.iter().find(|r| r.policy == policy).unwrap();
        assert_eq!(choice.tried.iter().map(|r| r.policy).collect::<Vec<_>>(), [Live, Shares, Shortest]);
        assert!(
            of(Shares).in_time <= of(Shortest).in_time && of(Shares).slowness > of(Shortest).slowness,
            "{choice:?}"
        );
        let by_shares = [RouteChoice { policy: Shares, ..choice.clone() }];
        assert_ne!(Uneven::new(Auto, 8.0).chosen(&by_shares)[0].policy, Shares, "{choice:?}");
        // What was chosen stays while nothing changes.
        assert_eq!(Uneven::new(Auto, 8.0).chosen(&chosen), chosen);
    }

    /// Nor is any of it more than a plan may state, or what it is endorsed by would be none.
    #[test]
    fn however_rarely_requests_come_what_is_stated_can_be() {
        for rate in [f64::from_bits(1), 1e-300, 1e-9, 1e6] {
            let uneven = Uneven::new(Auto, rate);
            let chosen = uneven.chosen(&[]);
            let [choice] = &chosen[..] else { panic!("{rate}: {chosen:?}") };
            assert!(
                choice.rate > 0.0 && choice.tried.iter().all(|r| r.in_time <= 1.0 && r.slowness > 0.0),
                "{choice:?}"
            );
            let (groups, routes) = (uneven.groups, uneven.routes);
            let (epoch, term, reason) = (Epoch(1), Term(0), String::new());
            let plan = Plan { epoch, term, parent: None, groups, routes, chosen, reason };
            assert_eq!(plan.check(), Ok(()), "{rate}");
        }
        assert_eq!([f64::NAN, f64::INFINITY, -1.0, 2.5].map(stated), [MOST_STATED, MOST_STATED, 0.0, 2.5]);
    }

    #[test]
    fn of_long_answers_fewer_are_replayed() {
        let mean = |prompt, answer| Workload::uniform(Tokens(prompt), Tokens(answer)).mean;
        let replayed = [(200.0, 50.0), (1_000.0, 5_001.0), (1e6, 1e6)].map(|(p, a)| requests(&mean(p, a)));
        assert_eq!(replayed, [REPLAYED, 99, FEWEST]);
    }

    /// The group for prompts alone would do it on average, and is swamped by bursts in which the other has nothing to do.
    #[test]
    fn in_bursts_the_group_for_answers_takes_prompts_too() {
        let mut apart = Uneven::new(Auto, 8.0);
        apart.adverts[0].traffic[0].variation = 64.0;
        let [one, other] = [0, 1].map(|n: usize| apart.groups[n].stages.clone());
        apart.groups = vec![Group::new(card().id, Phase::Prefill, one), Group::new(card().id, Phase::Decode, other)];
        apart.routes = vec![Route { prefill: apart.groups[0].id, decode: apart.groups[1].id, share: 1.0 }];
        let chosen = apart.chosen(&[]);
        let [choice] = &chosen[..] else { panic!("{chosen:?}") };
        assert_eq!(choice.tried.iter().map(|r| r.policy).collect::<Vec<_>>(), [Live, Cronus, Pools]);
        let of = |policy| choice.tried.iter().find(|r| r.policy == policy).unwrap();
        assert!(of(Pools).in_time > of(Live).in_time && of(Pools).slowness < of(Live).slowness, "{choice:?}");
        assert_eq!(choice.policy, Pools, "{choice:?}");
    }

    #[test]
    fn nothing_is_chosen_where_that_was_not_left_to_it_or_nothing_is_known() {
        assert_eq!(Uneven::new(Pools, 8.0).chosen(&[]), []);
        let mut silent = Uneven::new(Auto, 8.0);
        silent.adverts[0].traffic.clear();
        assert_eq!(silent.chosen(&[]), []);
        let before = [RouteChoice { model: card().id, policy: Shortest, requests: 1, rate: 1.0, tried: vec![] }];
        assert_eq!(silent.chosen(&before), before, "what was chosen before goes on");
        let mut alone = Uneven::new(Auto, 8.0);
        alone.routes.truncate(1);
        assert_eq!(alone.chosen(&[]), [], "there is one way");
    }
}
