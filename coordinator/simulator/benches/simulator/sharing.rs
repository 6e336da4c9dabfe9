//! Two services on one GPU under each order of sharing (SeaLLM §4.2, §6.3), and what wrong profiles do (Figure 13).

use std::sync::Arc;
use tsnode_coordinator::{
    policy::{
        batching::{Batching, Limits, ServiceNo},
        routing::Asked,
    },
    replay::{
        cost::IterationCost,
        machines::{Alike, Arrival, Machine, Simulation},
    },
    rng::Rng,
    scheduler::{
        Workload,
        cluster::Path,
        cost::{Ends, LayerCost, USABLE},
        figures::{Column, Figures, shipped},
        models::{self, Model},
    },
};
use tsnode_protocol::{Bytes, BytesPerSecond, Seconds, SecondsPerToken};
use tsnode_simulator::{
    cost::{Fit, Several, alone},
    policy::{
        doubling::{Doubling, Expected, Profile},
        feedback::{Feedback, Queues},
        pages::Pages,
        round_robin::{FirstCome, RoundRobin},
        sharing::order::{Lead, Memory, Prompts, Rules},
        shortest_queue::ShortestQueue,
    },
    summary::normalised,
    trace::{Arriving, beside, drawn},
};

/// SeaLLM's, one of it.
const GPU: &str = "A800";
const LIMITS: Limits = Limits { tasks: 32, tokens: 4096 };
/// Squared coefficient of variation of the gaps between a service's requests.
const BURSTS: f64 = 16.0;
const REQUESTS: f64 = 1500.0;
/// Rules were chosen on others.
const SEEDS: [u64; 3] = [11, 12, 13];
/// Each service's load: its requests' times alone, as a part of the GPU's time; batches make more than 1 possible.
const LOADS: [f64; 4] = [0.6, 1.2, 1.8, 2.4];
/// Model and workload of two services.
type Pair = [(&'static str, &'static str); 2];
const PAIRS: [Pair; 2] = [
    [("Llama-2-7B", "coding"), ("Llama-2-13B", "conversation")],
    [("Llama-2-7B", "conversation"), ("Llama-2-13B", "coding")],
];
/// First quantum and queues of the queues with feedback: from an iteration to a minute.
const QUANTUM: Seconds = Seconds(0.02);
const QUEUES: u32 = 12;

#[derive(Clone, Copy, Debug)]
enum Order {
    Doubling(Rules, Known),
    FirstCome,
    RoundRobin,
    Feedback,
}

/// What the doubling budget knows of a request.
#[derive(Clone, Copy, Debug)]
enum Known {
    Service,
    Prompt,
}

const PRINTED: Rules = Rules { prompts: Prompts::Wait, memory: Memory::Kept, lead: Lead::First };
const ORDERS: [(&str, Order); 8] = [
    ("doubling as printed", Order::Doubling(PRINTED, Known::Service)),
    ("+ prompts join", Order::Doubling(Rules { prompts: Prompts::Join, ..PRINTED }, Known::Service)),
    ("+ memory taken back", Order::Doubling(Rules { lead: Lead::First, ..Doubling::RULES }, Known::Service)),
    ("+ batches weighed", Order::Doubling(Doubling::RULES, Known::Service)),
    OURS,
    ("first come", Order::FirstCome),
    ("round robin", Order::RoundRobin),
    ("skip-join queues", Order::Feedback),
];
const OURS: (&str, Order) = ("+ prompts' lengths", Order::Doubling(Doubling::RULES, Known::Prompt));

/// A GPU with two models on it.
struct Gpu {
    workloads: Vec<Workload>,
    cost: Arc<Several>,
    pages: Pages,
    /// What is right of the services, as printed and by prompt.
    profiles: [Vec<Profile>; 2],
    prompt: Vec<SecondsPerToken>,
}

/// Closed forms of a model alone on the GPU.
fn fit(model: &Model, gpu: &Figures) -> Fit {
    let inside = Path { latency: Seconds(0.0), bandwidth: BytesPerSecond(1e12) };
    let (layer, ends) = (LayerCost::new(model, gpu, inside, 1), Ends { first: true, last: true });
    let decode = layer.stage_decode(model.shape.layers, ends);
    Fit {
        prefill: layer.stage_prefill(model.shape.layers, ends),
        few: decode,
        lots: decode,
        many: u32::MAX,
        stages: 1,
        handing_prompts: Seconds(0.0),
        handing: Seconds(0.0),
        handing_token: SecondsPerToken(0.0),
    }
}

