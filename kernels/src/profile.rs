//! Plan flow 1: measures what one layer of a model costs on this device, by running it: the coefficients plans use.
//!
//! Times are linear in what a batch holds (ThunderServe App. B plans by such costs; Splitwise §V and Cronus §3 fit them
//! within a few percent): a prompt of L tokens takes `a + b·L + c·L²`, a step of n sequences with ctx tokens each
//! `A + B·n·ctx + C·n`. Three measurements determine each triple; what noise makes negative is nothing.

use crate::{
    engine::{Engine, EngineConfig, EngineError, Input, Output, Slice, StageKey},
    source::ModelSource,
    weights::WeightsError,
};
use std::time::{Duration, Instant};
use tsnode_protocol::{KvDtype, LayerProfile, LayerRange, RequestId, Token};

/// Time given to each measurement, if its runs are shorter.
const EACH: Duration = Duration::from_millis(4);
/// Runs of each measurement at least, so that one which another program interrupts does not count, unless they take
/// longer than this.
const RUNS: u32 = 8;
const ENOUGH: Duration = Duration::from_millis(500);
/// Lengths of prompts, as far as the model's context goes.
const PROMPTS: [u32; 3] = [16, 48, 128];
/// Contexts and sizes of decode batches: the first context is short, the batch small.
const CONTEXTS: [u32; 2] = [16, 128];
const BATCH: u32 = 4;

