//! `tsnode bench engine --device cuda:0`: the same steps on an NVIDIA GPU, beside what was measured of it in the same run.

use super::{EACH, KV, StepLine, failed, fitting};
use crate::{
    cli::{exit::Exit, output::print_json},
    hardware::{self, GpuNumbers},
};
use serde::Serialize;
use std::time::Instant;
use tsnode_kernels::{
    cuda::{Gpu, GpuInfo, GpuSpeeds, PcieLink},
    device::Host,
    engine::{Engine, EngineError, StageKey, Threads},
    probe::ProcessorLimits,
    source::ModelSource,
    speed::{KvTransfer, PackingSpeed, StepShape, measure, measure_kv_transfer, measure_packing},
};
use tsnode_protocol::{BytesPerSecond, FlopsPerSecond, KvCodec};

/// Prompts (tokens), as far as the model's context goes.
const PROMPTS: [u32; 2] = [512, 2048];
/// Sequences answered together, and tokens each has.
const ANSWERS: [(u32, u32); 5] = [(1, 128), (1, 2048), (4, 128), (16, 1024), (64, 1024)];
/// Tokens of the sequence whose KV is packed.
const PACKED: u32 = 2048;

#[derive(Serialize)]
struct Report {
    model: String,
    gpu: String,
    /// How many hold each layer together.
    gpus: u16,
    /// How kernels were made.
    kernels: String,
    driver: Option<String>,
    compute_capability: String,
    power_limit_w: Option<f64>,
    clock_mhz: Option<u32>,
    memory_clock_mhz: Option<u32>,
    pcie_generation_lanes: Option<(u32, u32)>,
    /// Of which state of the link that is.
    pcie_state: Option<&'static str>,
    /// Bytes a second, read and written, of a copy on the GPU.
    copy_limit: f64,
    /// Operations a second of a product in bfloat16, and whose it was.
    flops_limit: f64,
    products_by: &'static str,
    /// Why they were not cuBLASLt's.
    no_library: Option<String>,
    up_bytes_s: f64,
    down_bytes_s: f64,
    probed_s: f64,
    load_bytes: u64,
    load_s: f64,
    steps: Vec<StepLine>,
    /// Steps that were not measured.
    left_out: Vec<LeftOut>,
    packing: Option<PackTimes>,
    kv_transfer: Option<TapTimes>,
    /// Why what is missing is missing.
    failed: Option<String>,
}

/// A step that was not measured, and why: a small GPU has too few pages for the largest.
#[derive(Serialize)]
struct LeftOut {
    batch: u32,
    context: u32,
    new: u32,
    why: String,
}

#[derive(Serialize)]
struct PackTimes {
    tokens: u32,
    /// Bytes of the 16-bit side.
    bytes: f64,
    /// Bytes of the other.
    packed_bytes: f64,
    /// A launch a layer.
    by_layers: PackShares,
    /// One launch for all layers.
    whole: PackShares,
}

/// What packing and unpacking reach.
#[derive(Serialize)]
struct PackShares {
    pack_s: f64,
    unpack_s: f64,
    /// Bytes of the 16-bit side a second, over the copying limit, which counts what is read and what is written.
    pack_of_copy_limit: f64,
    unpack_of_copy_limit: f64,
    /// Bytes of both sides, so that all that is read and written counts here too.
    pack_moved_of_copy_limit: f64,
    unpack_moved_of_copy_limit: f64,
}

#[derive(Serialize)]
struct TapTimes {
    tokens: u32,
    plain_s: f64,
    handing_over_s: f64,
    slower: f64,
}

pub(super) fn run(
    source: &ModelSource,
    numbers: GpuNumbers,
    asked: Option<Vec<StepShape>>,
    watch: bool,
) -> Result<(), Exit> {
    // KV is packed and handed over beside the usual steps alone.
    let all = asked.is_none();
    let steps = fitting(source, asked.unwrap_or_else(usual))?;
    let (gpus, about) = hardware::open_gpus(numbers).map_err(|e| failed(&e))?;
    let started = Instant::now();
    let speeds = gpus[0].speeds().map_err(|e| failed(&e))?;
    let probed = started.elapsed().as_secs_f64();
    // What several have together.
    let count = f64::from(numbers.count);
    let speeds = GpuSpeeds { copy: count * speeds.copy, multiply: count * speeds.multiply, ..speeds };
    let mut report = Report::new(source, (numbers, &about), speeds, probed);
    let measured = measured(source, (gpus, speeds), (&steps, all), watch, &mut report);
    // What was measured before a GPU failed is worth having.
    report.failed = measured.as_ref().err().map(ToString::to_string);
    if watch {
        report.print_tail();
    } else {
        print_json(&report)?;
    }
    measured
}