impl Gpu {
    fn new(pair: Pair) -> Self {
        let gpu = shipped(Column::Vendor).remove(GPU).expect("it is known");
        let models = pair.map(|(name, _)| models::by_name(name).expect("it is known"));
        let workloads = pair.map(|(_, name)| Workload::named(name).expect("it is known"));
        let fits = [0, 1].map(|n| fit(&models[n], &gpu));
        let costs = fits.iter().map(|f| Arc::new(*f) as Arc<dyn IterationCost>).collect();
        let cost = Several::new(costs).expect("there are two");
        let weights: f64 = models.iter().map(|m| m.bytes().0).sum();
        let kv = [0, 1].map(|n| models[n].kv());
        let profiles = [0, 1].map(|n| {
            let asked = |r: &tsnode_coordinator::scheduler::workload::Request| Asked {
                service: ServiceNo(n as u16),
                ..Asked::new(r.prompt.0 as u32, r.answer.0 as u32)
            };
            let all = workloads[n].requests.iter().map(asked);
            let prompt = |a: Asked| alone(&cost, Asked { answer: 1, ..a });
            let whole: Vec<Seconds> = all.clone().map(|a| alone(&cost, a)).collect();
            let answers: Vec<Seconds> = all.map(|a| alone(&cost, a) - prompt(a)).collect();
            let profile = Profile::of(&whole);
            (profile, profile.by_prompt(fits[n].prefill.per_token, &answers))
        });
        Self {
            workloads: workloads.to_vec(),
            cost: Arc::new(cost),
            pages: Pages::merged(Bytes(gpu.memory.0 * USABLE - weights), &kv),
            profiles: [profiles.map(|p| p.0).to_vec(), profiles.map(|p| p.1).to_vec()],
            prompt: fits.map(|f| f.prefill.per_token).to_vec(),
        }
    }

    /// Both services' requests over one span, each of this load.
    fn requests(&self, load: f64, seed: u64) -> Vec<Arrival> {
        let rates: Vec<f64> = self.profiles[0].iter().map(|p| load / p.mean.0).collect();
        let all: f64 = rates.iter().sum();
        let list = |(n, rate): (usize, &f64)| {
            let requests = (REQUESTS * rate / all) as usize;
            drawn(&self.workloads[n], *rate, requests, Arriving::Bursty(BURSTS), 10 * seed + n as u64)
        };
        beside(rates.iter().enumerate().map(list).collect())
    }

    fn policy(&self, order: Order, profiles: &[Vec<Profile>; 2]) -> Box<dyn Batching> {
        let pages = self.pages.clone();
        match order {
            Order::Doubling(rules, known) => {
                let profiles = profiles[usize::from(matches!(known, Known::Prompt))].clone();
                Box::new(Doubling::new(profiles, LIMITS, pages).by(rules))
            }
            Order::FirstCome => Box::new(FirstCome::new(LIMITS, pages)),
            Order::RoundRobin => Box::new(RoundRobin::new(LIMITS, pages)),
            Order::Feedback => {
                let (prompt, patience) = (self.prompt.clone(), Seconds(f64::INFINITY));
                Box::new(Feedback::new(Queues { quantum: QUANTUM, levels: QUEUES, prompt, patience }, LIMITS, pages))
            }
        }
    }

    /// Mean and P99 of normalised latencies, and the part of the time the GPU was busy.
    fn run(&self, order: Order, profiles: &[Vec<Profile>; 2], arrivals: &[Arrival]) -> [f64; 3] {
        let machine = Machine { batching: self.policy(order, profiles), cost: self.cost.clone() };
        let links = Alike { per_token: SecondsPerToken(0.0) };
        let simulation = Simulation::new(vec![machine], Box::new(ShortestQueue::new(1)), Box::new(links));
        let outcome = simulation.run(arrivals, &|_| false);
        let means: Vec<Seconds> = self.profiles[0].iter().map(|p| p.mean).collect();
        let all = normalised(&outcome.traces, &means);
        [all.mean(), all.at(0.99), outcome.busy[0]]
    }

    /// The same, averaged over seeds.
    fn runs(&self, order: Order, load: f64) -> [f64; 3] {
        let all = SEEDS.map(|seed| self.run(order, &self.profiles, &self.requests(load, seed)));
        average(&all)
    }
}

fn average(all: &[[f64; 3]]) -> [f64; 3] {
    [0, 1, 2].map(|n| all.iter().map(|one| one[n]).sum::<f64>() / all.len() as f64)
}

fn orders(gpu: &Gpu) {
    let heads: Vec<String> = LOADS.iter().map(|l| format!("{l}: mean, P99 | times ours")).collect();
    println!("| order | {} |\n|---|{}", heads.join(" | "), "---|---|".repeat(LOADS.len()));
    let ours = LOADS.map(|load| gpu.runs(OURS.1, load));
    for (name, order) in ORDERS {
        let cells: Vec<String> = std::iter::zip(LOADS, ours)
            .map(|(load, ours)| {
                let [mean, late, _] = gpu.runs(order, load);
                format!("{mean:.2}, {late:.0} | {:.2}", mean / ours[0])
            })
            .collect();
        println!("| {name} | {} |", cells.join(" | "));
    }
    let busy: Vec<String> = ours.iter().map(|o| format!("{:.2} | ", o[2])).collect();
    println!("| GPU busy (ours) | {}", busy.join("| "));
}

