//! How fast a model runs on this device, step by step, with the work that each step is.

use crate::{
    engine::{Engine, EngineError, Fresh, Input, Output, RowToSample, Slice, StageKey, Tap},
    source::ModelSource,
};
use std::time::{Duration, Instant};
use tsnode_protocol::{KvCodec, KvDtype, RequestId, Sampling, TileHeader, Token};

/// A step of some sequences alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepShape {
    /// Sequences.
    pub batch: u32,
    /// Tokens each has already.
    pub context: u32,
    /// Tokens each gets: one when answering, many of a prompt.
    pub new: u32,
}

/// What a step took, and what it was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredStep {
    /// Seconds of the fastest run.
    pub seconds: f64,
    /// Bytes that must be read at least once: weights as stored, but for experts that no token is expected to pass, and KV.
    pub bytes: f64,
    /// Floating-point operations, two for each multiply-add.
    pub flops: f64,
}

impl StepShape {
    /// Tokens it computes.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        self.batch * self.new
    }

    /// Tokens a sequence has when it is done.
    #[must_use]
    pub fn room(&self) -> u32 {
        self.context + self.new
    }

    /// Bytes of KV and states the step's sequences take (all layers).
    #[must_use]
    pub fn kv_bytes(&self, source: &ModelSource, dtype: KvDtype) -> u64 {
        let shape = source.card().shape;
        let token = shape.kv_elements_per_token_layer() * u64::from(shape.layers) * dtype.bytes() as u64;
        u64::from(self.batch) * (u64::from(self.room()) * token + shape.state_bytes)
    }

    fn flops(&self, source: &ModelSource) -> f64 {
        let shape = source.card().shape;
        let tokens = f64::from(self.tokens());
        let layers = f64::from(shape.layers);
        let seen = f64::from(self.context) + f64::from(self.new + 1) / 2.0;
        // Queries by keys, and weights by values.
        let attention = 2.0 * seen * f64::from(shape.heads) * f64::from(shape.head_dim);
        // Logits are computed once for each sequence.
        let head = f64::from(self.batch) * f64::from(shape.vocab) * f64::from(shape.hidden);
        2.0 * (tokens * layers * (source.layer_numbers() as f64 + attention) + head)
    }
}

/// Measures `step` on a loaded stage that holds all layers, for about `time`.
///
/// # Errors
/// When the engine has too few pages, or the step is longer than the model's context.
pub fn measure(
    engine: &mut Engine,
    stage: StageKey,
    source: &ModelSource,
    dtype: KvDtype,
    step: StepShape,
    time: Duration,
) -> Result<MeasuredStep, EngineError> {
    let vocab = source.card().shape.vocab;
    let tokens: Vec<Token> = (0..step.batch * step.room()).map(|n| Token(n * 7 % vocab)).collect();
    let requests: Vec<RequestId> = (0..step.batch).map(|n| RequestId([n as u8; 16])).collect();
    let outcome = run(engine, stage, &requests, &tokens, step, time);
    requests.iter().for_each(|r| engine.release(stage, *r));
    let shape = source.card().shape;
    let layers = f64::from(shape.layers) * shape.active_layer_bytes(f64::from(step.tokens()));
    Ok(MeasuredStep {
        seconds: outcome?,
        bytes: layers + (shape.head_bytes + step.kv_bytes(source, dtype)) as f64,
        flops: step.flops(source),
    })
}

