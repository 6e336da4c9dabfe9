//! What a pair of groups is worth: the share of requests that keep their deadlines when one group prefills them and the
//! other decodes them (ThunderServe §3.3's D_ij), by closed forms at given loads.
//!
//! - A prompt waits as in an M/G/1 queue with an exponential tail: P(W > w) = ρ·exp(−w/τ), where ρ is the prefill
//!   group's load and τ = E[S²] / (2·E[S]·(1−ρ)), so that E[W] is Pollaczek and Khinchine's. In chunks, one that waits also
//!   passes the other stages in or behind a full step.
//! - Its KV follows layer by layer while later layers compute (Splitwise §IV-C); what is left over, or the last layer at
//!   least, delays the second token. A link at load u takes 1/(1−u) times as long.
//! - A sequence waits for a place in a full batch as in an M/G/N queue with N places, by Sakasegawa's approximation:
//!   P(V > v) = c·exp(−v/σ), c = ρ^(√(2(N+1)) − 1), σ = E[H]·(1+cv²) / (2·N·(1−ρ)) for a holding time H. Where prompts come
//!   in chunks, and KV memory is what places are made of, requests that differ in what they take of it are counted: N in c
//!   by Hayward's approximation, and cv² of memory times time.
//! - The decode batch is the fixed point n = λ·E[o]·t(n); it varies as a Poisson number does, taken at three points.
//!
//! In a mixed group prompts also take the decode batch's time: iterations last 1/(1−ρ) times as long.

use super::{
    cluster::InstanceId,
    exponential::exp,
    parallel::{ParallelConfig, mean},
    problem::Problem,
    prompts::PromptChunking,
    slo::Deadline,
    workload::WorkloadRequest,
};
use tsnode_protocol::{Bytes, BytesPerSecond, Phase, Seconds, SecondsPerToken, Tokens};

/// Loads are planned in steps of this size: a plan keeps every group of a phase at or below one.
pub const LOAD_STEP: f64 = 0.05;
/// The highest load planned, in steps.
pub const MOST_LOAD: u8 = 19;
/// ln of the loads, by step: written down, so that peers whose systems bring different mathematics find the same bits.
const LN_LOAD: [f64; 1 + MOST_LOAD as usize] = [
    f64::NEG_INFINITY,
    -2.995_732_273_553_991,
    -2.302_585_092_994_045_5,
    -1.897_119_984_885_881_3,
    -1.609_437_912_434_100_3,
    -1.386_294_361_119_890_6,
    -1.203_972_804_325_936_1,
    -1.049_822_124_498_677_8,
    -0.916_290_731_874_155,
    -0.798_507_696_217_771_6,
    -std::f64::consts::LN_2,
    -0.597_837_000_755_620_4,
    -0.510_825_623_765_990_7,
    -0.430_782_916_092_454_2,
    -0.356_674_943_938_732_45,
    -0.287_682_072_451_780_9,
    -0.223_143_551_314_209_7,
    -0.162_518_929_497_774_94,
    -0.105_360_515_657_826_28,
    -0.051_293_294_387_550_58,
];
/// Load a link is planned to carry at most.
pub const LINK_LOAD: f64 = 0.9;
/// Steps in which a link's load is told.
const LINK_STEPS: f64 = 20.0;

/// Bytes of an element packed to four bits, scales included.
const PACKED: f64 = 0.625;
/// Elements a GPU packs in a second; links faster than this carry elements as they are. A memory-bound pass over 16-bit
/// elements at a few hundred GB/s.
const PACK_RATE: f64 = 50e9;

const NOW: Seconds = Seconds(0.0);
/// Longer than any step: a target that is none.
const FOREVER: Seconds = Seconds(1e6);
/// Half a group's load, in steps.
const HALF: u8 = 10;
/// Of the time a token may take, what a middling partner takes.
const PARTNER: f64 = 0.6;

/// A load in steps of [`LOAD_STEP`].
#[must_use]
pub fn load(step: u8) -> f64 {
    f64::from(step) * LOAD_STEP
}

/// What a prompt takes on a group.
#[derive(Clone, Copy, Debug, PartialEq)]
struct PromptTime {
    /// Alone.
    alone: Seconds,
    /// Beyond that, behind others.
    behind: Seconds,
}