/// Fills the report as far as the GPU goes: what cannot be measured is noted, and the rest is measured all the same.
fn measured(
    source: &ModelSource,
    (gpus, speeds): (Vec<Gpu>, GpuSpeeds),
    (steps, all): (&[StepShape], bool),
    watch: bool,
    report: &mut Report,
) -> Result<(), Exit> {
    let (mut engine, stage) = loaded(source, gpus, steps, report)?;
    if watch {
        report.print_head();
    }
    let limits = ProcessorLimits { read: BytesPerSecond(speeds.copy), multiply: FlopsPerSecond(speeds.multiply) };
    let mut broken = None;
    for &step in steps {
        match measure(&mut engine, stage, source, KV, step, EACH) {
            Ok(measured) => report.add(StepLine::new(step, measured, limits), watch),
            Err(error) => {
                report.leave_out(step, &error, watch);
                // Too few pages are the GPU's size, all else is a fault.
                broken = broken.or((!matches!(error, EngineError::Pages(_))).then_some(error));
            }
        }
    }
    // KV beside states goes nowhere.
    if all && PACKED <= source.card().shape.context && source.card().shape.state_bytes == 0 {
        let packing = measure_packing(&mut engine, stage, PACKED, KvCodec::Int4);
        report.packing = packing.as_ref().ok().map(|packing| PackTimes::new(*packing, speeds));
        let kv_transfer = measure_kv_transfer(&mut engine, stage, source, PACKED, KvCodec::Int4);
        report.kv_transfer = kv_transfer.as_ref().ok().map(|kv_transfer| TapTimes::new(*kv_transfer));
        broken = broken.or(packing.err()).or(kv_transfer.err());
    }
    broken.map_or(Ok(()), |error| Err(failed(&error)))
}

/// An engine on the GPUs with the whole model, and the rest of their memory for pages.
fn loaded(
    source: &ModelSource,
    gpus: Vec<Gpu>,
    steps: &[StepShape],
    report: &mut Report,
) -> Result<(Engine, StageKey), Exit> {
    let started = Instant::now();
    let threads = Threads { count: Host::detect().cpu.cores, ranks: gpus.len() };
    let all = source.card().shape.all_layers();
    let model = source.load_stage_for_gpus(all, threads).map_err(|e| failed(&e))?;
    let weights = source.gpu_bytes(all, gpus.len()).map_err(|e| failed(&e))?;
    let each = vec![weights.div_ceil(gpus.len() as u64); gpus.len()];
    let pool = Gpu::pool_bytes_of_all(&gpus, &each).map_err(|e| failed(&e))?;
    let wanted = steps.iter().map(|step| step.kv_bytes(source, KV)).max().unwrap_or(0) as usize;
    // Pages of all steps, and as much again for what is rounded up to whole pages.
    let mut engine = Engine::on_gpus(gpus, pool.min(2 * wanted + (1 << 30)), KV).map_err(|e| failed(&e))?;
    report.load_bytes = weights;
    let stage = engine.load(model).map_err(|e| failed(&e))?;
    measure(&mut engine, stage, source, KV, StepShape { batch: 1, context: 0, new: 1 }, std::time::Duration::ZERO)
        .map_err(|e| failed(&e))?;
    report.load_s = started.elapsed().as_secs_f64();
    Ok((engine, stage))
}

/// Steps that are measured where none are asked for.
fn usual() -> Vec<StepShape> {
    let prompts = PROMPTS.map(|new| StepShape { batch: 1, context: 0, new });
    let answers = ANSWERS.map(|(batch, context)| StepShape { batch, context, new: 1 });
    prompts.into_iter().chain(answers).collect()
}

impl PackTimes {
    fn new(packing: PackingSpeed, speeds: GpuSpeeds) -> Self {
        let PackingSpeed { tokens, bytes, packed, pack, unpack, pack_whole, unpack_whole } = packing;
        let shares = |pack_s: f64, unpack_s: f64| {
            let of_limit = |bytes: f64, seconds: f64| bytes / seconds / speeds.copy;
            PackShares {
                pack_s,
                unpack_s,
                pack_of_copy_limit: of_limit(bytes, pack_s),
                unpack_of_copy_limit: of_limit(bytes, unpack_s),
                pack_moved_of_copy_limit: of_limit(bytes + packed, pack_s),
                unpack_moved_of_copy_limit: of_limit(bytes + packed, unpack_s),
            }
        };
        let (by_layers, whole) = (shares(pack, unpack), shares(pack_whole, unpack_whole));
        Self { tokens, bytes, packed_bytes: packed, by_layers, whole }
    }

