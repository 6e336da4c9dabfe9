//! Plan flow 4: by which policies requests are routed and steps formed on a plan, where members have left that to measurement
//! (`tsnode route set auto`, `tsnode batch set auto`). Requests like those of late are replayed on the plan's groups by each policy, and
//! another one is taken where it does clearly better. Where both are left to it, steps come first, by the routes of now, and routes are
//! chosen by the steps of then: each choice is of one thing, and only ever for the better, so that none takes turns.

use super::{BUSIEST, DevicePlace, REPLAYED, SEED, SearchInput, beside, inputs_under, profiles};
use crate::{
    batcher::BatcherConfig,
    gate::SplitChoice,
    members::Members,
    planner::spare_routes,
    policy::{
        caps,
        choice::{Batches, Dispatch, MachineRoom},
    },
    replay::{self, Replay, ReplayPlan, machines::Machine, pipeline::Pipeline},
    scheduler::{
        Evaluation, Evaluator, Problem,
        evaluate::RouteShare,
        parallel::{self, ParallelConfig},
        workload::Means,
    },
    settings::SwarmSettings,
    traffic,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use tsnode_protocol::{
    BatchPolicy, ChosenPolicy, Group, GroupId, LayerProfile, ModelId, PolicyChoice, Replayed, Route, RoutePolicy,
    limits, plan::MOST_STATED,
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
pub fn choose(
    groups: &[Group],
    routes: &[Route],
    members: &Members<'_>,
    split: SplitChoice,
    before: &[PolicyChoice],
) -> Vec<PolicyChoice> {
    let settings = SwarmSettings::of(members.values().copied());
    let is_left = |model: &ModelId| leaves_routes(&settings, *model) || leaves_batches(&settings, *model);
    let models: BTreeSet<ModelId> = groups.iter().map(|g| g.model).filter(is_left).collect();
    if models.is_empty() {
        return Vec::new();
    }
    let inputs = beside(inputs_under(members, split, before), groups);
    let choices = |model: ModelId| {
        let inputs = inputs.iter().filter(|input| input.card.id == model).collect();
        let ground = ReplayGround { members, split, inputs, groups, routes: spare_routes::planned(routes) };
        ground.choices(model, &settings, before)
    };
    models.into_iter().take(limits::MODELS).flat_map(choices).collect()
}

fn leaves_routes(settings: &SwarmSettings, model: ModelId) -> bool {
    settings.route(model).is_some_and(|(policy, _)| policy == RoutePolicy::Auto)
}

fn leaves_batches(settings: &SwarmSettings, model: ModelId) -> bool {
    settings.batch(model).is_some_and(|(policy, _)| policy == BatchPolicy::Auto)
}

/// By what requests are replayed.
#[derive(Clone, Copy)]
struct PolicyPair {
    route: RoutePolicy,
    batch: BatchPolicy,
}

impl PolicyPair {
    fn with(self, policy: ChosenPolicy) -> Self {
        match policy {
            ChosenPolicy::Route(route) => Self { route, ..self },
            ChosenPolicy::Batch(batch) => Self { batch, ..self },
        }
    }
}

/// A model's part of a plan, to replay requests on.
struct ReplayGround<'a> {
    members: &'a Members<'a>,
    split: SplitChoice,
    /// The model's alone.
    inputs: Vec<&'a SearchInput>,
    groups: &'a [Group],
    /// Those that shares take.
    routes: Vec<Route>,
}

impl ReplayGround<'_> {
    fn choices(&self, model: ModelId, settings: &SwarmSettings, before: &[PolicyChoice]) -> Vec<PolicyChoice> {
        let route = settings.routed(model, before).unwrap_or_default();
        let mut by = PolicyPair { route, batch: settings.batched(model, before) };
        let mut batched = None;
        if leaves_batches(settings, model) {
            let made = self.choose(model, &self.batches(model, by.route), by, ChosenPolicy::Batch(by.batch));
            batched = made.or_else(|| PolicyChoice::of_batches(before, model).map(|(choice, _)| choice.clone()));
            by = batched.as_ref().map_or(by, |choice| by.with(choice.policy));
        }
        let mut routed = None;
        if leaves_routes(settings, model) {
            let made = self.choose(model, &self.policies(model), by, ChosenPolicy::Route(by.route));
            routed = made.or_else(|| PolicyChoice::of_routes(before, model).map(|(choice, _)| choice.clone()));
        }
        [routed, batched].into_iter().flatten().collect()
    }

    /// `None` where too few requests have come, or there is but one thing to do with them.
    fn choose(
        &self,
        model: ModelId,
        policies: &[ChosenPolicy],
        by: PolicyPair,
        now: ChosenPolicy,
    ) -> Option<PolicyChoice> {
        if policies.len() < 2 {
            return None;
        }
        let profile = traffic::together(model, self.members)?;
        let carries: f64 = self.inputs.iter().map(|input| input.carries).sum();
        // Where all are late, policies cannot be told apart.
        let rate = profile.rate.max(IDLEST * carries).min(BUSIEST * carries).min(MOST_STATED);
        let problem = self.inputs.first()?.problem.at_rate(rate);
        let how = Replay { seed: SEED, requests: requests(&problem.workload.mean) };
        let replayed = |policy: &ChosenPolicy| {
            let by = by.with(*policy);
            let dispatch = Dispatch::from(by.route);
            let report = replay::replay_routed(self.parts(by)?, &problem, dispatch, how, profile.variation);
            let slowness = stated(report.scale_at(NINE_OF_TEN));
            Some(Replayed { policy: *policy, in_time: report.attainment, slowness })
        };
        let tried: Vec<Replayed> = policies.iter().filter_map(replayed).collect();
        let policy = best(&tried, now)?;
        Some(PolicyChoice { model, policy, requests: how.requests as u32, rate, tried })
    }

    /// The model's routes that requests go.
    fn ways(&self, model: ModelId) -> Vec<&Route> {
        let is_here = |id: GroupId| self.groups.iter().any(|g| g.id == id && g.model == model);
        self.routes.iter().filter(|r| r.share > 0.0 && is_here(r.prefill)).collect()
    }

    /// Policies of routing that differ on these routes.
    fn policies(&self, model: ModelId) -> Vec<ChosenPolicy> {
        let ways = self.ways(model);
        let mut policies = vec![RoutePolicy::Live];
        if ways.len() > 1 {
            policies.extend([RoutePolicy::Shares, RoutePolicy::Shortest]);
        }
        if ways.iter().any(|way| way.prefill != way.decode) {
            // Whoever wants each prompt computed elsewhere has none parted.
            policies.extend((self.split == SplitChoice::Auto).then_some(RoutePolicy::Cronus));
            policies.push(RoutePolicy::Pools);
        }
        policies.into_iter().map(ChosenPolicy::Route).collect()
    }

    /// Policies of forming steps, where some group has prompts and answers in them.
    fn batches(&self, model: ModelId, route: RoutePolicy) -> Vec<ChosenPolicy> {
        let does_both = self.ways(model).iter().any(|way| way.prefill == way.decode);
        // Groups for answers compute prompts, or their rests, by these.
        let lends = matches!(route, RoutePolicy::Cronus | RoutePolicy::Pools);
        let is_one = |policy: &BatchPolicy| (does_both || lends) && *policy != BatchPolicy::Auto;
        BatchPolicy::ALL.into_iter().filter(is_one).map(ChosenPolicy::Batch).collect()
    }

    /// The groups as machines, of all regions.
    fn parts(&self, by: PolicyPair) -> Option<ReplayPlan> {
        let parts = self.inputs.iter().filter_map(|input| self.parts_of(input, by));
        parts.reduce(|all, more| all.beside(more, 1.0))
    }

    fn parts_of(&self, input: &SearchInput, by: PolicyPair) -> Option<ReplayPlan> {
        let is_here = |g: &&Group| g.model == input.card.id && g.stages.iter().all(|stage| input.has(stage));
        let groups: Vec<Group> = self.groups.iter().filter(is_here).cloned().collect();
        let place = |id: GroupId| groups.iter().position(|g| g.id == id);
        let share = |r: &Route| {
            Some(RouteShare { prefill: place(r.prefill)?, decode: place(r.decode)?, share: r.share, kept: 0.0 })
        };
        let shares: Vec<RouteShare> = self.routes.iter().filter_map(share).filter(|s| s.share > 0.0).collect();
        if shares.is_empty() {
            return None;
        }
        let mut evaluator = Evaluator::new(&input.problem);
        let numbers = input.shelve(&mut evaluator, &groups)?;
        let mut plan = Evaluation { shares, ..Evaluation::default() };
        if by.route == RoutePolicy::Pools {
            let is_open = |s: &RouteShare| evaluator.way(numbers[s.prefill], numbers[s.decode]).is_open();
            let spare = spare_routes::beside(&groups, &self.routes, input.card.id);
            plan.shares.extend(spare.iter().filter_map(share).filter(is_open));
        }
        let machine = |problem: &Problem, config: &ParallelConfig, room: MachineRoom| {
            let batches = Batches::measured(self.profiles(input, config).iter()).by(by.batch);
            // As its leader's batcher has it.
            let places = BatcherConfig::default().max_running;
            let batching = batches.batching(MachineRoom { places, ..room });
            Machine { batching, cost: Arc::new(Pipeline::new(problem, config).reading_once()) }
        };
        Some(ReplayPlan::new(&mut evaluator, &numbers, &plan, &machine))
    }

    /// What was measured of a group's stages.
    fn profiles(&self, input: &SearchInput, config: &ParallelConfig) -> Vec<LayerProfile> {
        let place = |stage: &parallel::ParallelStage| input.places.get(stage.instance.0 as usize).copied();
        let places: Vec<DevicePlace> = config.stages.iter().filter_map(place).collect();
        profiles(&places, self.members, input.card.id).copied().collect()
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

/// What is done now, unless another of these is clearly better. Who is best is an order of all, so that no two take turns
/// while requests stay as they are: it alone is ever changed to.
fn best(tried: &[Replayed], now: ChosenPolicy) -> Option<ChosenPolicy> {
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
        Advert, Epoch, LayerRange, PeerId, Phase, Plan, RequestClass, Seconds, SettingKey, SettingValue, Stage,
        SwarmSetting, Targets, Term, Tokens, Traffic, traffic::LENGTHS,
    };

    fn told(policy: RoutePolicy, in_time: f64, slowness: f64) -> Replayed {
        Replayed { policy: ChosenPolicy::Route(policy), in_time, slowness }
    }

    fn routed(policy: ChosenPolicy) -> RoutePolicy {
        let ChosenPolicy::Route(policy) = policy else { panic!("{policy} is no policy of routing") };
        policy
    }

    fn tried(choice: &PolicyChoice) -> Vec<RoutePolicy> {
        choice.tried.iter().map(|replayed| routed(replayed.policy)).collect()
    }

    /// What became of requests by this policy.
    fn of(choice: &PolicyChoice, policy: RoutePolicy) -> Replayed {
        *choice.tried.iter().find(|replayed| replayed.policy == ChosenPolicy::Route(policy)).unwrap()
    }

    #[test]
    fn another_policy_is_taken_for_a_clear_gain_alone_and_none_takes_turns() {
        let by = |now, all: &[Replayed]| routed(best(all, ChosenPolicy::Route(now)).unwrap());
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
        assert_eq!(best(&[], ChosenPolicy::Route(Live)), None);
        // Each is better than the next by another measure: from wherever it begins, it comes to rest.
        let round = [told(Live, 0.99, 9.0), told(Shares, 0.97, 5.0), told(Pools, 0.95, 1.0)];
        for mut now in [Live, Shares, Pools] {
            (0..3).for_each(|_| now = by(now, &round));
            assert_eq!(by(now, &round), now);
        }
    }

    fn set(policy: RoutePolicy) -> SwarmSetting {
        let (key, value) = (SettingKey::Route { model: None }, SettingValue::Route(Some(policy)));
        SwarmSetting { key, value, at: 1, by: PeerId([1; 32]) }
    }

    fn formed(policy: BatchPolicy) -> SwarmSetting {
        let (key, value) = (SettingKey::Batch { model: None }, SettingValue::Batch(Some(policy)));
        SwarmSetting { key, value, at: 1, by: PeerId([1; 32]) }
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
            let settings = vec![set(policy)];
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

        fn chosen(&self, before: &[PolicyChoice]) -> Vec<PolicyChoice> {
            let members: Members<'_> = (0..).zip(&self.adverts).map(|(n, a)| (PeerId([n; 32]), a)).collect();
            choose(&self.groups, &self.routes, &members, SplitChoice::Auto, before)
        }
    }

    #[test]
    fn shares_that_overload_a_group_lose_to_queues() {
        let chosen = Uneven::new(Auto, 8.0).chosen(&[]);
        let [choice] = &chosen[..] else { panic!("{chosen:?}") };
        assert_eq!(tried(choice), [Live, Shares, Shortest]);
        let (shares, shortest) = (of(choice, Shares), of(choice, Shortest));
        assert!(shares.in_time <= shortest.in_time && shares.slowness > shortest.slowness, "{choice:?}");
        let by_shares = [PolicyChoice { policy: ChosenPolicy::Route(Shares), ..choice.clone() }];
        assert_ne!(routed(Uneven::new(Auto, 8.0).chosen(&by_shares)[0].policy), Shares, "{choice:?}");
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
        assert_eq!(tried(choice), [Live, Cronus, Pools]);
        let (live, pools) = (of(choice, Live), of(choice, Pools));
        assert!(pools.in_time > live.in_time && pools.slowness < live.slowness, "{choice:?}");
        assert_eq!(routed(choice.policy), Pools, "{choice:?}");
        // Each group does one thing: how steps are formed is not looked at, but for what pools lend.
        apart.adverts[0].settings = vec![formed(BatchPolicy::Auto)];
        assert_eq!(apart.chosen(&[]), []);
        apart.adverts[0].settings.push(set(Pools));
        let chosen = apart.chosen(&[]);
        assert_eq!(chosen.iter().map(|choice| choice.tried.len()).collect::<Vec<_>>(), [3], "{chosen:?}");
    }

    #[test]
    fn nothing_is_chosen_where_that_was_not_left_to_it_or_nothing_is_known() {
        assert_eq!(Uneven::new(Pools, 8.0).chosen(&[]), []);
        let mut silent = Uneven::new(Auto, 8.0);
        silent.adverts[0].traffic.clear();
        assert_eq!(silent.chosen(&[]), []);
        let policy = ChosenPolicy::Route(Shortest);
        let before = [PolicyChoice { model: card().id, policy, requests: 1, rate: 1.0, tried: vec![] }];
        assert_eq!(silent.chosen(&before), before, "what was chosen before goes on");
        let mut alone = Uneven::new(Auto, 8.0);
        alone.routes.truncate(1);
        assert_eq!(alone.chosen(&[]), [], "there is one way");
    }

    /// A step takes five times as long for each answer in it as its weights, and a first token is to come within 125 ms: beside an
    /// answer a prompt of 200 tokens takes two steps that are too long, and alone one that is not.
    #[test]
    fn prompts_go_alone_where_first_tokens_would_be_late_beside_answers() {
        let mut slow = Uneven::new(Live, 0.6);
        let lends = || sample::measured(0, [1e-3, 1e-4, 0.0], [1e-3, 0.0, 5e-3]);
        slow.adverts = slow.adverts.into_iter().map(|a| Advert { devices: lends().devices, ..a }).collect();
        let targets = Targets { ttft: Some(Seconds(0.125)), ..Targets::default() };
        let key = SettingKey::Targets { model: None, class: RequestClass::Interactive };
        let late = SwarmSetting { key, value: SettingValue::Targets(targets), ..set(Live) };
        slow.adverts[0].settings = vec![late, formed(BatchPolicy::Auto)];
        let chosen = slow.chosen(&[]);
        let [choice] = &chosen[..] else { panic!("{chosen:?}") };
        let all = [BatchPolicy::Chunked, BatchPolicy::Mixed, BatchPolicy::PrefillFirst].map(ChosenPolicy::Batch);
        assert_eq!(choice.tried.iter().map(|replayed| replayed.policy).collect::<Vec<_>>(), all);
        assert_eq!(choice.policy, all[2], "{choice:?}");
        assert_eq!(slow.chosen(&chosen), chosen, "it stays while nothing changes");
        // Where both are left to it there are two choices, and each stays.
        slow.adverts[0].settings.push(set(Auto));
        let both = (0..4).fold(chosen, |before, _| slow.chosen(&before));
        assert_eq!(both.len(), 2, "{both:?}");
        assert!(both[0].tried.len() == 3 && matches!(both[0].policy, ChosenPolicy::Route(_)), "{both:?}");
        assert_eq!(slow.chosen(&both), both);
        slow.adverts[0].traffic.clear();
        assert_eq!(slow.chosen(&both), both, "what was chosen before goes on");
    }
}
