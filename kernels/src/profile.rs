//! Plan flow 1: measures what one layer of a model costs on this device, by running it: the coefficients plans use.
//!
//! Times are linear in what a batch holds (ThunderServe App. B plans by such costs; Splitwise §V and Cronus §4.4, Eq. 2
//! and 3, fit them within a few percent). L tokens of a prompt behind P others of it take `a + b·L + c·((P + L)² − P²)`:
//! with no others Eq. 2 and the square of attention, with a chunk of one size Eq. 3's line in P. A step of n sequences
//! with ctx tokens each takes `A + B·n·ctx + C·n`, an iteration with both their sum. Each triple is fitted to some
//! steps and tried on others between them.

mod fit;

use crate::{
    engine::{Engine, EngineConfig, EngineError, Input, Output, Slice, StageKey, Threads},
    pages::{PAGE_BYTES, PageLayout},
    source::{ModelSource, StageModel},
    weights::WeightsError,
};
use fit::{dot, misfit, non_negative};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tsnode_protocol::{KvCodec, KvDtype, LayerProfile, LayerRange, RequestId, TileHeader, Token};

/// Changes when what is measured, or how, changes: what was remembered is then measured anew.
pub const METHOD: u32 = 3;

/// Runs of each step at least, and time given to it if its runs are shorter: so that one which another program interrupts
/// does not count. All take turns, so that a long interruption does not fall on all runs of one.
const RUNS: u32 = 5;
const EACH: Duration = Duration::from_millis(3);
const TURN: Duration = Duration::from_micros(300);
/// Time after which there are no more turns.
const ENOUGH: Duration = Duration::from_secs(3);

/// Tokens a sequence may have while measuring, if the model's context goes so far; attention counts for little before.
const REACH: u32 = 1024;
/// Parts of the reach in which steps are stated.
const PARTS: u32 = 64;

/// Prompts and chunks of them that `prefill` is fitted to, and others it is tried on.
const PROMPTS: [ProfiledStep; 5] = [prompt(0, 1), prompt(0, 3), prompt(0, 8), prompt(60, 1), prompt(30, 2)];
const OTHER_PROMPTS: [ProfiledStep; 4] = [prompt(0, 2), prompt(0, 5), prompt(20, 1), prompt(48, 1)];
/// Steps that `decode` is fitted to, and others it is tried on.
const STEPS: [ProfiledStep; 6] =
    [answers(1, 1), answers(1, 60), answers(4, 1), answers(4, 60), answers(16, 1), answers(16, 15)];
const OTHER_STEPS: [ProfiledStep; 5] = [answers(1, 30), answers(2, 8), answers(3, 45), answers(8, 4), answers(12, 10)];
/// Both in one iteration: nothing is fitted to these.
const MIXED: [ProfiledStep; 3] = [prompt(0, 2).beside(4, 30), prompt(20, 1).beside(1, 60), prompt(40, 1).beside(8, 8)];

/// What is measured of a model.
const FIRST: LayerRange = LayerRange { start: 0, end: 1 };
/// Layers of it on a GPU, if it has so many.
const ON_GPU: u32 = 4;

/// Most memory taken for KV while measuring (bytes): all layers of Gemma 4 E4B, in single precision, take 1.6 GiB.
const POOL_AT_MOST: usize = 2 << 30;
/// Most beside it for states, which those of all sequences are at once (bytes): of 64 heads in 45 layers they take 3.1 GiB.
const STATES_AT_MOST: usize = 7 << 29;

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

/// What an iteration holds; tokens are in parts of the reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProfiledStep {
    /// Tokens of a prompt, and how many of it are there before them; none without a prompt.
    chunk: u32,
    before: u32,
    /// Sequences that get one token each, and how many each has.
    answers: u32,
    context: u32,
}

const fn prompt(before: u32, chunk: u32) -> ProfiledStep {
    ProfiledStep { chunk, before, answers: 0, context: 0 }
}

const fn answers(answers: u32, context: u32) -> ProfiledStep {
    ProfiledStep { chunk: 0, before: 0, answers, context }
}

