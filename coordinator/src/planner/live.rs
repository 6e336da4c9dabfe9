//! The scheduler on a swarm: its adverts as clusters, one per model, and plans in the protocol's terms.
//!
//! Plans are for what gateways say they are asked for ([`crate::traffic`]). What adverts do not say is assumed alike by every
//! peer, so that peers with one view make one plan and value plans alike: requests as in Azure's conversation service, while
//! no gateway has had enough of them; a rate that keeps the swarm busy; and where members have set no targets, deadlines as
//! multiples of what the swarm's fastest group takes.

mod clusters;
mod delayed;
mod lent_room;
mod policy_choice;
mod sharing;
mod shortfall;
mod standing;
mod why;

pub(crate) use lent_room::LentRoom;
pub use policy_choice::choose;
pub use shortfall::{DeviceShortfall, Shortfall, shortfalls};
pub use why::{Other, SharedDevice, Why, why};

use self::{
    clusters::{cluster, profiles},
    sharing::{DeviceTime, Fair},
};
use super::{fetching::Holdings, reranking};
use crate::{
    gate::SplitChoice,
    members::Members,
    policy::choice::Batches,
    replay::Replay,
    scheduler::{
        cluster::InstanceId,
        cost::{Decode, Prefill},
        evaluate::{Evaluation, Evaluator, GroupNo},
        parallel::{self, InstanceDevices as Devices},
        problem::{Problem, Space},
        public_models::Model,
        regions, room,
        search::{self, Effort, Found},
        slo::{Reference, Slo},
        start,
        workload::Workload,
    },
    settings::{self, SwarmSettings},
    traffic,
};
use std::{collections::BTreeMap, sync::Arc};
use tsnode_protocol::{
    Advert, BatchPolicy, Group, LayerRange, ModelCard, ModelId, PeerId, Phase, Plan, PolicyChoice, RequestClass, Route,
    Seconds, Served, Stage, Tokens,
};

/// Part of what mixed groups alone would carry that is planned for.
const BUSY: f64 = 0.6;
/// The most that is planned for, in the same measure, whatever gateways say: where all is late, plans cannot be told apart.
const BUSIEST: f64 = 1.2;
/// Deadline of a whole answer, as a multiple of what the fastest group takes for it alone.
const SCALE: f64 = 10.0;
/// Part of the requests by which values differ from one measurement of links to the next.
const NOISE: f64 = 0.01;
/// Of every search: peers that plan on one view plan the same.
const SEED: u64 = 0;
/// Evaluations for each device of a region.
const EVALUATIONS: usize = 30;
/// The most for a swarm, times the square of a region's devices, with which an evaluation's time grows: a peer that plans
/// says nothing else meanwhile, and must not be missed. Swarms of up to eighteen devices are searched in full.
const WORK: usize = 200_000;
/// Assignments of phases tried after a loss, in all regions together: some tens of milliseconds.
const FLIPS: usize = 256;
/// Requests replayed for each of the last candidates, in all regions together.
const REPLAYED: usize = 300;
/// The least of all its devices' time that a model is taken to be asked for, beside others.
const LEAST_DEMAND: f64 = 0.05;
/// Where devices do not hold all models at once: what a plan is still worth in which nobody serves one that is asked for, and one
/// that nobody asks for. However many other models are served, the first is reason enough for another plan, and the second is not.
const WITHOUT_ASKED: f64 = 0.5;
const WITHOUT_UNASKED: f64 = 0.98;
/// Bytes of an element of KV pages.
const ELEMENT: f64 = 2.0;

/// A peer's device.
type DevicePlace = (PeerId, u16);

/// One model's devices as a problem.
#[derive(Clone, Debug)]
pub struct SearchInput {
    /// The model that is planned for.
    pub card: ModelCard,
    /// Device of each instance.
    places: Vec<DevicePlace>,
    /// What there is to plan.
    pub problem: Problem,
    /// Its part of the model's requests: a large swarm is planned in regions.
    share: f64,
    /// Regions of the swarm, which share the time there is for planning.
    regions: usize,
    /// Requests a second that the devices carry with no other model beside it.
    carries: f64,
    /// What of that each device does, in one measure for all.
    power: Vec<f64>,
    /// Room for it on all devices that can serve it.
    rooms: Arc<BTreeMap<DevicePlace, WeightRoom>>,
    /// The part of a plan's worth that is left where nobody serves it. Where there is memory for all of the swarm's models, it takes
    /// 1 off instead.
    without: Option<f64>,
    /// By which it is known what plans have to fetch; none where every host has what it lends.
    holdings: Option<Arc<Holdings>>,
    /// Groups of the plan in force, which serve meanwhile.
    standing: Arc<[Group]>,
}

