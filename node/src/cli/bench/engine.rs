//! `tsnode bench engine`: prompts and answers a second, beside what memory and multipliers allow.

mod asked;
mod gpu;

use super::{loaded, open};
use crate::{
    cli::{
        exit::{Exit, ExitKind},
        is_set, json,
        output::print_json,
        verb, whole,
    },
    hardware::{DeviceName, memory::Size},
};
use clap::{Arg, ArgMatches, Command, value_parser};
use indicatif::ProgressBar;
use serde::Serialize;
use std::time::{Duration, Instant};
use tsnode_kernels::{
    device::Host,
    engine::{Engine, EngineConfig, StageKey, Threads},
    load::LoadReport,
    probe::{Limiter, ProcessorLimits},
    source::ModelSource,
    speed::{MeasuredStep, StepShape, measure},
};
use tsnode_protocol::KvDtype;

const KV: KvDtype = KvDtype::F16;
/// Time given to each step.
const EACH: Duration = Duration::from_secs(2);
/// Prompts (tokens), as far as the model's context goes.
const PROMPTS: [u32; 3] = [128, 512, 2048];
/// Tokens of a prompt that a chunk comes after, and the chunk's: what a step of the batcher's takes of a long prompt.
const CHUNKS: [(u32, u32); 1] = [(2048, 512)];
/// Sequences answered together, and tokens each has.
const ANSWERS: [(u32, u32); 4] = [(1, 128), (1, 2048), (4, 128), (16, 128)];

pub(super) fn command() -> Command {
    verb("engine", "Speed of a model on this machine, beside its limits", "tsnode bench engine --model llama-1b.gguf")
        .arg(super::model())
        .arg(
            Arg::new("threads")
                .long("threads")
                .value_name("N")
                .value_parser(whole(1_u16..=1024))
                .help("Threads that compute [default: all cores]"),
        )
        .arg(
            Arg::new("tensor-parallel")
                .long("tensor-parallel")
                .value_name("N")
                .value_parser(whole(1_u16..=1024))
                .help("Ranks that share the threads, at least one for each [default: 1]"),
        )
        .arg(
            Arg::new("device")
                .long("device")
                .value_name("DEVICE")
                .value_parser(value_parser!(DeviceName))
                .help("What computes: cpu, an NVIDIA GPU as cuda:0, or several together as cuda:0-1 [default: cpu]"),
        )
        .arg(asked::arg())
        .arg(json())
}

#[derive(Serialize)]
struct Report {
    model: String,
    processor: String,
    instructions: String,
    threads: usize,
    ranks: usize,
    /// Bytes a second that memory was read at first.
    read_limit: f64,
    /// Multiply-adds on registers, two operations each.
    flops_limit: f64,
    /// Seconds from opened to the first step done, loading included.
    ready_s: f64,
    /// Bytes of weights as stored, and seconds for looking at every number of them and packing those that are quantised.
    load_bytes: u64,
    load_s: f64,
    /// Bytes of quantised matrices as stored, the same as packed, and seconds of packing.
    quantised_bytes: u64,
    packed_bytes: u64,
    packing_s: f64,
    steps: Vec<StepLine>,
}

#[derive(Serialize)]
struct StepLine {
    phase: &'static str,
    batch: u32,
    context: u32,
    new: u32,
    seconds: f64,
    tokens_per_s: f64,
    bytes_per_token: f64,
    flops_per_token: f64,
    /// Bytes a second that memory was read at beside this step.
    read_limit: f64,
    of_read_limit: f64,
    of_flops_limit: f64,
}

pub(super) fn run(matches: &ArgMatches) -> Result<(), Exit> {
    let source = open(matches)?;
    if let Some(gpus) = matches.get_one::<DeviceName>("device").and_then(|name| name.gpus()) {
        return gpu::run(&source, gpus, asked::steps(matches), !is_set(matches, "json"));
    }
    let host = Host::detect();
    let number = |name: &str, default| matches.get_one::<u16>(name).map_or(default, |n| usize::from(*n));
    let threads = Threads { count: number("threads", host.cpu.cores), ranks: number("tensor-parallel", 1) };
    let limiter = Limiter::new(threads.count).map_err(|e| failed(&e))?;
    let mut limits = ProcessorLimits { read: limiter.read(), multiply: limiter.multiply() };
    let steps = fitting(&source, asked::steps(matches).unwrap_or_else(usual))?;
    let watch = !is_set(matches, "json");
    let (mut engine, stage, ready) = ready(&source, threads, &steps, watch)?;
    let load = ready.load;
    let mut report = Report {
        model: source.card().name.clone(),
        processor: host.cpu.name,
        instructions: format!("{:?}", host.cpu.simd),
        threads: threads.count,
        ranks: threads.ranks,
        read_limit: limits.read.0,
        flops_limit: limits.multiply.0,
        ready_s: ready.seconds,
        load_bytes: load.bytes,
        load_s: load.took.as_secs_f64(),
        quantised_bytes: load.quantised,
        packed_bytes: load.packed,
        packing_s: load.packing.as_secs_f64(),
        steps: Vec::new(),
    };
    if watch {
        report.print_head();
    }
    let bar = if watch { ProgressBar::new(steps.len() as u64) } else { ProgressBar::hidden() };
    for step in steps {
        // A prompt of thousands of tokens takes its time: the bar says at once how many steps are left.
        bar.tick();
        // Other machines may share the memory: what it could be read at just before or just after, whichever is more.
        let before = limiter.read();
        let measured = measure(&mut engine, stage, &source, KV, step, EACH).map_err(|e| failed(&e))?;
        limits.read.0 = before.0.max(limiter.read().0);
        let line = StepLine::new(step, measured, limits);
        if watch {
            bar.suspend(|| line.print());
        }
        report.steps.push(line);
        bar.inc(1);
    }
    bar.finish_and_clear();
    if !watch {
        return print_json(&report);
    }
    say!(
        "of read: weights and KV once a step, over what memory was read at beside it; of mul.: operations over the multiplying limit"
    );
    Ok(())
}