/// Measures the model's first layer with these threads; `None` for a model of one layer, which cannot be had without
/// its head, one with next to no context, or a mixture of experts that is still fetched. Takes about a tenth of a second with a
/// small model, some seconds with a large one.
///
/// # Errors
/// When the layer cannot be loaded or run.
pub fn measure(
    source: &ModelSource,
    threads: Threads,
    kv_dtype: KvDtype,
) -> Result<Option<LayerProfile>, ProfileError> {
    let Some(groups) = groups(source) else { return Ok(None) };
    let first = of_whole(source).unwrap_or(FIRST);
    let pool_bytes = pool_bytes(source, (threads.ranks, first), kv_dtype, &groups.concat())?;
    let mut engine = Engine::new(EngineConfig { threads, pool_bytes, kv_dtype })?;
    let first = source.outlined(first, threads)?;
    measured(&mut engine, source, first, (Output::Hidden, groups)).map(Some)
}

/// The same on an engine that computes on a GPU and holds no sequence. What a step costs beside its layers, being asked for and
/// waited for, is as much as a layer of a small model: several layers share it, and their rows stay on the GPU, as all but a
/// stage's last ones do.
///
/// # Errors
/// As [`measure`].
pub fn measure_on(engine: &mut Engine, source: &ModelSource) -> Result<Option<LayerProfile>, ProfileError> {
    let Some(groups) = groups(source) else { return Ok(None) };
    let few = LayerRange { end: ON_GPU.min(source.card().shape.layers - 1), ..FIRST };
    let few = of_whole(source).unwrap_or(few);
    let first = source.outlined_for_gpus(few, Threads { count: 1, ranks: engine.gpus() })?;
    measured(engine, source, first, (Output::Logits { rows: &[] }, groups)).map(Some)
}

/// All layers, of a model that one stage has to hold: no part of it can be had alone, and its last layer stands for several.
fn of_whole(source: &ModelSource) -> Option<LayerRange> {
    let shape = source.card().shape;
    shape.whole.then(|| shape.all_layers())
}

/// Steps to time: what prompts are fitted to and tried on, what answers are, and both together. None where they do not fit the model.
fn groups(source: &ModelSource) -> Option<[Vec<ProfiledStep>; 5]> {
    let shape = source.card().shape;
    let part = shape.context.min(REACH) / PARTS;
    let scaled = |steps: &[ProfiledStep]| steps.iter().map(|s| s.times(part)).collect::<Vec<_>>();
    // By a router of zeros all rows pass the same experts, so that steps would read next to none of them.
    let routes = shape.experts.is_none() || source.is_whole();
    let fits = shape.layers >= 2 && part > 0 && routes;
    fits.then(|| [&PROMPTS[..], &OTHER_PROMPTS, &STEPS, &OTHER_STEPS, &MIXED].map(scaled))
}