fn run(
    engine: &mut Engine,
    stage: StageKey,
    requests: &[RequestId],
    tokens: &[Token],
    step: StepShape,
    time: Duration,
) -> Result<f64, EngineError> {
    for &request in requests {
        engine.admit(stage, request, step.room())?;
    }
    if let [first, others @ ..] = requests
        && step.context > 0
    {
        let compute = |engine: &mut Engine, request| {
            let slice = Slice { request, start: 0, len: step.context };
            let input = Input::Tokens(&tokens[..step.context as usize]);
            engine.forward(stage, &[slice], input, Output::Hidden).map(|_| ())
        };
        compute(engine, *first)?;
        others.iter().try_for_each(|other| match copy(engine, stage, *first, *other, step.context) {
            // No tile has those.
            Err(EngineError::State) => compute(engine, *other),
            copied => copied,
        })?;
    }
    let batch: Vec<Slice> =
        requests.iter().map(|&request| Slice { request, start: step.context, len: step.new }).collect();
    let rows: Vec<usize> = (1..=requests.len()).map(|n| n * step.new as usize - 1).collect();
    let greedy = Sampling::greedy();
    let picks: Vec<RowToSample<'_>> =
        rows.iter().map(|row| RowToSample { row: *row, sampling: &greedy, position: step.room() }).collect();
    let (started, mut best) = (Instant::now(), f64::INFINITY);
    while best == f64::INFINITY || started.elapsed() < time {
        for slice in &batch {
            engine.assume_len(stage, slice.request, slice.start)?;
        }
        let at = Instant::now();
        let input = Input::Tokens(&tokens[..step.tokens() as usize]);
        if engine.is_on_gpu() {
            // Tokens are chosen where the logits are, as they are when it serves.
            engine.forward_choosing(stage, &batch, input, &picks)?;
        } else {
            engine.forward(stage, &batch, input, Output::Logits { rows: &rows })?;
        }
        best = best.min(at.elapsed().as_secs_f64());
    }
    Ok(best)
}

/// How fast a GPU packs and unpacks a sequence's KV, where nothing leaves it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PackingSpeed {
    /// Tokens of the sequence.
    pub tokens: u32,
    /// Bytes as they lie in pages.
    pub bytes: f64,
    /// Bytes as they are packed.
    pub packed: f64,
    /// Seconds of packing all layers, a launch each, and no wait between them.
    pub pack: f64,
    /// Seconds of unpacking them so.
    pub unpack: f64,
    /// Seconds of packing all layers by one launch, as where a whole prompt is exported.
    pub pack_whole: f64,
    /// Seconds of unpacking them so.
    pub unpack_whole: f64,
}

/// What a prompt takes while its KV stays, and while it leaves layer by layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvTransfer {
    /// Tokens of the prompt.
    pub tokens: u32,
    /// Seconds alone.
    pub plain: f64,
    /// Seconds with all KV packed and copied to the host meanwhile.
    pub tapped: f64,
}

/// Runs of what is measured a few times; the best counts.
const RUNS: usize = 5;

/// Measures packing on a GPU.
///
/// # Errors
/// When the engine is on no GPU, or has too few pages.
pub fn measure_packing(
    engine: &mut Engine,
    stage: StageKey,
    tokens: u32,
    codec: KvCodec,
) -> Result<PackingSpeed, EngineError> {
    let request = RequestId([0; 16]);
    engine.admit(stage, request, tokens)?;
    let measured = engine.packing_on_gpu(stage, request, tokens, codec, RUNS);
    engine.release(stage, request);
    let measured = measured?;
    let (by_layers, whole) = (measured.by_layers, measured.whole);
    Ok(PackingSpeed {
        tokens,
        bytes: measured.pages as f64,
        packed: measured.packed as f64,
        pack: by_layers.pack,
        unpack: by_layers.unpack,
        pack_whole: whole.pack,
        unpack_whole: whole.unpack,
    })
}

/// Takes every layer's KV, and drops it.
struct Taker {
    request: RequestId,
    tokens: u32,
    codec: KvCodec,
    payload: Vec<u8>,
}

impl Tap for Taker {
    fn layer(&mut self, _layer: u32, fresh: &mut Fresh<'_>) {
        fresh.export(self.request, 0..self.tokens, self.codec, &mut self.payload);
    }
}