/// Memory for a model's weights on a device (bytes).
#[derive(Clone, Copy, Debug)]
struct WeightRoom {
    /// What its part needs; nothing of one that is kept there.
    need: u64,
    /// What all models that are there at once may have together, beside those that are kept.
    most: u64,
    /// Whether it stays in memory there, whoever is asked for, where not all are at once.
    is_kept: bool,
}

/// A plan for one model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelPlan {
    /// Groups that serve the model.
    pub groups: Vec<Group>,
    /// Who sends to whom; shares of this model's requests.
    pub routes: Vec<Route>,
    /// Why these groups, for people.
    pub reason: String,
}

/// Problems for every model some device has, one or, in a large swarm, one for each region, each as if no other model were on its
/// devices. Models that the swarm's devices cannot hold are left out.
#[must_use]
pub fn inputs(members: &Members<'_>, split: SplitChoice) -> Vec<SearchInput> {
    inputs_under(members, split, &[])
}

/// The same where this was chosen until now, of what members have left to measurement.
#[must_use]
pub fn inputs_under(members: &Members<'_>, split: SplitChoice, chosen: &[PolicyChoice]) -> Vec<SearchInput> {
    let settings = SwarmSettings::of(members.values().copied());
    let services = sharing::lent(members).filter_map(|(card, places)| {
        ServedModel::of(card, places, members, (split, settings.batched(card.id, chosen)))
    });
    let services: Vec<ServedModel<'_>> = services.collect();
    let fair = Fair::of(services.iter().map(|service| (service.demand(), &*service.places)));
    let scarce = is_scarce(members);
    let holdings = Holdings::of(members).map(Arc::new);
    let inputs = services.iter().flat_map(|service| service.inputs(&fair, scarce));
    inputs.map(|input| SearchInput { holdings: holdings.clone(), ..input }).collect()
}

/// Whether some device does not hold all models at once that it serves.
pub(crate) fn is_scarce(members: &Members<'_>) -> bool {
    members.values().flat_map(|advert| &advert.devices).any(|device| !device.holds_all())
}

/// Memory for weights that devices have for each model: what they say is looked at once, however many models there are.
pub(crate) fn weights_room<'a>(adverts: impl IntoIterator<Item = &'a Advert>) -> BTreeMap<ModelId, LentRoom> {
    let mut room = BTreeMap::<ModelId, LentRoom>::new();
    for served in adverts.into_iter().flat_map(|advert| &advert.devices).flat_map(|device| &device.serves) {
        room.entry(served.model).or_default().add(served);
    }
    room
}

fn rooms(places: &[DevicePlace], members: &Members<'_>, model: ModelId) -> BTreeMap<DevicePlace, WeightRoom> {
    let room = |place: &DevicePlace| {
        let device = members.get(&place.0)?.devices.get(usize::from(place.1))?;
        let served = device.served(model)?;
        let stays = |served: &Served| if served.is_kept { served.memory_bytes } else { served.kv_bytes };
        let kept = device.serves.iter().map(stays).fold(0, u64::saturating_add);
        let weights = served.memory_bytes.saturating_sub(served.kv_bytes);
        let need = if served.is_kept { 0 } else { weights };
        let is_kept = served.is_kept && !device.holds_all();
        Some((*place, WeightRoom { need, most: device.memory_bytes.saturating_sub(kept), is_kept }))
    };
    places.iter().filter_map(room).collect()
}

/// A model, the devices that can serve it, and what it is asked for.
struct ServedModel<'a> {
    card: &'a ModelCard,
    places: Vec<DevicePlace>,
    whole: Problem,
    /// Requests a second that all its devices carry.
    carries: f64,
    /// Requests a second that gateways say they are asked for. Where they say that of other models alone, none.
    asked: Option<f64>,
    rooms: Arc<BTreeMap<DevicePlace, WeightRoom>>,
}