fn measured(
    engine: &mut Engine,
    source: &ModelSource,
    first: StageModel,
    (output, groups): (Output<'static>, [Vec<ProfiledStep>; 5]),
) -> Result<LayerProfile, ProfileError> {
    let (all, layers) = (groups.concat(), f64::from(first.layers.len()));
    let stage = engine.load(first)?;
    let times = Bench::new(engine, stage, source, (output, &all)).and_then(|mut bench| bench.times(&all));
    // Sequences go with it.
    engine.unload(stage);
    let mut times = times?.into_iter().map(|seconds| seconds / layers);
    let [prompts, other_prompts, steps, other_steps, mixed] =
        groups.map(|group| group.into_iter().zip(&mut times).collect::<Vec<_>>());
    let prefill = non_negative(&prompts.iter().map(|(s, t)| (s.prompt_row(), *t)).collect::<Vec<_>>());
    let decode = non_negative(&steps.iter().map(|(s, t)| (s.answers_row(), *t)).collect::<Vec<_>>());
    let foretold = |s: &ProfiledStep| dot(&s.prompt_row(), &prefill) + dot(&s.answers_row(), &decode);
    let tried =
        |group: &[(ProfiledStep, f64)]| misfit(&group.iter().map(|(s, t)| (foretold(s), *t)).collect::<Vec<_>>());
    Ok(LayerProfile {
        model: source.card().id,
        prefill,
        decode,
        prompts: tried(&other_prompts),
        steps: tried(&other_steps),
        mixed: tried(&mixed),
    })
}

/// Tokens that each sequence has at the most.
fn rooms(steps: &[ProfiledStep]) -> BTreeMap<RequestId, u32> {
    let mut rooms = BTreeMap::new();
    for slice in steps.iter().flat_map(ProfiledStep::batch) {
        let room = rooms.entry(slice.request).or_insert(0);
        *room = slice.len.saturating_add(slice.start).max(*room);
    }
    rooms
}

/// Memory for pages of all sequences in these layers (bytes).
fn pool_bytes(
    source: &ModelSource,
    (ranks, layers): (usize, LayerRange),
    kv_dtype: KvDtype,
    steps: &[ProfiledStep],
) -> Result<usize, EngineError> {
    let layout = PageLayout::new(&source.card().shape, kv_dtype)?;
    let rooms = rooms(steps);
    let states = (rooms.len() * source.states().pages() * PAGE_BYTES).min(STATES_AT_MOST);
    // A rank's pages hold more tokens of its fewer heads; each rounds up for itself.
    let pages = |room: &u32| layout.pages(*room as usize) + ranks;
    let pages: usize = rooms.values().map(pages).sum();
    Ok((pages * layers.len() as usize * PAGE_BYTES).min(POOL_AT_MOST) + states)
}

impl ProfiledStep {
    const fn beside(self, answers: u32, context: u32) -> Self {
        Self { answers, context, ..self }
    }

    fn times(self, part: u32) -> Self {
        let Self { chunk, before, answers, context } = self;
        Self { chunk: chunk * part, before: before * part, answers, context: context * part }
    }

    /// What `prefill` is multiplied by.
    fn prompt_row(&self) -> [f64; 3] {
        let [chunk, before] = [self.chunk, self.before].map(f64::from);
        let after = before + chunk;
        if self.chunk == 0 { [0.0; 3] } else { [1.0, chunk, after * after - before * before] }
    }

    /// What `decode` is multiplied by.
    fn answers_row(&self) -> [f64; 3] {
        let [n, context] = [self.answers, self.context].map(f64::from);
        if self.answers == 0 { [0.0; 3] } else { [1.0, n * context, n] }
    }

    /// The batch: the prompt is one sequence, answers are others, the same whatever the step.
    fn batch(&self) -> Vec<Slice> {
        let prompt = (self.chunk > 0).then_some(Slice { request: named(0), start: self.before, len: self.chunk });
        let answer = |k| Slice { request: named(k), start: self.context, len: 1 };
        prompt.into_iter().chain((1..=self.answers).map(answer)).collect()
    }
}

fn named(sequence: u32) -> RequestId {
    RequestId([sequence as u8; 16])
}

/// A layer, and sequences long enough for every step.
struct Bench<'e> {
    engine: &'e mut Engine,
    stage: StageKey,
    output: Output<'static>,
    tokens: Vec<Token>,
}