    fn print(&self) {
        let Self { tokens, bytes, packed_bytes, by_layers, whole } = self;
        say!(
            "KV of {tokens} tokens, {:.0} MB, to int4, {:.0} MB; % of the copying limit by the larger side, by both:",
            bytes / 1e6,
            packed_bytes / 1e6
        );
        for (name, shares) in [("a launch a layer", by_layers), ("one launch", whole)] {
            let PackShares { pack_s, unpack_s, .. } = shares;
            let percent = [
                shares.pack_of_copy_limit,
                shares.pack_moved_of_copy_limit,
                shares.unpack_of_copy_limit,
                shares.unpack_moved_of_copy_limit,
            ];
            let [pack, pack_moved, unpack, unpack_moved] = percent.map(|share| 100.0 * share);
            say!(
                "{name:>18}: packing {:.0} µs, {pack:.0}, {pack_moved:.0} %; unpacking {:.0} µs, {unpack:.0}, {unpack_moved:.0} %",
                1e6 * pack_s,
                1e6 * unpack_s
            );
        }
    }
}

impl TapTimes {
    fn new(KvTransfer { tokens, plain, tapped }: KvTransfer) -> Self {
        Self { tokens, plain_s: plain, handing_over_s: tapped, slower: tapped / plain - 1.0 }
    }
}

impl Report {
    fn new(source: &ModelSource, (numbers, about): (GpuNumbers, &GpuInfo), speeds: GpuSpeeds, probed_s: f64) -> Self {
        let facts = &about.facts;
        let link = facts.pcie.map(|link| match link {
            PcieLink::Fastest { generation, lanes } => ((generation, lanes), "fastest"),
            PcieLink::AtIdle { generation, lanes } => ((generation, lanes), "at idle"),
        });
        Self {
            model: source.card().name.clone(),
            gpu: about.name.clone(),
            gpus: numbers.count,
            kernels: about.kernels.to_string(),
            driver: facts.driver.clone(),
            compute_capability: format!("{}.{}", about.capability.0, about.capability.1),
            power_limit_w: facts.power_limit_mw.map(|mw| f64::from(mw) / 1e3),
            clock_mhz: facts.clock_mhz,
            memory_clock_mhz: facts.memory_clock_mhz,
            pcie_generation_lanes: link.map(|(link, _)| link),
            pcie_state: link.map(|(_, state)| state),
            copy_limit: speeds.copy,
            flops_limit: speeds.multiply,
            products_by: if speeds.by_library { "cuBLASLt" } else { "own kernels" },
            no_library: about.no_library.clone(),
            up_bytes_s: speeds.up,
            down_bytes_s: speeds.down,
            probed_s,
            load_bytes: 0,
            load_s: 0.0,
            steps: Vec::new(),
            left_out: Vec::new(),
            packing: None,
            kv_transfer: None,
            failed: None,
        }
    }

    fn add(&mut self, line: StepLine, watch: bool) {
        if watch {
            line.print();
        }
        self.steps.push(line);
    }

    fn leave_out(&mut self, StepShape { batch, context, new }: StepShape, why: &EngineError, watch: bool) {
        if watch {
            say!("{:<8}{batch:>6}{context:>9}{new:>6}  {why}", if new > 1 { "prefill" } else { "decode" });
        }
        self.left_out.push(LeftOut { batch, context, new, why: why.to_string() });
    }

    fn print_head(&self) {
        let Self { model, gpu, gpus, kernels, products_by, load_s, .. } = self;
        let gpu = if *gpus > 1 { format!("{gpus} × {gpu}") } else { gpu.clone() };
        say!("{model} on {gpu}, products of many rows by {products_by}; loaded in {load_s:.2} s");
        say!("kernels: {kernels}");
        if let Some(why) = &self.no_library {
            say!("no cuBLASLt: {why}");
        }
        let (copy, flops) = (self.copy_limit / 1e9, self.flops_limit / 1e12);
        let (up, down) = (self.up_bytes_s / 1e9, self.down_bytes_s / 1e9);
        say!(
            "limits: copying {copy:.0} GB/s, multiplying {flops:.0} TFLOP/s (bfloat16), link {up:.1} up, {down:.1} GB/s down"
        );
        if let Some(((generation, lanes), state)) = self.pcie_generation_lanes.zip(self.pcie_state) {
            say!("link: PCIe {generation}, {lanes} lanes, {state}");
        }
        let [phase, batch, context, new] = ["", "batch", "context", "new"];
        let [speed, time, read, multiply] = ["tokens/s", "ms", "of copy", "of mul."];
        say!("{phase:<8}{batch:>6}{context:>9}{new:>6}{speed:>12}{time:>12}{read:>9}{multiply:>9}");
    }

    fn print_tail(&self) {
        if let Some(packing) = &self.packing {
            packing.print();
        }
        if let Some(TapTimes { tokens, slower, .. }) = &self.kv_transfer {
            say!("a prompt of {tokens} tokens whose KV leaves meanwhile: {:.1} % slower", 100.0 * slower);
        }
        say!(
            "of copy: weights and KV once a step, over the copying limit; of mul.: operations over the multiplying limit"
        );
    }
}