impl<'a> ServedModel<'a> {
    fn of(
        card: &'a ModelCard,
        places: Vec<DevicePlace>,
        members: &Members<'_>,
        (split, batch): (SplitChoice, BatchPolicy),
    ) -> Option<Self> {
        let cluster = cluster(&places, members, card.id)?;
        let model = Model::of_shape(card.name.clone(), card.shape, ELEMENT);
        let traffic = traffic::together(card.id, members);
        let asked = traffic.as_ref().and_then(|profile| profile.workload("as asked for"));
        let workload = asked.or_else(|| Workload::named("conversation"))?.within(Tokens(f64::from(card.shape.context)));
        let space = Space {
            phases: true,
            mixed: split != SplitChoice::Always,
            tensor_parallel: 1,
            repeat_hosts: false,
            ..Space::default()
        };
        // Nothing is known of speeds yet: any rate and deadline do for finding the groups that set them.
        let free = Reference { prefill: Prefill::default(), decode: Decode::default() };
        let mut first = Problem::new(cluster, model, workload, 1.0, Slo::default(), free, space).ok()?;
        let (carries, reference) = pace(&first)?;
        first.reference = reference;
        let mut whole = first.under(wanted(card.id, members));
        whole.noise = NOISE;
        whole.prompts = Batches::measured(profiles(&places, members, card.id)).by(batch).into();
        let said = || members.values().any(|advert| advert.traffic.iter().any(|traffic| traffic.rate > 0.0));
        let asked = traffic.map(|profile| profile.rate).or_else(|| said().then_some(0.0));
        let rooms = Arc::new(rooms(&places, members, card.id));
        Some(Self { card, places, whole, carries, asked, rooms })
    }

    /// Part of all its devices' time that it is taken to be asked for.
    fn demand(&self) -> f64 {
        self.asked.map_or(BUSY, |rate| (rate / self.carries).clamp(LEAST_DEMAND, BUSIEST))
    }

    fn inputs(&self, fair: &Fair, scarce: bool) -> Vec<SearchInput> {
        let mut inputs: Vec<SearchInput> =
            regions::split(&self.whole, regions::MOST).into_iter().filter_map(|region| self.input(region)).collect();
        if inputs.is_empty() {
            // Who together hold the model may have come into different regions.
            inputs.extend(room::fewest(&self.whole).and_then(|region| self.input(region)));
        }
        let total: f64 = inputs.iter().map(|s| s.carries).sum();
        let demand = self.demand();
        let planned = |input: &SearchInput| input.carries * input.mean(|place| fair.part(demand, place));
        let fair: f64 = inputs.iter().map(planned).sum();
        let (regions, wanted) = (inputs.len(), self.asked.map_or(0.0, |rate| rate / fair));
        // What its owner keeps in memory is missed like what is asked for.
        let is_kept = self.rooms.values().any(|room| room.is_kept);
        let is_unasked = !is_kept && self.asked.is_some_and(|rate| rate <= 0.0);
        let without = scarce.then_some(if is_unasked { WITHOUT_UNASKED } else { WITHOUT_ASKED });
        for input in &mut inputs {
            input.problem.rate = wanted.clamp(BUSY, BUSIEST) * planned(input);
            (input.share, input.regions, input.without) = (input.carries / total, regions, without);
        }
        inputs
    }

    fn input(&self, region: Devices) -> Option<SearchInput> {
        let places = region.iter().map(|(i, _)| self.places[i.0 as usize]).collect();
        let problem = self.whole.part(&region)?;
        let (carries, _) = pace(&problem)?;
        let context = problem.workload.mean.context;
        let power = |i| problem.layer_cost(i, 1).map_or(0.0, |cost| 1.0 / cost.decode.time(1.0, context).0.max(1e-12));
        let power = problem.cluster.ids().map(power).collect();
        let (card, rooms) = (self.card.clone(), self.rooms.clone());
        Some(SearchInput {
            card,
            places,
            problem,
            share: 1.0,
            regions: 1,
            carries,
            power,
            rooms,
            without: None,
            holdings: None,
            standing: Vec::new().into(),
        })
    }
}

/// What plans are held against: what members have set for those who wait for answers, or else what the swarm can do.
fn wanted(model: ModelId, members: &Members<'_>) -> Slo {
    let settings = SwarmSettings::of(members.values().copied());
    let targets = settings.targets(model, RequestClass::Interactive);
    targets.map_or_else(|| Slo::e2e(SCALE), |(targets, _)| settings::slo(targets))
}

