//! Claims of speed under load: honest peers whose hosts, queues and gateway are busy in every way are never accused, and one
//! that claims five times its speed is found among them.
#![expect(clippy::unwrap_used, reason = "a group that is not in the plan fails the test")]

use crate::lenders::{self, MODEL};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tsnode_coordinator::{
    claim_check::{ClaimCheck, ClaimedWork, SeenWork},
    gateway::View,
    policy::{
        batching::ServiceNo,
        sharing::{
            TurnOrder,
            arbiter::{self, Arbitration, StepShare},
        },
    },
    rng::Rng,
    sample,
    trust::{Offence, Trust},
};
use tsnode_protocol::{Advert, Group, LayerRange, Load, PeerId, Phase, Quickest, Seconds, Stage, StepSize, TimedStep};

/// Swarms of each kind.
const SEEDS: u64 = 200;
/// How long each is under load where nobody lies, and at most where somebody does (s).
const SPAN: f64 = 60.0;
const LONG: f64 = 900.0;
/// Answers by one that claims five times its speed until it is cut off: those one after the other, with all that are not
/// looked at. Without load it takes sixteen.
const BOUND: usize = 80;
/// The same where nearly all work goes to it by its claims, until others are known.
const DRAWN: usize = 400;
/// Swarms of that kind; by two hundred none was missed either.
const DRAWN_SEEDS: u64 = 50;
/// One swarm in so many may not find it: where others' steps are longer than what their hosts have of a core at a time, all of
/// them are disturbed.
const HIDDEN: u64 = 100;
const PROMPT: u32 = 25;
const ANSWER: u32 = 40;
const LAYERS: u32 = 4;
/// What a token takes from a leader to the gateway, and a step beside what is computed (s).
const NETWORK: f64 = 3e-4;
const OVERHEAD: f64 = 2e-4;
/// How often the gateway hears of groups (s).
const HEARS: f64 = 0.25;

/// When a process has the processor, as its host's other work lets it.
struct BusyHost(Vec<(f64, f64)>);

impl BusyHost {
    /// With so much of a core while all is quiet; neighbours come in bursts and take most of it, and now and then it stands still.
    fn new(rng: &mut Rng, share: f64) -> Self {
        let (mut slices, mut at) = (Vec::new(), 0.0);
        let (mut until, mut has) = (0.0, share);
        while at < 2.0 * LONG {
            if at >= until {
                let is_calm = rng.unit() < 0.6;
                has = if is_calm { share } else { share * (0.05 + 0.5 * rng.unit()) };
                until = at + if is_calm { 4.0 } else { 2.0 } * rng.unit();
                at += if rng.unit() < 0.05 { 3.0 * rng.unit() } else { 0.0 };
            }
            let on = 1e-3 + 4e-3 * rng.unit();
            slices.push((at, at + on));
            at += on + on * (1.0 / has - 1.0) * (0.5 + rng.unit());
        }
        Self(slices)
    }

    /// When `work` seconds of computing are done that begin `from` then.
    fn done(&self, from: f64, mut work: f64) -> f64 {
        let first = self.0.partition_point(|(_, end)| *end <= from);
        for (begin, end) in &self.0[first..] {
            let begin = begin.max(from);
            if work <= end - begin {
                return begin + work;
            }
            work -= end - begin;
        }
        f64::INFINITY
    }
}

/// An answer, as its gateway sees it come.
struct ArrivingAnswer {
    asked: f64,
    tokens: u32,
    second: f64,
    last: f64,
    stood: f64,
}

/// Another model on a lender's device, which always has work: steps of both go by turns.
struct Neighbour {
    arbiter: Box<dyn Arbitration<u32>>,
    /// What its steps take.
    takes: f64,
}

impl Neighbour {
    const OWN: ServiceNo = ServiceNo(0);
    const OTHER: ServiceNo = ServiceNo(1);