fn failed(error: &dyn std::fmt::Display) -> Exit {
    Exit::new(ExitKind::Other, error.to_string())
}

/// Steps that are measured where none are asked for.
fn usual() -> Vec<StepShape> {
    let prompts = PROMPTS.map(|new| StepShape { batch: 1, context: 0, new });
    let chunks = CHUNKS.map(|(context, new)| StepShape { batch: 1, context, new });
    let answers = ANSWERS.map(|(batch, context)| StepShape { batch, context, new: 1 });
    prompts.into_iter().chain(chunks).chain(answers).collect()
}

/// Those that the model's context has room for.
fn fitting(source: &ModelSource, steps: Vec<StepShape>) -> Result<Vec<StepShape>, Exit> {
    let context = source.card().shape.context;
    let fitting: Vec<StepShape> = steps.into_iter().filter(|step| step.room() <= context).collect();
    if fitting.is_empty() {
        return Err(Exit::new(
            ExitKind::Usage,
            format!("the model's context has room for {context} tokens, and no step fits"),
        ));
    }
    Ok(fitting)
}

/// What it took until the first step was done.
struct ReadyTime {
    seconds: f64,
    load: LoadReport,
}

/// An engine with the whole model, after its first step.
fn ready(
    source: &ModelSource,
    threads: Threads,
    steps: &[StepShape],
    watch: bool,
) -> Result<(Engine, StageKey, ReadyTime), Exit> {
    let largest = steps.iter().map(|s| s.kv_bytes(source, KV)).max().unwrap_or(0);
    // Every sequence rounds up to whole pages in every layer.
    let pages =
        u64::from(source.card().shape.layers) * 32 * threads.ranks as u64 * tsnode_kernels::pages::PAGE_BYTES as u64;
    let pool_bytes = usize::try_from(largest + pages).map_err(|e| failed(&e))?;
    let started = Instant::now();
    let (model, load) = loaded(source, threads, pool_bytes as u64, watch)?;
    let mut engine = Engine::new(EngineConfig { threads, pool_bytes, kv_dtype: KV }).map_err(|e| failed(&e))?;
    let stage = engine.load(model).map_err(|e| failed(&e))?;
    let first = StepShape { batch: 1, context: 0, new: 1 };
    measure(&mut engine, stage, source, KV, first, Duration::ZERO).map_err(|e| failed(&e))?;
    Ok((engine, stage, ReadyTime { seconds: started.elapsed().as_secs_f64(), load }))
}

impl StepLine {
    fn new(step: StepShape, measured: MeasuredStep, limits: ProcessorLimits) -> Self {
        let MeasuredStep { seconds, bytes, flops } = measured;
        let tokens = f64::from(step.tokens());
        Self {
            phase: if step.new > 1 { "prefill" } else { "decode" },
            batch: step.batch,
            context: step.context,
            new: step.new,
            seconds,
            tokens_per_s: tokens / seconds,
            bytes_per_token: bytes / tokens,
            flops_per_token: flops / tokens,
            read_limit: limits.read.0,
            of_read_limit: bytes / seconds / limits.read.0,
            of_flops_limit: flops / seconds / limits.multiply.0,
        }
    }
    fn print(&self) {
        say!(
            "{:<8}{:>6}{:>9}{:>6}{:>12.1}{:>12.3}{:>8.0}%{:>8.0}%",
            self.phase,
            self.batch,
            self.context,
            self.new,
            self.tokens_per_s,
            self.seconds * 1e3,
            100.0 * self.of_read_limit,
            100.0 * self.of_flops_limit,
        );
    }
}

impl Report {
    /// What is known before the first step is measured.
    fn print_head(&self) {
        let Self { model, processor, instructions, threads, ranks, .. } = self;
        say!(
            "{model} on {processor}, {threads} threads in {ranks} ranks, {instructions}; ready in {:.2} s",
            self.ready_s
        );
        let packed = match self.quantised_bytes {
            0 => String::new(),
            bytes => {
                format!("; of those {} packed into {} in {:.2} s", Size(bytes), Size(self.packed_bytes), self.packing_s)
            }
        };
        say!("loaded: {} of weights in {:.2} s{packed}", Size(self.load_bytes), self.load_s);
        let (read, flops) = (self.read_limit / 1e9, self.flops_limit / 1e9);
        say!("limits: reading {read:.1} GB/s, multiplying {flops:.0} GFLOP/s (single precision)");
        let [phase, batch, context, new] = ["", "batch", "context", "new"];
        let [speed, time, read, multiply] = ["tokens/s", "ms", "of read", "of mul."];
        say!("{phase:<8}{batch:>6}{context:>9}{new:>6}{speed:>12}{time:>12}{read:>9}{multiply:>9}");
    }
}