/// A profile each of whose figures is off by up to this part, evenly.
fn wrong(profile: &Profile, error: f64, rng: &mut Rng) -> Profile {
    let mut off = || 1.0 + error * (2.0 * rng.unit() - 1.0);
    let expected = match profile.expected {
        Expected::AsAll(deviation) => Expected::AsAll(deviation * off()),
        Expected::ByPrompt { prompt, answer, deviation } => Expected::ByPrompt {
            prompt: SecondsPerToken(prompt.0 * off()),
            answer: answer * off(),
            deviation: deviation * off(),
        },
    };
    Profile { mean: profile.mean * off(), expected, ..*profile }
}

/// Profiles that are wrong, and profiles of one service taken for the other's.
fn wrong_profiles(gpu: &Gpu, load: f64) {
    println!(
        "| profiles off by up to | as printed, prompts join, memory taken back: mean, P99 | ours: mean, P99 |\n|---|---|---|"
    );
    let row = |name: &str, draws: u64, of: &dyn Fn(&[Profile], &mut Rng) -> Vec<Profile>| {
        let cells = [ORDERS[2].1, OURS.1].map(|order| {
            let mut all = Vec::new();
            for (seed, draw) in SEEDS.iter().flat_map(|s| (0..draws).map(move |d| (*s, d))) {
                let mut rng = Rng::new(100 * seed + draw);
                let profiles = [0, 1].map(|n: usize| of(&gpu.profiles[n], &mut rng));
                all.push(gpu.run(order, &profiles, &gpu.requests(load, seed)));
            }
            let [mean, late, _] = average(&all);
            format!("{mean:.2}, {late:.0}")
        });
        println!("| {name} | {} |", cells.join(" | "));
    };
    for percent in [0, 10, 25, 50, 90] {
        let error = f64::from(percent) / 100.0;
        let draws = if percent == 0 { 1 } else { 5 };
        row(&format!("{percent} %"), draws, &|right, rng| right.iter().map(|p| wrong(p, error, rng)).collect());
    }
    row("the two services' mixed up", 1, &|right, _| right.iter().rev().copied().collect());
}

/// Answers longer or shorter than what profiles were taken from: Gaussian, as Figure 13 has it.
fn wrong_lengths(gpu: &Gpu, load: f64) {
    println!(
        "\n| deviation, times the answer | {} |\n|---|{}",
        ORDERS.map(|o| o.0).join(" | "),
        "---|".repeat(ORDERS.len())
    );
    for times in [0.0, 0.5, 1.0, 2.0, 4.0] {
        let changed = |seed: u64| {
            let mut rng = Rng::new(1000 + seed);
            let mut change = |a: Arrival| {
                let normal = rng.exponential(2.0).sqrt() * (std::f64::consts::TAU * rng.unit()).cos();
                let answer = f64::from(a.asked.answer) * (1.0 + times * normal);
                Arrival { asked: Asked { answer: answer.clamp(1.0, 4096.0) as u32, ..a.asked }, ..a }
            };
            gpu.requests(load, seed).into_iter().map(&mut change).collect::<Vec<_>>()
        };
        let cell = |order: Order| {
            let [mean, late, _] = average(&SEEDS.map(|seed| gpu.run(order, &gpu.profiles, &changed(seed))));
            format!("{mean:.2}, {late:.0}")
        };
        println!("| {times} | {} |", ORDERS.map(|o| cell(o.1)).join(" | "));
    }
}

fn profiled_deviation(profile: &Profile) -> Seconds {
    match profile.expected {
        Expected::AsAll(deviation) | Expected::ByPrompt { deviation, .. } => deviation,
    }
}

pub fn print() {
    for pair in PAIRS {
        let gpu = Gpu::new(pair);
        for ((model, workload), profile) in std::iter::zip(pair, &gpu.profiles[0]) {
            let deviation = profiled_deviation(profile);
            println!("{workload} on {model}: {:.2} s alone, deviation {:.2} s", profile.mean.0, deviation.0);
        }
        println!("{GPU}, {} pages of KV, bursts of c² {BURSTS}, {REQUESTS} requests, {LIMITS:?}\n", gpu.pages.all());
        orders(&gpu);
        println!();
    }
    let gpu = Gpu::new(PAIRS[0]);
    println!("### Wrong profiles, the first pair at load 1.2\n");
    wrong_profiles(&gpu, 1.2);
    println!("\n### Wrong lengths, the first pair at load 0.6: normalised latency, mean and P99");
    wrong_lengths(&gpu, 0.6);
}