    fn new(order: TurnOrder, takes: f64) -> Self {
        let mut arbiter = order.arbiter::<u32>();
        for service in [Self::OWN, Self::OTHER] {
            arbiter.enters(service, 0, PROMPT);
        }
        let mut new = Self { arbiter, takes };
        new.asks(Self::OTHER);
        new
    }

    fn asks(&mut self, service: ServiceNo) {
        self.arbiter.asks(service, arbiter::DeviceWork::Step(vec![StepShare { request: 0, prompt_tokens: 0 }]));
    }

    /// How long a step waits for its turn, which takes so long.
    fn waited_for(&mut self, work: f64) -> f64 {
        self.asks(Self::OWN);
        let mut waited = 0.0;
        while self.arbiter.next() == Some(Self::OTHER) {
            self.arbiter.over(Seconds(self.takes));
            waited += self.takes;
            self.asks(Self::OTHER);
        }
        self.arbiter.over(Seconds(work));
        waited
    }
}

/// A lender, and what it really is.
struct TrueLender {
    host: BusyHost,
    beside: Option<Neighbour>,
    /// What a step takes, and each sequence and each token of a prompt in it (s).
    costs: [f64; 3],
    free: f64,
    waiting: Vec<ArrivingAnswer>,
    running: Vec<ArrivingAnswer>,
    steps: VecDeque<TimedStep>,
}

impl TrueLender {
    fn next(&self) -> f64 {
        let asked = self.waiting.iter().map(|a| a.asked).fold(f64::INFINITY, f64::min);
        if self.running.is_empty() { self.free.max(asked) } else { self.free }
    }

    /// A step; its tokens are in the gateway's hands when that is run next. Answers that are complete.
    fn step(&mut self, gateway: &BusyHost) -> Vec<ArrivingAnswer> {
        let begun = self.next();
        let (new, later): (Vec<ArrivingAnswer>, _) = self.waiting.drain(..).partition(|a| a.asked <= begun);
        self.waiting = later;
        let prompts = PROMPT * new.len() as u32;
        let answers = self.running.len() as u32;
        self.running.extend(new);
        let [step, answer, prompt] = self.costs;
        let work = step + answer * f64::from(answers) + prompt * f64::from(prompts);
        let turn = begun + self.beside.as_mut().map_or(0.0, |neighbour| neighbour.waited_for(work));
        self.free = self.host.done(turn, work) + OVERHEAD;
        let context = u64::from(answers) * u64::from(PROMPT + ANSWER / 2);
        let size = StepSize { prompts, pairs: u64::from(PROMPT * prompts), answers, context };
        if prompts == 0 {
            self.steps.push_back(TimedStep { took: Seconds(self.free - turn), size });
            if self.steps.len() > 64 {
                self.steps.pop_front();
            }
        }
        let arrives = gateway.done(self.free + NETWORK, 0.0);
        for a in &mut self.running {
            a.tokens += 1;
            match a.tokens {
                1 => {}
                2 => a.second = arrives,
                _ => a.stood = a.stood.max(arrives - a.last),
            }
            a.last = arrives;
        }
        let (complete, running) = self.running.drain(..).partition(|a| a.tokens == ANSWER);
        self.running = running;
        complete
    }

    fn load(&self) -> Load {
        let enough = Some(&self.steps).filter(|steps| steps.len() >= 32);
        let answers = enough.and_then(|s| s.iter().copied().min_by(|a, b| a.took.0.total_cmp(&b.took.0)));
        Load { running: self.running.len() as u32, quickest: Quickest { prompts: None, answers }, ..Load::default() }
    }
}

/// Who says that a claim is false.
trait ClaimJudge {
    fn hear(&mut self, _: Duration, _: &View) {}
    fn saw(&mut self, view: &View, group: &Group, seen: SeenWork) -> Option<(PeerId, Offence)>;
    /// What a group's share of the work is multiplied with.
    fn weight(&self, _: &Group) -> f64 {
        1.0
    }
}

impl ClaimJudge for ClaimCheck {
    fn hear(&mut self, now: Duration, view: &View) {
        self.hear(now, view);
    }