impl<'e> Bench<'e> {
    fn new(
        engine: &'e mut Engine,
        stage: StageKey,
        source: &ModelSource,
        (output, steps): (Output<'static>, &[ProfiledStep]),
    ) -> Result<Self, EngineError> {
        let (extent, _) = engine.extent(stage)?;
        let (shape, dtype) = (source.card().shape, engine.kv_dtype());
        for (request, room) in rooms(steps) {
            engine.admit(stage, request, room)?;
            // No tiles go there.
            if source.states().pages() > 0 {
                continue;
            }
            // Written, so that pages exist and are not all the same zero page.
            let bytes = u64::from(room) * shape.kv_elements_per_token_layer() * dtype.bytes() as u64;
            let payload = vec![0; bytes as usize];
            for layer in extent.start..extent.end {
                let all = TileHeader {
                    layer,
                    head_start: 0,
                    head_end: shape.kv_heads,
                    token_start: 0,
                    token_end: room,
                    bytes: 0,
                };
                engine.import(stage, request, &all, KvCodec::Raw, &payload)?;
            }
        }
        let rows = steps.iter().map(|s| s.chunk + s.answers).max().unwrap_or(0);
        Ok(Self { engine, stage, output, tokens: (0..rows).map(|n| Token(n % shape.vocab)).collect() })
    }

    /// Seconds of each step's fastest run: other programs only ever make it slower.
    fn times(&mut self, steps: &[ProfiledStep]) -> Result<Vec<f64>, EngineError> {
        let mut runs = vec![Runs::default(); steps.len()];
        let started = Instant::now();
        loop {
            for (runs, step) in runs.iter_mut().zip(steps).filter(|(runs, _)| !runs.are_enough()) {
                self.turn(&step.batch(), runs)?;
            }
            if started.elapsed() > ENOUGH || runs.iter().all(Runs::are_enough) {
                return Ok(runs.iter().map(|r| r.best.as_secs_f64()).collect());
            }
        }
    }

    fn turn(&mut self, batch: &[Slice], runs: &mut Runs) -> Result<(), EngineError> {
        let rows: usize = batch.iter().map(|s| s.len as usize).sum();
        let until = runs.spent + TURN;
        while runs.spent < until {
            for slice in batch {
                self.engine.assume_len(self.stage, slice.request, slice.start)?;
            }
            let at = Instant::now();
            self.engine.forward(self.stage, batch, Input::Tokens(&self.tokens[..rows]), self.output)?;
            runs.add(at.elapsed());
        }
        Ok(())
    }
}

/// Runs of a step.
#[derive(Clone, Copy)]
struct Runs {
    count: u32,
    spent: Duration,
    best: Duration,
}

impl Default for Runs {
    fn default() -> Self {
        Self { count: 0, spent: Duration::ZERO, best: Duration::MAX }
    }
}

impl Runs {
    fn add(&mut self, took: Duration) {
        self.count += 1;
        self.spent += took;
        self.best = self.best.min(took);
    }

    fn are_enough(&self) -> bool {
        self.count >= RUNS && self.spent >= EACH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_model_can_be_measured() {
        let source = ModelSource::embedded().unwrap();
        let profile = measure(&source, Threads::together(1), KvDtype::F16).unwrap().unwrap();
        assert_eq!(profile.model, source.card().id);
        assert!(profile.is_plausible(), "{profile:?}");
        assert!(profile.prefill[1] > 0.0 && profile.decode.iter().any(|c| *c > 0.0), "{profile:?}");
    }

    #[test]
    fn a_model_that_is_not_cut_is_measured_as_a_whole() {
        for (name, end) in [("gemma4-shared", 3), ("qwen35-dense", 2)] {
            let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("models/reference").join(name);
            let source = ModelSource::open(&folder).unwrap();
            assert_eq!(of_whole(&source), Some(LayerRange { start: 0, end }));
            let profile = measure(&source, Threads::together(1), KvDtype::F32).unwrap().unwrap();
            assert!(profile.is_plausible(), "{name}: {profile:?}");
        }
    }

    #[test]
    fn chunks_of_a_prompt_take_what_the_prompt_takes_but_for_starting() {
        let rows = [prompt(0, 5), prompt(5, 7), prompt(12, 4)].map(|s| s.prompt_row());
        let whole = prompt(0, 16).prompt_row();
        for i in 1..3 {
            assert_eq!(rows.iter().map(|r| r[i]).sum::<f64>(), whole[i]);
        }
    }

    #[test]
    fn what_a_fit_is_tried_on_it_has_not_seen() {
        let seen = [&PROMPTS[..], &STEPS].concat();
        let tried = [&OTHER_PROMPTS[..], &OTHER_STEPS, &MIXED].concat();
        assert!(tried.iter().all(|s| !seen.contains(s)));
        let longest = seen.iter().chain(&tried).flat_map(ProfiledStep::batch).map(|s| s.start + s.len).max();
        assert!(longest <= Some(PARTS), "{longest:?} of {PARTS} parts");
    }
}
