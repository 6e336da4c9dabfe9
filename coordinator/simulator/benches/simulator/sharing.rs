//! Two services on one GPU under each order of sharing (SeaLLM §4.2, §6.3), and what wrong profiles do (Figure 13).

use tsnode_coordinator::{
    policy::routing::Asked,
    replay::machines::Arrival,
    rng::Rng,
    scheduler::{
        Workload,
        figures::{Column, shipped},
        public_models,
    },
};
use tsnode_protocol::{Seconds, SecondsPerToken};
use tsnode_simulator::{
    policy::{
        doubling::{Doubling, ExpectedTime, ServiceProfile},
        sharing::order::{Lead, MemoryRule, PromptStart, Rules},
    },
    shared_gpu::{Known, LIMITS, SharedGpu, SharedGpuOrder},
    trace::Arriving,
};

/// SeaLLM's, one of it.
const GPU: &str = "A800";
/// Squared coefficient of variation of the gaps between a service's requests.
const BURSTS: f64 = 16.0;
const REQUESTS: usize = 1500;
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
const PRINTED: Rules = Rules { prompts: PromptStart::Wait, memory: MemoryRule::Kept, lead: Lead::First };
const ORDERS: [(&str, SharedGpuOrder); 8] = [
    ("doubling as printed", SharedGpuOrder::Doubling(PRINTED, Known::Service)),
    ("+ prompts join", SharedGpuOrder::Doubling(Rules { prompts: PromptStart::Join, ..PRINTED }, Known::Service)),
    ("+ memory taken back", SharedGpuOrder::Doubling(Rules { lead: Lead::First, ..Doubling::RULES }, Known::Service)),
    ("+ batches weighed", SharedGpuOrder::Doubling(Doubling::RULES, Known::Service)),
    OURS,
    ("first come", SharedGpuOrder::FirstCome),
    ("round robin", SharedGpuOrder::RoundRobin),
    ("skip-join queues", SharedGpuOrder::Feedback),
];
const OURS: (&str, SharedGpuOrder) = ("+ prompts' lengths", SharedGpuOrder::Doubling(Doubling::RULES, Known::Prompt));

/// A GPU with two models on it.
struct TwoModelGpu(SharedGpu);

impl TwoModelGpu {
    fn new(pair: Pair) -> Self {
        let gpu = shipped(Column::Vendor).remove(GPU).expect("it is known");
        let service = |(model, workload): (&str, &str)| {
            (public_models::by_name(model).expect("it is known"), Workload::named(workload).expect("it is known"))
        };
        Self(SharedGpu::new(&gpu, &pair.map(service)).expect("they fit"))
    }

    /// What is right of the services, as printed and by prompt.
    fn profiles(&self) -> [Vec<ServiceProfile>; 2] {
        [Known::Service, Known::Prompt].map(|known| self.0.profiles(known).to_vec())
    }

    /// Both services' requests over one span, each of this load.
    fn requests(&self, load: f64, seed: u64) -> Vec<Arrival> {
        self.0.requests(load, REQUESTS, Arriving::Bursty(BURSTS), seed)
    }

    /// Mean and P99 of normalised latencies, and the part of the time the GPU was busy.
    fn run(&self, order: SharedGpuOrder, profiles: &[Vec<ServiceProfile>; 2], arrivals: &[Arrival]) -> [f64; 3] {
        let profiles = &profiles[usize::from(matches!(order.knows(), Known::Prompt))];
        let run = self.0.run_by(order, profiles, arrivals);
        [run.mean, run.p99, run.busy]
    }

    /// The same, averaged over seeds.
    fn runs(&self, order: SharedGpuOrder, load: f64) -> [f64; 3] {
        let all = SEEDS.map(|seed| self.run(order, &self.profiles(), &self.requests(load, seed)));
        average(&all)
    }
}

fn average(all: &[[f64; 3]]) -> [f64; 3] {
    [0, 1, 2].map(|n| all.iter().map(|one| one[n]).sum::<f64>() / all.len() as f64)
}

fn orders(gpu: &TwoModelGpu) {
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
fn wrong(profile: &ServiceProfile, error: f64, rng: &mut Rng) -> ServiceProfile {
    let mut off = || 1.0 + error * (2.0 * rng.unit() - 1.0);
    let expected = match profile.expected {
        ExpectedTime::AsAll(deviation) => ExpectedTime::AsAll(deviation * off()),
        ExpectedTime::ByPrompt { prompt, answer, deviation } => ExpectedTime::ByPrompt {
            prompt: SecondsPerToken(prompt.0 * off()),
            answer: answer * off(),
            deviation: deviation * off(),
        },
    };
    ServiceProfile { mean: profile.mean * off(), expected, ..*profile }
}

/// Profiles that are wrong, and profiles of one service taken for the other's.
fn wrong_profiles(gpu: &TwoModelGpu, load: f64) {
    println!(
        "| profiles off by up to | as printed, prompts join, memory taken back: mean, P99 | ours: mean, P99 |\n|---|---|---|"
    );
    let row = |name: &str, draws: u64, of: &dyn Fn(&[ServiceProfile], &mut Rng) -> Vec<ServiceProfile>| {
        let cells = [ORDERS[2].1, OURS.1].map(|order| {
            let mut all = Vec::new();
            for (seed, draw) in SEEDS.iter().flat_map(|s| (0..draws).map(move |d| (*s, d))) {
                let mut rng = Rng::new(100 * seed + draw);
                let profiles = gpu.profiles().map(|right| of(&right, &mut rng));
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
fn wrong_lengths(gpu: &TwoModelGpu, load: f64) {
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
        let cell = |order: SharedGpuOrder| {
            let [mean, late, _] = average(&SEEDS.map(|seed| gpu.run(order, &gpu.profiles(), &changed(seed))));
            format!("{mean:.2}, {late:.0}")
        };
        println!("| {times} | {} |", ORDERS.map(|o| cell(o.1)).join(" | "));
    }
}

fn profiled_deviation(profile: &ServiceProfile) -> Seconds {
    match profile.expected {
        ExpectedTime::AsAll(deviation) | ExpectedTime::ByPrompt { deviation, .. } => deviation,
    }
}

pub fn print() {
    for pair in PAIRS {
        let gpu = TwoModelGpu::new(pair);
        for ((model, workload), profile) in std::iter::zip(pair, gpu.0.profiles(Known::Service)) {
            let deviation = profiled_deviation(profile);
            println!("{workload} on {model}: {:.2} s alone, deviation {:.2} s", profile.mean.0, deviation.0);
        }
        println!("{GPU}, {} pages of KV, bursts of c² {BURSTS}, {REQUESTS} requests, {LIMITS:?}\n", gpu.0.kv_pages());
        orders(&gpu);
        println!();
    }
    let gpu = TwoModelGpu::new(PAIRS[0]);
    println!("### Wrong profiles, the first pair at load 1.2\n");
    wrong_profiles(&gpu, 1.2);
    println!("\n### Wrong lengths, the first pair at load 0.6: normalised latency, mean and P99");
    wrong_lengths(&gpu, 0.6);
}