    fn saw(&mut self, view: &View, group: &Group, seen: SeenWork) -> Option<(PeerId, Offence)> {
        self.saw(view, group, seen)
    }

    fn weight(&self, group: &Group) -> f64 {
        self.weight(group.id, Phase::Decode)
    }
}

/// The rule until protocol version 14: the best of the last eight answers by the clock, against the median of the others' best.
#[derive(Default)]
struct ByTheClock(BTreeMap<PeerId, VecDeque<f64>>);

impl ClaimJudge for ByTheClock {
    fn saw(&mut self, view: &View, group: &Group, seen: SeenWork) -> Option<(PeerId, Offence)> {
        let leader = group.leader()?;
        let [step, _, answer] = view.adverts[&leader].devices[0].profile(MODEL)?.decode;
        let claimed = (step + answer) * f64::from(LAYERS * (ANSWER - 2));
        let works = self.0.entry(leader).or_default();
        works.push_back(seen.took.as_secs_f64() / claimed);
        if works.len() > 8 {
            works.pop_front();
        }
        let best = |works: &VecDeque<f64>| (works.len() == 8).then(|| works.iter().copied().fold(f64::MAX, f64::min));
        let own = best(&self.0[&leader])?;
        let mut others: Vec<f64> = self.0.iter().filter(|(p, _)| **p != leader).filter_map(|(_, w)| best(w)).collect();
        others.sort_by(f64::total_cmp);
        let median = others.get(others.len() / 2).filter(|_| others.len() >= 2)?.max(f64::MIN_POSITIVE);
        (own / median >= 16.0).then_some((leader, Offence::FalseSpeed { times: 16, is_seconded: true }))
    }
}

/// A gateway and its lenders, one group each, who claim what they are, over `boasts`.
struct LenderSwarm {
    lenders: Vec<TrueLender>,
    gateway: BusyHost,
    view: View,
    clients: usize,
    by: By,
    rng: Rng,
}

/// Who gets a request.
#[derive(Clone, Copy, PartialEq)]
enum By {
    /// Everybody alike.
    Lot,
    /// By claims, as a plan's shares are, and by what the gateway makes of them.
    Claim,
}

impl LenderSwarm {
    fn new(seed: u64, boaster: Option<f64>, by: By) -> Self {
        let mut rng = Rng::new(seed);
        let count = 3 + rng.below(4);
        // They may share one machine's cores, or have their own.
        let share = [1.0, 0.5, 0.25][rng.below(3)];
        let scale = 10f64.powf(-3.0 + 0.7 * rng.unit());
        let costs = |rng: &mut Rng| [scale * (0.5 + rng.unit()), 0.3 * scale, 0.05 * scale];
        let lenders: Vec<TrueLender> = (0..count)
            .map(|_| TrueLender {
                host: BusyHost::new(&mut rng, share),
                beside: None,
                costs: costs(&mut rng),
                free: 0.0,
                waiting: Vec::new(),
                running: Vec::new(),
                steps: VecDeque::new(),
            })
            .collect();
        let boast = |n: usize, rng: &mut Rng| boaster.filter(|_| n == 0).unwrap_or(0.8 + 0.5 * rng.unit());
        let adverts = lenders.iter().enumerate().map(|(n, l)| (peer(n), advert(l.costs, boast(n, &mut rng))));
        let stage = |n| Stage { peer: peer(n), device: 0, layers: LayerRange { start: 0, end: LAYERS } };
        let groups = (0..count).map(|n| Group::new(MODEL, Phase::Mixed, vec![stage(n)])).collect();
        let view = lenders::view(groups, vec![], adverts);
        let gateway = BusyHost::new(&mut rng, share);
        let clients = [1, 2, 6, 6, 16, 64][rng.below(6)];
        Self { lenders, gateway, view, clients, by, rng }
    }