/// A group as pairs see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Rated {
    /// What it does.
    pub phase: Phase,
    /// How its devices are used.
    pub config: ParallelConfig,
    /// Time each prompt of the workload takes.
    prefill: Vec<PromptTime>,
    /// E[S²] / (2·E[S]) of the time a prompt keeps the group.
    residual: Seconds,
    /// E[S].
    busy: Seconds,
    places: DecodePlaces,
    /// Share of requests kept half loaded with a partner of middling speed: a first guess at its worth in any plan.
    pub alone: f64,
}

impl Rated {
    /// Rates a configuration.
    #[must_use]
    pub fn new(problem: &Problem, phase: Phase, config: ParallelConfig) -> Self {
        let requests = &problem.workload.requests;
        let how = problem.prompts;
        let prompt = |r: &WorkloadRequest| PromptTime {
            alone: how.alone(&config, phase, r.prompt),
            behind: how.behind(&config, phase, r.prompt),
        };
        let prefill = requests.iter().map(prompt).collect();
        let busy = mean(problem, &how.packed(&config.busy));
        let squares: f64 = requests.iter().map(|r| how.keeps(&config.busy, r.prompt).0.powi(2)).sum();
        let residual = Seconds(squares / requests.len() as f64 / (2.0 * busy.0));
        let places = DecodePlaces::new(problem, &config);
        let mut rated = Self { phase, config, prefill, residual, busy, places, alone: 0.0 };
        rated.alone = rated.guess(problem);
        rated
    }

    fn guess(&self, problem: &Problem) -> f64 {
        let free = WaitDistribution { share: 0.0, mean: Seconds(1.0) };
        let send = PairTransfer { layers: layers(problem), ..PairTransfer::default() };
        let m = &problem.workload.mean;
        match self.phase {
            Phase::Mixed => mixed_value(problem, self, HALF),
            Phase::Prefill => {
                let wait = WaitDistribution { share: load(HALF), mean: self.residual / (1.0 - load(HALF)) };
                let step = problem.step_budget.min(FOREVER) * PARTNER;
                kept(problem, &self.prefill, &wait, &free, &send, &[(1.0, step), (0.0, step), (0.0, step)])
            }
            Phase::Decode => {
                let alone = |r: &WorkloadRequest| problem.reference.prefill.time(r.prompt) * 2.0;
                let prompt = |r: &WorkloadRequest| PromptTime { alone: alone(r), behind: NOW };
                let prompts: Vec<PromptTime> = problem.workload.requests.iter().map(prompt).collect();
                let steps = steps(&self.config, load(HALF) * self.rate() * m.steps, m.context, 0.0);
                kept(problem, &prompts, &free, &free, &send, &steps)
            }
        }
    }

    /// Requests a second it can carry at full load.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.config.rate
    }
}

/// How KV gets from one group to another.
#[derive(Clone, Debug, PartialEq)]
pub struct KvPath {
    /// Latency α of the slowest of its links.
    pub latency: Seconds,
    /// Time for each token of a prompt, by the slowest of its links.
    pub per_token: SecondsPerToken,
    /// Links between hosts it takes, and the time for each token there.
    pub links: Vec<(InstanceId, InstanceId, SecondsPerToken)>,
}

impl KvPath {
    /// From a prefill configuration's stages to a decode configuration's, layer by layer.
    #[must_use]
    pub fn new(problem: &Problem, from: &ParallelConfig, to: &ParallelConfig) -> Self {
        let mut parts: Vec<(InstanceId, InstanceId, u32)> = Vec::new();
        let mut start = 0;
        for a in &from.stages {
            let mut at = 0;
            for b in &to.stages {
                let (low, high) = (start.max(at), (start + a.layers).min(at + b.layers));
                if low < high {
                    match parts.iter_mut().find(|p| p.0 == a.instance && p.1 == b.instance) {
                        Some(part) => part.2 += high - low,
                        None => parts.push((a.instance, b.instance, high - low)),
                    }
                }
                at += b.layers;
            }
            start += a.layers;
        }
        let mut way = Self { latency: Seconds(0.0), per_token: SecondsPerToken(0.0), links: Vec::new() };
        for (a, b, layers) in parts {
            let path = problem.cluster.path(a, b);
            let elements = problem.model.shape.kv_elements_per_token_layer() as f64 * f64::from(layers);
            let per_token = (per_element(path.bandwidth, problem.model.element) * elements).per_token();
            way.latency = way.latency.max(path.latency);
            way.per_token = way.per_token.max(per_token);
            if a != b {
                way.links.push((a, b, per_token));
            }
        }
        way
    }

    /// Whether anything gets through.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.per_token.is_finite()
    }
}