/// Requests a second that mixed groups carry, and the fastest of them as the reference.
fn pace(problem: &Problem) -> Option<(f64, Reference)> {
    let mut evaluator = Evaluator::new(problem);
    let (mut rate, mut fastest): (f64, Option<(Seconds, Reference)>) = (0.0, None);
    let m = &problem.workload.mean;
    for members in start::small(problem, 1.0) {
        let Some(group) = evaluator.group(&members, Phase::Mixed) else { continue };
        let config = &evaluator.shelved(group).rated.config;
        rate += config.rate;
        let slowest = |a: Decode, b: &Decode| if b.time(1.0, m.context) > a.time(1.0, m.context) { *b } else { a };
        let decode = config.rounds.iter().fold(Decode::default(), slowest);
        let whole = parallel::mean(problem, &config.latency) + decode.time(1.0, m.context) * m.steps;
        if fastest.is_none_or(|(t, _)| whole < t) {
            fastest = Some((whole, Reference { prefill: config.latency, decode }));
        }
    }
    fastest.filter(|_| rate > 0.0 && rate.is_finite()).map(|(_, reference)| (rate, reference))
}

impl SearchInput {
    /// The devices it may use: peer, and place in its advert.
    #[must_use]
    pub fn places(&self) -> &[(PeerId, u16)] {
        &self.places
    }

    /// Searches for this model's plan.
    #[must_use]
    pub fn plan(&self) -> ModelPlan {
        self.part(&self.search())
    }

    fn search(&self) -> Found {
        let devices = self.problem.cluster.devices().max(1);
        let most = WORK / (devices * devices) / self.regions;
        let effort = Effort { steps: (devices * EVALUATIONS).min(most).div_ceil(10).max(1), ..Effort::default() };
        let replay = Replay { seed: SEED, requests: (REPLAYED / self.regions).max(30) };
        let plan = |problem: &Problem| reranking::plan(problem, SEED, effort, replay, &|| false).0;
        let found = plan(&self.problem);
        if found.grouping.parts.is_empty() && !self.problem.space.mixed {
            // One group alone has nobody to split with.
            return plan(&self.problem.within(Space { mixed: true, phases: false, ..self.problem.space }));
        }
        self.soonest(found)
    }

    fn part(&self, found: &Found) -> ModelPlan {
        let mut evaluator = Evaluator::new(&self.problem);
        let Some(groups) = search::shelved(&mut evaluator, &found.grouping) else { return ModelPlan::default() };
        let named: Vec<Group> = groups.iter().map(|g| self.named(&evaluator, *g)).collect();
        let count = |phase| named.iter().filter(|g| g.phase == phase).count();
        let reason = format!(
            "{} prefill, {} decode, {} do both; of {:.3} requests/s {:.0} % in time",
            count(Phase::Prefill),
            count(Phase::Decode),
            count(Phase::Mixed),
            self.problem.rate,
            found.evaluation.attainment * 100.0
        );
        let routes = self.carry(&mut evaluator, &named, &groups, &found.evaluation);
        ModelPlan { groups: named, routes, reason }
    }

    /// The routes of groups that somebody else chose.
    #[must_use]
    pub fn routes(&self, groups: &[Group]) -> Vec<Route> {
        let mut evaluator = Evaluator::new(&self.problem);
        let Some(numbers) = self.shelve(&mut evaluator, groups) else { return Vec::new() };
        let evaluation = evaluator.evaluate(&numbers);
        self.carry(&mut evaluator, groups, &numbers, &evaluation)
    }