    /// The same where every other lender's device has another model too, whose steps take from a third to thirty times as long.
    fn beside_others(mut self, order: TurnOrder) -> Self {
        let mut rng = Rng::new(self.clients as u64);
        for lender in self.lenders.iter_mut().step_by(2) {
            let takes = lender.costs[0] * 10f64.powf(2.0 * rng.unit() - 0.5);
            lender.beside = Some(Neighbour::new(order, takes));
        }
        self
    }

    /// Clients ask without pause for so long, or until somebody is cut off where one is to be. Whom the gateway cuts off, and after
    /// how many of its answers one after the other.
    fn run(&mut self, span: f64, judge: &mut impl ClaimJudge) -> Vec<(usize, usize)> {
        let (mut trust, mut hears, mut cut) = (Trust::default(), 0.0, Vec::new());
        let (mut answers, mut until) = (vec![0; self.lenders.len()], vec![0.0; self.lenders.len()]);
        for client in 0..self.clients {
            self.ask(1e-3 * client as f64, judge);
        }
        loop {
            let next = (0..self.lenders.len()).min_by(|a, b| self.at(*a).total_cmp(&self.at(*b))).unwrap();
            let now = self.at(next);
            if now >= span || (span > SPAN && !cut.is_empty()) {
                return cut;
            }
            if now >= hears {
                hears = now + HEARS;
                let groups = self.view.plan.clone().unwrap().groups.clone();
                self.view.up = groups.iter().zip(&self.lenders).map(|(g, l)| (g.id, l.load())).collect();
                judge.hear(Duration::from_secs_f64(now), &self.view);
            }
            let group = self.view.plan.as_ref().unwrap().groups[next].clone();
            for answer in self.lenders[next].step(&self.gateway) {
                if answer.second >= until[next] {
                    (answers[next], until[next]) = (answers[next] + 1, answer.last);
                }
                let seen = seen(&answer, 1 + self.lenders[next].running.len() as u32);
                if let Some((who, offence)) = judge.saw(&self.view, &group, seen)
                    && trust.offends(seen.at, who, offence).is_some()
                {
                    cut.push((next, answers[next]));
                }
                self.ask(answer.last + 1e-3, judge);
            }
        }
    }

    fn at(&self, lender: usize) -> f64 {
        self.lenders[lender].next()
    }

    fn ask(&mut self, asked: f64, judge: &impl ClaimJudge) {
        let groups = &self.view.plan.as_ref().unwrap().groups;
        let share = |group: &Group| match self.by {
            By::Lot => 1.0,
            By::Claim => {
                let [step, _, answer] =
                    self.view.adverts[&group.leader().unwrap()].devices[0].profile(MODEL).unwrap().decode;
                judge.weight(group) / (step + answer)
            }
        };
        let shares: Vec<f64> = groups.iter().map(share).collect();
        let mut drawn = self.rng.unit() * shares.iter().sum::<f64>();
        let is_drawn = |share: &f64| {
            drawn -= share;
            drawn < 0.0
        };
        let lender = shares.iter().position(is_drawn).unwrap_or(shares.len() - 1);
        self.lenders[lender].waiting.push(ArrivingAnswer { asked, tokens: 0, second: 0.0, last: 0.0, stood: 0.0 });
    }
}

/// Who lends several models waits for turns, and computes no more slowly for that: the gateway's clock sees it, and its own steps
/// do not say so. Who claims five times its speed is found behind a neighbour as well.
#[test]
fn who_waits_for_its_turn_is_not_slow_and_who_claims_too_much_is_found_all_the_same() {
    for (name, order) in TurnOrder::ALL {
        for by in [By::Lot, By::Claim] {
            let honest =
                |seed| LenderSwarm::new(seed, None, by).beside_others(order).run(SPAN, &mut ClaimCheck::default());
            let cut: Vec<_> = (0..DRAWN_SEEDS).map(honest).filter(|cut| !cut.is_empty()).collect();
            assert_eq!(cut, Vec::<Vec<_>>::new(), "{name}");
        }
        let boasts = |seed| {
            LenderSwarm::new(seed, Some(5.0), By::Lot).beside_others(order).run(LONG, &mut ClaimCheck::default())
        };
        let all: Vec<_> = (0..DRAWN_SEEDS).map(boasts).collect();
        assert!(all.iter().flatten().all(|(who, _)| *who == 0), "{name}: {all:?}");
        let found = all.iter().filter(|cut| !cut.is_empty()).count();
        println!("{name}: found in {found} of {DRAWN_SEEDS}");
        assert!(found as u64 * 10 >= DRAWN_SEEDS * 8, "{name}: found in {found} of {DRAWN_SEEDS}");
    }
}