/// Measures a prompt alone, and with its KV taken out meanwhile.
///
/// # Errors
/// When the engine has too few pages.
pub fn measure_kv_transfer(
    engine: &mut Engine,
    stage: StageKey,
    source: &ModelSource,
    tokens: u32,
    codec: KvCodec,
) -> Result<KvTransfer, EngineError> {
    let vocab = source.card().shape.vocab;
    let prompt: Vec<Token> = (0..tokens).map(|n| Token(n * 7 % vocab)).collect();
    let request = RequestId([0; 16]);
    engine.admit(stage, request, tokens)?;
    let mut taker = Taker { request, tokens, codec, payload: Vec::new() };
    let mut best = [f64::INFINITY; 2];
    for run in 0..=RUNS {
        for (taken, best) in best.iter_mut().enumerate() {
            engine.set_len(stage, request, 0)?;
            let batch = [Slice { request, start: 0, len: tokens }];
            let rows = [tokens as usize - 1];
            let (input, output) = (Input::Tokens(&prompt), Output::Logits { rows: &rows });
            let tap = (taken == 1).then_some(&mut taker as &mut dyn Tap);
            let at = Instant::now();
            let done = engine.forward_tapped(stage, &batch, input, output, tap).map(|_| ());
            if done.is_err() {
                engine.release(stage, request);
            }
            done?;
            // The first run makes what is kept.
            if run > 0 {
                *best = best.min(at.elapsed().as_secs_f64());
            }
        }
    }
    engine.release(stage, request);
    let [plain, tapped] = best;
    Ok(KvTransfer { tokens, plain, tapped })
}

/// Gives a sequence the KV of another, as it would come over a wire.
fn copy(engine: &mut Engine, stage: StageKey, from: RequestId, to: RequestId, len: u32) -> Result<(), EngineError> {
    let (layers, heads) = engine.extent(stage)?;
    let mut payload = Vec::new();
    for layer in layers.iter() {
        let tile = TileHeader { layer, head_start: 0, head_end: heads, token_start: 0, token_end: len, bytes: 0 };
        engine.export(stage, from, &tile, KvCodec::Raw, &mut payload)?;
        engine.import(stage, to, &tile, KvCodec::Raw, &payload)?;
    }
    engine.set_len(stage, to, len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{EngineConfig, Threads};

    #[test]
    fn a_step_counts_its_work_and_gives_its_pages_back() {
        let source = ModelSource::embedded().unwrap();
        let config = EngineConfig { threads: Threads::together(1), pool_bytes: 16 << 20, kv_dtype: KvDtype::F16 };
        let mut engine = Engine::new(config).unwrap();
        let stage = engine.load(source.load_stage(source.card().shape.all_layers()).unwrap()).unwrap();
        let free = engine.pages();
        let mut of = |step| measure(&mut engine, stage, &source, KvDtype::F16, step, Duration::ZERO).unwrap();
        let one = of(StepShape { batch: 1, context: 16, new: 1 });
        let two = of(StepShape { batch: 2, context: 16, new: 1 });
        assert_eq!(two.flops, 2.0 * one.flops);
        // Weights are read once, KV for each.
        assert!(one.bytes < two.bytes && two.bytes < 1.1 * one.bytes);
        let prompt = of(StepShape { batch: 1, context: 0, new: 64 });
        assert!(prompt.seconds > 0.0 && prompt.flops > 20.0 * one.flops);
        let too_long = StepShape { batch: 1, context: 0, new: 1 << 20 };
        assert!(measure(&mut engine, stage, &source, KvDtype::F16, too_long, Duration::ZERO).is_err());
        assert_eq!(engine.pages(), free);
    }

    #[test]
    fn sequences_with_states_each_compute_what_they_have() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("models/reference/qwen35-dense");
        let source = ModelSource::open(&folder).unwrap();
        let shape = source.card().shape;
        let config = EngineConfig { threads: Threads::together(1), pool_bytes: 16 << 20, kv_dtype: KvDtype::F16 };
        let mut engine = Engine::new(config).unwrap();
        let stage = engine.load(source.load_stage(shape.all_layers()).unwrap()).unwrap();
        let free = engine.pages();
        let step = StepShape { batch: 2, context: 16, new: 1 };
        let measured = measure(&mut engine, stage, &source, KvDtype::F16, step, Duration::ZERO).unwrap();
        assert!(measured.seconds > 0.0 && measured.bytes > 2.0 * shape.state_bytes as f64, "{measured:?}");
        assert_eq!(engine.pages(), free);
    }
}