/// Time an element takes on a link, in whichever form is quicker.
fn per_element(bandwidth: BytesPerSecond, element: f64) -> Seconds {
    (Bytes(element) / bandwidth).min((Bytes(PACKED) / bandwidth).max(Seconds(1.0 / PACK_RATE)))
}

/// At which loads a pair is valued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PairLoads {
    /// The prefill group's, in steps.
    pub prefill: u8,
    /// The decode group's, in steps.
    pub decode: u8,
    /// Its most loaded link's, in twentieths.
    pub link: u8,
}

impl PairLoads {
    /// A link's load in the steps that loads are told in.
    #[must_use]
    pub fn link_step(load: f64) -> u8 {
        (load.clamp(0.0, LINK_LOAD) * LINK_STEPS).ceil() as u8
    }
}

/// The share of requests that keep their deadlines on this pair.
#[must_use]
pub fn value(problem: &Problem, from: &Rated, to: &Rated, way: &KvPath, loads: PairLoads) -> f64 {
    let m = &problem.workload.mean;
    let rho = load(loads.prefill);
    let wait = WaitDistribution { share: rho, mean: from.residual / (1.0 - rho) };
    let tokens = load(loads.decode) * to.rate() * m.steps;
    let stretch = 1.0 / (1.0 - (f64::from(loads.link) / LINK_STEPS).min(LINK_LOAD));
    let send = PairTransfer { latency: way.latency, per_token: way.per_token * stretch, layers: layers(problem) };
    let place = place(problem, to, loads.decode, 0.0);
    kept(problem, &from.prefill, &wait, &place, &send, &steps(&to.config, tokens, m.context, 0.0))
}

/// The share of requests that keep their deadlines on a group that does both.
#[must_use]
pub fn mixed_value(problem: &Problem, group: &Rated, step: u8) -> f64 {
    let m = &problem.workload.mean;
    let rate = load(step) * group.rate();
    let rho = (rate * group.busy.0).min(0.99);
    let steps = steps(&group.config, rate * m.steps, m.context, rho);
    // A prompt waits for the iteration that runs, half of one on average, then for the prompts before it. Where prompts go first
    // that is one of answers alone.
    let runs = if problem.prompts.go_first() { steps[1].1 * (1.0 - rho) } else { steps[1].1 };
    let wait = WaitDistribution { share: rho, mean: group.residual / (1.0 - rho) + runs * 0.5 };
    let send = PairTransfer { layers: layers(problem), ..PairTransfer::default() };
    let place = place(problem, group, step, rho);
    kept(problem, &group.prefill, &wait, &place, &send, &steps)
}

fn layers(problem: &Problem) -> f64 {
    f64::from(problem.model.shape.layers)
}

/// P(W > w) = share·exp(−w/mean).
#[derive(Clone, Copy)]
struct WaitDistribution {
    share: f64,
    mean: Seconds,
}

impl WaitDistribution {
    /// P(W ≤ w).
    fn within(&self, w: f64) -> f64 {
        self.within_after(w, 0.0)
    }

    /// The same where those who wait come a fixed time later still.
    fn within_after(&self, w: f64, later: f64) -> f64 {
        let kept = 1.0 - self.share * exp(-(w - later).max(0.0) / self.mean.0);
        if w >= 0.0 { kept } else { 0.0 }
    }

    /// P(W + V ≤ w) for another wait V, where those who wait for the first come a fixed time later still.
    fn within_with(&self, other: &Self, slack: &[f64], later: &[f64], kept: &mut [f64]) {
        if other.share < 1e-6 {
            for ((kept, w), later) in kept.iter_mut().zip(slack).zip(later) {
                *kept = self.within_after(*w, *later);
            }
            return;
        }
        if later.iter().all(|l| *l == 0.0) {
            return self.within_both(other, slack, kept);
        }
        let (per_a, per_b, sum) = (1.0 / self.mean.0, 1.0 / other.mean.0, self.after(other));
        for ((kept, w), later) in kept.iter_mut().zip(slack).zip(later) {
            let (v, now) = ((w - later).max(0.0), w.max(0.0));
            let waited = sum.within(v, exp(-v * per_a), exp(-v * per_b));
            let waited = if w < later { 0.0 } else { waited };
            let all = (1.0 - self.share) * (1.0 - other.share * exp(-now * per_b)) + self.share * waited;
            *kept = if *w >= 0.0 { all } else { 0.0 };
        }
    }