/// From the second token to the last, as a gateway counts.
fn seen(answer: &ArrivingAnswer, sequences: u32) -> SeenWork {
    let [at, took, stood] = [answer.last, answer.last - answer.second, answer.stood].map(Duration::from_secs_f64);
    let work = ClaimedWork::Answer { tokens: ANSWER - 2, context: PROMPT + ANSWER / 2 };
    SeenWork { work, at, took, stood, sequences }
}

fn peer(n: usize) -> PeerId {
    PeerId([n as u8 + 1; 32])
}

fn advert([step, answer, prompt]: [f64; 3], boast: f64) -> Advert {
    let layer = |seconds: f64| seconds / f64::from(LAYERS) / boast;
    sample::measured(0, [layer(step), layer(prompt), 0.0], [layer(step), 0.0, layer(answer)])
}

#[test]
fn nobody_honest_is_accused_under_any_load() {
    for (by, seeds) in [(By::Lot, SEEDS), (By::Claim, DRAWN_SEEDS)] {
        let cut = |seed| LenderSwarm::new(seed, None, by).run(SPAN, &mut ClaimCheck::default());
        let cut: Vec<_> = (0..seeds).map(|seed| (seed, cut(seed))).filter(|(_, cut)| !cut.is_empty()).collect();
        assert!(cut.is_empty(), "{} of {seeds} swarms: {:?}", cut.len(), &cut[..cut.len().min(8)]);
    }
}

#[test]
fn by_the_clock_alone_such_load_has_honest_peers_cut_off() {
    let cut = |seed| LenderSwarm::new(seed, None, By::Lot).run(SPAN, &mut ByTheClock::default());
    let swarms = (0..SEEDS).filter(|seed| !cut(*seed).is_empty()).count();
    println!("in {swarms} of {SEEDS} swarms");
    assert!(swarms > 0, "the load is none");
}

/// After how many of its answers one that claims so many times its speed is cut off, in each swarm where it is.
fn found(boast: f64, by: By, seeds: u64) -> Vec<usize> {
    let mut found = Vec::new();
    for seed in 0..seeds {
        let cut = LenderSwarm::new(seed, Some(boast), by).run(LONG, &mut ClaimCheck::default());
        assert!(cut.iter().all(|(who, _)| *who == 0), "seed {seed}: {cut:?}");
        found.extend(cut.first().map(|(_, answers)| *answers));
    }
    found.sort_unstable();
    let (most, missed) = (found.last().copied().unwrap_or_default(), seeds - found.len() as u64);
    println!(
        "{boast}: after {} answers in the middle, {most} at most; not in {missed} of {seeds}",
        found[found.len() / 2]
    );
    found
}

#[test]
fn who_claims_five_times_its_speed_is_found_and_nobody_else_is() {
    let found = found(5.0, By::Lot, SEEDS);
    let missed = SEEDS - found.len() as u64;
    assert!(missed * HIDDEN <= SEEDS && found.iter().all(|answers| *answers <= BOUND), "{found:?}");
}

#[test]
fn who_draws_nearly_all_work_by_its_claims_is_found_and_nobody_else_is() {
    for boast in [5.0, 500.0] {
        let found = found(boast, By::Claim, DRAWN_SEEDS);
        let missed = DRAWN_SEEDS - found.len() as u64;
        assert!(missed == 0 && found.iter().all(|answers| *answers <= DRAWN), "{boast}: {found:?}");
    }
}