/// Most memory taken for KV while measuring (bytes).
const POOL_AT_MOST: u64 = 1 << 30;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The system gives no threads.
    #[error("no threads: {0}")]
    Threads(#[from] std::io::Error),
    /// The layer's weights.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The layer did not run.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Measures the model's first layer with `threads` threads; `None` for a model of one layer, which cannot be had without
/// its head, or one with next to no context. Takes some hundredths of a second with a small model.
///
/// # Errors
/// When the layer cannot be loaded or run.
pub fn measure(source: &ModelSource, threads: usize, kv_dtype: KvDtype) -> Result<Option<LayerProfile>, ProfileError> {
    let shape = source.card().shape;
    if shape.layers < 2 || shape.context < 4 * PROMPTS[0] {
        return Ok(None);
    }
    let longest = |tokens: u32| tokens.min(shape.context - 1);
    let room = u64::from(longest(PROMPTS[2]) + 1) * u64::from(BATCH + 2);
    let pool_bytes = (room * shape.kv_elements_per_token_layer() * 4).clamp(16 << 20, POOL_AT_MOST) as usize;
    let mut engine = Engine::new(EngineConfig { threads, pool_bytes, kv_dtype })?;
    let stage = engine.load(source.load_stage(LayerRange { start: 0, end: 1 })?)?;
    let mut bench = Bench { engine, stage, tokens: (0..PROMPTS[2]).map(|n| Token(n % shape.vocab)).collect() };
    let prompts = PROMPTS.map(longest);
    let times = [bench.prompt(prompts[0])?, bench.prompt(prompts[1])?, bench.prompt(prompts[2])?];
    let contexts = CONTEXTS.map(longest);
    let (short, long) = (bench.step(1, contexts[0])?, bench.step(1, contexts[1])?);
    let wide = bench.step(BATCH, contexts[0])?;
    Ok(Some(LayerProfile {
        model: source.card().id,
        prefill: parabola(prompts.map(f64::from), times),
        decode: plane(contexts.map(f64::from), f64::from(BATCH), [short, long, wide]),
    }))
}

/// a, b and c of `a + b·x + c·x²` through three points, none below zero.
fn parabola(x: [f64; 3], y: [f64; 3]) -> [f64; 3] {
    let slope = |i: usize, j: usize| (y[j] - y[i]) / (x[j] - x[i]);
    let c = ((slope(1, 2) - slope(0, 1)) / (x[2] - x[0])).max(0.0);
    let b = (slope(0, 2) - c * (x[0] + x[2])).max(0.0);
    let a = (y[0] - b * x[0] - c * x[0] * x[0]).max(0.0);
    [a, b, c]
}

/// A, B and C of `A + B·n·ctx + C·n` from one sequence with a short and a long context and `n` with the short one.
fn plane(contexts: [f64; 2], n: f64, [short, long, wide]: [f64; 3]) -> [f64; 3] {
    let per_context = ((long - short) / (contexts[1] - contexts[0])).max(0.0);
    let per_sequence = ((wide - short) / (n - 1.0) - per_context * contexts[0]).max(0.0);
    let fixed = (short - per_context * contexts[0] - per_sequence).max(0.0);
    [fixed, per_context, per_sequence]
}

struct Bench {
    engine: Engine,
    stage: StageKey,
    tokens: Vec<Token>,
}

impl Bench {
    /// Seconds for a prompt.
    fn prompt(&mut self, tokens: u32) -> Result<f64, EngineError> {
        let request = RequestId([1; 16]);
        self.engine.admit(self.stage, request, tokens)?;
        let time = self.best(&[Slice { request, start: 0, len: tokens }])?;
        self.engine.release(self.stage, request);
        Ok(time)
    }

    /// Seconds for a step of `n` sequences with `context` tokens each.
    fn step(&mut self, n: u32, context: u32) -> Result<f64, EngineError> {
        let requests: Vec<RequestId> = (0..n).map(|k| RequestId([k as u8 + 1; 16])).collect();
        for &request in &requests {
            self.engine.admit(self.stage, request, context + 1)?;
            self.run(&[Slice { request, start: 0, len: context }])?;
        }
        let batch: Vec<Slice> = requests.iter().map(|&request| Slice { request, start: context, len: 1 }).collect();
        let time = self.best(&batch)?;
        requests.iter().for_each(|r| self.engine.release(self.stage, *r));
        Ok(time)
    }

    /// The fastest of several runs: other programs only ever make it slower.
    fn best(&mut self, batch: &[Slice]) -> Result<f64, EngineError> {
        let (started, mut best, mut runs) = (Instant::now(), f64::INFINITY, 0);
        while runs == 0 || started.elapsed() < if runs < RUNS { ENOUGH } else { EACH } {
            for slice in batch {
                self.engine.set_len(self.stage, slice.request, slice.start)?;
            }
            let at = Instant::now();
            self.run(batch)?;
            best = best.min(at.elapsed().as_secs_f64());
            runs += 1;
        }
        Ok(best)
    }

    fn run(&mut self, batch: &[Slice]) -> Result<(), EngineError> {
        let rows: usize = batch.iter().map(|s| s.len as usize).sum();
        self.engine.forward(self.stage, batch, Input::Tokens(&self.tokens[..rows]), Output::Hidden)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_times_give_their_coefficients_back() {
        let [a, b, c] = [2e-3, 3e-5, 4e-8];
        let x = [16.0, 64.0, 256.0];
        let found = parabola(x, x.map(|x| a + b * x + c * x * x));
        assert!(found.iter().zip([a, b, c]).all(|(f, e)| (f / e - 1.0).abs() < 1e-9), "{found:?}");
        let step = |n: f64, context: f64| a + b * n * context + c * n;
        let found = plane([16.0, 256.0], 8.0, [step(1.0, 16.0), step(1.0, 256.0), step(8.0, 16.0)]);
        assert!(found.iter().zip([a, b, c]).all(|(f, e)| (f / e - 1.0).abs() < 1e-6), "{found:?}");
    }

    #[test]
    fn noise_makes_nothing_negative() {
        assert!(parabola([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]).iter().all(|c| *c >= 0.0));
        assert!(plane([1.0, 2.0], 8.0, [3.0, 2.0, 1.0]).iter().all(|c| *c >= 0.0));
    }

    #[test]
    fn the_embedded_model_can_be_measured() {
        let source = ModelSource::embedded().unwrap();
        let profile = measure(&source, 1, KvDtype::F16).unwrap().unwrap();
        assert_eq!(profile.model, source.card().id);
        assert!(profile.prefill.iter().any(|c| *c > 0.0) && profile.decode.iter().any(|c| *c > 0.0), "{profile:?}");
    }
}