    /// The same where nobody comes later.
    fn within_both(&self, other: &Self, slack: &[f64], kept: &mut [f64]) {
        let (per_a, per_b, sum) = (1.0 / self.mean.0, 1.0 / other.mean.0, self.after(other));
        for (kept, w) in kept.iter_mut().zip(slack) {
            let v = w.max(0.0);
            let (ea, eb) = (exp(-v * per_a), exp(-v * per_b));
            let all = (1.0 - self.share) * (1.0 - other.share * eb) + self.share * sum.within(v, ea, eb);
            *kept = if *w >= 0.0 { all } else { 0.0 };
        }
    }

    fn after(&self, other: &Self) -> BothWaits {
        let (a, b) = (self.mean.0, other.mean.0);
        let apart = (a - b).abs() > 1e-6 * (a + b);
        let (of_a, of_b, grows) = if apart { (a / (a - b), b / (a - b), 0.0) } else { (1.0, 0.0, 1.0 / a) };
        BothWaits { share: other.share, of_a, of_b, grows }
    }
}

/// P(W + V > w), given that W is above nothing, by exp(−w/a) and exp(−w/b) of their means a and b: two exponentials one after
/// the other; of equal means, the limit.
struct BothWaits {
    /// P(V > 0).
    share: f64,
    of_a: f64,
    of_b: f64,
    grows: f64,
}

impl BothWaits {
    /// P(W + V ≤ w).
    fn within(&self, w: f64, ea: f64, eb: f64) -> f64 {
        let both = (self.of_a + w * self.grows) * ea - self.of_b * eb;
        1.0 - (1.0 - self.share) * ea - self.share * both
    }
}

/// What answers wait for in a decode batch.
#[derive(Clone, Copy, Debug, PartialEq)]
struct DecodePlaces {
    /// How many there are.
    number: f64,
    /// Of those, as many as count for whether one is free: requests differ in what they take.
    alike: f64,
    /// Squared coefficient of variation of what a request takes of them, places times time.
    variation: f64,
}

impl DecodePlaces {
    fn new(problem: &Problem, config: &ParallelConfig) -> Self {
        let m = &problem.workload.mean;
        let (number, kv) = (config.batch, config.kv_tokens);
        // Where what requests take of memory varies, so does what is taken, as if there were fewer of them and each took
        // E[m²]/E[m] (Hayward's approximation); each m counts as long as its answer takes.
        let (reserved, squared) = problem.reserved();
        let alike = (kv / reserved * (reserved.0.powi(2) / squared)).max(1.0);
        if problem.prompts == PromptChunking::Whole || number <= alike {
            return Self { number, alike: number, variation: m.steps_variation };
        }
        Self { number, alike, variation: m.held_variation }
    }
}

/// The wait for a place in a decode batch at a step's load, when a part `taken` of the time goes elsewhere.
fn place(problem: &Problem, group: &Rated, step: u8, taken: f64) -> WaitDistribution {
    let rho = load(step);
    let m = &problem.workload.mean;
    let DecodePlaces { number, alike, variation } = group.places;
    let holding = group.config.iteration(number, m.context) * m.steps / (1.0 - taken);
    // ρ^(√(2(n + 1)) - 1), with the same bits everywhere.
    let share = exp(((2.0 * (alike + 1.0)).sqrt() - 1.0) * LN_LOAD[usize::from(step.min(MOST_LOAD))]);
    WaitDistribution { share, mean: holding * (1.0 + variation) / (2.0 * number * (1.0 - rho)) }
}

/// What KV of a prompt takes.
#[derive(Default)]
struct PairTransfer {
    latency: Seconds,
    per_token: SecondsPerToken,
    layers: f64,
}

impl PairTransfer {
    /// What is left of it when the prompt is done.
    fn left(&self, prompt: Tokens, prefill: Seconds) -> Seconds {
        let all = self.per_token * prompt;
        let part = 1.0 / self.layers;
        self.latency + (all * part).max(all - prefill * (1.0 - part))
    }
}

/// Time of an iteration at three sizes of the batch, and how likely each is: Gauss and Hermite's points.
fn steps(config: &ParallelConfig, tokens: f64, context: Tokens, taken: f64) -> [(f64, Seconds); 3] {
    let n = config.sequences(tokens, context, taken).min(config.batch);
    let spread = (3.0 * n).sqrt();
    let at = |n: f64| config.iteration(n.clamp(1.0f64.min(n.max(0.0)), config.batch), context) / (1.0 - taken);
    [(1.0 / 6.0, at((n - spread).max(1.0))), (2.0 / 3.0, at(n.max(1.0))), (1.0 / 6.0, at(n + spread))]
}