    /// Shares as routes, one in all for all regions; what a plan turns away on paper is still answered, late. A group that
    /// the plan has no use for gets next to nothing, not nothing: queues can only send work where there is a route.
    fn carry(
        &self,
        evaluator: &mut Evaluator<'_>,
        named: &[Group],
        numbers: &[GroupNo],
        found: &Evaluation,
    ) -> Vec<Route> {
        let carried = found.carried();
        if carried <= 0.0 {
            return Vec::new();
        }
        let apart = found.shares.iter().filter(|s| s.prefill != s.decode);
        let most = apart.max_by(|a, b| a.share.total_cmp(&b.share));
        let idle = |g: &usize| found.shares.iter().all(|s| s.prefill != *g && s.decode != *g);
        // A group holds all layers whatever its phase: one that no other works with does both.
        let beside = |g: usize| match (named[g].phase, most) {
            (Phase::Prefill, Some(most)) => (g, most.decode),
            (Phase::Decode, Some(most)) => (most.prefill, g),
            _ => (g, g),
        };
        let mut open =
            |(from, to): &(usize, usize)| from == to || evaluator.way(numbers[*from], numbers[*to]).is_open();
        let reserves: Vec<(usize, usize)> = (0..named.len()).filter(idle).map(beside).filter(&mut open).collect();
        let each = NOISE / named.len() as f64;
        let planned = (1.0 - each * reserves.len() as f64) / carried;
        let shares = found.shares.iter().map(|s| ((s.prefill, s.decode), s.share * planned));
        let route = |((prefill, decode), share): ((usize, usize), f64)| Route {
            prefill: named[prefill].id,
            decode: named[decode].id,
            share: (self.share * share).clamp(0.0, 1.0),
        };
        shares.chain(reserves.into_iter().map(|pair| (pair, each))).map(route).collect()
    }

    /// What groups of this model are worth; nothing, if they are not what the devices can do.
    #[must_use]
    pub fn value(&self, groups: &[Group]) -> f64 {
        let mut evaluator = Evaluator::new(&self.problem);
        match self.shelve(&mut evaluator, groups) {
            Some(numbers) if !numbers.is_empty() => evaluator.evaluate(&numbers).value,
            _ => 0.0,
        }
    }

    /// The mean of something over its devices, by what each does.
    fn mean(&self, of: impl Fn(&DevicePlace) -> f64) -> f64 {
        let sum = self.places.iter().zip(&self.power).map(|(place, power)| power * of(place)).sum::<f64>();
        sum / self.power.iter().sum::<f64>()
    }

    fn has(&self, stage: &Stage) -> bool {
        self.places.contains(&(stage.peer, stage.device))
    }

    fn named(&self, evaluator: &Evaluator<'_>, group: GroupNo) -> Group {
        let shelved = evaluator.shelved(group);
        let mut start = 0;
        let stage = |s: &parallel::ParallelStage| {
            let (peer, device) = self.places[s.instance.0 as usize];
            let layers = LayerRange { start, end: start + s.layers };
            start = layers.end;
            Stage { peer, device, layers }
        };
        Group::new(self.card.id, shelved.rated.phase, shelved.rated.config.stages.iter().map(stage).collect())
    }

    fn shelve(&self, evaluator: &mut Evaluator<'_>, groups: &[Group]) -> Option<Vec<GroupNo>> {
        let mut numbers = Vec::with_capacity(groups.len());
        for group in groups {
            let stage = |s: &Stage| {
                let place = self.places.iter().position(|p| *p == (s.peer, s.device))?;
                Some(parallel::ParallelStage { instance: InstanceId(place as u32), tp: 1, layers: s.layers.len() })
            };
            let stages: Option<Vec<parallel::ParallelStage>> = group.stages.iter().map(stage).collect();
            let stages = stages?;
            let config = parallel::given(&self.problem, &stages, group.phase)?;
            let mut devices: Devices = stages.iter().map(|s| (s.instance, 1)).collect();
            devices.sort_unstable();
            numbers.push(evaluator.shelve(devices, group.phase, config));
        }
        Some(numbers)
    }
}

/// Plans for all models of these inputs, made while `standing` is in force.
#[must_use]
pub fn planned(inputs: Vec<SearchInput>, standing: Option<&Plan>) -> Vec<(SearchInput, ModelPlan)> {
    sharing::planned(inputs.into_iter().map(|input| input.under(standing)).collect())
}

/// The same inputs where these groups take their part of the devices' time.
#[must_use]
pub fn beside(inputs: Vec<SearchInput>, groups: &[Group]) -> Vec<SearchInput> {
    let taken = DeviceTime::by_groups(&inputs, groups);
    inputs.iter().map(|input| input.beside_others(&taken)).collect()
}

/// What a whole plan is worth on a view.
#[must_use]
pub fn value(plan: &Plan, members: &Members<'_>, split: SplitChoice) -> f64 {
    sharing::worth(&inputs_under(members, split, &plan.chosen), &plan.groups)
}