/// Requests that are looked at together.
const BLOCK: usize = 64;
/// Longer than anything takes: more slack makes no difference.
const AMPLE: f64 = 1e12;

/// Requests side by side: what each has left of its deadlines (s).
struct RequestBlock {
    requests: usize,
    /// Decode steps.
    steps: [f64; BLOCK],
    /// Of the whole time, before its steps; nothing, of those that have none.
    whole: [f64; BLOCK],
    /// Of the time for tokens after the first, before its steps.
    tokens: [f64; BLOCK],
    /// Part of them whose first token is in time.
    first: [f64; BLOCK],
    /// By how much those come later that wait.
    behind: [f64; BLOCK],
    /// Whether a token has a target of its own.
    is_paced: bool,
    /// How many are kept of those that have no steps.
    stepless: f64,
}

impl RequestBlock {
    fn new(
        requests: &[WorkloadRequest],
        deadlines: &[Deadline],
        prefill: &[PromptTime],
        wait: &WaitDistribution,
        send: &PairTransfer,
    ) -> Self {
        let none = [0.0; BLOCK];
        let (requests_here, first) = (requests.len(), [1.0; BLOCK]);
        let (steps, whole, tokens, behind) = (none, none, none, none);
        let mut block =
            Self { requests: requests_here, steps, whole, tokens, first, behind, is_paced: false, stepless: 0.0 };
        for (i, ((request, deadline), prompt)) in requests.iter().zip(deadlines).zip(prefill).enumerate() {
            block.add(i, request, deadline, prompt, wait, send);
        }
        block
    }

    fn add(
        &mut self,
        i: usize,
        request: &WorkloadRequest,
        deadline: &Deadline,
        prompt: &PromptTime,
        wait: &WaitDistribution,
        send: &PairTransfer,
    ) {
        let PromptTime { alone: prompt, behind } = *prompt;
        let n = request.steps();
        if deadline.ttft.is_finite() {
            self.first[i] = wait.within_after((deadline.ttft - prompt).0, behind.0);
        }
        if n <= 0.0 {
            self.stepless += self.first[i].min(wait.within_after((deadline.e2e - prompt).0, behind.0));
            (self.whole[i], self.first[i]) = (-AMPLE, 0.0);
            return;
        }
        let left = send.left(request.prompt, prompt);
        (self.steps[i], self.behind[i]) = (n, behind.0);
        self.whole[i] = (deadline.e2e - prompt - left).0.min(AMPLE);
        self.is_paced |= deadline.ttft.is_finite() || deadline.tpot.is_finite();
        self.tokens[i] = (deadline.tpot * n - left).0.min(AMPLE);
    }

    /// How many of those with steps are kept where each step takes so long (s).
    fn kept(&self, step: f64, wait: &WaitDistribution, place: &WaitDistribution) -> f64 {
        let n = self.requests;
        let (steps, behind) = (&self.steps[..n], &self.behind[..n]);
        let after = |slack: &[f64; BLOCK]| {
            let mut left = *slack;
            left.iter_mut().zip(steps).for_each(|(left, n)| *left -= step * n);
            left
        };
        let mut kept = [0.0; BLOCK];
        wait.within_with(place, &after(&self.whole)[..n], behind, &mut kept[..n]);
        if self.is_paced {
            let tokens = after(&self.tokens);
            for (kept, (tokens, first)) in kept[..n].iter_mut().zip(tokens.iter().zip(&self.first)) {
                *kept = kept.min(first * place.within(*tokens));
            }
        }
        kept.chunks_exact(BLOCK / 8).map(|part| part.iter().sum::<f64>()).sum()
    }
}

fn kept(
    problem: &Problem,
    prefill: &[PromptTime],
    wait: &WaitDistribution,
    place: &WaitDistribution,
    send: &PairTransfer,
    steps: &[(f64, Seconds); 3],
) -> f64 {
    let (requests, deadlines) = (&problem.workload.requests, &problem.deadlines);
    let blocks = requests.chunks(BLOCK).zip(deadlines.chunks(BLOCK)).zip(prefill.chunks(BLOCK));
    let kept = |((requests, deadlines), prefill): ((&[WorkloadRequest], &[Deadline]), &[PromptTime])| {
        let block = RequestBlock::new(requests, deadlines, prefill, wait, send);
        let at = |(likely, step): &(f64, Seconds)| likely * block.kept(step.0, wait, place);
        block.stepless + steps.iter().filter(|s| s.0 > 0.0).map(at).sum::<f64>()
    };
    blocks.map(kept).sum::<f64>() / requests.len() as f64
}
